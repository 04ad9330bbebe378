/* LayerNorm and RMSNorm on the CPU, forward and backward.
 *
 * Both are bound by memory, but what a row's results need is known only when all of the row has been
 * read. A loop that takes one row after the other would have nothing to load or store while it
 * computes a row's statistics. So one sweep over the columns reads a row (the leading one) and writes
 * the results of the row before it (the trailing one). The rows follow each other in memory, one
 * stream for each tensor: writing several rows side by side costs a third of a Neoverse's rate. x + r
 * waits in scratch, in the first cache, and not in its own tensor: what is written in long runs does
 * not stay in the first cache of every processor.
 *
 * The processors of x86-64 read ahead far enough by themselves, and what they write stays in the first
 * cache. There the forward pass takes one row after the other, and x + r waits in its own tensor.
 *
 * The variance is summed around the mean, in a pass of its own over x + r where it waits, since
 * Σs² − (Σs)² loses everything where the mean is large. A row's sums have one order, whichever rows
 * are beside it.
 *
 * The gradients of w and b, and of a bias before the norm, are sums over rows. Each block of rows
 * (cut by the shape alone) has a partial sum of its own, taken in the order of the rows, and the
 * partial sums are added in the order of the blocks. */
#include "ops/norm.h"

#include "cpu/chunks.h"

enum {
    LANES = 4,       /* vectors in which a row's sum is taken */
    BACK_LANES = 2,  /* the same, backward, */
    BACK_STEP = 4,   /* and vectors that are taken at a time there */
    WIDENED = 5,     /* rows of scratch for bf16, forward: x of two rows, r, s and y */
    BACK_ROWS = 3,   /* rows of scratch of a row, backward: dy or dx, s, ds */
    BLOCKS_MAX = 64, /* partial sums of the gradient of w */
    BLOCK_LEAST = 4, /* rows that share a partial sum */
    COLUMNS = 256    /* a task of the sum over blocks */
};

#if defined(__aarch64__)
#define TWO_ROWS true /* a sweep of the forward pass reads a row and writes the one before */
#else
#define TWO_ROWS false
#endif

/* The tensors that are gone through row by row. */
enum { IN_X, IN_R, OUT_S = 0, OUT_Y };
enum { IN_DY, IN_BACK_S, IN_DS, OUT_DX = 0 };

/* A tensor's rows: its memory looked up once for all of them. data NULL: no such tensor. */
typedef struct {
    void *data;
    bool bf16;
} row_source;

typedef struct {
    weft_exec *x;
    const weft_node *n;
    int64_t rows, width, block; /* rows of a task; back: that share partial sums, */
    int64_t together;           /* and how many blocks a task takes */
    weft_norm_group group;      /* which of the tensors' rows these are */
    bool centered;              /* LayerNorm */
    real eps;
    const real *w, *b;          /* widened */
    real *mean, *rstd;          /* of each row */
    row_source in[3], out[2];   /* forward: x, r; s, y. Back: dy, s, ds; dx */
    real *scratch;              /* `per_thread` reals a thread */
    int64_t per_thread, padded; /* `padded`: reals from one row of scratch to the next */
    real *partial;              /* back: [blocks, sums, padded], sums of dy·h, of dy and of dx */
    int sums;                   /* of them: the last only where it is wanted */
} norm_job;

static ALWAYS_INLINE const real *read_row(const norm_job *j, row_source t, int64_t row,
                                          real *scratch) {
    return row_in(t.data, t.bf16, row * j->width, j->width, scratch);
}

/* Where to write a row; finish_row rounds it. */
static ALWAYS_INLINE real *begin_row(const norm_job *j, row_source t, int64_t row, real *scratch) {
    return t.bf16 ? scratch : (real *)t.data + row * j->width;
}

static ALWAYS_INLINE void finish_row(const norm_job *j, row_source t, int64_t row,
                                     const real *from) {
    if (t.bf16) round_bf16((uint16_t *)t.data + row * j->width, from, j->width);
}

/* Where row `row` of the group stands. */
static ALWAYS_INLINE int64_t place_of(const norm_job *j, int64_t row) {
    const weft_norm_group *g = &j->group;
    return g->count == g->period ? row : row / g->count * g->period + g->first + row % g->count;
}

/* A row on its way. */
typedef struct {
    int64_t row; /* its place */
    const real *x, *r;
    real *kept;       /* x + r: in scratch, each row's in the same place, or in s itself */
    const real *from; /* what is normed: `kept`, or x where there is no r */
    real *s, *y;
    real sum, mean, rstd; /* sum: of the elements, or RMSNorm's of their squares */
} norm_row;

/* `vectors` of n columns each, from i on. The leading row is read, and its sum goes on, a vector of it
 * for each; of the trailing one s and y are written. All is loaded before anything is stored: both
 * rows are kept in one place. And each line of memory is written whole before the next: stores that
 * alternate between two lines are not merged. */
static ALWAYS_INLINE void sweep_columns(const norm_row *lead, const norm_row *trail, bool with_r,
                                        bool centered, const real *w, const real *b, vreal *sum,
                                        int vectors, int64_t i, int64_t n) {
    vreal next[LANES], a[LANES], y[LANES];
    for (int k = 0; lead && k < vectors; k++) {
        next[k] = vload_n(lead->x + i + k * VLEN, n);
        if (with_r) next[k] += vload_n(lead->r + i + k * VLEN, n);
        sum[k] = centered ? sum[k] + next[k] : vfma(next[k], next[k], sum[k]);
    }
    for (int k = 0; trail && k < vectors; k++) {
        int64_t at = i + k * VLEN;
        a[k] = vload_n(trail->from + at, n);
        vreal unit = (a[k] - trail->mean) * trail->rstd, gain = vload_n(w + at, n);
        y[k] = b ? vfma(unit, gain, vload_n(b + at, n)) : unit * gain;
    }
    for (int k = 0; lead && with_r && k < vectors; k++)
        vstore_n(lead->kept + i + k * VLEN, next[k], n);
    bool elsewhere = trail && with_r && (TWO_ROWS || trail->s != trail->kept);
    for (int k = 0; elsewhere && k < vectors; k++)
        vstore_n(trail->s + i + k * VLEN, a[k], n);
    for (int k = 0; trail && k < vectors; k++)
        vstore_n(trail->y + i + k * VLEN, y[k], n);
}

/* All columns. The rows by value: stores through vectors may alias what lies in memory. */
static ALWAYS_INLINE real sweep(const norm_job *j, const norm_row lead, bool leads,
                                const norm_row trail, bool trails, bool with_r, bool centered,
                                const real *b) {
    const norm_row *in = leads ? &lead : NULL, *out = trails ? &trail : NULL;
    vreal sum[LANES] = {{0}, {0}, {0}, {0}};
    const real *w = j->w;
    int64_t width = j->width, i = 0;
    for (; i + LANES * VLEN <= width; i += LANES * VLEN)
        sweep_columns(in, out, with_r, centered, w, b, sum, LANES, i, VLEN);
    for (; i + VLEN <= width; i += VLEN)
        sweep_columns(in, out, with_r, centered, w, b, sum, 1, i, VLEN);
    if (i < width) sweep_columns(in, out, with_r, centered, w, b, sum + 1, 1, i, width - i);
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* A block's first row alone, or its last one. */
static __attribute__((noinline)) real sweep_edge(const norm_job *j, const norm_row row,
                                                 bool leads) {
    bool with_r = j->in[IN_R].data != NULL;
    if (leads) return sweep(j, row, true, row, false, with_r, j->centered, j->b);
    return sweep(j, row, false, row, true, with_r, j->centered, j->b);
}

/* Σ (row − mean)². */
static ALWAYS_INLINE real sum_around(const real *row, int64_t width, real mean) {
    vreal s[LANES] = {{0}, {0}, {0}, {0}}, d;
    int64_t i = 0;
    for (; i + LANES * VLEN <= width; i += LANES * VLEN)
        for (int k = 0; k < LANES; k++) {
            d = vload(row + i + k * VLEN) - mean;
            s[k] = vfma(d, d, s[k]);
        }
    for (; i + VLEN <= width; i += VLEN) {
        d = vload(row + i) - mean;
        s[0] = vfma(d, d, s[0]);
    }
    real sum = vsum((s[0] + s[1]) + (s[2] + s[3]));
    for (; i < width; i++)
        sum += (row[i] - mean) * (row[i] - mean);
    return sum;
}

static ALWAYS_INLINE void take_statistics(const norm_job *j, norm_row *t, bool centered) {
    real width = (real)j->width, squares = t->sum;
    if (centered) {
        t->mean = t->sum / width;
        j->mean[t->row] = t->mean;
        squares = sum_around(t->from, j->width, t->mean);
    }
    t->rstd = 1 / (real)sqrt((double)(squares / width + j->eps));
    j->rstd[t->row] = t->rstd;
}

static ALWAYS_INLINE norm_row open_row(const norm_job *j, int64_t row, bool with_r, real *scratch) {
    real *widened = scratch + j->padded;
    norm_row t = {.row = place_of(j, row), .kept = scratch};
    t.x = t.from = read_row(j, j->in[IN_X], t.row, widened + row % 2 * j->padded);
    t.y = begin_row(j, j->out[OUT_Y], t.row, widened + 2 * j->padded);
    if (!with_r) return t;
    t.r = read_row(j, j->in[IN_R], t.row, widened + 3 * j->padded);
    t.s = begin_row(j, j->out[OUT_S], t.row, widened + 4 * j->padded);
    if (!TWO_ROWS) t.kept = t.s;
    t.from = t.kept;
    return t;
}

static ALWAYS_INLINE void close_row(const norm_job *j, const norm_row t, bool with_r) {
    if (with_r) finish_row(j, j->out[OUT_S], t.row, t.s);
    finish_row(j, j->out[OUT_Y], t.row, t.y);
}

static ALWAYS_INLINE void norm_rows(const norm_job *j, int64_t row, int64_t end, bool with_r,
                                    bool centered, const real *b, real *scratch) {
    for (; !TWO_ROWS && row < end; row++) {
        norm_row t = open_row(j, row, with_r, scratch);
        t.sum = sweep(j, t, true, t, false, with_r, centered, b);
        take_statistics(j, &t, centered);
        sweep(j, t, false, t, true, with_r, centered, b);
        close_row(j, t, with_r);
    }
    if (!TWO_ROWS) return;
    norm_row trail = open_row(j, row, with_r, scratch);
    trail.sum = sweep_edge(j, trail, true);
    take_statistics(j, &trail, centered);
    for (row++; row < end; row++) {
        norm_row lead = open_row(j, row, with_r, scratch);
        lead.sum = sweep(j, lead, true, trail, true, with_r, centered, b);
        close_row(j, trail, with_r);
        take_statistics(j, &lead, centered);
        trail = lead;
    }
    sweep_edge(j, trail, false);
    close_row(j, trail, with_r);
}

/* With the usual kinds of norm as constants. */
WEFT_TASK(norm_block, const norm_job *j) {
    real *scratch = j->scratch + thread * j->per_thread;
    int64_t row = task * j->block, end = min_i64(row + j->block, j->rows);
    if (!j->in[IN_R].data)
        norm_rows(j, row, end, false, j->centered, j->b, scratch);
    else if (j->centered && j->b)
        norm_rows(j, row, end, true, true, j->b, scratch);
    else if (j->centered)
        norm_rows(j, row, end, true, true, NULL, scratch);
    else
        norm_rows(j, row, end, true, false, j->b, scratch);
}

static row_source source_of(const weft_exec *x, const weft_tensor *t) {
    return (row_source){weft_data(x, t), t && t->dtype == WEFT_BF16};
}

/* Rows that no gain is for go from one tensor to another as they are, `period` of them at a time. */
typedef struct {
    const weft_norm_group *group;
    const char *from;
    char *to;
    size_t bytes; /* of a row */
} rest_rows;

static void copy_rest(const void *context, int64_t index) {
    const rest_rows *c = context;
    const weft_norm_group *last = c->group;
    int64_t normed = last->first + last->count;
    size_t at = (size_t)(index * last->period + normed) * c->bytes;
    memcpy(c->to + at, c->from + at, (size_t)(last->period - normed) * c->bytes);
}

/* Behind the last group. */
static weft_status run_rest(const norm_job *j, const weft_tensor *from, const weft_tensor *to) {
    const weft_norm_group *last = &j->group;
    rest_rows c = {last, weft_data(j->x, from), weft_data(j->x, to), 0};
    if (last->first + last->count == last->period || !c.to || c.from == c.to) return WEFT_OK;
    c.bytes = (size_t)j->width * weft_dtype_size(from->dtype);
    return run_rows(j->x, weft_tensor_count(from) / (last->period * j->width),
                    last->period * j->width, copy_rest, &c);
}

static norm_job norm_job_of(weft_exec *x, const weft_node *n, const weft_tensor *s) {
    const weft_norm_attr *attr = n->attr;
    return (norm_job){.x = x,
                      .n = n,
                      .width = weft_tensor_width(s),
                      .centered = attr->kind == WEFT_LAYERNORM,
                      .eps = (real)attr->eps,
                      .padded = real_bytes(weft_tensor_width(s)) / (int64_t)sizeof(real)};
}

/* Rows of scratch per thread: x + r, and what is widened. */
static int64_t scratch_rows(const weft_node *n) {
    const weft_tensor *any[] = {n->in[WEFT_NORM_X], n->in[WEFT_NORM_R], n->out[WEFT_NORM_S],
                                n->out[WEFT_NORM_Y]};
    for (int i = 0; i < 4; i++)
        if (any[i] && any[i]->dtype == WEFT_BF16) return 1 + WIDENED;
    return 1;
}

/* Workspace: w and b widened, then every thread's scratch. */
DEFINE_KERNEL_IN(norm, (2 + scratch_rows(n) * threads) *
                           real_bytes(weft_tensor_width(n->in[WEFT_NORM_X]))) {
    norm_job j = norm_job_of(x, n, n->in[WEFT_NORM_X]);
    real *room = weft_workspace(x, n);
    if (n->in[WEFT_NORM_B]) j.b = tile_in(x, n->in[WEFT_NORM_B], 0, j.width, room + j.padded);
    j.in[IN_X] = source_of(x, n->in[WEFT_NORM_X]);
    j.in[IN_R] = source_of(x, n->in[WEFT_NORM_R]);
    j.out[OUT_S] = source_of(x, n->out[WEFT_NORM_S]);
    j.out[OUT_Y] = source_of(x, n->out[WEFT_NORM_Y]);
    j.mean = weft_data(x, n->out[WEFT_NORM_MEAN]);
    j.rstd = weft_data(x, n->out[WEFT_NORM_RSTD]);
    j.scratch = room + 2 * j.padded;
    j.per_thread = scratch_rows(n) * j.padded;
    weft_pool *pool = weft_exec_pool(x);
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        const weft_tensor *w = n->in[group ? WEFT_NORM_W_NEXT : WEFT_NORM_W];
        j.group = weft_norm_group_of(n->attr, n->in[WEFT_NORM_X], group);
        j.rows = j.group.rows;
        if (j.rows == 0) continue;
        j.w = tile_in(x, w, 0, j.width, weft_workspace(x, n));
        int64_t least = chunk_rows(j.rows, j.width); /* a row's bits do not depend on it */
        j.block = least * tasks_together(ceil_div(j.rows, least), weft_pool_size(pool));
        weft_pool_run(pool, ceil_div(j.rows, j.block), norm_block, &j);
    }
    return run_rest(&j, n->in[WEFT_NORM_X], n->out[WEFT_NORM_Y]);
}

/* A row on its way back. With g = dy·w, d = s − mean, its gradient is rstd·g − c1 − d·c2, where
 * c1 = rstd·mean(g) (LayerNorm) and c2 = rstd³·mean(g·d). */
typedef struct {
    int64_t row;
    const real *dy, *s, *ds;
    real *dx;
    real mean, rstd, c1, c2;
} back_row;

/* Where a block's sums over rows are. */
typedef struct {
    real *dw, *db, *dx; /* db and dx may be NULL */
} back_sums;

/* A row's Σ g and Σ g·d, some vectors of each. */
typedef struct {
    vreal g[BACK_LANES], gd[BACK_LANES];
} back_means;

/* As sweep_columns: of the leading row what its sums need is read; of the trailing one dx is written,
 * and its shares of the sums over rows. */
static ALWAYS_INLINE void sweep_back_columns(const back_row *lead, const back_row *trail,
                                             bool with_ds, const real *w, const back_sums sums,
                                             back_means *m, int vectors, int64_t i, int64_t n) {
    vreal dw[BACK_STEP], db[BACK_STEP], dx[BACK_STEP];
    for (int k = 0; lead && k < vectors; k++) {
        int64_t at = i + k * VLEN;
        vreal grad = vload_n(lead->dy + at, n) * vload_n(w + at, n);
        vreal *g = &m->g[k % BACK_LANES], *gd = &m->gd[k % BACK_LANES];
        *g += grad;
        *gd = vfma(grad, vload_n(lead->s + at, n) - lead->mean, *gd);
    }
    for (int k = 0; trail && k < vectors; k++) {
        int64_t at = i + k * VLEN;
        vreal dy = vload_n(trail->dy + at, n), d = vload_n(trail->s + at, n) - trail->mean;
        vreal scaled = dy * trail->rstd;
        dw[k] = vfma(scaled, d, vload_n(sums.dw + at, n));
        db[k] = sums.db ? vload_n(sums.db + at, n) + dy : dy;
        dx[k] = scaled * vload_n(w + at, n) - trail->c1 - d * trail->c2;
        if (with_ds) dx[k] += vload_n(trail->ds + at, n);
    }
    for (int k = 0; trail && k < vectors; k++)
        vstore_n(sums.dw + i + k * VLEN, dw[k], n);
    for (int k = 0; trail && sums.db && k < vectors; k++)
        vstore_n(sums.db + i + k * VLEN, db[k], n);
    for (int k = 0; trail && sums.dx && k < vectors; k++)
        vstore_n(sums.dx + i + k * VLEN, vload_n(sums.dx + i + k * VLEN, n) + dx[k], n);
    for (int k = 0; trail && k < vectors; k++)
        vstore_n(trail->dx + i + k * VLEN, dx[k], n);
}

/* All columns; returns c1 and c2 of the leading row in it. */
static ALWAYS_INLINE back_row sweep_back(const norm_job *j, back_row lead, bool leads,
                                         const back_row trail, bool trails, bool with_ds,
                                         const back_sums sums) {
    const back_row *in = leads ? &lead : NULL, *out = trails ? &trail : NULL;
    back_means m = {{{0}, {0}}, {{0}, {0}}};
    const real *w = j->w;
    int64_t width = j->width, i = 0;
    for (; i + BACK_STEP * VLEN <= width; i += BACK_STEP * VLEN)
        sweep_back_columns(in, out, with_ds, w, sums, &m, BACK_STEP, i, VLEN);
    for (; i + BACK_LANES * VLEN <= width; i += BACK_LANES * VLEN)
        sweep_back_columns(in, out, with_ds, w, sums, &m, BACK_LANES, i, VLEN);
    for (; i + VLEN <= width; i += VLEN)
        sweep_back_columns(in, out, with_ds, w, sums, &m, 1, i, VLEN);
    if (i < width) sweep_back_columns(in, out, with_ds, w, sums, &m, 1, i, width - i);
    real share = 1 / (real)width, rstd = lead.rstd;
    lead.c1 = j->centered ? vsum(m.g[0] + m.g[1]) * rstd * share : 0;
    lead.c2 = vsum(m.gd[0] + m.gd[1]) * share * rstd * rstd * rstd;
    return lead;
}

static __attribute__((noinline)) back_row sweep_back_edge(const norm_job *j, const back_row row,
                                                          bool leads, const back_sums sums) {
    bool with_ds = j->in[IN_DS].data != NULL;
    if (leads) return sweep_back(j, row, true, row, false, with_ds, sums);
    return sweep_back(j, row, false, row, true, with_ds, sums);
}

/* dx goes to a row of scratch that nobody reads where it is not wanted. */
static ALWAYS_INLINE back_row open_back(const norm_job *j, int64_t row, bool with_ds,
                                        real *scratch) {
    real *room = scratch + row % 2 * BACK_ROWS * j->padded;
    int64_t at = place_of(j, row);
    back_row t = {.row = at, .rstd = j->rstd[at], .mean = j->centered ? j->mean[at] : 0};
    t.dy = read_row(j, j->in[IN_DY], at, room);
    t.s = read_row(j, j->in[IN_BACK_S], at, room + j->padded);
    if (with_ds) t.ds = read_row(j, j->in[IN_DS], at, room + 2 * j->padded);
    t.dx = j->out[OUT_DX].data ? begin_row(j, j->out[OUT_DX], at, room) : room;
    return t;
}

static ALWAYS_INLINE void norm_back_rows(const norm_job *j, int64_t row, int64_t end,
                                         const back_sums sums, real *scratch, bool with_ds) {
    back_row trail = open_back(j, row, with_ds, scratch);
    trail = sweep_back_edge(j, trail, true, sums);
    for (row++; row < end; row++) {
        back_row lead = open_back(j, row, with_ds, scratch);
        lead = sweep_back(j, lead, true, trail, true, with_ds, sums);
        finish_row(j, j->out[OUT_DX], trail.row, trail.dx);
        trail = lead;
    }
    sweep_back_edge(j, trail, false, sums);
    finish_row(j, j->out[OUT_DX], trail.row, trail.dx);
}

WEFT_TASK(norm_back_blocks, const norm_job *j) {
    real *scratch = j->scratch + thread * j->per_thread;
    int64_t last = min_i64((task + 1) * j->together, ceil_div(j->rows, j->block));
    for (int64_t block = task * j->together; block < last; block++) {
        real *dw = j->partial + block * j->sums * j->padded;
        back_sums sums = {dw, j->n->out[WEFT_NORM_BACK_DB] ? dw + j->padded : NULL,
                          j->sums > 2 ? dw + 2 * j->padded : NULL};
        int64_t row = block * j->block, end = min_i64(row + j->block, j->rows);
        memset(dw, 0, (size_t)(j->sums * j->padded) * sizeof(real));
        EITHER(j->in[IN_DS].data, norm_back_rows, j, row, end, sums, scratch);
    }
}

/* out[c] = Σ over blocks of partial[block, which, c], in the order of the blocks. */
static void sum_blocks(const norm_job *j, const weft_tensor *out, int which, int64_t column) {
    if (!out) return;
    double sum[COLUMNS] = {0};
    real scratch[COLUMNS];
    int64_t len = min_i64(COLUMNS, j->width - column), blocks = ceil_div(j->rows, j->block);
    for (int64_t b = 0; b < blocks; b++) {
        const real *from = j->partial + (j->sums * b + which) * j->padded + column;
        for (int64_t i = 0; i < len; i++)
            sum[i] += (double)from[i];
    }
    real *to = tile_out(j->x, out, column, scratch);
    for (int64_t i = 0; i < len; i++)
        to[i] = (real)sum[i];
    tile_done(j->x, out, column, len, to);
}

static const weft_tensor *gain_sums(const norm_job *j) {
    return j->n->out[j->group.first ? WEFT_NORM_BACK_DW_NEXT : WEFT_NORM_BACK_DW];
}

WEFT_TASK(norm_sum_columns, const norm_job *j) {
    sum_blocks(j, gain_sums(j), 0, task * COLUMNS);
    sum_blocks(j, j->n->out[WEFT_NORM_BACK_DB], 1, task * COLUMNS);
    sum_blocks(j, j->n->out[WEFT_NORM_BACK_SUMS], 2, task * COLUMNS);
}

/* Rows of a block: enough work for a task, and not too many partial sums. */
static int64_t back_block(int64_t rows, int64_t width) {
    return max_i64(ceil_div(rows, BLOCKS_MAX), max_i64(BLOCK_LEAST, chunk_rows(rows, width)));
}

static int count_sums(const weft_node *n) {
    return n->out[WEFT_NORM_BACK_SUMS] ? 3 : 2;
}

/* Workspace: w widened, the rows of two per thread, the partial sums. */
static int64_t norm_back_workspace(const weft_node *n, int threads) {
    const weft_tensor *s = n->in[WEFT_NORM_BACK_S];
    int64_t width = weft_tensor_width(s), blocks = 0;
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        int64_t rows = weft_norm_group_of(n->attr, s, group).rows;
        if (rows) blocks = max_i64(blocks, ceil_div(rows, back_block(rows, width)));
    }
    return (1 + 2 * BACK_ROWS * threads + count_sums(n) * blocks) * real_bytes(width);
}

DEFINE_KERNEL(norm_back, .workspace = norm_back_workspace) {
    norm_job j = norm_job_of(x, n, n->in[WEFT_NORM_BACK_S]);
    real *room = weft_workspace(x, n);
    j.sums = count_sums(n);
    j.scratch = room + j.padded;
    j.per_thread = 2 * BACK_ROWS * j.padded;
    j.in[IN_DY] = source_of(x, n->in[WEFT_NORM_BACK_DY]);
    j.in[IN_BACK_S] = source_of(x, n->in[WEFT_NORM_BACK_S]);
    j.in[IN_DS] = source_of(x, n->in[WEFT_NORM_BACK_DS]);
    j.out[OUT_DX] = source_of(x, n->out[WEFT_NORM_BACK_DX]);
    j.mean = weft_data(x, n->in[WEFT_NORM_BACK_MEAN]);
    j.rstd = weft_data(x, n->in[WEFT_NORM_BACK_RSTD]);
    j.partial = j.scratch + weft_pool_size(weft_exec_pool(x)) * j.per_thread;
    weft_pool *pool = weft_exec_pool(x);
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        const weft_tensor *w = n->in[group ? WEFT_NORM_BACK_W_NEXT : WEFT_NORM_BACK_W];
        j.group = weft_norm_group_of(n->attr, n->in[WEFT_NORM_BACK_S], group);
        j.rows = j.group.rows;
        if (j.rows == 0) continue;
        j.w = tile_in(x, w, 0, j.width, weft_workspace(x, n));
        j.block = back_block(j.rows, j.width);
        int64_t blocks = ceil_div(j.rows, j.block);
        j.together = tasks_together(blocks, weft_pool_size(pool));
        weft_pool_run(pool, ceil_div(blocks, j.together), norm_back_blocks, &j);
        if (gain_sums(&j) || n->out[WEFT_NORM_BACK_DB] || n->out[WEFT_NORM_BACK_SUMS])
            weft_pool_run(pool, ceil_div(j.width, COLUMNS), norm_sum_columns, &j);
    }
    return run_rest(&j, n->in[WEFT_NORM_BACK_DY], n->out[WEFT_NORM_BACK_DX]);
}

/* Vectors scaled to length 1: a head is read once for its sums and once more to be scaled. */

VECTOR_FN(mixed_vector) {
    out[0] = in[0] * arg[0] + in[1] * arg[1];
}

POSITIONWISE(unit, n->in[0]) {
    const weft_tensor *dy = k->n->n_in > 1 ? k->n->in[0] : NULL; /* NULL: the forward pass */
    const weft_tensor *in[] = {dy ? dy : k->from, k->from}, *y = k->n->out[0];
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t at = (p * k->heads + h) * k->width;
        real factor[2] = {1, 0};
        bool scaled = h < ATTR(k->n, weft_unit_attr)->heads;
        if (scaled) {
            double length = sqrt(dot_tensors(k->x, k->from, k->from, at, k->width));
            bool least = !(length > WEFT_UNIT_LEAST);
            double r = 1 / (least ? WEFT_UNIT_LEAST : length);
            factor[0] = (real)r;
            if (dy && !least)
                factor[1] = (real)(-r * r * (r * dot_tensors(k->x, dy, k->from, at, k->width)));
        }
        if (scaled && dy)
            apply_tensors(k->x, mixed_vector, 2, in, y, at, k->width, factor);
        else
            apply_tensors(k->x, scale_vector, 1, in, y, at, k->width, factor);
    }
}

DEFINE_KERNEL_AS(unit_back, run_positions(x, n, n->in[1], unit_row))

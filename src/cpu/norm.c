/* LayerNorm and RMSNorm on the CPU: a row stays in the first cache from its first reading to its
 * last writing. The variance is summed around the mean, in a second pass over that row, since
 * Σs² − (Σs)² loses everything where the mean is large.
 *
 * The gradients of w and b, and of a bias before the norm, are sums over rows. Each block of rows (cut by the shape alone) has a
 * partial sum of its own, and the partial sums are added in the order of the blocks. Rows are
 * taken four at a time there, so that a partial sum is loaded and stored once for four rows. */
#include "ops/norm.h"

#include "cpu/chunks.h"

enum {
    BLOCKS_MAX = 64, /* partial sums of the gradient of w */
    GROUP = 4,       /* rows taken together in the backward pass */
    COLUMNS = 256    /* a task of the sum over blocks */
};

typedef struct {
    weft_exec *x;
    const weft_node *n;
    int64_t rows, width, block; /* rows of a task */
    bool centered;              /* LayerNorm */
    real eps;
    const real *w, *b;          /* widened */
    real *scratch;              /* rows of bf16, `per_thread` reals a thread */
    int64_t per_thread, padded; /* `padded`: reals from one row of scratch to the next */
    real *partial;              /* back: [blocks, sums, padded], sums of dy·h, of dy and of dx */
    int sums;                   /* of them: the last only where it is wanted */
} norm_job;

static real row_sum(const real *row, int64_t width) {
    vreal s[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * VLEN <= width; i += 4 * VLEN)
        for (int k = 0; k < 4; k++)
            s[k] += vload(row + i + k * VLEN);
    for (; i + VLEN <= width; i += VLEN)
        s[0] += vload(row + i);
    if (i < width) s[1] += vload_part(row + i, width - i);
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

static real row_squares_around(const real *row, int64_t width, real mean) {
    vreal s[4] = {{0}, {0}, {0}, {0}}, d;
    int64_t i = 0;
    for (; i + 4 * VLEN <= width; i += 4 * VLEN)
        for (int k = 0; k < 4; k++) {
            d = vload(row + i + k * VLEN) - mean;
            s[k] += d * d;
        }
    for (; i + VLEN <= width; i += VLEN) {
        d = vload(row + i) - mean;
        s[0] += d * d;
    }
    real sum = vsum((s[0] + s[1]) + (s[2] + s[3]));
    for (; i < width; i++)
        sum += (row[i] - mean) * (row[i] - mean);
    return sum;
}

VECTOR_FN add_vector(const vreal *in, vreal *out, const real *arg) {
    (void)arg;
    out[0] = in[0] + in[1];
}

/* arg: mean, rstd. */
VECTOR_FN affine_vector(const vreal *in, vreal *out, const real *arg) {
    out[0] = (in[0] - arg[0]) * arg[1] * in[1];
}

VECTOR_FN affine_bias_vector(const vreal *in, vreal *out, const real *arg) {
    out[0] = (in[0] - arg[0]) * arg[1] * in[1] + in[2];
}

static void norm_row(const norm_job *j, int64_t row, real *scratch) {
    weft_tensor *const *in = j->n->in, *const *out = j->n->out;
    int64_t at = row * j->width, width = j->width;
    const real *s = tile_in(j->x, in[WEFT_NORM_X], at, width, scratch);
    if (in[WEFT_NORM_R]) {
        const real *pair[] = {s, tile_in(j->x, in[WEFT_NORM_R], at, width, scratch + j->padded)};
        real *sum[] = {tile_out(j->x, out[WEFT_NORM_S], at, scratch)};
        apply(add_vector, 2, pair, 1, sum, width, NULL);
        tile_done(j->x, out[WEFT_NORM_S], at, width, sum[0]);
        s = sum[0];
    }
    real mean = j->centered ? row_sum(s, width) / (real)width : 0;
    real variance = row_squares_around(s, width, mean) / (real)width;
    real rstd = 1 / (real)sqrt((double)(variance + j->eps));
    ((real *)weft_data(j->x, out[WEFT_NORM_RSTD]))[row] = rstd;
    if (j->centered) ((real *)weft_data(j->x, out[WEFT_NORM_MEAN]))[row] = mean;

    const real *from[] = {s, j->w, j->b}, arg[] = {mean, rstd};
    real *y[] = {tile_out(j->x, out[WEFT_NORM_Y], at, scratch + j->padded)};
    if (j->b)
        apply(affine_bias_vector, 3, from, 1, y, width, arg);
    else
        apply(affine_vector, 2, from, 1, y, width, arg);
    tile_done(j->x, out[WEFT_NORM_Y], at, width, y[0]);
}

static void norm_block(void *context, int64_t task, int thread) {
    const norm_job *j = context;
    int64_t end = min_i64((task + 1) * j->block, j->rows);
    for (int64_t row = task * j->block; row < end; row++)
        norm_row(j, row, j->scratch + thread * j->per_thread);
}

static norm_job norm_job_of(weft_exec *x, const weft_node *n, const weft_tensor *s) {
    const weft_norm_attr *attr = n->attr;
    return (norm_job){.x = x,
                      .n = n,
                      .rows = weft_tensor_rows(s),
                      .width = weft_tensor_width(s),
                      .centered = attr->kind == WEFT_LAYERNORM,
                      .eps = (real)attr->eps,
                      .padded = real_bytes(weft_tensor_width(s)) / (int64_t)sizeof(real)};
}

/* Workspace: w and b widened, then two rows per thread. */
static int64_t norm_workspace(const weft_node *n, int threads) {
    return 2 * (threads + 1) * real_bytes(weft_tensor_width(n->in[WEFT_NORM_X]));
}

static weft_status norm_run(weft_exec *x, const weft_node *n) {
    norm_job j = norm_job_of(x, n, n->in[WEFT_NORM_X]);
    real *room = weft_workspace(x, n);
    j.block = chunk_rows(j.rows, j.width);
    j.w = tile_in(x, n->in[WEFT_NORM_W], 0, j.width, room);
    if (n->in[WEFT_NORM_B]) j.b = tile_in(x, n->in[WEFT_NORM_B], 0, j.width, room + j.padded);
    j.scratch = room + 2 * j.padded;
    j.per_thread = 2 * j.padded;
    weft_pool_run(weft_exec_pool(x), ceil_div(j.rows, j.block), norm_block, &j);
    return WEFT_OK;
}

const weft_kernel KERNEL(norm) = {.run = norm_run, .workspace = norm_workspace};

/* Rows that the backward pass takes together. With g = dy·w, d = s − mean, the gradient of a row is
 * rstd·g − c1 − d·c2, where c1 = rstd·mean(g) (LayerNorm) and c2 = rstd³·mean(g·d). */
typedef struct {
    const real *dy[GROUP], *s[GROUP], *ds[GROUP];
    real *dx[GROUP];
    real mean[GROUP], rstd[GROUP], c1[GROUP], c2[GROUP];
} norm_group;

static void row_means(const norm_job *j, norm_group *g, int r) {
    const real *dy = g->dy[r], *s = g->s[r], *w = j->w;
    real mean = g->mean[r], rstd = g->rstd[r], share = 1 / (real)j->width;
    vreal s1[2] = {{0}, {0}}, s2[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * VLEN <= j->width; i += 2 * VLEN)
        for (int k = 0; k < 2; k++) {
            int64_t at = i + k * VLEN;
            vreal grad = vload(dy + at) * vload(w + at);
            s1[k] += grad;
            s2[k] += grad * (vload(s + at) - mean);
        }
    for (; i < j->width; i += VLEN) {
        int64_t n = min_i64(VLEN, j->width - i);
        vreal grad = vload_n(dy + i, n) * vload_n(w + i, n);
        s1[0] += grad;
        s2[0] += grad * (vload_n(s + i, n) - mean);
    }
    g->c1[r] = j->centered ? vsum(s1[0] + s1[1]) * rstd * share : 0;
    g->c2[r] = vsum(s2[0] + s2[1]) * share * rstd * rstd * rstd;
}

/* One vector of columns of `count` rows: dx, and their shares of the partial sums. */
static inline __attribute__((always_inline)) void group_columns(const norm_group *g, int count,
                                                                bool with_ds, const real *w,
                                                                real *const *sums, int64_t i,
                                                                int64_t n) {
    vreal wv = vload_n(w + i, n), dwv = vload_n(sums[0] + i, n), dbv = vload_n(sums[1] + i, n);
    vreal dxv = {0};
    for (int r = 0; r < count; r++) {
        vreal dy = vload_n(g->dy[r] + i, n), d = vload_n(g->s[r] + i, n) - g->mean[r];
        vreal scaled = dy * g->rstd[r];
        dwv += scaled * d;
        dbv += dy;
        vreal dx = scaled * wv - g->c1[r] - d * g->c2[r];
        if (with_ds) dx += vload_n(g->ds[r] + i, n);
        dxv += dx;
        vstore_n(g->dx[r] + i, dx, n);
    }
    vstore_n(sums[0] + i, dwv, n);
    vstore_n(sums[1] + i, dbv, n);
    if (sums[2]) vstore_n(sums[2] + i, vload_n(sums[2] + i, n) + dxv, n);
}

static inline __attribute__((always_inline)) void
group_back(const norm_job *j, const norm_group *shared, int count, bool with_ds, real *dw) {
    norm_group g = *shared;
    int64_t whole = j->width - j->width % VLEN;
    real *const sums[] = {dw, dw + j->padded, j->sums > 2 ? dw + 2 * j->padded : NULL};
    const real *w = j->w;
    for (int64_t i = 0; i < whole; i += VLEN)
        group_columns(&g, count, with_ds, w, sums, i, VLEN);
    if (whole < j->width) group_columns(&g, count, with_ds, w, sums, whole, j->width - whole);
}

/* dx goes to a row of scratch that nobody reads where it is not wanted. */
static void load_row(const norm_job *j, norm_group *g, int r, int64_t row, real *scratch) {
    weft_tensor *const *in = j->n->in, *dx = j->n->out[WEFT_NORM_BACK_DX];
    const weft_tensor *ds = in[WEFT_NORM_BACK_DS];
    int64_t at = row * j->width;
    real *room = scratch + 3 * r * j->padded;
    g->dy[r] = tile_in(j->x, in[WEFT_NORM_BACK_DY], at, j->width, room);
    g->s[r] = tile_in(j->x, in[WEFT_NORM_BACK_S], at, j->width, room + j->padded);
    g->ds[r] = ds ? tile_in(j->x, ds, at, j->width, room + 2 * j->padded) : NULL;
    g->dx[r] = dx ? tile_out(j->x, dx, at, room) : room;
    g->rstd[r] = ((const real *)weft_data(j->x, in[WEFT_NORM_BACK_RSTD]))[row];
    g->mean[r] = j->centered ? ((const real *)weft_data(j->x, in[WEFT_NORM_BACK_MEAN]))[row] : 0;
    row_means(j, g, r);
}

static void norm_back_block(void *context, int64_t task, int thread) {
    const norm_job *j = context;
    real *scratch = j->scratch + thread * j->per_thread;
    real *dw = j->partial + task * j->sums * j->padded;
    const weft_tensor *dx = j->n->out[WEFT_NORM_BACK_DX];
    bool with_ds = j->n->in[WEFT_NORM_BACK_DS] != NULL;
    int64_t end = min_i64((task + 1) * j->block, j->rows);
    norm_group g;
    memset(dw, 0, (size_t)(j->sums * j->padded) * sizeof(real));
    for (int64_t row = task * j->block, count; row < end; row += count) {
        count = end - row < GROUP ? 1 : GROUP;
        for (int r = 0; r < count; r++)
            load_row(j, &g, r, row + r, scratch);
        if (count == 1)
            group_back(j, &g, 1, with_ds, dw);
        else if (with_ds)
            group_back(j, &g, GROUP, true, dw);
        else
            group_back(j, &g, GROUP, false, dw);
        for (int r = 0; dx && r < count; r++)
            tile_done(j->x, dx, (row + r) * j->width, j->width, g.dx[r]);
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

static void norm_sum_columns(void *context, int64_t task, int thread) {
    (void)thread;
    const norm_job *j = context;
    sum_blocks(j, j->n->out[WEFT_NORM_BACK_DW], 0, task * COLUMNS);
    sum_blocks(j, j->n->out[WEFT_NORM_BACK_DB], 1, task * COLUMNS);
    sum_blocks(j, j->n->out[WEFT_NORM_BACK_SUMS], 2, task * COLUMNS);
}

/* Rows of a block: enough work for a task, and not too many partial sums. */
static int64_t back_block(int64_t rows, int64_t width) {
    return max_i64(ceil_div(rows, BLOCKS_MAX), max_i64(GROUP, chunk_rows(rows, width)));
}

static int count_sums(const weft_node *n) {
    return n->out[WEFT_NORM_BACK_SUMS] ? 3 : 2;
}

/* Workspace: w widened, three rows per thread for each of a group, the partial sums. */
static int64_t norm_back_workspace(const weft_node *n, int threads) {
    const weft_tensor *s = n->in[WEFT_NORM_BACK_S];
    int64_t rows = weft_tensor_rows(s), width = weft_tensor_width(s);
    int64_t blocks = ceil_div(rows, back_block(rows, width));
    return (1 + 3 * GROUP * threads + count_sums(n) * blocks) * real_bytes(width);
}

static weft_status norm_back_run(weft_exec *x, const weft_node *n) {
    norm_job j = norm_job_of(x, n, n->in[WEFT_NORM_BACK_S]);
    weft_pool *pool = weft_exec_pool(x);
    real *room = weft_workspace(x, n);
    j.block = back_block(j.rows, j.width);
    j.sums = count_sums(n);
    j.w = tile_in(x, n->in[WEFT_NORM_BACK_W], 0, j.width, room);
    j.scratch = room + j.padded;
    j.per_thread = 3 * GROUP * j.padded;
    j.partial = j.scratch + weft_pool_size(pool) * j.per_thread;
    weft_pool_run(pool, ceil_div(j.rows, j.block), norm_back_block, &j);
    if (n->out[WEFT_NORM_BACK_DW] || n->out[WEFT_NORM_BACK_DB] || n->out[WEFT_NORM_BACK_SUMS])
        weft_pool_run(pool, ceil_div(j.width, COLUMNS), norm_sum_columns, &j);
    return WEFT_OK;
}

const weft_kernel KERNEL(norm_back) = {.run = norm_back_run, .workspace = norm_back_workspace};

/* Heads on the CPU. Columns put together, and their sums, take a task for some of the B·T positions. Pool,
 * spread and the scale's gradient see rows as groups, one a head, of F/H wide or L/H narrow numbers
 * in memory one after another; a run is the r = F/L wide numbers of one narrow one, and a piece as
 * many runs as fit a tile, one at least. */
#include "ops/heads.h"

#include "cpu/chunks.h"

/* head_columns and its gradient: a task is some of the B·T positions. */
POSITIONWISE(head_columns, n->out[0]) {
    const weft_head_columns_attr *a = k->n->attr;
    size_t size = weft_dtype_size(k->n->out[0]->dtype);
    int64_t taken = a->part[0].count + (k->n->n_in > 1 ? a->part[1].count : 0);
    char *to = (char *)weft_data(k->x, k->n->out[0]) + (size_t)(p * a->heads * a->width) * size;
    if (taken < a->width) memset(to, 0, (size_t)(a->heads * a->width) * size);
    for (int i = 0; i < k->n->n_in; i++) {
        const weft_tensor *x = k->n->in[i];
        int64_t heads = x->shape[2], width = x->shape[3];
        const char *from = (const char *)weft_data(k->x, x) + (size_t)(p * heads * width) * size;
        for (int64_t h = 0; h < a->heads; h++) {
            weft_columns_place at = weft_columns_of(a, i, heads, h);
            memcpy(to + (size_t)(h * a->width + at.to) * size,
                   from + (size_t)(at.head * width + at.from) * size,
                   (size_t)a->part[i].count * size);
        }
    }
}

VECTOR_FN(add_vector) {
    out[0] = in[0] + in[1];
}

/* Columns d .. d + len - 1 of a head: Σ over the heads of dy that had them, in their order. */
POSITIONWISE(head_columns_back, n->out[0]) {
    real in_scratch[TILE_SCRATCH], out_scratch[TILE_SCRATCH];
    const weft_head_columns_attr *a = k->n->attr;
    int64_t tiles = ceil_div(k->width, TILE), sharing = a->heads / a->from_heads;
    for (int64_t tile = 0; tile < k->heads * tiles; tile++) {
        int64_t head = tile / tiles, d = tile % tiles * TILE, len = min_i64(TILE, k->width - d);
        int64_t own = (p * k->heads + head) * k->width + d;
        real *sum = tile_out(k->x, k->n->out[0], own, out_scratch);
        memset(sum, 0, (size_t)len * sizeof *sum);
        for (int64_t h = head * sharing; h < (head + 1) * sharing; h++) {
            weft_columns_place at = weft_columns_of(a, 0, a->from_heads, h);
            int64_t first = max_i64(d, at.from), end = min_i64(d + len, at.from + a->part[0].count);
            if (first >= end) continue;
            int64_t from = (p * a->heads + h) * a->width + at.to + first - at.from;
            real *to = sum + first - d;
            const real *in[] = {to, tile_in(k->x, k->n->in[0], from, end - first, in_scratch)};
            apply(add_vector, 2, in, 1, &to, end - first, NULL);
        }
        tile_done(k->x, k->n->out[0], own, len, sum);
    }
}

typedef struct {
    weft_exec *x;
    const weft_tensor *wide, *narrow;
    int64_t rows, heads, group, run, piece; /* group: narrow numbers a head; run: r */
    int64_t block;                          /* rows of a task */
    const real *scale;
    real factor;     /* 1/r for a mean, else 1 */
    double *partial; /* head_scale_back: [tasks, heads] */
} grouped;

static int64_t rows_of_task(const weft_tensor *wide) {
    return chunk_rows(weft_tensor_rows(wide), weft_tensor_width(wide));
}

static grouped grouped_of(weft_exec *x, const weft_node *n, const weft_tensor *wide,
                          const weft_tensor *narrow, int64_t heads) {
    grouped k = {.x = x, .wide = wide, .narrow = narrow, .heads = heads};
    k.rows = weft_tensor_rows(wide);
    k.group = weft_tensor_width(narrow) / heads;
    k.run = weft_tensor_width(wide) / weft_tensor_width(narrow);
    k.block = rows_of_task(wide);
    k.piece = max_i64(1, TILE / k.run);
    k.factor = ATTR(n, weft_head_attr)->mean ? 1 / (real)k.run : 1;
    return k;
}

static real sum_reals(const real *a, int64_t n) {
    vreal s0 = {0}, s1 = {0};
    real rest = 0;
    int64_t i = 0;
    for (; i + 2 * VLEN <= n; i += 2 * VLEN) {
        s0 += vload(a + i);
        s1 += vload(a + i + VLEN);
    }
    if (i + VLEN <= n) {
        s0 += vload(a + i);
        i += VLEN;
    }
    for (; i < n; i++)
        rest += a[i];
    return n < VLEN ? rest : vsum(s0 + s1) + rest;
}

/* Σ of each of `count` runs from element `at` on; one that exceeds a tile is alone, and taken in parts. */
static void sum_runs(const grouped *k, int64_t at, int64_t count, real *sums) {
    real scratch[TILE_SCRATCH];
    double sum = 0;
    for (int64_t m = 0; m < k->run; m += TILE) {
        int64_t len = min_i64(TILE, k->run - m);
        const real *wide = tile_in(k->x, k->wide, at + m, count * len, scratch);
        for (int64_t i = 0; i < count; i++) {
            sum = (m ? sum : 0) + (double)sum_reals(wide + i * len, len);
            sums[i] = (real)sum;
        }
    }
}

/* Pieces of head h of a row: `count` narrow numbers from `at` on. */
#define EACH_PIECE(k, row, h, at, count)                                                           \
    for (int64_t at = ((row) * (k)->heads + (h)) * (k)->group, end_ = at + (k)->group, count;      \
         count = min_i64((k)->piece, end_ - at), at < end_; at += count)

static void pool_group(const grouped *k, int64_t row, int64_t h) {
    real sums[TILE], scratch[TILE_SCRATCH], factor = k->factor * k->scale[h];
    EACH_PIECE(k, row, h, at, count) {
        sum_runs(k, at * k->run, count, sums);
        real *out = tile_out(k->x, k->narrow, at, scratch);
        for (int64_t i = 0; i < count; i++)
            out[i] = factor * sums[i];
        tile_done(k->x, k->narrow, at, count, out);
    }
}

/* Runs of the narrow numbers times a factor; as sum_runs takes them. */
static void spread_group(const grouped *k, int64_t row, int64_t h) {
    real scratch[TILE_SCRATCH], wide[TILE_SCRATCH], factor = k->factor * k->scale[h];
    EACH_PIECE(k, row, h, at, count) {
        const real *in = tile_in(k->x, k->narrow, at, count, scratch);
        for (int64_t m = 0; m < k->run; m += TILE) {
            int64_t len = min_i64(TILE, k->run - m), to = at * k->run + m;
            real *out = tile_out(k->x, k->wide, to, wide);
            for (int64_t i = 0; i < count; i++) {
                real value = factor * in[i];
                for (int64_t j = 0; j < len; j++)
                    out[i * len + j] = value;
            }
            tile_done(k->x, k->wide, to, count * len, out);
        }
    }
}

static double dot_group(const grouped *k, int64_t row, int64_t h) {
    real sums[TILE], scratch[TILE_SCRATCH];
    double sum = 0;
    EACH_PIECE(k, row, h, at, count) {
        sum_runs(k, at * k->run, count, sums);
        sum += (double)dot_reals(sums, tile_in(k->x, k->narrow, at, count, scratch), count);
    }
    return sum;
}

#define EACH_GROUP(name)                                                                           \
    static void head_##name##_row(const void *context, int64_t row) {                              \
        const grouped *k = context;                                                                \
        for (int64_t h = 0; h < k->heads; h++)                                                     \
            name##_group(k, row, h);                                                               \
    }
EACH_GROUP(pool)
EACH_GROUP(spread)

static weft_status run_groups(weft_exec *x, const weft_node *n, const weft_tensor *wide,
                              const weft_tensor *narrow, row_fn each) {
    grouped k = grouped_of(x, n, wide, narrow, n->in[1]->shape[0]);
    k.scale = weft_data(x, n->in[1]);
    return run_rows(x, k.rows, weft_tensor_width(wide), each, &k);
}

DEFINE_KERNEL_AS(head_pool, run_groups(x, n, n->in[0], n->out[0], head_pool_row))
DEFINE_KERNEL_AS(head_spread, run_groups(x, n, n->out[0], n->in[0], head_spread_row))

WEFT_TASK(head_scale_back_block, const grouped *k) {
    double *sums = k->partial + task * k->heads;
    int64_t end = min_i64((task + 1) * k->block, k->rows);
    for (int64_t h = 0; h < k->heads; h++)
        sums[h] = 0;
    for (int64_t row = task * k->block; row < end; row++)
        for (int64_t h = 0; h < k->heads; h++)
            sums[h] += dot_group(k, row, h);
}

DEFINE_KERNEL_IN(head_scale_back, ceil_div(weft_tensor_rows(n->in[0]), rows_of_task(n->in[0])) *
                                      ATTR(n, weft_head_attr)->width * (int64_t)sizeof(double)) {
    grouped k = grouped_of(x, n, n->in[0], n->in[1], ATTR(n, weft_head_attr)->width);
    k.partial = weft_workspace(x, n);
    int64_t tasks = ceil_div(k.rows, k.block);
    run_tasks(x, tasks, head_scale_back_block, &k);
    real *out = weft_data(x, n->out[0]);
    for (int64_t h = 0; h < k.heads; h++) {
        double sum = 0;
        for (int64_t task = 0; task < tasks; task++)
            sum += k.partial[task * k.heads + h];
        out[h] = (real)((double)k.factor * sum);
    }
    return WEFT_OK;
}

/* head_transpose: a task for each band of a head's rows, which are as many numbers side by side in the
 * result. Numbers move as they are, so only their size matters. */
enum { BAND = 16 };

typedef struct {
    weft_exec *x;
    const weft_tensor *from, *to;
} transposing;

static ALWAYS_INLINE void transpose_band(const char *from, char *to, int64_t n, int64_t rows,
                                         int64_t columns, const int64_t size) {
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (j * rows + i) * size, from + (i * columns + j) * size, (size_t)size);
}

WEFT_TASK(head_transpose_task, const transposing *k) {
    int64_t rows = k->from->shape[1], columns = k->from->shape[2], bands = ceil_div(rows, BAND);
    int64_t head = task / bands, row = task % bands * BAND, n = min_i64(BAND, rows - row);
    int64_t size = (int64_t)weft_dtype_size(k->from->dtype), first = head * rows * columns;
    const char *from = (const char *)weft_data(k->x, k->from) + (first + row * columns) * size;
    char *to = (char *)weft_data(k->x, k->to) + (first + row) * size;
    if (size == 2)
        transpose_band(from, to, n, rows, columns, 2);
    else if (size == 4)
        transpose_band(from, to, n, rows, columns, 4);
    else
        transpose_band(from, to, n, rows, columns, 8);
}

DEFINE_KERNEL(head_transpose) {
    transposing k = {x, n->in[0], n->out[0]};
    int64_t bands = ceil_div(k.from->shape[1], BAND);
    return run_tasks(x, k.from->shape[0] * bands, head_transpose_task, &k);
}

/* Stacks: copies of whole parts, cut into pieces, a task each. */

/* Bytes of a piece, and of how many a part is cut into where it is large. */
enum { PIECE_LEAST = 4096, PIECES = 64 };

typedef struct {
    const weft_exec *x;
    weft_tensor *const *parts; /* NULL among them: not wanted */
    char *stacked;
    int64_t bytes, piece, pieces; /* of a part: its bytes, a piece's, how many */
    bool back;
} copying;

WEFT_TASK(copy_piece, const copying *c) {
    int64_t i = task / c->pieces, at = task % c->pieces * c->piece;
    size_t length = (size_t)min_i64(c->piece, c->bytes - at);
    if (!c->parts[i]) return;
    char *part = (char *)weft_data(c->x, c->parts[i]) + at, *place = c->stacked + i * c->bytes + at;
    memcpy(c->back ? part : place, c->back ? place : part, length);
}

static weft_status run_copies(weft_exec *x, const weft_tensor *stacked, weft_tensor *const *parts,
                              int n, bool back) {
    copying c = {.x = x, .parts = parts, .stacked = weft_data(x, stacked), .back = back};
    c.bytes = weft_tensor_bytes(stacked) / n;
    c.piece = max_i64(PIECE_LEAST, ceil_div(c.bytes, PIECES));
    c.pieces = ceil_div(c.bytes, c.piece);
    return run_tasks(x, n * c.pieces, copy_piece, &c);
}

DEFINE_KERNEL_AS(stack, run_copies(x, n->out[0], n->in, n->n_in, false))
DEFINE_KERNEL_AS(unstack, run_copies(x, n->in[0], n->out, n->n_out, true))

/* What pointwise kernels share: a tensor is cut into chunks, a task each, and a
 * chunk into tiles that fit the first cache, through which bf16 is widened and rounded. Where the
 * cuts lie follows from the shape alone, so results do not depend on the number of
 * threads, and sums over chunks are taken in the order of the chunks. */
#pragma once

#include "cpu/vec.h"

enum { TILE = 1024, CHUNK_TILES = 16, CHUNK_TENSORS = APPLY_TENSORS };

/* Elements of a chunk: from one tile up to CHUNK_TILES, so that a small tensor still has enough
 * chunks for many threads and a large one does not have too many. */
static inline int64_t chunk_length(int64_t count) {
    return TILE * max_i64(1, min_i64(CHUNK_TILES, count / (256 * TILE)));
}

/* The same in whole rows, for kernels that go by rows. */
static inline int64_t chunk_rows(int64_t rows, int64_t width) {
    return max_i64(1, chunk_length(rows * width) / width);
}

/* Room for a tile of bf16; double has no such tiles. */
enum { TILE_SCRATCH = WEFT_REAL == 64 ? 1 : TILE };

/* Σ a·b of n elements in `real` lanes, four vectors at a time: a fixed order. */
static inline real dot_reals(const real *a, const real *b, int64_t n) {
    vreal s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 4 * VLEN <= n; i += 4 * VLEN) {
        s0 += vload(a + i) * vload(b + i);
        s1 += vload(a + i + VLEN) * vload(b + i + VLEN);
        s2 += vload(a + i + 2 * VLEN) * vload(b + i + 2 * VLEN);
        s3 += vload(a + i + 3 * VLEN) * vload(b + i + 3 * VLEN);
    }
    for (; i + VLEN <= n; i += VLEN)
        s0 += vload(a + i) * vload(b + i);
    if (i < n) s1 += vload_part(a + i, n - i) * vload_part(b + i, n - i);
    return vsum((s0 + s1) + (s2 + s3));
}

typedef struct chunked chunked;

/* Elements [at, at + len) of the inputs and outputs, len ≤ TILE. */
typedef void (*tile_fn)(const chunked *c, int64_t at, int64_t len, const real *const *in,
                        real *const *out);
#define TILE_FN(name)                                                                              \
    static void name(UNUSED const chunked *c, UNUSED int64_t at, int64_t len,                      \
                     UNUSED const real *const *in, real *const *out)

/* A pointwise run over inputs first_in, ... and outputs 0, ... of a node, all of one count. */
struct chunked {
    weft_exec *x;
    const weft_node *n;
    int first_in, n_in, n_out;
    tile_fn tile;
    int64_t count, chunk; /* elements, and those of a chunk */
    /* [chunks], in place of `tile`: Σ of the first input times the last; nothing else is written. */
    double *partial;
};

WEFT_TASK(run_chunk, const chunked *c) {
    real in_scratch[CHUNK_TENSORS][TILE_SCRATCH], out_scratch[CHUNK_TENSORS][TILE_SCRATCH];
    const real *in[CHUNK_TENSORS];
    real *out[CHUNK_TENSORS];
    double sum = 0;
    int64_t end = min_i64((task + 1) * c->chunk, c->count);
    for (int64_t at = task * c->chunk; at < end; at += TILE) {
        int64_t len = min_i64(TILE, end - at);
        for (int k = 0; k < c->n_in; k++)
            in[k] = tile_in(c->x, c->n->in[c->first_in + k], at, len, in_scratch[k]);
        if (c->partial) {
            sum += (double)dot_reals(in[0], in[c->n_in - 1], len);
            continue;
        }
        for (int k = 0; k < c->n_out; k++)
            out[k] = c->n->out[k] ? tile_out(c->x, c->n->out[k], at, out_scratch[k]) : NULL;
        c->tile(c, at, len, in, out);
        for (int k = 0; k < c->n_out; k++)
            if (out[k]) tile_done(c->x, c->n->out[k], at, len, out[k]);
    }
    if (c->partial) c->partial[task] = sum;
}

/* Runs `tile` over all of the node's outputs 0 .. n_out-1 and inputs from first_in on. */
static inline weft_status run_chunks(weft_exec *x, const weft_node *n, int first_in, int n_in,
                                     int n_out, tile_fn tile) {
    chunked c = {x, n, first_in, n_in, n_out, .tile = tile};
    for (int k = 0; k < n_out; k++)
        if (n->out[k]) c.count = weft_tensor_count(n->out[k]);
    weft_pool *pool = weft_exec_pool(x);
    c.chunk = chunk_length(c.count);
    c.chunk *= tasks_together(ceil_div(c.count, c.chunk), weft_pool_size(pool));
    weft_pool_run(pool, ceil_div(c.count, c.chunk), run_chunk, &c);
    return WEFT_OK;
}

/* The kernel of an operation that is done tile by tile, TILEWISE(name, ...) { ... } as a TILE_FN; and of one
 * that does f to each element, with `number`, an expression in c, as its argument. */
#define TILEWISE(name, first_in, n_in, n_out)                                                      \
    TILE_FN(name##_tile);                                                                          \
    DEFINE_KERNEL_AS(name, run_chunks(x, n, first_in, n_in, n_out, name##_tile))                   \
    TILE_FN(name##_tile)
#define ELEMENTWISE_BY(name, f, first_in, inputs, outputs, number)                                 \
    TILEWISE(name, first_in, inputs, outputs) {                                                    \
        real arg = number;                                                                         \
        apply(f, inputs, in, outputs, out, len, &arg);                                             \
    }

/* Σ of input 0 times itself (n_in 1) or times input 1, by chunks; the node needs sum_workspace. */
static inline double sum_products(weft_exec *x, const weft_node *n, int n_in) {
    chunked c = {.x = x,
                 .n = n,
                 .n_in = n_in,
                 .count = weft_tensor_count(n->in[0]),
                 .partial = weft_workspace(x, n)};
    c.chunk = chunk_length(c.count);
    int64_t chunks = ceil_div(c.count, c.chunk);
    run_tasks(x, chunks, run_chunk, &c);
    double sum = 0;
    for (int64_t i = 0; i < chunks; i++)
        sum += c.partial[i];
    return sum;
}

static inline int64_t sum_workspace(const weft_node *n, UNUSED int threads) {
    int64_t count = weft_tensor_count(n->in[0]);
    return ceil_div(count, chunk_length(count)) * (int64_t)sizeof(double);
}

/* Kernels that go by rows: a task is some of them. */
typedef void (*row_fn)(const void *context, int64_t row);

typedef struct {
    row_fn each;
    const void *context;
    int64_t rows, block;
} row_list;

WEFT_TASK(run_row_block, const row_list *l) {
    int64_t end = min_i64((task + 1) * l->block, l->rows);
    for (int64_t row = task * l->block; row < end; row++)
        l->each(l->context, row);
}

/* `each` for every row, of `width` elements. */
static inline weft_status run_rows(weft_exec *x, int64_t rows, int64_t width, row_fn each,
                                   const void *context) {
    row_list l = {each, context, rows, chunk_rows(rows, width)};
    return run_tasks(x, ceil_div(rows, l.block), run_row_block, &l);
}

/* Kernels of x [B, T, H, D] and numbers of its heads [B, H, T]: a row is one of the B·T positions, so that
 * x is read in its order. */
typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *from; /* x */
    int64_t time, heads, width;
    int64_t half; /* of the width: a Gaussian's means, or its deviations */
} head_run;

static inline head_run head_run_of(weft_exec *x, const weft_node *n, const weft_tensor *from) {
    const int64_t *shape = from->shape;
    return (head_run){x, n, from, shape[1], shape[2], shape[3], shape[3] / 2};
}

static inline weft_status run_positions(weft_exec *x, const weft_node *n, const weft_tensor *from,
                                        row_fn each) {
    head_run k = head_run_of(x, n, from);
    return run_rows(x, from->shape[0] * k.time, k.heads * k.width, each, &k);
}

/* The kernel of an operation that is done so, to `from`, a tensor of n: POSITIONWISE(name, n->in[0]) { ... } of k
 * and position p. */
#define POSITIONWISE(name, from)                                                                   \
    static inline void name##_at(const head_run *k, int64_t p);                                    \
    static void name##_row(const void *context, int64_t p) {                                       \
        name##_at(context, p);                                                                     \
    }                                                                                              \
    DEFINE_KERNEL_AS(name, run_positions(x, n, from, name##_row))                                  \
    static inline void name##_at(const head_run *k, int64_t p)

/* Where the number of head h of position p stands. */
static inline int64_t number_place(const head_run *k, int64_t p, int64_t h) {
    return (p / k->time * k->heads + h) * k->time + p % k->time;
}

VECTOR_FN(scale_vector) {
    out[0] = in[0] * arg[0];
}

/* A deviation from what a Gaussian's map makes. */
VECTOR_FN(deviation_vector) {
    out[0] = vsoftplus(in[0]);
}

/* The one number of a tensor of the statistics' type. */
static inline real read_number(const weft_exec *x, const weft_tensor *t) {
    return *(const real *)weft_data(x, t);
}

static inline weft_status write_number(const weft_exec *x, const weft_tensor *t, double value) {
    *(real *)weft_data(x, t) = (real)value;
    return WEFT_OK;
}

/* Σ a·b over `count` elements from `at` on: in `real` within a tile, in double from tile to tile. */
static inline double dot_tensors(const weft_exec *x, const weft_tensor *a, const weft_tensor *b,
                                 int64_t at, int64_t count) {
    real a_scratch[TILE_SCRATCH], b_scratch[TILE_SCRATCH];
    double sum = 0;
    for (int64_t end = at + count; at < end; at += TILE) {
        int64_t len = min_i64(TILE, end - at);
        const real *from = tile_in(x, a, at, len, a_scratch);
        sum += (double)dot_reals(from, a == b ? from : tile_in(x, b, at, len, b_scratch), len);
    }
    return sum;
}

/* Elements of a tensor from `at` on. */
typedef struct {
    const weft_tensor *t;
    int64_t at;
} tensor_place;

/* f on `count` elements of up to three tensors, to one or two; these may lie over the others. */
static ALWAYS_INLINE void apply_places(const weft_exec *x, vector_fn f, int n_in,
                                       const tensor_place *in, int n_out, const tensor_place *out,
                                       int64_t count, const real *arg) {
    real scratch[5][TILE_SCRATCH];
    for (int64_t d = 0; d < count; d += TILE) {
        int64_t len = min_i64(TILE, count - d);
        const real *from[3];
        real *to[2];
        for (int k = 0; k < n_in; k++)
            from[k] = tile_in(x, in[k].t, in[k].at + d, len, scratch[k]);
        for (int k = 0; k < n_out; k++)
            to[k] = tile_out(x, out[k].t, out[k].at + d, scratch[3 + k]);
        apply(f, n_in, from, n_out, to, len, arg);
        for (int k = 0; k < n_out; k++)
            tile_done(x, out[k].t, out[k].at + d, len, to[k]);
    }
}

/* The same of one or two tensors, all from `at` on. */
static ALWAYS_INLINE void apply_tensors(const weft_exec *x, vector_fn f, int n_in,
                                        const weft_tensor *const *in, const weft_tensor *y,
                                        int64_t at, int64_t count, const real *arg) {
    const tensor_place from[] = {{in[0], at}, {n_in > 1 ? in[1] : NULL, at}}, to = {y, at};
    apply_places(x, f, n_in, from, 1, &to, count, arg);
}

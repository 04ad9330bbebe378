/* What pointwise kernels share: a tensor is cut into chunks, a task each, and a
 * chunk into tiles that fit the first cache, through which bf16 is widened and rounded. Where the
 * cuts lie follows from the shape alone, so results do not depend on the number of
 * threads, and sums over chunks are taken in the order of the chunks. */
#ifndef WEFT_CPU_CHUNKS_H
#define WEFT_CPU_CHUNKS_H

#include "cpu/vec.h"

enum { TILE = 1024, CHUNK_TILES = 16, CHUNK_TENSORS = 4, APPLY_STEPS = 4 };

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

/* One vector of each input to one vector of each output. Defined with VECTOR_FN, so that it becomes
 * part of the loop it is given to. */
#define VECTOR_FN static inline __attribute__((always_inline)) void
typedef void (*vector_fn)(const vreal *in, vreal *out, const real *arg);

/* f on `steps` vectors of n elements from i on. The steps are independent, and side by side in one
 * block of code they hide each other's latency: a single exponential is a chain of 15 operations. */
static inline __attribute__((always_inline)) void apply_at(vector_fn f, int steps, int n_in,
                                                           const real *const *from, int n_out,
                                                           real *const *to, int64_t i, int64_t n,
                                                           const real *arg) {
    vreal a[APPLY_STEPS][CHUNK_TENSORS], y[APPLY_STEPS][CHUNK_TENSORS];
    for (int s = 0; s < steps; s++)
        for (int k = 0; k < n_in; k++)
            a[s][k] = vload_n(from[k] + i + s * VLEN, n);
    for (int s = 0; s < steps; s++)
        f(a[s], y[s], arg);
    for (int s = 0; s < steps; s++)
        for (int k = 0; k < n_out; k++)
            if (to[k]) vstore_n(to[k] + i + s * VLEN, y[s][k], n);
}

/* f on `len` elements; inlined with f and the counts known, so the arrays become registers. An
 * output may be NULL (not wanted) or an input's own memory. */
static inline __attribute__((always_inline)) void apply(vector_fn f, int n_in,
                                                        const real *const *in, int n_out,
                                                        real *const *out, int64_t len,
                                                        const real *arg) {
    const real *from[CHUNK_TENSORS];
    real *to[CHUNK_TENSORS];
    for (int k = 0; k < n_in; k++)
        from[k] = in[k];
    for (int k = 0; k < n_out; k++)
        to[k] = out[k];
    int64_t i = 0;
    for (; i + APPLY_STEPS * VLEN <= len; i += APPLY_STEPS * VLEN)
        apply_at(f, APPLY_STEPS, n_in, from, n_out, to, i, VLEN, arg);
    for (; i + VLEN <= len; i += VLEN)
        apply_at(f, 1, n_in, from, n_out, to, i, VLEN, arg);
    if (i < len) apply_at(f, 1, n_in, from, n_out, to, i, len - i, arg);
}

typedef struct chunked chunked;

/* Elements [at, at + len) of the inputs and outputs, len ≤ TILE. */
typedef void (*tile_fn)(const chunked *c, int64_t at, int64_t len, const real *const *in,
                        real *const *out);
/* The same, for sums. */
typedef double (*tile_sum_fn)(const chunked *c, int64_t at, int64_t len, const real *const *in);

/* A pointwise run over inputs first_in, ... and outputs 0, ... of a node, all of one count. */
struct chunked {
    weft_exec *x;
    const weft_node *n;
    int first_in, n_in, n_out;
    tile_fn tile;
    tile_sum_fn tile_sum; /* in place of `tile`: nothing is written but the chunk's sum */
    const void *arg;      /* the kernel's own */
    int64_t count, chunk; /* elements, and those of a chunk */
    double *partial;      /* [chunks], with tile_sum */
};

static inline void run_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const chunked *c = context;
    real in_scratch[CHUNK_TENSORS][TILE_SCRATCH], out_scratch[CHUNK_TENSORS][TILE_SCRATCH];
    const real *in[CHUNK_TENSORS];
    real *out[CHUNK_TENSORS];
    double sum = 0;
    int64_t end = min_i64((task + 1) * c->chunk, c->count);
    for (int64_t at = task * c->chunk; at < end; at += TILE) {
        int64_t len = min_i64(TILE, end - at);
        for (int k = 0; k < c->n_in; k++)
            in[k] = tile_in(c->x, c->n->in[c->first_in + k], at, len, in_scratch[k]);
        if (c->tile_sum) {
            sum += c->tile_sum(c, at, len, in);
            continue;
        }
        for (int k = 0; k < c->n_out; k++)
            out[k] = c->n->out[k] ? tile_out(c->x, c->n->out[k], at, out_scratch[k]) : NULL;
        c->tile(c, at, len, in, out);
        for (int k = 0; k < c->n_out; k++)
            if (out[k]) tile_done(c->x, c->n->out[k], at, len, out[k]);
    }
    if (c->tile_sum) c->partial[task] = sum;
}

/* Runs `tile` over all of the node's outputs 0 .. n_out-1 and inputs from first_in on. */
static inline weft_status run_chunks(weft_exec *x, const weft_node *n, int first_in, int n_in,
                                     int n_out, tile_fn tile, const void *arg) {
    chunked c = {.x = x,
                 .n = n,
                 .first_in = first_in,
                 .n_in = n_in,
                 .n_out = n_out,
                 .tile = tile,
                 .arg = arg};
    for (int k = 0; k < n_out; k++)
        if (n->out[k]) c.count = weft_tensor_count(n->out[k]);
    weft_pool *pool = weft_exec_pool(x);
    c.chunk = chunk_length(c.count);
    c.chunk *= tasks_together(ceil_div(c.count, c.chunk), weft_pool_size(pool));
    weft_pool_run(pool, ceil_div(c.count, c.chunk), run_chunk, &c);
    return WEFT_OK;
}

/* Σ over input 0 (and the next n_in - 1 beside it) by chunks; the node needs sum_workspace. */
static inline double sum_chunks(weft_exec *x, const weft_node *n, int n_in, tile_sum_fn tile_sum) {
    chunked c = {.x = x,
                 .n = n,
                 .n_in = n_in,
                 .tile_sum = tile_sum,
                 .count = weft_tensor_count(n->in[0]),
                 .partial = weft_workspace(x, n)};
    c.chunk = chunk_length(c.count);
    int64_t chunks = ceil_div(c.count, c.chunk);
    weft_pool_run(weft_exec_pool(x), chunks, run_chunk, &c);
    double sum = 0;
    for (int64_t i = 0; i < chunks; i++)
        sum += c.partial[i];
    return sum;
}

static inline int64_t sum_workspace(const weft_node *n, int threads) {
    (void)threads;
    int64_t count = weft_tensor_count(n->in[0]);
    return ceil_div(count, chunk_length(count)) * (int64_t)sizeof(double);
}

/* The one number of a tensor of the statistics' type. */
static inline real read_number(const weft_exec *x, const weft_tensor *t) {
    return *(const real *)weft_data(x, t);
}

static inline void write_number(const weft_exec *x, const weft_tensor *t, double value) {
    *(real *)weft_data(x, t) = (real)value;
}

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

#endif

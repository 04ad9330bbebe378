/* Matrix products on the pool, for every kernel that needs one.
 *
 *     gemm_product p = {.batch = 1, .m = M, .n = N, .k = K, .tb = true, .alpha = 1,
 *                       .a = {x, .ld = K}, .b = {w, .ld = K}, .c = {y, .ld = N}};
 *     KERNEL(gemm)(pool, &p, workspace);
 *
 * The result's bits follow from the sizes and types alone: they depend neither on the number of
 * threads nor on who runs which tile. */
#pragma once

#include "cpu/kernel.h"
#include "ops/linear.h"

/* A product without ta of at most this many rows, or with `alone` of any number, is done row by row in
 * the same way for every number of rows: a row's bits are those it has alone. */
enum { GEMM_FEW_ROWS = WEFT_FEW_ROWS };

/* A matrix where it lies: `data` real, or bf16. */
typedef struct {
    void *data;
    int64_t ld;     /* elements between rows */
    int64_t stride; /* elements between the matrices of a batch */
    bool bf16;
    bool rounds; /* real, and may be rounded to bf16 where that makes the product faster */
    bool i8;     /* of b alone: as ops/linear.h says, `ld` with the zeros behind a row */
} gemm_matrix;

typedef struct {
    int64_t batch, m, n, k;
    bool ta, tb;     /* a lies as [k, m], b as [n, k] */
    bool alone;      /* few_rows.c does it, however many rows there are */
    bool accumulate; /* c += instead of c =; c is real then */
    bool gelu;       /* c = gelu(alpha · op(a) op(b) + bias + addend), the tanh form */
    bool gelu_back;  /* c = (...) times gelu's slope at pre */
    real alpha;
    gemm_matrix a, b; /* read only */
    gemm_matrix c;
    gemm_matrix bias;   /* [n]; data NULL: none */
    gemm_matrix addend; /* like c, or c itself; data NULL: none */
    gemm_matrix pre;    /* like c: gets the values before gelu (data NULL: not wanted), or has them
                           with gelu_back */
} gemm_product;

/* Bytes of workspace for KERNEL(gemm); depends on sizes and types, not on addresses. */
int64_t KERNEL(gemm_workspace)(const gemm_product *p, int threads);

/* Runs the product. `workspace` is aligned to WEFT_ARENA_ALIGN. */
void KERNEL(gemm)(weft_pool *pool, const gemm_product *p, void *workspace);

/* The cut of an [m, n] result: tiles of tile_m × tile_n, `rows` × `columns` of them, the last of each
 * direction perhaps smaller. */
typedef struct {
    int64_t tile_m, tile_n, rows, columns;
} gemm_cut;

/* The same product tile by tile, for tasks that go on with a tile's sums while they have them in their
 * caches. The operands are copied before that, once, by all threads:
 *
 *     gemm_cut cut = KERNEL(gemm_tiles)(&p);
 *     KERNEL(gemm_copy)(pool, &p, false, rows);
 *     KERNEL(gemm_copy)(pool, &p, true, columns);
 *     KERNEL(gemm_one_tile)(&p, place, rows, columns, c, ldc);   in a task
 *
 * The tiles follow from the sizes and types alone; sums are not split. A product of some of the
 * columns, from a tile's first one on, may be taken at a time, with the rows that were copied already.
 * bias, addend, gelu and pre are ignored, p's own c is not used, and the batch is one matrix. */
typedef struct {
    int64_t row, m, column, n; /* row and column: multiples of tile_m and tile_n */
} gemm_place;

gemm_cut KERNEL(gemm_tiles)(const gemm_product *p);
/* Of a's rows, or of b's columns. */
int64_t KERNEL(gemm_copy_bytes)(const gemm_product *p, bool columns);
void KERNEL(gemm_copy)(weft_pool *pool, const gemm_product *p, bool columns, void *to);
void KERNEL(gemm_one_tile)(const gemm_product *p, gemm_place at, const void *rows,
                           const void *columns, real *c, int64_t ldc);

/* A part of a matrix: the same memory from row and column on, of matrix g of the batch. */
static inline gemm_matrix gemm_part(gemm_matrix x, int64_t g, int64_t row, int64_t column) {
    int64_t at = g * x.stride + row * x.ld + column;
    size_t size = x.i8 ? sizeof(int8_t) : x.bf16 ? sizeof(uint16_t) : sizeof(real);
    if (at) x.data = (char *)x.data + at * (int64_t)size;
    return x;
}

/* A tensor's rows from `row` on as a matrix; `x` NULL: without the address, for sizes. */
static inline gemm_matrix gemm_rows(const weft_exec *x, const weft_tensor *t, int64_t row) {
    gemm_matrix m = {.ld = weft_tensor_width(t), .bf16 = t->dtype == WEFT_BF16};
    if (x) m.data = weft_data(x, t);
    return gemm_part(m, 0, row, 0);
}

/* The tile of a product at (row, column) of matrix g, as a product of its own, restricted to the
 * sums from `depth` on, k of them. */
static inline gemm_product gemm_tile(const gemm_product *p, int64_t g, int64_t row, int64_t m,
                                     int64_t column, int64_t n, int64_t depth, int64_t k) {
    gemm_product t = *p;
    t.batch = 1;
    t.m = m;
    t.n = n;
    t.k = k;
    t.a = p->ta ? gemm_part(p->a, g, depth, row) : gemm_part(p->a, g, row, depth);
    t.b = p->tb ? gemm_part(p->b, g, column, depth) : gemm_part(p->b, g, depth, column);
    t.c = gemm_part(p->c, g, row, column);
    if (p->addend.data) t.addend = gemm_part(p->addend, g, row, column);
    if (p->pre.data) t.pre = gemm_part(p->pre, g, row, column);
    if (p->bias.data) t.bias = gemm_part(p->bias, 0, 0, column);
    return t;
}

/* Writes rows × columns sums to c: adds bias and addend (and c, if `add`), keeps pre, applies gelu or
 * its slope. `sums` may be c's own memory. */
void KERNEL(gemm_finish)(const gemm_product *p, const real *sums, int64_t ld, bool add);

/* Asking for weights before they are read, by products of one row, which wait for memory and for little
 * else. The prefetchers of x86-64's processors mostly stop at the end of a page of 4 KiB, where each of
 * the product's streams would begin anew; those of Arm's cores were seen to keep up. */
enum {
#if defined(__SSE2__)
    ASKS_AHEAD = 1,
#else
    ASKS_AHEAD = 0,
#endif
    /* Bytes from what is read to what is asked for, in each stream: the next column's, where a column is
     * shorter. Of 256 to 2,048 bytes these were the fastest, or as fast, with f32, bf16 and int8 weights
     * by AVX-512 on a Xeon, in the better of two readings; by AVX2 512 were read alone. */
    ASKED_AHEAD = 2048
};

/* The line may lie behind the end of the weights: asking never faults. */
static inline void ask_for(const char *at) {
    __builtin_prefetch(at + ASKED_AHEAD);
}

/* Few rows: few_rows.c. */
void KERNEL(few_rows)(weft_pool *pool, const gemm_product *p, void *workspace);
int64_t KERNEL(few_rows_workspace)(const gemm_product *p);

/* Any number of rows with b i8: i8_rows.c. */
void KERNEL(i8_rows)(weft_pool *pool, const gemm_product *p, void *workspace);
int64_t KERNEL(i8_rows_workspace)(const gemm_product *p);

/* Many rows: panels.c. */
void KERNEL(panels)(weft_pool *pool, const gemm_product *p, void *workspace);
int64_t KERNEL(panels_workspace)(const gemm_product *p, int threads);

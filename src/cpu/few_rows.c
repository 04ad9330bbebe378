/* Products of few rows, what generation runs: y [m, n] = x [m, k] · op(w), GEMM_FEW_ROWS at a time.
 *
 * The weight is read once, by vectors, straight from memory (bf16 widened in registers); the rows
 * wait in the cache. Every result has one chain of sums whose order does not depend on m: with w as
 * [n, k], VLEN chains over k and their sum by halves; with w as [k, n], one chain over k. So a
 * row's bits are those it has alone. Threads share out columns, and pieces of rows where there are
 * more than a few.
 *
 * With w bf16 and as [n, k], where the processor has the instruction that sums products of bf16 pairs
 * (BFDOT): a number of x is split into two of bf16, x = high + low, each the nearest to what is left. That
 * keeps 16 of its 24 bits, and the products with w need no widening. Every result has four chains of sums
 * over k, high before low, whose order does not depend on m either. */
#include "cpu/ahead.h"
#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "cpu/vec.h"

enum {
    TASK_WEIGHTS = 1 << 16, /* elements of w a task reads */
    TASK_COLUMNS = 128,     /* most columns of a task: its sums stay on the stack */
    STEP_COLUMNS = 64,      /* fewest of w [k, n]: a row's part should be some cache lines */
    STEP_DEPTH = 32,        /* rows of w [k, n] that are walked together */
#if defined(__AVX512F__) || defined(__aarch64__)
    BLOCK_COLUMNS = 4, /* by 4 rows: sums that fit 32 registers */
#else
    BLOCK_COLUMNS = 2, /* 16 registers */
#endif
    LINE_VECTORS = 64 / VBYTES, /* vectors of a cache line of reals */
    PAIR_LINE = 32,             /* and bf16 numbers of one */
    BLOCK_ALONE = 8 /* columns at a time for one row: enough chains to hide an addition's time */
};

#define HAS_BFDOT (WEFT_ARM_TARGETS && WEFT_REAL == 32)
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* VLEN weights from element i, or the first `count` of them and zeros. */
static ALWAYS_INLINE vreal load_weights(const void *w, int64_t i, int64_t count, const bool bf16) {
#if WEFT_REAL == 32
    if (bf16) {
        const uint16_t *from = (const uint16_t *)w + i;
        if (count >= VLEN) return vload_bf16(from);
        uint16_t part[VBYTES / 4] = {0};
        memcpy(part, from, (size_t)count * sizeof *from);
        return vload_bf16(part);
    }
#endif
    (void)bf16;
    return count < VLEN ? vload_part((const real *)w + i, count) : vload((const real *)w + i);
}

typedef struct {
    const real *x;
    int64_t ldx;
    const void *w; /* the task's first weight */
    int64_t ldw, k;
    bool bf16;
} dot_work;

/* The sum of each of up to four vectors, in vsum's order, `apart` from each other. */
static ALWAYS_INLINE void store_sums(real *to, int64_t apart, const vreal *sum, const int count) {
#if WEFT_REAL == 32 && VBYTES == 16
    if (count == 4) {
        vreal ab = __builtin_shufflevector(sum[0], sum[1], 0, 1, 4, 5) +
                   __builtin_shufflevector(sum[0], sum[1], 2, 3, 6, 7);
        vreal cd = __builtin_shufflevector(sum[2], sum[3], 0, 1, 4, 5) +
                   __builtin_shufflevector(sum[2], sum[3], 2, 3, 6, 7);
        vreal four = __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
                     __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
        for (int c = 0; c < 4; c++)
            to[c * apart] = four[c];
        return;
    }
#endif
    for (int c = 0; c < count; c++)
        to[c * apart] = vsum(sum[c]);
}

/* sums [rows, columns] (ld TASK_COLUMNS) = x [rows, k] · w [columns, k]ᵀ, of columns that lie `apart`
 * from each other. Where loops over rows and columns are not unrolled early, GCC keeps the sums of several
 * rows in memory and stores each after each product: four rows then cost twice what one does. */
static ALWAYS_INLINE void dot_block(const dot_work *d, int64_t row, int64_t column, int64_t apart,
                                    real *sums, const int rows, const int columns,
                                    const bool bf16) {
    vreal sum[8][8];
    const real *x[8];
    const char *w[8];
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(real);
    for (int r = 0; r < rows; r++)
        x[r] = d->x + (row + r) * d->ldx;
    for (int c = 0; c < columns; c++)
        w[c] = (const char *)d->w + (size_t)((column + c * apart) * d->ldw) * size;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++)
            sum[r][c] = vset(0);
    int64_t i = 0;
    /* Whole cache lines of each column at a time. The sums are those of the loop below. */
    const int line = bf16 ? 2 * LINE_VECTORS : LINE_VECTORS;
    if (rows == 1)
        for (; i + line * VLEN <= d->k; i += line * VLEN) {
            vreal v[2 * LINE_VECTORS];
            for (int j = 0; j < line; j++)
                v[j] = vload(x[0] + i + j * VLEN);
            for (int c = 0; c < columns; c++) {
                if (ASKS_AHEAD) ask_for(w[c] + (size_t)i * size);
                for (int j = 0; j < line; j++)
                    sum[0][c] = vfma(v[j], load_weights(w[c], i + j * VLEN, VLEN, bf16), sum[0][c]);
            }
        }
    for (; i + VLEN <= d->k; i += VLEN) {
        vreal value[8];
        for (int c = 0; c < columns; c++)
            value[c] = load_weights(w[c], i, VLEN, bf16);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vreal v = vload(x[r] + i);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++)
                sum[r][c] = vfma(v, value[c], sum[r][c]);
        }
    }
    if (i < d->k) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vreal v = vload_part(x[r] + i, d->k - i);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++)
                sum[r][c] = vfma(v, load_weights(w[c], i, d->k - i, bf16), sum[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < columns; c += 4)
            store_sums(sums + (row + r) * TASK_COLUMNS + column + c * apart, apart, sum[r] + c,
                       columns - c < 4 ? columns - c : 4);
}

static ALWAYS_INLINE void dot_rows(const dot_work *d, int64_t m, int64_t column, int64_t apart,
                                   real *sums, const int columns, const bool bf16) {
    int64_t row = 0;
    for (; row + 4 <= m; row += 4)
        dot_block(d, row, column, apart, sums, 4, columns, bf16);
    if (m - row == 3) dot_block(d, row, column, apart, sums, 3, columns, bf16);
    if (m - row == 2) dot_block(d, row, column, apart, sums, 2, columns, bf16);
    if (m - row == 1) dot_block(d, row, column, apart, sums, 1, columns, bf16);
}

/* Few rows wait for memory: the columns of a block are each the next of its own part of w. Parts of
 * several columns are streams long enough for the processor to fetch ahead in all of them. Two rows have room
 * for twice the columns of four. */
static ALWAYS_INLINE void dot_columns(const dot_work *d, int64_t m, int64_t n, real *sums,
                                      const bool bf16) {
    int64_t together = m == 1 ? BLOCK_ALONE : m == 2 ? 2 * BLOCK_COLUMNS : BLOCK_COLUMNS;
    int64_t part = n / together;
    for (int64_t c = 0; c < part; c++)
        if (m == 1)
            dot_block(d, 0, c, part, sums, 1, BLOCK_ALONE, bf16);
        else if (m == 2)
            dot_block(d, 0, c, part, sums, 2, 2 * BLOCK_COLUMNS, bf16);
        else
            dot_rows(d, m, c, part, sums, BLOCK_COLUMNS, bf16);
    for (int64_t c = part * together; c < n; c++)
        dot_rows(d, m, c, 1, sums, 1, bf16);
}

/* sums [rows, vectors·VLEN] += x [rows, depth] · w [depth, n], `part` columns in the
 * last vector. */
static ALWAYS_INLINE void step_block(const dot_work *d, int64_t row, int64_t column, int64_t depth,
                                     int64_t k, real *sums, const int rows, const int vectors,
                                     int64_t part, const bool bf16) {
    vreal sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            sum[r][c] = vload(sums + (row + r) * TASK_COLUMNS + column + c * VLEN);
    for (int64_t i = depth; i < depth + k; i++) {
        vreal value[4];
        for (int c = 0; c < vectors; c++)
            value[c] = load_weights(d->w, i * d->ldw + column + c * VLEN, part, bf16);
        for (int r = 0; r < rows; r++) {
            vreal x = vset(d->x[(row + r) * d->ldx + i]);
            for (int c = 0; c < vectors; c++)
                sum[r][c] = vfma(x, value[c], sum[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            vstore(sums + (row + r) * TASK_COLUMNS + column + c * VLEN, sum[r][c]);
}

static ALWAYS_INLINE void step_rows(const dot_work *d, int64_t m, int64_t column, int64_t depth,
                                    int64_t k, real *sums, const int vectors, int64_t part,
                                    const bool bf16) {
    int64_t row = 0;
    for (; row + 4 <= m; row += 4)
        step_block(d, row, column, depth, k, sums, 4, vectors, part, bf16);
    if (m - row == 3) step_block(d, row, column, depth, k, sums, 3, vectors, part, bf16);
    if (m - row == 2) step_block(d, row, column, depth, k, sums, 2, vectors, part, bf16);
    if (m - row == 1) step_block(d, row, column, depth, k, sums, 1, vectors, part, bf16);
}

static ALWAYS_INLINE void step_columns(const dot_work *d, int64_t m, int64_t n, real *sums,
                                       const bool bf16) {
    memset(sums, 0, (size_t)(m * TASK_COLUMNS) * sizeof(real));
    for (int64_t depth = 0; depth < d->k; depth += STEP_DEPTH) {
        int64_t k = min_i64(STEP_DEPTH, d->k - depth), column = 0;
        for (; column + BLOCK_COLUMNS * VLEN <= n; column += BLOCK_COLUMNS * VLEN)
            step_rows(d, m, column, depth, k, sums, BLOCK_COLUMNS, VLEN, bf16);
        for (; column + VLEN <= n; column += VLEN)
            step_rows(d, m, column, depth, k, sums, 1, VLEN, bf16);
        if (column < n) step_rows(d, m, column, depth, k, sums, 1, n - column, bf16);
    }
}

typedef struct {
    const gemm_product *p;
    gemm_matrix x;        /* real: p->a, or its widened copy */
    uint16_t *high, *low; /* [m, ld] in its place, padded with zeros; NULL: not by BFDOT */
    int64_t ld;
    int64_t columns; /* of a task */
    int64_t tasks;   /* of a piece of rows */
    int64_t pieces;  /* of a matrix of the batch */
} few_run;

#if HAS_BFDOT

enum { PAIR_COLUMNS = 4 }; /* of w at a time, for several rows */

#define BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

BF16_TARGET static ALWAYS_INLINE bfloat16x8_t load_eight(const uint16_t *from) {
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

BF16_TARGET static ALWAYS_INLINE float32x4_t add_eight(float32x4_t sum, const uint16_t *high,
                                                       const uint16_t *low, bfloat16x8_t w) {
    sum = vbfdotq_f32(sum, load_eight(high), w);
    return vbfdotq_f32(sum, load_eight(low), w);
}

/* The weights behind the last whole eight. */
BF16_TARGET static ALWAYS_INLINE bfloat16x8_t load_rest(const uint16_t *from, int64_t n) {
    uint16_t part[8] = {0};
    memcpy(part, from, (size_t)n * sizeof *part);
    return load_eight(part);
}

/* sums [rows, columns] (ld TASK_COLUMNS), of columns that lie `apart` from each other. */
BF16_TARGET static ALWAYS_INLINE void pair_block(const few_run *r, int64_t row, const uint16_t *w,
                                                 int64_t apart, real *sums, const int rows,
                                                 const int columns) {
    const gemm_product *p = r->p;
    int64_t ldw = apart * p->b.ld, k = p->k, i = 0;
    const uint16_t *high = r->high + row * r->ld, *low = r->low + row * r->ld;
    float32x4_t sum[4][BLOCK_ALONE];
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < columns; c++)
            sum[m][c] = vdupq_n_f32(0);
    if (rows == 1)
        for (; i + PAIR_LINE <= k; i += PAIR_LINE)
            for (int c = 0; c < columns; c++)
                for (int j = 0; j < PAIR_LINE; j += 8)
                    sum[0][c] = add_eight(sum[0][c], high + i + j, low + i + j,
                                          load_eight(w + c * ldw + i + j));
    for (; i + 8 <= k; i += 8)
        for (int c = 0; c < columns; c++) {
            bfloat16x8_t v = load_eight(w + c * ldw + i);
            for (int m = 0; m < rows; m++)
                sum[m][c] = add_eight(sum[m][c], high + m * r->ld + i, low + m * r->ld + i, v);
        }
    if (i < k)
        for (int c = 0; c < columns; c++) {
            bfloat16x8_t v = load_rest(w + c * ldw + i, k - i);
            for (int m = 0; m < rows; m++)
                sum[m][c] = add_eight(sum[m][c], high + m * r->ld + i, low + m * r->ld + i, v);
        }
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < columns; c++)
            sums[(row + m) * TASK_COLUMNS + c * apart] = vaddvq_f32(sum[m][c]);
}

BF16_TARGET static ALWAYS_INLINE void pair_rows(const few_run *r, const uint16_t *w, int64_t apart,
                                                real *sums, const int columns) {
    int64_t m = r->p->m, row = 0;
    for (; row + 4 <= m; row += 4)
        pair_block(r, row, w, apart, sums, 4, columns);
    for (; row + 2 <= m; row += 2)
        pair_block(r, row, w, apart, sums, 2, columns);
    if (row < m) pair_block(r, row, w, apart, sums, 1, columns);
}

/* As dot_columns. */
BF16_TARGET static void pair_columns(const few_run *r, const uint16_t *w, int64_t n, real *sums) {
    int64_t ldw = r->p->b.ld, together = r->p->m == 1 ? BLOCK_ALONE : PAIR_COLUMNS,
            part = n / together;
    for (int64_t c = 0; c < part; c++)
        if (r->p->m == 1)
            pair_block(r, 0, w + c * ldw, part, sums + c, 1, BLOCK_ALONE);
        else
            pair_rows(r, w + c * ldw, part, sums + c, PAIR_COLUMNS);
    for (int64_t c = part * together; c < n; c++)
        pair_rows(r, w + c * ldw, 1, sums + c, 1);
}

#endif

static void sum_task(const few_run *f, const dot_work *d, int64_t m, int64_t n, real *sums) {
#if HAS_BFDOT
    if (f->high) {
        pair_columns(f, d->w, n, sums);
        return;
    }
#endif
    if (f->p->tb && d->bf16)
        dot_columns(d, m, n, sums, true);
    else if (f->p->tb)
        dot_columns(d, m, n, sums, false);
    else if (d->bf16)
        step_columns(d, m, n, sums, true);
    else
        step_columns(d, m, n, sums, false);
}

WEFT_TASK(run_columns) {
    const few_run *f = context;
    const gemm_product *p = f->p;
    int64_t piece = task / f->tasks, column = task % f->tasks * f->columns;
    int64_t g = piece / f->pieces, row = piece % f->pieces * GEMM_FEW_ROWS;
    int64_t m = min_i64(GEMM_FEW_ROWS, p->m - row), n = min_i64(f->columns, p->n - column);
    gemm_product tile = gemm_tile(p, g, row, m, column, n, 0, p->k);
    gemm_matrix x = gemm_part(f->x, g, row, 0);
    dot_work d = {x.data, x.ld, tile.b.data, tile.b.ld, p->k, tile.b.bf16};
    real sums[GEMM_FEW_ROWS * TASK_COLUMNS];
    sum_task(f, &d, m, n, sums);
    if (p->alpha != 1)
        for (int64_t r = 0; r < m; r++)
            for (int64_t j = 0; j < n; j++)
                sums[r * TASK_COLUMNS + j] *= p->alpha;
    KERNEL(gemm_finish)(&tile, sums, TASK_COLUMNS, p->accumulate);
}

static void share_columns(weft_pool *pool, few_run *f) {
    const gemm_product *p = f->p;
    int64_t columns = max_i64(TASK_WEIGHTS / p->k, p->tb ? BLOCK_ALONE : STEP_COLUMNS);
    f->columns = min_i64(columns, TASK_COLUMNS) / BLOCK_ALONE * BLOCK_ALONE;
    f->tasks = ceil_div(p->n, f->columns);
    f->pieces = ceil_div(p->m, GEMM_FEW_ROWS);
    weft_pool_run(pool, p->batch * f->pieces * f->tasks, run_columns, f);
}

static int64_t padded(int64_t k) {
    return ceil_div(k, PAIR_LINE) * PAIR_LINE;
}

static bool goes_by_pairs(const gemm_product *p) {
    return HAS_BFDOT && p->tb && p->b.bf16 && p->batch == 1 && p->m <= GEMM_FEW_ROWS &&
           weft_cpu_matrix() == WEFT_MATRIX_BFMMLA;
}

static int64_t pair_bytes(const gemm_product *p) {
    return 2 * p->m * padded(p->k) * (int64_t)sizeof(uint16_t);
}

int64_t KERNEL(few_rows_workspace)(const gemm_product *p) {
    int64_t widened = p->a.bf16 ? real_bytes(p->batch * p->m * p->k) : 0;
    return max_i64(widened, goes_by_pairs(p) ? pair_bytes(p) : 0);
}

static void widen_rows(few_run *f, real *to) {
    const gemm_product *p = f->p;
    f->x = (gemm_matrix){.data = to, .ld = p->k, .stride = p->m * p->k};
    for (int64_t g = 0; g < p->batch; g++)
        for (int64_t r = 0; r < p->m; r++, to += p->k)
            gemm_widen(to, gemm_part(p->a, g, r, 0).data, p->k);
}

static void split_rows(few_run *f, uint16_t *to) {
    const gemm_product *p = f->p;
    f->ld = padded(p->k);
    f->high = to;
    f->low = to + p->m * f->ld;
    memset(to, 0, (size_t)pair_bytes(p));
    for (int64_t row = 0; row < p->m; row++) {
        gemm_matrix from = gemm_part(p->a, 0, row, 0);
        uint16_t *high = f->high + row * f->ld, *low = f->low + row * f->ld;
        for (int64_t i = 0; i < p->k; i++) {
            float x = from.bf16 ? weft_bf16_to_float(((const uint16_t *)from.data)[i])
                                : (float)((const real *)from.data)[i];
            high[i] = weft_float_to_bf16(x);
            low[i] = weft_float_to_bf16(x - weft_bf16_to_float(high[i]));
        }
    }
}

void KERNEL(few_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    few_run f = {.p = p, .x = p->a};
    if (goes_by_pairs(p))
        split_rows(&f, workspace);
    else if (p->a.bf16)
        widen_rows(&f, workspace);
    share_columns(pool, &f);
}

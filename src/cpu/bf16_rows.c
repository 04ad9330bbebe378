/* Products of few rows with a bf16 weight, y [m, n] = x [m, k] · wᵀ, by the instruction that sums
 * products of bf16 pairs (BFDOT), where the processor has it.
 *
 * A number of x is split into two of bf16, x = high + low, each the nearest to what is left: that
 * keeps 16 of its 24 bits, and the products with w need no widening. Every result has four chains of
 * sums over k, high before low, whose order does not depend on m: a row's bits are those it has
 * alone. */
#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "cpu/vec.h"

#if WEFT_ARM_TARGETS && WEFT_REAL == 32

enum {
    TASK_WEIGHTS = 1 << 16, /* elements of w that a task reads */
    TASK_COLUMNS = 128,     /* and its most columns: its sums stay on the stack */
    COLUMNS = 4,            /* of w at a time, for several rows; */
    ALONE = 8,              /* for one, */
    LINE = 32               /* and then a cache line of each at a time */
};

#define BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))
#define ALWAYS_INLINE inline __attribute__((always_inline))

typedef struct {
    const gemm_product *p;
    uint16_t *high, *low; /* [m, ld], padded with zeros */
    int64_t ld, columns;
} bf16_run;

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
BF16_TARGET static ALWAYS_INLINE void sum_block(const bf16_run *r, int64_t row, const uint16_t *w,
                                                int64_t apart, real *sums, const int rows,
                                                const int columns) {
    const gemm_product *p = r->p;
    int64_t ldw = apart * p->b.ld, k = p->k, i = 0;
    const uint16_t *high = r->high + row * r->ld, *low = r->low + row * r->ld;
    float32x4_t sum[4][ALONE];
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < columns; c++)
            sum[m][c] = vdupq_n_f32(0);
    if (rows == 1)
        for (; i + LINE <= k; i += LINE)
            for (int c = 0; c < columns; c++)
                for (int j = 0; j < LINE; j += 8)
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

BF16_TARGET static ALWAYS_INLINE void sum_rows(const bf16_run *r, const uint16_t *w, int64_t apart,
                                               real *sums, const int columns) {
    int64_t m = r->p->m, row = 0;
    for (; row + 4 <= m; row += 4)
        sum_block(r, row, w, apart, sums, 4, columns);
    for (; row + 2 <= m; row += 2)
        sum_block(r, row, w, apart, sums, 2, columns);
    if (row < m) sum_block(r, row, w, apart, sums, 1, columns);
}

/* Few rows wait for memory: the columns of a block are each the next of its own part of w. Parts of
 * several columns are streams long enough for the processor to fetch ahead in all of them. */
BF16_TARGET static void sum_columns(const bf16_run *r, const uint16_t *w, int64_t n, real *sums) {
    int64_t ldw = r->p->b.ld, together = r->p->m == 1 ? ALONE : COLUMNS, part = n / together;
    for (int64_t c = 0; c < part; c++)
        if (r->p->m == 1)
            sum_block(r, 0, w + c * ldw, part, sums + c, 1, ALONE);
        else
            sum_rows(r, w + c * ldw, part, sums + c, COLUMNS);
    for (int64_t c = part * together; c < n; c++)
        sum_rows(r, w + c * ldw, 1, sums + c, 1);
}

static void run_columns(void *context, int64_t task, int thread) {
    (void)thread;
    const bf16_run *r = context;
    const gemm_product *p = r->p;
    int64_t column = task * r->columns, n = min_i64(r->columns, p->n - column);
    gemm_product tile = gemm_tile(p, 0, 0, p->m, column, n, 0, p->k);
    real sums[GEMM_FEW_ROWS * TASK_COLUMNS];
    sum_columns(r, tile.b.data, n, sums);
    if (p->alpha != 1)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < n; j++)
                sums[i * TASK_COLUMNS + j] *= p->alpha;
    KERNEL(gemm_finish)(&tile, sums, TASK_COLUMNS, p->accumulate);
}

static int64_t padded(int64_t k) {
    return ceil_div(k, LINE) * LINE;
}

static void split_rows(const bf16_run *r) {
    const gemm_product *p = r->p;
    for (int64_t row = 0; row < p->m; row++) {
        gemm_matrix from = gemm_part(p->a, 0, row, 0);
        uint16_t *high = r->high + row * r->ld, *low = r->low + row * r->ld;
        for (int64_t i = 0; i < p->k; i++) {
            real x = from.bf16 ? weft_bf16_to_float(((const uint16_t *)from.data)[i])
                               : ((const real *)from.data)[i];
            high[i] = weft_float_to_bf16(x);
            low[i] = weft_float_to_bf16(x - weft_bf16_to_float(high[i]));
        }
        memset(high + p->k, 0, (size_t)(r->ld - p->k) * sizeof *high);
        memset(low + p->k, 0, (size_t)(r->ld - p->k) * sizeof *low);
    }
}

bool KERNEL(bf16_rows_runs)(const gemm_product *p) {
    return p->tb && p->b.bf16 && p->batch == 1 && p->m <= GEMM_FEW_ROWS && !p->ta &&
           weft_cpu_matrix() == WEFT_MATRIX_BFMMLA;
}

int64_t KERNEL(bf16_rows_workspace)(const gemm_product *p) {
    return 2 * p->m * padded(p->k) * (int64_t)sizeof(uint16_t);
}

void KERNEL(bf16_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    bf16_run r = {.p = p, .high = workspace, .ld = padded(p->k)};
    r.low = r.high + p->m * r.ld;
    split_rows(&r);
    int64_t columns = max_i64(TASK_WEIGHTS / p->k, ALONE);
    r.columns = min_i64(columns, TASK_COLUMNS) / ALONE * ALONE;
    weft_pool_run(pool, ceil_div(p->n, r.columns), run_columns, &r);
}

#else

bool KERNEL(bf16_rows_runs)(const gemm_product *p) {
    (void)p;
    return false;
}

int64_t KERNEL(bf16_rows_workspace)(const gemm_product *p) {
    (void)p;
    return 0;
}

void KERNEL(bf16_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    (void)pool;
    (void)p;
    (void)workspace;
}

#endif

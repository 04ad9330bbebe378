/* Matrix products, whichever kernel does them: few rows go to few_rows.c, the others to panels.c. Here are
 * the ends that they share: a product that begins with an addend, and what is done to a sum before it is
 * written, where it is rounded once. */
#include "cpu/gemm.h"

#include "cpu/matrix.h"
#include "cpu/vec.h"

enum {
    FINISH = 256,  /* columns that gemm_finish holds at a time */
    COPY_ROWS = 64 /* of an addend that a task copies */
};

static bool is_few_rows(const gemm_product *p) {
    return (p->m <= GEMM_FEW_ROWS || p->alone) && !p->ta;
}

int64_t KERNEL(gemm_workspace)(const gemm_product *p, int threads) {
    return is_few_rows(p) ? KERNEL(few_rows_workspace)(p) : KERNEL(panels_workspace)(p, threads);
}

static void add_values(real *to, gemm_matrix x, int64_t at, int64_t n) {
    if (x.bf16)
        for (int64_t i = 0; i < n; i++)
            to[i] += (real)weft_bf16_to_float(((const uint16_t *)x.data)[at + i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] += ((const real *)x.data)[at + i];
}

/* As weft_float_to_bf16 rounds; by the processor's own instruction where it has one. */
#if WEFT_ARM_TARGETS && WEFT_REAL == 32

BF16_ARM static void round_eights(uint16_t *to, const real *from, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(from + i));
        bfloat16x8_t both = vcvtq_high_bf16_f32(low, vld1q_f32(from + i + 4));
        vst1q_u16(to + i, vreinterpretq_u16_bf16(both));
    }
}

static void round_values(uint16_t *to, const real *from, int64_t n) {
    int64_t whole = weft_cpu_matrix() == WEFT_MATRIX_BFMMLA ? n / 8 * 8 : 0;
    round_eights(to, from, whole);
    round_bf16(to + whole, from + whole, n - whole);
}

#else

static void round_values(uint16_t *to, const real *from, int64_t n) {
    round_bf16(to, from, n);
}

#endif

static void put_values(gemm_matrix x, int64_t at, const real *from, int64_t n) {
    if (x.bf16)
        round_values((uint16_t *)x.data + at, from, n);
    else
        memcpy((real *)x.data + at, from, (size_t)n * sizeof(real));
}

void KERNEL(gemm_finish)(const gemm_product *p, const real *sums, int64_t ld, bool add) {
    bool plain = !p->bias.data && !p->addend.data && !p->gelu && !p->pre.data && !add;
    if (plain && sums == p->c.data) return;
    /* A row of reals is finished where it lies, unless its addend waits there. */
    bool apart = p->c.bf16 || p->addend.data == p->c.data;
    real own[FINISH], pre[FINISH];
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j += FINISH) {
            int64_t n = min_i64(FINISH, p->n - j), at = i * p->c.ld + j;
            const real *from = sums + i * ld + j;
            real *row = apart ? own : (real *)p->c.data + at;
            for (int64_t k = 0; add && k < n; k++)
                row[k] += from[k];
            if (!add && row != from) memcpy(row, from, (size_t)n * sizeof(real));
            if (p->bias.data) add_values(row, p->bias, j, n);
            if (p->addend.data) add_values(row, p->addend, i * p->addend.ld + j, n);
            if (p->gelu_back) {
                vgelu_back(row, row, row_in(p->pre.data, p->pre.bf16, i * p->pre.ld + j, n, pre),
                           n);
            } else if (p->pre.data) {
                put_values(p->pre, i * p->pre.ld + j, row, n);
            }
            if (p->gelu) apply(gelu_rows_vector, 1, (const real *[]){row}, 1, &row, n, NULL);
            if (apart) put_values(p->c, at, row, n);
        }
}

WEFT_TASK(copy_rows, const gemm_product *p) {
    int64_t bands = ceil_div(p->m, COPY_ROWS), g = task / bands, row = task % bands * COPY_ROWS;
    for (int64_t end = min_i64(row + COPY_ROWS, p->m); row < end; row++)
        memcpy(gemm_part(p->c, g, row, 0).data, gemm_part(p->addend, g, row, 0).data,
               (size_t)p->n * sizeof(real));
}

void KERNEL(gemm)(weft_pool *pool, const gemm_product *p, void *workspace) {
    gemm_product q = *p;
    /* Where sums are made in c itself, an addend waits there. It does so also where it lies elsewhere, so that
     * the order of the sums, and the bits, do not depend on that. */
    if (p->addend.data && !p->c.bf16) {
        if (p->addend.data != p->c.data)
            weft_pool_run(pool, p->batch * ceil_div(p->m, COPY_ROWS), copy_rows, &q);
        q.addend.data = NULL;
        q.accumulate = true;
    }
    if (is_few_rows(&q))
        KERNEL(few_rows)(pool, &q, workspace);
    else
        KERNEL(panels)(pool, &q, workspace);
}

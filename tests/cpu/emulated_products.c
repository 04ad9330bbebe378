/* Products by an instruction set that this machine may lack: a program of its own, for an emulator
 * (test_emulated.c compiles and runs it). Odd sizes, both layouts of each operand, f32 and, where the
 * emulated processor multiplies bf16, bf16; results that were poisoned before; equal bits for one and for
 * three threads; against sums in double. */
#include "cpu/gemm.h"
#include "cpu/matrix.h"

#include <stdio.h>
#include <stdlib.h>

/* What of the library these products do not reach. */
bool KERNEL(bf16_rows_runs)(const gemm_product *p) {
    (void)p;
    return false;
}
void KERNEL(bf16_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    (void)pool, (void)p, (void)workspace;
    abort();
}
int64_t KERNEL(bf16_rows_workspace)(const gemm_product *p) {
    (void)p;
    return 0;
}
void KERNEL(few_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    (void)pool, (void)p, (void)workspace;
    abort();
}
int64_t KERNEL(few_rows_workspace)(const gemm_product *p) {
    (void)p;
    return 0;
}
void weft_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
/* NOLINTBEGIN(readability-non-const-parameter): as the BLAS has them */
void weft_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)b;
    (void)ldb, (void)beta, (void)c, (void)ldc;
    abort();
}
/* NOLINTEND(readability-non-const-parameter) */

/* Takes turns in place of threads: what depends on their number is the cut into tasks. */
struct weft_pool {
    int size;
};

int weft_pool_size(const weft_pool *pool) {
    return pool->size;
}

void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context) {
    for (int64_t i = tasks - 1; i >= 0; i--)
        task(context, i, (int)(i % pool->size));
}

weft_matrix weft_cpu_matrix(void) {
#if defined(__aarch64__)
    return WEFT_MATRIX_BFMMLA;
#else
    return WEFT_MATRIX_NONE;
#endif
}

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

/* A matrix of numbers that bf16 has, stored as either. */
static gemm_matrix make(int64_t rows, int64_t columns, bool bf16, uint32_t seed) {
    gemm_matrix x = {.ld = columns + 3, .bf16 = bf16};
    x.data = malloc((size_t)(rows * x.ld) * sizeof(float));
    for (int64_t i = 0; x.data && i < rows * x.ld; i++) {
        uint16_t bits = weft_float_to_bf16(noise(&seed));
        if (bf16)
            ((uint16_t *)x.data)[i] = bits;
        else
            ((float *)x.data)[i] = weft_bf16_to_float(bits);
    }
    return x;
}

static double at(gemm_matrix x, int64_t row, int64_t column) {
    int64_t i = row * x.ld + column;
    return x.bf16 ? (double)weft_bf16_to_float(((const uint16_t *)x.data)[i])
                  : (double)((const float *)x.data)[i];
}

/* The largest error as a part of the bound; 2: bits that depend on the threads. */
static double check(int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool bf16) {
    gemm_product p = {.batch = 1, .m = m, .n = n, .k = k, .ta = ta, .tb = tb, .alpha = 0.5f};
    p.a = make(ta ? k : m, ta ? m : k, bf16, 1);
    p.b = make(tb ? n : k, tb ? k : n, bf16, 2);
    p.c = make(m, n, false, 3);
    gemm_matrix first = p.c;
    double worst = 0;
    for (int threads = 1; threads <= 3; threads += 2) {
        weft_pool pool = {threads};
        void *workspace = aligned_alloc(64, (size_t)KERNEL(gemm_workspace)(&p, threads) + 64);
        if (threads > 1) p.c = make(m, n, false, 3);
        for (int64_t i = 0; i < m; i++)
            memset((float *)p.c.data + i * p.c.ld, 0xff, (size_t)n * sizeof(float));
        KERNEL(gemm)(&pool, &p, workspace);
        free(workspace);
    }
    for (int64_t i = 0; i < m; i++) {
        size_t bytes = (size_t)n * sizeof(float);
        if (memcmp((float *)first.data + i * first.ld, (float *)p.c.data + i * p.c.ld, bytes) != 0)
            return 2;
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t d = 0; d < k; d++)
                sum += (ta ? at(p.a, d, i) : at(p.a, i, d)) * (tb ? at(p.b, j, d) : at(p.b, d, j));
            double error = fabs(at(p.c, i, j) - 0.5 * sum);
            worst = fmax(worst, isnan(error) ? 2 : error / (1e-6 * (double)k + 1e-6));
        }
    }
    free(p.a.data), free(p.b.data), free(p.c.data), free(first.data);
    return worst;
}

int main(void) {
    static const int64_t sizes[][3] = {{33, 1, 1},    {40, 24, 16},  {33, 35, 37},
                                       {97, 65, 130}, {64, 96, 520}, {200, 50, 70}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int layout = 0; layout < 8; layout++) {
            const int64_t *size = sizes[s];
            double off = check(size[0], size[1], size[2], layout & 1, layout & 2, layout & 4);
            if (off <= 1) continue;
            printf("%lld × %lld × %lld, layout %d: %.2f of the bound\n", (long long)size[0],
                   (long long)size[1], (long long)size[2], layout, off);
            return 1;
        }
    return 0;
}

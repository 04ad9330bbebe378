#include "bench/limits.h"

#include "bench/timer.h"
#include "core/clock.h"
#include "cpu/blas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 1024, MATRIX = SIDE * SIDE, PIECE = 1 << 20, PIECES = 256, PEAK_MEASUREMENTS = 3 };

struct bench_limits {
    weft_pool *pool;
    float *matrices; /* three per thread */
    char *from, *to; /* PIECES pieces each */
};

weft_status bench_limits_create(weft_pool *pool, bool copies, bench_limits **out) {
    *out = NULL;
    bench_limits *l = calloc(1, sizeof *l);
    if (!l) return weft_fail(WEFT_ENOMEM, "limits: no memory");
    size_t count = (size_t)weft_pool_size(pool) * 3 * MATRIX;
    l->pool = pool;
    l->matrices = malloc(count * sizeof *l->matrices);
    if (copies) {
        l->from = malloc((size_t)PIECE * PIECES);
        l->to = malloc((size_t)PIECE * PIECES);
    }
    if (!l->matrices || (copies && (!l->from || !l->to))) {
        bench_limits_destroy(l);
        return weft_fail(WEFT_ENOMEM, "limits: no memory for the large product and copy");
    }
    for (size_t i = 0; i < count; i++)
        l->matrices[i] = (float)(i % 61) * 0.03125f - 1;
    if (copies) {
        memset(l->from, 1, (size_t)PIECE * PIECES);
        memset(l->to, 2, (size_t)PIECE * PIECES);
    }
    *out = l;
    return WEFT_OK;
}

void bench_limits_destroy(bench_limits *l) {
    if (!l) return;
    free(l->matrices);
    free(l->from);
    free(l->to);
    free(l);
}

static void multiply(void *context, int64_t task, int thread) {
    (void)thread;
    float *m = ((bench_limits *)context)->matrices + task * 3 * MATRIX;
    weft_blas_sgemm(false, false, SIDE, SIDE, SIDE, 1, m, SIDE, m + MATRIX, SIDE, 0, m + 2 * MATRIX,
                    SIDE);
}

double bench_limit_gflops(bench_limits *l) {
    int threads = weft_pool_size(l->pool);
    double start = weft_clock();
    weft_pool_run(l->pool, threads, multiply, l);
    return 2e-9 * SIDE * SIDE * SIDE * threads / (weft_clock() - start);
}

static void copy(void *context, int64_t task, int thread) {
    (void)thread;
    bench_limits *l = context;
    memcpy(l->to + task * PIECE, l->from + task * PIECE, PIECE);
}

double bench_limit_gbytes(bench_limits *l) {
    if (!l->from) return 0;
    double start = weft_clock();
    weft_pool_run(l->pool, PIECES, copy, l);
    return 2e-9 * PIECE * PIECES / (weft_clock() - start);
}

double bench_peak_flops(weft_pool *pool) {
    bench_limits *limits;
    double best = 0;
    if (bench_limits_create(pool, false, &limits) != WEFT_OK) return 0;
    for (int i = 0; i < PEAK_MEASUREMENTS; i++)
        best = fmax(best, bench_limit_gflops(limits));
    bench_limits_destroy(limits);
    return best * 1e9;
}

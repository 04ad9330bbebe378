/* What this GPU can do at most, for other figures to be held against: a product of two 8192 × 8192
 * bf16 matrices, and a copy.
 *
 *     limits_cuda      prints "GPU name", "matrix TFLOP/s", "copy TB/s", a tab before the value
 *
 * Both go through a graph, as in training: several of one operation, captured and replayed. Numbers
 * are random, since a product of zeros runs faster. A copy counts what is read and what is written.
 * Medians of nine runs, an empty run's time taken off. Status 3: there is no GPU, and a line says
 * why. */
#include "base/clock.h"
#include "core/exec.h"
#include "cuda/backend.h"
#include "ops/arith.h"
#include "ops/linear.h"

#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 8192, PRODUCTS = 10, COPIES = 4, RUNS = 9, NO_GPU = 3 };
static const int64_t DRAWN = (int64_t)SIDE * SIDE; /* then they repeat */
static const int64_t COPIED = (int64_t)1 << 28;    /* numbers of a copy */

static weft_pool *pool;
static uint16_t *noise; /* [COPIED], which is more than a matrix has */

static weft_status make_noise(void) {
    uint64_t s = 88172645463325252u;
    noise = malloc((size_t)COPIED * sizeof *noise);
    if (!noise) return weft_fail(WEFT_ENOMEM, "limits: no memory");
    for (int64_t i = 0; i < DRAWN; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        noise[i] = weft_float_to_bf16((float)((double)(s >> 40) / 8388608.0 - 1));
    }
    for (int64_t i = DRAWN; i < COPIED; i++)
        noise[i] = noise[i - DRAWN];
    return WEFT_OK;
}

static int by_size(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

/* Builders: append the operation so many times. */

static void build_nothing(weft_graph *g, int times) {
    (void)times;
    weft_keep(
        weft_scale(g, weft_graph_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_BF16, 1, (int64_t[]){8}), 1));
}

static void build_products(weft_graph *g, int times) {
    const int64_t shape[] = {SIDE, SIDE};
    weft_tensor *a = weft_graph_tensor(g, WEFT_ROLE_INPUT, "a", WEFT_BF16, 2, shape);
    weft_tensor *b = weft_graph_tensor(g, WEFT_ROLE_INPUT, "b", WEFT_BF16, 2, shape);
    for (int i = 0; i < times; i++)
        weft_keep(weft_matmul(g, a, b, false, true));
}

static void build_copies(weft_graph *g, int times) {
    weft_tensor *x = weft_graph_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_BF16, 1, &COPIED);
    for (int i = 0; i < times; i++)
        weft_keep(weft_scale(g, x, 1));
}

/* The median time of a run. */
static weft_status time_graph(void (*build)(weft_graph *, int), int times, double *seconds) {
    weft_graph *g = NULL;
    weft_exec *x = NULL;
    double samples[RUNS];
    weft_status status = weft_graph_create(&g);
    if (status == WEFT_OK) {
        build(g, times);
        status = weft_exec_create(g, weft_cuda_backend(), pool, NULL, &x);
    }
    for (int64_t i = 0; status == WEFT_OK && i < weft_graph_tensor_count(g); i++)
        if (weft_graph_tensor_at(g, i)->role == WEFT_ROLE_INPUT)
            weft_exec_write(x, weft_graph_tensor_at(g, i), noise);
    for (int i = -3; status == WEFT_OK && i < RUNS; i++) {
        double start = weft_clock();
        status = weft_exec_run(x, &(weft_run){.seed = 1});
        if (i >= 0) samples[i] = weft_clock() - start;
    }
    weft_exec_destroy(x);
    weft_graph_destroy(g);
    if (status != WEFT_OK) return status;
    qsort(samples, RUNS, sizeof *samples, by_size);
    *seconds = samples[RUNS / 2];
    return WEFT_OK;
}

static weft_status measure(void) {
    double empty = 0, products = 0, copies = 0;
    WEFT_TRY(weft_pool_create(1, &pool));
    WEFT_TRY(make_noise());
    WEFT_TRY(time_graph(build_nothing, 1, &empty));
    WEFT_TRY(time_graph(build_products, PRODUCTS, &products));
    WEFT_TRY(time_graph(build_copies, COPIES, &copies));
    double flops = 2.0 * SIDE * SIDE * SIDE * PRODUCTS, bytes = 4.0 * (double)COPIED * COPIES;
    printf("GPU\t%s\n", weft_cuda_device_name());
    printf("matrix TFLOP/s\t%.1f\n", 1e-12 * flops / (products - empty));
    printf("copy TB/s\t%.3f\n", 1e-12 * bytes / (copies - empty));
    return WEFT_OK;
}

int main(void) {
    if (!weft_cuda_backend()) {
        printf("%s\n", weft_error_message());
        return NO_GPU;
    }
    weft_status status = measure();
    if (status != WEFT_OK) fprintf(stderr, "%s\n", weft_error_message());
    weft_pool_destroy(pool);
    free(noise);
    return status == WEFT_OK ? 0 : 1;
}

#include "base/clock.h"
#include "bench/tables.h"
#include "cpu/backend.h"
#include "model/builder.h"

#include <math.h>

#define LOOP_SECONDS 0.004

enum { PIECE = 1 << 20, PIECES = 256, PEAK_MEASUREMENTS = 3, FIRST_ROUNDS = 1 << 10 };

/* Of a product on a GPU: the first chooses its algorithm, the second is captured. */
enum { PRODUCTS_UNMEASURED = 4, PRODUCTS_MEASURED = 30 };

struct bench_limits {
    weft_pool *pool;
    int64_t rounds[2]; /* of a loop, in float and in bf16 */
    bool bf16;         /* which of them runs */
    double *rates;     /* of the threads */
    char *from, *to;   /* PIECES pieces each */
};

static int64_t count_rounds(bool bf16) {
    int64_t rounds = FIRST_ROUNDS;
    for (;; rounds *= 2) {
        double start = weft_clock();
        if (weft_cpu_work(bf16, rounds) <= 0) return 0;
        if (weft_clock() - start >= LOOP_SECONDS) return rounds;
    }
}

weft_status bench_limits_create(weft_pool *pool, bool copies, bench_limits **out) {
    *out = NULL;
    if (!weft_cpu_backend()) return WEFT_EMISSING;
    WEFT_NEW(bench_limits, l, bench_limits_destroy, "limits: no memory");
    l->pool = pool;
    WEFT_ROOM_AT(l->rates, weft_pool_size(pool), "limits: no memory");
    l->rounds[false] = count_rounds(false);
    l->rounds[true] = count_rounds(true);
    if (copies) {
        l->from = malloc((size_t)PIECE * PIECES);
        l->to = malloc((size_t)PIECE * PIECES);
        if (!l->from || !l->to)
            return weft_fail(WEFT_ENOMEM, "limits: no memory for the large copy");
        memset(l->from, 1, (size_t)PIECE * PIECES);
        memset(l->to, 2, (size_t)PIECE * PIECES);
    }
    return weft_hand(&l, out);
}

void bench_limits_destroy(bench_limits *l) {
    if (!l) return;
    WEFT_FREE(l->rates, l->from, l->to, l);
}

/* By the thread's own clock: what else the machine does is not the loop's. */
static double thread_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

WEFT_TASK(work) {
    const bench_limits *l = context;
    double start = thread_clock(), count = weft_cpu_work(l->bf16, l->rounds[l->bf16]);
    l->rates[task] = 1e-9 * count / (thread_clock() - start);
}

double bench_limit_gflops(bench_limits *l, bool bf16) {
    int threads = weft_pool_size(l->pool);
    l->bf16 = bf16 && l->rounds[true];
    weft_pool_run(l->pool, threads, work, l);
    double sum = 0;
    for (int i = 0; i < threads; i++)
        sum += l->rates[i];
    return sum;
}

WEFT_TASK(copy) {
    bench_limits *l = context;
    memcpy(l->to + task * PIECE, l->from + task * PIECE, PIECE);
}

double bench_limit_gbytes(bench_limits *l) {
    if (!l->from) return 0;
    double start = weft_clock();
    weft_pool_run(l->pool, PIECES, copy, l);
    return 2e-9 * PIECE * PIECES / (weft_clock() - start);
}

double bench_peak_flops(weft_pool *pool, bool bf16) {
    WEFT_AUTO(bench_limits_destroy_at) bench_limits *limits = NULL;
    double best = 0;
    if (bench_limits_create(pool, false, &limits) != WEFT_OK) return 0;
    for (int i = 0; i < PEAK_MEASUREMENTS; i++)
        best = fmax(best, bench_limit_gflops(limits, bf16));
    return best * 1e9;
}

double bench_product_gflops(const weft_backend *backend, weft_pool *pool, bool bf16) {
    WEFT_AUTO(bench_graph_free) bench_graph g = {0};
    WEFT_AUTO(weft_exec_destroy_at) weft_exec *x = NULL;
    WEFT_AUTO(bench_samples_free) bench_samples unmeasured = {0}, seconds = {0};
    if (bench_graph_build(&bench_limit_rows[bf16], false, &g) != WEFT_OK ||
        weft_exec_create(g.graph, backend, pool, NULL, &x) != WEFT_OK ||
        bench_graph_fill(&g, x) != WEFT_OK ||
        bench_time(x, PRODUCTS_UNMEASURED, &unmeasured) != WEFT_OK ||
        bench_time(x, PRODUCTS_MEASURED, &seconds) != WEFT_OK)
        return 0;
    return 1e-9 * flops_of(g.graph, 0, NULL) / bench_median(&seconds);
}

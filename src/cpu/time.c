/* Means over time on the CPU. A task is a strip of columns of one sequence, walked from its first
 * token to its last (or back) with the running sums in double, so that the mean over a long
 * sequence loses nothing to the sum's size. Moments are a product (gemm.h) beside such strips. */
#include "ops/time.h"

#include "cpu/chunks.h"
#include "cpu/gemm.h"

enum { STRIP = 256, PART = 16 };

typedef struct {
    weft_exec *x;
    const weft_tensor *in, *out;
    int64_t time, width, strips;
    bool whole;           /* sums, not means */
    const int32_t *first; /* [B, T]: of running means, where a token's begins; NULL: at 0 */
} strip_job;

/* Where token 0 of the task's strip lies in a [B, T, N] tensor of T = `time`, and its columns. */
static int64_t strip_at(const strip_job *j, int64_t task, int64_t time, int64_t *len) {
    int64_t b = task / j->strips, column = task % j->strips * STRIP;
    *len = min_i64(STRIP, j->width - column);
    return b * time * j->width + column;
}

/* From the first token to the last; back, from the last to the first. */
static ALWAYS_INLINE void sum_along(const strip_job *j, int64_t task, bool back) {
    double sum[STRIP] = {0};
    real in_scratch[STRIP], out_scratch[STRIP];
    int64_t len, first = strip_at(j, task, j->time, &len);
    for (int64_t step = 0; step < j->time; step++) {
        int64_t t = back ? j->time - 1 - step : step, at = first + t * j->width;
        const real *x = tile_in(j->x, j->in, at, len, in_scratch);
        real *y = tile_out(j->x, j->out, at, out_scratch);
        int64_t begin = j->first ? j->first[task / j->strips * j->time + t] : 0;
        double share = 1 / (double)(t - begin + 1);
        if (begin == t && !back) memset(sum, 0, sizeof sum);
        for (int64_t i = 0; i < len; i++) {
            sum[i] += back ? (double)x[i] * share : (double)x[i];
            y[i] = (real)(back ? sum[i] : sum[i] * share);
        }
        tile_done(j->x, j->out, at, len, y);
        if (begin == t && back) memset(sum, 0, sizeof sum);
    }
}

WEFT_TASK(running_mean_strip) {
    sum_along(context, task, false);
}

WEFT_TASK(running_mean_back_strip) {
    sum_along(context, task, true);
}

WEFT_TASK(time_mean_strip, const strip_job *j) {
    double sum[STRIP] = {0};
    real scratch[PART][STRIP];
    int64_t len, at = strip_at(j, task, j->time, &len), to = strip_at(j, task, 1, &len);
    for (int64_t t = 0; t < j->time; t += PART) {
        const real *row[PART];
        int64_t count = min_i64(PART, j->time - t);
        for (int64_t k = 0; k < count; k++)
            row[k] = tile_in(j->x, j->in, at + (t + k) * j->width, len, scratch[k]);
        /* sum += Σ over `count` rows; in `real` over the few rows, in double from there on. */
        for (int64_t i = 0; i < len; i += VLEN) {
            int64_t n = min_i64(VLEN, len - i);
            real lane[VBYTES / sizeof(real)];
            vreal part = {0};
            for (int64_t k = 0; k < count; k++)
                part += vload_n(row[k] + i, n);
            vstore(lane, part);
            for (int64_t k = 0; k < n; k++)
                sum[i + k] += (double)lane[k];
        }
    }
    real *y = tile_out(j->x, j->out, to, scratch[0]);
    for (int64_t i = 0; i < len; i++)
        y[i] = (real)(j->whole ? sum[i] : sum[i] / (double)j->time);
    tile_done(j->x, j->out, to, len, y);
}

WEFT_TASK(time_mean_back_strip, const strip_job *j) {
    real in_scratch[STRIP], out_scratch[STRIP];
    int64_t len, at = strip_at(j, task, j->time, &len), from = strip_at(j, task, 1, &len);
    const real *dy = tile_in(j->x, j->in, from, len, in_scratch);
    real share = j->whole ? 1 : (real)(1 / (double)j->time);
    for (int64_t t = 0; t < j->time; t++, at += j->width) {
        real *dx = tile_out(j->x, j->out, at, out_scratch);
        for (int64_t i = 0; i < len; i++)
            dx[i] = dy[i] * share;
        tile_done(j->x, j->out, at, len, dx);
    }
}

/* `full` is the one of the two that has all of T. */
static weft_status run_strips_of(weft_exec *x, const weft_tensor *in, const weft_tensor *out,
                                 const weft_tensor *full, const weft_tensor *first, bool whole,
                                 weft_task strip) {
    strip_job j = {.x = x, .in = in, .out = out, .time = full->shape[1], .width = full->shape[2]};
    j.first = weft_data(x, first);
    j.strips = ceil_div(j.width, STRIP);
    j.whole = whole;
    return run_tasks(x, full->shape[0] * j.strips, strip, &j);
}

#define STRIPS(name, full, first)                                                                  \
    DEFINE_KERNEL_AS(name, run_strips_of(x, n->in[0], n->out[0], full, first, false, name##_strip))
STRIPS(running_mean, n->in[0], n->in[1])
STRIPS(running_mean_back, n->in[0], n->in[1])
STRIPS(time_mean, n->in[0], NULL)
STRIPS(time_mean_back, n->out[0], NULL)

/* xᵀ x; back, 2 x d_gram + dx, where dx has the sums' gradient already. `x` NULL: without addresses, for
 * sizes. */
static gemm_product describe_moments(const weft_exec *x, const weft_node *n, bool back) {
    const weft_tensor *in = n->in[back ? WEFT_MOMENTS_BACK_X : 0];
    int64_t width = weft_tensor_width(in), rows = weft_tensor_rows(in);
    gemm_product p = {.batch = 1, .m = back ? rows : width, .n = width, .k = back ? width : rows};
    p.ta = !back;
    p.alpha = back ? 2 : 1;
    p.a = p.b = gemm_rows(x, in, 0);
    p.c = gemm_rows(x, n->out[back ? 0 : WEFT_MOMENTS_GRAM], 0);
    if (!back) return p;
    p.b = gemm_rows(x, n->in[WEFT_MOMENTS_BACK_GRAM], 0);
    p.addend = p.c;
    return p;
}

static int64_t moments_bytes(const weft_node *n, int threads, bool back) {
    gemm_product p = describe_moments(NULL, n, back);
    return KERNEL(gemm_workspace)(&p, threads);
}

DEFINE_KERNEL_IN(moments, moments_bytes(n, threads, false)) {
    gemm_product p = describe_moments(x, n, false);
    KERNEL(gemm)(weft_exec_pool(x), &p, weft_workspace(x, n));
    return run_strips_of(x, n->in[0], n->out[WEFT_MOMENTS_SUM], n->in[0], NULL, true,
                         time_mean_strip);
}

DEFINE_KERNEL_IN(moments_back, moments_bytes(n, threads, true)) {
    gemm_product p = describe_moments(x, n, true);
    run_strips_of(x, n->in[WEFT_MOMENTS_BACK_SUM], n->out[0], n->out[0], NULL, true,
                  time_mean_back_strip);
    KERNEL(gemm)(weft_exec_pool(x), &p, weft_workspace(x, n));
    return WEFT_OK;
}

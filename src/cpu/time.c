/* Means over time on the CPU. A task is a strip of columns of one sequence, walked from its first
 * token to its last (or back) with the running sums in double, so that the mean over a long
 * sequence loses nothing to the sum's size. */
#include "ops/time.h"

#include "cpu/chunks.h"

enum { STRIP = 256, PART = 16 };

typedef struct {
    weft_exec *x;
    const weft_tensor *in, *out;
    int64_t time, width, strips;
} strip_job;

/* Where token 0 of the task's strip lies in a [B, T, N] tensor of T = `time`, and its columns. */
static int64_t strip_at(const strip_job *j, int64_t task, int64_t time, int64_t *len) {
    int64_t b = task / j->strips, column = task % j->strips * STRIP;
    *len = min_i64(STRIP, j->width - column);
    return b * time * j->width + column;
}

static void running_mean_strip(void *context, int64_t task, int thread) {
    (void)thread;
    const strip_job *j = context;
    double sum[STRIP] = {0};
    real in_scratch[STRIP], out_scratch[STRIP];
    int64_t len, at = strip_at(j, task, j->time, &len);
    for (int64_t t = 0; t < j->time; t++, at += j->width) {
        const real *x = tile_in(j->x, j->in, at, len, in_scratch);
        real *y = tile_out(j->x, j->out, at, out_scratch);
        double share = 1 / (double)(t + 1);
        for (int64_t i = 0; i < len; i++) {
            sum[i] += (double)x[i];
            y[i] = (real)(sum[i] * share);
        }
        tile_done(j->x, j->out, at, len, y);
    }
}

static void running_mean_back_strip(void *context, int64_t task, int thread) {
    (void)thread;
    const strip_job *j = context;
    double sum[STRIP] = {0};
    real in_scratch[STRIP], out_scratch[STRIP];
    int64_t len, first = strip_at(j, task, j->time, &len);
    for (int64_t t = j->time - 1; t >= 0; t--) {
        int64_t at = first + t * j->width;
        const real *dy = tile_in(j->x, j->in, at, len, in_scratch);
        real *dx = tile_out(j->x, j->out, at, out_scratch);
        double share = 1 / (double)(t + 1);
        for (int64_t i = 0; i < len; i++) {
            sum[i] += (double)dy[i] * share;
            dx[i] = (real)sum[i];
        }
        tile_done(j->x, j->out, at, len, dx);
    }
}

/* sum += Σ over `count` rows; in `real` over the few rows, in double from there on. */
static void add_rows(double *sum, const real *const *row, int64_t count, int64_t len) {
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

static void time_mean_strip(void *context, int64_t task, int thread) {
    (void)thread;
    const strip_job *j = context;
    double sum[STRIP] = {0};
    real scratch[PART][STRIP];
    int64_t len, at = strip_at(j, task, j->time, &len), to = strip_at(j, task, 1, &len);
    for (int64_t t = 0; t < j->time; t += PART) {
        const real *row[PART];
        int64_t count = min_i64(PART, j->time - t);
        for (int64_t k = 0; k < count; k++)
            row[k] = tile_in(j->x, j->in, at + (t + k) * j->width, len, scratch[k]);
        add_rows(sum, row, count, len);
    }
    real *y = tile_out(j->x, j->out, to, scratch[0]);
    for (int64_t i = 0; i < len; i++)
        y[i] = (real)(sum[i] / (double)j->time);
    tile_done(j->x, j->out, to, len, y);
}

static void time_mean_back_strip(void *context, int64_t task, int thread) {
    (void)thread;
    const strip_job *j = context;
    real in_scratch[STRIP], out_scratch[STRIP];
    int64_t len, at = strip_at(j, task, j->time, &len), from = strip_at(j, task, 1, &len);
    const real *dy = tile_in(j->x, j->in, from, len, in_scratch);
    real share = (real)(1 / (double)j->time);
    for (int64_t t = 0; t < j->time; t++, at += j->width) {
        real *dx = tile_out(j->x, j->out, at, out_scratch);
        for (int64_t i = 0; i < len; i++)
            dx[i] = dy[i] * share;
        tile_done(j->x, j->out, at, len, dx);
    }
}

/* `full` is the one of the two that has all of T. */
static weft_status run_strips(weft_exec *x, const weft_node *n, const weft_tensor *full,
                              weft_task strip) {
    strip_job j = {
        x, n->in[0], n->out[0], full->shape[1], full->shape[2], ceil_div(full->shape[2], STRIP)};
    weft_pool_run(weft_exec_pool(x), full->shape[0] * j.strips, strip, &j);
    return WEFT_OK;
}

static weft_status running_mean_run(weft_exec *x, const weft_node *n) {
    return run_strips(x, n, n->in[0], running_mean_strip);
}

static weft_status running_mean_back_run(weft_exec *x, const weft_node *n) {
    return run_strips(x, n, n->in[0], running_mean_back_strip);
}

static weft_status time_mean_run(weft_exec *x, const weft_node *n) {
    return run_strips(x, n, n->in[0], time_mean_strip);
}

static weft_status time_mean_back_run(weft_exec *x, const weft_node *n) {
    return run_strips(x, n, n->out[0], time_mean_back_strip);
}

const weft_kernel KERNEL(running_mean) = {.run = running_mean_run};
const weft_kernel KERNEL(running_mean_back) = {.run = running_mean_back_run};
const weft_kernel KERNEL(time_mean) = {.run = time_mean_run};
const weft_kernel KERNEL(time_mean_back) = {.run = time_mean_back_run};

/* Medians and quartiles: on a shared machine a mean says more of the neighbours than of the code. */
#include "bench/timer.h"

#include "base/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void bench_pause(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

void bench_samples_add(bench_samples *s, double seconds) {
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        double *value = realloc(s->value, room * sizeof *value);
        if (!value) {
            fputs("bench: no memory for measurements\n", stderr);
            exit(1);
        }
        s->value = value;
        s->room = room;
    }
    s->value[s->count++] = seconds;
}

void bench_samples_free(bench_samples *s) {
    free(s->value);
    *s = (bench_samples){0};
}

/* The value below which a part `p` of the sorted measurements lies, interpolated. */
static double quantile(const bench_samples *s, double p) {
    if (!s->count) return 0;
    qsort(s->value, s->count, sizeof *s->value, weft_order_doubles);
    double at = p * (double)(s->count - 1);
    size_t i = (size_t)at;
    if (i + 1 >= s->count) return s->value[s->count - 1];
    return s->value[i] + (at - (double)i) * (s->value[i + 1] - s->value[i]);
}

double bench_median(const bench_samples *s) {
    return quantile(s, 0.5);
}

double bench_spread(const bench_samples *s) {
    double middle = quantile(s, 0.5);
    return middle > 0 ? 0.5 * (quantile(s, 0.75) - quantile(s, 0.25)) / middle : 0;
}

/* Pauses, and what many measurements of it come to. */
#ifndef WEFT_BENCH_TIMER_H
#define WEFT_BENCH_TIMER_H

#include <stddef.h>

/* Sleeps, so that threads of the other side which still spin for work go to sleep first. */
void bench_pause(double seconds);

/* Measurements of one thing, in seconds. Starts as {0}; bench_samples_free gives it back. */
typedef struct {
    double *value;
    size_t count, room;
} bench_samples;

/* Ends the program when there is no memory: a benchmark has nothing to save. */
void bench_samples_add(bench_samples *s, double seconds);
void bench_samples_free(bench_samples *s);

/* The middle value, and half the distance of the quartiles as a part of it: half of all measurements
 * lie within median · (1 ± spread), roughly. 0 without measurements. */
double bench_median(const bench_samples *s);
double bench_spread(const bench_samples *s);

#endif

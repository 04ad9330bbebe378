/* What this machine can do at most, so that a rate can be told as a part of it: a product of the
 * CBLAS library for what computes, a copy for what moves memory. */
#ifndef WEFT_BENCH_LIMITS_H
#define WEFT_BENCH_LIMITS_H

#include "core/pool.h"

#include <stdbool.h>

typedef struct bench_limits bench_limits;

/* Fails without memory for the operands; those of the copy are made only with `copies`. The BLAS is
 * held to one thread already. */
weft_status bench_limits_create(weft_pool *pool, bool copies, bench_limits **out);
void bench_limits_destroy(bench_limits *l);

/* One measurement, in 1e9 a second: operations of a 1024³ sgemm on each thread of the pool at once;
 * bytes read and written by a copy of 256 MiB, shared out over the threads (0 without `copies`). */
double bench_limit_gflops(bench_limits *l);
double bench_limit_gbytes(bench_limits *l);

/* The best of a few measurements of the first, in operations per second: what counts as full use of
 * the machine. 0: unknown. */
double bench_peak_flops(weft_pool *pool);

#endif

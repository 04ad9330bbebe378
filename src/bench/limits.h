/* What this machine can do at most, so that a rate can be told as a part of it: multiply-adds in
 * registers alone for what computes, a copy for what moves memory; on a GPU a large matrix product. */
#pragma once

#include "core/exec.h"

typedef struct bench_limits bench_limits;

/* Fails without memory for the operands of the copy, which are made only with `copies`. */
weft_status bench_limits_create(weft_pool *pool, bool copies, bench_limits **out);
void bench_limits_destroy(bench_limits *l);

/* One measurement, in 1e9 a second: floating-point operations of a loop that reads no memory, on each
 * thread of the pool at once, in float or by the processor's instructions for bf16, or in float too where
 * it has none; bytes read and written by a copy of 256 MiB, shared out over the threads (0 without
 * `copies`). */
double bench_limit_gflops(bench_limits *l, bool bf16);
double bench_limit_gbytes(bench_limits *l);

/* The best of a few measurements of the first, in operations per second: what counts as full use of
 * the machine. 0: unknown. */
double bench_peak_flops(weft_pool *pool, bool bf16);
/* What of that a whole training run comes to, evaluation and saving included. */
#define BENCH_TRAINING_SHARE 0.3

/* 1e9 floating-point operations per second of a large matrix product on a backend, the median of a few;
 * 0: it could not be run there. */
double bench_product_gflops(const weft_backend *backend, weft_pool *pool, bool bf16);

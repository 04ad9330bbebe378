/* `weft bench decode`: what a token costs in generation, for each variant, context and batch. */
#ifndef WEFT_BENCH_DECODE_TABLE_H
#define WEFT_BENCH_DECODE_TABLE_H

#include "bench/variants.h"

#include <stdio.h>

typedef struct {
    bench_config_source source;
    const char *variants; /* with commas; NULL: dot, w2, mla and its mechanisms */
    const char *contexts; /* with commas; NULL: 256,2048,8192,32768 */
    const char *batches;  /* with commas; NULL: 1,8,64 */
    int64_t prompt;       /* tokens before the first; 0: that is not measured */
    const char *peer;     /* NULL: none */
    bool cuda;            /* on the GPU */
    int threads, steps;   /* steps measured for each row; 0: by time */
    FILE *table, *json;   /* NULL: not wanted */
} bench_decode_options;

/* *failed: rows that could not be measured. */
weft_status bench_decode_table(const bench_decode_options *options, int *failed);

#endif

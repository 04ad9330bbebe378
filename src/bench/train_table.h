/* The training table: one row per variant, with tokens per second, memory against the plan, the part of the
 * machine's limit, and a peer's tokens per second in the same run. */
#ifndef WEFT_BENCH_TRAIN_TABLE_H
#define WEFT_BENCH_TRAIN_TABLE_H

#include "bench/variants.h"

typedef struct {
    bench_config_source source;
    const char *variants; /* names with commas; NULL: the shape's */
    const char *peer;     /* its command line: see bench/peer.h; NULL: none */
    int threads;          /* for both sides; 0: one a processor */
    int steps;            /* measured per row; 0: the shape's */
    double settle;        /* seconds of steps before those */
    bool profile;         /* print where each row's time goes, to standard error */
    FILE *table;          /* for people; NULL: none */
    FILE *json;           /* the same for a program; NULL: none */
} bench_train_options;

/* Measures and prints. `failed`: how many rows gave no numbers, or are not the peer's function by
 * their losses; each has said so in a line on standard error. An error is one of the input: no row
 * was measured. */
weft_status bench_train_table(const bench_train_options *options, int *failed);

#endif

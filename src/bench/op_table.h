/* The operations' table: each row's time, its rate, what part of the machine's own limit that is, and
 * a peer's time for the same function in the same run. */
#ifndef WEFT_BENCH_OP_TABLE_H
#define WEFT_BENCH_OP_TABLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    const char *rows; /* only rows with this word in their operation or name; NULL: all */
    const char *peer; /* its command line: see bench/peer.h; NULL: none */
    int threads;      /* for both sides; 0: one a processor */
    bool quick;       /* the main rows, under a minute */
    FILE *table;      /* for people; NULL: none */
    FILE *json;       /* the same for a program; NULL: none */
} bench_op_options;

/* Measures and prints. `differing`: how many rows are not the peer's function by their numbers. */
weft_status bench_op_table(const bench_op_options *options, int *differing);

#endif

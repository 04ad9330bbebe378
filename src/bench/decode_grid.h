/* The rows of generation's table, and the grid: rows of several models, chosen so that every model, variant, batch
 * and context occurs, and few enough that a GPU measures them beside another program in ten minutes. */
#pragma once

#include "bench/tables.h"

enum { BENCH_GRID_MAX = 50, BENCH_ROW_NAME = 128 };

typedef struct {
    const char *model; /* the grid's name for it; NULL: the table has one model */
    const bench_variant *variant;
    int64_t context, batch;
    weft_config config; /* CONTEXT is the longest of the rows of this model */
} bench_decode_row;

/* "gpt2-124m, dot, context 1024, batch 64". */
const char *bench_row_name(const bench_decode_row *r, char name[BENCH_ROW_NAME]);

/* Whether two rows are measured with the same weights. */
bool bench_row_same_model(const bench_decode_row *a, const bench_decode_row *b);

/* The grid's rows whose names have the word that was asked for. On a CPU, those that take seconds and not minutes.
 * `rows` has room for BENCH_GRID_MAX. */
weft_status bench_grid_list(const bench_options *o, bench_decode_row *rows, int *n);

/* Prints below the table what its rows, as they are in the JSON, say together: the geometric mean of the ratios to
 * the peer, the worst row and how many are behind. Gives the same as an object that the caller owns. */
json_t *bench_grid_summary(const json_t *rows, FILE *to);

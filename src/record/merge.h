/* Databases of one study that were made on several machines, or one after the other, as one. */
#ifndef WEFT_RECORD_MERGE_H
#define WEFT_RECORD_MERGE_H

#include "base/error.h"

#include <stdio.h>

typedef struct {
    int runs, done; /* of the joined study: all, and those that ended */
} weft_merged;

/* Joins the databases (or studies' folders) of `paths` into a new one: `out` if that ends on .db, else
 * out/runs.db. A run that ended in one of them is taken from there. Refused: a study of another
 * config, naming the first key that differs; a run that ended in two of them with different results;
 * an `out` that is there. `say` (NULL: nobody) gets one line per run: where it came from, and which commit
 * on which machine made it. */
weft_status weft_merge(const char *const *paths, int n, const char *out, FILE *say,
                       weft_merged *result);

#endif

/* Databases out of several places: a folder of runs that no study made as one, so that everything that is told
 * of a study can be told of them; and databases of one study that were made on several machines, or one after
 * the other, as one. */
#pragma once

#include "record/database.h"

#include <stdio.h>

/* A database, or a folder's runs.db, to read; where a folder has none, its runs are gathered in one that
 * has no name and goes when it is closed, and are not touched. Runs whose configs differ by seed and learning rate alone are one variant, named
 * after the first of them; each is compared with the first that has its dataset and tokenizer. WEFT_EINPUT where the folder
 * holds no run. */
weft_status weft_listing_open(const char *path, weft_database **out);

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

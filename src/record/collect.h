/* What a finished run left in its folder, into the database: metrics, events, result, in one
 * transaction. All but the time comes from metrics.jsonl and the weights, so a run that was cut off
 * and resumed, even after its last step, is told the same. */
#pragma once

#include "record/record.h"
#include "train/loop.h"

#include <jansson.h>

/* What the supervisor knows of an ended run. */
typedef struct {
    const char *folder; /* the run's, as it can be opened */
    bool diverged;
    const char *why; /* of a diverged one */
    double seconds;
    int64_t memory;
} weft_ending;

/* The object that `weft train --json` left in a file: how it ended ("done", "stopped", "diverged")
 * and why. Both empty: there is none. */
void weft_collect_end(const char *path, char end[16], char *why, size_t room);

/* Takes a run that is done or has diverged over into the database. *score is what STUDY_SCORE asks
 * for; NaN: none. */
weft_status weft_collect_run(weft_database *d, const weft_study *s, const weft_record_run *job,
                             const weft_ending *ending, double *score);

/* The step and loss of the last line of a metrics.jsonl that is still being written; 0 and NaN where
 * there is none. */
void weft_collect_progress(const char *folder, int64_t *step, double *loss);
/* The median of tokens_per_s over its lines but the first; NaN: there are none. */
double weft_collect_rate(const char *folder);

/* What a run's record says beside its results: the program, the machine and the data it was made
 * with, the device's memory, the loss by position. A flat JSON object of texts and numbers, which
 * `weft train --json` prints as `facts` and the run database keeps in a table of that name. `device` is in
 * words. A dataset's folder may have a manifest.json, as scripts/corpus writes it: its hash and its packages are
 * facts of every run on it. NULL: no memory. */
json_t *weft_facts_of_run(const weft_config *c, const char *device, const weft_train_result *r);

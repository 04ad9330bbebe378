/* A study in its database: made in one transaction before the first run, matched against the config
 * at every later start, and kept up to date run by run. */
#pragma once

#include "record/database.h"
#include "study/study.h"
#include "train/loop.h"

enum { WEFT_FOLDER_ROOM = 160 };

typedef enum {
    WEFT_RUN_WAITING,
    WEFT_RUN_RUNNING,
    WEFT_RUN_DONE,
    WEFT_RUN_FAILED,
    WEFT_RUN_DIVERGED
} weft_run_status;

/* One run of a study: a variant, a rate, a seed. */
typedef struct {
    int64_t run;
    int variant;
    double rate;
    int64_t seed;
    char folder[WEFT_FOLDER_ROOM]; /* within the study's: runs/VARIANT-lrR-seedN */
    weft_run_status status;
    bool begun; /* it was started before */
} weft_record_run;

/* Whether it came to its end: done or diverged. */
static inline bool weft_run_ended(const weft_record_run *run) {
    return run->status == WEFT_RUN_DONE || run->status == WEFT_RUN_DIVERGED;
}

typedef struct {
    weft_record_run *list; /* by their number: variant, then rate, then seed */
    int n;
} weft_record_runs;

/* The tables, the study, its variants and its runs, all waiting. No result depends on where it runs: the threads
 * and the device. */
weft_status weft_record_create(weft_database *d, const weft_study *s, int threads,
                               const char *device);
/* Whether the database is of this study: the first key that differs is named with both values. For
 * equal time, the measured seconds are taken from it and the iterations follow. Where the study has more
 * seeds or variants now, their runs join the database; so do those of a variant that could not be built and
 * now can. What a killed study left as running waits again. */
weft_status weft_record_match(weft_database *d, weft_study *s);

/* With STUDY_RATE_SEED: a variant whose rates have all been tried gets its runs with the study's seeds
 * at the best of them. With STUDY_COMPARE=minimum: one whose minimum is at the edge of its rates gets runs at another
 * beyond it. *added tells how many runs that made. */
weft_status weft_record_choose(weft_database *d, const weft_study *s, int *added);

/* "KEY=VALUE" lines of every option in their order, as a study keeps its config; the caller frees it. NULL: no memory. */
char *weft_record_config(const weft_config *c);
/* The value of an option in such lines; its default where a weft without it wrote them. */
void weft_record_value(const char *lines, const weft_option *o, char *value, size_t room);

/* The first option in which two such texts differ, with its values, and of which runs that were made depend; NULL:
 * there is none. `grown`: b may have more seeds, and more variants behind those of a. */
const weft_option *weft_record_difference(const char *a, const char *b, bool grown,
                                          char of_a[WEFT_TEXT_MAX], char of_b[WEFT_TEXT_MAX]);
/* A run's config as its row has it; the caller frees it. NULL: no memory. */
char *weft_record_config_json(const weft_config *c);

/* The study's runs. A row that this study would not have made (another number, rate, seed or folder) is refused. */
weft_status weft_record_read_runs(weft_database *d, const weft_study *s, weft_record_runs *out);
void weft_record_runs_free(weft_record_runs *j);
const char *weft_run_status_name(weft_run_status status);

/* A line of a metrics.jsonl. `metric` is the dataset's own, NaN: none; `replace`: it may take the place of one
 * of the same step. */
weft_status weft_record_line(weft_database *d, int64_t run, const json_t *line, double metric,
                             bool replace);
/* A run begins, anew or again. */
weft_status weft_record_start(weft_database *d, const weft_record_run *job);
/* A run was ended by a signal that the study passed on: it waits. `seconds` it ran are added. */
weft_status weft_record_stop(weft_database *d, const weft_record_run *job, double seconds);
/* A run failed; `kind` is failed or killed. */
weft_status weft_record_failure(weft_database *d, const weft_record_run *job, const char *kind,
                                const char *why, double seconds, int64_t memory);
/* `step`: of the run, or the number of a variant where the run is -1. -1: NULL. */
weft_status weft_record_event(weft_database *d, int64_t run, int64_t step, const char *kind,
                              const char *detail);

/* Variants that repeat another: bit for bit the same, or not. Compares every ended run of a repeating variant
 * with the run it repeats, of the same rate and seed: the files of weights byte for byte, and every row of
 * metrics. The outcome takes the place of the last one in the database, as an event `equal` or `unequal` of the
 * repeating run; `unequal` says what differs first. `folder` is the study's. */
typedef struct {
    int equal, unequal;
} weft_repeats;
weft_status weft_repeats_check(weft_database *d, const weft_study *s, const char *folder,
                               weft_repeats *out);

/* What a finished run left in its folder, into the database: metrics, events, result, in one
 * transaction. All but the time comes from metrics.jsonl and the weights, so a run that was cut off
 * and resumed, even after its last step, is told the same. */

/* What the supervisor knows of an ended run. */
typedef struct {
    const char *folder;   /* the run's, as it can be opened */
    const json_t *result; /* what `weft train --json` printed; NULL: nothing */
    bool diverged;
    const char *why; /* of a diverged one */
    double seconds;
    int64_t memory;
} weft_ending;

/* Takes a run that is done or has diverged over into the database. *score is what STUDY_SCORE asks for; NaN: none. */
weft_status weft_collect_run(weft_database *d, const weft_study *s, const weft_record_run *job,
                             const weft_ending *ending, double *score);

/* The median of tokens_per_s over the lines of a metrics.jsonl but the first; NaN: there are none. */
double weft_collect_rate(const char *folder);

/* What a run's record says beside its results: the program, the machine and the data it was made with, the device's
 * memory, the loss by position. A flat JSON object of texts and numbers, which `weft train --json` prints as `facts`
 * and the run database keeps in a table of that name. `device` is in words. A dataset's folder may have a
 * manifest.json, as scripts/corpus writes it: its hash and its packages are facts of every run on it. NULL: no memory. */
json_t *weft_facts_of_run(const weft_config *c, const char *device, const weft_train_result *r);

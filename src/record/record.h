/* A study in its database: made in one transaction before the first run, matched against the config
 * at every later start, and kept up to date run by run. */
#ifndef WEFT_RECORD_RECORD_H
#define WEFT_RECORD_RECORD_H

#include "record/database.h"
#include "study/study.h"

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

typedef struct {
    weft_record_run *list; /* by their number: variant, then rate, then seed */
    int n;
} weft_record_runs;

/* Where the study runs: what the database says of it and no result depends on. */
typedef struct {
    int threads;
    const char *device;
} weft_study_place;

/* The tables, the study, its variants and its runs, all waiting. */
weft_status weft_record_create(weft_database *d, const weft_study *s,
                               const weft_study_place *place);
/* Whether the database is of this study: the first key that differs is named with both values. For
 * equal time, the measured seconds are taken from it and the iterations follow. Where the study has more
 * seeds now, their runs join the database. */
weft_status weft_record_match(weft_database *d, weft_study *s);
/* After a match: what a killed study left as running waits again; a variant that could not be built and
 * now can gets its runs. */
weft_status weft_record_renew(weft_database *d, const weft_study *s);

/* With STUDY_RATE_SEED: a variant whose rates have all been tried gets its runs with the study's seeds
 * at the best of them. *added tells how many runs that made. */
weft_status weft_record_choose(weft_database *d, const weft_study *s, int *added);

/* The value of an option in the "KEY=VALUE" lines of a study; its default where a weft without it wrote
 * them. */
void weft_record_value(const char *lines, const weft_option *o, char *value, size_t room);

/* Whether no run that was made depends on an option: a study goes on where it is another. */
bool weft_record_may_change(const weft_option *o);

/* The study's runs. A row that this study would not have made (another number, rate, seed or folder)
 * is refused. */
weft_status weft_record_read_runs(weft_database *d, const weft_study *s, weft_record_runs *out);
void weft_record_runs_free(weft_record_runs *j);
const char *weft_run_status_name(weft_run_status status);

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

#endif

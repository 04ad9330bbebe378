/* Running a study: a process per run, some at a time, until all are ended or somebody asks to stop. */
#pragma once

#include "record/record.h"
#include "study/study.h"

typedef struct {
    const char *out;      /* the study's folder; made where it is not */
    const bool *variants; /* which are run; NULL: all */
    int jobs;             /* runs at a time */
    /* [jobs] The number of the GPU that each takes; NULL: they take what a run alone would. */
    const char *const *gpus;
    int threads;       /* of the machine: each run gets its share, at least one */
    double peak_flops; /* for the runs' mfu; 0: none */
    const char *device;
    const char *restart; /* failed runs that begin anew (folder.h); NULL: none */
    /* After so long what runs is stopped, to go on another time; 0: no limit. */
    double seconds;
    /* Called once when nothing stands in the way of the first run; NULL: nothing is. */
    void (*begins)(const weft_study *s);
} weft_study_options;

typedef struct {
    int runs; /* of the chosen variants */
    int done, diverged, failed, waiting;
    int errors; /* chosen variants that cannot be built */
    int signal; /* the one that ended it; 0: none */
    bool late;  /* it ended because its time was up */
    weft_repeats repeats;
    char why[WEFT_STUDY_LINE]; /* one line on what is not done; empty: all is */
} weft_study_result;

/* Runs what is not done or diverged yet. The study's counts follow from its database where there is
 * one; one of another config is refused and left as it is. SIGINT and SIGTERM are the caller's to
 * install (train/stop.h); the first is handed on to the runs, which save and leave. An error (no
 * room, a database that cannot be written) ends the runs in the same way. */
weft_status weft_study_run(weft_study *s, const weft_study_options *options,
                           weft_study_result *out);

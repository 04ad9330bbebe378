/* Running a study: a process per run, some at a time, until all are ended or somebody asks to stop. */
#pragma once

#include "record/record.h"

#include <sys/types.h>

typedef struct {
    const char *out;      /* the study's folder; made where it is not */
    const bool *variants; /* which are run; NULL: all */
    int jobs;             /* runs at a time */
    /* [jobs] The number of the GPU that each takes; NULL: they take what a run alone would. */
    const char *const *gpus;
    int threads;       /* of the machine: each run gets its share, at least one */
    double peak_flops; /* for the runs' mfu; 0: none */
    const char *device;
    const char *restart; /* failed runs that begin anew (weft_restart); NULL: none */
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

/* One `weft train` in a process of its own: this same program, started anew for a config in a folder; and
 * measuring how long an iteration takes.
 *
 * The child leads a process group, so a Ctrl-C at the terminal reaches the study alone, which hands
 * it on once. Where the system can, a child whose study is killed is killed with it. */

enum { WEFT_MEASURE_ITERS = 6, WEFT_MEASURE_MOST = 250 };

typedef struct {
    int threads;
    double peak_flops; /* 0: no mfu */
    bool save_last;    /* a checkpoint whatever SAVE_CHECKPOINT says */
    const char *from;  /* a checkpoint to start from; NULL or empty: none */
    const char *gpu;   /* the number of its GPU; NULL: as for this process */
} weft_launch_options;

/* Makes the folder, writes its `config` and starts the process: standard output to result.json,
 * standard error to the end of `log`. */
weft_status weft_launch(const weft_config *c, const char *folder,
                        const weft_launch_options *options, pid_t *pid);

/* How a process ended. */
typedef struct {
    int status;     /* its exit status; 128 + the signal that ended it */
    int signal;     /* 0: none */
    int64_t memory; /* most resident bytes */
} weft_process_end;

/* Whether it ended; `wait`: waits for that. */
bool weft_process_ended(pid_t pid, bool wait, weft_process_end *end);

/* The last line of a log that is not blank, without `weft train: ` and without `folder: ` before
 * it; empty where there is none. */
void weft_process_last_line(const char *log, const char *folder, char *line, size_t room);

/* Seconds an iteration of every variant that can be built, each in a process of its own, into the
 * study's variants (equal time). Folders are made in `folder`/measure and removed. A signal that asks
 * to stop ends it with an error. */
weft_status weft_measure_variants(weft_study *s, const char *folder, int threads);

/* Sleeps for a moment that grows with how long the wait has been: 5 ms to a quarter second. */
void weft_pause(double waited);

/* A study by Slurm: an array of jobs, one for each variant, and a job after them that gathers.
 *
 *     DIR/slurm/variants, array.sh, gather.sh  what was submitted
 *     DIR/parts/VARIANT                        each job's own study, of that variant alone
 *     DIR/runs.db, report.html, report.md      all of them, made by the last job
 *
 * Jobs share nothing but the file system. The same command again continues what is not done. */

typedef struct {
    const char *out;      /* DIR; made where it is not */
    const bool *variants; /* which; NULL: all */
    /* Of `weft study` in each job, but for --variants, --out, --threads; they end on NULL. */
    const char *const *words;
    const char *more;         /* further options of sbatch, as a shell reads them; NULL: none */
    int cpus;                 /* of a job */
    const weft_backend *host; /* whose workspaces count in a job's memory */
    bool gpu;                 /* it needs one */
} weft_slurm_options;

typedef struct {
    int jobs;                   /* of the array */
    char array[32], gather[32]; /* their numbers */
} weft_slurm_jobs;

/* Submits. Memory is asked for by what the largest variant needs. WEFT_EMISSING: there is no sbatch. */
weft_status weft_slurm_submit(const weft_study *s, const weft_slurm_options *options,
                              weft_slurm_jobs *out);

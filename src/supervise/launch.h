/* One `weft train` in a process of its own: this same program, started anew for a config in a folder; and
 * measuring how long an iteration takes.
 *
 * The child leads a process group, so a Ctrl-C at the terminal reaches the study alone, which hands
 * it on once. Where the system can, a child whose study is killed is killed with it. */
#pragma once

#include "study/study.h"

#include <sys/types.h>

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

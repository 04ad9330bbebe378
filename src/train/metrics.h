/* What a run says of itself as it goes: RUN/metrics.jsonl, a line a logged step, and the same
 * numbers in an event file for TensorBoard. */
#pragma once

#include "train/optimizer.h"

typedef struct weft_metrics weft_metrics;

typedef struct {
    int64_t step; /* steps done, this one included */
    weft_loss_parts parts;
    weft_step_events events; /* of the optimizer in this step */
    int64_t skipped;         /* steps left out so far */
    double rate;             /* the schedule's learning rate */
    double tokens_per_s;     /* since the last line; evaluation and saving not counted */
    double mfu;              /* part of the machine's product rate that was used; 0: unknown */
    bool evaluated;
    double val_loss;
    const char *metric; /* the dataset's own; NULL: none */
    double metric_value;
} weft_metrics_row;

/* Holds the run's folder until the close: fails where another process trains into it. */
weft_status weft_metrics_hold(const char *run, weft_metrics **out);
/* Before the close, where no run comes of it: takes its file away, unless it has a line or a config beside it. */
void weft_metrics_withdraw(weft_metrics *m);
/* The step and losses of the last whole line of RUN/metrics.jsonl, which may still be written; 0 and NaN where there is
 * none. */
void weft_metrics_last(const char *run, int64_t *step, weft_loss_parts *out);
/* Opens the files of a run that has done `step` steps: lines of later ones, which a kill left
 * behind, are cut off. Where other lines are damaged, the file is set aside, what is good in it stays,
 * and a warning names it, as it names steps that are missing though a line was due at `every` so many
 * (0: unknown). */
weft_status weft_metrics_start(weft_metrics *m, int64_t step, int64_t every);
/* What was added is on the disk after this. */
weft_status weft_metrics_sync(weft_metrics *m);
/* A value that is not finite is null in the line and left out of the event file. */
weft_status weft_metrics_add(weft_metrics *m, const weft_metrics_row *row);
void weft_metrics_close(weft_metrics *m);
WEFT_ENDED_BY(weft_metrics_close, weft_metrics)

/* The lines of such a file (samples.jsonl is another) as they are found: which may stay, and what is
 * missing. */
typedef struct {
    int64_t bytes;     /* of the lines before the first that does not stay */
    int64_t last;      /* step of the last line that stays; 0: none */
    int64_t bad;       /* lines that are damaged; a torn one at the end is none of them */
    int64_t bad_line;  /* number of the first, from 1, */
    int64_t bad_after; /* and the step before it */
    int64_t gap_from, gap_to, gaps; /* the first gap in steps, and how many there are */
} weft_lines;

/* Reads the file from its start. Lines of steps up to `step` stay. Each step that `every` divides has
 * a line; 0: that is not known. */
weft_status weft_lines_read(FILE *file, const char *path, int64_t step, int64_t every,
                            weft_lines *out);
/* Opens one that a run adds to. */
weft_status weft_lines_open(const char *path, FILE **out);
/* Cuts off the lines of later steps and a torn one. Where others are damaged, the file gets the name
 * PATH.damaged (or .damaged-2 and so on) and one with its good lines takes its place, with its lock; that
 * and what is missing is said. */
weft_status weft_lines_start(FILE **file, const char *path, int64_t step, int64_t every);
/* Adds a line at once, and releases the row; NULL: memory ran out when it was made. */
weft_status weft_lines_add(FILE *file, const char *path, json_t *row);

/* TensorBoard event files: curves that `tensorboard --logdir DIR` shows. */
typedef struct {
    FILE *file; /* NULL: not open; for whoever opened it to close */
    char path[WEFT_PATH_MAX];
} weft_events;

typedef struct {
    const char *tag; /* "loss/train" */
    double value;
} weft_scalar;

/* A new file in a folder, for the steps after `step`; its name is made from that step, so that the
 * files of a run and its resumptions are read in their order. Where step is not 0 a mark tells the
 * reader to forget what earlier files say of later steps. */
weft_status weft_events_open(const char *folder, int64_t step, weft_events *out);
/* Writes n values of one step. `time` is in seconds since 1970. */
weft_status weft_events_add(weft_events *e, int64_t step, double time, const weft_scalar *scalars,
                            int n);

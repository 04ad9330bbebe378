/* What a run says of itself as it goes: RUN/metrics.jsonl, a line a logged step, and the same
 * numbers in an event file for TensorBoard. */
#ifndef WEFT_TRAIN_METRICS_H
#define WEFT_TRAIN_METRICS_H

#include "model/session.h"
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
/* The last step that the lines there tell of; 0: none. */
weft_status weft_metrics_logged(weft_metrics *m, int64_t *step);
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

#endif

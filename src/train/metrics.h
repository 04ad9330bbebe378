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

/* Opens the files of a run that has done `step` steps: lines of later ones, which a kill left
 * behind, are cut off. Fails where another process writes there. */
weft_status weft_metrics_open(const char *run, int64_t step, weft_metrics **out);
/* A value that is not finite is null in the line and left out of the event file. */
weft_status weft_metrics_add(weft_metrics *m, const weft_metrics_row *row);
void weft_metrics_close(weft_metrics *m);

#endif

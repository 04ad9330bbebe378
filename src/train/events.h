/* TensorBoard event files: curves that `tensorboard --logdir DIR` shows. */
#ifndef WEFT_TRAIN_EVENTS_H
#define WEFT_TRAIN_EVENTS_H

#include "base/error.h"

#include <stdint.h>

typedef struct weft_events weft_events;

typedef struct {
    const char *tag; /* "loss/train" */
    double value;
} weft_scalar;

/* A new file in a folder, for the steps after `step`; its name is made from that step, so that the
 * files of a run and its resumptions are read in their order. Where step is not 0 a mark tells the
 * reader to forget what earlier files say of later steps. */
weft_status weft_events_open(const char *folder, int64_t step, weft_events **out);
/* Writes n values of one step. `time` is in seconds since 1970. */
weft_status weft_events_add(weft_events *e, int64_t step, double time, const weft_scalar *scalars,
                            int n);
/* What was added is on the disk after this. */
weft_status weft_events_sync(weft_events *e);
void weft_events_close(weft_events *e);

#endif

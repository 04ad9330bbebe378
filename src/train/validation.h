/* The held-out loss: cross-entropy alone, the mean over a set of sequences that never changes. */
#pragma once

#include "comm/comm.h"
#include "data/dataset.h"
#include "model/session.h"

typedef struct weft_validation weft_validation;

/* What one run of the graph found. */
typedef struct {
    double cross_entropy; /* mean over its targets, */
    int64_t targets;      /* and how many they are */
    int64_t right, asked; /* of the dataset's metric */
} weft_run_loss;

/* The mean over all targets of several runs, whose numbers of targets may differ; 0: they have none. */
double weft_run_losses_join(const weft_run_loss *runs, int64_t n);

/* For a model and a dataset, which must both outlive it: EVAL_SAMPLES batches of BATCH_SIZE
 * sequences, in graph runs of MICRO_BATCH, which the ranks share; comm NULL: one rank. */
weft_status weft_validation_open(const weft_model *m, const weft_dataset *d,
                                 const weft_backend *backend, weft_pool *pool, weft_comm *comm,
                                 weft_validation **out);
void weft_validation_close(weft_validation *v);

/* The loss, and the part of what the dataset's metric scores that the model's first choice got
 * right (NaN where it has none). */
weft_status weft_validation_run(weft_validation *v, double *loss, double *metric);

/* The mean bytes of text that a target of that set stands for. */
weft_status weft_validation_bytes(const weft_validation *v, const weft_tokenizer *t, double *out);

/* The loss of the tokens at positions first .. last - 1 alone, in the same sequences. */
typedef struct {
    int64_t first, last;
    double loss;
} weft_position_loss;

enum { WEFT_POSITION_RANGES_MAX = 32 };

/* By ranges that begin at 0, 1, 4, 16, 64 and 256, and double from there on. Returns how many
 * there are in `out`, which has room for WEFT_POSITION_RANGES_MAX. */
weft_status weft_validation_positions(weft_validation *v, weft_position_loss *out, int *count);

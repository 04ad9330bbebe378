/* A training step, from the batch to the updated weights.
 *
 * A step is a whole batch, BATCH_SIZE × GRADIENT_ACCUMULATION sequences, cut into micro-batches of
 * MICRO_BATCH that a graph runs over. It minimizes the loss of all its sequences, however they are cut:
 * every mean is over the whole step. Micro-batches are equally large, so that a mean over rows is the
 * mean of their means; but each has its own number of targets, so the sum of its cross-entropies is
 * divided by the step's number of targets, shared out evenly: an input of the graph. So MICRO_BATCH
 * decides about time and memory, and changes what is trained no more than the order of a sum does. */
#pragma once

#include "data/dataset.h"
#include "train/optimizer.h"

typedef struct weft_train_step weft_train_step;

typedef struct {
    weft_comm *comm; /* the ranks that share the step; NULL: one */
    /* Where batches come from, from this step on; NULL: weft_train_step_run is not called. */
    const weft_dataset *dataset;
    int64_t iteration;
    weft_form form; /* of the mechanisms that have two */
    bool poison;    /* tests: see weft_exec_options */
} weft_train_step_options;

/* For the optimizer's model at the config's micro-batch and block size. Binds the optimizer to the
 * gradients. The optimizer, the pool and the dataset must outlive it. */
weft_status weft_train_step_open(weft_optimizer *o, weft_pool *pool,
                                 const weft_train_step_options *options, weft_train_step **out);
void weft_train_step_close(weft_train_step *s);

typedef struct {
    weft_loss_parts parts;
    weft_step_events events; /* of the optimizer; norm NaN where it was not called */
    double rate;             /* the learning rate that was used */
    /* What is not finite, so that the step came to nothing: "weight h.0.ln_1.weight"; empty: it did not. */
    char culprit[160];
} weft_train_step_result;

/* The next step of the dataset's: number `iteration`, from 0. */
weft_status weft_train_step_run(weft_train_step *s, int64_t iteration, weft_train_step_result *out);

/* Its first part: the loss by parts of the whole step, and the gradients that the optimizer is bound to,
 * the same on every rank, from this rank's tokens and targets, both [its sequences, T]. run->sequence is
 * the place of the step's first sequence. */
weft_status weft_train_step_gradients(weft_train_step *s, const int32_t *tokens,
                                      const int32_t *targets, const weft_run *run,
                                      weft_loss_parts *out);
/* After that: where a weight's gradient lies in the backend's memory; data NULL: zeros. */
weft_gradient weft_train_step_gradient(const weft_train_step *s, int64_t weight);

/* The name of the first weight that is not finite; NULL: all are. */
weft_status weft_find_bad_weight(const weft_model *m, const char **name);

/* The sparsity that PRUNE has reached in a step: from 0 at PRUNE_START to PRUNE_SPARSITY at PRUNE_END along
 * a cubic, fast at first, in stairs of PRUNE_INTERVAL steps. */
double weft_schedule_sparsity(const weft_config *c, int64_t step);

/* The learning rate of step 0 .. STEPS - 1. Linear warm-up: step i of W has (i + 1)/W of
 * LEARNING_RATE, so the last of them has all of it. Then what LR_SCHEDULE says; a schedule that
 * falls reaches MIN_LR in the last step, and never rises where that is above LEARNING_RATE.
 * DECAY_LR=n: constant. */
double weft_schedule_rate(const weft_config *c, int64_t step);

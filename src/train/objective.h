/* What one optimizer step minimizes: the loss of all its BATCH_SIZE × GRADIENT_ACCUMULATION
 * sequences, and its gradient, however they are cut into micro-batches.
 *
 * Every mean is over the whole step. Micro-batches are equally large, so that a mean over rows is the
 * mean of their means; but each has its own number of targets, so the sum of its cross-entropies is
 * divided by the step's number of targets, shared out evenly: an input of the graph.
 *
 * WsFFN's contrastive loss compares the contexts of all sequences with each other. With several
 * micro-batches a step has two phases for it:
 *
 *     1. forward of each, which leaves its contexts; then the loss of all contexts and its gradient
 *        at them (contrast.h)
 *     2. forward and backward of each, with that gradient given at its contexts
 *
 * Ranks share the micro-batches; the numbers of targets, the contexts, the losses and the gradients of
 * all of them are brought together in the order of the micro-batches, so that the number of ranks
 * changes not a bit.
 *
 * So MICRO_BATCH decides about time and memory, and changes what is trained no more than the order of
 * a sum does. Whether there are two phases follows from the config (weft_config_two_phases). */
#ifndef WEFT_TRAIN_OBJECTIVE_H
#define WEFT_TRAIN_OBJECTIVE_H

#include "comm/comm.h"
#include "train/optimizer.h"

typedef struct weft_objective weft_objective;

typedef struct {
    weft_comm *comm; /* the ranks that share the step; NULL: one */
    weft_form form;  /* of the mechanisms that have two */
    bool poison;     /* tests: see weft_exec_options */
} weft_objective_options;

/* For the optimizer's model at the config's micro-batch and block size. Binds the optimizer to the
 * gradients. The optimizer and the pool must outlive it. options NULL: all of them 0. */
weft_status weft_objective_open(weft_optimizer *o, weft_pool *pool,
                                const weft_objective_options *options, weft_objective **out);
void weft_objective_close(weft_objective *o);

/* The sequences of a step that are this rank's: groups of neighbours, each `step` after the one before. */
typedef struct {
    int64_t first, count, group, step;
} weft_share;
weft_share weft_objective_share(const weft_objective *o);

/* The loss by parts of the whole step, and the gradients that the optimizer is bound to, the same on
 * every rank, from this rank's tokens and targets, both [its sequences, T]. run->sequence is the place
 * of the step's first sequence. */
weft_status weft_objective_run(weft_objective *o, const int32_t *tokens, const int32_t *targets,
                               const weft_run *run, weft_loss_parts *out);

/* After a run: where a weight's gradient lies in the backend's memory; data NULL: zeros. */
weft_gradient weft_objective_gradient(const weft_objective *o, int64_t weight);
/* After a run: the name of the first weight with a gradient that is not finite; NULL: all are. */
const char *weft_objective_find_bad(const weft_objective *o);

#endif

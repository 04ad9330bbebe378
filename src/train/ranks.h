/* Ranks that train one model: that they are at one, and that they begin from the same weights. */
#ifndef WEFT_TRAIN_RANKS_H
#define WEFT_TRAIN_RANKS_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "train/checkpoint.h"

/* Every rank must have rank 0's program, config and data; else all of them fail with a line that says
 * which rank has what. */
weft_status weft_ranks_check(weft_comm *c, const weft_config *config, const weft_dataset *d);

/* Rank 0's weights, optimizer and state to all: only rank 0 reads checkpoints, so only its machine
 * needs the run's folder. */
weft_status weft_ranks_share(weft_comm *c, weft_model *m, weft_optimizer *o,
                             weft_train_state *state);

#endif

/* The learning rate of each step. */
#ifndef WEFT_TRAIN_SCHEDULE_H
#define WEFT_TRAIN_SCHEDULE_H

#include "config/config.h"

/* The rate of step 0 .. STEPS - 1. Linear warm-up: step i of W has (i + 1)/W of
 * LEARNING_RATE, so the last of them has all of it. Then what LR_SCHEDULE says; a schedule that
 * falls reaches MIN_LR in the last step, and never rises where that is above LEARNING_RATE.
 * DECAY_LR=n: constant. */
double weft_schedule_rate(const weft_config *c, int64_t step);

#endif

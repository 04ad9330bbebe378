/* Training on a device that is lost while a checkpoint is written. */
#ifndef WEFT_TESTS_LOST_COPIES_H
#define WEFT_TESTS_LOST_COPIES_H

#include "core/exec.h"

/* Runs a config (train_run.h) again and again, each time with another one of the long copies to the host
 * failing: that of `backend` is then replaced by `fail`. Expects that the run fails with a line that
 * contains `why`, and that its checkpoints are those of a run that loses nothing. */
void lost_copies_check(const weft_backend *backend, weft_status (*fail)(void *to, int64_t bytes),
                       const char *config, const char *why);

#endif

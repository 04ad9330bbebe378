/* What a run's record says beside its results: the program, the machine and the data it was made
 * with, the device's memory, the loss by position. A flat JSON object of texts and numbers, which
 * `weft train --json` prints as `facts` and the run database keeps in a table of that name. */
#ifndef WEFT_RECORD_FACTS_H
#define WEFT_RECORD_FACTS_H

#include "train/loop.h"

#include <jansson.h>

/* `device` in words. NULL: no memory. */
json_t *weft_facts_of_run(const weft_config *c, const char *device, const weft_train_result *r);

#endif

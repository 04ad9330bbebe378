/* A model that breaks at one token: its row of the embedding is not numbers. The model must have a head of
 * its own, or every logit's row would have one that is none. */
#ifndef WEFT_TESTS_POISON_H
#define WEFT_TESTS_POISON_H

#include "model/model.h"

void poison_token(weft_model *m, int32_t token, float with);
/* The same of a checkpoint, with NaN. */
void poison_checkpoint(const char *folder, int32_t token);

#endif

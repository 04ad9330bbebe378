/* Which runs of a study keep their weights (STUDY_WEIGHTS). */
#ifndef WEFT_RECORD_WEIGHTS_H
#define WEFT_RECORD_WEIGHTS_H

#include "record/record.h"

/* Whether a run's weights stay once it is done. Those of a variant that repeats another, and of that
 * other, stay in any case: their bits are compared. */
bool weft_weights_stay(const weft_study *s, const weft_record_run *job);

/* Removes the checkpoints of a run that is done. What is not weft's stays. */
weft_status weft_weights_remove(const char *folder);

#endif

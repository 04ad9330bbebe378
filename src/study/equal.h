/* What the variants of a study have in common (STUDY_EQUAL). The first variant is the measure: it stays
 * as it is configured, and the others are fitted to it.
 *
 *     iters        nothing to do
 *     tokens       iterations so that all see as many tokens
 *     flops        iterations so that all do as many nominal operations (weft plan's)
 *     time         iterations so that all take as long, by seconds an iteration measured before
 *     parameters   N_FFN so that all have as many parameters, as near as its steps allow
 *
 * A number of iterations is rounded to the nearest, and at least 1. */
#ifndef WEFT_STUDY_EQUAL_H
#define WEFT_STUDY_EQUAL_H

#include "study/study.h"

/* Before the accounts are made: parameters. */
weft_status weft_equal_widths(weft_study *s);
/* After they are made: tokens and flops; for iters as configured, for time as configured in the
 * first variant and 0 in the others. */
weft_status weft_equal_iters(weft_study *s);
/* Time, once every buildable variant's seconds_per_iter is there. */
weft_status weft_equal_time(weft_study *s);

/* N_FFN must be a multiple of this for a config: 8, z-heads, and what per_head_scalar needs. */
int64_t weft_equal_unit(const weft_config *c);
/* A config's parameters, from its graph. */
weft_status weft_equal_parameters(const weft_config *c, int64_t *out);

#endif

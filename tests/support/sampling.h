/* The CPU with runs that sample tokens (core/decoding.h): each is run when it is started, so that what
 * surrounds such runs is tested without a GPU. */
#ifndef WEFT_TESTS_SAMPLING_H
#define WEFT_TESTS_SAMPLING_H

#include "core/decoding.h"
#include "generate/decoder.h"

const weft_backend *sampling_backend(void);
/* Rows of a run, at most; WEFT_FEW_ROWS at first, up to which a row's bits are those it has alone. So many are
 * read of a prompt at once then; with more, blocks are. */
void sampling_set_rows(int64_t rows);

/* Runs of two rows for each of SAMPLING_RULES slots, each by rules of its own: the tokens are those that the
 * host draws from the logits. The decoder has as many slots, with pages for 16 tokens each. */
enum { SAMPLING_RULES = 15 };
void sampling_check_draws(const char *name, weft_decoder *d, int64_t vocab);

/* The nth run from now on ends with an error; 0: none does. */
void sampling_fail(int nth);

/* Draws are left to the host, or not. */
void sampling_leave_draws(bool off);

#endif

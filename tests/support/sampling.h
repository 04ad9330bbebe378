/* The CPU with runs that sample tokens (core/decoding.h): each is run when it is started, so that what
 * surrounds such runs is tested without a GPU. */
#ifndef WEFT_TESTS_SAMPLING_H
#define WEFT_TESTS_SAMPLING_H

#include "core/exec.h"

const weft_backend *sampling_backend(void);

/* The nth run from now on ends with an error; 0: none does. */
void sampling_fail(int nth);

#endif

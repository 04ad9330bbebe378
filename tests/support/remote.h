/* A device without one: the CPU's kernels over memory that only upload and download may touch. Runs are
 * over at once, but are said to be done part by part, as a GPU's are; what is put into a queue is done
 * when it is waited for, and not before. Whoever reads too early reads something else. */
#ifndef WEFT_TESTS_REMOTE_H
#define WEFT_TESTS_REMOTE_H

#include "core/exec.h"

const weft_backend *remote_backend(void);
/* Copies to the host that were asked for while a run was said to be under way, and all others. */
int64_t remote_early_copies(void);
int64_t remote_late_copies(void);

/* The n-th watched run from now on fails when all of it is done. */
void remote_fail(int n);

#endif

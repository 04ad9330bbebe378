/* The CPU with runs that pick tokens (ops/pick.h): each is run when it is started, so that what surrounds
 * such runs is tested without a GPU. */
#ifndef WEFT_TESTS_PICKING_H
#define WEFT_TESTS_PICKING_H

#include "core/exec.h"

const weft_backend *picking_backend(void);

/* The nth run from now on ends with an error; 0: none does. */
void picking_fail(int nth);

#endif

/* The self-check: each block of the system, small, on this machine. */
#pragma once

#include "core/exec.h"

typedef enum {
    WEFT_VERIFY_SHAPES,
    WEFT_VERIFY_FORWARD,
    WEFT_VERIFY_GRADIENTS,
    WEFT_VERIFY_CAUSALITY,
    WEFT_VERIFY_CHECKS
} weft_verify_check;

/* "shapes", "forward", "gradients", "causality". */
const char *weft_verify_check_name(weft_verify_check check);

/* The blocks that can be verified, by number; `what` says in a few words what the block is. */
int weft_verify_count(void);
const char *weft_verify_name(int block);
const char *weft_verify_what(int block);

/* One check of one block. Passed: WEFT_OK. Failed: another status, and why in
 * weft_error_message(). */
weft_status weft_verify_run(int block, weft_verify_check check, const weft_backend *backend,
                            weft_pool *pool);

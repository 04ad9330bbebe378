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
extern const char *const weft_verify_check_names[WEFT_VERIFY_CHECKS];

/* The blocks that can be verified: a name, in a few words what it is, and what makes it: KEY=VALUE with
 * blanks between. */
typedef struct {
    const char *name, *what, *overrides;
} weft_verify_block;
extern const weft_verify_block weft_verify_blocks[];
extern const int weft_verify_count;

/* One check of one block. Passed: WEFT_OK. Failed: another status, and why in weft_error_message(). */
weft_status weft_verify_run(int block, weft_verify_check check, const weft_backend *backend,
                            weft_pool *pool);

/* Errors as values: a status is returned, its message waits in weft_error_message(). Nearly every file has
 * this header by way of others, and with it scope.h and those of the C library that nearly every file wants. */
#pragma once

#include "base/scope.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/weft.h>

/* Sets the calling thread's message and returns `status`, so that a failing function ends on
 *     return WEFT_BAD_INPUT("linear: ...", ...);
 * The message is one line: what, where, and what to do. */
weft_status weft_fail(weft_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What the user said, or a file holds, cannot be used. */
#define WEFT_BAD_INPUT(...) weft_fail(WEFT_EINPUT, __VA_ARGS__)
/* "WHO: no memory". */
weft_status weft_no_memory(const char *who);

/* The end of a function that made something: hands over the pointer at `at`, which is then NULL. */
static inline weft_status weft_hand(void *at, void *out) {
    void *made = weft_steal(at);
    memcpy(out, &made, sizeof made);
    return WEFT_OK;
}

/* How long an array is. */
#define WEFT_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Leaves the current function with the status of a failed call. */
#define WEFT_TRY(call)                                                                             \
    do {                                                                                           \
        weft_status try_status_ = (call);                                                          \
        if (try_status_ != WEFT_OK) return try_status_;                                            \
    } while (0)

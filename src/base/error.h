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

/* A new variable: room for so many of a type, zeroed, freed with its scope; one object, ended by close_at
 * (WEFT_ENDED_BY); and room where there is a pointer, which whoever owns that frees. Where there is no memory
 * they leave the function with that message. */
#define WEFT_ROOM(type, name, count, ...)                                                          \
    WEFT_AUTO_FREE type *name = calloc((size_t)(count), sizeof *name);                             \
    WEFT_TRY(name ? WEFT_OK : weft_fail(WEFT_ENOMEM, __VA_ARGS__))
#define WEFT_NEW(type, name, close, ...)                                                           \
    WEFT_AUTO(close##_at) type *name = calloc(1, sizeof *name);                                    \
    WEFT_TRY(name ? WEFT_OK : weft_fail(WEFT_ENOMEM, __VA_ARGS__))
#define WEFT_ROOM_AT(at, count, ...)                                                               \
    WEFT_TRY(((at) = calloc((size_t)(count), sizeof *(at))) ? WEFT_OK                              \
                                                            : weft_fail(WEFT_ENOMEM, __VA_ARGS__))

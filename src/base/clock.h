/* The one clock, and signs of life. */
#pragma once

#include <stdatomic.h>
#include <time.h>

/* Seconds that only go forward. */
static inline double weft_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Signs of life of the thread that works, for whoever watches whether it hangs (comm/comm.h). The
 * executor gives one with every node, the pool with every run, and files with every block that is read
 * or written; other work that takes seconds should too. */
extern atomic_uint_least64_t weft_beats;

static inline void weft_beat(void) {
    atomic_fetch_add_explicit(&weft_beats, 1, memory_order_relaxed);
}

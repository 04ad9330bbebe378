/* By what one thread wakes another, without a lock: a thread that is stopped, at whatever instruction, keeps
 * the other from nothing.
 *
 * Whoever listens first says so, then looks at what it waits for, then sleeps. Whoever changes that rings
 * afterwards; both by sequentially consistent atomics, so that one of them sees the other. A bell may ring
 * without need: the listener looks again. */
#ifndef WEFT_COMM_BELL_H
#define WEFT_COMM_BELL_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    sem_t rung;
    atomic_bool heard;
} weft_bell;

void weft_bell_open(weft_bell *b);
void weft_bell_close(weft_bell *b);
void weft_bell_ring(weft_bell *b);
void weft_bell_listen(weft_bell *b, bool listens);
/* Until it rings, a signal comes, or so many seconds are over. */
void weft_bell_sleep(weft_bell *b, double seconds);

#endif

/* A semaphore that is posted only where somebody listens. */
#include "comm/bell.h"

#include <time.h>

void weft_bell_open(weft_bell *b) {
    sem_init(&b->rung, 0, 0);
    atomic_store(&b->heard, false);
}

void weft_bell_close(weft_bell *b) {
    sem_destroy(&b->rung);
}

void weft_bell_ring(weft_bell *b) {
    if (atomic_load(&b->heard)) sem_post(&b->rung);
}

void weft_bell_listen(weft_bell *b, bool listens) {
    atomic_store(&b->heard, listens);
}

void weft_bell_sleep(weft_bell *b, double seconds) {
    struct timespec until;
    time_t whole = (time_t)seconds;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += whole;
    until.tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    sem_timedwait(&b->rung, &until);
}

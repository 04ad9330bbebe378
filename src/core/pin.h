/* Where the threads of a pool run.
 *
 * A worker that is held to its core or its node finds there what it wrote before. What is gained on a
 * machine with one node is little, and it can cost much: two programs whose workers are held to the
 * same cores leave the others idle. So, unless WEFT_PIN says otherwise, workers are held only where
 * memory is near or far, which is on more than one node; only to a node, among whose processors the
 * system still chooses; and only if the pool has a thread for every core, as a program does that has
 * the machine for itself.
 *
 * The caller's thread is never held: it is the host program's, and the threads and processes that it
 * starts would be held with it. */
#ifndef WEFT_CORE_PIN_H
#define WEFT_CORE_PIN_H

#include "core/topology.h"

typedef enum {
    WEFT_PIN_AUTO,  /* WEFT_PIN is not set: to nodes, as above */
    WEFT_PIN_NONE,  /* none */
    WEFT_PIN_NODES, /* nodes: with fewer threads than cores too */
    WEFT_PIN_CORES /* cores: if there is a thread for every core; taskset gives a process its own */
} weft_pin;

/* What WEFT_PIN says. */
weft_status weft_pin_wish(weft_pin *out);

/* What is done for so many threads: WEFT_PIN_NONE, _NODES or _CORES. None are held where there are
 * more of them than processors. */
weft_pin weft_pin_choose(weft_pin wish, int threads, const weft_topology *t);

/* The processors for a thread: those of its core, or of its node. */
void weft_pin_place(weft_pin pin, int thread, const weft_topology *t, cpu_set_t *out);

#endif

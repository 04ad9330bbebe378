/* The processors that this process may use, and how they lie: which share a core, which a memory.
 *
 * A node is a part of the machine with processors and memory of its own, mostly a socket; another
 * node's memory is farther away. What Linux says under /sys/devices/system is read once; where it
 * says nothing, every processor is a core and all are on one node. */
#pragma once

#include "base/error.h"

#include <sched.h>

#define WEFT_TOPOLOGY_ROOT "/sys/devices/system"

typedef struct {
    int cpu;     /* its number */
    int core;    /* the least number of this core that may be used */
    int sibling; /* how many of the core come before it */
    int node;    /* 0 .. nodes - 1: of the nodes with processors that may be used */
    int rank;    /* its place among those of its node with the same `sibling` */
} weft_processor;

typedef struct {
    int n, cores, nodes;
    /* In the order in which threads take them: one of each core before a second one, the nodes in
     * turn. */
    weft_processor *list;
} weft_topology;

/* Reads the processors of `allowed` under `root`; freed by weft_topology_free. */
weft_status weft_topology_read(const char *root, const cpu_set_t *allowed, weft_topology *out);
void weft_topology_free(weft_topology *t);

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

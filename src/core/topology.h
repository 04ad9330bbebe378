/* The processors that this process may use, and how they lie: which share a core, which a memory.
 *
 * A node is a part of the machine with processors and memory of its own, mostly a socket; another
 * node's memory is farther away. What Linux says under /sys/devices/system is read once; where it
 * says nothing, every processor is a core and all are on one node. */
#ifndef WEFT_CORE_TOPOLOGY_H
#define WEFT_CORE_TOPOLOGY_H

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

#endif

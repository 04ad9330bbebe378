/* Processors as if they lay on two nodes, on any machine. */
#ifndef WEFT_TESTS_TWO_NODES_H
#define WEFT_TESTS_TWO_NODES_H

#include "core/pool.h"

/* A pool whose threads 0, 2, 4, ... are on node 0 and the others on node 1. The processors are this
 * process's own, more than once where there are fewer. */
weft_status two_nodes_pool(int threads, weft_pool **out);

#endif

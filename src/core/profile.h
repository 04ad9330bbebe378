/* Where a run's time goes, by operation; with WEFT_PROFILE=shapes by operation and shapes. With
 * WEFT_PROFILE in the environment every executor, and every function on the CPU, keeps the time of each
 * node and prints a table to standard error when it is destroyed; without it a run asks nothing of the
 * clock. */
#ifndef WEFT_CORE_PROFILE_H
#define WEFT_CORE_PROFILE_H

#include "core/graph.h"

typedef struct weft_profile weft_profile;

/* NULL unless WEFT_PROFILE is set and not empty (or there is no memory for it: a profile is no reason
 * to fail). The graph must outlive it. */
weft_profile *weft_profile_create(const weft_graph *g);
/* Prints, and frees. NULL is nothing. */
void weft_profile_destroy(weft_profile *p);

void weft_profile_add(weft_profile *p, int64_t node, double seconds);
/* A run is over. */
void weft_profile_end_run(weft_profile *p);

#endif

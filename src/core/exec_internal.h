/* The executor's own fields, and its profile: exec.c makes one that owns its memory, function.c those
 * of calls over memory that is another's. */
#pragma once

#include "core/exec.h"

/* Where a run's time goes, by operation; with WEFT_PROFILE=shapes by operation and shapes. With
 * WEFT_PROFILE in the environment every executor, and every function on the CPU, keeps the time of each
 * node and prints a table to standard error when it is destroyed; without it a run asks nothing of the
 * clock. */
typedef struct weft_profile weft_profile;

/* NULL unless WEFT_PROFILE is set and not empty (or there is no memory for it: a profile is no reason
 * to fail). The graph must outlive it. */
weft_profile *weft_profile_create(const weft_graph *g);
/* Prints, and frees. NULL is nothing. */
void weft_profile_destroy(weft_profile *p);

void weft_profile_add(weft_profile *p, int64_t node, double seconds);
/* A run is over. */
void weft_profile_end_run(weft_profile *p);

struct weft_exec {
    const weft_graph *g;
    const weft_backend *backend;
    weft_pool *pool;
    weft_plan *plan;
    unsigned char *arena; /* where the plan's workspaces begin */
    int64_t n_nodes, n_tensors;
    void **data;                 /* [tensors] */
    const weft_kernel **kernels; /* [nodes] */
    weft_run run;
    bool poison;
    void (*after)(void *context, const weft_node *n);
    void *after_context;
    int64_t *parts; /* [n_parts]: weft_exec_cut; NULL: one */
    int n_parts;
    weft_profile *profile; /* NULL: not asked for */
    void *state;           /* the backend's own; NULL: it has none */
};

/* A backend's kernel for each node, or the error that names the one it has not. */
weft_status weft_exec_find_kernels(const weft_graph *g, const weft_backend *backend,
                                   const weft_kernel **kernels);

/* Nodes first to last - 1, timed for x->profile; with the last node of the graph a run is over. */
weft_status weft_exec_walk_timed(weft_exec *x, int64_t first, int64_t last);

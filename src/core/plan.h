/* The memory plan: where in one arena each tensor of a graph lies.
 *
 * Every lifetime is known from the list of nodes: a temporary lives from the node that makes it to
 * the last that reads it. Tensors whose lives do not overlap share bytes; an operation that allows
 * it writes its output over an input that nobody reads again; a node's workspace lives for that
 * node alone. The arena's size is the exact peak, known before a run. */
#pragma once

#include "core/graph.h"

typedef struct weft_backend weft_backend;

enum { WEFT_ARENA_ALIGN = 64 };

/* Bytes rounded up to a multiple of WEFT_ARENA_ALIGN, so that what follows is aligned too. */
static inline int64_t weft_arena_bytes(int64_t bytes) {
    return (bytes + WEFT_ARENA_ALIGN - 1) / WEFT_ARENA_ALIGN * WEFT_ARENA_ALIGN;
}

typedef struct {
    bool no_reuse;   /* every tensor its own bytes: the reference the tests compare with */
    bool no_inplace; /* no output over an input */
    /* Nodes for which a temporary keeps its bytes behind the last that reads it: so many, and one more, a
     * backend can then run beside each other. */
    int64_t linger;
    int64_t memory_limit; /* refuse a larger arena, in bytes; 0: what the machine has */
    bool cut;             /* between forward and backward: see below */
} weft_plan_options;

/* A plan may be cut between forward and backward pass, to be run in two calls. It then has three
 * regions in place of one arena: what the forward pass makes and the backward pass reads, which the
 * latter does not write to; and a workspace for each of them. All inputs, parameters and states, and
 * whatever is kept, must be bound. A plan that is not cut has the first region only, its arena. */
enum { WEFT_REGION_SAVED, WEFT_REGION_FORWARD, WEFT_REGION_BACKWARD, WEFT_REGIONS };

typedef struct {
    int64_t n_nodes, n_tensors; /* of the graph that it is for */
    int64_t arena_bytes;        /* all of it */
    int64_t region_bytes[WEFT_REGIONS];
    int64_t workspace_bytes;  /* the largest workspace of a node */
    int64_t saved_bytes;      /* made in the forward pass and read in the backward pass */
    int64_t peak_bytes;       /* the most that is alive at one node: no layout can be smaller */
    int64_t peak_kept_bytes;  /* of what is read after the run, gradients and losses, alive then */
    int64_t peak_saved_bytes; /* of saved_bytes, what is alive then */
    int64_t *offset;          /* [tensors] in its region; -1: bound by the caller, or unused */
    uint8_t *region;          /* [tensors] WEFT_REGION_... */
    int64_t *work_offset; /* [nodes] of the node's workspace; -1: none. Of a plan that is cut, in
                                   its pass's workspace */
    int64_t *work_bytes;  /* [nodes] */
} weft_plan;

/* For program.c, which every plan comes from. `bound[id]` true: the caller brings the memory of that
 * tensor; NULL: of none. Without a backend no kernel has a workspace. */
weft_status weft_plan_create(const weft_graph *g, const weft_backend *backend, int threads,
                             const bool *bound, const weft_plan_options *options, weft_plan **out);
void weft_plan_destroy(weft_plan *plan);
WEFT_ENDED_BY(weft_plan_destroy, weft_plan)

/* Which places of an arena are taken when: the lowest place that is free for a while, found in time
 * that hardly grows with how many were taken before. A model of a thousand layers has a hundred
 * thousand buffers, and each that asks all others makes that squared. */
typedef struct weft_space weft_space;

/* Moments are counted from 0. */
weft_status weft_space_open(int64_t moments, weft_space **out);
void weft_space_close(weft_space *s);

/* Takes the lowest `bytes` in a row that nobody has in any moment from `first` to `last`. */
weft_status weft_space_take(weft_space *s, int64_t first, int64_t last, int64_t bytes,
                            int64_t *offset);

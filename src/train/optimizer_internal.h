/* The optimizer's own struct, for the files that it is made of: optimizer.c, and optimizer_shard.c with
 * what is more to do where ranks share its state. */
#pragma once

#include "core/safetensors.h"
#include "train/optimizer.h"

enum { WEFT_STATE_NAME = 160 };

/* The kinds of state of a weight, in the order of their names ("m", "mask", ...), and behind them the controlling
 * state, whose name ("state") comes before "v". */
enum {
    WEFT_STATE_M,
    WEFT_STATE_MASK, /* i8, 0: pruned */
    WEFT_STATE_MASTER,
    WEFT_STATE_START, /* the weight before the first step */
    WEFT_STATE_V,
    WEFT_STATE_V_MAX,
    WEFT_STATE_CONTROL
};

typedef struct {
    int kind;
    int64_t weight;
    char name[WEFT_STATE_NAME];
} weft_state_key;

/* A stretch of a weight and what belongs to it, in the host's memory; NULL: not there. */
typedef struct {
    weft_stretch part;
    void *of[WEFT_STATE_CONTROL];
} weft_optimizer_slot;

struct weft_optimizer {
    weft_model *model;
    const weft_backend *backend;
    weft_pool *pool;
    weft_dtype dtype; /* of the state: f32, or f64 beside f64 */
    weft_adam_options options;
    bool amsgrad;
    bool pruned; /* masks were made for the step to come or the last one */

    weft_weight *state; /* [n_state], by name; without data where it is shared */
    int64_t n_state;
    weft_state_key *keys; /* [n_state]: what each is of */
    void *memory;
    weft_mirror *mirror; /* of the memory */
    int64_t seen;        /* changes of the model's weights by the host that the masters know of */
    weft_optimizer_slot *slots; /* [n_slots]: one a weight, or one a stretch of this rank's */
    int64_t n_slots;
    void *control_state;

    weft_gradient *bound; /* [n_slots]: the gradients, where some are bound */
    weft_graph *graph;    /* NULL: no gradients are bound */
    weft_exec *exec;
    weft_tensor *lr, *control, *cut;
    uint64_t mark;

    /* Where ranks share it. */
    weft_comm *comm; /* NULL: this one has all */
    weft_partition shards;
    weft_graph *norm_graph; /* the own chunks' part of the norm; NULL: none has a gradient */
    weft_exec *norm_exec;
    weft_tensor *norm_parts, *all_parts;
    double *parts;   /* [chunks]: rank after rank, as they are gathered */
    double *ordered; /* [chunks with a gradient], in the order of the row */
    int64_t *order;  /* [chunks with a gradient]: place in `parts` */
    int64_t n_ordered;
    int *counts, *begins; /* [ranks]: bytes of `parts` */
    int64_t cut_of_all;
    weft_safetensors *file; /* rank 0's: read, not given out yet */
};

/* A graph under construction, and where its tensors lie. */
typedef struct {
    weft_optimizer *o;
    weft_graph *graph;
    weft_binding *bindings;
    int64_t n;
} weft_optimizer_binder;

/* A tensor over given memory of the backend; NULL for NULL memory. */
weft_tensor *weft_optimizer_tensor(weft_optimizer_binder *b, weft_role role, const char *kind,
                                   const weft_stretch *part, weft_dtype dtype, void *data);

/* Of a shared optimizer: a tensor of the state, whole in rank 0's `tensor`, to its owners or, with `collect`,
 * from them. */
weft_status weft_optimizer_move(const weft_optimizer *o, int64_t index, unsigned char *tensor,
                                bool collect);
/* A weight's tensor of a kind, as its place in the list; -1: it has none. */
int64_t weft_optimizer_state_of(const weft_optimizer *o, int kind, int64_t weight);
/* Numbers of the controlling state. */
weft_status weft_optimizer_numbers(const weft_optimizer *o, int first, int n, double *out);

weft_status weft_optimizer_shard_open(weft_optimizer *o);
/* The graph of the own norm; `gradients` says which weights have one. */
weft_status weft_optimizer_shard_bind(weft_optimizer *o, const weft_gradient *gradients);
/* Around its run: gathers the parts of the norm; gives the new weights to all. */
weft_status weft_optimizer_shard_before(weft_optimizer *o);
weft_status weft_optimizer_shard_after(weft_optimizer *o);

/* A tensor of the state, whole, on rank 0: see weft_safetensor. */
typedef struct {
    const weft_optimizer *o;
    void *tensor; /* the last one */
} weft_optimizer_collector;
weft_status weft_optimizer_collect(void *context, const weft_safetensor *t, const void **data);

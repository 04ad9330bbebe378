/* What a config costs, before anything runs: parameters, operations, memory, cache. */
#pragma once

#include "core/exec.h"
#include "model/transformer.h"

enum { WEFT_PARTS_MAX = 16 };

typedef struct {
    const char *name; /* "attention" */
    int64_t parameters;
} weft_part;

typedef struct {
    int64_t parameters;
    weft_part parts[WEFT_PARTS_MAX]; /* in the order of the model */
    int n_parts;

    /* Floating-point operations per token at the config's block size. Nominal: of the formulas as
     * written, a causal score counted once, backward twice forward. */
    double forward_flops, backward_flops;
    /* Forward by part: products with its own weights, and scores and sums over tokens. */
    double attention_flops, ffn_flops, reciprocal_flops, z_flops, head_flops;
    /* What the graph that is built does: cheap forms and recomputation included. */
    double built_flops;
    /* Of it, the first of a step's two phases, where it has two (train/step.c): another forward
     * pass. */
    double first_phase_flops;

    /* Bytes of a training step at the config's micro-batch, by what they hold at its fullest
     * moment: gradients are made while activations go, so neither is there in full. */
    int64_t weights_bytes, optimizer_bytes;
    int64_t gradients_bytes;
    int64_t activations_bytes; /* made forward, read backward */
    int64_t workspace_bytes;   /* the rest of the arena: scratch, and what lives in passing */
    int64_t training_bytes;    /* all of it */

    /* Numbers a token that one more layer keeps for the backward pass. */
    double kept_per_token_layer;

    /* Generation: bytes of cache per token, of the first layer and of the model. */
    int64_t cache_bytes_layer, cache_bytes_token;
    /* And of a sequence, whatever its length: running sums, last queries. */
    int64_t cache_bytes_sequence;
} weft_account;

/* `backend` and `threads` only for workspaces; NULL: without any. */
weft_status weft_account_make(const weft_config *c, const weft_backend *backend, int threads,
                              weft_account *out);

/* Whether a training run fits into a backend's memory. */
typedef struct {
    int64_t needed;      /* training_bytes, sums over micro-batches, and the held-out pass */
    int64_t there;       /* what the backend has now; 0: unknown, taken to fit */
    int64_t micro_batch; /* the largest MICRO_BATCH that would fit; 0: none */
    int64_t would_need;  /* with it */
} weft_fit;

/* `ranks` of them train together, and share what SHARD says. */
weft_status weft_account_fit(const weft_config *c, const weft_backend *backend, int threads,
                             int ranks, weft_fit *out);

/* MICRO_BATCH=-1 becomes a number: the largest that fits (0: the whole batch does; 1: none does). On the host, whose
 * memory is everybody's, into half of what is free. */
weft_status weft_config_cut_batch(weft_config *c, const weft_backend *backend, int threads,
                                  int ranks);

/* Bytes of one of several ranks in training, by what they hold. */
typedef struct {
    int64_t weights, optimizer;
    int64_t sums;  /* of gradients over micro-batches */
    int64_t arena; /* a micro-batch's gradients, activations and scratch, and the held-out pass */
    int64_t all;
} weft_rank_bytes;
weft_status weft_account_rank(const weft_config *c, const weft_backend *backend, int threads,
                              int ranks, weft_rank_bytes *out);
/* WEFT_OK where it fits; else the error that says what is missing and which MICRO_BATCH would do. */
weft_status weft_fit_check(const weft_fit *fit, const weft_backend *backend);

/* Calls visit(to, n) for the nodes of a forward pass over one micro-batch, in order. */
weft_status weft_account_nodes(const weft_config *c, void (*visit)(void *to, const weft_node *n),
                               void *to);

/* The most sums that are on the stack at once while so many micro-batches are added (comm/share.h): an even one is
 * set on one sum for each of its ones. */
int weft_account_levels(int64_t parts);
/* Whether a step goes forward twice: see train/step.c. */
bool weft_config_two_phases(const weft_config *c);
/* What one graph run of a step is built for. */
weft_build weft_training_build(const weft_config *c);

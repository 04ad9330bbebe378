/* The whole model as a graph: one description, built for a shape and a purpose. */
#pragma once

#include "config/config.h"
#include "core/plan.h"
#include "ops/attention.h"

/* How a parameter starts. */
typedef enum {
    WEFT_START_NORMAL,   /* a: standard deviation */
    WEFT_START_UNIFORM,  /* a: bound */
    WEFT_START_CONSTANT, /* a: value */
    WEFT_START_BLOCKS /* square, block-diagonal, n blocks, uniform within (bound a), 0 elsewhere */
} weft_start;

typedef struct {
    weft_start start;
    double a;
    int64_t n;
    bool orthogonal; /* INIT=orthogonal applies: two-dimensional weights and embeddings */
} weft_init;

typedef struct {
    weft_tensor *tensor; /* its name is the checkpoint's */
    weft_init init;
    const char *part; /* for plans: "embedding", "attention", "feed-forward", ... */
} weft_parameter;

/* Whether a part's matrices lie between layers, so that both their sides grow with the width. */
bool weft_is_hidden(const char *part);

/* WsFFN's losses, MLA and the mechanisms of reciprocal.c have a direct form, as the formulas are
 * written, and a cheap one that never makes the large intermediate. Both are exact; the shape
 * decides. */
typedef enum { WEFT_FORM_BY_SHAPE, WEFT_FORM_DIRECT, WEFT_FORM_CHEAP } weft_form;

/* How a graph that has only a part of a step's batch takes WsFFN's contrastive loss, which compares
 * all of its sequences (train/step.c). */
typedef enum {
    WEFT_CONTRAST_HERE,  /* over the graph's own sequences */
    WEFT_CONTRAST_MEANS, /* `contexts`, which the loss compares, are all that is made */
    WEFT_CONTRAST_GIVEN  /* by its gradient at the contexts, the input `d_contexts` */
} weft_contrast_form;

typedef struct {
    int64_t batch, time; /* B, T; T may be less than the block size */
    weft_dtype dtype;
    bool train;     /* auxiliary losses and dropout; the caller asks for backward apart */
    bool logits;    /* make and keep the logits [B, T, V] */
    bool recompute; /* make each layer's activations again in the backward pass */
    weft_form form;
    bool given_routes; /* cross-token gathers by inputs "h.I.routes.index" and ".weight" [B, T, T]
                            in place of attention's weights, and with LATENT_DETACH "h.I.latent" is
                            c^K as the feed-forward reads it: tests hold them constant so */
    bool scores;       /* keep what raw scores are made from */
    bool moments;      /* keep the sums of x xᵀ over what each layer's attention reads */
    bool inside;       /* keep what the layers' mechanisms made: weft_layer_inside */
    /* How rows attend to other tokens: see builder.h. NULL: whole sequences from their first token. */
    const struct weft_attend *attend;
    void *attend_data;
    bool rows_alone; /* each row of x has the bits that it has without the others */
    bool counted;    /* cross-entropy is the sum over targets divided by the input `count` */
    weft_contrast_form contrast;
} weft_build;

/* What a layer's raw scores are made from; kept where weft_build.scores asks for it. */
typedef struct {
    weft_score score; /* its tensors are kept; heads and kv_heads are set also where not packed */
    int64_t dqk;
    bool distance; /* the query's norm belongs to the score */
    /* Of Gaussians: columns of a query that are means, those behind them deviations; 0: they are none. */
    int64_t means;
} weft_layer_scores;

/* What a layer's mechanisms made; kept where weft_build.inside asks for it. NULL where the layer has
 * nothing of the sort. */
typedef struct {
    weft_tensor *gate;     /* [B, T, H] or [B, 1, H]: of this layer's heads, before the sigmoid */
    weft_tensor *latent;   /* c^K [B, T, L] with what it received, before rotation */
    weft_tensor *latent_v; /* c^V [B, T, L]; NULL: it is c^K */
    weft_tensor *rho_q, *rho_k; /* [B, T, H, 2D]: the second half are raw deviations; for scores
                                    whose queries and keys hold none */
    weft_tensor *normed;        /* [B, T, E], what the feed-forward reads */
} weft_layer_inside;

/* A built model. Tensors belong to the graph. */
typedef struct {
    weft_graph *graph;
    weft_tensor *tokens;  /* [B, T] i32 input */
    weft_tensor *targets; /* [B, T] i32 input; -1: ignored */
    weft_tensor *loss;    /* one number: the sum of the parts below; all kept. With
                             WEFT_CONTRAST_GIVEN it has ⟨contexts, d_contexts⟩ for the contrastive
                             part; with WEFT_CONTRAST_MEANS there is none */
    weft_tensor *cross_entropy, *logits_z;
    weft_tensor *aux_z, *aux_contrastive; /* NULL where there is none */
    weft_tensor *count;                   /* [] of the statistics' type; NULL: not asked for */
    weft_tensor *contexts, *d_contexts;   /* [layers, B · n_head, z]; NULL where not asked for */
    weft_tensor *logits;                  /* [B, T, V] if asked for */
    weft_layer_scores *scores;            /* [layers] if asked for */
    weft_tensor **moments;                /* [layers] of [E, E] if asked for */
    weft_layer_inside *inside;            /* [layers] if asked for */
    double attention_flops, ffn_flops;    /* forward, of all layers, as they were built */
    double reciprocal_flops, z_flops;     /* likewise; ffn_flops has z_flops too */
    weft_parameter *parameters;           /* in the order they are made */
    int64_t n_parameters, cap_parameters;
} weft_model_graph;

/* Builds the forward pass and the loss. On an error nothing is left behind. */
weft_status weft_model_build(const weft_config *c, const weft_build *build, weft_model_graph *out);
/* One sequence in training, in the direct form: what parameters and operations are counted on. */
weft_status weft_model_build_nominal(const weft_config *c, weft_model_graph *out);
void weft_model_graph_destroy(weft_model_graph *m);

/* Builds it and makes its program (core/program.h), the weights outside: what a session runs and what
 * an estimate counts. `grads` appends the gradient of the loss. memory_limit: as in
 * weft_plan_options. */
weft_status weft_model_program(const weft_config *c, const weft_build *build, bool grads,
                               const weft_backend *backend, int threads, int64_t memory_limit,
                               weft_model_graph *out, weft_plan **plan);

/* A part of a model by itself: one layer, or its attention or feed-forward alone, for others to put
 * into models of their own. */

typedef enum { WEFT_PART_ATTENTION, WEFT_PART_FFN, WEFT_PART_LAYER } weft_part_kind;

enum { WEFT_PART_TENSORS = 8 };

typedef struct {
    const char *name;
    weft_tensor *tensor;
} weft_part_tensor;

typedef struct {
    weft_model_graph model; /* its parameters; "h.0." begins their names */
    weft_part_tensor inputs[WEFT_PART_TENSORS], outputs[WEFT_PART_TENSORS];
    int n_inputs, n_outputs;
} weft_model_part;

typedef struct {
    weft_part_kind kind;
    bool first;    /* there is no layer before, which would send a gate and a latent */
    bool gradient; /* the inputs that can have one do */
    bool one_loss; /* auxiliary losses are one output, their sum */
} weft_part_form;

/* Builds it into a graph that is the caller's. weft/graph.h (weft_block_open_part) tells which inputs
 * and outputs there are. */
weft_status weft_model_build_part(const weft_config *c, const weft_build *build,
                                  const weft_part_form *form, weft_graph *g, weft_model_part *out);
void weft_model_part_free(weft_model_part *part);

/* From the description of a graph to its memory plan.
 *
 *     describe        whoever knows what is computed builds the forward pass (graph.h)
 *     fuse            rules make fewer, larger nodes of it (rewrite.h)
 *     differentiate   the gradient's nodes are appended (weft_graph_backward)
 *     fuse            and fused
 *     plan            every tensor has its place (plan.h)
 *
 * Every graph of a whole model takes all of these (weft_model_program): in training, in evaluation and
 * in the estimates of `weft plan`, which so describe the plan that will run. An executor (exec.h) runs
 * the plan it is given.
 *
 * Others leave stages out. Blocks, and the optimizer's step over the caller's memory, are fused and
 * differentiated here and planned by function.h, which cuts the plan between the passes. Generation
 * fuses its graph, changes its weights' types and lets the executor plan it. So do, without fusing,
 * the graphs that no rule applies to: the optimizer, sums of gradients, the contrastive loss over a
 * whole step, products of weights that are formed once. docs/internals/engine.md has the table. */
#ifndef WEFT_CORE_PROGRAM_H
#define WEFT_CORE_PROGRAM_H

#include "core/plan.h"
#include "core/rewrite.h"

/* The core knows no operation: src/ops/fuse.c has the rules. */
extern const weft_rule weft_fusion_rules[];

/* What is wanted of a graph beside what it makes itself. */
typedef struct {
    /* The gradient of Σ ⟨losses[i], dlosses[i]⟩: see weft_graph_backward_many. A NULL among dlosses,
     * or for all of them, is 1. n_losses 0: no gradient. */
    int n_losses;
    weft_tensor *const *losses;
    weft_tensor *const *dlosses;
    /* Roles whose memory is the caller's, as a sum of 1 << WEFT_ROLE_...: an executor then wants it
     * bound. 0: all of it is in the arena. */
    unsigned outside;
    weft_plan_options plan;
} weft_program_options;

/* Fuses, differentiates, fuses: the first three steps, for whoever goes on building. */
weft_status weft_program_differentiate(weft_graph *g, const weft_program_options *options);

/* All of it, for a backend and so many threads. The plan is the caller's: to look at, or to hand to
 * weft_exec_create. */
weft_status weft_program_make(weft_graph *g, const weft_backend *backend, int threads,
                              const weft_program_options *options, weft_plan **out);

#endif

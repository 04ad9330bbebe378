/* From the description of a graph to its memory plan.
 *
 *     describe        whoever knows what is computed builds the forward pass (graph.h)
 *     fuse            rules make fewer, larger nodes of it (rewrite.h)
 *     differentiate   the gradient's nodes are appended (weft_graph_backward)
 *     fuse            and fused
 *     plan            every tensor has its place (plan.h)
 *
 * Every plan is made by weft_program_make. Whole models take all of the stages (weft_model_program): in
 * training, in evaluation and in the estimates of `weft plan`, which so describe the plan that will run.
 * An executor (exec.h) runs the plan it is given, and asks for one where it is given none: then the graph
 * is complete and planned as it is. Blocks, and the optimizer's step over the caller's memory, are
 * differentiated first, and function.h asks for a plan that is cut between the passes.
 * docs/internals/engine.md has the table of who leaves out what, and why. */
#pragma once

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
    bool complete; /* plan the graph as it is: it is not changed */
    /* Roles whose memory is the caller's, as a sum of 1 << WEFT_ROLE_..., and such tensors by their ids,
     * or NULL: an executor then wants them bound. All else is in the arena. */
    unsigned outside;
    const bool *bound;
    weft_plan_options plan;
} weft_program_options;

/* Fuses, differentiates, fuses: the first three steps, for whoever goes on building. */
weft_status weft_program_differentiate(weft_graph *g, const weft_program_options *options);

/* All of it, for a backend and so many threads: the one way to a plan. It is the caller's: to look at, or
 * to hand to weft_exec_create. */
weft_status weft_program_make(weft_graph *g, const weft_backend *backend, int threads,
                              const weft_program_options *options, weft_plan **out);

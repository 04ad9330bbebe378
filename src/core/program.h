/* The way from a description to what runs, the same for everyone: training, evaluation, generation,
 * the estimates of `weft plan`, and blocks that others run.
 *
 *     describe        whoever knows what is computed builds the forward pass (graph.h)
 *     fuse            rules make fewer, larger nodes of it (rewrite.h)
 *     differentiate   the gradient's nodes are appended (weft_graph_backward)
 *     fuse            and fused
 *     plan            every tensor has its place (plan.h)
 *
 * An executor (exec.h) then runs the plan it is given. As an estimate is made of the same plan, it
 * says what a run takes. */
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

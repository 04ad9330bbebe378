/* The steps, in their order. */
#include "core/program.h"

weft_status weft_program_differentiate(weft_graph *g, const weft_program_options *options) {
    WEFT_TRY(weft_graph_rewrite(g, weft_fusion_rules));
    if (options->n_losses == 0) return WEFT_OK;
    WEFT_TRY(weft_graph_backward_many(g, options->n_losses, options->losses, options->dlosses));
    return weft_graph_rewrite(g, weft_fusion_rules);
}

weft_status weft_program_make(weft_graph *g, const weft_backend *backend, int threads,
                              const weft_program_options *options, weft_plan **out) {
    *out = NULL;
    if (!options->complete) WEFT_TRY(weft_program_differentiate(g, options));
    int64_t tensors = weft_graph_tensor_count(g);
    WEFT_ROOM(bool, bound, tensors + 1, "plan: no memory");
    for (int64_t i = 0; i < tensors; i++)
        bound[i] = (options->bound && options->bound[i]) ||
                   ((options->outside >> weft_graph_tensor_at(g, i)->role) & 1u);
    return weft_plan_create(g, backend, threads, bound, &options->plan, out);
}

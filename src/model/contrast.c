/* A session that goes no further than the contexts, and a graph of the one loss over all of them. */
#include "model/contrast.h"

#include "core/program.h"
#include "model/builder.h"

/* The loss of all contexts and its gradient. */
typedef struct {
    weft_graph *graph;
    weft_tensor *x, *loss;
} loss_graph;

static void end_loss(loss_graph *loss) {
    weft_graph_destroy(loss->graph);
}

struct weft_contrast {
    weft_session means;
    loss_graph whole_loss;
    weft_exec *exec;
    int64_t parts, layers;
    size_t stride;             /* bytes of one micro-batch's contexts in one layer */
    unsigned char *parts_made; /* [parts, layers, stride]: the contexts, then their gradient */
    unsigned char *whole;      /* [layers, parts, stride]: the same as the loss takes them */
};

static weft_build means_of(const weft_build *build) {
    weft_build means = *build;
    means.contrast = WEFT_CONTRAST_MEANS;
    means.recompute = false;
    return means;
}

weft_tensor *weft_contrast_loss(weft_graph *g, const weft_config *c, weft_tensor *rows) {
    int64_t group = c->wsffn_positive == WEFT_POSITIVE_SELF ? 0 : c->wsffn_n_head;
    return weft_infonce(g, rows, group, c->wsffn_tau, c->wsffn_lambda_c);
}

/* `part` are the contexts of one micro-batch. */
static weft_status build_loss(const weft_config *c, const weft_tensor *part, int64_t parts,
                              loss_graph *out) {
    WEFT_TRY(weft_graph_create(&out->graph));
    out->x = weft_new_tensor(out->graph, WEFT_ROLE_INPUT, "contexts", part->dtype, part->shape[0],
                             part->shape[1] * parts, part->shape[2]);
    if (out->x) out->x->needs_grad = true;
    out->loss = weft_keep(weft_contrast_loss(out->graph, c, out->x));
    WEFT_TRY(weft_graph_status(out->graph));
    weft_tensor *dloss = weft_fill(out->graph, out->loss->dtype, 0, NULL, (double)parts);
    return weft_graph_backward(out->graph, out->loss, dloss);
}

WEFT_ENDED_BY(weft_contrast_close, weft_contrast)
weft_status weft_contrast_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                               const weft_build *build, int64_t parts, weft_contrast **out) {
    *out = NULL;
    WEFT_NEW(weft_contrast, c, weft_contrast_close, "training: no memory");
    c->parts = parts;
    weft_build means = means_of(build);
    WEFT_TRY(weft_session_open(m, backend, pool, &means, false, false, &c->means));
    const weft_tensor *part = c->means.graph.contexts;
    size_t bytes = (size_t)weft_tensor_bytes(part);
    c->layers = part->shape[0];
    c->stride = bytes / (size_t)c->layers;
    c->parts_made = malloc(bytes * (size_t)parts);
    c->whole = malloc(bytes * (size_t)parts);
    if (!c->parts_made || !c->whole)
        return weft_fail(WEFT_ENOMEM, "training: no memory for the contexts of %lld micro-batches",
                         (long long)parts);
    WEFT_TRY(build_loss(&m->config, part, parts, &c->whole_loss));
    WEFT_TRY(weft_exec_create(c->whole_loss.graph, backend, pool, NULL, &c->exec));
    return weft_hand(&c, out);
}

void weft_contrast_close(weft_contrast *c) {
    if (!c) return;
    weft_exec_destroy(c->exec);
    end_loss(&c->whole_loss);
    weft_session_close(&c->means);
    WEFT_FREE(c->parts_made, c->whole, c);
}

static unsigned char *made_part(const weft_contrast *c, int64_t part) {
    return c->parts_made + (size_t)(part * c->layers) * c->stride;
}

/* Between the order of micro-batches and that of layers. */
static void reorder(weft_contrast *c, bool to_layers) {
    for (int64_t part = 0; part < c->parts; part++) {
        for (int64_t l = 0; l < c->layers; l++) {
            unsigned char *a = made_part(c, part) + (size_t)l * c->stride;
            unsigned char *b = c->whole + (size_t)(l * c->parts + part) * c->stride;
            memcpy(to_layers ? b : a, to_layers ? a : b, c->stride);
        }
    }
}

weft_status weft_contrast_add(weft_contrast *c, int64_t part, const int32_t *tokens,
                              const weft_run *run) {
    WEFT_TRY(weft_session_run(&c->means, tokens, NULL, run));
    return weft_exec_read(c->means.exec, c->means.graph.contexts, made_part(c, part));
}

void *weft_contrast_contexts(weft_contrast *c, int64_t *stride) {
    *stride = c->layers * (int64_t)c->stride;
    return c->parts_made;
}

weft_status weft_contrast_compare(weft_contrast *c, double *loss) {
    double raw; /* room for either type */
    const loss_graph *g = &c->whole_loss;
    reorder(c, true);
    WEFT_TRY(weft_exec_write(c->exec, g->x, c->whole));
    WEFT_TRY(weft_exec_run(c->exec, NULL));
    WEFT_TRY(weft_exec_read(c->exec, g->loss, &raw));
    weft_weight_read(&(weft_weight){.dtype = g->loss->dtype, .count = 1, .data = &raw}, loss);
    WEFT_TRY(weft_exec_read(c->exec, g->x->grad, c->whole));
    reorder(c, false);
    return WEFT_OK;
}

weft_status weft_contrast_give(weft_contrast *c, int64_t part, weft_session *to) {
    return weft_exec_write(to->exec, to->graph.d_contexts, made_part(c, part));
}

weft_status weft_contrast_account(const weft_config *c, const weft_backend *backend, int threads,
                                  const weft_build *build, int64_t parts, double *flops,
                                  int64_t *bytes) {
    weft_build means = means_of(build);
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
    WEFT_TRY(weft_model_program(c, &means, false, backend, threads, INT64_MAX, &m, &plan));
    *flops = flops_of(m.graph, 0, NULL) * (double)parts;
    *bytes = plan->arena_bytes;
    WEFT_AUTO(end_loss) loss_graph loss = {0};
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *second = NULL;
    weft_program_options options = {.complete = true, .plan = {.memory_limit = INT64_MAX}};
    WEFT_TRY(build_loss(c, m.contexts, parts, &loss));
    WEFT_TRY(weft_program_make(loss.graph, backend, threads, &options, &second));
    *flops += flops_of(loss.graph, 0, NULL);
    *bytes += second->arena_bytes;
    return WEFT_OK;
}

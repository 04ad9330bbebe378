/* Sessions: build, bind, run, read. */
#include "model/session.h"

#include <stdlib.h>
#include <string.h>

weft_status weft_session_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                              const weft_build *build, bool grads, bool poison, weft_session *out) {
    *out = (weft_session){.model = m, .backend = backend};
    weft_plan *plan;
    WEFT_TRY(weft_mirror_place(m->mirror, backend)); /* before the plan asks how much is free */
    WEFT_TRY(weft_model_program(&m->config, build, grads, backend, weft_pool_size(pool), 0,
                                &out->graph, &plan));
    out->bindings = weft_model_bind(m, backend, out->graph.graph);
    weft_exec_options options = {.planned = plan, .bindings = out->bindings, .poison = poison};
    weft_status status = WEFT_ENOMEM;
    if (out->bindings)
        status = weft_exec_create(out->graph.graph, backend, pool, &options, &out->exec);
    else
        weft_plan_destroy(plan);
    if (status != WEFT_OK) weft_session_close(out);
    return status;
}

void weft_session_close(weft_session *s) {
    weft_exec_destroy(s->exec);
    free(s->bindings);
    weft_model_graph_destroy(&s->graph);
    *s = (weft_session){0};
}

weft_status weft_session_run(weft_session *s, const int32_t *tokens, const int32_t *targets,
                             const weft_run *run) {
    WEFT_TRY(weft_exec_write(s->exec, s->graph.tokens, tokens));
    if (targets) WEFT_TRY(weft_exec_write(s->exec, s->graph.targets, targets));
    WEFT_TRY(weft_mirror_use(s->model->mirror, s->backend));
    return weft_exec_run(s->exec, run);
}

weft_status weft_session_values(const weft_session *s, const weft_tensor *t, int64_t n,
                                double *out) {
    if (!t) {
        memset(out, 0, (size_t)n * sizeof *out);
        return WEFT_OK;
    }
    if (weft_tensor_count(t) != n)
        return weft_fail(WEFT_EBUG, "session: %s has not %lld elements", weft_tensor_describe(t),
                         (long long)n);
    weft_weight view = {.dtype = t->dtype, .count = n};
    view.data = malloc((size_t)weft_tensor_bytes(t));
    if (!view.data) return weft_fail(WEFT_ENOMEM, "session: no memory to read a tensor");
    weft_status status = weft_exec_read(s->exec, t, view.data);
    if (status == WEFT_OK) weft_weight_read(&view, out);
    free(view.data);
    return status;
}

weft_status weft_session_losses(const weft_session *s, weft_loss_parts *out) {
    const weft_model_graph *m = &s->graph;
    WEFT_TRY(weft_session_values(s, m->loss, 1, &out->loss));
    WEFT_TRY(weft_session_values(s, m->cross_entropy, 1, &out->cross_entropy));
    WEFT_TRY(weft_session_values(s, m->aux_z, 1, &out->aux_z));
    WEFT_TRY(weft_session_values(s, m->aux_contrastive, 1, &out->aux_contrastive));
    return weft_session_values(s, m->logits_z, 1, &out->logits_z);
}

void weft_loss_parts_add(weft_loss_parts *sum, const weft_loss_parts *p, double weight) {
    sum->loss += weight * p->loss;
    sum->cross_entropy += weight * p->cross_entropy;
    sum->aux_z += weight * p->aux_z;
    sum->aux_contrastive += weight * p->aux_contrastive;
    sum->logits_z += weight * p->logits_z;
}

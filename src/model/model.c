/* The weights of a model: one block of memory, sorted by name. The list comes from building the
 * smallest graph of the config, so that names and shapes have one source. */
#include "model/model.h"

static int by_name(const void *a, const void *b) {
    return strcmp(((const weft_weight *)a)->name, ((const weft_weight *)b)->name);
}

weft_status weft_model_allocate(weft_model *m, weft_pool *pool) {
    m->memory = aligned_alloc(WEFT_ARENA_ALIGN, (size_t)m->memory_bytes);
    if (!m->memory)
        return weft_fail(WEFT_ENOMEM, "model: no memory for %lld bytes of weights",
                         (long long)m->memory_bytes);
    weft_pool_zero(pool, m->memory, m->memory_bytes);
    unsigned char *at = m->memory;
    for (int64_t i = 0; i < m->n_weights; i++) {
        m->weights[i].data = at;
        at += weft_arena_bytes(m->weights[i].bytes);
    }
    return weft_mirror_create(m->memory, m->memory_bytes, &m->mirror);
}

weft_status weft_model_describe(const weft_config *c, weft_dtype dtype, weft_model **out) {
    *out = NULL;
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph graph = {0};
    WEFT_TRY(weft_model_build(c, &(weft_build){.batch = 1, .time = 1, .dtype = dtype}, &graph));
    WEFT_NEW(weft_model, m, weft_model_destroy, "model: no memory");
    m->config = *c;
    m->dtype = dtype;
    size_t room = 0, at = 0;
    m->n_weights = graph.n_parameters;
    for (int64_t i = 0; i < m->n_weights; i++)
        room += strlen(graph.parameters[i].tensor->name) + 1;
    WEFT_ROOM_AT(m->weights, m->n_weights + 1, "model: no memory");
    WEFT_ROOM_AT(m->names, room + 1, "model: no memory");
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_parameter *p = &graph.parameters[i];
        const weft_tensor *t = p->tensor;
        size_t length = strlen(t->name) + 1;
        memcpy(m->names + at, t->name, length);
        weft_weight *w = &m->weights[i];
        *w = (weft_weight){.name = m->names + at,
                           .dtype = t->dtype,
                           .ndim = t->ndim,
                           .count = weft_tensor_count(t),
                           .bytes = weft_tensor_bytes(t),
                           .init = p->init,
                           .part = p->part};
        memcpy(w->shape, t->shape, sizeof w->shape);
        at += length;
        m->memory_bytes += weft_arena_bytes(w->bytes);
    }
    qsort(m->weights, (size_t)m->n_weights, sizeof *m->weights, by_name);
    return weft_hand(&m, out);
}

weft_status weft_model_create(const weft_config *c, weft_dtype dtype, weft_pool *pool,
                              weft_model **out) {
    WEFT_TRY(weft_model_describe(c, dtype, out));
    weft_status status = weft_model_allocate(*out, pool);
    if (status != WEFT_OK) weft_model_destroy(weft_steal(out));
    return status;
}

void weft_model_destroy(weft_model *m) {
    if (!m) return;
    weft_mirror_destroy(m->mirror);
    WEFT_FREE(m->weights, m->names, m->memory, m);
}

weft_weight *weft_model_find(const weft_model *m, const char *name) {
    weft_weight key = {.name = name};
    return bsearch(&key, m->weights, (size_t)m->n_weights, sizeof *m->weights, by_name);
}

weft_muon_parts weft_muon_matrices(const weft_config *c, const char *name, int ndim,
                                   const int64_t *shape) {
    weft_muon_parts out = {0};
    if (c->optimizer != WEFT_OPTIMIZER_MUON || strncmp(name, "h.", 2) != 0 || ndim < 2) return out;
    int64_t columns = shape[ndim - 1], rows = shape[ndim - 2], count = 1;
    for (int d = 0; d < ndim - 2; d++)
        count *= shape[d];
    out = (weft_muon_parts){1, {{0, count, rows, columns}}};
    if (!strstr(name, ".attn.qkv.weight")) return out;
    int64_t queries = c->n_head * weft_config_head_dim(c), keys = (rows - queries) / 2;
    out.part[0] = (weft_matrices){0, queries == keys ? 3 : 1, queries, columns};
    if (queries == keys) return out;
    out.part[out.n++] = (weft_matrices){queries * columns, 2, keys, columns};
    return out;
}

weft_muon_options weft_model_muon(const weft_config *c, const weft_backend *backend) {
    bool remote = backend && backend->remote; /* without a backend: as on the CPU */
    weft_muon_options o = weft_muon_defaults(WEFT_MUON_MOMENTUM, remote);
    if (remote && c->shard != WEFT_SHARD_NONE) o.together = 0;
    return o;
}

int64_t weft_model_parameter_count(const weft_model *m) {
    int64_t count = 0;
    for (int64_t i = 0; i < m->n_weights; i++)
        count += m->weights[i].count;
    return count;
}

weft_status weft_model_bind(const weft_model *m, const weft_backend *backend, const weft_graph *g,
                            weft_binding **out) {
    *out = NULL;
    WEFT_TRY(weft_mirror_place(m->mirror, backend));
    int64_t tensors = weft_graph_tensor_count(g), n = 0;
    WEFT_ROOM(weft_binding, bindings, tensors + 1, "model: no memory");
    for (int64_t i = 0; i < tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(g, i);
        if (t->role != WEFT_ROLE_PARAM || t->view_of) continue;
        const weft_weight *w = weft_model_find(m, t->name);
        if (!w || w->dtype != t->dtype || w->count != weft_tensor_count(t))
            return weft_fail(WEFT_EBUG, "model: the graph's parameter '%s' %s is not the model's",
                             t->name, weft_tensor_describe(t));
        bindings[n++] = (weft_binding){t, weft_mirror_at(m->mirror, backend, w->data)};
    }
    return weft_hand(&bindings, out);
}

static double number_at(const weft_weight *w, int64_t i) {
    return w->dtype == WEFT_F64    ? ((const double *)w->data)[i]
           : w->dtype == WEFT_BF16 ? (double)weft_bf16_to_float(((const uint16_t *)w->data)[i])
                                   : (double)((const float *)w->data)[i];
}

static void put_number(weft_weight *w, int64_t i, double value) {
    if (w->dtype == WEFT_F64)
        ((double *)w->data)[i] = value;
    else if (w->dtype == WEFT_BF16)
        ((uint16_t *)w->data)[i] = weft_float_to_bf16((float)value);
    else
        ((float *)w->data)[i] = (float)value;
}

void weft_weight_read(const weft_weight *w, double *out) {
    for (int64_t i = 0; i < w->count; i++)
        out[i] = number_at(w, i);
}

void weft_weight_write(weft_weight *w, const double *values) {
    for (int64_t i = 0; i < w->count; i++)
        put_number(w, i, values[i]);
}

void weft_weight_floats(const weft_weight *w, float *out) {
    for (int64_t i = 0; i < w->count; i++)
        out[i] = w->dtype == WEFT_F32    ? ((const float *)w->data)[i]
                 : w->dtype == WEFT_BF16 ? weft_bf16_to_float(((const uint16_t *)w->data)[i])
                                         : (float)((const double *)w->data)[i];
}

void weft_weight_scale(weft_weight *w, double factor) {
    for (int64_t i = 0; i < w->count; i++)
        put_number(w, i, number_at(w, i) * factor);
}

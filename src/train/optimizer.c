/* The optimizer's memory and its graph. The state is one block of named tensors; binding gradients
 * makes a graph of four operations over it, with Muon some for the matrices of a shape, and one that applies masks. It is made anew for each place
 * gradients come from, and a step only runs it. */
#include "train/optimizer.h"

#include "model/units.h"
#include "train/optimizer_internal.h"

#include <limits.h>
#include <math.h>

static weft_adam_options adam_options(const weft_config *c) {
    weft_adam_options o = {.beta1 = c->adam_beta1,
                           .beta2 = c->adam_beta2,
                           .eps = c->adam_eps,
                           .weight_decay = c->weight_decay,
                           .clip = c->grad_clip};
    if (c->optimizer != WEFT_OPTIMIZER_ADAMWSPAM) return o;
    o.spike_threshold = c->spam_spike_threshold;
    o.theta = c->spam_enable_clip ? c->spam_theta : 0;
    o.reset_interval = c->spam_periodic_reset ? c->spam_interval : 0;
    o.warmup_steps = c->spam_warmup ? c->spam_warmup_steps : 0;
    return o;
}

/* The matrices that Muon sees in a weight; it then has no v. */
static weft_muon_parts matrices_of(const weft_optimizer *o, int64_t weight) {
    const weft_weight *w = &o->model->weights[weight];
    return weft_muon_matrices(&o->model->config, w->name, w->ndim, w->shape);
}

static weft_dtype kind_dtype(const weft_optimizer *o, int kind) {
    return kind == WEFT_STATE_MASK ? WEFT_I8 : o->dtype;
}

/* Adds a tensor to the list; its memory follows when all are known. */
static weft_status list_state(weft_optimizer *o, int kind, const weft_weight *like) {
    static const char *const kinds[] = {"m", "mask", "master", "start", "v", "v_max", "state"};
    weft_dtype dtype = kind_dtype(o, kind);
    weft_state_key *key = &o->keys[o->n_state];
    char *name = key->name;
    int length = like->name ? snprintf(name, WEFT_STATE_NAME, "%s.%s", kinds[kind], like->name)
                            : snprintf(name, WEFT_STATE_NAME, "%s", kinds[kind]);
    key->kind = kind;
    key->weight = kind == WEFT_STATE_CONTROL ? 0 : like - o->model->weights;
    if (length >= WEFT_STATE_NAME)
        return weft_fail(WEFT_EBUG, "optimizer: the name of '%s' is too long", like->name);
    weft_weight *w = &o->state[o->n_state++];
    *w = (weft_weight){.name = name, .dtype = dtype, .ndim = like->ndim, .count = like->count};
    memcpy(w->shape, like->shape, sizeof w->shape);
    w->bytes = w->count * (int64_t)weft_dtype_size(dtype);
    return WEFT_OK;
}

static bool has_kind(const weft_optimizer *o, int kind, int64_t weight) {
    const weft_weight *w = &o->model->weights[weight];
    const weft_config *c = &o->model->config;
    bool masked = weft_weight_is_masked(c, w->name, w->ndim);
    const bool has[] = {true,
                        masked,
                        w->dtype == WEFT_BF16,
                        masked && c->prune == WEFT_PRUNING_MOVEMENT,
                        matrices_of(o, weight).n == 0,
                        o->amsgrad};
    return has[kind];
}

int64_t weft_optimizer_state_of(const weft_optimizer *o, int kind, int64_t weight) {
    for (int64_t i = 0; i < o->n_state; i++)
        if (o->keys[i].kind == kind && o->keys[i].weight == weight) return i;
    return -1;
}

/* Sets the slots' places in the memory from `at` on, and zeros them, or only counts the bytes where that is
 * NULL. A step goes through the weights in their order, in which the states of a kind lie. */
static int64_t place_slots(weft_optimizer *o, unsigned char *at) {
    int64_t bytes = 0, size = (int64_t)weft_dtype_size(o->dtype);
    for (int kind = 0; kind < WEFT_STATE_CONTROL; kind++) {
        int64_t begin = bytes, width = (int64_t)weft_dtype_size(kind_dtype(o, kind));
        for (int64_t i = 0; i < o->n_slots; i++) {
            if (!has_kind(o, kind, o->slots[i].part.weight)) continue;
            if (at) o->slots[i].of[kind] = at + bytes;
            bytes += weft_arena_bytes(o->slots[i].part.count * width);
        }
        if (at) weft_pool_zero(o->pool, at + begin, bytes - begin);
        if (at && kind == WEFT_STATE_MASK) memset(at + begin, 1, (size_t)(bytes - begin));
    }
    int64_t control = weft_arena_bytes(WEFT_ADAM_STATE * size);
    if (at) o->control_state = memset(at + bytes, 0, (size_t)control);
    return bytes + control;
}

WEFT_ENDED_BY(weft_optimizer_destroy, weft_optimizer)
weft_status weft_optimizer_create(weft_model *m, const weft_backend *backend, weft_pool *pool,
                                  weft_comm *comm, weft_optimizer **out) {
    *out = NULL;
    WEFT_NEW(weft_optimizer, o, weft_optimizer_destroy, "optimizer: no memory");
    *o = (weft_optimizer){.model = m,
                          .backend = backend,
                          .pool = pool,
                          .dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32,
                          .options = adam_options(&m->config),
                          .amsgrad = m->config.optimizer == WEFT_OPTIMIZER_ADAMWSPAM &&
                                     m->config.spam_amsgrad,
                          .comm = m->config.shard != WEFT_SHARD_NONE ? comm : NULL};
    int64_t most = m->n_weights * WEFT_STATE_CONTROL + 1;
    WEFT_ROOM_AT(o->state, most, "optimizer: no memory");
    WEFT_ROOM_AT(o->keys, most, "optimizer: no memory");
    weft_weight control = {.ndim = 1, .shape = {WEFT_ADAM_STATE}, .count = WEFT_ADAM_STATE};
    for (int kind = 0; kind < WEFT_STATE_CONTROL; kind++) {
        if (kind == WEFT_STATE_V) WEFT_TRY(list_state(o, WEFT_STATE_CONTROL, &control));
        for (int64_t i = 0; i < m->n_weights; i++)
            if (has_kind(o, kind, i)) WEFT_TRY(list_state(o, kind, &m->weights[i]));
    }
    if (o->comm) WEFT_TRY(weft_optimizer_shard_open(o));
    /* One slot a weight, or one for each stretch that this rank owns. */
    o->n_slots = o->comm ? weft_partition_owned(&o->shards, o->shards.rank, NULL) : m->n_weights;
    WEFT_ROOM(weft_stretch, parts, o->n_slots + 1, "optimizer: no memory");
    WEFT_ROOM_AT(o->slots, o->n_slots + 1, "optimizer: no memory");
    if (o->comm) weft_partition_owned(&o->shards, o->shards.rank, parts);
    for (int64_t i = 0; i < o->n_slots; i++)
        o->slots[i].part = o->comm ? parts[i] : (weft_stretch){i, 0, m->weights[i].count, 0};
    int64_t bytes = place_slots(o, NULL);
    o->memory = aligned_alloc(WEFT_ARENA_ALIGN, (size_t)bytes);
    if (!o->memory)
        return weft_fail(WEFT_ENOMEM, "optimizer: no memory for %lld bytes", (long long)bytes);
    place_slots(o, o->memory);
    for (int64_t i = 0; !o->comm && i < o->n_state; i++) {
        const weft_state_key *key = &o->keys[i];
        bool shared = key->kind == WEFT_STATE_CONTROL;
        o->state[i].data = shared ? o->control_state : o->slots[key->weight].of[key->kind];
    }
    WEFT_TRY(weft_mirror_create(o->memory, bytes, &o->mirror));
    WEFT_TRY(weft_mirror_place(o->mirror, o->backend));
    WEFT_TRY(weft_mirror_place(o->model->mirror, o->backend));
    o->seen = -1;
    WEFT_TRY(weft_optimizer_refresh(o));
    return weft_hand(&o, out);
}

static void unbind(weft_optimizer *o) {
    weft_exec_destroy(weft_steal(&o->exec));
    weft_exec_destroy(weft_steal(&o->norm_exec));
    weft_graph_destroy(weft_steal(&o->graph));
    weft_graph_destroy(weft_steal(&o->norm_graph));
    o->lr = o->control = o->cut = o->norm_parts = o->all_parts = NULL;
    free(weft_steal(&o->bound));
    o->mark = 0;
}

void weft_optimizer_destroy(weft_optimizer *o) {
    if (!o) return;
    unbind(o);
    weft_mirror_destroy(o->mirror);
    weft_safetensors_close(o->file);
    weft_partition_free(&o->shards);
    WEFT_FREE(o->slots, o->memory, o->keys, o->state, o->parts, o->ordered, o->order, o->counts,
              o->begins, o);
}

WEFT_GETTER(const weft_model *, weft_optimizer_model, weft_optimizer, model)
WEFT_GETTER(const weft_backend *, weft_optimizer_backend, weft_optimizer, backend)
WEFT_GETTER(uint64_t, weft_optimizer_marked, weft_optimizer, mark)

weft_tensor *weft_optimizer_tensor(weft_optimizer_binder *b, weft_role role, const char *kind,
                                   const weft_stretch *part, weft_dtype dtype, void *data) {
    const weft_weight *w = &b->o->model->weights[part->weight];
    if (!data) return NULL;
    char name[WEFT_STATE_NAME];
    /* What is left of a shape is whether it decays: two dimensions or more. */
    bool whole = part->count == w->count, flat = w->ndim < 2;
    const int64_t cut[] = {1, part->count};
    if (whole)
        snprintf(name, sizeof name, "%s.%s", kind, w->name);
    else
        snprintf(name, sizeof name, "%s.%s.%lld", kind, w->name, (long long)part->first);
    weft_tensor *t = weft_graph_tensor(b->graph, role, name, dtype, whole ? w->ndim : 2 - flat,
                                       whole ? w->shape : cut + flat);
    if (t) b->bindings[b->n++] = (weft_binding){t, data};
    return t;
}

static weft_adam_slot bind_slot(weft_optimizer_binder *b, const weft_optimizer_slot *slot,
                                const weft_gradient *gradient) {
    const weft_optimizer *o = b->o;
    const weft_stretch *p = &slot->part;
    const weft_weight *w = &o->model->weights[p->weight];
    unsigned char *weight = weft_mirror_at(o->model->mirror, o->backend, w->data);
    weight += (size_t)p->first * weft_dtype_size(w->dtype);
    void *of[WEFT_STATE_CONTROL];
    for (int kind = 0; kind < WEFT_STATE_CONTROL; kind++)
        of[kind] = weft_mirror_at(o->mirror, o->backend, slot->of[kind]);
    void *master = of[WEFT_STATE_MASTER];
    /* With MUP maps between layers learn as much slower as the width has grown. */
    bool slower = o->model->config.mup && w->ndim >= 2 && weft_is_hidden(w->part);
    return (weft_adam_slot){
        .param = weft_optimizer_tensor(b, WEFT_ROLE_PARAM, "param", p, o->dtype,
                                       master ? master : weight),
        .grad =
            weft_optimizer_tensor(b, WEFT_ROLE_INPUT, "grad", p, gradient->dtype, gradient->data),
        .m = weft_optimizer_tensor(b, WEFT_ROLE_STATE, "m", p, o->dtype, of[WEFT_STATE_M]),
        .v = weft_optimizer_tensor(b, WEFT_ROLE_STATE, "v", p, o->dtype, of[WEFT_STATE_V]),
        .v_max =
            weft_optimizer_tensor(b, WEFT_ROLE_STATE, "v_max", p, o->dtype, of[WEFT_STATE_V_MAX]),
        .mask = weft_optimizer_tensor(b, WEFT_ROLE_STATE, "mask", p, WEFT_I8, of[WEFT_STATE_MASK]),
        .copy =
            master ? weft_optimizer_tensor(b, WEFT_ROLE_STATE, "copy", p, w->dtype, weight) : NULL,
        .rate = slower ? 1 / weft_config_mup(&o->model->config) : 1,
        .matrices = matrices_of(o, p->weight),
    };
}

static weft_status build_graph(weft_optimizer *o) {
    size_t most = (size_t)o->n_slots;
    int n = 0;
    if (o->n_slots > INT_MAX / WEFT_SLOT_SIZE - 1)
        return WEFT_BAD_INPUT("optimizer: %lld tensors are too many", (long long)o->n_slots);
    WEFT_ROOM(weft_binding, bindings, most * WEFT_SLOT_SIZE + 2, "optimizer: no memory");
    WEFT_ROOM(weft_adam_slot, slots, most + 1, "optimizer: no memory");
    WEFT_ROOM(weft_tensor *, grads, most + 1, "optimizer: no memory");
    WEFT_TRY(weft_graph_create(&o->graph));
    weft_optimizer_binder b = {.o = o, .graph = o->graph, .bindings = bindings};
    for (int64_t i = 0; i < o->n_slots; i++) {
        if (!o->bound[i].data) continue; /* no loss depends on it, so decay has no say either */
        slots[n] = bind_slot(&b, &o->slots[i], &o->bound[i]);
        grads[n] = slots[n].grad;
        n++;
    }
    if (n == 0 && !o->comm) return WEFT_BAD_INPUT("optimizer: no weight has a gradient");
    o->lr = weft_graph_tensor(o->graph, WEFT_ROLE_INPUT, "lr", o->dtype, 0, NULL);
    weft_tensor *state =
        weft_new_tensor(o->graph, WEFT_ROLE_STATE, "state", o->dtype, WEFT_ADAM_STATE);
    void *place = weft_mirror_at(o->mirror, o->backend, o->control_state);
    if (state) bindings[b.n++] = (weft_binding){state, place};
    if (o->comm) /* the norm of all, of parts that are gathered before a run */
        o->all_parts =
            weft_new_tensor(o->graph, WEFT_ROLE_INPUT, "norm_parts", WEFT_I32, o->n_ordered, 2);
    weft_tensor *norm = o->comm ? weft_norm_join(o->graph, o->all_parts, o->dtype)
                                : weft_global_norm(o->graph, grads, n);
    o->control = weft_adam_control(o->graph, norm, o->lr, state, &o->options);
    weft_muon_options muon = weft_model_muon(&o->model->config, o->backend);
    o->cut = n > 0 ? weft_adamw(o->graph, o->control, slots, n) : NULL;
    weft_muon(o->graph, o->control, slots, n, &muon);
    weft_zero_masked(o->graph, slots, n);
    WEFT_TRY(weft_graph_status(o->graph));
    weft_exec_options options = {.bindings = bindings};
    return weft_exec_create(o->graph, o->backend, o->pool, &options, &o->exec);
}

weft_status weft_optimizer_bind(weft_optimizer *o, const weft_gradient *gradients, void *own) {
    unbind(o);
    WEFT_ROOM_AT(o->bound, o->n_slots + 1, "optimizer: no memory");
    for (int64_t i = 0; i < o->n_slots; i++) {
        const weft_stretch *p = &o->slots[i].part;
        weft_gradient g = gradients[p->weight];
        if (!g.data) continue;
        if (own) g = (weft_gradient){o->dtype, own};
        g.data =
            (unsigned char *)g.data + (own ? p->at : p->first) * (int64_t)weft_dtype_size(g.dtype);
        o->bound[i] = g;
    }
    weft_status status = o->comm ? weft_optimizer_shard_bind(o, gradients) : WEFT_OK;
    if (status == WEFT_OK) status = build_graph(o);
    if (status != WEFT_OK) unbind(o);
    return status;
}

void weft_optimizer_find_gradients(const weft_optimizer *o, const weft_session *s,
                                   weft_gradient *out) {
    for (int64_t i = 0; i < o->model->n_weights; i++) {
        const weft_tensor *t = weft_graph_find(s->graph.graph, o->model->weights[i].name);
        out[i] = (weft_gradient){0};
        if (t && t->grad) out[i] = (weft_gradient){t->grad->dtype, weft_data(s->exec, t->grad)};
    }
}

weft_status weft_optimizer_bind_session(weft_optimizer *o, const weft_session *s) {
    WEFT_ROOM(weft_gradient, gradients, o->model->n_weights, "optimizer: no memory");
    weft_optimizer_find_gradients(o, s, gradients);
    return weft_optimizer_bind(o, gradients, NULL);
}

weft_status weft_optimizer_run(weft_optimizer *o, double rate) {
    if (!o->exec) return weft_fail(WEFT_EBUG, "optimizer: no gradients are bound");
    float narrow = (float)rate;
    WEFT_TRY(weft_exec_write(o->exec, o->lr, o->dtype == WEFT_F64 ? (const void *)&rate : &narrow));
    WEFT_TRY(weft_mirror_use(o->mirror, o->backend));
    WEFT_TRY(weft_mirror_use(o->model->mirror, o->backend));
    if (o->comm) WEFT_TRY(weft_optimizer_shard_before(o));
    weft_status status = weft_exec_run(o->exec, NULL);
    if (status == WEFT_OK && o->comm) status = weft_optimizer_shard_after(o);
    weft_mirror_wrote(o->mirror, o->backend);
    weft_mirror_wrote(o->model->mirror, o->backend);
    return status;
}

weft_status weft_optimizer_numbers(const weft_optimizer *o, int first, int n, double *out) {
    int64_t size = (int64_t)weft_dtype_size(o->dtype);
    const unsigned char *from = (const unsigned char *)o->control_state + first * size;
    double raw[WEFT_ADAM_STATE]; /* room for either type */
    WEFT_TRY(weft_mirror_read(o->mirror, from, n * size, raw));
    weft_weight_read(&(weft_weight){.dtype = o->dtype, .count = n, .data = raw}, out);
    return WEFT_OK;
}

weft_status weft_optimizer_events(const weft_optimizer *o, weft_step_events *out) {
    *out = (weft_step_events){0};
    double state[WEFT_ADAM_STATE], control[WEFT_ADAM_CONTROL] = {0};
    if (o->exec) {
        double raw[WEFT_ADAM_CONTROL]; /* room for either type */
        int32_t cut = 0;
        WEFT_TRY(weft_exec_read(o->exec, o->control, raw));
        if (o->cut && !o->comm) WEFT_TRY(weft_exec_read(o->exec, o->cut, &cut));
        weft_weight_read(&(weft_weight){.dtype = o->dtype, .count = WEFT_ADAM_CONTROL, .data = raw},
                         control);
        out->cut = o->comm ? o->cut_of_all : cut;
    }
    WEFT_TRY(weft_optimizer_numbers(o, 0, WEFT_ADAM_STATE, state));
    out->norm = control[WEFT_CONTROL_NORM];
    out->rate = control[WEFT_CONTROL_LR];
    out->warmup = control[WEFT_CONTROL_WARMUP];
    out->spike = control[WEFT_CONTROL_SPIKE] != 0;
    out->clipped = control[WEFT_CONTROL_CLIPPED] != 0;
    out->reset = control[WEFT_CONTROL_RESET] != 0;
    out->skipped = control[WEFT_CONTROL_SKIPPED] != 0;
    out->steps = (int64_t)state[WEFT_ADAM_STEPS];
    out->spikes = (int64_t)state[WEFT_ADAM_SPIKES];
    out->clips = (int64_t)state[WEFT_ADAM_CLIPS];
    out->resets = (int64_t)state[WEFT_ADAM_RESETS];
    out->skips = (int64_t)state[WEFT_ADAM_SKIPS];
    out->sparsity = state[WEFT_ADAM_MASKED];
    out->pruned = o->pruned;
    return WEFT_OK;
}

bool weft_all_finite(weft_dtype dtype, const void *data, int64_t count) {
    weft_weight one = {.dtype = dtype, .count = 1, .data = (void *)(uintptr_t)data};
    double value = 0;
    for (int64_t i = 0; isfinite(value) && i < count; i++) {
        weft_weight_read(&one, &value);
        one.data = (unsigned char *)one.data + weft_dtype_size(dtype);
    }
    return isfinite(value);
}

const char *weft_optimizer_find_bad(const weft_optimizer *o) {
    int64_t n = o->model->n_weights, bad = n, first = n;
    for (int64_t i = 0; o->bound && bad == n && i < o->n_slots; i++) {
        weft_gradient g = o->bound[i];
        int64_t count = g.data ? o->slots[i].part.count : 0;
        int64_t bytes = count * (int64_t)weft_dtype_size(g.dtype);
        WEFT_AUTO_FREE void *host = malloc((size_t)bytes + 1);
        bool there = host && o->backend->download(host, g.data, bytes) == WEFT_OK;
        if (there && !weft_all_finite(g.dtype, host, count)) bad = o->slots[i].part.weight;
    }
    int ranks = weft_comm_size(o->comm);
    WEFT_AUTO_FREE int64_t *all = calloc((size_t)ranks, sizeof *all);
    if (all && weft_comm_gather(o->comm, &bad, sizeof bad, all) == WEFT_OK)
        for (int r = 0; r < ranks; r++)
            first = all[r] < first ? all[r] : first;
    return first < n ? o->model->weights[first].name : NULL;
}

weft_status weft_optimizer_refresh(weft_optimizer *o) {
    /* Where weights are on a device, only what the host wrote by way of the mirror can have changed
     * them; in the host's own memory anybody may have. */
    int64_t writes = weft_mirror_writes(o->model->mirror);
    if (o->backend->remote && writes == o->seen) return WEFT_OK;
    WEFT_TRY(weft_mirror_use(o->model->mirror, NULL));
    WEFT_TRY(weft_mirror_use(o->mirror, NULL));
    o->seen = writes;
    double steps;
    WEFT_TRY(weft_optimizer_numbers(o, WEFT_ADAM_STEPS, 1, &steps));
    for (int64_t i = 0; i < o->n_slots; i++) {
        const weft_stretch *p = &o->slots[i].part;
        const weft_weight *w = &o->model->weights[p->weight];
        const uint16_t *weight = w->data;
        float *master = o->slots[i].of[WEFT_STATE_MASTER];
        void *start = o->slots[i].of[WEFT_STATE_START];
        int64_t size = (int64_t)weft_dtype_size(o->dtype);
        if (master) weight += p->first;
        for (int64_t k = 0; master && k < p->count; k++)
            if (weft_float_to_bf16(master[k]) != weight[k])
                master[k] = weft_bf16_to_float(weight[k]);
        if (start && steps == 0)
            memcpy(start, master ? (void *)master : (unsigned char *)w->data + p->first * size,
                   (size_t)(p->count * size));
    }
    weft_mirror_wrote(o->mirror, NULL);
    return WEFT_OK;
}

weft_status weft_optimizer_state(const weft_optimizer *o, const weft_weight **list,
                                 int64_t *count) {
    WEFT_TRY(weft_mirror_use(o->mirror, NULL));
    weft_mirror_wrote(o->mirror, NULL); /* the caller may */
    *list = o->state;
    *count = o->n_state;
    return WEFT_OK;
}

weft_status weft_optimizer_write(const weft_optimizer *o, const char *path, weft_sum *sum) {
    WEFT_TRY(weft_mirror_use(o->mirror, NULL));
    WEFT_ROOM(weft_safetensor, tensors, o->n_state, "%s: no memory", path);
    weft_optimizer_collector collector = {.o = o};
    for (int64_t i = 0; i < o->n_state; i++) {
        const weft_weight *w = &o->state[i];
        tensors[i] = (weft_safetensor){.name = w->name,
                                       .dtype = weft_file_dtype_of(w->dtype),
                                       .ndim = w->ndim,
                                       .data = w->data,
                                       .make = o->comm ? weft_optimizer_collect : NULL,
                                       .context = &collector};
        memcpy(tensors[i].shape, w->shape, sizeof w->shape);
    }
    weft_status status = weft_safetensors_write(path, tensors, o->n_state, NULL, sum);
    free(collector.tensor);
    return status;
}

weft_status weft_optimizer_read(weft_optimizer *o, const char *path) {
    WEFT_AUTO(weft_safetensors_close_at) weft_safetensors *file = NULL;
    WEFT_TRY(weft_safetensors_open(path, &file));
    for (const weft_weight *w = o->state; w < o->state + o->n_state; w++) {
        const weft_safetensor *t = weft_safetensors_find(file, w->name);
        if (!t)
            return WEFT_BAD_INPUT(
                "%s: tensor '%s' is missing; is it of another model or OPTIMIZER?", path, w->name);
        if (t->dtype != weft_file_dtype_of(w->dtype) || t->ndim != w->ndim ||
            memcmp(t->shape, w->shape, (size_t)w->ndim * sizeof w->shape[0]) != 0)
            return WEFT_BAD_INPUT("%s: tensor '%s' has not the type and shape of the model", path,
                                  w->name);
    }
    if (weft_safetensors_count(file) != o->n_state)
        return WEFT_BAD_INPUT(
            "%s: %lld tensors, but the optimizer has %lld; is it of another OPTIMIZER?", path,
            (long long)weft_safetensors_count(file), (long long)o->n_state);
    if (o->comm) {
        weft_safetensors_close(o->file);
        o->file = weft_steal(&file);
        return WEFT_OK;
    }
    for (const weft_weight *w = o->state; w < o->state + o->n_state; w++)
        memcpy(w->data, weft_safetensors_find(file, w->name)->data, (size_t)w->bytes);
    weft_mirror_wrote(o->mirror, NULL);
    return WEFT_OK;
}

void weft_optimizer_mark(weft_optimizer *o, uint64_t mark) {
    o->mark = mark;
}

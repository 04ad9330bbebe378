/* Costs are read off the graph itself: parameters from its list, operations from its nodes, memory
 * from its plan. Only the cache is counted by formula, since generation's graph is another one. */
#include "model/account.h"

#include "core/program.h"
#include "model/builder.h"
#include "model/cached.h"
#include "model/contrast.h"
#include "model/units.h"

bool weft_config_two_phases(const weft_config *c) {
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    return ffn->contrasts && ffn->contrasts(c) && weft_config_micro_batches(c) > 1;
}

weft_build weft_training_build(const weft_config *c) {
    bool two = weft_config_two_phases(c);
    return (weft_build){.batch = weft_config_micro_batch(c),
                        .time = c->context,
                        .dtype = weft_config_dtype(c),
                        .train = true,
                        .recompute = c->recompute,
                        .counted = weft_config_micro_batches(c) > 1,
                        .contrast = two ? WEFT_CONTRAST_GIVEN : WEFT_CONTRAST_HERE};
}

static weft_status account_first_phase(const weft_config *c, const weft_backend *backend,
                                       int threads, double *flops, int64_t *bytes) {
    weft_build build = weft_training_build(c);
    *flops = 0;
    *bytes = 0;
    if (!weft_config_two_phases(c)) return WEFT_OK;
    return weft_contrast_account(c, backend, threads, &build, weft_config_micro_batches(c), flops,
                                 bytes);
}

/* The training graph with its gradient, planned with the weights outside the arena. */
static weft_status plan_training(const weft_config *c, const weft_backend *backend, int threads,
                                 weft_model_graph *m, weft_plan **plan) {
    weft_build build = weft_training_build(c);
    return weft_model_program(c, &build, true, backend, threads, INT64_MAX, m, plan);
}

/* Of a moment or a gradient's sum: f32 beside bf16 weights. */
static int64_t real_bytes(const weft_tensor *t) {
    return weft_tensor_count(t) * (t->dtype == WEFT_F64 ? 8 : 4);
}

/* The moments of AdamW (and AMSGrad's; of Muon's matrices one alone), an f32 master beside each bf16
 * tensor, and of what is pruned the masks, a byte a weight, and with movement where each began. */
static int64_t optimizer_bytes(const weft_config *c, const weft_model_graph *m) {
    int64_t bytes = 0, moments = 2 + (c->optimizer == WEFT_OPTIMIZER_ADAMWSPAM && c->spam_amsgrad);
    for (int64_t i = 0; i < m->n_parameters; i++) {
        const weft_tensor *t = m->parameters[i].tensor;
        bool one = weft_muon_matrices(c, t->name, t->ndim, t->shape).n > 0;
        bytes += (moments - one + (t->dtype == WEFT_BF16)) * real_bytes(t);
        if (!weft_weight_is_masked(c, t->name, t->ndim)) continue;
        bytes += weft_tensor_count(t) + (c->prune == WEFT_PRUNING_MOVEMENT) * real_bytes(t);
    }
    return bytes;
}

/* The arena of the optimizer's step: Muon's products; AdamW makes nothing that lasts. */
static weft_status account_update(const weft_config *c, const weft_model_graph *m,
                                  const weft_backend *backend, int threads, int64_t *bytes) {
    WEFT_AUTO(weft_graph_destroy_at) weft_graph *g = NULL;
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
    weft_dtype real = weft_config_dtype(c) == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    weft_program_options options = {.complete = true,
                                    .outside = 1u << WEFT_ROLE_STATE | 1u << WEFT_ROLE_INPUT,
                                    .plan = {.memory_limit = INT64_MAX}};
    *bytes = 0;
    if (c->optimizer != WEFT_OPTIMIZER_MUON) return WEFT_OK;
    WEFT_TRY(weft_graph_create(&g));
    weft_tensor *control = weft_new_tensor(g, WEFT_ROLE_INPUT, "control", real, WEFT_ADAM_CONTROL);
    weft_adam_slot *slots = weft_graph_alloc(g, (size_t)m->n_parameters * sizeof *slots);
    weft_muon_options muon = weft_model_muon(c, backend);
    /* Weights as Muon updates them, with memory of their own for nothing but what the update makes. */
    for (int64_t i = 0; slots && i < m->n_parameters; i++) {
        const weft_tensor *w = m->parameters[i].tensor;
        weft_tensor *of[3];
        for (int k = 0; k < 3; k++) {
            char name[128];
            snprintf(name, sizeof name, "%d.%s", k, w->name);
            of[k] = weft_graph_tensor(g, WEFT_ROLE_STATE, name, real, w->ndim, w->shape);
        }
        slots[i] = (weft_adam_slot){.param = of[0],
                                    .grad = of[1],
                                    .m = of[2],
                                    .matrices = weft_muon_matrices(c, w->name, w->ndim, w->shape)};
    }
    if (slots) weft_muon(g, control, slots, (int)m->n_parameters, &muon);
    WEFT_TRY(weft_graph_status(g));
    WEFT_TRY(weft_program_make(g, backend, threads, &options, &plan));
    *bytes = plan->arena_bytes;
    return WEFT_OK;
}

static weft_status account_training(const weft_config *c, const weft_backend *backend, int threads,
                                    weft_account *a) {
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
    WEFT_TRY(plan_training(c, backend, threads, &m, &plan));
    for (const weft_parameter *p = m.parameters; p < m.parameters + m.n_parameters; p++) {
        int64_t count = weft_tensor_count(p->tensor);
        int k = 0;
        while (k < a->n_parts && strcmp(a->parts[k].name, p->part) != 0)
            k++;
        if (k == WEFT_PARTS_MAX)
            k--; /* more parts than there is room for: the last takes the rest */
        if (k == a->n_parts) a->parts[a->n_parts++].name = p->part;
        a->parts[k].parameters += count;
        a->parameters += count;
        a->weights_bytes += weft_tensor_bytes(p->tensor);
    }
    int64_t tokens = weft_config_micro_batch(c) * c->context;
    a->built_flops = flops_of(m.graph, 0, NULL) / (double)tokens;
    a->gradients_bytes = plan->peak_kept_bytes;
    a->activations_bytes = plan->peak_saved_bytes;
    a->optimizer_bytes = optimizer_bytes(c, &m);
    double first;
    int64_t bytes, update = 0;
    WEFT_TRY(account_first_phase(c, backend, threads, &first, &bytes));
    WEFT_TRY(account_update(c, &m, backend, threads, &update));
    a->first_phase_flops = first / (double)(tokens * weft_config_micro_batches(c));
    a->built_flops += a->first_phase_flops;
    bytes += plan->arena_bytes + update;
    a->training_bytes = a->weights_bytes + a->optimizer_bytes + bytes;
    a->workspace_bytes = bytes - a->gradients_bytes - a->activations_bytes;
    return WEFT_OK;
}

weft_status weft_account_make(const weft_config *c, const weft_backend *backend, int threads,
                              weft_account *out) {
    weft_dtype dtype = weft_config_dtype(c);
    *out = (weft_account){0};
    WEFT_TRY(weft_model_check(c, "config"));
    WEFT_TRY(account_training(c, backend, threads, out));
    /* What one more layer keeps: the difference of a model of three layers and one of two, since
     * the first and the last are unlike the others; of three and two times as many where layers
     * share keys. */
    int64_t saved[2];
    for (int i = 0; i < 2; i++) {
        weft_config few = *c;
        WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
        WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
        few.n_layer = (2 + i) * c->kv_share;
        WEFT_TRY(plan_training(&few, backend, threads, &m, &plan));
        saved[i] = plan->saved_bytes;
    }
    int64_t tokens = weft_config_micro_batch(c) * c->context * c->kv_share;
    double size = (double)weft_dtype_size(weft_config_dtype(c));
    out->kept_per_token_layer = (double)(saved[1] - saved[0]) / size / (double)tokens;
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    WEFT_TRY(weft_model_build_nominal(c, &m));
    out->forward_flops = flops_of(m.graph, 0, NULL) / (double)c->context;
    out->backward_flops = 2 * out->forward_flops;
    out->attention_flops = m.attention_flops / (double)c->context;
    out->ffn_flops = (m.ffn_flops - m.z_flops) / (double)c->context;
    out->reciprocal_flops = m.reciprocal_flops / (double)c->context;
    out->z_flops = m.z_flops / (double)c->context;
    out->head_flops = out->forward_flops -
                      (m.attention_flops + m.ffn_flops + m.reciprocal_flops) / (double)c->context;
    out->cache_bytes_layer = weft_cached_layer_bytes(c, 0, dtype);
    out->cache_bytes_token = weft_cached_token_bytes(c, dtype);
    out->cache_bytes_sequence = weft_cached_sequence_bytes(c, dtype);
    return WEFT_OK;
}

int weft_account_levels(int64_t parts) {
    int most = 0;
    for (int64_t i = 0; i < parts; i += 2) {
        int ones = __builtin_popcountll((unsigned long long)i);
        if (ones > most) most = ones;
    }
    return most + 1;
}

/* Sums over micro-batches: of each weight one for each level of the tree (train/gradients.h). */
static int64_t sums_bytes(const weft_config *c, const weft_model_graph *m, int ranks) {
    int64_t parts = weft_config_micro_batches(c), bytes = 0;
    if (parts == 1) return 0;
    for (int64_t i = 0; i < m->n_parameters; i++)
        bytes += real_bytes(m->parameters[i].tensor);
    if (ranks == 1) return bytes * weft_account_levels(parts);
    if (c->shard == WEFT_SHARD_GRADIENTS) return (bytes / ranks + 1) * weft_account_levels(parts);
    /* A rank whose micro-batches are no node of the tree has another sum for the rest. */
    int64_t own = (parts + ranks - 1) / ranks;
    bool node = parts % ranks == 0 && (own & (own - 1)) == 0;
    return bytes * (weft_account_levels(own) + !node);
}

/* The pass over held-out data. */
static weft_build validation_build(const weft_config *c) {
    return (weft_build){
        .batch = weft_config_micro_batch(c), .time = c->context, .dtype = weft_config_dtype(c)};
}

weft_status weft_account_nodes(const weft_config *c, void (*visit)(void *to, const weft_node *n),
                               void *to) {
    weft_build build = validation_build(c);
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    WEFT_TRY(weft_model_build(c, &build, &m));
    for (int64_t i = 0; i < weft_graph_node_count(m.graph); i++)
        visit(to, weft_graph_node(m.graph, i));
    return WEFT_OK;
}

weft_status weft_account_rank(const weft_config *c, const weft_backend *backend, int threads,
                              int ranks, weft_rank_bytes *out) {
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph held_out = {0};
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
    WEFT_AUTO(weft_plan_destroy_at) weft_plan *validation = NULL;
    weft_build build = validation_build(c);
    int64_t first, update;
    double flops;
    *out = (weft_rank_bytes){0};
    WEFT_TRY(account_first_phase(c, backend, threads, &flops, &first));
    WEFT_TRY(
        weft_model_program(c, &build, false, backend, threads, INT64_MAX, &held_out, &validation));
    WEFT_TRY(plan_training(c, backend, threads, &m, &plan));
    for (int64_t i = 0; i < m.n_parameters; i++)
        out->weights += weft_tensor_bytes(m.parameters[i].tensor);
    out->optimizer = optimizer_bytes(c, &m);
    if (c->shard != WEFT_SHARD_NONE) out->optimizer = (out->optimizer + ranks - 1) / ranks;
    out->sums = sums_bytes(c, &m, ranks);
    WEFT_TRY(account_update(c, &m, backend, threads, &update));
    out->arena = plan->arena_bytes + validation->arena_bytes + first + update;
    out->all = out->weights + out->optimizer + out->sums + out->arena;
    return WEFT_OK;
}

/* The largest MICRO_BATCH, of those that leave each rank one, with which it fits into out->there. */
static weft_status find_micro_batch(const weft_config *c, const weft_backend *backend, int threads,
                                    int ranks, weft_fit *out) {
    for (int64_t micro = weft_config_micro_batch(c); micro > 0; micro--) {
        weft_config less = *c;
        weft_rank_bytes bytes;
        if (c->batch_size % micro != 0) continue;
        less.micro_batch = micro;
        if (weft_config_micro_batches(&less) < ranks) continue;
        WEFT_TRY(weft_account_rank(&less, backend, threads, ranks, &bytes));
        if (out->there > 0 && bytes.all > out->there) continue;
        out->micro_batch = micro;
        out->would_need = bytes.all;
        return WEFT_OK;
    }
    return WEFT_OK;
}

weft_status weft_account_fit(const weft_config *c, const weft_backend *backend, int threads,
                             int ranks, weft_fit *out) {
    weft_rank_bytes bytes;
    *out = (weft_fit){.there = backend->memory ? backend->memory() : 0};
    WEFT_TRY(weft_account_rank(c, backend, threads, ranks, &bytes));
    out->needed = bytes.all;
    return find_micro_batch(c, backend, threads, ranks, out);
}

weft_status weft_config_cut_batch(weft_config *c, const weft_backend *backend, int threads,
                                  int ranks) {
    weft_fit fit = {.there = backend->memory ? backend->memory() : 0};
    if (c->micro_batch >= 0) return WEFT_OK;
    if (!backend->remote)
        fit.there = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 2;
    WEFT_TRY(find_micro_batch(c, backend, threads, ranks, &fit));
    c->micro_batch = fit.micro_batch == c->batch_size ? 0 : fit.micro_batch ? fit.micro_batch : 1;
    return WEFT_OK;
}

weft_status weft_fit_check(const weft_fit *fit, const weft_backend *backend) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    double needed = (double)fit->needed / gib, there = (double)fit->there / gib;
    if (fit->there == 0 || fit->needed <= fit->there) return WEFT_OK;
    if (fit->micro_batch == 0)
        return weft_fail(WEFT_ENOMEM,
                         "%s: training needs %.2f GiB, but %.2f GiB are free, and no MICRO_BATCH "
                         "would fit; take a smaller model or CONTEXT",
                         backend->name, needed, there);
    return weft_fail(
        WEFT_ENOMEM,
        "%s: training needs %.2f GiB, but %.2f GiB are free; MICRO_BATCH=%lld would need %.2f GiB",
        backend->name, needed, there, (long long)fit->micro_batch, (double)fit->would_need / gib);
}

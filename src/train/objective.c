/* The micro-batches of a step one after the other, and what they have to know of each other. */
#include "train/objective.h"

#include "comm/tree.h"
#include "model/account.h"
#include "model/contrast.h"
#include "train/gradients.h"

#include <stdlib.h>

struct weft_objective {
    const weft_model *model;
    weft_session session;
    weft_gradients *gradients;
    weft_contrast *contrast;    /* NULL: one phase */
    int64_t micro, parts, time; /* sequences of a graph run; graph runs; tokens of a sequence */
    weft_comm *comm;
    weft_span span; /* the graph runs that are this rank's, where it has neighbouring ones; */
    bool dealt;     /* else rank, rank + ranks, ... */
    int64_t count;  /* how many they are */
    weft_loss_parts *losses; /* [parts] */
    int64_t *counts;         /* [ranks]: targets */
};

static weft_status share_out(weft_objective *o) {
    size_t ranks = (size_t)weft_comm_size(o->comm);
    o->span = weft_tree_span(o->parts, weft_comm_rank(o->comm), weft_comm_size(o->comm));
    o->losses = calloc((size_t)o->parts, sizeof *o->losses);
    o->counts = calloc(ranks, sizeof *o->counts);
    if (o->losses && o->counts) return WEFT_OK;
    return weft_fail(WEFT_ENOMEM, "training: no memory");
}

static weft_status open_passes(weft_objective *o, weft_optimizer *optimizer, weft_pool *pool,
                               const weft_objective_options *options) {
    const weft_config *c = &o->model->config;
    const weft_backend *backend = weft_optimizer_backend(optimizer);
    bool two = weft_config_two_phases(c);
    weft_build build = {.batch = o->micro,
                        .time = o->time,
                        .dtype = o->model->dtype,
                        .train = true,
                        .form = options->form,
                        .recompute = c->recompute,
                        .counted = o->parts > 1,
                        .contrast = two ? WEFT_CONTRAST_GIVEN : WEFT_CONTRAST_HERE};
    WEFT_TRY(
        weft_session_open(o->model, backend, pool, &build, true, options->poison, &o->session));
    if (two) WEFT_TRY(weft_contrast_open(o->model, backend, pool, &build, o->parts, &o->contrast));
    WEFT_TRY(weft_gradients_create(optimizer, &o->session, pool, o->comm, o->parts, &o->gradients));
    o->dealt = weft_gradients_are_dealt(o->gradients);
    int64_t ranks = weft_comm_size(o->comm), rank = weft_comm_rank(o->comm);
    o->count = o->dealt ? (o->parts - rank + ranks - 1) / ranks : o->span.count;
    return WEFT_OK;
}

/* This rank's i-th graph run, in the order of all. */
static int64_t part_of(const weft_objective *o, int64_t i) {
    return o->dealt ? weft_comm_rank(o->comm) + i * weft_comm_size(o->comm) : o->span.first + i;
}

/* `stride` bytes of every graph run to all ranks. */
static weft_status gather(weft_objective *o, void *all, int64_t stride) {
    if (o->dealt) return weft_comm_gather_strided(o->comm, all, o->parts, stride);
    return weft_comm_gather_spans(o->comm, all, o->parts, stride);
}

weft_status weft_objective_open(weft_optimizer *optimizer, weft_pool *pool,
                                const weft_objective_options *options, weft_objective **out) {
    static const weft_objective_options defaults;
    *out = NULL;
    weft_objective *o = calloc(1, sizeof *o);
    if (!o) return weft_fail(WEFT_ENOMEM, "training: no memory");
    o->model = weft_optimizer_model(optimizer);
    o->micro = weft_config_micro_batch(&o->model->config);
    o->parts = weft_config_micro_batches(&o->model->config);
    o->time = o->model->config.context;
    if (!options) options = &defaults;
    o->comm = options->comm;
    weft_status status = share_out(o);
    if (status == WEFT_OK) status = open_passes(o, optimizer, pool, options);
    if (status != WEFT_OK) {
        weft_objective_close(o);
        return status;
    }
    *out = o;
    return WEFT_OK;
}

void weft_objective_close(weft_objective *o) {
    if (!o) return;
    weft_gradients_destroy(o->gradients);
    weft_contrast_close(o->contrast);
    weft_session_close(&o->session);
    free(o->losses);
    free(o->counts);
    free(o);
}

weft_share weft_objective_share(const weft_objective *o) {
    int64_t count = o->count * o->micro;
    if (!o->dealt) return (weft_share){o->span.first * o->micro, count, count, 0};
    return (weft_share){weft_comm_rank(o->comm) * o->micro, count, o->micro,
                        weft_comm_size(o->comm) * o->micro};
}

static weft_run run_of_part(const weft_objective *o, const weft_run *run, int64_t part) {
    weft_run own = *run;
    own.sequence += (uint32_t)(part * o->micro);
    return own;
}

static int64_t count_targets(const int32_t *targets, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += targets[i] >= 0;
    return count;
}

/* What each micro-batch divides its sum of cross-entropies by, so that the mean over micro-batches is
 * the mean over targets. Where they have equally many targets it is that number. */
static weft_status write_count(weft_objective *o, int64_t own) {
    int64_t targets = 0;
    WEFT_TRY(weft_comm_gather(o->comm, &own, sizeof own, o->counts));
    for (int r = 0; r < weft_comm_size(o->comm); r++)
        targets += o->counts[r];
    double count = (double)targets / (double)o->parts;
    float narrow = (float)count;
    const weft_tensor *t = o->session.graph.count;
    return weft_exec_write(o->session.exec, t,
                           t->dtype == WEFT_F64 ? (const void *)&count : &narrow);
}

/* The first phase. */
static weft_status contrast_all(weft_objective *o, const int32_t *tokens, const weft_run *run,
                                double *loss) {
    int64_t stride;
    for (int64_t i = 0; i < o->count; i++) {
        int64_t part = part_of(o, i);
        weft_run own = run_of_part(o, run, part);
        WEFT_TRY(weft_contrast_add(o->contrast, part, tokens + i * o->micro * o->time, &own));
    }
    void *contexts = weft_contrast_contexts(o->contrast, &stride);
    WEFT_TRY(gather(o, contexts, stride));
    return weft_contrast_compare(o->contrast, loss);
}

weft_status weft_objective_run(weft_objective *o, const int32_t *tokens, const int32_t *targets,
                               const weft_run *run, weft_loss_parts *out) {
    int64_t size = o->micro * o->time;
    double contrastive = 0;
    *out = (weft_loss_parts){0};
    weft_gradients_restart(o->gradients);
    if (o->session.graph.count) WEFT_TRY(write_count(o, count_targets(targets, o->count * size)));
    if (o->contrast) WEFT_TRY(contrast_all(o, tokens, run, &contrastive));
    for (int64_t i = 0; i < o->count; i++) {
        int64_t part = part_of(o, i);
        weft_run own = run_of_part(o, run, part);
        if (o->contrast) WEFT_TRY(weft_contrast_give(o->contrast, part, &o->session));
        weft_gradients_expect(o->gradients);
        WEFT_TRY(weft_session_run(&o->session, tokens + i * size, targets + i * size, &own));
        WEFT_TRY(weft_session_losses(&o->session, &o->losses[part]));
        WEFT_TRY(weft_gradients_add(o->gradients));
    }
    /* Others may have one more. */
    if (o->dealt && part_of(o, o->count) - weft_comm_rank(o->comm) < o->parts)
        WEFT_TRY(weft_gradients_pass(o->gradients));
    WEFT_TRY(gather(o, o->losses, sizeof *o->losses));
    for (int64_t i = 0; i < o->parts; i++)
        weft_loss_parts_add(out, &o->losses[i], 1.0 / (double)o->parts);
    if (!o->contrast) return WEFT_OK;
    /* The graph's own sum has the gradient's inner product in it, not the loss. */
    out->aux_contrastive = contrastive;
    out->loss = out->cross_entropy + out->logits_z + out->aux_z + contrastive;
    return WEFT_OK;
}

weft_gradient weft_objective_gradient(const weft_objective *o, int64_t weight) {
    return weft_gradients_of(o->gradients, weight);
}

const char *weft_objective_find_bad(const weft_objective *o) {
    return weft_gradients_find_bad(o->gradients);
}

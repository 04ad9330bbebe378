/* A training step (step.h), stage by stage. weft_train_step_run is the story:
 *
 *     batch          the next sequences of the dataset, this rank's share of them
 *     gradients      forward and backward of each micro-batch by one graph, added in a fixed tree, as the
 *                    ranks' sums are (gradients.c)
 *     masks          of what is pruned, where it is time for more (prune.c)
 *     optimizer      the gradient's norm, clipping and AdamW, a graph of four operations (optimizer.c)
 *     result         losses, norm, rate; and what was not finite, if something was
 *
 * All of this depends on the config, the number of the step, the weights and the optimizer's tensors alone.
 * Random numbers are drawn by a sequence's place in the run; sums are added in an order that the
 * micro-batches' numbers fix. So the same config gives the same bits on any number of threads and ranks,
 * however often the run was killed and resumed.
 *
 * WsFFN's contrastive loss compares the contexts of all sequences with each other. With several
 * micro-batches (weft_config_two_phases) a step has two phases for it:
 *
 *     1. forward of each, which leaves its contexts; then the loss of all contexts and its gradient
 *        at them (model/contrast.h)
 *     2. forward and backward of each, with that gradient given at its contexts
 *
 * Ranks share the micro-batches; what they make is brought together in the order of the micro-batches. */
#include "train/step.h"

#include "data/prefetch.h"
#include "model/account.h"
#include "model/contrast.h"
#include "train/gradients.h"

#include <math.h>

struct weft_train_step {
    const weft_model *model;
    weft_optimizer *optimizer;
    weft_comm *comm;
    weft_prefetch *feed;       /* NULL: batches are given */
    weft_session session;      /* the graph of a micro-batch, forward and backward */
    weft_contrast *contrast;   /* NULL: one phase */
    weft_gradients *gradients; /* their sums */
    int64_t micro, parts,
        time; /* sequences of a micro-batch; micro-batches; tokens of a sequence */
    /* The micro-batches that are this rank's: `count` from `first` on, each `stride` after the one
     * before. Neighbours, or, where ranks share the sums, dealt out in turn. */
    int64_t first, count, stride;
    weft_loss_parts *losses; /* [parts] */
    int64_t *targets;        /* [ranks] */
};

static int64_t part_of(const weft_train_step *s, int64_t i) {
    return s->first + i * s->stride;
}

static weft_run run_of_part(const weft_train_step *s, const weft_run *run, int64_t part) {
    weft_run own = *run;
    own.sequence += (uint32_t)(part * s->micro);
    return own;
}

weft_status weft_train_step_gradients(weft_train_step *s, const int32_t *tokens,
                                      const int32_t *targets, const weft_run *run,
                                      weft_loss_parts *out) {
    double contrastive = 0;
    *out = (weft_loss_parts){0};
    weft_gradients_begin(s->gradients);
    /* What each micro-batch divides its sum of cross-entropies by, so that the mean over
     * micro-batches is the mean over targets. Where they have equally many it is that number. */
    int64_t here = 0, all = 0;
    const weft_tensor *t = s->session.graph.count;
    if (t) {
        for (int64_t i = 0; i < s->count * s->micro * s->time; i++)
            here += targets[i] >= 0;
        WEFT_TRY(weft_comm_gather(s->comm, &here, sizeof here, s->targets));
        for (int r = 0; r < weft_comm_size(s->comm); r++)
            all += s->targets[r];
        double count = (double)all / (double)s->parts;
        float narrow = (float)count;
        WEFT_TRY(weft_exec_write(s->session.exec, t,
                                 t->dtype == WEFT_F64 ? (const void *)&count : &narrow));
    }
    /* The first phase of two: the contrastive loss over all micro-batches. */
    int64_t stride;
    if (s->contrast) {
        for (int64_t i = 0; i < s->count; i++) {
            weft_run own = run_of_part(s, run, part_of(s, i));
            WEFT_TRY(weft_contrast_add(s->contrast, part_of(s, i), tokens + i * s->micro * s->time,
                                       &own));
        }
        void *contexts = weft_contrast_contexts(s->contrast, &stride);
        WEFT_TRY(weft_comm_gather_records(s->comm, contexts, s->parts, stride, s->stride > 1));
        WEFT_TRY(weft_contrast_compare(s->contrast, &contrastive));
    }
    for (int64_t i = 0; i < s->count; i++) {
        int64_t part = part_of(s, i), at = i * s->micro * s->time;
        weft_run own = run_of_part(s, run, part);
        if (s->contrast) WEFT_TRY(weft_contrast_give(s->contrast, part, &s->session));
        weft_gradients_expect(s->gradients);
        WEFT_TRY(weft_session_run(&s->session, tokens + at, targets + at, &own));
        WEFT_TRY(weft_session_losses(&s->session, &s->losses[part]));
        WEFT_TRY(weft_gradients_add(s->gradients)); /* into the tree */
    }
    WEFT_TRY(weft_gradients_mean(s->gradients)); /* over all ranks */
    WEFT_TRY(
        weft_comm_gather_records(s->comm, s->losses, s->parts, sizeof *s->losses, s->stride > 1));
    for (int64_t i = 0; i < s->parts; i++)
        weft_loss_parts_add(out, &s->losses[i], 1.0 / (double)s->parts);
    if (!s->contrast) return WEFT_OK;
    /* The graph's own sum has the gradient's inner product in it, not the loss. */
    out->aux_contrastive = contrastive;
    out->loss = out->cross_entropy + out->logits_z + out->aux_z + contrastive;
    return WEFT_OK;
}

weft_gradient weft_train_step_gradient(const weft_train_step *s, int64_t weight) {
    return weft_gradients_of(s->gradients, weight);
}

/* How far step is into a stretch that ends with the run: 0 before it, 1 in the last step. */
static double part_done(const weft_config *c, int64_t first, int64_t step) {
    int64_t steps = c->steps - first;
    if (step < first || steps < 1) return 0;
    if (step >= c->steps) return 1;
    return (double)(step - first + 1) / (double)steps;
}

/* Each schedule falls over a stretch of steps at the end of the run: cosine over all that follow the
 * warm-up, wsd over the last fifth, constant over none. */
double weft_schedule_rate(const weft_config *c, int64_t step) {
    double high = c->learning_rate, low = fmin(c->min_lr, high);
    int64_t warmup = c->warmup_steps;
    if (step < warmup) return high * (double)(step + 1) / (double)warmup;
    if (!c->decay_lr || c->lr_schedule == WEFT_SCHEDULE_CONSTANT) return high;
    if (c->lr_schedule == WEFT_SCHEDULE_WSD) {
        int64_t fall = (c->steps + 4) / 5, first = c->steps - fall;
        return high - (high - low) * part_done(c, first > warmup ? first : warmup, step);
    }
    return low + (high - low) * 0.5 * (1 + cos(M_PI * part_done(c, warmup, step)));
}

double weft_schedule_sparsity(const weft_config *c, int64_t step) {
    int64_t done = step - c->prune_start, all = c->prune_end - c->prune_start;
    if (c->prune == WEFT_PRUNING_NONE || done < 0) return 0;
    if (done >= all) return c->prune_sparsity;
    double left = 1 - (double)(done - done % c->prune_interval) / (double)all;
    return c->prune_sparsity * (1 - left * left * left);
}

weft_status weft_find_bad_weight(const weft_model *m, const char **name) {
    *name = NULL;
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    for (int64_t w = 0; !*name && w < m->n_weights; w++)
        if (!weft_all_finite(m->weights[w].dtype, m->weights[w].data, m->weights[w].count))
            *name = m->weights[w].name;
    return WEFT_OK;
}

/* What it was that is not finite: a weight, the gradient of one, or the loss alone. */
static weft_status name_culprit(const weft_train_step *s, char *text, size_t room) {
    const char *name, *what = "weight ";
    WEFT_TRY(weft_find_bad_weight(s->model, &name));
    if (!name) {
        what = "the gradient of ";
        name = weft_optimizer_find_bad(s->optimizer);
    }
    snprintf(text, room, "%s%s", name ? what : "the loss", name ? name : "");
    return WEFT_OK;
}

weft_status weft_train_step_run(weft_train_step *s, int64_t iteration,
                                weft_train_step_result *out) {
    const weft_config *c = &s->model->config;
    weft_run run = {.seed = (uint64_t)c->seed, .iteration = (uint32_t)iteration};
    const weft_batch *batch;
    *out =
        (weft_train_step_result){.events = {.norm = NAN}, .rate = weft_schedule_rate(c, iteration)};
    WEFT_TRY(weft_prefetch_next(s->feed, &batch));
    WEFT_TRY(weft_train_step_gradients(s, batch->tokens, batch->targets, &run, &out->parts));
    if (!isfinite(out->parts.loss)) return name_culprit(s, out->culprit, sizeof out->culprit);
    WEFT_TRY(weft_optimizer_prune(s->optimizer, weft_schedule_sparsity(c, iteration)));
    WEFT_TRY(weft_optimizer_run(s->optimizer, out->rate));
    WEFT_TRY(weft_optimizer_events(s->optimizer, &out->events));
    out->rate *= out->events.warmup; /* what was used, after a reset */
    return out->events.skipped ? name_culprit(s, out->culprit, sizeof out->culprit) : WEFT_OK;
}

WEFT_ENDED_BY(weft_train_step_close, weft_train_step)
weft_status weft_train_step_open(weft_optimizer *optimizer, weft_pool *pool,
                                 const weft_train_step_options *options, weft_train_step **out) {
    *out = NULL;
    WEFT_NEW(weft_train_step, s, weft_train_step_close, "training: no memory");
    s->model = weft_optimizer_model(optimizer);
    s->optimizer = optimizer;
    s->comm = options->comm;
    const weft_config *c = &s->model->config;
    s->micro = weft_config_micro_batch(c);
    s->parts = weft_config_micro_batches(c);
    s->time = c->context;
    const weft_backend *backend = weft_optimizer_backend(optimizer);
    weft_build build = weft_training_build(c);
    build.dtype = s->model->dtype;
    build.form = options->form;
    WEFT_TRY(
        weft_session_open(s->model, backend, pool, &build, true, options->poison, &s->session));
    if (weft_config_two_phases(c))
        WEFT_TRY(weft_contrast_open(s->model, backend, pool, &build, s->parts, &s->contrast));
    WEFT_TRY(weft_gradients_create(optimizer, &s->session, pool, s->comm, s->parts, &s->gradients));
    int ranks = weft_comm_size(s->comm), rank = weft_comm_rank(s->comm);
    bool dealt = weft_gradients_are_dealt(s->gradients);
    weft_span span = weft_tree_span(s->parts, rank, ranks);
    s->first = dealt ? rank : span.first;
    s->count = dealt ? (s->parts - rank + ranks - 1) / ranks : span.count;
    s->stride = dealt ? ranks : 1;
    WEFT_ROOM_AT(s->losses, s->parts, "training: no memory");
    WEFT_ROOM_AT(s->targets, ranks, "training: no memory");
    int64_t sequences = s->count * s->micro;
    weft_prefetch_options feed = {.split = WEFT_SPLIT_TRAIN,
                                  .seed = (uint64_t)c->seed,
                                  .iteration = (uint32_t)options->iteration,
                                  .sequences = sequences,
                                  .first = s->first * s->micro,
                                  .group = dealt ? s->micro : sequences,
                                  .step = dealt ? s->stride * s->micro : 0,
                                  .parts = 1,
                                  .time = s->time};
    if (options->dataset) WEFT_TRY(weft_prefetch_open(options->dataset, &feed, &s->feed));
    return weft_hand(&s, out);
}

void weft_train_step_close(weft_train_step *s) {
    if (!s) return;
    weft_prefetch_close(s->feed);
    weft_gradients_destroy(s->gradients);
    weft_contrast_close(s->contrast);
    weft_session_close(&s->session);
    WEFT_FREE(s->losses, s->targets, s);
}

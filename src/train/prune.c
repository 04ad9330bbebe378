/* Pruning while training: the masks of optimizer.h, made on the host from the weights and the optimizer's
 * state, and applied by each step behind the update.
 *
 * A weight's scores are compared within its matrix, a unit's within its layer, so that each loses the same
 * share, exactly. What is masked counts as lower than all else: masks only grow. Every rank makes them by the
 * same calls; where ranks share the state, rank 0 gets what it has to compare, and its masks go to the
 * owners. */
#include "model/units.h"
#include "train/optimizer_internal.h"

/* A weight's tensor of a kind, whole: *data. Where it is shared, rank 0's alone has all, and is to be
 * freed: *own. */
static weft_status get_state(const weft_optimizer *o, int kind, const weft_weight *w,
                             unsigned char **own, const unsigned char **data) {
    int64_t index = weft_optimizer_state_of(o, kind, w - o->model->weights);
    *data = o->state[index].data;
    if (!o->comm) return WEFT_OK;
    *data = *own = calloc((size_t)o->state[index].bytes, 1);
    return *own ? weft_optimizer_move(o, index, *own, true) : weft_no_memory("pruning");
}

static weft_status read_other(void *context, const weft_weight *w, double *out) {
    const weft_optimizer *o = context;
    bool state = o->model->config.prune == WEFT_PRUNING_STATE;
    WEFT_AUTO_FREE unsigned char *own = NULL;
    const unsigned char *data;
    WEFT_TRY(get_state(o, state ? WEFT_STATE_V : WEFT_STATE_START, w, &own, &data));
    weft_weight read = {.dtype = o->dtype, .count = w->count, .data = (void *)(uintptr_t)data};
    weft_weight_read(&read, out);
    return WEFT_OK;
}

static weft_status read_mask(void *context, const weft_weight *w, bool *out) {
    WEFT_AUTO_FREE unsigned char *own = NULL;
    const unsigned char *data;
    WEFT_TRY(get_state(context, WEFT_STATE_MASK, w, &own, &data));
    for (int64_t i = 0; i < w->count; i++)
        out[i] = data[i] != 0;
    return WEFT_OK;
}

/* The new mask of a weight: by its units, or by its own scores. */
static weft_status mask_weight(const weft_optimizer *o, const weft_weighing *how,
                               const weft_units *u, const weft_weight *w, double sparsity) {
    WEFT_AUTO_FREE double *scores = NULL;
    WEFT_ROOM(bool, stay, w->count, "pruning: no memory");
    if (u->units) {
        weft_units_mark(u, w, stay);
    } else {
        WEFT_TRY(weft_weigh(w, how, &scores));
        weft_mark_largest(scores, w->count, w->count - weft_masked_of(sparsity, w->count), stay);
    }
    int64_t index = weft_optimizer_state_of(o, WEFT_STATE_MASK, w - o->model->weights);
    unsigned char *mask = o->comm ? weft_message_memory((size_t)w->count, 1) : o->state[index].data;
    if (!mask) return weft_no_memory("pruning");
    for (int64_t i = 0; i < w->count; i++)
        mask[i] = stay[i];
    if (!o->comm) return WEFT_OK;
    weft_status status = weft_optimizer_move(o, index, mask, false);
    weft_message_done(mask, status);
    return status;
}

/* The share that is masked at a sparsity: of the units, or of the weights that have masks. */
static double share_of(const weft_optimizer *o, const weft_units *u, double sparsity) {
    int64_t masked = 0, all = 0;
    if (u->units) return (double)weft_masked_of(sparsity, u->block) / (double)u->block;
    const weft_model *m = o->model;
    for (const weft_weight *w = m->weights; w < m->weights + m->n_weights; w++) {
        if (!weft_weight_is_masked(&m->config, w->name, w->ndim)) continue;
        masked += weft_masked_of(sparsity, w->count);
        all += w->count;
    }
    return all ? (double)masked / (double)all : 0;
}

static weft_status make_masks(weft_optimizer *o, weft_units *u, double sparsity, double share) {
    static const weft_prune_by by[] = {[WEFT_PRUNING_MAGNITUDE] = WEFT_BY_MAGNITUDE,
                                       [WEFT_PRUNING_MOVEMENT] = WEFT_BY_MOVEMENT,
                                       [WEFT_PRUNING_STATE] = WEFT_BY_STATE};
    weft_weighing how = {by[o->model->config.prune], read_other, read_mask, o};
    WEFT_TRY(weft_mirror_use(o->model->mirror, NULL));
    WEFT_TRY(weft_mirror_use(o->mirror, NULL));
    int64_t left = u->block - weft_masked_of(sparsity, u->block);
    WEFT_ROOM(double, sums, u->units + 1, "pruning: no memory");
    for (int64_t l = 0; u->units && l < u->n_layers; l++) {
        WEFT_TRY(weft_units_weigh(u, o->model, l, &how, sums));
        weft_units_choose(u, l, sums, left);
    }
    const weft_model *m = o->model;
    for (const weft_weight *w = m->weights; w < m->weights + m->n_weights; w++)
        if (weft_weight_is_masked(&m->config, w->name, w->ndim))
            WEFT_TRY(mask_weight(o, &how, u, w, sparsity));
    if (o->dtype == WEFT_F64)
        ((double *)o->control_state)[WEFT_ADAM_MASKED] = share;
    else
        ((float *)o->control_state)[WEFT_ADAM_MASKED] = (float)share;
    weft_mirror_wrote(o->mirror, NULL);
    o->pruned = true;
    return WEFT_OK;
}

weft_status weft_optimizer_prune(weft_optimizer *o, double sparsity) {
    WEFT_AUTO(weft_units_free) weft_units units = {0};
    double now, age;
    o->pruned = false;
    if (!(sparsity > 0)) return WEFT_OK;
    WEFT_TRY(weft_prune_check(&o->model->config, "config", &units));
    WEFT_TRY(weft_optimizer_numbers(o, WEFT_ADAM_MASKED, 1, &now));
    WEFT_TRY(weft_optimizer_numbers(o, WEFT_ADAM_AGE, 1, &age));
    double share = share_of(o, &units, sparsity);
    if (o->dtype == WEFT_F32) share = (double)(float)share;
    /* Before the first step, and behind a reset, neither moments nor movement tell one from another: the
     * next step makes up for it, as for one that came to nothing. */
    bool blind = age == 0 && o->model->config.prune != WEFT_PRUNING_MAGNITUDE;
    return share > now && !blind ? make_masks(o, &units, sparsity, share) : WEFT_OK;
}

/* Which units stay, and tensors cut. What a unit is, and which weights belong to it, is model/units.h's. */
#include "convert/prune.h"

#include <math.h>

/* An optimizer's second moments of a weight, as doubles. */
static weft_status read_moments(void *context, const weft_weight *w, double *out) {
    const weft_safetensors *state = context;
    char name[160], first[160];
    snprintf(name, sizeof name, "v.%s", w->name);
    snprintf(first, sizeof first, "m.%s", w->name);
    const weft_safetensor *t = weft_safetensors_find(state, name);
    if (!t && weft_safetensors_find(state, first))
        return WEFT_BAD_INPUT(
            "optimizer.safetensors: '%s' has no second moments, since OPTIMIZER=muon "
            "keeps none of a layer's matrices; --by magnitude needs none",
            w->name);
    bool wide = t && t->dtype == WEFT_FILE_F64;
    if (!t || (!wide && t->dtype != WEFT_FILE_F32) || t->bytes != w->count * (wide ? 8 : 4))
        return WEFT_BAD_INPUT("optimizer.safetensors: '%s' is not there in the weight's shape; is "
                              "it another model's?",
                              name);
    weft_safetensor_values(t, 0, w->count, out);
    return WEFT_OK;
}

typedef struct {
    const weft_model *from;
    weft_model *to;
    const weft_prune_options *options;
    weft_units units;
    bool columns; /* W_c becomes two matrices */
} cutting;

static weft_status choose_layer(cutting *v, int64_t layer, const weft_pruned *did) {
    const weft_prune_options *o = v->options;
    weft_units *units = &v->units;
    const double *given = o->given ? o->given + layer * units->units : NULL;
    bool known = given && isfinite(given[0]), state = o->state && !given;
    weft_weighing how = {.by = state ? WEFT_BY_CURVATURE : WEFT_BY_MAGNITUDE,
                         .read = read_moments,
                         .context = (void *)(uintptr_t)o->state};
    weft_pruned_layer *out = &did->layers[layer];
    WEFT_ROOM(double, own, units->units, "prune: no memory");
    const double *sums = known ? given : own;
    double all = 0, held = 0;
    int64_t at = 0;
    WEFT_ROOM_AT(out->kept, did->left, "prune: no memory");
    if (!known) WEFT_TRY(weft_units_weigh(units, v->from, layer, &how, own));
    weft_units_choose(units, layer, sums, did->left * units->block / units->units);
    for (int64_t u = 0; u < units->units; u++) {
        all += sums[u];
        if (!units->kept[layer * units->units + u]) continue;
        held += sums[u];
        out->kept[at++] = u;
    }
    out->share = all > 0 ? held / all : 1;
    return WEFT_OK;
}

/* A tensor of the new model from the old one's: what stays, one after the other, or zeros in between. */
static weft_status cut(const cutting *v, const weft_weight *from, weft_weight *to) {
    WEFT_ROOM(double, values, from->count, "prune: no memory");
    WEFT_ROOM(bool, stay, from->count, "prune: no memory");
    int64_t at = 0;
    weft_weight_read(from, values);
    weft_units_mark(&v->units, from, stay);
    for (int64_t i = 0; i < from->count; i++) {
        if (stay[i])
            values[v->options->sparse ? i : at] = values[i];
        else if (v->options->sparse)
            values[i] = 0;
        at += stay[i];
    }
    if ((v->options->sparse ? from->count : at) != to->count)
        return weft_fail(WEFT_EBUG, "prune: '%s' has %lld numbers left, not %lld", to->name,
                         (long long)at, (long long)to->count);
    weft_weight_write(to, values);
    return WEFT_OK;
}

/* W_c [F, F] with few columns left: those of it [F, r], behind a matrix [r, F] of ones that picks what
 * they read. */
static weft_status cut_cross(const cutting *v, int64_t layer) {
    const weft_weight *whole = weft_layer_weight(v->from, layer, "ffn.cross_proj.weight");
    weft_weight *down = weft_layer_weight(v->to, layer, "ffn.cross_down.weight");
    weft_weight *up = weft_layer_weight(v->to, layer, "ffn.cross_up.weight");
    int64_t ffn = whole->shape[0], rank = down->shape[0], r = 0;
    WEFT_ROOM(double, all, whole->count, "prune: no memory");
    WEFT_ROOM(double, picks, down->count, "prune: no memory");
    WEFT_ROOM(double, columns, up->count, "prune: no memory");
    weft_weight_read(whole, all);
    for (int64_t j = 0; j < ffn; j++) {
        if (!v->units.kept[layer * v->units.units + j]) continue;
        picks[r * ffn + j] = 1;
        for (int64_t i = 0; i < ffn; i++)
            columns[i * rank + r] = all[i * ffn + j];
        r++;
    }
    weft_weight_write(down, picks);
    weft_weight_write(up, columns);
    return WEFT_OK;
}

/* How many of the units stay: at least one of each block, and not all. */
static weft_status count_left(const cutting *v, weft_pruned *did) {
    const weft_prune_options *o = v->options;
    int64_t block = v->units.block, blocks = did->units / block;
    int64_t left = (int64_t)llround(o->keep * (double)block);
    if (left < 1) left = 1;
    if (left >= block)
        return WEFT_BAD_INPUT(
            "--keep %g: of %lld none would be removed; a smaller share removes some", o->keep,
            (long long)block);
    did->left = left * blocks;
    if (v->columns && 2 * did->left >= did->units)
        return WEFT_BAD_INPUT(
            "--keep %g: %lld columns with the matrix that picks them have as many parameters as "
            "W_c itself; keep less than half, or --sparse zeroes columns in place",
            o->keep, (long long)did->left);
    return WEFT_OK;
}

static void end_cutting(cutting *v) {
    weft_units_free(&v->units);
    weft_model_destroy(v->to);
}

weft_status weft_prune(const weft_model *m, const weft_prune_options *options, weft_model **out,
                       weft_pruned *did) {
    WEFT_AUTO(end_cutting) cutting v = {.from = m, .options = options};
    weft_config c = m->config;
    v.columns = options->what == WEFT_PRUNE_CROSS && !c.cross_rank && !options->sparse;
    *out = NULL;
    *did = (weft_pruned){.n_layers = c.n_layer};
    c.prune = WEFT_PRUNING_NONE; /* its masks are of the whole model */
    WEFT_TRY(weft_units_make(&m->config, options->what, options->sparse, "--what ", &v.units));
    did->units = v.units.units;
    WEFT_TRY(count_left(&v, did));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_ROOM_AT(did->layers, did->n_layers, "prune: no memory");
    for (int64_t l = 0; l < did->n_layers; l++)
        WEFT_TRY(choose_layer(&v, l, did));
    if (!options->sparse && options->what == WEFT_PRUNE_HEADS) {
        int64_t group = c.n_head / weft_config_kv_heads(&c);
        c.head_dim = weft_config_head_dim(&c);
        c.n_head = did->left * group;
        if (c.kv_heads) c.kv_heads = did->left;
    }
    if (!options->sparse && options->what == WEFT_PRUNE_FFN) c.n_ffn = did->left;
    if (!options->sparse && options->what == WEFT_PRUNE_Z_HEADS) {
        c.n_ffn = weft_config_ffn_dim(&c) / did->units * did->left;
        c.wsffn_n_head = did->left;
    }
    if (!options->sparse && options->what == WEFT_PRUNE_CROSS) c.cross_rank = did->left;
    WEFT_TRY(weft_model_create(&c, m->dtype, NULL, &v.to));
    for (weft_weight *to = v.to->weights; to < v.to->weights + v.to->n_weights; to++) {
        const weft_weight *from = weft_model_find(v.from, to->name);
        if (!from) continue; /* of cut_cross */
        if (strncmp(to->name, "h.", 2) == 0)
            WEFT_TRY(cut(&v, from, to));
        else
            memcpy(to->data, from->data, (size_t)to->bytes);
    }
    for (int64_t l = 0; v.columns && l < did->n_layers; l++)
        WEFT_TRY(cut_cross(&v, l));
    weft_mirror_wrote(v.to->mirror, NULL);
    return weft_hand(&v.to, out);
}

void weft_pruned_free(weft_pruned *did) {
    for (int64_t l = 0; did->layers && l < did->n_layers; l++)
        free(did->layers[l].kept);
    free(did->layers);
    *did = (weft_pruned){0};
}

/* Choosing units and cutting tensors.
 *
 * Tensors are looked at as [outer, n, inner] along one axis at a time. A tensor with several pieces
 * keeps the indices that no piece of a removed unit has; what belongs to no unit stays. */
#include "convert/prune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "prune: no memory");
}

static weft_weight *layer_weight(const weft_model *m, int64_t layer, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "h.%lld.%.96s", (long long)layer, name);
    return weft_model_find(m, full);
}

/* Numbers from one index of an axis to the next. */
static int64_t stride_of(const weft_weight *w, int axis) {
    int64_t stride = 1;
    for (int d = axis + 1; d < w->ndim; d++)
        stride *= w->shape[d];
    return stride;
}

/* An optimizer's second moments of a weight, as doubles. */
static weft_status read_moments(const weft_safetensors *state, const weft_weight *w, double *out) {
    char name[160];
    snprintf(name, sizeof name, "v.%s", w->name);
    const weft_safetensor *t = weft_safetensors_find(state, name);
    bool wide = t && t->dtype == WEFT_FILE_F64;
    if (!t || (!wide && t->dtype != WEFT_FILE_F32) || t->bytes != w->count * (wide ? 8 : 4))
        return weft_fail(WEFT_EINPUT,
                         "optimizer.safetensors: '%s' is not there in the weight's shape; is it "
                         "another model's?",
                         name);
    for (int64_t i = 0; i < w->count; i++) {
        float value;
        if (wide)
            memcpy(&out[i], (const char *)t->data + 8 * i, 8);
        else
            memcpy(&value, (const char *)t->data + 4 * i, 4);
        if (!wide) out[i] = (double)value;
    }
    return WEFT_OK;
}

/* The importance of each element: w², or w² v. */
static weft_status weigh(const weft_weight *w, const weft_safetensors *state, double **out) {
    double *values = malloc((size_t)w->count * sizeof *values);
    double *moments = state ? malloc((size_t)w->count * sizeof *moments) : NULL;
    weft_status status = !values || (state && !moments) ? no_memory() : WEFT_OK;
    if (status == WEFT_OK && state) status = read_moments(state, w, moments);
    if (status == WEFT_OK) weft_weight_read(w, values);
    for (int64_t i = 0; status == WEFT_OK && i < w->count; i++)
        values[i] *= values[i] * (state ? moments[i] : 1);
    free(moments);
    if (status != WEFT_OK) {
        free(values);
        values = NULL;
    }
    *out = values;
    return status;
}

/* The unit that a piece gives an index to; -1: none. */
static int64_t unit_of(const weft_prune_piece *p, int64_t index, int64_t units) {
    int64_t from = index - p->first;
    return from >= 0 && from < units * p->size ? from / p->size : -1;
}

/* Adds the importance of one piece's elements to its units. */
static weft_status add_piece(const weft_weight *w, const weft_prune_piece *p,
                             const weft_safetensors *state, int64_t units, double *sums) {
    double *values;
    int64_t stride = stride_of(w, p->axis), n = w->shape[p->axis];
    WEFT_TRY(weigh(w, state, &values));
    for (int64_t i = 0; i < w->count; i++) {
        int64_t unit = unit_of(p, i / stride % n, units);
        if (unit >= 0) sums[unit] += values[i];
    }
    free(values);
    return WEFT_OK;
}

/* How important each unit of a layer is. */
static weft_status weigh_units(const weft_model *m, const weft_prune_options *o, int64_t layer,
                               int64_t units, double *sums) {
    weft_prune_piece pieces[WEFT_PRUNE_PIECES];
    int n = weft_prune_pieces(&m->config, o->what, pieces);
    const double *given = o->given ? o->given + layer * units : NULL;
    bool known = given && isfinite(given[0]);
    memset(sums, 0, (size_t)units * sizeof *sums);
    for (int i = 0; i < n && !known; i++) {
        const weft_weight *w = layer_weight(m, layer, pieces[i].name);
        if (w && pieces[i].counts)
            WEFT_TRY(add_piece(w, &pieces[i], given ? NULL : o->state, units, sums));
    }
    if (known) memcpy(sums, given, (size_t)units * sizeof *sums);
    return WEFT_OK;
}

/* The `left` most important of a block of n; of equal ones the first. */
static void choose_block(const double *sums, int64_t n, int64_t left, bool *kept) {
    for (int64_t taken = 0; taken < left; taken++) {
        int64_t best = -1;
        for (int64_t u = 0; u < n; u++)
            if (!kept[u] && (best < 0 || sums[u] > sums[best])) best = u;
        kept[best] = true;
    }
}

static weft_status choose_layer(const weft_model *m, const weft_prune_options *o, int64_t layer,
                                const weft_pruned *did, bool *kept) {
    int64_t units = did->units, block = weft_prune_block(&m->config, o->what, units), at = 0;
    weft_pruned_layer *out = &did->layers[layer];
    double *sums = malloc((size_t)units * sizeof *sums), all = 0, held = 0;
    out->kept = malloc((size_t)did->left * sizeof *out->kept);
    weft_status status = sums && out->kept ? WEFT_OK : no_memory();
    if (status == WEFT_OK) status = weigh_units(m, o, layer, units, sums);
    for (int64_t first = 0; status == WEFT_OK && first < units; first += block)
        choose_block(sums + first, block, did->left * block / units, kept + first);
    for (int64_t u = 0; status == WEFT_OK && u < units; u++) {
        all += sums[u];
        if (!kept[u]) continue;
        held += sums[u];
        out->kept[at++] = u;
    }
    out->share = all > 0 ? held / all : 1;
    free(sums);
    return status;
}

/* Whether an index of a tensor's axis stays. `kept` is of the layer, `next` of the one behind it. */
static bool stays(const weft_prune_piece *pieces, int n, const char *name, int axis, int64_t index,
                  int64_t units, const bool *kept, const bool *next, bool only_zeroed) {
    for (int i = 0; i < n; i++) {
        const weft_prune_piece *p = &pieces[i];
        if (p->axis != axis || strcmp(p->name, name) != 0 || (only_zeroed && !p->zeroed)) continue;
        int64_t unit = unit_of(p, index, units);
        if (unit >= 0 && !(p->next ? next : kept)[unit]) return false;
    }
    return true;
}

/* The model, what is pruned of it, and which units stay: [layers, units]. */
typedef struct {
    const weft_model *from;
    weft_model *to;
    const weft_prune_options *options;
    weft_prune_piece pieces[WEFT_PRUNE_PIECES];
    int n_pieces;
    int64_t units;
    bool *kept;
} cutting;

/* Columns within z-heads that have a matrix each, [n, z, z]: both a row's and a column's own. */
static void mark_grouped(const weft_weight *w, const bool *kept, bool *stay) {
    int64_t z = w->shape[1];
    for (int64_t i = 0; i < w->count; i++) {
        int64_t head = i / (z * z) * z;
        stay[i] = kept[head + i / z % z] && kept[head + i % z];
    }
}

/* Marks which elements of a tensor stay: those whose indices all do. */
static void mark(const cutting *v, int64_t layer, const char *name, const weft_weight *w,
                 bool *stay) {
    int64_t last = v->from->config.n_layer - 1;
    const bool *kept = v->kept + layer * v->units,
               *next = v->kept + (layer < last ? layer + 1 : last) * v->units;
    for (int64_t i = 0; i < w->count; i++)
        stay[i] = true;
    if (v->options->what == WEFT_PRUNE_FFN && w->ndim == 3 && !v->options->sparse &&
        strcmp(name, "ffn.z_proj.weight") == 0)
        mark_grouped(w, kept, stay);
    for (int axis = 0; axis < w->ndim; axis++) {
        int64_t stride = stride_of(w, axis), n = w->shape[axis];
        for (int64_t index = 0; index < n; index++) {
            if (stays(v->pieces, v->n_pieces, name, axis, index, v->units, kept, next,
                      v->options->sparse))
                continue;
            for (int64_t outer = 0; outer < w->count / (n * stride); outer++)
                memset(stay + (outer * n + index) * stride, 0, (size_t)stride);
        }
    }
}

/* A tensor of the new model from the old one's: what stays, one after the other, or zeros in between. */
static weft_status cut(const cutting *v, int64_t layer, const char *name, const weft_weight *from,
                       weft_weight *to) {
    double *values = malloc((size_t)from->count * sizeof *values);
    bool *stay = malloc((size_t)from->count);
    weft_status status = values && stay ? WEFT_OK : no_memory();
    int64_t at = 0;
    if (status == WEFT_OK) {
        weft_weight_read(from, values);
        mark(v, layer, name, from, stay);
    }
    for (int64_t i = 0; status == WEFT_OK && i < from->count; i++) {
        if (stay[i])
            values[v->options->sparse ? i : at] = values[i];
        else if (v->options->sparse)
            values[i] = 0;
        at += stay[i];
    }
    if (status == WEFT_OK && (v->options->sparse ? from->count : at) != to->count)
        status = weft_fail(WEFT_EBUG, "prune: '%s' has %lld numbers left, not %lld", to->name,
                           (long long)at, (long long)to->count);
    if (status == WEFT_OK) weft_weight_write(to, values);
    free(values);
    free(stay);
    return status;
}

/* W_c [F, F] with few columns left: those of it [F, r], behind a matrix [r, F] of ones that picks what
 * they read. */
static weft_status cut_cross(const cutting *v, int64_t layer) {
    const weft_weight *whole = layer_weight(v->from, layer, "ffn.cross_proj.weight");
    weft_weight *down = layer_weight(v->to, layer, "ffn.cross_down.weight");
    weft_weight *up = layer_weight(v->to, layer, "ffn.cross_up.weight");
    int64_t ffn = whole->shape[0], rank = down->shape[0], r = 0;
    double *all = malloc((size_t)whole->count * sizeof *all);
    double *picks = calloc((size_t)down->count, sizeof *picks);
    double *columns = malloc((size_t)up->count * sizeof *columns);
    weft_status status = all && picks && columns ? WEFT_OK : no_memory();
    if (status == WEFT_OK) weft_weight_read(whole, all);
    for (int64_t j = 0; status == WEFT_OK && j < ffn; j++) {
        if (!v->kept[layer * v->units + j]) continue;
        picks[r * ffn + j] = 1;
        for (int64_t i = 0; i < ffn; i++)
            columns[i * rank + r] = all[i * ffn + j];
        r++;
    }
    if (status == WEFT_OK) {
        weft_weight_write(down, picks);
        weft_weight_write(up, columns);
    }
    free(all);
    free(picks);
    free(columns);
    return status;
}

/* The layer and the name within it of "h.I.NAME"; false: it is no layer's. */
static bool in_layer(const char *full, int64_t *layer, const char **name) {
    char *end;
    if (strncmp(full, "h.", 2) != 0) return false;
    *layer = strtoll(full + 2, &end, 10);
    *name = end + 1;
    return *end == '.';
}

static weft_status cut_all(const cutting *v) {
    for (int64_t i = 0; i < v->to->n_weights; i++) {
        weft_weight *to = &v->to->weights[i];
        const weft_weight *from = weft_model_find(v->from, to->name);
        const char *name = NULL;
        int64_t layer = 0;
        if (!from) continue; /* of cut_cross */
        if (in_layer(to->name, &layer, &name))
            WEFT_TRY(cut(v, layer, name, from, to));
        else
            memcpy(to->data, from->data, (size_t)to->bytes);
    }
    bool columns = v->options->what == WEFT_PRUNE_CROSS && !v->from->config.cross_rank;
    for (int64_t l = 0; l < v->from->config.n_layer && columns && !v->options->sparse; l++)
        WEFT_TRY(cut_cross(v, l));
    weft_mirror_wrote(v->to->mirror, NULL);
    return WEFT_OK;
}

/* How many of the units stay: at least one of each block, and not all. */
static weft_status count_left(const weft_config *c, const weft_prune_options *o, weft_pruned *did) {
    int64_t block = weft_prune_block(c, o->what, did->units), blocks = did->units / block;
    int64_t left = (int64_t)llround(o->keep * (double)block);
    if (left < 1) left = 1;
    if (left >= block)
        return weft_fail(WEFT_EINPUT,
                         "--keep %g: of %lld none would be removed; a smaller share removes some",
                         o->keep, (long long)block);
    did->left = left * blocks;
    bool columns = o->what == WEFT_PRUNE_CROSS && !c->cross_rank && !o->sparse;
    if (columns && 2 * did->left >= did->units)
        return weft_fail(
            WEFT_EINPUT,
            "--keep %g: %lld columns with the matrix that picks them have as many "
            "parameters as W_c itself; keep less than half, or --sparse zeroes columns "
            "in place",
            o->keep, (long long)did->left);
    return WEFT_OK;
}

static weft_status prune(cutting *v, weft_pruned *did) {
    const weft_config *from = &v->from->config;
    weft_config c = *from;
    for (int64_t l = 0; l < did->n_layers; l++)
        WEFT_TRY(choose_layer(v->from, v->options, l, did, v->kept + l * did->units));
    if (!v->options->sparse) weft_prune_config(&c, v->options->what, did->units, did->left);
    WEFT_TRY(weft_model_create(&c, v->from->dtype, &v->to));
    return cut_all(v);
}

weft_status weft_prune(const weft_model *m, const weft_prune_options *options, weft_model **out,
                       weft_pruned *did) {
    const weft_config *c = &m->config;
    cutting v = {.from = m, .options = options};
    *out = NULL;
    *did = (weft_pruned){.n_layers = c->n_layer};
    WEFT_TRY(weft_prune_units(c, options->what, options->sparse, &did->units));
    WEFT_TRY(count_left(c, options, did));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    v.units = did->units;
    v.n_pieces = weft_prune_pieces(c, options->what, v.pieces);
    v.kept = calloc((size_t)(c->n_layer * did->units), sizeof *v.kept);
    did->layers = calloc((size_t)c->n_layer, sizeof *did->layers);
    weft_status status = v.kept && did->layers ? prune(&v, did) : no_memory();
    free(v.kept);
    if (status == WEFT_OK) {
        *out = v.to;
        return WEFT_OK;
    }
    weft_model_destroy(v.to);
    weft_pruned_free(did);
    return status;
}

void weft_pruned_free(weft_pruned *did) {
    for (int64_t l = 0; did->layers && l < did->n_layers; l++)
        free(did->layers[l].kept);
    free(did->layers);
    *did = (weft_pruned){0};
}

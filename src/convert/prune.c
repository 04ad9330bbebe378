/* What a unit is (which rows and columns of which tensors belong to it, kind by kind), which units stay, and
 * tensors cut.
 *
 * Tensors are looked at as [outer, n, inner] along one axis at a time. A tensor with several pieces
 * keeps the indices that no piece of a removed unit has; what belongs to no unit stays. */
#include "convert/prune.h"
#include "base/scope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES_MOST = 32 };

/* A tensor of a layer that units have a part of: along `axis`, unit u has the
 * indices from `first` + u · `size` on, `size` of them. A tensor may have several of these. */
typedef struct {
    char name[64]; /* without "h.I." */
    int axis;
    int64_t first, size;
    bool counts; /* its weights count for importance */
    bool zeroed; /* in a sparse model; others are left as they are, since nothing reads them then */
    bool next;   /* it is about the units of the next layer: the gates of its heads */
} prune_piece;

static weft_status refuse(const char *what, const char *why) {
    return weft_fail(WEFT_EINPUT, "--what %s: %s", what, why);
}

/* Heads have places of their own in ALiBi's slopes, in a shared map of queries and in the scalar
 * coupling's groups: with some gone, the others would be other heads. */
static weft_status check_heads(const weft_config *c, bool sparse) {
    bool mla = c->attention == WEFT_ATTENTION_MLA;
    if (c->kv_share > 1)
        return refuse("heads",
                      "with CONFIG_KV_SHARE layers read the keys of others, so a head is not "
                      "one layer's; --what ffn takes any model");
    if (c->qk_norm && c->qk_norm_whole)
        return refuse("heads",
                      "CONFIG_QK_NORM_WHOLE=y norms all heads together, so without one the "
                      "others are not what they were");
    if (sparse) return WEFT_OK;
    if (mla && c->ra_mla_latent_heads > 1)
        return refuse("heads",
                      "with CONFIG_RA_MLA_LATENT_HEADS a head reads a latent by its number, so "
                      "none can be removed; --sparse zeroes them in place");
    if (c->position == WEFT_POSITION_ALIBI)
        return refuse("heads",
                      "CONFIG_POSITION=\"alibi\" gives each head its slope by its number, so "
                      "none can be removed; --sparse zeroes them in place");
    if (mla && !c->ra_mla_per_head_q_latent)
        return refuse("heads", "with CONFIG_RA_MLA_PER_HEAD_Q_LATENT=n all heads make one query "
                               "together, so none can be removed; --sparse zeroes them in place");
    if (c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR)
        return refuse("heads",
                      "CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" divides the latent "
                      "by heads, so none can be removed; --sparse zeroes them in place");
    return WEFT_OK;
}

static weft_status check_columns(const weft_config *c, const char *what, bool sparse) {
    if (!sparse && c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR)
        return refuse(what, "CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" divides the "
                            "feed-forward by heads, so no column can be removed; --sparse zeroes "
                            "them in place");
    return WEFT_OK;
}

weft_status weft_prune_units(const weft_config *c, weft_prune_what what, bool sparse,
                             int64_t *units) {
    int64_t ffn = weft_config_ffn_dim(c);
    *units = 0;
    if (what == WEFT_PRUNE_HEADS) WEFT_TRY(check_heads(c, sparse));
    if (what == WEFT_PRUNE_Z_HEADS && c->ffn != WEFT_FFN_WSFFN)
        return refuse("z-heads", "only CONFIG_FFN=\"wsffn\" has them; --what ffn removes columns "
                                 "of any feed-forward");
    if (what == WEFT_PRUNE_FFN) WEFT_TRY(check_columns(c, "ffn", sparse));
    if (what == WEFT_PRUNE_Z_HEADS) WEFT_TRY(check_columns(c, "z-heads", sparse));
    if (what == WEFT_PRUNE_CROSS && !c->cross_token)
        return refuse("cross", "the model has no cross-token mechanism "
                               "(CONFIG_RA_MLA_MLP_CROSS_TOKEN)");
    *units = what == WEFT_PRUNE_HEADS     ? weft_config_kv_heads(c)
             : what == WEFT_PRUNE_FFN     ? ffn
             : what == WEFT_PRUNE_Z_HEADS ? c->wsffn_n_head
             : c->cross_rank              ? c->cross_rank
                                          : ffn;
    return WEFT_OK;
}

/* A list of pieces being made. */
typedef struct {
    prune_piece *pieces;
    int n;
} listing;

static prune_piece *add(listing *l, const char *name, int axis, int64_t first, int64_t size) {
    prune_piece *p = &l->pieces[l->n++];
    *p = (prune_piece){.axis = axis, .first = first, .size = size, .counts = true};
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

static void add_zeroed(listing *l, const char *name, int axis, int64_t first, int64_t size) {
    add(l, name, axis, first, size)->zeroed = true;
}

/* One projection has all queries, keys and values, one after the other; a unit is a key head with the
 * query heads that share it. */
static void list_packed(const weft_config *c, listing *l) {
    int64_t d = weft_config_head_dim(c), kv = weft_config_kv_heads(c), h = c->n_head;
    static const char *const names[] = {"attn.qkv.weight", "attn.qkv.bias"};
    for (int i = 0; i < 2; i++) {
        add(l, names[i], 0, 0, h / kv * d);
        add(l, names[i], 0, h * d, d);
        add_zeroed(l, names[i], 0, (h + kv) * d, d);
    }
    add(l, "attn.log_tau", 0, 0, h / kv)->counts = false;
    add_zeroed(l, "attn.out.weight", 1, 0, h / kv * d);
}

static void list_w2(const weft_config *c, listing *l) {
    int64_t d = weft_config_head_dim(c), group = c->n_head / weft_config_kv_heads(c);
    int64_t width = weft_config_w2_width(c);
    add(l, "attn.q.weight", 0, 0, group * width);
    add(l, "attn.q.bias", 0, 0, group * width);
    add(l, "attn.k.weight", 0, 0, width);
    add(l, "attn.k.bias", 0, 0, width);
    add_zeroed(l, "attn.v.weight", 0, 0, d);
    add_zeroed(l, "attn.v.bias", 0, 0, d);
    add(l, "attn.log_tau", 0, 0, group)->counts = false;
    add_zeroed(l, "attn.out.weight", 1, 0, group * d);
}

static void list_gta(const weft_config *c, listing *l) {
    int64_t d = weft_config_head_dim(c), group = c->n_head / weft_config_kv_heads(c);
    add(l, "attn.q.weight", 0, 0, group * d);
    add(l, "attn.q.bias", 0, 0, group * d);
    add_zeroed(l, "attn.kv.weight", 0, 0, d);
    add_zeroed(l, "attn.kv.bias", 0, 0, d);
    add_zeroed(l, "attn.out.weight", 1, 0, group * d);
}

static void list_mla(const weft_config *c, listing *l) {
    int64_t d = weft_config_head_dim(c);
    if (c->ra_mla_per_head_q_latent) {
        add(l, "attn.q.weight", 0, 0, d);
        add(l, "attn.q.bias", 0, 0, d);
        add(l, "attn.q_latent", 0, 0, 1);
    }
    if (c->ra_mla_rope_dim) {
        add(l, "attn.q_rope.weight", 0, 0, c->ra_mla_rope_dim);
        add(l, "attn.q_rope.bias", 0, 0, c->ra_mla_rope_dim);
    }
    if (c->ra_mla_per_head_v_up) add_zeroed(l, "attn.v_up", 0, 0, 1);
    add(l, "attn.log_tau", 0, 0, 1)->counts = false;
    add_zeroed(l, "attn.out.weight", 1, 0, d);
}

static void list_heads(const weft_config *c, listing *l) {
    int64_t group = c->n_head / weft_config_kv_heads(c);
    if (c->attention == WEFT_ATTENTION_W2)
        list_w2(c, l);
    else if (c->attention == WEFT_ATTENTION_MLA)
        list_mla(c, l);
    else if (c->attention == WEFT_ATTENTION_GTA)
        list_gta(c, l);
    else
        list_packed(c, l);
    bool by_head = c->attention_gate == WEFT_ATTENTION_GATE_HEAD;
    add(l, "attn.out_gate.weight", 0, 0, by_head ? group : group * weft_config_head_dim(c))
        ->counts = false;
    static const char *const gates[] = {"ffn.gate_heads.weight", "ffn.gate_heads.bias"};
    for (size_t i = 0; i < sizeof gates / sizeof gates[0]; i++) {
        prune_piece *made = add(l, gates[i], 0, 0, group);
        made->counts = false;
        made->next = true;
    }
}

/* `size` columns for each unit. A column of h that is zero before the mechanisms must stay so behind
 * them: nothing may be added to it. */
static void list_columns(const weft_config *c, listing *l, int64_t size) {
    static const char *const rows[] = {"ffn.fc.weight",       "ffn.fc.bias",
                                       "ffn.w1.bias",         "ffn.w3.bias",
                                       "ffn.w1.weight",       "ffn.w3.weight",
                                       "ffn.cross_up.weight", "ffn.cross_proj.weight",
                                       "ffn.couple.weight",   "ffn.attn_to_mlp.weight"};
    static const char *const columns[] = {"ffn.proj.weight",       "ffn.w2.weight",
                                          "ffn.gate_proj.weight",  "ffn.cross_down.weight",
                                          "ffn.cross_proj.weight", "ffn.mlp_down.weight"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        add_zeroed(l, rows[i], 0, 0, size);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        add_zeroed(l, columns[i], 1, 0, size);
    /* No output of the model depends on these. */
    add(l, "ffn.z_logits.weight", 1, 0, size)->counts = false;
    for (int axis = 0; axis < 2 && c->wsffn_z_proj == WEFT_Z_DENSE; axis++)
        add(l, "ffn.z_proj.weight", axis, 0, size)->counts = false;
}

static int list_pieces(const weft_config *c, weft_prune_what what, prune_piece *pieces) {
    listing l = {pieces, 0};
    if (what == WEFT_PRUNE_HEADS) list_heads(c, &l);
    if (what == WEFT_PRUNE_FFN) list_columns(c, &l, 1);
    if (what == WEFT_PRUNE_Z_HEADS) {
        list_columns(c, &l, weft_config_ffn_dim(c) / c->wsffn_n_head);
        if (c->wsffn_z_proj == WEFT_Z_GROUPED)
            add(&l, "ffn.z_proj.weight", 0, 0, 1)->counts = false;
    }
    if (what == WEFT_PRUNE_CROSS) {
        add_zeroed(&l, "ffn.cross_proj.weight", 1, 0, 1);
        add_zeroed(&l, "ffn.cross_down.weight", 0, 0, 1);
        add_zeroed(&l, "ffn.cross_up.weight", 1, 0, 1);
    }
    return l.n;
}

/* Units that must lose alike come in blocks of neighbours: how many units a block has; all: one block. */
static int64_t block_units(const weft_config *c, weft_prune_what what, int64_t units) {
    bool by_z = what == WEFT_PRUNE_FFN && c->ffn == WEFT_FFN_WSFFN;
    return by_z ? units / c->wsffn_n_head : units;
}

/* The config with `left` of so many units. */
static void set_units(weft_config *c, weft_prune_what what, int64_t units, int64_t left) {
    int64_t ffn = weft_config_ffn_dim(c), group = c->n_head / weft_config_kv_heads(c);
    if (what == WEFT_PRUNE_HEADS) {
        c->head_dim = weft_config_head_dim(c);
        c->n_head = left * group;
        if (c->kv_heads) c->kv_heads = left;
    }
    if (what == WEFT_PRUNE_FFN) c->n_ffn = left;
    if (what == WEFT_PRUNE_Z_HEADS) {
        c->n_ffn = ffn / units * left;
        c->wsffn_n_head = left;
    }
    if (what == WEFT_PRUNE_CROSS) c->cross_rank = left;
}

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
    char name[160], first[160];
    snprintf(name, sizeof name, "v.%s", w->name);
    snprintf(first, sizeof first, "m.%s", w->name);
    const weft_safetensor *t = weft_safetensors_find(state, name);
    if (!t && weft_safetensors_find(state, first))
        return weft_fail(
            WEFT_EINPUT,
            "optimizer.safetensors: '%s' has no second moments, since OPTIMIZER=muon keeps "
            "none of a layer's matrices; --by magnitude needs none",
            w->name);
    bool wide = t && t->dtype == WEFT_FILE_F64;
    if (!t || (!wide && t->dtype != WEFT_FILE_F32) || t->bytes != w->count * (wide ? 8 : 4))
        return weft_fail(WEFT_EINPUT,
                         "optimizer.safetensors: '%s' is not there in the weight's shape; is it "
                         "another model's?",
                         name);
    weft_safetensor_values(t, 0, w->count, out);
    return WEFT_OK;
}

/* The importance of each element: w², or w² v. */
static weft_status weigh(const weft_weight *w, const weft_safetensors *state, double **out) {
    WEFT_AUTO_FREE double *values = malloc((size_t)w->count * sizeof *values);
    WEFT_AUTO_FREE double *moments = state ? malloc((size_t)w->count * sizeof *moments) : NULL;
    if (!values || (state && !moments)) return no_memory();
    if (state) WEFT_TRY(read_moments(state, w, moments));
    weft_weight_read(w, values);
    for (int64_t i = 0; i < w->count; i++)
        values[i] *= values[i] * (state ? moments[i] : 1);
    *out = weft_steal(&values);
    return WEFT_OK;
}

/* The unit that a piece gives an index to; -1: none. */
static int64_t unit_of(const prune_piece *p, int64_t index, int64_t units) {
    int64_t from = index - p->first;
    return from >= 0 && from < units * p->size ? from / p->size : -1;
}

/* Adds the importance of one piece's elements to its units. */
static weft_status add_piece(const weft_weight *w, const prune_piece *p,
                             const weft_safetensors *state, int64_t units, double *sums) {
    WEFT_AUTO_FREE double *values = NULL;
    int64_t stride = stride_of(w, p->axis), n = w->shape[p->axis];
    WEFT_TRY(weigh(w, state, &values));
    for (int64_t i = 0; i < w->count; i++) {
        int64_t unit = unit_of(p, i / stride % n, units);
        if (unit >= 0) sums[unit] += values[i];
    }
    return WEFT_OK;
}

/* How important each unit of a layer is. */
static weft_status weigh_units(const weft_model *m, const weft_prune_options *o, int64_t layer,
                               int64_t units, double *sums) {
    prune_piece pieces[PIECES_MOST];
    int n = list_pieces(&m->config, o->what, pieces);
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
    int64_t units = did->units, block = block_units(&m->config, o->what, units), at = 0;
    weft_pruned_layer *out = &did->layers[layer];
    WEFT_AUTO_FREE double *sums = malloc((size_t)units * sizeof *sums);
    double all = 0, held = 0;
    out->kept = malloc((size_t)did->left * sizeof *out->kept);
    if (!sums || !out->kept) return no_memory();
    WEFT_TRY(weigh_units(m, o, layer, units, sums));
    for (int64_t first = 0; first < units; first += block)
        choose_block(sums + first, block, did->left * block / units, kept + first);
    for (int64_t u = 0; u < units; u++) {
        all += sums[u];
        if (!kept[u]) continue;
        held += sums[u];
        out->kept[at++] = u;
    }
    out->share = all > 0 ? held / all : 1;
    return WEFT_OK;
}

/* Whether an index of a tensor's axis stays. `kept` is of the layer, `next` of the one behind it. */
static bool stays(const prune_piece *pieces, int n, const char *name, int axis, int64_t index,
                  int64_t units, const bool *kept, const bool *next, bool only_zeroed) {
    for (int i = 0; i < n; i++) {
        const prune_piece *p = &pieces[i];
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
    prune_piece pieces[PIECES_MOST];
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
    WEFT_AUTO_FREE double *values = malloc((size_t)from->count * sizeof *values);
    WEFT_AUTO_FREE bool *stay = malloc((size_t)from->count);
    int64_t at = 0;
    if (!values || !stay) return no_memory();
    weft_weight_read(from, values);
    mark(v, layer, name, from, stay);
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
    const weft_weight *whole = layer_weight(v->from, layer, "ffn.cross_proj.weight");
    weft_weight *down = layer_weight(v->to, layer, "ffn.cross_down.weight");
    weft_weight *up = layer_weight(v->to, layer, "ffn.cross_up.weight");
    int64_t ffn = whole->shape[0], rank = down->shape[0], r = 0;
    WEFT_AUTO_FREE double *all = malloc((size_t)whole->count * sizeof *all);
    WEFT_AUTO_FREE double *picks = calloc((size_t)down->count, sizeof *picks);
    WEFT_AUTO_FREE double *columns = malloc((size_t)up->count * sizeof *columns);
    if (!all || !picks || !columns) return no_memory();
    weft_weight_read(whole, all);
    for (int64_t j = 0; j < ffn; j++) {
        if (!v->kept[layer * v->units + j]) continue;
        picks[r * ffn + j] = 1;
        for (int64_t i = 0; i < ffn; i++)
            columns[i * rank + r] = all[i * ffn + j];
        r++;
    }
    weft_weight_write(down, picks);
    weft_weight_write(up, columns);
    return WEFT_OK;
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
    int64_t block = block_units(c, o->what, did->units), blocks = did->units / block;
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
    if (!v->options->sparse) set_units(&c, v->options->what, did->units, did->left);
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
    v.n_pieces = list_pieces(c, options->what, v.pieces);
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

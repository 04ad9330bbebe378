/* What a unit is (which rows and columns of which tensors belong to it, kind by kind), how important weights and
 * units are, and which stay.
 *
 * Tensors are looked at as [outer, n, inner] along one axis at a time. A tensor with several pieces
 * keeps the indices that no piece of a removed unit has; what belongs to no unit stays. */
#include "model/units.h"

#include "model/kinds.h"

/* Heads have places of their own in ALiBi's slopes, in a shared map of queries and in the scalar
 * coupling's groups: with some gone, the others would be other heads. */
static weft_status check_units(const weft_config *c, weft_prune_what what, bool sparse,
                               const char *option) {
    static const char *const names[] = {"heads", "ffn", "z-heads", "cross"};
    static const char columns[] =
        "CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" divides the feed-forward by heads, so no "
        "column can be removed; --sparse zeroes them in place";
    const weft_attention_kind *kind = weft_attention_of(c);
    const char *fixed = kind->fixed_heads ? kind->fixed_heads(c) : NULL;
    bool scalar = c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR;
    if (!fixed) fixed = weft_position_of(c)->fixed_heads;
    const struct {
        weft_prune_what what;
        bool is;
        const char *why;
    } list[] = {
        {WEFT_PRUNE_HEADS, c->kv_share > 1,
         "with CONFIG_KV_SHARE layers read the keys of others, so a head is not one layer's; ffn, "
         "columns of the feed-forward, goes with any model"},
        {WEFT_PRUNE_HEADS, c->qk_norm && c->qk_norm_whole,
         "CONFIG_QK_NORM_WHOLE=y norms all heads together, so without one the others are not what "
         "they were"},
        {WEFT_PRUNE_HEADS, !sparse && fixed, fixed},
        {WEFT_PRUNE_HEADS, !sparse && scalar,
         "CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" divides the latent by heads, so none "
         "can be removed; --sparse zeroes them in place"},
        {WEFT_PRUNE_Z_HEADS, !weft_ffn_of(c)->unit,
         "only CONFIG_FFN=\"wsffn\" has them; ffn removes columns of any feed-forward"},
        {WEFT_PRUNE_FFN, !sparse && scalar, columns},
        {WEFT_PRUNE_Z_HEADS, !sparse && scalar, columns},
        {WEFT_PRUNE_CROSS, !c->cross_token,
         "the model has no cross-token mechanism (CONFIG_RA_MLA_MLP_CROSS_TOKEN)"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].what == what && list[i].is)
            return WEFT_BAD_INPUT("%s%s: %s", option, names[what], list[i].why);
    return WEFT_OK;
}

weft_unit_piece *weft_unit_add(weft_unit_list *l, const char *name, int axis, int64_t first,
                               int64_t size) {
    weft_unit_piece *p = &l->pieces[l->n++];
    *p = (weft_unit_piece){.axis = axis, .first = first, .size = size, .counts = true};
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

void weft_unit_add_zeroed(weft_unit_list *l, const char *name, int axis, int64_t first,
                          int64_t size) {
    weft_unit_add(l, name, axis, first, size)->zeroed = true;
}

/* One projection has all queries, keys and values, one after the other; a unit is a key head with the
 * query heads that share it. */
static void list_packed(const weft_config *c, weft_unit_list *l) {
    int64_t d = weft_config_head_dim(c), kv = weft_config_kv_heads(c), h = c->n_head;
    static const char *const names[] = {"attn.qkv.weight", "attn.qkv.bias"};
    for (int i = 0; i < 2; i++) {
        weft_unit_add(l, names[i], 0, 0, h / kv * d);
        weft_unit_add(l, names[i], 0, h * d, d);
        weft_unit_add_zeroed(l, names[i], 0, (h + kv) * d, d);
    }
    weft_unit_add(l, "attn.log_tau", 0, 0, h / kv)->counts = false;
    weft_unit_add_zeroed(l, "attn.out.weight", 1, 0, h / kv * d);
}

static void list_heads(const weft_config *c, weft_unit_list *l) {
    int64_t group = c->n_head / weft_config_kv_heads(c);
    const weft_attention_kind *kind = weft_attention_of(c);
    (kind->heads ? kind->heads : list_packed)(c, l);
    bool by_head = c->attention_gate == WEFT_ATTENTION_GATE_HEAD;
    weft_unit_add(l, "attn.out_gate.weight", 0, 0,
                  by_head ? group : group * weft_config_head_dim(c))
        ->counts = false;
    static const char *const gates[] = {"ffn.gate_heads.weight", "ffn.gate_heads.bias"};
    for (size_t i = 0; i < sizeof gates / sizeof gates[0]; i++) {
        weft_unit_piece *made = weft_unit_add(l, gates[i], 0, 0, group);
        made->counts = false;
        made->next = true;
    }
}

/* `size` columns for each unit. A column of h that is zero before the mechanisms must stay so behind
 * them: nothing may be added to it. */
static void list_columns(const weft_config *c, weft_unit_list *l, int64_t size) {
    static const char *const rows[] = {"ffn.fc.weight",       "ffn.fc.bias",
                                       "ffn.w1.bias",         "ffn.w3.bias",
                                       "ffn.w1.weight",       "ffn.w3.weight",
                                       "ffn.cross_up.weight", "ffn.cross_proj.weight",
                                       "ffn.couple.weight",   "ffn.attn_to_mlp.weight"};
    static const char *const columns[] = {"ffn.proj.weight",       "ffn.w2.weight",
                                          "ffn.gate_proj.weight",  "ffn.cross_down.weight",
                                          "ffn.cross_proj.weight", "ffn.mlp_down.weight"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        weft_unit_add_zeroed(l, rows[i], 0, 0, size);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        weft_unit_add_zeroed(l, columns[i], 1, 0, size);
    /* No output of the model depends on these. */
    weft_unit_add(l, "ffn.z_logits.weight", 1, 0, size)->counts = false;
    for (int axis = 0; axis < 2 && c->wsffn_z_proj == WEFT_Z_DENSE; axis++)
        weft_unit_add(l, "ffn.z_proj.weight", axis, 0, size)->counts = false;
}

static int list_pieces(const weft_config *c, weft_prune_what what, weft_unit_piece *pieces) {
    weft_unit_list l = {pieces, 0};
    if (what == WEFT_PRUNE_HEADS) list_heads(c, &l);
    if (what == WEFT_PRUNE_FFN) list_columns(c, &l, 1);
    if (what == WEFT_PRUNE_Z_HEADS) {
        list_columns(c, &l, weft_config_ffn_dim(c) / c->wsffn_n_head);
        if (c->wsffn_z_proj == WEFT_Z_GROUPED)
            weft_unit_add(&l, "ffn.z_proj.weight", 0, 0, 1)->counts = false;
    }
    if (what == WEFT_PRUNE_CROSS) {
        weft_unit_add_zeroed(&l, "ffn.cross_proj.weight", 1, 0, 1);
        weft_unit_add_zeroed(&l, "ffn.cross_down.weight", 0, 0, 1);
        weft_unit_add_zeroed(&l, "ffn.cross_up.weight", 1, 0, 1);
    }
    return l.n;
}

weft_status weft_units_make(const weft_config *c, weft_prune_what what, bool sparse,
                            const char *option, weft_units *out) {
    int64_t units = what == WEFT_PRUNE_HEADS                    ? weft_config_kv_heads(c)
                    : what == WEFT_PRUNE_Z_HEADS                ? c->wsffn_n_head
                    : what == WEFT_PRUNE_CROSS && c->cross_rank ? c->cross_rank
                                                                : weft_config_ffn_dim(c);
    *out = (weft_units){.what = what, .sparse = sparse, .n_layers = c->n_layer, .units = units};
    WEFT_TRY(check_units(c, what, sparse, option));
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    bool by_z = what == WEFT_PRUNE_FFN && ffn->unit;
    out->block = by_z ? out->units / ffn->unit(c) : out->units;
    out->n_pieces = list_pieces(c, what, out->pieces);
    out->kept = calloc((size_t)(out->n_layers * out->units), sizeof *out->kept);
    return out->kept ? WEFT_OK : weft_no_memory("pruning");
}

void weft_units_free(weft_units *u) {
    free(u->kept);
    *u = (weft_units){0};
}

weft_weight *weft_layer_weight(const weft_model *m, int64_t layer, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "h.%lld.%.96s", (long long)layer, name);
    return weft_model_find(m, full);
}

bool weft_in_layer(const char *full, int64_t *layer, const char **name) {
    char *end;
    if (strncmp(full, "h.", 2) != 0) return false;
    *layer = strtoll(full + 2, &end, 10);
    *name = end + 1;
    return *end == '.';
}

/* Numbers from one index of an axis to the next. */
static int64_t stride_of(const weft_weight *w, int axis) {
    int64_t stride = 1;
    for (int d = axis + 1; d < w->ndim; d++)
        stride *= w->shape[d];
    return stride;
}

static double importance(weft_prune_by by, double w, double other) {
    return by == WEFT_BY_MAGNITUDE   ? w * w
           : by == WEFT_BY_CURVATURE ? w * (w * other)
           : by == WEFT_BY_STATE     ? w * w * sqrt(other)
                                     : w * (w - other);
}

weft_status weft_weigh(const weft_weight *w, const weft_weighing *how, double **out) {
    bool alone = how->by == WEFT_BY_MAGNITUDE;
    WEFT_AUTO_FREE double *values = malloc((size_t)w->count * sizeof *values);
    WEFT_AUTO_FREE double *others = alone ? NULL : calloc((size_t)w->count, sizeof *others);
    WEFT_AUTO_FREE bool *left = how->left ? malloc((size_t)w->count) : NULL;
    if (!values || (!alone && !others) || (how->left && !left)) return weft_no_memory("pruning");
    if (others) WEFT_TRY(how->read(how->context, w, others));
    if (left) WEFT_TRY(how->left(how->context, w, left));
    weft_weight_read(w, values);
    for (int64_t i = 0; i < w->count; i++)
        values[i] =
            left && !left[i] ? -INFINITY : importance(how->by, values[i], others ? others[i] : 0);
    return weft_hand(&values, out);
}

/* The unit that a piece gives an index to; -1: none. */
static int64_t unit_of(const weft_unit_piece *p, int64_t index, int64_t units) {
    int64_t from = index - p->first;
    return from >= 0 && from < units * p->size ? from / p->size : -1;
}

weft_status weft_units_weigh(const weft_units *u, const weft_model *m, int64_t layer,
                             const weft_weighing *how, double *sums) {
    memset(sums, 0, (size_t)u->units * sizeof *sums);
    for (const weft_unit_piece *p = u->pieces; p < u->pieces + u->n_pieces; p++) {
        const weft_weight *w = p->counts ? weft_layer_weight(m, layer, p->name) : NULL;
        if (!w) continue;
        /* The importance of a piece's elements goes to its units. */
        WEFT_AUTO_FREE double *values = NULL;
        int64_t stride = stride_of(w, p->axis), n = w->shape[p->axis];
        WEFT_TRY(weft_weigh(w, how, &values));
        for (int64_t k = 0; k < w->count; k++) {
            int64_t unit = unit_of(p, k / stride % n, u->units);
            if (unit >= 0) sums[unit] += values[k];
        }
    }
    return WEFT_OK;
}

/* Numbers in the order of doubles; both zeros are one. */
static uint64_t order_of(double x) {
    uint64_t bits;
    x += 0.0;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* The smallest that stays is found digit by digit, from the counts of those that have the digits before:
 * in a fixed number of passes, and without sorting. */
void weft_mark_largest(const double *scores, int64_t n, int64_t left, bool *kept) {
    enum { DIGIT = 8, DIGITS = 1 << DIGIT };
    uint64_t last = 0;
    int64_t counts[DIGITS], equal = left; /* how many of those like the last one stay */
    for (int shift = 64 - DIGIT; shift >= 0 && left > 0; shift -= DIGIT) {
        memset(counts, 0, sizeof counts);
        for (int64_t i = 0; i < n; i++) {
            uint64_t key = order_of(scores[i]);
            bool same = shift + DIGIT == 64 || (key ^ last) >> (shift + DIGIT) == 0;
            counts[key >> shift & (DIGITS - 1)] += same;
        }
        int digit = DIGITS - 1;
        while (digit > 0 && equal > counts[digit])
            equal -= counts[digit--];
        last |= (uint64_t)digit << shift;
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t key = order_of(scores[i]);
        kept[i] = left > 0 && (key > last || (key == last && equal-- > 0));
    }
}

void weft_units_choose(weft_units *u, int64_t layer, const double *sums, int64_t left) {
    for (int64_t first = 0; first < u->units; first += u->block)
        weft_mark_largest(sums + first, u->block, left, u->kept + layer * u->units + first);
}

/* Whether an index of a tensor's axis stays. `kept` is of the layer, `next` of the one behind it. */
static bool stays(const weft_units *u, const char *name, int axis, int64_t index, const bool *kept,
                  const bool *next) {
    for (const weft_unit_piece *p = u->pieces; p < u->pieces + u->n_pieces; p++) {
        if (p->axis != axis || strcmp(p->name, name) != 0 || (u->sparse && !p->zeroed)) continue;
        int64_t unit = unit_of(p, index, u->units);
        if (unit >= 0 && !(p->next ? next : kept)[unit]) return false;
    }
    return true;
}

void weft_units_mark(const weft_units *u, const weft_weight *w, bool *stay) {
    int64_t layer = 0, last = u->n_layers - 1;
    const char *name = NULL;
    memset(stay, true, (size_t)w->count);
    if (!weft_in_layer(w->name, &layer, &name)) return;
    const bool *kept = u->kept + layer * u->units,
               *next = u->kept + (layer < last ? layer + 1 : last) * u->units;
    if (u->what == WEFT_PRUNE_FFN && w->ndim == 3 && !u->sparse &&
        strcmp(name, "ffn.z_proj.weight") == 0) {
        /* Columns within z-heads that have a matrix each, [n, z, z]: both a row's and a column's
         * own. */
        int64_t z = w->shape[1];
        for (int64_t i = 0; i < w->count; i++) {
            int64_t head = i / (z * z) * z;
            stay[i] = kept[head + i / z % z] && kept[head + i % z];
        }
    }
    for (int axis = 0; axis < w->ndim; axis++) {
        int64_t stride = stride_of(w, axis), n = w->shape[axis];
        for (int64_t index = 0; index < n; index++) {
            if (stays(u, name, axis, index, kept, next)) continue;
            for (int64_t outer = 0; outer < w->count / (n * stride); outer++)
                memset(stay + (outer * n + index) * stride, 0, (size_t)stride);
        }
    }
}

int64_t weft_masked_of(double sparsity, int64_t n) {
    int64_t count = llround(sparsity * (double)n);
    return count < n ? count : n - 1;
}

weft_status weft_prune_check(const weft_config *c, const char *where, weft_units *units) {
    char option[256];
    *units = (weft_units){0};
    if (c->prune == WEFT_PRUNING_NONE) return WEFT_OK;
    const weft_mix mixes[] = {
        {c->prune == WEFT_PRUNING_STATE && c->optimizer == WEFT_OPTIMIZER_MUON,
         "{PRUNE} needs second moments, and {OPTIMIZER} keeps none of a layer's matrices; take "
         "\"magnitude\" or \"movement\""},
        {c->prune_start > c->prune_end, "{PRUNE_START} is behind {PRUNE_END}; masks grow from the "
                                        "first to the second"},
    };
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    if (c->prune_what == WEFT_MASKS_WEIGHTS) return WEFT_OK;
    bool heads = c->prune_what == WEFT_MASKS_HEADS;
    snprintf(option, sizeof option, "%s: CONFIG_PRUNE_WHAT=", where);
    WEFT_TRY(weft_units_make(c, heads ? WEFT_PRUNE_HEADS : WEFT_PRUNE_FFN, true, option, units));
    if (weft_masked_of(c->prune_sparsity, units->block) > 0) return WEFT_OK;
    weft_status status = WEFT_BAD_INPUT("%s: CONFIG_PRUNE_SPARSITY=%g of %lld %s is none; take "
                                        "more of them, or CONFIG_PRUNE_WHAT=\"weights\"",
                                        where, c->prune_sparsity, (long long)units->block,
                                        heads ? "heads" : "columns of the feed-forward");
    weft_units_free(units);
    return status;
}

bool weft_weight_is_masked(const weft_config *c, const char *name, int ndim) {
    weft_unit_piece pieces[WEFT_UNIT_PIECES];
    int64_t layer;
    const char *own;
    if (c->prune == WEFT_PRUNING_NONE || !weft_in_layer(name, &layer, &own)) return false;
    if (c->prune_what == WEFT_MASKS_WEIGHTS) return ndim >= 2;
    bool heads = c->prune_what == WEFT_MASKS_HEADS;
    for (int i = list_pieces(c, heads ? WEFT_PRUNE_HEADS : WEFT_PRUNE_FFN, pieces) - 1; i >= 0; i--)
        if ((pieces[i].counts || pieces[i].zeroed) && strcmp(pieces[i].name, own) == 0) return true;
    return false;
}

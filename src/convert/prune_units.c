/* What a unit is: which rows and columns of which tensors belong to it, kind by kind, and what a config
 * with fewer units says. */
#include "convert/prune.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static weft_status refuse(const char *what, const char *why) {
    return weft_fail(WEFT_EINPUT, "--what %s: %s", what, why);
}

/* Heads have places of their own in ALiBi's slopes, in a shared map of queries and in the scalar
 * coupling's groups: with some gone, the others would be other heads. */
static weft_status check_heads(const weft_config *c, bool sparse) {
    if (sparse) return WEFT_OK;
    if (c->position == WEFT_POSITION_ALIBI)
        return refuse("heads",
                      "CONFIG_POSITION=\"alibi\" gives each head its slope by its number, so "
                      "none can be removed; --sparse zeroes them in place");
    if (c->attention == WEFT_ATTENTION_MLA && !c->ra_mla_per_head_q_latent)
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
    int64_t ffn = weft_config_ffn_dim(c), kv = weft_config_kv_heads(c);
    *units = 0;
    switch (what) {
    case WEFT_PRUNE_HEADS:
        WEFT_TRY(check_heads(c, sparse));
        *units = kv;
        return WEFT_OK;
    case WEFT_PRUNE_FFN:
        WEFT_TRY(check_columns(c, "ffn", sparse));
        *units = ffn;
        return WEFT_OK;
    case WEFT_PRUNE_Z_HEADS:
        if (c->ffn != WEFT_FFN_WSFFN)
            return refuse("z-heads",
                          "only CONFIG_FFN=\"wsffn\" has them; --what ffn removes columns "
                          "of any feed-forward");
        WEFT_TRY(check_columns(c, "z-heads", sparse));
        *units = c->wsffn_n_head;
        return WEFT_OK;
    default:
        if (!c->cross_token)
            return refuse("cross", "the model has no cross-token mechanism "
                                   "(CONFIG_RA_MLA_MLP_CROSS_TOKEN)");
        *units = c->cross_rank ? c->cross_rank : ffn;
        return WEFT_OK;
    }
}

/* A list of pieces being made. */
typedef struct {
    weft_prune_piece *pieces;
    int n;
} listing;

static weft_prune_piece *add(listing *l, const char *name, int axis, int64_t first, int64_t size) {
    weft_prune_piece *p = &l->pieces[l->n++];
    *p = (weft_prune_piece){.axis = axis, .first = first, .size = size, .counts = true};
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
    int64_t d = weft_config_head_dim(c);
    add(l, "attn.q.weight", 0, 0, 2 * d);
    add(l, "attn.q.bias", 0, 0, 2 * d);
    add(l, "attn.k.weight", 0, 0, 2 * d);
    add(l, "attn.k.bias", 0, 0, 2 * d);
    add_zeroed(l, "attn.v.weight", 0, 0, d);
    add_zeroed(l, "attn.v.bias", 0, 0, d);
    add(l, "attn.log_tau", 0, 0, 1)->counts = false;
    add_zeroed(l, "attn.out.weight", 1, 0, d);
}

static void list_mla(const weft_config *c, listing *l) {
    int64_t d = weft_config_head_dim(c);
    if (c->ra_mla_per_head_q_latent) {
        add(l, "attn.q.weight", 0, 0, d);
        add(l, "attn.q.bias", 0, 0, d);
        add(l, "attn.q_latent", 0, 0, 1);
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
    else
        list_packed(c, l);
    weft_prune_piece *gates = add(l, "ffn.gate_heads.weight", 0, 0, group);
    gates->counts = false;
    gates->next = true;
}

/* `size` columns for each unit. A column of h that is zero before the mechanisms must stay so behind
 * them: nothing may be added to it. */
static void list_columns(const weft_config *c, listing *l, int64_t size) {
    static const char *const rows[] = {"ffn.fc.weight",       "ffn.fc.bias",
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
    if (c->wsffn_z_proj == WEFT_Z_DENSE) { /* no output of the model depends on it */
        for (int axis = 0; axis < 2; axis++)
            add(l, "ffn.z_proj.weight", axis, 0, size)->counts = false;
    }
}

int weft_prune_pieces(const weft_config *c, weft_prune_what what, weft_prune_piece *pieces) {
    listing l = {pieces, 0};
    switch (what) {
    case WEFT_PRUNE_HEADS:
        list_heads(c, &l);
        break;
    case WEFT_PRUNE_FFN:
        list_columns(c, &l, 1);
        break;
    case WEFT_PRUNE_Z_HEADS:
        list_columns(c, &l, weft_config_ffn_dim(c) / c->wsffn_n_head);
        if (c->wsffn_z_proj == WEFT_Z_GROUPED)
            add(&l, "ffn.z_proj.weight", 0, 0, 1)->counts = false;
        break;
    case WEFT_PRUNE_CROSS:
        add_zeroed(&l, "ffn.cross_proj.weight", 1, 0, 1);
        add_zeroed(&l, "ffn.cross_down.weight", 0, 0, 1);
        add_zeroed(&l, "ffn.cross_up.weight", 1, 0, 1);
        break;
    }
    return l.n;
}

int64_t weft_prune_block(const weft_config *c, weft_prune_what what, int64_t units) {
    bool by_z = what == WEFT_PRUNE_FFN && c->ffn == WEFT_FFN_WSFFN;
    return by_z ? units / c->wsffn_n_head : units;
}

void weft_prune_config(weft_config *c, weft_prune_what what, int64_t units, int64_t left) {
    int64_t ffn = weft_config_ffn_dim(c), group = c->n_head / weft_config_kv_heads(c);
    switch (what) {
    case WEFT_PRUNE_HEADS:
        c->head_dim = weft_config_head_dim(c);
        c->n_head = left * group;
        if (c->kv_heads) c->kv_heads = left;
        break;
    case WEFT_PRUNE_FFN:
        c->n_ffn = left;
        break;
    case WEFT_PRUNE_Z_HEADS:
        c->n_ffn = ffn / units * left;
        c->wsffn_n_head = left;
        break;
    case WEFT_PRUNE_CROSS:
        c->cross_rank = left;
        break;
    }
}

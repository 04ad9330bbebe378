/* Grouped-tied attention (GTA, arXiv 2505.21487): each of KV groups has one state u of a head's width. It
 * is the group's value, and its first half the first half of the group's key; the second half is one
 * rotated vector for all groups.
 *
 *     k_g = [u_g (first half), rope(W_r x)]     v_g = u_g     s = ⟨q, k⟩ / √D
 *
 * Queries are rotated in their second half. The cache holds KV D + D/2 numbers a token and layer. */
#include "model/builder.h"
#include "model/units.h"

static weft_tensor *build_gta(builder *b, weft_tensor *x) {
    int64_t d = b->head_dim, half = d / 2;
    builder_keys keys = {.scored = half};
    /* q with the second half of each head first, where rotations begin; so are the keys here. */
    weft_head_columns_attr swapped = {
        .heads = b->heads,
        .width = 2 * half,
        .part = {{.from = half, .count = half}, {.count = half, .to = half}}};
    weft_tensor *q = map_to_heads(b, x, "q", b->heads, d);
    b->score.q = weft_head_columns(b->g, swapped, q, q);
    b->score.q = rotate_heads(b, b->score.q, half, b->heads);
    b->score.scale_value = 1 / sqrt((double)d);
    if (!b->shares) {
        int64_t kv = weft_config_kv_heads(b->c);
        keys.k = keys.v = map_to_heads(b, x, "kv", kv, d);
        keys.common = map_to_heads(b, x, "k_rope", 1, half);
        keys.common = rotate_heads(b, keys.common, half, 1);
    }
    return builder_attend(b, &keys);
}

static weft_status check(const weft_config *c, const char *where) {
    const weft_mix mixes[] = {
        {weft_config_head_dim(c) % 4, "{ATTENTION} rotates pairs in half of a head, but a head is "
                                      "{head_dim} wide (CONFIG_N_EMBD "
                                      "/ CONFIG_N_HEAD); make it a multiple of 4"},
        {c->qk_norm, "{QK_NORM} does not go with {ATTENTION}, whose keys are part of its values; "
                     "set it to n"},
        {c->nope_every || c->rope_dim, "CONFIG_NOPE_EVERY and CONFIG_ROPE_DIM do not go with "
                                       "{ATTENTION}, which rotates half of a "
                                       "head in every layer; set them to 0"},
    };
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    return check_common_law(c, where);
}

/* The groups' states, and the half that they share, once. */
static int list_cache(const weft_config *c, weft_cache_part *parts) {
    int64_t d = weft_config_head_dim(c);
    parts[0] = (weft_cache_part){.heads = 1, .width = weft_config_kv_heads(c) * d + d / 2};
    return 1;
}

static int64_t rotated_columns(const weft_config *c) {
    return weft_config_head_dim(c) / 2;
}

static void list_heads(const weft_config *c, weft_unit_list *l) {
    int64_t d = weft_config_head_dim(c), group = c->n_head / weft_config_kv_heads(c);
    weft_unit_add(l, "attn.q.weight", 0, 0, group * d);
    weft_unit_add(l, "attn.q.bias", 0, 0, group * d);
    weft_unit_add_zeroed(l, "attn.kv.weight", 0, 0, d);
    weft_unit_add_zeroed(l, "attn.kv.bias", 0, 0, d);
    weft_unit_add_zeroed(l, "attn.out.weight", 1, 0, group * d);
}

const weft_attention_kind weft_attention_gta = {
    .build = build_gta,
    .check = check,
    .cache = list_cache,
    .heads = list_heads,
    .rotated = rotated_columns,
    .shares_heads = true,
    .shares_layers = true,
};

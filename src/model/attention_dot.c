/* The scaled dot product, with key and value heads shared by groups of query heads where the
 * config asks for fewer. One projection makes queries, keys and values, and attention reads them
 * where they lie. */
#include "model/builder.h"

static weft_tensor *build_dot(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t kv = weft_config_kv_heads(c), total = b->heads + 2 * kv;
    /* ATTENTION_SCALE, or 1/√D; with MUP and heads that grow with the width √D₀/D, D₀ being their width at the base. */
    double d = (double)b->head_dim;
    b->score.scale_value = c->attention_scale > 0       ? c->attention_scale
                           : c->mup && c->mup_base_head ? sqrt((double)c->mup_base_head) / d
                                                        : 1 / sqrt(d);
    if (b->shares) {
        weft_tensor *q = norm_heads(b, map_to_heads(b, x, "q", b->heads, b->head_dim), b->heads, 0);
        b->score.q = apply_rope(b, q, b->head_dim, b->heads);
        return builder_attend(b, &(builder_keys){0});
    }
    weft_tensor *qkv = attention_map(b, x, "qkv", total * b->head_dim);
    if (b->position->rotate || c->qk_norm) {
        qkv = norm_heads(b, as_heads(b, qkv, total, b->head_dim), b->heads, kv);
        qkv = apply_rope(b, qkv, b->head_dim, b->heads + kv);
        qkv = weft_view(b->g, qkv, b->batch, b->time, total * b->head_dim);
    }
    return builder_attend(b, &(builder_keys){.packed = qkv, .kv_heads = kv});
}

const weft_attention_kind weft_attention_dot = {
    .build = build_dot,
    .shares_heads = true,
    .shares_layers = true,
    .biased = true,
    .norms_whole = true,
    .mup = true,
};

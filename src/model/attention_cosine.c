/* The cosine of the angle between query and key, over a learned temperature: scores do not grow with
 * the length of either, so none can come to rule the softmax by its length alone.
 *
 *     s_ij = ⟨q_i, k_j⟩ / (‖q_i‖ ‖k_j‖ τ_h)
 *
 * One projection makes queries, keys and values, as in attention_dot.c. Rotation keeps lengths, so
 * it goes with this as it does with that. Each head learns log τ from -½ log D on: cosines of random
 * vectors are about 1/√D, and their scores start at about 1, as those of dot do. */
#include "model/builder.h"

static weft_tensor *build_cosine(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t kv = weft_config_kv_heads(c), total = b->heads + 2 * kv, d = b->head_dim;
    builder_keys keys = {.kv_heads = kv};
    if (b->shares) {
        weft_tensor *q = norm_heads(b, map_to_heads(b, x, "q", b->heads, d), b->heads, 0);
        b->score.q = apply_rope(b, weft_unit(b->g, q, b->heads), d, b->heads);
    } else {
        weft_tensor *qkv = map_to_heads(b, x, "qkv", total, d);
        qkv = weft_unit(b->g, norm_heads(b, qkv, b->heads, kv), b->heads + kv);
        qkv = apply_rope(b, qkv, d, b->heads + kv);
        keys.packed = weft_view(b->g, qkv, b->batch, b->time, total * d);
    }
    weft_init start = init_constant(-0.5 * log((double)d));
    weft_tensor *log_tau = builder_vector(b, "attn.log_tau", start, b->heads);
    b->score.scale = weft_exp(b->g, weft_scale(b->g, log_tau, -1));
    return builder_attend(b, &keys);
}

const weft_attention_kind weft_attention_cosine = {
    .build = build_cosine,
    .shares_heads = true,
    .shares_layers = true,
    .biased = true,
    .norms_whole = true,
};

/* The scaled dot product, with key and value heads shared by groups of query heads where the
 * config asks for fewer. One projection makes queries, keys and values, and attention reads them
 * where they lie. */
#include "model/builder.h"
#include "ops/linear.h"

#include <math.h>

weft_tensor *build_dot(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t kv = weft_config_kv_heads(c), total = b->heads + 2 * kv;
    weft_tensor *w = matrix(b, "attn.qkv.weight", init_normal(0.02), total * b->head_dim, b->width);
    weft_tensor *bias = NULL;
    if (c->gpt2_bias)
        bias = builder_vector(b, "attn.qkv.bias", init_constant(0), total * b->head_dim);
    weft_tensor *qkv = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE);
    if (c->position == WEFT_POSITION_ROPE) {
        qkv = weft_view(b->g, qkv, b->batch, b->time, total, b->head_dim);
        qkv = rotate_heads(b, qkv, b->head_dim, b->heads + kv);
        qkv = weft_view(b->g, qkv, b->batch, b->time, total * b->head_dim);
    }
    b->score.scale_value = 1 / sqrt((double)b->head_dim);
    build_score_position(b, &b->score);
    b->packed = qkv;
    weft_attended a = weft_attention_packed(b->g, &b->score, qkv, b->heads, kv);
    b->lse = a.lse;
    return a.o;
}

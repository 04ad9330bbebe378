/* Feed-forwards: what makes the hidden activations h [B, T, F]. What follows h is the same for all
 * of them (reciprocal.c). */
#include "model/builder.h"
#include "ops/activation.h"
#include "ops/linear.h"

bool makes_hidden_again(const builder *b) {
    return b->c->latent_recip && !b->recompute && forms_latent_sum(b);
}

weft_tensor *build_gelu_hidden(builder *b, weft_tensor *x) {
    weft_tensor *w = matrix(b, "ffn.fc.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *bias = NULL;
    if (b->c->gpt2_bias) bias = builder_vector(b, "ffn.fc.bias", init_constant(0), b->ffn);
    if (!makes_hidden_again(b)) return weft_linear(b->g, x, w, bias, WEFT_ACT_GELU);
    weft_tensor *before = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE);
    weft_graph_recompute_begin(b->g);
    return weft_gelu(b->g, before);
}

weft_tensor *build_gated_hidden(builder *b, weft_tensor *x) {
    weft_tensor *w1 = matrix(b, "ffn.w1.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *w3 = matrix(b, "ffn.w3.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *h1 = weft_linear(b->g, x, w1, NULL, WEFT_ACT_NONE);
    weft_tensor *h2 = weft_linear(b->g, x, w3, NULL, WEFT_ACT_NONE);
    if (b->c->ffn == WEFT_FFN_WSFFN) build_wsffn_losses(b, x, h1, w1);
    if (makes_hidden_again(b)) weft_graph_recompute_begin(b->g);
    return weft_silu_mul(b->g, h1, h2);
}

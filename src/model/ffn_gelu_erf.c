/* Two matrices around a GELU that is computed by the error function and not by tanh, as in GPT-NeoX. */
#include "model/builder.h"
#include "ops/activation.h"
#include "ops/linear.h"

static weft_tensor *build_gelu_erf(builder *b, weft_tensor *x) {
    weft_tensor *w = matrix(b, "ffn.fc.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *bias = ffn_bias(b, "ffn.fc.bias", b->ffn);
    weft_tensor *before = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE);
    if (makes_hidden_again(b)) weft_graph_recompute_begin(b->g);
    return weft_gelu_erf(b->g, before);
}

const weft_ffn_kind weft_ffn_gelu_erf = {
    .build = build_gelu_erf,
    .out = "ffn.proj",
    .biased = true,
    .mup = true,
};

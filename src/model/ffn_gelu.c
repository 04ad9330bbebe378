/* Two matrices around a GELU, as in GPT-2. */
#include "model/builder.h"
#include "ops/activation.h"
#include "ops/linear.h"

static weft_tensor *build_gelu(builder *b, weft_tensor *x) {
    weft_tensor *w = matrix(b, "ffn.fc.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *bias = ffn_bias(b, "ffn.fc.bias", b->ffn);
    if (!makes_hidden_again(b)) return weft_linear(b->g, x, w, bias, WEFT_ACT_GELU);
    weft_tensor *before = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE);
    weft_graph_recompute_begin(b->g);
    return weft_gelu(b->g, before);
}

const weft_ffn_kind weft_ffn_gelu = {
    .build = build_gelu,
    .in = "ffn.fc",
    .out = "ffn.proj",
    .biased = true,
    .mup = true,
};

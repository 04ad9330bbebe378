/* SwiGLU: one map's output is multiplied by the SiLU of another's. GeGLU: by the GELU. */
#include "model/builder.h"

gated_maps build_gated_maps(builder *b, weft_tensor *x) {
    weft_tensor *w1 = matrix(b, "ffn.w1.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *w3 = matrix(b, "ffn.w3.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *b1 = ffn_bias(b, "ffn.w1.bias", b->ffn), *b3 = ffn_bias(b, "ffn.w3.bias", b->ffn);
    weft_tensor *h1 = weft_linear(b->g, x, w1, b1, WEFT_ACT_NONE);
    weft_tensor *h2 = weft_linear(b->g, x, w3, b3, WEFT_ACT_NONE);
    return (gated_maps){w1, h1, h2};
}

weft_tensor *build_gated_hidden(builder *b, gated_maps maps) {
    if (makes_hidden_again(b)) weft_graph_recompute_begin(b->g);
    return weft_silu_mul(b->g, maps.h1, maps.h2);
}

static weft_tensor *build_swiglu(builder *b, weft_tensor *x) {
    return build_gated_hidden(b, build_gated_maps(b, x));
}

static weft_tensor *build_geglu(builder *b, weft_tensor *x) {
    gated_maps maps = build_gated_maps(b, x);
    if (makes_hidden_again(b)) weft_graph_recompute_begin(b->g);
    return weft_gelu_mul(b->g, maps.h1, maps.h2);
}

const weft_ffn_kind weft_ffn_swiglu = {
    .build = build_swiglu, .out = "ffn.w2", .may_be_biased = true, .mup = true};

const weft_ffn_kind weft_ffn_geglu = {.build = build_geglu, .out = "ffn.w2", .mup = true};

/* Two matrices around a function of one element: GELU as in GPT-2; GELU computed by the error function and
 * not by tanh, as in GPT-NeoX; a squared ReLU (Primer, So et al. 2021). */
#include "model/builder.h"

static weft_tensor *build_map(builder *b, weft_tensor *x, weft_act act) {
    weft_tensor *w = matrix(b, "ffn.fc.weight", init_normal(0.02), b->ffn, b->width);
    weft_tensor *hidden = weft_linear(b->g, x, w, ffn_bias(b, "ffn.fc.bias", b->ffn), act);
    if (makes_hidden_again(b)) weft_graph_recompute_begin(b->g);
    return hidden;
}

static weft_tensor *build_gelu(builder *b, weft_tensor *x) {
    if (!makes_hidden_again(b)) return build_map(b, x, WEFT_ACT_GELU);
    return weft_gelu(b->g, build_map(b, x, WEFT_ACT_NONE));
}

#define OF_ONE_ELEMENT(name)                                                                       \
    static weft_tensor *build_##name(builder *b, weft_tensor *x) {                                 \
        return weft_##name(b->g, build_map(b, x, WEFT_ACT_NONE));                                  \
    }
OF_ONE_ELEMENT(gelu_erf)
OF_ONE_ELEMENT(relu2)

#define FFN(name)                                                                                  \
    const weft_ffn_kind weft_ffn_##name = {                                                        \
        .build = build_##name, .out = "ffn.proj", .biased = true, .mup = true}
FFN(gelu);
FFN(gelu_erf);
FFN(relu2);

/* The kinds of attention, feed-forward and position: one line each. The words of ATTENTION, FFN and
 * POSITION, their numbers and help come from here, and so does the model's table of what each kind
 * does (model/kinds.h), in which a kind NAME is defined by one file.
 *
 *   KIND(NUMBER, name, title, help)
 *
 * WEFT_ATTENTION_NUMBER (WEFT_FFN_..., WEFT_POSITION_...) is its number and `name` its word in a
 * config. `title` names it in reports; `help` completes "name: ...". */
#pragma once

#define WEFT_ATTENTIONS(KIND)                                                                      \
    KIND(DOT, dot, "dot-product attention", "the scaled product of query and key")                 \
    KIND(W2, w2, "W2 attention", "the Wasserstein-2 distance of two Gaussians")                    \
    KIND(MLA, mla, "MLA", "the product in one latent space that all heads share")                  \
    KIND(COSINE, cosine, "cosine attention", "the cosine of their angle over a temperature")       \
    KIND(GTA, gta, "GTA",                                                                          \
         "dot, with half of each key taken from the value, and the other half rotated and shared")

#define WEFT_FFNS(KIND)                                                                            \
    KIND(GELU, gelu, "GELU", "two matrices around a GELU, as in GPT-2")                            \
    KIND(SWIGLU, swiglu, "SwiGLU", "gated, three matrices")                                        \
    KIND(WSFFN, wsffn, "WsFFN", "swiglu with latent z-heads and auxiliary losses in training")     \
    KIND(RELU2, relu2, "ReLU²", "two matrices around a squared ReLU")                              \
    KIND(GELU_ERF, gelu_erf, "GELU (erf)", "gelu by the error function, as in GPT-NeoX")           \
    KIND(GEGLU, geglu, "GeGLU", "swiglu with a GELU in place of the SiLU, as in Gemma")

#define WEFT_POSITIONS(KIND)                                                                       \
    KIND(LEARNED, learned, "learned positions", "a learned table, added to the embedding")         \
    KIND(ROPE, rope, "rotary positions", "queries and keys are rotated")                           \
    KIND(ALIBI, alibi, "ALiBi", "a penalty on distance, with a slope per head")                    \
    KIND(RELATIVE, relative, "relative positions", "a learned bias per distance")                  \
    KIND(NONE, none, "no positions", "the model does not know the order")

/* The families that are Llama but for what is said here, which reading (hf_config.c) and writing
 * (hf_config_write.c) share. */
#pragma once

#include <stdbool.h>

/* `kv_heads` and what follows are for a config that says nothing, 0: as Llama has it. */
typedef struct {
    const char *type, *architecture;
    bool qkv_bias; /* in these three maps, and nowhere else */
    bool qk_norm;
    bool tied;
    bool windows;   /* a sliding_window is in use, in all layers; not only if use_sliding_window */
    bool no_window; /* the family has none */
    bool reordered; /* norms come behind the branches, and those of queries and keys are whole */
    bool partial;   /* some columns of a head may be left unrotated */
    bool gemma; /* GeGLU, embeddings times the root of their width, gains that are kept less 1 */
    int full_every; /* a sliding_window is in use in all layers but every n-th */
    int heads, kv_heads, head_dim, nope_every, window, vocab, context;
    double theta, eps;
    double scalar; /* query_pre_attn_scalar: scores are divided by its root */
    double softcap_attention, softcap_end; /* of the scores, of the logits */
    double local_theta;                    /* of layers with a window, which have no scaling */
    const char *keys; /* that the others do not have, or not with these values */
} llama_like;

enum {
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SMOLLM3,
    OLMO2,
    OLMO3,
    PHI3,
    DEEPSEEK,
    GEMMA,
    GEMMA2,
    GEMMA3,
    LIKES
};

extern const llama_like weft_hf_likes[LIKES];

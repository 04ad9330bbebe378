/* The options that are drawn from: a new kind or option of a model is a line here. */
#include "mix.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS = 6 };

/* A word that is there twice is drawn twice as often. */
static const char *const options[][WORDS] = {
    {"ATTENTION=dot", "ATTENTION=w2", "ATTENTION=mla", "ATTENTION=mla", "ATTENTION=cosine",
     "ATTENTION=gta"},
    {"FFN=gelu", "FFN=relu2", "FFN=swiglu", "FFN=wsffn", "FFN=geglu"},
    {"POSITION=learned", "POSITION=rope", "POSITION=alibi", "POSITION=relative", "POSITION=none"},
    {"NORM=layernorm", "NORM=rmsnorm"},
    {"NORM_PLACEMENT=pre", "NORM_PLACEMENT=pre", "NORM_PLACEMENT=post", "NORM_PLACEMENT=both"},
    {"N_LAYER=1", "N_LAYER=2", "N_LAYER=3"},
    {"KV_HEADS=0", "KV_HEADS=0", "KV_HEADS=1", "KV_HEADS=2"},
    {"KV_SHARE=1", "KV_SHARE=1", "KV_SHARE=2", "KV_SHARE=3"},
    {"QK_NORM=n", "QK_NORM=n", "QK_NORM=y"},
    {"ATTENTION_GATE=none", "ATTENTION_GATE=head", "ATTENTION_GATE=element"},
    {"ATTENTION_BIAS=auto", "ATTENTION_BIAS=qkv", "ATTENTION_BIAS=all"},
    {"W2_KERNEL=w2", "W2_KERNEL=overlap"},
    {"RA_MLA_LATENT_DIM=8", "RA_MLA_LATENT_DIM=6"},
    {"RA_MLA_LATENT_HEADS=1", "RA_MLA_LATENT_HEADS=1", "RA_MLA_LATENT_HEADS=2",
     "RA_MLA_LATENT_HEADS=4"},
    {"RA_MLA_JOINT_KV=n", "RA_MLA_JOINT_KV=y"},
    {"RA_MLA_ROPE_DIM=0", "RA_MLA_ROPE_DIM=0", "RA_MLA_ROPE_DIM=2", "RA_MLA_ROPE_DIM=4"},
    {"RA_MLA_LATENT_NORM=n", "RA_MLA_LATENT_NORM=n", "RA_MLA_LATENT_NORM=y"},
    {"RA_MLA_Q_RANK=0", "RA_MLA_Q_RANK=5"},
    {"RA_MLA_PER_HEAD_Q_LATENT=y", "RA_MLA_PER_HEAD_Q_LATENT=y", "RA_MLA_PER_HEAD_Q_LATENT=n"},
    {"RA_MLA_SCORE=dot", "RA_MLA_SCORE=dot", "RA_MLA_SCORE=w2"},
    {"RA_MLA_RA_ALPHA=0", "RA_MLA_RA_ALPHA=0", "RA_MLA_RA_ALPHA=0.5"},
    {"RA_MLA_MLP_ATTN_GATE=n", "RA_MLA_MLP_ATTN_GATE=y"},
    {"RA_MLA_MLP_GATE_POOL=token", "RA_MLA_MLP_GATE_POOL=cummean"},
    {"RA_MLA_MLP_CROSS_TOKEN=n", "RA_MLA_MLP_CROSS_TOKEN=n", "RA_MLA_MLP_CROSS_TOKEN=y"},
    {"RA_MLA_MLP_CROSS_RANK=0", "RA_MLA_MLP_CROSS_RANK=3"},
    {"RA_MLA_MLP_SPARSE_MODE=topk", "RA_MLA_MLP_SPARSE_MODE=rms", "RA_MLA_MLP_SPARSE_MODE=none"},
    {"RA_MLA_MLP_LATENT_RECIP=n", "RA_MLA_MLP_LATENT_RECIP=n", "RA_MLA_MLP_LATENT_RECIP=y"},
    {"RA_MLA_MLP_ALPHA_LEARNED=n", "RA_MLA_MLP_ALPHA_LEARNED=n", "RA_MLA_MLP_ALPHA_LEARNED=y"},
    {"RA_MLA_MLP_GATE_OPEN=0", "RA_MLA_MLP_GATE_OPEN=4"},
    {"RA_MLA_MLP_ROUTE_AFTER_GATE=n", "RA_MLA_MLP_ROUTE_AFTER_GATE=y"},
    {"RA_MLA_MLP_LATENT_DETACH=n", "RA_MLA_MLP_LATENT_DETACH=y"},
    {"W2_SIGMA_DIM=0", "W2_SIGMA_DIM=0", "W2_SIGMA_DIM=1", "W2_SIGMA_DIM=3"},
    {"EMBED_SCALE=1", "EMBED_SCALE=3"},
    {"ATTENTION_SCALE=0", "ATTENTION_SCALE=0.3"},
    {"WINDOW=0", "WINDOW=0", "WINDOW=4"},
    {"WINDOW_EVERY=0", "WINDOW_EVERY=2"},
    {"ROPE_LOCAL_THETA=0", "ROPE_LOCAL_THETA=100"},
    {"WSFFN_POSITIVE=self", "WSFFN_POSITIVE=dropout"},
    {"WSFFN_Z_LOGITS=0", "WSFFN_Z_LOGITS=0.5"},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

void mix_draw(uint64_t seed, uint64_t mix, weft_config *c, char *words, size_t room) {
    static const char *const all[] = {"N_EMBD=16",
                                      "N_HEAD=4",
                                      "N_FFN=12",
                                      "VOCAB_SIZE=11",
                                      "CONTEXT=21",
                                      "BATCH_SIZE=1",
                                      "WSFFN_N_HEAD=4",
                                      "RA_MLA_RA_WINDOW=5",
                                      "RA_MLA_MLP_GATE_DIM=3",
                                      "RA_MLA_MLP_SPARSE_K=3"};
    weft_config_defaults(c);
    *words = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        assert_int_equal(weft_config_override(c, all[i], "test"), WEFT_OK);
    for (size_t i = 0; i < OPTIONS; i++) {
        uint64_t n = 0;
        while (n < WORDS && options[i][n])
            n++;
        const char *word = options[i][weft_random_word(seed, 0, 0, 0, mix * OPTIONS + i) % n];
        assert_int_equal(weft_config_override(c, word, "test"), WEFT_OK);
        snprintf(words + strlen(words), room - strlen(words), " %s", word);
    }
}

/* A known model by one word. A preset stands between the defaults and everything that is set: the
 * file, a study's step and overrides win over it. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

/* By PRESET's number: KEY=VALUE with blanks between. */
static const char *const presets[] = {
    [WEFT_PRESET_NONE] = "",
    [WEFT_PRESET_GPT2] = "ATTENTION=dot FFN=gelu POSITION=learned NORM=layernorm "
                         "NORM_PLACEMENT=pre BIAS=y WEIGHT_TYING=y",
    [WEFT_PRESET_W2] = "ATTENTION=w2 W2_KERNEL=w2 FFN=swiglu POSITION=rope NORM=rmsnorm "
                       "NORM_PLACEMENT=pre BIAS=n",
    [WEFT_PRESET_WSFFN] = "ATTENTION=dot FFN=wsffn WSFFN_N_HEAD=8 WSFFN_Z_PROJ=dense "
                          "WSFFN_AUX_LOSS=y NORM=layernorm NORM_PLACEMENT=pre "
                          "WEIGHT_TYING=n",
    [WEFT_PRESET_RA_MLA] =
        "ATTENTION=mla RA_MLA_LATENT_DIM=128 RA_MLA_RA_WINDOW=64 RA_MLA_RA_ALPHA=0 FFN=gelu "
        "POSITION=learned NORM=layernorm NORM_PLACEMENT=pre RA_MLA_MLP_ATTN_GATE=y "
        "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=topk RA_MLA_MLP_SPARSE_K=8 "
        "RA_MLA_MLP_LATENT_RECIP=y RA_MLA_MLP_TYING_MODE=tied_transpose OPTIMIZER=adamwspam",
    [WEFT_PRESET_MODERN] = "ATTENTION=dot QK_NORM=y FFN=relu2 POSITION=rope NORM=rmsnorm "
                           "NORM_PLACEMENT=pre BIAS=n",
};

const char *weft_preset_sets(int preset) {
    return presets[preset];
}

weft_status weft_config_preset(weft_config *c, int preset) {
    char word[256];
    const char *at = presets[preset];
    unsigned char given[WEFT_OPTIONS_MAX];
    memcpy(given, c->given, sizeof given);
    while (*at) {
        size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        WEFT_TRY(weft_config_override(c, word, "preset"));
        at += length + strspn(at + length, " ");
    }
    memcpy(c->given, given, sizeof given); /* nobody set them */
    c->preset = preset;
    return WEFT_OK;
}

/* Each variant says all that it is, so that a config's own choices of attention and feed-forward do
 * not leak into the others' rows. */
#include "bench/tables.h"

#include "model/kinds.h"

#define PLAIN "FFN=gelu KV_HEADS=0"
#define LATENT "ATTENTION=mla RA_MLA_SCORE=dot " PLAIN

const bench_variant bench_variants[] = {
    {"dot", "dot + gelu", 0, "ATTENTION=dot FFN=gelu"},
    {"w2", "w2 + gelu", 0, "ATTENTION=w2 W2_KERNEL=w2 " PLAIN},
    {"cosine", "cosine + gelu", 0, "ATTENTION=cosine FFN=gelu"},
    {"mla", "mla + gelu", 0, LATENT},
    {"mla+gate", "mla + gate", 1, LATENT},
    {"mla+gate+cross", "mla + gate, cross", 2, LATENT},
    {"mla+gate+cross64", "mla + gate, cross 64", 2, LATENT " RA_MLA_MLP_CROSS_RANK=64"},
    {"mla+all", "mla + all, tied", 3, LATENT " RA_MLA_MLP_TYING_MODE=tied_transpose"},
    {"swiglu", "dot + swiglu", 0, "ATTENTION=dot FFN=swiglu"},
    {"wsffn", "dot + wsffn, dense", 0, "ATTENTION=dot FFN=wsffn WSFFN_Z_PROJ=dense"},
    {"wsffn-grouped", "dot + wsffn, grouped", 0, "ATTENTION=dot FFN=wsffn WSFFN_Z_PROJ=grouped"},
    {"mla-w2", "w2 in mla's latent", 0, "ATTENTION=mla RA_MLA_SCORE=w2 " PLAIN},
};
const int bench_variant_count = WEFT_COUNT(bench_variants);

#define GPT2 "CONTEXT=1024 BATCH_SIZE=8 VOCAB_SIZE=50304 "

static const bench_shape shapes[] = {
    {"small", NULL, 5, "N_LAYER=6 N_EMBD=256 N_HEAD=8 CONTEXT=256 BATCH_SIZE=8 VOCAB_SIZE=4096"},
    {"gpt2-124m", "mla,mla+all", 1, GPT2 "N_LAYER=12 N_EMBD=768 N_HEAD=12"},
    {"gpt2-355m", "dot,mla,mla+all", 1, GPT2 "N_LAYER=24 N_EMBD=1024 N_HEAD=16"},
    {"gpt2-1558m", "dot,mla,mla+all", 1, GPT2 "N_LAYER=48 N_EMBD=1600 N_HEAD=25 RECOMPUTE=y"},
    {"llama-1b", "swiglu", 1,
     "N_LAYER=16 N_EMBD=2048 N_HEAD=32 KV_HEADS=8 N_FFN=8192 NORM=rmsnorm NORM_EPS=1e-5 BIAS=n "
     "POSITION=rope ROPE_THETA=500000 CONTEXT=1024 BATCH_SIZE=8 VOCAB_SIZE=128256"},
};

/* What the RA-MLA write-up's ablation calls them; such names are still read. bench/names.py has them too. */
static const struct {
    const char *old, *name;
} old_names[] = {{"step1", "mla+gate"}, {"step2", "mla+gate+cross"}, {"step3", "mla+all"}};

const bench_variant *bench_variant_find(const char *name) {
    size_t length = strcspn(name, ",");
    for (int i = 0; i < WEFT_COUNT(old_names); i++)
        if (strlen(old_names[i].old) == length && strncmp(old_names[i].old, name, length) == 0)
            return bench_variant_find(old_names[i].name);
    for (int i = 0; i < bench_variant_count; i++)
        if (strlen(bench_variants[i].name) == length &&
            strncmp(bench_variants[i].name, name, length) == 0)
            return &bench_variants[i];
    return NULL;
}

const bench_shape *bench_shape_find(const char *name) {
    for (int i = 0; i < WEFT_COUNT(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

weft_status bench_variant_config(const bench_variant *v, const bench_config_source *from,
                                 weft_config *c) {
    weft_config_defaults(c);
    if (from->file)
        WEFT_TRY(weft_config_read(c, from->file));
    else
        WEFT_TRY(weft_config_override_all(c, from->shape->settings, from->shape->name));
    if (from->over) WEFT_TRY(weft_config_override_all(c, from->over, "the grid"));
    WEFT_TRY(weft_config_step(c, v->step));
    WEFT_TRY(weft_config_override_all(c, v->settings, v->name));
    for (int i = 0; i < from->n_settings; i++)
        WEFT_TRY(weft_config_override(c, from->settings[i].text, from->settings[i].where));
    return weft_model_check(c, v->name);
}

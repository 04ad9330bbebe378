#include "fuzz/small_study.h"

#include "cpu/backend.h"

/* Over file and variants: what makes a model large, and what names files. */
static const weft_override small[] = {
    {"N_LAYER=1", "-o"},        {"N_HEAD=1", "-o"},        {"N_EMBD=8", "-o"},
    {"N_FFN=8", "-o"},          {"KV_HEADS=0", "-o"},      {"VOCAB_SIZE=256", "-o"},
    {"CONTEXT=8", "-o"},        {"BATCH_SIZE=1", "-o"},    {"MICRO_BATCH=1", "-o"},
    {"DATASET=embedded", "-o"}, {"TOKENIZER=bytes", "-o"}, {"RA_MLA_LATENT_DIM=4", "-o"},
};

weft_status small_study(const char *file, weft_study **out) {
    weft_source source = {
        .file = file, .overrides = small, .n_overrides = sizeof small / sizeof small[0]};
    return weft_study_open(&source, weft_cpu_backend(), 1, out);
}

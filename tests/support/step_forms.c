/* Small models of common forms. */
#include "support/step_forms.h"

#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const step_form step_forms[STEP_FORMS] = {
    {"dot", {"ATTENTION=dot"}},
    {"dot-gqa-rms-untied",
     {"ATTENTION=dot", "N_HEAD=4", "N_EMBD=256", "KV_HEADS=2", "NORM=rmsnorm", "BIAS=n",
      "WEIGHT_TYING=n"}},
    {"w2", {"ATTENTION=w2"}},
    {"w2-gqa", {"ATTENTION=w2", "N_HEAD=4", "N_EMBD=256", "KV_HEADS=2", "ATTENTION_BIAS=qkv"}},
    {"w2-fixed-none", {"ATTENTION=w2", "W2_TAU_LEARNED=n", "POSITION=none", "ATTENTION_BIAS=qkv"}},
    {"mla", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=128"}},
    {"mla-twelve-heads",
     {"ATTENTION=mla", "RA_MLA_LATENT_DIM=128", "N_HEAD=12", "N_EMBD=192", "BIAS=n"}},
    {"mla-joint-shared",
     {"ATTENTION=mla", "RA_MLA_LATENT_DIM=128", "RA_MLA_JOINT_KV=y", "RA_MLA_PER_HEAD_Q_LATENT=n",
      "RA_MLA_PER_HEAD_V_UP=n", "ATTENTION_BIAS=all", "NORM_EPS=0.001"}},
    {"llama",
     {"ATTENTION=dot", "N_HEAD=4", "N_EMBD=256", "KV_HEADS=2", "NORM=rmsnorm", "BIAS=n",
      "WEIGHT_TYING=n", "POSITION=rope", "FFN=swiglu"}},
    {"rope-gelu", {"ATTENTION=dot", "POSITION=rope", "ROPE_SCALING=linear", "ROPE_FACTOR=2"}},
    {"swiglu-layernorm", {"ATTENTION=dot", "FFN=swiglu", "POSITION=none"}},
};

void step_case_open(model_case *c, const step_form *f, int64_t time) {
    static const char *const all[] = {"N_LAYER=2",        "N_EMBD=128",       "N_HEAD=2",
                                      "VOCAB_SIZE=97",    "CONTEXT=300",      "FFN=gelu",
                                      "CACHE_DTYPE=bf16", "WEIGHT_DTYPE=bf16"};
    *c = (model_case){.key = 7, .batch = 1, .time = time};
    snprintf(c->name, sizeof c->name, "%s", f->name);
    weft_config_defaults(&c->config);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        expect_ok(weft_config_override(&c->config, all[i], "test"));
    for (int i = 0; f->settings[i]; i++)
        if (weft_config_override(&c->config, f->settings[i], "test") != WEFT_OK)
            fail_msg("%s: %s", f->name, weft_error_message());
    c->tokens = malloc((size_t)time * sizeof *c->tokens);
    for (int64_t t = 0; t < time; t++)
        c->tokens[t] = (int32_t)((t * t + 3 * t + 1) % 97);
}

weft_model *step_case_weights(const model_case *c) {
    weft_model *m = model_case_weights(c, WEFT_F32);
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_weight *w = m->weights + i;
        if (!strstr(w->name, "log_tau")) continue;
        for (int64_t h = 0; h < w->count; h++)
            ((float *)w->data)[h] = 2.7f + 0.1f * (float)h;
    }
    weft_mirror_wrote(m->mirror, NULL);
    return m;
}

void step_decoding_open(step_decoding *d, weft_model *m, const weft_backend *backend, int64_t slots,
                        int64_t context) {
    d->model = m;
    d->vocab = m->config.vocab_size;
    expect_ok(weft_pool_create(2, &d->pool));
    int64_t table = weft_cached_table_pages(context), pages = slots * table;
    weft_decoder_limits limits = {slots, pages, context, table};
    if (weft_decoder_open(d->model, backend, d->pool, &limits, &d->decoder) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    for (int64_t s = 0; s < slots; s++)
        for (int64_t p = 0; p < table; p++)
            weft_decoder_table(d->decoder, (int32_t)s)[p] = (int32_t)(pages - 1 - (p * slots + s));
}

void step_decoding_close(step_decoding *d) {
    weft_decoder_close(d->decoder);
    weft_pool_destroy(d->pool);
    weft_model_destroy(d->model);
}

float *step_decode(step_decoding *d, int32_t slot, const int32_t *tokens, int64_t time,
                   int64_t chunk) {
    float *logits = malloc((size_t)(time * d->vocab) * sizeof *logits);
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX];
    for (int64_t t = 0; t < time; t += chunk) {
        int64_t n = t + chunk < time ? chunk : time - t;
        for (int64_t k = 0; k < n; k++)
            rows[k] = (weft_decoder_row){tokens[t + k], (int32_t)(t + k), slot, true};
        expect_ok(weft_decoder_run(d->decoder, rows, n, logits + t * d->vocab));
    }
    return logits;
}

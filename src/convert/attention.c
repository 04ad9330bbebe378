/* What the conversions of attention share: dot's weights taken apart, and the rest carried over. */
#include "convert/attention.h"

#include "model/kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

weft_status weft_dot_check(const weft_model *m, const char *what) {
    const weft_config *c = &m->config;
    if (c->attention != WEFT_ATTENTION_DOT)
        return weft_fail(WEFT_EINPUT,
                         "%s starts from CONFIG_ATTENTION=\"dot\"; this model has \"%s\"", what,
                         weft_config_word(c, WEFT_OPTION(attention)));
    if (c->mup)
        return weft_fail(WEFT_EINPUT,
                         "%s: not of a model with CONFIG_MUP=y, whose scores and logits "
                         "have scales of their own",
                         what);
    if (c->n_head * weft_config_head_dim(c) == c->n_embd) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s takes heads that fill CONFIG_N_EMBD=%lld; this model has %lld of "
                     "CONFIG_HEAD_DIM=%lld. Convert it before heads are removed",
                     what, (long long)c->n_embd, (long long)c->n_head, (long long)c->head_dim);
}

static const weft_weight *layer_weight(const weft_model *m, int64_t layer, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "h.%lld.%s", (long long)layer, name);
    return weft_model_find(m, full);
}

weft_status weft_dot_read(const weft_model *m, int64_t layer, weft_dot_layer *out) {
    const weft_config *c = &m->config;
    int64_t e = c->n_embd, n = weft_config_kv_heads(c) * weft_config_head_dim(c);
    const weft_weight *qkv = layer_weight(m, layer, "attn.qkv.weight");
    const weft_weight *bias = layer_weight(m, layer, "attn.qkv.bias");
    const weft_weight *to = layer_weight(m, layer, "attn.out.weight");
    const weft_weight *to_bias = layer_weight(m, layer, "attn.out.bias");
    *out = (weft_dot_layer){.biased = bias || to_bias};
    if (!qkv || !to) return weft_fail(WEFT_EBUG, "convert: a layer without attention");
    out->all = calloc((size_t)((e + 2 * n) * (e + 1) + e * (e + 1)), sizeof *out->all);
    if (!out->all) return weft_fail(WEFT_ENOMEM, "convert: no memory for a layer");
    out->q = out->all;
    out->k = out->q + e * e;
    out->v = out->k + n * e;
    out->bq = out->v + n * e;
    out->bk = out->bq + e;
    out->bv = out->bk + n;
    out->out = out->bv + n;
    out->b_out = out->out + e * e;
    weft_weight_read(qkv, out->q);
    weft_weight_read(to, out->out);
    if (bias) weft_weight_read(bias, out->bq);
    if (to_bias) weft_weight_read(to_bias, out->b_out);
    return WEFT_OK;
}

void weft_layer_write(weft_model *out, int64_t layer, const char *name, const double *values) {
    char full[128];
    snprintf(full, sizeof full, "h.%lld.%s", (long long)layer, name);
    weft_weight *w = weft_model_find(out, full);
    if (w) weft_weight_write(w, values);
}

weft_status weft_model_with(const weft_model *m, const weft_config *c, weft_model **out) {
    WEFT_TRY(weft_model_check(c, "convert"));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(weft_model_create(c, m->dtype, out));
    for (int64_t i = 0; i < (*out)->n_weights; i++) {
        weft_weight *w = &(*out)->weights[i];
        const weft_weight *from = weft_model_find(m, w->name);
        if (from && from->bytes == w->bytes && from->dtype == w->dtype)
            memcpy(w->data, from->data, (size_t)w->bytes);
    }
    weft_mirror_wrote((*out)->mirror, NULL);
    return WEFT_OK;
}

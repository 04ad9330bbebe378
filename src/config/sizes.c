/* Sizes that follow from several options. */
#include "config/config.h"

int64_t weft_config_head_dim(const weft_config *c) {
    return c->head_dim ? c->head_dim : c->n_embd / c->n_head;
}

double weft_config_mup(const weft_config *c) {
    return c->mup ? (double)c->n_embd / (double)c->mup_base_width : 1;
}

int64_t weft_config_ffn_dim(const weft_config *c) {
    return c->n_ffn ? c->n_ffn : 4 * c->n_embd;
}

int64_t weft_config_kv_heads(const weft_config *c) {
    return c->kv_heads ? c->kv_heads : c->n_head;
}

bool weft_config_leaks(const weft_config *c) {
    return c->causal && c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE;
}

int64_t weft_config_micro_batch(const weft_config *c) {
    return c->micro_batch ? c->micro_batch : c->batch_size;
}

int64_t weft_config_micro_batches(const weft_config *c) {
    return c->batch_size / weft_config_micro_batch(c) * c->gradient_accumulation;
}

weft_dtype weft_config_dtype(const weft_config *c) {
    return c->dtype == WEFT_CONFIG_F64    ? WEFT_F64
           : c->dtype == WEFT_CONFIG_BF16 ? WEFT_BF16
                                          : WEFT_F32;
}

/* Sizes that follow from several options. */
#include "config/config.h"

int64_t weft_config_head_dim(const weft_config *c) {
    return c->n_embd / c->n_head;
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

/* What follows from several options at once: sizes, and which mixes make sense, whatever the kinds are: those
 * have checks of their own (model/kinds.h). Each refusal names the keys, their values and the remedy. */
#include "config/config.h"

int64_t weft_config_head_dim(const weft_config *c) {
    return c->head_dim ? c->head_dim : c->n_embd / c->n_head;
}

int64_t weft_config_w2_width(const weft_config *c) {
    int64_t d = weft_config_head_dim(c);
    return d + (c->w2_sigma_dim ? c->w2_sigma_dim : d);
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

int64_t weft_config_window(const weft_config *c, int64_t layer) {
    return c->window_every && (layer + 1) % c->window_every == 0 ? 0 : c->window;
}

bool weft_config_leaks(const weft_config *c) {
    return c->causal && c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE;
}

int64_t weft_config_micro_batch(const weft_config *c) {
    return c->micro_batch > 0 ? c->micro_batch : c->batch_size;
}

int64_t weft_config_micro_batches(const weft_config *c) {
    return c->batch_size / weft_config_micro_batch(c) * c->gradient_accumulation;
}

weft_dtype weft_config_dtype(const weft_config *c) {
    return c->dtype == WEFT_CONFIG_F64    ? WEFT_F64
           : c->dtype == WEFT_CONFIG_BF16 ? WEFT_BF16
                                          : WEFT_F32;
}

weft_status weft_config_check(const weft_config *c, const char *where) {
    long long e = c->n_embd, h = c->n_head;
    if (!c->head_dim && e % h)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_N_EMBD=%lld is not divisible by CONFIG_N_HEAD=%lld", where, e,
                         h);
    if (c->mup && !c->mup_base_width)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_MUP=y needs CONFIG_MUP_BASE_WIDTH, the CONFIG_N_EMBD at which "
                         "the learning rate is known",
                         where);
    if (c->mup && c->optimizer == WEFT_OPTIMIZER_MUON)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_MUP=y scales AdamW's rates, and CONFIG_OPTIMIZER=\"muon\" scales "
            "each matrix by its shape; take CONFIG_MUP=n, or \"adamw\"",
            where);
    if (c->batch_size % weft_config_micro_batch(c))
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_BATCH_SIZE=%lld is not divisible by CONFIG_MICRO_BATCH=%lld",
                         where, (long long)c->batch_size, (long long)c->micro_batch);
    if (c->rope_dim % 2)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_ROPE_DIM=%lld columns are rotated in pairs; take an even number, "
            "or 0 for all of them",
            where, (long long)c->rope_dim);
    bool bends =
        c->rope_scaling == WEFT_ROPE_SCALING_LLAMA3 || c->rope_scaling == WEFT_ROPE_SCALING_YARN;
    if (bends && !(c->rope_low < c->rope_high))
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_ROPE_LOW=%g must be less than CONFIG_ROPE_HIGH=%g with "
                         "CONFIG_ROPE_SCALING=\"%s\"",
                         where, c->rope_low, c->rope_high,
                         weft_config_word(c, WEFT_OPTION(rope_scaling)));
    if ((c->window || c->document_mask) && !c->causal)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_CAUSAL=n lets a token see all others, but CONFIG_WINDOW and "
            "CONFIG_DOCUMENT_MASK count back from it; set CONFIG_CAUSAL=y, or them to 0 "
            "and n",
            where);
    if (c->document_mask && (c->document_token < 0 || c->document_token >= c->vocab_size))
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_DOCUMENT_MASK=y needs CONFIG_DOCUMENT_TOKEN, the token that ends "
            "a document, from 0 to %lld, unless the data's tokenizer has an end of text; it is "
            "%lld",
            where, (long long)c->vocab_size - 1, (long long)c->document_token);
    if (c->document_mask && c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_RA_MLA_MLP_GATE_POOL=\"sequence\" pools over other documents; "
                         "with CONFIG_DOCUMENT_MASK=y take \"token\" or \"cummean\"",
                         where);
    if (c->route_after_gate && c->attn_gate && c->cross_token &&
        (c->alpha_learned || c->gate_pool == WEFT_GATE_SEQUENCE))
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_RA_MLA_MLP_ROUTE_AFTER_GATE=y takes each token's gates as shares of "
            "its heads' weights: it needs CONFIG_RA_MLA_MLP_GATE_POOL=\"token\" or \"cummean\", "
            "and CONFIG_RA_MLA_MLP_ALPHA_LEARNED=n, since a learned share may fall below 0",
            where);
    long long f = weft_config_ffn_dim(c), l = c->ra_mla_latent_dim;
    if (c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR && (f % h || l % h || f % l))
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" needs the feed-forward's "
            "width %lld and CONFIG_RA_MLA_LATENT_DIM=%lld to divide by CONFIG_N_HEAD=%lld, "
            "and the first by the second",
            where, f, l, h);
    if (weft_config_leaks(c) && !c->allow_future_leak)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_RA_MLA_MLP_GATE_POOL=\"sequence\" lets a token see later ones; "
            "take \"token\" or \"cummean\", or set CONFIG_ALLOW_FUTURE_LEAK=y to have "
            "it all the same",
            where);
    return WEFT_OK;
}

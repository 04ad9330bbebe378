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

/* What {NAME} in a refusal stands for: a number that follows from the config, or CONFIG_NAME=VALUE. */
static size_t name_value(const weft_config *c, const char *name, char *text, size_t room) {
    const struct {
        const char *name;
        int64_t value;
    } derived[] = {{"head_dim", weft_config_head_dim(c)},
                   {"ffn_dim", weft_config_ffn_dim(c)},
                   {"last_token", c->vocab_size - 1},
                   {"document_token", c->document_token}};
    char value[WEFT_TEXT_MAX];
    for (size_t i = 0; i < sizeof derived / sizeof derived[0]; i++)
        if (strcmp(derived[i].name, name) == 0)
            return (size_t)snprintf(text, room, "%lld", (long long)derived[i].value);
    const weft_option *o = weft_option_find(name);
    const char *quote = o->type == WEFT_OPT_WORD || o->type == WEFT_OPT_TEXT ? "\"" : "";
    if (o->type == WEFT_OPT_NUMBER)
        return (size_t)snprintf(text, room, "CONFIG_%s=%g", o->key,
                                *(const double *)((const char *)c + o->offset));
    weft_config_format(c, o, value, sizeof value);
    return (size_t)snprintf(text, room, "CONFIG_%s=%s%s%s", o->key, quote, value, quote);
}

weft_status weft_config_refuse(const weft_config *c, const char *where, const weft_mix *mixes,
                               size_t n) {
    char text[1024], name[64];
    size_t used = 0, i = 0;
    while (i < n && !mixes[i].is)
        i++;
    if (i == n) return WEFT_OK;
    for (const char *at = mixes[i].why; *at && used < sizeof text;) {
        size_t plain = strcspn(at, "{"), whole = strcspn(at, "}") + 1;
        used += (size_t)snprintf(text + used, sizeof text - used, "%.*s", (int)plain, at);
        at += plain;
        if (!*at || used >= sizeof text) break;
        snprintf(name, sizeof name, "%.*s", (int)(whole - plain - 2), at + 1);
        used += name_value(c, name, text + used, sizeof text - used);
        at += whole - plain;
    }
    return WEFT_BAD_INPUT("%s: %s", where, text);
}

weft_status weft_config_check(const weft_config *c, const char *where) {
    int64_t h = c->n_head, f = weft_config_ffn_dim(c), l = c->ra_mla_latent_dim;
    bool pooled = c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE;
    bool bends =
        c->rope_scaling == WEFT_ROPE_SCALING_LLAMA3 || c->rope_scaling == WEFT_ROPE_SCALING_YARN;
    const weft_mix mixes[] = {
        {!c->head_dim && c->n_embd % h, "{N_EMBD} is not divisible by {N_HEAD}"},
        {c->mup && !c->mup_base_width, "{MUP} needs CONFIG_MUP_BASE_WIDTH, the CONFIG_N_EMBD at "
                                       "which the learning rate is known"},
        {c->mup && c->optimizer == WEFT_OPTIMIZER_MUON,
         "{MUP} scales AdamW's rates, and {OPTIMIZER} scales each matrix by its shape; take "
         "CONFIG_MUP=n, or \"adamw\""},
        {c->batch_size % weft_config_micro_batch(c),
         "{BATCH_SIZE} is not divisible by {MICRO_BATCH}"},
        {c->rope_dim % 2,
         "{ROPE_DIM} columns are rotated in pairs; take an even number, or 0 for all of them"},
        {bends && !(c->rope_low < c->rope_high),
         "{ROPE_LOW} must be less than {ROPE_HIGH} with {ROPE_SCALING}"},
        {(c->window || c->document_mask) && !c->causal,
         "{CAUSAL} lets a token see all others, but CONFIG_WINDOW and CONFIG_DOCUMENT_MASK count "
         "back from it; set CONFIG_CAUSAL=y, or them to 0 and n"},
        {c->document_mask && (c->document_token < 0 || c->document_token >= c->vocab_size),
         "{DOCUMENT_MASK} needs CONFIG_DOCUMENT_TOKEN, the token that ends a document, from 0 to "
         "{last_token}, unless the data's tokenizer has an end of text; it is {document_token}"},
        {c->document_mask && pooled,
         "{RA_MLA_MLP_GATE_POOL} pools over other documents; with {DOCUMENT_MASK} take \"token\" "
         "or \"cummean\""},
        {c->route_after_gate && c->attn_gate && c->cross_token && (c->alpha_learned || pooled),
         "{RA_MLA_MLP_ROUTE_AFTER_GATE} takes each token's gates as shares of its heads' weights: "
         "it needs CONFIG_RA_MLA_MLP_GATE_POOL=\"token\" or \"cummean\", and "
         "CONFIG_RA_MLA_MLP_ALPHA_LEARNED=n, since a learned share may fall below 0"},
        {c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR && (f % h || l % h || f % l),
         "{RA_MLA_MLP_TYING_MODE} needs the feed-forward's width {ffn_dim} and {RA_MLA_LATENT_DIM} "
         "to divide by {N_HEAD}, and the first by the second"},
        {weft_config_leaks(c) && !c->allow_future_leak,
         "{RA_MLA_MLP_GATE_POOL} lets a token see later ones; take \"token\" or \"cummean\", or "
         "set CONFIG_ALLOW_FUTURE_LEAK=y to have it all the same"},
    };
    return WEFT_REFUSE(c, where, mixes);
}

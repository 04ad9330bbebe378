/* The tables of kinds, made from config/kinds.h, and the checks that need them. */
#include "model/kinds.h"

#include "model/units.h"

#define IS_ATTENTION(NAME, name, title, help)                                                      \
    extern const weft_attention_kind weft_attention_##name;
WEFT_ATTENTIONS(IS_ATTENTION)
#define IS_FFN(NAME, name, title, help) extern const weft_ffn_kind weft_ffn_##name;
WEFT_FFNS(IS_FFN)
#define IS_POSITION(NAME, name, title, help) extern const weft_position_kind weft_position_##name;
WEFT_POSITIONS(IS_POSITION)

#define ATTENTION(NAME, name, title, help) &weft_attention_##name,
static const weft_attention_kind *const attentions[] = {WEFT_ATTENTIONS(ATTENTION)};
#define FFN(NAME, name, title, help) &weft_ffn_##name,
static const weft_ffn_kind *const ffns[] = {WEFT_FFNS(FFN)};
#define POSITION(NAME, name, title, help) &weft_position_##name,
static const weft_position_kind *const positions[] = {WEFT_POSITIONS(POSITION)};

const weft_attention_kind *weft_attention_of(const weft_config *c) {
    return attentions[c->attention];
}

const weft_ffn_kind *weft_ffn_of(const weft_config *c) {
    return ffns[c->ffn];
}

const weft_position_kind *weft_position_of(const weft_config *c) {
    return positions[c->position];
}

const char *weft_attention_title(const weft_config *c) {
    return weft_named_kinds[c->attention].title; /* attentions come first */
}

/* Refuses, where `is`, what goes with the attentions that have a field: WHAT "dot" or "mla"REST. */
static weft_status refuse_others(const weft_config *c, const char *where, bool is, size_t field,
                                 const char *what, const char *rest) {
    const char *const *words = WEFT_OPTION(attention)->words;
    char why[512];
    size_t room = sizeof why, used = (size_t)snprintf(why, room, "%s CONFIG_ATTENTION=", what);
    if (!is) return WEFT_OK;
    const char *between = "";
    for (int i = 0; words[i] && used < room; i++) {
        if (!*(const bool *)((const char *)attentions[i] + field)) continue;
        used += (size_t)snprintf(why + used, room - used, "%s\"%s\"", between, words[i]);
        between = " or ";
    }
    if (used < room) snprintf(why + used, room - used, "%s", rest);
    return weft_config_refuse(c, where, &(weft_mix){true, why}, 1);
}
#define REFUSE_OTHERS(is, field, what, rest)                                                       \
    WEFT_TRY(refuse_others(c, where, (is), offsetof(weft_attention_kind, field), (what), (rest)))

weft_status weft_model_check(const weft_config *c, const char *where) {
    const weft_attention_kind *attention = weft_attention_of(c);
    const weft_position_kind *position = weft_position_of(c);
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    WEFT_TRY(weft_config_check(c, where));
    long long h = c->n_head, kv = weft_config_kv_heads(c);
    REFUSE_OTHERS(c->kv_heads && !attention->shares_heads, shares_heads, "{KV_HEADS} goes with",
                  " only; set it to 0");
    if (h % kv)
        return WEFT_BAD_INPUT("%s: CONFIG_N_HEAD=%lld is not divisible by CONFIG_KV_HEADS=%lld",
                              where, h, kv);
    REFUSE_OTHERS(c->qk_norm && c->qk_norm_whole && (h != kv || !attention->norms_whole),
                  norms_whole, "{QK_NORM_WHOLE} goes with",
                  " and as many key as query heads; set it to n");
    REFUSE_OTHERS(c->kv_share > 1 && !attention->shares_layers, shares_layers,
                  "{KV_SHARE} goes with", " only; set it to 1");
    const weft_mix mixes[] = {{c->kv_share > 1 && c->latent_recip,
                               "{KV_SHARE} leaves layers without a latent of their own, to which "
                               "{RA_MLA_MLP_LATENT_RECIP} would send; set one of them back"}};
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    if (attention->check) WEFT_TRY(attention->check(c, where));
    if (position->check) WEFT_TRY(position->check(c, where));
    if (ffn->check) WEFT_TRY(ffn->check(c, where));
    bool mechanisms = c->attn_gate || c->cross_token || c->latent_recip;
    REFUSE_OTHERS(c->mup && (!attention->mup || !ffn->mup || mechanisms), mup, "{MUP} goes with",
                  ", CONFIG_FFN=\"gelu\", \"gelu_erf\", \"relu2\", \"swiglu\" or \"geglu\" and no "
                  "reciprocal mechanism: how others go with the width is not known");
    WEFT_AUTO(weft_units_free) weft_units units;
    WEFT_TRY(weft_prune_check(c, where, &units));
    REFUSE_OTHERS(c->latent_recip && !attention->latent, latent, "{RA_MLA_MLP_LATENT_RECIP} needs",
                  ": no other attention has a latent");
    return WEFT_OK;
}

/* The tables of kinds, made from config/kinds.h, and the checks that need them. */
#include "model/kinds.h"

#include "model/units.h"

#define DECLARE(NAME, name, title, help) extern const weft_attention_kind weft_attention_##name;
WEFT_ATTENTIONS(DECLARE)
#undef DECLARE
#define DECLARE(NAME, name, title, help) extern const weft_ffn_kind weft_ffn_##name;
WEFT_FFNS(DECLARE)
#undef DECLARE
#define DECLARE(NAME, name, title, help) extern const weft_position_kind weft_position_##name;
WEFT_POSITIONS(DECLARE)
#undef DECLARE

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
#define TITLE(NAME, name, title, help) title,
    static const char *const titles[] = {WEFT_ATTENTIONS(TITLE)};
#undef TITLE
    return titles[c->attention];
}

/* The words of the attentions that have a field: "dot", or "dot" or "mla". */
static const char *list_attentions(size_t field, char *text, size_t room) {
    const char *const *words = WEFT_OPTION(attention)->words;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; words[i] && used < room; i++)
        if (*(const bool *)((const char *)attentions[i] + field))
            used += (size_t)snprintf(text + used, room - used, "%s\"%s\"", used ? " or " : "",
                                     words[i]);
    return text;
}
#define attentions_with(field, text)                                                               \
    list_attentions(offsetof(weft_attention_kind, field), text, sizeof text)

static weft_status check_mup(const weft_config *c, const char *where) {
    char words[256];
    bool mechanisms = c->attn_gate || c->cross_token || c->latent_recip;
    if (!c->mup || (weft_attention_of(c)->mup && weft_ffn_of(c)->mup && !mechanisms))
        return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: CONFIG_MUP=y goes with CONFIG_ATTENTION=%s, CONFIG_FFN=\"gelu\", "
        "\"gelu_erf\", \"relu2\", \"swiglu\" or \"geglu\" and no reciprocal mechanism: how "
        "others go with the width is not known",
        where, attentions_with(mup, words));
}

weft_status weft_model_check(const weft_config *c, const char *where) {
    const weft_attention_kind *attention = weft_attention_of(c);
    const weft_position_kind *position = weft_position_of(c);
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    WEFT_TRY(weft_config_check(c, where));
    long long h = c->n_head, kv = weft_config_kv_heads(c);
    char words[256];
    if (c->kv_heads && !weft_attention_of(c)->shares_heads)
        return WEFT_BAD_INPUT(
            "%s: CONFIG_KV_HEADS=%lld goes with CONFIG_ATTENTION=%s only; set it to 0", where, kv,
            attentions_with(shares_heads, words));
    if (h % kv)
        return WEFT_BAD_INPUT("%s: CONFIG_N_HEAD=%lld is not divisible by CONFIG_KV_HEADS=%lld",
                              where, h, kv);
    if (c->qk_norm && c->qk_norm_whole && (h != kv || !weft_attention_of(c)->norms_whole))
        return WEFT_BAD_INPUT(
            "%s: CONFIG_QK_NORM_WHOLE=y goes with CONFIG_ATTENTION=%s and as many key "
            "as query heads; set it to n",
            where, attentions_with(norms_whole, words));
    if (c->kv_share > 1 && !weft_attention_of(c)->shares_layers)
        return WEFT_BAD_INPUT(
            "%s: CONFIG_KV_SHARE=%lld goes with CONFIG_ATTENTION=%s only; set it to 1", where,
            (long long)c->kv_share, attentions_with(shares_layers, words));
    const weft_mix mixes[] = {{c->kv_share > 1 && c->latent_recip,
                               "{KV_SHARE} leaves layers without a latent of their own, to which "
                               "{RA_MLA_MLP_LATENT_RECIP} would send; set one of them back"}};
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    if (attention->check) WEFT_TRY(attention->check(c, where));
    if (position->check) WEFT_TRY(position->check(c, where));
    if (ffn->check) WEFT_TRY(ffn->check(c, where));
    WEFT_TRY(check_mup(c, where));
    WEFT_AUTO(weft_units_free) weft_units units;
    WEFT_TRY(weft_prune_check(c, where, &units));
    if (!c->latent_recip || weft_attention_of(c)->latent) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: CONFIG_RA_MLA_MLP_LATENT_RECIP=y needs CONFIG_ATTENTION=%s: no other "
        "attention has a latent",
        where, attentions_with(latent, words));
}

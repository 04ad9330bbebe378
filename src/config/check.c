/* Which mixes of options make sense. Each refusal names the keys, their values and the remedy. */
#include "config/config.h"

static weft_status check_sizes(const weft_config *c, const char *where) {
    long long e = c->n_embd, h = c->n_head, d = e / h, kv = weft_config_kv_heads(c);
    if (e % h)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_N_EMBD=%lld does not divide by CONFIG_N_HEAD=%lld", where, e,
                         h);
    if (c->kv_heads && c->attention != WEFT_ATTENTION_DOT)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_KV_HEADS=%lld goes with CONFIG_ATTENTION=\"dot\" only; set it "
                         "to 0",
                         where, kv);
    if (h % kv)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_N_HEAD=%lld does not divide by CONFIG_KV_HEADS=%lld", where, h,
                         kv);
    if (c->position == WEFT_POSITION_ROPE && c->attention != WEFT_ATTENTION_MLA && d % 2)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_POSITION=\"rope\" turns pairs, but a head is %lld wide "
                         "(CONFIG_N_EMBD / CONFIG_N_HEAD); make it even",
                         where, d);
    bool relative = c->position == WEFT_POSITION_RELATIVE;
    if ((relative || c->position == WEFT_POSITION_ALIBI) && !c->causal)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_POSITION=\"%s\" counts distances back, so it needs "
                         "CONFIG_CAUSAL=y",
                         where, relative ? "relative" : "alibi");
    if (c->micro_batch && c->batch_size % c->micro_batch)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_BATCH_SIZE=%lld does not divide by CONFIG_MICRO_BATCH=%lld",
                         where, (long long)c->batch_size, (long long)c->micro_batch);
    return WEFT_OK;
}

static weft_status check_mla(const weft_config *c, const char *where) {
    if (c->attention != WEFT_ATTENTION_MLA) return WEFT_OK;
    long long latent = c->ra_mla_latent_dim;
    bool rope = c->ra_mla_use_rope || c->position == WEFT_POSITION_ROPE;
    bool w2 = c->ra_mla_score == WEFT_SCORE_W2;
    long long unit = (w2 ? 2 : 1) * (rope ? 2 : 1);
    if (latent % unit)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_RA_MLA_LATENT_DIM=%lld must be a multiple of %lld with "
                         "CONFIG_RA_MLA_SCORE=\"%s\"%s",
                         where, latent, unit, w2 ? "w2" : "dot", rope ? " and rotation" : "");
    if (c->ra_mla_ra_alpha > 0 && w2)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_RA_MLA_RA_ALPHA=%g (reciprocal scoring) does not go with "
                         "CONFIG_RA_MLA_SCORE=\"w2\"; set one of them back",
                         where, c->ra_mla_ra_alpha);
    if (c->ra_mla_ra_alpha > 0 && !c->causal)
        return weft_fail(WEFT_EINPUT, "%s: CONFIG_RA_MLA_RA_ALPHA=%g needs CONFIG_CAUSAL=y", where,
                         c->ra_mla_ra_alpha);
    return WEFT_OK;
}

static weft_status check_wsffn(const weft_config *c, const char *where) {
    long long f = weft_config_ffn_dim(c), heads = c->wsffn_n_head;
    if (c->ffn != WEFT_FFN_WSFFN || f % heads == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: the feed-forward's width %lld (CONFIG_N_FFN, or 4 x CONFIG_N_EMBD) does "
                     "not divide by CONFIG_WSFFN_N_HEAD=%lld",
                     where, f, heads);
}

static weft_status check_scalar_coupling(const weft_config *c, const char *where) {
    long long f = weft_config_ffn_dim(c), l = c->ra_mla_latent_dim, h = c->n_head;
    if (f % h == 0 && l % h == 0 && f % l == 0) return WEFT_OK;
    return weft_fail(
        WEFT_EINPUT,
        "%s: CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\" needs the feed-forward's "
        "width %lld and CONFIG_RA_MLA_LATENT_DIM=%lld to divide by CONFIG_N_HEAD=%lld, "
        "and the first by the second",
        where, f, l, h);
}

static weft_status check_reciprocal(const weft_config *c, const char *where) {
    if (c->latent_recip && c->attention != WEFT_ATTENTION_MLA)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_RA_MLA_MLP_LATENT_RECIP=y needs CONFIG_ATTENTION=\"mla\": no "
                         "other attention has a latent",
                         where);
    if (c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR)
        WEFT_TRY(check_scalar_coupling(c, where));
    if (weft_config_leaks(c) && !c->allow_future_leak)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_RA_MLA_MLP_GATE_POOL=\"sequence\" lets a token see later ones; "
            "take \"token\" or \"cummean\", or set CONFIG_ALLOW_FUTURE_LEAK=y to have "
            "it all the same",
            where);
    return WEFT_OK;
}

weft_status weft_config_check(const weft_config *c, const char *where) {
    WEFT_TRY(check_sizes(c, where));
    WEFT_TRY(check_mla(c, where));
    WEFT_TRY(check_wsffn(c, where));
    return check_reciprocal(c, where);
}

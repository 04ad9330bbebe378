/* Attention in one latent space that all heads share: a key c^K and a value c^V of width L a token,
 * and per head a map A of queries into the latent and a map U of what is found out of it. The
 * cache holds 2L numbers a token and layer (L if joint). With RA_MLA_LATENT_HEADS there are several
 * latents, each shared by a group of heads (GLA).
 *
 * With RA_MLA_ROPE_DIM queries and keys have a rotated part q^R, k^R beside the latent, k^R for all
 * heads; joint, with RA_MLA_LATENT_NORM and RA_MLA_Q_RANK it is DeepSeek's form.
 *
 * Two forms, both exact. In the latent: ⟨q A, c^K⟩, then (Σ p c^V) U, one key head of width L; the
 * only one where something rotates or squares what is in the latent. By head: ⟨q, A c^K⟩, Σ p (c^V U),
 * a key head of width D for each query head. A whole sequence at once meets T/2 keys per query, and
 * each costs L or D products: by head where D < L.
 *
 * With RA_MLA_SCORE="w2" queries and keys are Gaussians in the latent: means in its first half,
 * deviations in its second. */
#include "model/builder.h"
#include "model/units.h"

static weft_tensor *value_map(builder *b) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (!b->c->ra_mla_per_head_v_up)
        return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), latent, b->head_dim);
    return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), b->heads, latent, b->head_dim);
}

/* The rotated part takes all of it. */
static bool rotates_latent(const weft_config *c) {
    return c->ra_mla_rope_dim == 0 && (c->ra_mla_use_rope || weft_position_of(c)->rotate);
}

static bool goes_by_head(const builder *b) {
    const weft_config *c = b->c;
    if (rotates_latent(c) || c->ra_mla_score == WEFT_SCORE_W2 || c->ra_mla_ra_alpha > 0)
        return false;
    if (c->qk_norm) return false;
    if (!c->ra_mla_per_head_q_latent || !c->ra_mla_per_head_v_up) return false;
    if (b->build->form != WEFT_FORM_BY_SHAPE) return b->build->form == WEFT_FORM_CHEAP;
    return b->head_dim < c->ra_mla_latent_dim;
}

/* A head's keys and values from the latents': [B, T, H, D] from [B, T, g L], by a map [H, D, L]. */
static weft_tensor *expand_heads(builder *b, weft_tensor *latents, weft_tensor *map) {
    int64_t n = b->c->ra_mla_latent_heads, width = b->c->ra_mla_latent_dim;
    weft_tensor *y;
    if (n == 1) {
        map = weft_view(b->g, map, b->inner, width);
        y = weft_linear(b->g, latents, map, NULL, WEFT_ACT_NONE);
    } else {
        map = weft_view(b->g, map, n, b->inner / n, width);
        y = weft_grouped_linear(b->g, as_heads(b, latents, n, width), map, true);
    }
    return as_heads(b, y, b->heads, b->head_dim);
}

/* What a layer attends with, from what it reads: its queries and their rotated part, the latents, and
 * the map into them. */
typedef struct {
    weft_tensor *q, *q_rope, *k, *v, *to_latent;
} mla_parts;

static weft_tensor *attend_in_latent(builder *b, const mla_parts *p, weft_tensor *common) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim, n = c->ra_mla_latent_heads;
    weft_score *score = &b->score;
    builder_keys keys = {
        .gaussian = c->ra_mla_score == WEFT_SCORE_W2, .common = common, .scored = latent};
    /* q̂ [B, T, H, L] = q A. Shared over heads it is one vector, repeated. */
    weft_tensor *q = p->q;
    if (c->ra_mla_per_head_q_latent) {
        q = weft_grouped_linear(b->g, as_heads(b, q, b->heads, b->head_dim), p->to_latent, false);
    } else {
        q = weft_view(b->g, q, b->batch * b->time, b->inner);
        q = as_heads(b, weft_matmul(b->g, q, p->to_latent, false, false), 1, latent);
        q = weft_head_repeat(b->g, q, b->heads);
    }
    q = keys.gaussian ? norm_means(b, q, latent / 2, true) : norm_heads(b, q, b->heads, 0);
    q = join_heads(b, p->q_rope, q, latent);
    keys.k = as_heads(b, p->k, n, latent);
    keys.v = p->v == p->k ? keys.k : as_heads(b, p->v, n, latent);
    if (rotates_latent(c)) {
        keys.rotated = rotated_width(c, keys.gaussian ? latent / 2 : latent);
        q = rotate_heads(b, q, keys.rotated, b->heads);
    }
    if (keys.gaussian) {
        b->means = latent / 2;
        q = weft_gaussian_query(b->g, q);
        b->distance = true;
        build_temperature(b, score, latent / 2);
    }
    score->q = q;
    if (c->ra_mla_ra_alpha > 0) {
        score->band = true;
        score->band_alpha = c->ra_mla_ra_alpha;
        score->window = c->ra_mla_ra_window;
    }
    /* o [B, T, H, D] from õ [B, T, H, L]. */
    weft_tensor *o = builder_attend(b, &keys), *map = value_map(b);
    if (c->ra_mla_per_head_v_up) return weft_grouped_linear(b->g, o, map, false);
    o = weft_view(b->g, o, b->batch * b->time * b->heads, latent);
    o = b->build->rows_alone ? weft_matmul_alone(b->g, o, map)
                             : weft_matmul(b->g, o, map, false, false);
    return as_heads(b, o, b->heads, b->head_dim);
}

/* Latents [B, T, g L] as QK_NORM or RA_MLA_LATENT_NORM leaves them. */
static weft_tensor *norm_latents(builder *b, weft_tensor *k) {
    const weft_config *c = b->c;
    int64_t n = c->ra_mla_latent_heads, latent = c->ra_mla_latent_dim;
    if (!c->qk_norm && !c->ra_mla_latent_norm) return k;
    k = as_heads(b, k, n, latent);
    if (c->ra_mla_latent_norm) {
        weft_tensor *gain = builder_vector(b, "attn.latent_norm.weight", init_constant(1), latent);
        k = weft_norm_heads(b->g, k, gain, n, NULL, 0);
    } else {
        k = c->ra_mla_score == WEFT_SCORE_W2 ? norm_means(b, k, latent / 2, false)
                                             : norm_heads(b, k, 0, n);
    }
    return weft_view(b->g, k, b->batch, b->time, n * latent);
}

static weft_tensor *build_mla(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t latents = c->ra_mla_latent_heads * c->ra_mla_latent_dim, rope = c->ra_mla_rope_dim;
    mla_parts p = {0};
    weft_tensor *from = x, *common = b->shares ? b->kept.common : NULL;
    if (c->ra_mla_q_rank) {
        from = attention_map(b, x, "q_down", c->ra_mla_q_rank);
        weft_init start = init_constant(1);
        weft_tensor *gain = builder_vector(b, "attn.q_down_norm.weight", start, c->ra_mla_q_rank);
        from = weft_norm(b->g, from, NULL, gain, NULL, WEFT_RMSNORM, 0).y;
    }
    p.q = attention_map(b, from, "q", b->inner);
    if (rope) {
        p.q_rope = map_to_heads(b, from, "q_rope", b->heads, rope);
        p.q_rope = rotate_heads(b, p.q_rope, rope, b->heads);
    }
    int64_t latent = c->ra_mla_latent_dim,
            wide = c->ra_mla_per_head_q_latent ? b->head_dim : b->inner;
    weft_init start = init_uniform(wide, latent);
    p.to_latent = c->ra_mla_per_head_q_latent
                      ? matrix(b, "attn.q_latent", start, b->heads, b->head_dim, latent)
                      : matrix(b, "attn.q_latent", start, b->inner, latent);
    if (!b->shares) {
        weft_tensor *down = attention_map(b, x, "k_down", latents);
        b->latent = norm_latents(b, add_optional(b, down, b->received));
        if (!c->ra_mla_joint_kv) b->latent_v = attention_map(b, x, "v_down", latents);
        if (rope) {
            common = map_to_heads(b, x, "k_rope", 1, rope);
            common = rotate_heads(b, common, rope, 1);
        }
    }
    p.k = b->latent;
    p.v = b->latent_v ? b->latent_v : p.k;
    b->score.scale_value = 1 / sqrt((double)(rope ? b->head_dim + rope : c->ra_mla_latent_dim));
    if (!goes_by_head(b)) return attend_in_latent(b, &p, common);
    weft_tensor *q = as_heads(b, p.q, b->heads, b->head_dim);
    b->score.q = join_heads(b, p.q_rope, q, b->head_dim);
    builder_keys keys = {
        .k = expand_heads(b, p.k, p.to_latent), .common = common, .scored = b->head_dim};
    builder_score_position(b); /* parameters have one order in both forms */
    keys.v = expand_heads(b, p.v, weft_head_transpose(b->g, value_map(b)));
    return builder_attend(b, &keys);
}

static weft_status check(const weft_config *c, const char *where) {
    int64_t latent = c->ra_mla_latent_dim, n = c->ra_mla_latent_heads, rope = c->ra_mla_rope_dim;
    bool rotated = rotates_latent(c), w2 = c->ra_mla_score == WEFT_SCORE_W2;
    const weft_mix mixes[] = {
        {w2 && rotated && latent % 4,
         "{RA_MLA_LATENT_DIM} must be a multiple of 4 with {RA_MLA_SCORE} and rotation"},
        {rotated && latent % 2,
         "{RA_MLA_LATENT_DIM} must be a multiple of 2 with {RA_MLA_SCORE} and rotation"},
        {w2 && latent % 2, "{RA_MLA_LATENT_DIM} must be a multiple of 2 with {RA_MLA_SCORE}"},
        {c->nope_every && (rotated || rope),
         "{NOPE_EVERY} does not go with {ATTENTION}; set it to 0"},
        {c->rope_dim && rope, "{ROPE_DIM} does not go with {RA_MLA_ROPE_DIM}, columns that are all "
                              "rotated; set it to 0"},
        {c->ra_mla_ra_alpha > 0 && w2, "{RA_MLA_RA_ALPHA} (reciprocal scoring) does not go with "
                                       "{RA_MLA_SCORE}; set one of them back"},
        {c->ra_mla_ra_alpha > 0 && !c->causal, "{RA_MLA_RA_ALPHA} needs CONFIG_CAUSAL=y"},
        {c->n_head % n, "{N_HEAD} is not divisible by {RA_MLA_LATENT_HEADS}"},
        {n > 1 && c->latent_recip, "{RA_MLA_MLP_LATENT_RECIP} couples the feed-forward with one "
                                   "latent, so it needs CONFIG_RA_MLA_LATENT_HEADS=1"},
        {rope % 2, "{RA_MLA_ROPE_DIM} rotates pairs; make it even"},
        {rope && c->ra_mla_use_rope, "{RA_MLA_ROPE_DIM} does not go with {RA_MLA_USE_ROPE}, which "
                                     "rotates the latent itself; set one of them back"},
        {rope && w2, "{RA_MLA_ROPE_DIM} does not go with {RA_MLA_SCORE}; set one of them back"},
        {c->ra_mla_latent_norm && (!c->ra_mla_joint_kv || c->qk_norm),
         "{RA_MLA_LATENT_NORM} norms the one latent of keys and values: it needs "
         "CONFIG_RA_MLA_JOINT_KV=y and CONFIG_QK_NORM=n"},
    };
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    if (rotated || rope) WEFT_TRY(check_common_law(c, where));
    if (c->ra_mla_use_rope) WEFT_TRY(check_rotated(c, where, latent / (w2 ? 2 : 1)));
    return w2 ? check_distance_uncapped(c, where) : WEFT_OK;
}

static int list_cache(const weft_config *c, weft_cache_part *parts) {
    int64_t n = c->ra_mla_latent_heads, latent = c->ra_mla_latent_dim, rope = c->ra_mla_rope_dim;
    parts[0] = parts[1] = (weft_cache_part){.heads = n, .width = latent};
    if (rope) { /* the rotated part once, beside the latents */
        parts[0] = (weft_cache_part){.heads = 1, .width = n * latent + rope};
        parts[1] = (weft_cache_part){.heads = 1, .width = n * latent};
    }
    return c->ra_mla_joint_kv ? 1 : 2;
}

static int64_t rotated_columns(const weft_config *c) {
    return c->ra_mla_rope_dim ? c->ra_mla_rope_dim : c->ra_mla_latent_dim;
}

static const char *tell_fixed(const weft_config *c) {
    if (c->ra_mla_latent_heads > 1)
        return "with CONFIG_RA_MLA_LATENT_HEADS a head reads a latent by its number, so none can "
               "be removed; --sparse zeroes them in place";
    if (!c->ra_mla_per_head_q_latent)
        return "with CONFIG_RA_MLA_PER_HEAD_Q_LATENT=n all heads make one query together, so none "
               "can be removed; --sparse zeroes them in place";
    return NULL;
}

static void list_heads(const weft_config *c, weft_unit_list *l) {
    int64_t d = weft_config_head_dim(c);
    if (c->ra_mla_per_head_q_latent) {
        weft_unit_add(l, "attn.q.weight", 0, 0, d);
        weft_unit_add(l, "attn.q.bias", 0, 0, d);
        weft_unit_add(l, "attn.q_latent", 0, 0, 1);
    }
    if (c->ra_mla_rope_dim) {
        weft_unit_add(l, "attn.q_rope.weight", 0, 0, c->ra_mla_rope_dim);
        weft_unit_add(l, "attn.q_rope.bias", 0, 0, c->ra_mla_rope_dim);
    }
    if (c->ra_mla_per_head_v_up) weft_unit_add_zeroed(l, "attn.v_up", 0, 0, 1);
    weft_unit_add(l, "attn.log_tau", 0, 0, 1)->counts = false;
    weft_unit_add_zeroed(l, "attn.out.weight", 1, 0, d);
}

const weft_attention_kind weft_attention_mla = {
    .build = build_mla,
    .check = check,
    .cache = list_cache,
    .heads = list_heads,
    .fixed_heads = tell_fixed,
    .rotated = rotated_columns,
    .shares_layers = true,
    .latent = true,
};

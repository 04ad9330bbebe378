/* Attention in one latent space that all heads share: a key c^K and a value c^V of width L a token,
 * and per head a map A of queries into the latent and a map U of what is found out of it. The
 * cache holds 2L numbers a token and layer (L if joint).
 *
 * Two forms, both exact. In the latent: ⟨q A, c^K⟩, then (Σ p c^V) U, one key head of width L; the
 * only one where something turns or squares what is in the latent. By head: ⟨q, A c^K⟩, Σ p (c^V U),
 * a key head of width D for each query head. A whole sequence at once meets T/2 keys a query, and
 * each costs L or D products: by head where D < L.
 *
 * With RA_MLA_SCORE="w2" queries and keys are Gaussians in the latent: means in its first half,
 * deviations in its second. */
#include "model/builder.h"
#include "ops/gaussian.h"
#include "ops/heads.h"
#include "ops/linear.h"

#include <math.h>

static weft_tensor *query_map(builder *b) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (!b->c->ra_mla_per_head_q_latent)
        return matrix(b, "attn.q_latent", init_uniform(b->width, latent), b->width, latent);
    return matrix(b, "attn.q_latent", init_uniform(b->head_dim, latent), b->heads, b->head_dim,
                  latent);
}

static weft_tensor *value_map(builder *b) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (!b->c->ra_mla_per_head_v_up)
        return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), latent, b->head_dim);
    return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), b->heads, latent, b->head_dim);
}

/* Rows of one head or several, from [B, T, ...]. */
static weft_tensor *as_heads(builder *b, weft_tensor *x, int64_t heads, int64_t width) {
    return weft_view(b->g, x, b->batch, b->time, heads, width);
}

/* q̂ [B, T, H, L] = q A. Shared over heads it is one vector, repeated. */
static weft_tensor *latent_queries(builder *b, weft_tensor *q, weft_tensor *map) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (b->c->ra_mla_per_head_q_latent)
        return weft_grouped_linear(b->g, as_heads(b, q, b->heads, b->head_dim), map, false);
    q = weft_matmul(b->g, weft_view(b->g, q, b->batch * b->time, b->width), map, false, false);
    return weft_head_repeat(b->g, as_heads(b, q, 1, latent), b->heads);
}

/* o [B, T, H, D] from õ [B, T, H, L]. */
static weft_tensor *latent_values_up(builder *b, weft_tensor *o, weft_tensor *map) {
    int64_t latent = b->c->ra_mla_latent_dim, rows = b->batch * b->time * b->heads;
    if (b->c->ra_mla_per_head_v_up) return weft_grouped_linear(b->g, o, map, false);
    o = weft_matmul(b->g, weft_view(b->g, o, rows, latent), map, false, false);
    return as_heads(b, o, b->heads, b->head_dim);
}

static bool turns_latent(const builder *b) {
    return b->c->ra_mla_use_rope || b->c->position == WEFT_POSITION_ROPE;
}

static bool goes_by_head(const builder *b) {
    const weft_config *c = b->c;
    if (turns_latent(b) || c->ra_mla_score == WEFT_SCORE_W2 || c->ra_mla_ra_alpha > 0) return false;
    if (!c->ra_mla_per_head_q_latent || !c->ra_mla_per_head_v_up) return false;
    if (b->form != WEFT_FORM_BY_SHAPE) return b->form == WEFT_FORM_CHEAP;
    return b->head_dim < c->ra_mla_latent_dim;
}

/* A head's keys and values from the latent's: [B, T, H, D] from [B, T, L], by a map [H, D, L]. */
static weft_tensor *expand_heads(builder *b, weft_tensor *latent, weft_tensor *map) {
    map = weft_view(b->g, map, b->width, b->c->ra_mla_latent_dim);
    weft_tensor *y = weft_linear(b->g, latent, map, NULL, WEFT_ACT_NONE);
    return as_heads(b, y, b->heads, b->head_dim);
}

static weft_tensor *attend_by_head(builder *b, weft_tensor *q, weft_tensor *k, weft_tensor *v,
                                   weft_tensor *to_latent) {
    b->score.q = as_heads(b, q, b->heads, b->head_dim);
    b->score.k = expand_heads(b, k, to_latent);
    build_score_position(b, &b->score);
    v = expand_heads(b, v, weft_head_transpose(b->g, value_map(b)));
    weft_attended a = weft_attention(b->g, &b->score, v);
    b->lse = a.lse;
    return a.o;
}

static weft_tensor *attend_in_latent(builder *b, weft_tensor *q, weft_tensor *k, weft_tensor *v,
                                     weft_tensor *to_latent) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim;
    bool w2 = c->ra_mla_score == WEFT_SCORE_W2;
    weft_score *score = &b->score;
    q = latent_queries(b, q, to_latent);
    k = as_heads(b, k, 1, latent);
    if (turns_latent(b)) {
        int64_t turned = w2 ? latent / 2 : latent;
        q = rotate_heads(b, q, turned, b->heads);
        k = rotate_heads(b, k, turned, 1);
    }
    if (w2) {
        weft_gaussian key = weft_gaussian_key(b->g, k);
        q = weft_gaussian_query(b->g, q);
        k = key.y;
        score->n = key.n;
        build_temperature(b, score, latent / 2);
    }
    score->q = q;
    score->k = k;
    if (c->ra_mla_ra_alpha > 0) {
        score->band = true;
        score->band_alpha = c->ra_mla_ra_alpha;
        score->window = c->ra_mla_ra_window;
    }
    build_score_position(b, score);
    weft_attended a = weft_attention(b->g, score, as_heads(b, v, 1, latent));
    b->lse = a.lse;
    return latent_values_up(b, a.o, value_map(b));
}

weft_tensor *build_mla(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim;
    weft_tensor *w = matrix(b, "attn.q.weight", init_normal(0.02), b->width, b->width);
    weft_tensor *q = weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE), *to_latent = query_map(b);
    w = matrix(b, "attn.k_down.weight", init_normal(0.02), latent, b->width);
    weft_tensor *k = build_receive(b, weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE));
    weft_tensor *v = k;
    if (!c->ra_mla_joint_kv) {
        w = matrix(b, "attn.v_down.weight", init_normal(0.02), latent, b->width);
        v = weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE);
    }
    b->latent = k;
    b->score.scale_value = 1 / sqrt((double)latent);
    return goes_by_head(b) ? attend_by_head(b, q, k, v, to_latent)
                           : attend_in_latent(b, q, k, v, to_latent);
}

/* Attention in one latent space that all heads share: a key c^K and a value c^V of width L a token,
 * and per head a map A of queries into the latent and a map U of what is found out of it. The
 * cache holds 2L numbers a token and layer (L if joint), and values are never expanded a head.
 *
 * With RA_MLA_SCORE="w2" queries and keys are Gaussians in the latent: means in its first half,
 * deviations in its second. */
#include "model/builder.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/heads.h"
#include "ops/linear.h"

#include <math.h>

/* q̂ [B, T, H, L]. Shared over heads it is one vector, repeated. */
static weft_tensor *latent_queries(builder *b, weft_tensor *x) {
    int64_t latent = b->c->ra_mla_latent_dim;
    weft_tensor *w = matrix(b, "attn.q.weight", init_normal(0.02), b->width, b->width);
    weft_tensor *q = weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE);
    if (b->c->ra_mla_per_head_q_latent) {
        weft_tensor *a = matrix(b, "attn.q_latent", init_uniform(b->head_dim, latent), b->heads,
                                b->head_dim, latent);
        q = weft_view(b->g, q, b->batch, b->time, b->heads, b->head_dim);
        return weft_grouped_linear(b->g, q, a, false);
    }
    weft_tensor *a = matrix(b, "attn.q_latent", init_uniform(b->width, latent), b->width, latent);
    q = weft_matmul(b->g, weft_view(b->g, q, b->batch * b->time, b->width), a, false, false);
    return weft_head_repeat(b->g, weft_view(b->g, q, b->batch, b->time, 1, latent), b->heads);
}

/* o [B, T, H, D] from õ [B, T, H, L]. */
static weft_tensor *latent_values_up(builder *b, weft_tensor *o) {
    int64_t latent = b->c->ra_mla_latent_dim, rows = b->batch * b->time * b->heads;
    if (b->c->ra_mla_per_head_v_up) {
        weft_tensor *u = matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), b->heads, latent,
                                b->head_dim);
        return weft_grouped_linear(b->g, o, u, false);
    }
    weft_tensor *u = matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), latent, b->head_dim);
    o = weft_matmul(b->g, weft_view(b->g, o, rows, latent), u, false, false);
    return weft_view(b->g, o, b->batch, b->time, b->heads, b->head_dim);
}

weft_tensor *build_mla(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim;
    bool w2 = c->ra_mla_score == WEFT_SCORE_W2;
    weft_tensor *q = latent_queries(b, x);
    weft_tensor *w = matrix(b, "attn.k_down.weight", init_normal(0.02), latent, b->width);
    weft_tensor *k = build_receive(b, weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE));
    weft_tensor *v = k;
    if (!c->ra_mla_joint_kv) {
        w = matrix(b, "attn.v_down.weight", init_normal(0.02), latent, b->width);
        v = weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE);
    }
    b->latent = k;
    k = weft_view(b->g, k, b->batch, b->time, 1, latent);
    v = weft_view(b->g, v, b->batch, b->time, 1, latent);
    weft_score *score = &b->score;
    int64_t turned = w2 ? latent / 2 : latent;
    if (c->ra_mla_use_rope || c->position == WEFT_POSITION_ROPE) {
        q = rotate_heads(b, q, turned, b->heads);
        k = rotate_heads(b, k, turned, 1);
    }
    score->scale_value = 1 / sqrt((double)latent);
    if (w2) {
        q = weft_softplus(b->g, q, latent / 2, 0);
        k = weft_softplus(b->g, k, latent / 2, 0);
        score->n = weft_row_squares(b->g, k, 0);
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
    weft_attended a = weft_attention(b->g, score, v);
    b->lse = a.lse;
    return latent_values_up(b, a.o);
}

/* Attention in one latent space that all heads share: a key c^K and a value c^V of width L a token,
 * and per head a map A of queries into the latent and a map U of what is found out of it. The
 * cache holds 2L numbers a token and layer (L if joint).
 *
 * Two forms, both exact. In the latent: ⟨q A, c^K⟩, then (Σ p c^V) U, one key head of width L; the
 * only one where something rotates or squares what is in the latent. By head: ⟨q, A c^K⟩, Σ p (c^V U),
 * a key head of width D for each query head. A whole sequence at once meets T/2 keys per query, and
 * each costs L or D products: by head where D < L.
 *
 * With RA_MLA_SCORE="w2" queries and keys are Gaussians in the latent: means in its first half,
 * deviations in its second. */
#include "model/builder.h"
#include "model/step.h"
#include "ops/gaussian.h"
#include "ops/heads.h"
#include "ops/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static weft_tensor *query_map(builder *b) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (!b->c->ra_mla_per_head_q_latent)
        return matrix(b, "attn.q_latent", init_uniform(b->inner, latent), b->inner, latent);
    return matrix(b, "attn.q_latent", init_uniform(b->head_dim, latent), b->heads, b->head_dim,
                  latent);
}

static weft_tensor *value_map(builder *b) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (!b->c->ra_mla_per_head_v_up)
        return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), latent, b->head_dim);
    return matrix(b, "attn.v_up", init_uniform(latent, b->head_dim), b->heads, latent, b->head_dim);
}

/* q̂ [B, T, H, L] = q A. Shared over heads it is one vector, repeated. */
static weft_tensor *latent_queries(builder *b, weft_tensor *q, weft_tensor *map) {
    int64_t latent = b->c->ra_mla_latent_dim;
    if (b->c->ra_mla_per_head_q_latent)
        return weft_grouped_linear(b->g, as_heads(b, q, b->heads, b->head_dim), map, false);
    q = weft_matmul(b->g, weft_view(b->g, q, b->batch * b->time, b->inner), map, false, false);
    return weft_head_repeat(b->g, as_heads(b, q, 1, latent), b->heads);
}

/* o [B, T, H, D] from õ [B, T, H, L]. */
static weft_tensor *latent_values_up(builder *b, weft_tensor *o, weft_tensor *map) {
    int64_t latent = b->c->ra_mla_latent_dim, rows = b->batch * b->time * b->heads;
    if (b->c->ra_mla_per_head_v_up) return weft_grouped_linear(b->g, o, map, false);
    o = weft_view(b->g, o, rows, latent);
    o = b->attend->rows_alone && b->batch * b->time <= WEFT_STEP_ROWS
            ? weft_matmul_alone(b->g, o, map)
            : weft_matmul(b->g, o, map, false, false);
    return as_heads(b, o, b->heads, b->head_dim);
}

static bool rotates_latent(const weft_config *c) {
    return c->ra_mla_use_rope || weft_position_of(c)->rotate;
}

static bool goes_by_head(const builder *b) {
    const weft_config *c = b->c;
    if (rotates_latent(c) || c->ra_mla_score == WEFT_SCORE_W2 || c->ra_mla_ra_alpha > 0)
        return false;
    if (c->qk_norm) return false;
    if (!c->ra_mla_per_head_q_latent || !c->ra_mla_per_head_v_up) return false;
    if (b->form != WEFT_FORM_BY_SHAPE) return b->form == WEFT_FORM_CHEAP;
    return b->head_dim < c->ra_mla_latent_dim;
}

/* A head's keys and values from the latent's: [B, T, H, D] from [B, T, L], by a map [H, D, L]. */
static weft_tensor *expand_heads(builder *b, weft_tensor *latent, weft_tensor *map) {
    map = weft_view(b->g, map, b->inner, b->c->ra_mla_latent_dim);
    weft_tensor *y = weft_linear(b->g, latent, map, NULL, WEFT_ACT_NONE);
    return as_heads(b, y, b->heads, b->head_dim);
}

static weft_tensor *attend_by_head(builder *b, weft_tensor *q, weft_tensor *k, weft_tensor *v,
                                   weft_tensor *to_latent) {
    b->score.q = as_heads(b, q, b->heads, b->head_dim);
    builder_keys keys = {.k = expand_heads(b, k, to_latent)};
    builder_score_position(b); /* parameters have one order in both forms */
    keys.v = expand_heads(b, v, weft_head_transpose(b->g, value_map(b)));
    return builder_attend(b, &keys);
}

static weft_tensor *attend_in_latent(builder *b, weft_tensor *q, weft_tensor *k, weft_tensor *v,
                                     weft_tensor *to_latent) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim;
    weft_score *score = &b->score;
    builder_keys keys = {.gaussian = c->ra_mla_score == WEFT_SCORE_W2};
    q = latent_queries(b, q, to_latent);
    q = keys.gaussian ? norm_means(b, q, true) : norm_heads(b, q, b->heads, 0);
    keys.k = as_heads(b, k, 1, latent);
    keys.v = v == k ? keys.k : as_heads(b, v, 1, latent);
    if (rotates_latent(c)) {
        keys.rotated = rotated_width(c, keys.gaussian ? latent / 2 : latent);
        q = rotate_heads(b, q, keys.rotated, b->heads);
    }
    if (keys.gaussian) {
        b->gaussian = true;
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
    weft_tensor *found = builder_attend(b, &keys);
    return latent_values_up(b, found, value_map(b));
}

static weft_tensor *build_mla(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim;
    weft_tensor *w = matrix(b, "attn.q.weight", init_normal(0.02), b->inner, b->width);
    weft_tensor *bias = attention_bias(b, "attn.q.bias", b->inner);
    weft_tensor *q = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE), *to_latent = query_map(b);
    w = matrix(b, "attn.k_down.weight", init_normal(0.02), latent, b->width);
    bias = attention_bias(b, "attn.k_down.bias", latent);
    weft_tensor *k = build_receive(b, weft_linear(b->g, x, w, bias, WEFT_ACT_NONE));
    if (c->qk_norm) {
        k = as_heads(b, k, 1, latent);
        k = c->ra_mla_score == WEFT_SCORE_W2 ? norm_means(b, k, false) : norm_heads(b, k, 0, 1);
        k = weft_view(b->g, k, b->batch, b->time, latent);
    }
    weft_tensor *v = k;
    if (!c->ra_mla_joint_kv) {
        w = matrix(b, "attn.v_down.weight", init_normal(0.02), latent, b->width);
        bias = attention_bias(b, "attn.v_down.bias", latent);
        v = weft_linear(b->g, x, w, bias, WEFT_ACT_NONE);
        b->latent_v = v;
    }
    b->latent = k;
    b->score.scale_value = 1 / sqrt((double)latent);
    return goes_by_head(b) ? attend_by_head(b, q, k, v, to_latent)
                           : attend_in_latent(b, q, k, v, to_latent);
}

static weft_status check(const weft_config *c, const char *where) {
    long long latent = c->ra_mla_latent_dim;
    bool rotated = rotates_latent(c), w2 = c->ra_mla_score == WEFT_SCORE_W2;
    long long unit = (w2 ? 2 : 1) * (rotated ? 2 : 1);
    if (latent % unit)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_RA_MLA_LATENT_DIM=%lld must be a multiple of %lld with "
                         "CONFIG_RA_MLA_SCORE=\"%s\"%s",
                         where, latent, unit, w2 ? "w2" : "dot", rotated ? " and rotation" : "");
    if (c->nope_every && rotated)
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_NOPE_EVERY=%lld does not go with CONFIG_ATTENTION=\"mla\"; set "
            "it to 0",
            where, (long long)c->nope_every);
    if (c->ra_mla_use_rope && c->rope_dim > latent / (w2 ? 2 : 1))
        return weft_fail(
            WEFT_EINPUT,
            "%s: CONFIG_ROPE_DIM=%lld columns are rotated, but there are %lld; take 0 for "
            "all of them",
            where, (long long)c->rope_dim, latent / (w2 ? 2 : 1));
    if (w2) WEFT_TRY(check_distance_uncapped(c, where));
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

static int list_cache(const weft_config *c, weft_cache_part *parts) {
    parts[0] = parts[1] = (weft_cache_part){.heads = 1, .width = c->ra_mla_latent_dim};
    return c->ra_mla_joint_kv ? 1 : 2;
}

static int64_t rotated_columns(const weft_config *c) {
    return c->ra_mla_latent_dim;
}

static bool step_form(const weft_config *c, weft_step_form *form) {
    form->kv_heads = 1;
    form->dqk = form->dv = c->ra_mla_latent_dim;
    form->joint = c->ra_mla_joint_kv;
    return !rotates_latent(c) && c->ra_mla_score == WEFT_SCORE_DOT && c->ra_mla_ra_alpha <= 0;
}

/* y += a x, n numbers. */
static void add_scaled(float *y, float a, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* Queries straight into the latent: row (h, l) is Σ_d A_h[d, l] of row (h, d) of W_q. Where the heads
 * share the map it has all rows of W_q, and they have the same queries. */
static void join_queries(const weft_step_form *f, bool own, int64_t head, const float *w,
                         const float *map, float *out) {
    memset(out, 0, (size_t)(f->heads * f->dqk * f->width) * sizeof *out);
    for (int64_t h = 0; h < f->heads; h++)
        for (int64_t d = 0; d < (own ? head : f->heads * head); d++) {
            int64_t row = own ? h * head + d : d;
            for (int64_t l = 0; l < f->dqk; l++)
                add_scaled(out + (h * f->dqk + l) * f->width, map[row * f->dqk + l],
                           w + row * f->width, f->width);
        }
}

/* The output projection straight from the latent: column (h, l) is Σ_d of column (h, d) U_h[l, d]. */
static void join_values(const weft_step_form *f, bool own, int64_t head, const float *w,
                        const float *map, float *out) {
    for (int64_t e = 0; e < f->width; e++)
        for (int64_t h = 0; h < f->heads; h++)
            for (int64_t l = 0; l < f->dv; l++) {
                const float *from = w + e * f->heads * head + h * head;
                const float *up = map + ((own ? h * f->dv : 0) + l) * head;
                float sum = 0;
                for (int64_t d = 0; d < head; d++)
                    sum += from[d] * up[d];
                out[(e * f->heads + h) * f->dv + l] = sum;
            }
}

/* The same of a bias b [H D]. */
static void join_bias(const weft_step_form *f, bool own, int64_t head, const float *b,
                      const float *map, float *out) {
    for (int64_t h = 0; h < f->heads; h++)
        for (int64_t d = 0; d < (own ? head : f->heads * head); d++) {
            int64_t row = own ? h * head + d : d;
            add_scaled(out + h * f->dqk, b[row], map + row * f->dqk, f->dqk);
        }
}

static weft_status join_maps(const weft_step_source *s, float *w, float *map, float *heads,
                             float *bias, float *out) {
    const weft_config *c = &s->model->config;
    const weft_step_form *f = s->form;
    int64_t head = weft_config_head_dim(c), latent = f->dqk * f->width;
    float *down = heads + f->heads * latent;
    WEFT_TRY(weft_step_read(s, "attn.q.weight", w));
    WEFT_TRY(weft_step_read(s, "attn.q_latent", map));
    join_queries(f, c->ra_mla_per_head_q_latent, head, w, map, heads);
    if (weft_step_count(s, "attn.q.bias")) {
        WEFT_TRY(weft_step_read(s, "attn.q.bias", w));
        join_bias(f, c->ra_mla_per_head_q_latent, head, w, map, bias);
    }
    WEFT_TRY(weft_step_read_optional(s, "attn.k_down.bias", bias + f->heads * f->dqk));
    if (!f->joint)
        WEFT_TRY(weft_step_read_optional(s, "attn.v_down.bias", bias + (f->heads + 1) * f->dqk));
    WEFT_TRY(weft_step_read(s, "attn.k_down.weight", down));
    if (!f->joint) WEFT_TRY(weft_step_read(s, "attn.v_down.weight", down + latent));
    WEFT_TRY(weft_step_read(s, "attn.out.weight", w));
    WEFT_TRY(weft_step_read(s, "attn.v_up", map));
    join_values(f, c->ra_mla_per_head_v_up, head, w, map, out);
    return WEFT_OK;
}

static weft_status step_layer(const weft_step_source *s, const weft_step_maps *to) {
    const weft_step_form *f = s->form;
    for (int64_t h = 0; h < f->heads; h++)
        to->scale[h] = (float)(1 / sqrt((double)f->dqk));
    int64_t inner = f->heads * weft_config_head_dim(&s->model->config);
    float *w = malloc((size_t)(f->width * inner) * sizeof *w);
    float *map = malloc((size_t)(inner * f->dqk) * sizeof *map);
    weft_status status = w && map ? join_maps(s, w, map, to->heads, to->bias, to->out)
                                  : weft_fail(WEFT_ENOMEM, "generate: no memory");
    free(w);
    free(map);
    return status;
}

const weft_attention_kind weft_attention_mla = {
    .build = build_mla,
    .check = check,
    .cache = list_cache,
    .rotated = rotated_columns,
    .step = step_form,
    .step_layer = step_layer,
    .latent = true,
};

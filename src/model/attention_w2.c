/* Tokens as Gaussians. Each head's query and key is a mean and a deviation per dimension; the score
 * is minus the squared Wasserstein-2 distance over a temperature.
 *
 * The distance needs no kernel of its own: with q̂ = [μ_q, σ_q] and k̂ = [μ_k, σ_k] it is
 * ‖q̂‖² + ‖k̂‖² − 2⟨q̂, k̂⟩, the query's own norm is the same for every key and leaves the softmax
 * unchanged, and so the score is a product of width 2D and a number per key.
 *
 * With W2_SIGMA_DIM only the first S dimensions have a deviation of their own: those of the others are the
 * same in every token, their differences 0, and q̂ and k̂ are D + S wide.
 *
 * `overlap` scores by the logarithm of two Gaussians' overlap: means divided by the root of the
 * deviation, and the deviation's logarithm in the key's number. */
#include "model/builder.h"
#include "model/units.h"

static const double TAU_EPS = 1e-6;

void build_temperature(builder *b, weft_score *score, int64_t width) {
    double tau = b->c->w2_tau > 0 ? b->c->w2_tau : 2 * sqrt((double)width);
    if (b->c->w2_tau_learned) {
        score->log_tau = builder_vector(b, "attn.log_tau", init_constant(log(tau)), b->heads);
        return;
    }
    score->scale_value = 2 / (tau + TAU_EPS);
    score->beta = weft_fill(b->g, b->stat, 1, &b->heads, -1 / (tau + TAU_EPS));
}

/* A Gaussian as the vector of its means and deviations, from [B, T, H, D + S]. */
static weft_tensor *make_query(builder *b, weft_tensor *x) {
    if (weft_config_w2_width(b->c) == 2 * b->head_dim) return weft_gaussian_query(b->g, x);
    return weft_softplus(b->g, x, b->head_dim, 0);
}

static weft_gaussian make_key(builder *b, weft_tensor *x) {
    if (weft_config_w2_width(b->c) == 2 * b->head_dim) return weft_gaussian_key(b->g, x);
    weft_tensor *y = make_query(b, x);
    return (weft_gaussian){y, weft_row_squares(b->g, y, 0)};
}

static weft_tensor *build_w2(builder *b, weft_tensor *x) {
    int64_t kv = weft_config_kv_heads(b->c), d = b->head_dim, width = weft_config_w2_width(b->c);
    /* Means first, then raw deviations. */
    weft_tensor *q = map_to_heads(b, x, "q", b->heads, width);
    q = norm_means(b, q, d, true);
    weft_tensor *k = NULL;
    weft_score *score = &b->score;
    builder_keys keys = {0};
    if (!b->shares) {
        k = norm_means(b, map_to_heads(b, x, "k", kv, width), d, false);
        keys.v = map_to_heads(b, x, "v", kv, d);
    }
    b->distance = true;
    if (b->c->w2_kernel == WEFT_KERNEL_W2) {
        if (k) {
            weft_gaussian key = make_key(b, apply_rope(b, k, d, kv));
            keys.k = key.y;
            score->n = key.n;
        }
        b->means = d;
        score->q = make_query(b, apply_rope(b, q, d, b->heads));
        build_temperature(b, score, d);
    } else {
        weft_overlap oq = weft_overlap_scale(b->g, q);
        b->rho_q = q;
        score->q = apply_rope(b, oq.y, d, b->heads);
        if (k) {
            weft_overlap ok = weft_overlap_scale(b->g, k);
            b->rho_k = k;
            keys.k = apply_rope(b, ok.y, d, kv);
            keys.n_extra = ok.log_sigma;
            score->n = weft_add(b->g, weft_row_squares(b->g, keys.k, 0), ok.log_sigma);
        }
        score->scale_value = 1;
        score->beta = weft_fill(b->g, b->stat, 1, &b->heads, -0.5);
    }
    return builder_attend(b, &keys);
}

weft_status check_distance_uncapped(const weft_config *c, const char *where) {
    const weft_mix mixes[] = {
        {c->softcap_attention > 0,
         "{SOFTCAP_ATTENTION} goes with scores that are products: of a distance the query's own "
         "norm is left out, which a soft-cap would need; set it to 0"}};
    return WEFT_REFUSE(c, where, mixes);
}

static weft_status check(const weft_config *c, const char *where) {
    int64_t sigma = c->w2_sigma_dim, head = weft_config_head_dim(c);
    const weft_mix mixes[] = {
        {sigma > head, "{W2_SIGMA_DIM} is more than the {head_dim} dimensions of a head; take "
                       "fewer, or 0 for all of them"},
        {sigma && sigma < head && c->w2_kernel != WEFT_KERNEL_W2,
         "{W2_KERNEL} divides each mean by its own deviation; with {W2_SIGMA_DIM} take \"w2\", or "
         "set that to 0"},
    };
    WEFT_TRY(WEFT_REFUSE(c, where, mixes));
    return check_distance_uncapped(c, where);
}

/* k̂, its number, and v. */
static int list_cache(const weft_config *c, weft_cache_part *parts) {
    int64_t width = weft_config_head_dim(c), heads = weft_config_kv_heads(c);
    int64_t keys = c->w2_kernel == WEFT_KERNEL_W2 ? weft_config_w2_width(c) : width;
    parts[0] = (weft_cache_part){.heads = heads, .width = keys, .number = true};
    parts[1] = (weft_cache_part){.heads = heads, .width = width};
    return 2;
}

static void list_heads(const weft_config *c, weft_unit_list *l) {
    int64_t d = weft_config_head_dim(c), group = c->n_head / weft_config_kv_heads(c);
    int64_t width = weft_config_w2_width(c);
    weft_unit_add(l, "attn.q.weight", 0, 0, group * width);
    weft_unit_add(l, "attn.q.bias", 0, 0, group * width);
    weft_unit_add(l, "attn.k.weight", 0, 0, width);
    weft_unit_add(l, "attn.k.bias", 0, 0, width);
    weft_unit_add_zeroed(l, "attn.v.weight", 0, 0, d);
    weft_unit_add_zeroed(l, "attn.v.bias", 0, 0, d);
    weft_unit_add(l, "attn.log_tau", 0, 0, group)->counts = false;
    weft_unit_add_zeroed(l, "attn.out.weight", 1, 0, group * d);
}

const weft_attention_kind weft_attention_w2 = {
    .build = build_w2,
    .check = check,
    .cache = list_cache,
    .heads = list_heads,
    .shares_heads = true,
    .shares_layers = true,
};

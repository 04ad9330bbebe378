/* From dot to W2. With means a q and k/a, equal deviations and τ = 2√D,
 *
 *     −‖a q − k/a‖²/τ = ⟨q, k⟩/√D − ‖k‖²/(2√D a²) − (a number of the query alone, which drops out)
 *
 * so the scores are dot's but for one number per key, and that falls with the square of a. Where both
 * deviations are the same constant, their distance has no gradient: a little noise in their maps gives
 * it one. Shared key and value heads become one for each query head. */
#include "base/random.h"
#include "convert/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double NOISE = 0.002; /* standard deviation, a tenth of a fresh model's */

typedef struct {
    weft_model *to;
    int64_t e, heads, kv, width; /* E, H, KV, D */
    uint64_t seed;
} w2_conversion;

/* Each head's D rows of means from `rows` (of `kv` heads), times a factor, then D rows of noise. */
static weft_status write_gaussian(const w2_conversion *v, int64_t layer, const char *name,
                                  const double *rows, const double *bias, int64_t kv,
                                  double factor) {
    int64_t e = v->e, d = v->width, count = 2 * e * e;
    char weight[32], bias_name[32], site[64];
    double *map = malloc((size_t)(count + 2 * e) * sizeof *map);
    if (!map) return weft_fail(WEFT_ENOMEM, "convert: no memory for a layer's maps");
    double *shift = map + count;
    snprintf(weight, sizeof weight, "attn.%s.weight", name);
    snprintf(bias_name, sizeof bias_name, "attn.%s.bias", name);
    snprintf(site, sizeof site, "h.%lld.%s", (long long)layer, weight);
    weft_random_normal_at(v->seed, 0, weft_random_site(site), 0, count, map);
    memset(shift, 0, (size_t)(2 * e) * sizeof *shift);
    for (int64_t i = 0; i < count; i++)
        map[i] *= NOISE;
    for (int64_t h = 0; h < v->heads; h++)
        for (int64_t r = 0; r < d; r++) {
            int64_t from = h * kv / v->heads * d + r, to = h * 2 * d + r;
            for (int64_t j = 0; j < e; j++)
                map[to * e + j] = factor * rows[from * e + j];
            shift[to] = factor * bias[from];
        }
    weft_layer_write(v->to, layer, weight, map);
    weft_layer_write(v->to, layer, bias_name, shift);
    free(map);
    return WEFT_OK;
}

static weft_status write_values(const w2_conversion *v, int64_t layer, const weft_dot_layer *dot) {
    int64_t e = v->e, d = v->width;
    double *map = malloc((size_t)(e * e + e) * sizeof *map);
    if (!map) return weft_fail(WEFT_ENOMEM, "convert: no memory for a layer's maps");
    double *shift = map + e * e;
    for (int64_t i = 0; i < e; i++) {
        int64_t from = i / d * v->kv / v->heads * d + i % d;
        memcpy(map + i * e, dot->v + from * e, (size_t)e * sizeof *map);
        shift[i] = dot->bv[from];
    }
    weft_layer_write(v->to, layer, "attn.v.weight", map);
    weft_layer_write(v->to, layer, "attn.v.bias", shift);
    free(map);
    return WEFT_OK;
}

static weft_status convert_layer(const w2_conversion *v, const weft_model *m, int64_t layer,
                                 double spread) {
    weft_dot_layer dot;
    double log_tau[1024];
    WEFT_TRY(weft_dot_read(m, layer, &dot));
    weft_status status = write_gaussian(v, layer, "q", dot.q, dot.bq, v->heads, spread);
    if (status == WEFT_OK) status = write_gaussian(v, layer, "k", dot.k, dot.bk, v->kv, 1 / spread);
    if (status == WEFT_OK) status = write_values(v, layer, &dot);
    for (int64_t h = 0; h < v->heads; h++)
        log_tau[h] = log(2 * sqrt((double)v->width));
    weft_layer_write(v->to, layer, "attn.log_tau", log_tau);
    free(dot.all);
    return status;
}

weft_status weft_convert_to_w2(const weft_model *m, double spread, uint64_t seed,
                               weft_model **out) {
    *out = NULL;
    WEFT_TRY(weft_dot_check(m, "--to-w2"));
    weft_config c = m->config;
    bool biased = weft_model_find(m, "h.0.attn.qkv.bias"),
         all = weft_model_find(m, "h.0.attn.out.bias");
    c.attention = WEFT_ATTENTION_W2;
    c.attention_bias = all      ? WEFT_ATTENTION_BIAS_ALL
                       : biased ? WEFT_ATTENTION_BIAS_QKV
                                : WEFT_ATTENTION_BIAS_NONE;
    c.kv_heads = 0;
    c.w2_kernel = WEFT_KERNEL_W2;
    c.w2_tau = 0;
    c.w2_tau_learned = true;
    WEFT_TRY(weft_model_with(m, &c, out));
    w2_conversion v = {.to = *out,
                       .e = c.n_embd,
                       .heads = c.n_head,
                       .kv = weft_config_kv_heads(&m->config),
                       .width = weft_config_head_dim(&c),
                       .seed = seed};
    weft_status status = WEFT_OK;
    for (int64_t l = 0; status == WEFT_OK && l < c.n_layer; l++)
        status = convert_layer(&v, m, l, spread);
    weft_mirror_wrote((*out)->mirror, NULL);
    if (status != WEFT_OK) {
        weft_model_destroy(*out);
        *out = NULL;
    }
    return status;
}

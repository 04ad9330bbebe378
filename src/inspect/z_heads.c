/* WsFFN's z-heads: whether they tell sequences and heads apart, as their contrastive loss wants, and
 * whether the dense W_z stays with the blocks that it starts from. */
#include "base/scope.h"
#include "inspect/look.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const weft_weight *layer_weight(const weft_model *m, int64_t layer, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "h.%lld.%s", (long long)layer, name);
    return weft_model_find(m, full);
}

weft_status weft_look_weight(const weft_weight *w, double **out) {
    *out = malloc((size_t)w->count * sizeof **out);
    if (!*out) return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    weft_weight_read(w, *out);
    return WEFT_OK;
}

/* y [out] = W x, W [out, in]. */
static void multiply(const double *w, const double *x, int64_t out, int64_t in, double *y) {
    for (int64_t i = 0; i < out; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < in; j++)
            y[i] += w[i * in + j] * x[j];
    }
}

/* mean_t x [E] of what the feed-forward reads. */
static weft_status mean_input(const weft_session *s, int64_t layer, double **out) {
    const weft_tensor *x = s->graph.inside[layer].normed;
    int64_t time = x->shape[1], width = x->shape[2];
    WEFT_TRY(weft_look_values(s, x, out));
    for (int64_t e = 0; e < width; e++) {
        double sum = 0;
        for (int64_t t = 0; t < time; t++)
            sum += (*out)[t * width + e];
        (*out)[e] = sum / (double)time;
    }
    return WEFT_OK;
}

weft_status weft_look_z(const weft_session *s, int64_t layer, int64_t window, int64_t windows,
                        weft_layer_sums *sums) {
    const weft_weight *w_z = layer_weight(s->model, layer, "ffn.z_proj.weight");
    const weft_weight *w_1 = layer_weight(s->model, layer, "ffn.w1.weight");
    if (!w_z || !w_1) return WEFT_OK;
    int64_t ffn = w_1->shape[0], width = w_1->shape[1];
    WEFT_AUTO_FREE double *x = NULL, *first = NULL, *second = NULL,
                          *h = calloc((size_t)ffn, sizeof *h);
    if (!sums->contexts) sums->contexts = calloc((size_t)(windows * ffn), sizeof(double));
    if (!h || !sums->contexts) return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    WEFT_TRY(mean_input(s, layer, &x));
    WEFT_TRY(weft_look_weight(w_1, &first));
    WEFT_TRY(weft_look_weight(w_z, &second));
    multiply(first, x, ffn, width, h);
    /* z [F] = W_z h; W_z is [F, F], or its blocks [heads, z, z]. */
    int64_t heads = w_z->ndim == 3 ? w_z->shape[0] : 1, size = ffn / heads;
    for (int64_t i = 0; i < heads; i++)
        multiply(second + i * size * size, h + i * size, size, size,
                 sums->contexts + window * ffn + i * size);
    return WEFT_OK;
}

static double cosine(const double *a, const double *b, int64_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return ab / fmax(sqrt(aa) * sqrt(bb), 1e-16);
}

/* The mean over pairs; contexts [windows, heads, z]. */
static void compare_contexts(const double *contexts, int64_t windows, int64_t heads, int64_t size,
                             weft_layer_look *out) {
    double between = 0, across = 0;
    int64_t n_between = 0, n_across = 0;
    int64_t row = heads * size;
    for (int64_t w = 0; w < windows; w++)
        for (int64_t i = 0; i < heads; i++) {
            const double *own = contexts + w * row + i * size;
            for (int64_t j = i + 1; j < heads; j++, n_between++)
                between += fabs(cosine(own, contexts + w * row + j * size, size));
            for (int64_t v = w + 1; v < windows; v++, n_across++)
                across += cosine(own, contexts + v * row + i * size, size);
        }
    out->z_between = n_between > 0 ? between / (double)n_between : NAN;
    out->z_across = n_across > 0 ? across / (double)n_across : NAN;
}

static weft_status share_off_blocks(const weft_weight *w, int64_t heads, double *out) {
    WEFT_AUTO_FREE double *values = NULL;
    double off = 0, all = 0;
    *out = 0;
    if (w->ndim != 2) return WEFT_OK;
    WEFT_TRY(weft_look_weight(w, &values));
    int64_t ffn = w->shape[0], size = ffn / heads;
    for (int64_t i = 0; i < ffn; i++)
        for (int64_t j = 0; j < ffn; j++) {
            double square = values[i * ffn + j] * values[i * ffn + j];
            all += square;
            if (i / size != j / size) off += square;
        }
    *out = all > 0 ? off / all : 0;
    return WEFT_OK;
}

weft_status weft_finish_z(const weft_model *m, int64_t layer, int64_t windows, weft_layer_look *out,
                          const weft_layer_sums *sums) {
    const weft_weight *w_z = layer_weight(m, layer, "ffn.z_proj.weight");
    out->z_off = out->z_between = out->z_across = NAN;
    if (!w_z || !sums->contexts) return WEFT_OK;
    int64_t heads = m->config.wsffn_n_head, ffn = weft_config_ffn_dim(&m->config);
    compare_contexts(sums->contexts, windows, heads, ffn / heads, out);
    return share_off_blocks(w_z, heads, &out->z_off);
}

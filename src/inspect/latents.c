/* Gates, and the directions that tokens take in MLA's latents.
 *
 * The mean of the latents is left out: in keys it adds the same to all scores of a query, and in values
 * the same to all outputs. What tokens tell each other is in the differences. */
#include "base/scope.h"
#include "convert/spectrum.h"
#include "inspect/look.h"

#include <math.h>
#include <stdlib.h>

weft_status weft_look_gates(const weft_session *s, int64_t layer, weft_layer_look *out,
                            weft_layer_sums *sums) {
    const weft_tensor *gate = s->graph.inside[layer].gate;
    WEFT_AUTO_FREE double *values = NULL;
    WEFT_TRY(weft_look_values(s, gate, &values));
    if (!values) return WEFT_OK;
    int64_t heads = gate->shape[2], rows = weft_tensor_count(gate) / heads;
    for (int64_t i = 0; i < rows * heads; i++) {
        double g = 1 / (1 + exp(-values[i]));
        int bin = (int)(g * WEFT_GATE_BINS);
        weft_head_sums *own = &sums->heads[i % heads];
        own->gate[0] += g;
        own->gate[1] += g * g;
        own->gates++;
        out->heads[i % heads].gates[bin < WEFT_GATE_BINS ? bin : WEFT_GATE_BINS - 1]++;
    }
    return WEFT_OK;
}

void weft_finish_gates(weft_layer_look *out, const weft_layer_sums *sums, int64_t heads) {
    for (int64_t h = 0; h < heads; h++) {
        const weft_head_sums *s = &sums->heads[h];
        double mean = s->gates > 0 ? s->gate[0] / s->gates : NAN;
        out->heads[h].gate = mean;
        out->heads[h].gate_spread = sqrt(fmax(s->gate[1] / s->gates - mean * mean, 0));
        if (!(s->gates > 0)) out->heads[h].gate_spread = NAN;
    }
}

/* Adds rows [n, L] to a sum and to the sum of products. */
static void add_rows(const double *rows, int64_t n, int64_t width, double *sum, double *gram) {
    for (int64_t i = 0; i < n; i++) {
        const double *x = rows + i * width;
        for (int64_t a = 0; a < width; a++) {
            sum[a] += x[a];
            for (int64_t b = 0; b <= a; b++)
                gram[a * width + b] += x[a] * x[b];
        }
    }
}

static weft_status look_latent(const weft_session *s, const weft_tensor *latent, int which,
                               weft_spectrum_look *out, weft_layer_sums *sums) {
    WEFT_AUTO_FREE double *rows = NULL;
    WEFT_TRY(weft_look_values(s, latent, &rows));
    if (!rows) return WEFT_OK;
    int64_t width = latent->shape[2], n = weft_tensor_count(latent) / width;
    if (!out->width) {
        out->width = width;
        sums->latent_sum[which] = calloc((size_t)width, sizeof(double));
        sums->latent_gram[which] = calloc((size_t)(width * width), sizeof(double));
    }
    if (!sums->latent_sum[which] || !sums->latent_gram[which])
        return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    add_rows(rows, n, width, sums->latent_sum[which], sums->latent_gram[which]);
    if (which == 0) sums->latent_rows += (double)n;
    return WEFT_OK;
}

weft_status weft_look_latents(const weft_session *s, int64_t layer, weft_layer_look *out,
                              weft_layer_sums *sums) {
    const weft_layer_inside *in = &s->graph.inside[layer];
    WEFT_TRY(look_latent(s, in->latent, 0, &out->keys, sums));
    return look_latent(s, in->latent_v, 1, &out->values, sums);
}

/* How many of the falling values hold a share of the squares' sum. */
static int64_t holding(const double *values, int64_t n, double share) {
    double all = 0, held = 0;
    for (int64_t i = 0; i < n; i++)
        all += values[i] * values[i];
    for (int64_t i = 0; i < n; i++) {
        held += values[i] * values[i];
        if (held >= share * all) return i + 1;
    }
    return n;
}

static double effective_rank(const double *values, int64_t n) {
    double sum = 0, entropy = 0;
    for (int64_t i = 0; i < n; i++)
        sum += values[i];
    for (int64_t i = 0; i < n && sum > 0; i++)
        if (values[i] > 0) entropy -= values[i] / sum * log(values[i] / sum);
    return sum > 0 ? exp(entropy) : 0;
}

static weft_status finish_latent(weft_spectrum_look *out, double *sum, double *gram, double rows) {
    int64_t width = out->width;
    if (!width) return WEFT_OK;
    WEFT_AUTO_FREE double *vectors = malloc((size_t)(width * width) * sizeof *vectors);
    out->values = malloc((size_t)width * sizeof *out->values);
    if (!vectors || !out->values) return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    /* The covariance in the place of the sum of products, of which there is one half. */
    for (int64_t a = 0; a < width; a++)
        for (int64_t b = 0; b <= a; b++)
            gram[a * width + b] = gram[b * width + a] =
                gram[a * width + b] / rows - sum[a] / rows * (sum[b] / rows);
    WEFT_TRY(weft_spectrum(gram, width, out->values, vectors));
    for (int64_t i = 0; i < width; i++)
        out->values[i] = sqrt(fmax(out->values[i], 0));
    out->rank = effective_rank(out->values, width);
    out->dirs_90 = holding(out->values, width, 0.9);
    out->dirs_99 = holding(out->values, width, 0.99);
    return WEFT_OK;
}

weft_status weft_finish_latents(weft_layer_look *out, weft_layer_sums *sums) {
    WEFT_TRY(
        finish_latent(&out->keys, sums->latent_sum[0], sums->latent_gram[0], sums->latent_rows));
    return finish_latent(&out->values, sums->latent_sum[1], sums->latent_gram[1],
                         sums->latent_rows);
}

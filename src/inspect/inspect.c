/* Runs the text through the model a window at a time and looks at what each layer made; at attention in weights.c. */
#include "inspect/inspect.h"

#include "data/dataset.h"
#include "model/units.h"

#include <math.h>

enum { CONTEXT = 256, WINDOWS = 4, WINDOWS_MOST = 4 }; /* of held-out sequences, and of gradients */

/* Gates, and the directions that tokens take in MLA's latents.
 *
 * The mean of the latents is left out: in keys it adds the same to all scores of a query, and in values
 * the same to all outputs. What tokens tell each other is in the differences. */
static weft_status look_gates(const weft_session *s, int64_t layer, weft_layer_look *look) {
    const weft_tensor *gate = s->graph.inside[layer].gate;
    WEFT_AUTO_FREE double *values = NULL;
    WEFT_TRY(weft_session_take(s, gate, &values));
    if (!values) return WEFT_OK;
    int64_t heads = gate->shape[2], rows = weft_tensor_count(gate) / heads;
    for (int64_t i = 0; i < rows * heads; i++) {
        double g = 1 / (1 + exp(-values[i]));
        int bin = (int)fmin(g * WEFT_GATE_BINS, WEFT_GATE_BINS - 1); /* a NaN's is none */
        weft_head_look *own = &look->heads[i % heads];
        own->number[WEFT_HEAD_GATE] += g;
        own->number[WEFT_HEAD_GATE_SPREAD] += g * g;
        own->gates[bin] += !isnan(g);
    }
    return WEFT_OK;
}

static weft_status look_latent(const weft_session *s, const weft_tensor *latent,
                               weft_spectrum_look *look) {
    WEFT_AUTO_FREE double *rows = NULL;
    WEFT_TRY(weft_session_take(s, latent, &rows));
    if (!rows) return WEFT_OK;
    int64_t width = latent->shape[2], n = weft_tensor_count(latent) / width;
    look->width = width;
    if (!look->sums) WEFT_ROOM_AT(look->sums, width * (width + 1), "inspect: no memory");
    double *sum = look->sums, *gram = sum + width;
    /* Adds rows [n, L] to a sum and to the sum of products. */
    for (int64_t i = 0; i < n; i++) {
        const double *x = rows + i * width;
        for (int64_t a = 0; a < width; a++) {
            sum[a] += x[a];
            for (int64_t b = 0; b <= a; b++)
                gram[a * width + b] += x[a] * x[b];
        }
    }
    look->rows += (double)n;
    return WEFT_OK;
}

static double squares(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

/* How many of the falling values hold a share of the squares' sum. */
static int64_t holding(const double *values, int64_t n, double share) {
    double all = squares(values, n), held = 0;
    for (int64_t i = 0; i < n; i++) {
        held += values[i] * values[i];
        if (held >= share * all) return i + 1;
    }
    return n;
}

static weft_status finish_latent(weft_layer_look *look, int which) {
    weft_spectrum_look *out = &look->latents[which];
    double *numbers = &look->number[WEFT_LAYER_LATENTS + 3 * which];
    int64_t width = out->width;
    numbers[0] = numbers[1] = numbers[2] = NAN;
    if (!width) return WEFT_OK;
    double *sum = out->sums, *gram = sum + width, rows = out->rows;
    WEFT_ROOM(double, vectors, width *width, "inspect: no memory");
    WEFT_ROOM_AT(out->values, width, "inspect: no memory");
    /* The covariance in the place of the sum of products, of which there is one half. */
    for (int64_t a = 0; a < width; a++)
        for (int64_t b = 0; b <= a; b++)
            gram[a * width + b] = gram[b * width + a] =
                gram[a * width + b] / rows - sum[a] / rows * (sum[b] / rows);
    WEFT_TRY(weft_spectrum(gram, width, out->values, vectors));
    for (int64_t i = 0; i < width; i++)
        out->values[i] = sqrt(fmax(out->values[i], 0));
    double total = 0, entropy = 0;
    for (int64_t i = 0; i < width; i++)
        total += out->values[i];
    for (int64_t i = 0; i < width && total > 0; i++)
        if (out->values[i] > 0) entropy -= out->values[i] / total * log(out->values[i] / total);
    out->rank = total > 0 ? exp(entropy) : 0;
    out->dirs_90 = holding(out->values, width, 0.9);
    out->dirs_99 = holding(out->values, width, 0.99);
    numbers[0] = (double)width, numbers[1] = out->rank, numbers[2] = (double)out->dirs_99;
    return WEFT_OK;
}

static weft_status look_weight(const weft_weight *w, double **out) {
    WEFT_ROOM_AT(*out, w->count, "inspect: no memory");
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

/* WsFFN's z-heads: whether they tell sequences and heads apart, as their contrastive loss wants, and
 * whether the dense W_z stays with the blocks that it starts from. */
static weft_status look_z(const weft_session *s, int64_t layer, int64_t window, int64_t windows,
                          weft_layer_look *look) {
    const weft_weight *w_z = weft_layer_weight(s->model, layer, "ffn.z_proj.weight");
    const weft_weight *w_1 = weft_layer_weight(s->model, layer, "ffn.w1.weight");
    if (!w_z || !w_1) return WEFT_OK;
    int64_t ffn = w_1->shape[0], width = w_1->shape[1];
    WEFT_AUTO_FREE double *x = NULL, *first = NULL, *second = NULL;
    WEFT_ROOM(double, h, ffn, "inspect: no memory");
    if (!look->contexts) WEFT_ROOM_AT(look->contexts, windows * ffn, "inspect: no memory");
    /* mean_t x [E] of what the feed-forward reads. */
    const weft_tensor *in = s->graph.inside[layer].normed;
    int64_t time = in->shape[1];
    WEFT_TRY(weft_session_take(s, in, &x));
    for (int64_t e = 0; e < width; e++) {
        double sum = 0;
        for (int64_t t = 0; t < time; t++)
            sum += x[t * width + e];
        x[e] = sum / (double)time;
    }
    WEFT_TRY(look_weight(w_1, &first));
    WEFT_TRY(look_weight(w_z, &second));
    multiply(first, x, ffn, width, h);
    /* z [F] = W_z h; W_z is [F, F], or its blocks [heads, z, z]. */
    int64_t heads = w_z->ndim == 3 ? w_z->shape[0] : 1, size = ffn / heads;
    for (int64_t i = 0; i < heads; i++)
        multiply(second + i * size * size, h + i * size, size, size,
                 look->contexts + window * ffn + i * size);
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

static weft_status finish_z(const weft_model *m, int64_t layer, int64_t windows,
                            weft_layer_look *look) {
    const weft_weight *w_z = weft_layer_weight(m, layer, "ffn.z_proj.weight");
    for (int n = WEFT_LAYER_Z_OFF; n < WEFT_LAYER_NUMBERS; n++)
        look->number[n] = NAN;
    if (!w_z || !look->contexts) return WEFT_OK;
    int64_t heads = m->config.wsffn_n_head, ffn = weft_config_ffn_dim(&m->config);
    int64_t size = ffn / heads, n_between = 0, n_across = 0;
    /* The mean over pairs; contexts [windows, heads, z]. */
    double between = 0, across = 0;
    for (int64_t w = 0; w < windows; w++)
        for (int64_t i = 0; i < heads; i++) {
            const double *own = look->contexts + w * ffn + i * size;
            for (int64_t j = i + 1; j < heads; j++, n_between++)
                between += fabs(cosine(own, look->contexts + w * ffn + j * size, size));
            for (int64_t v = w + 1; v < windows; v++, n_across++)
                across += cosine(own, look->contexts + v * ffn + i * size, size);
        }
    look->number[WEFT_LAYER_Z_BETWEEN] = n_between > 0 ? between / (double)n_between : NAN;
    look->number[WEFT_LAYER_Z_ACROSS] = n_across > 0 ? across / (double)n_across : NAN;
    /* The share of W_z off its blocks. */
    WEFT_AUTO_FREE double *values = NULL;
    double off = 0, all = 0;
    look->number[WEFT_LAYER_Z_OFF] = 0;
    if (w_z->ndim != 2) return WEFT_OK;
    WEFT_TRY(look_weight(w_z, &values));
    for (int64_t i = 0; i < ffn; i++)
        for (int64_t j = 0; j < ffn; j++) {
            double square = values[i * ffn + j] * values[i * ffn + j];
            all += square;
            if (i / size != j / size) off += square;
        }
    look->number[WEFT_LAYER_Z_OFF] = all > 0 ? off / all : 0;
    return WEFT_OK;
}

/* Of the mechanism that a tensor belongs to: its part of the plan, with the three of reciprocal.c apart. */
static weft_part_look *part_of(weft_inspection *out, const weft_weight *w) {
    const char *name = strcmp(w->part, "reciprocal") != 0 ? w->part
                       : strstr(w->name, ".gate_")        ? "gate"
                       : strstr(w->name, "ffn.cross_")    ? "cross-token"
                                                          : "latent coupling";
    for (int i = 0; i < out->n_parts; i++)
        if (strcmp(out->parts[i].name, name) == 0) return &out->parts[i];
    if (out->n_parts == WEFT_LOOK_PARTS) return NULL;
    out->parts[out->n_parts].name = name;
    return &out->parts[out->n_parts++];
}

/* How large the gradient is in each mechanism's tensors, of one training pass without dropout. */
static weft_status look_gradients(const weft_model *m, weft_backing place, const weft_windows *text,
                                  weft_inspection *out) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_model quiet = *m; /* the same weights, without dropout */
    int64_t windows = text->windows < WINDOWS_MOST ? text->windows : WINDOWS_MOST;
    quiet.config.dropout = 0;
    weft_build build = {.batch = windows, .time = text->time, .dtype = m->dtype, .train = true};
    WEFT_TRY(weft_session_open(&quiet, place.backend, place.pool, &build, true, false, &s));
    size_t row = (size_t)text->time * sizeof(int32_t);
    WEFT_AUTO_FREE int32_t *tokens = malloc(2 * (size_t)windows * row);
    if (!tokens) return weft_no_memory("inspect");
    int32_t *targets = tokens + windows * text->time;
    for (int64_t w = 0; w < windows; w++) {
        const int32_t *from = text->tokens + w * (text->time + 1);
        memcpy(tokens + w * text->time, from, row);
        memcpy(targets + w * text->time, from + 1, row);
    }
    WEFT_TRY(weft_session_run(&s, tokens, targets, NULL));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    for (int64_t i = 0; i < s.graph.n_parameters; i++) {
        const weft_tensor *p = s.graph.parameters[i].tensor;
        const weft_weight *w = weft_model_find(s.model, p->name);
        weft_part_look *part = w ? part_of(out, w) : NULL;
        if (!part) return weft_fail(WEFT_EBUG, "inspect: %s is in no part", p->name);
        WEFT_AUTO_FREE double *values = NULL;
        WEFT_TRY(look_weight(w, &values));
        part->parameters += w->count;
        part->weight_norm += squares(values, w->count);
        WEFT_TRY(weft_session_values(&s, p->grad, w->count, values));
        part->gradient_norm += squares(values, w->count);
    }
    for (int i = 0; i < out->n_parts; i++) {
        out->parts[i].weight_norm = sqrt(out->parts[i].weight_norm);
        out->parts[i].gradient_norm = sqrt(out->parts[i].gradient_norm);
    }
    return WEFT_OK;
}

void weft_inspection_free(weft_inspection *i) {
    for (int64_t l = 0; i->layers && l < i->n_layers; l++) {
        weft_layer_look *look = &i->layers[l];
        for (int64_t h = 0; look->heads && h < i->n_heads; h++)
            free(look->heads[h].sigma);
        for (int k = 0; k < 2; k++)
            WEFT_FREE(look->latents[k].values, look->latents[k].sums);
        WEFT_FREE(look->heads, look->contexts);
    }
    free(i->layers);
    *i = (weft_inspection){0};
}

static weft_status look_at_windows(const weft_model *m, weft_backing place,
                                   const weft_windows *text, weft_inspection *out) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_build build = {
        .batch = 1, .time = text->time, .dtype = m->dtype, .scores = true, .inside = true};
    weft_loss_parts parts;
    int64_t pairs = text->time * text->time;
    WEFT_ROOM(double, scores, out->n_heads *pairs, "inspect: no memory");
    /* Routes of a layer and of the one before, [2, T, T]. */
    WEFT_ROOM(unsigned char, chosen, 2 * pairs, "inspect: no memory");
    WEFT_TRY(weft_session_open(m, place.backend, place.pool, &build, false, false, &s));
    for (int64_t w = 0; w < text->windows; w++) {
        const int32_t *tokens = text->tokens + w * (text->time + 1);
        WEFT_TRY(weft_session_run(&s, tokens, tokens + 1, NULL));
        WEFT_TRY(weft_session_losses(&s, &parts));
        out->loss += parts.cross_entropy / (double)text->windows;
        WEFT_TRY(weft_mirror_use(m->mirror, NULL));
        for (int64_t l = 0; l < out->n_layers; l++) {
            weft_layer_look *look = &out->layers[l];
            const weft_layer_inside *in = &s.graph.inside[l];
            WEFT_TRY(weft_session_scores(&s, l, scores));
            WEFT_TRY(weft_look_gaussians(&s, l, scores, look));
            weft_look_weights(&m->config, scores, text->time, look);
            WEFT_TRY(weft_look_routes(&s, l, scores, text->time,
                                      l ? chosen + (l - 1) % 2 * pairs : NULL,
                                      chosen + l % 2 * pairs, look));
            WEFT_TRY(look_gates(&s, l, look));
            WEFT_TRY(look_latent(&s, in->latent, &look->latents[0]));
            WEFT_TRY(look_latent(&s, in->latent_v, &look->latents[1]));
            WEFT_TRY(look_z(&s, l, w, out->windows, look));
        }
    }
    for (int64_t l = 0; l < out->n_layers; l++) {
        weft_layer_look *look = &out->layers[l];
        weft_finish_heads(look, out->n_heads);
        for (int i = 0; i < 2; i++)
            WEFT_TRY(finish_latent(look, i));
        WEFT_TRY(finish_z(m, l, out->windows, look));
    }
    return WEFT_OK;
}

weft_status weft_inspect(const weft_model *m, weft_backing place, const weft_windows *text,
                         bool gradients, weft_inspection *out) {
    const weft_config *c = &m->config;
    *out = (weft_inspection){
        .n_layers = c->n_layer, .n_heads = c->n_head, .windows = text->windows, .time = text->time};
    size_t layers = (size_t)out->n_layers, heads = (size_t)out->n_heads;
    WEFT_ROOM_AT(out->layers, layers, "inspect: no memory");
    for (size_t l = 0; l < layers; l++) {
        WEFT_ROOM_AT(out->layers[l].heads, heads, "inspect: no memory");
        for (size_t h = 0; h < heads; h++)
            out->layers[l].heads[h].number[WEFT_HEAD_TAU] = NAN;
    }
    WEFT_TRY(look_at_windows(m, place, text, out));
    return gradients ? look_gradients(m, place, text, out) : WEFT_OK;
}

weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts) {
    WEFT_AUTO(weft_windows_free) weft_windows text = {0};
    WEFT_AUTO(weft_inspection_free) weft_inspection found = {0};
    WEFT_AUTO(weft_dataset_close_at) weft_dataset *d = NULL;
    int64_t time = m->config.context;
    if (time < 3) return WEFT_OK; /* there is nothing to look back at */
    /* The first sequences that evaluation uses. A task's are taken whole, of a text the beginning. */
    WEFT_TRY(weft_dataset_open(&m->config, &d));
    if (!weft_dataset_metric(d) && time > CONTEXT) time = CONTEXT;
    WEFT_ROOM(int32_t, targets, time, "inspect: no memory");
    text = (weft_windows){.windows = WINDOWS, .time = time - 1};
    WEFT_ROOM_AT(text.tokens, WINDOWS * time, "inspect: no memory");
    for (int64_t w = 0; w < WINDOWS; w++)
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_VAL, 0, 0, (uint32_t)w, time,
                                   text.tokens + w * time, targets, NULL));
    WEFT_TRY(weft_inspect(m, place, &text, true, &found));
    weft_inspection_facts(&found, facts);
    return WEFT_OK;
}

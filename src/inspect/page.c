/* The page: grids of heads by layers, curves of the latents' directions, maps of the weights. */
#include "inspect/show.h"

#include "study/attention_picture.h"
#include "study/heat.h"
#include "study/plot.h"
#include "study/report_page.h"
#include "train/attention_map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVES_MOST = 6, MAP_LAYERS = 3, MAP_HEADS = 16 };

static void put_heat(weft_page *p, const weft_heat *heat, const char *caption) {
    char *svg = weft_heat_svg(heat);
    if (!svg) weft_fail(WEFT_ENOMEM, "inspect: no memory for a picture");
    weft_page_thumbnail(p, svg, caption);
    free(svg);
}

static void put_head_number(weft_page *p, const weft_inspection *i, const weft_head_number *n) {
    double *values = malloc((size_t)(i->n_layers * i->n_heads) * sizeof *values), most = 0;
    char caption[160];
    for (int64_t k = 0; values && k < i->n_layers * i->n_heads; k++) {
        values[k] = n->of(&i->layers[k / i->n_heads].heads[k % i->n_heads]);
        if (isfinite(values[k])) most = fmax(most, values[k]);
    }
    weft_heat heat = {.title = n->title,
                      .row_label = "layer",
                      .column_label = "head",
                      .rows = (int)i->n_layers,
                      .columns = (int)i->n_heads,
                      .low = n->low,
                      .high = isfinite(n->high) ? n->high : most,
                      .values = values};
    snprintf(caption, sizeof caption, "%s: %s; darkest: %.3g", n->name, n->title, heat.high);
    if (values) put_heat(p, &heat, caption);
    free(values);
}

/* Layers by tenths of the gate's range, in shares of the layer's gates. */
static void put_gates(weft_page *p, const weft_inspection *i) {
    double *shares = calloc((size_t)(i->n_layers * WEFT_GATE_BINS), sizeof *shares), most = 0;
    char caption[160];
    for (int64_t l = 0; shares && l < i->n_layers; l++) {
        double all = 0;
        for (int64_t h = 0; h < i->n_heads; h++)
            for (int b = 0; b < WEFT_GATE_BINS; b++) {
                shares[l * WEFT_GATE_BINS + b] += (double)i->layers[l].heads[h].gates[b];
                all += (double)i->layers[l].heads[h].gates[b];
            }
        for (int b = 0; b < WEFT_GATE_BINS; b++) {
            double *share = &shares[l * WEFT_GATE_BINS + b];
            *share = all > 0 ? *share / all : NAN;
            if (all > 0) most = fmax(most, *share);
        }
    }
    weft_heat heat = {.title = "gates by tenths",
                      .row_label = "layer",
                      .column_label = "gate, in tenths from",
                      .rows = (int)i->n_layers,
                      .columns = WEFT_GATE_BINS,
                      .high = most,
                      .values = shares,
                      .style = 2};
    snprintf(caption, sizeof caption,
             "histogram of the gates: each layer's share in each tenth of 0 to 1; darkest: %.3g",
             most);
    if (shares) put_heat(p, &heat, caption);
    free(shares);
}

/* The share of the variance in the first directions; points are malloc'd. */
static weft_plot_series held_by(const weft_spectrum_look *s, int style, const char *label) {
    weft_plot_series out = {.label = label, .style = style, .n = (int)s->width};
    double all = 0, held = 0;
    out.points = malloc((size_t)s->width * sizeof *out.points);
    if (!out.points) out.n = 0;
    for (int64_t k = 0; k < s->width; k++)
        all += s->values[k] * s->values[k];
    for (int k = 0; k < out.n; k++) {
        held += s->values[k] * s->values[k];
        out.points[k] = (weft_plot_point){k + 1, all > 0 ? held / all : 0, NAN, NAN};
    }
    return out;
}

static void put_latents(weft_page *p, const weft_inspection *i, bool values, const char *caption) {
    weft_plot_series series[CURVES_MOST];
    char labels[CURVES_MOST][24], *svg;
    int n = i->n_layers < CURVES_MOST ? (int)i->n_layers : CURVES_MOST;
    for (int k = 0; k < n; k++) {
        int64_t layer = n > 1 ? k * (i->n_layers - 1) / (n - 1) : 0;
        const weft_layer_look *at = &i->layers[layer];
        snprintf(labels[k], sizeof labels[k], "layer %lld", (long long)layer);
        series[k] = held_by(values ? &at->values : &at->keys, k, labels[k]);
    }
    weft_plot plot = {.kind = WEFT_PLOT_CURVES,
                      .title = caption,
                      .x_label = "directions",
                      .y_label = "share of the variance",
                      .series = series,
                      .n_series = n,
                      .top = NAN};
    if (weft_plot_svg(&plot, ++p->pictures, &svg) != WEFT_OK) svg = NULL;
    weft_page_thumbnail(p, svg, caption);
    free(svg);
    for (int k = 0; k < n; k++)
        free(series[k].points);
}

static void put_layer_maps(weft_page *p, const json_t *layer, size_t time, int style) {
    char place[96];
    size_t h;
    json_t *rows;
    json_array_foreach(json_object_get(layer, "heads"), h, rows) {
        json_t *sigma = json_array_get(json_object_get(layer, "sigma"), h);
        snprintf(place, sizeof place, "layer %lld, head %zu%s",
                 (long long)json_integer_value(json_object_get(layer, "layer")), h,
                 sigma ? "; below: each token's \xcf\x83" : "");
        char *svg = weft_attention_picture(rows, sigma, time, style, place);
        weft_page_thumbnail(p, svg, place);
        free(svg);
    }
}

static weft_status make_maps(const weft_model *m, weft_backing place, const int32_t *tokens,
                             int64_t time, json_t *layers) {
    weft_session s;
    weft_build build = {.batch = 1, .time = time, .dtype = m->dtype, .scores = true};
    WEFT_TRY(weft_session_open(m, place.backend, place.pool, &build, false, false, &s));
    weft_status status = weft_session_run(&s, tokens, tokens, NULL);
    int64_t n = m->config.n_layer, count = n < MAP_LAYERS ? n : MAP_LAYERS;
    for (int64_t k = 0; status == WEFT_OK && k < count; k++)
        status = weft_attention_map_layer(&s, count > 1 ? k * (n - 1) / (count - 1) : 0, MAP_HEADS,
                                          layers);
    weft_session_close(&s);
    return status;
}

/* What was read, token by token, in one text. */
static char *text_of(const weft_tokenizer *t, const int32_t *tokens, int64_t time) {
    char *text = NULL;
    size_t bytes, k;
    json_t *word, *words = weft_attention_map_tokens(t, tokens, time);
    FILE *out = open_memstream(&text, &bytes);
    if (out) {
        json_array_foreach(words, k, word) {
            fputs(json_string_value(word), out);
        }
        fclose(out);
    }
    json_decref(words);
    return text;
}

static weft_status put_maps(weft_page *p, const weft_model *m, weft_backing place,
                            const weft_windows *text, const weft_tokenizer *t) {
    int64_t time = text->time < WEFT_MAP_TOKENS ? text->time : WEFT_MAP_TOKENS;
    json_t *layers = json_array(), *layer;
    size_t k;
    WEFT_TRY(make_maps(m, place, text->tokens, time, layers));
    weft_page_fold(p, "What heads look at",
                   "Heads of the first, a middle and the last layer over the first tokens of the "
                   "text: a row for each token, darker where it looks more. The first token is at "
                   "the top left.");
    char *read = t ? text_of(t, text->tokens, time) : NULL;
    if (read) weft_page_say(p, "%s", read);
    free(read);
    weft_page_pictures_open(p, NULL);
    json_array_foreach(layers, k, layer) {
        put_layer_maps(p, layer, (size_t)time, (int)k);
    }
    weft_page_pictures_close(p);
    json_decref(layers);
    return WEFT_OK;
}

static void put_tables(weft_page *p, const weft_inspection *i) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return;
    weft_inspection_print(i, out);
    if (fclose(out) == 0) weft_page_folded(p, "All numbers", text);
    free(text);
}

static void put_heads(weft_page *p, const weft_inspection *i) {
    weft_page_heading(p, "Heads", "A square for each head; its number shows on hover.");
    weft_page_pictures_open(p, NULL);
    for (const weft_head_number *n = weft_head_numbers; n->name; n++)
        if (weft_inspection_has(i, n)) put_head_number(p, i, n);
    if (i->n_layers > 1 && isfinite(i->layers[1].heads[0].gate)) put_gates(p, i);
    weft_page_pictures_close(p);
}

weft_status weft_inspection_page(const weft_inspection *i, const weft_model *m, weft_backing place,
                                 const weft_windows *text, const weft_tokenizer *t,
                                 const char *title, const char *path, bool force) {
    weft_page p;
    WEFT_TRY(weft_page_open(&p, title));
    weft_page_title(&p, 1, title);
    weft_page_line(&p, "facts", "%lld tokens in %lld windows of %lld; loss %.4f",
                   (long long)(i->windows * i->time), (long long)i->windows, (long long)i->time,
                   i->loss);
    put_heads(&p, i);
    if (i->layers[0].keys.width) {
        weft_page_heading(&p, "Latents",
                          "How many directions hold how much of what differs between tokens.");
        weft_page_pictures_open(&p, NULL);
        put_latents(&p, i, false, "keys' latent");
        if (i->layers[0].values.width) put_latents(&p, i, true, "values' latent");
        weft_page_pictures_close(&p);
    }
    weft_status status = put_maps(&p, m, place, text, t);
    put_tables(&p, i);
    if (status == WEFT_OK) status = weft_page_write_html(&p, path, force);
    weft_page_free(&p);
    return status;
}

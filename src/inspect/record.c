/* What a run's record keeps of an inspection: numbers by name, each the mean over heads and layers, and the
 * object that pictures are made of. */
#include "inspect/record.h"

#include "base/json.h"
#include "data/dataset.h"
#include "inspect/show.h"
#include "report/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 256, WINDOWS = 4, DIGITS = 4 };

typedef double layer_number(const weft_layer_look *l);

static json_t *heads_json(const weft_inspection *i, int number) {
    json_t *rows = json_array();
    for (int64_t l = 0; l < i->n_layers; l++) {
        json_t *row = json_array();
        for (int64_t h = 0; h < i->n_heads; h++)
            json_array_append_new(
                row, weft_json_number(weft_head_value(&i->layers[l].heads[h], number)));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Each layer's gates by tenths, in shares; a layer without gates is null. */
static json_t *gates_json(const weft_inspection *i) {
    json_t *rows = json_array();
    for (int64_t l = 0; l < i->n_layers; l++) {
        double bins[WEFT_GATE_BINS] = {0}, all = 0;
        json_t *row = json_array();
        for (int64_t k = 0; k < i->n_heads * WEFT_GATE_BINS; k++) {
            double n = (double)i->layers[l].heads[k / WEFT_GATE_BINS].gates[k % WEFT_GATE_BINS];
            bins[k % WEFT_GATE_BINS] += n;
            all += n;
        }
        for (int b = 0; b < WEFT_GATE_BINS; b++)
            json_array_append_new(row, weft_json_number(all > 0 ? bins[b] / all : NAN));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *held_json(const weft_spectrum_look *s) {
    int n = s->width < WEFT_INSIDE_POINTS ? (int)s->width : WEFT_INSIDE_POINTS;
    json_t *row = json_array();
    double all = 0, held = 0;
    for (int64_t k = 0; k < s->width; k++)
        all += s->values[k] * s->values[k];
    int64_t k = 0;
    for (int point = 0; point < n; point++) {
        for (; k < weft_inside_direction((int)s->width, point, n); k++)
            held += s->values[k] * s->values[k];
        json_array_append_new(row, weft_json_number(all > 0 ? held / all : NAN));
    }
    return row;
}

static json_t *latent_json(const weft_inspection *i, bool values) {
    json_t *held = json_array();
    for (int64_t l = 0; l < i->n_layers; l++)
        json_array_append_new(held, held_json(values ? &i->layers[l].values : &i->layers[l].keys));
    const weft_spectrum_look *first = values ? &i->layers[0].values : &i->layers[0].keys;
    return json_pack("{s:I, s:o}", "width", (json_int_t)first->width, "held", held);
}

json_t *weft_inspection_inside(const weft_inspection *i) {
    json_t *heads = json_object(), *inside = json_pack("{s:o}", "heads", heads);
    for (int n = 0; weft_inside_heads[n].name; n++)
        if (weft_inspection_has(i, n))
            json_object_set_new(heads, weft_inside_heads[n].name, heads_json(i, n));
    if (json_object_get(heads, "gate")) json_object_set_new(inside, "gates", gates_json(i));
    if (i->layers[0].keys.width) json_object_set_new(inside, "keys", latent_json(i, false));
    if (i->layers[0].values.width) json_object_set_new(inside, "values", latent_json(i, true));
    return inside;
}

#define LAYER(name, field)                                                                         \
    static double name(const weft_layer_look *l) {                                                 \
        return l->field;                                                                           \
    }
LAYER(routes, routes)
LAYER(routes_weight, kept)
LAYER(as_layer_before, same_layer)
LAYER(as_token_before, same_token)
LAYER(z_off, z_off)
LAYER(z_between, z_between)
LAYER(z_across, z_across)
#undef LAYER
#define LATENT(name, latent, field)                                                                \
    static double name(const weft_layer_look *l) {                                                 \
        return l->latent.width ? (double)l->latent.field : NAN;                                    \
    }
LATENT(keys_width, keys, width)
LATENT(keys_rank, keys, rank)
LATENT(keys_99, keys, dirs_99)
LATENT(values_width, values, width)
LATENT(values_rank, values, rank)
LATENT(values_99, values, dirs_99)
#undef LATENT

/* In the order of weft_inside_layers. */
static layer_number *const layer_numbers[] = {
    routes,       routes_weight, as_layer_before, as_token_before, keys_width, keys_rank, keys_99,
    values_width, values_rank,   values_99,       z_off,           z_between,  z_across};

static void set_fact(json_t *facts, const char *kind, const char *name, double value) {
    char key[96];
    snprintf(key, sizeof key, "inside_%s%s", kind, name);
    if (isfinite(value)) json_object_set_new(facts, key, json_real(value));
}

/* The mean of what is a number. */
typedef struct {
    double sum, count;
} average;

static void add(average *a, double value) {
    if (!isfinite(value)) return;
    a->sum += value;
    a->count++;
}

static double mean_of(average a) {
    return a.count > 0 ? a.sum / a.count : NAN;
}

void weft_inspection_facts(const weft_inspection *i, json_t *facts) {
    for (int n = 0; weft_inside_heads[n].name; n++) {
        average a = {0};
        for (int64_t k = 0; k < i->n_layers * i->n_heads; k++)
            add(&a, weft_head_value(&i->layers[k / i->n_heads].heads[k % i->n_heads], n));
        set_fact(facts, "", weft_inside_heads[n].name, mean_of(a));
    }
    for (int n = 0; weft_inside_layers[n].name; n++) {
        average a = {0};
        for (int64_t l = 0; l < i->n_layers; l++)
            add(&a, layer_numbers[n](&i->layers[l]));
        set_fact(facts, "", weft_inside_layers[n].name, mean_of(a));
    }
    for (int p = 0; p < i->n_parts; p++) {
        set_fact(facts, "gradient ", i->parts[p].name, i->parts[p].gradient_norm);
        set_fact(facts, "weight ", i->parts[p].name, i->parts[p].weight_norm);
    }
    json_t *inside = weft_inspection_inside(i);
    char *text = json_dumps(inside, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (text) json_object_set_new(facts, "inside", json_string(text));
    free(text);
    json_decref(inside);
}

/* The first sequences that evaluation uses. A task's are taken whole, of a text the beginning. */
static weft_status read_held_out(const weft_config *c, weft_windows *out) {
    weft_dataset *d;
    WEFT_TRY(weft_dataset_open(c, &d));
    int64_t time = c->context;
    if (!weft_dataset_metric(d) && time > CONTEXT) time = CONTEXT;
    size_t count = (size_t)time;
    int32_t *targets = malloc(count * sizeof *targets);
    *out = (weft_windows){.windows = WINDOWS, .time = time - 1};
    out->tokens = malloc(WINDOWS * count * sizeof *out->tokens);
    weft_status status =
        targets && out->tokens ? WEFT_OK : weft_fail(WEFT_ENOMEM, "inspect: no memory");
    for (int64_t w = 0; status == WEFT_OK && w < WINDOWS; w++)
        status = weft_dataset_fill(d, WEFT_SPLIT_VAL, 0, 0, (uint32_t)w, time,
                                   out->tokens + w * time, targets, NULL);
    free(targets);
    weft_dataset_close(d);
    return status;
}

weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts) {
    weft_windows text = {0};
    weft_inspection found;
    if (m->config.context < 3) return WEFT_OK; /* there is nothing to look back at */
    weft_status status = read_held_out(&m->config, &text);
    if (status == WEFT_OK) status = weft_inspect(m, place, &text, true, &found);
    if (status == WEFT_OK) {
        weft_inspection_facts(&found, facts);
        weft_inspection_free(&found);
    }
    weft_windows_free(&text);
    return status;
}

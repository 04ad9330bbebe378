/* An inspection for people, for programs and for a run's record: tables of heads by layers and of what is one number a
 * layer, JSON, and numbers by name, each the mean over heads and layers. */
#include "base/json.h"
#include "base/order.h"
#include "base/text.h"
#include "inspect/inspect.h"
#include "report/page.h"

enum { HEADS_MOST = 16, DIGITS = 4 };

/* The mean of a number over the heads of all layers, or over the layers, where it is one; NaN: nowhere. */
static double mean_number(const weft_inspection *i, int n, bool of_heads) {
    int64_t heads = of_heads ? i->n_heads : 1;
    double sum = 0, count = 0;
    for (int64_t k = 0; k < i->n_layers * heads; k++) {
        const weft_layer_look *at = &i->layers[k / heads];
        double value = of_heads ? at->heads[k % heads].number[n] : at->number[n];
        sum += isfinite(value) ? value : 0;
        count += isfinite(value);
    }
    return sum / count;
}

static bool has_number(const weft_inspection *i, int n) {
    return isfinite(mean_number(i, n, true));
}

static void print_number(FILE *out, double value) {
    if (!isfinite(value))
        fprintf(out, " %7s", "-");
    else if (fabs(value) >= 100)
        fprintf(out, " %7.1f", value);
    else
        fprintf(out, " %7.3f", value);
}

/* All heads, or where they are many the lowest, the middle and the highest. */
static void print_heads(const weft_inspection *i, int number, FILE *out) {
    int64_t heads = i->n_heads;
    WEFT_AUTO_FREE double *values = malloc((size_t)heads * sizeof *values);
    if (!values) return;
    fprintf(out, "\n%s: %s\nlayer ", weft_inside_heads[number].name,
            weft_inside_heads[number].title);
    if (heads > HEADS_MOST)
        fprintf(out, "  lowest  median highest  of %lld heads", (long long)heads);
    for (int64_t h = 0; h < heads && heads <= HEADS_MOST; h++)
        fprintf(out, "  head%2lld", (long long)h + 1);
    fprintf(out, "\n");
    for (int64_t l = 0; l < i->n_layers; l++) {
        fprintf(out, "%5lld ", (long long)l + 1);
        for (int64_t h = 0; h < heads; h++)
            values[h] = i->layers[l].heads[h].number[number];
        if (heads > HEADS_MOST) qsort(values, (size_t)heads, sizeof *values, weft_order_doubles);
        for (int64_t h = 0; h < heads; h++)
            if (heads <= HEADS_MOST || h == 0 || h == heads / 2 || h == heads - 1)
                print_number(out, values[h]);
        fprintf(out, "\n");
    }
}

static void print_spectrum(const weft_spectrum_look *s, FILE *out) {
    if (s->width)
        fprintf(out, "  %8lld %8.1f %8lld %8lld", (long long)s->width, s->rank,
                (long long)s->dirs_90, (long long)s->dirs_99);
}

static void print_latents(const weft_inspection *i, FILE *out) {
    bool values = i->layers[0].latents[1].width > 0;
    int64_t width = i->layers[0].latents[0].width, tokens = i->windows * i->time;
    if (!width) return;
    fprintf(out,
            "\nlatents: effective rank, and directions that hold 90%% and 99%% of the variance\n"
            "layer      keys     rank      90%%      99%%%s\n",
            values ? "    values     rank      90%      99%" : "");
    for (int64_t l = 0; l < i->n_layers; l++) {
        fprintf(out, "%5lld", (long long)l + 1);
        print_spectrum(&i->layers[l].latents[0], out);
        print_spectrum(&i->layers[l].latents[1], out);
        fprintf(out, "\n");
    }
    if (tokens < 4 * width)
        fprintf(out,
                "(%lld tokens are few for a latent of %lld: more text or --windows tells more)\n",
                (long long)tokens, (long long)width);
}

void weft_inspection_print(const weft_inspection *i, FILE *out) {
    fprintf(out, "%s tokens in %lld windows of %lld, loss %.4f\n",
            weft_count_text(i->windows * i->time), (long long)i->windows, (long long)i->time,
            i->loss);
    for (int n = 0; weft_inside_heads[n].name; n++)
        if (has_number(i, n)) print_heads(i, n, out);
    if (isfinite(i->layers[0].number[WEFT_LAYER_ROUTES])) {
        fprintf(
            out,
            "\nroutes: the tokens that cross-token takes, or would take, by the heads' weights\n"
            "layer    kept  weight  as layer before  as token before\n");
        for (int64_t l = 0; l < i->n_layers; l++) {
            const double *at = i->layers[l].number;
            fprintf(out, "%5lld %7.1f %7.3f         ", (long long)l + 1, at[WEFT_LAYER_ROUTES],
                    at[WEFT_LAYER_ROUTES_WEIGHT]);
            print_number(out, at[WEFT_LAYER_LAYER_BEFORE]);
            fprintf(out, "         ");
            print_number(out, at[WEFT_LAYER_TOKEN_BEFORE]);
            fprintf(out, "\n");
        }
    }
    print_latents(i, out);
    if (isfinite(i->layers[0].number[WEFT_LAYER_Z_BETWEEN])) {
        fprintf(out,
                "\nz-heads: W_z outside its blocks; |cosine| of two heads; cosine of one head in "
                "two sequences\nlayer  off blocks  two heads  two sequences\n");
        for (int64_t l = 0; l < i->n_layers; l++) {
            const double *at = i->layers[l].number;
            fprintf(out, "%5lld %11.4f %10.3f %14.3f\n", (long long)l + 1, at[WEFT_LAYER_Z_OFF],
                    at[WEFT_LAYER_Z_BETWEEN], at[WEFT_LAYER_Z_ACROSS]);
        }
    }
    if (i->n_parts) {
        fprintf(out, "\ngradients of a training pass\n%-18s %13s %12s %12s %14s\n", "mechanism",
                "parameters", "weight norm", "grad norm", "grad / weight");
        for (int p = 0; p < i->n_parts; p++) {
            const weft_part_look *at = &i->parts[p];
            fprintf(out, "%-18s %13s %12.4g %12.4g %14.3g\n", at->name,
                    weft_count_text(at->parameters), at->weight_norm, at->gradient_norm,
                    at->gradient_norm / at->weight_norm);
        }
    }
}

static json_t *head_json(const weft_head_look *h) {
    json_t *object = json_object();
    for (int n = 0; weft_inside_heads[n].name; n++)
        json_object_set_new(object, weft_inside_heads[n].name, weft_json_number(h->number[n]));
    if (isfinite(h->number[WEFT_HEAD_GATE])) {
        WEFT_JSON_LIST(bins, b, WEFT_GATE_BINS, json_integer(h->gates[b]));
        json_object_set_new(object, "gates", bins);
    }
    return object;
}

static json_t *spectrum_json(const weft_spectrum_look *s) {
    if (!s->width) return json_null();
    WEFT_JSON_LIST(values, i, s->width, weft_json_number(s->values[i]));
    return weft_json_make(
        "width:I effective_rank:f directions_90:I directions_99:I singular_values:o", s->width,
        s->rank, s->dirs_90, s->dirs_99, values);
}

static json_t *layer_json(const weft_inspection *i, int64_t layer) {
    const weft_layer_look *at = &i->layers[layer];
    WEFT_JSON_LIST(heads, h, i->n_heads, head_json(&at->heads[h]));
    json_t *object = weft_json_make("layer:I heads:o", layer, heads);
    for (int n = 0; n < WEFT_LAYER_NUMBERS; n++) {
        int latent = n < WEFT_LAYER_LATENTS || n >= WEFT_LAYER_Z_OFF ? -1 : n - WEFT_LAYER_LATENTS;
        if (latent < 0)
            json_object_set_new(object, weft_inside_layers[n].name,
                                weft_json_number(at->number[n]));
        else if (latent % 3 == 0)
            json_object_set_new(object, latent ? "values" : "keys",
                                spectrum_json(&at->latents[latent / 3]));
    }
    return object;
}

json_t *weft_inspection_json(const weft_inspection *i) {
    WEFT_JSON_LIST(layers, l, i->n_layers, layer_json(i, l));
    WEFT_JSON_LIST(parts, p, i->n_parts,
                   weft_json_make("name:s parameters:I weight_norm:f gradient_norm:f",
                                  i->parts[p].name, i->parts[p].parameters, i->parts[p].weight_norm,
                                  i->parts[p].gradient_norm));
    return weft_json_make("tokens:I windows:I context:I loss:f layers:o mechanisms:o",
                          i->windows * i->time, i->windows, i->time, i->loss, layers, parts);
}

/* Each layer's gates by tenths, in shares; a layer without gates is null. */
static json_t *gates_json(const weft_inspection *i) {
    json_t *rows = json_array();
    for (int64_t l = 0; l < i->n_layers; l++) {
        double bins[WEFT_GATE_BINS] = {0}, all = 0;
        for (int64_t k = 0; k < i->n_heads * WEFT_GATE_BINS; k++) {
            double n = (double)i->layers[l].heads[k / WEFT_GATE_BINS].gates[k % WEFT_GATE_BINS];
            bins[k % WEFT_GATE_BINS] += n;
            all += n;
        }
        WEFT_JSON_LIST(row, b, WEFT_GATE_BINS, weft_json_number(all > 0 ? bins[b] / all : NAN));
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

json_t *weft_inspection_inside(const weft_inspection *i) {
    json_t *heads = json_object(), *inside = weft_json_make("heads:o", heads);
    for (int n = 0; weft_inside_heads[n].name; n++) {
        if (!has_number(i, n)) continue;
        json_t *rows = json_array();
        for (int64_t l = 0; l < i->n_layers; l++) {
            WEFT_JSON_LIST(row, h, i->n_heads, weft_json_number(i->layers[l].heads[h].number[n]));
            json_array_append_new(rows, row);
        }
        json_object_set_new(heads, weft_inside_heads[n].name, rows);
    }
    if (json_object_get(heads, "gate")) json_object_set_new(inside, "gates", gates_json(i));
    for (int k = 0; k < 2; k++) {
        json_int_t width = i->layers[0].latents[k].width;
        if (!width) continue;
        WEFT_JSON_LIST(held, l, i->n_layers, held_json(&i->layers[l].latents[k]));
        json_object_set_new(inside, k ? "values" : "keys",
                            weft_json_make("width:I held:o", width, held));
    }
    return inside;
}

static void set_fact(json_t *facts, const char *kind, const char *name, double value) {
    char key[96];
    snprintf(key, sizeof key, "inside_%s%s", kind, name);
    if (isfinite(value)) json_object_set_new(facts, key, json_real(value));
}

void weft_inspection_facts(const weft_inspection *i, json_t *facts) {
    for (int n = 0; n < WEFT_HEAD_NUMBERS; n++)
        set_fact(facts, "", weft_inside_heads[n].name, mean_number(i, n, true));
    for (int n = 0; n < WEFT_LAYER_NUMBERS; n++)
        set_fact(facts, "", weft_inside_layers[n].name, mean_number(i, n, false));
    for (int p = 0; p < i->n_parts; p++) {
        set_fact(facts, "gradient ", i->parts[p].name, i->parts[p].gradient_norm);
        set_fact(facts, "weight ", i->parts[p].name, i->parts[p].weight_norm);
    }
    WEFT_AUTO_DECREF json_t *inside = weft_inspection_inside(i);
    WEFT_AUTO_FREE char *text = json_dumps(inside, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (text) json_object_set_new(facts, "inside", json_string(text));
}

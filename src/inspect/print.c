/* Heads by layers as tables, then what is one number a layer. */
#include "base/json.h"
#include "base/order.h"
#include "base/text.h"
#include "inspect/show.h"
#include "report/inside.h"

#include <math.h>
#include <stdlib.h>

enum { HEADS_MOST = 16 };

#define NUMBER(name)                                                                               \
    static double name##_of(const weft_head_look *h) {                                             \
        return h->name;                                                                            \
    }
NUMBER(entropy)
NUMBER(first)
NUMBER(self)
NUMBER(back)
NUMBER(tau)
NUMBER(sigma_q)
NUMBER(sigma_k)
NUMBER(spread_q)
NUMBER(spread_k)
NUMBER(moved)
NUMBER(gate)
NUMBER(gate_spread)
#undef NUMBER

static double share_of(const weft_head_look *h) {
    return h->entropy / h->most;
}

/* In the order of weft_inside_heads. */
static double (*const head_values[])(const weft_head_look *h) = {
    entropy_of, share_of,    first_of,    self_of,  back_of, tau_of,        sigma_q_of,
    sigma_k_of, spread_q_of, spread_k_of, moved_of, gate_of, gate_spread_of};

double weft_head_value(const weft_head_look *h, int number) {
    return head_values[number](h);
}

bool weft_inspection_has(const weft_inspection *i, int number) {
    for (int64_t l = 0; l < i->n_layers; l++)
        for (int64_t h = 0; h < i->n_heads; h++)
            if (isfinite(weft_head_value(&i->layers[l].heads[h], number))) return true;
    return false;
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
static void print_row(FILE *out, int number, const weft_layer_look *layer, int64_t heads) {
    double *values = malloc((size_t)heads * sizeof *values);
    if (!values) return;
    for (int64_t h = 0; h < heads; h++)
        values[h] = weft_head_value(&layer->heads[h], number);
    if (heads > HEADS_MOST) qsort(values, (size_t)heads, sizeof *values, weft_order_doubles);
    for (int64_t h = 0; h < heads; h++)
        if (heads <= HEADS_MOST || h == 0 || h == heads / 2 || h == heads - 1)
            print_number(out, values[h]);
    free(values);
}

static void print_heads(const weft_inspection *i, int number, FILE *out) {
    fprintf(out, "\n%s: %s\nlayer ", weft_inside_heads[number].name,
            weft_inside_heads[number].title);
    if (i->n_heads > HEADS_MOST)
        fprintf(out, "  lowest  median highest  of %lld heads", (long long)i->n_heads);
    for (int64_t h = 0; h < i->n_heads && i->n_heads <= HEADS_MOST; h++)
        fprintf(out, "  head%2lld", (long long)h);
    fprintf(out, "\n");
    for (int64_t l = 0; l < i->n_layers; l++) {
        fprintf(out, "%5lld ", (long long)l);
        print_row(out, number, &i->layers[l], i->n_heads);
        fprintf(out, "\n");
    }
}

static void print_routes(const weft_inspection *i, FILE *out) {
    if (!isfinite(i->layers[0].kept)) return;
    fprintf(out,
            "\nroutes: the tokens that cross-token takes, or would take, by the heads' weights\n"
            "layer    kept  weight  as layer before  as token before\n");
    for (int64_t l = 0; l < i->n_layers; l++) {
        const weft_layer_look *at = &i->layers[l];
        fprintf(out, "%5lld %7.1f %7.3f         ", (long long)l, at->routes, at->kept);
        print_number(out, at->same_layer);
        fprintf(out, "         ");
        print_number(out, at->same_token);
        fprintf(out, "\n");
    }
}

static void print_spectrum(const weft_spectrum_look *s, FILE *out) {
    if (s->width)
        fprintf(out, "  %8lld %8.1f %8lld %8lld", (long long)s->width, s->rank,
                (long long)s->dirs_90, (long long)s->dirs_99);
}

static void print_latents(const weft_inspection *i, FILE *out) {
    bool values = i->layers[0].values.width > 0;
    if (!i->layers[0].keys.width) return;
    fprintf(out,
            "\nlatents: effective rank, and directions that hold 90%% and 99%% of the variance\n"
            "layer      keys     rank      90%%      99%%%s\n",
            values ? "    values     rank      90%      99%" : "");
    for (int64_t l = 0; l < i->n_layers; l++) {
        fprintf(out, "%5lld", (long long)l);
        print_spectrum(&i->layers[l].keys, out);
        print_spectrum(&i->layers[l].values, out);
        fprintf(out, "\n");
    }
    int64_t tokens = i->windows * i->time;
    if (tokens < 4 * i->layers[0].keys.width)
        fprintf(out,
                "(%lld tokens are few for a latent of %lld: more text or --windows tells more)\n",
                (long long)tokens, (long long)i->layers[0].keys.width);
}

static void print_z(const weft_inspection *i, FILE *out) {
    if (!isfinite(i->layers[0].z_between)) return;
    fprintf(out, "\nz-heads: W_z outside its blocks; |cosine| of two heads; cosine of one head in "
                 "two sequences\nlayer  off blocks  two heads  two sequences\n");
    for (int64_t l = 0; l < i->n_layers; l++)
        fprintf(out, "%5lld %11.4f %10.3f %14.3f\n", (long long)l, i->layers[l].z_off,
                i->layers[l].z_between, i->layers[l].z_across);
}

static void print_parts(const weft_inspection *i, FILE *out) {
    char count[WEFT_COUNT_ROOM];
    if (!i->n_parts) return;
    fprintf(out, "\ngradients of a training pass\n%-18s %13s %12s %12s %14s\n", "mechanism",
            "parameters", "weight norm", "grad norm", "grad / weight");
    for (int p = 0; p < i->n_parts; p++) {
        const weft_part_look *at = &i->parts[p];
        fprintf(out, "%-18s %13s %12.4g %12.4g %14.3g\n", at->name,
                weft_count_text(at->parameters, count), at->weight_norm, at->gradient_norm,
                at->gradient_norm / at->weight_norm);
    }
}

void weft_inspection_print(const weft_inspection *i, FILE *out) {
    char tokens[WEFT_COUNT_ROOM];
    fprintf(out, "%s tokens in %lld windows of %lld, loss %.4f\n",
            weft_count_text(i->windows * i->time, tokens), (long long)i->windows,
            (long long)i->time, i->loss);
    for (int n = 0; weft_inside_heads[n].name; n++)
        if (weft_inspection_has(i, n)) print_heads(i, n, out);
    print_routes(i, out);
    print_latents(i, out);
    print_z(i, out);
    print_parts(i, out);
}

static json_t *head_json(const weft_head_look *h) {
    json_t *object = json_object();
    for (int n = 0; weft_inside_heads[n].name; n++)
        json_object_set_new(object, weft_inside_heads[n].name,
                            weft_json_number(weft_head_value(h, n)));
    if (isfinite(h->gate)) {
        json_t *bins = json_array();
        for (int b = 0; b < WEFT_GATE_BINS; b++)
            json_array_append_new(bins, json_integer(h->gates[b]));
        json_object_set_new(object, "gates", bins);
    }
    return object;
}

static json_t *spectrum_json(const weft_spectrum_look *s) {
    json_t *values = json_array();
    if (!s->width) {
        json_decref(values);
        return json_null();
    }
    for (int64_t i = 0; i < s->width; i++)
        json_array_append_new(values, weft_json_number(s->values[i]));
    return json_pack("{s:I, s:o, s:I, s:I, s:o}", "width", (json_int_t)s->width, "effective_rank",
                     weft_json_number(s->rank), "directions_90", (json_int_t)s->dirs_90,
                     "directions_99", (json_int_t)s->dirs_99, "singular_values", values);
}

static json_t *layer_json(const weft_inspection *i, int64_t layer) {
    const weft_layer_look *at = &i->layers[layer];
    json_t *heads = json_array();
    for (int64_t h = 0; h < i->n_heads; h++)
        json_array_append_new(heads, head_json(&at->heads[h]));
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "layer",
                     (json_int_t)layer, "heads", heads, "routes", weft_json_number(at->routes),
                     "routes_weight", weft_json_number(at->kept), "routes_as_layer_before",
                     weft_json_number(at->same_layer), "routes_as_token_before",
                     weft_json_number(at->same_token), "keys", spectrum_json(&at->keys), "values",
                     spectrum_json(&at->values), "z_off_blocks", weft_json_number(at->z_off),
                     "z_between_heads", weft_json_number(at->z_between), "z_across_sequences",
                     weft_json_number(at->z_across));
}

json_t *weft_inspection_json(const weft_inspection *i) {
    json_t *layers = json_array(), *parts = json_array();
    for (int64_t l = 0; l < i->n_layers; l++)
        json_array_append_new(layers, layer_json(i, l));
    for (int p = 0; p < i->n_parts; p++)
        json_array_append_new(
            parts, json_pack("{s:s, s:I, s:o, s:o}", "name", i->parts[p].name, "parameters",
                             (json_int_t)i->parts[p].parameters, "weight_norm",
                             weft_json_number(i->parts[p].weight_norm), "gradient_norm",
                             weft_json_number(i->parts[p].gradient_norm)));
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "tokens", (json_int_t)(i->windows * i->time),
                     "windows", (json_int_t)i->windows, "context", (json_int_t)i->time, "loss",
                     weft_json_number(i->loss), "layers", layers, "mechanisms", parts);
}

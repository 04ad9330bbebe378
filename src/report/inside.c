/* What the mechanisms do inside the trained models (EVAL_INSIDE): numbers by variant, and pictures of each variant's
 * first seed. */
#include "report/sections.h"

#include "base/json.h"
#include "report/inside_picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MOST = 24, NAME_ROOM = 96 };

static bool has_inside(const weft_report_data *d, int variant) {
    return d->variants[variant].repeats < 0 &&
           isfinite(weft_report_fact_mean(d, variant, "inside_entropy"));
}

static bool any_has(const weft_report_data *d, const char *name) {
    for (int i = 0; i < d->n_variants; i++)
        if (has_inside(d, i) && isfinite(weft_report_fact_mean(d, i, name))) return true;
    return false;
}

/* A column for each variant that has numbers. The caller frees the list when the table is closed; NULL: no
 * memory. */
static const char **list_heads(const weft_report_data *d, const char *first) {
    const char **heads = calloc((size_t)d->n_variants + 2, sizeof *heads);
    int n = 0;
    if (!heads) return NULL;
    heads[n++] = first;
    for (int i = 0; i < d->n_variants; i++)
        if (has_inside(d, i)) heads[n++] = weft_variant_label(d, i);
    return heads;
}

static void put_row(weft_page *p, const weft_report_data *d, const char *name, const char *title) {
    char fact[NAME_ROOM];
    snprintf(fact, sizeof fact, "inside_%.80s", name);
    if (!any_has(d, fact)) return;
    weft_page_cell(p, "%s: %s", name, title);
    for (int i = 0; i < d->n_variants; i++) {
        if (!has_inside(d, i)) continue;
        double value = weft_report_fact_mean(d, i, fact);
        if (isfinite(value))
            weft_page_cell(p, "%.4g", value);
        else
            weft_page_cell(p, "–");
    }
}

/* The mechanisms of all records, by the names of their gradients. */
static int list_parts(const weft_report_data *d, const char *parts[PARTS_MOST]) {
    static const char begin[] = "inside_gradient ";
    int n = 0;
    for (int i = 0; i < d->n_facts && n < PARTS_MOST; i++) {
        const char *name = d->facts[i].name;
        bool known = strncmp(name, begin, sizeof begin - 1) != 0;
        for (int k = 0; k < n && !known; k++)
            known = strcmp(parts[k], name + sizeof begin - 1) == 0;
        if (!known && strlen(name) < NAME_ROOM) parts[n++] = name + sizeof begin - 1;
    }
    return n;
}

static weft_status put_gradients(weft_page *p, const weft_report_data *d) {
    const char *parts[PARTS_MOST];
    int n = list_parts(d, parts);
    if (n == 0) return WEFT_OK;
    weft_page_say(p, "Gradients by mechanism: the norm of its gradient in one training pass over "
                     "held-out sequences, and in brackets what part of its weights' norm that is.");
    const char **heads = list_heads(d, "mechanism");
    if (!heads) return weft_fail(WEFT_ENOMEM, "report: no memory for a table");
    weft_page_table_open(p, heads);
    for (int k = 0; k < n; k++) {
        char gradient[NAME_ROOM + 24], weight[NAME_ROOM + 24];
        snprintf(gradient, sizeof gradient, "inside_gradient %s", parts[k]);
        snprintf(weight, sizeof weight, "inside_weight %s", parts[k]);
        if (!any_has(d, gradient)) continue;
        weft_page_cell(p, "%s", parts[k]);
        for (int i = 0; i < d->n_variants; i++) {
            double is = weft_report_fact_mean(d, i, gradient);
            double of = weft_report_fact_mean(d, i, weight);
            if (!has_inside(d, i)) continue;
            if (isfinite(is))
                weft_page_cell(p, "%.3g (%.2g)", is, is / of);
            else
                weft_page_cell(p, "–");
        }
    }
    weft_page_table_close(p);
    free(heads);
    return WEFT_OK;
}

static void put_pictures(weft_page *p, const weft_report_data *d, int variant) {
    const weft_report_run *run = weft_report_first_run(d, variant);
    const weft_report_fact *fact = run ? weft_report_fact_of(d, run, "inside") : NULL;
    json_t *inside = fact ? weft_json_read(fact->text, strlen(fact->text), 0, NULL) : NULL;
    if (inside) {
        weft_page_subtitle(p, weft_variant_label(d, variant));
        weft_page_pictures_open(p, NULL);
        weft_inside_put_heads(p, inside, variant);
        weft_inside_put_latents(p, inside);
        weft_page_pictures_close(p);
    }
    json_decref(inside);
}

weft_status weft_report_inside(weft_page *p, const weft_report_data *d) {
    if (!any_has(d, "inside_entropy")) return WEFT_OK;
    weft_page_heading(p, "Inside the models",
                      "What the mechanisms do on held-out sequences after training: the mean over "
                      "heads, layers and seeds.");
    const char **heads = list_heads(d, "number");
    if (!heads) return weft_fail(WEFT_ENOMEM, "report: no memory for a table");
    weft_page_table_open(p, heads);
    for (const weft_inside_number *n = weft_inside_heads; n->name; n++)
        put_row(p, d, n->name, n->title);
    for (const weft_inside_number *n = weft_inside_layers; n->name; n++)
        put_row(p, d, n->name, n->title);
    weft_page_table_close(p);
    free(heads);
    WEFT_TRY(put_gradients(p, d));
    weft_page_fold(
        p, "Inside the models, head by head",
        "The first seed of each variant: a square for each head of each layer, its number on "
        "hover; the gates by tenths; the latents' directions. (The pictures are in "
        "report.html.)");
    for (int i = 0; i < d->n_variants; i++)
        if (has_inside(d, i)) put_pictures(p, d, i);
    return WEFT_OK;
}

json_t *weft_report_inside_json(const weft_report_data *d, int variant) {
    json_t *object = json_object();
    for (int i = 0; i < d->n_facts; i++) {
        const char *name = d->facts[i].name;
        if (d->runs[d->facts[i].run].variant != variant || strncmp(name, "inside_", 7) != 0)
            continue;
        if (json_object_get(object, name + 7)) continue;
        double mean = weft_report_fact_mean(d, variant, name);
        if (isfinite(mean)) json_object_set_new(object, name + 7, json_real(mean));
    }
    if (json_object_size(object) > 0) return object;
    json_decref(object);
    return json_null();
}

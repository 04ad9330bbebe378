/* The held-out loss by position in the sequence (EVAL_POSITIONS): where in a context a variant gains or loses. */
#include "report/plot.h"
#include "report/sections.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES_MOST = WEFT_REPORT_RANGES };

static bool read_range(const char *name, weft_report_range *r) {
    int end = 0;
    bool is = sscanf(name, "loss_at_%lld_%lld%n", &r->first, &r->last, &end) == 2 && !name[end];
    return is && r->first >= 0 && r->last >= r->first && strlen(name) < sizeof r->name;
}

static int by_first(const void *a, const void *b) {
    const weft_report_range *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->last > y->last) - (x->last < y->last);
}

int weft_report_ranges(const weft_report_data *d, weft_report_range out[RANGES_MOST]) {
    int n = 0;
    for (int i = 0; i < d->n_facts && n < RANGES_MOST; i++) {
        weft_report_range r;
        bool known = false;
        if (!isfinite(d->facts[i].value) || !read_range(d->facts[i].name, &r)) continue;
        for (int k = 0; k < n && !known; k++)
            known = out[k].first == r.first && out[k].last == r.last;
        if (known) continue;
        snprintf(r.name, sizeof r.name, "%s", d->facts[i].name);
        out[n++] = r;
    }
    qsort(out, (size_t)n, sizeof *out, by_first);
    return n;
}

static bool has_positions(const weft_report_data *d, int variant, const weft_report_range *r,
                          int n) {
    for (int k = 0; k < n; k++)
        if (isfinite(weft_report_fact_mean(d, variant, r[k].name)))
            return d->variants[variant].repeats < 0;
    return false;
}

/* A column for each range; it lives as long as its table is open. */
typedef struct {
    const char *list[RANGES_MOST + 2];
    char texts[RANGES_MOST][48];
} heads;

static void open_table(weft_page *p, heads *h, const weft_report_range *r, int n) {
    h->list[0] = "variant";
    for (int k = 0; k < n; k++) {
        if (r[k].first == r[k].last)
            snprintf(h->texts[k], sizeof h->texts[k], ">%lld", r[k].first);
        else
            snprintf(h->texts[k], sizeof h->texts[k], ">%lld–%lld", r[k].first, r[k].last);
        h->list[k + 1] = h->texts[k];
    }
    h->list[n + 1] = NULL;
    weft_page_table_open(p, h->list);
}

static void put_losses(weft_page *p, const weft_report_data *d, const weft_report_range *r, int n) {
    weft_words room;
    heads h;
    open_table(p, &h, r, n);
    for (int i = 0; i < d->n_variants; i++) {
        if (!has_positions(d, i, r, n)) continue;
        weft_page_cell(p, "%s", weft_variant_label(d, i));
        for (int k = 0; k < n; k++)
            weft_page_cell(p, "%s", weft_say_score(weft_report_fact_mean(d, i, r[k].name), &room));
    }
    weft_page_table_close(p);
}

static bool is_compared(const weft_report_data *d, int variant, const weft_report_range *r, int n) {
    return weft_report_counts(d, variant) && has_positions(d, variant, r, n) &&
           has_positions(d, d->variants[variant].baseline, r, n);
}

/* Differences with their intervals; nothing where no variant has a baseline that has them too. */
static weft_status put_differences(weft_page *p, const weft_report_data *d,
                                   const weft_report_range *r, int n) {
    bool open = false;
    heads h;
    for (int i = 0; i < d->n_variants; i++) {
        if (!is_compared(d, i, r, n)) continue;
        if (!open) {
            weft_page_say(p,
                          "The differences from the baseline, seed by seed, with their %.0f%% "
                          "intervals:",
                          100 * WEFT_CONFIDENCE);
            open_table(p, &h, r, n);
        }
        open = true;
        weft_page_cell(p, "%s against %s", weft_variant_label(d, i),
                       weft_variant_label(d, d->variants[i].baseline));
        for (int k = 0; k < n; k++) {
            weft_comparison c;
            weft_words room;
            WEFT_TRY(weft_report_fact_compare(d, i, d->variants[i].baseline, r[k].name, &c));
            weft_page_cell(p, "%s", weft_say_interval(&c, &room));
        }
    }
    if (open) weft_page_table_close(p);
    return WEFT_OK;
}

static void put_picture(weft_page *p, const weft_report_data *d, const weft_report_range *r,
                        int n) {
    weft_plot_series *series = calloc((size_t)d->n_variants + 1, sizeof *series);
    weft_plot_point *points = calloc((size_t)(d->n_variants * n) + 1, sizeof *points);
    char *svg = NULL;
    for (int i = 0; series && points && i < d->n_variants; i++) {
        series[i] = (weft_plot_series){
            .label = weft_variant_label(d, i), .style = i, .points = points + i * n};
        for (int k = 0; k < n && d->variants[i].repeats < 0; k++) {
            double loss = weft_report_fact_mean(d, i, r[k].name);
            double middle = sqrt((double)(r[k].first + 1) * (double)(r[k].last + 1));
            if (isfinite(loss))
                series[i].points[series[i].n++] = (weft_plot_point){middle, loss, NAN, NAN};
        }
    }
    weft_plot plot = {.kind = WEFT_PLOT_MEASURED,
                      .title = "held-out loss by position",
                      .x_label = "position in the sequence",
                      .y_label = "held-out loss",
                      .y_unit = "nats per token",
                      .log_x = true,
                      .series = series,
                      .n_series = d->n_variants,
                      .top = NAN};
    weft_page_pictures_open(p, NULL);
    if (series && points && weft_plot_svg(&plot, ++p->pictures, &svg) != WEFT_OK) svg = NULL;
    weft_page_picture(p, svg, "Held-out loss by position in the sequence, the mean over seeds.");
    weft_page_pictures_close(p);
    free(svg);
    free(series);
    free(points);
}

weft_status weft_report_positions(weft_page *p, const weft_report_data *d) {
    weft_report_range ranges[RANGES_MOST];
    int n = weft_report_ranges(d, ranges);
    bool any = false;
    for (int i = 0; i < d->n_variants; i++)
        any = any || has_positions(d, i, ranges, n);
    if (!any) return WEFT_OK;
    weft_page_heading(
        p, "Loss by position",
        "The held-out loss of the tokens at each position of a sequence, the mean over "
        "seeds: a later token has more to look back at.");
    put_picture(p, d, ranges, n);
    put_losses(p, d, ranges, n);
    return put_differences(p, d, ranges, n);
}

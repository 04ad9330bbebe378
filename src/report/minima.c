/* Where each variant does best over its learning rates: the parabola through its runs, its minimum, and how they are
 * drawn. study/minimum.h fits them. */
#include "report/sections.h"

#include <math.h>
#include <stdlib.h>

enum { CURVE = 41 };

static bool has_minimum(const weft_report_data *d, int variant) {
    return d->variants[variant].repeats < 0 && isfinite(d->variants[variant].minimum.rate);
}

static weft_plot_point point_at(const weft_minimum *m, double rate) {
    return (weft_plot_point){rate, weft_minimum_at(m, rate), NAN, NAN};
}

static void put_table(weft_page *p, const weft_report_data *d) {
    static const char *const edges[] = {"at the lowest rate", "between the rates",
                                        "at the highest rate"};
    weft_page_table_open(p, "variant|>minimum|>at learning rate|>fitted from|>to|where it is");
    for (int i = 0; i < d->n_variants; i++) {
        const weft_minimum *m = &d->variants[i].minimum;
        if (!has_minimum(d, i)) continue;
        weft_page_cells(p, weft_variant_label(d, i), weft_say_score(m->score),
                        weft_say("%.3g", m->rate), weft_say("%.3g", m->first),
                        weft_say("%.3g", m->last), edges[m->edge + 1]);
    }
}

weft_status weft_report_minima(weft_page *p, const weft_report_data *d) {
    if (!d->minima || !weft_report_count(d, has_minimum)) return WEFT_OK;
    weft_plot_series *series;
    WEFT_TRY(weft_report_plot_series(d, d->n_rates + CURVE, &series));
    for (int i = 0; i < d->n_variants; i++) {
        const weft_minimum *m = &d->variants[i].minimum;
        weft_plot_series *s = &series[i];
        if (!has_minimum(d, i)) continue;
        for (int k = 0; k < d->n_rates; k++) {
            int done, runs;
            weft_plot_point at = weft_report_at_rate(d, i, d->rates[k], &done, &runs);
            if (done && at.x > 0) s->points[s->n++] = at;
        }
        for (int k = 0; k < CURVE; k++)
            s->points[s->n + k] =
                point_at(m, m->first * pow(m->last / m->first, k / (CURVE - 1.0)));
        s->fit = s->points + s->n;
        s->n_fit = CURVE;
        s->least = point_at(m, m->rate);
    }
    static const char caption[] =
        "Score by learning rate: the mean over seeds, with a bar from the lowest to the highest of "
        "them. The curve is the parabola in the logarithm of the rate through the runs within a "
        "factor of four of the best rate; the ring is its minimum, at which variants are compared.";
    weft_report_put_rates(p, d, WEFT_PLOT_POINTS, "Minima over the learning rates", series,
                          caption);
    put_table(p, d);
    free(series);
    return WEFT_OK;
}

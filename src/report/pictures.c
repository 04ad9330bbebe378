/* Pictures of the variants: score against cost with the Pareto front, the sweep of learning rates, the loss by
 * position in the sequence (EVAL_POSITIONS): where in a context a variant gains or loses. */
#include "base/json.h"
#include "base/order.h"
#include "report/sections.h"

#include <ctype.h>

enum { RATES_MOST = 24, NAMES_ROOM = 400, CURVE = 41 };

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
}

weft_status weft_report_plot_series(weft_page *p, const weft_report_data *d, int room,
                                    weft_plot_series **out) {
    size_t n = (size_t)d->n_variants + 1;
    *out = weft_page_room(p, n * (sizeof **out + (size_t)room * sizeof(weft_plot_point)));
    if (!*out) return no_memory();
    weft_plot_point *points = (weft_plot_point *)(void *)(*out + n);
    for (int i = 0; i < d->n_variants; i++)
        (*out)[i] = (weft_plot_series){
            .label = d->variants[i].label, .style = i, .points = points + i * room};
    return WEFT_OK;
}

void weft_report_put_plots(weft_page *p, const weft_report_data *d, json_t *axes,
                           const weft_plot *plots, int n) {
    const weft_report_variant *lit = weft_report_headline(d);
    WEFT_AUTO_DECREF json_t *charts = json_array(), *series = json_array();
    json_t *spec = NULL;
    for (int i = 0; axes && i < n; i++)
        json_array_append_new(charts, weft_plot_json(&plots[i]));
    EACH_VARIANT(v, d)
        weft_json_append(series, "key:o name:o style:i baseline:o", weft_page_json(v->name),
                         weft_page_json(v->label), v->place,
                         v->baseline ? weft_page_json(v->baseline->name) : NULL);
    if (axes)
        spec = weft_json_make("x:o series:O charts:O lit:o*", axes, series, charts,
                              lit ? weft_page_json(lit->name) : NULL);
    weft_page_pictures_open(p, spec);
    for (int i = 0; i < n; i++) {
        bool drawn = weft_plot_svg(&plots[i], ++p->pictures, p->words) == WEFT_OK;
        const char *svg = drawn ? weft_page_words(p) : NULL;
        weft_page_picture(p, svg, plots[i].caption);
        weft_page_picture_md(p, svg, plots[i].caption);
    }
}

bool weft_report_is_finished(const weft_report_variant *v) {
    return v->done > 0;
}

/* A series of scores for each variant, on a logarithmic axis. */
static weft_plot plot_scores(const weft_report_data *d, weft_plot_kind kind, const char *title,
                             const char *x_label, const weft_plot_series *series,
                             const char *caption) {
    return (weft_plot){.kind = kind,
                       .title = title,
                       .x_label = x_label,
                       .y_label = d->score_name,
                       .y_unit = d->higher_is_better ? NULL : "nats per token",
                       .log_x = true,
                       .series = series,
                       .n_series = d->n_variants,
                       .top = NAN,
                       .note = caption,
                       .caption = caption};
}

static const struct {
    const char *name;
    weft_unit unit;
    size_t at; /* of a variant */
} costs[] = {{"parameters", WEFT_UNIT_COUNT, offsetof(weft_report_variant, parameters)},
             {"FLOPs per token", WEFT_UNIT_COUNT, offsetof(weft_report_variant, flops)},
             {"cache per token", WEFT_UNIT_BYTES, offsetof(weft_report_variant, cache_bytes)},
             {"measured memory", WEFT_UNIT_BYTES, offsetof(weft_report_variant, memory)},
             {"time per run", WEFT_UNIT_SECONDS, offsetof(weft_report_variant, seconds)}};
enum { COSTS = WEFT_COUNT(costs), CACHE = 2 };

/* Where a variant stands in them: its mean, or its minimum over the learning rates, which has no bar. A repeat is the
 * same point again, and stands nowhere. */
static weft_plot_point point_of(const weft_report_variant *v, int cost) {
    double x = !v->repeats ? weft_variant_number(v, costs[cost].at) : NAN;
    if (v->study->minima) return (weft_plot_point){x, v->minimum.score, NAN, NAN};
    return (weft_plot_point){x, v->mean, v->least, v->most};
}

/* Whether no other variant costs no more and scores no less, one of them truly. A variant that leaks has
 * no score worth the name; no comparison with a NaN holds. */
static bool is_in_front(const weft_report_variant *v, int cost) {
    weft_plot_point own = point_of(v, cost);
    if (!isfinite(own.x) || !isfinite(own.y) || v->leaks) return false;
    EACH_VARIANT(o, v->study) {
        weft_plot_point other = point_of(o, cost);
        double lower = (v->study->higher_is_better ? -1 : 1) * (own.y - other.y);
        if (o == v || o->leaks) continue;
        if (other.x <= own.x && lower >= 0 && (other.x < own.x || lower > 0 || o < v)) return false;
    }
    return true;
}

/* Where the runs measured it: marks whose area is the speed of decoding, and the sentence that says so. */
static const char *size_by_speed(const weft_report_data *d, weft_plot_series *series) {
    double least = NAN, most = NAN;
    for (int i = 0; i < d->n_variants; i++) {
        series[i].size = weft_report_fact_mean(&d->variants[i], "decode_tokens_per_s_1");
        least = fmin(least, series[i].size);
        most = fmax(most, series[i].size);
    }
    for (int i = 0; i < d->n_variants; i++)
        series[i].size = 1.8 * sqrt(series[i].size / most);
    if (!(most > 0)) return "";
    return weft_say(" The area of a mark is the speed of decoding one sequence, %s to %s tokens "
                    "per second.",
                    weft_say_count(least), weft_say_count(most));
}

/* Points, the front through them and the names on it. */
static weft_status make_picture(weft_page *p, const weft_report_data *d, int cost,
                                weft_plot *plot) {
    weft_plot_series *series;
    char names[NAMES_ROOM] = "", *title, *note, *caption;
    size_t used = 0;
    weft_plot_point *front = weft_page_room(p, ((size_t)d->n_variants + 1) * sizeof *front);
    WEFT_TRY(weft_report_plot_series(p, d, 1, &series));
    int n = 0;
    EACH_VARIANT(v, d) {
        weft_plot_point at = *series[v->place].points = point_of(v, cost);
        series[v->place].n = isfinite(at.x) && isfinite(at.y);
        if (!front || !is_in_front(v, cost)) continue;
        front[n++] = at;
        if (used < NAMES_ROOM)
            used += (size_t)snprintf(names + used, NAMES_ROOM - used, "%s%.40s", used ? ", " : "",
                                     v->label);
    }
    const char *speeds = cost == CACHE ? size_by_speed(d, series) : "";
    title = weft_page_keep(p, "%.100s against %s", d->score_name, costs[cost].name);
    note = weft_page_keep(p, "On the Pareto front, variants that no other beats on both: %s.%s",
                          *names ? names : "none", speeds);
    if (!front || !title || !note) return no_memory();
    qsort(front, (size_t)n, sizeof *front, weft_order_doubles); /* by x, the first number of each */
    *title = (char)toupper((unsigned char)*title);
    caption = weft_page_keep(p, "%s. %s", title, note);
    *plot = plot_scores(d, WEFT_PLOT_POINTS, title,
                        *speeds ? "cache bytes per token" : costs[cost].name, series, caption);
    plot->log_x = *speeds;
    plot->x_unit = costs[cost].unit;
    plot->front = front;
    plot->n_front = n;
    plot->note = note;
    return caption ? WEFT_OK : no_memory();
}

weft_status weft_report_fronts(weft_page *p, const weft_report_data *d) {
    weft_plot plots[COSTS];
    int n = 0;
    if (weft_report_count(d, weft_report_is_finished) < 2) return WEFT_OK;
    for (int i = 0; i < COSTS; i++) {
        WEFT_TRY(make_picture(p, d, i, &plots[n]));
        n += weft_plot_count(&plots[n]) > 0;
    }
    if (n == 0) return WEFT_OK; /* no minimum yet */
    weft_page_heading(
        p, "Score against cost",
        weft_say("What a score costs: %s and to the left is better. %s. The dashed line is the "
                 "Pareto front; it goes by the %s alone, and variants on it may differ by chance.",
                 d->higher_is_better ? "up" : "down",
                 d->minima ? "The minimum over the learning rates"
                           : "The mean over seeds, with a bar from the lowest to the highest",
                 d->minima ? "minima" : "means"));
    weft_report_put_plots(p, d, json_array(), plots, n);
    return WEFT_OK;
}

/* The mean score of a variant at a rate, with its least and most; how many of its runs there finished. */
static weft_plot_point at_rate(const weft_report_variant *v, double rate, int *done, int *runs) {
    weft_plot_point at = {rate, 0, NAN, NAN};
    *done = *runs = 0;
    EACH_RUN_OF(run, v) {
        if (run->rate != rate || run->chooses != (v->study->rate_seed >= 0)) continue;
        ++*runs;
        if (!run->finished) continue;
        ++*done;
        at.y += run->score;
        at.low = fmin(at.low, run->score);
        at.high = fmax(at.high, run->score);
    }
    at.y = *done ? at.y / *done : NAN;
    return at;
}

/* The means of a variant at the rates where a run of it finished. */
static void place_rates(const weft_report_variant *v, weft_plot_series *s) {
    for (int k = 0; k < v->study->n_rates; k++) {
        int done, runs;
        weft_plot_point at = at_rate(v, v->study->rates[k], &done, &runs);
        if (done && at.x > 0) s->points[s->n++] = at;
    }
}

weft_status weft_report_sweep(weft_page *p, const weft_report_data *d) {
    if (d->n_rates < 2) return WEFT_OK;
    weft_page_heading(p, "Learning rates",
                      "The score at each learning rate that was tried: mean over seeds, and how "
                      "many of them finished.");
    int n = d->n_rates < RATES_MOST ? d->n_rates : RATES_MOST;
    weft_page_table_open(p, "variant");
    for (int i = 0; i < n; i++)
        weft_page_head(p, ">%g", d->rates[i]);
    EACH_VARIANT(v, d) {
        if (v->repeats) continue;
        weft_page_cell(p, "%s", v->label);
        for (int k = 0; k < n; k++) {
            int done, runs;
            weft_plot_point at = at_rate(v, d->rates[k], &done, &runs);
            const char *chosen = d->rates[k] == v->rate ? " chosen" : "";
            if (runs == 0)
                weft_page_cell(p, "%s", *chosen ? "taken over" : "not tried");
            else
                weft_page_cell(p, "%s (%d of %d)%s", weft_say_score(at.y), done, runs, chosen);
        }
    }
    if (d->minima) return WEFT_OK; /* which have a picture of their own */
    weft_plot_series *series;
    WEFT_TRY(weft_report_plot_series(p, d, d->n_rates, &series));
    EACH_VARIANT(v, d)
        if (!v->repeats) place_rates(v, &series[v->place]);
    static const char caption[] = "Score by learning rate: the mean over seeds, with a bar from "
                                  "the lowest to the highest of them.";
    weft_plot plot = plot_scores(d, WEFT_PLOT_MEASURED, "Score by learning rate", "learning rate",
                                 series, caption);
    weft_report_put_plots(p, d, json_array(), &plot, 1);
    return WEFT_OK;
}

static bool has_positions(const weft_report_variant *v) {
    EACH_RANGE(r, v->study)
        if (isfinite(weft_report_fact_mean(v, r->name))) return !v->repeats;
    return false;
}

/* A column for each range. */
static void open_table(weft_page *p, const weft_report_data *d) {
    weft_page_table_open(p, "variant");
    EACH_RANGE(r, d)
        weft_page_head(p, r->first == r->last ? ">%lld" : ">%lld–%lld", r->first, r->last);
}

weft_status weft_report_positions(weft_page *p, const weft_report_data *d) {
    if (!weft_report_count(d, has_positions)) return WEFT_OK;
    weft_page_heading(
        p, "Loss by position",
        "The held-out loss of the tokens at each position of a sequence, the mean over "
        "seeds: a later token has more to look back at.");
    weft_plot_series *series;
    WEFT_TRY(weft_report_plot_series(p, d, d->n_ranges, &series));
    EACH_VARIANT(v, d) {
        weft_plot_series *s = &series[v->place];
        if (v->repeats) continue;
        EACH_RANGE(r, d) {
            double loss = weft_report_fact_mean(v, r->name);
            double middle = sqrt((double)(r->first + 1) * (double)(r->last + 1));
            if (isfinite(loss)) s->points[s->n++] = (weft_plot_point){middle, loss, NAN, NAN};
        }
    }
    weft_plot plot =
        plot_scores(d, WEFT_PLOT_MEASURED, "held-out loss by position", "position in the sequence",
                    series, "Held-out loss by position in the sequence, the mean over seeds.");
    plot.y_label = "held-out loss";
    plot.y_unit = "nats per token";
    weft_report_put_plots(p, d, NULL, &plot, 1);
    open_table(p, d);
    EACH_VARIANT(v, d) {
        if (!has_positions(v)) continue;
        weft_page_cell(p, "%s", v->label);
        EACH_RANGE(r, d)
            weft_page_cell(p, "%s", weft_say_score(weft_report_fact_mean(v, r->name)));
    }
    /* Differences with their intervals; nothing where no variant has a baseline that has them
     * too. */
    int told = 0;
    EACH_VARIANT(v, d) {
        if (!weft_report_counts(v) || !has_positions(v) || !has_positions(v->baseline)) continue;
        if (told++ == 0) {
            weft_page_say(p,
                          "The differences from the baseline, seed by seed, with their %.0f%% "
                          "intervals:",
                          100 * WEFT_CONFIDENCE);
            open_table(p, d);
        }
        weft_page_cell(p, "%s against %s", v->label, v->baseline->label);
        EACH_RANGE(r, d) {
            weft_comparison c;
            WEFT_TRY(weft_report_compare_seeds(v, v->baseline, r->name, false, &c));
            weft_page_cell(p, "%s", weft_say_interval(&c));
        }
    }
    return WEFT_OK;
}

/* Where each variant does best over its learning rates: the parabola through its runs, its minimum, and how they are
 * drawn. study/minimum.c fits them. */
static bool has_minimum(const weft_report_variant *v) {
    return !v->repeats && isfinite(v->minimum.rate);
}

static weft_plot_point point_at(const weft_minimum *m, double rate) {
    return (weft_plot_point){rate, weft_minimum_at(m, rate), NAN, NAN};
}

weft_status weft_report_minima(weft_page *p, const weft_report_data *d) {
    if (!d->minima || !weft_report_count(d, has_minimum)) return WEFT_OK;
    weft_plot_series *series;
    WEFT_TRY(weft_report_plot_series(p, d, d->n_rates + CURVE, &series));
    EACH_VARIANT(v, d) {
        const weft_minimum *m = &v->minimum;
        weft_plot_series *s = &series[v->place];
        if (!has_minimum(v)) continue;
        place_rates(v, s);
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
        "factor of two of the best rate; the ring is its minimum, at which variants are compared.";
    weft_plot plot = plot_scores(d, WEFT_PLOT_POINTS, "Minima over the learning rates",
                                 "learning rate", series, caption);
    weft_report_put_plots(p, d, json_array(), &plot, 1);
    static const char *const edges[] = {"at the lowest rate", "between the rates",
                                        "at the highest rate"};
    weft_page_table_open(p, "variant|>minimum|>at learning rate|>fitted from|>to|where it is");
    EACH_VARIANT(v, d) {
        const weft_minimum *m = &v->minimum;
        if (!has_minimum(v)) continue;
        weft_page_cells(p, v->label, weft_say_score(m->score), weft_say("%.3g", m->rate),
                        weft_say("%.3g", m->first), weft_say("%.3g", m->last), edges[m->edge + 1]);
    }
    return WEFT_OK;
}

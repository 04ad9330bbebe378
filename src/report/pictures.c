/* Score against cost with the Pareto front, and the sweep of learning rates. */
#include "base/order.h"
#include "report/plot.h"
#include "report/sections.h"

#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RATES_MOST = 24, NAMES_ROOM = 400 };

/* The unit of the score; NULL: it has none. */
static const char *score_unit(const weft_report_data *d) {
    return d->higher_is_better ? NULL : "nats per token";
}

static weft_plot_series *make_series(const weft_report_data *d) {
    weft_plot_series *series = calloc((size_t)d->n_variants + 1, sizeof *series);
    for (int i = 0; series && i < d->n_variants; i++) {
        series[i].label = weft_variant_label(d, i);
        series[i].style = i;
    }
    return series;
}

static void free_series(weft_plot_series *series, int n) {
    for (int i = 0; series && i < n; i++)
        free(series[i].points);
    free(series);
}

static void put_picture(weft_page *p, const weft_plot *plot, const char *caption) {
    char *svg;
    if (weft_plot_svg(plot, ++p->pictures, &svg) != WEFT_OK) svg = NULL;
    weft_page_picture(p, svg, "%c%s", toupper((unsigned char)*caption), caption + 1);
    free(svg);
}

static void set_number(json_t *object, const char *key, double value) {
    if (isfinite(value)) json_object_set_new(object, key, json_real(value));
}

static json_t *point_json(weft_plot_point at) {
    json_t *point = json_object();
    set_number(point, "x", at.x);
    set_number(point, "y", at.y);
    set_number(point, "low", at.low);
    set_number(point, "high", at.high);
    return point;
}

/* A picture of points as charts.js takes it. */
static json_t *chart_json(const weft_plot *plot, const char *caption) {
    static const char *const units[] = {"count", "seconds", "bytes"};
    json_t *sets = json_array(), *front = json_array();
    for (int s = 0; s < plot->n_series; s++) {
        json_t *at = json_array();
        for (int i = 0; i < plot->series[s].n; i++)
            json_array_append_new(at, point_json(plot->series[s].points[i]));
        if (plot->series[s].n)
            json_array_append_new(sets, json_pack("{s:i, s:o, s:b}", "series", s, "at", at, "join",
                                                  plot->kind == WEFT_PLOT_MEASURED));
        else
            json_decref(at);
    }
    for (int i = 0; i < plot->n_front; i++)
        json_array_append_new(front, json_pack("[f, f]", plot->front[i].x, plot->front[i].y));
    char title[200];
    snprintf(title, sizeof title, "%s", plot->title);
    *title = (char)toupper((unsigned char)*title);
    json_t *chart = json_pack("{s:o, s:o, s:{s:s, s:s}, s:o, s:o, s:b, s:o}", "title",
                              weft_page_json(title), "label", weft_page_json(plot->y_label), "x",
                              "label", plot->x_label, "unit", units[plot->x_unit], "points", sets,
                              "front", front, "log", plot->log_x, "note", weft_page_json(caption));
    if (plot->y_unit) json_object_set_new(chart, "unit", json_string(plot->y_unit));
    return chart;
}

static json_t *group_json(const weft_report_data *d, json_t *charts) {
    return json_pack("{s:[], s:o, s:o}", "x", "series", weft_report_series(d), "charts", charts);
}

static bool any_finished(const weft_report_data *d) {
    for (int i = 0; i < d->n_variants; i++)
        if (d->variants[i].done > 0) return true;
    return false;
}

static double parameters_of(const weft_report_variant *s) {
    return s->parameters;
}

static double cache_of(const weft_report_variant *s) {
    return s->cache_bytes;
}

static double flops_of(const weft_report_variant *s) {
    return s->flops;
}

static double memory_of(const weft_report_variant *s) {
    return s->memory;
}

static double seconds_of(const weft_report_variant *s) {
    return s->seconds;
}

static const struct {
    const char *name;
    weft_unit unit;
    double (*of)(const weft_report_variant *s);
} costs[] = {{"parameters", WEFT_UNIT_COUNT, parameters_of},
             {"FLOPs per token", WEFT_UNIT_COUNT, flops_of},
             {"cache per token", WEFT_UNIT_BYTES, cache_of},
             {"measured memory", WEFT_UNIT_BYTES, memory_of},
             {"time per run", WEFT_UNIT_SECONDS, seconds_of}};
enum { COSTS = sizeof costs / sizeof costs[0] };

/* Whether no other variant costs no more and scores no less, one of them truly. A variant that leaks has
 * no score worth the name; a repeat is the same point again. */
static bool counts_in_front(const weft_report_variant *s, double cost) {
    return isfinite(s->mean) && isfinite(cost) && !s->leaks && s->repeats < 0;
}

static bool is_in_front(const weft_report_data *d, int place,
                        double (*cost)(const weft_report_variant *)) {
    const weft_report_variant *s = &d->variants[place];
    double x = cost(s), sign = d->higher_is_better ? -1 : 1, y = sign * s->mean;
    if (!counts_in_front(s, x)) return false;
    for (int i = 0; i < d->n_variants; i++) {
        double other_x = cost(&d->variants[i]), other_y = sign * d->variants[i].mean;
        if (i == place || !counts_in_front(&d->variants[i], other_x)) continue;
        bool no_worse = other_x <= x && other_y <= y;
        if (no_worse && (other_x < x || other_y < y || i < place)) return false;
    }
    return true;
}

static int by_x(const void *a, const void *b) {
    const weft_plot_point *left = a, *right = b;
    return weft_order(left->x, right->x);
}

/* Points, the front through them and the names on it; returns how many points there are. */
static int place_points(const weft_report_data *d, double (*cost)(const weft_report_variant *),
                        weft_plot_series *series, weft_plot_point *front, int *n_front,
                        char *names) {
    int points = 0;
    size_t used = 0;
    *names = '\0';
    for (int i = 0; i < d->n_variants; i++) {
        const weft_report_variant *s = &d->variants[i];
        series[i].n = isfinite(s->mean) && isfinite(cost(s)) && s->repeats < 0;
        if (!series[i].n) continue;
        *series[i].points = (weft_plot_point){cost(s), s->mean, s->least, s->most};
        points++;
        if (!is_in_front(d, i, cost)) continue;
        front[(*n_front)++] = *series[i].points;
        if (used < NAMES_ROOM)
            used += (size_t)snprintf(names + used, NAMES_ROOM - used, "%s%.40s", used ? ", " : "",
                                     weft_variant_label(d, i));
    }
    qsort(front, (size_t)*n_front, sizeof *front, by_x);
    return points;
}

/* What one cost's picture needs, kept until both forms of it are made. */
typedef struct {
    weft_plot plot;
    weft_plot_series *series;
    weft_plot_point *front;
    char title[200], caption[NAMES_ROOM + 400];
} cost_picture;

static void free_picture(cost_picture *c, int n) {
    free_series(c->series, n);
    free(c->front);
}

static weft_status make_picture(const weft_report_data *d, int cost, cost_picture *c) {
    char names[NAMES_ROOM];
    int n_front = 0;
    c->series = make_series(d);
    c->front = calloc((size_t)d->n_variants + 1, sizeof *c->front);
    bool memory = c->series && c->front;
    for (int i = 0; i < d->n_variants && memory; i++)
        memory = (c->series[i].points = calloc(1, sizeof *c->series[i].points)) != NULL;
    if (!memory) return weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
    if (place_points(d, costs[cost].of, c->series, c->front, &n_front, names) == 0) return WEFT_OK;
    snprintf(c->title, sizeof c->title, "%.100s against %s", d->score_name, costs[cost].name);
    snprintf(c->caption, sizeof c->caption,
             "On the Pareto front, variants that no other beats on both: %s.",
             *names ? names : "none");
    c->plot = (weft_plot){.kind = WEFT_PLOT_POINTS,
                          .title = c->title,
                          .x_label = costs[cost].name,
                          .x_unit = costs[cost].unit,
                          .y_label = d->score_name,
                          .y_unit = score_unit(d),
                          .series = c->series,
                          .n_series = d->n_variants,
                          .front = c->front,
                          .n_front = n_front,
                          .top = NAN};
    return WEFT_OK;
}

static void put_fronts(weft_page *p, const weft_report_data *d, const cost_picture *pictures) {
    json_t *charts = json_array();
    for (int i = 0; i < COSTS; i++)
        if (pictures[i].plot.title)
            json_array_append_new(charts, chart_json(&pictures[i].plot, pictures[i].caption));
    weft_page_heading(
        p, "Score against cost",
        d->higher_is_better
            ? "What a score costs: up and to the left is better. The mean over "
              "seeds, with a bar from the lowest to the highest. The dashed line is the "
              "Pareto front; it goes by the means alone, and variants on it may differ "
              "by chance."
            : "What a score costs: down and to the left is better. The mean over "
              "seeds, with a bar from the lowest to the highest. The dashed line is the "
              "Pareto front; it goes by the means alone, and variants on it may differ "
              "by chance.");
    weft_page_pictures_open(p, group_json(d, charts));
    for (int i = 0; i < COSTS; i++) {
        char caption[NAMES_ROOM + 700];
        if (!pictures[i].plot.title) continue;
        snprintf(caption, sizeof caption, "%s. %s", pictures[i].title, pictures[i].caption);
        put_picture(p, &pictures[i].plot, caption);
    }
    weft_page_pictures_close(p);
}

weft_status weft_report_fronts(weft_page *p, const weft_report_data *d) {
    if (!any_finished(d)) return WEFT_OK;
    cost_picture *pictures = calloc(COSTS, sizeof *pictures);
    weft_status status =
        pictures ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
    for (int i = 0; i < COSTS && status == WEFT_OK; i++)
        status = make_picture(d, i, &pictures[i]);
    if (status == WEFT_OK) put_fronts(p, d, pictures);
    for (int i = 0; i < COSTS && pictures; i++)
        free_picture(&pictures[i], d->n_variants);
    free(pictures);
    return status;
}

/* The mean score of a variant at each rate where some seed finished. */
static weft_plot_point sweep_point(const weft_report_data *d, int variant, double rate, int *done,
                                   int *runs) {
    weft_plot_point at = {rate, 0, NAN, NAN};
    *done = *runs = 0;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant != variant || run->rate != rate) continue;
        if (run->chooses != (d->rate_seed >= 0)) continue;
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

static void sweep_table(weft_page *p, const weft_report_data *d) {
    const char *heads[RATES_MOST + 2] = {"variant"};
    char texts[RATES_MOST][32];
    int n = d->n_rates < RATES_MOST ? d->n_rates : RATES_MOST;
    for (int i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], ">%g", d->rates[i]);
        heads[i + 1] = texts[i];
    }
    heads[n + 1] = NULL;
    weft_page_table_open(p, heads);
    for (int i = 0; i < d->n_variants; i++) {
        if (d->variants[i].repeats >= 0) continue;
        weft_page_cell(p, "%s", weft_variant_label(d, i));
        for (int k = 0; k < n; k++) {
            int done, runs;
            weft_words room;
            weft_plot_point at = sweep_point(d, i, d->rates[k], &done, &runs);
            const char *chosen = d->rates[k] == d->variants[i].rate ? " chosen" : "";
            if (runs == 0)
                weft_page_cell(p, "%s", *chosen ? "taken over" : "not tried");
            else
                weft_page_cell(p, "%s (%d of %d)%s", weft_say_score(at.y, &room), done, runs,
                               chosen);
        }
    }
    weft_page_table_close(p);
}

weft_status weft_report_sweep(weft_page *p, const weft_report_data *d) {
    if (d->n_rates < 2) return WEFT_OK;
    weft_plot_series *series = make_series(d);
    bool memory = series != NULL;
    for (int i = 0; i < d->n_variants && memory; i++) {
        series[i].points = calloc((size_t)d->n_rates, sizeof *series[i].points);
        memory = series[i].points != NULL;
        for (int k = 0; k < d->n_rates && memory; k++) {
            int done, runs;
            weft_plot_point at = sweep_point(d, i, d->rates[k], &done, &runs);
            if (done && at.x > 0 && d->variants[i].repeats < 0)
                series[i].points[series[i].n++] = at;
        }
    }
    if (memory) {
        weft_page_heading(
            p, "Learning rates",
            "The score at each learning rate that was tried: mean over seeds, and how "
            "many of them finished.");
        sweep_table(p, d);
        weft_plot plot = {.kind = WEFT_PLOT_MEASURED,
                          .title = "score by learning rate",
                          .x_label = "learning rate",
                          .y_label = d->score_name,
                          .y_unit = score_unit(d),
                          .log_x = true,
                          .series = series,
                          .n_series = d->n_variants,
                          .top = NAN};
        static const char caption[] =
            "Score by learning rate: the mean over seeds, with a bar from "
            "the lowest to the highest of them.";
        json_t *charts = json_array();
        json_array_append_new(charts, chart_json(&plot, caption));
        weft_page_pictures_open(p, group_json(d, charts));
        put_picture(p, &plot, caption);
        weft_page_pictures_close(p);
    }
    free_series(series, d->n_variants);
    return memory ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
}

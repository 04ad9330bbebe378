/* The pictures: loss curves, score against cost with the Pareto front, and the sweep of learning
 * rates.
 *
 * A long run has more training steps than a screen has dots, so a curve is cut into BUCKETS equal
 * parts of its length; each run gives the mean of its numbers in a part, and over the runs go the
 * line (mean) and the band (least to most). */
#include "study/plot.h"
#include "study/report_sections.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 120, EARLY_PERCENT = 20, RATES_MOST = 24, NAMES_ROOM = 400 };

typedef struct {
    double x, mean, least, most; /* sums over the runs, until they are divided */
    int runs;
    double sum, at; /* of the run being read */
    int n;
} bucket;

/* Ends a run: its means go into the buckets. */
static void close_run(bucket *buckets) {
    for (int i = 0; i < BUCKETS; i++) {
        bucket *b = &buckets[i];
        if (b->n) {
            double mean = b->sum / b->n;
            b->x += b->at / b->n;
            b->mean += mean;
            b->least = b->runs ? fmin(b->least, mean) : mean;
            b->most = b->runs ? fmax(b->most, mean) : mean;
            b->runs++;
        }
        b->sum = b->at = 0;
        b->n = 0;
    }
}

static weft_status read_run(const weft_report_data *d, const weft_report_run *run,
                            const char *column, double iters, bucket *buckets) {
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT step, %s FROM metrics WHERE run = ?1 ORDER BY step", column);
    sqlite3_stmt *s;
    bool there;
    WEFT_TRY(weft_database_ask(d->database, &s, sql, "i", run->id));
    weft_status status = weft_database_next(d->database, s, &there);
    while (status == WEFT_OK && there) {
        double step = sqlite3_column_double(s, 0), value = weft_column_number(s, 1);
        if (isfinite(value) && step >= 0) {
            bucket *b = &buckets[(int)fmin(step / iters * BUCKETS, BUCKETS - 1)];
            b->sum += value;
            b->at += step;
            b->n++;
        }
        status = weft_database_next(d->database, s, &there);
    }
    weft_database_end(s);
    close_run(buckets);
    return status;
}

/* The longest run of all, in training steps. */
static double most_iters(const weft_report_data *d) {
    double most = 1;
    for (int i = 0; i < d->n_runs; i++)
        most = fmax(most, d->runs[i].iters);
    return most;
}

static weft_status read_curve(const weft_report_data *d, int step, const char *column, double iters,
                              weft_plot_series *series) {
    bucket *buckets = calloc(BUCKETS, sizeof *buckets);
    series->points = calloc(BUCKETS, sizeof *series->points);
    weft_status status = buckets && series->points
                             ? WEFT_OK
                             : weft_fail(WEFT_ENOMEM, "report: no memory for a curve");
    for (int i = 0; i < d->n_runs && status == WEFT_OK; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->step == step && run->rate == d->steps[step].rate && run->finished && !run->chooses)
            status = read_run(d, run, column, iters, buckets);
    }
    for (int i = 0; i < BUCKETS && status == WEFT_OK; i++) {
        const bucket *b = &buckets[i];
        if (!b->runs) continue;
        series->points[series->n++] =
            (weft_plot_point){b->x / b->runs, b->mean / b->runs, b->least, b->most};
    }
    free(buckets);
    return status;
}

static weft_plot_series *make_series(const weft_report_data *d) {
    weft_plot_series *series = calloc((size_t)d->n_steps + 1, sizeof *series);
    for (int i = 0; series && i < d->n_steps; i++) {
        series[i].label = d->steps[i].name;
        series[i].style = i;
        series[i].under = d->steps[i].repeats >= 0;
    }
    return series;
}

static void free_series(weft_plot_series *series, int n) {
    for (int i = 0; series && i < n; i++)
        free(series[i].points);
    free(series);
}

/* The first steps fall from far above, and would press all that follows flat: where they do, the
 * picture is cut above what comes after them. NaN: it is not. */
static double find_top(const weft_plot_series *series, int n, double iters) {
    double most = -INFINITY, late = -INFINITY, least = INFINITY;
    for (int s = 0; s < n; s++) {
        for (int i = 0; i < series[s].n; i++) {
            weft_plot_point at = series[s].points[i];
            most = fmax(most, at.high);
            least = fmin(least, at.low);
            if (at.x >= iters * EARLY_PERCENT / 100) late = fmax(late, at.high);
        }
    }
    return late > least && most - least > 1.5 * (late - least) ? late : NAN;
}

static void put_picture(weft_page *p, const weft_plot *plot, const char *caption) {
    char *svg;
    if (weft_plot_svg(plot, ++p->pictures, &svg) != WEFT_OK) svg = NULL;
    weft_page_picture(p, svg, "%c%s", toupper((unsigned char)*caption), caption + 1);
    free(svg);
}

static weft_status draw_curve(weft_page *p, const weft_report_data *d, const char *name,
                              const char *column, bool falls) {
    weft_plot_series *series = make_series(d);
    double iters = most_iters(d);
    weft_status status =
        series ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for its curves");
    int points = 0;
    for (int i = 0; i < d->n_steps && status == WEFT_OK; i++) {
        status = read_curve(d, i, column, iters, &series[i]);
        points += series[i].n;
    }
    if (status == WEFT_OK && points) {
        weft_plot plot = {.kind = WEFT_PLOT_CURVES,
                          .title = name,
                          .x_label = "training steps",
                          .y_label = name,
                          .series = series,
                          .n_series = d->n_steps,
                          .top = falls ? find_top(series, d->n_steps, iters) : NAN};
        char caption[400];
        snprintf(caption, sizeof caption,
                 "%.120s by training step: the mean over seeds, and a band from the least to the "
                 "most of them.%s",
                 name,
                 isnan(plot.top) ? ""
                                 : " The first steps are higher than the picture and are cut off.");
        put_picture(p, &plot, caption);
    }
    free_series(series, d->n_steps);
    return status;
}

static bool any_finished(const weft_report_data *d) {
    for (int i = 0; i < d->n_steps; i++)
        if (d->steps[i].done > 0) return true;
    return false;
}

weft_status weft_report_curves(weft_page *p, const weft_report_data *d) {
    if (!any_finished(d)) return WEFT_OK;
    weft_page_heading(
        p, "How they learned",
        "The loss as training went on, one line per step, at the step's learning rate.");
    weft_page_pictures_open(p);
    WEFT_TRY(draw_curve(p, d, "training loss", "ifnull(cross_entropy, loss)", true));
    WEFT_TRY(draw_curve(p, d, "held-out loss", "val_loss", true));
    if (d->higher_is_better) WEFT_TRY(draw_curve(p, d, d->score_name, "metric_value", false));
    weft_page_pictures_close(p);
    return WEFT_OK;
}

static double parameters_of(const weft_report_step *s) {
    return s->parameters;
}

static double cache_of(const weft_report_step *s) {
    return s->cache_bytes;
}

static double flops_of(const weft_report_step *s) {
    return s->flops;
}

/* Whether no other step costs no more and scores no less, one of them truly. A step that leaks has
 * no score worth the name; a repeat is the same point again. */
static bool counts_in_front(const weft_report_step *s, double cost) {
    return isfinite(s->mean) && isfinite(cost) && !s->leaks && s->repeats < 0;
}

static bool is_in_front(const weft_report_data *d, int place,
                        double (*cost)(const weft_report_step *)) {
    const weft_report_step *s = &d->steps[place];
    double x = cost(s), sign = d->higher_is_better ? -1 : 1, y = sign * s->mean;
    if (!counts_in_front(s, x)) return false;
    for (int i = 0; i < d->n_steps; i++) {
        double other_x = cost(&d->steps[i]), other_y = sign * d->steps[i].mean;
        if (i == place || !counts_in_front(&d->steps[i], other_x)) continue;
        bool no_worse = other_x <= x && other_y <= y;
        if (no_worse && (other_x < x || other_y < y || i < place)) return false;
    }
    return true;
}

static int by_x(const void *a, const void *b) {
    const weft_plot_point *left = a, *right = b;
    return (left->x > right->x) - (left->x < right->x);
}

/* Points, the front through them and the names on it; returns how many points there are. */
static int place_points(const weft_report_data *d, double (*cost)(const weft_report_step *),
                        weft_plot_series *series, weft_plot_point *front, int *n_front,
                        char *names) {
    int points = 0;
    size_t used = 0;
    *names = '\0';
    for (int i = 0; i < d->n_steps; i++) {
        const weft_report_step *s = &d->steps[i];
        series[i].n = isfinite(s->mean) && isfinite(cost(s));
        if (!series[i].n) continue;
        *series[i].points = (weft_plot_point){cost(s), s->mean, s->least, s->most};
        points++;
        if (!is_in_front(d, i, cost)) continue;
        front[(*n_front)++] = *series[i].points;
        if (used < NAMES_ROOM)
            used += (size_t)snprintf(names + used, NAMES_ROOM - used, "%s%.40s", used ? ", " : "",
                                     s->name);
    }
    qsort(front, (size_t)*n_front, sizeof *front, by_x);
    return points;
}

static void draw_front(weft_page *p, const weft_report_data *d, weft_plot_series *series,
                       weft_plot_point *front, const char *name,
                       double (*cost)(const weft_report_step *)) {
    char names[NAMES_ROOM], caption[NAMES_ROOM + 400], title[200];
    int n_front = 0;
    if (place_points(d, cost, series, front, &n_front, names) == 0) return;
    snprintf(title, sizeof title, "%.100s against %s", d->score_name, name);
    weft_plot plot = {.kind = WEFT_PLOT_POINTS,
                      .title = title,
                      .x_label = name,
                      .y_label = d->score_name,
                      .series = series,
                      .n_series = d->n_steps,
                      .front = front,
                      .n_front = n_front,
                      .top = NAN};
    snprintf(caption, sizeof caption,
             "%s: the mean over seeds, with a bar from the least to the most. The dashed line is "
             "the Pareto front, steps that no other beats on both: %s.",
             title, *names ? names : "none");
    put_picture(p, &plot, caption);
}

weft_status weft_report_fronts(weft_page *p, const weft_report_data *d) {
    if (!any_finished(d)) return WEFT_OK;
    weft_plot_series *series = make_series(d);
    weft_plot_point *front = calloc((size_t)d->n_steps + 1, sizeof *front);
    bool memory = series && front;
    for (int i = 0; i < d->n_steps && memory; i++)
        memory = (series[i].points = calloc(1, sizeof *series[i].points)) != NULL;
    if (memory) {
        weft_page_heading(p, "Score against cost",
                          d->higher_is_better
                              ? "What a score costs: up and to the left is better. The front goes "
                                "by the means alone; steps on it may differ by chance."
                              : "What a score costs: down and to the left is better. The front "
                                "goes by the means alone; steps on it may differ by chance.");
        weft_page_pictures_open(p);
        draw_front(p, d, series, front, "parameters", parameters_of);
        draw_front(p, d, series, front, "cache bytes per token", cache_of);
        draw_front(p, d, series, front, "FLOPs per token", flops_of);
        weft_page_pictures_close(p);
    }
    free_series(series, d->n_steps);
    free(front);
    return memory ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
}

/* The mean score of a step at each rate where some seed finished. */
static weft_plot_point sweep_point(const weft_report_data *d, int step, double rate, int *done,
                                   int *runs) {
    weft_plot_point at = {rate, 0, NAN, NAN};
    *done = *runs = 0;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->step != step || run->rate != rate) continue;
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
    const char *heads[RATES_MOST + 2] = {"step"};
    char texts[RATES_MOST][32];
    int n = d->n_rates < RATES_MOST ? d->n_rates : RATES_MOST;
    for (int i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], ">%g", d->rates[i]);
        heads[i + 1] = texts[i];
    }
    heads[n + 1] = NULL;
    weft_page_table_open(p, heads);
    for (int i = 0; i < d->n_steps; i++) {
        weft_page_cell(p, "%s", d->steps[i].name);
        for (int k = 0; k < n; k++) {
            int done, runs;
            weft_words room;
            weft_plot_point at = sweep_point(d, i, d->rates[k], &done, &runs);
            weft_page_cell(p, "%s (%d of %d)%s", weft_say_score(at.y, &room), done, runs,
                           d->rates[k] == d->steps[i].rate ? " chosen" : "");
        }
    }
    weft_page_table_close(p);
}

weft_status weft_report_sweep(weft_page *p, const weft_report_data *d) {
    if (d->n_rates < 2) return WEFT_OK;
    weft_plot_series *series = make_series(d);
    bool memory = series != NULL;
    for (int i = 0; i < d->n_steps && memory; i++) {
        series[i].points = calloc((size_t)d->n_rates, sizeof *series[i].points);
        memory = series[i].points != NULL;
        for (int k = 0; k < d->n_rates && memory; k++) {
            int done, runs;
            weft_plot_point at = sweep_point(d, i, d->rates[k], &done, &runs);
            if (done && at.x > 0) series[i].points[series[i].n++] = at;
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
                          .log_x = true,
                          .series = series,
                          .n_series = d->n_steps,
                          .top = NAN};
        weft_page_pictures_open(p);
        put_picture(p, &plot,
                    "Score by learning rate: the mean over seeds, with a bar from the "
                    "least to the most of them.");
        weft_page_pictures_close(p);
    }
    free_series(series, d->n_steps);
    return memory ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
}

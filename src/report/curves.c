/* The curves: each loss as training went on, and its difference from the baseline's beside it.
 *
 * A long run has more training steps than a screen has dots, so a curve is cut into BUCKETS equal
 * parts of its length; each run gives the mean of its numbers in a part. The page's script gets every
 * run; the static picture shows, over the runs, their mean and a band from the lowest to the highest. */
#include "base/json.h"
#include "report/sections.h"

#include <ctype.h>
#include <math.h>

enum { BUCKETS = 120, EARLY_PERCENT = 20, RUNS_MOST = 64 };

typedef struct {
    double step, value, seconds;
    int n;
} bucket;

typedef struct {
    int64_t seed;
    bucket at[BUCKETS];
} curve_run;

/* The runs of a variant, at its learning rate. */
typedef struct {
    curve_run *runs;
    int n;
} curve;

typedef struct {
    const char *name, *column, *unit;
    bool falls; /* from far above: the first steps may be cut off */
} subject;

/* The longest run of all, in training steps. */
static double most_iters(const weft_report_data *d) {
    double most = 1;
    EACH_RUN(run, d)
        most = fmax(most, run->iters);
    return most;
}

/* Time is what the tokens took at the speed logged; a row without one takes none. */
static weft_status read_run(const weft_report_data *d, const weft_report_run *run,
                            const char *column, double iters, curve_run *out) {
    const char *sql =
        weft_say("SELECT step, %s, tokens_per_s FROM metrics WHERE run = ?1 ORDER BY step", column);
    double before = 0, seconds = 0, tokens = run->variant->tokens / run->variant->iters;
    EACH_ROW(s, d->database, sql, "i", run->id) {
        double step = sqlite3_column_double(s, 0), value = weft_column_number(s, 1);
        double took = (step - before) * tokens / weft_column_number(s, 2);
        before = step;
        if (isfinite(took) && took > 0) seconds += took;
        if (isfinite(value) && step >= 0) {
            bucket *b = &out->at[(int)fmin(step / iters * BUCKETS, BUCKETS - 1)];
            b->value += value;
            b->step += step;
            b->seconds += seconds;
            b->n++;
        }
    }
    weft_status status = weft_database_end(d->database);
    for (int i = 0; i < BUCKETS; i++) {
        bucket *b = &out->at[i];
        if (!b->n) continue;
        b->value /= b->n, b->step /= b->n, b->seconds /= b->n;
    }
    return status;
}

static const curve_run *run_of(const curve *c, int64_t seed) {
    for (int i = 0; i < c->n; i++)
        if (c->runs[i].seed == seed) return &c->runs[i];
    return NULL;
}

/* Mean and band of a variant's runs, of what `base` has beside them subtracted; NULL: as they are. */
static void sum_up(const curve *c, const curve *base, weft_plot_series *series) {
    for (int k = 0; k < BUCKETS; k++) {
        weft_plot_point at = {0, 0, NAN, NAN};
        int n = 0;
        for (int i = 0; i < c->n; i++) {
            const curve_run *other = base ? run_of(base, c->runs[i].seed) : NULL;
            const bucket *b = &c->runs[i].at[k];
            if (!b->n || (base && (!other || !other->at[k].n))) continue;
            double value = b->value - (base ? other->at[k].value : 0);
            at.x += b->step;
            at.y += value;
            at.low = fmin(at.low, value);
            at.high = fmax(at.high, value);
            n++;
        }
        if (!n) continue;
        at.x /= n, at.y /= n;
        series->points[series->n++] = at;
    }
}

/* Every run, as charts.js takes it. */
static json_t *lines_json(const weft_report_data *d, const curve *curves) {
    json_t *lines = json_array();
    EACH_VARIANT(v, d) {
        const curve *c = &curves[v->place];
        double tokens = v->tokens / v->iters, flops = tokens * v->flops;
        json_t *runs = json_array();
        for (const curve_run *run = c->runs; run - c->runs < c->n; run++) {
            json_t *step = json_array(), *seconds = json_array(), *y = json_array();
            for (const bucket *b = run->at; b < run->at + BUCKETS; b++) {
                if (!b->n) continue;
                json_array_append_new(step, json_real(b->step));
                json_array_append_new(seconds, json_real(b->seconds));
                json_array_append_new(y, json_real(b->value));
            }
            json_t *x = weft_json_make("step:o seconds:o tokens:f flops:f", step, seconds,
                                       isfinite(tokens) ? tokens : 0, isfinite(flops) ? flops : 0);
            weft_json_append(runs, "name:s x:o y:o", weft_say("seed %lld", (long long)run->seed), x,
                             y);
        }
        if (c->n) weft_json_append(lines, "series:i runs:O", v->place, runs);
        json_decref(runs);
    }
    return lines;
}

/* One of a subject's two pictures: the plain curves, or their differences. */
static weft_status make_picture(weft_page *p, const weft_report_data *d, const curve *curves,
                                json_t *lines, const subject *of, bool difference, weft_plot *out) {
    weft_plot_series *series;
    WEFT_TRY(weft_report_plot_series(p, d, BUCKETS, &series));
    for (int i = 0; i < d->n_variants; i++) {
        const weft_report_variant *base = d->variants[i].baseline;
        if (!difference || base)
            sum_up(&curves[i], difference ? &curves[base->place] : NULL, &series[i]);
    }
    /* The first steps fall from far above, and would press all that follows flat: where they do, the
     * picture is cut above what comes after them. */
    double most = -INFINITY, late = -INFINITY, least = INFINITY;
    double early = most_iters(d) * EARLY_PERCENT / 100;
    for (int s = 0; s < d->n_variants; s++)
        for (int i = 0; i < series[s].n; i++) {
            weft_plot_point at = series[s].points[i];
            most = fmax(most, at.high);
            least = fmin(least, at.low);
            if (at.x >= early) late = fmax(late, at.high);
        }
    bool cut = late > least && most - least > 1.5 * (late - least) && of->falls && !difference;
    char *title =
        weft_page_keep(p, difference ? "%.120s minus the baseline's" : "%.120s", of->name);
    if (!title) return weft_fail(WEFT_ENOMEM, "report: no memory for a curve");
    *title = (char)toupper((unsigned char)*title);
    *out = (weft_plot){
        .kind = WEFT_PLOT_CURVES,
        .title = title,
        .x_label = "training step",
        .y_label = difference ? "difference" : of->name,
        .y_unit = of->unit,
        .zero = difference,
        .rises = !of->falls,
        .series = series,
        .n_series = d->n_variants,
        .lines = lines,
        .top = cut ? late : NAN,
        .caption = weft_page_keep(
            p,
            "%s by training step: the mean over seeds, and a band from the lowest seed to the "
            "highest.%s",
            title, cut ? " The first training steps are higher than the picture." : ""),
        .note = difference ? "Below 0 is lower than the baseline's, seed by seed." : NULL};
    return WEFT_OK;
}

static weft_status put_subject(weft_page *p, const weft_report_data *d, const subject *of) {
    curve *curves = weft_page_room(p, ((size_t)d->n_variants + 1) * sizeof *curves);
    weft_plot plots[2];
    if (!curves) return weft_fail(WEFT_ENOMEM, "report: no memory for a curve");
    int most = d->n_seeds < RUNS_MOST ? d->n_seeds : RUNS_MOST;
    bool compared = false;
    EACH_VARIANT(v, d) {
        curve *own = &curves[v->place];
        if (v->repeats) continue; /* their lines would lie upon those they repeat */
        own->runs = weft_page_room(p, (size_t)most * sizeof *own->runs);
        if (!own->runs) return weft_fail(WEFT_ENOMEM, "report: no memory for a curve");
        EACH_RUN_OF(run, v) {
            if (own->n == most || !weft_report_run_counts(run)) continue;
            own->runs[own->n].seed = run->seed;
            WEFT_TRY(read_run(d, run, of->column, most_iters(d), &own->runs[own->n++]));
        }
    }
    EACH_VARIANT(v, d)
        compared |= v->baseline && curves[v->place].n && curves[v->baseline->place].n;
    WEFT_AUTO_DECREF json_t *lines = lines_json(d, curves);
    for (int i = 0; i < 2; i++)
        WEFT_TRY(make_picture(p, d, curves, lines, of, i, &plots[i]));
    if (weft_plot_count(&plots[0]) == 0) return WEFT_OK;
    json_t *axes = json_array();
    weft_json_append(axes, "key:s label:s", "step", "training step");
    weft_json_append(axes, "key:s label:s", "tokens", "tokens");
    weft_json_append(axes, "key:s label:s", "flops", "FLOPs, counted");
    weft_json_append(axes, "key:s label:s unit:s", "seconds", "training time", "seconds");
    weft_report_put_plots(p, d, axes, plots, compared ? 2 : 1);
    return WEFT_OK;
}

weft_status weft_report_curves(weft_page *p, const weft_report_data *d) {
    static const char nats[] = "nats per token";
    const subject subjects[] = {{"held-out loss", "val_loss", nats, true},
                                {"training loss", "ifnull(cross_entropy, loss)", nats, true},
                                {d->score_name, "metric_value", NULL, false}};
    if (!weft_report_count(d, weft_report_is_finished)) return WEFT_OK;
    bool alone = d->n_runs == 1;
    weft_page_heading(
        p, alone ? "How it learned" : "How they learned",
        alone
            ? "Each loss as training went on. Point at a line for its values."
            : "Each loss as training went on, at each variant's learning rate, and beside it the "
              "difference from the baseline. A line is the mean over seeds; the band goes from the "
              "lowest seed to the highest and is no confidence interval. Point at a line for its "
              "values and single seeds; click a name to colour it.");
    if (weft_report_count(d, weft_report_is_repeat))
        weft_page_line(p, "about",
                       "Repeats are in no picture: their curves lie on those of the variants that "
                       "they repeat. The folded section on repeats says whether they do.");
    if (d->higher_is_better) WEFT_TRY(put_subject(p, d, &subjects[2]));
    WEFT_TRY(put_subject(p, d, &subjects[0]));
    return put_subject(p, d, &subjects[1]);
}

/* How the score follows from the size: power laws, score = factor x^power, which are lines in the logarithms.
 *
 * Variants against plain models of several sizes (STUDY_YARDSTICK): what a plain model of the same parameters,
 * or of the same operations, would score. A variant's mean stands off the law through the plain models' runs by a
 * difference whose interval holds the spread of the runs around the line, how well the line is known at that size,
 * and how many runs the variant has: t s √(1/m + 1/n + (x − x̄)² / Σ(x_i − x̄)²), with n − 2 degrees of freedom.
 *
 * And a law over finished runs of any studies (weft runs --fit): each is a point, each variant at the rate
 * chosen for it, so the interval of the power holds what seeds do as well as what the law does not explain. There is no
 * floor that the score tends to: a few sizes do not tell one from a smaller power. */
#include "base/json.h"
#include "base/text.h"
#include "config/config.h"
#include "report/report.h"
#include "report/sections.h"

#include <math.h>

static const struct {
    const char *name, *title;
    size_t at; /* of a variant */
} measures[] = {{"parameters", "parameters", offsetof(weft_report_variant, parameters)},
                {"flops", "FLOPs", offsetof(weft_report_variant, work)},
                {"tokens", "tokens", offsetof(weft_report_variant, tokens)},
                {"cache_bytes", "bytes", offsetof(weft_report_variant, cache_bytes)}};
enum { MEASURES = WEFT_COUNT(measures), YARDSTICKS = 2 /* the first of them */ };

/* Whether a list with commas, of so many letters, names a variant. */
static bool is_in(const char *list, size_t length, const char *name) {
    size_t n = strlen(name);
    for (size_t at = 0, end; at < length; at = end + 1) {
        end = at + strcspn(list + at, ",;");
        at += strspn(list + at, " \t");
        size_t last = end;
        while (last > at && strchr(" \t", list[last - 1]))
            last--;
        if (last - at == n && strncmp(list + at, name, n) == 0) return true;
    }
    return false;
}

typedef struct {
    weft_line line;
    int n;
    double mean, squares; /* of x around its mean */
    double least, most;   /* sizes that it is known at, as logarithms */
} law;

/* By rows of x and score. */
static weft_status fit_law(const json_t *rows, law *out) {
    *out = (law){.n = (int)json_array_size(rows), .least = NAN, .most = NAN};
    WEFT_ROOM(double, x, 2 * (size_t)out->n + 1, "report: no memory for a law");
    double *y = x + out->n;
    EACH_ITEM(row, rows) {
        x[row.n - 1] = log(weft_json_number_of(row.value, "x"));
        y[row.n - 1] = log(weft_json_number_of(row.value, "score"));
    }
    out->line = weft_line_fit(x, y, out->n);
    out->mean = weft_mean(x, out->n);
    for (int i = 0; i < out->n; i++) {
        out->squares += pow(x[i] - out->mean, 2);
        out->least = fmin(out->least, x[i]);
        out->most = fmax(out->most, x[i]);
    }
    return WEFT_OK;
}

/* A variant's score less the law's at its size; the interval is NaN where there is none. */
typedef struct {
    double difference, low, high, plain;
    bool beyond; /* the sizes that the law is known at */
    weft_verdict verdict;
} stand;

static stand stand_of(const weft_report_variant *s, const law *l, int measure, bool higher) {
    stand out = {NAN, NAN, NAN, NAN, false, WEFT_NO_DIFFERENCE};
    double x = log(weft_variant_number(s, measures[measure].at)),
           at = l->line.at + l->line.slope * x;
    if (!(s->mean > 0) || s->done < 1 || !isfinite(at) || !isfinite(l->line.spread)) return out;
    double off = log(s->mean) - at;
    double half = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, l->n - 2) * l->line.spread *
                  sqrt(1.0 / s->done + 1.0 / l->n + pow(x - l->mean, 2) / l->squares);
    out.plain = exp(at);
    out.difference = out.plain * expm1(off);
    out.low = out.plain * expm1(off - half);
    out.high = out.plain * expm1(off + half);
    out.beyond = x < l->least - 1e-9 || x > l->most + 1e-9;
    if (out.low > 0) out.verdict = higher ? WEFT_BETTER : WEFT_WORSE;
    if (out.high < 0) out.verdict = higher ? WEFT_WORSE : WEFT_BETTER;
    return out;
}

/* A variant that is held against these: finished, and none of them. */
static bool is_held(const weft_report_variant *v, const char *list, size_t length) {
    return v->done > 0 && !v->repeats && !v->leaks && !is_in(list, length, v->name);
}

static weft_status fit_laws(const weft_report_data *d, const char *list, size_t length,
                            law laws[YARDSTICKS]) {
    for (int m = 0; m < YARDSTICKS; m++) {
        WEFT_AUTO_DECREF json_t *rows = json_array();
        EACH_RUN(run, d) {
            double size = weft_variant_number(run->variant, measures[m].at);
            if (weft_report_run_counts(run) && !run->variant->repeats && run->score > 0 &&
                size > 0 && is_in(list, length, run->variant->name))
                weft_json_append(rows, "x:f score:f", size, run->score);
        }
        WEFT_TRY(fit_law(rows, &laws[m]));
    }
    return WEFT_OK;
}

/* The list behind this one of several with semicolons between them. */
static const char *next_list(const char *at) {
    at += strcspn(at, ";");
    return at + strspn(at, "; \t");
}

weft_status weft_report_yardstick(weft_page *p, const weft_report_data *d) {
    int told = 0;
    for (const char *at = d->yardstick; *at; at = next_list(at)) {
        size_t n = strcspn(at, ";");
        law laws[YARDSTICKS];
        WEFT_TRY(fit_laws(d, at, n, laws));
        if (!isfinite(laws[0].line.spread)) continue;
        if (told++ == 0)
            weft_page_heading(
                p, "Against plain models of equal size",
                "What a plain model with as many parameters, or trained with as many "
                "operations, would score, by a power law through several of them; and how "
                "far each variant is from that.");
        weft_page_say(p, "Plain models: %.*s.", (int)n, at);
        for (int m = 0; m < YARDSTICKS; m++) {
            const weft_line *l = &laws[m].line;
            if (isfinite(l->low))
                weft_page_say(
                    p,
                    "Score = %.4g × %s^%.4f, %.0f%% interval of the power %.4f to %.4f; the "
                    "%d runs are %.2g%% off.",
                    exp(l->at), measures[m].title, l->slope, 100 * WEFT_CONFIDENCE, l->low, l->high,
                    laws[m].n, 100 * l->spread);
        }
        weft_page_table_open(p, "variant|>score|>against equal parameters|>against equal FLOPs");
        EACH_VARIANT(v, d) {
            if (!is_held(v, at, n)) continue;
            weft_page_cells(p, v->label, weft_say_score(v->mean));
            for (int m = 0; m < YARDSTICKS; m++) {
                stand is = stand_of(v, &laws[m], m, d->higher_is_better);
                weft_page_cell(p, "%s",
                               isfinite(is.low)
                                   ? weft_say("%+.4f [%+.4f, %+.4f] %s%s", is.difference, is.low,
                                              is.high, weft_verdict_word(is.verdict),
                                              is.beyond ? ", beyond the sizes" : "")
                                   : "–");
            }
        }
    }
    return WEFT_OK;
}

static json_t *law_json(const law *l) {
    return weft_json_make("factor:f power:f low:f high:f spread:f runs:i", exp(l->line.at),
                          l->line.slope, l->line.low, l->line.high, l->line.spread, l->n);
}

weft_status weft_report_yardstick_json(const weft_report_data *d, json_t *lists) {
    for (const char *at = d->yardstick; *at; at = next_list(at)) {
        size_t n = strcspn(at, ";");
        law laws[YARDSTICKS];
        WEFT_TRY(fit_laws(d, at, n, laws));
        json_t *rows = json_array();
        EACH_VARIANT(v, d) {
            if (!is_held(v, at, n)) continue;
            json_t *row = weft_json_make("step:s", v->name);
            for (int m = 0; m < YARDSTICKS; m++) {
                stand is = stand_of(v, &laws[m], m, d->higher_is_better);
                json_object_set_new(
                    row, measures[m].name,
                    weft_json_make("plain:f difference:f low:f high:f beyond:b verdict:s", is.plain,
                                   is.difference, is.low, is.high, is.beyond,
                                   weft_verdict_word(is.verdict)));
            }
            json_array_append_new(rows, row);
        }
        weft_json_append(lists, "steps:o parameters:o flops:o variants:o", json_stringn(at, n),
                         law_json(&laws[0]), law_json(&laws[1]), rows);
    }
    return WEFT_OK;
}

/* What a law can be over beside an option; -1: it is none of them. */
static int find_measure(const char *x) {
    for (int i = 0; i < MEASURES; i++)
        if (strcmp(x, measures[i].name) == 0) return i;
    return -1;
}

/* A measure, or an option of the run as its config has it. */
static double x_of(const weft_report_variant *v, const weft_report_run *run, const char *x) {
    char key[64];
    int measure = find_measure(x);
    if (measure >= 0) return weft_variant_number(v, measures[measure].at);
    weft_option_json_key(weft_option_find(x), key, sizeof key);
    WEFT_AUTO_DECREF json_t *config = weft_config_kept(run->config);
    return weft_json_number_of(config, key);
}

weft_status weft_listing_fit(const char *const *paths, int n, const char *x, const char *variants,
                             FILE *out, json_t **object) {
    WEFT_AUTO_DECREF json_t *rows = json_array();
    law fitted;
    const weft_option *option = weft_option_find(x);
    if (find_measure(x) < 0 && !option)
        return WEFT_BAD_INPUT("--fit '%s' is not an option, nor parameters, flops, tokens "
                              "or cache_bytes",
                              x);
    if (find_measure(x) < 0 && option->type != WEFT_OPT_INT && option->type != WEFT_OPT_NUMBER)
        return WEFT_BAD_INPUT("--fit: CONFIG_%s is not a number", option->key);
    for (int i = 0; i < n; i++) {
        WEFT_AUTO(weft_report_free) weft_report_data d = {0};
        WEFT_TRY(weft_report_read(paths[i], &d));
        /* Adds the runs that count to `rows`. One whose x or score is not above 0 has no place in a power law. */
        EACH_RUN(run, &d) {
            const weft_report_variant *v = run->variant;
            if (!weft_report_run_counts(run) || v->repeats ||
                (variants && !is_in(variants, strlen(variants), v->name)))
                continue;
            double at = x_of(v, run, x);
            if (!(at > 0) || !(run->score > 0))
                return WEFT_BAD_INPUT(
                    "%s: variant '%s' has %s %g and score %g; a power law is for numbers above 0",
                    d.path, weft_shown(v->name), x, at, run->score);
            weft_json_append(rows, "step:s seed:I x:f score:f", v->name, run->seed, at, run->score);
        }
    }
    WEFT_TRY(fit_law(rows, &fitted));
    const weft_line line = fitted.line;
    if (!isfinite(line.slope))
        return WEFT_BAD_INPUT("--fit %s: finished runs with at least two values of it are needed",
                              x);
    if (out) {
        fprintf(out, "%-24s %6s %14s %12s %12s\n", "variant", "seed", x, "score", "by the law");
        EACH_ITEM(one, rows) {
            const json_t *row = one.value;
            double at = weft_json_number_of(row, "x");
            fprintf(out, "%-24s %6lld %14.6g %12.6g %12.6g\n",
                    weft_shown(json_string_value(json_object_get(row, "step"))),
                    (long long)json_integer_value(json_object_get(row, "seed")), at,
                    weft_json_number_of(row, "score"), exp(line.at + line.slope * log(at)));
        }
        fprintf(out, "score = %.6g × %s^%.4f", exp(line.at), x, line.slope);
        if (isfinite(line.low))
            fprintf(out, ", 95%% interval of the power %.4f to %.4f; runs are %.2g%% off", line.low,
                    line.high, 100 * line.spread);
        fprintf(out, "\n");
    }
    if (!object) return WEFT_OK;
    *object = weft_json_make("x:s factor:f power:f low:f high:f spread:f runs:O", x, exp(line.at),
                             line.slope, line.low, line.high, line.spread, rows);
    return *object ? WEFT_OK : weft_no_memory("runs");
}

/* How the score follows from the size: a power law over finished runs.
 *
 * score = factor x^power is a line in the logarithms. Each finished run is a point, each variant at the rate
 * chosen for it, so the interval of the power holds what seeds do as well as what the law does not explain.
 * There is no floor that the score tends to: a few sizes do not tell one from a smaller power. */
#include "report/listing.h"

#include "base/json.h"
#include "base/text.h"
#include "config/config.h"
#include "report/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at; /* of a variant */
} measures[] = {{"parameters", offsetof(weft_report_variant, parameters)},
                {"flops", offsetof(weft_report_variant, work)},
                {"tokens", offsetof(weft_report_variant, tokens)},
                {"cache_bytes", offsetof(weft_report_variant, cache_bytes)}};
enum { MEASURES = sizeof measures / sizeof measures[0] };

typedef struct {
    double *x, *score;
    int n, room;
    json_t *rows;
} points;

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "runs: no memory");
}

static bool is_chosen(const char *variants, const char *name) {
    size_t n = strlen(name);
    for (const char *at = variants; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || !at[n])) return true;
    return !variants;
}

/* What a law can be over beside an option, or an option of the run as its config has it; NaN: neither. */
static double x_of(const weft_report_variant *v, const weft_report_run *run, const char *x) {
    for (int i = 0; i < MEASURES; i++)
        if (strcmp(x, measures[i].name) == 0) return weft_variant_number(v, measures[i].at);
    char key[64];
    weft_option_json_key(weft_option_find(x), key, sizeof key);
    json_t *config = weft_config_kept(run->config);
    double number = weft_json_number_of(config, key);
    json_decref(config);
    return number;
}

static weft_status check_x(const char *x) {
    const weft_option *option = weft_option_find(x);
    for (int i = 0; i < MEASURES; i++)
        if (strcmp(x, measures[i].name) == 0) return WEFT_OK;
    if (!option)
        return weft_fail(WEFT_EINPUT,
                         "--fit '%s' is not an option, nor parameters, flops, tokens "
                         "or cache_bytes",
                         x);
    if (option->type != WEFT_OPT_INT && option->type != WEFT_OPT_NUMBER)
        return weft_fail(WEFT_EINPUT, "--fit: CONFIG_%s is not a number", option->key);
    return WEFT_OK;
}

static weft_status add_point(points *p, const weft_report_variant *variant,
                             const weft_report_run *run, double x) {
    if (p->n == p->room) {
        int room = p->room ? 2 * p->room : 64;
        double *xs = realloc(p->x, (size_t)room * sizeof *xs);
        if (xs) p->x = xs;
        double *scores = xs ? realloc(p->score, (size_t)room * sizeof *scores) : NULL;
        if (!scores) return no_memory();
        p->score = scores;
        p->room = room;
    }
    p->x[p->n] = log(x);
    p->score[p->n++] = log(run->score);
    json_t *row = json_pack("{s:o, s:I, s:f, s:f}", "step", weft_json_text(variant->name), "seed",
                            (json_int_t)run->seed, "x", x, "score", run->score);
    return json_array_append_new(p->rows, row) == 0 ? WEFT_OK : no_memory();
}

/* A run whose x or score is not above 0 has no place in a power law. */
static weft_status add_study(points *p, const weft_report_data *d, const char *x,
                             const char *variants) {
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        const weft_report_variant *variant = &d->variants[run->variant];
        if (!run->finished || run->chooses || run->rate != variant->rate || variant->repeats >= 0 ||
            !is_chosen(variants, variant->name))
            continue;
        double at = x_of(variant, run, x);
        if (!(at > 0) || !(run->score > 0))
            return weft_fail(WEFT_EINPUT,
                             "%s: variant '%s' has %s %g and score %g; a power law is for numbers "
                             "above 0",
                             d->path, weft_shown(variant->name), x, at, run->score);
        WEFT_TRY(add_point(p, variant, run, at));
    }
    return WEFT_OK;
}

static void print_fit(FILE *out, const points *p, const char *x, const weft_line *line) {
    const json_t *row;
    size_t i;
    fprintf(out, "%-24s %6s %14s %12s %12s\n", "variant", "seed", x, "score", "by the law");
    json_array_foreach(p->rows, i, row) {
        double at = json_number_value(json_object_get(row, "x"));
        fprintf(out, "%-24s %6lld %14.6g %12.6g %12.6g\n",
                weft_shown(json_string_value(json_object_get(row, "step"))),
                (long long)json_integer_value(json_object_get(row, "seed")), at,
                json_number_value(json_object_get(row, "score")),
                exp(line->at + line->slope * log(at)));
    }
    fprintf(out, "score = %.6g × %s^%.4f", exp(line->at), x, line->slope);
    if (isfinite(line->low))
        fprintf(out, ", 95%% interval of the power %.4f to %.4f; runs are %.2g%% off", line->low,
                line->high, 100 * line->spread);
    fprintf(out, "\n");
}

static weft_status fit_points(const points *p, const char *x, FILE *out, json_t **object) {
    weft_line line = weft_line_fit(p->x, p->score, p->n);
    if (!isfinite(line.slope))
        return weft_fail(WEFT_EINPUT,
                         "--fit %s: finished runs with at least two values of it are "
                         "needed",
                         x);
    if (out) print_fit(out, p, x, &line);
    if (object)
        *object = json_pack("{s:s, s:f, s:f, s:o, s:o, s:o, s:O}", "x", x, "factor", exp(line.at),
                            "power", line.slope, "low", weft_json_number(line.low), "high",
                            weft_json_number(line.high), "spread", weft_json_number(line.spread),
                            "runs", p->rows);
    return !object || *object ? WEFT_OK : no_memory();
}

weft_status weft_listing_fit(const char *const *paths, int n, const char *x, const char *variants,
                             FILE *out, json_t **object) {
    points p = {.rows = json_array()};
    weft_status status = check_x(x);
    for (int i = 0; status == WEFT_OK && i < n; i++) {
        weft_report_data d;
        status = weft_report_read(paths[i], &d);
        if (status != WEFT_OK) break;
        status = add_study(&p, &d, x, variants);
        weft_report_free(&d);
    }
    if (status == WEFT_OK) status = fit_points(&p, x, out, object);
    free(p.x);
    free(p.score);
    json_decref(p.rows);
    return status;
}

/* Reading a study's database, and choosing and comparing.
 *
 * All is read in one transaction, so that the report of a study still running is of one moment. A
 * run counts as finished where it is done and its score is a number: a failed, diverged or waiting
 * run has no score, whatever was stored. Where several learning rates were run, each variant gets the
 * one with the best mean score among those at which the largest number of its seeds finished, so that
 * a rate is not chosen for the one seed that it did not blow up. */
#include "base/scope.h"

#include "base/json.h"
#include "base/text.h"
#include "record/record.h"
#include "report/sections.h"

#include <math.h>
#include <stdarg.h>

/* A copy in UTF-8 that lives as long as the data; NULL is "". */
static const char *keep_text(const weft_report_data *d, const char *text) {
    if (!text || !*text) return "";
    json_t *kept =
        weft_json_text(text); /* without memory the report says less; it does not fail for a name */
    return json_array_append_new(d->texts, kept) == 0 ? json_string_value(kept) : "";
}

/* The columns of a row by their types: t a text that lasts, n a number, I a whole number, i the same as an int; -1:
 * none. */
static void take_columns(const weft_report_data *d, sqlite3_stmt *s, const char *types, ...) {
    va_list to;
    va_start(to, types);
    for (int i = 0; types[i]; i++) {
        bool none = sqlite3_column_type(s, i) == SQLITE_NULL;
        if (types[i] == 't')
            *va_arg(to, const char **) = keep_text(d, weft_column_text(s, i));
        else if (types[i] == 'n')
            *va_arg(to, double *) = weft_column_number(s, i);
        else if (types[i] == 'I')
            *va_arg(to, int64_t *) = none ? -1 : sqlite3_column_int64(s, i);
        else
            *va_arg(to, int *) = none ? -1 : sqlite3_column_int(s, i);
    }
    va_end(to);
}

/* Takes a row of a query. */
typedef weft_status take_row(weft_report_data *d, sqlite3_stmt *row);

static weft_status no_memory(const weft_report_data *d) {
    return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", d->path);
}

static const char *option_text(weft_report_data *d, const weft_option *option) {
    char text[WEFT_TEXT_MAX];
    weft_record_value(d->config, option, text, sizeof text);
    return keep_text(d, text);
}

static weft_status take_study(weft_report_data *d, sqlite3_stmt *s) {
    take_columns(d, s, "ttttttttn", &d->name, &d->config, &d->equal, &d->score, &d->version,
                 &d->commit, &d->created, &d->machine, &d->tail);
    bool several = strchr(option_text(d, WEFT_OPTION(study_learning_rates)), ',');
    d->rate_seed = several ? strtoll(option_text(d, WEFT_OPTION(study_rate_seed)), NULL, 10) : -1;
    d->question = option_text(d, WEFT_OPTION(study_question));
    d->rate_as = option_text(d, WEFT_OPTION(study_rate_as));
    d->yardstick = option_text(d, WEFT_OPTION(study_yardstick));
    d->spread = strtod(option_text(d, WEFT_OPTION(study_spread)), NULL);
    d->minima = strcmp(option_text(d, WEFT_OPTION(study_compare)), "minimum") == 0;
    d->effect = strtod(option_text(d, WEFT_OPTION(study_effect)), NULL);
    d->planned_seeds = (int)strtol(option_text(d, WEFT_OPTION(study_seeds)), NULL, 10);
    const char *vocabulary = strstr(d->config, "\nVOCAB_SIZE=");
    d->vocabulary = vocabulary ? strtod(strchr(vocabulary, '=') + 1, NULL) : NAN;
    return WEFT_OK;
}

static weft_status take_variant(weft_report_data *d, sqlite3_stmt *s) {
    weft_report_variant *v = WEFT_ADD(d->variants, d->n_variants);
    int leaks;
    if (!v) return no_memory(d);
    take_columns(d, s, "ttttiinnnnnnni", &v->name, &v->title, &v->overrides, &v->error,
                 &v->baseline, &v->repeats, &v->iters, &v->tokens, &v->parameters, &v->flops,
                 &v->training_bytes, &v->cache_bytes, &v->seconds_per_iter, &leaks);
    v->leaks = leaks;
    v->work = v->flops * v->tokens;
    v->rate = v->mean = v->sd = v->least = v->most = v->memory = v->speed = v->seconds = NAN;
    v->why = "";
    return WEFT_OK;
}

static weft_status take_run(weft_report_data *d, sqlite3_stmt *s) {
    int variant = sqlite3_column_int(s, 1);
    if (variant < 0 || variant >= d->n_variants) return WEFT_OK; /* written since it was checked */
    weft_report_run *run = WEFT_ADD(d->runs, d->n_runs);
    if (!run) return no_memory(d);
    take_columns(d, s, "IinIttttttttnnnnnnn", &run->id, &run->variant, &run->rate, &run->seed,
                 &run->folder, &run->status, &run->why, &run->config, &run->metric, &run->weights,
                 &run->started, &run->ended, &run->score, &run->iters, &run->skipped, &run->seconds,
                 &run->speed, &run->memory, &run->resumes);
    run->finished = strcmp(run->status, "done") == 0 && isfinite(run->score);
    d->variants[variant].waiting +=
        strcmp(run->status, "waiting") == 0 || strcmp(run->status, "running") == 0;
    run->chooses = d->rate_seed >= 0 && run->seed == d->rate_seed;
    return WEFT_OK;
}

static weft_status take_fact(weft_report_data *d, sqlite3_stmt *s) {
    int type = sqlite3_column_type(s, 2);
    bool number = type == SQLITE_INTEGER || type == SQLITE_FLOAT;
    const char *name = keep_text(d, weft_column_text(s, 1));
    for (weft_report_run *run = d->runs; run && run < d->runs + d->n_runs; run++) {
        if (run->id != sqlite3_column_int64(s, 0)) continue;
        json_t *fact = number ? json_real(sqlite3_column_double(s, 2))
                              : weft_json_text(weft_column_text(s, 2));
        if (!run->facts) json_array_append_new(d->texts, run->facts = json_object());
        json_object_set(d->facts, name, fact);
        json_object_set_new(run->facts, name, fact);
    }
    return WEFT_OK;
}

static weft_status take_seed(weft_report_data *d, sqlite3_stmt *s) {
    if (d->rate_seed >= 0 && sqlite3_column_int64(s, 0) == d->rate_seed) return WEFT_OK;
    int64_t *seed = WEFT_ADD(d->seeds, d->n_seeds);
    if (!seed) return no_memory(d);
    *seed = sqlite3_column_int64(s, 0);
    return WEFT_OK;
}

static weft_status take_rate(weft_report_data *d, sqlite3_stmt *s) {
    double *rate = WEFT_ADD(d->rates, d->n_rates);
    if (!rate) return no_memory(d);
    *rate = sqlite3_column_double(s, 0);
    return WEFT_OK;
}

static const struct {
    const char *sql;
    take_row *take;
} reads[] = {
    {"SELECT name, config, equal, score, weft_version, git_commit, created, machine, tail FROM "
     "study",
     take_study},
    {"SELECT name, title, overrides, error, nullif(baseline, variant), nullif(repeats, variant),"
     " iters, tokens, parameters, flops_per_token, training_bytes, cache_bytes_per_token,"
     " seconds_per_iter, leaks FROM variants ORDER BY variant",
     take_variant},
    {"SELECT run, variant, learning_rate, seed, folder, status, why, config, metric, weights, "
     "started,"
     " ended, score, iters, skipped, seconds, tokens_per_s, memory_bytes, resumes FROM runs"
     " ORDER BY variant, learning_rate, seed",
     take_run},
    {"SELECT run, name, value FROM facts ORDER BY run, name", take_fact},
    {"SELECT DISTINCT seed FROM runs ORDER BY seed", take_seed},
    {"SELECT DISTINCT learning_rate FROM runs WHERE learning_rate IS NOT NULL"
     " ORDER BY learning_rate",
     take_rate},
};

const weft_report_run *weft_report_find(const weft_report_data *d, int variant, double rate,
                                        int64_t seed) {
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant == variant && run->rate == rate && run->seed == seed) return run;
    }
    return NULL;
}

/* Finished scores of a variant at a rate, of the runs that choose a rate or of those that count; returns
 * how many. `scores` has room for every run. */
static int list_scores(const weft_report_data *d, int variant, double rate, bool chooses,
                       double *scores) {
    int n = 0;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant == variant && run->rate == rate && run->finished &&
            run->chooses == chooses)
            scores[n++] = run->score;
    }
    return n;
}

/* The one rate that a variant has with the seeds that count, where another seed chose it; NaN: it has none yet. */
static double chosen_rate(const weft_report_data *d, int place) {
    double rate = NAN;
    for (int i = 0; i < d->n_runs && d->rate_seed >= 0; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant != place || run->chooses) continue;
        if (isfinite(rate) && run->rate != rate) return NAN;
        rate = run->rate;
    }
    return rate;
}

/* The smaller rate wins where all is equal, being the first. */
static void choose_rate(const weft_report_data *d, int place, double *scores) {
    weft_report_variant *variant = &d->variants[place];
    double best = NAN;
    variant->rate = chosen_rate(d, place);
    if (isfinite(variant->rate)) {
        variant->done = list_scores(d, place, variant->rate, false, scores);
        return;
    }
    for (int i = 0; i < d->n_rates; i++) {
        int n = list_scores(d, place, d->rates[i], d->rate_seed >= 0, scores);
        double mean = weft_mean(scores, n);
        if (n < 1 || n < variant->done) continue;
        bool better = d->higher_is_better ? mean > best : mean < best;
        if (n == variant->done && !better) continue;
        best = mean;
        variant->done = n;
        variant->rate = d->rates[i];
    }
    if (d->rate_seed >= 0) variant->done = list_scores(d, place, variant->rate, false, scores);
}

/* Adds up what the finished runs of a variant measured. A device counts what other programs hold of its
 * memory, too, which only adds: the least is nearest to the run's own. */
static void sum_up_variant(const weft_report_data *d, int place, double *scores) {
    weft_report_variant *variant = &d->variants[place];
    double speed = 0, seconds = 0, device = INFINITY;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant != place || (run->rate != variant->rate && !isnan(variant->rate)))
            continue;
        if (run->chooses) continue;
        variant->runs++;
        if (!run->finished) continue;
        speed += run->speed;
        seconds += run->seconds;
        variant->least = fmin(variant->least, run->score);
        variant->most = fmax(variant->most, run->score);
        variant->memory = fmax(variant->memory, run->memory);
        double own = weft_json_number_of(run->facts, "device_bytes");
        device = fmin(device, isnan(own) ? 0 : own);
    }
    if (isfinite(device) && device > 0) variant->memory = device;
    int n = list_scores(d, place, variant->rate, false, scores);
    variant->mean = weft_mean(scores, n);
    variant->sd = weft_sd(scores, n);
    if (n) variant->speed = speed / n;
    if (n) variant->seconds = seconds / n;
}

weft_report_pair weft_report_pair_of(const weft_report_data *d, int variant, int baseline,
                                     int64_t seed) {
    weft_report_pair pair = {weft_report_find(d, variant, d->variants[variant].rate, seed), NULL,
                             false};
    if (baseline >= 0)
        pair.baseline = weft_report_find(d, baseline, d->variants[baseline].rate, seed);
    pair.counts =
        pair.variant && pair.baseline && pair.variant->finished && pair.baseline->finished;
    return pair;
}

static const char *say_why(const weft_report_data *d, const weft_report_variant *variant,
                           const weft_report_variant *base, const weft_comparison *c) {
    if (*variant->error) return "it cannot be built";
    if (*base->error) return "the baseline cannot be built";
    if (variant->leaks != base->leaks)
        return variant->leaks
                   ? "it leaks (a token sees later ones), so its score cannot be compared"
                   : "the baseline leaks (a token sees later ones), so its score cannot be "
                     "compared";
    if (c->verdict == WEFT_NOT_YET) return "runs of it or of its baseline are still to come";
    if (d->nothing_learned) return "nothing was learned";
    if (c->minima && c->pairs == 0) return "one of them has no three learning rates";
    if (c->minima && c->pairs == 1) return "so few runs have no interval";
    if (c->minima)
        return c->verdict == WEFT_NO_DIFFERENCE
                   ? "the intervals lie neither beyond nor within the smallest effect of interest"
                   : "";
    if (c->pairs == 0) return "no seed was finished by both";
    if (c->pairs == 1) return "one seed has no interval";
    return c->verdict == WEFT_NO_DIFFERENCE ? "the interval contains 0" : "";
}

bool weft_report_run_counts(const weft_report_data *d, const weft_report_run *run) {
    return run->finished && !run->chooses && run->rate == d->variants[run->variant].rate;
}

const char *weft_report_fact(const weft_report_run *run, const char *name) {
    const char *text = json_string_value(json_object_get(run->facts, name));
    return text ? text : "";
}

double weft_report_fact_mean(const weft_report_data *d, int variant, const char *name) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        double value = weft_json_number_of(run->facts, name);
        if (run->variant != variant || !weft_report_run_counts(d, run) || isnan(value)) continue;
        sum += value;
        n++;
    }
    return n ? sum / n : NAN;
}

static double value_of(const weft_report_run *run, const char *fact) {
    return fact ? weft_json_number_of(run->facts, fact) : run->score;
}

weft_status weft_report_compare_seeds(const weft_report_data *d, int variant, int baseline,
                                      const char *fact, bool higher_is_better,
                                      weft_comparison *out) {
    WEFT_AUTO_FREE double *values = malloc(sizeof *values * (2 * (size_t)d->n_seeds + 1));
    if (!values) return no_memory(d);
    double *other = values + d->n_seeds;
    int n = 0;
    for (int i = 0; i < d->n_seeds; i++) {
        weft_report_pair pair = weft_report_pair_of(d, variant, baseline, d->seeds[i]);
        if (!pair.counts) continue;
        values[n] = value_of(pair.variant, fact);
        other[n] = value_of(pair.baseline, fact);
        n += isfinite(values[n]) && isfinite(other[n]);
    }
    *out = weft_compare(values, other, n, higher_is_better);
    return WEFT_OK;
}

/* The runs of a variant at all its rates that ended; returns how many. `out` has room for every run. */
static int list_rates(const weft_report_data *d, int variant, weft_rate_run *out) {
    int n = 0;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        bool diverged = strcmp(run->status, "diverged") == 0;
        if (run->variant != variant || run->chooses || !(run->finished || diverged)) continue;
        out[n++] = (weft_rate_run){run->rate, diverged ? NAN : run->score, run->seed};
    }
    return n;
}

static weft_status compare_minima(const weft_report_data *d, int variant, int baseline,
                                  weft_comparison *out) {
    WEFT_AUTO_FREE weft_rate_run *runs = malloc(sizeof *runs * ((size_t)d->n_runs + 1));
    if (!runs) return no_memory(d);
    int n = list_rates(d, variant, runs), m = list_rates(d, baseline, runs + n);
    return weft_compare_minima(runs, n, runs + n, m, d->effect, d->higher_is_better, out);
}

weft_status weft_report_compare(const weft_report_data *d, int variant, int baseline,
                                weft_comparison *out, const char **why) {
    const weft_report_variant *is = &d->variants[variant], *base = &d->variants[baseline];
    WEFT_TRY(d->minima
                 ? compare_minima(d, variant, baseline, out)
                 : weft_report_compare_seeds(d, variant, baseline, NULL, d->higher_is_better, out));
    if (d->nothing_learned || is->leaks != base->leaks) out->verdict = WEFT_NO_DIFFERENCE;
    bool built = !*is->error && !*base->error && is->leaks == base->leaks;
    if (out->verdict == WEFT_NO_DIFFERENCE && built && is->waiting + base->waiting > 0)
        out->verdict = WEFT_NOT_YET;
    *why = say_why(d, is, base, out);
    return WEFT_OK;
}

/* The score in words; the metric's own name, where that is the score. */
static const char *name_score(weft_report_data *d) {
    if (strcmp(d->score, "train_loss") == 0) return "training loss";
    if (strcmp(d->score, "metric") != 0) return "held-out loss";
    for (int i = 0; i < d->n_runs; i++)
        if (*d->runs[i].metric) return d->runs[i].metric;
    return "metric";
}

/* Whether no finished run got below the loss of guessing among all tokens, but for one percent. A
 * metric has no such line. */
static bool learned_nothing(const weft_report_data *d) {
    int finished = 0;
    if (d->higher_is_better || !(d->vocabulary > 1)) return false;
    for (int i = 0; i < d->n_runs; i++) {
        if (!d->runs[i].finished) continue;
        if (d->runs[i].score < 0.99 * log(d->vocabulary)) return false;
        finished++;
    }
    return finished > 0;
}

static bool has_runs(const weft_report_data *d, int variant) {
    for (int i = 0; i < d->n_runs; i++)
        if (d->runs[i].variant == variant) return true;
    return false;
}

/* Whether a variant waits for the learning rate of another: "NAME=OTHER" is in the list. */
static bool takes_over(const weft_report_data *d, int variant) {
    size_t n = strlen(d->variants[variant].name);
    for (const char *at = d->rate_as; *at; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " \t");
        if (strncmp(at, d->variants[variant].name, n) == 0 && strchr("= \t", at[n])) return true;
    }
    return false;
}

/* Where a label made of settings is another's too, the name tells them apart. */
static void name_variants(weft_report_data *d) {
    char label[WEFT_TEXT_MAX];
    for (int i = 0; i < d->n_variants; i++) {
        weft_report_label(d, i, label, sizeof label);
        d->variants[i].label = keep_text(d, label);
    }
    for (int i = 0; i < d->n_variants; i++) {
        const char *own = d->variants[i].label;
        bool same = false;
        for (int k = 0; k < d->n_variants; k++)
            same = same || (k != i && strcmp(d->variants[k].label, own) == 0);
        if (!same || strcmp(own, d->variants[i].title) == 0) continue;
        snprintf(label, sizeof label, "%.400s (%.100s)", own, d->variants[i].name);
        d->variants[i].label = keep_text(d, label);
    }
}

static weft_status draw_conclusions(weft_report_data *d) {
    d->higher_is_better = strcmp(d->score, "metric") == 0;
    d->score_name = name_score(d);
    d->nothing_learned = learned_nothing(d);
    for (int i = 0; i < d->n_variants; i++) { /* as the database was checked to be */
        if (d->variants[i].baseline >= d->n_variants) d->variants[i].baseline = -1;
        if (d->variants[i].repeats >= d->n_variants) d->variants[i].repeats = -1;
    }
    name_variants(d);
    WEFT_AUTO_FREE double *scores = calloc((size_t)d->n_runs + 1, sizeof *scores);
    WEFT_AUTO_FREE weft_rate_run *tried = calloc((size_t)d->n_runs + 1, sizeof *tried);
    if (!scores || !tried) return no_memory(d);
    for (int i = 0; i < d->n_variants; i++) {
        if (takes_over(d, i) && !has_runs(d, i)) d->variants[i].waiting++;
        d->variants[i].minimum =
            weft_minimum_fit(tried, list_rates(d, i, tried), d->higher_is_better);
        choose_rate(d, i, scores);
        sum_up_variant(d, i, scores);
    }
    for (int i = 0; i < d->n_variants; i++) {
        weft_report_variant *s = &d->variants[i];
        if (s->baseline >= 0)
            WEFT_TRY(weft_report_compare(d, i, s->baseline, &s->compared, &s->why));
    }
    weft_report_holm(d);
    return WEFT_OK;
}

weft_status weft_report_read(const char *path, weft_report_data *d) {
    *d = (weft_report_data){.path = path, .texts = json_array(), .facts = json_object()};
    WEFT_TRY(weft_listing_open(d->path, &d->database));
    WEFT_TRY(weft_database_script(d->database, "BEGIN"));
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        sqlite3_stmt *s = weft_database_ask(d->database, reads[i].sql, "");
        while (weft_database_next(d->database, s))
            weft_database_break(d->database, reads[i].take(d, s));
        WEFT_TRY(weft_database_end(d->database, s));
    }
    return draw_conclusions(d);
}

void weft_report_free(weft_report_data *d) {
    json_decref(d->texts);
    json_decref(d->facts);
    free(d->variants);
    free(d->runs);
    free(d->seeds);
    free(d->rates);
    weft_database_close(d->database);
    *d = (weft_report_data){0};
}

bool weft_report_at_edge(const weft_report_data *d, int variant) {
    const weft_report_variant *s = &d->variants[variant];
    double least = NAN, most = NAN;
    if (d->minima) return s->minimum.edge != 0;
    for (int i = 0; i < d->n_runs; i++) {
        if (d->runs[i].variant != variant) continue;
        least = fmin(least, d->runs[i].rate);
        most = fmax(most, d->runs[i].rate);
    }
    return least < most && (s->rate == least || s->rate == most);
}

const char *weft_report_ended(const weft_report_run *run) {
    if (!run) return "was not run";
    if (run->finished) return "finished";
    if (strcmp(run->status, "done") == 0) return "has no score";
    if (strcmp(run->status, "waiting") == 0) return "has not been run yet";
    if (strcmp(run->status, "running") == 0) return "is running";
    return run->status; /* failed, diverged */
}

int weft_report_comparisons(const weft_report_data *d) {
    int n = 0;
    for (int i = 0; i < d->n_variants; i++)
        n += d->variants[i].compared.pairs >= 2 && d->variants[i].repeats < 0 &&
             d->variants[i].leaks == d->variants[d->variants[i].baseline].leaks;
    return n;
}

/* The study's own word is taken for the files; the checksum of the weights and the metrics are
 * compared here once more. */
weft_status weft_report_repeat_of(const weft_report_data *d, const weft_report_run *run,
                                  weft_report_repeat *out) {
    int first = d->variants[run->variant].repeats;
    *out = (weft_report_repeat){.run = run, .rows = -1, .detail = ""};
    out->first = weft_report_find(d, first, run->rate, run->seed);
    bool said_unequal = false;
    sqlite3_stmt *word =
        weft_database_ask(d->database,
                          "SELECT kind = 'equal', detail FROM events WHERE run = ? AND"
                          " kind IN ('equal', 'unequal') ORDER BY id DESC LIMIT 1",
                          "i", run->id);
    if (weft_database_next(d->database, word)) { /* the last one counts */
        out->files = sqlite3_column_int(word, 0);
        said_unequal = !out->files;
        out->detail = keep_text(d, weft_column_text(word, 1));
    }
    WEFT_TRY(weft_database_end(d->database, word));
    if (!out->first || !run->finished || !out->first->finished) return WEFT_OK;
        /* Rows of one that the other does not have, or the other way where these are more. */
#define MORE(a, b) "(SELECT count(*) FROM (" WEFT_SQL_METRICS(a) " EXCEPT " WEFT_SQL_METRICS(b) "))"
    WEFT_TRY(weft_database_number(d->database, 0, &out->rows,
                                  "SELECT max(" MORE("?1", "?2") ", " MORE("?2", "?1") ")", "ii",
                                  run->id, out->first->id));
    bool known = *run->weights && *out->first->weights;
    bool differs = out->rows > 0 || (known && strcmp(run->weights, out->first->weights) != 0);
    if (said_unequal || differs)
        out->result = WEFT_REPEAT_UNEQUAL;
    else if (known || out->files)
        out->result = WEFT_REPEAT_EQUAL;
    return WEFT_OK;
}

/* Reading a study's database, and choosing and comparing.
 *
 * All is read in one transaction, so that the report of a study still running is of one moment. A
 * run counts as finished where it is done and its score is a number: a failed, diverged or waiting
 * run has no score, whatever was stored. Where several learning rates were run, each variant gets the
 * one with the best mean score among those at which the largest number of its seeds finished, so that
 * a rate is not chosen for the one seed that it did not blow up. */

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
    v->study = d;
    v->place = d->n_variants - 1;
    take_columns(d, s, "ttttnnnnnni", &v->name, &v->title, &v->overrides, &v->error, &v->iters,
                 &v->tokens, &v->parameters, &v->flops, &v->training_bytes, &v->cache_bytes,
                 &leaks);
    v->leaks = leaks;
    v->work = v->flops * v->tokens;
    v->rate = v->mean = v->sd = v->least = v->most = v->memory = v->speed = v->seconds = NAN;
    v->why = "";
    return WEFT_OK;
}

/* The variant of a number in a column; NULL: none, or one that was written since they were checked. */
static weft_report_variant *variant_in(const weft_report_data *d, sqlite3_stmt *s, int column) {
    double number = weft_column_number(s, column);
    return number >= 0 && number < d->n_variants ? &d->variants[(int)number] : NULL;
}

static weft_status take_links(weft_report_data *d, sqlite3_stmt *s) {
    weft_report_variant *v = variant_in(d, s, 0);
    if (v) v->baseline = variant_in(d, s, 1);
    if (v) v->repeats = variant_in(d, s, 2);
    return WEFT_OK;
}

static weft_status take_run(weft_report_data *d, sqlite3_stmt *s) {
    weft_report_variant *v = variant_in(d, s, 15);
    if (!v) return WEFT_OK;
    weft_report_run *run = WEFT_ADD(d->runs, d->n_runs);
    if (!run) return no_memory(d);
    run->variant = v;
    take_columns(d, s, "InItttttttnnnnn", &run->id, &run->rate, &run->seed, &run->folder,
                 &run->status, &run->config, &run->metric, &run->weights, &run->started,
                 &run->ended, &run->score, &run->iters, &run->seconds, &run->speed, &run->memory);
    run->finished = strcmp(run->status, "done") == 0 && isfinite(run->score);
    run->to_come = strcmp(run->status, "waiting") == 0 || strcmp(run->status, "running") == 0;
    v->waiting += run->to_come;
    run->chooses = d->rate_seed >= 0 && run->seed == d->rate_seed;
    return WEFT_OK;
}

static weft_status take_fact(weft_report_data *d, sqlite3_stmt *s) {
    int type = sqlite3_column_type(s, 2);
    bool number = type == SQLITE_INTEGER || type == SQLITE_FLOAT;
    const char *name = keep_text(d, weft_column_text(s, 1));
    EACH_RUN(run, d) {
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
    weft_status (*take)(weft_report_data *d, sqlite3_stmt *row);
} reads[] = {
    {"SELECT name, config, equal, score, weft_version, git_commit, created, machine, tail"
     " FROM study",
     take_study},
    {"SELECT name, title, overrides, error, iters, tokens, parameters, flops_per_token,"
     " training_bytes, cache_bytes_per_token, leaks FROM variants ORDER BY variant",
     take_variant},
    {"SELECT variant, nullif(baseline, variant), nullif(repeats, variant) FROM variants",
     take_links},
    {"SELECT run, learning_rate, seed, folder, status, config, metric, weights, started, ended,"
     " score, iters, seconds, tokens_per_s, memory_bytes, variant FROM runs"
     " ORDER BY variant, learning_rate, seed",
     take_run},
    {"SELECT run, name, value FROM facts ORDER BY run, name", take_fact},
    {"SELECT DISTINCT seed FROM runs ORDER BY seed", take_seed},
    {"SELECT DISTINCT learning_rate FROM runs WHERE learning_rate IS NOT NULL"
     " ORDER BY learning_rate",
     take_rate},
};

const weft_report_run *weft_report_find(const weft_report_variant *v, double rate, int64_t seed) {
    EACH_RUN_OF(run, v)
        if (run->rate == rate && run->seed == seed) return run;
    return NULL;
}

/* Finished scores of a variant at a rate, of the runs that choose a rate or of those that count; returns
 * how many. `scores` has room for every run. */
static int list_scores(const weft_report_variant *v, double rate, bool chooses, double *scores) {
    int n = 0;
    EACH_RUN_OF(run, v)
        if (run->rate == rate && run->finished && run->chooses == chooses) scores[n++] = run->score;
    return n;
}

/* The smaller rate wins where all is equal, being the first. */
static void choose_rate(weft_report_variant *v, double *scores) {
    double best = NAN;
    int done = 0, others = 0;
    /* Where another seed chose it, the one that the variant has with the seeds that count. */
    EACH_RUN_OF(run, v) {
        if (v->study->rate_seed < 0 || run->chooses) continue;
        others += isfinite(v->rate) && run->rate != v->rate;
        v->rate = run->rate;
    }
    if (others) v->rate = NAN;
    if (isfinite(v->rate)) return;
    for (int i = 0; i < v->study->n_rates; i++) {
        int n = list_scores(v, v->study->rates[i], v->study->rate_seed >= 0, scores);
        double mean = weft_mean(scores, n);
        if (n < 1 || n < done) continue;
        bool better = v->study->higher_is_better ? mean > best : mean < best;
        if (n == done && !better) continue;
        best = mean;
        done = n;
        v->rate = v->study->rates[i];
    }
}

/* Adds up what the finished runs of a variant measured. A device counts what other programs hold of its
 * memory, too, which only adds: the least is nearest to the run's own. */
static void sum_up_variant(weft_report_variant *v, double *scores) {
    double speed = 0, seconds = 0, device = INFINITY;
    EACH_RUN_OF(run, v) {
        if (run->rate != v->rate && !isnan(v->rate)) continue;
        if (run->chooses) continue;
        v->runs++;
        if (!run->finished) continue;
        speed += run->speed;
        seconds += run->seconds;
        v->least = fmin(v->least, run->score);
        v->most = fmax(v->most, run->score);
        v->memory = fmax(v->memory, run->memory);
        double own = weft_json_number_of(run->facts, "device_bytes");
        device = fmin(device, isnan(own) ? 0 : own);
    }
    if (isfinite(device) && device > 0) v->memory = device;
    v->done = list_scores(v, v->rate, false, scores);
    v->mean = weft_mean(scores, v->done);
    v->sd = weft_sd(scores, v->done);
    if (v->done) v->speed = speed / v->done;
    if (v->done) v->seconds = seconds / v->done;
}

bool weft_report_next_pair(const weft_report_variant *v, const weft_report_variant *baseline,
                           weft_report_pair *pair) {
    if (pair->n == v->study->n_seeds) return false;
    pair->seed = v->study->seeds[pair->n++];
    pair->variant = weft_report_find(v, v->rate, pair->seed);
    pair->baseline = weft_report_find(baseline, baseline->rate, pair->seed);
    pair->counts =
        pair->variant && pair->baseline && pair->variant->finished && pair->baseline->finished;
    return true;
}

static const char *say_why(const weft_report_variant *v, const weft_report_variant *base,
                           const weft_comparison *c) {
    if (*v->error) return "it cannot be built";
    if (*base->error) return "the baseline cannot be built";
    if (v->leaks != base->leaks)
        return v->leaks ? "it leaks (a token sees later ones), so its score cannot be compared"
                        : "the baseline leaks (a token sees later ones), so its score cannot be "
                          "compared";
    if (c->verdict == WEFT_NOT_YET) return "runs of it or of its baseline are still to come";
    if (v->study->nothing_learned) return "nothing was learned";
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

bool weft_report_run_counts(const weft_report_run *run) {
    return run->finished && !run->chooses && run->rate == run->variant->rate;
}

double weft_report_fact_mean(const weft_report_variant *v, const char *name) {
    double sum = 0;
    int n = 0;
    EACH_RUN_OF(run, v) {
        double value = weft_json_number_of(run->facts, name);
        if (!weft_report_run_counts(run) || isnan(value)) continue;
        sum += value;
        n++;
    }
    return n ? sum / n : NAN;
}

static double value_of(const weft_report_run *run, const char *fact) {
    return fact ? weft_json_number_of(run->facts, fact) : run->score;
}

weft_status weft_report_compare_seeds(const weft_report_variant *v,
                                      const weft_report_variant *baseline, const char *fact,
                                      bool higher_is_better, weft_comparison *out) {
    WEFT_AUTO_FREE double *values = malloc(sizeof *values * (2 * (size_t)v->study->n_seeds + 1));
    if (!values) return no_memory(v->study);
    double *other = values + v->study->n_seeds;
    int n = 0;
    EACH_PAIR(pair, v, baseline) {
        if (!pair.counts) continue;
        values[n] = value_of(pair.variant, fact);
        other[n] = value_of(pair.baseline, fact);
        n += isfinite(values[n]) && isfinite(other[n]);
    }
    *out = weft_compare(values, other, n, higher_is_better);
    return WEFT_OK;
}

/* The runs of a variant at all its rates that ended; returns how many. `out` has room for every run. */
static int list_rates(const weft_report_variant *v, weft_rate_run *out) {
    int n = 0;
    EACH_RUN_OF(run, v) {
        bool diverged = strcmp(run->status, "diverged") == 0;
        if (run->chooses || !(run->finished || diverged)) continue;
        out[n++] = (weft_rate_run){run->rate, diverged ? NAN : run->score, run->seed};
    }
    return n;
}

weft_status weft_report_compare(const weft_report_variant *v, const weft_report_variant *baseline,
                                weft_comparison *out, const char **why) {
    const weft_report_data *d = v->study;
    if (d->minima) {
        WEFT_AUTO_FREE weft_rate_run *runs = malloc(sizeof *runs * ((size_t)d->n_runs + 1));
        if (!runs) return no_memory(d);
        int n = list_rates(v, runs), m = list_rates(baseline, runs + n);
        WEFT_TRY(weft_compare_minima(runs, n, runs + n, m, d->effect, d->higher_is_better, out));
    } else {
        WEFT_TRY(weft_report_compare_seeds(v, baseline, NULL, d->higher_is_better, out));
    }
    if (d->nothing_learned || v->leaks != baseline->leaks) out->verdict = WEFT_NO_DIFFERENCE;
    bool built = !*v->error && !*baseline->error && v->leaks == baseline->leaks;
    if (out->verdict == WEFT_NO_DIFFERENCE && built && v->waiting + baseline->waiting > 0)
        out->verdict = WEFT_NOT_YET;
    *why = say_why(v, baseline, out);
    return WEFT_OK;
}

/* The score in words; the metric's own name, where that is the score. */
static const char *name_score(weft_report_data *d) {
    if (strcmp(d->score, "train_loss") == 0) return "training loss";
    if (strcmp(d->score, "metric") != 0) return "held-out loss";
    EACH_RUN(run, d)
        if (*run->metric) return run->metric;
    return "metric";
}

/* Whether no finished run got below the loss of guessing among all tokens, but for one percent. A
 * metric has no such line. */
static bool learned_nothing(const weft_report_data *d) {
    int finished = 0;
    if (d->higher_is_better || !(d->vocabulary > 1)) return false;
    EACH_RUN(run, d) {
        if (!run->finished) continue;
        if (run->score < 0.99 * log(d->vocabulary)) return false;
        finished++;
    }
    return finished > 0;
}

/* Whether a variant waits for the learning rate of another: "NAME=OTHER" is in the list, and it has no run yet. */
static bool waits_for_rate(const weft_report_variant *v) {
    size_t n = strlen(v->name);
    EACH_RUN_OF(run, v)
        return false;
    for (const char *at = v->study->rate_as; *at; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " \t");
        if (strncmp(at, v->name, n) == 0 && strchr("= \t", at[n])) return true;
    }
    return false;
}

static int by_first(const void *a, const void *b) {
    const weft_report_range *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->last > y->last) - (x->last < y->last);
}

static weft_status draw_conclusions(weft_report_data *d) {
    d->higher_is_better = strcmp(d->score, "metric") == 0;
    d->score_name = name_score(d);
    d->nothing_learned = learned_nothing(d);
    /* Where a label made of settings is another's too, the name tells them apart. */
    char label[WEFT_TEXT_MAX];
    EACH_VARIANT(v, d) {
        weft_report_label(v, label, sizeof label);
        v->label = keep_text(d, label);
    }
    EACH_VARIANT(v, d) {
        bool same = false;
        EACH_VARIANT(other, d)
            same = same || (other != v && strcmp(other->label, v->label) == 0);
        if (!same || strcmp(v->label, v->title) == 0) continue;
        snprintf(label, sizeof label, "%.400s (%.100s)", v->label, v->name);
        v->label = keep_text(d, label);
    }
    WEFT_AUTO_FREE double *scores = calloc((size_t)d->n_runs + 1, sizeof *scores);
    WEFT_AUTO_FREE weft_rate_run *tried = calloc((size_t)d->n_runs + 1, sizeof *tried);
    if (!scores || !tried) return no_memory(d);
    EACH_VARIANT(v, d) {
        if (waits_for_rate(v)) v->waiting++;
        v->minimum = weft_minimum_fit(tried, list_rates(v, tried), d->higher_is_better);
        choose_rate(v, scores);
        sum_up_variant(v, scores);
    }
    int compared = 0;
    EACH_RUN(run, d)
        d->finished += run->finished;
    EACH_VARIANT(v, d) {
        d->waiting += v->waiting;
        if (!v->baseline) continue;
        WEFT_TRY(weft_report_compare(v, v->baseline, &v->compared, &v->why));
        int pairs = v->compared.pairs;
        if (v->repeats) continue;
        d->baseline = compared++ == 0 || d->baseline == v->baseline ? v->baseline : NULL;
        d->comparisons += pairs >= 2 && v->leaks == v->baseline->leaks;
        if (pairs > d->most_pairs) d->most_pairs = pairs;
    }
    weft_report_holm(d);
    /* Finds the ranges of positions whose losses the records have. */
    EACH_MEMBER(fact, d->facts) {
        weft_report_range r;
        int end = 0;
        if (d->n_ranges == WEFT_REPORT_RANGES || !json_is_number(fact.value) ||
            strlen(fact.key) >= sizeof r.name ||
            sscanf(fact.key, "loss_at_%lld_%lld%n", &r.first, &r.last, &end) != 2 ||
            fact.key[end] || r.first < 0 || r.last < r.first)
            continue;
        snprintf(r.name, sizeof r.name, "%s", fact.key);
        d->ranges[d->n_ranges++] = r;
    }
    qsort(d->ranges, (size_t)d->n_ranges, sizeof *d->ranges, by_first);
    return WEFT_OK;
}

weft_status weft_report_read(const char *path, weft_report_data *d) {
    *d = (weft_report_data){.path = path, .texts = json_array(), .facts = json_object()};
    WEFT_TRY(weft_listing_open(d->path, &d->database));
    WEFT_TRY(weft_database_script(d->database, "BEGIN"));
    for (int i = 0; i < WEFT_COUNT(reads); i++) {
        EACH_ROW(s, d->database, reads[i].sql)
            weft_database_break(d->database, reads[i].take(d, s));
        WEFT_TRY(weft_database_end(d->database));
    }
    return draw_conclusions(d);
}

void weft_report_free(weft_report_data *d) {
    json_decref(d->texts);
    json_decref(d->facts);
    WEFT_FREE(d->variants, d->runs, d->seeds, d->rates);
    weft_database_close(d->database);
    *d = (weft_report_data){0};
}

const char *weft_report_ended(const weft_report_run *run) {
    if (!run) return "was not run";
    if (run->finished) return "finished";
    if (strcmp(run->status, "done") == 0) return "has no score";
    if (strcmp(run->status, "waiting") == 0) return "has not been run yet";
    if (strcmp(run->status, "running") == 0) return "is running";
    return run->status; /* failed, diverged */
}

/* The study's own word is taken for the files; the checksum of the weights and the metrics are compared here once more. */
weft_status weft_report_repeat_of(const weft_report_run *run, weft_report_repeat *out) {
    const weft_report_data *d = run->variant->study;
    *out = (weft_report_repeat){.run = run, .rows = -1, .detail = ""};
    out->first = weft_report_find(run->variant->repeats, run->rate, run->seed);
    bool said_unequal = false;
    EACH_ROW(word, d->database,
             "SELECT kind = 'equal', detail FROM events WHERE run = ? AND"
             " kind IN ('equal', 'unequal') ORDER BY id DESC LIMIT 1",
             "i", run->id) { /* the last one counts */
        out->files = sqlite3_column_int(word, 0);
        said_unequal = !out->files;
        out->detail = keep_text(d, weft_column_text(word, 1));
    }
    WEFT_TRY(weft_database_end(d->database));
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

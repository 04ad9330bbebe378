/* Writing and matching the tables. A run's number follows from its place among variants, rates and
 * seeds, so a variant that joins later does not move the others; more seeds move them all. */
#include "record/record.h"
#include "base/text.h"

#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "study/statistics.h"

#include <math.h>

enum { HOST_ROOM = 256, SETS_ROOM = 2 * WEFT_TEXT_MAX, LIST_ROOM = 1 << 15 };

static const char *const status_names[] = {"waiting", "running", "done", "failed", "diverged"};

const char *weft_run_status_name(weft_run_status status) {
    return status_names[status];
}

static void host_name(char text[HOST_ROOM]) {
    if (gethostname(text, HOST_ROOM) != 0) snprintf(text, HOST_ROOM, "unknown");
    text[HOST_ROOM - 1] = '\0';
}

char *weft_record_config(const weft_config *c) {
    char *text = NULL, value[WEFT_TEXT_MAX];
    size_t room = 0;
    FILE *out = open_memstream(&text, &room);
    for (const weft_option *o = weft_options(NULL); out && o->key; o++) {
        weft_config_format(c, o, value, sizeof value);
        fprintf(out, "%s=%s\n", o->key, value);
    }
    return out ? weft_memory_end(out, &text) : NULL;
}

char *weft_record_config_json(const weft_config *c) {
    WEFT_AUTO_DECREF json_t *object = weft_config_to_json(c);
    return object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
}

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "study: no memory for its database");
}

weft_status weft_record_event(weft_database *d, int64_t run, int64_t step, const char *kind,
                              const char *detail) {
    return weft_database_run(d,
                             "INSERT INTO events(run, step, kind, detail, at) VALUES"
                             " (nullif(?, -1), nullif(?, -1), ?, ?, " WEFT_SQL_NOW ")",
                             "iiss", run, step, kind, detail);
}

static weft_status insert_study(weft_database *d, const weft_study *s, int threads,
                                const char *device) {
    char host[HOST_ROOM], machine[512], seeds[LIST_ROOM], rates[LIST_ROOM];
    WEFT_AUTO_FREE char *config = weft_record_config(&s->base);
    if (!config) return no_memory();
    host_name(host);
    weft_machine_text(machine, sizeof machine);
    weft_study_seeds_text(s, seeds, LIST_ROOM);
    weft_study_rates_text(s, rates, LIST_ROOM);
    return weft_database_run(
        d,
        "INSERT INTO study(id, schema, name, config, seeds, learning_rates, equal, score, tail,"
        " weft_version, git_commit, created, host, machine, threads, device)"
        " VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, " WEFT_SQL_NOW ", ?, ?, ?, ?)",
        "issssssissssis", (int64_t)WEFT_SCHEMA_VERSION, s->name, config, seeds, rates,
        weft_config_word(&s->base, WEFT_OPTION(study_equal)),
        weft_config_word(&s->base, WEFT_OPTION(study_score)), s->base.study_tail, weft_version(),
        weft_git_commit(), host, machine, (int64_t)threads, device);
}

/* Runs of a rate: one for each seed, and the one that chooses. */
static int runs_of_rate(const weft_study *s) {
    return (int)s->base.study_seeds + weft_study_chooses(s);
}

static void name_folder(const weft_study *s, weft_record_run *job) {
    char number[32];
    weft_number_format(job->rate, number, sizeof number);
    snprintf(job->folder, sizeof job->folder, "runs/%s-lr%s-seed%lld",
             s->variants.list[job->variant].name, number, (long long)job->seed);
}

/* Rates that a variant has a number for: its own, then those that are added where its minimum is at the edge. */
static int rate_places(const weft_study *s) {
    return weft_study_variant_rates(s) + (weft_study_fits(s) ? WEFT_RATES_ADDED : 0);
}

/* Run k of a rate: its seeds in their order, then the one that chooses. The number is the same
 * whichever of them are run. `added`: the rate, where the place is of one that was added. */
static weft_record_run make_job(const weft_study *s, int variant, int rate_place, int k,
                                double added) {
    bool own = rate_place < weft_study_variant_rates(s);
    weft_record_run job = {.variant = variant,
                           .rate = own ? weft_study_rate(s, variant, rate_place) : added};
    job.run = ((int64_t)variant * rate_places(s) + rate_place) * runs_of_rate(s) + k + 1;
    job.seed = k < (int)s->base.study_seeds ? weft_study_seed(s, k) : s->base.study_rate_seed;
    name_folder(s, &job);
    return job;
}

static weft_status insert_run(weft_database *d, const weft_study *s, int variant, int rate_place,
                              int k, double added) {
    weft_record_run job = make_job(s, variant, rate_place, k, added);
    weft_config c;
    weft_study_run_config(s, variant, job.rate, job.seed, &c);
    WEFT_AUTO_FREE char *json = weft_record_config_json(&c);
    if (!json) return no_memory();
    return weft_database_run(d,
                             "INSERT INTO runs(run, variant, learning_rate, seed, folder, config)"
                             " VALUES (?, ?, ?, ?, ?, ?)",
                             "iidiss", job.run, (int64_t)variant, job.rate, job.seed, job.folder,
                             json);
}

static weft_status choose_rate(weft_database *d, const weft_study *s, int variant, int *added) {
    bool higher = s->base.study_score == WEFT_STUDY_SCORE_METRIC;
    int chooser = s->rate_as[variant] >= 0 ? s->rate_as[variant] : variant, place = -1;
    int64_t there;
    WEFT_TRY(weft_database_number(d, 0, &there,
                                  "SELECT count(*) FROM runs WHERE variant = ? AND seed <> ?", "ii",
                                  (int64_t)variant, s->base.study_rate_seed));
    if (there) return WEFT_OK;
    /* The place of the best rate by the runs that choose; -1: some of them have not ended, or none has
     * a score. The smaller of equals. */
    EACH_ROW(rows, d,
             "WITH ended AS (SELECT learning_rate, score FROM runs WHERE variant = ? AND seed = ?"
             " AND status IN ('done', 'diverged'))"
             " SELECT learning_rate FROM ended WHERE abs(score) < 9e999 AND"
             " (SELECT count(*) FROM ended) = ? ORDER BY score * ?, learning_rate LIMIT 1",
             "iiii", (int64_t)chooser, s->base.study_rate_seed, (int64_t)s->n_rates,
             (int64_t)(higher ? -1 : 1))
        for (int i = 0; i < s->n_rates; i++)
            if (s->rates[i] == sqlite3_column_double(rows, 0)) place = i;
    WEFT_TRY(weft_database_end(d));
    for (int k = 0; place >= 0 && k < (int)s->base.study_seeds; k++) {
        WEFT_TRY(insert_run(d, s, variant, place, k, NAN));
        ++*added;
    }
    return WEFT_OK;
}

/* A rate beyond the edge where the minimum of a variant's runs is, once all have ended. */
static weft_status add_rate(weft_database *d, const weft_study *s, int variant, int *added) {
    const weft_option *o = WEFT_OPTION(learning_rate);
    WEFT_AUTO_FREE weft_rate_run *runs = NULL;
    int n = 0, ended = 0;
    EACH_ROW(rows, d,
             "SELECT learning_rate, score, seed, status IN ('done',"
             " 'diverged') FROM runs WHERE variant = ?",
             "i", (int64_t)variant) {
        weft_rate_run *one = WEFT_ADD(runs, n);
        weft_database_break(d, one ? WEFT_OK : no_memory());
        if (!one) continue;
        *one = (weft_rate_run){sqlite3_column_double(rows, 0), weft_column_number(rows, 1),
                               sqlite3_column_int64(rows, 2)};
        ended += sqlite3_column_int(rows, 3);
    }
    weft_status status = weft_database_end(d);
    bool higher = s->base.study_score == WEFT_STUDY_SCORE_METRIC;
    double rate = status == WEFT_OK && ended == n ? weft_minimum_fit(runs, n, higher).beyond : NAN;
    int place = n / runs_of_rate(s);
    for (int i = 0; i < n; i++) /* as near to one that was tried as rounding puts it */
        if (fabs(rate / runs[i].rate - 1) < 0.01) rate = NAN;
    if (!(rate >= o->min && rate <= o->max) || place >= rate_places(s)) return status;
    weft_log(WEFT_LOG_INFO,
             "variant %s: its minimum is at the edge of the learning rates, and %g is added",
             s->variants.list[variant].name, rate);
    for (int k = 0; status == WEFT_OK && k < (int)s->base.study_seeds; k++, ++*added)
        status = insert_run(d, s, variant, place, k, rate);
    return status;
}

weft_status weft_record_choose(weft_database *d, const weft_study *s, int *added) {
    *added = 0;
    if (!weft_study_chooses(s) && !weft_study_fits(s)) return WEFT_OK;
    WEFT_TRY(weft_database_begin(d));
    weft_status status = WEFT_OK;
    for (int i = 0; status == WEFT_OK && i < s->variants.n; i++)
        if (!*s->built[i].error)
            status = weft_study_fits(s) ? add_rate(d, s, i, added) : choose_rate(d, s, i, added);
    return weft_database_finish(d, status);
}

/* A variant with its costs, or with its error alone; and its runs where it can be built. */
static weft_status insert_variant(weft_database *d, const weft_study *s, int variant) {
    const weft_study_variant *p = &s->built[variant];
    const weft_account *a = &p->account;
    bool built = !*p->error;
    char sets[SETS_ROOM];
    weft_study_overrides(s, variant, sets, SETS_ROOM);
    weft_status status = weft_database_run(
        d,
        "INSERT INTO variants(variant, name, baseline, title, overrides, repeats, leaks, error)"
        " VALUES (?, ?, nullif(?, -1), ?, ?, nullif(?, -1), ?, ?)",
        "isissiis", (int64_t)variant, p->variant->name, (int64_t)p->variant->baseline,
        p->variant->title, sets, (int64_t)p->variant->repeats,
        (int64_t)(built && weft_config_leaks(&p->config)), built ? NULL : p->error);
    if (status != WEFT_OK || !built) return status;
    WEFT_TRY(weft_database_run(
        d,
        "UPDATE variants SET iters = ?, tokens = ?, parameters = ?, flops_per_token = ?,"
        " training_bytes = ?, cache_bytes_per_token = ?, seconds_per_iter = ? WHERE variant = ?",
        "iiidiidi", p->iters, weft_study_tokens(s, variant), a->parameters,
        a->forward_flops + a->backward_flops, a->training_bytes, a->cache_bytes_token,
        p->seconds_per_iter, (int64_t)variant));
    if (weft_config_leaks(&p->config))
        WEFT_TRY(weft_record_event(d, -1, variant, "leaks", p->variant->name));
    /* All of a variant's, or at first only those that choose its rate; none of one that takes it over. */
    int seeds = (int)s->base.study_seeds;
    bool chooses = weft_study_chooses(s);
    if (s->rate_as[variant] >= 0) return WEFT_OK;
    for (int rate = 0; rate < weft_study_variant_rates(s); rate++)
        for (int k = chooses ? seeds : 0; k < seeds + chooses; k++)
            WEFT_TRY(insert_run(d, s, variant, rate, k, NAN));
    return WEFT_OK;
}

weft_status weft_record_create(weft_database *d, const weft_study *s, int threads,
                               const char *device) {
    WEFT_TRY(weft_database_begin(d));
    weft_status status = weft_database_make_tables(d);
    if (status == WEFT_OK) status = insert_study(d, s, threads, device);
    for (int i = 0; status == WEFT_OK && i < s->variants.n; i++)
        status = insert_variant(d, s, i);
    return weft_database_finish(d, status);
}

void weft_record_value(const char *lines, const weft_option *o, char *value, size_t room) {
    for (const char *at = lines; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        char key[128]; /* by its name of today or an older one */
        size_t n = strcspn(at, "=\n");
        if (at[n] != '=' || n >= sizeof key) continue;
        snprintf(key, sizeof key, "%.*s", (int)n, at);
        if (weft_option_find(key) != o) continue;
        snprintf(value, room, "%.*s", (int)strcspn(at + n + 1, "\n"), at + n + 1);
        return;
    }
    /* As the reader would write it: 0.0 in the list of options is 0 here. */
    weft_config defaults;
    weft_config_defaults(&defaults);
    weft_config_format(&defaults, o, value, room);
}

const weft_option *weft_record_difference(const char *a, const char *b, bool grown,
                                          char of_a[WEFT_TEXT_MAX], char of_b[WEFT_TEXT_MAX]) {
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        weft_record_value(a, o, of_a, WEFT_TEXT_MAX);
        weft_record_value(b, o, of_b, WEFT_TEXT_MAX);
        /* No run that was made depends on these: a study goes on where they are others. Each
         * run's own device is in its record. */
        bool more = o == WEFT_OPTION(study_question) || o == WEFT_OPTION(study_spread) ||
                    o == WEFT_OPTION(study_rate_as) || o == WEFT_OPTION(study_yardstick) ||
                    o == WEFT_OPTION(eval_inside) || o == WEFT_OPTION(eval_decode) ||
                    o == WEFT_OPTION(study_weights) || o == WEFT_OPTION(device);
        if (grown && o == WEFT_OPTION(study_seeds))
            more = strtol(of_a, NULL, 10) < strtol(of_b, NULL, 10);
        if (grown && o == WEFT_OPTION(study_variants) && *of_a)
            more = strncmp(of_a, of_b, strlen(of_a)) == 0 && of_b[strlen(of_a)] == ';';
        if (strcmp(of_a, of_b) != 0 && !more) {
            if (!*of_a) snprintf(of_a, WEFT_TEXT_MAX, "empty");
            if (!*of_b) snprintf(of_b, WEFT_TEXT_MAX, "empty");
            return o;
        }
    }
    return NULL;
}

/* Seeds may be added; those that were run stay the first of them. `seeds`: how many there were. */
static weft_status match_config(weft_database *d, const weft_study *s, const char *lines,
                                int64_t *seeds) {
    char was[WEFT_TEXT_MAX], is[WEFT_TEXT_MAX];
    WEFT_AUTO_FREE char *now = weft_record_config(&s->base);
    if (!now) return no_memory();
    weft_record_value(lines, WEFT_OPTION(study_seeds), was, sizeof was);
    *seeds = strtol(was, NULL, 10);
    const weft_option *o = weft_record_difference(lines, now, true, was, is);
    if (!o) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: CONFIG_%s was %.300s in this study and is %.300s now; take "
                          "another --out (make: OUT=folder), or the config it was started with",
                          weft_database_path(d), o->key, was, is);
}

static weft_status match_variant(const weft_database *d, const weft_study *s, int64_t variant,
                                 const char *name, const char *sets, bool built) {
    char now[SETS_ROOM];
    if (variant >= s->variants.n || strcmp(s->variants.list[variant].name, name) != 0)
        return WEFT_BAD_INPUT("%s: variant '%s' of this study is none of the config's now",
                              weft_database_path(d), name);
    weft_study_overrides(s, (int)variant, now, SETS_ROOM);
    if (!built || *s->built[variant].error || strcmp(now, sets) == 0) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: variant '%s' was '%.300s' in this study and is '%.300s' now; take "
                          "another --out, or the command it was started with",
                          weft_database_path(d), name, sets, now);
}

static weft_status add_seeds(weft_database *d, const weft_study *s, int64_t before) {
    /* Numbers as make_job gives them, where a rate had `before` seeds. No number comes to be twice on the
     * way: they are negative in between. */
    static const char *const tables[] = {"runs", "metrics", "events", "facts"};
    int64_t row = runs_of_rate(s), more = s->base.study_seeds - before, old = row - more;
    char sql[160];
    for (int i = 0; i < WEFT_COUNT(tables); i++) {
        snprintf(sql, sizeof sql,
                 "UPDATE %s SET run = -((run - 1) / ? * ? + (run - 1) %% ?"
                 " + ((run - 1) %% ? >= ?) * ? + 1)",
                 tables[i]);
        WEFT_TRY(weft_database_run(d, sql, "iiiiii", old, row, old, old, before, more));
        snprintf(sql, sizeof sql, "UPDATE %s SET run = -run", tables[i]);
        WEFT_TRY(weft_database_script(d, sql));
    }
    for (int i = 0; i < s->variants.n; i++)
        if (!*s->built[i].error) {
            /* The new seeds run wherever the old ones do: at every rate, or at the one that was chosen. */
            for (int rate = 0; rate < rate_places(s); rate++) {
                double there = NAN; /* the rate, by the run of its first seed */
                EACH_ROW(first, d, "SELECT learning_rate FROM runs WHERE run = ?", "i",
                         make_job(s, i, rate, 0, NAN).run)
                    there = sqlite3_column_double(first, 0);
                WEFT_TRY(weft_database_end(d));
                for (int64_t k = before; isfinite(there) && k < s->base.study_seeds; k++)
                    WEFT_TRY(insert_run(d, s, i, rate, (int)k, there));
            }
        }
    char seeds[LIST_ROOM];
    weft_study_seeds_text(s, seeds, LIST_ROOM);
    weft_log(WEFT_LOG_INFO, "this study had %lld seeds and has %lld now; their runs are added",
             (long long)before, (long long)s->base.study_seeds);
    return weft_database_run(d, "UPDATE study SET seeds = ?", "s", seeds);
}

static weft_status renew_variant(weft_database *d, const weft_study *s, int variant) {
    int64_t runs;
    if (s->rate_as[variant] >= 0) /* since a while ago: what was to choose its rate has not begun */
        WEFT_TRY(weft_database_run(d,
                                   "DELETE FROM runs WHERE variant = ? AND seed = ? AND"
                                   " status = 'waiting' AND started IS NULL",
                                   "ii", (int64_t)variant, s->base.study_rate_seed));
    WEFT_TRY(weft_database_number(d, 0, &runs, "SELECT count(*) FROM runs WHERE variant = ?", "i",
                                  (int64_t)variant));
    if (runs == 0 && !*s->built[variant].error) {
        WEFT_TRY(
            weft_database_run(d, "DELETE FROM variants WHERE variant = ?", "i", (int64_t)variant));
        return insert_variant(d, s, variant);
    }
    return weft_database_run(d, "UPDATE variants SET error = nullif(?, '') WHERE variant = ?", "si",
                             s->built[variant].error, (int64_t)variant);
}

/* What a study that goes on has other than when it ended, when it had `seeds`. */
static weft_status renew_all(weft_database *d, const weft_study *s, int64_t seeds) {
    WEFT_AUTO(weft_record_runs_free) weft_record_runs checked = {0};
    if (seeds != s->base.study_seeds) WEFT_TRY(add_seeds(d, s, seeds));
    WEFT_TRY(weft_record_read_runs(d, s, &checked));
    WEFT_TRY(weft_database_script(
        d, "INSERT INTO events(run, kind, detail, at) SELECT run, 'killed',"
           " 'the study was cut off', " WEFT_SQL_NOW " FROM runs WHERE status = 'running';"
           "UPDATE runs SET status = 'waiting' WHERE status = 'running'"));
    for (int i = 0; i < s->variants.n; i++)
        WEFT_TRY(renew_variant(d, s, i));
    WEFT_AUTO_FREE char *config = weft_record_config(&s->base); /* the question may be another */
    if (!config) return no_memory();
    return weft_database_run(d, "UPDATE study SET config = ?", "s", config);
}

weft_status weft_record_match(weft_database *d, weft_study *s) {
    int64_t seeds = s->base.study_seeds;
    EACH_ROW(rows, d, "SELECT config FROM study")
        weft_database_break(d, match_config(d, s, weft_column_text(rows, 0), &seeds));
    WEFT_TRY(weft_database_end(d));
    if (s->base.study_equal == WEFT_EQUAL_TIME) {
        EACH_ROW(rows, d, "SELECT variant, seconds_per_iter FROM variants") {
            int64_t variant = sqlite3_column_int64(rows, 0);
            if (variant < s->variants.n)
                s->built[variant].seconds_per_iter = weft_column_number(rows, 1);
        }
        WEFT_TRY(weft_database_end(d));
        /* Equal time: a variant that could not be built when the others were measured has no seconds. */
        for (int i = 0; i < s->variants.n; i++)
            if (!*s->built[i].error && !(s->built[i].seconds_per_iter > 0))
                snprintf(
                    s->built[i].error, sizeof s->built[i].error,
                    "variant '%s' was not measured with the others, so its time cannot be held "
                    "equal; take another --out",
                    s->variants.list[i].name);
        WEFT_TRY(weft_equal_time(s));
    }
    EACH_ROW(named, d,
             "SELECT variant, name, overrides, error IS NULL FROM variants ORDER BY variant")
        weft_database_break(d, match_variant(d, s, sqlite3_column_int64(named, 0),
                                             weft_column_text(named, 1), weft_column_text(named, 2),
                                             sqlite3_column_int(named, 3)));
    WEFT_TRY(weft_database_end(d));
    WEFT_TRY(weft_database_update(d)); /* not before: what is refused stays as it was */
    if (seeds < 1) return WEFT_BAD_INPUT("%s: its study has no seeds", weft_database_path(d));
    return weft_database_within(d, renew_all(d, s, seeds));
}

/* A row's run as the study would have made it, by its number; what else the row says of it must be the same. */
static weft_status check_job(const weft_database *d, const weft_study *s, sqlite3_stmt *rows,
                             weft_record_run *job) {
    int64_t run = sqlite3_column_int64(rows, 0), row = runs_of_rate(s);
    int64_t variant_runs = row * rate_places(s), at = run - 1;
    bool known = at >= 0 && at / variant_runs < s->variants.n;
    if (known)
        *job = make_job(s, (int)(at / variant_runs), (int)(at % variant_runs / row),
                        (int)(at % row), sqlite3_column_double(rows, 2));
    if (known && *s->built[job->variant].error) { /* which has no config now, and runs nothing */
        job->rate = sqlite3_column_double(rows, 2);
        name_folder(s, job);
    }
    if (known && sqlite3_column_int64(rows, 1) == job->variant &&
        sqlite3_column_double(rows, 2) == job->rate && sqlite3_column_int64(rows, 3) == job->seed &&
        strcmp(weft_column_text(rows, 4), job->folder) == 0)
        return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: run %lld ('%.160s') is none that this study makes; take another --out "
        "(make: OUT=folder)",
        weft_database_path(d), (long long)run, weft_column_text(rows, 4));
}

weft_status weft_record_read_runs(weft_database *d, const weft_study *s, weft_record_runs *out) {
    *out = (weft_record_runs){0};
    EACH_ROW(rows, d,
             "SELECT run, variant, learning_rate, seed, folder,"
             " status, started IS NOT NULL FROM runs ORDER BY run") {
        weft_record_run *job = WEFT_ADD(out->list, out->n);
        weft_database_break(d, job ? check_job(d, s, rows, job) : no_memory());
        for (int i = 0; job && i < WEFT_COUNT(status_names); i++)
            if (strcmp(status_names[i], weft_column_text(rows, 5)) == 0)
                job->status = (weft_run_status)i;
        if (job) job->begun = sqlite3_column_int(rows, 6);
    }
    weft_status status = weft_database_end(d);
    if (status != WEFT_OK) weft_record_runs_free(out);
    return status;
}

void weft_record_runs_free(weft_record_runs *j) {
    free(j->list);
    *j = (weft_record_runs){0};
}

weft_status weft_record_line(weft_database *d, int64_t run, const json_t *line, double metric,
                             bool replace) {
#define INTO_METRICS                                                                               \
    " INTO metrics(run, step, loss, cross_entropy, aux_z, aux_contrastive, logits_z, val_loss,"    \
    " metric_value, lr, grad_norm, tokens_per_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    return weft_database_run(
        d, replace ? "INSERT OR REPLACE" INTO_METRICS : "INSERT" INTO_METRICS, "iidddddddddd", run,
        (int64_t)json_integer_value(json_object_get(line, "step")),
        weft_json_number_of(line, "loss"), weft_json_number_of(line, "cross_entropy"),
        weft_json_number_of(line, "aux_z"), weft_json_number_of(line, "aux_contrastive"),
        weft_json_number_of(line, "logits_z"), weft_json_number_of(line, "val_loss"), metric,
        weft_json_number_of(line, "lr"), weft_json_number_of(line, "grad_norm"),
        weft_json_number_of(line, "tokens_per_s"));
}

/* A change of a run by a statement, and what is told of it, in one transaction; the last of a function. */
#define CHANGE_RUN(d, job, kind, detail, ...)                                                      \
    WEFT_TRY(weft_database_begin(d));                                                              \
    weft_status status = weft_database_run(d, __VA_ARGS__);                                        \
    if (status == WEFT_OK) status = weft_record_event(d, (job)->run, -1, kind, detail);            \
    return weft_database_finish(d, status)

weft_status weft_record_start(weft_database *d, const weft_record_run *job) {
    char host[HOST_ROOM];
    host_name(host);
    CHANGE_RUN(d, job, job->begun ? "resumed" : "started", NULL,
               "UPDATE runs SET status = 'running', why = NULL, host = ?,"
               " resumes = resumes + (started IS NOT NULL),"
               " started = ifnull(started, " WEFT_SQL_NOW "), ended = NULL WHERE run = ?",
               "si", host, job->run);
}

weft_status weft_record_stop(weft_database *d, const weft_record_run *job, double seconds) {
    CHANGE_RUN(d, job, "stopped", NULL,
               "UPDATE runs SET status = 'waiting', seconds = ifnull(seconds, 0) + ? WHERE run = ?",
               "di", seconds, job->run);
}

weft_status weft_record_failure(weft_database *d, const weft_record_run *job, const char *kind,
                                const char *why, double seconds, int64_t memory) {
    CHANGE_RUN(d, job, kind, why,
               "UPDATE runs SET status = 'failed', why = ?, ended = " WEFT_SQL_NOW ","
               " seconds = ifnull(seconds, 0) + ?,"
               " memory_bytes = max(ifnull(memory_bytes, 0), ?) WHERE run = ?",
               "sdii", why, seconds, memory, job->run);
}

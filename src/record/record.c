/* Writing and matching the tables. A run's number follows from its place among steps, rates and
 * seeds, so a step that joins later does not move the others; more seeds move them all. */
#include "record/record.h"

#include "base/log.h"
#include "base/version.h"
#include "record/schema.h"
#include "study/equal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_ROOM = 256, SETS_ROOM = 2 * WEFT_TEXT_MAX, LIST_ROOM = 1 << 15 };

static const char *const status_names[] = {"waiting", "running", "done", "failed", "diverged"};
enum { STATUSES = sizeof status_names / sizeof status_names[0] };

const char *weft_run_status_name(weft_run_status status) {
    return status_names[status];
}

static void host_name(char text[HOST_ROOM]) {
    if (gethostname(text, HOST_ROOM) != 0) snprintf(text, HOST_ROOM, "unknown");
    text[HOST_ROOM - 1] = '\0';
}

/* "KEY=VALUE" lines of every option in their order; the caller frees it. */
static char *config_text(const weft_config *c) {
    char *text = NULL, value[WEFT_TEXT_MAX];
    size_t room = 0;
    int n;
    FILE *out = open_memstream(&text, &room);
    const weft_option *options = weft_options(&n);
    for (int i = 0; out && i < n; i++) {
        weft_config_format(c, &options[i], value, sizeof value);
        fprintf(out, "%s=%s\n", options[i].key, value);
    }
    if (out && fclose(out) != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

static char *config_json(const weft_config *c) {
    json_t *object = weft_config_to_json(c);
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    return text;
}

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "study: no memory for its database");
}

weft_status weft_record_event(weft_database *d, int64_t run, int64_t step, const char *kind,
                              const char *detail) {
    char now[WEFT_TIME_ROOM];
    weft_time_now(now);
    return weft_database_run(d,
                             "INSERT INTO events(run, step, kind, detail, at) VALUES"
                             " (nullif(?, -1), nullif(?, -1), ?, ?, ?)",
                             "iisss", run, step, kind, detail, now);
}

static weft_status insert_study(weft_database *d, const weft_study *s,
                                const weft_study_place *place) {
    char now[WEFT_TIME_ROOM], host[HOST_ROOM], machine[512];
    char *config = config_text(&s->base), *seeds = malloc(LIST_ROOM), *rates = malloc(LIST_ROOM);
    weft_status status = config && seeds && rates ? WEFT_OK : no_memory();
    const char *commit = weft_git_commit();
    weft_time_now(now);
    host_name(host);
    weft_machine_text(machine, sizeof machine);
    if (status == WEFT_OK) {
        weft_study_seeds_text(s, seeds, LIST_ROOM);
        weft_study_rates_text(s, rates, LIST_ROOM);
        status = weft_database_run(
            d,
            "INSERT INTO study(id, schema, name, config, seeds, learning_rates, equal, score, tail,"
            " weft_version, git_commit, created, host, machine, threads, device)"
            " VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            "issssssisssssis", (int64_t)WEFT_SCHEMA_VERSION, s->name, config, seeds, rates,
            weft_config_word(&s->base, WEFT_OPTION(study_equal)),
            weft_config_word(&s->base, WEFT_OPTION(study_score)), s->base.study_tail,
            weft_version(), commit, now, host, machine, (int64_t)place->threads, place->device);
    }
    free(config);
    free(seeds);
    free(rates);
    return status;
}

/* Runs of a rate: one for each seed, and the one that chooses. */
static int runs_of_rate(const weft_study *s) {
    return (int)s->base.study_seeds + weft_study_chooses(s);
}

static void name_folder(const weft_study *s, weft_record_run *job) {
    char number[32];
    weft_study_number(job->rate, number, sizeof number);
    snprintf(job->folder, sizeof job->folder, "runs/%s-lr%s-seed%lld",
             s->steps.list[job->step].name, number, (long long)job->seed);
}

/* Run k of a rate: its seeds in their order, then the one that chooses. The number is the same
 * whichever of them are run. */
static weft_record_run make_job(const weft_study *s, int step, int rate_place, int k) {
    weft_record_run job = {.step = step, .rate = weft_study_rate(s, step, rate_place)};
    job.run = ((int64_t)step * weft_study_step_rates(s) + rate_place) * runs_of_rate(s) + k + 1;
    job.seed = k < (int)s->base.study_seeds ? weft_study_seed(s, k) : s->base.study_rate_seed;
    name_folder(s, &job);
    return job;
}

static weft_status insert_run(weft_database *d, const weft_study *s, int step, int rate_place,
                              int k) {
    weft_record_run job = make_job(s, step, rate_place, k);
    weft_config c;
    weft_study_run_config(s, step, job.rate, job.seed, &c);
    char *json = config_json(&c);
    if (!json) return no_memory();
    weft_status status =
        weft_database_run(d,
                          "INSERT INTO runs(run, step, learning_rate, seed, folder, config)"
                          " VALUES (?, ?, ?, ?, ?, ?)",
                          "iidiss", job.run, (int64_t)step, job.rate, job.seed, job.folder, json);
    free(json);
    return status;
}

/* All of a step's, or at first only those that choose its rate; none of one that takes it over. */
static weft_status insert_runs(weft_database *d, const weft_study *s, int step) {
    int seeds = (int)s->base.study_seeds;
    bool chooses = weft_study_chooses(s);
    if (s->rate_as[step] >= 0) return WEFT_OK;
    for (int rate = 0; rate < weft_study_step_rates(s); rate++)
        for (int k = chooses ? seeds : 0; k < seeds + chooses; k++)
            WEFT_TRY(insert_run(d, s, step, rate, k));
    return WEFT_OK;
}

/* The place of the best rate by the runs that choose; -1: some of them have not ended, or none has
 * a score. The smaller of equals. */
static weft_status find_best_rate(weft_database *d, const weft_study *s, int step, int *place) {
    bool higher = s->base.study_score == WEFT_STUDY_SCORE_METRIC, there;
    double best = NAN, best_rate = NAN;
    int ended = 0;
    sqlite3_stmt *rows;
    *place = -1;
    WEFT_TRY(weft_database_ask(d, &rows,
                               "SELECT learning_rate, score FROM runs WHERE step = ? AND seed = ?"
                               " AND status IN ('done', 'diverged') ORDER BY learning_rate",
                               "ii", (int64_t)step, s->base.study_rate_seed));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        double score = weft_column_number(rows, 1);
        ended++;
        if (isfinite(score) && (isnan(best) || (higher ? score > best : score < best))) {
            best = score;
            best_rate = sqlite3_column_double(rows, 0);
        }
        status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    for (int i = 0; ended == s->n_rates && i < s->n_rates; i++)
        if (s->rates[i] == best_rate) *place = i;
    return status;
}

static weft_status choose_rate(weft_database *d, const weft_study *s, int step, int *added) {
    int place;
    int64_t there;
    WEFT_TRY(weft_database_number(d, 0, &there,
                                  "SELECT count(*) FROM runs WHERE step = ? AND seed <> ?", "ii",
                                  (int64_t)step, s->base.study_rate_seed));
    if (there) return WEFT_OK;
    WEFT_TRY(find_best_rate(d, s, s->rate_as[step] >= 0 ? s->rate_as[step] : step, &place));
    for (int k = 0; place >= 0 && k < (int)s->base.study_seeds; k++) {
        WEFT_TRY(insert_run(d, s, step, place, k));
        ++*added;
    }
    return WEFT_OK;
}

static weft_status choose_rates(weft_database *d, const weft_study *s, int *added) {
    for (int i = 0; i < s->steps.n; i++)
        if (!*s->built[i].error) WEFT_TRY(choose_rate(d, s, i, added));
    return WEFT_OK;
}

weft_status weft_record_choose(weft_database *d, const weft_study *s, int *added) {
    *added = 0;
    if (!weft_study_chooses(s)) return WEFT_OK;
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, choose_rates(d, s, added));
}

static const char *or_null(const char *text) {
    return *text ? text : NULL;
}

/* A step with its costs, or with its error alone; and its runs where it can be built. */
static weft_status insert_step(weft_database *d, const weft_study *s, int step) {
    const weft_study_variant *p = &s->built[step];
    const weft_account *a = &p->account;
    bool built = !*p->error;
    char *sets = malloc(SETS_ROOM);
    if (!sets) return no_memory();
    weft_study_overrides(s, step, sets, SETS_ROOM);
    weft_status status = weft_database_run(
        d,
        "INSERT INTO steps(step, name, baseline, title, overrides, repeats, leaks, error)"
        " VALUES (?, ?, nullif(?, -1), ?, ?, nullif(?, -1), ?, ?)",
        "isissiis", (int64_t)step, p->step->name, (int64_t)p->step->baseline, p->step->title, sets,
        (int64_t)p->step->repeats, (int64_t)(built && weft_config_leaks(&p->config)),
        or_null(p->error));
    free(sets);
    if (status != WEFT_OK || !built) return status;
    WEFT_TRY(weft_database_run(
        d,
        "UPDATE steps SET iters = ?, tokens = ?, parameters = ?, flops_per_token = ?,"
        " training_bytes = ?, cache_bytes_per_token = ?, seconds_per_iter = ? WHERE step = ?",
        "iiidiidi", p->iters, weft_study_tokens(s, step), a->parameters,
        a->forward_flops + a->backward_flops, a->training_bytes, a->cache_bytes_token,
        p->seconds_per_iter, (int64_t)step));
    if (weft_config_leaks(&p->config))
        WEFT_TRY(weft_record_event(d, -1, step, "leaks", p->step->name));
    return insert_runs(d, s, step);
}

static weft_status fill_tables(weft_database *d, const weft_study *s,
                               const weft_study_place *place) {
    WEFT_TRY(weft_database_script(d, WEFT_SCHEMA));
    WEFT_TRY(insert_study(d, s, place));
    for (int i = 0; i < s->steps.n; i++)
        WEFT_TRY(insert_step(d, s, i));
    return WEFT_OK;
}

weft_status weft_record_create(weft_database *d, const weft_study *s,
                               const weft_study_place *place) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, fill_tables(d, s, place));
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

bool weft_record_may_change(const weft_option *o) {
    return o == WEFT_OPTION(study_question) || o == WEFT_OPTION(study_spread) ||
           o == WEFT_OPTION(study_rate_as) || o == WEFT_OPTION(study_yardstick) ||
           o == WEFT_OPTION(eval_inside) || o == WEFT_OPTION(study_weights) ||
           o == WEFT_OPTION(device); /* each run's own is in its record */
}

/* Seeds may be added; those that were run stay the first of them. */
static bool grows(const weft_option *o, const char *was, const char *is) {
    return o == WEFT_OPTION(study_seeds) && strtol(was, NULL, 10) < strtol(is, NULL, 10);
}

/* `seeds`: how many the database's study has. */
static weft_status match_config(weft_database *d, const weft_study *s, const char *lines,
                                int64_t *seeds) {
    char was[WEFT_TEXT_MAX], is[WEFT_TEXT_MAX];
    int n;
    const weft_option *options = weft_options(&n);
    for (int i = 0; i < n; i++) {
        weft_record_value(lines, &options[i], was, sizeof was);
        weft_config_format(&s->base, &options[i], is, sizeof is);
        if (&options[i] == WEFT_OPTION(study_seeds)) *seeds = strtol(was, NULL, 10);
        if (strcmp(was, is) != 0 && !weft_record_may_change(&options[i]) &&
            !grows(&options[i], was, is))
            return weft_fail(WEFT_EINPUT,
                             "%s: CONFIG_%s was %.300s in this study and is %.300s now; take "
                             "another --out (make: OUT=folder), or the config it was started with",
                             weft_database_path(d), options[i].key, *was ? was : "empty",
                             *is ? is : "empty");
    }
    return WEFT_OK;
}

static weft_status match_study(weft_database *d, const weft_study *s, int64_t *seeds) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(d, &rows, "SELECT config FROM study", ""));
    weft_status status = weft_database_next(d, rows, &there);
    if (status == WEFT_OK && !there)
        status = weft_fail(WEFT_EINPUT, "%s: no study in it; take another folder",
                           weft_database_path(d));
    if (status == WEFT_OK) status = match_config(d, s, weft_column_text(rows, 0), seeds);
    weft_database_end(rows);
    return status;
}

/* Step i as the database has it: taken over (equal time), then compared. */
static weft_status load_seconds(weft_database *d, weft_study *s) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(d, &rows, "SELECT step, seconds_per_iter FROM steps", ""));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        int64_t step = sqlite3_column_int64(rows, 0);
        if (step >= 0 && step < s->steps.n)
            s->built[step].seconds_per_iter = weft_column_number(rows, 1);
        status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    return status;
}

static weft_status match_step(const weft_database *d, const weft_study *s, int64_t step,
                              const char *name, const char *sets, bool built) {
    char *now = malloc(SETS_ROOM);
    if (!now) return no_memory();
    bool known = step >= 0 && step < s->steps.n;
    if (known) weft_study_overrides(s, (int)step, now, SETS_ROOM);
    weft_status status = WEFT_OK;
    if (!known || strcmp(s->steps.list[step].name, name) != 0)
        status =
            weft_fail(WEFT_EINPUT, "%s: variant '%s' of this study is none of the config's now",
                      weft_database_path(d), name);
    else if (built && !*s->built[step].error && strcmp(now, sets) != 0)
        status = weft_fail(WEFT_EINPUT,
                           "%s: variant '%s' was '%.300s' in this study and is '%.300s' now; take "
                           "another --out, or the command it was started with",
                           weft_database_path(d), name, sets, now);
    free(now);
    return status;
}

static weft_status match_steps(weft_database *d, const weft_study *s) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(
        d, &rows, "SELECT step, name, overrides, error IS NULL FROM steps ORDER BY step", ""));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        status = match_step(d, s, sqlite3_column_int64(rows, 0), weft_column_text(rows, 1),
                            weft_column_text(rows, 2), sqlite3_column_int(rows, 3));
        if (status == WEFT_OK) status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    return status;
}

/* Equal time: a step that could not be built when the others were measured has no seconds. */
static void refuse_unmeasured(weft_study *s) {
    for (int i = 0; i < s->steps.n; i++)
        if (!*s->built[i].error && !(s->built[i].seconds_per_iter > 0))
            snprintf(s->built[i].error, sizeof s->built[i].error,
                     "variant '%s' was not measured with the others, so its time cannot be held "
                     "equal; take another --out",
                     s->steps.list[i].name);
}

/* Numbers as make_job gives them, where a rate had `before` seeds. No number comes to be twice on the
 * way: they are negative in between. */
static weft_status renumber(weft_database *d, const weft_study *s, int64_t before) {
    static const char *const tables[] = {"runs", "metrics", "events", "facts"};
    int64_t row = runs_of_rate(s), more = s->base.study_seeds - before, old = row - more;
    char sql[160];
    WEFT_TRY(weft_database_script(d, "PRAGMA defer_foreign_keys = ON"));
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        snprintf(sql, sizeof sql,
                 "UPDATE %s SET run = -((run - 1) / ? * ? + (run - 1) %% ?"
                 " + ((run - 1) %% ? >= ?) * ? + 1)",
                 tables[i]);
        WEFT_TRY(weft_database_run(d, sql, "iiiiii", old, row, old, old, before, more));
        snprintf(sql, sizeof sql, "UPDATE %s SET run = -run", tables[i]);
        WEFT_TRY(weft_database_script(d, sql));
    }
    return WEFT_OK;
}

/* The new seeds run wherever the old ones do: at every rate, or at the one that was chosen. */
static weft_status insert_more(weft_database *d, const weft_study *s, int step, int64_t before) {
    for (int rate = 0; rate < weft_study_step_rates(s); rate++) {
        int64_t there;
        WEFT_TRY(weft_database_number(d, 0, &there,
                                      "SELECT count(*) FROM runs WHERE step = ?"
                                      " AND learning_rate = ? AND seed = ?",
                                      "idi", (int64_t)step, weft_study_rate(s, step, rate),
                                      weft_study_seed(s, 0)));
        for (int64_t k = before; there && k < s->base.study_seeds; k++)
            WEFT_TRY(insert_run(d, s, step, rate, (int)k));
    }
    return WEFT_OK;
}

static weft_status add_seeds(weft_database *d, const weft_study *s, int64_t before) {
    WEFT_TRY(renumber(d, s, before));
    for (int i = 0; i < s->steps.n; i++)
        if (!*s->built[i].error) WEFT_TRY(insert_more(d, s, i, before));
    char *config = config_text(&s->base), *seeds = malloc(LIST_ROOM);
    weft_status status = config && seeds ? WEFT_OK : no_memory();
    if (status == WEFT_OK) {
        weft_study_seeds_text(s, seeds, LIST_ROOM);
        status =
            weft_database_run(d, "UPDATE study SET config = ?, seeds = ?", "ss", config, seeds);
    }
    free(config);
    free(seeds);
    return status;
}

static weft_status grow(weft_database *d, const weft_study *s, int64_t before) {
    if (before == s->base.study_seeds) return WEFT_OK;
    if (before < 1)
        return weft_fail(WEFT_EINPUT, "%s: its study has no seeds", weft_database_path(d));
    WEFT_TRY(weft_database_begin(d));
    WEFT_TRY(weft_database_finish(d, add_seeds(d, s, before)));
    weft_log(WEFT_LOG_INFO, "this study had %lld seeds and has %lld now; their runs are added",
             (long long)before, (long long)s->base.study_seeds);
    return WEFT_OK;
}

weft_status weft_record_match(weft_database *d, weft_study *s) {
    int64_t seeds = s->base.study_seeds;
    WEFT_TRY(match_study(d, s, &seeds));
    if (s->base.study_equal == WEFT_EQUAL_TIME) {
        WEFT_TRY(load_seconds(d, s));
        refuse_unmeasured(s);
        WEFT_TRY(weft_equal_time(s));
    }
    WEFT_TRY(match_steps(d, s));
    WEFT_TRY(grow(d, s, seeds));
    weft_record_runs jobs;
    WEFT_TRY(weft_record_read_runs(d, s, &jobs));
    weft_record_runs_free(&jobs);
    return WEFT_OK;
}

static weft_status renew_step(weft_database *d, const weft_study *s, int step) {
    int64_t runs;
    if (s->rate_as[step] >= 0) /* since a while ago: what was to choose its rate has not begun */
        WEFT_TRY(weft_database_run(d,
                                   "DELETE FROM runs WHERE step = ? AND seed = ? AND"
                                   " status = 'waiting' AND started IS NULL",
                                   "ii", (int64_t)step, s->base.study_rate_seed));
    WEFT_TRY(weft_database_number(d, 0, &runs, "SELECT count(*) FROM runs WHERE step = ?", "i",
                                  (int64_t)step));
    if (runs == 0 && !*s->built[step].error) {
        WEFT_TRY(weft_database_run(d, "DELETE FROM steps WHERE step = ?", "i", (int64_t)step));
        return insert_step(d, s, step);
    }
    return weft_database_run(d, "UPDATE steps SET error = ? WHERE step = ?", "si",
                             or_null(s->built[step].error), (int64_t)step);
}

static weft_status renew_all(weft_database *d, const weft_study *s) {
    char now[WEFT_TIME_ROOM];
    weft_time_now(now);
    WEFT_TRY(weft_database_run(d,
                               "INSERT INTO events(run, kind, detail, at) SELECT run, 'killed',"
                               " 'the study was cut off', ? FROM runs WHERE status = 'running'",
                               "s", now));
    WEFT_TRY(weft_database_script(d, "UPDATE runs SET status = 'waiting'"
                                     " WHERE status = 'running'"));
    for (int i = 0; i < s->steps.n; i++)
        WEFT_TRY(renew_step(d, s, i));
    char *config = config_text(&s->base); /* the question may be another */
    if (!config) return no_memory();
    weft_status status = weft_database_run(d, "UPDATE study SET config = ?", "s", config);
    free(config);
    return status;
}

weft_status weft_record_renew(weft_database *d, const weft_study *s) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, renew_all(d, s));
}

static weft_run_status status_of(const char *name) {
    for (int i = 0; i < STATUSES; i++)
        if (strcmp(status_names[i], name) == 0) return (weft_run_status)i;
    return WEFT_RUN_WAITING;
}

/* A row's run as the study would have made it, by its number; what else the row says of it must be
 * the same. */
static weft_status check_job(const weft_database *d, const weft_study *s, sqlite3_stmt *rows,
                             weft_record_run *job) {
    int64_t run = sqlite3_column_int64(rows, 0), row = runs_of_rate(s);
    int64_t step_runs = row * weft_study_step_rates(s), at = run - 1;
    bool known = at >= 0 && at / step_runs < s->steps.n;
    if (known)
        *job = make_job(s, (int)(at / step_runs), (int)(at % step_runs / row), (int)(at % row));
    if (known && *s->built[job->step].error) { /* which has no config now, and runs nothing */
        job->rate = sqlite3_column_double(rows, 2);
        name_folder(s, job);
    }
    if (known && sqlite3_column_int64(rows, 1) == job->step &&
        sqlite3_column_double(rows, 2) == job->rate && sqlite3_column_int64(rows, 3) == job->seed &&
        strcmp(weft_column_text(rows, 4), job->folder) == 0)
        return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: run %lld ('%.160s') is none that this study makes; take another --out "
                     "(make: OUT=folder)",
                     weft_database_path(d), (long long)run, weft_column_text(rows, 4));
}

static weft_status add_job(const weft_database *d, const weft_study *s, weft_record_runs *j,
                           sqlite3_stmt *rows) {
    weft_record_run job;
    WEFT_TRY(check_job(d, s, rows, &job));
    weft_record_run *list = realloc(j->list, (size_t)(j->n + 1) * sizeof *list);
    if (!list) return no_memory();
    j->list = list;
    job.status = status_of(weft_column_text(rows, 5));
    job.begun = sqlite3_column_int(rows, 6);
    list[j->n++] = job;
    return WEFT_OK;
}

weft_status weft_record_read_runs(weft_database *d, const weft_study *s, weft_record_runs *out) {
    sqlite3_stmt *rows;
    bool there;
    *out = (weft_record_runs){0};
    WEFT_TRY(weft_database_ask(d, &rows,
                               "SELECT run, step, learning_rate, seed, folder, status,"
                               " started IS NOT NULL FROM runs ORDER BY run",
                               ""));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        status = add_job(d, s, out, rows);
        if (status == WEFT_OK) status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    if (status != WEFT_OK) weft_record_runs_free(out);
    return status;
}

void weft_record_runs_free(weft_record_runs *j) {
    free(j->list);
    *j = (weft_record_runs){0};
}

static weft_status start_run(weft_database *d, const weft_record_run *job) {
    char now[WEFT_TIME_ROOM], host[HOST_ROOM];
    weft_time_now(now);
    host_name(host);
    WEFT_TRY(weft_database_run(d,
                               "UPDATE runs SET status = 'running', why = NULL, host = ?,"
                               " resumes = resumes + (started IS NOT NULL),"
                               " started = ifnull(started, ?), ended = NULL WHERE run = ?",
                               "ssi", host, now, job->run));
    return weft_record_event(d, job->run, -1, job->begun ? "resumed" : "started", NULL);
}

weft_status weft_record_start(weft_database *d, const weft_record_run *job) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, start_run(d, job));
}

static weft_status stop_run(weft_database *d, const weft_record_run *job, double seconds) {
    WEFT_TRY(weft_database_run(d,
                               "UPDATE runs SET status = 'waiting',"
                               " seconds = ifnull(seconds, 0) + ? WHERE run = ?",
                               "di", seconds, job->run));
    return weft_record_event(d, job->run, -1, "stopped", NULL);
}

weft_status weft_record_stop(weft_database *d, const weft_record_run *job, double seconds) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, stop_run(d, job, seconds));
}

static weft_status fail_run(weft_database *d, const weft_record_run *job, const char *kind,
                            const char *why, double seconds, int64_t memory) {
    char now[WEFT_TIME_ROOM];
    weft_time_now(now);
    WEFT_TRY(weft_database_run(d,
                               "UPDATE runs SET status = 'failed', why = ?, ended = ?,"
                               " seconds = ifnull(seconds, 0) + ?,"
                               " memory_bytes = max(ifnull(memory_bytes, 0), ?) WHERE run = ?",
                               "ssdii", why, now, seconds, memory, job->run));
    return weft_record_event(d, job->run, -1, kind, why);
}

weft_status weft_record_failure(weft_database *d, const weft_record_run *job, const char *kind,
                                const char *why, double seconds, int64_t memory) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, fail_run(d, job, kind, why, seconds, memory));
}

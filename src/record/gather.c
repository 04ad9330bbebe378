/* From run folders to the tables of schema.h. */
#include "record/gather.h"

#include "base/below.h"
#include "base/json.h"
#include "config/config.h"
#include "cpu/backend.h"
#include "model/account.h"
#include "record/database_check.h"
#include "record/schema.h"
#include "record/watched.h"
#include "record/watched_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_ROOM = 512, FOLDER_ROOM = 160 };

/* A step while runs are sorted into steps. */
typedef struct {
    char name[NAME_ROOM];
    char *key;  /* its options without seed and learning rate */
    json_t *of; /* options of its first run */
} group;

typedef struct {
    const char *folder;
    weft_watched *watched;
    weft_database *d;
    group *groups;
    int n_groups;
    weft_config *config, *first; /* a run's, and the first run's */
    json_t *seen;                /* "step rate seed" of every run so far */
} gathering;

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "runs: no memory to gather them");
}

/* "runs/gate-lr0.002-seed1" is step "gate". */
static void name_step(const char *run, char out[NAME_ROOM]) {
    snprintf(out, NAME_ROOM, "%s", run);
    for (int i = 0; i < 2; i++) {
        char *dash = strrchr(out, '-');
        bool seed = dash && strncmp(dash, "-seed", 5) == 0,
             rate = dash && strncmp(dash, "-lr", 3) == 0;
        if (dash && dash > out && (seed || rate)) *dash = '\0';
    }
}

static char *key_of(const json_t *options) {
    json_t *rest = json_copy((json_t *)(uintptr_t)options);
    json_object_del(rest, "SEED");
    json_object_del(rest, "LEARNING_RATE");
    char *key = rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(rest);
    return key;
}

/* What a step has other than the first, "KEY=VALUE KEY=VALUE". */
static char *overrides_of(const gathering *g, const json_t *options) {
    char *text = NULL;
    size_t bytes = 0;
    int count;
    const weft_option *list = weft_options(&count);
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    weft_config plain;
    weft_config_defaults(&plain);
    for (int i = 0; i < count; i++) {
        const char *name = list[i].key;
        json_t *own = json_object_get(options, name),
               *base = json_object_get(g->groups[0].of, name);
        char value[WEFT_TEXT_MAX];
        bool rate = strcmp(name, "LEARNING_RATE") == 0 || strcmp(name, "SEED") == 0;
        if (rate || (!own && !base) || (own && base && json_equal(own, base))) continue;
        weft_config_format(own ? g->config : &plain, &list[i], value, sizeof value);
        fprintf(out, "%s%s=%s", ftell(out) ? " " : "", name, value);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static bool has_name(const gathering *g, const char *name) {
    for (int i = 0; i < g->n_groups; i++)
        if (strcmp(g->groups[i].name, name) == 0) return true;
    return false;
}

static weft_status insert_step(gathering *g, int step, const char *overrides) {
    const weft_config *c = g->config;
    weft_account a = {0};
    bool counted = weft_account_make(c, weft_cpu_backend(), 1, &a) == WEFT_OK;
    int64_t tokens = c->batch_size * c->gradient_accumulation * c->context;
    return weft_database_run(
        g->d,
        "INSERT INTO steps(step, name, baseline, title, overrides, iters, tokens, parameters,"
        " flops_per_token, training_bytes, cache_bytes_per_token, leaks)"
        " VALUES (?, ?, CASE WHEN ?1 = 0 THEN NULL ELSE 0 END, ?2, ?, ?, ?, ?, ?, ?, ?, ?)",
        "issiiidiii", (int64_t)step, g->groups[step].name, overrides, c->steps, tokens * c->steps,
        a.parameters, counted ? a.forward_flops + a.backward_flops : NAN, a.training_bytes,
        a.cache_bytes_token, (int64_t)weft_config_leaks(c));
}

/* The step of a run: one with its key, where it has no run of this rate and seed yet, or a new one. */
static weft_status find_step(gathering *g, const json_t *run, int *out) {
    const json_t *options = json_object_get(run, "options");
    char *key = key_of(options), place[128];
    if (!key) return no_memory();
    for (int i = 0; i < g->n_groups; i++) {
        if (strcmp(g->groups[i].key, key) != 0) continue;
        snprintf(place, sizeof place, "%d %.17g %lld", i, g->config->learning_rate,
                 (long long)g->config->seed);
        if (json_object_get(g->seen, place)) continue;
        free(key);
        *out = i;
        return WEFT_OK;
    }
    group *grown = realloc(g->groups, (size_t)(g->n_groups + 1) * sizeof *grown);
    if (!grown) {
        free(key);
        return no_memory();
    }
    g->groups = grown;
    group *one = &grown[g->n_groups];
    *one = (group){.key = key, .of = json_incref((json_t *)(uintptr_t)options)};
    name_step(json_string_value(json_object_get(run, "name")), one->name);
    if (has_name(g, one->name))
        snprintf(one->name, sizeof one->name, "%s",
                 json_string_value(json_object_get(run, "name")));
    *out = g->n_groups++;
    char *overrides = overrides_of(g, options);
    if (!overrides) return no_memory();
    weft_status status = insert_step(g, *out, *out ? overrides : "");
    free(overrides);
    return status;
}

static weft_status insert_line(gathering *g, int64_t run, const json_t *line) {
    const json_t *step = json_object_get(line, "step");
    if (!json_is_integer(step)) return WEFT_OK;
    return weft_database_run(
        g->d,
        "INSERT OR REPLACE INTO metrics(run, step, loss, cross_entropy, aux_z, aux_contrastive,"
        " logits_z, val_loss, lr, grad_norm, tokens_per_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?)",
        "iiddddddddd", run, (int64_t)json_integer_value(step), weft_json_number_of(line, "loss"),
        weft_json_number_of(line, "cross_entropy"), weft_json_number_of(line, "aux_z"),
        weft_json_number_of(line, "aux_contrastive"), weft_json_number_of(line, "logits_z"),
        weft_json_number_of(line, "val_loss"), weft_json_number_of(line, "lr"),
        weft_json_number_of(line, "grad_norm"), weft_json_number_of(line, "tokens_per_s"));
}

typedef struct {
    gathering *g;
    int64_t run;
    weft_status status;
} inserting;

static void take_line(void *context, const json_t *line) {
    inserting *in = context;
    if (in->status == WEFT_OK) in->status = insert_line(in->g, in->run, line);
}

static weft_status insert_lines(gathering *g, int64_t run, int folder) {
    inserting in = {g, run, WEFT_OK};
    weft_lines_place *place = calloc(1, sizeof *place);
    int64_t all = INT64_MAX;
    int file = -1;
    weft_status status = place ? WEFT_OK : no_memory();
    if (status == WEFT_OK) status = weft_below_file(folder, "metrics.jsonl", &file);
    if (status == WEFT_OK) status = weft_lines_follow(file, place, &all, take_line, &in);
    if (file >= 0) close(file);
    free(place);
    return status == WEFT_OK ? in.status : status;
}

/* A run that was stopped, or cut off, waits to be gone on with. */
static const char *status_name(const char *status) {
    static const char *const same[] = {"running", "done", "diverged"};
    for (int i = 0; i < 3; i++)
        if (strcmp(status, same[i]) == 0) return same[i];
    return "waiting";
}

/* As a study names its runs' folders: in runs/, and without a folder of their own. */
static void name_folder(const char *run, char out[FOLDER_ROOM]) {
    snprintf(out, FOLDER_ROOM, "runs/%s%.140s", *run == '.' ? "_" : "", run);
    for (char *at = out + 5; *at; at++)
        if (*at == '/') *at = '_';
}

static weft_status insert_run(gathering *g, int64_t id, int step, const json_t *run,
                              double seconds) {
    const char *status = status_name(json_string_value(json_object_get(run, "status")));
    bool done = strcmp(status, "done") == 0;
    char folder[FOLDER_ROOM];
    name_folder(json_string_value(json_object_get(run, "name")), folder);
    json_t *object = weft_config_to_json(g->config);
    char *config = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!config) return no_memory();
    double val = weft_json_number_of(run, "val_loss");
    weft_status result = weft_database_run(
        g->d,
        "INSERT INTO runs(run, step, learning_rate, seed, folder, status, config, iters, val_loss,"
        " best_val_loss, score, seconds, tokens_per_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?)",
        "iidisssiddddd", id, (int64_t)step, g->config->learning_rate, g->config->seed, folder,
        status, config, (int64_t)json_integer_value(json_object_get(run, "step")), done ? val : NAN,
        weft_json_number_of(run, "best_val_loss"), done ? val : NAN, seconds,
        weft_json_number_of(run, "tokens_per_s"));
    free(config);
    return result;
}

static double seconds_of(int folder) {
    char *text;
    size_t bytes;
    if (weft_below_read(folder, "result.json", 1 << 20, &text, &bytes) != WEFT_OK) return NAN;
    json_t *result = weft_json_read(text, bytes, 0, NULL);
    free(text);
    double seconds = weft_json_number_of(result, "seconds");
    json_decref(result);
    return seconds;
}

/* A run without a config has the defaults. */
static weft_status read_config(gathering *g, int folder, const char *name) {
    struct stat is;
    FILE *file;
    char path[WEFT_PATH_MAX];
    weft_config_defaults(g->config);
    if (fstatat(folder, "config", &is, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) return WEFT_OK;
    WEFT_TRY(weft_path(path, "%s/%s/config", g->folder, name));
    WEFT_TRY(weft_below_stream(folder, "config", &file));
    return weft_config_read_stream(g->config, file, path);
}

static weft_status add_run(gathering *g, const json_t *run, int64_t *count) {
    char place[128];
    const char *name = json_string_value(json_object_get(run, "name"));
    int step = 0;
    int folder = weft_watched_folder(g->watched, json_integer_value(json_object_get(run, "id")));
    if (folder < 0) return weft_fail(WEFT_EIO, "%s/%s: cannot be opened", g->folder, name);
    weft_status status = read_config(g, folder, name);
    if (status == WEFT_OK && *count == 0) *g->first = *g->config;
    if (status == WEFT_OK) status = find_step(g, run, &step);
    snprintf(place, sizeof place, "%d %.17g %lld", step, g->config->learning_rate,
             (long long)g->config->seed);
    json_object_set_new(g->seen, place, json_true());
    if (status == WEFT_OK) status = insert_run(g, ++*count, step, run, seconds_of(folder));
    if (status == WEFT_OK) status = insert_lines(g, *count, folder);
    close(folder);
    return status;
}

/* The study's own row: its name is the folder's, its config the first run's. */
static weft_status insert_study(gathering *g) {
    char value[WEFT_TEXT_MAX], now[WEFT_TIME_ROOM], *lines = NULL;
    size_t bytes = 0;
    int count;
    const weft_option *options = weft_options(&count);
    FILE *out = open_memstream(&lines, &bytes);
    if (!out) return no_memory();
    for (int i = 0; i < count; i++) {
        weft_config_format(g->first, &options[i], value, sizeof value);
        fprintf(out, "%s=%s\n", options[i].key, value);
    }
    if (fclose(out) != 0) {
        free(lines);
        return no_memory();
    }
    weft_time_now(now);
    const char *slash = strrchr(g->folder, '/');
    weft_status status =
        weft_database_run(g->d,
                          "INSERT INTO study(id, schema, name, config, seeds, learning_rates, "
                          "equal, score, tail, created)"
                          " VALUES (1, ?, ?, ?, '', '', 'iters', 'val_loss', 100, ?)",
                          "isss", (int64_t)WEFT_SCHEMA_VERSION,
                          slash && slash[1] ? slash + 1 : g->folder, lines, now);
    free(lines);
    return status;
}

static weft_status fill(gathering *g) {
    json_t *news = weft_watched_news(g->watched, 0), *run;
    const json_t *runs = json_object_get(news, "runs");
    int64_t count = 0;
    size_t i;
    weft_status status = news ? WEFT_OK : no_memory();
    json_array_foreach(runs, i, run) {
        if (status == WEFT_OK) status = add_run(g, run, &count);
    }
    if (status == WEFT_OK) status = insert_study(g);
    json_decref(news);
    return status;
}

static weft_status write_database(gathering *g) {
    WEFT_TRY(weft_database_scratch(g->folder, &g->d));
    WEFT_TRY(weft_database_begin(g->d));
    weft_status status = weft_database_script(g->d, WEFT_SCHEMA);
    if (status == WEFT_OK) status = fill(g);
    if (status == WEFT_OK) status = weft_database_check(g->d, WEFT_SCHEMA_VERSION);
    return weft_database_finish(g->d, status);
}

weft_status weft_gather(const char *folder, weft_database **out) {
    gathering g = {.folder = folder,
                   .config = malloc(sizeof *g.config),
                   .first = malloc(sizeof *g.first),
                   .seen = json_object()};
    *out = NULL;
    weft_status status = g.config && g.first && g.seen ? WEFT_OK : no_memory();
    if (status == WEFT_OK) status = weft_watched_open(&folder, 1, false, &g.watched);
    while (status == WEFT_OK && !weft_watched_look(g.watched))
        ;
    if (status == WEFT_OK && weft_watched_count(g.watched) == 0)
        status =
            weft_fail(WEFT_EINPUT,
                      "%s: holds no study (runs.db) and no run (metrics.jsonl); weft study or weft "
                      "train --out makes one",
                      folder);
    if (status == WEFT_OK && weft_watched_is_full(g.watched))
        status = weft_fail(WEFT_EINPUT,
                           "%s: holds more runs than can be listed together (%d); name a folder "
                           "in it",
                           folder, weft_watched_count(g.watched));
    if (status == WEFT_OK) status = write_database(&g);
    if (status == WEFT_OK)
        *out = g.d;
    else
        weft_database_close(g.d);
    for (int i = 0; i < g.n_groups; i++) {
        free(g.groups[i].key);
        json_decref(g.groups[i].of);
    }
    free(g.groups);
    free(g.config);
    free(g.first);
    json_decref(g.seen);
    weft_watched_close(g.watched);
    return status;
}

/* From run folders to the tables of schema.c. */
#include "record/gather.h"
#include "base/text.h"

#include "base/folders.h"
#include "base/json.h"
#include "record/record.h"
#include "record/watched.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_ROOM = 512, FOLDER_ROOM = 160 };

/* A variant while runs are sorted into variants. */
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
    json_t *seen;                /* "variant rate seed" of every run so far */
    int64_t run;                 /* whose lines are read, */
    weft_status taken;           /* and what became of them */
} gathering;

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "runs: no memory to gather them");
}

static char *key_of(const json_t *options) {
    json_t *rest = json_copy((json_t *)(uintptr_t)options);
    json_object_del(rest, "SEED");
    json_object_del(rest, "LEARNING_RATE");
    char *key = rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(rest);
    return key;
}

/* What a variant has other than the first, "KEY=VALUE KEY=VALUE". */
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
    return weft_memory_end(out, &text);
}

static bool has_name(const gathering *g, const char *name) {
    for (int i = 0; i < g->n_groups; i++)
        if (strcmp(g->groups[i].name, name) == 0) return true;
    return false;
}

/* The first variant with the same text and tokens: losses of others cannot be compared. */
static int find_baseline(const gathering *g, int variant) {
    static const char *const keys[] = {"DATASET", "TOKENIZER", "VOCAB_SIZE"};
    for (int i = 0; i < variant; i++) {
        bool same = true;
        for (int k = 0; k < 3 && same; k++) {
            json_t *own = json_object_get(g->groups[variant].of, keys[k]),
                   *other = json_object_get(g->groups[i].of, keys[k]);
            same = own == other || (own && other && json_equal(own, other));
        }
        if (same) return i;
    }
    return variant;
}

static weft_status insert_variant(gathering *g, int variant, const char *overrides) {
    const weft_config *c = g->config;
    weft_account a = {0};
    bool counted = weft_account_make(c, NULL, 1, &a) == WEFT_OK;
    int64_t tokens = c->batch_size * c->gradient_accumulation * c->context;
    return weft_database_run(
        g->d,
        "INSERT INTO variants(variant, name, baseline, title, overrides, iters, tokens, parameters,"
        " flops_per_token, training_bytes, cache_bytes_per_token, leaks)"
        " VALUES (?, ?, nullif(?, ?1), ?2, ?, ?, ?, ?, ?, ?, ?, ?)",
        "isisiiidiii", (int64_t)variant, g->groups[variant].name,
        (int64_t)find_baseline(g, variant), overrides, c->steps, tokens * c->steps, a.parameters,
        counted ? a.forward_flops + a.backward_flops : NAN, a.training_bytes, a.cache_bytes_token,
        (int64_t)weft_config_leaks(c));
}

/* Whether a variant has no run of this rate and seed yet; from now on it has. */
static bool take_place(gathering *g, int variant) {
    char place[128];
    snprintf(place, sizeof place, "%d %.17g %lld", variant, g->config->learning_rate,
             (long long)g->config->seed);
    if (json_object_get(g->seen, place)) return false;
    json_object_set_new(g->seen, place, json_true());
    return true;
}

/* The variant of a run: one with its key, where it has no run of this rate and seed yet, or a new one. */
static weft_status find_variant(gathering *g, const json_t *run, int *out) {
    json_t *options = json_object_get(run, "options");
    const char *name = json_string_value(json_object_get(run, "name"));
    group *grown = realloc(g->groups, (size_t)(g->n_groups + 1) * sizeof *grown);
    if (grown) g->groups = grown;
    char *key = grown ? key_of(options) : NULL;
    if (!key) return no_memory();
    for (*out = 0; *out < g->n_groups; ++*out) {
        if (strcmp(grown[*out].key, key) != 0 || !take_place(g, *out)) continue;
        free(key);
        return WEFT_OK;
    }
    group *one = &grown[*out];
    *one = (group){.key = key, .of = json_incref(options)};
    snprintf(one->name, sizeof one->name, "%s", name);
    for (int i = 0; i < 2; i++) { /* "runs/gate-lr0.002-seed1" is variant "gate" */
        char *dash = strrchr(one->name, '-');
        bool tail = dash && (strncmp(dash, "-seed", 5) == 0 || strncmp(dash, "-lr", 3) == 0);
        if (tail && dash > one->name) *dash = '\0';
    }
    if (has_name(g, one->name)) snprintf(one->name, sizeof one->name, "%s", name);
    g->n_groups++;
    take_place(g, *out);
    WEFT_AUTO_FREE char *overrides = overrides_of(g, options);
    return overrides ? insert_variant(g, *out, *out ? overrides : "") : no_memory();
}

static void take_line(void *context, const json_t *line) {
    gathering *g = context;
    if (g->taken == WEFT_OK && json_is_integer(json_object_get(line, "step")))
        g->taken = weft_record_line(g->d, g->run, line, NAN, true);
}

/* A run that was stopped, or cut off, waits to be gone on with. */
static const char *status_name(const char *status) {
    static const char *const same[] = {"running", "done", "diverged"};
    for (int i = 0; i < 3; i++)
        if (strcmp(status, same[i]) == 0) return same[i];
    return "waiting";
}

static weft_status insert_run(gathering *g, int64_t id, int variant, const json_t *run,
                              double seconds) {
    const char *status = status_name(json_string_value(json_object_get(run, "status")));
    bool done = strcmp(status, "done") == 0;
    char folder[FOLDER_ROOM];
    /* As a study names its runs' folders: in runs/, and without a folder of their own. */
    const char *name = json_string_value(json_object_get(run, "name"));
    snprintf(folder, FOLDER_ROOM, "runs/%s%.140s", *name == '.' ? "_" : "", name);
    for (char *at = folder + 5; *at; at++)
        if (*at == '/') *at = '_';
    WEFT_AUTO_FREE char *config = weft_record_config_json(g->config);
    if (!config) return no_memory();
    double val = weft_json_number_of(run, "val_loss");
    return weft_database_run(
        g->d,
        "INSERT INTO runs(run, variant, learning_rate, seed, folder, status, config, iters, "
        "val_loss,"
        " best_val_loss, score, seconds, tokens_per_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?)",
        "iidisssiddddd", id, (int64_t)variant, g->config->learning_rate, g->config->seed, folder,
        status, config, (int64_t)json_integer_value(json_object_get(run, "step")), done ? val : NAN,
        weft_json_number_of(run, "best_val_loss"), done ? val : NAN, seconds,
        weft_json_number_of(run, "tokens_per_s"));
}

static double seconds_of(int folder) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    if (weft_below_read(folder, "result.json", 1 << 20, &text, &bytes) != WEFT_OK) return NAN;
    WEFT_AUTO_DECREF json_t *result = weft_json_read(text, bytes, 0, NULL);
    return weft_json_number_of(result, "seconds");
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

static weft_status fill(gathering *g) {
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(g->watched, 0);
    json_t *run;
    int64_t count = 0;
    size_t i;
    if (!news) return no_memory();
    json_array_foreach(json_object_get(news, "runs"), i, run) {
        const char *name = json_string_value(json_object_get(run, "name"));
        int variant = 0;
        WEFT_AUTO_CLOSE int folder =
            weft_watched_folder(g->watched, json_integer_value(json_object_get(run, "id")));
        if (folder < 0) return weft_fail(WEFT_EIO, "%s/%s: cannot be opened", g->folder, name);
        WEFT_TRY(read_config(g, folder, name));
        if (count == 0) *g->first = *g->config;
        WEFT_TRY(find_variant(g, run, &variant));
        WEFT_TRY(insert_run(g, ++count, variant, run, seconds_of(folder)));
        weft_lines_place place = {0};
        int64_t all = INT64_MAX;
        WEFT_AUTO_CLOSE int file = -1;
        g->run = count;
        g->taken = WEFT_OK;
        WEFT_TRY(weft_below_file(folder, "metrics.jsonl", &file));
        WEFT_TRY(weft_lines_follow(file, &place, &all, take_line, g));
        WEFT_TRY(g->taken);
    }
    /* The study's own row: its name is the folder's, its config the first run's. */
    char now[WEFT_TIME_ROOM];
    WEFT_AUTO_FREE char *lines = weft_record_config(g->first);
    if (!lines) return no_memory();
    weft_time_now(now);
    const char *slash = strrchr(g->folder, '/');
    return weft_database_run(g->d,
                             "INSERT INTO study(id, schema, name, config, seeds, learning_rates, "
                             "equal, score, tail, created)"
                             " VALUES (1, ?, ?, ?, '', '', 'iters', 'val_loss', 100, ?)",
                             "isss", (int64_t)WEFT_SCHEMA_VERSION,
                             slash && slash[1] ? slash + 1 : g->folder, lines, now);
}

static void end_gathering(gathering *g) {
    weft_database_close(g->d);
    for (int i = 0; i < g->n_groups; i++) {
        free(g->groups[i].key);
        json_decref(g->groups[i].of);
    }
    free(g->groups);
    free(g->config);
    free(g->first);
    json_decref(g->seen);
    weft_watched_close(g->watched);
}

static weft_status gather(const char *folder, weft_database **out) {
    *out = NULL;
    WEFT_AUTO(end_gathering)
    gathering g = {.folder = folder,
                   .config = malloc(sizeof *g.config),
                   .first = malloc(sizeof *g.first),
                   .seen = json_object()};
    if (!g.config || !g.first || !g.seen) return no_memory();
    WEFT_TRY(weft_watched_open(&folder, 1, false, &g.watched));
    while (!weft_watched_look(g.watched))
        ;
    if (weft_watched_count(g.watched) == 0)
        return weft_fail(WEFT_EINPUT,
                         "%s: holds no study (runs.db) and no run (metrics.jsonl); weft study or "
                         "weft train --out makes one",
                         folder);
    if (weft_watched_is_full(g.watched))
        return weft_fail(WEFT_EINPUT,
                         "%s: holds more runs than can be listed together (%d); name a folder "
                         "in it",
                         folder, weft_watched_count(g.watched));
    WEFT_TRY(weft_database_scratch(g.folder, &g.d));
    WEFT_TRY(weft_database_begin(g.d));
    weft_status status = weft_database_make_tables(g.d);
    if (status == WEFT_OK) status = fill(&g);
    if (status == WEFT_OK) status = weft_database_check(g.d);
    WEFT_TRY(weft_database_finish(g.d, status));
    *out = g.d;
    g.d = NULL;
    return WEFT_OK;
}

weft_status weft_listing_open(const char *path, weft_database **out) {
    struct stat is;
    char file[WEFT_PATH_MAX];
    bool there;
    *out = NULL;
    if (stat(path, &is) != 0 || !S_ISDIR(is.st_mode)) return weft_database_open(path, false, out);
    WEFT_TRY(weft_path(file, "%s/runs.db", path));
    WEFT_TRY(weft_path_there(file, &there));
    return there ? weft_database_open(file, false, out) : gather(path, out);
}

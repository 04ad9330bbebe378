/* Databases out of several places: a folder of runs that no study made as one, so that everything that is told
 * of a study can be told of them; and databases of one study that were made on several machines, or one after
 * the other, as one. */
#include "base/text.h"

#include "base/beside.h"
#include "base/json.h"
#include "record/record.h"
#include "record/watched.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>

enum { NAME_ROOM = 512, FOLDER_ROOM = 160 };

typedef struct {
    const char *folder;
    weft_watched *watched;
    weft_database *d;
    weft_config config, first; /* a run's, and the first run's */
    int64_t run;               /* whose lines are read, */
    weft_status taken;         /* and what became of them */
} gathering;

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "runs: no memory to gather them");
}

/* A new variant, compared with the first of the same text and tokens: losses of others cannot be compared. */
static weft_status insert_variant(gathering *g, int64_t variant, const char *name) {
    const weft_config *c = &g->config;
    weft_account a = {0};
    bool counted = weft_account_make(c, NULL, 1, &a) == WEFT_OK;
    int64_t tokens = c->batch_size * c->gradient_accumulation * c->context;
    /* What a run has other than the first, "KEY=VALUE KEY=VALUE". */
    char *text = NULL, own[WEFT_TEXT_MAX];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    for (const weft_option *o = weft_options(NULL); out && o->key; o++) {
        if (o->owner == WEFT_OWNER_STUDY || o == WEFT_OPTION(learning_rate) ||
            weft_option_same(c, &g->first, o))
            continue;
        weft_config_format(c, o, own, sizeof own);
        fprintf(out, "%s%s=%s", ftell(out) ? " " : "", o->key, own);
    }
    WEFT_AUTO_FREE char *overrides = out ? weft_memory_end(out, &text) : NULL;
    if (!overrides) return no_memory();
    return weft_database_run(
        g->d,
        "INSERT INTO variants(variant, name, baseline, title, overrides, iters, tokens, parameters,"
        " flops_per_token, training_bytes, cache_bytes_per_token, leaks)"
        " SELECT ?1, ?2, nullif(min(a.variant), ?1), ?2, ?, ?, ?, ?, ?, ?, ?, ?"
        " FROM sorted a JOIN sorted b USING (text) WHERE b.variant = ?1",
        "issiiidiii", variant, name, overrides, c->steps, tokens * c->steps, a.parameters,
        counted ? a.forward_flops + a.backward_flops : NAN, a.training_bytes, a.cache_bytes_token,
        (int64_t)weft_config_leaks(c));
}

/* The variant of a run: one with its key, where it has no run of this rate and seed yet, or a new one. */
static weft_status find_variant(gathering *g, const json_t *run, int64_t *out) {
    const json_t *options = json_object_get(run, "options");
    const char *name = json_string_value(json_object_get(run, "name"));
    char own[NAME_ROOM];
    int64_t taken;
    WEFT_AUTO_DECREF json_t *rest = json_copy((json_t *)(uintptr_t)options);
    json_object_del(rest, "SEED");
    json_object_del(rest, "LEARNING_RATE");
    WEFT_AUTO_FREE char *key = rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    WEFT_AUTO_FREE char *text = weft_json_line(
        json_pack("[O?, O?, O?]", json_object_get(options, "DATASET"),
                  json_object_get(options, "TOKENIZER"), json_object_get(options, "VOCAB_SIZE")));
    if (!key || !text) return no_memory();
    WEFT_TRY(weft_database_number(
        g->d, -1, out,
        "SELECT min(variant) FROM sorted s WHERE key = ? AND NOT EXISTS (SELECT 1 FROM runs"
        " WHERE variant = s.variant AND learning_rate = ? AND seed = ?)",
        "sdi", key, g->config.learning_rate, g->config.seed));
    if (*out >= 0) return WEFT_OK;
    snprintf(own, sizeof own, "%s", name);
    for (int i = 0; i < 2; i++) { /* "runs/gate-lr0.002-seed1" is variant "gate" */
        char *dash = strrchr(own, '-');
        bool tail = dash && (strncmp(dash, "-seed", 5) == 0 || strncmp(dash, "-lr", 3) == 0);
        if (tail && dash > own) *dash = '\0';
    }
    WEFT_TRY(weft_database_number(g->d, 0, &taken, "SELECT count(*) FROM variants WHERE name = ?",
                                  "s", own));
    WEFT_TRY(weft_database_number(g->d, 0, out, "SELECT count(*) FROM variants", ""));
    if (*out >= WEFT_VARIANTS_MAX)
        return WEFT_BAD_INPUT("%s: its runs are of more variants than can be listed together (%d); "
                              "name a folder in it",
                              g->folder, WEFT_VARIANTS_MAX);
    WEFT_TRY(
        weft_database_run(g->d, "INSERT INTO sorted VALUES (?, ?, ?)", "iss", *out, key, text));
    return insert_variant(g, *out, taken ? name : own);
}

static void take_line(void *context, const json_t *line) {
    gathering *g = context;
    if (g->taken == WEFT_OK && json_is_integer(json_object_get(line, "step")))
        g->taken = weft_record_line(g->d, g->run, line, NAN, true);
}

static weft_status insert_run(gathering *g, int64_t id, int64_t variant, const json_t *run,
                              double seconds) {
    const char *status = json_string_value(json_object_get(run, "status"));
    const char *name = json_string_value(json_object_get(run, "name"));
    if (!status || !name) return no_memory();
    bool done = strcmp(status, "done") == 0;
    if (strcmp(status, "stopped") == 0 || strcmp(status, "ended") == 0)
        status = "waiting"; /* to be gone on with */
    char folder[FOLDER_ROOM];
    /* As a study names its runs' folders: in runs/, and without a folder of their own. */
    snprintf(folder, FOLDER_ROOM, "runs/%s%.140s", *name == '.' ? "_" : "", name);
    for (char *at = folder + 5; *at; at++)
        if (*at == '/') *at = '_';
    WEFT_AUTO_FREE char *config = weft_record_config_json(&g->config);
    if (!config) return no_memory();
    double val = weft_json_number_of(run, "val_loss");
    WEFT_TRY(weft_database_run(
        g->d,
        "INSERT INTO runs(run, variant, learning_rate, seed, folder, status, config, iters, "
        "val_loss,"
        " best_val_loss, score, seconds, tokens_per_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?)",
        "iidisssiddddd", id, variant, g->config.learning_rate, g->config.seed, folder, status,
        config, (int64_t)json_integer_value(json_object_get(run, "step")), done ? val : NAN,
        weft_json_number_of(run, "best_val_loss"), done ? val : NAN, seconds,
        weft_json_number_of(run, "tokens_per_s")));
    /* Where it is, for its samples and maps. */
    return weft_database_run(g->d, "INSERT INTO facts(run, name, value) VALUES (?, 'place', ?)",
                             "is", id, name);
}

static weft_status fill(gathering *g) {
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(g->watched, 0);
    int64_t count = 0;
    if (!news) return no_memory();
    WEFT_TRY(weft_database_make_tables(g->d));
    /* Variants by what their runs have in common, and by the options that say what text they are of. */
    WEFT_TRY(weft_database_script(g->d, "CREATE TEMP TABLE sorted(variant, key, text)"));
    EACH_ITEM(one, json_object_get(news, "runs")) {
        const json_t *run = one.value;
        const char *name = json_string_value(json_object_get(run, "name"));
        int64_t variant;
        WEFT_AUTO_CLOSE int folder =
            weft_watched_folder(g->watched, json_integer_value(json_object_get(run, "id")));
        if (folder < 0) return weft_fail(WEFT_EIO, "%s/%s: cannot be opened", g->folder, name);
        /* A run without a config has the defaults. */
        struct stat is;
        WEFT_AUTO_FREE char *text = NULL;
        size_t bytes;
        weft_config_defaults(&g->config);
        if (fstatat(folder, "config", &is, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT) {
            WEFT_PATH(path, "%s/%s/config", g->folder, name);
            WEFT_TRY(weft_below_read(folder, "config", WEFT_CONFIG_BYTES, &text, &bytes));
            WEFT_TRY(weft_config_read_text(&g->config, text, bytes, path));
        }
        if (count == 0) g->first = g->config;
        WEFT_TRY(find_variant(g, run, &variant));
        WEFT_AUTO_FREE char *ended = NULL;
        WEFT_AUTO_DECREF json_t *result = NULL;
        if (weft_below_read(folder, "result.json", 1 << 20, &ended, &bytes) == WEFT_OK)
            result = weft_json_read(ended, bytes, 0, NULL);
        double seconds = weft_json_number_of(result, "seconds");
        WEFT_TRY(insert_run(g, ++count, variant, run, seconds));
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
    WEFT_AUTO_FREE char *lines = weft_record_config(&g->first);
    if (!lines) return no_memory();
    const char *slash = strrchr(g->folder, '/');
    WEFT_TRY(weft_database_run(
        g->d,
        "INSERT INTO study(id, schema, name, config, seeds, learning_rates, equal, score, tail,"
        " created) VALUES (1, ?, ?, ?, '', '', 'iters', 'val_loss', 100, " WEFT_SQL_NOW ")",
        "iss", (int64_t)WEFT_SCHEMA_VERSION, slash && slash[1] ? slash + 1 : g->folder, lines));
    return weft_database_check(g->d);
}

static void end_gathering(gathering *g) {
    weft_database_close(g->d);
    weft_watched_close(g->watched);
}

static weft_status gather(const char *folder, weft_database **out) {
    *out = NULL;
    WEFT_AUTO(end_gathering)
    gathering g = {.folder = folder};
    WEFT_TRY(weft_watched_open(&folder, 1, false, &g.watched));
    while (!weft_watched_look(g.watched))
        ;
    if (weft_watched_count(g.watched) == 0)
        return WEFT_BAD_INPUT(
            "%s: holds no study (runs.db) and no run (metrics.jsonl); weft study or "
            "weft train --out makes one",
            folder);
    if (weft_watched_is_full(g.watched))
        return WEFT_BAD_INPUT("%s: holds more runs than can be listed together (%d); name a folder "
                              "in it",
                              folder, weft_watched_count(g.watched));
    WEFT_TRY(weft_database_scratch(g.folder, &g.d));
    WEFT_TRY(weft_database_within(g.d, fill(&g)));
    return weft_hand(&g.d, out);
}

weft_status weft_listing_open(const char *path, weft_database **out) {
    struct stat is;
    bool there;
    *out = NULL;
    if (stat(path, &is) != 0 || !S_ISDIR(is.st_mode))
        return weft_database_open(path, WEFT_DATABASE_READ, out, NULL);
    WEFT_PATH(file, "%s/runs.db", path);
    WEFT_TRY(weft_path_there(file, &there));
    return there ? weft_database_open(file, WEFT_DATABASE_READ, out, NULL) : gather(path, out);
}

/* Merging. The first database is copied beside the new one's place; copies of the others are attached to it one by
 * one, and what ended in them is taken over; it gets its name when it is whole (base/beside.h).
 * Equal configs number their runs alike, so a run is the same run by its number. */
#define ENDED " IN ('done', 'diverged')"
/* Of runs a and b of one number. */
#define OTHER                                                                                      \
    "(a.variant <> b.variant OR a.learning_rate <> b.learning_rate OR a.seed <> b.seed OR"         \
    " a.folder <> b.folder)"
/* Which program made runs where: what their records say, else what their study says. */
#define ADD_ORIGIN(runs, study)                                                                    \
    "INSERT OR IGNORE INTO main.facts(run, name, value)"                                           \
    " SELECT run, 'commit', git_commit FROM " runs ", " study " WHERE git_commit IS NOT NULL"      \
    " UNION ALL SELECT run, 'machine', machine FROM " runs ", " study " WHERE machine IS NOT NULL" \
    " UNION ALL SELECT run, 'device', device FROM " runs ", " study " WHERE device IS NOT NULL;"

/* A whole copy, read in one transaction, so that the database may be in use; open, and of today's tables. */
static weft_status open_copy(const char *path, const char *copy, weft_database **out) {
    WEFT_AUTO(weft_database_close_at) weft_database *from = NULL, *d = NULL;
    struct stat is;
    *out = NULL;
    bool folder = stat(path, &is) == 0 && S_ISDIR(is.st_mode);
    WEFT_PATH(file, "%s%s", path, folder ? "/runs.db" : "");
    WEFT_TRY(weft_database_open(file, WEFT_DATABASE_READ, &from, NULL));
    WEFT_TRY(weft_database_copy(from, copy));
    WEFT_TRY(weft_database_open(copy, WEFT_DATABASE_WRITE, &d, NULL));
    WEFT_TRY(weft_database_update(d));
    return weft_hand(&d, out);
}

/* The runs to take: what ended there and not here, and what is not here at all. */
static weft_status take_part(weft_database *d, const char *path) {
    EACH_ROW(
        studies, d,
        "SELECT a.config, b.config, a.seeds <> b.seeds OR a.learning_rates <> b.learning_rates OR"
        " a.equal <> b.equal OR a.score <> b.score OR a.tail <> b.tail"
        " FROM main.study a, part.study b") {
        char a[WEFT_TEXT_MAX], b[WEFT_TEXT_MAX];
        const weft_option *o = weft_record_difference(weft_column_text(studies, 0),
                                                      weft_column_text(studies, 1), false, a, b);
        weft_status status = WEFT_OK;
        if (o)
            status = WEFT_BAD_INPUT("%s: a study of another config: CONFIG_%s is %.300s there and "
                                    "%.300s in the first; studies of one config are merged",
                                    path, o->key, b, a);
        else if (sqlite3_column_int(studies, 2))
            status = WEFT_BAD_INPUT("%s: its seeds, learning rates or score are others than in the "
                                    "first",
                                    path);
        weft_database_break(d, status);
    }
    WEFT_TRY(weft_database_end(d));
    EACH_ROW(rows, d,
             "SELECT a.name FROM main.variants a JOIN part.variants b USING (variant)"
             " WHERE a.name IS NOT b.name OR (a.error IS NULL AND b.error IS NULL AND"
             " (a.overrides IS NOT b.overrides OR a.iters IS NOT b.iters OR"
             " a.parameters IS NOT b.parameters))")
        weft_database_break(d,
                            WEFT_BAD_INPUT("%s: variant '%s' has other settings than in the first",
                                           path, weft_column_text(rows, 0)));
    WEFT_TRY(weft_database_end(d));
    /* A run of one number must be the same run, and one that ended twice must have ended alike. */
    EACH_ROW(twice, d,
             "SELECT a.folder, " OTHER " FROM main.runs a JOIN part.runs b ON a.run = b.run"
             " WHERE " OTHER " OR (a.status" ENDED " AND b.status" ENDED " AND"
             " (a.score IS NOT b.score OR a.weights IS NOT b.weights OR a.status <> b.status))")
        weft_database_break(
            d,
            WEFT_BAD_INPUT(sqlite3_column_int(twice, 1)
                               ? "%s: %s has the number of another run there; merge only studies "
                                 "of one config"
                               : "%s: %s ended with another result than in an earlier one; merge "
                                 "only one of the two",
                           path, weft_column_text(twice, 0)));
    WEFT_TRY(weft_database_end(d));
    return weft_database_script(
        d, "INSERT INTO main.variants SELECT * FROM part.variants WHERE variant NOT IN"
           " (SELECT variant FROM main.variants);"
           "REPLACE INTO main.variants SELECT b.* FROM part.variants b JOIN main.variants a"
           " USING (variant) WHERE a.error IS NOT NULL AND b.error IS NULL;"
           "CREATE TEMP TABLE taken AS SELECT b.run FROM part.runs b LEFT JOIN main.runs a"
           " ON a.run = b.run WHERE a.run IS NULL OR (b.status" ENDED " AND a.status NOT" ENDED ");"
           "DELETE FROM main.metrics WHERE run IN taken;"
           "DELETE FROM main.facts WHERE run IN taken;"
           "DELETE FROM main.events WHERE run IN taken;"
           "DELETE FROM main.runs WHERE run IN taken;"
           "INSERT INTO main.runs SELECT * FROM part.runs WHERE run IN taken;"
           "INSERT INTO main.metrics SELECT * FROM part.metrics WHERE run IN taken;"
           "INSERT INTO main.facts SELECT * FROM part.facts WHERE run IN taken;"
           "INSERT INTO main.events(run, step, kind, detail, at) SELECT run, step, kind, detail, at"
           " FROM part.events WHERE run IN taken ORDER BY run, id;"
           "UPDATE main.runs SET status = 'waiting' WHERE run IN taken AND status NOT" ENDED
           ";" ADD_ORIGIN("taken", "part.study") "DROP TABLE taken");
}

static weft_status build(const char *const *paths, int n, const char *file, FILE *say,
                         weft_merged *result) {
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    int64_t runs, done;
    WEFT_PATH(copy, "%s.part", file);
    WEFT_TRY(open_copy(paths[0], file, &d));
    /* The first one's runs have their origin too, once there are others beside them; and nobody runs them here. */
    WEFT_TRY(weft_database_script(
        d, "UPDATE runs SET status = 'waiting' WHERE status = 'running';" ADD_ORIGIN(
               "(SELECT run FROM runs WHERE status" ENDED ")", "main.study")));
    for (int i = 1; i < n; i++) {
        /* A copy of the part is beside the new database as `copy`. */
        const char *path = paths[i];
        weft_database *part;
        WEFT_TRY(open_copy(path, copy, &part));
        weft_status status = weft_database_attach(d, part, "part");
        weft_database_close(part);
        if (status == WEFT_OK) status = weft_database_within(d, take_part(d, path));
        if (status == WEFT_OK) status = weft_database_script(d, "DETACH DATABASE part");
        unlink(copy);
        WEFT_TRY(status);
    }
    WEFT_TRY(weft_database_check(d));
    WEFT_TRY(weft_database_number(d, 0, &runs, "SELECT count(*) FROM runs", ""));
    WEFT_TRY(weft_database_number(d, 0, &done, "SELECT count(*) FROM runs WHERE status" ENDED, ""));
    *result = (weft_merged){(int)runs, (int)done};
    if (!say) return WEFT_OK;
    EACH_ROW(rows, d,
             "SELECT folder, status, score,"
             " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'commit'),"
             " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'device'),"
             " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'machine')"
             " FROM runs r WHERE status" ENDED " ORDER BY run")
        fprintf(say, "%-32s %-8s %9.4f  %.12s  %s, %s\n", weft_column_shown(rows, 0),
                weft_column_shown(rows, 1), weft_column_number(rows, 2), weft_column_shown(rows, 3),
                weft_column_shown(rows, 4), weft_column_shown(rows, 5));
    return weft_database_end(d);
}

/* In a folder beside, which takes SQLite's journals too: half of it is worth nothing. Of several merges
 * into one place, one gets the name. */
weft_status weft_merge(const char *const *paths, int n, const char *out, FILE *say,
                       weft_merged *result) {
    char file[WEFT_PATH_MAX], beside[WEFT_PATH_MAX];
    weft_new_folder f;
    bool made = false;
    size_t letters = strlen(out);
    bool database = letters > 3 && strcmp(out + letters - 3, ".db") == 0;
    weft_kind kind;
    struct stat is;
    WEFT_TRY(weft_path(file, "%s%s", out, database ? "" : "/runs.db"));
    if (!database && stat(out, &is) == 0 && !S_ISDIR(is.st_mode))
        return WEFT_BAD_INPUT("%s: is not a folder; take another --out", out);
    WEFT_TRY(weft_path_kind(file, &kind));
    if (kind != WEFT_KIND_NOTHING)
        return WEFT_BAD_INPUT("%s is there already; take another --out", file);
    if (!database) {
        WEFT_TRY(weft_database_place(out));
        WEFT_TRY(weft_path_kind(out, &kind));
        made = kind == WEFT_KIND_NOTHING;
        WEFT_TRY(weft_folder_make(out));
    }
    weft_status status = weft_new_folder_begin(&f, file);
    if (status == WEFT_OK) {
        status = weft_path(beside, "%s/runs.db", f.beside);
        if (status == WEFT_OK) status = build(paths, n, beside, say, result);
        if (status == WEFT_OK) status = weft_file_take_name(beside, file);
        status = weft_new_folder_drop(&f, status);
    }
    if (status != WEFT_OK && made) rmdir(out); /* unless somebody has put something there */
    return status;
}

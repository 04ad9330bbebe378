/* The tree of runs. */
#include "record/watched.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/json.h"
#include "base/text.h"
#include "config/config.h"
#include "record/database.h"
#include "record/locks.h"
#include "record/notes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPTH_MOST = 6,
    RUNS_MOST = 4096,
    LINE_MOST = 1 << 16,
    FILE_MOST = 1 << 20,
    ROWS_TOLD = 2000, /* at most of one run in one answer */
    VALUES = 7
};
static const double walk_seconds = 2, fresh_seconds = 20;

/* A file as it was when it was read. */
typedef struct {
    bool there;
    int64_t bytes;
    struct timespec changed;
} stamp;

typedef struct {
    double value[VALUES]; /* step, loss, val_loss, lr, grad_norm, tokens_per_s, mfu; NaN: none */
    int64_t version;
} row;

typedef struct {
    char *folder, *name;
    char *title; /* of its step in a study; NULL: none is known */
    int study;   /* -1: none */
    stamp lines, config, result, notes;
    int64_t read; /* bytes of metrics.jsonl */
    row *rows;
    int64_t n_rows, room;
    int64_t version, reset; /* of the last change, and of the last beginning anew */
    json_t *options;        /* that are not the default */
    int64_t steps, tokens_per_step;
    double best;
    char end[16]; /* of result.json; empty: none */
    const char *status;
} run;

typedef struct {
    char *folder, *name;
    stamp database;
    int64_t count[4]; /* waiting, running, done, failed or diverged */
    int64_t version;
    int named; /* how many runs there were when they were last given titles */
} study;

struct weft_watched {
    char **roots;
    int n_roots;
    run *runs;
    int n_runs;
    study *studies;
    int n_studies;
    int64_t version;
    double walked;
    weft_notes *notes;
    weft_locks *locks;
    weft_config *config, *plain; /* room for one, and the defaults */
};

static bool look_at(const char *folder, const char *name, stamp *s, bool *changed) {
    char path[WEFT_PATH_MAX];
    struct stat is;
    stamp now = {0};
    if (weft_path(path, "%s/%s", folder, name) == WEFT_OK && stat(path, &is) == 0 &&
        S_ISREG(is.st_mode))
        now = (stamp){true, (int64_t)is.st_size, is.st_mtim};
    *changed = now.there != s->there || now.bytes != s->bytes ||
               now.changed.tv_sec != s->changed.tv_sec || now.changed.tv_nsec != s->changed.tv_nsec;
    *s = now;
    return now.there;
}

static bool is_known(const weft_watched *w, const char *folder, bool of_study) {
    for (int i = 0; of_study && i < w->n_studies; i++)
        if (strcmp(w->studies[i].folder, folder) == 0) return true;
    for (int i = 0; !of_study && i < w->n_runs; i++)
        if (strcmp(w->runs[i].folder, folder) == 0) return true;
    return false;
}

/* A name as it is shown: the path below the folder that was named, or that folder's own. */
static char *name_of(const weft_watched *w, const char *folder) {
    for (int i = 0; i < w->n_roots; i++) {
        size_t n = strlen(w->roots[i]);
        if (strncmp(folder, w->roots[i], n) == 0 && folder[n] == '/')
            return weft_text_repair(folder + n + 1);
    }
    const char *slash = strrchr(folder, '/');
    return weft_text_repair(slash && slash[1] ? slash + 1 : folder);
}

static void add_study(weft_watched *w, const char *folder) {
    study *grown = realloc(w->studies, (size_t)(w->n_studies + 1) * sizeof *grown);
    if (!grown) return;
    w->studies = grown;
    study *s = &grown[w->n_studies];
    *s = (study){.folder = strdup(folder), .name = name_of(w, folder), .version = ++w->version};
    if (s->folder && s->name) w->n_studies++;
}

/* The study that a run belongs to: the nearest folder above it. */
static int study_of(const weft_watched *w, const char *folder) {
    int found = -1;
    size_t longest = 0;
    for (int i = 0; i < w->n_studies; i++) {
        size_t n = strlen(w->studies[i].folder);
        if (n > longest && strncmp(folder, w->studies[i].folder, n) == 0 && folder[n] == '/') {
            found = i;
            longest = n;
        }
    }
    return found;
}

static void add_run(weft_watched *w, const char *folder) {
    if (w->n_runs == RUNS_MOST) return;
    run *grown = realloc(w->runs, (size_t)(w->n_runs + 1) * sizeof *grown);
    if (!grown) return;
    w->runs = grown;
    run *r = &grown[w->n_runs];
    *r = (run){.folder = strdup(folder),
               .name = name_of(w, folder),
               .study = study_of(w, folder),
               .version = ++w->version,
               .best = NAN,
               .status = "waiting"};
    r->reset = r->version;
    if (r->folder && r->name) w->n_runs++;
}

static bool has(const char *folder, const char *name) {
    char path[WEFT_PATH_MAX];
    struct stat is;
    return weft_path(path, "%s/%s", folder, name) == WEFT_OK && lstat(path, &is) == 0 &&
           S_ISREG(is.st_mode);
}

/* Links are not followed: a tree has an end. */
static void walk(weft_watched *w, const char *folder, int depth) {
    weft_names names;
    char path[WEFT_PATH_MAX];
    struct stat is;
    if (has(folder, "runs.db") && !is_known(w, folder, true)) add_study(w, folder);
    if (has(folder, "metrics.jsonl")) {
        if (!is_known(w, folder, false)) add_run(w, folder);
        return;
    }
    if (depth == DEPTH_MOST || weft_folder_list(folder, &names) != WEFT_OK) return;
    for (int i = 0; i < names.n; i++) {
        if (names.list[i][0] == '.' || weft_path(path, "%s/%s", folder, names.list[i]) != WEFT_OK)
            continue;
        if (lstat(path, &is) == 0 && S_ISDIR(is.st_mode)) walk(w, path, depth + 1);
    }
    weft_names_free(&names);
}

static json_t *option_json(const weft_config *c, const weft_option *o) {
    char value[WEFT_TEXT_MAX];
    bool number = o->type == WEFT_OPT_INT || o->type == WEFT_OPT_NUMBER;
    weft_config_format(c, o, value, sizeof value);
    return number ? json_real(strtod(value, NULL)) : weft_json_text(value);
}

/* What an option is that a run does not name. */
static json_t *defaults_json(const weft_watched *w) {
    int count;
    const weft_option *options = weft_options(&count);
    json_t *object = json_object();
    for (int i = 0; object && i < count; i++)
        if (options[i].owner != WEFT_OWNER_STUDY)
            json_object_set_new(object, options[i].key, option_json(w->plain, &options[i]));
    return object;
}

/* The options that are not the default, and what steps and tokens follow from them. */
static void read_config(weft_watched *w, run *r) {
    char path[WEFT_PATH_MAX], value[WEFT_TEXT_MAX], usual[WEFT_TEXT_MAX];
    weft_config *c = w->config;
    int count;
    const weft_option *options = weft_options(&count);
    weft_config_defaults(c);
    if (weft_path(path, "%s/config", r->folder) != WEFT_OK) return;
    if (weft_config_read(c, path) != WEFT_OK) return;
    json_t *object = json_object();
    for (int i = 0; object && i < count; i++) {
        weft_config_format(c, &options[i], value, sizeof value);
        weft_config_format(w->plain, &options[i], usual, sizeof usual);
        if (strcmp(value, usual) == 0 || options[i].owner == WEFT_OWNER_STUDY) {
            if (strcmp(options[i].key, "SEED") != 0) continue;
        }
        json_object_set_new(object, options[i].key, option_json(c, &options[i]));
    }
    json_decref(r->options);
    r->options = object;
    r->steps = c->steps;
    r->tokens_per_step = c->batch_size * c->gradient_accumulation * c->context;
}

static void read_result(run *r) {
    char path[WEFT_PATH_MAX];
    *r->end = '\0';
    if (weft_path(path, "%s/result.json", r->folder) != WEFT_OK) return;
    json_t *object = weft_json_file(path, FILE_MOST);
    const char *end = json_string_value(json_object_get(object, "end"));
    static const char *const known[] = {"done", "stopped", "diverged"};
    for (int i = 0; end && i < 3; i++)
        if (strcmp(end, known[i]) == 0) snprintf(r->end, sizeof r->end, "%s", end);
    json_decref(object);
}

static void add_row(weft_watched *w, run *r, const json_t *line) {
    static const char *const keys[VALUES] = {"step",      "loss",         "val_loss", "lr",
                                             "grad_norm", "tokens_per_s", "mfu"};
    if (r->n_rows == r->room) {
        int64_t room = r->room ? 2 * r->room : 256;
        row *grown = realloc(r->rows, (size_t)room * sizeof *grown);
        if (!grown) return;
        r->rows = grown;
        r->room = room;
    }
    row *to = &r->rows[r->n_rows];
    for (int i = 0; i < VALUES; i++)
        to->value[i] = weft_json_number_of(line, keys[i]);
    if (!isfinite(to->value[0])) return;
    to->version = w->version;
    if (to->value[2] < r->best || isnan(r->best)) r->best = to->value[2];
    r->n_rows++;
}

/* The lines that are whole; a torn one is read when it is. */
static void read_lines(weft_watched *w, run *r) {
    char path[WEFT_PATH_MAX], *line = NULL;
    size_t room = 0;
    ssize_t n;
    FILE *file;
    if (weft_path(path, "%s/metrics.jsonl", r->folder) != WEFT_OK ||
        weft_file_open_stream(path, &file) != WEFT_OK)
        return;
    if (fseek(file, (long)r->read, SEEK_SET) == 0)
        while ((n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
            r->read += n;
            json_t *object = n < LINE_MOST ? weft_json_read(line, (size_t)n, 0, NULL) : NULL;
            if (object) add_row(w, r, object);
            json_decref(object);
        }
    free(line);
    fclose(file);
}

static bool is_fresh(const run *r) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return difftime(now.tv_sec, r->lines.changed.tv_sec) < fresh_seconds;
}

/* A run holds its metrics.jsonl; of one on another machine only the time of its last line is known. */
static const char *status_of(const weft_watched *w, const run *r) {
    char path[WEFT_PATH_MAX];
    bool held =
        weft_path(path, "%s/metrics.jsonl", r->folder) == WEFT_OK && weft_locks_has(w->locks, path);
    if (held) return "running";
    if (*r->end)
        return strcmp(r->end, "done") == 0      ? "done"
               : strcmp(r->end, "stopped") == 0 ? "stopped"
                                                : "diverged";
    if (r->n_rows && r->rows[r->n_rows - 1].value[0] >= (double)r->steps && r->steps > 0)
        return "done";
    return is_fresh(r) ? "running" : "ended";
}

static void look_at_run(weft_watched *w, run *r) {
    bool lines, config, result;
    stamp before = r->lines;
    look_at(r->folder, "metrics.jsonl", &r->lines, &lines);
    look_at(r->folder, "config", &r->config, &config);
    look_at(r->folder, "result.json", &r->result, &result);
    int64_t next = w->version + 1;
    if (lines || config || result) w->version = r->version = next;
    if (config) read_config(w, r);
    if (result) read_result(r);
    if (lines) {
        /* A resumed run cuts off lines, and writes others in their place. */
        bool anew = r->lines.bytes < before.bytes || r->lines.bytes < r->read;
        if (anew) {
            r->n_rows = r->read = 0;
            r->best = NAN;
            r->reset = r->version;
        }
        read_lines(w, r);
    }
    const char *status = status_of(w, r);
    if (strcmp(status, r->status) != 0) r->version = ++w->version;
    r->status = status;
}

static void count_runs(study *s, weft_database *d) {
    sqlite3_stmt *rows;
    bool there = false;
    static const char *const names[] = {"waiting", "running", "done"};
    memset(s->count, 0, sizeof s->count);
    if (weft_database_ask(d, &rows, "SELECT status, count(*) FROM runs GROUP BY status", "") ==
        WEFT_OK) {
        while (weft_database_next(d, rows, &there) == WEFT_OK && there) {
            int at = 3;
            for (int i = 0; i < 3; i++)
                if (strcmp(weft_column_text(rows, 0), names[i]) == 0) at = i;
            s->count[at] += sqlite3_column_int64(rows, 1);
        }
        weft_database_end(rows);
    }
}

static void set_title(weft_watched *w, const char *folder, const char *title) {
    for (int i = 0; i < w->n_runs; i++) {
        run *r = &w->runs[i];
        if (strcmp(r->folder, folder) != 0 || (r->title && strcmp(r->title, title) == 0)) continue;
        free(r->title);
        r->title = weft_text_repair(title);
        r->version = ++w->version;
    }
}

/* What the study's runs are called: a step's title says more than a folder. */
static void name_runs(weft_watched *w, const study *s, weft_database *d) {
    char path[WEFT_PATH_MAX];
    sqlite3_stmt *rows;
    bool there = false;
    if (weft_database_ask(d, &rows,
                          "SELECT runs.folder, steps.title FROM runs JOIN steps USING (step)",
                          "") != WEFT_OK)
        return;
    while (weft_database_next(d, rows, &there) == WEFT_OK && there)
        if (weft_path(path, "%s/%s", s->folder, weft_column_text(rows, 0)) == WEFT_OK)
            set_title(w, path, weft_column_text(rows, 1));
    weft_database_end(rows);
}

static void read_study(weft_watched *w, study *s) {
    char path[WEFT_PATH_MAX];
    weft_database *d;
    s->named = w->n_runs;
    if (weft_path(path, "%s/runs.db", s->folder) != WEFT_OK ||
        weft_database_open(path, false, &d) != WEFT_OK)
        return;
    count_runs(s, d);
    name_runs(w, s, d);
    weft_database_close(d);
}

int64_t weft_watched_look(weft_watched *w) {
    double now = weft_clock();
    if (w->walked == 0 || now - w->walked >= walk_seconds) {
        for (int i = 0; i < w->n_roots; i++)
            walk(w, w->roots[i], 0);
        w->walked = now;
    }
    weft_locks_read(w->locks);
    for (int i = 0; i < w->n_studies; i++) {
        bool changed;
        look_at(w->studies[i].folder, "runs.db", &w->studies[i].database, &changed);
        if (changed) w->studies[i].version = ++w->version;
        if (changed || w->studies[i].named != w->n_runs) read_study(w, &w->studies[i]);
    }
    for (int i = 0; i < w->n_runs; i++)
        look_at_run(w, &w->runs[i]);
    return w->version;
}

static json_t *row_json(const row *r) {
    json_t *list = json_array();
    for (int i = 0; list && i < VALUES; i++)
        json_array_append_new(list, weft_json_number(r->value[i]));
    return list;
}

/* The rows after a change; of very many, some, those of an evaluation always. */
static json_t *rows_json(const run *r, int64_t after) {
    json_t *list = json_array();
    int64_t first = r->n_rows;
    while (first > 0 && r->rows[first - 1].version > after)
        first--;
    int64_t every = (r->n_rows - first) / ROWS_TOLD + 1;
    for (int64_t i = first; list && i < r->n_rows; i++)
        if ((i - first) % every == 0 || isfinite(r->rows[i].value[2]) || i == r->n_rows - 1)
            json_array_append_new(list, row_json(&r->rows[i]));
    return list;
}

static double seconds_left(const run *r, const row *last) {
    double rate = last->value[5], steps = (double)r->steps - last->value[0];
    bool runs = strcmp(r->status, "running") == 0;
    return runs && rate > 0 && steps > 0 ? steps * (double)r->tokens_per_step / rate : NAN;
}

static double last_value(const run *r, int value) {
    for (int64_t i = r->n_rows - 1; i >= 0; i--)
        if (isfinite(r->rows[i].value[value])) return r->rows[i].value[value];
    return NAN;
}

static json_t *run_json(const weft_watched *w, int id, int64_t after) {
    const run *r = &w->runs[id];
    static const row none = {.value = {0, NAN, NAN, NAN, NAN, NAN, NAN}};
    const row *last = r->n_rows ? &r->rows[r->n_rows - 1] : &none;
    bool reset = r->reset > after;
    char note[WEFT_NOTE_ROOM] = "", tags[WEFT_NOTE_ROOM] = "";
    weft_notes_get(w->notes, r->folder, note, tags);
    return json_pack(
        "{s:i, s:o, s:o, s:o, s:s, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, "
        "s:o, s:o}",
        "id", id, "name", weft_json_text(r->name), "title",
        r->title ? weft_json_text(r->title) : json_null(), "study",
        r->study < 0 ? json_null() : json_integer(r->study), "status", r->status, "step",
        weft_json_whole(last->value[0]), "steps", (json_int_t)r->steps, "tokens_per_step",
        (json_int_t)r->tokens_per_step, "loss", weft_json_number(last->value[1]), "val_loss",
        weft_json_number(last_value(r, 2)), "best_val_loss", weft_json_number(r->best),
        "tokens_per_s", weft_json_number(last->value[5]), "mfu", weft_json_number(last->value[6]),
        "seconds_left", weft_json_number(seconds_left(r, last)), "note", weft_json_text(note),
        "tags", weft_json_text(tags), "reset", reset, "options",
        r->options ? json_incref(r->options) : json_object(), "rows",
        rows_json(r, reset ? 0 : after));
}

static json_t *study_json(const weft_watched *w, int id) {
    const study *s = &w->studies[id];
    return json_pack("{s:i, s:o, s:I, s:I, s:I, s:I}", "id", id, "name", weft_json_text(s->name),
                     "waiting", (json_int_t)s->count[0], "running", (json_int_t)s->count[1], "done",
                     (json_int_t)s->count[2], "failed", (json_int_t)s->count[3]);
}

json_t *weft_watched_news(const weft_watched *w, int64_t after) {
    if (after >= w->version && after > 0) return NULL;
    json_t *runs = json_array(), *studies = json_array();
    for (int i = 0; i < w->n_studies; i++)
        if (w->studies[i].version > after) json_array_append_new(studies, study_json(w, i));
    for (int i = 0; i < w->n_runs; i++)
        if (w->runs[i].version > after) json_array_append_new(runs, run_json(w, i, after));
    json_t *news = json_pack("{s:I, s:o, s:o}", "version", (json_int_t)w->version, "studies",
                             studies, "runs", runs);
    if (news && after == 0) json_object_set_new(news, "defaults", defaults_json(w));
    return news;
}

int weft_watched_count(const weft_watched *w) {
    return w->n_runs;
}

const char *weft_watched_folder(const weft_watched *w, int64_t id) {
    return id >= 0 && id < w->n_runs ? w->runs[id].folder : NULL;
}

static char *read_end(const char *folder, const char *name, size_t most) {
    char path[WEFT_PATH_MAX];
    FILE *file;
    if (weft_path(path, "%s/%s", folder, name) != WEFT_OK ||
        weft_file_open_stream(path, &file) != WEFT_OK)
        return NULL;
    char *text = malloc(most + 1);
    size_t n = 0;
    if (text && fseek(file, 0, SEEK_END) == 0) {
        long bytes = ftell(file), from = bytes > (long)most ? bytes - (long)most : 0;
        if (bytes >= 0 && fseek(file, from, SEEK_SET) == 0) n = fread(text, 1, most, file);
    }
    if (text) text[n] = '\0';
    fclose(file);
    return text;
}

char *weft_watched_tail(const weft_watched *w, int64_t id, size_t most) {
    const char *folder = weft_watched_folder(w, id);
    char *text = folder ? read_end(folder, "log", most) : NULL;
    if (!text && folder) text = read_end(folder, "samples.jsonl", most);
    char *shown = text ? weft_text_repair(text) : NULL;
    free(text);
    return shown;
}

weft_status weft_watched_note(weft_watched *w, int64_t id, const char *note, const char *tags) {
    const char *folder = weft_watched_folder(w, id);
    if (!folder) return weft_fail(WEFT_EINPUT, "there is no run %lld", (long long)id);
    WEFT_TRY(weft_notes_set(w->notes, folder, note, tags));
    w->runs[id].version = ++w->version;
    return WEFT_OK;
}

static weft_status open_all(weft_watched *w, const char *const *folders, int n, bool notes) {
    w->roots = calloc((size_t)n, sizeof *w->roots);
    w->config = malloc(sizeof *w->config);
    w->plain = malloc(sizeof *w->plain);
    if (!w->roots || !w->config || !w->plain) return weft_fail(WEFT_ENOMEM, "watch: no memory");
    weft_config_defaults(w->plain);
    for (int i = 0; i < n; i++) {
        struct stat is;
        if (stat(folders[i], &is) != 0 || !S_ISDIR(is.st_mode))
            return weft_fail(WEFT_EINPUT, "%s: there is no such folder; name one that holds runs",
                             folders[i]);
        w->roots[i] = realpath(folders[i], NULL);
        if (!w->roots[i]) return weft_fail(WEFT_ENOMEM, "watch: no memory");
        w->n_roots++;
    }
    WEFT_TRY(weft_locks_open(&w->locks));
    return notes ? weft_notes_open(w->roots[0], &w->notes) : WEFT_OK;
}

weft_status weft_watched_open(const char *const *folders, int n, bool notes, weft_watched **out) {
    *out = NULL;
    weft_watched *w = calloc(1, sizeof *w);
    if (!w) return weft_fail(WEFT_ENOMEM, "watch: no memory");
    weft_status status = open_all(w, folders, n, notes);
    if (status != WEFT_OK) {
        weft_watched_close(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

void weft_watched_close(weft_watched *w) {
    if (!w) return;
    for (int i = 0; i < w->n_roots; i++)
        free(w->roots[i]);
    for (int i = 0; i < w->n_runs; i++) {
        free(w->runs[i].folder);
        free(w->runs[i].name);
        free(w->runs[i].title);
        free(w->runs[i].rows);
        json_decref(w->runs[i].options);
    }
    for (int i = 0; i < w->n_studies; i++) {
        free(w->studies[i].folder);
        free(w->studies[i].name);
    }
    free(w->roots);
    free(w->runs);
    free(w->studies);
    free(w->config);
    free(w->plain);
    weft_locks_close(w->locks);
    weft_notes_close(w->notes);
    free(w);
}

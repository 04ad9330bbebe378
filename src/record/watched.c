/* The tree of runs. Everything in it is read by base/folders.h: a tree may be anybody's, and what lies
 * in it leads nowhere else. */
#include "record/watched.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/json.h"
#include "base/text.h"
#include "config/config.h"
#include "record/database.h"

#include <errno.h>
#include <math.h>

enum { DEPTH_MOST = 6, RUNS_MOST = 4096, FILE_MOST = 1 << 20 };
enum { LOOK_MOST = 1 << 20 }; /* bytes of lines in one look */
static const double walk_seconds = 2, fresh_seconds = 20, database_seconds = 5;

/* A file as it was when it was read. */
typedef struct {
    bool there;
    int64_t bytes;
    struct timespec changed;
    uint64_t number; /* of the file: its inode */
} stamp;

/* A folder in the tree: its whole path, the root it is below, and the path from there. */
typedef struct {
    char *path;
    int root;
    const char *below; /* in `path`; "": the root itself */
} place;

typedef struct {
    place at;
    char *name;
    char *title; /* of its variant in a study; NULL: none is known */
    int study;   /* -1: none */
    stamp lines, config, result;
    weft_watched_lines rows;
    int64_t version, reset; /* of the last change, and of the last beginning anew */
    json_t *options;        /* that are not the default */
    int64_t steps, tokens_per_step;
    const char *end;        /* of result.json; NULL: none */
    double bytes_per_token; /* by result.json; NaN: not known */
    const char *status;
} run;

typedef struct {
    place at;
    char *name;
    stamp database;
    int64_t count[4]; /* waiting, running, done, failed or diverged */
    int64_t version;
    int named; /* how many runs there were when they were last given titles */
} study;

struct weft_watched {
    char **roots;
    int n_roots;
    run *runs;
    int n_runs, first; /* the one that the next look begins with */
    bool full;         /* there are more runs than are looked at */
    study *studies;
    int n_studies;
    int64_t version, budget; /* the bytes that this look may still read */
    double walked;
    weft_notes *notes;
    /* Files that processes of this machine hold by a lock, by the numbers of their inodes. */
    struct {
        uint64_t *list;
        int64_t n, room;
    } held;
    weft_config config, plain; /* room for one, and the defaults */
};

/* Whether it changed. */
static bool look_at(int folder, const char *name, stamp *s) {
    struct stat is;
    stamp now = {0};
    if (folder >= 0 && weft_below_look(folder, name, &is))
        now = (stamp){true, (int64_t)is.st_size, is.st_mtim, (uint64_t)is.st_ino};
    bool changed = now.there != s->there || now.bytes != s->bytes ||
                   now.changed.tv_sec != s->changed.tv_sec ||
                   now.changed.tv_nsec != s->changed.tv_nsec;
    *s = now;
    return changed;
}

/* -1: it is not there, or no longer a folder by itself. The caller closes it. */
static int open_place(const weft_watched *w, const place *p) {
    WEFT_AUTO_CLOSE int root = -1;
    int folder = -1;
    if (weft_below_root(w->roots[p->root], &root) == WEFT_OK)
        weft_below_folder(root, p->below, &folder);
    return folder;
}

/* And its name as it is shown: the path below the folder that was named, or that folder's own. */
static bool make_place(const weft_watched *w, const char *path, int root, place *p, char **name) {
    size_t n = strlen(w->roots[root]);
    const char *slash = strrchr(path, '/');
    p->path = strdup(path);
    p->root = root;
    p->below = p->path ? p->path + n + (p->path[n] == '/') : NULL;
    if (p->path)
        *name = weft_text_repair(*p->below ? p->below : slash && slash[1] ? slash + 1 : path);
    return *name != NULL;
}

static bool is_known(const weft_watched *w, const char *folder, bool of_study) {
    for (int i = 0; of_study && i < w->n_studies; i++)
        if (strcmp(w->studies[i].at.path, folder) == 0) return true;
    for (int i = 0; !of_study && i < w->n_runs; i++)
        if (strcmp(w->runs[i].at.path, folder) == 0) return true;
    return false;
}

static void add_run(weft_watched *w, const char *folder, int root) {
    if (w->n_runs == RUNS_MOST) w->full = true;
    run *r = w->full ? NULL : WEFT_ADD(w->runs, w->n_runs);
    if (!r) return;
    *r = (run){.study = -1, .version = ++w->version, .status = "waiting"};
    r->reset = r->version;
    size_t longest = 0; /* it belongs to the study that is the nearest folder above it */
    for (int i = 0; i < w->n_studies; i++) {
        size_t n = strlen(w->studies[i].at.path);
        if (n <= longest || strncmp(folder, w->studies[i].at.path, n) != 0 || folder[n] != '/')
            continue;
        r->study = i;
        longest = n;
    }
    weft_watched_lines_clear(&r->rows);
    if (!make_place(w, folder, root, &r->at, &r->name)) w->n_runs--;
}

/* Links are not followed: a tree has an end. */
static void walk(weft_watched *w, int root, int folder, const char *path, int depth) {
    weft_names names;
    char inside[WEFT_PATH_MAX];
    struct stat is;
    int at;
    bool made = weft_below_look(folder, "runs.db", &is) && !is_known(w, path, true);
    study *s = made ? WEFT_ADD(w->studies, w->n_studies) : NULL;
    if (s) s->version = ++w->version;
    if (s && !make_place(w, path, root, &s->at, &s->name)) w->n_studies--;
    if (weft_below_look(folder, "metrics.jsonl", &is)) {
        if (!is_known(w, path, false)) add_run(w, path, root);
        return;
    }
    if (depth == DEPTH_MOST || weft_folder_list_open(folder, path, &names) != WEFT_OK) return;
    for (int i = 0; i < names.n; i++) {
        if (names.list[i][0] == '.' || weft_path(inside, "%s/%s", path, names.list[i]) != WEFT_OK ||
            weft_below_folder(folder, names.list[i], &at) != WEFT_OK)
            continue;
        walk(w, root, at, inside, depth + 1);
        close(at);
    }
    weft_names_free(&names);
}

/* The options of a config but for a study's own; with `plain` those that are not as there, and the seed. */
static json_t *options_json(const weft_config *c, const weft_config *plain) {
    char value[WEFT_TEXT_MAX];
    json_t *object = json_object();
    for (const weft_option *o = weft_options(NULL); object && o->key; o++) {
        bool number = o->type == WEFT_OPT_INT || o->type == WEFT_OPT_NUMBER;
        bool same = plain && weft_option_same(c, plain, o), seed = plain && o == WEFT_OPTION(seed);
        if ((same || o->owner == WEFT_OWNER_STUDY) && !seed) continue;
        weft_config_format(c, o, value, sizeof value);
        json_object_set_new(object, o->key,
                            number ? json_real(strtod(value, NULL)) : weft_json_text(value));
    }
    return object;
}

static void read_result(run *r, int folder) {
    static const char *const known[] = {"done", "stopped", "diverged"};
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    r->end = NULL;
    r->bytes_per_token = NAN;
    if (weft_below_read(folder, "result.json", FILE_MOST, &text, &bytes) != WEFT_OK) return;
    WEFT_AUTO_DECREF json_t *object = weft_json_read(text, bytes, 0, NULL);
    for (int i = 0; i < 3; i++)
        if (strcmp(weft_json_text_of(object, "end"), known[i]) == 0) r->end = known[i];
    double bits = weft_json_number_of(object, "bits_per_byte");
    if (bits > 0) r->bytes_per_token = weft_json_number_of(object, "best_val_loss") / log(2) / bits;
}

/* A run holds its metrics.jsonl; of one on another machine only the time of its last line is known. */
static const char *status_of(const weft_watched *w, const run *r) {
    for (int64_t i = 0; r->lines.there && i < w->held.n; i++)
        if (w->held.list[i] == r->lines.number) return "running";
    if (r->end) return r->end;
    if (r->rows.n > 0 && r->rows.last.value[WEFT_ROW_STEP] >= (double)r->steps && r->steps > 0)
        return "done";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    /* A time to come is that of a clock that was set back, or of another machine. */
    bool fresh = fabs(difftime(now.tv_sec, r->lines.changed.tv_sec)) < fresh_seconds;
    return fresh ? "running" : "ended";
}

static void look_at_run(weft_watched *w, run *r) {
    int folder = open_place(w, &r->at);
    bool lines = look_at(folder, "metrics.jsonl", &r->lines);
    bool config = look_at(folder, "config", &r->config);
    bool result = look_at(folder, "result.json", &r->result);
    int64_t next = w->version + 1;
    if (lines || config || result || r->rows.more) w->version = r->version = next;
    /* The options that are not the default, and what steps and tokens follow from them. */
    if (config) {
        weft_config *c = &w->config;
        WEFT_AUTO_FREE char *text = NULL;
        size_t bytes;
        weft_config_defaults(c);
        if (weft_below_read(folder, "config", WEFT_CONFIG_BYTES, &text, &bytes) == WEFT_OK &&
            weft_config_read_text(c, text, bytes, "config") == WEFT_OK) {
            json_decref(r->options);
            r->options = options_json(c, &w->plain);
            r->steps = c->steps;
            r->tokens_per_step = c->batch_size * c->gradient_accumulation * c->context;
        }
    }
    if (result) read_result(r, folder);
    if ((lines || r->rows.more) &&
        weft_watched_lines_read(&r->rows, folder, r->lines.bytes, w->version, &w->budget))
        r->reset = r->version;
    if (folder >= 0) close(folder);
    const char *status = status_of(w, r);
    if (strcmp(status, r->status) != 0) r->version = ++w->version;
    r->status = status;
}

static void read_study(weft_watched *w, study *s) {
    char path[WEFT_PATH_MAX];
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    bool fresh;
    s->named = w->n_runs;
    if (weft_path(path, "%s%sruns.db", s->at.below, *s->at.below ? "/" : "") != WEFT_OK ||
        weft_database_enter(&weft_runs_schema, w->roots[s->at.root], path, WEFT_DATABASE_READ,
                            database_seconds, &d, &fresh) != WEFT_OK)
        return;
    EACH_ROW(rows, d,
             "SELECT total(status = 'waiting'), total(status = 'running'), total(status = 'done'),"
             " total(status IN ('failed', 'diverged')) FROM runs")
        for (int i = 0; i < 4; i++)
            s->count[i] = sqlite3_column_int64(rows, i);
    weft_database_end(d);
    /* What the study's runs are called: a variant's title says more than a folder. */
    EACH_ROW(rows, d, "SELECT folder, title FROM runs JOIN variants USING (variant)") {
        const char *title = weft_column_text(rows, 1);
        if (weft_path(path, "%s/%s", s->at.path, weft_column_text(rows, 0)) != WEFT_OK) continue;
        for (run *r = w->runs; r - w->runs < w->n_runs; r++) {
            if (strcmp(r->at.path, path) != 0 || (r->title && strcmp(r->title, title) == 0))
                continue;
            free(r->title);
            r->title = weft_text_repair(title);
            r->version = ++w->version;
        }
    }
    weft_database_end(d);
}

bool weft_watched_look(weft_watched *w) {
    double now = weft_clock();
    bool all = true;
    if (w->walked == 0 || now - w->walked >= walk_seconds) {
        for (int i = 0; i < w->n_roots; i++) {
            WEFT_AUTO_CLOSE int root = -1;
            if (weft_below_root(w->roots[i], &root) == WEFT_OK) walk(w, i, root, w->roots[i], 0);
        }
        w->walked = now;
    }
    w->budget = LOOK_MOST;
    /* Lines of /proc/locks: "1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF"; the number after the
     * device is the file's. File systems such as btrfs and overlayfs tell another device there than stat
     * does, so the number alone is compared. Asking by trying to lock would for a moment keep the file from a run
     * that starts. Where there is no list, nothing is held. */
    char line[256];
    FILE *file = fopen("/proc/locks", "r");
    w->held.n = 0;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long number;
        char kind[16], how[16], what[16];
        if (sscanf(line, "%*d: %15s %15s %15s %*d %*x:%*x:%llu", kind, how, what, &number) == 4 &&
            strcmp(kind, "FLOCK") == 0 && strcmp(what, "WRITE") == 0 &&
            weft_grow_list(&w->held.list, &w->held.room, w->held.n + 1, sizeof *w->held.list))
            w->held.list[w->held.n++] = number;
    }
    if (file) fclose(file);
    for (int i = 0; i < w->n_studies; i++) {
        study *s = &w->studies[i];
        int folder = open_place(w, &s->at);
        bool changed = look_at(folder, "runs.db", &s->database);
        if (folder >= 0) close(folder);
        if (changed) s->version = ++w->version;
        if (changed || s->named != w->n_runs) read_study(w, s);
    }
    /* Each time another is the first, so that a long file does not take the bytes of all looks. */
    for (int i = 0; i < w->n_runs; i++) {
        run *r = &w->runs[(w->first + i) % w->n_runs];
        look_at_run(w, r);
        all = all && !r->rows.more;
    }
    if (w->n_runs) w->first = (w->first + 1) % w->n_runs;
    return all;
}

WEFT_GETTER(int64_t, weft_watched_version, weft_watched, version)
WEFT_GETTER(int, weft_watched_count, weft_watched, n_runs)
WEFT_GETTER(bool, weft_watched_is_full, weft_watched, full)

static double seconds_left(const run *r, const weft_watched_row *last) {
    double rate = last->value[WEFT_ROW_TOKENS_PER_S],
           steps = (double)r->steps - last->value[WEFT_ROW_STEP];
    bool runs = strcmp(r->status, "running") == 0;
    return runs && rate > 0 && steps > 0 ? steps * (double)r->tokens_per_step / rate : NAN;
}

static json_t *run_json(const weft_watched *w, int id, int64_t after) {
    const run *r = &w->runs[id];
    static const weft_watched_row none = {.value = {0, NAN, NAN, NAN, NAN, NAN, NAN}};
    const weft_watched_row *last = r->rows.n ? &r->rows.last : &none;
    bool reset = r->reset > after;
    /* Of the whole run, as its report has it; MFU goes with the speed. */
    double speed = r->rows.times > 0 ? r->rows.timed / r->rows.times : NAN;
    double mfu = last->value[WEFT_ROW_MFU] * speed / last->value[WEFT_ROW_TOKENS_PER_S];
    WEFT_AUTO_FREE char *note = NULL, *tags = NULL;
    weft_notes_get(w->notes, r->at.path, &note, &tags);
    return weft_json_make(
        "id:i name:s title:s study:w status:s step:w steps:I tokens_per_step:I loss:f val_loss:f "
        "best_val_loss:f tokens_per_s:f mfu:f seconds_left:f bytes_per_token:f note:s tags:s "
        "reset:b options:o rows:o",
        id, r->name, r->title, r->study < 0 ? NAN : (double)r->study, r->status,
        last->value[WEFT_ROW_STEP], r->steps, r->tokens_per_step, last->value[WEFT_ROW_LOSS],
        r->rows.val_loss, r->rows.best_val_loss, speed, mfu, seconds_left(r, last),
        r->end ? r->bytes_per_token : NAN, note ? note : "", tags ? tags : "", reset,
        r->options ? json_incref(r->options) : json_object(),
        weft_watched_lines_json(&r->rows, reset ? 0 : after));
}

json_t *weft_watched_news(const weft_watched *w, int64_t after) {
    if (after >= w->version && after > 0) return NULL;
    json_t *runs = json_array(), *studies = json_array();
    for (int i = 0; i < w->n_studies; i++) {
        const study *s = &w->studies[i];
        if (s->version <= after) continue;
        weft_json_append(studies, "id:i name:s waiting:I running:I done:I failed:I", i, s->name,
                         s->count[0], s->count[1], s->count[2], s->count[3]);
    }
    for (int i = 0; i < w->n_runs; i++)
        if (w->runs[i].version > after) json_array_append_new(runs, run_json(w, i, after));
    return weft_json_make("version:I studies:o runs:o defaults:o*", w->version, studies, runs,
                          after == 0 ? options_json(&w->plain, NULL) : NULL);
}

int weft_watched_folder(const weft_watched *w, int64_t id) {
    return id >= 0 && id < w->n_runs ? open_place(w, &w->runs[id].at) : -1;
}

static char *read_end(int folder, const char *name, size_t most) {
    struct stat is;
    WEFT_AUTO_CLOSE int file = -1;
    if (folder < 0 || weft_below_file(folder, name, &file) != WEFT_OK) return NULL;
    char *text = malloc(most + 1);
    ssize_t n = -1;
    if (text && fstat(file, &is) == 0)
        n = pread(file, text, most, is.st_size > (off_t)most ? is.st_size - (off_t)most : 0);
    for (ssize_t i = 0; i < n; i++) /* a hole, where a machine went down; it ends no text */
        if (!text[i]) text[i] = (char)0xff;
    if (text) text[n > 0 ? n : 0] = '\0';
    return text;
}

char *weft_watched_tail(const weft_watched *w, int64_t id, bool samples, size_t most) {
    WEFT_AUTO_CLOSE int folder = weft_watched_folder(w, id);
    WEFT_AUTO_FREE char *text = samples ? NULL : read_end(folder, "log", most);
    if (!text) text = read_end(folder, "samples.jsonl", most);
    return text ? weft_text_repair(text) : NULL;
}

weft_status weft_watched_note(weft_watched *w, int64_t id, const char *note, const char *tags) {
    if (id < 0 || id >= w->n_runs) return WEFT_BAD_INPUT("there is no run %lld", (long long)id);
    WEFT_TRY(weft_notes_set(w->notes, w->runs[id].at.path, note, tags));
    w->runs[id].version = ++w->version;
    return WEFT_OK;
}

weft_status weft_watched_open(const char *const *folders, int n, bool notes, weft_watched **out) {
    *out = NULL;
    WEFT_NEW(weft_watched, w, weft_watched_close, "watch: no memory");
    WEFT_ROOM_AT(w->roots, n, "watch: no memory");
    weft_config_defaults(&w->plain);
    for (int i = 0; i < n; i++) {
        /* The folder by its whole path; with notes, one that is not there yet too. */
        const char *folder = folders[i];
        char *root = NULL;
        struct stat is;
        bool there = stat(folder, &is) == 0;
        if (there ? !S_ISDIR(is.st_mode) : !notes || errno != ENOENT)
            return WEFT_BAD_INPUT("%s: there is no such folder; name one that holds runs", folder);
        WEFT_AUTO_FREE char *here = realpath(there ? folder : ".", NULL);
        if (there || *folder == '/')
            root = there ? weft_steal(&here) : strdup(folder);
        else if (here && asprintf(&root, "%s/%s", here, folder) < 0)
            root = NULL;
        if (!root) return weft_no_memory("watch");
        for (size_t end = strlen(root); end > 1 && root[end - 1] == '/';)
            root[--end] = '\0';
        w->roots[w->n_roots++] = root;
    }
    if (notes) WEFT_TRY(weft_notes_open(w->roots[0], &w->notes));
    return weft_hand(&w, out);
}

void weft_watched_close(weft_watched *w) {
    if (!w) return;
    for (int i = 0; i < w->n_roots; i++)
        free(w->roots[i]);
    for (int i = 0; i < w->n_runs; i++) {
        WEFT_FREE(w->runs[i].at.path, w->runs[i].name, w->runs[i].title);
        weft_watched_lines_clear(&w->runs[i].rows);
        json_decref(w->runs[i].options);
    }
    for (int i = 0; i < w->n_studies; i++)
        WEFT_FREE(w->studies[i].at.path, w->studies[i].name);
    WEFT_FREE(w->roots, w->runs, w->studies, w->held.list);
    weft_notes_close(w->notes);
    free(w);
}

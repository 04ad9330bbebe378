/* Opening, with all that is looked at before a row is read, and SQLite behind statuses. */
#include "record/database.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>

enum { BUSY_MS = 10000, VALUE_MOST = 1 << 24 };
enum { HEAD_BYTES = 100 };   /* of a database's file */
enum { TICK_STEPS = 10000 }; /* of SQLite's machine between two looks at the clock */
static const double runs_seconds = 600;

struct weft_database {
    sqlite3 *handle;
    const weft_schema *schema;
    char path[WEFT_PATH_MAX]; /* as it was named */
    char file[WEFT_PATH_MAX]; /* the same without a link on it, which is what SQLite is given */
    double seconds, until;    /* for a statement, and the end of the one at hand */
    bool entered;             /* until then there is one end for all statements */
    weft_status asked;        /* what the question at hand came to */
    const weft_schema_version *older; /* what it is of; NULL: the newest */
};

static weft_status failed(const weft_database *d) {
    int code = sqlite3_errcode(d->handle);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return WEFT_BAD_INPUT("%s: damaged, or no %s (%s); move it away, or take another folder",
                              d->path, d->schema->what, sqlite3_errmsg(d->handle));
    if (code == SQLITE_INTERRUPT)
        return WEFT_BAD_INPUT("%s: takes longer than %g s; move it away", d->path, d->seconds);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        return weft_fail(WEFT_EIO, "%s: another program holds it (%s)", d->path,
                         sqlite3_errmsg(d->handle));
    bool input = code == SQLITE_TOOBIG || code == SQLITE_CONSTRAINT;
    return weft_fail(input ? WEFT_EINPUT : WEFT_EIO, "%s: %s", d->path, sqlite3_errmsg(d->handle));
}

/* The time of a statement begins. */
static void start_time(weft_database *d) {
    if (d->entered || d->until == 0) d->until = weft_clock() + d->seconds;
}

static int is_time_up(void *context) {
    const weft_database *d = context;
    return weft_clock() > d->until;
}

void weft_database_close(weft_database *d) {
    if (!d) return;
    sqlite3_close(d->handle);
    free(d);
}

WEFT_GETTER(const char *, weft_database_path, weft_database, path)

weft_status weft_database_script(weft_database *d, const char *sql) {
    start_time(d);
    return sqlite3_exec(d->handle, sql, NULL, NULL, NULL) == SQLITE_OK ? WEFT_OK : failed(d);
}

static sqlite3_stmt *prepare(weft_database *d, const char *sql, const char *types,
                             va_list *values) {
    sqlite3_stmt *rows = NULL;
    start_time(d);
    bool good = sqlite3_prepare_v2(d->handle, sql, -1, &rows, NULL) == SQLITE_OK;
    for (int i = 0; good && types[i]; i++) /* to SQLite a NaN is NULL */
        good = SQLITE_OK ==
               (types[i] == 'i'   ? sqlite3_bind_int64(rows, i + 1, va_arg(*values, int64_t))
                : types[i] == 'd' ? sqlite3_bind_double(rows, i + 1, va_arg(*values, double))
                                  : sqlite3_bind_text(rows, i + 1, va_arg(*values, const char *),
                                                      -1, SQLITE_TRANSIENT));
    d->asked = good ? WEFT_OK : failed(d);
    return rows;
}

/* The rows of a question whose values are this function's last arguments. */
#define ASK(rows)                                                                                  \
    va_list values;                                                                                \
    va_start(values, types);                                                                       \
    sqlite3_stmt *rows = prepare(d, sql, types, &values);                                          \
    va_end(values)

weft_status weft_database_run(weft_database *d, const char *sql, const char *types, ...) {
    ASK(rows);
    while (weft_database_next(d, &rows))
        ;
    return weft_database_end(d);
}

sqlite3_stmt *weft_database_ask(weft_database *d, const char *sql, const char *types, ...) {
    ASK(rows);
    return rows;
}

bool weft_database_next(weft_database *d, sqlite3_stmt **rows) {
    if (*rows && d->asked == WEFT_OK) {
        start_time(d);
        int code = sqlite3_step(*rows);
        if (code == SQLITE_ROW) return true;
        if (code != SQLITE_DONE) d->asked = failed(d);
    }
    sqlite3_finalize(*rows);
    *rows = NULL;
    return false;
}

void weft_database_break(weft_database *d, weft_status status) {
    if (status != WEFT_OK) d->asked = status;
}

weft_status weft_database_end(weft_database *d) {
    weft_status status = d->asked;
    d->asked = WEFT_OK;
    return status;
}

weft_status weft_database_number(weft_database *d, int64_t otherwise, int64_t *out, const char *sql,
                                 const char *types, ...) {
    ASK(rows);
    *out = otherwise;
    if (weft_database_next(d, &rows) && sqlite3_column_type(rows, 0) != SQLITE_NULL)
        *out = sqlite3_column_int64(rows, 0);
    sqlite3_finalize(rows);
    return weft_database_end(d);
}

weft_status weft_database_begin(weft_database *d) {
    return weft_database_script(d, "BEGIN IMMEDIATE");
}

weft_status weft_database_finish(weft_database *d, weft_status status) {
    if (status == WEFT_OK) status = weft_database_script(d, "COMMIT");
    if (status == WEFT_OK) return WEFT_OK;
    sqlite3_exec(d->handle, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

const char *weft_column_text(sqlite3_stmt *rows, int column) {
    const char *text = (const char *)sqlite3_column_text(rows, column);
    return text ? text : "";
}

const char *weft_column_shown(sqlite3_stmt *rows, int column) {
    return weft_shown(weft_column_text(rows, column));
}

double weft_column_number(sqlite3_stmt *rows, int column) {
    return sqlite3_column_type(rows, column) == SQLITE_NULL ? NAN
                                                            : sqlite3_column_double(rows, column);
}

static weft_status refuse(const weft_database *d, const char *what) {
    return WEFT_BAD_INPUT(
        "%s: %s; it was not written by weft. Move it away, or take another folder", d->path, what);
}

/* A rollback journal that weft left: nothing yet, a head that is still zeros, or SQLite's own, without
 * the name of a super-journal behind it. SQLite would remove the file of that name, and a file that is
 * no journal; weft writes neither. One that is gone by now was a running study's. */
static weft_status check_journal(int folder, const char *name, const char *shown) {
    static const unsigned char magic[] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    unsigned char head[sizeof magic] = {0}, end[sizeof magic] = {0};
    struct stat is;
    WEFT_AUTO_CLOSE int file = -1;
    if (weft_below_file(folder, name, &file) != WEFT_OK) return WEFT_OK;
    bool ok = fstat(file, &is) == 0 && pread(file, head, sizeof head, 0) >= 0;
    if (ok && is.st_size >= 2 * (off_t)sizeof end)
        ok = pread(file, end, sizeof end, is.st_size - (off_t)sizeof end) >= 0;
    if (!ok) return weft_fail(WEFT_EIO, "%s: cannot be read: %s", shown, strerror(errno));
    if (head[0] != 0 && memcmp(head, magic, sizeof magic) != 0)
        return WEFT_BAD_INPUT("%s: is not a journal of SQLite's; move it away", shown);
    if (memcmp(end, magic, sizeof magic) != 0) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: names another file to be removed; it was not written by weft. Move it away", shown);
}

/* A folder and a name in it as one path. */
static weft_status join(char path[WEFT_PATH_MAX], const char *folder, const char *name) {
    if (strcmp(folder, ".") == 0) return weft_path(path, "%s", name);
    return weft_path(path, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, name);
}

/* The same with no link in the folder's own path. */
static weft_status join_real(char path[WEFT_PATH_MAX], const char *folder, const char *name) {
    WEFT_AUTO_FREE char *real = realpath(folder, NULL);
    if (!real) return WEFT_BAD_INPUT("%s/%s: %s", folder, name, strerror(errno));
    return join(path, real, name);
}

/* The file's first bytes, read before SQLite acts on any of it: a hot journal is played back with the
 * first statement. It is ours; or empty; or zeros, where its first transaction was cut off. */
static weft_status check_head(weft_database *d, bool journal) {
    unsigned char head[HEAD_BYTES] = {0};
    static const unsigned char nothing[HEAD_BYTES];
    sqlite3_file *file = NULL;
    sqlite3_int64 bytes = 0;
    sqlite3_file_control(d->handle, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (!file || !file->pMethods || file->pMethods->xFileSize(file, &bytes) != SQLITE_OK)
        return weft_fail(WEFT_EIO, "%s: cannot be looked at", d->path);
    if (bytes == 0) return WEFT_OK;
    int code = file->pMethods->xRead(file, head, HEAD_BYTES, 0);
    if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ)
        return weft_fail(WEFT_EIO, "%s: cannot be read", d->path);
    if (journal && memcmp(head, nothing, HEAD_BYTES) == 0) return WEFT_OK;
    if (code != SQLITE_OK || memcmp(head, "SQLite format 3", 16) != 0)
        return WEFT_BAD_INPUT("%s: is no %s; move it away, or take another folder", d->path,
                              d->schema->what);
    int64_t application =
        (int64_t)head[68] << 24 | (int64_t)head[69] << 16 | (int64_t)head[70] << 8 | head[71];
    if (application != d->schema->application)
        return WEFT_BAD_INPUT(
            "%s: a database of another program; move it away, or take another folder", d->path);
    return head[18] == 1 && head[19] == 1 ? WEFT_OK : refuse(d, "it has a write-ahead log");
}

/* SQLite's own defences. The numbers are some times what weft's own tables and statements take. */
static void arm(weft_database *d) {
    static const int limits[][2] = {{SQLITE_LIMIT_LENGTH, VALUE_MOST},
                                    {SQLITE_LIMIT_SQL_LENGTH, 1 << 16},
                                    {SQLITE_LIMIT_COLUMN, 100},
                                    {SQLITE_LIMIT_EXPR_DEPTH, 250},
                                    {SQLITE_LIMIT_COMPOUND_SELECT, 50},
                                    {SQLITE_LIMIT_VDBE_OP, 250000},
                                    {SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000},
                                    {SQLITE_LIMIT_ATTACHED, 1},
                                    {SQLITE_LIMIT_TRIGGER_DEPTH, 1},
                                    {SQLITE_LIMIT_VARIABLE_NUMBER, 100},
                                    {SQLITE_LIMIT_WORKER_THREADS, 0}};
    for (int i = 0; i < WEFT_COUNT(limits); i++)
        sqlite3_limit(d->handle, limits[i][0], limits[i][1]);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_ENABLE_FKEY, 0, NULL); /* the checks hold them */
    sqlite3_exec(d->handle, "PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY", NULL, NULL,
                 NULL);
    sqlite3_busy_timeout(d->handle,
                         d->seconds < 0.001 * BUSY_MS ? (int)(1000 * d->seconds) : BUSY_MS);
    sqlite3_progress_handler(d->handle, TICK_STEPS, is_time_up, d);
}

/* Refuses `d`, one of the two, where `a` has an object that `b` has not, by its type, name, table and statement. */
static weft_status refuse_missing(const weft_database *d, weft_database *a, weft_database *b,
                                  const char *form) {
    EACH_ROW(all, a, "SELECT type, name, tbl_name, sql FROM sqlite_schema") {
        sqlite3_stmt *same = weft_database_ask(b,
                                               "SELECT 1 FROM sqlite_schema WHERE type IS ? AND "
                                               "name IS ? AND tbl_name IS ? AND sql IS ?",
                                               "");
        for (int i = 0; i < 4; i++)
            if (same) sqlite3_bind_value(same, i + 1, sqlite3_column_value(all, i));
        bool there = weft_database_next(b, &same);
        sqlite3_finalize(same);
        weft_status status = weft_database_end(b);
        char what[256];
        const char *name = weft_column_text(all, 1);
        snprintf(what, sizeof what, form, weft_column_text(all, 0), *name ? name : "?");
        weft_database_break(a, status != WEFT_OK || there ? status : refuse(d, what));
    }
    return weft_database_end(a);
}

/* All that is there is looked at before any of it is read. */
static weft_status check_all(weft_database *d, bool *fresh) {
    const weft_schema *s = d->schema;
    int64_t pages, version;
    /* A first transaction that was cut off is taken back by this, and leaves nothing. */
    WEFT_TRY(weft_database_number(d, 0, &pages, "PRAGMA page_count", ""));
    *fresh = pages == 0;
    if (*fresh) return WEFT_OK;
    WEFT_TRY(weft_database_number(d, 0, &version, "PRAGMA user_version", ""));
    if (version < s->oldest || version > s->newest)
        return WEFT_BAD_INPUT(
            "%s: its tables are of version %lld, and this weft knows versions %d to %d; "
            "use the weft that made it, or take another folder",
            d->path, (long long)version, s->oldest, s->newest);
    /* Word for word, and nothing else. */
    WEFT_AUTO(weft_database_close_at) weft_database *ours = NULL;
    WEFT_TRY(weft_database_scratch(d->path, &ours));
    WEFT_TRY(weft_database_script(ours, s->versions[version - s->oldest].tables));
    WEFT_TRY(refuse_missing(d, ours, d, "its %.60s '%.60s' is missing, or another"));
    WEFT_TRY(refuse_missing(d, d, ours, "it has the %.60s '%.60s'"));
    EACH_ROW(rows, d, "PRAGMA integrity_check(1)")
        if (strcmp(weft_column_text(rows, 0), "ok") != 0)
            weft_database_break(
                d, WEFT_BAD_INPUT("%s: damaged (%.200s); move it away, or take another folder",
                                  d->path, weft_column_text(rows, 0)));
    WEFT_TRY(weft_database_end(d));
    if (version < s->newest) {
        d->older = &s->versions[version - s->oldest];
        WEFT_TRY(weft_database_script(d, d->older->read));
    }
    return weft_database_check(d);
}

weft_status weft_database_update(weft_database *d) {
    if (!d->older) return WEFT_OK;
    WEFT_TRY(weft_database_within(d, weft_database_script(d, d->older->update)));
    d->older = NULL;
    return WEFT_OK;
}

weft_status weft_database_check(weft_database *d) {
    return d->schema->check(d);
}

weft_status weft_database_make_tables(weft_database *d) {
    return weft_database_script(d,
                                d->schema->versions[d->schema->newest - d->schema->oldest].tables);
}

/* A journal beside it may be of a study that was cut off: then the database is half changed, and
 * whoever opens it next, to read too, must be able to put it back as it was. */
static weft_status open_file(weft_database *d, weft_database_mode mode, bool journal) {
    int flags =
        mode == WEFT_DATABASE_READ && !journal ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
    if (mode == WEFT_DATABASE_MAKE) flags |= SQLITE_OPEN_CREATE;
    if (sqlite3_open_v2(d->file, &d->handle, flags | SQLITE_OPEN_NOFOLLOW, NULL) == SQLITE_OK)
        return WEFT_OK;
    return weft_fail(WEFT_EIO, "%s: %s", d->path,
                     d->handle ? sqlite3_errmsg(d->handle) : "no memory");
}

weft_status weft_database_enter(const weft_schema *schema, const char *folder, const char *name,
                                weft_database_mode mode, double seconds, weft_database **out,
                                bool *fresh) {
    bool journal = false;
    *out = NULL;
    *fresh = false;
    WEFT_NEW(weft_database, d, weft_database_close, "%s/%s: no memory", folder, name);
    d->schema = schema;
    d->seconds = seconds;
    start_time(d);
    /* Where the database is, without a link on the way. */
    const char *slash = strrchr(name, '/');
    WEFT_AUTO_CLOSE int root = -1, inside = -1;
    WEFT_TRY(join(d->path, folder, name));
    WEFT_TRY(join_real(d->file, folder, name));
    WEFT_PATH(above, "%.*s", slash ? (int)(slash - name) : 0, name);
    WEFT_TRY(weft_below_root(folder, &root));
    WEFT_TRY(weft_below_folder(root, above, &inside));
    /* The database and what SQLite would look for beside it. A write-ahead log is never weft's. */
    static const char *const beside[] = {"", "-journal", "-wal", "-shm"};
    weft_kind kind;
    for (int i = 0; i < 4; i++) {
        WEFT_PATH(shown, "%s%s", d->path, beside[i]);
        WEFT_PATH(path, "%s%s", d->file, beside[i]);
        WEFT_TRY(weft_path_kind(path, &kind));
        if (kind == WEFT_KIND_NOTHING) continue;
        if (kind != WEFT_KIND_FILE)
            return WEFT_BAD_INPUT("%s: is %s, but a database is a plain file; move it away", shown,
                                  weft_kind_name(kind));
        if (i > 1) return WEFT_BAD_INPUT("%s: was not written by weft; move it away", shown);
        journal = i == 1;
        WEFT_TRY(weft_path(path, "%s%s", slash ? slash + 1 : name, beside[i]));
        if (i == 1) WEFT_TRY(check_journal(inside, path, shown));
    }
    if (mode != WEFT_DATABASE_MAKE && access(d->file, R_OK) != 0)
        return WEFT_BAD_INPUT("%s: %s", d->path, strerror(errno));
    WEFT_TRY(open_file(d, mode, journal));
    WEFT_TRY(check_head(d, journal));
    arm(d);
    WEFT_TRY(check_all(d, fresh));
    if (*fresh && mode != WEFT_DATABASE_MAKE)
        return WEFT_BAD_INPUT("%s: an empty database: no study was started in it", d->path);
    d->entered = true;
    return weft_hand(&d, out);
}

/* A path's folder and the name in it, as weft_database_enter wants them. */
static weft_status split(const char *path, char folder[WEFT_PATH_MAX], const char **name) {
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash) return weft_path(folder, ".");
    return weft_path(folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

weft_status weft_listing_folder(const char *path, char folder[WEFT_PATH_MAX]) {
    struct stat is;
    const char *name;
    bool itself = stat(path, &is) == 0 && S_ISDIR(is.st_mode);
    return itself ? weft_path(folder, "%s", path) : split(path, folder, &name);
}

weft_status weft_database_open(const char *path, weft_database_mode mode, weft_database **out,
                               bool *fresh) {
    char folder[WEFT_PATH_MAX];
    const char *name;
    bool is_fresh;
    *out = NULL;
    WEFT_TRY(split(path, folder, &name));
    return weft_database_enter(&weft_runs_schema, folder, name, mode, runs_seconds, out,
                               fresh ? fresh : &is_fresh);
}

/* SQLite takes a file for "" whose name it removes as soon as it is open. */
weft_status weft_database_scratch(const char *path, weft_database **out) {
    *out = NULL;
    WEFT_NEW(weft_database, d, weft_database_close, "%s: no memory", path);
    d->schema = &weft_runs_schema;
    d->seconds = runs_seconds;
    d->entered = true;
    WEFT_TRY(weft_path(d->path, "%s", path));
    WEFT_TRY(open_file(d, WEFT_DATABASE_MAKE, false));
    arm(d);
    return weft_hand(&d, out);
}

weft_status weft_database_place(const char *folder) {
    static const char *const names[] = {"runs.db", "config.json", "model.safetensors",
                                        "metrics.jsonl"};
    bool there;
    for (int i = 0; i < WEFT_COUNT(names); i++) {
        WEFT_PATH(path, "%s/%s", folder, names[i]);
        WEFT_TRY(weft_path_there(path, &there));
        if (there && i == 0) return WEFT_OK;
        if (there)
            return WEFT_BAD_INPUT("%s: is %s folder, not a study's (it has %s); take another --out",
                                  folder, i < 3 ? "a model's" : "a run's", names[i]);
    }
    return WEFT_OK;
}

weft_status weft_database_attach(weft_database *d, const weft_database *other, const char *name) {
    char sql[64];
    snprintf(sql, sizeof sql, "ATTACH ? AS %s", name);
    return weft_database_run(d, sql, "s", other->file);
}

/* SQLite makes the file, and follows no link on the way to it. */
weft_status weft_database_copy(weft_database *d, const char *path) {
    char folder[WEFT_PATH_MAX], file[WEFT_PATH_MAX];
    const char *name;
    WEFT_TRY(split(path, folder, &name));
    WEFT_TRY(join_real(file, folder, name));
    return weft_database_run(d, "VACUUM INTO ?", "s", file);
}

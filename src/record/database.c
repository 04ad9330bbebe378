/* SQLite behind statuses. */
#include "record/database.h"

#include "base/files.h"
#include "base/text.h"
#include "record/database_check.h"
#include "record/schema.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_MS = 10000, MESSAGE_ROOM = 2048, VALUE_MOST = 1 << 24 };

struct weft_database {
    sqlite3 *handle;
    char path[WEFT_PATH_MAX];
};

static weft_status failed(const weft_database *d) {
    int code = sqlite3_errcode(d->handle);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return weft_fail(WEFT_EINPUT,
                         "%s: damaged, or no database of runs (%s); move it away, or take "
                         "another folder",
                         d->path, sqlite3_errmsg(d->handle));
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        return weft_fail(WEFT_EIO, "%s: another program holds it (%s)", d->path,
                         sqlite3_errmsg(d->handle));
    bool input = code == SQLITE_TOOBIG || code == SQLITE_CONSTRAINT;
    return weft_fail(input ? WEFT_EINPUT : WEFT_EIO, "%s: %s", d->path, sqlite3_errmsg(d->handle));
}

void weft_database_close(weft_database *d) {
    if (!d) return;
    sqlite3_close(d->handle);
    free(d);
}

const char *weft_database_path(const weft_database *d) {
    return d->path;
}

weft_status weft_database_script(weft_database *d, const char *sql) {
    return sqlite3_exec(d->handle, sql, NULL, NULL, NULL) == SQLITE_OK ? WEFT_OK : failed(d);
}

static bool bind_one(sqlite3_stmt *statement, int place, char type, va_list *values) {
    if (type == 'i')
        return sqlite3_bind_int64(statement, place, va_arg(*values, int64_t)) == SQLITE_OK;
    if (type == 'd') {
        double value = va_arg(*values, double);
        return (isnan(value) ? sqlite3_bind_null(statement, place)
                             : sqlite3_bind_double(statement, place, value)) == SQLITE_OK;
    }
    return sqlite3_bind_text(statement, place, va_arg(*values, const char *), -1,
                             SQLITE_TRANSIENT) == SQLITE_OK;
}

static weft_status prepare(weft_database *d, sqlite3_stmt **out, const char *sql, const char *types,
                           va_list *values) {
    if (sqlite3_prepare_v2(d->handle, sql, -1, out, NULL) != SQLITE_OK) return failed(d);
    for (int i = 0; types[i]; i++) {
        if (bind_one(*out, i + 1, types[i], values)) continue;
        weft_status status = failed(d);
        sqlite3_finalize(*out);
        *out = NULL;
        return status;
    }
    return WEFT_OK;
}

weft_status weft_database_run(weft_database *d, const char *sql, const char *types, ...) {
    sqlite3_stmt *statement = NULL;
    va_list values;
    va_start(values, types);
    weft_status status = prepare(d, &statement, sql, types, &values);
    va_end(values);
    if (status != WEFT_OK) return status;
    int code = SQLITE_ROW;
    while (code == SQLITE_ROW)
        code = sqlite3_step(statement);
    if (code != SQLITE_DONE) status = failed(d);
    sqlite3_finalize(statement);
    return status;
}

weft_status weft_database_ask(weft_database *d, sqlite3_stmt **out, const char *sql,
                              const char *types, ...) {
    va_list values;
    *out = NULL;
    va_start(values, types);
    weft_status status = prepare(d, out, sql, types, &values);
    va_end(values);
    return status;
}

weft_status weft_database_next(weft_database *d, sqlite3_stmt *rows, bool *there) {
    int code = sqlite3_step(rows);
    *there = code == SQLITE_ROW;
    return code == SQLITE_ROW || code == SQLITE_DONE ? WEFT_OK : failed(d);
}

void weft_database_end(sqlite3_stmt *rows) {
    sqlite3_finalize(rows);
}

weft_status weft_database_number(weft_database *d, int64_t otherwise, int64_t *out, const char *sql,
                                 const char *types, ...) {
    sqlite3_stmt *rows = NULL;
    bool there = false;
    va_list values;
    va_start(values, types);
    weft_status status = prepare(d, &rows, sql, types, &values);
    va_end(values);
    *out = otherwise;
    if (status == WEFT_OK) status = weft_database_next(d, rows, &there);
    if (there && sqlite3_column_type(rows, 0) != SQLITE_NULL) *out = sqlite3_column_int64(rows, 0);
    sqlite3_finalize(rows);
    return status;
}

weft_status weft_database_begin(weft_database *d) {
    return weft_database_script(d, "BEGIN IMMEDIATE");
}

weft_status weft_database_finish(weft_database *d, weft_status status) {
    if (status == WEFT_OK) status = weft_database_script(d, "COMMIT");
    if (status == WEFT_OK) return WEFT_OK;
    char message[MESSAGE_ROOM];
    snprintf(message, sizeof message, "%s", weft_error_message());
    sqlite3_exec(d->handle, "ROLLBACK", NULL, NULL, NULL);
    return weft_fail(status, "%s", message);
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

/* Ours, or empty. */
static weft_status check_kind(weft_database *d, int64_t *version, bool *fresh) {
    int64_t application, tables;
    WEFT_TRY(weft_database_number(d, 0, &tables, "SELECT count(*) FROM sqlite_schema", ""));
    WEFT_TRY(weft_database_number(d, 0, &application, "PRAGMA application_id", ""));
    WEFT_TRY(weft_database_number(d, 0, version, "PRAGMA user_version", ""));
    *fresh = tables == 0;
    if (*fresh) return WEFT_OK;
    if (application != WEFT_SCHEMA_APPLICATION)
        return weft_fail(WEFT_EINPUT,
                         "%s: a database of another program; move it away, or take another folder",
                         d->path);
    if (*version < WEFT_SCHEMA_OLDEST || *version > WEFT_SCHEMA_VERSION)
        return weft_fail(
            WEFT_EINPUT,
            "%s: its tables are of version %lld, and this weft knows versions %d to %d; "
            "use the weft that made it, or take another folder",
            d->path, (long long)*version, WEFT_SCHEMA_OLDEST, WEFT_SCHEMA_VERSION);
    return WEFT_OK;
}

static weft_status update(weft_database *d) {
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, weft_database_script(d, WEFT_SCHEMA_UPDATE));
}

static weft_status check_whole(weft_database *d) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(d, &rows, "PRAGMA integrity_check(1)", ""));
    weft_status status = weft_database_next(d, rows, &there);
    if (status == WEFT_OK && there && strcmp(weft_column_text(rows, 0), "ok") != 0)
        status =
            weft_fail(WEFT_EINPUT, "%s: damaged (%.200s); move it away, or take another folder",
                      d->path, weft_column_text(rows, 0));
    weft_database_end(rows);
    return status;
}

/* SQLite's own defences against a file that was written with intent. */
static void arm(weft_database *d) {
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_limit(d->handle, SQLITE_LIMIT_LENGTH, VALUE_MOST);
    sqlite3_exec(d->handle, "PRAGMA cell_size_check = ON", NULL, NULL, NULL);
    sqlite3_busy_timeout(d->handle, BUSY_MS);
}

/* All that is there is looked at before any of it is read. */
static weft_status check_all(weft_database *d, bool write, bool *fresh) {
    int64_t version;
    WEFT_TRY(check_kind(d, &version, fresh));
    if (*fresh) return WEFT_OK;
    WEFT_TRY(check_whole(d));
    WEFT_TRY(weft_database_check(d, version));
    return write && version < WEFT_SCHEMA_VERSION ? update(d) : WEFT_OK;
}

/* A journal beside it may be of a study that was cut off: then the database is half changed, and
 * whoever opens it next, to read too, must be able to put it back as it was. */
static weft_status flags_to_read(const char *path, int *flags) {
    char journal[WEFT_PATH_MAX];
    weft_kind kind;
    WEFT_TRY(weft_path(journal, "%s-journal", path));
    WEFT_TRY(weft_path_kind(journal, &kind));
    *flags = kind == WEFT_KIND_FILE ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
    return WEFT_OK;
}

static weft_status open_database(const char *path, bool write, bool make, weft_database **out,
                                 bool *fresh) {
    int flags = SQLITE_OPEN_READWRITE | (make ? SQLITE_OPEN_CREATE : 0);
    *out = NULL;
    weft_database *d = calloc(1, sizeof *d);
    if (!d) return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    weft_status status = weft_path(d->path, "%s", path);
    if (status == WEFT_OK) status = weft_database_check_files(path, write);
    if (status == WEFT_OK && !write) status = flags_to_read(path, &flags);
    if (status == WEFT_OK && sqlite3_open_v2(path, &d->handle, flags, NULL) != SQLITE_OK)
        status = weft_fail(WEFT_EIO, "%s: %s", path,
                           d->handle ? sqlite3_errmsg(d->handle) : "no memory");
    if (status == WEFT_OK) arm(d);
    if (status == WEFT_OK) status = check_all(d, write, fresh);
    if (status == WEFT_OK)
        *out = d;
    else
        weft_database_close(d);
    return status;
}

weft_status weft_database_open(const char *path, bool write, weft_database **out) {
    bool fresh = false;
    *out = NULL;
    if (access(path, R_OK) != 0) return weft_fail(WEFT_EINPUT, "%s: %s", path, strerror(errno));
    WEFT_TRY(open_database(path, write, false, out, &fresh));
    if (!fresh) return WEFT_OK;
    weft_database_close(*out);
    *out = NULL;
    return weft_fail(WEFT_EINPUT, "%s: an empty database: no study was started in it", path);
}

weft_status weft_database_open_or_new(const char *path, weft_database **out, bool *fresh) {
    return open_database(path, true, true, out, fresh);
}

void weft_time_now(char text[WEFT_TIME_ROOM]) {
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t n = strftime(text, WEFT_TIME_ROOM, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + n, WEFT_TIME_ROOM - n, ".%03ldZ", now.tv_nsec / 1000000);
}

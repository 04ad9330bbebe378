/* Notes in SQLite. */
#include "record/notes.h"

#include "base/files.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 2000 };

struct weft_notes {
    char folder[WEFT_PATH_MAX], path[WEFT_PATH_MAX];
    sqlite3 *file; /* NULL: there is none yet */
};

static weft_status failed(const weft_notes *n) {
    return weft_fail(WEFT_EIO, "%s: %s", n->path, n->file ? sqlite3_errmsg(n->file) : "no memory");
}

static weft_status open_file(weft_notes *n) {
    static const char tables[] = "PRAGMA application_id = 0x77656e6f;"
                                 "CREATE TABLE IF NOT EXISTS notes(run TEXT PRIMARY KEY,"
                                 " note TEXT NOT NULL, tags TEXT NOT NULL) WITHOUT ROWID;";
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
    if (sqlite3_open_v2(n->path, &n->file, flags, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(n->file, WAIT_MS);
        if (sqlite3_exec(n->file, tables, NULL, NULL, NULL) == SQLITE_OK) return WEFT_OK;
    }
    weft_status status = failed(n);
    sqlite3_close(n->file);
    n->file = NULL;
    return status;
}

weft_status weft_notes_open(const char *folder, weft_notes **out) {
    weft_notes *n = calloc(1, sizeof *n);
    bool there;
    *out = NULL;
    if (!n) return weft_fail(WEFT_ENOMEM, "notes: no memory");
    weft_status status = weft_path(n->folder, "%s", folder);
    if (status == WEFT_OK) status = weft_path(n->path, "%s/notes.db", folder);
    if (status == WEFT_OK) status = weft_path_there(n->path, &there);
    if (status == WEFT_OK && there) status = open_file(n);
    if (status != WEFT_OK) {
        weft_notes_close(n);
        return status;
    }
    *out = n;
    return WEFT_OK;
}

void weft_notes_close(weft_notes *n) {
    if (n) sqlite3_close(n->file);
    free(n);
}

static const char *name_of(const weft_notes *n, const char *run) {
    size_t length = strlen(n->folder);
    bool below = strncmp(run, n->folder, length) == 0 && run[length] == '/';
    return below ? run + length + 1 : strcmp(run, n->folder) == 0 ? "." : run;
}

static void copy_column(sqlite3_stmt *s, int column, char out[WEFT_NOTE_ROOM]) {
    const char *text = (const char *)sqlite3_column_text(s, column);
    snprintf(out, WEFT_NOTE_ROOM, "%s", text ? text : "");
}

void weft_notes_get(weft_notes *n, const char *run, char note[WEFT_NOTE_ROOM],
                    char tags[WEFT_NOTE_ROOM]) {
    sqlite3_stmt *s = NULL;
    *note = *tags = '\0';
    if (!n || !n->file) return;
    if (sqlite3_prepare_v2(n->file, "SELECT note, tags FROM notes WHERE run = ?", -1, &s, NULL) ==
            SQLITE_OK &&
        sqlite3_bind_text(s, 1, name_of(n, run), -1, SQLITE_TRANSIENT) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        copy_column(s, 0, note);
        copy_column(s, 1, tags);
    }
    sqlite3_finalize(s);
}

weft_status weft_notes_set(weft_notes *n, const char *run, const char *note, const char *tags) {
    static const char sql[] = "INSERT INTO notes VALUES(?, ?, ?) ON CONFLICT(run) DO UPDATE SET "
                              "note = excluded.note, tags = excluded.tags";
    sqlite3_stmt *s = NULL;
    if (!n) return weft_fail(WEFT_EINPUT, "no notes are kept here");
    if (!n->file) WEFT_TRY(open_file(n));
    bool ok = sqlite3_prepare_v2(n->file, sql, -1, &s, NULL) == SQLITE_OK &&
              sqlite3_bind_text(s, 1, name_of(n, run), -1, SQLITE_TRANSIENT) == SQLITE_OK &&
              sqlite3_bind_text(s, 2, note, -1, SQLITE_TRANSIENT) == SQLITE_OK &&
              sqlite3_bind_text(s, 3, tags, -1, SQLITE_TRANSIENT) == SQLITE_OK &&
              sqlite3_step(s) == SQLITE_DONE;
    weft_status status = ok ? WEFT_OK : failed(n);
    sqlite3_finalize(s);
    return status;
}

/* Notes in SQLite. */
#include "record/watched.h"

#include "base/files.h"
#include "record/database.h"

static const double statement_seconds = 5; /* a page waits for it */

struct weft_notes {
    char folder[WEFT_PATH_MAX];
    weft_database *file; /* NULL: there is none yet */
};

#define TEXT_WITHIN_BOUNDS(column)                                                                 \
    "(typeof(" column ") = 'text' AND length(CAST(" column " AS BLOB)) <= 65536)"
_Static_assert(WEFT_NOTE_MOST == 65536, "the number in the rule");

static weft_status check_notes(weft_database *d) {
    int64_t wrong;
    WEFT_TRY(weft_database_number(
        d, 0, &wrong,
        "SELECT count(*) FROM notes WHERE (" TEXT_WITHIN_BOUNDS("run") " AND " TEXT_WITHIN_BOUNDS(
            "note") " AND " TEXT_WITHIN_BOUNDS("tags") ") IS NOT TRUE",
        ""));
    if (wrong == 0) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: has notes that are no text of at most %d bytes; move it away",
                          weft_database_path(d), WEFT_NOTE_MOST);
}

static const weft_schema_version version = {
    .tables = "PRAGMA application_id = 0x77656e6f;"
              "CREATE TABLE notes(run TEXT PRIMARY KEY,"
              " note TEXT NOT NULL, tags TEXT NOT NULL) WITHOUT ROWID;"};
static const weft_schema schema = {.what = "database of notes",
                                   .application = 0x77656e6f,
                                   .versions = &version,
                                   .check = check_notes};

static weft_status open_file(weft_notes *n) {
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    bool fresh;
    WEFT_TRY(weft_database_enter(&schema, n->folder, "notes.db", WEFT_DATABASE_MAKE,
                                 statement_seconds, &d, &fresh));
    if (fresh) WEFT_TRY(weft_database_within(d, weft_database_make_tables(d)));
    return weft_hand(&d, &n->file);
}

weft_status weft_notes_open(const char *folder, weft_notes **out) {
    bool there;
    *out = NULL;
    WEFT_NEW(weft_notes, n, weft_notes_close, "notes: no memory");
    WEFT_TRY(weft_path(n->folder, "%s", folder));
    WEFT_PATH(path, "%s/notes.db", folder);
    WEFT_TRY(weft_path_there(path, &there));
    if (there) WEFT_TRY(open_file(n));
    return weft_hand(&n, out);
}

void weft_notes_close(weft_notes *n) {
    if (n) weft_database_close(n->file);
    free(n);
}

static const char *name_of(const weft_notes *n, const char *run) {
    size_t length = strlen(n->folder);
    bool below = strncmp(run, n->folder, length) == 0 && run[length] == '/';
    return below ? run + length + 1 : strcmp(run, n->folder) == 0 ? "." : run;
}

void weft_notes_get(weft_notes *n, const char *run, char **note, char **tags) {
    *note = *tags = NULL;
    if (!n || !n->file) return;
    EACH_ROW(rows, n->file, "SELECT note, tags FROM notes WHERE run = ?", "s", name_of(n, run)) {
        *note = strdup(weft_column_text(rows, 0));
        *tags = strdup(weft_column_text(rows, 1));
    }
    weft_database_end(n->file);
}

weft_status weft_notes_set(weft_notes *n, const char *run, const char *note, const char *tags) {
    if (!n) return WEFT_BAD_INPUT("no notes are kept here");
    if (strlen(note) > WEFT_NOTE_MOST || strlen(tags) > WEFT_NOTE_MOST)
        return WEFT_BAD_INPUT("a note, or tags, have at most %d bytes", WEFT_NOTE_MOST);
    if (!n->file) WEFT_TRY(open_file(n));
    return weft_database_run(n->file,
                             "INSERT INTO notes VALUES(?, ?, ?) ON CONFLICT(run) DO UPDATE SET "
                             "note = excluded.note, tags = excluded.tags",
                             "sss", name_of(n, run), note, tags);
}

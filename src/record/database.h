/* The one door to SQLite: a thin layer, where a failed call is a status with one line.
 *
 * A database is input, and so are its neighbours: somebody may have written them by hand, or with
 * intent. So every database that weft opens is opened here. Nothing on its path below the folder that
 * the user named is a link; the journal beside it is SQLite's, and names no file that SQLite would
 * remove; before SQLite may act on any of it, the file's head says that weft made it; its tables are
 * weft's own, word for word, and nothing else is in it: no view of others', no trigger, no index. It is
 * whole, and its values keep their schema's rules. No statement runs longer than its time. What does not
 * hold is refused, and left as it was.
 *
 * A database keeps SQLite's rollback journal and full syncing, so a transaction is there whole or not at
 * all after a kill at any moment, and a database at rest is one file. */
#ifndef WEFT_RECORD_DATABASE_H
#define WEFT_RECORD_DATABASE_H

#include "base/error.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

enum { WEFT_TIME_ROOM = 32 };

typedef struct weft_database weft_database;

/* A kind of database. */
typedef struct {
    const char *what;          /* "database of runs", in messages */
    int64_t application;       /* application_id: what the file's head says it is */
    int oldest, newest;        /* versions of the tables that are known: user_version */
    const char *const *tables; /* for each of them, statements that make an empty one */
    const char *update;        /* from the oldest to the newest; NULL: there is one alone */
    /* WEFT_EINPUT names the first value that is wrong. */
    weft_status (*check)(weft_database *d, int64_t version);
} weft_schema;

typedef enum {
    WEFT_DATABASE_READ,
    WEFT_DATABASE_WRITE,
    WEFT_DATABASE_MAKE /* there may be none yet */
} weft_database_mode;

/* Opens the database `name` below `folder`, which is as the user named it. `seconds` is how long one
 * statement, and opening with all its checks, may take. *fresh tells that it is empty, which is an error
 * in the first two modes; nothing is written by opening. */
weft_status weft_database_enter(const weft_schema *schema, const char *folder, const char *name,
                                weft_database_mode mode, double seconds, weft_database **out,
                                bool *fresh);

/* A database of runs at a path that the user named: that is there, to read only or to write too; and to
 * write, where there may be none yet. */
weft_status weft_database_open(const char *path, bool write, weft_database **out);
weft_status weft_database_open_or_new(const char *path, weft_database **out, bool *fresh);
/* Whether a study may begin in that folder, or has: WEFT_EINPUT where it is a model's or a run's, in which
 * training would not go on once it has a runs.db. */
weft_status weft_database_place(const char *folder);
/* An empty one without a name, which goes when it is closed; `path` is what messages call it. */
weft_status weft_database_scratch(const char *path, weft_database **out);
void weft_database_close(weft_database *d);
const char *weft_database_path(const weft_database *d);

/* Puts the file of an open database beside another's, under a name, or a copy of one that has none; a copy
 * of one in a file that is not there yet. */
weft_status weft_database_attach(weft_database *d, const weft_database *other, const char *name);
weft_status weft_database_copy(weft_database *d, const char *path);

/* Runs one statement. `types` has a letter for each `?`: i int64_t, d double (NaN is NULL), s text
 * (NULL is NULL). */
weft_status weft_database_run(weft_database *d, const char *sql, const char *types, ...);
/* Runs several statements without parameters. */
weft_status weft_database_script(weft_database *d, const char *sql);

/* A question's rows, one by one; weft_database_end after the last or before. */
weft_status weft_database_ask(weft_database *d, sqlite3_stmt **out, const char *sql,
                              const char *types, ...);
/* The next row: *there tells whether there is one. */
weft_status weft_database_next(weft_database *d, sqlite3_stmt *rows, bool *there);
void weft_database_end(sqlite3_stmt *rows);
/* The first column of the first row as a number, or `otherwise`. */
weft_status weft_database_number(weft_database *d, int64_t otherwise, int64_t *out, const char *sql,
                                 const char *types, ...);

/* One transaction. Commit after all went well; otherwise roll back, which keeps the message. */
weft_status weft_database_begin(weft_database *d);
weft_status weft_database_finish(weft_database *d, weft_status status);

/* A column as text, "" for NULL; as a number, NaN for NULL. */
const char *weft_column_text(sqlite3_stmt *rows, int column);
/* The same as a terminal may have it (base/text.h: eight of them at a time). */
const char *weft_column_shown(sqlite3_stmt *rows, int column);
double weft_column_number(sqlite3_stmt *rows, int column);

/* Now, as ISO 8601 in UTC with milliseconds. */
void weft_time_now(char text[WEFT_TIME_ROOM]);

#endif

/* The run database: a thin layer over SQLite, where a failed call is a status with one line.
 *
 * It keeps SQLite's rollback journal and full syncing, so a transaction is there whole or not at all
 * after a kill at any moment, and a database at rest is one file. */
#ifndef WEFT_RECORD_DATABASE_H
#define WEFT_RECORD_DATABASE_H

#include "base/error.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

enum { WEFT_TIME_ROOM = 32 };

typedef struct weft_database weft_database;

/* Opens a database that is there, to read only or to write too. One that is damaged, of another
 * program or of another version of the tables is refused by name. */
weft_status weft_database_open(const char *path, bool write, weft_database **out);
/* The same to write, where there may be none yet: *fresh tells that it has no tables. Nothing is
 * written by this. */
weft_status weft_database_open_or_new(const char *path, weft_database **out, bool *fresh);
void weft_database_close(weft_database *d);
const char *weft_database_path(const weft_database *d);

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

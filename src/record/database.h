/* The one door to SQLite: a thin layer, where a failed call is a status with one line.
 *
 * A database is input, and so are its neighbours: somebody may have written them by hand, or with intent. So every
 * database that weft opens is opened here. Nothing on its path below the folder that the user named is a link; the
 * journal beside it is SQLite's, and names no file that SQLite would remove; before SQLite may act on any of it, the
 * file's head says that weft made it; its tables are weft's own, word for word, and nothing else is in it: no view of
 * others', no trigger, no index. It is whole, and its values keep their schema's rules. No statement runs longer than
 * its time. What does not hold is refused, and left as it was.
 *
 * A database keeps SQLite's rollback journal and full syncing, so a transaction is there whole or not at all after a
 * kill at any moment, and a database at rest is one file. */
#pragma once

#include "base/files.h"

#include <sqlite3.h>

typedef struct weft_database weft_database;

/* Statements: what makes an empty database; and of an older version, what lets it be read by the newest
 * one's names without a change, and what, after that, makes it one of the newest. */
typedef struct {
    const char *tables, *read, *update;
} weft_schema_version;

/* A kind of database. */
typedef struct {
    const char *what;                    /* "database of runs", in messages */
    int64_t application;                 /* application_id: what the file's head says it is */
    int oldest, newest;                  /* versions that are known: user_version */
    const weft_schema_version *versions; /* each of them */
    /* WEFT_EINPUT names the first value that is wrong. */
    weft_status (*check)(weft_database *d);
} weft_schema;

typedef enum {
    WEFT_DATABASE_READ,
    WEFT_DATABASE_WRITE,
    WEFT_DATABASE_MAKE /* there may be none yet */
} weft_database_mode;

/* Opens the database `name` below `folder`, which is as the user named it. `seconds` is how long one statement, and
 * opening with all its checks, may take. *fresh tells that it is empty, which is an error in the first two modes.
 * Nothing is written by opening: one of an older version is read by the newest one's names. */
weft_status weft_database_enter(const weft_schema *schema, const char *folder, const char *name,
                                weft_database_mode mode, double seconds, weft_database **out,
                                bool *fresh);

/* The database of runs (record/schema.c). docs/guide/studies.md tells what each column holds.
 *
 * The view `contents` is what a study says of itself: everything but time, speed, memory, the machine, and the events
 * of starting and going on. It has one text row a fact and an order of its own, so two databases hold the same study
 * where it gives the same rows.
 *
 * Whoever reads the tables may rely on this: every column has its type. Variants are numbered from 0 without a gap;
 * what names a variant or a run names one that is there; seeds, iterations and counts are whole numbers in their range;
 * a run's folder is a plain name in `runs`. Texts may hold anything: they are escaped where they are shown. */
enum { WEFT_SCHEMA_VERSION = 3 };
extern const weft_schema weft_runs_schema;

/* The same of a database of runs at a path that the user named; `fresh` may be NULL. */
weft_status weft_database_open(const char *path, weft_database_mode mode, weft_database **out,
                               bool *fresh);
/* Whether a study may begin in that folder, or has: WEFT_EINPUT where it is a model's or a run's, in which
 * training would not go on once it has a runs.db. */
weft_status weft_database_place(const char *folder);
/* An empty one without a name, which goes when it is closed; `path` is what messages call it. */
weft_status weft_database_scratch(const char *path, weft_database **out);
void weft_database_close(weft_database *d);
WEFT_ENDED_BY(weft_database_close, weft_database)
/* Makes one of an older version one of the newest, in a transaction: before the first change. */
weft_status weft_database_update(weft_database *d);
/* Makes the tables of a fresh one, within a transaction. */
weft_status weft_database_make_tables(weft_database *d);
/* All values again, as opening has looked at them. */
weft_status weft_database_check(weft_database *d);
const char *weft_database_path(const weft_database *d);

/* Puts the file of an open database beside another's, under a name; a copy of one in a file that is not there yet. */
weft_status weft_database_attach(weft_database *d, const weft_database *other, const char *name);
weft_status weft_database_copy(weft_database *d, const char *path);

/* Runs one statement. `types` has a letter for each `?`: i int64_t, d double (NaN is NULL), s text (NULL is NULL). */
weft_status weft_database_run(weft_database *d, const char *sql, const char *types, ...);
/* Runs several statements without parameters. */
weft_status weft_database_script(weft_database *d, const char *sql);

/* A question's rows, one by one, to the last:
 *
 *     EACH_ROW(rows, d, "SELECT ...", "i", number)
 *         ...
 *     return weft_database_end(d);
 *
 * Without types there is no `?`. What failed on the way, asking included, is the status at the end; weft_database_break ends them with a failure
 * of whoever reads them. */
#define EACH_ROW(rows, d, sql, ...)                                                                \
    for (sqlite3_stmt *rows = weft_database_ask(d, sql, "" __VA_ARGS__);                           \
         weft_database_next(d, &(rows));)
sqlite3_stmt *weft_database_ask(weft_database *d, const char *sql, const char *types, ...);
bool weft_database_next(weft_database *d, sqlite3_stmt **rows);
void weft_database_break(weft_database *d, weft_status status);
weft_status weft_database_end(weft_database *d);
/* The first column of the first row as a number, or `otherwise`. */
weft_status weft_database_number(weft_database *d, int64_t otherwise, int64_t *out, const char *sql,
                                 const char *types, ...);

/* One transaction. Commit after all went well; otherwise roll back, which keeps the message. */
weft_status weft_database_begin(weft_database *d);
weft_status weft_database_finish(weft_database *d, weft_status status);
/* Both around a call. */
#define weft_database_within(d, call) weft_database_finish(d, weft_database_begin(d) ?: (call))

/* A column as text, "" for NULL; as a number, NaN for NULL. */
const char *weft_column_text(sqlite3_stmt *rows, int column);
/* The same as a terminal may have it (base/text.h: eight of them at a time). */
const char *weft_column_shown(sqlite3_stmt *rows, int column);
double weft_column_number(sqlite3_stmt *rows, int column);

/* The rows of a run's metrics in SQL, as they are compared: speed is no part of them. */
#define WEFT_SQL_METRICS(run)                                                                      \
    "SELECT step, loss, cross_entropy, aux_z, aux_contrastive, logits_z, val_loss, metric_value,"  \
    " lr, grad_norm FROM metrics WHERE run = " run
/* Now in SQL, as ISO 8601 in UTC with milliseconds. */
#define WEFT_SQL_NOW "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"

/* Databases out of several places (record/gather.c). */

/* A database, or a folder's runs.db, to read; where a folder has none, its runs are gathered in one that
 * has no name and goes when it is closed, and are not touched. Runs whose configs differ by seed and learning rate alone are one variant, named
 * after the first of them; each is compared with the first that has its dataset and tokenizer. WEFT_EINPUT where the folder
 * holds no run. */
weft_status weft_listing_open(const char *path, weft_database **out);
/* The folder that a database lies in, or the folder that was named itself. */
weft_status weft_listing_folder(const char *path, char folder[WEFT_PATH_MAX]);

typedef struct {
    int runs, done; /* of the joined study: all, and those that ended */
} weft_merged;

/* Joins the databases (or studies' folders) of `paths` into a new one: `out` if that ends on .db, else out/runs.db. A
 * run that ended in one of them is taken from there. Refused: a study of another config, naming the first key that
 * differs; a run that ended in two of them with different results; an `out` that is there. `say` (NULL: nobody) gets
 * one line per run: where it came from, and which commit on which machine made it. */
weft_status weft_merge(const char *const *paths, int n, const char *out, FILE *say,
                       weft_merged *result);

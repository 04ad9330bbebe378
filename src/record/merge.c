/* The first database is copied beside the new one's place; the others are attached to the copy one by
 * one, and what ended in them is taken over; the copy gets its name when it is whole (base/new_folder.h).
 * Equal configs number their runs alike, so a run is the same run by its number. */
#include "record/merge.h"

#include "base/new_folder.h"
#include "record/database_check.h"
#include "record/record.h"
#include "record/schema.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

#define ENDED " IN ('done', 'diverged')"
/* Of runs a and b of one number. */
#define OTHER                                                                                      \
    "(a.step <> b.step OR a.learning_rate <> b.learning_rate OR a.seed <> b.seed OR"               \
    " a.folder <> b.folder)"

/* A database or a folder's runs.db. */
static weft_status file_of(const char *path, char file[PATH_ROOM]) {
    struct stat is;
    bool folder = stat(path, &is) == 0 && S_ISDIR(is.st_mode);
    if (snprintf(file, PATH_ROOM, folder ? "%s/runs.db" : "%s", path) < PATH_ROOM) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", path);
}

/* *made: the folder was not there. */
static weft_status name_out(const char *out, char file[PATH_ROOM], bool *made) {
    size_t n = strlen(out);
    bool database = n > 3 && strcmp(out + n - 3, ".db") == 0;
    weft_kind kind;
    struct stat is;
    *made = false;
    if (snprintf(file, PATH_ROOM, database ? "%s" : "%s/runs.db", out) >= PATH_ROOM)
        return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", out);
    if (!database && stat(out, &is) == 0 && !S_ISDIR(is.st_mode))
        return weft_fail(WEFT_EINPUT, "%s: is not a folder; take another --out", out);
    WEFT_TRY(weft_path_kind(file, &kind));
    if (kind != WEFT_KIND_NOTHING)
        return weft_fail(WEFT_EINPUT, "%s is there already; take another --out", file);
    if (database) return WEFT_OK;
    WEFT_TRY(weft_database_place(out));
    WEFT_TRY(weft_path_kind(out, &kind));
    *made = kind == WEFT_KIND_NOTHING;
    return weft_folder_make(out);
}

/* A whole copy, read in one transaction, so that the first may be in use. */
static weft_status copy_first(const char *path, const char *out) {
    char file[PATH_ROOM];
    weft_database *d;
    WEFT_TRY(file_of(path, file));
    WEFT_TRY(weft_database_open(file, false, &d));
    weft_status status = weft_database_copy(d, out);
    weft_database_close(d);
    return status;
}

/* The part as it was checked: ours, whole, with or without facts. */
static weft_status attach(weft_database *d, const char *path, bool *facts) {
    char file[PATH_ROOM];
    weft_database *part;
    int64_t tables = 0;
    WEFT_TRY(file_of(path, file));
    WEFT_TRY(weft_database_open(file, false, &part));
    weft_status status = weft_database_number(
        part, 0, &tables, "SELECT count(*) FROM sqlite_schema WHERE name = 'facts'", "");
    *facts = tables > 0;
    if (status == WEFT_OK) status = weft_database_attach(d, part, "part");
    weft_database_close(part);
    return status;
}

/* The first key whose value differs. */
static weft_status compare_configs(const char *ours, const char *theirs, const char *path) {
    char a[WEFT_TEXT_MAX], b[WEFT_TEXT_MAX];
    int n;
    const weft_option *options = weft_options(&n);
    for (int i = 0; i < n; i++) {
        weft_record_value(ours, &options[i], a, sizeof a);
        weft_record_value(theirs, &options[i], b, sizeof b);
        if (strcmp(a, b) != 0 && !weft_record_may_change(&options[i]))
            return weft_fail(WEFT_EINPUT,
                             "%s: a study of another config: CONFIG_%s is %.300s there and %.300s "
                             "in the first; studies of one config are merged",
                             path, options[i].key, *b ? b : "empty", *a ? a : "empty");
    }
    return WEFT_OK;
}

static weft_status match_study(weft_database *d, const char *path) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(
        d, &rows,
        "SELECT a.config, b.config, a.seeds <> b.seeds OR a.learning_rates <> b.learning_rates OR"
        " a.equal <> b.equal OR a.score <> b.score OR a.tail <> b.tail"
        " FROM main.study a, part.study b",
        ""));
    weft_status status = weft_database_next(d, rows, &there);
    if (status == WEFT_OK)
        status = there ? compare_configs(weft_column_text(rows, 0), weft_column_text(rows, 1), path)
                       : weft_fail(WEFT_EINPUT, "%s: no study in it", path);
    if (status == WEFT_OK && sqlite3_column_int(rows, 2))
        status =
            weft_fail(WEFT_EINPUT,
                      "%s: its seeds, learning rates or score are others than in the first", path);
    weft_database_end(rows);
    return status;
}

static weft_status match_steps(weft_database *d, const char *path) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(
        weft_database_ask(d, &rows,
                          "SELECT a.name FROM main.steps a JOIN part.steps b ON a.step = b.step"
                          " WHERE a.name IS NOT b.name OR (a.error IS NULL AND b.error IS NULL AND"
                          " (a.overrides IS NOT b.overrides OR a.iters IS NOT b.iters OR"
                          " a.parameters IS NOT b.parameters))",
                          ""));
    weft_status status = weft_database_next(d, rows, &there);
    if (status == WEFT_OK && there)
        status = weft_fail(WEFT_EINPUT, "%s: variant '%s' has other settings than in the first",
                           path, weft_column_text(rows, 0));
    weft_database_end(rows);
    return status;
}

/* A run of one number must be the same run, and one that ended twice must have ended alike. */
static weft_status refuse_contradictions(weft_database *d, const char *path) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(weft_database_ask(
        d, &rows,
        "SELECT a.folder, " OTHER " FROM main.runs a JOIN part.runs b ON a.run = b.run"
        " WHERE " OTHER " OR (a.status" ENDED " AND b.status" ENDED " AND (a.score IS NOT b.score"
        " OR a.weights IS NOT b.weights OR a.status <> b.status))",
        ""));
    weft_status status = weft_database_next(d, rows, &there);
    if (status == WEFT_OK && there)
        status = weft_fail(WEFT_EINPUT,
                           sqlite3_column_int(rows, 1)
                               ? "%s: %s has the number of another run there; merge only studies "
                                 "of one config"
                               : "%s: %s ended with another result than in an earlier one; merge "
                                 "only one of the two",
                           path, weft_column_text(rows, 0));
    weft_database_end(rows);
    return status;
}

/* Which program made it where: what its record says, else what the study says. */
static weft_status add_origin(weft_database *d, int64_t run) {
    return weft_database_run(
        d,
        "INSERT OR IGNORE INTO main.facts(run, name, value)"
        " SELECT ?1, 'commit', git_commit FROM part.study WHERE git_commit IS NOT NULL"
        " UNION ALL SELECT ?1, 'machine', machine FROM part.study WHERE machine IS NOT NULL"
        " UNION ALL SELECT ?1, 'device', device FROM part.study WHERE device IS NOT NULL",
        "i", run);
}

static weft_status take_run(weft_database *d, int64_t run, bool facts) {
    static const char *const steps[] = {
        "DELETE FROM main.metrics WHERE run = ?",
        "DELETE FROM main.facts WHERE run = ?",
        "DELETE FROM main.events WHERE run = ?",
        "DELETE FROM main.runs WHERE run = ?",
        "INSERT INTO main.runs SELECT * FROM part.runs WHERE run = ?",
        "INSERT INTO main.metrics SELECT * FROM part.metrics WHERE run = ?",
        ("INSERT INTO main.events(run, step, kind, detail, at)"
         " SELECT run, step, kind, detail, at FROM part.events WHERE run = ? ORDER BY id"),
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        WEFT_TRY(weft_database_run(d, steps[i], "i", run));
    if (facts)
        WEFT_TRY(weft_database_run(
            d, "INSERT INTO main.facts SELECT * FROM part.facts WHERE run = ?", "i", run));
    WEFT_TRY(weft_database_run(
        d, "UPDATE main.runs SET status = 'waiting' WHERE run = ? AND status NOT" ENDED, "i", run));
    return add_origin(d, run);
}

/* Numbers of the runs to take: what ended there and not here, and what is not here at all. */
static weft_status list_new(weft_database *d, int64_t **list, int *n) {
    sqlite3_stmt *rows;
    bool there;
    *list = NULL;
    *n = 0;
    WEFT_TRY(weft_database_ask(d, &rows,
                               "SELECT b.run FROM part.runs b LEFT JOIN main.runs a"
                               " ON a.run = b.run WHERE a.run IS NULL OR"
                               " (b.status" ENDED " AND a.status NOT" ENDED ") ORDER BY b.run",
                               ""));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        int64_t *more = realloc(*list, (size_t)(*n + 1) * sizeof *more);
        if (!more) {
            status = weft_fail(WEFT_ENOMEM, "merge: no memory");
            break;
        }
        *list = more;
        more[(*n)++] = sqlite3_column_int64(rows, 0);
        status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    return status;
}

static weft_status take_runs(weft_database *d, bool facts) {
    int64_t *runs;
    int n;
    weft_status status = list_new(d, &runs, &n);
    for (int i = 0; status == WEFT_OK && i < n; i++)
        status = take_run(d, runs[i], facts);
    free(runs);
    return status;
}

static weft_status take_steps(weft_database *d) {
    WEFT_TRY(
        weft_database_script(d, "INSERT INTO main.steps SELECT * FROM part.steps WHERE step NOT IN"
                                " (SELECT step FROM main.steps)"));
    return weft_database_script(
        d, "REPLACE INTO main.steps SELECT b.* FROM part.steps b JOIN main.steps a"
           " ON a.step = b.step WHERE a.error IS NOT NULL AND b.error IS NULL");
}

static weft_status take_part(weft_database *d, const char *path, bool facts) {
    WEFT_TRY(match_study(d, path));
    WEFT_TRY(match_steps(d, path));
    WEFT_TRY(refuse_contradictions(d, path));
    WEFT_TRY(take_steps(d));
    return take_runs(d, facts);
}

static weft_status merge_part(weft_database *d, const char *path) {
    bool facts;
    WEFT_TRY(attach(d, path, &facts));
    WEFT_TRY(weft_database_begin(d));
    weft_status status = weft_database_finish(d, take_part(d, path, facts));
    if (status != WEFT_OK) return status; /* the database is closed, and with it what is attached */
    return weft_database_script(d, "DETACH DATABASE part");
}

/* The first one's runs have their origin too, once there are others beside them; and nobody runs them
 * here. */
static weft_status mark_first(weft_database *d) {
    WEFT_TRY(
        weft_database_script(d, "UPDATE runs SET status = 'waiting' WHERE status = 'running'"));
    return weft_database_script(d,
                                "INSERT OR IGNORE INTO facts(run, name, value)"
                                " SELECT run, 'commit', git_commit FROM runs, study"
                                " WHERE status" ENDED " AND git_commit IS NOT NULL"
                                " UNION ALL SELECT run, 'machine', study.machine FROM runs, study"
                                " WHERE status" ENDED " AND study.machine IS NOT NULL"
                                " UNION ALL SELECT run, 'device', study.device FROM runs, study"
                                " WHERE status" ENDED " AND study.device IS NOT NULL");
}

static weft_status tell_runs(weft_database *d, FILE *say) {
    sqlite3_stmt *rows;
    bool there;
    WEFT_TRY(
        weft_database_ask(d, &rows,
                          "SELECT folder, status, score,"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'commit'),"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'device'),"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'machine')"
                          " FROM runs r WHERE status" ENDED " ORDER BY run",
                          ""));
    weft_status status = weft_database_next(d, rows, &there);
    while (status == WEFT_OK && there) {
        fprintf(say, "%-32s %-8s %9.4f  %.12s  %s, %s\n", weft_column_shown(rows, 0),
                weft_column_shown(rows, 1), weft_column_number(rows, 2), weft_column_shown(rows, 3),
                weft_column_shown(rows, 4), weft_column_shown(rows, 5));
        status = weft_database_next(d, rows, &there);
    }
    weft_database_end(rows);
    return status;
}

static weft_status count_runs(weft_database *d, weft_merged *result) {
    int64_t runs, done;
    WEFT_TRY(weft_database_number(d, 0, &runs, "SELECT count(*) FROM runs", ""));
    WEFT_TRY(weft_database_number(d, 0, &done, "SELECT count(*) FROM runs WHERE status" ENDED, ""));
    *result = (weft_merged){(int)runs, (int)done};
    return WEFT_OK;
}

static weft_status build(const char *const *paths, int n, const char *file, FILE *say,
                         weft_merged *result) {
    weft_database *d = NULL;
    WEFT_TRY(copy_first(paths[0], file));
    WEFT_TRY(weft_database_open(file, true, &d));
    weft_status status = mark_first(d);
    for (int i = 1; status == WEFT_OK && i < n; i++)
        status = merge_part(d, paths[i]);
    if (status == WEFT_OK) status = weft_database_check(d, WEFT_SCHEMA_VERSION);
    if (status == WEFT_OK) status = count_runs(d, result);
    if (status == WEFT_OK && say) status = tell_runs(d, say);
    weft_database_close(d);
    return status;
}

/* In a folder beside, which takes SQLite's journals too: half of it is worth nothing. Of several merges
 * into one place, one gets the name. */
weft_status weft_merge(const char *const *paths, int n, const char *out, FILE *say,
                       weft_merged *result) {
    char file[PATH_ROOM], beside[WEFT_PATH_MAX];
    weft_new_folder f;
    bool made;
    WEFT_TRY(name_out(out, file, &made));
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

/* The first database is copied beside the new one's place; copies of the others are attached to it one by
 * one, and what ended in them is taken over; it gets its name when it is whole (base/beside.h).
 * Equal configs number their runs alike, so a run is the same run by its number. */
#include "record/gather.h"

#include "base/beside.h"
#include "record/record.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENDED " IN ('done', 'diverged')"
/* Of runs a and b of one number. */
#define OTHER                                                                                      \
    "(a.variant <> b.variant OR a.learning_rate <> b.learning_rate OR a.seed <> b.seed OR"         \
    " a.folder <> b.folder)"
/* Which program made runs where: what their records say, else what their study says. */
#define ADD_ORIGIN(runs, study)                                                                    \
    "INSERT OR IGNORE INTO main.facts(run, name, value)"                                           \
    " SELECT run, 'commit', git_commit FROM " runs ", " study " WHERE git_commit IS NOT NULL"      \
    " UNION ALL SELECT run, 'machine', machine FROM " runs ", " study " WHERE machine IS NOT NULL" \
    " UNION ALL SELECT run, 'device', device FROM " runs ", " study " WHERE device IS NOT NULL;"

/* *made: the folder was not there. */
static weft_status name_out(const char *out, char file[WEFT_PATH_MAX], bool *made) {
    size_t n = strlen(out);
    bool database = n > 3 && strcmp(out + n - 3, ".db") == 0;
    weft_kind kind;
    struct stat is;
    *made = false;
    WEFT_TRY(weft_path(file, "%s%s", out, database ? "" : "/runs.db"));
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

/* A whole copy, read in one transaction, so that the database may be in use; open, and of today's tables. */
static weft_status open_copy(const char *path, const char *copy, weft_database **out) {
    char file[WEFT_PATH_MAX];
    WEFT_AUTO(weft_database_close_at) weft_database *from = NULL, *d = NULL;
    struct stat is;
    *out = NULL;
    bool folder = stat(path, &is) == 0 && S_ISDIR(is.st_mode);
    WEFT_TRY(weft_path(file, "%s%s", path, folder ? "/runs.db" : ""));
    WEFT_TRY(weft_database_open(file, false, &from));
    WEFT_TRY(weft_database_copy(from, copy));
    WEFT_TRY(weft_database_open(copy, true, &d));
    WEFT_TRY(weft_database_update(d));
    *out = weft_steal(&d);
    return WEFT_OK;
}

static weft_status compare_configs(const char *ours, const char *theirs, const char *path) {
    char a[WEFT_TEXT_MAX], b[WEFT_TEXT_MAX];
    const weft_option *o = weft_record_difference(ours, theirs, false, a, b);
    if (!o) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: a study of another config: CONFIG_%s is %.300s there and %.300s "
                     "in the first; studies of one config are merged",
                     path, o->key, b, a);
}

/* The runs to take: what ended there and not here, and what is not here at all. */
static weft_status take_part(weft_database *d, const char *path) {
    sqlite3_stmt *studies = weft_database_ask(
        d,
        "SELECT a.config, b.config, a.seeds <> b.seeds OR a.learning_rates <> b.learning_rates OR"
        " a.equal <> b.equal OR a.score <> b.score OR a.tail <> b.tail"
        " FROM main.study a, part.study b",
        "");
    if (weft_database_next(d, studies)) {
        weft_status status =
            compare_configs(weft_column_text(studies, 0), weft_column_text(studies, 1), path);
        if (status == WEFT_OK && sqlite3_column_int(studies, 2))
            status = weft_fail(WEFT_EINPUT,
                               "%s: its seeds, learning rates or score are others than in the "
                               "first",
                               path);
        weft_database_break(d, status);
    }
    WEFT_TRY(weft_database_end(d, studies));
    sqlite3_stmt *rows =
        weft_database_ask(d,
                          "SELECT a.name FROM main.variants a JOIN part.variants b USING (variant)"
                          " WHERE a.name IS NOT b.name OR (a.error IS NULL AND b.error IS NULL AND"
                          " (a.overrides IS NOT b.overrides OR a.iters IS NOT b.iters OR"
                          " a.parameters IS NOT b.parameters))",
                          "");
    if (weft_database_next(d, rows))
        weft_database_break(d, weft_fail(WEFT_EINPUT,
                                         "%s: variant '%s' has other settings than in the first",
                                         path, weft_column_text(rows, 0)));
    WEFT_TRY(weft_database_end(d, rows));
    /* A run of one number must be the same run, and one that ended twice must have ended alike. */
    sqlite3_stmt *twice = weft_database_ask(
        d,
        "SELECT a.folder, " OTHER " FROM main.runs a JOIN part.runs b ON a.run = b.run"
        " WHERE " OTHER " OR (a.status" ENDED " AND b.status" ENDED " AND (a.score IS NOT b.score"
        " OR a.weights IS NOT b.weights OR a.status <> b.status))",
        "");
    if (weft_database_next(d, twice))
        weft_database_break(
            d, weft_fail(WEFT_EINPUT,
                         sqlite3_column_int(twice, 1)
                             ? "%s: %s has the number of another run there; merge only studies "
                               "of one config"
                             : "%s: %s ended with another result than in an earlier one; merge "
                               "only one of the two",
                         path, weft_column_text(twice, 0)));
    WEFT_TRY(weft_database_end(d, twice));
    return weft_database_script(
        d, "INSERT INTO main.variants SELECT * FROM part.variants WHERE variant NOT IN"
           " (SELECT variant FROM main.variants);"
           "REPLACE INTO main.variants SELECT b.* FROM part.variants b JOIN main.variants a"
           " USING (variant) WHERE a.error IS NOT NULL AND b.error IS NULL;"
           "CREATE TEMP TABLE taken AS SELECT b.run FROM part.runs b LEFT JOIN main.runs a"
           " ON a.run = b.run WHERE a.run IS NULL OR (b.status" ENDED " AND a.status NOT" ENDED ");"
           "DELETE FROM main.metrics WHERE run IN taken;"
           "DELETE FROM main.facts WHERE run IN taken;"
           "DELETE FROM main.events WHERE run IN taken;"
           "DELETE FROM main.runs WHERE run IN taken;"
           "INSERT INTO main.runs SELECT * FROM part.runs WHERE run IN taken;"
           "INSERT INTO main.metrics SELECT * FROM part.metrics WHERE run IN taken;"
           "INSERT INTO main.facts SELECT * FROM part.facts WHERE run IN taken;"
           "INSERT INTO main.events(run, step, kind, detail, at) SELECT run, step, kind, detail, at"
           " FROM part.events WHERE run IN taken ORDER BY run, id;"
           "UPDATE main.runs SET status = 'waiting' WHERE run IN taken AND status NOT" ENDED
           ";" ADD_ORIGIN("taken", "part.study") "DROP TABLE taken");
}

static weft_status tell_runs(weft_database *d, FILE *say) {
    sqlite3_stmt *rows =
        weft_database_ask(d,
                          "SELECT folder, status, score,"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'commit'),"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'device'),"
                          " (SELECT value FROM facts f WHERE f.run = r.run AND name = 'machine')"
                          " FROM runs r WHERE status" ENDED " ORDER BY run",
                          "");
    while (weft_database_next(d, rows))
        fprintf(say, "%-32s %-8s %9.4f  %.12s  %s, %s\n", weft_column_shown(rows, 0),
                weft_column_shown(rows, 1), weft_column_number(rows, 2), weft_column_shown(rows, 3),
                weft_column_shown(rows, 4), weft_column_shown(rows, 5));
    return weft_database_end(d, rows);
}

static weft_status build(const char *const *paths, int n, const char *file, FILE *say,
                         weft_merged *result) {
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    char copy[WEFT_PATH_MAX];
    int64_t runs, done;
    WEFT_TRY(weft_path(copy, "%s.part", file));
    WEFT_TRY(open_copy(paths[0], file, &d));
    /* The first one's runs have their origin too, once there are others beside them; and nobody runs
     * them here. */
    WEFT_TRY(weft_database_script(
        d, "UPDATE runs SET status = 'waiting' WHERE status = 'running';" ADD_ORIGIN(
               "(SELECT run FROM runs WHERE status" ENDED ")", "main.study")));
    for (int i = 1; i < n; i++) {
        /* A copy of the part is beside the new database as `copy`. */
        const char *path = paths[i];
        weft_database *part;
        WEFT_TRY(open_copy(path, copy, &part));
        weft_status status = weft_database_attach(d, part, "part");
        weft_database_close(part);
        if (status == WEFT_OK) status = weft_database_begin(d);
        if (status == WEFT_OK) status = weft_database_finish(d, take_part(d, path));
        if (status == WEFT_OK) status = weft_database_script(d, "DETACH DATABASE part");
        unlink(copy);
        WEFT_TRY(status);
    }
    WEFT_TRY(weft_database_check(d));
    WEFT_TRY(weft_database_number(d, 0, &runs, "SELECT count(*) FROM runs", ""));
    WEFT_TRY(weft_database_number(d, 0, &done, "SELECT count(*) FROM runs WHERE status" ENDED, ""));
    *result = (weft_merged){(int)runs, (int)done};
    return say ? tell_runs(d, say) : WEFT_OK;
}

/* In a folder beside, which takes SQLite's journals too: half of it is worth nothing. Of several merges
 * into one place, one gets the name. */
weft_status weft_merge(const char *const *paths, int n, const char *out, FILE *say,
                       weft_merged *result) {
    char file[WEFT_PATH_MAX], beside[WEFT_PATH_MAX];
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

/* A study's runs.db. SQLite's own format is SQLite's to check; what is ours is every value in the
 * tables. So an input is a list of changes to a whole database, each: table, column, row, kind of
 * value, value. An input whose first byte is 255 is the file itself. */
#include "base/files.h"
#include "fuzz/fuzz.h"
#include "fuzz/small_study.h"
#include "record/database.h"
#include "record/record.h"
#include "report/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tables, and what tells their rows apart. */
static const struct {
    const char *name, *key;
} tables[] = {{"study", "id"},          {"variants", "variant"}, {"runs", "run"},
              {"metrics", "run, step"}, {"events", "id"},        {"facts", "run, name"}};
enum { TABLES = sizeof tables / sizeof tables[0], COLUMNS_MOST = 32, CHANGES_MOST = 64 };

static const char config[] = "CONFIG_ATTENTION=\"mla\"\nCONFIG_RA_MLA_ABLATION_STEPS=\"0,2,4\"\n"
                             "CONFIG_STUDY_SEEDS=2\nCONFIG_STEPS=4\n"
                             "CONFIG_STUDY_LEARNING_RATES=\"1e-3,1e-2\"\n";

/* Results of every run, but for the last two. */
static const char results[] =
    "UPDATE runs SET status = 'done', iters = 4, val_loss = 3 + run * 0.01, score = 3 + run * 0.01,"
    " best_val_loss = 3, train_loss = 3, weights = '00000000', started = "
    "'2026-01-01T00:00:00.000Z',"
    " ended = '2026-01-01T00:00:01.000Z', seconds = 1, tokens_per_s = 32, memory_bytes = 1000;"
    "UPDATE runs SET status = 'failed', why = 'why' WHERE run = (SELECT max(run) FROM runs);"
    "UPDATE runs SET status = 'diverged' WHERE run = (SELECT max(run) - 1 FROM runs);"
    "INSERT INTO metrics(run, step, loss, cross_entropy, val_loss, lr, grad_norm, tokens_per_s)"
    " SELECT run, 2, 4, 4, 4, 1e-3, 1, 32 FROM runs UNION ALL"
    " SELECT run, 4, 3, 3, 3, 1e-3, 1, 32 FROM runs;"
    "INSERT INTO facts SELECT run, 'loss_tokens', 32 FROM runs;"
    "INSERT INTO events(run, step, kind, detail, at) SELECT run, 2, 'spike', 'grad_norm 9',"
    " '2026-01-01T00:00:00.500Z' FROM runs;";

static weft_study *study;
static char *whole; /* the database before any change */
static size_t whole_size;
static char columns[TABLES][COLUMNS_MOST][32];
static int n_columns[TABLES];
static FILE *nowhere;

static void need(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_runs_db: %s: %s\n", what, weft_error_message());
    exit(2);
}

static void list_columns(weft_database *d) {
    for (int t = 0; t < TABLES; t++) {
        EACH_ROW(rows, d, "SELECT name FROM pragma_table_info(?)", "s", tables[t].name)
            snprintf(columns[t][n_columns[t]++], 32, "%s", weft_column_text(rows, 0));
        need(weft_database_end(d) == WEFT_OK, "columns");
    }
}

static void begin(void) {
    static char file[WEFT_PATH_MAX]; /* the study keeps it */
    char path[WEFT_PATH_MAX];
    weft_database *d;
    bool fresh;
    /* SQLite parses out of one block: a sanitizer's malloc takes longer than the parser. */
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 256, 2000);
    nowhere = fopen("/dev/null", "w");
    snprintf(file, sizeof file, "%s", fuzz_file("db.config", config, sizeof config - 1));
    mkdir(fuzz_path("out"), 0700);
    snprintf(path, sizeof path, "%s", fuzz_path("whole.db"));
    need(small_study(file, &study) == WEFT_OK, "the study");
    need(weft_database_open(path, WEFT_DATABASE_MAKE, &d, &fresh) == WEFT_OK, "a new database");
    need(weft_record_create(d, study, 1, "cpu") == WEFT_OK, "its tables");
    need(weft_database_script(d, results) == WEFT_OK, "results");
    list_columns(d);
    weft_database_close(d);
    need(weft_file_read(path, 1 << 24, &whole, &whole_size) == WEFT_OK, "the file");
}

static void bind_value(sqlite3_stmt *s, fuzz_bytes *in) {
    uint8_t kind = fuzz_byte(in);
    fuzz_bytes text;
    int64_t number;
    double real;
    switch (kind % 6) {
    case 0:
        sqlite3_bind_null(s, 1);
        break;
    case 1:
        sqlite3_bind_int64(s, 1, fuzz_number(in));
        break;
    case 2:
        sqlite3_bind_int64(s, 1, (int8_t)fuzz_byte(in));
        break;
    case 3:
        number = fuzz_number(in);
        memcpy(&real, &number, sizeof real);
        sqlite3_bind_double(s, 1, real);
        break;
    case 4:
        text = fuzz_until_zero(in);
        sqlite3_bind_text(s, 1, (const char *)text.data, (int)text.size, SQLITE_TRANSIENT);
        break;
    default:
        text = fuzz_until_zero(in);
        sqlite3_bind_blob(s, 1, text.data, (int)text.size, SQLITE_TRANSIENT);
        break;
    }
}

/* One change. Bit 7 of the column takes the row away instead. */
static void change(sqlite3 *db, fuzz_bytes *in) {
    int t = fuzz_byte(in) % TABLES;
    uint8_t column = fuzz_byte(in), row = fuzz_byte(in);
    char *sql;
    sqlite3_stmt *s = NULL;
    if (column & 128)
        sql = sqlite3_mprintf("DELETE FROM %s WHERE (%s) = (SELECT %s FROM %s LIMIT 1 OFFSET %d)",
                              tables[t].name, tables[t].key, tables[t].key, tables[t].name, row);
    else
        sql = sqlite3_mprintf("UPDATE OR REPLACE %s SET %s = ?1 WHERE (%s) = (SELECT %s FROM %s"
                              " LIMIT 1 OFFSET %d)",
                              tables[t].name, columns[t][column % n_columns[t]], tables[t].key,
                              tables[t].key, tables[t].name, row);
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK) {
        if (!(column & 128)) bind_value(s, in);
        sqlite3_step(s);
    }
    sqlite3_finalize(s);
    sqlite3_free(sql);
}

static void change_all(const char *path, fuzz_bytes in) {
    sqlite3 *db;
    if (sqlite3_open(path, &db) != SQLITE_OK) exit(2);
    sqlite3_exec(db,
                 "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;"
                 "PRAGMA ignore_check_constraints = ON; BEGIN",
                 NULL, NULL, NULL);
    for (int i = 0; i < CHANGES_MOST && in.size; i++)
        change(db, &in);
    sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    sqlite3_close(db);
}

/* A study that goes on. */
static weft_status go_on(const char *path) {
    weft_database *d;
    weft_record_runs jobs = {0};
    weft_repeats repeats;
    int added;
    WEFT_TRY(weft_database_open(path, WEFT_DATABASE_WRITE, &d, NULL));
    weft_database_script(d, "PRAGMA synchronous = OFF");
    weft_status status = weft_record_match(d, study);
    if (status == WEFT_OK) status = weft_record_choose(d, study, &added);
    if (status == WEFT_OK) status = weft_record_read_runs(d, study, &jobs);
    if (status == WEFT_OK) {
        for (int i = 0; i < jobs.n; i++)
            FUZZ_PROMISE(jobs.list[i].variant >= 0 && jobs.list[i].variant < study->variants.n,
                         "a run is of one of the study's variants");
        weft_repeats_check(d, study, fuzz_path("out"), &repeats);
    }
    weft_record_runs_free(&jobs);
    weft_database_close(d);
    return status;
}

static weft_status merge(const char *path) {
    const char *const paths[] = {path, fuzz_path("whole.db")};
    weft_merged merged;
    const char *out = fuzz_path("merged.db");
    unlink(out);
    return weft_merge(paths, 2, out, NULL, &merged);
}

/* What is done with a database. */
enum { TABLE, AS_JSON, CSV, CSV_METRICS, COMPARE, DIFF, REPORT_JSON, MERGE, GO_ON, REPORT, WAYS };

static weft_status use(const char *path, int way) {
    const char *const paths[] = {path};
    json_t *object = NULL;
    bool same;
    weft_status status = WEFT_OK;
    switch (way) {
    case TABLE:
        return weft_listing_table(path, nowhere);
    case AS_JSON:
        status = weft_listing_json(path, &object);
        break;
    case CSV:
        return weft_listing_csv(paths, 1, false, nowhere);
    case CSV_METRICS:
        return weft_listing_csv(paths, 1, true, nowhere);
    case COMPARE:
        return weft_listing_compare(path, "0", "2", nowhere, NULL);
    case DIFF:
        return weft_listing_diff(path, path, nowhere, &same);
    case REPORT_JSON:
        status = weft_report_json(paths, 1, &object);
        break;
    case MERGE:
        return merge(path);
    case GO_ON:
        return go_on(path);
    case REPORT:
        return weft_report_write(path, fuzz_path("out"));
    default:
        break;
    }
    if (status == WEFT_OK) json_decref(object);
    return status;
}

bool fuzz_runs_db(const uint8_t *data, size_t size) {
    if (!study) begin();
    fuzz_bytes in = {data, size};
    char path[WEFT_PATH_MAX];
    weft_database *d;
    if (size && data[0] == 255) {
        snprintf(path, sizeof path, "%s", fuzz_file("runs.db", data + 1, size - 1));
    } else {
        snprintf(path, sizeof path, "%s", fuzz_file("runs.db", whole, whole_size));
        change_all(path, in);
    }
    unlink(fuzz_path("runs.db-journal"));
    bool taken = weft_database_open(path, WEFT_DATABASE_READ, &d, NULL) == WEFT_OK;
    if (taken) weft_database_close(d);
    /* The same check refuses it everywhere; that it does is tried now and then. */
    int way = fuzz_way(data, size, 4 * WAYS);
    if (!taken && way >= WAYS) return false;
    if (way >= 0) way %= WAYS;
    for (int i = way < 0 ? 0 : way; i < (way < 0 ? WAYS : way + 1); i++)
        FUZZ_PROMISE(use(path, i) != WEFT_OK || taken, "what is refused is refused by all");
    return taken;
}

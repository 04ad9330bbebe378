/* Databases for the tests of what reads them. A run's curve is a plain formula, so that equal runs
 * have equal rows. */
#include "study_database.h"

#include "command.h"
#include "record/database.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITERS = 100, EVAL_EVERY = 10 };

void study_sql(sqlite3 *db, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *sql = sqlite3_vmprintf(format, args), *error = NULL;
    va_end(args);
    assert_non_null(sql);
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s: %s", sql, error);
    sqlite3_free(sql);
}

sqlite3 *study_open(const char *path, const char *name, const char *score) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    study_sql(db, "PRAGMA synchronous = OFF");
    study_sql(db, "%s",
              weft_runs_schema.versions[WEFT_SCHEMA_VERSION - weft_runs_schema.oldest].tables);
    study_sql(
        db,
        "INSERT INTO study VALUES(1, 1, %Q, 'N_LAYER=2\nN_EMBD=64\nSEED=1\nATTENTION=\"mla\"',"
        " '1,2,3', '0.001', 'iters', %Q, 100, '0.1.0', 'abc123', '2026-01-01T00:00:00.000Z',"
        " 'box', 'x86_64, 2 processors', 2, 'cpu')",
        name, score);
    study_sql(db, "BEGIN");
    return db;
}

void study_close(sqlite3 *db) {
    study_sql(db, "COMMIT");
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static const char *null_or(int number, char room[16]) {
    snprintf(room, 16, "%d", number);
    return number < 0 ? "NULL" : room;
}

void study_variant(sqlite3 *db, int variant, const char *name, const char *title, int baseline,
                   int repeats) {
    char base[16], first[16];
    int like = repeats < 0 ? variant : repeats;
    study_sql(
        db,
        "INSERT INTO variants(variant, name, baseline, title, overrides, repeats, iters, tokens,"
        " parameters, flops_per_token, training_bytes, cache_bytes_per_token)"
        " VALUES(%d, %Q, %s, %Q, 'RA_MLA_STEP=%d N_FFN=256', %s, %d, 204800, %d, %g, %d, %d)",
        variant, name, null_or(baseline, base), title, like, null_or(repeats, first), ITERS,
        1000000 + 250000 * like, 6e6 + 1.7e6 * like, (64 + 8 * like) << 20,
        1024 - 128 * (like % 3));
}

static int64_t add_run(sqlite3 *db, int variant, double rate, int seed, const char *status) {
    study_sql(
        db,
        "INSERT INTO runs(variant, learning_rate, seed, folder, status, config) VALUES(%d, %!.17g,"
        " %d, 'runs/%d-lr%g-seed%d', %Q, '{\"n_layer\": 2, \"seed\": %d, \"step_key\":"
        " %d.5}')",
        variant, rate, seed, variant, rate, seed, status, seed, variant);
    return sqlite3_last_insert_rowid(db);
}

int64_t study_run(sqlite3 *db, int variant, double rate, int seed, double score,
                  const char *weights) {
    int64_t run = add_run(db, variant, rate, seed, "done");
    study_sql(db,
              "UPDATE runs SET iters = %d, score = %!.17g, val_loss = %!.17g, train_loss = %!.17g,"
              " weights = %Q, metric = 'accuracy', metric_value = %!.17g,"
              " started = '2026-01-01T00:%02d:%02d.100Z', ended = '2026-01-01T00:%02d:%02d.900Z',"
              " seconds = 12.5, tokens_per_s = %d, memory_bytes = %d WHERE run = %lld",
              ITERS, score, score, score, weights, score, variant, seed, variant, seed + 30,
              16000 + 10 * seed, (70 + variant) << 20, (long long)run);
    for (int i = 1; i <= ITERS; i++) {
        double loss = score + 3 * exp(-i / 12.0) - 3 * exp(-ITERS / 12.0) +
                      0.03 * sin(7.1 * i + seed) * (1 - i / (double)ITERS);
        study_sql(
            db,
            "INSERT INTO metrics(run, step, loss, cross_entropy, val_loss, metric_value, lr,"
            " grad_norm, tokens_per_s) VALUES(%lld, %d, %!.17g, %!.17g, %s, NULL, %!.17g, 0.5,"
            " %d)",
            (long long)run, i, loss, loss, i % EVAL_EVERY ? "NULL" : "0", rate, 16000 + (int)run);
        if (i % EVAL_EVERY == 0)
            study_sql(db,
                      "UPDATE metrics SET val_loss = %!.17g, metric_value = %!.17g WHERE run = %lld"
                      " AND step = %d",
                      loss, score * i / ITERS, (long long)run, i);
    }
    return run;
}

int64_t study_run_ended(sqlite3 *db, int variant, double rate, int seed, const char *status,
                        const char *why) {
    int64_t run = add_run(db, variant, rate, seed, status);
    study_sql(db, "UPDATE runs SET why = %Q WHERE run = %lld", why, (long long)run);
    return run;
}

static size_t put_number(unsigned char *to, size_t at, uint32_t value) {
    for (size_t b = 0; b < 4; b++)
        to[at + b] = (unsigned char)(value >> (24 - 8 * b));
    return at + 4;
}

void study_journal(const char *database, const char *victim) {
    static const unsigned char magic[] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    unsigned char journal[2048] = {0};
    size_t size, n = 8, length = strlen(victim);
    uint32_t sum = 0;
    free(file_read(database, &size));
    memcpy(journal, magic, sizeof magic);
    const uint32_t fields[] = {0, 0, (uint32_t)(size / 4096), 512, 4096};
    for (size_t i = 0; i < 5; i++)
        n = put_number(journal, n, fields[i]);
    n = put_number(journal, 512, 0x40000000 / 4096 + 1);
    for (size_t i = 0; i < length; i++)
        sum += (unsigned char)victim[i];
    memcpy(journal + n, victim, length);
    n = put_number(journal, n + length, (uint32_t)length);
    n = put_number(journal, n, sum);
    memcpy(journal + n, magic, sizeof magic);
    const char *path = format_text("%s-journal", database);
    file_write(path, journal, n + sizeof magic);
}

/* A database of runs that somebody wrote with intent: every reader refuses the same ones, in one line
 * that names what is wrong; nothing is read beyond what is there, nothing is written outside the
 * study's folder, and no name reaches a terminal unescaped. */
#include "record/database.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char config[256], made[256], spoilt[256], database[300];

#define STEPS                                                                                      \
    "-o", "RA_MLA_ABLATION_STEPS=", "-o", "STUDY_VARIANTS=a; b: N_FFN=24", "-o",                   \
        "STUDY_LEARNING_RATES=1e-3", "-o", "STUDY_SEEDS=1", "-o", "RA_MLA_MLP_GATE_DIM=64"
#define STUDY RUN("study", "--config", config, "--out", spoilt, STEPS)

/* A copy of a study that is done, changed by SQL with all checks off. */
static void spoil(const char *sql) {
    sqlite3 *db;
    char *error = NULL;
    shell_succeeds("rm -rf '%s' && cp -a '%s' '%s'", spoilt, made, spoilt);
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    sqlite3_exec(db,
                 "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF;"
                 "PRAGMA writable_schema = ON",
                 NULL, NULL, NULL);
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s: %s", sql, error);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* Every way in, and the study's folder is as it was. Without WEFT_TEST_LONG, each case takes the first
 * way and one other in turn. */
static void every_reader_refuses(const char *word, size_t round) {
    const char *out = scratch_path("out"), *csv = scratch_path("out.csv");
    size_t n, m;
    char *before = file_read(database, &n);
    const char *const *const ways[] = {
        RUN("runs", spoilt),
        RUN("runs", spoilt, "--json"),
        RUN("runs", spoilt, "--csv", csv),
        RUN("runs", spoilt, "--metrics-csv", csv),
        RUN("runs", spoilt, "--compare", "a", "b"),
        RUN("runs", made, "--diff", spoilt),
        RUN("runs", spoilt, "--diff", made),
        RUN("runs", "merge", made, spoilt, "--out", out),
        RUN("runs", "merge", spoilt, made, "--out", out),
        RUN("report", spoilt),
        RUN("report", spoilt, "--json"),
        STUDY,
    };
    size_t count = sizeof ways / sizeof ways[0];
    for (size_t i = 0; i < count; i++)
        if (i == 0 || i == 1 + round % (count - 1) || train_long())
            command_fails(2, ways[i], SAYS("runs.db", word));
    char *after = file_read(database, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
    assert_int_not_equal(access(csv, F_OK), 0);
    assert_int_not_equal(access(scratch_path("out/runs.db"), F_OK), 0);
}

TEST(test_values_out_of_place_are_refused_by_all) {
    static const struct {
        const char *sql, *word;
    } cases[] = {
        {"UPDATE runs SET variant = 2 WHERE variant = 1", "the number of a variant"},
        {"UPDATE runs SET variant = -1 WHERE variant = 1", "the number of a variant"},
        {"UPDATE runs SET variant = 4294967296 WHERE variant = 1", "the number of a variant"},
        {"UPDATE runs SET variant = 0.5 WHERE variant = 1", "0.5"},
        {"UPDATE runs SET seed = 1.5", "seed is 1.5"},
        {"UPDATE runs SET seed = 'one'", "seed is 'one'"},
        {"UPDATE runs SET seed = -9223372036854775807", "seed"},
        {"UPDATE runs SET folder = '../x'", "folder is '../x'"},
        {"UPDATE runs SET folder = 'runs/../../x'", "folder"},
        {"UPDATE runs SET folder = 'runs/..'", "folder"},
        {"UPDATE runs SET folder = '/etc'", "folder"},
        {"UPDATE runs SET folder = ''", "folder"},
        {"UPDATE runs SET folder = 'runs/' || printf('%.5000c', 'x')", "folder"},
        {"UPDATE runs SET folder = x'72756e732f61'", "folder"},
        {"UPDATE runs SET status = 'gone'", "runs"},
        {"UPDATE runs SET learning_rate = 9e999", "learning_rate"},
        {"UPDATE runs SET learning_rate = 'x'", "learning_rate"},
        {"UPDATE runs SET score = 'x'", "score is 'x'"},
        {"UPDATE runs SET weights = x'00ff'", "weights"},
        {"UPDATE runs SET config = zeroblob(100)", "config"},
        {"UPDATE runs SET iters = 1e300", "iters"},
        {"UPDATE runs SET memory_bytes = -5", "memory_bytes"},
        {"UPDATE runs SET run = -run", "run"},
        {"UPDATE variants SET variant = 9 WHERE variant = 1; UPDATE runs SET variant = 9 WHERE "
         "variant = 1",
         "without a gap"},
        {"UPDATE variants SET baseline = 77", "baseline is 77"},
        {"UPDATE variants SET repeats = -3", "repeats is -3"},
        {"UPDATE variants SET name = x'00' WHERE variant = 0", "name"},
        {"UPDATE variants SET leaks = 7", "leaks"},
        {"UPDATE variants SET iters = 'many'", "iters"},
        {"UPDATE metrics SET loss = 'x' WHERE step = 1", "metrics"},
        {"UPDATE metrics SET run = 99 WHERE step = 1 AND run = 1", "the number of a run"},
        {"INSERT INTO metrics(run, step) VALUES(1, -7)", "step is -7"},
        {"INSERT INTO events(run, kind) VALUES(99, 'x')", "the number of a run"},
        {"INSERT INTO facts VALUES(99, 'x', 1)", "the number of a run"},
        {"UPDATE facts SET value = zeroblob(9)", "value"},
        {"UPDATE study SET tail = -1", "tail"},
        {"UPDATE study SET score = 'best'", "score is 'best'"},
        {"UPDATE study SET equal = 7", "equal"},
        {"UPDATE study SET config = zeroblob(20000000)", "too big"},
        {"UPDATE study SET config = printf('%.20000000c', 'x')", "too big"},
        {"UPDATE runs SET why = printf('%.20000000c', 'x')", "too big"},
        {"UPDATE variants SET title = printf('%.2000000c', 'x')", "at most a million letters"},
        {"UPDATE facts SET value = printf('%.2000000c', 'x')", "at most a million letters"},
        {"DELETE FROM study", "no study"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spoil(cases[i].sql);
        every_reader_refuses(cases[i].word, i);
    }
}

TEST(test_tables_of_another_shape_are_refused_by_all) {
    static const struct {
        const char *sql, *word;
    } cases[] = {
        {"ALTER TABLE runs ADD COLUMN more", "'runs' is missing, or another"},
        {"DROP VIEW contents; DROP TABLE facts", "'facts' is missing, or another"},
        {"DROP VIEW contents", "'contents' is missing, or another"},
        {"DROP VIEW contents; CREATE VIEW contents(part, key, value) AS WITH RECURSIVE c(x) AS"
         " (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x, x FROM c",
         "'contents' is missing, or another"},
        {"CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM metrics; END", "trigger 't'"},
        {"CREATE INDEX i ON runs(zeroblob(1000000))", "index 'i'"},
        {"DROP VIEW contents; ALTER TABLE metrics RENAME TO kept; CREATE VIEW metrics AS SELECT *"
         " FROM kept",
         "is missing, or another"},
        {"DROP TABLE events", "'events' is missing, or another"},
        {"DROP INDEX events_run", "'events_run' is missing, or another"},
        {"CREATE VIEW mine AS SELECT 1", "view 'mine'"},
        {"CREATE TABLE mine(x)", "table 'mine'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spoil(cases[i].sql);
        every_reader_refuses(cases[i].word, i);
    }
}

/* Rows that are well in themselves and none of this study's: only the study minds. */
TEST(test_runs_of_another_study_are_not_gone_on_with) {
    static const char *const cases[] = {
        "UPDATE runs SET folder = 'runs/elsewhere' WHERE run = 1",
        "UPDATE runs SET seed = 7 WHERE run = 1",
        "UPDATE runs SET learning_rate = 0.5 WHERE run = 1",
        ("UPDATE runs SET run = 9000000000000000000 WHERE run = 2;"
         "DELETE FROM metrics WHERE run = 2; DELETE FROM facts WHERE run = 2;"
         "DELETE FROM events WHERE run = 2"),
        "UPDATE runs SET variant = 1, seed = 5 WHERE run = 1",
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spoil(cases[i]);
        command_succeeds(RUN("runs", spoilt), NULL);
        command_succeeds(RUN("report", spoilt, "--json"), NULL);
        command_fails(2, STUDY, SAYS("runs.db", "none that this study makes"));
    }
}

static void expect_harmless(const command_result *r) {
    const char *texts[] = {r->out, r->err};
    for (int i = 0; i < 2; i++) {
        for (const char *at = texts[i]; *at; at++) {
            unsigned char c = (unsigned char)*at;
            if (c < 0x20 && c != '\n' && c != '\r')
                fail_msg("%s: a control character %02x in: %s", r->line, c, texts[i]);
        }
        if (strstr(texts[i], "\xc2\x9b") || strstr(texts[i], "\xe2\x80\xae"))
            fail_msg("%s: a control character in: %s", r->line, texts[i]);
        if (strchr(texts[i], '\xff')) fail_msg("%s: no UTF-8: %s", r->line, texts[i]);
    }
}

/* In every text of every table. */
TEST(test_escape_sequences_are_printed_escaped) {
#define NASTY                                                                                      \
    "char(27) || '[2J' || char(155) || '31m' || char(8238) || char(127) || char(7) || x'ff'"
#define NASTY_TEXT "CAST(" NASTY " AS TEXT)"
    spoil("UPDATE study SET name = " NASTY_TEXT ", created = " NASTY_TEXT ", machine = " NASTY_TEXT
          ", device = " NASTY_TEXT ", git_commit = " NASTY_TEXT ", weft_version = " NASTY_TEXT
          ", host = " NASTY_TEXT ", seeds = " NASTY_TEXT ";"
          "UPDATE variants SET name = name || " NASTY_TEXT ", title = " NASTY_TEXT
          ", overrides = " NASTY_TEXT " || '=1 N_FFN=' || " NASTY_TEXT ";"
          "UPDATE runs SET folder = folder || " NASTY_TEXT ", metric = " NASTY_TEXT
          ", weights = " NASTY_TEXT ", host = " NASTY_TEXT ", started = " NASTY_TEXT
          ", why = " NASTY_TEXT
          ", config = '{\"n_ffn\":\"\\u001b[2J\\u009b31m\",\"seed\":' || run ||"
          " ',\"z\\u001b\":' || run || '}';"
          "INSERT INTO events(run, kind, detail) VALUES(1, " NASTY_TEXT ", " NASTY_TEXT ");"
          "INSERT INTO events(run, kind, detail) VALUES(2, 'spike', " NASTY_TEXT ");"
          "UPDATE facts SET value = " NASTY_TEXT);
    const char *a = "a\x1b[2J\xc2\x9b"
                    "31m\xe2\x80\xae\x7f\x07\xef\xbf\xbd",
               *out = scratch_path("merged"), *page = scratch_path("page");
    const char *const *const ways[] = {
        RUN("runs", spoilt),
        RUN("runs", spoilt, "--json"),
        RUN("runs", spoilt, "--csv", "-"),
        RUN("runs", spoilt, "--metrics-csv", "-"),
        RUN("runs", spoilt, "--compare", a, a),
        RUN("runs", spoilt, "--compare", a, a, "--json"),
        RUN("runs", spoilt, "--compare", a, "no"),
        RUN("runs", made, "--diff", spoilt),
        RUN("runs", "merge", made, spoilt, "--out", out),
        RUN("runs", "merge", spoilt, spoilt, "--out", out),
        RUN("report", spoilt, "--json"),
        RUN("report", spoilt, "--out", page),
        RUN("report", scratch_path("no\x1b[2J\xff")),
        STUDY,
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        command_result r = command_run(ways[i]);
        assert_in_range(r.status, 0, 2);
        expect_harmless(&r);
        command_free(&r);
    }
    for (int i = 0; i < 2; i++) {
        char *text = file_read(scratch_path(i ? "page/report.md" : "page/report.html"), NULL);
        for (const char *at = text; *at; at++)
            assert_true((unsigned char)*at >= ' ' || *at == '\n' || *at == '\t');
        assert_null(strstr(text, "\xc2\x9b"));
        assert_null(strstr(text, "\xe2\x80\xae"));
        free(text);
    }
    command_result r = command_run(RUN("runs", spoilt));
    assert_non_null(strstr(r.out, "a\\x1b[2J\\xc2\\x9b31m\\xe2\\x80\\xae\\x7f\\x07\\xff"));
    command_free(&r);
}

/* After a word of advice on the config, maybe. */
static void study_refuses(const char *name, const char *word) {
    command_result r = command_run(STUDY);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, name) || !strstr(r.err, word)) fail_msg("%s", r.err);
    command_free(&r);
}

TEST(test_a_link_in_the_studys_folder_is_not_written_through) {
    const char *victim = scratch_path("victim");
    shell_succeeds("rm -rf '%s' '%s' && mkdir '%s'", spoilt, victim, victim);
    /* The runs' folder, one run's folder, the database. */
    shell_succeeds("mkdir '%s' && ln -s ../victim '%s/runs'", spoilt, spoilt);
    study_refuses("runs", "is a link");
    shell_succeeds(
        "rm -rf '%s' && mkdir -p '%s/runs' && ln -s ../../victim '%s/runs/a-lr0.001-seed1'", spoilt,
        spoilt, spoilt);
    study_refuses("a-lr0.001-seed1", "is a link");
    shell_succeeds("rm -rf '%s' && mkdir '%s' && ln -s ../victim/runs.db '%s/runs.db'", spoilt,
                   spoilt, spoilt);
    study_refuses("runs.db", "is a link");
    shell_succeeds("cp '%s/runs.db' '%s/runs.db'", made, victim);
    study_refuses("runs.db", "is a link");
    /* Nor read through: the journal that SQLite plays back lies where the link leads. */
    command_fails(2, RUN("runs", spoilt), SAYS("runs.db", "is a link"));
    shell_succeeds("rm '%s/runs.db' && rmdir '%s'", victim, victim);
}

/* A rollback journal that names a super-journal: SQLite would remove that file. */
TEST(test_a_journal_that_names_another_file_is_refused) {
    char victim[256];
    snprintf(victim, sizeof victim, "%s", scratch_path("precious"));
    file_write(victim, "precious", 8);
    spoil("");
    study_journal(database, victim);
    command_fails(2, STUDY, SAYS("runs.db-journal", "names another file"));
    command_fails(2, RUN("runs", spoilt), SAYS("runs.db-journal", "names another file"));
    char *kept = file_read(victim, NULL);
    assert_string_equal(kept, "precious");
    free(kept);
    shell_succeeds("rm '%s-journal' && ln -s precious '%s-journal'", database, database);
    command_fails(2, STUDY, SAYS("runs.db-journal", "is a link"));
    /* A file that is no journal, which SQLite would remove too; a write-ahead log. */
    shell_succeeds("rm '%s-journal' && cp '%s' '%s-journal'", database, victim, database);
    command_fails(2, STUDY, SAYS("runs.db-journal", "is not a journal"));
    kept = file_read(scratch_path("spoilt/runs.db-journal"), NULL);
    assert_string_equal(kept, "precious");
    free(kept);
    shell_succeeds("rm '%s-journal' && touch '%s-wal'", database, database);
    command_fails(2, RUN("runs", spoilt), SAYS("runs.db-wal", "not written by weft"));
}

/* Its journal is hot, and stays: nothing is written to a database that weft did not make. */
TEST(test_a_database_of_others_is_not_put_back) {
    sqlite3 *db;
    size_t n, m;
    spoil("DROP VIEW contents; PRAGMA application_id = 7;"
          "INSERT INTO events(kind, detail) VALUES('x', printf('%.500000c', 'x'))");
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    study_sql(db, "PRAGMA cache_size = 1; BEGIN; UPDATE events SET detail = detail || 'y'");
    shell_succeeds("rm -rf '%s' && mkdir '%s' && cp '%s' '%s-journal' '%s'", scratch_path("others"),
                   scratch_path("others"), database, database, scratch_path("others"));
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    char *before = file_read(scratch_path("others/runs.db"), &n);
    command_fails(2, RUN("runs", scratch_path("others")), SAYS("runs.db", "another program"));
    char *after = file_read(scratch_path("others/runs.db"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    assert_int_equal(access(scratch_path("others/runs.db-journal"), F_OK), 0);
    free(before);
    free(after);
}

/* A statement has its time, and the connection can be used after it. */
TEST(test_a_statement_has_an_end) {
    weft_database *d;
    bool fresh;
    int64_t one;
    spoil("");
    /* All that is checked before has this time, too: on a busy machine it may take more. */
    for (double seconds = 0.5;
         weft_database_enter(&weft_runs_schema, spoilt, "runs.db", WEFT_DATABASE_READ, seconds, &d,
                             &fresh) != WEFT_OK;
         seconds *= 2)
        assert_true(seconds < 60);
    alarm(60 * (unsigned)command_patience());
    assert_int_equal(weft_database_number(d, 0, &one,
                                          "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x"
                                          " FROM c) SELECT count(*) FROM c",
                                          ""),
                     WEFT_EINPUT);
    alarm(0);
    assert_non_null(strstr(weft_error_message(), "takes longer than"));
    assert_int_equal(weft_database_number(d, 0, &one, "SELECT 1", ""), WEFT_OK);
    assert_int_equal(one, 1);
    weft_database_close(d);
}

/* As a kill in the middle of a transaction leaves it: some pages are changed, the journal has the old
 * ones. */
TEST(test_a_study_that_was_cut_off_can_be_looked_at) {
    sqlite3 *db;
    char cut[256];
    spoil("INSERT INTO events(kind, detail) VALUES('x', printf('%.500000c', 'x'))");
    snprintf(cut, sizeof cut, "%s", scratch_path("cut"));
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "PRAGMA cache_size = 1; BEGIN; UPDATE runs SET score = 99;"
                                  "UPDATE events SET detail = detail || 'y' WHERE kind = 'x'",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    shell_succeeds("rm -rf '%s' && mkdir '%s' && cp '%s' '%s-journal' '%s'", cut, cut, database,
                   database, cut);
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    command_succeeds(RUN("runs", cut), NULL);
    study_same(spoilt, cut);
}

static int make_study(void **state) {
    (void)state;
    scratch_open();
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    snprintf(made, sizeof made, "%s", scratch_path("made"));
    snprintf(spoilt, sizeof spoilt, "%s", scratch_path("spoilt"));
    snprintf(database, sizeof database, "%s/runs.db", spoilt);
    study_config(config);
    command_succeeds(RUN("study", "--config", config, "--out", made, STEPS), NULL);
    return 0;
}

RUN_TESTS(make_study, scratch_teardown)

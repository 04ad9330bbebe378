/* weft runs merge: parts of one study made apart come to what one study comes to. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char config[256], whole[256], first[256], second[256];

#define VARIANTS                                                                                   \
    "-o", "RA_MLA_ABLATION_STEPS=", "-o", "STUDY_VARIANTS=a; b: N_FFN=24", "-o",                   \
        "STUDY_LEARNING_RATES=1e-3", "-o", "STUDY_SEEDS=1"

static void change(const char *folder, const char *sql) {
    char path[512];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/runs.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

TEST(test_parts_make_the_whole) {
    char *said;
    const char *out = scratch_path("joined");
    command_succeeds(RUN("runs", "merge", first, second, "--out", out), &said);
    study_same(whole, out);
    /* Each run with its commit and machine. */
    assert_non_null(strstr(said, "runs/a-lr0.001-seed1"));
    assert_non_null(strstr(said, "runs/b-lr0.001-seed1"));
    assert_non_null(strstr(said, "processors"));
    assert_non_null(strstr(said, "2 of 2 runs done"));
    free(said);
    /* A report needs nothing but the database; a study goes on in it and finds nothing to do. */
    const char *file = scratch_path("kept.db");
    command_succeeds(RUN("runs", "merge", second, first, "--out", file), NULL);
    command_succeeds(RUN("report", file, "--out", scratch_path("page")), NULL);
    command_succeeds(RUN("study", "--config", config, "--out", out, VARIANTS), NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM events WHERE kind = 'started'"), 2);
}

TEST(test_what_neither_has_waits) {
    const char *out = scratch_path("half");
    change(second, "UPDATE runs SET status = 'failed' WHERE status = 'done'");
    change(first, "UPDATE runs SET status = 'running' WHERE status = 'waiting'");
    command_succeeds(RUN("runs", "merge", first, second, "--out", out), NULL);
    change(second, "UPDATE runs SET status = 'done' WHERE status = 'failed'");
    change(first, "UPDATE runs SET status = 'waiting' WHERE status = 'running'");
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'waiting'"), 1);
    command_succeeds(RUN("study", "--config", config, "--out", out, VARIANTS), NULL);
    study_same(whole, out);
}

TEST(test_other_configs_and_contradictions_are_refused) {
    const char *other = scratch_path("other"), *out = scratch_path("refused");
    command_succeeds(RUN("study", "--config", config, "--out", other, VARIANTS, "--variants", "a",
                         "-o", "STEPS=4"),
                     NULL);
    command_fails(2, RUN("runs", "merge", first, other, "--out", out),
                  SAYS("another config", "CONFIG_STEPS is 4 there and 8"));
    assert_int_not_equal(access(scratch_path("refused/runs.db"), F_OK), 0);
    /* The same run, ended with another result. */
    const char *twice = scratch_path("twice");
    command_succeeds(RUN("runs", "merge", first, second, "--out", twice), NULL);
    change(twice, "UPDATE runs SET score = score + 1 WHERE variant = 0");
    command_fails(2, RUN("runs", "merge", first, twice, "--out", out),
                  SAYS("runs/a-lr0.001-seed1", "another result"));
    /* Another run under its number, which waits in the first and would be taken for it. */
    static const struct {
        const char *sql, *word;
    } others[] = {{"UPDATE runs SET seed = 7 WHERE variant = 1", "number of another run"},
                  {"UPDATE runs SET learning_rate = 7 WHERE variant = 1", "number of another run"},
                  {"UPDATE runs SET folder = 'runs/c' WHERE variant = 1", "number of another run"},
                  {"UPDATE runs SET status = 'diverged' WHERE variant = 0", "another result"},
                  {"UPDATE variants SET iters = iters + 1 WHERE variant = 1",
                   "variant 'b' has other settings"},
                  {"UPDATE study SET tail = tail + 1", "seeds"},
                  {"UPDATE study SET seeds = '7'", "seeds"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        shell_succeeds("rm -rf '%s'", twice);
        command_succeeds(RUN("runs", "merge", first, second, "--out", twice), NULL);
        change(twice, others[i].sql);
        command_fails(2, RUN("runs", "merge", first, twice, "--out", out), SAYS(others[i].word));
    }
    command_fails(2, RUN("runs", "merge", first, second, "--out", twice), SAYS("there already"));
    command_fails(2, RUN("runs", "merge", first, second), SAYS("--out"));
    command_fails(2, RUN("runs", "merge", first, "--out", out), SAYS("two studies"));
}

/* Three at once into one place: one gets it, and what it made stays whole; the others say so. */
TEST(test_of_merges_at_once_one_succeeds) {
    const char *out = scratch_path("race"), *log = scratch_path("race-log");
    shell_succeeds(
        "for i in 1 2 3; do { ${WEFT:-build/weft} runs merge '%s' '%s' --out '%s' >/dev/null 2>&1; "
        "echo $? >> '%s'; } & done; wait; test \"$(sort '%s' | tr -d '\\n')\" = 022",
        first, second, out, log, log);
    study_same(whole, out);
    shell_succeeds("test \"$(ls -A '%s')\" = runs.db", out);
}

/* A merge that is refused leaves no folder; and what is a model's or a run's does not become a study's, in
 * which training would not go on. */
TEST(test_the_place_is_a_studys) {
    const char *out = scratch_path("none"), *run = scratch_path("run");
    command_fails(2, RUN("runs", "merge", first, scratch_path("no.db"), "--out", out),
                  SAYS("no.db"));
    assert_int_not_equal(access(out, F_OK), 0);
    shell_succeeds("mkdir '%s' && touch '%s/metrics.jsonl'", run, run);
    command_fails(2, RUN("runs", "merge", first, second, "--out", run), SAYS("a run's folder"));
    shell_succeeds("test \"$(ls -A '%s')\" = metrics.jsonl && mv '%s/metrics.jsonl' "
                   "'%s/model.safetensors'",
                   run, run, run);
    command_fails(2, RUN("runs", "merge", first, second, "--out", run), SAYS("a model's folder"));
    command_fails(2, RUN("runs", "merge", first, second, "--out", config), SAYS("not a folder"));
    /* A folder that was there stays, and serves. */
    shell_succeeds("rm '%s/model.safetensors'", run);
    command_fails(2, RUN("runs", "merge", first, scratch_path("no.db"), "--out", run), SAYS("no"));
    command_succeeds(RUN("runs", "merge", first, second, "--out", run), NULL);
    command_fails(2, RUN("runs", first, "--csv", out, "--metrics-csv", out), SAYS("two files"));
    assert_int_not_equal(access(out, F_OK), 0);
}

static int make_parts(void **state) {
    (void)state;
    scratch_open();
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    snprintf(whole, sizeof whole, "%s", scratch_path("whole"));
    snprintf(first, sizeof first, "%s", scratch_path("first"));
    snprintf(second, sizeof second, "%s", scratch_path("second"));
    study_config(config);
    command_succeeds(RUN("study", "--config", config, "--out", whole, VARIANTS), NULL);
    command_succeeds(RUN("study", "--config", config, "--out", first, VARIANTS, "--variants", "a"),
                     NULL);
    command_succeeds(RUN("study", "--config", config, "--out", second, VARIANTS, "--variants", "b"),
                     NULL);
    return 0;
}

RUN_TESTS(make_parts, scratch_teardown)

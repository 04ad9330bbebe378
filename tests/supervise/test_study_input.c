/* What a study refuses, in one line and before anything is written; what belongs to one variant or run
 * and leaves the others alone; and iterations that are measured. */
#include "base/folders.h"
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char config[256], out[256];

#define STUDY(...)                                                                                 \
    RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o",                    \
        "STUDY_LEARNING_RATES=", __VA_ARGS__)
#define NAMED "-o", "RA_MLA_ABLATION_STEPS="

TEST(test_missing_data_is_told_once_and_nothing_is_made) {
    snprintf(out, sizeof out, "%s", scratch_path("nowhere"));
    command_fails(2, STUDY("-o", "DATASET=/no/such/folder"), SAYS("/no/such/folder"));
    command_fails(2, STUDY("-o", "VOCAB_SIZE=100"), SAYS("CONFIG_VOCAB_SIZE", "256"));
    command_fails(2, STUDY("-o", "STUDY_SCORE=metric"), SAYS("STUDY_SCORE", "embedded"));
    command_fails(2, STUDY("-o", "STUDY_LEARNING_RATES=1e-3,x"),
                  SAYS("STUDY_LEARNING_RATES", "1e-3,x"));
    command_fails(2, STUDY("--jobs", "0"), SAYS("--jobs"));
    command_fails(2, STUDY("--variant", "2"), SAYS("--variants"));
    command_fails(2, STUDY("--step=2"), SAYS("--variants"));
    command_fails(2, STUDY("--variants", "9"), SAYS("--variants", "'9'"));
    command_fails(2, STUDY("--steps=9"), SAYS("--variants", "'9'"));
    command_fails(2, RUN("study", "--out", out), SAYS("--config"));
    assert_int_not_equal(access(out, F_OK), 0);
}

/* More tokens than 64 bits count are as many as they can. */
TEST(test_the_largest_study_is_listed) {
    snprintf(out, sizeof out, "%s", scratch_path("largest"));
    json_t *all =
        command_json(STUDY("--list", "--json", "-o", "STEPS=1000000000", "-o", "BATCH_SIZE=1048576",
                           "-o", "GRADIENT_ACCUMULATION=1048576", "-o", "MICRO_BATCH=1", "-o",
                           "CONTEXT=1024", "-o", "SEED=9007199254740991"));
    const json_t *variant = json_array_get(json_object_get(all, "steps"), 0);
    assert_true(json_integer_value(json_object_get(variant, "tokens")) == INT64_MAX);
    json_decref(all);
}

TEST(test_a_folder_that_cannot_be_written_is_refused) {
    file_write(scratch_path("file"), "x", 1);
    snprintf(out, sizeof out, "%s", scratch_path("file/below"));
    command_fails(1, STUDY("--threads", "1"), SAYS("file/below"));
    snprintf(out, sizeof out, "%s", scratch_path("file"));
    command_fails(1, STUDY("--threads", "1"), SAYS(out));
}

/* The same words as from a disk that is full: no file may grow past so many bytes. */
TEST(test_a_full_disk_is_told_and_kept_apart) {
    train_need_limit();
    char err[256];
    size_t n;
    snprintf(out, sizeof out, "%s", scratch_path("full"));
    snprintf(err, sizeof err, "%s", scratch_path("full.err"));
    pid_t study = train_start(STUDY("--threads", "1"), err, 8192);
    assert_int_equal(train_wait(study), 1);
    char *said = file_read(err, &n);
    assert_non_null(strstr(said, "weft study: "));
    assert_ptr_equal(strchr(said, '\n'), said + n - 1); /* one line */
    free(said);
    /* Room for the database, not for the checkpoints: the runs' fault, each by itself. */
    study = train_start(STUDY("-o", "N_EMBD=128"), err, 160000);
    assert_int_equal(train_wait(study), 1);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'failed'"
                                       " AND why LIKE '%File too large%'"),
                     2);
    command_succeeds(STUDY("-o", "N_EMBD=128"), NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), 2);
    snprintf(out, sizeof out, "%s", scratch_path("huge"));
    command_fails(1, STUDY("-o", "N_EMBD=65536", "-o", "N_LAYER=64"),
                  SAYS(out, "no room", "2 runs"));
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs"), 0);
}

static void expect_kept(const char *path, const char *bytes, size_t n) {
    size_t now;
    char *is = file_read(path, &now);
    assert_int_equal(now, n);
    assert_memory_equal(is, bytes, n);
    free(is);
}

TEST(test_a_strange_database_is_refused_and_kept) {
    char path[300];
    snprintf(out, sizeof out, "%s", scratch_path("strange"));
    snprintf(path, sizeof path, "%s/runs.db", out);
    assert_int_equal(mkdir(out, 0777), 0);
    static const char text[] = "this is no database, and long enough to be looked at as one by "
                               "its first hundred bytes, which it must not be taken for at all";
    file_write(path, text, sizeof text);
    command_fails(2, STUDY("--threads", "1"), SAYS("runs.db", "move it away"));
    command_fails(2, RUN("runs", out), SAYS("runs.db"));
    expect_kept(path, text, sizeof text);
    assert_int_equal(unlink(path), 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE mine(x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    size_t n;
    char *foreign = file_read(path, &n);
    command_fails(2, STUDY("--threads", "1"), SAYS("runs.db", "another program"));
    expect_kept(path, foreign, n);
    free(foreign);
    command_fails(2, RUN("runs", scratch_path("none")), SAYS("none"));
}

/* One that was ours, with bytes changed in its middle. */
TEST(test_a_damaged_database_is_refused) {
    char path[300];
    snprintf(out, sizeof out, "%s", scratch_path("damaged"));
    snprintf(path, sizeof path, "%s/runs.db", out);
    command_succeeds(STUDY("--variants", "2"), NULL);
    size_t n;
    char *bytes = file_read(path, &n);
    memset(bytes + n / 3, 0x5a, n / 3);
    file_write(path, bytes, n);
    command_fails(2, STUDY("--variants", "2"), SAYS("runs.db", "damaged"));
    expect_kept(path, bytes, n);
    free(bytes);
}

TEST(test_a_variant_that_cannot_be_built_leaves_the_others_alone) {
    snprintf(out, sizeof out, "%s", scratch_path("broken"));
    command_result r =
        command_run(STUDY(NAMED, "-o", "STUDY_VARIANTS=a; odd: N_HEAD=3; far: DATASET=/no/such"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "weft study: variant 'odd' cannot be built"));
    command_free(&r);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), 1);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs"), 1);
    char *error = study_text(out, "SELECT error FROM variants WHERE name = 'odd'");
    assert_non_null(strstr(error, "CONFIG_N_HEAD=3"));
    free(error);
    error = study_text(out, "SELECT error FROM variants WHERE name = 'far'");
    assert_non_null(strstr(error, "/no/such"));
    free(error);
}

/* Rates no model survives: the run has no score, the study is done all the same. */
TEST(test_a_run_that_diverges_is_a_result) {
    snprintf(out, sizeof out, "%s", scratch_path("diverged"));
    json_t *r;
    char *text;
    static const char variants[] = "STUDY_VARIANTS=a; hot: LEARNING_RATE=1000 WARMUP_STEPS=0 "
                                   "OPTIMIZER=adamw WEIGHT_DECAY=1000";
    command_succeeds(
        STUDY(NAMED, "-o", variants, "-o", "STEPS=60", "-o", "EVAL_INTERVAL=60", "--json"), &text);
    r = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(r, "done")), 1);
    assert_int_equal(json_integer_value(json_object_get(r, "diverged")), 1);
    json_decref(r);
    free(text);
    assert_int_equal(study_number(out, "SELECT score IS NULL AND val_loss IS NULL AND skipped >= 10"
                                       " AND why LIKE '%not finite%' FROM runs"
                                       " WHERE status = 'diverged'"),
                     1);
    assert_true(study_number(out, "SELECT count(*) FROM events WHERE kind = 'skipped'") >= 10);
}

TEST(test_a_leaking_variant_is_marked) {
    snprintf(out, sizeof out, "%s", scratch_path("leaks"));
    static const char variants[] = "STUDY_VARIANTS=a; seq: RA_MLA_MLP_ATTN_GATE=y "
                                   "RA_MLA_MLP_GATE_POOL=sequence ALLOW_FUTURE_LEAK=y";
    command_succeeds(STUDY(NAMED, "-o", variants), NULL);
    assert_int_equal(study_number(out, "SELECT leaks FROM variants WHERE name = 'a'"), 0);
    assert_int_equal(study_number(out, "SELECT leaks FROM variants WHERE name = 'seq'"), 1);
    assert_int_equal(study_number(out, "SELECT step FROM events WHERE kind = 'leaks'"), 1);
}

/* Each pruning is an event of its run, and none of the report's troubles. */
TEST(test_prunings_are_events) {
    snprintf(out, sizeof out, "%s", scratch_path("pruned"));
    static const char variants[] =
        "STUDY_VARIANTS=a; b: PRUNE=magnitude PRUNE_START=0 PRUNE_END=4 PRUNE_INTERVAL=2";
    command_succeeds(STUDY(NAMED, "-o", variants), NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM events WHERE kind = 'pruned'"), 2);
    char *detail = study_text(out, "SELECT detail FROM events WHERE kind = 'pruned' AND step = 5");
    assert_string_equal(detail, "sparsity 0.5");
    free(detail);
    char *report = file_read(scratch_path("pruned/report.md"), NULL);
    assert_null(strstr(report, "| pruned |"));
    free(report);
}

/* Equal time: seconds are measured once and kept; iterations follow from them, and a repeat has
 * those of what it repeats. */
TEST(test_time_is_measured_once_and_kept) {
    snprintf(out, sizeof out, "%s", scratch_path("time"));
    command_succeeds(STUDY("-o", "STUDY_EQUAL=time", "-o", "RA_MLA_ABLATION_STEPS=0,2,4"), NULL);
    double first = study_real(out, "SELECT seconds_per_iter FROM variants WHERE variant = 0");
    double second = study_real(out, "SELECT seconds_per_iter FROM variants WHERE variant = 1");
    assert_true(first > 0 && second > 0);
    int64_t iters = (int64_t)fmax(1, floor(8 * first / second + 0.5));
    assert_int_equal(study_number(out, "SELECT iters FROM variants WHERE variant = 1"), iters);
    assert_int_equal(study_number(out, "SELECT iters FROM runs WHERE variant = 1"), iters);
    assert_int_equal(study_number(out, "SELECT iters FROM runs WHERE variant = 2"), iters);
    assert_int_equal(study_number(out, "SELECT count(*) FROM events WHERE kind = 'equal'"), 1);
    command_succeeds(STUDY("-o", "STUDY_EQUAL=time", "-o", "RA_MLA_ABLATION_STEPS=0,2,4"), NULL);
    assert_true(study_real(out, "SELECT seconds_per_iter FROM variants WHERE variant = 0") ==
                first);
    char path[300];
    snprintf(path, sizeof path, "%s/measure", out);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A folder by the name that measuring takes, the user's own, directly and behind a link. */
TEST(test_measuring_removes_only_what_it_made) {
    char path[300], note[600];
    snprintf(out, sizeof out, "%s", scratch_path("measured"));
    snprintf(path, sizeof path, "%s/measure", out);
    snprintf(note, sizeof note, "%s/data/note", path);
    assert_int_equal(mkdir(out, 0777), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(note, sizeof note, "%s/data", path);
    assert_int_equal(mkdir(note, 0777), 0);
    snprintf(note, sizeof note, "%s/data/note", path);
    file_write(note, "mine", 4);
    command_fails(2, STUDY("-o", "STUDY_EQUAL=time"), SAYS("measure", "move it away"));
    assert_int_equal(access(note, R_OK), 0);
    assert_int_equal(rename(path, scratch_path("mine")), 0);
    assert_int_equal(symlink(scratch_path("mine"), path), 0);
    command_fails(2, STUDY("-o", "STUDY_EQUAL=time"), SAYS("measure", "move it away"));
    assert_int_equal(access(note, R_OK), 0);
    /* What a killed study left is its own. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(weft_folder_make_marked(path), WEFT_OK);
    snprintf(note, sizeof note, "%s/0", path);
    assert_int_equal(mkdir(note, 0777), 0);
    snprintf(note, sizeof note, "%s/0/config", path);
    file_write(note, "CONFIG_N_LAYER=1\n", 17);
    command_succeeds(STUDY("-o", "STUDY_EQUAL=time", "-o", "STUDY_SEEDS=1"), NULL);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A user's file by the lock's name is not written over. */
TEST(test_a_file_called_lock_stays) {
    char path[300];
    snprintf(out, sizeof out, "%s", scratch_path("locked"));
    snprintf(path, sizeof path, "%s/lock", out);
    assert_int_equal(mkdir(out, 0777), 0);
    file_write(path, "keys to the house", 17);
    command_fails(2, STUDY("-o", "STUDY_SEEDS=1"), SAYS("lock", "move it away"));
    char *text = file_read(path, NULL);
    assert_string_equal(text, "keys to the house");
    free(text);
}

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    study_config(config);
    return 0;
}

RUN_TESTS(open_scratch, scratch_teardown)

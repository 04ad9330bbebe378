/* A tree of runs as it is told while they run: what their files say, what is new alone, and the end of a log. */
#include "base/json.h"
#include "record/watched.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static int open_scratch(void **state) {
    scratch_setup(state);
    snprintf(root, sizeof root, "%s", scratch_path("runs"));
    return mkdir(root, 0777);
}

static const char *at(const char *name) {
    return format_text("%s/%s", root, name);
}

static void append(const char *name, const char *text) {
    FILE *out = fopen(at(name), "a");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

/* 4 x 2 x 32 tokens a step. */
static void make_run(const char *run) {
    assert_int_equal(mkdir(at(run), 0777), 0);
    append(format_text("%s/config", run), "CONFIG_BATCH_SIZE=4\nCONFIG_GRADIENT_ACCUMULATION=2\n"
                                          "CONFIG_CONTEXT=32\nCONFIG_STEPS=40\n");
    append(
        format_text("%s/metrics.jsonl", run),
        "{\"step\":10,\"loss\":5.5,\"val_loss\":4.5,\"tokens_per_s\":3000,\"mfu\":0.75}\n"
        "{\"step\":20,\"loss\":4.5,\"lr\":0.25,\"val_loss\":4.75,\"tokens_per_s\":1000,\"mfu\":0."
        "25}\n");
}

static weft_watched *open_root(void) {
    weft_watched *w;
    const char *path = root;
    if (weft_watched_open(&path, 1, true, &w) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_true(weft_watched_look(w));
    return w;
}

static const json_t *run_at(const json_t *news, int id) {
    return json_array_get(json_object_get(news, "runs"), (size_t)id);
}

static const char *status_in(const json_t *run) {
    return json_string_value(json_object_get(run, "status"));
}

static void expect_number(const json_t *run, const char *key, double wanted) {
    double is = weft_json_number_of(run, key);
    if (!(fabs(is - wanted) <= 1e-12 * fabs(wanted))) fail_msg("%s: %g, not %g", key, is, wanted);
}

TEST_WITH(test_a_run_is_told_as_its_files_say, open_scratch, scratch_teardown) {
    make_run("told");
    weft_watched *w = open_root();
    assert_int_equal(weft_watched_count(w), 1);
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, 0);
    const json_t *run = run_at(news, 0);
    assert_string_equal(json_string_value(json_object_get(run, "name")), "told");
    assert_string_equal(status_in(run), "running");
    expect_number(run, "step", 20);
    expect_number(run, "steps", 40);
    expect_number(run, "tokens_per_step", 256);
    expect_number(run, "loss", 4.5);
    expect_number(run, "val_loss", 4.75);
    expect_number(run, "best_val_loss", 4.5);
    /* 10 steps at 3000 tokens a second, and 10 at 1000. */
    expect_number(run, "tokens_per_s", 20 / (10 / 3000.0 + 10 / 1000.0));
    expect_number(run, "mfu", 0.25 / 1000 * 1500);
    expect_number(run, "seconds_left", 20 * 256 / 1000.0);
    const json_t *options = json_object_get(run, "options");
    expect_number(options, "GRADIENT_ACCUMULATION", 2);
    assert_null(json_object_get(options, "N_LAYER"));
    assert_non_null(json_object_get(json_object_get(news, "defaults"), "N_LAYER"));
    WEFT_AUTO_FREE char *rows = json_dumps(json_object_get(run, "rows"), JSON_COMPACT);
    assert_string_equal(
        rows, "[[10.0,5.5,4.5,null,null,3000.0,0.75],[20.0,4.5,4.75,0.25,null,1000.0,0.25]"
              "]");
    /* What is new alone, once. */
    int64_t version = weft_watched_version(w);
    assert_null(weft_watched_news(w, version));
    append("told/metrics.jsonl", "{\"step\":30,\"loss\":4.25}\n{\"step\":40,");
    assert_true(weft_watched_look(w));
    WEFT_AUTO_DECREF json_t *more = weft_watched_news(w, version);
    run = run_at(more, 0);
    assert_true(json_is_false(json_object_get(run, "reset")));
    assert_null(json_object_get(more, "defaults"));
    assert_int_equal(json_array_size(json_object_get(run, "rows")), 1);
    expect_number(run, "loss", 4.25);
    expect_number(run, "val_loss", 4.75);
    weft_watched_close(w);
}

TEST_WITH(test_how_a_run_ended_is_told, open_scratch, scratch_teardown) {
    const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    static const char *const wanted[] = {"ended", "running", "stopped", "done"};
    for (int i = 0; i < 4; i++)
        make_run(format_text("end-%d", i));
    append("end-2/result.json",
           "{\"end\":\"stopped\",\"best_val_loss\":4.5,\"bits_per_byte\":1.5}");
    append("end-3/metrics.jsonl", "{\"step\":40,\"loss\":4}\n");
    for (int i = 0; i < 4; i++)
        assert_int_equal(utimensat(AT_FDCWD, at(format_text("end-%d/metrics.jsonl", i)), old, 0),
                         0);
    FILE *held = fopen(at("end-1/metrics.jsonl"), "r");
    assert_non_null(held);
    assert_int_equal(flock(fileno(held), LOCK_EX), 0);
    weft_watched *w = open_root();
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, 0);
    for (int i = 0; i < 4; i++)
        assert_string_equal(status_in(run_at(news, i)), wanted[i]);
    /* A loss in nats over one in bits. */
    expect_number(run_at(news, 2), "bytes_per_token", 4.5 / log(2) / 1.5);
    assert_true(json_is_null(json_object_get(run_at(news, 0), "bytes_per_token")));
    assert_true(json_is_null(json_object_get(run_at(news, 0), "seconds_left")));
    fclose(held);
    weft_watched_close(w);
}

TEST_WITH(test_lines_that_were_replaced_are_told_anew, open_scratch, scratch_teardown) {
    make_run("again");
    weft_watched *w = open_root();
    int64_t version = weft_watched_version(w);
    assert_int_equal(truncate(at("again/metrics.jsonl"), 0), 0);
    append("again/metrics.jsonl", "{\"step\":5,\"loss\":6}\n");
    assert_true(weft_watched_look(w));
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, version);
    const json_t *run = run_at(news, 0);
    assert_true(json_is_true(json_object_get(run, "reset")));
    WEFT_AUTO_FREE char *rows = json_dumps(json_object_get(run, "rows"), JSON_COMPACT);
    assert_string_equal(rows, "[[5.0,6.0,null,null,null,null,null]]");
    assert_true(json_is_null(json_object_get(run, "best_val_loss")));
    weft_watched_close(w);
}

/* Every second line is an evaluation, or every tenth. */
TEST_WITH(test_evaluations_of_long_runs_are_told_to_the_end, open_scratch, scratch_teardown) {
    enum { LINES = 30000 };
    for (int every = 2; every <= 10; every += 8) {
        const char *run = format_text("every-%d", every);
        make_run(run);
        FILE *out = fopen(at(format_text("%s/metrics.jsonl", run)), "w");
        assert_non_null(out);
        for (int i = 1; i <= LINES; i++)
            fprintf(out, "{\"step\":%d,\"loss\":4%s}\n", i, i % every ? "" : ",\"val_loss\":4");
        assert_int_equal(fclose(out), 0);
    }
    weft_watched *w;
    const char *path = root;
    assert_int_equal(weft_watched_open(&path, 1, true, &w), WEFT_OK);
    while (!weft_watched_look(w))
        ;
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, 0);
    for (int run = 0; run < 2; run++) {
        const json_t *rows = json_object_get(run_at(news, run), "rows");
        int of[2][3] = {{0}}; /* other lines and evaluations, of each third of the run */
        EACH_ITEM(row, rows) {
            double step = json_number_value(json_array_get(row.value, 0));
            of[json_is_number(json_array_get(row.value, 2))][(int)((step - 1) * 3 / LINES)]++;
        }
        assert_true(json_array_size(rows) <= 2001);
        for (int part = 0; part < 3; part++) { /* as many of each */
            assert_true(of[0][part] > 50 && of[0][part] < 2 * of[0][0]);
            assert_true(of[1][part] > 200 && of[1][part] < 2 * of[1][0]);
        }
    }
    weft_watched_close(w);
}

static void expect_tail(const weft_watched *w, int id, bool samples, size_t most,
                        const char *wanted) {
    WEFT_AUTO_FREE char *text = weft_watched_tail(w, id, samples, most);
    if (!wanted) assert_null(text);
    if (wanted && !text) fail_msg("%d: nothing, not '%s'", id, wanted);
    if (wanted) assert_string_equal(text, wanted);
}

TEST_WITH(test_the_end_of_a_log_or_of_samples, open_scratch, scratch_teardown) {
    make_run("tail-0");
    make_run("tail-1");
    make_run("tail-2");
    append("tail-0/log", "info  one\ninfo  two\n");
    append("tail-0/samples.jsonl", "{\"text\":\"a\"}\n");
    append("tail-1/samples.jsonl", "{\"text\":\"b\"}\n");
    weft_watched *w = open_root();
    expect_tail(w, 0, false, 100, "info  one\ninfo  two\n");
    expect_tail(w, 0, false, 10, "info  two\n");
    expect_tail(w, 0, true, 100, "{\"text\":\"a\"}\n");
    expect_tail(w, 1, false, 100, "{\"text\":\"b\"}\n");
    expect_tail(w, 2, false, 100, NULL);
    expect_tail(w, 3, false, 100, NULL);
    expect_tail(w, -1, false, 100, NULL);
    weft_watched_close(w);
}

TEST_WITH(test_a_study_is_counted_and_names_its_runs, open_scratch, scratch_teardown) {
    assert_int_equal(mkdir(at("studied"), 0777), 0);
    sqlite3 *db = study_open(at("studied/runs.db"), "studied", "val_loss");
    study_variant(db, 0, "plain", "Plain attention", -1, -1);
    study_run(db, 0, 1e-3, 1, 2.0, "00");
    study_run(db, 0, 1e-3, 2, 2.1, "01");
    study_run_ended(db, 0, 1e-3, 3, "waiting", NULL);
    study_close(db);
    assert_int_equal(mkdir(at("studied/runs"), 0777), 0);
    make_run("studied/runs/0-lr0.001-seed1");
    weft_watched *w = open_root();
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, 0);
    const json_t *study = json_array_get(json_object_get(news, "studies"), 0);
    assert_string_equal(json_string_value(json_object_get(study, "name")), "studied");
    expect_number(study, "waiting", 1);
    expect_number(study, "done", 2);
    assert_int_equal(json_integer_value(json_object_get(study, "failed")), 0);
    const json_t *run = run_at(news, 0);
    assert_string_equal(json_string_value(json_object_get(run, "title")), "Plain attention");
    assert_int_equal(json_integer_value(json_object_get(run, "study")), 0);
    weft_watched_close(w);
}

/* A run of the second folder is found in that one, though the first has one of that name. */
TEST_WITH(test_runs_of_two_folders_are_told_apart, open_scratch, scratch_teardown) {
    make_run("one");
    assert_int_equal(mkdir(scratch_path("others"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("others/two"), 0777), 0);
    file_write(scratch_path("others/two/metrics.jsonl"), "{\"step\":3,\"loss\":1.5}\n", 22);
    const char *const paths[] = {root, scratch_path("others")};
    weft_watched *w;
    expect_ok(weft_watched_open(paths, 2, false, &w));
    assert_true(weft_watched_look(w));
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, 0);
    assert_int_equal(json_array_size(json_object_get(news, "runs")), 2);
    for (int i = 0; i < 2; i++) {
        const json_t *run = run_at(news, i);
        bool second = strcmp(json_string_value(json_object_get(run, "name")), "two") == 0;
        expect_number(run, "loss", second ? 1.5 : 4.5);
        WEFT_AUTO_CLOSE int folder =
            weft_watched_folder(w, json_integer_value(json_object_get(run, "id")));
        assert_true(folder >= 0);
        assert_int_equal(faccessat(folder, "config", F_OK, 0) == 0, !second);
    }
    weft_watched_close(w);
}

TEST_WITH(test_a_note_stays, open_scratch, scratch_teardown) {
    make_run("noted");
    weft_watched *w = open_root();
    int64_t version = weft_watched_version(w);
    assert_int_equal(weft_watched_note(w, 0, "good", "a b"), WEFT_OK);
    assert_int_equal(weft_watched_note(w, 1, "none", ""), WEFT_EINPUT);
    WEFT_AUTO_DECREF json_t *news = weft_watched_news(w, version);
    assert_string_equal(json_string_value(json_object_get(run_at(news, 0), "note")), "good");
    assert_string_equal(json_string_value(json_object_get(run_at(news, 0), "tags")), "a b");
    weft_watched_close(w);
}

RUN_TESTS(NULL, NULL)

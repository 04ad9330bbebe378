/* `weft report`: files, JSON and answers to wrong input. What a report says is tests/study's. */
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_study(const char *name, double by) {
    assert_int_equal(mkdir(scratch_path("%s", name), 0777), 0);
    sqlite3 *db = study_open(scratch_path("%s/runs.db", name), name, "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    study_variant(db, 2, "2", "Again", 0, 1);
    for (int seed = 1; seed <= 3; seed++) {
        study_run(db, 0, 1e-3, seed, 2.0 + 0.1 * seed, "a");
        study_run(db, 1, 1e-3, seed, 2.0 + 0.1 * seed + by + (seed == 2 ? 0.01 : 0), "b");
        study_run(db, 2, 1e-3, seed, 2.0 + 0.1 * seed + by + (seed == 2 ? 0.01 : 0), "b");
    }
    study_run_ended(db, 1, 1e-3, 4, "diverged", "NaN");
    study_run(db, 0, 1e-3, 4, 2.0, "c");
    study_close(db);
}

static int make_studies(void **state) {
    (void)state;
    scratch_open();
    make_study("good", -0.2);
    make_study("bad", 0.2);
    return 0;
}

static void expect_report(const char *folder) {
    assert_int_equal(access(scratch_path("%s/report.html", folder), R_OK), 0);
    assert_int_equal(access(scratch_path("%s/report.md", folder), R_OK), 0);
}

TEST(test_a_report_goes_into_the_studys_folder) {
    WEFT_AUTO_FREE char *out = OUTPUT("report", scratch_path("good"));
    assert_non_null(strstr(out, "good/report.html"));
    expect_report("good");
    SUCCEEDS("report", scratch_path("bad/runs.db"));
    expect_report("bad");
    SUCCEEDS("report", scratch_path("good"), scratch_path("bad"), "--out", scratch_path("both"));
    expect_report("both");
}

TEST(test_runs_says_what_the_variants_are) {
    WEFT_AUTO_FREE char *out = OUTPUT("runs", scratch_path("good"));
    assert_non_null(strstr(out, "variant 1: Gate\n"));
    /* Seeds 1 to 3 differ by -0.2, -0.19, -0.2: their mean, and t(2) = 4.303 times 0.00577 / sqrt(3) around it. */
    assert_non_null(strstr(out, "-0.1967 (-0.2110 to -0.1823) against 0: better\n"));
}

static const char *text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void expect_verdict(const json_t *study, const char *word, double difference) {
    json_t *verdicts = json_object_get(study, "verdicts");
    assert_int_equal(json_array_size(verdicts), 2);
    const json_t *v = json_array_get(verdicts, 0);
    assert_string_equal(text(v, "step"), "1");
    assert_string_equal(text(v, "baseline"), "0");
    assert_string_equal(text(v, "verdict"), word);
    assert_int_equal(real_of(v, "pairs"), 3);
    /* Differences d, d + 0.01, d: mean d + 0.01/3, sd 0.0057735, half 4.3026527 sd / sqrt(3). */
    assert_true(fabs(real_of(v, "difference") - (difference + 0.01 / 3)) < 1e-12);
    assert_true(fabs(real_of(v, "high") - real_of(v, "low") - 2 * 0.0143421758) < 1e-8);
    const json_t *left_out = json_array_get(json_object_get(v, "left_out"), 0);
    assert_int_equal(real_of(left_out, "seed"), 4);
    assert_string_equal(text(left_out, "step"), "diverged");
    assert_string_equal(text(left_out, "baseline"), "finished");
    assert_string_equal(text(json_array_get(verdicts, 1), "repeat_of"), "1");
}

TEST(test_json_has_verdicts_table_and_repeats) {
    make_study("quiet", 0.1);
    WEFT_AUTO_DECREF json_t *object = command_json(
        RUN("report", "--json", scratch_path("good"), scratch_path("bad"), scratch_path("quiet")));
    json_t *studies = json_object_get(object, "studies");
    assert_int_equal(json_array_size(studies), 3);
    const json_t *study = json_array_get(studies, 0);
    assert_string_equal(text(study, "name"), "good");
    assert_string_equal(text(study, "score"), "val_loss");
    assert_true(json_is_false(json_object_get(study, "higher_is_better")));
    assert_true(real_of(study, "confidence") == 0.95);
    assert_int_equal(real_of(study, "comparisons"), 1);
    expect_verdict(study, "better", -0.2);
    expect_verdict(json_array_get(studies, 1), "worse", 0.2);
    const json_t *step = json_array_get(json_object_get(study, "steps"), 1);
    assert_int_equal(real_of(step, "parameters"), 1250000);
    assert_int_equal(real_of(step, "seeds"), 3);
    assert_int_equal(real_of(step, "runs"), 4);
    assert_true(real_of(step, "learning_rate") == 1e-3);
    const json_t *repeat = json_array_get(json_object_get(study, "repeats"), 0);
    assert_string_equal(text(repeat, "result"), "equal");
    assert_int_not_equal(access(scratch_path("quiet/report.html"), F_OK), 0);
}

TEST(test_wrong_input_is_one_line) {
    FAILS(2, SAYS("name a study's folder"), "report");
    FAILS(2, SAYS("--out"), "report", scratch_path("good"), scratch_path("bad"));
    FAILS(2, SAYS("nowhere", "No such file"), "report", scratch_path("nowhere"));
    file_write(scratch_path("zero.db"), "", 0);
    FAILS(2, SAYS("an empty database"), "report", scratch_path("zero.db"));
    FAILS(2, SAYS("an empty database"), "report", "--json", scratch_path("good"),
          scratch_path("zero.db"));
    FAILS(1, SAYS("zero.db"), "report", scratch_path("good"), "--out", scratch_path("zero.db"));
}

RUN_TESTS(make_studies, scratch_teardown)

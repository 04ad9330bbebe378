/* What a report answers, in a sentence: every way a study can come out, from databases whose numbers are
 * worked out by hand. And the numbers on an axis, which are what a person would write. */
#include "report/page.h"
#include "report/report.h"
#include "report/sections.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A baseline and two variants, Gate and Cross, against it. */
static sqlite3 *begin(const char *name, const char *score) {
    sqlite3 *db = study_open(scratch_path("%s.db", name), name, score);
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "gate", "Gate", 0, -1);
    study_variant(db, 2, "cross", "Cross", 0, -1);
    return db;
}

static void three_seeds(sqlite3 *db, int variant, double a, double b, double c) {
    const double scores[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        study_run(db, variant, 1e-3, i + 1, scores[i], "w");
}

/* The sentence, and all caveats with a blank between them. */
static void expect_answer(sqlite3 *db, const char *name, const char *answer, const char *beside) {
    weft_report_data d;
    char all[2000] = "", *sentence;
    study_close(db);
    char *path = strdup(scratch_path("%s.db", name));
    assert_int_equal(weft_report_read(path, &d), WEFT_OK);
    sentence = weft_report_sentence(&d);
    assert_string_equal(sentence, answer);
    free(sentence);
    json_t *caveats = weft_report_caveats(&d), *caveat;
    size_t i;
    json_array_foreach(caveats, i, caveat) {
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "",
                 json_string_value(caveat));
    }
    json_decref(caveats);
    assert_string_equal(all, beside);
    weft_report_free(&d);
    free(path);
}

/* Differences -0.10 -0.09 -0.11 of a mean of 2.1: half the interval is 0.024841, so 4.8% (3.6% to
 * 5.9%). */
TEST(test_a_variant_that_is_better_is_named_with_its_gain) {
    sqlite3 *db = begin("better", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    three_seeds(db, 2, 1.9, 2.15, 2.25);
    expect_answer(db, "better",
                  "Gate lowered the held-out loss by 4.8% (95% interval 3.6% to 5.9%); for Cross "
                  "no difference was shown.",
                  "");
}

TEST(test_better_and_worse_are_both_said) {
    sqlite3 *db = begin("both", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    three_seeds(db, 2, 2.1, 2.19, 2.31);
    expect_answer(
        db, "both",
        "Gate lowered the held-out loss by 4.8% (95% interval 3.6% to 5.9%); Cross raised "
        "it by 4.8% (95% interval 3.6% to 5.9%).",
        "");
}

/* Cross is compared with Gate, and better than it, though no better than the first variant. */
TEST(test_a_baseline_that_is_not_the_first_is_named) {
    sqlite3 *db = study_open(scratch_path("named.db"), "named", "val_loss");
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "gate", "Gate", 0, -1);
    study_variant(db, 2, "cross", "Cross", 1, -1);
    three_seeds(db, 0, 1.9, 2.01, 2.09);
    three_seeds(db, 1, 2.0, 2.1, 2.2);
    three_seeds(db, 2, 1.9, 2.01, 2.09);
    expect_answer(db, "named",
                  "Cross lowered the held-out loss by 4.8% against Gate (95% interval 3.6% to "
                  "5.9%); Gate raised it by 5.0% (95% interval 3.8% to 6.2%).",
                  "");
}

TEST(test_worse_alone_is_said) {
    sqlite3 *db = begin("worse", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 2.1, 2.19, 2.31);
    three_seeds(db, 2, 1.9, 2.15, 2.25);
    expect_answer(
        db, "worse",
        "No variant lowered the held-out loss; Gate raised it by 4.8% (95% interval 3.6% to "
        "5.9%); for Cross no difference was shown.",
        "");
}

/* Differences -0.10 +0.05 +0.05: half the interval is 0.215133 of 2.1, 10%. */
TEST(test_nothing_shown_says_what_could_have_been) {
    sqlite3 *db = begin("nothing", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.15, 2.25);
    three_seeds(db, 2, 2.1, 2.05, 2.15);
    expect_answer(
        db, "nothing",
        "No variant lowered the held-out loss; 3 seeds could have shown a difference of 10%.", "");
}

TEST(test_one_variant_alone_is_said_as_one) {
    sqlite3 *db = begin("alone", "val_loss");
    study_sql(db, "DELETE FROM variants WHERE variant = 2");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.15, 2.25);
    expect_answer(db, "alone",
                  "No difference in held-out loss was shown between Gate and Plain; 3 seeds could "
                  "have shown a difference of 10%.",
                  "");
}

TEST(test_a_metric_is_raised) {
    sqlite3 *db = begin("metric", "metric");
    three_seeds(db, 0, 0.70, 0.71, 0.72);
    three_seeds(db, 1, 0.80, 0.82, 0.81);
    three_seeds(db, 2, 0.60, 0.62, 0.61);
    expect_answer(db, "metric",
                  "Gate raised the accuracy by 14% (95% interval 11% to 18%); Cross lowered it by "
                  "14% (95% interval 11% to 18%).",
                  "");
}

TEST(test_a_leak_is_no_gain) {
    sqlite3 *db = begin("leak", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.0, 1.1, 1.2);
    three_seeds(db, 2, 2.1, 2.19, 2.31);
    study_sql(db, "UPDATE variants SET leaks = 1 WHERE variant = 1");
    expect_answer(db, "leak", "Cross raised the held-out loss by 4.8% (95% interval 3.6% to 5.9%).",
                  "Gate leaks: a token sees later ones, so its score is not one of prediction.");
}

TEST(test_one_seed_and_two_are_said_to_be_few) {
    sqlite3 *db = begin("one", "val_loss");
    for (int variant = 0; variant < 3; variant++)
        study_run(db, variant, 1e-3, 1, 2.0 + variant, "w");
    expect_answer(db, "one",
                  "One seed cannot tell: a difference needs at least two to be told from chance.",
                  "");
    db = begin("two", "val_loss");
    for (int variant = 0; variant < 3; variant++) {
        study_run(db, variant, 1e-3, 1, 3.0 - 0.1 * variant, "w");
        study_run(db, variant, 1e-3, 2, 3.1 - 0.2 * variant, "w");
    }
    /* Differences -0.1 and -0.2: 12.706 times 0.05 is 0.6353 of 3.05, 21%; of Cross twice that. */
    expect_answer(
        db, "two",
        "No variant lowered the held-out loss; 2 seeds could have shown a difference of 21% "
        "to 42%, depending on the variant.",
        "Two seeds are too few: the interval of two is 12.7 standard errors to either "
        "side, of three 4.3, of five 2.8.");
}

#define NOT_LEFT                                                                                   \
    "Gate differs from its baseline, but not when all comparisons are counted together (Holm's "   \
    "method)."
#define IN_DOUBT "a difference was seen that the warnings below put in doubt."

/* Gate's differences of -0.05 -0.03 -0.06 have a p of 0.034: more than 0.05 / 2, which the least p of two
 * comparisons must not exceed, nor the second of three; and less than 0.05, which the second of two may
 * reach. The p of Cross is 0.0033. */
TEST(test_what_is_not_left_of_all_comparisons_is_not_named) {
    sqlite3 *db = begin("chance", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.95, 2.07, 2.14);
    three_seeds(db, 2, 1.9, 2.15, 2.25);
    expect_answer(db, "chance", "Nothing is settled: for 1 of 2 variants " IN_DOUBT, NOT_LEFT);
    db = begin("chances", "val_loss");
    study_variant(db, 3, "late", "Late", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.95, 2.07, 2.14);
    three_seeds(db, 2, 2.1, 2.19, 2.31);
    three_seeds(db, 3, 1.9, 2.15, 2.25);
    expect_answer(db, "chances",
                  "Cross raised the held-out loss by 4.8% (95% interval 3.6% to 5.9%); for Late "
                  "no difference was shown; for 1 other " IN_DOUBT,
                  NOT_LEFT);
    db = begin("holm", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.95, 2.07, 2.14);
    three_seeds(db, 2, 2.1, 2.19, 2.31);
    expect_answer(db, "holm",
                  "Gate lowered the held-out loss by 2.2% (95% interval 0.4% to 4.0%); Cross "
                  "raised it by 4.8% (95% interval 3.6% to 5.9%).",
                  "");
}

/* Two seeds, differences of -0.100 and -0.101; then the third seed of one variant alone is missing. */
TEST(test_two_seeds_name_nothing) {
    sqlite3 *db = begin("pair", "val_loss");
    for (int variant = 0; variant < 3; variant++)
        for (int seed = 1; seed <= 2; seed++)
            study_run(db, variant, 1e-3, seed, 3.0 + 0.1 * seed - (0.1 + 0.001 * seed) * variant,
                      "w");
    expect_answer(db, "pair", "Nothing is settled: for 2 of 2 variants " IN_DOUBT,
                  "Two seeds are too few: the interval of two is 12.7 standard errors to either "
                  "side, of three 4.3, of five 2.8.");
    db = begin("missing", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    study_run(db, 2, 1e-3, 1, 1.9, "w");
    study_run(db, 2, 1e-3, 2, 1.999, "w");
    study_run_ended(db, 2, 1e-3, 3, "failed", "no memory");
    expect_answer(
        db, "missing",
        "Gate lowered the held-out loss by 4.8% (95% interval 3.6% to 5.9%); for 1 other " IN_DOUBT,
        "1 of 9 runs failed or diverged and are left out. Cross was compared over two "
        "seeds only, which are too few.");
}

/* The baseline got the least of three rates, both variants the one in the middle. */
TEST(test_a_gain_over_a_baseline_at_the_edge_is_not_named) {
    static const double rates[] = {1e-3, 3e-3, 1e-2};
    sqlite3 *db = begin("edges", "val_loss");
    study_sql(db, "DELETE FROM variants WHERE variant = 2");
    for (int variant = 0; variant < 2; variant++)
        for (int rate = 0; rate < 3; rate++)
            for (int seed = 1; seed <= 3; seed++)
                study_run(db, variant, rates[rate], seed,
                          2.0 + 0.1 * seed + 0.3 * abs(rate - variant) - 0.1 * variant -
                              0.001 * variant * seed,
                          "w");
    expect_answer(db, "edges", "Nothing is settled: " IN_DOUBT,
                  "Plain got a learning rate at the edge of those tried: a better one may lie "
                  "beyond it.");
}

/* One seed of Gate was trained by another version of the program; Cross has its baseline's for every seed. */
TEST(test_what_two_versions_made_is_not_named) {
    sqlite3 *db = begin("versions", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    three_seeds(db, 2, 2.1, 2.19, 2.31);
    study_sql(db, "INSERT INTO facts SELECT run, 'commit', CASE WHEN variant = 1 AND seed = 2 THEN "
                  "'new' ELSE 'old' END FROM runs");
    expect_answer(
        db, "versions",
        "Cross raised the held-out loss by 4.8% (95% interval 3.6% to 5.9%); for 1 other " IN_DOUBT,
        "Gate was trained by another version of weft than its baseline, which may be a "
        "part of the difference.");
}

TEST(test_nothing_learned_is_the_answer) {
    sqlite3 *db = begin("guess", "val_loss");
    study_sql(db, "UPDATE study SET config = 'N_LAYER=1' || char(10) || 'VOCAB_SIZE=256'");
    three_seeds(db, 0, 5.545, 5.546, 5.547);
    three_seeds(db, 1, 5.535, 5.536, 5.537);
    three_seeds(db, 2, 5.535, 5.536, 5.537);
    expect_answer(db, "guess",
                  "Nothing was learned: every run ends at the loss of guessing (5.5452), so the "
                  "variants cannot be told apart.",
                  "");
}

/* Three rates; Gate is best at the least of them, the others in the middle. */
TEST(test_a_rate_at_the_edge_of_the_sweep_is_said) {
    static const double rates[] = {1e-3, 3e-3, 1e-2};
    sqlite3 *db = begin("edge", "val_loss");
    for (int variant = 0; variant < 3; variant++)
        for (int rate = 0; rate < 3; rate++)
            for (int seed = 1; seed <= 3; seed++)
                study_run(db, variant, rates[rate], seed,
                          2.0 + 0.1 * seed + 0.3 * abs(rate - (variant == 1 ? 0 : 1)) -
                              0.1 * (variant == 1) - 0.001 * variant * seed,
                          "w");
    expect_answer(db, "edge",
                  "Gate lowered the held-out loss by 4.6% (95% interval 4.5% to 4.7%); for Cross "
                  "no difference was shown.",
                  "Gate got a learning rate at the edge of those tried: a better one may lie "
                  "beyond it.");
}

TEST(test_unfinished_runs_are_not_yet) {
    sqlite3 *db = begin("yet", "val_loss");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    study_run(db, 2, 1e-3, 1, 1.9, "w");
    study_run_ended(db, 2, 1e-3, 2, "running", NULL);
    study_run_ended(db, 2, 1e-3, 3, "waiting", NULL);
    expect_answer(db, "yet",
                  "Not yet: 7 of 9 runs are finished. So far: Gate lowered the held-out loss by "
                  "4.8% (95% interval 3.6% to 5.9%).",
                  "");
    weft_report_data d;
    char *path = strdup(scratch_path("yet.db"));
    assert_int_equal(weft_report_read(path, &d), WEFT_OK);
    assert_string_equal(weft_verdict_word(d.variants[1].compared.verdict), "better");
    assert_string_equal(weft_verdict_word(d.variants[2].compared.verdict), "not yet");
    weft_report_free(&d);
    free(path);
}

TEST(test_failures_and_unequal_repeats_stand_beside_the_answer) {
    sqlite3 *db = begin("beside", "val_loss");
    study_variant(db, 3, "again", "Gate again", 0, 1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    three_seeds(db, 2, 1.9, 2.01, 2.09);
    for (int seed = 1; seed <= 3; seed++)
        study_run(db, 3, 1e-3, seed, 1.8 + 0.1 * seed, "other");
    study_run_ended(db, 2, 1e-3, 4, "diverged", "NaN");
    expect_answer(db, "beside", "Gate lowered the held-out loss by 4.8% and Cross by 4.8%.",
                  "1 of 13 runs failed or diverged and are left out. Gate again did not repeat to "
                  "the same bits.");
}

TEST(test_the_question_is_the_configs) {
    sqlite3 *db = begin("asks", "val_loss");
    study_sql(db, "UPDATE study SET config = 'N_LAYER=1' || char(10) || 'STUDY_QUESTION=Does <b>"
                  " help?' || char(10) || 'SEED=1'");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    study_close(db);
    weft_report_data d;
    char *path = strdup(scratch_path("asks.db"));
    assert_int_equal(weft_report_read(path, &d), WEFT_OK);
    assert_string_equal(d.question, "Does <b> help?");
    weft_report_free(&d);
    free(path);
}

/* The texts of an axis, with a blank between them. */
static void expect_axis(double low, double high, int most, const char *texts) {
    weft_ticks t;
    char all[512] = "";
    weft_axis_ticks(low, high, most, &t);
    for (int i = 0; i < t.n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", t.text[i]);
    assert_string_equal(all, texts);
}

#define MINUS "\xe2\x88\x92"

/* Expected values by SciPy: ttest_1samp of the differences, and the residuals of a table without the means
 * of its rows and columns. */
TEST(test_comparisons_are_counted_together) {
    static const double p[] = {0.0033167587, 0.0339082169, 0.0741799002};
    sqlite3 *db = begin("together", "val_loss");
    study_variant(db, 3, "late", "Late", 0, -1);
    /* Has fewer seeds, so it stays out of the common spread. */
    study_variant(db, 4, "few", "Few", 0, -1);
    three_seeds(db, 0, 2.00, 2.10, 2.20);
    three_seeds(db, 1, 1.90, 2.01, 2.09);
    three_seeds(db, 2, 2.05, 2.13, 2.26);
    three_seeds(db, 3, 1.97, 2.09, 2.18);
    study_run(db, 4, 1e-3, 1, 2.5, "w");
    study_close(db);
    const char *path = scratch_path("together.db");
    json_t *report = command_json(RUN("report", path, "--json"));
    json_t *study = json_array_get(json_object_get(report, "studies"), 0);
    /* 0.034 is not left of three; the answer does not name Cross, the warning does. */
    assert_string_equal(
        json_string_value(json_object_get(study, "answer")),
        "Gate lowered the held-out loss by 4.8% (95% interval 3.6% to 5.9%); for Late and Few no "
        "difference was shown; for 1 other a difference was seen that the warnings below put in "
        "doubt.");
    json_t *warning = json_array_get(json_object_get(study, "warnings"), 0);
    assert_non_null(strstr(json_string_value(warning), "Cross differs from its baseline, but not"));
    json_t *common = json_object_get(study, "common");
    assert_int_equal(json_integer_value(json_object_get(common, "variants")), 4);
    assert_int_equal(json_integer_value(json_object_get(common, "seeds")), 3);
    assert_int_equal(json_integer_value(json_object_get(common, "freedom")), 6);
    assert_float_equal(json_number_value(json_object_get(common, "sd")), 0.0119023807, 1e-9);
    assert_float_equal(json_number_value(json_object_get(common, "half")), 0.0237797088, 1e-9);
    for (int i = 0; i < 3; i++) { /* the second is not: 0.034 is more than 0.05 / 2 */
        json_t *v = json_array_get(json_object_get(study, "verdicts"), (size_t)i);
        assert_float_equal(json_number_value(json_object_get(v, "p")), p[i], 1e-9);
        assert_int_equal(json_is_true(json_object_get(v, "left")), i == 0);
    }
    json_decref(report);
    assert_int_equal(mkdir(scratch_path("together"), 0777), 0);
    assert_int_equal(weft_report_write(path, scratch_path("together")), WEFT_OK);
    char *md = file_read(scratch_path("together/report.md"), NULL);
    assert_non_null(strstr(md,
                           "Counted together by Holm's method, these are left: Gate against Plain. "
                           "Read with the standard deviation pooled over all 4 variants (0.0119, 6 "
                           "degrees of freedom;"));
    assert_non_null(strstr(md, "an interval is ±0.0238, and a difference is shown for Gate against "
                               "Plain, Cross against Plain."));
    free(md);
}

TEST(test_axes_have_round_numbers_in_one_unit) {
    expect_axis(0, 500, 6, "0 100 200 300 400 500");
    expect_axis(0, 1200, 6, "0 200 400 600 800 1000 1200");
    expect_axis(117000, 183000, 7, "120k 130k 140k 150k 160k 170k 180k");
    expect_axis(690000, 810000, 3, "700k 750k 800k");
    expect_axis(0, 2.2e6, 5, "0 0.5M 1.0M 1.5M 2.0M");
    expect_axis(1.38, 2.71, 7, "1.4 1.6 1.8 2.0 2.2 2.4 2.6");
    expect_axis(-0.21, 0.24, 5, MINUS "0.2 " MINUS "0.1 0 0.1 0.2");
    expect_axis(-0.0013, 0.0021, 4, MINUS "0.001 0 0.001 0.002");
    expect_axis(1.0e15, 4.1e15, 4, "1P 2P 3P 4P");
    expect_axis(3, 3, 5, "");
    expect_axis(NAN, 1, 5, "");
    expect_axis(0, INFINITY, 5, "");
    expect_axis(1e300, 1e300 * (1 + 1e-15), 5, "");
    weft_ticks t;
    double scale = 1e-12;
    for (int i = 0; i < 53; i++) {
        weft_axis_ticks(-scale, 2.3 * scale, 6, &t);
        assert_true(t.n >= 2 && t.n <= 7);
        scale *= 3.7;
    }
}

TEST(test_logarithmic_axes_have_powers_of_ten) {
    static const struct {
        double low, high;
        int most;
        const char *texts;
    } cases[] = {{0.8e-3, 1.2e-2, 6, "0.001 0.002 0.005 0.01"},
                 {0.9, 1.1e4, 6, "1 10 100 1000 10k"},
                 {0.9, 120, 8, "1 2 5 10 20 50 100"},
                 {2.1, 2.6, 6, "2.1 2.2 2.3 2.4 2.5 2.6"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_ticks t;
        char all[512] = "";
        weft_axis_log_ticks(cases[i].low, cases[i].high, cases[i].most, &t);
        for (int k = 0; k < t.n; k++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", k ? " " : "", t.text[k]);
        assert_string_equal(all, cases[i].texts);
    }
}

TEST(test_quantities_have_units_for_people) {
    assert_string_equal(weft_axis_scale(WEFT_UNIT_SECONDS, 90).name, "s");
    assert_string_equal(weft_axis_scale(WEFT_UNIT_SECONDS, 600).name, "min");
    assert_string_equal(weft_axis_scale(WEFT_UNIT_SECONDS, 9000).name, "h");
    assert_string_equal(weft_axis_scale(WEFT_UNIT_BYTES, 3e9).name, "GiB");
    assert_string_equal(weft_axis_scale(WEFT_UNIT_COUNT, 3e9).name, "");
    assert_float_equal(weft_axis_scale(WEFT_UNIT_SECONDS, 600).by, 60, 0);
}

RUN_TESTS(scratch_setup, scratch_teardown)

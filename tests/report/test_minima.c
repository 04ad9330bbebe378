/* Variants compared at their minima over learning rates, in the report: databases whose parabolas are worked out by
 * hand. tests/study/test_minimum.c has the numbers of the estimator. */
#include "report/report.h"
#include "report/sections.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A baseline and three variants against it, compared at their minima with an effect of 0.01. */
static sqlite3 *begin(const char *name) {
    sqlite3 *db = study_open(scratch_path("%s.db", name), name, "val_loss");
    study_sql(db,
              "UPDATE study SET config = config || '\nSTUDY_COMPARE=minimum\nSTUDY_EFFECT=0.01'");
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "gate", "Gate", 0, -1);
    study_variant(db, 2, "cross", "Cross", 0, -1);
    study_variant(db, 3, "wide", "Wide", 0, -1);
    return db;
}

/* Rates 1e-3, 2e-3 and 4e-3 with two seeds: the parabola least + 0.1 (log2(rate / 2e-3) - shift)², give or
 * take `noise`, which adds up to nothing at each rate. */
static void add_runs(sqlite3 *db, int variant, double least, double shift, double noise) {
    for (int i = 0; i < 6; i++) {
        int rate = i / 2, seed = i % 2;
        double score = least + 0.1 * pow(rate - 1 - shift, 2) +
                       noise * (rate == 1 ? -1 : 1) * (seed ? -1 : 1) * (variant % 2 ? -1 : 1);
        study_run(db, variant, 1e-3 * (1 << rate), seed + 1, score, "w");
    }
}

static char *sentence_of(const char *name, weft_report_data *d) {
    static char path[256];
    snprintf(path, sizeof path, "%s", scratch_path("%s.db", name));
    assert_int_equal(weft_report_read(path, d), WEFT_OK);
    return weft_report_sentence(d);
}

/* Gate's minimum of 2.95 is 1.7% below 3; Cross differs by 0.002, which is within 0.01; Wide's runs tell nothing. All
 * are better than Plain at 2e-3, where Gate is not at its best. */
TEST(test_minima_decide_by_the_smallest_effect) {
    static const char *const words[] = {"", "helps", "equivalent", "undecided"};
    sqlite3 *db = begin("three");
    add_runs(db, 0, 3, 0, 0.001);
    add_runs(db, 1, 2.95, 0.5, 0.001);
    add_runs(db, 2, 2.998, 0.1, 0.001);
    add_runs(db, 3, 2.99, 0, 0.03);
    study_sql(db, "INSERT INTO facts(run, name, value) SELECT run, 'decode_tokens_per_s_1',"
                  " CASE variant WHEN 1 THEN 400 ELSE 100 END FROM runs WHERE variant < 3");
    study_close(db);
    weft_report_data d;
    char *sentence = sentence_of("three", &d);
    for (int i = 0; i < 4; i++) {
        const weft_report_variant *s = &d.variants[i];
        double shift = i == 1 ? 0.5 : i == 2 ? 0.1 : 0;
        assert_true(fabs(s->minimum.rate - 2e-3 * pow(2, shift)) < 1e-12);
        assert_int_equal(s->minimum.edge, 0);
        if (i > 0) assert_string_equal(weft_comparison_word(&s->compared), words[i]);
        assert_int_equal(s->left, i == 1 || i == 2);
    }
    assert_true(fabs(d.variants[1].compared.mean + 0.05) < 1e-12);
    assert_int_equal(d.variants[1].compared.pairs, 6);
    char *gate = strstr(sentence, "Gate lowered the held-out loss by 1.7%");
    if (strncmp(sentence, "Cross is equivalent to the baseline, within 0.01; ", 50) != 0 || !gate ||
        !strstr(sentence, "; for Wide no difference was shown."))
        fail_msg("%s", sentence);
    free(sentence);
    weft_report_free(&d);
    char *folder = strdup(scratch_path("three"));
    assert_int_equal(weft_report_write(scratch_path("three.db"), folder), WEFT_OK);
    char *page = file_read(scratch_path("three/report.md"), NULL);
    assert_non_null(strstr(page, "**helps** Gate against Plain. The held-out loss is 2.9500 at its "
                                 "minimum, 0.0500 lower than the baseline's"));
    assert_non_null(
        strstr(page, "| Gate | 2.9500 | 0.00283 | 0.001 | 0.004 | between the rates |"));
    assert_null(strstr(page, "Student's t"));
    free(page);
    /* The parabola as a curve, and a ring at its minimum, in the page's data. */
    page = file_read(scratch_path("three/report.html"), NULL);
    assert_non_null(strstr(page, "\"least\":{"));
    assert_non_null(strstr(page, "\"fit\":[{"));
    assert_non_null(strstr(page, "r=\"9\" fill=\"none\""));
    /* Costs are of the minima. Against the cache, Plain's mark has half of the width of Gate's, which is four times as
     * fast, and Wide's, of unknown speed, the usual one. */
    assert_non_null(strstr(page, "The minimum over the learning rates. The dashed line"));
    assert_non_null(strstr(page, "100 to 400 tokens per second."));
    assert_non_null(strstr(page, "\"at\":[{\"x\":1024.0,\"y\":3.0}],\"join\":false,\"size\":0.9}"));
    assert_non_null(strstr(page, "\"at\":[{\"x\":896.0,\"y\":2.95}],\"join\":false,\"size\":1.8}"));
    assert_non_null(strstr(page, "r=\"4.5\""));
    free(page);
    free(folder);
}

/* With Wide's minimum at an edge nothing is said of it, though it is far below; and Cross is equivalent by itself,
 * but not with one more comparison of three. */
TEST(test_a_minimum_at_the_edge_is_no_answer) {
    sqlite3 *db = begin("edge");
    add_runs(db, 0, 3, 1.5, 0.001);
    add_runs(db, 1, 2.95, 0, 0.001);
    add_runs(db, 2, 3.2, 0, 0.001);
    add_runs(db, 3, 3.04, 0, 0.001);
    study_close(db);
    weft_report_data d;
    char *sentence = sentence_of("edge", &d);
    assert_int_equal(d.variants[0].minimum.edge, 1);
    /* Plain has 3.025 at 4e-3, and a better rate beyond it would make Gate's gain less. */
    assert_string_equal(weft_comparison_word(&d.variants[1].compared), "helps");
    assert_string_equal(weft_comparison_word(&d.variants[2].compared), "hurts");
    assert_null(strstr(sentence, "Gate"));
    assert_non_null(strstr(sentence, "Cross raised the held-out loss by 5.8%"));
    json_t *caveats = weft_report_caveats(&d);
    assert_string_equal(json_string_value(json_array_get(caveats, 0)),
                        "Plain got a learning rate at the edge of those tried: a better one may "
                        "lie beyond it.");
    json_decref(caveats);
    free(sentence);
    weft_report_free(&d);
}

static int setup(void **state) {
    (void)state;
    scratch_open();
    return 0;
}

RUN_TESTS(setup, scratch_teardown)

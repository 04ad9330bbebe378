/* STUDY_SWEEP: the points of a grid in order, draws that follow from the seed, what each point is compared
 * with, and what is refused. */
#include "study/variants.h"
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_config config(const char *sweep, const char *variants, int points, int seed) {
    weft_config c;
    weft_config_defaults(&c);
    snprintf(c.study_sweep, sizeof c.study_sweep, "%s", sweep);
    snprintf(c.study_variants, sizeof c.study_variants, "%s", variants);
    c.study_sweep_points = points;
    c.seed = seed;
    return c;
}

static weft_variants parse(const char *sweep, const char *variants, int points, int seed) {
    weft_config c = config(sweep, variants, points, seed);
    weft_variants s;
    expect_ok(weft_variants_parse(&c, "file", "alone", &s));
    return s;
}

static void expect_set(const weft_variant *v, int set, const char *key, const char *value) {
    assert_string_equal(v->sets[set].option->key, key);
    assert_string_equal(v->sets[set].value, value);
}

TEST(test_a_grid_is_every_combination) {
    static const char *const separators[] = {"×", "x", "*"};
    static const char *const names[] = {"0.1-8", "0.1-32", "0.3-8", "0.3-32"};
    for (size_t k = 0; k < sizeof separators / sizeof separators[0]; k++) {
        const char *text =
            format_text(" RA_MLA_MLP_CROSS_ALPHA=0.1,0.30  %s config_n_ffn=8,32 ", separators[k]);
        weft_variants s = parse(text, "", 0, 1);
        assert_int_equal(s.n, 4);
        for (int i = 0; i < 4; i++) {
            assert_string_equal(s.list[i].name, names[i]);
            assert_int_equal(s.list[i].n_sets, 2);
            expect_set(&s.list[i], 0, "RA_MLA_MLP_CROSS_ALPHA", i < 2 ? "0.1" : "0.3");
            expect_set(&s.list[i], 1, "N_FFN", i % 2 ? "32" : "8");
            assert_int_equal(s.list[i].baseline, i ? 0 : -1);
        }
        assert_string_equal(s.list[1].title, "RA_MLA_MLP_CROSS_ALPHA=0.1 N_FFN=32");
        weft_variants_free(&s);
    }
}

TEST(test_a_point_is_compared_with_the_same_point) {
    weft_variants s = parse("N_FFN=64,128,256", "a; b: ATTENTION=w2; c vs b: ATTENTION=mla", 0, 1);
    static const int baselines[] = {-1, 0, 0, 0, 1, 2, 3, 4, 5};
    assert_int_equal(s.n, 9);
    for (int i = 0; i < 9; i++)
        assert_int_equal(s.list[i].baseline, baselines[i]);
    assert_string_equal(s.list[4].name, "b-128");
    expect_set(&s.list[4], 0, "ATTENTION", "w2");
    expect_set(&s.list[4], 1, "N_FFN", "128");
    weft_variants_free(&s);
}

static double value_of(const weft_variant *s, int set) {
    return atof(s->sets[set].value);
}

TEST(test_draws_stay_in_their_range_and_follow_from_the_seed) {
    const char *text = "LEARNING_RATE=log(1e-4..1e-2) × N_FFN=64..512 × N_HEAD=2,4";
    weft_variants a = parse(text, "", 200, 1), b = parse(text, "", 200, 1),
                  c = parse(text, "", 200, 2);
    int low = 0, narrow = 0, same = 0, two = 0;
    assert_int_equal(a.n, 200);
    for (int i = 0; i < a.n; i++) {
        double rate = value_of(&a.list[i], 0), width = value_of(&a.list[i], 1);
        assert_true(rate >= 1e-4 && rate <= 1e-2);
        assert_true(width >= 64 && width <= 512 && width == floor(width));
        low += rate < 1e-3;
        narrow += width < 288;
        two += value_of(&a.list[i], 2) == 2.0;
        same += strcmp(a.list[i].name, c.list[i].name) == 0;
        assert_string_equal(a.list[i].name, b.list[i].name);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(a.list[i].name, a.list[k].name);
    }
    /* Half of them on either side of the middle: 5 standard deviations of 200 coins are 35. */
    assert_in_range(low, 65, 135);
    assert_in_range(narrow, 65, 135);
    assert_in_range(two, 65, 135);
    assert_true(same < 5);
    weft_variants_free(&a);
    weft_variants_free(&b);
    weft_variants_free(&c);
}

TEST(test_a_grid_may_be_drawn_from) {
    weft_variants some = parse("N_FFN=8,16,24,32 x N_HEAD=1,2,4", "", 5, 1);
    weft_variants all = parse("N_FFN=8,16,24,32 x N_HEAD=1,2,4", "", 50, 1);
    assert_int_equal(some.n, 5);
    assert_int_equal(all.n, 12);
    assert_string_equal(all.list[11].name, "32-4");
    weft_variants_free(&some);
    weft_variants_free(&all);
}

TEST(test_what_cannot_be_swept_is_refused) {
    static const struct {
        const char *sweep, *variants, *says;
    } cases[] = {
        {"N_FFN=64..512", "", "STUDY_SWEEP_POINTS"},
        {"N_FFN=64,064", "", "takes 64 twice"},
        {"NFFN=3", "", "did you mean"},
        {"N_FFN", "", "KEY=VALUE"},
        {"N_FFN=64,", "", "between commas"},
        {"N_FFN=64 N_HEAD=4", "", "between two options"},
        {"N_FFN=64 ×", "", "KEY=VALUE"},
        {"SEED=1,2", "", "whole study's"},
        {"ATTENTION=dot,w3", "", "none of"},
        {"N_FFN=5..2", "", "must go up"},
        {"N_FFN=-5..2", "", "within"},
        {"LEARNING_RATE=log(0..1)", "", "above 0"},
        {"N_FFN=1 × n_ffn=2", "", "there twice"},
        {"N_FFN=1,2", "a: N_FFN=3", "set twice"},
        {"N_FFN=1..300", "", "STUDY_SWEEP_POINTS"},
        {"N_LAYER=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 × "
         "N_HEAD=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
         "", "289 points"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_config c = config(cases[i].sweep, cases[i].variants, 0, 1);
        weft_variants s;
        if (weft_variants_parse(&c, "file", "alone", &s) != WEFT_EINPUT)
            fail_msg("'%s' is taken", cases[i].sweep);
        if (!strstr(weft_error_message(), cases[i].says) ||
            !strstr(weft_error_message(), "STUDY_SWEEP"))
            fail_msg("'%s': %s", cases[i].sweep, weft_error_message());
    }
    weft_config c = config("N_HEAD=1,2", "", 0, 1);
    weft_variants s;
    snprintf(c.study_sweep, sizeof c.study_sweep, "N_LAYER=1..2");
    c.study_sweep_points = 3;
    assert_int_equal(weft_variants_parse(&c, "file", "alone", &s), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "fewer than 3"));
}

TEST(test_plan_and_train_take_a_point_by_name) {
    SUCCEEDS("plan", "-o", "STUDY_SWEEP=N_FFN=64,128", "--variant", "128", "-o", "N_EMBD=32", "-o",
             "N_HEAD=2", "-o", "N_LAYER=1", "--json");
    FAILS(2, SAYS("'127'", "did you mean '128'"), "plan", "-o", "STUDY_SWEEP=N_FFN=64,128",
          "--variant", "127");
}

RUN_TESTS(NULL, NULL)

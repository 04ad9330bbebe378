/* Student's t and verdicts, against tests/vectors/statistics.json.gz, which
 * tests/reference/make_statistics_vectors.py makes by another way. */
#include "study/statistics.h"
#include "support/command.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PAIRS_MOST = 16 };

static json_t *vectors;

static int read_vectors(void **state) {
    (void)state;
    vectors = file_json("tests/vectors/statistics.json.gz");
    return 0;
}

static int free_vectors(void **state) {
    (void)state;
    json_decref(vectors);
    return 0;
}

static void expect_near(const char *what, double is, double expected, double tolerance) {
    double room = tolerance * fmax(fabs(expected), 1e-3);
    if (!(fabs(is - expected) <= room)) fail_msg("%s: %.17g, not %.17g", what, is, expected);
}

static int read_numbers(const json_t *list, double *out) {
    int n = (int)json_array_size(list);
    assert_in_range(n, 1, PAIRS_MOST);
    for (int i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(list, (size_t)i));
    return n;
}

TEST(test_t_quantiles_are_the_references) {
    size_t i;
    json_t *row;
    int seen = 0;
    json_array_foreach(json_object_get(vectors, "t_quantile"), i, row) {
        double p = json_number_value(json_array_get(row, 0));
        double freedom = json_number_value(json_array_get(row, 1));
        double t = json_number_value(json_array_get(row, 2));
        const char *what = format_text("t(%g, %g)", p, freedom);
        expect_near(what, weft_t_quantile(p, freedom), t, 1e-10);
        expect_near(what, weft_t_quantile(1 - p, freedom), -t, 1e-10);
        expect_near(what, weft_t_probability(t, freedom), p, 1e-12);
        seen++;
    }
    assert_true(seen >= 50);
}

TEST(test_t_at_its_ends) {
    assert_true(weft_t_quantile(0.5, 3) == 0);
    assert_true(weft_t_quantile(1, 3) == INFINITY && weft_t_quantile(0, 3) == -INFINITY);
    assert_true(isnan(weft_t_quantile(1.5, 3)) && isnan(weft_t_quantile(0.9, 0)));
    assert_true(isnan(weft_t_quantile(NAN, 3)) && isnan(weft_t_probability(NAN, 3)));
    /* Far out: the tail of one degree of freedom is Cauchy's, 1 / (pi t); many are almost the
     * normal's z, by (z^3 + z) / (4 n). */
    expect_near("tail", weft_t_probability(-1e8, 1), 1e-8 / acos(-1), 1e-8);
    double z = 1.959963984540054;
    expect_near("normal", weft_t_quantile(0.975, 1e5), z + (z * z * z + z) / 4e5, 1e-9);
}

TEST(test_comparisons_are_the_references) {
    size_t i;
    json_t *row;
    int words[3] = {0};
    json_array_foreach(json_object_get(vectors, "paired"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *verdict = json_string_value(json_object_get(row, "verdict"));
        double variant[PAIRS_MOST], baseline[PAIRS_MOST];
        int n = read_numbers(json_object_get(row, "step"), variant);
        assert_int_equal(read_numbers(json_object_get(row, "baseline"), baseline), n);
        bool higher = json_is_true(json_object_get(row, "higher_is_better"));
        weft_comparison c = weft_compare(variant, baseline, n, higher);
        assert_int_equal(c.pairs, n);
        expect_near(name, c.mean, real_of(row, "mean"), 1e-9);
        expect_near(name, c.sd, real_of(row, "sd"), 1e-9);
        expect_near(name, c.low, real_of(row, "low"), 1e-9);
        expect_near(name, c.high, real_of(row, "high"), 1e-9);
        expect_near(name, c.percent, real_of(row, "percent"), 1e-9);
        expect_near(name, c.variant - c.baseline, c.mean, 1e-9);
        assert_string_equal(weft_verdict_word(c.verdict), verdict);
        words[c.verdict]++;
    }
    assert_true(words[0] >= 2 && words[1] >= 2 && words[2] >= 2);
}

TEST(test_fewer_than_two_pairs_show_nothing) {
    const double variant[] = {1}, baseline[] = {2};
    weft_comparison one = weft_compare(variant, baseline, 1, false);
    assert_int_equal(one.verdict, WEFT_NO_DIFFERENCE);
    assert_true(one.mean == -1 && one.percent == -50);
    assert_true(isnan(one.low) && isnan(one.high) && isnan(one.sd));
    weft_comparison none = weft_compare(variant, baseline, 0, true);
    assert_int_equal(none.verdict, WEFT_NO_DIFFERENCE);
    assert_true(isnan(none.mean) && isnan(none.percent) && isnan(none.variant));
}

TEST(test_mean_and_spread) {
    const double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
    assert_true(weft_mean(values, 8) == 5);
    expect_near("sd", weft_sd(values, 8), sqrt(32.0 / 7), 1e-15);
    assert_true(isnan(weft_mean(values, 0)) && isnan(weft_sd(values, 1)));
    const double zero[] = {0, 0}, some[] = {1, 2};
    assert_true(isnan(weft_compare(some, zero, 2, false).percent));
}

/* Anscombe's first set (The American Statistician 27, 1973): the line 3.00 + 0.500 x, whose slope has the
 * standard error 0.1179. */
TEST(test_a_line_is_the_published_one) {
    const double x[] = {10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5};
    const double y[] = {8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68};
    weft_line line = weft_line_fit(x, y, 11);
    expect_near("at", line.at, 3.0001, 1e-4);
    expect_near("slope", line.slope, 0.5001, 1e-4);
    /* 2.26216 is Student's t for 9 degrees of freedom. */
    expect_near("low", line.low, 0.5001 - 2.26216 * 0.1179, 2e-4);
    expect_near("high", line.high, 0.5001 + 2.26216 * 0.1179, 2e-4);
    expect_near("spread", line.spread, 1.237, 1e-3);
    weft_line two = weft_line_fit(x, y, 2);
    expect_near("slope", two.slope, (8.04 - 6.95) / 2, 1e-12);
    assert_true(isnan(two.low) && isnan(two.spread));
    assert_true(isnan(weft_line_fit(x, y, 1).slope) && isnan(weft_line_fit(x, y, 0).slope));
}

/* The references are of SciPy's noncentral t (of two pairs: of its integral over the chi-squared). */
TEST(test_what_seeds_can_show_is_the_references) {
    static const struct {
        int pairs;
        double half, four_fifths;
    } known[] = {{2, 6.078789, 11.549888}, {3, 2.094933, 3.264044}, {4, 1.434135, 2.127949},
                 {5, 1.153158, 1.681997},  {8, 0.803774, 1.156035}, {20, 0.461659, 0.660442}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        expect_near("half of the time", weft_power_difference(known[i].pairs, 0.5), known[i].half,
                    2e-6);
        expect_near("80% power", weft_power_difference(known[i].pairs, 0.8), known[i].four_fifths,
                    2e-6);
        expect_near("no difference", weft_power(0, known[i].pairs), 0.05, 1e-6);
    }
    assert_true(isnan(weft_power(1, 1)));
    char text[400];
    weft_power_text(3, 0.03, text, sizeof text);
    assert_string_equal(text,
                        "With 3 seeds, a true difference of 0.098 would be found 4 times in 5, "
                        "assuming that differences have a standard deviation of 0.03 from "
                        "seed to seed.");
    weft_power_text(1, 0.03, text, sizeof text);
    assert_non_null(strstr(text, "no interval"));
}

/* Differences 1.5 and 0.5: t(0.975, n - 1) √0.5 / √n is 1.125 for n = 4 and 0.878 for n = 5. A percentage
 * is of the baseline's size, so that it has the difference's sign. */
TEST(test_two_pairs_tell_how_many_are_needed) {
    weft_comparison c =
        weft_compare((const double[]){-1, -1.5}, (const double[]){-2.5, -2}, 2, false);
    assert_true(fabs(c.mean - 1) < 1e-12);
    assert_true(fabs(c.percent - 100 / 2.25) < 1e-9);
    assert_int_equal(weft_seeds_needed(&c), 5);
}

RUN_TESTS(read_vectors, free_vectors)

/* Fitted minima and their differences, against tests/vectors/minimum.json.gz, which
 * tests/reference/make_minimum_vectors.py makes by other means; and how often the intervals hold what they promise. */
#include "study/statistics.h"

#include "base/random.h"
#include "support/command.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RUNS_MOST = 64, STUDIES = 200 };

static int read_runs(const json_t *list, weft_rate_run *out) {
    int n = (int)json_array_size(list);
    assert_in_range(n, 1, RUNS_MOST);
    for (int i = 0; i < n; i++) {
        const json_t *row = json_array_get(list, (size_t)i);
        out[i] = (weft_rate_run){json_number_value(json_array_get(row, 0)),
                                 json_number_value(json_array_get(row, 1)),
                                 json_integer_value(json_array_get(row, 2))};
    }
    return n;
}

static void expect_near(const char *name, double is, double expected, double room) {
    if (!(fabs(is - expected) <= room)) fail_msg("%s: %.9g, not %.9g", name, is, expected);
}

TEST(test_minima_and_intervals_are_the_references) {
    json_t *vectors = file_json("tests/vectors/minimum.json.gz"), *row;
    size_t i;
    int seen = 0;
    json_array_foreach(json_object_get(vectors, "cases"), i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        weft_rate_run sides[2][RUNS_MOST];
        int n[2];
        for (int k = 0; k < 2; k++) {
            const json_t *least = json_array_get(json_object_get(row, "minima"), (size_t)k);
            n[k] = read_runs(json_object_get(row, k ? "baseline" : "variant"), sides[k]);
            weft_minimum m = weft_minimum_fit(sides[k], n[k], false);
            expect_near(name, m.rate, json_number_value(json_array_get(least, 0)), 1e-9);
            expect_near(name, m.score, json_number_value(json_array_get(least, 1)), 1e-9);
            expect_near(name, weft_minimum_at(&m, m.rate), m.score, 1e-12);
            assert_int_equal(m.edge, 0);
            assert_true(isnan(m.beyond));
        }
        double effect = real_of(row, "effect"), low = real_of(row, "low"),
               high = real_of(row, "high");
        weft_comparison c;
        expect_ok(weft_compare_minima(sides[0], n[0], sides[1], n[1], effect, false, &c));
        expect_near(name, c.mean, real_of(row, "difference"), 1e-9);
        /* Drawn residuals are not normal, and a parabola's minimum is no straight line. */
        expect_near(name, c.low, low, 0.1 * (high - low) / 2);
        expect_near(name, c.high, high, 0.1 * (high - low) / 2);
        assert_string_equal(weft_comparison_word(&c),
                            json_string_value(json_object_get(row, "verdict")));
        /* A metric is the same the other way round. */
        weft_comparison d;
        for (int k = 0; k < 2; k++)
            for (int r = 0; r < n[k]; r++)
                sides[k][r].score = -sides[k][r].score;
        weft_compare_minima(sides[0], n[0], sides[1], n[1], effect, true, &d);
        assert_true(d.mean == -c.mean && d.low == -c.high && d.high == -c.low && d.p == c.p);
        assert_int_equal(d.verdict, c.verdict);
        seen++;
    }
    assert_int_equal(seen, 6);
    json_decref(vectors);
}

/* Three rates, two seeds, minima that lie apart and differ by 0.02; a seed moves both variants by much more than
 * chance does. Of 200 intervals 190 should hold the difference, by chance 181 to 199. */
TEST(test_intervals_cover_what_they_promise) {
    const double rates[] = {1e-3, 2e-3, 4e-3}, places[] = {1.6e-3, 2.3e-3};
    int held = 0, beyond = 0;
    for (uint32_t study = 0; study < STUDIES; study++) {
        weft_rate_run sides[2][6];
        double noise[14];
        weft_random_normal(7, study, weft_random_site("test.minimum"), 0, 14, noise);
        for (int i = 0; i < 12; i++) {
            int side = i / 6, seed = i % 2;
            double rate = rates[i % 6 / 2], u = log(rate / places[side]);
            sides[side][i % 6] = (weft_rate_run){
                rate, 3 - 0.02 * side + 0.05 * u * u + 0.005 * noise[i] + 0.05 * noise[12 + seed],
                seed};
        }
        weft_comparison c;
        weft_compare_minima(sides[0], 6, sides[1], 6, 0.02, false, &c);
        assert_int_equal(c.pairs, 6);
        held += c.low <= 0.02 && c.high >= 0.02;
        /* It is 0.02, so its interval is beyond 0.02 in one of 40 studies; p says the same as the intervals. */
        beyond += c.verdict == WEFT_WORSE;
        assert_int_equal(c.verdict != WEFT_NO_DIFFERENCE, weft_comparison_p(&c) <= 0.05);
    }
    print_message("%d of %d intervals hold the difference\n", held, STUDIES);
    assert_in_range(held, 181, 199);
    assert_true(beyond <= 14);
}

static weft_minimum fit(const double *rates, const double *scores, int n) {
    weft_rate_run runs[RUNS_MOST];
    for (int i = 0; i < n; i++)
        runs[i] = (weft_rate_run){rates[i], scores[i], 1};
    return weft_minimum_fit(runs, n, false);
}

TEST(test_a_minimum_at_the_edge_asks_for_a_rate_beyond) {
    const double rates[] = {1e-3, 2e-3, 4e-3}, close[] = {1e-3, 1.1e-3, 1.2e-3},
                 far[] = {1e-3, 1e-2, 1e-1};
    weft_minimum m = fit(rates, (const double[]){3.2, 3.1, 3.0}, 3);
    assert_int_equal(m.edge, 1);
    assert_true(m.beyond == 8e-3);
    m = fit(rates, (const double[]){3.0, 3.1, 3.3}, 3);
    assert_int_equal(m.edge, -1);
    assert_true(m.beyond == 5e-4);
    /* By √2 at least and by 2 at most. */
    assert_true(fit(close, (const double[]){3.2, 3.1, 3.0}, 3).beyond == 1.7e-3);
    assert_true(fit(far, (const double[]){3.2, 3.1, 3.0}, 3).beyond == 2e-1);
    /* In the middle there is nothing to ask for, nor between the last one and one that diverged. */
    assert_int_equal(fit(rates, (const double[]){3.2, 3.1, 3.2}, 3).edge, 0);
    const double four[] = {1e-3, 2e-3, 4e-3, 8e-3}, near[] = {1e-3, 2e-3, 4e-3, 5e-3};
    m = fit(four, (const double[]){3.2, 3.1, 3.0, NAN}, 4);
    assert_int_equal(m.edge, 1);
    assert_true(m.beyond == 5.66e-3);
    assert_true(isnan(fit(near, (const double[]){3.2, 3.1, 3.0, NAN}, 4).beyond));
    /* Two rates are no parabola; where the third diverged, a lower one is. */
    m = fit(rates, (const double[]){3.2, 3.1, NAN}, 3);
    assert_true(isnan(m.rate) && m.beyond == 5e-4);
    assert_true(isnan(fit(rates, (const double[]){3.2, 3.1, 3.0}, 2).beyond));
}

TEST(test_too_few_runs_have_no_interval) {
    weft_rate_run runs[] = {{1e-3, 3.1, 1}, {2e-3, 3.0, 1}, {4e-3, 3.1, 1}};
    weft_comparison c;
    expect_ok(weft_compare_minima(runs, 3, runs, 3, 0, false, &c));
    assert_int_equal(c.pairs, 1);
    assert_true(c.mean == 0 && isnan(c.low) && isnan(weft_comparison_p(&c)));
    expect_ok(weft_compare_minima(runs, 2, runs, 3, 0, false, &c));
    assert_int_equal(c.pairs, 0);
    assert_string_equal(weft_comparison_word(&c), "undecided");
}

RUN_TESTS(NULL, NULL)

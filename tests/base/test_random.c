/* Philox against the published known answers, and the streams built on it. */
#include "base/random.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST(test_philox_gives_the_known_answers) {
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint64_t key = (uint64_t)known[i].key[1] << 32 | known[i].key[0];
        const uint32_t *c = known[i].counter;
        weft_random4 r = weft_philox(key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(r.word, known[i].word, sizeof r.word);
    }
}

TEST(test_a_word_is_a_pure_function_of_its_place) {
    for (uint64_t i = 0; i < 40; i++) {
        weft_random4 block = weft_philox(77, (uint32_t)(i / 4), 3, 2, 5);
        assert_int_equal(weft_random_word(77, 2, 3, 5, i), block.word[i % 4]);
    }
    uint32_t here = weft_random_word(77, 2, 3, 5, 9);
    assert_int_not_equal(here, weft_random_word(78, 2, 3, 5, 9));
    assert_int_not_equal(here, weft_random_word(77 + (1ull << 32), 2, 3, 5, 9));
    assert_int_not_equal(here, weft_random_word(77, 1, 3, 5, 9));
    assert_int_not_equal(here, weft_random_word(77, 2, 4, 5, 9));
    assert_int_not_equal(here, weft_random_word(77, 2, 3, 6, 9));
    assert_int_not_equal(here, weft_random_word(77, 2, 3, 5, 13));
}

TEST(test_names_hash_as_fnv_1a) {
    assert_int_equal(weft_random_site(""), 0x811c9dc5u);
    assert_int_equal(weft_random_site("a"), 0xe40c292cu);
    assert_int_equal(weft_random_site("foobar"), 0xbf9cf968u);
    /* Bytes above 127 are unsigned. */
    assert_int_equal(weft_random_site("\xff"), (0x811c9dc5u ^ 0xffu) * 16777619u);
}

TEST(test_unit_numbers_stay_below_one_and_fit_a_float) {
    assert_true(weft_random_unit(0) == 0);
    assert_true(weft_random_unit(0xffffffffu) == 1 - 0x1p-24);
    assert_true((double)(float)weft_random_unit(0xffffffffu) == weft_random_unit(0xffffffffu));
    assert_true((double)(float)weft_random_unit(0x12345678u) == weft_random_unit(0x12345678u));
}

/* Mean and variance of n draws lie within 5 deviations of what they should be. */
static void check_moments(const double *x, int n, double mean, double variance, double kurtosis) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    for (int i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    assert_true(fabs(sum / n - mean) < 5 * sqrt(variance / n));
    assert_true(fabs(squares / n - variance) < 5 * variance * sqrt((kurtosis - 1) / n));
}

TEST(test_streams_have_the_moments_of_their_distribution) {
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x);
    for (uint32_t site = 0; site < 4; site++) {
        weft_random_uniform(1, 0, site, 0, N, x);
        check_moments(x, N, 0.5, 1.0 / 12, 1.8);
        for (int i = 0; i < N; i++)
            assert_true(x[i] >= 0 && x[i] < 1);
        weft_random_normal(1, 0, site, 0, N, x);
        check_moments(x, N, 0, 1, 3);
        double next = 0;
        for (int i = 1; i < N; i++)
            next += x[i] * x[i - 1];
        assert_true(fabs(next / N) < 5 / sqrt(N));
    }
    free(x);
}

TEST(test_a_longer_stream_begins_as_the_shorter) {
    double a[101], b[64];
    weft_random_normal(9, 4, 2, 0, 101, a);
    weft_random_normal(9, 4, 2, 0, 64, b);
    assert_memory_equal(a, b, sizeof b);
    weft_random_uniform(9, 4, 2, 0, 101, a);
    weft_random_uniform(9, 4, 2, 0, 64, b);
    assert_memory_equal(a, b, sizeof b);
}

RUN_TESTS(NULL, NULL)

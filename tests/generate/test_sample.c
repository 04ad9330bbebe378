/* Sampling: each rule leaves out what it says, the frequencies are the probabilities, and a draw
 * depends on nothing but its arguments. */
#include "generate/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 6 };

/* Probabilities 0.4, 0.25, 0.15, 0.1, 0.07, 0.03, in no order. */
static const double probability[VOCAB] = {0.1, 0.4, 0.03, 0.25, 0.07, 0.15};

static void fill_logits(float *logits) {
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(log(probability[i]) + 3);
}

static void count_draws(const weft_sampling *s, int draws, int *count) {
    float logits[VOCAB];
    fill_logits(logits);
    void *scratch = malloc(weft_sample_room(VOCAB));
    memset(count, 0, VOCAB * sizeof *count);
    for (int i = 0; i < draws; i++) {
        weft_sampled out;
        weft_sample(logits, VOCAB, s, (uint32_t)i, NULL, 0, scratch, &out);
        assert_true(fabs((double)out.logprob - log(probability[out.token])) < 1e-5);
        count[out.token]++;
    }
    free(scratch);
}

static void test_frequencies_are_the_probabilities(void **state) {
    (void)state;
    enum { DRAWS = 40000 };
    int count[VOCAB];
    weft_sampling s = weft_sampling_default();
    count_draws(&s, DRAWS, count);
    for (int i = 0; i < VOCAB; i++) {
        double sigma = sqrt(probability[i] * (1 - probability[i]) * DRAWS);
        assert_true(fabs(count[i] - probability[i] * DRAWS) < 4.5 * sigma);
    }
    s.temperature = 0.5; /* probabilities go with their squares */
    double squares = 0;
    for (int i = 0; i < VOCAB; i++)
        squares += probability[i] * probability[i];
    count_draws(&s, DRAWS, count);
    for (int i = 0; i < VOCAB; i++) {
        double p = probability[i] * probability[i] / squares, sigma = sqrt(p * (1 - p) * DRAWS);
        assert_true(fabs(count[i] - p * DRAWS) < 4.5 * sigma);
    }
}

static void assert_left(const weft_sampling *s, const bool *left) {
    int count[VOCAB];
    count_draws(s, 4000, count);
    for (int i = 0; i < VOCAB; i++)
        assert_int_equal(count[i] > 0, left[i]);
}

static void test_each_rule_leaves_out_what_it_says(void **state) {
    (void)state;
    weft_sampling s = weft_sampling_default();
    s.top_k = 2;
    assert_left(&s, (bool[]){false, true, false, true, false, false});
    s = weft_sampling_default();
    s.top_p = 0.6; /* 0.4 is not enough, 0.65 is */
    assert_left(&s, (bool[]){false, true, false, true, false, false});
    s = weft_sampling_default();
    s.min_p = 0.3; /* at least 0.12 */
    assert_left(&s, (bool[]){false, true, false, true, false, true});
    s = weft_sampling_default();
    s.temperature = 0;
    assert_left(&s, (bool[]){false, true, false, false, false, false});
}

/* What is left shares the whole in the proportion that it had. */
static void test_what_is_left_keeps_its_proportions(void **state) {
    (void)state;
    enum { DRAWS = 40000 };
    static const struct {
        int64_t top_k;
        double top_p, min_p, left; /* left: the sum of the kept ones' probabilities */
        int32_t kept[3];
    } cases[] = {
        {0, 0.6, 0, 0.65, {1, 3, -1}}, {3, 1, 0, 0.8, {1, 3, 5}}, {0, 1, 0.3, 0.8, {1, 3, 5}}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        int count[VOCAB];
        weft_sampling s = weft_sampling_default();
        s.top_k = cases[k].top_k;
        s.top_p = cases[k].top_p;
        s.min_p = cases[k].min_p;
        count_draws(&s, DRAWS, count);
        for (int i = 0; i < 3 && cases[k].kept[i] >= 0; i++) {
            double p = probability[cases[k].kept[i]] / cases[k].left;
            double sigma = sqrt(p * (1 - p) * DRAWS), got = count[cases[k].kept[i]];
            if (fabs(got - p * DRAWS) > 4.5 * sigma)
                fail_msg("case %d: token %d was drawn %g times, not about %g", (int)k,
                         (int)cases[k].kept[i], got, p * DRAWS);
        }
    }
}

/* Four tokens with a quarter each: two of them are a half, and no third is needed. */
static void test_top_p_stops_where_it_is_reached(void **state) {
    (void)state;
    float logits[VOCAB] = {-1e4f, 0, 0, -1e4f, 0, 0};
    int count[VOCAB] = {0};
    void *scratch = malloc(weft_sample_room(VOCAB));
    weft_sampling s = weft_sampling_default();
    s.top_p = 0.5;
    for (uint32_t i = 0; i < 400; i++) {
        weft_sampled out;
        weft_sample(logits, VOCAB, &s, i, NULL, 0, scratch, &out);
        count[out.token]++;
    }
    for (int i = 0; i < VOCAB; i++)
        assert_int_equal(count[i] > 0, i == 1 || i == 2);
    free(scratch);
}

/* In their order: top-k 3 leaves 0.4, 0.25, 0.15; top-p is of their sum, 0.8; min-p of the likeliest. */
static void test_rules_act_one_after_the_other(void **state) {
    (void)state;
    weft_sampling s = weft_sampling_default();
    s.top_k = 3;
    s.top_p = 0.8; /* 0.64 of 0.8: the first two are enough; of all, the third would be needed */
    assert_left(&s, (bool[]){false, true, false, true, false, false});
    s.top_p = 0.85;
    assert_left(&s, (bool[]){false, true, false, true, false, true});
    s.min_p = 0.5; /* at least 0.2 */
    assert_left(&s, (bool[]){false, true, false, true, false, false});
    s.temperature = 0.5; /* squares: 0.0625 is less than half of 0.16 */
    assert_left(&s, (bool[]){false, true, false, false, false, false});
}

/* What is not a number is not a token: the caller sees it by the logprob. */
static void test_a_logit_that_is_no_number_shows(void **state) {
    (void)state;
    float logits[VOCAB] = {1, 2, NAN, 0, 0, 0};
    void *scratch = malloc(weft_sample_room(VOCAB));
    for (int way = 0; way < 8; way++) {
        weft_sampling s = weft_sampling_default();
        weft_sampled out;
        s.temperature = way & 1;
        s.top_k = way & 2;
        s.top_p = way & 4 ? 0.5 : 1;
        weft_sample(logits, VOCAB, &s, 0, NULL, 0, scratch, &out);
        assert_true(isnan(out.logprob));
        assert_in_range(out.token, 0, VOCAB - 1);
    }
    free(scratch);
}

static void test_the_penalty_is_for_tokens_that_were_there(void **state) {
    (void)state;
    float logits[VOCAB] = {2, 1.9f, -1, 0, 0, 0};
    int32_t seen[] = {0, 0, 5};
    void *scratch = malloc(weft_sample_room(VOCAB));
    weft_sampling s = weft_sampling_default();
    weft_sampled out;
    s.temperature = 0;
    weft_sample(logits, VOCAB, &s, 0, seen, 3, scratch, &out);
    assert_int_equal(out.token, 0);
    s.repetition_penalty = 1.2; /* 2 / 1.2 < 1.9; said twice it counts once */
    weft_sample(logits, VOCAB, &s, 0, seen, 3, scratch, &out);
    assert_int_equal(out.token, 1);
    s.repetition_penalty = 1.04;
    weft_sample(logits, VOCAB, &s, 0, seen, 3, scratch, &out);
    assert_int_equal(out.token, 0);
    /* Below 0 dividing would make it likelier: -1 * 1.2 < -1.1, -1 / 1.2 is not. */
    float low[VOCAB] = {-1, -1.1f, -9, -9, -9, -9};
    s.repetition_penalty = 1.2;
    weft_sample(low, VOCAB, &s, 0, seen, 3, scratch, &out);
    assert_int_equal(out.token, 1);
    free(scratch);
}

static void test_the_likeliest_are_reported_in_order(void **state) {
    (void)state;
    float logits[VOCAB];
    fill_logits(logits);
    void *scratch = malloc(weft_sample_room(VOCAB));
    weft_sampling s = weft_sampling_default();
    weft_sampled out;
    s.top_logprobs = 4;
    weft_sample(logits, VOCAB, &s, 7, NULL, 0, scratch, &out);
    const int32_t order[] = {1, 3, 5, 0};
    assert_int_equal(out.n_top, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top[i], order[i]);
        assert_true(fabs((double)out.top_logprob[i] - log(probability[order[i]])) < 1e-5);
    }
    free(scratch);
}

static void test_seeds_samples_and_numbers_differ_and_repeat(void **state) {
    (void)state;
    enum { DRAWS = 64 };
    float logits[VOCAB];
    fill_logits(logits);
    void *scratch = malloc(weft_sample_room(VOCAB));
    int32_t drawn[4][DRAWS];
    for (int run = 0; run < 4; run++) {
        weft_sampling s = weft_sampling_default();
        s.seed = run == 2 ? 8 : 7;
        s.sample = run == 3;
        for (int i = 0; i < DRAWS; i++) {
            weft_sampled out;
            weft_sample(logits, VOCAB, &s, (uint32_t)i, NULL, 0, scratch, &out);
            drawn[run][i] = out.token;
        }
    }
    assert_memory_equal(drawn[0], drawn[1], sizeof drawn[0]);
    assert_memory_not_equal(drawn[0], drawn[2], sizeof drawn[0]);
    assert_memory_not_equal(drawn[0], drawn[3], sizeof drawn[0]);
    free(scratch);
}

static void test_parameters_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    weft_sampling s = weft_sampling_default();
    assert_int_equal(weft_sampling_check(&s), WEFT_OK);
    s.top_p = 1.5;
    assert_int_equal(weft_sampling_check(&s), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "top-p"));
    s = weft_sampling_default();
    s.temperature = NAN;
    assert_int_equal(weft_sampling_check(&s), WEFT_EINPUT);
}

/* 2^-39 of the likeliest's probability, which is the least that a weight tells, and what rounds to it. The
 * sum of all bits is that of the same arithmetic in another language. */
static void test_weights_are_the_probabilities(void **state) {
    (void)state;
    static const double temperatures[] = {1, 0.7, 100, 1e-3, 1e-320};
    uint64_t hash = 0;
    for (size_t k = 0; k < sizeof temperatures / sizeof *temperatures; k++) {
        weft_sampling s = weft_sampling_default();
        s.temperature = temperatures[k];
        double scale = weft_sampling_draw(&s, 0, NULL, 0).scale;
        for (int i = 0; i < 20000; i++) {
            float logit = 3 - (float)i / 512;
            double want = exp(((double)logit - 3) / s.temperature) * 0x1p39;
            uint64_t got = weft_draw_weight(logit, 3, scale);
            if (!(fabs((double)got - want) <= 0.75))
                fail_msg("%g at %g weighs %.0f, not %.2f", (double)logit, s.temperature,
                         (double)got, want);
            hash = hash * 31 + got;
        }
        assert_int_equal(weft_draw_weight(3, 3, scale), WEFT_DRAW_ONE);
        assert_int_equal(weft_draw_weight(-INFINITY, 3, scale), 0);
        assert_int_equal(weft_draw_weight(NAN, 3, scale), 0);
    }
    assert_true(hash == UINT64_C(0x5a7785989979333e));
}

static void test_what_top_p_needs_is_rounded_up(void **state) {
    (void)state;
    assert_int_equal(weft_draw_needed(10, 0), 1);
    assert_int_equal(weft_draw_needed(10, 0.5), 5);
    assert_int_equal(weft_draw_needed(10, 0.51), 6);
    assert_int_equal(weft_draw_needed(10, 1), 10);
    assert_int_equal(weft_draw_needed(UINT64_C(1) << 63, 1), UINT64_C(1) << 63);
    assert_int_equal(weft_draw_needed(UINT64_C(1) << 53, 1 - 0x1p-53), (UINT64_C(1) << 53) - 1);
}

/* Logits of a kind: spread, few values, some or all but one -inf, all equal, rising, falling. */
static float logit_of(int kind, int64_t i, int64_t vocab) {
    double u = weft_random_unit(weft_random_word(9, (uint32_t)kind, 0, 1, (uint64_t)i));
    switch (kind) {
    case 0:
        return (float)(20 * u * u - 5);
    case 1:
        return (float)(int)(5 * u);
    case 2:
        return u < 0.5 ? -INFINITY : (float)(4 * u);
    case 3:
        return i == vocab / 2 ? -7 : -INFINITY;
    case 4:
        return 2.5f;
    case 5:
        return (float)i * 1e-3f;
    default:
        return (float)-i * 10;
    }
}

enum { LOGIT_KINDS = 7 };

typedef struct {
    uint64_t weight;
    int64_t token;
} weighed;

static int heavier_first(const void *a, const void *b) {
    const weighed *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

/* The rules as core/draw.h tells them, over a list in its order. */
static int64_t draw_plainly(const float *logits, int64_t vocab, const weft_draw *d, weighed *list) {
    float most = -INFINITY;
    for (int64_t i = 0; i < vocab; i++)
        most = fmaxf(most, logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        list[i] = (weighed){weft_draw_weight(logits[i], most, d->scale), i};
    bool ordered = d->top_k || d->top_p < 1 || d->least;
    if (ordered) qsort(list, (size_t)vocab, sizeof *list, heavier_first);
    int64_t n = d->top_k && d->top_k < vocab ? d->top_k : vocab, kept = 0;
    uint64_t total = 0, left = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        total += list[i].weight;
    uint64_t needed = d->top_p < 1 ? weft_draw_needed(total, d->top_p) : total;
    for (; kept < n && left < needed && list[kept].weight >= d->least; kept++)
        left += list[kept].weight;
    uint64_t target = (uint64_t)((unsigned __int128)d->random * left >> 64);
    for (int64_t i = 0; i < kept; i++)
        if ((sum += list[i].weight) > target) return list[i].token;
    return -1;
}

static void test_a_draw_is_that_of_the_rules(void **state) {
    (void)state;
    enum { MOST = 200000 };
    static const int64_t vocabs[] = {1, 2, 7, 300, 4096, 50257, MOST};
    static const struct {
        double temperature, top_p, min_p;
        int64_t top_k;
    } rules[] = {{1, 1, 0, 0},      {1e-9, 1, 0, 0}, {100, 1, 0, 0}, {1, 1, 0, 1},
                 {1, 1, 0, 40},     {2, 1, 0, 1000}, {1, 0, 0, 0},   {1, 0.9, 0, 0},
                 {100, 0.5, 0, 0},  {1, 1, 0.05, 0}, {1, 1, 1, 0},   {0.7, 0.95, 0.01, 50},
                 {1, 1, 0, 1 << 30}};
    float *logits = malloc(MOST * sizeof *logits);
    weighed *list = malloc(MOST * sizeof *list);
    void *scratch = malloc(weft_sample_room(MOST));
    for (int v = 0; v < (int)(sizeof vocabs / sizeof *vocabs); v++)
        for (int kind = 0; kind < LOGIT_KINDS; kind++)
            for (int r = 0; r < (int)(sizeof rules / sizeof *rules); r++) {
                int64_t vocab = vocabs[v];
                if (vocab > 4096 && (kind + r) % 7) continue; /* for time's sake */
                if (vocab == 2 && kind == 2) continue;        /* none but -inf */
                for (int64_t i = 0; i < vocab; i++)
                    logits[i] = logit_of(kind, i, vocab);
                weft_sampling s = weft_sampling_default();
                s.temperature = rules[r].temperature;
                s.top_p = rules[r].top_p;
                s.min_p = rules[r].min_p;
                s.top_k = rules[r].top_k;
                for (uint32_t number = 0; number < (vocab > 4096 ? 1 : 8); number++) {
                    weft_draw d = weft_sampling_draw(&s, number, NULL, 0);
                    int64_t want = draw_plainly(logits, vocab, &d, list);
                    int64_t got = weft_draw_token(logits, vocab, &d, scratch);
                    if (got != want)
                        fail_msg("%lld logits of kind %d, rule %d: %lld, not %lld",
                                 (long long)vocab, kind, r, (long long)got, (long long)want);
                }
            }
    free(logits);
    free(list);
    free(scratch);
}

/* Sixteen tokens of one weight: the k-th sixteenth of all random numbers begins with a sum that is reached and
 * not exceeded. */
static void test_a_sum_that_is_just_reached_is_not_enough(void **state) {
    (void)state;
    enum { EQUAL = 16 };
    float logits[EQUAL] = {0};
    void *scratch = malloc(weft_sample_room(EQUAL));
    weft_sampling s = weft_sampling_default();
    s.top_k = EQUAL;
    weft_draw d = weft_sampling_draw(&s, 0, NULL, 0);
    for (uint64_t k = 0; k < EQUAL; k++) {
        d.random = k << 60;
        assert_int_equal(weft_draw_token(logits, EQUAL, &d, scratch), (int)k);
    }
    free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies_are_the_probabilities),
        cmocka_unit_test(test_each_rule_leaves_out_what_it_says),
        cmocka_unit_test(test_what_is_left_keeps_its_proportions),
        cmocka_unit_test(test_top_p_stops_where_it_is_reached),
        cmocka_unit_test(test_rules_act_one_after_the_other),
        cmocka_unit_test(test_a_logit_that_is_no_number_shows),
        cmocka_unit_test(test_the_penalty_is_for_tokens_that_were_there),
        cmocka_unit_test(test_the_likeliest_are_reported_in_order),
        cmocka_unit_test(test_seeds_samples_and_numbers_differ_and_repeat),
        cmocka_unit_test(test_parameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(test_weights_are_the_probabilities),
        cmocka_unit_test(test_what_top_p_needs_is_rounded_up),
        cmocka_unit_test(test_a_draw_is_that_of_the_rules),
        cmocka_unit_test(test_a_sum_that_is_just_reached_is_not_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Steps of one launch (core/decoding.h) on the GPU: the logits of the CPU's decoding with the same types of
 * weights and caches, and the bits that a sequence has alone, however its rows are put together. */
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "support/sampling.h"
#include "support/step_forms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TIME = 300, SLOTS = 70, LONG = 2000 };

static void need_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static int64_t count_different(const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += memcmp(a + i, b + i, sizeof *a) != 0;
    return count;
}

/* The text in slots `first` and behind it, once for each number of rows at a time, has the bits of `want`. */
static void expect_the_same(const step_form *f, step_decoding *d, int32_t first,
                            const int32_t *tokens, int64_t time, const float *want,
                            const int64_t *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float *got = step_decode(d, first + (int32_t)i, tokens, time, rows[i]);
        int64_t off = count_different(want, got, time * d->vocab);
        if (off)
            fail_msg("%s: %lld numbers differ in runs of %lld rows", f->name, (long long)off,
                     (long long)rows[i]);
        free(got);
    }
}

static void test_a_step_equals_the_cpus(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding cpu, gpu;
    step_case_open(&c, f, TIME);
    step_decoding_open(&cpu, &c, weft_cpu_backend(), 1, TIME);
    step_decoding_open(&gpu, &c, weft_cuda_backend(), 1, TIME);
    assert_true(weft_decoder_samples(gpu.decoder));
    float *want = step_decode(&cpu, 0, c.tokens, TIME, 1),
          *got = step_decode(&gpu, 0, c.tokens, TIME, 1);
    double worst = 0, most = 0, squares = 0;
    for (int64_t i = 0; i < TIME * cpu.vocab; i++) {
        double off = fabs((double)got[i] - (double)want[i]);
        if (!(off <= worst)) worst = off;
        squares += off * off;
        most = fmax(most, fabs((double)want[i]));
    }
    printf("%s: largest difference %.3g, in the mean %.3g, of logits up to %.3g\n", f->name, worst,
           sqrt(squares / (double)(TIME * cpu.vocab)), most);
    if (!(worst <= 2e-2 * fmax(1, most))) fail_msg("%s: %.3g off", f->name, worst);
    free(want);
    free(got);
    step_decoding_close(&cpu);
    step_decoding_close(&gpu);
    free(c.tokens);
}

static void test_a_sequence_has_the_bits_that_it_has_alone(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding one, all;
    step_case_open(&c, f, TIME);
    step_decoding_open(&one, &c, weft_cuda_backend(), 1, TIME);
    step_decoding_open(&all, &c, weft_cuda_backend(), SLOTS, TIME);
    float *want = step_decode(&one, 0, c.tokens, TIME, 1);
    static const int64_t chunks[] = {7, 16, 17, 64};
    expect_the_same(f, &all, 0, c.tokens, TIME, want, chunks, sizeof chunks / sizeof chunks[0]);
    /* 64 sequences at different positions, each with its own tokens but the last. */
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX];
    float *logits = malloc((size_t)(WEFT_DECODER_ROWS_MAX * one.vocab) * sizeof *logits);
    for (int64_t t = 0; t < TIME; t++) {
        for (int32_t s = 0; s < 64; s++) {
            int64_t at = s == 63 ? t : t / (s % 3 + 1);
            rows[s] = (weft_decoder_row){c.tokens[s == 63 ? at : (at * (s + 2)) % TIME],
                                         (int32_t)at, s + 4, true};
        }
        if (weft_decoder_run(all.decoder, rows, 64, logits) != WEFT_OK)
            fail_msg("%s", weft_error_message());
        int64_t off = count_different(want + t * one.vocab, logits + 63 * one.vocab, one.vocab);
        if (off)
            fail_msg("%s: %lld numbers differ among 64 at %lld", f->name, (long long)off,
                     (long long)t);
    }
    free(logits);
    free(want);
    step_decoding_close(&one);
    step_decoding_close(&all);
    free(c.tokens);
}

/* So many runs of keys that a warp has several, one behind the other. */
static void test_a_long_sequence_has_the_bits_that_it_has_alone(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding d;
    step_case_open(&c, f, LONG);
    assert_int_equal(weft_config_override(&c.config, "CONTEXT=2048", "test"), WEFT_OK);
    step_decoding_open(&d, &c, weft_cuda_backend(), 4, LONG);
    float *want = step_decode(&d, 0, c.tokens, LONG, 1);
    static const int64_t chunks[] = {4, 16, 64};
    expect_the_same(f, &d, 1, c.tokens, LONG, want, chunks, sizeof chunks / sizeof chunks[0]);
    free(want);
    step_decoding_close(&d);
    free(c.tokens);
}

/* Of each layer: queries, keys and values; attention; its output; the feed-forward's two products. With
 * more than 16 rows what two of them make is added up behind them, and attention may have its parts
 * joined. Before and behind all layers: the embedding and the head. */
static void test_phases_are_those_that_the_last_step_went_through(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding d;
    step_case_open(&c, f, TIME);
    step_decoding_open(&d, &c, weft_cuda_backend(), 2, TIME);
    free(step_decode(&d, 0, c.tokens, 1, 1));
    assert_int_equal(weft_decoder_phases(d.decoder), 2 + 5 * c.config.n_layer);
    free(step_decode(&d, 1, c.tokens, 64, 64));
    assert_in_range(weft_decoder_phases(d.decoder), 2 + 7 * c.config.n_layer,
                    2 + 8 * c.config.n_layer);
    step_decoding_close(&d);
    free(c.tokens);
}

/* Sampled on the device and carried on there, tokens are those of the logits. */
static void test_sampled_tokens_are_the_likeliest(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding d;
    step_case_open(&c, f, TIME);
    step_decoding_open(&d, &c, weft_cuda_backend(), 2, TIME);
    enum { STEPS = 120 };
    int32_t want[STEPS], got[2], token = c.tokens[0];
    float *logits = malloc((size_t)d.vocab * sizeof *logits);
    for (int32_t t = 0; t < STEPS; t++) {
        weft_decoder_row row = {token, t, 0, true};
        assert_int_equal(weft_decoder_run(d.decoder, &row, 1, logits), WEFT_OK);
        token = 0;
        for (int32_t n = 1; n < d.vocab; n++)
            if (logits[n] > logits[token]) token = n;
        want[t] = token;
    }
    weft_decoder_row row = {c.tokens[0], 0, 1, true};
    assert_int_equal(weft_decoder_begin(d.decoder, &row, 1, NULL), WEFT_OK);
    for (int32_t t = 0; t < STEPS; t++) {
        row = (weft_decoder_row){-1, t + 1, 1, true}; /* of its only row */
        assert_int_equal(weft_decoder_begin(d.decoder, &row, 1, NULL), WEFT_OK);
        assert_int_equal(weft_decoder_end(d.decoder, got), WEFT_OK);
        if (got[0] != want[t])
            fail_msg("%s: token %d is %d, the logits say %d", f->name, (int)t, (int)got[0],
                     (int)want[t]);
    }
    assert_int_equal(weft_decoder_end(d.decoder, got), WEFT_OK);
    free(logits);
    step_decoding_close(&d);
    free(c.tokens);
}

static void test_tokens_are_drawn_as_the_host_draws_them(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_decoding d;
    step_case_open(&c, f, TIME);
    step_decoding_open(&d, &c, weft_cuda_backend(), SAMPLING_RULES, TIME);
    sampling_check_draws(f->name, d.decoder, d.vocab);
    step_decoding_close(&d);
    free(c.tokens);
}

enum { TEXTS = 4, LENGTH = 60 };

/* Texts that are drawn, one of them with a penalty; `alone`: by the host, from logits. */
static void write_texts(const model_case *c, bool alone, int32_t *out) {
    weft_generator *g;
    weft_pool *pool;
    weft_model *m = step_case_weights(c);
    int64_t id[TEXTS];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_generator_limits limits = {.sequences = TEXTS};
    assert_int_equal(weft_generator_open(m, weft_cuda_backend(), pool, &limits, &g), WEFT_OK);
    for (int i = 0; i < TEXTS; i++) {
        weft_sampling how = weft_sampling_default();
        how.temperature = i ? 0.9 : 0;
        how.top_k = i == 2 ? 20 : 0;
        how.top_p = i > 1 ? 0.9 : 1;
        how.repetition_penalty = i % 2 ? 1.2 : 1;
        how.max_tokens = LENGTH - 5 * i;
        how.token_only = !alone;
        assert_int_equal(weft_generator_add(g, c->tokens + i, 5 + 3 * i, &how, id + i), WEFT_OK);
    }
    while (weft_generator_busy(g))
        assert_int_equal(weft_generator_step(g), WEFT_OK);
    memset(out, 0x7f, TEXTS * LENGTH * sizeof *out);
    for (int i = 0; i < TEXTS; i++) {
        weft_sampled made;
        for (int t = 0; weft_generator_take(g, id[i], &made) == WEFT_TAKE_TOKEN; t++)
            out[i * LENGTH + t] = made.token;
    }
    weft_generator_close(g);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

/* Steps run ahead of the host, and a text's tokens are seen where they were drawn. */
static void test_drawn_texts_are_the_hosts(void **state) {
    const step_form *f = *state;
    int32_t want[TEXTS * LENGTH], got[TEXTS * LENGTH];
    need_gpu();
    model_case c;
    step_case_open(&c, f, TIME);
    write_texts(&c, true, want);
    write_texts(&c, false, got);
    for (int i = 0; i < TEXTS * LENGTH; i++)
        if (got[i] != want[i])
            fail_msg("%s: token %d of text %d is %d, the host draws %d", f->name, i % LENGTH,
                     i / LENGTH, (int)got[i], (int)want[i]);
    free(c.tokens);
}

/* Nor does the step behind it read beyond the embeddings. */
static void test_logits_that_are_not_numbers_give_no_token(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    step_case_open(&c, f, TIME);
    step_decoding d = {.model = step_case_weights(&c)};
    weft_weight *w = weft_model_find(d.model, "ln_f.weight");
    assert_non_null(w);
    double *values = malloc((size_t)w->count * sizeof *values);
    for (int64_t i = 0; i < w->count; i++)
        values[i] = NAN;
    weft_weight_write(w, values);
    free(values);
    int64_t pages = weft_cached_table_pages(TIME);
    weft_decoder_limits limits = {1, pages, TIME, pages};
    assert_int_equal(weft_pool_create(1, &d.pool), WEFT_OK);
    assert_int_equal(weft_decoder_open(d.model, weft_cuda_backend(), d.pool, &limits, &d.decoder),
                     WEFT_OK);
    weft_decoder_table(d.decoder, 0)[0] = 0;
    weft_decoder_row row = {c.tokens[0], 0, 0, true}, next = {-1, 1, 0, true};
    int32_t got[2];
    assert_int_equal(weft_decoder_begin(d.decoder, &row, 1, NULL), WEFT_OK);
    assert_int_equal(weft_decoder_begin(d.decoder, &next, 1, NULL), WEFT_OK);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(weft_decoder_end(d.decoder, got), WEFT_OK);
        assert_int_equal(got[0], -1);
    }
    step_decoding_close(&d);
    free(c.tokens);
}

int main(void) {
    struct CMUnitTest tests[8 * STEP_FORMS];
    int n = 0;
    const char *only = getenv("WEFT_TEST_FORM"); /* one of them */
    for (int i = 0; i < STEP_FORMS; i++) {
        if (only && strcmp(only, step_forms[i].name) != 0) continue;
        void *f = (void *)(uintptr_t)(step_forms + i);
        tests[n++] = (struct CMUnitTest){"test_a_step_equals_the_cpus", test_a_step_equals_the_cpus,
                                         NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_a_sequence_has_the_bits_that_it_has_alone",
                                test_a_sequence_has_the_bits_that_it_has_alone, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_a_long_sequence_has_the_bits_that_it_has_alone",
                                test_a_long_sequence_has_the_bits_that_it_has_alone, NULL, NULL, f};
        tests[n++] = (struct CMUnitTest){"test_phases_are_those_that_the_last_step_went_through",
                                         test_phases_are_those_that_the_last_step_went_through,
                                         NULL, NULL, f};
        tests[n++] = (struct CMUnitTest){"test_sampled_tokens_are_the_likeliest",
                                         test_sampled_tokens_are_the_likeliest, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_tokens_are_drawn_as_the_host_draws_them",
                                test_tokens_are_drawn_as_the_host_draws_them, NULL, NULL, f};
        tests[n++] = (struct CMUnitTest){"test_drawn_texts_are_the_hosts",
                                         test_drawn_texts_are_the_hosts, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_logits_that_are_not_numbers_give_no_token",
                                test_logits_that_are_not_numbers_give_no_token, NULL, NULL, f};
    }
    return _cmocka_run_group_tests("step", tests, (size_t)n, NULL, NULL);
}

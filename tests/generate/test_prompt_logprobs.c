/* What is told of a prompt's tokens: their log-probabilities are the whole pass's, bit for bit the same alone
 * and among others that set them back, with whole blocks and without; the text behind is what it is without
 * them; and a prompt may be all there is. */
#include "cpu/backend.h"
#include "model/cached.h"
#include "support/generation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONTEXT = 360, MOST = CONTEXT + 8, TEXTS = 5 };

static const int64_t lengths[TEXTS] = {300, CONTEXT, 1, 40, 257}, wanted[TEXTS] = {8, 0, 8, 0, 3};

typedef struct {
    int64_t n;
    weft_sampled tokens[MOST];
    weft_take end;
} told_text;

/* The texts of these prompts in one generator, which has room for one and a little. */
static void make_texts(const generation *f, int32_t (*prompts)[CONTEXT], int first, int last,
                       bool tells, told_text *out, weft_generator_stats *stats) {
    weft_generator *g;
    int64_t ids[TEXTS], bytes = generation_page_bytes(f);
    weft_generator_limits limits = {.sequences = 3,
                                    .cache_bytes = (weft_cached_table_pages(CONTEXT) + 2) * bytes};
    assert_int_equal(weft_generator_open(f->model, weft_cpu_backend(), f->pool, &limits, &g),
                     WEFT_OK);
    /* Pages of the first prompt are there before it is told. */
    weft_sampling one = weft_sampling_default();
    one.max_tokens = 1;
    int64_t before = lengths[first] < CONTEXT ? lengths[first] : CONTEXT - 1;
    assert_int_equal(weft_generator_add(g, prompts[first], before, &one, ids), WEFT_OK);
    while (weft_generator_busy(g))
        generation_step(g);
    weft_generator_remove(g, ids[0]);
    for (int i = first; i < last; i++) {
        weft_sampling s = weft_sampling_default();
        s.max_tokens = tells || wanted[i] ? wanted[i] : 1;
        s.prompt_logprobs = tells;
        s.top_logprobs = 2;
        assert_int_equal(weft_generator_add(g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
    }
    while (weft_generator_busy(g))
        generation_step(g);
    for (int i = first; i < last; i++) {
        out[i].n = 0;
        while ((out[i].end = weft_generator_take(g, ids[i], out[i].tokens + out[i].n)) ==
               WEFT_TAKE_TOKEN)
            out[i].n++;
    }
    weft_generator_count(g, stats);
    weft_generator_close(g);
}

/* The prompt's log-probabilities by the forward pass of training. */
static void check_whole_pass(const generation *f, const int32_t *tokens, int64_t n,
                             const told_text *got) {
    weft_session s = {0};
    weft_build build = {.batch = 1, .time = n, .logits = true, .dtype = WEFT_F32};
    int64_t vocab = f->c.config.vocab_size;
    assert_int_equal(
        weft_session_open(f->model, weft_cpu_backend(), f->pool, &build, false, false, &s),
        WEFT_OK);
    assert_int_equal(weft_session_run(&s, tokens, tokens, &(weft_run){0}), WEFT_OK);
    float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
    assert_int_equal(weft_exec_read(s.exec, s.graph.logits, logits), WEFT_OK);
    assert_true(isnan(got->tokens[0].logprob));
    assert_int_equal(got->tokens[0].n_top, 0);
    for (int64_t t = 1; t < n; t++) {
        const float *row = logits + (t - 1) * vocab;
        const weft_sampled *is = got->tokens + t;
        double sum = 0;
        int64_t best = 0;
        for (int64_t v = 0; v < vocab; v++) {
            sum += exp((double)row[v]);
            if (row[v] > row[best]) best = v;
        }
        assert_int_equal(is->token, tokens[t]);
        assert_true(fabs((double)is->logprob - ((double)row[tokens[t]] - log(sum))) < 1e-4);
        assert_int_equal(is->n_top, 2);
        assert_true(fabs((double)is->top_logprob[0] - ((double)row[best] - log(sum))) < 1e-4);
    }
    free(logits);
    weft_session_close(&s);
}

static void check_model(const char *name) {
    static told_text alone[TEXTS], among[TEXTS], plain[TEXTS];
    static int32_t prompts[TEXTS][CONTEXT];
    weft_generator_stats stats;
    generation f;
    generation_open(&f, name, CONTEXT, 1, NULL);
    for (int i = 0; i < TEXTS; i++)
        for (int64_t t = 0; t < lengths[i]; t++)
            prompts[i][t] = (int32_t)((t * t * 7 + t * 3 + i % 2) % f.c.config.vocab_size);
    for (int i = 0; i < TEXTS; i++) {
        make_texts(&f, prompts, i, i + 1, true, alone, &stats);
        assert_int_equal(alone[i].n, lengths[i] + wanted[i]);
        check_whole_pass(&f, prompts[i], lengths[i], alone + i);
    }
    make_texts(&f, prompts, 0, TEXTS, true, among, &stats);
    assert_true(stats.set_back > 0);
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(among[i].n, alone[i].n);
        assert_int_equal(among[i].end, WEFT_TAKE_LENGTH);
        assert_memory_equal(among[i].tokens, alone[i].tokens,
                            (size_t)alone[i].n * sizeof *alone[i].tokens);
        if (lengths[i] == CONTEXT) continue;
        make_texts(&f, prompts, i, i + 1, false, plain, &stats);
        assert_memory_equal(plain[i].tokens, alone[i].tokens + lengths[i],
                            (size_t)wanted[i] * sizeof *plain[i].tokens);
    }
    generation_close(&f);
}

static void test_a_prompts_log_probabilities_are_the_whole_pass_s(void **state) {
    (void)state;
    check_model("dot-learned");
    check_model("mla-reciprocal-rope");
}

/* The token that ends a text is given with its end. */
static void test_the_token_that_ends_a_text_is_told(void **state) {
    (void)state;
    generation f;
    weft_generator *g;
    weft_sampled token = {0}, end = {0};
    int64_t id;
    int32_t prompt[] = {1, 2, 3};
    weft_sampling s = weft_sampling_default();
    generation_open(&f, "dot-learned", CONTEXT, 1, NULL);
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, NULL, &g), WEFT_OK);
    s.temperature = 0;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(weft_generator_add(g, prompt, 3, &s, &id), WEFT_OK);
        generation_step(g);
        if (round == 0)
            assert_int_equal(weft_generator_take(g, id, &token), WEFT_TAKE_TOKEN);
        else
            assert_int_equal(weft_generator_take(g, id, &end), WEFT_TAKE_END);
        weft_generator_remove(g, id);
        s.end_token = token.token;
    }
    assert_memory_equal(&end, &token, sizeof end);
    weft_generator_close(g);
    generation_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prompts_log_probabilities_are_the_whole_pass_s),
        cmocka_unit_test(test_the_token_that_ends_a_text_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

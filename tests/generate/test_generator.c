/* The scheduler: a sequence makes the same tokens, with the same bits in their probabilities, alone
 * and among others, from shared pages, set back or not; greedy text is the whole pass's; and the pool
 * has just the bytes that the plan tells. */
#include "cpu/backend.h"
#include "generate/generator.h"
#include "model/account.h"
#include "model/cached.h"
#include "support/model_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 48 /* tokens of a text here */ };

static const char *const names[] = {"dot-learned",
                                    "w2-rope",
                                    "mla-reciprocal-rope",
                                    "mix-mla-swiglu-scalar-cummean",
                                    "mix-dot-gqa-swiglu-gate-cross",
                                    "mix-mla-w2-joint-scalar-cross"};
enum { N_NAMES = sizeof names / sizeof names[0] };

typedef struct {
    model_case c;
    weft_model *model;
    weft_pool *pool;
    weft_generator *g;
} fixture;

static void open_model(fixture *f, const char *name, int64_t context, int threads) {
    model_case_open(&f->c, name);
    f->c.config.gpt2_block_size = context;
    f->model = model_case_weights(&f->c, WEFT_F32);
    assert_int_equal(weft_pool_create(threads, &f->pool), WEFT_OK);
    f->g = NULL;
}

static void open_generator(fixture *f, const weft_generator_limits *limits) {
    if (weft_generator_open(f->model, weft_cpu_backend(), f->pool, limits, &f->g) != WEFT_OK)
        fail_msg("%s", weft_error_message());
}

static void close_all(fixture *f) {
    weft_generator_close(f->g);
    weft_pool_destroy(f->pool);
    weft_model_destroy(f->model);
    model_case_close(&f->c);
}

typedef struct {
    int64_t n;
    weft_sampled tokens[MOST];
    weft_take end;
} made_text;

static void take(weft_generator *g, int64_t id, made_text *text) {
    weft_sampled token;
    weft_take t;
    while ((t = weft_generator_take(g, id, &token)) == WEFT_TAKE_TOKEN) {
        assert_true(text->n < MOST);
        text->tokens[text->n++] = token;
    }
    text->end = t;
}

static void step(weft_generator *g) {
    if (weft_generator_step(g) != WEFT_OK) fail_msg("%s", weft_error_message());
}

static void fill_prompt(const fixture *f, int32_t *prompt, int64_t n, int seed) {
    for (int64_t i = 0; i < n; i++)
        prompt[i] = (int32_t)((i * i * 7 + i * 3 + seed) % f->c.config.vocab_size);
}

static weft_sampling sampling_of(int i, int64_t max_tokens) {
    weft_sampling s = weft_sampling_default();
    s.seed = (uint64_t)(100 + i);
    s.max_tokens = max_tokens;
    s.temperature = i % 3 == 0 ? 0 : 0.9;
    return s;
}

/* One sequence in a generator of its own, without sharing. */
static void make_alone(const char *name, int64_t context, const int32_t *prompt, int64_t n,
                       const weft_sampling *sampling, made_text *text) {
    fixture f;
    int64_t id;
    open_model(&f, name, context, 1);
    open_generator(&f, &(weft_generator_limits){.sequences = 1, .no_sharing = true});
    *text = (made_text){0};
    assert_int_equal(weft_generator_add(f.g, prompt, n, sampling, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        step(f.g);
    take(f.g, id, text);
    close_all(&f);
}

static void assert_same(const char *name, int i, const made_text *got, const made_text *want) {
    if (got->n != want->n || got->end != want->end)
        fail_msg("%s, sequence %d: %lld tokens, alone %lld", name, i, (long long)got->n,
                 (long long)want->n);
    for (int64_t t = 0; t < got->n; t++)
        if (got->tokens[t].token != want->tokens[t].token ||
            memcmp(&got->tokens[t].logprob, &want->tokens[t].logprob, sizeof(float)) != 0)
            fail_msg("%s, sequence %d, token %lld: %d (%.9g), alone %d (%.9g)", name, i,
                     (long long)t, got->tokens[t].token, (double)got->tokens[t].logprob,
                     want->tokens[t].token, (double)want->tokens[t].logprob);
}

/* Sequences that come and go over a pool that is too small for all of them: prompts that begin alike,
 * whole blocks, one token. */
static void test_a_sequence_makes_the_same_tokens_among_others(void **state) {
    static const int64_t lengths[] = {300, 40, 1, 17, 64, 300, 33, 270, 16, 48};
    enum { N = sizeof lengths / sizeof lengths[0], CONTEXT = 360 };
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        made_text want[N], got[N] = {0};
        int32_t prompts[N][CONTEXT];
        int64_t ids[N], pages = weft_cached_table_pages(CONTEXT) + 6;
        fixture f;
        open_model(&f, names[c], CONTEXT, 2);
        int64_t bytes = WEFT_PAGE_TOKENS * weft_cached_token_bytes(&f.c.config, WEFT_F32);
        open_generator(&f, &(weft_generator_limits){.sequences = 5, .cache_bytes = pages * bytes});
        for (int i = 0; i < N; i++) {
            fill_prompt(&f, prompts[i], lengths[i], i % 3);
            weft_sampling s = sampling_of(i, 36 + i);
            make_alone(names[c], CONTEXT, prompts[i], lengths[i], &s, want + i);
        }
        for (int i = 0; i < N; i++) {
            weft_sampling s = sampling_of(i, 36 + i);
            assert_int_equal(weft_generator_add(f.g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
            step(f.g);
        }
        /* One more, that is taken away in the middle. */
        int64_t gone;
        weft_sampling s = sampling_of(1, 40);
        assert_int_equal(weft_generator_add(f.g, prompts[2], 300, &s, &gone), WEFT_OK);
        for (int k = 0; weft_generator_busy(f.g); k++) {
            step(f.g);
            if (k == 5) weft_generator_remove(f.g, gone);
        }
        for (int i = 0; i < N; i++) {
            take(f.g, ids[i], got + i);
            assert_same(names[c], i, got + i, want + i);
        }
        weft_generator_stats stats;
        weft_generator_count(f.g, &stats);
        assert_true(stats.set_back > 0);
        assert_true(stats.shared_tokens > 0);
        for (int i = 0; i < N; i++)
            weft_generator_remove(f.g, ids[i]);
        weft_generator_count(f.g, &stats);
        assert_int_equal(stats.pages_used, 0);
        close_all(&f);
    }
}

static void test_equal_beginnings_share_their_pages(void **state) {
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        fixture f;
        int32_t prompt[320];
        int64_t first, second;
        made_text a = {0}, b = {0};
        open_model(&f, names[c], 340, 1);
        open_generator(&f, &(weft_generator_limits){.sequences = 2});
        fill_prompt(&f, prompt, 300, 0);
        weft_sampling s = sampling_of(1, 12);
        assert_int_equal(weft_generator_add(f.g, prompt, 300, &s, &first), WEFT_OK);
        while (weft_generator_busy(f.g))
            step(f.g);
        assert_int_equal(weft_generator_add(f.g, prompt, 300, &s, &second), WEFT_OK);
        step(f.g);
        assert_int_equal(weft_generator_shared(f.g, first), 0);
        assert_int_equal(weft_generator_shared(f.g, second), 288); /* whole pages below 299 */
        while (weft_generator_busy(f.g))
            step(f.g);
        take(f.g, first, &a);
        take(f.g, second, &b);
        assert_same(names[c], 0, &b, &a);
        close_all(&f);
    }
}

static void test_greedy_text_is_the_whole_pass_s(void **state) {
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        enum { PROMPT = 20, TEXT = 40, TIME = PROMPT + TEXT };
        fixture f;
        int32_t prompt[PROMPT];
        made_text text;
        open_model(&f, names[c], TIME, 1);
        fill_prompt(&f, prompt, PROMPT, 1);
        weft_sampling s = sampling_of(0, TEXT);
        make_alone(names[c], TIME, prompt, PROMPT, &s, &text);
        assert_int_equal(text.n, TEXT);
        model_case whole = f.c;
        int32_t tokens[TIME], targets[TIME] = {0};
        for (int t = 0; t < TIME; t++)
            tokens[t] = t < PROMPT ? prompt[t] : text.tokens[t - PROMPT].token;
        whole.tokens = tokens;
        whole.targets = targets;
        whole.time = TIME;
        whole.batch = 1;
        model_run r;
        model_run_open(&r, &whole, &(model_run_options){.dtype = WEFT_F32});
        int64_t vocab = f.c.config.vocab_size;
        double *logits = model_run_values(&r, r.session.graph.logits, TIME * vocab);
        for (int t = PROMPT - 1; t + 1 < TIME; t++) {
            int64_t best = 0;
            for (int64_t v = 1; v < vocab; v++)
                if (logits[t * vocab + v] > logits[t * vocab + best]) best = v;
            assert_int_equal(best, tokens[t + 1]);
        }
        free(logits);
        model_run_close(&r);
        close_all(&f);
    }
}

static void test_the_pool_has_the_bytes_that_the_plan_tells(void **state) {
    static const char *const types[] = {"CACHE_DTYPE=f32", "CACHE_DTYPE=bf16", "CACHE_DTYPE=int8"};
    (void)state;
    char **all;
    int n = model_case_names(&all);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            fixture f;
            open_model(&f, all[i], 64, 1);
            assert_int_equal(weft_config_override(&f.c.config, types[k], "test"), WEFT_OK);
            f.model->config = f.c.config;
            weft_generator_limits limits = {.sequences = 3};
            if (weft_generator_open(f.model, weft_cpu_backend(), f.pool, &limits, &f.g) ==
                WEFT_OK) {
                weft_account account;
                weft_generator_stats stats;
                f.c.config.batch_size = 1;
                assert_int_equal(weft_account_make(&f.c.config, weft_cpu_backend(), 1, &account),
                                 WEFT_OK);
                weft_generator_count(f.g, &stats);
                int64_t pages = 3 * weft_cached_table_pages(64);
                assert_int_equal(stats.pages, pages);
                if (stats.cache_bytes != pages * WEFT_PAGE_TOKENS * account.cache_bytes_token +
                                             3 * account.cache_bytes_sequence)
                    fail_msg(
                        "%s, %s: the pool has %lld bytes; the plan tells %lld a token and %lld "
                        "a sequence",
                        all[i], types[k], (long long)stats.cache_bytes,
                        (long long)account.cache_bytes_token,
                        (long long)account.cache_bytes_sequence);
            }
            close_all(&f);
        }
    model_case_names_free(all, n);
}

static void test_a_conversation_goes_on_in_the_cache(void **state) {
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        fixture f;
        int32_t prompt[30], more[20], joined[90];
        int64_t id;
        made_text first = {0}, second = {0}, want;
        open_model(&f, names[c], 120, 1);
        open_generator(&f, &(weft_generator_limits){.sequences = 1});
        fill_prompt(&f, prompt, 30, 0);
        fill_prompt(&f, more, 20, 5);
        weft_sampling s = sampling_of(0, 12);
        assert_int_equal(weft_generator_add(f.g, prompt, 30, &s, &id), WEFT_OK);
        assert_int_equal(weft_generator_extend(f.g, id, more, 20, &s), WEFT_EINPUT);
        while (weft_generator_busy(f.g))
            step(f.g);
        take(f.g, id, &first);
        weft_generator_stats before, after;
        weft_generator_count(f.g, &before);
        assert_int_equal(weft_generator_extend(f.g, id, more, 20, &s), WEFT_OK);
        while (weft_generator_busy(f.g))
            step(f.g);
        take(f.g, id, &second);
        weft_generator_count(f.g, &after);
        /* Only what is new was computed: the last token made, and the new ones. */
        assert_int_equal(after.prompt_tokens - before.prompt_tokens, 20);
        memcpy(joined, prompt, sizeof prompt);
        for (int i = 0; i < 12; i++)
            joined[30 + i] = first.tokens[i].token;
        memcpy(joined + 42, more, sizeof more);
        make_alone(names[c], 120, joined, 62, &s, &want);
        assert_same(names[c], 0, &second, &want);
        close_all(&f);
    }
}

static void test_texts_end_where_they_should(void **state) {
    (void)state;
    fixture f;
    int32_t prompt[20];
    made_text text = {0}, again = {0};
    int64_t id;
    open_model(&f, "dot-learned", 32, 1);
    open_generator(&f, NULL);
    fill_prompt(&f, prompt, 20, 0);
    weft_sampling s = sampling_of(1, 100);
    assert_int_equal(weft_generator_add(f.g, prompt, 20, &s, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        step(f.g);
    take(f.g, id, &text);
    assert_int_equal(text.n, 12); /* the context's end */
    assert_int_equal(text.end, WEFT_TAKE_LENGTH);
    s.end_token = text.tokens[4].token;
    assert_int_equal(weft_generator_add(f.g, prompt, 20, &s, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        step(f.g);
    take(f.g, id, &again);
    assert_int_equal(again.end, WEFT_TAKE_END);
    assert_true(again.n <= 4);
    close_all(&f);
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    fixture f;
    int32_t prompt[40] = {0};
    int64_t id;
    weft_sampling s = weft_sampling_default();
    open_model(&f, "dot-learned", 32, 1);
    weft_generator_limits longer = {.context = 33}, slide = {.slide = true},
                          small = {.cache_bytes = 7};
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, &longer, &f.g),
                     WEFT_EINPUT);
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, &slide, &f.g),
                     WEFT_EINPUT);
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, &small, &f.g),
                     WEFT_EINPUT);
    open_generator(&f, NULL);
    assert_int_equal(weft_generator_add(f.g, prompt, 32, &s, &id), WEFT_EINPUT);
    assert_int_equal(weft_generator_add(f.g, prompt, 0, &s, &id), WEFT_EINPUT);
    prompt[3] = (int32_t)f.c.config.vocab_size;
    assert_int_equal(weft_generator_add(f.g, prompt, 10, &s, &id), WEFT_EINPUT);
    s.top_p = -1;
    assert_int_equal(weft_generator_add(f.g, prompt, 3, &s, &id), WEFT_EINPUT);
    assert_false(weft_generator_busy(f.g));
    close_all(&f);
    open_model(&f, "dot-noncausal", 32, 1);
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, NULL, &f.g),
                     WEFT_EINPUT);
    close_all(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sequence_makes_the_same_tokens_among_others),
        cmocka_unit_test(test_equal_beginnings_share_their_pages),
        cmocka_unit_test(test_greedy_text_is_the_whole_pass_s),
        cmocka_unit_test(test_the_pool_has_the_bytes_that_the_plan_tells),
        cmocka_unit_test(test_a_conversation_goes_on_in_the_cache),
        cmocka_unit_test(test_texts_end_where_they_should),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The scheduler: a sequence makes the same tokens, with the same bits in their probabilities, alone
 * and among others, from shared pages, set back or not; greedy text is the whole pass's; and the pool
 * has just the bytes that the plan tells. */
#include "cpu/backend.h"
#include "generate/decoder.h"
#include "model/account.h"
#include "model/cached.h"
#include "support/generation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {"dot-learned",
                                    "w2-rope",
                                    "mla-reciprocal-rope",
                                    "mix-mla-swiglu-scalar-cummean",
                                    "mix-dot-gqa-swiglu-gate-cross",
                                    "mix-mla-w2-joint-scalar-cross"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static const char *narrow = "f32"; /* the type of cache and matrices */

static void open_model(generation *f, const char *name, int64_t context, int threads) {
    char cache[32], weights[32];
    snprintf(cache, sizeof cache, "CACHE_DTYPE=%s", narrow);
    snprintf(weights, sizeof weights, "WEIGHT_DTYPE=%s", narrow);
    generation_open(f, name, context, threads, (const char *[]){cache, weights, NULL});
}

static void fill_prompt(const generation *f, int32_t *prompt, int64_t n, int seed) {
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

/* One sequence in a generator of its own, without sharing; how many steps it took. */
static int make_in(generation *f, const weft_generator_limits *limits, const int32_t *prompt,
                   int64_t n, const weft_sampling *sampling, made_text *text) {
    int64_t id;
    int steps = 0;
    generation_start(f, NULL, limits);
    *text = (made_text){0};
    assert_int_equal(weft_generator_add(f->g, prompt, n, sampling, &id), WEFT_OK);
    for (; weft_generator_busy(f->g); steps++)
        generation_step(f->g);
    text_take(f->g, id, text);
    generation_close(f);
    return steps;
}

static int make_alone(const char *name, int64_t context, const int32_t *prompt, int64_t n,
                      const weft_sampling *sampling, made_text *text) {
    generation f;
    open_model(&f, name, context, 1);
    return make_in(&f, &(weft_generator_limits){.sequences = 1, .no_sharing = true}, prompt, n,
                   sampling, text);
}

/* Sequences that come and go over a pool that is too small for all of them: prompts that begin alike,
 * whole blocks, one token. */
static void check_among_others(size_t n_names, double share) {
    static const int64_t lengths[] = {300, 40, 1, 17, 64, 300, 33, 270, 16, 48};
    enum { N = sizeof lengths / sizeof lengths[0], CONTEXT = 360 };
    for (size_t c = 0; c < n_names; c++) {
        made_text want[N], got[N] = {0};
        int32_t prompts[N][CONTEXT];
        int64_t ids[N], pages = weft_cached_table_pages(CONTEXT) + 6;
        generation f;
        open_model(&f, names[c], CONTEXT, 2);
        int64_t bytes = generation_page_bytes(&f);
        generation_start(&f, NULL,
                         &(weft_generator_limits){
                             .sequences = 5, .cache_bytes = pages * bytes, .prompt_share = share});
        for (int i = 0; i < N; i++) {
            fill_prompt(&f, prompts[i], lengths[i], i % 3);
            weft_sampling s = sampling_of(i, 36 + i);
            make_alone(names[c], CONTEXT, prompts[i], lengths[i], &s, want + i);
        }
        for (int i = 0; i < N; i++) {
            weft_sampling s = sampling_of(i, 36 + i);
            assert_int_equal(weft_generator_add(f.g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
            generation_step(f.g);
        }
        /* One more, that is taken away in the middle. */
        int64_t gone;
        weft_sampling s = sampling_of(1, 40);
        assert_int_equal(weft_generator_add(f.g, prompts[5], 300, &s, &gone), WEFT_OK);
        for (int k = 0; weft_generator_busy(f.g); k++) {
            generation_step(f.g);
            if (k == 5) weft_generator_remove(f.g, gone);
        }
        for (int i = 0; i < N; i++) {
            text_take(f.g, ids[i], got + i);
            text_compare(names[c], i, got + i, want + i);
        }
        weft_generator_stats stats;
        weft_generator_count(f.g, &stats);
        /* Of prompts in pieces the clock says how much of one is there when the next one comes. */
        if (share == 0) assert_true(stats.set_back > 0 && stats.shared_tokens > 0);
        for (int i = 0; i < N; i++)
            weft_generator_remove(f.g, ids[i]);
        weft_generator_count(f.g, &stats);
        assert_int_equal(stats.pages_used, 0);
        generation_close(&f);
    }
}

static void test_a_sequence_makes_the_same_tokens_among_others(void **state) {
    (void)state;
    check_among_others(N_NAMES, 0);
}

static void test_narrow_caches_and_weights_keep_a_sequences_bits(void **state) {
    static const char *const types[] = {"bf16", "int8"};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        narrow = types[i];
        check_among_others(3, 0); /* dot, w2, mla */
    }
    narrow = "f32";
}

/* Prompts in pieces of an operation or so, and of as many as take as long as the tokens beside them. */
static void test_prompts_in_pieces_keep_a_sequences_bits(void **state) {
    (void)state;
    check_among_others(N_NAMES, 0.05);
    check_among_others(1, 1);
}

/* While a long prompt is read a text beside it gets a token in each step, and a short prompt does not wait for
 * the long one's end; the one that is read may be taken away. */
static void test_a_long_prompt_does_not_stop_the_others(void **state) {
    enum { LONG = 1300, CONTEXT = 1400, TEXT = 40 };
    (void)state;
    generation f;
    int32_t prompt[LONG];
    int64_t text, first, second, brief;
    made_text made = {0}, of_long = {0}, of_brief = {0};
    open_model(&f, "mla-reciprocal-rope", CONTEXT, 1);
    generation_start(&f, NULL, &(weft_generator_limits){.sequences = 4, .prompt_share = 1e-9});
    fill_prompt(&f, prompt, LONG, 3);
    weft_sampling s = sampling_of(1, TEXT), one = sampling_of(0, 1);
    assert_int_equal(weft_generator_add(f.g, prompt, 4, &s, &text), WEFT_OK);
    while (made.n == 0) {
        generation_step(f.g);
        text_take(f.g, text, &made);
    }
    assert_int_equal(weft_generator_add(f.g, prompt, LONG, &one, &first), WEFT_OK);
    assert_int_equal(weft_generator_add(f.g, prompt, LONG, &one, &second), WEFT_OK);
    assert_int_equal(weft_generator_add(f.g, prompt + 7, 9, &one, &brief), WEFT_OK);
    for (int64_t n = made.n; made.end == WEFT_TAKE_WAIT; n++) {
        assert_int_equal(made.n, n);
        if (n == 10) weft_generator_remove(f.g, first);
        generation_step(f.g);
        text_take(f.g, text, &made);
        text_take(f.g, second, &of_long);
        assert_int_equal(of_long.n, 0); /* it has more than TEXT operations */
    }
    assert_int_equal(made.n, TEXT);
    for (int turns = 0; of_brief.n == 0; turns++) { /* what was begun, and one block before it */
        assert_in_range(turns, 0, 2);
        generation_step(f.g);
        text_take(f.g, brief, &of_brief);
    }
    text_take(f.g, second, &of_long);
    assert_int_equal(of_long.n, 0);
    generation_close(&f);
}

/* Three older texts need a page each at once, and the prompt that is being read has the last. */
static void test_a_prompt_in_pieces_is_set_back(void **state) {
    enum { LONG = 257, CONTEXT = 300, N = 4 };
    static const int64_t lengths[N] = {10, 10, 10, LONG}, tokens[N] = {30, 30, 30, 5};
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        generation f;
        int32_t prompts[N][LONG];
        int64_t ids[N];
        made_text want[N], got[N] = {0};
        open_model(&f, names[c], CONTEXT, 1);
        int64_t bytes = generation_page_bytes(&f);
        int64_t pages = weft_cached_table_pages(LONG + 1) + 3 * 2;
        generation_start(&f, NULL,
                         &(weft_generator_limits){
                             .sequences = N, .cache_bytes = pages * bytes, .prompt_share = 1e-9});
        for (int i = 0; i < N; i++) {
            weft_sampling s = sampling_of(i, tokens[i]);
            fill_prompt(&f, prompts[i], lengths[i], i);
            make_alone(names[c], CONTEXT, prompts[i], lengths[i], &s, want + i);
            assert_int_equal(weft_generator_add(f.g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
            for (; i == 2 && got[2].n < 17; text_take(f.g, ids[2], got + 2))
                generation_step(f.g);
        }
        weft_generator_stats stats;
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        weft_generator_count(f.g, &stats);
        assert_true(stats.set_back > 0);
        for (int i = 0; i < N; i++) {
            text_take(f.g, ids[i], got + i);
            text_compare(names[c], i, got + i, want + i);
        }
        generation_close(&f);
    }
}

/* Two that do not fit together: the older one goes on as if it were alone, the younger is set back and
 * computed again. */
static void test_a_full_pool_sets_the_youngest_back(void **state) {
    static const int64_t lengths[] = {20, 27}; /* the younger needs a page before the older does */
    enum { TEXT = 40, CONTEXT = 80, PAGES = 6 };
    (void)state;
    generation f;
    int32_t prompts[2][32];
    int64_t ids[2];
    made_text want[2], got[2] = {0};
    int steps[2], ended[2] = {0};
    open_model(&f, "dot-learned", CONTEXT, 1);
    int64_t bytes = generation_page_bytes(&f);
    generation_start(&f, NULL,
                     &(weft_generator_limits){.sequences = 2, .cache_bytes = PAGES * bytes});
    weft_sampling s = sampling_of(1, TEXT);
    for (int i = 0; i < 2; i++) {
        fill_prompt(&f, prompts[i], lengths[i], i);
        steps[i] = make_alone("dot-learned", CONTEXT, prompts[i], lengths[i], &s, want + i);
        assert_int_equal(weft_generator_add(f.g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
    }
    weft_generator_stats stats;
    for (int n = 1; weft_generator_busy(f.g); n++) {
        generation_step(f.g);
        for (int i = 0; i < 2; i++) {
            text_take(f.g, ids[i], got + i);
            if (got[i].end == WEFT_TAKE_LENGTH && !ended[i]) ended[i] = n;
        }
    }
    weft_generator_count(f.g, &stats);
    assert_true(stats.set_back > 0);
    for (int i = 0; i < 2; i++)
        text_compare("dot-learned", i, got + i, want + i);
    assert_in_range(ended[0], 1, steps[0] + 1); /* their prompts are read one after the other */
    assert_true(ended[1] > steps[1] + 2);
    generation_close(&f);
}

/* A pool that does not hold one context is a shorter context, not an error. */
static void test_a_small_pool_is_a_shorter_context(void **state) {
    enum { PROMPT = 20, PAGES = 3 };
    (void)state;
    generation f;
    int32_t prompt[64];
    int64_t id;
    made_text text = {0};
    weft_generator_stats stats;
    open_model(&f, "dot-learned", 1000, 1);
    int64_t bytes = generation_page_bytes(&f);
    generation_start(&f, NULL,
                     &(weft_generator_limits){.sequences = 2, .cache_bytes = PAGES * bytes + 1});
    fill_prompt(&f, prompt, 64, 0);
    weft_sampling s = sampling_of(1, 900);
    assert_int_equal(weft_generator_add(f.g, prompt, PROMPT, &s, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        generation_step(f.g);
    text_take(f.g, id, &text);
    assert_int_equal(text.n, PAGES * WEFT_PAGE_TOKENS - PROMPT);
    assert_int_equal(text.end, WEFT_TAKE_LENGTH);
    weft_generator_count(f.g, &stats);
    assert_int_equal(stats.context, PAGES * WEFT_PAGE_TOKENS);
    assert_int_equal(weft_generator_add(f.g, prompt, PAGES * WEFT_PAGE_TOKENS, &s, &id),
                     WEFT_EINPUT);
    generation_close(&f);
}

/* Past the end of the context with the last tokens in view: prompts that are longer than it, and over
 * a pool that is too small for all. */
static void test_sliding_sequences_are_the_same_among_others(void **state) {
    static const char *const sliding[] = {"w2-rope", "dot-alibi-h3", "mla-joint-rope"};
    static const int64_t lengths[] = {20, 40, 300};
    enum { N = 3, CONTEXT = 50 };
    (void)state;
    for (size_t c = 0; c < sizeof sliding / sizeof sliding[0]; c++) {
        int32_t prompts[N][300];
        made_text want[N], got[N] = {0};
        int64_t ids[N];
        generation f, alone;
        open_model(&f, sliding[c], CONTEXT, 2);
        weft_generator_limits limits = {.sequences = 1, .slide = true};
        for (int i = 0; i < N; i++) {
            fill_prompt(&f, prompts[i], lengths[i], i);
            weft_sampling s = sampling_of(i, 47);
            open_model(&alone, sliding[c], CONTEXT, 1);
            make_in(&alone, &limits, prompts[i], lengths[i], &s, want + i);
            assert_int_equal(want[i].n, 47);
        }
        int64_t bytes = generation_page_bytes(&f);
        limits = (weft_generator_limits){.sequences = 3, .slide = true, .cache_bytes = 30 * bytes};
        generation_start(&f, NULL, &limits);
        for (int i = 0; i < N; i++) {
            weft_sampling s = sampling_of(i, 47);
            assert_int_equal(weft_generator_add(f.g, prompts[i], lengths[i], &s, ids + i), WEFT_OK);
            generation_step(f.g);
        }
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        for (int i = 0; i < N; i++) {
            text_take(f.g, ids[i], got + i);
            text_compare(sliding[c], i, got + i, want + i);
        }
        weft_generator_stats stats;
        weft_generator_count(f.g, &stats);
        assert_true(stats.set_back > 0);
        generation_close(&f);
    }
}

/* Row by row over pages that are never written twice, and what may be seen of them is the last
 * `context` tokens: logits [n, V]. */
static float *decode_plainly(const generation *f, const int32_t *tokens, int64_t n,
                             int64_t context) {
    weft_decoder *d;
    int64_t pages = weft_cached_table_pages(n), vocab = f->c.config.vocab_size;
    weft_decoder_limits limits = {1, pages, context, pages};
    float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
    assert_int_equal(weft_decoder_open(f->model, weft_cpu_backend(), f->pool, &limits, &d),
                     WEFT_OK);
    for (int64_t p = 0; p < pages; p++)
        weft_decoder_table(d, 0)[p] = (int32_t)p;
    for (int64_t t = 0; t < n; t++)
        assert_int_equal(weft_decoder_run(d, &(weft_decoder_row){tokens[t], (int32_t)t, 0, true}, 1,
                                          logits + t * vocab),
                         WEFT_OK);
    weft_decoder_close(d);
    return logits;
}

/* The prompt has a whole block, and rows beyond it, which all are longer than the context. */
static void test_a_sliding_text_sees_the_last_tokens(void **state) {
    static const char *const sliding[] = {"w2-rope", "dot-alibi-h3", "mla-joint-rope"};
    enum { PROMPT = 300, TEXT = 20, TIME = PROMPT + TEXT, CONTEXT = 60 };
    (void)state;
    for (size_t c = 0; c < sizeof sliding / sizeof sliding[0]; c++) {
        generation f;
        int32_t tokens[TIME];
        int64_t id;
        made_text text = {0};
        open_model(&f, sliding[c], CONTEXT, 1);
        generation_start(&f, NULL, &(weft_generator_limits){.sequences = 1, .slide = true});
        fill_prompt(&f, tokens, PROMPT, 1);
        weft_sampling s = sampling_of(1, TEXT);
        assert_int_equal(weft_generator_add(f.g, tokens, PROMPT, &s, &id), WEFT_OK);
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        text_take(f.g, id, &text);
        assert_int_equal(text.n, TEXT);
        for (int t = 0; t < TEXT; t++)
            tokens[PROMPT + t] = text.tokens[t].token;
        float *logits = decode_plainly(&f, tokens, TIME, CONTEXT);
        int64_t vocab = f.c.config.vocab_size;
        for (int t = PROMPT; t < TIME; t++) {
            const float *row = logits + (t - 1) * vocab;
            double sum = 0, got = (double)text.tokens[t - PROMPT].logprob;
            for (int64_t v = 0; v < vocab; v++)
                sum += exp((double)row[v]);
            double want = (double)row[tokens[t]] - log(sum);
            if (!(fabs(got - want) <= 1e-4))
                fail_msg("%s, token %d: logprob %g, not %g", sliding[c], t, got, want);
        }
        free(logits);
        generation_close(&f);
    }
}

static void test_equal_beginnings_share_their_pages(void **state) {
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        generation f;
        int32_t prompt[320];
        int64_t first, second;
        made_text a = {0}, b = {0};
        open_model(&f, names[c], 340, 1);
        generation_start(&f, NULL, &(weft_generator_limits){.sequences = 2});
        fill_prompt(&f, prompt, 300, 0);
        weft_sampling s = sampling_of(1, 12);
        assert_int_equal(weft_generator_add(f.g, prompt, 300, &s, &first), WEFT_OK);
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        assert_int_equal(weft_generator_add(f.g, prompt, 300, &s, &second), WEFT_OK);
        generation_step(f.g);
        assert_int_equal(weft_generator_shared(f.g, first), 0);
        assert_int_equal(weft_generator_shared(f.g, second), 288); /* whole pages below 299 */
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        text_take(f.g, first, &a);
        text_take(f.g, second, &b);
        text_compare(names[c], 0, &b, &a);
        generation_close(&f);
    }
}

/* The likeliest tokens of the whole pass, and their log-probabilities under its logits, where the model
 * was trained on `block` tokens and the text goes on to more. */
static void check_greedy(const char *name, int64_t block) {
    enum { PROMPT = 20, TEXT = 40, TIME = PROMPT + TEXT };
    generation f;
    int32_t prompt[PROMPT], tokens[TIME], targets[TIME] = {0};
    made_text text;
    open_model(&f, name, block, 1);
    fill_prompt(&f, prompt, PROMPT, 1);
    weft_sampling s = sampling_of(0, TEXT);
    make_in(&f, &(weft_generator_limits){.sequences = 1, .context = TIME}, prompt, PROMPT, &s,
            &text);
    assert_int_equal(text.n, TEXT);
    for (int t = 0; t < TIME; t++)
        tokens[t] = t < PROMPT ? prompt[t] : text.tokens[t - PROMPT].token;
    model_case whole;
    model_case_open(&whole, name);
    int32_t *own[] = {whole.tokens, whole.targets};
    whole.config.context = TIME;
    whole.tokens = tokens;
    whole.targets = targets;
    whole.time = TIME;
    whole.batch = 1;
    model_run r;
    model_run_open(&r, &whole, &(model_run_options){.dtype = WEFT_F32});
    int64_t vocab = whole.config.vocab_size;
    double *logits = model_run_values(&r, r.session.graph.logits, TIME * vocab);
    for (int t = PROMPT - 1; t + 1 < TIME; t++) {
        const double *row = logits + t * vocab;
        int64_t best = 0;
        double sum = 0;
        for (int64_t v = 0; v < vocab; v++) {
            if (row[v] > row[best]) best = v;
            sum += exp(row[v]);
        }
        assert_int_equal(best, tokens[t + 1]);
        double want = row[best] - log(sum), got = (double)text.tokens[t + 1 - PROMPT].logprob;
        if (!(fabs(got - want) <= 1e-4)) fail_msg("%s: logprob %g, not %g", name, got, want);
    }
    free(logits);
    model_run_close(&r);
    whole.tokens = own[0];
    whole.targets = own[1];
    model_case_close(&whole);
}

/* Every config of the architecture vectors that generates. Without positions equal tokens have equal
 * weights, and which of them are the k largest is a matter of last bits. */
static void test_greedy_text_is_the_whole_pass_s(void **state) {
    (void)state;
    char **all;
    int n = model_case_names(&all);
    for (int i = 0; i < n; i++) {
        model_case c;
        model_case_open(&c, all[i]);
        bool tied = c.config.cross_token && c.config.sparse_mode == WEFT_SPARSE_TOPK &&
                    c.config.position == WEFT_POSITION_NONE;
        bool generates = weft_cached_check(&c.config) == WEFT_OK;
        model_case_close(&c);
        if (generates && !tied) check_greedy(all[i], 60);
    }
    model_case_names_free(all, n);
}

/* rope, alibi and none have a position for every token. */
static void test_positions_without_an_end_go_on_past_the_block(void **state) {
    static const char *const without_end[] = {"mla-reciprocal-rope", "dot-alibi-h3", "dot-none"};
    (void)state;
    for (size_t c = 0; c < sizeof without_end / sizeof without_end[0]; c++)
        check_greedy(without_end[c], 30);
}

static void test_the_pool_has_the_bytes_that_the_plan_tells(void **state) {
    static const char *const types[] = {"CACHE_DTYPE=f32", "CACHE_DTYPE=bf16", "CACHE_DTYPE=int8"};
    (void)state;
    char **all;
    int n = model_case_names(&all);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            generation f;
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
            generation_close(&f);
        }
    model_case_names_free(all, n);
}

static void test_a_conversation_goes_on_in_the_cache(void **state) {
    (void)state;
    for (size_t c = 0; c < N_NAMES; c++) {
        generation f;
        int32_t prompt[30], more[20], joined[90];
        int64_t id;
        made_text first = {0}, second = {0}, want;
        open_model(&f, names[c], 120, 1);
        generation_start(&f, NULL, &(weft_generator_limits){.sequences = 1});
        fill_prompt(&f, prompt, 30, 0);
        fill_prompt(&f, more, 20, 5);
        weft_sampling s = sampling_of(0, 12);
        assert_int_equal(weft_generator_add(f.g, prompt, 30, &s, &id), WEFT_OK);
        assert_int_equal(weft_generator_extend(f.g, id, more, 20, &s), WEFT_EINPUT);
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        text_take(f.g, id, &first);
        weft_generator_stats before, after;
        weft_generator_count(f.g, &before);
        assert_int_equal(weft_generator_extend(f.g, id, more, 20, &s), WEFT_OK);
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        text_take(f.g, id, &second);
        weft_generator_count(f.g, &after);
        /* Only what is new was computed: the last token made, and the new ones. */
        assert_int_equal(after.prompt_tokens - before.prompt_tokens, 20);
        memcpy(joined, prompt, sizeof prompt);
        for (int i = 0; i < 12; i++)
            joined[30 + i] = first.tokens[i].token;
        memcpy(joined + 42, more, sizeof more);
        make_alone(names[c], 120, joined, 62, &s, &want);
        text_compare(names[c], 0, &second, &want);
        generation_close(&f);
    }
}

static void test_texts_end_where_they_should(void **state) {
    (void)state;
    generation f;
    int32_t prompt[20];
    made_text text = {0}, again = {0};
    int64_t id;
    open_model(&f, "dot-learned", 32, 1);
    generation_start(&f, NULL, NULL);
    fill_prompt(&f, prompt, 20, 0);
    weft_sampling s = sampling_of(1, 100);
    assert_int_equal(weft_generator_add(f.g, prompt, 20, &s, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        generation_step(f.g);
    text_take(f.g, id, &text);
    assert_int_equal(text.n, 12); /* the context's end */
    assert_int_equal(text.end, WEFT_TAKE_LENGTH);
    int64_t first = 0; /* the same text up to the first place of that token, which is not given */
    s.end_token = text.tokens[4].token;
    while (text.tokens[first].token != s.end_token)
        first++;
    assert_int_equal(weft_generator_add(f.g, prompt, 20, &s, &id), WEFT_OK);
    while (weft_generator_busy(f.g))
        generation_step(f.g);
    text_take(f.g, id, &again);
    assert_int_equal(again.end, WEFT_TAKE_END);
    assert_int_equal(again.n, first);
    for (int64_t i = 0; i < first; i++)
        assert_int_equal(again.tokens[i].token, text.tokens[i].token);
    generation_close(&f);
}

/* A call with the number of a sequence that was never added, or is gone, changes nothing and says so. */
static void test_a_sequence_that_is_not_there(void **state) {
    (void)state;
    generation f;
    int32_t prompt[20];
    int64_t id[3];
    weft_sampled token;
    weft_generator_stats stats;
    made_text texts[2] = {0}, want;
    weft_sampling s = sampling_of(0, 6);
    open_model(&f, "dot-learned", 32, 1);
    generation_start(&f, NULL, NULL);
    fill_prompt(&f, prompt, 20, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(weft_generator_add(f.g, prompt, 20, &s, &id[i]), WEFT_OK);
    generation_step(f.g);
    weft_generator_remove(f.g, id[1]);
    const int64_t none[] = {-1, id[1], id[2] + 1};
    for (int i = 0; i < 3; i++) {
        char message[80];
        assert_int_equal(weft_generator_take(f.g, none[i], &token), WEFT_TAKE_WAIT);
        assert_int_equal(weft_generator_shared(f.g, none[i]), 0);
        weft_generator_stop(f.g, none[i]);
        weft_generator_remove(f.g, none[i]);
        assert_int_equal(weft_generator_extend(f.g, none[i], prompt, 2, &s), WEFT_EINPUT);
        snprintf(message, sizeof message, "generate: sequence %lld is not there or has not ended",
                 (long long)none[i]);
        assert_string_equal(weft_error_message(), message);
    }
    weft_generator_count(f.g, &stats);
    assert_int_equal(stats.running + stats.waiting, 2);
    while (weft_generator_busy(f.g))
        generation_step(f.g);
    make_alone("dot-learned", 32, prompt, 20, &s, &want);
    for (int i = 0; i < 2; i++) {
        text_take(f.g, id[2 * i], &texts[i]);
        text_compare("dot-learned", i, &texts[i], &want);
    }
    generation_close(&f);
}

static void refuse_open(generation *f, weft_generator_limits limits, const char *why) {
    assert_int_equal(weft_generator_open(f->model, weft_cpu_backend(), f->pool, &limits, &f->g),
                     WEFT_EINPUT);
    assert_null(f->g);
    assert_string_equal(weft_error_message(), why);
}

static void refuse_prompt(generation *f, const int32_t *prompt, int64_t n, weft_sampling s,
                          const char *why) {
    int64_t id;
    assert_int_equal(weft_generator_add(f->g, prompt, n, &s, &id), WEFT_EINPUT);
    assert_string_equal(weft_error_message(), why);
}

/* In words that name the limit and a way out. */
static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    generation f;
    int32_t prompt[40] = {0};
    int64_t id;
    char token[100];
    weft_sampling s = weft_sampling_default(), wrong = s;
    open_model(&f, "dot-learned", 32, 1);
    refuse_open(&f, (weft_generator_limits){.context = 33},
                "a context of 33 tokens is too long: the model's positions (learned) end at "
                "CONFIG_CONTEXT=32");
    refuse_open(&f, (weft_generator_limits){.slide = true},
                "a sliding context needs positions without an end: CONFIG_POSITION=\"rope\", "
                "\"alibi\" or \"none\"");
    refuse_open(&f, (weft_generator_limits){.sequences = -1},
                "-1 sequences of 32 tokens cannot be generated");
    refuse_open(&f, (weft_generator_limits){.sequences = 65537},
                "65537 sequences of 32 tokens cannot be generated");
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool,
                                         &(weft_generator_limits){.cache_bytes = 7}, &f.g),
                     WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(),
                           "a cache of 7 bytes does not hold a page of 16 tokens, which takes "));
    generation_start(&f, NULL, NULL);
    refuse_prompt(&f, prompt, 32, s,
                  "the prompt has 32 tokens, too many for a context of 32; shorten it");
    refuse_prompt(&f, prompt, 0, s, "the prompt is empty; give one token at least");
    assert_int_equal(weft_generator_add(f.g, prompt, 31, &s, &id), WEFT_OK);
    weft_generator_remove(f.g, id);
    const int32_t vocab = (int32_t)f.c.config.vocab_size, outside[] = {-1, vocab, vocab - 1};
    for (int i = 0; i < 3; i++) {
        prompt[3] = outside[i];
        snprintf(token, sizeof token, "token 3 of the prompt is %d, but the model knows 0 to %d",
                 (int)prompt[3], (int)vocab - 1);
        if (i < 2) refuse_prompt(&f, prompt, 10, s, token);
    }
    assert_int_equal(weft_generator_add(f.g, prompt, 10, &s, &id), WEFT_OK);
    weft_generator_remove(f.g, id);
    wrong.top_p = -1;
    refuse_prompt(&f, prompt, 3, wrong, "top-p is -1, but it must be from 0 to 1");
    assert_false(weft_generator_busy(f.g));
    generation_close(&f);
    open_model(&f, "dot-noncausal", 32, 1);
    assert_int_equal(weft_generator_open(f.model, weft_cpu_backend(), f.pool, NULL, &f.g),
                     WEFT_EINPUT);
    generation_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sequence_makes_the_same_tokens_among_others),
        cmocka_unit_test(test_narrow_caches_and_weights_keep_a_sequences_bits),
        cmocka_unit_test(test_prompts_in_pieces_keep_a_sequences_bits),
        cmocka_unit_test(test_a_long_prompt_does_not_stop_the_others),
        cmocka_unit_test(test_a_prompt_in_pieces_is_set_back),
        cmocka_unit_test(test_a_full_pool_sets_the_youngest_back),
        cmocka_unit_test(test_a_small_pool_is_a_shorter_context),
        cmocka_unit_test(test_sliding_sequences_are_the_same_among_others),
        cmocka_unit_test(test_a_sliding_text_sees_the_last_tokens),
        cmocka_unit_test(test_equal_beginnings_share_their_pages),
        cmocka_unit_test(test_greedy_text_is_the_whole_pass_s),
        cmocka_unit_test(test_positions_without_an_end_go_on_past_the_block),
        cmocka_unit_test(test_the_pool_has_the_bytes_that_the_plan_tells),
        cmocka_unit_test(test_a_conversation_goes_on_in_the_cache),
        cmocka_unit_test(test_texts_end_where_they_should),
        cmocka_unit_test(test_a_sequence_that_is_not_there),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

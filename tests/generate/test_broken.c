/* Logits that are not numbers: their sequence ends, and says so, and the others make the tokens that they
 * make alone, from the same bits, in the same steps and in the pages that the broken one leaves. One
 * token's embedding is poisoned, so a text breaks behind that token and nowhere else. And memory that is not there:
 * each allocation fails in turn. */
#include "cpu/backend.h"
#include "generate/generator.h"
#include "model/cached.h"
#include "support/allocations.h"
#include "support/generation.h"
#include "support/poison.h"
#include "support/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 12, PROMPT_MOST = 300, TEXT = 24, CONTEXT = 340, TOGETHER = 4 };

static const int64_t lengths[N] = {5, 20, 300, 1, 33, 16, 17, 270, 8, 40, 64, 12};

static void open_model(generation *f, const char *name, const char *cache, int threads) {
    char type[32];
    snprintf(type, sizeof type, "CACHE_DTYPE=%s", cache);
    generation_open(f, name, CONTEXT, threads,
                    (const char *[]){"WEIGHT_TYING=n", "VOCAB_SIZE=211", type, NULL});
}

/* `samples`: likeliest tokens are sampled where they are made (core/decoding.h). */
static void open_generator(generation *f, bool samples, const weft_generator_limits *limits) {
    generation_start(f, samples ? sampling_backend() : NULL, limits);
}

static int64_t add(const generation *f, int i) {
    int32_t prompt[PROMPT_MOST];
    int64_t id;
    weft_sampling s = weft_sampling_default();
    s.seed = (uint64_t)(40 + i);
    s.max_tokens = TEXT - i % 3;
    s.temperature = i % 3 == 0 ? 0 : 1;
    s.token_only = i % 2 == 0;
    for (int64_t t = 0; t < lengths[i]; t++)
        prompt[t] = (int32_t)((t * t * 7 + t * 3 + i) % f->c.config.vocab_size);
    assert_int_equal(weft_generator_add(f->g, prompt, lengths[i], &s, &id), WEFT_OK);
    return id;
}

/* Whether the prompt has the token. */
static bool begins_with(const generation *f, int i, int32_t token) {
    for (int64_t t = 0; t < lengths[i]; t++)
        if ((t * t * 7 + t * 3 + i) % f->c.config.vocab_size == token) return true;
    return false;
}

/* What becomes of a text when a token breaks it: the token itself is the last. */
static void cut_text(const generation *f, int i, int32_t token, made_text *text) {
    int64_t n = 0;
    while (n < text->n && text->tokens[n].token != token)
        n++;
    if (begins_with(f, i, token))
        n = 0;
    else if (++n >= text->n)
        return;
    text->n = n;
    text->end = WEFT_TAKE_BROKEN;
}

/* Each sequence alone, with weights that are all numbers. */
static void make_alone(const char *name, const char *cache, bool samples, made_text *want) {
    for (int i = 0; i < N; i++) {
        generation f;
        open_model(&f, name, cache, 1);
        open_generator(&f, samples, &(weft_generator_limits){.sequences = 1, .no_sharing = true});
        int64_t id = add(&f, i);
        while (weft_generator_busy(f.g))
            generation_step(f.g);
        want[i] = (made_text){0};
        text_take(f.g, id, want + i);
        assert_int_equal(want[i].end, WEFT_TAKE_LENGTH);
        generation_close(&f);
    }
}

/* All of them with a token that breaks. One that ended is removed at once, and the next one takes its
 * pages. */
static void make_together(generation *f, made_text *got) {
    int64_t id[N];
    bool ended[N] = {0};
    for (int i = 0; i < N; i++)
        id[i] = add(f, i);
    while (weft_generator_busy(f->g)) {
        generation_step(f->g);
        for (int i = 0; i < N; i++) {
            if (ended[i]) continue;
            text_take(f->g, id[i], got + i);
            ended[i] = got[i].end != WEFT_TAKE_WAIT;
            if (ended[i]) weft_generator_remove(f->g, id[i]);
        }
    }
}

static void check_broken(const char *name, const char *cache, bool samples, float with) {
    made_text want[N], got[N] = {0};
    generation f;
    int broken = 0;
    make_alone(name, cache, samples, want);
    open_model(&f, name, cache, 2);
    /* Text 6 has only likeliest tokens, of which no logits are wanted. */
    int32_t token = want[samples ? 6 : 4].tokens[5].token;
    poison_token(f.model, token, with);
    int64_t page = generation_page_bytes(&f);
    open_generator(&f, samples,
                   &(weft_generator_limits){.sequences = TOGETHER, .cache_bytes = 30 * page});
    make_together(&f, got);
    for (int i = 0; i < N; i++) {
        cut_text(&f, i, token, want + i);
        broken += want[i].end == WEFT_TAKE_BROKEN;
        text_compare(name, i, got + i, want + i);
    }
    if (broken == 0 || broken > N - 3)
        fail_msg("%s: %d of %d texts break; the test wants some that do and some that do not", name,
                 broken, N);
    weft_generator_stats stats;
    weft_generator_count(f.g, &stats);
    assert_int_equal(stats.pages_used, 0);
    generation_close(&f);
}

static void test_broken_logits_end_only_their_sequence(void **state) {
    static const char *const names[] = {"dot-learned", "w2-rope", "mla-reciprocal-rope",
                                        "mix-dot-gqa-swiglu-gate-cross"};
    (void)state;
    for (size_t c = 0; c < sizeof names / sizeof names[0]; c++)
        check_broken(names[c], "f32", false, c % 2 ? INFINITY : NAN);
}

static void test_tokens_that_are_sampled_there_break_off_in_the_same_way(void **state) {
    (void)state;
    check_broken("dot-learned", "f32", true, NAN);
    check_broken("mla-reciprocal-rope", "bf16", true, INFINITY);
}

static void test_narrow_caches_that_hold_no_numbers_harm_nobody(void **state) {
    (void)state;
    check_broken("dot-learned", "bf16", false, NAN);
    check_broken("dot-learned", "int8", false, NAN);
    check_broken("mla-joint-rope", "bf16", false, NAN);
    check_broken("mla-joint-rope", "int8", false, INFINITY);
}

#ifdef COUNTS_ALLOCATIONS
static const struct {
    const char *name, *weights;
    weft_generator_limits limits;
} without[] = {{"dot-learned", "WEIGHT_DTYPE=int8", {.sequences = 2, .ngram = true}},
               {"mla-reciprocal-rope", "WEIGHT_DTYPE=bf16", {.sequences = 2}}};
enum { WITHOUT = sizeof without / sizeof without[0] };

/* Whichever allocation fails, opening fails and says so, and what was taken before it is given back. */
static void test_a_generator_without_memory_is_not_opened(void **state) {
    (void)state;
    for (int i = 0; i < WITHOUT; i++) {
        generation f;
        generation_open(&f, without[i].name, 64, 1, (const char *[]){without[i].weights, NULL});
        generation_start(&f, NULL, &without[i].limits); /* what is made once is there */
        weft_generator_close(f.g);
        int64_t before = atomic_load(&live);
        int64_t nth = 0, failures = 0;
        for (bool all = false; !all;) {
            failing = ++nth;
            weft_status status =
                weft_generator_open(f.model, weft_cpu_backend(), f.pool, &without[i].limits, &f.g);
            all = failing > 0;
            failing = 0;
            /* One whose failure nobody minds, such as for a file that tells of limits, ends well. */
            if (status != WEFT_OK && (all || !strstr(weft_error_message(), "no memory")))
                fail_msg("%s, allocation %lld: status %d: %s", without[i].name, (long long)nth,
                         (int)status, weft_error_message());
            assert_true((status == WEFT_OK) == (f.g != NULL));
            failures += status != WEFT_OK;
            if (f.g) weft_generator_close(f.g);
            if (atomic_load(&live) != before)
                fail_msg("%s, allocation %lld (%s): %lld blocks are left", without[i].name,
                         (long long)nth, weft_error_message(),
                         (long long)(atomic_load(&live) - before));
        }
        assert_true(failures > 50);
        f.g = NULL;
        generation_close(&f);
    }
}

/* A step that fails for want of memory may be tried again, and loses no token. */
static void test_steps_without_memory_lose_nothing(void **state) {
    (void)state;
    enum { TEXTS = 3 };
    for (int i = 0; i < WITHOUT; i++) {
        made_text want[TEXTS] = {0};
        bool whole = false;
        int failures = 0;
        for (int64_t nth = 0; !whole; nth += nth ? 5 : 1) { /* 0: none fails */
            generation f;
            int64_t id[TEXTS];
            int failed = 0;
            made_text got[TEXTS] = {0};
            generation_open(&f, without[i].name, 64, 1, (const char *[]){without[i].weights, NULL});
            generation_start(&f, NULL, &without[i].limits);
            for (int k = 0; k < TEXTS; k++) {
                int32_t prompt[40];
                weft_sampling s = weft_sampling_default();
                s.max_tokens = 10;
                s.seed = (uint64_t)k;
                for (int t = 0; t < 40; t++)
                    prompt[t] = (int32_t)((t * 5 + (t < 20 ? 0 : k)) % f.c.config.vocab_size);
                assert_int_equal(weft_generator_add(f.g, prompt, 40 - k, &s, &id[k]), WEFT_OK);
            }
            failing = nth;
            while (weft_generator_busy(f.g)) {
                weft_status status = weft_generator_step(f.g);
                if (status == WEFT_OK) continue;
                if (!strstr(weft_error_message(), "no memory"))
                    fail_msg("%s, allocation %lld: status %d: %s", without[i].name, (long long)nth,
                             (int)status, weft_error_message());
                assert_int_equal(failed++, 0);
            }
            whole = nth > 0 && failing > 0;
            failures += failed;
            assert_true(!failed || !whole);
            failing = 0;
            for (int k = 0; k < TEXTS; k++) {
                text_take(f.g, id[k], nth ? &got[k] : &want[k]);
                if (nth) text_compare(without[i].name, k, &got[k], &want[k]);
            }
            generation_close(&f);
        }
        assert_true(failures > 50);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef COUNTS_ALLOCATIONS
        cmocka_unit_test(test_a_generator_without_memory_is_not_opened),
        cmocka_unit_test(test_steps_without_memory_lose_nothing),
#endif
        cmocka_unit_test(test_broken_logits_end_only_their_sequence),
        cmocka_unit_test(test_tokens_that_are_sampled_there_break_off_in_the_same_way),
        cmocka_unit_test(test_narrow_caches_that_hold_no_numbers_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

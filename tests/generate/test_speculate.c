/* Speculation writes what plain decoding writes, from the same bits: every config of tests/model/configs that
 * generates, with every type of cache and matrices, drafts that are right, wrong and half right, greedy and
 * drawn, over a pool that is too small for all. What is wrong leaves no trace in what is written later, by the
 * sequence, by one that shares its pages, or by a conversation that goes on. tests/cuda/test_speculate.c is the
 * same on the GPU. */
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "model/cached.h"
#include "support/generation.h"
#include "support/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEXTS = 5, CONTEXT = 96, PROMPT_MOST = 600 };

#ifdef ON_GPU
#define test_backend weft_cuda_backend
enum { ROWS_OF_A_STEP = 32, CONFIGS_APART = 7 };
#else
#define test_backend weft_cpu_backend
enum { ROWS_OF_A_STEP = 4, CONFIGS_APART = 1 };
#endif

static const char *const types[] = {"f32", "bf16", "int8", "bf16" /* in all that is computed */};

typedef struct {
    model_case c;
    weft_model *model, *draft;
    weft_pool *pool;
    const weft_backend *backend;
    weft_dtype dtype;
} fixture;

static void check(const fixture *f, weft_status status) {
    if (status != WEFT_OK) fail_msg("%s: %s", f->c.name, weft_error_message());
}

static weft_model *make_model(const fixture *f, const char *type, uint64_t key) {
    model_case c = f->c;
    c.key += key;
    check(f, weft_config_set(&c.config, "CACHE_DTYPE", type, "test"));
    check(f, weft_config_set(&c.config, "WEIGHT_DTYPE", type, "test"));
    return model_case_weights(&c, f->dtype);
}

/* False: the config does not generate. The draft model's matrices have another type than the model's; with
 * `wide` ones they are most of what is read, and int8 beside f32 pays. */
static bool open_wide(fixture *f, const char *name, int64_t context, size_t type, bool wide) {
    *f = (fixture){.backend = test_backend(), .dtype = type == 3 ? WEFT_BF16 : WEFT_F32};
    if (!f->backend) {
        printf("%s\n", weft_error_message());
        skip();
    }
    model_case_open(&f->c, name);
    f->c.config.context = context;
    if (wide) f->c.config.n_embd = 128;
    if (wide) f->c.config.n_head = 4;
    if (wide) f->c.config.n_ffn = 512;
    if (weft_cached_check(&f->c.config) != WEFT_OK) {
        model_case_close(&f->c);
        return false;
    }
    f->model = make_model(f, types[type], 0);
    f->draft = make_model(f, types[type == 2 ? 1 : 2], 0);
    check(f, weft_pool_create(1, &f->pool));
    return true;
}

static bool open_models(fixture *f, const char *name, int64_t context, size_t type) {
    return open_wide(f, name, context, type, false);
}

static void close_models(fixture *f) {
    weft_pool_destroy(f->pool);
    weft_model_destroy(f->model);
    weft_model_destroy(f->draft);
    model_case_close(&f->c);
}

/* Text i begins like text i − 2, and repeats itself. */
static int64_t fill_prompt(const fixture *f, int i, int32_t *prompt) {
    static const int64_t lengths[TEXTS] = {20, 7, 38, 1, 33};
    for (int64_t t = 0; t < lengths[i]; t++)
        prompt[t] = (int32_t)((t % 9 * 5 + i % 2 + 1) % f->c.config.vocab_size);
    return lengths[i];
}

static weft_sampling sampling_of(int i) {
    weft_sampling s = weft_sampling_default();
    s.temperature = i == 1 || i == 4 ? 0.3 : 0;
    s.top_k = i == 4 ? 4 : 0;
    s.top_p = i == 4 ? 0.95 : 1;
    s.repetition_penalty = i == 2 ? 1.1 : 1;
    s.seed = (uint64_t)i + 40;
    s.max_tokens = 30 + 3 * i;
    s.end_token = i == 3 ? 3 : -1;
    s.token_only = i % 2 == 0;
    return s;
}

/* Every text, each added a step after the one before; the steps that failed are made again. */
static void write_texts(const fixture *f, const weft_generator_limits *limits, made_text *texts,
                        weft_generator_stats *stats) {
    weft_generator *g;
    int64_t ids[TEXTS];
    int32_t prompt[64];
    memset(texts, 0, TEXTS * sizeof *texts);
    check(f, weft_generator_open(f->model, f->backend, f->pool, limits, &g));
    for (int i = 0; i < TEXTS; i++) {
        weft_sampling how = sampling_of(i);
        check(f, weft_generator_add(g, prompt, fill_prompt(f, i, prompt), &how, ids + i));
        weft_generator_step(g);
    }
    for (int failed = 0; weft_generator_busy(g);)
        if (weft_generator_step(g) != WEFT_OK) assert_in_range(++failed, 1, 3);
    for (int i = 0; i < TEXTS; i++)
        text_take(g, ids[i], texts + i);
    weft_generator_count(g, stats);
    weft_generator_close(g);
}

static void compare(const fixture *f, const char *how, const made_text *got,
                    const made_text *want) {
    char name[128];
    snprintf(name, sizeof name, "%s, %s", f->c.name, how);
    for (int i = 0; i < TEXTS; i++)
        text_compare(name, i, got + i, want + i);
}

/* The texts by n-grams, by the draft model, by one that says something else, and plainly. */
static void check_texts(const fixture *f, weft_generator_limits limits, weft_generator_stats *all) {
    made_text want[TEXTS], got[TEXTS];
    weft_generator_stats stats;
    weft_model *other = make_model(f, "f32", 1);
    const weft_model *const drafts[] = {NULL, f->draft, other};
    static const char *const names[] = {"ngram", "draft model", "other model"};
    write_texts(f, &limits, want, &stats);
    assert_int_equal(stats.drafted_tokens, 0);
    for (int i = 0; i < 3; i++) {
        limits.ngram = !drafts[i];
        limits.draft = drafts[i];
        write_texts(f, &limits, got, &stats);
        compare(f, names[i], got, want);
        all[i].drafted_tokens += stats.drafted_tokens;
        all[i].accepted_tokens += stats.accepted_tokens;
        all[i].set_back += stats.set_back;
        all[i].shared_tokens += stats.shared_tokens;
    }
    weft_model_destroy(other);
}

static void test_texts_are_the_same_with_every_mechanism(void **state) {
    (void)state;
    char **names;
    weft_generator_stats all[3] = {0};
    fixture f;
    int n = model_case_names(&names);
    for (int i = 0; i < n; i += CONFIGS_APART) {
        if (!open_models(&f, names[i], CONTEXT, (size_t)i % 4)) continue;
        int64_t page = WEFT_PAGE_TOKENS * weft_cached_token_bytes(&f.c.config, WEFT_F32);
        weft_generator_limits limits = {.sequences = 3, .no_sharing = i % 5 == 3};
        if (i % 3) limits.cache_bytes = (i % 2 ? 9 : 7) * page;
        check_texts(&f, limits, all);
        close_models(&f);
    }
    model_case_names_free(names, n);
    for (int i = 0; i < 3; i++) {
        printf("%lld drafted, %lld accepted, %lld set back\n", (long long)all[i].drafted_tokens,
               (long long)all[i].accepted_tokens, (long long)all[i].set_back);
        assert_true(all[i].accepted_tokens > 0);
        assert_true(all[i].drafted_tokens > all[i].accepted_tokens);
        assert_true(all[i].set_back > 0 && all[i].shared_tokens > 0);
    }
    assert_true(all[1].accepted_tokens > all[1].drafted_tokens * 9 / 10);
}

/* Past the end of a context that slides, and behind the last position of the draft model. */
static void test_texts_are_the_same_at_the_end_of_contexts(void **state) {
    static const char *const sliding[] = {"w2-rope", "dot-alibi-h3", "mla-joint-rope"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        weft_generator_stats all[3] = {0};
        fixture f;
        open_models(&f, sliding[i], 40, i);
        check_texts(&f, (weft_generator_limits){.sequences = 2, .slide = true}, all);
        assert_true(all[1].accepted_tokens > 0);
        close_models(&f);
    }
    weft_generator_stats all[3] = {0};
    fixture f;
    open_models(&f, "dot-learned", CONTEXT, 0);
    weft_model_destroy(f.draft);
    f.c.config.context = 30;
    f.draft = make_model(&f, "f32", 0);
    check_texts(&f, (weft_generator_limits){.sequences = 2}, all);
    assert_true(all[1].accepted_tokens > 0);
    close_models(&f);
}

#ifndef ON_GPU

/* Where the device samples, and where a run fails and the step is made again. */
static void test_texts_are_the_same_with_sampled_tokens_and_errors(void **state) {
    static const char *const names[] = {"dot-rope", "gate-cummean", "mla-reciprocal-rope"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        weft_generator_stats all[3] = {0}, stats;
        made_text want[TEXTS], got[TEXTS];
        fixture f;
        open_models(&f, names[i], CONTEXT, i);
        weft_generator_limits limits = {.sequences = 3};
        write_texts(&f, &limits, want, &stats);
        f.backend = sampling_backend();
        check_texts(&f, limits, all);
        assert_true(all[0].accepted_tokens > 0 && all[1].accepted_tokens > 0);
        limits.draft = f.draft;
        for (int nth = 1; nth < 40; nth += 3) {
            sampling_fail(nth);
            write_texts(&f, &limits, got, &stats);
            sampling_fail(0);
            for (int k = 0; k < TEXTS; k++) /* tokens of the device have no logprob */
                for (int64_t t = 0; t < got[k].n && sampling_of(k).token_only; t++)
                    got[k].tokens[t].logprob = want[k].tokens[t].logprob;
            compare(&f, "failing runs", got, want);
        }
        close_models(&f);
    }
}

#endif

/* A prompt of whole blocks, read by the draft model too. */
static void test_long_prompts_are_drafted_for(void **state) {
    static int32_t prompt[PROMPT_MOST];
    (void)state;
    fixture f;
    open_wide(&f, "w2-rope", 700, 0, true);
    made_text texts[2] = {0};
    for (int i = 0; i < PROMPT_MOST; i++)
        prompt[i] = i * i % (int32_t)f.c.config.vocab_size;
    for (int i = 0; i < 2; i++) {
        weft_generator_limits limits = {.sequences = 1, .draft = i ? f.draft : NULL};
        weft_generator_stats stats;
        weft_generator *g;
        int64_t id;
        weft_sampling how = sampling_of(0);
        how.token_only = false;
        check(&f, weft_generator_open(f.model, f.backend, f.pool, &limits, &g));
        check(&f, weft_generator_add(g, prompt, PROMPT_MOST, &how, &id));
        while (weft_generator_busy(g))
            check(&f, weft_generator_step(g));
        text_take(g, id, texts + i);
        weft_generator_count(g, &stats);
        assert_true(stats.accepted_tokens >= i);
        weft_generator_close(g);
    }
    assert_memory_equal(texts, texts + 1, sizeof *texts);
    close_models(&f);
}

/* A text of 12 tokens, taken until `stop` of them are there, stopped, gone on with behind others. */
static void converse(const fixture *f, const weft_generator_limits *limits, int stop,
                     made_text *texts) {
    weft_generator *g;
    int64_t id;
    int32_t prompt[64];
    weft_sampling how = sampling_of(0);
    how.token_only = false;
    memset(texts, 0, 2 * sizeof *texts);
    check(f, weft_generator_open(f->model, f->backend, f->pool, limits, &g));
    check(f, weft_generator_add(g, prompt, fill_prompt(f, 0, prompt), &how, &id));
    while (texts->n < stop) {
        weft_take got = weft_generator_take(g, id, texts->tokens + texts->n);
        if (got == WEFT_TAKE_TOKEN)
            texts->n++;
        else
            check(f, weft_generator_step(g));
    }
    weft_generator_stop(g, id);
    check(f, weft_generator_extend(g, id, prompt, fill_prompt(f, 1, prompt), &how));
    while (weft_generator_busy(g))
        check(f, weft_generator_step(g));
    text_take(g, id, texts + 1);
    weft_generator_close(g);
}

static void test_a_stopped_text_goes_on_behind_what_was_taken(void **state) {
    static const char *const names[] = {"dot-rope", "gate-cummean", "document-dot-rope",
                                        "mla-reciprocal-rope"};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (int stop = 1; stop <= 30; stop++) {
            fixture f;
            made_text want[2], got[2];
            open_models(&f, names[i], CONTEXT, 0);
            weft_generator_limits limits = {.sequences = 1, .no_sharing = stop % 2};
            converse(&f, &limits, stop, want);
            limits.ngram = true;
            converse(&f, &limits, stop, got);
            if (memcmp(want, got, sizeof want) != 0)
                fail_msg("%s, stopped after %d tokens, goes on in another way", names[i], stop);
            close_models(&f);
        }
}

/* Tokens that promise most for their time, where p of them are right and one costs the draft model
 * `reads` times what a step of the model reads. */
static int draft_length(double p, double reads) {
    int best = 0;
    double most = 1;
    for (int n = 1; n <= 15; n = 2 * n + 1) {
        double made = (1 - pow(p, n + 1)) / (1 - p),
               rate = made / (1 + (double)n / ROWS_OF_A_STEP + n * reads);
        if (rate > most * (1 + 1e-9)) best = n, most = rate;
    }
    return best;
}

/* The steps, and what is drafted, of a text of which every draft is right, or none. */
static int count_steps(int tokens, double reads, bool right, int *drafted) {
    int steps = 1, made = 1, rest = 0; /* the prompt's step makes the first token */
    double p = 0.5;
    *drafted = 0;
    for (; made < tokens; steps++) {
        int n = draft_length(p, reads);
        rest = n ? 0 : rest + 1;
        if (rest == 16) n = 1, rest = 0;
        if (n > tokens - 1 - made) n = tokens - 1 - made;
        made += right ? n + 1 : 1;
        *drafted += n;
        for (int i = 0; i < (right ? n : n > 0); i++)
            p += (right - p) / 8;
    }
    return steps;
}

/* A text of `tokens`: the steps that it took. */
static int write_drafted(const fixture *f, const weft_model *m, const weft_model *by, int tokens,
                         double temperature, weft_generator_stats *stats) {
    weft_generator_limits limits = {.sequences = 1, .draft = by, .no_sharing = true};
    weft_generator *g;
    weft_sampled token;
    int32_t prompt[64];
    int64_t id;
    int steps = 0;
    weft_sampling how = sampling_of(0);
    how.max_tokens = tokens;
    how.temperature = temperature;
    check(f, weft_generator_open(m, f->backend, f->pool, &limits, &g));
    check(f, weft_generator_add(g, prompt, fill_prompt(f, 0, prompt), &how, &id));
    for (; weft_generator_busy(g); steps++)
        check(f, weft_generator_step(g));
    while (weft_generator_take(g, id, &token) == WEFT_TAKE_TOKEN)
        assert_true(m != f->model || token.token != 0);
    weft_generator_count(g, stats);
    weft_generator_close(g);
    return steps;
}

/* Weights of zero find all tokens equally likely and take the first: another such model is always right about
 * it, and never about a text that has no such token. */
static void test_drafts_follow_what_was_right(void **state) {
    enum { TOKENS = 120 };
    (void)state;
    fixture f;
    weft_model *nothing, *less;
    weft_generator_stats stats, of_draft;
    open_models(&f, "dot-rope", 512, 0);
    check(&f, weft_model_create(&f.model->config, WEFT_F32, NULL, &nothing));
    check(&f, weft_model_create(&f.draft->config, WEFT_F32, NULL, &less));
    write_drafted(&f, less, NULL, 2, 0, &of_draft);
    for (int right = 0; right < 2; right++) {
        int drafted, steps = write_drafted(&f, right ? nothing : f.model, less, TOKENS, 0, &stats);
        double reads = (double)of_draft.weight_bytes / (double)stats.weight_bytes;
        assert_int_equal(steps, count_steps(TOKENS, reads, right, &drafted));
        assert_int_equal(stats.drafted_tokens, drafted);
        assert_int_equal(stats.accepted_tokens, right * drafted);
    }
    weft_model_destroy(nothing);
    weft_model_destroy(less);
    close_models(&f);
}

#ifndef ON_GPU

/* A draft model that keeps something beside its pages goes on from what that was before it drafted: with the
 * model's weights, in f32 where the model has f64, it is always right. */
static void test_a_draft_models_state_is_put_back(void **state) {
    static const char *const names[] = {"gate-cummean", "mla-reciprocal-rope", "document-dot-rope"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        weft_generator_stats stats;
        fixture f;
        open_models(&f, names[i], 512, 0);
        weft_model *twice = model_case_weights(&f.c, WEFT_F64);
        write_drafted(&f, twice, f.model, 400, 1, &stats);
        assert_true(stats.drafted_tokens > 100);
        assert_int_equal(stats.accepted_tokens, stats.drafted_tokens);
        weft_model_destroy(twice);
        close_models(&f);
    }
}

#endif

static void test_another_vocabulary_is_refused(void **state) {
    (void)state;
    fixture f;
    weft_generator *g;
    open_models(&f, "dot-rope", CONTEXT, 0);
    weft_model_destroy(f.draft);
    f.c.config.vocab_size++;
    f.draft = make_model(&f, "f32", 0);
    weft_generator_limits limits = {.draft = f.draft};
    assert_int_equal(weft_generator_open(f.model, f.backend, f.pool, &limits, &g), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "vocabulary"));
    close_models(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef ON_GPU
        cmocka_unit_test(test_a_draft_models_state_is_put_back),
        cmocka_unit_test(test_texts_are_the_same_with_sampled_tokens_and_errors),
#endif
        cmocka_unit_test(test_drafts_follow_what_was_right),
        cmocka_unit_test(test_a_stopped_text_goes_on_behind_what_was_taken),
        cmocka_unit_test(test_long_prompts_are_drafted_for),
        cmocka_unit_test(test_texts_are_the_same_at_the_end_of_contexts),
        cmocka_unit_test(test_texts_are_the_same_with_every_mechanism),
        cmocka_unit_test(test_another_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Decoding equals the whole forward pass: every config of tests/model/configs that generates, against
 * the independent reference's logits and, for lengths that the reference does not have, against the
 * whole pass; and a sequence has the bits that it has alone, however its rows are put together.
 * tests/cuda/test_decode.c is the same on the GPU, in f32. */
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "generate/decoder.h"
#include "model/kinds.h"
#include "support/model_case.h"
#include "support/train_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LONG = 70 /* tokens: four pages and a bit */ };

#ifdef ON_GPU
#define test_backend weft_cuda_backend
static const weft_dtype WIDE = WEFT_F32;
static const double CLOSE = 1e-4;
#else
#define test_backend weft_cpu_backend
static const weft_dtype WIDE = WEFT_F64;
static const double CLOSE = 1e-6;
#endif

static void need_backend(void) {
    if (test_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

/* A decoder with room for `slots` sequences of `time` tokens; pages are given out backwards, so that
 * none lies where its number in the sequence would put it. */
typedef struct {
    weft_model *model;
    weft_pool *pool;
    weft_decoder *decoder;
    int64_t time, vocab, slots;
} decoding;

static void decoding_open(decoding *d, const model_case *c, weft_dtype dtype, int64_t time,
                          int64_t slots, int threads) {
    *d = (decoding){.time = time, .vocab = c->config.vocab_size, .slots = slots};
    d->model = model_case_weights(c, dtype);
    assert_int_equal(weft_pool_create(threads, &d->pool), WEFT_OK);
    int64_t table = weft_cached_table_pages(time), pages = slots * table;
    weft_decoder_limits limits = {slots, pages, time, table};
    if (weft_decoder_open(d->model, test_backend(), d->pool, &limits, &d->decoder) != WEFT_OK)
        fail_msg("%s: %s", c->name, weft_error_message());
    for (int64_t s = 0; s < slots; s++)
        for (int64_t p = 0; p < table; p++)
            weft_decoder_table(d->decoder, (int32_t)s)[p] = (int32_t)(pages - 1 - (p * slots + s));
}

static void decoding_close(decoding *d) {
    weft_decoder_close(d->decoder);
    weft_pool_destroy(d->pool);
    weft_model_destroy(d->model);
}

/* Runs tokens [from, to) of a sequence in one run, every logit wanted; logits [to − from, V]. */
static void decode_rows(decoding *d, int32_t slot, const int32_t *tokens, int64_t from, int64_t to,
                        float *logits) {
    weft_decoder_row rows[WEFT_DECODER_BLOCK];
    for (int64_t t = from; t < to; t++)
        rows[t - from] = (weft_decoder_row){tokens[t], (int32_t)t, slot, true};
    weft_status status = to - from == WEFT_DECODER_BLOCK
                             ? weft_decoder_run_block(d->decoder, rows, logits)
                             : weft_decoder_run(d->decoder, rows, to - from, logits);
    if (status != WEFT_OK) fail_msg("%s", weft_error_message());
}

/* The whole sequence in runs of `chunk` rows. */
static float *decode_all(decoding *d, int32_t slot, const int32_t *tokens, int64_t chunk) {
    float *logits = malloc((size_t)(d->time * d->vocab) * sizeof *logits);
    assert_non_null(logits);
    for (int64_t t = 0; t < d->time; t += chunk)
        decode_rows(d, slot, tokens, t, t + chunk < d->time ? t + chunk : d->time,
                    logits + t * d->vocab);
    return logits;
}

static bool generates(const weft_config *c) {
    return weft_cached_check(c) == WEFT_OK;
}

static void compare(const char *name, const char *what, const float *got, const double *want,
                    int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance))
            fail_msg("%s, %s: logit %lld is %.9g, the whole pass has %.9g", name, what,
                     (long long)i, (double)got[i], want[i]);
}

static void test_decoding_equals_the_reference(void **state) {
    need_backend();
    const char *name = *state;
    model_case c;
    model_case_open(&c, name);
    if (!generates(&c.config)) {
        model_case_close(&c);
        return;
    }
    vectors *kept = model_case_kept(name);
    const double *want = vectors_find(kept, "logits")->data;
    int64_t n = c.time * c.config.vocab_size;
    static const struct {
        weft_dtype dtype;
        int64_t chunk;
        double tolerance;
    } ways[] = {
        {WEFT_F64, 1, 1e-6}, {WEFT_F64, 3, 1e-6}, {WEFT_F32, 1, 1e-4}, {WEFT_F32, 16, 1e-4}};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        decoding d;
        if (ways[w].dtype == WEFT_F64 && WIDE == WEFT_F32) continue;
        decoding_open(&d, &c, ways[w].dtype, c.time, c.batch, 1);
        for (int64_t b = 0; b < c.batch; b++) {
            float *got = decode_all(&d, (int32_t)b, c.tokens + b * c.time, ways[w].chunk);
            compare(name, "reference", got, want + b * n, n, ways[w].tolerance);
            free(got);
        }
        decoding_close(&d);
    }
    vectors_close(kept);
    model_case_close(&c);
}

/* A case made longer: the config's block size and its tokens. */
static void open_long(model_case *c, const char *name, int64_t time) {
    model_case_open(c, name);
    c->config.context = time;
    c->time = time;
    c->batch = 1;
    free(c->tokens);
    free(c->targets);
    c->tokens = malloc((size_t)time * sizeof *c->tokens);
    c->targets = calloc((size_t)time, sizeof *c->targets);
    for (int64_t t = 0; t < time; t++)
        c->tokens[t] = (int32_t)((t * t + 3 * t + 1) % c->config.vocab_size);
}

static double *whole_pass(const model_case *c, weft_dtype dtype) {
    model_run r;
    model_run_open(&r, c, &(model_run_options){.dtype = dtype});
    double *values = model_run_values(&r, r.session.graph.logits, c->time * c->config.vocab_size);
    model_run_close(&r);
    return values;
}

static void test_decoding_equals_the_whole_pass_over_many_pages(void **state) {
    need_backend();
    const char *name = *state;
    model_case c;
    open_long(&c, name, LONG);
    /* Without positions equal tokens have equal weights, and which of them are the k largest is a
     * matter of last bits. */
    bool tied = c.config.cross_token && c.config.sparse_mode == WEFT_SPARSE_TOPK &&
                c.config.position == WEFT_POSITION_NONE;
    if (generates(&c.config) && !tied) {
        double *want = whole_pass(&c, WEFT_F64);
        decoding d;
        decoding_open(&d, &c, WIDE, LONG, 1, 1);
        float *got = decode_all(&d, 0, c.tokens, 1);
        compare(name, "one row at a time", got, want, LONG * d.vocab, CLOSE);
        free(got);
        got = decode_all(&d, 0, c.tokens, 32);
        compare(name, "32 rows at a time", got, want, LONG * d.vocab, CLOSE);
        free(got);
        decoding_close(&d);
        free(want);
    }
    model_case_close(&c);
}

static void assert_bits(const char *name, const char *what, const float *a, const float *b,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: %s: number %lld is %.9g, alone it is %.9g", name, what, (long long)i,
                     (double)b[i], (double)a[i]);
}

/* Three sequences of different lengths move on together, one joining late. */
static void test_a_sequence_has_the_bits_that_it_has_alone(void **state) {
    need_backend();
    const char *name = *state;
    model_case c;
    open_long(&c, name, LONG);
    if (!generates(&c.config)) {
        model_case_close(&c);
        return;
    }
    decoding alone, ragged;
    decoding_open(&alone, &c, WEFT_F32, LONG, 1, 1);
    decoding_open(&ragged, &c, WEFT_F32, LONG, 3, 3);
    float *want = decode_all(&alone, 0, c.tokens, 1);
    float *chunked = decode_all(&ragged, 2, c.tokens, 7);
    assert_bits(name, "rows of 7", want, chunked, LONG * alone.vocab);
    free(chunked);
    float *logits = malloc((size_t)(WEFT_DECODER_ROWS * alone.vocab) * sizeof *logits);
    decode_rows(&ragged, 0, c.tokens, 0, 17, logits);
    decode_rows(&ragged, 1, c.tokens, 0, 30, logits);
    int64_t at[3] = {17, 30, 0};
    for (int step = 0; at[1] < LONG; step++) {
        /* One row of the first, one of the second, two of the third once it is there. */
        weft_decoder_row rows[4];
        int64_t n = 0, places[4];
        for (int32_t s = 0; s < 3; s++)
            for (int k = 0; k < (s < 2 ? 1 : step >= 5 ? 2 : 0) && at[s] < LONG; k++) {
                places[n] = at[s];
                rows[n++] = (weft_decoder_row){c.tokens[at[s]], (int32_t)at[s], s, true};
                at[s]++;
            }
        assert_int_equal(weft_decoder_run(ragged.decoder, rows, n, logits), WEFT_OK);
        for (int64_t r = 0; r < n; r++)
            assert_bits(name, "in a batch", want + places[r] * alone.vocab,
                        logits + r * alone.vocab, alone.vocab);
    }
    free(logits);
    free(want);
    decoding_close(&alone);
    decoding_close(&ragged);
    model_case_close(&c);
}

/* Far past a block of keys, for one config of each way to read keys. */
static void test_decoding_equals_the_whole_pass_over_many_blocks(void **state) {
    need_backend();
    static const char *const names[] = {"dot-gqa-2-of-4-rope",
                                        "w2-rope",
                                        "w2-overlap-alibi",
                                        "mla-joint-rope",
                                        "mla-w2-joint-rope",
                                        "mla-reciprocal-joint-rope",
                                        "mix-mla-w2-joint-scalar-cross",
                                        "cross-rms-plain-mean-full"};
    enum { TIME = 3 * WEFT_KEY_BLOCK - 20 };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        model_case c;
        open_long(&c, names[i], TIME);
        double *want = whole_pass(&c, WEFT_F64);
        decoding d;
        decoding_open(&d, &c, WIDE, TIME, 1, 2);
        float *got = decode_all(&d, 0, c.tokens, 32);
        compare(names[i], "many blocks", got, want, TIME * d.vocab, CLOSE);
        free(got);
        decoding_close(&d);
        free(want);
        model_case_close(&c);
    }
}

/* Where the context slides, a row of a model of one layer sees just what it would see of a sequence
 * that begins with the first token in sight. */
static void test_a_sliding_context_sees_the_last_tokens(void **state) {
    need_backend();
    static const char *const names[] = {"dot-rope", "mla-joint-rope", "dot-alibi-h3"};
    enum { TIME = 2 * WEFT_KEY_BLOCK + 75, SEEN = 150 };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        model_case c;
        open_long(&c, names[i], TIME);
        c.config.n_layer = 1;
        decoding d = {.time = TIME, .vocab = c.config.vocab_size};
        d.model = model_case_weights(&c, WIDE);
        assert_int_equal(weft_pool_create(1, &d.pool), WEFT_OK);
        int64_t table = weft_cached_table_pages(SEEN) + 2;
        weft_decoder_limits limits = {1, table, SEEN, table};
        assert_int_equal(weft_decoder_open(d.model, test_backend(), d.pool, &limits, &d.decoder),
                         WEFT_OK);
        for (int64_t p = 0; p < table; p++)
            weft_decoder_table(d.decoder, 0)[p] = (int32_t)(table - 1 - p);
        float *got = decode_all(&d, 0, c.tokens, 16);
        for (int64_t t = SEEN; t < TIME; t += 37) {
            model_case part = c;
            part.tokens = c.tokens + t + 1 - SEEN;
            part.time = SEEN;
            double *want = whole_pass(&part, WEFT_F64);
            compare(names[i], "sliding", got + t * d.vocab, want + (SEEN - 1) * d.vocab, d.vocab,
                    CLOSE);
            free(want);
        }
        free(got);
        decoding_close(&d);
        model_case_close(&c);
    }
}

/* Every third config, unless the long proofs are wanted: the reference's are all run always. */
int main(void) {
    char **names;
    int n = model_case_names(&names), count = 0, step = train_long() ? 1 : 3;
    int every = test_is_quick() ? 20 : 1;
    struct CMUnitTest *tests = calloc((size_t)n * 3 + 2, sizeof *tests);
    tests[count++] =
        (struct CMUnitTest)cmocka_unit_test(test_decoding_equals_the_whole_pass_over_many_blocks);
    tests[count++] =
        (struct CMUnitTest)cmocka_unit_test(test_a_sliding_context_sees_the_last_tokens);
    for (int i = 0; i < n; i += every) {
        tests[count++] =
            (struct CMUnitTest){"test_decoding_equals_the_reference",
                                test_decoding_equals_the_reference, NULL, NULL, names[i]};
        if (i % step) continue;
        tests[count++] = (struct CMUnitTest){"test_decoding_equals_the_whole_pass_over_many_pages",
                                             test_decoding_equals_the_whole_pass_over_many_pages,
                                             NULL, NULL, names[i]};
        tests[count++] = (struct CMUnitTest){"test_a_sequence_has_the_bits_that_it_has_alone",
                                             test_a_sequence_has_the_bits_that_it_has_alone, NULL,
                                             NULL, names[i]};
    }
    int failed = _cmocka_run_group_tests("decode", tests, (size_t)count, NULL, NULL);
    free(tests);
    model_case_names_free(names, n);
    return failed;
}

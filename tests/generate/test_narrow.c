/* Caches and weights in bf16 and int8: logits within their error of f32's, rows with the bits they
 * have alone, and the perplexity of a trained model hardly changed: within 1% for weights of 8 bits,
 * within 0.5% for a cache of 8 bits. */
#include "cpu/backend.h"
#include "data/dataset.h"
#include "generate/decoder.h"
#include "model/kinds.h"
#include "support/command.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    weft_model *model;
    weft_pool *pool;
    weft_decoder *decoder;
    int64_t vocab, time;
} decoding;

static void open_decoder(decoding *d, weft_model *m, const char *weights, const char *cache,
                         int64_t time, int64_t slots, int threads) {
    assert_int_equal(weft_config_set(&m->config, "WEIGHT_DTYPE", weights, "test"), WEFT_OK);
    assert_int_equal(weft_config_set(&m->config, "CACHE_DTYPE", cache, "test"), WEFT_OK);
    *d = (decoding){.model = m, .vocab = m->config.vocab_size, .time = time};
    assert_int_equal(weft_pool_create(threads, &d->pool), WEFT_OK);
    int64_t table = weft_cached_table_pages(time);
    weft_decoder_limits limits = {slots, slots * table, time, table};
    if (weft_decoder_open(m, weft_cpu_backend(), d->pool, &limits, &d->decoder) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    for (int64_t s = 0; s < slots; s++)
        for (int64_t p = 0; p < table; p++)
            weft_decoder_table(d->decoder, (int32_t)s)[p] = (int32_t)(p * slots + s);
}

static void close_decoder(decoding *d) {
    weft_decoder_close(d->decoder);
    weft_pool_destroy(d->pool);
}

/* logits [time, vocab], in runs of `chunk` rows. */
static float *decode(decoding *d, int32_t slot, const int32_t *tokens, int64_t chunk) {
    float *logits = malloc((size_t)(d->time * d->vocab) * sizeof *logits);
    assert_non_null(logits);
    for (int64_t t = 0; t < d->time;) {
        weft_decoder_row rows[WEFT_DECODER_ROWS];
        int64_t n = 0, from = t;
        for (; n < chunk && t < d->time; n++, t++)
            rows[n] = (weft_decoder_row){tokens[t], (int32_t)t, slot, true};
        if (weft_decoder_run(d->decoder, rows, n, logits + from * d->vocab) != WEFT_OK)
            fail_msg("%s", weft_error_message());
    }
    return logits;
}

static weft_model *draw_model_of(const char *const *settings, weft_dtype dtype) {
    weft_config c;
    weft_model *m;
    weft_config_defaults(&c);
    for (; *settings; settings++)
        assert_int_equal(weft_config_override(&c, *settings, "test"), WEFT_OK);
    assert_int_equal(weft_model_create(&c, dtype, NULL, &m), WEFT_OK);
    assert_int_equal(weft_model_start(m, 3, NULL), WEFT_OK);
    /* Weights as large as trained ones have: logits of a size that an error shows in. */
    for (int64_t i = 0; i < m->n_weights; i++)
        for (int64_t k = 0; m->weights[i].ndim > 1 && k < m->weights[i].count; k++)
            if (dtype == WEFT_F64)
                ((double *)m->weights[i].data)[k] *= 3;
            else
                ((float *)m->weights[i].data)[k] *= 3;
    return m;
}

static weft_model *draw_model(const char *const *settings) {
    return draw_model_of(settings, WEFT_F32);
}

#define SIZES "N_LAYER=2", "N_HEAD=4", "N_EMBD=128", "VOCAB_SIZE=211", "CONTEXT=300"

/* Widths for which the fast kernels are made, and blocks and pages enough. */
static void test_narrow_logits_are_within_their_error(void **state) {
    enum { TIME = 290 };
    const char *configs[][11] = {
        {SIZES, "POSITION=rope", NULL},
        {SIZES, "ATTENTION=w2", "FFN=swiglu", NULL},
        {SIZES, "ATTENTION=mla", "RA_MLA_LATENT_DIM=64", "POSITION=alibi", NULL},
        {SIZES, "ATTENTION=mla", "RA_MLA_LATENT_DIM=64", "RA_MLA_JOINT_KV=y", NULL},
        {SIZES, "ATTENTION=mla", "RA_MLA_LATENT_DIM=64", "RA_MLA_PER_HEAD_Q_LATENT=n",
         "RA_MLA_PER_HEAD_V_UP=n", NULL},
        {SIZES, "ATTENTION=mla", "RA_MLA_LATENT_DIM=32", "RA_MLA_LATENT_HEADS=2",
         "RA_MLA_ROPE_DIM=16", "RA_MLA_JOINT_KV=y", NULL},
        {SIZES, "ATTENTION=gta", "KV_HEADS=2", "KV_SHARE=2", NULL}};
    static const struct {
        const char *weights, *cache;
        double tolerance; /* of the largest logit */
    } ways[] = {{"f32", "f32", 1e-6},   {"bf16", "f32", 0.02}, {"f32", "bf16", 0.02},
                {"bf16", "bf16", 0.02}, {"int8", "f32", 0.06}, {"f32", "int8", 0.06},
                {"int8", "int8", 0.08}};
    (void)state;
    int32_t tokens[TIME];
    for (int t = 0; t < TIME; t++)
        tokens[t] = (int32_t)((t * t * 3 + t) % 211);
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        weft_model *m = draw_model(configs[c]);
        decoding d;
        open_decoder(&d, m, "f32", "f32", TIME, 1, 1);
        float *want = decode(&d, 0, tokens, 32);
        close_decoder(&d);
        double most = 0;
        for (int64_t i = 0; i < TIME * d.vocab; i++)
            most = fmax(most, fabs((double)want[i]));
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            open_decoder(&d, m, ways[w].weights, ways[w].cache, TIME, 3, 2);
            float *got = decode(&d, 1, tokens, 32), *single = decode(&d, 2, tokens, 1);
            close_decoder(&d);
            for (int64_t i = 0; i < TIME * d.vocab; i++)
                if (!(fabs((double)(got[i] - want[i])) <= ways[w].tolerance * most))
                    fail_msg("config %zu, weights %s, cache %s: logit %lld is %g, f32 has %g of %g",
                             c, ways[w].weights, ways[w].cache, (long long)i, (double)got[i],
                             (double)want[i], most);
            if (memcmp(got, single, (size_t)(TIME * d.vocab) * sizeof *got) != 0)
                fail_msg("config %zu, weights %s, cache %s: a row alone has other bits", c,
                         ways[w].weights, ways[w].cache);
            free(got);
            free(single);
        }
        free(want);
        weft_model_destroy(m);
    }
}

/* What an f64 model keeps in a narrow type, it reads as that. */
static void test_f64_reads_narrow_caches(void **state) {
    enum { TIME = 40 };
    const char *configs[][9] = {{SIZES, "POSITION=rope", NULL}, {SIZES, "ATTENTION=w2", NULL}};
    static const char *const caches[] = {"bf16", "int8"};
    (void)state;
    int32_t tokens[TIME];
    for (int t = 0; t < TIME; t++)
        tokens[t] = (int32_t)((t * t * 3 + t) % 211);
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        weft_model *m = draw_model_of(configs[c], WEFT_F64);
        decoding d;
        open_decoder(&d, m, "auto", "auto", TIME, 1, 1);
        float *want = decode(&d, 0, tokens, 32);
        close_decoder(&d);
        double most = 0;
        for (int64_t i = 0; i < TIME * d.vocab; i++)
            most = fmax(most, fabs((double)want[i]));
        for (int w = 0; w < 2; w++) {
            open_decoder(&d, m, "auto", caches[w], TIME, 1, 1);
            float *got = decode(&d, 0, tokens, 32);
            close_decoder(&d);
            for (int64_t i = 0; i < TIME * d.vocab; i++)
                if (!(fabs((double)(got[i] - want[i])) <= 0.06 * most))
                    fail_msg("config %zu, cache %s: logit %lld is %g, f64 has %g of %g", c,
                             caches[w], (long long)i, (double)got[i], (double)want[i], most);
            free(got);
        }
        free(want);
        weft_model_destroy(m);
    }
}

/* No byte holds NaN: the scales beside them do. One number of the last norm's rows is none, wherever it
 * lies among those that are rounded together. */
static void test_a_number_that_is_none_is_not_rounded_away(void **state) {
    const char *settings[] = {SIZES, NULL};
    static const int64_t places[] = {0, 5, 63, 64, 127};
    int32_t tokens[] = {3, 1, 4};
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        weft_model *m = draw_model(settings);
        decoding d;
        ((float *)weft_model_find(m, "ln_f.weight")->data)[places[i]] = NAN;
        for (int64_t chunk = 1; chunk <= 3; chunk++) {
            open_decoder(&d, m, "int8", "f32", 3, 1, 1);
            float *logits = decode(&d, 0, tokens, chunk);
            close_decoder(&d);
            for (int64_t k = 0; k < 3 * d.vocab; k++)
                if (!isnan(logits[k]))
                    fail_msg("NaN at %lld: logit %lld is %g", (long long)places[i], (long long)k,
                             (double)logits[k]);
            free(logits);
        }
        weft_model_destroy(m);
    }
}

/* The perplexity of held-out text by decoding. */
static double perplexity(weft_model *m, const char *weights, const char *cache, int sequences) {
    decoding d;
    weft_dataset *data;
    int64_t time = m->config.context, n = 0;
    double sum = 0;
    assert_int_equal(weft_dataset_open(&m->config, &data), WEFT_OK);
    open_decoder(&d, m, weights, cache, time, 1, 1);
    int32_t *tokens = malloc((size_t)time * sizeof *tokens), *targets = malloc((size_t)time * 4);
    for (int s = 0; s < sequences; s++) {
        assert_int_equal(
            weft_dataset_fill(data, WEFT_SPLIT_VAL, 1, 0, (uint32_t)s, time, tokens, targets, NULL),
            WEFT_OK);
        float *logits = decode(&d, 0, tokens, 32);
        for (int64_t t = 0; t < time; t++) {
            const float *row = logits + t * d.vocab;
            double total = 0;
            for (int64_t v = 0; v < d.vocab; v++)
                total += exp((double)(row[v] - row[targets[t]]));
            sum += log(total);
            n++;
        }
        free(logits);
    }
    free(tokens);
    free(targets);
    close_decoder(&d);
    weft_dataset_close(data);
    return exp(sum / (double)n);
}

static void test_eight_bits_hardly_change_the_perplexity(void **state) {
    static const char *const steps[] = {"0", "3"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char run[512], best[560];
        snprintf(run, sizeof run, "%s", scratch_path("step%s", steps[i]));
        snprintf(best, sizeof best, "%s/best", run);
        SUCCEEDS("train", "--config", "defconfigs/ra-mla", "--variant", steps[i], "-o", "STEPS=150",
                 "-o", "WARMUP_STEPS=20", "--out", run);
        weft_model *m;
        if (weft_model_load(best, WEFT_F32, &m) != WEFT_OK) fail_msg("%s", weft_error_message());
        double plain = perplexity(m, "f32", "f32", 24);
        double weights = perplexity(m, "int8", "f32", 24) / plain;
        double cache = perplexity(m, "f32", "int8", 24) / plain;
        printf("note: step %s: perplexity %.4f; int8 weights %+.3f%%, int8 cache %+.3f%%\n",
               steps[i], plain, 100 * (weights - 1), 100 * (cache - 1));
        assert_true(weights < 1.01);
        assert_true(cache < 1.005);
        weft_model_destroy(m);
    }
}

/* A NaN or an infinity in one matrix is in the logits, whatever the matrix is kept in. */
static void test_a_weight_that_is_no_number_is_in_the_logits(void **state) {
    static const char *const types[] = {"f32", "bf16", "int8"};
    static const float values[] = {NAN, INFINITY};
    (void)state;
    for (int t = 0; t < 3; t++)
        for (int v = 0; v < 2; v++) {
            decoding d;
            weft_model *m = draw_model((const char *[]){SIZES, "FFN=swiglu", NULL});
            weft_weight *w = weft_model_find(m, "h.0.ffn.w1.weight");
            assert_non_null(w);
            ((float *)w->data)[7] = values[v];
            weft_mirror_wrote(m->mirror, NULL);
            open_decoder(&d, m, types[t], "f32", 4, 1, 1);
            float *logits = decode(&d, 0, (const int32_t[]){1, 2, 3, 4}, 4);
            if (isfinite(logits[0])) fail_msg("%s hides %g", types[t], (double)values[v]);
            free(logits);
            close_decoder(&d);
            weft_model_destroy(m);
        }
}

/* On a GPU what keeps and reads bf16 runs in it. */
static void test_the_type_that_generation_runs_in(void **state) {
    static const struct {
        const char *dtype, *weights, *cache;
        weft_dtype here, there; /* on the CPU, on a GPU */
    } cases[] = {
        {"f32", "auto", "auto", WEFT_F32, WEFT_F32},
        {"bf16", "auto", "auto", WEFT_BF16, WEFT_BF16},
        {"f32", "bf16", "bf16", WEFT_F32, WEFT_BF16},
        {"f32", "auto", "bf16", WEFT_F32, WEFT_BF16},
        {"f32", "f32", "bf16", WEFT_F32, WEFT_F32},
        {"f32", "bf16", "f32", WEFT_F32, WEFT_F32},
        {"f32", "int8", "bf16", WEFT_F32, WEFT_F32},
        {"f64", "bf16", "bf16", WEFT_F64, WEFT_F64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int remote = 0; remote < 2; remote++) {
            weft_config c;
            weft_backend backend = *weft_cpu_backend();
            backend.remote = remote;
            weft_config_defaults(&c);
            assert_int_equal(weft_config_set(&c, "DTYPE", cases[i].dtype, "test"), WEFT_OK);
            assert_int_equal(weft_config_set(&c, "WEIGHT_DTYPE", cases[i].weights, "test"),
                             WEFT_OK);
            assert_int_equal(weft_config_set(&c, "CACHE_DTYPE", cases[i].cache, "test"), WEFT_OK);
            weft_generation_set_dtype(&c, &backend);
            if (weft_config_dtype(&c) != (remote ? cases[i].there : cases[i].here))
                fail_msg("case %d, remote %d: %s", (int)i, remote,
                         weft_dtype_name(weft_config_dtype(&c)));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_narrow_logits_are_within_their_error),
        cmocka_unit_test(test_f64_reads_narrow_caches),
        cmocka_unit_test(test_a_number_that_is_none_is_not_rounded_away),
        cmocka_unit_test(test_a_weight_that_is_no_number_is_in_the_logits),
        cmocka_unit_test(test_the_type_that_generation_runs_in),
        cmocka_unit_test(test_eight_bits_hardly_change_the_perplexity),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

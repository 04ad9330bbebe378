/* Configs drawn at random from the options of a model: each is refused in one line that names an option,
 * or both forms of its graph agree, a later token moves no earlier logit, decoding equals the whole pass,
 * with speculation to the bit, and the cache takes the bytes that weft plan says. A new kind or option of a model is a line below. */
#include "base/random.h"
#include "cpu/backend.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "model/kinds.h"
#include "support/model_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MIXES = 600, TIME = 21, WORDS = 6 };

/* A word that is there twice is drawn twice as often. */
static const char *const options[][WORDS] = {
    {"ATTENTION=dot", "ATTENTION=w2", "ATTENTION=mla", "ATTENTION=mla", "ATTENTION=cosine",
     "ATTENTION=gta"},
    {"FFN=gelu", "FFN=relu2", "FFN=swiglu", "FFN=wsffn", "FFN=geglu"},
    {"POSITION=learned", "POSITION=rope", "POSITION=alibi", "POSITION=relative", "POSITION=none"},
    {"NORM=layernorm", "NORM=rmsnorm"},
    {"NORM_PLACEMENT=pre", "NORM_PLACEMENT=pre", "NORM_PLACEMENT=post", "NORM_PLACEMENT=both"},
    {"N_LAYER=1", "N_LAYER=2", "N_LAYER=3"},
    {"KV_HEADS=0", "KV_HEADS=0", "KV_HEADS=1", "KV_HEADS=2"},
    {"KV_SHARE=1", "KV_SHARE=1", "KV_SHARE=2", "KV_SHARE=3"},
    {"QK_NORM=n", "QK_NORM=n", "QK_NORM=y"},
    {"ATTENTION_GATE=none", "ATTENTION_GATE=head", "ATTENTION_GATE=element"},
    {"ATTENTION_BIAS=auto", "ATTENTION_BIAS=qkv", "ATTENTION_BIAS=all"},
    {"W2_KERNEL=w2", "W2_KERNEL=overlap"},
    {"RA_MLA_LATENT_DIM=8", "RA_MLA_LATENT_DIM=6"},
    {"RA_MLA_LATENT_HEADS=1", "RA_MLA_LATENT_HEADS=1", "RA_MLA_LATENT_HEADS=2",
     "RA_MLA_LATENT_HEADS=4"},
    {"RA_MLA_JOINT_KV=n", "RA_MLA_JOINT_KV=y"},
    {"RA_MLA_ROPE_DIM=0", "RA_MLA_ROPE_DIM=0", "RA_MLA_ROPE_DIM=2", "RA_MLA_ROPE_DIM=4"},
    {"RA_MLA_LATENT_NORM=n", "RA_MLA_LATENT_NORM=n", "RA_MLA_LATENT_NORM=y"},
    {"RA_MLA_Q_RANK=0", "RA_MLA_Q_RANK=5"},
    {"RA_MLA_PER_HEAD_Q_LATENT=y", "RA_MLA_PER_HEAD_Q_LATENT=y", "RA_MLA_PER_HEAD_Q_LATENT=n"},
    {"RA_MLA_SCORE=dot", "RA_MLA_SCORE=dot", "RA_MLA_SCORE=w2"},
    {"RA_MLA_RA_ALPHA=0", "RA_MLA_RA_ALPHA=0", "RA_MLA_RA_ALPHA=0.5"},
    {"RA_MLA_MLP_ATTN_GATE=n", "RA_MLA_MLP_ATTN_GATE=y"},
    {"RA_MLA_MLP_GATE_POOL=token", "RA_MLA_MLP_GATE_POOL=cummean"},
    {"RA_MLA_MLP_CROSS_TOKEN=n", "RA_MLA_MLP_CROSS_TOKEN=n", "RA_MLA_MLP_CROSS_TOKEN=y"},
    {"RA_MLA_MLP_CROSS_RANK=0", "RA_MLA_MLP_CROSS_RANK=3"},
    {"RA_MLA_MLP_SPARSE_MODE=topk", "RA_MLA_MLP_SPARSE_MODE=rms", "RA_MLA_MLP_SPARSE_MODE=none"},
    {"RA_MLA_MLP_LATENT_RECIP=n", "RA_MLA_MLP_LATENT_RECIP=n", "RA_MLA_MLP_LATENT_RECIP=y"},
    {"RA_MLA_MLP_ALPHA_LEARNED=n", "RA_MLA_MLP_ALPHA_LEARNED=n", "RA_MLA_MLP_ALPHA_LEARNED=y"},
    {"RA_MLA_MLP_GATE_OPEN=0", "RA_MLA_MLP_GATE_OPEN=4"},
    {"RA_MLA_MLP_ROUTE_AFTER_GATE=n", "RA_MLA_MLP_ROUTE_AFTER_GATE=y"},
    {"RA_MLA_MLP_LATENT_DETACH=n", "RA_MLA_MLP_LATENT_DETACH=y"},
    {"W2_SIGMA_DIM=0", "W2_SIGMA_DIM=0", "W2_SIGMA_DIM=1", "W2_SIGMA_DIM=3"},
    {"EMBED_SCALE=1", "EMBED_SCALE=3"},
    {"ATTENTION_SCALE=0", "ATTENTION_SCALE=0.3"},
    {"WINDOW=0", "WINDOW=0", "WINDOW=4"},
    {"WINDOW_EVERY=0", "WINDOW_EVERY=2"},
    {"ROPE_LOCAL_THETA=0", "ROPE_LOCAL_THETA=100"},
    {"WSFFN_POSITIVE=self", "WSFFN_POSITIVE=dropout"},
    {"WSFFN_Z_LOGITS=0", "WSFFN_Z_LOGITS=0.5"},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

/* The mix of that number, and its words for messages. */
static void draw(uint64_t mix, model_case *c, char *words, size_t room) {
    static const char *const all[] = {"N_EMBD=16",
                                      "N_HEAD=4",
                                      "N_FFN=12",
                                      "VOCAB_SIZE=11",
                                      "CONTEXT=21",
                                      "BATCH_SIZE=1",
                                      "WSFFN_N_HEAD=4",
                                      "RA_MLA_RA_WINDOW=5",
                                      "RA_MLA_MLP_GATE_DIM=3",
                                      "RA_MLA_MLP_SPARSE_K=3"};
    *c = (model_case){.key = mix, .batch = 1, .time = TIME};
    snprintf(c->name, sizeof c->name, "mix %d", (int)mix);
    snprintf(words, room, "mix %d:", (int)mix);
    weft_config_defaults(&c->config);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        assert_int_equal(weft_config_override(&c->config, all[i], "test"), WEFT_OK);
    for (size_t i = 0; i < OPTIONS; i++) {
        uint64_t n = 0;
        while (n < WORDS && options[i][n])
            n++;
        const char *word = options[i][weft_random_word(5, 0, 0, 0, mix * OPTIONS + i) % n];
        assert_int_equal(weft_config_override(&c->config, word, "test"), WEFT_OK);
        snprintf(words + strlen(words), room - strlen(words), " %s", word);
    }
    c->tokens = malloc(TIME * sizeof *c->tokens);
    c->targets = calloc(TIME, sizeof *c->targets);
    for (int t = 0; t < TIME; t++)
        c->tokens[t] = (t * t + 3 * t + 1) % 11;
}

static double *whole_pass(const model_case *c, weft_form form, int32_t last) {
    model_run r;
    int32_t before = c->tokens[TIME - 1];
    c->tokens[TIME - 1] = last;
    model_run_open(&r, c, &(model_run_options){.dtype = WEFT_F64, .form = form});
    double *values = model_run_values(&r, r.session.graph.logits, TIME * c->config.vocab_size);
    model_run_close(&r);
    c->tokens[TIME - 1] = before;
    return values;
}

static void compare(const char *words, const char *what, const double *a, const double *b,
                    int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance))
            fail_msg("%s\n%s: logit %lld is %.12g and %.12g", words, what, (long long)i, a[i],
                     b[i]);
}

/* Its logits row by row, and the bytes of its pages. */
static double *decode(const model_case *c, const char *words) {
    weft_model *m = model_case_weights(c, WEFT_F64);
    weft_pool *pool;
    weft_decoder *decoder;
    int64_t pages = weft_cached_table_pages(TIME), vocab = c->config.vocab_size;
    weft_decoder_limits limits = {1, pages, TIME, pages};
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    if (weft_decoder_open(m, weft_cpu_backend(), pool, &limits, &decoder) != WEFT_OK)
        fail_msg("%s\n%s", words, weft_error_message());
    for (int64_t p = 0; p < pages; p++)
        weft_decoder_table(decoder, 0)[p] = (int32_t)(pages - 1 - p);
    assert_int_equal(weft_decoder_page_bytes(decoder),
                     pages * WEFT_PAGE_TOKENS * weft_cached_token_bytes(&c->config, WEFT_F64));
    assert_int_equal(weft_decoder_state_bytes(decoder),
                     weft_cached_sequence_bytes(&c->config, WEFT_F64));
    double *out = malloc((size_t)(TIME * vocab) * sizeof *out);
    for (int32_t t = 0; t < TIME; t++) {
        float logits[16];
        weft_decoder_row row = {c->tokens[t], t, 0, true};
        if (weft_decoder_run(decoder, &row, 1, logits) != WEFT_OK)
            fail_msg("%s\n%s", words, weft_error_message());
        for (int64_t i = 0; i < vocab; i++)
            out[t * vocab + i] = (double)logits[i];
    }
    weft_decoder_close(decoder);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
    return out;
}

/* What follows the first tokens: plainly, and by drafts of a model with other weights or of n-grams. */
static void speculate(const model_case *c, const char *words) {
    model_case other = *c;
    other.key++;
    weft_model *m = model_case_weights(c, WEFT_F32), *draft = model_case_weights(&other, WEFT_F32);
    weft_sampled made[3][TIME] = {0};
    weft_pool *pool;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        weft_generator_limits limits = {
            .sequences = 1, .ngram = i == 1, .draft = i == 2 ? draft : NULL};
        weft_sampling how = weft_sampling_default();
        weft_generator *g;
        int64_t id, n = 0;
        how.temperature = c->key % 2 ? 0 : 0.2;
        if (weft_generator_open(m, weft_cpu_backend(), pool, &limits, &g) != WEFT_OK ||
            weft_generator_add(g, c->tokens, 5, &how, &id) != WEFT_OK)
            fail_msg("%s\n%s", words, weft_error_message());
        while (weft_generator_busy(g))
            assert_int_equal(weft_generator_step(g), WEFT_OK);
        while (weft_generator_take(g, id, made[i] + n) == WEFT_TAKE_TOKEN)
            n++;
        weft_generator_close(g);
        if (memcmp(made[i], made[0], sizeof made[0]) != 0)
            fail_msg("%s\nspeculation by %s: another text", words, i == 1 ? "n-grams" : "a model");
    }
    weft_pool_destroy(pool);
    weft_model_destroy(m);
    weft_model_destroy(draft);
}

static bool check_mix(uint64_t mix) {
    model_case c;
    char words[2048];
    draw(mix, &c, words, sizeof words);
    bool taken = weft_model_check(&c.config, "test") == WEFT_OK;
    if (!taken && (!strstr(weft_error_message(), "CONFIG_") || strchr(weft_error_message(), '\n')))
        fail_msg("%s\n%s", words, weft_error_message());
    /* Equal tokens without positions have equal weights: which are the largest is a matter of last bits. */
    bool tied = c.config.cross_token && c.config.sparse_mode == WEFT_SPARSE_TOPK &&
                c.config.position == WEFT_POSITION_NONE;
    if (taken) {
        int64_t vocab = c.config.vocab_size, n = TIME * vocab;
        double *direct = whole_pass(&c, WEFT_FORM_DIRECT, c.tokens[TIME - 1]);
        double *cheap = whole_pass(&c, WEFT_FORM_CHEAP, c.tokens[TIME - 1]);
        double *other = whole_pass(&c, WEFT_FORM_DIRECT, (c.tokens[TIME - 1] + 1) % 11);
        double *decoded = decode(&c, words);
        compare(words, "another last token", direct, other, n - vocab, 0);
        if (!tied) compare(words, "the cheap form", direct, cheap, n, 1e-9);
        if (!tied) compare(words, "decoding", direct, decoded, n, 1e-5);
        speculate(&c, words);
        free(direct);
        free(cheap);
        free(other);
        free(decoded);
    }
    free(c.tokens);
    free(c.targets);
    return taken;
}

static void test_mixes_are_refused_or_agree(void **state) {
    (void)state;
    int taken = 0;
    for (uint64_t mix = 0; mix < MIXES; mix++)
        taken += check_mix(mix);
    printf("%d mixes, %d of them models\n", MIXES, taken);
    assert_true(taken > MIXES / 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixes_are_refused_or_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

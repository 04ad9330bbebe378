/* Steps of one launch (core/decoding.h), without a GPU: a plain step in double, which unpacks the weights that
 * a backend is given and computes what it is meant to compute, makes the logits of decoding operation by
 * operation. So the form that each kind of attention has as a step, the packing and the decoder's part
 * are right; tests/cuda/test_step.c holds the GPU's own step to the same. */
#include "cpu/backend.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "support/model_case.h"
#include "support/sampling.h"
#include "support/step_forms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the plain step ---- */

typedef struct {
    weft_step_form form;
    weft_step_model model; /* the layers' own copies */
    int32_t *pages;
    double *logits; /* [ROWS, V] */
    int32_t sampled[WEFT_STEP_ROWS], told[2][WEFT_STEP_ROWS];
    int64_t rows[2];
    unsigned started, finished;
} plain_step;

static void *copy_of(const void *from, size_t bytes) {
    void *to = from ? malloc(bytes) : NULL;
    if (to) memcpy(to, from, bytes);
    return to;
}

static weft_step_matrix copy_matrix(const weft_step_matrix *m) {
    weft_step_matrix to = *m;
    to.weights = copy_of(m->weights, (size_t)weft_step_packed(m->columns, m->depth) * 2);
    to.bias = copy_of(m->bias, (size_t)m->columns * sizeof(float));
    return to;
}

static bool plain_suits(const weft_step_form *f) {
    return f->dqk > 0;
}

static weft_status plain_open(const weft_step_model *m, void **step) {
    plain_step *s = calloc(1, sizeof *s);
    size_t heads = (size_t)m->form.heads * sizeof(float);
    s->form = m->form;
    s->model = *m;
    s->model.layer = calloc((size_t)m->form.layers, sizeof *m->layer);
    for (int64_t i = 0; i < m->form.layers; i++) {
        const weft_step_layer *from = m->layer + i;
        weft_step_layer *to = s->model.layer + i;
        *to = *from;
        to->heads = copy_matrix(&from->heads);
        to->out = copy_matrix(&from->out);
        to->in = copy_matrix(&from->in);
        to->back = copy_matrix(&from->back);
        to->scale = copy_of(from->scale, heads);
        to->beta = copy_of(from->beta, heads);
    }
    s->model.head = copy_matrix(&m->head);
    s->pages = calloc((size_t)(m->form.slots * m->form.table_pages), sizeof *s->pages);
    s->logits = calloc((size_t)(WEFT_STEP_ROWS * m->form.vocab), sizeof *s->logits);
    *step = s;
    return WEFT_OK;
}

static void plain_close(void *step) {
    plain_step *s = step;
    weft_step_model_free(&s->model);
    free(s->pages);
    free(s->logits);
    free(s);
}

static weft_status plain_set_pages(void *step, int64_t slot, const int32_t *pages) {
    plain_step *s = step;
    memcpy(s->pages + slot * s->form.table_pages, pages,
           (size_t)s->form.table_pages * sizeof *pages);
    return WEFT_OK;
}

static double weight_at(const weft_step_matrix *m, int64_t column, int64_t k) {
    int64_t lane = column % 8 * 4 + k % 32 / 8;
    int64_t at = ((column / 8 * (m->depth / 32) + k / 32) * 32 + lane) * 8 + k % 8;
    return (double)weft_bf16_to_float(m->weights[at]);
}

static void multiply(const weft_step_matrix *m, const double *x, double *y) {
    for (int64_t n = 0; n < m->columns; n++) {
        y[n] = m->bias ? (double)m->bias[n] : 0;
        for (int64_t k = 0; k < m->depth; k++)
            y[n] += weight_at(m, n, k) * x[k];
    }
}

/* Gain and offset are part of the product behind it. */
static void normalise(const weft_step_form *f, const double *x, double *y) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < f->width && !f->rms; i++)
        mean += x[i] / (double)f->width;
    for (int64_t i = 0; i < f->width; i++)
        squares += (x[i] - mean) * (x[i] - mean) / (double)f->width;
    for (int64_t i = 0; i < f->width; i++)
        y[i] = (x[i] - mean) / sqrt(squares + f->eps);
}

static uint16_t *vector_at(const plain_step *s, void *pages, int64_t width, bool number,
                           int64_t slot, int64_t j, int64_t head) {
    const weft_step_form *f = &s->form;
    int64_t page = s->pages[slot * f->table_pages + j / 16 % f->table_pages];
    char *at = (char *)pages + page * f->kv_heads * 16 * (width * 2 + (number ? 4 : 0));
    return (uint16_t *)(void *)at + (head * 16 + j % 16) * width;
}

static void attend(const plain_step *s, const weft_step_layer *l, int64_t slot, int64_t position,
                   const double *q, double *o) {
    const weft_step_form *f = &s->form;
    int64_t seen = position + 1 > f->context ? position + 1 - f->context : 0;
    memset(o, 0, (size_t)(f->heads * f->dv) * sizeof *o);
    for (int64_t h = 0; h < f->heads; h++) {
        double sum = 0;
        for (int64_t j = seen; j <= position; j++) {
            int64_t g = h / (f->heads / f->kv_heads);
            const uint16_t *k = vector_at(s, l->keys, f->dqk, f->gaussian, slot, j, g);
            const uint16_t *v = f->joint ? k : vector_at(s, l->values, f->dv, false, slot, j, g);
            double product = 0, n = 0;
            for (int64_t i = 0; i < f->dqk; i++) {
                double key = (double)weft_bf16_to_float(k[i]);
                product += q[h * f->dqk + i] * key;
                n += key * key;
            }
            double w = exp((double)l->scale[h] * product + (l->beta ? (double)l->beta[h] * n : 0));
            sum += w;
            for (int64_t i = 0; i < f->dv; i++)
                o[h * f->dv + i] += w * (double)weft_bf16_to_float(v[i]);
        }
        for (int64_t i = 0; i < f->dv; i++)
            o[h * f->dv + i] /= sum;
    }
}

/* Pairs of queries and keys, which come beside each other, to where they belong. */
static void rotate_qk(const weft_step_form *f, int64_t position, double *z) {
    double was[256];
    int64_t half = f->dqk / 2;
    for (int64_t h = 0; h < f->heads + f->kv_heads; h++, z += f->dqk) {
        memcpy(was, z, (size_t)f->dqk * sizeof *was);
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)position * weft_rope_rate(&f->law, i, f->dqk);
            z[i] = f->law.amplitude * (was[2 * i] * cos(angle) - was[2 * i + 1] * sin(angle));
            z[half + i] =
                f->law.amplitude * (was[2 * i + 1] * cos(angle) + was[2 * i] * sin(angle));
        }
    }
}

/* Queries stay in `z`; keys and values go to their pages. */
static void write_heads(const plain_step *s, const weft_step_layer *l, int64_t slot,
                        int64_t position, double *z) {
    const weft_step_form *f = &s->form;
    int64_t queries = f->heads * f->dqk, keys = f->kv_heads * f->dqk;
    for (int64_t n = 0; n < queries + keys; n++)
        if (f->gaussian && n % f->dqk >= f->dqk / 2) z[n] = log1p(exp(z[n]));
    if (f->rotated) rotate_qk(f, position, z);
    for (int64_t g = 0; g < f->kv_heads; g++) {
        uint16_t *k = vector_at(s, l->keys, f->dqk, f->gaussian, slot, position, g);
        for (int64_t i = 0; i < f->dqk; i++)
            k[i] = weft_float_to_bf16((float)z[queries + g * f->dqk + i]);
        if (f->joint) continue;
        uint16_t *v = vector_at(s, l->values, f->dv, false, slot, position, g);
        for (int64_t i = 0; i < f->dv; i++)
            v[i] = weft_float_to_bf16((float)z[queries + keys + g * f->dv + i]);
    }
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static void run_row(plain_step *s, int64_t r, int32_t token, int32_t position, int32_t slot) {
    const weft_step_form *f = &s->form;
    const weft_step_model *m = &s->model;
    int64_t most = 4 * (f->hidden + f->heads * f->dqk + f->kv_heads * (f->dqk + f->dv));
    double *x = calloc((size_t)f->width, sizeof *x), *y = calloc((size_t)most, sizeof *y);
    double *z = calloc((size_t)most, sizeof *z);
    for (int64_t i = 0; i < f->width; i++) {
        x[i] = (double)((const float *)m->table)[token * f->width + i];
        if (m->place) x[i] += (double)((const float *)m->place)[position * f->width + i];
    }
    for (int64_t layer = 0; layer < f->layers; layer++) {
        const weft_step_layer *l = m->layer + layer;
        normalise(f, x, y);
        multiply(&l->heads, y, z);
        write_heads(s, l, slot, position, z);
        attend(s, l, slot, position, z, y);
        multiply(&l->out, y, z);
        for (int64_t i = 0; i < f->width; i++)
            x[i] += z[i];
        normalise(f, x, y);
        multiply(&l->in, y, z);
        for (int64_t i = 0; i < f->hidden; i++)
            z[i] = f->gated ? z[2 * i] / (1 + exp(-z[2 * i])) * z[2 * i + 1] : gelu(z[i]);
        multiply(&l->back, z, y);
        for (int64_t i = 0; i < f->width; i++)
            x[i] += y[i];
    }
    normalise(f, x, y);
    multiply(&m->head, y, s->logits + r * f->vocab);
    free(x);
    free(y);
    free(z);
}

static weft_status plain_start(void *step, const weft_step_rows *rows) {
    plain_step *s = step;
    int32_t before[WEFT_STEP_ROWS], tokens[WEFT_STEP_ROWS];
    float *logits = malloc((size_t)s->form.vocab * sizeof *logits);
    memcpy(before, s->sampled, sizeof before);
    for (int64_t r = 0; r < rows->count; r++) {
        int32_t token = rows->token[r] < 0 ? before[-1 - rows->token[r]] : rows->token[r];
        tokens[r] = token;
        run_row(s, r, token, rows->position[r], rows->slot[r]);
        for (int64_t n = 0; n < s->form.vocab; n++)
            logits[n] = (float)s->logits[r * s->form.vocab + n];
        s->sampled[r] = s->told[s->started % 2][r] =
            sampling_draw(logits, s->form.vocab, rows, r, tokens);
    }
    free(logits);
    s->rows[s->started++ % 2] = rows->count;
    return WEFT_OK;
}

static weft_status plain_finish(void *step, int32_t *tokens) {
    plain_step *s = step;
    int64_t buffer = s->finished++ % 2;
    memcpy(tokens, s->told[buffer], (size_t)s->rows[buffer] * sizeof *tokens);
    return WEFT_OK;
}

static weft_status plain_logits(void *step, int64_t first, int64_t count, float *out) {
    const plain_step *s = step;
    for (int64_t i = 0; i < count * s->form.vocab; i++)
        out[i] = (float)s->logits[first * s->form.vocab + i];
    return WEFT_OK;
}

static int64_t plain_number(const void *step) {
    (void)step;
    return 1;
}

static bool plain_draws(void) {
    return true;
}

static const weft_step_backend plain_steps = {
    .suits = plain_suits,
    .open = plain_open,
    .close = plain_close,
    .set_pages = plain_set_pages,
    .start = plain_start,
    .finish = plain_finish,
    .logits = plain_logits,
    .phases = plain_number,
    .weight_bytes = plain_number,
    .draws = plain_draws,
};

/* ---- the tests ---- */

enum { TIME = 40 };

static void test_a_step_equals_decoding(void **state) {
    const step_form *f = *state;
    weft_backend backend = *weft_cpu_backend();
    backend.steps = &plain_steps;
    model_case c;
    step_decoding by_operation, by_step;
    step_case_open(&c, f, TIME);
    step_decoding_open(&by_operation, &c, weft_cpu_backend(), 1, TIME);
    step_decoding_open(&by_step, &c, &backend, 2, TIME);
    assert_false(weft_decoder_samples(by_operation.decoder));
    assert_true(weft_decoder_samples(by_step.decoder));
    float *want = step_decode(&by_operation, 0, c.tokens, TIME, 1);
    float *got = step_decode(&by_step, 1, c.tokens, TIME, 5);
    double most = 0;
    for (int64_t i = 0; i < TIME * c.config.vocab_size; i++)
        most = fmax(most, fabs((double)want[i]));
    /* Matrices that are formed as one are rounded as one, and so are keys at the edge of two numbers. */
    for (int64_t i = 0; i < TIME * c.config.vocab_size; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 2e-2 * fmax(1, most)))
            fail_msg("%s: logit %lld is %g, operation by operation %g", f->name, (long long)i,
                     (double)got[i], (double)want[i]);
    free(want);
    free(got);
    step_decoding_close(&by_operation);
    step_decoding_close(&by_step);
    free(c.tokens);
}

enum { SEQUENCES = 5 };

/* All tokens that a few sequences make, one of which is taken away after some steps, and one of which
 * is gone on with. */
static void generate_all(const weft_backend *backend, const model_case *c, bool token_only,
                         int32_t *out, int64_t room) {
    weft_pool *pool;
    weft_generator *g;
    weft_model *m = step_case_weights(c);
    int64_t id[SEQUENCES], n = 0;
    weft_sampling how = weft_sampling_default();
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(
        weft_generator_open(m, backend, pool, &(weft_generator_limits){.sequences = 4}, &g),
        WEFT_OK);
    how.token_only = token_only;
    how.end_token = 5;
    for (int i = 0; i < SEQUENCES; i++) {
        how.temperature = i % 2 ? 0.8 : 0;
        how.top_p = i == 3 ? 0.9 : 1;
        how.repetition_penalty = i > 2 ? 1.2 : 1;
        how.max_tokens = 6 + 5 * i;
        assert_int_equal(weft_generator_add(g, c->tokens + i, 3 + 4 * i, &how, id + i), WEFT_OK);
    }
    for (int step = 0; weft_generator_busy(g); step++) {
        assert_int_equal(weft_generator_step(g), WEFT_OK);
        if (step == 7) weft_generator_remove(g, id[3]);
    }
    how.max_tokens = 9;
    assert_int_equal(weft_generator_extend(g, id[4], c->tokens, 2, &how), WEFT_OK);
    while (weft_generator_busy(g))
        assert_int_equal(weft_generator_step(g), WEFT_OK);
    for (int i = 0; i < SEQUENCES; i++) {
        weft_sampled made;
        while (weft_generator_take(g, id[i], &made) == WEFT_TAKE_TOKEN && n < room)
            out[n++] = made.token;
        if (n < room) out[n++] = -1;
    }
    weft_generator_close(g);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

static void test_sampled_text_is_the_text_of_the_logits(void **state) {
    enum { ROOM = 200 };
    int32_t want[ROOM], got[ROOM];
    weft_backend backend = *weft_cpu_backend();
    model_case c;
    (void)state;
    backend.steps = &plain_steps;
    step_case_open(&c, &step_forms[0], TIME);
    memset(want, 0x7f, sizeof want);
    memset(got, 0x7f, sizeof got);
    generate_all(&backend, &c, false, want, ROOM);
    generate_all(&backend, &c, true, got, ROOM);
    assert_memory_equal(want, got, sizeof want);
    free(c.tokens);
}

static void test_other_models_have_no_step(void **state) {
    static const char *const settings[] = {
        "POSITION=alibi",  "NORM_PLACEMENT=post", "FFN=wsffn",
        "CAUSAL=n",        "CACHE_DTYPE=int8",    "RA_MLA_MLP_ATTN_GATE=y",
        "FFN=relu2",       "QK_NORM=y",           "ATTENTION_GATE=head",
        "FFN_BIAS=y",      "NOPE_EVERY=2",        "WINDOW=4",
        "ROPE_DIM=2",      "SOFTCAP_ATTENTION=5", "SOFTCAP_LOGITS=5",
        "DOCUMENT_MASK=y", "KV_SHARE=2",          "PARALLEL_RESIDUAL=y",
        "FFN=gelu_erf",    "FFN=geglu",           "NORM_PLACEMENT=both",
        "EMBED_SCALE=2"};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        model_case c;
        weft_step_form form;
        step_case_open(&c, &step_forms[0], TIME);
        weft_dtype cache = weft_cached_dtype(&c.config, WEFT_F32);
        assert_true(weft_step_form_of(&c.config, cache, &form));
        assert_int_equal(weft_config_override(&c.config, settings[i], "test"), WEFT_OK);
        cache = weft_cached_dtype(&c.config, WEFT_F32);
        if (weft_step_form_of(&c.config, cache, &form)) fail_msg("%s has a step", settings[i]);
        free(c.tokens);
    }
}

/* Nor has an mla or w2 with a part that a step knows nothing of. */
static void test_other_latents_and_gaussians_have_no_step(void **state) {
    static const struct {
        int form;
        const char *setting;
    } with[] = {{7, "RA_MLA_LATENT_HEADS=2"},
                {7, "RA_MLA_ROPE_DIM=4"},
                {7, "RA_MLA_Q_RANK=8"},
                {7, "RA_MLA_LATENT_NORM=y"},
                {2, "W2_SIGMA_DIM=16"}};
    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        model_case c;
        weft_step_form form;
        step_case_open(&c, &step_forms[with[i].form], TIME);
        assert_true(weft_step_form_of(&c.config, WEFT_BF16, &form));
        assert_int_equal(weft_config_override(&c.config, with[i].setting, "test"), WEFT_OK);
        if (weft_step_form_of(&c.config, WEFT_BF16, &form))
            fail_msg("%s has a step", with[i].setting);
        free(c.tokens);
    }
}

static void test_runs_of_keys_are_whole_numbers_from_one_on(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "0,0,0", "128,0,512", "0,128,512", "128,256,0", "-1,1,1",        "128,256",
        "",      "a,b,c",     "1,2,3,4",   "1,2,3x",    "9999999999,1,1"};
    int runs[2] = {5, 6}, positions = 7;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(weft_step_runs_read(wrong[i], runs, &positions), WEFT_EINPUT);
        assert_non_null(strstr(weft_error_message(), "WEFT_CUDA_STEP_RUNS"));
        assert_true(runs[0] == 5 && runs[1] == 6 && positions == 7);
    }
    assert_int_equal(weft_step_runs_read("384,768,4096", runs, &positions), WEFT_OK);
    assert_true(runs[0] == 384 && runs[1] == 768 && positions == 4096);
}

int main(void) {
    struct CMUnitTest tests[STEP_FORMS + 4];
    for (int i = 0; i < STEP_FORMS; i++)
        tests[i] = (struct CMUnitTest){"test_a_step_equals_decoding", test_a_step_equals_decoding,
                                       NULL, NULL, (void *)(uintptr_t)(step_forms + i)};
    tests[STEP_FORMS] = (struct CMUnitTest)cmocka_unit_test(test_other_models_have_no_step);
    tests[STEP_FORMS + 1] =
        (struct CMUnitTest)cmocka_unit_test(test_sampled_text_is_the_text_of_the_logits);
    tests[STEP_FORMS + 2] =
        (struct CMUnitTest)cmocka_unit_test(test_runs_of_keys_are_whole_numbers_from_one_on);
    tests[STEP_FORMS + 3] =
        (struct CMUnitTest)cmocka_unit_test(test_other_latents_and_gaussians_have_no_step);
    return _cmocka_run_group_tests("step", tests, STEP_FORMS + 4, NULL, NULL);
}

/* Whole models against the independent reference, and against themselves: every config of
 * tests/model/configs. */
#include "support/model_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *config;
    vectors *kept;
} model_test;

static const vector *find_kept(const model_test *t, const char *name) {
    const vector *v = vectors_find(t->kept, "%s", name);
    if (!v) fail_msg("%s: no kept '%s'", t->config, name);
    return v;
}

static void compare_number(const model_test *t, const model_run *r, const char *name,
                           const weft_tensor *got, double tolerance) {
    const double *want = find_kept(t, name)->data;
    double value = got ? model_run_number(r, got) : 0;
    if (!(fabs(value - want[0]) <= tolerance * fmax(1, fabs(want[0]))))
        fail_msg("%s: %s is %.12g, the reference has %.12g", t->config, name, value, want[0]);
}

static void compare_logits(const model_test *t, const model_run *r, double tolerance) {
    const vector *kept = find_kept(t, "logits");
    const double *want = kept->data;
    int64_t n = kept->count;
    double *got = model_run_values(r, r->session.graph.logits, n);
    double most = 1;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * most))
            fail_msg("%s: logit %lld is %.12g, the reference has %.12g", t->config, (long long)i,
                     got[i], want[i]);
    free(got);
}

/* ‖got − want‖ against max(‖want‖, 1e-6 √n) for each tensor of the checkpoint. */
static void compare_gradients(const model_test *t, const model_run *r, double tolerance) {
    for (int64_t i = 0; i < r->session.graph.n_parameters; i++) {
        const weft_tensor *p = r->session.graph.parameters[i].tensor;
        char name[160];
        snprintf(name, sizeof name, "grad.%s", p->name);
        const vector *kept = find_kept(t, name);
        const double *want = kept->data;
        int64_t n = kept->count;
        double *got = model_run_values(r, p->grad, n);
        assert_int_equal(n, weft_tensor_count(p));
        double size = 0, off = 0;
        for (int64_t k = 0; k < n; k++) {
            size += want[k] * want[k];
            off += (got[k] - want[k]) * (got[k] - want[k]);
        }
        if (!(sqrt(off) <= tolerance * fmax(sqrt(size), 1e-6 * sqrt((double)n))))
            fail_msg("%s: %s is off by %.3g of %.3g", t->config, name, sqrt(off), sqrt(size));
        free(got);
    }
}

static void compare_with_reference(const char *config, weft_dtype dtype, weft_form form,
                                   double tolerance, double gradient_tolerance) {
    model_test test = {.config = config}, *t = &test;
    model_case c;
    model_run r;
    t->kept = model_case_kept(config);
    model_case_open(&c, config);
    model_run_open(
        &r, &c, &(model_run_options){.dtype = dtype, .form = form, .train = true, .grads = true});
    compare_logits(t, &r, tolerance);
    compare_number(t, &r, "loss", r.session.graph.loss, tolerance);
    compare_number(t, &r, "cross_entropy", r.session.graph.cross_entropy, tolerance);
    compare_number(t, &r, "aux_z", r.session.graph.aux_z, tolerance);
    compare_number(t, &r, "aux_contrastive", r.session.graph.aux_contrastive, tolerance);
    compare_number(t, &r, "logits_z", r.session.graph.logits_z, tolerance);
    compare_gradients(t, &r, gradient_tolerance);
    /* Every kept gradient is one of ours: the checkpoints have the same tensors. */
    assert_int_equal(vectors_begin(t->kept, NULL, "grad."), r.session.graph.n_parameters);
    model_run_close(&r);
    model_run_open(&r, &c, &(model_run_options){.dtype = dtype});
    compare_number(t, &r, "eval.loss", r.session.graph.loss, tolerance);
    compare_logits(t, &r, tolerance);
    model_run_close(&r);
    model_case_close(&c);
    vectors_close(t->kept);
}

static void test_f64_equals_the_reference(void **state) {
    compare_with_reference(*state, WEFT_F64, WEFT_FORM_BY_SHAPE, 1e-10, 1e-10);
}

static void test_direct_and_cheap_forms_equal_the_reference(void **state) {
    compare_with_reference(*state, WEFT_F64, WEFT_FORM_DIRECT, 1e-10, 1e-10);
    compare_with_reference(*state, WEFT_F64, WEFT_FORM_CHEAP, 1e-10, 1e-10);
}

static void test_f32_equals_the_reference(void **state) {
    compare_with_reference(*state, WEFT_F32, WEFT_FORM_BY_SHAPE, 1e-5, 2e-4);
}

/* Changes the token at t + 1 for each t and compares the logits up to t bit for bit. Returns
 * whether they all stayed. */
static bool stays_causal(const model_case *c) {
    model_run r;
    model_run_open(&r, c, &(model_run_options){.dtype = WEFT_F32, .train = true});
    int64_t row = c->time * c->config.vocab_size, n = c->batch * row;
    double *before = model_run_values(&r, r.session.graph.logits, n);
    int32_t *tokens = malloc((size_t)(c->batch * c->time) * sizeof *tokens);
    assert_non_null(tokens);
    bool same = true;
    for (int64_t t = 0; t + 1 < c->time; t++) {
        memcpy(tokens, c->tokens, (size_t)(c->batch * c->time) * sizeof *tokens);
        for (int64_t b = 0; b < c->batch; b++) {
            int32_t *token = &tokens[b * c->time + t + 1];
            *token = (int32_t)((*token + 1) % c->config.vocab_size);
        }
        model_run_again(&r, tokens, c->targets);
        double *after = model_run_values(&r, r.session.graph.logits, n);
        for (int64_t b = 0; b < c->batch; b++)
            same &= memcmp(before + b * row, after + b * row,
                           (size_t)((t + 1) * c->config.vocab_size) * sizeof *before) == 0;
        free(after);
    }
    free(tokens);
    free(before);
    model_run_close(&r);
    return same;
}

static void test_later_tokens_change_nothing_before_them(void **state) {
    model_case c;
    model_case_open(&c, *state);
    /* With one token, or one word, nothing can be seen. */
    bool can_tell = c.time > 1 && c.config.vocab_size > 1;
    bool sees_the_future = weft_config_leaks(&c.config) || !c.config.causal;
    bool causal = stays_causal(&c);
    model_case_close(&c);
    if (sees_the_future && can_tell)
        assert_false(causal);
    else
        assert_true(causal);
}

/* Where the document of token t of a sequence begins. */
static int64_t document_of(const model_case *c, int64_t b, int64_t t) {
    while (t > 0 && c->tokens[b * c->time + t - 1] != c->config.document_token)
        t--;
    return t;
}

/* Changes each token that ends no document, and holds the logits of the other documents to their bits. */
static void test_documents_change_nothing_beside_them(void **state) {
    model_case c;
    model_run r;
    model_case_open(&c, *state);
    int64_t vocab = c.config.vocab_size, moved = 0, n = c.batch * c.time * vocab;
    if (!c.config.document_mask) {
        model_case_close(&c);
        return;
    }
    model_run_open(&r, &c, &(model_run_options){.dtype = WEFT_F32, .train = true});
    double *before = model_run_values(&r, r.session.graph.logits, n);
    int32_t end = (int32_t)c.config.document_token;
    for (int64_t at = 0; at < c.batch * c.time; at++) {
        int32_t was = c.tokens[at], next = (int32_t)((was + 1) % vocab);
        if (next == end) next = (int32_t)((next + 1) % vocab);
        if (was == end || next == was) continue;
        c.tokens[at] = next;
        model_run_again(&r, c.tokens, c.targets);
        c.tokens[at] = was;
        double *after = model_run_values(&r, r.session.graph.logits, n);
        int64_t b = at / c.time, own = document_of(&c, b, at % c.time);
        for (int64_t i = 0; i < c.batch * c.time; i++) {
            bool same =
                memcmp(before + i * vocab, after + i * vocab, (size_t)vocab * sizeof *before) == 0;
            bool inside = i / c.time == b && document_of(&c, b, i % c.time) == own;
            if (!same && !inside) fail_msg("token %d moves token %d", (int)at, (int)i);
            moved += !same;
        }
        free(after);
    }
    assert_true(moved > 0);
    free(before);
    model_run_close(&r);
    model_case_close(&c);
}

static void compare_bits(const model_run *a, const model_run *b, const char *what) {
    for (int64_t i = 0; i < a->session.graph.n_parameters; i++) {
        const weft_tensor *p = a->session.graph.parameters[i].tensor,
                          *q = b->session.graph.parameters[i].tensor;
        int64_t n = weft_tensor_count(p);
        double *x = model_run_values(a, p->grad, n), *y = model_run_values(b, q->grad, n);
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0) fail_msg("%s: %s differs", what, p->name);
        free(x);
        free(y);
    }
    assert_true(model_run_number(a, a->session.graph.loss) ==
                model_run_number(b, b->session.graph.loss));
}

static void test_threads_and_recomputation_keep_the_bits(void **state) {
    model_case c;
    model_run one, other;
    model_case_open(&c, *state);
    model_run_options options = {.dtype = WEFT_F32, .train = true, .grads = true};
    model_run_open(&one, &c, &options);
    options.threads = 3;
    model_run_open(&other, &c, &options);
    compare_bits(&one, &other, "three threads");
    model_run_close(&other);
    options.recompute = true;
    model_run_open(&other, &c, &options);
    compare_bits(&one, &other, "recomputed layers");
    model_run_close(&other);
    model_run_close(&one);
    model_case_close(&c);
}

static const model_case_check checks[] = {
    {"f64 equals the reference", test_f64_equals_the_reference},
    {"f32 equals the reference", test_f32_equals_the_reference},
    {"direct and cheap forms equal the reference", test_direct_and_cheap_forms_equal_the_reference},
    {"later tokens change nothing before them", test_later_tokens_change_nothing_before_them},
    {"documents change nothing beside them", test_documents_change_nothing_beside_them},
    {"threads and recomputation keep the bits", test_threads_and_recomputation_keep_the_bits},
};

int main(void) {
    return model_cases_run(checks, sizeof checks / sizeof checks[0]);
}

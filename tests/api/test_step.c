/* The optimizer's step over the caller's memory, against the formula in double; and text to tokens
 * and back. Everything here goes through the public headers. */
#include "support/test.h"

#include <weft/step.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != WEFT_OK) fail_msg("%s: %s", #call, weft_error_message());                    \
    } while (0)

static void refused(weft_status got, const char *text) {
    assert_int_equal(got, WEFT_EINPUT);
    if (!strstr(weft_error_message(), text))
        fail_msg("'%s' does not say '%s'", weft_error_message(), text);
}

enum { TENSORS = 3, ROOM = 64, STEPS = 4 };
static const int64_t counts[TENSORS] = {17, 5, 33};
static const int groups_of[TENSORS] = {0, 1, 0};
static const int decays[TENSORS] = {1, 1, 0};

static const weft_step_group groups[2] = {
    {.size = sizeof(weft_step_group),
     .beta1 = 0.9,
     .beta2 = 0.99,
     .eps = 1e-8,
     .weight_decay = 0.1},
    {.size = sizeof(weft_step_group), .beta1 = 0.5, .beta2 = 0.8, .eps = 1e-6, .weight_decay = 0.3},
};
static const double rates[2] = {1e-2, 3e-2};

/* Memory of a call, aligned. */
typedef struct {
    _Alignas(WEFT_ALIGNMENT) double params[TENSORS][ROOM];
    _Alignas(WEFT_ALIGNMENT) double grads[TENSORS][ROOM];
    _Alignas(WEFT_ALIGNMENT) double m[TENSORS][ROOM];
    _Alignas(WEFT_ALIGNMENT) double v[TENSORS][ROOM];
    _Alignas(WEFT_ALIGNMENT) double states[2][128];
    _Alignas(WEFT_ALIGNMENT) double reports[2][32];
    _Alignas(WEFT_ALIGNMENT) double rate[2][8];
    _Alignas(WEFT_ALIGNMENT) int32_t cuts[2][16];
} memory;

static void list_rows(void *first, size_t bytes, int n, void **out) {
    for (int i = 0; i < n; i++)
        out[i] = (char *)first + (size_t)i * bytes;
}

static weft_status run(weft_step *step, memory *a) {
    void *params[TENSORS], *grads[TENSORS], *m[TENSORS], *v[TENSORS];
    void *states[2], *reports[2], *rate[2], *cuts[2];
    list_rows(a->params, sizeof a->params[0], TENSORS, params);
    list_rows(a->grads, sizeof a->grads[0], TENSORS, grads);
    list_rows(a->m, sizeof a->m[0], TENSORS, m);
    list_rows(a->v, sizeof a->v[0], TENSORS, v);
    list_rows(a->states, sizeof a->states[0], 2, states);
    list_rows(a->reports, sizeof a->reports[0], 2, reports);
    list_rows(a->rate, sizeof a->rate[0], 2, rate);
    list_rows(a->cuts, sizeof a->cuts[0], 2, cuts);
    int64_t bytes = weft_step_bytes(step) + 2 * WEFT_ALIGNMENT;
    void *workspace =
        aligned_alloc(WEFT_ALIGNMENT, (size_t)(bytes / WEFT_ALIGNMENT * WEFT_ALIGNMENT));
    assert_non_null(workspace);
    weft_step_call call = {.size = sizeof call,
                           .rates = rate,
                           .states = states,
                           .reports = reports,
                           .cuts = cuts,
                           .params = params,
                           .grads = grads,
                           .m = m,
                           .v = v,
                           .workspace = workspace};
    weft_status status = weft_step_run(step, &call);
    free(workspace);
    return status;
}

static double number(int i, int k, int step) {
    return sin(3.0 * i + 0.7 * k + 1.3 * step);
}

/* One element through AdamW as the formula has it. */
static double expected(int i, int k, int steps) {
    const weft_step_group *o = &groups[groups_of[i]];
    double p = number(i, k, 99), m = 0, v = 0, lr = rates[groups_of[i]];
    for (int t = 1; t <= steps; t++) {
        double g = number(i, k, t);
        m = o->beta1 * m + (1 - o->beta1) * g;
        v = o->beta2 * v + (1 - o->beta2) * g * g;
        double up = m / (1 - pow(o->beta1, t)), down = sqrt(v / (1 - pow(o->beta2, t))) + o->eps;
        p -= lr * (decays[i] ? o->weight_decay : 0) * p + lr * up / down;
    }
    return p;
}

static weft_step *open_step(weft_engine *engine, const char *type) {
    weft_step_tensor tensors[TENSORS];
    weft_step *step;
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (weft_step_tensor){
            .size = sizeof *tensors, .count = counts[i], .group = groups_of[i], .decay = decays[i]};
    OK(weft_step_open(engine, type, groups, 2, tensors, TENSORS, &step));
    return step;
}

static void fill(memory *a, int step) {
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < counts[i]; k++) {
            if (step == 1) a->params[i][k] = number(i, k, 99);
            a->grads[i][k] = number(i, k, step);
        }
    a->rate[0][0] = rates[0];
    a->rate[1][0] = rates[1];
}

TEST(test_each_group_steps_by_its_own_options) {
    weft_engine *engine;
    OK(weft_engine_open(2, "cpu", &engine));
    weft_step *step = open_step(engine, "f64");
    memory *a = aligned_alloc(WEFT_ALIGNMENT, sizeof *a),
           *b = aligned_alloc(WEFT_ALIGNMENT, sizeof *b);
    memset(a, 0, sizeof *a);
    for (int t = 1; t <= STEPS; t++) {
        fill(a, t);
        OK(run(step, a));
        memcpy(b, a, sizeof *a); /* other addresses at each call */
        memory *other = a;
        a = b;
        b = other;
    }
    double squares = 0;
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < counts[i]; k++) {
            assert_true(fabs(a->params[i][k] - expected(i, k, STEPS)) < 1e-12);
            squares += a->grads[i][k] * a->grads[i][k];
        }
    for (int g = 0; g < 2; g++) /* the norm is over all groups */
        assert_true(fabs(a->reports[g][16] - sqrt(squares)) < 1e-12);
    free(a);
    free(b);
    weft_step_close(step);
    weft_engine_close(engine);
}

/* Orthogonal directions stay what they are: of a gradient whose rows are orthogonal and equally long, both
 * matrices step along it, by the factor that the polynomial has for its singular values. */
TEST(test_matrices_step_by_muon) {
    weft_engine *engine;
    OK(weft_engine_open(2, "cpu", &engine));
    weft_step_group group = groups[0];
    group.momentum = 0.95;
    weft_step_tensor tensors[TENSORS] = {
        {.size = sizeof *tensors, .count = 17, .columns = 3, .rows = 2, .first_rows = 3},
        {.size = sizeof *tensors, .count = 5},
        {.size = sizeof *tensors, .count = 33, .columns = 33, .rows = 1}};
    weft_step *step;
    refused(weft_step_open(engine, "f64", &group, 1, tensors, TENSORS, &step), "muon");
    tensors[0].rows = tensors[0].first_rows = 0;
    refused(weft_step_open(engine, "f64", &group, 1, tensors, TENSORS, &step), "muon");
    tensors[0].rows = 2, tensors[0].first_rows = 3;
    tensors[0].columns = -1;
    refused(weft_step_open(engine, "f64", &group, 1, tensors, TENSORS, &step), "-1 columns");
    tensors[0].columns = 3;
    tensors[0].count = 15; /* [3, 3] and [2, 3] */
    OK(weft_step_open(engine, "f64", &group, 1, tensors, TENSORS, &step));
    memory *a = aligned_alloc(WEFT_ALIGNMENT, sizeof *a);
    memset(a, 0, sizeof *a);
    a->rate[0][0] = rates[0];
    double way[15] = {0};
    for (int r = 0; r < 5; r++)
        way[3 * r + r % 3] = r == 1 ? -1 : 1;
    for (int t = 1; t <= STEPS; t++) {
        for (int i = 0; i < 15; i++)
            a->grads[0][i] = way[i] * (i < 9 ? 2 : 0.1) * t;
        OK(run(step, a));
    }
    for (int matrix = 0; matrix < 2; matrix++) {
        double s = 1 / sqrt(3 - matrix), p = 0, lr = rates[0];
        for (int k = 0; k < 5; k++)
            s = 3.4445 * s - 4.7750 * pow(s, 3) + 2.0315 * pow(s, 5);
        for (int t = 1; t <= STEPS; t++)
            p -= lr * group.weight_decay * p + lr * 0.2 * sqrt(3) * s;
        for (int i = 9 * matrix; i < 9 + 6 * matrix; i++)
            assert_true(fabs(a->params[0][i] - p * way[i]) < 1e-7);
    }
    free(a);
    weft_step_close(step);
    weft_engine_close(engine);
}

TEST(test_a_gradient_that_is_not_finite_changes_no_parameter) {
    weft_engine *engine;
    OK(weft_engine_open(1, "cpu", &engine));
    weft_step *step = open_step(engine, "f64");
    memory *a = aligned_alloc(WEFT_ALIGNMENT, sizeof *a);
    memset(a, 0, sizeof *a);
    fill(a, 1);
    a->grads[1][2] = NAN;
    OK(run(step, a));
    for (int k = 0; k < counts[0]; k++)
        assert_true(a->params[0][k] == number(0, k, 99));
    assert_true(a->reports[0][21] == 1);
    free(a);
    weft_step_close(step);
    weft_engine_close(engine);
}

/* A state from a file may say anything of its ring of norms: no other memory is read or written by it. */
TEST(test_a_state_of_any_values_stays_in_its_memory) {
    const double wrong[] = {NAN, INFINITY, -1, 100, 1e6, -1e300};
    weft_engine *engine;
    OK(weft_engine_open(1, "cpu", &engine));
    weft_step_group group = groups[0];
    group.spike_threshold = 2;
    weft_step_tensor tensor = {.size = sizeof tensor, .count = 17};
    weft_step *step;
    OK(weft_step_open(engine, "f64", &group, 1, &tensor, 1, &step));
    memory *a = aligned_alloc(WEFT_ALIGNMENT, sizeof *a);
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        memset(a, 0, sizeof *a);
        fill(a, 1);
        for (int k = 100; k < 112; k++)
            a->states[0][k] = wrong[i];
        a->states[0][102] = 0; /* the age, of which the bias corrections are */
        OK(run(step, a));
        for (int k = 112; k < 128; k++)
            assert_true(a->states[0][k] == 0);
        double norm = 0;
        for (int k = 0; k < 17; k++)
            norm += a->grads[0][k] * a->grads[0][k];
        assert_true(fabs(a->states[0][0] - sqrt(norm)) < 1e-12); /* the ring begins anew */
        assert_true(a->states[0][101] == 1);
    }
    free(a);
    weft_step_close(step);
    weft_engine_close(engine);
}

/* Memory of one tensor in f32 with a bf16 copy. */
enum { HALVES = 2500 };
typedef struct {
    _Alignas(WEFT_ALIGNMENT) float param[HALVES];
    _Alignas(WEFT_ALIGNMENT) float grad[HALVES];
    _Alignas(WEFT_ALIGNMENT) float m[HALVES];
    _Alignas(WEFT_ALIGNMENT) float v[HALVES];
    _Alignas(WEFT_ALIGNMENT) uint16_t copy[HALVES];
    _Alignas(WEFT_ALIGNMENT) float state[112];
    _Alignas(WEFT_ALIGNMENT) float report[24];
    _Alignas(WEFT_ALIGNMENT) float rate[16];
    _Alignas(WEFT_ALIGNMENT) int32_t cut[16];
} half_memory;

static uint16_t upper_half(float value) { /* of a number that bf16 has */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Where the copy was set between steps, the step starts from there; elsewhere from the wide parameter, whose
 * lower bits the copy does not have. With a first moment of the gradient alone and no eps, a step is lr. */
TEST(test_a_copy_that_was_set_counts) {
    weft_engine *engine;
    OK(weft_engine_open(2, "cpu", &engine));
    weft_step_group group = {.size = sizeof group, .beta1 = 0, .beta2 = 0};
    for (int copy = 1; copy <= WEFT_STEP_COPY_COUNTS; copy++) {
        weft_step_tensor tensor = {.size = sizeof tensor, .count = HALVES, .copy = copy};
        weft_step *step;
        OK(weft_step_open(engine, "f32", &group, 1, &tensor, 1, &step));
        half_memory *a = aligned_alloc(WEFT_ALIGNMENT, sizeof *a);
        void *workspace =
            aligned_alloc(WEFT_ALIGNMENT, (size_t)weft_step_bytes(step) / 64 * 64 + 64);
        memset(a, 0, sizeof *a);
        for (int i = 0; i < HALVES; i++) {
            a->param[i] = 1 + 0x1p-12F; /* rounds to 1 */
            a->copy[i] = upper_half(i % 3 ? 1.0F : -2.0F);
            a->grad[i] = 1;
        }
        a->rate[0] = 0x1p-10F;
        weft_step_call call = {.size = sizeof call,
                               .rates = (void *[]){a->rate},
                               .states = (void *[]){a->state},
                               .reports = (void *[]){a->report},
                               .cuts = (void *[]){a->cut},
                               .params = (void *[]){a->param},
                               .grads = (void *[]){a->grad},
                               .m = (void *[]){a->m},
                               .v = (void *[]){a->v},
                               .copies = (void *[]){a->copy},
                               .workspace = workspace};
        OK(weft_step_run(step, &call));
        for (int i = 0; i < HALVES; i++) {
            bool set = copy == WEFT_STEP_COPY_COUNTS && i % 3 == 0;
            float from = set ? -2.0F : 1 + 0x1p-12F;
            assert_true(a->param[i] == from - 0x1p-10F);
            assert_int_equal(a->copy[i], upper_half(set ? -2.0F : 1.0F));
        }
        free(workspace);
        free(a);
        weft_step_close(step);
    }
    weft_engine_close(engine);
}

TEST(test_wrong_steps_are_refused) {
    weft_engine *engine;
    weft_step *step = NULL;
    OK(weft_engine_open(1, "cpu", &engine));
    weft_step_tensor tensor = {.size = sizeof tensor, .count = 3, .group = 0};
    refused(weft_step_open(NULL, "f32", groups, 1, &tensor, 1, &step), "engine is NULL");
    refused(weft_step_open(engine, "bf16", groups, 1, &tensor, 1, &step), "neither f32");
    refused(weft_step_open(engine, "f32", groups, 1, &tensor, 0, &step), "one is the least");
    tensor.group = 1;
    refused(weft_step_open(engine, "f32", groups, 1, &tensor, 1, &step), "group 1");
    tensor = (weft_step_tensor){.size = 3, .count = 3};
    refused(weft_step_open(engine, "f32", groups, 1, &tensor, 1, &step),
            "sizeof(weft_step_tensor)");
    weft_step_group wrong = groups[0];
    tensor.size = sizeof tensor;
    wrong.beta1 = 1;
    refused(weft_step_open(engine, "f32", &wrong, 1, &tensor, 1, &step), "beta1");
    assert_null(step);
    step = open_step(engine, "f32");
    refused(weft_step_run(step, &(weft_step_call){.size = 1}), "sizeof(weft_step_call)");
    refused(weft_step_run(step, &(weft_step_call){.size = sizeof(weft_step_call)}), "");
    weft_step_close(step);
    weft_step_close(NULL);
    assert_int_equal(weft_step_bytes(NULL), 0);
    weft_engine_close(engine);
}

TEST(test_text_becomes_tokens_and_text_again) {
    weft_text *text;
    int32_t tokens[8];
    char bytes[8];
    int64_t count;
    size_t length;
    OK(weft_text_open("bytes", &text));
    assert_int_equal(weft_text_vocabulary(text), 256);
    assert_int_equal(weft_text_end(text), -1);
    OK(weft_text_encode(text, "h\xc3\xa9!", 4, 0, tokens, 8, &count));
    assert_int_equal(count, 4);
    assert_int_equal(tokens[1], 0xc3);
    OK(weft_text_decode(text, tokens, 4, bytes, 8, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(bytes, "h\xc3\xa9!", 4);
    tokens[0] = -7;
    OK(weft_text_encode(text, "abc", 3, 0, tokens, 0, &count)); /* only how many */
    assert_int_equal(count, 3);
    assert_int_equal(tokens[0], -7);
    OK(weft_text_decode(text, (int32_t[]){97, 98}, 2, bytes, 1, &length));
    assert_int_equal(length, 2);
    refused(weft_text_decode(text, (int32_t[]){256}, 1, bytes, 8, &length), "256");
    refused(weft_text_decode(text, tokens, -1, bytes, 8, &length), "-1");
    refused(weft_text_encode(NULL, "a", 1, 0, tokens, 8, &count), "text is NULL");
    weft_text_close(text);
    assert_int_not_equal(weft_text_open("no-such-tokenizer", &text), WEFT_OK);
    assert_null(text);
    weft_text_close(NULL);
    assert_int_equal(weft_text_vocabulary(NULL), 0);
}

RUN_TESTS(NULL, NULL)

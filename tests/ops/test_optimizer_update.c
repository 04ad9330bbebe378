/* The optimizer's update by itself: no place in a tensor and no number of threads is special, and
 * what cannot be updated is refused. tests/cuda/test_optimizer_update.c is the same on the GPU. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/arith.h"
#include "ops/optimizer.h"
#include "support/table.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ON_GPU
#define test_backend weft_cuda_backend
#else
#define test_backend weft_cpu_backend
#endif

static void skip_without_backend(void) {
    if (test_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

/* A graph of one parameter that spans several chunks, and its gradient of a short period. */
typedef struct {
    weft_graph *graph;
    weft_pool *pool;
    weft_exec *exec;
    weft_tensor *lr, *state, *cut, *norm;
    weft_adam_slot slot;
} large;

enum { PERIOD = 37, COUNT = 3 * 16384 + 1021 };

/* narrow: the gradient in bf16, and a copy of the parameter. */
static void large_open(large *l, int threads, bool amsgrad, bool narrow) {
    *l = (large){0};
    assert_int_equal(weft_graph_create(&l->graph), WEFT_OK);
    weft_graph *g = l->graph;
    weft_adam_options o = {
        .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .theta = 2};
    l->slot.param = weft_new_tensor(g, WEFT_ROLE_PARAM, "p", WEFT_F32, 1, COUNT);
    l->slot.grad =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "g", narrow ? WEFT_BF16 : WEFT_F32, 1, COUNT);
    if (narrow) l->slot.copy = weft_new_tensor(g, WEFT_ROLE_STATE, "copy", WEFT_BF16, 1, COUNT);
    l->slot.m = weft_new_tensor(g, WEFT_ROLE_STATE, "m", WEFT_F32, 1, COUNT);
    l->slot.v = weft_new_tensor(g, WEFT_ROLE_STATE, "v", WEFT_F32, 1, COUNT);
    if (amsgrad) l->slot.v_max = weft_new_tensor(g, WEFT_ROLE_STATE, "v_max", WEFT_F32, 1, COUNT);
    l->lr = weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, 1);
    l->state = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    l->norm = weft_keep(weft_global_norm(g, &l->slot.grad, 1));
    l->cut = weft_adamw(g, weft_adam_control(g, l->norm, l->lr, l->state, &o), &l->slot, 1);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(weft_pool_create(threads, &l->pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(g, test_backend(), l->pool, &options, &l->exec), WEFT_OK);
    float *values = calloc(COUNT, sizeof *values), lr = 0.01f;
    assert_int_equal(weft_exec_write(l->exec, l->slot.m, values), WEFT_OK);
    assert_int_equal(weft_exec_write(l->exec, l->slot.v, values), WEFT_OK);
    if (amsgrad) assert_int_equal(weft_exec_write(l->exec, l->slot.v_max, values), WEFT_OK);
    assert_int_equal(weft_exec_write(l->exec, l->state, values), WEFT_OK);
    assert_int_equal(weft_exec_write(l->exec, l->lr, &lr), WEFT_OK);
    for (int64_t i = 0; i < COUNT; i++)
        values[i] = (float)(2 * case_unit(1, "p", i % PERIOD) - 1);
    assert_int_equal(weft_exec_write(l->exec, l->slot.param, values), WEFT_OK);
    free(values);
}

static void large_step(large *l, int step) {
    float *values = malloc(COUNT * sizeof *values);
    for (int64_t i = 0; i < COUNT; i++) {
        values[i] = (float)(2 * case_unit((uint32_t)step, "g", i % PERIOD) - 1);
        if (l->slot.copy) ((uint16_t *)values)[i] = weft_float_to_bf16(values[i]);
    }
    assert_int_equal(weft_exec_write(l->exec, l->slot.grad, values), WEFT_OK);
    assert_int_equal(weft_exec_run(l->exec, NULL), WEFT_OK);
    free(values);
}

static void large_close(large *l) {
    weft_exec_destroy(l->exec);
    weft_pool_destroy(l->pool);
    weft_graph_destroy(l->graph);
}

static void check_copy(large *l, const float *p) {
    uint16_t *copy = malloc(COUNT * sizeof *copy);
    assert_int_equal(weft_exec_read(l->exec, l->slot.copy, copy), WEFT_OK);
    for (int64_t i = 0; i < COUNT; i++)
        assert_true(copy[i] == weft_float_to_bf16(p[i]));
    free(copy);
}

/* Eight steps; p: what the parameter has become. Returns the last norm. */
static float run_large(int threads, bool amsgrad, bool narrow, float *p) {
    large l;
    int32_t cut;
    float norm;
    large_open(&l, threads, amsgrad, narrow);
    for (int step = 1; step <= 8; step++)
        large_step(&l, step);
    assert_int_equal(weft_exec_read(l.exec, l.cut, &cut), WEFT_OK);
    assert_int_equal(weft_exec_read(l.exec, l.norm, &norm), WEFT_OK);
    assert_int_equal(weft_exec_read(l.exec, l.slot.param, p), WEFT_OK);
    assert_true(cut > 0 && cut < COUNT);
    if (narrow) check_copy(&l, p);
    large_close(&l);
    return norm;
}

TEST(test_an_update_does_not_depend_on_place_or_threads) {
    static const int threads[] = {2, 3, 16};
    skip_without_backend();
    float *first = malloc(COUNT * sizeof *first), *p = malloc(COUNT * sizeof *p);
    for (int kind = 0; kind < 4; kind++) {
        bool amsgrad = kind & 1, narrow = kind & 2;
        float norm = run_large(1, amsgrad, narrow, first);
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            assert_true(run_large(threads[t], amsgrad, narrow, p) == norm);
            assert_memory_equal(first, p, COUNT * sizeof *p);
        }
        for (int64_t i = PERIOD; i < COUNT; i++)
            if (first[i] != first[i % PERIOD])
                fail_msg("element %lld differs from its like: %a, %a", (long long)i,
                         (double)first[i], (double)first[i % PERIOD]);
    }
    free(first);
    free(p);
}

/* A step of two parameters, the first with a bf16 gradient of ones, the second with none. */
enum { CUT_FIRST = 2, CUT_TENSORS = 2, CUT_MOST = 8 };

/* The norm of two gradients in one operation, or in halves: the chunks' sums made in two graphs, joined
 * in a third. */
static float norm_of(const float *values, bool halves) {
    static const int64_t counts[CUT_TENSORS] = {COUNT, 1021};
    /* The first graph has some chunks of the first gradient, the second the rest and the other. */
    const int64_t border = CUT_FIRST * WEFT_NORM_CHUNK;
    const int64_t firsts[] = {0, border, 0}, ends[] = {border, COUNT, counts[1]};
    double parts[CUT_MOST] = {0};
    int64_t done = 0;
    float norm = 0;
    weft_pool *pool;
    assert_int_equal(weft_pool_create(2, &pool), WEFT_OK);
    for (int round = 0; round < (halves ? 3 : 1); round++) {
        weft_graph *g;
        weft_exec *x;
        weft_tensor *in[CUT_TENSORS], *out;
        int n = 0, from = round == 1 ? 1 : 0, to = round == 1 ? 3 : 1;
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        if (halves && round == 2) {
            in[n++] = weft_new_tensor(g, WEFT_ROLE_INPUT, "parts", WEFT_I32, done, 2);
            out = weft_keep(weft_norm_join(g, in[0], WEFT_F32));
        } else {
            if (!halves) to = CUT_TENSORS;
            for (int k = from; k < to; k++)
                in[n++] = weft_new_tensor(g, WEFT_ROLE_INPUT, k == from ? "a" : "b", WEFT_F32,
                                          halves ? ends[k] - firsts[k] : counts[k]);
            out = weft_keep(halves ? weft_norm_parts(g, in, n) : weft_global_norm(g, in, n));
        }
        assert_int_equal(weft_graph_status(g), WEFT_OK);
        assert_int_equal(weft_exec_create(g, test_backend(), pool, NULL, &x), WEFT_OK);
        for (int k = 0; k < n; k++) {
            const void *data = halves && round == 2 ? (const void *)parts
                               : halves             ? values + firsts[from + k]
                                                    : values;
            assert_int_equal(weft_exec_write(x, in[k], data), WEFT_OK);
        }
        assert_int_equal(weft_exec_run(x, NULL), WEFT_OK);
        void *result = halves && round < 2 ? (void *)&parts[done] : &norm;
        assert_int_equal(weft_exec_read(x, out, result), WEFT_OK);
        if (halves && round < 2) done += out->shape[0];
        weft_exec_destroy(x);
        weft_graph_destroy(g);
    }
    weft_pool_destroy(pool);
    return norm;
}

TEST(test_a_norm_in_halves_has_the_same_bits) {
    skip_without_backend();
    float *values = malloc(COUNT * sizeof *values);
    for (int64_t i = 0; i < COUNT; i++)
        values[i] = (float)(case_unit(3, "g", i) * (i % 7 ? 1e-3 : 10.0));
    float whole = norm_of(values, false), halves = norm_of(values, true);
    if (memcmp(&whole, &halves, sizeof whole) != 0)
        fail_msg("%.9g in one, %.9g in halves", (double)whole, (double)halves);
    assert_true(whole > 1);
    free(values);
}

TEST(test_no_gradient_counts_as_zeros) {
    skip_without_backend();
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    enum { N = 3 };
    weft_adam_slot slots[2];
    for (int i = 0; i < 2; i++) {
        char name[3][8];
        for (int k = 0; k < 3; k++)
            snprintf(name[k], sizeof name[k], "%c%d", "pmv"[k], i);
        slots[i] =
            (weft_adam_slot){.param = weft_new_tensor(g, WEFT_ROLE_PARAM, name[0], WEFT_F32, 1, N),
                             .m = weft_new_tensor(g, WEFT_ROLE_STATE, name[1], WEFT_F32, 1, N),
                             .v = weft_new_tensor(g, WEFT_ROLE_STATE, name[2], WEFT_F32, 1, N)};
    }
    slots[0].grad = weft_new_tensor(g, WEFT_ROLE_INPUT, "d0", WEFT_BF16, 1, N);
    weft_tensor *grads[2] = {slots[0].grad, slots[1].grad};
    weft_tensor *norm = weft_keep(weft_global_norm(g, grads, 2));
    weft_tensor *lr = weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, 1);
    weft_tensor *s = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    weft_adam_options o = {.beta1 = 0.5, .beta2 = 0.5, .eps = 1, .weight_decay = 0.25};
    weft_adamw(g, weft_adam_control(g, norm, lr, s, &o), slots, 2);
    assert_int_equal(weft_exec_create(g, test_backend(), pool, NULL, &exec), WEFT_OK);
    const float start[N] = {1, -2, 4}, zeros[WEFT_ADAM_STATE] = {0}, half = 0.5f;
    const uint16_t ones[N] = {0x3f80, 0x3f80, 0x3f80};
    for (int i = 0; i < 2; i++) {
        weft_exec_write(exec, slots[i].param, start);
        weft_exec_write(exec, slots[i].m, zeros);
        weft_exec_write(exec, slots[i].v, zeros);
    }
    weft_exec_write(exec, slots[0].grad, ones);
    weft_exec_write(exec, lr, &half);
    weft_exec_write(exec, s, zeros);
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    float got[2][N], length;
    for (int i = 0; i < 2; i++)
        weft_exec_read(exec, slots[i].param, got[i]);
    weft_exec_read(exec, norm, &length);
    for (int k = 0; k < N; k++) {
        /* p − ⅛ p, and for a gradient of 1: m̂ = 1, v̂ = 1, so ½ · 1/(1 + 1) less. */
        assert_float_equal(got[0][k], start[k] * 0.875f - 0.25f, 1e-6);
        assert_true(got[1][k] == start[k] * 0.875f);
    }
    assert_float_equal(length, sqrtf(N), 1e-6);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_the_state_holds_the_last_norms) {
    skip_without_backend();
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_tensor *norm = weft_new_tensor(g, WEFT_ROLE_INPUT, "norm", WEFT_F32, 1);
    weft_tensor *lr = weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, 1);
    weft_tensor *s = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    weft_adam_options o = {.beta1 = 0.9, .beta2 = 0.9, .eps = 1, .reset_interval = 30};
    assert_non_null(weft_adam_control(g, norm, lr, s, &o));
    assert_int_equal(weft_exec_create(g, test_backend(), pool, NULL, &exec), WEFT_OK);
    float values[WEFT_ADAM_STATE] = {0};
    weft_exec_write(exec, s, values);
    weft_exec_write(exec, lr, values);
    for (int step = 1; step <= 250; step++) {
        float value = (float)step;
        weft_exec_write(exec, norm, &value);
        assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
        weft_exec_read(exec, s, values);
        int known = step < WEFT_ADAM_HISTORY ? step : WEFT_ADAM_HISTORY;
        assert_true(values[WEFT_ADAM_KNOWN] == (float)known);
        for (int k = 0; k < known; k++)
            assert_true(values[(step - 1 - k) % WEFT_ADAM_HISTORY] == (float)(step - k));
    }
    assert_true(values[WEFT_ADAM_STEPS] == 250 && values[WEFT_ADAM_RESETS] == 8);
    assert_true(values[WEFT_ADAM_AGE] == 10);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

/* Forward, backward and update of Σ p² as one graph: the loss of each of 30 steps. */
static void train_in_one_graph(bool no_reuse, float *losses) {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(2, &pool), WEFT_OK);
    weft_adam_slot slot = {
        .param = weft_new_tensor(g, WEFT_ROLE_PARAM, "p", WEFT_F32, 3, 50),
        .m = weft_new_tensor(g, WEFT_ROLE_STATE, "m", WEFT_F32, 3, 50),
        .v = weft_new_tensor(g, WEFT_ROLE_STATE, "v", WEFT_F32, 3, 50),
    };
    weft_tensor *lr = weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, 1);
    weft_tensor *s = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    weft_tensor *loss = weft_keep(weft_sum_squares(g, slot.param, 1));
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    slot.grad = slot.param->grad;
    weft_adam_options o = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .clip = 1};
    weft_tensor *norm = weft_global_norm(g, &slot.grad, 1);
    weft_adamw(g, weft_adam_control(g, norm, lr, s, &o), &slot, 1);
    weft_exec_options options = {.plan.no_reuse = no_reuse, .poison = true};
    assert_int_equal(weft_exec_create(g, test_backend(), pool, &options, &exec), WEFT_OK);
    float values[150] = {0}, rate = 0.02f;
    weft_exec_write(exec, slot.m, values);
    weft_exec_write(exec, slot.v, values);
    weft_exec_write(exec, s, values);
    weft_exec_write(exec, lr, &rate);
    for (int i = 0; i < 150; i++)
        values[i] = (float)(1 + case_unit(1, "p", i));
    weft_exec_write(exec, slot.param, values);
    for (int step = 0; step < 30; step++) {
        assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
        weft_exec_read(exec, loss, &losses[step]);
    }
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_a_whole_step_is_one_graph) {
    skip_without_backend();
    float packed[30], apart[30];
    train_in_one_graph(false, packed);
    train_in_one_graph(true, apart);
    assert_memory_equal(packed, apart, sizeof packed);
    for (int i = 1; i < 30; i++)
        assert_true(packed[i] < packed[i - 1]);
}

/* Builds an update with one thing wrong, and gives the message. */
typedef enum {
    WRONG_NOTHING,
    WRONG_GRAD_SHAPE,
    WRONG_MOMENT_SHAPE,
    WRONG_MOMENT_TYPE,
    WRONG_MOMENT_MISSING,
    WRONG_PARAM_BF16,
    WRONG_PARAM_TEMP,
    WRONG_GRAD_I32,
    WRONG_COPY_TYPE,
    WRONG_STATE_LENGTH,
    WRONG_LR_SHAPE,
    WRONG_BETA,
    WRONG_CLIP_NAN,
    WRONG_INTERVAL,
    WRONG_EMPTY_LIST,
    WRONG_KINDS
} wrong_kind;

static const char *build_wrong(wrong_kind wrong) {
    static char message[1024];
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    int64_t length = wrong == WRONG_STATE_LENGTH ? 7 : WEFT_ADAM_STATE;
    weft_adam_options o = {.beta1 = wrong == WRONG_BETA ? 1 : 0.9,
                           .beta2 = 0.9,
                           .eps = 1e-8,
                           .clip = wrong == WRONG_CLIP_NAN ? NAN : 0,
                           .reset_interval = wrong == WRONG_INTERVAL ? -5 : 0};
    weft_tensor *p = weft_new_tensor(g, WEFT_ROLE_PARAM, "p",
                                     wrong == WRONG_PARAM_BF16 ? WEFT_BF16 : WEFT_F32, 2, 3);
    weft_tensor *d =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "d", wrong == WRONG_GRAD_I32 ? WEFT_I32 : WEFT_F32,
                        wrong == WRONG_GRAD_SHAPE ? 3 : 2, 3);
    weft_tensor *m =
        weft_new_tensor(g, WEFT_ROLE_STATE, "m", WEFT_F32, wrong == WRONG_MOMENT_SHAPE ? 1 : 2, 3);
    weft_tensor *v = weft_new_tensor(g, WEFT_ROLE_STATE, "v",
                                     wrong == WRONG_MOMENT_TYPE ? WEFT_BF16 : WEFT_F32, 2, 3);
    weft_tensor *copy = weft_new_tensor(g, WEFT_ROLE_STATE, "copy",
                                        wrong == WRONG_COPY_TYPE ? WEFT_F32 : WEFT_BF16, 2, 3);
    weft_tensor *lr =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, wrong == WRONG_LR_SHAPE ? 2 : 1);
    weft_tensor *s = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, length);
    weft_tensor *norm = weft_global_norm(g, &d, wrong == WRONG_EMPTY_LIST ? 0 : 1);
    weft_tensor *control = weft_adam_control(g, norm, lr, s, &o);
    weft_adam_slot slot = {.param = p, .grad = d, .m = m, .copy = copy};
    if (wrong != WRONG_MOMENT_MISSING) slot.v = v;
    if (wrong == WRONG_PARAM_TEMP) slot.param = control;
    weft_adamw(g, control, &slot, 1);
    weft_status status = weft_graph_status(g);
    snprintf(message, sizeof message, "%s", status == WEFT_OK ? "" : weft_error_message());
    weft_graph_destroy(g);
    return message;
}

/* Adam's first step is lr · rate wherever there is a gradient; decay is by lr alone. */
TEST(test_a_tensor_may_have_a_rate_of_its_own) {
    skip_without_backend();
    static const double rates[] = {0.25, 0};
    static const char *const names[2][4] = {{"p0", "g0", "m0", "v0"}, {"p1", "g1", "m1", "v1"}};
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    weft_adam_slot slots[2];
    weft_tensor *grads[2];
    weft_adam_options o = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    float zeros[WEFT_ADAM_STATE] = {0}, lr = 0.01f;
    const float p[6] = {1, -2, 3, -4, 5, -6}, d[6] = {0.5f, -1, 2, 3, -0.1f, 0.7f};
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        slots[i] = (weft_adam_slot){
            .param = weft_new_tensor(g, WEFT_ROLE_PARAM, names[i][0], WEFT_F32, 2, 3),
            .grad = weft_new_tensor(g, WEFT_ROLE_INPUT, names[i][1], WEFT_F32, 2, 3),
            .m = weft_new_tensor(g, WEFT_ROLE_STATE, names[i][2], WEFT_F32, 2, 3),
            .v = weft_new_tensor(g, WEFT_ROLE_STATE, names[i][3], WEFT_F32, 2, 3),
            .rate = rates[i]};
        grads[i] = slots[i].grad;
    }
    weft_tensor *rate = weft_new_tensor(g, WEFT_ROLE_INPUT, "lr", WEFT_F32, 1);
    weft_tensor *s = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    weft_adamw(g, weft_adam_control(g, weft_global_norm(g, grads, 2), rate, s, &o), slots, 2);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, test_backend(), pool, NULL, &exec), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, rate, &lr), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, s, zeros), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_exec_write(exec, slots[i].param, p), WEFT_OK);
        assert_int_equal(weft_exec_write(exec, slots[i].grad, d), WEFT_OK);
        assert_int_equal(weft_exec_write(exec, slots[i].m, zeros), WEFT_OK);
        assert_int_equal(weft_exec_write(exec, slots[i].v, zeros), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        float now[6];
        double factor = i == 0 ? 0.25 : 1;
        assert_int_equal(weft_exec_read(exec, slots[i].param, now), WEFT_OK);
        for (int k = 0; k < 6; k++) {
            double want = p[k] - 0.01 * 0.1 * p[k] - factor * 0.01 * (d[k] > 0 ? 1 : -1);
            assert_true(fabs(now[k] - want) < 2e-6);
        }
    }
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_wrong_inputs_are_refused_with_a_line) {
    assert_string_equal(build_wrong(WRONG_NOTHING), "");
    for (int wrong = WRONG_NOTHING + 1; wrong < WRONG_KINDS; wrong++) {
        const char *message = build_wrong((wrong_kind)wrong);
        if (!message[0] || strchr(message, '\n'))
            fail_msg("wrong input %d gave `%s`", wrong, message);
        if (!strstr(message, "adam") && !strstr(message, "norm_parts"))
            fail_msg("the message names no operation: %s", message);
    }
    assert_non_null(strstr(build_wrong(WRONG_GRAD_SHAPE), "[3, 3]"));
    assert_non_null(strstr(build_wrong(WRONG_GRAD_SHAPE), "[2, 3]"));
}

/* Parameters of several chunks and of one, with and without a copy; one without a mask is not touched. */
TEST(test_what_is_masked_is_zero) {
    enum { SLOTS = 3 };
    static const int64_t counts[SLOTS] = {COUNT, 5, 700};
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    weft_adam_slot slots[SLOTS] = {{0}};
    skip_without_backend();
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    for (int k = 0; k < SLOTS; k++) {
        char name[3][16];
        for (int i = 0; i < 3; i++)
            snprintf(name[i], sizeof name[i], "%c%d", "pcm"[i], k);
        slots[k].param = weft_new_tensor(g, WEFT_ROLE_PARAM, name[0], WEFT_F32, counts[k]);
        if (k == 0)
            slots[k].copy = weft_new_tensor(g, WEFT_ROLE_STATE, name[1], WEFT_BF16, counts[k]);
        if (k < 2) slots[k].mask = weft_new_tensor(g, WEFT_ROLE_STATE, name[2], WEFT_I8, counts[k]);
    }
    weft_zero_masked(g, slots, SLOTS);
    /* A parameter that no operation reads is in the graph all the same. */
    assert_non_null(weft_keep(weft_scale(g, slots[2].param, 1)));
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(weft_pool_create(3, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, test_backend(), pool, NULL, &exec), WEFT_OK);
    float *values = malloc(COUNT * sizeof *values);
    int8_t *mask = malloc(COUNT);
    uint16_t *copy = malloc(COUNT * sizeof *copy);
    for (int k = 0; k < SLOTS; k++) {
        for (int64_t i = 0; i < counts[k]; i++) {
            values[i] = (float)(i + 1);
            copy[i] = weft_float_to_bf16(values[i]);
            mask[i] = i % 3 != 0;
        }
        assert_int_equal(weft_exec_write(exec, slots[k].param, values), WEFT_OK);
        if (slots[k].mask) assert_int_equal(weft_exec_write(exec, slots[k].mask, mask), WEFT_OK);
        if (slots[k].copy) assert_int_equal(weft_exec_write(exec, slots[k].copy, copy), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    for (int k = 0; k < SLOTS; k++) {
        assert_int_equal(weft_exec_read(exec, slots[k].param, values), WEFT_OK);
        if (slots[k].copy) assert_int_equal(weft_exec_read(exec, slots[k].copy, copy), WEFT_OK);
        for (int64_t i = 0; i < counts[k]; i++) {
            float wanted = slots[k].mask && i % 3 == 0 ? 0 : (float)(i + 1);
            assert_true(values[i] == wanted);
            if (slots[k].copy) assert_int_equal(copy[i], weft_float_to_bf16(wanted));
        }
    }
    free(values);
    free(mask);
    free(copy);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

RUN_TESTS(NULL, NULL)

/* The optimizer over a model: gradients from a session and from others' memory, and its state. */
#include "core/plan.h"
#include "cpu/backend.h"
#include "support/model_case.h"
#include "support/test.h"
#include "train/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    model_case c;
    model_run r;
    weft_optimizer *o;
    weft_gradient *own; /* [weights]; NULL: none */
} trainee;

static void open_trainee(trainee *t, int optimizer, weft_dtype dtype) {
    *t = (trainee){0};
    model_case_open(&t->c, "dot-learned");
    t->c.config.optimizer = optimizer;
    model_run_open(&t->r, &t->c,
                   &(model_run_options){.dtype = dtype, .train = true, .grads = true});
    expect_ok(weft_optimizer_create(t->r.model, weft_cpu_backend(), t->r.pool, NULL, &t->o));
}

static void close_trainee(trainee *t) {
    weft_optimizer_destroy(t->o);
    for (int64_t i = 0; t->own && i < t->r.model->n_weights; i++)
        free(t->own[i].data);
    free(t->own);
    model_run_close(&t->r);
    model_case_close(&t->c);
}

/* Memory for gradients beside the session's. */
static void bind_own(trainee *t) {
    const weft_model *m = t->r.model;
    weft_dtype dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    t->own = calloc((size_t)m->n_weights, sizeof *t->own);
    assert_non_null(t->own);
    for (int64_t i = 0; i < m->n_weights; i++) {
        int64_t bytes = weft_arena_bytes(m->weights[i].count * (int64_t)weft_dtype_size(dtype));
        t->own[i] = (weft_gradient){dtype, aligned_alloc(WEFT_ARENA_ALIGN, (size_t)bytes)};
        assert_non_null(t->own[i].data);
    }
    expect_ok(weft_optimizer_bind(t->o, t->own, NULL));
}

/* The session's gradients to there, as a loop that sums micro-batches would. */
static void copy_gradients(trainee *t) {
    const weft_model *m = t->r.model;
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_tensor *p = weft_graph_find(t->r.session.graph.graph, m->weights[i].name);
        double *g = model_run_values(&t->r, p->grad, m->weights[i].count);
        weft_weight to = {.dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32,
                          .count = m->weights[i].count,
                          .data = t->own[i].data};
        weft_weight_write(&to, g);
        free(g);
    }
}

static void same_state(const trainee *a, const trainee *b) {
    assert_memory_equal(a->r.model->memory, b->r.model->memory, (size_t)a->r.model->memory_bytes);
    int64_t n, m;
    const weft_weight *x, *y;
    expect_ok(weft_optimizer_state(a->o, &x, &n));
    expect_ok(weft_optimizer_state(b->o, &y, &m));
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++) {
        assert_string_equal(x[i].name, y[i].name);
        if (memcmp(x[i].data, y[i].data, (size_t)x[i].bytes) != 0)
            fail_msg("%s differs", x[i].name);
    }
}

static void compare_sources(int optimizer, weft_dtype dtype) {
    trainee a, b;
    open_trainee(&a, optimizer, dtype);
    open_trainee(&b, optimizer, dtype);
    expect_ok(weft_optimizer_bind_session(a.o, &a.r.session));
    bind_own(&b);
    for (int step = 0; step < 3; step++) {
        model_run_again(&a.r, a.c.tokens, a.c.targets);
        model_run_again(&b.r, b.c.tokens, b.c.targets);
        copy_gradients(&b);
        expect_ok(weft_optimizer_run(a.o, 1e-2));
        expect_ok(weft_optimizer_run(b.o, 1e-2));
    }
    same_state(&a, &b);
    weft_step_events e;
    expect_ok(weft_optimizer_events(b.o, &e));
    assert_int_equal(e.steps, 3);
    assert_true(e.norm > 0 && e.rate > 0 && e.warmup == 1 && !e.skipped);
    close_trainee(&a);
    close_trainee(&b);
}

TEST(test_own_gradients_step_as_a_sessions_do) {
    static const int optimizers[] = {WEFT_OPTIMIZER_ADAMWSPAM, WEFT_OPTIMIZER_MUON};
    for (int i = 0; i < 2; i++) {
        compare_sources(optimizers[i], WEFT_F32);
        compare_sources(optimizers[i], WEFT_F64);
        compare_sources(optimizers[i], WEFT_BF16);
    }
}

/* Copying the named state and the weights is all that a resume needs. */
static void copy_state(int optimizer) {
    trainee a, b;
    open_trainee(&a, optimizer, WEFT_BF16);
    open_trainee(&b, optimizer, WEFT_BF16);
    expect_ok(weft_optimizer_bind_session(a.o, &a.r.session));
    expect_ok(weft_optimizer_bind_session(b.o, &b.r.session));
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            int64_t n;
            const weft_weight *from, *to;
            expect_ok(weft_optimizer_state(a.o, &from, &n));
            expect_ok(weft_optimizer_state(b.o, &to, &n));
            for (int64_t i = 0; i < n; i++)
                memcpy(to[i].data, from[i].data, (size_t)from[i].bytes);
            memcpy(b.r.model->memory, a.r.model->memory, (size_t)a.r.model->memory_bytes);
        }
        model_run_again(&a.r, a.c.tokens, a.c.targets);
        expect_ok(weft_optimizer_run(a.o, 1e-2));
        if (step < 2) continue;
        model_run_again(&b.r, b.c.tokens, b.c.targets);
        expect_ok(weft_optimizer_run(b.o, 1e-2));
    }
    same_state(&a, &b);
    close_trainee(&a);
    close_trainee(&b);
}

TEST(test_copied_state_goes_on_with_equal_bits) {
    copy_state(WEFT_OPTIMIZER_ADAMWSPAM);
    copy_state(WEFT_OPTIMIZER_MUON);
}

/* Muon's matrices have one moment; vectors, embeddings and the head have AdamW's two. */
TEST(test_muon_is_for_the_matrices_of_layers) {
    trainee t;
    const weft_weight *list;
    int64_t n;
    open_trainee(&t, WEFT_OPTIMIZER_MUON, WEFT_F32);
    expect_ok(weft_optimizer_state(t.o, &list, &n));
    for (int64_t i = 0; i < t.r.model->n_weights; i++) {
        const weft_weight *w = &t.r.model->weights[i];
        char name[160];
        bool there = false;
        snprintf(name, sizeof name, "v.%s", w->name);
        for (int64_t k = 0; k < n; k++)
            there |= strcmp(list[k].name, name) == 0;
        bool matrix = strncmp(w->name, "h.", 2) == 0 && strstr(w->name, ".weight") &&
                      !strstr(w->name, ".ln_");
        if (there == matrix) fail_msg("%s has %s second moments", w->name, there ? "" : "no");
    }
    close_trainee(&t);
}

TEST(test_a_step_without_gradients_is_an_error) {
    trainee t;
    open_trainee(&t, WEFT_OPTIMIZER_ADAMWSPAM, WEFT_F32);
    assert_int_equal(weft_optimizer_run(t.o, 1e-2), WEFT_EBUG);
    close_trainee(&t);
}

RUN_TESTS(NULL, NULL)

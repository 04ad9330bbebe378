/* Residual sums inside products, and what arrives at them inside the norms' gradients: the same
 * values as the graph as it was built, and no pass over memory for a sum. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/fuse.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "ops/norm.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 5, WIDTH = 4, WIDER = 6, PARAMS = 10, MOST = 256 };

typedef struct {
    weft_graph *g;
    weft_tensor *param[PARAMS], *loss;
    int n;
} stack;

static weft_tensor *new_param(stack *s, int ndim, int64_t rows, int64_t columns) {
    char name[16];
    snprintf(name, sizeof name, "p%d", s->n);
    weft_tensor *t = ndim == 2
                         ? weft_new_tensor(s->g, WEFT_ROLE_PARAM, name, WEFT_F64, rows, columns)
                         : weft_new_tensor(s->g, WEFT_ROLE_PARAM, name, WEFT_F64, columns);
    return s->param[s->n++] = t;
}

/* A stream of two branches, each behind a norm, as a layer has it. The first branch may have another
 * reader, which keeps it out of the sum. */
static stack build_stack(bool read_twice, bool segments) {
    stack s = {0};
    assert_int_equal(weft_graph_create(&s.g), WEFT_OK);
    weft_tensor *x = new_param(&s, 2, ROWS, WIDTH);
    if (segments) weft_graph_recompute_begin(s.g);
    weft_normed one = weft_norm(s.g, x, NULL, new_param(&s, 1, 0, WIDTH), NULL, WEFT_RMSNORM, 0);
    weft_tensor *branch =
        weft_linear(s.g, one.y, new_param(&s, 2, WIDTH, WIDTH), NULL, WEFT_ACT_NONE);
    weft_tensor *gain = new_param(&s, 1, 0, WIDTH), *shift = new_param(&s, 1, 0, WIDTH);
    weft_normed two = weft_norm(s.g, one.s, branch, gain, shift, WEFT_LAYERNORM, 0);
    weft_tensor *h = weft_linear(s.g, two.y, new_param(&s, 2, WIDER, WIDTH), NULL, WEFT_ACT_GELU);
    weft_tensor *w = new_param(&s, 2, WIDTH, WIDER), *b = new_param(&s, 1, 0, WIDTH);
    weft_tensor *out = weft_linear(s.g, h, w, b, WEFT_ACT_NONE);
    if (segments) weft_graph_recompute_end(s.g);
    gain = new_param(&s, 1, 0, WIDTH);
    weft_normed three = weft_norm(s.g, two.s, out, gain, NULL, WEFT_LAYERNORM, 0);
    s.loss = weft_add(s.g, weft_sum_squares(s.g, three.y, 0.5), weft_sum_squares(s.g, three.s, 2));
    if (read_twice) s.loss = weft_add(s.g, s.loss, weft_sum_squares(s.g, branch, 1));
    assert_int_equal(weft_graph_status(s.g), WEFT_OK);
    return s;
}

/* The loss and every gradient, one after the other; their number. */
static int64_t run_stack(stack *s, double *out) {
    weft_pool *pool;
    weft_exec *x;
    double values[64];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(s->g, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    for (int i = 0; i < s->n; i++) {
        weft_random_uniform(3, 1, (uint32_t)i, 0, weft_tensor_count(s->param[i]), values);
        assert_int_equal(weft_exec_write(x, s->param[i], values), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(x, &(weft_run){0}), WEFT_OK);
    int64_t n = 0;
    assert_int_equal(weft_exec_read(x, s->loss, out + n++), WEFT_OK);
    for (int i = 0; i < s->n; i++) {
        assert_int_equal(weft_exec_read(x, s->param[i]->grad, out + n), WEFT_OK);
        n += weft_tensor_count(s->param[i]);
    }
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return n;
}

typedef struct {
    int sums;  /* norms that make their own */
    int adds;  /* of more than one number */
    int given; /* gradients of norms that are given what arrives at the sum */
} tally;

static tally count_nodes(const weft_graph *g) {
    tally t = {0};
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        t.sums += n->op == &weft_op_norm && n->in[WEFT_NORM_R] != NULL;
        t.adds += n->op == &weft_op_add && weft_tensor_count(n->out[0]) > 1;
        t.given += n->op == &weft_op_norm_back && n->in[WEFT_NORM_BACK_DS] != NULL;
    }
    return t;
}

static int64_t run_fused(bool fuse, bool read_twice, bool segments, double *out, tally *t) {
    stack s = build_stack(read_twice, segments);
    if (fuse) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    assert_int_equal(weft_graph_backward(s.g, s.loss, NULL), WEFT_OK);
    if (fuse) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    *t = count_nodes(s.g);
    int64_t n = run_stack(&s, out);
    weft_graph_destroy(s.g);
    return n;
}

static void check_same(bool read_twice, bool segments, tally *fused) {
    double want[MOST], got[MOST];
    tally plain;
    int64_t n = run_fused(false, read_twice, segments, want, &plain);
    assert_int_equal(run_fused(true, read_twice, segments, got, fused), n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12 * (1 + fabs(want[i]))))
            fail_msg("value %lld is %.17g, unfused %.17g", (long long)i, got[i], want[i]);
}

TEST(test_residual_sums_go_into_products) {
    for (int segments = 0; segments < 2; segments++) {
        tally t;
        check_same(false, segments, &t);
        assert_int_equal(t.sums, 0);
        assert_int_equal(t.adds, 0);
        assert_int_equal(t.given, 3);
    }
}

TEST(test_a_branch_that_others_read_stays_out) {
    for (int segments = 0; segments < 2; segments++) {
        tally t;
        check_same(true, segments, &t);
        assert_int_equal(t.sums, 1 + segments); /* made again once */
    }
}

RUN_TESTS(NULL, NULL)

/* The graph and its gradient: what building refuses, and what backward appends. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/linear.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_graph *new_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

static weft_tensor *param(weft_graph *g, const char *name, int64_t rows, int64_t columns) {
    return weft_new_tensor(g, WEFT_ROLE_PARAM, name, WEFT_F64, rows, columns);
}

static void expect_error(weft_graph *g, const char *first, const char *second) {
    assert_int_equal(weft_graph_status(g), WEFT_EINPUT);
    if (!strstr(weft_error_message(), first) || !strstr(weft_error_message(), second))
        fail_msg("'%s' names not both '%s' and '%s'", weft_error_message(), first, second);
    assert_null(strchr(weft_error_message(), '\n'));
    weft_graph_destroy(g);
}

TEST(test_a_zero_size_is_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, 3, 0));
    expect_error(g, "x", "dimension 1 is 0");
}

TEST(test_a_negative_size_is_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, -3));
    expect_error(g, "x", "-3");
}

TEST(test_a_shape_beyond_any_memory_is_refused) {
    weft_graph *g = new_graph();
    int64_t huge = (int64_t)1 << 40;
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, huge, huge));
    expect_error(g, "x", "more bytes than any memory");
}

TEST(test_too_many_dimensions_are_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, 1, 1, 1, 1, 1));
    expect_error(g, "x", "5 dimensions");
}

TEST(test_a_name_is_taken_once) {
    weft_graph *g = new_graph();
    assert_non_null(param(g, "w", 2, 2));
    assert_null(param(g, "w", 2, 2));
    expect_error(g, "'w'", "already");
}

TEST(test_an_error_names_the_operation_and_both_shapes) {
    weft_graph *g = new_graph();
    assert_null(weft_silu_mul(g, param(g, "a", 2, 3), param(g, "b", 3, 2)));
    assert_int_equal(weft_graph_status(g), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "silu_mul"));
    expect_error(g, "[2, 3]", "[3, 2]");
}

TEST(test_the_scope_is_in_the_error) {
    weft_graph *g = new_graph();
    weft_graph_scope(g, "h.3.ffn");
    weft_silu_mul(g, param(g, "a", 2, 3), param(g, "b", 3, 2));
    expect_error(g, "h.3.ffn", "silu_mul");
}

TEST(test_the_first_error_stays) {
    weft_graph *g = new_graph();
    weft_tensor *bad = weft_silu_mul(g, param(g, "a", 2, 3), param(g, "b", 3, 2));
    assert_null(weft_add(g, bad, bad));
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, 0));
    expect_error(g, "silu_mul", "[2, 3]");
}

TEST(test_a_missing_input_is_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_add(g, param(g, "a", 2, 3), NULL));
    expect_error(g, "add", "missing");
}

TEST(test_a_view_of_nothing_is_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_reshape(g, NULL, 1, (const int64_t[]){4}));
    expect_error(g, "reshape", "input is missing");
}

TEST(test_an_unknown_type_is_refused) {
    weft_graph *g = new_graph();
    assert_null(weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_DTYPE_COUNT, 2));
    expect_error(g, "type number", "f32");
}

TEST(test_double_and_float_do_not_mix) {
    weft_graph *g = new_graph();
    weft_tensor *narrow = weft_new_tensor(g, WEFT_ROLE_INPUT, "n", WEFT_F32, 2, 3);
    assert_null(weft_add(g, param(g, "a", 2, 3), narrow));
    expect_error(g, "f64", "f32");
}

TEST(test_integers_are_refused_where_reals_belong) {
    weft_graph *g = new_graph();
    weft_tensor *i = weft_new_tensor(g, WEFT_ROLE_INPUT, "i", WEFT_I32, 2, 3);
    assert_null(weft_silu_mul(g, i, i));
    expect_error(g, "silu_mul", "i32");
}

TEST(test_a_view_keeps_the_number_of_elements) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 6);
    assert_ptr_equal(weft_view(g, a, 2, 6), a);
    assert_non_null(weft_view(g, a, 3, 4));
    assert_null(weft_view(g, a, 5, 2));
    expect_error(g, "[2, 6]", "[5, 2]");
}

TEST(test_the_loss_is_one_number) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 3);
    assert_int_equal(weft_graph_backward(g, weft_add(g, a, a), NULL), WEFT_EINPUT);
    expect_error(g, "backward", "[2, 3]");
}

TEST(test_backward_runs_once) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 3);
    weft_tensor *loss = weft_sum_squares(g, a, 1);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_EINPUT);
    expect_error(g, "backward", "has its gradient");
}

TEST(test_segments_do_not_nest) {
    weft_graph *g = new_graph();
    weft_graph_recompute_begin(g);
    weft_graph_recompute_begin(g);
    expect_error(g, "recompute", "nest");
}

/* Runs a graph on one thread with params filled from `values`, and reads `t` into out. */
static void run_and_read(weft_graph *g, weft_tensor *const *inputs, const double *const *values,
                         int n, weft_tensor *t, double *out) {
    weft_pool *pool;
    weft_exec *x;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(weft_exec_write(x, inputs[i], values[i]), WEFT_OK);
    assert_int_equal(weft_exec_run(x, NULL), WEFT_OK);
    assert_int_equal(weft_exec_read(x, t, out), WEFT_OK);
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
}

/* loss = Σ (a + a)·(a + 2b), so da = 4a + 4b: three paths into a, one through a view. */
TEST(test_gradients_of_several_uses_add_up) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 2), *b = param(g, "b", 2, 2);
    weft_tensor *twice = weft_add(g, a, a);
    weft_tensor *flat = weft_view(g, weft_add_scaled(g, a, b, 2), 4);
    weft_tensor *loss = weft_dot(g, weft_view(g, twice, 4), flat);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    assert_non_null(a->grad);
    const double va[] = {1, -2, 3, 0.5}, vb[] = {0.25, 4, -1, 2};
    double da[4];
    run_and_read(g, (weft_tensor *[]){a, b}, (const double *[]){va, vb}, 2, a->grad, da);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(da[i] - (4 * va[i] + 4 * vb[i])) < 1e-12);
    weft_graph_destroy(g);
}

TEST(test_what_the_loss_does_not_see_has_no_gradient) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 2), *b = param(g, "b", 2, 2);
    weft_add(g, a, b);
    assert_int_equal(weft_graph_backward(g, weft_sum_squares(g, a, 1), NULL), WEFT_OK);
    assert_non_null(a->grad);
    assert_null(b->grad);
    weft_graph_destroy(g);
}

TEST(test_nodes_that_nobody_reads_are_dropped) {
    weft_graph *g = new_graph();
    weft_tensor *a = param(g, "a", 2, 2);
    weft_scale(g, a, 3);
    weft_tensor *kept = weft_keep(weft_scale(g, a, 5));
    assert_int_equal(weft_graph_backward(g, weft_sum_squares(g, a, 1), NULL), WEFT_OK);
    bool kept_is_there = false;
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        assert_int_equal(n->index, i);
        kept_is_there |= n->out[0] == kept;
    }
    assert_true(kept_is_there);
    assert_int_equal(weft_graph_forward_count(g), 2);
    weft_graph_destroy(g);
}

/* A stack of gated linear layers, each a segment to recompute or not. */
static void build_stack(weft_graph *g, bool recompute, weft_tensor **x, weft_tensor **w) {
    *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F64, 16, 8);
    *w = param(g, "w", 8, 8);
    weft_tensor *h = *x;
    for (int layer = 0; layer < 6; layer++) {
        if (recompute) weft_graph_recompute_begin(g);
        weft_tensor *a = weft_linear(g, h, *w, NULL, WEFT_ACT_NONE);
        weft_tensor *inner = weft_silu_mul(g, a, weft_gelu(g, a));
        h = weft_add(g, h, weft_linear(g, inner, *w, NULL, WEFT_ACT_NONE));
        if (recompute) weft_graph_recompute_end(g);
    }
    assert_int_equal(weft_graph_backward(g, weft_sum_squares(g, h, 1), NULL), WEFT_OK);
}

TEST(test_recomputed_segments_give_the_same_bits_in_less_memory) {
    double grads[2][64], vx[128], vw[64];
    int64_t saved[2];
    for (int i = 0; i < 128; i++)
        vx[i] = 0.01 * (i % 17) - 0.07;
    for (int i = 0; i < 64; i++)
        vw[i] = 0.05 * (i % 11) - 0.2;
    for (int recompute = 0; recompute < 2; recompute++) {
        weft_graph *g = new_graph();
        weft_tensor *x, *w;
        build_stack(g, recompute, &x, &w);
        weft_plan *plan;
        assert_int_equal(weft_plan_create(g, weft_cpu_backend(), 1, NULL, NULL, &plan), WEFT_OK);
        saved[recompute] = plan->saved_bytes;
        weft_plan_destroy(plan);
        run_and_read(g, (weft_tensor *[]){x, w}, (const double *[]){vx, vw}, 2, w->grad,
                     grads[recompute]);
        weft_graph_destroy(g);
    }
    assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
    assert_true(saved[1] * 2 < saved[0]);
}

RUN_TESTS(NULL, NULL)

/* What fusing does to SwiGLU: two linear layers and the gate between them become one node, and the
 * gate's gradient comes right behind its product; the values keep their bits, also where layers are
 * recomputed. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/fuse.h"
#include "ops/gated.h"
#include "ops/list.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 37, WIDTH = 6, HIDDEN = 10, LAYERS = 3, MOST = 4096 };

static int count_op(const weft_graph *g, const weft_op *op) {
    int count = 0;
    for (int64_t i = 0; i < weft_graph_node_count(g); i++)
        count += weft_graph_node(g, i)->op == op;
    return count;
}

typedef struct {
    weft_graph *g;
    weft_tensor *x, *gate, *up;
} layer;

/* x [37, 6] and the products of a layer, with what may be different about it. */
static layer make_layer(bool other_x, weft_act act) {
    layer l = {0};
    assert_int_equal(weft_graph_create(&l.g), WEFT_OK);
    l.x = weft_new_tensor(l.g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, WIDTH);
    weft_tensor *z = weft_new_tensor(l.g, WEFT_ROLE_PARAM, "z", WEFT_F64, ROWS, WIDTH);
    weft_tensor *v = weft_new_tensor(l.g, WEFT_ROLE_PARAM, "v", WEFT_F64, HIDDEN, WIDTH);
    weft_tensor *w = weft_new_tensor(l.g, WEFT_ROLE_PARAM, "w", WEFT_F64, HIDDEN, WIDTH);
    l.up = weft_linear(l.g, l.x, w, NULL, WEFT_ACT_NONE);
    l.gate = weft_linear(l.g, other_x ? z : l.x, v, NULL, act);
    return l;
}

/* Fuses, and destroys it; the number of gated layers found. */
static int fuse_layer(layer *l, weft_tensor *end) {
    weft_keep(end);
    assert_int_equal(weft_fuse(l->g), WEFT_OK);
    int count = count_op(l->g, &weft_op_gated_linear);
    assert_int_equal(count_op(l->g, &weft_op_silu_mul), 1 - count);
    weft_graph_destroy(l->g);
    return count;
}

TEST(test_two_layers_and_their_gate_are_one_node) {
    layer l = make_layer(false, WEFT_ACT_NONE);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.gate)), 1);
    l = make_layer(false, WEFT_ACT_NONE);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.gate, l.up)), 1);
}

TEST(test_other_gates_stay) {
    layer l = make_layer(true, WEFT_ACT_NONE);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.gate)), 0);
    l = make_layer(false, WEFT_ACT_GELU);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.gate)), 0);
    l = make_layer(false, WEFT_ACT_NONE);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.up)), 0);
}

/* What others read, or the caller, is no inner value. */
TEST(test_what_others_read_stays) {
    layer l = make_layer(false, WEFT_ACT_NONE);
    weft_keep(l.gate);
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.gate)), 0);
    l = make_layer(false, WEFT_ACT_NONE);
    weft_keep(weft_gelu(l.g, l.up));
    assert_int_equal(fuse_layer(&l, weft_silu_mul(l.g, l.up, l.gate)), 0);
}

/* A gate that is made again from stored products stays: else it would be stored. */
TEST(test_a_gate_of_its_own_segment_stays) {
    layer l = make_layer(false, WEFT_ACT_NONE);
    weft_graph_recompute_begin(l.g);
    weft_tensor *y = weft_silu_mul(l.g, l.up, l.gate);
    weft_graph_recompute_end(l.g);
    assert_int_equal(fuse_layer(&l, y), 0);
}

/* Without a gradient the second product lies where the result will be. */
TEST(test_only_a_gradient_keeps_both_products) {
    for (int with = 0; with < 2; with++) {
        layer l = make_layer(false, WEFT_ACT_NONE);
        weft_tensor *y = weft_silu_mul(l.g, l.up, l.gate), *loss = weft_sum_squares(l.g, y, 1);
        assert_int_equal(weft_fuse(l.g), WEFT_OK);
        assert_null(y->producer->out[WEFT_GATED_UP]);
        if (with) assert_int_equal(weft_graph_backward(l.g, loss, NULL), WEFT_OK);
        assert_int_equal(y->producer->out[WEFT_GATED_UP] != NULL, with);
        weft_graph_destroy(l.g);
    }
}

/* A stack of SwiGLU layers with residuals, and beside each a reader of its input in between. */
typedef struct {
    weft_graph *g;
    weft_tensor *param[4 * LAYERS + 1], *loss;
    int n_params;
} stack;

static weft_tensor *new_param(stack *s, int64_t rows, int64_t columns) {
    char name[16];
    snprintf(name, sizeof name, "p%d", s->n_params);
    weft_tensor *t = weft_new_tensor(s->g, WEFT_ROLE_PARAM, name, WEFT_F32, rows, columns);
    return s->param[s->n_params++] = t;
}

static void build_stack(stack *s, bool segments) {
    *s = (stack){0};
    assert_int_equal(weft_graph_create(&s->g), WEFT_OK);
    weft_tensor *x = new_param(s, ROWS, WIDTH);
    for (int i = 0; i < LAYERS; i++) {
        if (segments) weft_graph_recompute_begin(s->g);
        weft_tensor *n = weft_gelu(s->g, x);
        weft_tensor *up = weft_linear(s->g, n, new_param(s, HIDDEN, WIDTH), NULL, WEFT_ACT_NONE);
        weft_tensor *gate = weft_linear(s->g, n, new_param(s, HIDDEN, WIDTH), NULL, WEFT_ACT_NONE);
        weft_tensor *beside = weft_sum_squares(s->g, n, 0.25);
        weft_tensor *h = weft_silu_mul(s->g, up, gate);
        weft_tensor *down = weft_linear(s->g, h, new_param(s, WIDTH, HIDDEN), NULL, WEFT_ACT_NONE);
        x = weft_add(s->g, x, down);
        if (segments) weft_graph_recompute_end(s->g);
        s->loss = s->loss ? weft_add(s->g, s->loss, beside) : beside;
    }
    s->loss = weft_add(s->g, s->loss, weft_sum_squares(s->g, x, 0.5));
    assert_int_equal(weft_graph_status(s->g), WEFT_OK);
}

/* Loss and gradients; how many there are. */
static int64_t run_stack(stack *s, float *out) {
    weft_pool *pool;
    weft_exec *x;
    double drawn[ROWS * HIDDEN];
    float values[ROWS * HIDDEN];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(
        weft_exec_create(s->g, weft_cpu_backend(), pool, &(weft_exec_options){.poison = true}, &x),
        WEFT_OK);
    for (int i = 0; i < s->n_params; i++) {
        int64_t count = weft_tensor_count(s->param[i]);
        weft_random_uniform(1, 1, (uint32_t)i, 0, count, drawn);
        for (int64_t k = 0; k < count; k++)
            values[k] = (float)drawn[k] - 0.5f;
        assert_int_equal(weft_exec_write(x, s->param[i], values), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(x, &(weft_run){0}), WEFT_OK);
    int64_t n = 0;
    assert_int_equal(weft_exec_read(x, s->loss, out + n++), WEFT_OK);
    for (int i = 0; i < s->n_params; i++) {
        assert_non_null(s->param[i]->grad);
        assert_int_equal(weft_exec_read(x, s->param[i]->grad, out + n), WEFT_OK);
        n += weft_tensor_count(s->param[i]);
    }
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return n;
}

/* `forward`, `backward`: which of the two passes are fused. */
static int64_t run_fused(bool forward, bool backward, bool segments, float *out) {
    stack s;
    build_stack(&s, segments);
    if (forward) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    assert_int_equal(weft_graph_backward(s.g, s.loss, NULL), WEFT_OK);
    if (backward) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    int made = (segments ? 2 : 1) * LAYERS;
    assert_int_equal(count_op(s.g, &weft_op_gated_linear), forward ? made : 0);
    int64_t n = run_stack(&s, out);
    weft_graph_destroy(s.g);
    return n;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void compare_runs(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i]))
            fail_msg("%s: value %lld of %lld is %.9g and not %.9g", what, (long long)i,
                     (long long)n, (double)b[i], (double)a[i]);
}

/* The forward pass alone against none, the backward pass beside it, and all of it recomputed: the
 * same operations in the same order, so the same bits. */
TEST(test_fused_layers_keep_their_bits) {
    static float plain[MOST], fused[MOST];
    int64_t n = run_fused(false, false, false, plain);
    assert_int_equal(run_fused(true, false, false, fused), n);
    compare_runs(plain, fused, n, "the forward pass fused");
    n = run_fused(false, true, false, plain);
    assert_int_equal(run_fused(true, true, false, fused), n);
    compare_runs(plain, fused, n, "both passes fused");
    assert_int_equal(run_fused(true, true, true, fused), n);
    compare_runs(plain, fused, n, "recomputed layers");
}

/* gelu(x wᵀ + silu_mul(a, b)), a and b the same for all rows: the product that makes the sum's gradient also adds
 * up its rows for them, and others read it before the gate's gradient is made. */
TEST(test_a_product_that_makes_sums_stays) {
    static float values[2][MOST];
    int64_t n = 0;
    for (int fused = 0; fused < 2; fused++) {
        stack s = {0};
        assert_int_equal(weft_graph_create(&s.g), WEFT_OK);
        weft_tensor *a = weft_view(s.g, new_param(&s, 1, HIDDEN), HIDDEN);
        weft_tensor *h = weft_silu_mul(s.g, a, weft_view(s.g, new_param(&s, 1, HIDDEN), HIDDEN));
        weft_tensor *x = new_param(&s, ROWS, WIDTH), *w = new_param(&s, HIDDEN, WIDTH);
        h = weft_gelu(s.g, weft_add(s.g, weft_linear(s.g, x, w, NULL, WEFT_ACT_NONE), h));
        h = weft_linear(s.g, h, new_param(&s, WIDTH, HIDDEN), NULL, WEFT_ACT_NONE);
        s.loss = weft_sum_squares(s.g, h, 0.5);
        assert_int_equal(weft_graph_backward(s.g, s.loss, NULL), WEFT_OK);
        if (fused) assert_int_equal(weft_fuse(s.g), WEFT_OK);
        n = run_stack(&s, values[fused]);
        weft_graph_destroy(s.g);
    }
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(values[1][i] - values[0][i]) <= 1e-4f))
            fail_msg("value %lld is %g and not %g", (long long)i, (double)values[1][i],
                     (double)values[0][i]);
}

RUN_TESTS(NULL, NULL)

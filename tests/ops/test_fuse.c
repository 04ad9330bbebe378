/* What fusing may do to a graph: the values stay, kept tensors stay, and only what one node alone
 * reads goes into a product. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/embedding.h"
#include "ops/fuse.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "ops/norm.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, MOST = 40, GRAPHS = 60, STEPS = 24 };

/* Nodes of a graph that fusing is about. */
typedef struct {
    int products; /* pairs of factors; those of one node's are `summed` together */
    int summed, with_addend, with_slope, with_sums, with_alpha;
    int adds, scales, gelu_backs, bias_backs, joined, norm_sums;
} tally;

static tally count_nodes(const weft_graph *g) {
    tally t = {0};
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        assert_int_equal(n->index, i);
        t.adds += n->op == &weft_op_add;
        t.scales += n->op == &weft_op_scale;
        t.gelu_backs += n->op == &weft_op_gelu_back;
        t.bias_backs += n->op == &weft_op_bias_back;
        t.joined += n->op == &weft_op_gelu_bias_back;
        t.norm_sums += n->op == &weft_op_norm_back && n->out[WEFT_NORM_BACK_SUMS];
        if (n->op != &weft_op_matmul) continue;
        const weft_matmul_attr *attr = n->attr;
        t.products += 1 + attr->more;
        t.summed += attr->more > 0;
        t.with_sums += attr->sums;
        t.with_addend += n->in[WEFT_MATMUL_ADDEND] != NULL;
        t.with_slope += attr->act == WEFT_ACT_GELU_BACK;
        t.with_alpha += attr->alpha != 1;
    }
    return t;
}

/* Every input is made before it is read. */
static void check_order(const weft_graph *g) {
    bool *made = calloc((size_t)weft_graph_tensor_count(g), sizeof *made);
    assert_non_null(made);
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        for (int k = 0; k < n->n_in; k++) {
            const weft_tensor *t = n->in[k];
            if (t && t->view_of) t = t->view_of;
            if (t && t->role == WEFT_ROLE_TEMP) assert_true(made[t->id]);
        }
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k]) made[n->out[k]->id] = true;
    }
    free(made);
}

typedef struct {
    weft_graph *g;
    weft_tensor *x, *w, *u, *y;
} small;

/* x [5, 4] · wᵀ, w [6, 4]; u like the product. */
static small make_small(void) {
    small s = {0};
    assert_int_equal(weft_graph_create(&s.g), WEFT_OK);
    s.x = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "x", WEFT_F64, ROWS, 4);
    s.w = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "w", WEFT_F64, 6, 4);
    s.u = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "u", WEFT_F64, ROWS, 6);
    s.y = weft_linear(s.g, s.x, s.w, NULL, WEFT_ACT_NONE);
    return s;
}

static tally fuse_small(small *s, weft_tensor *end) {
    weft_keep(end);
    assert_int_equal(weft_fuse(s->g), WEFT_OK);
    check_order(s->g);
    tally t = count_nodes(s->g);
    weft_graph_destroy(s->g);
    return t;
}

TEST(test_an_add_goes_into_its_product) {
    small s = make_small();
    tally t = fuse_small(&s, weft_add(s.g, s.u, s.y));
    assert_true(t.adds == 0 && t.with_addend == 1 && t.with_alpha == 0);
    s = make_small();
    t = fuse_small(&s, weft_add_scaled(s.g, s.u, s.y, 0.5));
    assert_true(t.adds == 0 && t.with_addend == 1 && t.with_alpha == 1);
    s = make_small();
    t = fuse_small(&s, weft_scale(s.g, s.y, 0.5));
    assert_true(t.scales == 0 && t.with_alpha == 1);
    s = make_small();
    t = fuse_small(&s, weft_gelu_back(s.g, s.y, s.u));
    assert_true(t.gelu_backs == 0 && t.with_slope == 1);
}

/* The addend's own factor has no place in a product. */
TEST(test_a_scaled_addend_stays_out) {
    small s = make_small();
    tally t = fuse_small(&s, weft_add_scaled(s.g, s.y, s.u, 0.5));
    assert_true(t.adds == 1 && t.with_addend == 0);
}

TEST(test_what_others_read_stays) {
    small s = make_small();
    weft_keep(weft_gelu(s.g, s.y));
    tally t = fuse_small(&s, weft_add(s.g, s.u, s.y));
    assert_true(t.adds == 1 && t.with_addend == 0);
    s = make_small();
    weft_keep(s.y);
    t = fuse_small(&s, weft_add(s.g, s.u, s.y));
    assert_true(t.adds == 1 && t.with_addend == 0);
    s = make_small();
    t = fuse_small(&s, weft_add(s.g, s.y, s.y));
    assert_true(t.adds == 1 && t.with_addend == 0);
}

/* u is made after the product: it waits, as its 4 columns are fewer than the 6 it makes; a product
 * of 8 columns that makes 6 does not. */
TEST(test_a_product_waits_if_memory_does_not_grow) {
    for (int64_t width = 4; width <= 8; width += 4) {
        weft_graph *g;
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F64, ROWS, width);
        weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_INPUT, "w", WEFT_F64, 6, width);
        weft_tensor *u = weft_new_tensor(g, WEFT_ROLE_INPUT, "u", WEFT_F64, ROWS, 6);
        weft_tensor *y = weft_linear(g, weft_gelu(g, x), w, NULL, WEFT_ACT_NONE);
        small s = {.g = g};
        tally t = fuse_small(&s, weft_add(g, y, weft_gelu(g, u)));
        assert_int_equal(t.adds, width == 8);
    }
}

/* ((p + q) + z), z made last: both products wait, and nothing is left to add. Together, or, where one
 * lies otherwise, one after the other. */
TEST(test_two_products_wait_for_a_third_term) {
    small s = make_small();
    weft_tensor *v = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "v", WEFT_F64, 6, 4);
    weft_tensor *sum = weft_add(s.g, s.y, weft_linear(s.g, s.x, v, NULL, WEFT_ACT_NONE));
    tally t = fuse_small(&s, weft_add(s.g, sum, weft_gelu(s.g, s.u)));
    assert_true(t.adds == 0 && t.products == 2 && t.summed == 1 && t.with_addend == 1);
    s = make_small();
    v = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "v", WEFT_F64, 4, ROWS);
    weft_tensor *w = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "w'", WEFT_F64, 4, 6);
    sum = weft_add(s.g, s.y, weft_matmul(s.g, v, w, true, false));
    t = fuse_small(&s, weft_add(s.g, sum, weft_gelu(s.g, s.u)));
    assert_true(t.adds == 0 && t.products == 2 && t.summed == 0 && t.with_addend == 2);
}

/* p + q, q of what is made after p: one node where p reads no more than it makes, 6 columns. Where q
 * reads what was there before, any. */
TEST(test_products_are_summed_if_memory_does_not_grow) {
    for (int i = 0; i < 4; i++) {
        weft_graph *g;
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        int64_t width = i % 2 ? 8 : 6;
        weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F64, ROWS, width);
        weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_INPUT, "w", WEFT_F64, 6, width);
        weft_tensor *u = weft_new_tensor(g, WEFT_ROLE_INPUT, "u", WEFT_F64, ROWS, 9);
        weft_tensor *v = weft_new_tensor(g, WEFT_ROLE_INPUT, "v", WEFT_F64, 6, 9);
        weft_tensor *before = weft_gelu(g, u);
        weft_tensor *y = weft_linear(g, weft_gelu(g, x), w, NULL, WEFT_ACT_NONE);
        weft_tensor *z = i < 2 ? weft_gelu(g, u) : before;
        small s = {.g = g};
        tally t = fuse_small(&s, weft_add(g, y, weft_linear(g, z, v, NULL, WEFT_ACT_NONE)));
        assert_true(t.adds == 0 && t.products == 2);
        assert_int_equal(t.summed, i != 1);
        assert_int_equal(t.with_addend, i == 1);
    }
}

/* A bias each is one too many; p read twice stays. */
TEST(test_what_is_not_summed) {
    small s = make_small();
    weft_tensor *b = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "b", WEFT_F64, 6);
    weft_tensor *p = weft_linear(s.g, s.x, s.w, b, WEFT_ACT_NONE);
    tally t = fuse_small(&s, weft_add(s.g, p, s.y));
    assert_true(t.adds == 0 && t.summed == 1);
    s = make_small();
    b = weft_new_tensor(s.g, WEFT_ROLE_INPUT, "b", WEFT_F64, 6);
    p = weft_linear(s.g, s.x, s.w, b, WEFT_ACT_NONE);
    weft_tensor *q = weft_linear(s.g, s.x, s.w, b, WEFT_ACT_NONE);
    t = fuse_small(&s, weft_add(s.g, p, q));
    assert_true(t.adds == 0 && t.summed == 0 && t.with_addend == 1);
    s = make_small();
    weft_keep(weft_gelu(s.g, s.y));
    q = weft_linear(s.g, s.x, s.w, NULL, WEFT_ACT_NONE);
    t = fuse_small(&s, weft_add(s.g, s.y, q));
    assert_true(t.adds == 0 && t.summed == 0 && t.with_addend == 1);
}

/* A hidden layer that some products read; before and after fusing its gradient. */
static void fuse_hidden(int terms, bool bias, tally *before, tally *after) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, 4);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F64, 6, 4), *b = NULL;
    if (bias) b = weft_new_tensor(g, WEFT_ROLE_PARAM, "b", WEFT_F64, 6);
    weft_tensor *h = weft_linear(g, x, w, b, WEFT_ACT_GELU), *loss = NULL;
    for (int i = 0; i < terms; i++) {
        char name[8];
        snprintf(name, sizeof name, "u%d", i);
        weft_tensor *u = weft_new_tensor(g, WEFT_ROLE_PARAM, name, WEFT_F64, 3, 6);
        weft_tensor *part = weft_sum_squares(g, weft_linear(g, h, u, NULL, WEFT_ACT_NONE), i + 1.0);
        loss = loss ? weft_add(g, loss, part) : part;
    }
    if (!loss) loss = weft_sum_squares(g, h, 1);
    assert_int_equal(weft_fuse(g), WEFT_OK);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    *before = count_nodes(g);
    small s = {.g = g};
    *after = fuse_small(&s, loss);
    assert_int_equal(after->products, before->products);
}

TEST(test_gradients_are_summed_by_products) {
    tally before, after;
    fuse_hidden(3, false, &before, &after);
    assert_int_equal(before.adds - after.adds, 2);
    assert_true(after.summed == 1 && after.with_addend == 0);
    assert_true(after.gelu_backs == 0 && after.with_slope == 1 && after.with_sums == 0);
    /* The first three read 9 columns and make 6: the fourth and fifth add to their sum. */
    fuse_hidden(5, false, &before, &after);
    assert_int_equal(before.adds - after.adds, 4);
    assert_true(after.summed == 2 && after.with_addend == 1 && after.with_slope == 1);
}

/* gelu's gradient: into its product, with the bias's where there is one; without a product those two
 * together. */
TEST(test_gelus_gradient_is_no_pass_alone) {
    tally before, after;
    fuse_hidden(1, false, &before, &after);
    assert_true(before.gelu_backs == 1 && after.gelu_backs == 0 && after.with_slope == 1);
    fuse_hidden(1, true, &before, &after);
    assert_true(after.gelu_backs == 0 && after.with_slope == 1 && after.with_sums == 1);
    assert_true(before.bias_backs == 1 && after.bias_backs == 0 && after.joined == 0);
    fuse_hidden(2, true, &before, &after);
    assert_true(after.summed == 1 && after.with_slope == 1 && after.with_sums == 1);
    fuse_hidden(0, true, &before, &after);
    assert_true(after.with_slope == 0 && after.gelu_backs == 0 && after.joined == 1);
}

/* The slope is a gradient, and has none. */
TEST(test_a_slope_has_no_gradient) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, 4);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F64, 6, 4);
    weft_tensor *u = weft_new_tensor(g, WEFT_ROLE_INPUT, "u", WEFT_F64, ROWS, 6);
    weft_tensor *y = weft_gelu_back(g, weft_linear(g, x, w, NULL, WEFT_ACT_NONE), u);
    weft_keep(y);
    y->needs_grad = true;
    weft_tensor *loss = weft_sum_squares(g, y, 1);
    assert_int_equal(weft_fuse(g), WEFT_OK);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "slope"));
    weft_graph_destroy(g);
}

/* An addend of another shape is refused. */
TEST(test_bad_nodes_are_refused) {
    small s = make_small();
    weft_matmul_attr attr = {.form = WEFT_MATMUL_ROWS, .tb = true, .alpha = 1, .dtype = WEFT_F64};
    weft_tensor *in[WEFT_MATMUL_INPUTS] = {s.x, s.w, [WEFT_MATMUL_ADDEND] = s.w};
    assert_null(
        weft_graph_append(s.g, &weft_op_matmul, in, WEFT_MATMUL_INPUTS, 2, 2, &attr, sizeof attr));
    assert_int_equal(weft_graph_status(s.g), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "addend"));
    weft_graph_destroy(s.g);
}

/* norm(r + linear with a bias) over rows of `width`; nodes before and after fusing its gradient. */
static void fuse_norm(int64_t width, tally *before, tally *after) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, 4);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F64, 6, 4);
    weft_tensor *b = weft_new_tensor(g, WEFT_ROLE_PARAM, "b", WEFT_F64, 6);
    weft_tensor *gain = weft_new_tensor(g, WEFT_ROLE_PARAM, "gain", WEFT_F64, width);
    weft_tensor *r = weft_new_tensor(g, WEFT_ROLE_INPUT, "r", WEFT_F64, 6 / width * ROWS, width);
    weft_tensor *y = weft_linear(g, x, w, b, WEFT_ACT_NONE);
    y = weft_view(g, y, 6 / width * ROWS, width);
    weft_tensor *loss = weft_sum_squares(g, weft_norm(g, y, r, gain, NULL, WEFT_RMSNORM, 0).y, 1);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    *before = count_nodes(g);
    small s = {.g = g};
    *after = fuse_small(&s, loss);
}

/* Not where the norm's rows are not the layer's. */
TEST(test_a_norm_sums_for_the_bias_before_it) {
    tally before, after;
    fuse_norm(6, &before, &after);
    assert_true(before.bias_backs == 1 && before.norm_sums == 0);
    assert_true(after.bias_backs == 0 && after.norm_sums == 1);
    fuse_norm(3, &before, &after);
    assert_true(after.bias_backs == 1 && after.norm_sums == 0);
}

/* x goes through a norm and beside it; its two gradients meet in norm_back. The embedding's meets the
 * classifier's in embed_back, which is last. */
TEST(test_the_second_gradient_takes_the_first) {
    for (int tied = 0; tied < 2; tied++) {
        weft_graph *g;
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, 6);
        weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F64, 6);
        weft_tensor *ids = weft_new_tensor(g, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 3), *y;
        if (tied)
            y = weft_embed(g, x, ids, NULL, NULL);
        else
            y = weft_norm(g, x, NULL, w, NULL, WEFT_RMSNORM, 0).y;
        weft_tensor *loss = weft_add(g, weft_sum_squares(g, y, 1), weft_sum_squares(g, x, 2));
        assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
        assert_non_null(x->grad);
        tally before = count_nodes(g);
        assert_int_equal(weft_fuse(g), WEFT_OK);
        check_order(g);
        assert_int_equal(before.adds - count_nodes(g).adds, 1);
        const weft_node *last = x->grad->producer;
        assert_true(tied ? last->op == &weft_op_embed_back && last->in[WEFT_EMBED_BACK_ADDEND]
                         : last->op == &weft_op_norm_back && last->in[WEFT_NORM_BACK_DS]);
        weft_graph_destroy(g);
    }
}

/* A dropped tensor is refused as an input, with a message. */
TEST(test_what_was_fused_away_is_refused) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F64, ROWS, 4);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F64, 6, 4);
    weft_tensor *y = weft_linear(g, x, w, NULL, WEFT_ACT_NONE);
    weft_tensor *loss = weft_sum_squares(g, weft_scale(g, y, 2), 1);
    assert_int_equal(weft_fuse(g), WEFT_OK);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
    assert_null(weft_gelu(g, y));
    assert_int_equal(weft_graph_status(g), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "dropped"));
    weft_graph_destroy(g);
}

/* Random graphs. */

typedef struct {
    weft_graph *g;
    weft_tensor *all[MOST]; /* [ROWS, 4 or 6] */
    weft_tensor *kept[MOST], *param[4 * MOST];
    int n, n_kept, n_params;
    weft_tensor *loss;
    uint32_t seed, drawn;
} sketch;

static int draw(sketch *s, int limit) {
    return (int)(weft_random_word(s->seed, 0, 0, 1, s->drawn++) % (uint32_t)limit);
}

static weft_tensor *draw_tensor(sketch *s, int64_t width) {
    for (;;) {
        weft_tensor *t = s->all[draw(s, s->n)];
        if (!width || weft_tensor_width(t) == width) return t;
    }
}

static weft_tensor *new_param(sketch *s, int64_t rows, int64_t columns) {
    char name[16];
    snprintf(name, sizeof name, "p%d", s->n_params);
    return s->param[s->n_params++] =
               weft_new_tensor(s->g, WEFT_ROLE_PARAM, name, WEFT_F64, rows, columns);
}

static weft_tensor *new_bias(sketch *s, int64_t width) {
    return weft_view(s->g, new_param(s, 1, width), width);
}

/* A norm behind a linear layer with a bias, and perhaps a residual. */
static weft_tensor *draw_norm(sketch *s, weft_tensor *t, int64_t other) {
    weft_tensor *y = weft_linear(s->g, t, new_param(s, other, weft_tensor_width(t)),
                                 new_bias(s, other), WEFT_ACT_NONE);
    if (draw(s, 2)) y = draw_tensor(s, other);
    weft_tensor *r = draw(s, 2) ? draw_tensor(s, other) : NULL, *gain = new_bias(s, other);
    weft_normed n = weft_norm(s->g, y, r, gain, new_bias(s, other), WEFT_LAYERNORM, 0);
    return draw(s, 2) ? n.s : n.y;
}

static weft_tensor *draw_node(sketch *s) {
    weft_tensor *t = draw_tensor(s, 0);
    int64_t width = weft_tensor_width(t), other = draw(s, 2) ? 4 : 6;
    switch (draw(s, 9)) {
    case 0:
        return weft_gelu(s->g, t);
    case 1:
        return weft_scale(s->g, t, 0.75);
    case 2:
        return weft_add_scaled(s->g, t, draw_tensor(s, width), -0.5);
    case 3:
    case 4:
        return weft_add(s->g, t, draw_tensor(s, width));
    case 8:
        return draw_norm(s, t, other);
    case 5:
        return weft_linear(s->g, t, new_param(s, other, width),
                           draw(s, 2) ? new_bias(s, other) : NULL, WEFT_ACT_GELU);
    default:
        return weft_linear(s->g, t, new_param(s, other, width), NULL, WEFT_ACT_NONE);
    }
}

/* The same graph for the same seed. */
static void build_sketch(sketch *s, uint32_t seed, bool segments) {
    *s = (sketch){.seed = seed};
    assert_int_equal(weft_graph_create(&s->g), WEFT_OK);
    s->all[s->n++] = new_param(s, ROWS, 4);
    s->all[s->n++] = new_param(s, ROWS, 6);
    for (int i = 0; i < STEPS; i++) {
        if (segments && i % 6 == 1) weft_graph_recompute_begin(s->g);
        weft_tensor *t = draw_node(s);
        if (segments && i % 6 == 4) weft_graph_recompute_end(s->g);
        s->all[s->n++] = t;
        if (draw(s, 6) == 0) s->kept[s->n_kept++] = weft_keep(t);
    }
    for (int i = s->n - 3; i < s->n; i++) {
        weft_tensor *part = weft_sum_squares(s->g, s->all[i], 0.5);
        s->loss = s->loss ? weft_add(s->g, s->loss, part) : part;
    }
    assert_int_equal(weft_graph_status(s->g), WEFT_OK);
}

/* Loss, kept tensors and gradients, one after the other; their number. */
static int64_t run_sketch(sketch *s, double *out) {
    weft_pool *pool;
    weft_exec *x;
    double values[ROWS * 8];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(
        weft_exec_create(s->g, weft_cpu_backend(), pool, &(weft_exec_options){.poison = true}, &x),
        WEFT_OK);
    for (int i = 0; i < s->n_params; i++) {
        weft_random_uniform(s->seed, 1, (uint32_t)i, 0, weft_tensor_count(s->param[i]), values);
        for (int64_t k = 0; k < weft_tensor_count(s->param[i]); k++)
            values[k] = values[k] - 0.5;
        assert_int_equal(weft_exec_write(x, s->param[i], values), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(x, &(weft_run){0}), WEFT_OK);
    int64_t n = 0;
    assert_int_equal(weft_exec_read(x, s->loss, out + n++), WEFT_OK);
    for (int i = 0; i < s->n_kept; i++) {
        assert_int_equal(weft_exec_read(x, s->kept[i], out + n), WEFT_OK);
        n += weft_tensor_count(s->kept[i]);
    }
    for (int i = 0; i < s->n_params; i++) {
        if (!s->param[i]->grad) continue;
        assert_int_equal(weft_exec_read(x, s->param[i]->grad, out + n), WEFT_OK);
        n += weft_tensor_count(s->param[i]);
    }
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return n;
}

static int64_t run_seed(uint32_t seed, bool fuse, bool segments, double *out, tally *nodes) {
    sketch s;
    build_sketch(&s, seed, segments);
    if (fuse) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    assert_int_equal(weft_graph_backward(s.g, s.loss, NULL), WEFT_OK);
    if (fuse) assert_int_equal(weft_fuse(s.g), WEFT_OK);
    check_order(s.g);
    *nodes = count_nodes(s.g);
    int64_t n = run_sketch(&s, out);
    weft_graph_destroy(s.g);
    return n;
}

TEST(test_random_graphs_keep_their_values) {
    static double plain[MOST * 100], fused[MOST * 100], again[MOST * 100];
    tally all = {0}, before, after, segmented;
    for (uint32_t seed = 1; seed <= GRAPHS; seed++) {
        int64_t n = run_seed(seed, false, false, plain, &before);
        assert_int_equal(run_seed(seed, true, false, fused, &after), n);
        assert_int_equal(run_seed(seed, true, true, again, &segmented), n);
        for (int64_t i = 0; i < n; i++) {
            double allowed = 1e-12 * fmax(1, fabs(plain[i]));
            if (!(fabs(fused[i] - plain[i]) <= allowed))
                fail_msg("graph %u: value %lld of %lld is %.17g, unfused %.17g", seed, (long long)i,
                         (long long)n, fused[i], plain[i]);
        }
        if (memcmp(fused, again, (size_t)n * sizeof *fused) != 0)
            fail_msg("graph %u: recomputation changes bits", seed);
        assert_true(after.adds <= before.adds && after.products == before.products);
        all.adds += before.adds - after.adds;
        all.scales += before.scales - after.scales;
        all.summed += after.summed;
        all.gelu_backs += after.with_slope;
        all.with_sums += after.with_sums;
        all.joined += after.joined;
        all.norm_sums += after.norm_sums;
    }
    printf(
        "note: %d graphs: %d adds, %d scales, %d gradients of gelu went into products, %d of them "
        "with a bias's, %d without a product; %d nodes sum products; %d of a bias went into "
        "norms\n",
        GRAPHS, all.adds, all.scales, all.gelu_backs, all.with_sums, all.joined, all.summed,
        all.norm_sums);
    assert_true(all.adds > GRAPHS && all.scales > GRAPHS / 4);
    assert_true(all.gelu_backs > GRAPHS / 8 && all.with_sums > GRAPHS / 8);
    assert_true(all.joined > GRAPHS / 8 && all.summed > GRAPHS / 4);
    assert_true(all.norm_sums > GRAPHS / 8);
}

RUN_TESTS(NULL, NULL)

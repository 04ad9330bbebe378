/* Rules over two nodes that follow each other: where they are tried, in which order, what they may
 * change, and that the program made of a description is the same for whoever plans and whoever runs. */
#include "core/exec.h"
#include "core/program.h"
#include "core/rewrite.h"
#include "cpu/backend.h"
#include "ops/arith.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "support/test.h"

#include <string.h>

enum { MOST = 8 };

/* What the rule under test was tried on. */
static weft_match seen[MOST];
static int n_seen;

static bool note(weft_rewrite *r, const weft_match *m) {
    (void)r;
    assert_in_range(n_seen, 0, MOST - 1);
    seen[n_seen++] = *m;
    return false;
}

static weft_graph *new_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    n_seen = 0;
    return g;
}

static weft_tensor *input(weft_graph *g, const char *name) {
    return weft_new_tensor(g, WEFT_ROLE_INPUT, name, WEFT_F32, 4, 4);
}

static void apply(weft_graph *g, const weft_rule *rule) {
    weft_rule table[] = {*rule, {0}};
    assert_int_equal(weft_graph_rewrite(g, table), WEFT_OK);
}

static const weft_rule scaled = {"test", &weft_op_add, WEFT_ANY_INPUT, &weft_op_scale, false, note};

TEST(test_a_rule_is_tried_where_the_reader_alone_reads) {
    weft_graph *g = new_graph();
    weft_tensor *a = input(g, "a"), *once = weft_scale(g, a, 2), *twice = weft_scale(g, a, 3);
    weft_tensor *kept = weft_keep(weft_scale(g, a, 4));
    weft_tensor *sum = weft_add(g, weft_add(g, once, twice), weft_add(g, twice, kept));
    weft_keep(sum);
    apply(g, &scaled);
    assert_int_equal(n_seen, 1);
    assert_ptr_equal(seen[0].maker, once->producer);
    assert_int_equal(seen[0].input, 0);
    assert_int_equal(seen[0].output, 0);

    weft_rule shared = scaled;
    shared.shared = true;
    n_seen = 0;
    apply(g, &shared);
    assert_int_equal(n_seen, 4);
    weft_graph_destroy(g);
}

TEST(test_of_any_input_the_one_made_last_is_tried_first) {
    weft_graph *g = new_graph();
    weft_tensor *a = input(g, "a"), *early = weft_scale(g, a, 2), *late = weft_scale(g, a, 3);
    weft_keep(weft_add(g, late, early));
    apply(g, &scaled);
    assert_int_equal(n_seen, 2);
    assert_ptr_equal(seen[0].maker, late->producer);
    assert_ptr_equal(seen[1].maker, early->producer);
    weft_graph_destroy(g);
}

TEST(test_a_view_is_matched_by_what_it_shows) {
    weft_graph *g = new_graph();
    weft_tensor *a = input(g, "a"), *b = weft_new_tensor(g, WEFT_ROLE_INPUT, "b", WEFT_F32, 16);
    weft_tensor *s = weft_scale(g, a, 2);
    weft_keep(weft_add(g, weft_view(g, s, 16), b));
    apply(g, &scaled);
    assert_int_equal(n_seen, 1);
    assert_ptr_equal(seen[0].maker, s->producer);
    weft_graph_destroy(g);
}

/* scale(scale(x)) becomes one scale in the first one's place. */
static bool join_scales(weft_rewrite *r, const weft_match *m) {
    weft_alpha_attr *attr = weft_rewrite_attr(r, m->maker, sizeof *attr);
    assert_non_null(attr);
    attr->alpha *= ((const weft_alpha_attr *)m->reader->attr)->alpha;
    weft_rewrite_make(r, m->maker, 0, m->reader->out[0]);
    weft_rewrite_drop(r, m->reader);
    return true;
}

static const weft_rule scales = {"test", &weft_op_scale, 0, &weft_op_scale, false, join_scales};

TEST(test_what_a_rewrite_did_away_with_cannot_be_used) {
    weft_graph *g = new_graph();
    weft_tensor *inner = weft_scale(g, input(g, "a"), 2),
                *outer = weft_keep(weft_scale(g, inner, 3));
    apply(g, &scales);
    assert_int_equal(weft_graph_node_count(g), 1);
    assert_ptr_equal(outer->producer, weft_graph_node(g, 0));
    assert_non_null(weft_scale(g, outer, 1));
    assert_null(weft_scale(g, inner, 1));
    assert_non_null(strstr(weft_error_message(), "dropped"));
    weft_graph_destroy(g);
}

TEST(test_chains_join_one_after_the_other) {
    weft_graph *g = new_graph();
    weft_tensor *t = input(g, "a");
    for (int i = 0; i < 5; i++)
        t = weft_scale(g, t, 2);
    weft_keep(t);
    apply(g, &scales);
    assert_int_equal(weft_graph_node_count(g), 1);
    assert_true(((const weft_alpha_attr *)weft_graph_node(g, 0)->attr)->alpha == 32);
    weft_graph_destroy(g);
}

/* x wᵀ + b, and the sum of its squares. */
static weft_graph *new_layer(weft_tensor **loss) {
    weft_graph *g = new_graph();
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F32, 4, 4);
    weft_tensor *y = weft_linear(g, input(g, "x"), w, NULL, WEFT_ACT_NONE);
    *loss = weft_sum_squares(g, weft_add(g, y, input(g, "b")), 1);
    return g;
}

static weft_plan *make_program(weft_graph *g, weft_tensor *loss) {
    weft_plan *plan;
    weft_program_options options = {
        .n_losses = 1, .losses = &loss, .outside = 1u << WEFT_ROLE_PARAM};
    assert_int_equal(weft_program_make(g, weft_cpu_backend(), 1, &options, &plan), WEFT_OK);
    return plan;
}

TEST(test_a_program_is_fused_differentiated_and_planned) {
    weft_tensor *loss;
    weft_graph *g = new_layer(&loss);
    weft_plan *plan = make_program(g, loss);
    assert_int_equal(weft_graph_forward_count(g), 2); /* the sum is the product's */
    assert_non_null(weft_graph_find(g, "w")->grad);
    assert_int_equal(plan->n_nodes, weft_graph_node_count(g));
    assert_true(plan->offset[weft_graph_find(g, "w")->id] < 0);
    assert_true(plan->offset[weft_graph_find(g, "x")->id] >= 0);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

TEST(test_an_executor_takes_only_the_plan_of_its_graph) {
    weft_tensor *loss, *other_loss;
    weft_graph *g = new_layer(&loss), *other = new_layer(&other_loss);
    weft_pool *pool;
    weft_exec *x;
    _Alignas(64) static float weights[16];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_binding bindings[] = {{weft_graph_find(g, "w"), weights}, {0}};

    weft_exec_options options = {.planned = make_program(g, loss), .bindings = bindings};
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    weft_exec_destroy(x);

    /* The weights are outside, and nobody brings them. */
    weft_tensor *again;
    weft_graph *unbound = new_layer(&again);
    options = (weft_exec_options){.planned = make_program(unbound, again)};
    assert_int_equal(weft_exec_create(unbound, weft_cpu_backend(), pool, &options, &x), WEFT_EBUG);
    assert_non_null(strstr(weft_error_message(), "'w'"));

    options = (weft_exec_options){.planned = make_program(other, other_loss), .bindings = bindings};
    weft_tensor *loss_again;
    weft_graph *larger = new_layer(&loss_again);
    assert_non_null(weft_scale(larger, loss_again, 1));
    bindings[0].tensor = weft_graph_find(larger, "w");
    assert_int_equal(weft_exec_create(larger, weft_cpu_backend(), pool, &options, &x), WEFT_EBUG);
    assert_non_null(strstr(weft_error_message(), "another graph"));

    weft_pool_destroy(pool);
    weft_graph_destroy(g);
    weft_graph_destroy(other);
    weft_graph_destroy(unbound);
    weft_graph_destroy(larger);
}

typedef struct {
    int n;
    const weft_node *nodes[32];
} watched;

static void watch(void *context, const weft_node *n) {
    watched *w = context;
    w->nodes[w->n++] = n;
}

TEST(test_after_is_called_once_for_each_node_in_order) {
    weft_graph *g = new_graph();
    weft_pool *pool;
    weft_exec *x;
    watched w = {0};
    weft_keep(weft_add(g, weft_scale(g, input(g, "a"), 2), input(g, "b")));
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, NULL, &x), WEFT_OK);
    weft_exec_watch(x, watch, &w);
    assert_int_equal(weft_exec_run(x, NULL), WEFT_OK);
    assert_int_equal(w.n, 2);
    for (int i = 0; i < w.n; i++)
        assert_ptr_equal(w.nodes[i], weft_graph_node(g, i));
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

RUN_TESTS(NULL, NULL)

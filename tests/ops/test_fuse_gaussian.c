/* Gaussians in front of attention: attention's gradient makes theirs, with the same values as the graph
 * as it was built, where nobody else reads or adds to what lies between them. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/fuse.h"
#include "ops/gaussian.h"
#include "ops/list.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TIME = 7, HEADS = 3, WIDE = 6, VALUES = 4, PARAMS = 4, MOST = 1024 };

/* What is different about a graph: who else has a part in q̂, or in n, and whether it is recomputed. */
typedef enum { ALONE, QUERY_IS_KEPT, QUERY_IS_READ, NUMBER_IS_READ, OTHER_HEADS } other_reader;

typedef struct {
    weft_graph *g;
    weft_tensor *param[PARAMS], *loss;
    weft_tensor *kept; /* q̂'s gradient, where it is wanted */
} attended;

static attended build_attention(other_reader other, bool segments) {
    attended a = {0};
    assert_int_equal(weft_graph_create(&a.g), WEFT_OK);
    weft_tensor *q = weft_new_tensor(a.g, WEFT_ROLE_PARAM, "q", WEFT_F64, 1, TIME, HEADS, WIDE);
    weft_tensor *k = weft_new_tensor(a.g, WEFT_ROLE_PARAM, "k", WEFT_F64, 1, TIME, HEADS, WIDE);
    weft_tensor *v = weft_new_tensor(a.g, WEFT_ROLE_PARAM, "v", WEFT_F64, 1, TIME, HEADS, VALUES);
    weft_tensor *tau = weft_new_tensor(a.g, WEFT_ROLE_PARAM, "tau", WEFT_F64, HEADS);
    memcpy(a.param, (weft_tensor *[]){q, k, v, tau}, sizeof a.param);
    if (segments) weft_graph_recompute_begin(a.g);
    if (other == OTHER_HEADS) q = weft_view(a.g, q, 1, TIME, 1, HEADS * WIDE);
    weft_tensor *query = weft_gaussian_query(a.g, q);
    weft_gaussian key = weft_gaussian_key(a.g, k);
    weft_score score = {.k = key.y, .n = key.n, .log_tau = tau, .causal = true};
    score.q = weft_view(a.g, query, 1, TIME, HEADS, WIDE);
    weft_tensor *o = weft_attention(a.g, &score, v).o;
    if (segments) weft_graph_recompute_end(a.g);
    a.loss = weft_sum_squares(a.g, o, 0.5);
    if (other == QUERY_IS_READ) a.loss = weft_add(a.g, a.loss, weft_sum_squares(a.g, query, 2));
    if (other == NUMBER_IS_READ) a.loss = weft_add(a.g, a.loss, weft_sum_squares(a.g, key.n, 0.1));
    assert_int_equal(weft_graph_status(a.g), WEFT_OK);
    return a;
}

/* The loss and every gradient, one after the other; their number. */
static int64_t run_graph(const attended *a, double *out) {
    weft_pool *pool;
    weft_exec *x;
    double values[MOST];
    int64_t n = 0;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(a->g, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    for (int i = 0; i < PARAMS; i++) {
        weft_random_uniform(3, 1, (uint32_t)i, 0, weft_tensor_count(a->param[i]), values);
        assert_int_equal(weft_exec_write(x, a->param[i], values), WEFT_OK);
    }
    assert_int_equal(weft_exec_run(x, &(weft_run){0}), WEFT_OK);
    assert_int_equal(weft_exec_read(x, a->loss, out + n++), WEFT_OK);
    for (int i = 0; i <= PARAMS; i++) {
        const weft_tensor *t = i < PARAMS ? a->param[i]->grad : a->kept;
        if (!t) continue;
        assert_int_equal(weft_exec_read(x, t, out + n), WEFT_OK);
        n += weft_tensor_count(t);
    }
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return n;
}

typedef struct {
    int left;     /* gradients of Gaussians that are passes of their own */
    int q, k, n;  /* that attention's makes */
    int makes_dn; /* for somebody else */
} tally;

static tally count_nodes(const weft_graph *g) {
    tally t = {0};
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        t.left += n->op == &weft_op_gaussian_back;
        if (n->op != &weft_op_attention_back) continue;
        const weft_attention_attr *attr = n->attr;
        t.q += attr->gaussian_q;
        t.k += attr->gaussian_k;
        t.n += attr->gaussian_n;
        t.makes_dn += n->out[WEFT_ATTN_N] != NULL;
    }
    return t;
}

static int64_t run_fused(bool fuse, other_reader other, bool segments, double *out, tally *t) {
    attended a = build_attention(other, segments);
    assert_int_equal(weft_graph_backward(a.g, a.loss, NULL), WEFT_OK);
    for (int64_t i = 0; other == QUERY_IS_KEPT && i < weft_graph_node_count(a.g); i++) {
        const weft_node *n = weft_graph_node(a.g, i);
        if (n->op == &weft_op_attention_back) a.kept = weft_keep(n->out[WEFT_ATTN_Q]);
    }
    if (fuse) assert_int_equal(weft_fuse(a.g), WEFT_OK);
    *t = count_nodes(a.g);
    int64_t n = run_graph(&a, out);
    weft_graph_destroy(a.g);
    return n;
}

/* Fused and not, with and without recomputation: the same values. Gives what fusing left. */
static tally check_same(other_reader other) {
    tally fused = {0};
    for (int segments = 0; segments < 2; segments++) {
        double want[MOST], got[MOST];
        tally plain;
        int64_t n = run_fused(false, other, segments, want, &plain);
        assert_int_equal(run_fused(true, other, segments, got, &fused), n);
        assert_int_equal(plain.left, 2);
        assert_int_equal(plain.q + plain.k + plain.n, 0);
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(got[i] - want[i]) <= 1e-13 * (1 + fabs(want[i]))))
                fail_msg("value %lld is %.17g, unfused %.17g", (long long)i, got[i], want[i]);
    }
    return fused;
}

TEST(test_gaussians_go_into_attention) {
    tally t = check_same(ALONE);
    assert_int_equal(t.left, 0);
    assert_int_equal(t.q, 1);
    assert_int_equal(t.k, 1);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.makes_dn, 0);
}

TEST(test_queries_that_others_have_a_part_in_stay) {
    static const other_reader others[] = {QUERY_IS_KEPT, QUERY_IS_READ, OTHER_HEADS};
    for (int i = 0; i < 3; i++) {
        tally t = check_same(others[i]);
        assert_int_equal(t.left, 1);
        assert_int_equal(t.q, 0);
        assert_int_equal(t.k, 1);
    }
}

TEST(test_keys_whose_number_others_read_stay) {
    tally t = check_same(NUMBER_IS_READ);
    assert_int_equal(t.left, 1);
    assert_int_equal(t.q, 1);
    assert_int_equal(t.k, 0);
    assert_int_equal(t.n, 0);
    assert_int_equal(t.makes_dn, 1);
}

RUN_TESTS(NULL, NULL)

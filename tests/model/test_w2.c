/* W2 attention's geometry: the score that the kernel uses is the distance, whichever way it is
 * written; and its gradient, in which the Gaussians take no pass of their own.
 *
 * With one query and one key a row's logsumexp is the score itself, so the kernel's own scores can
 * be read there; the softmax drops the query's norm, which the distance has. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "model/transformer.h"
#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/fuse.h"
#include "ops/list.h"
#include "ops/rope.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 40, HEADS = 3, MEAN = 4, WIDE = 2 * MEAN, TIME = 6 };

static void draw(const char *name, int64_t n, double *out) {
    weft_random_uniform(11, 0, weft_random_site(name), 0, n, out);
    for (int64_t i = 0; i < n; i++)
        out[i] = 2 * out[i] - 1;
}

typedef struct {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *x;
} runner;

static void run(runner *r, weft_tensor *const *inputs, const void *const *values, int n) {
    expect_ok(weft_graph_status(r->g));
    expect_ok(weft_pool_create(2, &r->pool));
    expect_ok(weft_exec_create(r->g, weft_cpu_backend(), r->pool, NULL, &r->x));
    for (int i = 0; i < n; i++)
        expect_ok(weft_exec_write(r->x, inputs[i], values[i]));
    expect_ok(weft_exec_run(r->x, NULL));
}

static void finish(runner *r) {
    weft_exec_destroy(r->x);
    weft_pool_destroy(r->pool);
    weft_graph_destroy(r->g);
}

/* The kernel's score of PAIRS pairs in each head: [PAIRS, HEADS]. */
static void kernel_scores(const double *q, const double *k, const double *log_tau, double *out) {
    runner r = {0};
    expect_ok(weft_graph_create(&r.g));
    weft_tensor *tq = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "q", WEFT_F64, PAIRS, 1, HEADS, WIDE);
    weft_tensor *tk = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "k", WEFT_F64, PAIRS, 1, HEADS, WIDE);
    weft_tensor *tau = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "log_tau", WEFT_F64, HEADS);
    weft_score score = {.q = tq, .k = tk, .log_tau = tau, .causal = true};
    score.n = weft_row_squares(r.g, tk, 0);
    weft_tensor *lse = weft_keep(weft_attention(r.g, &score, tk).lse);
    run(&r, (weft_tensor *[]){tq, tk, tau}, (const void *[]){q, k, log_tau}, 3);
    expect_ok(weft_exec_read(r.x, lse, out)); /* [B, H, 1] */
    finish(&r);
}

static double norm2(const double *a) {
    double sum = 0;
    for (int i = 0; i < WIDE; i++)
        sum += a[i] * a[i];
    return sum;
}

TEST(test_the_score_is_the_distance) {
    double q[PAIRS * HEADS * WIDE], k[PAIRS * HEADS * WIDE], log_tau[HEADS], got[PAIRS * HEADS];
    draw("q", PAIRS * HEADS * WIDE, q);
    draw("k", PAIRS * HEADS * WIDE, k);
    draw("tau", HEADS, log_tau);
    kernel_scores(q, k, log_tau, got);
    for (int i = 0; i < PAIRS * HEADS; i++) {
        double tau = exp(log_tau[i % HEADS]) + 1e-6, distance = 0;
        for (int d = 0; d < WIDE; d++)
            distance += pow(q[i * WIDE + d] - k[i * WIDE + d], 2);
        double score = got[i] - norm2(q + i * WIDE) / tau;
        assert_true(fabs(score + distance / tau) < 1e-12 * fmax(1, distance / tau));
    }
}

TEST(test_the_distance_is_the_same_with_query_and_key_exchanged) {
    double q[PAIRS * HEADS * WIDE], k[PAIRS * HEADS * WIDE], log_tau[HEADS];
    double there[PAIRS * HEADS], back[PAIRS * HEADS];
    draw("q", PAIRS * HEADS * WIDE, q);
    draw("k", PAIRS * HEADS * WIDE, k);
    draw("tau", HEADS, log_tau);
    kernel_scores(q, k, log_tau, there);
    kernel_scores(k, q, log_tau, back);
    for (int i = 0; i < PAIRS * HEADS; i++) {
        double tau = exp(log_tau[i % HEADS]) + 1e-6;
        double a = there[i] - norm2(q + i * WIDE) / tau, b = back[i] - norm2(k + i * WIDE) / tau;
        assert_true(fabs(a - b) < 1e-12 * fmax(1, fabs(a)));
    }
}

/* Rows' logsumexp and outputs of rotated W2 attention whose first token stands at `offset`. */
static void rotated(int32_t offset, double *lse, double *o) {
    enum { COUNT = TIME * HEADS * WIDE };
    double q[COUNT], k[COUNT], log_tau[HEADS];
    draw("q", COUNT, q);
    draw("k", COUNT, k);
    draw("tau", HEADS, log_tau);
    runner r = {0};
    expect_ok(weft_graph_create(&r.g));
    weft_tensor *tq = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "q", WEFT_F64, 1, TIME, HEADS, WIDE);
    weft_tensor *tk = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "k", WEFT_F64, 1, TIME, HEADS, WIDE);
    weft_tensor *tau = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "log_tau", WEFT_F64, HEADS);
    weft_tensor *start = weft_new_tensor(r.g, WEFT_ROLE_INPUT, "start", WEFT_I32, 1);
    weft_score score = {.log_tau = tau, .causal = true};
    score.q = weft_rope(r.g, tq, MEAN, HEADS, start, &WEFT_ROPE_USUAL);
    score.k = weft_rope(r.g, tk, MEAN, HEADS, start, &WEFT_ROPE_USUAL);
    score.n = weft_row_squares(r.g, score.k, 0);
    weft_attended a = weft_attention(r.g, &score, tk);
    weft_keep(a.lse);
    weft_keep(a.o);
    run(&r, (weft_tensor *[]){tq, tk, tau, start}, (const void *[]){q, k, log_tau, &offset}, 4);
    expect_ok(weft_exec_read(r.x, a.lse, lse));
    expect_ok(weft_exec_read(r.x, a.o, o));
    finish(&r);
}

TEST(test_a_shift_of_all_positions_changes_no_score) {
    enum { COUNT = TIME * HEADS * WIDE };
    double lse[2][TIME * HEADS], o[2][COUNT];
    rotated(0, lse[0], o[0]);
    rotated(1234, lse[1], o[1]);
    for (int i = 0; i < TIME * HEADS; i++)
        assert_true(fabs(lse[0][i] - lse[1][i]) < 1e-10);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(o[0][i] - o[1][i]) < 1e-10);
}

/* Attention's gradients in a model's training graph, and those that make the Gaussians' too. */
static void count_gradients(const char *const *overrides, bool recompute, int *all, int *whole) {
    weft_config c;
    weft_model_graph m;
    weft_config_defaults(&c);
    for (; *overrides; overrides++)
        expect_ok(weft_config_override(&c, *overrides, "test"));
    weft_build build = {
        .batch = 2, .time = c.context, .dtype = WEFT_BF16, .train = true, .recompute = recompute};
    expect_ok(weft_model_build(&c, &build, &m));
    expect_ok(weft_fuse(m.graph));
    expect_ok(weft_graph_backward(m.graph, m.loss, NULL));
    expect_ok(weft_fuse(m.graph));
    *all = *whole = 0;
    for (int64_t i = 0; i < weft_graph_node_count(m.graph); i++) {
        const weft_node *n = weft_graph_node(m.graph, i);
        assert_ptr_not_equal(n->op, &weft_op_gaussian_back);
        if (n->op != &weft_op_attention_back) continue;
        const weft_attention_attr *attr = n->attr;
        ++*all;
        *whole += attr->gaussian_q && attr->gaussian_k && attr->gaussian_n && !n->out[WEFT_ATTN_N];
    }
    weft_model_graph_destroy(&m);
}

#define SMALL "N_LAYER=3", "N_EMBD=64", "N_HEAD=4", "VOCAB_SIZE=1000", "CONTEXT=16"

TEST(test_gaussians_have_no_pass_of_their_own) {
    static const char *const models[][9] = {
        {SMALL, "ATTENTION=w2"},
        {SMALL, "ATTENTION=w2", "POSITION=rope"},
        {SMALL, "ATTENTION=w2", "W2_TAU_LEARNED=y"},
        {SMALL, "ATTENTION=mla", "RA_MLA_LATENT_DIM=16", "RA_MLA_SCORE=w2"},
    };
    for (int i = 0; i < 8; i++) {
        int all, whole;
        count_gradients(models[i / 2], i % 2, &all, &whole);
        assert_int_equal(all, 3);
        assert_int_equal(whole, 3);
    }
}

RUN_TESTS(NULL, NULL)

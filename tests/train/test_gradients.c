/* The sum over micro-batches: the tree that their index fixes, to the bit. The expected value is
 * the tree's definition from the top: the left part is the largest power of two that is less than
 * the whole. */
#include "cpu/backend.h"
#include "support/model_case.h"
#include "support/remote.h"
#include "support/test.h"
#include "train/gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 13 };

/* Numbers whose sums depend on the order: the i-th micro-batch's at one element. */
static float leaf(int64_t i, int64_t element) {
    return (1.0f + (float)element) / (float)(3 + 7 * i) * ((i + element) % 3 ? 1.0f : -1e3f);
}

static float tree(int64_t first, int64_t count, int64_t element) {
    if (count == 1) return leaf(first, element);
    int64_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return tree(first, left, element) + tree(first + left, count - left, element);
}

static void check_sum(model_run *r, const weft_backend *backend, int64_t count, int threads) {
    weft_optimizer *o;
    weft_gradients *g;
    weft_pool *pool;
    expect_ok(weft_pool_create(threads, &pool));
    expect_ok(weft_optimizer_create(r->model, backend, pool, NULL, &o));
    expect_ok(weft_gradients_create(o, &r->session, pool, NULL, count, &g));
    const weft_weight *weights = r->model->weights;
    for (int round = 0; round < 2; round++) {
        weft_gradients_begin(g);
        for (int64_t i = 0; i < count; i++) {
            weft_gradients_expect(g);
            for (int64_t w = 0; w < r->model->n_weights; w++) {
                weft_tensor *t = weft_graph_find(r->session.graph.graph, weights[w].name);
                float *gradient = weft_data(r->session.exec, t->grad);
                for (int64_t e = 0; gradient && e < weights[w].count; e++)
                    gradient[e] = leaf(i, e);
            }
            expect_ok(weft_gradients_add(g));
        }
        expect_ok(weft_gradients_mean(g));
    }
    for (int64_t w = 0; count > 1 && w < r->model->n_weights; w++) {
        weft_tensor *t = weft_graph_find(r->session.graph.graph, weights[w].name);
        const float *sum = weft_gradients_of(g, w).data;
        for (int64_t e = 0; e < weights[w].count; e++) {
            float want = t->grad ? tree(0, count, e) * (float)(1.0 / (double)count) : 0;
            if (sum[e] != want)
                fail_msg("%s of %lld: %g, not %g", weights[w].name, (long long)count,
                         (double)sum[e], (double)want);
        }
    }
    assert_null(weft_optimizer_find_bad(o));
    weft_gradients_destroy(g);
    weft_optimizer_destroy(o);
    weft_pool_destroy(pool);
}

static void check_sums(const weft_backend *backend, int64_t first) {
    model_case c;
    model_run r;
    model_case_open(&c, "dot-learned");
    model_run_open(&r, &c, &(model_run_options){.dtype = WEFT_F32, .train = true, .grads = true});
    for (int64_t count = first; count <= MOST; count++)
        check_sum(&r, backend, count, count % 2 ? 1 : 3);
    model_run_close(&r);
    model_case_close(&c);
}

TEST(test_micro_batches_are_added_in_a_tree) {
    check_sums(weft_cpu_backend(), 1);
}

TEST(test_a_device_adds_them_in_the_same_tree) {
    check_sums(remote_backend(), 2);
}

TEST(test_bad_gradient_is_named) {
    model_case c;
    model_run r;
    weft_optimizer *o;
    weft_gradients *g;
    model_case_open(&c, "dot-learned");
    model_run_open(&r, &c, &(model_run_options){.dtype = WEFT_F32, .train = true, .grads = true});
    expect_ok(weft_optimizer_create(r.model, weft_cpu_backend(), r.pool, NULL, &o));
    expect_ok(weft_gradients_create(o, &r.session, r.pool, NULL, 2, &g));
    weft_tensor *t = weft_graph_find(r.session.graph.graph, "h.0.ln_2.weight");
    ((float *)weft_data(r.session.exec, t->grad))[1] = INFINITY;
    weft_gradients_begin(g);
    for (int i = 0; i < 2; i++) {
        weft_gradients_expect(g);
        expect_ok(weft_gradients_add(g));
    }
    expect_ok(weft_gradients_mean(g));
    assert_string_equal(weft_optimizer_find_bad(o), "h.0.ln_2.weight");
    weft_gradients_destroy(g);
    weft_optimizer_destroy(o);
    model_run_close(&r);
    model_case_close(&c);
}

RUN_TESTS(NULL, NULL)

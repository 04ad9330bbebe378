/* What the case table cannot say of matrix products: refused shapes, leading dimensions, mixed
 * types. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/linear.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static weft_graph *new_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

#define INPUT(g, name, dtype, ...) weft_new_tensor(g, WEFT_ROLE_INPUT, name, dtype, __VA_ARGS__)

/* The graph refused the last call, and the message holds both words. */
static void assert_refused(weft_graph *g, const weft_tensor *y, const char *one,
                           const char *other) {
    assert_null(y);
    assert_int_equal(weft_graph_status(g), WEFT_EINPUT);
    const char *message = weft_error_message();
    if (!strstr(message, one) || !strstr(message, other)) fail_msg("message: %s", message);
    assert_null(strchr(message, '\n'));
    weft_graph_destroy(g);
}

TEST(test_wrong_shapes_are_refused_with_both) {
    weft_graph *g = new_graph();
    weft_tensor *x = INPUT(g, "x", WEFT_F32, 2, 3), *w = INPUT(g, "w", WEFT_F32, 4, 5);
    assert_refused(g, weft_linear(g, x, w, NULL, WEFT_ACT_NONE), "[2, 3]", "[4, 5]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3), w = INPUT(g, "w", WEFT_F32, 4, 3);
    weft_tensor *b = INPUT(g, "b", WEFT_F32, 3);
    assert_refused(g, weft_linear(g, x, w, b, WEFT_ACT_NONE), "[3]", "[4]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3), w = INPUT(g, "w", WEFT_F32, 2, 4);
    assert_refused(g, weft_matmul(g, x, w, false, false), "[2, 3]", "[2, 4]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3, 4), w = INPUT(g, "w", WEFT_F32, 3, 4, 5);
    assert_refused(g, weft_batched_matmul(g, x, w, false, false), "[2, 3, 4]", "[3, 4, 5]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3), w = INPUT(g, "w", WEFT_F32, 2, 3, 4);
    assert_refused(g, weft_batched_matmul(g, x, w, false, false), "batched", "[2, 3]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3, 4), w = INPUT(g, "w", WEFT_F32, 2, 4, 5);
    assert_refused(g, weft_grouped_linear(g, x, w, false), "[2, 3, 4]", "[2, 4, 5]");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3, 4), w = INPUT(g, "w", WEFT_F32, 4, 5);
    assert_refused(g, weft_matmul(g, x, w, false, false), "matmul", "[2, 3, 4]");
}

TEST(test_wrong_types_are_refused) {
    weft_graph *g = new_graph();
    weft_tensor *x = INPUT(g, "x", WEFT_I32, 2, 3), *w = INPUT(g, "w", WEFT_F32, 4, 3);
    assert_refused(g, weft_linear(g, x, w, NULL, WEFT_ACT_NONE), "matmul", "i32");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F64, 2, 3), w = INPUT(g, "w", WEFT_F32, 4, 3);
    assert_refused(g, weft_linear(g, x, w, NULL, WEFT_ACT_NONE), "f64", "f32");
    g = new_graph();
    x = INPUT(g, "x", WEFT_F32, 2, 3);
    assert_refused(g, weft_linear(g, x, NULL, NULL, WEFT_ACT_NONE), "matmul", "missing");
}

static void write_pattern(weft_exec *x, const weft_tensor *t, int step) {
    int64_t n = weft_tensor_count(t);
    void *bytes = malloc((size_t)weft_tensor_bytes(t));
    for (int64_t i = 0; i < n; i++) {
        float value = (float)((i * step) % 17 - 8) / 8;
        if (t->dtype == WEFT_BF16)
            ((uint16_t *)bytes)[i] = weft_float_to_bf16(value);
        else
            ((float *)bytes)[i] = value;
    }
    assert_int_equal(weft_exec_write(x, t, bytes), WEFT_OK);
    free(bytes);
}

/* y, dx, dw and db of a linear, of the given types; x has these dimensions, the last is K. */
typedef struct {
    float y[512], dx[512], dw[512], db[64];
} linear_results;

static void read_floats(weft_exec *x, const weft_tensor *t, float *to) {
    int64_t n = weft_tensor_count(t);
    void *bytes = malloc((size_t)weft_tensor_bytes(t));
    assert_int_equal(weft_exec_read(x, t, bytes), WEFT_OK);
    for (int64_t i = 0; i < n; i++)
        to[i] = t->dtype == WEFT_BF16 ? weft_bf16_to_float(((uint16_t *)bytes)[i])
                                      : ((float *)bytes)[i];
    free(bytes);
}

static void run_linear(weft_dtype x_type, weft_dtype w_type, int ndim, const int64_t *shape,
                       int64_t n, weft_act act, linear_results *r) {
    weft_graph *g = new_graph();
    weft_tensor *x = weft_graph_tensor(g, WEFT_ROLE_PARAM, "x", x_type, ndim, shape);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", w_type, n, shape[ndim - 1]);
    weft_tensor *b = weft_new_tensor(g, WEFT_ROLE_PARAM, "b", w_type, n);
    weft_tensor *y = weft_keep(weft_linear(g, x, w, b, act));
    assert_non_null(y);
    assert_int_equal(y->ndim, ndim);
    weft_tensor *dy = weft_graph_tensor(g, WEFT_ROLE_INPUT, "dy", x_type, y->ndim, y->shape);
    assert_int_equal(weft_graph_backward(g, y, dy), WEFT_OK);
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_pool_create(2, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, NULL, &exec), WEFT_OK);
    write_pattern(exec, x, 3);
    write_pattern(exec, w, 5);
    write_pattern(exec, b, 7);
    write_pattern(exec, dy, 11);
    assert_int_equal(weft_exec_run(exec, &(weft_run){0}), WEFT_OK);
    read_floats(exec, y, r->y);
    read_floats(exec, x->grad, r->dx);
    read_floats(exec, w->grad, r->dw);
    read_floats(exec, b->grad, r->db);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_leading_dimensions_are_rows) {
    static linear_results flat, deep;
    run_linear(WEFT_F32, WEFT_F32, 2, (int64_t[]){24, 5}, 7, WEFT_ACT_GELU, &flat);
    run_linear(WEFT_F32, WEFT_F32, 4, (int64_t[]){2, 3, 4, 5}, 7, WEFT_ACT_GELU, &deep);
    assert_memory_equal(&flat, &deep, sizeof flat);
    run_linear(WEFT_F32, WEFT_F32, 2, (int64_t[]){1, 5}, 7, WEFT_ACT_NONE, &flat);
    run_linear(WEFT_F32, WEFT_F32, 1, (int64_t[]){5}, 7, WEFT_ACT_NONE, &deep);
    assert_memory_equal(flat.y, deep.y, 7 * sizeof(float));
    assert_memory_equal(flat.dw, deep.dw, 35 * sizeof(float));
}

/* The pattern's values are exact in bf16, so are their products' sums here in float: with either
 * type of weight only the rounding of results differs. */
TEST(test_types_of_activations_and_weights_mix) {
    static linear_results plain, mixed;
    for (int64_t m = 3; m <= 24; m += 21) {
        int64_t shape[] = {m, 6};
        run_linear(WEFT_F32, WEFT_F32, 2, shape, 9, WEFT_ACT_NONE, &plain);
        run_linear(WEFT_F32, WEFT_BF16, 2, shape, 9, WEFT_ACT_NONE, &mixed);
        assert_memory_equal(plain.y, mixed.y, (size_t)(9 * m) * sizeof(float));
        assert_memory_equal(plain.dx, mixed.dx, (size_t)(6 * m) * sizeof(float));
        run_linear(WEFT_BF16, WEFT_F32, 2, shape, 9, WEFT_ACT_NONE, &mixed);
        assert_memory_equal(plain.dw, mixed.dw, 9 * 6 * sizeof(float));
        assert_memory_equal(plain.db, mixed.db, 9 * sizeof(float));
    }
}

RUN_TESTS(NULL, NULL)

/* Tokens and targets: values that a run refuses, targets that do not count, and the memory that the
 * fused loss does without. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    weft_graph *graph;
    weft_pool *pool;
    weft_exec *exec;
} bench;

static bench open_graph(void) {
    bench b = {0};
    assert_int_equal(weft_graph_create(&b.graph), WEFT_OK);
    return b;
}

static void open_run(bench *b) {
    assert_int_equal(weft_graph_status(b->graph), WEFT_OK);
    assert_int_equal(weft_pool_create(2, &b->pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(b->graph, weft_cpu_backend(), b->pool, &options, &b->exec),
                     WEFT_OK);
}

static void close_run(bench *b) {
    weft_exec_destroy(b->exec);
    weft_pool_destroy(b->pool);
    weft_graph_destroy(b->graph);
}

static void write_ramp(const bench *b, const weft_tensor *t) {
    float values[256];
    for (int64_t i = 0; i < weft_tensor_count(t); i++)
        values[i] = (float)(i % 13) / 13 - 0.4f;
    assert_int_equal(weft_exec_write(b->exec, t, values), WEFT_OK);
}

static void assert_run_refuses(const bench *b, const char *const *words) {
    assert_int_equal(weft_exec_run(b->exec, &(weft_run){0}), WEFT_EINPUT);
    for (; *words; words++)
        if (!strstr(weft_error_message(), *words)) fail_msg("message: %s", weft_error_message());
}

static void test_a_token_outside_the_vocabulary_is_named(void **state) {
    (void)state;
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 3);
    weft_keep(weft_embed(b.graph, wte, ids, NULL, NULL, 0));
    open_run(&b);
    write_ramp(&b, wte);
    int32_t tokens[] = {0, 10, 5, 1, 11, 2};
    weft_exec_write(b.exec, ids, tokens);
    assert_run_refuses(&b, (const char *[]){"token 11", "sequence 1", "position 1", "of 11", NULL});
    tokens[4] = -1;
    weft_exec_write(b.exec, ids, tokens);
    assert_run_refuses(&b, (const char *[]){"token -1", NULL});
    tokens[4] = 10;
    weft_exec_write(b.exec, ids, tokens);
    assert_int_equal(weft_exec_run(b.exec, &(weft_run){0}), WEFT_OK);
    close_run(&b);
}

static void test_a_position_outside_the_table_is_named(void **state) {
    (void)state;
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *wpe = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wpe", WEFT_F32, 8, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 3);
    weft_tensor *start = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "start", WEFT_I32, 2);
    weft_tensor *y = weft_keep(weft_embed(b.graph, wte, ids, wpe, start, 0));
    open_run(&b);
    write_ramp(&b, wte);
    write_ramp(&b, wpe);
    weft_exec_write(b.exec, ids, (int32_t[]){0, 1, 2, 3, 4, 5});
    weft_exec_write(b.exec, start, (int32_t[]){5, 6});
    assert_run_refuses(&b, (const char *[]){"sequence 1", "6 to 8", "8 of them", NULL});
    weft_exec_write(b.exec, start, (int32_t[]){-1, 0});
    assert_run_refuses(&b, (const char *[]){"sequence 0", "-1 to 1", NULL});
    weft_exec_write(b.exec, start, (int32_t[]){INT32_MAX, 0});
    assert_run_refuses(&b, (const char *[]){"sequence 0", NULL});
    /* Sequences may start at different places. */
    weft_exec_write(b.exec, start, (int32_t[]){5, 2});
    assert_int_equal(weft_exec_run(b.exec, &(weft_run){0}), WEFT_OK);
    float got[24], token[44], place[32];
    weft_exec_read(b.exec, y, got);
    weft_exec_read(b.exec, wte, token);
    weft_exec_read(b.exec, wpe, place);
    for (int i = 0; i < 24; i++) {
        int row = i / 4, position = row % 3 + (row < 3 ? 5 : 2);
        assert_true(got[i] == token[row * 4 + i % 4] + place[position * 4 + i % 4]);
    }
    close_run(&b);
}

static void test_embedding_shapes_are_refused(void **state) {
    (void)state;
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *wpe = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wpe", WEFT_F32, 8, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 7);
    assert_null(weft_embed(b.graph, wte, ids, wpe, NULL, 2));
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "[8, 4]"));
    assert_non_null(strstr(weft_error_message(), "[2, 7]"));
    weft_graph_destroy(b.graph);
    b = open_graph();
    wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    assert_null(weft_embed(b.graph, wte, wte, NULL, NULL, 0));
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    weft_graph_destroy(b.graph);
}

/* A loss over x [2, 3, 4] and w [5, 4], ready to run. */
typedef struct {
    bench b;
    weft_tensor *x, *w, *targets;
    weft_losses loss;
} loss_bench;

static loss_bench open_loss(void) {
    loss_bench l = {.b = open_graph()};
    weft_graph *g = l.b.graph;
    l.x = weft_new_tensor(g, WEFT_ROLE_PARAM, "x", WEFT_F32, 2, 3, 4);
    l.w = weft_new_tensor(g, WEFT_ROLE_PARAM, "w", WEFT_F32, 5, 4);
    l.targets = weft_new_tensor(g, WEFT_ROLE_INPUT, "targets", WEFT_I32, 2, 3);
    l.loss = weft_cross_entropy(g, l.x, l.w, l.targets, 0.1, true);
    weft_keep(l.loss.ce);
    weft_keep(l.loss.z);
    assert_int_equal(weft_graph_backward(g, l.loss.ce, NULL), WEFT_OK);
    open_run(&l.b);
    write_ramp(&l.b, l.x);
    write_ramp(&l.b, l.w);
    return l;
}

static void test_a_target_outside_the_vocabulary_is_named(void **state) {
    (void)state;
    loss_bench l = open_loss();
    weft_exec_write(l.b.exec, l.targets, (int32_t[]){0, 1, -1, 4, 5, 0});
    assert_run_refuses(&l.b, (const char *[]){"target 5", "row 4", "of 5", NULL});
    weft_exec_write(l.b.exec, l.targets, (int32_t[]){0, -2, -1, 4, 3, 0});
    assert_run_refuses(&l.b, (const char *[]){"target -2", "row 1", NULL});
    close_run(&l.b);
}

static void test_no_targets_is_no_loss(void **state) {
    (void)state;
    loss_bench l = open_loss();
    weft_exec_write(l.b.exec, l.targets, (int32_t[]){-1, -1, -1, -1, -1, -1});
    assert_int_equal(weft_exec_run(l.b.exec, &(weft_run){0}), WEFT_OK);
    float ce, z, dx[24], dw[20];
    weft_exec_read(l.b.exec, l.loss.ce, &ce);
    weft_exec_read(l.b.exec, l.loss.z, &z);
    weft_exec_read(l.b.exec, l.x->grad, dx);
    weft_exec_read(l.b.exec, l.w->grad, dw);
    assert_true(ce == 0 && z > 0);
    for (int i = 0; i < 24; i++)
        assert_true(dx[i] == 0);
    for (int i = 0; i < 20; i++)
        assert_true(dw[i] == 0);
    close_run(&l.b);
}

static void test_loss_shapes_are_refused(void **state) {
    (void)state;
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, 6, 4);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, 5, 3);
    weft_tensor *targets = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, 6);
    assert_null(weft_cross_entropy(b.graph, x, w, targets, 0, false).ce);
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "[6, 4]"));
    assert_non_null(strstr(weft_error_message(), "[5, 3]"));
    weft_graph_destroy(b.graph);
    b = open_graph();
    x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, 6, 4);
    w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, 5, 4);
    targets = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, 7);
    assert_null(weft_cross_entropy(b.graph, x, w, targets, 0, false).ce);
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    weft_graph_destroy(b.graph);
}

/* What forward and gradient hold beside their inputs and results, for N rows and V words. */
static int64_t scratch_bytes(int64_t rows, int64_t vocabulary) {
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, rows, 8);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, vocabulary, 8);
    weft_tensor *t = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, rows);
    weft_losses loss = weft_cross_entropy(b.graph, x, w, t, 0, false);
    assert_int_equal(weft_graph_backward(b.graph, loss.ce, NULL), WEFT_OK);
    open_run(&b);
    int64_t bytes = weft_exec_plan(b.exec)->workspace_bytes;
    close_run(&b);
    return bytes;
}

static void test_logits_are_never_held_as_a_whole(void **state) {
    (void)state;
    int64_t rows = 8192, vocabulary = 65536, logits = rows * vocabulary * 4;
    assert_true(scratch_bytes(rows, vocabulary) < logits / 32);
    assert_true(scratch_bytes(rows, 2 * vocabulary) < logits / 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_outside_the_vocabulary_is_named),
        cmocka_unit_test(test_a_position_outside_the_table_is_named),
        cmocka_unit_test(test_embedding_shapes_are_refused),
        cmocka_unit_test(test_a_target_outside_the_vocabulary_is_named),
        cmocka_unit_test(test_no_targets_is_no_loss),
        cmocka_unit_test(test_loss_shapes_are_refused),
        cmocka_unit_test(test_logits_are_never_held_as_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tokens and targets: values that a run refuses, targets that do not count, and the memory that the
 * fused loss does without. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

TEST(test_a_token_outside_the_vocabulary_is_named) {
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 3);
    weft_keep(weft_embed(b.graph, wte, ids, NULL, NULL));
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

TEST(test_a_position_outside_the_table_is_named) {
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *wpe = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wpe", WEFT_F32, 8, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 3);
    weft_tensor *start = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "start", WEFT_I32, 2);
    weft_tensor *y = weft_keep(weft_embed(b.graph, wte, ids, wpe, start));
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

TEST(test_embedding_shapes_are_refused) {
    bench b = open_graph();
    weft_tensor *wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    weft_tensor *wpe = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wpe", WEFT_F32, 8, 4);
    weft_tensor *ids = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "ids", WEFT_I32, 2, 9);
    assert_null(weft_embed(b.graph, wte, ids, wpe, NULL));
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "[8, 4]"));
    assert_non_null(strstr(weft_error_message(), "[2, 9]"));
    weft_graph_destroy(b.graph);
    b = open_graph();
    wte = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "wte", WEFT_F32, 11, 4);
    assert_null(weft_embed(b.graph, wte, wte, NULL, NULL));
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
    l.loss = weft_cross_entropy(g, l.x, l.w, l.targets, NULL, 0.1, true, 0);
    weft_keep(l.loss.ce);
    weft_keep(l.loss.z);
    assert_int_equal(weft_graph_backward(g, l.loss.ce, NULL), WEFT_OK);
    open_run(&l.b);
    write_ramp(&l.b, l.x);
    write_ramp(&l.b, l.w);
    return l;
}

TEST(test_a_target_outside_the_vocabulary_is_named) {
    loss_bench l = open_loss();
    weft_exec_write(l.b.exec, l.targets, (int32_t[]){0, 1, -1, 4, 5, 0});
    assert_run_refuses(&l.b, (const char *[]){"target 5", "row 4", "of 5", NULL});
    weft_exec_write(l.b.exec, l.targets, (int32_t[]){0, -2, -1, 4, 3, 0});
    assert_run_refuses(&l.b, (const char *[]){"target -2", "row 1", NULL});
    close_run(&l.b);
}

TEST(test_no_targets_is_no_loss) {
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

TEST(test_loss_shapes_are_refused) {
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, 6, 4);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, 5, 3);
    weft_tensor *targets = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, 6);
    assert_null(weft_cross_entropy(b.graph, x, w, targets, NULL, 0, false, 0).ce);
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "[6, 4]"));
    assert_non_null(strstr(weft_error_message(), "[5, 3]"));
    weft_graph_destroy(b.graph);
    b = open_graph();
    x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, 6, 4);
    w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, 5, 4);
    targets = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, 7);
    assert_null(weft_cross_entropy(b.graph, x, w, targets, NULL, 0, false, 0).ce);
    assert_int_equal(weft_graph_status(b.graph), WEFT_EINPUT);
    weft_graph_destroy(b.graph);
}

/* What forward and gradient hold beside their inputs and results, for N rows and V words. */
static int64_t scratch_bytes(int64_t rows, int64_t vocabulary) {
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_F32, rows, 8);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_F32, vocabulary, 8);
    weft_tensor *t = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, rows);
    weft_losses loss = weft_cross_entropy(b.graph, x, w, t, NULL, 0, false, 0);
    assert_int_equal(weft_graph_backward(b.graph, loss.ce, NULL), WEFT_OK);
    open_run(&b);
    int64_t bytes = weft_exec_plan(b.exec)->workspace_bytes;
    close_run(&b);
    return bytes;
}

TEST(test_logits_are_never_held_as_a_whole) {
    int64_t rows = 8192, vocabulary = 65536, logits = rows * vocabulary * 4;
    assert_true(scratch_bytes(rows, vocabulary) < logits / 6);
    assert_true(scratch_bytes(rows, 2 * vocabulary) < logits / 6);
}

/* A loss of many parts and chunks against plain sums in double. */
enum { ROWS = 2950, WORDS = 26000, WIDTH = 3 };

typedef struct {
    double ce, z;
    double dx[ROWS][WIDTH], dw[WORDS][WIDTH];
} plain_loss;

static double held_value(weft_dtype dtype, int64_t i, int step) {
    double value = (double)(i * step % 1009) / 504.5 - 1;
    if (dtype == WEFT_BF16) return (double)weft_bf16_to_float(weft_float_to_bf16((float)value));
    return (double)(float)value;
}

static int32_t target_of(int64_t row) {
    return row % 5 == 3 ? -1 : (int32_t)(row * 7919 % WORDS);
}

static void compute_plainly(weft_dtype dtype, double z, double d_ce, double d_z, plain_loss *out) {
    static double w[WORDS][WIDTH], l[WORDS], e_l[WORDS];
    memset(out, 0, sizeof *out);
    for (int64_t v = 0; v < WORDS; v++)
        for (int64_t e = 0; e < WIDTH; e++)
            w[v][e] = held_value(dtype, v * WIDTH + e, 7);
    int64_t count = 0;
    for (int64_t n = 0; n < ROWS; n++)
        count += target_of(n) >= 0;
    for (int64_t n = 0; n < ROWS; n++) {
        double x[WIDTH], sum = 0;
        for (int64_t e = 0; e < WIDTH; e++)
            x[e] = held_value(dtype, n * WIDTH + e, 3);
        for (int64_t v = 0; v < WORDS; v++) {
            l[v] = x[0] * w[v][0] + x[1] * w[v][1] + x[2] * w[v][2];
            e_l[v] = exp(l[v]);
            sum += e_l[v];
        }
        double lse = log(sum), weight = d_z * 2 * z * lse / ROWS;
        int32_t target = target_of(n);
        if (target >= 0) {
            out->ce += (lse - l[target]) / (double)count;
            weight += d_ce / (double)count;
        }
        out->z += z * lse * lse / ROWS;
        for (int64_t v = 0; v < WORDS; v++) {
            double d = e_l[v] / sum * weight - (v == target ? d_ce / (double)count : 0);
            for (int64_t e = 0; e < WIDTH; e++) {
                out->dx[n][e] += d * w[v][e];
                out->dw[v][e] += d * x[e];
            }
        }
    }
}

static void write_held(const bench *b, const weft_tensor *t, int step) {
    int64_t n = weft_tensor_count(t);
    void *bytes = malloc((size_t)weft_tensor_bytes(t));
    for (int64_t i = 0; i < n; i++) {
        float value = (float)held_value(t->dtype, i, step);
        if (t->dtype == WEFT_BF16)
            ((uint16_t *)bytes)[i] = weft_float_to_bf16(value);
        else
            ((float *)bytes)[i] = value;
    }
    assert_int_equal(weft_exec_write(b->exec, t, bytes), WEFT_OK);
    free(bytes);
}

/* Largest difference over the largest value expected. */
static double worst(const bench *b, const weft_tensor *t, const double *want) {
    int64_t n = weft_tensor_count(t);
    void *bytes = malloc((size_t)weft_tensor_bytes(t));
    assert_int_equal(weft_exec_read(b->exec, t, bytes), WEFT_OK);
    double error = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double got = t->dtype == WEFT_BF16 ? (double)weft_bf16_to_float(((uint16_t *)bytes)[i])
                                           : (double)((float *)bytes)[i];
        double difference = fabs(got - want[i]);
        error = difference <= error ? error : difference;
        largest = fmax(largest, fabs(want[i]));
    }
    free(bytes);
    return error / largest;
}

static void check_large_loss(weft_dtype dtype, double z, float d_ce, float d_z, double tolerance) {
    static plain_loss want;
    compute_plainly(dtype, z, (double)d_ce, (double)d_z, &want);
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", dtype, ROWS, WIDTH);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", dtype, WORDS, WIDTH);
    weft_tensor *t = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, ROWS);
    weft_tensor *dloss[] = {weft_graph_tensor(b.graph, WEFT_ROLE_INPUT, "d_ce", WEFT_F32, 0, NULL),
                            weft_graph_tensor(b.graph, WEFT_ROLE_INPUT, "d_z", WEFT_F32, 0, NULL)};
    weft_losses loss = weft_cross_entropy(b.graph, x, w, t, NULL, z, false, 0);
    weft_tensor *losses[] = {weft_keep(loss.ce), weft_keep(loss.z)};
    assert_int_equal(weft_graph_backward_many(b.graph, 2, losses, dloss), WEFT_OK);
    open_run(&b);
    int32_t targets[ROWS];
    for (int64_t n = 0; n < ROWS; n++)
        targets[n] = target_of(n);
    write_held(&b, x, 3);
    write_held(&b, w, 7);
    weft_exec_write(b.exec, t, targets);
    weft_exec_write(b.exec, dloss[0], &d_ce);
    weft_exec_write(b.exec, dloss[1], &d_z);
    assert_int_equal(weft_exec_run(b.exec, &(weft_run){0}), WEFT_OK);
    assert_true(worst(&b, loss.ce, &want.ce) < 1e-6);
    if (z != 0) assert_true(worst(&b, loss.z, &want.z) < 1e-6);
    assert_true(worst(&b, x->grad, want.dx[0]) < tolerance);
    assert_true(worst(&b, w->grad, want.dw[0]) < tolerance);
    close_run(&b);
}

TEST(test_a_large_loss_is_one_of_plain_sums) {
    check_large_loss(WEFT_F32, 0, 1, 1, 1e-5);
    check_large_loss(WEFT_F32, 0.1, 0.5f, 0.5f, 1e-5); /* one gradient: scaled */
    check_large_loss(WEFT_F32, 0.1, 0.5f, 2, 1e-5);    /* two: made again */
    check_large_loss(WEFT_BF16, 0.1, 1, 1, 1e-2);
    check_large_loss(WEFT_BF16, 0.1, 0.5f, 2, 1e-2);
}

/* p − 1 where p is nearly 1, which bf16 cannot tell from it; among more words than are taken at a time. */
TEST(test_a_likely_target_keeps_its_gradient) {
    enum { N = 40, V = 9000, E = 512, TARGET = V - 1 };
    static uint16_t xs[N][E], ws[V][E], dw[V][E];
    bench b = open_graph();
    weft_tensor *x = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "x", WEFT_BF16, N, E);
    weft_tensor *w = weft_new_tensor(b.graph, WEFT_ROLE_PARAM, "w", WEFT_BF16, V, E);
    weft_tensor *t = weft_new_tensor(b.graph, WEFT_ROLE_INPUT, "targets", WEFT_I32, N);
    weft_losses loss = weft_cross_entropy(b.graph, x, w, t, NULL, 0, false, 0);
    assert_int_equal(weft_graph_backward(b.graph, loss.ce, NULL), WEFT_OK);
    assert_int_equal(w->grad->dtype, WEFT_BF16);
    open_run(&b);
    int32_t targets[N];
    for (int i = 0; i < N; i++) {
        xs[i][0] = weft_float_to_bf16(8);
        targets[i] = TARGET;
    }
    ws[TARGET][0] = weft_float_to_bf16(2);
    weft_exec_write(b.exec, x, xs);
    weft_exec_write(b.exec, w, ws);
    weft_exec_write(b.exec, t, targets);
    assert_int_equal(weft_exec_run(b.exec, &(weft_run){0}), WEFT_OK);
    assert_int_equal(weft_exec_read(b.exec, w->grad, dw), WEFT_OK);
    double others = (V - 1) / (exp(16) + V - 1);
    double got = (double)weft_bf16_to_float(dw[TARGET][0]);
    assert_true(fabs(got / (-8 * others) - 1) < 0.01);
    close_run(&b);
}

RUN_TESTS(NULL, NULL)

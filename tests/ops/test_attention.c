/* What the case table is too small for: attention at sizes of many tiles against the plain version; that
 * nothing of the future is read; and that the memory grows with T and not with T². */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/attention.h"
#include "ops/list.h"
#include "support/plain_attention.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One attention to try. */
typedef struct {
    const char *name;
    int64_t batch, queries, keys, heads, kv_heads, dqk, dv;
    bool tau, beta, head_scale, full; /* full: not causal */
    weft_attention_pos pos;
    int64_t band; /* the window; 0: none */
    int64_t reach,
        document; /* document: tokens of one, but for sequence b's first, which has b fewer */
    double softcap;
} trial;

enum { GRADIENTS = WEFT_ATTN_BACK_OUTPUTS };

/* A trial built and run: values in double beside their tensors. */
typedef struct {
    trial t;
    weft_dtype dtype;
    weft_graph *g;
    weft_exec *x;
    weft_pool *pool;
    weft_tensor *in[WEFT_ATTN_INPUTS], *d_o, *o, *lse;
    weft_node *back;
    double *value[WEFT_ATTN_INPUTS], *d_o_value;
    int32_t *first;
} attempt;

static weft_dtype stat_dtype(weft_dtype dtype) {
    return dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

static void build(attempt *a) {
    const trial *t = &a->t;
    weft_dtype stat = stat_dtype(a->dtype);
    assert_int_equal(weft_graph_create(&a->g), WEFT_OK);
    weft_tensor **in = a->in;
    in[WEFT_ATTN_Q] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "q", a->dtype, t->batch, t->queries,
                                      t->heads, t->dqk);
    in[WEFT_ATTN_K] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "k", a->dtype, t->batch, t->keys,
                                      t->kv_heads, t->dqk);
    in[WEFT_ATTN_V] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "v", a->dtype, t->batch, t->keys,
                                      t->kv_heads, t->dv);
    if (t->tau || t->beta)
        in[WEFT_ATTN_N] =
            weft_new_tensor(a->g, WEFT_ROLE_PARAM, "n", stat, t->batch, t->kv_heads, t->keys);
    if (t->tau)
        in[WEFT_ATTN_LOG_TAU] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "log_tau", stat, t->heads);
    if (t->beta)
        in[WEFT_ATTN_BETA] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "beta", stat, t->heads);
    if (t->head_scale)
        in[WEFT_ATTN_SCALE] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "scale", stat, t->heads);
    if (t->pos == WEFT_POS_RELATIVE)
        in[WEFT_ATTN_REL] = weft_new_tensor(a->g, WEFT_ROLE_PARAM, "rel", stat, t->keys + 3);
    if (t->document)
        in[WEFT_ATTN_FIRST] =
            weft_new_tensor(a->g, WEFT_ROLE_INPUT, "first", WEFT_I32, t->batch, t->queries);
    weft_score score = {.q = in[WEFT_ATTN_Q],
                        .k = in[WEFT_ATTN_K],
                        .n = in[WEFT_ATTN_N],
                        .scale = in[WEFT_ATTN_SCALE],
                        .beta = in[WEFT_ATTN_BETA],
                        .log_tau = in[WEFT_ATTN_LOG_TAU],
                        .rel = in[WEFT_ATTN_REL],
                        .first = in[WEFT_ATTN_FIRST],
                        .reach = t->reach,
                        .softcap = t->softcap,
                        .scale_value = 1 / sqrt((double)t->dqk),
                        .pos = t->pos,
                        .causal = !t->full,
                        .band = t->band > 0,
                        .window = t->band,
                        .band_alpha = 0.5};
    weft_attended y = weft_attention(a->g, &score, in[WEFT_ATTN_V]);
    a->o = weft_keep(y.o);
    a->lse = weft_keep(y.lse);
    a->d_o = weft_new_tensor(a->g, WEFT_ROLE_INPUT, "d_o", a->dtype, t->batch, t->queries, t->heads,
                             t->dv);
    assert_int_equal(weft_graph_status(a->g), WEFT_OK);
    const weft_node *forward = y.o->producer;
    weft_tensor *back_in[WEFT_ATTN_BACK_INPUTS] = {a->d_o, y.o, y.lse};
    for (int i = 0; i < WEFT_ATTN_INPUTS; i++)
        back_in[WEFT_ATTN_BACK_FIRST + i] = forward->in[i];
    a->back = weft_graph_append(a->g, &weft_op_attention_back, back_in, WEFT_ATTN_BACK_INPUTS, 4,
                                GRADIENTS, forward->attr, sizeof(weft_attention_attr));
    assert_non_null(a->back);
    for (int i = 0; i < GRADIENTS; i++)
        if (a->back->out[i]) weft_keep(a->back->out[i]);
}

/* Numbers in ±1 that float and double both hold. */
static double *draw(int64_t n, uint32_t stream) {
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    weft_random_uniform(5, 0, stream, 0, n, values);
    for (int64_t i = 0; i < n; i++)
        values[i] = 2 * values[i] - 1;
    return values;
}

static void write_values(attempt *a, const weft_tensor *t, const double *values) {
    int64_t n = weft_tensor_count(t);
    if (a->dtype == WEFT_F64) {
        assert_int_equal(weft_exec_write(a->x, t, values), WEFT_OK);
        return;
    }
    float *narrow = malloc((size_t)n * sizeof *narrow);
    assert_non_null(narrow);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)values[i];
    assert_int_equal(weft_exec_write(a->x, t, narrow), WEFT_OK);
    free(narrow);
}

static double *read_values(attempt *a, const weft_tensor *t) {
    int64_t n = weft_tensor_count(t);
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    if (a->dtype == WEFT_F64) {
        assert_int_equal(weft_exec_read(a->x, t, values), WEFT_OK);
        return values;
    }
    float *narrow = malloc((size_t)n * sizeof *narrow);
    assert_non_null(narrow);
    assert_int_equal(weft_exec_read(a->x, t, narrow), WEFT_OK);
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)narrow[i];
    free(narrow);
    return values;
}

static attempt open_attempt(const trial *t, weft_dtype dtype) {
    attempt a = {.t = *t, .dtype = dtype};
    build(&a);
    assert_int_equal(weft_pool_create(2, &a.pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(a.g, weft_cpu_backend(), a.pool, &options, &a.x), WEFT_OK);
    for (int i = 0; i < WEFT_ATTN_FIRST; i++) {
        if (!a.in[i]) continue;
        a.value[i] = draw(weft_tensor_count(a.in[i]), (uint32_t)i);
        write_values(&a, a.in[i], a.value[i]);
    }
    a.d_o_value = draw(weft_tensor_count(a.d_o), 100);
    write_values(&a, a.d_o, a.d_o_value);
    if (!t->document) return a;
    a.first = calloc((size_t)(t->batch * t->queries), sizeof *a.first);
    assert_non_null(a.first);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t i = 0; i < t->queries; i++) {
            int64_t first = (i + b) / t->document * t->document - b;
            a.first[b * t->queries + i] = (int32_t)(first > 0 ? first : 0);
        }
    assert_int_equal(weft_exec_write(a.x, a.in[WEFT_ATTN_FIRST], a.first), WEFT_OK);
    return a;
}

static void close_attempt(attempt *a) {
    for (int i = 0; i < WEFT_ATTN_INPUTS; i++)
        free(a->value[i]);
    free(a->d_o_value);
    free(a->first);
    weft_exec_destroy(a->x);
    weft_graph_destroy(a->g);
    weft_pool_destroy(a->pool);
}

static void compare(attempt *a, const char *what, const weft_tensor *t, const double *want) {
    if (!t) return;
    int64_t n = weft_tensor_count(t);
    double *got = read_values(a, t), largest = 1e-3;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    double allowed = largest * (a->dtype == WEFT_F64 ? 1e-12 : 2e-5);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= allowed))
            fail_msg("%s, %s: %s[%lld] is %.9g, expected %.9g", a->t.name,
                     weft_dtype_name(a->dtype), what, (long long)i, got[i], want[i]);
    free(got);
}

static double *room(int64_t n) {
    double *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    return values;
}

static void compare_with_plain(const trial *t, weft_dtype dtype) {
    attempt a = open_attempt(t, dtype);
    if (weft_exec_run(a.x, &(weft_run){0}) != WEFT_OK) fail_msg("%s", weft_error_message());
    static const char *const names[GRADIENTS] = {"dq",     "dk",    "dv",       "dn",
                                                 "dscale", "dbeta", "dlog_tau", "drel"};
    double *grad[GRADIENTS], *o = room(weft_tensor_count(a.o)), *row = room(3 * t->keys);
    double *lse = room(weft_tensor_count(a.lse));
    for (int i = 0; i < GRADIENTS; i++)
        grad[i] = a.in[i] ? room(weft_tensor_count(a.in[i])) : NULL;
    plain_attention_problem p = {
        .attr = *(const weft_attention_attr *)a.back->attr,
        .distances = t->keys + 3,
        .q = a.value[WEFT_ATTN_Q],
        .k = a.value[WEFT_ATTN_K],
        .v = a.value[WEFT_ATTN_V],
        .n = a.value[WEFT_ATTN_N],
        .scale = a.value[WEFT_ATTN_SCALE],
        .beta = a.value[WEFT_ATTN_BETA],
        .log_tau = a.value[WEFT_ATTN_LOG_TAU],
        .rel = a.value[WEFT_ATTN_REL],
        .first = a.first,
        .o = o,
        .lse = lse,
        .d_o = a.d_o_value,
        .dq = grad[WEFT_ATTN_Q],
        .dk = grad[WEFT_ATTN_K],
        .dv = grad[WEFT_ATTN_V],
        .dn = grad[WEFT_ATTN_N],
        .dscale = grad[WEFT_ATTN_SCALE],
        .dbeta = grad[WEFT_ATTN_BETA],
        .dlog_tau = grad[WEFT_ATTN_LOG_TAU],
        .drel = grad[WEFT_ATTN_REL],
        .row = row,
    };
    plain_attention(&p);
    compare(&a, "o", a.o, o);
    compare(&a, "lse", a.lse, lse);
    for (int i = 0; i < GRADIENTS; i++) {
        if (grad[i]) compare(&a, names[i], a.back->out[i], grad[i]);
        free(grad[i]);
    }
    free(o);
    free(lse);
    free(row);
    close_attempt(&a);
}

static const trial trials[] = {
    {"dot", 1, 300, 300, 2, 2, 16, 16, .pos = WEFT_POS_NONE},
    {"one head, ranges of keys", 1, 700, 700, 1, 1, 8, 12, .tau = true},
    {"many heads on one key head", 1, 130, 130, 12, 1, 24, 20, .pos = WEFT_POS_ALIBI},
    {"uneven groups", 2, 150, 150, 7, 3, 9, 5, .beta = true, .head_scale = true},
    {"wide rows", 1, 70, 70, 1, 1, 200, 130, .beta = true},
    {"relative", 2, 200, 200, 2, 1, 8, 8, .pos = WEFT_POS_RELATIVE, .beta = true},
    {"not causal", 1, 90, 333, 3, 3, 12, 7, .full = true, .head_scale = true},
    {"not causal, distances", 1, 140, 140, 2, 1, 5, 6, .full = true, .pos = WEFT_POS_ALIBI},
    {"narrow band", 1, 200, 200, 3, 1, 8, 8, .band = 3, .head_scale = true},
    {"wide band", 1, 260, 260, 2, 2, 8, 8, .band = 150, .tau = true, .pos = WEFT_POS_RELATIVE},
    {"few queries", 2, 5, 129, 4, 4, 10, 10, .full = true, .tau = true},
    {"window", 1, 700, 700, 1, 1, 8, 12, .reach = 100, .tau = true},
    {"a window of two", 1, 200, 200, 2, 1, 8, 8, .reach = 2},
    {"window, distances", 3, 333, 333, 2, 1, 8, 8, .reach = 65, .pos = WEFT_POS_RELATIVE},
    {"window and band", 1, 200, 200, 3, 1, 8, 8, .band = 30, .reach = 20, .head_scale = true},
    {"documents", 2, 700, 700, 2, 1, 16, 16, .document = 130},
    {"short documents", 2, 300, 300, 2, 2, 8, 8, .document = 7, .beta = true, .head_scale = true},
    {"documents in a window", 1, 600, 600, 1, 1, 8, 8, .document = 250, .reach = 90,
     .softcap = 0.5},
    {"soft-cap", 1, 300, 300, 2, 1, 16, 16, .softcap = 0.3, .head_scale = true},
    {"soft-cap of biases", 1, 200, 200, 2, 1, 8, 8, .softcap = 2, .pos = WEFT_POS_RELATIVE},
};

TEST(test_tiles_agree_with_the_plain_version) {
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        compare_with_plain(&trials[i], WEFT_F64);
        compare_with_plain(&trials[i], WEFT_F32);
    }
}

/* Changes keys and values from position `from` on; the rows before must keep every bit. */
TEST(test_nothing_of_the_future_is_read) {
    enum { FROM = 100 };
    const trial t = {
        "future", 1, 170, 170, 2, 1, 8, 8, .band = 20, .beta = true, .pos = WEFT_POS_RELATIVE};
    attempt a = open_attempt(&t, WEFT_F32);
    assert_int_equal(weft_exec_run(a.x, &(weft_run){0}), WEFT_OK);
    double *before = read_values(&a, a.o), *lse_before = read_values(&a, a.lse);
    for (int i = WEFT_ATTN_Q; i <= WEFT_ATTN_V; i++) {
        int64_t n = weft_tensor_count(a.in[i]), row = n / t.queries;
        for (int64_t j = FROM * row; j < n; j++)
            a.value[i][j] = -3 * a.value[i][j];
        write_values(&a, a.in[i], a.value[i]);
    }
    for (int64_t j = FROM; j < t.keys; j++)
        a.value[WEFT_ATTN_N][j] += 7;
    write_values(&a, a.in[WEFT_ATTN_N], a.value[WEFT_ATTN_N]);
    assert_int_equal(weft_exec_run(a.x, &(weft_run){0}), WEFT_OK);
    double *after = read_values(&a, a.o), *lse_after = read_values(&a, a.lse);
    int64_t row = t.heads * t.dv;
    assert_memory_equal(before, after, (size_t)(FROM * row) * sizeof *before);
    assert_true(before[FROM * row] < after[FROM * row] || before[FROM * row] > after[FROM * row]);
    for (int64_t h = 0; h < t.heads; h++)
        assert_memory_equal(lse_before + h * t.queries, lse_after + h * t.queries,
                            FROM * sizeof *before);
    free(before);
    free(after);
    free(lse_before);
    free(lse_after);
    close_attempt(&a);
}

/* The rows [from, to) of t of a tensor of rows [B = 1, T, ...]. */
static void assert_rows_equal(const double *a, const double *b, int64_t row, int64_t from,
                              int64_t to) {
    assert_memory_equal(a + from * row, b + from * row, (size_t)((to - from) * row) * sizeof *a);
}

/* Changes all that belongs to one document; those beside it must keep every bit, of o and of gradients. */
TEST(test_documents_do_not_move_each_other) {
    enum { FROM = 150, TO = 300 };
    static const trial kinds[] = {
        {"documents", 1, 420, 420, 2, 1, 16, 16, .document = 150},
        {"capped documents", 1, 420, 420, 2, 1, 16, 16, .document = 150, .softcap = 1,
         .reach = 120},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const trial *t = kinds + k;
        attempt a = open_attempt(t, WEFT_F32);
        double *before[4], *after[4];
        const weft_tensor *seen[4] = {a.o, a.back->out[0], a.back->out[1], a.back->out[2]};
        assert_int_equal(weft_exec_run(a.x, &(weft_run){0}), WEFT_OK);
        for (int i = 0; i < 4; i++)
            before[i] = read_values(&a, seen[i]);
        for (int i = WEFT_ATTN_Q; i <= WEFT_ATTN_V; i++) {
            int64_t row = weft_tensor_count(a.in[i]) / t->queries;
            for (int64_t j = FROM * row; j < TO * row; j++)
                a.value[i][j] = -3 * a.value[i][j];
            write_values(&a, a.in[i], a.value[i]);
        }
        assert_int_equal(weft_exec_run(a.x, &(weft_run){0}), WEFT_OK);
        for (int i = 0; i < 4; i++) {
            after[i] = read_values(&a, seen[i]);
            int64_t row = weft_tensor_count(seen[i]) / t->queries;
            assert_rows_equal(before[i], after[i], row, 0, FROM);
            assert_rows_equal(before[i], after[i], row, TO, t->queries);
            assert_memory_not_equal(before[i] + FROM * row, after[i] + FROM * row,
                                    (size_t)row * sizeof **before);
            free(before[i]);
            free(after[i]);
        }
        close_attempt(&a);
    }
}

static int64_t workspace_at(int64_t length) {
    const trial t = {"memory", 1,  length, length,       2,
                     1,        16, 16,     .beta = true, .pos = WEFT_POS_RELATIVE};
    attempt a = open_attempt(&t, WEFT_F32);
    int64_t bytes = weft_exec_plan(a.x)->workspace_bytes;
    close_attempt(&a);
    return bytes;
}

TEST(test_memory_grows_with_the_length_only) {
    int64_t one = workspace_at(8192), two = workspace_at(16384);
    assert_true(two < one * 5 / 2);
    assert_true(two < (int64_t)16384 * 16384); /* a hundredth of what the scores would take */
}

RUN_TESTS(NULL, NULL)

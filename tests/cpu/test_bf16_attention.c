/* Attention in bf16 by the processor's matrix instructions: within bf16's bound of the same graph in f64,
 * for more keys than a tile holds, for tails, shared key heads, and work that is divided in every way;
 * with equal bits for any number of threads. Where the instruction set in use has no such instructions
 * the same holds for the kernels that widen. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/documents.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Root mean square of the differences as a part of that of the values: roundings of the weights, of the
 * scores' gradients and of the result, each 2^-9 at most. */
#define BOUND 0.004
#define BOUND_GRADIENT 0.005
/* log τ's gradient: one number for a head, a sum over all pairs whose terms nearly cancel. What o's own
 * rounding does to them is as much with the kernels that widen. */
#define BOUND_NUMBER 0.1

enum { LEAVES = 4, RESULTS = 6, NAME_ROOM = 8 };

typedef struct {
    int64_t batch, tokens, heads, kv_heads, dqk, dv;
    bool w2, causal;
    bool steep;              /* the first keys' scores are far above all others */
    int64_t reach, document; /* document: tokens of one; 0: there is one alone */
    double softcap;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1, 4, 4, false, true, .steep = false},  /* a single key */
    {2, 31, 2, 2, 8, 8, false, true, .steep = false}, /* less than a block */
    {1, 97, 3, 3, 20, 12, false, true,
     .steep = false}, /* one key more than a tile; widths that are padded */
    {2, 193, 2, 1, 33, 7, false, true, .steep = false},   /* odd widths, a shared key head */
    {1, 200, 2, 2, 16, 16, false, false, .steep = false}, /* every key is seen */
    {1, 640, 1, 1, 32, 32, false, true, .steep = false},  /* ranges of keys */
    {1, 600, 6, 1, 64, 64, false, true, .steep = false},  /* parts of heads */
    {1, 300, 2, 2, 64, 32, true, true, .steep = false},   /* a number per key */
    {1, 555, 4, 2, 128, 64, true, true, .steep = false},
    {1, 400, 2, 1, 16, 16, false, true, .steep = false, .reach = 70},
    {1, 640, 1, 1, 32, 32, false, true, .steep = false, .reach = 300, .softcap = 1},
    {2, 500, 2, 2, 16, 16, false, true, .steep = false, .document = 130},
    {1, 300, 2, 1, 64, 32, true, true, .steep = false, .document = 20, .reach = 15},
};

/* A graph with its results; all that a check compares. */
typedef struct {
    weft_graph *graph;
    weft_exec *exec;
    weft_tensor *leaf[LEAVES + 1]; /* q, k, v, do, log τ */
    weft_tensor *tokens;           /* of documents; NULL: there are none */
    const weft_tensor *result[RESULTS];
    int results;
} run;

static double noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) * 0x1p-23 - 1;
}

/* Numbers that bf16 has, the same for every type. */
static void fill(weft_exec *x, const weft_tensor *t, uint64_t seed, double scale, double shift) {
    int64_t n = weft_tensor_count(t);
    void *values = malloc((size_t)weft_tensor_bytes(t));
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = weft_float_to_bf16((float)(noise(&seed) * scale + shift));
        if (t->dtype == WEFT_BF16)
            ((uint16_t *)values)[i] = bits;
        else if (t->dtype == WEFT_F64)
            ((double *)values)[i] = (double)weft_bf16_to_float(bits);
        else
            ((float *)values)[i] = weft_bf16_to_float(bits);
    }
    assert_int_equal(weft_exec_write(x, t, values), WEFT_OK);
    free(values);
}

/* The first number of every query is 32; that of a key 32 among the first 96 keys, a tile, then -32. */
static void make_steep(weft_exec *x, const weft_tensor *t, bool keys) {
    int64_t n = weft_tensor_count(t), width = t->shape[3], heads = t->shape[2];
    unsigned char *values = malloc((size_t)weft_tensor_bytes(t));
    assert_non_null(values);
    assert_int_equal(weft_exec_read(x, t, values), WEFT_OK);
    for (int64_t i = 0; i < n; i += width) {
        float value = keys && i / (width * heads) % t->shape[1] >= 96 ? -32 : 32;
        if (t->dtype == WEFT_BF16)
            ((uint16_t *)(void *)values)[i] = weft_float_to_bf16(value);
        else
            ((double *)(void *)values)[i] = (double)value;
    }
    assert_int_equal(weft_exec_write(x, t, values), WEFT_OK);
    free(values);
}

/* Every so many-th token is 0. */
static void end_documents(weft_exec *x, const weft_tensor *t, int64_t length) {
    int32_t *tokens = malloc((size_t)weft_tensor_bytes(t));
    assert_non_null(tokens);
    for (int64_t i = 0; i < weft_tensor_count(t); i++)
        tokens[i] = i % length == length - 1 ? 0 : 1;
    assert_int_equal(weft_exec_write(x, t, tokens), WEFT_OK);
    free(tokens);
}

static weft_tensor *leaf(run *r, int i, weft_dtype dtype, int ndim, const int64_t *sizes) {
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "leaf%d", i);
    weft_role role = i == 3 ? WEFT_ROLE_INPUT : WEFT_ROLE_PARAM;
    return r->leaf[i] = weft_graph_tensor(r->graph, role, name, dtype, ndim, sizes);
}

static run open_run(const shape *s, weft_dtype dtype, int threads, weft_pool **pool) {
    run r = {0};
    assert_int_equal(weft_graph_create(&r.graph), WEFT_OK);
    weft_score score = {.causal = s->causal,
                        .scale_value = 1 / sqrt((double)s->dqk),
                        .reach = s->reach,
                        .softcap = s->softcap};
    if (s->document) {
        r.tokens =
            weft_new_tensor(r.graph, WEFT_ROLE_INPUT, "tokens", WEFT_I32, s->batch, s->tokens);
        score.first = weft_find_documents(r.graph, r.tokens, 0).first;
    }
    score.q = leaf(&r, 0, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->dqk});
    score.k = leaf(&r, 1, dtype, 4, (int64_t[]){s->batch, s->tokens, s->kv_heads, s->dqk});
    weft_tensor *v = leaf(&r, 2, dtype, 4, (int64_t[]){s->batch, s->tokens, s->kv_heads, s->dv});
    weft_tensor *d = leaf(&r, 3, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->dv});
    if (s->w2) {
        weft_dtype statistics = dtype == WEFT_BF16 ? WEFT_F32 : dtype;
        score.log_tau = leaf(&r, 4, statistics, 1, &s->heads);
        score.n = weft_row_squares(r.graph, score.k, 0);
    }
    weft_tensor *o = weft_keep(weft_attention(r.graph, &score, v).o);
    assert_int_equal(weft_graph_backward_many(r.graph, 1, &o, &d), WEFT_OK);
    r.result[r.results++] = o;
    for (int i = 0; i <= LEAVES; i++)
        if (r.leaf[i] && i != 3) r.result[r.results++] = r.leaf[i]->grad;
    assert_int_equal(weft_pool_create(threads, pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(r.graph, weft_cpu_backend(), *pool, &options, &r.exec),
                     WEFT_OK);
    for (int i = 0; i < LEAVES; i++)
        fill(r.exec, r.leaf[i], (uint64_t)i + 1, 1, 0);
    if (s->w2) fill(r.exec, r.leaf[4], 5, 0.125, 0.5 * log(4.0 * (double)s->dqk));
    if (r.tokens) end_documents(r.exec, r.tokens, s->document);
    if (s->steep) make_steep(r.exec, r.leaf[0], false);
    if (s->steep) make_steep(r.exec, r.leaf[1], true);
    assert_int_equal(weft_exec_run(r.exec, &(weft_run){.seed = 1}), WEFT_OK);
    return r;
}

static void close_run(run *r, weft_pool *pool) {
    weft_exec_destroy(r->exec);
    weft_graph_destroy(r->graph);
    weft_pool_destroy(pool);
}

/* A result's bytes, the caller's to free. */
static void *bytes_of(const run *r, int i) {
    void *bytes = malloc((size_t)weft_tensor_bytes(r->result[i]));
    assert_non_null(bytes);
    assert_int_equal(weft_exec_read(r->exec, r->result[i], bytes), WEFT_OK);
    return bytes;
}

static double value_at(const void *bytes, weft_dtype dtype, int64_t i) {
    if (dtype == WEFT_F64) return ((const double *)bytes)[i];
    if (dtype == WEFT_F32) return (double)((const float *)bytes)[i];
    return (double)weft_bf16_to_float(((const uint16_t *)bytes)[i]);
}

static double difference(const run *narrow, const run *exact, int i) {
    void *x = bytes_of(narrow, i), *y = bytes_of(exact, i);
    double off = 0, all = 0;
    for (int64_t j = 0; j < weft_tensor_count(exact->result[i]); j++) {
        double a = value_at(x, narrow->result[i]->dtype, j), b = value_at(y, WEFT_F64, j);
        off += (a - b) * (a - b);
        all += b * b;
    }
    free(x);
    free(y);
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

static double bound_of(int result) {
    return result == 0 ? BOUND : result < LEAVES ? BOUND_GRADIENT : BOUND_NUMBER;
}

TEST(test_attention_in_bf16_is_near_f64) {
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        weft_pool *pool, *other;
        run narrow = open_run(&shapes[n], WEFT_BF16, 2, &pool);
        run exact = open_run(&shapes[n], WEFT_F64, 2, &other);
        for (int i = 0; i < narrow.results; i++) {
            double off = difference(&narrow, &exact, i);
            if (!(off <= bound_of(i))) fail_msg("shape %d, result %d: %.5f off", (int)n, i, off);
        }
        close_run(&narrow, pool);
        close_run(&exact, other);
    }
}

/* Scores from -512 to 512: a sum that is rescaled by the wrong maximum is no number. Gradients of q and k
 * are differences of nearly equal numbers here, so o and v's gradient tell. */
TEST(test_scores_that_fall_far_after_a_tile) {
    static const shape steep[] = {{1, 200, 2, 1, 4, 8, false, true, .steep = true},
                                  {1, 200, 1, 1, 4, 8, false, false, .steep = true}};
    for (size_t n = 0; n < sizeof steep / sizeof steep[0]; n++) {
        weft_pool *pool, *other;
        run narrow = open_run(&steep[n], WEFT_BF16, 2, &pool);
        run exact = open_run(&steep[n], WEFT_F64, 2, &other);
        for (int i = 0; i < LEAVES; i += LEAVES - 1) {
            double off = difference(&narrow, &exact, i);
            if (!(off <= bound_of(i))) fail_msg("shape %d, result %d: %.5f off", (int)n, i, off);
        }
        close_run(&narrow, pool);
        close_run(&exact, other);
    }
}

TEST(test_attention_in_bf16_has_equal_bits_for_any_threads) {
    static const int threads[] = {2, 3, 16};
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
        weft_pool *pool, *other;
        run first = open_run(&shapes[n], WEFT_BF16, 1, &pool);
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            run again = open_run(&shapes[n], WEFT_BF16, threads[t], &other);
            for (int i = 0; i < first.results; i++) {
                void *x = bytes_of(&first, i), *y = bytes_of(&again, i);
                assert_memory_equal(x, y, (size_t)weft_tensor_bytes(first.result[i]));
                free(x);
                free(y);
            }
            close_run(&again, other);
        }
        close_run(&first, pool);
    }
}

RUN_TESTS(NULL, NULL)

/* Routing on the GPU at sizes where the case table's tolerances say little: of thousands of keys each
 * has a small weight. Rows are drawn, and the weights of all their keys made here in double; what
 * was kept must be the largest of them. And a sequence has the bits that it has alone, whatever
 * sequences are beside it. */
#include "core/exec.h"
#include "cuda/backend.h"
#include "ops/routing.h"
#include "support/table.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

enum { LOOKED_AT = 16 }; /* rows of a sequence */

typedef struct {
    int64_t batch, tokens, heads, kv_heads, width, k;
    bool normalize, use_max;
} shape;

/* A graph on the GPU. */
typedef struct {
    weft_graph *graph;
    weft_pool *pool;
    weft_exec *exec;
} machine;

static void skip_without_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static machine open_machine(void) {
    machine m = {0};
    assert_int_equal(weft_graph_create(&m.graph), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &m.pool), WEFT_OK);
    return m;
}

static void make_exec(machine *m) {
    if (weft_exec_create(m->graph, weft_cuda_backend(), m->pool, NULL, &m->exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
}

static void run(machine *m) {
    if (weft_exec_run(m->exec, NULL) != WEFT_OK) fail_msg("%s", weft_error_message());
}

static void close_machine(machine *m) {
    weft_exec_destroy(m->exec);
    weft_pool_destroy(m->pool);
    weft_graph_destroy(m->graph);
}

static void *allocate(int64_t count, size_t size) {
    void *p = calloc((size_t)count, size);
    assert_non_null(p);
    return p;
}

static uint16_t *draw_bf16(const char *name, int64_t count, double range) {
    uint16_t *v = allocate(count, sizeof *v);
    for (int64_t i = 0; i < count; i++)
        v[i] = weft_float_to_bf16((float)(range * (2 * case_unit(1, name, i) - 1)));
    return v;
}

static float *draw_f32(const char *name, int64_t count) {
    float *v = allocate(count, sizeof *v);
    for (int64_t i = 0; i < count; i++)
        v[i] = (float)case_unit(1, name, i);
    return v;
}

/* The largest weights */

typedef struct {
    uint16_t *q, *k; /* [B, T, heads, width] */
    float *lse;      /* [B, heads, T] */
    int32_t *index;  /* [B, T, k] */
    float *weight;
} routed;

static void close_routed(routed *r) {
    free(r->q);
    free(r->k);
    free(r->lse);
    free(r->index);
    free(r->weight);
}

static double score_scale(const shape *s) {
    return 3 / sqrt((double)s->width);
}

/* `range` of q; 0: all scores are the same. */
static routed draw_routed(const shape *s, double range) {
    int64_t rows = s->batch * s->tokens;
    return (routed){draw_bf16("q", rows * s->heads * s->width, range),
                    draw_bf16("k", rows * s->kv_heads * s->width, 1),
                    draw_f32("lse", rows * s->heads), allocate(rows * s->k, sizeof(int32_t)),
                    allocate(rows * s->k, sizeof(float))};
}

/* `batch` sequences from `first` on. */
static void route(const shape *s, int64_t first, int64_t batch, routed *r) {
    machine m = open_machine();
    weft_tensor *q = weft_new_tensor(m.graph, WEFT_ROLE_INPUT, "q", WEFT_BF16, batch, s->tokens,
                                     s->heads, s->width);
    weft_tensor *k = weft_new_tensor(m.graph, WEFT_ROLE_INPUT, "k", WEFT_BF16, batch, s->tokens,
                                     s->kv_heads, s->width);
    weft_tensor *lse =
        weft_new_tensor(m.graph, WEFT_ROLE_INPUT, "lse", WEFT_F32, batch, s->heads, s->tokens);
    weft_score score = {.q = q, .k = k, .scale_value = score_scale(s), .causal = true};
    weft_routes routes = weft_route_topk(m.graph, &score, lse, s->k, s->normalize, s->use_max);
    weft_keep(routes.index);
    weft_keep(routes.weight);
    make_exec(&m);
    int64_t row = first * s->tokens;
    assert_int_equal(weft_exec_write(m.exec, q, r->q + row * s->heads * s->width), WEFT_OK);
    assert_int_equal(weft_exec_write(m.exec, k, r->k + row * s->kv_heads * s->width), WEFT_OK);
    assert_int_equal(weft_exec_write(m.exec, lse, r->lse + row * s->heads), WEFT_OK);
    run(&m);
    assert_int_equal(weft_exec_read(m.exec, routes.index, r->index + row * s->k), WEFT_OK);
    assert_int_equal(weft_exec_read(m.exec, routes.weight, r->weight + row * s->k), WEFT_OK);
    close_machine(&m);
}

static double weigh_pair(const shape *s, const routed *r, int64_t b, int64_t t, int64_t j) {
    double sum = 0, most = 0;
    for (int64_t h = 0; h < s->heads; h++) {
        int64_t key_head = h * s->kv_heads / s->heads;
        const uint16_t *q = r->q + ((b * s->tokens + t) * s->heads + h) * s->width;
        const uint16_t *k = r->k + ((b * s->tokens + j) * s->kv_heads + key_head) * s->width;
        double dot = 0;
        for (int64_t d = 0; d < s->width; d++)
            dot += (double)weft_bf16_to_float(q[d]) * weft_bf16_to_float(k[d]);
        double w = exp(dot * score_scale(s) - r->lse[(b * s->heads + h) * s->tokens + t]);
        sum += w;
        most = fmax(most, w);
    }
    return s->use_max ? most : sum / (double)s->heads;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

static void check_row(const shape *s, const routed *r, int64_t b, int64_t t, double *all,
                      double *sorted) {
    const int32_t *index = r->index + (b * s->tokens + t) * s->k;
    const float *weight = r->weight + (b * s->tokens + t) * s->k;
    int64_t kept = s->k < t + 1 ? s->k : t + 1;
    double sum = 0;
    for (int64_t j = 0; j <= t; j++)
        sorted[j] = all[j] = weigh_pair(s, r, b, t, j);
    qsort(sorted, (size_t)(t + 1), sizeof *sorted, by_size);
    for (int64_t m = 0; m < kept; m++)
        sum += sorted[m];
    double factor = s->normalize ? 1 / sum : 1;
    for (int64_t m = 0; m < s->k; m++) {
        bool good = m < kept
                        ? index[m] >= 0 && index[m] <= t &&
                              fabs(weight[m] - factor * sorted[m]) <= 1e-4 * factor * sorted[m] &&
                              fabs(all[index[m]] - sorted[m]) <= 1e-4 * sorted[m]
                        : index[m] == -1 && weight[m] == 0;
        if (!good)
            fail_msg("T %lld, H %lld, KV %lld, width %lld, k %lld: place %lld of row %lld of "
                     "sequence %lld has column %d, weight %.7g; it should be %.7g",
                     (long long)s->tokens, (long long)s->heads, (long long)s->kv_heads,
                     (long long)s->width, (long long)s->k, (long long)m, (long long)t, (long long)b,
                     index[m], weight[m], m < kept ? factor * sorted[m] : 0);
        if (m < kept) all[index[m]] = -1; /* a column is kept once */
    }
}

static const shape topk_shapes[] = {
    {2, 1, 1, 1, 8, 1, false, false},       {2, 2, 2, 1, 16, 64, true, false},
    {3, 63, 3, 3, 24, 8, false, false},     {2, 65, 2, 2, 40, 33, false, false},
    {2, 129, 4, 2, 48, 64, true, false},    {2, 1000, 3, 1, 80, 8, false, false},
    {1, 1000, 2, 2, 128, 64, false, true},  {2, 1000, 2, 1, 136, 5, true, false},
    {2, 1024, 12, 12, 64, 8, false, false}, {1, 1024, 3, 3, 192, 17, false, false},
    {2, 1024, 4, 1, 256, 8, false, false},  {1, 700, 2, 1, 200, 64, false, false},
    {1, 777, 2, 1, 32, 32, false, false},   {1, 777, 2, 1, 96, 16, false, true},
    {1, 3503, 2, 1, 64, 64, false, false},  {1, 3632, 2, 1, 104, 9, false, false},
    {1, 5000, 1, 1, 256, 40, true, false},  {1, 8192, 2, 2, 64, 8, false, false},
    {2, 8192, 1, 1, 128, 64, false, false}, {1, 8192, 4, 4, 32, 1, false, false},
};

static void test_the_largest_are_kept(void **state) {
    (void)state;
    skip_without_gpu();
    for (size_t i = 0; i < sizeof topk_shapes / sizeof *topk_shapes; i++) {
        const shape *s = &topk_shapes[i];
        routed r = draw_routed(s, 1);
        double *all = allocate(s->tokens, sizeof *all), *sorted = allocate(s->tokens, sizeof *all);
        route(s, 0, s->batch, &r);
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t n = 0; n < LOOKED_AT; n++) {
                int64_t t =
                    n < 3 ? n * (s->tokens - 1) / 2
                          : (int64_t)(case_unit(2, "row", b * LOOKED_AT + n) * (double)s->tokens);
                check_row(s, &r, b, t, all, sorted);
            }
        free(all);
        free(sorted);
        close_routed(&r);
    }
}

static void test_of_equal_weights_the_first_are_kept(void **state) {
    (void)state;
    skip_without_gpu();
    static const int64_t kept[] = {1, 8, 15, 32, 33, 64};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        shape s = {1, 300, 2, 1, 64, kept[i], false, false};
        routed r = draw_routed(&s, 0);
        route(&s, 0, 1, &r);
        for (int64_t t = 0; t < s.tokens; t++)
            for (int64_t m = 0; m < s.k; m++)
                assert_int_equal(r.index[t * s.k + m], m <= t ? m : -1);
        close_routed(&r);
    }
}

static void test_a_sequence_keeps_what_it_keeps_alone(void **state) {
    (void)state;
    skip_without_gpu();
    for (size_t i = 0; i < sizeof topk_shapes / sizeof *topk_shapes; i++) {
        const shape *s = &topk_shapes[i];
        if (s->batch == 1 || s->tokens > 1024) continue;
        routed r = draw_routed(s, 1), alone = draw_routed(s, 1);
        int64_t count = s->batch * s->tokens * s->k;
        route(s, 0, s->batch, &r);
        for (int64_t b = 0; b < s->batch; b++)
            route(s, b, 1, &alone);
        assert_memory_equal(r.index, alone.index, (size_t)count * sizeof *r.index);
        assert_memory_equal(r.weight, alone.weight, (size_t)count * sizeof *r.weight);
        close_routed(&r);
        close_routed(&alone);
    }
}

/* Sums */

typedef struct {
    int64_t batch, tokens, k, width[2];
} sums_shape;

typedef struct {
    int32_t *index;
    float *weight;
    uint16_t *in[2], *seed[2], *out[2], *back[2];
} sums;

/* Column 0 in every row, a few columns in many, the others anywhere, and places that are empty. */
static int32_t draw_column(const sums_shape *s, int64_t i) {
    double u = case_unit(1, "index", i);
    if (i % s->k == 0) return 0;
    if (u < 0.2) return (int32_t)(u * 20 * 7) * (int32_t)(s->tokens / 40);
    if (u > 0.98) return -1;
    return (int32_t)((u - 0.2) / 0.78 * (double)s->tokens);
}

static sums draw_sums(const sums_shape *s) {
    int64_t rows = s->batch * s->tokens;
    sums v = {.index = allocate(rows * s->k, sizeof(int32_t)),
              .weight = draw_f32("weight", rows * s->k)};
    for (int64_t i = 0; i < rows * s->k; i++)
        v.index[i] = draw_column(s, i);
    for (int i = 0; i < 2; i++) {
        v.in[i] = draw_bf16(i ? "second" : "first", rows * s->width[i], 1);
        v.seed[i] = draw_bf16(i ? "d_second" : "d_first", rows * s->width[i], 1);
        v.out[i] = allocate(rows * s->width[i], sizeof(uint16_t));
        v.back[i] = allocate(rows * s->width[i], sizeof(uint16_t));
    }
    return v;
}

static void close_sums(sums *v) {
    free(v->index);
    free(v->weight);
    for (int i = 0; i < 2; i++) {
        free(v->in[i]);
        free(v->seed[i]);
        free(v->out[i]);
        free(v->back[i]);
    }
}

static void gather(const sums_shape *s, int64_t first, int64_t batch, sums *v) {
    machine m = open_machine();
    int64_t row = first * s->tokens;
    weft_tensor *in[2], *seed[2];
    weft_tensor *index =
        weft_new_tensor(m.graph, WEFT_ROLE_INPUT, "index", WEFT_I32, batch, s->tokens, s->k);
    weft_tensor *weight =
        weft_new_tensor(m.graph, WEFT_ROLE_INPUT, "weight", WEFT_F32, batch, s->tokens, s->k);
    for (int i = 0; i < 2; i++) {
        in[i] = weft_new_tensor(m.graph, WEFT_ROLE_PARAM, i ? "second" : "first", WEFT_BF16, batch,
                                s->tokens, s->width[i]);
        seed[i] = weft_new_tensor(m.graph, WEFT_ROLE_INPUT, i ? "d_second" : "d_first", WEFT_BF16,
                                  batch, s->tokens, s->width[i]);
    }
    weft_route_pair pair = weft_route_gather_pair(m.graph, in[0], in[1], index, weight);
    weft_tensor *out[2] = {weft_keep(pair.first), weft_keep(pair.second)};
    assert_int_equal(weft_graph_backward_many(m.graph, 2, out, seed), WEFT_OK);
    make_exec(&m);
    assert_int_equal(weft_exec_write(m.exec, index, v->index + row * s->k), WEFT_OK);
    assert_int_equal(weft_exec_write(m.exec, weight, v->weight + row * s->k), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        int64_t at = row * s->width[i];
        assert_int_equal(weft_exec_write(m.exec, in[i], v->in[i] + at), WEFT_OK);
        assert_int_equal(weft_exec_write(m.exec, seed[i], v->seed[i] + at), WEFT_OK);
    }
    run(&m);
    for (int i = 0; i < 2; i++) {
        int64_t at = row * s->width[i];
        assert_int_equal(weft_exec_read(m.exec, out[i], v->out[i] + at), WEFT_OK);
        assert_int_equal(weft_exec_read(m.exec, in[i]->grad, v->back[i] + at), WEFT_OK);
    }
    close_machine(&m);
}

static void test_a_sequence_has_the_sums_it_has_alone(void **state) {
    (void)state;
    skip_without_gpu();
    static const sums_shape shapes[] = {
        {3, 1000, 8, {96, 64}}, {3, 513, 64, {72, 9}}, {2, 5000, 33, {64, 8}},
        {2, 8192, 8, {200, 1}}, {2, 63, 1, {8, 16}},
    };
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        const sums_shape *s = &shapes[n];
        sums together = draw_sums(s), alone = draw_sums(s);
        gather(s, 0, s->batch, &together);
        for (int64_t b = 0; b < s->batch; b++)
            gather(s, b, 1, &alone);
        for (int i = 0; i < 2; i++) {
            size_t bytes = (size_t)(s->batch * s->tokens * s->width[i]) * sizeof(uint16_t);
            assert_memory_equal(together.out[i], alone.out[i], bytes);
            assert_memory_equal(together.back[i], alone.back[i], bytes);
        }
        close_sums(&together);
        close_sums(&alone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_largest_are_kept),
        cmocka_unit_test(test_of_equal_weights_the_first_are_kept),
        cmocka_unit_test(test_a_sequence_keeps_what_it_keeps_alone),
        cmocka_unit_test(test_a_sequence_has_the_sums_it_has_alone),
    };
    return cmocka_run_group_tests_name("routing", tests, NULL, NULL);
}

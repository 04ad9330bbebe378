/* Matrix products past the sizes of the case table: many tiles, sums that are split, few rows. What
 * a product must be is a plain sum in double. */
#include "base/random.h"
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/fuse.h"
#include "ops/linear.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the product does beside its sums: c + (...), or (...) times gelu's slope at c. */
typedef enum { ALONE, ADD, SLOPE } beside;

/* y[g] = op(a[g]) op(b[g]); `grouped`: the group is the second dimension of a and y. */
typedef struct {
    int64_t g, m, k, n;
    bool ta, tb, grouped, bias;
    weft_act act;
    beside beside;
} product;

typedef struct {
    product p;
    weft_dtype dtype;
    weft_graph *graph;
    weft_tensor *a, *b, *c, *bias, *y;
    double *a_values, *b_values, *c_values, *bias_values; /* as the tensors hold them */
} built;

static double held(weft_dtype dtype, double value) {
    if (dtype == WEFT_F64) return value;
    if (dtype == WEFT_BF16) return (double)weft_bf16_to_float(weft_float_to_bf16((float)value));
    return (double)(float)value;
}

static double read_value(weft_dtype dtype, const void *data, int64_t i) {
    if (dtype == WEFT_F64) return ((const double *)data)[i];
    if (dtype == WEFT_BF16) return (double)weft_bf16_to_float(((const uint16_t *)data)[i]);
    return (double)((const float *)data)[i];
}

static void store_values(weft_dtype dtype, void *data, const double *values, int64_t n) {
    if (dtype == WEFT_F64) memcpy(data, values, (size_t)n * sizeof *values);
    for (int64_t i = 0; dtype == WEFT_BF16 && i < n; i++)
        ((uint16_t *)data)[i] = weft_float_to_bf16((float)values[i]);
    for (int64_t i = 0; dtype == WEFT_F32 && i < n; i++)
        ((float *)data)[i] = (float)values[i];
}

/* A tensor's numbers are the first ones of those that its name draws, which are kept. */
static const double *draw_name(const char *name, int64_t n) {
    static struct {
        char name[8];
        double *values;
        int64_t n;
    } kept[4]; /* a, b, c, bias */
    int i = 0;
    while (kept[i].values && strcmp(kept[i].name, name) != 0)
        assert_true(++i < 4);
    if (kept[i].n < n) {
        snprintf(kept[i].name, sizeof kept[i].name, "%s", name);
        free(kept[i].values);
        kept[i].values = malloc((size_t)n * sizeof *kept[i].values);
        kept[i].n = n;
        weft_random_uniform(1, 0, weft_random_site(name), 0, n, kept[i].values);
    }
    return kept[i].values;
}

static double *draw(const weft_tensor *t) {
    int64_t n = weft_tensor_count(t);
    double *values = malloc((size_t)n * sizeof *values);
    const double *drawn = draw_name(t->name, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = held(t->dtype, 2 * drawn[i] - 1);
    return values;
}

static void write_values(weft_exec *x, const weft_tensor *t, const double *values) {
    if (!t) return;
    void *bytes = malloc((size_t)weft_tensor_bytes(t));
    store_values(t->dtype, bytes, values, weft_tensor_count(t));
    assert_int_equal(weft_exec_write(x, t, bytes), WEFT_OK);
    free(bytes);
}

static weft_tensor *new_matrix(weft_graph *g, const char *name, weft_dtype dtype, int64_t groups,
                               int64_t rows, int64_t columns) {
    return groups ? weft_new_tensor(g, WEFT_ROLE_INPUT, name, dtype, groups, rows, columns)
                  : weft_new_tensor(g, WEFT_ROLE_INPUT, name, dtype, rows, columns);
}

static bool alone; /* plain products are weft_matmul_alone's */

static built build(product p, weft_dtype dtype) {
    built b = {.p = p, .dtype = dtype};
    assert_int_equal(weft_graph_create(&b.graph), WEFT_OK);
    weft_graph *g = b.graph;
    b.b = new_matrix(g, "b", dtype, p.g, p.tb ? p.n : p.k, p.tb ? p.k : p.n);
    if (p.grouped) {
        b.a = new_matrix(g, "a", dtype, p.m, p.g, p.k);
        b.y = weft_grouped_linear(g, b.a, b.b, p.tb);
    } else {
        b.a = new_matrix(g, "a", dtype, p.g, p.ta ? p.k : p.m, p.ta ? p.m : p.k);
        if (p.bias) b.bias = weft_new_tensor(g, WEFT_ROLE_INPUT, "bias", dtype, p.n);
        if (p.g)
            b.y = weft_batched_matmul(g, b.a, b.b, p.ta, p.tb);
        else if (p.bias || p.act)
            b.y = weft_linear(g, b.a, b.b, b.bias, p.act);
        else
            b.y = alone ? weft_matmul_alone(g, b.a, b.b) : weft_matmul(g, b.a, b.b, p.ta, p.tb);
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    if (p.beside) {
        b.c = weft_graph_tensor(g, WEFT_ROLE_INPUT, "c", dtype, b.y->ndim, b.y->shape);
        b.c_values = draw(b.c);
        b.y = p.beside == ADD ? weft_add(g, b.c, b.y) : weft_gelu_back(g, b.y, b.c);
    }
    weft_keep(b.y);
    assert_int_equal(weft_fuse(g), WEFT_OK);
    assert_int_equal(weft_graph_node_count(g), 1);
    b.a_values = draw(b.a);
    b.b_values = draw(b.b);
    if (b.bias) b.bias_values = draw(b.bias);
    return b;
}

static void drop(built *b) {
    weft_graph_destroy(b->graph);
    free(b->a_values);
    free(b->b_values);
    free(b->c_values);
    free(b->bias_values);
}

/* The result's bytes; the caller frees them. */
static void *run(const built *b, int threads) {
    weft_pool *pool;
    weft_exec *x;
    assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    assert_int_equal(weft_exec_create(b->graph, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    write_values(x, b->a, b->a_values);
    write_values(x, b->b, b->b_values);
    write_values(x, b->c, b->c_values);
    write_values(x, b->bias, b->bias_values);
    assert_int_equal(weft_exec_run(x, &(weft_run){.seed = 1}), WEFT_OK);
    void *bytes = malloc((size_t)weft_tensor_bytes(b->y));
    assert_int_equal(weft_exec_read(x, b->y, bytes), WEFT_OK);
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return bytes;
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double root = sqrt(2 / acos(-1.0)), t = tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

/* Element (i, j) of matrix g by a plain sum, and Σ |terms| for the tolerance. */
static double expect(const built *b, int64_t g, int64_t i, int64_t j, double *magnitude) {
    const product *p = &b->p;
    double sum = 0;
    *magnitude = 0;
    for (int64_t k = 0; k < p->k; k++) {
        int64_t at_a = p->grouped ? (i * p->g + g) * p->k + k
                       : p->ta    ? (g * p->k + k) * p->m + i
                                  : (g * p->m + i) * p->k + k;
        int64_t at_b = p->tb ? (g * p->n + j) * p->k + k : (g * p->k + k) * p->n + j;
        double term = b->a_values[at_a] * b->b_values[at_b];
        sum += term;
        *magnitude += fabs(term);
    }
    if (b->bias) sum += b->bias_values[j];
    if (b->bias) *magnitude += fabs(b->bias_values[j]);
    int64_t at = p->grouped ? (i * p->g + g) * p->n + j : (g * p->m + i) * p->n + j;
    if (p->beside == ADD) sum += b->c_values[at];
    if (p->beside == SLOPE) sum *= gelu_slope(b->c_values[at]);
    return p->act == WEFT_ACT_GELU ? gelu(sum) : sum;
}

static const product products[] = {
    {0, 700, 70, 530, false, true, false, false, WEFT_ACT_NONE, ALONE}, /* several tiles each way */
    {0, 1100, 33, 40, false, false, false, false, WEFT_ACT_NONE, ALONE}, /* tall */
    {0, 30, 40, 1111, true, true, false, false, WEFT_ACT_NONE, ALONE},   /* wide */
    {0, 37, 5003, 29, true, false, false, false, WEFT_ACT_NONE, ALONE},  /* sums split */
    {0, 40, 9000, 24, false, true, false, true, WEFT_ACT_GELU,
     ALONE}, /* the same with bias and gelu */
    {0, 515, 1030, 17, false, true, false, true, WEFT_ACT_GELU, ALONE}, /* bf16 widened in pieces */
    {3, 90, 600, 110, true, true, false, false, WEFT_ACT_NONE, ALONE},  /* batched */
    {2, 40, 3000, 36, false, false, false, false, WEFT_ACT_NONE, ALONE}, /* batched, sums split */
    {0, 50, 9000, 250, false, true, false, true, WEFT_ACT_GELU,
     ALONE}, /* columns in several goes */
    {9, 40, 700, 360, true, false, false, false, WEFT_ACT_NONE,
     ALONE}, /* matrices in several goes */
    {5, 130, 65, 70, false, false, true, false, WEFT_ACT_NONE, ALONE}, /* grouped */
    {5, 9, 65, 70, false, true, true, false, WEFT_ACT_NONE, ALONE},    /* grouped, few rows */
    {0, 7, 333, 777, false, true, false, true, WEFT_ACT_GELU, ALONE},  /* few rows, many columns */
    {0, 31, 777, 333, false, false, false, false, WEFT_ACT_NONE, ALONE}, /* the other way round */
    {0, 32, 70000, 19, false, true, false, false, WEFT_ACT_NONE, ALONE}, /* few rows, long sums */
    {0, 16, 3, 2, false, false, false, false, WEFT_ACT_NONE, ALONE}, /* narrower than a vector */
    {0, 700, 70, 530, false, true, false, false, WEFT_ACT_NONE, ADD},
    {0, 700, 70, 530, false, true, false, true, WEFT_ACT_NONE, ADD},
    {0, 700, 70, 530, false, false, false, false, WEFT_ACT_NONE, SLOPE},
    {0, 37, 5003, 29, true, false, false, false, WEFT_ACT_NONE, ADD},
    {0, 40, 9000, 24, false, true, false, false, WEFT_ACT_NONE, SLOPE},
    {0, 50, 9000, 250, false, true, false, false, WEFT_ACT_NONE, ADD},
    {0, 50, 9000, 250, false, true, false, false, WEFT_ACT_NONE, SLOPE},
    {2, 40, 3000, 36, false, false, false, false, WEFT_ACT_NONE, ADD},
    {5, 130, 65, 70, false, false, true, false, WEFT_ACT_NONE, ADD},
    {5, 9, 65, 70, false, true, true, false, WEFT_ACT_NONE, ADD},
    {0, 31, 777, 333, false, true, false, false, WEFT_ACT_NONE, SLOPE},
    {0, 100, 1100, 900, false, true, false, true, WEFT_ACT_GELU, ALONE}, /* rows copied for all */
    {0, 75, 530, 1030, false, false, false, false, WEFT_ACT_NONE, SLOPE},
    {0, 70, 600, 520, true, false, false, false, WEFT_ACT_NONE, ADD},
    {3, 60, 520, 400, true, true, false, false, WEFT_ACT_NONE, ALONE},
    {3, 50, 520, 310, false, true, true, false, WEFT_ACT_NONE, ADD},
};
enum { PRODUCTS = sizeof products / sizeof products[0], SAMPLES = 400, FEW = 32 };

static const weft_dtype types[] = {WEFT_F32, WEFT_F64, WEFT_BF16};

/* Double is computed by the same code under every instruction set: cpu/test_instruction_sets leaves it out. */
static bool is_left_out(int type) {
    return types[type] == WEFT_F64 && getenv("WEFT_TEST_NO_DOUBLE");
}

/* Rounding of a sum in float grows with the square root of its length or so; bf16 rounds the
 * result. */
static const double relative[] = {2e-6, 1e-14, 2e-6};
static const double rounding[] = {1e-6, 1e-15, 4.0e-3};

static void check_product(const built *b, int type, const void *bytes) {
    const product *p = &b->p;
    int64_t groups = p->g ? p->g : 1, count = groups * p->m * p->n;
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t at = s == 0 ? 0 : s == 1 ? count - 1 : s * 7919 % count;
        int64_t g = p->grouped ? at / p->n % groups : at / (p->m * p->n);
        int64_t i = p->grouped ? at / (p->n * groups) : at / p->n % p->m;
        double magnitude, want = expect(b, g, i, at % p->n, &magnitude);
        double got = read_value(b->dtype, bytes, at);
        double allowed = relative[type] * magnitude + rounding[type] * fabs(want);
        if (!(fabs(got - want) <= allowed))
            fail_msg("%s, product %lld x %lld x %lld: element %lld is %.17g, not %.17g",
                     weft_dtype_name(b->dtype), (long long)p->m, (long long)p->k, (long long)p->n,
                     (long long)at, got, want);
    }
}

TEST(test_products_are_plain_sums) {
    for (int type = 0; type < 3; type++)
        for (int i = 0; i < PRODUCTS && !is_left_out(type); i++) {
            built b = build(products[i], types[type]);
            void *bytes = run(&b, 2);
            check_product(&b, type, bytes);
            free(bytes);
            drop(&b);
        }
}

TEST(test_bits_do_not_depend_on_threads) {
    static const int threads[] = {2, 3, 16};
    for (int type = 0; type < 3; type++)
        for (int i = 0; i < PRODUCTS && !is_left_out(type); i++) {
            built b = build(products[i], types[type]);
            void *one = run(&b, 1);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                void *other = run(&b, threads[t]);
                assert_memory_equal(one, other, (size_t)weft_tensor_bytes(b.y));
                free(other);
            }
            free(one);
            drop(&b);
        }
}

/* Rows of a product of `most` rows against the product of its first m rows: x is row-major, so the
 * shorter product's values are a prefix of the longer one's. */
static void compare_rows(product p, weft_dtype dtype, int64_t most) {
    p.m = most;
    built all = build(p, dtype);
    uint8_t *whole = run(&all, 2);
    for (int64_t m = 1; m < most; m++) {
        p.m = m;
        built part = build(p, dtype);
        void *rows = run(&part, 2);
        assert_memory_equal(rows, whole, (size_t)weft_tensor_bytes(part.y));
        free(rows);
        drop(&part);
    }
    free(whole);
    drop(&all);
}

TEST(test_a_row_of_few_has_the_bits_it_has_alone) {
    for (int type = 0; type < 3; type++) {
        if (is_left_out(type)) continue;
        compare_rows((product){.k = 203, .n = 301, .tb = true}, types[type], FEW);
        compare_rows((product){.k = 203, .n = 301}, types[type], FEW);
        compare_rows((product){.k = 7, .n = 5, .tb = true, .bias = true, .act = WEFT_ACT_GELU},
                     types[type], FEW);
        compare_rows((product){.g = 3, .k = 50, .n = 21, .grouped = true}, types[type], FEW);
    }
}

/* As many rows as heads and few rows make. Sums so long would be cut where products of many rows are. */
TEST(test_rows_that_are_alone_may_be_many) {
    alone = true;
    for (int type = 0; type < 3; type++) {
        if (is_left_out(type)) continue;
        product p = {.k = 3001, .n = 21};
        compare_rows(p, types[type], FEW + 9);
        p.m = 3 * FEW + 1;
        built b = build(p, types[type]);
        void *bytes = run(&b, 2);
        check_product(&b, type, bytes);
        free(bytes);
        drop(&b);
    }
    alone = false;
}

/* A whole number to eight binary digits: to the nearest, halfway to the even one. */
static int64_t to_eight_digits(int64_t n, int *halfway) {
    int64_t shift = 0;
    while (n >> shift > 255)
        shift++;
    int64_t kept = n >> shift, rest = n - (kept << shift),
            half = shift ? INT64_C(1) << (shift - 1) : 1;
    *halfway += rest == half;
    return (kept + (rest > half || (rest == half && kept % 2))) << shift;
}

TEST(test_bf16_results_are_rounded_to_nearest_even) {
    enum { M = 45, N = 83 };
    built b = build((product){.m = M, .k = 1, .n = N}, WEFT_BF16);
    int halfway = 0;
    for (int64_t i = 0; i < M; i++)
        b.a_values[i] = (double)((128 + 2 * i) * (i % 3 ? 1 : -1));
    for (int64_t j = 0; j < N; j++)
        b.b_values[j] = (double)(128 + j);
    uint16_t *bytes = run(&b, 2);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            int64_t want = to_eight_digits((128 + 2 * i) * (128 + j), &halfway);
            double got = (double)weft_bf16_to_float(bytes[i * N + j]);
            assert_true(got == (double)(want * (i % 3 ? 1 : -1)));
        }
    assert_in_range(halfway, 10, M * N);
    free(bytes);
    drop(&b);
}

RUN_TESTS(NULL, NULL)

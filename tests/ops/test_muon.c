/* Muon's matrices of many tensors, in batches: what goes together, and that it steps as it would alone. The
 * reference is the formula of the published step in double, matrix by matrix. tests/cuda/test_muon.c is the
 * same on the GPU, which has no f64 and where a batch may have other last bits. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ON_GPU
#define test_backend weft_cuda_backend
#else
#define test_backend weft_cpu_backend
#endif

enum { SLOTS = 7, STEPS = 3, MOST = 1 << 16, SIDE = 160, TOGETHER = 1 << 26 };

static const double RATE = 0.02, DECAY = 0.1, MOMENTUM = 0.95;

/* Three tensors have matrices of [40, 24], one of them behind an odd number of elements; two are of several
 * chunks, and one matrix is like no other. */
static const weft_muon_parts shapes[SLOTS] = {
    {1, {{0, 3, 40, 24}}},   {1, {{0, 2, 70, 150}}}, {2, {{0, 1, 9, 25}, {9 * 25, 2, 40, 24}}},
    {1, {{0, 1, 160, 130}}}, {1, {{0, 1, 40, 24}}},  {1, {{0, 1, 160, 130}}},
    {1, {{0, 1, 70, 150}}},
};

static int64_t count_of(int slot) {
    int64_t count = 0;
    for (int i = 0; i < shapes[slot].n; i++)
        count +=
            shapes[slot].part[i].count * shapes[slot].part[i].rows * shapes[slot].part[i].columns;
    return count;
}

/* Numbers in (-1, 1) that look drawn, and are exact in bf16. */
static double value_of(int slot, int step, int64_t i) {
    uint64_t x = (uint64_t)(slot * 1000 + step) * 0x9e3779b97f4a7c15u + (uint64_t)i;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((int)(x >> 57) - 64) / 64;
}

typedef struct {
    weft_graph *graph;
    weft_pool *pool;
    weft_exec *exec;
    weft_adam_slot slot[SLOTS];
} trainer;

static weft_tensor *tensor_of(trainer *t, weft_role role, const char *kind, int slot,
                              weft_dtype dtype) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, slot);
    return weft_new_tensor(t->graph, role, name, dtype, 1, count_of(slot));
}

static void write_values(trainer *t, const weft_tensor *to, int slot, int step) {
    static double wide[MOST];
    static float narrow[MOST];
    static uint16_t half[MOST];
    int64_t n = weft_tensor_count(to);
    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) {
        wide[i] = step < 0 ? 0 : value_of(slot, step, i);
        narrow[i] = (float)wide[i];
        half[i] = weft_float_to_bf16(narrow[i]);
    }
    const void *from = to->dtype == WEFT_F64 ? (const void *)wide : narrow;
    assert_int_equal(weft_exec_write(t->exec, to, to->dtype == WEFT_BF16 ? half : from), WEFT_OK);
}

/* Every second slot has a bf16 gradient and a copy, beside f32. */
static void trainer_open(trainer *t, weft_dtype dtype, const weft_muon_options *options,
                         int threads) {
    *t = (trainer){0};
    if (!test_backend()) {
        printf("%s\n", weft_error_message());
        skip();
    }
    assert_int_equal(weft_graph_create(&t->graph), WEFT_OK);
    weft_tensor *control =
        weft_new_tensor(t->graph, WEFT_ROLE_INPUT, "control", dtype, WEFT_ADAM_CONTROL);
    for (int i = 0; i < SLOTS; i++) {
        bool half = i % 2 == 1 && dtype == WEFT_F32;
        t->slot[i] = (weft_adam_slot){
            .param = tensor_of(t, WEFT_ROLE_PARAM, "param", i, dtype),
            .grad = tensor_of(t, WEFT_ROLE_INPUT, "grad", i, half ? WEFT_BF16 : dtype),
            .m = tensor_of(t, WEFT_ROLE_STATE, "m", i, dtype),
            .copy = half ? tensor_of(t, WEFT_ROLE_STATE, "copy", i, WEFT_BF16) : NULL,
            .rate = i == 4 ? 0.5 : 0,
            .matrices = shapes[i]};
    }
    weft_muon(t->graph, control, t->slot, SLOTS, options);
    if (weft_graph_status(t->graph) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_int_equal(weft_pool_create(threads, &t->pool), WEFT_OK);
    weft_exec_options poisoned = {.poison = true};
    if (weft_exec_create(t->graph, test_backend(), t->pool, &poisoned, &t->exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    double wide[WEFT_ADAM_CONTROL] = {[WEFT_CONTROL_APPLY] = 1,
                                      [WEFT_CONTROL_GRAD] = 1,
                                      [WEFT_CONTROL_LR] = RATE,
                                      [WEFT_CONTROL_DECAY] = RATE * DECAY};
    float narrow[WEFT_ADAM_CONTROL];
    for (int i = 0; i < WEFT_ADAM_CONTROL; i++)
        narrow[i] = (float)wide[i];
    const void *from = dtype == WEFT_F64 ? (const void *)wide : narrow;
    assert_int_equal(weft_exec_write(t->exec, control, from), WEFT_OK);
    for (int i = 0; i < SLOTS; i++) {
        write_values(t, t->slot[i].param, i, 0);
        write_values(t, t->slot[i].m, i, -1);
    }
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < SLOTS; i++)
            write_values(t, t->slot[i].grad, i, step);
        if (weft_exec_run(t->exec, NULL) != WEFT_OK) fail_msg("%s", weft_error_message());
    }
}

static void trainer_close(trainer *t) {
    weft_exec_destroy(t->exec);
    weft_pool_destroy(t->pool);
    weft_graph_destroy(t->graph);
}

/* out [m, n] = x [m, k] · y [k, n]; `turned`: y is [n, k]. */
static void multiply(const double *x, const double *y, bool turned, int64_t m, int64_t n, int64_t k,
                     double *out) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += x[i * k + l] * (turned ? y[j * k + l] : y[l * n + j]);
            out[i * n + j] = sum;
        }
}

/* Five rounds of X ← a X + (b A + c A²) X with A = X Xᵀ. */
static void orthogonalise(double *x, int64_t rows, int64_t columns) {
    static double a[SIDE * SIDE], b[SIDE * SIDE], y[SIDE * SIDE];
    assert_true(rows <= SIDE && columns <= SIDE);
    for (int round = 0; round < 5; round++) {
        multiply(x, x, true, rows, rows, columns, a);
        multiply(a, a, false, rows, rows, rows, b);
        for (int64_t i = 0; i < rows * rows; i++)
            b[i] = -4.7750 * a[i] + 2.0315 * b[i];
        multiply(b, x, false, rows, columns, rows, y);
        for (int64_t i = 0; i < rows * columns; i++)
            x[i] = 3.4445 * x[i] + y[i];
    }
}

/* The steps of one matrix, from element `first` of its slot on. */
static void step_matrix(int slot, int64_t first, int64_t rows, int64_t columns, double *p) {
    static double m[MOST], x[MOST];
    int64_t n = rows * columns;
    double factor = 0.2 * sqrt(fmax((double)rows, (double)columns)) * (slot == 4 ? 0.5 : 1);
    for (int64_t i = 0; i < n; i++) {
        p[i] = value_of(slot, 0, first + i);
        m[i] = 0;
    }
    for (int step = 1; step <= STEPS; step++) {
        double norm = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = value_of(slot, step, first + i);
            m[i] = MOMENTUM * m[i] + g;
            x[i] = g + MOMENTUM * m[i];
            norm += x[i] * x[i];
        }
        for (int64_t i = 0; i < n; i++)
            x[i] /= sqrt(norm) + 1e-7;
        orthogonalise(x, rows, columns);
        for (int64_t i = 0; i < n; i++)
            p[i] -= RATE * DECAY * p[i] + RATE * factor * x[i];
    }
}

static double *make_reference(int slot) {
    double *p = malloc((size_t)count_of(slot) * sizeof *p);
    for (int i = 0; i < shapes[slot].n; i++) {
        const weft_matrices *s = &shapes[slot].part[i];
        for (int64_t k = 0; k < s->count; k++) {
            int64_t first = s->first + k * s->rows * s->columns;
            step_matrix(slot, first, s->rows, s->columns, p + first);
        }
    }
    return p;
}

static double read_value(const void *data, weft_dtype dtype, int64_t i) {
    return dtype == WEFT_F64   ? ((const double *)data)[i]
           : dtype == WEFT_F32 ? ((const float *)data)[i]
                               : weft_bf16_to_float(((const uint16_t *)data)[i]);
}

/* The largest distance of a slot's tensor from the reference. */
static double distance(trainer *t, const weft_tensor *tensor, const double *want) {
    void *got = malloc((size_t)weft_tensor_bytes(tensor));
    double most = 0;
    assert_int_equal(weft_exec_read(t->exec, tensor, got), WEFT_OK);
    for (int64_t i = 0; i < weft_tensor_count(tensor); i++)
        most = fmax(most, fabs(read_value(got, tensor->dtype, i) - want[i]));
    free(got);
    return most;
}

/* Steps are of RATE · 0.2 √160 times elements of X, at most 0.05 each, and bf16 products err by 1e-2 of
 * those. */
static void check_values(double *const *want, weft_dtype dtype, bool narrow, double tolerance) {
    for (int together = 0; together < 2; together++) {
        weft_muon_options o = {MOMENTUM, narrow, together ? TOGETHER : 0};
        trainer t;
        trainer_open(&t, dtype, &o, 2);
        for (int i = 0; i < SLOTS; i++) {
            double off = distance(&t, t.slot[i].param, want[i]);
            double copy = t.slot[i].copy ? distance(&t, t.slot[i].copy, want[i]) : 0;
            if (off > tolerance || copy > tolerance + 0x1p-8)
                fail_msg("%s %s: slot %d is off by %.1e, its copy by %.1e", weft_dtype_name(dtype),
                         together ? "together" : "alone", i, off, copy);
        }
        trainer_close(&t);
    }
}

static void test_matrices_step_as_published(void **state) {
    (void)state;
    double *want[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        want[i] = make_reference(i);
#ifndef ON_GPU
    check_values(want, WEFT_F64, false, 1e-12);
#endif
    check_values(want, WEFT_F32, false, 1e-5);
    check_values(want, WEFT_F32, true, 2e-3);
    for (int i = 0; i < SLOTS; i++)
        free(want[i]);
}

static int count_nodes(const weft_graph *g, const char *op) {
    int count = 0;
    for (int64_t i = 0; i < weft_graph_node_count(g); i++)
        count += strcmp(weft_graph_node(g, i)->op->name, op) == 0;
    return count;
}

/* Of 4 shapes; bytes of X bound a batch, though not below a tensor's matrices; so many pieces are the
 * most. */
static void test_equal_shapes_go_together(void **state) {
    (void)state;
    static const struct {
        int64_t bytes;
        bool narrow;
        int batches;
    } wanted[] = {{0, false, 8},
                  {TOGETHER, false, 4},
                  {6 * 40 * 24 * 4, false, 6}, /* of the large ones no two */
                  {6 * 40 * 24 * 4 - 1, false, 7},
                  {6 * 40 * 24 * 2, true, 6}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        weft_muon_options o = {MOMENTUM, wanted[i].narrow, wanted[i].bytes};
        trainer t;
        trainer_open(&t, WEFT_F32, &o, 1);
        assert_int_equal(count_nodes(t.graph, "muon_direction"), wanted[i].batches);
        assert_int_equal(count_nodes(t.graph, "muon_step"), wanted[i].batches);
        assert_int_equal(count_nodes(t.graph, "matmul"), 15 * wanted[i].batches);
        trainer_close(&t);
    }
    enum { MANY = 2 * WEFT_MUON_PIECES + 1 };
    weft_graph *g;
    weft_adam_slot slots[MANY];
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *control =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "control", WEFT_F32, WEFT_ADAM_CONTROL);
    for (int i = 0; i < MANY; i++) {
        char name[3][32];
        weft_tensor *of[3];
        for (int k = 0; k < 3; k++) {
            snprintf(name[k], sizeof name[k], "%d.%d", i, k);
            of[k] = weft_new_tensor(g, WEFT_ROLE_STATE, name[k], WEFT_F32, 3, 5);
        }
        slots[i] = (weft_adam_slot){
            .param = of[0], .grad = of[1], .m = of[2], .matrices = {1, {{0, 1, 3, 5}}}};
    }
    weft_muon_options o = {MOMENTUM, false, TOGETHER};
    weft_muon(g, control, slots, MANY, &o);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(count_nodes(g, "muon_direction"), 3);
    weft_graph_destroy(g);
}

#ifndef ON_GPU
/* All that the steps leave behind, in one order. */
static char *collect(trainer *t, size_t *bytes) {
    char *out = NULL;
    *bytes = 0;
    for (int i = 0; i < SLOTS; i++) {
        const weft_tensor *all[] = {t->slot[i].param, t->slot[i].m, t->slot[i].copy};
        for (int k = 0; k < 3 && all[k]; k++) {
            size_t more = (size_t)weft_tensor_bytes(all[k]);
            out = realloc(out, *bytes + more);
            assert_int_equal(weft_exec_read(t->exec, all[k], out + *bytes), WEFT_OK);
            *bytes += more;
        }
    }
    return out;
}

static void check_bits(weft_dtype dtype, bool narrow) {
    const int64_t together[] = {0, 20000, 60000, TOGETHER};
    char *alone = NULL;
    size_t bytes = 0, more;
    for (int i = 0; i < 4; i++) {
        weft_muon_options o = {MOMENTUM, narrow, together[i]};
        trainer t;
        trainer_open(&t, dtype, &o, 1 + i);
        char *got = collect(&t, &more);
        trainer_close(&t);
        if (alone && (more != bytes || memcmp(alone, got, bytes) != 0))
            fail_msg("%s%s, %lld bytes together: other bits than alone", weft_dtype_name(dtype),
                     narrow ? " by bf16" : "", (long long)together[i]);
        if (alone) free(got);
        if (!alone) alone = got, bytes = more;
    }
    free(alone);
}

static void test_no_bit_depends_on_what_goes_together(void **state) {
    (void)state;
    check_bits(WEFT_F64, false);
    check_bits(WEFT_F32, false);
    check_bits(WEFT_F32, true);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices_step_as_published),
        cmocka_unit_test(test_equal_shapes_go_together),
#ifndef ON_GPU
        cmocka_unit_test(test_no_bit_depends_on_what_goes_together),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* AdamW, AdamWSPAM and Muon against the reference's trajectories (tests/reference/README.md has the rule
 * of a step), and what training relies on beside: resuming, bf16 gradients, skipped steps.
 * tests/cuda/test_optimizer.c is the same on the GPU, which has no f64. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/optimizer.h"
#include "support/table.h"
#include "support/vectors.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

enum { TENSORS = 2, PARTS = 6, MOST_VALUES = 4096 };

#ifdef ON_GPU
#define test_backend weft_cuda_backend
enum { LAST_DTYPE = WEFT_F32, NARROW = true };
#else
#define test_backend weft_cpu_backend
enum { LAST_DTYPE = WEFT_F64, NARROW = false };
#endif

/* Of Muon in f32. The reference with X, A and B rounded to bf16 strays by 6e-3 where the rate and the decay
 * are high, and by 1e-3 elsewhere. */
static const double MUON_TOLERANCE = 1e-4, NARROW_TOLERANCE = 1.5e-2;
static const double WIDE_TOLERANCE = 1e-13; /* of f64, always on the CPU */
static bool narrow_products = NARROW;

static const char *const tensor_names[TENSORS] = {"w", "b"};

/* A training of two parameters, `w` [R, C] and `b` [N], in f32 or f64. */
typedef struct {
    const case_line *line;
    weft_dtype dtype;
    bool bf16_grads; /* gradients and a copy of the parameters in bf16 */
    weft_graph *graph;
    weft_pool *pool;
    weft_exec *exec;
    weft_tensor *lr, *state, *control, *cut;
    weft_adam_slot slot[TENSORS];
} trainer;

static weft_adam_options options_of(const case_line *line) {
    bool spam = strcmp(line->name, "adamwspam") == 0;
    weft_adam_options o = {
        .beta1 = case_line_number(line, "beta1", 0.9),
        .beta2 = case_line_number(line, "beta2", 0.999),
        .eps = case_line_number(line, "eps", 1e-8),
        .weight_decay = case_line_number(line, "decay", 0.1),
        .clip = case_line_number(line, "clip", 1),
    };
    if (!spam) return o;
    o.spike_threshold = case_line_number(line, "threshold", 2);
    o.theta = case_line_number(line, "theta", 50);
    o.reset_interval = case_line_int(line, "interval", 20);
    o.warmup_steps = case_line_int(line, "warmup", 10);
    return o;
}

static bool uses_amsgrad(const case_line *line) {
    return case_line_int(line, "amsgrad", strcmp(line->name, "adamwspam") == 0);
}

static bool uses_muon(const case_line *line) {
    return strcmp(line->name, "muon") == 0;
}

/* The matrices of w, as the line says. */
static weft_muon_parts parts_of(const case_line *line) {
    int64_t rows = case_line_int(line, "R", 1), columns = case_line_int(line, "C", 1);
    int64_t first = case_line_int(line, "first", 0), count = case_line_int(line, "matrices", 1);
    weft_muon_parts parts = {0};
    if (first) parts.part[parts.n++] = (weft_matrices){0, 1, first, columns};
    parts.part[parts.n++] =
        (weft_matrices){first * columns, count, (rows - first) / count, columns};
    return parts;
}

static weft_tensor *state_like(trainer *t, const char *kind, int i, weft_dtype dtype,
                               const weft_tensor *like) {
    char name[32];
    snprintf(name, sizeof name, "%s.%s", tensor_names[i], kind);
    return weft_graph_tensor(t->graph, WEFT_ROLE_STATE, name, dtype, like->ndim, like->shape);
}

static void build_graph(trainer *t) {
    const case_line *line = t->line;
    weft_graph *g = t->graph;
    weft_tensor *grads[TENSORS];
    int64_t shape[TENSORS][2] = {{case_line_int(line, "R", 1), case_line_int(line, "C", 1)},
                                 {case_line_int(line, "N", 1)}};
    weft_dtype grad_dtype = t->bf16_grads ? WEFT_BF16 : t->dtype;
    for (int i = 0; i < TENSORS; i++) {
        weft_adam_slot *s = &t->slot[i];
        s->param =
            weft_graph_tensor(g, WEFT_ROLE_PARAM, tensor_names[i], t->dtype, TENSORS - i, shape[i]);
        assert_non_null(s->param);
        s->grad = grads[i] = state_like(t, "grad", i, grad_dtype, s->param);
        s->m = state_like(t, "m", i, t->dtype, s->param);
        if (i > 0 || !uses_muon(line)) s->v = state_like(t, "v", i, t->dtype, s->param);
        if (uses_amsgrad(line)) s->v_max = state_like(t, "vmax", i, t->dtype, s->param);
        if (t->bf16_grads) s->copy = state_like(t, "copy", i, WEFT_BF16, s->param);
    }
    t->lr = weft_graph_tensor(g, WEFT_ROLE_INPUT, "lr", t->dtype, 0, NULL);
    t->state = weft_new_tensor(g, WEFT_ROLE_STATE, "state", t->dtype, WEFT_ADAM_STATE);
    weft_adam_options options = options_of(line);
    t->control =
        weft_adam_control(g, weft_global_norm(g, grads, TENSORS), t->lr, t->state, &options);
    weft_muon_options muon = {WEFT_MUON_MOMENTUM, narrow_products, 1 << 20};
    if (uses_muon(line)) t->slot[0].matrices = parts_of(line);
    t->cut = weft_adamw(g, t->control, t->slot, TENSORS);
    weft_muon(g, t->control, t->slot, TENSORS, &muon);
}

/* Writes and reads a tensor's values as doubles. */
static void write_values(trainer *t, const weft_tensor *to, const double *values) {
    int64_t n = weft_tensor_count(to);
    char *raw = malloc((size_t)weft_tensor_bytes(to));
    for (int64_t i = 0; i < n; i++) {
        if (to->dtype == WEFT_F64)
            ((double *)raw)[i] = values[i];
        else if (to->dtype == WEFT_F32)
            ((float *)raw)[i] = (float)values[i];
        else
            ((uint16_t *)raw)[i] = weft_float_to_bf16((float)values[i]);
    }
    assert_int_equal(weft_exec_write(t->exec, to, raw), WEFT_OK);
    free(raw);
}

static void read_values(trainer *t, const weft_tensor *from, double *values) {
    int64_t n = weft_tensor_count(from);
    char *raw = malloc((size_t)weft_tensor_bytes(from));
    assert_int_equal(weft_exec_read(t->exec, from, raw), WEFT_OK);
    for (int64_t i = 0; i < n; i++) {
        if (from->dtype == WEFT_F64)
            values[i] = ((double *)raw)[i];
        else if (from->dtype == WEFT_F32)
            values[i] = ((float *)raw)[i];
        else if (from->dtype == WEFT_BF16)
            values[i] = weft_bf16_to_float(((uint16_t *)raw)[i]);
        else
            values[i] = ((int32_t *)raw)[i];
    }
    free(raw);
}

static void write_zeros(trainer *t, const weft_tensor *to) {
    double *zeros = calloc((size_t)weft_tensor_count(to), sizeof *zeros);
    write_values(t, to, zeros);
    free(zeros);
}

static void trainer_open(trainer *t, const case_line *line, weft_dtype dtype, int threads,
                         bool bf16_grads) {
    *t = (trainer){.line = line, .dtype = dtype, .bf16_grads = bf16_grads};
    const weft_backend *backend = dtype == WEFT_F64 ? weft_cpu_backend() : test_backend();
    if (!backend) {
        printf("%s\n", weft_error_message());
        skip();
    }
    assert_int_equal(weft_graph_create(&t->graph), WEFT_OK);
    build_graph(t);
    if (weft_graph_status(t->graph) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_int_equal(weft_pool_create(threads, &t->pool), WEFT_OK);
    weft_exec_options options = {.poison = true};
    if (weft_exec_create(t->graph, backend, t->pool, &options, &t->exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    double values[MOST_VALUES], lr = case_line_number(line, "lr", 0.01);
    for (int i = 0; i < TENSORS; i++) {
        int64_t n = weft_tensor_count(t->slot[i].param);
        assert_true(n <= MOST_VALUES);
        case_draw(line->hash, tensor_names[i], 1, n, values);
        write_values(t, t->slot[i].param, values);
        write_zeros(t, t->slot[i].m);
        if (t->slot[i].v) write_zeros(t, t->slot[i].v);
        if (t->slot[i].v_max) write_zeros(t, t->slot[i].v_max);
    }
    write_zeros(t, t->state);
    write_values(t, t->lr, &lr);
}

static void trainer_close(trainer *t) {
    weft_exec_destroy(t->exec);
    weft_pool_destroy(t->pool);
    weft_graph_destroy(t->graph);
}

static void write_grads(trainer *t, int64_t step) {
    double values[MOST_VALUES], scale = case_line_number(t->line, "g", 0.1);
    bool spikes = case_line_int(t->line, "spikes", 0);
    int64_t width = case_line_int(t->line, "C", 1);
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "g%lld.%s", (long long)step, tensor_names[i]);
        int64_t n = weft_tensor_count(t->slot[i].param);
        case_draw(t->line->hash, name, scale, n, values);
        if (i == 0 && step <= 3) memset(values + n - width, 0, (size_t)width * sizeof *values);
        for (int64_t k = 0; spikes && step % 17 == 0 && k < n; k++)
            values[k] *= 30;
        if (spikes && step % 13 == 5) values[0] *= 40;
        write_values(t, t->slot[i].grad, values);
    }
}

static void run_step(trainer *t, int64_t step) {
    write_grads(t, step);
    if (weft_exec_run(t->exec, &(weft_run){.iteration = (uint32_t)step}) != WEFT_OK)
        fail_msg("%s", weft_error_message());
}

/* The error of got against the reference's tensor, on the scale of its largest value: in f64 that of what is kept, and
 * the values are left for f32, where it is the largest of an element. */
static double error_of(vector *want, const double *got, weft_dtype dtype) {
    double gap = dtype == WEFT_F64 ? vector_gap(want, got) : 0, scale = 1e-300;
    size_t bytes = (size_t)want->count * sizeof *got;
    if (!want->data) {
        assert_int_equal(dtype, WEFT_F64);
        want->data = malloc(bytes);
        assert_non_null(want->data);
        memcpy(want->data, got, bytes);
    }
    for (int64_t i = 0; i < want->count; i++) {
        double d = fabs(got[i] - want->data[i]);
        gap = d <= gap ? gap : d;
        scale = fmax(scale, fabs(want->data[i]));
    }
    return gap == 0 ? 0 : gap / scale;
}

typedef struct {
    double worst;
    char where[64];
    int checked;
} comparison;

static void compare(comparison *c, const vectors *kept, const trainer *t, const char *name,
                    const double *got) {
    vector *want = vectors_find(kept, "%08x/%s", t->line->hash, name);
    if (!want) fail_msg("%s: the reference keeps no %s", t->line->text, name);
    double error = error_of(want, got, t->dtype);
    c->checked++;
    if (error <= c->worst) return;
    c->worst = error;
    snprintf(c->where, sizeof c->where, "%s", name);
}

static void compare_tensor(comparison *c, const vectors *kept, trainer *t, const char *name,
                           const weft_tensor *tensor) {
    double got[MOST_VALUES];
    read_values(t, tensor, got);
    compare(c, kept, t, name, got);
}

/* What a step reports, in the reference's terms. */
typedef struct {
    double norm[MOST_VALUES], scale[MOST_VALUES], events[MOST_VALUES], clipped[MOST_VALUES];
} step_log;

static void log_step(trainer *t, int64_t step, step_log *log) {
    double control[WEFT_ADAM_CONTROL], cut;
    read_values(t, t->control, control);
    read_values(t, t->cut, &cut);
    log->norm[step - 1] = control[WEFT_CONTROL_NORM];
    log->scale[step - 1] = control[WEFT_CONTROL_WARMUP];
    log->clipped[step - 1] = cut;
    log->events[step - 1] = control[WEFT_CONTROL_SPIKE] + 2 * control[WEFT_CONTROL_CLIPPED] +
                            4 * (cut > 0) + 8 * control[WEFT_CONTROL_RESET];
}

static void compare_end(comparison *c, const vectors *kept, trainer *t, const step_log *log) {
    for (int i = 0; i < TENSORS; i++) {
        const weft_tensor *parts[] = {t->slot[i].m, t->slot[i].v, t->slot[i].v_max};
        static const char *const names[] = {"m", "v", "vmax"};
        for (int k = 0; k < 3; k++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%s", tensor_names[i], names[k]);
            if (parts[k]) compare_tensor(c, kept, t, name, parts[k]);
        }
    }
    compare(c, kept, t, "norm", log->norm);
    compare(c, kept, t, "scale", log->scale);
    compare(c, kept, t, "events", log->events);
    compare(c, kept, t, "clipped", log->clipped);
}

static comparison follow_trajectory(const vectors *kept, const case_line *line, weft_dtype dtype) {
    comparison c = {0};
    trainer t;
    step_log *log = calloc(1, sizeof *log);
    trainer_open(&t, line, dtype, 1, false);
    int64_t steps = case_line_int(line, "STEPS", 1);
    for (int64_t s = 1; s <= steps; s++) {
        run_step(&t, s);
        log_step(&t, s, log);
        for (int i = 0; i < TENSORS && (s <= 3 || s % 10 == 0 || s == steps); i++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%lld", tensor_names[i], (long long)s);
            compare_tensor(&c, kept, &t, name, t.slot[i].param);
        }
    }
    compare_end(&c, kept, &t, log);
    trainer_close(&t);
    free(log);
    int have = vectors_begin(kept, NULL, "%08x/", line->hash);
    if (c.checked != have)
        fail_msg("%s: %d tensors compared, %d are kept", line->text, c.checked, have);
    return c;
}

static bool is_trajectory(const case_line *line) {
    return strncmp(line->name, "adamw", 5) == 0 || uses_muon(line);
}

static void follow_all(weft_dtype dtype) {
    vectors *kept = vectors_open("optimizer", NULL);
    assert_non_null(kept);
    case_line *lines;
    int n = case_lines_read("optimizer", &lines), followed = 0, failed = 0;
    double worst = 0;
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        if (!is_trajectory(&lines[i])) continue;
        comparison c = follow_trajectory(kept, &lines[i], WEFT_F64);
        double allowed = WIDE_TOLERANCE;
        if (dtype != WEFT_F64 && c.worst <= allowed) {
            c = follow_trajectory(kept, &lines[i], dtype);
            allowed = !uses_muon(&lines[i]) ? 1e-5
                      : narrow_products     ? NARROW_TOLERANCE
                                            : MUON_TOLERANCE;
        }
        worst = fmax(worst, c.worst);
        followed++;
        if (c.worst <= allowed) continue;
        print_error("%s: %s is off by %.2e of its largest value\n", lines[i].text, c.where,
                    c.worst);
        failed++;
    }
    case_lines_free(lines, n);
    vectors_close(kept);
    print_message("%d trajectories in %s, largest error %.1e\n", followed, weft_dtype_name(dtype),
                  worst);
    assert_true(followed > 40);
    assert_int_equal(failed, 0);
}

#ifndef ON_GPU
static void test_trajectories_are_the_references_in_f64(void **state) {
    (void)state;
    follow_all(WEFT_F64);
}
#endif

static void test_trajectories_are_the_references_in_f32(void **state) {
    (void)state;
    follow_all(WEFT_F32);
}

/* As on a GPU. */
static void test_products_in_bf16_stay_near(void **state) {
    (void)state;
    narrow_products = true;
    follow_all(WEFT_F32);
    narrow_products = NARROW;
}

/* The lines of the table that the tests below run, one after the other. */
static void with_lines(void (*run)(const case_line *line)) {
    static const char *const wanted[] = {"adamwspam STEPS=60 R=5 C=7 N=11 spikes=1",
                                         "muon STEPS=50 R=12 C=6 N=5 first=8 matrices=2"};
    case_line *lines;
    int n = case_lines_read("optimizer", &lines), found = 0;
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < n; i++)
            if (strcmp(lines[i].text, wanted[w]) == 0) run(&lines[i]), found++;
    case_lines_free(lines, n);
    assert_int_equal(found, 2);
}

/* All that a step leaves behind, as bytes in a fixed order. */
static int64_t collect(trainer *t, char *out) {
    int64_t at = 0;
    const weft_tensor *shared[] = {t->state, t->control, t->cut};
    for (int i = 0; i < TENSORS; i++) {
        const weft_adam_slot *s = &t->slot[i];
        const weft_tensor *parts[PARTS] = {s->param, s->m, s->v, s->v_max, s->copy};
        for (int k = 0; k < PARTS; k++) {
            if (!parts[k]) continue;
            assert_int_equal(weft_exec_read(t->exec, parts[k], out + at), WEFT_OK);
            at += weft_tensor_bytes(parts[k]);
        }
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_exec_read(t->exec, shared[i], out + at), WEFT_OK);
        at += weft_tensor_bytes(shared[i]);
    }
    return at;
}

static void move_tensor(trainer *from, const weft_tensor *a, trainer *to, const weft_tensor *b) {
    double values[MOST_VALUES];
    if (!a) return;
    read_values(from, a, values);
    write_values(to, b, values);
}

static void check_copied_state(const case_line *line) {
    for (int dtype = WEFT_F32; dtype <= LAST_DTYPE; dtype++) {
        trainer whole, resumed;
        trainer_open(&whole, line, (weft_dtype)dtype, 1, false);
        trainer_open(&resumed, line, (weft_dtype)dtype, 2, false);
        for (int64_t s = 1; s <= 25; s++)
            run_step(&whole, s);
        move_tensor(&whole, whole.state, &resumed, resumed.state);
        for (int i = 0; i < TENSORS; i++) {
            move_tensor(&whole, whole.slot[i].param, &resumed, resumed.slot[i].param);
            move_tensor(&whole, whole.slot[i].m, &resumed, resumed.slot[i].m);
            move_tensor(&whole, whole.slot[i].v, &resumed, resumed.slot[i].v);
            move_tensor(&whole, whole.slot[i].v_max, &resumed, resumed.slot[i].v_max);
        }
        static char a[1 << 16], b[1 << 16];
        for (int64_t s = 26; s <= 60; s++) {
            run_step(&whole, s);
            run_step(&resumed, s);
            int64_t bytes = collect(&whole, a);
            assert_int_equal(collect(&resumed, b), bytes);
            assert_memory_equal(a, b, (size_t)bytes);
        }
        trainer_close(&whole);
        trainer_close(&resumed);
    }
}

static void test_a_copied_state_continues_with_the_same_bits(void **state) {
    (void)state;
    with_lines(check_copied_state);
}

static void check_bf16(const case_line *line) {
    trainer wide, narrow;
    trainer_open(&wide, line, WEFT_F32, 1, false);
    trainer_open(&narrow, line, WEFT_F32, 1, true);
    for (int64_t s = 1; s <= 60; s++) {
        write_grads(&narrow, s);
        for (int i = 0; i < TENSORS; i++)
            move_tensor(&narrow, narrow.slot[i].grad, &wide, wide.slot[i].grad);
        assert_int_equal(weft_exec_run(wide.exec, NULL), WEFT_OK);
        assert_int_equal(weft_exec_run(narrow.exec, NULL), WEFT_OK);
        for (int i = 0; i < TENSORS; i++) {
            double a[MOST_VALUES], b[MOST_VALUES], copy[MOST_VALUES];
            read_values(&wide, wide.slot[i].param, a);
            read_values(&narrow, narrow.slot[i].param, b);
            read_values(&narrow, narrow.slot[i].copy, copy);
            for (int64_t k = 0; k < weft_tensor_count(wide.slot[i].param); k++) {
                assert_true(a[k] == b[k]);
                assert_true(copy[k] == weft_bf16_to_float(weft_float_to_bf16((float)b[k])));
            }
        }
    }
    trainer_close(&wide);
    trainer_close(&narrow);
}

static void test_bf16_gradients_and_copies_follow_the_rounded_values(void **state) {
    (void)state;
    with_lines(check_bf16);
}

static void check_skip(trainer *t, double bad) {
    static char before[1 << 16], after[1 << 16];
    double grad[MOST_VALUES] = {0}, control[WEFT_ADAM_CONTROL], counters[WEFT_ADAM_STATE], skips;
    int64_t bytes = collect(t, before) - weft_tensor_bytes(t->control) - weft_tensor_bytes(t->cut);
    read_values(t, t->state, counters);
    skips = counters[WEFT_ADAM_SKIPS];
    grad[3] = bad;
    write_values(t, t->slot[1].grad, grad);
    assert_int_equal(weft_exec_run(t->exec, NULL), WEFT_OK);
    read_values(t, t->control, control);
    assert_true(control[WEFT_CONTROL_SKIPPED] == 1 && control[WEFT_CONTROL_APPLY] == 0);
    /* But for its counter of skips the state is what it was. */
    read_values(t, t->state, counters);
    assert_true(counters[WEFT_ADAM_SKIPS] == skips + 1);
    counters[WEFT_ADAM_SKIPS] = skips;
    write_values(t, t->state, counters);
    collect(t, after);
    assert_memory_equal(before, after, (size_t)bytes);
}

static void check_skips(const case_line *line) {
    for (int dtype = WEFT_F32; dtype <= LAST_DTYPE; dtype++) {
        trainer t;
        trainer_open(&t, line, (weft_dtype)dtype, 1, false);
        check_skip(&t, NAN);
        for (int64_t s = 1; s <= 12; s++)
            run_step(&t, s);
        check_skip(&t, NAN);
        check_skip(&t, INFINITY);
        check_skip(&t, -INFINITY);
        run_step(&t, 13);
        double counters[WEFT_ADAM_STATE];
        read_values(&t, t.state, counters);
        assert_true(counters[WEFT_ADAM_STEPS] == 13);
        trainer_close(&t);
    }
}

static void test_a_gradient_that_is_not_finite_skips_the_step(void **state) {
    (void)state;
    with_lines(check_skips);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef ON_GPU
        cmocka_unit_test(test_trajectories_are_the_references_in_f64),
#endif
        cmocka_unit_test(test_trajectories_are_the_references_in_f32),
        cmocka_unit_test(test_products_in_bf16_stay_near),
        cmocka_unit_test(test_a_copied_state_continues_with_the_same_bits),
        cmocka_unit_test(test_bf16_gradients_and_copies_follow_the_rounded_values),
        cmocka_unit_test(test_a_gradient_that_is_not_finite_skips_the_step),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}

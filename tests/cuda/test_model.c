/* Whole models on the GPU: every config of tests/model/configs against the CPU in f64, and against
 * itself bit for bit; and what the seam promises beside numbers: bad tokens are told as the CPU
 * tells them, and the memory taken is the plan's.
 *
 *   WEFT_CASES=text   only configs that hold it
 *   WEFT_QUICK=1      one of ten */
#include "cuda/backend.h"
#include "support/model_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void skip_without_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

/* ‖got − want‖ as a share of ‖want‖, which counts as at least `floor` for each element. */
static double share_off(const double *got, const double *want, int64_t n, double floor) {
    double size = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        size += want[i] * want[i];
        off += (got[i] - want[i]) * (got[i] - want[i]);
    }
    double share = sqrt(off) / fmax(sqrt(size), floor * sqrt((double)n));
    return isnan(share) ? INFINITY : share;
}

/* The worst over the logits and all gradients; `name` gets whose it is. */
static void find_worst(const model_run *gpu, const model_run *cpu, double *logits,
                       double *gradients, char *name, size_t room) {
    int64_t n = weft_tensor_count(cpu->session.graph.logits);
    double *want = model_run_values(cpu, cpu->session.graph.logits, n);
    double *got = model_run_values(gpu, gpu->session.graph.logits, n);
    *logits = share_off(got, want, n, 1);
    *gradients = 0;
    free(want);
    free(got);
    for (int64_t i = 0; i < cpu->session.graph.n_parameters; i++) {
        const weft_tensor *p = cpu->session.graph.parameters[i].tensor;
        const weft_tensor *q = gpu->session.graph.parameters[i].tensor;
        n = weft_tensor_count(p);
        want = model_run_values(cpu, p->grad, n);
        got = model_run_values(gpu, q->grad, n);
        double share = share_off(got, want, n, 1e-6);
        if (share > *gradients) {
            *gradients = share;
            snprintf(name, room, "%s", p->name);
        }
        free(want);
        free(got);
    }
}

static void compare_loss(const model_run *gpu, const model_run *cpu, double allowed) {
    double got = model_run_number(gpu, gpu->session.graph.loss);
    double want = model_run_number(cpu, cpu->session.graph.loss);
    if (!(fabs(got - want) <= allowed * fmax(1, fabs(want))))
        fail_msg("the loss is %.9g, the CPU has %.9g", got, want);
}

static void test_f32_equals_the_cpu(void **state) {
    skip_without_gpu();
    model_case c;
    model_run gpu, cpu;
    double logits, gradients;
    char name[160] = "";
    model_case_open(&c, *state);
    model_run_options options = {.dtype = WEFT_F64, .train = true, .grads = true};
    model_run_open(&cpu, &c, &options);
    options.dtype = WEFT_F32;
    options.backend = weft_cuda_backend();
    model_run_open(&gpu, &c, &options);
    compare_loss(&gpu, &cpu, 2e-5);
    find_worst(&gpu, &cpu, &logits, &gradients, name, sizeof name);
    if (!(logits <= 2e-5)) fail_msg("the logits are off by %.3g of their size", logits);
    if (!(gradients <= 4e-4))
        fail_msg("the gradient of %s is off by %.3g of its size", name, gradients);
    model_run_close(&gpu);
    model_run_close(&cpu);
    model_case_close(&c);
}

/* All gradients and the loss, one after the other; malloc'd. */
static double *take_all(const model_run *r, int64_t *count) {
    *count = 1;
    for (int64_t i = 0; i < r->session.graph.n_parameters; i++)
        *count += weft_tensor_count(r->session.graph.parameters[i].tensor);
    double *all = malloc((size_t)*count * sizeof *all), *at = all;
    assert_non_null(all);
    *at++ = model_run_number(r, r->session.graph.loss);
    for (int64_t i = 0; i < r->session.graph.n_parameters; i++) {
        const weft_tensor *p = r->session.graph.parameters[i].tensor;
        int64_t n = weft_tensor_count(p);
        double *values = model_run_values(r, p->grad, n);
        memcpy(at, values, (size_t)n * sizeof *at);
        at += n;
        free(values);
    }
    return all;
}

static void expect_same(const model_run *r, const double *want, int64_t count, const char *what) {
    int64_t n;
    double *got = take_all(r, &n);
    assert_int_equal(n, count);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0) fail_msg("%s has other bits", what);
    free(got);
}

/* Kernel by kernel, captured, replayed, and in another executor. */
static void test_every_run_has_the_same_bits(void **state) {
    skip_without_gpu();
    model_case c;
    model_run one, other;
    int64_t count;
    model_case_open(&c, *state);
    model_run_options options = {
        .dtype = WEFT_BF16, .train = true, .grads = true, .backend = weft_cuda_backend()};
    model_run_open(&one, &c, &options);
    double *first = take_all(&one, &count);
    model_run_again(&one, c.tokens, c.targets);
    expect_same(&one, first, count, "the captured run");
    model_run_again(&one, c.tokens, c.targets);
    expect_same(&one, first, count, "the replayed run");
    model_run_open(&other, &c, &options);
    expect_same(&other, first, count, "another executor's run");
    model_run_close(&other);
    /* The latent mechanism makes its hidden activations again by itself, and rounds them before
     * gelu then, which layers that are made again as a whole do not. */
    options.recompute = !c.config.latent_recip;
    model_run_open(&other, &c, &options);
    expect_same(&other, first, count, "a run that makes layers again");
    model_run_close(&other);
    model_run_close(&one);
    model_case_close(&c);
    free(first);
}

/* The same line as the CPU's, and the executor still works afterwards. */
static void test_bad_token_is_told_as_on_the_cpu(void **state) {
    (void)state;
    skip_without_gpu();
    model_case c;
    model_run gpu, cpu;
    char want[512];
    model_case_open(&c, "dot-learned");
    model_run_open(&cpu, &c, &(model_run_options){.dtype = WEFT_F32});
    model_run_open(&gpu, &c,
                   &(model_run_options){.dtype = WEFT_F32, .backend = weft_cuda_backend()});
    double loss = model_run_number(&gpu, gpu.session.graph.loss);
    int32_t kept = c.tokens[c.time + 1];
    c.tokens[c.time + 1] = (int32_t)c.config.vocab_size;
    assert_int_equal(weft_session_run(&cpu.session, c.tokens, c.targets, NULL), WEFT_EINPUT);
    snprintf(want, sizeof want, "%s", weft_error_message());
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_session_run(&gpu.session, c.tokens, c.targets, NULL), WEFT_EINPUT);
        assert_string_equal(weft_error_message(), want);
    }
    c.tokens[c.time + 1] = kept;
    model_run_again(&gpu, c.tokens, c.targets);
    assert_true(model_run_number(&gpu, gpu.session.graph.loss) == loss);
    model_run_close(&gpu);
    model_run_close(&cpu);
    model_case_close(&c);
}

/* By the driver's own count, within 3% of a plan of a gigabyte or so. */
static void test_memory_taken_is_the_plan(void **state) {
    (void)state;
    skip_without_gpu();
    weft_config c;
    weft_model *m;
    weft_pool *pool;
    weft_session s;
    weft_config_defaults(&c);
    c.n_layer = 4;
    c.context = 1024;
    assert_int_equal(weft_model_create(&c, WEFT_BF16, NULL, &m), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_build build = {.batch = 4, .time = 1024, .dtype = WEFT_BF16, .train = true};
    int64_t before = weft_cuda_bytes_taken();
    if (weft_session_open(m, weft_cuda_backend(), pool, &build, true, false, &s) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    int32_t *tokens = calloc(4 * 1024, sizeof *tokens);
    for (int i = 0; i < 3; i++)
        assert_int_equal(weft_session_run(&s, tokens, tokens, NULL), WEFT_OK);
    double taken = (double)(weft_cuda_bytes_taken() - before);
    double planned = (double)(weft_exec_plan(s.exec)->arena_bytes + m->memory_bytes);
    printf("note: memory planned %.1f MiB, taken %.1f MiB\n", planned / 0x1p20, taken / 0x1p20);
    assert_true(fabs(taken - planned) <= 0.03 * planned + 0x1p26);
    free(tokens);
    weft_session_close(&s);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

static bool is_wanted(const char *name, int i) {
    const char *filter = getenv("WEFT_CASES");
    if (filter && *filter && !strstr(name, filter)) return false;
    return !test_is_quick() || i % 10 == 0;
}

int main(void) {
    char **names;
    int n = model_case_names(&names), count = 0;
    struct CMUnitTest *tests = calloc(2 * (size_t)n + 2, sizeof *tests);
    char(*titles)[160] = calloc(2 * (size_t)n + 2, sizeof *titles);
    for (int i = 0; i < n; i++) {
        if (!is_wanted(names[i], i)) continue;
        snprintf(titles[count], sizeof *titles, "%s in f32 equals the CPU", names[i]);
        tests[count] =
            (struct CMUnitTest){titles[count], test_f32_equals_the_cpu, NULL, NULL, names[i]};
        count++;
        snprintf(titles[count], sizeof *titles, "%s: every run has the same bits", names[i]);
        tests[count] = (struct CMUnitTest){titles[count], test_every_run_has_the_same_bits, NULL,
                                           NULL, names[i]};
        count++;
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_bad_token_is_told_as_on_the_cpu);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_memory_taken_is_the_plan);
    int failed = _cmocka_run_group_tests("cuda models", tests, (size_t)count, NULL, NULL);
    model_case_names_free(names, n);
    free(titles);
    free(tests);
    return failed ? 1 : 0;
}

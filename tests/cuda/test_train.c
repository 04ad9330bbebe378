/* Training on the GPU: it learns what the CPU learns, and a run that is cut in two ends on the same
 * bits. */
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "model/account.h"
#include "support/command.h"
#include "support/train_run.h"
#include "train/loop.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 300, QUICK_STEPS = 30 };

static void skip_without_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static bool is_quick(void) {
    const char *quick = getenv("WEFT_QUICK");
    return quick && *quick;
}

/* One run; `keys` ends on NULL: KEY=VALUE. */
static weft_train_result run(const weft_backend *backend, const char *config, const char *out,
                             int64_t steps, bool resume, const char *const *keys) {
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_config_defaults(&c);
    assert_int_equal(weft_config_read(&c, config), WEFT_OK);
    for (; *keys; keys++)
        if (weft_config_override(&c, *keys, "test") != WEFT_OK)
            fail_msg("%s", weft_error_message());
    c.gpt2_max_iters = steps;
    assert_int_equal(weft_pool_create(0, &pool), WEFT_OK);
    weft_train_options options = {.out = out, .resume = resume};
    if (weft_train(&c, backend, pool, &options, &result) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    weft_pool_destroy(pool);
    return result;
}

/* The mean loss of the last third of a run's logged steps. */
static double mean_loss(const char *out) {
    char path[400], *text, *line, *rest = NULL;
    double losses[4096], sum = 0;
    int n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    text = file_read(path, NULL);
    for (line = strtok_r(text, "\n", &rest); line && n < 4096; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = json_loads(line, 0, NULL);
        const json_t *loss = json_object_get(row, "loss");
        if (json_is_number(loss)) losses[n++] = json_number_value(loss);
        json_decref(row);
    }
    free(text);
    assert_true(n >= 3);
    int last = n / 3;
    for (int i = n - last; i < n; i++)
        sum += losses[i];
    return sum / last;
}

/* At the demo's own rate, 1e-2, two runs that differ in their last bits part by 5% where the loss
 * falls steeply, so this has a config of its own. */
static void test_bf16_tracks_the_cpu_in_f32(void **state) {
    (void)state;
    skip_without_gpu();
    int64_t steps = is_quick() ? QUICK_STEPS : STEPS;
    char a[300], b[300];
    snprintf(a, sizeof a, "%s", scratch_path("cpu"));
    snprintf(b, sizeof b, "%s", scratch_path("gpu"));
    weft_train_result cpu = run(weft_cpu_backend(), "tests/cuda/text.config", a, steps, false,
                                (const char *[]){"GPT2_LOG_INTERVAL=1", NULL});
    weft_train_result gpu = run(weft_cuda_backend(), "tests/cuda/text.config", b, steps, false,
                                (const char *[]){"GPT2_LOG_INTERVAL=1", "DTYPE=bf16", NULL});
    double want = mean_loss(a), got = mean_loss(b);
    printf("note: loss after %lld steps: CPU f32 %.4f, GPU bf16 %.4f; held out %.4f, %.4f; "
           "%.0f and %.0f tokens/s\n",
           (long long)steps, want, got, cpu.val_loss, gpu.val_loss, cpu.tokens_per_s,
           gpu.tokens_per_s);
    assert_true(fabs(got - want) <= 0.01 * want);
    assert_true(fabs(gpu.val_loss - cpu.val_loss) <= 0.01 * cpu.val_loss);
}

static void test_resumed_run_ends_on_the_same_bits(void **state) {
    (void)state;
    skip_without_gpu();
    char config[256], a[300], b[300];
    static const char *const keys[] = {"DTYPE=bf16", "LR_SCHEDULE=constant", NULL};
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    snprintf(a, sizeof a, "%s", scratch_path("whole"));
    snprintf(b, sizeof b, "%s", scratch_path("legs"));
    train_config(config);
    run(weft_cuda_backend(), config, a, 9, false, keys);
    run(weft_cuda_backend(), config, b, 5, false, keys);
    run(weft_cuda_backend(), config, b, 9, true, keys);
    train_same_end(a, b);
}

static int64_t planned_bytes(const char *path, const char *const *keys) {
    weft_config c;
    weft_account plan;
    weft_config_defaults(&c);
    assert_int_equal(weft_config_read(&c, path), WEFT_OK);
    for (; *keys; keys++)
        assert_int_equal(weft_config_override(&c, *keys, "test"), WEFT_OK);
    if (weft_account_make(&c, weft_cuda_backend(), 1, &plan) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    return plan.training_bytes;
}

/* Layers that are made again take less memory and change no bit, dropout's draws included. */
static void test_recomputed_layers_end_on_the_same_bits(void **state) {
    (void)state;
    skip_without_gpu();
    char config[256], a[300], b[300];
    static const char *const stored[] = {"DTYPE=bf16", NULL};
    static const char *const again[] = {"DTYPE=bf16", "RECOMPUTE=y", NULL};
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    snprintf(a, sizeof a, "%s", scratch_path("stored"));
    snprintf(b, sizeof b, "%s", scratch_path("again"));
    train_config(config);
    run(weft_cuda_backend(), config, a, 9, false, stored);
    run(weft_cuda_backend(), config, b, 9, false, again);
    train_same_end(a, b);
    assert_true(planned_bytes("tests/cuda/text.config", again) <
                planned_bytes("tests/cuda/text.config", stored));
}

/* What does not fit is refused before anything is taken, with what would. */
static void test_run_that_does_not_fit_is_refused(void **state) {
    (void)state;
    skip_without_gpu();
    char config[256];
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    train_config(config);
    command_fails(1,
                  RUN("train", "--config", config, "--out", scratch_path("large"), "--device",
                      "cuda", "-o", "N_EMBD=1024", "-o", "N_LAYER=24", "-o", "BATCH_SIZE=4096",
                      "-o", "MICRO_BATCH=4096", "-o", "GPT2_BLOCK_SIZE=1024"),
                  SAYS("GiB", "MICRO_BATCH="));
}

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    return 0;
}

static int close_scratch(void **state) {
    (void)state;
    scratch_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_tracks_the_cpu_in_f32),
        cmocka_unit_test(test_resumed_run_ends_on_the_same_bits),
        cmocka_unit_test(test_recomputed_layers_end_on_the_same_bits),
        cmocka_unit_test(test_run_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, open_scratch, close_scratch);
}

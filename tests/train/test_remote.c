/* Training on a backend whose memory the host cannot read, without one: the CPU's kernels over
 * memory that only upload and download may touch. Whoever reads the host's side too early, forgets
 * to say what it wrote, or adds gradients in another order, ends on other bits than the CPU. */
#include "cpu/backend.h"
#include "model/verify.h"
#include "support/command.h"
#include "support/lost_copies.h"
#include "support/remote.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/loop.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *prune = "none";

static weft_backend make_remote(void) {
    weft_backend remote = *weft_cpu_backend();
    remote.name = "remote";
    remote.remote = true;
    remote.rows = remote_backend()->rows;
    return remote;
}

static weft_train_result run(const weft_backend *backend, const char *out, const char *dtype,
                             const char *micro, int64_t steps, bool resume) {
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_config_defaults(&c);
    expect_ok(weft_config_read(&c, config_path));
    expect_ok(weft_config_set(&c, "DTYPE", dtype, "test"));
    expect_ok(weft_config_set(&c, "MICRO_BATCH", micro, "test"));
    expect_ok(weft_config_set(&c, "LR_SCHEDULE", "constant", "test"));
    expect_ok(weft_config_set(&c, "PRUNE", prune, "test"));
    c.prune_start = 1;
    c.prune_end = 7;
    c.prune_interval = 2;
    c.steps = steps;
    expect_ok(weft_pool_create(1, &pool));
    weft_train_options options = {.out = out, .resume = resume};
    expect_ok(weft_train(&c, backend, pool, &options, &result));
    weft_pool_destroy(pool);
    return result;
}

/* The CPU, and the same on the other side in two legs. */
static void compare(const char *name, const char *dtype, const char *micro) {
    weft_backend remote = make_remote();
    const char *a = scratch_path("%s-cpu", name);
    const char *b = scratch_path("%s-remote", name);
    weft_train_result here = run(weft_cpu_backend(), a, dtype, micro, 9, false);
    run(&remote, b, dtype, micro, 5, false);
    weft_train_result there = run(&remote, b, dtype, micro, 9, true);
    assert_true(here.parts.loss == there.parts.loss);
    assert_true(here.val_loss == there.val_loss);
    train_same_end(a, b);
}

TEST(test_remote_run_ends_on_the_same_bits) {
    compare("f32", "f32", "2");
    compare("bf16", "bf16", "1");
}

TEST(test_remote_run_without_micro_batches_does_too) {
    compare("whole", "bf16", "0");
}

/* Masks are made on the host, from weights and state that steps change on the other side. */
TEST(test_remote_run_is_pruned_alike) {
    prune = "state";
    compare("pruned", "bf16", "2");
    prune = "movement";
    compare("moved", "f32", "2");
    prune = "none";
}

static uint32_t choices = 0x1234;

static uint32_t tell_choices(void) {
    return choices;
}

/* What is written to standard error while a run goes on to `steps`. */
static char *log_of_resumed(const weft_backend *backend, const char *out, int64_t steps) {
    const char *path = scratch_path("log");
    int kept = dup(STDERR_FILENO), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(kept >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    close(file);
    run(backend, out, "f32", "2", steps, true);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    return file_read(path, NULL);
}

static void expect_choices(const char *out, const char *want) {
    json_t *state = json_load_file(scratch_path("%s/last/state.json", out), 0, NULL);
    const char *is = json_string_value(json_object_get(state, "algorithms"));
    assert_non_null(is);
    assert_string_equal(is, want);
    json_decref(state);
}

/* A checkpoint knows what the backend chose for a step; where it chooses otherwise when the run goes
 * on, a line says so, once. */
TEST(test_other_choices_are_told) {
    weft_backend remote = make_remote();
    remote.choices = tell_choices;
    const char *out = scratch_path("choices");
    run(&remote, out, "f32", "2", 2, false);
    expect_choices("choices", "00001234");
    WEFT_AUTO_FREE char *same = log_of_resumed(&remote, out, 4);
    assert_null(strstr(same, "other algorithms"));
    choices = 0xabcd;
    WEFT_AUTO_FREE char *other = log_of_resumed(&remote, out, 6);
    assert_non_null(
        strstr(other, "other algorithms for its matrix products (00001234, now 0000abcd)"));
    expect_choices("choices", "0000abcd");
    WEFT_AUTO_FREE char *again = log_of_resumed(&remote, out, 8);
    assert_null(strstr(again, "other algorithms"));
}

static void break_weight(void *context, int64_t step, weft_model *m) {
    (void)context;
    float *value = weft_model_find(m, "ln_f.weight")->data;
    static float kept;
    if (step == 2) kept = *value;
    if (step == 2) *value = NAN;
    if (step == 3) *value = kept;
}

/* What the host changes between steps reaches the other side, and a bad weight there is found. */
TEST(test_changes_by_the_host_arrive) {
    weft_backend remote = make_remote();
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_config_defaults(&c);
    expect_ok(weft_config_read(&c, config_path));
    c.steps = 6;
    expect_ok(weft_pool_create(1, &pool));
    weft_train_options options = {.out = scratch_path("broken"), .before_step = break_weight};
    expect_ok(weft_train(&c, &remote, pool, &options, &result));
    assert_int_equal(result.skipped, 1);
    assert_true(isfinite(result.parts.loss));
    weft_pool_destroy(pool);
}

static weft_status lose_copy(void *to, int64_t bytes) {
    memset(to, 0x3c, (size_t)bytes / 2); /* it may have begun */
    return weft_fail(WEFT_EIO, "remote: the device is lost");
}

TEST(test_a_device_that_is_lost_leaves_the_last_checkpoint) {
    weft_backend remote = make_remote();
    lost_copies_check(&remote, lose_copy, config_path, "remote: the device is lost");
}

/* The self-check, whose gradients are then held to f32's differences. */
TEST(test_self_check_passes) {
    weft_backend remote = make_remote();
    weft_pool *pool;
    expect_ok(weft_pool_create(1, &pool));
    for (int block = 0; block < weft_verify_count; block++)
        for (int check = 0; check < WEFT_VERIFY_CHECKS; check++)
            if (weft_verify_run(block, (weft_verify_check)check, &remote, pool) != WEFT_OK)
                fail_msg("%s: %s: %s", weft_verify_blocks[block].name,
                         weft_verify_check_names[check], weft_error_message());
    weft_pool_destroy(pool);
}

RUN_TESTS(train_setup, scratch_teardown)

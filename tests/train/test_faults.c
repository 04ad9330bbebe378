/* What goes wrong in a run, on purpose: a full disk, a damaged checkpoint, numbers that are not
 * finite, signals. Each ends on one clear line and leaves the last good checkpoint as it was. */
#include "cpu/backend.h"
#include "support/command.h"
#include "support/fault.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/loop.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *folder(const char *name) {
    return scratch_path("%s", name);
}

static void train_steps(const char *out, const char *iterations) {
    SUCCEEDS("train", "--config", config_path, "--out", out, "-o", iterations);
}

/* The last line of a file begins with "weft train: " and holds a word. */
static void last_line_says(const char *path, const char *word) {
    WEFT_AUTO_FREE char *text = file_read(path, NULL);
    size_t n = strlen(text);
    if (n && text[n - 1] == '\n') text[n - 1] = 0;
    char *line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    if (strncmp(line, "weft train: ", 12) != 0 || !strstr(line, word))
        fail_msg("not a line with '%s': %s", word, line);
}

TEST(test_full_disk_leaves_the_last_checkpoint) {
    train_need_limit();
    /* A constant rate, so that a run in two legs is the whole run. */
    const char *rate = "LR_SCHEDULE=constant";
    SUCCEEDS("train", "--config", config_path, "--out", folder("full"), "-o", rate, "-o",
             "STEPS=4");
    size_t bytes, after;
    WEFT_AUTO_FREE char *before = file_read(scratch_path("full/last/model.safetensors"), &bytes);
    const char *const *again = RUN("train", "--config", config_path, "--out", scratch_path("full"),
                                   "-o", rate, "--resume");
    /* Room for lines, but not for a checkpoint's tensors. */
    assert_int_equal(train_wait(train_start(again, folder("err"), (long)bytes / 2)), 1);
    last_line_says(folder("err"), "File too large");
    WEFT_AUTO_FREE char *now = file_read(scratch_path("full/last/model.safetensors"), &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(before, now, bytes);
    assert_int_not_equal(access(scratch_path("full/last.new"), F_OK), 0);
    /* With room again it goes on as if nothing had been. */
    SUCCEEDS("train", "--config", config_path, "--out", folder("full"), "-o", rate, "--resume");
    SUCCEEDS("train", "--config", config_path, "--out", folder("roomy"), "-o", rate);
    train_same_file(folder("full"), folder("roomy"), "last/model.safetensors");
}

TEST(test_full_disk_under_the_metrics_is_told) {
    train_need_limit();
    /* Room for the run's config, and not for a row of each step; the events are the longer ones. */
    pid_t child =
        train_start(RUN("train", "--config", config_path, "--out", folder("lines"), "-o",
                        "CHECKPOINT_INTERVAL=1000", "-o", "EVAL_INTERVAL=1000", "-o", "STEPS=500"),
                    folder("err"), 20000);
    assert_int_equal(train_wait(child), 1);
    last_line_says(folder("err"), "events.out");
    fault_need();
    fault f = {.calls = "write", .path = "metrics.jsonl", .nth = 3, .error = ENOSPC};
    command_result r =
        fault_run(&f, RUN("train", "--config", config_path, "--out", folder("rows")), NULL);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "metrics.jsonl: No space left on device"));
    command_free(&r);
}

TEST(test_damaged_checkpoint_is_refused) {
    train_steps(folder("hurt"), "STEPS=2");
    const char *const *again =
        RUN("train", "--config", config_path, "--out", scratch_path("hurt"), "--resume");
    const char *path = scratch_path("hurt/last/optimizer.safetensors");
    size_t bytes;
    WEFT_AUTO_FREE char *whole = file_read(path, &bytes);
    assert_int_equal(truncate(path, (off_t)bytes / 2), 0);
    command_fails(2, again, SAYS("optimizer.safetensors", "bytes"));
    whole[bytes - 1] ^= 1;
    file_write(path, whole, bytes);
    command_fails(2, again, SAYS("optimizer.safetensors", "checksum"));
    whole[bytes - 1] ^= 1;
    file_write(path, whole, bytes);
    command_succeeds(again, NULL);
    assert_int_equal(truncate(scratch_path("hurt/last/state.json"), 20), 0);
    command_fails(2, again, SAYS("state.json"));
}

TEST(test_vocabulary_must_fit) {
    FAILS(2, SAYS("vocabulary", "256", "CONFIG_VOCAB_SIZE", "100"), "train", "--config",
          config_path, "--out", folder("small"), "-o", "VOCAB_SIZE=100");
    FAILS(2, SAYS("/nowhere/at/all"), "train", "--config", config_path, "--out", folder("nodata"),
          "-o", "DATASET=/nowhere/at/all");
}

static void stop_by(int number) {
    const char *out = scratch_path("signal%d", number);
    const char *err = scratch_path("err%d", number);
    pid_t child = train_start(RUN("train", "--config", config_path, "--out", out, "-o",
                                  "STEPS=1000000", "-o", "CHECKPOINT_INTERVAL=1000000"),
                              err, 0);
    train_wait_text(scratch_path("signal%d/metrics.jsonl", number), "\n"); /* a step is done */
    FAILS(2, SAYS("another process"), "train", "--config", config_path, "--out", out, "--resume",
          "-o", "STEPS=1000000");
    kill(child, number);
    assert_int_equal(train_wait(child), 1);
    last_line_says(err, "--resume");
    assert_int_equal(access(format_text("%s/last/state.json", out), R_OK), 0);
}

TEST(test_signals_save_and_stop) {
    stop_by(SIGINT);
    stop_by(SIGTERM);
    stop_by(SIGHUP);
}

/* Sends signals to a run with a step of minutes; its exit status. */
static int signal_twice(long wait_ms) {
    int status = 0;
    const char *out = scratch_path("twice%ld", wait_ms);
    pid_t child =
        train_start(RUN("train", "--config", config_path, "--out", out, "-o", "BATCH_SIZE=1000000"),
                    folder("err"), 0);
    const char *events = format_text("%s/events.out.tfevents.0000000000.weft", out);
    for (int i = 0; i < 60000 && access(events, F_OK); i++)
        pause_ms(2);
    pause_ms(wait_ms);
    /* On a busy machine two that come close together are one. */
    for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; i++) {
        kill(child, SIGINT);
        pause_ms(50);
    }
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* One that comes before the first step has begun ends the run by itself. */
TEST(test_second_signal_ends_at_once) {
    int status = 1;
    for (long wait_ms = 50; status == 1 && wait_ms < 10000; wait_ms *= 3)
        status = signal_twice(wait_ms);
    assert_int_equal(status, 128 + SIGINT);
}

/* From the last checkpoint to the end: what a run tells then is found again by one that goes on after a kill, and a
 * signal comes too late to stop anything. */
TEST(test_what_a_run_tells_at_its_end_is_not_lost) {
    enum { KILL = 0 };
    static const fault cuts[] = {{.calls = "mkdir", .path = "last.new", .error = KILL},
                                 {.calls = "open", .path = ".saved", .error = KILL},
                                 {.calls = "open", .path = "result.json", .error = KILL},
                                 {.calls = "open", .path = ".saved", .error = FAULT_SIGNAL},
                                 {.calls = "open", .path = "result.json", .error = FAULT_SIGNAL}};
#define RECALL(out)                                                                                \
    "train", "--config", config_path, "--out", out, "-o", "DATASET=recall", "-o",                  \
        "VOCAB_SIZE=1024", "-o", "STEPS=2", "-o", "CHECKPOINT_INTERVAL=100", "-o",                 \
        "EVAL_POSITIONS=y", "-o", "EVAL_INSIDE=y", "--peak-flops", "0"
    fault_need();
    SUCCEEDS(RECALL(folder("told")));
    WEFT_AUTO_DECREF json_t *told = train_result(folder("told"));
    assert_true(json_is_real(json_object_get(told, "recall_accuracy")));
    assert_true(json_is_real(json_object_get(json_object_get(told, "facts"), "loss_at_16_23")));
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        fault f = cuts[i];
        f.nth = 1;
        const char *out = format_text("%s-%zu", folder("cut"), i);
        command_result r = fault_run(&f, RUN(RECALL(out)), NULL);
        assert_int_equal(r.status, f.error == KILL ? -1 : 0);
        command_free(&r);
        if (f.error == KILL) SUCCEEDS("train", "--resume", "--out", out, "--peak-flops", "0");
        WEFT_AUTO_DECREF json_t *result = train_result(out);
        if (!json_equal(told, result)) fail_msg("%zu: %s", i, json_dumps(result, 0));
    }
}

/* A run that its deadline ended has no more steps to do, also where it was killed just then. */
TEST(test_a_kill_after_the_deadline_leaves_a_run_that_is_done) {
    fault f = {.calls = "open", .path = ".saved", .nth = 1};
    fault_need();
    command_result r =
        fault_run(&f,
                  RUN("train", "--config", config_path, "--out", folder("late"), "--minutes",
                      "0.01", "-o", "STEPS=1000000000", "-o", "EVAL_INTERVAL=1000000000", "-o",
                      "CHECKPOINT_INTERVAL=1000000000"),
                  NULL);
    assert_int_equal(r.status, -1);
    command_free(&r);
    WEFT_AUTO_DECREF json_t *line = train_last_metrics(folder("late"));
    SUCCEEDS("train", "--resume", "--out", folder("late"), "--minutes", "0.01");
    WEFT_AUTO_DECREF json_t *result = train_result(folder("late"));
    assert_true(json_equal(json_object_get(line, "step"), json_object_get(result, "step")));
}

/* Runs within this process, with a hook that breaks a weight in some steps and mends it. */
typedef struct {
    int64_t from, to; /* the steps in which it is broken */
    float kept;
    bool broken;
} breaker;

static void break_weight(void *context, int64_t step, weft_model *m) {
    breaker *b = context;
    float *value = weft_model_find(m, "ln_f.weight")->data;
    bool shall = step >= b->from && step < b->to;
    if (shall && !b->broken) b->kept = *value;
    if (!shall && b->broken) *value = b->kept;
    if (shall) *value = NAN;
    b->broken = shall;
}

static weft_train_result run_broken(const char *out, breaker *b) {
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_config_defaults(&c);
    expect_ok(weft_config_read(&c, config_path));
    c.steps = 20;
    c.checkpoint_interval = 1;
    expect_ok(weft_pool_create(1, &pool));
    weft_train_options options = {.out = out, .before_step = break_weight, .context = b};
    expect_ok(weft_train(&c, weft_cpu_backend(), pool, &options, &result));
    weft_pool_destroy(pool);
    return result;
}

TEST(test_steps_that_are_not_finite_are_skipped) {
    weft_train_result r = run_broken(folder("skips"), &(breaker){.from = 3, .to = 7});
    assert_int_equal(r.end, WEFT_TRAIN_DONE);
    assert_int_equal(r.steps, 20);
    assert_int_equal(r.skipped, 4);
    assert_true(isfinite(r.parts.loss));
}

TEST(test_many_in_a_row_end_the_run) {
    weft_train_result r = run_broken(folder("lost"), &(breaker){.from = 5, .to = 20});
    assert_int_equal(r.end, WEFT_TRAIN_DIVERGED);
    assert_int_equal(r.skipped, WEFT_TRAIN_SKIPS_MAX);
    assert_non_null(strstr(r.why, "ln_f.weight"));
    /* The checkpoint is that of the last good step, and it can be gone on from. */
    WEFT_AUTO_FREE char *text = file_read(scratch_path("lost/last/state.json"), NULL);
    WEFT_AUTO_DECREF json_t *kept = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(kept, "iteration")), 5);
}

RUN_TESTS(train_setup, scratch_teardown)

/* A run that is killed with SIGKILL again and again, at moments that nobody chose, and resumed each
 * time with another number of threads, ends on the bits of one that was left alone. */
#include "base/clock.h"
#include "base/random.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/metrics.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 3, KILLS_LONG = 20 };

/* Waits until a checkpoint is being written, and at most a fifth of a millisecond more. */
static void wait_for_writing(const char *fresh, double part) {
    const struct timespec little = {.tv_nsec = (long)(part * 2e5)};
    for (double start = weft_clock(); access(fresh, F_OK) != 0 && weft_clock() < start + 30;) {
    }
    nanosleep(&little, NULL);
}

/* The run that is killed has no end, however late the kill comes; the one beside it is as long as that had become. */
#define STEPS_OF(steps, every)                                                                     \
    "-o", "LR_SCHEDULE=constant", "-o", steps, "-o", "CHECKPOINT_INTERVAL=" every

TEST(test_killed_runs_end_on_the_same_bits) {
    int kills = train_long() ? KILLS_LONG : KILLS, during = 0;
    const char *whole = scratch_path("whole");
    const char *killed = scratch_path("killed");
    const char *fresh = format_text("%s/last.new", killed);
    uint64_t seed = (uint64_t)time(NULL);
    for (int i = 0; i < kills; i++) {
        char threads[2] = {(char)('1' + i % 3), 0};
        double part = weft_random_unit(weft_random_word(seed, 0, 0, 0, (uint64_t)i));
        pid_t child = train_start(RUN("train", "--config", config_path, "--out", killed, "--resume",
                                      "--threads", threads, STEPS_OF("STEPS=100000000", "1")),
                                  scratch_path("err"), 0);
        /* In turn: amid a write, at any time in the steps after a checkpoint, in the start. */
        if (i % 3 != 2) train_wait_checkpoint(child, killed);
        if (i % 3 == 0)
            wait_for_writing(fresh, part);
        else
            pause_ms((long)(part * 15));
        kill(child, SIGKILL);
        assert_int_equal(train_wait(child), -SIGKILL);
        during += access(fresh, F_OK) == 0;
    }
    int64_t done; /* as far as a line tells, at least */
    weft_metrics_last(killed, &done, &(weft_loss_parts){0});
    printf(
        "note: %d of %d kills, in %lld steps, fell into the writing of a checkpoint (seed %llu)\n",
        during, kills, (long long)done, (unsigned long long)seed);
    const char *steps = format_text("STEPS=%lld", (long long)done + 2);
    SUCCEEDS("train", "--config", config_path, "--out", killed, "--resume", STEPS_OF(steps, "1"));
    SUCCEEDS("train", "--config", config_path, "--out", whole, STEPS_OF(steps, "100000000"));
    train_same_end(whole, killed);
}

RUN_TESTS(train_setup, scratch_teardown)

/* A run that is killed with SIGKILL again and again, at moments that nobody chose, and resumed each
 * time with another number of threads, ends on the bits of one that was left alone. */
#include "base/clock.h"
#include "base/random.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 3, KILLS_LONG = 20, STEPS_A_KILL = 12, FIRST_MOST = 30000 };

/* Which folder has the name now: a new checkpoint is another one. */
static ino_t which(const char *path) {
    struct stat is;
    return stat(path, &is) == 0 ? is.st_ino : 0;
}

/* Waits until a checkpoint is being written, and at most a fifth of a millisecond more. */
static void wait_for_writing(const char *fresh, double part) {
    const struct timespec little = {.tv_nsec = (long)(part * 2e5)};
    for (double start = weft_clock(); access(fresh, F_OK) != 0 && weft_clock() < start + 30;) {
    }
    nanosleep(&little, NULL);
}

/* Waits until the run has written a checkpoint of its own; false: it ended. */
static bool wait_for_checkpoint(pid_t child, const char *last, ino_t before) {
    for (int i = 0; i < FIRST_MOST; i++) {
        if (which(last) != before) return true;
        if (kill(child, 0) != 0) return false;
        pause_ms(1);
    }
    return false;
}

TEST(test_killed_runs_end_on_the_same_bits) {
    int kills = train_long() ? KILLS_LONG : KILLS, during = 0;
    const char *iterations = format_text("STEPS=%d", kills * STEPS_A_KILL);
    const char *whole = scratch_path("whole");
    const char *killed = scratch_path("killed");
    const char *last = format_text("%s/last", killed);
    const char *fresh = format_text("%s/last.new", killed);
    const char *config = scratch_path("config");
    const char *err = scratch_path("err");
    train_config(config);
    char *report = OUTPUT("train", "--config", config, "--out", whole, "--threads", "2", "-o",
                          iterations, "-o", "CHECKPOINT_INTERVAL=1", "--json");
    WEFT_AUTO_DECREF json_t *object = json_loads(report, 0, NULL);
    double step_ms =
        json_number_value(json_object_get(object, "seconds")) * 1000 / (kills * STEPS_A_KILL);
    free(report);
    uint64_t seed = (uint64_t)time(NULL);
    for (int i = 0; i < kills; i++) {
        char threads[2] = {(char)('1' + i % 3), 0};
        double part = weft_random_unit(weft_random_word(seed, 0, 0, 0, (uint64_t)i));
        ino_t before = which(last);
        pid_t child =
            train_start(RUN("train", "--config", config, "--out", killed, "--resume", "--threads",
                            threads, "-o", iterations, "-o", "CHECKPOINT_INTERVAL=1"),
                        err, 0);
        /* In turn: amid a write, at any time in the steps after a checkpoint, in the start. */
        if (i % 3 != 2) assert_true(wait_for_checkpoint(child, last, before));
        if (i % 3 == 0)
            wait_for_writing(fresh, part);
        else
            pause_ms((long)(part * 3 * step_ms));
        kill(child, SIGKILL);
        assert_int_equal(train_wait(child), -SIGKILL);
        during += access(fresh, F_OK) == 0;
    }
    printf("note: %d of %d kills fell into the writing of a checkpoint (seed %llu)\n", during,
           kills, (unsigned long long)seed);
    SUCCEEDS("train", "--config", config, "--out", killed, "--resume", "-o", iterations, "-o",
             "CHECKPOINT_INTERVAL=1");
    train_same_end(whole, killed);
}

RUN_TESTS(scratch_setup, scratch_teardown)

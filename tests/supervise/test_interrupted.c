/* Studies that are killed, whose runs are killed, that are asked to stop: each goes on with the same
 * command and ends on the contents of one that was left alone. */
#include "base/random.h"
#include "support/fault.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 6, KILLS_LONG = 40, RUNS = 8 };

static char config[256], whole[256];

/* Moments that nobody chose, from the start of the program to well into its runs; the child of
 * every other one is killed first, so that the study may see it fail before it dies itself. */
TEST(test_a_killed_study_ends_with_the_same_contents) {
    char out[256], err[256];
    int kills = train_long() ? KILLS_LONG : KILLS;
    uint64_t seed = (uint64_t)time(NULL);
    snprintf(out, sizeof out, "%s", scratch_path("killed"));
    snprintf(err, sizeof err, "%s", scratch_path("err"));
    for (int i = 0; i < kills; i++) {
        double part = weft_random_unit(weft_random_word(seed, 0, 0, 0, (uint64_t)i));
        int64_t done = study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'");
        pid_t study = train_start(RUN("study", "--config", config, "--out", out), err, 0);
        if (i % 3 == 0) { /* anywhere in the start */
            pause_ms((long)(part * 60));
        } else { /* in a run, or as its end is written down */
            if (i % 3 == 1) study_wait_done(study, out, done + 1);
            pid_t child = study_child(study);
            pause_ms((long)(part * 80));
            if (i % 2 && child > 0) kill(child, SIGKILL);
            if (i % 4 == 1) pause_ms((long)(part * 20));
        }
        kill(study, SIGKILL);
        int status = train_wait(study);
        assert_true(status == -SIGKILL || status == 0 || status == 1);
    }
    printf("note: %lld of %d runs were done after %d kills (seed %llu)\n",
           (long long)study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), RUNS,
           kills, (unsigned long long)seed);
    command_succeeds(RUN("study", "--config", config, "--out", out), NULL);
    study_same(whole, out);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), RUNS);
}

TEST(test_a_run_that_is_killed_does_not_take_the_study_down) {
    fault f = {.calls = "mkdir", .path = "2-lr0.001-seed1/last.new", .command = "train", .nth = 1};
    const char *out = scratch_path("crash");
    fault_need();
    command_result r = fault_run(&f, RUN("study", "--config", config, "--out", out), NULL);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "weft study: 1 of 8 runs is not done"));
    command_free(&r);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'failed'"), 1);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"),
                     RUNS - 1);
    char *why = study_text(out, "SELECT why FROM runs WHERE status = 'failed'");
    assert_non_null(strstr(why, "signal 9"));
    free(why);
    command_succeeds(RUN("study", "--config", config, "--out", out), NULL);
    study_same(whole, out);
}

/* A run whose checkpoint is damaged fails each time, until it is begun anew. */
TEST(test_a_run_that_cannot_go_on_is_begun_anew) {
    char out[256], path[512], run[300];
    size_t bytes;
    snprintf(out, sizeof out, "%s", scratch_path("anew"));
    /* All is done; then one run is made to be not. */
    command_succeeds(RUN("study", "--config", config, "--out", out), NULL);
    snprintf(run, sizeof run, "%s/runs/2-lr0.001-seed1", out);
    snprintf(path, sizeof path, "%s/last/optimizer.safetensors", run);
    char *whole_file = file_read(path, &bytes);
    whole_file[bytes - 1] ^= 1;
    file_write(path, whole_file, bytes);
    free(whole_file);
    study_change(out, "UPDATE runs SET status = 'waiting' WHERE folder LIKE '%2-lr0.001-seed1'");
    command_result r = command_run(RUN("study", "--config", config, "--out", out));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "checksum"));
    assert_non_null(strstr(r.err, "--restart failed"));
    command_free(&r);
    command_fails(2, RUN("study", "--config", config, "--out", out, "--restart", "2-lr0.01-seed1"),
                  SAYS("did not fail"));
    command_fails(2, RUN("study", "--config", config, "--out", out, "--restart", "x"),
                  SAYS("no such run"));
    command_succeeds(RUN("study", "--config", config, "--out", out, "--restart", "2-lr0.001-seed1"),
                     NULL);
    study_same(whole, out);
    snprintf(path, sizeof path, "%s.aside-1/last/model.safetensors", run);
    assert_int_equal(access(path, R_OK), 0);
}

/* It comes as the study looks at its second run. */
TEST(test_a_signal_is_handed_on_and_the_same_command_goes_on) {
    fault f = {.calls = "open",
               .path = "4-lr0.001-seed1/metrics.jsonl",
               .command = "study",
               .nth = 1,
               .error = FAULT_SIGNAL};
    const char *out = scratch_path("stopped");
    fault_need();
    command_result r = fault_run(&f, RUN("study", "--config", config, "--out", out), NULL);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "stopped by a signal; repeat the command to continue\nnext: "));
    command_free(&r);
    int64_t done = study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'");
    assert_in_range(done, 1, 2);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'waiting'"),
                     RUNS - done);
    command_succeeds(RUN("study", "--config", config, "--out", out), NULL);
    study_same(whole, out);
}

/* As where whoever stops the study stops all its processes, and the study hands the signal on too: the run leaves
 * at once, and goes on like others. */
TEST(test_a_run_that_is_stopped_twice_has_not_failed) {
    const char *out = scratch_path("twice"), *err = scratch_path("twice.err");
    pid_t study = train_start(
        RUN("study", "--config", config, "--out", out, "-o", "STEPS=100000000"), err, 0);
    pid_t child = study_child(study);
    if (child == 0) {
        kill(study, SIGKILL);
        train_wait(study);
        printf("this system does not list a process's children\n");
        skip();
    }
    train_wait_text(scratch_path("twice/runs/2-lr0.001-seed1/metrics.jsonl"), "\n");
    kill(child, SIGSTOP);
    kill(study, SIGTERM);
    train_wait_text(err, "stopping: ");
    kill(child, SIGINT);
    kill(child, SIGCONT);
    assert_int_equal(train_wait(study), 1);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'waiting'"), RUNS);
}

TEST(test_one_study_in_a_folder_at_a_time) {
    char out[256], err[256], holder[64];
    snprintf(out, sizeof out, "%s", scratch_path("held"));
    snprintf(err, sizeof err, "%s", scratch_path("held.err"));
    pid_t study =
        train_start(RUN("study", "--config", config, "--out", out, "-o", "STEPS=100000"), err, 0);
    study_child(study);
    snprintf(holder, sizeof holder, "process %d", (int)study);
    command_fails(2, RUN("study", "--config", config, "--out", out, "-o", "STEPS=100000"),
                  SAYS(out, "another weft study", holder));
    kill(study, SIGKILL);
    train_wait(study);
}

/* What a study that was killed had just forked still holds its lock, for a moment. */
TEST(test_a_lock_whose_holder_is_gone_is_waited_for) {
    char out[256], err[256], lock[512];
    snprintf(out, sizeof out, "%s", scratch_path("left"));
    snprintf(err, sizeof err, "%s", scratch_path("left.err"));
    snprintf(lock, sizeof lock, "%s/lock", out);
    pid_t gone = fork();
    if (gone == 0) _exit(0);
    waitpid(gone, NULL, 0);
    assert_int_equal(mkdir(out, 0777), 0);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0 && dprintf(fd, "%d\n", (int)gone) > 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    pid_t study = train_start(RUN("study", "--config", config, "--out", out, "--list"), err, 0);
    assert_int_equal(train_wait(study), 0); /* which holds nothing */
    study = train_start(RUN("study", "--config", config, "--out", out), err, 0);
    pause_ms(400);
    close(fd);
    assert_int_equal(train_wait(study), 0);
    study_same(whole, out);
}

static int make_whole(void **state) {
    (void)state;
    study_whole(config, whole, NULL);
    return 0;
}

RUN_TESTS(make_whole, scratch_teardown)

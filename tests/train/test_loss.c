/* Nothing of the user's is lost: what weft did not make stays, links are not followed, a checkpoint
 * that is missing or cannot be looked at ends a run instead of starting it anew, and an error of the
 * system is an error. */
#include "support/command.h"
#include "support/fault.h"
#include "support/test.h"
#include "support/train_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char out[256];

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

#define TRAIN(...)                                                                                 \
    RUN("train", "--config", config_path, "--threads", "1", "--peak-flops", "0", __VA_ARGS__)
#define RESUME TRAIN("--out", out, "--resume", "-o", "CHECKPOINT_KEEP=2")

static void train_steps(const char *folder, const char *iterations) {
    command_succeeds(TRAIN("--out", folder, "-o", iterations, "-o", "CHECKPOINT_KEEP=2"), NULL);
}

static void make_victim(const char *folder) {
    assert_int_equal(mkdir(folder, 0777), 0);
    const char *path = format_text("%s/thesis.txt", folder);
    file_write(path, "years", 5);
    path = format_text("%s/config.json", folder);
    file_write(path, "{}", 2);
}

static void victim_lives(const char *folder) {
    const char *path = format_text("%s/thesis.txt", folder);
    WEFT_AUTO_FREE char *text = file_read(path, NULL);
    assert_string_equal(text, "years");
    path = format_text("%s/config.json", folder);
    assert_int_equal(access(path, R_OK), 0);
}

/* A name of weft's own in a run's folder that is a link, or a folder of the user's. */
static void name_is_refused(const char *name) {
    snprintf(out, sizeof out, "%s", scratch_path("taken-%s", name));
    const char *victim = scratch_path("victim-%s", name);
    const char *taken = format_text("%s/%s", out, name);
    train_steps(out, "STEPS=2");
    make_victim(victim);
    assert_int_equal(symlink(victim, taken), 0);
    command_fails(2, RESUME, SAYS(name, "move it away"));
    victim_lives(victim);
    assert_int_equal(unlink(taken), 0);
    assert_int_equal(rename(victim, taken), 0);
    command_fails(2, RESUME, SAYS(name, "move it away"));
    victim_lives(taken);
    assert_int_equal(rename(taken, victim), 0);
    command_succeeds(RESUME, NULL);
    victim_lives(victim);
}

TEST(test_links_and_others_folders_are_not_removed) {
    name_is_refused("last.new");
    name_is_refused("best.new");
    name_is_refused("last.old");
    name_is_refused("step-0000000002");
    name_is_refused("step-0000000001.gone");
}

/* A note that someone put into a checkpoint: neither it nor the checkpoint goes. */
TEST(test_a_checkpoint_with_a_note_in_it_stays) {
    snprintf(out, sizeof out, "%s", at("noted"));
    train_steps(out, "STEPS=4");
    file_write(at("noted/step-0000000002/note"), "the good one", 12);
    command_fails(2, RESUME, SAYS("step-0000000002", "move it away"));
    assert_int_equal(access(at("noted/step-0000000002/note"), R_OK), 0);
}

TEST(test_a_missing_last_is_no_fresh_start) {
    snprintf(out, sizeof out, "%s", at("gone"));
    train_steps(out, "STEPS=4");
    size_t bytes;
    WEFT_AUTO_FREE char *lines = file_read(at("gone/metrics.jsonl"), &bytes);
    WEFT_AUTO_FREE char *best = file_read(at("gone/best/state.json"), NULL);
    assert_int_equal(rename(at("gone/last"), at("elsewhere")), 0);
    command_fails(2, RESUME, SAYS("last/ is gone", "best", "step-0000000002", "--resume="));
    command_fails(2, TRAIN("--out", out), SAYS("a run in it already"));
    WEFT_AUTO_FREE char *lines_now = file_read(at("gone/metrics.jsonl"), NULL);
    WEFT_AUTO_FREE char *best_now = file_read(at("gone/best/state.json"), NULL);
    assert_string_equal(lines, lines_now);
    assert_string_equal(best, best_now);
    /* By name it goes on, to the bits of a run that was left alone. */
    command_succeeds(TRAIN("--out", out, "--resume=step-0000000002", "-o", "CHECKPOINT_KEEP=2"),
                     NULL);
    command_succeeds(TRAIN("--out", at("left-alone")), NULL);
    train_same_end(out, at("left-alone"));
}

/* Only an earlier checkpoint is there. */
TEST(test_a_folder_with_a_step_alone_is_used) {
    snprintf(out, sizeof out, "%s", at("steps"));
    train_steps(at("source"), "STEPS=4");
    assert_int_equal(mkdir(out, 0777), 0);
    assert_int_equal(rename(at("source/step-0000000002"), at("steps/step-0000000002")), 0);
    command_fails(2, TRAIN("--out", out), SAYS("step-0000000002"));
    command_fails(2, RESUME, SAYS("last/ is gone", "step-0000000002"));
}

/* Of a run that had checkpoints only the log is left: there is nothing to name. */
TEST(test_a_log_alone_offers_no_checkpoint) {
    snprintf(out, sizeof out, "%s", at("log"));
    train_steps(out, "STEPS=2");
    assert_int_equal(rename(at("log/last"), at("log-last")), 0);
    assert_int_equal(rename(at("log/best"), at("log-best")), 0);
    WEFT_AUTO(command_free) command_result r = command_run(RESUME);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, "every other checkpoint") || strstr(r.err, "--resume="))
        fail_msg("%s", r.err);
}

TEST(test_an_empty_folder_starts_and_a_kill_before_the_first_does_too) {
    snprintf(out, sizeof out, "%s", at("early"));
    fault_need();
    /* Killed while its first checkpoint is written. */
    command_result r = fault_run(&(fault){.calls = "write", .path = "last.new/optimizer", .nth = 1},
                                 TRAIN("--out", out, "-o", "EVAL_INTERVAL=100"), NULL);
    assert_int_equal(r.status, -1);
    command_free(&r);
    assert_int_equal(access(at("early/last.new/model.safetensors"), R_OK), 0);
    command_succeeds(RESUME, NULL);
    assert_int_not_equal(access(at("early/last.new"), F_OK), 0);
    command_succeeds(TRAIN("--out", at("plain")), NULL);
    train_same_end(out, at("plain"));
}

/* A best is written before a last. */
TEST(test_a_kill_between_the_first_best_and_the_first_last) {
    snprintf(out, sizeof out, "%s", at("between"));
    fault_need();
    command_result r = fault_run(&(fault){.calls = "mkdir", .path = "last.new", .nth = 1},
                                 TRAIN("--out", out, "-o", "CHECKPOINT_INTERVAL=100"), NULL);
    assert_int_equal(r.status, -1);
    command_free(&r);
    assert_int_equal(access(at("between/best/state.json"), R_OK), 0);
    assert_int_not_equal(access(at("between/last"), F_OK), 0);
    command_succeeds(TRAIN("--out", out, "--resume", "-o", "CHECKPOINT_INTERVAL=100"), NULL);
    command_succeeds(TRAIN("--out", at("between-plain")), NULL);
    train_same_end(out, at("between-plain"));
}

TEST(test_a_last_that_cannot_be_looked_at_is_an_error) {
    static const int errors[] = {EIO, ESTALE, EACCES};
    (void)state;
    snprintf(out, sizeof out, "%s", at("blind"));
    fault_need();
    train_steps(out, "STEPS=4");
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        fault f = {
            .calls = "stat,open", .path = "blind/last", .nth = 1, .error = errors[i], .all = true};
        WEFT_AUTO(command_free) command_result r = fault_run(&f, RESUME, NULL);
        assert_int_equal(r.status, 1);
        assert_non_null(strstr(r.err, "last"));
        assert_non_null(strstr(r.err, strerror(errors[i])));
    }
    command_succeeds(RESUME, NULL);
}

/* A folder that cannot be read to its end is not taken for one with less in it. */
TEST(test_an_error_of_readdir_is_no_empty_folder) {
    fault f = {.calls = "readdir", .path = "unread", .error = EIO};
    long count = 0;
    fault_need();
    train_steps(at("unread-begun"), "STEPS=2");
    snprintf(out, sizeof out, "%s", at("unread"));
    shell_succeeds("cp -a %s %s", at("unread-begun"), out);
    command_result r = fault_run(&f, RESUME, &count);
    assert_int_equal(r.status, 0);
    command_free(&r);
    assert_true(count > 20);
    for (f.nth = 1; f.nth <= count; f.nth += train_long() ? 1 : 1 + count / 12) {
        shell_succeeds("rm -rf %s && cp -a %s %s", out, at("unread-begun"), out);
        r = fault_run(&f, RESUME, NULL);
        if (r.status != 1 || !strstr(r.err, strerror(EIO)))
            fail_msg("readdir %ld of %ld: ended on %d: %s", f.nth, count, r.status, r.err);
        command_free(&r);
        assert_int_equal(access(at("unread/last/model.safetensors"), R_OK), 0);
        assert_int_equal(access(at("unread/last/state.json"), R_OK), 0);
    }
    command_succeeds(RESUME, NULL);
    command_succeeds(TRAIN("--out", at("read")), NULL);
    train_same_end(out, at("read"));
}

/* The folder's own sync is looked at. */
TEST(test_a_sync_that_fails_is_told) {
    fault_need();
    fault f = {.calls = "fsync", .path = "unsynced", .error = EIO};
    long count = 0;
    command_result r = fault_run(&f, TRAIN("--out", at("unsynced"), "-o", "STEPS=2"), &count);
    assert_int_equal(r.status, 0);
    command_free(&r);
    assert_true(count > 10);
    for (f.nth = 1; f.nth <= count; f.nth++) {
        snprintf(out, sizeof out, "%s", scratch_path("unsynced%ld", f.nth));
        r = fault_run(&f, TRAIN("--out", out, "-o", "STEPS=2"), NULL);
        if (r.status != 1 || !strstr(r.err, strerror(EIO)))
            fail_msg("sync %ld of %ld ended on %d: %s", f.nth, count, r.status, r.err);
        command_free(&r);
    }
}

TEST(test_a_kill_while_pruning_leaves_no_torn_step) {
    snprintf(out, sizeof out, "%s", at("pruned"));
    fault_need();
    for (long nth = 1; nth <= 8; nth++) {
        fault f = {.calls = "unlink,rmdir", .path = "step-", .nth = nth};
        command_result r = fault_run(&f,
                                     TRAIN("--out", out, "--resume", "-o", "CHECKPOINT_KEEP=2",
                                           "-o", "CHECKPOINT_INTERVAL=1"),
                                     NULL);
        assert_true(r.status == -1 || r.status == 0);
        command_free(&r);
    }
    command_succeeds(RESUME, NULL);
    command_succeeds(TRAIN("--out", at("unpruned")), NULL);
    train_same_end(out, at("unpruned"));
}

/* As the version before left it: no mark, and a file is missing. */
TEST(test_a_torn_step_is_cleaned_up_and_not_offered) {
    snprintf(out, sizeof out, "%s", at("torn"));
    train_steps(out, "STEPS=6");
    assert_int_equal(unlink(at("torn/step-0000000004/model.safetensors")), 0);
    assert_int_equal(unlink(at("torn/step-0000000004/.weft")), 0);
    assert_int_equal(rename(at("torn/last"), at("torn-last")), 0);
    WEFT_AUTO(command_free) command_result r = command_run(RESUME);
    assert_int_equal(r.status, 2);
    assert_null(strstr(strstr(r.err, "weft train: "), "step-0000000004"));
    assert_int_not_equal(access(at("torn/step-0000000004"), F_OK), 0);
}

/* Folders that have no mark are weft's by what is in them. */
TEST(test_a_run_of_the_version_before_goes_on) {
    snprintf(out, sizeof out, "%s", at("before"));
    train_steps(out, "STEPS=4");
    assert_int_equal(unlink(at("before/last/.weft")), 0);
    assert_int_equal(unlink(at("before/best/.weft")), 0);
    assert_int_equal(unlink(at("before/step-0000000002/.weft")), 0);
    assert_int_equal(unlink(at("before/.saved")), 0);
    assert_int_equal(mkdir(at("before/last.new"), 0777), 0);
    file_write(at("before/last.new/optimizer.safetensors"), "half", 4);
    file_write(at("before/last.new/config.json.new"), "half", 4);
    command_succeeds(RESUME, NULL);
    command_succeeds(TRAIN("--out", at("after")), NULL);
    train_same_end(out, at("after"));
    assert_int_not_equal(access(at("before/last.new"), F_OK), 0);
    assert_int_not_equal(access(at("before/step-0000000002"), F_OK), 0);
}

static int open_scratch(void **state) {
    train_setup(state);
    /* So that a run in two legs of other lengths is the whole run. */
    FILE *file = fopen(config_path, "a");
    assert_non_null(file);
    fputs("CONFIG_LR_SCHEDULE=\"constant\"\n", file);
    fclose(file);
    return 0;
}

RUN_TESTS(open_scratch, scratch_teardown)

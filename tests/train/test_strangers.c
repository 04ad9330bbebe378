/* What lies in a run's folder under a name that a run takes, and is not the run's: a file of the
 * user's, a link to one, a pipe. The names are those of a run that was made, so that a file which runs
 * come to write is among them. */
#include "base/folders.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char whole[256], work[256], victim[256];
static weft_names names;

static const char precious[] = "precious\n";

static void expect_precious(const char *path, const char *what) {
    WEFT_AUTO_FREE char *now = file_read(path, NULL);
    if (strcmp(now, precious) != 0) fail_msg("%s: the user's file is lost", what);
}

/* The command as a user gives it; a run that waits is ended by command_run's limit. */
static int train(bool resume) {
    command_result r =
        resume
            ? command_run(RUN("train", "--config", config_path, "--out", work, "--threads", "1",
                              "--resume", "-o", "STEPS=3"))
            : command_run(RUN("train", "--config", config_path, "--out", work, "--threads", "1"));
    int status = r.status;
    if (status != 0 && status != 1 && status != 2) fail_msg("%s: ended on %d", r.line, status);
    command_free(&r);
    return status;
}

/* An empty folder, or a run without `name`; the path of that name. */
static const char *prepare(const char *name, bool resume) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", work, name);
    if (resume)
        shell_succeeds("rm -rf '%s' && cp -a '%s' '%s' && rm -rf '%s'", work, whole, work, path);
    else
        shell_succeeds("rm -rf '%s' && mkdir '%s'", work, work);
    return path;
}

TEST(test_a_link_is_not_written_through) {
    for (int i = 0; i < names.n; i++)
        for (int resume = 0; resume < 2; resume++) {
            assert_int_equal(symlink(victim, prepare(names.list[i], resume)), 0);
            train(resume);
            expect_precious(victim, names.list[i]);
        }
}

/* Samples of later steps are cut off where a run goes on, but not those of another file. */
TEST(test_samples_behind_a_link_are_not_cut) {
    static const char later[] = "{\"step\":1000,\"prompt\":\"a\",\"text\":\"b\"}\n";
    const char *others = scratch_path("samples-of-another");
    file_write(others, later, sizeof later - 1);
    assert_int_equal(symlink(others, prepare("samples.jsonl", true)), 0);
    train(true);
    WEFT_AUTO_FREE char *now = file_read(others, NULL);
    assert_string_equal(now, later);
}

TEST(test_a_pipe_is_not_waited_for) {
    for (int i = 0; i < names.n; i++)
        for (int resume = 0; resume < 2; resume++) {
            assert_int_equal(mkfifo(prepare(names.list[i], resume), 0666), 0);
            train(resume);
        }
}

/* Names that mean something to others too. */
TEST(test_a_file_of_the_users_stops_a_new_run) {
    static const char *const common[] = {"config", "result.json", "attention.json", "samples.jsonl",
                                         "metrics.jsonl"};
    (void)state;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        const char *path = prepare(common[i], false);
        file_write(path, precious, sizeof precious - 1);
        FAILS(2, SAYS(work, common[i]), "train", "--config", config_path, "--out", work);
        expect_precious(path, common[i]);
    }
    /* The config that is given is no exception. */
    const char *path = prepare("config", false);
    shell_succeeds("cp '%s' '%s'", config_path, path);
    FAILS(2, SAYS("config", "--out"), "train", "--config", path, "--out", work);
}

/* Lines that are no samples are set aside, those that are stay. */
TEST(test_damaged_samples_are_kept) {
    static const char lines[] = "{\"step\":1,\"prompt\":\"a\",\"text\":\"b\"}\nprecious\n"
                                "{\"step\":2,\"prompt\":\"a\",\"text\":\"c\"}\n";
    const char *path = prepare("samples.jsonl", true);
    file_write(path, lines, sizeof lines - 1);
    assert_int_equal(train(true), 0);
    char *kept = file_read(format_text("%s.damaged", path), NULL), *now = file_read(path, NULL);
    assert_string_equal(kept, lines);
    assert_non_null(strstr(now, "\"text\":\"b\""));
    assert_non_null(strstr(now, "\"text\":\"c\""));
    assert_non_null(strstr(now, "\"step\":3"));
    assert_null(strstr(now, "precious"));
    free(kept);
    free(now);
}

/* A run that ended before its first step is begun again by the same command. */
TEST(test_a_run_that_was_only_begun_is_no_stranger) {
    prepare("config", false);
    shell_succeeds("touch '%s/metrics.jsonl' && cp '%s/config' '%s/config'", work, whole, work);
    assert_int_equal(train(false), 0);
}

static int make_run(void **state) {
    train_setup(state);
    FILE *file = fopen(config_path, "a");
    assert_non_null(file);
    fputs("CONFIG_STEPS=2\nCONFIG_EVAL_INTERVAL=1\nCONFIG_CHECKPOINT_INTERVAL=1\n"
          "CONFIG_SAMPLE_PROMPT=\"a\"\nCONFIG_SAMPLE_INTERVAL=1\nCONFIG_SAMPLE_TOKENS=2\n",
          file);
    fclose(file);
    snprintf(whole, sizeof whole, "%s", scratch_path("whole"));
    snprintf(work, sizeof work, "%s", scratch_path("work"));
    snprintf(victim, sizeof victim, "%s", scratch_path("victim"));
    file_write(victim, precious, sizeof precious - 1);
    SUCCEEDS("train", "--config", config_path, "--out", whole, "--threads", "1");
    expect_ok(weft_folder_list(whole, &names));
    assert_true(names.n >= 9);
    return 0;
}

static int leave(void **state) {
    weft_names_free(&names);
    return scratch_teardown(state);
}

RUN_TESTS(make_run, leave)

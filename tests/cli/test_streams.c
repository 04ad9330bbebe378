/* What a program may be started with and among: closed standard streams, pipes and devices where files
 * are expected, a limit of file size. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/token_file.h"
#include "support/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

/* The exit status of a line of the shell in which $W is the program. */
static int shell(const char *line) {
    setenv("W", command_program(), 1);
    setenv("D", at("."), 1);
    int status = system(line); /* NOLINT */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Each line of the metrics is an object, and the checkpoint can be gone on from. */
static void run_is_good(const char *out) {
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/metrics.jsonl", out), NULL);
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        WEFT_AUTO_DECREF json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (!json_is_object(row)) fail_msg("not a line of metrics: %.80s", line);
        line = end + 1;
    }
    SUCCEEDS("train", "--config", config_path, "--out", out, "--resume");
}

TEST(test_closed_streams_do_not_land_in_files) {
    assert_int_equal(shell("$W train --config $D/config --out $D/no-err 2>&-"), 0);
    const char *out = at("no-err");
    run_is_good(out);
    assert_int_equal(shell("$W train --config $D/config --out $D/no-any 0<&- 1>&- 2>&-"), 0);
    out = at("no-any");
    run_is_good(out);
    /* What was to be told and cannot be is work that failed. */
    assert_int_equal(shell("$W train --config $D/config --out $D/no-out --json >&- 2>/dev/null"),
                     1);
    assert_int_equal(shell("$W version >&- 2>/dev/null"), 1);
    assert_int_equal(shell("$W tokenize --out $D/no-in - 0<&- 2>/dev/null"), 1);
}

static void make_pipe(const char *path) {
    assert_int_equal(mkfifo(path, 0666), 0);
}

/* None of these waits for a writer. */
TEST(test_pipes_in_place_of_files_are_refused) {
    make_pipe(at("pipe"));
    FAILS(2, SAYS("a pipe"), "plan", "--config", at("pipe"));
    FAILS(2, SAYS("a pipe"), "tokenize", "--out", at("t"), at("pipe"));
    FAILS(2, SAYS("pipe"), "tokenize", "--tokenizer", at("pipe"), "--out", at("t"), config_path);
    FAILS(2, SAYS("a plain file"), "runs", at("pipe"));
    FAILS(2, SAYS("pipe"), "report", at("pipe"));
    assert_int_equal(mkdir(at("study"), 0777), 0);
    make_pipe(at("study/runs.db"));
    FAILS(2, SAYS("runs.db"), "study", "--config", at("study-config"), "--out", at("study"));
    assert_int_equal(mkdir(at("held"), 0777), 0);
    make_pipe(at("held/lock"));
    FAILS(2, SAYS("lock", "a pipe"), "study", "--config", at("study-config"), "--out", at("held"));
}

TEST(test_pipes_in_a_run_are_refused) {
    static const char *const names[] = {"metrics.jsonl",          "last/state.json",
                                        "last/model.safetensors", "last/optimizer.safetensors",
                                        "last/config.json",       "last"};
    (void)state;
    const char *out = at("piped");
    const char *kept = at("kept");
    SUCCEEDS("train", "--config", config_path, "--out", out, "-o", "STEPS=2");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *path = format_text("%s/%s", out, names[i]);
        assert_int_equal(rename(path, kept), 0);
        make_pipe(path);
        FAILS(2, SAYS(out), "train", "--config", config_path, "--out", out, "--resume");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(kept, path), 0);
    }
    SUCCEEDS("train", "--config", config_path, "--out", out, "--resume");
}

static void expect_too_large(const char *const *arguments) {
    assert_int_equal(train_wait(train_start(arguments, at("err"), 2000)), 1);
    WEFT_AUTO_FREE char *said = file_read(at("err"), NULL);
    if (!strstr(said, "File too large")) fail_msg("%s", said);
}

/* A signal by default; here an error with a line. */
TEST(test_a_limit_of_file_size_is_an_error) {
    train_need_limit();
    if (getenv("COVERAGE")) {
        puts("the counters of coverage are files, which the limit holds for too");
        skip();
    }
    char text[8000];
    memset(text, 'x', sizeof text);
    file_write(at("text"), text, sizeof text);
    expect_too_large(RUN("init", "--config", config_path, "--out", at("large")));
    expect_too_large(RUN("tokenize", "--out", at("shards"), at("text")));
    expect_too_large(
        RUN("tokenizer", "train", "--vocab", "300", "--out", at("t.json"), at("text")));
    expect_too_large(RUN("train", "--config", config_path, "--out", at("run")));
}

static int open_scratch(void **state) {
    train_setup(state);
    study_config(at("study-config"));
    return 0;
}

TEST(test_a_limit_of_address_space_ends_with_a_line) {
    const char *faults = getenv("WEFT_FAULTS");
    if (faults && !*faults) {
        printf("sanitizers need all of the address space\n");
        skip();
    }
    for (int mib = 40; mib <= 200; mib += 20) {
        int status = shell(
            format_text("ulimit -v %d; timeout 60 $W init -o N_LAYER=1 -o N_EMBD=16 -o N_HEAD=1 -o "
                        "VOCAB_SIZE=256 --force --out $D/narrow 2>$D/narrow.err",
                        1024 * mib));
        WEFT_AUTO_FREE char *said = file_read(at("narrow.err"), NULL);
        if (status == 124) fail_msg("%d MiB: it does not end", mib);
        if (status != 0 && !*said) fail_msg("%d MiB: ended on %d without a word", mib, status);
    }
}

RUN_TESTS(open_scratch, scratch_teardown)

/* scripts/export: what runs have logged goes to a tracker once, in order, also while they go on. The trackers are
 * stand-ins that write down what they are told. */
#include "support/command.h"
#include "support/test.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char stub[] = "import os\n"
                           "def tell(*words):\n"
                           "    with open(os.environ['TOLD'], 'a') as file:\n"
                           "        print(*words, file=file)\n"
                           "class Run:\n"
                           "    def __init__(self, name): self.name = name\n"
                           "    def log(self, numbers, step): tell(self.name, step, numbers)\n"
                           "    def finish(self): tell(self.name, 'end')\n"
                           "def Settings(silent): pass\n"
                           "def init(project, name, config, mode='', **rest):\n"
                           "    tell(name, mode, project, config)\n"
                           "    return Run(name)\n";

static int make_trackers(void **state) {
    scratch_setup(state);
    assert_int_equal(mkdir(scratch_path("python"), 0755), 0);
    file_write(scratch_path("python/wandb.py"), stub, strlen(stub));
    file_write(scratch_path("python/trackio.py"), stub, strlen(stub));
    setenv("PYTHONPATH", scratch_path("python"), 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    setenv("TOLD", scratch_path("told"), 1);
    return 0;
}

static void write_text(const char *path, const char *text) {
    file_write(path, text, strlen(text));
}

static void make_run(const char *name, const char *lines) {
    assert_int_equal(mkdir(scratch_path("%s", name), 0755), 0);
    write_text(scratch_path("%s/metrics.jsonl", name), lines);
}

static void expect_told(const char *want) {
    char *told = file_read(scratch_path("told"), NULL);
    assert_string_equal(told, want);
    free(told);
}

#define LINE(step, loss) "{\"step\": " #step ", \"loss\": " #loss ", \"val_loss\": null}\n"

TEST_WITH(test_finished_runs_are_handed_over, make_trackers, scratch_teardown) {
    assert_int_equal(mkdir(scratch_path("runs"), 0755), 0);
    make_run("runs/a", LINE(1, 3.5) LINE(2, 3.25) "{\"step\": 3");
    make_run("runs/b", LINE(1, 4));
    write_text(scratch_path("runs/a/config"), "CONFIG_N_LAYER=2\nCONFIG_BIAS=y\n");
    shell_succeeds("python3 scripts/export --trackio --project p '%s' >'%s'", scratch_path("runs"),
                   scratch_path("said"));
    expect_told("a  p {'n_layer': 2, 'bias': True}\na 1 {'loss': 3.5}\na 2 {'loss': 3.25}\na end\n"
                "b  p {}\nb 1 {'loss': 4}\nb end\n");
}

/* Waits until a file that grows has a text in it. */
static void wait_for(const char *text) {
    for (int i = 0; i < 6000 * command_patience(); i++) {
        char *told =
            access(scratch_path("told"), R_OK) == 0 ? file_read(scratch_path("told"), NULL) : NULL;
        bool there = told && strstr(told, text);
        free(told);
        if (there) return;
        pause_ms(10);
    }
    fail_msg("'%s' does not come", text);
}

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* A run that is being trained, one that begins meanwhile, and a resumed one that does a step again. */
TEST_WITH(test_runs_are_followed_to_their_end, make_trackers, scratch_teardown) {
    int status;
    assert_int_equal(mkdir(scratch_path("live"), 0755), 0);
    make_run("live/a", LINE(1, 3) LINE(2, 2.5));
    int held = open(scratch_path("live/a/metrics.jsonl"), O_RDWR | O_CLOEXEC);
    assert_true(held >= 0);
    assert_int_equal(flock(held, LOCK_EX), 0);
    if (access("/proc/locks", R_OK) != 0) skip();
    pid_t follower = fork();
    if (follower == 0) {
        if (!freopen(scratch_path("said"), "w", stdout)) _exit(9);
        execlp("python3", "python3", "scripts/export", "--wandb", "--follow", "--every", "0.02",
               scratch_path("live"), (char *)NULL);
        _exit(9);
    }
    wait_for("a 2 {'loss': 2.5}");
    make_run("live/b", LINE(1, 9));
    wait_for("b 1 {'loss': 9}");
    /* The same file, cut and written again: what was read of it ends in the middle of a line. */
    write_text(scratch_path("live/a/metrics.jsonl"), LINE(1, 3.125) LINE(2, 2.5) LINE(3, 2));
    wait_for("a 3 {'loss': 2}");
    append(scratch_path("live/b/metrics.jsonl"), LINE(2, 8));
    close(held);
    assert_int_equal(waitpid(follower, &status, 0), follower);
    assert_int_equal(status, 0);
    expect_told("a offline weft {}\na 1 {'loss': 3}\na 2 {'loss': 2.5}\nb offline weft {}\n"
                "b 1 {'loss': 9}\na 3 {'loss': 2}\nb 2 {'loss': 8}\na end\nb end\n");
}

RUN_TESTS(NULL, NULL)

/* Two ranks in two network namespaces, which see each other by a network alone, end on the bits of one. */
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_ROOM = 256, COMMAND_ROOM = 8192 };

static int shell(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void run_across(const char *name, const char *config, const char *out) {
    char weft[4096];
    size_t n;
    assert_non_null(realpath(command_program(), weft));
    const char *err = scratch_path("err");
    int status = shell(
        format_text("timeout 100 tests/train/namespaces run %s %s %s train --config %s --out %s "
                    "--peak-flops 0 --threads 1 -o SHARD=optimizer 2>%s >/dev/null",
                    name, scratch_path("agent"), weft, config, out, err));
    if (status != 0) printf("ended on %d: %s\n", status, file_read(err, &n));
    assert_int_equal(status, 0);
}

TEST(test_two_network_namespaces_carry_a_run) {
    ranks_need_mpi();
    const char *name = format_text("weft-%d", (int)getpid());
    const char *config = scratch_path("config");
    const char *alone = scratch_path("alone");
    const char *out = scratch_path("ranks");
    train_config(config);
    const char *command = format_text("tests/train/namespaces start %s", name);
    int started = shell(command);
    if (started == 0) {
        SUCCEEDS("train", "--config", config, "--out", alone, "--peak-flops", "0");
        run_across(name, config, out);
    }
    command = format_text("tests/train/namespaces stop %s", name);
    shell(command);
    if (started == 77) skip();
    assert_int_equal(started, 0);
    train_same_end(alone, out);
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* scripts/setup on a machine that lacks a part: before sudo it names the packages and asks, where there is a terminal
 * to ask on. sudo, apt-get, id and the compiler are scripts; nothing is installed. */
#include "support/command.h"
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void make_script(const char *name, const char *line) {
    char text[1024];
    snprintf(text, sizeof text, "#!/bin/sh\n%s\n", line);
    file_write(scratch_path("bin/%s", name), text, strlen(text));
    assert_int_equal(chmod(scratch_path("bin/%s", name), 0755), 0);
}

/* A machine whose compiler finds every library but jansson. */
static int make_machine(void **state) {
    char line[512];
    scratch_setup(state);
    assert_int_equal(mkdir(scratch_path("bin"), 0755), 0);
    make_script("cc", "case \" $* \" in *\" -ljansson \"*) exit 1 ;; esac");
    make_script("pkg-config", "exit 1");
    make_script("sudo", "exec \"$@\"");
    snprintf(line, sizeof line, "echo \"$@\" >>'%s'", scratch_path("calls"));
    make_script("apt-get", line);
    make_script("id", "echo 1000");
    return 0;
}

/* Runs it behind the words of `before`, expects the status, and gives what it said and what apt-get was told. */
static char *set_up(const char *before, int status, char **calls) {
    const char *said = scratch_path("said");
    file_write(scratch_path("calls"), "", 0);
    shell_succeeds(
        "unset CC PKG_CONFIG DEPS; PATH='%s':\"$PATH\" %s scripts/setup >'%s' 2>&1 </dev/null; "
        "[ $? = %d ] || { cat '%s' >&2; exit 1; }",
        scratch_path("bin"), before, said, status, said);
    *calls = file_read(scratch_path("calls"), NULL);
    return file_read(said, NULL);
}

static void expect(const char *answer, int status, bool asks, bool installs) {
    char before[512], *calls;
    snprintf(before, sizeof before, "python3 tests/scripts/ask_setup.py %s", answer);
    char *said = set_up(*answer ? before : "", status, &calls);
    if (!strstr(said, "libjansson-dev")) fail_msg("the package is not named: %s", said);
    if ((strstr(said, "? [Y/n]") != NULL) != asks) fail_msg("asked, or not: %s", said);
    if ((strstr(calls, "install --no-install-recommends libjansson-dev") != NULL) != installs)
        fail_msg("installed, or not: %s%s", said, calls);
    if (!installs) assert_string_equal(calls, "");
    free(said);
    free(calls);
}

TEST_WITH(test_it_asks_before_it_uses_sudo, make_machine, scratch_teardown) {
    expect("enter", 0, true, true);
    expect("yes", 0, true, true);
    expect("n", 1, true, false);
    expect("end", 1, true, false);
}

TEST_WITH(test_nobody_is_asked_without_a_terminal_or_as_root, make_machine, scratch_teardown) {
    expect("", 0, false, true);
    make_script("id", "echo 0");
    make_script("sudo", "exit 9");
    expect("n", 0, false, true);
}

RUN_TESTS(NULL, NULL)

/* tests/run: its last line is the sum over its own programs, whatever else happens in its folder. */
#include "support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* A program as tests/run sees it: a script that prints what cmocka would. */
static void make_program(const char *name, const char *lines) {
    char text[1024];
    snprintf(text, sizeof text, "#!/bin/sh\ncd '%s' || exit 9\n%s\n", scratch_path("."), lines);
    file_write(scratch_path("%s", name), text, strlen(text));
    assert_int_equal(chmod(scratch_path("%s", name), 0755), 0);
}

/* A line of shell in which `run` is tests/run with the scratch folder, without what the run that this
 * test is part of was told. */
static void shell(const char *line) {
    shell_succeeds("unset RUNNER ALONE FIRST V; JOBS=2 TIMEOUT=300; export JOBS TIMEOUT; at='%s'; "
                   "run() { tests/run \"$at\" \"$@\"; }; %s",
                   scratch_path("."), line);
}

static void expect_said(const char *file, const char *words) {
    char *said = file_read(scratch_path("%s", file), NULL);
    if (!strstr(said, words)) fail_msg("'%s' is not in: %s", words, said);
    free(said);
}

static void test_the_last_line_is_the_sum(void **state) {
    (void)state;
    make_program("good", "echo 'test: a'; echo 'success: a'; echo 'test: b'; echo 'skip: b'");
    make_program("bad", "echo 'test: c'; echo 'failure: c ['; echo ']'; exit 1");
    make_program("crash", "echo 'test: d'; kill -SEGV $$");
    make_program("leak", "echo 'test: e'; echo 'success: e'; exit 1");
    make_program("none", "");
    shell("run $at/good >$at/said && run $at/good $at/bad $at/crash $at/leak $at/none >$at/all; "
          "[ $? = 1 ]");
    expect_said("said", "\n1 passed, 0 failed, 1 skipped\n");
    expect_said("all", "failed bad: c\n");
    expect_said("all", "failed crash: d (ended on status ");
    expect_said("all", "failed leak: leak (ended on status 1 after its tests)\n");
    expect_said("all", "failed none: none (ran no test)\n");
    expect_said("all", "\n2 passed, 4 failed, 1 skipped\n");
}

/* The first run's program ends when the second run is over. */
static void test_two_runs_in_one_folder_keep_their_own_results(void **state) {
    (void)state;
    make_program("slow", "echo 'test: a'; touch begun; until [ -e over ]; do sleep 0.1; done; "
                         "echo 'failure: a ['; exit 1");
    make_program("quick", "echo 'test: b'; echo 'success: b'");
    shell("run $at/slow >$at/first & until [ -e $at/begun ]; do sleep 0.1; done; "
          "run $at/quick >$at/second; second=$?; touch $at/over; wait $!; [ $second$? = 01 ]");
    expect_said("first", "failed slow: a\n0 passed, 1 failed\n");
    expect_said("second", "\n1 passed, 0 failed\n");
    shell("cat $at/log/slow.log >$at/kept && [ ! -e $at/log/quick.log ] && "
          "for f in $at/log.*; do [ ! -e $f ] || exit 1; done");
    expect_said("kept", "failure: a [");
}

static void test_output_that_is_lost_is_a_failure(void **state) {
    (void)state;
    make_program("good", "echo 'test: a'; echo 'success: a'");
    make_program("robber", "echo 'test: b'; rm -rf log.*; echo 'success: b'");
    shell("JOBS=1 run $at/good $at/robber >$at/said 2>&1; [ $? = 1 ]");
    expect_said("said", "failed good: its output is lost");
    expect_said("said", "failed robber: its output is lost");
    expect_said("said", "\n0 passed, 2 failed\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_last_line_is_the_sum, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_two_runs_in_one_folder_keep_their_own_results,
                                        scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_output_that_is_lost_is_a_failure, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

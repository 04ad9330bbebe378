/* tests/run: its last line is the sum over its own programs, whatever else happens in its folder; and
 * tests/repeat: what does not pass each time. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    shell_succeeds("unset SIDE RUNNER ALONE FIRST V KERNELS MATRIX_KERNELS CUDA_KERNELS; JOBS=2 "
                   "TIMEOUT=300 GRACE=0; "
                   "export JOBS TIMEOUT GRACE; at='%s'; "
                   "run() { tests/run \"$at\" \"$@\"; }; %s",
                   scratch_path("."), line);
}

static void expect_said(const char *file, const char *words) {
    char *said = file_read(scratch_path("%s", file), NULL);
    if (!strstr(said, words)) fail_msg("'%s' is not in: %s", words, said);
    free(said);
}

TEST_WITH(test_the_last_line_is_the_sum, scratch_setup, scratch_teardown) {
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
TEST_WITH(test_two_runs_in_one_folder_keep_their_own_results, scratch_setup, scratch_teardown) {
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

TEST_WITH(test_output_that_is_lost_is_a_failure, scratch_setup, scratch_teardown) {
    make_program("good", "echo 'test: a'; echo 'success: a'");
    make_program("robber", "echo 'test: b'; rm -rf log.*; echo 'success: b'");
    shell("JOBS=1 run $at/good $at/robber >$at/said 2>&1; [ $? = 1 ]");
    expect_said("said", "failed good: its output is lost");
    expect_said("said", "failed robber: its output is lost");
    expect_said("said", "\n0 passed, 2 failed\n");
}

/* It is named, ended and a failure, though it left the program's session. */
TEST_WITH(test_a_process_that_is_left_is_a_failure, scratch_setup, scratch_teardown) {
    make_program("clean", "echo 'test: a'; sleep 0.01; echo 'success: a'");
    /* A process that has just been started, or just been killed, is for a moment neither there nor gone. To
     * grep alone "setsid", NUL, "sleep" is two lines. */
    make_program("leaver", "echo 'test: b'; setsid sleep 1234 & echo $! >left; "
                           "until tr '\\0' ' ' </proc/$!/cmdline | grep -q '^sleep'; do sleep 0.1; "
                           "done; "
                           "echo 'success: b'");
    shell("run $at/clean >$at/first && run $at/leaver >$at/said; [ $? = 1 ] && "
          "i=0 && while grep -qs sleep /proc/$(cat $at/left)/cmdline; do "
          "i=$((i + 1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done");
    expect_said("said", "left running: sleep 1234");
    expect_said("said", "failed leaver: leaver (left a process running)\n1 passed, 1 failed\n");
}

/* Kernels of a set that the processor lacks ran emulated, or are named. */
TEST_WITH(test_kernels_that_did_not_run_are_named, scratch_setup, scratch_teardown) {
    make_program("sets", "echo 'test: a'; echo 'kernels: fine ran'; "
                         "echo 'kernels: old ran a/x b/y'; echo 'kernels: wide lacks'; "
                         "echo 'kernels: wide-bf16 lacks'; echo 'success: a'");
    make_program("emulated", "echo 'test: b'; echo 'kernels: wide emulated norm.32 rope.32'; "
                             "echo 'kernels: wide-bf16 emulated gemm.32'; echo 'success: b'");
    shell("export KERNELS='norm.32 rope.32 norm.64' MATRIX_KERNELS='gemm.32' CUDA_KERNELS=3; "
          "run $at/sets $at/emulated >$at/said");
    expect_said("said",
                "kernels: fine ran\nkernels: old ran in a/x b/y alone\nkernels: wide: this "
                "processor lacks its instructions; "
                "ran emulated: norm.32 rope.32; not run: norm.64\nkernels: wide-bf16: this "
                "processor lacks its instructions; ran emulated: gemm.32\nkernels: CUDA: "
                "not run, 3 files: make test-cuda runs them on a GPU\n2 passed, 0 failed\n");
    shell("unset KERNELS MATRIX_KERNELS CUDA_KERNELS; run $at/sets >$at/said");
}

/* Of three runs the second has a failure, the third another and the same. */
TEST_WITH(test_what_does_not_pass_each_time_is_counted, scratch_setup, scratch_teardown) {
    make_program("suite", "echo run >>runs; n=$(wc -l <runs)\n"
                          "[ $n = 1 ] || echo 'failed x: a (ended on status '$n')'\n"
                          "[ $n != 3 ] || echo 'failed y: b'\n"
                          "echo $((6 - n)) passed, $((n - 1)) failed, 2 skipped; exit $((n > 1))");
    shell("tests/repeat 3 $at/kept $at/suite >$at/said; [ $? = 1 ] && [ ! -e $at/kept/1.log ] && "
          "[ -e $at/kept/3.log ]");
    expect_said("said", "failed in 2 of 3: x: a\nfailed in 1 of 3: y: b\n");
    expect_said("said", "\n3 passed, 2 failed, 2 skipped\n");
    make_program("suite", "echo 7 passed, 0 failed");
    shell("tests/repeat 2 $at/kept $at/suite >$at/said");
    expect_said("said", "run 2 of 2: 7 passed, 0 failed\n7 passed, 0 failed\n");
    /* Three runs that wait for each other, and a fourth. */
    make_program("suite",
                 "echo run >>side; until [ $(wc -l <side) -ge 3 ]; do sleep 0.02; done; "
                 "n=$(wc -l <side); [ $n -lt 4 ] || echo failed z: c; echo 7 passed, 0 failed");
    shell("SIDE=3 tests/repeat 4 $at/kept $at/suite >$at/said; [ $? = 1 ]");
    expect_said("said",
                "run 3 of 4: 7 passed, 0 failed\nrun 4 of 4: 7 passed, 0 failed\n      z: c\n"
                "failed in 1 of 4: z: c\n");
    make_program("suite", "exit 3");
    shell("tests/repeat 1 $at/kept $at/suite >$at/said; [ $? = 1 ]");
    expect_said("said", "failed in 1 of 1: the run itself, on status 3\n");
}

/* The suite and the load are ended with it; what this left would be the failure of this program. */
TEST_WITH(test_repeating_can_be_interrupted, scratch_setup, scratch_teardown) {
    make_program("suite", "trap 'sleep 0.1; touch ended; exit 1' TERM; touch begun; "
                          "while [ -e suite ]; do sleep 0.02; done");
    shell("tests/repeat 3 $at/kept $at/suite >$at/said & until [ -e $at/begun ]; do sleep 0.02; "
          "done; kill $!; wait $!; [ $? = 130 ] && [ -e $at/ended ]");
}

RUN_TESTS(NULL, NULL)

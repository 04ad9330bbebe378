/* tests/mutate_random.py on a tree of a few lines, with a generator that is a table: each verdict, the same draws
 * for the same seed, an interrupt in the middle of a mutant, two workers, and the tables of this tree. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tree's make: objects with what they depend on, and a test that prints what tests/run would. Where there is
 * a file `stop`, the tests' make interrupts twice what started it, a worker of tests/mutate_random.py, and would go on
 * for long. Where there is a file `meet`, the tests of the mutant `a + 7` last until a later draw is caught; it has
 * the word `stop` in it where they are to interrupt the workers' parent then. */
static const char makefile[] =
    "ROOT := ../../../..\n"
    "build/obj/%.o: src/%.c\n"
    "\t@mkdir -p $(@D)\n"
    "\t@$(CC) -g -O1 -Isrc -MMD -c $< -o $@\n"
    "build/test: build/obj/sum/sum.o build/obj/loop/loop.o tests/sum/test_sum.c\n"
    "\t@$(CC) -Isrc $^ -o $@\n"
    "tests: build/test\n"
    "test: build/test\n"
    "\t@if cmp -s src/sum/sum.c $(ROOT)/src/sum/sum.c; then :; elif [ -e $(ROOT)/stop ]; then rm "
    "$(ROOT)/stop; \\\n"
    "\t\tworker=$$(awk '{ print $$4 }' /proc/$$PPID/stat); kill -STOP $$worker; kill -INT "
    "$$worker; kill $$worker; kill -CONT $$worker; \\\n"
    "\t\texec sleep 1000; fi\n"
    "\t@cmp -s src/sum/sum.c $(ROOT)/src/sum/sum.c || echo $(JOBS) >>$(ROOT)/ran\n"
    "\t@if [ -e $(ROOT)/meet ] && grep -q 'a + 7' src/sum/sum.c; then \\\n"
    "\t\tuntil grep -qs caught $(ROOT)/build/mutants/2-sum/ahead; do sleep 0.01; done; \\\n"
    "\t\tif grep -q stop $(ROOT)/meet; then worker=$$(awk '{ print $$4 }' /proc/$$PPID/stat); \\\n"
    "\t\t\tkill -INT $$(awk '{ print $$4 }' /proc/$$worker/stat); exec sleep 1000; fi; fi\n"
    "\t@if [ '$(SAN)' = leak ] && grep -q 'a + 7' src/sum/sum.c; then echo 'failed sum/test_sum: "
    "leaks'; exit 1; fi\n"
    "\t@build/test '$(T)' || { printf '\\200\\n'; echo 'failed sum/test_sum: sum'; exit 1; }\n"
    "test-torch:\n"
    "\t@cd python && python3 -c 'import twice; assert twice.twice(2) == 4'\n"
    "-include $(wildcard build/obj/*/*.d)\n";
static const char sum_c[] = "#include \"sum/sum.h\"\n"
                            "int sum(int a, int b) {\n"
                            "    return a + b;\n"
                            "}\n"
                            "int zero(int a) {\n"
                            "    return a * 0;\n"
                            "}\n"
                            "int unseen(int a) {\n"
                            "    return a + 1;\n"
                            "}\n"
                            "int listed(int a) {\n"
                            "    return a + 2;\n"
                            "}\n";
static const char loop_c[] = "int loop(int n) {\n"
                             "    volatile int i = 0;\n"
                             "    while (i < n) i = i + 1;\n"
                             "    return i;\n"
                             "}\n";
static const char test_c[] = "#include \"sum/sum.h\"\n"
                             "int loop(int n);\n"
                             "int main(int n, char **words) { return sum(2, 3) != 5 || zero(n) != "
                             "0 || loop(words[1][0]) == 0; }\n";
static const char twice_py[] = "def twice(x):\n"
                               "    \"\"\"Two of it.\"\"\"\n"
                               "    return x * 2\n";
/* Of a line, what stands in its place: one mutant each; of the other lines none. */
static const char generator[] = "#!/bin/sh\n"
                                "read -r n <\"$7\"\n"
                                "line=$(sed -n \"${n}p\" \"$1\")\n"
                                "case $line in\n"
                                "*'a + b;') new='    return a - b;' ;;\n"
                                "*'a * 0;') new='    return 0 * a;' ;;\n"
                                "*'a + 1;') new='    return a + 7;' ;;\n"
                                "*'a + 2;') new='    return a + 8;' ;;\n"
                                "*'i + 1;') new='    while (i < n) i = i;' ;;\n"
                                "*'x * 2') new='    return x * 3' ;;\n"
                                "*'Two of it.'*) new='    \"\"\"Three of it.\"\"\"' ;;\n"
                                "'def '*) new='def' ;;\n"
                                "'#include'*) new='#include \"none.h\"' ;;\n"
                                "*) exit 0 ;;\n"
                                "esac\n"
                                "NEW=$new awk -v n=\"$n\" 'NR == n { print "
                                "ENVIRON[\"NEW\"]; next } { print }' \"$1\" >\"$5/x.mutant.0.c\"\n";

static void write_text(const char *name, const char *text) {
    file_write(scratch_path("%s", name), text, strlen(text));
}

static int open_tree(void **state) {
    scratch_setup(state);
    shell_succeeds("cd '%s' && mkdir -p src/sum src/loop tests/sum python", scratch_path("."));
    shell_succeeds("cp tests/mutate tests/mutate_random.py tests/mutants.py '%s'",
                   scratch_path("tests"));
    write_text("Makefile", makefile);
    write_text("src/sum/sum.c", sum_c);
    write_text("src/sum/sum.h",
               "int sum(int a, int b), zero(int a), unseen(int a), listed(int a);\n");
    write_text("src/loop/loop.c", loop_c);
    write_text("python/twice.py", twice_py);
    write_text("tests/sum/test_sum.c", test_c);
    write_text("tests/rooms.txt", "# which\nsum: sum/\nloop: sum/\npython:\n");
    write_text(
        "tests/equivalent.txt",
        "# which\nsrc/sum/sum.c: nothing calls it\n-    return a + 2;\n+    return a + 8;\n");
    write_text("generate", generator);
    shell_succeeds("chmod +x '%s'", scratch_path("generate"));
    return 0;
}

/* Runs it with those words; what it said is the caller's. */
static char *mutate(int status, const char *words) {
    shell_succeeds(
        "cd '%s' && { env -u MAKEFLAGS -u MAKELEVEL -u T CC=cc "
        "GENERATOR=\"$PWD/generate\" "
        "BUILD=build JOBS=1 SANITIZERS=no %s >said 2>&1; [ $? = %d ] || { cat said; false; }; }",
        scratch_path("."), words, status);
    return file_read(scratch_path("said"), NULL);
}

static void expect(char *said, const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(said, *parts)) fail_msg("'%s' is not in: %s", *parts, said);
    free(said);
}

/* More are wanted than there are, so each is judged once. */
#define ALL_OF_SUM "tests/mutate_random.py 3 1 sum"
#define TWO_OF_SUM "tests/mutate_random.py 2 1 sum"

TEST_WITH(test_each_verdict, open_tree, scratch_teardown) {
    expect(mutate(0, ALL_OF_SUM),
           SAYS("caught    src/sum/sum.c:3  by sum/test_sum: sum", "equal     src/sum/sum.c:6",
                "survived  src/sum/sum.c:9", "listed    src/sum/sum.c:12",
                "invalid   src/sum/sum.c:1",
                /* Wilson's interval of 1 in 2: 0.5 -+ z / 2 / sqrt(2 + z^2), and z = 1.96. */
                "sum               1        1        1        1        1        0    50.0%  9.5% "
                "to 90.5%\n",
                "2 of 3 were judged"));
    shell_succeeds("cd '%s' && cat build/mutants/1-sum/survivor-*.diff >diff && grep -qx -e '-    "
                   "return a + 1;' "
                   "diff && grep -qx -e '+    return a + 7;' diff && cmp src/sum/sum.c "
                   "build/mutants/copy-1/tree/src/sum/sum.c && rm diff",
                   scratch_path("."));
    /* What was judged is not run again; a survivor that is listed since does not count. */
    shell_succeeds(
        "cd '%s' && printf 'src/sum/sum.c: neither this\\n-return a + 1;\\n+return a + 7;\\n' "
        ">>tests/equivalent.txt && printf '#!/bin/sh\\n' >generate",
        scratch_path("."));
    expect(mutate(0, "tests/mutate_random.py 1 1 sum"),
           SAYS("5 mutants are there already",
                "sum               1        0        1        2        1 "));
    shell_succeeds("cd '%s' && [ -z \"$(ls build/mutants/1-sum | grep diff)\" ]",
                   scratch_path("."));
}

TEST_WITH(test_a_mutant_that_takes_too_long_is_caught, open_tree, scratch_teardown) {
    expect(mutate(0, "MUTANT_SECONDS=1 tests/mutate_random.py 1 1 loop"),
           SAYS("caught    src/loop/loop.c:3  by its time, 1 s", "  100.0%  20.7% to 100.0%"));
}

TEST_WITH(test_what_survives_is_tried_with_sanitizers, open_tree, scratch_teardown) {
    expect(mutate(0, "SANITIZERS=leak " ALL_OF_SUM),
           SAYS("caught    src/sum/sum.c:3  by sum/test_sum: sum",
                "caught    src/sum/sum.c:9  with sanitizers by sum/test_sum: leaks"));
    shell_succeeds("cd '%s' && cmp src/sum/sum.c build/mutants/copy-1/tree/src/sum/sum.c",
                   scratch_path("."));
}

TEST_WITH(test_python_is_broken_too, open_tree, scratch_teardown) {
    expect(mutate(0, "tests/mutate_random.py 1 4 python"),
           SAYS("caught    python/twice.py:3", "equal     python/twice.py:2",
                "invalid   python/twice.py:1"));
}

TEST_WITH(test_an_interrupt_leaves_nothing_behind_and_the_command_goes_on, open_tree,
          scratch_teardown) {
    free(mutate(0, TWO_OF_SUM));
    shell_succeeds("cd '%s' && mv build/mutants/1-sum/results whole && rm -r build && : >stop",
                   scratch_path("."));
    char *said = mutate(130, TWO_OF_SUM);
    assert_null(strstr(said, "Traceback"));
    free(said);
    shell_succeeds(
        "cd '%s' && [ ! -e stop ] && cmp src/sum/sum.c build/mutants/copy-1/tree/src/sum/sum.c && "
        "! cmp -s build/mutants/1-sum/results whole",
        scratch_path("."));
    /* As a kill would have left it. */
    shell_succeeds(
        "cd '%s/build/mutants/copy-1' && mkdir -p keep/src/sum && cp -p tree/src/sum/sum.c "
        "keep/src/sum && "
        "echo broken >tree/src/sum/sum.c",
        scratch_path("."));
    free(mutate(0, TWO_OF_SUM));
    shell_succeeds("cd '%s' && cmp build/mutants/1-sum/results whole", scratch_path("."));
}

TEST_WITH(test_two_workers_judge_as_one_does, open_tree, scratch_teardown) {
    free(mutate(0, "JOBS=1 tests/mutate_random.py 2 2 sum"));
    shell_succeeds("cd '%s' && mv build/mutants/2-sum whole && rm -r build && : >meet",
                   scratch_path("."));
    free(mutate(0, "JOBS=2 tests/mutate_random.py 2 2 sum"));
    shell_succeeds("cd '%s' && for f in results survivor-6.diff; do cmp build/mutants/2-sum/$f "
                   "whole/$f; done && cmp src/sum/sum.c build/mutants/copy-2/tree/src/sum/sum.c && "
                   "rm -r build ran && echo stop >meet",
                   scratch_path("."));
    /* The later draw is judged and the earlier is not: what is known of it is kept, and not counted. */
    free(mutate(130, "JOBS=2 tests/mutate_random.py 2 2 sum"));
    shell_succeeds("cd '%s' && ! grep -q -e caught -e survived build/mutants/2-sum/results && "
                   "rm meet",
                   scratch_path("."));
    free(mutate(0, "JOBS=2 tests/mutate_random.py 2 2 sum"));
    /* One of the two ran twice. */
    shell_succeeds(
        "cd '%s' && cmp build/mutants/2-sum/results whole/results && [ $(wc -l <ran) = 3 ]",
        scratch_path("."));
    /* A copy that comes later, of a folder whose time is known. */
    shell_succeeds("cd '%s/build/mutants' && [ -s seconds ] && rm -r copy-1 2-sum",
                   scratch_path("."));
    free(mutate(0, "JOBS=2 tests/mutate_random.py 2 2 sum"));
    shell_succeeds("cmp '%s/build/mutants/2-sum/results' '%s/whole/results'", scratch_path("."),
                   scratch_path("."));
}

TEST_WITH(test_tests_that_fail_unbroken_judge_nothing, open_tree, scratch_teardown) {
    write_text("tests/sum/test_sum.c", "int main(void) { return 1; }\n");
    expect(mutate(0, "tests/mutate_random.py 1 1 sum"),
           SAYS("sum: its tests fail unbroken", "not here  src/sum/sum.c:3", "0 of 1 were judged"));
}

TEST_WITH(test_wrong_words_are_refused, open_tree, scratch_teardown) {
    expect(mutate(2, "tests/mutate_random.py ten 1"), SAYS("usage: N SEED [ROOM...]"));
    expect(mutate(2, "tests/mutate_random.py 10 1 sums"),
           SAYS("no room 'sums'; tests/rooms.txt names them: sum loop python"));
    expect(mutate(0, "tests/mutate_random.py --help"), SAYS("drawn at random"));
    expect(mutate(2, "JOBS=none tests/mutate_random.py 1 1"), SAYS("JOBS=none: it is how many"));
    shell_succeeds("mkdir -p '%s'", scratch_path("build/mutants"));
    expect(mutate(2, "flock build/mutants/lock tests/mutate_random.py 1 1"),
           SAYS("another run breaks this copy"));
    write_text("tests/rooms.txt", "sum: sum/ product/\nlost: sum/\n");
    write_text("tests/equivalent.txt", "src/sum/sum.c: gone\n-return;\n+;\n");
    expect(mutate(1, "tests/mutate_random.py --check"),
           SAYS("loop: has no line", "lost: is no folder",
                "sum: no test has 'product/' in its path",
                "'return;' is not a line of src/sum/sum.c"));
}

TEST(test_the_tables_of_this_tree_are_up_to_date) {
    shell_succeeds("python3 tests/mutate_random.py --check");
}

RUN_TESTS(NULL, NULL)

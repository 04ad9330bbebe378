/* The headers themselves: that each stands alone, stays short and that the library exports what they
 * declare, and that programs which have nothing else can train with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROOM = 4096 };

static char build_folder[ROOM]; /* where the library and the examples are */
static char scratch[] = "/tmp/weft-header-XXXXXX";

/* The exit status of a shell command. */
static int shell(const char *format, ...) {
    char command[2 * ROOM];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *const headers[] = {"include/weft/weft.h", "include/weft/graph.h",
                                      "include/weft/step.h"};
enum { HEADERS = 3 };

static void test_each_header_stands_alone_in_c(void **state) {
    (void)state;
    if (shell("command -v cc >/dev/null 2>&1") != 0) {
        printf("there is no cc\n");
        skip();
    }
    for (int i = 0; i < HEADERS; i++)
        assert_int_equal(shell("cc -std=c17 -Wall -Wextra -pedantic -Werror -Iinclude "
                               "-fsyntax-only -x c %s",
                               headers[i]),
                         0);
}

static void test_each_header_stands_alone_in_cpp(void **state) {
    (void)state;
    if (shell("command -v c++ >/dev/null 2>&1") != 0) {
        printf("there is no c++\n");
        skip();
    }
    for (int i = 0; i < HEADERS; i++)
        assert_int_equal(shell("c++ -std=c++11 -Wall -Wextra -pedantic -Werror -Iinclude "
                               "-fsyntax-only -x c++ %s",
                               headers[i]),
                         0);
}

static void test_each_header_stays_short(void **state) {
    (void)state;
    for (int i = 0; i < HEADERS; i++) {
        FILE *file = fopen(headers[i], "r");
        assert_non_null(file);
        int lines = 0;
        for (int c; (c = getc(file)) != EOF;)
            lines += c == '\n';
        fclose(file);
        assert_in_range(lines, 1, 340);
    }
}

static void test_the_library_exports_the_headers_and_nothing_else(void **state) {
    (void)state;
    char library[2 * ROOM];
    snprintf(library, sizeof library, "%s/libweft.so", build_folder);
    if (shell("command -v nm >/dev/null 2>&1") != 0 || access(library, R_OK) != 0) {
        printf("there is no nm, or no %s\n", library);
        skip();
    }
    /* A declaration's first line has its name. */
    assert_int_equal(shell("cat %s %s %s | sed -n '/^WEFT_API/p' | sed 's/(.*//; s/.*[ *]//' | "
                           "sort > %s/declared",
                           headers[0], headers[1], headers[2], scratch),
                     0);
    assert_int_equal(
        shell("nm -D --defined-only '%s' | sed 's/.* //' | grep '^weft_' | sort > %s/exported",
              library, scratch),
        0);
    assert_int_equal(shell("diff %s/declared %s/exported", scratch, scratch), 0);
    assert_int_equal(shell("test $(wc -l < %s/declared) -ge 25", scratch), 0);
}

/* Studies, their database and reports, and the server are the program's. */
static void test_the_library_needs_no_database_and_no_server(void **state) {
    (void)state;
    if (shell("command -v readelf >/dev/null 2>&1") != 0) {
        printf("there is no readelf\n");
        skip();
    }
    static const char needs[] = "readelf -d '%s/%s' | grep NEEDED | grep -qi '%s'";
    assert_int_equal(shell(needs, build_folder, "libweft.so", "libc"), 0);
    assert_int_equal(shell(needs, build_folder, "libweft.so", "sqlite"), 1);
    assert_int_equal(shell(needs, build_folder, "libweft.so", "microhttpd"), 1);
    assert_int_equal(shell(needs, build_folder, "weft", "sqlite"), 0);
}

/* MPI and NCCL are opened when several processes are started, by libraries of their own. */
static void test_neither_library_nor_program_needs_mpi_or_nccl(void **state) {
    (void)state;
    if (shell("command -v ldd >/dev/null 2>&1") != 0) {
        printf("there is no ldd\n");
        skip();
    }
    static const char needs[] = "ldd '%s/%s' | grep -qiE '%s'";
    assert_int_equal(shell(needs, build_folder, "libweft.so", "libc\\."), 0);
    assert_int_equal(shell(needs, build_folder, "libweft.so", "mpi|pmix|nccl"), 1);
    assert_int_equal(shell(needs, build_folder, "weft", "mpi|pmix|nccl"), 1);
}

static void test_the_recall_example_learns(void **state) {
    (void)state;
    const char *runner = getenv("RUNNER");
    assert_int_equal(
        shell("%s '%s/examples/recall' > %s/recall", runner ? runner : "", build_folder, scratch),
        0);
    char path[ROOM];
    snprintf(path, sizeof path, "%s/recall", scratch);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    double loss, recall, first_loss = 0, first_recall = 0, last_loss = 0, last_recall = 0;
    int step, lines = 0;
    while (fscanf(file, "step %d loss %lf recall %lf%% ", &step, &loss, &recall) == 3) {
        if (lines++ == 0) first_loss = loss, first_recall = recall;
        last_loss = loss;
        last_recall = recall;
    }
    fclose(file);
    assert_true(lines > 5);
    assert_true(first_recall < 50 && last_recall > 95);
    assert_true(last_loss < 0.2 * first_loss);
}

static void test_the_block_example_learns(void **state) {
    (void)state;
    const char *runner = getenv("RUNNER");
    assert_int_equal(
        shell("%s '%s/examples/block' > %s/block", runner ? runner : "", build_folder, scratch), 0);
    char path[ROOM];
    snprintf(path, sizeof path, "%s/block", scratch);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    double error, first = 0, last = 0;
    int step, lines = 0;
    while (fscanf(file, "step %d error %lf ", &step, &error) == 2) {
        if (lines++ == 0) first = error;
        last = error;
    }
    fclose(file);
    assert_true(lines > 5);
    assert_true(last < 0.05 * first);
}

static int make_scratch(void **state) {
    (void)state;
    return mkdtemp(scratch) ? 0 : 1;
}

static int remove_scratch(void **state) {
    (void)state;
    return shell("rm -rf '%s'", scratch);
}

int main(int argc, char **argv) {
    (void)argc;
    /* build/tests/api/test_header: three folders up. */
    snprintf(build_folder, sizeof build_folder, "%s", argv[0]);
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(build_folder, '/');
        if (slash) *slash = 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_header_stands_alone_in_c),
        cmocka_unit_test(test_each_header_stands_alone_in_cpp),
        cmocka_unit_test(test_each_header_stays_short),
        cmocka_unit_test(test_the_library_exports_the_headers_and_nothing_else),
        cmocka_unit_test(test_the_library_needs_no_database_and_no_server),
        cmocka_unit_test(test_neither_library_nor_program_needs_mpi_or_nccl),
        cmocka_unit_test(test_the_recall_example_learns),
        cmocka_unit_test(test_the_block_example_learns),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

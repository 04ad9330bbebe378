/* A machine without the optional parts: what is compiled only where they are leaves nothing behind
 * that is unused or undeclared, so that the first `make` there prints no warning. */
#include "support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_sources_compile_cleanly_without_optional_parts(void **state) {
    (void)state;
    static const char flags[] =
        "cc -std=c17 -D_GNU_SOURCE -DWEFT_BLAS_OPENBLAS -Iinclude -Isrc "
        "-Itests -S -o /dev/null -Wall -Wextra -Wshadow -Wconversion -Werror";
    char line[2048];
    snprintf(line, sizeof line, "echo '#include <jansson.h>' | %s -x c - 2>/dev/null", flags);
    if (system(line) != 0) {
        printf("cc alone does not find the libraries' headers here\n");
        skip();
    }
    snprintf(line, sizeof line,
             "files=$(grep -rlE '#if.*WEFT_HAVE_(MICROHTTPD|MPI)' src --include='*.c'); "
             "test -n \"$files\" && for file in $files; do %s \"$file\" || exit 1; done >'%s' 2>&1",
             flags, scratch_path("said.txt"));
    if (system(line) == 0) return;
    fail_msg("%s", file_read(scratch_path("said.txt"), NULL));
}

/* As the guide has it; the tests are run in another folder. */
static void test_the_torch_tests_take_a_relative_python(void **state) {
    (void)state;
    char line[2048];
    snprintf(line, sizeof line,
             "unset MAKEFLAGS MAKELEVEL; make -n test-torch SETUP=no SAN= PYTHON=venv/bin/python "
             ">'%s' 2>&1 && grep -q \" $PWD/venv/bin/python -m pytest\" '%s'",
             scratch_path("said.txt"), scratch_path("said.txt"));
    if (system(line) == 0) return;
    fail_msg("%s", file_read(scratch_path("said.txt"), NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_torch_tests_take_a_relative_python),
        cmocka_unit_test(test_sources_compile_cleanly_without_optional_parts),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* The page of the documentation that moves: its numbers are its formulas', in a browser. */
#include "support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

static void test_what_can_be_moved_shows_the_formulas_numbers(void **state) {
    (void)state;
    char line[1024];
    snprintf(line, sizeof line, "python3 tests/docs/explainer.py '%s'", scratch_path("."));
    int status = system(line); /* NOLINT */
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_can_be_moved_shows_the_formulas_numbers),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

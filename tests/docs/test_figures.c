/* Tables that a command computes stand in the documents as it prints them. */
#include "support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINE_ROOM = 512 };

static void test_scaling_has_the_models_table(void **state) {
    (void)state;
    char line[LINE_ROOM];
    size_t n;
    int lines = 0;
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    char *page = file_read("docs/results/scaling.md", &n);
    FILE *program = popen("python3 bench/scale.py model", "r");
    assert_non_null(program);
    for (; fgets(line, sizeof line, program); lines++)
        if (!strstr(page, line)) fail_msg("docs/results/scaling.md has not: %s", line);
    assert_int_equal(pclose(program), 0);
    assert_true(lines == 11);
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaling_has_the_models_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

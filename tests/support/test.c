#include "test.h"

#include <stdlib.h>

static struct CMUnitTest *tests;
static size_t n_tests;

void test_list(const struct CMUnitTest *test) {
    tests = realloc(tests, (n_tests + 1) * sizeof *tests);
    if (!tests) abort();
    tests[n_tests++] = *test;
}

void expect_ok(weft_status status) {
    if (status != WEFT_OK) fail_msg("%s", weft_error_message());
}

bool test_is_quick(void) {
    const char *quick = getenv("WEFT_QUICK");
    return quick && *quick;
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

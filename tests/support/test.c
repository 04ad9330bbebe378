#include "test.h"

#include <stdlib.h>

enum { TESTS_MOST = 128 };

static struct CMUnitTest tests[TESTS_MOST];
static size_t n_tests;

void test_list(const struct CMUnitTest *test) {
    if (n_tests == TESTS_MOST) abort();
    tests[n_tests++] = *test;
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

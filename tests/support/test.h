/* The frame of a test program: cmocka with what it needs, tests that list themselves where they are defined,
 * and the program's main.
 *
 *     TEST(test_a_thing_is_so) {
 *         assert_true(...);
 *     }
 *
 *     RUN_TESTS(scratch_setup, scratch_teardown)
 *
 * Tests run in the order of the file. */
#ifndef WEFT_TESTS_TEST_H
#define WEFT_TESTS_TEST_H

#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A test with a setup and a teardown of its own, each of which may be NULL. */
#define TEST_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void list_##name(void) {                                   \
        test_list(&(struct CMUnitTest){#name, name, setup, teardown, NULL});                       \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* main: the tests, between a setup and a teardown of all of them, each of which may be NULL. */
#define RUN_TESTS(setup, teardown)                                                                 \
    int main(void) {                                                                               \
        return tests_run(setup, teardown);                                                         \
    }

/* Fails with weft's message unless a call succeeded. */
void expect_ok(weft_status status);

/* Whether a part of the cases is to do (QUICK=1), as under compute-sanitizer. */
bool test_is_quick(void);

void test_list(const struct CMUnitTest *test);
int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif

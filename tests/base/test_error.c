/* Errors are values with a message of the calling thread's own. */
#include "base/error.h"
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

TEST(test_a_failure_returns_its_status_and_leaves_a_message) {
    assert_string_equal(weft_error_message(), "");
    assert_int_equal(weft_fail(WEFT_EIO, "%s: %d", "disk", 7), WEFT_EIO);
    assert_string_equal(weft_error_message(), "disk: 7");
    assert_int_equal(weft_fail(WEFT_EINPUT, "other"), WEFT_EINPUT);
    assert_string_equal(weft_error_message(), "other");
}

TEST(test_a_message_may_wrap_the_one_before) {
    weft_fail(WEFT_EINPUT, "inner");
    weft_fail(WEFT_EINPUT, "outer: %s", weft_error_message());
    assert_string_equal(weft_error_message(), "outer: inner");
}

TEST(test_a_long_message_is_cut) {
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    weft_fail(WEFT_EINPUT, "%s", text);
    size_t length = strlen(weft_error_message());
    assert_true(length > 500 && length < sizeof text);
}

static weft_status give(weft_status status) {
    return status;
}

static weft_status try_twice(weft_status first, int *reached) {
    WEFT_TRY(give(first));
    *reached += 1;
    WEFT_TRY(give(WEFT_OK));
    return WEFT_EBUG;
}

TEST(test_try_leaves_at_the_first_failure) {
    int reached = 0;
    assert_int_equal(try_twice(WEFT_ENOMEM, &reached), WEFT_ENOMEM);
    assert_int_equal(reached, 0);
    assert_int_equal(try_twice(WEFT_OK, &reached), WEFT_EBUG);
    assert_int_equal(reached, 1);
}

static void *fail_elsewhere(void *seen) {
    snprintf(seen, 64, "[%s]", weft_error_message());
    weft_fail(WEFT_EINPUT, "from the other thread");
    return NULL;
}

TEST(test_a_message_belongs_to_its_thread) {
    weft_fail(WEFT_EINPUT, "from this thread");
    pthread_t thread;
    char seen[64];
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, "[]");
    assert_string_equal(weft_error_message(), "from this thread");
}

TEST(test_the_version_is_that_of_the_header) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
             WEFT_VERSION_PATCH);
    assert_string_equal(weft_version(), text);
}

RUN_TESTS(NULL, NULL)

/* WEFT_PROFILE: a command tells where its time went, by operation. */
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *profile_of(const char *kind, const char *name) {
    setenv("WEFT_PROFILE", kind, 1);
    command_result r = command_run(RUN("train", "--config", scratch_path("config"), "--out",
                                       scratch_path("%s", name), "-o", "STEPS=2"));
    unsetenv("WEFT_PROFILE");
    if (r.status != 0) fail_msg("%s", r.err);
    free(r.out);
    return r.err;
}

/* Checks one table; where it ends. */
static const char *check_table(const char *at) {
    double runs, ms, sum = 0, last = 1e9;
    int rows = 0, used = 0;
    assert_int_equal(sscanf(at, "profile: %lf runs of %lf ms\n", &runs, &ms), 2);
    assert_true(runs >= 1);
    at = strchr(at, '\n') + 1;
    assert_non_null(strstr(at, "GFLOP/s"));
    at = strchr(at, '\n') + 1;
    for (; strncmp(at, "  ", 2) == 0; at = strchr(at, '\n') + 1, rows++) {
        char name[64];
        double nodes, took, share;
        assert_int_equal(sscanf(at, "%63s %lf %lf %lf%%%n", name, &nodes, &took, &share, &used), 4);
        assert_true(nodes >= 1);
        assert_true(took <= last); /* the most first */
        last = took;
        sum += share;
    }
    assert_true(rows > 2);
    /* Each share is rounded to a tenth. */
    if (ms > 0.01) assert_true(fabs(sum - 100) < 0.06 * rows);
    return at;
}

TEST(test_shares_of_a_profile_are_all_of_the_time) {
    WEFT_AUTO_FREE char *text = profile_of("1", "plain");
    int tables = 0;
    for (const char *at = strstr(text, "profile: "); at; at = strstr(at, "profile: "), tables++)
        at = check_table(at);
    assert_true(tables > 0);
    assert_non_null(strstr(text, "matmul"));
    assert_null(strstr(text, "matmul ["));
}

TEST(test_a_profile_by_shapes_names_them) {
    WEFT_AUTO_FREE char *text = profile_of("shapes", "shapes");
    assert_non_null(strstr(text, "profile: "));
    assert_non_null(strstr(text, "matmul f32 ["));
    assert_non_null(strstr(text, " < f32 ["));
}

static int begin(void **state) {
    scratch_setup(state);
    train_config(scratch_path("config"));
    return 0;
}

RUN_TESTS(begin, scratch_teardown)

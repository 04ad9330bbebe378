/* The documentation as a site, and its page that moves: in a browser, where there is one. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

/* Runs a program of this folder, which ends on 77 where something that it needs is missing. */
static void run_check(const char *words) {
    char line[1024];
    snprintf(line, sizeof line, "python3 tests/docs/%s '%s'", words, scratch_path("."));
    int status = system(line); /* NOLINT */
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(test_what_can_be_moved_shows_the_formulas_numbers) {
    run_check("explainer.py");
}

TEST(test_the_site_holds_every_page) {
    char words[512];
    const char *weft = getenv("WEFT");
    snprintf(words, sizeof words, "site.py '%s'", weft ? weft : "build/weft");
    run_check(words);
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* The list of breaks that `make mutate` makes, tests/mutations.txt, is up to date: the text of each is
 * in its file exactly once. That a test notices the break is `make mutate`'s to show, which takes an
 * hour; this takes a second. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

TEST(test_every_break_is_of_a_text_that_is_there) {
    char line[1024];
    snprintf(line, sizeof line, "bash tests/mutate --check >'%s' 2>&1", scratch_path("said"));
    int status = system(line); /* NOLINT(concurrency-mt-unsafe): one thread */
    char *said = file_read(scratch_path("said"), NULL);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("%s", said);
    free(said);
}

RUN_TESTS(scratch_setup, scratch_teardown)

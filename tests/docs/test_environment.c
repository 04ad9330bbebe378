/* Every variable of the environment that the sources read stands in the documentation. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#define PAGES "docs/internals/formats.md docs/internals/cuda.md"

/* Prints the names in quotes under `folder` that no page has. */
#define UNTOLD(folder, pages)                                                                      \
    "grep -rhoE '\"WEFT_[A-Z0-9_]+\"' " folder " | tr -d '\"' | sort -u | while read -r name; do " \
    "grep -qE \"\\`$name[\\`=]\" " pages " || echo $name; done"

/* The first line that a command prints; empty: none. */
static void first_line(const char *command, char *line, int room) {
    FILE *out = popen(command, "r");
    assert_non_null(out);
    *line = '\0';
    if (fgets(line, room, out)) line[strcspn(line, "\n")] = '\0';
    while (fgetc(out) != EOF)
        ;
    pclose(out);
}

TEST(test_every_variable_is_documented) {
    char name[128];
    first_line(UNTOLD("src", PAGES), name, sizeof name);
    if (*name) fail_msg("%s is read by the sources and stands in none of " PAGES, name);
}

/* The test must be able to fail. */
TEST(test_a_variable_that_is_not_there_is_found) {
    char name[128];
    first_line(UNTOLD("src/base", "README.md"), name, sizeof name);
    assert_string_equal(name, "WEFT_LOG");
}

RUN_TESTS(NULL, NULL)

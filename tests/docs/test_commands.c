/* The commands of README.md and of the guide run as they stand there: commands.py takes them from the
 * pages, runs them in order in a copy of the repository's root, and names those that fail. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Runs commands.py; what it prints is the caller's to free. */
static int run_pages(const char *folder, const char *pages, char **said) {
    char line[2048];
    const char *weft = getenv("WEFT");
    mkdir(scratch_path("%s", folder), 0777);
    snprintf(line, sizeof line, "python3 tests/docs/commands.py '%s' '%s' %s >'%s' 2>&1",
             weft ? weft : "build/weft", scratch_path("%s", folder), pages,
             scratch_path("said.txt"));
    int status = system(line);
    *said = file_read(scratch_path("said.txt"), NULL);
    return status;
}

TEST(test_the_commands_of_every_page_run) {
    char *said;
    if (run_pages("all", "", &said) != 0) fail_msg("%s", said);
    assert_non_null(strstr(said, "docs/guide/studies.md: "));
    free(said);
}

/* The test must be able to fail: by a command that fails, by a program that it does not know, and by a page
 * without any command. */
TEST(test_a_command_that_fails_is_found) {
    static const char page[] =
        "# A page\n\n    weft plan -o N_LAYER=2\n    weft plan -o N_LAYERS=2\n    loom up\n";
    static const char empty[] = "# A page\n\n    int x;\n";
    char *said, name[512];
    file_write(scratch_path("page.md"), page, sizeof page - 1);
    snprintf(name, sizeof name, "'%s'", scratch_path("page.md"));
    assert_int_not_equal(run_pages("wrong", name, &said), 0);
    assert_non_null(strstr(said, "2 commands run, 2 failed"));
    assert_non_null(strstr(said, "a program that this test does not know: loom up"));
    assert_non_null(strstr(said, "weft plan -o N_LAYERS=2\n    ended on 2: "));
    free(said);
    file_write(scratch_path("page.md"), empty, sizeof empty - 1);
    assert_int_not_equal(run_pages("empty", name, &said), 0);
    free(said);
}

/* A reader of both pages would find the second command refused, or the one's runs beside the other's. */
TEST(test_a_folder_of_two_pages_is_found) {
    static const char one[] =
        "# One\n\n    weft study --config defconfigs/demo --out runs/x --list\n";
    static const char two[] =
        "# Two\n\n    weft study --config defconfigs/demo --out runs/x/y --list\n";
    char *said, names[1024];
    file_write(scratch_path("one.md"), one, sizeof one - 1);
    file_write(scratch_path("two.md"), two, sizeof two - 1);
    snprintf(names, sizeof names, "'%s' '%s'", scratch_path("one.md"), scratch_path("two.md"));
    assert_int_not_equal(run_pages("two", names, &said), 0);
    assert_non_null(strstr(said, "writes into runs/x, which is a folder of "));
    free(said);
}

/* The pages on adding something, followed in a copy of the tree. */
static void follow_pages(const char *name, const char *options) {
    char line[4096];
    const char *tree = scratch_path("%s", name), *said = scratch_path("%s.txt", name);
    snprintf(line, sizeof line,
             "mkdir '%s' && cp -a Makefile Kconfig weft.pc.in README.md CHANGELOG.md "
             "CONTRIBUTING.md SECURITY.md "
             "LICENSE bench completions defconfigs docs examples include mk python scripts src "
             "tests '%s' && env -u MAKEFLAGS -u MAKELEVEL python3 tests/docs/follow.py '%s' %s "
             ">'%s' 2>&1",
             tree, tree, tree, options, said);
    if (system(line) != 0) {
        char *text = file_read(said, NULL), *wrong = strstr(text, "FAILED ");
        fail_msg("%s", wrong ? wrong : text);
    }
}

TEST(test_what_the_pages_on_adding_change_is_there) {
    follow_pages("places", "--places");
}

/* Which is then built and tested. */
TEST(test_the_pages_on_adding_can_be_followed) {
    if (!getenv("WEFT_TEST_LONG")) {
        print_message("builds weft in a copy: make test-long does\n");
        skip();
    }
    follow_pages("tree", "");
}

RUN_TESTS(scratch_setup, scratch_teardown)

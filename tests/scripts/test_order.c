/* The order of the folders, and names: that the tree keeps to them, and that what does not is found. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Runs a script on a tree; what it prints is the caller's to free. */
static int run_script(const char *script, const char *tree, char **said) {
    char line[1024];
    snprintf(line, sizeof line, "sh scripts/%s '%s' >'%s' 2>&1", script, tree,
             scratch_path("said"));
    int status = system(line); /* NOLINT(concurrency-mt-unsafe): one thread */
    assert_true(WIFEXITED(status));
    *said = file_read(scratch_path("said"), NULL);
    return WEXITSTATUS(status);
}

static void write_text(const char *path, const char *text) {
    file_write(path, text, strlen(text));
}

/* A tree of two folders, of which `high` may include from `low`. */
static void make_tree(const char *low, const char *high) {
    mkdir(scratch_path("src"), 0755);
    mkdir(scratch_path("src/low"), 0755);
    mkdir(scratch_path("src/high"), 0755);
    write_text(scratch_path("src/ORDER"), "# lowest first\nlow:\nhigh: low\n");
    write_text(scratch_path("src/low/a.h"), low);
    write_text(scratch_path("src/high/b.c"), high);
}

static void expect(int status, const char *words) {
    char *said;
    int is = run_script("order", scratch_path("."), &said);
    if (is != status || !strstr(said, words))
        fail_msg("ended on %d, expected %d and '%s': %s", is, status, words, said);
    free(said);
}

TEST_WITH(test_no_type_is_defined_twice, scratch_setup, scratch_teardown) {
    char *said;
    if (run_script("names", ".", &said) != 0) fail_msg("%s", said);
    free(said);
    mkdir(scratch_path("include"), 0755);
    make_tree("typedef struct weft_a weft_a;\ntypedef struct {\n    int b;\n} weft_b;\n",
              "struct weft_a {\n    int a;\n};\n");
    assert_int_equal(run_script("names", scratch_path("."), &said), 0);
    free(said);
    make_tree("struct weft_a {\n    int a;\n};\n", "struct weft_a {\n    int a;\n};\n");
    assert_int_equal(run_script("names", scratch_path("."), &said), 1);
    assert_non_null(strstr(said, "weft_a: src/high/b.c:1 and src/low/a.h:1"));
    free(said);
    make_tree("typedef struct {\n    int b;\n} b;\n",
              "typedef struct {\n    int b;\n} weft_b;\ntypedef enum {\n    B\n} weft_b;\n");
    assert_int_equal(run_script("names", scratch_path("."), &said), 1);
    assert_non_null(strstr(said, "weft_b: src/high/b.c:3 and src/high/b.c:6"));
    free(said);
}

TEST_WITH(test_every_include_goes_down, scratch_setup, scratch_teardown) {
    char *said;
    if (run_script("order", ".", &said) != 0) fail_msg("%s", said);
    free(said);
}

TEST_WITH(test_an_include_that_goes_up_is_found, scratch_setup, scratch_teardown) {
    make_tree("#include \"low/c.h\"\n", "#include <stdio.h>\n#include \"low/a.h\"\n");
    expect(0, "");
    make_tree("/* a */\n#include \"high/b.h\"\n", "");
    expect(1, "src/low/a.h:2: low may not include \"high/b.h\"");
    make_tree("#include \"c.h\"\n", "");
    expect(1, "src/low/a.h:1: \"c.h\" names no folder");
}

TEST_WITH(test_a_folder_without_a_line_is_found, scratch_setup, scratch_teardown) {
    make_tree("", "");
    mkdir(scratch_path("src/new"), 0755);
    expect(1, "no line for new");
}

TEST_WITH(test_a_folder_has_one_line, scratch_setup, scratch_teardown) {
    make_tree("", "");
    write_text(scratch_path("src/ORDER"), "low:\nhigh:\nhigh: low\n");
    expect(1, "high has two lines");
}

TEST_WITH(test_the_order_has_no_circle, scratch_setup, scratch_teardown) {
    make_tree("", "");
    write_text(scratch_path("src/ORDER"), "low: high\nhigh: low\n");
    expect(1, "low may not use high");
}

/* What is measured or made is stored packed, or by what it sums to: see docs/results/unpack, tests/reference/README.md. */
TEST_WITH(test_the_tree_stays_small, scratch_setup, scratch_teardown) {
    enum { MOST_BYTES = 12000000 };
    char *said;
    int status = system("git ls-files --error-unmatch scripts/size >/dev/null 2>&1"); /* NOLINT */
    if (status != 0) {
        printf("this is no clone\n");
        skip();
    }
    if (run_script("size", ".", &said) != 0) fail_msg("%s", said);
    const char *all = strstr(said, "\nall ");
    assert_non_null(all);
    if (strtol(all + 5, NULL, 10) > MOST_BYTES)
        fail_msg("all files have %ld bytes, more than %d", strtol(all + 5, NULL, 10), MOST_BYTES);
    free(said);
}

RUN_TESTS(NULL, NULL)

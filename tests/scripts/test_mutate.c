/* tests/mutate: --help tells what it does, and an option that it does not know begins nothing. BUILD is
 * a file here, not a folder, so that even a tests/mutate that would begin ends before it builds. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs it with those words; `out` and `err` in the scratch folder are what it said. */
static void mutate_ends(int status, const char *words) {
    file_write(scratch_path("file"), "", 0);
    shell_succeeds("BUILD='%s' tests/mutate %s >'%s' 2>'%s'; [ $? = %d ]", scratch_path("file"),
                   words, scratch_path("out"), scratch_path("err"), status);
}

static void expect_text(const char *file, const char *text) {
    char *said = file_read(scratch_path("%s", file), NULL);
    assert_string_equal(said, text);
    free(said);
}

TEST(test_help_tells_what_it_does_and_its_options) {
    static const char *const parts[] = {"\n  tests/mutate [WORD] ", "\n  tests/mutate --check ",
                                        "\n  tests/mutate --copy ", "\n  tests/mutate --make ",
                                        "\n  tests/mutate --help ", "tests/mutations.txt"};
    mutate_ends(0, "--help");
    expect_text("err", "");
    char *said = file_read(scratch_path("out"), NULL);
    assert_ptr_equal(strstr(said, "Breaks one line "), said);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(said, parts[i])) fail_msg("'%s' is not in: %s", parts[i], said);
    assert_null(strstr(said, "set -u")); /* it ends where the code begins */
    free(said);
}

TEST(test_an_unknown_option_is_refused) {
    static const struct {
        const char *words, *option;
    } cases[] = {{"--chek", "--chek"}, {"-n", "-n"}, {"rope --all", "--all"}, {"--check -x", "-x"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "tests/mutate: unknown option '%s'; tests/mutate --help names the options\n",
                 cases[i].option);
        mutate_ends(2, cases[i].words);
        expect_text("out", "");
        expect_text("err", line);
    }
}

TEST(test_a_second_word_is_refused) {
    mutate_ends(2, "rope softmax");
    expect_text("out", "");
    expect_text("err", "tests/mutate: one WORD at most; tests/mutate --help says more\n");
}

/* What make was called with stands in MAKEFLAGS: BUILD of this tree must not be the copy's. */
TEST(test_the_copy_is_built_with_the_settings_of_the_build) {
    static const char key[] = "CC=my cc DEPS= PKG_CONFIG=p NVCC=none CUDA= cuda=y\n";
    static const char makefile[] = "all:\n\t@echo '$(CC)' $(NVCC) $(BUILD) $(WERROR) $(T)\n";
    shell_succeeds("mkdir -p '%s'", scratch_path("copy/tree"));
    file_write(scratch_path("config.key"), key, sizeof key - 1);
    file_write(scratch_path("copy/tree/Makefile"), makefile, sizeof makefile - 1);
    shell_succeeds(
        "env -u CC -u NVCC MAKEFLAGS=' -- BUILD=other T=word' BUILD='%s' COPY='%s' tests/mutate "
        "--make all >'%s' 2>/dev/null",
        scratch_path("."), scratch_path("copy"), scratch_path("out"));
    expect_text("out", "my cc none build no word\n");
    shell_succeeds(
        "env -u T CC=cc NVCC=nvcc MAKEFLAGS= BUILD='%s' COPY='%s' tests/mutate --make all >'%s'",
        scratch_path("."), scratch_path("copy"), scratch_path("out"));
    expect_text("out", "cc nvcc build no\n");
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* A machine without the optional parts: what is compiled only where they are leaves nothing behind
 * that is unused or undeclared, so that the first `make` there prints no warning; and build/bare/weft,
 * the program that is linked there (mk/tests.mk), says what it lacks. */
#include "support/command.h"
#include "support/http.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(test_sources_compile_cleanly_without_optional_parts) {
    static const char flags[] =
        "cc -std=c17 -D_GNU_SOURCE -Iinclude -Isrc "
        "-Itests -S -o /dev/null -Wall -Wextra -Wshadow -Wconversion -Werror";
    char line[2048];
    snprintf(line, sizeof line, "echo '#include <jansson.h>' | %s -x c - 2>/dev/null", flags);
    if (system(line) != 0) {
        printf("cc alone does not find the libraries' headers here\n");
        skip();
    }
    snprintf(line, sizeof line,
             "files=$(grep -rlE '#if.*WEFT_HAVE_(MICROHTTPD|MPI|UTF8PROC|ZLIB|ZSTD)' src "
             "--include='*.c'); "
             "test -n \"$files\" && for file in $files; do %s \"$file\" || exit 1; done >'%s' 2>&1",
             flags, scratch_path("said.txt"));
    if (system(line) == 0) return;
    fail_msg("%s", file_read(scratch_path("said.txt"), NULL));
}

/* WEFT ends on the program's path. */
static void use_bare_program(void) {
    const char *weft = getenv("WEFT");
    char bare[1024];
    if (!weft) weft = "build/weft";
    snprintf(bare, sizeof bare, "%.*sbare/weft", (int)(strlen(weft) - strlen("weft")), weft);
    setenv("WEFT", bare, 1);
}

TEST(test_the_bare_program_says_what_it_lacks) {
    static const char *const parts[] = {"cuda", "mpi", "http", "utf8proc"};
    char model[512];
    use_bare_program();
    json_t *version = command_json(RUN("version", "--json"));
    for (int i = 0; i < 4; i++)
        assert_true(json_is_false(json_object_get(version, parts[i])));
    json_decref(version);
    server_model(model, sizeof model);
    command_fails(1, RUN("watch", model, "--port", "0"),
                  SAYS("without libmicrohttpd", "scripts/setup optional"));
    command_fails(1, RUN("serve", "--model", model, "--port", "0"),
                  SAYS("without libmicrohttpd", "scripts/setup optional"));
    command_fails(1,
                  RUN("serve", "--model", "nowhere", "--port", "0"), /* before anything is read */
                  SAYS("without libmicrohttpd", "scripts/setup optional"));
    command_fails(1, RUN("verify", "--device", "cuda"), SAYS("built without it", "make configure"));
    static const char *const packed[][2] = {{"\x1F\x8B\x08\0", "without zlib"},
                                            {"\x28\xB5\x2F\xFD", "without libzstd"}};
    for (int i = 0; i < 2; i++) {
        file_write(scratch_path("packed"), packed[i][0], 4);
        command_fails(1, RUN("tokenize", "--out", scratch_path("out"), scratch_path("packed")),
                      SAYS(packed[i][1], "scripts/setup optional"));
    }
}

/* As the guide has it; the tests are run in another folder. */
TEST(test_the_torch_tests_take_a_relative_python) {
    char line[2048];
    snprintf(line, sizeof line,
             "unset MAKEFLAGS MAKELEVEL; make -n test-torch SETUP=no SAN= PYTHON=venv/bin/python "
             ">'%s' 2>&1 && grep -q \" $PWD/venv/bin/python -m pytest\" '%s'",
             scratch_path("said.txt"), scratch_path("said.txt"));
    if (system(line) == 0) return;
    fail_msg("%s", file_read(scratch_path("said.txt"), NULL));
}

RUN_TESTS(scratch_setup, scratch_teardown)

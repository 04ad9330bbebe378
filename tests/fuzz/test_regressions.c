/* Every input that is kept, through the functions that `make fuzz` runs: tests/fuzz/inputs, from which
 * it starts, and tests/fuzz/regressions, which once broke something. `test_regressions TARGET FILE...`
 * runs those files alone. */
#include "core/folders.h"
#include "fuzz/fuzz.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    const char *name;
    bool (*run)(const uint8_t *data, size_t size);
} target;

#define FUZZ_ROW(name) {#name, fuzz_##name},
static const target targets[] = {FUZZ_TARGETS(FUZZ_ROW)};
enum { TARGETS = sizeof targets / sizeof targets[0], SECONDS = 20, FILE_MOST = 1 << 20 };

/* Whether the reader took it. */
static bool run_file(const target *t, const char *path) {
    char *text;
    size_t bytes;
    if (weft_file_read(path, FILE_MOST, &text, &bytes) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    /* A copy of that size alone, so that a byte past its end is noticed. */
    uint8_t *data = malloc(bytes ? bytes : 1);
    assert_non_null(data);
    memcpy(data, text, bytes);
    free(text);
    printf("%s\n", path); /* the last of these is the one that ended the program */
    fflush(stdout);
    alarm(SECONDS);
    bool taken = t->run(data, bytes);
    alarm(0);
    free(data);
    return taken;
}

/* How many there were, and how many of them the reader took. */
static int run_folder(const target *t, const char *kind, int *taken) {
    char folder[WEFT_PATH_MAX], path[WEFT_PATH_MAX];
    weft_names names;
    weft_kind is;
    snprintf(folder, sizeof folder, "tests/fuzz/%s/%s", kind, t->name);
    assert_int_equal(weft_path_kind(folder, &is), WEFT_OK);
    *taken = 0;
    if (is == WEFT_KIND_NOTHING) return 0;
    assert_int_equal(weft_folder_list(folder, &names), WEFT_OK);
    for (int i = 0; i < names.n; i++) {
        snprintf(path, sizeof path, "%.2000s/%.2000s", folder, names.list[i]);
        *taken += run_file(t, path);
    }
    int n = names.n;
    weft_names_free(&names);
    return n;
}

static void test_reader_takes_or_refuses_every_kept_input(void **state) {
    const target *t = *state;
    int taken, inputs = run_folder(t, "inputs", &taken);
    /* From one that is refused a fuzzer sees little of the reader. */
    assert_int_equal(taken, inputs);
    assert_true(inputs > 0);
    run_folder(t, "regressions", &taken);
    t->run((const uint8_t *)"", 0);
}

static int run_named(int n, char **words) {
    for (int i = 0; i < TARGETS; i++) {
        if (strcmp(targets[i].name, words[1]) != 0) continue;
        for (int k = 2; k < n; k++)
            printf("%s\n", run_file(&targets[i], words[k]) ? "taken" : weft_error_message());
        return 0;
    }
    fprintf(stderr, "there is no target '%s'\n", words[1]);
    return 2;
}

int main(int n, char **words) {
    static char names[TARGETS][96];
    struct CMUnitTest tests[TARGETS];
    if (n > 2) return run_named(n, words);
    for (int i = 0; i < TARGETS; i++) {
        snprintf(names[i], sizeof names[i], "test_reader_takes_or_refuses_every_kept_input(%s)",
                 targets[i].name);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = test_reader_takes_or_refuses_every_kept_input,
                                       .initial_state = (void *)(uintptr_t)&targets[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

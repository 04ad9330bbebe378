/* Every input that is kept, through the functions that `make fuzz` runs: tests/fuzz/inputs, from which
 * it starts, and tests/fuzz/regressions, which once broke something.
 *
 * `test_regressions TARGET FILE...` runs those files alone. `test_regressions --mutate TARGET SEED
 * SECONDS` changes the kept inputs at random for so long: no coverage leads it, but any compiler and any
 * sanitizer will do (make test-hostile). The input at hand is kept in a file that it names. */
#include "base/clock.h"
#include "base/folders.h"
#include "fuzz/fuzz.h"
#include "support/command.h"

#include <limits.h>
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
    alarm(SECONDS * (unsigned)command_patience());
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

enum { KEPT_MOST = 256, MUTANT_MOST = 1 << 16 };

typedef struct {
    uint8_t *data[KEPT_MOST];
    size_t size[KEPT_MOST];
    int n;
    uint64_t random;
} kept_inputs;

/* SplitMix64. */
static uint64_t draw(kept_inputs *k, uint64_t below) {
    uint64_t x = k->random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

static void keep_folder(kept_inputs *k, const char *kind, const char *name) {
    char folder[WEFT_PATH_MAX], path[WEFT_PATH_MAX];
    weft_names names;
    weft_kind is;
    snprintf(folder, sizeof folder, "tests/fuzz/%s/%s", kind, name);
    if (weft_path_kind(folder, &is) != WEFT_OK || is == WEFT_KIND_NOTHING) return;
    if (weft_folder_list(folder, &names) != WEFT_OK) return;
    for (int i = 0; i < names.n && k->n < KEPT_MOST; i++) {
        char *text;
        snprintf(path, sizeof path, "%.2000s/%.2000s", folder, names.list[i]);
        if (weft_file_read(path, MUTANT_MOST / 2, &text, &k->size[k->n]) != WEFT_OK) continue;
        k->data[k->n++] = (uint8_t *)text;
    }
    weft_names_free(&names);
}

/* A number in the text becomes one at the edge of a type. */
static size_t edge_number(kept_inputs *k, uint8_t *data, size_t size) {
    static const char *const edges[] = {"0",
                                        "-1",
                                        "255",
                                        "65536",
                                        "2147483648",
                                        "4294967296",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "1e308",
                                        "1e999",
                                        "0.5",
                                        "nan"};
    size_t at = (size_t)draw(k, size), end;
    while (at < size && (data[at] < '0' || data[at] > '9'))
        at++;
    for (end = at; end < size && data[end] >= '0' && data[end] <= '9';)
        end++;
    const char *edge = edges[draw(k, sizeof edges / sizeof edges[0])];
    size_t n = strlen(edge);
    if (end == at || size + n > MUTANT_MOST) return size;
    memmove(data + at + n, data + end, size - end);
    memcpy(data + at, edge, n);
    return size - (end - at) + n;
}

static size_t mutate_once(kept_inputs *k, uint8_t *data, size_t size) {
    static const uint8_t bytes[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '}', '[', '\n', '\\', ','};
    size_t at = (size_t)draw(k, size + 1), n = 1 + (size_t)draw(k, 16);
    const int other = (int)draw(k, (uint64_t)k->n);
    switch (draw(k, 8)) {
    case 0:
        if (at < size) data[at] ^= (uint8_t)(1u << draw(k, 8));
        return size;
    case 1:
        if (at < size) data[at] = bytes[draw(k, sizeof bytes)];
        return size;
    case 2:
        if (at < size) data[at] = (uint8_t)draw(k, 256);
        return size;
    case 3: /* taken out */
        if (at + n > size) return size;
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 4: /* doubled */
        if (at + n > size || size + n > MUTANT_MOST) return size;
        memmove(data + at + n, data + at, size - at);
        return size + n;
    case 5: /* the end of another */
        if (at > k->size[other] || k->size[other] > MUTANT_MOST) return size;
        memcpy(data + at, k->data[other] + at, k->size[other] - at);
        return k->size[other];
    case 6: /* cut off */
        return at;
    default:
        return size ? edge_number(k, data, size) : 0;
    }
}

/* For so long, or so many. */
static int run_mutants(const target *t, uint64_t seed, double seconds, long most) {
    kept_inputs k = {.random = seed};
    long runs = 0, taken = 0;
    double start = weft_clock();
    keep_folder(&k, "inputs", t->name);
    keep_folder(&k, "regressions", t->name);
    uint8_t *data = malloc(MUTANT_MOST);
    if (!k.n || !data) exit(2);
    fprintf(stderr, "%s: the input at hand is %s\n", t->name, fuzz_path("at-hand"));
    for (; runs < most && weft_clock() - start < seconds; runs++) {
        int which = (int)draw(&k, (uint64_t)k.n);
        size_t size = k.size[which];
        memcpy(data, k.data[which], size);
        for (uint64_t left = 1 + draw(&k, 6); left; left--)
            size = mutate_once(&k, data, size);
        uint8_t *copy = malloc(size ? size : 1);
        if (!copy) exit(2);
        memcpy(copy, data, size);
        fuzz_file("at-hand", data, size);
        alarm(SECONDS * (unsigned)command_patience());
        taken += t->run(copy, size);
        alarm(0);
        free(copy);
    }
    printf("%-16s %10ld mutants, %ld taken, seed %llu\n", t->name, runs, taken,
           (unsigned long long)seed);
    for (int i = 0; i < k.n; i++)
        free(k.data[i]);
    free(data);
    return 0;
}

static int run_mutants_of(const char *name, const char *seed, const char *seconds) {
    for (int i = 0; i < TARGETS; i++)
        if (strcmp(targets[i].name, name) == 0)
            return run_mutants(&targets[i], strtoull(seed, NULL, 10), strtod(seconds, NULL),
                               LONG_MAX);
    fprintf(stderr, "there is no target '%s'\n", name);
    return 2;
}

/* A sample, always the same one; a database is slow. */
static void test_reader_takes_or_refuses_what_was_changed_at_random(void **state) {
    const target *t = *state;
    fuzz_every_way = false;
    assert_int_equal(run_mutants(t, 1, 600, strcmp(t->name, "runs_db") == 0 ? 8 : 150), 0);
    fuzz_every_way = true;
}

int main(int n, char **words) {
    static char names[2 * TARGETS][96];
    struct CMUnitTest tests[2 * TARGETS];
    if (n == 5 && strcmp(words[1], "--mutate") == 0)
        return run_mutants_of(words[2], words[3], words[4]);
    fuzz_every_way = true;
    if (n > 2) return run_named(n, words);
    for (int i = 0; i < TARGETS; i++) {
        snprintf(names[i], sizeof names[i], "test_reader_takes_or_refuses_every_kept_input(%s)",
                 targets[i].name);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = test_reader_takes_or_refuses_every_kept_input,
                                       .initial_state = (void *)(uintptr_t)&targets[i]};
        snprintf(names[TARGETS + i], sizeof names[0],
                 "test_reader_takes_or_refuses_what_was_changed_at_random(%s)", targets[i].name);
        tests[TARGETS + i] = tests[i];
        tests[TARGETS + i].name = names[TARGETS + i];
        tests[TARGETS + i].test_func = test_reader_takes_or_refuses_what_was_changed_at_random;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

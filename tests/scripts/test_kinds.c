/* Nobody asks which kind of attention, feed-forward or position a config has: they ask the kind
 * (model/kinds.h). A kind's number may stand in its own file alone, and no number is compared; so a
 * new kind stays one file and one line of config/kinds.h. Only src/convert, which knows the kinds that
 * models of other programs are made of, may name them. */
#include "config/kinds.h"
#include "support/command.h"
#include "support/test.h"

#include <ftw.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *number; /* WEFT_ATTENTION_DOT */
    const char *file;   /* where it may stand: src/model/attention_dot.c */
} kind;

static const kind kinds[] = {
#define KIND(NAME, name, title, help) {"WEFT_ATTENTION_" #NAME, "src/model/attention_" #name ".c"},
    WEFT_ATTENTIONS(KIND)
#undef KIND
#define KIND(NAME, name, title, help) {"WEFT_FFN_" #NAME, "src/model/ffn_" #name ".c"},
        WEFT_FFNS(KIND)
#undef KIND
#define KIND(NAME, name, title, help) {"WEFT_POSITION_" #NAME, "src/model/positions.c"},
            WEFT_POSITIONS(KIND)
#undef KIND
};

/* A config's number that is compared, or switched by. */
static const char comparison[] =
    "(->|[.])(attention|ffn|position) *([=!]=|[<>])"
    "|([=!]=|[^-][<>]) *[a-z_]+(->|[.])(attention|ffn|position)([^[a-z_.(-]|$)"
    "|switch *[(].*(->|[.])(attention|ffn|position)[)]";

static regex_t pattern;
static int files, wrong;

static bool is_letter(char c) {
    return c == '_' || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool holds_number(const char *line, const char *number) {
    for (const char *at = line; (at = strstr(at, number)); at++)
        if (!is_letter(at[strlen(number)])) return true;
    return false;
}

/* What is wrong with a line of a file; NULL: nothing. */
static const char *find_wrong(const char *path, const char *line) {
    if (strcmp(path, "src/config/kinds.h") == 0) return NULL;
    if (strncmp(path, "src/convert/", 12) == 0) return NULL; /* other programs' models, by kind */
    if (regexec(&pattern, line, 0, NULL, 0) == 0) return "compares kinds";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(path, kinds[i].file) != 0 && holds_number(line, kinds[i].number))
            return kinds[i].number;
    return NULL;
}

static bool is_source(const char *path) {
    static const char *const endings[] = {".c", ".h", ".cu", ".cuh"};
    const char *ending = strrchr(path, '.');
    for (size_t i = 0; ending && i < sizeof endings / sizeof *endings; i++)
        if (strcmp(ending, endings[i]) == 0) return true;
    return false;
}

static int look_at(const char *path, const struct stat *is, int type, struct FTW *where) {
    (void)is;
    (void)where;
    if (type != FTW_F || !is_source(path)) return 0;
    char *text = file_read(path, NULL), *rest = text;
    int number = 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *what = find_wrong(path, line);
        number++;
        if (!what) continue;
        wrong++;
        printf("%s:%d: %s, which only a kind's own file may (model/kinds.h): %s\n", path, number,
               what, line);
    }
    free(text);
    files++;
    return 0;
}

static int compile(void **state) {
    (void)state;
    return regcomp(&pattern, comparison, REG_EXTENDED | REG_NOSUB);
}

static int release(void **state) {
    (void)state;
    regfree(&pattern);
    return 0;
}

TEST(test_no_kind_is_compared_outside_its_own_file) {
    assert_int_equal(nftw("src", look_at, 16, FTW_PHYS), 0);
    assert_true(files > 200);
    if (wrong) fail_msg("%d lines ask which kind a config has", wrong);
}

/* The test must be able to fail. */
TEST(test_comparisons_are_found) {
    static const char *const wrong_lines[] = {
        "    if (c->attention == which) return 1;", "    bool w2 = c.attention != other.attention;",
        "    return WEFT_FFN_GELU;", "    switch (c->position) {", "    return kind == c->ffn;"};
    static const char *const fine[] = {"    return attentions[c->attention];",
                                       "    if (b->ffn_kind->finish) b->ffn_kind->finish(b);",
                                       "    int64_t width = weft_config_ffn_dim(c);",
                                       "    if (c->attention_gate == 1) return;",
                                       "    int64_t j = w->places.position[r];"};
    for (size_t i = 0; i < sizeof wrong_lines / sizeof *wrong_lines; i++)
        if (!find_wrong("src/model/account.c", wrong_lines[i]))
            fail_msg("not found: %s", wrong_lines[i]);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        if (find_wrong("src/model/account.c", fine[i])) fail_msg("wrongly found: %s", fine[i]);
    assert_null(find_wrong("src/model/ffn_gelu.c", "    return WEFT_FFN_GELU;"));
}

RUN_TESTS(compile, release)

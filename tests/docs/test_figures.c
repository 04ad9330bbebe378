/* Tables that a command computes stand in the documents as it prints them. */
#include "support/command.h"
#include "support/study_database.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINE_ROOM = 1024 };

/* The lines that a command prints are all on the page; how many there are. */
static int expect_lines_of(const char *command, const char *path, const char *page) {
    char line[LINE_ROOM];
    int lines = 0;
    FILE *program = popen(command, "r");
    assert_non_null(program);
    for (; fgets(line, sizeof line, program); lines++)
        if (!strstr(page, line)) fail_msg("%s has not: %s", path, line);
    assert_int_equal(pclose(program), 0);
    return lines;
}

static void test_scaling_has_the_models_table(void **state) {
    (void)state;
    size_t n;
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    char *page = file_read("docs/results/scaling.md", &n);
    assert_int_equal(
        expect_lines_of("python3 bench/scale.py model", "docs/results/scaling.md", page), 11);
    free(page);
}

/* A page of results names the commands that print its tables, each on a line of its own. */
static void test_results_are_what_their_databases_say(void **state) {
    (void)state;
    static const char mark[] = "\n    docs/results/tables ";
    glob_t pages;
    int commands = 0;
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    assert_int_equal(glob("docs/results/*.md", 0, NULL, &pages), 0);
    assert_int_equal(glob("docs/guide/*.md", GLOB_APPEND, NULL, &pages), 0);
    for (size_t i = 0; i < pages.gl_pathc; i++) {
        size_t n;
        char *page = file_read(pages.gl_pathv[i], &n), command[LINE_ROOM];
        for (char *at = page; (at = strstr(at, mark)); at++, commands++) {
            snprintf(command, sizeof command, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
            if (expect_lines_of(command, pages.gl_pathv[i], page) < 3)
                fail_msg("%s: nothing is printed by%s", pages.gl_pathv[i], command);
        }
        free(page);
    }
    globfree(&pages);
    assert_true(commands > 0);
}

/* Rows that were measured elsewhere are kept as they were printed, and a page that names the command has
 * its table. */
static void expect_tables(const char *path, const char *mark, int least) {
    size_t n;
    int commands = 0;
    char command[LINE_ROOM], *page = file_read(path, &n);
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        free(page);
        skip();
    }
    for (char *at = page; (at = strstr(at, mark)); at++, commands++) {
        snprintf(command, sizeof command, "%.*s", (int)strcspn(at + 1, "`"), at + 1);
        if (expect_lines_of(command, path, page) < 3)
            fail_msg("%s: nothing is printed by %s", path, command);
    }
    assert_true(commands >= least);
    free(page);
}

static void test_decoding_has_its_rows(void **state) {
    (void)state;
    /* GPU twice, its phases, before and after a change, Arm, x86-64, and what a token costs */
    expect_tables("docs/results/decoding.md", "`python3 bench/table_decode.py ", 9);
}

static void test_modules_have_their_rows(void **state) {
    (void)state;
    /* GPU beside plain and compiled PyTorch, Arm and x86-64, their ceilings, processor time */
    expect_tables("docs/results/modules.md", "`python3 bench/table_modules.py ", 7);
}

/* Scores on a parabola over the rate's logarithm, lowest at 0.0025 between two rates that were tried; and
 * scores that fall to the last rate. */
static void test_the_best_rate_is_the_parabolas_vertex(void **state) {
    (void)state;
    static const double rates[] = {0.001, 0.002, 0.004, 0.008};
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("rates.db");
    sqlite3 *db = study_open(path, "rates", "val_loss");
    study_sql(db, "UPDATE study SET learning_rates = '0.001,0.002,0.004,0.008'");
    study_step(db, 0, "between", "Between", -1, -1);
    study_step(db, 1, "edge", "Edge", 0, -1);
    for (int i = 0; i < 4; i++) {
        study_run(db, 0, rates[i], 1, 2 + pow(log(rates[i] / 0.0025), 2), "a");
        study_run(db, 1, rates[i], 1, 3 - 0.5 * i, "b");
    }
    study_close(db);
    shell_succeeds("python3 docs/results/tables --rates '%s' >'%s'", path, scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    /* 2 + ln²(1 / 2.5) and so on, by hand. */
    if (!strstr(said, "| between | 2.8396 | 2.0498 | 2.2209 | 3.3529 | 0.0025 |") ||
        !strstr(said, "| edge | 3.0000 | 2.5000 | 2.0000 | 1.5000 | 0.008 or beyond |"))
        fail_msg("%s", said);
    free(said);
}

/* A variant with four of five seeds stands in the tables with that said, one with two does not; a comparison
 * that is not decided counts as none; and no reading takes the variants together while their seeds differ. */
static void test_a_variant_that_is_under_way_says_how_many_seeds_it_has(void **state) {
    (void)state;
    static const int have[] = {5, 4, 2};
    static const char *const names[] = {"whole", "four", "two"};
    static const double scores[] = {3, 2.9, 2.85}, apart[] = {0.001, 0.001, 0.1};
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("seeds.db");
    sqlite3 *db = study_open(path, "seeds", "val_loss");
    study_sql(db, "UPDATE study SET learning_rates = '0.001', seeds = '1,2,3,4,5'");
    for (int s = 0; s < 3; s++) {
        study_step(db, s, names[s], names[s], s ? 0 : -1, -1);
        for (int seed = 1; seed <= 5; seed++)
            if (seed <= have[s])
                study_run(db, s, 0.001, seed, scores[s] + apart[s] * (seed * (s + 1) % 4),
                          names[s]);
            else
                study_run_ended(db, s, 0.001, seed, "waiting", NULL);
    }
    study_close(db);
    shell_succeeds("python3 docs/results/tables '%s' four:two >'%s'", path, scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    if (!strstr(said, "\n| whole | ") || !strstr(said, "\n| four (4 of 5 seeds) | ") ||
        strstr(said, "\n| two | ") || strstr(said, "pooled") || !strstr(said, "| 2 | not yet | ") ||
        !strstr(said, "2 comparisons, 1 of them with a difference shown"))
        fail_msg("%s", said);
    free(said);
}

/* docs/results/refresh puts into a page what its commands print; into one that has it all, nothing. */
static void test_refreshing_a_page_that_is_up_to_date_changes_nothing(void **state) {
    (void)state;
    static const char page[] = "docs/results/findings.md";
    size_t n, m;
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    char *before = file_read(page, &n), command[LINE_ROOM];
    const char *copy = scratch_path("page.md");
    file_write(copy, before, n);
    snprintf(command, sizeof command, "python3 docs/results/refresh %s", copy);
    assert_int_equal(system(command), 0);
    char *after = file_read(copy, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    free(after);
    /* A row that is another comes back. */
    char *row = strstr(before, "| 124M | w2 against dot |");
    assert_non_null(row);
    memset(row + 26, '0', 10);
    file_write(copy, before, n);
    assert_int_equal(system(command), 0);
    char *again = file_read(copy, &m), *is = file_read(page, &n);
    assert_int_equal(n, m);
    assert_memory_equal(is, again, n);
    free(before);
    free(again);
    free(is);
}

/* 12345 as 12,345. */
static void with_commas(int64_t value, char out[32]) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
}

/* The bytes of each variant's cache are those that weft plan tells. */
static void test_decoding_has_the_plans_bytes(void **state) {
    (void)state;
    static const struct {
        const char *row, *options[8];
    } variants[] = {{"| dot | k", {"ATTENTION=dot"}},
                    {"| w2 | k", {"ATTENTION=w2"}},
                    {"| mla; mla, gate |", {"ATTENTION=mla"}},
                    {"| mla; mla, gate |", {"ATTENTION=mla", "RA_MLA_MLP_ATTN_GATE=y"}},
                    {"| mla, gate, cross-token |",
                     {"ATTENTION=mla", "RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_CROSS_TOKEN=y"}},
                    {"| mla, joint |", {"ATTENTION=mla", "RA_MLA_JOINT_KV=y"}}};
    static const char *const types[] = {"CACHE_DTYPE=f32", "CACHE_DTYPE=bf16", "CACHE_DTYPE=int8"};
    size_t n;
    char *page = file_read("docs/results/decoding.md", &n);
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        char want[128] = "| ";
        for (int t = 0; t < 3; t++) {
            const char *words[40] = {
                "plan", "--json",     "-o", "N_LAYER=12",       "-o", "N_HEAD=12",
                "-o",   "N_EMBD=768", "-o", "VOCAB_SIZE=50304", "-o", "GPT2_BLOCK_SIZE=1024",
                "-o",   types[t]};
            int count = 14;
            for (const char *const *o = variants[v].options; *o; o++) {
                words[count++] = "-o";
                words[count++] = *o;
            }
            if (strstr(variants[v].options[0], "mla")) {
                words[count++] = "-o";
                words[count++] = "RA_MLA_LATENT_DIM=128";
            }
            json_t *plan = command_json(words);
            with_commas(json_integer_value(json_object_get(plan, "cache_bytes_per_token")),
                        want + strlen(want));
            strcat(want, " | ");
            json_decref(plan);
        }
        const char *row = strstr(page, variants[v].row), *found = row ? strstr(row, want) : NULL;
        if (!found || found > strchr(row, '\n')) fail_msg("%s has not %s", variants[v].row, want);
    }
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaling_has_the_models_table),
        cmocka_unit_test(test_decoding_has_its_rows),
        cmocka_unit_test(test_modules_have_their_rows),
        cmocka_unit_test(test_decoding_has_the_plans_bytes),
        cmocka_unit_test(test_results_are_what_their_databases_say),
        cmocka_unit_test(test_the_best_rate_is_the_parabolas_vertex),
        cmocka_unit_test(test_a_variant_that_is_under_way_says_how_many_seeds_it_has),
        cmocka_unit_test(test_refreshing_a_page_that_is_up_to_date_changes_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* Tables that a command computes stand in the documents as it prints them. */
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_ROOM = 4096 };

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

TEST(test_scaling_has_the_models_table) {
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
TEST(test_results_are_what_their_databases_say) {
    static const char *const marks[] = {"\n    docs/results/tables ",
                                        "\n    scripts/questions real-"};
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
        for (int k = 0; k < 2; k++)
            for (char *at = page; (at = strstr(at, marks[k])); at++, commands++) {
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

TEST(test_decoding_has_its_rows) {
    /* Which to pick, the grid and its costs, GPU, Arm, x86-64, and what a token costs */
    expect_tables("docs/results/decoding.md", "`python3 bench/table_decode.py ", 8);
}

TEST(test_modules_have_their_rows) {
    /* GPU beside plain and compiled PyTorch, Arm and x86-64, their ceilings, processor time */
    expect_tables("docs/results/modules.md", "`python3 bench/table_modules.py ", 7);
}

/* Scores on a parabola over the rate's logarithm, lowest at 0.0025 between two rates that were tried; and
 * scores that fall to the last rate. */
TEST(test_the_best_rate_is_the_parabolas_vertex) {
    static const double rates[] = {0.001, 0.002, 0.004, 0.008};
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("rates.db");
    sqlite3 *db = study_open(path, "rates", "val_loss");
    study_sql(db, "UPDATE study SET learning_rates = '0.001,0.002,0.004,0.008'");
    study_variant(db, 0, "between", "Between", -1, -1);
    study_variant(db, 1, "edge", "Edge", 0, -1);
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
TEST(test_a_variant_that_is_under_way_says_how_many_seeds_it_has) {
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
        study_variant(db, s, names[s], names[s], s ? 0 : -1, -1);
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

static void said_by_tables(const char *arguments, const char *const *wanted,
                           const char *const *unwanted) {
    shell_succeeds("python3 docs/results/tables %s >'%s'", arguments, scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    for (; *wanted; wanted++)
        if (!strstr(said, *wanted)) fail_msg("%s is not in %s", *wanted, said);
    for (; *unwanted; unwanted++)
        if (strstr(said, *unwanted)) fail_msg("%s is in %s", *unwanted, said);
    free(said);
}

/* Of three comparisons of a study a table has two. Their p are 0.0033 and 0.034: with two counted both would be
 * left, with all three the second is above 0.05 / 2. The mirror image of a comparison is no fourth. */
TEST(test_all_comparisons_of_a_study_are_counted) {
    static const char *const names[] = {"base", "gate", "cross", "late"};
    static const double scores[][3] = {
        {2.00, 2.10, 2.20}, {1.90, 2.01, 2.09}, {2.05, 2.13, 2.26}, {1.97, 2.09, 2.18}};
    char command[LINE_ROOM];
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("all.db");
    sqlite3 *db = study_open(path, "all", "val_loss");
    for (int step = 0; step < 4; step++) {
        study_variant(db, step, names[step], names[step], step ? 0 : -1, -1);
        for (int seed = 1; seed <= 3; seed++)
            study_run(db, step, 0.001, seed, scores[step][seed - 1], "w");
    }
    study_close(db);
    snprintf(command, sizeof command, "--claim '%s:gate:base' '%s:base:cross'", path, path);
    said_by_tables(command,
                   (const char *[]){"Counted with all comparisons of the study (3 of all; Holm, "
                                    "5%), these are left: gate against base.\n",
                                    NULL},
                   (const char *[]){NULL});
}

/* Sequences of 16 and of 64 tokens, 1,024 and 896 bytes of cache per token: 16 KiB and 56 KiB for one
 * sequence; a table of positions for each length; the comparison across lengths is the study's own, and
 * --only leaves it out. --runs has each run at its rate and seed. */
TEST(test_variants_of_several_lengths) {
    char command[LINE_ROOM];
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("lengths.db");
    sqlite3 *db = study_open(path, "lengths", "val_loss");
    study_variant(db, 0, "short", "Short", -1, -1);
    study_variant(db, 1, "long", "Long", 0, -1);
    for (int step = 0; step < 2; step++)
        for (int seed = 1; seed <= 3; seed++) {
            long long run = study_run(db, step, 0.001, seed, 3 + step + 0.01 * seed, "w");
            study_sql(db, "UPDATE runs SET config = '{\"context\": %d}' WHERE run = %lld",
                      step ? 64 : 16, run);
            study_sql(db, "INSERT INTO facts VALUES(%lld, 'loss_at_0_0', 5)", run);
            study_sql(db, "INSERT INTO facts VALUES(%lld, 'loss_at_1_%d', 3)", run, step ? 63 : 15);
        }
    study_close(db);
    snprintf(command, sizeof command, "'%s' --length", path);
    said_by_tables(command,
                   (const char *[]){"\n| long against short | +1.0000 ",
                                    " 1,024 | 16 | 0.0156 MiB |\n", " 896 | 64 | 0.0547 MiB |\n",
                                    "\n| positions of 16 | 0 | 1–15 |\n| --- | ---: | ---: |\n"
                                    "| short | 5.0000 | 3.0000 |\n",
                                    "\n| positions of 64 | 0 | 1–63 |\n| --- | ---: | ---: |\n"
                                    "| long | 5.0000 | 3.0000 |\n",
                                    NULL},
                   (const char *[]){NULL});
    snprintf(command, sizeof command, "'%s' --only", path);
    said_by_tables(command, (const char *[]){"\n| short | ", "\n| long | ", NULL},
                   (const char *[]){"long against short", "MiB", NULL});
    snprintf(command, sizeof command, "--runs '%s'", path);
    said_by_tables(command,
                   (const char *[]){"| single runs | rate | seed 1 | seed 2 | seed 3 |\n",
                                    "\n| short | 0.001 | 3.0100 | 3.0200 | 3.0300 |\n",
                                    "\n| long | 0.001 | 4.0100 | 4.0200 | 4.0300 |\n", NULL},
                   (const char *[]){NULL});
}

/* Losses of 3.01, 3.02 and 3.03 in one study, lower by 0.10, 0.12 and 0.14 in another, which has a fourth seed:
 * -0.12, and by Student's t with two degrees of freedom ± 4.3027 · 0.02 / √3 = 0.0497. */
TEST(test_variants_of_two_studies) {
    char command[LINE_ROOM], first[LINE_ROOM / 8], second[LINE_ROOM / 8];
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    snprintf(first, sizeof first, "%s", scratch_path("first.db"));
    snprintf(second, sizeof second, "%s", scratch_path("second.db"));
    sqlite3 *db = study_open(first, "first", "val_loss");
    study_variant(db, 0, "high", "High", -1, -1);
    for (int seed = 1; seed <= 3; seed++)
        study_run(db, 0, 0.001, seed, 3 + 0.01 * seed, "w");
    study_close(db);
    db = study_open(second, "second", "val_loss");
    study_variant(db, 0, "low", "Low", -1, -1);
    for (int seed = 1; seed <= 4; seed++)
        study_run(db, 0, 0.002, seed, 2.92 - 0.01 * seed, "w");
    study_close(db);
    snprintf(command, sizeof command, "--claim '%s:low:%s/high' '%s:high:%s/low'", second, first,
             first, second);
    said_by_tables(
        command,
        (const char *[]){
            "| low against high | −0.1200 \\[−0.1697, −0.0703\\] | 3 | better, by 4% | 0.009 |\n",
            "| high against low | +0.1200 \\[+0.0703, +0.1697\\] | 3 | worse, by 4.1% | 0.009 |\n",
            NULL},
        (const char *[]){NULL});
}

/* Plain models on 100 · N^-0.25, where N is their parameters, and one variant 5% below that law; the largest
 * plain model has not been run. */
TEST(test_variants_against_a_law) {
    static const char *const names[] = {"small", "middle", "large", "other", "huge"};
    char command[LINE_ROOM];
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *path = scratch_path("law.db");
    sqlite3 *db = study_open(path, "law", "val_loss");
    study_sql(db, "UPDATE study SET config = config || %Q",
              "\nSTUDY_YARDSTICK=small, middle, large, huge");
    for (int step = 0; step < 5; step++) {
        double parameters = 1e6 * (step == 3 ? 3 : 1 << step);
        study_variant(db, step, names[step], names[step], step ? 0 : -1, -1);
        study_sql(
            db,
            "UPDATE variants SET parameters = %!.17g, flops_per_token = %!.17g WHERE variant = %d",
            parameters, 6 * parameters, step);
        for (int seed = 1; seed <= 3; seed++)
            if (step == 4)
                study_run_ended(db, step, 0.001, seed, "waiting", NULL);
            else
                study_run(db, step, 0.001, seed,
                          100 * pow(parameters, -0.25) * (step == 3 ? 0.95 : 1) *
                              (1 + 0.0001 * (seed - 2)),
                          "w");
    }
    study_close(db);
    snprintf(command, sizeof command, "--yardsticks '%s' other:middle", path);
    /* 100 · 3,000,000^-0.25 = 2.40281, and 5% of that is 0.12014. */
    said_by_tables(
        command,
        (const char *[]){"\n| other against plain middle | −0.1201 ", " | better |\n",
                         "\n| small × 3, middle × 3, large × 3 | 9 | as N to the power −0.2500 ",
                         NULL},
        (const char *[]){"huge", "extrapolated", NULL});
}

/* docs/results/refresh puts into a page what its commands print; into one that has it all, nothing. */
TEST(test_refreshing_a_page_that_is_up_to_date_changes_nothing) {
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
TEST(test_decoding_has_the_plans_bytes) {
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
                "plan",      "--json",       "-o",         "N_LAYER=12", "-o",
                "N_HEAD=12", "-o",           "N_EMBD=768", "-o",         "VOCAB_SIZE=50304",
                "-o",        "CONTEXT=1024", "-o",         types[t]};
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

/* A database that was stored comes back as it was: whole numbers, all digits of others, numbers that are not there, and text; but
 * for a line's speed, of which 13 bits are kept. */
TEST(test_what_is_packed_is_unpacked) {
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *root = scratch_path("packed");
    shell_succeeds("mkdir -p '%s/docs/results/data' && cp docs/results/unpack '%s/docs/results'",
                   root, root);
    shell_succeeds(
        "cd '%s' && cat >check.py <<'E'\n"
        "import sqlite3, subprocess\n"
        "db = sqlite3.connect('a.db')\n"
        "db.execute('CREATE TABLE metrics(run INTEGER, step INTEGER, loss REAL, val_loss REAL, "
        "tokens_per_s REAL, '\n"
        "           'PRIMARY KEY (run, step)) WITHOUT ROWID')\n"
        "db.execute('CREATE TABLE runs(name TEXT)')\n"
        "db.execute('INSERT INTO runs VALUES (?)', ('a',))\n"
        "rows = [(r, 10 * s, 1 / (r + s), None if s %% 3 else -0.1 * s, 512.5 + s) for r in (2, 1) "
        "for s in range(1, 40)]\n"
        "rows += [(3, 10, 0.1, None, None)]\n"
        "db.executemany('INSERT INTO metrics VALUES (?, ?, ?, ?, ?)', rows)\n"
        "db.commit()\n"
        "for word in (['--pack', 'a.db'], ['a']):\n"
        "    subprocess.run(['python3', 'docs/results/unpack', *word], check=True)\n"
        "made = sqlite3.connect('build/results/a.db')\n"
        "assert list(db.iterdump()) == list(made.iterdump())\n"
        "assert list(made.execute('SELECT * FROM metrics')) == sorted(rows)\n"
        "db.execute('UPDATE metrics SET tokens_per_s = 1e6 / 3')\n"
        "db.commit()\n"
        "for word in (['--pack', 'a.db'], ['a']):\n"
        "    subprocess.run(['python3', 'docs/results/unpack', *word], check=True)\n"
        "speeds = sqlite3.connect('build/results/a.db').execute('SELECT tokens_per_s FROM "
        "metrics')\n"
        "assert {speed for speed, in speeds} == {5208 * 64}\n"
        "E\n"
        "python3 check.py >/dev/null",
        root);
    shell_succeeds("cd '%s' && ! python3 docs/results/unpack b 2>said && grep -q 'there is no "
                   "docs/results/data/b.db.xz' said",
                   root);
}

RUN_TESTS(scratch_setup, scratch_teardown)

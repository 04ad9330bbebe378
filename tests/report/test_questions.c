/* scripts/questions: answers by the rule of docs/results/questions.md, against tests/vectors/questions.json.gz, which
 * tests/reference/make_question_vectors.py makes by other means; what is chosen on other seeds; and how many seeds a
 * pilot's spread asks for. scripts/paper: a page of them, whatever is there. */
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *vectors;

/* A study compared at minima, whose variants have these runs: {name: [[rate, score, seed], ...]}. */
static void make_study(const char *name, const json_t *variants) {
    sqlite3 *db = study_open(scratch_path("%s.db", name), name, "val_loss");
    const char *variant;
    const json_t *runs, *run;
    int n = 0;
    study_sql(db, "UPDATE study SET config = config || '\nSTUDY_COMPARE=minimum\nSTUDY_EFFECT=%g'",
              real_of(vectors, "effect"));
    json_object_foreach((json_t *)variants, variant, runs) {
        size_t i;
        study_variant(db, n, variant, variant, -1, -1);
        json_array_foreach(runs, i, run) {
            study_run(db, n, json_number_value(json_array_get(run, 0)),
                      (int)json_integer_value(json_array_get(run, 2)),
                      json_number_value(json_array_get(run, 1)), "w");
        }
        n++;
    }
    study_sql(db, "UPDATE variants SET cache_bytes_per_token = 1024");
    study_close(db);
}

static void change(const char *name, const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(scratch_path("%s.db", name), &db), SQLITE_OK);
    study_sql(db, "%s", sql);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* The answers to two rungs and the study of caches; the caller frees them. */
static json_t *answers_of(const char *first, const char *second) {
    const char *out = scratch_path("answers.json");
    shell_succeeds("python3 scripts/questions '%s' '%s' --cache '%s' --json >'%s'",
                   scratch_path("%s.db", first), scratch_path("%s.db", second),
                   scratch_path("cache.db"), out);
    json_t *all = json_load_file(out, 0, NULL), *answers = json_object_get(all, "answers");
    assert_int_equal(json_array_size(answers), 5);
    json_incref(answers);
    json_decref(all);
    return answers;
}

static const char *text_at(const json_t *list, int i, const char *key) {
    return json_string_value(json_object_get(json_array_get(list, (size_t)i), key));
}

static void expect_answers(const json_t *is, const json_t *expected) {
    static const char *const keys[] = {"variant", "baseline", "answer"};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(text_at(is, i, keys[k]), text_at(expected, i, keys[k])) != 0)
                fail_msg("question %d, %s: %s is %s, not %s", i + 1, text_at(expected, i, "name"),
                         keys[k], text_at(is, i, keys[k]), text_at(expected, i, keys[k]));
}

static const json_t *case_at(size_t i) {
    return json_array_get(json_object_get(vectors, "cases"), i);
}

static const json_t *rung_at(size_t i, size_t k) {
    return json_array_get(json_object_get(case_at(i), "rungs"), k);
}

TEST(test_answers_are_the_references) {
    const json_t *expected = json_object_get(case_at(0), "answers");
    json_t *is = answers_of("ten", "more");
    expect_answers(is, expected);
    for (size_t i = 0; i < 5; i++) {
        const json_t *row = json_array_get(is, i), *as = json_array_get(expected, i);
        for (size_t k = 0; k < 2; k++) {
            const json_t *rung = json_array_get(json_object_get(row, "rungs"), k);
            double error = json_number_value(json_array_get(json_object_get(as, "errors"), k));
            double difference =
                json_number_value(json_array_get(json_object_get(as, "differences"), k));
            assert_true(fabs(real_of(rung, "difference") - difference) < 1e-9);
            /* t of 5 degrees of freedom is 2.571; the bootstrap's draws are not normal. */
            assert_true(fabs(real_of(rung, "high") - difference - 2.571 * error) < 0.4 * error);
        }
    }
    /* By itself, the fourth would be answered on both rungs. */
    assert_string_equal(text_at(is, 3, "why"), "helps on every rung, but not left when all "
                                               "questions are counted (Holm)");
    assert_true(fabs(real_of(json_array_get(is, 3), "p") / 0.025 - 1) < 0.4);
    json_decref(is);
}

TEST(test_a_minimum_at_the_edge_answers_nothing) {
    make_study("steep", rung_at(1, 1));
    json_t *is = answers_of("ten", "steep");
    expect_answers(is, json_object_get(case_at(1), "answers"));
    const char *why = text_at(is, 0, "why");
    if (!strstr(why, "the minimum of dot is at the edge")) fail_msg("%s", why);
    json_decref(is);
}

/* With a run to come nothing is said, though the interval is there; nor of runs by two builds. */
TEST(test_nothing_is_answered_early_or_of_two_builds) {
    make_study("early", rung_at(0, 1));
    change("early", "UPDATE runs SET status = 'waiting', score = NULL WHERE run ="
                    " (SELECT min(run) FROM runs JOIN variants USING (variant) WHERE name = 'w2')");
    json_t *is = answers_of("ten", "early");
    assert_string_equal(text_at(is, 0, "answer"), "not yet");
    assert_string_equal(text_at(is, 1, "answer"), "equivalent");
    json_decref(is);
    make_study("builds", rung_at(0, 1));
    change("builds", "INSERT INTO facts(run, name, value) SELECT run, 'commit', 'abc' || (run = 1)"
                     " FROM runs");
    is = answers_of("ten", "builds");
    for (int i = 0; i < 5; i++)
        assert_string_equal(text_at(is, i, "answer"), "undecided");
    json_decref(is);
    change("builds", "UPDATE facts SET value = 'abc-changed' WHERE name = 'commit'");
    shell_succeeds(
        "python3 scripts/questions '%s' '%s' 2>&1 >/dev/null | grep -c 'no commit has' | "
        "grep -qx 1",
        scratch_path("ten.db"), scratch_path("builds.db"));
}

static void expect_line(const char *words, const char *line) {
    shell_succeeds("python3 scripts/questions %s >'%s'", words, scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    if (!strstr(said, line)) fail_msg("%s: %s", words, said);
    free(said);
}

/* The same by the tables of the pages: minima, and p as weft has it. 0.05 of 3.6 is 1.4%, of six runs on each side. */
TEST(test_tables_are_of_minima) {
    shell_succeeds("python3 docs/results/tables '%s' w2:dot >'%s'", scratch_path("ten.db"),
                   scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    if (!strstr(said, "| w2 against dot | −0.0500 \\[−0.05") ||
        !strstr(said, "\\] | 6 | helps, by 1.4% | 0.000 |") ||
        !strstr(said, "held-out loss at the minimum") || strstr(said, "pooled"))
        fail_msg("%s", said);
    free(said);
}

/* recip is lowest of the additions, and gqa of the rivals, unless it has more cache. */
TEST(test_the_addition_and_its_rival_are_chosen) {
    char words[400];
    snprintf(words, sizeof words, "--choose '%s'", scratch_path("cache.db"));
    expect_line(words, "mla-recip against gqa: ADD=recip\n");
    change("cache", "UPDATE variants SET cache_bytes_per_token = 2048 WHERE name = 'gqa'");
    expect_line(words, "mla-recip against mla: ADD=recip\n");
    change("cache", "UPDATE variants SET cache_bytes_per_token = 1024 WHERE name = 'gqa'");
}

/* What a seed moves in both variants does not count. Eight differences in equal steps have a standard deviation of √6
 * steps, which is that of one side times √2. The lowest fifth of chi-squared with 7 degrees of freedom ends at 3.822
 * (from a table), which makes the upper limit 1.353 times as large. */
TEST(test_the_pilot_fixes_seeds_and_effect) {
    static const struct {
        double sd;
        const char *says;
    } cases[] = {{0.002,
                  "in both variants: 0.00200, at most 0.00271 with 80% confidence\nSEEDS=2 EFFECT="
                  "0.01\n"},
                 {0.0025, "at most 0.00338 with 80% confidence\nSEEDS=3 EFFECT=0.01\n"},
                 {0.0031, "at most 0.00420 with 80% confidence\nSEEDS=4 EFFECT=0.01\n"},
                 {0.004, "at most 0.00541 with 80% confidence\nSEEDS=3 EFFECT=0.015\n"}};
    for (int i = 0; i < 4; i++) {
        char words[400];
        sqlite3 *db = study_open(scratch_path("pilot%d.db", i), "pilot", "val_loss");
        study_variant(db, 0, "dot", "dot", -1, -1);
        study_variant(db, 1, "gqa", "gqa", 0, -1);
        for (int k = 0; k < 8; k++) {
            double both = 3.6 + 0.02 * (k % 3);
            study_run(db, 0, 2e-3, k + 1, both, "w");
            study_run(db, 1, 2e-3, k + 1, both + (k - 3.5) * cases[i].sd / sqrt(3), "w");
        }
        study_close(db);
        snprintf(words, sizeof words, "--pilot '%s'", scratch_path("pilot%d.db", i));
        expect_line(words, cases[i].says);
    }
    sqlite3 *db = study_open(scratch_path("alone.db"), "pilot", "val_loss");
    study_variant(db, 0, "dot", "dot", -1, -1);
    for (int k = 0; k < 8; k++)
        study_run(db, 0, 2e-3, k + 1, 3.6 + 0.001 * k, "w");
    study_close(db);
    shell_succeeds("python3 scripts/questions --pilot '%s' 2>'%s'; test $? = 1 && "
                   "grep -q ': 0 seeds with a finished run of both variants' '%s'",
                   scratch_path("alone.db"), scratch_path("said"), scratch_path("said"));
}

/* What seeds can show stands on the page; 3.491 spreads with two of them, by a table of Student's t: 2.015 + 1.476. */
TEST(test_the_power_is_that_of_the_page) {
    expect_line("--power", "\n| 2 | 0.00286 | 86%, 75% |\n");
    char *said = file_read(scratch_path("said"), NULL);
    char *page = file_read("docs/results/questions.md", NULL);
    if (!strstr(page, said)) fail_msg("docs/results/questions.md has not:\n%s", said);
    free(said);
    free(page);
}

TEST(test_wrong_usage_and_missing_studies_are_told) {
    shell_succeeds("python3 scripts/questions '%s' 2>'%s'; test $? = 2", scratch_path("ten.db"),
                   scratch_path("said"));
    shell_succeeds("python3 scripts/questions '%s' '%s' 2>'%s'; test $? = 1 && "
                   "grep -q 'scripts/questions: .*nothing.db' '%s'",
                   scratch_path("ten.db"), scratch_path("nothing.db"), scratch_path("said"),
                   scratch_path("said"));
}

/* Runs scripts/paper in a shell that begins with `before`, over a folder of runs; the page is the caller's to free. */
static char *make_paper(const char *before, const char *runs, const char *options) {
    const char *out = scratch_path("paper");
    shell_succeeds("%s python3 scripts/paper --runs '%s' --out '%s' %s >'%s'", before,
                   scratch_path("%s", runs), out, options, scratch_path("said"));
    return file_read(scratch_path("paper/paper.html"), NULL);
}

static void expect_said(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("no '%s' in\n%s", part, text);
}

/* Without any database the page says what is missing; with two rungs and the pilot it has their answers and pictures,
 * and says which studies are missing. */
TEST(test_a_paper_of_what_is_there) {
    char *page = make_paper("", "runs", "--no-pdf");
    expect_said(page, "Nothing is answered yet");
    expect_said(page, "<li>the second rung: not run yet</li>");
    free(page);
    shell_succeeds(
        "cd '%s' && mkdir -p runs/real-ladder-10m runs/real-ladder-25m "
        "runs/real-cache-10m runs/real-pilot && cp ten.db runs/real-ladder-10m/runs.db && "
        "cp more.db runs/real-ladder-25m/runs.db && "
        "cp cache.db runs/real-cache-10m/runs.db && "
        "cp pilot1.db runs/real-pilot/runs.db",
        scratch_path("."));
    page = make_paper("", "runs", "--no-pdf");
    expect_said(page, "<ul><li>the winners under Muon: not run yet</li></ul>");
    expect_said(page, "helps: w2 against dot; hurts: mla-recip against gqa; makes no difference of "
                      "interest: all against mla; undecided: all-flops against mla and wsffn "
                      "against dot.");
    expect_said(page, "<td class=mark>✓</td><td>Does W2 attention lower the loss");
    expect_said(page, "−0.0500 [−0.0");
    expect_said(page, "in both 0.00250, at most 0.00338");
    expect_said(page, "The addition that was chosen here: mla-recip, against gqa.");
    expect_said(page, "ADD=recip scripts/evidence ladder-25m\n");
    /* The text is made as the guide makes it. */
    expect_said(page,
                "scripts/corpus --like docs/results/data/all-docs.json.xz --out data/all-docs\n");
    char *guide = file_read("docs/guide/studies.md", NULL);
    expect_said(guide,
                "scripts/corpus --like docs/results/data/all-docs.json.xz --out data/all-docs\n");
    free(guide);
    int pictures = 0;
    for (const char *at = page; (at = strstr(at, "data:image/svg+xml;base64,")); at++)
        pictures++;
    assert_int_equal(pictures, 3);
    free(page);
}

/* What makes the PDF is a program in Chromium's place; without one the page is there, and the command says so. */
TEST(test_a_paper_becomes_a_pdf_where_it_can) {
    static const char chromium[] = "#!/bin/sh\nfor w in \"$@\"; do case $w in --print-to-pdf=*) "
                                   "echo made >\"${w#*=}\";; esac; "
                                   "done\n";
    free(make_paper("CHROMIUM=no-such-browser", "none", ""));
    char *said = file_read(scratch_path("said"), NULL);
    expect_said(said, "no PDF: Chromium is not installed");
    free(said);
    file_write(scratch_path("chromium"), chromium, sizeof chromium - 1);
    shell_succeeds("chmod +x '%s'", scratch_path("chromium"));
    free(make_paper(format_text("CHROMIUM='%s'", scratch_path("chromium")), "none", ""));
    said = file_read(scratch_path("paper/paper.pdf"), NULL);
    assert_string_equal(said, "made\n");
    free(said);
}

static int setup(void **state) {
    (void)state;
    scratch_open();
    vectors = file_json("tests/vectors/questions.json.gz");
    make_study("ten", rung_at(0, 0));
    make_study("more", rung_at(0, 1));
    make_study("cache", json_object_get(vectors, "cache"));
    return 0;
}

static int teardown(void **state) {
    json_decref(vectors);
    return scratch_teardown(state);
}

RUN_TESTS(setup, teardown)

/* The report, from databases with known numbers: what it says, that it says it safely, and that no
 * database brings it down. The numbers expected here are worked out by hand. */
#include "report/page.h"
#include "report/report.h"
#include "support/command.h"
#include "support/html.h"
#include "support/snapshot.h"
#include "support/study_database.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *html, *md;

static int free_texts(void **state) {
    (void)state;
    free(html);
    free(md);
    html = md = NULL;
    return 0;
}

/* A new database in a folder of its own. */
static sqlite3 *begin(const char *folder, const char *score) {
    assert_int_equal(mkdir(scratch_path("%s", folder), 0777), 0);
    return study_open(scratch_path("%s/runs.db", folder), folder, score);
}

/* The page and its data, without its style and script, which are files of their own. */
static void expect_page(const char *name) {
    char *style = strstr(html, "<style>"), *script = strstr(html, "<script>");
    assert_true(style && script);
    char *body = strstr(style, "</style>");
    snapshot_expect(format_text("report-%s.html", name),
                    format_text("%.*s%.*s", (int)(style - html), html, (int)(script - body), body));
}

static void read_report(const char *folder) {
    /* Reports that differ from each other enough for all of their text to be looked at. */
    static const char *const kept[] = {"called", "differs", "hostile",
                                       "metric", "rates",   "verdicts"};
    free_texts(NULL);
    html = file_read(scratch_path("%s/report.html", folder), NULL);
    md = file_read(scratch_path("%s/report.md", folder), NULL);
    html_expect_well_formed(html);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (strcmp(kept[i], folder) == 0) snapshot_expect(format_text("report-%s.md", folder), md);
    if (strcmp(folder, "rates") == 0) expect_page(folder);
}

static void write_report(const char *folder) {
    if (weft_report_write(scratch_path("%s/runs.db", folder), scratch_path("%s", folder)) !=
        WEFT_OK)
        fail_msg("%s", weft_error_message());
    read_report(folder);
}

static void finish(sqlite3 *db, const char *folder) {
    study_close(db);
    write_report(folder);
}

static void expect_in(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("'%s' is not in: %.3000s", words, text);
}

static void expect_not_in(const char *text, const char *words) {
    const char *at = strstr(text, words);
    if (at) fail_msg("'%s' is there: %.200s", words, at);
}

/* Pages hold words that need no escape alike. */
static void expect_both(const char *words) {
    expect_in(html, words);
    expect_in(md, words);
}

/* A line of report.md that begins so and holds all the words. */
static void expect_line(const char *start, const char *const *words) {
    const char *at = strstr(md, start);
    if (!at) fail_msg("no line '%s' in: %s", start, md);
    char *line = strndup(at, strcspn(at, "\n"));
    for (; *words; words++)
        if (!strstr(line, *words)) fail_msg("'%s' is not in the line: %s", *words, line);
    free(line);
}

/* A baseline and a variant with three seeds each. */
static void three_seeds(sqlite3 *db, int variant, double a, double b, double c) {
    const double scores[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        study_run(db, variant, 1e-3, i + 1, scores[i], "w");
}

TEST_WITH(test_verdicts_and_numbers, NULL, free_texts) {
    sqlite3 *db = begin("verdicts", "val_loss");
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "lower", "Lower loss", 0, -1);
    study_variant(db, 2, "higher", "Higher loss", 0, -1);
    study_variant(db, 3, "noise", "Noise", 0, -1);
    study_variant(db, 4, "chained", "Against lower", 1, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);  /* -0.10 -0.09 -0.11: t = 4.302653, half 0.024841 */
    three_seeds(db, 2, 2.1, 2.19, 2.31);  /* +0.10 +0.09 +0.11 */
    three_seeds(db, 3, 1.9, 2.15, 2.25);  /* -0.10 +0.05 +0.05: half 0.215133 */
    three_seeds(db, 4, 1.91, 2.02, 2.10); /* +0.01 each: no spread */
    finish(db, "verdicts");
    expect_line("- **better** Lower loss against Plain",
                SAYS("2.0000 on average", "0.1000 lower", "(-4.76%)",
                     "95% interval -0.1248 to -0.0752", "3 seeds"));
    expect_line("- **worse** Higher loss", SAYS("0.1000 higher", "+0.0752 to +0.1248"));
    expect_line("- **no difference shown** Noise",
                SAYS("the interval contains 0", "95% interval -0.2151 to +0.2151",
                     "With 95% confidence, any difference is smaller than 0.2151."));
    expect_line("- **worse** Against lower against Lower loss", SAYS("0.0100 higher"));
    /* In the page the words stand in the row, and the largest gain is the one that is coloured. */
    expect_in(html, "<div role=\"row\" class=\"lit\" data-key=\"lower\">");
    expect_in(html, "<div class=\"side\"><span>\xe2\x86\x90 better</span><span>worse \xe2\x86\x92"
                    "</span></div>");
    expect_in(html, "<b class=\"word good\">better</b>");
    expect_in(html, "<b class=\"word bad\">worse</b>");
    expect_in(html, "<b class=\"word plain\">no difference shown</b><small> Any difference is "
                    "smaller than 0.2151.");
    expect_not_in(html, "2.0000 on average");
    expect_both("There are 4 comparisons");
    expect_both("0.2 of them would still be called better or worse");
    expect_line("| Plain (base) |", SAYS("| 1M |", "| 2.1000 ± 0.1000 |", "| 3 of 3 |",
                                         "| 70.0 MiB |", "| 16.02k |", "| 1024 |", "| 6M |"));
    expect_line("| Lower loss (lower) |",
                SAYS("| \xe2\x98\x85 2.0000 ± 0.0954 |", "-0.1000 \\[-0.1248, -0.0752\\]"));
    expect_in(html, "<td class=\"n\">-0.1000 [-0.1248, -0.0752]</td>");
    expect_both("\xe2\x98\x85 marks the best mean.");
    expect_both(", by its own count, the least of the seeds, or, on the CPU, the whole process at "
                "its largest.");
    /* The same in percent of 2.1, as the answer above it is. */
    expect_in(html, "-0.1000 [-0.1248, -0.0752]<small>-4.8% [-5.9%, -3.6%]</small>");
    expect_both("in nats per token and in percent of the baseline; 3 seeds");
    expect_both("The best single run is Lower loss with seed 1 and learning rate 0.001: held-out "
                "loss 1.9000, in ");
}

/* Differences -0.02 -0.01 +0.01: mean -0.006667, sd 0.015275. Half the interval of 22 seeds is 2.0796 * 0.015275 /
 * sqrt(22) = 0.006773, of 23 it is 2.0739 * 0.015275 / sqrt(23) = 0.006605: 20 more than 3. */
TEST_WITH(test_more_seeds_are_a_command_to_copy, NULL, free_texts) {
    sqlite3 *db = begin("more", "val_loss");
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "gate", "Gate", 0, -1);
    study_sql(db, "UPDATE study SET config = 'STUDY_SEEDS=3'");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.98, 2.09, 2.21);
    finish(db, "more");
    expect_both("About 20 more seeds per variant would show a difference of this size between Gate "
                "and Plain");
    expect_both("adding seeds until a difference shows finds one by chance");
    expect_not_in(html, "STUDY_SEEDS=23"); /* there is no config to go on with */
    file_write(scratch_path("more/study.config"), "", 0);
    write_report("more");
    expect_in(html, "more/study.config --out ");
    expect_in(html, "/more -o STUDY_SEEDS=23</code>");
    expect_in(md, "/more -o STUDY_SEEDS=23\n");
}

TEST_WITH(test_a_baseline_is_starred_where_all_others_are_worse, NULL, free_texts) {
    sqlite3 *db = begin("baseline", "val_loss");
    study_variant(db, 0, "0", "Plain", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    study_variant(db, 2, "2", "Cross", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 2.1, 2.19, 2.31);
    three_seeds(db, 2, 2.2, 2.29, 2.41);
    finish(db, "baseline");
    expect_line("| Plain (0) |", SAYS("| \xe2\x98\x85 2.1000 ± 0.1000 |"));
}

TEST_WITH(test_a_baseline_is_not_starred_where_one_is_not_told_from_it, NULL, free_texts) {
    sqlite3 *db = begin("even", "val_loss");
    study_variant(db, 0, "0", "Plain", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    study_variant(db, 2, "2", "Cross", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 2.1, 2.19, 2.31);
    three_seeds(db, 2, 1.95, 2.15, 2.25); /* -0.05 +0.05 +0.05 */
    finish(db, "even");
    expect_both("Plain has the best mean, 2.1000; it may be so by chance.");
    expect_not_in(md, "\xe2\x98\x85");
}

TEST_WITH(test_one_seed_shows_no_difference, NULL, free_texts) {
    sqlite3 *db = begin("one", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    study_run(db, 0, 1e-3, 1, 3.0, "a");
    study_run(db, 1, 1e-3, 1, 1.5, "b");
    finish(db, "one");
    expect_line("- **no difference shown** Gate against Baseline",
                SAYS("one seed has no interval", "1.5000 lower", "(-50.00%)", "; 1 seed."));
    expect_line("| Gate (1) |", SAYS("| 1.5000 |", "-1.5000 (no interval)"));
    expect_both("Gate has the best mean, 1.5000; it may be so by chance.");
    expect_not_in(md, "\xe2\x98\x85");
    expect_both("nothing is called better or worse");
    expect_not_in(md, "**better**");
    expect_not_in(md, "nan");
}

/* Differences -0.3 and -0.1: mean 0.2, spread 0.1414; t of 3 degrees is 3.182, of 4 is 2.776, so four
 * seeds give 0.2250 and five 0.1756. */
TEST_WITH(test_two_seeds_are_told_to_be_too_few_and_how_many_would_do, NULL, free_texts) {
    sqlite3 *db = begin("two", "val_loss");
    study_variant(db, 0, "a", "A", -1, -1);
    study_variant(db, 1, "b", "B", 0, -1);
    study_run(db, 0, 1e-3, 1, 3.0, "w");
    study_run(db, 0, 1e-3, 2, 3.1, "w");
    study_run(db, 1, 1e-3, 1, 2.7, "w");
    study_run(db, 1, 1e-3, 2, 3.0, "w");
    finish(db, "two");
    expect_line("- **no difference shown** B against A", SAYS("5 seeds would show one"));
    expect_both("Two seeds are too few");
    expect_in(html, "<p class=\"caveat\">Two seeds are too few");
}

/* ln 256 = 5.5452: every run is there, so a clear difference between two variants is none. */
TEST_WITH(test_a_study_that_stays_at_guessing_says_that_nothing_was_learned, NULL, free_texts) {
    sqlite3 *db = begin("guess", "val_loss");
    study_sql(db, "UPDATE study SET config = 'N_LAYER=1' || char(10) || 'VOCAB_SIZE=256'");
    study_variant(db, 0, "a", "A", -1, -1);
    study_variant(db, 1, "b", "B", 0, -1);
    three_seeds(db, 0, 5.545, 5.546, 5.547);
    three_seeds(db, 1, 5.535, 5.536, 5.537);
    study_close(db);
    write_report("guess");
    expect_both("Nothing was learned");
    expect_in(md, "**Nothing was learned: every run ends at the loss of guessing (5.5452)");
    expect_in(md, "5.5452 for 256 tokens");
    expect_line("- **no difference shown** B against A", SAYS("nothing was learned"));
    expect_not_in(md, "any difference is smaller");
    /* One run that did learn is enough. */
    sqlite3 *again = begin("learned", "val_loss");
    study_sql(again, "UPDATE study SET config = 'N_LAYER=1' || char(10) || 'VOCAB_SIZE=256'");
    study_variant(again, 0, "a", "A", -1, -1);
    study_variant(again, 1, "b", "B", 0, -1);
    three_seeds(again, 0, 5.545, 5.546, 5.547);
    three_seeds(again, 1, 4.0, 5.536, 5.537);
    finish(again, "learned");
    expect_not_in(md, "Nothing was learned");
}

TEST_WITH(test_seeds_that_did_not_finish_are_left_out_and_named, NULL, free_texts) {
    sqlite3 *db = begin("failed", "val_loss");
    study_variant(db, 0, "0", "", -1, -1);
    study_variant(db, 1, "1", "", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    study_run(db, 1, 1e-3, 1, 1.9, "a");
    study_run(db, 1, 1e-3, 2, 2.01, "b");
    study_run_ended(db, 1, 1e-3, 3, "diverged", "the loss was not finite at step 7");
    study_run_ended(db, 0, 1e-3, 4, "failed", "no room on the disk");
    study_run(db, 1, 1e-3, 4, 0.1, "c");
    study_run_ended(db, 1, 1e-3, 5, "waiting", NULL);
    study_run_ended(db, 0, 1e-3, 6, "running", NULL);
    study_run_ended(db, 1, 1e-3, 6, "waiting", NULL);
    /* Done, but a score that is no number is no score. */
    study_run(db, 0, 1e-3, 5, 2.0, "d");
    study_sql(db, "UPDATE runs SET score = 9e999 WHERE variant = 0 AND seed = 5");
    study_sql(db, "UPDATE runs SET skipped = 3 WHERE variant = 0 AND seed = 1");
    finish(db, "failed");
    expect_line(
        "- **better so far** variant 1 against variant 0", /* -0.1 and -0.09: half 0.063531 */
        SAYS("95% interval -0.1585 to -0.0315", "; 2 seeds.",
             "Left out: seed 3 (variant 1 diverged), seed 4 (variant 0 failed), seed 5 "
             "(variant 1 has "
             "not been run yet; variant 0 has no score), seed 6 (not finished)."));
    expect_in(html, "\">better so far</b>");
    char *listed;
    command_succeeds(RUN("runs", scratch_path("failed")), &listed);
    assert_non_null(strstr(listed, "against 0: better so far\n"));
    free(listed);
    expect_both("If there were nothing to find, there would be a 5% chance of a false verdict.");
    expect_not_in(html, "This command continues the study"); /* there is no config */
    file_write(scratch_path("failed/study.config"), "", 0);
    write_report("failed");
    expect_both("This command continues the study");
    expect_in(html, "failed/study.config --out ");
    expect_line("| 1 | seed 3, learning rate 0.001 |",
                SAYS("| diverged |", "the loss was not finite at step 7"));
    expect_line("| 0 | seed 4, learning rate 0.001 |", SAYS("| failed |", "no room on the disk"));
    expect_line("| 0 | seed 1, learning rate 0.001 |", SAYS("3 updates skipped"));
    expect_line("| 1 | runs |", SAYS("2 waiting, 0 running"));
    expect_both("6 of 12 runs finished");
}

TEST_WITH(test_leaks_and_unbuildable_variants_show_no_difference, NULL, free_texts) {
    sqlite3 *db = begin("leaks", "val_loss");
    study_variant(db, 0, "0", "", -1, -1);
    study_variant(db, 1, "leaky", "", 0, -1);
    study_variant(db, 2, "broken", "", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.0, 1.1, 1.2);
    study_sql(db, "UPDATE variants SET leaks = 1 WHERE variant = 1");
    study_sql(
        db, "UPDATE variants SET error = 'N_HEAD: 5 does not divide N_EMBD 64', parameters = NULL,"
            " flops_per_token = NULL WHERE variant = 2");
    finish(db, "leaks");
    expect_line("- **no difference shown** variant leaky",
                SAYS("it leaks", "cannot be compared", "1.0000 lower"));
    expect_line("- **no difference shown** variant broken", SAYS("it cannot be built"));
    expect_line("| leaky | every run | LEAKS |", SAYS("later"));
    expect_line("| broken | config | cannot be built |",
                SAYS("N_HEAD: 5 does not divide N_EMBD 64"));
    expect_not_in(md, "**better**");
    /* Nor does a leaking variant stand on the front, nor is it the best. */
    expect_both("The best single run is 0 ");
    expect_in(md, "variants that no other beats on both: 0.");
    /* `weft runs --compare` says the same. */
    json_t *compared;
    assert_int_equal(weft_listing_compare(scratch_path("leaks"), "0", "leaky", NULL, &compared),
                     WEFT_OK);
    assert_string_equal(json_string_value(json_object_get(compared, "verdict")),
                        "no difference shown");
    expect_in(json_string_value(json_object_get(compared, "why")), "it leaks");
    json_decref(compared);
    assert_int_equal(weft_listing_compare(scratch_path("leaks"), "0", "rope", NULL, &compared),
                     WEFT_EINPUT);
    expect_in(weft_error_message(), "no variant 'rope'; there are: 0, leaky, broken");
}

static int64_t first_and_repeat(sqlite3 *db, int seed, const char *first, const char *again) {
    study_run(db, 0, 1e-3, seed, 2.0 + seed, first);
    return study_run(db, 1, 1e-3, seed, 2.0 + seed, again);
}

static void say_event(sqlite3 *db, int64_t run, const char *kind) {
    study_sql(db, "INSERT INTO events(run, kind, detail) VALUES(%lld, %Q, 'the study said')",
              (long long)run, kind);
}

TEST_WITH(test_repeats_are_equal_or_not, NULL, free_texts) {
    sqlite3 *db = begin("repeats", "val_loss");
    study_variant(db, 0, "2", "Gate + Cross-Token", -1, -1);
    study_variant(db, 1, "4", "Again", -1, 0);
    say_event(db, first_and_repeat(db, 1, "aaa", "aaa"), "equal");
    say_event(db, first_and_repeat(db, 2, "aaa", "aaa"), "unequal");
    first_and_repeat(db, 3, "aaa", "bbb");
    int64_t run = first_and_repeat(db, 4, "ccc", "ccc");
    study_sql(db, "UPDATE metrics SET grad_norm = 0.50000000001 WHERE run = %lld AND step = 5",
              (long long)run);
    say_event(db, run, "equal"); /* the metrics know better */
    first_and_repeat(db, 5, "ddd", "ddd");
    study_run_ended(db, 1, 1e-3, 6, "running", NULL);
    finish(db, "repeats");
    expect_line("| 4 | 2 | 1 |", SAYS("equal, bit for bit", "| aaa / aaa | 0 |",
                                      "2026-01-01 00:01:01.100 to 00:01:31.900",
                                      "2026-01-01 00:00:01.100 to 00:00:31.900", "the study said"));
    expect_line("| 4 | 2 | 2 |", SAYS("NOT EQUAL", "| 0 |"));
    expect_line("| 4 | 2 | 3 |", SAYS("NOT EQUAL", "bbb / aaa"));
    expect_line("| 4 | 2 | 4 |", SAYS("NOT EQUAL", "| 1 |"));
    expect_line("| 4 | 2 | 5 |", SAYS("equal by checksum"));
    expect_line("| 4 | 2 | 6 |", SAYS("not compared"));
    expect_both("2 of 6 repeated runs are equal to the first; 3 are not equal; 1 could not be "
                "compared.");
}

TEST_WITH(test_each_variant_gets_its_own_learning_rate, NULL, free_texts) {
    sqlite3 *db = begin("rates", "val_loss");
    study_variant(db, 0, "0", "", -1, -1);
    study_variant(db, 1, "1", "", 0, -1);
    for (int seed = 1; seed <= 2; seed++) {
        study_run(db, 0, 1e-3, seed, 2.0 + seed, "a");
        study_run(db, 0, 3e-3, seed, 2.5 + seed, "b");
        study_run(db, 1, 1e-3, seed, 3.0 + seed, "c");
        study_run(db, 1, 3e-3, seed, 1.0 + seed + 0.01 * seed, "d");
    }
    /* The best score of all, but the other seed blew up. */
    study_run(db, 1, 1e-2, 1, 0.5, "e");
    study_run_ended(db, 1, 1e-2, 2, "diverged", "NaN");
    finish(db, "rates");
    expect_line("- **better** variant 1 against variant 0", /* -0.99 and -0.98: half 0.063531 */
                SAYS("2.5150 on average", "95% interval -1.0485 to -0.9215"));
    expect_line("| 0 | 1M |", SAYS("| 3.5000 ± 0.7071 |", "| 0.001 |"));
    expect_line("| 1 |", SAYS("| \xe2\x98\x85 2.5150 ± 0.7142 |", "| 0.003 |"));
    expect_both("run at 3 learning rates");
    expect_line("| variant | 0.001 | 0.003 | 0.01 |", SAYS(""));
    expect_line("| 1 | 4.5000 (2 of 2) | 2.5150 (2 of 2) chosen | 0.5000 (1 of 2) |", SAYS(""));
    expect_line("| 0 | 3.5000 (2 of 2) chosen | 4.0000 (2 of 2) |", SAYS("not tried"));
}

TEST_WITH(test_a_variant_without_a_title_is_called_by_what_differs, NULL, free_texts) {
    static const char *const sets[] = {
        "POSITION=learned FFN=gelu N_FFN=256", "POSITION=rope FFN=gelu N_FFN=256",
        "POSITION=learned FFN=swiglu N_FFN=253", "POSITION=learned FFN=gelu N_FFN=256 BIAS=n"};
    sqlite3 *db = begin("called", "val_loss");
    for (int i = 0; i < 4; i++) {
        study_variant(db, i, ((const char *[]){"a", "b", "c", "d"})[i], "", i ? 0 : -1, -1);
        study_sql(db, "UPDATE variants SET overrides = %Q WHERE variant = %d", sets[i], i);
        three_seeds(db, i, 2.0 + i, 2.1 + i, 2.2 + i);
    }
    finish(db, "called");
    expect_line("- **worse** Rotary positions against Learned positions.", SAYS("1.0000 higher"));
    expect_line("- **worse** SwiGLU, feed-forward width 253 against", SAYS("2.0000 higher"));
    expect_line("- **worse** Without bias against", SAYS("3.0000 higher"));
}

/* What a preset sets is not said to be otherwise. */
TEST_WITH(test_a_preset_is_called_by_its_name, NULL, free_texts) {
    static const char *const sets[] = {"PRESET=gpt2 POSITION=rope", "PRESET=modern",
                                       "PRESET=gpt2 POSITION=rope BIAS=n"};
    sqlite3 *db = begin("presets", "val_loss");
    for (int i = 0; i < 3; i++) {
        study_variant(db, i, ((const char *[]){"a", "b", "c"})[i], "", i ? 0 : -1, -1);
        study_sql(db, "UPDATE variants SET overrides = %Q WHERE variant = %d", sets[i], i);
        three_seeds(db, i, 2.0 + i, 2.1 + i, 2.2 + i);
    }
    finish(db, "presets");
    expect_line("- **worse** Preset modern against Preset gpt2.", SAYS("1.0000 higher"));
    expect_line("- **worse** Without bias against", SAYS("2.0000 higher"));
}

TEST_WITH(test_a_metric_is_better_higher, NULL, free_texts) {
    sqlite3 *db = begin("metric", "metric");
    study_variant(db, 0, "0", "", -1, -1);
    study_variant(db, 1, "up", "", 0, -1);
    study_variant(db, 2, "down", "", 0, -1);
    three_seeds(db, 0, 0.70, 0.71, 0.72);
    three_seeds(db, 1, 0.80, 0.82, 0.81);
    three_seeds(db, 2, 0.60, 0.62, 0.61);
    finish(db, "metric");
    expect_line("- **better** variant up", SAYS("The accuracy is 0.8100", "0.1000 higher"));
    expect_line("- **worse** variant down", SAYS("0.1000 lower"));
    expect_both("Higher is better");
    expect_in(md, "| \xe2\x98\x85 0.8100 ");
    expect_both("The best single run is up with seed 2 ");
    expect_both("up and to the left is better");
    expect_both("absolute and in percent of the baseline; 3 seeds");
    expect_in(md, "| accuracy ± sd |");
    expect_in(md, "variants that no other beats on both: 0, up.");
}

static const char *const hostile[] = {"<script>alert(1)</script>",
                                      "\"quoted\" 'both' & <b>",
                                      "pipe | and\nnewline | --- |",
                                      "back`tick` **bold** [link](http://example.org) \\",
                                      "@0@ #010203 rgb(1,2,3) $(touch x) '; system('touch x')",
                                      "\xff\xfe broken \xc3( utf\xe2\x80",
                                      "\x1b[31mcontrol\x07\r\n\tcharacters"};
enum { HOSTILE = sizeof hostile / sizeof hostile[0] };

/* Rows of every table of report.md have as many cells as its head; texts end no row. */
static void expect_well_formed(void) {
    int columns = 0, tables = 0;
    for (const char *line = md; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        int cells = 0;
        size_t length = strcspn(line, "\n");
        if (*line != '|') {
            columns = 0;
            continue;
        }
        for (size_t i = 1; i < length; i++)
            cells += line[i] == '|' && line[i - 1] != '\\';
        if (columns == 0) tables++;
        if (columns && cells != columns)
            fail_msg("%d cells, not %d: %.*s", cells, columns, (int)length, line);
        columns = cells;
    }
    assert_true(tables >= 4);
}

/* The page ends in its data and its one script, word for word ours; they are cut off here. */
static void cut_script(void) {
    char *data = strstr(html, "<script type=\"application/json\" id=\"weft-charts\">");
    assert_non_null(data);
    char *script = strstr(data, "</script>\n<script>\n");
    assert_non_null(script);
    for (const char *at = data + 1; at < script; at++)
        if (strchr("<>&", *at) && at - data > 52) fail_msg("in the data: %.80s", at);
    script += strlen("</script>\n<script>\n");
    size_t length = strlen(weft_charts_script), own = strlen(weft_report_script);
    assert_int_equal(strncmp(script, weft_charts_script, length), 0);
    assert_int_equal(strncmp(script + length, weft_report_script, own), 0);
    assert_string_equal(script + length + own, "</script>\n</body>\n</html>\n");
    *data = '\0';
}

static void expect_no_request(void) {
    cut_script();
    expect_in(html, "content=\"default-src 'none';");
    static const char *const bad[] = {
        "<script", "<link",   "<img",        "<iframe", "@import", "src=",         "http:/",
        "https:/", "<object", "javascript:", "xmlns",   "onload",  "<!DOCTYPE svg"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_not_in(html, bad[i]);
    for (const char *at = html; (at = strstr(at, "href=")); at++)
        assert_true(strncmp(at, "href='#", 7) == 0 || strncmp(at, "href=\"#", 7) == 0);
    for (const char *at = html; (at = strstr(at, "url(")); at++)
        assert_true(strncmp(at, "url(#", 5) == 0);
}

TEST_WITH(test_hostile_texts_are_only_text, NULL, free_texts) {
    sqlite3 *db = begin("hostile", "metric");
    for (int i = 0; i < HOSTILE; i++) {
        study_variant(db, i, hostile[i], hostile[(i + 1) % HOSTILE], i ? 0 : -1, i == 2 ? 0 : -1);
        three_seeds(db, i, 2.0, 2.1, 2.2);
        study_run_ended(db, i, 1e-3, 9, "failed", hostile[i]);
        study_sql(db, "UPDATE variants SET overrides = 'A_KEY=%q' WHERE variant = %d", hostile[i],
                  i);
    }
    study_sql(db, "UPDATE study SET name = %Q, config = %Q, machine = %Q", hostile[0], hostile[3],
              hostile[2]);
    study_sql(db, "UPDATE runs SET metric = %Q, weights = %Q, started = %Q", hostile[0], hostile[0],
              hostile[1]);
    study_sql(db, "INSERT INTO events(kind, detail) VALUES(%Q, %Q)", hostile[0], hostile[2]);
    study_close(db);
    write_report("hostile");
    expect_in(html, "&lt;script&gt;alert(1)&lt;/script&gt;");
    expect_in(md, "&lt;script&gt;");
    expect_in(md, "pipe \\| and newline");
    expect_in(html, "\xef\xbf\xbd");
    for (const char *at = html; *at; at++)
        assert_true((unsigned char)*at >= ' ' || *at == '\n' || *at == '\t');
    assert_int_not_equal(access("x", F_OK), 0);
    /* One address is in the texts themselves: as text it asks for nothing. */
    for (char *at; (at = strstr(html, "http://example.org"));)
        memset(at, 'x', 4);
    expect_no_request();
    expect_well_formed();
}

TEST_WITH(test_the_page_asks_for_nothing_and_holds_its_pictures, NULL, free_texts) {
    sqlite3 *db = begin("whole", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    study_close(db);
    write_report("whole");
    expect_no_request();
    expect_well_formed();
    expect_in(html, "<meta name=\"viewport\"");
    expect_in(html, "<details>");
    expect_in(md, "    N_EMBD=64\n");
    int pictures = 0;
    for (const char *at = html; (at = strstr(at, "<svg viewBox")); at++)
        pictures++;
    assert_int_equal(pictures, 9); /* two losses and their differences, five costs */
    expect_in(html, " id=\"area1\"");
    expect_in(html, " id=\"area9\"");
    /* Markdown shows them as files, the forest first. */
    for (int i = 1; i <= 10; i++) {
        char link[32];
        snprintf(link, sizeof link, "](report-%d.svg)", i);
        expect_in(md, link);
        char *svg = file_read(scratch_path("whole/report-%d.svg", i), NULL);
        assert_int_equal(strncmp(svg, "<svg xmlns=", 11), 0);
        expect_in(svg, "</svg>");
        free(svg);
    }
}

/* In the picture a label ends where the axis begins; one that is too long begins at the edge. What a label
 * made from settings leaves out is in the table. */
TEST_WITH(test_long_labels_stay_in_the_picture, NULL, free_texts) {
    static const char label[] = "RA_MLA_MLP_ATTN_GATE on and 2 more";
    static const char sets[] = "RA_MLA_MLP_ATTN_GATE=y N_FFN=128 N_HEAD=4";
    sqlite3 *db = begin("labels", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", label, 0, -1);
    study_variant(db, 2, "2", "Gate", 0, -1);
    for (int i = 0; i < 3; i++)
        three_seeds(db, i, 2.0 - i, 2.1 - i, 2.2 - i);
    study_sql(db, "UPDATE variants SET overrides = %Q WHERE variant > 0", sets);
    study_close(db);
    write_report("labels");
    char *svg = file_read(scratch_path("labels/report-1.svg"), NULL);
    expect_in(svg, "textLength=\"286\" lengthAdjust=\"spacingAndGlyphs\" fill");
    expect_in(svg, ">Mlp attn gate, feed-forward width 128, 4 heads</text>");
    expect_in(svg, "x=\"286.0\"");
    free(svg);
    expect_in(html, "Mlp attn gate, feed-forward width 128, 4 heads (1)</td>");
}

TEST_WITH(test_a_picture_that_is_not_weft_is_spared, NULL, free_texts) {
    sqlite3 *db = begin("spared", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    study_close(db);
    file_write(scratch_path("spared/report-1.svg"), "mine", 4);
    assert_int_not_equal(weft_report_write(scratch_path("spared/runs.db"), scratch_path("spared")),
                         WEFT_OK);
    expect_in(weft_error_message(), "report-1.svg");
    assert_int_not_equal(access(scratch_path("spared/report.html"), F_OK), 0);
    assert_int_equal(unlink(scratch_path("spared/report-1.svg")), 0);
    write_report("spared");
    write_report("spared"); /* over its own */
    /* exp(2.1) = 8.166 */
    expect_both(
        "Baseline reached a held-out loss of 2.1000 (perplexity 8.17), the mean of 3 seeds");
}

TEST_WITH(test_what_differs_and_what_was_not_equal, NULL, free_texts) {
    sqlite3 *db = begin("differs", "val_loss");
    study_variant(db, 0, "a", "", -1, -1);
    study_variant(db, 1, "b", "", 0, -1);
    study_variant(db, 2, "c", "", 0,
                  -1); /* never run: its config is the base's with the overrides */
    study_sql(db, "UPDATE study SET config = 'N_LAYER=2' || char(10) || 'LR=\"1e-3\"'");
    study_sql(db, "UPDATE variants SET overrides = 'LR=0.001 WIDE=\"x y\"', tokens = 409600 WHERE "
                  "variant = 2");
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    finish(db, "differs");
    expect_line("| key |", SAYS("| key | a | b | c |"));
    expect_line("| STEP_KEY |", SAYS("| 0.5 | 1.5 |"));
    expect_line("| WIDE |", SAYS("| x y |"));
    expect_not_in(md, "| LR |"); /* 1e-3 is 0.001 */
    expect_not_in(md, "| SEED |");
    expect_not_in(md, "| N_LAYER |");
    expect_both("The study held equal: iters.");
    expect_in(md, "Equal: iterations, measured time. Not equal: tokens (204.8k to 409.6k, 2.00 "
                  "times), parameters (1M to 1.5M, 1.50 times)");
    expect_line("| b | 100 | 204.8k | 1.25M (1.25 ×) |", SAYS("12.5"));
}

/* Two tokens: the second looks at itself with 75%, whose root is 0.87: the darkest shade of six. What
 * is out of range or of another kind is not drawn. */
TEST_WITH(test_attention_is_drawn_where_a_run_stored_it, NULL, free_texts) {
    static const char map[] =
        "{\"step\": 9, \"tokens\": [\"a\", \"<b>\"], \"layers\": [{\"layer\": 0, \"heads\":"
        " [[[100], [25, 75]], [[400], [\"x\", -3]], \"no rows\"], \"sigma\": [[0.5, 1.0]]}, 7]}";
    sqlite3 *db = begin("looks", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    study_close(db);
    assert_int_equal(mkdir(scratch_path("looks/runs"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("looks/runs/0-lr0.001-seed1"), 0777), 0);
    file_write(scratch_path("looks/runs/0-lr0.001-seed1/attention.json"), map, sizeof map - 1);
    write_report("looks");
    expect_both("What attention looks at");
    expect_in(html, "fill-opacity=\"1.00\" d=\"M0 0h1v1h-1zM1 1h1v1h-1z\"");
    expect_in(html, "fill-opacity=\"0.50\" d=\"M0 1h1v1h-1z\"");
    expect_in(html, "layer 1, head 1; below: each token&#39;s");
    expect_in(html, "layer 1, head 3</figcaption>");
    file_write(scratch_path("looks/runs/0-lr0.001-seed1/attention.json"), "[1, 2", 5);
    write_report("looks");
    expect_not_in(html, "What attention looks at");
}

/* The last whole line of the first seed, with the cache as it was measured; a zero is a blank. */
TEST_WITH(test_samples_stand_side_by_side, NULL, free_texts) {
    static const char *const lines[] = {
        "{\"step\":4,\"prompt\":\"The \",\"text\":\"early\",\"cache_bytes_per_token\":128}\n"
        "{\"step\":8,\"prompt\":\"The \",\"text\":\"lat\\u0000e "
        "<b>\",\"cache_bytes_per_token\":128}\n"
        "{\"step\":9,\"pro",
        "{\"step\":8,\"prompt\":\"The \",\"text\":\"other\"}\n"};
    sqlite3 *db = begin("samples", "val_loss");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 0, -1);
    three_seeds(db, 0, 2.0, 2.1, 2.2);
    three_seeds(db, 1, 1.9, 2.01, 2.09);
    study_close(db);
    assert_int_equal(mkdir(scratch_path("samples/runs"), 0777), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(scratch_path("samples/runs/%d-lr0.001-seed1", i), 0777), 0);
        file_write(scratch_path("samples/runs/%d-lr0.001-seed1/samples.jsonl", i), lines[i],
                   strlen(lines[i]));
    }
    write_report("samples");
    expect_both("What the models write");
    expect_in(html, "Baseline, after 8 training steps; cache: 128 bytes per token</h");
    expect_in(html, "<mark>The </mark>lat e &lt;b&gt;</p>");
    expect_in(html, "Gate, after 8 training steps</h");
    expect_in(html, "<mark>The </mark>other</p>");
    expect_not_in(html, "early");
}

/* Nothing to report is no reason to fall over, whatever is missing. */
TEST_WITH(test_half_filled_databases_are_reported, NULL, free_texts) {
    sqlite3 *db = begin("half", "val_loss");
    finish(db, "half");
    expect_both("There are no variants yet.");
    expect_both("no run was made");
    assert_int_equal(sqlite3_open(scratch_path("half/runs.db"), &db), SQLITE_OK);
    study_sql(db, "BEGIN");
    study_variant(db, 0, "0", "Baseline", -1, -1);
    study_variant(db, 1, "1", "Gate", 1, 1); /* its own baseline */
    study_variant(db, 2, "2", "", 0, -1);
    study_sql(db, "UPDATE variants SET iters = NULL, tokens = NULL, parameters = NULL,"
                  " flops_per_token = NULL, training_bytes = NULL, cache_bytes_per_token = NULL");
    finish(db, "half");
    expect_line("- **no difference shown** variant 2", SAYS("no seed was finished by both"));
    assert_int_equal(sqlite3_open(scratch_path("half/runs.db"), &db), SQLITE_OK);
    study_sql(db, "BEGIN");
    study_sql(db, "INSERT INTO runs(variant, learning_rate, seed, folder, status, config) VALUES"
                  " (0, 0.001, 1, 'runs/a', 'done', ''), (2, 0, 1, 'runs/b', 'done', 'no JSON'),"
                  " (1, 1, 1, 'runs/c', 'done', '{\"x\": {}}'), (1, 2, 1, 'runs/d', 'done', '[]')");
    study_sql(db, "UPDATE runs SET score = 1.5 WHERE variant < 2");
    study_sql(db, "UPDATE runs SET score = 0 WHERE variant = 2");
    study_sql(db, "INSERT INTO metrics(run, step) VALUES(1, 1), (1, 0), (2, 9000000000)");
    study_sql(db, "INSERT INTO events(run, step, kind) VALUES(1, 1, 'spike'), (NULL, 77, 'odd')");
    study_close(db);
    write_report("half");
    expect_not_in(md, "nan");
    expect_well_formed();
}

static void expect_failure(const char *database, const char *folder, const char *words) {
    assert_int_not_equal(weft_report_write(database, folder), WEFT_OK);
    if (!strstr(weft_error_message(), words))
        fail_msg("'%s' does not say '%s'", weft_error_message(), words);
    assert_null(strchr(weft_error_message(), '\n'));
}

TEST_WITH(test_what_is_no_study_is_refused, NULL, free_texts) {
    char out[512];
    snprintf(out, sizeof out, "%s", scratch_path("refused"));
    expect_failure(scratch_path("nowhere"), out, "No such file");
    file_write(scratch_path("zero.db"), "", 0);
    expect_failure(scratch_path("zero.db"), out, "an empty database");
    file_write(scratch_path("text.db"), "this is text, and long enough for a header", 42);
    expect_failure(scratch_path("text.db"), out, "text.db");
    sqlite3 *db = begin("bare", "val_loss");
    study_sql(db, "DELETE FROM study");
    study_close(db);
    expect_failure(scratch_path("bare/runs.db"), out, "holds no study");
    assert_int_equal(sqlite3_open(scratch_path("bare/runs.db"), &db), SQLITE_OK);
    study_sql(db, "DROP VIEW contents; ALTER TABLE variants DROP COLUMN overrides");
    sqlite3_close(db);
    expect_failure(scratch_path("bare/runs.db"), out, "'variants' is missing, or another");
    assert_int_not_equal(access(out, F_OK), 0);
}

TEST_WITH(test_a_report_that_cannot_be_written_leaves_the_old_one, NULL, free_texts) {
    sqlite3 *db = begin("kept", "val_loss");
    study_close(db);
    file_write(scratch_path("file"), "x", 1);
    expect_failure(scratch_path("kept/runs.db"), scratch_path("file"), "file");
    file_write(scratch_path("kept/report.md"), "old", 3);
    assert_int_equal(mkdir(scratch_path("kept/report.html"), 0777), 0);
    expect_failure(scratch_path("kept/runs.db"), scratch_path("kept"), "report.html");
    char *old = file_read(scratch_path("kept/report.md"), NULL);
    assert_string_equal(old, "old");
    free(old);
    assert_int_not_equal(access(scratch_path("kept/report.md.part"), F_OK), 0);
}

TEST_WITH(test_several_studies_are_a_section_each, NULL, free_texts) {
    const char *paths[2] = {"first-study", "second-study"};
    for (int i = 0; i < 2; i++) {
        sqlite3 *db = begin(paths[i], "val_loss");
        study_variant(db, 0, "0", "", -1, -1);
        study_variant(db, 1, "1", "", 0, -1);
        three_seeds(db, 0, 2.0, 2.1, 2.2);
        three_seeds(db, 1, 1.9, 2.01, 2.09);
        study_close(db);
        paths[i] = scratch_path("%s", paths[i]);
    }
    assert_int_equal(weft_report_write_several(paths, 2, scratch_path("both"), false), WEFT_OK);
    read_report("both");
    expect_both("2 studies");
    expect_in(html, "<h2 id=\"study-first-study\">Study first-study</h2>");
    expect_in(html, "<h2 id=\"study-second-study\">Study second-study</h2>");
    expect_in(md, "### How the verdicts are reached");
    expect_well_formed();
    expect_no_request();
    paths[1] = paths[0]; /* of one name: the contents lead to each */
    assert_int_equal(weft_report_write_several(paths, 2, scratch_path("both"), false), WEFT_OK);
    read_report("both");
    expect_in(html, "<a href=\"#study-first-study\">");
    expect_in(html, "<a href=\"#study-first-study-2\">");
    expect_in(html, "<h2 id=\"study-first-study-2\">");
}

/* Ticks and table cells: what a person would write. */
TEST(test_short_numbers_have_no_exponents) {
    static const struct {
        double value;
        int digits;
        const char *text;
    } cases[] = {{120000, 2, "120k"},   {180000, 1, "180k"}, {12000, 1, "12k"},
                 {1250000, 3, "1.25M"}, {999.96, 4, "1k"},   {999.4, 2, "999"},
                 {7, 2, "7"},           {0.002, 4, "0.002"}, {-120000, 2, "-120k"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char room[32];
        assert_string_equal(weft_plot_short(cases[i].value, cases[i].digits, room), cases[i].text);
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)

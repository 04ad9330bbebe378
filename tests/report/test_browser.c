/* The report as a person uses it: driven in headless Chromium by browser.py, with scripts and
 * without. */
#include "report/report.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define COLOURS "'#0072B2,#D55E00,#009E73,#CC79A7'"
enum { NO_BROWSER = 77, LINE_MOST = 4096 };

/* Six variants, the last two repeats of the two before, two seeds, two learning rates. */
static void make_study(const char *path) {
    static const double at[] = {2.60, 2.57, 2.52, 2.45};
    static const char *const titles[] = {
        "Baseline",  "Gate </script><b>\"'",         "Gate + Cross-Token",
        "All three", "Gate + Cross-Token, a repeat", "All three, a repeat"};
    sqlite3 *db = study_open(path, "six variants", "val_loss");
    for (int s = 0; s < 6; s++) {
        char name[8];
        int like = s > 3 ? s - 2 : s;
        snprintf(name, sizeof name, "%d", s);
        study_variant(db, s, name, titles[s], s ? 0 : -1, s > 3 ? like : -1);
        for (int seed = 1; seed <= 2; seed++) {
            study_run(db, s, 1e-3, seed, at[like] + 0.01 * seed, "w");
            study_run(db, s, 3e-3, seed, at[like] + 0.02 + 0.01 * seed, "w");
        }
    }
    study_close(db);
}

/* The exit status of a script of tests/report; what it printed is printed, the last line in `last`. */
static int run_script(const char *command, char *last) {
    char line[LINE_MOST];
    FILE *out = popen(command, "r");
    assert_non_null(out);
    *last = '\0';
    while (fgets(line, sizeof line, out)) {
        fputs(line, stdout);
        if (*line == '\n') continue;
        snprintf(last, LINE_MOST, "%s", line);
        last[strcspn(last, "\n")] = '\0';
    }
    int status = pclose(out);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int run_browser(const char *report, char *last) {
    char line[LINE_MOST];
    snprintf(line, sizeof line, "python3 tests/report/browser.py '%s' '%s' 4 " COLOURS " 2>&1",
             report, scratch_path("."));
    return run_script(line, last);
}

static void skip_without(int status, const char *why) {
    if (status != NO_BROWSER && status != 127) return;
    print_message("no browser test: %s\n", why);
    skip();
}

TEST(test_the_report_is_drawn_and_answers_the_hand) {
    char last[LINE_MOST];
    make_study(scratch_path("runs.db"));
    assert_int_equal(weft_report_write(scratch_path("runs.db"), scratch_path(".")), WEFT_OK);
    int status = run_browser(scratch_path("report.html"), last);
    skip_without(status, last);
    if (status != 0) fail_msg("the browser found: %s", last);
}

/* The same page with nothing drawn in its plots but text. */
TEST(test_an_empty_plot_is_noticed) {
    static const char *const drawn[] = {"<path", "<circle", "<line"};
    char last[LINE_MOST];
    size_t size;
    char *page = file_read(scratch_path("report.html"), &size);
    for (size_t i = 0; i < sizeof drawn / sizeof drawn[0]; i++)
        for (char *at = page; (at = strstr(at, drawn[i]));)
            at[1] = 'x';
    file_write(scratch_path("empty.html"), page, size);
    free(page);
    int status = run_browser(scratch_path("empty.html"), last);
    skip_without(status, last);
    assert_int_equal(status, 1);
    assert_non_null(strstr(last, "pixels of colour"));
}

/* A study of so many variants with long labels, of which so many runs have ended; 4 seeds each. */
static void make_state(const char *folder, int variants, int ended) {
    assert_int_equal(mkdir(scratch_path("%s", folder), 0777), 0);
    sqlite3 *db = study_open(scratch_path("%s/runs.db", folder), folder, "val_loss");
    for (int s = 0, run = 0; s < variants; s++) {
        char name[16], title[64];
        snprintf(name, sizeof name, "v%d", s);
        snprintf(title, sizeof title, "Variant %d with grouped queries and a long label", s);
        study_variant(db, s, name, title, s ? 0 : -1, -1);
        for (int seed = 1; seed <= 4; seed++, run++) {
            if (run < ended)
                study_run(db, s, 1e-3, seed, 2.5 + 0.01 * ((s * 7 + seed * seed) % 11), "w");
            else
                study_run_ended(db, s, 1e-3, seed, run == ended ? "running" : "waiting", NULL);
        }
    }
    study_close(db);
    assert_int_equal(
        weft_report_write(scratch_path("%s/runs.db", folder), scratch_path("%s", folder)), WEFT_OK);
}

TEST(test_every_state_of_a_study_is_fit_to_be_seen) {
    static const char *const folders[] = {"empty", "none-ended", "running", "alone", "forty"};
    static const int sizes[][2] = {{0, 0}, {3, 0}, {3, 9}, {1, 4}, {40, 160}};
    char line[LINE_MOST], last[LINE_MOST];
    int n = snprintf(line, sizeof line, "python3 tests/report/states.py '%s'", scratch_path("."));
    for (int i = 0; i < 5; i++) {
        make_state(folders[i], sizes[i][0], sizes[i][1]);
        n += snprintf(line + n, sizeof line - (size_t)n, " '%s'",
                      scratch_path("%s/report.html", folders[i]));
    }
    snprintf(line + n, sizeof line - (size_t)n, " 2>&1");
    int status = run_script(line, last);
    skip_without(status, last);
    if (status != 0) fail_msg("the browser found: %s", last);
}

RUN_TESTS(scratch_setup, scratch_teardown)

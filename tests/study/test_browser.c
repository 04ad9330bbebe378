/* The report as a person sees it: opened in headless Chromium at the width of a desk and of a
 * telephone by browser.py, which counts drawn pixels inside each plot. */
#include "study/report.h"
#include "support/command.h"
#include "support/study_database.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#define COLOURS "'#0072B2,#D55E00,#009E73,#CC79A7,#E69F00,#56B4E9'"
enum { NO_BROWSER = 77, LINE_MOST = 4096 };

/* Six steps, the last two repeats of the two before, two seeds, two learning rates. */
static void make_study(const char *path) {
    static const double at[] = {2.60, 2.57, 2.52, 2.45};
    sqlite3 *db = study_open(path, "six steps", "val_loss");
    for (int s = 0; s < 6; s++) {
        char name[8];
        int like = s > 3 ? s - 2 : s;
        snprintf(name, sizeof name, "%d", s);
        study_step(db, s, name, "a step", s ? 0 : -1, s > 3 ? like : -1);
        for (int seed = 1; seed <= 2; seed++) {
            study_run(db, s, 1e-3, seed, at[like] + 0.01 * seed, "w");
            study_run(db, s, 3e-3, seed, at[like] + 0.02 + 0.01 * seed, "w");
        }
    }
    study_close(db);
}

/* The exit status; what it printed is printed, the last line in `last`. */
static int run_browser(const char *report, const char *widths, char *last) {
    char line[LINE_MOST];
    snprintf(line, sizeof line, "python3 tests/study/browser.py '%s' '%s' %s " COLOURS " 2>&1",
             report, scratch_path("."), widths);
    FILE *out = popen(line, "r");
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

static void skip_without(int status, const char *why) {
    if (status != NO_BROWSER && status != 127) return;
    print_message("no browser test: %s\n", why);
    skip();
}

static void test_the_report_shows_its_plots(void **state) {
    (void)state;
    char last[LINE_MOST];
    if (system("gnuplot --version >/dev/null 2>&1") != 0) skip_without(NO_BROWSER, "no gnuplot");
    make_study(scratch_path("runs.db"));
    assert_int_equal(weft_report_write(scratch_path("runs.db"), scratch_path(".")), WEFT_OK);
    int status = run_browser(scratch_path("report.html"), "1280,390", last);
    skip_without(status, last);
    if (status != 0) fail_msg("the browser found: %s", last);
}

/* The same page with nothing drawn in its plots but text. */
static void test_an_empty_plot_is_noticed(void **state) {
    (void)state;
    static const char *const drawn[] = {"<path", "<use", "<polygon"};
    char last[LINE_MOST];
    if (system("gnuplot --version >/dev/null 2>&1") != 0) skip_without(NO_BROWSER, "no gnuplot");
    size_t size;
    char *page = file_read(scratch_path("report.html"), &size);
    for (size_t i = 0; i < sizeof drawn / sizeof drawn[0]; i++)
        for (char *at = page; (at = strstr(at, drawn[i]));)
            at[1] = 'x';
    file_write(scratch_path("empty.html"), page, size);
    free(page);
    int status = run_browser(scratch_path("empty.html"), "800", last);
    skip_without(status, last);
    assert_int_equal(status, 1);
    assert_non_null(strstr(last, "pixels of colour"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_report_shows_its_plots),
        cmocka_unit_test(test_an_empty_plot_is_noticed),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

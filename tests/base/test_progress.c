/* The progress bar on a terminal and in a pipe. */
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "support/screen.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { RUN_STEPS = 600, RUN_RECORDS = 6 };

/* 600 steps in about 0.6 s, with a record at each hundredth. */
static void run_with_records(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "train", .unit = "steps", .total = RUN_STEPS});
    for (int i = 1; i <= RUN_STEPS; i++) {
        usleep(1000);
        weft_progress_update(p, i, i % 2 ? "loss 3.21" : "loss 13.2");
        if (i % 100 == 0) weft_log(WEFT_LOG_INFO, "record %d", i / 100);
    }
    weft_progress_end(p, true);
}

static void check_records(const screen *s) {
    assert_int_equal(s->status, 0);
    assert_int_equal(s->lines, RUN_RECORDS + 1);
    for (int i = 0; i < RUN_RECORDS; i++) {
        char expect[32];
        snprintf(expect, sizeof expect, "info  record %d", i + 1);
        assert_string_equal(s->line[i], expect);
    }
    const char *summary = s->line[RUN_RECORDS];
    if (strncmp(summary, "info  train 600 steps in ", 25) != 0 ||
        !strstr(summary, " steps/s, loss"))
        fail_msg("the last line is `%s`", summary);
}

TEST(test_a_bar_is_one_line_that_goes_away) {
    double begun = weft_clock();
    screen s = screen_run(80, NULL, run_with_records);
    double passed = weft_clock() - begun;
    check_records(&s);
    assert_false(s.overflow);
    assert_true(screen_count(&s, "train [") > 4);
    assert_true(screen_count(&s, "=>") > 2);
    assert_true(screen_count(&s, " left, loss") > 2);
    /* Ten a second, the first and the last, and twice for each record: erased and drawn again. */
    if (s.draws > 10 * passed + 3 + 2 * RUN_RECORDS)
        fail_msg("%d drawings in %.2f s", s.draws, passed);
    screen_free(&s);
}

static void run_short(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "evaluate", .unit = "steps", .total = 250});
    for (int i = 1; i <= 250; i++) {
        usleep(1000);
        weft_progress_update(p, i, "loss 3.21");
    }
    weft_progress_end(p, false);
}

TEST(test_a_bar_fits_every_width) {
    static const int widths[] = {1, 2, 10, 24, 33, 50, 132, 400};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        screen s = screen_run(widths[i], WITH("NO_COLOR=1"), run_short);
        assert_int_equal(s.status, 0);
        assert_int_equal(s.lines, 0);
        int widest = 0;
        for (char *at = strtok(s.raw, "\r"); at; at = strtok(NULL, "\r")) {
            assert_int_equal(strncmp(at, "\033[K", 3), 0);
            int length = (int)strlen(at + 3);
            widest = length > widest ? length : widest;
        }
        if (widest > widths[i] || widest < 1 || (widths[i] > 1 && widest == widths[i]))
            fail_msg("a bar of %d columns on %d", widest, widths[i]);
        screen_free(&s);
    }
}

/* A training step with all that it says: the bar stays, and what is left and the loss are seen. */
static void run_training(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "train", .unit = "steps", .total = 10400});
    for (int i = 1; i <= 3; i++) {
        usleep(110000);
        weft_progress_update(p, 3400 * i, "loss 3.217 val 3.311 221.4k tok/s");
    }
    weft_progress_end(p, false);
}

TEST(test_eighty_columns_hold_a_training_step_and_its_bar) {
    screen s = screen_run(80, WITH("NO_COLOR=1"), run_training);
    assert_int_equal(s.status, 0);
    assert_false(s.overflow);
    assert_true(screen_count(&s, "train [=") >= 2);
    assert_true(screen_count(&s, "] 6800/10400, ") >= 1);
    assert_true(screen_count(&s, " left, loss 3.217 val 3.311 221.4k tok/s") >= 2);
    assert_int_equal(screen_count(&s, "\033[36m"), 0);
    screen_free(&s);
    s = screen_run(80, NULL, run_training);
    assert_false(s.overflow);
    assert_true(screen_count(&s, "train [\033[36m=") >= 2);
    screen_free(&s);
}

/* A loss that falls from step to step: the bar is its curve, highest at first, where the terminal has the signs. */
static void run_curve(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "train", .unit = "steps", .total = 1000});
    for (int i = 1; i <= 1000; i++) {
        if (i == 1000) usleep(110000);
        weft_progress_value(p, 1000 - i);
        weft_progress_update(p, i, "loss");
    }
    weft_progress_end(p, true);
}

TEST(test_a_bar_is_the_curve_of_a_value) {
    screen s = screen_run(80, WITH("NO_COLOR=1", "LC_ALL=C.UTF-8"), run_curve);
    assert_int_equal(s.status, 0);
    assert_false(s.overflow);
    assert_true(screen_count(&s, "train [\xe2\x96\x88") >= 1);
    assert_true(screen_count(&s, "\xe2\x96\x85\xe2\x96\x84") >= 2);
    assert_int_equal(screen_count(&s, "\xe2\x96\x81] 1000/1000"), 1);
    assert_int_equal(s.lines, 1);
    assert_int_equal(screen_count(&s, ", loss  \xe2\x96\x88\xe2\x96\x88"), 1);
    screen_free(&s);
    s = screen_run(80, WITH("NO_COLOR=1", "LC_ALL=C"), run_curve);
    assert_int_equal(screen_count(&s, "=] 1000/1000"), 1);
    assert_int_equal(screen_count(&s, "\xe2"), 0);
    screen_free(&s);
}

/* A study's note is longer than the screen: its last parts go, not the bar. */
static void run_long_note(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "study", .unit = "iterations", .total = 2000});
    usleep(110000);
    weft_progress_update(
        p, 1000, "2 of 4 runs, loss 5.5394, a-step-whose-name-takes-more-than-is-left, seed 1");
    weft_progress_end(p, false);
}

TEST(test_a_long_note_leaves_the_bar) {
    screen s = screen_run(80, WITH("NO_COLOR=1"), run_long_note);
    assert_false(s.overflow);
    assert_true(screen_count(&s, "study [=") == 1);
    assert_true(screen_count(&s, "] 1000/2000, ") == 1);
    assert_true(screen_count(&s, "2 of 4 runs, loss 5.5394") == 1);
    assert_int_equal(screen_count(&s, "5.5394,"), 0);
    screen_free(&s);
}

static void run_odd_texts(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü",
                                 .unit = "größen\n",
                                 .total = 7});
    for (int i = 0; i < 3; i++) {
        usleep(110000);
        weft_progress_update(p, i == 2 ? 100 : -i,
                             "öööööööööööööööööööööööööööööööööööööööööööööööö"
                             "ööööööööööööööööööööööööööööööööööööööö\r\033[A");
    }
    weft_progress_end(p, false);
    weft_log(WEFT_LOG_INFO, "end");
}

TEST(test_odd_texts_and_numbers_do_not_garble) {
    screen s = screen_run(50, NULL, run_odd_texts);
    assert_int_equal(s.status, 0);
    assert_false(s.overflow);
    assert_int_equal(s.lines, 1);
    assert_string_equal(s.line[0], "info  end");
    assert_int_equal(screen_count(&s, "\033[A"), 0);
    screen_free(&s);
    s = screen_run(0, NULL, run_odd_texts);
    assert_int_equal(s.status, 0);
    assert_int_equal(screen_count(&s, "\033"), 0);
    screen_free(&s);
}

static void run_fast(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "load", .unit = "files", .total = 5000});
    for (int i = 1; i <= 5000; i++)
        weft_progress_update(p, i, NULL);
    weft_progress_end(p, true);
}

TEST(test_a_pipe_gets_a_line_each_tenth) {
    screen s = screen_run(0, NULL, run_fast);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.lines, 10);
    for (int i = 0; i < 9; i++) {
        char expect[64];
        snprintf(expect, sizeof expect, "info  load %d/5000 (%d%%) ", 500 * (i + 1), 10 * (i + 1));
        assert_int_equal(strncmp(s.line[i], expect, strlen(expect)), 0);
    }
    assert_int_equal(strncmp(s.line[9], "info  load 5000 files in ", 25), 0);
    assert_int_equal(screen_count(&s, "\r"), 0);
    assert_int_equal(screen_count(&s, "\033"), 0);
    screen_free(&s);
}

static void run_without_end(void) {
    weft_progress *p = weft_progress_begin(
        &(weft_progress_options){.label = "read", .unit = "tokens", .done = 100, .seconds = 0.1});
    for (int i = 1; i <= 300; i++) {
        usleep(1000);
        weft_progress_update(p, 100 + i, NULL);
    }
    weft_progress_end(p, true);
}

TEST(test_a_pipe_gets_a_line_every_so_many_seconds) {
    double begun = weft_clock();
    screen s = screen_run(0, NULL, run_without_end);
    double passed = weft_clock() - begun;
    assert_int_equal(s.status, 0);
    assert_true(s.lines >= 3 && s.lines <= 1 + (int)(passed / 0.1));
    assert_int_equal(strncmp(s.line[0], "info  read ", 11), 0);
    assert_non_null(strstr(s.line[0], " tokens/s"));
    assert_null(strstr(s.line[0], "left"));
    /* What was there before the start is not counted as done in this time. */
    assert_int_equal(strncmp(s.line[s.lines - 1], "info  read 300 tokens in ", 25), 0);
    screen_free(&s);
    s = screen_run(70, NULL, run_without_end);
    assert_int_equal(s.lines, 1);
    assert_int_equal(screen_count(&s, "["), s.draws);
    screen_free(&s);
}

enum { DAYS_OF_STEPS = 300 * 1000 * 1000 };

/* A step takes a millisecond or longer: 3e8 of them take days. */
static void run_for_days(void) {
    weft_progress *p = weft_progress_begin(&(weft_progress_options){
        .label = "train", .unit = "steps", .total = DAYS_OF_STEPS, .seconds = 0.1});
    for (int i = 1; i <= 150; i++) {
        usleep(1000);
        weft_progress_update(p, i, NULL);
    }
    weft_progress_end(p, false);
}

TEST(test_days_that_are_left_are_told) {
    screen s = screen_run(0, NULL, run_for_days);
    double rate;
    int days, hours;
    assert_true(s.lines >= 1);
    const char *told = strstr(s.line[0], "(0%)");
    if (!told || sscanf(told, "(0%%) %lf steps/s, %dd%2dh left", &rate, &days, &hours) != 3)
        fail_msg("the line is `%s`", s.line[0]);
    /* Within the hours and the digits of the speed that are not shown. */
    double left = 24.0 * days + hours, wanted = DAYS_OF_STEPS / rate / 3600;
    assert_true(days > 2 && hours < 24 && fabs(left - wanted) < 1 + 0.01 * wanted);
    screen_free(&s);
}

TEST(test_above_info_nothing_is_shown) {
    for (int width = 0; width <= 80; width += 80) {
        screen s = screen_run(width, WITH("WEFT_LOG=warn"), run_fast);
        assert_int_equal(s.status, 0);
        assert_int_equal(s.bytes, 0);
        screen_free(&s);
    }
}

TEST(test_a_dumb_terminal_gets_lines) {
    screen s = screen_run(80, WITH("TERM=dumb"), run_fast);
    assert_int_equal(s.lines, 10);
    assert_int_equal(screen_count(&s, "\033"), 0);
    screen_free(&s);
}

TEST(test_no_progress_is_accepted_everywhere) {
    weft_progress_update(NULL, 1, "note");
    weft_progress_end(NULL, true);
}

RUN_TESTS(NULL, NULL)

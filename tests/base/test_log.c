/* The log in a pipe and on a terminal. */
#include "base/log.h"
#include "support/screen.h"
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

static void log_each_level(void) {
    weft_log(WEFT_LOG_DEBUG, "first %d", 1);
    weft_log(WEFT_LOG_INFO, "second %s", "two");
    weft_log(WEFT_LOG_WARN, "third\n");
    weft_log(WEFT_LOG_ERROR, "fourth");
}

static void check_output(int width, const char *const *environment, const char *expect) {
    screen s = screen_run(width, environment, log_each_level);
    assert_int_equal(s.status, 0);
    assert_string_equal(s.raw, expect);
    screen_free(&s);
}

TEST(test_a_pipe_gets_plain_lines_from_info_on) {
    check_output(0, NULL, "info  second two\nwarn  third\nerror fourth\n");
}

TEST(test_the_environment_sets_the_level) {
    check_output(0, WITH("WEFT_LOG=debug"),
                 "debug first 1\ninfo  second two\nwarn  third\nerror fourth\n");
    check_output(0, WITH("WEFT_LOG=info"), "info  second two\nwarn  third\nerror fourth\n");
    check_output(0, WITH("WEFT_LOG="), "info  second two\nwarn  third\nerror fourth\n");
    check_output(0, WITH("WEFT_LOG=warn"), "warn  third\nerror fourth\n");
    check_output(0, WITH("WEFT_LOG=error"), "error fourth\n");
    check_output(0, WITH("WEFT_LOG=loud"),
                 "warn  WEFT_LOG=loud is none of debug, info, warn, error; info is used\n"
                 "info  second two\nwarn  third\nerror fourth\n");
}

static void set_level_and_log(void) {
    weft_log_set_level(WEFT_LOG_ERROR);
    log_each_level();
    if (weft_log_enabled(WEFT_LOG_WARN) || !weft_log_enabled(WEFT_LOG_ERROR)) _exit(1);
}

TEST(test_a_program_may_set_the_level_itself) {
    screen s = screen_run(0, WITH("WEFT_LOG=debug"), set_level_and_log);
    assert_int_equal(s.status, 0);
    assert_string_equal(s.raw, "error fourth\n");
    screen_free(&s);
}

TEST(test_colours_are_for_terminals_that_want_them) {
    screen s = screen_run(80, NULL, log_each_level);
    assert_string_equal(s.raw, "info  second two\r\n\033[33mwarn \033[0m third\r\n"
                               "\033[31merror\033[0m fourth\r\n");
    screen_free(&s);
    const char *plain = "info  second two\r\nwarn  third\r\nerror fourth\r\n";
    check_output(80, WITH("NO_COLOR=1"), plain);
    check_output(80, WITH("TERM=dumb"), plain);
    check_output(80, WITH("TERM"), plain);
}

static void log_with_time(void) {
    weft_log(WEFT_LOG_INFO, "now");
}

TEST(test_a_time_may_stand_before_each_line) {
    screen s = screen_run(0, WITH("WEFT_LOG_TIME=1", "TZ=UTC"), log_with_time);
    int year, month, day, hour, minute, second, milli, end = 0;
    assert_int_equal(sscanf(s.raw, "%4d-%2d-%2dT%2d:%2d:%2d.%3d+0000 info  now\n%n", &year, &month,
                            &day, &hour, &minute, &second, &milli, &end),
                     7);
    assert_int_equal(end, (int)s.bytes);
    screen_free(&s);
    s = screen_run(0, WITH("WEFT_LOG_TIME=0"), log_with_time);
    assert_string_equal(s.raw, "info  now\n");
    screen_free(&s);
}

static void log_odd_texts(void) {
    weft_log(WEFT_LOG_INFO, "two\nlines\tand \033[31mred\177\n\n");
    weft_log(WEFT_LOG_INFO, "%s", "");
    weft_log(WEFT_LOG_INFO, "grün 100%%");
    char text[9000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    weft_log(WEFT_LOG_INFO, "%s", text);
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "ü", 2);
    text[sizeof text - 1] = '\0';
    weft_log(WEFT_LOG_INFO, "a%s", text);
}

TEST(test_a_record_is_one_line_whatever_is_in_it) {
    screen s = screen_run(0, NULL, log_odd_texts);
    assert_int_equal(s.status, 0);
    assert_int_equal(screen_count(&s, "\n"), 5);
    assert_non_null(strstr(s.raw, "info  two\\x0alines\\x09and \\x1b[31mred\\x7f\ninfo  \n"
                                  "info  grün 100%\n"));
    assert_int_equal(screen_count(&s, "xxx...\n"), 1);
    assert_int_equal(screen_count(&s, "üü...\n"), 1);
    assert_true(s.bytes < 8200);
    screen_free(&s);
}

enum { WRITERS = 8, RECORDS = 200 };

static void *write_records(void *argument) {
    for (int i = 0; i < RECORDS; i++)
        weft_log(WEFT_LOG_INFO, "<%d %d %0*d>", *(int *)argument, i, 20 + i, i);
    return NULL;
}

static void write_from_threads(void) {
    pthread_t threads[WRITERS];
    int names[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        names[i] = i;
        if (pthread_create(&threads[i], NULL, write_records, &names[i]) != 0) _exit(1);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
}

static void check_threads(int width) {
    screen s = screen_run(width, NULL, write_from_threads);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.lines, WRITERS * RECORDS);
    int next[WRITERS] = {0};
    for (int i = 0; i < s.lines; i++) {
        int writer, record, number, end = 0;
        assert_int_equal(sscanf(s.line[i], "info  <%d %d %d>%n", &writer, &record, &number, &end),
                         3);
        assert_int_equal(end, (int)strlen(s.line[i]));
        assert_in_range(writer, 0, WRITERS - 1);
        assert_int_equal(record, next[writer]++);
        assert_int_equal(number, record);
    }
    screen_free(&s);
}

TEST(test_lines_of_threads_do_not_mix) {
    check_threads(0);
    check_threads(400);
}

static void use_status(void) {
    int width = weft_log_status_width();
    weft_log(WEFT_LOG_INFO, "width %d", width);
    weft_log_status("working");
    weft_log(WEFT_LOG_INFO, "above");
    weft_log_status("still\nworking");
    weft_log(WEFT_LOG_INFO, "above too");
    weft_log_status(NULL);
    weft_log_status(NULL);
    weft_log(WEFT_LOG_INFO, "done");
}

TEST(test_records_stand_above_the_status_line) {
    screen s = screen_run(60, NULL, use_status);
    static const char *const lines[] = {"info  width 59", "info  above", "info  above too",
                                        "info  done"};
    assert_int_equal(s.lines, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(s.line[i], lines[i]);
    assert_int_equal(screen_count(&s, "still working"), 2);
    screen_free(&s);
}

TEST(test_without_a_terminal_there_is_no_status_line) {
    const char *plain = "info  width 0\ninfo  above\ninfo  above too\ninfo  done\n";
    screen s = screen_run(0, NULL, use_status);
    assert_string_equal(s.raw, plain);
    screen_free(&s);
    s = screen_run(60, WITH("TERM=dumb"), use_status);
    assert_int_equal(screen_count(&s, "\033"), 0);
    assert_int_equal(screen_count(&s, "working"), 0);
    screen_free(&s);
}

static void log_to_nowhere(void) {
    close(STDERR_FILENO);
    log_each_level();
    weft_log_status("working");
    weft_log_status(NULL);
}

TEST(test_a_closed_standard_error_is_no_harm) {
    screen s = screen_run(0, NULL, log_to_nowhere);
    assert_int_equal(s.status, 0);
    assert_int_equal(s.bytes, 0);
    screen_free(&s);
}

RUN_TESTS(NULL, NULL)

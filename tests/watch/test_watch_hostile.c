/* `weft watch` over folders that somebody filled with intent: nothing outside them is told, whatever
 * leads there; nothing is waited for; and neither many connections nor long files keep it from answering.
 * What lies under the name notes.db is record/test_notes's. */
#include "base/clock.h"
#include "support/command.h"
#include "support/http.h"
#include "support/study_database.h"
#include "watch/live.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { RUNS = 7, IDLE = 64, STREAMS = 16, MEGABYTES_MOST = 100 };
#define LINES "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n"

static server watch;
static char root[256], outside[256];

static void make_run(const char *run) {
    shell_succeeds("mkdir '%s/%s'", root, run);
    file_write(scratch_path("runs/%s/metrics.jsonl", run), LINES, sizeof LINES - 1);
}

static void make_study(const char *path, int waiting) {
    sqlite3 *db = study_open(path, "studied", "val_loss");
    study_variant(db, 0, "plain", "Plain", -1, -1);
    for (int i = 0; i < waiting; i++)
        study_run_ended(db, 0, 1e-3, i, "waiting", NULL);
    study_close(db);
}

/* A run for each file that the page reads, and the page. */
static void begin(void) {
    static const char *const names[] = {"config",        "result.json", "log",   "samples.jsonl",
                                        "metrics.jsonl", "folder",      "beacon"};
    server_stop(&watch);
    shell_succeeds("rm -rf '%s' && mkdir -p '%s/studied'", root, root);
    for (int i = 0; i < RUNS; i++)
        make_run(names[i]);
    make_study(scratch_path("runs/studied/runs.db"), 1);
    watch = server_start_as("watch", RUN(root));
}

/* What must not be told. */
static int open_all(void **state) {
    (void)state;
    scratch_open();
    snprintf(root, sizeof root, "%s", scratch_path("runs"));
    snprintf(outside, sizeof outside, "%s", scratch_path("outside"));
    shell_succeeds("mkdir '%s'", outside);
    make_study(scratch_path("outside/runs.db"), 777);
    static const char config[] = "CONFIG_RUN_NAME=\"secret\"\nCONFIG_N_LAYER=777\n",
                      result[] = "{\"end\": \"diverged\"}\n", log[] = "secret\n",
                      lines[] = LINES LINES "{\"step\":777,\"loss\":0.777}\n";
    file_write(scratch_path("outside/config"), config, sizeof config - 1);
    file_write(scratch_path("outside/result.json"), result, sizeof result - 1);
    file_write(scratch_path("outside/log"), log, sizeof log - 1);
    file_write(scratch_path("outside/samples.jsonl"), log, sizeof log - 1);
    file_write(scratch_path("outside/metrics.jsonl"), lines, sizeof lines - 1);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    server_stop(&watch);
    scratch_close();
    return 0;
}

static char *get(const char *path) {
    answer a = http_get(watch.port, path, NULL);
    assert_int_equal(a.status, 200);
    char *text = strdup(a.body);
    answer_free(&a);
    return text;
}

/* Waits for a look that began after what was done so far: it sees this run's next line. */
static char *look_again(void) {
    static int step = 10000;
    char word[64], *all;
    step++;
    FILE *out = fopen(scratch_path("runs/beacon/metrics.jsonl"), "a");
    assert_non_null(out);
    fprintf(out, "{\"step\":%d,\"loss\":3}\n", step);
    fclose(out);
    snprintf(word, sizeof word, "\"step\":%d,", step);
    for (int i = 0; i < 600; i++) {
        all = get("/api/runs");
        if (strstr(all, word)) return all;
        free(all);
        pause_ms(100);
    }
    fail_msg("the page does not look any more");
    return NULL;
}

/* What a stream is sent first. */
static char *first_event(void) {
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    static char held[1 << 20];
    size_t n = 0;
    int socket = client_connect(watch.port);
    assert_true(client_send(socket, ask, sizeof ask - 1));
    held[0] = '\0';
    while (!strstr(held, "\n\n\r\n") && n + 1 < sizeof held) {
        ssize_t more = read(socket, held + n, sizeof held - 1 - n);
        assert_true(more > 0);
        n += (size_t)more;
        held[n] = '\0';
    }
    close(socket);
    return strdup(held);
}

static void expect_nothing_of_outside(const char *text) {
    static const char *const words[] = {"secret", "777", "diverged"};
    for (int i = 0; i < 3; i++)
        if (strstr(text, words[i])) fail_msg("the page tells '%s': %s", words[i], text);
}

/* Of every endpoint, for every run. */
static void expect_nothing_is_told(void) {
    char *all = look_again(), *event = first_event(), path[64];
    expect_nothing_of_outside(all);
    assert_non_null(strstr(event, "\"name\":\"beacon\""));
    expect_nothing_of_outside(event);
    for (int i = 0; i < RUNS; i++) {
        snprintf(path, sizeof path, "/api/log?id=%d", i);
        char *log = get(path);
        expect_nothing_of_outside(log);
        free(log);
    }
    free(all);
    free(event);
}

/* Puts something in the place of each file, of a run's folder and of a database, by a command that has
 * the path in %s and the file's name after it. */
static void replace_all(const char *format) {
    static const char *const paths[] = {
        "config/config",   "result.json/result.json",
        "log/log",         "samples.jsonl/samples.jsonl",
        "folder",          "metrics.jsonl/metrics.jsonl",
        "studied/runs.db",
    };
    for (int i = 0; i < 7; i++) {
        char path[512], line[1024];
        const char *slash = strchr(paths[i], '/');
        snprintf(path, sizeof path, "%s/%s", root, paths[i]);
        snprintf(line, sizeof line, "p='%s'; n='%s'; rm -rf \"$p\"; %s", path,
                 slash ? slash + 1 : "", format);
        shell_succeeds("%s", line);
    }
}

static void test_links_lead_nowhere(void **state) {
    (void)state;
    char line[512];
    begin();
    char *all = look_again();
    assert_non_null(strstr(all, "\"name\":\"studied\",\"waiting\":1"));
    free(all);
    snprintf(line, sizeof line, "ln -s '%s'/$n \"$p\"", outside);
    replace_all(line);
    expect_nothing_is_told();
    /* The same where they are there from the start. */
    server_stop(&watch);
    watch = server_start_as("watch", RUN(root));
    char *again = look_again();
    expect_nothing_of_outside(again);
    free(again);
    command_fails(2, RUN("runs", scratch_path("runs/config")), SAYS("config", "is a link"));
}

static void test_pipes_are_not_waited_for(void **state) {
    (void)state;
    begin();
    replace_all("mkfifo \"$p\"");
    expect_nothing_is_told();
    replace_all("mkdir \"$p\"");
    expect_nothing_is_told();
    replace_all("ln -s /dev/zero \"$p\"");
    expect_nothing_is_told();
}

/* The most memory that the server ever had, in MB. */
static double most_memory(void) {
    char line[256], path[64];
    double kilobytes = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)watch.pid);
    FILE *status = fopen(path, "r");
    assert_non_null(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmHWM: %lf", &kilobytes);
    fclose(status);
    return kilobytes / 1000;
}

/* The last step. */
static int write_lines(const char *path, const char *format, long bytes) {
    int step = 0;
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    for (long n = 0; n < bytes;)
        n += fprintf(out, format, ++step);
    fclose(out);
    return step;
}

/* 11 MB of evaluations, 11 MB of the shortest lines there are and 11 MB that are one line; 64 connections
 * that say nothing, and streams that nobody reads. */
static void test_many_connections_and_long_files_are_no_burden(void **state) {
    (void)state;
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    int sockets[IDLE + STREAMS];
    server_stop(&watch);
    shell_succeeds("rm -rf '%s'/*", root);
    make_run("beacon");
    make_run("evaluations");
    make_run("short");
    make_run("one");
    int last = write_lines(scratch_path("runs/evaluations/metrics.jsonl"),
                           "{\"step\":%d,\"loss\":3.5,\"val_loss\":4.25,\"lr\":0.001}\n", 11000000);
    write_lines(scratch_path("runs/short/metrics.jsonl"), "{\"step\":%d}\n", 11000000);
    write_lines(scratch_path("runs/one/metrics.jsonl"), "[%d", 11000000);
    watch = server_start_as("watch", RUN(root));
    for (int i = 0; i < IDLE + STREAMS; i++) {
        sockets[i] = client_connect(watch.port);
        assert_true(sockets[i] >= 0);
        if (i >= IDLE) assert_true(client_send(sockets[i], ask, sizeof ask - 1));
    }
    double start = weft_clock();
    free(get("/api/runs"));
    double seconds = weft_clock() - start;
    /* A tenth of a second where nothing else runs. */
    if (seconds > 10.0 * command_patience()) fail_msg("an answer took %.1f s", seconds);
    /* All of it is read at last, and some of it told: about 2,000 rows of a run. */
    char *all = look_again(), word[64];
    snprintf(word, sizeof word, "[%d.0,", last);
    for (int i = 0; i < 600 && !strstr(all, word); i++) {
        free(all);
        pause_ms(100);
        all = get("/api/runs");
    }
    assert_non_null(strstr(all, word));
    json_t *news = json_loads(all, 0, NULL), *run;
    size_t i;
    json_array_foreach(json_object_get(news, "runs"), i, run) {
        const json_t *rows = json_object_get(run, "rows");
        const char *name = json_string_value(json_object_get(run, "name"));
        size_t n = json_array_size(rows);
        assert_true(n < 2500);
        if (strcmp(name, "evaluations") != 0) continue;
        assert_true(n > 500);
        assert_true(json_number_value(json_object_get(run, "best_val_loss")) == 4.25);
        assert_true(json_number_value(json_object_get(run, "val_loss")) == 4.25);
        for (size_t k = 1; k < n; k++)
            assert_true(json_number_value(json_array_get(json_array_get(rows, k), 0)) >
                        json_number_value(json_array_get(json_array_get(rows, k - 1), 0)));
    }
    json_decref(news);
    free(all);
    if (command_patience() == 1 && most_memory() > MEGABYTES_MOST)
        fail_msg("it took %.0f MB", most_memory());
    for (int k = 0; k < IDLE + STREAMS; k++)
        close(sockets[k]);
}

/* A file without an end, and without a line in it, leaves something for the others. */
static void test_a_file_without_end_keeps_no_other_from_being_read(void **state) {
    (void)state;
    server_stop(&watch);
    shell_succeeds("rm -rf '%s'/*", root);
    make_run("a");
    assert_int_equal(truncate(scratch_path("runs/a/metrics.jsonl"), (off_t)1 << 40), 0);
    watch = server_start_as("watch", RUN(root));
    make_run("b");
    write_lines(scratch_path("runs/b/metrics.jsonl"), "{\"step\":%d,\"loss\":3.5}\n", 100);
    char *all = get("/api/runs");
    for (int i = 0; i < 200 && !strstr(all, "[5.0,3.5"); i++) {
        free(all);
        pause_ms(100);
        all = get("/api/runs");
    }
    assert_non_null(strstr(all, "[5.0,3.5"));
    free(all);
}

/* A byte now and then is no request; a stream that was asked for goes on. */
static void test_a_slow_request_is_ended(void **state) {
    (void)state;
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                      part[] = "GET /api/runs HTTP/1.1\r\nX: ";
    const char *folder = root;
    weft_watched *runs;
    weft_live *page;
    char byte;
    const weft_live_options options = {.host = "127.0.0.1", .request_seconds = 0.05};
    assert_int_equal(weft_watched_open(&folder, 1, false, &runs), WEFT_OK);
    assert_int_equal(weft_live_open(&options, runs, &page), WEFT_OK);
    int stream;
    for (int round = 0;; round++) { /* on a busy machine this may be slow, too */
        stream = client_connect(page->port);
        if (client_send(stream, ask, sizeof ask - 1) && recv(stream, &byte, 1, 0) == 1)
            break; /* it is being answered */
        close(stream);
        assert_true(round < 100);
    }
    int slow = client_connect(page->port);
    assert_true(client_send(slow, part, sizeof part - 1));
    double end = weft_clock() + 20.0 * command_patience();
    while (client_send(slow, "y", 1) && recv(slow, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        if (weft_clock() > end) fail_msg("it may take its time");
        pause_ms(5);
    }
    ssize_t n;
    while ((n = recv(stream, &byte, 1, MSG_DONTWAIT)) > 0)
        ;
    assert_int_equal(n, -1); /* all is read, and more may come */
    close(slow);
    close(stream);
    weft_live_close(page);
    weft_watched_close(runs);
}

/* With few files that may be open, and many that are, as of a GPU's driver, streams leave enough for the
 * runs. */
static void test_streams_leave_files_for_the_runs(void **state) {
    (void)state;
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    enum { OPEN = 2 * STREAMS, SOCKETS = 4 * STREAMS };
    int sockets[SOCKETS], open_files[OPEN];
    char byte;
    struct rlimit files, few;
    server_stop(&watch);
    shell_succeeds("rm -rf '%s'/*", root);
    make_run("a");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = (struct rlimit){OPEN + 44, files.rlim_max};
    for (int i = 0; i < OPEN; i++) /* the program inherits them */
        assert_true((open_files[i] = dup(STDIN_FILENO)) >= 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    watch = server_start_as("watch", RUN(root));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    for (int i = 0; i < OPEN; i++)
        close(open_files[i]);
    for (int i = 0; i < SOCKETS; i++) { /* most of them wait for others to go */
        sockets[i] = client_connect(watch.port);
        assert_true(sockets[i] >= 0 && client_send(sockets[i], ask, sizeof ask - 1));
        if (i < STREAMS / 2) assert_int_equal(recv(sockets[i], &byte, 1, 0), 1);
    }
    FILE *file = fopen(scratch_path("runs/a/metrics.jsonl"), "a");
    assert_non_null(file);
    fprintf(file, "{\"step\":3,\"loss\":2.5}\n");
    fclose(file);
    static const char wanted[] = "[3.0,2.5";
    double end = weft_clock() + 20.0 * command_patience();
    for (size_t k = 0; k < sizeof wanted - 1;) {
        ssize_t n = recv(sockets[0], &byte, 1, MSG_DONTWAIT);
        if (n == 1) k = byte == wanted[k] ? k + 1 : byte == '[';
        if (n < 0) pause_ms(5);
        if (n == 0 || weft_clock() > end) fail_msg("the line is not told");
    }
    for (int i = 0; i < SOCKETS; i++)
        close(sockets[i]);
}

/* A clock that was set back leaves times that are to come; a hole in a log is not its end. */
static void test_times_to_come_and_holes(void **state) {
    (void)state;
    server_stop(&watch);
    shell_succeeds("rm -rf '%s'/*", root);
    make_run("a");
    static const char log[] = "before\0\0after\n";
    file_write(scratch_path("runs/a/log"), log, sizeof log - 1);
    shell_succeeds("touch -d '2 hours' '%s'", scratch_path("runs/a/metrics.jsonl"));
    watch = server_start_as("watch", RUN(root));
    char *all = get("/api/runs"), *said = get("/api/log?id=0");
    assert_non_null(strstr(all, "\"status\":\"ended\""));
    assert_non_null(strstr(said, "after"));
    free(all);
    free(said);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_lead_nowhere),
        cmocka_unit_test(test_pipes_are_not_waited_for),
        cmocka_unit_test(test_many_connections_and_long_files_are_no_burden),
        cmocka_unit_test(test_a_file_without_end_keeps_no_other_from_being_read),
        cmocka_unit_test(test_a_slow_request_is_ended),
        cmocka_unit_test(test_streams_leave_files_for_the_runs),
        cmocka_unit_test(test_times_to_come_and_holes),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

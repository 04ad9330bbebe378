/* `weft watch`: runs are told as their files say, what is new alone is sent, and what others wrote or
 * send does no harm. */
#include "support/command.h"
#include "support/http.h"
#include "support/snapshot.h"
#include "support/study_database.h"

#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HOSTILE "<img src=x onerror=alert(1)>"

static server watch;
static char root[512];

static void append(const char *run, const char *file, const char *text) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", root, run, file);
    FILE *out = fopen(path, "a");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

/* A run's folder as training writes it. */
static void make_run(const char *run, const char *seed) {
    char path[1024], config[512];
    snprintf(path, sizeof path, "%s/%s", root, run);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(config, sizeof config,
             "CONFIG_N_LAYER=2\nCONFIG_BATCH_SIZE=4\nCONFIG_CONTEXT=32\n"
             "CONFIG_STEPS=40\nCONFIG_SEED=%s\nCONFIG_ATTENTION=\"mla\"\n",
             seed);
    append(run, "config", config);
    append(run, "metrics.jsonl",
           "{\"step\":10,\"loss\":5.5,\"lr\":0.001,\"grad_norm\":2,\"tokens_per_s\":3000,\"mfu\":0."
           "25}\n"
           "{\"step\":20,\"loss\":4.5,\"lr\":0.001,\"grad_norm\":1.5,\"tokens_per_s\":1000,"
           "\"val_loss\":4.75}\n");
}

static void make_study(void) {
    char path[1024];
    snprintf(path, sizeof path, "%s/studied", root);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/studied/runs.db", root);
    sqlite3 *db = study_open(path, "studied", "val_loss");
    study_variant(db, 0, "plain", "Plain <b>attention</b>", -1, -1);
    study_run(db, 0, 1e-3, 1, 2.0, "00");
    study_run(db, 0, 1e-3, 2, 2.1, "01");
    study_run_ended(db, 0, 1e-3, 3, "waiting", NULL);
    study_close(db);
}

static int open_all(void **state) {
    (void)state;
    scratch_open();
    snprintf(root, sizeof root, "%s", scratch_path("runs"));
    assert_int_equal(mkdir(root, 0777), 0);
    make_run("first", "1");
    make_run(HOSTILE, "2");
    append("first", "log", "info  one line of a log\n");
    make_study();
    watch = server_start_as("watch", RUN(root));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    server_stop(&watch);
    scratch_close();
    return 0;
}

static json_t *get_json(const char *path, int status) {
    answer a = http_get(watch.port, path, NULL);
    assert_int_equal(a.status, status);
    json_t *object = json_loads(a.body, 0, NULL);
    assert_non_null(object);
    answer_free(&a);
    return object;
}

static json_t *find_run(const json_t *news, const char *name) {
    size_t i;
    json_t *run;
    json_array_foreach(json_object_get(news, "runs"), i, run) {
        if (strcmp(json_string_value(json_object_get(run, "name")), name) == 0) return run;
    }
    return NULL;
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static void test_runs_are_told_as_their_files_say(void **state) {
    (void)state;
    json_t *news = get_json("/api/runs", 200);
    assert_int_equal(json_array_size(json_object_get(news, "runs")), 2);
    const json_t *run = find_run(news, "first");
    assert_non_null(run);
    assert_int_equal(number(run, "step"), 20);
    assert_int_equal(number(run, "steps"), 40);
    assert_int_equal(number(run, "tokens_per_step"), 128);
    assert_true(number(run, "loss") == 4.5);
    assert_true(number(run, "best_val_loss") == 4.75);
    /* Of all steps, not of the last: 20 / (10/3000 + 10/1000). */
    assert_true(fabs(number(run, "tokens_per_s") - 1500) < 1e-6);
    const json_t *options = json_object_get(run, "options");
    assert_string_equal(json_string_value(json_object_get(options, "ATTENTION")), "mla");
    assert_int_equal(number(options, "SEED"), 1);
    assert_null(json_object_get(options, "N_HEAD")); /* the default */
    const json_t *rows = json_object_get(run, "rows");
    assert_int_equal(json_array_size(rows), 2);
    const json_t *row = json_array_get(rows, 0);
    assert_true(json_number_value(json_array_get(row, 1)) == 5.5);
    assert_true(json_is_null(json_array_get(row, 2)));
    assert_true(json_number_value(json_array_get(row, 6)) == 0.25);
    assert_non_null(find_run(news, HOSTILE));
    const json_t *study = json_array_get(json_object_get(news, "studies"), 0);
    assert_string_equal(json_string_value(json_object_get(study, "name")), "studied");
    assert_int_equal(number(study, "done"), 2);
    assert_int_equal(number(study, "waiting"), 1);
    assert_int_equal(json_object_del(news, "defaults"), 0); /* all options' */
    snapshot_expect_keys("watch-runs.json", news);
    json_decref(news);
    answer log = http_get(watch.port, "/api/log?id=0", NULL);
    assert_int_equal(log.status, 200);
    answer_free(&log);
}

/* Reads from a stream until an event with `word` has come whole; what was read so far is in `held`. */
static void read_until(int socket, char *held, size_t room, const char *word) {
    size_t n = strlen(held);
    for (const char *at; !(at = strstr(held, word)) || !strstr(at, "\n\n");) {
        struct pollfd p = {.fd = socket, .events = POLLIN};
        assert_true(poll(&p, 1, 120000) == 1);
        ssize_t more = recv(socket, held + n, room - 1 - n, 0);
        assert_true(more > 0);
        n += (size_t)more;
        held[n] = '\0';
    }
}

static void test_only_what_is_new_is_sent(void **state) {
    (void)state;
    static char held[1 << 20];
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    int socket = client_connect(watch.port);
    assert_true(client_send(socket, ask, sizeof ask - 1));
    held[0] = '\0';
    read_until(socket, held, sizeof held, "\"rows\":[[10.0,5.5");
    assert_non_null(strstr(held, "text/event-stream"));
    held[0] = '\0';
    append("first", "metrics.jsonl", "{\"step\":30,\"loss\":3.25,");
    append("first", "metrics.jsonl", "\"lr\":0.001,\"tokens_per_s\":1000}\n");
    read_until(socket, held, sizeof held, "3.25");
    assert_non_null(strstr(held, "\"rows\":[[30.0,3.25"));
    assert_non_null(strstr(held, "\"reset\":false"));
    /* A run that arrives. */
    held[0] = '\0';
    make_run("second", "3");
    read_until(socket, held, sizeof held, "\"name\":\"second\"");
    /* A resumed run cuts lines off: all of it is told anew. */
    held[0] = '\0';
    char path[1024];
    snprintf(path, sizeof path, "%s/first/metrics.jsonl", root);
    file_write(path, "{\"step\":10,\"loss\":5.5}\n", 23);
    read_until(socket, held, sizeof held, "\"reset\":true");
    /* One that wrote as many again, and more, before it was looked at; and another file in its place. */
    static const char over[] = "{\"step\":10,\"loss\":7.5}\n{\"step\":20,\"loss\":7.5}\n",
                      other[] = "{\"step\":10,\"loss\":7.5}\n{\"step\":20,\"loss\":7.5}\n"
                                "{\"step\":30,\"loss\":6.5}\n";
    char beside[1024];
    held[0] = '\0';
    file_write(path, over, sizeof over - 1);
    read_until(socket, held, sizeof held, "\"rows\":[[10.0,7.5");
    held[0] = '\0';
    snprintf(beside, sizeof beside, "%s/first/beside", root);
    file_write(beside, other, sizeof other - 1);
    assert_int_equal(rename(beside, path), 0);
    read_until(socket, held, sizeof held, "6.5");
    assert_non_null(strstr(held, "\"reset\":true"));
    close(socket);
}

static void test_the_page_asks_nobody_else(void **state) {
    (void)state;
    answer a = http_get(watch.port, "/", NULL);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "default-src 'none'"));
    assert_null(strstr(a.body, "http://"));
    assert_null(strstr(a.body, "https://"));
    assert_null(strstr(a.body, HOSTILE));
    answer_free(&a);
}

static int status_of(const char *path, const char *headers) {
    answer a = http_get(watch.port, path, headers);
    int status = a.status;
    answer_free(&a);
    return status;
}

/* Of a request whose Host is another's. */
static int status_for(const char *host) {
    char ask[256];
    int socket = client_connect(watch.port), n;
    n = snprintf(ask, sizeof ask, "GET /api/events HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    assert_true(client_send(socket, ask, (size_t)n));
    answer a = client_read(socket, 30);
    int status = a.status;
    answer_free(&a);
    close(socket);
    return status;
}

static int post(const char *headers, const char *body) {
    answer a = http_post(watch.port, "/api/note", headers, body, strlen(body));
    int status = a.status;
    answer_free(&a);
    return status;
}

static void test_what_is_wrong_is_refused(void **state) {
    (void)state;
    static char large[300000];
    memset(large, 'x', sizeof large - 1);
    assert_int_equal(status_for("evil.example"), 403);
    assert_int_equal(status_for("127.0.0.1.evil.example:80"), 403);
    assert_int_equal(status_of("/api/log?id=../../etc/passwd", NULL), 400);
    assert_int_equal(status_of("/api/log?id=999", NULL), 404);
    assert_int_equal(status_of("/api/log?id=-1", NULL), 404);
    assert_int_equal(status_of("/../../etc/passwd", NULL), 404);
    assert_int_equal(status_of("/api/note", NULL), 405);
    assert_int_equal(post("Content-Type: text/plain\r\n", "{\"id\":0,\"note\":\"\",\"tags\":\"\"}"),
                     415);
    assert_int_equal(post("Content-Type: application/json\r\n", "{\"id\":\"0\"}"), 400);
    assert_int_equal(post("Content-Type: application/json\r\n", "not JSON"), 400);
    assert_int_equal(post("Content-Type: application/json\r\n",
                          "{\"id\":0,\"note\":\"\",\"tags\":\"\",\"note\":\"another\"}"),
                     400);
    assert_int_equal(
        post("Content-Type: application/json\r\n", "{\"id\":77,\"note\":\"\",\"tags\":\"\"}"), 400);
    assert_int_equal(post("Content-Type: application/json\r\n", large), 413);
    memset(large, '[', 3000); /* a list in a list in a list */
    large[3000] = '\0';
    assert_int_equal(post("Content-Type: application/json\r\n", large), 400);
    assert_int_equal(status_of("/api/runs", NULL), 200);
}

static void test_notes_are_kept(void **state) {
    (void)state;
    json_t *news = get_json("/api/runs", 200);
    char body[256];
    snprintf(body, sizeof body, "{\"id\":%d,\"note\":\"it\\u0027s <b>good</b>\",\"tags\":\"keep\"}",
             (int)number(find_run(news, "first"), "id"));
    json_decref(news);
    assert_int_equal(post("Content-Type: application/json\r\n", body), 200);
    server_stop(&watch);
    watch = server_start_as("watch", RUN(root));
    news = get_json("/api/runs", 200);
    const json_t *run = find_run(news, "first");
    assert_string_equal(json_string_value(json_object_get(run, "note")), "it's <b>good</b>");
    assert_string_equal(json_string_value(json_object_get(run, "tags")), "keep");
    json_decref(news);
}

/* As long as a note may be, every sign of it written as two. */
static void test_a_long_note_is_taken(void **state) {
    (void)state;
    enum { MOST = 65536 };
    static char body[2 * MOST + 64], note[MOST + 1];
    json_t *news = get_json("/api/runs", 200);
    int id = (int)number(find_run(news, "first"), "id");
    json_decref(news);
    char *at = body + sprintf(body, "{\"id\":%d,\"tags\":\"\",\"note\":\"", id);
    for (int i = 0; i < MOST; i++) {
        note[i] = '\n';
        at += sprintf(at, "\\n");
    }
    sprintf(at, "\"}");
    assert_int_equal(post("Content-Type: application/json\r\n", body), 200);
    news = get_json("/api/runs", 200);
    assert_string_equal(json_string_value(json_object_get(find_run(news, "first"), "note")), note);
    json_decref(news);
    snprintf(body, sizeof body, "{\"id\":%d,\"note\":\"\",\"tags\":\"\"}", id);
    assert_int_equal(post("Content-Type: application/json\r\n", body), 200);
}

/* A run that is being written is running; after its end it is done, and its result is told. */
static void test_a_run_of_weft_train_is_followed(void **state) {
    (void)state;
    char out[640];
    snprintf(out, sizeof out, "%s/trained", root);
    command_succeeds(RUN("train", "--config", "defconfigs/demo", "--out", out, "--device", "cpu",
                         "-o", "STEPS=3", "-o", "SAMPLE_PROMPT=", "-o", "SAVE_CHECKPOINT=n"),
                     NULL);
    for (int i = 0; i < 1200; i++) {
        json_t *news = get_json("/api/runs", 200);
        json_t *run = find_run(news, "trained");
        bool done = run && strcmp(json_string_value(json_object_get(run, "status")), "done") == 0;
        bool whole = done && number(run, "step") == 3 && number(run, "steps") == 3;
        json_decref(news);
        if (whole) return;
        usleep(100000);
    }
    fail_msg("the run was not seen to end");
}

/* A library in NVML's place, with one GPU that says what the test knows. */
static void test_gpus_are_told(void **state) {
    (void)state;
    static const char source[] =
        "#include <string.h>\n"
        "int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)8; return (int)i; "
        "}\n"
        "int nvmlDeviceGetName(void *d, char *t, unsigned n) { (void)d; strncpy(t, \"A "
        "<b>GPU</b>\", n); "
        "return 0; }\n"
        "int nvmlDeviceGetPowerUsage(void *d, unsigned *p) { (void)d; *p = 321500; return 0; }\n"
        "int nvmlDeviceGetClockInfo(void *d, int w, unsigned *c) { (void)d; *c = w == 1 ? 1755 : "
        "1; "
        "return 0; }\n"
        "int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { (void)d; m[0] = 3000; m[2] "
        "= 1000; "
        "return 0; }\n"
        "int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { (void)d; (void)u; return 3; }\n";
    static const char ask[] = "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    static char held[1 << 20];
    char line[1200];
    file_write(scratch_path("nvml.c"), source, sizeof source - 1);
    snprintf(line, sizeof line, "cc -shared -fPIC -o '%s' '%s' 2>/dev/null",
             scratch_path("nvml.so"), scratch_path("nvml.c"));
    if (system(line) != 0) {
        printf("cc makes no shared library here\n");
        skip();
    }
    server_stop(&watch);
    setenv("WEFT_NVML", scratch_path("nvml.so"), 1);
    watch = server_start_as("watch", RUN(root));
    unsetenv("WEFT_NVML");
    int socket = client_connect(watch.port);
    assert_true(client_send(socket, ask, sizeof ask - 1));
    held[0] = '\0';
    read_until(socket, held, sizeof held, "event: machine");
    read_until(socket, held, sizeof held, "\"percent\":null");
    assert_non_null(
        strstr(held, "\"watts\":321.5,\"mhz\":1755.0,\"used_bytes\":1000.0,\"bytes\":3000.0"));
    close(socket);
}

/* A step's title says what a run is; its folder does not. */
static void test_a_studys_runs_have_their_steps_title(void **state) {
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s/studied/runs", root);
    assert_int_equal(mkdir(path, 0777), 0);
    make_run("studied/runs/0-lr0.001-seed1", "1");
    make_run("studied/runs/0-lr0.001-seed2", "2");
    for (int i = 0; i < 1200; i++) {
        json_t *news = get_json("/api/runs", 200);
        json_t *run = find_run(news, "studied/runs/0-lr0.001-seed2");
        const char *title = json_string_value(json_object_get(run, "title"));
        bool told = title && strcmp(title, "Plain <b>attention</b>") == 0;
        bool other = json_is_null(json_object_get(find_run(news, "first"), "title"));
        json_decref(news);
        assert_true(other);
        if (told) return;
        usleep(100000);
    }
    fail_msg("the run was not given its title");
}

/* A script of tests/watch in a browser, on a server's page and the folder that it watches. */
static void drive(const char *script, const server *on, const char *folder) {
    char line[2048];
    snprintf(line, sizeof line, "python3 tests/watch/%s http://127.0.0.1:%d/ '%s' '%s' >'%s' 2>&1",
             script, on->port, folder, scratch_path("."), scratch_path("browser.txt"));
    int status = system(line);
    size_t n;
    char *said = file_read(scratch_path("browser.txt"), &n);
    if (WEXITSTATUS(status) == 77) {
        printf("%s", said);
        free(said);
        skip();
    }
    if (status != 0) fail_msg("the browser found: %s", said);
    free(said);
}

static void test_the_page_works_in_a_browser(void **state) {
    (void)state;
    drive("watch.py", &watch, root);
}

static void test_what_is_no_folder_is_named(void **state) {
    (void)state;
    append("first", "file", "");
    command_fails(2, RUN("watch", scratch_path("runs/first/file")), SAYS("first/file"));
    command_fails(2, RUN("watch", root, "--port", "x"), SAYS("--port"));
}

/* The folder is made by the script, which finds no runs before. */
static server later;

static int open_later(void **state) {
    (void)state;
    later = server_start_as("watch", RUN(scratch_path("later")));
    return 0;
}

static int close_later(void **state) {
    (void)state;
    server_stop(&later);
    return 0;
}

static void test_a_folder_that_is_not_there_is_waited_for(void **state) {
    (void)state;
    drive("many.py", &later, scratch_path("later"));
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_are_told_as_their_files_say),
        cmocka_unit_test(test_only_what_is_new_is_sent),
        cmocka_unit_test(test_the_page_asks_nobody_else),
        cmocka_unit_test(test_what_is_wrong_is_refused),
        cmocka_unit_test(test_notes_are_kept),
        cmocka_unit_test(test_a_long_note_is_taken),
        cmocka_unit_test(test_a_run_of_weft_train_is_followed),
        cmocka_unit_test(test_gpus_are_told),
        cmocka_unit_test(test_a_studys_runs_have_their_steps_title),
        cmocka_unit_test(test_the_page_works_in_a_browser),
        cmocka_unit_test(test_what_is_no_folder_is_named),
        cmocka_unit_test_setup_teardown(test_a_folder_that_is_not_there_is_waited_for, open_later,
                                        close_later),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

/* Limits and ends: slow clients, clients that go away, a full queue, and signals. */
#include "base/clock.h"
#include "cpu/backend.h"
#include "serve/worker.h"
#include "support/command.h"
#include "support/http.h"
#include "support/model_case.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { HANGS = 120 /* seconds after which a test gives up */ };

static char model[512];

static int make_model(void **state) {
    (void)state;
    scratch_open();
    server_model(model, sizeof model);
    return 0;
}

/* Waits until nobody listens any more. */
static void wait_refused(int port) {
    double end = weft_clock() + HANGS;
    for (int late; (late = client_connect(port)) >= 0; pause_ms(5)) {
        close(late);
        if (weft_clock() > end) fail_msg("the server still takes connections");
    }
}

static double count_begun(int port) {
    return http_metric(port, "weft_first_token_seconds_count");
}

/* Waits until so many texts were begun or wait for their place, in this order: none is counted twice. (Of those
 * that run, one may have ended before anybody looks.) */
static void wait_taken(int port, double count) {
    double end = weft_clock() + HANGS;
    while (count_begun(port) + http_metric(port, "weft_sequences_waiting") < count) {
        if (weft_clock() > end) fail_msg("the server has not taken %g requests", count);
        pause_ms(5);
    }
}

/* A text that takes minutes. */
static int start_long(int port, bool stream) {
    return client_post(port, stream ? "{\"prompt\":\"x\",\"max_tokens\":1000000,\"stream\":true}"
                                    : "{\"prompt\":\"x\",\"max_tokens\":1000000}");
}

/* The server closes a connection to which `step` bytes come every 100 ms after a second, not at once. What
 * is late on a busy machine is late for both, so its hundredth word is what a client does not come to. */
static void check_slow(int port, const char *text, size_t step) {
    int s = client_connect(port), rounds = 0;
    double start = weft_clock();
    char byte;
    assert_true(s >= 0);
    for (size_t at = 0; rounds < 100; pause_ms(100), rounds++) {
        size_t left = strlen(text) - at, count = left < step ? left : step;
        if (count && !client_send(s, text + at, count)) break;
        at += count;
        ssize_t got = recv(s, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) break;
    }
    close(s);
    assert_true(weft_clock() - start > 0.8);
    assert_true(rounds < 100);
}

static void test_slow_clients_are_ended(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--request-timeout", "1"));
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                               "application/json\r\nContent-Length: 1000\r\n\r\n";
    check_slow(s.port, "", 0);
    check_slow(s.port, head, 1);
    check_slow(s.port, head, 60);
    /* A client that is quick is served all the while. */
    json_decref(http_json(s.port, "/v1/completions", "{\"prompt\":\"x\"}", 200));
    http_wait_metric(s.port, "weft_connections", 1);
    server_stop(&s);
}

static void test_a_client_that_goes_away_frees_its_pages(void **state) {
    (void)state;
    server s = server_start(
        RUN("--model", model, "--threads", "1", "--context", "1000000", "--cache-mib", "200"));
    for (int stream = 0; stream < 2; stream++) {
        int client = start_long(s.port, stream);
        http_wait_metric(s.port, "weft_sequences_running", 1);
        assert_true(http_metric(s.port, "weft_cache_pages_used") > 0);
        close(client);
        http_wait_metric(s.port, "weft_cache_pages_used", 0);
        http_wait_metric(s.port, "weft_sequences_running", 0);
    }
    /* One that sends no more counts as gone, and is told so if it still listens. */
    int client = start_long(s.port, 0);
    http_wait_metric(s.port, "weft_sequences_running", 1);
    shutdown(client, SHUT_WR);
    answer a = client_read(client, 60);
    assert_int_equal(a.status, 499);
    assert_non_null(strstr(a.body, "\"message\":\"the client went away\""));
    answer_free(&a);
    close(client);
    http_wait_metric(s.port, "weft_sequences_running", 0);
    double made = http_metric(s.port, "weft_generated_tokens_total");
    pause_ms(100);
    assert_true(http_metric(s.port, "weft_generated_tokens_total") == made);
    http_wait_metric(s.port, "weft_requests_total{path=\"/v1/completions\",status=\"499\"}", 3);
    server_stop(&s);
}

/* Nothing is sent to a request that waits, so only somebody who looks can tell that its client is gone. */
static void test_a_client_that_goes_while_it_waits_leaves_the_queue(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--context", "1000000",
                                "--cache-mib", "200", "--sequences", "1"));
    int first = start_long(s.port, false);
    http_wait_metric(s.port, "weft_sequences_running", 1);
    int second = start_long(s.port, false), third = start_long(s.port, true);
    http_wait_metric(s.port, "weft_sequences_waiting", 2);
    close(second);
    http_wait_metric(s.port, "weft_sequences_waiting", 1);
    close(third);
    http_wait_metric(s.port, "weft_sequences_waiting", 0);
    assert_true(http_metric(s.port, "weft_sequences_running") == 1);
    close(first);
    http_wait_metric(s.port, "weft_sequences_running", 0);
    server_stop(&s);
}

static void test_a_full_queue_says_when_to_come_again(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--context", "1000000",
                                "--cache-mib", "200", "--sequences", "1", "--queue", "1"));
    int first = start_long(s.port, false);
    http_wait_metric(s.port, "weft_sequences_running", 1);
    int second = start_long(s.port, false);
    http_wait_metric(s.port, "weft_sequences_waiting", 1);
    answer a = http_post(s.port, "/v1/completions", NULL, "{\"prompt\":\"x\"}", 14);
    assert_int_equal(a.status, 429);
    const char *after = strstr(a.head, "Retry-After: ");
    assert_non_null(after);
    assert_in_range(atoi(after + strlen("Retry-After: ")), 1, 60);
    assert_non_null(strstr(a.body, "\"code\":\"rate_limit_exceeded\""));
    answer_free(&a);
    close(first);
    close(second);
    http_wait_metric(s.port, "weft_sequences_running", 0);
    json_decref(http_json(s.port, "/v1/completions", "{\"prompt\":\"x\"}", 200));
    server_stop(&s);
}

/* Of one place: what has begun, whole or as a stream, and what waits behind it. */
static void test_a_request_may_not_take_too_long(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--context", "1000000",
                                "--cache-mib", "200", "--answer-timeout", "1", "--sequences", "1"));
    for (int stream = 0; stream < 2; stream++) {
        double begun = count_begun(s.port);
        int runs = start_long(s.port, stream);
        wait_taken(s.port, begun + 1);
        int waits = start_long(s.port, !stream);
        for (int i = 0; i < 2; i++) {
            answer a = client_read(i ? waits : runs, HANGS);
            assert_true(a.status == 504 || (stream != i && a.status == 200));
            assert_non_null(strstr(a.body, "\"code\":\"timeout\""));
            assert_null(strstr(a.body, "[DONE]"));
            answer_free(&a);
        }
        close(runs);
        close(waits);
        http_wait_metric(s.port, "weft_sequences_waiting", 0);
    }
    http_wait_metric(s.port, "weft_cache_pages_used", 0);
    server_stop(&s);
}

static void test_max_tokens_and_context_are_limits(void **state) {
    (void)state;
    char body[400];
    server s = server_start(RUN("--model", model, "--threads", "1", "--max-tokens", "20"));
    for (int wanted = 19; wanted < 22; wanted++) { /* more than the limit is shortened to it */
        json_t *made = http_complete(s.port, "{\"prompt\":\"x\",\"max_tokens\":%d}", wanted),
               *usage;
        usage = json_object_get(made, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                         wanted < 20 ? wanted : 20);
        json_decref(made);
    }
    snprintf(body, sizeof body, "{\"prompt\":\"%0300d\"}", 0);
    json_t *error = http_json(s.port, "/v1/completions", body, 400);
    const char *code = json_string_value(json_object_get(json_object_get(error, "error"), "code"));
    assert_string_equal(code, "context_length_exceeded");
    json_decref(error);
    server_stop(&s);
}

/* A prompt of 100 bytes, all but the last of which begin with this letter: its answer's text, and how many of
 * its tokens came from pages that are kept, by the usage and by /metrics. */
static json_t *ask(int port, char letter, int64_t want_shared) {
    char body[200] = "{\"temperature\":0,\"max_tokens\":2,\"prompt\":\"";
    double before = http_metric(port, "weft_shared_tokens_total");
    memset(body + strlen(body), letter, 100);
    strcat(body, "\"}");
    json_t *got = http_json(port, "/v1/completions", body, 200);
    const json_t *usage = json_object_get(got, "usage");
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "cached_tokens")), want_shared);
    assert_int_equal(http_metric(port, "weft_shared_tokens_total") - before, want_shared);
    json_t *choices = json_incref(json_object_get(got, "choices"));
    json_decref(got);
    return choices;
}

/* Six whole pages of sixteen tokens are shared while they are there; what came since takes their place, and
 * the text is the same. */
static void check_sharing(int port) {
    enum { SHARED = 96 };
    json_t *first = ask(port, 'a', 0), *again = ask(port, 'a', SHARED);
    assert_true(json_equal(first, again));
    assert_true(http_metric(port, "weft_cache_pages_kept") >= SHARED / 16);
    for (char other = 'b'; other < 'e'; other++)
        json_decref(ask(port, other, 0)); /* more than the pool of 16 pages holds with the first */
    json_t *evicted = ask(port, 'a', 0), *back = ask(port, 'a', SHARED);
    assert_true(json_equal(first, evicted));
    assert_true(json_equal(first, back));
    json_decref(first);
    json_decref(again);
    json_decref(evicted);
    json_decref(back);
}

/* A cache that does not hold one whole context: a chat, which asks for as much as fits, gets that, and
 * clients that together want more than there is are answered one after the other. */
static void test_a_small_cache_serves_short_texts(void **state) {
    (void)state;
    enum { CLIENTS = 4, TOKEN = 2 * 64 * 8 * 4 /* bytes: keys and values of each layer */ };
    static const char config[] = "CONFIG_N_LAYER=8\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=64\n"
                                 "CONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=1024\n";
    char wide[512], path[512];
    snprintf(wide, sizeof wide, "%s", scratch_path("wide"));
    snprintf(path, sizeof path, "%s", scratch_path("wide.config"));
    file_write(path, config, sizeof config - 1);
    command_succeeds(RUN("init", "--config", path, "--out", wide, "--seed", "1"), NULL);
    /* With nothing said there is room for 16 texts of the whole context, which may begin within a page. */
    server s = server_start(RUN("--model", wide, "--threads", "1"));
    assert_int_equal((int)http_metric(s.port, "weft_cache_pages"), 16 * (1024 / 16 + 1));
    server_stop(&s);
    s = server_start(RUN("--model", wide, "--threads", "1", "--cache-mib", "1"));
    double tokens = 16 * http_metric(s.port, "weft_cache_pages");
    assert_int_equal((int)tokens, (1 << 20) / TOKEN);
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
    json_t *got = http_json(s.port, "/v1/chat/completions", chat, 200);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(got, "usage"), "total_tokens")),
        (int)tokens);
    json_decref(got);
    char body[200];
    int clients[CLIENTS];
    snprintf(body, sizeof body, "{\"prompt\":\"x\",\"max_tokens\":%d}", (int)(0.6 * tokens));
    /* Until two of them did meet: each may be done before the next one comes. */
    for (int round = 0; http_metric(s.port, "weft_set_back_total") == 0; round++) {
        assert_true(round < 20);
        for (int i = 0; i < CLIENTS; i++)
            clients[i] = client_post(s.port, body);
        for (int i = 0; i < CLIENTS; i++) {
            answer a = client_read(clients[i], 120 * command_patience());
            assert_int_equal(a.status, 200);
            answer_free(&a);
            close(clients[i]);
        }
    }
    http_wait_metric(s.port, "weft_cache_pages_used", 0);
    check_sharing(s.port);
    server_stop(&s);
}

/* Who asks as soon as the worker is there is told what it has: no request comes before. */
static void test_an_open_worker_knows_its_cache(void **state) {
    (void)state;
    const weft_worker_limits limits = {.sequences = 2, .queue = 1, .seconds = 1};
    model_case c;
    model_case_open(&c, "dot-learned");
    weft_model *m = model_case_weights(&c, WEFT_F32);
    weft_pool *pool;
    weft_server_metrics *metrics;
    weft_generator *g;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(weft_server_metrics_create(&metrics), WEFT_OK);
    assert_int_equal(weft_generator_open(m, weft_cpu_backend(), pool,
                                         &(weft_generator_limits){.sequences = 2}, &g),
                     WEFT_OK);
    for (int i = 0; i < 20; i++) {
        weft_worker *w;
        weft_generator_stats stats;
        int64_t queued;
        assert_int_equal(weft_worker_open(g, NULL, &limits, metrics, &w), WEFT_OK);
        weft_worker_count(w, &stats, &queued);
        assert_true(stats.pages > 0 && stats.cache_bytes > 0);
        weft_worker_close(w);
    }
    weft_generator_close(g);
    weft_server_metrics_destroy(metrics);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
    model_case_close(&c);
}

/* The time for sending a request is not the time for its answer. */
static void test_an_answer_may_take_longer_than_a_request(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--context", "100000",
                                "--request-timeout", "1", "--sequences", "2"));
    double start = weft_clock(), took = 0;
    for (int tokens = 4000; took < 2.5; tokens *= 2) {
        start = weft_clock();
        json_decref(http_complete(s.port, "{\"prompt\":\"x\",\"max_tokens\":%d}", tokens));
        took = weft_clock() - start;
    }
    server_stop(&s);
}

/* Those that are too many wait until others are gone. */
static void test_connections_are_limited(void **state) {
    (void)state;
    server s = server_start(
        RUN("--model", model, "--threads", "1", "--connections", "3", "--request-timeout", "1"));
    int held[3];
    double start = weft_clock();
    for (int i = 0; i < 3; i++)
        held[i] = client_connect(s.port);
    json_decref(http_json(s.port, "/v1/completions", "{\"prompt\":\"x\"}", 200));
    assert_true(weft_clock() - start > 0.5); /* the three were ended first */
    for (int i = 0; i < 3; i++)
        close(held[i]);
    server_stop(&s);
}

typedef struct {
    int socket;
    answer got;
} reader;

static void *read_answer(void *context) {
    reader *r = context;
    r->got = client_read(r->socket, HANGS);
    return NULL;
}

/* What is being written, with drafts of its tokens, and what waits for its place. */
static void test_a_signal_finishes_what_runs_and_waits(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--context", "20000",
                                "--sequences", "1", "--speculate", "ngram"));
    enum { READERS = 3 };
    static const int tokens[READERS] = {6000, 200, 201};
    char body[200];
    pthread_t threads[READERS];
    reader readers[READERS];
    for (int i = 0; i < READERS; i++) {
        snprintf(body, sizeof body, "{\"prompt\":\"x\",\"max_tokens\":%d,\"seed\":1%s}", tokens[i],
                 i == 1 ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
        readers[i].socket = client_post(s.port, body);
        assert_int_equal(pthread_create(&threads[i], NULL, read_answer, readers + i), 0);
    }
    wait_taken(s.port, READERS);
    kill(s.pid, SIGTERM);
    wait_refused(s.port);
    assert_int_equal(server_wait(&s, HANGS), 0);
    for (int i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].got.status, 200);
        snprintf(body, sizeof body, "\"completion_tokens\":%d,", tokens[i]);
        assert_non_null(strstr(readers[i].got.body, body));
        answer_free(&readers[i].got);
        close(readers[i].socket);
    }
}

static void test_a_second_signal_stops_at_once(void **state) {
    (void)state;
    server s = server_start(
        RUN("--model", model, "--threads", "1", "--context", "1000000", "--cache-mib", "200"));
    int whole = start_long(s.port, false), stream = start_long(s.port, true);
    http_wait_metric(s.port, "weft_sequences_running", 2);
    kill(s.pid, SIGTERM);
    wait_refused(s.port); /* two at once would be one */
    kill(s.pid, SIGTERM);
    assert_int_equal(server_wait(&s, HANGS), 0);
    /* Not at the end of what they asked for, which takes minutes. */
    answer a = client_read(whole, HANGS), b = client_read(stream, HANGS);
    assert_int_not_equal(a.status, 200);
    assert_true(!b.body || !strstr(b.body, "[DONE]"));
    answer_free(&a);
    answer_free(&b);
    close(whole);
    close(stream);
}

static void test_wrong_use_is_one_line(void **state) {
    (void)state;
    command_fails(2, RUN("serve"), SAYS("--model"));
    command_fails(2, RUN("serve", "--model", "nowhere"), SAYS("nowhere"));
    command_fails(2, RUN("serve", "--model", model, "--port", "70000"), SAYS("--port"));
    command_fails(2, RUN("serve", "--model", model, "--sequences", "0"), SAYS("--sequences"));
    command_fails(2, RUN("serve", "--model", model, "--config", "x"), SAYS("--config"));
    command_fails(2, RUN("serve", "--model", model, "--api-key-file", "nowhere"), SAYS("nowhere"));
    server s = server_start(RUN("--model", model, "--threads", "1"));
    char port[16];
    snprintf(port, sizeof port, "%d", s.port);
    command_fails(2, RUN("serve", "--model", model, "--port", port), SAYS(port, "--port"));
    server_stop(&s);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_clients_are_ended),
        cmocka_unit_test(test_a_client_that_goes_away_frees_its_pages),
        cmocka_unit_test(test_a_client_that_goes_while_it_waits_leaves_the_queue),
        cmocka_unit_test(test_a_full_queue_says_when_to_come_again),
        cmocka_unit_test(test_a_request_may_not_take_too_long),
        cmocka_unit_test(test_max_tokens_and_context_are_limits),
        cmocka_unit_test(test_a_small_cache_serves_short_texts),
        cmocka_unit_test(test_an_open_worker_knows_its_cache),
        cmocka_unit_test(test_an_answer_may_take_longer_than_a_request),
        cmocka_unit_test(test_connections_are_limited),
        cmocka_unit_test(test_a_signal_finishes_what_runs_and_waits),
        cmocka_unit_test(test_a_second_signal_stops_at_once),
        cmocka_unit_test(test_wrong_use_is_one_line),
    };
    return cmocka_run_group_tests(tests, make_model, scratch_teardown);
}

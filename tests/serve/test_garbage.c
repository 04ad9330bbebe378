/* Bodies that no good client sends: every one gets a status of 4xx with an error that says what is
 * wrong, and the server goes on. */
#include "support/command.h"
#include "support/http.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static server shared;

static int start_shared(void **state) {
    (void)state;
    char model[512];
    shared = server_open(model, sizeof model, RUN(NULL));
    return 0;
}

static int stop_shared(void **state) {
    (void)state;
    server_close(&shared);
    return 0;
}

/* The answer is an error in OpenAI's shape that holds the word. */
static void check_error(const answer *a, int status, const char *word, const char *what) {
    if (a->status != status)
        fail_msg("%s: status %d, not %d: %s", what, a->status, status, a->body);
    json_t *object = json_loadb(a->body, a->bytes, 0, NULL),
           *error = json_object_get(object, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    assert_true(json_is_string(json_object_get(error, "type")));
    assert_non_null(json_object_get(error, "param"));
    assert_non_null(json_object_get(error, "code"));
    if (!message || !strstr(message, word))
        fail_msg("%s: '%s' is not in '%s'", what, word, a->body);
    json_decref(object);
}

static void refused(const char *path, const void *body, size_t bytes, int status,
                    const char *word) {
    answer a = http_post(shared.port, path, NULL, body, bytes);
    check_error(&a, status, word, body);
    answer_free(&a);
}

static void test_bodies_that_are_wrong(void **state) {
    (void)state;
    static const struct {
        bool chat;
        const char *body, *word;
    } cases[] = {
        {false, "", "not JSON"},
        {false, "{", "not JSON"},
        {false, "{\"prompt\":\"x\"", "not JSON"},
        {false, "{\"prompt\":\"x\"}}", "not JSON"},
        {false, "{\"prompt\":\"x\",}", "not JSON"},
        {false, "{'prompt':'x'}", "not JSON"},
        {false, "{\"prompt\":\"x\",\"prompt\":\"y\"}", "not JSON"},
        {false, "{\"prompt\":\"\xff\"}", "not JSON"},
        {false, "{\"prompt\":\"\xc0\x80\"}", "not JSON"},
        {false, "{\"prompt\":\"\xed\xa0\x80\"}", "not JSON"},
        {false, "{\"prompt\":\"\xf4\x90\x80\x80\"}", "not JSON"},
        {false, "{\"prompt\":\"\\ud800\"}", "not JSON"},
        {false, "{\"prompt\":\"x\",\"stop\":\"\\u0000\"}", "'stop' must be"},
        {false, "{\"prompt\":\"x\",\"\\u0000\":1}", "not JSON"},
        {false, "{\"prompt\":\"a\nb\"}", "not JSON"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":1e999}", "not JSON"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":99999999999999999999}", "not JSON"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":NaN}", "not JSON"},
        {false, "[]", "object"},
        {false, "\"x\"", "object"},
        {false, "null", "object"},
        {false, "{}", "'prompt' is needed"},
        {false, "{\"prompt\":null}", "'prompt' is needed"},
        {false, "{\"prompt\":7}", "prompt"},
        {false, "{\"prompt\":{}}", "prompt"},
        {false, "{\"prompt\":[]}", "prompt"},
        {false, "{\"prompt\":[[]]}", "prompt"},
        {false, "{\"prompt\":[\"a\",7]}", "prompt"},
        {false, "{\"prompt\":[1,\"a\"]}", "prompt"},
        {false, "{\"prompt\":[1,-1]}", "prompt"},
        {false, "{\"prompt\":[256]}", "0 to 255"},
        {false, "{\"prompt\":[4294967296]}", "prompt"},
        {false, "{\"prompt\":[[[[1]]]]}", "prompt"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":0}", "'max_tokens'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":-1}", "'max_tokens'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":1.5}", "'max_tokens'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":\"9\"}", "'max_tokens'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":9223372036854775807}", "'max_tokens'"},
        {false, "{\"prompt\":\"x\",\"temperature\":-0.1}", "'temperature'"},
        {false, "{\"prompt\":\"x\",\"temperature\":1e308}", "'temperature'"},
        {false, "{\"prompt\":\"x\",\"temperature\":true}", "'temperature'"},
        {false, "{\"prompt\":\"x\",\"top_p\":1.01}", "'top_p'"},
        {false, "{\"prompt\":\"x\",\"top_k\":-1}", "'top_k'"},
        {false, "{\"prompt\":\"x\",\"min_p\":[]}", "'min_p'"},
        {false, "{\"prompt\":\"x\",\"repetition_penalty\":0}", "'repetition_penalty'"},
        {false, "{\"prompt\":\"x\",\"seed\":-5}", "'seed'"},
        {false, "{\"prompt\":\"x\",\"seed\":9007199254740992}", "'seed'"},
        {false, "{\"prompt\":\"x\",\"n\":0}", "'n'"},
        {false, "{\"prompt\":\"x\",\"n\":129}", "'n'"},
        {false, "{\"prompt\":[\"x\",\"y\",\"z\"],\"n\":128}", "texts"},
        {false, "{\"prompt\":\"x\",\"stop\":7}", "'stop'"},
        {false, "{\"prompt\":\"x\",\"stop\":\"\"}", "'stop'"},
        {false, "{\"prompt\":\"x\",\"stop\":[1]}", "'stop'"},
        {false,
         "{\"prompt\":\"x\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\","
         "\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}",
         "'stop'"},
        {false, "{\"prompt\":\"x\",\"stream\":1}", "'stream'"},
        {false, "{\"prompt\":\"x\",\"stream_options\":{\"include_usage\":true}}", "'stream'"},
        {false, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":3}", "'stream_options'"},
        {false, "{\"prompt\":\"x\",\"logprobs\":21}", "'logprobs'"},
        {false, "{\"prompt\":\"x\",\"logprobs\":true}", "'logprobs'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":0,\"echo\":true}", "'logprobs'"},
        {false, "{\"prompt\":\"x\",\"max_tokens\":0,\"logprobs\":1}", "'echo'"},
        {false, "{\"prompt\":\"x\",\"best_of\":2}", "'best_of'"},
        {false, "{\"prompt\":\"x\",\"suffix\":\"y\"}", "'suffix'"},
        {false, "{\"prompt\":\"x\",\"frequency_penalty\":1}", "repetition_penalty"},
        {false, "{\"prompt\":\"x\",\"temprature\":1}", "'temperature'"},
        {false, "{\"prompt\":\"x\",\"wholly else\":1}", "unknown"},
        {false, "{\"prompt\":\"x\",\"messages\":[]}", "unknown"},
        {false, "{\"prompt\":\"x\",\"model\":7}", "'model'"},
        {true, "{}", "'messages' is needed"},
        {true, "{\"messages\":[]}", "messages"},
        {true, "{\"messages\":\"hi\"}", "messages"},
        {true, "{\"messages\":[\"hi\"]}", "role"},
        {true, "{\"messages\":[{\"role\":\"user\"}]}", "content"},
        {true, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "role"},
        {true, "{\"messages\":[{\"role\":7,\"content\":\"x\"}]}", "role"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "content"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"knows\":1}]}", "'knows'"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "text"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":2}",
         "'logprobs'"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{}]}", "'tools'"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"prompt\":\"x\"}",
         "unknown"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refused(cases[i].chat ? "/v1/chat/completions" : "/v1/completions", cases[i].body,
                strlen(cases[i].body), 400, cases[i].word);
    refused("/v1/completions", "{\"prompt\":\"x\"}\0", 15, 400, "not JSON");
    refused("/v1/completions", "{\"prompt\":\"x\",\"model\":\"huge\"}", 29, 404, "tiny");
}

/* Every beginning of a good body, but the whole. */
static void test_bodies_that_were_cut(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":[\"Once\",\"u\\u00e9\"],\"n\":2,\"stop\":[\"a\"],"
                               "\"temperature\":0.5}";
    for (size_t bytes = 0; bytes + 1 < sizeof body; bytes += bytes < 8 ? 1 : 5)
        refused("/v1/completions", body, bytes, 400, "not JSON");
}

static void test_bodies_that_are_deep_or_long(void **state) {
    (void)state;
    size_t deep = 900000;
    char *body = malloc(deep + 1);
    memset(body, '[', deep);
    refused("/v1/completions", body, deep, 400, "not JSON");
    memset(body, ' ', deep);
    memcpy(body, "{\"prompt\":\"", 11);
    memset(body + 11, 'a', deep - 13);
    memcpy(body + deep - 2, "\"}", 2);
    refused("/v1/completions", body, deep, 400, "context");
    memset(body + 11, '1', deep - 13);
    memcpy(body, "{\"prompt\": ", 11);
    memcpy(body + deep - 2, " }", 2);
    refused("/v1/completions", body, deep, 400, "not JSON");
    free(body);
    size_t large = 10 << 20;
    body = malloc(large);
    memset(body, 'x', large);
    refused("/v1/completions", body, large, 413, "bytes");
    free(body);
}

static void test_requests_that_are_wrong(void **state) {
    (void)state;
    static const struct {
        const char *path, *headers;
        int status;
        const char *word;
    } posts[] = {
        {"/v1/completions", "Content-Type: text/plain\r\n", 415, "application/json"},
        {"/v1/completions", "X: y\r\n", 415, "application/json"},
        {"/v1/models", "Content-Type: application/json\r\n", 405, "GET"},
        {"/nowhere", "Content-Type: application/json\r\n", 404, "/v1/completions"},
    };
    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++) {
        answer a = http_post(shared.port, posts[i].path, posts[i].headers, "{}", 2);
        check_error(&a, posts[i].status, posts[i].word, posts[i].path);
        answer_free(&a);
    }
    answer a = http_get(shared.port, "/v1/completions", NULL);
    check_error(&a, 405, "POST", "GET");
    answer_free(&a);
    a = http_get(shared.port, "/../etc/passwd", NULL);
    check_error(&a, 404, "", "a path upwards");
    answer_free(&a);
}

/* A name that leads to this machine by somebody else's doing. */
static void test_names_of_others_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int status;
    } cases[] = {{"localhost", 200},
                 {"localhost:8000", 200},
                 {"127.0.0.1:1", 200},
                 {"[::1]:80", 200},
                 {"a.localhost", 200},
                 {"evil.example", 403},
                 {"localhost.evil", 403},
                 {"xlocalhost", 403},
                 {"127.evil.example", 403},
                 {"", 403},
                 {"[::1].evil.example", 403},
                 {"127.0.0.1:1@evil.example", 403},
                 {"[::1", 403}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char head[256];
        int s = client_connect(shared.port);
        int length = snprintf(head, sizeof head,
                              "GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                              cases[i].name);
        assert_true(s >= 0 && client_send(s, head, (size_t)length));
        answer a = client_read(s, 20);
        if (a.status != cases[i].status) fail_msg("%s: status %d", cases[i].name, a.status);
        answer_free(&a);
        close(s);
    }
}

/* Bytes that are no HTTP, and ends in the middle of it. */
static void test_what_is_no_request(void **state) {
    (void)state;
    static const char *const texts[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: -1\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 99999999999999999999999\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n{\"prompt\":",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int s = client_connect(shared.port);
        assert_true(s >= 0);
        client_send(s, texts[i], strlen(texts[i]));
        answer a = client_read(s, 0.1);
        assert_true(a.status == 0 || (a.status >= 400 && a.status < 600));
        answer_free(&a);
        close(s);
    }
    size_t bytes = 200000;
    char *head = malloc(bytes);
    memset(head, 'a', bytes);
    memcpy(head, "GET /", 5);
    int s = client_connect(shared.port);
    client_send(s, head, bytes);
    answer a = client_read(s, 5);
    assert_true(a.status == 0 || (a.status >= 400 && a.status < 500));
    answer_free(&a);
    close(s);
    free(head);
    json_decref(http_json(shared.port, "/v1/completions", "{\"prompt\":\"x\"}", 200));
}

/* A body in pieces without a length, and one connection for several requests. */
static void test_what_is_unusual_and_right(void **state) {
    (void)state;
    static const char chunks[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
        "\r\n9\r\n{\"prompt\"\r\n6\r\n:\"x\"  \r\n1\r\n}\r\n0\r\n\r\n";
    int s = client_connect(shared.port);
    for (int i = 0; i < 3; i++) {
        assert_true(client_send(s, chunks, sizeof chunks - 1));
        answer a = client_read(s, 20);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    close(s);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_that_are_wrong),
        cmocka_unit_test(test_bodies_that_were_cut),
        cmocka_unit_test(test_bodies_that_are_deep_or_long),
        cmocka_unit_test(test_requests_that_are_wrong),
        cmocka_unit_test(test_names_of_others_are_refused),
        cmocka_unit_test(test_what_is_no_request),
        cmocka_unit_test(test_what_is_unusual_and_right),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}

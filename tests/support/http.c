/* A client of few lines, which can also do what no good client does. */
#include "http.h"

#include "base/clock.h"
#include "command.h"
#include "test.h"
#include "train_run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MOST = 64 };

#ifdef WEFT_HAVE_MICROHTTPD
bool server_tests_are_skipped(void) {
    return false;
}
#else
static void test_server(void **state) {
    (void)state;
    printf("this build has no libmicrohttpd\n");
    skip();
}

bool server_tests_are_skipped(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_server)};
    cmocka_run_group_tests(tests, NULL, NULL);
    return true;
}
#endif

void server_model(char *path, size_t room) {
    snprintf(path, room, "%s", scratch_path("tiny"));
    const char *best = format_text("%s/best", path);
    const char *config = scratch_path("tiny.config");
    config_write(config, "ATTENTION=mla POSITION=rope N_LAYER=2 N_HEAD=2 N_EMBD=16 VOCAB_SIZE=256 "
                         "CONTEXT=256 RA_MLA_LATENT_DIM=8");
    assert_int_equal(mkdir(path, 0777), 0);
    SUCCEEDS("init", "--config", config, "--out", best, "--seed", "1");
}

static void exec_server(const char *command, const char *const *arguments, int out) {
    const char *all[WORDS_MOST] = {command, "--port", "0"};
    char *words[WORDS_MOST];
    int nothing = open("/dev/null", O_RDONLY);
    for (int n = 3; *arguments && n + 1 < WORDS_MOST; n++)
        all[n] = *arguments++;
    command_words(all, words, WORDS_MOST);
    dup2(nothing, 0);
    dup2(out, 1);
    execvp(words[0], words);
    _exit(127);
}

server server_start(const char *const *arguments) {
    return server_start_as("serve", arguments);
}

server server_start_as(const char *command, const char *const *arguments) {
    static int started;
    server s = {0};
    int ends[2];
    char line[512] = "";
    size_t got = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (s.pid == 0 && started > 0 && !train_long()) command_skip_leaks();
    if (s.pid == 0) exec_server(command, arguments, ends[1]);
    started++;
    close(ends[1]);
    while (got + 1 < sizeof line && !memchr(line, '\n', got)) {
        ssize_t more = read(ends[0], line + got, sizeof line - 1 - got);
        if (more <= 0) break;
        got += (size_t)more;
    }
    close(ends[0]);
    const char *colon = strrchr(line, ':');
    if (colon) s.port = atoi(colon + 1);
    if (!s.port) {
        waitpid(s.pid, NULL, 0);
        fail_msg("weft %s does not listen: '%s'", command, line);
    }
    return s;
}

int server_wait(server *s, double seconds) {
    double end = weft_clock() + seconds;
    int status;
    while (waitpid(s->pid, &status, WNOHANG) == 0) {
        if (weft_clock() > end) kill(s->pid, SIGKILL);
        pause_ms(5);
    }
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void server_stop(server *s) {
    if (!s->pid) return;
    kill(s->pid, SIGTERM);
    assert_int_equal(server_wait(s, 300), 0);
}

server server_open(char *model, size_t room, const char *const *arguments) {
    const char *words[WORDS_MOST] = {"--model", model, "--threads", "1"};
    for (int n = 4; *arguments && n < WORDS_MOST - 1; n++)
        words[n] = *arguments++;
    scratch_open();
    server_model(model, room);
    return server_start(words);
}

void server_close(server *s) {
    server_stop(s);
    scratch_close();
}

int client_connect(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) return -1;
    struct timeval patience = {.tv_sec = (time_t)(120 * command_patience())};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience); /* a test does not hang */
    if (connect(s, (struct sockaddr *)&to, sizeof to) == 0) return s;
    close(s);
    return -1;
}

bool client_send(int socket, const void *bytes, size_t count) {
    const char *from = bytes;
    while (count > 0) {
        ssize_t sent = send(socket, from, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        from += sent;
        count -= (size_t)sent;
    }
    return true;
}

int client_head(char *out, size_t room, const char *path, size_t bytes) {
    return snprintf(out, room,
                    "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                    path, bytes);
}

int client_post(int port, const char *body) {
    char head[512];
    int s = client_connect(port),
        bytes = client_head(head, sizeof head, "/v1/completions", strlen(body));
    assert_true(s >= 0 && client_send(s, head, (size_t)bytes) &&
                client_send(s, body, strlen(body)));
    return s;
}

/* More bytes behind what there is; false: the end, or the time is up. */
static bool read_more(int socket, char **data, size_t *bytes, size_t *room, double end) {
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    double left = end - weft_clock();
    if (left <= 0 || poll(&wait, 1, (int)(1000 * left) + 1) <= 0) return false;
    if (*bytes + 65536 > *room) {
        *room = 2 * (*bytes + 65536);
        *data = realloc(*data, *room);
    }
    ssize_t got = recv(socket, *data + *bytes, 65535, 0);
    if (got <= 0) return false;
    *bytes += (size_t)got;
    (*data)[*bytes] = 0;
    return true;
}

/* The chunks' contents, in place; the bytes left of it. SIZE_MAX: the last chunk is not there yet. */
static size_t join_chunks(char *data, size_t bytes, bool dry) {
    size_t at = 0, to = 0;
    for (;;) {
        char *end = at < bytes ? memmem(data + at, bytes - at, "\r\n", 2) : NULL;
        if (!end) return SIZE_MAX;
        size_t length = strtoul(data + at, NULL, 16), from = (size_t)(end - data) + 2;
        if (length == 0) return to;
        if (from + length + 2 > bytes) return SIZE_MAX;
        if (!dry) memmove(data + to, data + from, length);
        to += length;
        at = from + length + 2;
    }
}

static const char *find_header(const char *head, const char *name) {
    for (const char *at = head; (at = strstr(at, "\r\n"));) {
        at += 2;
        if (strncasecmp(at, name, strlen(name)) == 0) return at + strlen(name);
    }
    return NULL;
}

answer client_read(int socket, double seconds) {
    answer a = {0};
    char *data = calloc(1, 1), *split = NULL;
    size_t bytes = 0, room = 1;
    double end = weft_clock() + seconds;
    while (!split && read_more(socket, &data, &bytes, &room, end))
        split = memmem(data, bytes, "\r\n\r\n", 4);
    if (!split) {
        free(data);
        return a;
    }
    size_t head = (size_t)(split - data) + 4, want = SIZE_MAX;
    a.head = strndup(data, head);
    const char *length = find_header(a.head, "Content-Length:");
    bool chunked = find_header(a.head, "Transfer-Encoding: chunked") != NULL;
    if (length) want = head + strtoul(length, NULL, 10);
    while (bytes < want) {
        if (chunked && join_chunks(data + head, bytes - head, true) != SIZE_MAX) break;
        if (!read_more(socket, &data, &bytes, &room, end)) break;
    }
    a.bytes = bytes - head;
    a.body = calloc(a.bytes + 1, 1);
    memcpy(a.body, data + head, a.bytes);
    free(data);
    if (chunked) {
        size_t joined = join_chunks(a.body, a.bytes, true);
        a.bytes = joined == SIZE_MAX ? 0 : join_chunks(a.body, a.bytes, false);
        a.body[a.bytes] = 0;
    }
    sscanf(a.head, "HTTP/1.1 %d", &a.status);
    return a;
}

void answer_free(answer *a) {
    free(a->head);
    free(a->body);
    *a = (answer){0};
}

answer http_get(int port, const char *path, const char *headers) {
    char head[2048];
    int s = client_connect(port);
    int length = snprintf(head, sizeof head,
                          "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", path,
                          headers ? headers : "");
    answer a = {0};
    if (s >= 0 && client_send(s, head, (size_t)length)) a = client_read(s, 60 * command_patience());
    if (s >= 0) close(s);
    return a;
}

answer http_post(int port, const char *path, const char *headers, const void *body, size_t bytes) {
    char head[2048];
    int s = client_connect(port);
    int length = headers ? snprintf(head, sizeof head,
                                    "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: "
                                    "close\r\nContent-Length: %zu\r\n%s\r\n",
                                    path, bytes, headers)
                         : client_head(head, sizeof head, path, bytes);
    answer a = {0};
    /* A server may answer before it has read all. */
    if (s >= 0 && client_send(s, head, (size_t)length)) {
        client_send(s, body, bytes);
        a = client_read(s, 120 * command_patience());
    }
    if (s >= 0) close(s);
    return a;
}

json_t *http_json(int port, const char *path, const char *body, int status) {
    answer a = http_post(port, path, NULL, body, strlen(body));
    json_error_t error;
    if (a.status != status)
        fail_msg("%s %s: status %d, not %d: %s", path, body, a.status, status, a.body);
    json_t *object = json_loadb(a.body, a.bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!object) fail_msg("%s %s: %s in %s", path, body, error.text, a.body);
    answer_free(&a);
    return object;
}

double http_metric(int port, const char *name) {
    answer a = http_get(port, "/metrics", NULL);
    size_t length = strlen(name);
    double value = -1;
    for (const char *at = a.body; at && (at = strstr(at, name)); at += length)
        if ((at == a.body || at[-1] == '\n') && at[length] == ' ') value = atof(at + length);
    answer_free(&a);
    return value;
}

json_t *http_complete(int port, const char *format, ...) {
    char body[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(body, sizeof body, format, list);
    va_end(list);
    return http_json(port, "/v1/completions", body, 200);
}

void http_wait_metric(int port, const char *name, double want) {
    double is, end = weft_clock() + 120 * command_patience();
    while ((is = http_metric(port, name)) != want) {
        if (weft_clock() > end) fail_msg("%s is %g, not %g", name, is, want);
        pause_ms(20);
    }
}

json_t *answer_choice(const json_t *whole, size_t i) {
    return json_array_get(json_object_get(whole, "choices"), i);
}

/* Texts and lists go on where they are; what is null says nothing. */
static void join_members(json_t *to, json_t *more) {
    const char *key;
    json_t *value;
    json_object_foreach(more, key, value) {
        json_t *old = json_object_get(to, key);
        if (json_is_array(value) && json_is_array(old))
            json_array_extend(old, value);
        else if (json_is_object(value) && json_is_object(old))
            join_members(old, value);
        else if (json_is_string(value) && json_is_string(old))
            json_object_set_new(to, key,
                                json_pack("s%+%", json_string_value(old), json_string_length(old),
                                          json_string_value(value), json_string_length(value)));
        else if (!old || !json_is_null(value))
            json_object_set_new(to, key, json_deep_copy(value));
    }
}

static bool join_event(json_t *whole, json_t *choices, json_t *event) {
    json_t *c = answer_choice(event, 0), *delta = json_object_get(c, "delta");
    size_t i = (size_t)json_integer_value(json_object_get(c, "index"));
    if (!event || json_object_get(event, "error")) return false;
    if (delta) {
        json_object_set(c, "message", delta);
        json_object_del(c, "delta");
    }
    if (json_is_object(json_object_get(event, "usage")))
        json_object_set(whole, "usage", json_object_get(event, "usage"));
    while (c && json_array_size(choices) <= i)
        json_array_append_new(choices, json_object());
    if (c) join_members(json_array_get(choices, i), c);
    return true;
}

json_t *events_join(const char *events) {
    json_t *choices = json_array(), *whole = json_pack("{s:o}", "choices", choices);
    bool done = false, good = true;
    for (const char *at = events, *end; good && *at; at = end + 2) {
        end = strstr(at, "\n\n");
        good = !done && end && strncmp(at, "data: ", 6) == 0;
        done = good && strncmp(at, "data: [DONE]\n\n", 14) == 0;
        if (!good || done) continue;
        json_t *event = json_loadb(at + 6, (size_t)(end - at) - 6, JSON_ALLOW_NUL, NULL);
        good = join_event(whole, choices, event);
        json_decref(event);
    }
    if (done && good) return whole;
    json_decref(whole);
    return NULL;
}

json_t *http_stream(int port, const char *path, const char *body) {
    answer a = http_post(port, path, NULL, body, strlen(body));
    json_t *whole = a.status == 200 ? events_join(a.body) : NULL;
    if (!whole || !strstr(a.head, "text/event-stream"))
        fail_msg("%s %s: status %d, no events: %s", path, body, a.status, a.body);
    answer_free(&a);
    return whole;
}

json_t *generate_json(const char *model, const char *const *options) {
    const char *words[WORDS_MOST] = {"generate", "--model", model, "--json"};
    for (int n = 4; *options && n < WORDS_MOST - 1; n++)
        words[n] = *options++;
    char *out;
    command_succeeds(words, &out);
    json_t *object = json_loads(out, JSON_ALLOW_NUL, NULL);
    assert_non_null(object);
    free(out);
    return object;
}

bool choice_is(const json_t *c, const json_t *made) {
    return json_equal(json_object_get(c, "text"), json_object_get(made, "text")) &&
           json_equal(json_object_get(c, "token_ids"), json_object_get(made, "tokens")) &&
           json_equal(json_object_get(c, "finish_reason"), json_object_get(made, "finish"));
}

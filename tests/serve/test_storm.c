/* Many clients at once: a third of them well-behaved, a third that go away at any moment, a third that
 * send garbage. Every well-behaved one gets the text that weft generate writes, and when all are gone
 * the server has nothing left of them. `make test` has fewer of them than `make test-long`, and all of them
 * with drafts of the next tokens (--speculate), which the other one does without, too. */
#include "base/clock.h"
#include "support/command.h"
#include "support/http.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { KINDS = 8, CLIENTS_MOST = 500, GROUP = 50, LARGE = 10 << 20 };

static server shared;
static char model[512];
static char *large;

/* What is asked, and what weft generate makes of it. */
static struct {
    char prompt[64], tokens[8], seed[8];
    json_t *made;
} known[KINDS];

typedef struct {
    int number;
    char wrong[512]; /* empty: all went well */
} client;

static bool drafts;

static int start_shared(void **state) {
    (void)state;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    scratch_open();
    server_model(model, sizeof model);
    large = malloc(LARGE);
    memset(large, '[', LARGE);
    for (int i = 0; i < KINDS; i++) {
        snprintf(known[i].prompt, sizeof known[i].prompt, "%.*s", 4 + 5 * i,
                 "It was the best of times, it was the worst of times.");
        snprintf(known[i].tokens, sizeof known[i].tokens, "%d", 12 + 23 * i);
        snprintf(known[i].seed, sizeof known[i].seed, "%d", 40 + i);
        char *out;
        command_succeeds(RUN("generate", "--model", model, "--prompt", known[i].prompt,
                             "--max-tokens", known[i].tokens, "--seed", known[i].seed, "--json"),
                         &out);
        known[i].made = json_loads(out, JSON_ALLOW_NUL, NULL);
        assert_non_null(known[i].made);
        free(out);
    }
    shared = server_start(RUN("--model", model, "--threads", "1", "--sequences", "48", "--queue",
                              "2000", "--connections", "700", "--request-timeout", "3",
                              drafts ? "--speculate" : "--host", drafts ? model : "127.0.0.1"));
    return 0;
}

static int stop_shared(void **state) {
    (void)state;
    server_stop(&shared);
    for (int i = 0; i < KINDS; i++)
        json_decref(known[i].made);
    free(large);
    scratch_close();
    return 0;
}

static int make_body(char *out, size_t room, int kind, bool stream) {
    return snprintf(out, room,
                    "{\"prompt\":\"%s\",\"max_tokens\":%s,\"seed\":%s,\"return_token_ids\":true,"
                    "\"stream\":%s}",
                    known[kind].prompt, known[kind].tokens, known[kind].seed,
                    stream ? "true" : "false");
}

/* Tokens and text of all events together. */
static bool same_events(const char *events, const json_t *made) {
    json_t *tokens = json_array();
    char *text = calloc(strlen(events) + 1, 1);
    size_t bytes = 0;
    bool done = false;
    for (const char *at = events, *end; !done && (end = strstr(at, "\n\n")); at = end + 2) {
        done = strncmp(at, "data: [DONE]", 12) == 0;
        json_t *event = json_loadb(at + 6, (size_t)(end - at) - 6, JSON_ALLOW_NUL, NULL);
        const json_t *c = json_array_get(json_object_get(event, "choices"), 0);
        const json_t *piece = json_object_get(c, "text");
        json_array_extend(tokens, json_object_get(c, "token_ids"));
        memcpy(text + bytes, piece ? json_string_value(piece) : "", json_string_length(piece));
        bytes += json_string_length(piece);
        json_decref(event);
    }
    const json_t *want = json_object_get(made, "text");
    bool same = done && json_equal(tokens, json_object_get(made, "tokens")) &&
                bytes == json_string_length(want) &&
                memcmp(text, json_string_value(want), bytes) == 0;
    json_decref(tokens);
    free(text);
    return same;
}

static bool same_whole(const answer *a, const json_t *made) {
    json_t *got = json_loadb(a->body, a->bytes, JSON_ALLOW_NUL, NULL);
    const json_t *c = json_array_get(json_object_get(got, "choices"), 0);
    bool same = json_equal(json_object_get(c, "text"), json_object_get(made, "text")) &&
                json_equal(json_object_get(c, "token_ids"), json_object_get(made, "tokens")) &&
                json_equal(json_object_get(c, "finish_reason"), json_object_get(made, "finish"));
    json_decref(got);
    return same;
}

static void be_good(client *c, unsigned *dice) {
    char body[400];
    int kind = rand_r(dice) % KINDS;
    bool stream = rand_r(dice) % 2;
    int length = make_body(body, sizeof body, kind, stream);
    answer a = http_post(shared.port, "/v1/completions", NULL, body, (size_t)length);
    bool right = a.status == 200 && (stream ? same_events(a.body, known[kind].made)
                                            : same_whole(&a, known[kind].made));
    if (!right)
        snprintf(c->wrong, sizeof c->wrong, "client %d: %s: status %d: %.300s", c->number, body,
                 a.status, a.body ? a.body : "");
    answer_free(&a);
}

/* Goes away in the middle of its request, while it waits, or in the middle of its answer. */
static void go_away(unsigned *dice) {
    char head[512], body[400];
    int length = make_body(body, sizeof body, rand_r(dice) % KINDS, rand_r(dice) % 2);
    int bytes = client_head(head, sizeof head, "/v1/completions", (size_t)length);
    int s = client_connect(shared.port);
    if (s < 0) return;
    bool whole = rand_r(dice) % 4 > 0;
    client_send(s, head, whole ? (size_t)bytes : (size_t)rand_r(dice) % (size_t)bytes);
    if (whole) client_send(s, body, rand_r(dice) % 4 ? (size_t)length : (size_t)length / 2);
    pause_ms((long)(rand_r(dice) % 400));
    if (rand_r(dice) % 3 == 0) recv(s, head, 100, MSG_DONTWAIT);
    struct linger at_once = {.l_onoff = 1};
    if (rand_r(dice) % 2) setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(s);
}

static void send_garbage(client *c, unsigned *dice) {
    static const char *const texts[] = {"{\"prompt\":\"Once\",\"max_tok", "{\"prompt\":7}",
                                        "{\"prompt\":\"\xff\xfe\"}",
                                        "{\"prompt\":\"x\",\"n\":1e300}", "[[[[[[[[[[[[[[[["};
    int kind = rand_r(dice) % 7;
    if (kind < 5) {
        answer a =
            http_post(shared.port, "/v1/completions", NULL, texts[kind], strlen(texts[kind]));
        if (a.status != 400)
            snprintf(c->wrong, sizeof c->wrong, "%s: status %d", texts[kind], a.status);
        answer_free(&a);
    } else if (kind == 5) {
        answer a = http_post(shared.port, "/v1/completions", NULL, large, LARGE);
        if (a.status != 413 && a.status != 0)
            snprintf(c->wrong, sizeof c->wrong, "10 MB: status %d", a.status);
        answer_free(&a);
    } else { /* a byte a second, until the server has had enough */
        char head[512];
        int bytes = client_head(head, sizeof head, "/v1/completions", 100), s;
        double start = weft_clock();
        s = client_connect(shared.port);
        for (int i = 0; s >= 0 && i < bytes && client_send(s, head + i, 1); i++) {
            if (recv(s, head, 1, MSG_DONTWAIT) == 0) break;
            pause_ms(1000);
        }
        if (s >= 0) close(s);
        if (weft_clock() - start > 60)
            snprintf(c->wrong, sizeof c->wrong, "a slow client was not ended");
    }
}

static void *run_client(void *context) {
    client *c = context;
    unsigned dice = (unsigned)c->number * 7919u + 1;
    pause_ms((long)(rand_r(&dice) % 200));
    if (c->number % 3 == 0)
        be_good(c, &dice);
    else if (c->number % 3 == 1)
        go_away(&dice);
    else
        send_garbage(c, &dice);
    return NULL;
}

/* Clients from number `first` on, each in a thread; how many were served wrongly. */
static int run_clients(int first, int n) {
    static client clients[GROUP];
    static pthread_t threads[GROUP];
    pthread_attr_t small;
    int wrong = 0;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 19);
    for (int i = 0; i < n; i++) {
        clients[i] = (client){.number = first + i};
        if (pthread_create(&threads[i], &small, run_client, &clients[i]) != 0) return n;
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        if (!*clients[i].wrong) continue;
        if (wrong++ < 5) fprintf(stderr, "%s\n", clients[i].wrong);
    }
    pthread_attr_destroy(&small);
    return wrong;
}

/* In processes of some threads each: a sanitizer allows a process not very many. */
static void run_storm(int n) {
    pid_t children[CLIENTS_MOST / GROUP + 1];
    int groups = 0, wrong = 0, status;
    fflush(NULL);
    for (int first = 0; first < n; first += GROUP) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(run_clients(first, n - first < GROUP ? n - first : GROUP));
        children[groups++] = child;
    }
    for (int i = 0; i < groups; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        if (!WIFEXITED(status)) fail_msg("clients ended on signal %d", WTERMSIG(status));
        wrong += WEXITSTATUS(status);
    }
    if (wrong) fail_msg("%d of %d clients were served wrongly", wrong, n);
}

static void wait_metric(const char *name, double want) {
    double is, end = weft_clock() + 120;
    while ((is = http_metric(shared.port, name)) != want) {
        if (weft_clock() > end) fail_msg("%s is %g, not %g", name, is, want);
        pause_ms(50);
    }
}

static void wait_quiet(void) {
    wait_metric("weft_connections", 1); /* this one */
    wait_metric("weft_sequences_running", 0);
    wait_metric("weft_sequences_waiting", 0);
    wait_metric("weft_cache_pages_used", 0);
}

static void test_a_storm_leaves_nothing_behind(void **state) {
    (void)state;
    const char *longer = getenv("WEFT_TEST_LONG");
    int n = longer && *longer ? CLIENTS_MOST : 60;
    run_storm(n); /* also what is kept once and for all */
    wait_quiet();
    double before = http_metric(shared.port, "process_resident_memory_bytes");
    double start = weft_clock();
    run_storm(n);
    double seconds = weft_clock() - start;
    wait_quiet();
    double after = http_metric(shared.port, "process_resident_memory_bytes");
    printf("note: %d clients in %.1f s; resident memory %.1f MiB before, %.1f MiB after\n", n,
           seconds, before / (1 << 20), after / (1 << 20));
    assert_true(http_metric(shared.port,
                            "weft_requests_total{path=\"/v1/completions\",status=\"499\"}") > 0);
    /* The model is always right about itself; what a client does not stay for is not. */
    double right = http_metric(shared.port, "weft_accepted_tokens_total");
    assert_true(right <= http_metric(shared.port, "weft_drafted_tokens_total"));
    assert_int_equal(right > 0, drafts);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    /* A sanitizer keeps what was freed. */
    assert_true(after < before + (8 << 20));
#endif
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_storm_leaves_nothing_behind),
    };
    const char *longer = getenv("WEFT_TEST_LONG");
    int failed = longer && *longer ? cmocka_run_group_tests(tests, start_shared, stop_shared) : 0;
    drafts = true;
    return failed + cmocka_run_group_tests(tests, start_shared, stop_shared);
}

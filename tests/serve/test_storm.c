/* Many clients at once: a third of them well-behaved, a third that go away at any moment, a third that
 * send garbage, over a cache that does not hold them all. Every well-behaved one gets the text that weft generate
 * writes, and when all are gone the server has nothing left of them; nor has it of ten thousand that come one after
 * the other. `make test` has fewer of them than `make test-long`, and all of them with drafts of the next tokens by a
 * model; the other one has them with drafts by n-grams and without drafts, too. */
#include "base/clock.h"
#include "support/command.h"
#include "support/http.h"
#include "support/train_run.h"

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

/* A sanitizer keeps what was freed, and finds a leak at the end, of few requests as of many. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

static server shared;
static char model[512];
static char *large;

/* What is asked, and what weft generate makes of it. */
static struct {
    char prompt[64], tokens[8], seed[8], temperature[8];
    json_t *made;
} known[KINDS];

typedef struct {
    int number;
    char wrong[512]; /* empty: all went well */
} client;

static const char *speculate; /* NULL: no drafts */
static int rounds; /* of a client that makes one good request after the other; 0: a storm */

static int start_shared(void **state) {
    (void)state;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    scratch_open();
    server_model(model, sizeof model);
    /* 1024 bytes for each token: a cache of 1 MiB has pages for some eight of the texts below. */
    snprintf(model, sizeof model, "%s", scratch_path("storm"));
    command_succeeds(RUN("init", "--config", scratch_path("tiny.config"), "-o", "ATTENTION=dot",
                         "-o", "N_LAYER=8", "--out", model),
                     NULL);
    large = malloc(LARGE);
    memset(large, '[', LARGE);
    for (int i = 0; i < KINDS; i++) {
        snprintf(known[i].prompt, sizeof known[i].prompt, "%.*s", 4 + 5 * i,
                 "It was the best of times, it was the worst of times.");
        snprintf(known[i].tokens, sizeof known[i].tokens, "%d", 12 + 23 * i);
        snprintf(known[i].seed, sizeof known[i].seed, "%d", 40 + i);
        snprintf(known[i].temperature, sizeof known[i].temperature, "%d", i % 2);
        known[i].made = generate_json(model, SAYS("--prompt", known[i].prompt, "--max-tokens",
                                                  known[i].tokens, "--seed", known[i].seed,
                                                  "--temperature", known[i].temperature));
    }
    shared = server_start(RUN("--model", model, "--threads", "1", "--sequences", "48", "--queue",
                              "2000", "--connections", "700", "--request-timeout", "3",
                              "--cache-mib", "1", speculate ? "--speculate" : NULL,
                              speculate && *speculate ? speculate : model));
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
                    "{\"prompt\":\"%s\",\"max_tokens\":%s,\"seed\":%s,\"temperature\":%s,"
                    "\"return_token_ids\":true,\"stream\":%s}",
                    known[kind].prompt, known[kind].tokens, known[kind].seed,
                    known[kind].temperature, stream ? "true" : "false");
}

static void be_good(client *c, unsigned *dice) {
    char body[400];
    int kind = rand_r(dice) % (rounds ? 2 : KINDS); /* the short ones */
    bool stream = rand_r(dice) % 2;
    int length = make_body(body, sizeof body, kind, stream);
    answer a = http_post(shared.port, "/v1/completions", NULL, body, (size_t)length);
    json_t *got = a.status != 200 ? NULL
                  : stream        ? events_join(a.body)
                                  : json_loadb(a.body, a.bytes, JSON_ALLOW_NUL, NULL);
    if (!choice_is(answer_choice(got, 0), known[kind].made))
        snprintf(c->wrong, sizeof c->wrong, "client %d: %s: status %d: %.300s", c->number, body,
                 a.status, a.body ? a.body : "");
    json_decref(got);
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
    for (int i = 0; i < rounds && !*c->wrong; i++)
        be_good(c, &dice);
    if (rounds) return NULL;
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

static double metric(const char *name) {
    return http_metric(shared.port, name);
}

static void wait_quiet(void) {
    http_wait_metric(shared.port, "weft_connections", 1); /* this one */
    http_wait_metric(shared.port, "weft_sequences_running", 0);
    http_wait_metric(shared.port, "weft_sequences_waiting", 0);
    http_wait_metric(shared.port, "weft_cache_pages_used", 0);
}

/* The first time is for what is kept once and for all; from then on the server grows by less than `mib`. */
static void check_memory(int n, int of_each, double mib) {
    rounds = (of_each + 9) / 10;
    if (!SANITIZED) run_storm(n);
    wait_quiet();
    rounds = of_each;
    double before = metric("process_resident_memory_bytes"), start = weft_clock();
    run_storm(n);
    double seconds = weft_clock() - start;
    wait_quiet();
    double after = metric("process_resident_memory_bytes");
    printf("note: --speculate %s: %d clients, %d requests in %.1f s; resident memory %.1f MiB "
           "before, %.1f MiB after\n",
           !speculate   ? "nothing"
           : *speculate ? speculate
                        : "DIR",
           n, of_each ? n * of_each : n, seconds, before / (1 << 20), after / (1 << 20));
    assert_true(SANITIZED || after < before + mib * (1 << 20));
}

static void test_a_storm_leaves_nothing_behind(void **state) {
    (void)state;
    int n = train_long() ? CLIENTS_MOST : 60;
    check_memory(n, 0, 8);
    assert_true(metric("weft_requests_total{path=\"/v1/completions\",status=\"499\"}") > 0);
    if (train_long()) assert_true(metric("weft_set_back_total") > 0);
    assert_true(metric("weft_shared_tokens_total") > 0);
    /* The model is always right about itself; what a client does not stay for is not. */
    double right = metric("weft_accepted_tokens_total");
    assert_true(right <= metric("weft_drafted_tokens_total"));
    assert_int_equal(right > 0, speculate != NULL);
}

/* A leak of some hundred bytes for each request would show. */
static void test_one_request_after_the_other_leaves_nothing_behind(void **state) {
    (void)state;
    check_memory(10, !train_long() ? 10 : SANITIZED ? 100 : 1000, 4);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    static const char *const ways[] = {"", "ngram",
                                       NULL}; /* by the model itself, by n-grams, not at all */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_storm_leaves_nothing_behind),
        cmocka_unit_test(test_one_request_after_the_other_leaves_nothing_behind),
    };
    int failed = 0;
    for (int i = 0; i < (train_long() ? 3 : 1); i++) {
        speculate = ways[i];
        failed += cmocka_run_group_tests(tests, start_shared, stop_shared);
    }
    return failed;
}

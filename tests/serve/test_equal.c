/* Requests drawn at random, to servers of models drawn at random: each gets the text, tokens, log-probabilities and
 * end that `weft generate` makes by itself, whatever it is among: with drafts of the next tokens and without, prompts
 * in pieces, a cache that does not hold all of them. `make test` has some of them, `make test-long` a thousand; the
 * seed is printed, and the variable WEFT_TEST_SEED sets another. */
#include "base/random.h"
#include "model/cached.h"
#include "model/kinds.h"
#include "support/command.h"
#include "support/http.h"
#include "support/mix.h"
#include "support/train_run.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OF_EACH = 20 /* requests to a server */, CLIENTS = 20, CONTEXT = 160, N_MOST = 3 };

typedef struct {
    char body[2048];
    bool stream;
    json_t *made; /* by weft generate */
    answer got;
} request;

static uint64_t seed, drawn; /* draws so far */
static request requests[OF_EACH];
static atomic_int next;
static int port;

static int draw(int below) {
    return (int)(weft_random_word(seed, 1, 0, 0, drawn++) % (uint64_t)below);
}

#define ONE_OF(list) (list)[draw((int)(sizeof(list) / sizeof(list)[0]))]

/* A model of text that generates, in `folder`, and a smaller one with the same vocabulary in `other`. */
static void draw_models(char *folder, char *other, char *words, size_t room) {
    static const char *const types[] = {"auto", "auto", "f32", "bf16", "int8"};
    static const char *const windows[] = {"WINDOW=0", "WINDOW=0", "WINDOW=9", "WINDOW=40"};
    static const char *const inits[] = {"INIT=normal", "INIT=orthogonal"};
    static const char *const widths[] = {"N_EMBD=16", "N_EMBD=128"};
    static uint64_t mix;
    char text[CONTEXT];
    weft_config c;
    do {
        mix_draw(seed, mix++, &c, words, room);
        const char *more[] = {"VOCAB_SIZE=256",
                              "CONTEXT=160",
                              ONE_OF(windows),
                              ONE_OF(inits),
                              ONE_OF(widths),
                              NULL,
                              NULL};
        char cache[32], weights[32];
        snprintf(cache, sizeof cache, "CACHE_DTYPE=%s", ONE_OF(types));
        snprintf(weights, sizeof weights, "WEIGHT_DTYPE=%s", ONE_OF(types));
        more[5] = cache;
        more[6] = weights;
        for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
            assert_int_equal(weft_config_override(&c, more[i], "test"), WEFT_OK);
            snprintf(words + strlen(words), room - strlen(words), " %s", more[i]);
        }
    } while (weft_model_check(&c, "test") != WEFT_OK || weft_cached_check(&c) != WEFT_OK);
    const char *path = scratch_path("drawn.config");
    assert_int_equal(weft_config_save(&c, path), WEFT_OK);
    snprintf(text, sizeof text, "%d", draw(1000));
    command_succeeds(RUN("init", "--config", path, "--out", folder, "--force", "--seed", text),
                     NULL);
    command_succeeds(RUN("init", "--out", other, "--force", "-o", "N_LAYER=1", "-o", "N_EMBD=8",
                         "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=256", "-o", "CONTEXT=160"),
                     NULL);
}

/* Prompts begin alike, and have few letters, so that beginnings are shared and n-grams are found. */
static void draw_prompt(char *prompt, int most) {
    static const char *const texts[] = {"abab", "aabb", "ba", "the same words again and again, "};
    const char *text = ONE_OF(texts);
    int length = draw(4) ? draw(most / 3) : draw(most), bytes = (int)strlen(text);
    for (int i = 0; i < length; i++)
        prompt[i] = draw(40) ? text[i % bytes] : (char)('a' + draw(26));
    prompt[length] = 0;
}

/* One request, and the same for weft generate. */
static void draw_request(request *r, const char *model) {
    static const char *const temperatures[] = {"0", "0", "0.02", "0.5", "1", "1", "1.8"};
    static const char *const ks[] = {"0", "0", "1", "5", "40"}, *const ps[] = {"1", "1", "0.9",
                                                                               "0.4"};
    static const char *const mins[] = {"0", "0", "0.05"}, *const penalties[] = {"1", "1", "1.3",
                                                                                "0.8"};
    static const char *const stops[] = {"a", "e", "i", "q", "st", "ab", "\xc3\xa9", "7", "Z", " "};
    char prompt[CONTEXT], most[16], number[16], n[16], tops[16], stop[256] = "",
                                                                 dots[CONTEXT * 5] = "";
    const char *temperature = ONE_OF(temperatures), *k = ONE_OF(ks), *p = ONE_OF(ps),
               *min = ONE_OF(mins), *penalty = ONE_OF(penalties);
    draw_prompt(prompt, CONTEXT - 1);
    snprintf(most, sizeof most, "%d",
             1 + draw(draw(3) ? 40 : 2 * CONTEXT)); /* more than fits is shortened */
    snprintf(number, sizeof number, "%d", draw(1 << 30));
    snprintf(n, sizeof n, "%d", draw(3) ? 1 : 1 + draw(N_MOST));
    snprintf(tops, sizeof tops, "%d", draw(4));
    const char *options[40] = {"--prompt",
                               prompt,
                               "--max-tokens",
                               most,
                               "--seed",
                               number,
                               "--samples",
                               n,
                               "--logprobs",
                               tops,
                               "--temperature",
                               temperature,
                               "--top-k",
                               k,
                               "--top-p",
                               p,
                               "--min-p",
                               min,
                               "--repetition-penalty",
                               penalty,
                               "--threads",
                               "1"};
    int words = 22;
    for (int i = draw(3) ? 0 : 1 + draw(3); i > 0; i--) {
        options[words] = "--stop";
        options[words + 1] = ONE_OF(stops);
        snprintf(stop + strlen(stop), sizeof stop - strlen(stop), "%s\"%s\"", *stop ? "," : "",
                 options[words + 1]);
        words += 2;
    }
    if (!*prompt) options[0] = "--file", options[1] = "/dev/null";
    r->made = generate_json(model, options);
    /* As text, or as tokens: a letter's number is its byte. */
    bool tokens = *prompt && !draw(4);
    for (const char *at = prompt; tokens && *at; at++)
        snprintf(dots + strlen(dots), sizeof dots - strlen(dots), "%s%d", at > prompt ? "," : "",
                 *at);
    r->stream = draw(2);
    snprintf(r->body, sizeof r->body,
             "{\"prompt\":%s%s%s,\"max_tokens\":%s,\"seed\":%s,\"n\":%s,\"logprobs\":%s,"
             "\"temperature\":%s,\"top_k\":%s,"
             "\"top_p\":%s,\"min_p\":%s,\"repetition_penalty\":%s,\"stop\":[%s],\"stream\":%s,"
             "\"return_token_ids\":true}",
             tokens ? "[" : "\"", tokens ? dots : prompt, tokens ? "]" : "\"", most, number, n,
             tops, temperature, k, p, min, penalty, stop, r->stream ? "true" : "false");
}

static void *send_requests(void *context) {
    (void)context;
    for (int i; (i = atomic_fetch_add(&next, 1)) < OF_EACH;)
        requests[i].got =
            http_post(port, "/v1/completions", NULL, requests[i].body, strlen(requests[i].body));
    return NULL;
}

static void check_request(const request *r, const char *where) {
    json_t *got = r->got.status != 200 ? NULL
                  : r->stream          ? events_join(r->got.body)
                              : json_loadb(r->got.body, r->got.bytes, JSON_ALLOW_NUL, NULL);
    const json_t *samples = json_object_get(r->made, "samples");
    for (size_t i = 0; i < (samples ? json_array_size(samples) : 1); i++) {
        const json_t *made = samples ? json_array_get(samples, i) : r->made,
                     *c = answer_choice(got, i);
        const json_t *logprobs = json_object_get(json_object_get(c, "logprobs"), "token_logprobs");
        if (!choice_is(c, made) || !json_equal(logprobs, json_object_get(made, "logprobs"))) {
            char *want = json_dumps(made, JSON_COMPACT);
            fail_msg("seed %llu, %s\n%s\nchoice %zu: status %d: %s\nweft generate: %s",
                     (unsigned long long)seed, where, r->body, i, r->got.status, r->got.body, want);
        }
    }
    json_decref(got);
}

/* One server of a model, and requests to it from several clients at once. */
static void check_server(double *sums) {
    static const char *const sequences[] = {"1", "3", "16"}, *const shares[] = {"0", "75", "1"},
                             *const threads[] = {"1", "1", "2"}, *const mibs[] = {"1", "8"};
    char model[512], other[512], words[4096], where[6000];
    snprintf(model, sizeof model, "%s", scratch_path("drawn"));
    snprintf(other, sizeof other, "%s", scratch_path("other"));
    draw_models(model, other, words, sizeof words);
    const char *hows[] = {NULL, "ngram", "ngram", model, model, other}, *how = ONE_OF(hows);
    const char *arguments[] = {"--model",
                               model,
                               "--sequences",
                               ONE_OF(sequences),
                               "--prompt-share",
                               ONE_OF(shares),
                               "--threads",
                               ONE_OF(threads),
                               "--cache-mib",
                               ONE_OF(mibs),
                               how ? "--speculate" : NULL,
                               how,
                               NULL};
    snprintf(where, sizeof where,
             "--sequences %s --prompt-share %s --threads %s --speculate %s, a model of%s",
             arguments[3], arguments[5], arguments[7],
             !how           ? "nothing"
             : how == other ? "another model"
             : how == model ? "itself"
                            : how,
             words);
    for (int i = 0; i < OF_EACH; i++)
        draw_request(requests + i, model);
    server s = server_start(arguments);
    pthread_t clients[CLIENTS];
    port = s.port;
    atomic_store(&next, 0);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, send_requests, NULL), 0);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    static const char *const counted[] = {"weft_generated_tokens_total",
                                          "weft_accepted_tokens_total", "weft_shared_tokens_total",
                                          "weft_set_back_total"};
    for (int i = 0; i < 4; i++)
        sums[i] += http_metric(port, counted[i]);
    server_stop(&s);
    for (int i = 0; i < OF_EACH; i++) {
        check_request(requests + i, where);
        json_decref(requests[i].made);
        answer_free(&requests[i].got);
    }
}

static void test_answers_are_what_generate_writes(void **state) {
    (void)state;
    const char *given = getenv("WEFT_TEST_SEED");
    int servers = train_long() ? 1000 / OF_EACH : 5;
    double sums[4] = {0};
    seed = given && *given ? strtoull(given, NULL, 10) : 1;
    for (int i = 0; i < servers; i++)
        check_server(sums);
    printf("note: seed %llu, %d servers, %d requests: %.0f tokens, %.0f drafted rightly, %.0f "
           "shared, %.0f set back\n",
           (unsigned long long)seed, servers, servers * OF_EACH, sums[0], sums[1], sums[2],
           sums[3]);
    assert_true(sums[1] > 0 && sums[2] > 0);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers_are_what_generate_writes)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

/* weft serve: what it answers is what weft generate writes; what is wrong is told, and harms
 * nobody. */
#include "support/command.h"
#include "support/http.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char model[512];
static server shared; /* of the tests that need nothing special */

static int start_shared(void **state) {
    (void)state;
    shared = server_open(model, sizeof model, RUN(NULL));
    return 0;
}

static int stop_shared(void **state) {
    (void)state;
    server_close(&shared);
    return 0;
}

/* What weft generate makes with these options. */
static json_t *generate(const char *const *options) {
    return generate_json(model, options);
}

static const json_t *choice(const json_t *whole, size_t i) {
    const json_t *c = answer_choice(whole, i);
    assert_non_null(c);
    return c;
}

static void check_same_text(const json_t *text, const json_t *made) {
    const json_t *want = json_object_get(made, "text");
    if (!json_equal(text, want))
        fail_msg("'%s' is not '%s'", json_string_value(text), json_string_value(want));
}

static void test_completions_are_what_generate_writes(void **state) {
    (void)state;
    static const struct {
        const char *body;
        const char *options[20];
    } cases[] = {
        {"{\"prompt\":\"Once\",\"max_tokens\":40,\"seed\":5,\"return_token_ids\":true}",
         {"--prompt", "Once", "--max-tokens", "40", "--seed", "5"}},
        {"{\"model\":\"tiny\",\"prompt\":\"a\\u00e9\",\"seed\":6,\"temperature\":0,"
         "\"return_token_ids\":true}",
         {"--prompt", "a\xc3\xa9", "--max-tokens", "16", "--seed", "6", "--temperature", "0"}},
        {"{\"prompt\":\"x\",\"max_tokens\":60,\"seed\":7,\"temperature\":0.7,\"top_p\":0.9,"
         "\"top_k\":50,\"min_p\":0.01,\"repetition_penalty\":1.2,\"return_token_ids\":true}",
         {"--prompt", "x", "--max-tokens", "60", "--seed", "7", "--temperature", "0.7", "--top-p",
          "0.9", "--top-k", "50", "--min-p", "0.01", "--repetition-penalty", "1.2"}},
        {"{\"prompt\":\"\",\"max_tokens\":256,\"seed\":8,\"return_token_ids\":true,\"n\":1,"
         "\"user\":\"me\",\"presence_penalty\":0,\"logit_bias\":null}",
         {"--file", "/dev/null", "--max-tokens", "256", "--seed", "8"}},
        {"{\"prompt\":[79,110,99,101],\"max_tokens\":200,\"seed\":5,\"stop\":[\"A\",\"m\"],"
         "\"return_token_ids\":true}",
         {"--prompt", "Once", "--max-tokens", "200", "--seed", "5", "--stop", "A", "--stop", "m"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const *options = cases[i].options;
        json_t *got = http_json(shared.port, "/v1/completions", cases[i].body, 200);
        json_t *made = generate(options);
        if (!choice_is(answer_choice(got, 0), made))
            fail_msg("%s is answered otherwise", cases[i].body);
        const json_t *usage = json_object_get(got, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                         json_array_size(json_object_get(made, "tokens")));
        assert_true(json_equal(json_object_get(usage, "prompt_tokens"),
                               json_object_get(made, "prompt_tokens")));
        json_decref(got);
        json_decref(made);
    }
}

/* n texts of each prompt, prompts behind one another. */
static void test_n_and_lists_of_prompts_are_samples(void **state) {
    (void)state;
    static const char *const prompts[] = {"Once", "upon"};
    json_t *got = http_json(shared.port, "/v1/completions",
                            "{\"prompt\":[\"Once\",\"upon\"],\"n\":3,\"max_tokens\":20,\"seed\":9,"
                            "\"return_token_ids\":true,\"best_of\":3}",
                            200);
    assert_int_equal(json_array_size(json_object_get(got, "choices")), 6);
    for (size_t p = 0; p < 2; p++) {
        json_t *made = generate(
            SAYS("--prompt", prompts[p], "--max-tokens", "20", "--seed", "9", "--samples", "3"));
        for (size_t i = 0; i < 3; i++) {
            const json_t *c = choice(got, 3 * p + i);
            assert_true(choice_is(c, json_array_get(json_object_get(made, "samples"), i)));
            assert_int_equal(json_integer_value(json_object_get(c, "index")), 3 * p + i);
        }
        json_decref(made);
    }
    json_decref(got);
}

/* The default template. */
static void test_chat_is_what_generate_writes_behind_the_template(void **state) {
    (void)state;
    json_t *got = http_json(
        shared.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
        "\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}],\"max_completion_tokens\":150,"
        "\"seed\":3,\"return_token_ids\":true,\"logprobs\":true,\"top_logprobs\":2}",
        200);
    json_t *made =
        generate(SAYS("--prompt", "system:\nBe brief.\n\nuser:\nHi\n\nassistant:\n", "--max-tokens",
                      "150", "--seed", "3", "--stop", "\n\n", "--logprobs", "2"));
    const json_t *c = choice(got, 0), *message = json_object_get(c, "message");
    assert_string_equal(json_string_value(json_object_get(message, "role")), "assistant");
    check_same_text(json_object_get(message, "content"), made);
    assert_true(json_equal(json_object_get(c, "token_ids"), json_object_get(made, "tokens")));
    const json_t *list = json_object_get(json_object_get(c, "logprobs"), "content");
    size_t count = json_array_size(json_object_get(made, "tokens"));
    assert_int_equal(json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *tops = json_array_get(json_object_get(made, "top_logprobs"), i);
        assert_true(json_equal(json_object_get(entry, "logprob"),
                               json_array_get(json_object_get(made, "logprobs"), i)));
        /* A byte's own number is its token's. */
        assert_true(json_equal(json_array_get(json_object_get(entry, "bytes"), 0),
                               json_array_get(json_object_get(made, "tokens"), i)));
        for (size_t k = 0; k < 2; k++)
            assert_true(json_equal(
                json_object_get(json_array_get(json_object_get(entry, "top_logprobs"), k),
                                "logprob"),
                json_object_get(json_array_get(tops, k), "logprob")));
    }
    json_decref(got);
    json_decref(made);
}

/* What follows the content ends the answer, as what the request names does. */
static void test_a_template_of_ones_own(void **state) {
    (void)state;
    server s = server_start(RUN("--model", model, "--threads", "1", "--name", "other", "-o",
                                "CHAT_TEMPLATE=<{role}>\\t{content}e{role}"));
    static const char *const stops[] = {"", ",\"stop\":\"q\""};
    for (int i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"model\":\"other\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                 "\"seed\":3,\"max_tokens\":230%s}",
                 stops[i]);
        json_t *got = http_json(s.port, "/v1/chat/completions", body, 200);
        json_t *made = generate(SAYS("--prompt", "<user>\tHieuser<assistant>\t", "--max-tokens",
                                     "230", "--seed", "3", "--stop", "e", "--stop", i ? "q" : "e"));
        const json_t *c = choice(got, 0);
        check_same_text(json_object_get(json_object_get(c, "message"), "content"), made);
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "stop");
        json_decref(got);
        json_decref(made);
    }
    server_stop(&s);
    command_fails(2, RUN("serve", "--port", "0", "--model", model, "-o", "CHAT_TEMPLATE={role}"),
                  SAYS("CHAT_TEMPLATE", "{content}"));
}

/* Of completions and of a chat, two texts at once, of completions with their probabilities: token by token the
 * same as the whole answer. */
static void test_streams_have_the_whole_answer(void **state) {
    (void)state;
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions"};
    static const char *const begins[] = {
        "{\"prompt\":\"Once\",\"logprobs\":2,\"return_token_ids\":true",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"};
    for (int chat = 0; chat < 2; chat++) {
        char body[300];
        snprintf(body, sizeof body, "%s,\"max_tokens\":150,\"seed\":4,\"n\":3}", begins[chat]);
        json_t *whole = http_json(shared.port, paths[chat], body, 200);
        snprintf(body, sizeof body,
                 "%s,\"max_tokens\":150,\"seed\":4,\"n\":3,\"stream\":true,"
                 "\"stream_options\":{\"include_usage\":true}}",
                 begins[chat]);
        json_t *joined = http_stream(shared.port, paths[chat], body);
        for (size_t i = 0; i < 3; i++) {
            json_t *c = answer_choice(whole, i), *message = json_object_get(c, "message");
            json_object_del(message, "refusal"); /* null, and of no event */
            if (!json_equal(answer_choice(joined, i), c))
                fail_msg("%s: choice %zu is another", paths[chat], i);
        }
        const json_t *usage = json_object_get(joined, "usage");
        assert_true(
            json_equal(json_object_get(usage, "completion_tokens"),
                       json_object_get(json_object_get(whole, "usage"), "completion_tokens")));
        if (!chat)
            assert_int_equal(json_array_size(json_object_get(choice(whole, 2), "token_ids")), 150);
        json_decref(joined);
        json_decref(whole);
    }
}

static void test_logprobs_of_completions(void **state) {
    (void)state;
    json_t *got =
        http_json(shared.port, "/v1/completions",
                  "{\"prompt\":\"Once\",\"max_tokens\":20,\"seed\":5,\"logprobs\":3}", 200);
    json_t *made =
        generate(SAYS("--prompt", "Once", "--max-tokens", "20", "--seed", "5", "--logprobs", "3"));
    const json_t *l = json_object_get(choice(got, 0), "logprobs");
    assert_true(
        json_equal(json_object_get(l, "token_logprobs"), json_object_get(made, "logprobs")));
    assert_int_equal(json_array_size(json_object_get(l, "tokens")), 20);
    assert_int_equal(json_array_size(json_object_get(l, "text_offset")), 20);
    assert_int_equal(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 0)), 3);
    json_decref(got);
    json_decref(made);
}

static void test_echo_puts_the_prompt_before_its_text(void **state) {
    (void)state;
    json_t *plain = http_json(shared.port, "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":20,\"seed\":5}", 200);
    const char *text = json_string_value(json_object_get(choice(plain, 0), "text"));
    char want[400];
    snprintf(want, sizeof want, "Once%s", text);
    static const char *const prompts[] = {"\"Once\"", "[79,110,99,101]"};
    for (int i = 0; i < 2; i++) {
        json_t *echo = http_complete(
            shared.port, "{\"prompt\":%s,\"max_tokens\":20,\"seed\":5,\"echo\":true}", prompts[i]);
        assert_string_equal(json_string_value(json_object_get(choice(echo, 0), "text")), want);
        json_decref(echo);
    }
    json_decref(plain);
}

typedef struct {
    char body[200];
    json_t *got;
} client;

static void *post(void *context) {
    client *c = context;
    answer a = http_post(shared.port, "/v1/completions", NULL, c->body, strlen(c->body));
    if (a.status == 200) c->got = json_loadb(a.body, a.bytes, JSON_ALLOW_NUL, NULL);
    answer_free(&a);
    return NULL;
}

/* More at once than are run at once, of different lengths and beginnings. */
static void test_answers_are_the_same_among_others(void **state) {
    (void)state;
    enum { CLIENTS = 40 };
    static client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        snprintf(clients[i].body, sizeof clients[i].body,
                 "{\"prompt\":\"%.*s\",\"max_tokens\":%d,\"seed\":%d,\"return_token_ids\":true}",
                 5 + 3 * (i % 10), "It was a dark and stormy night, and so on.", 10 + 7 * (i % 9),
                 i % 8);
        assert_int_equal(pthread_create(&threads[i], NULL, post, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        json_t *alone = http_json(shared.port, "/v1/completions", clients[i].body, 200);
        assert_non_null(clients[i].got);
        assert_true(json_equal(json_object_get(clients[i].got, "choices"),
                               json_object_get(alone, "choices")));
        json_decref(alone);
        json_decref(clients[i].got);
    }
}

/* The second time, pages of the first are found: the same text, and the usage tells. */
static void test_a_beginning_that_is_known_is_not_computed_again(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":\"All happy families are alike; each unhappy family is "
                               "unhappy in its own way.\",\"seed\":2}";
    json_t *first = http_json(shared.port, "/v1/completions", body, 200);
    json_t *again = http_json(shared.port, "/v1/completions", body, 200);
    const json_t *usage = json_object_get(again, "usage");
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    assert_true(json_equal(json_object_get(first, "choices"), json_object_get(again, "choices")));
    assert_true(json_integer_value(json_object_get(details, "cached_tokens")) >= 48);
    json_decref(first);
    json_decref(again);
}

static void test_models_health_and_metrics(void **state) {
    (void)state;
    answer a = http_get(shared.port, "/v1/models", NULL);
    assert_non_null(strstr(a.body, "\"id\":\"tiny\""));
    answer_free(&a);
    a = http_get(shared.port, "/v1/models/tiny", NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    a = http_get(shared.port, "/v1/models/huge", NULL);
    assert_int_equal(a.status, 404);
    answer_free(&a);
    a = http_get(shared.port, "/health", NULL);
    assert_string_equal(a.body, "{\"status\":\"ok\"}");
    answer_free(&a);
    assert_true(http_metric(shared.port, "weft_generated_tokens_total") >= 0);
    assert_true(http_metric(shared.port, "weft_cache_pages") > 0);
    assert_true(http_metric(shared.port, "weft_cache_pages_used") == 0);
    assert_true(http_metric(shared.port, "weft_connections") >= 1);
}

/* The text format 0.0.4: HELP and TYPE before a family's samples, names once, buckets that grow and end
 * in +Inf with the count. */
static void test_metrics_are_prometheus_text(void **state) {
    (void)state;
    json_decref(http_json(shared.port, "/v1/completions", "{\"prompt\":\"x\"}", 200));
    answer a = http_get(shared.port, "/metrics", NULL);
    assert_non_null(strstr(a.head, "text/plain; version=0.0.4"));
    char family[100] = "", type[20] = "", *rest = a.body;
    double bucket = 0;
    int families = 0, histograms = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        char name[100] = "", word[20] = "";
        if (sscanf(line, "# HELP %99s", name) == 1) {
            snprintf(family, sizeof family, "%s", name);
            families++;
            continue;
        }
        if (sscanf(line, "# TYPE %99s %19s", name, word) == 2) {
            assert_string_equal(name, family);
            snprintf(type, sizeof type, "%s", word);
            bucket = 0;
            continue;
        }
        size_t letters = strlen(family);
        const char *tail = line + letters, *value = strrchr(line, ' ');
        char *end;
        if (strncmp(line, family, letters) != 0 || !value) fail_msg("%s in %s", line, family);
        double number = strtod(value, &end);
        if (*end || end == value) fail_msg("no number: %s", line);
        if (strcmp(type, "histogram") != 0) {
            assert_true(*tail == ' ' || *tail == '{');
            if (strcmp(type, "counter") == 0) assert_non_null(strstr(family, "_total"));
            continue;
        }
        if (strncmp(tail, "_bucket{le=", 11) == 0) {
            assert_true(number >= bucket);
            bucket = number;
        } else if (strncmp(tail, "_count ", 7) == 0) {
            assert_true(number == bucket && number > 0);
            histograms++;
        }
    }
    assert_true(families > 10);
    assert_int_equal(histograms, 2);
    answer_free(&a);
}

static void test_the_key_is_asked_of_all_but_health_and_page(void **state) {
    (void)state;
    char key[512];
    snprintf(key, sizeof key, "%s", scratch_path("key"));
    file_write(key, "s3cret\n", 7);
    server s = server_start(RUN("--model", model, "--threads", "1", "--api-key-file", key));
    static const struct {
        const char *path, *headers;
        int status;
    } cases[] = {{"/v1/models", NULL, 401},
                 {"/v1/models", "Authorization: Bearer s3cre\r\n", 401},
                 {"/v1/models", "Authorization: Bearer s3crets3cret\r\n", 401},
                 {"/v1/models", "Authorization: Bearer \r\n", 401},
                 {"/v1/models", "Authorization: s3cret\r\n", 401},
                 {"/metrics", NULL, 401},
                 {"/metrics", "Authorization: Bearer s3cret\r\n", 200},
                 {"/v1/models", "authorization: bearer s3cret\r\n", 200},
                 {"/health", NULL, 200},
                 {"/", NULL, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        answer a = http_get(s.port, cases[i].path, cases[i].headers);
        if (a.status != cases[i].status) fail_msg("case %zu: status %d", i, a.status);
        answer_free(&a);
    }
    answer a = http_post(s.port, "/v1/completions", NULL, "{\"prompt\":\"x\"}", 14);
    assert_int_equal(a.status, 401);
    assert_non_null(strstr(a.body, "\"code\":\"invalid_api_key\""));
    answer_free(&a);
    server_stop(&s);
    file_write(key, "\n", 1);
    command_fails(2, RUN("serve", "--model", model, "--api-key-file", key), SAYS("key"));
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completions_are_what_generate_writes),
        cmocka_unit_test(test_n_and_lists_of_prompts_are_samples),
        cmocka_unit_test(test_chat_is_what_generate_writes_behind_the_template),
        cmocka_unit_test(test_a_template_of_ones_own),
        cmocka_unit_test(test_streams_have_the_whole_answer),
        cmocka_unit_test(test_logprobs_of_completions),
        cmocka_unit_test(test_echo_puts_the_prompt_before_its_text),
        cmocka_unit_test(test_answers_are_the_same_among_others),
        cmocka_unit_test(test_a_beginning_that_is_known_is_not_computed_again),
        cmocka_unit_test(test_models_health_and_metrics),
        cmocka_unit_test(test_metrics_are_prometheus_text),
        cmocka_unit_test(test_the_key_is_asked_of_all_but_health_and_page),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}

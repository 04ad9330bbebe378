/* Requests, templates, jobs and metrics on their own: what becomes of a body and of a conversation, who holds a job,
 * and what is counted. */
#include "base/clock.h"
#include "serve/http.h"
#include "serve/request.h"
#include "serve/worker.h"
#include "support/allocations.h"
#include "support/command.h"
#include "support/snapshot.h"
#include "support/test.h"
#include "support/train_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 64 };

TEST(test_a_body_becomes_its_struct) {
    static const char body[] =
        "{\"model\":\"m\",\"prompt\":[\"a\",[1,2]],\"max_tokens\":7,\"temperature\":0.5,"
        "\"top_p\":0.9,\"top_k\":3,\"min_p\":0.1,\"repetition_penalty\":1.1,\"seed\":12,"
        "\"stop\":[\"x\",\"yz\"],\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":"
        "true},"
        "\"logprobs\":4,\"return_token_ids\":true,\"user\":\"u\"}";
    weft_request r;
    weft_refusal why;
    assert_true(weft_request_parse(body, sizeof body - 1, WEFT_COMPLETIONS, TEXTS, &r, &why));
    assert_int_equal(why.status, 0);
    assert_string_equal(r.model, "m");
    assert_int_equal(r.n_prompts, 2);
    assert_string_equal(r.prompts[0].text, "a");
    assert_null(r.prompts[1].text);
    assert_int_equal(r.prompts[1].n_tokens, 2);
    assert_int_equal(r.prompts[1].tokens[1], 2);
    assert_int_equal(r.sampling.max_tokens, 7);
    assert_true(r.sampling.temperature == 0.5 && r.sampling.top_p == 0.9);
    assert_true(r.sampling.min_p == 0.1 && r.sampling.repetition_penalty == 1.1);
    assert_int_equal(r.sampling.top_k, 3);
    assert_int_equal(r.sampling.seed, 12);
    assert_int_equal(r.sampling.top_logprobs, 4);
    assert_int_equal(r.n_stops, 2);
    assert_string_equal(r.stops[1], "yz");
    assert_int_equal(r.n, 2);
    assert_true(r.has_seed && r.stream && r.include_usage && r.logprobs && r.token_ids && !r.echo);
    weft_request_free(&r);
}

TEST(test_what_is_missing_has_its_default) {
    static const char text[] = "{\"prompt\":\"\",\"seed\":null,\"stop\":null,\"logprobs\":null}";
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    weft_request r;
    weft_refusal why;
    assert_true(weft_request_parse(text, sizeof text - 1, WEFT_COMPLETIONS, TEXTS, &r, &why));
    assert_int_equal(r.sampling.max_tokens, 16);
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1 && !r.has_seed && !r.logprobs);
    weft_request_free(&r);
    assert_true(weft_request_parse(chat, sizeof chat - 1, WEFT_CHAT, TEXTS, &r, &why));
    assert_int_equal(r.sampling.max_tokens, WEFT_REQUEST_TOKENS);
    assert_string_equal(r.messages[0].role, "user");
    weft_request_free(&r);
}

/* Bodies with bytes changed, dropped and doubled at random: whatever comes of it, it is a request or
 * a refusal with a status, and a sanitizer has nothing to say. */
TEST(test_any_bytes_at_all) {
    static const char *const bodies[] = {
        "{\"prompt\":[\"Once\",[1,2,3]],\"max_tokens\":5,\"stop\":[\"a\",\"b\"],\"n\":2,\"seed\":"
        "3}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u00e9\"}]},"
        "{\"role\":\"assistant\",\"content\":null}],\"logprobs\":true,\"top_logprobs\":2}"};
    static const char letters[] = "{}[]\",:0123456789.eE+-\\u \n\t\xff\xc3ntf";
    int taken = 0, rounds = train_long() ? 2000000 : 20000;
    unsigned dice = 1;
    for (int round = 0; round < rounds; round++) {
        char text[512];
        size_t bytes = strlen(bodies[round % 2]);
        memcpy(text, bodies[round % 2], bytes);
        for (int change = rand_r(&dice) % 4; change >= 0; change--) {
            size_t at = (size_t)rand_r(&dice) % bytes;
            int kind = rand_r(&dice) % 4;
            if (kind == 0 && bytes > 1) {
                memmove(text + at, text + at + 1, bytes - at - 1);
                bytes--;
            } else if (kind == 1 && bytes < sizeof text) {
                memmove(text + at + 1, text + at, bytes - at);
                bytes++;
            } else {
                text[at] = letters[(size_t)rand_r(&dice) % (sizeof letters - 1)];
            }
        }
        char *exact = malloc(bytes); /* a byte read behind it is seen by a sanitizer */
        memcpy(exact, text, bytes);
        weft_request r;
        weft_refusal why;
        bool good = weft_request_parse(exact, bytes, round / 2 % 2 ? WEFT_CHAT : WEFT_COMPLETIONS,
                                       TEXTS, &r, &why);
        taken += good;
        if (good) {
            assert_true(r.n >= 1 && r.n <= TEXTS);
            weft_request_free(&r);
        } else {
            assert_int_equal(why.status, 400);
            char *json = weft_refusal_json(&why);
            assert_non_null(json);
            free(json);
        }
        free(exact);
    }
    assert_true(taken > rounds / 1000);
}

/* What the guide's table says of a member of OpenAI's interface: "ignored" or "refused". */
static bool guide_ignores(const char *guide, const char *name) {
    char row[80];
    snprintf(row, sizeof row, "\n| `%s`", name);
    const char *at = strstr(guide, row), *cell = at ? strchr(at + 3, '|') : NULL;
    bool ignored = cell && strncmp(cell, "| ignored", 9) == 0;
    if (!ignored && !(cell && strncmp(cell, "| refused", 9) == 0))
        fail_msg("docs/guide/serving.md does not say what becomes of '%s'", name);
    return ignored;
}

/* Every member of OpenAI's interface that weft does not have, with a value that asks for something. */
TEST(test_what_is_ignored_or_refused_is_in_the_guide) {
    static const struct {
        const char *name, *value;
        bool chat;
    } cases[] = {{"user", "\"u\"", false},
                 {"safety_identifier", "\"u\"", true},
                 {"metadata", "{\"a\":\"b\"}", true},
                 {"store", "true", true},
                 {"service_tier", "\"flex\"", true},
                 {"prompt_cache_key", "\"k\"", true},
                 {"prompt_cache_retention", "\"24h\"", true},
                 {"parallel_tool_calls", "true", true},
                 {"name", "\"Anna\"", true},
                 {"best_of", "2", false},
                 {"suffix", "\"s\"", false},
                 {"presence_penalty", "0.5", false},
                 {"frequency_penalty", "0.5", true},
                 {"logit_bias", "{\"5\":1}", true},
                 {"response_format", "{\"type\":\"json_object\"}", true},
                 {"modalities", "[\"audio\"]", true},
                 {"audio", "{\"voice\":\"a\"}", true},
                 {"tools", "[{}]", true},
                 {"tool_choice", "\"required\"", true},
                 {"functions", "[{}]", true},
                 {"function_call", "{\"name\":\"f\"}", true},
                 {"prediction", "{\"type\":\"content\"}", true},
                 {"reasoning_effort", "\"low\"", true},
                 {"verbosity", "\"low\"", true},
                 {"web_search_options", "{\"a\":1}", true}};
    (void)state;
    char *guide = file_read("docs/guide/serving.md", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[200], member[100];
        weft_request r;
        weft_refusal why;
        bool in_message = strcmp(cases[i].name, "name") == 0;
        snprintf(member, sizeof member, ",\"%s\":%s", cases[i].name, cases[i].value);
        int bytes = cases[i].chat
                        ? snprintf(body, sizeof body,
                                   "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"%s}]%s}",
                                   in_message ? member : "", in_message ? "" : member)
                        : snprintf(body, sizeof body, "{\"prompt\":\"x\"%s}", member);
        bool taken = weft_request_parse(
            body, (size_t)bytes, cases[i].chat ? WEFT_CHAT : WEFT_COMPLETIONS, TEXTS, &r, &why);
        if (taken) weft_request_free(&r);
        if (taken != guide_ignores(guide, cases[i].name))
            fail_msg("'%s' is %s, the guide says otherwise", cases[i].name,
                     taken ? "taken" : "refused");
        if (!taken) assert_string_equal(why.param, cases[i].name);
    }
    free(guide);
}

static void check_tokens(const char *template_text, const weft_message *messages, int64_t count,
                         const char *want, const char *stop) {
    weft_tokenizer *t;
    weft_encoder *e;
    weft_template *m;
    const int32_t *tokens;
    int32_t *got;
    int64_t n, n_got;
    assert_int_equal(weft_tokenizer_open("tests/vectors/tokenizer.own.json", &t), WEFT_OK);
    assert_int_equal(weft_encoder_open(t, &e), WEFT_OK);
    assert_int_equal(weft_template_open(template_text, t, &m), WEFT_OK);
    assert_int_equal(weft_template_encode(m, e, messages, count, &got, &n_got), WEFT_OK);
    assert_int_equal(weft_encode(e, want, strlen(want), true, &tokens, &n), WEFT_OK);
    assert_int_equal(n_got, n);
    assert_memory_equal(got, tokens, (size_t)n * sizeof *tokens);
    if (stop)
        assert_string_equal(weft_template_stop(m), stop);
    else
        assert_null(weft_template_stop(m));
    free(got);
    weft_template_close(m);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* Text is encoded as if it were written in one piece; special tokens of the template are tokens. */
TEST(test_a_conversation_becomes_its_tokens) {
    char hello[] = "hello there", reply[] = "the program";
    const weft_message messages[] = {{"user", hello, sizeof hello - 1},
                                     {"assistant", reply, sizeof reply - 1}};
    check_tokens("{role}: {content}\\n", messages, 2,
                 "user: hello there\nassistant: the program\nassistant: ", "\n");
    check_tokens("<|endoftext|>{role}\\n{content}<|endoftext|>\\n", messages, 1,
                 "<|endoftext|>user\nhello there<|endoftext|>\n<|endoftext|>assistant\n",
                 "<|endoftext|>");
    check_tokens("{content}", messages, 1, "hello there", NULL);
    check_tokens("{role}{content}{role}", messages, 1, "userhello thereuserassistant", NULL);
}

/* Each role as it is written, with what stands before a conversation, in a system message's place, and before an
 * answer. The tokenizer's text "<|endoftext|>" is a token of the template's. */
TEST(test_roles_have_forms_of_their_own) {
    static const char form[] =
        "{begin}<|endoftext|>{default}(plain)\\n{system}<<{content|trim}>>\\n{first}{content|"
        "rstrip}]"
        "{user}[{content|lstrip}]{assistant}={content}<|endoftext|>{answer}=";
    char rule[] = " be brief ", ask[] = " hello\n", reply[] = " the program ",
         more[] = "\tand then ";
    const weft_message talk[] = {{"system", rule, sizeof rule - 1},
                                 {"user", ask, sizeof ask - 1},
                                 {"assistant", reply, sizeof reply - 1},
                                 {"user", more, sizeof more - 1}};
    check_tokens(form, talk, 4,
                 "<|endoftext|><<be brief>>\n hello]= the program <|endoftext|>[and then ]=",
                 "<|endoftext|>");
    check_tokens(
        form, talk + 1, 3,
        "<|endoftext|>(plain)\n[hello\n]= the program <|endoftext|>[and then ]=", "<|endoftext|>");
    check_tokens("{begin}{user}Q:{content}\\n{assistant}A:{content}\\n{answer}A:", talk + 1, 1,
                 "Q: hello\n\nA:", "\n");
}

/* What a template leaves out of contents: reasoning up to its last end, and what is before an answer. */
TEST(test_contents_are_filtered) {
    static const char *const cases[][3] = {{"think", "\na</think>b</think>\n\n c ", " c "},
                                           {"think", "\nthe end", "\nthe end"},
                                           {"cut", "a</think>\n c ", "\n c "},
                                           {"cut|lines", "a</think>\n c ", " c "},
                                           {"lines", "\n\n the", " the"},
                                           {"think|trim", "a</think> \n c ", "c"},
                                           {"trim", " \t\n ", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char form[64], text[64], want[64];
        snprintf(form, sizeof form, "[{content|%s}]", cases[i][0]);
        snprintf(text, sizeof text, "%s", cases[i][1]);
        snprintf(want, sizeof want, "[%s][", cases[i][2]);
        const weft_message message = {"user", text, strlen(text)};
        check_tokens(form, &message, 1, want, "]");
    }
}

/* What a template has no form for is refused in words, and so is a template that makes no sense: what is wrong, and
 * what to do about it. */
TEST(test_messages_without_a_form_are_refused) {
#define IN_IT "CONFIG_CHAT_TEMPLATE must have {content} in it, as in \"{role}: {content}\\n\""
#define BOTH "CONFIG_CHAT_TEMPLATE that begins with {begin} must have {user} and {assistant} in it"
    static const char *const wrong[][2] = {
        {"{begin}{user}{content}", BOTH},
        {"{begin}{assistant}{content}", IN_IT},
        {"{begin}{user}x{assistant}{content}", IN_IT},
        {"{role}", IN_IT},
        {"{content|shout}", IN_IT},
        {"{content}{content}", "CONFIG_CHAT_TEMPLATE must have {content} once, not twice"},
        {"{begin}{content}{user}{content}{assistant}{content}",
         "CONFIG_CHAT_TEMPLATE has {content} behind {begin}, where there is no message"}};
    weft_tokenizer *t;
    weft_encoder *e;
    weft_template *m;
    int32_t *got;
    int64_t count;
    char text[] = "a", many[65 * 6 + 16] = "{content}";
    const weft_message talk[] = {{"user", text, 1}, {"system", text, 1}};
    assert_int_equal(weft_tokenizer_open("bytes", &t), WEFT_OK);
    assert_int_equal(weft_encoder_open(t, &e), WEFT_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(weft_template_open(wrong[i][0], t, &m), WEFT_EINPUT);
        assert_string_equal(weft_error_message(), wrong[i][1]);
    }
    for (int i = 1; i < 64; i++)
        strcat(many, "{role}");
    assert_int_equal(weft_template_open(many, t, &m), WEFT_OK);
    weft_template_close(m);
    strcat(many, "{role}");
    assert_int_equal(weft_template_open(many, t, &m), WEFT_EINPUT);
    assert_string_equal(weft_error_message(),
                        "CONFIG_CHAT_TEMPLATE has more than 64 parts; shorten it");
    assert_int_equal(weft_template_open("{begin}{user}{content}{assistant}{content}", t, &m),
                     WEFT_OK);
    assert_int_equal(weft_template_encode(m, e, talk + 1, 1, &got, &count), WEFT_EINPUT);
    assert_string_equal(weft_error_message(), "this model's chat template has no system message; "
                                              "put it into the first message of the user");
    weft_template_close(m);
    assert_int_equal(
        weft_template_open("{begin}{system}{content}{user}{content}{assistant}{content}", t, &m),
        WEFT_OK);
    assert_int_equal(weft_template_encode(m, e, talk, 2, &got, &count), WEFT_EINPUT);
    assert_string_equal(weft_error_message(), "this model's chat template has a system message at "
                                              "the beginning alone; it is message 2 here");
    weft_template_close(m);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* What people write is text, even if it is a special token's name. */
TEST(test_nobody_can_write_special_tokens) {
    weft_tokenizer *t;
    weft_encoder *e;
    weft_template *m;
    int32_t *got;
    int64_t count, ends = 0;
    char text[] = "a<|endoftext|>b";
    const weft_message message = {"user", text, sizeof text - 1};
    assert_int_equal(weft_tokenizer_open("tests/vectors/tokenizer.own.json", &t), WEFT_OK);
    assert_int_equal(weft_encoder_open(t, &e), WEFT_OK);
    assert_int_equal(weft_template_open("{role}\\n{content}<|endoftext|>", t, &m), WEFT_OK);
    assert_int_equal(weft_template_encode(m, e, &message, 1, &got, &count), WEFT_OK);
    for (int64_t i = 0; i < count; i++)
        ends += got[i] == weft_tokenizer_end(t);
    assert_int_equal(ends, 1);
    free(got);
    weft_template_close(m);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* A page from elsewhere may have any name but these. */
TEST(test_names_of_this_machine) {
    static const char *const local[] = {
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.9.8.7",
        "localhost",
        "LocalHost:80",
        "page.localhost",
        "page.localhost:1",
        "127.0.0.1:80",
        "[::1]",
        "[::1]:8000",
        "::1",
        "localhost:",
        "a.b.LOCALHOST",
    };
    static const char *const others[] = {
        "",           "evil!",        "abcde",     "abcdefghi",     "localhost.evil.org",
        "xlocalhost", ".localhost",   "localhos",  "localhost:80x", "127.0.0.1.evil.org",
        "127.0.0.x",  "127.0.0.1:8a", "128.0.0.1", "12.0.0.1",      "[::1]x",
        "[::1]:8a",   "[::2]",        "[::1",      "::2",           "::1:80",
        "localhost ", "evil.local",
    };
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        if (!weft_http_is_local(local[i])) fail_msg("'%s' is this machine", local[i]);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (weft_http_is_local(others[i])) fail_msg("'%s' may be another machine", others[i]);
}

TEST(test_keys_are_compared_whole) {
    assert_true(weft_key_matches("abc", "Bearer abc"));
    assert_true(weft_key_matches("abc", "bearer abc"));
    static const char *const wrong[] = {NULL,         "",          "abc",         "Bearer",
                                        "Bearer ",    "Bearer ab", "Bearer abcd", "Bearer abd",
                                        "Bearer ABC", "Basic abc", "Bearer  abc", "Bearer abcabc",
                                        "Bearer abc "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(weft_key_matches("abc", wrong[i]));
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The medians of the seconds that many comparisons of the key with each of two headers take, in turn: a machine's pace
 * changes. */
static void compare_seconds(const char *key, const char *const headers[2], double out[2]) {
    enum { TIMES = 101, EACH = 20 };
    double seconds[2][TIMES];
    for (int i = 0; i < 2 * TIMES; i++) {
        double start = weft_clock();
        for (int k = 0; k < EACH; k++)
            assert_false(weft_key_matches(key, headers[i % 2]));
        seconds[i % 2][i / 2] = weft_clock() - start;
    }
    for (int i = 0; i < 2; i++) {
        qsort(seconds[i], TIMES, sizeof *seconds[i], by_size);
        out[i] = seconds[i][TIMES / 2];
    }
}

/* A comparison that ended at the first wrong letter would take a four-thousandth of the time where that
 * is the first one, and tell letter by letter what the key is. */
TEST(test_a_wrong_key_takes_its_time_wherever_it_is_wrong) {
    enum { LETTERS = 4000 };
    static char key[LETTERS + 1], first[LETTERS + 8], last[LETTERS + 8];
    memset(key, 'k', LETTERS);
    snprintf(first, sizeof first, "Bearer %s", key);
    snprintf(last, sizeof last, "Bearer %s", key);
    first[7] = 'x';
    last[7 + LETTERS - 1] = 'x';
    double took[2];
    compare_seconds(key, (const char *const[]){first, last}, took);
    if (!(took[0] > took[1] / 3 && took[1] > took[0] / 3))
        fail_msg("wrong at the first letter: %g s; at the last: %g s", took[0], took[1]);
}

static void check_refused(const char *body, weft_endpoint endpoint, const char *word) {
    weft_request r;
    weft_refusal why;
    assert_false(weft_request_parse(body, strlen(body), endpoint, TEXTS, &r, &why));
    assert_int_equal(why.status, 400);
    if (!strstr(why.message, word)) fail_msg("%s: %s", body, why.message);
}

/* A model of bytes may well write one, and a conversation sends it back. */
TEST(test_a_zero_is_a_letter_of_a_prompt) {
    static const char text[] = "{\"prompt\":\"a\\u0000b\"}";
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}";
    weft_request r;
    weft_refusal why;
    assert_true(weft_request_parse(text, sizeof text - 1, WEFT_COMPLETIONS, TEXTS, &r, &why));
    assert_int_equal(r.prompts[0].bytes, 3);
    assert_memory_equal(r.prompts[0].text, "a\0b", 3);
    weft_request_free(&r);
    assert_true(weft_request_parse(chat, sizeof chat - 1, WEFT_CHAT, TEXTS, &r, &why));
    assert_int_equal(r.messages[0].bytes, 3);
    assert_memory_equal(r.messages[0].content, "a\0b", 3);
    weft_request_free(&r);
    check_refused("{\"prompt\":\"a\",\"stop\":\"\\u0000\"}", WEFT_COMPLETIONS, "'stop'");
    check_refused("{\"prompt\":\"a\",\"stop\":[\"x\",\"y\\u0000\"]}", WEFT_COMPLETIONS, "'stop'");
    check_refused("{\"prompt\":\"a\",\"stop\":\"\"}", WEFT_COMPLETIONS, "'stop'");
}

/* Every figure under its own name, times up to and with a bucket's bound in it, and all of them in +Inf. */
TEST(test_metrics_count_what_they_say) {
    static const double seconds[] = {0.004, 0.005, 0.0051, 2.5, 29, 31, 4000};
    static const struct {
        const char *bound;
        int times;
    } buckets[] = {{"0.005", 2}, {"0.01", 3}, {"0.025", 3}, {"0.05", 3}, {"0.1", 3},
                   {"0.25", 3},  {"0.5", 3},  {"1", 3},     {"2.5", 4},  {"5", 4},
                   {"10", 4},    {"30", 5},   {"+Inf", 7}};
    enum { TIMES = sizeof seconds / sizeof seconds[0] };
    const char *const names[] = {"a\"b\\c\nd", "e"};
    const weft_server_metrics_now now = {.generator = {.prompt_tokens = 101,
                                                       .shared_tokens = 102,
                                                       .sampled_tokens = 103,
                                                       .drafted_tokens = 104,
                                                       .accepted_tokens = 105,
                                                       .set_back = 106,
                                                       .running = 107,
                                                       .pages = 108,
                                                       .pages_used = 109,
                                                       .pages_kept = 110,
                                                       .cache_bytes = 111},
                                         .queued = 112,
                                         .connections = 113,
                                         .models = names,
                                         .n_models = 2};
    static const char *const lines[] = {"weft_prompt_tokens_total 101",
                                        "weft_shared_tokens_total 102",
                                        "weft_generated_tokens_total 103",
                                        "weft_drafted_tokens_total 104",
                                        "weft_accepted_tokens_total 105",
                                        "weft_set_back_total 106",
                                        "weft_sequences_running 107",
                                        "weft_cache_pages 108",
                                        "weft_cache_pages_used 109",
                                        "weft_cache_pages_kept 110",
                                        "weft_cache_bytes 111",
                                        "weft_sequences_waiting 112",
                                        "weft_connections 113",
                                        "weft_requests_total{path=\"/health\",status=\"599\"} 7",
                                        ",model=\"a\\\"b\\\\c\\nd\"} 1",
                                        ",model=\"e\"} 1",
                                        "weft_first_token_seconds_count 0"};
    weft_server_metrics *m;
    char want[2048];
    double sum = 0;
    int at = 0;
    assert_int_equal(weft_server_metrics_create(&m), WEFT_OK);
    for (int i = 0; i < TIMES; i++) {
        weft_server_metrics_request(m, WEFT_PATH_HEALTH, 599, seconds[i]);
        sum += seconds[i];
    }
    for (size_t i = 0; i < sizeof buckets / sizeof buckets[0]; i++)
        at += snprintf(want + at, sizeof want - (size_t)at,
                       "weft_request_seconds_bucket{le=\"%s\"} %d\n", buckets[i].bound,
                       buckets[i].times);
    snprintf(want + at, sizeof want - (size_t)at,
             "weft_request_seconds_sum %.6f\nweft_request_seconds_count %d\n", sum, TIMES);
    char *text = weft_server_metrics_text(m, &now);
    assert_non_null(text);
    if (!strstr(text, want)) fail_msg("not there:\n%s\nin:\n%s", want, text);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *found = strstr(text, lines[i]);
        if (!found || found[strlen(lines[i])] != '\n')
            fail_msg("%s is not in:\n%s", lines[i], text);
    }
    snapshot_expect("metrics", text);
    free(text);
    /* What is no status is no request that was answered, and was still timed. */
    weft_server_metrics_request(m, WEFT_PATH_CHAT, 0, 1);
    weft_server_metrics_request(m, WEFT_PATH_CHAT, 600, 1);
    text = weft_server_metrics_text(m, &now);
    assert_null(strstr(text, "path=\"/v1/chat/completions\""));
    assert_non_null(strstr(text, "weft_request_seconds_count 9\n"));
    free(text);
    /* The last job counts a tenth. */
    assert_true(weft_server_metrics_job_seconds(m) == 0);
    weft_server_metrics_job(m, 10);
    assert_float_equal(weft_server_metrics_job_seconds(m), 10, 1e-9);
    weft_server_metrics_job(m, 20);
    assert_float_equal(weft_server_metrics_job_seconds(m), 11, 1e-9);
    weft_server_metrics_destroy(m);
}

enum { THREADS = 4, TURNS = 500000 };

static void *count_much(void *metrics) {
    for (int i = 0; i < TURNS; i++)
        weft_server_metrics_request(metrics, WEFT_PATH_PAGE, 200, 1);
    for (int i = 0; i < TURNS; i++)
        weft_server_metrics_first_token(metrics, 1);
    return NULL;
}

/* By any thread. */
TEST(test_metrics_of_several_threads_add_up) {
    static const char *const lines[] = {
        "weft_requests_total{path=\"/\",status=\"200\"} 2000000\n",
        "weft_request_seconds_sum 2000000.000000\nweft_request_seconds_count 2000000\n",
        "weft_first_token_seconds_sum 2000000.000000\nweft_first_token_seconds_count 2000000\n"};
    weft_server_metrics *m;
    pthread_t threads[THREADS];
    assert_int_equal(weft_server_metrics_create(&m), WEFT_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_much, m), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = weft_server_metrics_text(m, &(weft_server_metrics_now){0});
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(text, lines[i])) fail_msg("%s is not in:\n%s", lines[i], text);
    free(text);
    weft_server_metrics_destroy(m);
}

#ifdef COUNTS_ALLOCATIONS
/* A request and its job, held and let go of: the status that the client is told, 0: none. */
static int make_job(const char *body, weft_endpoint endpoint) {
    weft_request r;
    weft_refusal why;
    if (!weft_request_parse(body, strlen(body), endpoint, TEXTS, &r, &why)) return why.status;
    weft_job *j = weft_job_create(&r, NULL, "m");
    if (!j) return 503;
    j->choices[1].tokens = malloc(100);
    weft_job_hold(j);
    weft_job_release(j);
    assert_int_equal(j->n_choices, 2 * j->request.n_prompts); /* it is still held */
    weft_job_release(j);
    return 0;
}

/* Whichever allocation fails, the client is told to come again, and nothing is left. */
TEST(test_requests_without_memory_leave_nothing) {
    static const struct {
        const char *body;
        weft_endpoint endpoint;
    } cases[] = {
        {"{\"prompt\":[\"a\",[1,2,3]],\"n\":2,\"stop\":[\"x\"],\"logprobs\":2}", WEFT_COMPLETIONS},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\","
         "\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}],\"n\":2}",
         WEFT_CHAT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(make_job(cases[i].body, cases[i].endpoint), 0);
        int64_t before = atomic_load(&live), nth = 0, refused = 0;
        for (bool all = false; !all;) {
            failing = ++nth;
            int status = make_job(cases[i].body, cases[i].endpoint);
            all = failing > 0;
            failing = 0;
            /* The parser has one answer to everything that it cannot read. */
            assert_true(status == 0 || status == 503 || status == 400);
            refused += status == 503;
            if (atomic_load(&live) != before)
                fail_msg("case %zu, allocation %lld: %lld blocks are left", i, (long long)nth,
                         (long long)(atomic_load(&live) - before));
            assert_true(!all || status == 0);
        }
        assert_true(refused >= 4);
    }
}

/* Of templates and prompts. */
TEST(test_templates_without_memory_leave_nothing) {
    weft_tokenizer *t;
    weft_encoder *e;
    char text[] = "a b c";
    const weft_message talk[] = {{"user", text, 5}, {"assistant", text, 5}};
    assert_int_equal(weft_tokenizer_open("tests/vectors/tokenizer.own.json", &t), WEFT_OK);
    for (int64_t nth = 0, before = 0, all = 0; !all; nth++) {
        weft_template *m = NULL;
        int32_t *tokens = NULL;
        int64_t count;
        failing = nth;
        weft_status status = weft_encoder_open(t, &e);
        if (status == WEFT_OK)
            status = weft_template_open("{role}: {content}<|endoftext|>\n", t, &m);
        if (status == WEFT_OK) status = weft_template_encode(m, e, talk, 2, &tokens, &count);
        all = nth > 0 && failing > 0;
        failing = 0;
        if (status != (nth == 0 || all ? WEFT_OK : WEFT_ENOMEM))
            fail_msg("allocation %lld: status %d: %s", (long long)nth, (int)status,
                     weft_error_message());
        free(tokens);
        weft_template_close(m);
        weft_encoder_close(e);
        if (nth == 0) before = atomic_load(&live);
        assert_int_equal(atomic_load(&live), before);
        assert_true(!all || nth > 8);
    }
    weft_tokenizer_close(t);
}
#endif

RUN_TESTS(NULL, NULL)

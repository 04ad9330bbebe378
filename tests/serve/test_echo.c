/* `echo` with `logprobs`: a prompt's own log-probabilities over HTTP are those of `weft eval`, and of the text
 * where it was made; in lists as long as the prompt, whole or as a stream. */
#include "serve/worker.h"
#include "support/command.h"
#include "support/http.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char model[512];
static server shared;

static int start_shared(void **state) {
    (void)state;
    shared = server_open(model, sizeof model, RUN("--sequences", "4"));
    return 0;
}

static int stop_shared(void **state) {
    (void)state;
    server_close(&shared);
    return 0;
}

static const json_t *list(const json_t *of, const char *name) {
    return json_object_get(json_object_get(of, "logprobs"), name);
}

/* Item `i`, from the end where it is below 0. */
static double number(const json_t *values, int i) {
    size_t n = json_array_size(values);
    const json_t *value = json_array_get(values, i < 0 ? n - (size_t)-i : (size_t)i);
    if (!json_is_number(value)) fail_msg("item %d of %zu is not a number", i, n);
    return json_number_value(value);
}

/* As lm-evaluation-harness asks for them: the choice's tokens are those behind the context's, and one token
 * is made that counts for nothing; or none is, and nothing is left out. */
static void test_choices_are_as_likely_as_in_a_suite(void **state) {
    (void)state;
    static const char *const contexts[] = {"The old man went to", "2 + 2 ="};
    static const char *const choices[][2] = {{" the sea", " a hill, and"}, {" 4", " 5"}};
    FILE *file = fopen(scratch_path("suite.jsonl"), "w");
    for (int q = 0; q < 2; q++)
        fprintf(file, "{\"context\": \"%s\", \"choices\": [\"%s\", \"%s\"], \"answer\": 0}\n",
                contexts[q], choices[q][0], choices[q][1]);
    assert_int_equal(fclose(file), 0);
    const char *details = scratch_path("details.jsonl");
    command_succeeds(
        RUN("eval", "--model", model, "--suite", scratch_path("suite.jsonl"), "--details", details),
        NULL);
    char *lines = file_read(details, NULL), *line = lines;
    for (int q = 0; q < 2; q++, line = strchr(line, '\n') + 1) {
        json_t *told = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *want = json_object_get(told, "loglikelihoods");
        for (int most = 0; most < 2; most++) {
            json_t *got =
                http_complete(shared.port,
                              "{\"prompt\":[\"%s%s\",\"%s%s\"],\"temperature\":0,\"echo\":true,"
                              "\"logprobs\":1,\"max_tokens\":%d}",
                              contexts[q], choices[q][0], contexts[q], choices[q][1], most);
            for (int i = 0; i < 2; i++) {
                const json_t *values = list(answer_choice(got, (size_t)i), "token_logprobs");
                size_t first = strlen(contexts[q]), last = first + strlen(choices[q][i]);
                double sum = 0;
                assert_int_equal(json_array_size(values), last + (size_t)most);
                for (size_t t = first; t < last; t++)
                    sum += number(values, (int)t);
                assert_true(fabs(sum - number(want, i)) < 1e-4);
            }
            json_decref(got);
        }
        json_decref(told);
    }
    free(lines);
}

/* What was said of tokens when they were made is said of them as a prompt, to the last bit; the lists have
 * one entry for each token, and nothing is known of the first. */
static void test_a_text_that_was_made_is_told_again(void **state) {
    (void)state;
    json_t *made =
        http_complete(shared.port, "{\"prompt\":\"On\\u00e9\",\"max_tokens\":20,\"seed\":5,"
                                   "\"logprobs\":3,\"return_token_ids\":true}");
    json_t *ids =
        json_copy((json_t *)(uintptr_t)json_object_get(answer_choice(made, 0), "prompt_token_ids"));
    json_array_extend(ids,
                      (json_t *)(uintptr_t)json_object_get(answer_choice(made, 0), "token_ids"));
    char *prompt = json_dumps(ids, 0);
    json_t *again = http_complete(shared.port,
                                  "{\"prompt\":%s,\"max_tokens\":0,\"echo\":true,\"logprobs\":3,"
                                  "\"return_token_ids\":true}",
                                  prompt);
    const json_t *c = answer_choice(again, 0), *values = list(c, "token_logprobs");
    assert_int_equal(json_array_size(values), 24);
    assert_true(json_is_null(json_array_get(values, 0)));
    assert_true(json_is_null(json_array_get(list(c, "top_logprobs"), 0)));
    for (size_t i = 0; i < 20; i++) {
        static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs",
                                            "top_token_ids"};
        for (size_t k = 0; k < 4; k++)
            assert_true(json_equal(json_array_get(list(c, names[k]), 4 + i),
                                   json_array_get(list(answer_choice(made, 0), names[k]), i)));
        /* Three letters of two, one and one bytes come before. */
        assert_int_equal(number(list(c, "text_offset"), (int)(4 + i)),
                         3 + number(list(answer_choice(made, 0), "text_offset"), (int)i));
    }
    assert_int_equal(json_array_size(json_object_get(c, "token_ids")), 0);
    assert_true(json_equal(json_object_get(c, "prompt_token_ids"), ids));
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(again, "usage"), "completion_tokens")),
        0);
    free(prompt);
    json_decref(ids);
    json_decref(made);
    json_decref(again);
}

/* The text is the one without log-probabilities, and a stream has the lists of the whole answer, of the second text
 * too, whose prompt is still being told when the first has begun. */
static void test_streams_have_the_prompts_log_probabilities(void **state) {
    (void)state;
    static const char common[] =
        "\"prompt\":\"All happy families are alike; each unhappy family is "
        "unhappy in its own way.\",\"max_tokens\":9,\"seed\":3,\"echo\":"
        "true,\"n\":2";
    json_t *plain = http_complete(shared.port, "{%s}", common);
    json_t *whole = http_complete(shared.port, "{%s,\"logprobs\":2}", common);
    char body[400];
    snprintf(body, sizeof body, "{%s,\"logprobs\":2,\"stream\":true}", common);
    json_t *joined = http_stream(shared.port, "/v1/completions", body);
    for (size_t i = 0; i < 2; i++) {
        const json_t *of = answer_choice(whole, i);
        assert_true(json_equal(json_object_get(answer_choice(plain, i), "text"),
                               json_object_get(of, "text")));
        assert_true(json_equal(answer_choice(joined, i), of));
        assert_int_equal(json_array_size(list(of, "token_logprobs")), 76 + 9);
        assert_int_equal(number(list(of, "text_offset"), 76), 76);
    }
    json_decref(joined);
    json_decref(plain);
    json_decref(whole);
}

/* Nothing is sent of a text whose prompt is not told to its end, though another of the request has begun. */
static void test_a_prompt_is_told_whole(void **state) {
    (void)state;
    static const char body[] =
        "{\"prompt\":[72,105,33],\"echo\":true,\"logprobs\":0,\"max_tokens\":0,"
        "\"stream\":true}";
    weft_request r;
    weft_refusal why;
    weft_tokenizer *t;
    assert_int_equal(weft_tokenizer_open("tests/vectors/tokenizer.own.json", &t), WEFT_OK);
    assert_true(weft_request_parse(body, sizeof body - 1, WEFT_COMPLETIONS, 4, &r, &why));
    weft_job *j = weft_job_create(&r, t, "m");
    j->choices[0].tokens = calloc(3, sizeof(weft_sampled));
    for (int64_t told = 1; told <= 3; told++) {
        j->choices[0].tokens[told - 1].token = j->request.prompts[0].tokens[told - 1];
        j->choices[0].n_told = j->choices[0].n_tokens = told;
        char *events = weft_answer_events(j);
        assert_int_equal(events[0] != 0, told == 3);
        free(events);
    }
    weft_job_release(j);
    weft_tokenizer_close(t);
}

/* Two prompts of 250 tokens, 128 texts of each, and 20 alternatives for each token. */
static void test_an_answer_is_not_larger_than_memory(void **state) {
    (void)state;
    char body[700];
    snprintf(body, sizeof body,
             "{\"prompt\":[\"%0250d\",\"%0250d\"],\"n\":128,\"logprobs\":20,"
             "\"echo\":true,\"max_tokens\":0}",
             1, 2);
    json_t *error = http_json(shared.port, "/v1/completions", body, 400);
    const char *message =
        json_string_value(json_object_get(json_object_get(error, "error"), "message"));
    assert_non_null(strstr(message, "1344000 numbers"));
    json_decref(error);
}

/* A prompt as long as the context has room for none; the token that ends a text stands in the lists, so that
 * a client that leaves the last one out leaves out none of the prompt. */
static void test_the_ends_of_context_and_text(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path("ends"));
    command_succeeds(RUN("init", "-o", "N_LAYER=1", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o",
                         "CONTEXT=8", "-o", "VOCAB_SIZE=700", "-o",
                         "TOKENIZER=tests/vectors/tokenizer.own.json", "--out", path),
                     NULL);
    server s = server_start(RUN("--model", path, "--threads", "1"));
    json_t *full =
        http_complete(s.port, "{\"prompt\":[1,2,3,4,5,6,7,8],\"max_tokens\":0,\"echo\":true,"
                              "\"logprobs\":0}");
    assert_int_equal(json_array_size(list(answer_choice(full, 0), "token_logprobs")), 8);
    json_decref(full);
    int ended = 0;
    for (int seed = 0; !ended && seed < 40; seed++) {
        json_t *got =
            http_complete(s.port,
                          "{\"prompt\":[1,2,3],\"max_tokens\":1,\"echo\":true,\"logprobs\":1,"
                          "\"n\":100,\"seed\":%d,\"return_token_ids\":true}",
                          seed);
        for (size_t i = 0; i < 100; i++) {
            const json_t *c = answer_choice(got, i);
            const char *finish = json_string_value(json_object_get(c, "finish_reason"));
            bool stop = strcmp(finish, "stop") == 0;
            ended += stop;
            assert_int_equal(json_array_size(list(c, "token_logprobs")), 4);
            assert_int_equal(json_array_size(json_object_get(c, "token_ids")), !stop);
            assert_true(number(list(c, "token_logprobs"), -1) < 0);
        }
        json_decref(got);
    }
    assert_true(ended > 0);
    server_stop(&s);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_as_likely_as_in_a_suite),
        cmocka_unit_test(test_a_text_that_was_made_is_told_again),
        cmocka_unit_test(test_streams_have_the_prompts_log_probabilities),
        cmocka_unit_test(test_a_prompt_is_told_whole),
        cmocka_unit_test(test_an_answer_is_not_larger_than_memory),
        cmocka_unit_test(test_the_ends_of_context_and_text),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}

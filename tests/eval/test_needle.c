/* `weft eval --needle`: keys stand where they should, what the model says is what `weft generate` says, and
 * the table counts it. */
#include "ops/cache.h"
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char LINE[] = "\nThe pass key is ", REST[] = ". Remember it. ",
                  BEHIND[] = " is the pass key.\n",
                  QUESTION[] = "\nWhat is the pass key? The pass key is";
enum { KEY = 5, ANSWER = KEY + 1 };

#define SMALL                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=256", "-o",          \
        "CONTEXT=160", "-o", "INIT=orthogonal"

static char model[512], details[512], prompt[512], text[512];

static void make_model(const char *position) {
    snprintf(model, sizeof model, "%s", scratch_path("model"));
    snprintf(details, sizeof details, "%s", scratch_path("details"));
    snprintf(prompt, sizeof prompt, "%s", scratch_path("prompt"));
    snprintf(text, sizeof text, "%s", scratch_path("text"));
    command_succeeds(RUN("init", "--force", SMALL, "-o", position, "--out", model), NULL);
}

static const char *string_of(const json_t *line, const char *key) {
    return json_string_value(json_object_get(line, key));
}

static double number_of(const json_t *line, const char *key) {
    return json_number_value(json_object_get(line, key));
}

/* What the model goes on with, by the other command. */
static char *generated(const char *from) {
    char *out;
    file_write(prompt, from, strlen(from));
    command_result r =
        command_run(RUN("generate", "--model", model, "--file", prompt, "--temperature", "0",
                        "--max-tokens", "6", "--context", "400", "--json"));
    assert_int_equal(r.status, 0);
    json_t *said = json_loads(r.out, 0, NULL);
    assert_non_null(said);
    out = strdup(string_of(said, "text"));
    json_decref(said);
    command_free(&r);
    return out;
}

/* The prompt has `length` bytes with its answer, and the key's line at its depth. */
static void check_prompt(const json_t *line) {
    const char *p = string_of(line, "prompt"), *key = string_of(line, "key"), *at = strstr(p, LINE);
    size_t length = (size_t)number_of(line, "length");
    size_t needle = strlen(LINE) + KEY + strlen(REST) + KEY + strlen(BEHIND),
           hay = length - needle - strlen(QUESTION) - ANSWER;
    assert_int_equal(strlen(p), length - ANSWER);
    assert_string_equal(p + strlen(p) - strlen(QUESTION), QUESTION);
    assert_non_null(at);
    assert_memory_equal(at + strlen(LINE), key, KEY);
    assert_memory_equal(at + strlen(LINE) + KEY, REST, strlen(REST));
    at += strlen(LINE) + KEY + strlen(REST);
    assert_memory_equal(at, key, KEY);
    assert_memory_equal(at + KEY, BEHIND, strlen(BEHIND));
    at = strstr(p, LINE);
    assert_int_equal(at - p, lround(number_of(line, "depth") * (double)hay));
}

/* Checks every line of the details; the number of right answers of a length and depth. */
static int check_details(double length, double depth, int *lines) {
    int right = 0;
    char *all = file_read(details, NULL), *rest = all, *one;
    while ((one = strsep(&rest, "\n")) && *one) {
        json_t *line = json_loads(one, 0, NULL);
        assert_non_null(line);
        const char *answer = string_of(line, "answer");
        bool is_right = json_is_true(json_object_get(line, "right"));
        check_prompt(line);
        char *other = generated(string_of(line, "prompt"));
        assert_string_equal(answer, other);
        free(other);
        assert_int_equal(is_right,
                         answer[0] == ' ' && strcmp(answer + 1, string_of(line, "key")) == 0);
        if (number_of(line, "length") == length && number_of(line, "depth") == depth) {
            ++*lines;
            right += is_right;
        }
        json_decref(line);
    }
    free(all);
    return right;
}

/* Keys and values of 2 layers, 16 wide in f32, for each token but the last, in whole pages. */
static void check_cache(const json_t *said) {
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(said, "cache"), i, one) {
        double tokens = number_of(one, "bytes") / (2 * 2 * 16 * 4),
               length = number_of(one, "length");
        if (tokens < length - 1 || tokens > length + WEFT_PAGE_TOKENS)
            fail_msg("%g tokens of cache for a length of %g", tokens, length);
    }
    assert_int_equal(i, 2);
}

TEST(test_keys_are_hidden_and_answers_are_the_models) {
    int lines = 0;
    make_model("POSITION=rope");
    json_t *said =
        command_json(RUN("eval", "--model", model, "--needle", "--lengths", "140,300", "--depths",
                         "0,0.4,1", "--trials", "2", "--details", details, "--json"));
    const json_t *cells = json_object_get(said, "needle");
    assert_int_equal(json_array_size(cells), 6);
    check_cache(said);
    const json_t *cell = json_array_get(cells, 4);
    assert_true(number_of(cell, "length") == 300 && number_of(cell, "depth") == 0.4);
    int right = check_details(300, 0.4, &lines);
    assert_int_equal(lines, 2);
    assert_true(fabs(number_of(cell, "accuracy") - right / 2.0) < 1e-12);
    /* 300 tokens are 19 pages of 16, in f32: keys and values of 16 numbers in 2 layers. */
    const json_t *cache = json_array_get(json_object_get(said, "cache"), 1);
    assert_true(number_of(cache, "bytes") == 19 * 16 * 2 * 2 * 16 * 4);
    json_decref(said);
}

TEST(test_the_same_seed_hides_the_same_keys) {
    char *first, *again, *other;
    make_model("POSITION=none");
    const char *const *arguments =
        RUN("eval", "--model", model, "--needle", "--trials", "2", "--details", details);
    command_succeeds(arguments, NULL);
    first = file_read(details, NULL);
    command_succeeds(arguments, NULL);
    again = file_read(details, NULL);
    assert_string_equal(first, again);
    command_succeeds(RUN("eval", "--model", model, "--needle", "--trials", "2", "--details",
                         details, "--seed", "9"),
                     NULL);
    other = file_read(details, NULL);
    assert_string_not_equal(first, other);
    free(first);
    free(again);
    free(other);
}

TEST(test_keys_are_hidden_in_a_text) {
    char words[400], *all;
    make_model("POSITION=rope");
    memset(words, '=', sizeof words);
    file_write(text, words, sizeof words);
    command_succeeds(RUN("eval", "--model", model, "--needle", "--lengths", "200", "--depths",
                         "0.5", "--trials", "1", "--text", text, "--details", details),
                     NULL);
    all = file_read(details, NULL);
    assert_non_null(strstr(all, "====================\\nThe pass key is "));
    free(all);
    command_fails(2, RUN("eval", "--model", model, "--needle", "--lengths", "600", "--text", text),
                  SAYS("400 tokens", "--lengths"));
}

/* A model that knows one prompt with its answer by heart is right there, and nowhere else. */
TEST(test_a_right_answer_is_counted) {
    make_model("POSITION=rope");
    const char *const asked[] = {"--lengths", "140", "--depths", "0.5", "--trials", "1"};
    command_succeeds(RUN("eval", "--model", model, "--needle", asked[0], asked[1], asked[2],
                         asked[3], asked[4], asked[5], "--details", details),
                     NULL);
    char *all = file_read(details, NULL), folder[512], run[512], data[560];
    json_t *line = json_loads(all, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(line);
    FILE *out = fopen(text, "w");
    assert_non_null(out);
    for (int i = 0; i < 60; i++)
        fprintf(out, "%s %s\n", string_of(line, "prompt"), string_of(line, "key"));
    assert_int_equal(fclose(out), 0);
    snprintf(folder, sizeof folder, "%s", scratch_path("tokens"));
    snprintf(run, sizeof run, "%s", scratch_path("run"));
    snprintf(data, sizeof data, "DATASET=%.500s", folder);
    command_succeeds(RUN("tokenize", "--out", folder, text), NULL);
    command_succeeds(RUN("train", "--config", "defconfigs/needle", "--variant", "dot", "-o", data,
                         "-o", "N_LAYER=1", "-o", "CONTEXT=160", "-o", "BATCH_SIZE=4", "-o",
                         "STEPS=150", "-o", "WARMUP_STEPS=10", "-o", "LEARNING_RATE=1e-2", "-o",
                         "EVAL_SAMPLES=1", "--peak-flops", "0", "--out", run),
                     NULL);
    json_t *said = command_json(RUN("eval", "--model", run, "--needle", asked[0], asked[1],
                                    asked[2], asked[3], asked[4], asked[5], "--json"));
    const json_t *cell = json_array_get(json_object_get(said, "needle"), 0);
    assert_true(number_of(cell, "accuracy") == 1 && number_of(cell, "token_accuracy") == 1);
    json_decref(said);
    said = command_json(RUN("eval", "--model", run, "--needle", asked[0], asked[1], asked[2],
                            asked[3], asked[4], asked[5], "--seed", "7", "--json"));
    cell = json_array_get(json_object_get(said, "needle"), 0);
    assert_true(number_of(cell, "accuracy") == 0);
    json_decref(said);
    json_decref(line);
    free(all);
}

TEST(test_wrong_usage_is_told) {
    make_model("POSITION=learned");
    command_fails(2, RUN("eval", "--model", model, "--needle", "--lengths", "161"),
                  SAYS("161", "CONTEXT"));
    command_fails(2, RUN("eval", "--model", model, "--needle", "--lengths", "40"),
                  SAYS("--lengths 40"));
    command_fails(2, RUN("eval", "--model", model, "--needle", "--depths", "2"), SAYS("--depths"));
    command_fails(2, RUN("eval", "--model", model, "--needle", "--tokens", "x"), SAYS("--needle"));
    command_fails(2, RUN("eval", "--model", model, "--lengths", "100", "--text", "x"),
                  SAYS("--needle"));
}

RUN_TESTS(scratch_setup, scratch_teardown)

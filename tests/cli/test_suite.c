/* `weft eval --suite`: multiple-choice questions against the cross-entropy that `weft eval --tokens
 * --targets` gives for the same bytes. */
#include "support/command.h"
#include "support/snapshot.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char model[256], suite[256];

static void make_model(void) {
    snprintf(model, sizeof model, "%s", scratch_path("model"));
    snprintf(suite, sizeof suite, "%s", scratch_path("suite.jsonl"));
    SUCCEEDS("init", "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=256",
             "-o", "CONTEXT=24", "-o", "INIT=orthogonal", "--seed", "3", "--out", model);
}

/* The log-likelihood of a text's last `told` bytes. */
static double expected(const char *text, int told) {
    int32_t row[64], targets[64];
    int n = (int)strlen(text);
    for (int i = 0; i < n; i++)
        row[i] = (unsigned char)text[i];
    for (int i = 0; i < n - 1; i++)
        targets[i] = i >= n - 1 - told ? row[i + 1] : -1;
    const char *tokens = scratch_path("t.npy"), *wanted = scratch_path("w.npy");
    npy_write(tokens, 4, 1, n, row);
    npy_write(wanted, 4, 1, n - 1, targets);
    WEFT_AUTO_DECREF json_t *object = command_json(
        RUN("eval", "--model", model, "--tokens", tokens, "--targets", wanted, "--json"));
    double loss = json_number_value(json_object_get(object, "cross_entropy"));
    return -loss * told;
}

TEST(test_a_choice_is_as_likely_as_its_tokens_behind_the_context) {
    static const char text[] =
        "{\"context\": \"ab \", \"choices\": [\"cd\", \"efghi\"], \"answer\": 1}\n\n"
        "{\"context\": \"0123456789012345678901234567\", \"choices\": [\"xy\"], \"answer\": 0}\n";
    file_write(suite, text, sizeof text - 1);
    const char *details = scratch_path("details.jsonl");
    WEFT_AUTO_DECREF json_t *object = command_json(
        RUN("eval", "--model", model, "--suite", suite, "--details", details, "--json"));
    assert_int_equal(json_integer_value(json_object_get(object, "questions")), 2);
    snapshot_expect_keys("eval-suite.json", object);
    /* The blank is the choice's; what is too long loses its beginning: 25 of 30 bytes stay. */
    double first = expected("ab cd", 3), second = expected("ab efghi", 6);
    double third = expected("56789012345678901234567xy", 2);
    WEFT_AUTO_FREE char *lines = file_read(details, NULL);
    WEFT_AUTO_DECREF json_t *one = json_loads(lines, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *two = json_loads(strchr(lines, '\n') + 1, JSON_DISABLE_EOF_CHECK, NULL);
    const json_t *values = json_object_get(one, "loglikelihoods");
    assert_true(fabs(json_number_value(json_array_get(values, 0)) - first) < 1e-4);
    assert_true(fabs(json_number_value(json_array_get(values, 1)) - second) < 1e-4);
    values = json_object_get(two, "loglikelihoods");
    assert_true(fabs(json_number_value(json_array_get(values, 0)) - third) < 1e-4);
    double acc = (first < second) * 0.5 + 0.5, norm = (first / 2 < second / 5) * 0.5 + 0.5;
    assert_true(json_number_value(json_object_get(object, "acc")) == acc);
    assert_true(json_number_value(json_object_get(object, "acc_norm")) == norm);
    json_decref(two);
}

static void refuse(const char *line, const char *words) {
    file_write(suite, line, strlen(line));
    FAILS(2, SAYS("suite.jsonl", words), "eval", "--model", model, "--suite", suite);
}

TEST(test_what_is_wrong_with_a_suite_is_told) {
    refuse("{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 1}\n", ":1: answer is 1");
    refuse("\n{\"context\": \"a\"\n", ":2:");
    refuse("{\"context\": \"a\", \"choices\": [], \"answer\": 0}", "a question is");
    refuse("{\"context\": \"a\", \"choices\": [\"\"], \"answer\": 0}", "choice 0");
    refuse("{\"context\": \" \", \"choices\": [\"b\"], \"answer\": 0}", "context is empty");
    refuse("{\"context\": \"a\", \"choices\": [\"0123456789012345678901234\"], \"answer\": 0}",
           "CONTEXT is 24");
    refuse("\n", "no question");
    FAILS(2, SAYS("--tokens", "--suite"), "eval", "--model", model);
    FAILS(2, SAYS("--suite"), "eval", "--model", model, "--suite", suite, "--tokens", suite);
    FAILS(2, SAYS("--details"), "eval", "--model", model, "--tokens", suite, "--details", suite);
    file_write(suite, "\n", 1);
    FAILS(2, SAYS("CAUSAL=n"), "eval", "--model", model, "--suite", suite, "-o", "CAUSAL=n");
}

static int setup(void **state) {
    int status = scratch_setup(state);
    make_model();
    return status;
}

RUN_TESTS(setup, scratch_teardown)

/* `weft bench serve`: its rows are of requests that a seed decides, a full queue shows in them, a long prompt has
 * one, and its server ends with it. */
#include "support/command.h"
#include "support/http.h"
#include "support/study_run.h"
#include "support/train_run.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char model[512];

static int make_model(void **state) {
    (void)state;
    scratch_open();
    server_model(model, sizeof model);
    return 0;
}

#define SMALL "bench", "serve", "--model", model, "--threads", "1", "--json", "--prompts", "8,70"

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("'%s' is not a number", key);
    return json_number_value(value);
}

/* 0 where all tokens of each text came at once to a client that was late. */
static void check_order(const json_t *row, const char *key) {
    const json_t *q = json_object_get(row, key);
    assert_true(number(q, "p50") >= 0);
    assert_true(number(q, "p95") >= number(q, "p50"));
    assert_true(number(q, "p99") >= number(q, "p95"));
}

static void test_rows_and_the_long_prompt(void **state) {
    (void)state;
    int64_t tokens[2];
    for (int round = 0; round < 2; round++) {
        json_t *all =
            command_json(RUN(SMALL, "--tokens", "3,10", "--rates", "300,0.5e3", "--seed",
                             round ? "2" : "7", "--requests", "24", "--good-first", "100000000",
                             "--good-between", "100000000", "--long", "200", "--streams", "2"));
        const json_t *rows = json_object_get(all, "rows");
        assert_int_equal(json_array_size(rows), 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *row = json_array_get(rows, i);
            assert_int_equal(number(row, "rate"), i ? 500 : 300);
            assert_int_equal(number(row, "done"), 24);
            assert_int_equal(number(row, "refused"), 0);
            assert_true(number(row, "goodput") == 1);
            assert_true(number(row, "tokens_per_s") > 0);
            check_order(row, "first_token_seconds");
            check_order(row, "between_tokens_seconds");
        }
        /* A mix: of 24 texts some have three tokens and some have ten. */
        tokens[round] = (int64_t)number(json_array_get(rows, 0), "tokens");
        assert_in_range(tokens[round], 24 * 3 + 7, 24 * 10 - 7);
        assert_int_equal((tokens[round] - 24 * 3) % 7, 0);
        const json_t *last = json_object_get(all, "long_prompt");
        assert_int_equal(number(last, "prompt"), 200);
        assert_true(number(last, "ratio") > 0 && number(last, "first_token_seconds") > 0);
        check_order(last, "usual_seconds");
        json_decref(all);
    }
    assert_true(tokens[0] != tokens[1]);
}

/* A queue without room, and a good request that takes no time. */
static void test_what_is_refused_or_late_is_not_good(void **state) {
    (void)state;
    json_t *all = command_json(RUN(SMALL, "--tokens", "150", "--rates", "100000", "--requests",
                                   "20", "--long", "0", "--serve", "--sequences 1 --queue 0"));
    const json_t *row = json_array_get(json_object_get(all, "rows"), 0);
    assert_true(number(row, "done") >= 1 && number(row, "refused") >= 1);
    assert_int_equal(number(row, "done") + number(row, "refused"), 20);
    assert_true(number(row, "goodput") < 1);
    assert_true(json_is_null(json_object_get(all, "long_prompt")));
    json_decref(all);
}

/* A server that runs already is measured where it is, and goes on. */
static void test_a_server_that_runs(void **state) {
    (void)state;
    char url[64], *out;
    server s = server_start(RUN("--model", model, "--threads", "1"));
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s.port);
    command_succeeds(RUN("bench", "serve", "--url", url, "--rates", "500,500", "--requests", "5",
                         "--prompts", "40", "--tokens", "4"),
                     &out);
    assert_non_null(strstr(out, "5 requests a row, prompts of 40 tokens, texts of 4, seed 1"));
    free(out);
    assert_true(http_metric(s.port, "weft_generated_tokens_total") == 2 + 2 * 5 * 4);
    /* No prompt begins like one before, whose pages would be there already. */
    assert_true(http_metric(s.port, "weft_shared_tokens_total") == 0);
    server_stop(&s);
    command_fails(1, RUN("bench", "serve", "--url", url), SAYS("no connection"));
}

static void test_its_server_ends_with_it(void **state) {
    (void)state;
    pid_t bench = train_start(RUN(SMALL, "--requests", "100000"), scratch_path("err"), 0);
    pid_t child = study_child(bench);
    kill(bench, SIGKILL);
    assert_int_equal(train_wait(bench), -SIGKILL);
    for (int i = 0; child > 0 && i < 3000 * command_patience() && kill(child, 0) == 0; i++)
        pause_ms(10);
    if (child > 0 && kill(child, SIGKILL) == 0) fail_msg("its server goes on");
}

static void test_wrong_use_is_one_line(void **state) {
    (void)state;
    command_fails(2, RUN("bench", "serve"), SAYS("--model", "--url"));
    command_fails(2, RUN("bench", "serve", "--model", "nowhere"), SAYS("nowhere"));
    command_fails(2, RUN(SMALL, "--rates", "1,fast"), SAYS("--rates"));
    command_fails(2, RUN(SMALL, "--rates", "0"), SAYS("--rates"));
    command_fails(2, RUN(SMALL, "--tokens", "2.5"), SAYS("--tokens"));
    command_fails(2, RUN(SMALL, "--prompts", "8,300"), SAYS("300 tokens", "400"));
    command_fails(2, RUN(SMALL, "--serve", "--nothing"), SAYS("--nothing"));
    command_fails(2, RUN(SMALL, "--steps", "3"), SAYS("serve takes"));
    command_fails(2, RUN("bench", "serve", "--url", "here"), SAYS("http://HOST:PORT"));
    command_fails(2, RUN("bench", "train", "--rates", "3"), SAYS("serve's"));
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_the_long_prompt),
        cmocka_unit_test(test_what_is_refused_or_late_is_not_good),
        cmocka_unit_test(test_a_server_that_runs),
        cmocka_unit_test(test_its_server_ends_with_it),
        cmocka_unit_test(test_wrong_use_is_one_line),
    };
    return cmocka_run_group_tests(tests, make_model, scratch_teardown);
}

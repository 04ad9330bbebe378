/* weft serve with a model that breaks at one token: the request that has it ends, with an error that says
 * why, and those beside it get the answers that they get alone. */
#include "support/command.h"
#include "support/http.h"
#include "support/poison.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_BODY "{\"prompt\":\"Once\",\"max_tokens\":4000,\"temperature\":0"
#define DRAWN_BODY "{\"prompt\":\"Once\",\"max_tokens\":60,\"seed\":3"
#define IDS ",\"return_token_ids\":true"
#define SHORT_BODY "{\"prompt\":\"Once\",\"max_tokens\":20,\"temperature\":0}"

static char folder[512];
static server s;
static json_t *whole;       /* the long answer's text before anything is broken */
static int poisoned;        /* the token */
static size_t drawn_before; /* tokens of the drawn text up to it */

/* A member of the only choice of an answer. */
static json_t *member_of(const char *body, const char *name) {
    json_t *got = http_complete(s.port, "%s", body);
    json_t *member = json_incref(json_object_get(answer_choice(got, 0), name));
    json_decref(got);
    assert_non_null(member);
    return member;
}

/* A token that the drawn text has, some tokens behind its beginning, and neither the long text nor a
 * prompt. */
static void choose_token(void) {
    json_t *ids = member_of(LONG_BODY IDS "}", "token_ids"),
           *drawn = member_of(DRAWN_BODY IDS "}", "token_ids");
    bool used[256] = {['O'] = true, ['n'] = true, ['c'] = true, ['e'] = true, ['x'] = true};
    for (size_t i = 0; i < json_array_size(ids); i++)
        used[json_integer_value(json_array_get(ids, i))] = true;
    for (drawn_before = 0; drawn_before < json_array_size(drawn); drawn_before++) {
        poisoned = (int)json_integer_value(json_array_get(drawn, drawn_before));
        if (drawn_before >= 5 && !used[poisoned]) break;
        used[poisoned] = true;
    }
    assert_true(drawn_before < json_array_size(drawn) - 1);
    json_decref(ids);
    json_decref(drawn);
}

static int start(void **state) {
    (void)state;
    static const char text[] =
        "CONFIG_ATTENTION=\"mla\"\nCONFIG_POSITION=\"rope\"\nCONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\n"
        "CONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=4096\n"
        "CONFIG_RA_MLA_LATENT_DIM=8\n# CONFIG_WEIGHT_TYING is not set\n";
    scratch_open();
    snprintf(folder, sizeof folder, "%s", scratch_path("model"));
    const char *config = scratch_path("config");
    file_write(config, text, sizeof text - 1);
    command_succeeds(RUN("init", "--config", config, "--out", folder, "--seed", "1"), NULL);
    s = server_start(RUN("--model", folder, "--threads", "1", "--max-tokens", "4000"));
    whole = member_of(LONG_BODY "}", "text");
    choose_token();
    server_stop(&s);
    poison_checkpoint(folder, poisoned);
    s = server_start(
        RUN("--model", folder, "--threads", "1", "--max-tokens", "4000", "--unchecked"));
    return 0;
}

static int stop(void **state) {
    (void)state;
    json_decref(whole);
    server_close(&s);
    return 0;
}

/* The error of a prompt that has the token. */
static void check_error(const char *more) {
    char body[200];
    snprintf(body, sizeof body, "{\"prompt\":[120,%d,120],\"max_tokens\":5%s}", poisoned, more);
    json_t *got = http_json(s.port, "/v1/completions", body, 500);
    const json_t *error = json_object_get(got, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    assert_non_null(message);
    assert_non_null(strstr(message, "not numbers"));
    assert_string_equal(json_string_value(json_object_get(error, "type")), "server_error");
    json_decref(got);
}

/* The long answer is on its way while others break; false: it was not, any more. */
static bool break_beside_long(void) {
    char first[1];
    int client = client_post(s.port, LONG_BODY ",\"stream\":true}");
    assert_int_equal(recv(client, first, 1, MSG_PEEK), 1); /* its first token is there */
    json_t *before = member_of(SHORT_BODY, "text");
    check_error("");
    check_error(",\"n\":3");
    check_error(",\"stream\":true");
    json_t *after = member_of(SHORT_BODY, "text");
    assert_true(json_equal(before, after));
    assert_memory_equal(json_string_value(before), json_string_value(whole),
                        json_string_length(before));
    bool beside = http_metric(s.port, "weft_sequences_running") > 0;
    answer rest = client_read(client, 60);
    json_t *joined = events_join(rest.body);
    assert_true(json_equal(json_object_get(answer_choice(joined, 0), "text"), whole));
    close(client);
    json_decref(before);
    json_decref(after);
    json_decref(joined);
    answer_free(&rest);
    assert_true(http_metric(s.port, "weft_cache_pages_used") == 0);
    return beside;
}

static void test_a_request_that_breaks_ends_alone(void **state) {
    (void)state;
    for (int round = 0; !break_beside_long(); round++)
        assert_true(round < 20);
}

/* What was made is sent; then comes the error, and no [DONE]. */
static void test_a_stream_that_breaks_ends_in_an_error(void **state) {
    (void)state;
    static const char body[] = DRAWN_BODY IDS ",\"stream\":true}";
    answer a = http_post(s.port, "/v1/completions", NULL, body, sizeof body - 1);
    assert_int_equal(a.status, 200);
    size_t made = 0;
    bool told = false;
    for (char *at = a.body; (at = strstr(at, "data: {")); at++) {
        json_t *event = json_loadb(at + 6, strcspn(at + 6, "\n"), JSON_ALLOW_NUL, NULL);
        const json_t *error = json_object_get(event, "error");
        const json_t *c = answer_choice(event, 0);
        const char *message = json_string_value(json_object_get(error, "message"));
        assert_false(told);
        made += json_array_size(json_object_get(c, "token_ids"));
        told = message && strstr(message, "not numbers");
        json_decref(event);
    }
    assert_int_equal(made, drawn_before + 1);
    assert_true(told);
    assert_null(strstr(a.body, "[DONE]"));
    answer_free(&a);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_that_breaks_ends_alone),
        cmocka_unit_test(test_a_stream_that_breaks_ends_in_an_error),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

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

#define LONG_BODY "{\"prompt\":\"Once\",\"max_tokens\":3000,\"temperature\":0"
#define SHORT_BODY "{\"prompt\":\"Once\",\"max_tokens\":20,\"temperature\":0}"

static char folder[512];
static server s;
static char *whole; /* the long answer's text before anything is broken */
static int poisoned;

static char *text_of(const char *body) {
    json_t *got = http_json(s.port, "/v1/completions", body, 200);
    const json_t *c = json_array_get(json_object_get(got, "choices"), 0);
    char *text = strdup(json_string_value(json_object_get(c, "text")));
    json_decref(got);
    return text;
}

/* A byte that neither the long text nor its prompt has. */
static int unused_byte(void) {
    json_t *got =
        http_json(s.port, "/v1/completions", LONG_BODY ",\"return_token_ids\":true}", 200);
    const json_t *c = json_array_get(json_object_get(got, "choices"), 0);
    const json_t *ids = json_object_get(c, "token_ids");
    bool used[256] = {['O'] = true, ['n'] = true, ['c'] = true, ['e'] = true};
    for (size_t i = 0; i < json_array_size(ids); i++)
        used[json_integer_value(json_array_get(ids, i))] = true;
    json_decref(got);
    int at = 'a';
    while (at < 'z' && used[at])
        at++;
    assert_false(used[at]);
    return at;
}

static int start(void **state) {
    (void)state;
    static const char text[] =
        "CONFIG_ATTENTION=\"mla\"\nCONFIG_POSITION=\"rope\"\nCONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\n"
        "CONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\nCONFIG_GPT2_BLOCK_SIZE=4096\n"
        "CONFIG_RA_MLA_LATENT_DIM=8\n# CONFIG_GPT2_WEIGHT_TYING is not set\n";
    scratch_open();
    snprintf(folder, sizeof folder, "%s", scratch_path("model"));
    const char *config = scratch_path("config");
    file_write(config, text, sizeof text - 1);
    command_succeeds(RUN("init", "--config", config, "--out", folder, "--seed", "1"), NULL);
    s = server_start(RUN("--model", folder, "--threads", "1", "--max-tokens", "4000"));
    whole = text_of(LONG_BODY "}");
    poisoned = unused_byte();
    server_stop(&s);
    poison_checkpoint(folder, poisoned);
    s = server_start(
        RUN("--model", folder, "--threads", "1", "--max-tokens", "4000", "--unchecked"));
    return 0;
}

static int stop(void **state) {
    (void)state;
    free(whole);
    server_close(&s);
    return 0;
}

/* The error of a prompt that has the byte. */
static void check_error(const char *more) {
    char body[200];
    snprintf(body, sizeof body, "{\"prompt\":\"xx%cyy\",\"max_tokens\":5%s}", poisoned, more);
    json_t *got = http_json(s.port, "/v1/completions", body, 500);
    const json_t *error = json_object_get(got, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    assert_non_null(message);
    assert_non_null(strstr(message, "not numbers"));
    assert_string_equal(json_string_value(json_object_get(error, "type")), "server_error");
    json_decref(got);
}

/* The long answer is on its way while others break. */
static void test_a_request_that_breaks_ends_alone(void **state) {
    (void)state;
    static const char body[] = LONG_BODY ",\"stream\":true}";
    char head[200], first[1];
    int length = client_head(head, sizeof head, "/v1/completions", sizeof body - 1);
    int client = client_connect(s.port);
    assert_true(client >= 0);
    assert_true(client_send(client, head, (size_t)length));
    assert_true(client_send(client, body, sizeof body - 1));
    assert_int_equal(recv(client, first, 1, MSG_PEEK), 1); /* its first token is there */
    char *before = text_of(SHORT_BODY);
    check_error("");
    check_error(",\"n\":3");
    check_error(",\"stream\":true");
    char *after = text_of(SHORT_BODY);
    assert_string_equal(before, after);
    assert_memory_equal(before, whole, strlen(before));
    assert_true(http_metric(s.port, "weft_sequences_running") > 0);
    answer rest = client_read(client, 60);
    char *text = events_text(rest.body, 0, false);
    assert_string_equal(text, whole);
    close(client);
    free(before);
    free(after);
    free(text);
    answer_free(&rest);
    assert_true(http_metric(s.port, "weft_cache_pages_used") == 0);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_that_breaks_ends_alone),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

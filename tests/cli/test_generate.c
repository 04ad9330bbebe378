/* weft generate: text from a checkpoint, and one line on what is wrong. */
#include "support/command.h"
#include "support/screen.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char model[512];

static int make_model(void **state) {
    (void)state;
    scratch_open();
    snprintf(model, sizeof model, "%s", scratch_path("run"));
    char best[560], config[512];
    snprintf(best, sizeof best, "%s/best", model);
    snprintf(config, sizeof config, "%s", scratch_path("tiny.config"));
    FILE *file = fopen(config, "w");
    assert_non_null(file);
    fputs("CONFIG_ATTENTION=\"mla\"\nCONFIG_POSITION=\"rope\"\nCONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\n"
          "CONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\nCONFIG_GPT2_BLOCK_SIZE=64\n"
          "CONFIG_RA_MLA_LATENT_DIM=8\n",
          file);
    fclose(file);
    char *out;
    assert_int_equal(mkdir(model, 0777), 0);
    command_succeeds(RUN("init", "--config", config, "--out", best, "--seed", "1"), &out);
    free(out);
    return 0;
}

static json_t *run_json(const char *const *arguments) {
    char *out;
    command_succeeds(arguments, &out);
    json_t *all = json_loads(out, 0, NULL);
    assert_non_null(all);
    free(out);
    return all;
}

/* A run's folder stands for its best/; tokens, text and log-probabilities are there. */
static void test_json_has_text_tokens_and_logprobs(void **state) {
    (void)state;
    json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                               "12", "--seed", "5", "--logprobs", "3", "--json"));
    assert_int_equal(json_array_size(json_object_get(all, "tokens")), 12);
    assert_int_equal(json_array_size(json_object_get(all, "logprobs")), 12);
    assert_int_equal(json_array_size(json_object_get(all, "top_logprobs")), 12);
    assert_true(json_is_string(json_object_get(all, "text")));
    assert_int_equal(json_integer_value(json_object_get(all, "prompt_tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(all, "cache_bytes_per_token")),
                     2 * 2 * 8 * 4);
    json_decref(all);
}

static void test_the_same_seed_gives_the_same_text(void **state) {
    (void)state;
    json_t *runs[3];
    const char *seeds[] = {"7", "7", "8"}, *threads[] = {"1", "3", "1"};
    for (int i = 0; i < 3; i++)
        runs[i] =
            run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens", "30",
                         "--samples", "2", "--seed", seeds[i], "--threads", threads[i], "--json"));
    const json_t *first = json_object_get(runs[0], "samples");
    assert_true(json_equal(first, json_object_get(runs[1], "samples")));
    assert_false(json_equal(first, json_object_get(runs[2], "samples")));
    assert_false(json_equal(json_array_get(first, 0), json_array_get(first, 1)));
    for (int i = 0; i < 3; i++)
        json_decref(runs[i]);
}

enum { SEEDS = 4 };
static const char *const seeds_of_text[SEEDS] = {"1", "2", "3", "4"};
static int seed_shown;

#define TEXT_OF(seed)                                                                              \
    "generate", "--model", model, "--prompt", "Once", "--max-tokens", "60", "--samples", "2",      \
        "--threads", "1", "--seed", seed

/* The program with standard output on the terminal that standard error is on. */
static void generate_to_terminal(void) {
    const char *const *words = RUN(TEXT_OF(seeds_of_text[seed_shown]));
    const char *named = getenv("WEFT");
    char line[2048];
    int at = snprintf(line, sizeof line, "exec %s", named ? named : "build/weft");
    for (; *words; words++)
        at += snprintf(line + at, sizeof line - (size_t)at, " '%s'", *words);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

static int count_controls(const char *text, size_t bytes, const char *but) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) && !strchr(but, text[i]);
    return n;
}

/* What a model says may hold escape sequences, which a terminal would obey. */
static void test_a_terminal_is_shown_control_characters_and_a_pipe_gets_them(void **state) {
    (void)state;
    int raw = 0, escaped = 0;
    for (seed_shown = 0; seed_shown < SEEDS; seed_shown++) {
        char *out;
        command_succeeds(RUN(TEXT_OF(seeds_of_text[seed_shown])), &out);
        raw += count_controls(out, strlen(out), "\n\t");
        free(out);
        screen s = screen_run(500, NULL, generate_to_terminal);
        assert_int_equal(s.status, 0);
        assert_int_equal(count_controls(s.raw, s.bytes, "\r\n\t"), 0);
        for (size_t i = 0; i < s.bytes; i++) /* a carriage return is the terminal's own */
            assert_true(s.raw[i] != '\r' || s.raw[i + 1] == '\n');
        escaped += screen_count(&s, "\\x");
        screen_free(&s);
    }
    assert_true(raw > 0);
    assert_true(escaped >= raw);
}

static void test_the_context_ends_a_text_unless_it_slides(void **state) {
    (void)state;
    const char *ways[][2] = {{"--top-k", "0"}, {"--context", "100"}};
    size_t lengths[] = {60, 96};
    for (int i = 0; i < 2; i++) {
        json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                                   "200", ways[i][0], ways[i][1], "--json"));
        assert_int_equal(json_array_size(json_object_get(all, "tokens")), lengths[i]);
        json_decref(all);
    }
    json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                               "200", "--slide", "--json"));
    assert_int_equal(json_array_size(json_object_get(all, "tokens")), 200);
    json_decref(all);
}

/* A checkpoint that is not what its state.json tells of is noticed; whoever wants it all the same
 * says so. */
static void test_a_damaged_checkpoint_is_refused_unless_unchecked(void **state) {
    (void)state;
    static const char sums[] = "{\"format\": 1, \"files\": {\"config.json\": "
                               "{\"bytes\": 3, \"crc32c\": \"00000000\"}, \"model.safetensors\": "
                               "{\"bytes\": 3, \"crc32c\": \"00000000\"}}}";
    char path[600];
    snprintf(path, sizeof path, "%s/best/state.json", model);
    file_write(path, sums, sizeof sums - 1);
    command_fails(2, RUN("generate", "--model", model, "--prompt", "x"),
                  SAYS("bytes", "--unchecked"));
    command_succeeds(RUN("generate", "--model", model, "--prompt", "x", "--unchecked"), NULL);
    assert_int_equal(remove(path), 0);
}

/* Another tokenizer would make another text: one that cannot be read is not taken for none. */
static void test_a_tokenizer_that_cannot_be_read_is_an_error(void **state) {
    (void)state;
    char path[600], text[600];
    snprintf(path, sizeof path, "%s/best/tokenizer.json", model);
    snprintf(text, sizeof text, "%s", scratch_path("some-text"));
    file_write(text, "some text", 9);
    for (int way = 0; way < 2; way++) {
        assert_int_equal(symlink(way ? "tokenizer.json" : "nowhere", path), 0);
        command_fails(2, RUN("generate", "--model", model, "--prompt", "x"),
                      SAYS("tokenizer.json"));
        command_fails(2, RUN("eval", "--model", model, "--text", text), SAYS("tokenizer.json"));
        assert_int_equal(unlink(path), 0);
    }
    command_succeeds(RUN("eval", "--model", model, "--text", text), NULL);
}

/* Nothing to tell in it; under sanitizers nothing is copied from nowhere either. */
static void test_an_empty_text_is_refused(void **state) {
    (void)state;
    const char *path = scratch_path("empty");
    file_write(path, "", 0);
    command_fails(2, RUN("eval", "--model", model, "--text", path), SAYS("two tokens"));
}

static void test_wrong_use_is_one_line(void **state) {
    (void)state;
    command_fails(2, RUN("generate"), SAYS("--model"));
    command_fails(2, RUN("generate", "--model", "nowhere", "--prompt", "x"), SAYS("nowhere"));
    command_fails(2, RUN("generate", "--model", model, "--prompt", "x", "--file", "y"),
                  SAYS("--prompt", "--file"));
    command_fails(2, RUN("generate", "--model", model, "--file", "nowhere"), SAYS("nowhere"));
    command_fails(2, RUN("generate", "--model", model, "--temperature", "hot"),
                  SAYS("--temperature"));
    command_fails(2, RUN("generate", "--model", model, "--prompt", "x", "-o", "CAUSAL=n"),
                  SAYS("CAUSAL"));
    command_fails(2, RUN("generate", "--model", model, "--prompt", "x", "-o", "WEIGHT_DTYPE=f16"),
                  SAYS("WEIGHT_DTYPE"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_has_text_tokens_and_logprobs),
        cmocka_unit_test(test_the_same_seed_gives_the_same_text),
        cmocka_unit_test(test_a_terminal_is_shown_control_characters_and_a_pipe_gets_them),
        cmocka_unit_test(test_the_context_ends_a_text_unless_it_slides),
        cmocka_unit_test(test_a_damaged_checkpoint_is_refused_unless_unchecked),
        cmocka_unit_test(test_a_tokenizer_that_cannot_be_read_is_an_error),
        cmocka_unit_test(test_an_empty_text_is_refused),
        cmocka_unit_test(test_wrong_use_is_one_line),
    };
    return cmocka_run_group_tests(tests, make_model, scratch_teardown);
}

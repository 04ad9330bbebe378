/* weft generate: text from a checkpoint, and one line on what is wrong. */
#include "support/command.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
        cmocka_unit_test(test_the_context_ends_a_text_unless_it_slides),
        cmocka_unit_test(test_a_damaged_checkpoint_is_refused_unless_unchecked),
        cmocka_unit_test(test_wrong_use_is_one_line),
    };
    return cmocka_run_group_tests(tests, make_model, scratch_teardown);
}

/* `weft convert`: Hugging Face's folders in and out. Kept models and their logits come from
 * transformers (tests/reference/make_hf_vectors.py); where that is importable, many more are made and
 * compared on the spot. */
#include "support/command.h"
#include "support/tensor_file.h"
#include "support/token_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { VOCAB = 13, ROWS = 2, LENGTH = 8 };

#define SIZES                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=4", "-o", "N_FFN=24", "-o",                \
        "VOCAB_SIZE=300", "-o", "CONTEXT=24"
#define LLAMA                                                                                      \
    "-o", "FFN=swiglu", "-o", "POSITION=rope", "-o", "NORM=rmsnorm", "-o", "BIAS=n", "-o",         \
        "KV_HEADS=2", "-o", "WEIGHT_TYING=n"

static void write_tokens(const char *path) {
    int32_t tokens[ROWS * (LENGTH + 1)];
    for (int i = 0; i < ROWS * (LENGTH + 1); i++)
        tokens[i] = (7 * i + 3) % VOCAB;
    npy_write(path, 4, ROWS, LENGTH + 1, tokens);
}

static void expect_logits(const char *model, const char *kept, const char *dtype,
                          double tolerance) {
    const char *tokens = scratch_path("tokens.npy"), *logits = scratch_path("logits.safetensors");
    write_tokens(tokens);
    command_succeeds(
        RUN("eval", "--model", model, "--tokens", tokens, "--logits", logits, "--dtype", dtype),
        NULL);
    double off = tensors_apart(logits, kept, "logits");
    if (!(off <= tolerance)) fail_msg("%s: logits are off by %g in %s", model, off, dtype);
}

/* Their logits are computed in f64 but for the angles, which transformers rounds to f32. */
static void test_kept_models_have_the_logits_of_transformers(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++) {
        char from[64], kept[64];
        const char *out = scratch_path("%s", names[i]);
        snprintf(from, sizeof from, "tests/vectors/hf/%s", names[i]);
        snprintf(kept, sizeof kept, "tests/vectors/hf/%s.logits.safetensors", names[i]);
        command_succeeds(RUN("convert", "--model", from, "--out", out), NULL);
        expect_logits(out, kept, "f32", 2e-5);
        expect_logits(out, kept, "f64", i == 0 ? 1e-12 : 5e-6);
    }
}

/* Weights of one that was written and read again are the same bytes. */
static void goes_around(const char *first) {
    const char *theirs = scratch_path("theirs"), *again = scratch_path("again");
    char path[600], other[600];
    command_succeeds(RUN("convert", "--force", "--model", first, "--to-hf", "--out", theirs), NULL);
    command_succeeds(RUN("convert", "--force", "--model", theirs, "--out", again), NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", first);
    snprintf(other, sizeof other, "%s/model.safetensors", again);
    file_expect_equal(path, other);
}

static void test_written_and_read_again_is_the_same(void **state) {
    (void)state;
    const char *model = scratch_path("model");
    command_succeeds(RUN("init", "--force", SIZES, "--out", model), NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "--out", model), NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "ATTENTION_BIAS=qkv", "-o",
                         "ROPE_SCALING=yarn", "-o", "ROPE_FACTOR=4", "--out", model),
                     NULL);
    goes_around(model);
    command_succeeds(
        RUN("init", "--force", SIZES, LLAMA, "-o", "ATTENTION_BIAS=all", "--out", model), NULL);
    goes_around(model);
}

static void test_a_converted_model_is_trained_further(void **state) {
    (void)state;
    const char *model = scratch_path("model"), *theirs = scratch_path("theirs"),
               *again = scratch_path("again"), *run = scratch_path("run");
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "--out", model), NULL);
    command_succeeds(RUN("convert", "--force", "--model", model, "--to-hf", "--out", theirs), NULL);
    command_succeeds(RUN("convert", "--force", "--model", theirs, "--out", again), NULL);
    char config[600];
    snprintf(config, sizeof config, "%s/model.config", again);
    char *out;
    command_succeeds(RUN("train", "--config", config, "--from", again, "--out", run, "-o",
                         "STEPS=3", "-o", "BATCH_SIZE=2", "--json", "--peak-flops", "0"),
                     &out);
    json_t *result = json_loads(out, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(result, "step")), 3);
    json_decref(result);
    free(out);
}

static void copy_file(const char *from, const char *to) {
    size_t n;
    char *bytes = file_read(from, &n);
    file_write(to, bytes, n);
    free(bytes);
}

/* A copy of the kept GPT-2 in which one key of its config has another value. */
static const char *with_key(const char *kept, const char *key, const char *value) {
    const char *folder = scratch_path("changed");
    char path[600], from[300];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    snprintf(from, sizeof from, "tests/vectors/hf/gpt2/model.safetensors");
    copy_file(from, path);
    snprintf(from, sizeof from, "tests/vectors/hf/%s/config.json", kept);
    json_t *root = json_load_file(from, 0, NULL),
           *changed = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(root);
    assert_non_null(changed);
    json_object_set_new(root, key, changed);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return folder;
}

static void test_what_is_not_computed_is_refused_by_its_key(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"gpt2", "model_type", "\"bert\"", "bert"},
        {"gpt2", "activation_function", "\"relu\"", "gelu_new"},
        {"gpt2", "scale_attn_weights", "false", "true"},
        {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "false"},
        {"gpt2", "add_cross_attention", "true", "false"},
        {"gpt2", "quantization_config", "{}", "not known"},
        {"gpt2", "n_head", "\"two\"", "no number"},
        {"llama", "hidden_act", "\"gelu\"", "silu"},
        {"llama", "mlp_bias", "true", "false"},
        {"llama", "head_dim", "4", "hidden_size / num_attention_heads"},
        {"llama", "sliding_window", "4", "null"},
        {"llama", "hidden_size", "null", "missing"},
        {"llama", "qk_norm", "true", "not known"},
        {"llama", "layer_types", "[\"sliding_attention\"]", "full_attention"},
        {"llama", "rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 2}", "dynamic"},
        {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 1}",
         "rope_scaling.mscale"},
        {"llama", "rope_parameters", "{\"rope_type\": \"linear\"}", "factor"},
        {"llama", "rope_parameters", "{\"rope_type\": 5, \"factor\": 2}", "\"rope_type\": 5"},
    };
    const char *out = scratch_path("refused");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = with_key(cases[i][0], cases[i][1], cases[i][2]);
        bool inside = strcmp(cases[i][1], "rope_parameters") == 0;
        command_fails(2, RUN("convert", "--model", folder, "--out", out),
                      SAYS(inside ? "config.json" : cases[i][1], cases[i][3]));
    }
}

static void test_a_broken_config_is_told_and_not_taken_for_ours(void **state) {
    (void)state;
    const char *folder = with_key("gpt2", "n_layer", "2"), *out = scratch_path("refused");
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", folder);
    file_write(path, "[1, 2", 5);
    command_fails(2, RUN("convert", "--model", folder, "--out", out), SAYS("config.json:1"));
    file_write(path, "[]", 2);
    command_fails(2, RUN("convert", "--model", folder, "--out", out), SAYS("JSON object"));
    assert_int_equal(remove(path), 0);
    command_fails(2, RUN("convert", "--model", folder, "--out", out), SAYS("config.json and"));
}

static void test_weights_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    const char *out = scratch_path("refused");
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "vocab_size", "14"), "--out", out),
                  SAYS("transformer.wte.weight", "[14, 8]"));
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "n_layer", "3"), "--out", out),
                  SAYS("transformer.h.2.ln_1.weight", "missing"));
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "n_layer", "1"), "--out", out),
                  SAYS("transformer.h.1.", "not one of the model's"));
}

static void test_what_they_have_no_model_for_is_refused_by_its_key(void **state) {
    (void)state;
    static const char *const keys[][2] = {
        {"ATTENTION=w2", "CONFIG_ATTENTION=w2"},
        {"FFN=swiglu", "CONFIG_FFN=swiglu"},
        {"POSITION=alibi", "CONFIG_POSITION=alibi"},
        {"NORM_PLACEMENT=post", "CONFIG_NORM_PLACEMENT=post"},
        {"BIAS=n", "CONFIG_BIAS=n"},
        {"KV_HEADS=2", "CONFIG_KV_HEADS=2"},
        {"QK_NORM=y", "CONFIG_QK_NORM=y"},
        {"KV_SHARE=2", "CONFIG_KV_SHARE=2"},
        {"ATTENTION_GATE=head", "CONFIG_ATTENTION_GATE=head"},
        {"RA_MLA_MLP_ATTN_GATE=y", "CONFIG_RA_MLA_MLP_ATTN_GATE=y"},
    };
    const char *model = scratch_path("model"), *out = scratch_path("refused");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        command_succeeds(RUN("init", "--force", SIZES, "-o", keys[i][0], "--out", model), NULL);
        command_fails(2, RUN("convert", "--model", model, "--to-hf", "--out", out),
                      SAYS(keys[i][1]));
    }
}

static void test_nothing_is_overwritten_unasked(void **state) {
    (void)state;
    const char *out = scratch_path("gpt2-again");
    command_succeeds(RUN("convert", "--model", "tests/vectors/hf/gpt2", "--out", out), NULL);
    command_fails(2, RUN("convert", "--model", "tests/vectors/hf/gpt2", "--out", out),
                  SAYS("config.json", "--force"));
    command_fails(2, RUN("convert", "--model", out, "--out", scratch_path("x")),
                  SAYS("already", "--to-hf"));
}

/* The tokenizer of Llama 2 in either form, which is no byte-level BPE. */
static void test_sentencepiece_is_refused_in_one_line(void **state) {
    (void)state;
    const char *folder = with_key("gpt2", "n_layer", "2"), *out = scratch_path("pieces");
    char path[600];
    snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    file_write(path, "\n", 1);
    command_fails(2, RUN("convert", "--model", folder, "--out", out),
                  SAYS("SentencePiece", "--no-tokenizer"));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    static const char llama2[] =
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
        "\"prepend\": \"_\"}]}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, "
        "\"vocab\": {}, \"merges\": []}}";
    file_write(path, llama2, sizeof llama2 - 1);
    command_fails(2, RUN("convert", "--model", folder, "--out", out),
                  SAYS("normalizer", "byte-level BPE", "--no-tokenizer"));
    command_succeeds(RUN("convert", "--model", folder, "--no-tokenizer", "--out", out), NULL);
}

static void test_random_models_equal_transformers(void **state) {
    (void)state;
    char command[2048], text[8192];
    const char *python = getenv("PYTHON"), *weft = getenv("WEFT");
    if (!python) python = "python3";
    snprintf(command, sizeof command, "%s -c 'import torch, transformers' 2>/dev/null", python);
    if (system(command) != 0) {
        printf("torch and transformers are not importable by %s\n", python);
        skip();
    }
    mkdir(scratch_path("random"), 0777);
    snprintf(
        command, sizeof command,
        "%s tests/convert/compare_transformers.py '%s' %s tests/vectors/tokenizer.own.json 2>&1",
        python, weft ? weft : "build/weft", scratch_path("random"));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(text, 1, sizeof text - 1, pipe);
    text[n] = 0;
    if (pclose(pipe) != 0) fail_msg("%s", text);
    printf("%s", text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_models_have_the_logits_of_transformers),
        cmocka_unit_test(test_written_and_read_again_is_the_same),
        cmocka_unit_test(test_a_converted_model_is_trained_further),
        cmocka_unit_test(test_what_is_not_computed_is_refused_by_its_key),
        cmocka_unit_test(test_a_broken_config_is_told_and_not_taken_for_ours),
        cmocka_unit_test(test_weights_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(test_what_they_have_no_model_for_is_refused_by_its_key),
        cmocka_unit_test(test_nothing_is_overwritten_unasked),
        cmocka_unit_test(test_sentencepiece_is_refused_in_one_line),
        cmocka_unit_test(test_random_models_equal_transformers),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

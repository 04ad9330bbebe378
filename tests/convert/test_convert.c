/* `weft convert`: Hugging Face's folders in and out. Kept models and their logits come from
 * transformers (tests/reference/make_hf_vectors.py); where that is importable, many more are made and
 * compared on the spot. */
#include "support/command.h"
#include "support/tensor_file.h"
#include "support/test.h"
#include "support/token_file.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static const char *kept_logits(const char *name) {
    return hf_path(format_text("%s.logits.safetensors", name));
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

/* Of which family what was written last is. */
static void expect_theirs(const char *type) {
    json_t *root = json_load_file(scratch_path("theirs/config.json"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "model_type")), type);
    json_decref(root);
}

/* Their logits are computed in f64 but for the angles, which transformers rounds to f32. */
TEST(test_kept_models_have_the_logits_of_transformers) {
    static const char *const names[] = {"gpt2",      "llama",    "qwen3", "smollm3",
                                        "olmo2",     "deepseek", "neox",  "phi3",
                                        "phi3-long", "gemma2",   "gemma3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *out = scratch_path("%s", names[i]), *kept = kept_logits(names[i]);
        command_succeeds(RUN("convert", "--model", hf_path(names[i]), "--out", out), NULL);
        expect_logits(out, kept, "f32", 2e-5);
        expect_logits(out, kept, "f64", i == 0 ? 1e-12 : 5e-6);
        goes_around(out);
    }
}

TEST(test_written_and_read_again_is_the_same) {
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
    command_succeeds(
        RUN("init", "--force", SIZES, LLAMA, "-o", "QK_NORM=y", "-o", "HEAD_DIM=6", "--out", model),
        NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "NOPE_EVERY=2", "-o", "FFN_BIAS=y",
                         "--out", model),
                     NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "WINDOW=5", "--out", model), NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "KV_HEADS=0", "-o", "QK_NORM=y",
                         "-o", "QK_NORM_WHOLE=y", "-o", "NORM_PLACEMENT=reordered", "--out", model),
                     NULL);
    goes_around(model);
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "FFN=geglu", "-o", "EMBED_SCALE=4",
                         "-o", "NORM_PLACEMENT=both", "-o", "SOFTCAP_LOGITS=20", "-o", "WINDOW=7",
                         "-o", "ATTENTION_SCALE=0.25", "--out", model),
                     NULL);
    goes_around(model);
    expect_theirs("gemma2");
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "KV_HEADS=0", "-o", "QK_NORM=y",
                         "-o", "QK_NORM_WHOLE=y", "-o", "NORM_PLACEMENT=reordered", "-o",
                         "WINDOW=7", "-o", "WINDOW_EVERY=2", "--out", model),
                     NULL);
    goes_around(model);
    expect_theirs("olmo3");
}

/* DeepSeek's norm of the latent, which this model has not, changes nothing in what is written. */
TEST(test_a_latent_without_norm_leaves_in_deepseeks_layout) {
    const char *model = scratch_path("model"), *theirs = scratch_path("theirs"),
               *again = scratch_path("again"), *tokens = scratch_path("tokens.npy"),
               *logits = scratch_path("first.safetensors");
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "ATTENTION=mla", "-o", "KV_HEADS=0",
                         "-o", "POSITION=none", "-o", "RA_MLA_LATENT_DIM=6", "-o",
                         "RA_MLA_JOINT_KV=y", "-o", "RA_MLA_ROPE_DIM=4", "-o", "WEIGHT_TYING=y",
                         "--out", model),
                     NULL);
    write_tokens(tokens);
    command_succeeds(RUN("eval", "--model", model, "--tokens", tokens, "--logits", logits), NULL);
    command_succeeds(RUN("convert", "--force", "--model", model, "--to-hf", "--out", theirs), NULL);
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", theirs);
    json_t *root = json_load_file(path, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "model_type")), "deepseek_v3");
    json_decref(root);
    snprintf(path, sizeof path, "%s/model.safetensors", theirs);
    int64_t n, m; /* a head that is tied is written too */
    double *head = tensor_values(path, "lm_head.weight", &n);
    double *tokens_in = tensor_values(path, "model.embed_tokens.weight", &m);
    assert_int_equal(n, m);
    assert_memory_equal(head, tokens_in, (size_t)n * sizeof *head);
    free(head);
    free(tokens_in);
    command_succeeds(RUN("convert", "--force", "--model", theirs, "--out", again), NULL);
    expect_logits(again, logits, "f32", 1e-6);
}

TEST(test_heads_in_a_row_go_around) {
    const char *model = scratch_path("model");
    command_succeeds(RUN("init", "--force", SIZES, "-o", "POSITION=rope", "-o", "FFN=gelu_erf",
                         "-o", "PARALLEL_RESIDUAL=y", "-o", "WEIGHT_TYING=n", "--out", model),
                     NULL);
    goes_around(model);
}

TEST(test_a_converted_model_is_trained_further) {
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

/* A kept config with other values of some keys, beside the weights of `weights`; `keys` is given away. */
static const char *with_keys(const char *kept, const char *weights, json_t *keys) {
    const char *folder = scratch_path("changed");
    char path[600];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    copy_file(hf_path(format_text("%s/model.safetensors", weights)), path);
    json_t *root = json_load_file(hf_path(format_text("%s/config.json", kept)), 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_object_update(root, keys), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    json_decref(keys);
    return folder;
}

static const char *with_key(const char *kept, const char *key, const char *value) {
    return with_keys(kept, "gpt2",
                     json_pack("{s:o}", key, json_loads(value, JSON_DECODE_ANY, NULL)));
}

/* Configs that say it in the older form, or leave it to the family. */
TEST(test_gemmas_older_keys_say_the_same) {
    static const char *const cases[][2] = {
        {"gemma2", "{\"layer_types\": null}"},
        {"gemma3", "{\"layer_types\": null, \"sliding_window_pattern\": 3}"},
        {"gemma3", "{\"rope_parameters\": null, \"rope_theta\": 1000, "
                   "\"rope_local_base_freq\": 50, "
                   "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out = scratch_path("older"), *name = cases[i][0];
        const char *theirs = with_keys(name, name, json_loads(cases[i][1], 0, NULL));
        command_succeeds(RUN("convert", "--force", "--model", theirs, "--out", out), NULL);
        expect_logits(out, kept_logits(name), "f64", 5e-6);
    }
}

TEST(test_what_is_not_computed_is_refused_by_its_key) {
    static const char *const cases[][4] = {
        {"gpt2", "model_type", "\"bert\"", "bert"},
        {"gpt2", "activation_function", "\"relu\"", "gelu_new"},
        {"gpt2", "scale_attn_weights", "false", "true"},
        {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "false"},
        {"gpt2", "add_cross_attention", "true", "false"},
        {"gpt2", "quantization_config", "{}", "null"},
        {"gpt2", "use_parallel_residual", "true", "--ignore-key use_parallel_residual"},
        {"gpt2", "n_head", "\"two\"", "no number"},
        {"llama", "hidden_act", "\"gelu\"", "silu"},
        {"llama", "rope_interleaved", "true", "false"},
        {"llama", "partial_rotary_factor", "0.25", "only 1 is"},
        {"llama", "sliding_window", "4", "--ignore-key sliding_window"},
        {"gpt2", "model_type", "\"gemma3\"", "vision tower"},
        {"gpt2", "model_type", "\"mixtral\"", "experts"},
        {"llama", "hidden_size", "null", "missing"},
        {"llama", "qk_norm", "true", "false"},
        {"qwen3", "rms_norm_eps", "1e-5", "1e-6"},
        {"smollm3", "no_rope_layers", "[1, 0, 0]", "every n-th"},
        {"llama", "rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 2}", "dynamic"},
        {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 1}",
         "rope_scaling.mscale"},
        {"llama", "rope_parameters", "{\"rope_type\": \"linear\"}", "factor"},
        {"llama", "rope_parameters", "{\"rope_type\": 5, \"factor\": 2}", "\"rope_type\": 5"},
        {"gemma2", "hidden_activation", "\"gelu\"", "gelu_pytorch_tanh"},
        {"gemma2", "hidden_act", "\"silu\"", "gelu_pytorch_tanh"},
        {"gemma2", "use_bidirectional_attention", "true", "only false is"},
        {"gemma3", "attn_logit_softcapping", "50", "only null is"},
        {"gemma3", "sliding_window_pattern", "1e300", "whole number"},
        {"gemma3", "layer_types",
         "[\"full_attention\", \"sliding_attention\", \"sliding_attention\"]", "every n-th"},
        {"gemma3", "rope_parameters",
         "{\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"linear\"}}", "linear"},
        {"phi3-long", "rope_parameters",
         "{\"rope_type\": \"longrope\", \"long_factor\": [1], \"short_factor\": [1]}", "2 pairs"},
        {"llama", "kv_lora_rank", "4", "only null is"},
        {"deepseek", "first_k_dense_replace", "1", "n_routed_experts"},
        {"deepseek", "qk_rope_head_dim", "0", "2 at least"},
        {"deepseek", "v_head_dim", "4", "qk_nope_head_dim"},
        {"deepseek", "attention_bias", "true", "only false is"},
    };
    const char *out = scratch_path("refused");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = with_key(cases[i][0], cases[i][1], cases[i][2]);
        bool inside = strcmp(cases[i][1], "rope_parameters") == 0;
        command_fails(2, RUN("convert", "--model", folder, "--out", out),
                      SAYS(inside ? "config.json" : cases[i][1], cases[i][3]));
    }
}

/* What a command says on standard error, ending with that status; the caller frees it. */
static char *said_by(int status, const char *const *arguments) {
    command_result r = command_run(arguments);
    if (r.status != status) fail_msg("%s: %d: %s", r.line, r.status, r.err);
    char *said = r.err;
    free(r.out);
    return said;
}

TEST(test_keys_without_a_bearing_are_passed_over) {
    static const char *const keys[][2] = {{"is_llama_config", "true"},
                                          {"rope_interleaved", "false"},
                                          {"_num_labels", "1"},
                                          {"transformers.js_config", "{\"dtype\": \"q4\"}"},
                                          {"quantization_config", "null"},
                                          {"a_key_of_nobody", "null"}};
    const char *out = scratch_path("passed");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *folder = with_key("gpt2", keys[i][0], keys[i][1]);
        char *said = said_by(0, RUN("convert", "--force", "--model", folder, "--out", out));
        if (strstr(said, keys[i][0])) fail_msg("%s: %s", keys[i][0], said);
        free(said);
    }
}

/* One that nobody knows is named, in one line, and not taken for an error. */
TEST(test_unknown_keys_are_named) {
    const char *folder = with_key("gpt2", "a_key_of_nobody", "1"), *out = scratch_path("passed");
    char *said = said_by(0, RUN("convert", "--force", "--model", folder, "--out", out));
    assert_non_null(strstr(said, "\"a_key_of_nobody\""));
    free(said);
    said = said_by(0, RUN("convert", "--force", "--model", folder, "--out", out, "--ignore-key",
                          "a_key_of_nobody"));
    assert_null(strstr(said, "nobody"));
    free(said);
    folder = with_key("gpt2", "use_parallel_residual", "true");
    command_succeeds(RUN("convert", "--force", "--model", folder, "--out", out, "--ignore-key",
                         "use_parallel_residual"),
                     NULL);
    command_fails(2, RUN("convert", "--model", folder, "--out", out, "--ignore-key", "no_such_key"),
                  SAYS("no_such_key", "--ignore-key"));
}

/* Configs as they were published are read; no weights are beside them. */
TEST(test_published_configs_are_read) {
    const char *folder = scratch_path("published"), *out = scratch_path("refused");
    DIR *all = opendir("tests/convert/published");
    int read = 0;
    assert_non_null(all);
    mkdir(folder, 0777);
    for (const struct dirent *file; (file = readdir(all));) {
        char from[400], to[600];
        if (!strstr(file->d_name, ".json")) continue;
        snprintf(from, sizeof from, "tests/convert/published/%s", file->d_name);
        snprintf(to, sizeof to, "%s/config.json", folder);
        copy_file(from, to);
        char *said = said_by(2, RUN("convert", "--model", folder, "--out", out));
        if (!strstr(said, "has no model.safetensors") || strstr(said, "not known"))
            fail_msg("%s: %s", file->d_name, said);
        free(said);
        read++;
    }
    closedir(all);
    assert_true(read >= 59);
}

TEST(test_a_broken_config_is_told_and_not_taken_for_ours) {
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

TEST(test_weights_that_do_not_fit_are_refused_by_name) {
    const char *out = scratch_path("refused");
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "vocab_size", "14"), "--out", out),
                  SAYS("transformer.wte.weight", "[14, 8]"));
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "n_layer", "3"), "--out", out),
                  SAYS("transformer.h.2.ln_1.weight", "missing"));
    command_fails(2, RUN("convert", "--model", with_key("gpt2", "n_layer", "1"), "--out", out),
                  SAYS("transformer.h.1.", "not one of the model's"));
}

/* In DeepSeek's layout norms are before the branches. */
TEST(test_norms_behind_the_branches_do_not_leave_in_deepseeks_layout) {
    const char *model = scratch_path("model");
    command_succeeds(RUN("init", "--force", SIZES, LLAMA, "-o", "ATTENTION=mla", "-o", "KV_HEADS=0",
                         "-o", "POSITION=none", "-o", "RA_MLA_LATENT_DIM=6", "-o",
                         "RA_MLA_JOINT_KV=y", "-o", "RA_MLA_ROPE_DIM=4", "-o",
                         "NORM_PLACEMENT=reordered", "--out", model),
                     NULL);
    goes_around(model);
    expect_theirs("weft");
}

/* What none of their classes computes: the folder has weft's own, and says where it is. */
TEST(test_other_models_bring_their_class_along) {
    static const char *const options[] = {"ATTENTION=w2",        "ATTENTION=mla",
                                          "FFN=wsffn",           "POSITION=alibi",
                                          "NORM_PLACEMENT=post", "BIAS=n",
                                          "KV_HEADS=2",          "QK_NORM=y",
                                          "ATTENTION_GATE=head", "RA_MLA_MLP_ATTN_GATE=y",
                                          "NORM_PLACEMENT=both", "FFN=geglu",
                                          "EMBED_SCALE=2",       "ATTENTION_SCALE=2"};
    const char *theirs = NULL;
    char path[600];
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const char *model = scratch_path("model");
        command_succeeds(RUN("init", "--force", SIZES, "-o", options[i], "--out", model), NULL);
        goes_around(model);
        theirs = scratch_path("theirs");
        snprintf(path, sizeof path, "%s/config.json", theirs);
        json_t *root = json_load_file(path, 0, NULL), *map = json_object_get(root, "auto_map");
        assert_string_equal(json_string_value(json_object_get(map, "AutoModelForCausalLM")),
                            "modeling_weft.WeftForCausalLM");
        assert_null(json_object_get(json_object_get(root, "weft"), "steps"));
        json_decref(root);
    }
    snprintf(path, sizeof path, "%s/modeling_weft.py", theirs);
    file_expect_equal(path, "src/convert/modeling_weft.py");
    snprintf(path, sizeof path, "%s/configuration_weft.py", theirs);
    file_expect_equal(path, "src/convert/configuration_weft.py");
}

/* The class's table has every option that such a model comes with: it reads no model with another. */
TEST(test_the_class_knows_every_option) {
    const char *model = scratch_path("model"), *theirs = scratch_path("theirs"), *key;
    char path[600];
    json_t *value;
    command_succeeds(RUN("init", "--force", SIZES, "-o", "ATTENTION=w2", "--out", model), NULL);
    command_succeeds(RUN("convert", "--force", "--model", model, "--to-hf", "--out", theirs), NULL);
    snprintf(path, sizeof path, "%s/configuration_weft.py", theirs);
    char *table = file_read(path, NULL);
    snprintf(path, sizeof path, "%s/config.json", theirs);
    json_t *root = json_load_file(path, 0, NULL), *options = json_object_get(root, "weft");
    assert_true(json_object_size(options) > 80);
    json_object_foreach(options, key, value) {
        char quoted[80];
        snprintf(quoted, sizeof quoted, "\"%s\": ", key);
        if (!strstr(table, quoted)) fail_msg("src/convert/configuration_weft.py has no %s", key);
    }
    json_decref(root);
    free(table);
}

TEST(test_nothing_is_overwritten_unasked) {
    const char *out = scratch_path("gpt2-again");
    command_succeeds(RUN("convert", "--model", hf_path("gpt2"), "--out", out), NULL);
    command_fails(2, RUN("convert", "--model", hf_path("gpt2"), "--out", out),
                  SAYS("config.json", "--force"));
    command_fails(2, RUN("convert", "--model", out, "--out", scratch_path("x")),
                  SAYS("already", "--to-hf"));
}

/* The tokenizer of Llama 2 in either form, which is no byte-level BPE. */
TEST(test_sentencepiece_is_refused_in_one_line) {
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
    command_fails(2, RUN("generate", "--model", out, "--prompt", "5 6 7"),
                  SAYS("no tokenizer", "--tokens"));
    command_succeeds(RUN("generate", "--model", out, "--tokens", "5 6 7", "--max-tokens", "2"),
                     NULL);
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file_write(path, text, strlen(text));
}

/* What ends a text and how a message is written go into the checkpoint and out of it again. */
TEST(test_special_tokens_and_templates_go_along) {
    static const char *const names[] = {"generation_config.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    const char *model = scratch_path("wide"), *theirs = scratch_path("wide-hf"),
               *ours = scratch_path("wide-in"), *back = scratch_path("wide-back");
    char from[600], to[600];
    command_succeeds(RUN("init", "--force", SIZES, "-o", "VOCAB_SIZE=700", "--out", model), NULL);
    command_succeeds(RUN("convert", "--force", "--model", model, "--to-hf", "--out", theirs), NULL);
    snprintf(to, sizeof to, "%s/tokenizer.json", theirs);
    copy_file("tests/vectors/tokenizer.own.json", to);
    write_text(theirs, names[0],
               "{\"bos_token_id\": 4, \"eos_token_id\": [5, 699], \"top_p\": 0.9}");
    write_text(theirs, names[1], "{\"model_max_length\": 1000000000000000019884624838656}\n");
    write_text(theirs, names[2], "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}");
    command_succeeds(RUN("convert", "--force", "--unchecked", "--model", theirs, "--out", ours),
                     NULL);
    snprintf(from, sizeof from, "%s/config.json", ours);
    json_t *config = json_load_file(from, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(config, "chat_template")),
                        "<|im_start|>{role}\\n{content}<|im_end|>\\n");
    json_decref(config);
    command_succeeds(RUN("convert", "--force", "--unchecked", "--model", theirs, "--out", ours,
                         "--chat-template", "{role}: {content}\\n"),
                     NULL);
    config = json_load_file(from, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(config, "chat_template")),
                        "{role}: {content}\\n");
    json_decref(config);
    command_succeeds(RUN("convert", "--force", "--model", ours, "--to-hf", "--out", back), NULL);
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "%s/%s", theirs, names[i]);
        snprintf(to, sizeof to, "%s/%s", back, names[i]);
        file_expect_equal(from, to);
    }
    snprintf(from, sizeof from, "%s/config.json", back);
    config = json_load_file(from, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(config, "bos_token_id")), 4);
    assert_int_equal(json_array_size(json_object_get(config, "eos_token_id")), 2);
    json_decref(config);
    /* A folder with these files in it is still weft's to replace. */
    command_succeeds(RUN("convert", "--force", "--model", ours, "--to-hf", "--out", back), NULL);
}

TEST(test_random_models_equal_transformers) {
    static char text[1 << 16];
    char command[2048];
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
    int status = pclose(pipe);
    printf("%s", text);
    assert_int_equal(status, 0);
}

RUN_TESTS(scratch_setup, scratch_teardown)

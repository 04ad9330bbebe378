/* `weft convert --to-mla` and `--to-w2`: what is exact is exact, what is lost is what is printed, and
 * what cannot be is refused. */
#include "support/command.h"
#include "support/snapshot.h"
#include "support/tensor_file.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 13, ROWS = 2, LENGTH = 8, WIDTH = 16, HEADS = 4, SHARED = 2, DIM = WIDTH / HEADS };

#define GROUPED                                                                                    \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=4", "-o", "KV_HEADS=2", "-o", "N_FFN=24",  \
        "-o", "VOCAB_SIZE=13", "-o", "CONTEXT=24", "-o", "POSITION=alibi"

/* The logits of a model in f64, in a file of that name. */
static const char *logits_of(const char *model, const char *name) {
    int32_t tokens[ROWS * (LENGTH + 1)];
    for (int i = 0; i < ROWS * (LENGTH + 1); i++)
        tokens[i] = (7 * i + 3) % VOCAB;
    const char *path = scratch_path("tokens.npy"), *out = scratch_path("%s.logits", name);
    npy_write(path, 4, ROWS, LENGTH + 1, tokens);
    command_succeeds(
        RUN("eval", "--model", model, "--tokens", path, "--logits", out, "--dtype", "f64"), NULL);
    return out;
}

#define GPT2 hf_path("gpt2")
#define LLAMA hf_path("llama")
#define GPT2_LOGITS hf_path("gpt2.logits.safetensors")
#define LLAMA_LOGITS hf_path("llama.logits.safetensors")

/* With biases everywhere: the kept model's logits are those of transformers. */
TEST(test_a_latent_of_full_width_is_exact) {
    const char *out = scratch_path("full");
    command_succeeds(RUN("convert", "--force", "--model", GPT2, "--to-mla", "--latent", "8",
                         "--dtype", "f64", "--out", out),
                     NULL);
    assert_true(tensors_apart(logits_of(out, "full"), GPT2_LOGITS, "logits") < 1e-12);
    command_succeeds(RUN("convert", "--force", "--model", GPT2, "--to-mla", "--latent", "8",
                         "--joint", "--dtype", "f64", "--out", out),
                     NULL);
    assert_true(tensors_apart(logits_of(out, "full"), GPT2_LOGITS, "logits") < 1e-12);
}

static const char *grouped_model(void) {
    const char *model = scratch_path("grouped");
    command_succeeds(
        RUN("init", "--force", GROUPED, "--dtype", "f64", "-o", "INIT=orthogonal", "--out", model),
        NULL);
    return model;
}

TEST(test_shared_heads_are_exact_at_their_own_width) {
    const char *model = grouped_model(), *out = scratch_path("latent");
    command_succeeds(
        RUN("convert", "--force", "--model", model, "--to-mla", "--latent", "8", "--out", out),
        NULL);
    assert_true(tensors_apart(logits_of(out, "latent"), logits_of(model, "grouped"), "logits") <
                1e-12);
    command_fails(2, RUN("convert", "--model", model, "--to-mla", "--latent", "9", "--out", out),
                  SAYS("--latent 9", "8 dimensions"));
}

/* ‖W − Ŵ‖ / ‖W‖ from the files, Ŵ being A's and W_dk's product without MLA's scale. */
static double lost_in_files(const char *from, const char *to, int64_t latent) {
    char path[600];
    int64_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    double *w = tensor_values(path, "h.1.attn.qkv.weight", &n), off = 0, all = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    double *down = tensor_values(path, "h.1.attn.k_down.weight", &n);
    double *a = tensor_values(path, "h.1.attn.q_latent", &n);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < DIM; i++)
            for (int j = 0; j < WIDTH; j++) {
                double made = 0;
                for (int64_t l = 0; l < latent; l++)
                    made += a[(h * DIM + i) * latent + l] * down[l * WIDTH + j];
                made /= sqrt((double)latent / DIM);
                double want = w[(WIDTH + h * SHARED / HEADS * DIM + i) * WIDTH + j];
                off += (want - made) * (want - made);
                all += want * want;
            }
    free(w);
    free(down);
    free(a);
    return sqrt(off / all);
}

static double number_in(const json_t *root, const char *list, size_t i, const char *key) {
    return json_number_value(json_object_get(json_array_get(json_object_get(root, list), i), key));
}

TEST(test_what_is_lost_is_what_is_printed) {
    const char *model = scratch_path("normal"), *out = scratch_path("latent");
    command_succeeds(RUN("init", "--force", GROUPED, "--dtype", "f64", "--out", model), NULL);
    double before = 1;
    for (int64_t latent = 1; latent <= 8; latent++) {
        char text[16];
        snprintf(text, sizeof text, "%d", (int)latent);
        json_t *said = command_json(RUN("convert", "--force", "--model", model, "--to-mla",
                                        "--latent", text, "--out", out, "--json"));
        double keys = number_in(said, "layers", 1, "keys");
        snapshot_expect_keys("convert.json", said);
        assert_true(fabs(keys - lost_in_files(model, out, latent)) < 1e-7);
        assert_true(keys < before);
        before = keys;
        json_decref(said);
    }
    assert_true(before < 1e-6);
}

/* By a text what its tokens need is kept, whatever the weights are beside it. */
TEST(test_a_text_tells_what_matters) {
    const char *model = scratch_path("bytes"), *out = scratch_path("latent"),
               *text = scratch_path("text"), *run = scratch_path("run");
    char words[4096];
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "abcabdab "[i % 9];
    file_write(text, words, sizeof words);
    command_succeeds(RUN("init", "--force", "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2",
                         "-o", "VOCAB_SIZE=256", "-o", "CONTEXT=32", "-o", "INIT=orthogonal", "-o",
                         "POSITION=none", "--out", model),
                     NULL);
    json_t *said = command_json(RUN("convert", "--force", "--model", model, "--to-mla", "--latent",
                                    "6", "--text", text, "--out", out, "--json"));
    double with = number_in(said, "layers", 0, "keys");
    assert_true(json_is_number(json_object_get(said, "loss_before")));
    json_decref(said);
    said = command_json(RUN("convert", "--force", "--model", model, "--to-mla", "--latent", "6",
                            "--out", out, "--json"));
    double without = number_in(said, "layers", 0, "keys");
    assert_true(json_is_null(json_object_get(said, "loss_before")));
    json_decref(said);
    /* Five letters without places have five directions. */
    assert_true(with < 1e-3 && without > 0.1);
    char config[600];
    snprintf(config, sizeof config, "%s/model.config", out);
    command_succeeds(RUN("train", "--config", config, "--from", out, "--out", run, "-o", "STEPS=2",
                         "-o", "BATCH_SIZE=2", "--peak-flops", "0"),
                     NULL);
}

/* The logits of the models "dot" and "rotated". */
static double rotated_apart(void) {
    const char *dot = logits_of(scratch_path("dot"), "dot");
    return tensors_apart(logits_of(scratch_path("rotated"), "rotated"), dot, "logits");
}

/* One key head is the shared key: with its biases and the scaling of the rotations, of all columns and of some. */
TEST(test_one_rotated_key_head_is_exact) {
    const char *dot = scratch_path("dot"), *out = scratch_path("rotated");
    command_succeeds(RUN("convert", "--force", "--model", LLAMA, "--dtype", "f64", "--out", dot),
                     NULL);
    command_succeeds(RUN("convert", "--force", "--model", LLAMA, "--to-mla", "--latent", "8",
                         "--dtype", "f64", "--out", out),
                     NULL);
    assert_true(rotated_apart() < 1e-12);
    for (int some = 0; some < 2; some++) {
        dot = scratch_path("dot");
        out = scratch_path("rotated");
        command_succeeds(RUN("init", "--force", GROUPED, "-o", "POSITION=rope", "-o", "KV_HEADS=1",
                             "-o", "HEAD_DIM=6", "-o", some ? "ROPE_DIM=4" : "ROPE_SCALING=yarn",
                             "-o", "ROPE_FACTOR=2", "-o", "INIT=orthogonal", "--dtype", "f64",
                             "--out", dot),
                         NULL);
        command_succeeds(
            RUN("convert", "--force", "--model", dot, "--to-mla", "--latent", "6", "--out", out),
            NULL);
        assert_true(rotated_apart() < 1e-12);
    }
}

/* Fewer columns rotate, and what is printed of them grows; of pairs that hardly rotate nothing is lost. */
TEST(test_slow_pairs_need_no_rotation) {
    const char *dot = scratch_path("dot"), *out = scratch_path("rotated");
    command_succeeds(RUN("init", "--force", GROUPED, "-o", "POSITION=rope", "-o", "KV_HEADS=1",
                         "-o", "HEAD_DIM=8", "-o", "ROPE_THETA=1e10", "-o", "INIT=orthogonal",
                         "--dtype", "f64", "--out", dot),
                     NULL);
    json_t *said = command_json(RUN("convert", "--force", "--model", dot, "--to-mla", "--rope", "4",
                                    "--latent", "8", "--out", out, "--json"));
    assert_true(number_in(said, "layers", 0, "positions") > 0.5);
    assert_true(number_in(said, "layers", 0, "keys") < 1e-6);
    json_decref(said);
    assert_true(rotated_apart() < 1e-4);
    dot = scratch_path("dot");
    command_fails(
        2, RUN("convert", "--model", dot, "--to-mla", "--rope", "3", "--latent", "4", "--out", out),
        SAYS("--rope 3", "rotates 8"));
}

static double moved(const char *model, const char *spread, const char *out) {
    json_t *said = command_json(RUN("convert", "--force", "--model", model, "--to-w2", "--spread",
                                    spread, "--dtype", "f64", "--out", out, "--json"));
    double most =
        fmax(number_in(said, "layers", 0, "moved"), number_in(said, "layers", 1, "moved"));
    json_decref(said);
    return most;
}

TEST(test_w2_starts_close_to_dot) {
    const char *out = scratch_path("w2");
    double one = moved(GPT2, "1", out), four = moved(GPT2, "4", out),
           many = moved(GPT2, "100", out);
    assert_true(four < one / 4);
    assert_true(many < 0.002);
    assert_true(tensors_apart(logits_of(out, "w2"), GPT2_LOGITS, "logits") < 0.005);
    /* Rotations and shared heads go with it. */
    assert_true(moved(LLAMA, "100", out) < 0.002);
    assert_true(tensors_apart(logits_of(out, "w2"), LLAMA_LOGITS, "logits") < 0.02);
    /* And so do normed queries and keys, of heads that do not fill the width. */
    assert_true(moved(hf_path("qwen3"), "100", out) < 0.002);
    assert_true(tensors_apart(logits_of(out, "w2"), hf_path("qwen3.logits.safetensors"), "logits") <
                0.02);
}

TEST(test_what_cannot_be_is_refused) {
    const char *out = scratch_path("refused"), *w2 = scratch_path("w2-refused");
    const char *normed = scratch_path("normed");
    command_fails(
        2,
        RUN("convert", "--model", GPT2, "--to-mla", "--latent", "4", "--rope", "2", "--out", out),
        SAYS("--rope 2", "rotates 0"));
    command_succeeds(RUN("convert", "--model", GPT2, "--to-w2", "--out", w2), NULL);
    command_fails(2, RUN("convert", "--model", w2, "--to-mla", "--latent", "4", "--out", out),
                  SAYS("CONFIG_ATTENTION=\"dot\"", "\"w2\""));
    command_succeeds(RUN("init", "-o", "QK_NORM=y", "-o", "N_LAYER=1", "-o", "N_EMBD=8", "-o",
                         "N_HEAD=2", "-o", "VOCAB_SIZE=16", "-o", "CONTEXT=8", "--out", normed),
                     NULL);
    command_fails(2, RUN("convert", "--model", normed, "--to-mla", "--latent", "4", "--out", out),
                  SAYS("CONFIG_QK_NORM=y"));
    command_fails(2, RUN("convert", "--model", GPT2, "--to-mla", "--out", out), SAYS("--latent"));
    command_fails(
        2, RUN("convert", "--model", GPT2, "--to-mla", "--to-w2", "--latent", "4", "--out", out),
        SAYS("do not go together"));
    command_fails(2, RUN("convert", "--model", GPT2, "--to-w2", "--joint", "--out", out),
                  SAYS("--joint"));
}

RUN_TESTS(scratch_setup, scratch_teardown)

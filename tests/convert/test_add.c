/* Mechanisms put into a finished model: its logits stay as they are, training moves what began at zero, and
 * a study's variants begin from one checkpoint. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/tensor_file.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 13, ROWS = 2, LENGTH = 8 };

#define GPT2 hf_path("gpt2")
#define LLAMA hf_path("llama")

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

/* How far the logits of `model` move when mechanisms are added, into a folder "added". */
static double moved_by_with(const char *model, const char *list, const char *first,
                            const char *second) {
    const char *plain = scratch_path("plain"), *added = scratch_path("added");
    command_succeeds(RUN("convert", "--force", "--model", model, "--add", list, "-o",
                         "WSFFN_N_HEAD=4", "-o", first, "-o", second, "--dtype", "f64", "--out",
                         added),
                     NULL);
    if (strstr(model, "/hf/"))
        command_succeeds(
            RUN("convert", "--force", "--model", model, "--dtype", "f64", "--out", plain), NULL);
    else
        plain = model;
    return tensors_apart(logits_of(plain, "plain"), logits_of(added, "added"), "logits");
}

static double moved_by(const char *model, const char *list) {
    return moved_by_with(model, list, "RA_MLA_MLP_ALPHA_LEARNED=n", "WSFFN_Z_LOGITS=0");
}

static bool has_tensor(const char *folder, const char *name, bool zero) {
    int64_t count;
    double *values = tensor_values(scratch_path("%s/model.safetensors", folder), name, &count),
           sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += fabs(values[i]);
    free(values);
    return zero == (sum == 0);
}

TEST(test_what_is_added_moves_no_logit) {
    assert_true(moved_by(GPT2, "gate") < 1e-12);
    assert_true(has_tensor("added", "h.0.ffn.gate_heads.weight", true));
    assert_true(has_tensor("added", "h.0.ffn.gate_proj.weight", false));
    assert_true(moved_by(GPT2, "cross") < 1e-12);
    assert_true(moved_by(GPT2, "output-gate") < 1e-12);
    assert_true(moved_by(LLAMA, "wsffn") < 1e-12);
    assert_true(moved_by(LLAMA, "gate,cross,output-gate,wsffn") < 1e-12);
    assert_true(moved_by(GPT2, "w2") < 1e-4);
    assert_true(moved_by(LLAMA, "w2,gate") < 1e-4);
    assert_true(moved_by_with(GPT2, "gate,cross", "RA_MLA_MLP_GATE_OPEN=3",
                              "RA_MLA_MLP_ALPHA_LEARNED=y") < 1e-12);
    assert_true(has_tensor("added", "h.0.ffn.gate_heads.bias", false));
    assert_true(moved_by_with(LLAMA, "wsffn", "WSFFN_POSITIVE=half", "WSFFN_Z_LOGITS=0.5") < 1e-12);
    const char *mla = scratch_path("mla");
    command_succeeds(RUN("convert", "--model", GPT2, "--to-mla", "--latent", "8", "--dtype", "f64",
                         "--out", mla),
                     NULL);
    assert_true(moved_by(mla, "latent,gate") < 1e-12);
    assert_true(has_tensor("added", "h.0.ffn.couple.weight", true));
}

TEST(test_what_cannot_be_added_is_refused) {
    const char *out = scratch_path("refused");
    command_fails(2, RUN("convert", "--model", GPT2, "--add", "gates", "--out", out),
                  SAYS("--add gates", "output-gate"));
    command_fails(2, RUN("convert", "--model", GPT2, "--add", "latent", "--out", out),
                  SAYS("LATENT_RECIP", "\"mla\""));
    command_fails(2, RUN("convert", "--model", GPT2, "--add", "wsffn", "--out", out),
                  SAYS("swiglu", "gelu"));
    command_fails(2, RUN("convert", "--model", GPT2, "--add", "gate", "--to-hf", "--out", out),
                  SAYS("do not go together"));
    const char *gated = scratch_path("gated");
    command_succeeds(RUN("convert", "--model", GPT2, "--add", "gate", "--out", gated), NULL);
    command_fails(2, RUN("convert", "--model", gated, "--add", "gate", "--out", out),
                  SAYS("has it already"));
}

#define SMALL                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=256", "-o",          \
        "CONTEXT=16", "-o", "RA_MLA_MLP_GATE_DIM=4", "-o", "INIT=orthogonal"

static const char *checkpoint(void) {
    const char *model = scratch_path("checkpoint");
    command_succeeds(RUN("init", "--force", SMALL, "--seed", "5", "--out", model), NULL);
    return model;
}

TEST(test_training_goes_on_with_what_was_added) {
    const char *model = checkpoint(), *added = scratch_path("more"), *out = scratch_path("on");
    command_succeeds(
        RUN("convert", "--model", model, "--add", "gate,cross,output-gate", "--out", added), NULL);
    command_succeeds(RUN("train", "--config", scratch_path("more/model.config"), "-o", "STEPS=2",
                         "-o", "BATCH_SIZE=2", "-o", "EVAL_SAMPLES=1", "--from", added, "--out",
                         out),
                     NULL);
    assert_true(has_tensor("on/last", "h.0.ffn.gate_heads.weight", false));
    assert_true(has_tensor("on/last", "h.0.ffn.cross_proj.weight", false));
    assert_true(has_tensor("on/last", "h.0.attn.out_gate.weight", false));
}

/* Mechanisms that a checkpoint has already: their weights begin to be learned where they were fixed, so that the
 * loss of the first step is the one without, and a rate of zero leaves them there. */
TEST(test_training_learns_the_weights_of_mechanisms_that_are_there) {
    static const char *const learned[] = {"n", "y"};
    static const char text[] =
        "CONFIG_N_LAYER=2\nCONFIG_N_EMBD=16\nCONFIG_N_HEAD=2\nCONFIG_VOCAB_SIZE=256\n"
        "CONFIG_CONTEXT=16\nCONFIG_BATCH_SIZE=2\nCONFIG_STEPS=1\nCONFIG_EVAL_SAMPLES=1\n"
        "CONFIG_LEARNING_RATE=0\nCONFIG_MIN_LR=0\nCONFIG_ATTENTION=\"mla\"\n"
        "CONFIG_RA_MLA_LATENT_DIM=8\nCONFIG_RA_MLA_MLP_GATE_DIM=4\nCONFIG_INIT=\"orthogonal\"\n"
        "CONFIG_RA_MLA_MLP_ATTN_GATE=y\nCONFIG_RA_MLA_MLP_CROSS_TOKEN=y\n"
        "CONFIG_RA_MLA_MLP_LATENT_RECIP=y\n";
    const char *config = scratch_path("fixed.config"), *model = scratch_path("fixed");
    double losses[2];
    file_write(config, text, strlen(text));
    command_succeeds(RUN("init", "--config", config, "--seed", "5", "--out", model), NULL);
    for (int i = 0; i < 2; i++) {
        const char *out = scratch_path("learned-%s", learned[i]);
        char learns[64], *line;
        snprintf(learns, sizeof learns, "RA_MLA_MLP_ALPHA_LEARNED=%s", learned[i]);
        command_succeeds(
            RUN("train", "--config", config, "-o", learns, "--from", model, "--out", out), NULL);
        line = file_read(scratch_path("learned-%s/metrics.jsonl", learned[i]), NULL);
        json_t *row = json_loads(line, 0, NULL);
        losses[i] = json_real_value(json_object_get(row, "loss"));
        json_decref(row);
        free(line);
    }
    assert_true(losses[0] > 0 && fabs(losses[1] - losses[0]) < 1e-5);
    static const char *const names[] = {"h.1.attn.gate_alpha", "h.0.ffn.cross_alpha",
                                        "h.0.ffn.recip_alpha"};
    static const double begins[] = {0.1, 0.3, 0.2};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t count;
        double *values =
            tensor_values(scratch_path("learned-y/last/model.safetensors"), names[i], &count);
        assert_int_equal(count, 1);
        assert_true(fabs(values[0] - begins[i]) < 1e-6);
        free(values);
    }
}

/* Variants of one checkpoint differ by what training makes of them: at a rate of zero, by nothing. */
TEST(test_a_study_begins_from_one_checkpoint) {
    static const char text[] =
        "CONFIG_N_LAYER=2\nCONFIG_N_EMBD=16\nCONFIG_N_HEAD=2\nCONFIG_VOCAB_SIZE=256\n"
        "CONFIG_CONTEXT=16\nCONFIG_BATCH_SIZE=2\nCONFIG_STEPS=1\nCONFIG_EVAL_SAMPLES=2\n"
        "CONFIG_RA_MLA_MLP_GATE_DIM=4\nCONFIG_LEARNING_RATE=0\nCONFIG_MIN_LR=0\n"
        "CONFIG_STUDY_VARIANTS=\"plain; gate: RA_MLA_MLP_ATTN_GATE=y; "
        "more: RA_MLA_MLP_CROSS_TOKEN=y ATTENTION_GATE=element\"\n";
    const char *config = scratch_path("config"), *out = scratch_path("study");
    char from[512];
    file_write(config, text, strlen(text));
    snprintf(from, sizeof from, "STUDY_FROM=%s", checkpoint());
    command_succeeds(RUN("study", "--config", config, "--out", out, "--threads", "1", "-o", from),
                     NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), 3);
    assert_int_equal(
        study_number(out, "SELECT max(score) - min(score) < 1e-5 AND min(score) > 0 FROM runs"), 1);
    const char *drawn = scratch_path("drawn");
    command_succeeds(RUN("study", "--config", config, "--out", drawn, "--threads", "1"), NULL);
    assert_int_equal(study_number(drawn, "SELECT max(score) - min(score) > 1e-5 FROM runs"), 1);
    command_fails(2,
                  RUN("study", "--config", config, "--out", scratch_path("nothing"), "-o",
                      "STUDY_FROM=/no/such/folder"),
                  SAYS("CONFIG_STUDY_FROM", "/no/such/folder"));
}

RUN_TESTS(scratch_setup, scratch_teardown)

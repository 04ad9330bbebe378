/* What a user has is not overwritten unasked, and what is asked for is written whole or not at all. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

static void holds(const char *path, const char *text) {
    char *is = file_read(path, NULL);
    assert_string_equal(is, text);
    free(is);
}

#define SMALL "-o", "N_LAYER=1", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=32"

TEST(test_init_spares_a_model) {
    size_t bytes, after;
    command_succeeds(RUN("init", "--out", at("model"), "--seed", "1", SMALL), NULL);
    char *before = file_read(at("model/model.safetensors"), &bytes);
    command_fails(2, RUN("init", "--out", at("model"), "--seed", "2", SMALL),
                  SAYS("config.json", "--force"));
    char *now = file_read(at("model/model.safetensors"), &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(before, now, bytes);
    free(now);
    command_succeeds(RUN("init", "--out", at("model"), "--seed", "2", "--force", SMALL), NULL);
    now = file_read(at("model/model.safetensors"), &after);
    assert_memory_not_equal(before, now, bytes);
    free(now);
    free(before);
}

/* A state.json that tells of another model would have the new one refused. */
TEST(test_a_forced_init_can_be_read) {
    int32_t tokens[] = {1, 2, 3, 4};
    npy_write(at("tokens.npy"), 4, 1, 4, tokens);
    file_write(at("model/state.json"), "{}", 2);
    command_fails(2, RUN("eval", "--model", at("model"), "--tokens", at("tokens.npy")),
                  SAYS("state.json", "--unchecked"));
    command_succeeds(RUN("init", "--out", at("model"), "--force", SMALL), NULL);
    command_succeeds(RUN("eval", "--model", at("model"), "--tokens", at("tokens.npy")), NULL);
}

TEST(test_eval_does_not_write_over_what_it_reads) {
    char path[300];
    snprintf(path, sizeof path, "%s", at("model/model.safetensors"));
    command_fails(
        2, RUN("eval", "--model", at("model"), "--tokens", at("tokens.npy"), "--logits", path),
        SAYS("model.safetensors", "name another"));
    command_fails(2,
                  RUN("eval", "--model", at("model"), "--tokens", at("tokens.npy"), "--scores",
                      at("tokens.npy")),
                  SAYS("tokens.npy", "name another"));
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    command_fails(
        2,
        RUN("eval", "--model", at("model"), "--tokens", at("tokens.npy"), "--logits", at("pipe")),
        SAYS("a pipe"));
}

TEST(test_csv_spares_files_and_databases) {
    char config[256], out[256], database[300];
    size_t bytes, after;
    snprintf(config, sizeof config, "%s", at("config"));
    snprintf(out, sizeof out, "%s", at("study"));
    snprintf(database, sizeof database, "%s/runs.db", out);
    study_config(config);
    command_succeeds(RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o",
                         "STUDY_LEARNING_RATES=1e-3", "-o", "STEPS=2"),
                     NULL);
    char *before = file_read(database, &bytes);
    command_fails(2, RUN("runs", out, "--csv", database), SAYS("runs.db", "--force"));
    command_fails(2, RUN("runs", out, "--csv", database, "--force"), SAYS("database"));
    char *now = file_read(database, &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(before, now, bytes);
    free(before);
    free(now);
    file_write(at("table.csv"), "mine", 4);
    command_fails(2, RUN("runs", out, "--csv", at("table.csv")), SAYS("table.csv", "--force"));
    command_fails(2, RUN("runs", at("no-study"), "--csv", at("table.csv"), "--force"),
                  SAYS("no-study"));
    holds(at("table.csv"), "mine");
    command_succeeds(RUN("runs", out, "--csv", at("table.csv"), "--force"), NULL);
    command_succeeds(RUN("runs", out, "--metrics-csv", at("steps.csv")), NULL);
    now = file_read(at("table.csv"), NULL);
    assert_non_null(strchr(now, '\n'));
    free(now);
    command_fails(2, RUN("runs", out, "--csv", "/dev/full"), SAYS("device"));
    /* A run in the middle of a study. */
    command_fails(2, RUN("train", "--config", config, "--out", out), SAYS("a study's folder"));
    assert_int_not_equal(access(at("study/metrics.jsonl"), F_OK), 0);
    /* And a study in the middle of a run, or of a model. */
    shell_succeeds("mkdir '%s' && touch '%s/metrics.jsonl'", at("a-run"), at("a-run"));
    command_fails(2, RUN("study", "--config", config, "--out", at("a-run")),
                  SAYS("a run's folder"));
    command_fails(2, RUN("study", "--config", config, "--out", at("model")),
                  SAYS("a model's folder"));
    shell_succeeds("test \"$(ls -A '%s')\" = metrics.jsonl && ! test -e '%s/lock'", at("a-run"),
                   at("model"));
}

/* --force replaces a folder whole, and only one that weft made. */
TEST(test_force_replaces_the_whole_folder) {
    file_write(at("model/optimizer.safetensors"), "another's", 9);
    command_succeeds(RUN("init", "--out", at("model"), "--force", SMALL), NULL);
    assert_int_not_equal(access(at("model/optimizer.safetensors"), F_OK), 0);
    file_write(at("model/thesis"), "mine", 4);
    command_fails(2, RUN("init", "--out", at("model"), "--force", SMALL), SAYS("other things"));
    holds(at("model/thesis"), "mine");
    assert_int_equal(unlink(at("model/thesis")), 0);
}

/* Each from a model, but not from one: a config that differs in what changes no shape, weights of the
 * same size. Every command that reads a model refuses it, and says how to take it all the same. */
TEST(test_parts_that_do_not_belong_together_are_refused) {
    static const char *const parts[] = {"config.json", "model.safetensors"};
    command_succeeds(RUN("init", "--out", at("other"), "--seed", "5", SMALL, "-o", "ATTENTION=w2",
                         "-o", "W2_TAU=3", "-o", "W2_TAU_LEARNED=n"),
                     NULL);
    for (int i = 0; i < 2; i++) {
        command_succeeds(RUN("init", "--out", at("mixed"), "--force", "--seed", "6", SMALL, "-o",
                             "ATTENTION=w2", "-o", "W2_TAU=4", "-o", "W2_TAU_LEARNED=n"),
                         NULL);
        shell_succeeds("cp '%s/%s' '%s/%s'", at("other"), parts[i], at("mixed"), parts[i]);
#define MIXED(command, ...)                                                                        \
    command_fails(2, RUN(command, "--model", at("mixed"), __VA_ARGS__),                            \
                  SAYS(parts[i], "--unchecked"))
        MIXED("eval", "--tokens", at("tokens.npy"));
        MIXED("generate", "--prompt", "a");
        MIXED("serve", "--port", "0");
        MIXED("inspect", "--tokens", at("tokens.npy"));
        MIXED("prune", "--what", "heads", "--keep", "0.5", "--out", at("pruned"));
        MIXED("convert", "--to-hf", "--out", at("converted"));
        command_fails(
            2,
            RUN("train", "--config", "defconfigs/demo", "--from", at("mixed"), "--out", at("from")),
            SAYS(parts[i], "--unchecked"));
        command_succeeds(
            RUN("eval", "--unchecked", "--model", at("mixed"), "--tokens", at("tokens.npy")), NULL);
    }
    /* Without checksums, as others write it, nothing is said against it. */
    assert_int_equal(unlink(at("mixed/state.json")), 0);
    command_succeeds(RUN("eval", "--model", at("mixed"), "--tokens", at("tokens.npy")), NULL);
}

/* A page of the user's by that name stays, in the study's folder and elsewhere; weft's own is
 * written anew. */
TEST(test_a_report_spares_other_pages) {
    char study[256];
    snprintf(study, sizeof study, "%s", at("reported"));
    assert_int_equal(mkdir(study, 0777), 0);
    file_write(at("reported/report.md"), "mine\n", 5);
    study_config(at("report-config"));
#define ONE                                                                                        \
    RUN("study", "--config", at("report-config"), "--out", study, "--variants", "2", "-o",         \
        "STUDY_SEEDS=1", "-o", "STUDY_LEARNING_RATES=")
    command_fails(2, ONE, SAYS("report.md", "no report of weft's"));
    assert_int_not_equal(access(at("reported/runs.db"), F_OK), 0); /* nothing ran for nothing */
    assert_int_equal(unlink(at("reported/report.md")), 0);
    command_succeeds(ONE, NULL);
    command_succeeds(RUN("report", study), NULL);
    command_succeeds(ONE, NULL);
    file_write(at("reported/report.html"), "<p>mine", 7);
    command_fails(2, RUN("report", study), SAYS("report.html", "--force"));
    holds(at("reported/report.html"), "<p>mine");
    command_succeeds(RUN("report", study, "--force"), NULL);
    command_succeeds(RUN("report", study), NULL);
    assert_int_equal(mkdir(at("elsewhere"), 0777), 0);
    file_write(at("elsewhere/report.md"), "# Study of mine\n", 16);
    command_fails(2, RUN("report", study, "--out", at("elsewhere")), SAYS("report.md", "--force"));
    holds(at("elsewhere/report.md"), "# Study of mine\n");
    assert_int_not_equal(access(at("elsewhere/report.html"), F_OK), 0);
    /* One that was written before reports had marks. */
    file_write(at("elsewhere/report.html"), "<!DOCTYPE html><title>weft: a study</title>", 43);
    command_succeeds(RUN("report", study, "--out", at("elsewhere")), NULL);
}

TEST(test_tokenizer_train_spares_a_file) {
    file_write(at("text"), "some text, some more text", 25);
    file_write(at("own.json"), "mine", 4);
    command_fails(2,
                  RUN("tokenizer", "train", "--vocab", "260", "--out", at("own.json"), at("text")),
                  SAYS("own.json", "--force"));
    holds(at("own.json"), "mine");
    command_succeeds(
        RUN("tokenizer", "train", "--vocab", "260", "--out", at("own.json"), "--force", at("text")),
        NULL);
}

TEST(test_tokenize_removes_only_its_own_parts) {
    int32_t tokens[] = {1, 2, 3};
    assert_int_equal(mkdir(at("shards"), 0777), 0);
    file_write(at("shards/train_notes.part"), "mine", 4);
    file_write(at("shards/train_000000.bin.part"), "a thesis", 8);
    command_fails(2, RUN("tokenize", "--out", at("shards"), at("text")),
                  SAYS("train_000000.bin.part", "move it away"));
    holds(at("shards/train_000000.bin.part"), "a thesis");
    holds(at("shards/train_notes.part"), "mine");
    /* What it left itself, half written. */
    shard_write(at("shards/train_000000.bin.part"), 20240520, 1, 0, 2, tokens, 3);
    file_write(at("shards/train_000001.bin.part"), "", 0);
    file_write(at("shards/tokenizer.json"), "mine", 4);
    command_fails(2, RUN("tokenize", "--out", at("shards"), at("text")),
                  SAYS("tokenizer.json", "name another folder"));
    holds(at("shards/tokenizer.json"), "mine");
    assert_int_equal(unlink(at("shards/tokenizer.json")), 0);
    command_succeeds(RUN("tokenize", "--out", at("shards"), at("text")), NULL);
    holds(at("shards/train_notes.part"), "mine");
    assert_int_not_equal(access(at("shards/train_000001.bin.part"), F_OK), 0);
}

/* A tokenizer that lies where its shards go is left as it is. */
TEST(test_tokenize_with_the_tokenizer_in_its_place) {
    char tokenizer[300];
    assert_int_equal(mkdir(at("with"), 0777), 0);
    snprintf(tokenizer, sizeof tokenizer, "%s", at("with/tokenizer.json"));
    command_succeeds(RUN("tokenizer", "train", "--vocab", "260", "--out", tokenizer, at("text")),
                     NULL);
    command_succeeds(RUN("tokenize", "--out", at("with"), "--tokenizer", tokenizer, at("text")),
                     NULL);
}

RUN_TESTS(scratch_setup, scratch_teardown)

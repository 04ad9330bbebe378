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
    WEFT_AUTO_FREE char *is = file_read(path, NULL);
    assert_string_equal(is, text);
}

#define SMALL "-o", "N_LAYER=1", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=32"

TEST(test_init_spares_a_model) {
    size_t bytes, after;
    SUCCEEDS("init", "--out", at("model"), "--seed", "1", SMALL);
    WEFT_AUTO_FREE char *before = file_read(at("model/model.safetensors"), &bytes);
    FAILS(2, SAYS("config.json", "--force"), "init", "--out", at("model"), "--seed", "2", SMALL);
    char *now = file_read(at("model/model.safetensors"), &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(before, now, bytes);
    free(now);
    SUCCEEDS("init", "--out", at("model"), "--seed", "2", "--force", SMALL);
    now = file_read(at("model/model.safetensors"), &after);
    assert_memory_not_equal(before, now, bytes);
    free(now);
}

/* A state.json that tells of another model would have the new one refused. */
TEST(test_a_forced_init_can_be_read) {
    int32_t tokens[] = {1, 2, 3, 4};
    npy_write(at("tokens.npy"), 4, 1, 4, tokens);
    file_write(at("model/state.json"), "{}", 2);
    FAILS(2, SAYS("state.json", "--unchecked"), "eval", "--model", at("model"), "--tokens",
          at("tokens.npy"));
    SUCCEEDS("init", "--out", at("model"), "--force", SMALL);
    SUCCEEDS("eval", "--model", at("model"), "--tokens", at("tokens.npy"));
}

TEST(test_eval_does_not_write_over_what_it_reads) {
    FAILS(2, SAYS("model.safetensors", "name another"), "eval", "--model", at("model"), "--tokens",
          at("tokens.npy"), "--logits", at("model/model.safetensors"));
    FAILS(2, SAYS("tokens.npy", "name another"), "eval", "--model", at("model"), "--tokens",
          at("tokens.npy"), "--scores", at("tokens.npy"));
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    FAILS(2, SAYS("a pipe"), "eval", "--model", at("model"), "--tokens", at("tokens.npy"),
          "--logits", at("pipe"));
}

TEST(test_csv_spares_files_and_databases) {
    size_t bytes, after;
    const char *config = at("config");
    const char *out = at("study");
    const char *database = format_text("%s/runs.db", out);
    study_config(config);
    SUCCEEDS("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o",
             "STUDY_LEARNING_RATES=1e-3", "-o", "STEPS=2");
    WEFT_AUTO_FREE char *before = file_read(database, &bytes);
    FAILS(2, SAYS("runs.db", "--force"), "runs", out, "--csv", database);
    FAILS(2, SAYS("database"), "runs", out, "--csv", database, "--force");
    char *now = file_read(database, &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(before, now, bytes);
    free(now);
    file_write(at("table.csv"), "mine", 4);
    FAILS(2, SAYS("table.csv", "--force"), "runs", out, "--csv", at("table.csv"));
    FAILS(2, SAYS("no-study"), "runs", at("no-study"), "--csv", at("table.csv"), "--force");
    holds(at("table.csv"), "mine");
    SUCCEEDS("runs", out, "--csv", at("table.csv"), "--force");
    SUCCEEDS("runs", out, "--metrics-csv", at("steps.csv"));
    now = file_read(at("table.csv"), NULL);
    assert_non_null(strchr(now, '\n'));
    free(now);
    FAILS(2, SAYS("device"), "runs", out, "--csv", "/dev/full");
    /* A run in the middle of a study. */
    FAILS(2, SAYS("a study's folder"), "train", "--config", config, "--out", out);
    assert_int_not_equal(access(at("study/metrics.jsonl"), F_OK), 0);
    /* And a study in the middle of a run, or of a model. */
    shell_succeeds("mkdir '%s' && touch '%s/metrics.jsonl'", at("a-run"), at("a-run"));
    FAILS(2, SAYS("a run's folder"), "study", "--config", config, "--out", at("a-run"));
    FAILS(2, SAYS("a model's folder"), "study", "--config", config, "--out", at("model"));
    shell_succeeds("test \"$(ls -A '%s')\" = metrics.jsonl && ! test -e '%s/lock'", at("a-run"),
                   at("model"));
}

/* --force replaces a folder whole, and only one that weft made. */
TEST(test_force_replaces_the_whole_folder) {
    file_write(at("model/optimizer.safetensors"), "another's", 9);
    SUCCEEDS("init", "--out", at("model"), "--force", SMALL);
    assert_int_not_equal(access(at("model/optimizer.safetensors"), F_OK), 0);
    file_write(at("model/thesis"), "mine", 4);
    FAILS(2, SAYS("other things"), "init", "--out", at("model"), "--force", SMALL);
    holds(at("model/thesis"), "mine");
    assert_int_equal(unlink(at("model/thesis")), 0);
}

/* Each from a model, but not from one: a config that differs in what changes no shape, weights of the
 * same size. Every command that reads a model refuses it, and says how to take it all the same. */
TEST(test_parts_that_do_not_belong_together_are_refused) {
    static const char *const parts[] = {"config.json", "model.safetensors"};
    SUCCEEDS("init", "--out", at("other"), "--seed", "5", SMALL, "-o", "ATTENTION=w2", "-o",
             "W2_TAU=3", "-o", "W2_TAU_LEARNED=n");
    for (int i = 0; i < 2; i++) {
        SUCCEEDS("init", "--out", at("mixed"), "--force", "--seed", "6", SMALL, "-o",
                 "ATTENTION=w2", "-o", "W2_TAU=4", "-o", "W2_TAU_LEARNED=n");
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
        FAILS(2, SAYS(parts[i], "--unchecked"), "train", "--config", "defconfigs/demo", "--from",
              at("mixed"), "--out", at("from"));
        SUCCEEDS("eval", "--unchecked", "--model", at("mixed"), "--tokens", at("tokens.npy"));
    }
    /* Without checksums, as others write it, nothing is said against it. */
    assert_int_equal(unlink(at("mixed/state.json")), 0);
    SUCCEEDS("eval", "--model", at("mixed"), "--tokens", at("tokens.npy"));
}

/* A page of the user's by that name stays, in the study's folder and elsewhere; weft's own is
 * written anew. */
TEST(test_a_report_spares_other_pages) {
    const char *study = at("reported");
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
    SUCCEEDS("report", study);
    command_succeeds(ONE, NULL);
    file_write(at("reported/report.html"), "<p>mine", 7);
    FAILS(2, SAYS("report.html", "--force"), "report", study);
    holds(at("reported/report.html"), "<p>mine");
    SUCCEEDS("report", study, "--force");
    SUCCEEDS("report", study);
    assert_int_equal(mkdir(at("elsewhere"), 0777), 0);
    file_write(at("elsewhere/report.md"), "# Study of mine\n", 16);
    FAILS(2, SAYS("report.md", "--force"), "report", study, "--out", at("elsewhere"));
    holds(at("elsewhere/report.md"), "# Study of mine\n");
    assert_int_not_equal(access(at("elsewhere/report.html"), F_OK), 0);
    SUCCEEDS("report", study, "--out", at("elsewhere"), "--force");
    SUCCEEDS("report", study, "--out", at("elsewhere"));
}

TEST(test_tokenizer_train_spares_a_file) {
    file_write(at("text"), "some text, some more text", 25);
    file_write(at("own.json"), "mine", 4);
    FAILS(2, SAYS("own.json", "--force"), "tokenizer", "train", "--vocab", "260", "--out",
          at("own.json"), at("text"));
    holds(at("own.json"), "mine");
    SUCCEEDS("tokenizer", "train", "--vocab", "260", "--out", at("own.json"), "--force",
             at("text"));
}

TEST(test_tokenize_removes_only_its_own_parts) {
    int32_t tokens[] = {1, 2, 3};
    assert_int_equal(mkdir(at("shards"), 0777), 0);
    file_write(at("shards/train_notes.part"), "mine", 4);
    file_write(at("shards/train_000000.bin.part"), "a thesis", 8);
    FAILS(2, SAYS("train_000000.bin.part", "move it away"), "tokenize", "--out", at("shards"),
          at("text"));
    holds(at("shards/train_000000.bin.part"), "a thesis");
    holds(at("shards/train_notes.part"), "mine");
    /* What it left itself, half written. */
    shard_write(at("shards/train_000000.bin.part"), 20240520, 1, 0, 2, tokens, 3);
    file_write(at("shards/train_000001.bin.part"), "", 0);
    file_write(at("shards/tokenizer.json"), "mine", 4);
    FAILS(2, SAYS("tokenizer.json", "name another folder"), "tokenize", "--out", at("shards"),
          at("text"));
    holds(at("shards/tokenizer.json"), "mine");
    assert_int_equal(unlink(at("shards/tokenizer.json")), 0);
    SUCCEEDS("tokenize", "--out", at("shards"), at("text"));
    holds(at("shards/train_notes.part"), "mine");
    assert_int_not_equal(access(at("shards/train_000001.bin.part"), F_OK), 0);
}

/* A tokenizer that lies where its shards go is left as it is. */
TEST(test_tokenize_with_the_tokenizer_in_its_place) {
    assert_int_equal(mkdir(at("with"), 0777), 0);
    const char *tokenizer = at("with/tokenizer.json");
    SUCCEEDS("tokenizer", "train", "--vocab", "260", "--out", tokenizer, at("text"));
    SUCCEEDS("tokenize", "--out", at("with"), "--tokenizer", tokenizer, at("text"));
}

RUN_TESTS(scratch_setup, scratch_teardown)

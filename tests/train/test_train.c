/* What `weft train` leaves behind: the same bits for the same config, checkpoints and lines that
 * others can read, and a folder that it can go on from. */
#include "core/safetensors.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder(const char *name) {
    return scratch_path("%s", name);
}

/* The value of a key in the last line that has it; NaN: none has. Counts the lines. */
static double metric(const char *run, const char *key, int *lines) {
    WEFT_AUTO_DECREF json_t *rows = train_metrics(run);
    double value = NAN;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *number = json_object_get(json_array_get(rows, i), key);
        if (json_is_number(number)) value = json_number_value(number);
    }
    if (lines) *lines = (int)json_array_size(rows);
    return value;
}

static void train(const char *out, const char *threads, const char *override) {
    SUCCEEDS("train", "--config", config_path, "--out", out, "--threads", threads, "-o", override);
}

TEST(test_same_config_gives_same_bits) {
    train(folder("a"), "1", "SEED=3");
    train(folder("b"), "1", "SEED=3");
    train_same_end(folder("a"), folder("b"));
    train(folder("c"), "3", "SEED=3");
    train_same_end(folder("a"), folder("c"));
    setenv("WEFT_PIN", "cores", 1);
    train(folder("d"), "0", "SEED=3");
    unsetenv("WEFT_PIN");
    train_same_end(folder("a"), folder("d"));
}

TEST(test_recomputed_layers_give_same_bits) {
    train(folder("stored"), "1", "RECOMPUTE=n");
    train(folder("again"), "2", "RECOMPUTE=y");
    train_same_end(folder("stored"), folder("again"));
}

TEST(test_bf16_gives_same_bits_and_resumes) {
    train(folder("w"), "1", "DTYPE=bf16");
    SUCCEEDS("train", "--config", config_path, "--out", folder("x"), "--dtype", "bf16", "-o",
             "STEPS=12", "-o", "LR_SCHEDULE=cosine", "--threads", "3");
    train_same_end(folder("w"), folder("x"));
    weft_safetensors *file;
    expect_ok(weft_safetensors_open(scratch_path("w/last/optimizer.safetensors"), &file));
    const weft_safetensor *master = weft_safetensors_find(file, "master.wte.weight");
    assert_non_null(master);
    assert_int_equal(master->dtype, WEFT_FILE_F32);
    weft_safetensors_close(file);
}

TEST(test_resuming_step_by_step_gives_same_bits) {
    /* The schedule must not depend on how long each leg is, so it is the constant one. Threads differ
     * from leg to leg, and whether layers are made again. */
    SUCCEEDS("train", "--config", config_path, "--out", folder("one"), "-o", "LR_SCHEDULE=constant",
             "--dtype", "bf16");
    for (int i = 3; i <= 12; i += 3) {
        char iterations[32], threads[2] = {(char)('0' + i / 3), 0};
        snprintf(iterations, sizeof iterations, "STEPS=%d", i);
        SUCCEEDS("train", "--config", config_path, "--out", folder("legs"), "--resume", "-o",
                 "LR_SCHEDULE=constant", "-o", iterations, "--dtype", "bf16", "--threads", threads,
                 "-o", i % 2 ? "RECOMPUTE=y" : "RECOMPUTE=n");
        /* As a kill between the two renames leaves it where names cannot be exchanged. */
        if (i == 6)
            assert_int_equal(rename(scratch_path("legs/last"), scratch_path("legs/last.old")), 0);
    }
    train_same_file(folder("one"), folder("legs"), "last/model.safetensors");
    train_same_file(folder("one"), folder("legs"), "last/optimizer.safetensors");
    int lines;
    assert_true(metric(folder("legs"), "step", &lines) == 12);
    assert_int_equal(lines, 12);
}

/* With what the command line set, so that it goes on, or is run again, by its folder alone. */
TEST(test_a_run_keeps_its_config) {
    SUCCEEDS("train", "--config", config_path, "--out", folder("whole"), "-o", "SEED=3", "-o",
             "LR_SCHEDULE=constant");
    SUCCEEDS("train", "--config", config_path, "--out", folder("half"), "-o", "SEED=3", "-o",
             "LR_SCHEDULE=constant", "-o", "STEPS=6");
    SUCCEEDS("train", "--resume", "--out", folder("half"), "-o", "STEPS=12");
    train_same_file(folder("whole"), folder("half"), "last/model.safetensors");
    SUCCEEDS("train", "--config", scratch_path("whole/config"), "--out", folder("anew"));
    train_same_end(folder("whole"), folder("anew"));
}

/* A run that begins takes what fits, here the whole batch; one that goes on keeps what it has, here 2. */
TEST(test_an_automatic_micro_batch_stays_with_its_run) {
    SUCCEEDS("train", "--config", config_path, "--out", folder("zero"), "-o", "MICRO_BATCH=0");
    SUCCEEDS("train", "--config", config_path, "--out", folder("fits"), "-o", "MICRO_BATCH=auto");
    train_same_end(folder("zero"), folder("fits"));
    train_same_file(folder("zero"), folder("fits"), "last/config.json");
    SUCCEEDS("train", "--config", config_path, "--out", folder("two"), "-o", "STEPS=6", "-o",
             "LR_SCHEDULE=constant");
    SUCCEEDS("train", "--config", config_path, "--out", folder("two"), "--resume", "-o",
             "BATCH_SIZE=auto", "-o", "LR_SCHEDULE=constant");
    SUCCEEDS("train", "--config", config_path, "--out", folder("once"), "-o",
             "LR_SCHEDULE=constant");
    train_same_file(folder("once"), folder("two"), "last/model.safetensors");
}

TEST(test_metrics_have_the_keys_of_the_contract) {
    static const char *const keys[] = {
        "step", "loss",      "cross_entropy", "aux_z", "logits_z", "val_loss", "aux_contrastive",
        "lr",   "grad_norm", "tokens_per_s",  "mfu"};
    train(folder("m"), "2", "SEED=1");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!isfinite(metric(folder("m"), keys[i], NULL))) fail_msg("no %s", keys[i]);
    int lines;
    assert_true(metric(folder("m"), "step", &lines) == 12);
    assert_int_equal(lines, 12);
    assert_true(metric(folder("m"), "loss", NULL) < 5.5);
    assert_int_equal(access(scratch_path("m/events.out.tfevents.0000000000.weft"), R_OK), 0);
}

/* The dataset's tokenizer has an end of text, the last of its 264 tokens: nobody has to name it. */
TEST(test_documents_end_as_the_tokenizer_says) {
    char texts[4][300];
    const char *own = scratch_path("own.json");
    const char *data = scratch_path("data");
    const char *dataset = format_text("DATASET=%s", data);
    for (int i = 0; i < 4; i++) {
        char text[4096] = "";
        for (int k = 0; k < 60; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "low lower slow %d %d ", i,
                     k);
        snprintf(texts[i], sizeof texts[i], "%s", scratch_path("text-%d", i));
        file_write(texts[i], text, strlen(text));
    }
    SUCCEEDS("tokenizer", "train", "--vocab", "264", "--out", own, texts[0]);
    SUCCEEDS("tokenize", "--tokenizer", own, "--out", data, "--val", texts[3], texts[0], texts[1],
             texts[2]);
#define DOCUMENTS(out)                                                                             \
    "train", "--config", config_path, "--out", out, "-o", dataset, "-o", "VOCAB_SIZE=264", "-o",   \
        "DOCUMENT_MASK=y", "-o", "LR_SCHEDULE=constant", "-o", "STEPS=2"
    SUCCEEDS(DOCUMENTS(folder("found")));
    SUCCEEDS(DOCUMENTS(folder("named")), "-o", "DOCUMENT_TOKEN=263");
    train_same_end(folder("found"), folder("named"));
    WEFT_AUTO_DECREF json_t *kept = json_load_file(scratch_path("found/last/config.json"), 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(kept, "document_token")), 263);
    SUCCEEDS(DOCUMENTS(folder("found")), "-o", "STEPS=3", "--resume");
    SUCCEEDS("train", "--resume", "--out", folder("found"), "-o", "STEPS=4");
    FAILS(2, SAYS("DOCUMENT_TOKEN", "end of text"), DOCUMENTS(folder("bytes")), "-o",
          "DATASET=embedded");
}

TEST(test_metric_of_a_task_is_reported) {
    command_result r =
        command_run(RUN("train", "--config", config_path, "--out", folder("recall"), "-o",
                        "DATASET=recall", "-o", "VOCAB_SIZE=1024", "-o", "STEPS=2", "--json"));
    assert_int_equal(r.status, 0);
    WEFT_AUTO_DECREF json_t *object = json_loads(r.out, 0, NULL);
    assert_true(json_is_number(json_object_get(object, "recall_accuracy")));
    assert_true(json_is_true(json_object_get(object, "finished")));
    command_free(&r);
    assert_true(isfinite(metric(folder("recall"), "recall_accuracy", NULL)));
}

/* Each task at its smallest, where guessing has 0.25 to 0.5: the held-out answers are nearly all right. */
TEST(test_tasks_are_learned) {
    static const char *const tasks[][4] = {
        {"DATASET=mqar", "TASK_SIZE=1", "VOCAB_SIZE=8", "mqar_accuracy"},
        {"DATASET=induction", "TASK_SIZE=1", "VOCAB_SIZE=9", "induction_accuracy"},
        {"DATASET=copying", "TASK_SIZE=2", "VOCAB_SIZE=8", "copying_accuracy"},
        {"DATASET=compression", "TASK_SIZE=2", "VOCAB_SIZE=8", "compression_accuracy"}};
    config_write(scratch_path("task"),
                 "N_LAYER=2 N_HEAD=2 N_EMBD=32 N_FFN=64 POSITION=rope CONTEXT=8 BATCH_SIZE=16 "
                 "STEPS=300 WARMUP_STEPS=20 LEARNING_RATE=1e-2 EVAL_INTERVAL=300 EVAL_SAMPLES=8 "
                 "SAVE_CHECKPOINT=n");
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        const char *const *t = tasks[i];
        SUCCEEDS("train", "--config", scratch_path("task"), "--out", folder(t[3]), "-o", t[0], "-o",
                 t[1], "-o", t[2]);
        double right = metric(folder(t[3]), t[3], NULL);
        if (!(right > 0.9)) fail_msg("%s: %g", t[3], right);
    }
}

TEST(test_used_folder_needs_resume) {
    train(folder("used"), "1", "STEPS=2");
    FAILS(2, SAYS("used", "--resume"), "train", "--config", config_path, "--out", folder("used"));
    FAILS(2, SAYS("CONFIG_LEARNING_RATE", "0.01", "0.5", "--from"), "train", "--config",
          config_path, "--out", folder("used"), "--resume", "-o", "LEARNING_RATE=0.5");
}

TEST(test_from_starts_with_a_fresh_optimizer) {
    train(folder("base"), "1", "STEPS=2");
    SUCCEEDS("train", "--config", config_path, "--out", folder("tuned"), "--from",
             scratch_path("base/last"), "-o", "LEARNING_RATE=0", "-o", "MIN_LR=0", "-o", "STEPS=1");
    train_same_file(folder("base"), folder("tuned"), "last/model.safetensors");
    FAILS(2, SAYS("nowhere"), "train", "--config", config_path, "--out", folder("none"), "--from",
          folder("nowhere"));
}

TEST(test_last_checkpoints_are_kept) {
    SUCCEEDS("train", "--config", config_path, "--out", folder("keep"), "-o", "CHECKPOINT_KEEP=3",
             "-o", "CHECKPOINT_INTERVAL=2");
    assert_int_equal(access(scratch_path("keep/step-0000000010/state.json"), R_OK), 0);
    assert_int_equal(access(scratch_path("keep/step-0000000008/state.json"), R_OK), 0);
    assert_int_not_equal(access(scratch_path("keep/step-0000000006"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("keep/last.new"), F_OK), 0);
    /* An older one is a checkpoint like any other. */
    SUCCEEDS("train", "--config", config_path, "--out", folder("older"), "--from",
             scratch_path("keep/step-0000000008"), "-o", "STEPS=1");
}

RUN_TESTS(train_setup, scratch_teardown)

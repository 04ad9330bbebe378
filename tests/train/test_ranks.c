/* Several processes train one model: the same bits as one of them, at any number, and through
 * resuming at another number. */
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS_MOST = 4, NAME_ROOM = 256 };

/* Seven micro-batches: no number of ranks shares them evenly, and the tree has a rest. The contrastive
 * loss and the left-out targets of a task have to be brought together. */
static void write_config(const char *path, const char *dataset, const char *ffn) {
    config_write(path, format_text("N_LAYER=2 N_HEAD=2 N_EMBD=16 VOCAB_SIZE=256 CONTEXT=24 FFN=%s "
                                   "WSFFN_N_HEAD=4 DROPOUT=0.1 DATASET=%s BATCH_SIZE=7 "
                                   "MICRO_BATCH=1 LEARNING_RATE=1e-2 STEPS=6 EVAL_INTERVAL=3 "
                                   "EVAL_SAMPLES=2 LOG_INTERVAL=1 CHECKPOINT_INTERVAL=2",
                                   ffn, dataset));
}

/* The logged losses, which say what the weights do not: they are equal too. */
static void same_losses(const char *a, const char *b) {
    static const char *const keys[] = {"loss", "cross_entropy", "aux_contrastive", "val_loss",
                                       "grad_norm"};
    WEFT_AUTO_DECREF json_t *x = train_metrics(a);
    WEFT_AUTO_DECREF json_t *y = train_metrics(b);
    assert_true(json_array_size(x) <= json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            double p = json_number_value(json_object_get(json_array_get(x, i), keys[k]));
            double q = json_number_value(json_object_get(json_array_get(y, i), keys[k]));
            if (memcmp(&p, &q, sizeof p) != 0)
                fail_msg("%s and %s: %s is %.17g and %.17g", a, b, keys[k], p, q);
        }
}

/* `more`: further lines of the config. */
static void check_numbers(const char *name, const char *dataset, const char *ffn, const char *dtype,
                          const char *more) {
    ranks_need_mpi();
    const char *config = scratch_path("%s.config", name);
    const char *alone = scratch_path("%s-1", name);
    const char *err = scratch_path("err");
    write_config(config, dataset, ffn);
    size_t size;
    char *text = file_read(config, &size), all[2048];
    int length = snprintf(all, sizeof all, "%s%s", text, more);
    file_write(config, all, (size_t)length);
    free(text);
    SUCCEEDS("train", "--config", config, "--out", alone, "--dtype", dtype, "--peak-flops", "0");
    for (int p = 2; p <= RANKS_MOST; p++) {
        const char *together = scratch_path("%s-%d", name, p);
        int status = ranks_run(p,
                               RUN("train", "--config", config, "--out", together, "--dtype", dtype,
                                   "--peak-flops", "0"),
                               err);
        if (status != 0) {
            size_t n;
            fail_msg("%d ranks ended on %d: %s", p, status, file_read(err, &n));
        }
        train_same_end(alone, together);
        same_losses(alone, together);
    }
}

TEST(test_any_number_of_ranks_ends_on_the_same_bits) {
    check_numbers("wsffn", "embedded", "wsffn", "f32", "");
}

TEST(test_ranks_share_left_out_targets) {
    check_numbers("recall", "recall", "gelu", "f32", "");
}

/* With positives by dropout, which follow from a sequence's place in the step, and numbers that are
 * learned. */
TEST(test_any_number_of_ranks_in_bf16_too) {
    check_numbers("bf16", "embedded", "wsffn", "bf16",
                  "CONFIG_WSFFN_POSITIVE=\"dropout\"\nCONFIG_WSFFN_Z_LOGITS=0.5\n"
                  "CONFIG_ATTENTION=\"w2\"\nCONFIG_W2_SIGMA_DIM=3\n"
                  "CONFIG_RA_MLA_MLP_ATTN_GATE=y\nCONFIG_RA_MLA_MLP_GATE_OPEN=2\n"
                  "CONFIG_RA_MLA_MLP_CROSS_TOKEN=y\nCONFIG_RA_MLA_MLP_ALPHA_LEARNED=y\n");
}

/* Weights of several chunks, each cut among ranks; spike clipping counts over all of them. */
#define LARGER_MODEL "-o", "N_EMBD=32", "-o", "VOCAB_SIZE=3000", "-o", "BATCH_SIZE=13"

static void check_shared_by(const char *optimizer, const char *dtype, int ranks,
                            const char *shard) {
    static int number;
    size_t n;
    ranks_need_mpi();
    const char *config = scratch_path("shared.config");
    const char *alone = scratch_path("shared-%s-%s", optimizer, dtype);
    const char *together = scratch_path("shared-%d", number++);
    const char *err = scratch_path("err");
    const char *option = format_text("SHARD=%s", shard);
    write_config(config, "embedded", "wsffn");
    /* Muon's matrices are whole with one rank, and some of more chunks of the norm than one. */
    const char *ffn = strcmp(optimizer, "OPTIMIZER=muon") == 0 ? "N_FFN=520" : "N_FFN=128";
    if (access(alone, F_OK) != 0)
        SUCCEEDS("train", "--config", config, "--out", alone, "--dtype", dtype, "--peak-flops", "0",
                 LARGER_MODEL, "-o", ffn, "-o", optimizer);
    int status =
        ranks_run(ranks,
                  RUN("train", "--config", config, "--out", together, "--dtype", dtype,
                      "--peak-flops", "0", LARGER_MODEL, "-o", ffn, "-o", optimizer, "-o", option),
                  err);
    if (status != 0) fail_msg("%d ranks ended on %d: %s", ranks, status, file_read(err, &n));
    train_same_end(alone, together);
    same_losses(alone, together);
}

static void check_shared(const char *dtype, int ranks, const char *shard) {
    check_shared_by("OPTIMIZER=adamwspam", dtype, ranks, shard);
}

TEST(test_shared_state_changes_no_bit) {
    check_shared("f32", 3, "optimizer");
    check_shared("bf16", 4, "gradients");
    check_shared("f32", 2, "gradients");
    check_shared("f64", 3, "optimizer"); /* where the order of the norm's parts shows in its bits */
    check_shared_by("OPTIMIZER=muon", "f64", 3, "optimizer");
    check_shared_by("OPTIMIZER=muon", "bf16", 4, "gradients");
}

/* Every optimizer, type, way of sharing and number; dropout and the contrastive loss in all of them. */
/* Of one micro-batch there is no sum to share. */
TEST(test_one_rank_with_one_micro_batch_learns_too) {
    ranks_need_mpi();
    const char *config = scratch_path("single.config");
    const char *alone = scratch_path("single"), *rank = scratch_path("single-rank");
    write_config(config, "embedded", "gelu");
    SUCCEEDS("train", "--config", config, "--out", alone, "-o", "MICRO_BATCH=0", "--peak-flops",
             "0");
    ranks_part part = {.ranks = 1,
                       .arguments =
                           RUN("train", "--config", config, "--out", rank, "-o", "MICRO_BATCH=0",
                               "-o", "SHARD=gradients", "--peak-flops", "0"),
                       .environment = SAYS("WEFT_COMM=mpi")};
    assert_int_equal(ranks_wait(ranks_start(&part, 1, scratch_path("err")), 60), 0);
    train_same_end(alone, rank);
}

TEST(test_every_way_of_sharing_ends_on_the_same_bits) {
    static const char *const optimizers[] = {"OPTIMIZER=adamw", "OPTIMIZER=adamwspam",
                                             "OPTIMIZER=muon"};
    static const char *const types[] = {"f32", "bf16"};
    static const char *const shards[] = {"none", "optimizer", "gradients"};
    check_shared_by(optimizers[0], types[1], 3, shards[1]);
    for (int o = 0; train_long() && o < 3; o++)
        for (int t = 0; t < 2; t++)
            for (int s = 0; s < 3; s++)
                for (int p = 2; p <= RANKS_MOST; p++)
                    check_shared_by(optimizers[o], types[t], p, shards[s]);
}

/* Each part of the run shares something else, at another number. */
static void resume_by_parts(const char *optimizer) {
    static const struct {
        int ranks;
        const char *shard, *steps;
    } parts[] = {{3, "SHARD=gradients", "STEPS=2"},
                 {2, "SHARD=optimizer", "STEPS=4"},
                 {2, "SHARD=none", "STEPS=5"},
                 {4, "SHARD=gradients", "STEPS=6"}};
    ranks_need_mpi();
    const char *config = scratch_path("parts.config");
    const char *alone = scratch_path("parts-alone-%s", optimizer);
    const char *out = scratch_path("parts-ranks-%s", optimizer);
    const char *err = scratch_path("err");
    write_config(config, "embedded", "wsffn");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(
            ranks_run(parts[i].ranks,
                      RUN("train", "--config", config, "--out", out, "--resume", "--dtype", "bf16",
                          "--peak-flops", "0", LARGER_MODEL, "-o", optimizer, "-o", parts[i].shard,
                          "-o", parts[i].steps, "-o", "EVAL_INTERVAL=1000"),
                      err),
            0);
    SUCCEEDS("train", "--config", config, "--out", alone, "--dtype", "bf16", "--peak-flops", "0",
             LARGER_MODEL, "-o", optimizer, "-o", "EVAL_INTERVAL=1000");
    train_same_file(alone, out, "last/model.safetensors");
    train_same_file(alone, out, "last/optimizer.safetensors");
}

TEST(test_shared_state_resumes_at_another_number) {
    resume_by_parts("OPTIMIZER=adamwspam");
    resume_by_parts("OPTIMIZER=muon");
}

/* A signal to one rank stops all; two ranks go on where three stopped, and one ends it. */
TEST(test_stopped_ranks_resume_at_another_number) {
    ranks_need_mpi();
    const char *config = scratch_path("stop.config");
    const char *alone = scratch_path("stop-alone");
    const char *out = scratch_path("stop-ranks");
    const char *err = scratch_path("err");
    write_config(config, "embedded", "wsffn");
    const char *const *arguments =
        RUN("train", "--config", config, "--out", out, "--resume", "--peak-flops", "0", "-o",
            "STEPS=100000000", "-o", "LOG_INTERVAL=100000", "-o", "EVAL_INTERVAL=100000000", "-o",
            "LR_SCHEDULE=constant");
    for (int ranks = 3; ranks >= 2; ranks--) {
        ranks_part part = {.ranks = ranks, .arguments = arguments};
        pid_t child = ranks_start(&part, 1, err);
        train_wait_checkpoint(child, out);
        ranks_kill(child, ranks - 1, SIGTERM);
        assert_int_equal(ranks_wait(child, 60), 1);
        assert_int_equal(ranks_count(err, "stopped by a signal after step"), 1);
    }
    /* To where it stopped, alone and from the start. */
    size_t n;
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/last/state.json", out), &n);
    WEFT_AUTO_DECREF json_t *object = json_loads(text, 0, NULL);
    const char *steps =
        format_text("STEPS=%lld", json_integer_value(json_object_get(object, "iteration")) + 3);
#define MORE                                                                                       \
    "--peak-flops", "0", "-o", "LR_SCHEDULE=constant", "-o", "EVAL_INTERVAL=100000000", "-o", steps
    SUCCEEDS("train", "--config", config, "--out", out, "--resume", MORE);
    SUCCEEDS("train", "--config", config, "--out", alone, MORE);
    train_same_file(alone, out, "last/model.safetensors");
    train_same_file(alone, out, "last/optimizer.safetensors");
}

static double final_loss(const char *out) {
    WEFT_AUTO_DECREF json_t *row = train_last_metrics(out);
    return real_of(row, "loss");
}

/* In MPI's order the sum is the same number but for its last bits. */
TEST(test_plain_sum_is_near) {
    const char *out[2];
    ranks_need_mpi();
    const char *config = scratch_path("plain.config");
    const char *err = scratch_path("err");
    write_config(config, "embedded", "wsffn");
    for (int plain = 0; plain < 2; plain++) {
        out[plain] = scratch_path("plain-%d", plain);
        assert_int_equal(
            ranks_run(3,
                      RUN("train", "--config", config, "--out", out[plain], "--peak-flops", "0",
                          "-o", plain ? "DETERMINISTIC=n" : "DETERMINISTIC=y"),
                      err),
            0);
    }
    assert_true(fabs(final_loss(out[0]) - final_loss(out[1])) < 1e-4);
}

RUN_TESTS(scratch_setup, scratch_teardown)

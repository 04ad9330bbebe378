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
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "CONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\n"
                     "CONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=24\nCONFIG_FFN=\"%s\"\n"
                     "CONFIG_WSFFN_N_HEAD=4\nCONFIG_DROPOUT=0.1\nCONFIG_DATASET=\"%s\"\n"
                     "CONFIG_BATCH_SIZE=7\nCONFIG_MICRO_BATCH=1\nCONFIG_LEARNING_RATE=1e-2\n"
                     "CONFIG_STEPS=6\nCONFIG_EVAL_INTERVAL=3\n"
                     "CONFIG_EVAL_SAMPLES=2\nCONFIG_LOG_INTERVAL=1\n"
                     "CONFIG_CHECKPOINT_INTERVAL=2\n",
                     ffn, dataset);
    file_write(path, text, (size_t)n);
}

static void keep(char *out, const char *path) {
    snprintf(out, NAME_ROOM, "%s", path);
}

/* The logged losses, which say what the weights do not: they are equal too. */
static void same_losses(const char *a, const char *b) {
    char path[2][NAME_ROOM + 32];
    size_t n;
    snprintf(path[0], sizeof path[0], "%s/metrics.jsonl", a);
    snprintf(path[1], sizeof path[1], "%s/metrics.jsonl", b);
    char *text[2] = {file_read(path[0], &n), file_read(path[1], &n)};
    char *at[2] = {text[0], text[1]};
    static const char *const keys[] = {"loss", "cross_entropy", "aux_contrastive", "val_loss",
                                       "grad_norm"};
    for (char *line; (line = strsep(&at[0], "\n")) && *line;) {
        json_t *x = json_loads(line, 0, NULL), *y = json_loads(strsep(&at[1], "\n"), 0, NULL);
        assert_true(x && y);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            double p = json_number_value(json_object_get(x, keys[k]));
            double q = json_number_value(json_object_get(y, keys[k]));
            if (memcmp(&p, &q, sizeof p) != 0)
                fail_msg("%s and %s: %s is %.17g and %.17g", a, b, keys[k], p, q);
        }
        json_decref(x);
        json_decref(y);
    }
    free(text[0]);
    free(text[1]);
}

/* `more`: further lines of the config. */
static void check_numbers(const char *name, const char *dataset, const char *ffn, const char *dtype,
                          const char *more) {
    char config[NAME_ROOM], alone[NAME_ROOM], together[NAME_ROOM], err[NAME_ROOM];
    ranks_need_mpi();
    keep(config, scratch_path("%s.config", name));
    keep(alone, scratch_path("%s-1", name));
    keep(err, scratch_path("err"));
    write_config(config, dataset, ffn);
    size_t size;
    char *text = file_read(config, &size), all[2048];
    int length = snprintf(all, sizeof all, "%s%s", text, more);
    file_write(config, all, (size_t)length);
    free(text);
    command_succeeds(
        RUN("train", "--config", config, "--out", alone, "--dtype", dtype, "--peak-flops", "0"),
        NULL);
    for (int p = 2; p <= RANKS_MOST; p++) {
        keep(together, scratch_path("%s-%d", name, p));
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
    char config[NAME_ROOM], alone[NAME_ROOM], together[NAME_ROOM], err[NAME_ROOM], option[64];
    static int number;
    size_t n;
    ranks_need_mpi();
    keep(config, scratch_path("shared.config"));
    keep(alone, scratch_path("shared-%s-%s", optimizer, dtype));
    keep(together, scratch_path("shared-%d", number++));
    keep(err, scratch_path("err"));
    snprintf(option, sizeof option, "SHARD=%s", shard);
    write_config(config, "embedded", "wsffn");
    /* Muon's matrices are whole with one rank, and some of more chunks of the norm than one. */
    const char *ffn = strcmp(optimizer, "OPTIMIZER=muon") == 0 ? "N_FFN=520" : "N_FFN=128";
    if (access(alone, F_OK) != 0)
        command_succeeds(RUN("train", "--config", config, "--out", alone, "--dtype", dtype,
                             "--peak-flops", "0", LARGER_MODEL, "-o", ffn, "-o", optimizer),
                         NULL);
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
    char config[NAME_ROOM], alone[NAME_ROOM], out[NAME_ROOM], err[NAME_ROOM];
    ranks_need_mpi();
    keep(config, scratch_path("parts.config"));
    keep(alone, scratch_path("parts-alone-%s", optimizer));
    keep(out, scratch_path("parts-ranks-%s", optimizer));
    keep(err, scratch_path("err"));
    write_config(config, "embedded", "wsffn");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(
            ranks_run(parts[i].ranks,
                      RUN("train", "--config", config, "--out", out, "--resume", "--dtype", "bf16",
                          "--peak-flops", "0", LARGER_MODEL, "-o", optimizer, "-o", parts[i].shard,
                          "-o", parts[i].steps, "-o", "EVAL_INTERVAL=1000"),
                      err),
            0);
    command_succeeds(RUN("train", "--config", config, "--out", alone, "--dtype", "bf16",
                         "--peak-flops", "0", LARGER_MODEL, "-o", optimizer, "-o",
                         "EVAL_INTERVAL=1000"),
                     NULL);
    train_same_file(alone, out, "last/model.safetensors");
    train_same_file(alone, out, "last/optimizer.safetensors");
}

TEST(test_shared_state_resumes_at_another_number) {
    resume_by_parts("OPTIMIZER=adamwspam");
    resume_by_parts("OPTIMIZER=muon");
}

/* A signal to one rank stops all; two ranks go on where three stopped, and one ends it. */
TEST(test_stopped_ranks_resume_at_another_number) {
    char config[NAME_ROOM], alone[NAME_ROOM], out[NAME_ROOM], err[NAME_ROOM];
    ranks_need_mpi();
    keep(config, scratch_path("stop.config"));
    keep(alone, scratch_path("stop-alone"));
    keep(out, scratch_path("stop-ranks"));
    keep(err, scratch_path("err"));
    write_config(config, "embedded", "wsffn");
    const char *const *arguments =
        RUN("train", "--config", config, "--out", out, "--resume", "--peak-flops", "0", "-o",
            "STEPS=4000", "-o", "LOG_INTERVAL=100000", "-o", "EVAL_INTERVAL=100000");
    for (int ranks = 3; ranks >= 2; ranks--) {
        ranks_part part = {.ranks = ranks, .arguments = arguments};
        pid_t child = ranks_start(&part, 1, err);
        train_wait_checkpoint(child, out);
        kill(ranks_pid(child, ranks - 1), SIGTERM);
        assert_int_equal(ranks_wait(child, 60), 1);
        assert_int_equal(ranks_count(err, "stopped by a signal after step"), 1);
    }
    /* To where it stopped, alone and from the start. */
    size_t n;
    char path[NAME_ROOM + 32], steps[64];
    snprintf(path, sizeof path, "%s/last/state.json", out);
    char *text = file_read(path, &n);
    json_t *object = json_loads(text, 0, NULL);
    snprintf(steps, sizeof steps, "STEPS=%lld",
             json_integer_value(json_object_get(object, "iteration")) + 3);
    json_decref(object);
    free(text);
    const char *more[] = {"-o", steps, "-o", "EVAL_INTERVAL=100000"};
    command_succeeds(RUN("train", "--config", config, "--out", out, "--resume", "--peak-flops", "0",
                         more[0], more[1], more[2], more[3]),
                     NULL);
    command_succeeds(RUN("train", "--config", config, "--out", alone, "--peak-flops", "0", more[0],
                         more[1], more[2], more[3]),
                     NULL);
    train_same_file(alone, out, "last/model.safetensors");
    train_same_file(alone, out, "last/optimizer.safetensors");
}

static double final_loss(const char *out) {
    char path[NAME_ROOM + 32];
    size_t n;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    char *text = file_read(path, &n), *last = NULL, *at = text;
    for (char *line; (line = strsep(&at, "\n"));)
        if (*line) last = line;
    json_t *object = json_loads(last, 0, NULL);
    double loss = json_number_value(json_object_get(object, "loss"));
    json_decref(object);
    free(text);
    return loss;
}

/* In MPI's order the sum is the same number but for its last bits. */
TEST(test_plain_sum_is_near) {
    char config[NAME_ROOM], out[2][NAME_ROOM], err[NAME_ROOM];
    ranks_need_mpi();
    keep(config, scratch_path("plain.config"));
    keep(err, scratch_path("err"));
    write_config(config, "embedded", "wsffn");
    for (int plain = 0; plain < 2; plain++) {
        keep(out[plain], scratch_path("plain-%d", plain));
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

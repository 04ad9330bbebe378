/* Ranks on one GPU: one rank whose gradients NCCL carries, and two that share the card by way of the
 * host's memory. Both end on the bits of a single process, with and without sharing. */
#include "cuda/backend.h"
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/train_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NAME_ROOM = 256 };

static void skip_without_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static void keep(char *out, const char *path) {
    snprintf(out, NAME_ROOM, "%s", path);
}

static void write_config(const char *path) {
    static const char text[] =
        "CONFIG_N_LAYER=2\nCONFIG_N_HEAD=4\nCONFIG_N_EMBD=128\nCONFIG_VOCAB_SIZE=2048\n"
        "CONFIG_CONTEXT=64\nCONFIG_FFN=\"wsffn\"\nCONFIG_WSFFN_N_HEAD=4\n"
        "CONFIG_DROPOUT=0.1\nCONFIG_DATASET=\"embedded\"\nCONFIG_BATCH_SIZE=12\n"
        "CONFIG_MICRO_BATCH=2\nCONFIG_STEPS=6\nCONFIG_EVAL_INTERVAL=3\n"
        "CONFIG_EVAL_SAMPLES=1\nCONFIG_LOG_INTERVAL=1\nCONFIG_DTYPE=\"bf16\"\n"
        "CONFIG_DEVICE=\"cuda\"\n";
    file_write(path, text, sizeof text - 1);
}

/* So many ranks end as one process does, and say how gradients went. */
static void check_ranks(int ranks, const char *shard, const char *const *environment,
                        const char *says) {
    char config[NAME_ROOM], alone[NAME_ROOM], together[NAME_ROOM], err[NAME_ROOM], option[64];
    size_t n;
    ranks_need_mpi();
    skip_without_gpu();
    keep(config, scratch_path("config"));
    keep(alone, scratch_path("alone"));
    keep(together, scratch_path("ranks-%d-%s", ranks, shard));
    keep(err, scratch_path("err"));
    snprintf(option, sizeof option, "SHARD=%s", shard);
    write_config(config);
    command_succeeds(
        RUN("train", "--config", config, "--out", alone, "--resume", "--peak-flops", "0"), NULL);
    ranks_part part = {.ranks = ranks,
                       .arguments = RUN("train", "--config", config, "--out", together,
                                        "--peak-flops", "0", "-o", option),
                       .environment = environment};
    int status = ranks_wait(ranks_start(&part, 1, err), 120);
    if (status != 0) fail_msg("%d ranks ended on %d: %s", ranks, status, file_read(err, &n));
    if (says && ranks_count(err, says) != 1)
        fail_msg("'%s' is not said: %s", says, file_read(err, &n));
    train_same_end(alone, together);
}

static void test_one_rank_by_nccl(void **state) {
    (void)state;
    char err[NAME_ROOM], config[NAME_ROOM], out[NAME_ROOM];
    ranks_need_mpi();
    skip_without_gpu();
    keep(config, scratch_path("config"));
    keep(err, scratch_path("try.err"));
    keep(out, scratch_path("try"));
    write_config(config);
    /* Whether there is NCCL here. */
    ranks_part part = {.ranks = 1,
                       .arguments = RUN("train", "--config", config, "--out", out, "--peak-flops",
                                        "0", "-o", "STEPS=1"),
                       .environment = SAYS("WEFT_COMM=mpi")};
    assert_int_equal(ranks_wait(ranks_start(&part, 1, err), 120), 0);
    if (ranks_count(err, "by NCCL") == 0) {
        size_t n;
        char *text = file_read(err, &n), *line = strstr(text, "gradients go");
        printf("%.200s\n", line ? line : text);
        free(text);
        skip();
    }
    check_ranks(1, "none", SAYS("WEFT_COMM=mpi"), "gradients go from GPU to GPU by NCCL");
    check_ranks(1, "optimizer", SAYS("WEFT_COMM=mpi"), "gradients go from GPU to GPU by NCCL");
}

static void test_two_ranks_share_a_gpu(void **state) {
    (void)state;
    check_ranks(2, "none", SAYS("WEFT_CUDA_DEVICE=0"), "gradients go through the host's memory");
    check_ranks(2, "optimizer", SAYS("WEFT_CUDA_DEVICE=0"),
                "gradients go through the host's memory");
    check_ranks(2, "gradients", SAYS("WEFT_CUDA_DEVICE=0"), NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_by_nccl),
        cmocka_unit_test(test_two_ranks_share_a_gpu),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

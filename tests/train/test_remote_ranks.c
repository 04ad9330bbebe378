/* Ranks whose gradients lie in a device's memory, without a device (support/remote.h): this program
 * starts itself several times. They end on the bits of one process on the CPU, whether gradients leave
 * during the backward pass or after it. */
#include "comm/comm.h"
#include "cpu/backend.h"
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/remote.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/loop.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_ROOM = 256 };

/* Weights of several buckets, of which some are made long before the others; seven micro-batches, so
 * that ranks have nodes of several sizes. */
static const char sets[] =
    "N_LAYER=4 N_HEAD=4 N_EMBD=128 VOCAB_SIZE=2048 CONTEXT=8 FFN=wsffn WSFFN_N_HEAD=4 "
    "DROPOUT=0.1 DATASET=embedded BATCH_SIZE=7 MICRO_BATCH=1 STEPS=3 EVAL_INTERVAL=2 "
    "EVAL_SAMPLES=1 LOG_INTERVAL=1 LEARNING_RATE=1e-2";

static weft_status train(const char *config, const char *out, const char *dtype, const char *shard,
                         const weft_backend *backend, weft_comm *comm) {
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_train_options options = {.comm = comm, .out = out, .resume = true};
    weft_config_defaults(&c);
    WEFT_TRY(weft_config_read(&c, config));
    WEFT_TRY(weft_config_set(&c, "DTYPE", dtype, "test"));
    WEFT_TRY(weft_config_set(&c, "SHARD", shard, "test"));
    WEFT_TRY(weft_pool_create(1, &pool));
    weft_status status = weft_train(&c, backend, pool, &options, &result);
    weft_pool_destroy(pool);
    return status;
}

/* One rank: rank CONFIG OUT DTYPE SHARD. */
static int be_rank(char **words) {
    weft_comm *comm;
    weft_status status = weft_comm_open(&comm);
    if (status == WEFT_OK && weft_comm_rank(comm) == 1 && getenv("FAILS")) remote_fail(2);
    if (status == WEFT_OK)
        status = train(words[2], words[3], words[4], words[5], remote_backend(), comm);
    if (status != WEFT_OK) {
        weft_comm_fail(comm, weft_error_message());
        fprintf(stderr, "%s\n", weft_error_message());
        return 1;
    }
    if (weft_comm_rank(comm) == 0)
        fprintf(stderr, "copies: %lld early, %lld late\n", (long long)remote_early_copies(),
                (long long)remote_late_copies());
    weft_comm_close(comm);
    return 0;
}

/* Starts ranks of this program, and waits for their end. */
static int run_ranks(int ranks, const char *const *arguments, const char *nccl, const char *more,
                     const char *err) {
    char own[PATH_MAX], weft[PATH_MAX];
    assert_non_null(realpath("/proc/self/exe", own));
    assert_non_null(realpath(command_program(), weft));
    const char *library =
        format_text("WEFT_MPI=%.*s/libweft-mpi.so", (int)(strrchr(weft, '/') - weft), weft);
    ranks_part part = {.ranks = ranks,
                       .program = own,
                       .arguments = arguments,
                       .environment = SAYS(library, nccl, more)};
    return ranks_wait(ranks_start(&part, 1, err), 120);
}

static void check(int ranks, const char *dtype, const char *shard, const char *overlap,
                  bool leaves_early) {
    static int number;
    size_t n;
    const char *config = scratch_path("config");
    const char *alone = scratch_path("alone-%s", dtype);
    const char *together = scratch_path("ranks-%d", number++);
    const char *err = scratch_path("err");
    config_write(config, sets);
    if (access(alone, F_OK) != 0)
        assert_int_equal(train(config, alone, dtype, "none", weft_cpu_backend(), NULL), WEFT_OK);
    const char *const *words = RUN("rank", config, together, dtype, shard);
    int status = run_ranks(ranks, words, "WEFT_NCCL=none", overlap, err);
    char *said = file_read(err, &n), *copies = strstr(said, "copies: ");
    if (status != 0 || !copies) fail_msg("%d ranks ended on %d: %s", ranks, status, said);
    if (copies && leaves_early != (atoi(copies + strlen("copies: ")) > 0))
        fail_msg("%d ranks, %s, %s: %s", ranks, shard, overlap, copies);
    free(said);
    train_same_end(alone, together);
}

TEST(test_gradients_leave_a_device_during_the_backward_pass) {
    ranks_need_mpi();
    check(2, "bf16", "none", "WEFT_OVERLAP=1", true);
    check(3, "f32", "optimizer", "WEFT_OVERLAP=1", true);
    check(3, "bf16", "gradients", "WEFT_OVERLAP=1", true);
    static const char *const shards[] = {"none", "optimizer", "gradients"};
    for (int i = 0; train_long() && i < 3; i++)
        for (int p = 2; p <= 4; p++)
            check(p, i % 2 ? "f32" : "bf16", shards[i], "WEFT_OVERLAP=1", true);
}

TEST(test_gradients_leave_a_device_after_it_on_request) {
    ranks_need_mpi();
    check(3, "bf16", "none", "WEFT_OVERLAP=0", false);
    check(2, "bf16", "gradients", "WEFT_OVERLAP=0", false);
}

/* Its messages are under way when it fails. */
TEST(test_device_that_is_lost_ends_all) {
    size_t n;
    ranks_need_mpi();
    const char *config = scratch_path("config");
    const char *err = scratch_path("err");
    config_write(config, sets);
    assert_true(run_ranks(3, RUN("rank", config, scratch_path("lost"), "bf16", "none"),
                          "WEFT_NCCL=none", "FAILS=1", err) != 0);
    if (ranks_count(err, "the device is lost") >= 3 && ranks_count(err, "rank 1 (") >= 2) return;
    fail_msg("%s", file_read(err, &n));
}

/* By a library in NCCL's place: sums that stay on the device have the bits too. */
TEST(test_gradients_go_from_device_to_device) {
    static const char *const shards[] = {"none", "optimizer"};
    char line[2048];
    ranks_need_mpi();
    snprintf(line, sizeof line,
             "cc -shared -fPIC -std=gnu17 -Isrc -Iinclude -Itests -o '%s' tests/train/"
             "nccl_by_files.c 2>/dev/null",
             scratch_path("libweft-nccl.so"));
    if (system(line) != 0) {
        printf("cc makes no shared library here\n");
        skip();
    }
    const char *config = scratch_path("config"), *alone = scratch_path("alone-f32");
    const char *err = scratch_path("err"), *files = format_text("NCCL_FILES=%s", scratch_path("."));
    const char *library = format_text("LD_LIBRARY_PATH=%s", scratch_path("."));
    config_write(config, sets);
    if (access(alone, F_OK) != 0)
        assert_int_equal(train(config, alone, "f32", "none", weft_cpu_backend(), NULL), WEFT_OK);
    for (int ranks = 2; ranks <= 3; ranks++) {
        const char *shard = shards[ranks % 2], *out = scratch_path("nccl-%d", ranks);
        size_t n;
        int status = run_ranks(ranks, RUN("rank", config, out, "f32", shard), library, files, err);
        if (status != 0 || ranks_count(err, "from GPU to GPU by NCCL") != ranks)
            fail_msg("%d ranks ended on %d: %s", ranks, status, file_read(err, &n));
        train_same_end(alone, out);
    }
}

int main(int n, char **words) {
    if (n == 6 && strcmp(words[1], "rank") == 0) return be_rank(words);
    return tests_run(scratch_setup, scratch_teardown);
}

/* Batches ahead of time: the same bytes as without, in order; errors come to the one who takes;
 * nothing is left running. */
#include "data/prefetch.h"
#include "support/command.h"
#include "support/test.h"
#include "support/token_file.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { TIME = 24, SEQUENCES = 3, PARTS = 2 };

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    return mkdir(scratch_path("set"), 0700);
}

static weft_dataset *open_named(const char *name) {
    static weft_config c;
    weft_dataset *d;
    weft_config_defaults(&c);
    assert_int_equal(weft_config_set(&c, "DATASET", name, "test"), WEFT_OK);
    if (weft_dataset_open(&c, &d) != WEFT_OK) fail_msg("%s", weft_error_message());
    return d;
}

/* Shards of which one token in the middle is beyond the vocabulary: some windows fail. */
static weft_dataset *open_faulty(void) {
    enum { TOKENS = 72000 };
    int32_t *values = calloc(TOKENS, sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < 300; i++)
        values[68000 + i * 10] = 60000;
    shard_write(scratch_path("set/train_1.bin"), 20240520, 1, TOKENS, 2, values, TOKENS);
    shard_write(scratch_path("set/val_1.bin"), 20240520, 1, 100, 2, values, 100);
    free(values);
    return open_named(scratch_path("set"));
}

static weft_prefetch *open_feed(const weft_dataset *d) {
    weft_prefetch_options o = {.split = WEFT_SPLIT_TRAIN,
                               .seed = 5,
                               .iteration = 7,
                               .sequences = SEQUENCES,
                               .parts = PARTS,
                               .time = TIME,
                               .scored = true};
    weft_prefetch *p;
    if (weft_prefetch_open(d, &o, &p) != WEFT_OK) fail_msg("%s", weft_error_message());
    return p;
}

static void check_batch(const weft_dataset *d, const weft_batch *b) {
    for (int64_t s = 0; s < SEQUENCES; s++) {
        int32_t tokens[TIME], targets[TIME];
        uint8_t scored[TIME];
        uint32_t place = (uint32_t)(b->part * SEQUENCES + s);
        assert_int_equal(weft_dataset_fill(d, WEFT_SPLIT_TRAIN, 5, b->iteration, place, TIME,
                                           tokens, targets, scored),
                         WEFT_OK);
        assert_memory_equal(b->tokens + s * TIME, tokens, sizeof tokens);
        assert_memory_equal(b->targets + s * TIME, targets, sizeof targets);
        assert_memory_equal(b->scored + s * TIME, scored, sizeof scored);
    }
}

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

TEST(test_batches_are_the_dataset_s_in_order) {
    static const char *const names[] = {"embedded", "recall", "entailment"};
    for (int kind = 0; kind < 3; kind++) {
        weft_dataset *d = open_named(names[kind]);
        weft_prefetch *p = open_feed(d);
        for (uint32_t i = 0; i < 30; i++) {
            const weft_batch *b;
            assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
            assert_int_equal(b->iteration, 7 + i / PARTS);
            assert_int_equal(b->part, i % PARTS);
            check_batch(d, b);
        }
        weft_prefetch_close(p);
        weft_dataset_close(d);
    }
}

/* A feed that begins further on, as another rank's does, has the batches that one from the start has
 * there. */
TEST(test_a_feed_may_begin_further_on) {
    weft_dataset *d = open_named("embedded");
    for (int64_t skip = 1; skip < 2 * PARTS; skip++) {
        weft_prefetch_options o = {.split = WEFT_SPLIT_TRAIN,
                                   .seed = 5,
                                   .iteration = 7,
                                   .sequences = SEQUENCES,
                                   .parts = PARTS,
                                   .skip = skip,
                                   .time = TIME,
                                   .scored = true};
        weft_prefetch *p;
        assert_int_equal(weft_prefetch_open(d, &o, &p), WEFT_OK);
        for (int64_t i = skip; i < skip + 3; i++) {
            const weft_batch *b;
            assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
            assert_int_equal(b->iteration, 7 + i / PARTS);
            assert_int_equal(b->part, i % PARTS);
            check_batch(d, b);
        }
        weft_prefetch_close(p);
    }
    weft_dataset_close(d);
}

/* However long the taker holds a batch, the worker does not write into it. */
TEST(test_held_batch_stays_whole) {
    weft_dataset *d = open_named("embedded");
    weft_prefetch *p = open_feed(d);
    for (int i = 0; i < 15; i++) {
        const weft_batch *b;
        assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
        pause_briefly();
        check_batch(d, b);
    }
    weft_prefetch_close(p);
    weft_dataset_close(d);
}

TEST(test_scores_are_made_only_where_asked_for) {
    weft_dataset *d = open_named("recall");
    weft_prefetch_options o = {.sequences = 1, .parts = 1, .time = 8};
    weft_prefetch *p;
    const weft_batch *b;
    assert_int_equal(weft_prefetch_open(d, &o, &p), WEFT_OK);
    assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
    assert_null(b->scored);
    weft_prefetch_close(p);
    weft_dataset_close(d);
}

/* The first batch that the dataset fails on, with its status and message, and no later call forgets. */
TEST(test_errors_come_in_their_place) {
    weft_dataset *d = open_faulty();
    int failing = 0;
    char message[600] = "";
    for (bool good = true; good; failing += good)
        for (int64_t s = 0; good && s < SEQUENCES; s++) {
            int32_t tokens[TIME], targets[TIME];
            good = weft_dataset_fill(d, WEFT_SPLIT_TRAIN, 5, (uint32_t)(7 + failing / PARTS),
                                     (uint32_t)(failing % PARTS * SEQUENCES + s), TIME, tokens,
                                     targets, NULL) == WEFT_OK;
        }
    snprintf(message, sizeof message, "%s", weft_error_message());
    assert_non_null(strstr(message, "token 60000"));
    assert_in_range(failing, 1, 1000);
    weft_prefetch *p = open_feed(d);
    const weft_batch *b;
    for (int good = 0; good < failing; good++) {
        assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
        if (good % 16 == 0) check_batch(d, b);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_prefetch_next(p, &b), WEFT_EINPUT);
        assert_null(b);
        assert_string_equal(weft_error_message(), message);
    }
    weft_prefetch_close(p);
    weft_dataset_close(d);
}

/* At once, in the middle of a long batch, with a full ring, after an error. */
TEST(test_closing_is_clean_at_any_moment) {
    weft_dataset *d = open_named("embedded"), *faulty = open_faulty();
    const weft_batch *b;
    for (int round = 0; round < 40; round++) {
        weft_prefetch *p = open_feed(round % 4 == 3 ? faulty : d);
        for (int i = 0; i < round % 5; i++)
            assert_int_equal(weft_prefetch_next(p, &b), WEFT_OK);
        if (round % 2) pause_briefly();
        weft_prefetch_close(p);
    }
    weft_prefetch_options slow = {.sequences = 4096, .parts = 1, .time = 1024};
    weft_prefetch *p;
    assert_int_equal(weft_prefetch_open(d, &slow, &p), WEFT_OK);
    weft_prefetch_close(p);
    weft_prefetch_close(NULL);
    weft_dataset_close(d);
    weft_dataset_close(faulty);
}

/* Threads of this process that have SIGTERM blocked; -1: this system does not tell. */
static int count_deaf_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return -1;
    int deaf = 0;
    for (const struct dirent *e; (e = readdir(tasks));) {
        char path[300], line[256];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *file = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        unsigned long long blocked;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1)
                deaf += (int)(blocked >> (SIGTERM - 1) & 1);
        if (file) fclose(file);
    }
    closedir(tasks);
    return deaf;
}

/* The loop ends on a signal that its own thread has to see. */
TEST(test_worker_takes_no_signals) {
    int before = count_deaf_threads();
    if (before < 0) skip();
    weft_dataset *d = open_named("embedded");
    weft_prefetch *p = open_feed(d);
    assert_int_equal(count_deaf_threads(), before + 1);
    weft_prefetch_close(p);
    assert_int_equal(count_deaf_threads(), before);
    weft_dataset_close(d);
}

TEST(test_sizes_that_make_no_sense_are_refused) {
    weft_dataset *d = open_named("recall");
    const weft_prefetch_options wrong[] = {
        {.sequences = 0, .parts = 1, .time = 8},
        {.sequences = 1, .parts = 0, .time = 8},
        {.sequences = 1, .parts = 1, .time = 0},
        {.sequences = INT64_MAX / 4, .parts = 1, .time = 1024},
        {.sequences = 1 << 20, .parts = 1 << 20, .time = 8},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_prefetch *p;
        assert_int_equal(weft_prefetch_open(d, &wrong[i], &p), WEFT_EINPUT);
        assert_null(p);
    }
    weft_dataset_close(d);
}

RUN_TESTS(open_scratch, scratch_teardown)

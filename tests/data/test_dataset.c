/* What every dataset promises: a sequence is a pure function of its place. */
#include "data/dataset.h"
#include "support/command.h"
#include "support/test.h"
#include "support/token_file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TIME = 96, PLACES = 60, THREADS = 4, KINDS = 4 };

static weft_dataset *datasets[KINDS];

typedef struct {
    int32_t tokens[TIME], targets[TIME];
    uint8_t scored[TIME];
} sequence;

static weft_dataset *open_named(const char *name, const char *vocab) {
    static weft_config c;
    weft_dataset *d;
    weft_config_defaults(&c);
    assert_int_equal(weft_config_set(&c, "DATASET", name, "test"), WEFT_OK);
    assert_int_equal(weft_config_set(&c, "VOCAB_SIZE", vocab, "test"), WEFT_OK);
    if (weft_dataset_open(&c, &d) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_string_equal(weft_dataset_name(d), name);
    return d;
}

static int open_all(void **state) {
    (void)state;
    scratch_open();
    int32_t values[3000];
    for (int32_t i = 0; i < 3000; i++)
        values[i] = i * 7 % 5000;
    mkdir(scratch_path("set"), 0700);
    shard_write(scratch_path("set/train_1.bin"), 20240520, 1, 2000, 2, values, 2000);
    shard_write(scratch_path("set/train_2.bin"), 20240801, 7, 3000, 4, values, 3000);
    shard_write(scratch_path("set/val_1.bin"), 20240520, 1, 1000, 2, values + 2000, 1000);
    const char *names[KINDS] = {"embedded", "recall", "entailment", scratch_path("set")};
    for (int i = 0; i < KINDS; i++)
        datasets[i] = open_named(names[i], "5000");
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++)
        weft_dataset_close(datasets[i]);
    scratch_close();
    return 0;
}

/* Places of all sorts, by number; the ends of the ranges too. */
static weft_status fill(const weft_dataset *d, uint32_t number, sequence *s) {
    static const uint64_t seeds[] = {0, 1, 77, UINT64_MAX};
    static const uint32_t iterations[] = {0, 1, 10399, UINT32_MAX}, orders[] = {0, 1, 2, 511};
    return weft_dataset_fill(d, number % 5 ? WEFT_SPLIT_TRAIN : WEFT_SPLIT_VAL, seeds[number % 4],
                             iterations[number / 4 % 4], orders[number / 16 % 4], TIME, s->tokens,
                             s->targets, s->scored);
}

TEST(test_kinds_are_told_apart) {
    const int64_t vocabs[KINDS] = {256, 1024, 68, 5000};
    const char *metrics[KINDS] = {NULL, "recall_accuracy", "entailment_accuracy", NULL};
    for (int i = 0; i < KINDS; i++) {
        assert_int_equal(weft_dataset_vocab(datasets[i]), vocabs[i]);
        const char *metric = weft_dataset_metric(datasets[i]);
        assert_int_equal(metric != NULL, metrics[i] != NULL);
        if (metric) assert_string_equal(metric, metrics[i]);
        assert_int_equal(weft_dataset_tokens(datasets[i], WEFT_SPLIT_TRAIN), i == 3 ? 5000 : -1);
        assert_int_equal(weft_dataset_tokens(datasets[i], WEFT_SPLIT_VAL), i == 3 ? 1000 : -1);
    }
}

TEST(test_recall_takes_the_model_s_vocabulary) {
    weft_dataset *d = open_named("recall", "12");
    assert_int_equal(weft_dataset_vocab(d), 12);
    sequence s;
    assert_int_equal(fill(d, 1, &s), WEFT_OK);
    for (int t = 0; t < TIME; t++)
        assert_in_range(s.tokens[t], 0, 11);
    weft_dataset_close(d);
}

TEST(test_missing_folder_is_one_line) {
    static weft_config c;
    weft_config_defaults(&c);
    weft_config_set(&c, "DATASET", "no/such/folder", "test");
    weft_dataset *d = datasets[0];
    assert_int_equal(weft_dataset_open(&c, &d), WEFT_EINPUT);
    assert_null(d);
    assert_non_null(strstr(weft_error_message(), "no/such/folder"));
    assert_non_null(strstr(weft_error_message(), "weft tokenize"));
    weft_dataset_close(NULL);
}

TEST(test_tokens_are_below_the_vocabulary) {
    static sequence s;
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t vocab = weft_dataset_vocab(datasets[kind]);
        bool metric = weft_dataset_metric(datasets[kind]) != NULL;
        for (uint32_t i = 0; i < PLACES; i++) {
            int marked = 0;
            memset(&s, 0xAA, sizeof s);
            assert_int_equal(fill(datasets[kind], i, &s), WEFT_OK);
            for (int t = 0; t < TIME; t++) {
                assert_true(s.tokens[t] >= 0 && s.tokens[t] < vocab);
                assert_true(s.targets[t] >= -1 && s.targets[t] < vocab);
                assert_true(s.scored[t] <= 1 && (!s.scored[t] || s.targets[t] >= 0));
                if (t + 1 < TIME && s.targets[t] >= 0)
                    assert_int_equal(s.targets[t], s.tokens[t + 1]);
                marked += s.scored[t];
            }
            assert_int_equal(marked > 0, metric);
        }
    }
}

/* Asked for backwards, twice, and without the scores: the same bytes. */
TEST(test_sequences_do_not_depend_on_the_order) {
    static sequence first[PLACES], again;
    for (int kind = 0; kind < KINDS; kind++) {
        memset(first, 0, sizeof first);
        for (uint32_t i = 0; i < PLACES; i++)
            assert_int_equal(fill(datasets[kind], i, &first[i]), WEFT_OK);
        for (uint32_t i = PLACES; i-- > 0;) {
            memset(&again, 1, sizeof again);
            assert_int_equal(fill(datasets[kind], i, &again), WEFT_OK);
            assert_memory_equal(&first[i], &again, sizeof again);
        }
        assert_int_equal(weft_dataset_fill(datasets[kind], WEFT_SPLIT_VAL, 9, 0, 0, TIME,
                                           again.tokens, again.targets, NULL),
                         WEFT_OK);
        assert_memory_equal(again.tokens, first[0].tokens, sizeof again.tokens);
        assert_memory_equal(again.targets, first[0].targets, sizeof again.targets);
    }
}

typedef struct {
    int kind, round;
    sequence made[PLACES];
    bool failed;
} job;

static void *fill_all(void *context) {
    job *j = context;
    for (uint32_t i = 0; i < PLACES; i++) {
        uint32_t number = (i * 7 + (uint32_t)j->round * 13) % PLACES;
        j->failed |= fill(datasets[j->kind], number, &j->made[number]) != WEFT_OK;
    }
    return NULL;
}

TEST(test_any_thread_gets_the_same) {
    static job jobs[THREADS];
    pthread_t threads[THREADS];
    for (int kind = 0; kind < KINDS; kind++) {
        memset(jobs, 0, sizeof jobs);
        for (int i = 0; i < THREADS; i++) {
            jobs[i].kind = kind;
            jobs[i].round = i;
            assert_int_equal(pthread_create(&threads[i], NULL, fill_all, &jobs[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            assert_false(jobs[i].failed);
            assert_memory_equal(jobs[i].made, jobs[0].made, sizeof jobs[0].made);
        }
    }
}

/* Seed, iteration and place each give other sequences; the held-out ones have no seed. */
TEST(test_places_differ) {
    for (int kind = 0; kind < KINDS; kind++) {
        enum { COUNT = 6 };
        static sequence s[COUNT];
        const struct {
            weft_split split;
            uint64_t seed;
            uint32_t iteration, order;
        } at[COUNT] = {
            {WEFT_SPLIT_TRAIN, 0, 0, 0},
            {WEFT_SPLIT_TRAIN, 1, 0, 0},
            {WEFT_SPLIT_TRAIN, 0, 1, 0},
            {WEFT_SPLIT_TRAIN, 0, 0, 1},
            {WEFT_SPLIT_TRAIN, (uint64_t)1 << 32, 0, 0},
            {WEFT_SPLIT_VAL, 0, 0, 0},
        };
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(weft_dataset_fill(datasets[kind], at[i].split, at[i].seed,
                                               at[i].iteration, at[i].order, TIME, s[i].tokens,
                                               s[i].targets, s[i].scored),
                             WEFT_OK);
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < i; j++)
                assert_memory_not_equal(s[i].tokens, s[j].tokens, sizeof s[i].tokens);
    }
}

/* Not a token is written beyond `time`. */
TEST(test_sequences_of_any_length) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t time = 1; time < 40; time++) {
            size_t n = (size_t)time;
            int32_t *tokens = malloc(n * sizeof *tokens), *targets = malloc(n * sizeof *targets);
            uint8_t *scored = malloc(n);
            assert_true(tokens && targets && scored);
            weft_status status = weft_dataset_fill(datasets[kind], WEFT_SPLIT_TRAIN, 4, 2, 0, time,
                                                   tokens, targets, scored);
            assert_int_equal(status, kind == 2 && time < 7 ? WEFT_EINPUT : WEFT_OK);
            free(tokens);
            free(targets);
            free(scored);
        }
    int32_t one;
    assert_int_equal(weft_dataset_fill(datasets[0], WEFT_SPLIT_TRAIN, 4, 2, 0, 0, &one, &one, NULL),
                     WEFT_EINPUT);
}

/* A run that is resumed by a later version must see the same text: that of a seed is fixed. */
TEST(test_embedded_text_is_what_it_was) {
    static sequence s;
    char text[TIME + 1] = {0};
    assert_int_equal(
        weft_dataset_fill(datasets[0], WEFT_SPLIT_TRAIN, 1, 0, 0, TIME, s.tokens, s.targets, NULL),
        WEFT_OK);
    for (int t = 0; t < TIME; t++)
        text[t] = (char)s.tokens[t];
    assert_string_equal(text, "r a blue map. That night she dreamed of a bright cup. She put the "
                              "blanket on the table and looke");
}

RUN_TESTS(open_all, close_all)

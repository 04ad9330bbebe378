/* Folders of shards: which windows are drawn, and that no file, however damaged, does more than
 * fail with a line that names it. */
#include "base/random.h"
#include "data/shards.h"
#include "support/command.h"
#include "support/test.h"
#include "support/token_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 400, VOCAB = 50257 };

static char folder[256];

/* A fresh folder for each test. */
static int open_folder(void **state) {
    (void)state;
    static int number;
    scratch_open();
    snprintf(folder, sizeof folder, "%s", scratch_path("set%d", number++));
    return mkdir(folder, 0700);
}

static const char *path_of(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Tokens first, first + 1, ... so that a token tells where it is from. */
static void write_counting(const char *name, bool wide, int32_t first, int32_t count) {
    int32_t values[TOKENS];
    assert_true(count <= TOKENS);
    for (int32_t i = 0; i < count; i++)
        values[i] = first + i;
    shard_write(path_of(name), wide ? 20240801 : 20240520, wide ? 7 : 1, count, wide ? 4 : 2,
                values, count);
}

static void write_both(void) {
    write_counting("train_000001.bin", false, 1000, 100);
    write_counting("val_000000.bin", false, 9000, 50);
}

static weft_shards *open_well(void) {
    weft_shards *s;
    if (weft_shards_open(folder, VOCAB, &s) != WEFT_OK) fail_msg("%s", weft_error_message());
    return s;
}

static void expect_refusal(weft_status status, const char *word, const char *other) {
    weft_shards *s;
    assert_int_equal(weft_shards_open(folder, VOCAB, &s), status);
    assert_null(s);
    const char *message = weft_error_message();
    if (!strstr(message, word) || !strstr(message, other) || strchr(message, '\n'))
        fail_msg("'%s' does not say '%s' and '%s'", message, word, other);
}

static weft_sequence_place train(uint32_t iteration, uint32_t sequence) {
    return (weft_sequence_place){
        .split = WEFT_SPLIT_TRAIN, .seed = 3, .iteration = iteration, .sequence = sequence};
}

/* Each start of each shard, of both widths, about equally often; none that crosses a border. */
TEST_WITH(test_windows_cover_all_shards, open_folder, scratch_teardown) {
    enum { TIME = 16, DRAWS = 60000 };
    write_counting("train_000001.bin", false, 1000, 100);
    write_counting("train_000002.bin", true, 2000, 60);
    write_counting("train_000003.bin", false, 3000, TIME + 1);
    write_counting("train_000004.bin", false, 4000, TIME);
    write_counting("edu_fineweb_train_000005.bin", true, 5000, 40);
    write_counting("val_000000.bin", false, 9000, 50);
    weft_shards *s = open_well();
    assert_int_equal(weft_shards_tokens(s, WEFT_SPLIT_TRAIN), 100 + 60 + TIME + 1 + TIME + 40);
    assert_int_equal(weft_shards_tokens(s, WEFT_SPLIT_VAL), 50);
    static int counts[10000];
    memset(counts, 0, sizeof counts);
    for (uint32_t i = 0; i < DRAWS; i++) {
        int32_t tokens[TIME], targets[TIME];
        weft_sequence_place p = train(i / 64, i % 64);
        assert_int_equal(weft_shards_fill(s, &p, TIME, tokens, targets), WEFT_OK);
        for (int t = 0; t < TIME; t++) {
            assert_int_equal(tokens[t], tokens[0] + t);
            assert_int_equal(targets[t], tokens[0] + t + 1);
        }
        counts[tokens[0]]++;
    }
    const int first[4] = {1000, 2000, 3000, 5000};
    const int starts[4] = {100 - TIME, 60 - TIME, 1, 40 - TIME};
    int all = 0, seen = 0;
    for (int i = 0; i < 4; i++)
        all += starts[i];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < starts[i]; j++) {
            int count = counts[first[i] + j];
            assert_in_range(count, DRAWS / all * 7 / 10, DRAWS / all * 13 / 10);
            seen += count;
        }
    assert_int_equal(seen, DRAWS);
    weft_shards_close(s);
}

TEST_WITH(test_validation_ignores_the_seed, open_folder, scratch_teardown) {
    write_both();
    weft_shards *s = open_well();
    for (uint32_t i = 0; i < 20; i++) {
        int32_t a[8], b[8], targets[8];
        weft_sequence_place p = {.split = WEFT_SPLIT_VAL, .seed = 1, .sequence = i}, q = p;
        q.seed = 99;
        assert_int_equal(weft_shards_fill(s, &p, 8, a, targets), WEFT_OK);
        assert_int_equal(weft_shards_fill(s, &q, 8, b, targets), WEFT_OK);
        assert_memory_equal(a, b, sizeof a);
        assert_in_range(a[0], 9000, 9049);
    }
    weft_shards_close(s);
}

/* The order of a folder's entries and other files in it change nothing. */
TEST_WITH(test_windows_do_not_depend_on_the_folder, open_folder, scratch_teardown) {
    int32_t before[40], after[40], targets[8];
    for (int round = 0; round < 2; round++) {
        const char *names[3] = {"train_1.bin", "train_2.bin", "train_3.bin"};
        for (int i = 0; i < 3; i++) {
            int which = round ? 2 - i : i;
            unlink(path_of(names[which]));
            write_counting(names[which], false, 1000 * which, 40 + 10 * which);
        }
        write_counting("val_1.bin", false, 0, 20);
        if (round) {
            file_write(path_of("README"), "x", 1);
            file_write(path_of("training_1.bin"), "x", 1);
            file_write(path_of("train_4.bin.part"), "x", 1);
            file_write(path_of(".train_4.bin"), "x", 1);
        }
        weft_shards *s = open_well();
        for (uint32_t i = 0; i < 5; i++) {
            weft_sequence_place p = train(0, i);
            int32_t *to = (round ? after : before) + 8 * i;
            assert_int_equal(weft_shards_fill(s, &p, 8, to, targets), WEFT_OK);
        }
        weft_shards_close(s);
    }
    assert_memory_equal(before, after, sizeof before);
}

TEST_WITH(test_missing_folder_says_what_is_expected, open_folder, scratch_teardown) {
    snprintf(folder, sizeof folder, "%s", scratch_path("nowhere"));
    expect_refusal(WEFT_EINPUT, "nowhere: No such file", "weft tokenize");
    expect_refusal(WEFT_EINPUT, "train_*.bin and val_*.bin", "embedded, recall, entailment");
}

TEST_WITH(test_folder_without_a_split_is_refused, open_folder, scratch_teardown) {
    expect_refusal(WEFT_EINPUT, "no train_*.bin", folder);
    write_counting("train_1.bin", false, 0, 20);
    expect_refusal(WEFT_EINPUT, "no val_*.bin", "weft tokenize");
    unlink(path_of("train_1.bin"));
    write_counting("val_1.bin", false, 0, 20);
    expect_refusal(WEFT_EINPUT, "no train_*.bin", "weft tokenize");
}

TEST_WITH(test_shards_that_lie_are_refused, open_folder, scratch_teardown) {
    const int32_t some[6] = {1, 2, 3, 4, 5, 6};
    write_both();
    const char *name = "train_000002.bin";
    const struct {
        int32_t magic, version, count;
        int size;
        const char *word;
    } lies[] = {
        {20240520, 1, 7, 2, "says 7 tokens"},  {20240520, 1, 5, 2, "says 5 tokens"},
        {20240520, 1, 0, 2, "says 0 tokens"},  {20240520, 1, -1, 2, "damaged"},
        {20240520, 1, 6, 4, "hold 12"},        {20240801, 7, 6, 2, "hold 3"},
        {20240801, 7, INT32_MAX, 4, "hold 6"}, {20240520, 2, 6, 2, "not a token shard"},
        {20240801, 1, 6, 4, "version 1"},      {0, 0, 6, 2, "magic 0"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        shard_write(path_of(name), lies[i].magic, lies[i].version, lies[i].count, lies[i].size,
                    some, 6);
        expect_refusal(WEFT_EINPUT, lies[i].word, name);
    }
}

TEST_WITH(test_shards_cut_short_are_refused, open_folder, scratch_teardown) {
    write_both();
    const char *name = "val_000001.bin";
    write_counting(name, false, 0, 6);
    size_t count;
    char *bytes = file_read(path_of(name), &count);
    for (size_t keep = 0; keep < count; keep += keep < 1000 ? 97 : 1) {
        file_write(path_of(name), bytes, keep);
        expect_refusal(WEFT_EINPUT, "damaged", name);
    }
    free(bytes);
}

TEST_WITH(test_what_is_no_file_is_refused, open_folder, scratch_teardown) {
    write_both();
    assert_int_equal(mkdir(path_of("train_2.bin"), 0700), 0);
    expect_refusal(WEFT_EINPUT, "train_2.bin", "a shard is a file");
    rmdir(path_of("train_2.bin"));
    assert_int_equal(mkfifo(path_of("train_2.bin"), 0600), 0);
    expect_refusal(WEFT_EINPUT, "train_2.bin", "a shard is a file");
    unlink(path_of("train_2.bin"));
    assert_int_equal(symlink("nothing", path_of("train_2.bin")), 0);
    expect_refusal(WEFT_EIO, "train_2.bin", "No such file");
    unlink(path_of("train_2.bin"));
    if (geteuid() == 0) return;
    write_counting("train_2.bin", false, 0, 20);
    assert_int_equal(chmod(path_of("train_2.bin"), 0), 0);
    expect_refusal(WEFT_EIO, "train_2.bin", "Permission denied");
}

/* Of the windows of eight tokens, those that reach the token VOCAB; one more is known than the last. */
TEST_WITH(test_the_first_token_that_the_model_does_not_know_is_refused, open_folder,
          scratch_teardown) {
    for (int32_t more = 0; more < 2; more++) {
        weft_shards *s;
        weft_sequence_place p = train(0, 0);
        int32_t tokens[8], targets[8];
        write_counting("train_000001.bin", false, 20, 9); /* 20 to 28: one window */
        write_counting("val_000000.bin", false, 0, 9);
        assert_int_equal(weft_shards_open(folder, 28 + more, &s), WEFT_OK);
        weft_status status = weft_shards_fill(s, &p, 8, tokens, targets);
        assert_int_equal(status, more ? WEFT_OK : WEFT_EINPUT);
        if (more) assert_int_equal(targets[7], 28);
        if (!more) assert_non_null(strstr(weft_error_message(), "token 28 at position 8"));
        weft_shards_close(s);
    }
}

TEST_WITH(test_shard_cut_while_in_use_fails, open_folder, scratch_teardown) {
    write_both();
    weft_shards *s = open_well();
    weft_sequence_place p = train(0, 0);
    int32_t tokens[8], targets[8];
    assert_int_equal(weft_shards_fill(s, &p, 8, tokens, targets), WEFT_OK);
    assert_int_equal(truncate(path_of("train_000001.bin"), 10), 0);
    assert_int_equal(weft_shards_fill(s, &p, 8, tokens, targets), WEFT_EIO);
    assert_non_null(strstr(weft_error_message(), "train_000001.bin: cut from 1224 to 10 bytes"));
    weft_shards_close(s);
}

/* The map keeps a file that was taken away or replaced. */
TEST_WITH(test_shard_replaced_while_in_use_is_kept, open_folder, scratch_teardown) {
    write_both();
    weft_shards *s = open_well();
    weft_sequence_place p = train(0, 0);
    int32_t before[8], after[8], targets[8];
    assert_int_equal(weft_shards_fill(s, &p, 8, before, targets), WEFT_OK);
    unlink(path_of("train_000001.bin"));
    assert_int_equal(weft_shards_fill(s, &p, 8, after, targets), WEFT_OK);
    assert_memory_equal(before, after, sizeof before);
    write_counting("train_000001.bin", false, 0, 10);
    assert_int_equal(weft_shards_fill(s, &p, 8, after, targets), WEFT_OK);
    assert_memory_equal(before, after, sizeof before);
    weft_shards_close(s);
}

TEST_WITH(test_sequences_longer_than_any_shard_are_refused, open_folder, scratch_teardown) {
    write_both();
    weft_shards *s = open_well();
    static int32_t tokens[TOKENS], targets[TOKENS];
    weft_sequence_place p = train(0, 0);
    assert_int_equal(weft_shards_fill(s, &p, 99, tokens, targets), WEFT_OK);
    assert_int_equal(tokens[0], 1000);
    assert_int_equal(weft_shards_fill(s, &p, 100, tokens, targets), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "no train shard has the 101 tokens"));
    p.split = WEFT_SPLIT_VAL;
    assert_int_equal(weft_shards_fill(s, &p, 50, tokens, targets), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "no val shard"));
    weft_shards_close(s);
}

/* Seen when the folder is opened, where it is near a shard's beginning; else when it is used. */
TEST_WITH(test_tokens_beyond_the_vocabulary_are_found, open_folder, scratch_teardown) {
    enum { LONG = 70000 };
    write_both();
    write_counting("val_000001.bin", false, VOCAB - 1, 20);
    weft_shards *s = open_well();
    assert_int_equal(weft_shards_vocab(s), VOCAB + 19);
    weft_shards_close(s);
    unlink(path_of("val_000001.bin"));
    s = open_well();
    assert_int_equal(weft_shards_vocab(s), VOCAB);
    weft_shards_close(s);

    int32_t *values = calloc(LONG, sizeof *values), *tokens = calloc(2 * LONG, sizeof *tokens);
    assert_true(values && tokens);
    values[LONG - 1] = -2; /* 4294967294 in the file */
    shard_write(path_of("train_000002.bin"), 20240801, 7, LONG, 4, values, LONG);
    s = open_well();
    assert_int_equal(weft_shards_vocab(s), VOCAB);
    weft_sequence_place p = train(0, 0);
    assert_int_equal(weft_shards_fill(s, &p, LONG - 1, tokens, tokens + LONG), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "token 4294967294 at position 69999"));
    weft_shards_close(s);
    free(values);
    free(tokens);
}

TEST_WITH(test_damaged_shards_never_crash, open_folder, scratch_teardown) {
    write_both();
    for (int wide = 0; wide < 2; wide++) {
        write_counting("train_000001.bin", wide, 1000, 100);
        size_t count;
        char *bytes = file_read(path_of("train_000001.bin"), &count);
        for (uint32_t round = 0; round < 500; round++) {
            char *bad = malloc(count);
            assert_non_null(bad);
            memcpy(bad, bytes, count);
            weft_random4 r = weft_philox(1, round, (uint32_t)wide, 0, 0);
            size_t at = r.word[0] % (round % 2 ? 12 : count);
            bad[at] = (char)r.word[1];
            file_write(path_of("train_000001.bin"), bad, r.word[2] % 4 ? count : r.word[3] % count);
            weft_shards *s;
            if (weft_shards_open(folder, VOCAB, &s) == WEFT_OK) {
                int32_t tokens[50], targets[50];
                weft_sequence_place p = train(round, 0);
                (void)weft_shards_fill(s, &p, 50, tokens, targets);
                weft_shards_close(s);
            }
            free(bad);
        }
        free(bytes);
    }
}

RUN_TESTS(NULL, NULL)

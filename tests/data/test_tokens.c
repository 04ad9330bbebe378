/* Token files: what is read, and that no file, however damaged, does more than fail. */
#include "base/random.h"
#include "data/tokens.h"
#include "support/command.h"
#include "support/test.h"
#include "support/token_file.h"

#include <stdlib.h>
#include <string.h>

static const int32_t SAMPLE[6] = {0, 7, 65535, 3, 2, 1};

static void expect_sample(const char *path, int64_t rows, int64_t columns, bool shard) {
    weft_tokens t;
    if (weft_tokens_read(path, &t) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_int_equal(t.rows, rows);
    assert_int_equal(t.columns, columns);
    assert_int_equal(t.shard, shard);
    assert_memory_equal(t.values, SAMPLE, sizeof SAMPLE);
    weft_tokens_free(&t);
}

TEST(test_npy_of_both_sizes_is_read) {
    const char *path = scratch_path("tokens.npy");
    npy_write(path, 4, 2, 3, SAMPLE);
    expect_sample(path, 2, 3, false);
    npy_write(path, 8, 3, 2, SAMPLE);
    expect_sample(path, 3, 2, false);
}

TEST(test_npy_header_may_be_spaced_otherwise) {
    const char *path = scratch_path("tokens.npy");
    npy_write_raw(path, "{'shape':(6,),'fortran_order':False,'descr':'<i4'}", SAMPLE,
                  sizeof SAMPLE);
    expect_sample(path, 1, 6, false);
    npy_write_raw(path, "{'descr': '<i4', 'fortran_order': False, 'shape': ( 2 , 3 ) }", SAMPLE,
                  sizeof SAMPLE);
    expect_sample(path, 2, 3, false);
}

/* Version 2 has four bytes for the header's length. */
TEST(test_npy_version_2_is_read) {
    const char *path = scratch_path("tokens.npy");
    npy_write(path, 4, 2, 3, SAMPLE);
    size_t count;
    char *one = file_read(path, &count), *two = malloc(count + 2);
    assert_non_null(two);
    memcpy(two, one, 10);
    two[6] = 2;
    two[10] = two[11] = 0;
    memcpy(two + 12, one + 10, count - 10);
    file_write(path, two, count + 2);
    expect_sample(path, 2, 3, false);
    free(one);
    free(two);
}

TEST(test_shards_of_both_magics_are_read) {
    const char *path = scratch_path("tokens.bin");
    shard_write(path, 20240520, 1, 6, 2, SAMPLE, 6);
    expect_sample(path, 1, 6, true);
    shard_write(path, 20240801, 7, 6, 4, SAMPLE, 6);
    expect_sample(path, 1, 6, true);
}

static void expect_refusal(const char *path, const char *word) {
    weft_tokens t;
    assert_int_equal(weft_tokens_read(path, &t), WEFT_EINPUT);
    assert_null(t.values);
    if (!strstr(weft_error_message(), word) || !strstr(weft_error_message(), path))
        fail_msg("'%s' does not say '%s'", weft_error_message(), word);
}

static void refuse_header(const char *header, const char *word) {
    const char *path = scratch_path("tokens.npy");
    npy_write_raw(path, header, SAMPLE, sizeof SAMPLE);
    expect_refusal(path, word);
}

#define HEADER(type, order, shape)                                                                 \
    "{'descr': " type ", 'fortran_order': " order ", 'shape': " shape ", }"

TEST(test_npy_of_another_kind_is_refused) {
    refuse_header(HEADER("'<f4'", "False", "(2, 3)"), "'<f4' must be int32 or int64");
    refuse_header(HEADER("'>i4'", "False", "(2, 3)"), "'>i4'");
    refuse_header(HEADER("'<i2'", "False", "(2, 3)"), "'<i2'");
    refuse_header(HEADER("[('a', '<i4')]", "False", "(2, 3)"), "int32 or int64");
    refuse_header(HEADER("'<i4'", "True", "(2, 3)"), "C order");
    refuse_header(HEADER("'<i4'", "False", "(2, 3, 1)"), "(2, 3, 1)");
    refuse_header(HEADER("'<i4'", "False", "(1, 2, 3)"), "two sizes");
    refuse_header(HEADER("'<i4'", "False", "()"), "()");
    refuse_header(HEADER("'<i4'", "False", "6"), "two sizes");
    refuse_header(HEADER("'<i4'", "False", "(-2, -3)"), "two sizes");
    refuse_header(HEADER("'<i4'", "False", "(0, 6)"), "do not fill");
    refuse_header(HEADER("'<i4'", "False", "(6, 0)"), "do not fill");
    refuse_header(HEADER("'<i4'", "False", "(2, 4)"), "do not fill");
    refuse_header(HEADER("'<i4'", "False", "(1, 3)"), "do not fill");
    refuse_header(HEADER("'<i4'", "False", "(4611686018427387904, 4)"), "do not fill");
    refuse_header(HEADER("'<i4'", "False", "(99999999999999999999, 99999999999999999999)"),
                  "do not fill");
    refuse_header("{'descr': '<i4', 'fortran_order': False}", "missing");
    refuse_header("{'fortran_order': False, 'shape': (2, 3)}", "missing");
    refuse_header("", "missing");
}

TEST(test_numbers_beyond_any_vocabulary_are_refused) {
    const char *path = scratch_path("tokens.npy");
    const int64_t wide[2] = {1, INT64_C(1) << 40};
    npy_write_raw(path, HEADER("'<i8'", "False", "(1, 2)"), wide, sizeof wide);
    expect_refusal(path, "1099511627776");
    const int32_t high[2] = {1, INT32_MIN};
    shard_write(path, 20240801, 7, 2, 4, high, 2);
    expect_refusal(path, "2147483648");
}

TEST(test_shards_that_lie_are_refused) {
    const char *path = scratch_path("tokens.bin");
    shard_write(path, 20240521, 1, 6, 2, SAMPLE, 6);
    expect_refusal(path, "20240521");
    shard_write(path, 20240520, 7, 6, 2, SAMPLE, 6);
    expect_refusal(path, "version 7");
    shard_write(path, 20240520, 1, 7, 2, SAMPLE, 6);
    expect_refusal(path, "do not fill");
    shard_write(path, 20240520, 1, 5, 2, SAMPLE, 6);
    expect_refusal(path, "do not fill");
    shard_write(path, 20240520, 1, -6, 2, SAMPLE, 6);
    expect_refusal(path, "do not fill");
    shard_write(path, 20240520, 1, 0, 2, SAMPLE, 0);
    expect_refusal(path, "do not fill");
    file_write(path, "", 0);
    expect_refusal(path, "ends too early");
    expect_refusal(scratch_path("."), "folder");
    weft_tokens t;
    assert_int_equal(weft_tokens_read(scratch_path("none"), &t), WEFT_EIO);
}

/* A file cut at every length is refused, and never read past its end. */
static void cut_everywhere(const char *path) {
    size_t count;
    char *bytes = file_read(path, &count);
    const char *cut = scratch_path("cut");
    for (size_t n = 0; n < count; n++) {
        weft_tokens t;
        file_write(cut, bytes, n);
        if (weft_tokens_read(cut, &t) == WEFT_OK) fail_msg("%s read at %zu bytes", path, n);
    }
    free(bytes);
}

TEST(test_files_cut_short_are_refused) {
    const char *path = scratch_path("tokens");
    npy_write(path, 8, 2, 3, SAMPLE);
    cut_everywhere(path);
    shard_write(path, 20240520, 1, 6, 2, SAMPLE, 6);
    cut_everywhere(path);
}

/* One changed byte, a removed or a repeated stretch, an ASCII digit or bracket where none was. */
static size_t damage(char *bytes, size_t count, uint64_t round) {
    static const char sharp[] = "(),'{}:-0123456789<if \n\xff";
    uint32_t word[4];
    for (uint64_t i = 0; i < 4; i++)
        word[i] = weft_random_word(97, 0, 0, 0, 4 * round + i);
    size_t reach = word[3] % 4 ? (count < 128 ? count : 128) : count;
    size_t at = word[0] % reach, n = word[1] % 9;
    switch (word[2] % 4) {
    case 0:
        bytes[at] = (char)word[1];
        return count;
    case 1:
        if (at + n > count) n = count - at;
        memmove(bytes + at, bytes + at + n, count - at - n);
        return count - n;
    case 2:
        memmove(bytes + at + n, bytes + at, count - at);
        return count + n;
    default:
        bytes[at] = sharp[word[1] % (sizeof sharp - 1)];
        return count;
    }
}

static void damage_often(const char *path, uint64_t rounds) {
    size_t count;
    char *bytes = file_read(path, &count), *bad = malloc(count + 64);
    assert_non_null(bad);
    const char *to = scratch_path("damaged");
    for (uint64_t round = 0; round < rounds; round++) {
        memcpy(bad, bytes, count);
        size_t left = damage(bad, count, round);
        if (round % 3 == 0 && left) left = damage(bad, left, rounds + round);
        file_write(to, bad, left);
        weft_tokens t;
        if (weft_tokens_read(to, &t) != WEFT_OK) {
            assert_null(t.values);
            assert_null(strchr(weft_error_message(), '\n'));
            continue;
        }
        assert_true(t.rows >= 1 && t.columns >= 1);
        int32_t last = t.values[t.rows * t.columns - 1];
        (void)last;
        weft_tokens_free(&t);
    }
    free(bytes);
    free(bad);
}

TEST(test_damaged_files_never_crash) {
    const char *path = scratch_path("tokens");
    npy_write(path, 4, 2, 3, SAMPLE);
    damage_often(path, 3000);
    npy_write(path, 8, 2, 3, SAMPLE);
    damage_often(path, 1000);
    shard_write(path, 20240520, 1, 6, 2, SAMPLE, 6);
    damage_often(path, 1000);
    shard_write(path, 20240801, 7, 6, 4, SAMPLE, 6);
    damage_often(path, 1000);
}

RUN_TESTS(scratch_setup, scratch_teardown)

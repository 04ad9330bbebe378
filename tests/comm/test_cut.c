/* A row cut among ranks: every block has one owner, pieces are as even as whole blocks allow, and those
 * of a bucket are neighbours. */
#include "comm/share.h"
#include "support/test.h"

enum { BLOCKS_MOST = 9000 };

/* `stride` blocks that are much longer than the others, and as many that are not, by turns. */
static void check_cut(int64_t blocks, int size, int64_t stride) {
    static int64_t borders[BLOCKS_MOST + 1];
    for (int64_t i = 0; i < blocks; i++)
        borders[i + 1] = borders[i] + (i / stride % 2 ? 7 + i % 3 : 500);
    weft_cut c = {.n_blocks = blocks, .borders = borders, .size = size};
    int64_t next = 0, largest = weft_cut_largest(&c);
    for (int64_t b = 0; b < weft_cut_buckets(&c); b++) {
        weft_span all = weft_cut_bucket(&c, b);
        assert_int_equal(all.first, next);
        for (int r = 0; r < size; r++) {
            weft_span p = weft_cut_piece(&c, b, r);
            assert_int_equal(p.first, next);
            int64_t numbers = borders[p.first + p.count] - borders[p.first];
            int64_t even = (borders[all.first + all.count] - borders[all.first]) / size;
            assert_true(numbers >= even - 500 && numbers <= even + 501);
            assert_true(numbers <= largest);
            for (int64_t i = p.first; i < p.first + p.count; i++) {
                assert_int_equal(weft_cut_owner(&c, i), r);
                assert_int_equal(weft_cut_bucket_of(&c, i), b);
            }
            next += p.count;
        }
        assert_int_equal(next, all.first + all.count);
    }
    assert_int_equal(next, blocks);
}

TEST(test_every_block_has_one_owner) {
    for (int64_t blocks = 1; blocks <= 300; blocks += blocks < 40 ? 1 : 13)
        for (int size = 1; size <= 200; size += size < 9 ? 1 : 37)
            check_cut(blocks, size, 1 + blocks % 9);
    check_cut(BLOCKS_MOST, 1, 6);
    check_cut(BLOCKS_MOST - 1, 3, 2);
    check_cut(BLOCKS_MOST, 2048, BLOCKS_MOST);
}

static int64_t buckets_of(int64_t blocks, int size) {
    weft_cut c = {.n_blocks = blocks, .size = size};
    return weft_cut_buckets(&c);
}

/* A long row has few buckets, a short one pieces that are worth a message, and whoever adds pieces of
 * many ranks needs no more memory for it. */
TEST(test_pieces_grow_with_the_row) {
    assert_int_equal(buckets_of(8 * 2 * 10, 2), 10);
    assert_int_equal(buckets_of(40 * 2 * 32, 2), 32);
    assert_int_equal(buckets_of(64 * 8 * 1000, 8), 1000);
    assert_int_equal(buckets_of(2048 * 50, 1024), 50);
    assert_int_equal(buckets_of(3000 * 5, 3000), 5);
}

RUN_TESTS(NULL, NULL)

/* A row cut among ranks: every block has one owner, pieces are as even as whole blocks allow, and those
 * of a bucket are neighbours. */
#include "comm/cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { BLOCKS_MOST = 300 };

static void check_cut(int64_t blocks, int size) {
    int64_t borders[BLOCKS_MOST + 1], owned = 0;
    for (int64_t i = 0; i <= blocks; i++)
        borders[i] = 7 * i + i % 3;
    weft_cut c = {.n_blocks = blocks, .borders = borders, .size = size};
    int64_t next = 0;
    for (int64_t b = 0; b < weft_cut_buckets(&c); b++) {
        weft_blocks all = weft_cut_bucket(&c, b);
        assert_int_equal(all.first, next);
        for (int r = 0; r < size; r++) {
            weft_blocks p = weft_cut_piece(&c, b, r);
            assert_int_equal(p.first, next);
            assert_true(p.count >= all.count / size && p.count <= all.count / size + 1);
            assert_true(borders[p.first + p.count] - borders[p.first] <= weft_cut_largest(&c));
            for (int64_t i = p.first; i < p.first + p.count; i++) {
                assert_int_equal(weft_cut_owner(&c, i), r);
                assert_int_equal(weft_cut_bucket_of(&c, i), b);
            }
            next += p.count;
        }
        assert_int_equal(next, all.first + all.count);
    }
    assert_int_equal(next, blocks);
    for (int r = 0; r < size; r++)
        owned += weft_cut_owned(&c, r);
    assert_int_equal(owned, blocks);
}

static void test_every_block_has_one_owner(void **state) {
    (void)state;
    for (int64_t blocks = 1; blocks <= BLOCKS_MOST; blocks += blocks < 40 ? 1 : 13)
        for (int size = 1; size <= 200; size += size < 9 ? 1 : 37)
            check_cut(blocks, size);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_block_has_one_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

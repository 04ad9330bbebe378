/* The tree over micro-batches, cut at the borders of any number of ranks: the same sum to the bit. */
#include "comm/share.h"
#include "support/test.h"

#include <stdlib.h>

enum { LEAVES_MOST = 33 };

/* Numbers whose sums depend on the order. */
static float leaf(int64_t i) {
    return 1.0f / (float)(3 + 7 * i) * (i % 3 ? 1.0f : -1e3f);
}

/* The tree's definition. */
static float sum(int64_t first, int64_t count) {
    if (count == 1) return leaf(first);
    int64_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return sum(first, left) + sum(first + left, count - left);
}

static void check_cut(int64_t leaves, int size) {
    weft_tree t;
    assert_int_equal(weft_tree_make(leaves, size, &t), WEFT_OK);
    assert_int_equal(t.n_merges, t.n_nodes - 1);
    float values[LEAVES_MOST];
    int64_t next = 0;
    for (int i = 0; i < t.n_nodes; i++) {
        weft_span s = weft_tree_span(leaves, t.nodes[i].rank, size);
        assert_int_equal(t.nodes[i].first, next);
        assert_true(t.nodes[i].first >= s.first);
        next += t.nodes[i].count;
        assert_true(next <= s.first + s.count);
        values[i] = sum(t.nodes[i].first, t.nodes[i].count);
    }
    assert_int_equal(next, leaves);
    for (int i = 0; i < t.n_merges; i++)
        values[t.merges[i].to] += values[t.merges[i].from];
    assert_true(values[0] == sum(0, leaves));
    for (int r = 0, from = 0; r < size; r++) {
        int first, count = weft_tree_of_rank(&t, r, &first);
        assert_int_equal(first, from);
        assert_true(count >= 1);
        from += count;
    }
    weft_tree_free(&t);
}

TEST(test_any_cut_gives_the_same_sum) {
    for (int64_t leaves = 1; leaves <= LEAVES_MOST; leaves++)
        for (int size = 1; size <= leaves; size++)
            check_cut(leaves, size);
}

TEST(test_powers_of_two_have_one_node_a_rank) {
    weft_tree t;
    assert_int_equal(weft_tree_make(32, 8, &t), WEFT_OK);
    assert_int_equal(t.n_nodes, 8);
    weft_tree_free(&t);
}

TEST(test_more_ranks_than_micro_batches_is_refused) {
    weft_tree t;
    assert_int_equal(weft_tree_make(3, 4, &t), WEFT_EINPUT);
    assert_null(t.nodes);
}

RUN_TESTS(NULL, NULL)

/* Lists of addresses that came lately: found again, told apart, forgotten in their order. */
#include "core/lru.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LENGTH = 3, ROOM = 4 };

static int dropped[16], n_dropped;

static void note_drop(void *kept) {
    dropped[n_dropped++] = *(int *)kept;
}

static weft_lru_entry *find(weft_lru *r, uintptr_t a, uintptr_t b, uintptr_t c) {
    const void *list[LENGTH] = {(const void *)a, (const void *)b, (const void *)c};
    return weft_lru_find(r, list);
}

static void test_a_list_is_found_again_with_what_was_kept(void **state) {
    (void)state;
    static int thing = 7;
    weft_lru *r = weft_lru_create(ROOM, LENGTH, note_drop);
    n_dropped = 0;
    weft_lru_entry *e = find(r, 64, 128, 0);
    assert_null(e->kept);
    assert_int_equal(e->seen, 1);
    e->kept = &thing;
    assert_int_equal(find(r, 64, 0, 128)->seen, 1); /* the same addresses in another order */
    assert_int_equal(find(r, 64, 128, 64)->seen, 1);
    e = find(r, 64, 128, 0);
    assert_ptr_equal(e->kept, &thing);
    assert_int_equal(e->seen, 2);
    weft_lru_destroy(r);
    assert_int_equal(n_dropped, 1);
    assert_int_equal(dropped[0], 7);
}

static void test_the_list_found_longest_ago_is_forgotten(void **state) {
    (void)state;
    static int things[ROOM + 1] = {0, 1, 2, 3, 4};
    weft_lru *r = weft_lru_create(ROOM, LENGTH, note_drop);
    n_dropped = 0;
    for (uintptr_t i = 0; i < ROOM; i++)
        find(r, i, 0, 0)->kept = &things[i];
    find(r, 0, 0, 0); /* so that 1 is the oldest */
    find(r, ROOM, 0, 0)->kept = &things[ROOM];
    assert_int_equal(n_dropped, 1);
    assert_int_equal(dropped[0], 1);
    assert_ptr_equal(find(r, 0, 0, 0)->kept, &things[0]);
    assert_null(find(r, 1, 0, 0)->kept); /* new again, in place of 2 */
    assert_int_equal(dropped[1], 2);
    weft_lru_destroy(r);
    assert_int_equal(n_dropped, 2 + 3);
}

static void test_many_lists_are_told_apart(void **state) {
    (void)state;
    enum { MANY = 256 };
    static int things[MANY];
    weft_lru *r = weft_lru_create(MANY, LENGTH, note_drop);
    for (int round = 0; round < 3; round++)
        for (uintptr_t i = 0; i < MANY; i++) {
            weft_lru_entry *e = find(r, 0x7f0000000000u + (i % 16) * 512, i / 16 * 2097152, 1);
            assert_int_equal(e->seen, round + 1);
            if (round)
                assert_ptr_equal(e->kept, &things[i]);
            else
                e->kept = &things[i];
        }
    for (uintptr_t i = 0; i < MANY; i++)
        find(r, 0x7f0000000000u + (i % 16) * 512, i / 16 * 2097152, 1)->kept = NULL;
    weft_lru_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list_is_found_again_with_what_was_kept),
        cmocka_unit_test(test_the_list_found_longest_ago_is_forgotten),
        cmocka_unit_test(test_many_lists_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

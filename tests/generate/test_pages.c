/* The page pool: a page has one owner until it is shared, sealed pages are found again by what they
 * hold, and nothing that is held is ever given away. */
#include "generate/generator_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void fill(int32_t *tokens, int32_t first) {
    for (int i = 0; i < WEFT_PAGE_TOKENS; i++)
        tokens[i] = first + i;
}

static void test_every_page_is_given_once(void **state) {
    (void)state;
    weft_pages *p;
    assert_int_equal(weft_pages_create(5, &p), WEFT_OK);
    bool seen[5] = {0};
    for (int i = 0; i < 5; i++) {
        int32_t page = weft_pages_take(p);
        assert_true(page >= 0 && page < 5 && !seen[page]);
        seen[page] = true;
    }
    assert_int_equal(weft_pages_take(p), -1);
    weft_pages_release(p, 3);
    assert_int_equal(weft_pages_take(p), 3);
    weft_pages_destroy(p);
}

static void test_sealed_pages_are_found_by_all_that_came_before(void **state) {
    (void)state;
    weft_pages *p;
    int32_t a[WEFT_PAGE_TOKENS], b[WEFT_PAGE_TOKENS];
    fill(a, 0);
    fill(b, 100);
    assert_int_equal(weft_pages_create(8, &p), WEFT_OK);
    int32_t first = weft_pages_take(p), second = weft_pages_take(p);
    assert_int_equal(weft_pages_seal(p, first, -1, a, 0, "xy", 3), WEFT_OK);
    assert_int_equal(weft_pages_seal(p, second, first, b, 0, NULL, 0), WEFT_OK);
    assert_int_equal(weft_pages_find(p, -1, a, 0), first);
    assert_int_equal(weft_pages_find(p, first, b, 0), second);
    assert_int_equal(weft_pages_find(p, -1, b, 0), -1);
    assert_int_equal(weft_pages_find(p, first, a, 0), -1);
    assert_int_equal(weft_pages_find(p, -1, a, 1), -1);
    assert_string_equal(weft_pages_state(p, first), "xy");
    assert_null(weft_pages_state(p, second));
    weft_pages_destroy(p);
}

static void test_kept_pages_go_when_needed_and_followers_first(void **state) {
    (void)state;
    weft_pages *p;
    int32_t tokens[WEFT_PAGE_TOKENS];
    assert_int_equal(weft_pages_create(3, &p), WEFT_OK);
    int32_t chain[3];
    for (int i = 0; i < 3; i++) {
        chain[i] = weft_pages_take(p);
        fill(tokens, 10 * i);
        weft_pages_seal(p, chain[i], i ? chain[i - 1] : -1, tokens, 0, NULL, 0);
    }
    for (int i = 0; i < 3; i++)
        weft_pages_release(p, chain[i]);
    assert_int_equal(weft_pages_count(p).kept, 3);
    assert_int_equal(weft_pages_count(p).held, 0);
    fill(tokens, 0);
    weft_pages_hold(p, weft_pages_find(p, -1, tokens, 0));
    /* The first is held; of the others the last goes first, though it was released last. */
    assert_int_equal(weft_pages_take(p), chain[2]);
    assert_int_equal(weft_pages_take(p), chain[1]);
    assert_int_equal(weft_pages_take(p), -1);
    fill(tokens, 10);
    assert_int_equal(weft_pages_find(p, chain[0], tokens, 0), -1);
    weft_pages_destroy(p);
}

/* Random use against a plain count of holders. */
static void test_what_is_held_is_never_given_away(void **state) {
    (void)state;
    enum { PAGES = 20, STEPS = 20000 };
    weft_pages *p;
    int holders[PAGES] = {0};
    uint32_t random = 1;
    assert_int_equal(weft_pages_create(PAGES, &p), WEFT_OK);
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525u + 1013904223u;
        int32_t page = (int32_t)(random >> 8) % PAGES, tokens[WEFT_PAGE_TOKENS];
        fill(tokens, (int32_t)(random >> 20) % 6);
        switch (random >> 29) {
        case 0:
        case 1:
        case 2:
            page = weft_pages_take(p);
            if (page >= 0) assert_int_equal(holders[page]++, 0);
            break;
        case 3:
        case 4:
            if (holders[page]) {
                weft_pages_release(p, page);
                holders[page]--;
            }
            break;
        case 5:
            page = weft_pages_find(p, -1, tokens, 0);
            if (page >= 0) {
                weft_pages_hold(p, page);
                holders[page]++;
            }
            break;
        default:
            if (holders[page]) weft_pages_seal(p, page, -1, tokens, 0, tokens, sizeof tokens);
        }
        int held = 0;
        for (int i = 0; i < PAGES; i++)
            held += holders[i] > 0;
        assert_int_equal(weft_pages_count(p).held, held);
    }
    weft_pages_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_page_is_given_once),
        cmocka_unit_test(test_sealed_pages_are_found_by_all_that_came_before),
        cmocka_unit_test(test_kept_pages_go_when_needed_and_followers_first),
        cmocka_unit_test(test_what_is_held_is_never_given_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

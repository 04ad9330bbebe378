/* Text by others: what a terminal would obey is shown escaped, and what is no UTF-8 is found. */
#include "base/text.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static void expect_shown(const char *text, const char *shown) {
    assert_string_equal(weft_shown(text), shown);
}

TEST(test_what_a_terminal_obeys_is_escaped) {
    expect_shown("", "");
    expect_shown("plain, grün, 日本, \xf0\x9f\xa7\xb5", "plain, grün, 日本, \xf0\x9f\xa7\xb5");
    expect_shown("\x1b[2J\x07\r\n\t\x7f", "\\x1b[2J\\x07\\x0d\\x0a\\x09\\x7f");
    expect_shown("\xc2\x9b"
                 "31m \xc2\xa0",
                 "\\xc2\\x9b31m \xc2\xa0");
    /* right-to-left override, isolates, line separator */
    expect_shown("\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8",
                 "\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xe2\\x80\\xa8");
    expect_shown("\xe2\x80\x93", "\xe2\x80\x93"); /* a dash */
}

/* As RFC 3629 has them: overlong forms, surrogates, beyond U+10FFFF, cut short. */
TEST(test_bytes_that_are_no_utf8_are_escaped) {
    expect_shown("\xff", "\\xff");
    expect_shown("\xc0\xaf", "\\xc0\\xaf");
    expect_shown("\xe0\x80\xaf", "\\xe0\\x80\\xaf");
    expect_shown("\xed\xa0\x80", "\\xed\\xa0\\x80");
    expect_shown("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
    expect_shown("a\xe2\x82", "a\\xe2\\x82");
    expect_shown("\x9b"
                 "31m",
                 "\\x9b31m");
    char *repaired = weft_text_repair("a\xff\xe2\x82z\xc3\xbc");
    assert_string_equal(repaired, "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\xc3\xbc");
    free(repaired);
}

TEST(test_a_long_text_is_cut_between_letters) {
    char out[10];
    for (size_t room = 0; room <= sizeof out; room++) {
        memset(out, '#', sizeof out);
        weft_text_show("\xc3\xbc\x1b\xc3\xbc\xc3\xbc\xc3\xbc", out, room);
        for (size_t i = room; i < sizeof out; i++)
            assert_int_equal(out[i], '#');
        if (room) assert_true(strlen(out) < room);
    }
    weft_text_show("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", out, sizeof out);
    assert_string_equal(out, "\xc3\xbc\xc3\xbc\xc3\xbc...");
    weft_text_show("123456789", out, sizeof out);
    assert_string_equal(out, "123456789");
    weft_text_show("1234567890", out, sizeof out);
    assert_string_equal(out, "123456...");
}

/* With zeros in it, and with a letter that is cut off at its end. */
TEST(test_a_text_is_printed_with_its_lines_and_nothing_that_is_obeyed) {
    static const char text[] = "a\n\tb\r\x1b[2J\0\xc2\x9b\xc3\xbc\xe2\x82";
    char *out = NULL;
    size_t bytes;
    FILE *file = open_memstream(&out, &bytes);
    assert_non_null(file);
    weft_text_print(file, text, sizeof text - 1);
    weft_text_print(file, "", 0);
    fclose(file);
    assert_string_equal(out, "a\n\tb\\x0d\\x1b[2J\\x00\\xc2\\x9b\xc3\xbc\\xe2\\x82");
    free(out);
}

TEST(test_counts_have_separators) {
    static const struct {
        int64_t n;
        const char *text;
    } cases[] = {{0, "0"},
                 {999, "999"},
                 {1000, "1,000"},
                 {-1234567, "-1,234,567"},
                 {-100, "-100"},
                 {12345, "12,345"},
                 {INT64_MIN, "-9,223,372,036,854,775,808"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(weft_count_text(cases[i].n), cases[i].text);
}

RUN_TESTS(NULL, NULL)

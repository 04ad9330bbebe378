/* Streaming: what comes out piece by piece is the text, never half a character, never part of a stop
 * string, and nothing is held back longer than it must be. */
#include "generate/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Puts the bytes of `in`, and writes what comes out with | behind each piece that is not empty. */
static void stream(const char *in, const char *const *stops, int n_stops, char *out) {
    weft_tokenizer *t;
    weft_stream *s;
    assert_int_equal(weft_tokenizer_open("bytes", &t), WEFT_OK);
    assert_int_equal(weft_stream_open(t, stops, n_stops, &s), WEFT_OK);
    bool stopped = false;
    const char *text;
    size_t bytes, before = 0;
    *out = '\0';
    for (; *in && !stopped; in++, before = bytes) {
        assert_int_equal(weft_stream_put(s, (unsigned char)*in, &stopped), WEFT_OK);
        text = weft_stream_text(s, &bytes);
        if (bytes > before)
            sprintf(out + strlen(out), "%.*s|", (int)(bytes - before), text + before);
    }
    if (stopped) {
        strcat(out, "STOP");
    } else {
        assert_int_equal(weft_stream_end(s), WEFT_OK);
        text = weft_stream_text(s, &bytes);
        if (bytes > before)
            sprintf(out + strlen(out), "%.*s|", (int)(bytes - before), text + before);
    }
    weft_stream_close(s);
    weft_tokenizer_close(t);
}

static void test_characters_come_whole(void **state) {
    (void)state;
    char out[256];
    stream("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", NULL, 0, out);
    assert_string_equal(out, "a|\xc3\xa9|\xe2\x82\xac|\xf0\x9f\x98\x80|");
}

static void test_what_is_no_utf8_becomes_the_replacement_character(void **state) {
    (void)state;
    char out[256];
    stream("\xff"
           "a\xc3"
           "b\xed\xa0\x80",
           NULL, 0, out);
    assert_string_equal(out, "\xef\xbf\xbd|a|\xef\xbf\xbd"
                             "b|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|");
    stream("a\xe2\x82", NULL, 0, out);
    assert_string_equal(out, "a|\xef\xbf\xbd|");
}

static void test_stop_strings_end_the_text_and_are_no_part_of_it(void **state) {
    (void)state;
    char out[256];
    stream("one. two", (const char *[]){". "}, 1, out);
    assert_string_equal(out, "o|n|e|STOP");
    stream("aab aac", (const char *[]){"aac", "zz"}, 2, out);
    assert_string_equal(out, "aab| |STOP");
    stream("abababX", (const char *[]){"ababX"}, 1, out);
    assert_string_equal(out, "ab|STOP");
}

static void test_the_beginning_of_a_stop_string_is_held_back_no_longer_than_it_must(void **state) {
    (void)state;
    char out[256];
    stream("x.y..", (const char *[]){".. "}, 1, out);
    assert_string_equal(out, "x|.y|..|");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_come_whole),
        cmocka_unit_test(test_what_is_no_utf8_becomes_the_replacement_character),
        cmocka_unit_test(test_stop_strings_end_the_text_and_are_no_part_of_it),
        cmocka_unit_test(test_the_beginning_of_a_stop_string_is_held_back_no_longer_than_it_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

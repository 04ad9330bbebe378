/* JSON: texts that would grow many times over in memory are refused and others are not, files have their lines
 * named, and numbers that JSON has not are null. */
#include "base/json.h"
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* BEFORE, then the part so many times with commas between, then AFTER. */
static char *repeat(const char *before, const char *part, int times, const char *after) {
    size_t n = strlen(part);
    char *text = malloc(strlen(before) + (size_t)times * (n + 1) + strlen(after) + 1), *at;
    assert_non_null(text);
    at = stpcpy(text, before);
    for (int i = 0; i < times; i++) {
        at = stpcpy(at, part);
        if (i + 1 < times) at = stpcpy(at, ",");
    }
    stpcpy(at, after);
    return text;
}

/* In memory a list comes to about 160 bytes, an object to 300, a value to 60 and a key to 80; 40 times the
 * text is the most, and a MiB is always allowed. */
TEST(test_a_text_that_grows_too_much_is_refused) {
    static const struct {
        const char *before, *part, *after;
        int times;
        bool taken;
    } cases[] = {
        {"[", "[]", "]", 20000, false},             /* 220 bytes for 3: 73 times */
        {"[", "[]", "]", 4700, true},               /* the same, but 1,034,000 bytes in all */
        {"[", "[]", "]", 4800, false},              /* 1,056,000 */
        {"[", "[1000]", "]", 20000, true},          /* 220 for 7: 31 times */
        {"[", "[100]", "]", 20000, true},           /* 220 for 6: 37 times */
        {"[", "[10]", "]", 20000, false},           /* 220 for 5: 44 times */
        {"[", "{}", "]", 20000, false},             /* 360 for 3 */
        {"[", "{\"abcdefg\":1}", "]", 20000, true}, /* 440 for 14: 31 times */
        {"[ ", "{\"abcd\":1}", "]", 20000, false},  /* 8,800,100 for 220,002: more than 40 times */
        {"[  ", "{\"abcd\":1}", "]", 20000, true},  /* for 220,003: less */
        {"[", "{\"abc\":1}", "]", 20000, false},    /* 440 for 10 */
        {"[", "1", "]", 100000, true},              /* 60 for 2 */
        {"[\"", "[]", "\"]", 20000, true},          /* a string of brackets */
        {"[\"\\\"", "[]", "\"]", 20000, true},      /* that has a quote in it */
        {"[\"\\\\\",", "[]", "]", 20000, false},    /* a string that ends on a backslash */
        {"[\"a\",", "[]", "]", 20000, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_error_t error = {0};
        char *text = repeat(cases[i].before, cases[i].part, cases[i].times, cases[i].after);
        json_t *value = weft_json_read(text, strlen(text), 0, &error);
        if (!!value != cases[i].taken) fail_msg("case %zu: '%s'", i, value ? "taken" : error.text);
        if (!value) {
            assert_int_equal(error.line, 1);
            assert_string_equal(error.text,
                                "it has more lists and objects than a file of its size may have");
            assert_null(weft_json_read(text, strlen(text), 0, NULL));
        }
        json_decref(value);
        free(text);
    }
}

static void write_text(const char *text) {
    file_write(scratch_path("a.json"), text, strlen(text));
}

TEST(test_a_file_that_is_wrong_has_its_line_named) {
    json_t *value;
    char words[600];
    write_text("{\"a\": 1,\n \"b\": 2}\n");
    assert_int_equal(weft_json_load(scratch_path("a.json"), 100, &value), WEFT_OK);
    assert_int_equal(json_integer_value(json_object_get(value, "b")), 2);
    json_decref(value);
    assert_int_not_equal(weft_json_load(scratch_path("a.json"), 10, &value), WEFT_OK); /* longer */
    assert_null(value);
    write_text("{\"a\": 1,\n \"a\": 2}\n");
    assert_int_equal(weft_json_load(scratch_path("a.json"), 100, &value), WEFT_EINPUT);
    assert_null(value);
    snprintf(words, sizeof words, "%s:2: ", scratch_path("a.json"));
    assert_ptr_equal(strstr(weft_error_message(), words), weft_error_message());
    /* Without a message the last of two keys counts. */
    value = weft_json_file(scratch_path("a.json"), 100);
    assert_int_equal(json_integer_value(json_object_get(value, "a")), 2);
    json_decref(value);
    assert_null(weft_json_file(scratch_path("a.json"), 10));
    assert_null(weft_json_file(scratch_path("none.json"), 100));
}

TEST(test_objects_are_written_in_order) {
    json_t *object = json_pack("{s:i, s:[i]}", "b", 2, "a", 1);
    weft_sum sum;
    assert_int_equal(weft_json_write(scratch_path("b.json"), object, &sum), WEFT_OK);
    char *text = file_read(scratch_path("b.json"), NULL);
    assert_string_equal(text, "{\n  \"a\": [\n    1\n  ],\n  \"b\": 2\n}\n");
    assert_int_equal(sum.bytes, strlen(text));
    free(text);
    assert_int_equal(weft_json_write(scratch_path("c.json"), NULL, NULL), WEFT_ENOMEM);
    text = weft_json_line(json_pack("{s:[i, i]}", "a", 1, 2));
    assert_string_equal(text, "{\"a\":[1,2]}");
    free(text);
    assert_null(weft_json_line(NULL));
}

static void expect_line(json_t *value, const char *line) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    assert_string_equal(text, line);
    free(text);
    json_decref(value);
}

TEST(test_numbers_that_json_has_not_are_null) {
    expect_line(weft_json_number(0.5), "0.5");
    expect_line(weft_json_number(NAN), "null");
    expect_line(weft_json_number(-INFINITY), "null");
    expect_line(weft_json_make("x:w", -3.9), "{\"x\": -3}");
    expect_line(weft_json_make("x:w", 9e18), "{\"x\": 9000000000000000000}");
    expect_line(weft_json_make("x:w", 9.3e18), "{\"x\": null}"); /* 2^63 is 9.22e18 */
    expect_line(weft_json_make("x:w", -9.3e18), "{\"x\": null}");
    expect_line(weft_json_make("x:w", NAN), "{\"x\": null}");
    expect_line(weft_json_text("a\xff"
                               "b"),
                "\"a\xef\xbf\xbd"
                "b\"");
    json_t *object = json_pack("{s:i, s:f, s:s}", "whole", 3, "real", 0.25, "text", "4");
    assert_float_equal(weft_json_number_of(object, "whole"), 3, 0);
    assert_float_equal(weft_json_number_of(object, "real"), 0.25, 0);
    assert_true(isnan(weft_json_number_of(object, "text")));
    assert_true(isnan(weft_json_number_of(object, "none")));
    json_decref(object);
}

TEST(test_an_object_is_made_of_its_fields) {
    json_t *shared = json_integer(7);
    json_t *object = weft_json_make(
        "text:s none:s bad:s whole:i long:I real:f nan:f count:w no:b taken:o shared:O", "a", NULL,
        "\xff", -3, INT64_C(1) << 40, 0.5, NAN, 2.9, false, json_array(), shared);
    weft_json_add(object, "left_out:f* kept:f* more:O* last:b", NAN, 1.5, NULL, true);
    assert_int_equal(shared->refcount, 2);
    json_decref(shared);
    expect_line(
        object,
        "{\"text\": \"a\", \"none\": null, \"bad\": \"\xef\xbf\xbd\", \"whole\": -3, \"long\": "
        "1099511627776, \"real\": 0.5, \"nan\": null, \"count\": 2, \"no\": false, \"taken\": [], "
        "\"shared\": 7, \"kept\": 1.5, \"last\": true}");
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* `weft verify`: every check of every block passes on this machine, soon. */
#include "model/verify.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TEST(test_all_pass_within_seconds) {
    time_t start = time(NULL);
    WEFT_AUTO_FREE char *out = OUTPUT("verify");
    /* The promise is of the machine alone; tests run beside each other. */
    assert_true(time(NULL) - start < 30 * command_patience());
    int passed = 0;
    for (const char *at = out; (at = strstr(at, "... PASSED\n")); at++)
        passed++;
    assert_int_equal(passed, weft_verify_count * WEFT_VERIFY_CHECKS);
    assert_null(strstr(out, "... FAILED"));
    /* The rows that are no kind's own, by their names. */
    static const char *const rows[] = {
        "dot-rope",      "dot-alibi",   "dot-relative",  "qk-norm",        "out-gate",
        "w2-rope",       "w2-overlap",  "mla-joint",     "mla-reciprocal", "mla-w2",
        "mla-deepseek",  "mla-gla",     "gta-grouped",   "kv-share",       "wsffn-losses",
        "wsffn-grouped", "gate",        "gate-cummean",  "cross-topk",     "cross-rms",
        "cross-none",    "latent-tied", "latent-untied", "latent-scalar",  "all"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_non_null(strstr(out, format_text("\n%s: causality... PASSED\n", rows[i])));
    assert_non_null(strstr(out, format_text("%d PASSED, 0 FAILED", passed)));
}

TEST(test_json_has_a_row_for_each_block) {
    WEFT_AUTO_DECREF json_t *object = command_json(RUN("verify", "--json", "--threads", "2"));
    json_t *blocks = json_object_get(object, "blocks");
    assert_int_equal(json_array_size(blocks), weft_verify_count);
    assert_int_equal(json_integer_value(json_object_get(object, "failed")), 0);
    assert_int_equal(json_integer_value(json_object_get(object, "passed")),
                     weft_verify_count * WEFT_VERIFY_CHECKS);
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        json_t *row = json_array_get(blocks, i);
        assert_string_equal(json_string_value(json_object_get(row, "block")),
                            weft_verify_blocks[i].name);
        for (int check = 0; check < WEFT_VERIFY_CHECKS; check++)
            assert_true(json_is_true(json_object_get(row, weft_verify_check_names[check])));
    }
}

RUN_TESTS(NULL, NULL)

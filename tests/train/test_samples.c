/* Samples while training: made when they are due, kept a line each, the same after a resume, shown in
 * the report; and refused where tokens are no text. */
#include "support/command.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY                                                                                       \
    "-o", "N_LAYER=1", "-o", "N_HEAD=2", "-o", "N_EMBD=16", "-o", "VOCAB_SIZE=256", "-o",          \
        "GPT2_BLOCK_SIZE=32", "-o", "BATCH_SIZE=2", "-o", "SAMPLE_PROMPT=The ", "-o",              \
        "SAMPLE_INTERVAL=4", "-o", "SAMPLE_TOKENS=9", "-o", "CHECKPOINT_INTERVAL=1", "--threads",  \
        "1"

static char config[512];

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    snprintf(config, sizeof config, "%s", scratch_path("empty.config"));
    file_write(config, "", 0);
    return 0;
}

static char *lines_of(const char *run) {
    return file_read(scratch_path("%s/samples.jsonl", run), NULL);
}

static void test_samples_are_kept_and_come_again_after_a_resume(void **state) {
    (void)state;
    char whole[512], cut[512];
    snprintf(whole, sizeof whole, "%s", scratch_path("whole"));
    snprintf(cut, sizeof cut, "%s", scratch_path("cut"));
    command_succeeds(RUN("train", "--config", config, TINY, "-o", "GPT2_MAX_ITERS=10", "-o",
                         "LR_SCHEDULE=constant", "--out", whole),
                     NULL);
    char *want = lines_of("whole");
    int64_t steps[] = {4, 8, 10};
    const char *at = want;
    for (int i = 0; i < 3; i++) {
        json_t *row = json_loadb(at, strcspn(at, "\n"), 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(row, "step")), steps[i]);
        assert_string_equal(json_string_value(json_object_get(row, "prompt")), "The ");
        assert_true(json_string_length(json_object_get(row, "text")) >= 9);
        json_decref(row);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    command_succeeds(RUN("train", "--config", config, TINY, "-o", "GPT2_MAX_ITERS=5", "-o",
                         "LR_SCHEDULE=constant", "--out", cut),
                     NULL);
    command_succeeds(RUN("train", "--config", config, TINY, "-o", "GPT2_MAX_ITERS=10", "-o",
                         "LR_SCHEDULE=constant", "--resume", "--out", cut),
                     NULL);
    char *got = lines_of("cut");
    /* The cut run had a last step of its own, 5; what follows is the same. */
    assert_non_null(strstr(got, "\"step\":5"));
    assert_string_equal(strstr(got, "{\"step\":8"), strstr(want, "{\"step\":8"));
    free(got);
    free(want);
}

static void test_tokens_that_are_no_text_have_no_samples(void **state) {
    (void)state;
    command_fails(2,
                  RUN("train", "--config", config, TINY, "-o", "DATASET=recall", "--out",
                      scratch_path("recall")),
                  SAYS("SAMPLE_PROMPT"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_are_kept_and_come_again_after_a_resume),
        cmocka_unit_test(test_tokens_that_are_no_text_have_no_samples),
    };
    return cmocka_run_group_tests(tests, open_scratch, scratch_teardown);
}

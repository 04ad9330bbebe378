/* Samples while training: made when they are due, kept a line each, the same after a resume, shown in
 * the report; and refused where tokens are no text. */
#include "support/fault.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY                                                                                       \
    "-o", "N_LAYER=1", "-o", "N_HEAD=2", "-o", "N_EMBD=16", "-o", "VOCAB_SIZE=256", "-o",          \
        "CONTEXT=32", "-o", "BATCH_SIZE=2", "-o", "SAMPLE_PROMPT=The ", "-o", "SAMPLE_INTERVAL=4", \
        "-o", "SAMPLE_TOKENS=9", "-o", "CHECKPOINT_INTERVAL=1", "--threads", "1"

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

/* A record a line, and the file has the text as it is. */
TEST(test_samples_are_told_line_by_line) {
    command_result r = command_run(RUN("train", "--config", config, TINY, "-o", "STEPS=4", "-o",
                                       "SAMPLE_PROMPT=one\ntwo ", "--out", scratch_path("lines")));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "info  step 4: one\ninfo      two "));
    command_free(&r);
    char *kept = lines_of("lines");
    assert_non_null(strstr(kept, "\"prompt\":\"one\\ntwo \""));
    free(kept);
}

TEST(test_samples_are_kept_and_come_again_after_a_resume) {
    const char *whole = scratch_path("whole");
    const char *cut = scratch_path("cut");
    SUCCEEDS("train", "--config", config, TINY, "-o", "STEPS=10", "-o", "LR_SCHEDULE=constant",
             "--out", whole);
    char *want = lines_of("whole");
    int64_t steps[] = {4, 8, 10};
    const char *at = want;
    for (int i = 0; i < 3; i++) {
        json_t *row = json_loadb(at, strcspn(at, "\n"), 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(row, "step")), steps[i]);
        assert_string_equal(json_string_value(json_object_get(row, "prompt")), "The ");
        assert_true(json_string_length(json_object_get(row, "text")) >= 9);
        /* Keys and values of one layer 16 wide, as weft plan counts them. */
        assert_int_equal(json_integer_value(json_object_get(row, "cache_bytes_per_token")),
                         2 * 16 * 4);
        json_decref(row);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    SUCCEEDS("train", "--config", config, TINY, "-o", "STEPS=5", "-o", "LR_SCHEDULE=constant",
             "--out", cut);
    /* A model of bytes may write a zero; the line is a sample all the same. */
    static const char zero[] = "{\"step\":4,\"prompt\":\"The \",\"text\":\"a\\u0000b\"}\n";
    char *kept = lines_of("cut"), *second = strchr(kept, '\n') + 1;
    char *both = malloc(sizeof zero + strlen(second));
    sprintf(both, "%s%s", zero, second);
    file_write(scratch_path("cut/samples.jsonl"), both, strlen(both));
    free(both);
    free(kept);
    SUCCEEDS("train", "--config", config, TINY, "-o", "STEPS=10", "-o", "LR_SCHEDULE=constant",
             "--resume", "--out", cut);
    char *got = lines_of("cut");
    assert_int_equal(strncmp(got, zero, sizeof zero - 1), 0);
    /* The cut run had a last step of its own, 5; what follows is the same. */
    assert_non_null(strstr(got, "\"step\":5"));
    assert_string_equal(strstr(got, "{\"step\":8"), strstr(want, "{\"step\":8"));
    free(got);
    free(want);
}

/* The first checkpoint is of the last step: after a kill behind best/ there is no step left to do. */
TEST(test_a_kill_at_the_end_loses_no_sample) {
    static const struct {
        const char *calls, *path;
    } kills[] = {{"write", "samples.jsonl"},
                 {"open", "attention.json"},
                 {"mkdir", "last.new"},
                 {"open", ".saved"}};
    fault_need();
    for (size_t i = 0; i < sizeof kills / sizeof kills[0]; i++) {
        const char *run = scratch_path("killed-%zu", i);
        fault f = {.calls = kills[i].calls, .path = kills[i].path, .nth = 1};
        command_result r = fault_run(&f,
                                     RUN("train", "--config", config, TINY, "-o",
                                         "CHECKPOINT_INTERVAL=100", "-o", "STEPS=2", "--out", run),
                                     NULL);
        assert_int_equal(r.status, -1);
        command_free(&r);
        SUCCEEDS("train", "--resume", "--out", run);
        char *lines = file_read(scratch_path("killed-%zu/samples.jsonl", i), NULL);
        assert_non_null(strstr(lines, "{\"step\":2"));
        free(lines);
        free(file_read(scratch_path("killed-%zu/attention.json", i), NULL));
        free(file_read(scratch_path("killed-%zu/.saved", i), NULL));
    }
}

/* Each token spreads its attention over those up to itself; rounding to percent loses half of one for
 * each. */
static void expect_spread(const json_t *rows, size_t time) {
    assert_int_equal(json_array_size(rows), time);
    for (size_t i = 0; i < time; i++) {
        const json_t *row = json_array_get(rows, i);
        json_int_t sum = 0;
        assert_int_equal(json_array_size(row), i + 1);
        for (size_t j = 0; j <= i; j++)
            sum += json_integer_value(json_array_get(row, j));
        assert_in_range(sum, 100 - (json_int_t)(i + 1) / 2, 100 + (json_int_t)(i + 1) / 2);
    }
}

TEST(test_the_last_sample_shows_what_attention_looks_at) {
    SUCCEEDS("train", "--config", config, TINY, "-o", "STEPS=2", "-o", "ATTENTION=w2", "-o",
             "N_LAYER=3", "--out", scratch_path("looks"));
    char *text = file_read(scratch_path("looks/attention.json"), NULL);
    json_t *map = json_loads(text, 0, NULL), *layers = json_object_get(map, "layers"), *layer;
    size_t l, time = json_array_size(json_object_get(map, "tokens"));
    assert_int_equal(json_integer_value(json_object_get(map, "step")), 2);
    assert_int_equal(time, 4 + 9); /* bytes of "The ", and SAMPLE_TOKENS */
    assert_int_equal(json_array_size(layers), 2);
    json_array_foreach(layers, l, layer) {
        const json_t *heads = json_object_get(layer, "heads");
        assert_int_equal(json_integer_value(json_object_get(layer, "layer")), l ? 2 : 0);
        assert_int_equal(json_array_size(heads), 2);
        for (size_t h = 0; h < 2; h++) {
            const json_t *sigma = json_array_get(json_object_get(layer, "sigma"), h);
            expect_spread(json_array_get(heads, h), time);
            assert_int_equal(json_array_size(sigma), time);
            for (size_t i = 0; i < time; i++)
                assert_true(json_real_value(json_array_get(sigma, i)) > 0);
        }
    }
    json_decref(map);
    free(text);
}

TEST(test_tokens_that_are_no_text_have_no_samples) {
    FAILS(2, SAYS("SAMPLE_PROMPT"), "train", "--config", config, TINY, "-o", "DATASET=recall",
          "--out", scratch_path("recall"));
}

RUN_TESTS(open_scratch, scratch_teardown)

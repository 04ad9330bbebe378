/* Config files as people and machines may leave them, through the program and, damaged in thousands
 * of ways, through the reader. */
#include "base/random.h"
#include "config/config.h"
#include "model/kinds.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *write_text(const char *text) {
    const char *path = scratch_path("test.config");
    file_write(path, text, strlen(text));
    return path;
}

static void expect_parameters(const char *text, long long count) {
    json_t *object = command_json(RUN("plan", "--json", "--config", write_text(text)));
    assert_int_equal(json_integer_value(json_object_get(object, "parameters")), count);
    json_decref(object);
}

/* GPT-2's 124M with the vocabulary padded. */
enum { DEFAULTS = 124475904 };

TEST(test_odd_but_good_files_are_read) {
    expect_parameters("", DEFAULTS);
    expect_parameters("\n\n  \t\n# nothing\n#\n", DEFAULTS);
    expect_parameters("CONFIG_N_HEAD=6", DEFAULTS);
    expect_parameters("CONFIG_N_LAYER=3\r\nCONFIG_N_LAYER=12\r\n# CONFIG_CAUSAL is not set\r\n",
                      DEFAULTS);
    expect_parameters("CONFIG_N_LAYER=\"12\"\nCONFIG_DROPOUT=0\nCONFIG_MIN_LR=1e-5\n", DEFAULTS);
}

static void refuse(const char *text, const char *line, const char *word) {
    const char *path = write_text(text);
    FAILS(2, SAYS(format_text("%s:%s", path, line), word), "plan", "--config", path);
}

TEST(test_bad_lines_name_file_line_and_key) {
    refuse("CONFIG_N_LAYER=2\nCONFIG_N_LAYERS=3\n", "2:", "did you mean CONFIG_N_LAYER?");
    refuse("\n\nCONFIG_ATTENTION=\"flash\"\n", "3:", "dot w2 mla");
    refuse("CONFIG_N_LAYER=0\n", "1:", "1 to 1024");
    refuse("CONFIG_N_LAYER=\n", "1:", "whole number");
    refuse("CONFIG_N_LAYER\n", "1:", "CONFIG_KEY=value");
    refuse("N_LAYER=3\n", "1:", "CONFIG_KEY=value");
    refuse("{\"n_layer\": 3}\n", "1:", "CONFIG_KEY=value");
    refuse("CONFIG_CAUSAL=m\n", "1:", "y or n");
    refuse("CONFIG_LEARNING_RATE=inf\n", "1:", "number");
    refuse("# CONFIG_N_LAYER is not set\n", "1:", "unset");
    refuse("\xef\xbb\xbf"
           "CONFIG_N_LAYER=3\n",
           "1:", "CONFIG_KEY=value");
}

TEST(test_impossible_mixes_name_the_file) {
    FAILS(2, SAYS("test.config", "LATENT_RECIP", "CONFIG_ATTENTION=\"mla\""), "plan", "--config",
          write_text("CONFIG_RA_MLA_MLP_LATENT_RECIP=y\n"));
    FAILS(2, SAYS("test.config", "N_EMBD=768", "N_HEAD=7"), "plan", "--config",
          write_text("CONFIG_N_HEAD=7\n"));
}

TEST(test_what_is_no_config_is_refused) {
    FAILS(2, SAYS("folder"), "plan", "--config", scratch_path("."));
    FAILS(2, SAYS("none", "No such file"), "plan", "--config", scratch_path("none"));
    FAILS(2, SAYS("No such"), "init", "--out", "x", "--config", scratch_path("none"));
    FAILS(2, SAYS("No such file"), "plan", "--config", scratch_path("none/none"));
    FAILS(2, SAYS("/dev/zero", "a device"), "plan", "--config", "/dev/zero");
    const char *path = scratch_path("binary");
    file_write(path, "CONFIG_N_LAYER=3\0=4\n", 20);
    FAILS(2, SAYS("binary:1:", "not text"), "plan", "--config", path);
}

TEST(test_a_line_of_a_megabyte_is_refused) {
    enum { MEGABYTE = 1 << 20 };
    WEFT_AUTO_FREE char *text = malloc(MEGABYTE);
    assert_non_null(text);
    const char *path = scratch_path("long");
    memset(text, 'A', MEGABYTE);
    int written = snprintf(text, MEGABYTE, "CONFIG_N_LAYER=3\nCONFIG_DATASET=\"");
    text[written] = 'A'; /* over the ending zero */
    file_write(path, text, MEGABYTE);
    FAILS(2, SAYS("long:2:", "4352 characters"), "plan", "--config", path);
    text[4200] = '\n';
    file_write(path, text, 4201);
    FAILS(2, SAYS("long:2:", "DATASET", "4095"), "plan", "--config", path);
}

TEST(test_newlines_in_values_stay_on_one_line) {
    FAILS(2, SAYS("N_LAYER", "whole number"), "plan", "-o", "N_LAYER=3\n4");
    FAILS(2, SAYS("not an option"), "plan", "-o", "X\n\x1b[31m=4");
}

static uint32_t word(uint64_t round, uint64_t i) {
    return weft_random_word(11, 0, 0, 0, 64 * round + i);
}

/* A config with some bytes changed, and pieces of it cut and doubled. */
static size_t damage(char *text, size_t count, uint64_t round) {
    static const char sharp[] = "=\"#\n\r CONFIG_0123456789eE+-.\\%sn\x01\xff";
    uint32_t changes = 1 + word(round, 0) % 6;
    for (uint32_t i = 0; i < changes && count; i++) {
        size_t at = word(round, 8 * i + 1) % count, n = word(round, 8 * i + 2) % 20;
        if (at + n > count) n = count - at;
        switch (word(round, 8 * i + 3) % 4) {
        case 0:
            text[at] = (char)word(round, 8 * i + 4);
            break;
        case 1:
            text[at] = sharp[word(round, 8 * i + 4) % (sizeof sharp - 1)];
            break;
        case 2:
            memmove(text + at, text + at + n, count - at - n);
            count -= n;
            break;
        default:
            memmove(text + at + n, text + at, count - at);
            count += n;
            break;
        }
    }
    return count;
}

TEST(test_damaged_files_never_crash) {
    size_t count;
    char *text = file_read("tests/model/configs/mix-mla-wsffn-all-zloss-ignore.config", &count);
    WEFT_AUTO_FREE char *bad = malloc(count + 256);
    assert_non_null(bad);
    const char *path = scratch_path("damaged");
    int read = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        memcpy(bad, text, count);
        file_write(path, bad, damage(bad, count, round));
        weft_config c;
        weft_config_defaults(&c);
        weft_status status = weft_config_read(&c, path);
        if (status == WEFT_OK) status = weft_model_check(&c, path);
        read += status == WEFT_OK;
        if (status == WEFT_OK) continue;
        assert_int_equal(status, WEFT_EINPUT);
        assert_non_null(strstr(weft_error_message(), path));
        assert_null(strchr(weft_error_message(), '\n'));
    }
    /* Damage to comments and to digits is not always seen, or the test would not reach deep. */
    assert_true(read > 100 && read < 4900);
    free(text);
}

RUN_TESTS(scratch_setup, scratch_teardown)

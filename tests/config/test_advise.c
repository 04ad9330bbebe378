/* Keys that change nothing under the kinds chosen are named once, with what they wait for. */
#include "config/config.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL "CONFIG_N_LAYER=1\nCONFIG_N_EMBD=16\nCONFIG_N_HEAD=2\nCONFIG_VOCAB_SIZE=256\n"

/* What `weft study --list` says on standard error of a config; the caller frees it. */
static char *list_says(const char *text) {
    const char *path = scratch_path("config");
    file_write(path, text, strlen(text));
    command_result r = command_run(RUN("study", "--config", path, "--list"));
    assert_int_equal(r.status, 0);
    char *err = strdup(r.err);
    command_free(&r);
    return err;
}

static void expect_silence(const char *text) {
    char *said = list_says(text);
    if (*said) fail_msg("%s", said);
    free(said);
}

/* The values are the defaults, and they were meant. */
TEST(test_the_ra_mla_keys_without_the_attention_are_named) {
    static const char keys[] = SMALL "CONFIG_RA_MLA_LATENT_DIM=128\nCONFIG_RA_MLA_RA_WINDOW=64\n";
    char *said = list_says(keys);
    if (!strstr(said, "CONFIG_RA_MLA_LATENT_DIM, CONFIG_RA_MLA_RA_WINDOW change nothing here") ||
        !strstr(said, "ATTENTION = \"mla\""))
        fail_msg("%s", said);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    free(said);
    expect_silence(SMALL "CONFIG_RA_MLA_LATENT_DIM=8\nCONFIG_ATTENTION=\"mla\"\n");
}

/* What one step of a study uses is no mistake of the others. */
TEST(test_a_key_that_matters_in_one_step_is_not_named) {
    expect_silence(SMALL "CONFIG_RA_MLA_LATENT_DIM=8\n"
                         "CONFIG_STUDY_VARIANTS=\"dot; mla: ATTENTION=mla\"\n");
    char *said = list_says(SMALL "CONFIG_RA_MLA_LATENT_DIM=8\n"
                                 "CONFIG_STUDY_VARIANTS=\"dot; w2: ATTENTION=w2\"\n");
    assert_non_null(strstr(said, "CONFIG_RA_MLA_LATENT_DIM changes nothing here"));
    free(said);
}

/* In any step of a study, and once. */
TEST(test_a_warmup_that_never_ends_is_told) {
    static const char spam[] = SMALL "CONFIG_STEPS=30\nCONFIG_SPAM_WARMUP_STEPS=10\n"
                                     "CONFIG_STUDY_VARIANTS=\"adamw: OPTIMIZER=adamw; spam: "
                                     "OPTIMIZER=adamwspam; again: OPTIMIZER=adamwspam\"\n";
    char text[1000];
    snprintf(text, sizeof text, "%sCONFIG_SPAM_INTERVAL=10\n", spam);
    char *said = list_says(text);
    if (!strstr(said, "CONFIG_SPAM_INTERVAL=10 is not above CONFIG_SPAM_WARMUP_STEPS=10"))
        fail_msg("%s", said);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    free(said);
    snprintf(text, sizeof text, "%sCONFIG_SPAM_INTERVAL=11\n", spam);
    expect_silence(text);
}

/* A menu writes every key: only those that are not at their defaults were meant. */
TEST(test_a_whole_config_is_judged_by_what_it_changes) {
    weft_config c;
    int n;
    const weft_option *options = weft_options(&n);
    char *text = NULL;
    size_t room;
    FILE *out = open_memstream(&text, &room);
    weft_config_defaults(&c);
    for (int i = 0; i < n; i++) {
        char value[WEFT_TEXT_MAX];
        weft_config_format(&c, &options[i], value, sizeof value);
        fprintf(out, "CONFIG_%s=\"%s\"\n", options[i].key, value);
    }
    fprintf(out, "%s", SMALL);
    fflush(out);
    expect_silence(text);
    fprintf(out, "CONFIG_WSFFN_TAU=\"0.5\"\n");
    fclose(out);
    char *said = list_says(text);
    assert_non_null(strstr(said, "CONFIG_WSFFN_TAU changes nothing here"));
    free(said);
    free(text);
}

TEST(test_when_an_option_matters_is_read_from_its_line) {
    weft_config c;
    weft_config_defaults(&c);
    const weft_option *tau = weft_option_find("W2_TAU"), *gate = WEFT_OPTION(gate_dim);
    assert_false(weft_option_matters(&c, tau)); /* ATTENTION = "w2" || RA_MLA_SCORE = "w2" */
    assert_false(weft_option_matters(&c, gate));
    assert_true(weft_option_matters(&c, WEFT_OPTION(n_layer)));
    c.ra_mla_score = WEFT_SCORE_W2;
    c.attn_gate = true;
    assert_true(weft_option_matters(&c, tau));
    assert_true(weft_option_matters(&c, gate));
    c.ra_mla_score = WEFT_SCORE_DOT;
    c.attention = WEFT_ATTENTION_W2;
    assert_true(weft_option_matters(&c, tau));
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* Configs: what is read, what is refused and with which words. */
#include "config/config.h"
#include "model/kinds.h"
#include "support/command.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static weft_config defaults(void) {
    weft_config c;
    weft_config_defaults(&c);
    return c;
}

/* Writes text to a file and reads it as a config. */
static weft_status read_text(weft_config *c, const char *text, char *path, size_t room) {
    snprintf(path, room, "%s", scratch_path("config"));
    file_write(path, text, strlen(text));
    return weft_config_read(c, path);
}

static void expect_words(const char *const *words) {
    for (; *words; words++)
        if (!strstr(weft_error_message(), *words))
            fail_msg("'%s' does not say '%s'", weft_error_message(), *words);
    assert_null(strchr(weft_error_message(), '\n'));
}

#define expect_error(call, ...)                                                                    \
    do {                                                                                           \
        assert_int_equal((call), WEFT_EINPUT);                                                     \
        expect_words((const char *[]){__VA_ARGS__, NULL});                                         \
    } while (0)

TEST(test_every_default_is_in_its_range) {
    weft_config c = defaults();
    int count;
    const weft_option *options = weft_options(&count);
    assert_true(count > 80);
    for (int i = 0; i < count; i++) {
        char text[WEFT_TEXT_MAX];
        weft_config_format(&c, &options[i], text, sizeof text);
        if (weft_config_set(&c, options[i].key, text, "test") != WEFT_OK)
            fail_msg("%s", weft_error_message());
        assert_true(strlen(options[i].help) > 2);
    }
    assert_int_equal(weft_model_check(&c, "defaults"), WEFT_OK);
}

TEST(test_sizes_follow_from_others) {
    weft_config c = defaults();
    c.n_embd = 96;
    c.n_head = 4;
    c.batch_size = 12;
    c.gradient_accumulation = 2;
    assert_int_equal(weft_config_head_dim(&c), 24);
    assert_int_equal(weft_config_w2_width(&c), 48);
    assert_int_equal(weft_config_ffn_dim(&c), 384);
    assert_int_equal(weft_config_kv_heads(&c), 4);
    assert_int_equal(weft_config_micro_batch(&c), 12);
    assert_int_equal(weft_config_micro_batches(&c), 2);
    assert_true(weft_config_mup(&c) == 1);
    c.head_dim = 20;
    c.w2_sigma_dim = 5;
    c.n_ffn = 100;
    c.kv_heads = 2;
    c.micro_batch = 3;
    c.mup = true;
    c.mup_base_width = 64;
    c.window = 7;
    c.window_every = 3;
    assert_int_equal(weft_config_head_dim(&c), 20);
    assert_int_equal(weft_config_w2_width(&c), 25);
    assert_int_equal(weft_config_ffn_dim(&c), 100);
    assert_int_equal(weft_config_kv_heads(&c), 2);
    assert_int_equal(weft_config_micro_batch(&c), 3);
    assert_int_equal(weft_config_micro_batches(&c), 8);
    assert_true(weft_config_mup(&c) == 1.5);
    for (int layer = 0; layer < 6; layer++) /* the third and the sixth see all */
        assert_int_equal(weft_config_window(&c, layer), layer == 2 || layer == 5 ? 0 : 7);
}

/* In the room that is given, and nowhere else. */
TEST(test_words_are_listed) {
    static const char *const two[] = {"dot", "w2", NULL}, *const none[] = {NULL};
    char text[16] = "????????";
    const weft_option words = {.words = two}, empty = {.words = none};
    assert_string_equal(weft_option_words(&words, text + 1, sizeof text - 1), "dot w2");
    assert_string_equal(weft_option_words(&words, text + 1, 6), "dot w");
    assert_int_equal(text[7], '\0');
    assert_int_equal(text[8], '\0');
    assert_string_equal(weft_option_words(&empty, text + 1, sizeof text - 1), "");
    assert_int_equal(text[0], '?');
}

static bool is_listed(const char *const *list, const char *key) {
    for (; *list; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

/* Written out: one of these less changes what --resume and studies promise. */
TEST(test_what_a_resumed_run_and_a_step_may_change) {
    static const char *const free_keys[] = {
        "STEPS",           "EVAL_INTERVAL",         "EVAL_SAMPLES",    "LOG_INTERVAL",
        "SAVE_CHECKPOINT", "CHECKPOINT_INTERVAL",   "CHECKPOINT_KEEP", "DEVICE",
        "STUDY_SEEDS",     "RA_MLA_ABLATION_STEPS", "STUDY_EQUAL",     "STUDY_LEARNING_RATES",
        "STUDY_RATE_SEED", "STUDY_VARIANTS",        "STUDY_SWEEP",     "STUDY_SWEEP_POINTS",
        "EVAL_POSITIONS",  "STUDY_SCORE",           "STUDY_TAIL",      "STUDY_QUESTION",
        "RECOMPUTE",       "EVAL_INSIDE",           "STUDY_RATE_AS",   "STUDY_SPREAD",
        "STUDY_YARDSTICK", "STUDY_COMPARE",         "STUDY_EFFECT",    NULL};
    static const char *const study_keys[] = {"SEED",
                                             "STUDY_FROM",
                                             "RA_MLA_ABLATION_STEPS",
                                             "STUDY_VARIANTS",
                                             "STUDY_SWEEP",
                                             "STUDY_SWEEP_POINTS",
                                             "STUDY_SEEDS",
                                             "STUDY_LEARNING_RATES",
                                             "STUDY_RATE_SEED",
                                             "STUDY_RATE_AS",
                                             "STUDY_SPREAD",
                                             "STUDY_YARDSTICK",
                                             "STUDY_EQUAL",
                                             "STUDY_WEIGHTS",
                                             "STUDY_SCORE",
                                             "STUDY_TAIL",
                                             "STUDY_QUESTION",
                                             "STUDY_COMPARE",
                                             "STUDY_EFFECT",
                                             NULL};
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++) {
        const weft_option *o = &options[i];
        if (is_listed(free_keys, o->key) && !o->free)
            fail_msg("CONFIG_%s: a resumed run could change it", o->key);
        if (o->owner == WEFT_OWNER_MODEL && o->free)
            fail_msg("CONFIG_%s: another model cannot go on from this one's weights", o->key);
        if (is_listed(study_keys, o->key) != (o->owner == WEFT_OWNER_STUDY))
            fail_msg("CONFIG_%s: may a study's step set it?", o->key);
        assert_ptr_equal(weft_option_at(options[i].offset), &options[i]);
    }
}

TEST(test_kconfig_text_is_read) {
    weft_config c = defaults();
    char path[64];
    const char *text = "# a comment\n"
                       "\n"
                       "CONFIG_ATTENTION=\"mla\"\n"
                       "CONFIG_N_LAYER=3\n"
                       "CONFIG_RA_MLA_RA_ALPHA=0.25\n"
                       "CONFIG_RA_MLA_MLP_SPARSE_RMS_THRESHOLD=\"0.75\"\n"
                       "  CONFIG_RA_MLA_MLP_ATTN_GATE=y  \n"
                       "# CONFIG_BIAS is not set\n"
                       "CONFIG_DATASET=\"some folder\"\r\n";
    assert_int_equal(read_text(&c, text, path, sizeof path), WEFT_OK);
    assert_int_equal(c.attention, WEFT_ATTENTION_MLA);
    assert_int_equal(c.n_layer, 3);
    assert_true(c.ra_mla_ra_alpha == 0.25);
    assert_true(c.sparse_rms_threshold == 0.75);
    assert_true(c.attn_gate);
    assert_false(c.bias);
    assert_string_equal(c.dataset, "some folder");
}

/* As kconfiglib writes them: a backslash before a quote and before a backslash. Without quotes, and
 * from the command line, a backslash is itself. */
TEST(test_escapes_within_quotes_are_undone) {
    weft_config c = defaults();
    char path[64];
    assert_int_equal(read_text(&c, "CONFIG_DATASET=\"a \\\"b\\\" \\\\ c\"\n", path, sizeof path),
                     WEFT_OK);
    assert_string_equal(c.dataset, "a \"b\" \\ c");
    assert_int_equal(read_text(&c, "CONFIG_DATASET=a\\b\n", path, sizeof path), WEFT_OK);
    assert_string_equal(c.dataset, "a\\b");
    assert_int_equal(read_text(&c, "CONFIG_DATASET=\"\\\\\"\n", path, sizeof path), WEFT_OK);
    assert_string_equal(c.dataset, "\\");
    assert_int_equal(weft_config_override(&c, "DATASET=\"a\\b\"", "-o"), WEFT_OK);
    assert_string_equal(c.dataset, "a\\b");
}

TEST(test_a_text_may_have_4095_characters) {
    weft_config c = defaults();
    char path[64], *line = malloc(WEFT_TEXT_MAX + 64);
    assert_non_null(line);
    int head = snprintf(line, 64, "CONFIG_RA_MLA_ABLATION_STEPS=\"");
    memset(line + head, 'x', 4095);
    memcpy(line + head + 4095, "\"\n", 3);
    assert_int_equal(read_text(&c, line, path, sizeof path), WEFT_OK);
    assert_int_equal(strlen(c.ra_mla_ablation_steps), 4095);
    memcpy(line + head + 4095, "x\"\n", 4);
    assert_int_equal(read_text(&c, line, path, sizeof path), WEFT_EINPUT);
    free(line);
}

TEST(test_an_unknown_key_names_file_line_and_the_nearest) {
    weft_config c = defaults();
    char path[64];
    expect_error(read_text(&c, "CONFIG_N_LAYER=2\nCONFIG_N_LAYERS=3\n", path, sizeof path), path,
                 ":2:", "CONFIG_N_LAYERS", "did you mean CONFIG_N_LAYER?");
    expect_error(read_text(&c, "# CONFIG_BIASES is not set\n", path, sizeof path),
                 ":1:", "did you mean CONFIG_BIAS?");
}

TEST(test_bad_values_are_refused) {
    weft_config c = defaults();
    char path[64];
    expect_error(weft_config_override(&c, "N_LAYER=0", "-o"), "-o", "CONFIG_N_LAYER=0", "1 to");
    expect_error(weft_config_override(&c, "N_LAYER=two", "-o"), "whole number");
    expect_error(weft_config_override(&c, "N_LAYER=99999999999999999999", "-o"), "outside");
    expect_error(weft_config_override(&c, "DROPOUT=1.5", "-o"), "outside 0 to 0.99");
    expect_error(weft_config_override(&c, "DROPOUT=nan", "-o"), "number");
    expect_error(weft_config_override(&c, "ATTENTION=softmax", "-o"), "softmax", "dot w2 mla");
    expect_error(weft_config_override(&c, "CAUSAL=maybe", "-o"), "y or n");
    expect_error(weft_config_override(&c, "CAUSAL", "-o"), "KEY=VALUE");
    expect_error(read_text(&c, "N_LAYER 3\n", path, sizeof path), ":1:", "CONFIG_KEY=value");
    expect_error(read_text(&c, "# CONFIG_N_LAYER is not set\n", path, sizeof path), "unset");
    assert_int_equal(weft_config_read(&c, "no/such/file"), WEFT_EIO);
    expect_words((const char *[]){"no/such/file", NULL});
}

/* Applies overrides and returns the check's verdict. */
static weft_status check_with(const char *const *overrides) {
    weft_config c = defaults();
    for (; *overrides; overrides++)
        assert_int_equal(weft_config_override(&c, *overrides, "test"), WEFT_OK);
    return weft_model_check(&c, "test.config");
}

#define check_mix(...) check_with((const char *[]){__VA_ARGS__, NULL})

TEST(test_impossible_mixes_are_refused) {
    expect_error(check_mix("RA_MLA_MLP_LATENT_RECIP=y"), "test.config", "LATENT_RECIP",
                 "CONFIG_ATTENTION=\"mla\"");
    expect_error(check_mix("FFN=wsffn", "N_FFN=100", "WSFFN_N_HEAD=7"), "100", "7");
    expect_error(check_mix("RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_GATE_POOL=sequence"), "GATE_POOL",
                 "CONFIG_ALLOW_FUTURE_LEAK=y");
    expect_error(check_mix("N_EMBD=10", "N_HEAD=3"), "N_EMBD=10", "N_HEAD=3");
    expect_error(check_mix("OPTIMIZER=muon", "MUP=y", "MUP_BASE_WIDTH=64"), "MUP=y", "muon",
                 "MUP=n");
    expect_error(check_mix("ATTENTION=mla", "KV_HEADS=4"), "KV_HEADS", "dot");
    expect_error(check_mix("KV_HEADS=5"), "N_HEAD=12", "KV_HEADS=5");
    expect_error(check_mix("ATTENTION=gta", "N_EMBD=72"), "gta", "6 wide", "multiple of 4");
    expect_error(check_mix("ATTENTION=gta", "QK_NORM=y"), "QK_NORM=y", "gta");
    expect_error(check_mix("ATTENTION=gta", "NOPE_EVERY=2"), "NOPE_EVERY", "gta");
    expect_error(check_mix("ATTENTION=gta", "ROPE_DIM=2"), "ROPE_DIM", "gta");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=4", "NOPE_EVERY=2"), "NOPE_EVERY=2");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=4", "ROPE_DIM=2"), "ROPE_DIM=2",
                 "RA_MLA_ROPE_DIM=4");
    expect_error(check_mix("ATTENTION=mla", "KV_SHARE=2", "RA_MLA_MLP_LATENT_RECIP=y"),
                 "KV_SHARE=2", "LATENT_RECIP");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_LATENT_HEADS=5"), "N_HEAD=12",
                 "RA_MLA_LATENT_HEADS=5");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_LATENT_HEADS=2", "RA_MLA_MLP_LATENT_RECIP=y"),
                 "LATENT_RECIP", "RA_MLA_LATENT_HEADS=1");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=3"), "RA_MLA_ROPE_DIM=3", "even");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=4", "RA_MLA_USE_ROPE=y"),
                 "RA_MLA_ROPE_DIM=4", "RA_MLA_USE_ROPE=y");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=4", "RA_MLA_SCORE=w2"),
                 "RA_MLA_ROPE_DIM=4", "w2");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_LATENT_NORM=y"), "LATENT_NORM", "JOINT_KV=y");
    expect_error(check_mix("POSITION=rope", "N_EMBD=9", "N_HEAD=3"), "rope", "3 wide");
    expect_error(check_mix("POSITION=relative", "CAUSAL=n"), "relative", "CAUSAL");
    expect_error(check_mix("POSITION=alibi", "CAUSAL=n"), "alibi", "CAUSAL");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_LATENT_DIM=7", "RA_MLA_USE_ROPE=y"), "7", "2");
    expect_error(
        check_mix("ATTENTION=mla", "RA_MLA_LATENT_DIM=6", "RA_MLA_USE_ROPE=y", "RA_MLA_SCORE=w2"),
        "6", "4");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_SCORE=w2", "RA_MLA_RA_ALPHA=0.5"), "RA_ALPHA");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_MLP_LATENT_RECIP=y",
                           "RA_MLA_MLP_TYING_MODE=per_head_scalar"),
                 "per_head_scalar", "128", "12");
    expect_error(check_mix("BATCH_SIZE=8", "MICRO_BATCH=3"), "BATCH_SIZE=8", "MICRO_BATCH=3");
    expect_error(check_mix("WINDOW=4", "CAUSAL=n"), "WINDOW", "CAUSAL=y");
    expect_error(check_mix("DOCUMENT_MASK=y"), "DOCUMENT_TOKEN", "0 to 50303", "-1");
    expect_error(check_mix("DOCUMENT_MASK=y", "DOCUMENT_TOKEN=50304"), "DOCUMENT_TOKEN", "50304");
    expect_error(check_mix("DOCUMENT_MASK=y", "DOCUMENT_TOKEN=0", "RA_MLA_MLP_ATTN_GATE=y",
                           "RA_MLA_MLP_GATE_POOL=sequence", "ALLOW_FUTURE_LEAK=y"),
                 "GATE_POOL=\"sequence\"", "\"cummean\"");
    expect_error(check_mix("ATTENTION=w2", "SOFTCAP_ATTENTION=30"), "SOFTCAP_ATTENTION=30", "0");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_SCORE=w2", "SOFTCAP_ATTENTION=30"), "distance");
    expect_error(check_mix("ATTENTION=w2", "W2_SIGMA_DIM=65"), "W2_SIGMA_DIM=65", "64", "or 0");
    expect_error(check_mix("ATTENTION=w2", "W2_SIGMA_DIM=8", "W2_KERNEL=overlap"), "W2_SIGMA_DIM=8",
                 "\"w2\"");
    assert_int_equal(check_mix("ATTENTION=w2", "W2_SIGMA_DIM=64", "W2_KERNEL=overlap"), WEFT_OK);
    expect_error(check_mix("FFN=wsffn", "WSFFN_POSITIVE=half", "CONTEXT=9"), "CONTEXT=9", "even");
    expect_error(check_mix("FFN=wsffn", "WSFFN_Z_LOGITS=0.5", "WSFFN_AUX_LOSS=n"),
                 "WSFFN_Z_LOGITS=0.5", "WSFFN_AUX_LOSS=n");
    expect_error(check_mix("RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_CROSS_TOKEN=y",
                           "RA_MLA_MLP_ROUTE_AFTER_GATE=y", "RA_MLA_MLP_ALPHA_LEARNED=y"),
                 "ROUTE_AFTER_GATE=y", "ALPHA_LEARNED=n");
    expect_error(check_mix("RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_CROSS_TOKEN=y",
                           "RA_MLA_MLP_ROUTE_AFTER_GATE=y", "RA_MLA_MLP_GATE_POOL=sequence",
                           "CAUSAL=n"),
                 "ROUTE_AFTER_GATE=y", "\"cummean\"");
    expect_error(check_mix("ATTENTION=gta", "ROPE_LOCAL_THETA=9"), "ROPE_LOCAL_THETA", "gta");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_ROPE_DIM=4", "ROPE_SCALING=longrope"),
                 "longrope", "mla");
    expect_error(check_mix("POSITION=rope", "ROPE_LOCAL_THETA=9", "WINDOW=4", "KV_SHARE=2"),
                 "ROPE_LOCAL_THETA=9", "KV_SHARE=2");
    expect_error(check_mix("POSITION=rope", "ROPE_SCALING=longrope"), "ROPE_SHORT_FACTORS", "32");
    expect_error(check_mix("POSITION=rope", "ROPE_SCALING=longrope", "ROPE_CONTEXT=8", "ROPE_DIM=4",
                           "ROPE_LONG_FACTORS=1,x"),
                 "ROPE_LONG_FACTORS", "no number");
    expect_error(check_mix("POSITION=rope", "ROPE_SCALING=longrope", "ROPE_CONTEXT=8", "ROPE_DIM=4",
                           "ROPE_LONG_FACTORS=1,-2"),
                 "ROPE_LONG_FACTORS", "no number above 0");
    assert_int_equal(check_mix("POSITION=rope", "ROPE_SCALING=longrope", "ROPE_CONTEXT=8",
                               "ROPE_DIM=4", "ROPE_LONG_FACTORS=1,2.5"),
                     WEFT_OK);
    expect_error(check_mix("POSITION=rope", "ROPE_DIM=7"), "ROPE_DIM=7", "even");
    expect_error(check_mix("POSITION=rope", "ROPE_DIM=66"), "ROPE_DIM=66", "64", "take 0");
    expect_error(check_mix("ATTENTION=mla", "RA_MLA_USE_ROPE=y", "RA_MLA_SCORE=w2", "ROPE_DIM=66"),
                 "ROPE_DIM=66", "64");
    assert_int_equal(check_mix("ATTENTION=w2", "SOFTCAP_LOGITS=30", "WINDOW=1", "ROPE_DIM=64",
                               "POSITION=rope", "DOCUMENT_MASK=y", "DOCUMENT_TOKEN=50303"),
                     WEFT_OK);
    assert_int_equal(
        check_mix("RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_GATE_POOL=sequence", "ALLOW_FUTURE_LEAK=y"),
        WEFT_OK);
    assert_int_equal(
        check_mix("RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_GATE_POOL=sequence", "CAUSAL=n"), WEFT_OK);
}

TEST(test_sizes_may_be_as_small_as_1) {
    assert_int_equal(check_mix("N_LAYER=1", "N_HEAD=1", "N_EMBD=1", "N_FFN=1", "VOCAB_SIZE=1",
                               "CONTEXT=1", "BATCH_SIZE=1"),
                     WEFT_OK);
}

TEST(test_steps_set_the_mechanisms_alone) {
    static const bool want[6][3] = {{false, false, false}, {true, false, false},
                                    {true, true, false},   {true, true, true},
                                    {true, true, false},   {true, true, true}};
    for (int step = 0; step < 6; step++) {
        weft_config c = defaults(), plain = defaults();
        assert_int_equal(weft_config_step(&c, step), WEFT_OK);
        assert_int_equal(c.attn_gate, want[step][0]);
        assert_int_equal(c.cross_token, want[step][1]);
        assert_int_equal(c.latent_recip, want[step][2]);
        c.attn_gate = c.cross_token = c.latent_recip = false;
        assert_memory_equal(&c, &plain, sizeof c);
    }
    weft_config c = defaults();
    expect_error(weft_config_step(&c, 6), "0 to 5");
}

static bool is_of_the_model(const weft_option *o) {
    return o->owner == WEFT_OWNER_MODEL;
}

TEST(test_a_saved_config_is_read_back) {
    weft_config c = defaults(), back = defaults();
    char path[256], first[WEFT_TEXT_MAX], second[WEFT_TEXT_MAX];
    assert_int_equal(read_text(&c,
                               "CONFIG_N_LAYER=3\nCONFIG_ATTENTION=\"mla\"\nCONFIG_BIAS=n\n"
                               "CONFIG_STUDY_QUESTION=\"\\\\ and \\\"\"\n",
                               path, sizeof path),
                     WEFT_OK);
    assert_int_equal(weft_config_save(&c, path), WEFT_OK);
    assert_int_equal(weft_config_read(&back, path), WEFT_OK);
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++) {
        weft_config_format(&c, &options[i], first, sizeof first);
        weft_config_format(&back, &options[i], second, sizeof second);
        assert_string_equal(first, second);
    }
    /* Of what is not the default, the model's. */
    assert_int_equal(weft_config_save_changes(&c, "# head\n", is_of_the_model, path), WEFT_OK);
    WEFT_AUTO_FREE char *text = file_read(path, NULL);
    assert_string_equal(text,
                        "# head\nCONFIG_ATTENTION=\"mla\"\nCONFIG_N_LAYER=3\nCONFIG_BIAS=n\n");
}

TEST(test_json_gives_the_config_back) {
    weft_config c = defaults(), back = defaults();
    const char *changes[] = {"ATTENTION=w2", "W2_TAU=0.1",           "N_LAYER=5",
                             "BIAS=n",       "LEARNING_RATE=0.0003", "DATASET=a \"quoted\" one"};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        assert_int_equal(weft_config_override(&c, changes[i], "test"), WEFT_OK);
    json_t *object = weft_config_to_json(&c);
    assert_non_null(object);
    assert_non_null(json_object_get(object, "n_layer"));
    assert_string_equal(json_string_value(json_object_get(object, "attention")), "w2");
    assert_int_equal(weft_config_from_json(&back, object, "config.json"), WEFT_OK);
    assert_memory_equal(&c, &back, offsetof(weft_config, given)); /* every value */
    json_object_set_new(object, "n_lyaer", json_integer(3));
    expect_error(weft_config_from_json(&back, object, "config.json"), "config.json", "N_LAYER");
    json_decref(object);
}

/* Names that configs, checkpoints and databases had before: read everywhere, written nowhere. */
TEST(test_old_names_are_read) {
    weft_config c = defaults(), back = defaults();
    char path[64];
    const char *text = "CONFIG_GPT2_MAX_ITERS=7\n"
                       "CONFIG_GPT2_BLOCK_SIZE=48\n"
                       "CONFIG_GPT2_DROPOUT=0.25\n"
                       "# CONFIG_GPT2_BIAS is not set\n"
                       "# CONFIG_GPT2_WEIGHT_TYING is not set\n"
                       "CONFIG_GPT2_WARMUP_STEPS=3\n"
                       "CONFIG_GPT2_MIN_LR=1e-5\n"
                       "# CONFIG_GPT2_DECAY_LR is not set\n"
                       "CONFIG_GPT2_EVAL_INTERVAL=11\n"
                       "CONFIG_GPT2_EVAL_SAMPLES=12\n"
                       "CONFIG_GPT2_LOG_INTERVAL=13\n"
                       "CONFIG_GPT2_GRADIENT_ACCUMULATION=2\n"
                       "CONFIG_STUDY_STEPS=\"a; b: N_LAYER=3\"\n";
    assert_int_equal(read_text(&c, text, path, sizeof path), WEFT_OK);
    assert_int_equal(c.steps, 7);
    assert_int_equal(c.context, 48);
    assert_true(c.dropout == 0.25 && c.min_lr == 1e-5);
    assert_false(c.bias || c.weight_tying || c.decay_lr);
    assert_int_equal(c.warmup_steps, 3);
    assert_int_equal(c.eval_interval, 11);
    assert_int_equal(c.eval_samples, 12);
    assert_int_equal(c.log_interval, 13);
    assert_int_equal(c.gradient_accumulation, 2);
    assert_string_equal(c.study_variants, "a; b: N_LAYER=3");
    assert_int_equal(weft_config_override(&c, "GPT2_BLOCK_SIZE=64", "-o"), WEFT_OK);
    assert_int_equal(c.context, 64);

    json_t *object = weft_config_kept("{\"gpt2_block_size\": 32, \"n_layer\": 2, \"other\": 1}");
    assert_int_equal(json_integer_value(json_object_get(object, "context")), 32);
    assert_int_equal(json_integer_value(json_object_get(object, "n_layer")), 2);
    assert_int_equal(json_integer_value(json_object_get(object, "other")), 1);
    assert_int_equal(json_object_size(object), 3);
    json_object_del(object, "other");
    assert_int_equal(weft_config_from_json(&back, object, "config.json"), WEFT_OK);
    assert_int_equal(back.context, 32);
    json_decref(object);
    object = weft_config_to_json(&c);
    assert_null(json_object_get(object, "gpt2_block_size"));
    json_decref(object);
}

/* Each write-up's model, as the write-ups describe it, and today's usual one. */
TEST(test_presets_are_the_models_they_name) {
    weft_config c = defaults();
    assert_int_equal(weft_config_preset(&c, WEFT_PRESET_W2), WEFT_OK);
    assert_int_equal(c.attention, WEFT_ATTENTION_W2);
    assert_int_equal(c.ffn, WEFT_FFN_SWIGLU);
    assert_int_equal(c.position, WEFT_POSITION_ROPE);
    assert_int_equal(c.norm, WEFT_NORM_RMSNORM);
    assert_false(c.bias);
    c = defaults();
    assert_int_equal(weft_config_preset(&c, WEFT_PRESET_WSFFN), WEFT_OK);
    assert_int_equal(c.ffn, WEFT_FFN_WSFFN);
    assert_false(c.weight_tying);
    c = defaults();
    assert_int_equal(weft_config_preset(&c, WEFT_PRESET_RA_MLA), WEFT_OK);
    assert_int_equal(c.attention, WEFT_ATTENTION_MLA);
    assert_true(c.attn_gate && c.cross_token && c.latent_recip);
    assert_int_equal(c.optimizer, WEFT_OPTIMIZER_ADAMWSPAM);
    c = defaults();
    assert_int_equal(weft_config_preset(&c, WEFT_PRESET_MODERN), WEFT_OK);
    assert_int_equal(c.attention, WEFT_ATTENTION_DOT);
    assert_int_equal(c.ffn, WEFT_FFN_RELU2);
    assert_int_equal(c.position, WEFT_POSITION_ROPE);
    assert_int_equal(c.norm, WEFT_NORM_RMSNORM);
    assert_true(c.qk_norm && !c.bias);
    assert_int_equal(c.optimizer, WEFT_OPTIMIZER_MUON);
    c = defaults(); /* GPT-2 is what the defaults are */
    weft_config plain = defaults();
    assert_int_equal(weft_config_preset(&c, WEFT_PRESET_GPT2), WEFT_OK);
    c.preset = plain.preset;
    assert_memory_equal(&c, &plain, sizeof c);
}

/* The Kconfig file names every option once. */
TEST(test_kconfig_has_every_option) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    weft_config_write_kconfig(out);
    fclose(out);
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++) {
        char line[96];
        snprintf(line, sizeof line, "\nconfig %s\n", options[i].key);
        const char *at = strstr(text, line);
        assert_non_null(at);
        assert_null(strstr(at + 1, line));
    }
    free(text);
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* Variants of a study as a config writes them: what is read, what is refused and in which words, and
 * which of file, variant and command line wins. */
#include "study/study.h"
#include "study/variants.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parse(const char *named, const char *ablation, weft_variants *out) {
    weft_config c;
    weft_config_defaults(&c);
    snprintf(c.study_variants, sizeof c.study_variants, "%s", named);
    snprintf(c.ra_mla_ablation_steps, sizeof c.ra_mla_ablation_steps, "%s", ablation);
    expect_ok(weft_variants_parse(&c, "file", "alone", out));
}

static void refuse(const char *named, const char *ablation, const char *const *words) {
    weft_config c;
    weft_variants variants;
    weft_config_defaults(&c);
    snprintf(c.study_variants, sizeof c.study_variants, "%s", named);
    snprintf(c.ra_mla_ablation_steps, sizeof c.ra_mla_ablation_steps, "%s", ablation);
    assert_int_equal(weft_variants_parse(&c, "file", "alone", &variants), WEFT_EINPUT);
    for (; *words; words++)
        if (!strstr(weft_error_message(), *words))
            fail_msg("'%s' is not in: %s", *words, weft_error_message());
}

static void expect_set(const weft_variant *v, int set, const char *key, const char *value) {
    assert_string_equal(v->sets[set].option->key, key);
    assert_string_equal(v->sets[set].value, value);
}

TEST(test_named_variants_are_read) {
    weft_variants s;
    parse("base; wide: N_FFN=128 config_n_head=4 ;deep vs wide : N_LAYER=3;"
          " data: DATASET=\"a b;c\" TOKENIZER='x y'",
          "", &s);
    assert_int_equal(s.n, 4);
    assert_string_equal(s.list[0].name, "base");
    assert_int_equal(s.list[0].n_sets, 0);
    assert_int_equal(s.list[0].baseline, -1);
    expect_set(&s.list[1], 0, "N_FFN", "128");
    expect_set(&s.list[1], 1, "N_HEAD", "4");
    assert_int_equal(s.list[1].baseline, 0);
    assert_string_equal(s.list[2].name, "deep");
    assert_int_equal(s.list[2].baseline, 1);
    expect_set(&s.list[3], 0, "DATASET", "a b;c");
    expect_set(&s.list[3], 1, "TOKENIZER", "x y");
    for (int i = 0; i < s.n; i++)
        assert_int_equal(s.list[i].repeats, -1);
    weft_variants_free(&s);
    /* The first may have a baseline too, which then has none. */
    static const int baselines[] = {1, -1, 0};
    parse("rope vs learned; learned: POSITION=learned; w2: ATTENTION=w2", "", &s);
    for (int i = 0; i < s.n; i++)
        assert_int_equal(s.list[i].baseline, baselines[i]);
    weft_variants_free(&s);
}

TEST(test_a_variant_has_a_label) {
    /* The last three have no label of their own; nor has the first, which sets nothing. */
    static const char *const labels[] = {
        "base",
        "Twice as wide",
        "it's deep: 3; no more",
        "ATTENTION w2, BIAS off",
        "RA_MLA_MLP_ATTN_GATE on and 2 more",
        "N_LAYER 3 (a)",
        "N_LAYER 3 (b)",
    };
    weft_variants s;
    parse("base; wide 'Twice as wide': N_FFN=128; deep \\\"it's deep: 3; no more\\\" vs wide: "
          "N_LAYER=3;"
          "w2: ATTENTION=w2 BIAS=n; all: RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_CROSS_TOKEN=y "
          "RA_MLA_MLP_LATENT_RECIP=y; a: N_LAYER=3; b vs a: N_LAYER=3",
          "", &s);
    assert_int_equal(s.n, 7);
    for (int i = 0; i < s.n; i++)
        assert_string_equal(s.list[i].title, labels[i]);
    assert_string_equal(s.list[2].base, "wide");
    weft_variants_free(&s);
    assert_true(weft_variant_labelled("Twice as wide", "wide", "N_FFN=128"));
    assert_false(weft_variant_labelled("wide", "wide", "N_FFN=128"));
    assert_false(weft_variant_labelled("N_FFN 128", "wide", "N_FFN=128 N_HEAD=4"));
    assert_true(weft_variant_labelled("N_FFNs", "wide", "N_FFN=128"));
    refuse("a; b 'c: N_FFN=3", "", SAYS("'b'", "label"));
    refuse("a; b '': N_FFN=3", "", SAYS("'b'", "label"));
}

TEST(test_ablation_variants_have_their_switches_and_repeats) {
    /* Gate, cross-token, latent of steps 0 to 5, as the RA-MLA write-up lists them. */
    static const char *const switches[] = {"nnn", "ynn", "yyn", "yyy", "yyn", "yyy"};
    weft_variants s;
    parse("", "0, 1,2,3,4,5", &s);
    assert_int_equal(s.n, 6);
    for (int i = 0; i < 6; i++) {
        char got[4] = "";
        assert_int_equal(s.list[i].n_sets, 3);
        for (int k = 0; k < 3; k++)
            got[k] = *s.list[i].sets[k].value;
        assert_string_equal(got, switches[i]);
        assert_int_equal(s.list[i].baseline, i ? 0 : -1);
        assert_int_equal(s.list[i].repeats, i == 4 ? 2 : i == 5 ? 3 : -1);
    }
    assert_string_equal(s.list[5].title, "All three (repeat of 3)");
    weft_variants_free(&s);
    parse("", "3,5,4", &s); /* 2 is not there, so 4 repeats nothing */
    assert_int_equal(s.list[1].repeats, 0);
    assert_int_equal(s.list[2].repeats, -1);
    weft_variants_free(&s);
}

TEST(test_a_config_without_variants_is_one_variant) {
    weft_variants s;
    char name[WEFT_VARIANT_NAME];
    parse("", "", &s);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.list[0].name, "alone");
    weft_variants_free(&s);
    weft_study_name("defconfigs/w2 recall!", name, sizeof name);
    assert_string_equal(name, "w2recall");
    weft_study_name("some/.config", name, sizeof name);
    assert_string_equal(name, "study");
    weft_study_name("/usr/study", name, sizeof name); /* its own folder's */
    assert_string_equal(name, "usr");
    weft_study_name("/study", name, sizeof name);
    assert_string_equal(name, "study");
}

TEST(test_mistakes_name_the_variant_and_the_key) {
    refuse("a; b: N_FNN=3", "",
           SAYS("file", "STUDY_VARIANTS", "'b'", "CONFIG_N_FNN", "CONFIG_N_FFN"));
    refuse("a; b: SEED=3", "", SAYS("'b'", "CONFIG_SEED", "whole study"));
    refuse("a; b: STUDY_SEEDS=3", "", SAYS("'b'", "CONFIG_STUDY_SEEDS"));
    refuse("a; b: N_FFN=3 N_FFN=4", "", SAYS("'b'", "CONFIG_N_FFN", "twice"));
    refuse("a; b: N_FFN", "", SAYS("'b'", "N_FFN", "KEY=VALUE"));
    refuse("a; b N_FFN=3", "", SAYS("'b'", "':'"));
    refuse("a; a: N_FFN=3", "", SAYS("'a'", "twice"));
    refuse("base; b vs bse: N_FFN=3", "", SAYS("'b'", "'bse'", "'base'"));
    refuse("a; b vs c; c vs b", "", SAYS("'b'", "itself"));
    refuse("a; : N_FFN=3", "", SAYS("name"));
    refuse("a;; b", "", SAYS("name"));
    refuse("a; b/c: N_FFN=3", "", SAYS("'b'", "/c"));
    refuse("", "0,6", SAYS("RA_MLA_ABLATION_STEPS", "0,6", "0 to 5"));
    refuse("", "0,1,1", SAYS("'1'", "twice"));
    refuse("a", "0,1", SAYS("RA_MLA_ABLATION_STEPS", "STUDY_VARIANTS", "both"));
}

TEST(test_command_line_wins_over_variant_and_variant_over_file) {
    static const char text[] = "CONFIG_STUDY_VARIANTS=\"a; b: N_LAYER=3 N_HEAD=4\"\n"
                               "CONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\n";
    const char *path = scratch_path("layers");
    file_write(path, text, sizeof text - 1);
    weft_override over = {"N_HEAD=8", "-o"};
    weft_source source = {path, &over, 1};
    weft_config c;
    weft_variants s;
    expect_ok(weft_source_read(&source, NULL, &c));
    expect_ok(weft_variants_parse(&c, path, "x", &s));
    expect_ok(weft_source_read(&source, &s.list[1], &c));
    assert_int_equal(c.n_layer, 3);
    assert_int_equal(c.n_head, 8);
    assert_int_equal(c.n_embd, 16);
    weft_variants_free(&s);
}

/* The same through the program: --variant by name, all variants of a plan, and a name that is none. */
/* Wherever PRESET stands, all that is set wins over it; a variant may take another. */
TEST(test_a_preset_goes_below_all_that_is_set) {
    const char *path = scratch_path("preset");
    static const char text[] = "CONFIG_NORM=\"layernorm\"\nCONFIG_PRESET=\"w2\"\n";
    file_write(path, text, sizeof text - 1);
    weft_override rope = {"POSITION=alibi", "-o"};
    weft_source source = {path, &rope, 1};
    weft_config c;
    expect_ok(weft_source_read(&source, NULL, &c));
    assert_int_equal(c.preset, WEFT_PRESET_W2);
    assert_int_equal(c.attention, WEFT_ATTENTION_W2);
    assert_int_equal(c.norm, WEFT_NORM_LAYERNORM);
    assert_int_equal(c.position, WEFT_POSITION_ALIBI);
    assert_false(c.bias);
    char preset[] = "ra-mla";
    weft_setting set = {weft_option_find("PRESET"), preset};
    weft_variant variant = {.name = "s", .sets = &set, .n_sets = 1};
    expect_ok(weft_source_read(&source, &variant, &c));
    assert_int_equal(c.attention, WEFT_ATTENTION_MLA);
    assert_true(c.bias && c.latent_recip);
}

TEST(test_plan_and_train_know_variants_by_name) {
    static const char text[] =
        "CONFIG_STUDY_VARIANTS=\"small; wide: N_FFN=128\"\nCONFIG_N_LAYER=1\nCONFIG_N_HEAD=2\n"
        "CONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=24\n";
    const char *path = scratch_path("named");
    file_write(path, text, sizeof text - 1);
    WEFT_AUTO_DECREF json_t *all = command_json(RUN("plan", "--config", path, "--json"));
    json_t *variants = json_object_get(all, "steps");
    assert_int_equal(json_array_size(variants), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(variants, 1), "step")),
                        "wide");
    /* 64 more units in the middle: 2 E + 1 numbers each. */
    long long small =
        json_integer_value(json_object_get(json_array_get(variants, 0), "parameters"));
    json_t *one = command_json(RUN("plan", "--config", path, "--variant", "wide", "--json"));
    assert_int_equal(json_integer_value(json_object_get(one, "parameters")), small + 64 * 33);
    assert_int_equal(json_integer_value(json_object_get(all, "parameters")), small);
    json_decref(one);
    FAILS(2, SAYS("'wid'", "'wide'"), "plan", "--config", path, "--variant", "wid");
    FAILS(2, SAYS("--variant", "'3'"), "train", "--config", path, "--variant", "3");
}

/* Without --out a run's folder has the variant's name; one that was begun under the name before goes on. */
TEST(test_a_runs_folder_is_named_by_its_variant) {
    static const char text[] =
        "CONFIG_STUDY_VARIANTS=\"small; wide: N_FFN=128\"\nCONFIG_N_LAYER=1\nCONFIG_N_HEAD=2\n"
        "CONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=24\nCONFIG_BATCH_SIZE=1\n"
        "CONFIG_EVAL_SAMPLES=1\nCONFIG_STEPS=1\n";
    file_write(scratch_path("here"), text, sizeof text - 1);
    const char *command = format_text(
        "weft=$(realpath \"${WEFT:-build/weft}\") && cd '%s' && "
        "run() { \"$weft\" train --config here --variant wide --threads 1 \"$@\" 2>said; } && "
        "run && mv runs/here-wide runs/here-stepwide && run --resume -o STEPS=2 && "
        "grep -q here-stepwide said && test ! -e runs/here-wide",
        scratch_path("."));
    assert_int_equal(system(command), 0); /* NOLINT */
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* weft runs --fit: the law that the scores were made by comes back; runs that count for nothing and variants
 * that were not chosen stay out; what has no logarithm is refused. */
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* score = 20 parameters^-0.1; parameters are 1000000 + 250000 variant. */
static double law(int variant) {
    return 20 * pow(1e6 + 250000.0 * variant, -0.1);
}

static const char *make(const char *name, double noise) {
    static const char *const names[] = {"a", "b", "c", "d"};
    const char *path = scratch_path("%s", name);
    sqlite3 *db = study_open(path, "sizes", "val_loss");
    for (int i = 0; i < 4; i++) {
        study_variant(db, i, names[i], names[i], i ? 0 : -1, -1);
        for (int seed = 1; seed <= 2; seed++)
            study_run(db, i, 0.001, seed, law(i) * exp(seed == 1 ? noise : -noise), "x");
    }
    study_run_ended(db, 3, 0.001, 3, "diverged", "");
    study_close(db);
    return path;
}

static json_t *fit(const char *path, const char *x, const char *variants) {
    char *text;
    if (variants)
        command_succeeds(RUN("runs", path, "--fit", x, "--variants", variants, "--json"), &text);
    else
        command_succeeds(RUN("runs", path, "--fit", x, "--json"), &text);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    free(text);
    return object;
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

TEST(test_the_law_comes_back) {
    json_t *exact = fit(make("exact.db", 0), "parameters", NULL);
    assert_true(fabs(number(exact, "power") + 0.1) < 1e-9);
    assert_true(fabs(number(exact, "factor") - 20) < 1e-6);
    assert_true(number(exact, "spread") < 1e-9);
    assert_int_equal(json_array_size(json_object_get(exact, "runs")), 8);
    json_decref(exact);
    /* Each seed 1% to either side: the same line, and an interval around its power. */
    json_t *noisy = fit(make("noisy.db", 0.01), "parameters", NULL);
    assert_true(fabs(number(noisy, "power") + 0.1) < 1e-9);
    assert_true(number(noisy, "low") < -0.11 && number(noisy, "high") > -0.09);
    assert_true(fabs(number(noisy, "spread") - 0.01 * sqrt(8.0 / 6)) < 1e-9);
    json_decref(noisy);
}

/* score = 9 x^-0.25 where x is all operations of a run, or the latent's width, 16 to 128. */
TEST(test_operations_and_options_are_fitted_too) {
    const char *path = make("options.db", 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (int i = 0; i < 4; i++) {
        int width = 16 << i;
        study_sql(db,
                  "UPDATE runs SET score = %!.17g, config = '{\"ra_mla_latent_dim\":%d}' WHERE "
                  "variant = %d AND status = 'done'",
                  9 * pow(width, -0.25), width, i);
        study_sql(db, "UPDATE variants SET flops_per_token = %d, tokens = 1000 WHERE variant = %d",
                  1000000 * width, i);
    }
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    json_t *latent = fit(path, "RA_MLA_LATENT_DIM", NULL), *flops = fit(path, "flops", NULL);
    assert_true(fabs(number(latent, "power") + 0.25) < 1e-9);
    assert_true(fabs(number(latent, "factor") - 9) < 1e-6);
    assert_true(fabs(number(flops, "power") + 0.25) < 1e-9);
    assert_true(fabs(number(flops, "factor") / (9 * pow(1e9, 0.25)) - 1) < 1e-6);
    json_decref(latent);
    json_decref(flops);
}

TEST(test_variants_may_be_chosen) {
    json_t *two = fit(make("chosen.db", 0), "parameters", "d, b");
    assert_int_equal(json_array_size(json_object_get(two, "runs")), 4);
    json_decref(two);
}

TEST(test_what_cannot_be_fitted_is_refused) {
    const char *path = make("refused.db", 0);
    command_fails(2, RUN("runs", path, "--fit", "flopz"), SAYS("'flopz'", "flops"));
    command_fails(2, RUN("runs", path, "--fit", "ATTENTION"), SAYS("ATTENTION", "not a number"));
    command_fails(2, RUN("runs", path, "--fit", "tokens"), SAYS("tokens", "two values"));
    command_fails(2, RUN("runs", path, "--fit", "parameters", "--variants", "a"),
                  SAYS("two values"));
    command_fails(2, RUN("runs", path, "--variants", "a"), SAYS("--fit"));
    command_fails(2, RUN("runs", path, "--fit", "parameters", "--steps", "a"), SAYS("two values"));
    command_fails(2, RUN("runs", path, "--fit", "N_FFN"), SAYS("N_FFN", "above 0"));
}

/* Plain models of 1, 2 and 4 million parameters on 20 p^-0.1, each seed 1% to either side, and a variant of 3 million
 * with a mean of 4.1. The expected numbers are SciPy's line and t. */
TEST(test_a_variant_is_held_against_a_plain_model_of_its_size) {
    const char *path = scratch_path("yardstick.db");
    static const char *const names[] = {"a", "b", "c", "variant"};
    sqlite3 *db = study_open(path, "yardstick", "val_loss");
    for (int i = 0; i < 4; i++) {
        double size = i < 3 ? 1e6 * (1 << i) : 3e6;
        study_variant(db, i, names[i], names[i], i ? 0 : -1, -1);
        study_sql(db, "UPDATE variants SET parameters = %d WHERE variant = %d", (int)size, i);
        for (int seed = 1; seed <= 2; seed++)
            study_run(db, i, 0.001, seed,
                      i < 3 ? 20 * pow(size, -0.1) * exp(seed == 1 ? 0.01 : -0.01)
                            : (seed == 1 ? 4.0 : 4.2),
                      "x");
    }
    study_sql(db, "UPDATE study SET config = config || %Q", "\nSTUDY_YARDSTICK=a, b , c");
    study_close(db);
    json_t *report = command_json(RUN("report", path, "--json"));
    json_t *study = json_array_get(json_object_get(report, "studies"), 0);
    json_t *list = json_array_get(json_object_get(study, "yardsticks"), 0);
    assert_true(fabs(number(json_object_get(list, "parameters"), "power") + 0.1) < 1e-9);
    json_t *rows = json_object_get(list, "variants");
    assert_int_equal(json_array_size(rows), 1);
    const json_t *at = json_object_get(json_array_get(rows, 0), "parameters");
    assert_true(fabs(number(at, "plain") - 4.5010918) < 1e-6);
    assert_true(fabs(number(at, "difference") + 0.4010918) < 1e-6);
    assert_true(fabs(number(at, "low") + 0.5202435) < 1e-6);
    assert_true(fabs(number(at, "high") + 0.2783737) < 1e-6);
    assert_string_equal(json_string_value(json_object_get(at, "verdict")), "better");
    assert_true(json_is_false(json_object_get(at, "beyond")));
    json_decref(report);
    command_succeeds(RUN("report", path, "--out", scratch_path("out")), NULL);
    char *md = file_read(scratch_path("out/report.md"), NULL);
    assert_non_null(strstr(md, "## Against plain models of equal size"));
    assert_non_null(strstr(md, "| variant | 4.1000 | -0.4011 \\[-0.5202, -0.2784\\] better |"));
    assert_null(strstr(md, "| a | 5.0")); /* a plain model is not held against itself */
    free(md);
    command_fails(2,
                  RUN("study", "--config", "defconfigs/demo", "-o", "STUDY_YARDSTICK=gpt2, nothing",
                      "--list"),
                  SAYS("STUDY_YARDSTICK", "'nothing'"));
}

RUN_TESTS(scratch_setup, scratch_teardown)

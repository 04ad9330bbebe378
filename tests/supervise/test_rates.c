/* Learning rates that are chosen on a seed of their own, a study that has only so much time, and
 * what a run's record says beside its results. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"

#include <math.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RATES = 2, SEEDS = 2, VARIANTS = 2 };

static char config[256], whole[256];

/* RA_MLA_ABLATION_STEPS has two variants, of which the second repeats the first. */
static const char *const apart[] = {"-o", "STUDY_RATE_SEED=77", "-o", "EVAL_POSITIONS=y"};
#define APART apart[0], apart[1], apart[2], apart[3]

TEST(test_rates_are_tried_on_the_seed_apart_and_the_best_runs_on_the_others) {
    assert_int_equal(study_number(whole, "SELECT count(*) FROM runs"), VARIANTS * (RATES + SEEDS));
    assert_int_equal(study_number(whole, "SELECT count(*) FROM runs WHERE seed = 77"),
                     VARIANTS * RATES);
    assert_int_equal(study_number(whole, "SELECT count(*) FROM runs WHERE status = 'done'"),
                     VARIANTS * (RATES + SEEDS));
    /* Whichever rate was better there is the only one of the study's own seeds. */
    for (int variant = 0; variant < VARIANTS; variant++) {
        char sql[400];
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM runs WHERE variant = %d AND seed <> 77 AND learning_rate ="
                 " (SELECT learning_rate FROM runs WHERE variant = %d AND seed = 77"
                 " ORDER BY score LIMIT 1)",
                 variant, variant);
        assert_int_equal(study_number(whole, sql), SEEDS);
    }
}

TEST(test_the_seed_apart_counts_for_no_verdict) {
    json_t *r = command_json(RUN("report", whole, "--json"));
    json_t *study = json_array_get(json_object_get(r, "studies"), 0);
    json_t *variant = json_array_get(json_object_get(study, "steps"), 0);
    double mean = study_real(whole, "SELECT avg(score) FROM runs WHERE variant = 0 AND seed <> 77");
    assert_true(fabs(json_number_value(json_object_get(variant, "score")) - mean) < 1e-12);
    assert_int_equal(json_integer_value(json_object_get(variant, "seeds")), SEEDS);
    assert_int_equal(json_integer_value(json_object_get(variant, "runs")), SEEDS);
    json_decref(r);
    json_t *c = command_json(RUN("runs", whole, "--compare", "2", "4", "--json"));
    assert_int_equal(json_array_size(json_object_get(c, "pairs")), SEEDS);
    json_decref(c);
}

TEST(test_a_seed_that_both_chooses_and_counts_is_refused) {
    command_fails(
        2,
        RUN("study", "--config", config, "--out", scratch_path("both"), "-o", "STUDY_RATE_SEED=2"),
        SAYS("CONFIG_STUDY_RATE_SEED=2", "own seeds, 1 to 2"));
}

/* 16 positions in ranges of 1, 3 and 12: their losses, weighted so, are the whole's. */
TEST(test_losses_by_position_add_up_to_the_whole) {
    double worst = study_real(
        whole, "SELECT max(abs(r.val_loss - (a.value + 3 * b.value + 12 * c.value) / 16))"
               " FROM runs r JOIN facts a ON a.run = r.run AND a.name = 'loss_at_0_0'"
               " JOIN facts b ON b.run = r.run AND b.name = 'loss_at_1_3'"
               " JOIN facts c ON c.run = r.run AND c.name = 'loss_at_4_15'");
    assert_int_equal(study_number(whole, "SELECT count(*) FROM facts WHERE name LIKE 'loss_at%'"),
                     3 * VARIANTS * (RATES + SEEDS));
    if (!(worst < 1e-5)) fail_msg("they miss the whole by %g", worst);
    assert_int_equal(study_number(whole, "SELECT count(DISTINCT value) > 3 FROM facts WHERE name ="
                                         " 'loss_at_1_3'"),
                     1);
}

TEST(test_each_run_says_which_program_made_it_where) {
    int64_t runs = VARIANTS * (RATES + SEEDS);
    assert_int_equal(study_number(whole, "SELECT count(*) FROM facts WHERE name = 'commit'"), runs);
    assert_int_equal(study_number(whole, "SELECT count(*) FROM facts WHERE name = 'machine'"),
                     runs);
    assert_int_equal(
        study_number(whole, "SELECT count(*) FROM facts WHERE name = 'device' AND value = 'cpu'"),
        runs);
}

/* When the time is up, what runs is stopped, though no run before it told how long one takes; the same command
 * without the limit ends as a study that had none. */
TEST(test_a_study_ends_in_time) {
    const char *out = scratch_path("short"), *endless = scratch_path("endless");
    command_result r =
        command_run(RUN("study", "--config", config, "--out", out, APART, "--minutes", "0.001"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "; time is up; repeat the command to continue\nnext: "));
    command_free(&r);
    r = command_run(RUN("study", "--config", config, "--out", endless, "--minutes", "0.02", "-o",
                        "STEPS=100000000", "-o", "EVAL_INTERVAL=100000000"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "; time is up; repeat the command to continue\nnext: "));
    command_free(&r);
    assert_int_equal(study_number(endless, "SELECT count(*) FROM runs WHERE status <> 'waiting'"),
                     0);
    command_succeeds(RUN("study", "--config", config, "--out", out, APART), NULL);
    study_same(whole, out);
    /* As a study that is killed when a run was done and not yet in the database. */
    study_change(out, "UPDATE runs SET status = 'running' WHERE seed = 77");
    command_succeeds(RUN("study", "--config", config, "--out", out, APART), NULL);
    study_same(whole, out);
    command_fails(2, RUN("study", "--config", config, "--out", out, "--minutes", "0"),
                  SAYS("--minutes '0'"));
}

/* Variant 4 takes over variant 2's rate, as its record and its report say; also where that is decided when the study
 * has begun, and its own trials still wait. */
TEST(test_a_variant_may_take_over_anothers_rate) {
    const char *out = scratch_path("shared"), *later = scratch_path("later");
    char *text;
    command_succeeds(RUN("study", "--config", config, "--out", out, APART, "-o",
                         "STUDY_RATE_AS=4=2", "-o", "STUDY_SPREAD=0.5"),
                     NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE variant = 1 AND seed = 77"),
                     0);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE variant = 1 AND status ="
                                       " 'done' AND learning_rate = (SELECT learning_rate FROM"
                                       " runs WHERE variant = 0 AND seed <> 77)"),
                     SEEDS);
    text = file_read(scratch_path("shared/report.md"), NULL);
    assert_non_null(
        strstr(text, "took over the learning rate of another, and tried no other: 4=2"));
    free(text);
    json_t *all =
        command_json(RUN("study", "--config", config, "--out", out, APART, "-o",
                         "STUDY_RATE_AS=4=2", "-o", "STUDY_SPREAD=0.5", "--list", "--json"));
    assert_int_equal(json_integer_value(json_object_get(all, "runs")), RATES + 2 * SEEDS);
    const json_t *power = json_object_get(all, "power");
    /* Two seeds: 11.55 spreads. */
    assert_float_equal(json_number_value(json_object_get(power, "difference")), 5.774944, 1e-5);
    json_decref(all);
    /* Decided later; and a variant whose rate is still to be chosen by another waits for it. */
    command_succeeds(RUN("study", "--config", config, "--out", later, APART, "--variants", "2"),
                     NULL);
    command_succeeds(RUN("study", "--config", config, "--out", later, APART, "-o",
                         "STUDY_RATE_AS=4=2", "--variants", "4"),
                     NULL);
    assert_int_equal(study_number(later, "SELECT count(*) FROM runs WHERE status <> 'done'"), 0);
    assert_int_equal(study_number(later, "SELECT count(*) FROM runs"), RATES + 2 * SEEDS);
    command_result r = command_run(RUN("study", "--config", config, "--out", scratch_path("alone"),
                                       APART, "-o", "STUDY_RATE_AS=4=2", "--variants", "4"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "variant '4' waits for the learning rate of '2'"));
    command_free(&r);
    command_fails(2,
                  RUN("study", "--config", config, "--out", scratch_path("wrong"), APART, "-o",
                      "STUDY_RATE_AS=4=5"),
                  SAYS("STUDY_RATE_AS", "'5'"));
    command_fails(2,
                  RUN("study", "--config", config, "--out", scratch_path("wrong"), APART, "-o",
                      "STUDY_RATE_AS=4=2, 2=4"),
                  SAYS("tries the rates itself"));
    command_fails(
        2,
        RUN("study", "--config", config, "--out", scratch_path("wrong"), "-o", "STUDY_RATE_AS=4=2"),
        SAYS("STUDY_RATE_SEED"));
}

/* A study that gets more seeds ends as one that had them from the start, its runs' numbers included;
 * `apart`: rates are chosen by a seed of their own. */
static void grow(bool chooses) {
    char few[256], all[256];
    const char *const *rates =
        chooses ? RUN("-o", "STUDY_RATE_SEED=77") : RUN("-o", "STUDY_TAIL=5");
    snprintf(few, sizeof few, "%s", scratch_path(chooses ? "few-apart" : "few"));
    snprintf(all, sizeof all, "%s", scratch_path(chooses ? "all-apart" : "all"));
    command_succeeds(RUN("study", "--config", config, "--out", few, rates[0], rates[1]), NULL);
    int64_t events = study_number(few, "SELECT count(*) FROM events WHERE run NOT NULL");
    char *scores = study_text(few, "SELECT group_concat(score) FROM (SELECT score FROM runs"
                                   " WHERE seed < 3 ORDER BY folder)");
    command_succeeds(
        RUN("study", "--config", config, "--out", few, rates[0], rates[1], "-o", "STUDY_SEEDS=4"),
        NULL);
    command_succeeds(
        RUN("study", "--config", config, "--out", all, rates[0], rates[1], "-o", "STUDY_SEEDS=4"),
        NULL);
    study_same(all, few);
    /* What had been run was not run again. */
    char *after = study_text(few, "SELECT group_concat(score) FROM (SELECT score FROM runs"
                                  " WHERE seed < 3 ORDER BY folder)");
    assert_string_equal(after, scores);
    assert_int_equal(study_number(few, "SELECT count(*) FROM events JOIN runs USING (run)"
                                       " WHERE seed < 3 OR seed = 77"),
                     events);
    assert_int_equal(study_number(few, "SELECT max(resumes) FROM runs"), 0);
    free(scores);
    free(after);
    command_fails(2, RUN("study", "--config", config, "--out", few, rates[0], rates[1]),
                  SAYS("STUDY_SEEDS was 4 in this study and is 2 now"));
}

TEST(test_seeds_may_be_added) {
    grow(false);
}

TEST(test_seeds_may_be_added_at_the_rate_that_was_chosen) {
    grow(true);
}

/* A study that gets another variant behind its own ends as one that had it from the start; one of its own cannot become
 * another, and none can leave. */
TEST(test_variants_may_be_added) {
#define OF(variants) "-o", "RA_MLA_ABLATION_STEPS=", "-o", "STUDY_VARIANTS=" variants
    const char *few = scratch_path("variants"), *all = scratch_path("variants-all");
    command_succeeds(RUN("study", "--config", config, "--out", few, OF("a; b: N_FFN=16")), NULL);
    command_succeeds(
        RUN("study", "--config", config, "--out", few, OF("a; b: N_FFN=16; c vs b: N_FFN=24")),
        NULL);
    command_succeeds(
        RUN("study", "--config", config, "--out", all, OF("a; b: N_FFN=16; c vs b: N_FFN=24")),
        NULL);
    study_same(all, few);
    assert_int_equal(study_number(few, "SELECT max(resumes) FROM runs"), 0);
    static const char *const others[][4] = {{OF("a; b: N_FFN=16")},
                                            {OF("a; b: N_FFN=16; c vs b: N_FFN=248")},
                                            {OF("a; b vs a: N_FFN=16; c vs b: N_FFN=24; d")}};
    for (int i = 0; i < 3; i++)
        command_fails(2,
                      RUN("study", "--config", config, "--out", few, others[i][0], others[i][1],
                          others[i][2], others[i][3]),
                      SAYS("STUDY_VARIANTS was"));
}

/* Eight steps are too few for any rate to be too high, so every rate that is added is again at the edge, until there are
 * four more; a study that gets a seed has it at those, too, and ends as one that had it from the start. */
TEST(test_a_minimum_at_the_edge_adds_rates) {
    static const char *const minimum[] = {"-o", "STUDY_COMPARE=minimum", "-o",
                                          "STUDY_LEARNING_RATES=1e-3,2e-3,4e-3"};
#define MINIMUM minimum[0], minimum[1], minimum[2], minimum[3]
    const char *few = scratch_path("minimum"), *all = scratch_path("minimum-all");
    command_succeeds(
        RUN("study", "--config", config, "--out", few, MINIMUM, "-o", "RA_MLA_ABLATION_STEPS=2"),
        NULL);
    char *rates = study_text(few, "SELECT group_concat(learning_rate) FROM (SELECT DISTINCT"
                                  " learning_rate FROM runs ORDER BY run)");
    assert_string_equal(rates, "0.001,0.002,0.004,0.008,0.016,0.032,0.064");
    free(rates);
    assert_int_equal(study_number(few, "SELECT count(*) FROM runs WHERE status = 'done'"), 14);
    command_succeeds(RUN("study", "--config", config, "--out", few, MINIMUM, "-o",
                         "RA_MLA_ABLATION_STEPS=2", "-o", "STUDY_SEEDS=3"),
                     NULL);
    command_succeeds(RUN("study", "--config", config, "--out", all, MINIMUM, "-o",
                         "RA_MLA_ABLATION_STEPS=2", "-o", "STUDY_SEEDS=3"),
                     NULL);
    study_same(all, few);
    /* One that the study would not have made is refused. */
    study_change(few, "UPDATE runs SET learning_rate = 0.128 WHERE learning_rate = 0.064 AND"
                      " seed = 1");
    command_fails(2,
                  RUN("study", "--config", config, "--out", few, MINIMUM, "-o",
                      "RA_MLA_ABLATION_STEPS=2", "-o", "STUDY_SEEDS=3"),
                  SAYS("none that this study makes"));
    command_fails(2,
                  RUN("study", "--config", config, "--out", scratch_path("two"), "-o",
                      "STUDY_COMPARE=minimum"),
                  SAYS("three or more CONFIG_STUDY_LEARNING_RATES"));
}

/* Another way to name the device is no other study; another batch is. */
TEST(test_the_device_may_change) {
    const char *out = scratch_path("device");
    command_succeeds(RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1"), NULL);
    command_succeeds(
        RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "--device", "cpu"),
        NULL);
    command_fails(
        2,
        RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o", "BATCH_SIZE=3"),
        SAYS("BATCH_SIZE was "));
}

static int make_whole(void **state) {
    (void)state;
    study_whole(config, whole, RUN(APART));
    return 0;
}

RUN_TESTS(make_whole, scratch_teardown)

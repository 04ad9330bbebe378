/* A whole study through the program: what its database says, that a second one is the same whatever
 * happened on its way, and what is refused. One study that is left alone is made first; the others
 * are compared with it. */
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUNS = 8, ITERS = 8, TAIL = 5 };

static char config[256], whole[256];

TEST(test_a_study_runs_every_variant_rate_and_seed) {
    json_t *r = command_json(RUN("runs", whole, "--json"));
    json_t *runs = json_object_get(json_array_get(json_object_get(r, "studies"), 0), "runs");
    assert_int_equal(json_array_size(runs), RUNS);
    size_t i;
    json_t *run;
    json_array_foreach(runs, i, run) {
        assert_string_equal(json_string_value(json_object_get(run, "status")), "done");
        assert_int_equal(json_integer_value(json_object_get(run, "iters")), ITERS);
        assert_true(json_integer_value(json_object_get(run, "memory_bytes")) > 1000000);
        assert_int_equal(
            json_integer_value(json_object_get(json_object_get(run, "config"), "seed")), i % 2 + 1);
        assert_true(json_real_value(json_object_get(json_object_get(run, "config"),
                                                    "learning_rate")) == (i / 2 % 2 ? 1e-2 : 1e-3));
    }
    json_decref(r);
    assert_int_equal(study_number(whole, "SELECT count(*) FROM metrics"), RUNS * ITERS);
    assert_int_equal(
        study_number(whole, "SELECT count(DISTINCT weights) FROM runs WHERE variant = 0"),
        RUNS / 2);
    /* SAVE_CHECKPOINT is n: the last checkpoint is there all the same, the best is not. */
    char path[600];
    snprintf(path, sizeof path, "%s/runs/2-lr0.001-seed1/last/model.safetensors", whole);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(path, sizeof path, "%s/runs/2-lr0.001-seed1/best", whole);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/report.html", whole);
    assert_int_equal(access(path, R_OK), 0);
}

/* The result of a run, from its metrics.jsonl by itself. */
TEST(test_results_are_those_of_the_metrics_file) {
    char path[600];
    snprintf(path, sizeof path, "%s/runs/4-lr0.01-seed2/metrics.jsonl", whole);
    size_t n;
    char *text = file_read(path, &n), *rest = text, *line;
    double tail = 0, val = NAN, best = INFINITY;
    while ((line = strtok_r(rest, "\n", &rest))) {
        json_t *row = json_loads(line, 0, NULL);
        json_t *evaluated = json_object_get(row, "val_loss");
        if (json_integer_value(json_object_get(row, "step")) > ITERS - TAIL)
            tail += json_number_value(json_object_get(row, "cross_entropy")) / TAIL;
        if (evaluated) val = json_number_value(evaluated);
        if (evaluated && val < best) best = val;
        json_decref(row);
    }
    free(text);
    static const char which[] = " FROM runs WHERE folder = 'runs/4-lr0.01-seed2'";
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT val_loss%s", which);
    assert_true(study_real(whole, sql) == val);
    snprintf(sql, sizeof sql, "SELECT score%s", which);
    assert_true(study_real(whole, sql) == val);
    snprintf(sql, sizeof sql, "SELECT best_val_loss%s", which);
    assert_true(study_real(whole, sql) == best);
    snprintf(sql, sizeof sql, "SELECT train_loss%s", which);
    assert_true(fabs(study_real(whole, sql) - tail) < 1e-12);
    snprintf(sql, sizeof sql, "SELECT weights%s", which);
    snprintf(path, sizeof path, "%s/runs/4-lr0.01-seed2/last/state.json", whole);
    char *weights = study_text(whole, sql), *kept = file_read(path, &n);
    assert_non_null(strstr(kept, weights));
    free(kept);
    free(weights);
}

/* Trained anew, in processes of their own, at a time of their own. */
TEST(test_repeats_are_equal_to_the_bit) {
    assert_int_equal(study_number(whole, "SELECT count(*) FROM events WHERE kind = 'equal'"), 4);
    assert_int_equal(study_number(whole, "SELECT count(*) FROM events WHERE kind = 'unequal'"), 0);
    assert_int_equal(
        study_number(whole,
                     "SELECT count(*) FROM runs a JOIN runs b ON a.variant = 0 AND b.variant = 1"
                     " AND a.seed = b.seed AND a.learning_rate = b.learning_rate"
                     " WHERE a.weights = b.weights AND b.started >= a.ended"),
        4);
    train_same_file(scratch_path("whole/runs/2-lr0.01-seed2"),
                    scratch_path("whole/runs/4-lr0.01-seed2"), "last/model.safetensors");
}

TEST(test_two_at_a_time_come_to_the_same) {
    const char *out = scratch_path("two");
    command_succeeds(RUN("study", "--config", config, "--out", out, "--jobs", "2"), NULL);
    study_same(whole, out);
}

/* What the report answers is the last thing in the terminal too; a study that is done says it again. */
TEST(test_the_end_says_what_the_report_says) {
    json_t *report = command_json(RUN("report", whole, "--json"));
    const json_t *one = json_array_get(json_object_get(report, "studies"), 0);
    const json_t *verdict = json_array_get(json_object_get(one, "verdicts"), 0);
    command_result r = command_run(RUN("study", "--config", config, "--out", whole));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, json_string_value(json_object_get(one, "answer"))));
    assert_non_null(strstr(r.err, json_string_value(json_object_get(verdict, "verdict"))));
    const json_t *variant = json_array_get(json_object_get(one, "steps"), 1);
    assert_non_null(strstr(r.err, json_string_value(json_object_get(variant, "title"))));
    command_free(&r);
    json_decref(report);
}

TEST(test_chosen_variants_leave_the_others_waiting) {
    const char *out = scratch_path("chosen");
    command_succeeds(
        RUN("study", "--config", config, "--out", out, "--variants", "4", "-o", "STUDY_SEEDS=1"),
        NULL);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'done'"), 2);
    assert_int_equal(study_number(out, "SELECT count(*) FROM runs WHERE status = 'waiting'"), 2);
    assert_int_equal(study_number(out, "SELECT count(*) FROM variants"), 2);
    command_fails(2, RUN("study", "--config", config, "--out", out, "--variants", "5"),
                  SAYS("--variants", "'5'"));
}

static char *read_database(const char *folder, size_t *n) {
    char path[512];
    snprintf(path, sizeof path, "%s/runs.db", folder);
    return file_read(path, n);
}

TEST(test_another_config_is_refused_and_nothing_is_overwritten) {
    size_t before, after;
    char *was = read_database(whole, &before);
    command_fails(2, RUN("study", "--config", config, "--out", whole, "-o", "N_LAYER=2"),
                  SAYS("runs.db", "CONFIG_N_LAYER", "was 1", "is 2", "--out"));
    command_fails(2, RUN("study", "--config", config, "--out", whole, "-o", "STUDY_SEEDS=1"),
                  SAYS("CONFIG_STUDY_SEEDS", "was 2", "is 1"));
    /* The same base, but a variant that no longer sets what it set. */
    command_fails(2,
                  RUN("study", "--config", config, "--out", whole, "-o", "RA_MLA_MLP_ATTN_GATE=n"),
                  SAYS("variant '2'", "RA_MLA_MLP_ATTN_GATE=y", "RA_MLA_MLP_ATTN_GATE=n"));
    char *is = read_database(whole, &after);
    assert_int_equal(before, after);
    assert_memory_equal(was, is, before);
    free(was);
    free(is);
}

/* Options come with time: what an older weft did not know had its default. */
TEST(test_a_study_of_an_older_weft_goes_on) {
    const char *out = scratch_path("older");
    command_succeeds(
        RUN("study", "--config", config, "--out", out, "--variants", "4", "-o", "STUDY_SEEDS=1"),
        NULL);
    study_change(out, "UPDATE study SET config = replace(config, 'NORM_EPS=0' || char(10), '')");
    assert_int_equal(study_number(out, "SELECT instr(config, 'NORM_EPS') FROM study"), 0);
    command_succeeds(
        RUN("study", "--config", config, "--out", out, "--variants", "4", "-o", "STUDY_SEEDS=1"),
        NULL);
}

/* How many runs have a checkpoint; `which`: of these seeds. */
static int count_weights(const char *out, const char *which) {
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/runs/%s/last/model.safetensors", out, which);
    int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return n;
}

TEST(test_weights_stay_as_the_study_has_it) {
    static const struct {
        const char *word;
        int all, first;
    } cases[] = {
        {"STUDY_WEIGHTS=all", 8, 4}, {"STUDY_WEIGHTS=first", 4, 4}, {"STUDY_WEIGHTS=none", 0, 0}};
    char *scores = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out = scratch_path(cases[i].word);
        command_succeeds(RUN("study", "--config", config, "--out", out, "-o",
                             "RA_MLA_ABLATION_STEPS=", "-o",
                             "STUDY_VARIANTS=one; two: RA_MLA_MLP_GATE_DIM=4", "-o", cases[i].word),
                         NULL);
        assert_int_equal(count_weights(out, "*"), cases[i].all);
        assert_int_equal(count_weights(out, "*-seed1"), cases[i].first);
        char *now = study_text(out, "SELECT group_concat(score || weights) FROM runs");
        if (scores) assert_string_equal(now, scores);
        free(scores);
        scores = now;
    }
    free(scores);
    /* It may be set later; and what repeats another is compared by its bytes, so it stays. */
    command_succeeds(RUN("study", "--config", config, "--out", scratch_path("STUDY_WEIGHTS=all"),
                         "-o", "RA_MLA_ABLATION_STEPS=", "-o",
                         "STUDY_VARIANTS=one; two: RA_MLA_MLP_GATE_DIM=4", "-o",
                         "STUDY_WEIGHTS=none"),
                     NULL);
    const char *out = scratch_path("repeated");
    command_succeeds(RUN("study", "--config", config, "--out", out, "-o", "STUDY_WEIGHTS=none"),
                     NULL);
    assert_int_equal(count_weights(out, "*"), 8);
}

TEST(test_a_changed_weight_shows_as_unequal) {
    const char *out = scratch_path("changed");
    json_t *r = NULL;
    command_succeeds(RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o",
                         "STUDY_LEARNING_RATES="),
                     NULL);
    char path[600];
    size_t n;
    snprintf(path, sizeof path, "%s/runs/4-lr0.0006-seed1/last/model.safetensors", out);
    char *bytes = file_read(path, &n);
    bytes[n - 5] ^= 1;
    file_write(path, bytes, n);
    command_result again =
        command_run(RUN("study", "--config", config, "--out", out, "-o", "STUDY_SEEDS=1", "-o",
                        "STUDY_LEARNING_RATES=", "--json"));
    r = json_loads(again.out, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(r, "unequal")), 1);
    assert_non_null(strstr(again.err, "does not repeat"));
    char *detail = study_text(out, "SELECT detail FROM events WHERE kind = 'unequal'"), wanted[64];
    snprintf(wanted, sizeof wanted, "byte %zu", n - 5);
    if (!strstr(detail, wanted)) fail_msg("'%s' is not in '%s'", wanted, detail);
    assert_int_equal(study_number(out, "SELECT count(*) FROM events WHERE kind = 'equal'"), 0);
    json_decref(r);
    free(detail);
    free(bytes);
    command_free(&again);
}

TEST(test_exports_can_be_read) {
    char *csv, *line, *rest;
    int rows = 0, columns = 0;
    command_succeeds(RUN("runs", whole, "--csv", "-"), &csv);
    rest = csv;
    assert_int_equal(strncmp(csv, "study,run,step,title,learning_rate,seed,", 40), 0);
    while ((line = strtok_r(rest, "\r\n", &rest))) {
        int here = 1;
        bool quoted = false;
        for (const char *c = line; *c; c++) {
            if (*c == '"') quoted = !quoted;
            here += *c == ',' && !quoted;
        }
        if (rows++ == 0) columns = here;
        assert_int_equal(here, columns);
    }
    assert_int_equal(rows, RUNS + 1);
    free(csv);
    const char *path = scratch_path("metrics.csv");
    command_succeeds(RUN("runs", whole, "--metrics-csv", path), NULL);
    size_t n;
    char *text = file_read(path, &n);
    rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += text[i] == '\n';
    assert_int_equal(rows, RUNS * ITERS + 1);
    free(text);
    json_t *c = command_json(RUN("runs", whole, "--compare", "2", "4", "--json"));
    assert_int_equal(json_array_size(json_object_get(c, "pairs")), 2);
    assert_int_equal(json_object_size(json_object_get(c, "config")), 0);
    assert_true(json_number_value(json_object_get(c, "mean_difference")) == 0);
    json_decref(c);
}

TEST(test_a_list_runs_nothing) {
    const char *out = scratch_path("listed");
    json_t *all = command_json(RUN("study", "--config", config, "--out", out, "--list", "--json"));
    assert_int_equal(json_integer_value(json_object_get(all, "runs")), RUNS);
    json_t *variant = json_array_get(json_object_get(all, "steps"), 1);
    assert_string_equal(json_string_value(json_object_get(variant, "repeats")), "2");
    assert_int_equal(json_integer_value(json_object_get(variant, "iters")), ITERS);
    assert_int_equal(json_integer_value(json_object_get(variant, "tokens")), ITERS * 2 * 16);
    json_decref(all);
    assert_int_not_equal(access(out, F_OK), 0);
}

static int make_whole(void **state) {
    (void)state;
    study_whole(config, whole, NULL);
    return 0;
}

RUN_TESTS(make_whole, scratch_teardown)

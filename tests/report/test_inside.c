/* What a run's record says beside its score, in the report: loss by position, the device's memory, what the
 * mechanisms do inside the model. Numbers expected here are worked out by hand, or are `weft inspect`'s, which
 * tests/inspect holds to a reference. */
#include "data/dataset.h"
#include "report/report.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void expect_in(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("'%s' is not in: %.6000s", words, text);
}

static void fact(sqlite3 *db, int64_t run, const char *name, double value) {
    study_sql(db, "INSERT INTO facts(run, name, value) VALUES (%lld, %Q, %g)", (long long)run, name,
              value);
}

/* Two variants with three seeds; the second's loss is lower at position 0 in every seed, and elsewhere higher in
 * one and lower in another. */
static sqlite3 *make_database(const char *folder) {
    static const double late[] = {0.1, -0.1, 0.03};
    assert_int_equal(mkdir(scratch_path("%s", folder), 0777), 0);
    sqlite3 *db = study_open(scratch_path("%s/runs.db", folder), folder, "val_loss");
    study_variant(db, 0, "base", "Plain", -1, -1);
    study_variant(db, 1, "gated", "Gated", 0, -1);
    for (int variant = 0; variant < 2; variant++)
        for (int seed = 1; seed <= 3; seed++) {
            int64_t run = study_run(db, variant, 1e-3, seed, 2 + 0.1 * seed, "w");
            fact(db, run, "loss_at_0_0", 6 + 0.1 * seed - 0.4 * variant);
            fact(db, run, "loss_at_1_3", 4 + variant * late[seed - 1]);
            fact(db, run, "device_bytes", (double)(seed + 1) * (1 << 30));
        }
    return db;
}

static void write_report(const char *folder, char **md, char **html) {
    if (weft_report_write(scratch_path("%s/runs.db", folder), scratch_path("%s", folder)) !=
        WEFT_OK)
        fail_msg("%s", weft_error_message());
    *md = file_read(scratch_path("%s/report.md", folder), NULL);
    *html = file_read(scratch_path("%s/report.html", folder), NULL);
}

TEST(test_the_loss_by_position_is_told_with_its_interval) {
    char *md, *html, *out;
    study_close(make_database("positions"));
    write_report("positions", &md, &html);
    expect_in(md, "## Loss by position");
    expect_in(md, "| variant | 0 | 1–3 |");
    expect_in(md, "| Plain | 6.2000 | 4.0000 |");
    expect_in(md, "| Gated | 5.8000 | 4.0100 |");
    /* No spread; and 0.01 ± 4.302653 · 0.101489 / √3. */
    expect_in(md, "| Gated against Plain | -0.4000 ");
    expect_in(md, "+0.0100 \\[-0.2421, +0.2621\\] |");
    expect_in(html, "Held-out loss by position in the sequence, the mean over seeds.");
    free(md);
    free(html);
    const char *folder = scratch_path("positions");
    command_succeeds(RUN("runs", folder, "--compare", "base", "gated"), &out);
    expect_in(out, "position 0");
    expect_in(out, "positions 1 to 3");
    expect_in(out, "       +0.01000  95% interval -0.24211 to +0.26211\n");
    expect_in(out, "gated against base: ");
    free(out);
    json_t *report = command_json(RUN("report", folder, "--json"));
    json_t *variant = json_array_get(
        json_object_get(json_array_get(json_object_get(report, "studies"), 0), "steps"), 1);
    json_t *first = json_array_get(json_object_get(variant, "loss_by_position"), 0);
    assert_float_equal(json_number_value(json_object_get(first, "loss")), 5.8, 1e-9);
    assert_true(json_is_null(json_object_get(variant, "inside")));
    json_decref(report);
}

TEST(test_memory_is_the_devices_by_its_own_count) {
    char *md, *html;
    sqlite3 *db = make_database("device");
    study_close(db);
    write_report("device", &md, &html);
    expect_in(md, "| GPU memory, by its own count |");
    /* The least of the seeds: others had company on the device. */
    expect_in(md, "| 2.0 GiB | 16.02k |");
    free(md);
    free(html);
    /* One run on the host: its process is what was measured. */
    study_change(scratch_path("device"),
                 "DELETE FROM facts WHERE run = 1 AND name = 'device_bytes'");
    write_report("device", &md, &html);
    expect_in(md, "| memory, measured peak |");
    free(md);
    free(html);
}

TEST(test_what_is_inside_is_shown_and_nothing_else) {
    char *md, *html;
    sqlite3 *db = make_database("inside");
    for (int run = 1; run <= 6; run++) {
        fact(db, run, "inside_entropy", run);
        fact(db, run, "inside_gradient attention", 0.5);
        fact(db, run, "inside_weight attention", 5);
        if (run > 3) fact(db, run, "inside_gate", 0.25);
    }
    study_sql(db, "INSERT INTO facts(run, name, value) VALUES (4, 'inside', %Q), (1, 'inside', %Q)",
              "{\"heads\":{\"gate\":[[0.25,0.75],[0.5,null]],\"evil<b>\":[[1]]},"
              "\"gates\":[[0,0.5,0.5],[null,null,null]],\"keys\":{\"width\":64,\"held\":[[0.5,1],"
              "[0.6,1]]}}",
              "{\"heads\":{\"gate\":[[0.25],[0.5,7]]},\"gates\":[[7],[0.5,1]],"
              "\"keys\":{\"width\":-3,\"held\":[[1]]}}");
    study_close(db);
    write_report("inside", &md, &html);
    expect_in(md, "| number | Plain | Gated |");
    expect_in(md, "| entropy: entropy of the weights, in nats | 2 | 5 |");
    expect_in(md, "| gate: gate, in the mean over tokens | – | 0.25 |");
    expect_in(md, "| attention | 0.5 (0.1) | 0.5 (0.1) |");
    expect_in(html, "gate: gate, in the mean over tokens; strongest colour = 1");
    expect_in(html, "histogram of the gates: each layer&#39;s share in each tenth of 0 to 1; "
                    "strongest colour = 0.5");
    expect_in(html, "keys&#39; latent");
    assert_null(strstr(html, "evil"));
    /* Rows of unequal length are no grid. */
    assert_null(strstr(html, "strongest colour = 7"));
    free(md);
    free(html);
}

TEST(test_what_was_stated_beforehand_stands_beside_what_became_of_it) {
    char *md, *html;
    sqlite3 *db = make_database("power");
    study_sql(db, "UPDATE study SET config = config || %Q", "\nSTUDY_SEEDS=3\nSTUDY_SPREAD=0.03");
    study_sql(db, "UPDATE runs SET score = score + 0.01 WHERE run = 4");
    study_close(db);
    write_report("power", &md, &html);
    /* 3.264 · 0.03; and the deviation of 0.01, 0, 0. */
    expect_in(
        md, "Stated beforehand: With 3 seeds, a true difference of 0.098 would be found 4 times in "
            "5, assuming that differences have a standard deviation of 0.03 from seed to "
            "seed. They had 0.0058.");
    free(md);
    free(html);
}

/* The sequences that evaluation begins with, as a file. */
static void write_held_out(const char *path, int64_t time, int64_t n) {
    weft_config c;
    weft_dataset *d;
    int32_t *tokens = calloc((size_t)(2 * n * time), sizeof *tokens);
    weft_config_defaults(&c);
    snprintf(c.dataset, sizeof c.dataset, "embedded");
    assert_non_null(tokens);
    assert_int_equal(weft_dataset_open(&c, &d), WEFT_OK);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(weft_dataset_fill(d, WEFT_SPLIT_VAL, 0, 0, (uint32_t)i, time,
                                           tokens + i * time, tokens + n * time, NULL),
                         WEFT_OK);
    weft_dataset_close(d);
    npy_write(path, 4, n, time, tokens);
    free(tokens);
}

static double mean_over_heads(const json_t *found, const char *name) {
    double sum = 0;
    int n = 0;
    size_t l, h;
    json_t *layer, *head;
    json_array_foreach(json_object_get(found, "layers"), l, layer) {
        json_array_foreach(json_object_get(layer, "heads"), h, head) {
            const json_t *value = json_object_get(head, name);
            if (json_is_number(value)) sum += json_number_value(value), n++;
        }
    }
    return sum / n;
}

static void same(double got, double want) {
    if (!(fabs(got - want) <= 1e-6 * fmax(1, fabs(want)))) fail_msg("%.9g, not %.9g", got, want);
}

/* Means over three seeds of each variant, in the order of the variants. */
TEST(test_generation_is_shown_by_variant) {
    char *md, *html;
    sqlite3 *db = make_database("decode");
    for (int run = 1; run <= 6; run++) {
        fact(db, run, "decode_tokens_per_s_1", 100 * run);
        fact(db, run, "decode_tokens_per_s_8", 1000 * run);
        fact(db, run, "decode_cache_bytes_per_token", run <= 3 ? 4096 : 512);
    }
    study_close(db);
    write_report("decode", &md, &html);
    expect_in(md, "## Generation");
    expect_in(md, "| number | Plain | Gated |");
    expect_in(md, "| tokens per second, one sequence | 200 | 500 |");
    expect_in(md, "| tokens per second, eight sequences | 2000 | 5000 |");
    expect_in(md, "| cache bytes per token | 4096 | 512 |");
    free(md);
    free(html);
    json_t *report = command_json(RUN("report", scratch_path("decode"), "--json"));
    json_t *variant = json_array_get(
        json_object_get(json_array_get(json_object_get(report, "studies"), 0), "steps"), 1);
    json_t *decode = json_object_get(variant, "decode");
    assert_true(json_number_value(json_object_get(decode, "tokens_per_s_1")) == 500);
    assert_true(json_is_null(json_object_get(variant, "inside")));
    json_decref(report);
}

TEST(test_a_run_with_eval_inside_records_what_inspect_finds) {
    const char *run = scratch_path("run"), *tokens = scratch_path("held-out.npy");
    command_succeeds(RUN("train", "--config", "defconfigs/demo", "--out", run, "-o",
                         "STUDY_VARIANTS=", "-o", "ATTENTION=mla", "-o", "N_LAYER=2", "-o",
                         "N_EMBD=16", "-o", "N_HEAD=2", "-o", "CONTEXT=32", "-o",
                         "RA_MLA_LATENT_DIM=8", "-o", "RA_MLA_MLP_ATTN_GATE=y", "-o", "DROPOUT=0.5",
                         "-o", "STEPS=2", "-o", "EVAL_INTERVAL=2", "-o", "EVAL_SAMPLES=1", "-o",
                         "EVAL_INSIDE=y", "-o", "EVAL_DECODE=y"),
                     NULL);
    json_t *trained = json_load_file(scratch_path("run/result.json"), 0, NULL);
    assert_non_null(trained);
    json_t *facts = json_object_get(trained, "facts");
    write_held_out(tokens, 32, 4);
    json_t *found = command_json(RUN("inspect", "--model", run, "--tokens", tokens, "--json"));
    same(json_number_value(json_object_get(facts, "inside_entropy")),
         mean_over_heads(found, "entropy"));
    same(json_number_value(json_object_get(facts, "inside_gate")), mean_over_heads(found, "gate"));
    const json_t *keys =
        json_object_get(json_array_get(json_object_get(found, "layers"), 0), "keys");
    const json_t *other =
        json_object_get(json_array_get(json_object_get(found, "layers"), 1), "keys");
    same(json_number_value(json_object_get(facts, "inside_keys_effective_rank")),
         (json_number_value(json_object_get(keys, "effective_rank")) +
          json_number_value(json_object_get(other, "effective_rank"))) /
             2);
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(found, "mechanisms"), i, part) {
        char name[96];
        snprintf(name, sizeof name, "inside_gradient %s",
                 json_string_value(json_object_get(part, "name")));
        same(json_number_value(json_object_get(facts, name)),
             json_number_value(json_object_get(part, "gradient_norm")));
    }
    assert_true(i > 3);
    assert_non_null(json_object_get(facts, "inside"));
    assert_true(json_number_value(json_object_get(facts, "decode_tokens_per_s_1")) > 0);
    assert_true(json_number_value(json_object_get(facts, "decode_tokens_per_s_8")) > 0);
    /* What the plan counts. */
    json_t *plan = command_json(RUN("plan", "--config", scratch_path("run/config"), "--json"));
    assert_true(json_equal(json_object_get(facts, "decode_cache_bytes_per_token"),
                           json_object_get(plan, "cache_bytes_per_token")));
    json_decref(plan);
    json_decref(found);
    json_decref(trained);
}

RUN_TESTS(scratch_setup, scratch_teardown)

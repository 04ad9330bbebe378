/* Runs that `weft train` made, without a study: listed, compared, exported and reported as a study's
 * are. */
#include "support/command.h"
#include "support/snapshot.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char runs[512];

static void train(const char *attention, const char *seed) {
    char out[640], option[64];
    snprintf(out, sizeof out, "%s/%s-seed%s", runs, attention, seed);
    snprintf(option, sizeof option, "ATTENTION=%s", attention);
    command_succeeds(RUN("train", "--config", scratch_path("config"), "--out", out, "--seed", seed,
                         "-o", option, "--threads", "1", "--peak-flops", "0"),
                     NULL);
}

static int make_runs(void **state) {
    (void)state;
    static const char config[] =
        "CONFIG_N_LAYER=1\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\n"
        "CONFIG_CONTEXT=16\nCONFIG_BATCH_SIZE=2\nCONFIG_STEPS=6\n"
        "CONFIG_EVAL_INTERVAL=3\nCONFIG_EVAL_SAMPLES=1\nCONFIG_SAVE_CHECKPOINT=n\n"
        "CONFIG_LOG_INTERVAL=1\nCONFIG_DEVICE=\"cpu\"\n";
    scratch_open();
    file_write(scratch_path("config"), config, sizeof config - 1);
    snprintf(runs, sizeof runs, "%s", scratch_path("runs"));
    train("dot", "1");
    train("dot", "2");
    train("w2", "1");
    train("w2", "2");
    return 0;
}

static int remove_runs(void **state) {
    (void)state;
    scratch_close();
    return 0;
}

static json_t *result_of(const char *run) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s/result.json", runs, run);
    json_t *result = json_load_file(path, 0, NULL);
    assert_non_null(result);
    return result;
}

/* Two variants of two seeds, with the losses that training said at its end. */
TEST(test_runs_are_listed) {
    static const char *const names[] = {"dot-seed1", "dot-seed2", "w2-seed1", "w2-seed2"};
    json_t *all = command_json(RUN("runs", runs, "--json"));
    const json_t *one = json_array_get(json_object_get(all, "studies"), 0);
    const json_t *variants = json_object_get(one, "steps"), *list = json_object_get(one, "runs");
    assert_int_equal(json_array_size(variants), 2);
    snapshot_expect_keys("runs.json", all);
    assert_string_equal(json_string_value(json_object_get(json_array_get(variants, 1), "name")),
                        "w2");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(variants, 1), "overrides")),
        "ATTENTION=w2");
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *run = json_array_get(list, i);
        json_t *result = result_of(names[i]);
        assert_true(json_number_value(json_object_get(run, "val_loss")) ==
                    json_number_value(json_object_get(result, "val_loss")));
        assert_int_equal(json_integer_value(json_object_get(run, "seed")), 1 + (int)i % 2);
        assert_string_equal(json_string_value(json_object_get(run, "status")), "done");
        json_decref(result);
    }
    json_decref(all);
}

TEST(test_runs_are_compared_seed_by_seed) {
    json_t *a = result_of("dot-seed2"), *b = result_of("w2-seed2");
    double difference = json_number_value(json_object_get(b, "val_loss")) -
                        json_number_value(json_object_get(a, "val_loss"));
    char number[64], *out;
    snprintf(number, sizeof number, "%+.5f\n", difference);
    command_succeeds(RUN("runs", runs, "--compare", "dot", "w2"), &out);
    if (!strstr(out, number)) fail_msg("no %s in %s", number, out);
    free(out);
    json_decref(a);
    json_decref(b);
}

TEST(test_runs_are_reported_and_exported) {
    static const char map[] = "{\"tokens\": [\"a\", \"b\"], \"layers\": [{\"layer\": 0, \"heads\":"
                              " [[[100], [25, 75]]]}]}";
    size_t n;
    file_write(scratch_path("runs/dot-seed1/attention.json"), map, sizeof map - 1);
    command_succeeds(RUN("report", runs, "--out", scratch_path(".")), NULL);
    char *page = file_read(scratch_path("report.md"), &n);
    assert_non_null(strstr(page, "w2"));
    assert_non_null(strstr(page, "What attention looks at"));
    free(page);
    shell_succeeds("mkdir -p '%s' && cp -r '%s' '%s'", scratch_path("above/deeper"),
                   scratch_path("runs/dot-seed1"), scratch_path("above/deeper"));
    command_succeeds(RUN("report", scratch_path("above"), "--out", scratch_path("above")), NULL);
    page = file_read(scratch_path("above/report.md"), &n);
    assert_non_null(strstr(page, "What attention looks at"));
    free(page);
    command_succeeds(RUN("runs", runs, "--metrics-csv", scratch_path("lines.csv")), NULL);
    char *lines = file_read(scratch_path("lines.csv"), &n);
    int count = 0;
    for (const char *at = lines; (at = strchr(at, '\n')); at++)
        count++;
    assert_int_equal(count, 1 + 4 * 6);
    free(lines);
    command_fails(2, RUN("runs", "docs"), SAYS("docs", "runs.db", "metrics.jsonl"));
}

TEST(test_runs_are_held_against_runs) {
    command_succeeds(RUN("runs", runs, "--diff", runs), NULL);
    shell_succeeds("cp -r '%s' '%s' && rm -r '%s'", runs, scratch_path("fewer"),
                   scratch_path("fewer/w2-seed2"));
    shell_succeeds("${WEFT:-build/weft} runs '%s' --diff '%s' | grep -q w2-seed2", runs,
                   scratch_path("fewer"));
}

/* One seed has no interval, and so no verdict; a loss on another text says nothing about this one. */
TEST(test_what_cannot_be_compared_is_said) {
    char *out;
    shell_succeeds("cp -r '%s' '%s' && rm -r '%s'", runs, scratch_path("few"),
                   scratch_path("few/w2-seed2"));
    shell_succeeds("sed -i 's/\"val_loss\": *[0-9]/\"val_loss\": 1/' '%s'/*/metrics.jsonl",
                   scratch_path("few")); /* as if they had learned something */
    command_succeeds(RUN("runs", scratch_path("few")), &out);
    assert_non_null(strstr(out, "against dot: one seed has no interval\n"));
    free(out);
    shell_succeeds("sed -i '/DATASET=/d' '%s' && echo 'CONFIG_DATASET=\"recall\"' >>'%s'",
                   scratch_path("few/w2-seed1/config"), scratch_path("few/w2-seed1/config"));
    command_succeeds(RUN("runs", scratch_path("few")), &out);
    assert_null(strstr(out, "against dot"));
    assert_non_null(strstr(out, "nothing to compare with\n"));
    free(out);
    command_succeeds(RUN("report", scratch_path("few"), "--out", scratch_path("few")), NULL);
}

/* They are gathered in a file without a name, which a kill does not leave; what is wrong with them is told of
 * the folder that was named. */
TEST(test_what_is_gathered_has_no_name) {
    const char *none = scratch_path("none"), *wrong = scratch_path("wrong");
    shell_succeeds("TMPDIR='%s' ${WEFT:-build/weft} runs '%s' >/dev/null", none, runs);
    shell_succeeds("TMPDIR='%s' ${WEFT:-build/weft} runs '%s' --diff '%s' >/dev/null", none, runs,
                   runs);
    shell_succeeds("cp -r '%s' '%s' && echo '{\"step\": -5}' >> '%s/dot-seed1/metrics.jsonl'", runs,
                   wrong, wrong);
    char start[700];
    snprintf(start, sizeof start, "weft runs: %s: in ", wrong);
    command_fails(2, RUN("runs", wrong), SAYS(start, "-5"));
}

/* A line of 600 MB, all of it a hole, before the last one: read in the memory that a line takes. */
TEST(test_long_lines_take_no_memory) {
    size_t n;
    shell_succeeds("cp -r '%s' '%s' && cd '%s' && mv metrics.jsonl all && head -n 5 all > "
                   "metrics.jsonl && truncate -s 600M metrics.jsonl && { echo; tail -n 1 all; } >> "
                   "metrics.jsonl",
                   runs, scratch_path("holes"), scratch_path("holes/dot-seed1"));
    shell_succeeds("ulimit -v 500000; ${WEFT:-build/weft} runs '%s' --metrics-csv '%s'",
                   scratch_path("holes"), scratch_path("holes.csv"));
    char *lines = file_read(scratch_path("holes.csv"), &n);
    int count = 0;
    for (const char *at = lines; (at = strchr(at, '\n')); at++)
        count++;
    assert_int_equal(count, 1 + 4 * 6);
    free(lines);
}

/* Not the first 4,096 as if they were all. */
TEST(test_more_runs_than_are_read_are_refused) {
    shell_succeeds(
        "mkdir '%s' && cd '%s' && seq 4097 | xargs mkdir && seq -f %%g/metrics.jsonl 4097 "
        "| xargs touch",
        scratch_path("many"), scratch_path("many"));
    command_fails(2, RUN("runs", scratch_path("many")), SAYS("many", "more runs", "4096"));
}

/* Nor is a folder of more variants than one listing holds said to be of another program. */
TEST(test_more_variants_than_are_listed_are_refused) {
    shell_succeeds("mkdir '%s' && cd '%s' && for n in $(seq 256); do mkdir $n && : > "
                   "$n/metrics.jsonl && echo CONFIG_STEPS=$n > $n/config; done",
                   scratch_path("variants"), scratch_path("variants"));
    command_succeeds(RUN("runs", scratch_path("variants")), NULL);
    shell_succeeds("cd '%s' && cp -r 1 257 && echo CONFIG_STEPS=257 > 257/config",
                   scratch_path("variants"));
    command_fails(2, RUN("runs", scratch_path("variants")),
                  SAYS("variants: its runs are of more variants", "256"));
}

/* By the package, where there is one. */
TEST(test_runs_are_handed_to_wandb) {
    char line[1400];
    const char *python = getenv("PYTHON");
    if (!python || !*python) python = "python3";
    snprintf(line, sizeof line, "'%s' -c 'import wandb' >/dev/null 2>&1", python);
    if (system(line) != 0) {
        printf("%s has no wandb\n", python);
        skip();
    }
    snprintf(line, sizeof line,
             "'%s' scripts/export --wandb --dir '%s' '%s' >/dev/null 2>&1 && ls "
             "'%s'/wandb/offline-run-*/*.wandb "
             ">/dev/null",
             python, scratch_path("."), runs, scratch_path("."));
    assert_int_equal(system(line), 0);
}

RUN_TESTS(make_runs, remove_runs)

/* scripts/evidence: every study that it names can be built at the size that it says, and runs from its first
 * variant to its report. The whole of each in its smallest form is run by `make test-long`. */
#include "base/text.h"
#include "support/command.h"
#include "support/study_run.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int runs; /* as the script's head says */
} studies[] = {{"longer", 3},       {"optim", 16},      {"tying", 15},       {"sparse", 15},
               {"latent", 18},      {"mix", 27},        {"ratio", 18},       {"long", 39},
               {"entailment", 15},  {"needle", 20},     {"mup", 48},         {"entailment-long", 9},
               {"needle-more", 42}, {"again", 15},      {"pilot", 16},       {"ladder-10m", 63},
               {"ladder-25m", 63},  {"cache-10m", 102}, {"winners-muon", 63}};
enum { STUDIES = sizeof studies / sizeof studies[0] };

/* The repository's root, from which the tests are run. */
static const char *weft(void) {
    static char path[600];
    char here[400];
    const char *program = getenv("WEFT");
    assert_non_null(program);
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s%s%s", *program == '/' ? "" : here, *program == '/' ? "" : "/",
             program);
    return path;
}

/* What a study would run; the caller frees it. */
static json_t *list_study(const char *name) {
    const char *out = scratch_path("list.json");
    shell_succeeds("WEFT='%s' DATA=embedded scripts/evidence %s --device cpu --threads 1 --list "
                   "--json >'%s' 2>/dev/null",
                   weft(), name, out);
    json_t *all = json_load_file(out, 0, NULL);
    assert_non_null(all);
    return all;
}

TEST(test_every_study_can_be_built_at_its_size) {
    for (int i = 0; i < STUDIES; i++) {
        json_t *all = list_study(studies[i].name), *variant;
        size_t k;
        if (json_integer_value(json_object_get(all, "runs")) != studies[i].runs)
            fail_msg("%s has %lld runs, not %d", studies[i].name,
                     (long long)json_integer_value(json_object_get(all, "runs")), studies[i].runs);
        /* Where variants are compared seed by seed, how small a difference that can show is said before the first run. */
        json_t *power = json_object_get(json_object_get(all, "power"), "difference");
        json_t *first = json_array_get(json_object_get(all, "steps"), 0);
        const char *compares =
            json_string_value(json_object_get(json_object_get(first, "config"), "study_compare"));
        if (json_integer_value(json_object_get(all, "seeds")) > 1 &&
            json_array_size(json_object_get(all, "steps")) > 1 && strcmp(compares, "best") == 0 &&
            !(json_number_value(power) > 0))
            fail_msg("%s does not say what its seeds can show", studies[i].name);
        json_array_foreach(json_object_get(all, "steps"), k, variant) {
            const char *error = json_string_value(json_object_get(variant, "error"));
            if (error) fail_msg("%s: %s", studies[i].name, error);
        }
        json_decref(all);
    }
}

/* Each writes the study's config, and reads a whole one. How long the study takes is measured, so told apart. */
TEST(test_studies_begun_at_once_read_whole_configs) {
    shell_succeeds(
        "at='%s'; for i in 1 2 3 4 5 6; do (WEFT='%s' DATA=embedded scripts/evidence optim "
        "--device cpu --list --json 2>/dev/null | grep -v '\"seconds\"' >\"$at.$i\") & done; wait; "
        "test -s \"$at.1\" || exit 1; "
        "for i in 2 3 4 5 6; do cmp \"$at.1\" \"$at.$i\" || exit 1; done",
        scratch_path("list"), weft());
}

static const json_t *variant_of(const json_t *all, const char *name) {
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(all, "steps"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, "variant")), name) == 0) return row;
    }
    fail_msg("there is no variant %s", name);
    return NULL;
}

static void expect_equal_within(double a, double b, double share) {
    if (!(a > b * (1 - share) && a < b * (1 + share))) fail_msg("%.9g is not %.9g", a, b);
}

static void expect_on_page(double number) {
    char *page = file_read("docs/results/questions.md", NULL);
    const char *text = weft_count_text((int64_t)number);
    if (!strstr(page, text)) fail_msg("docs/results/questions.md has no %s", text);
    free(page);
}

/* Of both rungs, of which the second is 2.5 times as large, as docs/results/questions.md has them: parameters, and
 * tokens, 20 for each; the operations of all-flops in all; and one set of variants. The picture of caches has the parameters of the first rung. */
TEST(test_the_rungs_are_equal_in_what_they_say) {
    static const char *const names[] = {"ladder-10m", "ladder-25m", "winners-muon", "cache-10m"};
    static const double millions[] = {10, 25, 10, 10};
    for (int i = 0; i < 4; i++) {
        json_t *all = list_study(names[i]);
        const json_t *row, *dot = variant_of(all, "dot");
        double parameters = real_of(dot, "parameters");
        size_t k;
        expect_equal_within(parameters, 1e6 * millions[i], 0.03);
        if (i < 2) expect_on_page(parameters);
        if (i < 2) expect_on_page(real_of(dot, "iters"));
        if (i < 2) expect_on_page(real_of(variant_of(all, "all-flops"), "iters"));
        json_array_foreach(json_object_get(all, "steps"), k, row) {
            expect_equal_within(real_of(row, "parameters"), parameters, 0.005);
            if (strcmp(json_string_value(json_object_get(row, "variant")), "all-flops") != 0)
                expect_equal_within(real_of(row, "tokens"), 20 * parameters, 0.005);
        }
        if (i < 3) {
            const json_t *mla = variant_of(all, "mla"), *less = variant_of(all, "all-flops");
            expect_equal_within(real_of(less, "tokens") * real_of(less, "flops_per_token"),
                                real_of(mla, "tokens") * real_of(mla, "flops_per_token"), 0.005);
            expect_equal_within(real_of(variant_of(all, "gqa"), "cache_bytes_per_token"),
                                real_of(mla, "cache_bytes_per_token"), 1e-9);
        }
        json_decref(all);
    }
    shell_succeeds("WEFT='%s' DATA=embedded scripts/evidence ladder-25m --device cpu --list "
                   "2>/dev/null | grep -q '^about 225 minutes on an H200'",
                   weft());
}

/* In a copy of what it reads, so that no run of a user's is touched. */
static void run_small(const char *words) {
    char name[64];
    assert_int_equal(sscanf(words, "%63s", name), 1);
    const char *root = scratch_path("root-%s", name);
    shell_succeeds(
        "mkdir -p '%s' && cp -r scripts defconfigs '%s' && WEFT='%s' DATA=embedded TRIM=y "
        "JOBS=2 '%s/scripts/evidence' %s --device cpu --threads 2 >'%s/log' 2>&1 || "
        "{ tail -n 5 '%s/log'; false; }",
        root, root, weft(), root, words, root, root);
}

TEST(test_a_study_runs_to_its_report) {
    run_small("optim");
    const char *folder = scratch_path("root-optim/runs/real-optim");
    assert_int_equal(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done'"), 10);
    assert_int_equal(study_number(folder, "SELECT count(*) FROM facts WHERE name = 'inside'"), 10);
    char *md = file_read(scratch_path("root-optim/runs/real-optim/report.md"), NULL);
    assert_non_null(strstr(md, "## Inside the models"));
    assert_non_null(strstr(md, "## Loss by position"));
    assert_non_null(strstr(md, "Stated beforehand: With 2 seeds"));
    free(md);
}

/* Before hours of a GPU are spent on a text: whether a tiny model can be trained on it, with its own vocabulary. */
TEST(test_a_text_is_tried_with_a_tiny_model) {
    const char *root = scratch_path("root-tried"), *log = scratch_path("log-tried");
    shell_succeeds("mkdir -p '%s' && cp -r scripts defconfigs '%s' && '%s' tokenize --out "
                   "'%s/data/all-docs' README.md >'%s' 2>&1",
                   root, root, weft(), root, log);
    shell_succeeds("WEFT='%s' TRIM=y '%s/scripts/evidence' pilot --device cpu --threads 1 >'%s' "
                   "2>&1 || { tail -n 5 '%s'; false; }",
                   weft(), root, log, log);
    const char *folder = scratch_path("root-tried/runs/real-pilot");
    assert_int_equal(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done' AND "
                                          "json_extract(config, '$.vocab_size') = 16384"),
                     4);
}

/* Minima of two steps are at an edge, so that rates are added; and MLA with an addition joins the study. */
TEST(test_a_rung_takes_the_chosen_addition) {
    run_small("ladder-10m --variants dot,gqa");
    shell_succeeds("WEFT='%s' DATA=embedded TRIM=y ADD=gate '%s/scripts/evidence' ladder-10m "
                   "--variants mla-gate --device cpu --threads 1 >'%s' 2>&1",
                   weft(), scratch_path("root-ladder-10m"), scratch_path("log-ladder"));
    const char *folder = scratch_path("root-ladder-10m/runs/real-ladder-10m");
    assert_int_equal(study_number(folder, "SELECT count(DISTINCT variant) FROM runs WHERE"
                                          " status = 'done'"),
                     3);
    assert_true(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done' AND"
                                     " variant = 7") >= 8);
}

/* A file of needle-long's, read; the caller frees it. */
static char *needle_file(const char *name) {
    return file_read(scratch_path("root-needle-long/runs/real-needle-long/%s", name), NULL);
}

/* The first logged loss of a stage. */
static double first_loss(const char *model, const char *stage) {
    char name[80];
    snprintf(name, sizeof name, "%s-%s/metrics.jsonl", model, stage);
    char *lines = needle_file(name);
    json_t *line = json_loads(lines, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(line);
    double loss = json_number_value(json_object_get(line, "loss"));
    json_decref(line);
    free(lines);
    return loss;
}

static void check_answers(const char *model, const char *length) {
    char name[80];
    snprintf(name, sizeof name, "%s-yarn-%s.json", model, length);
    char *text = needle_file(name);
    json_t *said = json_loads(text, 0, NULL), *cache = json_object_get(said, "cache");
    assert_int_equal(json_array_size(json_object_get(said, "needle")), 5);
    assert_true(json_integer_value(json_object_get(json_array_get(cache, 0), "bytes")) > 0);
    json_decref(said);
    free(text);
}

/* Whether a line of the table begins so. */
static void check_row(const char *model, const char *says) {
    char row[120], *table = needle_file("table.txt");
    snprintf(row, sizeof row, "\n%-18s%s", model, says);
    if (!strstr(table, row)) fail_msg("no line '%s' in\n%s", row + 1, table);
    free(table);
}

/* A stage goes on from the weights before it; the answers at each length are there with their cache;
 * whether and when the key was found is said; and the same command again does none of it twice. */
TEST(test_the_long_needle_has_stages_and_a_table) {
    const char *const models[] = {"dot", "w2", "mla", "mla-cross"};
    run_small("needle-long");
    for (int i = 0; i < 4; i++) {
        assert_true(first_loss(models[i], "160") < first_loss(models[i], "128") - 0.05);
        check_answers(models[i], "128");
        check_answers(models[i], "256");
        check_row(models[i], "   not found, 0.");
        char depths[40];
        snprintf(depths, sizeof depths, "%s, yarn, 256", models[i]);
        check_row(depths, "");
    }
    char *before = needle_file("w2.log");
    FILE *metrics =
        fopen(scratch_path("root-needle-long/runs/real-needle-long/w2-128/metrics.jsonl"), "a");
    assert_non_null(metrics);
    fprintf(metrics, "{\"step\":3,\"needle_accuracy\":0.95}\n{\"step\":4,\"loss\":1}\n"
                     "{\"step\":5,\"needle_accuracy\":1}\n");
    assert_int_equal(fclose(metrics), 0);
    run_small("needle-long");
    check_row("w2", "      step 3, 1.00   not found, 0.");
    char *after = needle_file("w2.log");
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* A folder for `healing`, with a program in weft's place whose training does `train`, a line of shell; it
 * returns the line that starts the script there. */
static const char *start_healing(const char *name, const char *train) {
    static char start[2000];
    char text[1000];
    const char *root = scratch_path("%s", name), *program = scratch_path("%s/weft", name);
    shell_succeeds("mkdir -p '%s/runs/real-again/runs/step3-lr1-seed1/last' && "
                   "touch '%s/runs/real-again/runs/step3-lr1-seed1/last/model.safetensors' && "
                   "cp -r scripts '%s'",
                   root, root, root);
    snprintf(text, sizeof text, "#!/bin/sh\n[ $1 = train ] || exit 0\ncd '%s'\n%s\n", root, train);
    file_write(program, text, strlen(text));
    snprintf(start, sizeof start,
             "cd '%s' && chmod +x weft && export WEFT='%s' TRIM=y; scripts/evidence healing", root,
             program);
    return start;
}

/* One model cannot begin; the other's rows are all there when the script ends. */
TEST(test_healing_waits_for_both_models) {
    const char *start = start_healing("one-fails", "sleep 0.2; echo '\"val_loss\": 1'");
    shell_succeeds("%s >log 2>&1; test $? = 1 && grep -q 'no weights of dot' log && "
                   "test $(grep -c '^step3' runs/real-healing/step3.tsv) = 4",
                   start);
}

/* What trains takes a while to end; the script is there until it has. */
TEST(test_healing_that_is_ended_leaves_no_process) {
    const char *start =
        start_healing("ended", "trap 'sleep 0.3; touch ended-$$; exit 1' TERM\n"
                               "touch begun-$$; while [ -d scripts ]; do sleep 0.02; done");
    shell_succeeds("cd '%s' && cp -r runs/real-again/runs/step3-lr1-seed1 "
                   "runs/real-again/runs/dot-lr1-seed1",
                   scratch_path("ended"));
    shell_succeeds("%s >log 2>&1 & script=$!; cd '%s'; "
                   "until [ $(ls | grep -c begun) = 2 ]; do sleep 0.02; done; kill $script; "
                   "wait $script; test $? = 1 -a $(ls | grep -c ended-) = 2",
                   start, scratch_path("ended"));
}

/* Two models are trained; each row has what the model loses by pruning, and what training gives back. */
TEST(test_pruned_models_are_healed) {
    const char *root = scratch_path("root-healing"), *log = scratch_path("log-healing");
    const char *const rows[] = {"dot\twhole\t-\t1\t",         "dot\theads\tstate\t0.5\t",
                                "dot\tffn\tstate\t0.5\t",     "step3\twhole\t-\t1\t",
                                "step3\theads\tstate\t0.5\t", "step3\tffn\tstate\t0.5\t",
                                "step3\tcross\tstate\t0.25\t"};
    char start[2000];
    snprintf(start, sizeof start,
             "cd '%s' && export WEFT='%s' DATA=embedded TRIM=y; scripts/evidence", root, weft());
    shell_succeeds("mkdir -p '%s' && cp -r scripts defconfigs '%s'", root, root);
    shell_succeeds("%s healing 2>'%s'; test $? = 1 && grep -q 'no weights of step3' '%s' && "
                   "grep -q 'no weights of dot' '%s'",
                   start, log, log, log);
    shell_succeeds("%s again --variants dot,step3 -o STUDY_WEIGHTS=first --device cpu --threads 1 "
                   ">'%s' 2>&1 || { tail -n 5 '%s'; false; }",
                   start, log, log);
    shell_succeeds("%s healing --device cpu --threads 1 >/dev/null 2>'%s'", start, log);
    char *table = file_read(scratch_path("root-healing/runs/real-healing/prune.tsv"), NULL);
    const char *at = table;
    long whole = 0;
    for (int i = 0; i < 7; i++) {
        long parameters = 0;
        double before = 0, after = 0;
        at = strstr(at, rows[i]);
        if (!at) fail_msg("no row '%s' in\n%s", rows[i], table);
        at += strlen(rows[i]);
        assert_int_equal(sscanf(at, "%ld %lf %lf", &parameters, &before, &after), 3);
        if (i == 0 || i == 3)
            whole = parameters;
        else
            assert_true(parameters < whole);
        assert_true(after < before && before < 7);
    }
    free(table);
}

TEST(test_all_of_them_run) {
    if (!getenv("WEFT_TEST_LONG")) {
        print_message("only with make test-long\n");
        skip();
    }
    for (int i = 0; i < STUDIES; i++)
        run_small(studies[i].name);
}

/* The committed database is of the committed config: what is done in it is not run again. */
TEST(test_the_study_at_124m_goes_on_from_its_database) {
    const char *root = scratch_path("root-large"), *log = scratch_path("log-large");
    shell_succeeds("mkdir -p '%s/docs/results' && cp -r scripts defconfigs '%s' && "
                   "cp -r docs/results/data docs/results/unpack '%s/docs/results' && "
                   "'%s' tokenize --out '%s/data/debian-docs' README.md >/dev/null 2>&1",
                   root, root, root, weft(), root);
    shell_succeeds("WEFT='%s' '%s/scripts/evidence' gpt2-real --variants dot,mla,step3 >'%s' 2>&1 "
                   "|| { tail -n 5 '%s'; false; }",
                   weft(), root, log, log);
    char *said = file_read(log, NULL);
    assert_non_null(strstr(said, "18 of 18 runs done"));
    free(said);
    const char *folder = scratch_path("root-large/runs/gpt2-real");
    assert_int_equal(access(scratch_path("root-large/runs/gpt2-real/runs"), F_OK), -1);
    assert_true(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done'") >= 21);
}

TEST(test_an_unknown_name_is_told) {
    shell_succeeds("scripts/evidence nothing 2>'%s'; test $? = 2", scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    assert_non_null(strstr(said, "there is no 'nothing'"));
    free(said);
}

RUN_TESTS(scratch_setup, scratch_teardown)

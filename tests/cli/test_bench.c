/* `weft bench`: every variant trains, the rows are there for people and programs, and the memory that
 * a training step takes is what the plan said. */
#include "bench/tables.h"
#include "support/command.h"
#include "support/snapshot.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY                                                                                       \
    "--threads", "2", "-o", "N_LAYER=2", "-o", "N_EMBD=32", "-o", "N_HEAD=4", "-o", "CONTEXT=16",  \
        "-o", "VOCAB_SIZE=64", "-o", "BATCH_SIZE=2", "-o", "RA_MLA_LATENT_DIM=16"

static const char *const variants[] = {"dot",
                                       "w2",
                                       "cosine",
                                       "mla",
                                       "mla+gate",
                                       "mla+gate+cross",
                                       "mla+gate+cross64",
                                       "mla+all",
                                       "swiglu",
                                       "wsffn",
                                       "wsffn-grouped",
                                       "mla-w2"};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

TEST(test_train_has_a_row_for_each_variant) {
    json_t *all = command_json(RUN("bench", "train", "--json", "--steps", "1", TINY));
    json_t *rows = json_object_get(all, "rows");
    assert_int_equal(json_array_size(rows), VARIANTS);
    for (size_t i = 0; i < VARIANTS; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "variant")), variants[i]);
        assert_true(real_of(row, "tokens_per_s") > 0);
        assert_true(real_of(row, "plan_bytes") > 0);
        assert_true(real_of(row, "gflops") > 0);
        assert_true(real_of(row, "of_limit") > 0);
        /* Tokens are random and so are weights: about log(64), whatever the variant. */
        double loss = json_number_value(json_array_get(json_object_get(row, "losses"), 0));
        assert_true(loss > 3.5 && loss < 5.5);
    }
    assert_int_equal((int)real_of(json_object_get(all, "shape"), "tokens"), 16);
    snapshot_expect_keys("bench-train.json", all);
    json_decref(all);
}

TEST(test_train_prints_the_rows_that_are_named) {
    WEFT_AUTO_FREE char *out = OUTPUT("bench", "train", "--variants", "mla+all,dot", "--steps", "2",
                                      "--settle", "0.05", TINY);
    const char *third = strstr(out, "\nmla + all, tied"), *dot = strstr(out, "\ndot + gelu");
    assert_non_null(third);
    assert_non_null(dot);
    assert_true(third < dot);
    assert_null(strstr(out, "w2 + gelu"));
    assert_non_null(strstr(out, "2 layers, 32 wide, 4 heads, 16 tokens × 2, vocabulary 64, f32"));
}

/* The same weights and tokens: the loss is nearly the same, and is not in all of its digits. */
TEST(test_train_runs_in_the_type_that_is_asked_for) {
    static const char *const types[] = {"f32", "bf16"};
    double losses[2];
    for (int i = 0; i < 2; i++) {
        WEFT_AUTO_DECREF json_t *all =
            command_json(RUN("bench", "train", "--json", "--variants", "dot", "--steps", "1",
                             "--dtype", types[i], TINY));
        const json_t *row = json_array_get(json_object_get(all, "rows"), 0);
        losses[i] = json_number_value(json_array_get(json_object_get(row, "losses"), 0));
        assert_string_equal(
            json_string_value(json_object_get(json_object_get(all, "shape"), "dtype")), types[i]);
    }
    assert_true(losses[0] != losses[1] && fabs(losses[0] - losses[1]) < 0.02);
}

TEST(test_train_tells_where_a_step_s_time_goes) {
    command_result r =
        command_run(RUN("bench", "train", "--variants", "dot", "--steps", "2", "--profile", TINY));
    if (r.status != 0) fail_msg("%s", r.err);
    /* The model's own: a step to warm up and two that are measured, of two layers. */
    assert_non_null(strstr(r.err, "profile: 3 runs of"));
    assert_non_null(strstr(r.err, "attention"));
    command_free(&r);
}

/* A config gives the sizes, the variant its own choices, an override wins over both. */
TEST(test_train_takes_a_config) {
    const char *path = scratch_path("sizes.config");
    config_write(path, "N_LAYER=1 N_EMBD=16 N_HEAD=2 CONTEXT=8 VOCAB_SIZE=32 BATCH_SIZE=4 "
                       "ATTENTION=dot KV_HEADS=1");
    json_t *all = command_json(RUN("bench", "train", "--json", "--steps", "1", "--config", path,
                                   "--variants", "w2", "-o", "VOCAB_SIZE=48"));
    const json_t *shape = json_object_get(all, "shape");
    assert_int_equal((int)real_of(shape, "batch"), 4);
    assert_int_equal((int)real_of(shape, "vocabulary"), 48);
    assert_int_equal(json_array_size(json_object_get(all, "rows")), 1);
    json_decref(all);
}

/* Whether memory can be measured here: a sanitizer and an emulator take some for themselves. */
static bool memory_is_our_own(void) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return false;
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#endif
    const char *runner = getenv("RUNNER");
    return !runner || !*runner;
}

/* The plan is exact; beside it a process takes little. Below some 200 MB that little would show. */
TEST(test_measured_memory_is_the_plan) {
    if (!memory_is_our_own()) {
        printf("memory is not measured under a sanitizer or a runner\n");
        skip();
    }
    WEFT_AUTO_DECREF json_t *all =
        command_json(RUN("bench", "train", "--json", "--steps", "1", "--threads", "2", "--variants",
                         "mla+all", "-o", "N_LAYER=3", "-o", "BATCH_SIZE=8", "-o", "CONTEXT=128",
                         "-o", "N_EMBD=384", "-o", "VOCAB_SIZE=4096"));
    const json_t *row = json_array_get(json_object_get(all, "rows"), 0);
    assert_true(real_of(row, "plan_bytes") >= 200e6);
    const json_t *measured = json_object_get(row, "peak_of_plan");
    bool told = json_is_number(measured);
    double ratio = json_number_value(measured);
    if (!told) {
        printf("the system does not tell a process's peak\n");
        skip();
    }
    if (ratio < 0.98 || ratio > 1.02) fail_msg("the measured peak is %.4f of the plan", ratio);
}

TEST(test_a_peer_that_is_not_there_is_no_failure) {
    command_result r = command_run(
        RUN("bench", "train", "--variants", "dot", "--steps", "1", "--peer", "exit 1", TINY));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "no peer: exit 1: the peer is gone"));
    assert_non_null(strstr(r.out, "its columns say -"));
    command_free(&r);
}

/* A peer whose losses are not ours computes something else: its time means nothing. */
TEST(test_a_peer_with_another_loss_fails) {
    const char *path = scratch_path("peer.sh");
    static const char text[] = "while read -r line; do\n"
                               "  case $line in\n"
                               "  *hello*) echo '{\"name\": \"someone\"}' ;;\n"
                               "  *prepare*) echo '{\"losses\": [9.5, 9.5], \"form\": \"f\"}' ;;\n"
                               "  *run*) echo '{\"seconds\": [2]}' ;;\n"
                               "  *) echo '{}' ;;\n"
                               "  esac\n"
                               "done\n";
    file_write(path, text, sizeof text - 1);
    command_result r = command_run(RUN("bench", "train", "--variants", "dot", "--steps", "1",
                                       "--peer", format_text("sh %s", path), TINY));
    if (r.status != 1) fail_msg("it ended on %d: %s%s", r.status, r.err, r.out);
    assert_non_null(strstr(r.err, "dot: the peer computes another function"));
    assert_non_null(strstr(r.out, "peer: someone, as many threads"));
    command_free(&r);
}

/* It ends in its first row, where it may compile. That row gets its numbers from another one that may
 * not, and the next row one that may again. */
TEST(test_a_peer_that_dies_is_started_again) {
    WEFT_AUTO_DECREF json_t *plain = command_json(
        RUN("bench", "train", "--json", "--variants", "dot", "--steps", "2", "--seed", "3", TINY));
    const json_t *first = json_array_get(json_object_get(plain, "rows"), 0);
    WEFT_AUTO_FREE char *losses = json_dumps(json_object_get(first, "losses"), 0);
    const char *mark = scratch_path("died"), *path = scratch_path("dying.sh");
    const char *text = format_text(
        "while read -r line; do\n"
        "  case $line in\n"
        "  *hello*) echo '{\"name\": \"someone\"}' ;;\n"
        "  *prepare*)\n"
        "    form=${line##*eager\\\":}\n"
        "    [ -e '%s' ] || { : >'%s'; kill -ABRT $$; }\n"
        "    echo \"{\\\"losses\\\": %s, \\\"form\\\": \\\"eager=${form%%%%?}\\\"}\" ;;\n"
        "  *run*) echo '{\"seconds\": [2]}' ;;\n"
        "  *) echo '{}' ;;\n"
        "  esac\n"
        "done\n",
        mark, mark, losses);
    file_write(path, text, strlen(text));
    command_result r = command_run(RUN("bench", "train", "--variants", "dot,dot", "--steps", "1",
                                       "--seed", "3", "--peer", format_text("sh %s", path), TINY));
    if (r.status != 0) fail_msg("it ended on %d: %s%s", r.status, r.err, r.out);
    assert_non_null(strstr(r.err, "dot: the peer is gone; once more, with nothing compiled"));
    const char *again = strstr(r.out, "eager=true"), *next = strstr(r.out, "eager=false");
    if (!again || !next || next < again) fail_msg("%s", r.out);
    command_free(&r);
}

/* Each row is measured in a process of its own, which would have years to go. */
TEST(test_a_row_ends_with_the_benchmark) {
    pid_t bench =
        train_start(RUN("bench", "train", "--steps", "99999", TINY), scratch_path("err"), 0);
    pid_t row = study_child(bench);
    kill(bench, SIGTERM);
    assert_int_equal(train_wait(bench), -SIGTERM);
    for (int i = 0; row > 0 && i < 3000 * command_patience() && kill(row, 0) == 0; i++)
        pause_ms(10);
    if (row > 0 && kill(row, SIGKILL) == 0) fail_msg("the row's process goes on");
}

TEST(test_wrong_use_is_one_line) {
    FAILS(2, SAYS("train, decode, attention or serve"), "bench");
    FAILS(2, SAYS("decode takes no", "--quick", "help"), "bench", "decode", "--quick");
    FAILS(2, SAYS("--contexts"), "bench", "decode", "--contexts", "many");
    FAILS(2, SAYS("--prompt"), "bench", "decode", "--prompt", "-1");
    FAILS(2, SAYS("decode's"), "bench", "train", "--contexts", "64");
    FAILS(2, SAYS("'dance'", "decode, attention and serve"), "bench", "dance");
    FAILS(2, SAYS("'w3'", "wsffn-grouped"), "bench", "train", "--variants", "dot,w3");
    FAILS(2, SAYS("--variants", "''"), "bench", "train", "--variants", "dot,");
    FAILS(2, SAYS("--steps"), "bench", "train", "--steps", "0");
    FAILS(2, SAYS("--settle"), "bench", "train", "--settle", "-1");
    FAILS(2, SAYS("--settle"), "bench", "train", "--settle", "soon");
    FAILS(2, SAYS("--variants"), "bench", "train", "--step", "3");
    FAILS(2, SAYS("gpt2-124m"), "bench", "train", "--shape", "huge");
    FAILS(2, SAYS("--quick"), "bench", "train", "--quick");
    FAILS(2, SAYS("N_HEAD"), "bench", "train", "-o", "N_HEAD=7");
    FAILS(2, SAYS("nowhere"), "bench", "train", "--config", "nowhere");
    FAILS(2, SAYS("--rows"), "bench", "decode", "--grid", "--shape", "small");
    FAILS(2, SAYS("--grid"), "bench", "decode", "--rows", "dot");
    FAILS(2, SAYS("'llama'", "on a CPU"), "bench", "decode", "--grid", "--rows", "llama");
    FAILS(2, SAYS("decode's"), "bench", "train", "--grid");
    FAILS(2, SAYS("--minutes"), "bench", "decode", "--grid", "--minutes", "soon");
    FAILS(2, SAYS("attention takes"), "bench", "attention", "--steps", "1");
}

TEST(test_decode_has_a_row_for_each_context_and_batch) {
    WEFT_AUTO_FREE char *out = OUTPUT("bench", "decode", "--shape", "small", "--variants",
                                      "dot,mla", "--contexts", "32,300", "--batches", "1,3",
                                      "--steps", "1", "--threads", "1", "--prompt", "40", "--json");
    json_t *all = json_loads(out, 0, NULL), *rows = json_object_get(all, "rows");
    assert_int_equal(json_array_size(rows), 2 * 2 * 2);
    const json_t *row = json_array_get(rows, 3);
    assert_string_equal(json_string_value(json_object_get(row, "variant")), "dot");
    assert_int_equal(json_integer_value(json_object_get(row, "context")), 300);
    assert_int_equal(json_integer_value(json_object_get(row, "batch")), 3);
    assert_int_equal(json_integer_value(json_object_get(row, "cache_bytes_per_token")),
                     6 * 2 * 256 * 4);
    assert_int_equal(json_integer_value(json_object_get(row, "cache_bytes")),
                     3 * 300 * 6 * 2 * 256 * 4);
    assert_true(json_number_value(json_object_get(row, "tokens_per_s")) > 0);
    assert_true(json_number_value(json_object_get(json_array_get(rows, 0), "first_token_seconds")) >
                0);
    snapshot_expect_keys("bench-decode.json", all);
    json_decref(all);
}

#define GRID "bench", "decode", "--grid", "--steps", "1", TINY

/* A peer that takes a second for each row, and keeps what it was told of all of them at the beginning. */
static json_t *run_grid(const char *word, json_t **told) {
    const char *path = scratch_path("grid.sh"), *kept = scratch_path("told");
    const char *text = format_text("while read -r line; do\n"
                                   "  case $line in\n"
                                   "  *hello*) echo '{\"name\": \"someone\"}' ;;\n"
                                   "  *prepare*) printf '%%s' \"$line\" >'%s'; echo '{}' ;;\n"
                                   "  *) echo '{\"seconds\": 1}' ;;\n"
                                   "  esac\n"
                                   "done\n",
                                   kept);
    file_write(path, text, strlen(text));
    command_result r =
        command_run(RUN(GRID, "--json", "--rows", word, "--peer", format_text("sh %s", path)));
    if (r.status != 0) fail_msg("it ended on %d: %s", r.status, r.err);
    assert_non_null(strstr(r.err, "geometric mean")); /* the table, for people */
    json_t *all = json_loads(r.out, 0, NULL);
    *told = json_load_file(kept, 0, NULL);
    command_free(&r);
    return all;
}

TEST(test_a_grid_has_rows_of_several_models_and_their_mean) {
    WEFT_AUTO_DECREF json_t *told = NULL;
    WEFT_AUTO_DECREF json_t *all = run_grid("dot", &told);
    static const struct {
        const char *name, *model;
        int heads, batch;
    } expected[] = {{"gpt2-124m, dot, context 1024, batch 1", "gpt2-124m", 4, 1},
                    {"gpt2-124m, dot, context 1024, batch 8", "gpt2-124m", 4, 8},
                    {"gpt2-124m N_HEAD=6, dot, context 1024, batch 1", "gpt2-124m N_HEAD=6", 4, 1}};
    const json_t *rows = json_object_get(all, "rows"), *of_peer = json_object_get(told, "rows"),
                 *summary = json_object_get(all, "summary");
    assert_int_equal(json_array_size(rows), 3);
    assert_int_equal(json_array_size(of_peer), 3);
    double logs = 0, ones = 0, worst = 1e300;
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i), *request = json_array_get(of_peer, i);
        assert_string_equal(json_string_value(json_object_get(row, "name")), expected[i].name);
        assert_string_equal(json_string_value(json_object_get(row, "model")), expected[i].model);
        assert_int_equal((int)real_of(request, "batch"), expected[i].batch);
        assert_int_equal((int)real_of(json_object_get(request, "config"), "n_embd"), 32);
        double ratio = 1 / real_of(row, "seconds");
        assert_true(fabs(real_of(row, "ratio") / ratio - 1) < 1e-4);
        logs += log(ratio) / 3;
        ones += expected[i].batch == 1 ? log(ratio) / 2 : 0;
        worst = ratio < worst ? ratio : worst;
    }
    assert_true(fabs(real_of(summary, "geometric_mean") / exp(logs) - 1) < 1e-4);
    assert_true(fabs(real_of(summary, "one_sequence") / exp(ones) - 1) < 1e-4);
    assert_true(json_is_null(json_object_get(summary, "64_sequences")));
    assert_true(fabs(real_of(summary, "worst_ratio") / worst - 1) < 1e-4);
    assert_int_equal((int)real_of(summary, "below_1"), 0);
}

/* No row would end in time. What was left out is no failure: it was asked for. */
TEST(test_a_grid_ends_in_the_minutes_that_it_has) {
    command_result r = command_run(RUN(GRID, "--json", "--minutes", "1e-6", "--rows", "batch 8"));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "gpt2-124m, mla, context 1024, batch 8: left out, the minutes"));
    WEFT_AUTO_DECREF json_t *all = json_loads(r.out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(all, "rows")), 0);
    assert_int_equal(json_array_size(json_object_get(all, "left_out")), 2);
    command_free(&r);
}

/* The whole grid, which a GPU measures. */
TEST(test_the_grid_has_each_model_variant_batch_and_context) {
    static const char *const words[] = {"gpt2-124m,",
                                        "gpt2-355m,",
                                        "gpt2-1558m,",
                                        "llama-1b,",
                                        " dot,",
                                        " w2,",
                                        " mla,",
                                        " mla+gate,",
                                        " mla+all,",
                                        " wsffn,",
                                        " mla+gate+cross,",
                                        " wsffn-grouped,",
                                        " mla+gate+cross64,",
                                        "batch 1",
                                        "batch 8",
                                        "batch 64",
                                        "batch 256",
                                        "context 1024,",
                                        "context 8192,",
                                        "context 32768,"};
    bench_options o = {.cuda = true};
    bench_decode_row *rows = calloc(BENCH_GRID_MAX, sizeof *rows);
    char name[BENCH_ROW_NAME], found[BENCH_GRID_MAX][BENCH_ROW_NAME];
    int n;
    assert_int_equal(bench_grid_list(&o, rows, &n), WEFT_OK);
    assert_in_range(n, 40, BENCH_GRID_MAX);
    for (int i = 0; i < n; i++) {
        strcpy(found[i], bench_row_name(rows + i, name));
        for (int k = 0; k < i; k++)
            if (strcmp(found[k], found[i]) == 0) fail_msg("%s stands there twice", found[i]);
        assert_int_equal(rows[i].config.dtype, WEFT_CONFIG_BF16);
        assert_true(rows[i].config.context >= rows[i].context);
        if (i && bench_row_same_model(rows + i - 1, rows + i))
            assert_int_equal(rows[i].config.context, rows[i - 1].config.context);
    }
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        o.rows = words[w];
        if (bench_grid_list(&o, rows, &n) != WEFT_OK) fail_msg("no row has '%s'", words[w]);
    }
    free(rows);
}

/* What the first row of a variant says that decoding ran in, and of its bytes. The variant is asked for by
 * an old name. */
static void check_decode(const char *option, const char *value, const char *dtype, int64_t bytes) {
    WEFT_AUTO_FREE char *out = OUTPUT("bench", "decode", "--shape", "small", "--variants", "step3",
                                      "--contexts", "32", "--batches", "1", "--steps", "1",
                                      "--threads", "1", "--prompt", "0", "--json", option, value);
    WEFT_AUTO_DECREF json_t *all = json_loads(out, 0, NULL);
    const json_t *row = json_array_get(json_object_get(all, "rows"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "dtype")), dtype);
    assert_string_equal(json_string_value(json_object_get(row, "variant")), "mla+all");
    int64_t weights = json_integer_value(json_object_get(row, "weight_bytes"));
    static int64_t wide;
    if (bytes == 4) wide = weights;
    /* Within a percent. */
    double part = (double)weights / (double)wide;
    assert_true(fabs(part - (double)bytes / 4) < 0.01);
}

TEST(test_decode_runs_in_the_type_that_is_asked_for) {
    check_decode("--dtype", "f32", "f32", 4);
    check_decode("--dtype", "bf16", "bf16", 2);
    check_decode("-o", "DTYPE=bf16", "bf16", 2);
    FAILS(2, SAYS("--dtype", "fp8"), "bench", "decode", "--json", "--dtype", "fp8");
}

/* Two texts, greedy and drawn, of which the command itself checks that they are the plain ones. */
TEST(test_decode_says_what_drafts_are_worth) {
    const char *model = scratch_path("model");
    const char *text = scratch_path("text");
    file_write(text, "to be or not to be, that is to be or not to be", 46);
    SUCCEEDS("init", "--out", model, "-o", "N_LAYER=1", "-o", "N_EMBD=32", "-o", "N_HEAD=4", "-o",
             "CONTEXT=96", "-o", "VOCAB_SIZE=256");
    const char *const ways[] = {"ngram", model};
    for (int w = 0; w < 2; w++) {
        json_t *all = command_json(RUN("bench", "decode", "--model", model, "--speculate", ways[w],
                                       "--text", text, "--threads", "1", "--json"));
        const json_t *rows = json_object_get(all, "rows");
        assert_int_equal(json_array_size(rows), 4);
        for (size_t i = 0; i < 4; i++) {
            const json_t *row = json_array_get(rows, i);
            assert_string_equal(json_string_value(json_object_get(row, "text")),
                                i < 2 ? "trained on" : "other");
            double drafted = real_of(row, "drafted_tokens"),
                   right = real_of(row, "accepted_tokens"),
                   steps = 4 * 63 - right; /* behind 32 tokens, without the prompt's own */
            assert_true(right <= drafted && (w == 0 || right == drafted));
            assert_true(fabs(real_of(row, "tokens_per_step") - 4 * 63 / steps) < 1e-4);
            assert_true(fabs(real_of(row, "gain") * real_of(row, "plain_tokens_per_s") -
                             real_of(row, "tokens_per_s")) < 1e-3 * real_of(row, "tokens_per_s"));
        }
        assert_int_equal(json_object_size(json_object_get(all, "step_seconds")), 5);
        json_decref(all);
    }
    FAILS(2, SAYS("--model"), "bench", "decode", "--speculate", "ngram");
    FAILS(2, SAYS("--speculate"), "bench", "decode", "--model", model);
    FAILS(2, SAYS("decode"), "bench", "train", "--speculate", "ngram");
    FAILS(2, SAYS("--speculate takes"), "bench", "decode", "--speculate", "ngram", "--model", model,
          "--shape", "small");
    FAILS(2, SAYS("--speculate takes"), "bench", "decode", "--speculate", "ngram", "--model", model,
          "--grid");
    file_write(text, "short", 5);
    FAILS(2, SAYS("5 tokens", "longer"), "bench", "decode", "--speculate", "ngram", "--model",
          model, "--text", text, "--json");
}

RUN_TESTS(scratch_setup, scratch_teardown)

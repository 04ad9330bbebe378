/* `weft plan`: the counts of the RA-MLA write-up's table, the order in which settings win, the keys of JSON. */
#include "support/command.h"
#include "support/snapshot.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static long long parameters(const char *const *arguments) {
    WEFT_AUTO_DECREF json_t *object = command_json(arguments);
    long long count = integer_of(object, "parameters");
    return count;
}

#define SMALL                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=50", "-o",           \
        "CONTEXT=8", "-o", "BATCH_SIZE=2", "-o", "RA_MLA_LATENT_DIM=8"

static void expect_keys(const json_t *object) {
    long long sum = 0;
    const char *name;
    json_t *value;
    json_t *parts = json_object_get(object, "parts");
    assert_true(json_is_object(parts));
    json_object_foreach(parts, name, value) {
        assert_true(json_is_integer(value));
        sum += json_integer_value(value);
    }
    assert_int_equal(sum, integer_of(object, "parameters"));
    assert_true(real_of(object, "flops_per_token") > 0);
    double forward = 0;
    json_object_foreach(json_object_get(object, "forward_flops_parts"), name, value) {
        forward += json_real_value(value);
    }
    assert_true(fabs(forward - real_of(object, "forward_flops_per_token")) < 1e-6 * forward);
    assert_true(integer_of(object, "training_bytes") > 4 * sum);
    assert_true(integer_of(object, "cache_bytes_per_token") > 0);
}

TEST(test_json_has_the_promised_keys) {
    WEFT_AUTO_DECREF json_t *object = command_json(RUN("plan", "--json", SMALL));
    expect_keys(object);
    assert_null(json_object_get(object, "steps"));
    assert_int_equal(integer_of(object, "cache_bytes_per_token"), 2 * 2 * 16 * 4);
    WEFT_AUTO_FREE char *table = OUTPUT("plan", SMALL);
    assert_non_null(strstr(table, "parameters"));
    assert_non_null(strstr(table, "\n    head "));
    assert_non_null(
        strstr(table, "attention : feed-forward   1 : 1.96")); /* 4E² + 4E to 8E² + 5E */
    assert_null(strstr(table, "reciprocal"));
}

/* Which kernels a GPU would run: said without one, and in a build without CUDA. */
/* The cross-token path of full rank is named beside what it takes with a low one, and not where that is no less. */
TEST(test_a_smaller_cache_is_named) {
    const char *const cross[] = {"RA_MLA_MLP_CROSS_TOKEN=y", "RA_MLA_MLP_CROSS_TOKEN=n",
                                 "RA_MLA_MLP_CROSS_TOKEN=y N_EMBD=48 N_HEAD=4"};
    for (int i = 0; i < 3; i++) {
        const char *config = scratch_path("cross.config");
        config_write(
            config,
            format_text("ATTENTION=mla N_LAYER=2 N_EMBD=256 N_HEAD=4 RA_MLA_LATENT_DIM=32 %s",
                        cross[i]));
        WEFT_AUTO_FREE char *table = OUTPUT("plan", "--config", config, "--device", "cpu");
        /* two latents of 32 and 256 numbers of h behind the maps, or 64, of 4 bytes in 2 layers */
        assert_true(!strstr(table, "2,560 bytes\n") == (i > 0));
        assert_true(!strstr(table, "1,024 bytes, by RA_MLA_MLP_CROSS_RANK=64\n") == (i > 0));
    }
}

TEST(test_kernels_of_the_gpu) {
    char *table;
    command_succeeds(RUN("plan", SMALL, "--device", "cuda", "-o", "DTYPE=bf16"), &table);
    assert_non_null(strstr(table, "0 to 1  runs on the tensor cores"));
    free(table);
    command_succeeds(
        RUN("plan", SMALL, "--device", "cuda", "-o", "DTYPE=bf16", "-o", "HEAD_DIM=264"), &table);
    assert_non_null(strstr(table, "HEAD_DIM 264: runs by the plain kernel"));
    assert_non_null(strstr(table, "256 is fast"));
    free(table);
    json_t *object = command_json(RUN("plan", "--json", SMALL, "--device", "cuda"));
    json_t *row = json_array_get(json_object_get(object, "kernels"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "operation")), "attention");
    assert_string_equal(json_string_value(json_object_get(row, "option")), "DTYPE f32");
    assert_int_equal(integer_of(row, "last_layer"), 1);
    json_decref(object);
    object = command_json(RUN("plan", "--json", SMALL, "--device", "cpu"));
    assert_null(json_object_get(object, "kernels"));
    json_decref(object);
}

static const long long UNTIED[6] = {115001856, 117370368, 230616576,
                                    240250368, 230616576, 240250368};

TEST(test_each_step_has_the_write_ups_count) {
    for (int step = 0; step < 6; step++) {
        const char *number = format_text("%d", step);
        const char *word = format_text("--ra-mla-ablation-step=%d", step);
        json_t *one = command_json(RUN("plan", "--json", "-o", "ATTENTION=mla", "-o",
                                       "RA_MLA_MLP_TYING_MODE=untied", "--variant", number));
        json_t *other = command_json(RUN("plan", "--json", "-o", "ATTENTION=mla", "-o",
                                         "CONFIG_RA_MLA_MLP_TYING_MODE=\"untied\"", word));
        assert_int_equal(integer_of(one, "parameters"), UNTIED[step]);
        assert_true(json_equal(one, other));
        json_decref(other);
        other = command_json(RUN("plan", "--json", "-o", "ATTENTION=mla", "-o",
                                 "RA_MLA_MLP_TYING_MODE=untied", "--step", number));
        assert_true(json_equal(one, other));
        json_decref(one);
        json_decref(other);
    }
    assert_int_equal(parameters(RUN("plan", "--json", "-o", "ATTENTION=mla", "--variant", "3")),
                     235335168);
}

TEST(test_a_study_gives_all_its_steps) {
    const char *path = scratch_path("study.config");
    const char *text = "CONFIG_ATTENTION=\"mla\"\nCONFIG_RA_MLA_MLP_TYING_MODE=\"untied\"\n"
                       "CONFIG_RA_MLA_MLP_ATTN_GATE=y\n"
                       "CONFIG_RA_MLA_ABLATION_STEPS=\"0,1,2,3\"\n";
    file_write(path, text, strlen(text));
    WEFT_AUTO_DECREF json_t *object = command_json(RUN("plan", "--json", "--config", path));
    json_t *steps = json_object_get(object, "steps");
    assert_int_equal(json_array_size(steps), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *step = json_array_get(steps, i);
        expect_keys(step);
        assert_int_equal(integer_of(step, "step"), (long long)i);
        assert_string_equal(json_string_value(json_object_get(step, "variant")),
                            ((const char *[]){"0", "1", "2", "3"})[i]);
        assert_int_equal(integer_of(step, "parameters"), UNTIED[i]);
    }
    /* The study itself is its step 0, though its file switches the gate on. */
    assert_int_equal(integer_of(object, "parameters"), UNTIED[0]);
    assert_int_equal(parameters(RUN("plan", "--json", "--config", path, "--variant", "1")),
                     UNTIED[1]);
}

TEST(test_bad_steps_of_a_study_are_refused) {
    static const char *const bad[] = {"0,6", "0,,1", "one", "-1", "0;1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *key = format_text("RA_MLA_ABLATION_STEPS=%s", bad[i]);
        FAILS(2, SAYS("ABLATION_STEPS", bad[i], "0 to 5"), "plan", SMALL, "-o", key);
    }
    /* One step is impossible without a latent: nothing of the others is printed. */
    FAILS(2, SAYS("LATENT_RECIP", "mla"), "plan", SMALL, "-o", "RA_MLA_ABLATION_STEPS=0,1,3");
}

/* Later wins: default, file, step, override. */
TEST(test_overrides_win_over_step_and_file) {
    const char *path = scratch_path("order.config");
    const char *text = "CONFIG_N_LAYER=3\n# CONFIG_RA_MLA_MLP_ATTN_GATE is not set\n";
    file_write(path, text, strlen(text));
    long long file = parameters(RUN("plan", "--json", SMALL, "-o", "N_LAYER=3"));
    long long plain = parameters(RUN("plan", "--json", SMALL));
    long long gated = parameters(RUN("plan", "--json", SMALL, "--variant", "1"));
    assert_true(file > plain && gated > plain);
    assert_int_equal(parameters(RUN("plan", "--json", "--config", path, "-o", "N_EMBD=16", "-o",
                                    "N_HEAD=2", "-o", "VOCAB_SIZE=50", "-o", "CONTEXT=8")),
                     file);
    assert_int_equal(parameters(RUN("plan", "--json", "--config", path, SMALL)), plain);
    assert_int_equal(parameters(RUN("plan", "--json", "--config", path, "--variant", "1", SMALL)),
                     gated);
    assert_int_equal(
        parameters(RUN("plan", "--json", SMALL, "-o", "RA_MLA_MLP_ATTN_GATE=n", "--variant", "1")),
        plain);
    /* The last of two, and a step inside a study. */
    assert_int_equal(parameters(RUN("plan", "--json", SMALL, "-o", "N_LAYER=5", "-o", "n_layer=2")),
                     plain);
    json_t *object = command_json(RUN("plan", "--json", SMALL, "-o", "RA_MLA_MLP_ATTN_GATE=n", "-o",
                                      "RA_MLA_ABLATION_STEPS=0,1"));
    json_t *steps = json_object_get(object, "steps");
    assert_int_equal(integer_of(json_array_get(steps, 1), "parameters"), plain);
    json_decref(object);
}

TEST(test_types_size_the_plan) {
    WEFT_AUTO_DECREF json_t *wide = command_json(RUN("plan", "--json", SMALL, "--dtype", "f64"));
    WEFT_AUTO_DECREF json_t *narrow = command_json(RUN("plan", "--json", SMALL, "--dtype", "bf16"));
    assert_int_equal(integer_of(wide, "cache_bytes_per_token"), 2 * 2 * 16 * 8);
    assert_int_equal(integer_of(narrow, "cache_bytes_per_token"), 2 * 2 * 16 * 2);
    assert_int_equal(integer_of(wide, "parameters"), integer_of(narrow, "parameters"));
}

/* Sizes at the edge of what a config takes: a plan or a line, never a crash. */
/* make test hides the GPU, so the numbers are those that are assumed where there is none. */
TEST(test_a_plan_for_the_gpu_needs_none) {
    json_t *object = command_json(RUN("plan", "--json", SMALL, "--device", "cuda"));
#ifdef WEFT_HAVE_CUDA
    json_t *device = json_object_get(object, "device");
    assert_string_equal(json_string_value(json_object_get(device, "name")), "cuda");
    assert_true(integer_of(device, "needed_bytes") >= integer_of(object, "training_bytes"));
    static const char why[] = "there is no GPU here";
#else
    WEFT_AUTO_DECREF json_t *plain = command_json(RUN("plan", "--json", SMALL, "--device", "cpu"));
    assert_int_equal(integer_of(object, "parameters"), integer_of(plain, "parameters"));
    static const char why[] = "built without CUDA";
#endif
    json_decref(object);
    WEFT_AUTO_FREE char *table = OUTPUT("plan", SMALL, "--device", "cuda");
    assert_non_null(strstr(table, why));
}

static double processor_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_CHILDREN, &use);
    return (double)use.ru_utime.tv_sec + 1e-6 * (double)use.ru_utime.tv_usec;
}

/* Its buffers are a hundred times as many as a usual model's; were each held against all others, it
 * would take a minute. */
TEST(test_a_thousand_layers_are_planned_at_once) {
    double before = processor_seconds();
    SUCCEEDS("plan", "-o", "N_LAYER=1024");
    double took = processor_seconds() - before;
    printf("note: weft plan of 1024 layers: %.2f s of processor time\n", took);
    assert_true(took < 10 * command_patience());
}

TEST(test_enormous_sizes_are_answered) {
    static const char *const mixes[][3] = {
        {"ATTENTION=dot", "POSITION=learned", "KV_SHARE=1"},
        {"ATTENTION=cosine", "POSITION=rope", "KV_SHARE=2"},
        {"ATTENTION=w2", "POSITION=rope", "KV_SHARE=2"},
        {"ATTENTION=w2", "W2_KERNEL=overlap", "KV_SHARE=1"},
        {"ATTENTION=mla", "POSITION=rope", "KV_SHARE=2"},
        {"ATTENTION=mla", "POSITION=rope", "RA_MLA_SCORE=w2"},
        {"ATTENTION=mla", "RA_MLA_ROPE_DIM=64", "RA_MLA_Q_RANK=65536"},
        {"ATTENTION=gta", "KV_HEADS=2", "KV_SHARE=2"}};
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        FAILS(2, SAYS("weft plan:"), "plan", "-o", "N_EMBD=65536", "-o", "N_HEAD=1024", "-o",
              "BATCH_SIZE=1048576", "-o", "CONTEXT=1048576", "-o", "VOCAB_SIZE=16777216", "-o",
              mixes[i][0], "-o", mixes[i][1], "-o", mixes[i][2]);
    assert_true(parameters(RUN("plan", "--json", "-o", "N_EMBD=65536", "-o", "N_HEAD=1024", "-o",
                               "N_FFN=1048576", "-o", "BATCH_SIZE=1", "-o",
                               "VOCAB_SIZE=16777216")) > 1000000000000LL);
}

/* What does not depend on kernels and threads: the figures that documents have. */
TEST(test_a_plan_without_workspaces_is_the_same_anywhere) {
    json_t *one = command_json(RUN("plan", SMALL, "--threads", "1", "--no-workspace", "--json"));
    json_t *many = command_json(RUN("plan", SMALL, "--threads", "9", "--no-workspace", "--json"));
    WEFT_AUTO_DECREF json_t *whole = command_json(RUN("plan", SMALL, "--threads", "9", "--json"));
    json_t *training = json_object_get(one, "training");
    assert_true(json_equal(training, json_object_get(many, "training")));
    assert_true(integer_of(training, "workspace") <
                integer_of(json_object_get(whole, "training"), "workspace"));
    json_decref(one);
    json_decref(many);
}

/* What ranks share is a part in P of what one has. */
TEST(test_ranks_share_memory) {
    WEFT_AUTO_DECREF json_t *object =
        command_json(RUN("plan", SMALL, "--device", "cpu", "-o", "BATCH_SIZE=8", "-o",
                         "MICRO_BATCH=1", "--dtype", "bf16", "--ranks", "4", "--json"));
    json_t *all = json_object_get(object, "rank_bytes");
    json_t *none = json_object_get(all, "none"), *first = json_object_get(all, "optimizer");
    json_t *second = json_object_get(all, "gradients");
    long long parameters_here = integer_of(object, "parameters");
    assert_int_equal(integer_of(all, "ranks"), 4);
    assert_true(integer_of(none, "optimizer") > 8 * parameters_here);
    assert_int_equal(integer_of(first, "optimizer") * 4, integer_of(none, "optimizer"));
    assert_int_equal(integer_of(second, "optimizer") * 4, integer_of(none, "optimizer"));
    /* Two micro-batches of a rank are one sum; eight of all take three, of which a quarter is here. */
    assert_int_equal(integer_of(none, "sums"), 4 * parameters_here);
    assert_int_equal(integer_of(first, "sums"), 4 * parameters_here);
    assert_true(llabs(integer_of(second, "sums") - 3 * parameters_here) <= 16);
    FAILS(2, SAYS("--ranks", "--variant"), "plan", "--config", "demo", "--ranks", "2");
    SUCCEEDS("plan", "--config", "demo", "--variant", "rope", "--ranks", "2");
}

/* An automatic batch of 8 leaves each of 4 ranks a micro-batch, so it has at most 2 sequences, however many threads. */
TEST(test_an_automatic_batch_leaves_each_rank_one) {
    WEFT_AUTO_DECREF json_t *cut =
        command_json(RUN("plan", SMALL, "--device", "cpu", "--threads", "1", "-o", "BATCH_SIZE=8",
                         "-o", "BATCH_SIZE=auto", "--ranks", "4", "--json"));
    WEFT_AUTO_DECREF json_t *by_hand =
        command_json(RUN("plan", SMALL, "--device", "cpu", "--threads", "1", "-o", "BATCH_SIZE=8",
                         "-o", "MICRO_BATCH=2", "--ranks", "4", "--json"));
    assert_true(json_equal(json_object_get(cut, "training"), json_object_get(by_hand, "training")));
}

/* Muon's arena differs from one backend to another, and is there without one. */
TEST(test_a_plan_without_workspaces_has_each_optimizer) {
    static const char *const names[] = {"adamw", "adamwspam", "muon"};
    for (int i = 0; i < 3; i++) {
        const char *option = format_text("OPTIMIZER=%s", names[i]);
        WEFT_AUTO_DECREF json_t *object =
            command_json(RUN("plan", SMALL, "--no-workspace", "-o", option, "--json"));
        assert_true(integer_of(object, "training_bytes") > 0);
    }
}

/* The words of plans for people, of one model and of a study. */
TEST(test_a_plan_is_as_it_was_read) {
    WEFT_AUTO_FREE char *study = OUTPUT("plan", "--config", "demo", "--device", "cpu");
    WEFT_AUTO_FREE char *one = OUTPUT("plan", SMALL, "--device", "cpu", "--threads", "1");
    WEFT_AUTO_FREE char *ranks =
        OUTPUT("plan", SMALL, "--device", "cpu", "--threads", "1", "--ranks", "2");
    snapshot_expect("plan", format_text("%s\n%s\n%s", study, one, ranks));
}

RUN_TESTS(scratch_setup, scratch_teardown)

/* What weft wrote at commit d71b825 (tests/older/make says how): runs that were cut off end as they did when
 * that program went on with them, models give its logits and its text, its configs mean what they meant; and
 * what a later weft may write one day is refused in a sentence. Its study is record/test_older's.
 *
 * Where that program's bits are to be had (support/older.h), they are compared; elsewhere losses and logits are
 * held within a bound. */
#include "support/command.h"
#include "support/older.h"
#include "support/tensor_file.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_LOGITS 1e-4 /* f32 */
#define CLOSE_LOSS 1e-3   /* f32, six steps on */
#define CLOSE_LOSS_BF16 3e-2

static const struct {
    const char *name;
    bool bf16;
} runs[] = {{"dot", false}, {"mla", false}, {"w2", true}, {"wsffn", true}};
enum { RUNS = sizeof runs / sizeof *runs };

static json_t *read_json(const char *path) {
    json_error_t error;
    json_t *value = json_load_file(path, 0, &error);
    if (!value) fail_msg("%s: %s", path, error.text);
    return value;
}

static void expect_checksum(const json_t *a, const json_t *b, const char *file) {
    const json_t *x = json_object_get(json_object_get(a, "files"), file),
                 *y = json_object_get(json_object_get(b, "files"), file);
    if (!x || !json_equal(x, y)) fail_msg("%s: is another", file);
}

/* Each line's losses. */
static void compare_metrics(const char *here, const char *there, double bound) {
    char *a = file_read(here, NULL), *b = file_read(there, NULL), *x = a, *y = b;
    int lines = 0;
    for (char *p, *q; (p = strtok_r(x, "\n", &x)) && (q = strtok_r(y, "\n", &y)); lines++) {
        json_t *one = json_loads(p, 0, NULL), *other = json_loads(q, 0, NULL);
        static const char *const keys[] = {"step", "loss", "val_loss", "lr"};
        for (int i = 0; i < 4; i++) {
            double u = json_number_value(json_object_get(one, keys[i])),
                   v = json_number_value(json_object_get(other, keys[i]));
            if (!(fabs(u - v) <= (i == 1 || i == 2 ? bound : 0)))
                fail_msg("%s: line %d: %s is %.9g, and was %.9g", here, lines + 1, keys[i], u, v);
        }
        json_decref(one);
        json_decref(other);
    }
    assert_int_equal(lines, 12);
    free(a);
    free(b);
}

TEST(test_models_say_what_they_said) {
    for (int i = 0; i < RUNS; i++) {
        const char *model = scratch_path("%s/last", runs[i].name), *logits = scratch_path("logits"),
                   *kept = scratch_path("%s/logits.safetensors", runs[i].name);
        command_succeeds(RUN("eval", "--model", model, "--tokens", scratch_path("tokens.npy"),
                             "--logits", logits, "--device", "cpu", "--dtype", "f32"),
                         NULL);
        if (older_bits())
            file_expect_equal(logits, kept);
        else
            assert_true(tensors_apart(logits, kept, "logits") <= CLOSE_LOGITS);
        json_t *said =
            command_json(RUN("generate", "--model", model, "--prompt", "The ", "--max-tokens", "10",
                             "--seed", "5", "--device", "cpu", "--dtype", "f32", "--json"));
        json_t *was = read_json(scratch_path("%s/text.json", runs[i].name));
        assert_int_equal(json_array_size(was), 10);
        if (!json_equal(json_object_get(said, "tokens"), was)) fail_msg("%s: other text", model);
        json_decref(said);
        json_decref(was);
    }
}

TEST(test_a_text_gives_the_same_shards) {
    const char *text = scratch_path("text"), *learned = scratch_path("learned.json");
    command_succeeds(RUN("tokenizer", "train", "--vocab", "270", "--out", learned, text), NULL);
    file_expect_equal(learned, "tests/older/data/tokenizer.json");
    command_succeeds(RUN("tokenize", "--tokenizer", "tests/older/data/tokenizer.json",
                         "--val-share", "0.1", "--out", scratch_path("data"), text),
                     NULL);
    file_expect_equal(scratch_path("data/train_000000.bin"), "tests/older/data/train_000000.bin");
    file_expect_equal(scratch_path("data/val_000000.bin"), "tests/older/data/val_000000.bin");
}

/* Bytes of cache per token. With gate and cross-token all layers but the last kept a row of the gate,
 * GATE_DIM numbers; its two maps are one matrix since, and a number per head is kept where that is less. */
static double cache_today(const char *name, double was) {
    static const struct {
        const char *name;
        int was, layers, gate, heads, size;
    } gated[] = {{"demo", 1024, 2, 64, 4, 4},         {"gpt2-ra-mla-full", 51968, 12, 64, 12, 4},
                 {"gpt2-real", 25984, 12, 64, 12, 2}, {"ra-mla-optim", 2144, 4, 8, 6, 4},
                 {"ra-mla-sparse", 2144, 4, 8, 6, 4}, {"reciprocal", 2144, 4, 8, 6, 4}};
    for (size_t i = 0; i < sizeof gated / sizeof *gated; i++)
        if (strcmp(gated[i].name, name) == 0 && gated[i].was == was)
            return was - (gated[i].layers - 1) * (gated[i].gate - gated[i].heads) * gated[i].size;
    return was;
}

/* Parameters, FLOPs and cache of each variant. */
static void expect_plan(const char *config, const char *name, const json_t *was) {
    static const char *const keys[] = {"parameters", "flops_per_token", "cache_bytes_per_token"};
    json_t *plan = command_json(RUN("plan", "--config", config, "--json"));
    const json_t *variants = json_object_get(plan, "steps");
    if (variants)
        assert_int_equal(json_array_size(variants), json_array_size(was));
    else
        assert_int_equal(json_array_size(was), 1);
    for (size_t i = 0; i < json_array_size(was); i++)
        for (size_t k = 0; k < 3; k++) {
            double is = json_number_value(
                json_object_get(variants ? json_array_get(variants, i) : plan, keys[k]));
            double kept = json_number_value(json_array_get(json_array_get(was, i), k));
            if (is != (k == 2 ? cache_today(name, kept) : kept))
                fail_msg("%s: variant %zu: %s is %.17g, and was %.17g", config, i, keys[k], is,
                         kept);
        }
    json_decref(plan);
}

/* The write-ups' studies among them, and .config as Kconfig wrote it. */
TEST(test_configs_mean_what_they_meant) {
    static const char *const names[] = {"demo",          "gpt2-ra-mla-full",
                                        "gpt2-real",     "gpt2-vanilla-baseline",
                                        "long-context",  "mix",
                                        "mup",           "needle",
                                        "ra-mla-latent", "ra-mla-optim",
                                        "ra-mla-sparse", "ra-mla-tying",
                                        "reciprocal",    "w2-entailment",
                                        "w2-micro",      "w2-recall",
                                        "wsffn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *was = read_json(scratch_path("configs/%s.json", names[i]));
        expect_plan(scratch_path("configs/%s", names[i]), names[i], was);
        if (strcmp(names[i], "gpt2-ra-mla-full") == 0)
            expect_plan(scratch_path("dotconfig"), names[i], was);
        json_decref(was);
    }
}

/* A copy of last/ whose state.json says another format. */
TEST(test_newer_formats_are_refused) {
    const char *run = scratch_path("newer"), *shards = scratch_path("shards"),
               *text = scratch_path("text");
    shell_succeeds("mkdir -p '%s' && cp -r '%s' '%s/last' && cp '%s/config' '%s'", run,
                   scratch_path("mla/last"), run, scratch_path("mla"), run);
    shell_succeeds("sed -i 's/\"format\": 2/\"format\": 3/' '%s/last/state.json'", run);
    command_fails(2, RUN("eval", "--model", scratch_path("newer/last"), "--text", text),
                  SAYS("state.json", "format 3", "formats 1 to 2", "the weft that wrote it"));
    command_fails(2, RUN("train", "--out", run, "--resume"), SAYS("state.json", "format 3"));
    /* The second number of a shard's head is its version. */
    shell_succeeds(
        "cp -r tests/older/data '%s' && printf '\\002' | dd of='%s/train_000000.bin' bs=1 "
        "seek=4 conv=notrunc 2>/dev/null",
        shards, shards);
    char dataset[300];
    snprintf(dataset, sizeof dataset, "DATASET=%s", shards);
    command_fails(2,
                  RUN("train", "--config", scratch_path("dot/config"), "-o", dataset, "--out",
                      scratch_path("fresh"), "--device", "cpu"),
                  SAYS("train_000000.bin", "version 2"));
    shell_succeeds("sed -i 's/\"version\": *\"1.0\"/\"version\": \"2.0\"/' '%s/tokenizer.json'",
                   shards);
    command_fails(2,
                  RUN("tokenize", "--tokenizer", scratch_path("shards/tokenizer.json"), "--out",
                      scratch_path("none"), text),
                  SAYS("tokenizer.json", "version 2.0", "knows 1.0"));
}

/* AdamW and AdamWSPAM, f32 and bf16, several micro-batches and accumulation, dropout: with --out alone, so by
 * the run's own config too. */
TEST(test_runs_end_as_they_did) {
    for (int i = 0; i < RUNS; i++) {
        const char *run = scratch_path("%s", runs[i].name);
        char last[256], end[256];
        command_succeeds(
            RUN("train", "--out", run, "--resume", "--device", "cpu", "--peak-flops", "0"), NULL);
        double bound = older_bits() ? 0 : runs[i].bf16 ? CLOSE_LOSS_BF16 : CLOSE_LOSS;
        snprintf(last, sizeof last, "%s/metrics.jsonl", run);
        snprintf(end, sizeof end, "%s/end/metrics.jsonl", run);
        compare_metrics(last, end, bound);
        if (!older_bits()) continue;
        snprintf(last, sizeof last, "%s/last/state.json", run);
        snprintf(end, sizeof end, "%s/end/state.json", run);
        json_t *ours = read_json(last), *its = read_json(end);
        expect_checksum(ours, its, "model.safetensors");
        expect_checksum(ours, its, "optimizer.safetensors");
        json_decref(ours);
        json_decref(its);
    }
}

RUN_TESTS(older_setup, scratch_teardown)

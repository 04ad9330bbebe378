/* Training as a whole: the losses of 200 steps of `weft train` are those that the reference comes to
 * from the same weights and the same batches (tests/reference/make_curves.py). Also the tool that
 * hands the reference its batches:
 *
 *     test_curves --dump CONFIG FILE     tokens and targets [steps, sequences, time], safetensors
 */
#include "core/safetensors.h"
#include "data/dataset.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 200, FIRST_STEPS = 20, LAST_STEPS = 50 };

#define CLOSE 1e-3        /* f32, a step */
#define CLOSE_MEAN 2e-2   /* f32, the mean of the last steps */
#define CLOSE_DOUBLE 1e-7 /* f64, a step */

/* Reads the loss of every step; a line per step is expected, in order. */
static void read_losses(const char *run, double *losses) {
    WEFT_AUTO_DECREF json_t *rows = train_metrics(run);
    assert_int_equal(json_array_size(rows), STEPS);
    for (size_t n = 0; n < STEPS; n++) {
        const json_t *row = json_array_get(rows, n);
        assert_int_equal(integer_of(row, "step"), n + 1);
        losses[n] = real_of(row, "loss");
    }
}

static void read_kept(const char *name, double *losses) {
    weft_safetensors *file;
    expect_ok(weft_safetensors_open("tests/vectors/curves.safetensors", &file));
    const weft_safetensor *t = weft_safetensors_find(file, name);
    if (!t || t->dtype != WEFT_FILE_F64 || t->ndim != 1 || t->shape[0] != STEPS)
        fail_msg("%s: no kept curve of %d steps; make vectors", name, STEPS);
    memcpy(losses, t->data, STEPS * sizeof *losses);
    weft_safetensors_close(file);
}

static void name_config(const char *name, char path[static 256]) {
    snprintf(path, 256, "tests/train/curves/%s.config", name);
}

static double mean(const double *values, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

/* The largest gap in the first `steps` losses; one beyond `limit` fails the test. */
static double hold_steps(const char *name, const double *ours, const double *kept, int steps,
                         double limit) {
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        double gap = fabs(ours[i] - kept[i]);
        if (!(gap <= limit))
            fail_msg("%s, step %d: loss %.9f, the reference's %.9f", name, i + 1, ours[i], kept[i]);
        worst = fmax(worst, gap);
    }
    return worst;
}

/* Trains in f32, and holds the first `steps` losses and the mean of the last ones. */
static void hold_curve(const char *name, int steps) {
    double ours[STEPS], kept[STEPS];
    char config[256];
    const char *out = scratch_path("%s", name);
    name_config(name, config);
    read_kept(name, kept);
    SUCCEEDS("train", "--config", config, "--out", out, "--device", "cpu");
    read_losses(out, ours);
    double worst = hold_steps(name, ours, kept, steps, CLOSE);
    double ours_end = mean(ours + STEPS - LAST_STEPS, LAST_STEPS);
    double apart = fabs(ours_end - mean(kept + STEPS - LAST_STEPS, LAST_STEPS));
    printf("note: %s: loss %.3f to %.3f, %.1e from the reference in %d steps, %.1e at the end\n",
           name, ours[0], ours_end, worst, steps, apart);
    assert_true(apart <= CLOSE_MEAN);
    assert_true(ours_end < ours[0] - 1); /* the curve of a model that learns */
}

/* Trains in f64 from the same f32 weights: where rounding decides nothing, every step is held. */
static void hold_double(const char *name) {
    double ours[STEPS], kept[STEPS];
    char config[256];
    const char *from = scratch_path("%s-start", name), *out = scratch_path("%s-double", name);
    name_config(name, config);
    read_kept(name, kept);
    SUCCEEDS("init", "--config", config, "--out", from);
    SUCCEEDS("train", "--config", config, "--from", from, "--out", out, "--device", "cpu",
             "--dtype", "f64");
    read_losses(out, ours);
    double worst = hold_steps(name, ours, kept, STEPS, CLOSE_DOUBLE);
    printf("note: %s in f64: %.1e from the reference in %d steps\n", name, worst, STEPS);
}

TEST(test_dot_gelu) {
    hold_curve("dot-gelu", STEPS);
}

TEST(test_w2_swiglu) {
    hold_curve("w2-swiglu", STEPS);
}

TEST(test_wsffn) {
    hold_curve("wsffn", STEPS);
}

TEST(test_mla_with_all_mechanisms) {
    hold_curve("mla-none", STEPS);
}

/* Once rounding has picked another neighbour the curves are two, of the same kind. */
TEST(test_mla_with_topk) {
    hold_curve("mla-topk", FIRST_STEPS);
}

/* Once rounding has grown they are two here as well: float32 in PyTorch strays as far. */
TEST(test_wsffn_from_small_weights) {
    hold_curve("wsffn-normal", FIRST_STEPS);
}

TEST(test_muon) {
    hold_curve("muon-dot", STEPS);
    hold_curve("muon-mla", STEPS);
}

TEST(test_every_curve_in_double) {
    static const char *const names[] = {"dot-gelu", "w2-swiglu",    "wsffn",    "mla-none",
                                        "mla-topk", "wsffn-normal", "muon-dot", "muon-mla"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hold_double(names[i]);
}

static weft_status fill_batches(const weft_config *c, int64_t sequences, int32_t *tokens,
                                int32_t *targets) {
    weft_dataset *d;
    int64_t time = c->context;
    weft_status status = weft_dataset_open(c, &d);
    for (int64_t i = 0; status == WEFT_OK && i < c->steps * sequences; i++)
        status = weft_dataset_fill(d, WEFT_SPLIT_TRAIN, (uint64_t)c->seed,
                                   (uint32_t)(i / sequences), (uint32_t)(i % sequences), time,
                                   tokens + i * time, targets + i * time, NULL);
    weft_dataset_close(d);
    return status;
}

static int complain(void) {
    fprintf(stderr, "test_curves: %s\n", weft_error_message());
    return 1;
}

static int dump(const char *config, const char *path) {
    weft_config c;
    weft_config_defaults(&c);
    weft_status status = weft_config_read(&c, config);
    if (status != WEFT_OK) return complain();
    int64_t sequences = c.batch_size * c.gradient_accumulation;
    size_t count = (size_t)(c.steps * sequences * c.context);
    int32_t *tokens = calloc(count, sizeof *tokens), *targets = calloc(count, sizeof *targets);
    if (!tokens || !targets) status = weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    if (status == WEFT_OK) status = fill_batches(&c, sequences, tokens, targets);
    weft_safetensor file[] = {
        {.name = "tokens", .dtype = WEFT_FILE_I32, .ndim = 3, .data = tokens},
        {.name = "targets", .dtype = WEFT_FILE_I32, .ndim = 3, .data = targets}};
    for (int i = 0; i < 2; i++) {
        file[i].shape[0] = c.steps;
        file[i].shape[1] = sequences;
        file[i].shape[2] = c.context;
    }
    if (status == WEFT_OK) status = weft_safetensors_write(path, file, 2, NULL, NULL);
    free(tokens);
    free(targets);
    return status == WEFT_OK ? 0 : complain();
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--dump") == 0) return dump(argv[2], argv[3]);
    return tests_run(scratch_setup, scratch_teardown);
}

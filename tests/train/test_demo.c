/* The first run a user makes learns: its held-out loss falls below what a bigram model of the same
 * text comes to. Trimmed to most of its steps; whole in make test-long. */
#include "support/bigram.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BIGRAM_TRAIN = 2000000, BIGRAM_VAL = 100000, SEEDS = 8 };

static double bigram_loss(void) {
    weft_config c;
    weft_dataset *d = NULL;
    double loss = 0;
    weft_config_defaults(&c);
    if (weft_config_read(&c, "defconfigs/demo") != WEFT_OK ||
        weft_dataset_open(&c, &d) != WEFT_OK ||
        weft_bigram_loss(d, 1, BIGRAM_TRAIN, BIGRAM_VAL, &loss) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    weft_dataset_close(d);
    return loss;
}

/* Runs the program and returns the best held-out loss. */
static double run_demo(const char *const *command, const char *out) {
    int status = train_wait(train_start(command, scratch_path("err"), 0));
    if (status != 0) fail_msg("ended on %d: %s", status, file_read(scratch_path("err"), NULL));
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/best/state.json", out), NULL);
    WEFT_AUTO_DECREF json_t *best = json_loads(text, 0, NULL);
    double loss = json_number_value(json_object_get(best, "best_val_loss"));
    return loss;
}

TEST(test_demo_learns_more_than_pairs) {
    const char *out = scratch_path("demo");
    const char *const *whole = RUN("train", "--config", "defconfigs/demo", "--out", out);
    const char *const *trimmed =
        RUN("train", "--config", "defconfigs/demo", "--out", out, "-o", "STEPS=350");
    double loss = run_demo(train_long() ? whole : trimmed, out), baseline = bigram_loss();
    printf("note: held-out loss %.3f, a bigram model's %.3f\n", loss, baseline);
    assert_true(loss > 0.1 && loss < baseline);
}

/* MLA, by whatever instructions the processor has for bf16. The first steps, to which it is trimmed, are those
 * where the loss falls most. Later on two runs that round differently differ by some percent, either way:
 * whole, it is the mean over random seeds, and what so few seeds leave open is not held against it. */
TEST(test_bf16_ends_near_f32) {
    static const char *const types[] = {"f32", "bf16"};
    int runs = train_long() ? SEEDS : 1;
    double mean[2] = {0, 0}, worse = 0, squares = 0;
    for (int i = 0; i < runs; i++) {
        double loss[2];
        for (int k = 0; k < 2; k++) {
            const char *seed = format_text("%d", i + 1);
            const char *out = scratch_path("%s-%s", types[k], seed);
            const char *const *command =
                RUN("train", "--config", "defconfigs/ra-mla", "--out", out, "--dtype", types[k],
                    "--seed", seed, "-o", train_long() ? "STEPS=300" : "STEPS=60");
            mean[k] += (loss[k] = run_demo(command, out)) / runs;
        }
        double d = loss[1] / loss[0] - 1;
        worse += d / runs;
        squares += d * d;
    }
    double error = runs > 1 ? sqrt((squares / runs - worse * worse) / (runs - 1)) : 0;
    printf("note: held-out loss %.4f in f32, %.4f in bf16, mean of %d: %+.1f%%, standard error "
           "%.1f%%\n",
           mean[0], mean[1], runs, 100 * worse, 100 * error);
    assert_true(error < 0.01);
    assert_true(fabs(worse) <= (train_long() ? 0.01 + 2 * error : 0.02));
}

RUN_TESTS(scratch_setup, scratch_teardown)

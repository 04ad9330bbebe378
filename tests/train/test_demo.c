/* The first run a user makes learns: its held-out loss falls below what a bigram model of the same
 * text comes to. Trimmed to most of its steps; whole in make test-long. */
#include "data/bigram.h"
#include "support/command.h"
#include "support/train_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BIGRAM_TRAIN = 2000000, BIGRAM_VAL = 100000 };

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
    char path[300];
    int status = train_wait(train_start(command, scratch_path("err"), 0));
    if (status != 0) fail_msg("ended on %d: %s", status, file_read(scratch_path("err"), NULL));
    snprintf(path, sizeof path, "%s/best/state.json", out);
    char *text = file_read(path, NULL);
    json_t *best = json_loads(text, 0, NULL);
    double loss = json_number_value(json_object_get(best, "best_val_loss"));
    json_decref(best);
    free(text);
    return loss;
}

static void test_demo_learns_more_than_pairs(void **state) {
    (void)state;
    char out[256];
    snprintf(out, sizeof out, "%s", scratch_path("demo"));
    const char *const *whole = RUN("train", "--config", "defconfigs/demo", "--out", out);
    const char *const *trimmed =
        RUN("train", "--config", "defconfigs/demo", "--out", out, "-o", "GPT2_MAX_ITERS=350");
    double loss = run_demo(train_long() ? whole : trimmed, out), baseline = bigram_loss();
    printf("note: held-out loss %.3f, a bigram model's %.3f\n", loss, baseline);
    assert_true(loss > 0.1 && loss < baseline);
}

/* By whatever instructions the processor has for bf16. The first steps, to which it is trimmed, are those
 * where the loss falls most. Later on the losses of two random seeds differ by some percent, so that means
 * over three are compared. */
static void test_demo_in_bf16_ends_near_f32(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "bf16"}, *const seeds[] = {"1", "2", "3"};
    int runs = train_long() ? 3 : 1;
    double loss[2] = {0, 0};
    for (int i = 0; i < 2 * runs; i++) {
        char out[256];
        const char *type = types[i % 2], *seed = seeds[i / 2];
        snprintf(out, sizeof out, "%s", scratch_path("%s-%s", type, seed));
        const char *const *command =
            RUN("train", "--config", "defconfigs/demo", "--out", out, "--dtype", type, "--seed",
                seed, "-o", train_long() ? "GPT2_MAX_ITERS=300" : "GPT2_MAX_ITERS=60");
        loss[i % 2] += run_demo(command, out) / runs;
    }
    printf("note: held-out loss %.4f in f32, %.4f in bf16, mean of %d\n", loss[0], loss[1], runs);
    assert_true(fabs(loss[1] - loss[0]) <= (train_long() ? 0.01 : 0.02) * loss[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_learns_more_than_pairs),
        cmocka_unit_test(test_demo_in_bf16_ends_near_f32),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

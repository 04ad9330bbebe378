/* A tensor that no loss depends on is left as it was drawn: weight decay has no say in it. And the rate
 * that the metrics tell is the one that was used. */
#include "core/safetensors.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN                                                                                      \
    "N_LAYER=2 N_HEAD=2 N_EMBD=16 VOCAB_SIZE=256 CONTEXT=16 BATCH_SIZE=4 STEPS=6 "                 \
    "WARMUP_STEPS=0 WEIGHT_DECAY=0.5 LEARNING_RATE=1e-2 EVAL_SAMPLES=1 LOG_INTERVAL=1 "

static weft_safetensors *open_weights(const char *folder) {
    weft_safetensors *file = NULL;
    const char *path = format_text("%s/model.safetensors", folder);
    expect_ok(weft_safetensors_open(path, &file));
    return file;
}

static bool is_same(const weft_safetensors *a, const weft_safetensors *b, const char *name) {
    const weft_safetensor *x = weft_safetensors_find(a, name), *y = weft_safetensors_find(b, name);
    if (!x || !y) fail_msg("no tensor %s", name);
    size_t bytes = sizeof(float);
    for (int i = 0; i < x->ndim; i++)
        bytes *= (size_t)x->shape[i];
    return memcmp(x->data, y->data, bytes) == 0;
}

/* After a few steps at a high decay `name` is as it was drawn, and `other` is not. */
static void expect_alone(const char *sets, const char *micro, const char *name, const char *other) {
    const char *config = scratch_path("config"), *out = scratch_path("run-%s-%s", name, micro);
    config_write(config, format_text(PLAIN "%s", sets));
    const char *drawn = scratch_path("drawn-%s-%s", name, micro);
    SUCCEEDS("init", "--config", config, "--out", drawn);
    SUCCEEDS("train", "--config", config, "--out", out, "-o", micro);
    weft_safetensors *a = open_weights(drawn), *b = open_weights(format_text("%s/last", out));
    assert_true(is_same(a, b, name));
    assert_false(is_same(a, b, other));
    weft_safetensors_close(a);
    weft_safetensors_close(b);
}

TEST(test_a_projection_whose_losses_are_off_is_not_decayed) {
    static const char sets[] = "FFN=wsffn WSFFN_N_HEAD=2 WSFFN_AUX_LOSS=n";
    expect_alone(sets, "MICRO_BATCH=0", "h.0.ffn.z_proj.weight", "h.0.ffn.w1.weight");
    expect_alone(sets, "MICRO_BATCH=2", "h.0.ffn.z_proj.weight", "h.0.ffn.w1.weight");
}

TEST(test_the_last_layers_gate_is_not_decayed) {
    static const char sets[] =
        "ATTENTION=mla RA_MLA_LATENT_DIM=8 RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_GATE_DIM=8";
    expect_alone(sets, "MICRO_BATCH=0", "h.1.ffn.gate_proj.weight", "h.0.ffn.gate_proj.weight");
}

static json_t *read_line(const char *folder, int step) {
    WEFT_AUTO_DECREF json_t *rows = train_metrics(folder);
    size_t i = json_array_size(rows);
    while (i > 0 && integer_of(json_array_get(rows, i - 1), "step") != step)
        i--;
    assert_true(i > 0);
    return json_incref(json_array_get(rows, i - 1));
}

/* Resets every 4 steps, a warm-up of 4 after each: the second step after a reset has half of the
 * cosine's rise, (1 - cos(pi · 2/4)) / 2. */
TEST(test_the_rate_that_is_logged_is_the_one_used) {
    const char *config = scratch_path("spam"), *out = scratch_path("spam-run");
    config_write(config, PLAIN
                 "OPTIMIZER=adamwspam SPAM_INTERVAL=4 SPAM_WARMUP_STEPS=4 LR_SCHEDULE=constant");
    command_result r = command_run(RUN("train", "--config", config, "--out", out));
    assert_int_equal(r.status, 0);
    if (!strstr(r.err, "CONFIG_SPAM_INTERVAL=4") || !strstr(r.err, "never"))
        fail_msg("no warning in: %s", r.err);
    command_free(&r);
    for (int step = 4; step <= 6; step++) {
        WEFT_AUTO_DECREF json_t *line = read_line(out, step);
        double rate = json_number_value(json_object_get(line, "lr"));
        double wanted = 1e-2 * (step == 4 ? 1 : (1 - cos(M_PI * (step - 4) / 4.0)) / 2);
        if (fabs(rate - wanted) > 1e-8) fail_msg("step %d: %g, not %g", step, rate, wanted);
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)

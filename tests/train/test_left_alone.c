/* A tensor that no loss depends on is left as it was drawn: weight decay has no say in it. And the rate
 * that the metrics tell is the one that was used. */
#include "core/safetensors.h"
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char plain[] = "CONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\n"
                            "CONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=16\n"
                            "CONFIG_BATCH_SIZE=4\nCONFIG_STEPS=6\n"
                            "CONFIG_WARMUP_STEPS=0\nCONFIG_WEIGHT_DECAY=0.5\n"
                            "CONFIG_LEARNING_RATE=\"1e-2\"\nCONFIG_EVAL_SAMPLES=1\n"
                            "CONFIG_LOG_INTERVAL=1\n";

static weft_safetensors *open_weights(const char *folder) {
    char path[600];
    weft_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(weft_safetensors_open(path, &file), WEFT_OK);
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
    char text[2048], last[512];
    snprintf(text, sizeof text, "%s%s", plain, sets);
    file_write(config, text, strlen(text));
    const char *drawn = scratch_path("drawn-%s-%s", name, micro);
    command_succeeds(RUN("init", "--config", config, "--out", drawn), NULL);
    command_succeeds(RUN("train", "--config", config, "--out", out, "-o", micro), NULL);
    snprintf(last, sizeof last, "%s/last", out);
    weft_safetensors *a = open_weights(drawn), *b = open_weights(last);
    assert_true(is_same(a, b, name));
    assert_false(is_same(a, b, other));
    weft_safetensors_close(a);
    weft_safetensors_close(b);
}

TEST(test_a_projection_whose_losses_are_off_is_not_decayed) {
    static const char sets[] = "CONFIG_FFN=\"wsffn\"\nCONFIG_WSFFN_N_HEAD=2\n"
                               "CONFIG_WSFFN_AUX_LOSS=n\n";
    expect_alone(sets, "MICRO_BATCH=0", "h.0.ffn.z_proj.weight", "h.0.ffn.w1.weight");
    expect_alone(sets, "MICRO_BATCH=2", "h.0.ffn.z_proj.weight", "h.0.ffn.w1.weight");
}

TEST(test_the_last_layers_gate_is_not_decayed) {
    static const char sets[] = "CONFIG_ATTENTION=\"mla\"\nCONFIG_RA_MLA_LATENT_DIM=8\n"
                               "CONFIG_RA_MLA_MLP_ATTN_GATE=y\nCONFIG_RA_MLA_MLP_GATE_DIM=8\n";
    expect_alone(sets, "MICRO_BATCH=0", "h.1.ffn.gate_proj.weight", "h.0.ffn.gate_proj.weight");
}

static json_t *read_line(const char *folder, int step) {
    char path[512];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    char *text = file_read(path, NULL), *rest = text, *line;
    json_t *found = NULL;
    while ((line = strtok_r(rest, "\n", &rest))) {
        json_t *row = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(row, "step")) == step) {
            json_decref(found);
            found = json_incref(row);
        }
        json_decref(row);
    }
    free(text);
    assert_non_null(found);
    return found;
}

/* Resets every 4 steps, a warm-up of 4 after each: the second step after a reset has half of the
 * cosine's rise, (1 - cos(pi · 2/4)) / 2. */
TEST(test_the_rate_that_is_logged_is_the_one_used) {
    const char *config = scratch_path("spam"), *out = scratch_path("spam-run");
    char text[2048];
    snprintf(text, sizeof text,
             "%sCONFIG_OPTIMIZER=\"adamwspam\"\nCONFIG_SPAM_INTERVAL=4\n"
             "CONFIG_SPAM_WARMUP_STEPS=4\nCONFIG_LR_SCHEDULE=\"constant\"\n",
             plain);
    file_write(config, text, strlen(text));
    command_result r = command_run(RUN("train", "--config", config, "--out", out));
    assert_int_equal(r.status, 0);
    if (!strstr(r.err, "CONFIG_SPAM_INTERVAL=4") || !strstr(r.err, "never"))
        fail_msg("no warning in: %s", r.err);
    command_free(&r);
    for (int step = 4; step <= 6; step++) {
        json_t *line = read_line(out, step);
        double rate = json_number_value(json_object_get(line, "lr"));
        double wanted = 1e-2 * (step == 4 ? 1 : (1 - cos(M_PI * (step - 4) / 4.0)) / 2);
        if (fabs(rate - wanted) > 1e-8) fail_msg("step %d: %g, not %g", step, rate, wanted);
        json_decref(line);
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)

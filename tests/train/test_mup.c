/* MUP: at the base width it changes nothing; at other widths a step moves each tensor by its own rate, and
 * what a few steps do to the logits does not grow with the width. */
#include "support/command.h"
#include "support/tensor_file.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASE = 32, WIDE = 256, TIME = 32 };

/* A run of a few steps at a constant rate, and the model it starts from. */
typedef struct {
    char start[512], run[512], end[512];
} pair;

static pair train(const char *name, int width, const char *mup, const char *heads, const char *rate,
                  const char *steps) {
    pair p;
    char embd[32], iters[40], lr[48], seed[8] = "3";
    snprintf(p.start, sizeof p.start, "%s", scratch_path("%s-start", name));
    snprintf(p.run, sizeof p.run, "%s", scratch_path("%s-run", name));
    snprintf(p.end, sizeof p.end, "%.480s/last", p.run);
    snprintf(embd, sizeof embd, "N_EMBD=%d", width);
    snprintf(iters, sizeof iters, "STEPS=%s", steps);
    snprintf(lr, sizeof lr, "LEARNING_RATE=%s", rate);
    const char *config = scratch_path("config");
    config_write(config, "N_LAYER=2 VOCAB_SIZE=256 CONTEXT=32 BATCH_SIZE=8 WARMUP_STEPS=0 "
                         "LR_SCHEDULE=constant EVAL_SAMPLES=1 MUP_BASE_WIDTH=32 MUP_BASE_HEAD=8 "
                         "WEIGHT_DECAY=0.0 GRAD_CLIP=0.0");
    SUCCEEDS("init", "--force", "--config", config, "--seed", seed, "-o", embd, "-o", mup, "-o",
             heads, "--out", p.start);
    SUCCEEDS("train", "--config", config, "--seed", seed, "-o", embd, "-o", mup, "-o", heads, "-o",
             iters, "-o", lr, "--peak-flops", "0", "--save-last", "--out", p.run);
    return p;
}

static double *values_of(const char *model, const char *name, int64_t *n) {
    return tensor_values(format_text("%s/model.safetensors", model), name, n);
}

/* The root mean square of the difference of a tensor between two files; NULL for b: of a itself. */
static double rms(const char *a, const char *b, const char *name) {
    int64_t n;
    double *x = tensor_values(a, name, &n), *y = b ? tensor_values(b, name, &n) : NULL, sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += pow(x[i] - (y ? y[i] : 0), 2) / (double)n;
    free(x);
    free(y);
    return sqrt(sum);
}

static void write_logits(const char *model, const char *out) {
    int32_t tokens[4 * (TIME + 1)];
    const char *path = scratch_path("tokens.npy");
    for (int i = 0; i < 4 * (TIME + 1); i++)
        tokens[i] = 97 + (11 * i + i / 7) % 26;
    npy_write(path, 4, 4, TIME + 1, tokens);
    SUCCEEDS("eval", "--model", model, "--tokens", path, "--logits", out);
}

/* How far a few steps move the logits. */
static double logits_moved(const char *name, int width, const char *mup) {
    pair p = train(name, width, mup, "N_HEAD=4", "4e-3", "6");
    const char *before = scratch_path("%s-before", name);
    const char *after = scratch_path("%s-after", name);
    write_logits(p.start, before);
    write_logits(p.end, after);
    return rms(after, before, "logits");
}

TEST(test_updates_do_not_grow_with_the_width) {
    double plain = logits_moved("plain-w", WIDE, "MUP=n") / logits_moved("plain", BASE, "MUP=n");
    double mup = logits_moved("mup-w", WIDE, "MUP=y") / logits_moved("mup", BASE, "MUP=y");
    print_message("logits move by %.2f times as much at %d times the width; with MUP by %.2f\n",
                  plain, WIDE / BASE, mup);
    assert_true(plain > 2.5);
    assert_true(mup < 1.6 && mup > 0.5);
}

static void compare_models(const char *a, const char *b) {
    size_t n, m;
    const char *path = format_text("%s/model.safetensors", a);
    WEFT_AUTO_FREE char *one = file_read(path, &n);
    path = format_text("%s/model.safetensors", b);
    WEFT_AUTO_FREE char *two = file_read(path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(one, two, n);
}

TEST(test_at_the_base_nothing_changes) {
    pair with = train("with", BASE, "MUP=y", "N_HEAD=4", "1e-3", "3");
    pair without = train("without", BASE, "MUP=n", "N_HEAD=4", "1e-3", "3");
    compare_models(with.start, without.start);
    compare_models(with.end, without.end);
}

/* The largest change of a tensor: Adam's first step is the rate itself wherever there is a gradient. */
static double largest_step(const pair *p, const char *name) {
    int64_t n;
    double *x = values_of(p->start, name, &n), *y = values_of(p->end, name, &n), most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return most;
}

static void check_step(const pair *p, const char *name, double rate) {
    double step = largest_step(p, name);
    if (!(fabs(step - rate) < 0.01 * rate)) fail_msg("%s moves by %g, not by %g", name, step, rate);
}

TEST(test_maps_between_layers_have_a_smaller_rate) {
    pair p = train("step", 4 * BASE, "MUP=y", "N_HEAD=16", "1e-3", "1");
    check_step(&p, "wte.weight", 1e-3);
    check_step(&p, "wpe.weight", 1e-3);
    check_step(&p, "ln_f.weight", 1e-3);
    check_step(&p, "h.0.ln_1.weight", 1e-3);
    check_step(&p, "h.1.ffn.fc.bias", 1e-3);
    check_step(&p, "h.0.attn.qkv.weight", 1e-3 / 4);
    check_step(&p, "h.1.attn.out.weight", 1e-3 / 4);
    check_step(&p, "h.1.ffn.fc.weight", 1e-3 / 4);
    check_step(&p, "h.0.ffn.proj.weight", 1e-3 / 4);
}

/* 0.02 at the base; the embedding keeps it, maps between layers have 1/√width of it. */
TEST(test_maps_start_by_their_inputs) {
    pair p = train("start", 4 * BASE, "MUP=y", "N_HEAD=16", "1e-3", "1");
    const char *path = format_text("%s/model.safetensors", p.start);
    assert_true(fabs(rms(path, NULL, "wte.weight") / 0.02 - 1) < 0.02);
    assert_true(fabs(rms(path, NULL, "h.0.attn.qkv.weight") / 0.01 - 1) < 0.02);
    assert_true(fabs(rms(path, NULL, "h.1.ffn.proj.weight") / (0.01 / 2) - 1) < 0.02);
}

TEST(test_what_has_no_rule_is_refused) {
    FAILS(2, SAYS("MUP_BASE_WIDTH"), "plan", "-o", "MUP=y");
    FAILS(2, SAYS("CONFIG_MUP", "dot"), "plan", "-o", "MUP=y", "-o", "MUP_BASE_WIDTH=64", "-o",
          "ATTENTION=w2");
    FAILS(2, SAYS("CONFIG_MUP", "mechanism"), "plan", "-o", "MUP=y", "-o", "MUP_BASE_WIDTH=64",
          "-o", "RA_MLA_MLP_ATTN_GATE=y");
}

RUN_TESTS(scratch_setup, scratch_teardown)

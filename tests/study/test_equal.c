/* What STUDY_EQUAL holds equal, against numbers counted here by hand.
 *
 * The model: dot-product attention, E = 16, H = 2, T = 24, V = 256, gelu with biases, one layer:
 *
 *   parameters  V E + T E + [2E + 3E(E+1) + E(E+1) + 2E + F(E+1) + E(F+1)] + 2E
 *   operations  a token, forward: 2 V E for the head; 8 E E for attention's maps; 4 E (T+1)/2 for
 *               scores and sums, a causal one counted once; 4 E F for the feed-forward */
#include "cpu/backend.h"
#include "study/study.h"
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { E = 16, T = 24, V = 256, F = 64, ITERS = 100, BATCH = 8 };

static long long parameters(long long ffn) {
    return V * E + T * E + 2 * E + 4 * E * (E + 1) + 2 * E + 2 * E + ffn;
}

static long long gelu(long long width) {
    return width * (E + 1) + E * (width + 1);
}

static double operations(double layers, double ffn_maps, double width) {
    return 2.0 * V * E + layers * (8.0 * E * E + 4.0 * E * (T + 1) / 2 + ffn_maps * 2 * E * width);
}

static weft_study *open_study(const char *equal, const char *variants) {
    const char *one = format_text("STUDY_EQUAL=%s", equal);
    weft_override over[] = {{one, "-o"}, {format_text("STUDY_VARIANTS=%s", variants), "-o"}};
    const char *path = scratch_path("model");
    config_write(path,
                 "N_LAYER=1 N_HEAD=2 N_EMBD=16 VOCAB_SIZE=256 CONTEXT=24 BATCH_SIZE=8 STEPS=100");
    weft_source source = {path, over, 2};
    weft_study *s;
    expect_ok(weft_study_open(&source, weft_cpu_backend(), 1, &s));
    for (int i = 0; i < s->variants.n; i++)
        if (*s->built[i].error) fail_msg("%s", s->built[i].error);
    return s;
}

TEST(test_iterations_stay_as_configured) {
    weft_study *s = open_study("iters", "a; b: BATCH_SIZE=2 N_FFN=8; c: STEPS=7");
    assert_int_equal(s->built[0].iters, ITERS);
    assert_int_equal(s->built[1].iters, ITERS);
    assert_int_equal(s->built[1].config.n_ffn, 8);
    assert_int_equal(s->built[2].iters, 7);
    assert_int_equal(s->built[0].account.parameters, parameters(gelu(F)));
    weft_study_close(s);
}

TEST(test_tokens_are_equal) {
    weft_study *s = open_study("tokens", "a; half: BATCH_SIZE=4; third: BATCH_SIZE=3;"
                                         " more: GRADIENT_ACCUMULATION=7; long: "
                                         "CONTEXT=96; huge: BATCH_SIZE=4000");
    /* 100 x 8 x 24 tokens: 200, 266.67, 14.29, 25 and 0.2 iterations of the others. */
    static const int64_t iters[] = {100, 200, 267, 14, 25, 1};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(s->built[i].iters, iters[i]);
        assert_int_equal(s->built[i].config.steps, iters[i]);
    }
    assert_int_equal(weft_study_tokens(s, 1), ITERS * BATCH * T);
    char sets[256];
    weft_study_overrides(s, 1, sets, sizeof sets);
    assert_string_equal(sets, "BATCH_SIZE=4 STEPS=200");
    weft_study_close(s);
}

TEST(test_operations_are_equal) {
    weft_study *s = open_study("flops", "a; deep: N_LAYER=3; wide: N_FFN=256; gated: FFN=swiglu;"
                                        " small: BATCH_SIZE=2");
    double one = operations(1, 2, F);
    const double cost[] = {one, operations(3, 2, F), operations(1, 2, 256), operations(1, 3, F),
                           one / 4};
    for (int i = 0; i < 5; i++)
        assert_int_equal(s->built[i].iters, (int64_t)floor(ITERS * one / cost[i] + 0.5));
    assert_int_equal(s->built[1].iters, 52); /* 100 x 15136 / 29024 */
    weft_study_close(s);
}

TEST(test_parameters_are_nearest) {
    weft_study *s =
        open_study("parameters", "a; gated: FFN=swiglu; same: DROPOUT=0.1;"
                                 " zheads: FFN=wsffn WSFFN_N_HEAD=12 N_FFN=24 WSFFN_Z_PROJ=dense;"
                                 " tied: N_FFN=8");
    long long wanted = gelu(F);
    /* swiglu has 3 E F: the best multiple of 8. wsffn has F F besides: the best of 24. */
    for (int i = 1; i < 5; i += 2) {
        long long best = 0, off = wanted;
        for (long long f = i == 1 ? 8 : 24; f < 2000; f += i == 1 ? 8 : 24) {
            long long ffn = 3 * E * f + (i == 1 ? 0 : f * f);
            if (llabs(ffn - wanted) < off) {
                off = llabs(ffn - wanted);
                best = f;
            }
        }
        assert_int_equal(weft_config_ffn_dim(&s->built[i].config), best);
    }
    assert_int_equal(weft_config_ffn_dim(&s->built[1].config), 48);
    assert_int_equal(s->built[2].config.n_ffn, 0); /* as many already: left alone */
    assert_int_equal(weft_config_ffn_dim(&s->built[4].config), F);
    assert_int_equal(s->built[4].account.parameters, parameters(gelu(F)));
    assert_int_equal(s->built[1].account.parameters, parameters(3 * E * 48));
    for (int i = 0; i < 5; i++)
        assert_int_equal(s->built[i].iters, ITERS);
    weft_study_close(s);
}

TEST(test_width_keeps_to_what_the_mechanisms_divide_by) {
    weft_config c;
    weft_config_defaults(&c);
    assert_int_equal(weft_equal_unit(&c), 8);
    c.ffn = WEFT_FFN_WSFFN;
    c.wsffn_n_head = 12;
    assert_int_equal(weft_equal_unit(&c), 24);
    c.latent_recip = true;
    c.tying_mode = WEFT_TYING_SCALAR;
    c.n_head = 10;
    c.ra_mla_latent_dim = 50;
    assert_int_equal(weft_equal_unit(&c), 600); /* 8, 12, 10 and 50 */
}

TEST(test_time_scales_by_measured_seconds) {
    weft_study *s = open_study("time", "a; fast: N_FFN=8; slow: N_FFN=256");
    assert_int_equal(s->built[0].iters, ITERS);
    assert_int_equal(s->built[1].iters, 0); /* not known yet */
    s->built[0].seconds_per_iter = 0.02;
    s->built[1].seconds_per_iter = 0.0149;
    s->built[2].seconds_per_iter = 0.3;
    expect_ok(weft_equal_time(s));
    assert_int_equal(s->built[0].iters, 100);
    assert_int_equal(s->built[1].iters, 134); /* 2 s / 0.0149 s = 134.2 */
    assert_int_equal(s->built[2].iters, 7);   /* 6.67 */
    weft_study_close(s);
}

RUN_TESTS(scratch_setup, scratch_teardown)

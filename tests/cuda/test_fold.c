/* Norms that are part of the products behind them (generate/fold.h), in whole models in bf16 on the GPU: the
 * logits are as near to those of f32 on the CPU, with the same weights, as with norms of their own; and a row
 * has the bits that it has alone. tests/generate/test_fold.c holds what is folded, without a GPU;
 * bench/rows_cuda.cu the products. */
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "cuda/device.h"
#include "support/step_forms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TIME = 150, SLOTS = 70 };

/* Beside the common ones: mechanisms, and what the norm's neighbours can be. */
static const struct {
    int step;
    step_form form;
} others[] = {
    {1, {"step1", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64"}}},
    {2, {"step2", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64"}}},
    {3, {"step3", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64"}}},
    {2, {"step2-rank", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64", "RA_MLA_MLP_CROSS_RANK=16"}}},
    {3,
     {"step3-rank",
      {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64", "RA_MLA_MLP_CROSS_RANK=32", "BIAS=n",
       "FFN=swiglu"}}},
    {3,
     {"step3-all-kept", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=128", "RA_MLA_MLP_SPARSE_MODE=rms"}}},
    {2, {"step2-ragged", {"ATTENTION=dot", "N_EMBD=160"}}},
    {0, {"rope-heads-of-128", {"ATTENTION=dot", "POSITION=rope", "N_EMBD=256"}}},
    {0, {"rope-heads-of-32-partly", {"ATTENTION=dot", "POSITION=rope", "ROPE_DIM=16", "N_HEAD=4"}}},
    {0, {"wsffn", {"ATTENTION=w2", "FFN=wsffn"}}},
    {0, {"parallel", {"ATTENTION=dot", "PARALLEL_RESIDUAL=y"}}},
    {0, {"norms-on-both-sides", {"ATTENTION=dot", "NORM_PLACEMENT=both"}}},
    {0, {"qk-norm-ragged", {"ATTENTION=dot", "QK_NORM=y", "N_EMBD=160", "NORM=rmsnorm"}}},
    {0, {"wide", {"ATTENTION=dot", "N_EMBD=1088", "N_HEAD=17", "N_LAYER=1"}}},
};
enum { OTHERS = sizeof others / sizeof others[0] };

static void need_gpu(void) {
    if (weft_cuda_backend() && weft_cuda_device()->wgmma) return;
    printf("%s\n", weft_cuda_backend() ? "no norm is folded for this GPU" : weft_error_message());
    skip();
}

static void open_case(model_case *c, const step_form *f) {
    step_case_open(c, f, TIME);
    for (int i = 0; i < OTHERS; i++) {
        if (&others[i].form != f || !others[i].step) continue;
        assert_int_equal(weft_config_step(&c->config, others[i].step), WEFT_OK);
        for (int k = 0; f->settings[k]; k++)
            assert_int_equal(weft_config_override(&c->config, f->settings[k], "test"), WEFT_OK);
    }
}

/* The same numbers in both, those that bf16 has; means of rows as large as training makes them. */
static void make_models(const model_case *c, weft_model **wide, weft_model **narrow) {
    *wide = step_case_weights(c);
    *narrow = model_case_weights(c, WEFT_BF16);
    for (int64_t i = 0; i < (*wide)->n_weights; i++) {
        weft_weight *w = (*wide)->weights + i, *n = weft_model_find(*narrow, w->name);
        double *values = malloc((size_t)w->count * sizeof *values);
        weft_weight_read(w, values);
        for (int64_t k = 0; strcmp(w->name, "wte.weight") == 0 && k < w->count; k++)
            values[k] += 1.5 * (double)(k / c->config.n_embd % 2);
        weft_weight_write(n, values);
        weft_weight_read(n, values);
        weft_weight_write(w, values);
        free(values);
    }
    weft_mirror_wrote((*wide)->mirror, NULL);
    weft_mirror_wrote((*narrow)->mirror, NULL);
}

/* √ of the mean square of the difference. */
static double distance(const float *a, const float *b, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(squares / (double)n);
}

static float *decode_narrow(const model_case *c, bool folds, int64_t chunk) {
    weft_model *wide, *narrow;
    step_decoding d;
    make_models(c, &wide, &narrow);
    weft_model_destroy(wide);
    setenv("WEFT_CUDA_FOLD", folds ? "1" : "0", 1);
    step_decoding_open(&d, narrow, weft_cuda_backend(), 1, TIME);
    float *logits = step_decode(&d, 0, c->tokens, TIME, chunk);
    step_decoding_close(&d);
    return logits;
}

static void test_logits_are_as_near_as_with_norms(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    weft_model *wide, *narrow;
    step_decoding cpu;
    open_case(&c, f);
    make_models(&c, &wide, &narrow);
    weft_model_destroy(narrow);
    step_decoding_open(&cpu, wide, weft_cpu_backend(), 1, TIME);
    float *want = step_decode(&cpu, 0, c.tokens, TIME, 1);
    float *folded = decode_narrow(&c, true, 1), *plain = decode_narrow(&c, false, 1);
    float *chunked = decode_narrow(&c, true, 64);
    int64_t count = TIME * cpu.vocab;
    double off = distance(folded, want, count), was = distance(plain, want, count);
    printf("%s: off by %.3g, with norms by %.3g\n", f->name, off, was);
    if (!(off <= 1.3 * was)) fail_msg("%s: %.3g off, with norms %.3g", f->name, off, was);
    assert_memory_equal(chunked, folded, (size_t)count * sizeof *folded);
    free(want);
    free(folded);
    free(plain);
    free(chunked);
    step_decoding_close(&cpu);
    free(c.tokens);
}

static void test_a_row_has_the_bits_that_it_has_alone(void **state) {
    const step_form *f = *state;
    need_gpu();
    model_case c;
    weft_model *wide, *narrow;
    step_decoding all;
    open_case(&c, f);
    make_models(&c, &wide, &narrow);
    weft_model_destroy(wide);
    float *want = decode_narrow(&c, true, 1);
    step_decoding_open(&all, narrow, weft_cuda_backend(), SLOTS, TIME);
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX];
    float *logits = malloc((size_t)(WEFT_DECODER_ROWS_MAX * all.vocab) * sizeof *logits);
    for (int64_t t = 0; t < TIME; t++) {
        int32_t n = (int32_t)(t % 64 + 1);
        for (int32_t s = 0; s < n; s++) {
            int64_t at = s == n - 1 ? t : t / (s % 3 + 2);
            rows[s] = (weft_decoder_row){c.tokens[s == n - 1 ? at : (at * (s + 2)) % TIME],
                                         (int32_t)at, s == n - 1 ? 0 : s + 1, true};
        }
        if (weft_decoder_run(all.decoder, rows, n, logits) != WEFT_OK)
            fail_msg("%s", weft_error_message());
        if (memcmp(want + t * all.vocab, logits + (n - 1) * all.vocab,
                   (size_t)all.vocab * sizeof *want) != 0)
            fail_msg("%s: row %d of %d differs at %lld", f->name, (int)n - 1, (int)n, (long long)t);
    }
    free(logits);
    free(want);
    step_decoding_close(&all);
    free(c.tokens);
}

int main(void) {
    struct CMUnitTest tests[2 * (STEP_FORMS + OTHERS)];
    size_t n = 0;
    for (int i = 0; i < STEP_FORMS + OTHERS; i += test_is_quick() ? 4 : 1) {
        const step_form *f = i < STEP_FORMS ? step_forms + i : &others[i - STEP_FORMS].form;
        void *state = (void *)(uintptr_t)f;
        tests[n++] = (struct CMUnitTest){"test_logits_are_as_near_as_with_norms",
                                         test_logits_are_as_near_as_with_norms, NULL, NULL, state};
        tests[n++] =
            (struct CMUnitTest){"test_a_row_has_the_bits_that_it_has_alone",
                                test_a_row_has_the_bits_that_it_has_alone, NULL, NULL, state};
    }
    return _cmocka_run_group_tests("folded norms", tests, n, NULL, NULL);
}

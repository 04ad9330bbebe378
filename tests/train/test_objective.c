/* What a step minimizes does not depend on how its batch is cut: each config at every MICRO_BATCH
 * against the reference, which has the whole batch at once. Targets are left out unevenly, and the
 * contrastive loss compares sequences of different micro-batches. */
#include "cpu/backend.h"
#include "support/objective_case.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *config;
    int64_t batch;
} cut_config;

static const cut_config cuts[] = {
    {"cut-dot-zloss-ignore", 6},    {"cut-wsffn-ignore", 6},
    {"cut-wsffn-grouped", 6},       {"cut-w2-wsffn-zloss-ignore", 4},
    {"cut-wsffn-half-z-logits", 6}, {"cut-wsffn-dropout-views", 6},
};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void check_all(weft_dtype dtype, weft_form form, double tolerance) {
    for (int k = 0; k < CUTS; k++) {
        for (int64_t micro = 1; micro <= cuts[k].batch; micro++) {
            if (cuts[k].batch % micro) continue;
            objective_case c = {
                .config = cuts[k].config, .dtype = dtype, .micro = micro, .form = form};
            objective_result r = objective_case_run(&c);
            objective_case_compare(&c, &r, tolerance);
            objective_result_free(&r);
        }
    }
}

TEST(test_any_cut_equals_the_reference) {
    check_all(WEFT_F64, WEFT_FORM_DIRECT, 1e-10);
    check_all(WEFT_F64, WEFT_FORM_CHEAP, 1e-10);
}

TEST(test_any_cut_in_f32_equals_the_whole) {
    check_all(WEFT_F32, WEFT_FORM_BY_SHAPE, 2e-4);
    for (int k = 0; k < CUTS; k++) {
        objective_case c = {.config = cuts[k].config, .dtype = WEFT_F32, .micro = cuts[k].batch};
        objective_result whole = objective_case_run(&c);
        for (c.micro = 1; c.micro < cuts[k].batch; c.micro++) {
            if (cuts[k].batch % c.micro) continue;
            objective_result r = objective_case_run(&c);
            objective_results_compare(&c, &r, &whole, 3e-6);
            objective_result_free(&r);
        }
        objective_result_free(&whole);
    }
}

/* A sequence's dropout follows from its place in the whole batch, in both phases. */
TEST(test_dropout_does_not_depend_on_the_cut) {
    objective_case c = {
        .config = "cut-wsffn-ignore", .dtype = WEFT_F64, .micro = 6, .dropout = 0.25};
    objective_result whole = objective_case_run(&c);
    for (c.micro = 1; c.micro < 6; c.micro++) {
        if (6 % c.micro) continue;
        objective_result r = objective_case_run(&c);
        objective_results_compare(&c, &r, &whole, 1e-10);
        objective_result_free(&r);
    }
    objective_result_free(&whole);
}

/* BATCH_SIZE × GRADIENT_ACCUMULATION is one batch too: the same bits as one BATCH_SIZE. */
TEST(test_accumulation_is_a_cut_like_any_other) {
    for (int k = 0; k < CUTS; k++) {
        objective_case c = {.config = cuts[k].config, .dtype = WEFT_F32, .micro = 1};
        objective_result a = objective_case_run(&c);
        c.accumulation = 2;
        objective_result b = objective_case_run(&c);
        assert_memory_equal(&a.parts, &b.parts, sizeof a.parts);
        assert_memory_equal(a.gradients, b.gradients, (size_t)a.count * sizeof *a.gradients);
        objective_result_free(&a);
        objective_result_free(&b);
    }
}

RUN_TESTS(NULL, NULL)

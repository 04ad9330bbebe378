/* What every case is held to. Each check returns true, or false with a line that says why. */
#ifndef WEFT_TESTS_CASE_CHECKS_H
#define WEFT_TESTS_CASE_CHECKS_H

#include "case_run.h"
#include "vectors.h"

typedef struct {
    const char *family;
    const case_line *line;
    const case_builder *builder;
    const vectors *kept;
} case_ref;

enum { CASE_WHY = 512 };

/* In f64 what is kept of the reference's values: each number of a tensor within 1e-12 · max(1, ‖y‖). */
bool check_vectors_f64(const case_ref *k, char *why);
/* In f32 the values in f64, which are held to the reference first: max|Δ| ≤ 4e-6 · max(1, max|y|) for outputs,
 * 1e-5 for gradients, times what the case is loosened by. */
bool check_vectors_f32(const case_ref *k, char *why);
/* Gradients of Σ ⟨y, d_y⟩ against finite differences of fourth order in f64: each element of an
 * input, or 24 drawn ones where it has more, and one direction through all of them. Within 1e-8 of
 * the gradient's largest element (of its length, for the direction). */
bool check_differences(const case_ref *k, char *why);
/* Gradients that are asked for alone: of one input while the others need none (as in the run that
 * makes all), and from one output while nothing depends on the others (finite differences). */
bool check_alone(const case_ref *k, char *why);
/* Values in bf16 against f64 from the same (rounded) inputs: max|Δ| ≤ 2^-7 · max|ref|, for
 * gradients times what the case is loosened by. */
bool check_bf16(const case_ref *k, char *why);
/* Equal bits for 1, 2 and 3 threads in f32 and bf16. */
bool check_threads(const case_ref *k, char *why);
/* Equal bits with every tensor in its own memory, and without gradient nodes. */
bool check_plan(const case_ref *k, char *why);
/* The third run allocates nothing; `count` gives the allocations so far. */
bool check_allocations(const case_ref *k, int64_t (*count)(void), char *why);

#endif

/* One table of cases, many checks: see tests/ops/CASES.md.
 *
 * A builder reads the case's sizes and options, makes inputs, appends the operation and names the
 * outputs. The harness owns graph, values and checks. */
#ifndef WEFT_TESTS_CASES_H
#define WEFT_TESTS_CASES_H

#include "core/exec.h"

typedef struct test_case test_case;

/* Size `key` (upper case): the case must have it. */
int64_t case_size(const test_case *c, const char *key);
/* Options (lower case), with the value they have when the line does not name them. */
int64_t case_int(const test_case *c, const char *key, int64_t fallback);
double case_number(const test_case *c, const char *key, double fallback);
const char *case_word(const test_case *c, const char *key, const char *fallback);
bool case_is(const test_case *c, const char *key, const char *value, const char *fallback);

/* The graph being built. */
weft_graph *case_graph(test_case *c);
/* The real type of this run of the case: f32, f64 or bf16; and that of statistics beside it. */
weft_dtype case_dtype(const test_case *c);
weft_dtype case_stat_dtype(const test_case *c);

enum { CASE_CONST = 0, CASE_DIFF = 1 };

/* A real input with values scale·(2u − 1); `diff` CASE_DIFF checks its gradient. `case_stat` is
 * the same but of the statistics' type (f32 where the case runs in bf16). */
weft_tensor *case_input(test_case *c, const char *name, int diff, double scale, int ndim,
                        const int64_t *shape);
weft_tensor *case_stat(test_case *c, const char *name, int diff, double scale, int ndim,
                       const int64_t *shape);
/* An i32 input with values floor(u·limit); those ≥ `cut` become −1 (cut = limit: none). */
weft_tensor *case_ids(test_case *c, const char *name, int64_t limit, int64_t cut, int ndim,
                      const int64_t *shape);
/* An i32 input with every element `value`. */
weft_tensor *case_constant(test_case *c, const char *name, int32_t value, int ndim,
                           const int64_t *shape);

/* Names an output. CASE_DIFF: it gets an upstream gradient d_NAME. */
void case_output(test_case *c, const char *name, int diff, weft_tensor *t);

/* An output [rows.., columns] made by the harness after the run: zeros, and w[r, i] at column
 * index[r, i]. Its name is checked, it has no gradient. */
void case_scatter(test_case *c, const char *name, const weft_tensor *index, const weft_tensor *w,
                  int64_t columns);

/* Loosens the f32 tolerance of this case by a factor, and the one of bf16's gradients, for
 * ill-conditioned ones; the builder says why in a comment. */
void case_loosen(test_case *c, double factor);

typedef struct {
    const char *name;
    void (*build)(test_case *c);
} case_builder;

/* Every family: tests/support/case_NAME.c has its builders, cases/NAME.txt its lines, and
 * tests/reference/NAME.py what they should give. */
#define CASE_FAMILY_LIST(X)                                                                        \
    X(arith)                                                                                       \
    X(embedding)                                                                                   \
    X(linear)                                                                                      \
    X(gated)                                                                                       \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(attention)                                                                                   \
    X(routing)                                                                                     \
    X(activation)                                                                                  \
    X(unit)                                                                                        \
    X(gaussian)                                                                                    \
    X(heads)                                                                                       \
    X(stack)                                                                                       \
    X(dropout)                                                                                     \
    X(time)                                                                                        \
    X(cross_entropy)                                                                               \
    X(contrastive)                                                                                 \
    X(optimizer)

/* One list a family, ended by {NULL, NULL}. */
#define CASE_DECLARE(name) extern const case_builder cases_##name[];
CASE_FAMILY_LIST(CASE_DECLARE)
#undef CASE_DECLARE

/* All of them, ended by a NULL name. */
typedef struct {
    const char *name;
    const case_builder *builders;
} case_family;
extern const case_family case_families[];

#define CASE_COUNT(name) +1
enum { CASE_FAMILIES = CASE_FAMILY_LIST(CASE_COUNT) };
#undef CASE_COUNT

#endif

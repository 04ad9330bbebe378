/* Cases of the matrix products. */
#include "cases.h"
#include "ops/linear.h"

static void build_linear(test_case *c) {
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, (int64_t[]){m, k});
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 2, (int64_t[]){n, k});
    weft_tensor *b = NULL;
    if (case_int(c, "bias", 0)) b = case_input(c, "b", CASE_DIFF, 1, 1, (int64_t[]){n});
    weft_act act = case_is(c, "act", "gelu", "none") ? WEFT_ACT_GELU : WEFT_ACT_NONE;
    case_output(c, "y", CASE_DIFF, weft_linear(case_graph(c), x, w, b, act));
}

/* The [rows, columns] of a factor, turned if it lies transposed, behind a leading size. */
static weft_tensor *factor(test_case *c, const char *name, bool transposed, int64_t rows,
                           int64_t columns, int64_t groups) {
    int64_t shape[] = {groups, transposed ? columns : rows, transposed ? rows : columns};
    return groups ? case_input(c, name, CASE_DIFF, 1, 3, shape)
                  : case_input(c, name, CASE_DIFF, 1, 2, shape + 1);
}

static void build_matmul(test_case *c) {
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    bool ta = case_int(c, "ta", 0), tb = case_int(c, "tb", 0);
    weft_tensor *a = factor(c, "a", ta, m, k, 0), *b = factor(c, "b", tb, k, n, 0);
    case_output(c, "y", CASE_DIFF, weft_matmul(case_graph(c), a, b, ta, tb));
}

static void build_batched(test_case *c) {
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    int64_t groups = case_size(c, "G");
    bool ta = case_int(c, "ta", 0), tb = case_int(c, "tb", 0);
    weft_tensor *a = factor(c, "a", ta, m, k, groups), *b = factor(c, "b", tb, k, n, groups);
    case_output(c, "y", CASE_DIFF, weft_batched_matmul(case_graph(c), a, b, ta, tb));
}

static void build_grouped(test_case *c) {
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    int64_t groups = case_size(c, "G");
    bool tb = case_int(c, "tb", 0);
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 3, (int64_t[]){m, groups, k});
    weft_tensor *w = factor(c, "w", tb, k, n, groups);
    case_output(c, "y", CASE_DIFF, weft_grouped_linear(case_graph(c), x, w, tb));
}

const case_builder cases_linear[] = {
    {"linear", build_linear},
    {"matmul", build_matmul},
    {"batched", build_batched},
    {"grouped", build_grouped},
    {NULL, NULL},
};

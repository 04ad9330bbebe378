/* Cases of the matrix products, and of what fuse.h makes of the nodes around them. */
#include "cases.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/linear.h"

#include <stdio.h>

static void build_linear(test_case *c) {
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, (int64_t[]){m, k});
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 2, (int64_t[]){n, k});
    weft_tensor *b = NULL;
    if (case_int(c, "bias", 0)) b = case_input(c, "b", CASE_DIFF, 1, 1, (int64_t[]){n});
    weft_act act = case_is(c, "act", "gelu", "none") ? WEFT_ACT_GELU : WEFT_ACT_NONE;
    case_output(c, "y", CASE_DIFF, weft_linear(case_graph(c), x, w, b, act));
}

/* The [rows, columns] of a factor, exchanged if it lies transposed, behind a leading size. */
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

/* The sum of outer products of rows with themselves. */
static void build_gram(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, shape);
    case_output(c, "y", CASE_DIFF, weft_matmul(case_graph(c), x, x, true, false));
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

/* A product of any form from the inputs a and b, and perhaps bias. */
static weft_tensor *product_of_form(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    bool ta = case_int(c, "ta", 0), tb = case_int(c, "tb", 0);
    if (case_is(c, "form", "grouped", "linear")) {
        int64_t groups = case_size(c, "G");
        weft_tensor *x = case_input(c, "a", CASE_DIFF, 1, 3, (int64_t[]){m, groups, k});
        return weft_grouped_linear(g, x, factor(c, "b", tb, k, n, groups), tb);
    }
    bool batched = case_is(c, "form", "batched", "linear");
    bool plain = case_is(c, "form", "matmul", "linear");
    int64_t groups = batched ? case_size(c, "G") : 0;
    weft_tensor *a = factor(c, "a", ta, m, k, groups);
    weft_tensor *b = factor(c, "b", tb || (!batched && !plain), k, n, groups), *bias = NULL;
    if (batched) return weft_batched_matmul(g, a, b, ta, tb);
    if (plain) return weft_matmul(g, a, b, ta, tb);
    if (case_int(c, "bias", 0)) bias = case_input(c, "bias", CASE_DIFF, 1, 1, (int64_t[]){n});
    return weft_linear(g, a, b, bias, WEFT_ACT_NONE);
}

/* The product scaled, then added to c or c to it; c may be made after the product. */
static void build_added(test_case *c) {
    weft_graph *g = case_graph(c);
    double alpha = case_number(c, "alpha", 1), scale = case_number(c, "scale", 1);
    weft_tensor *y = product_of_form(c);
    if (!y) return;
    if (scale != 1) y = weft_scale(g, y, scale);
    bool behind = case_is(c, "add", "behind", "none"), before = case_is(c, "add", "before", "none");
    if (behind || before) {
        weft_tensor *z = case_input(c, "c", CASE_DIFF, 1, y->ndim, y->shape);
        if (case_int(c, "late", 0)) z = weft_gelu(g, z);
        y = behind ? weft_add_scaled(g, y, z, alpha) : weft_add_scaled(g, z, y, alpha);
    }
    case_output(c, "y", CASE_DIFF, y);
}

/* Factors of term i, K + i · P wide: in turn a linear layer's and a plain product's. */
static weft_tensor *term_of_sum(test_case *c, int i) {
    weft_graph *g = case_graph(c);
    int64_t m = case_size(c, "M"), n = case_size(c, "N");
    int64_t k = case_size(c, "K") + i * case_size(c, "P");
    bool plain = i % 2 == 1, split = case_int(c, "split", 0) && !plain;
    char a_name[16], b_name[16];
    snprintf(a_name, sizeof a_name, "a%d", i);
    snprintf(b_name, sizeof b_name, "b%d", i);
    weft_tensor *a = split ? case_input(c, a_name, CASE_DIFF, 1, 3, (int64_t[]){2, m / 2, k})
                           : case_input(c, a_name, CASE_DIFF, 1, 2, (int64_t[]){m, k});
    weft_tensor *b = factor(c, b_name, !plain, k, n, 0), *bias = NULL;
    if (plain) return weft_matmul(g, a, b, false, false);
    if (i == 0 && case_int(c, "bias", 0))
        bias = case_input(c, "bias", CASE_DIFF, 1, 1, (int64_t[]){n});
    return weft_view(g, weft_linear(g, a, b, bias, WEFT_ACT_NONE), m, n);
}

/* Several products added, each but the first with a factor; then scaled, and c added. */
static void build_summed(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t terms = case_int(c, "terms", 2);
    double alpha = case_number(c, "alpha", 1), scale = case_number(c, "scale", 1);
    weft_tensor *y = term_of_sum(c, 0);
    for (int i = 1; i < terms; i++)
        y = weft_add_scaled(g, y, term_of_sum(c, i), alpha);
    if (!y) return;
    if (scale != 1) y = weft_scale(g, y, scale);
    if (case_int(c, "add", 0))
        y = weft_add(g, y, case_input(c, "c", CASE_DIFF, 1, y->ndim, y->shape));
    case_output(c, "y", CASE_DIFF, y);
}

/* A hidden layer that several products read: their gradients are summed on the way back, and go
 * through gelu's. */
static void build_fan(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    int64_t p = case_size(c, "P"), terms = case_int(c, "terms", 1);
    weft_act act = case_is(c, "act", "gelu", "none") ? WEFT_ACT_GELU : WEFT_ACT_NONE;
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, (int64_t[]){m, k});
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 2, (int64_t[]){n, k}), *b = NULL, *u = NULL;
    if (case_int(c, "bias", 0)) b = case_input(c, "b", CASE_DIFF, 1, 1, (int64_t[]){n});
    weft_tensor *h = weft_linear(g, x, w, b, act);
    for (int64_t i = 0; i < terms; i++) {
        char name[16];
        snprintf(name, sizeof name, "u%d", (int)i);
        bool plain = case_int(c, "mixed", 0) && i % 2 == 1;
        if (i == 0 || !case_int(c, "tied", 0))
            u = case_input(c, name, CASE_DIFF, 1, 2, (int64_t[]){plain ? n : p, plain ? p : n});
        snprintf(name, sizeof name, "y%d", (int)i);
        case_output(c, name, CASE_DIFF,
                    plain ? weft_matmul(g, h, u, false, false)
                          : weft_linear(g, h, u, NULL, WEFT_ACT_NONE));
    }
}

const case_builder cases_linear[] = {
    {"linear", build_linear},   {"matmul", build_matmul},   {"gram", build_gram},
    {"batched", build_batched}, {"grouped", build_grouped}, {"added", build_added},
    {"summed", build_summed},   {"fan", build_fan},         {NULL, NULL},
};

/* Cases of stacks, and of what is made of many at once. */
#include "cases.h"
#include "ops/arith.h"
#include "ops/heads.h"
#include "ops/linear.h"

#include <stdio.h>

enum { MOST = 8 };

/* Parts of as many dimensions as the case says; `tied`: the last is the first once more. `grad`:
 * which parts are differentiable. */
static void build_stack(test_case *c) {
    int rank = (int)case_int(c, "rank", 2);
    int64_t n = case_size(c, "P"), shape[] = {2, case_size(c, "M"), case_size(c, "N")};
    weft_tensor *parts[MOST] = {NULL};
    for (int64_t i = 0; i < n && i < MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", (int)i);
        bool diff = case_is(c, "grad", "all", "all") || i % 2 == 1;
        bool again = i > 0 && i == n - 1 && case_int(c, "tied", 0);
        parts[i] = again ? parts[0] : case_input(c, name, diff, 1, rank, shape + 3 - rank);
    }
    case_output(c, "y", CASE_DIFF, weft_stack(case_graph(c), parts, n));
}

/* ⟨xᵀ x, wᵀ w⟩, of one pair or summed over G. A gradient is made of a matrix that was rounded twice
 * before, as a sum and with dy. */
static void build_grams(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t groups = case_int(c, "G", 0), n = case_size(c, "N");
    int64_t x_shape[] = {groups, case_size(c, "M"), n}, w_shape[] = {groups, case_size(c, "K"), n};
    int rank = groups ? 3 : 2;
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, rank, x_shape + 3 - rank);
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, rank, w_shape + 3 - rank);
    case_loosen(c, 2);
    case_output(c, "y", CASE_DIFF, weft_dot(g, weft_gram(g, x), weft_gram(g, w)));
}

const case_builder cases_stack[] = {
    {"stack", build_stack},
    {"grams", build_grams},
    {NULL, NULL},
};

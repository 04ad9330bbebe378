/* Cases of the gated linear layer, built of the nodes that fuse.h makes it of. */
#include "cases.h"
#include "ops/activation.h"
#include "ops/linear.h"

/* Products that read the layer's result: its gradient is their sum, and a product itself where there
 * is one of them. */
static void build_down(test_case *c, weft_tensor *y, int64_t n, int64_t p, int diff) {
    const char *const names[][2] = {{"u0", "z0"}, {"u1", "z1"}};
    int64_t terms = case_int(c, "terms", 1);
    for (int64_t i = 0; i < terms && i < 2; i++) {
        weft_tensor *u = case_input(c, names[i][0], diff, 1, 2, (int64_t[]){p, n});
        case_output(c, names[i][1], diff, weft_linear(case_graph(c), y, u, NULL, WEFT_ACT_NONE));
    }
}

static void build_gated(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t m = case_size(c, "M"), k = case_size(c, "K"), n = case_size(c, "N");
    int64_t p = case_int(c, "down", 0);
    int diff = case_is(c, "grad", "none", "all") ? CASE_CONST : CASE_DIFF;
    weft_tensor *x = case_input(c, "x", diff, 1, 2, (int64_t[]){m, k});
    weft_tensor *v = case_input(c, "v", diff, 1, 2, (int64_t[]){n, k});
    weft_tensor *w = case_input(c, "w", diff, 1, 2, (int64_t[]){n, k});
    weft_tensor *y = weft_silu_mul(g, weft_linear(g, x, w, NULL, WEFT_ACT_NONE),
                                   weft_linear(g, x, v, NULL, WEFT_ACT_NONE));
    if (p)
        build_down(c, y, n, p, diff);
    else
        case_output(c, "y", diff, y);
}

const case_builder cases_gated[] = {{"gated", build_gated}, {NULL, NULL}};

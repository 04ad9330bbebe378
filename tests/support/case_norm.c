/* Cases of the norms. */
#include "cases.h"
#include "ops/norm.h"

static void build_norm(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "E")};
    bool layer = case_is(c, "kind", "layernorm", "layernorm");
    bool biased = case_int(c, "bias", layer) != 0;
    weft_tensor *r = NULL, *b = NULL;
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, shape);
    if (case_int(c, "residual", 0)) r = case_input(c, "r", CASE_DIFF, 1, 2, shape);
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 1, shape + 1);
    if (biased) b = case_input(c, "b", CASE_DIFF, 1, 1, shape + 1);
    weft_normed n = weft_norm(case_graph(c), x, r, w, b, layer ? WEFT_LAYERNORM : WEFT_RMSNORM);
    case_output(c, "y", CASE_DIFF, n.y);
    if (r) case_output(c, "s", CASE_DIFF, n.s);
    /* Backward reads s as bf16 holds it: with three numbers in a row its rounding shows. */
    if (r && shape[1] < 4) case_loosen(c, 2);
}

const case_builder cases_norm[] = {
    {"norm", build_norm},
    {NULL, NULL},
};

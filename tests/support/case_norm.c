/* Cases of the norms. */
#include "cases.h"
#include "ops/linear.h"
#include "ops/norm.h"

/* x or r: an input, or a linear layer with a bias, whose gradient norm_back then sums. */
static weft_tensor *make_term(test_case *c, const char *name, const int64_t *shape) {
    if (!case_is(c, "linear", name, "no")) return case_input(c, name, CASE_DIFF, 1, 2, shape);
    int64_t k = case_size(c, "K");
    weft_tensor *u = case_input(c, "u", CASE_DIFF, 1, 2, (int64_t[]){shape[0], k});
    weft_tensor *v = case_input(c, "v", CASE_DIFF, 1, 2, (int64_t[]){shape[1], k});
    weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 1, shape + 1);
    return weft_linear(case_graph(c), u, v, a, WEFT_ACT_NONE);
}

static void build_norm(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "E")};
    bool layer = case_is(c, "kind", "layernorm", "layernorm");
    bool biased = case_int(c, "bias", layer) != 0;
    weft_tensor *r = NULL, *b = NULL;
    weft_tensor *x = make_term(c, "x", shape);
    if (case_int(c, "residual", 0)) r = make_term(c, "r", shape);
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 1, shape + 1);
    if (biased) b = case_input(c, "b", CASE_DIFF, 1, 1, shape + 1);
    weft_normed n = weft_norm(case_graph(c), x, r, w, b, layer ? WEFT_LAYERNORM : WEFT_RMSNORM, 0);
    case_output(c, "y", CASE_DIFF, n.y);
    if (r) case_output(c, "s", CASE_DIFF, n.s);
    /* Backward reads s as bf16 holds it: with three numbers in a row its rounding shows. */
    if (r && shape[1] < 4) case_loosen(c, 2);
}

static void build_norm_heads(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"), case_size(c, "D")};
    int64_t heads = case_int(c, "heads", shape[2]), next = case_int(c, "next", 0);
    weft_tensor *x = case_input(c, "x", CASE_DIFF, case_number(c, "scale", 1), 4, shape);
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 1, shape + 3);
    weft_tensor *v = next ? case_input(c, "v", CASE_DIFF, 1, 1, shape + 3) : NULL;
    case_output(c, "y", CASE_DIFF, weft_norm_heads(case_graph(c), x, w, heads, v, next));
}

const case_builder cases_norm[] = {
    {"norm", build_norm},
    {"norm_heads", build_norm_heads},
    {NULL, NULL},
};

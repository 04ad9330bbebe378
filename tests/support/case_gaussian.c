/* Cases of the Gaussians. */
#include "cases.h"
#include "ops/gaussian.h"

static void build_gaussian(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"),
                       2 * case_size(c, "D")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, case_number(c, "range", 4), 4, shape);
    if (case_is(c, "of", "query", "key")) {
        case_output(c, "y", CASE_DIFF, weft_gaussian_query(case_graph(c), x));
        return;
    }
    weft_gaussian key = weft_gaussian_key(case_graph(c), x);
    case_output(c, "y", !case_is(c, "grad", "n", "both"), key.y);
    case_output(c, "n", !case_is(c, "grad", "y", "both"), key.n);
}

static void build_overlap(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"),
                       2 * case_size(c, "D")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, case_number(c, "range", 4), 4, shape);
    weft_overlap o = weft_overlap_scale(case_graph(c), x);
    case_output(c, "y", !case_is(c, "grad", "log_sigma", "both"), o.y);
    case_output(c, "log_sigma", !case_is(c, "grad", "y", "both"), o.log_sigma);
}

const case_builder cases_gaussian[] = {
    {"gaussian", build_gaussian},
    {"overlap", build_overlap},
    {NULL, NULL},
};

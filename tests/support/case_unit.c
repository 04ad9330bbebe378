/* Cases of vectors scaled to length 1. */
#include "cases.h"
#include "ops/norm.h"

static void build_unit(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"), case_size(c, "D")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, case_number(c, "scale", 1), 4, shape);
    weft_tensor *y = weft_unit(case_graph(c), x, case_int(c, "heads", shape[2]));
    case_output(c, "y", CASE_DIFF, y);
}

const case_builder cases_unit[] = {
    {"unit", build_unit},
    {NULL, NULL},
};

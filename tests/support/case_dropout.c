/* Cases of dropout. */
#include "cases.h"
#include "ops/activation.h"

static void build_dropout(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "N")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, shape);
    double p = case_number(c, "p", 0.1);
    case_output(c, "y", CASE_DIFF, weft_dropout(case_graph(c), x, p, "drop"));
}

const case_builder cases_dropout[] = {
    {"dropout", build_dropout},
    {NULL, NULL},
};

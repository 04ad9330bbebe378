/* Cases of the contrastive loss. */
#include "cases.h"
#include "ops/contrastive.h"

static void build_infonce(test_case *c) {
    int64_t shape[] = {case_size(c, "N"), case_size(c, "D")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, shape);
    weft_tensor *y =
        weft_infonce(case_graph(c), x, case_number(c, "tau", 0.07), case_number(c, "factor", 1));
    case_output(c, "y", CASE_DIFF, y);
}

const case_builder cases_contrastive[] = {
    {"infonce", build_infonce},
    {NULL, NULL},
};

/* Cases of the contrastive loss. */
#include "cases.h"
#include "ops/loss.h"

static void build_infonce(test_case *c) {
    int64_t losses = case_int(c, "L", 0), shape[] = {losses, case_size(c, "N"), case_size(c, "D")};
    weft_tensor *x = losses ? case_input(c, "x", CASE_DIFF, 1, 3, shape)
                            : case_input(c, "x", CASE_DIFF, 1, 2, shape + 1);
    weft_tensor *y = weft_infonce(case_graph(c), x, case_int(c, "group", 0),
                                  case_number(c, "tau", 0.07), case_number(c, "factor", 1));
    case_output(c, "y", CASE_DIFF, y);
}

const case_builder cases_contrastive[] = {
    {"infonce", build_infonce},
    {NULL, NULL},
};

/* Cases of rotary positions. */
#include "cases.h"
#include "ops/rope.h"

static void build_rope(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"), case_size(c, "D")};
    int64_t start = case_int(c, "start", 0) + case_int(c, "offset", 0);
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 4, shape), *first = NULL;
    if (start) first = case_constant(c, "start", (int32_t)start, 1, shape);
    weft_tensor *y = weft_rope(case_graph(c), x, case_int(c, "width", shape[3]),
                               case_int(c, "heads", shape[2]), first, &WEFT_ROPE_USUAL);
    case_output(c, "y", CASE_DIFF, y);
}

const case_builder cases_rope[] = {
    {"rope", build_rope},
    {NULL, NULL},
};

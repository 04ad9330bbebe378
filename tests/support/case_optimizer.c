/* Cases of the optimizer that are functions of their inputs. The trajectories of the updates, which
 * write theirs, are run by tests/ops/test_optimizer.c. */
#include "cases.h"
#include "ops/optimizer.h"

static void build_global_norm(test_case *c) {
    weft_tensor *grads[] = {
        case_input(c, "a", CASE_CONST, 1, 1, (int64_t[]){case_size(c, "N")}),
        case_input(c, "b", CASE_CONST, 4, 1, (int64_t[]){case_size(c, "M")}),
    };
    case_output(c, "y", CASE_CONST, weft_global_norm(case_graph(c), grads, 2));
}

const case_builder cases_optimizer[] = {
    {"global_norm", build_global_norm},
    {NULL, NULL},
};

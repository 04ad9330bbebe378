/* Cases of the means over time. */
#include "cases.h"
#include "ops/time.h"

static weft_tensor *sequence_input(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "N")};
    return case_input(c, "x", CASE_DIFF, 1, 3, shape);
}

static void build_running_mean(test_case *c) {
    case_output(c, "y", CASE_DIFF, weft_running_mean(case_graph(c), sequence_input(c)));
}

static void build_time_mean(test_case *c) {
    case_output(c, "y", CASE_DIFF, weft_time_mean(case_graph(c), sequence_input(c)));
}

const case_builder cases_time[] = {
    {"running_mean", build_running_mean},
    {"time_mean", build_time_mean},
    {NULL, NULL},
};

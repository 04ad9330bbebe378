/* Cases of what heads share. */
#include "cases.h"
#include "ops/heads.h"

static void build_head_repeat(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), 1, case_size(c, "L")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 4, shape);
    case_output(c, "y", CASE_DIFF, weft_head_repeat(case_graph(c), x, case_size(c, "H")));
}

/* Rows of `width` under as many dimensions as the case says, and the heads' scale. */
static weft_tensor *add_rows(test_case *c, const char *name, int64_t width, weft_tensor **scale) {
    int rank = (int)case_int(c, "rank", 2);
    int64_t shape[WEFT_MAX_DIMS] = {1, 1, 1, 1}, heads = case_size(c, "H");
    shape[rank - 1] = width;
    if (rank >= 2) shape[rank - 2] = case_size(c, "M");
    if (rank >= 3) shape[rank - 3] = case_size(c, "B");
    *scale = case_stat(c, "scale", !case_is(c, "grad", "rows", "both"), 1, 1, &heads);
    return case_input(c, name, !case_is(c, "grad", "scale", "both"), 1, rank, shape);
}

static void build_head_pool(test_case *c) {
    weft_tensor *scale, *x = add_rows(c, "x", case_size(c, "F"), &scale);
    case_output(c, "u", CASE_DIFF, weft_head_pool(case_graph(c), x, scale, case_size(c, "L")));
}

static void build_head_spread(test_case *c) {
    weft_tensor *scale, *row = add_rows(c, "c", case_size(c, "L"), &scale);
    case_output(c, "e", CASE_DIFF, weft_head_spread(case_graph(c), row, scale, case_size(c, "F")));
}

static void build_head_transpose(test_case *c) {
    int64_t shape[] = {case_size(c, "H"), case_size(c, "M"), case_size(c, "N")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 3, shape);
    case_output(c, "y", CASE_DIFF, weft_head_transpose(case_graph(c), x));
}

const case_builder cases_heads[] = {
    {"head_repeat", build_head_repeat},
    {"head_pool", build_head_pool},
    {"head_spread", build_head_spread},
    {"head_transpose", build_head_transpose},
    {NULL, NULL},
};

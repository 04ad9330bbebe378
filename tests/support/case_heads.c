/* Cases of what heads share. */
#include "cases.h"
#include "ops/heads.h"

static void build_head_repeat(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), 1, case_size(c, "L")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 4, shape);
    case_output(c, "y", CASE_DIFF, weft_head_repeat(case_graph(c), x, case_size(c, "H")));
}

/* Case head_columns: x of X heads, z of Z heads (0: none); `slots` slots. */
static void build_head_columns(test_case *c) {
    int64_t b = case_size(c, "B"), t = case_size(c, "T"), heads = case_size(c, "H");
    int64_t others = case_int(c, "Z", 0);
    weft_head_columns_attr attr = {.heads = heads,
                                   .width = case_size(c, "W"),
                                   .slots = case_int(c, "slots", 1),
                                   .part[0] = {case_int(c, "from", 0), case_size(c, "N"),
                                               case_int(c, "to", 0), case_int(c, "from_step", 0),
                                               case_int(c, "to_step", 0)}};
    int64_t x_shape[] = {b, t, case_size(c, "X"), case_size(c, "L")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 4, x_shape), *z = NULL;
    if (others) {
        int64_t z_shape[] = {b, t, others, case_size(c, "M")};
        z = case_input(c, "z", CASE_DIFF, 1, 4, z_shape);
        attr.part[1] = (weft_columns){.count = case_size(c, "M"), .to = case_int(c, "at", 0)};
    }
    case_output(c, "y", CASE_DIFF, weft_head_columns(case_graph(c), attr, x, z));
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
    {"head_repeat", build_head_repeat},       {"head_columns", build_head_columns},
    {"head_pool", build_head_pool},           {"head_spread", build_head_spread},
    {"head_transpose", build_head_transpose}, {NULL, NULL},
};

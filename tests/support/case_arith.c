/* Cases of plain arithmetic. */
#include "cases.h"
#include "ops/arith.h"

static void build_fill(test_case *c) {
    int64_t shape[] = {case_size(c, "N")};
    double value = case_number(c, "value", 1);
    case_output(c, "y", CASE_CONST, weft_fill(case_graph(c), case_dtype(c), 1, shape, value));
}

static void build_add(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};
    double alpha = case_number(c, "alpha", 1);
    int broadcast = case_int(c, "broadcast", 0) != 0;
    weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 2, shape);
    weft_tensor *b = case_input(c, "b", CASE_DIFF, 1, broadcast ? 1 : 2, shape + broadcast);
    weft_tensor *y =
        alpha == 1 ? weft_add(case_graph(c), a, b) : weft_add_scaled(case_graph(c), a, b, alpha);
    case_output(c, "y", CASE_DIFF, y);
}

static void build_scale(test_case *c) {
    weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 1, (int64_t[]){case_size(c, "N")});
    case_output(c, "y", CASE_DIFF, weft_scale(case_graph(c), a, case_number(c, "alpha", 1)));
}

static void build_cast(test_case *c) {
    weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 1, (int64_t[]){case_size(c, "N")});
    weft_dtype to = case_stat_dtype(c);
    if (to != WEFT_F64 && case_is(c, "to", "bf16", "f32")) to = WEFT_BF16;
    case_output(c, "y", CASE_DIFF, weft_cast(case_graph(c), a, to));
}

static void build_dot(test_case *c) {
    int64_t shape[] = {case_size(c, "N")};
    weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 1, shape);
    weft_tensor *b = case_input(c, "b", CASE_DIFF, 1, 1, shape);
    case_output(c, "y", CASE_DIFF, weft_dot(case_graph(c), a, b));
}

static void build_sum_squares(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, shape);
    double factor = case_number(c, "factor", 1);
    case_output(c, "y", CASE_DIFF, weft_sum_squares(case_graph(c), x, factor));
}

static void build_row_squares(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"), case_size(c, "D")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 4, shape);
    int64_t start = case_int(c, "start", 0);
    case_output(c, "n", CASE_DIFF, weft_row_squares(case_graph(c), x, start));
}

const case_builder cases_arith[] = {
    {"fill", build_fill},
    {"add", build_add},
    {"scale", build_scale},
    {"cast", build_cast},
    {"dot", build_dot},
    {"sum_squares", build_sum_squares},
    {"row_squares", build_row_squares},
    {NULL, NULL},
};

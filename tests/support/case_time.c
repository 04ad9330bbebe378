/* Cases of the means over time, and of moments. */
#include "cases.h"
#include "ops/arith.h"
#include "ops/documents.h"
#include "ops/linear.h"
#include "ops/time.h"

static weft_tensor *sequence_input(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "N")};
    return case_input(c, "x", CASE_DIFF, 1, 3, shape);
}

static void build_running_mean(test_case *c) {
    int64_t kinds = case_int(c, "documents", 0), shape[] = {case_size(c, "B"), case_size(c, "T")};
    weft_tensor *x = sequence_input(c), *first = NULL;
    if (kinds) {
        weft_tensor *tokens = case_ids(c, "tokens", kinds, kinds, 2, shape);
        first = weft_find_documents(case_graph(c), tokens, 0).first;
    }
    case_output(c, "y", CASE_DIFF, weft_running_mean(case_graph(c), x, first));
}

static void build_time_mean(test_case *c) {
    case_output(c, "y", CASE_DIFF, weft_time_mean(case_graph(c), sequence_input(c)));
}

/* The Gram matrix is read as a symmetric one, by its dot with another. A gradient is made of matrices
 * that were rounded before. */
static void build_moments(test_case *c) {
    weft_graph *g = case_graph(c);
    int64_t shape[] = {case_size(c, "K"), case_size(c, "N")};
    weft_moments_of m = weft_moments(g, sequence_input(c));
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 2, shape);
    case_loosen(c, 2);
    case_output(c, "y", CASE_DIFF, weft_dot(g, m.gram, weft_gram(g, w)));
    case_output(c, "sum", CASE_DIFF, m.sum);
}

const case_builder cases_time[] = {
    {"running_mean", build_running_mean},
    {"time_mean", build_time_mean},
    {"moments", build_moments},
    {NULL, NULL},
};

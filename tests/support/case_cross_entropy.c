/* Cases of the fused linear and cross-entropy. */
#include "cases.h"
#include "ops/arith.h"
#include "ops/loss.h"

static void build_cross_entropy(test_case *c) {
    int64_t n = case_size(c, "N"), e = case_size(c, "E"), v = case_size(c, "V");
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 1, 2, (int64_t[]){n, e});
    weft_tensor *w = case_input(c, "w", CASE_DIFF, 1, 2, (int64_t[]){v, e});
    int64_t limit = case_int(c, "ignore", 0) ? v + 2 : v;
    weft_tensor *targets = case_ids(c, "targets", limit, v, 1, (int64_t[]){n});
    bool detach = case_int(c, "detach", 0);
    double over = case_number(c, "over", 0);
    weft_tensor *count =
        over > 0 ? weft_fill(case_graph(c), case_stat_dtype(c), 0, NULL, over) : NULL;
    weft_losses losses =
        weft_cross_entropy(case_graph(c), x, w, targets, count, case_number(c, "z", 0), detach,
                           case_number(c, "softcap", 0));
    case_output(c, "ce", CASE_DIFF, losses.ce);
    case_output(c, "z", detach ? CASE_CONST : CASE_DIFF, losses.z);
    case_output(c, "lse", CASE_CONST, losses.lse);
}

const case_builder cases_cross_entropy[] = {
    {"cross_entropy", build_cross_entropy},
    {NULL, NULL},
};

/* Cases of the embedding. */
#include "cases.h"
#include "ops/embedding.h"
#include "ops/linear.h"

static void build_embed(test_case *c) {
    int64_t b = case_size(c, "B"), t = case_size(c, "T");
    int64_t v = case_size(c, "V"), e = case_size(c, "E");
    weft_tensor *wte = case_input(c, "wte", CASE_DIFF, 1, 2, (int64_t[]){v, e});
    weft_tensor *wpe = NULL, *start = NULL;
    int64_t offset = case_int(c, "offset", 0);
    if (case_is(c, "position", "learned", "none"))
        wpe = case_input(c, "wpe", CASE_DIFF, 1, 2, (int64_t[]){case_size(c, "P"), e});
    weft_tensor *ids = case_ids(c, "ids", v, v, 2, (int64_t[]){b, t});
    if (offset || case_int(c, "runtime", 0))
        start = case_constant(c, "start", (int32_t)offset, 1, (int64_t[]){b});
    case_output(c, "y", CASE_DIFF, weft_embed(case_graph(c), wte, ids, wpe, start));
    if (!case_int(c, "tied", 0)) return;
    weft_tensor *u = case_input(c, "u", CASE_DIFF, 1, 2, (int64_t[]){case_size(c, "M"), e});
    case_output(c, "z", CASE_DIFF, weft_linear(case_graph(c), u, wte, NULL, WEFT_ACT_NONE));
}

const case_builder cases_embedding[] = {
    {"embed", build_embed},
    {NULL, NULL},
};

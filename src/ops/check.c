/* Checks that shape rules share. */
#include "ops/check.h"

weft_status weft_check_float(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t) {
    if (t->dtype != WEFT_I32 && t->dtype != WEFT_I8) return WEFT_OK;
    return weft_graph_fail(g, "%s: %s is %s, but it must be f32, f64 or bf16", n->op->name, what,
                           weft_tensor_describe(t));
}

weft_status weft_check_int(weft_graph *g, const weft_node *n, const char *what,
                           const weft_tensor *t) {
    if (t->dtype == WEFT_I32) return WEFT_OK;
    return weft_graph_fail(g, "%s: %s is %s, but it must be i32", n->op->name, what,
                           weft_tensor_describe(t));
}

weft_status weft_check_same(weft_graph *g, const weft_node *n, const char *a_name,
                            const weft_tensor *a, const char *b_name, const weft_tensor *b) {
    if (weft_tensor_same_shape(a, b)) return WEFT_OK;
    return weft_graph_fail(g, "%s: %s is %s, but %s is %s; they must have one shape", n->op->name,
                           a_name, weft_tensor_describe(a), b_name, weft_tensor_describe(b));
}

weft_status weft_check_shape(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t, int ndim, const int64_t *shape) {
    weft_tensor want = {.dtype = t->dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        want.shape[d] = shape[d];
    if (weft_tensor_same_shape(t, &want)) return WEFT_OK;
    return weft_graph_fail(g, "%s: %s is %s, but the other inputs ask for %s", n->op->name, what,
                           weft_tensor_describe(t), weft_tensor_describe(&want));
}

weft_status weft_check_ndim(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, int ndim) {
    if (t->ndim == ndim) return WEFT_OK;
    return weft_graph_fail(g, "%s: %s is %s, but it must have %d dimensions", n->op->name, what,
                           weft_tensor_describe(t), ndim);
}

weft_dtype weft_stat_dtype(const weft_tensor *t) {
    return t->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

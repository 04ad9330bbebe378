/* What the files that define operations share. */
#include "ops/define.h"

weft_tensor *weft_append_list(weft_graph *g, const weft_op *op, const void *attr, size_t size,
                              int required, int n_in, weft_tensor *const *in) {
    weft_tensor *out = NULL;
    weft_append_back_list(g, op, attr, size, &out, 1, required, n_in, in);
    return out;
}

weft_status weft_append_back_list(weft_graph *g, const weft_op *op, const void *attr, size_t size,
                                  weft_tensor **d_in, int n_out, int required, int n_in,
                                  weft_tensor *const *in) {
    if (required > n_in) required = n_in;
    const weft_node *n = weft_graph_append(g, op, in, n_in, required, n_out, attr, size);
    for (int i = 0; n && i < n_out; i++)
        d_in[i] = n->out[i];
    return weft_graph_status(g);
}

weft_status weft_check_pair(weft_graph *g, const weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "a", n->in[0]));
    WEFT_TRY(weft_check_float(g, n, "b", n->in[1]));
    return weft_check_same(g, n, "a", n->in[0], "b", n->in[1]);
}

weft_status weft_infer_like_first(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[0]));
    return weft_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
}

weft_status weft_infer_like_second(weft_graph *g, weft_node *n) {
    return weft_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
}

weft_status weft_infer_back(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[1]));
    WEFT_TRY(weft_check_same(g, n, "dy", n->in[0], "x", n->in[1]));
    return weft_infer_like_second(g, n);
}

weft_status weft_infer_wanted(weft_graph *g, weft_node *n) {
    const weft_wanted *want = n->attr;
    if (want->first) weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    if (want->second) weft_node_output_like(g, n, 1, n->in[2]->dtype, n->in[2]);
    return weft_graph_status(g);
}

weft_status weft_check_float(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t) {
    if (t->dtype != WEFT_I32 && t->dtype != WEFT_I8) return WEFT_OK;
    return REFUSE("%s is %s, but it must be f32, f64 or bf16", what, weft_tensor_describe(t));
}

weft_status weft_check_float_of(weft_graph *g, const weft_node *n, const char *what,
                                const weft_tensor *t, int ndim) {
    WEFT_TRY(weft_check_float(g, n, what, t));
    return weft_check_ndim(g, n, what, t, ndim);
}

weft_status weft_check_int(weft_graph *g, const weft_node *n, const char *what,
                           const weft_tensor *t) {
    if (t->dtype == WEFT_I32) return WEFT_OK;
    return REFUSE("%s is %s, but it must be i32", what, weft_tensor_describe(t));
}

weft_status weft_check_same(weft_graph *g, const weft_node *n, const char *a_name,
                            const weft_tensor *a, const char *b_name, const weft_tensor *b) {
    if (weft_tensor_same_shape(a, b)) return WEFT_OK;
    return REFUSE("%s is %s, but %s is %s; they must have one shape", a_name,
                  weft_tensor_describe(a), b_name, weft_tensor_describe(b));
}

weft_status weft_check_shape(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t, int ndim, const int64_t *shape) {
    weft_tensor want = {.dtype = t->dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        want.shape[d] = shape[d];
    if (weft_tensor_same_shape(t, &want)) return WEFT_OK;
    return REFUSE("%s is %s, but the other inputs ask for %s", what, weft_tensor_describe(t),
                  weft_tensor_describe(&want));
}

weft_status weft_check_places(weft_graph *g, const weft_node *n, const char *what,
                              const weft_tensor *t, int ndim, const int64_t *shape) {
    if (!t) return WEFT_OK;
    WEFT_TRY(weft_check_int(g, n, what, t));
    return weft_check_shape(g, n, what, t, ndim, shape);
}

weft_status weft_check_ndim(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, int ndim) {
    if (t->ndim == ndim) return WEFT_OK;
    return REFUSE("%s is %s, but it must have %d dimensions", what, weft_tensor_describe(t), ndim);
}

weft_status weft_check_stat(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, const weft_tensor *beside) {
    weft_dtype stat = weft_stat_dtype(beside);
    if (t->dtype == stat) return WEFT_OK;
    return REFUSE("%s is %s, but beside %s it must be %s", what, weft_tensor_describe(t),
                  weft_tensor_describe(beside), weft_dtype_name(stat));
}

weft_dtype weft_stat_dtype(const weft_tensor *t) {
    return t->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

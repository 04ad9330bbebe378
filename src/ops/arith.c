/* Plain arithmetic: what it computes and its gradients.
 *
 * add           y = a + αb                da = dy          db = α dy, summed over the rows that
 *                                                          shared b
 * scale         y = αa                    da = α dy
 * cast          y = a in another type     da = dy in a's type
 * dot           y = Σ ab                  da = dy · b      db = dy · a
 * sum_squares   y = α Σ x²                dx = 2α dy · x
 * row_squares   n_bht = Σ_d≥s x_bthd²     dx = 2 dn · x where d ≥ s, else 0
 */
#include "ops/arith.h"

#include "ops/define.h"
#include "ops/linear.h"

OPERATION(fill, weft_fill_attr, none) {
    if (attr->dtype == WEFT_I32) return REFUSE("makes f32, f64 or bf16, not i32");
    return weft_output(g, n, 0, attr->dtype, attr->ndim, attr->shape);
}

weft_tensor *weft_fill(weft_graph *g, weft_dtype dtype, int ndim, const int64_t *shape,
                       double value) {
    weft_fill_attr attr = {.dtype = dtype, .ndim = ndim, .value = value};
    for (int d = 0; d < ndim && d < WEFT_MAX_DIMS; d++)
        attr.shape[d] = shape[d];
    return weft_append_list(g, &weft_op_fill, &attr, sizeof attr, 0, 0, NULL);
}

static weft_tensor *ones_like(weft_graph *g, const weft_tensor *like) {
    return weft_fill(g, like->dtype, like->ndim, like->shape, 1);
}

const weft_autodiff weft_autodiff_ops = {.add = weft_add, .ones = ones_like};

OPERATION_WITH_GRAD(add, void, a, .inplace = weft_over_first) {
    const weft_tensor *b = n->in[1];
    WEFT_TRY(weft_check_float(g, n, "a", a));
    WEFT_TRY(weft_check_float(g, n, "b", b));
    bool fits = b->ndim <= a->ndim;
    for (int d = 1; fits && d <= b->ndim; d++)
        fits = a->shape[a->ndim - d] == b->shape[b->ndim - d];
    if (!fits)
        return REFUSE("a is %s, but b is %s; b must have a's shape or its last dimensions",
                      weft_tensor_describe(a), weft_tensor_describe(b));
    return weft_output_like(g, n, 0, a->dtype, a);
}

GRAD(add) {
    const weft_alpha_attr *attr = n->attr;
    const weft_tensor *b = n->in[1];
    d_in[0] = d_out[0];
    if (!b->needs_grad) return WEFT_OK;
    weft_tensor *db = d_out[0];
    if (b->ndim < n->in[0]->ndim) { /* summed over the rows that shared b */
        int64_t width = weft_tensor_count(b), rows = weft_tensor_count(db) / width;
        db = weft_bias_back(g, weft_view(g, db, rows, width), b->dtype);
        db = weft_reshape(g, db, b->ndim, b->shape);
    }
    if (attr->alpha != 1) db = weft_scale(g, db, attr->alpha);
    d_in[1] = db && db->dtype != b->dtype ? weft_cast(g, db, b->dtype) : db;
    return weft_graph_status(g);
}

weft_tensor *weft_add_scaled(weft_graph *g, weft_tensor *a, weft_tensor *b, double alpha) {
    weft_alpha_attr attr = {alpha};
    return weft_append(g, &weft_op_add, &attr, sizeof attr, a, b);
}

weft_tensor *weft_add(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return weft_add_scaled(g, a, b, 1);
}

DEFINE_GRAD_AS(scale, weft_scale(g, d_out[0], ((const weft_alpha_attr *)n->attr)->alpha))
DEFINE_OP(scale, .infer = weft_infer_like_first, .grad = scale_grad, .inplace = weft_over_first);
DEFINE_APPEND_WITH(scale, (weft_tensor * a, double alpha), (weft_alpha_attr){alpha}, a)

OPERATION_WITH_GRAD(cast, weft_dtype, a) {
    weft_dtype to = *attr;
    WEFT_TRY(weft_check_float(g, n, "a", a));
    if (a->dtype == WEFT_F64 || (to != WEFT_F32 && to != WEFT_BF16))
        return REFUSE("%s to %s; only f32 and bf16 are converted", weft_tensor_describe(a),
                      weft_dtype_name(to));
    return weft_output_like(g, n, 0, to, a);
}

DEFINE_GRAD_AS(cast, weft_cast(g, d_out[0], n->in[0]->dtype))

weft_tensor *weft_cast(weft_graph *g, weft_tensor *a, weft_dtype to) {
    if (a && a->dtype == to) return a;
    return weft_append(g, &weft_op_cast, &to, sizeof to, a);
}

OPERATION_WITH_GRAD(dot, void, a) {
    WEFT_TRY(weft_check_pair(g, n));
    return weft_output(g, n, 0, weft_stat_dtype(a), 0, NULL);
}

DEFINE_GRAD_OF_TWO(dot)
DEFINE_OP(dot_back, .infer = weft_infer_wanted, .inplace = weft_over_own);
DEFINE_APPEND(dot, (weft_tensor * a, weft_tensor *b), a, b)

OPERATION_WITH_GRAD(sum_squares, void, x) {
    WEFT_TRY(weft_check_float(g, n, "x", x));
    return weft_output(g, n, 0, weft_stat_dtype(x), 0, NULL);
}

DEFINE_GRAD(sum_squares, sizeof(weft_alpha_attr), n->in[0])
DEFINE_OP(sum_squares_back, .infer = weft_infer_like_second, .inplace = weft_over_second);
DEFINE_APPEND_WITH(sum_squares, (weft_tensor * x, double factor), (weft_alpha_attr){factor}, x)

OPERATION_WITH_GRAD(row_squares, weft_row_squares_attr, x) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 4));
    if (attr->start < 0 || attr->start > x->shape[3])
        return REFUSE("start %lld is outside x's last dimension, %s", (long long)attr->start,
                      weft_tensor_describe(x));
    return weft_output_of(g, n, 0, weft_stat_dtype(x), x->shape[0], x->shape[2], x->shape[1]);
}

DEFINE_GRAD(row_squares, sizeof(weft_row_squares_attr), n->in[0])
DEFINE_OP(row_squares_back, .infer = weft_infer_like_second, .inplace = weft_over_second);
DEFINE_APPEND_WITH(row_squares, (weft_tensor * x, int64_t start), (weft_row_squares_attr){start}, x)

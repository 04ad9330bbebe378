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

#include "ops/check.h"
#include "ops/linear.h"
#include "ops/list.h"

static int first_in_place(const weft_node *n, int out) {
    (void)n;
    (void)out;
    return 0;
}

static int second_in_place(const weft_node *n, int out) {
    (void)n;
    (void)out;
    return 1;
}

static weft_tensor *only_output(const weft_node *n) {
    return n ? n->out[0] : NULL;
}

/* fill */

static weft_status fill_infer(weft_graph *g, weft_node *n) {
    const weft_fill_attr *a = n->attr;
    if (a->dtype == WEFT_I32) return weft_graph_fail(g, "fill: makes f32, f64 or bf16, not i32");
    weft_node_output(g, n, 0, a->dtype, a->ndim, a->shape);
    return weft_graph_status(g);
}

const weft_op weft_op_fill = {
    .name = "fill",
    .id = WEFT_OP_fill,
    .infer = fill_infer,
};

weft_tensor *weft_fill(weft_graph *g, weft_dtype dtype, int ndim, const int64_t *shape,
                       double value) {
    weft_fill_attr attr = {.dtype = dtype, .ndim = ndim, .value = value};
    for (int d = 0; d < ndim && d < WEFT_MAX_DIMS; d++)
        attr.shape[d] = shape[d];
    return only_output(weft_graph_append(g, &weft_op_fill, NULL, 0, 0, 1, &attr, sizeof attr));
}

static weft_tensor *ones_like(weft_graph *g, const weft_tensor *like) {
    return weft_fill(g, like->dtype, like->ndim, like->shape, 1);
}

const weft_autodiff weft_autodiff_ops = {.add = weft_add, .ones = ones_like};

/* add */

static weft_status add_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *a = n->in[0], *b = n->in[1];
    WEFT_TRY(weft_check_float(g, n, "a", a));
    WEFT_TRY(weft_check_float(g, n, "b", b));
    bool fits = b->ndim <= a->ndim;
    for (int d = 1; fits && d <= b->ndim; d++)
        fits = a->shape[a->ndim - d] == b->shape[b->ndim - d];
    if (!fits)
        return weft_graph_fail(
            g, "add: a is %s, but b is %s; b must have a's shape or its last dimensions",
            weft_tensor_describe(a), weft_tensor_describe(b));
    weft_node_output_like(g, n, 0, a->dtype, a);
    return weft_graph_status(g);
}

/* dy summed over the rows that shared b, as b's own shape and type. */
static weft_tensor *sum_over_rows(weft_graph *g, weft_tensor *dy, const weft_tensor *b) {
    int64_t width = weft_tensor_count(b), rows = weft_tensor_count(dy) / width;
    weft_tensor *flat = weft_view(g, dy, rows, width);
    weft_bias_back_attr attr = {b->dtype};
    weft_node *n = weft_graph_append(g, &weft_op_bias_back, &flat, 1, 1, 1, &attr, sizeof attr);
    return n ? weft_reshape(g, n->out[0], b->ndim, b->shape) : NULL;
}

static weft_status add_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                            weft_tensor **d_in) {
    const weft_alpha_attr *attr = n->attr;
    const weft_tensor *b = n->in[1];
    d_in[0] = d_out[0];
    if (!b->needs_grad) return WEFT_OK;
    weft_tensor *db = d_out[0];
    if (b->ndim < n->in[0]->ndim) db = sum_over_rows(g, db, b);
    if (attr->alpha != 1) db = weft_scale(g, db, attr->alpha);
    d_in[1] = db && db->dtype != b->dtype ? weft_cast(g, db, b->dtype) : db;
    return weft_graph_status(g);
}

const weft_op weft_op_add = {
    .name = "add",
    .id = WEFT_OP_add,
    .infer = add_infer,
    .grad = add_grad,
    .inplace = first_in_place,
};

weft_tensor *weft_add_scaled(weft_graph *g, weft_tensor *a, weft_tensor *b, double alpha) {
    weft_alpha_attr attr = {alpha};
    return only_output(
        weft_graph_append(g, &weft_op_add, (weft_tensor *[]){a, b}, 2, 2, 1, &attr, sizeof attr));
}

weft_tensor *weft_add(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return weft_add_scaled(g, a, b, 1);
}

/* scale */

static weft_status scale_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "a", n->in[0]));
    weft_node_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
    return weft_graph_status(g);
}

static weft_status scale_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                              weft_tensor **d_in) {
    d_in[0] = weft_scale(g, d_out[0], ((const weft_alpha_attr *)n->attr)->alpha);
    return weft_graph_status(g);
}

const weft_op weft_op_scale = {
    .name = "scale",
    .id = WEFT_OP_scale,
    .infer = scale_infer,
    .grad = scale_grad,
    .inplace = first_in_place,
};

weft_tensor *weft_scale(weft_graph *g, weft_tensor *a, double alpha) {
    weft_alpha_attr attr = {alpha};
    return only_output(weft_graph_append(g, &weft_op_scale, &a, 1, 1, 1, &attr, sizeof attr));
}

/* cast */

static weft_status cast_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *a = n->in[0];
    weft_dtype to = ((const weft_cast_attr *)n->attr)->to;
    WEFT_TRY(weft_check_float(g, n, "a", a));
    if (a->dtype == WEFT_F64 || (to != WEFT_F32 && to != WEFT_BF16))
        return weft_graph_fail(g, "cast: %s to %s; only f32 and bf16 are converted",
                               weft_tensor_describe(a), weft_dtype_name(to));
    weft_node_output_like(g, n, 0, to, a);
    return weft_graph_status(g);
}

static weft_status cast_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                             weft_tensor **d_in) {
    d_in[0] = weft_cast(g, d_out[0], n->in[0]->dtype);
    return weft_graph_status(g);
}

const weft_op weft_op_cast = {
    .name = "cast",
    .id = WEFT_OP_cast,
    .infer = cast_infer,
    .grad = cast_grad,
};

weft_tensor *weft_cast(weft_graph *g, weft_tensor *a, weft_dtype to) {
    if (a && a->dtype == to) return a;
    weft_cast_attr attr = {to};
    return only_output(weft_graph_append(g, &weft_op_cast, &a, 1, 1, 1, &attr, sizeof attr));
}

/* dot */

static weft_status dot_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "a", n->in[0]));
    WEFT_TRY(weft_check_float(g, n, "b", n->in[1]));
    WEFT_TRY(weft_check_same(g, n, "a", n->in[0], "b", n->in[1]));
    weft_node_output(g, n, 0, weft_stat_dtype(n->in[0]), 0, NULL);
    return weft_graph_status(g);
}

static weft_status dot_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                            weft_tensor **d_in) {
    weft_dot_back_attr attr = {n->in[0]->needs_grad, n->in[1]->needs_grad};
    weft_tensor *in[] = {d_out[0], n->in[0], n->in[1]};
    weft_node *back = weft_graph_append(g, &weft_op_dot_back, in, 3, 3, 2, &attr, sizeof attr);
    if (!back) return weft_graph_status(g);
    d_in[0] = back->out[0];
    d_in[1] = back->out[1];
    return WEFT_OK;
}

const weft_op weft_op_dot = {
    .name = "dot",
    .id = WEFT_OP_dot,
    .infer = dot_infer,
    .grad = dot_grad,
};

static weft_status dot_back_infer(weft_graph *g, weft_node *n) {
    const weft_dot_back_attr *want = n->attr;
    if (want->da) weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    if (want->db) weft_node_output_like(g, n, 1, n->in[2]->dtype, n->in[2]);
    return weft_graph_status(g);
}

static int dot_back_in_place(const weft_node *n, int out) {
    (void)n;
    return out + 1;
}

const weft_op weft_op_dot_back = {
    .name = "dot_back",
    .id = WEFT_OP_dot_back,
    .infer = dot_back_infer,
    .inplace = dot_back_in_place,
};

weft_tensor *weft_dot(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return only_output(
        weft_graph_append(g, &weft_op_dot, (weft_tensor *[]){a, b}, 2, 2, 1, NULL, 0));
}

/* sum_squares */

static weft_status sum_squares_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[0]));
    weft_node_output(g, n, 0, weft_stat_dtype(n->in[0]), 0, NULL);
    return weft_graph_status(g);
}

static weft_status sum_squares_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                    weft_tensor **d_in) {
    d_in[0] = only_output(weft_graph_append(g, &weft_op_sum_squares_back,
                                            (weft_tensor *[]){d_out[0], n->in[0]}, 2, 2, 1, n->attr,
                                            sizeof(weft_alpha_attr)));
    return weft_graph_status(g);
}

const weft_op weft_op_sum_squares = {
    .name = "sum_squares",
    .id = WEFT_OP_sum_squares,
    .infer = sum_squares_infer,
    .grad = sum_squares_grad,
};

/* dx like x, from (dy, x). */
static weft_status squares_back_infer(weft_graph *g, weft_node *n) {
    weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    return weft_graph_status(g);
}

const weft_op weft_op_sum_squares_back = {
    .name = "sum_squares_back",
    .id = WEFT_OP_sum_squares_back,
    .infer = squares_back_infer,
    .inplace = second_in_place,
};

weft_tensor *weft_sum_squares(weft_graph *g, weft_tensor *x, double factor) {
    weft_alpha_attr attr = {factor};
    return only_output(weft_graph_append(g, &weft_op_sum_squares, &x, 1, 1, 1, &attr, sizeof attr));
}

/* row_squares */

static weft_status row_squares_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    int64_t start = ((const weft_row_squares_attr *)n->attr)->start;
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_ndim(g, n, "x", x, 4));
    if (start < 0 || start > x->shape[3])
        return weft_graph_fail(g, "row_squares: start %lld is outside x's last dimension, %s",
                               (long long)start, weft_tensor_describe(x));
    weft_node_output(g, n, 0, weft_stat_dtype(x), 3,
                     (int64_t[]){x->shape[0], x->shape[2], x->shape[1]});
    return weft_graph_status(g);
}

static weft_status row_squares_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                    weft_tensor **d_in) {
    d_in[0] = only_output(weft_graph_append(g, &weft_op_row_squares_back,
                                            (weft_tensor *[]){d_out[0], n->in[0]}, 2, 2, 1, n->attr,
                                            sizeof(weft_row_squares_attr)));
    return weft_graph_status(g);
}

const weft_op weft_op_row_squares = {
    .name = "row_squares",
    .id = WEFT_OP_row_squares,
    .infer = row_squares_infer,
    .grad = row_squares_grad,
};

const weft_op weft_op_row_squares_back = {
    .name = "row_squares_back",
    .id = WEFT_OP_row_squares_back,
    .infer = squares_back_infer,
    .inplace = second_in_place,
};

weft_tensor *weft_row_squares(weft_graph *g, weft_tensor *x, int64_t start) {
    weft_row_squares_attr attr = {start};
    return only_output(weft_graph_append(g, &weft_op_row_squares, &x, 1, 1, 1, &attr, sizeof attr));
}

/* Between what a head has and what heads share: what is computed and its gradients.
 *
 * head_columns     y[h] = columns of x and z   dx = head_columns_back(dy): each column's Σ_h
 * head_pool        u[j] = s_h Σ_m x[jr + m]    dx = head_spread(du)    ds = head_scale_back(x, du)
 * head_spread      e[jr + m] = s_h c[j]        dc = head_pool(de)      ds = head_scale_back(de, c)
 * head_scale_back  ds_h = Σ over rows, and j of head h, of n[j] Σ_m w[jr + m], w wide, n narrow
 * head_transpose   y[h] = x[h]ᵀ                dx = head_transpose(dy)
 *
 * Column j of a row of L belongs to head h = j / (L/H), and its run of r = F/L columns of the row of
 * F, h·F/H + l·r + m, is just jr + m: so pool and spread are each other's transpose, and one
 * reduction is the scale's gradient in both. `mean` divides by r: the pool that is a mean, its
 * gradients.
 */
#include "ops/heads.h"

#include "ops/define.h"

OPERATION_WITH_GRAD(head_columns, weft_head_columns_attr, x) {
    if (attr->heads < 1 || attr->slots < 1 || attr->heads % attr->slots)
        return REFUSE("%lld heads do not share %lld slots", (long long)attr->heads,
                      (long long)attr->slots);
    for (int i = 0; i < n->n_in; i++) {
        const weft_tensor *from = n->in[i];
        WEFT_TRY(weft_check_float_of(g, n, "x", from, 4));
        if (from->dtype != x->dtype || from->shape[0] != x->shape[0] ||
            from->shape[1] != x->shape[1] || attr->heads % from->shape[2])
            return REFUSE("%s does not go with %s and %lld heads", weft_tensor_describe(from),
                          weft_tensor_describe(x), (long long)attr->heads);
        for (int64_t h = 0; h < attr->heads; h++) {
            weft_columns_place p = weft_columns_of(attr, i, from->shape[2], h);
            if (attr->part[i].count < 1 || p.from < 0 ||
                p.from + attr->part[i].count > from->shape[3] || p.to < 0 ||
                p.to + attr->part[i].count > attr->width)
                return REFUSE("%lld columns of %s from %lld on do not go to column %lld of %lld",
                              (long long)attr->part[i].count, weft_tensor_describe(from),
                              (long long)p.from, (long long)p.to, (long long)attr->width);
        }
    }
    const weft_tensor *z = n->n_in > 1 ? n->in[1] : NULL;
    for (int64_t h = 0; z && h < attr->heads; h++) {
        int64_t one = weft_columns_of(attr, 0, x->shape[2], h).to;
        int64_t other = weft_columns_of(attr, 1, z->shape[2], h).to;
        if (one < other + attr->part[1].count && other < one + attr->part[0].count)
            return REFUSE("both parts go to the same columns");
    }
    return weft_output_of(g, n, 0, x->dtype, x->shape[0], x->shape[1], attr->heads, attr->width);
}

GRAD(head_columns) {
    for (int i = 0; i < n->n_in; i++) {
        if (!n->in[i]->needs_grad) continue;
        weft_head_columns_attr attr = *(const weft_head_columns_attr *)n->attr;
        attr.part[0] = attr.part[i];
        attr.from_heads = n->in[i]->shape[2];
        attr.from_width = n->in[i]->shape[3];
        d_in[i] = weft_append(g, &weft_op_head_columns_back, &attr, sizeof attr, d_out[0]);
    }
    return weft_graph_status(g);
}

OPERATION(head_columns_back, weft_head_columns_attr, dy) {
    return weft_output_of(g, n, 0, dy->dtype, dy->shape[0], dy->shape[1], attr->from_heads,
                          attr->from_width);
}

weft_tensor *weft_head_columns(weft_graph *g, weft_head_columns_attr attr, weft_tensor *x,
                               weft_tensor *z) {
    weft_tensor *in[] = {x, z};
    if (attr.slots == 0) attr.slots = 1;
    return weft_append_list(g, &weft_op_head_columns, &attr, sizeof attr, INT32_MAX,
                            attr.part[1].count ? 2 : 1, in);
}

weft_tensor *weft_head_repeat(weft_graph *g, weft_tensor *x, int64_t heads) {
    int64_t width = x && x->ndim == 4 ? x->shape[3] : 0;
    weft_head_columns_attr attr = {.heads = heads, .width = width, .part = {{.count = width}}};
    return weft_head_columns(g, attr, x, NULL);
}

/* head_pool and head_spread */

/* Checks the rows' tensor and the scale, and that wide and narrow rows fit each other. */
static weft_status check_rows(weft_graph *g, const weft_node *n, const char *what, int64_t wide,
                              int64_t narrow) {
    const weft_tensor *rows = n->in[0], *scale = n->in[1];
    long long width = ((const weft_head_attr *)n->attr)->width, heads = scale->shape[0];
    WEFT_TRY(weft_check_float(g, n, what, rows));
    WEFT_TRY(weft_check_ndim(g, n, "scale", scale, 1));
    WEFT_TRY(weft_check_stat(g, n, "scale", scale, rows));
    if (rows->ndim < 1)
        return REFUSE("%s is %s, but it must have a last dimension to cut into heads", what,
                      weft_tensor_describe(rows));
    if (width < 1)
        return REFUSE("%s is %s, for a width of %lld: it must be 1 at least", what,
                      weft_tensor_describe(rows), width);
    if (wide % narrow)
        return REFUSE("%s is %s, for a width of %lld: %lld must be a multiple of %lld", what,
                      weft_tensor_describe(rows), width, (long long)wide, (long long)narrow);
    if (narrow % heads)
        return REFUSE("%s is %s, for a width of %lld, but scale is %s: %lld and %lld "
                      "must be multiples of the heads, %lld",
                      what, weft_tensor_describe(rows), width, weft_tensor_describe(scale),
                      (long long)wide, (long long)narrow, heads);
    return WEFT_OK;
}

INFER(rows, weft_head_attr, row) {
    int64_t width = attr->width, own = weft_tensor_width(row);
    if (n->op == &weft_op_head_pool)
        WEFT_TRY(check_rows(g, n, "x", own, width));
    else
        WEFT_TRY(check_rows(g, n, "c", width, own));
    int64_t shape[WEFT_MAX_DIMS] = {0};
    for (int d = 0; d < row->ndim; d++)
        shape[d] = row->shape[d];
    shape[row->ndim - 1] = width;
    return weft_output(g, n, 0, row->dtype, row->ndim, shape);
}

static weft_tensor *append_rows(weft_graph *g, const weft_op *op, weft_tensor *row,
                                weft_tensor *scale, int64_t width, bool mean) {
    weft_head_attr attr = {width, mean};
    return weft_append(g, op, &attr, sizeof attr, row, scale);
}

GRAD(rows) {
    bool pools = n->op == &weft_op_head_pool, mean = ((const weft_head_attr *)n->attr)->mean;
    const weft_op *back = pools ? &weft_op_head_spread : &weft_op_head_pool;
    weft_tensor *x = n->in[0], *scale = n->in[1], *dy = d_out[0];
    weft_head_attr attr = {scale->shape[0], mean};
    if (x->needs_grad) d_in[0] = append_rows(g, back, dy, scale, weft_tensor_width(x), mean);
    if (scale->needs_grad) /* of the wide rows and the narrow ones */
        d_in[1] = weft_append(g, &weft_op_head_scale_back, &attr, sizeof attr, pools ? x : dy,
                              pools ? dy : x);
    return weft_graph_status(g);
}

/* In place where the rows are as wide: r = 1. */
DEFINE_OP(head_pool, .infer = rows_infer, .grad = rows_grad, .inplace = weft_over_first);
DEFINE_OP(head_spread, .infer = rows_infer, .grad = rows_grad, .inplace = weft_over_first);

OPERATION(head_scale_back, weft_head_attr, wide) {
    return weft_output(g, n, 0, weft_stat_dtype(wide), 1, &attr->width);
}

weft_tensor *weft_head_pool(weft_graph *g, weft_tensor *x, weft_tensor *scale, int64_t width) {
    return append_rows(g, &weft_op_head_pool, x, scale, width, true);
}

weft_tensor *weft_head_spread(weft_graph *g, weft_tensor *c, weft_tensor *scale, int64_t width) {
    return append_rows(g, &weft_op_head_spread, c, scale, width, false);
}

OPERATION_WITH_GRAD(head_transpose, void, x) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 3));
    return weft_output_of(g, n, 0, x->dtype, x->shape[0], x->shape[2], x->shape[1]);
}

DEFINE_GRAD_AS(head_transpose, weft_head_transpose(g, d_out[0]))
DEFINE_APPEND(head_transpose, (weft_tensor * x), x)

/* Stacks: y_i = x_i, and back dx_i = dy_i. unstack, the gradient, makes the parts that are wanted in
 * one node. Both copy: the parts are parameters, or are made at other times, and lie anywhere. */

OPERATION_WITH_GRAD(stack, void, first) {
    if (first->ndim == WEFT_MAX_DIMS)
        return REFUSE("%s has as many dimensions as a tensor can have",
                      weft_tensor_describe(first));
    for (int i = 0; i < n->n_in; i++) {
        WEFT_TRY(weft_check_float(g, n, "a part", n->in[i]));
        if (!weft_tensor_same_shape(n->in[i], first) || n->in[i]->dtype != first->dtype)
            return REFUSE("%s does not go with %s", weft_tensor_describe(n->in[i]),
                          weft_tensor_describe(first));
    }
    int64_t shape[WEFT_MAX_DIMS] = {n->n_in};
    for (int d = 0; d < first->ndim; d++)
        shape[d + 1] = first->shape[d];
    return weft_output(g, n, 0, first->dtype, first->ndim + 1, shape);
}

GRAD(stack) {
    bool *wanted = weft_graph_alloc(g, (size_t)n->n_in * sizeof *wanted);
    if (!wanted) return weft_graph_status(g);
    for (int i = 0; i < n->n_in; i++)
        wanted[i] = n->in[i]->needs_grad;
    return weft_append_back(g, &weft_op_unstack, wanted, (size_t)n->n_in * sizeof *wanted, d_in,
                            n->n_in, d_out[0]);
}

OPERATION(unstack, bool, dy) {
    for (int i = 0; i < n->n_out; i++)
        if (attr[i]) weft_node_output(g, n, i, dy->dtype, dy->ndim - 1, dy->shape + 1);
    return weft_graph_status(g);
}

weft_tensor *weft_stack(weft_graph *g, weft_tensor *const *parts, int64_t n) {
    if (n < 1 || n > INT32_MAX)
        return weft_graph_refuse(g, "stack: %lld parts, but there must be 1 at least",
                                 (long long)n);
    return weft_append_list(g, &weft_op_stack, NULL, 0, INT32_MAX, (int)n, parts);
}

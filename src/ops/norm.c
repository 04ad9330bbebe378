/* LayerNorm and RMSNorm: what they compute and their gradients.
 *
 * With h = (s − mean)·rstd (RMSNorm: mean = 0) and s = x + r a row of E numbers,
 *
 *     y = h·w + b
 *     dw = Σ_rows dy·h       db = Σ_rows dy
 *     ds = rstd·(g − mean(g) − h·mean(g·h)) + what arrives at s from elsewhere,   g = dy·w
 *
 * RMSNorm has no mean(g) term. dx and dr are both ds, one tensor.
 *
 * Of heads in a row (weft_norm_heads) each is a row of its own; of those that have no gain y = x. */
#include "ops/norm.h"

#include "ops/define.h"

/* One shape and one type. */
static weft_status check_like(weft_graph *g, const weft_node *n, const char *a_name,
                              const weft_tensor *a, const char *b_name, const weft_tensor *b) {
    WEFT_TRY(weft_check_same(g, n, a_name, a, b_name, b));
    if (a->dtype == b->dtype) return WEFT_OK;
    return REFUSE("%s is %s, but %s is %s; they must have one type", a_name,
                  weft_tensor_describe(a), b_name, weft_tensor_describe(b));
}

/* s takes x's memory, y takes r's: a row's s is complete before its y is written. */
static int norm_in_place(const weft_node *n, int out) {
    if (out == WEFT_NORM_S) return WEFT_NORM_X;
    if (out == WEFT_NORM_Y) return n->in[WEFT_NORM_R] ? WEFT_NORM_R : WEFT_NORM_X;
    return -1;
}

OPERATION_WITH_GRAD(norm, weft_norm_attr, x, .inplace = norm_in_place) {
    const weft_tensor *r = n->in[WEFT_NORM_R], *next = n->in[WEFT_NORM_W_NEXT];
    const weft_tensor *w = n->in[WEFT_NORM_W], *b = n->in[WEFT_NORM_B];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_float(g, n, "w", w));
    WEFT_TRY(weft_check_dims(g, n, "w", w, weft_tensor_width(x)));
    if (b && attr->kind == WEFT_RMSNORM) return REFUSE("RMSNorm has no bias");
    if (b) WEFT_TRY(check_like(g, n, "w", w, "b", b));
    if (attr->heads) {
        int64_t there = x->ndim < 2 ? 0 : x->shape[x->ndim - 2];
        if (attr->heads < 1 || attr->next < 0 || attr->heads > there ||
            attr->next > there - attr->heads)
            return REFUSE("%lld and %lld heads to norm, but x is %s [.., H, D]",
                          (long long)attr->heads, (long long)attr->next, weft_tensor_describe(x));
        if (!next != !attr->next)
            return REFUSE("%lld heads are to have a second gain, which is %s",
                          (long long)attr->next, next ? weft_tensor_describe(next) : "missing");
        if (next) WEFT_TRY(check_like(g, n, "w", w, "w_next", next));
    }
    if (r) WEFT_TRY(check_like(g, n, "x", x, "r", r));
    weft_dtype stat = weft_stat_dtype(x);
    weft_tensor *rstd, *mean = NULL;
    weft_node_output_like(g, n, WEFT_NORM_Y, x->dtype, x);
    rstd = weft_node_output(g, n, WEFT_NORM_RSTD, stat, WEFT_DIMS(weft_tensor_rows(x)));
    if (rstd) rstd->needs_grad = false;
    if (attr->kind == WEFT_LAYERNORM)
        mean = weft_node_output(g, n, WEFT_NORM_MEAN, stat, WEFT_DIMS(weft_tensor_rows(x)));
    if (mean) mean->needs_grad = false;
    if (r) weft_node_output_like(g, n, WEFT_NORM_S, x->dtype, x);
    return weft_graph_status(g);
}

GRAD(norm) {
    weft_tensor *r = n->in[WEFT_NORM_R], *b = n->in[WEFT_NORM_B];
    weft_tensor *ds = d_out[WEFT_NORM_S];
    if (!d_out[WEFT_NORM_Y]) {
        d_in[WEFT_NORM_X] = d_in[WEFT_NORM_R] = ds;
        return WEFT_OK;
    }
    weft_norm_attr attr = *(const weft_norm_attr *)n->attr;
    attr.dx = n->in[WEFT_NORM_X]->needs_grad || (r && r->needs_grad);
    attr.dw = n->in[WEFT_NORM_W]->needs_grad;
    attr.db = b && b->needs_grad;
    attr.dw_next = attr.next && n->in[WEFT_NORM_W_NEXT]->needs_grad;
    weft_tensor *in[WEFT_NORM_BACK_INPUTS] = {
        [WEFT_NORM_BACK_DY] = d_out[WEFT_NORM_Y],
        [WEFT_NORM_BACK_S] = r ? n->out[WEFT_NORM_S] : n->in[WEFT_NORM_X],
        [WEFT_NORM_BACK_W] = n->in[WEFT_NORM_W],
        [WEFT_NORM_BACK_RSTD] = n->out[WEFT_NORM_RSTD],
        [WEFT_NORM_BACK_MEAN] = n->out[WEFT_NORM_MEAN],
        [WEFT_NORM_BACK_DS] = ds,
        [WEFT_NORM_BACK_W_NEXT] = n->in[WEFT_NORM_W_NEXT],
    };
    weft_node *back = weft_graph_append(g, &weft_op_norm_back, in, WEFT_NORM_BACK_INPUTS, 4,
                                        WEFT_NORM_BACK_OUTPUTS, &attr, sizeof attr);
    if (!back) return weft_graph_status(g);
    d_in[WEFT_NORM_X] = d_in[WEFT_NORM_R] = back->out[WEFT_NORM_BACK_DX];
    d_in[WEFT_NORM_W] = back->out[WEFT_NORM_BACK_DW];
    d_in[WEFT_NORM_B] = back->out[WEFT_NORM_BACK_DB];
    d_in[WEFT_NORM_W_NEXT] = back->out[WEFT_NORM_BACK_DW_NEXT];
    return WEFT_OK;
}

DEFINE_IN_PLACE(over_dy, out == WEFT_NORM_BACK_DX ? WEFT_NORM_BACK_DY : -1)

OPERATION(norm_back, weft_norm_attr, dy, .inplace = over_dy) {
    const weft_tensor *s = n->in[WEFT_NORM_BACK_S], *w = n->in[WEFT_NORM_BACK_W];
    if (attr->dx) weft_node_output_like(g, n, WEFT_NORM_BACK_DX, s->dtype, s);
    if (attr->dw) weft_node_output_like(g, n, WEFT_NORM_BACK_DW, w->dtype, w);
    if (attr->db) weft_node_output_like(g, n, WEFT_NORM_BACK_DB, w->dtype, w);
    if (attr->dw_next) weft_node_output_like(g, n, WEFT_NORM_BACK_DW_NEXT, w->dtype, w);
    return weft_graph_status(g);
}

weft_normed weft_norm(weft_graph *g, weft_tensor *x, weft_tensor *r, weft_tensor *w, weft_tensor *b,
                      weft_norm_kind kind, double eps) {
    if (!(eps > 0)) eps = kind == WEFT_LAYERNORM ? 1e-5 : 1e-6;
    weft_norm_attr attr = {.kind = kind, .eps = eps};
    weft_tensor *in[WEFT_NORM_INPUTS] = {
        [WEFT_NORM_X] = x, [WEFT_NORM_W] = w, [WEFT_NORM_B] = b, [WEFT_NORM_R] = r};
    weft_node *n = weft_graph_append(g, &weft_op_norm, in, WEFT_NORM_INPUTS, 2, WEFT_NORM_OUTPUTS,
                                     &attr, sizeof attr);
    if (!n) return (weft_normed){NULL, NULL};
    return (weft_normed){n->out[WEFT_NORM_Y], r ? n->out[WEFT_NORM_S] : x};
}

weft_tensor *weft_norm_heads(weft_graph *g, weft_tensor *x, weft_tensor *w, int64_t heads,
                             weft_tensor *w_next, int64_t next) {
    weft_norm_attr attr = {.kind = WEFT_RMSNORM, .eps = 1e-6, .heads = heads, .next = next};
    weft_tensor *in[WEFT_NORM_INPUTS] = {
        [WEFT_NORM_X] = x, [WEFT_NORM_W] = w, [WEFT_NORM_W_NEXT] = w_next};
    weft_node *n = weft_graph_append(g, &weft_op_norm, in, WEFT_NORM_INPUTS, 2, WEFT_NORM_OUTPUTS,
                                     &attr, sizeof attr);
    return n ? n->out[WEFT_NORM_Y] : NULL;
}

/* Vectors scaled to length 1. With r = 1/‖x‖:
 *
 *     y = r x          dx = r dy − r³ ⟨dy, x⟩ x
 *
 * What of dy points along x is gone: a longer x makes the same y. Below the least length r is a
 * constant, and dx = r dy. */

OPERATION_WITH_GRAD(unit, weft_unit_attr, x, .inplace = weft_over_first) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 4));
    if (attr->heads < 1 || attr->heads > x->shape[2])
        return REFUSE("%lld heads to scale, but x is %s [B, T, H, D]", (long long)attr->heads,
                      weft_tensor_describe(x));
    return weft_output_like(g, n, 0, x->dtype, x);
}

DEFINE_GRAD(unit, sizeof(weft_unit_attr), n->in[0])
DEFINE_OP(unit_back, .infer = weft_infer_back, .inplace = weft_over_back);
DEFINE_APPEND_WITH(unit, (weft_tensor * x, int64_t heads), (weft_unit_attr){heads}, x)

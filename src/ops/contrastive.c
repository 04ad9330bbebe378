/* Cosine InfoNCE. With u_i = x_i/n_i, n_i = max(‖x_i‖, 1e-8), s_ij = ⟨u_i, u_j⟩ and
 * p_ij = exp(s_ij/τ − lse_i):
 *
 *     y = factor/N · Σ_i (lse_i − s_ii/τ)
 *     du_i = dy · factor/(N τ) · Σ_j (p_ij + p_ji − 2[i = j]) u_j
 *     dx_i = (du_i − u_i ⟨u_i, du_i⟩)/n_i, without the second term where the norm was clamped
 *
 * No N × N matrix is kept: s is symmetric, so row i of the gradient needs its own scores and the
 * other rows' logsumexp. */
#include "ops/contrastive.h"

#include "ops/define.h"

static weft_status infonce_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    const weft_infonce_attr *attr = n->attr;
    WEFT_TRY(weft_check_float(g, n, "x", x));
    if (x->ndim != 2 && x->ndim != 3)
        return weft_graph_fail(g, "infonce: x is %s, but it must have 2 or 3 dimensions",
                               weft_tensor_describe(x));
    if (!(attr->tau > 0))
        return weft_graph_fail(g, "infonce: tau is %g on %s, but it must be above 0", attr->tau,
                               weft_tensor_describe(x));
    weft_dtype stat = weft_stat_dtype(x);
    weft_node_output(g, n, WEFT_INFONCE_Y, stat, 0, NULL);
    if (weft_infonce_measure(x).rows < 2) return weft_graph_status(g);
    weft_tensor *lse = weft_node_output(g, n, WEFT_INFONCE_LSE, stat, x->ndim - 1, x->shape);
    weft_tensor *norm = weft_node_output(g, n, WEFT_INFONCE_NORM, stat, x->ndim - 1, x->shape);
    if (lse && norm) lse->needs_grad = norm->needs_grad = false;
    return weft_graph_status(g);
}

static weft_status infonce_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                weft_tensor **d_in) {
    if (!n->out[WEFT_INFONCE_LSE]) return WEFT_OK;
    weft_tensor *in[WEFT_INFONCE_BACK_INPUTS] = {
        [WEFT_INFONCE_BACK_DY] = d_out[WEFT_INFONCE_Y],
        [WEFT_INFONCE_BACK_X] = n->in[0],
        [WEFT_INFONCE_BACK_LSE] = n->out[WEFT_INFONCE_LSE],
        [WEFT_INFONCE_BACK_NORM] = n->out[WEFT_INFONCE_NORM],
    };
    weft_node *back =
        weft_graph_append(g, &weft_op_infonce_back, in, WEFT_INFONCE_BACK_INPUTS,
                          WEFT_INFONCE_BACK_INPUTS, 1, n->attr, sizeof(weft_infonce_attr));
    if (back) d_in[0] = back->out[0];
    return weft_graph_status(g);
}

/* The scores: N² D multiply-adds; the gradient makes them again and multiplies them with u. */
static int64_t infonce_flops(const weft_node *n) {
    weft_infonce_sizes s = weft_infonce_measure(n->in[0]);
    return 2 * s.losses * s.rows * s.rows * s.width;
}

static int64_t infonce_back_flops(const weft_node *n) {
    weft_infonce_sizes s = weft_infonce_measure(n->in[WEFT_INFONCE_BACK_X]);
    return 4 * s.losses * s.rows * s.rows * s.width;
}

DEFINE_OP(infonce, .infer = infonce_infer, .grad = infonce_grad, .flops = infonce_flops);

static weft_status infonce_back_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[WEFT_INFONCE_BACK_X];
    weft_node_output_like(g, n, 0, x->dtype, x);
    return weft_graph_status(g);
}

DEFINE_OP(infonce_back, .infer = infonce_back_infer, .flops = infonce_back_flops);

weft_tensor *weft_infonce(weft_graph *g, weft_tensor *x, double tau, double factor) {
    weft_infonce_attr attr = {tau, factor};
    weft_node *n =
        weft_graph_append(g, &weft_op_infonce, &x, 1, 1, WEFT_INFONCE_OUTPUTS, &attr, sizeof attr);
    return n ? n->out[WEFT_INFONCE_Y] : NULL;
}

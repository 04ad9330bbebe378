/* Linear, softmax, cross-entropy and z-loss in one.
 *
 *     l = x wᵀ        lse_n = log Σ_v exp(l_nv)
 *     ce = mean over n with t_n ≥ 0 of (lse_n − l_n,t_n)        z = λ · mean over n of lse_n²
 *
 * or, with a count, ce = 1/count · Σ over them: the share of these rows in the mean of a larger batch.
 * The logits [N, V] are the largest matrix of a model and never exist as a whole: they are made in
 * parts, and gone when the next part comes. The gradient, with d_ce and d_z those of the two
 * losses:
 *
 *     dl_nv = p_nv · (c_n + 2 λ lse_n d_z / N) − [v = t_n] · c_n
 *     c_n = [t_n ≥ 0] · d_ce / count
 *     dx = dl w        dw = dlᵀ x        p_nv = exp(l_nv − lse_n)
 *
 * With a soft-cap c, l = c · tanh(x wᵀ / c), and dl_nv is multiplied by 1 − (l_nv / c)².
 *
 * Making the logits again for it would be a fourth product beside the three that are needed. So
 * when a gradient is asked for, the forward node makes dx and dw itself, for d_ce = d_z = 1, while
 * it has a part's logits in hand, and the gradient's node has only to scale them, since in training
 * both losses are summed as they are. dw is a sum over parts, so the forward node has it in the
 * statistics' type: bf16 between parts would lose it. Where d_ce and d_z turn out to differ, the
 * gradient's node makes the logits again. An evaluation, which asks for no gradient, pays for none
 * of this. */
#include "ops/loss.h"

#include "ops/define.h"

/* One product of all logits, or of all their gradients. */
DEFINE_FLOPS(product, 2 * weft_tensor_count(n->in[WEFT_CE_X]) * n->in[WEFT_CE_W]->shape[0])

DEFINE_FLOPS(cross_entropy,
             product_flops(n) * (1 + (n->out[WEFT_CE_DX] != NULL) + (n->out[WEFT_CE_DW] != NULL)))

OPERATION_WITH_GRAD(cross_entropy, void, x, .flops = cross_entropy_flops) {
    const weft_tensor *w = n->in[1], *targets = n->in[2];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_float(g, n, "w", w));
    WEFT_TRY(weft_check_int(g, n, "targets", targets));
    if (w->ndim != 2 || x->ndim < 1 || w->shape[1] != weft_tensor_width(x))
        return REFUSE("x is %s, but w is %s; w must be [V, %lld]", weft_tensor_describe(x),
                      weft_tensor_describe(w), (long long)weft_tensor_width(x));
    WEFT_TRY(weft_check_shape(g, n, "targets", targets, x->ndim - 1, x->shape));
    const weft_tensor *count = n->in[WEFT_CE_COUNT];
    if (count && (weft_tensor_count(count) != 1 || count->dtype != weft_stat_dtype(x)))
        return REFUSE("count is %s, but it must be one number of type %s",
                      weft_tensor_describe(count), weft_dtype_name(weft_stat_dtype(x)));
    if (weft_tensor_rows(x) > INT32_MAX || w->shape[0] > INT32_MAX || w->shape[1] > INT32_MAX)
        return REFUSE("a side of %s or %s is past 2^31 - 1", weft_tensor_describe(x),
                      weft_tensor_describe(w));
    weft_dtype stat = weft_stat_dtype(x);
    weft_node_output(g, n, 0, stat, 0, NULL);
    weft_node_output(g, n, 1, stat, 0, NULL);
    return weft_output_like(g, n, 2, stat, targets);
}

GRAD(cross_entropy) {
    const weft_cross_entropy_attr *attr = n->attr;
    weft_tensor *x = n->in[WEFT_CE_X], *w = n->in[WEFT_CE_W];
    weft_tensor *d_z = weft_z_trains(attr) ? d_out[WEFT_CE_Z] : NULL;
    if (d_out[WEFT_CE_LSE]) return REFUSE("lse has no gradient");
    if (!d_out[WEFT_CE_LOSS] && !d_z) return WEFT_OK;
    weft_tensor *in[WEFT_CE_BACK_INPUTS] = {
        [WEFT_CE_X] = x,
        [WEFT_CE_W] = w,
        [WEFT_CE_TARGETS] = n->in[WEFT_CE_TARGETS],
        [WEFT_CE_BACK_LSE] = n->out[WEFT_CE_LSE],
        [WEFT_CE_BACK_D_CE] = d_out[WEFT_CE_LOSS],
        [WEFT_CE_BACK_D_Z] = d_z,
        [WEFT_CE_BACK_COUNT] = n->in[WEFT_CE_COUNT],
    };
    /* Where they are of use, the node that made the losses is asked for their gradients: the node itself, for a
     * gradient rule may see its inputs and outputs under other names. */
    const weft_tensor *loss = n->out[WEFT_CE_LOSS];
    while (loss->view_of)
        loss = loss->view_of;
    if (d_out[WEFT_CE_LOSS] && (!weft_z_trains(attr) || d_z)) {
        if (x->needs_grad) weft_node_output_like(g, loss->producer, WEFT_CE_DX, x->dtype, x);
        if (w->needs_grad)
            weft_node_output_like(g, loss->producer, WEFT_CE_DW, weft_stat_dtype(w), w);
        in[WEFT_CE_BACK_DX] = loss->producer->out[WEFT_CE_DX];
        in[WEFT_CE_BACK_DW] = loss->producer->out[WEFT_CE_DW];
    }
    return weft_append_back_list(g, &weft_op_cross_entropy_back, attr, sizeof *attr, d_in, 2,
                                 WEFT_CE_BACK_LSE + 1, WEFT_CE_BACK_INPUTS, in);
}

/* Where the forward pass made the gradients: counted there. */
static int64_t cross_entropy_back_flops(const weft_node *n) {
    if (n->in[WEFT_CE_BACK_DX] || n->in[WEFT_CE_BACK_DW]) return 0;
    return product_flops(n) * (1 + (n->out[0] != NULL) + (n->out[1] != NULL));
}

DEFINE_IN_PLACE(over_made, n->in[WEFT_CE_BACK_DX + out] ? WEFT_CE_BACK_DX + out : -1)

OPERATION(cross_entropy_back, void, x, .inplace = over_made, .flops = cross_entropy_back_flops) {
    for (int i = 0; i < 2; i++)
        if (n->in[i]->needs_grad) weft_node_output_like(g, n, i, n->in[i]->dtype, n->in[i]);
    return weft_graph_status(g);
}

weft_losses weft_cross_entropy(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *targets,
                               weft_tensor *count, double z, bool detach, double softcap) {
    weft_cross_entropy_attr attr = {z, detach, softcap};
    weft_tensor *in[WEFT_CE_INPUTS] = {x, w, targets, count};
    weft_node *n = weft_graph_append(g, &weft_op_cross_entropy, in, WEFT_CE_INPUTS, WEFT_CE_COUNT,
                                     WEFT_CE_OUTPUTS, &attr, sizeof attr);
    return n ? (weft_losses){n->out[WEFT_CE_LOSS], n->out[WEFT_CE_Z], n->out[WEFT_CE_LSE]}
             : (weft_losses){0};
}

/* Cosine InfoNCE. With u_i = x_i/n_i, n_i = max(‖x_i‖, 1e-8), s_ij = ⟨u_i, u_j⟩ and
 * p_ij = exp(s_ij/τ − lse_i):
 *
 *     y = factor/N · Σ_i (lse_i − s_ii/τ)
 *     du_i = dy · factor/(N τ) · Σ_j (p_ij + p_ji − 2[i = j]) u_j
 *     dx_i = (du_i − u_i ⟨u_i, du_i⟩)/n_i, without the second term where the norm was clamped
 *
 * No N × N matrix is kept: s is symmetric, so row i of the gradient needs its own scores and the
 * other rows' logsumexp. With anchors and positives apart p_ij is 0 where i is a positive, N the number
 * of anchors, and 2[i = j] becomes [i and j are a pair]. */

/* The scores: N² D multiply-adds; the gradient makes them again and multiplies them with u. */
static int64_t scores_flops(const weft_tensor *x) {
    weft_infonce_sizes s = weft_infonce_measure(x);
    return 2 * s.losses * s.rows * s.rows * s.width;
}

DEFINE_FLOPS(infonce, scores_flops(n->in[0]))

OPERATION_WITH_GRAD(infonce, weft_infonce_attr, x, .flops = infonce_flops) {
    WEFT_TRY(weft_check_float(g, n, "x", x));
    if (x->ndim != 2 && x->ndim != 3)
        return REFUSE("x is %s, but it must have 2 or 3 dimensions", weft_tensor_describe(x));
    if (!(attr->tau > 0))
        return REFUSE("tau is %g on %s, but it must be above 0", attr->tau,
                      weft_tensor_describe(x));
    int64_t rows = weft_infonce_measure(x).rows, group = attr->group;
    if (group < 0 || (group > 0 && rows % (2 * group) != 0))
        return REFUSE("x is %s, but its rows must be pairs of groups of %lld",
                      weft_tensor_describe(x), (long long)group);
    weft_dtype stat = weft_stat_dtype(x);
    weft_node_output(g, n, WEFT_INFONCE_Y, stat, 0, NULL);
    if (rows < (group ? 4 : 2)) return weft_graph_status(g);
    weft_tensor *lse = weft_node_output(g, n, WEFT_INFONCE_LSE, stat, x->ndim - 1, x->shape);
    weft_tensor *norm = weft_node_output(g, n, WEFT_INFONCE_NORM, stat, x->ndim - 1, x->shape);
    if (lse && norm) lse->needs_grad = norm->needs_grad = false;
    return weft_graph_status(g);
}

GRAD(infonce) {
    if (!n->out[WEFT_INFONCE_LSE]) return WEFT_OK;
    return weft_append_back(g, &weft_op_infonce_back, n->attr, sizeof(weft_infonce_attr), d_in, 1,
                            d_out[WEFT_INFONCE_Y], n->in[0], n->out[WEFT_INFONCE_LSE],
                            n->out[WEFT_INFONCE_NORM]);
}

DEFINE_FLOPS(infonce_back, 2 * scores_flops(n->in[WEFT_INFONCE_BACK_X]))
DEFINE_OP(infonce_back, .infer = weft_infer_like_second, .flops = infonce_back_flops);

weft_tensor *weft_infonce(weft_graph *g, weft_tensor *x, int64_t group, double tau, double factor) {
    weft_infonce_attr attr = {tau, factor, group};
    weft_node *n =
        weft_graph_append(g, &weft_op_infonce, &x, 1, 1, WEFT_INFONCE_OUTPUTS, &attr, sizeof attr);
    return n ? n->out[WEFT_INFONCE_Y] : NULL;
}

/* Linear, softmax, cross-entropy and z-loss in one.
 *
 *     l = x wᵀ        lse_n = log Σ_v exp(l_nv)
 *     ce = mean over n with t_n ≥ 0 of (lse_n − l_n,t_n)        z = λ · mean over n of lse_n²
 *
 * The logits [N, V] are the largest matrix of a model and never exist as a whole: the forward pass
 * makes them in tiles and keeps lse, and the gradient makes them again, tile by tile:
 *
 *     dl_nv = p_nv · (d_ce [t_n ≥ 0] / count + 2 λ lse_n d_z / N + d_lse_n) − [v = t_n] · d_ce / count
 *     dx = dl w        dw = dlᵀ x        p_nv = exp(l_nv − lse_n)
 */
#include "ops/cross_entropy.h"

#include "ops/check.h"
#include "ops/list.h"

static weft_status cross_entropy_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0], *w = n->in[1], *targets = n->in[2];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_float(g, n, "w", w));
    WEFT_TRY(weft_check_int(g, n, "targets", targets));
    if (w->ndim != 2 || x->ndim < 1 || w->shape[1] != weft_tensor_width(x))
        return weft_graph_fail(g, "cross_entropy: x is %s, but w is %s; w must be [V, %lld]",
                               weft_tensor_describe(x), weft_tensor_describe(w),
                               (long long)weft_tensor_width(x));
    WEFT_TRY(weft_check_shape(g, n, "targets", targets, x->ndim - 1, x->shape));
    if (weft_tensor_rows(x) > INT32_MAX || w->shape[0] > INT32_MAX || w->shape[1] > INT32_MAX)
        return weft_graph_fail(g, "cross_entropy: a side of %s or %s is past 2^31 - 1",
                               weft_tensor_describe(x), weft_tensor_describe(w));
    weft_dtype stat = weft_stat_dtype(x);
    weft_node_output(g, n, 0, stat, 0, NULL);
    weft_node_output(g, n, 1, stat, 0, NULL);
    weft_node_output_like(g, n, 2, stat, targets);
    return weft_graph_status(g);
}

static weft_status cross_entropy_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                      weft_tensor **d_in) {
    const weft_cross_entropy_attr *attr = n->attr;
    bool z_flows = attr->z != 0 && !attr->detach;
    weft_tensor *d_z = z_flows ? d_out[1] : NULL;
    if (!d_out[0] && !d_z && !d_out[2]) return WEFT_OK;
    weft_tensor *in[] = {n->in[0], n->in[1], n->in[2], n->out[2], d_out[0], d_z, d_out[2]};
    weft_node *back =
        weft_graph_append(g, &weft_op_cross_entropy_back, in, 7, 4, 2, attr, sizeof *attr);
    if (!back) return weft_graph_status(g);
    d_in[0] = back->out[0];
    d_in[1] = back->out[1];
    return WEFT_OK;
}

/* One product of all logits. */
static int64_t logits_flops(const weft_node *n) {
    return 2 * weft_tensor_count(n->in[0]) * n->in[1]->shape[0];
}

const weft_op weft_op_cross_entropy = {
    .name = "cross_entropy",
    .id = WEFT_OP_cross_entropy,
    .infer = cross_entropy_infer,
    .grad = cross_entropy_grad,
    .flops = logits_flops,
};

static weft_status cross_entropy_back_infer(weft_graph *g, weft_node *n) {
    for (int i = 0; i < 2; i++)
        if (n->in[i]->needs_grad) weft_node_output_like(g, n, i, n->in[i]->dtype, n->in[i]);
    return weft_graph_status(g);
}

/* The logits again, and a product for each gradient. */
static int64_t cross_entropy_back_flops(const weft_node *n) {
    return logits_flops(n) * (1 + (n->out[0] != NULL) + (n->out[1] != NULL));
}

const weft_op weft_op_cross_entropy_back = {
    .name = "cross_entropy_back",
    .id = WEFT_OP_cross_entropy_back,
    .infer = cross_entropy_back_infer,
    .flops = cross_entropy_back_flops,
};

weft_losses weft_cross_entropy(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *targets,
                               double z, bool detach) {
    weft_cross_entropy_attr attr = {z, detach};
    weft_tensor *in[] = {x, w, targets};
    weft_node *n = weft_graph_append(g, &weft_op_cross_entropy, in, 3, 3, 3, &attr, sizeof attr);
    return n ? (weft_losses){n->out[0], n->out[1], n->out[2]} : (weft_losses){0};
}

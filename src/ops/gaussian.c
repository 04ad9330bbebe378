/* Gaussians as vectors: what is computed and its gradient.
 *
 * overlap       σ = softplus(ρ) + 1e-4   y = μ/√σ   l = Σ_d log σ
 *               dμ = dy/√σ               dρ = (dl − ½ dy · y)/σ · sigmoid(ρ)
 *
 * A key's l goes into attention's number a key, a query's drops out of the softmax: so the gradient
 * is asked for with either of the two outputs unused.
 */
#include "ops/gaussian.h"

#include "ops/check.h"
#include "ops/list.h"

static weft_status overlap_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_ndim(g, n, "x", x, 4));
    if (x->shape[3] % 2)
        return weft_graph_fail(g,
                               "overlap: x is %s, but it must be [B, T, H, 2D]: a head has as many "
                               "deviations as means",
                               weft_tensor_describe(x));
    weft_node_output(g, n, 0, x->dtype, 4,
                     (int64_t[]){x->shape[0], x->shape[1], x->shape[2], x->shape[3] / 2});
    weft_node_output(g, n, 1, weft_stat_dtype(x), 3,
                     (int64_t[]){x->shape[0], x->shape[2], x->shape[1]});
    return weft_graph_status(g);
}

static weft_status overlap_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                weft_tensor **d_in) {
    weft_tensor *in[] = {n->in[0], d_out[0], d_out[1]};
    weft_node *back = weft_graph_append(g, &weft_op_overlap_back, in, 3, 1, 1, NULL, 0);
    if (!back) return weft_graph_status(g);
    d_in[0] = back->out[0];
    return WEFT_OK;
}

const weft_op weft_op_overlap = {
    .name = "overlap",
    .id = WEFT_OP_overlap,
    .infer = overlap_infer,
    .grad = overlap_grad,
};

static weft_status overlap_back_infer(weft_graph *g, weft_node *n) {
    weft_node_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
    return weft_graph_status(g);
}

static int overlap_back_in_place(const weft_node *n, int out) {
    (void)n;
    (void)out;
    return 0;
}

const weft_op weft_op_overlap_back = {
    .name = "overlap_back",
    .id = WEFT_OP_overlap_back,
    .infer = overlap_back_infer,
    .inplace = overlap_back_in_place,
};

weft_overlap weft_overlap_scale(weft_graph *g, weft_tensor *x) {
    weft_node *n = weft_graph_append(g, &weft_op_overlap, &x, 1, 1, 2, NULL, 0);
    return n ? (weft_overlap){n->out[0], n->out[1]} : (weft_overlap){NULL, NULL};
}

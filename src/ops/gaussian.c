/* Gaussians as vectors: what is computed and its gradient.
 *
 * gaussian      σ = softplus(ρ)          y = [μ, σ]   n = Σ_d y²
 *               g = dy + 2 dn · y        dμ = g_μ     dρ = g_σ · (1 − e^−σ)
 *
 * softplus' slope is read off σ itself: 1 − e^−σ = sigmoid(ρ). Rounding σ by a part δ moves the
 * slope by less than δ, so the gradient loses nothing by it, and x is dead once y is made: y lies
 * over it, and the gradient over dy.
 *
 * overlap       σ = softplus(ρ) + 1e-4   y = μ/√σ   l = Σ_d log σ
 *               dμ = dy/√σ               dρ = (dl − ½ dy · y)/σ · sigmoid(ρ)
 *
 * A key's l goes into attention's number a key, a query's drops out of the softmax: so the gradient
 * is asked for with either of the two outputs unused.
 */
#include "ops/gaussian.h"

#include "ops/define.h"

static weft_status check_heads(weft_graph *g, const weft_node *n) {
    const weft_tensor *x = n->in[0];
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 4));
    if (x->shape[3] % 2 == 0) return WEFT_OK;
    return REFUSE("x is %s, but it must be [B, T, H, 2D]: a head has as many deviations as means",
                  weft_tensor_describe(x));
}

/* One number a head and token. */
static void output_numbers(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    weft_node_output(g, n, 1, weft_stat_dtype(x), WEFT_DIMS(x->shape[0], x->shape[2], x->shape[1]));
}

OPERATION_WITH_GRAD(gaussian, void, x, .inplace = weft_over_first) {
    WEFT_TRY(check_heads(g, n));
    weft_node_output_like(g, n, 0, x->dtype, x);
    if (n->n_out > 1) output_numbers(g, n);
    return weft_graph_status(g);
}

DEFINE_GRAD_AS(gaussian, weft_append_some(g, &weft_op_gaussian_back, NULL, 0, 1, n->out[0],
                                          d_out[0], n->n_out > 1 ? d_out[1] : NULL))

/* Over dy; where only n has a gradient, over y. */
DEFINE_IN_PLACE(over_gradient, n->in[1] ? 1 : 0)
DEFINE_OP(gaussian_back, .infer = weft_infer_like_first, .inplace = over_gradient);

weft_tensor *weft_gaussian_query(weft_graph *g, weft_tensor *x) {
    return weft_append(g, &weft_op_gaussian, NULL, 0, x);
}

weft_gaussian weft_gaussian_key(weft_graph *g, weft_tensor *x) {
    weft_node *n = weft_graph_append(g, &weft_op_gaussian, &x, 1, 1, 2, NULL, 0);
    return n ? (weft_gaussian){n->out[0], n->out[1]} : (weft_gaussian){NULL, NULL};
}

OPERATION_WITH_GRAD(overlap, void, x) {
    WEFT_TRY(check_heads(g, n));
    weft_node_output(g, n, 0, x->dtype,
                     WEFT_DIMS(x->shape[0], x->shape[1], x->shape[2], x->shape[3] / 2));
    output_numbers(g, n);
    return weft_graph_status(g);
}

DEFINE_GRAD_AS(overlap,
               weft_append_some(g, &weft_op_overlap_back, NULL, 0, 1, n->in[0], d_out[0], d_out[1]))
DEFINE_OP(overlap_back, .infer = weft_infer_like_first, .inplace = weft_over_first);

weft_overlap weft_overlap_scale(weft_graph *g, weft_tensor *x) {
    weft_node *n = weft_graph_append(g, &weft_op_overlap, &x, 1, 1, 2, NULL, 0);
    return n ? (weft_overlap){n->out[0], n->out[1]} : (weft_overlap){NULL, NULL};
}

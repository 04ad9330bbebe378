/* Means over time, and moments: what they compute and their gradients.
 *
 * running_mean   y_t = (Σ_s≤t x_s)/(t + 1)      dx_s = Σ_t≥s dy_t/(t + 1), within documents from their
 *                                               first token on, and up to their last
 * time_mean      y = (Σ_t x_t)/T                dx_t = dy/T
 * moments        s = Σ_t x_t, S = Σ x xᵀ over   dx_t = 2 dS x_t + ds, dS symmetric
 *                all sequences
 */
#include "ops/time.h"

#include "ops/arith.h"
#include "ops/define.h"
#include "ops/linear.h"

OPERATION_WITH_GRAD(running_mean, void, x, .inplace = weft_over_first) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 3));
    WEFT_TRY(weft_check_places(g, n, "first", n->in[1], 2, x->shape));
    return weft_output_like(g, n, 0, x->dtype, x);
}

DEFINE_GRAD_AS(running_mean,
               weft_append_some(g, &weft_op_running_mean_back, NULL, 0, 1, d_out[0], n->in[1]))
DEFINE_OP(running_mean_back, .infer = running_mean_infer, .inplace = weft_over_first);

weft_tensor *weft_running_mean(weft_graph *g, weft_tensor *x, weft_tensor *first) {
    return weft_append_some(g, &weft_op_running_mean, NULL, 0, 1, x, first);
}

OPERATION_WITH_GRAD(time_mean, void, x) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 3));
    return weft_output_of(g, n, 0, x->dtype, x->shape[0], 1, x->shape[2]);
}

static weft_tensor *spread_mean(weft_graph *g, weft_tensor *dy, int64_t time) {
    return weft_append(g, &weft_op_time_mean_back, &time, sizeof time, dy);
}

DEFINE_GRAD_AS(time_mean, spread_mean(g, d_out[0], n->in[0]->shape[1]))

OPERATION(time_mean_back, int64_t, dy) {
    return weft_output_of(g, n, 0, dy->dtype, dy->shape[0], *attr, dy->shape[2]);
}

DEFINE_APPEND(time_mean, (weft_tensor * x), x)

/* The Gram matrix's products; back as many again. */
static int64_t moments_flops(const weft_node *n) {
    int64_t width = weft_tensor_width(n->in[0]);
    return 2 * weft_tensor_rows(n->in[0]) * width * width;
}

OPERATION_WITH_GRAD(moments, void, x, .flops = moments_flops) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 3));
    int64_t batch = x->shape[0], width = x->shape[2];
    weft_node_output(g, n, WEFT_MOMENTS_GRAM, x->dtype, WEFT_DIMS(width, width));
    return weft_output_of(g, n, WEFT_MOMENTS_SUM, x->dtype, batch, 1, width);
}

GRAD(moments) {
    weft_tensor *x = n->in[0], *d_gram = d_out[WEFT_MOMENTS_GRAM];
    weft_tensor *d_sum = d_out[WEFT_MOMENTS_SUM];
    int64_t time = x->shape[1];
    if (d_gram && d_sum) {
        d_in[0] = weft_append(g, &weft_op_moments_back, NULL, 0, x, d_gram, d_sum);
    } else if (d_gram) {
        weft_tensor *flat = weft_view(g, x, weft_tensor_rows(x), weft_tensor_width(x));
        d_in[0] = weft_reshape(g, weft_gram_back(g, flat, d_gram), x->ndim, x->shape);
    } else if (d_sum) {
        d_in[0] = spread_mean(g, weft_scale(g, d_sum, (double)time), time);
    }
    return weft_graph_status(g);
}

DEFINE_OP(moments_back, .infer = weft_infer_like_first, .flops = moments_flops);

weft_moments_of weft_moments(weft_graph *g, weft_tensor *x) {
    weft_node *n = weft_graph_append(g, &weft_op_moments, &x, 1, 1, WEFT_MOMENTS_OUTPUTS, NULL, 0);
    return n ? (weft_moments_of){n->out[WEFT_MOMENTS_SUM], n->out[WEFT_MOMENTS_GRAM]}
             : (weft_moments_of){NULL, NULL};
}

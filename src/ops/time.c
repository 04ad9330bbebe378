/* Means over time, and moments: what they compute and their gradients.
 *
 * running_mean   y_t = (Σ_s≤t x_s)/(t + 1)      dx_s = Σ_t≥s dy_t/(t + 1)
 * time_mean      y = (Σ_t x_t)/T                dx_t = dy/T
 * moments        s = Σ_t x_t, S = Σ x xᵀ over   dx_t = 2 dS x_t + ds, dS symmetric
 *                all sequences
 */
#include "ops/time.h"

#include "ops/arith.h"
#include "ops/check.h"
#include "ops/linear.h"
#include "ops/list.h"

static weft_tensor *only_output(const weft_node *n) {
    return n ? n->out[0] : NULL;
}

static int first_in_place(const weft_node *n, int out) {
    (void)n;
    (void)out;
    return 0;
}

static weft_status running_mean_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[0]));
    WEFT_TRY(weft_check_ndim(g, n, "x", n->in[0], 3));
    weft_node_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
    return weft_graph_status(g);
}

static weft_status running_mean_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                     weft_tensor **d_in) {
    (void)n;
    d_in[0] =
        only_output(weft_graph_append(g, &weft_op_running_mean_back, d_out, 1, 1, 1, NULL, 0));
    return weft_graph_status(g);
}

const weft_op weft_op_running_mean = {
    .name = "running_mean",
    .id = WEFT_OP_running_mean,
    .infer = running_mean_infer,
    .grad = running_mean_grad,
    .inplace = first_in_place,
};

const weft_op weft_op_running_mean_back = {
    .name = "running_mean_back",
    .id = WEFT_OP_running_mean_back,
    .infer = running_mean_infer,
    .inplace = first_in_place,
};

weft_tensor *weft_running_mean(weft_graph *g, weft_tensor *x) {
    return only_output(weft_graph_append(g, &weft_op_running_mean, &x, 1, 1, 1, NULL, 0));
}

static weft_status time_mean_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_ndim(g, n, "x", x, 3));
    weft_node_output(g, n, 0, x->dtype, 3, (int64_t[]){x->shape[0], 1, x->shape[2]});
    return weft_graph_status(g);
}

static weft_tensor *spread_mean(weft_graph *g, weft_tensor *dy, int64_t time) {
    weft_time_attr attr = {time};
    return only_output(
        weft_graph_append(g, &weft_op_time_mean_back, &dy, 1, 1, 1, &attr, sizeof attr));
}

static weft_status time_mean_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                  weft_tensor **d_in) {
    d_in[0] = spread_mean(g, d_out[0], n->in[0]->shape[1]);
    return weft_graph_status(g);
}

const weft_op weft_op_time_mean = {
    .name = "time_mean",
    .id = WEFT_OP_time_mean,
    .infer = time_mean_infer,
    .grad = time_mean_grad,
};

static weft_status time_mean_back_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *dy = n->in[0];
    int64_t time = ((const weft_time_attr *)n->attr)->time;
    weft_node_output(g, n, 0, dy->dtype, 3, (int64_t[]){dy->shape[0], time, dy->shape[2]});
    return weft_graph_status(g);
}

const weft_op weft_op_time_mean_back = {
    .name = "time_mean_back",
    .id = WEFT_OP_time_mean_back,
    .infer = time_mean_back_infer,
};

weft_tensor *weft_time_mean(weft_graph *g, weft_tensor *x) {
    return only_output(weft_graph_append(g, &weft_op_time_mean, &x, 1, 1, 1, NULL, 0));
}

static weft_status moments_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_ndim(g, n, "x", x, 3));
    int64_t batch = x->shape[0], width = x->shape[2];
    weft_node_output(g, n, WEFT_MOMENTS_GRAM, x->dtype, 2, (int64_t[]){width, width});
    weft_node_output(g, n, WEFT_MOMENTS_SUM, x->dtype, 3, (int64_t[]){batch, 1, width});
    return weft_graph_status(g);
}

static weft_status moments_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                weft_tensor **d_in) {
    weft_tensor *x = n->in[0], *d_gram = d_out[WEFT_MOMENTS_GRAM];
    weft_tensor *d_sum = d_out[WEFT_MOMENTS_SUM];
    int64_t time = x->shape[1];
    if (d_gram && d_sum) {
        weft_tensor *in[WEFT_MOMENTS_BACK_INPUTS] = {x, d_gram, d_sum};
        d_in[0] =
            only_output(weft_graph_append(g, &weft_op_moments_back, in, WEFT_MOMENTS_BACK_INPUTS,
                                          WEFT_MOMENTS_BACK_INPUTS, 1, NULL, 0));
    } else if (d_gram) {
        weft_tensor *flat = weft_view(g, x, weft_tensor_rows(x), weft_tensor_width(x));
        d_in[0] = weft_reshape(g, weft_gram_back(g, flat, d_gram), x->ndim, x->shape);
    } else if (d_sum) {
        d_in[0] = spread_mean(g, weft_scale(g, d_sum, (double)time), time);
    }
    return weft_graph_status(g);
}

/* The Gram matrix's products; back as many again. */
static int64_t moments_flops(const weft_node *n) {
    int64_t width = weft_tensor_width(n->in[0]);
    return 2 * weft_tensor_rows(n->in[0]) * width * width;
}

const weft_op weft_op_moments = {
    .name = "moments",
    .id = WEFT_OP_moments,
    .infer = moments_infer,
    .grad = moments_grad,
    .flops = moments_flops,
};

static weft_status moments_back_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[WEFT_MOMENTS_BACK_X];
    weft_node_output_like(g, n, 0, x->dtype, x);
    return weft_graph_status(g);
}

const weft_op weft_op_moments_back = {
    .name = "moments_back",
    .id = WEFT_OP_moments_back,
    .infer = moments_back_infer,
    .flops = moments_flops,
};

weft_moments_of weft_moments(weft_graph *g, weft_tensor *x) {
    weft_node *n = weft_graph_append(g, &weft_op_moments, &x, 1, 1, WEFT_MOMENTS_OUTPUTS, NULL, 0);
    if (!n) return (weft_moments_of){NULL, NULL};
    return (weft_moments_of){n->out[WEFT_MOMENTS_SUM], n->out[WEFT_MOMENTS_GRAM]};
}

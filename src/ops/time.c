/* Means over time: what they compute and their gradients.
 *
 * running_mean   y_t = (Σ_s≤t x_s)/(t + 1)      dx_s = Σ_t≥s dy_t/(t + 1)
 * time_mean      y = (Σ_t x_t)/T                dx_t = dy/T
 */
#include "ops/time.h"

#include "ops/check.h"
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

static weft_status time_mean_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                  weft_tensor **d_in) {
    weft_time_attr attr = {n->in[0]->shape[1]};
    d_in[0] = only_output(
        weft_graph_append(g, &weft_op_time_mean_back, d_out, 1, 1, 1, &attr, sizeof attr));
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

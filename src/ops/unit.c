/* Vectors scaled to length 1. With r = 1/‖x‖:
 *
 *     y = r x          dx = r dy − r³ ⟨dy, x⟩ x
 *
 * What of dy points along x is gone: a longer x makes the same y. Below the least length r is a
 * constant, and dx = r dy. */
#include "ops/unit.h"

#include "ops/check.h"
#include "ops/list.h"

static weft_tensor *only_output(const weft_node *n) {
    return n ? n->out[0] : NULL;
}

static weft_status unit_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    int64_t heads = ((const weft_unit_attr *)n->attr)->heads;
    WEFT_TRY(weft_check_float(g, n, "x", x));
    WEFT_TRY(weft_check_ndim(g, n, "x", x, 4));
    if (heads < 1 || heads > x->shape[2])
        return weft_graph_fail(g, "unit: %lld heads to scale, but x is %s [B, T, H, D]",
                               (long long)heads, weft_tensor_describe(x));
    weft_node_output_like(g, n, 0, x->dtype, x);
    return weft_graph_status(g);
}

static weft_status unit_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                             weft_tensor **d_in) {
    weft_tensor *in[] = {d_out[0], n->in[0]};
    d_in[0] = only_output(
        weft_graph_append(g, &weft_op_unit_back, in, 2, 2, 1, n->attr, sizeof(weft_unit_attr)));
    return weft_graph_status(g);
}

static int unit_in_place(const weft_node *n, int out) {
    (void)n;
    (void)out;
    return 0;
}

const weft_op weft_op_unit = {
    .name = "unit",
    .id = WEFT_OP_unit,
    .infer = unit_infer,
    .grad = unit_grad,
    .inplace = unit_in_place,
};

static weft_status unit_back_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[1]));
    WEFT_TRY(weft_check_same(g, n, "dy", n->in[0], "x", n->in[1]));
    weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    return weft_graph_status(g);
}

static int unit_back_in_place(const weft_node *n, int out) {
    (void)out;
    return n->in[0]->dtype == n->in[1]->dtype ? 0 : 1;
}

const weft_op weft_op_unit_back = {
    .name = "unit_back",
    .id = WEFT_OP_unit_back,
    .infer = unit_back_infer,
    .inplace = unit_back_in_place,
};

weft_tensor *weft_unit(weft_graph *g, weft_tensor *x, int64_t heads) {
    weft_unit_attr attr = {heads};
    return only_output(weft_graph_append(g, &weft_op_unit, &x, 1, 1, 1, &attr, sizeof attr));
}

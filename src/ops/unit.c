/* Vectors scaled to length 1. With r = 1/‖x‖:
 *
 *     y = r x          dx = r dy − r³ ⟨dy, x⟩ x
 *
 * What of dy points along x is gone: a longer x makes the same y. Below the least length r is a
 * constant, and dx = r dy. */
#include "ops/unit.h"

#include "ops/define.h"

static weft_status unit_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    int64_t heads = ((const weft_unit_attr *)n->attr)->heads;
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 4));
    if (heads < 1 || heads > x->shape[2])
        return weft_graph_fail(g, "unit: %lld heads to scale, but x is %s [B, T, H, D]",
                               (long long)heads, weft_tensor_describe(x));
    weft_node_output_like(g, n, 0, x->dtype, x);
    return weft_graph_status(g);
}

static weft_status unit_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                             weft_tensor **d_in) {
    return weft_append_back(g, &weft_op_unit_back, n->attr, sizeof(weft_unit_attr), d_in, 1,
                            d_out[0], n->in[0]);
}

DEFINE_OP(unit, .infer = unit_infer, .grad = unit_grad, .inplace = weft_over_first);

DEFINE_OP(unit_back, .infer = weft_infer_back, .inplace = weft_over_back);

weft_tensor *weft_unit(weft_graph *g, weft_tensor *x, int64_t heads) {
    weft_unit_attr attr = {heads};
    return weft_append(g, &weft_op_unit, &attr, sizeof attr, x);
}

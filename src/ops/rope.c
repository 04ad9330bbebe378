/* Rotary positions. A rotation's transpose is the rotation by the opposite angle, so the gradient
 * is the same operation reversed. */
#include "ops/rope.h"

#include "ops/define.h"

OPERATION_WITH_GRAD(rope, weft_rope_attr, x, .inplace = weft_over_first) {
    WEFT_TRY(weft_check_float_of(g, n, "x", x, 4));
    if (attr->width < 2 || attr->width % 2 != 0 || attr->width > x->shape[3])
        return REFUSE(
            "a width of %lld, but x is %s; it must be even and at most the last dimension",
            (long long)attr->width, weft_tensor_describe(x));
    if (!(attr->law.base >= 1) || !(attr->law.factor >= 1) || !(attr->law.amplitude > 0))
        return REFUSE("a base of %g, a factor of %g and an amplitude of %g; base "
                      "and factor must be at least 1, the amplitude above 0",
                      attr->law.base, attr->law.factor, attr->law.amplitude);
    if (attr->heads < 1 || attr->heads > x->shape[2])
        return REFUSE("%lld heads to rotate, but x is %s [B, T, H, D]", (long long)attr->heads,
                      weft_tensor_describe(x));
    WEFT_TRY(weft_check_places(g, n, "start", n->in[1], 1, x->shape));
    return weft_output_like(g, n, 0, x->dtype, x);
}

GRAD(rope) {
    weft_rope_attr back = *(const weft_rope_attr *)n->attr;
    back.inverse = !back.inverse;
    d_in[0] = weft_append_some(g, &weft_op_rope, &back, sizeof back, 1, d_out[0], n->in[1]);
    return weft_graph_status(g);
}

weft_tensor *weft_rope(weft_graph *g, weft_tensor *x, int64_t width, int64_t heads,
                       weft_tensor *start, const weft_rope_law *law) {
    weft_rope_attr attr = {.width = width, .heads = heads, .law = *law};
    return weft_append_some(g, &weft_op_rope, &attr, sizeof attr, 1, x, start);
}

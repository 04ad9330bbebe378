/* Activations: what they compute and their gradients, but for those that ops/list.h has whole. σ is the
 * sigmoid.
 *
 * gelu          y = x σ(2u), u = √(2/π)(x + 0.044715 x³), which is x/2 (1 + tanh u)
 *               dx = dy (σ + x σ(1 − σ) 2u')
 * gelu_erf      y = x Φ(x), Φ the normal distribution's      dx = dy (Φ + x φ)
 * softplus      y = log(1 + e^x) + c     dx = dy · σ(x)       columns before `start`: y = x
 * gate_mix      y = o (1 − α + α σ(g))   do = dy (1 − α + α σ(g))
 *               dg = α σ(g)(1 − σ(g)) Σ_d dy · o, over the sequence too where it has one gate
 */
#include "ops/activation.h"

#include "base/random.h"
#include "ops/define.h"

/* Operations of one element: all of them from their lines in ops/list.h. */

enum { READS_x, READS_y };

#define UNARY(X, op, value, reads, gradient)                                                       \
    DEFINE_GRAD_AS(op,                                                                             \
                   weft_##op##_back(g, d_out[0], READS_##reads == READS_x ? n->in[0] : n->out[0])) \
    DEFINE_OP(op, .infer = weft_infer_like_first, .grad = op##_grad, .inplace = weft_over_first);  \
    DEFINE_OP(op##_back, .infer = weft_infer_back, .inplace = weft_over_back);                     \
    DEFINE_APPEND(op, (weft_tensor * x), x)                                                        \
    DEFINE_APPEND(op##_back, (weft_tensor * dy, weft_tensor * reads), dy, reads)

WEFT_UNARY_OPS(UNARY, )

weft_tensor *weft_unary(weft_graph *g, const char *name, weft_tensor *x) {
#define IS_NAMED(X, op, value, reads, gradient)                                                    \
    if (strcmp(name, #op) == 0) return weft_##op(g, x);
#define NAME(X, op, value, reads, gradient) " " #op
    WEFT_UNARY_OPS(IS_NAMED, )
    return weft_graph_refuse(
        g, "'%s' is none of the operations of one element:" WEFT_UNARY_OPS(NAME, ), name);
}

INFER(product, void, a) {
    WEFT_TRY(weft_check_pair(g, n));
    return weft_output_like(g, n, 0, a->dtype, a);
}

#define GATE(X, op, ...)                                                                           \
    DEFINE_GRAD_OF_TWO(op)                                                                         \
    DEFINE_OP(op, .infer = product_infer, .grad = op##_grad, .inplace = weft_over_first);          \
    DEFINE_OP(op##_back, .infer = weft_infer_wanted, .inplace = weft_over_own);                    \
    DEFINE_APPEND(op, (weft_tensor * a, weft_tensor * b), a, b)
WEFT_GATE_OPS(GATE, )

OPERATION_WITH_GRAD(softplus, weft_softplus_attr, x, .inplace = weft_over_first) {
    if (attr->start < 0 || attr->start > weft_tensor_width(x))
        return REFUSE("start %lld is outside x's last dimension, %s", (long long)attr->start,
                      weft_tensor_describe(x));
    return weft_infer_like_first(g, n);
}

/* Without a floor the slope follows from y, 1 − e^−y, and x is dead once y is made. */
DEFINE_GRAD(softplus, sizeof(weft_softplus_attr),
            ((const weft_softplus_attr *)n->attr)->floor == 0 ? n->out[0] : n->in[0])
DEFINE_OP(softplus_back, .infer = weft_infer_back, .inplace = weft_over_back);
DEFINE_APPEND_WITH(softplus, (weft_tensor * x, int64_t start, double floor),
                   ((weft_softplus_attr){start, floor}), x)

OPERATION_WITH_GRAD(gate_mix, void, o, .inplace = weft_over_first) {
    const weft_tensor *gate = n->in[1];
    WEFT_TRY(weft_check_float_of(g, n, "o", o, 4));
    WEFT_TRY(weft_check_float(g, n, "gate", gate));
    bool fits = gate->ndim == 3 && gate->shape[0] == o->shape[0] &&
                (gate->shape[1] == o->shape[1] || gate->shape[1] == 1) &&
                gate->shape[2] == o->shape[2];
    if (!fits)
        return REFUSE("o is %s [B, T, H, D], but gate is %s; it must be [B, T, H] or [B, 1, H]",
                      weft_tensor_describe(o), weft_tensor_describe(gate));
    return weft_output_like(g, n, 0, o->dtype, o);
}

GRAD(gate_mix) {
    weft_gate_mix_attr attr = {weft_wanted_of(n), ((const weft_gate_mix_attr *)n->attr)->alpha};
    return weft_append_back(g, &weft_op_gate_mix_back, &attr, sizeof attr, d_in, 2, d_out[0],
                            n->in[0], n->in[1]);
}

DEFINE_OP(gate_mix_back, .infer = weft_infer_wanted, .inplace = weft_over_first);
DEFINE_APPEND_WITH(gate_mix, (weft_tensor * o, weft_tensor *gate, double alpha),
                   ((weft_gate_mix_attr){.alpha = alpha}), o, gate)

/* Dropout: y = x·keep/(1 − p), keep a pure function of seed, iteration, sequence, site and index.
 * The gradient is the same operation on dy; the attributes carry the site, so it draws the same
 * numbers. */

OPERATION_WITH_GRAD(dropout, weft_dropout_attr, x, .inplace = weft_over_first) {
    WEFT_TRY(weft_check_float(g, n, "x", x));
    if (!(attr->p >= 0 && attr->p < 1))
        return REFUSE("p is %g on %s, but it must be at least 0 and below 1", attr->p,
                      weft_tensor_describe(x));
    if (x->ndim < 1)
        return REFUSE("x is %s, but its first dimension must be the batch",
                      weft_tensor_describe(x));
    return weft_output_like(g, n, 0, x->dtype, x);
}

DEFINE_GRAD_AS(dropout,
               weft_append(g, &weft_op_dropout, n->attr, sizeof(weft_dropout_attr), d_out[0]))

weft_tensor *weft_dropout(weft_graph *g, weft_tensor *x, double p, const char *site) {
    if (p == 0) return x;
    if (!site) return weft_graph_refuse(g, "dropout: it needs the name of its place in the model");
    weft_dropout_attr attr = {p, weft_random_site(site)};
    return weft_append(g, &weft_op_dropout, &attr, sizeof attr, x);
}

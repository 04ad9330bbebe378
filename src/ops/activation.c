/* Activations: what they compute and their gradients. σ is the sigmoid.
 *
 * gelu          y = x σ(2u), u = √(2/π)(x + 0.044715 x³), which is x/2 (1 + tanh u)
 *               dx = dy (σ + x σ(1 − σ) 2u')
 * silu_mul      y = a · b σ(b)           da = dy · b σ(b)     db = dy · a · σ(b)(1 + b(1 − σ(b)))
 * softplus      y = log(1 + e^x) + c     dx = dy · σ(x)       columns before `start`: y = x
 * exp           y = e^x                  dx = dy · y
 * gate_mix      y = o (1 − α + α σ(g))   do = dy (1 − α + α σ(g))
 *               dg = α σ(g)(1 − σ(g)) Σ_d dy · o, over the sequence too where it has one gate
 */
#include "ops/activation.h"

#include "ops/check.h"
#include "ops/list.h"

static int first_in_place(const weft_node *n, int out) {
    (void)n;
    return out == 0 ? 0 : -1;
}

static weft_tensor *only_output(const weft_node *n) {
    return n ? n->out[0] : NULL;
}

/* One output like input 0. */
static weft_status like_first_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[0]));
    weft_node_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
    return weft_graph_status(g);
}

/* dx like x, from (dy, x). */
static weft_status unary_back_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "x", n->in[1]));
    WEFT_TRY(weft_check_same(g, n, "dy", n->in[0], "x", n->in[1]));
    weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    return weft_graph_status(g);
}

static int unary_back_in_place(const weft_node *n, int out) {
    (void)out;
    return n->in[0]->dtype == n->in[1]->dtype ? 0 : 1;
}

/* gelu */

static weft_status gelu_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                             weft_tensor **d_in) {
    d_in[0] = weft_gelu_back(g, d_out[0], n->in[0]);
    return weft_graph_status(g);
}

const weft_op weft_op_gelu = {
    .name = "gelu",
    .id = WEFT_OP_gelu,
    .infer = like_first_infer,
    .grad = gelu_grad,
    .inplace = first_in_place,
};

const weft_op weft_op_gelu_back = {
    .name = "gelu_back",
    .id = WEFT_OP_gelu_back,
    .infer = unary_back_infer,
    .inplace = unary_back_in_place,
};

weft_tensor *weft_gelu(weft_graph *g, weft_tensor *x) {
    return only_output(weft_graph_append(g, &weft_op_gelu, &x, 1, 1, 1, NULL, 0));
}

weft_tensor *weft_gelu_back(weft_graph *g, weft_tensor *dy, weft_tensor *x) {
    return only_output(
        weft_graph_append(g, &weft_op_gelu_back, (weft_tensor *[]){dy, x}, 2, 2, 1, NULL, 0));
}

/* silu_mul */

static weft_status silu_mul_infer(weft_graph *g, weft_node *n) {
    WEFT_TRY(weft_check_float(g, n, "a", n->in[0]));
    WEFT_TRY(weft_check_float(g, n, "b", n->in[1]));
    WEFT_TRY(weft_check_same(g, n, "a", n->in[0], "b", n->in[1]));
    weft_node_output_like(g, n, 0, n->in[0]->dtype, n->in[0]);
    return weft_graph_status(g);
}

static weft_status silu_mul_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                 weft_tensor **d_in) {
    weft_silu_mul_back_attr want = {n->in[0]->needs_grad, n->in[1]->needs_grad};
    weft_tensor *in[] = {d_out[0], n->in[0], n->in[1]};
    weft_node *back = weft_graph_append(g, &weft_op_silu_mul_back, in, 3, 3, 2, &want, sizeof want);
    if (!back) return weft_graph_status(g);
    d_in[0] = back->out[0];
    d_in[1] = back->out[1];
    return WEFT_OK;
}

const weft_op weft_op_silu_mul = {
    .name = "silu_mul",
    .id = WEFT_OP_silu_mul,
    .infer = silu_mul_infer,
    .grad = silu_mul_grad,
    .inplace = first_in_place,
};

static weft_status silu_mul_back_infer(weft_graph *g, weft_node *n) {
    const weft_silu_mul_back_attr *want = n->attr;
    if (want->da) weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    if (want->db) weft_node_output_like(g, n, 1, n->in[2]->dtype, n->in[2]);
    return weft_graph_status(g);
}

static int silu_mul_back_in_place(const weft_node *n, int out) {
    (void)n;
    return out + 1;
}

const weft_op weft_op_silu_mul_back = {
    .name = "silu_mul_back",
    .id = WEFT_OP_silu_mul_back,
    .infer = silu_mul_back_infer,
    .inplace = silu_mul_back_in_place,
};

weft_tensor *weft_silu_mul(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return only_output(
        weft_graph_append(g, &weft_op_silu_mul, (weft_tensor *[]){a, b}, 2, 2, 1, NULL, 0));
}

/* softplus */

static weft_status softplus_infer(weft_graph *g, weft_node *n) {
    int64_t start = ((const weft_softplus_attr *)n->attr)->start;
    if (start < 0 || start > weft_tensor_width(n->in[0]))
        return weft_graph_fail(g, "softplus: start %lld is outside x's last dimension, %s",
                               (long long)start, weft_tensor_describe(n->in[0]));
    return like_first_infer(g, n);
}

static weft_status softplus_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                 weft_tensor **d_in) {
    d_in[0] = only_output(weft_graph_append(g, &weft_op_softplus_back,
                                            (weft_tensor *[]){d_out[0], n->in[0]}, 2, 2, 1, n->attr,
                                            sizeof(weft_softplus_attr)));
    return weft_graph_status(g);
}

const weft_op weft_op_softplus = {
    .name = "softplus",
    .id = WEFT_OP_softplus,
    .infer = softplus_infer,
    .grad = softplus_grad,
    .inplace = first_in_place,
};

const weft_op weft_op_softplus_back = {
    .name = "softplus_back",
    .id = WEFT_OP_softplus_back,
    .infer = unary_back_infer,
    .inplace = unary_back_in_place,
};

weft_tensor *weft_softplus(weft_graph *g, weft_tensor *x, int64_t start, double floor) {
    weft_softplus_attr attr = {start, floor};
    return only_output(weft_graph_append(g, &weft_op_softplus, &x, 1, 1, 1, &attr, sizeof attr));
}

/* exp: its gradient reads y, so x need not be kept. */

static weft_status exp_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                            weft_tensor **d_in) {
    d_in[0] = only_output(weft_graph_append(
        g, &weft_op_exp_back, (weft_tensor *[]){d_out[0], n->out[0]}, 2, 2, 1, NULL, 0));
    return weft_graph_status(g);
}

const weft_op weft_op_exp = {
    .name = "exp",
    .id = WEFT_OP_exp,
    .infer = like_first_infer,
    .grad = exp_grad,
    .inplace = first_in_place,
};

const weft_op weft_op_exp_back = {
    .name = "exp_back",
    .id = WEFT_OP_exp_back,
    .infer = unary_back_infer,
    .inplace = unary_back_in_place,
};

weft_tensor *weft_exp(weft_graph *g, weft_tensor *x) {
    return only_output(weft_graph_append(g, &weft_op_exp, &x, 1, 1, 1, NULL, 0));
}

/* gate_mix */

static weft_status gate_mix_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *o = n->in[0], *gate = n->in[1];
    WEFT_TRY(weft_check_float(g, n, "o", o));
    WEFT_TRY(weft_check_float(g, n, "gate", gate));
    WEFT_TRY(weft_check_ndim(g, n, "o", o, 4));
    bool fits = gate->ndim == 3 && gate->shape[0] == o->shape[0] &&
                (gate->shape[1] == o->shape[1] || gate->shape[1] == 1) &&
                gate->shape[2] == o->shape[2];
    if (!fits)
        return weft_graph_fail(g,
                               "gate_mix: o is %s [B, T, H, D], but gate is %s; it must be "
                               "[B, T, H] or [B, 1, H]",
                               weft_tensor_describe(o), weft_tensor_describe(gate));
    weft_node_output_like(g, n, 0, o->dtype, o);
    return weft_graph_status(g);
}

static weft_status gate_mix_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                 weft_tensor **d_in) {
    weft_gate_mix_attr attr = {((const weft_gate_mix_attr *)n->attr)->alpha, n->in[0]->needs_grad,
                               n->in[1]->needs_grad};
    weft_tensor *in[] = {d_out[0], n->in[0], n->in[1]};
    weft_node *back = weft_graph_append(g, &weft_op_gate_mix_back, in, 3, 3, 2, &attr, sizeof attr);
    if (!back) return weft_graph_status(g);
    d_in[0] = back->out[0];
    d_in[1] = back->out[1];
    return WEFT_OK;
}

const weft_op weft_op_gate_mix = {
    .name = "gate_mix",
    .id = WEFT_OP_gate_mix,
    .infer = gate_mix_infer,
    .grad = gate_mix_grad,
    .inplace = first_in_place,
};

static weft_status gate_mix_back_infer(weft_graph *g, weft_node *n) {
    const weft_gate_mix_attr *want = n->attr;
    if (want->d_o) weft_node_output_like(g, n, 0, n->in[1]->dtype, n->in[1]);
    if (want->d_gate) weft_node_output_like(g, n, 1, n->in[2]->dtype, n->in[2]);
    return weft_graph_status(g);
}

const weft_op weft_op_gate_mix_back = {
    .name = "gate_mix_back",
    .id = WEFT_OP_gate_mix_back,
    .infer = gate_mix_back_infer,
    .inplace = first_in_place,
};

weft_tensor *weft_gate_mix(weft_graph *g, weft_tensor *o, weft_tensor *gate, double alpha) {
    weft_gate_mix_attr attr = {.alpha = alpha};
    return only_output(weft_graph_append(g, &weft_op_gate_mix, (weft_tensor *[]){o, gate}, 2, 2, 1,
                                         &attr, sizeof attr));
}

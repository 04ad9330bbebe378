/* Gated linear layers: gradients by the rules of their parts.
 *
 *     gate = x w_gateᵀ    up = x w_upᵀ    y = silu(gate) ⊙ up
 *
 * Its gradient is that of silu_mul, then that of each product, the gate's first, as autodiff would
 * walk over the three. */
#include "ops/gated.h"

#include "ops/activation.h"
#include "ops/define.h"

static void begin_part(const weft_node *n, const weft_op *op, const void *attr, int n_in, int n_out,
                       weft_gated_part *part) {
    *part = (weft_gated_part){.node = *n};
    part->node.op = op;
    part->node.attr = attr;
    part->node.n_in = n_in;
    part->node.n_out = n_out;
    part->node.in = part->in;
    part->node.out = part->out;
}

static weft_tensor *find_output(const weft_node *n, int out) {
    return n->out[out] ? n->out[out] : n->out[WEFT_GATED_Y];
}

void weft_gated_product(const weft_node *n, int out, weft_gated_part *part) {
    int first = out == WEFT_GATED_GATE ? WEFT_GATED_X : WEFT_GATED_X_AGAIN;
    begin_part(n, &weft_op_matmul, n->attr, WEFT_MATMUL_INPUTS, 2, part);
    part->in[WEFT_MATMUL_A] = n->in[first];
    part->in[WEFT_MATMUL_B] = n->in[first + 1];
    part->in[WEFT_MATMUL_MOMENTS] = n->in[WEFT_GATED_MOMENTS];
    part->in[WEFT_MATMUL_SUMS] = n->in[WEFT_GATED_SUMS + (first > 0)];
    part->in[WEFT_MATMUL_BIAS] = n->in[WEFT_GATED_BIAS + (first > 0)];
    part->out[0] = find_output(n, out);
}

void weft_gated_silu_mul(const weft_node *n, weft_gated_part *part) {
    begin_part(n, &weft_op_silu_mul, NULL, 2, 1, part);
    part->in[0] = find_output(n, WEFT_GATED_UP);
    part->in[1] = n->out[WEFT_GATED_GATE];
    part->out[0] = n->out[WEFT_GATED_Y];
}

static weft_status product_grad(weft_graph *g, const weft_node *n, int out, weft_tensor *d,
                                weft_tensor **d_in) {
    weft_gated_part part;
    weft_tensor *d_part[WEFT_MATMUL_INPUTS] = {0};
    if (!d) return WEFT_OK;
    weft_gated_product(n, out, &part);
    WEFT_TRY(weft_op_matmul.grad(g, &part.node, &d, d_part));
    d_in[0] = d_part[WEFT_MATMUL_A];
    d_in[1] = d_part[WEFT_MATMUL_B];
    return WEFT_OK;
}

GRAD(gated_linear) {
    weft_gated_part part;
    weft_tensor *d[2] = {0};
    /* What makes the gate makes `up` too, from now on: n itself, or its double where this is made
     * again. */
    weft_tensor *gate = n->out[WEFT_GATED_GATE];
    weft_node *maker = gate->producer;
    if (!maker->out[WEFT_GATED_UP]) {
        weft_tensor *up = weft_node_output_like(g, maker, WEFT_GATED_UP, gate->dtype, gate);
        if (!up) return weft_graph_status(g);
        up->needs_grad =
            n->in[WEFT_GATED_X_AGAIN]->needs_grad || n->in[WEFT_GATED_W_UP]->needs_grad;
    }
    weft_gated_silu_mul(maker, &part);
    WEFT_TRY(weft_op_silu_mul.grad(g, &part.node, d_out, d));
    WEFT_TRY(product_grad(g, n, WEFT_GATED_GATE, d[1], d_in + WEFT_GATED_X));
    return product_grad(g, n, WEFT_GATED_UP, d[0], d_in + WEFT_GATED_X_AGAIN);
}

static int64_t gated_linear_flops(const weft_node *n) {
    weft_gated_part part;
    weft_gated_product(n, WEFT_GATED_GATE, &part);
    return 2 * weft_op_matmul.flops(&part.node);
}

/* No shapes to infer: it takes over the outputs of the nodes that it replaces. */
DEFINE_OP(gated_linear, .grad = gated_linear_grad, .flops = gated_linear_flops);

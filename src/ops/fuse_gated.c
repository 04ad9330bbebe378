/* Fusing SwiGLU: its two products and the gate between them become gated_linear; the gate's
 * gradient goes into the product that makes what it reads, as gated_linear_back.
 *
 * The forward node stands where the later product stood, so autodiff meets it where it would have
 * met the products. The gradient's stands where its product stood: gate and up are there since the
 * forward pass. All three nodes of the forward pass must be of one segment: a gate that is made
 * again from stored products would else be stored itself. */
#include "ops/fuse_internal.h"
#include "ops/gated.h"
#include "ops/list.h"

/* y = a b of rows and nothing else. */
static bool is_bare(const weft_node *product) {
    const weft_matmul_attr *attr = product->attr;
    for (int k = 0; k < product->n_in; k++)
        if (k != WEFT_MATMUL_A && k != WEFT_MATMUL_B && product->in[k]) return false;
    return attr->form == WEFT_MATMUL_ROWS && attr->alpha == 1;
}

/* The linear layer that makes `t` for silu_mul alone. */
static weft_node *find_layer(const weft_fuser *f, weft_tensor *t, const weft_node *silu_mul) {
    weft_node *p = weft_fuser_product(f, t, silu_mul);
    if (!p || !is_bare(p) || p->out[0] != t || p->segment != silu_mul->segment) return NULL;
    return ((const weft_matmul_attr *)p->attr)->tb ? p : NULL;
}

/* Gives a node the tensors that it makes from now on. */
static void take_output(weft_node *n, int out, weft_tensor *t) {
    n->out[out] = t;
    t->producer = n;
}

void weft_fuse_silu_mul(weft_fuser *f, weft_node *silu_mul) {
    weft_node *up = find_layer(f, silu_mul->in[0], silu_mul);
    weft_node *gate = find_layer(f, silu_mul->in[1], silu_mul);
    if (!up || !gate || up->in[WEFT_MATMUL_A] != gate->in[WEFT_MATMUL_A]) return;
    weft_tensor *in[WEFT_GATED_INPUTS] = {gate->in[WEFT_MATMUL_A], gate->in[WEFT_MATMUL_B],
                                          up->in[WEFT_MATMUL_A], up->in[WEFT_MATMUL_B]};
    weft_node *n = weft_graph_node_new(f->g, &weft_op_gated_linear, in, WEFT_GATED_INPUTS,
                                       WEFT_GATED_OUTPUTS, gate->attr);
    if (!n) return;
    weft_node **nodes = f->g->nodes;
    n->index = up->index > gate->index ? up->index : gate->index;
    n->segment = silu_mul->segment;
    nodes[up->index] = nodes[gate->index] = nodes[silu_mul->index] = NULL;
    nodes[n->index] = n;
    take_output(n, WEFT_GATED_Y, silu_mul->out[0]);
    take_output(n, WEFT_GATED_GATE, gate->out[0]);
    up->out[0]->producer = silu_mul; /* in no list any more: a later use is refused */
    f->reads[gate->out[0]->id]--;
}

void weft_fuse_silu_mul_back(weft_fuser *f, weft_node *back) {
    weft_tensor *up = back->in[1], *gate = back->in[2];
    weft_tensor *dup = back->out[0], *dgate = back->out[1];
    if (!dup || !dgate || dgate->dtype != dup->dtype) return;
    weft_node *product = weft_fuser_product(f, back->in[0], back);
    if (!product || !is_bare(product)) return;
    bool waits =
        !weft_fuser_is_made_before(up, product) || !weft_fuser_is_made_before(gate, product);
    if (waits && !weft_fuser_may_wait(product)) return;
    weft_tensor *in[WEFT_GATED_BACK_INPUTS] = {product->in[WEFT_MATMUL_A],
                                               product->in[WEFT_MATMUL_B], gate, up};
    weft_node *n = weft_graph_node_new(f->g, &weft_op_gated_linear_back, in, WEFT_GATED_BACK_INPUTS,
                                       WEFT_GATED_BACK_OUTPUTS, product->attr);
    if (!n) return;
    weft_node **nodes = f->g->nodes;
    n->index = waits ? back->index : product->index;
    nodes[product->index] = nodes[back->index] = NULL;
    nodes[n->index] = n;
    product->out[0]->producer = back;
    take_output(n, WEFT_GATED_BACK_DGATE, dgate);
    take_output(n, WEFT_GATED_BACK_DUP, dup);
}

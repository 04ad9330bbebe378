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

/* Whether a product is a linear layer whose result silu_mul reads as it is. */
static bool is_layer(const weft_node *p, const weft_tensor *t, const weft_node *silu_mul) {
    return p && weft_fuse_is_free(p, silu_mul) && is_bare(p) && p->out[0] == t &&
           p->segment == silu_mul->segment && weft_fuse_attr(p)->tb;
}

bool weft_fuse_silu_mul(weft_rewrite *r, const weft_match *m) {
    weft_node *silu_mul = m->reader, *up = m->maker;
    weft_node *gate = weft_rewrite_find_maker(r, silu_mul->in[1], &weft_op_matmul, 0, silu_mul);
    if (!is_layer(up, silu_mul->in[0], silu_mul) || !is_layer(gate, silu_mul->in[1], silu_mul))
        return false;
    if (up->in[WEFT_MATMUL_A] != gate->in[WEFT_MATMUL_A]) return false;
    weft_tensor *in[WEFT_GATED_INPUTS] = {gate->in[WEFT_MATMUL_A], gate->in[WEFT_MATMUL_B],
                                          up->in[WEFT_MATMUL_A], up->in[WEFT_MATMUL_B]};
    weft_node *n = weft_rewrite_new(r, &weft_op_gated_linear, in, WEFT_GATED_INPUTS,
                                    WEFT_GATED_OUTPUTS, gate->attr);
    if (!n) return false;
    n->segment = silu_mul->segment;
    weft_rewrite_make(r, n, WEFT_GATED_Y, silu_mul->out[0]);
    weft_rewrite_make(r, n, WEFT_GATED_GATE, gate->out[0]);
    weft_rewrite_drop(r, up);
    weft_rewrite_drop(r, gate);
    weft_rewrite_drop(r, silu_mul);
    weft_rewrite_place(r, n, up->index > gate->index ? up : gate);
    return true;
}

bool weft_fuse_silu_mul_back(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->reader, *product = m->maker;
    weft_tensor *up = back->in[1], *gate = back->in[2];
    weft_tensor *dup = back->out[0], *dgate = back->out[1];
    if (!dup || !dgate || dgate->dtype != dup->dtype) return false;
    if (!weft_fuse_is_free_product(m) || !is_bare(product)) return false;
    bool waits =
        !weft_rewrite_is_made_before(up, product) || !weft_rewrite_is_made_before(gate, product);
    if (waits && !weft_fuse_may_wait(product)) return false;
    weft_tensor *in[WEFT_GATED_BACK_INPUTS] = {product->in[WEFT_MATMUL_A],
                                               product->in[WEFT_MATMUL_B], gate, up};
    weft_node *n = weft_rewrite_new(r, &weft_op_gated_linear_back, in, WEFT_GATED_BACK_INPUTS,
                                    WEFT_GATED_BACK_OUTPUTS, product->attr);
    if (!n) return false;
    weft_rewrite_make(r, n, WEFT_GATED_BACK_DGATE, dgate);
    weft_rewrite_make(r, n, WEFT_GATED_BACK_DUP, dup);
    weft_rewrite_drop(r, product);
    weft_rewrite_drop(r, back);
    weft_rewrite_place(r, n, waits ? back : product);
    return true;
}

/* SwiGLU's products with the gate between them: what gated_linear does, and how it comes apart into the
 * nodes that it stands for. fuse.h makes it of those. */
#pragma once

#include "ops/linear.h"

/* Inputs of gated_linear, y [..., N] = silu(x w_gateᵀ) ⊙ (x w_upᵀ): x [..., K], both weights [N, K]. The
 * same bits as two weft_linear and a weft_silu_mul on a backend that does it piece by piece. x stands
 * there twice, once for each product: so its two gradients are added to what others give it one after the
 * other, in the order in which the products' own would be. */
enum {
    WEFT_GATED_X,
    WEFT_GATED_W_GATE,
    WEFT_GATED_X_AGAIN,
    WEFT_GATED_W_UP,
    WEFT_GATED_MOMENTS, /* NULL, or as of matmul, as are the next: a norm behind both products */
    WEFT_GATED_SUMS,    /* of the gate, then of up */
    WEFT_GATED_BIAS = WEFT_GATED_SUMS + 2, /* the same */
    WEFT_GATED_INPUTS = WEFT_GATED_BIAS + 2
};

/* Its outputs: y, and both products. `up` is NULL until a gradient asks for it: the product then
 * lies where y will be. */
enum { WEFT_GATED_Y, WEFT_GATED_GATE, WEFT_GATED_UP, WEFT_GATED_OUTPUTS };

/* A node that it stands for, on its tensors, with its place in the list and so with its workspace. It
 * holds pointers into itself: it is not to be copied. Its attributes are the products'
 * weft_matmul_attr. */
typedef struct {
    weft_node node;
    weft_tensor *in[WEFT_MATMUL_INPUTS], *out[2];
} weft_gated_part;

/* The product that makes output `out` (gate or up), and silu_mul on both. */
void weft_gated_product(const weft_node *n, int out, weft_gated_part *part);
void weft_gated_silu_mul(const weft_node *n, weft_gated_part *part);

/* Passes over memory that a matrix product can do for free.
 *
 * A product holds each of its results in a register before it writes it. What the graph does to the
 * result next, element by element, can be done there: adding another tensor, scaling, gelu's
 * gradient; and of several products that are added, the sum stays in the register too. Fusing finds
 * such nodes and gives their work to the product:
 *
 *     add(matmul(a, b), c)             matmul with addend c
 *     add(matmul(a, b), matmul(c, d))  matmul of two pairs of factors, up to six
 *     scale(matmul(a, b))              matmul with alpha
 *     gelu_back(matmul(a, b), x)       matmul with gelu's slope at x
 *     bias_back of that                its second output
 *
 * Where no product makes what gelu's gradient reads, that and a bias's gradient are one pass,
 *
 *     bias_back(gelu_back(y, x))       gelu_bias_back
 *
 * A norm's residual sum goes into the product that makes the residual, and what arrives at that sum
 * from further on into the norm's gradient, which sums columns for a bias before it too:
 *
 *     norm(x, matmul(a, b))       norm(matmul with addend x)
 *     add(norm_back(dy), ds)      norm_back with ds
 *     bias_back(norm_back(dy))    norm_back with sums
 *
 * The table of a tied embedding has its classifier's gradient first:
 *
 *     add(dw, embed_back(dy))     embed_back with addend dw
 *
 * Attention's gradient is made tile by tile, and what a Gaussian's does to it needs what the tile has:
 *
 *     gaussian_back(attention_back's dq)      attention_back with gaussian_q
 *     gaussian_back(attention_back's dk, dn)  attention_back with gaussian_k and gaussian_n
 *
 * SwiGLU's linear layers and the gate between them are one (gated.h):
 *
 *     silu_mul(linear(x, u), linear(x, v))  gated_linear
 *
 * Only where nobody else reads the product. It stays in its place in the list where its addend is
 * made before it; else it waits for it, if what it reads is no larger than what it makes: memory does
 * not grow by that. */
#pragma once

#include "core/graph.h"

/* Applies the rules of fuse.c to what has been built. core/program.h does this for the forward pass
 * before the gradient is made, and for the backward pass after: the forward pass is then the same with
 * and without a gradient. */
weft_status weft_fuse(weft_graph *g);

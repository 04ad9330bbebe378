/* Activations: functions of one element, and the gate that mixes a head's output. */
#ifndef WEFT_OPS_ACTIVATION_H
#define WEFT_OPS_ACTIVATION_H

#include "core/graph.h"

/* y = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))). Any shape. */
weft_tensor *weft_gelu(weft_graph *g, weft_tensor *x);
/* Its gradient: dy times the derivative at x. linear's fused activation uses it too. */
weft_tensor *weft_gelu_back(weft_graph *g, weft_tensor *dy, weft_tensor *x);

/* y = silu(b) ⊙ a, silu(b) = b·sigmoid(b): the product of SwiGLU. Any shape, the same for both. */
weft_tensor *weft_silu_mul(weft_graph *g, weft_tensor *a, weft_tensor *b);

/* y = log(1 + e^x) + floor in the columns (last dimension) from `start` on; those before it are
 * copied: the standard deviations of a head that holds means first. */
weft_tensor *weft_softplus(weft_graph *g, weft_tensor *x, int64_t start, double floor);

/* y = e^x. Any shape. */
weft_tensor *weft_exp(weft_graph *g, weft_tensor *x);

/* y = o·(1 − α + α·sigmoid(gate)): o is [B, T, H, D], gate [B, T, H], or [B, 1, H] for one gate a
 * sequence, before the sigmoid. */
weft_tensor *weft_gate_mix(weft_graph *g, weft_tensor *o, weft_tensor *gate, double alpha);

/* Attributes of the nodes, for the kernels. */
typedef struct {
    int64_t start;
    double floor;
} weft_softplus_attr;

typedef struct {
    bool da, db; /* which gradients are wanted */
} weft_silu_mul_back_attr;

typedef struct {
    double alpha;
    bool d_o, d_gate; /* gate_mix_back: which gradients are wanted */
} weft_gate_mix_attr;

#endif

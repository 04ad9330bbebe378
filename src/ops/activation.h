/* Activations: functions of one element, and the gate that mixes a head's output. */
#pragma once

#include "ops/list.h"

/* Operations of one element, of any shape: weft_NAME(g, x) for each of ops/list.h, such as weft_gelu,
 * and its gradient weft_NAME_back(g, dy, READS), dy times the slope. */
#define WEFT_UNARY_DECLARE(X, op, value, reads, gradient)                                          \
    weft_tensor *weft_##op(weft_graph *g, weft_tensor *x);                                         \
    weft_tensor *weft_##op##_back(weft_graph *g, weft_tensor *dy, weft_tensor *reads);
WEFT_UNARY_OPS(WEFT_UNARY_DECLARE, )
#undef WEFT_UNARY_DECLARE
/* The one of that name. */
weft_tensor *weft_unary(weft_graph *g, const char *name, weft_tensor *x);

/* Products of a and a function of b, such as weft_silu_mul(g, a, b), y = a ⊙ b·sigmoid(b). */
#define WEFT_GATE_DECLARE(X, op, ...)                                                              \
    weft_tensor *weft_##op(weft_graph *g, weft_tensor *a, weft_tensor *b);
WEFT_GATE_OPS(WEFT_GATE_DECLARE, )
#undef WEFT_GATE_DECLARE

/* y = log(1 + e^x) + floor in the columns (last dimension) from `start` on; those before it are
 * copied: the standard deviations of a head that holds means first. */
weft_tensor *weft_softplus(weft_graph *g, weft_tensor *x, int64_t start, double floor);

/* y = o·(1 − α + α·sigmoid(gate)): o is [B, T, H, D], gate [B, T, H], or [B, 1, H] for one gate a
 * sequence, before the sigmoid. */
weft_tensor *weft_gate_mix(weft_graph *g, weft_tensor *o, weft_tensor *gate, double alpha);

/* Attributes of the nodes, for the kernels. */
typedef struct {
    int64_t start;
    double floor;
} weft_softplus_attr;

typedef struct {
    weft_wanted wanted; /* gate_mix_back */
    double alpha;
} weft_gate_mix_attr;

/* Dropout by counter-based random numbers. */

/* x: [B, ..]. Each element is set to 0 with probability p, 0 ≤ p < 1, and the others are divided
 * by 1 − p. `site` names the place in the model ("h.3.attn.drop"): element i of sequence b has
 * word i of the stream (the run's seed and iteration, the run's sequence + b, the site), so the
 * gradient and a recomputed segment drop the same ones. p = 0 is x itself. */
weft_tensor *weft_dropout(weft_graph *g, weft_tensor *x, double p, const char *site);

/* Attributes of the node, for the kernel. */
typedef struct {
    double p;
    uint32_t site;
} weft_dropout_attr;

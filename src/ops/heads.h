/* Between what a head has and what heads share: one vector for all of them, and rows pooled or
 * spread head by head. */
#pragma once

#include "core/graph.h"

/* x [B, T, 1, L] → [B, T, heads, L]: every head gets the one there is. */
weft_tensor *weft_head_repeat(weft_graph *g, weft_tensor *x, int64_t heads);

/* Rows of F numbers and rows of L = F/r, both cut into H groups; scale [H] is of the statistics'
 * type. F and L must divide by H, and F by L.
 *
 * pool:   x [..., F] → u [..., L = width], u[h·L/H + l] = scale_h · mean_{m<r} x[h·F/H + l·r + m]
 * spread: c [..., L] → e [..., F = width], e[h·F/H + l·r + m] = scale_h · c[h·L/H + l] */
weft_tensor *weft_head_pool(weft_graph *g, weft_tensor *x, weft_tensor *scale, int64_t width);
weft_tensor *weft_head_spread(weft_graph *g, weft_tensor *c, weft_tensor *scale, int64_t width);

/* x [H, M, N] → [H, N, M]: each head's matrix transposed, so that the heads' maps are one. */
weft_tensor *weft_head_transpose(weft_graph *g, weft_tensor *x);

/* Attributes of the nodes, for the kernels. */
typedef struct {
    int64_t heads;
} weft_head_repeat_attr;

typedef struct {
    int64_t width; /* of the rows that are made; head_scale_back: how many heads */
    bool mean;     /* divide by r */
} weft_head_attr;

/* Tensors of one shape as one tensor, so that what is done to each becomes one product of a batch. */

/* y [n, ...]: the n tensors of `parts` one after another; all of one shape and type. */
weft_tensor *weft_stack(weft_graph *g, weft_tensor *const *parts, int64_t n);

/* Of unstack: the parts that are made. */
typedef struct {
    const bool *wanted;
} weft_unstack_attr;

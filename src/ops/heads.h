/* Between what a head has and what heads share: one vector for all of them, and rows pooled or
 * spread head by head. */
#pragma once

#include "base/random.h"
#include "core/graph.h"

/* Columns of one or two tensors put together: y [B, T, heads, width], zeros but where a part puts
 * something. Head h has of a part x [B, T, Hx, *] columns of head ⌊h Hx/heads⌋: `count` from
 * from + s from_step on, which go to columns to + s to_step on, s = ⌊h slots/heads⌋. z is not read where part[1] has no columns. So
 * heads are repeated, columns taken out and joined, and several heads' shares laid side by side. */
typedef struct {
    int64_t from, count, to, from_step, to_step;
} weft_columns;

typedef struct {
    int64_t heads, width, slots; /* slots 0: 1 */
    weft_columns part[2];
    int64_t from_heads, from_width; /* head_columns_back: of what it makes, by part[0] */
} weft_head_columns_attr;

weft_tensor *weft_head_columns(weft_graph *g, weft_head_columns_attr attr, weft_tensor *x,
                               weft_tensor *z);
/* x [B, T, 1, L] → [B, T, heads, L]: every head gets the one there is. */
weft_tensor *weft_head_repeat(weft_graph *g, weft_tensor *x, int64_t heads);

/* For kernels: where head h of the result has its share of a part of `heads` heads. */
typedef struct {
    int64_t head, from, to;
} weft_columns_place;
WEFT_BOTH static inline weft_columns_place weft_columns_of(const weft_head_columns_attr *a,
                                                           int part, int64_t heads, int64_t h) {
    const weft_columns *c = &a->part[part];
    int64_t slot = h * a->slots / a->heads;
    weft_columns_place place = {h * heads / a->heads, c->from + slot * c->from_step,
                                c->to + slot * c->to_step};
    return place;
}

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
    int64_t width; /* of the rows that are made; head_scale_back: how many heads */
    bool mean;     /* divide by r */
} weft_head_attr;

/* Tensors of one shape as one tensor, so that what is done to each becomes one product of a batch. */

/* y [n, ...]: the n tensors of `parts` one after another; all of one shape and type. */
weft_tensor *weft_stack(weft_graph *g, weft_tensor *const *parts, int64_t n);

/* Rotary positions: pairs of a head's columns rotated by an angle that grows with the position. */
#pragma once

#include "core/graph.h"
#include "core/rope_law.h"

/* x: [B, T, H, D]. With θ = p·10000^(−2i/width), or as another law has it, i < width/2, j = i + width/2:
 *     y_i = x_i cos θ − x_j sin θ,   y_j = x_j cos θ + x_i sin θ
 * in the first `heads` heads and the first `width` (even) columns of each; the rest is copied. The
 * position p is t, plus start[b] where `start` [B] (i32, read when it runs) is given. */
weft_tensor *weft_rope(weft_graph *g, weft_tensor *x, int64_t width, int64_t heads,
                       weft_tensor *start, const weft_rope_law *law);

/* Attributes of the node, for the kernel. */
typedef struct {
    int64_t width, heads;
    weft_rope_law law;
    bool inverse; /* by the opposite angle: the gradient */
} weft_rope_attr;

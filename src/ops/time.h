/* Means over time, and moments. */
#pragma once

#include "core/graph.h"

/* x: [B, T, N]; y_t = mean of x_s over s ≤ t, from first[b, t] [B, T] i32 on: within documents (documents.h).
 * NULL: from 0 on. */
weft_tensor *weft_running_mean(weft_graph *g, weft_tensor *x, weft_tensor *first);

/* x: [B, T, N]; y: [B, 1, N], the mean over t. */
weft_tensor *weft_time_mean(weft_graph *g, weft_tensor *x);

/* x [B, T, E]: the sum over t, [B, 1, E], and the Gram matrix of all rows, [E, E], whose readers are
 * as those of weft_gram (linear.h). x is read for both at once, and their gradients are one product. */
typedef struct {
    weft_tensor *sum, *gram;
} weft_moments_of;
weft_moments_of weft_moments(weft_graph *g, weft_tensor *x);

enum { WEFT_MOMENTS_GRAM, WEFT_MOMENTS_SUM, WEFT_MOMENTS_OUTPUTS };
/* dx = 2 x d_gram + d_sum, the latter for each of a sequence's rows. */
enum { WEFT_MOMENTS_BACK_X, WEFT_MOMENTS_BACK_GRAM, WEFT_MOMENTS_BACK_SUM };

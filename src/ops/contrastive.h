/* The contrastive loss of the world-synergistic feed-forward. */
#ifndef WEFT_OPS_CONTRASTIVE_H
#define WEFT_OPS_CONTRASTIVE_H

#include "core/graph.h"

/* Cosine InfoNCE over the N rows of x [N, D], each its own positive:
 *     y[] = factor · mean_i(logsumexp_j(s_ij/τ) − s_ii/τ),   s_ij = cos(x_i, x_j),
 * norms clamped at 1e-8 from below. 0, with no gradient, where N < 2. Of the statistics' type.
 * x [L, N, D]: the sum of L such losses. */
weft_tensor *weft_infonce(weft_graph *g, weft_tensor *x, double tau, double factor);

/* Attributes of both nodes, for the kernels. */
typedef struct {
    double tau, factor;
} weft_infonce_attr;

#define WEFT_INFONCE_NORM_MIN 1e-8

/* The sizes of x: L matrices (1 where x is one) of N rows of D. */
typedef struct {
    int64_t losses, rows, width;
} weft_infonce_sizes;

static inline weft_infonce_sizes weft_infonce_measure(const weft_tensor *x) {
    int64_t losses = x->ndim == 3 ? x->shape[0] : 1;
    weft_infonce_sizes sizes = {losses, x->shape[x->ndim - 2], x->shape[x->ndim - 1]};
    return sizes;
}

/* LSE [N] or [L, N]: logsumexp of a row; NORM, the same: its clamped norm, of the statistics' type. */
enum { WEFT_INFONCE_Y, WEFT_INFONCE_LSE, WEFT_INFONCE_NORM, WEFT_INFONCE_OUTPUTS };
enum {
    WEFT_INFONCE_BACK_DY,
    WEFT_INFONCE_BACK_X,
    WEFT_INFONCE_BACK_LSE,
    WEFT_INFONCE_BACK_NORM,
    WEFT_INFONCE_BACK_INPUTS
};

#endif

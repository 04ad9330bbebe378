/* Linear, softmax, cross-entropy and z-loss in one, without ever holding the logits. */
#pragma once

#include "base/random.h"
#include "core/graph.h"

typedef struct {
    weft_tensor *ce;  /* []: mean over the targets that count, or their sum over `count`; 0 where
                         none does */
    weft_tensor *z;   /* []: z · mean over all rows of lse² */
    weft_tensor *lse; /* of targets' shape: the logsumexp of a row of logits; without a gradient */
} weft_losses;

/* Logits are x wᵀ, or softcap · tanh(x wᵀ / softcap) where that is not 0: x [..., E], w [V, E]; targets [...] i32 with x's leading dimensions, −1: does
 * not count; any other value outside [0, V) fails the run. With detach the z-loss is a number only,
 * and trains nothing. The three outputs are of the statistics' type. Logits as such: weft_linear.
 *
 * `count` [], of the statistics' type: what ce's sum is divided by in place of the number of these
 * rows' targets, for rows that are part of a larger batch. NULL: that number. It has no gradient. */
weft_losses weft_cross_entropy(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *targets,
                               weft_tensor *count, double z, bool detach, double softcap);

/* Inputs and outputs of the node. The last two outputs are the gradients of ce, or of ce + z where
 * the z-loss trains: weft_graph_backward asks for them (loss.c). dw is of the statistics' type. */
enum { WEFT_CE_X, WEFT_CE_W, WEFT_CE_TARGETS, WEFT_CE_COUNT, WEFT_CE_INPUTS };
enum { WEFT_CE_LOSS, WEFT_CE_Z, WEFT_CE_LSE, WEFT_CE_DX, WEFT_CE_DW, WEFT_CE_OUTPUTS };

/* Inputs of cross_entropy_back, after the first three of cross_entropy; the d_ are NULL where nothing
 * depends on the output, dx and dw where the forward pass made no gradients. Outputs: dx, dw, each
 * NULL where it is not wanted. */
enum {
    WEFT_CE_BACK_LSE = WEFT_CE_TARGETS + 1,
    WEFT_CE_BACK_D_CE,
    WEFT_CE_BACK_D_Z,
    WEFT_CE_BACK_DX,
    WEFT_CE_BACK_DW,
    WEFT_CE_BACK_COUNT,
    WEFT_CE_BACK_INPUTS
};

typedef struct {
    double z;
    bool detach;
    double softcap;
} weft_cross_entropy_attr;

/* The z-loss has a gradient. */
static inline bool weft_z_trains(const weft_cross_entropy_attr *attr) {
    return attr->z != 0 && !attr->detach;
}

/* The contrastive loss of the world-synergistic feed-forward. */

/* Cosine InfoNCE over the N rows of x [N, D], each its own positive:
 *     y[] = factor · mean_i(logsumexp_j(s_ij/τ) − s_ii/τ),   s_ij = cos(x_i, x_j),
 * norms clamped at 1e-8 from below. 0, with no gradient, where N < 2. Of the statistics' type.
 * x [L, N, D]: the sum of L such losses.
 *
 * With group > 0 rows are anchors and positives in turn, `group` of each: row i + group is the positive of
 * an anchor i, i runs over the N/2 anchors and j over the positives,
 *     y[] = factor · mean_i(logsumexp_j(s_ij/τ) − s_i,i+group/τ). */
weft_tensor *weft_infonce(weft_graph *g, weft_tensor *x, int64_t group, double tau, double factor);

/* Attributes of both nodes, for the kernels. */
typedef struct {
    double tau, factor;
    int64_t group;
} weft_infonce_attr;

#define WEFT_INFONCE_NORM_MIN 1e-8

/* For kernels. The logsumexp of a positive is infinite, so that its share of the weights
 * exp(s_ij/τ − lse_i) + exp(s_ij/τ − lse_j) is none. */
/* Whether row i is an anchor; group 0: every row is. */
WEFT_BOTH static inline bool weft_infonce_is_anchor(int64_t group, int64_t i) {
    return group == 0 || i / group % 2 == 0;
}
/* Whether rows i and j are compared. */
WEFT_BOTH static inline bool weft_infonce_compares(int64_t group, int64_t i, int64_t j) {
    return group == 0 || weft_infonce_is_anchor(group, i) != weft_infonce_is_anchor(group, j);
}
/* The other row of i's pair. */
WEFT_BOTH static inline int64_t weft_infonce_other(int64_t group, int64_t i) {
    return weft_infonce_is_anchor(group, i) ? i + group : i - group;
}

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
enum { WEFT_INFONCE_BACK_DY, WEFT_INFONCE_BACK_X, WEFT_INFONCE_BACK_LSE, WEFT_INFONCE_BACK_NORM };

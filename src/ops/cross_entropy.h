/* Linear, softmax, cross-entropy and z-loss in one, without ever holding the logits. */
#ifndef WEFT_OPS_CROSS_ENTROPY_H
#define WEFT_OPS_CROSS_ENTROPY_H

#include "core/graph.h"

typedef struct {
    weft_tensor *ce;  /* []: mean over the targets that count; 0 where none does */
    weft_tensor *z;   /* []: z · mean over all rows of lse² */
    weft_tensor *lse; /* of targets' shape: the logsumexp of each row of logits */
} weft_losses;

/* Logits are x wᵀ: x [..., E], w [V, E]; targets [...] i32 with x's leading dimensions, −1: does not
 * count; any other value outside [0, V) fails the run. With detach the z-loss is a number only, and
 * trains nothing. The three outputs are of the statistics' type. Logits as such: weft_linear. */
weft_losses weft_cross_entropy(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *targets,
                               double z, bool detach);

/* Inputs of cross_entropy: x, w, targets; outputs ce, z, lse. Inputs of cross_entropy_back: x, w,
 * targets, lse, d_ce, d_z, d_lse, the last three NULL where nothing depends on them; outputs dx, dw,
 * each NULL where it is not wanted. */
typedef struct {
    double z;
    bool detach;
} weft_cross_entropy_attr;

#endif

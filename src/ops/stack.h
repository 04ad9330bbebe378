/* Tensors of one shape as one tensor, so that what is done to each becomes one product of a batch. */
#ifndef WEFT_OPS_STACK_H
#define WEFT_OPS_STACK_H

#include "core/graph.h"

/* y [n, ...]: the n tensors of `parts` one after another; all of one shape and type. */
weft_tensor *weft_stack(weft_graph *g, weft_tensor *const *parts, int64_t n);

/* Of unstack: the parts that are made. */
typedef struct {
    const bool *wanted;
} weft_unstack_attr;

#endif

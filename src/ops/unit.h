/* Vectors scaled to length 1. */
#ifndef WEFT_OPS_UNIT_H
#define WEFT_OPS_UNIT_H

#include "core/graph.h"

/* x: [B, T, H, D]. Each of the first `heads` heads becomes x / ‖x‖, its length being taken as at
 * least WEFT_UNIT_LEAST; the others are copied. */
#define WEFT_UNIT_LEAST 1e-8
weft_tensor *weft_unit(weft_graph *g, weft_tensor *x, int64_t heads);

/* Attributes of unit and unit_back, for the kernels. unit_back makes dx from dy and x. */
typedef struct {
    int64_t heads;
} weft_unit_attr;

#endif

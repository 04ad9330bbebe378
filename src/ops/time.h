/* Means over time. */
#ifndef WEFT_OPS_TIME_H
#define WEFT_OPS_TIME_H

#include "core/graph.h"

/* x: [B, T, N]; y_t = mean of x_s over s ≤ t. */
weft_tensor *weft_running_mean(weft_graph *g, weft_tensor *x);

/* x: [B, T, N]; y: [B, 1, N], the mean over t. */
weft_tensor *weft_time_mean(weft_graph *g, weft_tensor *x);

/* Attribute of time_mean_back, for the kernel. */
typedef struct {
    int64_t time; /* T */
} weft_time_attr;

#endif

/* Gaussians as vectors: what turns the overlap of two of them into a dot product. */
#ifndef WEFT_OPS_GAUSSIAN_H
#define WEFT_OPS_GAUSSIAN_H

#include "core/graph.h"

/* x [B, T, H, 2D]: each head has D means, then D raw deviations ρ; σ = softplus(ρ) + 1e-4. */
typedef struct {
    weft_tensor *y;         /* [B, T, H, D]: the means over √σ */
    weft_tensor *log_sigma; /* [B, H, T]: Σ_d log σ, of the statistics' type */
} weft_overlap;

/* Both are NULL on an error. */
weft_overlap weft_overlap_scale(weft_graph *g, weft_tensor *x);

#endif

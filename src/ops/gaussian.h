/* Gaussians as vectors: what turns the distance or the overlap of two of them into a dot product.
 * x [B, T, H, 2D]: each head has D means, then D raw deviations ρ. */
#pragma once

#include "core/graph.h"

/* A key of the Wasserstein-2 distance. */
typedef struct {
    weft_tensor *y; /* [B, T, H, 2D]: the means, then σ = softplus(ρ) */
    weft_tensor *n; /* [B, H, T]: Σ y² of a head, of the statistics' type, from y as it is stored */
} weft_gaussian;

/* Both are NULL on an error. */
weft_gaussian weft_gaussian_key(weft_graph *g, weft_tensor *x);

/* A query: y alone, since its own norm drops out of the softmax. */
weft_tensor *weft_gaussian_query(weft_graph *g, weft_tensor *x);

/* For the overlap σ = softplus(ρ) + 1e-4. */
typedef struct {
    weft_tensor *y;         /* [B, T, H, D]: the means over √σ */
    weft_tensor *log_sigma; /* [B, H, T]: Σ_d log σ, of the statistics' type */
} weft_overlap;

/* Both are NULL on an error. */
weft_overlap weft_overlap_scale(weft_graph *g, weft_tensor *x);

/* Plain arithmetic: constants, sums, scalings, conversions, and sums of products. */
#pragma once

#include "core/graph.h"

/* A tensor with every element `value`. */
weft_tensor *weft_fill(weft_graph *g, weft_dtype dtype, int ndim, const int64_t *shape,
                       double value);

/* y = a + b, and y = a + alpha·b. b's shape is a's, or the last dimensions of it: b is then added
 * to each of a's rows. y has a's type. */
weft_tensor *weft_add(weft_graph *g, weft_tensor *a, weft_tensor *b);
weft_tensor *weft_add_scaled(weft_graph *g, weft_tensor *a, weft_tensor *b, double alpha);

/* y = alpha·a. */
weft_tensor *weft_scale(weft_graph *g, weft_tensor *a, double alpha);

/* The same values as f32 or bf16 (rounded to nearest even). `a` itself where it has that type;
 * f64 goes to no other type and comes from none. */
weft_tensor *weft_cast(weft_graph *g, weft_tensor *a, weft_dtype to);

/* y[] = Σ a·b over all elements, of the statistics' type. */
weft_tensor *weft_dot(weft_graph *g, weft_tensor *a, weft_tensor *b);

/* y[] = factor · Σ x², of the statistics' type. */
weft_tensor *weft_sum_squares(weft_graph *g, weft_tensor *x, double factor);

/* n[B, H, T] = Σ x[b, t, h, d]² over d ≥ start, of the statistics' type: the number a key that
 * attention adds to its scores. */
weft_tensor *weft_row_squares(weft_graph *g, weft_tensor *x, int64_t start);

/* Attributes of the nodes, for the kernels. */
typedef struct {
    weft_dtype dtype;
    int ndim;
    int64_t shape[WEFT_MAX_DIMS];
    double value;
} weft_fill_attr;

typedef struct {
    double alpha; /* add: of b; scale: of a; sum_squares: the factor */
} weft_alpha_attr;

typedef struct {
    int64_t start;
} weft_row_squares_attr;

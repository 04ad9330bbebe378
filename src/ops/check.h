/* Checks that shape rules share. Each returns WEFT_OK or records an error in the graph that names
 * the operation and both shapes. */
#ifndef WEFT_OPS_CHECK_H
#define WEFT_OPS_CHECK_H

#include "core/graph.h"

/* `t` is f32, f64 or bf16. */
weft_status weft_check_float(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t);
/* `t` is i32. */
weft_status weft_check_int(weft_graph *g, const weft_node *n, const char *what,
                           const weft_tensor *t);
/* `a` and `b` have one shape; names as the message should have them. */
weft_status weft_check_same(weft_graph *g, const weft_node *n, const char *a_name,
                            const weft_tensor *a, const char *b_name, const weft_tensor *b);
/* `t` has exactly this shape: weft_check_shape(g, n, "bias", b, 1, (int64_t[]){N}). */
weft_status weft_check_shape(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t, int ndim, const int64_t *shape);
weft_status weft_check_ndim(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, int ndim);

/* The type of row statistics and losses beside `t`: f64 beside f64, else f32. */
weft_dtype weft_stat_dtype(const weft_tensor *t);

#endif

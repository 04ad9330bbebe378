/* Tiles of R, the attention's weights over all heads, and their product with rows of h.
 *
 * One side of a tile is fixed for a task and lies along the vector lanes: queries when a row's
 * weights are wanted, keys when a column's are. Its vectors are transposed once. The other side
 * passes by, one vector a step, and is read where it lies. The dot product of a pair adds up in
 * the same order from either side, and what follows is one compiled function, so the forward and
 * the backward pass find the same weights bit for bit. */
#ifndef WEFT_CPU_ROUTING_TILE_H
#define WEFT_CPU_ROUTING_TILE_H

#include "cpu/vec.h"
#include "ops/routing.h"

enum {
    ROUTE_LANES = 64, /* of the fixed side in a task, and the row length of tiles */
    ROUTE_STEPS = 64, /* of the passing side in a tile */
    ROUTE_TILE = ROUTE_LANES * ROUTE_STEPS
};

/* The fixed side of a task: `count` queries or keys of sequence `batch` from index `first`. The
 * caller fills the fields above the line and calls route_fix. */
typedef struct {
    const weft_exec *x;
    const weft_node *n;
    bool keys; /* the lanes are keys, and queries pass by; else the other way round */
    int64_t batch, first, count;
    real *scratch; /* route_scratch reals */

    int64_t position;              /* of query 0 among the keys */
    int64_t width;                 /* lanes of a panel of `packed` */
    real *packed;                  /* [heads of the fixed side][panels][dqk][width] */
    real *packed_other;            /* for the band: the other tensor's heads at the same places */
    real *passing, *passing_other; /* [ROUTE_STEPS, dqk] where they are stored as bf16 */
    real *dots, *band_dots;        /* [ROUTE_STEPS, ROUTE_LANES] */
} route_side;

#define route_scratch KERNEL(route_scratch)
#define route_fix KERNEL(route_fix)
#define route_tile KERNEL(route_tile)
#define route_product KERNEL(route_product)

/* Reals of scratch that a route_side needs for this node. */
int64_t route_scratch(const weft_node *n, bool keys);

/* Transposes the fixed side. */
void route_fix(route_side *r);

/* tile[s][lane] = R of the passing index first + s and the lane; s < steps ≤ ROUTE_STEPS. Pairs
 * that are not seen get 0; lanes past r->count get numbers without meaning. */
void route_tile(const route_side *r, int64_t first, int64_t steps, real *tile);

enum { ROUTE_PRODUCT_SCRATCH = 3 * ROUTE_TILE };

/* Row `lane` < lanes of y, from element `y_at` on and `width` long, becomes
 *     factor[lane] · Σ_s weights[s][lane] · row s of x        s < steps
 * where the rows of x start at element `x_at`; factor NULL: 1. The row length of `weights` is
 * ROUTE_LANES; scratch: ROUTE_PRODUCT_SCRATCH reals. */
void route_product(const weft_exec *x, const real *weights, int64_t steps, int64_t lanes,
                   const weft_tensor *in, int64_t in_at, const real *factor, const weft_tensor *out,
                   int64_t out_at, int64_t width, real *scratch);

#endif

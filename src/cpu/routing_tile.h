/* Tiles of R, the attention's weights over all heads, and their product with rows of h.
 *
 * One side of a tile is fixed for a task and lies along the vector lanes: queries when a row's
 * weights are wanted, keys when a column's are. Its vectors are transposed once. The other side
 * passes by, a few vectors per step. The dot product of a pair adds up in the same order from either
 * side, and what follows is one compiled function, so the forward and the backward pass find the same
 * weights bit for bit. */
#pragma once

#include "cpu/attention_tile.h"
#include "ops/routing.h"

enum {
    ROUTE_LANES = 64, /* of the fixed side in a task, and the row length of tiles */
    ROUTE_STEPS = 64, /* of the passing side in a tile */
    ROUTE_TILE = ROUTE_LANES * ROUTE_STEPS
};

/* The fixed side of a task: `count` queries or keys of sequence `batch` from index `first`. The
 * caller fills the first part and calls route_fix. */
typedef struct {
    const attention_problem *p; /* of the attention whose weights these are */
    const real *lse;            /* [B, H, T] */
    bool use_max;               /* over heads, in place of the mean */
    bool keys; /* the lanes are keys, and queries pass by; else the other way round */
    int64_t batch, first, count;
    real *scratch; /* route_scratch reals */

    real *packed;                  /* [heads of the fixed side][panels][dqk][TILE_N] */
    real *packed_other;            /* for the band: the other side's vectors at the same places */
    real *passing, *passing_other; /* [panels][dqk][TILE_M] of ROUTE_STEPS, of a head */
    real *widened;                 /* a panel of rows, for bf16 */
    real *dots, *band_dots;        /* TILE_M steps × ROUTE_LANES */
} route_side;

#define route_scratch KERNEL(route_scratch)
#define route_fix KERNEL(route_fix)
#define route_tile KERNEL(route_tile)
#define route_product KERNEL(route_product)

/* Reals of scratch that a route_side needs. */
int64_t route_scratch(const weft_attention_attr *a, bool keys);

/* Transposes the fixed side. */
void route_fix(route_side *r);

/* tile[s][lane] = R of the passing index first + s and the lane; s < steps ≤ ROUTE_STEPS. Pairs
 * that are not seen get 0; lanes past r->count get numbers without meaning. */
void route_tile(const route_side *r, int64_t first, int64_t steps, real *tile);

enum { ROUTE_PRODUCT_SCRATCH = 3 * ROUTE_TILE };

/* Row `lane` < lanes of `out`, `width` long, becomes
 *     factor[lane] · Σ_s weights[s][lane] · row s of `in`        s < steps
 * where the rows start at the elements out_at and in_at; factor NULL: 1. The row length of
 * `weights` is ROUTE_LANES; scratch: ROUTE_PRODUCT_SCRATCH reals. */
void route_product(const attention_problem *p, const real *weights, int64_t steps, int64_t lanes,
                   const weft_tensor *in, int64_t in_at, const real *factor, const weft_tensor *out,
                   int64_t out_at, int64_t width, real *scratch);

/* Where the first query stands among the keys. Not causal is as if all queries stood behind
 * the last key: every key is seen (and no term of the score depends on a distance then). */
static inline int64_t route_start(const attention_problem *p) {
    return p->a->causal ? 0 : p->a->keys;
}

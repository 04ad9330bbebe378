/* What becomes part of a product in graphs of generation, where a launch costs more than some bytes of weights.
 *
 * Norms, of the products behind them: for x the residual stream,
 *
 *     norm(x) wᵀ + c = rstd (x (w diag(gain))ᵀ − mean · sums) + (w offset + c)
 *
 * with sums those of the folded matrix's rows. Only mean and rstd depend on the run, and come as moments from
 * the product that makes x (ops/linear.h): the norm has no kernel of its own. The folded matrix is rounded to
 * bf16 where the normed rows were; `sums` are of what was rounded, so that a large mean cancels up to f32.
 *
 * A norm is folded where a product with bf16 weights, or such a sum, makes what it reads, and where all that read it are
 * products with bf16 weights that nothing but a bias, an addend, gelu or softplus follows, or SwiGLU's.
 * All else keeps its norm.
 *
 * Maps of heads, of the products around them: where a linear layer's results only go through one matrix per
 * head (MLA's way into the latent), or one matrix per head makes what a linear layer reads (the way out of it),
 * both are one matrix. A gate of heads between the two is one factor per head: it goes before both.
 *
 * Matrices that lie as [K, N] are transposed: products of few rows stream rows of weights.
 *
 * Gelu, of the product before it, and softplus of W2's deviations. And sums, of what makes their last term: cross-token's gathering adds what
 * else a layer adds to the residual stream, so that it makes the stream, and moments for the norm behind it.
 * Rows do not decide any of it, so graphs for all numbers of them read the same weights. */
#pragma once

#include "core/graph.h"

/* A matrix that is made once of one that the graph read before. With `map`, of heads: [G, K, N], or [G, N, K]
 * with tb; it is behind the product, or before it. With `gain`, of a norm: of the three that are made, sums and
 * bias may be NULL; so may offset and the bias before. With neither the transpose. */
typedef struct {
    weft_tensor *matrix, *sums, *bias;
    const weft_tensor *from, *gain, *offset, *was_bias, *map;
    bool tb, before;
} weft_fold;

/* Folds what it can: norms of up to `width` columns, and maps where their product with a matrix has no more
 * than so many bytes more than both. *folds: n of them, a map's ahead of the norm's that reads it; to be
 * freed. */
weft_status weft_fold_products(weft_graph *g, int64_t width, int64_t bytes, weft_fold **folds,
                               int64_t *n);

/* Norms that become part of the products behind them, in graphs of generation: for x the residual stream,
 *
 *     norm(x) wᵀ + c = rstd (x (w diag(gain))ᵀ − mean · sums) + (w offset + c)
 *
 * with sums those of the folded matrix's rows. Only mean and rstd depend on the run, and come as moments from
 * the product that makes x (ops/linear.h): the norm has no kernel of its own. The folded matrix is rounded to
 * bf16 where the normed rows were; `sums` are of what was rounded, so that a large mean cancels up to f32.
 *
 * A norm is folded where a product with bf16 weights makes what it reads, and where all that read it are
 * products with bf16 weights that nothing but a bias, an addend or gelu follows, or SwiGLU's behind RMSNorm.
 * All else keeps its norm. Rows do not decide, so graphs for all numbers of them read the same weights. */
#pragma once

#include "core/graph.h"

/* A matrix that is made once of one that the graph read before. Of the three that are made, sums and bias
 * may be NULL; so may offset and the bias before. */
typedef struct {
    weft_tensor *matrix, *sums, *bias;
    const weft_tensor *from, *gain, *offset, *was_bias;
} weft_fold;

/* Folds what it can, for norms of up to `width` columns. *folds: n of them, to be freed. */
weft_status weft_fold_norms(weft_graph *g, int64_t width, weft_fold **folds, int64_t *n);

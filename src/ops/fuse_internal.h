/* For the files that fuse: fuse.c has the table of rules; each file of a family has its own. */
#ifndef WEFT_OPS_FUSE_INTERNAL_H
#define WEFT_OPS_FUSE_INTERNAL_H

#include "core/rewrite.h"
#include "ops/fuse.h"
#include "ops/linear.h"

static inline const weft_matmul_attr *weft_fuse_attr(const weft_node *product) {
    return product->attr;
}

/* Whether a product does nothing after its sum yet, and its result has the type of what `reader`
 * makes. */
static inline bool weft_fuse_is_free(const weft_node *product, const weft_node *reader) {
    const weft_matmul_attr *attr = weft_fuse_attr(product);
    return attr->act == WEFT_ACT_NONE && attr->dtype == reader->out[0]->dtype;
}

/* The same of what a rule has found: the match is of the product's result. */
static inline bool weft_fuse_is_free_product(const weft_match *m) {
    return m->output == 0 && weft_fuse_is_free(m->maker, m->reader);
}

/* Whether an add is a + b of as many numbers: no factor, and nothing is repeated. */
bool weft_fuse_is_plain_sum(const weft_node *add);

/* Whether a product may wait for its addend: what may have to live longer then, for each pair that it
 * sums, is no larger than the result that need not live until then. An addend that it has waits
 * itself. Shapes alone decide, so that a graph with recomputation, where lives differ, has the same
 * products and the same bits. */
bool weft_fuse_may_wait(const weft_node *product);

/* The maker makes the reader's first output in place of the one that the reader read, and the reader
 * goes; the maker stays in its place in the list, or waits until the reader's. */
void weft_fuse_replace(weft_rewrite *r, weft_node *maker, int output, weft_node *reader,
                       bool waits);

/* The rules: fuse.c tells what each does. */
bool weft_fuse_addend(weft_rewrite *r, const weft_match *m);
bool weft_fuse_factor(weft_rewrite *r, const weft_match *m);
bool weft_fuse_slope(weft_rewrite *r, const weft_match *m);
bool weft_fuse_product_sums(weft_rewrite *r, const weft_match *m);
bool weft_fuse_slope_sums(weft_rewrite *r, const weft_match *m);
bool weft_fuse_sum(weft_rewrite *r, const weft_match *m);
bool weft_fuse_residual(weft_rewrite *r, const weft_match *m);
bool weft_fuse_norm_addend(weft_rewrite *r, const weft_match *m);
bool weft_fuse_norm_sums(weft_rewrite *r, const weft_match *m);
bool weft_fuse_embed_addend(weft_rewrite *r, const weft_match *m);
bool weft_fuse_gaussian_back(weft_rewrite *r, const weft_match *m);
bool weft_fuse_silu_mul(weft_rewrite *r, const weft_match *m);
bool weft_fuse_silu_mul_back(weft_rewrite *r, const weft_match *m);

#endif

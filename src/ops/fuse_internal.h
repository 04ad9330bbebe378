/* For the files that fuse: fuse.c walks over the nodes; each file of a family rewrites its own kind. */
#ifndef WEFT_OPS_FUSE_INTERNAL_H
#define WEFT_OPS_FUSE_INTERNAL_H

#include "core/graph_internal.h"
#include "ops/fuse.h"
#include "ops/linear.h"

typedef struct {
    weft_graph *g;
    int64_t first;
    int32_t *reads; /* [tensors] by root: of how many inputs it is the memory */
} weft_fuser;

/* Whether nothing between two nodes writes to its inputs: what is read may be read sooner or later. */
bool weft_fuser_is_quiet(const weft_fuser *f, const weft_node *from, const weft_node *to);

/* Nodes from `first` on are rewritten, but for those that make the forward pass's values again. */
bool weft_fuser_is_open(const weft_fuser *f, const weft_node *n);

/* Whether `root`, no view, is an inner value that one node reads. */
static inline bool weft_fuser_reads_once(const weft_fuser *f, const weft_tensor *root) {
    return !root->keep && f->reads[root->id] == 1;
}

/* The product that makes `t` for `reader` alone and does nothing after its sum yet; NULL: it is
 * none. */
weft_node *weft_fuser_product(const weft_fuser *f, weft_tensor *t, const weft_node *reader);

bool weft_fuser_is_made_before(weft_tensor *t, const weft_node *n);

/* Whether a product may wait for its addend: what may have to live longer then, for each pair that it
 * sums, is no larger than the result that need not live until then. An addend that it has waits itself. Shapes alone decide, so
 * that a graph with recomputation, where lives differ, has the same products and the same bits. */
bool weft_fuser_may_wait(const weft_node *product);

/* The product's attributes, its own to change; NULL: no memory. */
weft_matmul_attr *weft_fuser_copy_attr(weft_fuser *f, weft_node *product);

/* The product makes what the reader made, in its own place in the list or in the reader's. */
void weft_fuser_replace_reader(weft_fuser *f, weft_node *product, weft_node *reader, bool waits);

/* Rewrites of fuse_gated.c: a silu_mul of two linear layers, and its gradient behind a product. */
void weft_fuse_silu_mul(weft_fuser *f, weft_node *silu_mul);
void weft_fuse_silu_mul_back(weft_fuser *f, weft_node *back);

/* Puts a node into the place before another; what lies between closes up. */
void weft_fuser_move_before(weft_fuser *f, weft_node *n, const weft_node *other);

/* fuse_norm.c: of a norm whose residual is a product; and of a sum, alpha 1 and one shape, with a
 * norm's gradient in it: true, the sum is gone. */
void weft_fuse_norm(weft_fuser *f, weft_node *norm);
bool weft_fuse_norm_back(weft_fuser *f, weft_node *add);
/* Sums of products, fuse_sums.c: where the product's addend is made by a product that it alone reads,
 * that one makes its result too, and it goes. */
void weft_fuse_sum(weft_fuser *f, weft_node *product);
/* And of a bias's gradient that sums what norm_back makes. */
void weft_fuse_norm_sums(weft_fuser *f, weft_node *bias);

/* fuse_gaussian.c: of a gaussian's gradient behind attention's. */
void weft_fuse_gaussian_back(weft_fuser *f, weft_node *back);

/* fuse_embed.c: of such a sum with an embedding's gradient in it. */
bool weft_fuse_embed_back(weft_fuser *f, weft_node *add);

#endif

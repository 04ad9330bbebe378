/* The tree that a step's micro-batches are added in, and how ranks share it.
 *
 * The tree over n leaves is fixed by n alone: the left part of a node of `count` leaves is the largest
 * power of two below `count`, the right part the rest. A rank has a span of neighbouring leaves and
 * makes the largest nodes that lie in it; those of all ranks, in order, are the `held` nodes, and what
 * is left to add is the list of `merges` above them. So the sum has the same bits, whoever holds the
 * leaves. */
#ifndef WEFT_COMM_TREE_H
#define WEFT_COMM_TREE_H

#include "base/error.h"

#include <stdint.h>

typedef struct {
    int64_t first, count; /* leaves */
    int rank;             /* who makes it */
} weft_tree_node;

/* Node `from` is added to node `to`, which lies to the left of it. */
typedef struct {
    int to, from;
} weft_tree_merge;

typedef struct {
    weft_tree_node *nodes; /* in the order of their leaves, so those of a rank are neighbours */
    int n_nodes;
    weft_tree_merge *merges; /* n_nodes - 1; the sum is then node 0 */
    int n_merges;
} weft_tree;

/* The leaves of a rank: equally many, but for one. */
typedef struct {
    int64_t first, count;
} weft_span;
weft_span weft_tree_span(int64_t leaves, int rank, int size);

/* For ranks that each have a leaf at least. */
weft_status weft_tree_make(int64_t leaves, int size, weft_tree *out);
void weft_tree_free(weft_tree *t);

/* The nodes of a rank: from *first on, so many. */
int weft_tree_of_rank(const weft_tree *t, int rank, int *first);

#endif

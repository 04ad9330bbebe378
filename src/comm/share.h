/* How ranks share a step's work without a bit of the result depending on their number: the tree that
 * micro-batches are added in, and the row of numbers that each rank owns pieces of.
 *
 * The tree over n leaves is fixed by n alone: the left part of a node of `count` leaves is the largest
 * power of two below `count`, the right part the rest. A rank has a span of neighbouring leaves and
 * makes the largest nodes that lie in it; those of all ranks, in order, are the `held` nodes, and what
 * is left to add is the list of `merges` above them. So the sum has the same bits, whoever holds the
 * leaves. */
#pragma once

#include "base/error.h"

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

/* Neighbours: leaves of the tree, blocks or numbers of a row. */
typedef struct {
    int64_t first, count;
} weft_span;

/* The leaves of a rank: equally many, but for one. */
weft_span weft_tree_span(int64_t leaves, int rank, int size);

/* For ranks that each have a leaf at least. */
weft_status weft_tree_make(int64_t leaves, int size, weft_tree *out);
void weft_tree_free(weft_tree *t);

/* The nodes of a rank: from *first on, so many. */
int weft_tree_of_rank(const weft_tree *t, int rank, int *first);

enum { WEFT_TREE_LEVELS = 40 };

/* One addition of a node's leaves as they come, on a stack of partial sums, the levels. */
typedef struct {
    int to;   /* this level = or += */
    int leaf; /* a leaf, as the caller counts them; -1: the level above */
    bool add;
} weft_tree_addition;

/* The tree as a binary counter adds ones: the i-th leaf is set on top of the stack, an odd one is added
 * to its left neighbour where it lies, and as long as the two sums on top stand for equally many leaves
 * the upper one is added to the one below. `last`: the node is finished, and leaves one sum on top of
 * the `bottom` that were there before it. Lists what is to be done, at most WEFT_TREE_LEVELS additions,
 * and says how many they are. */
int weft_tree_push(int64_t i, bool last, int leaf, int bottom, int *depth, weft_tree_addition *out);

/* Sums of f32, or of f64: to[i] = (add ? to[i] : 0) + from[i]; data[i] *= factor. */
void weft_numbers_add(void *to, const void *from, int64_t n, bool is_double, bool add);
void weft_numbers_scale(void *data, double factor, int64_t n, bool is_double);

/* A row is a list of blocks; neighbouring blocks make a bucket, and the numbers of a bucket are shared
 * out as evenly as whole blocks allow: each rank owns one piece of each bucket. So a bucket can go on its way while the rest of
 * the row is still being made, and what a rank owns is the same however long the row is. Blocks are
 * never cut; those of an optimizer's gradient are the chunks that its norm is added up in, or matrices. */
enum {
    WEFT_CUT_BUCKETS =
        32,             /* of a row, so that some leave while others are made; more where pieces */
    WEFT_CUT_LEAST = 8, /* would have fewer blocks than a message's latency is worth, */
    WEFT_CUT_LARGEST = 64, /* or so many that memory for them is wasted, */
    WEFT_CUT_MOST = 2048   /* or a bucket would have more than so many */
};

typedef struct {
    int64_t n_blocks;
    const int64_t *borders; /* [n_blocks + 1]: where blocks begin, in numbers; the caller's */
    int size;               /* ranks */
} weft_cut;

int64_t weft_cut_buckets(const weft_cut *c);
/* The blocks of a bucket, and of a rank's piece of it; a piece may have none. */
weft_span weft_cut_bucket(const weft_cut *c, int64_t bucket);
weft_span weft_cut_piece(const weft_cut *c, int64_t bucket, int rank);
/* Where blocks lie in the row. */
weft_span weft_cut_numbers(const weft_cut *c, weft_span blocks);
/* The bucket that a block is in, and the rank that owns it. */
int64_t weft_cut_bucket_of(const weft_cut *c, int64_t block);
int weft_cut_owner(const weft_cut *c, int64_t block);
/* The most numbers that a piece has. */
int64_t weft_cut_largest(const weft_cut *c);

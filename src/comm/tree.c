/* Cutting the tree at the ranks' borders. */
#include "comm/tree.h"

#include <stdlib.h>

weft_span weft_tree_span(int64_t leaves, int rank, int size) {
    int64_t first = leaves * rank / size;
    return (weft_span){first, leaves * (rank + 1) / size - first};
}

/* The rank that has all of the leaves; -1: several have. */
static int rank_of(int64_t leaves, int size, int64_t first, int64_t count) {
    for (int r = 0; r < size; r++) {
        weft_span s = weft_tree_span(leaves, r, size);
        if (first >= s.first && first + count <= s.first + s.count) return r;
    }
    return -1;
}

static int64_t left_part(int64_t count) {
    int64_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return left;
}

/* Lists the nodes and merges below one; returns the node that its sum is then in. */
static int cut_node(weft_tree *t, int64_t leaves, int size, int64_t first, int64_t count) {
    int rank = rank_of(leaves, size, first, count);
    if (rank >= 0) {
        t->nodes[t->n_nodes] = (weft_tree_node){first, count, rank};
        return t->n_nodes++;
    }
    int64_t left = left_part(count);
    int to = cut_node(t, leaves, size, first, left);
    int from = cut_node(t, leaves, size, first + left, count - left);
    t->merges[t->n_merges++] = (weft_tree_merge){to, from};
    return to;
}

weft_status weft_tree_make(int64_t leaves, int size, weft_tree *out) {
    *out = (weft_tree){0};
    if (leaves < size)
        return weft_fail(WEFT_EINPUT,
                         "%d ranks share a step's %lld micro-batches: each needs one at least; a "
                         "smaller MICRO_BATCH makes more of them",
                         size, (long long)leaves);
    out->nodes = calloc((size_t)leaves, sizeof *out->nodes);
    out->merges = calloc((size_t)leaves, sizeof *out->merges);
    if (!out->nodes || !out->merges) {
        weft_tree_free(out);
        return weft_fail(WEFT_ENOMEM, "no memory for the sum of %lld micro-batches",
                         (long long)leaves);
    }
    cut_node(out, leaves, size, 0, leaves);
    return WEFT_OK;
}

void weft_tree_free(weft_tree *t) {
    free(t->nodes);
    free(t->merges);
    *t = (weft_tree){0};
}

int weft_tree_of_rank(const weft_tree *t, int rank, int *first) {
    int count = 0;
    *first = 0;
    for (int i = 0; i < t->n_nodes; i++) {
        if (t->nodes[i].rank != rank) continue;
        if (count++ == 0) *first = i;
    }
    return count;
}

/* Cutting the tree at the ranks' borders, adding in its order, and cutting a row into pieces. */
#include "comm/share.h"

weft_span weft_tree_span(int64_t leaves, int rank, int size) {
    int64_t first = leaves * rank / size;
    return (weft_span){first, leaves * (rank + 1) / size - first};
}

/* Lists the nodes and merges below one; returns the node that its sum is then in. */
static int cut_node(weft_tree *t, int64_t leaves, int size, int64_t first, int64_t count) {
    for (int r = 0; r < size; r++) { /* one rank may have all of the leaves */
        weft_span s = weft_tree_span(leaves, r, size);
        if (first < s.first || first + count > s.first + s.count) continue;
        t->nodes[t->n_nodes] = (weft_tree_node){first, count, r};
        return t->n_nodes++;
    }
    int64_t left = 1; /* the largest power of two below count */
    while (left * 2 < count)
        left *= 2;
    int to = cut_node(t, leaves, size, first, left);
    int from = cut_node(t, leaves, size, first + left, count - left);
    t->merges[t->n_merges++] = (weft_tree_merge){to, from};
    return to;
}

weft_status weft_tree_make(int64_t leaves, int size, weft_tree *out) {
    *out = (weft_tree){0};
    if (leaves < size)
        return WEFT_BAD_INPUT(
            "%d ranks share a step's %lld micro-batches: each needs one at least; a "
            "smaller MICRO_BATCH makes more of them",
            size, (long long)leaves);
    WEFT_ROOM_AT(out->nodes, leaves, "no memory for the sum of %lld micro-batches",
                 (long long)leaves);
    WEFT_ROOM_AT(out->merges, leaves, "no memory for the sum of %lld micro-batches",
                 (long long)leaves);
    cut_node(out, leaves, size, 0, leaves);
    return WEFT_OK;
}

void weft_tree_free(weft_tree *t) {
    WEFT_FREE(t->nodes, t->merges);
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

int weft_tree_push(int64_t i, bool last, int leaf, int bottom, int *depth,
                   weft_tree_addition *out) {
    int n = 0;
    bool odd = i % 2 != 0;
    if (!odd) ++*depth;
    out[n++] = (weft_tree_addition){*depth - 1, leaf, odd};
    for (int64_t pairs = i >> 1; odd && pairs % 2; pairs >>= 1)
        out[n++] = (weft_tree_addition){--*depth - 1, -1, true};
    while (last && *depth > bottom + 1)
        out[n++] = (weft_tree_addition){--*depth - 1, -1, true};
    return n;
}

void weft_numbers_add(void *to, const void *from, int64_t n, bool is_double, bool add) {
    if (!add) {
        memcpy(to, from, (size_t)n * (is_double ? sizeof(double) : sizeof(float)));
    } else if (is_double) {
        for (int64_t i = 0; i < n; i++)
            ((double *)to)[i] += ((const double *)from)[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] += ((const float *)from)[i];
    }
}

void weft_numbers_scale(void *data, double factor, int64_t n, bool is_double) {
    for (int64_t i = 0; i < n; i++) {
        if (is_double)
            ((double *)data)[i] *= factor;
        else
            ((float *)data)[i] *= (float)factor;
    }
}

/* Whoever adds a piece holds it once for every rank: with many ranks pieces are smaller. */
static int64_t bucket_blocks(const weft_cut *c) {
    int64_t of_piece = c->n_blocks / ((int64_t)c->size * WEFT_CUT_BUCKETS);
    if (of_piece < WEFT_CUT_LEAST) of_piece = WEFT_CUT_LEAST;
    if (of_piece > WEFT_CUT_LARGEST) of_piece = WEFT_CUT_LARGEST;
    if (of_piece > WEFT_CUT_MOST / c->size) of_piece = WEFT_CUT_MOST / c->size;
    return c->size * (of_piece > 1 ? of_piece : 1);
}

int64_t weft_cut_buckets(const weft_cut *c) {
    return (c->n_blocks + bucket_blocks(c) - 1) / bucket_blocks(c);
}

weft_span weft_cut_bucket(const weft_cut *c, int64_t bucket) {
    int64_t first = bucket * bucket_blocks(c), left = c->n_blocks - first;
    return (weft_span){first, left < bucket_blocks(c) ? left : bucket_blocks(c)};
}

/* The first block of a bucket that the rank owns, or one behind it. */
static int64_t piece_begin(const weft_cut *c, weft_span bucket, int rank) {
    int64_t low = bucket.first, high = bucket.first + bucket.count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (weft_cut_owner(c, middle) < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

weft_span weft_cut_piece(const weft_cut *c, int64_t bucket, int rank) {
    weft_span all = weft_cut_bucket(c, bucket);
    int64_t begin = piece_begin(c, all, rank);
    return (weft_span){begin, piece_begin(c, all, rank + 1) - begin};
}

weft_span weft_cut_numbers(const weft_cut *c, weft_span b) {
    return (weft_span){c->borders[b.first], c->borders[b.first + b.count] - c->borders[b.first]};
}

int64_t weft_cut_bucket_of(const weft_cut *c, int64_t block) {
    return block / bucket_blocks(c);
}

int weft_cut_owner(const weft_cut *c, int64_t block) {
    weft_span all = weft_cut_numbers(c, weft_cut_bucket(c, weft_cut_bucket_of(c, block)));
    /* The rank in whose part of the bucket's numbers the block's middle lies. */
    int64_t twice = c->borders[block] + c->borders[block + 1] - 2 * all.first;
    return (int)(twice * c->size / (2 * all.count));
}

int64_t weft_cut_largest(const weft_cut *c) {
    int64_t most = 0;
    for (int64_t b = 0; b < weft_cut_buckets(c); b++) {
        for (int r = 0; r < c->size; r++) {
            weft_span p = weft_cut_piece(c, b, r);
            int64_t n = weft_cut_numbers(c, p).count;
            if (n > most) most = n;
        }
    }
    return most;
}

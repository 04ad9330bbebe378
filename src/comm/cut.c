/* Buckets, pieces, blocks. */
#include "comm/cut.h"

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

weft_blocks weft_cut_bucket(const weft_cut *c, int64_t bucket) {
    int64_t first = bucket * bucket_blocks(c), left = c->n_blocks - first;
    return (weft_blocks){first, left < bucket_blocks(c) ? left : bucket_blocks(c)};
}

weft_blocks weft_cut_piece(const weft_cut *c, int64_t bucket, int rank) {
    weft_blocks all = weft_cut_bucket(c, bucket);
    int64_t begin = all.count * rank / c->size, end = all.count * (rank + 1) / c->size;
    return (weft_blocks){all.first + begin, end - begin};
}

int64_t weft_cut_bucket_of(const weft_cut *c, int64_t block) {
    return block / bucket_blocks(c);
}

int weft_cut_owner(const weft_cut *c, int64_t block) {
    weft_blocks all = weft_cut_bucket(c, weft_cut_bucket_of(c, block));
    /* The last rank whose piece begins at the block or before it. */
    return (int)(((block - all.first + 1) * c->size - 1) / all.count);
}

int64_t weft_cut_owned(const weft_cut *c, int rank) {
    int64_t blocks = 0;
    for (int64_t b = 0; b < weft_cut_buckets(c); b++)
        blocks += weft_cut_piece(c, b, rank).count;
    return blocks;
}

int64_t weft_cut_largest(const weft_cut *c) {
    int64_t most = 0;
    for (int64_t b = 0; b < weft_cut_buckets(c); b++) {
        for (int r = 0; r < c->size; r++) {
            weft_blocks p = weft_cut_piece(c, b, r);
            int64_t n = c->borders[p.first + p.count] - c->borders[p.first];
            if (n > most) most = n;
        }
    }
    return most;
}

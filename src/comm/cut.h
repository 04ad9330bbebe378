/* How ranks share a long row of numbers.
 *
 * The row is a list of blocks; neighbouring blocks make a bucket, and the blocks of a bucket are shared
 * out evenly: each rank owns one piece of each bucket. So a bucket can go on its way while the rest of
 * the row is still being made, and what a rank owns is the same however long the row is. Blocks are
 * never cut; those of an optimizer's gradient are the chunks that its norm is added up in. */
#ifndef WEFT_COMM_CUT_H
#define WEFT_COMM_CUT_H

#include <stdint.h>

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

/* Neighbouring blocks. */
typedef struct {
    int64_t first, count;
} weft_blocks;

int64_t weft_cut_buckets(const weft_cut *c);
/* The blocks of a bucket, and of a rank's piece of it; a piece may have none. */
weft_blocks weft_cut_bucket(const weft_cut *c, int64_t bucket);
weft_blocks weft_cut_piece(const weft_cut *c, int64_t bucket, int rank);
/* The bucket that a block is in, and the rank that owns it. */
int64_t weft_cut_bucket_of(const weft_cut *c, int64_t block);
int weft_cut_owner(const weft_cut *c, int64_t block);
/* How many blocks a rank has in all. */
int64_t weft_cut_owned(const weft_cut *c, int rank);
/* The most numbers that a piece has. */
int64_t weft_cut_largest(const weft_cut *c);

#endif

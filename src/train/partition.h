/* How ranks share what belongs to a model's weights: gradients, the optimizer's state, the update.
 *
 * All weights one after the other are a row, each begun at a multiple of WEFT_ARENA_ALIGN. It is cut into
 * the chunks that the gradient's norm is added up in (WEFT_NORM_CHUNK numbers of one weight), and a
 * rank owns whole chunks (comm/cut.h). So no sum depends on the number of ranks. */
#ifndef WEFT_TRAIN_PARTITION_H
#define WEFT_TRAIN_PARTITION_H

#include "comm/comm.h"
#include "comm/cut.h"
#include "model/model.h"

/* Neighbouring numbers of one weight. */
typedef struct {
    int64_t weight, first, count;
} weft_stretch;

typedef struct {
    const weft_model *model;
    int rank;
    weft_dtype dtype;     /* of the row's numbers: f32, or f64 beside f64 */
    weft_stretch *chunks; /* the blocks of `cut` */
    int64_t *first;       /* [weights + 1]: the chunks of a weight */
    int64_t *borders;     /* [chunks + 1]: where they begin in the row, in numbers */
    weft_cut cut;
} weft_partition;

/* The model must outlive it. comm NULL: one rank owns all. */
weft_status weft_partition_make(const weft_model *m, const weft_comm *comm, weft_partition *out);
void weft_partition_free(weft_partition *s);

/* Bytes of the row, and where a weight begins in it. */
int64_t weft_partition_bytes(const weft_partition *s);
int64_t weft_partition_offset(const weft_partition *s, int64_t weight);

/* What a rank owns as stretches, in the order of the row; those that touch are one. Room for one a
 * chunk of the rank's; NULL: only counts them. */
int64_t weft_partition_owned(const weft_partition *s, int rank, weft_stretch *out);

/* The weights' own bytes of neighbouring chunks: they lie together. */
void *weft_partition_weights(const weft_partition *s, weft_blocks blocks, int64_t *bytes);

#endif

/* Sums of rows that shared memory holds: what the two that make lists for them, gather.cu and
 * gather_back.cu, and held.cu, which adds up, share.
 *
 * Here a panel is 64 bytes of each row of a sequence, which four threads, a group, have 16 each of.
 * A warp's eight groups make a unit together: eight rows of the result, or one that is the sum of
 * many. Their entries lie in lines of the sequence's stream, two of each group in a line, so that the
 * warp reads them side by side; each is the place of a row in the panel, in bytes, and a weight.
 * Groups that have fewer than the unit's have entries that add nothing: they name a row of zeros
 * behind the panel. */
#ifndef WEFT_CUDA_ROUTING_HELD_CUH
#define WEFT_CUDA_ROUTING_HELD_CUH

#include "cuda/routing/panel.cuh"

enum {
    HELD_LANES = 4,
    HELD_PITCH = 16 * HELD_LANES,
    UNIT = 32 / HELD_LANES, /* groups of a warp */
    UNIT_LINES = 2,         /* lines of a unit are a multiple of these: entries read together */
    UNIT_STEP = 2 * UNIT_LINES,
    NOWHERE = 0xffff
};

/* Eight rows of the result, or one row: the sum of all groups' sums. */
typedef struct __align__(16) {
    uint16_t target[UNIT]; /* the groups' rows of the result; NOWHERE: none */
    int line, lines;       /* of the stream */
    int whole;             /* one row */
    int units;             /* of the sequence; in its first unit */
}
sum_unit;

typedef struct {
    sum_unit *unit; /* [B, most] */
    uint4 *stream;  /* [B, lines, UNIT]: two entries */
    int64_t most, lines;
} held_lists;

static inline int64_t place_held(held_lists *l, int64_t batch, char *workspace) {
    int64_t units = align_bytes(batch * l->most * (int64_t)sizeof(sum_unit));
    l->unit = (sum_unit *)workspace;
    l->stream = workspace ? (uint4 *)(workspace + units) : NULL;
    return units + align_bytes(batch * l->lines * UNIT * (int64_t)sizeof(uint4));
}

__device__ static inline uint2 held_entry(int64_t row, float weight) {
    return make_uint2((unsigned)row * HELD_PITCH, __float_as_uint(weight));
}

/* Puts a group's entries that are read together in order: two groups that read in the same instant
 * get in each other's way where both rows are even or both odd, so one begins with the even ones, the
 * other with the odd. */
__device__ static inline void order_step(uint2 (&entry)[UNIT_STEP], int group) {
#pragma unroll
    for (int end = UNIT_STEP - 1; end > 0; end--)
#pragma unroll
        for (int i = 0; i < end; i++) {
            uint2 a = entry[i], b = entry[i + 1];
            bool swap = (a.x / HELD_PITCH + group) % 2 > (b.x / HELD_PITCH + group) % 2;
            entry[i] = swap ? b : a;
            entry[i + 1] = swap ? a : b;
        }
}

/* Whether a multiprocessor holds a panel of the node. */
bool weft_cuda_held_fits(const weft_node *n, const held_lists *l);

/* Makes the sums. */
void weft_cuda_sum_held(weft_exec *x, const weft_node *n, const held_lists *l);

#endif

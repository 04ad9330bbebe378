/* What both directions of the norms start from: see norm.cu. */
#pragma once

#include "cuda/pack.cuh"

#include <initializer_list>

enum {
    LANE_PACKS = 4,           /* of a row that a lane holds */
    THREADS = 256,            /* of a block, at most */
    NARROW = VECTOR * THREADS /* columns that stay in registers */
};

struct norm_args {
    int64_t rows, width;
    weft_norm_group group; /* which of the tensors' rows these are */
    bool centered;         /* LayerNorm */
    float eps, share;      /* share: 1 / width */
    any_tensor x, r, w, b, y, s;
    float *mean, *rstd;
    /* back */
    any_tensor dy, ds, dx;
    int64_t range;  /* rows of a block */
    float *partial; /* [blocks, NORM_SUMS, width]: sums of dy·h, of dy, of dx; NULL: not wanted */
};

/* Where row `row` of the group stands. */
__device__ static inline int64_t place_of(const norm_args &a, int64_t row) {
    if (a.group.count == a.group.period) return row;
    int64_t p = quotient(row, a.group.count);
    return p * a.group.period + a.group.first + (row - p * a.group.count);
}

/* Σ of each of K numbers over the block, in the same order always. `shared` has K·8 floats, and
 * may not be used again before the next barrier. */
template <int K> __device__ static inline void sum_over_block(float (&v)[K], float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int k = 0; k < K; k++)
        v[k] = warp_sum(v[k]);
    if (warps == 1) return;
    if (lane == 0)
#pragma unroll
        for (int k = 0; k < K; k++)
            shared[warp * K + k] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++)
        v[k] = 0;
    for (int w = 0; w < warps; w++)
#pragma unroll
        for (int k = 0; k < K; k++)
            v[k] += shared[w * K + k];
}

/* A row of bf16 as it lies in memory: pack k of a lane is the row's pack 32·k + lane. Those behind
 * the row's end are never touched: they stay what they were. */
template <int PACKS> struct lane_row { uint4 pack[PACKS]; };

/* Where a lane's first pack is, in elements; the next are LANE_STEP behind each other. */
enum { LANE_STEP = 32 * VECTOR };

__device__ static inline int64_t lane_start(const norm_args &a, int64_t place) {
    return place * a.width + (int)threadIdx.x % 32 * VECTOR;
}

__device__ static inline bool lane_has(const norm_args &a, int k) {
    return k * LANE_STEP + (int)threadIdx.x % 32 * VECTOR < (int)a.width;
}

template <int PACKS>
__device__ static inline void fetch_row(const norm_args &a, any_tensor t, int64_t start,
                                        lane_row<PACKS> &to) {
    const bf16 *from = (const bf16 *)t.data + start;
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if (lane_has(a, k)) to.pack[k] = *(const uint4 *)(from + k * LANE_STEP);
}

__device__ static inline void store_row(const norm_args &a, any_tensor t, int64_t start, int k,
                                        const float (&v)[VECTOR]) {
    if (lane_has(a, k)) store_vector((bf16 *)(void *)t.data + start + k * LANE_STEP, v);
}

/* A lane's columns of w or b; zeros where there is none. */
template <int PACKS>
__device__ static inline void load_columns(const norm_args &a, any_tensor t,
                                           float (&v)[PACKS][VECTOR]) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t column = lane_start(a, 0) + k * LANE_STEP;
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[k][j] = 0;
        if (!t.data || !lane_has(a, k)) continue;
        if (t.is_bf16)
            load_vector((const bf16 *)t.data + column, v[k]);
        else
            load_vector((const float *)t.data + column, v[k]);
    }
}

/* Packs a lane holds of a row, where all these tensors are bf16; 0: not a warp's. */
static inline int lane_packs(int64_t width, std::initializer_list<const weft_tensor *> tensors) {
    if (width % VECTOR != 0 || width > LANE_PACKS * 32 * VECTOR) return 0;
    for (const weft_tensor *t : tensors)
        if (t && t->dtype != WEFT_BF16) return 0;
    return (int)ceil_div(width, 32 * VECTOR);
}

/* Rows that no gain is for go from one tensor to the other as they are: a thread a pack. */
struct norm_rest {
    int64_t periods, period, normed; /* the last two in elements */
    any_tensor from, to;
};

static __global__ void copy_rest(norm_rest k) {
    auto [p, column, n] = place_pack(k.period - k.normed);
    if (p >= k.periods) return;
    float v[VECTOR];
    load_pack(k.from, p * k.period + k.normed + column, n, v);
    store_pack(k.to, p * k.period + k.normed + column, n, v);
}

static void launch_rest(weft_exec *x, const weft_node *n, const weft_tensor *rows,
                        const weft_tensor *from, const weft_tensor *to) {
    weft_norm_group last = weft_norm_group_of(ATTR(n, weft_norm_attr), rows, 1);
    int64_t width = weft_tensor_width(rows), normed = last.first + last.count;
    norm_rest k = {weft_tensor_rows(rows) / last.period, last.period * width, normed * width,
                   any_of(x, from), any_of(x, to)};
    if (normed == last.period || !k.to.data || k.from.data == k.to.data) return;
    int64_t packs = count_packs(k.periods, k.period - k.normed);
    copy_rest<<<pack_grid(packs), PACK_THREADS, 0, stream_of(x)>>>(k);
}

/* Threads for rows of that width: whole warps, a pack each. */
static int row_threads(int64_t width) {
    return (int)min_i64(THREADS, ceil_div(ceil_div(width, VECTOR), 32) * 32);
}

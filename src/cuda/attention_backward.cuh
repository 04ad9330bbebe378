/* What the parts of attention's backward pass on the tensor cores share: attention_backward.cu says
 * how they go together. */
#ifndef WEFT_CUDA_ATTENTION_BACKWARD_CUH
#define WEFT_CUDA_ATTENTION_BACKWARD_CUH

#include "cuda/attention_tiles.cuh"

enum { NUMBERS = 2 };

/* lse of a query that is not there: its weights are 0. Also the exponent of a hidden pair; finite,
 * so that times 0 it is 0. */
constexpr float NOTHING = 1e30f;

/* What a score has beside ⟨q, k⟩ times a constant: nothing; a number a key, where a block by keys
 * has one query head; anything. Only with the last dS has the scale in it. */
enum key_extent { BARE, KEYED, GENERAL };

struct tiles_workspace {
    float *lse, *total;  /* [B, H, padded] to the base 2; D */
    float *shift;        /* [B, H, padded] ⟨q_i, k_0⟩, where dscale is wanted */
    double *numbers;     /* [B, H, key tiles, warps, NUMBERS]: of dscale or dlog_tau; of dbeta */
    float *dk, *dv, *dn; /* [parts, B, S, KV, dqk], [.., dv], [parts, B, KV, S], where several */
    uint4 *kept;         /* dS of `sequences` sequences from `first` on, see kept_tile; or NULL */
    int padded, parts;
    int first, sequences; /* that a launch is about */
    key_extent extent;
};

/* dS is kept in tiles of 64 queries i and 64 keys j ≤ i, a query tile's one after another. A tile is
 * as a warpgroup by keys has it in registers: 16 bytes a thread for every 16 queries, the warps of
 * one 16 queries side by side. */
enum { KEPT_TILE = 64 * 64 * 2 / (int)sizeof(uint4) };

__host__ __device__ static inline int64_t kept_tiles_of_head(const attention_problem &p) {
    int64_t tiles = ceil_div(p.queries, 64);
    return tiles * (tiles + 1) / 2;
}

__device__ static inline uint4 *kept_tile(const attention_problem &p, const tiles_workspace &w,
                                          int b, int h, int i, int j) {
    int64_t head = (int64_t)(b - w.first) * p.heads + h;
    return w.kept + (head * kept_tiles_of_head(p) + i * (i + 1) / 2 + j) * KEPT_TILE;
}

__device__ static inline double sum_warp(double v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* Keys of a block of the kernel by keys, and its warps. */
struct key_tile {
    int keys, warps;
};

key_tile attention_key_tile(const attention_problem &p);
void attention_by_keys(const attention_problem &p, const attention_gradients &g,
                       const tiles_workspace &w, cudaStream_t stream);
void attention_by_queries(const attention_problem &p, const attention_gradients &g,
                          const tiles_workspace &w, cudaStream_t stream);
/* The same from the dS that attention_by_keys has kept. */
void attention_from_kept(const attention_problem &p, const attention_gradients &g,
                         const tiles_workspace &w, cudaStream_t stream);

#endif

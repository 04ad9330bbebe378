/* What the parts of attention's backward pass on the tensor cores share: attention_backward.cu says
 * how they go together. */
#ifndef WEFT_CUDA_ATTENTION_BACKWARD_CUH
#define WEFT_CUDA_ATTENTION_BACKWARD_CUH

#include "cuda/attention_tiles.cuh"

enum { NUMBERS = 2 };

/* lse of a query that is not there: its weights are 0. Also the exponent of a hidden pair; finite,
 * so that times 0 it is 0. */
constexpr float NOTHING = 1e30f;

struct tiles_workspace {
    float *lse, *total;  /* [B, H, padded] to the base 2; D */
    float *shift;        /* [B, H, padded] ⟨q_i, k_0⟩, where dscale is wanted */
    double *numbers;     /* [B, H, key tiles, warps, NUMBERS]: of dscale or dlog_tau; of dbeta */
    float *dk, *dv, *dn; /* [parts, B, S, KV, dqk], [.., dv], [parts, B, KV, S], where several */
    int padded, parts;
};

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

#endif

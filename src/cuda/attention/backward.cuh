/* What the parts of attention's backward pass on the tensor cores share: backward.cu says
 * how they go together. */
#ifndef WEFT_CUDA_ATTENTION_BACKWARD_CUH
#define WEFT_CUDA_ATTENTION_BACKWARD_CUH

#include "cuda/attention/tiles.cuh"

enum { NUMBERS = 2 };

/* lse of a query that is not there: its weights are 0. Also the exponent of a hidden pair; finite,
 * so that times 0 it is 0. */
constexpr float NOTHING = 1e30f;

struct flash_workspace {
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

/* A warpgroup's gradients c · factor of rows of y, to those of the Gaussians that y was made of: c is
 * what it becomes. The rows of y are those from row0 on of a tile in shared memory. SQUARES: `twice`
 * has two times the gradients of their squares, of the thread's two rows. */
template <int ROWS, int D, bool SQUARES>
__device__ static inline void finish_gaussians(float (&c)[D / 8][4], float factor, uint32_t tile,
                                               int row0, const float (&twice)[2]) {
    int lane = threadIdx.x % 32, row = row0 + (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        constexpr int half = D / 32;
        uint32_t words[4] = {};
        if (SQUARES || k >= half)
            load_matrices(words, tile + tile_place<ROWS, D>(row, 2 * k + lane / 16));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            uint32_t word = words[e / 2];
            float y = __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
            float d = c[2 * k + e / 4][e % 4] * factor;
            if (SQUARES) d = fmaf(twice[e / 2 % 2], y, d);
            if (k >= half) d *= slope_at(y);
            c[2 * k + e / 4][e % 4] = d;
        }
    }
}

/* Keys of a block of the kernel by keys, and its warps. */
struct key_tile {
    int keys, warps;
};

key_tile flash_key_tile(const attention_problem &p);

/* Shared memory of a block, of both kernels the larger. */
int flash_backward_memory(const attention_problem &p);
int flash_backward_dq_memory(const attention_problem &p);
int flash_backward_dkdv_memory(const attention_problem &p);

void flash_backward_dkdv(const attention_problem &p, const attention_gradients &g,
                         const flash_workspace &w, cudaStream_t stream);
void flash_backward_dq(const attention_problem &p, const attention_gradients &g,
                       const flash_workspace &w, cudaStream_t stream);

#endif

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
    float *rel;          /* [B, H, distances]: Σ ds, where the position is relative */
    int padded, parts;
};

__device__ static inline double sum_warp(double v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* A warpgroup's gradients c · factor of rows of y, to those of the Gaussians that y was made of: c is
 * what it becomes. The rows of y are `width` wide, the second half σ, and those from row0 on of a tile
 * in shared memory; c has N of its D columns from column0 on. SQUARES: `twice` has two times the gradients
 * of their squares, of the thread's two rows. */
template <int ROWS, int D, int N, bool SQUARES>
__device__ static inline void finish_gaussians(float (&c)[N / 8][4], float factor, uint32_t tile,
                                               int row0, int column0, int width,
                                               const float (&twice)[2]) {
    int lane = threadIdx.x % 32, row = row0 + (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
    int sigma =
        width / 2 - column0 - lane % 4 * 2; /* the first of the thread's columns that is σ */
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t words[4];
        load_matrices(words, tile + tile_place<ROWS, D>(row, column0 / 8 + 2 * k + lane / 16));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            uint32_t word = words[e / 2];
            float y = __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
            float d = c[2 * k + e / 4][e % 4] * factor;
            if (SQUARES) d = fmaf(twice[e / 2 % 2], y, d);
            if (16 * k + e / 4 * 8 >= sigma) d *= slope_at(y);
            c[2 * k + e / 4][e % 4] = d;
        }
    }
}

void flash_backward_dkdv(const attention_problem &p, const attention_gradients &g,
                         const flash_workspace &w, cudaStream_t stream);
void flash_backward_dq(const attention_problem &p, const attention_gradients &g,
                       const flash_workspace &w, cudaStream_t stream);

/* After flash_backward_dq, which leaves D and lse; flash_distances: of a head in w.rel. */
void flash_backward_distances(const attention_problem &p, const attention_gradients &g,
                              const flash_workspace &w, cudaStream_t stream);
int flash_distances(const attention_problem &p);

#endif

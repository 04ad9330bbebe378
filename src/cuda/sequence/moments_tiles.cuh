/* The Gram matrix of many rows and their sums over time in one pass, on Hopper's tensor cores. */
#ifndef WEFT_CUDA_SEQUENCE_MOMENTS_TILES_CUH
#define WEFT_CUDA_SEQUENCE_MOMENTS_TILES_CUH

#include "cuda/kernel.cuh"

/* x [batch, time, width] in bf16; gram [width, width] = xᵀ x, sum [batch, width], both bf16. */
typedef struct {
    int64_t batch, time, width;
    const bf16 *x;
    bf16 *gram, *sum;
} moments_problem;

/* Whether the sizes suit it, and the device has the kernel. */
bool moments_fit(const moments_problem *p);

int64_t moments_tiles_workspace(const moments_problem *p);

weft_status moments_launch(cudaStream_t stream, const moments_problem *p, void *workspace);

#endif

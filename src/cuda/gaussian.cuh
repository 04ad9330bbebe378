/* What the Gaussians' kernels share with attention's, which finish the gradients of Gaussian queries
 * and keys. */
#ifndef WEFT_CUDA_GAUSSIAN_CUH
#define WEFT_CUDA_GAUSSIAN_CUH

#include "cuda/kernel.cuh"

/* One instruction; 0 for what is below the smallest normal number. */
__device__ static inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 − e^−sigma: softplus' slope. Below 1/32, where that cancels, its series; within 2e-6. */
__device__ static inline float slope_at(float sigma) {
    float series = sigma * fmaf(sigma, fmaf(sigma, 1.0f / 6, -0.5f), 1.0f);
    return sigma < 0.03125f ? series : 1.0f - power_of_two(sigma * -1.44269504f);
}

/* The gradient of y [B, T, H, 2D] in `dx` to that of the Gaussians that y was made of, in place; dn
 * [B, H, T]: of their squares; NULL: none. */
void gaussian_finish_gradient(weft_exec *x, const weft_tensor *y, const weft_tensor *dx, float *dn);

#endif

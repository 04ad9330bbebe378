/* What the Gaussians' kernels share with attention's, which finish the gradients of Gaussian queries
 * and keys. */
#ifndef WEFT_CUDA_ELEMENTS_GAUSSIAN_CUH
#define WEFT_CUDA_ELEMENTS_GAUSSIAN_CUH

#include "cuda/kernel.cuh"

/* The gradient of y [B, T, H, 2D] in `dx` to that of the Gaussians that y was made of, in place; dn
 * [B, H, T]: of their squares; NULL: none. */
void gaussian_finish_gradient(weft_exec *x, const weft_tensor *y, const weft_tensor *dx, float *dn);

#endif

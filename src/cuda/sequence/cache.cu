/* Caches on the GPU: not yet. Generation runs on the CPU. */
#include "cuda/kernel.cuh"

CUDA_KERNEL(cache_write, NULL)
CUDA_KERNEL(cache_attention, NULL)
CUDA_KERNEL(cache_gather, NULL)
CUDA_KERNEL(cache_mean, NULL)

/* Programmatic dependent launch: a kernel that waits for the one before it by itself. Its blocks are on
 * the GPU already when that ends, which saves most of a launch's time. The one before lets it by
 * trigger_dependents, after which it may start whenever there is room; wait_for_primary comes ahead of
 * the first read or write of memory that the one before has anything to do with. Code for architectures
 * before 9.0 has neither, and is launched as usual. */
#ifndef WEFT_CUDA_DEPENDENT_LAUNCH_CUH
#define WEFT_CUDA_DEPENDENT_LAUNCH_CUH

#include "cuda/kernel.cuh"

#include <type_traits>

__device__ static inline void trigger_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ static inline void wait_for_primary() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The launch's error, if any, is cudaGetLastError's too. */
template <class... P>
static cudaError_t launch_dependent(cudaStream_t stream, int64_t blocks, int threads,
                                    void (*kernel)(P...), std::common_type_t<P>... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = weft_cuda_device()->code >= 90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#endif

/* What the programs here that call the runtime themselves share. */
#ifndef WEFT_BENCH_CHECK_CUDA_CUH
#define WEFT_BENCH_CHECK_CUDA_CUH

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

/* Ends the program where the call fails. */
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif

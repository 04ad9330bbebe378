/* What the programs here that call the runtime themselves share. */
#ifndef WEFT_BENCH_CHECK_CUDA_CUH
#define WEFT_BENCH_CHECK_CUDA_CUH

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

/* Ends the program where the call fails. */
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Median ms of a call, over so many repeats of `calls` each, after `warm` that do not count. */
template <typename F> static double measure(int warm, int repeats, int calls, F call) {
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    std::vector<float> times;
    for (int i = -warm; i < repeats; i++) {
        CUDA(cudaEventRecord(from));
        for (int k = 0; k < calls; k++)
            call();
        CUDA(cudaEventRecord(to));
        CUDA(cudaEventSynchronize(to));
        float ms;
        CUDA(cudaEventElapsedTime(&ms, from, to));
        if (i >= 0) times.push_back(ms / (float)calls);
    }
    CUDA(cudaGetLastError());
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
    std::sort(times.begin(), times.end());
    return (double)times[(size_t)repeats / 2];
}

#endif

/* How fast the GPU's memory is read: the rate that floors are made of. Nothing is computed but what
 * keeps the loads, nothing is written, and the time is the GPU's own. */
extern "C" {
#include "cuda/backend.h"
#include "cuda/device.h"
}

#include <cuda_runtime.h>

enum { READ_THREADS = 256, READ_AT_ONCE = 8, READ_TIMES = 6, READ_BLOCKS = 4 };
static const int64_t READ_MOST = (int64_t)4 << 30, READ_LEAST = (int64_t)256 << 20;

/* Words are such that their sum is never 1. */
static __global__ void __launch_bounds__(READ_THREADS, READ_BLOCKS)
    read_words(const uint4 *from, int64_t count, unsigned *to) {
    unsigned sum = 0;
    int64_t step = (int64_t)gridDim.x * READ_THREADS * READ_AT_ONCE;
    int64_t first = (int64_t)blockIdx.x * READ_THREADS * READ_AT_ONCE + threadIdx.x;
#pragma unroll 1
    for (int64_t i = first; i < count; i += step) {
        uint4 v[READ_AT_ONCE];
#pragma unroll
        for (int k = 0; k < READ_AT_ONCE; k++)
            v[k] = __ldcs(from + i + k * READ_THREADS);
#pragma unroll
        for (int k = 0; k < READ_AT_ONCE; k++)
            sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 1) *to = sum;
}

/* Seconds of one read: by blocks that stay, or by one block for each part. */
static double time_read(const uint4 *from, int64_t bytes, bool stays, cudaEvent_t *mark) {
    int64_t count = bytes / (int64_t)sizeof *from, parts = count / (READ_THREADS * READ_AT_ONCE);
    int64_t blocks = stays ? (int64_t)weft_cuda_device()->multiprocessors * READ_BLOCKS : parts;
    float taken = 0;
    cudaEventRecord(mark[0]);
    read_words<<<(unsigned)blocks, READ_THREADS>>>(from, count, (unsigned *)from);
    cudaEventRecord(mark[1]);
    if (cudaEventSynchronize(mark[1]) != cudaSuccess) return 0;
    cudaEventElapsedTime(&taken, mark[0], mark[1]);
    return 1e-3 * (double)taken;
}

extern "C" double weft_cuda_read_rate(void) {
    cudaEvent_t mark[2];
    void *memory = NULL;
    int64_t bytes = READ_MOST;
    double best = 0;
    if (weft_cuda_device_number() < 0 || cudaSetDevice(weft_cuda_device_number()) != cudaSuccess)
        return 0;
    while (cudaMalloc(&memory, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        if ((bytes /= 2) < READ_LEAST) return 0;
    }
    cudaMemset(memory, 0x5a, (size_t)bytes);
    cudaEventCreate(&mark[0]);
    cudaEventCreate(&mark[1]);
    for (int i = 0; i < READ_TIMES; i++) {
        double seconds = time_read((const uint4 *)memory, bytes, i % 2 == 0, mark);
        if (seconds > 0 && (double)bytes / seconds > best) best = (double)bytes / seconds;
    }
    cudaEventDestroy(mark[0]);
    cudaEventDestroy(mark[1]);
    cudaFree(memory);
    return best;
}

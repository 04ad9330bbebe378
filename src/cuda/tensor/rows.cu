/* core/rows.h on the GPU: sums of f32 rows, four numbers per thread. Bytes moved: 12 for each number that
 * is added, 8 that is scaled. A queue is a stream whose blocks go before those of the runs beside it:
 * they are few, and other ranks wait for them. */
#include "cuda/kernel.cuh"

extern "C" {
#include "core/rows.h"
}

enum { THREADS = 256 };

template <class T> static __global__ void take_row(float *to, const T *from, bool add, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
#pragma unroll
    for (int k = 0; k < QUAD; k++)
        if (i + k < n)
            to[i + k] = add ? __fadd_rn(to[i + k], (float)from[i + k]) : (float)from[i + k];
}

static __global__ void scale_row(float *data, float factor, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
#pragma unroll
    for (int k = 0; k < QUAD; k++)
        if (i + k < n) data[i + k] = __fmul_rn(data[i + k], factor);
}

static unsigned blocks_of(int64_t n) {
    return (unsigned)ceil_div(n, THREADS * QUAD);
}

static weft_status rows_open(void **queue) {
    cudaStream_t stream;
    int least, most;
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(cudaDeviceGetStreamPriorityRange(&least, &most), "no stream"));
    WEFT_TRY(check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most),
                        "no stream"));
    *queue = stream;
    return WEFT_OK;
}

static void rows_close(void *queue) {
    cudaStreamDestroy((cudaStream_t)queue);
}

static void rows_add(void *queue, float *to, const float *from, int64_t n) {
    if (n > 0) take_row<<<blocks_of(n), THREADS, 0, (cudaStream_t)queue>>>(to, from, true, n);
}

static void rows_take(void *queue, float *to, const void *from, weft_dtype dtype, bool add,
                      int64_t n) {
    cudaStream_t stream = (cudaStream_t)queue;
    if (n <= 0 || (!from && add)) return;
    if (!from)
        cudaMemsetAsync(to, 0, (size_t)n * sizeof *to, stream);
    else if (dtype == WEFT_BF16)
        take_row<<<blocks_of(n), THREADS, 0, stream>>>(to, (const bf16 *)from, add, n);
    else
        take_row<<<blocks_of(n), THREADS, 0, stream>>>(to, (const float *)from, add, n);
}

static void rows_copy(void *queue, float *to, const float *from, int64_t n) {
    cudaMemcpyAsync(to, from, (size_t)n * sizeof *to, cudaMemcpyDeviceToDevice,
                    (cudaStream_t)queue);
}

static void rows_scale(void *queue, float *data, float factor, int64_t n) {
    if (n > 0) scale_row<<<blocks_of(n), THREADS, 0, (cudaStream_t)queue>>>(data, factor, n);
}

static void rows_fetch(void *queue, void *host, const void *from, int64_t bytes) {
    cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, (cudaStream_t)queue);
}

static void rows_put(void *queue, void *to, const void *host, int64_t bytes) {
    cudaMemcpyAsync(to, host, (size_t)bytes, cudaMemcpyHostToDevice, (cudaStream_t)queue);
}

static weft_status rows_wait(void *queue) {
    WEFT_TRY(check_cuda(cudaGetLastError(), "the sum of gradients did not start"));
    return check_cuda(cudaStreamSynchronize((cudaStream_t)queue), "the sum of gradients failed");
}

static void rows_name(char *text, size_t room) {
    if (cudaDeviceGetPCIBusId(text, (int)room, weft_cuda_device_number()) != cudaSuccess)
        snprintf(text, room, "GPU %d", weft_cuda_device_number());
}

static void *rows_pin(int64_t bytes) {
    void *memory = NULL;
    cudaSetDevice(weft_cuda_device_number());
    if (cudaMallocHost(&memory, (size_t)bytes) == cudaSuccess) return memory;
    cudaGetLastError();
    return NULL;
}

static void rows_unpin(void *memory) {
    cudaFreeHost(memory);
}

extern "C" const weft_row_backend weft_cuda_rows = {
    rows_open,  rows_close, rows_add,  rows_take, rows_copy, rows_scale,
    rows_fetch, rows_put,   rows_wait, rows_name, rows_pin,  rows_unpin,
};

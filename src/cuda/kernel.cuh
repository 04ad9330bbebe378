/* What every CUDA kernel file starts from.
 *
 * A file in src/cuda holds the kernels of one family, under the name of the file in src/cpu that
 * does the same. Its host function launches on the executor's stream and returns: it neither waits
 * nor allocates nor copies from host memory, because the whole list of nodes is captured once as a
 * CUDA graph and replayed. So whatever changes from run to run is read from device memory: tensors,
 * and the run's numbers (seed, iteration, sequence) through device_run(x).
 *
 *     template <typename T>
 *     __global__ void double_values(int64_t n, const T *x, T *y) {
 *         for (int64_t i = thread_index(); i < n; i += thread_count())
 *             y[i] = from_float<T>(2 * to_float(x[i]));
 *     }
 *
 *     CUDA_RUN(double) {
 *         int64_t count = weft_tensor_count(n->out[0]);
 *         with_type(n->out[0], [&](auto tag) {
 *             using T = decltype(tag);
 *             double_values<<<grid_for(count, 256), 256, 0, stream_of(x)>>>(
 *                 count, data_of<T>(x, n->in[0]), data_of<T>(x, n->out[0]));
 *         });
 *         return launched(n);
 *     }
 *
 * Values are stored as f32 or bf16 and computed in float. Sums run in an order that the shape
 * alone fixes: no atomics on floating-point numbers. A node with a f64 tensor never gets here.
 * The operations' own headers, which are C, come with this one. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "base/random.h"
#include "core/exec.h"
#include "cuda/choice.h"
#include "cuda/device.h"
#include "ops/all.h"
#include "ops/list.h"
}

/* What an executor on the GPU has beside its arena: a stream, the captured run, the parts of a watched
 * one, and the run's numbers in device memory, where a replayed graph reads them. */

/* In device memory. weft_run, and the first bad value that a kernel met. */
typedef struct {
    uint64_t seed;
    uint32_t iteration, sequence;
    unsigned long long fault; /* node << 40 | place; all bits set: none */
} weft_cuda_run;

/* Some nodes of a run, of which the host wants to know when they are done. */
typedef struct {
    cudaGraphExec_t graph; /* NULL: not captured yet */
    cudaEvent_t done;
} weft_cuda_part;

typedef struct {
    cudaStream_t stream;
    weft_cuda_run *run;    /* device */
    weft_cuda_run *staged; /* host, pinned: what is copied to the device and back */
    unsigned *counters;    /* device, DEVICE_COUNTERS of them; NULL: there are none */
    cudaGraphExec_t graph; /* NULL: not captured yet, or not wanted */
    cudaEvent_t *marks;    /* [nodes + 1]: a profile's; NULL: none is taken */
    int64_t n_marks;
    weft_cuda_part *parts; /* [n_parts]: of weft_exec_parts; NULL: no run was watched yet */
    int n_parts;
    int runs;     /* runs so far; capture comes after the first */
    bool capture; /* false: WEFT_CUDA_GRAPH=0, or a profile is taken */
    bool follows; /* kernels may be launched before those ahead of them have ended, and weights are
                     read ahead (dependent_launch.cuh) */
    bool alone;   /* a row's bits are those it has alone: of runs for a sampler (core/decoding.h) */
    int64_t launched; /* in such a run: nodes before this one need no kernel of their own */
    int64_t ahead;    /* and this one's comes when those before the one ahead of it have ended */
} weft_cuda_state;

/* Gives a run's kernels, or the graph of them, to another stream than the executor's own, and does not
 * wait. The run's numbers (state.run) are the caller's to set, on that stream. */
weft_status weft_cuda_follow(weft_exec *x, cudaStream_t stream);
/* Records the kernels of nodes first .. last − 1 as a graph, instead of running them. */
weft_status weft_cuda_capture(weft_exec *x, cudaStreamCaptureMode mode, int64_t first, int64_t last,
                              cudaGraphExec_t *out);
/* The error for what a kernel noted in weft_cuda_run.fault. */
weft_status weft_cuda_explain(weft_exec *x, unsigned long long fault);

typedef __nv_bfloat16 bf16;

#define ATTR(n, type) ((const type *)(n)->attr)

/* Makes weft_cuda_NAME, which table.c lists: run, workspace or NULL, explain or NULL (exec.h). */
#define CUDA_KERNEL(name, ...)                                                                     \
    extern "C" {                                                                                   \
    extern const weft_kernel weft_cuda_##name;                                                     \
    const weft_kernel weft_cuda_##name = {__VA_ARGS__};                                            \
    }

/* The same ahead of what runs it, a function of x and n; below, where that is one call. */
#define CUDA_RUN(name, ...)                                                                        \
    static weft_status name##_run(weft_exec *x, const weft_node *n);                               \
    CUDA_KERNEL(name, name##_run, __VA_ARGS__)                                                     \
    static weft_status name##_run(weft_exec *x, const weft_node *n)

/* With a workspace of so many bytes, an expression of n. */
#define CUDA_RUN_WITH(name, bytes, ...)                                                            \
    static int64_t name##_workspace(const weft_node *n, int) {                                     \
        return bytes;                                                                              \
    }                                                                                              \
    CUDA_RUN(name, name##_workspace, __VA_ARGS__)

#define CUDA_KERNEL_CALLS(name, call, ...)                                                         \
    CUDA_RUN(name, __VA_ARGS__) {                                                                  \
        return call;                                                                               \
    }

/* Counters in device memory, 0 whenever no kernel runs that uses them: one that counts sets them back. */
enum { DEVICE_COUNTERS = 1 << 16 };

static inline weft_cuda_state *state_of(const weft_exec *x) {
    return (weft_cuda_state *)weft_exec_state(x);
}

static inline cudaStream_t stream_of(const weft_exec *x) {
    return state_of(x)->stream;
}

/* Whether rows are to have the bits that they have alone. */
static inline bool are_alone(const weft_exec *x) {
    return state_of(x)->alone;
}

/* The run's numbers, in device memory; pass it to a kernel. */
static inline weft_cuda_run *device_run(const weft_exec *x) {
    return state_of(x)->run;
}

/* A tensor's memory on the device; NULL for an optional tensor that is not there. */
template <typename T> static inline T *data_of(const weft_exec *x, const weft_tensor *t) {
    return (T *)weft_data(x, t);
}

template <typename T> static inline T *workspace_of(const weft_exec *x, const weft_node *n) {
    return (T *)weft_workspace(x, n);
}

/* The error of a call, as ours. */
static inline weft_status check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return WEFT_OK;
    cudaGetLastError();
    return weft_fail(error == cudaErrorMemoryAllocation ? WEFT_ENOMEM : WEFT_EIO, "cuda: %s: %s",
                     what, cudaGetErrorString(error));
}

/* WEFT_OK, or the error of the launches just made. Ends every run function. */
static inline weft_status launched(const weft_node *n) {
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: %s of %s did not start: %s", n->op->name,
                     weft_tensor_describe(n->out[0] ? n->out[0] : n->in[0]),
                     cudaGetErrorString(error));
}

/* Calls f with a value of the tensor's element type, float or bf16; use decltype. */
template <typename F> static inline void with_type(weft_dtype dtype, F f) {
    if (dtype == WEFT_BF16)
        f(bf16());
    else
        f(float());
}

template <typename F> static inline void with_type(const weft_tensor *t, F f) {
    with_type(t->dtype, f);
}

/* Calls f with the first of the constants that is not below n, or the last: f(constant<3>()). */
template <int N> struct constant { static constexpr int value = N; };

template <int FIRST, int... REST, typename F> static inline void with_constant(int64_t n, F f) {
    if constexpr (sizeof...(REST) > 0)
        if (n > FIRST) return with_constant<REST...>(n, f);
    f(constant<FIRST>());
}

__host__ __device__ static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

__host__ __device__ static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

__host__ __device__ static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Bytes rounded up so that the next block of a workspace is aligned too. */
__host__ __device__ static inline int64_t align_bytes(int64_t bytes) {
    return ceil_div(bytes, WEFT_ARENA_ALIGN) * WEFT_ARENA_ALIGN;
}

/* Divides a workspace, one piece after another; without one (NULL) it only counts the bytes. */
struct workspace_pieces {
    char *base;
    int64_t bytes;

    template <typename T> void take(T **piece, int64_t count) {
        *piece = base ? (T *)(base + bytes) : NULL;
        bytes += align_bytes(count * (int64_t)sizeof(T));
    }
};

/* Of the GPU; a plan's are the run's (device.h). */
static inline int64_t multiprocessors() {
    return weft_cuda_device()->multiprocessors;
}

/* Blocks of `threads` for `count` items in a grid-stride loop: enough to fill the GPU, not more. */
static inline unsigned grid_for(int64_t count, int threads) {
    return (unsigned)max_i64(1, min_i64(ceil_div(count, threads), multiprocessors() * 16));
}

__device__ static inline int64_t thread_index() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static inline int64_t thread_count() {
    return (int64_t)gridDim.x * blockDim.x;
}

__device__ static inline float to_float(float x) {
    return x;
}

__device__ static inline float to_float(bf16 x) {
    return __bfloat162float(x);
}

template <typename T> __device__ static inline T from_float(float x);

template <> __device__ inline float from_float<float>(float x) {
    return x;
}

template <> __device__ inline bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

/* Elements by index, the type known at run time only: for the small tensors beside the large
 * ones (biases, gains), where a template would double the code for nothing. */
typedef struct {
    const void *data; /* NULL: not there */
    bool is_bf16;
} any_tensor;

static inline any_tensor any_of(const weft_exec *x, const weft_tensor *t) {
    return any_tensor{weft_data(x, t), t && t->dtype == WEFT_BF16};
}

__device__ static inline float load_any(any_tensor t, int64_t i) {
    return t.is_bf16 ? to_float(((const bf16 *)t.data)[i]) : ((const float *)t.data)[i];
}

__device__ static inline void store_any(any_tensor t, int64_t i, float value) {
    if (t.is_bf16)
        ((bf16 *)(void *)t.data)[i] = from_float<bf16>(value);
    else
        ((float *)(void *)t.data)[i] = value;
}

/* Eight elements at once; p must be aligned to 16 bytes, which every tensor's start is (64), and
 * every row's where the width is a multiple of eight. */
enum { VECTOR = 8 };

__device__ static inline void load_vector(const float *p, float (&v)[VECTOR]) {
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Eight of bf16 as they lie in memory, in float. */
__device__ static inline void widen_words(uint4 a, float (&v)[VECTOR]) {
    unsigned words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ static inline void load_vector(const bf16 *p, float (&v)[VECTOR]) {
    widen_words(*(const uint4 *)p, v);
}

/* Four at once. */
enum { QUAD = 4 };

__device__ static inline void widen_words(uint4 a, float (&v)[QUAD]) {
    v[0] = __uint_as_float(a.x), v[1] = __uint_as_float(a.y);
    v[2] = __uint_as_float(a.z), v[3] = __uint_as_float(a.w);
}

__device__ static inline void load_vector(const float *p, float (&v)[QUAD]) {
    widen_words(*(const uint4 *)p, v);
}

__device__ static inline void load_vector(const bf16 *p, float (&v)[QUAD]) {
    uint2 a = *(const uint2 *)p;
    v[0] = __uint_as_float(a.x << 16), v[1] = __uint_as_float(a.x & 0xffff0000u);
    v[2] = __uint_as_float(a.y << 16), v[3] = __uint_as_float(a.y & 0xffff0000u);
}

/* Four words to global memory in one store: of an assignment the compiler makes four where it does
 * not see the values side by side. The same of two. */
__device__ static inline void store_words(void *p, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

__device__ static inline void store_words(void *p, unsigned a, unsigned b) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(a), "r"(b) : "memory");
}

/* Two elements of bf16 as they lie in memory, the first in the low half. */
__device__ static inline unsigned join_halves(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(unsigned *)&pair;
}

__device__ static inline void store_vector(float *p, const float (&v)[QUAD]) {
    store_words(p, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3]));
}

__device__ static inline void store_vector(bf16 *p, const float (&v)[QUAD]) {
    store_words(p, join_halves(v[0], v[1]), join_halves(v[2], v[3]));
}

__device__ static inline void store_vector(float *p, const float (&v)[VECTOR]) {
    store_words(p, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3]));
    store_words(p + 4, __float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]),
                __float_as_uint(v[7]));
}

__device__ static inline void store_vector(bf16 *p, const float (&v)[VECTOR]) {
    store_words(p, join_halves(v[0], v[1]), join_halves(v[2], v[3]), join_halves(v[4], v[5]),
                join_halves(v[6], v[7]));
}

__device__ static inline void add_vector(float (&sum)[VECTOR], const float (&v)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum[i] += v[i];
}

__device__ static inline void scale_vector(float (&v)[VECTOR], float factor) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] *= factor;
}

/* sum + Σ v, one after the other. */
__device__ static inline float add_elements(float sum, const float (&v)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum += v[i];
    return sum;
}

/* Sums and maxima over a warp and over a block of whole warps: always the same tree. Every thread
 * gets the result. */
template <typename T> __device__ static inline T warp_sum(T v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ static inline float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

__device__ static inline float block_sum(float v) {
    __shared__ float shared[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? shared[lane] : 0.0f);
    __syncthreads();
    return v;
}

/* Notes a value that cannot be used (a token outside the vocabulary) at `place`, a number of the
 * kernel's own below 2^40. Of all that a run notes, that of the first node and lowest place is
 * reported when the run ends: its kernel's `explain` makes the message. The kernel itself goes on
 * with any value in range. */
__device__ static inline void note_fault(weft_cuda_run *run, int node, int64_t place) {
    atomicMin(&run->fault, (unsigned long long)node << 40 | (unsigned long long)place);
}

/* For `explain`: element i of an i32 tensor, read back from the device. */
static inline int32_t read_i32(const weft_exec *x, const weft_tensor *t, int64_t i) {
    int32_t value = 0;
    cudaMemcpy(&value, data_of<int32_t>(x, t) + i, sizeof value, cudaMemcpyDeviceToHost);
    return value;
}

/* Packs: eight consecutive elements of a tensor whose type is known at run time only.
 *
 * The kernels that move memory rather than compute take a thread per pack. A pack is fetched as it
 * lies in memory and widened to float when it is used, so that all of a thread's loads are on
 * their way before the first is waited for; the type is a branch that all threads take alike. One
 * compiled kernel so serves f32, bf16 and any mix of the two. Whole packs at a multiple of 16
 * bytes, which is every one where a row's width is a multiple of eight, are read and written 16
 * bytes at a time; others element by element. */
#pragma once

#include "cuda/dependent_launch.cuh"

enum { PACK_THREADS = 256 };

struct pack {
    uint4 low, high; /* bf16: `low` alone */
};

__device__ static inline bool is_whole_pack(any_tensor t, int64_t at, int n) {
    return n == VECTOR && ((t.is_bf16 ? 2 * at : 4 * at) & 15) == 0;
}

/* The n ≤ 8 elements from `at` on; zeros behind them. Nothing here may be a call: where threads part
 * ways, ptxas 13.0 lets a function that some of them call overwrite uniform registers that the
 * others still need. */
__device__ static inline pack fetch_pack(any_tensor t, int64_t at, int n) {
    unsigned words[VECTOR] = {0};
    if (is_whole_pack(t, at, n)) {
        const uint4 *from = (const uint4 *)((const char *)t.data + (t.is_bf16 ? 2 * at : 4 * at));
        uint4 low = from[0], high = make_uint4(0, 0, 0, 0);
        if (!t.is_bf16) high = from[1];
        return pack{low, high};
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i >= n) continue;
        if (t.is_bf16)
            words[i / 2] |= (unsigned)((const unsigned short *)t.data)[at + i] << (16 * (i % 2));
        else
            words[i] = ((const unsigned *)t.data)[at + i];
    }
    return pack{make_uint4(words[0], words[1], words[2], words[3]),
                make_uint4(words[4], words[5], words[6], words[7])};
}

__device__ static inline void widen_pack(const pack &p, bool is_bf16, float (&v)[VECTOR]) {
    unsigned words[VECTOR] = {p.low.x,  p.low.y,  p.low.z,  p.low.w,
                              p.high.x, p.high.y, p.high.z, p.high.w};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        unsigned half = i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16;
        v[i] = __uint_as_float(is_bf16 ? half : words[i]);
    }
}

__device__ static inline void load_pack(any_tensor t, int64_t at, int n, float (&v)[VECTOR]) {
    widen_pack(fetch_pack(t, at, n), t.is_bf16, v);
}

__device__ static inline void store_pack(any_tensor t, int64_t at, int n,
                                         const float (&v)[VECTOR]) {
    if (!is_whole_pack(t, at, n)) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < n) store_any(t, at + i, v[i]);
    } else if (t.is_bf16) {
        store_vector((bf16 *)(void *)t.data + at, v);
    } else {
        store_vector((float *)(void *)t.data + at, v);
    }
}

/* The same for kernels that are compiled twice: with WHOLE the tensor is bf16 and every pack of it
 * whole, and nothing is left to ask. are_whole() says whether they are, for the launch. */
template <bool WHOLE> __device__ static inline pack fetch_of(any_tensor t, int64_t at, int n) {
    if (!WHOLE) return fetch_pack(t, at, n);
    return pack{*(const uint4 *)((const bf16 *)t.data + at), make_uint4(0, 0, 0, 0)};
}

template <bool WHOLE>
__device__ static inline void widen_of(const pack &p, any_tensor t, float (&v)[VECTOR]) {
    widen_pack(p, WHOLE || t.is_bf16, v);
}

template <bool WHOLE>
__device__ static inline void store_of(any_tensor t, int64_t at, int n, const float (&v)[VECTOR]) {
    if (WHOLE)
        store_vector((bf16 *)(void *)t.data + at, v);
    else
        store_pack(t, at, n, v);
}

/* Rows of `width`; tensors that are not there do not count. */
static inline bool are_whole(int64_t width, any_tensor a, any_tensor b, any_tensor c = {}) {
    return width % VECTOR == 0 && (!a.data || a.is_bf16) && (!b.data || b.is_bf16) &&
           (!c.data || c.is_bf16);
}

/* Elements of a pack at column `column` of a row. */
__host__ __device__ static inline int pack_length(int64_t width, int64_t column) {
    return (int)max_i64(0, min_i64(VECTOR, width - column));
}

/* a / b for a ≥ 0, b > 0: 32-bit division, several times as fast, where both fit. */
__device__ static inline int64_t quotient(int64_t a, int64_t b) {
    if (((uint64_t)a | (uint64_t)b) >> 32 == 0) return (int64_t)((uint32_t)a / (uint32_t)b);
    return a / b;
}

/* The pack of a thread, where each has one of rows of `width`: n elements of the row from `column`
 * on. */
struct pack_place {
    int64_t row, column;
    int n;
};

__device__ static inline pack_place place_pack(int64_t width) {
    int64_t packs = ceil_div(width, VECTOR), row = quotient(thread_index(), packs);
    int64_t column = (thread_index() - row * packs) * VECTOR;
    return pack_place{row, column, pack_length(width, column)};
}

static inline int64_t count_packs(int64_t rows, int64_t width) {
    return rows * ceil_div(width, VECTOR);
}

/* [B, T, H, D] as B·T·H rows. */
struct head_shape {
    int64_t rows, time, heads, width;
};

static inline head_shape head_shape_of(const weft_tensor *x) {
    return head_shape{weft_tensor_rows(x), x->shape[1], x->shape[2], x->shape[3]};
}

/* Where the number of row (b, t, h) stands in [B, H, T]. */
__device__ static inline int64_t number_at(const head_shape &k, int64_t row) {
    int64_t p = quotient(row, k.heads), h = row - p * k.heads;
    int64_t b = quotient(p, k.time), t = p - b * k.time;
    return (b * k.heads + h) * k.time + t;
}

/* Blocks of PACK_THREADS for one thread an item. */
static inline unsigned pack_grid(int64_t items) {
    return (unsigned)ceil_div(items, PACK_THREADS);
}

/* A node that is one kernel of a thread an item, and the same for a kernel that begins by
 * follow_primary. */
template <class... P>
static inline weft_status run_items(const weft_exec *x, const weft_node *n, int64_t items,
                                    void (*kernel)(P...), std::common_type_t<P>... arguments) {
    kernel<<<pack_grid(items), PACK_THREADS, 0, stream_of(x)>>>(arguments...);
    return launched(n);
}

template <class... P>
static inline weft_status run_following(const weft_exec *x, const weft_node *n, int64_t items,
                                        void (*kernel)(P...), std::common_type_t<P>... arguments) {
    launch_following(follows(x), stream_of(x), dim3(pack_grid(items)), PACK_THREADS, 0, kernel,
                     arguments...);
    return launched(n);
}

/* The tensor of a chunk by halving: those of tensor i are first[i] .. first[i+1] − 1. */
static __device__ inline int tensor_of_chunk(const int32_t *first, int tensors, int chunk) {
    int low = 0, high = tensors;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* f on every element of tensors of one count: f(in, out), in[IN] to out[OUT]. An output that is
 * not there is left out, and one may lie over an input of its size: a thread reads before it
 * writes. Floor: each input's and output's bytes once. */
template <int N> struct tensor_list { any_tensor t[N]; };

template <int IN, int OUT, class F, bool WHOLE = false>
static __global__ void map_elements(int64_t count, tensor_list<IN> in, tensor_list<OUT> out, F f) {
    int64_t at = thread_index() * VECTOR;
    int n = pack_length(count, at);
    follow_primary();
    if (n == 0) return;
    pack packs[IN];
    float x[IN][VECTOR], y[OUT][VECTOR];
#pragma unroll
    for (int k = 0; k < IN; k++)
        packs[k] = fetch_of<WHOLE>(in.t[k], at, n);
#pragma unroll
    for (int k = 0; k < IN; k++)
        widen_of<WHOLE>(packs[k], in.t[k], x[k]);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float from[IN], to[OUT];
#pragma unroll
        for (int k = 0; k < IN; k++)
            from[k] = x[k][i];
        f(from, to);
#pragma unroll
        for (int k = 0; k < OUT; k++)
            y[k][i] = to[k];
    }
#pragma unroll
    for (int k = 0; k < OUT; k++)
        if (out.t[k].data) store_of<WHOLE>(out.t[k], at, n, y[k]);
}

/* y = alpha · by · x, `by` a number on the device; NULL: 1. */
struct scale_by_element {
    float alpha;
    const float *by;
    __device__ void operator()(const float *x, float *y) const {
        y[0] = (by ? alpha * *by : alpha) * x[0];
    }
};

/* Over a node's inputs first, first + 1, ... and outputs 0, 1, ... */
template <int IN, int OUT, class F>
static inline weft_status run_elements(weft_exec *x, const weft_node *n, int first, F f) {
    tensor_list<IN> in;
    tensor_list<OUT> out;
    int64_t count = 0;
    bool whole = true;
    for (int k = 0; k < IN; k++) {
        in.t[k] = any_of(x, n->in[first + k]);
        whole = whole && in.t[k].is_bf16;
    }
    for (int k = 0; k < OUT; k++) {
        out.t[k] = any_of(x, n->out[k]);
        if (!n->out[k]) continue;
        count = weft_tensor_count(n->out[k]);
        whole = whole && out.t[k].is_bf16;
    }
    whole = whole && count % VECTOR == 0;
    return run_following(x, n, ceil_div(count, VECTOR),
                         whole ? map_elements<IN, OUT, F, true> : map_elements<IN, OUT, F, false>,
                         count, in, out, f);
}

/* An elementwise operation: CUDA_ELEMENTS(gelu, 1, 1, out[0] = gelu_value(in[0])). */
#define CUDA_ELEMENTS(name, IN, OUT, ...)                                                          \
    struct name##_element {                                                                        \
        __device__ void operator()(const float *in, float *out) const {                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    };                                                                                             \
    CUDA_KERNEL_CALLS(name, (run_elements<IN, OUT>(x, n, 0, name##_element())))

/* Rows too short for a warp: `lanes` of them, a power of two, take a row, a pack each at a time. */
static inline int lanes_of_row(int64_t width) {
    int lanes = 1;
    while (lanes < 32 && lanes * VECTOR < width)
        lanes *= 2;
    return lanes;
}

/* The row of a thread among rows of `lanes` threads each. */
__device__ static inline int64_t row_of_lane(int lanes) {
    return thread_index() >> (31 - __clz(lanes));
}

/* Σ over the lanes of a row; every one gets it. All threads of the warp must call it. */
__device__ static inline float lanes_sum(float v, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* Σ over a block of whole warps, in double: always the same tree. Every thread gets the result. */
__device__ static inline double block_sum_double(double v) {
    __shared__ double shared[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < warps; w++)
        v += shared[w];
    __syncthreads();
    return v;
}

/* The same of n numbers in memory, by a block of THREADS. */
template <int THREADS, typename T>
__device__ static inline double sum_by_block(const T *values, int64_t n) {
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += values[i];
    return block_sum_double(sum);
}

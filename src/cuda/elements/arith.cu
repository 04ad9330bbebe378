/* Plain arithmetic on the GPU. Pointwise operations are one thread per pack (pack.cuh). Sums have two
 * stages: a block for each chunk of the tensor, a chunk's length fixed, then one block over the
 * chunks' sums; within a thread in float, from there on in double. */
#include "cuda/pack.cuh"

/* Floor: the output's bytes. */
static __global__ void fill_packs(int64_t count, any_tensor y, float value) {
    int64_t at = thread_index() * VECTOR;
    int n = pack_length(count, at);
    float v[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = value;
    if (n > 0) store_pack(y, at, n, v);
}

CUDA_RUN(fill) {
    int64_t count = weft_tensor_count(n->out[0]);
    return run_items(x, n, ceil_div(count, VECTOR), fill_packs, count, any_of(x, n->out[0]),
                     (float)ATTR(n, weft_fill_attr)->value);
}

struct add_element {
    float alpha;
    __device__ void operator()(const float *x, float *y) const {
        y[0] = x[0] + alpha * x[1];
    }
};

/* b has `width` elements and a many times that. Floor: a's bytes and y's; b stays in the caches. */
static __global__ void add_to_rows(int64_t count, int64_t width, any_tensor a, any_tensor b,
                                   any_tensor y, float alpha) {
    int64_t at = thread_index() * VECTOR;
    int n = pack_length(count, at);
    if (n == 0) return;
    int64_t column = at - quotient(at, width) * width;
    float v[VECTOR], w[VECTOR];
    load_pack(a, at, n, v);
    if (column + n <= width) {
        load_pack(b, column, n, w);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            w[i] = i < n ? load_any(b, column) : 0.0f;
            column = column + 1 < width ? column + 1 : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] += alpha * w[i];
    store_pack(y, at, n, v);
}

CUDA_RUN(add) {
    float alpha = (float)ATTR(n, weft_alpha_attr)->alpha;
    int64_t count = weft_tensor_count(n->in[0]), width = weft_tensor_count(n->in[1]);
    if (count == width) return run_elements<2, 1>(x, n, 0, add_element{alpha});
    return run_items(x, n, ceil_div(count, VECTOR), add_to_rows, count, width, any_of(x, n->in[0]),
                     any_of(x, n->in[1]), any_of(x, n->out[0]), alpha);
}

struct scale_element {
    float alpha;
    __device__ void operator()(const float *x, float *y) const {
        y[0] = alpha * x[0];
    }
};

CUDA_KERNEL_CALLS(scale,
                  (run_elements<1, 1>(x, n, 0,
                                      scale_element{(float)ATTR(n, weft_alpha_attr)->alpha})))
CUDA_KERNEL_CALLS(cast, (run_elements<1, 1>(x, n, 0, scale_element{1})))

/* Elements of a chunk: eight packs a thread. */
enum { CHUNK = 8 * VECTOR * PACK_THREADS, JOIN_THREADS = 1024 };

/* partial[block] = Σ a·b over the block's chunk. Floor: the bytes of a, and of b where it differs. */
static __global__ void sum_chunk(int64_t count, any_tensor a, any_tensor b, double *partial) {
    bool squares = a.data == b.data;
    int64_t at = (int64_t)blockIdx.x * CHUNK + threadIdx.x * VECTOR;
    float sum = 0;
#pragma unroll 2
    for (int step = 0; step < CHUNK / (VECTOR * PACK_THREADS); step++) {
        int n = pack_length(count, at);
        if (n == 0) break;
        pack p = fetch_pack(a, at, n), q = squares ? p : fetch_pack(b, at, n);
        float v[VECTOR], w[VECTOR];
        widen_pack(p, a.is_bf16, v);
        widen_pack(q, b.is_bf16, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum += v[i] * w[i];
        at += VECTOR * PACK_THREADS;
    }
    double total = block_sum_double((double)sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

/* y = factor · Σ of the chunks' sums: one block. */
static __global__ void join_chunks(int64_t chunks, const double *partial, double factor, float *y) {
    double sum = sum_by_block<JOIN_THREADS>(partial, chunks);
    if (threadIdx.x == 0) *y = (float)(factor * sum);
}

static weft_status sum_products(weft_exec *x, const weft_node *n, const weft_tensor *b,
                                double factor) {
    int64_t count = weft_tensor_count(n->in[0]), chunks = ceil_div(count, CHUNK);
    double *partial = workspace_of<double>(x, n);
    sum_chunk<<<(unsigned)chunks, PACK_THREADS, 0, stream_of(x)>>>(count, any_of(x, n->in[0]),
                                                                   any_of(x, b), partial);
    join_chunks<<<1, JOIN_THREADS, 0, stream_of(x)>>>(chunks, partial, factor,
                                                      data_of<float>(x, n->out[0]));
    return launched(n);
}

static int64_t sum_workspace(const weft_node *n, int) {
    return ceil_div(weft_tensor_count(n->in[0]), CHUNK) * (int64_t)sizeof(double);
}

CUDA_KERNEL_CALLS(dot, sum_products(x, n, n->in[1], 1), sum_workspace)
CUDA_KERNEL_CALLS(sum_squares, sum_products(x, n, n->in[0], ATTR(n, weft_alpha_attr)->alpha),
                  sum_workspace)

/* The factor is a number on the device. */
struct dot_back_element {
    const float *dy;
    __device__ void operator()(const float *x, float *y) const {
        float factor = *dy;
        y[0] = factor * x[1];
        y[1] = factor * x[0];
    }
};

CUDA_KERNEL_CALLS(dot_back,
                  (run_elements<2, 2>(x, n, 1, dot_back_element{data_of<float>(x, n->in[0])})))

CUDA_RUN(sum_squares_back) {
    float twice = (float)(2 * ATTR(n, weft_alpha_attr)->alpha);
    return run_elements<1, 1>(x, n, 1, scale_by_element{twice, data_of<float>(x, n->in[0])});
}

/* `lanes` threads a row, a power of two: no division. Floor: the bytes of x. */
template <bool WHOLE>
static __global__ void sum_row_squares(head_shape k, int64_t start, any_tensor x, float *y,
                                       int lanes) {
    int64_t row = row_of_lane(lanes);
    int lane = (int)threadIdx.x & (lanes - 1);
    float sum = 0;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int n = pack_length(k.width, column);
        float v[VECTOR];
        widen_of<WHOLE>(fetch_of<WHOLE>(x, row * k.width + column, n), x, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum += column + i >= start ? v[i] * v[i] : 0.0f;
    }
    sum = lanes_sum(sum, lanes);
    if (lane == 0 && row < k.rows) y[number_at(k, row)] = sum;
}

CUDA_RUN(row_squares) {
    head_shape k = head_shape_of(n->in[0]);
    int lanes = lanes_of_row(k.width);
    any_tensor from = any_of(x, n->in[0]);
    bool whole = are_whole(k.width, from, from);
    return run_items(x, n, k.rows * lanes, whole ? sum_row_squares<true> : sum_row_squares<false>,
                     k, ATTR(n, weft_row_squares_attr)->start, from, data_of<float>(x, n->out[0]),
                     lanes);
}

/* A thread a pack of a row. Floor: the bytes of x and dx. */
template <bool WHOLE>
static __global__ void scale_row_squares(head_shape k, int64_t start, any_tensor x, const float *dn,
                                         any_tensor dx) {
    auto [row, column, n] = place_pack(k.width);
    if (row >= k.rows) return;
    int64_t at = row * k.width + column;
    float v[VECTOR], factor = 2 * dn[number_at(k, row)];
    widen_of<WHOLE>(fetch_of<WHOLE>(x, at, n), x, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = column + i >= start ? factor * v[i] : 0.0f;
    store_of<WHOLE>(dx, at, n, v);
}

CUDA_RUN(row_squares_back) {
    head_shape k = head_shape_of(n->in[1]);
    any_tensor from = any_of(x, n->in[1]), to = any_of(x, n->out[0]);
    bool whole = are_whole(k.width, from, to);
    return run_items(x, n, count_packs(k.rows, k.width),
                     whole ? scale_row_squares<true> : scale_row_squares<false>, k,
                     ATTR(n, weft_row_squares_attr)->start, from, data_of<float>(x, n->in[0]), to);
}

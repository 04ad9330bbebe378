/* Gaussians on the GPU: some lanes a head, each a pack of means and the pack of deviations that
 * belongs to it.
 *
 * For the distance y lies over x in a model, and the gradient over dy. The means of a query are then
 * neither read nor written, and a key's are read only, for its number. Floor in halves of x, 4 of
 * which are a copy: a query 2, a key 3; backward 3 and 6. Heads are taken eight tokens at a time, so
 * that their numbers, which lie by token, fill whole sectors.
 *
 * Floor of the overlap: the bytes of x and y; backward those of x, dy and dx. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/gaussian.h"
}

#define SIGMA_FLOOR 1e-4f

enum { TOKENS = 8 }; /* of a head, side by side */

struct gaussians {
    int64_t rows, time, heads, width; /* B·T·H heads of D means and D deviations */
    any_tensor x, y, dy, dx;
    float *numbers; /* [B, H, T]: one a head, or its gradient; NULL: none */
    bool means;     /* of the distance: they are looked at */
};

static gaussians gaussians_of(const weft_tensor *x) {
    gaussians k = {};
    k.rows = weft_tensor_rows(x);
    k.time = x->shape[1];
    k.heads = x->shape[2];
    k.width = x->shape[3] / 2;
    return k;
}

/* Where the head's number stands. */
__device__ static inline int64_t number_at(const gaussians &k, int64_t row) {
    int64_t p = quotient(row, k.heads), h = row - p * k.heads;
    int64_t b = quotient(p, k.time), t = p - b * k.time;
    return (b * k.heads + h) * k.time + t;
}

/* The row of head `item` in the order above; k.rows or more behind the last. */
__device__ static inline int64_t find_head(const gaussians &k, int64_t item) {
    int64_t tile = quotient(item, TOKENS * k.heads), rest = item - tile * TOKENS * k.heads;
    return (tile * TOKENS + rest % TOKENS) * k.heads + rest / TOKENS;
}

static int log2_of(int n) {
    int log = 0;
    while (1 << log < n)
        log++;
    return log;
}

static unsigned head_grid(const gaussians &k, int lanes) {
    return pack_grid(ceil_div(k.rows, TOKENS * k.heads) * TOKENS * k.heads * lanes);
}

/* log(1 + e^rho) = max(rho, 0) + log(1 + z), z = e^-|rho|, the logarithm as 2 artanh(z / (2 + z)):
 * the exponential and the division are the hardware's, and nothing cancels. */
__device__ static inline float softplus(float rho) {
    float z = __expf(-fabsf(rho)), s = __fdividef(z, 2.0f + z), s2 = s * s;
    float p = 0x1.f1aee0p-4f;
    p = fmaf(p, s2, 0x1.b6d6a4p-4f);
    p = fmaf(p, s2, 0x1.250972p-3f);
    p = fmaf(p, s2, 0x1.9996a8p-3f);
    p = fmaf(p, s2, 0x1.555558p-2f);
    s += s;
    return fmaxf(rho, 0.0f) + fmaf(s * s2, p, s);
}

/* 1 − e^−sigma: softplus' slope. Below ¼, where that cancels, its series. */
__device__ static inline float slope_at(float sigma) {
    float p = fmaf(sigma, -1.0f / 6, 1.0f);
    p = fmaf(sigma * p, -1.0f / 5, 1.0f);
    p = fmaf(sigma * p, -1.0f / 4, 1.0f);
    p = fmaf(sigma * p, -1.0f / 3, 1.0f);
    p = fmaf(sigma * p, -1.0f / 2, 1.0f);
    return sigma < 0.25f ? sigma * p : 1.0f - __expf(-sigma);
}

/* BF16: all tensors are, and the kernel holds nothing for f32. */
template <bool BF16>
static __global__ void __launch_bounds__(PACK_THREADS, BF16 ? 6 : 1)
    make_gaussians(gaussians k, int log_lanes) {
    if (BF16) k.x.is_bf16 = k.y.is_bf16 = true;
    int lanes = 1 << log_lanes, lane = (int)threadIdx.x & (lanes - 1);
    int64_t row = find_head(k, thread_index() >> log_lanes);
    bool in_place = k.y.data == k.x.data;
    float sum = 0;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int n = pack_length(k.width, column);
        int64_t at = 2 * row * k.width + column;
        pack p = {}, q = fetch_pack(k.x, at + k.width, n);
        if (k.means) p = fetch_pack(k.x, at, n);
        float mean[VECTOR], sigma[VECTOR];
        widen_pack(p, k.x.is_bf16, mean);
        widen_pack(q, k.x.is_bf16, sigma);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            sigma[j] = softplus(sigma[j]);
            if (k.y.is_bf16) sigma[j] = to_float(from_float<bf16>(sigma[j]));
            sum = fmaf(mean[j], mean[j], sum);
            sum = j < n ? fmaf(sigma[j], sigma[j], sum) : sum;
        }
        if (!in_place) store_pack(k.y, at, n, mean);
        store_pack(k.y, at + k.width, n, sigma);
    }
    if (!k.numbers) return;
    sum = lanes_sum(sum, lanes);
    if (lane == 0 && row < k.rows) k.numbers[number_at(k, row)] = sum;
}

static weft_status gaussian_run(weft_exec *x, const weft_node *n) {
    gaussians k = gaussians_of(n->in[0]);
    int lanes = lanes_of_row(k.width);
    k.x = any_of(x, n->in[0]);
    k.y = any_of(x, n->out[0]);
    k.numbers = n->n_out > 1 ? data_of<float>(x, n->out[1]) : NULL;
    k.means = k.numbers || k.y.data != k.x.data;
    with_flag(k.x.is_bf16, [&](auto all) {
        make_gaussians<decltype(all)::value>
            <<<head_grid(k, lanes), PACK_THREADS, 0, stream_of(x)>>>(k, log2_of(lanes));
    });
    return launched(n);
}

CUDA_KERNEL(gaussian, gaussian_run)

/* dx may lie over dy or y: a thread reads before it writes. */
template <bool BF16>
static __global__ void __launch_bounds__(PACK_THREADS, BF16 ? 6 : 1)
    make_gaussians_back(gaussians k, int log_lanes) {
    if (BF16) k.y.is_bf16 = k.dy.is_bf16 = k.dx.is_bf16 = true;
    int lanes = 1 << log_lanes, lane = (int)threadIdx.x & (lanes - 1);
    int64_t row = find_head(k, thread_index() >> log_lanes);
    float twice = row < k.rows && k.numbers ? 2 * k.numbers[number_at(k, row)] : 0.0f;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int n = pack_length(k.width, column);
        int64_t at = 2 * row * k.width + column;
        pack p = {}, q = fetch_pack(k.y, at + k.width, n), dp = {}, dq = {};
        if (k.means) p = fetch_pack(k.y, at, n);
        if (k.means && k.dy.data) dp = fetch_pack(k.dy, at, n);
        if (k.dy.data) dq = fetch_pack(k.dy, at + k.width, n);
        float y[VECTOR], dy[VECTOR];
        if (k.means) {
            widen_pack(p, k.y.is_bf16, y);
            widen_pack(dp, k.dy.is_bf16, dy);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                y[j] = fmaf(twice, y[j], dy[j]);
            store_pack(k.dx, at, n, y);
        }
        widen_pack(q, k.y.is_bf16, y);
        widen_pack(dq, k.dy.is_bf16, dy);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            y[j] = fmaf(twice, y[j], dy[j]) * slope_at(y[j]);
        store_pack(k.dx, at + k.width, n, y);
    }
}

static weft_status gaussian_back_run(weft_exec *x, const weft_node *n) {
    gaussians k = gaussians_of(n->in[0]);
    int lanes = lanes_of_row(k.width);
    k.y = any_of(x, n->in[0]);
    k.dy = any_of(x, n->in[1]);
    k.numbers = data_of<float>(x, n->in[2]);
    k.dx = any_of(x, n->out[0]);
    k.means = k.numbers || k.dx.data != k.dy.data;
    with_flag(k.y.is_bf16 && k.dx.is_bf16 && (k.dy.is_bf16 || !k.dy.data), [&](auto all) {
        make_gaussians_back<decltype(all)::value>
            <<<head_grid(k, lanes), PACK_THREADS, 0, stream_of(x)>>>(k, log2_of(lanes));
    });
    return launched(n);
}

CUDA_KERNEL(gaussian_back, gaussian_back_run)

__device__ static inline float deviation(float rho) {
    return fmaxf(rho, 0.0f) + log1pf(expf(-fabsf(rho))) + SIGMA_FLOOR;
}

static __global__ void scale_overlap(gaussians k, int lanes) {
    int64_t row = thread_index() / lanes;
    int lane = (int)(threadIdx.x % lanes);
    float sum = 0;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int n = pack_length(k.width, column);
        int64_t at = 2 * row * k.width + column;
        pack p = fetch_pack(k.x, at, n), q = fetch_pack(k.x, at + k.width, n);
        float mean[VECTOR], rho[VECTOR];
        widen_pack(p, k.x.is_bf16, mean);
        widen_pack(q, k.x.is_bf16, rho);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float sigma = deviation(rho[j]);
            mean[j] = mean[j] / sqrtf(sigma);
            sum += j < n ? logf(sigma) : 0.0f;
        }
        store_pack(k.y, row * k.width + column, n, mean);
    }
    sum = lanes_sum(sum, lanes);
    if (lane == 0 && row < k.rows) k.numbers[number_at(k, row)] = sum;
}

static weft_status overlap_run(weft_exec *x, const weft_node *n) {
    gaussians k = gaussians_of(n->in[0]);
    k.x = any_of(x, n->in[0]);
    int lanes = lanes_of_row(k.width);
    k.y = any_of(x, n->out[0]);
    k.numbers = data_of<float>(x, n->out[1]);
    scale_overlap<<<pack_grid(k.rows * lanes), PACK_THREADS, 0, stream_of(x)>>>(k, lanes);
    return launched(n);
}

CUDA_KERNEL(overlap, overlap_run)

/* A thread a pack of means and its deviations. dx may lie over x: both are read first. */
static __global__ void scale_overlap_back(gaussians k) {
    int64_t packs = ceil_div(k.width, VECTOR), row = quotient(thread_index(), packs);
    if (row >= k.rows) return;
    int64_t column = (thread_index() - row * packs) * VECTOR, at = 2 * row * k.width + column;
    int n = pack_length(k.width, column);
    pack p = fetch_pack(k.x, at, n), q = fetch_pack(k.x, at + k.width, n), r = {};
    if (k.dy.data) r = fetch_pack(k.dy, row * k.width + column, n);
    float mean[VECTOR], rho[VECTOR], dy[VECTOR];
    float d_log = k.numbers ? k.numbers[number_at(k, row)] : 0.0f;
    widen_pack(p, k.x.is_bf16, mean);
    widen_pack(q, k.x.is_bf16, rho);
    widen_pack(r, k.dy.is_bf16, dy);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float sigma = deviation(rho[j]), root = sqrtf(sigma);
        float slope = 1.0f / (1.0f + expf(-rho[j]));
        rho[j] = (d_log - 0.5f * dy[j] * (mean[j] / root)) / sigma * slope;
        mean[j] = dy[j] / root;
    }
    store_pack(k.dx, at, n, mean);
    store_pack(k.dx, at + k.width, n, rho);
}

static weft_status overlap_back_run(weft_exec *x, const weft_node *n) {
    gaussians k = gaussians_of(n->in[0]);
    k.x = any_of(x, n->in[0]);
    k.dy = any_of(x, n->in[1]);
    k.numbers = data_of<float>(x, n->in[2]);
    k.dx = any_of(x, n->out[0]);
    scale_overlap_back<<<pack_grid(k.rows * ceil_div(k.width, VECTOR)), PACK_THREADS, 0,
                         stream_of(x)>>>(k);
    return launched(n);
}

CUDA_KERNEL(overlap_back, overlap_back_run)

/* The overlap of Gaussians on the GPU: some lanes a head, each a pack of means and the pack of
 * deviations that belongs to it. Floor: the bytes of x and y; backward those of x, dy and dx. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/gaussian.h"
}

#define SIGMA_FLOOR 1e-4f

struct overlap {
    int64_t rows, time, heads, width; /* B·T·H heads of D means and D deviations */
    any_tensor x, y, dy, dx;
    float *log_sigma; /* [B, H, T]; back: its gradient, or NULL */
};

static overlap overlap_of(weft_exec *x, const weft_node *n) {
    const weft_tensor *from = n->in[0];
    overlap k = {};
    k.rows = weft_tensor_rows(from);
    k.time = from->shape[1];
    k.heads = from->shape[2];
    k.width = from->shape[3] / 2;
    k.x = any_of(x, from);
    return k;
}

__device__ static inline int64_t statistic_at(const overlap &k, int64_t row) {
    int64_t p = quotient(row, k.heads), h = row - p * k.heads;
    int64_t b = quotient(p, k.time), t = p - b * k.time;
    return (b * k.heads + h) * k.time + t;
}

__device__ static inline float deviation(float rho) {
    return fmaxf(rho, 0.0f) + log1pf(expf(-fabsf(rho))) + SIGMA_FLOOR;
}

static __global__ void scale_overlap(overlap k, int lanes) {
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
    if (lane == 0 && row < k.rows) k.log_sigma[statistic_at(k, row)] = sum;
}

static weft_status overlap_run(weft_exec *x, const weft_node *n) {
    overlap k = overlap_of(x, n);
    int lanes = lanes_of_row(k.width);
    k.y = any_of(x, n->out[0]);
    k.log_sigma = data_of<float>(x, n->out[1]);
    scale_overlap<<<pack_grid(k.rows * lanes), PACK_THREADS, 0, stream_of(x)>>>(k, lanes);
    return launched(n);
}

CUDA_KERNEL(overlap, overlap_run)

/* A thread a pack of means and its deviations. dx may lie over x: both are read first. */
static __global__ void scale_overlap_back(overlap k) {
    int64_t packs = ceil_div(k.width, VECTOR), row = quotient(thread_index(), packs);
    if (row >= k.rows) return;
    int64_t column = (thread_index() - row * packs) * VECTOR, at = 2 * row * k.width + column;
    int n = pack_length(k.width, column);
    pack p = fetch_pack(k.x, at, n), q = fetch_pack(k.x, at + k.width, n), r = {};
    if (k.dy.data) r = fetch_pack(k.dy, row * k.width + column, n);
    float mean[VECTOR], rho[VECTOR], dy[VECTOR];
    float d_log = k.log_sigma ? k.log_sigma[statistic_at(k, row)] : 0.0f;
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
    overlap k = overlap_of(x, n);
    k.dy = any_of(x, n->in[1]);
    k.log_sigma = data_of<float>(x, n->in[2]);
    k.dx = any_of(x, n->out[0]);
    scale_overlap_back<<<pack_grid(k.rows * ceil_div(k.width, VECTOR)), PACK_THREADS, 0,
                         stream_of(x)>>>(k);
    return launched(n);
}

CUDA_KERNEL(overlap_back, overlap_back_run)

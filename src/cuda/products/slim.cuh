/* Split-K products with a slim result: sums over many rows, a result of at most 16 × 128,
 * c = alpha · aᵀ b of bf16: the gradient of the weights of a gate of heads or experts. The library is slow
 * at it where rows do not start at multiples of 16 bytes, and few of its tiles' places would be used.
 *
 * A band of rows a block, a row at a time a warp: its lanes have two or four columns of the wide
 * factor and all of the narrow one's numbers. The bands' sums are added by a second kernel, in order.
 * Floor: a and b once, a microsecond or two; the launches are most of it.
 *
 * `finish(g, row, column, sum)` ends a sum. */
#pragma once

#include "cuda/dependent_launch.cuh"
#include "cuda/products/gemm.cuh"

enum {
    SLIM_NARROW = 16,
    SLIM_WIDE = 128,
    SLIM_ROWS = 1024, /* fewest */
    SLIM_WARPS = 16,
    SLIM_AHEAD = 8,     /* rows that a warp loads together */
    SLIM_ADD_WARPS = 32 /* that share out the bands */
};

/* The narrow factor [rows, m] and the wide one [rows, n]. */
typedef struct {
    const bf16 *narrow, *wide;
    int64_t narrow_ld, wide_ld, rows, band;
    int m, n;
    bool transposed; /* the narrow one is b: what is summed is cᵀ */
} slim_product;

__device__ static inline float low_half(unsigned word) {
    return __uint_as_float(word << 16);
}

__device__ static inline float high_half(unsigned word) {
    return __uint_as_float(word & 0xffff0000u);
}

/* The block's band: every SLIM_WARPS-th row a warp. M = m, a multiple of 4; PAIRS · 64 >= n. */
template <int M, int PAIRS>
static __global__ void __launch_bounds__(SLIM_WARPS * 32) slim_sum(slim_product p, float *sums) {
    __shared__ float2 parts[2][SLIM_WARPS][PAIRS * 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t end = min_i64((blockIdx.x + 1) * p.band, p.rows);
    float2 c[M][PAIRS] = {};
    for (int64_t row = blockIdx.x * p.band + warp; row < end; row += SLIM_AHEAD * SLIM_WARPS) {
        uint2 a[SLIM_AHEAD][M / 4];
        unsigned b[SLIM_AHEAD][PAIRS];
#pragma unroll
        for (int r = 0; r < SLIM_AHEAD; r++) {
            int64_t at = min_i64(row + r * SLIM_WARPS, end - 1);
#pragma unroll
            for (int i = 0; i < M / 4; i++)
                a[r][i] = *(const uint2 *)(p.narrow + at * p.narrow_ld + i * 4);
#pragma unroll
            for (int q = 0; q < PAIRS; q++) {
                int column = min(q * 64 + lane * 2, p.n - 2);
                b[r][q] = *(const unsigned *)(p.wide + at * p.wide_ld + column);
            }
        }
#pragma unroll
        for (int r = 0; r < SLIM_AHEAD; r++) {
            if (row + r * SLIM_WARPS >= end) break;
#pragma unroll
            for (int i = 0; i < M; i++) {
                unsigned word = i % 4 < 2 ? a[r][i / 4].x : a[r][i / 4].y;
                float left = i % 2 == 0 ? low_half(word) : high_half(word);
#pragma unroll
                for (int q = 0; q < PAIRS; q++) {
                    c[i][q].x = fmaf(left, low_half(b[r][q]), c[i][q].x);
                    c[i][q].y = fmaf(left, high_half(b[r][q]), c[i][q].y);
                }
            }
        }
    }
    trigger_dependents();
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int q = 0; q < PAIRS; q++)
            parts[i % 2][warp][q * 32 + lane] = c[i][q];
        __syncthreads();
        if (threadIdx.x >= p.n) continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < SLIM_WARPS; w++)
            sum += ((const float *)parts[i % 2][w])[threadIdx.x];
        sums[((int64_t)blockIdx.x * M + i) * p.n + threadIdx.x] = sum;
    }
}

/* 32 sums per block. */
template <class F>
static __global__ void slim_add(slim_product p, int bands, float alpha, const float *sums,
                                F finish) {
    __shared__ float parts[SLIM_ADD_WARPS][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, values = p.m * p.n;
    int at = (int)blockIdx.x * 32 + lane;
    float sum = 0;
    wait_for_primary();
#pragma unroll 5
    for (int i = warp; i < bands; i += SLIM_ADD_WARPS)
        sum += at < values ? sums[(int64_t)i * values + at] : 0.0f;
    parts[warp][lane] = sum;
    __syncthreads();
    at = (int)blockIdx.x * 32 + warp;
    sum = warp_sum(parts[lane][warp]);
    if (lane != 0 || at >= values) return;
    int row = p.transposed ? at % p.n : at / p.n, column = p.transposed ? at / p.n : at % p.n;
    finish(0, row, column, alpha * sum);
}

/* False: the product is none of these. Follows from sizes, distances and types. */
static inline bool slim_find(const cuda_gemm *p, slim_product *slim) {
    bool transposed = p->m > SLIM_NARROW;
    const cuda_gemm_matrix *narrow = transposed ? &p->b : &p->a, *wide = transposed ? &p->a : &p->b;
    int64_t m = transposed ? p->n : p->m, n = transposed ? p->m : p->n;
    if (!p->ta || p->tb || p->batch != 1 || p->k < SLIM_ROWS || !narrow->is_bf16 ||
        !wide->is_bf16 || m > SLIM_NARROW || n > SLIM_WIDE || m % 4 != 0 || n % 2 != 0 ||
        narrow->ld % 4 != 0 || wide->ld % 2 != 0)
        return false;
    slim->narrow = (const bf16 *)narrow->data, slim->narrow_ld = narrow->ld;
    slim->wide = (const bf16 *)wide->data, slim->wide_ld = wide->ld;
    slim->rows = p->k, slim->band = ceil_div(p->k, multiprocessors());
    slim->m = (int)m, slim->n = (int)n, slim->transposed = transposed;
    return true;
}

static inline int64_t slim_bands(const slim_product *p) {
    return ceil_div(p->rows, p->band);
}

static inline int64_t slim_workspace(const slim_product *p) {
    return slim_bands(p) * p->m * p->n * (int64_t)sizeof(float);
}

template <int M> static void slim_launch(cudaStream_t stream, const slim_product *p, float *sums) {
    unsigned bands = (unsigned)slim_bands(p);
    if (p->n <= 64)
        slim_sum<M, 1><<<bands, SLIM_WARPS * 32, 0, stream>>>(*p, sums);
    else
        slim_sum<M, 2><<<bands, SLIM_WARPS * 32, 0, stream>>>(*p, sums);
}

/* `sums` has slim_workspace's bytes. */
template <class F>
static void slim_run(cudaStream_t stream, const slim_product *p, float alpha, float *sums,
                     F finish) {
    if (p->m == 4) slim_launch<4>(stream, p, sums);
    if (p->m == 8) slim_launch<8>(stream, p, sums);
    if (p->m == 12) slim_launch<12>(stream, p, sums);
    if (p->m == 16) slim_launch<16>(stream, p, sums);
    launch_following(weft_cuda_device()->code >= 90, stream,
                     dim3((unsigned)ceil_div(p->m * p->n, 32)), SLIM_ADD_WARPS * 32, 0, slim_add<F>,
                     *p, (int)slim_bands(p), alpha, (const float *)sums, finish);
}

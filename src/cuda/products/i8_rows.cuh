/* Matrix products with an i8 weight, c = x wᵀ (ops/linear.h): what generation runs with WEIGHT_DTYPE=int8.
 *
 * Rows of x are rounded to 8 bits first, with one scale for each block of WEFT_I8_BLOCK. Then a warp has
 * a column: four lanes sum a block's products exactly, by dp4a, and the blocks' sums, times the scales,
 * are added in float in an order that follows from k alone. So a row's bits do not depend on the others.
 * Floor: the weight's bytes once; it is read for I8_AT_ONCE rows at a time. */
#pragma once

#include "cuda/products/finish.cuh"

enum {
    I8_WARPS = 8,           /* columns of a block */
    I8_AT_ONCE = 8,         /* rows that a warp holds sums of */
    I8_LANES = 4,           /* of a block of k: 16 bytes each */
    I8_STEP = 32 / I8_LANES /* blocks that a warp has at a time */
};

typedef struct {
    any_tensor a;
    int64_t a_ld, m, n, k;
    int64_t ld;            /* of a row in 8 bits */
    int8_t *x;             /* [m, ld] */
    float *scales;         /* [m, ld / WEFT_I8_BLOCK] */
    const int8_t *w;       /* [n, ld] */
    const float *w_scales; /* [n] */
    float alpha;
} i8_rows;

static inline int64_t i8_x_bytes(const cuda_gemm *p) {
    return align_bytes(p->m * weft_matmul_i8_columns(p->k));
}

static inline int64_t i8_workspace(const cuda_gemm *p) {
    int64_t blocks = weft_matmul_i8_columns(p->k) / WEFT_I8_BLOCK;
    return i8_x_bytes(p) + align_bytes(p->m * blocks * (int64_t)sizeof(float));
}

/* A warp rounds a block of a row: two numbers a lane. No byte holds NaN: the scale does. */
static __global__ void i8_round(i8_rows f) {
    int64_t blocks = f.ld / WEFT_I8_BLOCK, at = thread_index() / 32;
    int64_t row = at / blocks, k = at % blocks * WEFT_I8_BLOCK + threadIdx.x % 32 * 2;
    if (row >= f.m) return;
    float v[2], most = 0;
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        v[i] = k + i < f.k ? load_any(f.a, row * f.a_ld + k + i) : 0.0f;
        most = fmaxf(most, fabsf(v[i]));
        numbers &= v[i] == v[i];
    }
    most = warp_max(most);
    numbers = __all_sync(0xffffffffu, numbers);
    float inverse = most > 0 ? 127 / most : 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float scaled = v[i] * inverse;
        f.x[row * f.ld + k + i] = (int8_t)(int)(scaled < 0 ? scaled - 0.5f : scaled + 0.5f);
    }
    if (threadIdx.x % 32 == 0) f.scales[at] = numbers ? most / 127 : NAN;
}

__device__ static inline int dot_words(uint4 a, uint4 b) {
    int sum = __dp4a((int)a.x, (int)b.x, 0);
    sum = __dp4a((int)a.y, (int)b.y, sum);
    sum = __dp4a((int)a.z, (int)b.z, sum);
    return __dp4a((int)a.w, (int)b.w, sum);
}

static __global__ void __launch_bounds__(I8_WARPS * 32) i8_multiply(i8_rows f, finishing end) {
    int64_t column = (int64_t)blockIdx.x * I8_WARPS + threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.y * I8_AT_ONCE;
    int lane = threadIdx.x % 32, rows = (int)min_i64(I8_AT_ONCE, f.m - first);
    int blocks = (int)(f.ld / WEFT_I8_BLOCK);
    if (column >= f.n) return;
    float sums[I8_AT_ONCE] = {};
    for (int b0 = 0; b0 < blocks; b0 += I8_STEP) {
        int b = b0 + lane / I8_LANES;
        int64_t at = (int64_t)b * WEFT_I8_BLOCK + lane % I8_LANES * 16;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (b < blocks) w = *(const uint4 *)(f.w + column * f.ld + at);
#pragma unroll
        for (int r = 0; r < I8_AT_ONCE; r++) {
            if (r >= rows) break;
            int64_t row = first + r;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (b < blocks) x = *(const uint4 *)(f.x + row * f.ld + at);
            int dot = dot_words(x, w);
            dot += __shfl_xor_sync(0xffffffffu, dot, 1);
            dot += __shfl_xor_sync(0xffffffffu, dot, 2);
            if (b < blocks) sums[r] = fmaf((float)dot, f.scales[row * blocks + b], sums[r]);
        }
    }
    float scale = f.w_scales[column] * f.alpha;
#pragma unroll
    for (int r = 0; r < I8_AT_ONCE; r++) {
        float sum = sums[r];
#pragma unroll
        for (int step = 16; step >= I8_LANES; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (r < rows && lane == 0) finish_value(end, 0, first + r, column, sum * scale);
    }
}

static inline void run_i8_rows(cudaStream_t stream, const cuda_gemm *p, char *workspace) {
    i8_rows f = {};
    f.a = any_tensor{p->a.data, p->a.is_bf16};
    f.a_ld = p->a.ld;
    f.m = p->m, f.n = p->n, f.k = p->k;
    f.ld = weft_matmul_i8_columns(p->k);
    f.x = (int8_t *)workspace;
    f.scales = (float *)(workspace + i8_x_bytes(p));
    f.w = (const int8_t *)p->b.data;
    f.w_scales = (const float *)(f.w + p->n * f.ld);
    f.alpha = p->alpha;
    int64_t warps = p->m * (f.ld / WEFT_I8_BLOCK);
    i8_round<<<(unsigned)ceil_div(warps, 8), 256, 0, stream>>>(f);
    dim3 grid((unsigned)ceil_div(p->n, I8_WARPS), (unsigned)ceil_div(p->m, I8_AT_ONCE));
    i8_multiply<<<grid, I8_WARPS * 32, 0, stream>>>(f, describe_finish(p));
}

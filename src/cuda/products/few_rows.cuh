/* Matrix products of few rows (at most GEMM_FEW_ROWS, and those whose rows are to be alone): what
 * generation runs, and what is done once for a sequence. A row's bits do not depend on the other
 * rows or on how many there are: its sum over k is cut and joined in the same way always.
 *
 * Floor: b's bytes once. In bf16 the tensor cores multiply, FEW_BAND rows at a time: the blocks of
 * the bands of the same columns come one behind the other, so that b is read from memory once. A
 * block has 32 columns, or 8 where columns and rows are few; its warps take turns at the steps of k,
 * each with loads of 16 bytes straight to registers, and their sums are added in one order, the same
 * in blocks of either width. Which of a step's numbers meet in an instruction is free as long as a and
 * b agree: a lane multiplies the eight that it loaded beside each other. Where b lies as [k, n] the
 * lanes transpose 8 × 8 numbers. Products of one a may be one launch. f32, mixed types and rows
 * that start anywhere take plain kernels, eight rows at a time.
 *
 * In generation b does not change: it is requested before the kernel ahead has ended. */
#pragma once

#include "cuda/dependent_launch.cuh"
#include "cuda/products/finish.cuh"
#include "cuda/tensor/tile.cuh"

enum {
    FEW_WARPS = 4,
    FEW_AT_ONCE = 8, /* rows that a warp of the plain kernels holds sums of */
    FEW_SHARES = 16, /* warps that share out k; at least FEW_AT_ONCE, for each finishes a row */
    FEW_BAND = 32,   /* rows of a block with tensor cores */
    FEW_STEP = 32    /* of k: 8 numbers per lane */
};

/* a [m, k]; b [n, k] with tb, else [k, n]; types known at run time only. */
typedef struct {
    any_tensor a, b;
    int64_t a_ld, a_stride, b_ld, b_stride;
    int64_t m, n, k;
    float alpha;
    bool steady; /* b does not change: it is read before the kernel ahead has ended */
} few_rows;

/* b [n, k]: a warp per column, whose lanes share out k. */
static __global__ void few_rows_by_warp(few_rows f, finishing end) {
    int64_t column = (int64_t)blockIdx.x * FEW_WARPS + threadIdx.x / 32, g = blockIdx.y;
    int64_t first = (int64_t)blockIdx.z * FEW_AT_ONCE;
    int lane = threadIdx.x % 32, rows = (int)min_i64(FEW_AT_ONCE, f.m - first);
    if (column >= f.n) return;
    int64_t b_at = g * f.b_stride + column * f.b_ld, a_at = g * f.a_stride + first * f.a_ld;
    float sums[FEW_AT_ONCE] = {};
    for (int64_t k = lane; k < f.k; k += 32) {
        float b = load_any(f.b, b_at + k);
#pragma unroll
        for (int r = 0; r < FEW_AT_ONCE; r++)
            if (r < rows) sums[r] = fmaf(load_any(f.a, a_at + r * f.a_ld + k), b, sums[r]);
    }
#pragma unroll
    for (int r = 0; r < FEW_AT_ONCE; r++) {
        float sum = warp_sum(sums[r]);
        if (r < rows && lane == 0) finish_value(end, g, first + r, column, f.alpha * sum);
    }
}

/* b [k, n]: a lane per column. The block's warps share out k, and their sums are added in order. */
static __global__ void few_rows_by_lane(few_rows f, finishing end) {
    __shared__ float parts[FEW_SHARES][FEW_AT_ONCE][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * 32 + lane, g = blockIdx.y;
    int64_t first = (int64_t)blockIdx.z * FEW_AT_ONCE;
    int rows = (int)min_i64(FEW_AT_ONCE, f.m - first);
    int64_t b_at = g * f.b_stride + column, a_at = g * f.a_stride + first * f.a_ld;
    float sums[FEW_AT_ONCE] = {};
    for (int64_t k = warp; k < f.k && column < f.n; k += FEW_SHARES) {
        float b = load_any(f.b, b_at + k * f.b_ld);
#pragma unroll
        for (int r = 0; r < FEW_AT_ONCE; r++)
            if (r < rows) sums[r] = fmaf(load_any(f.a, a_at + r * f.a_ld + k), b, sums[r]);
    }
#pragma unroll
    for (int r = 0; r < FEW_AT_ONCE; r++)
        parts[warp][r][lane] = sums[r];
    __syncthreads();
    if (warp >= rows || column >= f.n) return;
    float sum = 0;
    for (int w = 0; w < FEW_SHARES; w++)
        sum += parts[w][warp][lane];
    finish_value(end, g, first + warp, column, f.alpha * sum);
}

/* What a lane multiplies in a step: rows lane/4, + 8, and with two halves + 16, + 24 of a; of b, in the
 * instructions' order, [tile of eight columns][which eight of k]. */
template <int HALVES, int TILES> struct few_step {
    eight_halves a[2 * HALVES];
    unsigned b[TILES][4];
};

/* TB: lane/4 is a column, and its words are of k. Else lane/4 is one of eight of k, and its words
 * are columns: word i of the lanes makes up tile i. */
template <int HALVES, int TILES>
__device__ static inline void few_load_a(const few_rows &f, const bf16 *a, int rows, int64_t k,
                                         few_step<HALVES, TILES> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    bool in_k = k + quarter * 8 < f.k;
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++)
        s.a[i] =
            fetch_halves(a + (row + 8 * i) * f.a_ld + k + quarter * 8, in_k && row + 8 * i < rows);
}

/* Where the i-th eight numbers of b lie that a lane multiplies in a step. NULL: they are zeros. */
template <bool TB>
__device__ static inline const bf16 *few_place_b(const few_rows &f, const bf16 *b, int64_t column,
                                                 int64_t k, int i) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    int64_t n = column + (TB ? 8 * i + row : 8 * quarter);
    int64_t depth = k + (TB ? quarter * 8 : row / 2 * 8 + 2 * i + row % 2);
    return n < f.n && depth < f.k ? b + (TB ? n * f.b_ld + depth : depth * f.b_ld + n) : NULL;
}

template <bool TB, int HALVES, int TILES>
__device__ static inline void few_load_b(const few_rows &f, const bf16 *b, int64_t column,
                                         int64_t k, few_step<HALVES, TILES> &s) {
    static_assert(TB || TILES == 4, "a lane has eight columns, four lanes have them all");
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const bf16 *from = few_place_b<TB>(f, b, column, k, i);
        eight_halves v = fetch_halves(from, from != NULL);
#pragma unroll
        for (int j = 0; j < 4; j++)
            s.b[TB ? i : j][TB ? j : i] = v.word[j];
    }
}

/* Asks for what the warp multiplies from step k on. */
template <bool TB, int TILES>
__device__ static inline void few_ask(const few_rows &f, const bf16 *b, int64_t column, int64_t k) {
    for (; k < f.k; k += FEW_SHARES * FEW_STEP)
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const bf16 *from = few_place_b<TB>(f, b, column, k, i);
            if (from) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
        }
}

template <bool TB, int HALVES, int TILES>
__device__ static inline void few_multiply_step(few_step<HALVES, TILES> &s,
                                                float (&sums)[HALVES][TILES][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (!TB)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s.b[tile][i] = transpose_halves(s.b[tile][i]);
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                const unsigned *high = s.a[2 * half].word, *low = s.a[2 * half + 1].word;
                unsigned a[4] = {high[2 * step], low[2 * step], high[2 * step + 1],
                                 low[2 * step + 1]};
                multiply_add(sums[half][tile], a, s.b[tile][2 * step], s.b[tile][2 * step + 1]);
            }
    }
}

/* The place of a block's result in a warp's sums: which of the lane's, and the lane. */
template <bool TB, int TILES> __device__ static inline int few_place(int row, int column) {
    int tile = TB ? column / 8 : column % 8 / 2, quarter = TB ? column % 8 / 2 : column / 8;
    int which = (row / 16 * TILES + tile) * 4 + row / 8 % 2 * 2 + column % 2;
    return which * 32 + row % 8 * 4 + quarter;
}

/* Block `block` of a product, of matrix g: TILES of eight columns. Up to 16 rows are one half of a band.
 * `parts`: few_floats of them, in shared memory. */
template <bool TB, int HALVES, int TILES>
__device__ static inline void few_sum_block(const few_rows &f, const finishing &end, unsigned block,
                                            int64_t g, float *parts) {
    constexpr int NUMBERS = 4 * HALVES * TILES; /* of a lane */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned bands = (unsigned)ceil_div(f.m, FEW_BAND);
    int64_t column = (int64_t)(block / bands) * (8 * TILES);
    int64_t first = (int64_t)(block % bands) * FEW_BAND;
    int rows = (int)min_i64(FEW_BAND, f.m - first);
    const bf16 *a = (const bf16 *)f.a.data + g * f.a_stride + first * f.a_ld;
    const bf16 *b = (const bf16 *)f.b.data + g * f.b_stride;
    float sums[HALVES][TILES][4] = {};
    int64_t k = warp * FEW_STEP;
    few_step<HALVES, TILES> s;
    if (f.steady) {
        few_load_b<TB>(f, b, column, k, s);
        few_ask<TB, TILES>(f, b, column, k + FEW_SHARES * FEW_STEP);
        trigger_dependents(); /* the next product may request its own */
        wait_for_primary();
    } else {
        follow_primary();
        few_load_b<TB>(f, b, column, k, s);
    }
    few_load_a(f, a, rows, k, s);
    few_multiply_step<TB>(s, sums);
#pragma unroll(HALVES *TILES > 4 ? 1 : 2) /* more registers there are not */
    for (k += FEW_SHARES * FEW_STEP; k < f.k; k += FEW_SHARES * FEW_STEP) {
        few_load_b<TB>(f, b, column, k, s);
        few_load_a(f, a, rows, k, s);
        few_multiply_step<TB>(s, sums);
    }
    /* The upper half of the warps hands its sums to the lower, which add their own. */
    float *mine = parts + warp % (FEW_SHARES / 2) * (32 * NUMBERS) + lane;
    const float *sum = &sums[0][0][0];
    if (warp >= FEW_SHARES / 2)
#pragma unroll
        for (int i = 0; i < NUMBERS; i++)
            mine[i * 32] = sum[i];
    __syncthreads();
    if (warp < FEW_SHARES / 2)
#pragma unroll
        for (int i = 0; i < NUMBERS; i++)
            mine[i * 32] += sum[i];
    __syncthreads();
    for (int row = warp; row < rows; row += FEW_SHARES) {
        if (lane >= 8 * TILES || column + lane >= f.n) break;
        float total = 0;
#pragma unroll
        for (int w = 0; w < FEW_SHARES / 2; w++)
            total += parts[w * (32 * NUMBERS) + few_place<TB, TILES>(row, lane)];
        finish_value(end, g, first + row, column + lane, f.alpha * total);
    }
}

static __host__ __device__ constexpr int few_floats(int halves, int tiles) {
    return FEW_SHARES / 2 * 32 * 4 * halves * tiles;
}

template <bool TB, int HALVES, int TILES>
static __global__ void __launch_bounds__(FEW_SHARES * 32, 1)
    few_rows_by_tensor(few_rows f, finishing end) {
    __shared__ float parts[few_floats(HALVES, TILES)];
    few_sum_block<TB, HALVES, TILES>(f, end, blockIdx.x, blockIdx.y, parts);
}

/* Several products of the same a with b [n, k], none of which needs what another makes. */
struct few_group {
    few_rows f[GEMM_TOGETHER];
    finishing finish[GEMM_TOGETHER];
    unsigned end[GEMM_TOGETHER]; /* behind the last block of each */
};

template <int HALVES, int TILES>
static __global__ void __launch_bounds__(FEW_SHARES * 32, 1)
    few_rows_together(const __grid_constant__ few_group t) {
    __shared__ float parts[few_floats(HALVES, TILES)];
    unsigned i = 0;
    while (blockIdx.x >= t.end[i])
        i++;
    unsigned begin = i ? t.end[i - 1] : 0;
    few_sum_block<true, HALVES, TILES>(t.f[i], t.finish[i], blockIdx.x - begin, 0, parts);
}

/* Whether each row starts at 16 bytes and is whole words of them. */
static inline bool few_is_aligned(const cuda_gemm_matrix *x, int64_t width, int64_t batch) {
    return x->is_bf16 && width % 8 == 0 && x->ld % 8 == 0 && (batch == 1 || x->stride % 8 == 0) &&
           (uintptr_t)x->data % 16 == 0;
}

static inline few_rows few_describe(const cuda_gemm *p) {
    any_tensor a = {p->a.data, p->a.is_bf16}, b = {p->b.data, p->b.is_bf16};
    return {a,    b,    p->a.ld, p->a.stride, p->b.ld,  p->b.stride,
            p->m, p->n, p->k,    p->alpha,    p->steady};
}

static inline bool few_has_tensor(const cuda_gemm *p) {
    return few_is_aligned(&p->a, p->k, p->batch) &&
           few_is_aligned(&p->b, p->tb ? p->k : p->n, p->batch);
}

static inline int64_t few_blocks(const cuda_gemm *p, int tiles) {
    return ceil_div(p->n, 8 * tiles) * ceil_div(p->m, FEW_BAND);
}

/* Whether blocks have one tile of columns each. With four tiles there would be so few blocks that most
 * multiprocessors had none; and of so few rows it does not matter that more blocks read them. */
static inline bool few_is_narrow(const cuda_gemm *p) {
    return p->tb && p->m <= FEW_AT_ONCE && few_blocks(p, 4) * p->batch <= multiprocessors() / 2;
}

static inline void run_few_rows(cudaStream_t stream, const cuda_gemm *p) {
    few_rows f = few_describe(p);
    finishing end = describe_finish(p);
    if (few_has_tensor(p)) {
        bool narrow = few_is_narrow(p);
        dim3 grid((unsigned)few_blocks(p, narrow ? 1 : 4), (unsigned)p->batch);
        with_constant<1, 2>(ceil_div(p->m, FEW_BAND / 2), [&](auto halves) {
            constexpr int HALVES = decltype(halves)::value;
            launch_following(p->follows, stream, grid, FEW_SHARES * 32, 0,
                             narrow  ? few_rows_by_tensor<true, 1, 1>
                             : p->tb ? few_rows_by_tensor<true, HALVES, 4>
                                     : few_rows_by_tensor<false, HALVES, 4>,
                             f, end);
        });
        return;
    }
    dim3 grid((unsigned)ceil_div(p->n, p->tb ? FEW_WARPS : 32), (unsigned)p->batch,
              (unsigned)ceil_div(p->m, FEW_AT_ONCE));
    auto kernel = p->tb ? few_rows_by_warp : few_rows_by_lane;
    kernel<<<grid, (p->tb ? FEW_WARPS : FEW_SHARES) * 32, 0, stream>>>(f, end);
}

/* n products of gemm_joins with one a, at most GEMM_TOGETHER. */
static inline void run_few_together(cudaStream_t stream, const cuda_gemm *p, int n) {
    few_group t = {};
    bool narrow = true;
    for (int i = 0; i < n; i++)
        narrow = narrow && few_is_narrow(&p[i]);
    for (int i = 0; i < n; i++) {
        t.f[i] = few_describe(&p[i]);
        t.finish[i] = describe_finish(&p[i]);
        t.end[i] = (i ? t.end[i - 1] : 0) + (unsigned)few_blocks(&p[i], narrow ? 1 : 4);
    }
    with_constant<1, 2>(ceil_div(p->m, FEW_BAND / 2), [&](auto halves) {
        constexpr int HALVES = decltype(halves)::value;
        launch_following(p->follows, stream, dim3(t.end[n - 1]), FEW_SHARES * 32, 0,
                         narrow ? few_rows_together<1, 1> : few_rows_together<HALVES, 4>, t);
    });
}

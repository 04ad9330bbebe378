/* InfoNCE of few rows on tensor cores: a loss's rows all fit a block's shared memory, so that a block
 * makes all there is of ROWS rows in one go, and nothing is kept between kernels.
 *
 * The products are of x as it is, in bf16, and exact but for their sums; what they are divided by
 * comes after: s_ij = ⟨x_i, x_j⟩/(n_i n_j). Back, with v_ij = w_ij/n_j rounded to bf16,
 *
 *     dx_i = (Σ_j v_ij x_j − u_i Σ_j v_ij ⟨x_j, u_i⟩)/n_i
 *
 * the second sum from the same v, so that what lies along u_i goes out to the last bits. A row's own
 * term is all along u_i, and is left out; it stays where the norm was clamped.
 *
 * Floor: a block reads its loss's rows once, from the caches. */
#include "cuda/loss/contrastive.cuh"
#include "cuda/tensor/tile.cuh"

extern "C" {
#include "ops/loss.h"
}

enum {
    ROWS = 32, /* of a block: two tiles of 16 */
    WARPS = 8,
    THREADS = 32 * WARPS,
    MOST_ROWS = 256, /* of a loss: 32 columns of scores a warp */
    TILES = 4,       /* of eight columns, that a warp has */
    GAP = 8          /* behind a row, so that eight rows beside each other share no bank */
};

/* What a block has in shared memory, and the bytes of it. */
struct block_memory {
    float norm[MOST_ROWS], lse[MOST_ROWS];
    best_and_rest parts[WARPS][ROWS];
    float along[WARPS][ROWS], own[ROWS];
    /* bf16 v [ROWS, N + GAP], then x [N, D + GAP] */
};

__host__ __device__ static inline int64_t v_bytes(int64_t rows) {
    return ROWS * (rows + GAP) * (int64_t)sizeof(bf16);
}

static int64_t memory_bytes(int64_t rows, int64_t width) {
    return (int64_t)sizeof(block_memory) + v_bytes(rows) +
           rows * (width + GAP) * (int64_t)sizeof(bf16);
}

/* The loss's rows. */
__device__ static inline void fetch_rows(const contrast_rows &k, const bf16 *x, bf16 *to) {
    int pieces = (int)k.width / 8, pitch = (int)k.width + GAP;
    for (int i = threadIdx.x; i < (int)k.rows * pieces; i += THREADS) {
        int row = i / pieces, piece = i - row * pieces;
        copy_piece(shared_address(to + row * pitch + piece * 8), x + (int64_t)i * 8, true);
    }
    asm volatile("cp.async.commit_group;\n"
                 "cp.async.wait_group 0;" ::
                     : "memory");
    __syncthreads();
}

/* ⟨x_i, x_j⟩ of the block's rows with the warp's 32 columns: c[m][t][e] is of row 16m + lane/4, + 8
 * for e ≥ 2, and of column 8t + lane % 4 · 2 + e % 2. */
__device__ static inline void make_products(const contrast_rows &k, const bf16 *x, int first,
                                            float (&c)[2][TILES][4]) {
    int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 8 * TILES, pitch = (int)k.width + GAP;
    const bf16 *left = x + (first + lane % 16) * pitch + lane / 16 * 8;
    const bf16 *right = x + (column + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < 2 * TILES * 4; i++)
        c[i / 16][i / 4 % TILES][i % 4] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < (int)k.width; d += 16) {
        uint32_t a[2][4], b[4];
        load_matrices(a[0], shared_address(left + d));
        load_matrices(a[1], shared_address(left + 16 * pitch + d));
#pragma unroll
        for (int pair = 0; pair < TILES / 2; pair++) {
            if (column + 16 * pair >= (int)k.rows) break;
            load_matrices(b, shared_address(right + 16 * pair * pitch + d));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply_add(c[m][2 * pair], a[m], b[0], b[1]);
                multiply_add(c[m][2 * pair + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* A thread a row of the loss: its norm. */
__device__ static inline void measure_rows(const contrast_rows &k, const bf16 *x, float *norm) {
    int row = threadIdx.x, pitch = (int)k.width + GAP;
    if (row >= (int)k.rows) return;
    float sum[4] = {};
    for (int d = 0; d < (int)k.width; d += VECTOR) {
        float v[VECTOR];
        load_vector(x + row * pitch + d, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i % 4] = fmaf(v[i], v[i], sum[i % 4]);
    }
    float squares = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    norm[row] = fmaxf(sqrtf(squares), (float)WEFT_INFONCE_NORM_MIN);
}

/* Of the four lanes that have a row between them. */
__device__ static inline best_and_rest join_quad(best_and_rest all) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        best_and_rest other = {__shfl_xor_sync(0xffffffffu, all.top, step),
                               __shfl_xor_sync(0xffffffffu, all.rest, step)};
        all = join_scores(all, other);
    }
    return all;
}

static __global__ void __launch_bounds__(THREADS, 1) make_losses(contrast_rows k) {
    extern __shared__ __align__(16) char raw[];
    block_memory &m = *(block_memory *)raw;
    bf16 *x = (bf16 *)(raw + sizeof(block_memory) + v_bytes(k.rows));
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = (int)blockIdx.x * ROWS;
    int64_t start = blockIdx.y * k.rows;
    fetch_rows(k, k.x + start * k.width, x);
    measure_rows(k, x, m.norm);
    float c[2][TILES][4];
    make_products(k, x, first, c);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = r * 8 + lane / 4;
        float factor = k.inverse_tau / m.norm[first + row];
        best_and_rest all = {-INFINITY, 0};
#pragma unroll
        for (int e = 0; e < 2 * TILES; e++) {
            int j = warp * 8 * TILES + e / 2 * 8 + lane % 4 * 2 + e % 2;
            if (j >= (int)k.rows) continue;
            float score = c[r / 2][e / 2][r % 2 * 2 + e % 2] * factor / m.norm[j];
            all = join_scores(all, best_and_rest{score, 0});
            if (j == first + row) m.own[row] = score;
        }
        all = join_quad(all);
        if (lane % 4 == 0) m.parts[warp][row] = all;
    }
    __syncthreads();
    if (threadIdx.x >= ROWS) return;
    best_and_rest all = m.parts[0][threadIdx.x];
    for (int w = 1; w < WARPS; w++)
        all = join_scores(all, m.parts[w][threadIdx.x]);
    int64_t at = start + first + threadIdx.x;
    double rest = log1p((double)all.rest);
    k.norm[at] = m.norm[first + threadIdx.x];
    k.lse[at] = (float)((double)all.top + rest);
    k.loss[at] = (double)(all.top - m.own[threadIdx.x]) + rest;
}

/* v of the block's rows to shared memory, and the warp's part of Σ_j v_ij ⟨x_j, u_i⟩. */
__device__ static inline void make_weights(const contrast_rows &k, block_memory &m, bf16 *v,
                                           int first, const float (&c)[2][TILES][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float slope = (float)((double)*k.dy * k.factor);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = r * 8 + lane / 4, i = first + row;
        float norm = m.norm[i], lse = m.lse[i], along = 0;
        bool clamped = !(norm > (float)WEFT_INFONCE_NORM_MIN);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            int j = warp * 8 * TILES + t * 8 + lane % 4 * 2;
            if (j >= (int)k.rows) continue;
            float pair[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float product = c[r / 2][t][r % 2 * 2 + e] / norm, other = m.norm[j + e];
                float score = product / other * k.inverse_tau;
                float weight = slope * (expf(score - lse) + expf(score - m.lse[j + e]));
                if (j + e == i) weight = clamped ? weight - 2 * slope : 0.0f;
                pair[e] = to_float(from_float<bf16>(weight / other));
                along = fmaf(pair[e], product, along);
            }
            *(unsigned *)(v + row * (k.rows + GAP) + j) = join_halves(pair[0], pair[1]);
        }
        along += __shfl_xor_sync(0xffffffffu, along, 1);
        along += __shfl_xor_sync(0xffffffffu, along, 2);
        if (lane % 4 == 0) m.along[warp][row] = clamped ? 0.0f : along;
    }
}

/* 16 columns of dx of the block's rows, from `column` on. */
__device__ static inline void make_columns(const contrast_rows &k, const block_memory &m,
                                           const bf16 *v, const bf16 *x, bf16 *dx, int first,
                                           int column) {
    int lane = threadIdx.x % 32, pitch = (int)k.width + GAP, v_pitch = (int)k.rows + GAP;
    const bf16 *left = v + lane % 16 * v_pitch + lane / 16 * 8;
    const bf16 *right = x + lane % 16 * pitch + column + lane / 16 * 8;
    float c[2][2][4] = {};
#pragma unroll 4
    for (int j = 0; j < (int)k.rows; j += 16) {
        uint32_t a[2][4], b[4];
        load_matrices(a[0], shared_address(left + j));
        load_matrices(a[1], shared_address(left + 16 * v_pitch + j));
        load_transposed(b, shared_address(right + j * pitch));
#pragma unroll
        for (int t = 0; t < 2; t++) {
            multiply_add(c[t][0], a[t], b[0], b[1]);
            multiply_add(c[t][1], a[t], b[2], b[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = r * 8 + lane / 4;
        float norm = m.norm[first + row], along = m.along[0][row] / norm;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            int d = column + 8 * t + lane % 4 * 2;
            const bf16 *own = x + (first + row) * pitch + d;
            float low = (c[r / 2][t][r % 2 * 2] - to_float(own[0]) * along) / norm;
            float high = (c[r / 2][t][r % 2 * 2 + 1] - to_float(own[1]) * along) / norm;
            *(unsigned *)(dx + (int64_t)(first + row) * k.width + d) = join_halves(low, high);
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1) make_gradients(contrast_rows k) {
    extern __shared__ __align__(16) char raw[];
    block_memory &m = *(block_memory *)raw;
    bf16 *v = (bf16 *)(raw + sizeof(block_memory));
    bf16 *x = (bf16 *)(raw + sizeof(block_memory) + v_bytes(k.rows));
    int first = (int)blockIdx.x * ROWS;
    int64_t start = blockIdx.y * k.rows;
    for (int i = threadIdx.x; i < (int)k.rows; i += THREADS) {
        m.norm[i] = k.norm[start + i];
        m.lse[i] = k.lse[start + i];
    }
    fetch_rows(k, k.x + start * k.width, x);
    float c[2][TILES][4];
    make_products(k, x, first, c);
    make_weights(k, m, v, first, c);
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float along = 0;
        for (int w = 0; w < WARPS; w++)
            along += m.along[w][threadIdx.x];
        m.along[0][threadIdx.x] = along;
    }
    __syncthreads();
    for (int column = threadIdx.x / 32 * 16; column < (int)k.width; column += 16 * WARPS)
        make_columns(k, m, v, x, k.dx + start * k.width, first, column);
}

bool contrast_suits_tensor(int64_t rows, int64_t width) {
    return rows % ROWS == 0 && rows <= MOST_ROWS && width % 16 == 0 &&
           memory_bytes(rows, width) <= weft_cuda_device()->shared_memory;
}

typedef void (*contrast_kernel)(contrast_rows);

static void launch(cudaStream_t stream, contrast_kernel kernel, const contrast_rows &k) {
    dim3 grid((unsigned)(k.rows / ROWS), (unsigned)k.losses);
    int64_t bytes = memory_bytes(k.rows, k.width);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    kernel<<<grid, THREADS, (size_t)bytes, stream>>>(k);
}

void contrast_losses(cudaStream_t stream, const contrast_rows &k) {
    launch(stream, make_losses, k);
}

void contrast_gradients(cudaStream_t stream, const contrast_rows &k) {
    launch(stream, make_gradients, k);
}

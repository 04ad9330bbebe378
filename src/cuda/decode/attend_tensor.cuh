/* A block of keys on the tensor cores: bf16 queries over a cache of bf16 (cache_attention.cu).
 *
 * The query heads that share a key head are the rows of a tile of 16, so that MLA's twelve or more heads
 * read their one latent once; of a key head with one query head 15 rows are empty, which costs nothing
 * where memory decides. Keys and values go from their pages straight to registers, 16 bytes a lane: which
 * of a step's numbers meet in an instruction is free as long as both factors agree (few_rows.cuh). */
#pragma once

#include "cuda/decode/attend.cuh"
#include "cuda/products/few_rows.cuh"

enum {
    TENSOR_WARPS = THREADS / 32,
    TENSOR_ROWS = 16,                   /* heads of a tile */
    TENSOR_KEYS = BLOCK / TENSOR_WARPS, /* of a warp, for its scores */
    TENSOR_COLUMNS = 32,                /* of values that a warp sums at a time */
    TENSOR_PITCH = BLOCK + 8,           /* floats between the rows of scores */
    TENSOR_SPARE = 8                    /* numbers behind a query's, so that rows share no bank */
};

/* Shared memory, in bytes: q [tiles · 16, dqk + SPARE] in bf16; scores [group, PITCH]; n [BLOCK]; the
 * warps' sums [WARPS, rows, COLUMNS]. */
struct tensor_memory {
    bf16 *q;
    float *scores, *n, *parts;
};

__host__ __device__ static inline int tensor_rows(const attend_problem &a) {
    return a.group < TENSOR_ROWS ? a.group : (int)TENSOR_ROWS;
}

__host__ __device__ static inline int tensor_heads(const attend_problem &a) {
    return (a.group + TENSOR_ROWS - 1) / TENSOR_ROWS * TENSOR_ROWS;
}

static inline int64_t tensor_bytes(const attend_problem &a) {
    return (int64_t)tensor_heads(a) * (a.dqk + TENSOR_SPARE) * (int64_t)sizeof(bf16) +
           ((int64_t)a.group * TENSOR_PITCH + BLOCK +
            (int64_t)TENSOR_WARPS * tensor_rows(a) * TENSOR_COLUMNS) *
               (int64_t)sizeof(float);
}

__device__ static inline tensor_memory cut_tensor_memory(const attend_problem &a, char *memory) {
    tensor_memory m;
    m.q = (bf16 *)memory;
    m.scores = (float *)(m.q + tensor_heads(a) * (a.dqk + TENSOR_SPARE));
    m.n = m.scores + a.group * TENSOR_PITCH;
    m.parts = m.n + BLOCK;
    return m;
}

__device__ static inline few_words read_words(const void *from) {
    uint4 v = *(const uint4 *)from;
    return few_words{{v.x, v.y, v.z, v.w}};
}

/* S = Q Kᵀ for 16 heads and the warp's 32 keys: eight keys an instruction. */
__device__ static inline void score_tile(const attend_problem &a, const tensor_memory &m, int r,
                                         int g, int tile, int first, int end) {
    constexpr int N = TENSOR_KEYS / 8;
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4, pitch = a.dqk + TENSOR_SPARE;
    int at = (int)threadIdx.x / 32 * TENSOR_KEYS;
    const bf16 *q = m.q + (tile * TENSOR_ROWS + row) * pitch + quarter * 8, *key[N];
    float c[N][4] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
        int j = first + at + 8 * n + row;
        key[n] = NULL;
        if (j < end)
            key[n] = (const bf16 *)token_at(a.keys, page_at(a.keys, a.places, r, j), g,
                                            j % WEFT_PAGE_TOKENS) +
                     quarter * 8;
    }
#pragma unroll 2
    for (int k = 0; k < a.dqk; k += 32) {
        bool inside = k + quarter * 8 < a.dqk;
        few_words b[N], high = {}, low = {};
#pragma unroll
        for (int n = 0; n < N; n++)
            b[n] = few_fetch(key[n] + k, inside && key[n]);
        if (inside) high = read_words(q + k), low = read_words(q + 8 * pitch + k);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int step = 0; step < 2; step++)
                few_multiply(c[n], high, low, step, b[n].word[2 * step], b[n].word[2 * step + 1]);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = tile * TENSOR_ROWS + row + e / 2 * 8;
            if (h < a.group)
                m.scores[h * TENSOR_PITCH + at + 8 * n + quarter * 2 + e % 2] = c[n][e];
        }
}

/* Weights of row h from key k on, eight of them as bf16. */
__device__ static inline few_words read_weights(const attend_problem &a, const tensor_memory &m,
                                                int h, int k) {
    few_words w = {};
    if (h >= a.group) return w;
    float v[VECTOR];
    load_vector(m.scores + h * TENSOR_PITCH + k, v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        w.word[i] = join_halves(v[2 * i], v[2 * i + 1]);
    return w;
}

/* O = P V for 16 heads: a warp has 32 columns and a part of the keys; the parts are added in order. */
__device__ static inline void sum_tile(const attend_problem &a, const tensor_memory &m, int r,
                                       int g, int tile, int first, int count, float *partial,
                                       int64_t step) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4, warp = (int)threadIdx.x / 32;
    int units = (a.dv + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS, across = 1, rows = tensor_rows(a);
    while (across < units && across < TENSOR_WARPS)
        across *= 2;
    int parts = TENSOR_WARPS / across, keys = BLOCK / parts, begin = warp / across * keys;
    int end = min(begin + keys, count);
    for (int u = 0; u < units; u += across) {
        int column = (u + warp % across) * TENSOR_COLUMNS;
        float c[4][4] = {};
#pragma unroll 1
        for (int k = begin; k < end; k += 32) {
            unsigned b[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = k + row / 2 * 8 + 2 * i + row % 2, n = column + 8 * quarter;
                few_words v = {};
                if (j < count && n < a.dv) {
                    char *page = page_at(a.values, a.places, r, first + j);
                    v = read_words(
                        (const bf16 *)token_at(a.values, page, g, (first + j) % WEFT_PAGE_TOKENS) +
                        n);
                }
#pragma unroll
                for (int t = 0; t < 4; t++)
                    b[t][i] = v.word[t];
            }
            int h = tile * TENSOR_ROWS + row;
            few_words high = read_weights(a, m, h, k + quarter * 8);
            few_words low = read_weights(a, m, h + 8, k + quarter * 8);
#pragma unroll
            for (int t = 0; t < 4; t++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    b[t][i] = few_transpose(b[t][i]);
#pragma unroll
                for (int s = 0; s < 2; s++)
                    few_multiply(c[t], high, low, s, b[t][2 * s], b[t][2 * s + 1]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int h = row + e / 2 * 8, n = quarter * 8 + 2 * t + e % 2;
                if (h < rows) m.parts[(warp * rows + h) * TENSOR_COLUMNS + n] = c[t][e];
            }
        __syncthreads();
        for (int e = threadIdx.x; e < across * rows * TENSOR_COLUMNS; e += THREADS) {
            int n = e % TENSOR_COLUMNS, h = e / TENSOR_COLUMNS % rows;
            int unit = e / TENSOR_COLUMNS / rows, to = (u + unit) * TENSOR_COLUMNS + n;
            int head = tile * TENSOR_ROWS + h;
            if (head >= a.group || to >= a.dv) continue;
            float all = 0;
            for (int k = 0; k < parts; k++)
                all += m.parts[((k * across + unit) * rows + h) * TENSOR_COLUMNS + n];
            partial[head * step + to] = all;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 3)
    attend_block_tensor(const __grid_constant__ attend_problem a) {
    extern __shared__ __align__(16) char tensor_shared[];
    follow_primary();
    block_place t = place_block(a);
    if (t.first >= t.end) return;
    tensor_memory m = cut_tensor_memory(a, tensor_shared);
    const bf16 *q = (const bf16 *)a.q.data + t.r * a.q_columns + (int64_t)t.g * a.group * a.dqk;
    int pitch = a.dqk + TENSOR_SPARE, count = t.end - t.first;
    for (int e = threadIdx.x * VECTOR; e < tensor_heads(a) * a.dqk; e += THREADS * VECTOR) {
        int h = e / a.dqk, d = e % a.dqk;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < a.group) v = *(const uint4 *)(q + (int64_t)h * a.dqk + d);
        *(uint4 *)(m.q + h * pitch + d) = v;
    }
    if (a.keys.number)
        for (int j = threadIdx.x; j < count; j += THREADS) {
            char *page = page_at(a.keys, a.places, t.r, t.first + j);
            m.n[j] = *number_at(a.keys, page, t.g, (t.first + j) % WEFT_PAGE_TOKENS);
        }
    __syncthreads();
    for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
        score_tile(a, m, t.r, t.g, tile, t.first, t.end);
    __syncthreads();
    float *partial = partial_of(a, t);
    int64_t step = (int64_t)a.blocks * (a.dv + 2);
    weigh_keys(a, m.scores, TENSOR_PITCH, m.n, t, partial, step);
    __syncthreads();
    for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
        sum_tile(a, m, t.r, t.g, tile, t.first, count, partial, step);
}

/* Whether it takes the problem: follows from types, sizes and options alone. */
static inline bool suits_tensor(const attend_problem &a, bool q_is_bf16) {
    return q_is_bf16 && a.keys.kind == CACHED_BF16 && a.values.kind == CACHED_BF16 &&
           !copies_keys(a) && !a.squares && !a.band && a.dqk % VECTOR == 0 && a.dv % VECTOR == 0 &&
           a.q_columns % VECTOR == 0 && tensor_bytes(a) <= weft_cuda_device()->shared_memory;
}

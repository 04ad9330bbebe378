/* A leaf of keys on the tensor cores: bf16 queries over a cache of bf16 (cache_attention.cu).
 *
 * A block asks for all keys and values of its leaf at once, a page at a time (bulk copies, on code for
 * 9.0a; cp.async elsewhere), so that memory always has more to do: two to four blocks are on a
 * multiprocessor. What no row of this run writes is asked for before the kernel ahead has ended.
 * Values that are the keys are copied once.
 *
 * The query heads that share a key head are the rows of a tile of 16, so that MLA's twelve or more heads
 * read their one latent once; of a key head with one query head 15 rows are empty, which costs nothing
 * where memory decides. Which of a step's numbers meet in an instruction is free as long as both factors
 * agree: a lane multiplies the eight that lie beside each other (few_rows.cuh). */
#pragma once

#include "cuda/decode/attend.cuh"
#include "cuda/dependent_launch.cuh"
#include "cuda/products/few_rows.cuh"
#include "cuda/tensor/pipeline.cuh"

enum {
    TENSOR_WARPS = THREADS / 32,
    TENSOR_ROWS = 16,          /* heads of a tile */
    TENSOR_KEYS = 32,          /* of a warp, for its scores */
    TENSOR_COLUMNS = 32,       /* of values that a warp sums at a time */
    TENSOR_SPARE = 8,          /* numbers behind a row's, so that rows share no bank */
    TENSOR_LEAF = 64 << 10,    /* bytes of a leaf's keys and values, at most */
    TENSOR_LEAST = TENSOR_KEYS /* keys of a leaf */
};

/* Shared memory: keys [leaf, dqk] and values [leaf, dv] in bf16; scores [group, leaf + SPARE]; n [leaf];
 * q [tiles · 16, dqk + SPARE] in bf16, and when that is done with the warps' sums [WARPS, rows, COLUMNS];
 * two barriers. */
struct tensor_memory {
    bf16 *keys, *values, *q;
    float *scores, *n, *parts;
    uint32_t arrived; /* the keys' barrier, and 8 bytes behind it the values' */
};

__host__ __device__ static inline int tensor_rows(const attend_problem &a) {
    return a.group < TENSOR_ROWS ? a.group : (int)TENSOR_ROWS;
}

__host__ __device__ static inline int tensor_heads(const attend_problem &a) {
    return (a.group + TENSOR_ROWS - 1) / TENSOR_ROWS * TENSOR_ROWS;
}

__host__ __device__ static inline int tensor_key_bytes(const attend_problem &a) {
    return a.leaf * (a.dqk + (a.joint ? 0 : a.dv)) * (int)sizeof(bf16);
}

__host__ __device__ static inline int tensor_end_bytes(const attend_problem &a) {
    int q = tensor_heads(a) * (a.dqk + TENSOR_SPARE) * (int)sizeof(bf16);
    int parts = TENSOR_WARPS * tensor_rows(a) * TENSOR_COLUMNS * (int)sizeof(float);
    return q > parts ? q : parts;
}

static inline int64_t tensor_bytes(const attend_problem &a) {
    return tensor_key_bytes(a) + (a.group * (a.leaf + TENSOR_SPARE) + a.leaf) * (int)sizeof(float) +
           tensor_end_bytes(a) + 16;
}

__device__ static inline tensor_memory cut_tensor_memory(const attend_problem &a, char *memory) {
    tensor_memory m;
    m.keys = (bf16 *)memory;
    m.values = a.joint ? m.keys : m.keys + a.leaf * a.dqk;
    m.scores = (float *)(memory + tensor_key_bytes(a));
    m.n = m.scores + a.group * (a.leaf + TENSOR_SPARE);
    m.q = (bf16 *)(m.n + a.leaf);
    m.parts = (float *)m.q;
    m.arrived = shared_address(m.q) + (uint32_t)tensor_end_bytes(a);
    return m;
}

__device__ static inline few_words read_words(const void *from) {
    uint4 v = *(const uint4 *)from;
    return few_words{{v.x, v.y, v.z, v.w}};
}

#ifndef USE_MMA_SYNC

__device__ static inline void bulk_copy(uint32_t to, const void *from, int bytes,
                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Starts the copies of the leaf; every thread comes here, and finds the kernel ahead ended. The first
 * warp asks: its lower half has the pages of keys, the upper half those of values. */
__device__ static inline void copy_leaf(const attend_problem &a, const tensor_memory &m,
                                        const block_place &t) {
    if (threadIdx.x == 0) {
        init_barrier(m.arrived, 1);
        init_barrier(m.arrived + 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        arrive_expect_tx(m.arrived, (t.end - t.first) * a.dqk * 2);
        if (!a.joint) arrive_expect_tx(m.arrived + 8, (t.end - t.first) * a.dv * 2);
    }
    if (threadIdx.x < 32) {
        int part = (int)threadIdx.x / 16, page = t.first / WEFT_PAGE_TOKENS + (int)threadIdx.x % 16;
        int begin = max(t.first, page * WEFT_PAGE_TOKENS);
        int end = min(t.end, (page + 1) * WEFT_PAGE_TOKENS);
        bool own = begin < end && !(part && a.joint);
        /* Before the first row of the sequence that this run may have. */
        bool early = own && end + a.places.rows <= t.position + 1;
        const cached_pages &c = part ? a.values : a.keys;
        int width = part ? a.dv : a.dqk;
        uint32_t to = shared_address(part ? m.values : m.keys) +
                      (uint32_t)((begin - t.first) * width * 2),
                 barrier = m.arrived + 8 * (uint32_t)part;
        const char *from = NULL;
        if (own)
            from = token_at(c, page_at(c, a.places, t.r, begin), t.g, begin % WEFT_PAGE_TOKENS);
        __syncwarp();
        if (early) bulk_copy(to, from, (end - begin) * width * 2, barrier);
        wait_for_primary();
        if (own && !early) bulk_copy(to, from, (end - begin) * width * 2, barrier);
    }
    wait_for_primary();
}

__device__ static inline void wait_leaf(const attend_problem &a, const tensor_memory &m,
                                        bool keys) {
    if (keys || !a.joint) wait_phase(m.arrived + (keys ? 0 : 8), 0);
}

#else

__device__ static inline void copy_part(const attend_problem &a, const cached_pages &c,
                                        const block_place &t, const bf16 *to, int width) {
    int pieces = width / VECTOR;
    for (int e = threadIdx.x; e < (t.end - t.first) * pieces; e += THREADS) {
        int j = t.first + e / pieces, piece = e % pieces * VECTOR;
        const bf16 *from =
            (const bf16 *)token_at(c, page_at(c, a.places, t.r, j), t.g, j % WEFT_PAGE_TOKENS);
        copy_piece(shared_address(to + (j - t.first) * width + piece), from + piece, true);
    }
    end_copies();
}

__device__ static inline void copy_leaf(const attend_problem &a, const tensor_memory &m,
                                        const block_place &t) {
    wait_for_primary();
    copy_part(a, a.keys, t, m.keys, a.dqk);
    if (!a.joint) copy_part(a, a.values, t, m.values, a.dv);
}

__device__ static inline void wait_leaf(const attend_problem &, const tensor_memory &, bool) {
    wait_copies();
    __syncthreads();
}

#endif

/* S = Q Kᵀ for 16 heads and the warp's 32 keys: eight keys an instruction. */
__device__ static inline void score_tile(const attend_problem &a, const tensor_memory &m, int tile,
                                         int count) {
    constexpr int N = TENSOR_KEYS / 8;
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4, pitch = a.dqk + TENSOR_SPARE;
    int at = (int)threadIdx.x / 32 * TENSOR_KEYS, to = a.leaf + TENSOR_SPARE;
    const bf16 *q = m.q + (tile * TENSOR_ROWS + row) * pitch + quarter * 8;
    const bf16 *key = m.keys + (at + row) * a.dqk + quarter * 8;
    float c[N][4] = {};
    if (at >= count) return;
#pragma unroll 2
    for (int k = 0; k < a.dqk; k += 32) {
        few_words b[N] = {}, high = {}, low = {};
        if (k + quarter * 8 < a.dqk) {
#pragma unroll
            for (int n = 0; n < N; n++)
                b[n] = read_words(key + 8 * n * a.dqk + k);
            high = read_words(q + k), low = read_words(q + 8 * pitch + k);
        }
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
            if (h < a.group) m.scores[h * to + at + 8 * n + quarter * 2 + e % 2] = c[n][e];
        }
}

/* Weights of row h from key k on, eight of them as bf16. */
__device__ static inline few_words read_weights(const attend_problem &a, const tensor_memory &m,
                                                int h, int k) {
    few_words w = {};
    if (h >= a.group) return w;
    float v[VECTOR];
    load_vector(m.scores + h * (a.leaf + TENSOR_SPARE) + k, v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        w.word[i] = join_halves(v[2 * i], v[2 * i + 1]);
    return w;
}

/* O = P V for 16 heads: a warp has 32 columns and a part of the keys; the parts are added in order. */
__device__ static inline void sum_tile(const attend_problem &a, const tensor_memory &m, int tile,
                                       int count, float *partial, int64_t step) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4, warp = (int)threadIdx.x / 32;
    int units = (a.dv + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS, across = 1, rows = tensor_rows(a);
    int pitch = a.joint ? a.dqk : a.dv;
    while (across < units && across < TENSOR_WARPS)
        across *= 2;
    int parts = min(TENSOR_WARPS / across, a.leaf / TENSOR_KEYS), keys = a.leaf / parts;
    int begin = warp / across * keys, end = min(begin + keys, count);
    for (int u = 0; u < units; u += across) {
        int column = (u + warp % across) * TENSOR_COLUMNS;
        float c[4][4] = {};
        for (int k = begin; k < end; k += 32) {
            unsigned b[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = k + row / 2 * 8 + 2 * i + row % 2, n = column + 8 * quarter;
                few_words v = {};
                if (j < count && n < a.dv) v = read_words(m.values + j * pitch + n);
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
        if (warp / across < parts)
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
    trigger_dependents();
    if (a.documents) wait_for_primary();
    block_place t = place_block(a);
    if (t.first >= t.end) {
        wait_for_primary();
        join_absent(a, t);
        return;
    }
    tensor_memory m = cut_tensor_memory(a, tensor_shared);
    int pitch = a.dqk + TENSOR_SPARE, count = t.end - t.first;
    copy_leaf(a, m, t);
    const bf16 *q = (const bf16 *)a.q.data + t.r * a.q_columns + (int64_t)t.g * a.group * a.dqk;
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
    __syncthreads(); /* the barriers are made too */
    wait_leaf(a, m, true);
    for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
        score_tile(a, m, tile, count);
    __syncthreads();
    float *partial = partial_of(a, t);
    int64_t step = (int64_t)a.blocks * (a.dv + 2);
    weigh_keys(a, m.scores, a.leaf + TENSOR_SPARE, m.n, t, partial, step);
    wait_leaf(a, m, false);
    __syncthreads();
    for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
        sum_tile(a, m, tile, count, partial, step);
    join_when_last(a, t);
}

/* Keys of a leaf, by the widths alone. */
static inline int tensor_leaf(const attend_problem &a) {
    int leaf = BLOCK;
    while (leaf > TENSOR_LEAST && leaf * (a.dqk + (a.joint ? 0 : a.dv)) * 2 > TENSOR_LEAF)
        leaf /= 2;
    return leaf;
}

/* Whether it takes the problem: follows from types, sizes and options alone. */
static inline bool suits_tensor(const attend_problem &a, bool q_is_bf16) {
    return q_is_bf16 && a.keys.kind == CACHED_BF16 && a.values.kind == CACHED_BF16 &&
           !copies_keys(a) && !a.squares && !a.band && a.dqk % VECTOR == 0 && a.dv % VECTOR == 0 &&
           a.q_columns % VECTOR == 0 && tensor_bytes(a) <= weft_cuda_device()->shared_memory;
}

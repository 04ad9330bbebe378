/* Leaves of keys on the tensor cores: bf16 queries over a cache of bf16 (cache_attention.cu).
 *
 * A block goes through its leaves one after the other, with keys and values of the next one or two under
 * way, a page at a time (bulk copies, on code for 9.0a; cp.async elsewhere), so that memory always has
 * something to do: two blocks are on a multiprocessor. What no row of this run writes is asked for before
 * the kernel ahead has ended. Values that are the keys are copied once. Each leaf's result goes to memory
 * by itself, so that it changes nothing which block has which.
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
    TENSOR_ROWS = 16,       /* heads of a tile */
    TENSOR_KEYS = 32,       /* of a warp, for its scores */
    TENSOR_COLUMNS = 32,    /* of values that a warp sums at a time */
    TENSOR_SPARE = 8,       /* numbers behind a row's, so that rows share no bank */
    TENSOR_LEAF = 48 << 10, /* bytes of a leaf's keys and values, at most */
    TENSOR_LEAST = 64,      /* keys of a leaf, unless there is no room for so many */
    TENSOR_RING = 3,        /* leaves in shared memory, at most */
    TENSOR_ROOM = 112 << 10 /* bytes of a block, if two are to be there */
};

/* Shared memory: of each leaf in the ring keys [leaf, dqk] and values [leaf, dv] in bf16; scores
 * [group, leaf + SPARE]; n [leaf]; the warps' sums [WARPS, rows, COLUMNS]; q [tiles · 16, dqk + SPARE] in
 * bf16; a barrier for each leaf of the ring. */
struct tensor_memory {
    bf16 *keys, *values; /* of the leaf that is multiplied */
    bf16 *q;
    float *scores, *n, *parts;
    uint32_t ring, arrived;
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

/* Bytes of all that is not the ring. */
__host__ __device__ static inline int tensor_rest_bytes(const attend_problem &a) {
    int floats =
        a.group * (a.leaf + TENSOR_SPARE) + a.leaf + TENSOR_WARPS * tensor_rows(a) * TENSOR_COLUMNS;
    return floats * (int)sizeof(float) +
           tensor_heads(a) * (a.dqk + TENSOR_SPARE) * (int)sizeof(bf16) + 8 * TENSOR_RING;
}

static inline int64_t tensor_bytes(const attend_problem &a) {
    return (int64_t)a.ring * tensor_key_bytes(a) + tensor_rest_bytes(a);
}

__device__ static inline tensor_memory cut_tensor_memory(const attend_problem &a, char *memory) {
    tensor_memory m = {};
    m.ring = shared_address(memory);
    m.scores = (float *)(memory + a.ring * tensor_key_bytes(a));
    m.n = m.scores + a.group * (a.leaf + TENSOR_SPARE);
    m.parts = m.n + a.leaf;
    m.q = (bf16 *)(m.parts + TENSOR_WARPS * tensor_rows(a) * TENSOR_COLUMNS);
    m.arrived = shared_address(m.q + tensor_heads(a) * (a.dqk + TENSOR_SPARE));
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

__device__ static inline void make_leaf_barriers(const attend_problem &a, const tensor_memory &m) {
    if (threadIdx.x > 0) return;
    for (int i = 0; i < a.ring; i++)
        init_barrier(m.arrived + 8 * (uint32_t)i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* The first warp says how many bytes of a leaf will come. */
__device__ static inline void expect_leaf(const attend_problem &a, const tensor_memory &m, int slot,
                                          const block_place &t) {
    int bytes = (t.end - t.first) * (a.dqk + (a.joint ? 0 : a.dv)) * 2;
    if (threadIdx.x == 0 && bytes > 0) arrive_expect_tx(m.arrived + 8 * (uint32_t)slot, bytes);
    __syncwarp();
}

/* The first warp asks for a leaf, its lower half for the pages of keys, the upper half for those of
 * values: for those that no row of this run writes, or for the others. */
__device__ static inline void copy_leaf(const attend_problem &a, const tensor_memory &m, int slot,
                                        const block_place &t, bool steady) {
    int part = (int)threadIdx.x / 16, page = t.first / WEFT_PAGE_TOKENS + (int)threadIdx.x % 16;
    int begin = max(t.first, page * WEFT_PAGE_TOKENS);
    int end = min(t.end, (page + 1) * WEFT_PAGE_TOKENS), width = part ? a.dv : a.dqk;
    /* Before the first row of the sequence that this run may have. */
    bool is_steady = end + a.places.rows <= t.position + 1;
    if (begin >= end || (part && a.joint) || is_steady != steady) return;
    const cached_pages &c = part ? a.values : a.keys;
    uint32_t to = m.ring + (uint32_t)(slot * tensor_key_bytes(a)) +
                  (uint32_t)((part ? a.leaf * a.dqk : 0) + (begin - t.first) * width) * 2;
    bulk_copy(to, token_at(c, page_at(c, a.places, t.r, begin), t.g, begin % WEFT_PAGE_TOKENS),
              (end - begin) * width * 2, m.arrived + 8 * (uint32_t)slot);
}

/* The first leaves of the block; every thread finds the kernel ahead ended. */
__device__ static inline void begin_leaves(const attend_problem &a, const tensor_memory &m,
                                           int part) {
    make_leaf_barriers(a, m);
    if (threadIdx.x < 32) {
        for (int i = 0; i < a.ring; i++) {
            block_place t = place_leaf(a, part + i * a.splits);
            expect_leaf(a, m, i, t);
            copy_leaf(a, m, i, t, true);
        }
        wait_for_primary();
        for (int i = 0; i < a.ring; i++)
            copy_leaf(a, m, i, place_leaf(a, part + i * a.splits), false);
    }
    wait_for_primary();
}

/* When all are done with the leaf that is in the slot. */
__device__ static inline void ask_for_leaf(const attend_problem &a, const tensor_memory &m,
                                           int slot, const block_place &t) {
    if (threadIdx.x >= 32) return;
    expect_leaf(a, m, slot, t);
    copy_leaf(a, m, slot, t, true);
    copy_leaf(a, m, slot, t, false);
}

__device__ static inline void wait_leaf(const tensor_memory &m, int slot, int phase) {
    wait_phase(m.arrived + 8 * (uint32_t)slot, (uint32_t)phase);
}

#else

__device__ static inline void copy_part(const attend_problem &a, const cached_pages &c,
                                        const block_place &t, uint32_t to, int width) {
    int pieces = width / VECTOR;
    for (int e = threadIdx.x; e < (t.end - t.first) * pieces; e += THREADS) {
        int j = t.first + e / pieces, piece = e % pieces * VECTOR;
        const bf16 *from =
            (const bf16 *)token_at(c, page_at(c, a.places, t.r, j), t.g, j % WEFT_PAGE_TOKENS);
        copy_piece(to + (uint32_t)((j - t.first) * width + piece) * 2, from + piece, true);
    }
}

__device__ static inline void ask_for_leaf(const attend_problem &a, const tensor_memory &m,
                                           int slot, const block_place &t) {
    uint32_t to = m.ring + (uint32_t)(slot * tensor_key_bytes(a));
    copy_part(a, a.keys, t, to, a.dqk);
    if (!a.joint) copy_part(a, a.values, t, to + (uint32_t)(a.leaf * a.dqk) * 2, a.dv);
    end_copies();
}

__device__ static inline void begin_leaves(const attend_problem &a, const tensor_memory &m,
                                           int part) {
    wait_for_primary();
    for (int i = 0; i < a.ring; i++)
        ask_for_leaf(a, m, i, place_leaf(a, part + i * a.splits));
}

__device__ static inline void wait_leaf(const tensor_memory &, int, int) {
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

static __global__ void __launch_bounds__(THREADS, 2)
    attend_block_tensor(const __grid_constant__ attend_problem a) {
    extern __shared__ __align__(16) char tensor_shared[];
    trigger_dependents();
    if (a.documents) wait_for_primary();
    block_place t = place_leaf(a, (int)blockIdx.z);
    if (t.first >= t.end) {
        wait_for_primary();
        join_absent(a, t);
        return;
    }
    tensor_memory m = cut_tensor_memory(a, tensor_shared);
    int pitch = a.dqk + TENSOR_SPARE;
    begin_leaves(a, m, t.part);
    const bf16 *q = (const bf16 *)a.q.data + t.r * a.q_columns + (int64_t)t.g * a.group * a.dqk;
    for (int e = threadIdx.x * VECTOR; e < tensor_heads(a) * a.dqk; e += THREADS * VECTOR) {
        int h = e / a.dqk, d = e % a.dqk;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < a.group) v = *(const uint4 *)(q + (int64_t)h * a.dqk + d);
        *(uint4 *)(m.q + h * pitch + d) = v;
    }
    int64_t step = (int64_t)a.blocks * (a.dv + 2);
    for (int i = 0; t.first < t.end; i++, t = place_leaf(a, t.part + a.splits)) {
        int slot = i % a.ring, count = t.end - t.first;
        float *partial = partial_of(a, t);
        m.keys = (bf16 *)(tensor_shared + slot * tensor_key_bytes(a));
        m.values = a.joint ? m.keys : m.keys + a.leaf * a.dqk;
        if (a.keys.number)
            for (int j = threadIdx.x; j < count; j += THREADS) {
                char *page = page_at(a.keys, a.places, t.r, t.first + j);
                m.n[j] = *number_at(a.keys, page, t.g, (t.first + j) % WEFT_PAGE_TOKENS);
            }
        if (i == 0) __syncthreads(); /* queries and barriers are there */
        wait_leaf(m, slot, i / a.ring);
        for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
            score_tile(a, m, tile, count);
        __syncthreads();
        weigh_keys(a, m.scores, a.leaf + TENSOR_SPARE, m.n, t, partial, step);
        __syncthreads();
        for (int tile = 0; tile * TENSOR_ROWS < a.group; tile++)
            sum_tile(a, m, tile, count, partial, step);
        ask_for_leaf(a, m, slot, place_leaf(a, t.part + a.ring * a.splits));
    }
    join_when_last(a, place_leaf(a, (int)blockIdx.z));
}

/* Keys of a leaf, by the widths and heads alone, and leaves in shared memory. */
static inline void choose_leaf(attend_problem *a) {
    a->leaf = BLOCK;
    while (a->leaf > TENSOR_LEAST && tensor_key_bytes(*a) > TENSOR_LEAF)
        a->leaf /= 2;
    if (tensor_key_bytes(*a) + tensor_rest_bytes(*a) > weft_cuda_device()->shared_memory)
        a->leaf = TENSOR_KEYS;
    int64_t ring = (TENSOR_ROOM - tensor_rest_bytes(*a)) / tensor_key_bytes(*a);
    a->ring = (int)max_i64(1, min_i64(TENSOR_RING, ring));
}

/* Whether it takes the problem: follows from types, sizes and options alone. */
static inline bool suits_tensor(const attend_problem &a, bool q_is_bf16) {
    return q_is_bf16 && a.keys.kind == CACHED_BF16 && a.values.kind == CACHED_BF16 &&
           !copies_keys(a) && !a.squares && !a.band && a.dqk % VECTOR == 0 && a.dv % VECTOR == 0 &&
           a.q_columns % VECTOR == 0 && tensor_bytes(a) <= weft_cuda_device()->shared_memory;
}

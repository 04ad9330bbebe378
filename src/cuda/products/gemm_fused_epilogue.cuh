/* A product as gemm_fused.cu's kernel gets it, and its epilogue: the finishing warps take a tile of
 * rounded sums from shared memory by pieces of eight columns, with what goes with it from memory, and
 * write what becomes of it. A thread keeps its columns over a tile, so that column sums are registers
 * until its end. */
#pragma once

#include "cuda/functions.cuh"
#include "cuda/products/gemm_fused.cuh"
#include "cuda/tensor/pipeline.cuh"

enum {
    TILE_ROWS = 256,
    TILE_COLUMNS = 128,
    DEPTH = 64, /* columns of a, and rows of op(b), in a stage */
    STAGES = 3,
    HALF_ROWS = TILE_ROWS / 2, /* a multiplying warpgroup's, and what a block of a pair asks for */
    HALF_COLUMNS = 64,         /* of b in a box */
    A_BYTES = TILE_ROWS * DEPTH * 2,
    B_BYTES = TILE_COLUMNS * DEPTH * 2,
    STAGE_BYTES = A_BYTES + B_BYTES,
    CONSUMERS = 256, /* threads, the first */
    FINISHERS = 256, /* the next */
    THREADS = CONSUMERS + FINISHERS + 128,
    AHEAD = 2, /* pieces that a finishing thread has under way */
    LEAST_ROWS = 256,
    LEAST_COLUMNS = 64,
    LEAST_DEPTH = 64,
    DESCRIBED = 0x3ffff /* what a descriptor has of an address: above is the block of the cluster */
};

/* Where things are in shared memory. */
enum {
    AT_STAGES = 0,
    AT_TILE = AT_STAGES + STAGES * STAGE_BYTES,
    AT_BIAS = AT_TILE + TILE_ROWS * TILE_COLUMNS * 2, /* [2 halves][2 phases][128] */
    AT_PARTS = AT_BIAS + 4 * TILE_COLUMNS * 4,        /* [16][128] */
    AT_FULL = AT_PARTS + FINISHERS * VECTOR * 4,
    AT_EMPTY = AT_FULL + 8 * STAGES,
    AT_MADE = AT_EMPTY + 8 * STAGES,
    AT_TAKEN = AT_MADE + 8 * 2,
    MEMORY = AT_TAKEN + 8 * 2 + 1024 /* the start is rounded up */
};

/* A product as the kernel gets it. */
struct tile_problem {
    CUtensorMap a[FUSED_SEGMENTS], b[FUSED_SEGMENTS], b2;
    int blocks[FUSED_SEGMENTS];  /* of DEPTH */
    float ratio[FUSED_SEGMENTS]; /* of a segment's factor to the next one's */
    float factor;                /* the last one's */
    int segments, cluster;
    int m, n, tiles, groups; /* tiles of a pair or block, and of those, in a row */
    int64_t ld;
    fused_epilogue epilogue;
    any_tensor bias;
    const bf16 *in[2]; /* read beside c: addend, or at, or gate and up */
    bf16 *out[3];      /* y, and pre, dup, or gate and up */
    float *sums;
};

#ifndef USE_MMA_SYNC

/* At the same barrier of another block of the cluster. Nothing was written that it would have to see,
 * so that the arrival needs no wider order than its own block's, which would cost a fence. */
__device__ static inline void arrive_at_block(uint32_t at, uint32_t block) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(at),
                 "r"(block)
                 : "memory");
}

/* So many threads, all that use the name; names from 1 on. */
__device__ static inline void sync_threads(int name, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(count) : "memory");
}

__device__ static inline uint32_t block_in_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all its blocks. */
__device__ static inline void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* A box to both blocks of a pair, and to the same barrier of each. */
__device__ static inline void tma_multicast_2d(uint32_t to, const CUtensorMap *from, int x, int y,
                                               uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

__device__ static inline uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

template <int REGISTERS> __device__ static inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ static inline void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* A tile's first row and column. */
struct tile_corner {
    int row, column;
};

__device__ static inline tile_corner find_tile(const tile_problem &p, int tile) {
    int group = tile % p.groups, width = p.epilogue == FUSED_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS;
    return {tile / p.groups * TILE_ROWS, (group * p.cluster + (int)block_in_cluster()) * width};
}

/* What a finishing thread reads beside the tile: AHEAD pieces, `step` apart, of which those of the first
 * `count` rows are inside. */
struct some_pieces {
    uint4 words[AHEAD];

    __device__ void load(const bf16 *from, int64_t step, int rows, int count) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            words[i] = make_uint4(0, 0, 0, 0);
            if (i * rows < count) words[i] = *(const uint4 *)(from + i * step);
        }
    }
};

__device__ static inline uint4 narrow_words(const float (&v)[VECTOR]) {
    return make_uint4(join_halves(v[0], v[1]), join_halves(v[2], v[3]), join_halves(v[4], v[5]),
                      join_halves(v[6], v[7]));
}

__device__ static inline void write_words(bf16 *to, uint4 w) {
    store_words(to, w.x, w.y, w.z, w.w);
}

__device__ static inline uint4 add_words(uint4 a, uint4 b) {
    float v[VECTOR], x[VECTOR];
    widen_words(a, v);
    widen_words(b, x);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] += x[i];
    return narrow_words(v);
}

/* One piece: c, or gate and up, and what was read beside it; `at` is its place in all outputs. What
 * is not inside is worked on all the same, so that the pieces' arithmetic overlaps. */
template <int EPILOGUE>
__device__ static inline void finish_piece(const tile_problem &p, uint4 c, uint4 other, uint4 in0,
                                           uint4 in1, int64_t at, bool inside,
                                           float (&sum)[VECTOR]) {
    float v[VECTOR], x[VECTOR], y[VECTOR], z[VECTOR];
    widen_words(c, v);
    if (EPILOGUE == FUSED_PLAIN && p.sums && inside)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += v[i];
    if (EPILOGUE == FUSED_GELU_BACK) widen_words(in0, x);
    if (EPILOGUE == FUSED_SILU_MUL) widen_words(other, x);
    if (EPILOGUE == FUSED_SILU_MUL_BACK) widen_words(in0, x), widen_words(in1, y);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (EPILOGUE == FUSED_GELU) v[i] = gelu_value(v[i]);
        if (EPILOGUE == FUSED_GELU_BACK) v[i] *= gelu_slope(x[i]);
        if (EPILOGUE == FUSED_SILU_MUL) v[i] *= x[i] * sigmoid(v[i]);
        if (EPILOGUE == FUSED_SILU_MUL_BACK) {
            float s = sigmoid(x[i]);
            z[i] = v[i] * x[i] * s;
            v[i] *= y[i] * (s * (1 + x[i] * (1 - s)));
        }
        if (inside && EPILOGUE == FUSED_GELU_BACK) sum[i] += v[i];
    }
    if (!inside) return;
    if (EPILOGUE == FUSED_PLAIN)
        write_words(p.out[0] + at, c);
    else
        store_vector(p.out[0] + at, v);
    if ((EPILOGUE == FUSED_GELU || EPILOGUE == FUSED_SILU_MUL) && p.out[1])
        write_words(p.out[1] + at, c);
    if (EPILOGUE == FUSED_SILU_MUL && p.out[2]) write_words(p.out[2] + at, other);
    if (EPILOGUE == FUSED_SILU_MUL_BACK) store_vector(p.out[1] + at, z);
}

/* The sums of a thread's columns over its rows to those over the tile: the rows' parts in order. */
__device__ static inline void add_parts(const tile_problem &p, tile_corner tile, float *parts,
                                        const float (&sum)[VECTOR]) {
    int thread = (int)threadIdx.x - CONSUMERS;
    sync_threads(3, FINISHERS);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        parts[thread * VECTOR + i] = sum[i];
    sync_threads(3, FINISHERS);
    if (thread >= TILE_COLUMNS || tile.column + thread >= p.n) return;
    float total = 0;
#pragma unroll
    for (int r = 0; r < FINISHERS * VECTOR / TILE_COLUMNS; r++)
        total += parts[r * TILE_COLUMNS + thread];
    p.sums[(int64_t)(tile.row / TILE_ROWS) * p.n + tile.column + thread] = total;
}

/* A tile's work: a thread has the same eight columns of all its rows. WHOLE: all of it is inside. */
template <int EPILOGUE, bool WHOLE>
__device__ static inline void finish_tile(const tile_problem &p, tile_corner tile, uint32_t memory,
                                          float *parts, uint32_t phase) {
    constexpr bool PAIR = EPILOGUE == FUSED_SILU_MUL;
    constexpr int PIECES = PAIR ? 8 : 16, ROWS = FINISHERS / PIECES, BATCH = AHEAD * ROWS;
    constexpr int INPUTS = PAIR ? 0 : EPILOGUE == FUSED_SILU_MUL_BACK ? 2 : 1;
    int thread = (int)threadIdx.x - CONSUMERS, piece = thread % PIECES, own = thread / PIECES;
    int column = tile.column + piece * VECTOR;
    int count = WHOLE ? TILE_ROWS : (column < p.n ? p.m - tile.row - own : 0);
    int64_t step = (int64_t)ROWS * p.ld, at = (int64_t)(tile.row + own) * p.ld + column;
    uint32_t from = memory + AT_TILE + tile_place<TILE_ROWS, TILE_COLUMNS>(own, piece);
    some_pieces in0 = {}, in1 = {}, next0 = {}, next1 = {};
    float sum[VECTOR] = {};
    auto load = [&](int first) {
        if (INPUTS > 0 && p.in[0]) next0.load(p.in[0] + at, step, ROWS, count - first);
        if (INPUTS > 1) next1.load(p.in[1] + at, step, ROWS, count - first);
    };
    load(0);
#pragma unroll 1
    for (int first = 0; first < TILE_ROWS; first += BATCH) {
        uint32_t half = (uint32_t)(first / HALF_ROWS);
        int64_t to = at;
        in0 = next0;
        in1 = next1;
        if (first % HALF_ROWS == 0) wait_phase(memory + AT_MADE + 8 * half, phase);
        at += AHEAD * step;
        if (first + BATCH < TILE_ROWS) load(first + BATCH);
        uint4 c[AHEAD], other[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            c[i] = load_shared(from + (uint32_t)((first + i * ROWS) * 128));
            if (PAIR)
                other[i] = load_shared(from + (uint32_t)((TILE_ROWS + first + i * ROWS) * 128));
        }
        if ((first + BATCH) % HALF_ROWS == 0) {
            __syncwarp();
            if (thread % 32 == 0) arrive(memory + AT_TAKEN + 8 * half);
        }
        if (EPILOGUE <= FUSED_GELU && p.in[0])
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                c[i] = add_words(c[i], in0.words[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            finish_piece<EPILOGUE>(p, c[i], PAIR ? other[i] : c[i], in0.words[i], in1.words[i],
                                   to + i * step, WHOLE || first + i * ROWS < count, sum);
    }
    if (EPILOGUE == FUSED_PLAIN || EPILOGUE == FUSED_GELU_BACK)
        if (p.sums) add_parts(p, tile, parts, sum);
}

template <int EPILOGUE>
__device__ static inline void finish_some(const tile_problem &p, tile_corner tile, uint32_t memory,
                                          float *parts, uint32_t phase) {
    int width = EPILOGUE == FUSED_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS;
    if (tile.row + TILE_ROWS <= p.m && tile.column + width <= p.n)
        finish_tile<EPILOGUE, true>(p, tile, memory, parts, phase);
    else
        finish_tile<EPILOGUE, false>(p, tile, memory, parts, phase);
}

__device__ static inline void finish_all(const tile_problem &p, char *start, uint32_t memory,
                                         int first, int step) {
    float *parts = (float *)(start + AT_PARTS);
    uint32_t phase = 0;
    for (int t = first; t < p.tiles; t += step, phase++) {
        tile_corner tile = find_tile(p, t);
        switch (p.epilogue) {
        case FUSED_PLAIN:
            finish_some<FUSED_PLAIN>(p, tile, memory, parts, phase);
            break;
        case FUSED_GELU:
            finish_some<FUSED_GELU>(p, tile, memory, parts, phase);
            break;
        case FUSED_GELU_BACK:
            finish_some<FUSED_GELU_BACK>(p, tile, memory, parts, phase);
            break;
        case FUSED_SILU_MUL:
            finish_some<FUSED_SILU_MUL>(p, tile, memory, parts, phase);
            break;
        case FUSED_SILU_MUL_BACK:
            finish_some<FUSED_SILU_MUL_BACK>(p, tile, memory, parts, phase);
            break;
        }
    }
}

#endif

/* Products with work behind them, on Hopper's tensor cores (gemm_tiles.cuh).
 *
 * There is a block a multiprocessor, and each takes tiles of 256 × 128 in turn. Its warps have a role
 * each:
 *
 *   multiply   two warpgroups, 128 rows each: sums in registers. When a tile is done they add the
 *              bias, round, and leave it in shared memory.
 *   work       two warpgroups take the tile from there, 16 bytes a thread, as a kernel of elements
 *              would. They have as long as the next tile's products take.
 *   ask        one thread asks the bulk engine for 64 columns of a and of b at a time, into a ring of
 *              STAGES. It runs ahead of the products, into the next tile too.
 *
 * Barriers: `full` and `empty` for a stage, `made` and `taken` for each half of the tile that was left.
 *
 * Two blocks can be a pair: they make neighbouring tiles of the same rows, each asks for half of a's
 * and the engine brings it to both. A stage is empty when both blocks' warpgroups have read it.
 *
 * Tiles go by rows first, so that the blocks share what they read of a, and all of b, in the cache.
 * Nothing here depends on timing: every sum's order follows from the shape. */
#include "cuda/gemm_tiles.cuh"
#include "cuda/gemm_tiles_device.cuh"

#include <string.h>

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
    MULTIPLIERS = 256, /* threads, the first */
    WORKERS = 256,     /* the next */
    THREADS = MULTIPLIERS + WORKERS + 128,
    AHEAD = 2, /* pieces that a working thread has under way */
    LEAST_ROWS = 256,
    LEAST_COLUMNS = 64,
    LEAST_DEPTH = 64,
    DESCRIBED = 0x3ffff /* what a descriptor has of an address: above is the block of the cluster */
};

/* Where things are in shared memory. */
enum {
    AT_STAGES = 0,
    AT_TILE = AT_STAGES + STAGES * STAGE_BYTES,
    AT_BIAS = AT_TILE + TILE_ROWS * TILE_COLUMNS * 2, /* [2 halves][2 turns][128] */
    AT_PARTS = AT_BIAS + 4 * TILE_COLUMNS * 4,        /* [16][128] */
    AT_FULL = AT_PARTS + WORKERS * VECTOR * 4,
    AT_EMPTY = AT_FULL + 8 * STAGES,
    AT_MADE = AT_EMPTY + 8 * STAGES,
    AT_TAKEN = AT_MADE + 8 * 2,
    MEMORY = AT_TAKEN + 8 * 2 + 1024 /* the start is rounded up */
};

/* A product as the kernel gets it. */
struct tile_problem {
    CUtensorMap a[TILES_SEGMENTS], b[TILES_SEGMENTS], b2;
    int blocks[TILES_SEGMENTS];  /* of DEPTH */
    float ratio[TILES_SEGMENTS]; /* of a segment's factor to the next one's */
    float factor;                /* the last one's */
    int segments, cluster;
    int m, n, tiles, groups; /* tiles of a pair or block, and of those, in a row */
    int64_t ld;
    tiles_after after;
    any_tensor bias;
    const bf16 *in[2]; /* read beside c: addend, or at, or gate and up */
    bf16 *out[3];      /* y, and pre, dup, or gate and up */
    float *sums;
};

#ifndef TENSOR_BY_WARPS
#define LAUNCH_THREADS THREADS

/* A stage of the ring, and how often it was used before. */
struct ring_place {
    uint32_t stage, turn;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn++;
    }
};

/* A tile's place. */
struct tile_place_in {
    int row, column;
};

__device__ static inline tile_place_in find_tile(const tile_problem &p, int tile) {
    int group = tile % p.groups, width = p.after == TILES_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS;
    return {tile / p.groups * TILE_ROWS, (group * p.cluster + (int)block_in_cluster()) * width};
}

/* b's halves are the 64 columns after the first, or those of b2. */
template <bool TB>
__device__ static inline void ask_for_stage(const tile_problem &p, int s, int depth,
                                            tile_place_in tile, uint32_t to, uint32_t full) {
    int rank = (int)block_in_cluster();
    arrive_with_bytes(full, STAGE_BYTES);
    if (p.cluster == 2) {
        ask_box_for_both(to + (uint32_t)rank * (A_BYTES / 2), &p.a[s], depth,
                         tile.row + rank * HALF_ROWS, full);
    } else {
        ask_box(to, &p.a[s], depth, tile.row, full);
        ask_box(to + A_BYTES / 2, &p.a[s], depth, tile.row + HALF_ROWS, full);
    }
    to += A_BYTES;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool other = h == 1 && p.after == TILES_SILU_MUL;
        int column = tile.column + (other ? 0 : h * HALF_COLUMNS);
        ask_box(to + (uint32_t)h * (B_BYTES / 2), other ? &p.b2 : &p.b[s], TB ? depth : column,
                TB ? column : depth, full);
    }
}

template <bool TB>
__device__ static inline void ask_for_all(const tile_problem &p, uint32_t memory, int first,
                                          int step) {
    ring_place at = {0, 0};
    for (int t = first; t < p.tiles; t += step) {
        tile_place_in tile = find_tile(p, t);
        for (int s = 0; s < p.segments; s++)
            for (int k = 0; k < p.blocks[s]; k++) {
                wait_turn(memory + AT_EMPTY + 8 * at.stage, at.turn + 1);
                ask_for_stage<TB>(p, s, k * DEPTH, tile,
                                  memory + AT_STAGES + at.stage * STAGE_BYTES,
                                  memory + AT_FULL + 8 * at.stage);
                at.advance();
            }
    }
}

/* A warp is done with a stage. */
__device__ static inline void leave_stage(const tile_problem &p, uint32_t empty) {
    if (threadIdx.x % 32 != 0) return;
    arrive(empty);
    if (p.cluster == 2) arrive_at_block(empty, block_in_cluster() ^ 1);
}

/* Starts a stage's products: 128 rows of a by b. */
template <bool TB>
__device__ static inline void multiply_stage(float (&c)[2][16][4], uint32_t a, uint32_t b,
                                             int add) {
    uint64_t left = describe_tile<TILE_ROWS, DEPTH>(a);
    uint64_t right =
        TB ? describe_tile<TILE_COLUMNS, DEPTH>(b) : describe_tile<DEPTH, TILE_COLUMNS>(b);
    begin_products();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        uint64_t b_at =
            move_on(right, TB ? column_step<TILE_COLUMNS, DEPTH>(k) : row_step<TILE_COLUMNS>(k));
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_product<!TB>(c[h], move_on(left, (uint32_t)(h * 64 * DEPTH * 2 + k * 32)), b_at,
                             k > 0 ? 1 : add);
    }
    end_products();
}

/* A tile's sums. Returns with the last stage's products still running; `at` is one further. */
template <bool TB>
__device__ static inline void multiply_tile(const tile_problem &p, float (&c)[2][16][4],
                                            uint32_t memory, int half, ring_place &at) {
    int add = 0;
    uint32_t before = 0;
    for (int s = 0; s < p.segments; s++) {
        for (int k = 0; k < p.blocks[s]; k++) {
            uint32_t stage = memory + AT_STAGES + at.stage * STAGE_BYTES;
            wait_turn(memory + AT_FULL + 8 * at.stage, at.turn);
            stage &= DESCRIBED;
            multiply_stage<TB>(c, stage + (uint32_t)half * (A_BYTES / 2), stage + A_BYTES, add);
            if (add) {
                wait_products<1>();
                leave_stage(p, before);
            }
            add = 1;
            before = memory + AT_EMPTY + 8 * at.stage;
            at.advance();
        }
        if (s + 1 < p.segments && p.ratio[s] != 1.0f) {
            wait_products<0>();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                settle(c[h]);
#pragma unroll
                for (int i = 0; i < 64; i++)
                    c[h][i / 4][i % 4] *= p.ratio[s];
            }
        }
    }
}

/* Rounds 128 rows, with factor and bias (EXTRA) or as they are, and leaves them in the tile. */
template <bool EXTRA>
__device__ static inline void leave_rows(const float (&c)[2][16][4], uint32_t tile, int half,
                                         float factor, const float *bias) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    tile += tile_place<TILE_ROWS, TILE_COLUMNS>(half * HALF_ROWS + warp * 16 + lane % 16, 0);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float2 b[2] = {};
        if (EXTRA) {
            b[0] = *(const float2 *)(bias + 16 * k + lane % 4 * 2);
            b[1] = *(const float2 *)(bias + 16 * k + 8 + lane % 4 * 2);
        }
        uint32_t piece = (uint32_t)(k / 4 * (TILE_ROWS * 128)),
                 to = (tile + piece) ^ (uint32_t)((2 * k % 8 + lane / 16) * 16);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = c[h][2 * k + e / 2][e % 2 * 2], y = c[h][2 * k + e / 2][e % 2 * 2 + 1];
                if (EXTRA) x = fmaf(x, factor, b[e / 2].x), y = fmaf(y, factor, b[e / 2].y);
                w[e] = pack_pair(x, y);
            }
            store_matrices(to + (uint32_t)(h * 64 * 128), w);
        }
    }
}

template <bool TB>
__device__ static inline void multiply_all(const tile_problem &p, char *start, uint32_t memory,
                                           int first, int step) {
    int half = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128;
    float *bias = (float *)(start + AT_BIAS) + half * 2 * TILE_COLUMNS;
    ring_place at = {0, 0};
    uint32_t turn = 0;
    for (int t = first; t < p.tiles; t += step, turn++) {
        float c[2][16][4];
        int column = find_tile(p, t).column + thread;
        float *added = bias + (turn & 1) * TILE_COLUMNS, value = 0;
        if (p.bias.data && column < p.n) value = load_any(p.bias, column);
        multiply_tile<TB>(p, c, memory, half, at);
        if (p.bias.data || p.factor != 1.0f) {
            added[thread] = value;
            sync_threads(1 + half, 128);
        }
        wait_turn(memory + AT_TAKEN + 8 * (uint32_t)half, turn + 1);
        wait_products<0>();
        settle(c[0]);
        settle(c[1]);
        leave_stage(p, memory + AT_EMPTY + 8 * (at.stage == 0 ? STAGES - 1 : at.stage - 1));
        if (p.bias.data || p.factor != 1.0f)
            leave_rows<true>(c, memory + AT_TILE, half, p.factor, added);
        else
            leave_rows<false>(c, memory + AT_TILE, half, 1, added);
        __syncwarp();
        if (thread % 32 == 0) arrive(memory + AT_MADE + 8 * (uint32_t)half);
    }
}

/* What a working thread reads beside the tile: AHEAD pieces, `step` apart, of which those of the first
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
template <int AFTER>
__device__ static inline void work_on_piece(const tile_problem &p, uint4 c, uint4 other, uint4 in0,
                                            uint4 in1, int64_t at, bool inside,
                                            float (&sum)[VECTOR]) {
    float v[VECTOR], x[VECTOR], y[VECTOR], z[VECTOR];
    widen_words(c, v);
    if (AFTER == TILES_PLAIN && p.sums && inside)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += v[i];
    if (AFTER == TILES_GELU_BACK) widen_words(in0, x);
    if (AFTER == TILES_SILU_MUL) widen_words(other, x);
    if (AFTER == TILES_SILU_MUL_BACK) widen_words(in0, x), widen_words(in1, y);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (AFTER == TILES_GELU) v[i] = quick_gelu(v[i]);
        if (AFTER == TILES_GELU_BACK) v[i] *= quick_gelu_slope(x[i]);
        if (AFTER == TILES_SILU_MUL) v[i] *= x[i] * sigmoid(v[i]);
        if (AFTER == TILES_SILU_MUL_BACK) {
            float s = sigmoid(x[i]);
            z[i] = v[i] * x[i] * s;
            v[i] *= y[i] * (s * (1 + x[i] * (1 - s)));
        }
        if (inside && AFTER == TILES_GELU_BACK) sum[i] += v[i];
    }
    if (!inside) return;
    if (AFTER == TILES_PLAIN)
        write_words(p.out[0] + at, c);
    else
        store_vector(p.out[0] + at, v);
    if ((AFTER == TILES_GELU || AFTER == TILES_SILU_MUL) && p.out[1]) write_words(p.out[1] + at, c);
    if (AFTER == TILES_SILU_MUL && p.out[2]) write_words(p.out[2] + at, other);
    if (AFTER == TILES_SILU_MUL_BACK) store_vector(p.out[1] + at, z);
}

/* The sums of a thread's columns over its rows to those over the tile: the rows' parts in order. */
__device__ static inline void add_parts(const tile_problem &p, tile_place_in tile, float *parts,
                                        const float (&sum)[VECTOR]) {
    int thread = (int)threadIdx.x - MULTIPLIERS;
    sync_threads(3, WORKERS);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        parts[thread * VECTOR + i] = sum[i];
    sync_threads(3, WORKERS);
    if (thread >= TILE_COLUMNS || tile.column + thread >= p.n) return;
    float total = 0;
#pragma unroll
    for (int r = 0; r < WORKERS * VECTOR / TILE_COLUMNS; r++)
        total += parts[r * TILE_COLUMNS + thread];
    p.sums[(int64_t)(tile.row / TILE_ROWS) * p.n + tile.column + thread] = total;
}

/* A tile's work: a thread has the same eight columns of all its rows. WHOLE: all of it is inside. */
template <int AFTER, bool WHOLE>
__device__ static inline void work_on_tile(const tile_problem &p, tile_place_in tile,
                                           uint32_t memory, float *parts, uint32_t turn) {
    constexpr bool PAIR = AFTER == TILES_SILU_MUL;
    constexpr int PIECES = PAIR ? 8 : 16, ROWS = WORKERS / PIECES, BATCH = AHEAD * ROWS;
    constexpr int INPUTS = PAIR ? 0 : AFTER == TILES_SILU_MUL_BACK ? 2 : 1;
    int thread = (int)threadIdx.x - MULTIPLIERS, piece = thread % PIECES, own = thread / PIECES;
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
        if (first % HALF_ROWS == 0) wait_turn(memory + AT_MADE + 8 * half, turn);
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
        if (AFTER <= TILES_GELU && p.in[0])
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                c[i] = add_words(c[i], in0.words[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            work_on_piece<AFTER>(p, c[i], PAIR ? other[i] : c[i], in0.words[i], in1.words[i],
                                 to + i * step, WHOLE || first + i * ROWS < count, sum);
    }
    if (AFTER == TILES_PLAIN || AFTER == TILES_GELU_BACK)
        if (p.sums) add_parts(p, tile, parts, sum);
}

template <int AFTER>
__device__ static inline void work_on_some(const tile_problem &p, tile_place_in tile,
                                           uint32_t memory, float *parts, uint32_t turn) {
    int width = AFTER == TILES_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS;
    if (tile.row + TILE_ROWS <= p.m && tile.column + width <= p.n)
        work_on_tile<AFTER, true>(p, tile, memory, parts, turn);
    else
        work_on_tile<AFTER, false>(p, tile, memory, parts, turn);
}

__device__ static inline void work_on_all(const tile_problem &p, char *start, uint32_t memory,
                                          int first, int step) {
    float *parts = (float *)(start + AT_PARTS);
    uint32_t turn = 0;
    for (int t = first; t < p.tiles; t += step, turn++) {
        tile_place_in tile = find_tile(p, t);
        switch (p.after) {
        case TILES_PLAIN:
            work_on_some<TILES_PLAIN>(p, tile, memory, parts, turn);
            break;
        case TILES_GELU:
            work_on_some<TILES_GELU>(p, tile, memory, parts, turn);
            break;
        case TILES_GELU_BACK:
            work_on_some<TILES_GELU_BACK>(p, tile, memory, parts, turn);
            break;
        case TILES_SILU_MUL:
            work_on_some<TILES_SILU_MUL>(p, tile, memory, parts, turn);
            break;
        case TILES_SILU_MUL_BACK:
            work_on_some<TILES_SILU_MUL_BACK>(p, tile, memory, parts, turn);
            break;
        }
    }
}

__device__ static inline void make_barriers(const tile_problem &p, uint32_t memory) {
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            make_barrier(memory + AT_FULL + 8 * i, 1);
            make_barrier(memory + AT_EMPTY + 8 * i, 8 * p.cluster);
        }
        for (uint32_t i = 0; i < 2; i++) {
            make_barrier(memory + AT_MADE + 8 * i, 4);
            make_barrier(memory + AT_TAKEN + 8 * i, WORKERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    sync_cluster();
}
#else
#define LAUNCH_THREADS 32
#endif

/* Registers: 2 · 160 + 2 · 64 + 24 a thread of each warpgroup; 480 are there, five times 96. */
template <bool TB>
static __global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    multiply_and_work(const __grid_constant__ tile_problem p) {
#ifndef TENSOR_BY_WARPS
    extern __shared__ char raw[];
    uint32_t raw_at = shared_address(raw), memory = (raw_at + 1023) / 1024 * 1024;
    char *start = raw + (memory - raw_at);
    int first = (int)blockIdx.x / p.cluster, step = (int)gridDim.x / p.cluster;
    make_barriers(p, memory);
    if (threadIdx.x < MULTIPLIERS) {
        take_registers<160>();
        multiply_all<TB>(p, start, memory, first, step);
    } else if (threadIdx.x < MULTIPLIERS + WORKERS) {
        leave_registers<64>();
        work_on_all(p, start, memory, first, step);
    } else {
        leave_registers<24>();
        if (threadIdx.x == MULTIPLIERS + WORKERS) ask_for_all<TB>(p, memory, first, step);
    }
    __syncwarp();
    sync_cluster();
#endif
}

typedef decltype(&cuTensorMapEncodeTiled) encode_function;

/* The driver's own, found through the runtime: nothing is linked with the driver. */
static encode_function find_encode() {
    static encode_function encode = [] {
        void *found = NULL;
        cudaDriverEntryPointQueryResult status;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &status);
        return (encode_function)found;
    }();
    return encode;
}

/* Multiprocessors, or 0 where the kernel cannot run. It is empty where the code is not compiled for
 * 9.0a, which shows in the threads it takes. */
static int find_multiprocessors() {
    static int count = [] {
        int device = 0, found = 0, major = 0;
        cudaFuncAttributes is = {};
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) !=
                cudaSuccess ||
            cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
            major != 9 || !find_encode() ||
            cudaFuncGetAttributes(&is, multiply_and_work<true>) != cudaSuccess ||
            is.maxThreadsPerBlock < THREADS ||
            cudaFuncSetAttribute(multiply_and_work<true>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 MEMORY) != cudaSuccess ||
            cudaFuncSetAttribute(multiply_and_work<false>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 MEMORY) != cudaSuccess) {
            cudaGetLastError();
            return 0;
        }
        return found;
    }();
    return count;
}

int64_t tiles_bands(int64_t m) {
    return ceil_div(m, TILE_ROWS);
}

bool tiles_can(const tiles_product *p) {
    bool fits = p->m >= LEAST_ROWS && p->m < INT32_MAX / 2 && p->n >= LEAST_COLUMNS &&
                p->n < INT32_MAX / 2 && p->n % 8 == 0 && p->ld % 8 == 0 && p->segments >= 1 &&
                p->segments <= TILES_SEGMENTS;
    int64_t depth = 0;
    for (int i = 0; fits && i < p->segments; i++) {
        const tiles_segment *s = &p->segment[i];
        fits = s->k >= 8 && s->k < INT32_MAX / 2 && s->k % 8 == 0 && s->lda % 8 == 0 &&
               s->ldb % 8 == 0 && s->tb == p->segment[0].tb;
        depth += s->k;
    }
    if (p->after == TILES_SILU_MUL) fits = fits && p->segments == 1 && !p->bias.data;
    if (p->after >= TILES_GELU_BACK) fits = fits && !p->addend;
    if (p->sums) fits = fits && (p->after == TILES_PLAIN || p->after == TILES_GELU_BACK);
    return COMPILED_FOR_HOPPER && fits && depth >= LEAST_DEPTH;
}

/* Boxes of so many columns, 64 or 32, and rows. */
static bool make_map(const bf16 *data, int64_t rows, int64_t columns, int64_t ld, int box_columns,
                     int box_rows, CUtensorMap *map) {
    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)ld * 2};
    cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    return find_encode()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, size, stride, box,
                         steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool make_b_map(const bf16 *data, const tiles_segment *s, int64_t n, CUtensorMap *map) {
    return s->tb ? make_map(data, n, s->k, s->ldb, DEPTH, HALF_COLUMNS, map)
                 : make_map(data, s->k, n, s->ldb, HALF_COLUMNS, DEPTH, map);
}

/* Segments whose factor is 0 are left out, but for the last one. */
static bool describe_segments(const tiles_product *p, tile_problem *k) {
    bool made = true;
    for (int i = 0; i < p->segments; i++) {
        const tiles_segment *s = &p->segment[i];
        if (s->factor == 0 && (k->segments > 0 || i + 1 < p->segments)) continue;
        int at = k->segments++;
        made = made && make_map(s->a, p->m, s->k, s->lda, DEPTH, HALF_ROWS, &k->a[at]) &&
               make_b_map(s->b, s, p->n, &k->b[at]);
        if (at > 0) k->ratio[at - 1] = k->factor / s->factor;
        k->blocks[at] = (int)ceil_div(s->k, DEPTH);
        k->factor = s->factor;
    }
    if (p->after == TILES_SILU_MUL) made = made && make_b_map(p->b2, &p->segment[0], p->n, &k->b2);
    return made;
}

static void describe_work(const tiles_product *p, tile_problem *k) {
    k->after = p->after;
    k->bias = p->bias;
    k->sums = p->sums;
    k->in[0] = p->addend;
    k->out[0] = p->y;
    switch (p->after) {
    case TILES_PLAIN:
        break;
    case TILES_GELU:
        k->out[1] = p->pre;
        break;
    case TILES_GELU_BACK:
        k->in[0] = p->at;
        break;
    case TILES_SILU_MUL:
        k->out[1] = p->gate;
        k->out[2] = p->up;
        break;
    case TILES_SILU_MUL_BACK:
        k->in[0] = p->gate_in;
        k->in[1] = p->up_in;
        k->out[1] = p->y2;
        break;
    }
}

static cudaError_t launch_kernel(cudaStream_t stream, const tile_problem &k, bool tb) {
    int pairs = (int)min_i64(find_multiprocessors() / k.cluster, k.tiles);
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)k.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    how.gridDim = dim3((unsigned)(pairs * k.cluster));
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = MEMORY;
    how.stream = stream;
    how.attrs = &cluster;
    how.numAttrs = 1;
    return tb ? cudaLaunchKernelEx(&how, multiply_and_work<true>, k)
              : cudaLaunchKernelEx(&how, multiply_and_work<false>, k);
}

weft_status tiles_launch(cudaStream_t stream, const tiles_product *p) {
    tile_problem k;
    memset((void *)&k, 0, sizeof k);
    k.m = (int)p->m;
    k.n = (int)p->n;
    k.ld = p->ld ? p->ld : p->n;
    int columns = (int)ceil_div(p->n, p->after == TILES_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS);
    k.cluster = 1;
    k.groups = (int)ceil_div(columns, k.cluster);
    k.tiles = (int)ceil_div(p->m, TILE_ROWS) * k.groups;
    describe_work(p, &k);
    if (!describe_segments(p, &k))
        return weft_fail(WEFT_EIO, "cuda: the driver made no map of a product's factors");
    cudaError_t error = launch_kernel(stream, k, p->segment[0].tb);
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: a product by tiles did not start: %s",
                     cudaGetErrorString(error));
}

weft_status tiles_run(const weft_exec *x, const tiles_product *p) {
    return tiles_launch(stream_of(x), p);
}

/* Products with a fused epilogue, on Hopper's tensor cores (gemm_fused.cuh).
 *
 * There is a block for each multiprocessor, and each takes tiles of 256 × 128 one by one. The kernel is
 * warp-specialized:
 *
 *   consumers   two warpgroups, 128 rows each, multiply by wgmma: sums in registers. When a tile is done
 *               they round it and leave it in shared memory.
 *   finishers   two warpgroups take the tile from there, 16 bytes per thread, as an elementwise kernel
 *               would, and do the epilogue. They have as long as the next tile's products take. A
 *               thread keeps its columns over a tile, so that column sums are registers until its end.
 *   producers   four threads ask TMA for 64 columns of a and of b at a time, into a ring of STAGES.
 *               They run ahead of the products, into the next tile too.
 *
 * Barriers: `full` and `empty` for a stage, `made` and `taken` for each half of the tile that was left.
 *
 * Two blocks are a cluster where there are two columns of tiles: they make neighbouring tiles of the same
 * rows, each asks for half of a's and TMA brings it to both (multicast). A stage is empty when both
 * blocks' warpgroups have read it. That saves a third of what comes from the L2: the GPU's power limits
 * it, so bytes that need not move are time.
 *
 * Tiles go by rows first, so that the blocks share what they read of a, and all of b, in the cache.
 * Nothing here depends on timing: every sum's order follows from the shape. */
#include "cuda/functions.cuh"
#include "cuda/products/gemm_fused.cuh"
#include "cuda/tensor/pipeline.cuh"
#include "cuda/tensor/tma_map.cuh"

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
    AT_PARTS = AT_TILE + TILE_ROWS * TILE_COLUMNS * 2, /* [16][128] */
    AT_FULL = AT_PARTS + FINISHERS * VECTOR * 4,
    AT_EMPTY = AT_FULL + 8 * STAGES,
    AT_MADE = AT_EMPTY + 8 * STAGES,
    AT_TAKEN = AT_MADE + 8 * 2,
    MEMORY = AT_TAKEN + 8 * 2 + 1024 /* the start is rounded up */
};

/* A product as the kernel gets it. */
struct tile_problem {
    CUtensorMap a[FUSED_SEGMENTS], b[FUSED_SEGMENTS]; /* SILU_MUL: b[1] is up's */
    int blocks[FUSED_SEGMENTS];                       /* of DEPTH */
    bool tb[FUSED_SEGMENTS];
    float ratio[FUSED_SEGMENTS]; /* of a segment's factor to the next one's, or to 1 */
    int segments, cluster;
    int m, n, tiles, groups; /* tiles of a pair or block, and of those, in a row */
    const bf16 *in;
    bf16 *out[3];
    float *sums;
};

#ifndef USE_MMA_SYNC
#define LAUNCH_THREADS THREADS

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

/* Columns of a tile of results: with SILU_MUL half of it is gate, half up. */
template <int EPILOGUE> __device__ constexpr int tile_width() {
    return EPILOGUE == FUSED_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS;
}

/* A tile's first row and column. */
struct tile_corner {
    int row, column;
};

template <int EPILOGUE>
__device__ static inline tile_corner find_tile(const tile_problem &p, int tile) {
    int group = tile % p.groups * p.cluster + (int)block_in_cluster();
    return {tile / p.groups * TILE_ROWS, group * tile_width<EPILOGUE>()};
}

/* One of the four producer threads: the first two for a's halves, the others for b's, which are the 64
 * columns after the first or those of up. Of a pair's blocks each asks for one of a's halves, for
 * both. Each thread has all it needs at hand, because whoever multiplies waits for the last of them. */
template <int EPILOGUE>
__device__ static inline void produce_all(const tile_problem &p, uint32_t memory, int first,
                                          int step) {
    constexpr bool TWO = EPILOGUE == FUSED_SILU_MUL;
    int part = (int)threadIdx.x / 32 % 4, half = part % 2;
    bool of_b = part >= 2, pair = p.cluster == 2;
    if (pair && part == 1) return;
    if (pair && !of_b) half = (int)block_in_cluster();
    uint32_t offset = of_b ? A_BYTES + half * (B_BYTES / 2) : half * (A_BYTES / 2);
    int bytes = of_b ? B_BYTES / 2 : pair ? A_BYTES : A_BYTES / 2;
    pipeline_state<STAGES> at = {0, 0};
    for (int t = first; t < p.tiles; t += step) {
        tile_corner tile = find_tile<EPILOGUE>(p, t);
        int column = tile.column + (TWO ? 0 : half * HALF_COLUMNS);
        for (int s = 0; s < p.segments; s++) {
            const CUtensorMap *map = !of_b ? &p.a[s] : &p.b[TWO ? half : s];
            bool down = of_b && !p.tb[s];
            int blocks = p.blocks[s], across = of_b ? column : tile.row + half * HALF_ROWS;
            for (int k = 0; k < blocks; k++) {
                uint32_t full = memory + AT_FULL + 8 * at.stage;
                uint32_t to = memory + AT_STAGES + at.stage * STAGE_BYTES + offset;
                int x = down ? across : k * DEPTH, y = down ? k * DEPTH : across;
                wait_phase(memory + AT_EMPTY + 8 * at.stage, at.phase + 1);
                arrive_expect_tx(full, bytes);
                if (pair && !of_b)
                    tma_multicast_2d(to, map, x, y, full);
                else
                    tma_load_2d(to, map, x, y, full);
                at.advance();
            }
        }
    }
}

/* A warp is done with a stage. */
__device__ static inline void release_stage(const tile_problem &p, uint32_t empty) {
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

/* A tile's sums. Returns with the last stage's products perhaps still running; `at` is one further. */
__device__ static inline void multiply_tile(const tile_problem &p, float (&c)[2][16][4],
                                            uint32_t memory, int half, pipeline_state<STAGES> &at) {
    int add = 0;
    uint32_t before = 0;
    for (int s = 0; s < p.segments; s++) {
        for (int k = 0; k < p.blocks[s]; k++) {
            uint32_t stage = memory + AT_STAGES + at.stage * STAGE_BYTES;
            wait_phase(memory + AT_FULL + 8 * at.stage, at.phase);
            stage &= DESCRIBED;
            uint32_t a = stage + (uint32_t)half * (A_BYTES / 2), b = stage + A_BYTES;
            if (p.tb[s])
                multiply_stage<true>(c, a, b, add);
            else
                multiply_stage<false>(c, a, b, add);
            if (add) {
                wait_products<1>();
                release_stage(p, before);
            }
            add = 1;
            before = memory + AT_EMPTY + 8 * at.stage;
            at.advance();
        }
        if (p.ratio[s] != 1.0f) {
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

/* Rounds 128 rows and leaves them in the tile. */
__device__ static inline void leave_rows(const float (&c)[2][16][4], uint32_t tile, int half) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    tile += tile_place<TILE_ROWS, TILE_COLUMNS>(half * HALF_ROWS + warp * 16 + lane % 16, 0);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        uint32_t piece = (uint32_t)(k / 4 * (TILE_ROWS * 128)),
                 to = (tile + piece) ^ (uint32_t)((2 * k % 8 + lane / 16) * 16);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[e] =
                    pack_pair(c[h][2 * k + e / 2][e % 2 * 2], c[h][2 * k + e / 2][e % 2 * 2 + 1]);
            store_matrices(to + (uint32_t)(h * 64 * 128), w);
        }
    }
}

__device__ static inline void consume_all(const tile_problem &p, uint32_t memory, int first,
                                          int step) {
    int half = (int)threadIdx.x / 128;
    pipeline_state<STAGES> at = {0, 0};
    uint32_t phase = 0;
    for (int t = first; t < p.tiles; t += step, phase++) {
        float c[2][16][4];
        multiply_tile(p, c, memory, half, at);
        wait_phase(memory + AT_TAKEN + 8 * (uint32_t)half, phase + 1);
        wait_products<0>();
        settle(c[0]);
        settle(c[1]);
        release_stage(p, memory + AT_EMPTY + 8 * (at.stage == 0 ? STAGES - 1 : at.stage - 1));
        leave_rows(c, memory + AT_TILE, half);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(memory + AT_MADE + 8 * (uint32_t)half);
    }
}

__device__ static inline void sync_finishers() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)FINISHERS) : "memory");
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

__device__ static inline void write_words(bf16 *to, uint4 w) {
    store_words(to, w.x, w.y, w.z, w.w);
}

/* One piece: c, and what was read beside it, or up beside gate; `at` is its place in all outputs. What
 * is not inside is worked on all the same, so that the pieces' arithmetic overlaps. */
template <int EPILOGUE>
__device__ static inline void finish_piece(const tile_problem &p, uint4 c, uint4 in, int64_t at,
                                           bool inside, float (&sum)[VECTOR]) {
    float v[VECTOR], x[VECTOR];
    widen_words(c, v);
    widen_words(in, x);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (EPILOGUE == FUSED_PLAIN) v[i] += x[i];
        if (EPILOGUE == FUSED_GELU_BACK) v[i] *= gelu_slope(x[i]);
        if (EPILOGUE == FUSED_SILU_MUL) v[i] *= x[i] * sigmoid(v[i]);
        if (inside && EPILOGUE == FUSED_GELU_BACK) sum[i] += v[i];
    }
    if (!inside) return;
    if (EPILOGUE == FUSED_PLAIN && !p.in)
        write_words(p.out[0] + at, c);
    else
        store_vector(p.out[0] + at, v);
    if (EPILOGUE == FUSED_SILU_MUL && p.out[1]) {
        write_words(p.out[1] + at, c);
        write_words(p.out[2] + at, in);
    }
}

/* The sums of a thread's columns over its rows to those over the tile: the rows' parts in order. */
__device__ static inline void add_parts(const tile_problem &p, tile_corner tile, float *parts,
                                        const float (&sum)[VECTOR]) {
    int thread = (int)threadIdx.x - CONSUMERS;
    sync_finishers();
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        parts[thread * VECTOR + i] = sum[i];
    sync_finishers();
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
    constexpr int PIECES = tile_width<EPILOGUE>() / VECTOR, ROWS = FINISHERS / PIECES;
    constexpr int BATCH = AHEAD * ROWS;
    int thread = (int)threadIdx.x - CONSUMERS, piece = thread % PIECES, own = thread / PIECES;
    int column = tile.column + piece * VECTOR;
    int count = WHOLE ? TILE_ROWS : (column < p.n ? p.m - tile.row - own : 0);
    int64_t step = (int64_t)ROWS * p.n, at = (int64_t)(tile.row + own) * p.n + column;
    uint32_t from = memory + AT_TILE + tile_place<TILE_ROWS, TILE_COLUMNS>(own, piece);
    some_pieces in = {}, next = {};
    float sum[VECTOR] = {};
    auto load = [&](int first) {
        if (!PAIR && p.in) next.load(p.in + at, step, ROWS, count - first);
    };
    load(0);
#pragma unroll 1
    for (int first = 0; first < TILE_ROWS; first += BATCH) {
        uint32_t half = (uint32_t)(first / HALF_ROWS);
        int64_t to = at;
        in = next;
        if (first % HALF_ROWS == 0) wait_phase(memory + AT_MADE + 8 * half, phase);
        at += AHEAD * step;
        if (first + BATCH < TILE_ROWS) load(first + BATCH);
        uint4 c[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            c[i] = load_shared(from + (uint32_t)((first + i * ROWS) * 128));
            if (PAIR)
                in.words[i] = load_shared(from + (uint32_t)((TILE_ROWS + first + i * ROWS) * 128));
        }
        if ((first + BATCH) % HALF_ROWS == 0) {
            __syncwarp();
            if (thread % 32 == 0) arrive(memory + AT_TAKEN + 8 * half);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            finish_piece<EPILOGUE>(p, c[i], in.words[i], to + i * step,
                                   WHOLE || first + i * ROWS < count, sum);
    }
    if (EPILOGUE == FUSED_GELU_BACK && p.sums) add_parts(p, tile, parts, sum);
}

#else
#define LAUNCH_THREADS 32
#endif

/* Registers: 2 · 160 + 2 · 64 + 32 a thread of each warpgroup are the 480 it is launched with. */
template <int EPILOGUE>
static __global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    fused_gemm(const __grid_constant__ tile_problem p) {
#ifndef USE_MMA_SYNC
    extern __shared__ char raw[];
    uint32_t raw_at = shared_address(raw), memory = (raw_at + 1023) / 1024 * 1024;
    float *parts = (float *)(raw + (memory - raw_at) + AT_PARTS);
    int first = (int)blockIdx.x / p.cluster, step = (int)gridDim.x / p.cluster;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            init_barrier(memory + AT_FULL + 8 * i, p.cluster == 2 ? 3 : 4);
            init_barrier(memory + AT_EMPTY + 8 * i, 8 * p.cluster);
        }
        for (uint32_t i = 0; i < 2; i++) {
            init_barrier(memory + AT_MADE + 8 * i, 4);
            init_barrier(memory + AT_TAKEN + 8 * i, FINISHERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    sync_cluster();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        consume_all(p, memory, first, step);
    } else if (threadIdx.x < CONSUMERS + FINISHERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        uint32_t phase = 0;
        for (int t = first; t < p.tiles; t += step, phase++) {
            tile_corner tile = find_tile<EPILOGUE>(p, t);
            if (tile.row + TILE_ROWS <= p.m && tile.column + tile_width<EPILOGUE>() <= p.n)
                finish_tile<EPILOGUE, true>(p, tile, memory, parts, phase);
            else
                finish_tile<EPILOGUE, false>(p, tile, memory, parts, phase);
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x % 32 == 0) produce_all<EPILOGUE>(p, memory, first, step);
    }
    __syncwarp();
    sync_cluster();
#endif
}

/* By epilogue. */
static void (*const kernels[])(const tile_problem) = {
    fused_gemm<FUSED_PLAIN>,
    fused_gemm<FUSED_GELU_BACK>,
    fused_gemm<FUSED_SILU_MUL>,
};

int64_t fused_bands(int64_t m) {
    return ceil_div(m, TILE_ROWS);
}

bool fused_can(const fused_product *p) {
    bool fits = p->m >= LEAST_ROWS && p->m < INT32_MAX / 2 && p->n >= LEAST_COLUMNS &&
                p->n < INT32_MAX / 2 && p->n % 8 == 0;
    int64_t depth = 0;
    for (int i = 0; i < p->segments; i++) {
        int64_t k = p->segment[i].k;
        fits = fits && k >= 8 && k < INT32_MAX / 2 && k % 8 == 0;
        depth += k;
    }
    return weft_cuda_device()->wgmma && fits && depth >= LEAST_DEPTH;
}

weft_status fused_launch(cudaStream_t stream, const fused_product *p) {
    tile_problem k = {};
    bool two = p->epilogue == FUSED_SILU_MUL, made = true;
    int columns = (int)ceil_div(p->n, two ? HALF_COLUMNS : TILE_COLUMNS);
    k.m = (int)p->m, k.n = (int)p->n;
    k.cluster = columns > 1 ? 2 : 1;
    k.groups = (int)ceil_div(columns, k.cluster);
    k.tiles = (int)ceil_div(p->m, TILE_ROWS) * k.groups;
    k.segments = two ? 1 : p->segments;
    k.in = p->in;
    memcpy(k.out, p->out, sizeof k.out);
    k.sums = p->sums;
    for (int i = 0; i < p->segments; i++) {
        const fused_segment *s = &p->segment[i];
        k.blocks[i] = (int)ceil_div(s->k, DEPTH);
        k.tb[i] = s->tb;
        k.ratio[i] = s->factor / (i + 1 < k.segments ? p->segment[i + 1].factor : 1);
        made = made && make_matrix_map(&k.a[i], s->a, p->m, s->k, s->k, HALF_ROWS, DEPTH) &&
               (s->tb ? make_matrix_map(&k.b[i], s->b, p->n, s->k, s->k, HALF_COLUMNS, DEPTH)
                      : make_matrix_map(&k.b[i], s->b, s->k, p->n, p->n, DEPTH, HALF_COLUMNS));
    }
    if (!made) return weft_fail(WEFT_EIO, "cuda: the driver made no map of a product's factors");
    int pairs = (int)min_i64(multiprocessors() / k.cluster, k.tiles);
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
    auto kernel = kernels[p->epilogue];
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY);
    if (error == cudaSuccess) error = cudaLaunchKernelEx(&how, kernel, k);
    return check_cuda(error == cudaSuccess ? cudaGetLastError() : error,
                      "a fused product did not start");
}

/* Products with a fused epilogue, on Hopper's tensor cores (gemm_fused.cuh).
 *
 * There is a block for each multiprocessor, and each takes tiles of 256 × 128 one by one. The kernel is
 * warp-specialized:
 *
 *   consumers   two warpgroups, 128 rows each, multiply by wgmma: sums in registers. When a tile is done
 *               they add the bias, round, and leave it in shared memory.
 *   finishers   two warpgroups take the tile from there, 16 bytes per thread, as an elementwise kernel
 *               would, and do the epilogue. They have as long as the next tile's products take.
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
#include "cuda/products/gemm_fused_epilogue.cuh"
#include "cuda/tensor/tma_map.cuh"

#include <string.h>

#ifndef USE_MMA_SYNC
#define LAUNCH_THREADS THREADS

/* One of the four producer threads: the first two for a's halves, the others for b's, which are the 64
 * columns after the first or those of b2. Of a pair's blocks each asks for one of a's halves, for
 * both. Each thread has all it needs at hand, because whoever multiplies waits for the last of them. */
template <bool TB>
__device__ static inline void produce_all(const tile_problem &p, uint32_t memory, int first,
                                          int step) {
    int part = (int)threadIdx.x / 32 % 4, half = part % 2;
    bool of_b = part >= 2, pair = p.cluster == 2, two = p.epilogue == FUSED_SILU_MUL;
    if (pair && part == 1) return;
    if (pair && !of_b) half = (int)block_in_cluster();
    uint32_t offset = of_b ? A_BYTES + half * (B_BYTES / 2) : half * (A_BYTES / 2);
    int bytes = of_b ? B_BYTES / 2 : pair ? A_BYTES : A_BYTES / 2;
    pipeline_state<STAGES> at = {0, 0};
    for (int t = first; t < p.tiles; t += step) {
        tile_corner tile = find_tile(p, t);
        int column = tile.column + (two ? 0 : half * HALF_COLUMNS);
        for (int s = 0; s < p.segments; s++) {
            const CUtensorMap *map = !of_b ? &p.a[s] : two && half ? &p.b2 : &p.b[s];
            int blocks = p.blocks[s], across = of_b ? column : tile.row + half * HALF_ROWS;
            for (int k = 0; k < blocks; k++) {
                uint32_t full = memory + AT_FULL + 8 * at.stage;
                uint32_t to = memory + AT_STAGES + at.stage * STAGE_BYTES + offset;
                int x = of_b && !TB ? across : k * DEPTH, y = of_b && !TB ? k * DEPTH : across;
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
            add_product<false, !TB>(c[h], move_on(left, (uint32_t)(h * 64 * DEPTH * 2 + k * 32)),
                                    b_at, k > 0 ? 1 : add);
    }
    end_products();
}

/* A tile's sums. Returns with the last stage's products still running; `at` is one further. */
template <bool TB>
__device__ static inline void multiply_tile(const tile_problem &p, float (&c)[2][16][4],
                                            uint32_t memory, int half, pipeline_state<STAGES> &at) {
    int add = 0;
    uint32_t before = 0;
    for (int s = 0; s < p.segments; s++) {
        for (int k = 0; k < p.blocks[s]; k++) {
            uint32_t stage = memory + AT_STAGES + at.stage * STAGE_BYTES;
            wait_phase(memory + AT_FULL + 8 * at.stage, at.phase);
            stage &= DESCRIBED;
            multiply_stage<TB>(c, stage + (uint32_t)half * (A_BYTES / 2), stage + A_BYTES, add);
            if (add) {
                wait_products<1>();
                release_stage(p, before);
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
__device__ static inline void consume_all(const tile_problem &p, char *start, uint32_t memory,
                                          int first, int step) {
    int half = (int)threadIdx.x / 128, thread = (int)threadIdx.x % 128;
    float *bias = (float *)(start + AT_BIAS) + half * 2 * TILE_COLUMNS;
    pipeline_state<STAGES> at = {0, 0};
    uint32_t phase = 0;
    for (int t = first; t < p.tiles; t += step, phase++) {
        float c[2][16][4];
        int column = find_tile(p, t).column + thread;
        float *added = bias + (phase & 1) * TILE_COLUMNS, value = 0;
        if (p.bias.data && column < p.n) value = load_any(p.bias, column);
        multiply_tile<TB>(p, c, memory, half, at);
        if (p.bias.data || p.factor != 1.0f) {
            added[thread] = value;
            sync_threads(1 + half, 128);
        }
        wait_phase(memory + AT_TAKEN + 8 * (uint32_t)half, phase + 1);
        wait_products<0>();
        settle(c[0]);
        settle(c[1]);
        release_stage(p, memory + AT_EMPTY + 8 * (at.stage == 0 ? STAGES - 1 : at.stage - 1));
        if (p.bias.data || p.factor != 1.0f)
            leave_rows<true>(c, memory + AT_TILE, half, p.factor, added);
        else
            leave_rows<false>(c, memory + AT_TILE, half, 1, added);
        __syncwarp();
        if (thread % 32 == 0) arrive(memory + AT_MADE + 8 * (uint32_t)half);
    }
}

__device__ static inline void make_barriers(const tile_problem &p, uint32_t memory) {
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
}
#else
#define LAUNCH_THREADS 32
#endif

/* Registers: 2 · 160 + 2 · 64 + 32 a thread of each warpgroup are the 480 it is launched with. */
template <bool TB>
static __global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    fused_gemm(const __grid_constant__ tile_problem p) {
#ifndef USE_MMA_SYNC
    extern __shared__ char raw[];
    uint32_t raw_at = shared_address(raw), memory = (raw_at + 1023) / 1024 * 1024;
    char *start = raw + (memory - raw_at);
    int first = (int)blockIdx.x / p.cluster, step = (int)gridDim.x / p.cluster;
    make_barriers(p, memory);
    if (threadIdx.x < CONSUMERS) {
        take_registers<160>();
        consume_all<TB>(p, start, memory, first, step);
    } else if (threadIdx.x < CONSUMERS + FINISHERS) {
        leave_registers<64>();
        finish_all(p, start, memory, first, step);
    } else {
        leave_registers<32>();
        if (threadIdx.x % 32 == 0) produce_all<TB>(p, memory, first, step);
    }
    __syncwarp();
    sync_cluster();
#endif
}

/* Allows both kernels their shared memory, once. */
static cudaError_t allow_memory() {
    static cudaError_t error = [] {
        cudaError_t first = cudaFuncSetAttribute(
            fused_gemm<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY);
        cudaError_t second = cudaFuncSetAttribute(
            fused_gemm<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY);
        return first == cudaSuccess ? second : first;
    }();
    return error;
}

int64_t fused_bands(int64_t m) {
    return ceil_div(m, TILE_ROWS);
}

bool fused_can(const fused_product *p) {
    bool fits = p->m >= LEAST_ROWS && p->m < INT32_MAX / 2 && p->n >= LEAST_COLUMNS &&
                p->n < INT32_MAX / 2 && p->n % 8 == 0 && p->ld % 8 == 0 && p->segments >= 1 &&
                p->segments <= FUSED_SEGMENTS;
    int64_t depth = 0;
    for (int i = 0; fits && i < p->segments; i++) {
        const fused_segment *s = &p->segment[i];
        fits = s->k >= 8 && s->k < INT32_MAX / 2 && s->k % 8 == 0 && s->lda % 8 == 0 &&
               s->ldb % 8 == 0 && s->tb == p->segment[0].tb;
        depth += s->k;
    }
    if (p->epilogue == FUSED_SILU_MUL) fits = fits && p->segments == 1 && !p->bias.data;
    if (p->epilogue >= FUSED_GELU_BACK) fits = fits && !p->addend;
    if (p->sums) fits = fits && (p->epilogue == FUSED_PLAIN || p->epilogue == FUSED_GELU_BACK);
    return weft_cuda_device()->wgmma && fits && depth >= LEAST_DEPTH;
}

static bool make_b_map(const bf16 *data, const fused_segment *s, int64_t n, CUtensorMap *map) {
    return s->tb ? make_matrix_map(map, data, n, s->k, s->ldb, HALF_COLUMNS, DEPTH)
                 : make_matrix_map(map, data, s->k, n, s->ldb, DEPTH, HALF_COLUMNS);
}

/* Segments whose factor is 0 are left out, but for the last one. */
static bool describe_segments(const fused_product *p, tile_problem *k) {
    bool made = true;
    for (int i = 0; i < p->segments; i++) {
        const fused_segment *s = &p->segment[i];
        if (s->factor == 0 && (k->segments > 0 || i + 1 < p->segments)) continue;
        int at = k->segments++;
        made = made && make_matrix_map(&k->a[at], s->a, p->m, s->k, s->lda, HALF_ROWS, DEPTH) &&
               make_b_map(s->b, s, p->n, &k->b[at]);
        if (at > 0) k->ratio[at - 1] = k->factor / s->factor;
        k->blocks[at] = (int)ceil_div(s->k, DEPTH);
        k->factor = s->factor;
    }
    if (p->epilogue == FUSED_SILU_MUL)
        made = made && make_b_map(p->b2, &p->segment[0], p->n, &k->b2);
    return made;
}

static void describe_work(const fused_product *p, tile_problem *k) {
    k->epilogue = p->epilogue;
    k->bias = p->bias;
    k->sums = p->sums;
    k->in[0] = p->addend;
    k->out[0] = p->y;
    switch (p->epilogue) {
    case FUSED_PLAIN:
        break;
    case FUSED_GELU:
        k->out[1] = p->pre;
        break;
    case FUSED_GELU_BACK:
        k->in[0] = p->at;
        break;
    case FUSED_SILU_MUL:
        k->out[1] = p->gate;
        k->out[2] = p->up;
        break;
    case FUSED_SILU_MUL_BACK:
        k->in[0] = p->gate_in;
        k->in[1] = p->up_in;
        k->out[1] = p->y2;
        break;
    }
}

static cudaError_t launch_kernel(cudaStream_t stream, const tile_problem &k, bool tb) {
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
    return tb ? cudaLaunchKernelEx(&how, fused_gemm<true>, k)
              : cudaLaunchKernelEx(&how, fused_gemm<false>, k);
}

weft_status fused_launch(cudaStream_t stream, const fused_product *p) {
    tile_problem k;
    memset((void *)&k, 0, sizeof k);
    k.m = (int)p->m;
    k.n = (int)p->n;
    k.ld = p->ld ? p->ld : p->n;
    int columns = (int)ceil_div(p->n, p->epilogue == FUSED_SILU_MUL ? HALF_COLUMNS : TILE_COLUMNS);
    k.cluster = columns > 1 ? 2 : 1;
    k.groups = (int)ceil_div(columns, k.cluster);
    k.tiles = (int)ceil_div(p->m, TILE_ROWS) * k.groups;
    describe_work(p, &k);
    if (!describe_segments(p, &k))
        return weft_fail(WEFT_EIO, "cuda: the driver made no map of a product's factors");
    cudaError_t error = allow_memory();
    if (error == cudaSuccess) error = launch_kernel(stream, k, p->segment[0].tb);
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: a fused product did not start: %s",
                     cudaGetErrorString(error));
}

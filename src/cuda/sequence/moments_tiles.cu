/* The Gram matrix xᵀ x of many rows and the sums over time of x, by tiles (moments_tiles.cuh).
 *
 * The matrix is symmetric, so only the squares of 256 × 256 on and above the diagonal are made. A block
 * has 128 columns of a square, for a share of the tokens: as many shares as there is room for blocks.
 * The producer, one thread, asks TMA for 64 tokens at a time, into a ring of STAGES; the consumers, two warpgroups,
 * multiply, 128 of the square's rows each. Both factors lie by columns in shared memory, and the
 * products read them so. On the diagonal the second factor is a part of the first, and is not asked
 * for.
 *
 * There one of the square's four warpgroups would make what another one makes too. It sums the
 * columns instead, a sequence at a time: the sums over time cost nothing.
 *
 * A second kernel adds the shares in order, and writes each number to both of its places.
 *
 * Floor: x once from memory; half of the products, and of the diagonal's squares the other half. */
#include "cuda/sequence/moments_tiles.cuh"
#include "cuda/tensor/pipeline.cuh"
#include "cuda/tensor/tma_map.cuh"

#include <string.h>

enum {
    SQUARE = 256,
    COLUMNS = 128, /* of a square, a block's */
    DEPTH = 64,    /* tokens of a stage */
    STAGES = 4,
    PANEL = 64, /* columns of a box */
    PANEL_BYTES = DEPTH * PANEL * 2,
    A_BYTES = SQUARE / PANEL * PANEL_BYTES,
    B_BYTES = COLUMNS / PANEL * PANEL_BYTES,
    STAGE_BYTES = A_BYTES + B_BYTES,
    THREADS = 384,
    PART = SQUARE * COLUMNS,
    ADD_TILE = 32, /* sides of what a block of the second kernel writes */
    ADD_THREADS = 256,
    ADD_TILES = PART / (ADD_TILE * ADD_TILE), /* of a block's part */
    LEAST_TOKENS = 16384,                     /* fewer, or fewer squares: the library is as fast */
    LEAST_SQUARES = 2,                        /* in a row */
    MOST_SQUARES = 8,
    AT_FULL = STAGES * STAGE_BYTES,
    AT_EMPTY = AT_FULL + 8 * STAGES,
    MEMORY = AT_EMPTY + 8 * STAGES + 1024 /* the start is rounded up */
};

struct moments_run {
    CUtensorMap x;
    int width, squares, pairs; /* squares in a row; those that are made */
    int steps, shares;         /* of DEPTH tokens; of steps */
    int batch, steps_of_sequence;
    float *parts; /* [shares, pairs, 2, SQUARE, COLUMNS] */
    float *sums;  /* [shares, batch, width] */
    bf16 *gram, *sum;
};

/* The square of a pair: its row and column among squares. */
struct square_place {
    int row, column;
};

__device__ static inline square_place find_square(int squares, int pair) {
    int row = 0;
    while (pair >= squares - row) {
        pair -= squares - row;
        row++;
    }
    return {row, row + pair};
}

__host__ __device__ static inline int share_start(int steps, int shares, int share) {
    return (int)((int64_t)steps * share / shares);
}

#ifndef USE_MMA_SYNC
#define LAUNCH_THREADS THREADS

/* A step's boxes, by one thread: the columns that stand for the square's rows, and the block's own. */
__device__ static inline void produce_stage(const moments_run &p, square_place at, int half,
                                            int step, uint32_t to, uint32_t full) {
    int row = step * DEPTH;
    bool diagonal = at.row == at.column;
    arrive_expect_tx(full, diagonal ? A_BYTES : STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < SQUARE / PANEL; i++)
        tma_load_2d(to + (uint32_t)(i * PANEL_BYTES), &p.x, at.row * SQUARE + i * PANEL, row, full);
    if (diagonal) return;
#pragma unroll
    for (int i = 0; i < COLUMNS / PANEL; i++)
        tma_load_2d(to + A_BYTES + (uint32_t)(i * PANEL_BYTES), &p.x,
                    at.column * SQUARE + half * COLUMNS + i * PANEL, row, full);
}

/* A warp is done with a stage. */
__device__ static inline void release_stage(uint32_t empty) {
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty) : "memory");
}

/* 128 rows of the square, `left` bytes into a stage, by the columns at `right`, over the share's
 * tokens; to rows of COLUMNS. */
__device__ static inline void multiply_share(uint32_t memory, uint32_t left, uint32_t right,
                                             int steps, float *part) {
    float c[2][16][4];
    pipeline_state<STAGES> ring = {0, 0};
    uint32_t before = 0;
    for (int step = 0; step < steps; step++) {
        uint32_t stage = memory + ring.stage * STAGE_BYTES;
        wait_phase(memory + AT_FULL + 8 * ring.stage, ring.phase);
        uint64_t a = describe_tile<DEPTH, SQUARE>(stage + left);
        uint64_t b = describe_tile<DEPTH, COLUMNS>(stage + right);
        begin_products();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                add_product<true, true>(
                    c[h], move_on(a, (uint32_t)(h * PANEL_BYTES) + row_step<SQUARE>(k)),
                    move_on(b, row_step<COLUMNS>(k)), step > 0 || k > 0);
        end_products();
        if (step > 0) {
            wait_products<1>();
            release_stage(before);
        }
        before = memory + AT_EMPTY + 8 * ring.stage;
        ring.advance();
    }
    wait_products<0>();
    settle(c[0]);
    settle(c[1]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *to = part + (i / 2 * 64 + warp * 16 + lane / 4 + i % 2 * 8) * COLUMNS + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 16; n++)
            *(float2 *)(to + 8 * n) =
                make_float2(c[i / 2][n][i % 2 * 2], c[i / 2][n][i % 2 * 2 + 1]);
    }
}

/* The sums of the square's 256 columns, two a thread; a sequence's go out when it ends. */
__device__ static inline void sum_share(const moments_run &p, square_place at, uint32_t memory,
                                        int share, int first, int end) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    pipeline_state<STAGES> ring = {0, 0};
    float low = 0, high = 0;
    float *to =
        p.sums + (int64_t)share * p.batch * p.width + at.row * SQUARE + warp * PANEL + 2 * lane;
    for (int step = first; step < end; step++) {
        wait_phase(memory + AT_FULL + 8 * ring.stage, ring.phase);
        uint32_t panel = memory + ring.stage * STAGE_BYTES + (uint32_t)(warp * PANEL_BYTES);
#pragma unroll 16
        for (int row = 0; row < DEPTH; row++) {
            uint32_t word;
            uint32_t place =
                panel + (uint32_t)(row * 128 + ((lane / 4) ^ (row & 7)) * 16 + lane % 4 * 4);
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(place) : "memory");
            low += __uint_as_float(word << 16);
            high += __uint_as_float(word & 0xffff0000u);
        }
        __syncwarp();
        release_stage(memory + AT_EMPTY + 8 * ring.stage);
        ring.advance();
        int sequence = step / p.steps_of_sequence;
        if (step + 1 < end && (step + 1) / p.steps_of_sequence == sequence) continue;
        *(float2 *)(to + (int64_t)sequence * p.width) = make_float2(low, high);
        low = high = 0;
    }
}
#else
#define LAUNCH_THREADS 32
#endif

static __global__ void __launch_bounds__(LAUNCH_THREADS, 1)
    multiply_shares(const __grid_constant__ moments_run p) {
#ifndef USE_MMA_SYNC
    extern __shared__ char raw[];
    uint32_t memory = (shared_address(raw) + 1023) / 1024 * 1024;
    int unit = (int)blockIdx.x / 2, half = (int)blockIdx.x % 2, share = unit / p.pairs;
    square_place at = find_square(p.squares, unit % p.pairs);
    bool diagonal = at.row == at.column;
    int first = share_start(p.steps, p.shares, share);
    int end = share_start(p.steps, p.shares, share + 1);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            init_barrier(memory + AT_FULL + 8 * i, 1);
            init_barrier(memory + AT_EMPTY + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int role = (int)threadIdx.x / 128;
    if (role == 0) {
        pipeline_state<STAGES> ring = {0, 0};
        for (int step = first; step < end && threadIdx.x == 0; step++, ring.advance()) {
            wait_phase(memory + AT_EMPTY + 8 * ring.stage, ring.phase + 1);
            produce_stage(p, at, half, step, memory + ring.stage * STAGE_BYTES,
                          memory + AT_FULL + 8 * ring.stage);
        }
    } else if (diagonal && half == 0 && role == 2) {
        sum_share(p, at, memory, share, first, end);
    } else {
        uint32_t left = (uint32_t)(role - 1) * B_BYTES;
        uint32_t right = diagonal ? (uint32_t)half * B_BYTES : (uint32_t)A_BYTES;
        float *part = p.parts + ((int64_t)blockIdx.x * SQUARE + (role - 1) * 128) * COLUMNS;
        multiply_share(memory, left, right, end - first, part);
    }
#endif
}

/* A thread a number: the sum over the shares that have some of the sequence. */
__device__ static inline void add_sums(const moments_run &p, int64_t i) {
    if (i >= (int64_t)p.batch * p.width) return;
    int begin = (int)(i / p.width) * p.steps_of_sequence, end = begin + p.steps_of_sequence;
    float sum = 0;
    for (int s = 0; s < p.shares; s++)
        if (share_start(p.steps, p.shares, s) < end &&
            share_start(p.steps, p.shares, s + 1) > begin)
            sum += p.sums[(int64_t)s * p.batch * p.width + i];
    p.sum[i] = from_float<bf16>(sum);
}

/* A tile of a block's part: the shares' sum, to its place and to the mirrored one. The blocks behind
 * them add the sums over time. */
static __global__ void __launch_bounds__(ADD_THREADS)
    add_shares(const __grid_constant__ moments_run p) {
    __shared__ float transposed[ADD_TILE][ADD_TILE + 1];
    constexpr int across = COLUMNS / ADD_TILE;
    int tile = (int)blockIdx.x % ADD_TILES, half = (int)blockIdx.x / ADD_TILES % 2;
    int pair = (int)blockIdx.x / ADD_TILES / 2;
    if (pair >= p.pairs) {
        add_sums(p, ((int64_t)blockIdx.x - (int64_t)p.pairs * 2 * ADD_TILES) * ADD_THREADS +
                        threadIdx.x);
        return;
    }
    square_place at = find_square(p.squares, pair);
    int row0 = tile / across * ADD_TILE, column0 = tile % across * ADD_TILE;
    if (at.row == at.column && half == 0 && row0 >= COLUMNS) return; /* its warpgroup sums */
    int y = (int)threadIdx.x / 8, x = (int)threadIdx.x % 8 * 4;
    const float *from =
        p.parts + ((int64_t)pair * 2 + half) * PART + (row0 + y) * COLUMNS + column0 + x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 11
    for (int s = 0; s < p.shares; s++) {
        float4 v = *(const float4 *)(from + (int64_t)s * p.pairs * 2 * PART);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    int64_t row = at.row * SQUARE + row0, column = at.column * SQUARE + half * COLUMNS + column0;
    store_words(p.gram + (row + y) * p.width + column + x, join_halves(sum.x, sum.y),
                join_halves(sum.z, sum.w));
    /* Squares of 128 on the diagonal are whole as they are. */
    if (row / COLUMNS == column / COLUMNS) return;
    transposed[x][y] = sum.x, transposed[x + 1][y] = sum.y;
    transposed[x + 2][y] = sum.z, transposed[x + 3][y] = sum.w;
    __syncthreads();
    store_words(p.gram + (column + y) * p.width + row + x,
                join_halves(transposed[y][x], transposed[y][x + 1]),
                join_halves(transposed[y][x + 2], transposed[y][x + 3]));
}

bool moments_fit(const moments_problem *p) {
    int64_t squares = p->width / SQUARE, tokens = p->batch * p->time;
    return weft_cuda_device()->wgmma && p->width % SQUARE == 0 && squares >= LEAST_SQUARES &&
           squares <= MOST_SQUARES && p->time % DEPTH == 0 && tokens >= LEAST_TOKENS &&
           tokens < INT32_MAX / 2;
}

/* Where things are in the workspace; the bytes of it. */
static int64_t place_run(const moments_problem *p, moments_run *r, char *workspace) {
    r->width = (int)p->width;
    r->squares = (int)(p->width / SQUARE);
    r->pairs = r->squares * (r->squares + 1) / 2;
    r->steps = (int)(p->batch * p->time / DEPTH);
    r->shares = (int)min_i64(r->steps, max_i64(1, multiprocessors() / 2 / r->pairs));
    r->batch = (int)p->batch;
    r->steps_of_sequence = (int)(p->time / DEPTH);
    r->gram = p->gram;
    r->sum = p->sum;
    int64_t parts = align_bytes((int64_t)r->shares * r->pairs * 2 * PART * (int64_t)sizeof(float));
    r->parts = (float *)workspace;
    r->sums = (float *)(workspace + parts);
    return parts + align_bytes((int64_t)r->shares * p->batch * p->width * (int64_t)sizeof(float));
}

int64_t moments_tiles_workspace(const moments_problem *p) {
    moments_run r;
    return place_run(p, &r, NULL);
}

weft_status moments_launch(cudaStream_t stream, const moments_problem *p, void *workspace) {
    moments_run r;
    memset((void *)&r, 0, sizeof r);
    place_run(p, &r, (char *)workspace);
    if (!make_matrix_map(&r.x, p->x, p->batch * p->time, p->width, p->width, DEPTH, PANEL))
        return weft_fail(WEFT_EIO, "cuda: the driver made no map of a tensor");
    int64_t tiles = (int64_t)r.pairs * 2 * ADD_TILES,
            sums = ceil_div(p->batch * p->width, ADD_THREADS);
    cudaFuncSetAttribute(multiply_shares, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY);
    multiply_shares<<<(unsigned)(2 * r.pairs * r.shares), THREADS, MEMORY, stream>>>(r);
    add_shares<<<(unsigned)(tiles + sums), ADD_THREADS, 0, stream>>>(r);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: a Gram matrix by tiles did not start: %s",
                     cudaGetErrorString(error));
}

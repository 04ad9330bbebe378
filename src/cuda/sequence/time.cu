/* Means over time on the GPU. A block has some columns of a sequence and cuts its tokens into
 * segments, a row of threads each. Sums from segment to segment are in double, so that the mean
 * over a long sequence loses nothing to the sum's size.
 *
 * The running mean adds up each segment, then each thread knows what came before its own and walks
 * it a second time, from the caches. Floor: the bytes of x and y, once.
 *
 * Moments are a product of the library beside a sum over time, or of many rows a kernel of their own
 * (below); back the sums' gradient is the product's bias, one for each sequence, which
 * are a batch. */
#include "cuda/pack.cuh"
#include "cuda/products/gemm.cuh"
#include "cuda/tensor/pipeline.cuh"
#include "cuda/tensor/tma_map.cuh"

#include <string.h>

extern "C" {
#include "ops/time.h"
}

enum {
    COLUMNS = 32, /* of a block of the running mean */
    SEGMENTS = 32,
    PACKS = 8,  /* of columns, that a block of the mean has */
    SLICES = 32 /* and its rows of threads */
};

/* x, y: [B, T, N]. */
struct time_args {
    int64_t time, width;
    any_tensor x, y;
};

/* Forward: the mean of tokens up to t. Backward: the sum from t on of dy_t/(t + 1). y may be x: a
 * thread reads an element again just before it writes it. */
static __global__ void scan_means(time_args k, bool back) {
    __shared__ double sums[SEGMENTS][COLUMNS];
    int64_t column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x;
    int64_t length = ceil_div(k.time, SEGMENTS), first = min_i64(threadIdx.y * length, k.time);
    int64_t end = min_i64(first + length, k.time);
    int64_t base = (int64_t)blockIdx.x * k.time * k.width + column;
    double sum = 0;
    if (column < k.width)
        for (int64_t t = first; t < end; t++) {
            double v = load_any(k.x, base + t * k.width);
            sum += back ? v / (double)(t + 1) : v;
        }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (column >= k.width) return;
    sum = 0;
    for (int s = 0; s < SEGMENTS; s++)
        if (back ? s > threadIdx.y : s < threadIdx.y) sum += sums[s][threadIdx.x];
    for (int64_t i = first; i < end; i++) {
        int64_t t = back ? end - 1 - (i - first) : i, at = base + t * k.width;
        double v = load_any(k.x, at), share = 1.0 / (double)(t + 1);
        sum += back ? v * share : v;
        store_any(k.y, at, (float)(back ? sum : sum * share));
    }
}

static weft_status run_scan(weft_exec *x, const weft_node *n, bool back) {
    const weft_tensor *in = n->in[0];
    time_args k = {in->shape[1], in->shape[2], any_of(x, in), any_of(x, n->out[0])};
    dim3 grid((unsigned)in->shape[0], (unsigned)ceil_div(k.width, COLUMNS));
    scan_means<<<grid, dim3(COLUMNS, SEGMENTS), 0, stream_of(x)>>>(k, back);
    return launched(n);
}

CUDA_KERNEL_CALLS(running_mean, run_scan(x, n, false))
CUDA_KERNEL_CALLS(running_mean_back, run_scan(x, n, true))

/* A thread's share of a pack of columns: every SLICES-th token. Whole packs are read several tokens
 * ahead. */
template <typename T>
__device__ static inline void sum_slice(const T *x, int64_t tokens, int64_t width, int n,
                                        float (&sum)[VECTOR]) {
    if (n == VECTOR && width % VECTOR == 0) {
#pragma unroll 8
        for (int64_t t = threadIdx.y; t < tokens; t += SLICES) {
            float v[VECTOR];
            load_vector(x + t * width, v);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                sum[j] += v[j];
        }
        return;
    }
    for (int64_t t = threadIdx.y; t < tokens; t += SLICES)
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            if (j < n) sum[j] += to_float(x[t * width + j]);
}

/* y [B, 1, N]: a block has PACKS packs of columns of a sequence; its slices are added in order. */
static __global__ void __launch_bounds__(PACKS *SLICES) sum_over_time(time_args k, double terms) {
    __shared__ float shared[SLICES][PACKS * VECTOR];
    int64_t first = (int64_t)blockIdx.y * PACKS * VECTOR, column = first + threadIdx.x * VECTOR;
    int64_t base = (int64_t)blockIdx.x * k.time * k.width + column;
    int n = pack_length(k.width, column);
    float sum[VECTOR] = {0};
    if (k.x.is_bf16)
        sum_slice((const bf16 *)k.x.data + base, k.time, k.width, n, sum);
    else
        sum_slice((const float *)k.x.data + base, k.time, k.width, n, sum);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        shared[threadIdx.y][threadIdx.x * VECTOR + j] = sum[j];
    __syncthreads();
    int at = threadIdx.y * PACKS + threadIdx.x;
    if (at >= PACKS * VECTOR || first + at >= k.width) return;
    double total = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++)
        total += shared[s][at];
    store_any(k.y, (int64_t)blockIdx.x * k.width + first + at, (float)(total / terms));
}

/* `terms`: what the sums are divided by. */
static void launch_sums(const weft_exec *x, const weft_tensor *in, const weft_tensor *out,
                        int64_t terms) {
    time_args k = {in->shape[1], in->shape[2], any_of(x, in), any_of(x, out)};
    dim3 grid((unsigned)in->shape[0], (unsigned)ceil_div(k.width, PACKS * VECTOR));
    sum_over_time<<<grid, dim3(PACKS, SLICES), 0, stream_of(x)>>>(k, (double)terms);
}

static weft_status time_mean_run(weft_exec *x, const weft_node *n) {
    launch_sums(x, n->in[0], n->out[0], n->in[0]->shape[1]);
    return launched(n);
}

CUDA_KERNEL(time_mean, time_mean_run)

/* dx [B, T, N] from dy [B, 1, N]: a thread per pack of dx. */
template <bool WHOLE>
static __global__ void spread_over_time(time_args k, int64_t rows, float share) {
    int64_t packs = ceil_div(k.width, VECTOR), row = quotient(thread_index(), packs);
    if (row >= rows) return;
    int64_t column = (thread_index() - row * packs) * VECTOR;
    int n = pack_length(k.width, column);
    float v[VECTOR];
    int64_t from = quotient(row, k.time) * k.width + column;
    widen_of<WHOLE>(fetch_of<WHOLE>(k.x, from, n), k.x, v);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        v[j] *= share;
    store_of<WHOLE>(k.y, row * k.width + column, n, v);
}

static weft_status time_mean_back_run(weft_exec *x, const weft_node *n) {
    const weft_tensor *out = n->out[0];
    time_args k = {out->shape[1], out->shape[2], any_of(x, n->in[0]), any_of(x, out)};
    int64_t rows = out->shape[0] * out->shape[1];
    unsigned blocks = pack_grid(rows * ceil_div(k.width, VECTOR));
    float share = (float)(1.0 / (double)k.time);
    with_flag(are_whole(k.width, k.x, k.y), [&](auto whole) {
        spread_over_time<decltype(whole)::value>
            <<<blocks, PACK_THREADS, 0, stream_of(x)>>>(k, rows, share);
    });
    return launched(n);
}

CUDA_KERNEL(time_mean_back, time_mean_back_run)

/* Moments by tiles, on Hopper's tensor cores: the Gram matrix xᵀ x of many rows and the sums over time of x in one pass.
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

/* x [batch, time, width] in bf16; gram [width, width] = xᵀ x, sum [batch, width], both bf16. */
typedef struct {
    int64_t batch, time, width;
    const bf16 *x;
    bf16 *gram, *sum;
} moments_problem;

enum {
    SQUARE = 256,
    HALF_COLUMNS = 128, /* of a square, a block's */
    DEPTH = 64,         /* tokens of a stage */
    STAGES = 4,
    PANEL = 64, /* columns of a box */
    PANEL_BYTES = DEPTH * PANEL * 2,
    A_BYTES = SQUARE / PANEL * PANEL_BYTES,
    B_BYTES = HALF_COLUMNS / PANEL * PANEL_BYTES,
    STAGE_BYTES = A_BYTES + B_BYTES,
    GRAM_THREADS = 384,
    PART = SQUARE * HALF_COLUMNS,
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

struct moments_work {
    CUtensorMap x;
    int width, squares, pairs; /* squares in a row; those that are made */
    int steps, shares;         /* of DEPTH tokens; of steps */
    int batch, steps_of_sequence;
    float *parts; /* [shares, pairs, 2, SQUARE, HALF_COLUMNS] */
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
#define LAUNCH_THREADS GRAM_THREADS

/* A step's boxes, by one thread: the columns that stand for the square's rows, and the block's own. */
__device__ static inline void produce_stage(const moments_work &p, square_place at, int half,
                                            int step, uint32_t to, uint32_t full) {
    int row = step * DEPTH;
    bool diagonal = at.row == at.column;
    arrive_expect_tx(full, diagonal ? A_BYTES : STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < SQUARE / PANEL; i++)
        tma_load_2d(to + (uint32_t)(i * PANEL_BYTES), &p.x, at.row * SQUARE + i * PANEL, row, full);
    if (diagonal) return;
#pragma unroll
    for (int i = 0; i < HALF_COLUMNS / PANEL; i++)
        tma_load_2d(to + A_BYTES + (uint32_t)(i * PANEL_BYTES), &p.x,
                    at.column * SQUARE + half * HALF_COLUMNS + i * PANEL, row, full);
}

/* A warp is done with a stage. */
__device__ static inline void release_stage(uint32_t empty) {
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty) : "memory");
}

/* 128 rows of the square, `left` bytes into a stage, by the columns at `right`, over the share's
 * tokens; to rows of HALF_COLUMNS. */
__device__ static inline void multiply_share(uint32_t memory, uint32_t left, uint32_t right,
                                             int steps, float *part) {
    float c[2][16][4];
    pipeline_state<STAGES> ring = {0, 0};
    uint32_t before = 0;
    for (int step = 0; step < steps; step++) {
        uint32_t stage = memory + ring.stage * STAGE_BYTES;
        wait_phase(memory + AT_FULL + 8 * ring.stage, ring.phase);
        uint64_t a = describe_tile<DEPTH, SQUARE>(stage + left);
        uint64_t b = describe_tile<DEPTH, HALF_COLUMNS>(stage + right);
        begin_products();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                add_product<true, true>(
                    c[h], move_on(a, (uint32_t)(h * PANEL_BYTES) + row_step<SQUARE>(k)),
                    move_on(b, row_step<HALF_COLUMNS>(k)), step > 0 || k > 0);
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
        float *to =
            part + (i / 2 * 64 + warp * 16 + lane / 4 + i % 2 * 8) * HALF_COLUMNS + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 16; n++)
            *(float2 *)(to + 8 * n) =
                make_float2(c[i / 2][n][i % 2 * 2], c[i / 2][n][i % 2 * 2 + 1]);
    }
}

/* The sums of the square's 256 columns, two a thread; a sequence's go out when it ends. */
__device__ static inline void sum_share(const moments_work &p, square_place at, uint32_t memory,
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
    multiply_shares(const __grid_constant__ moments_work p) {
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
        float *part = p.parts + ((int64_t)blockIdx.x * SQUARE + (role - 1) * 128) * HALF_COLUMNS;
        multiply_share(memory, left, right, end - first, part);
    }
#endif
}

/* A thread a number: the sum over the shares that have some of the sequence. */
__device__ static inline void add_sums(const moments_work &p, int64_t i) {
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
    add_shares(const __grid_constant__ moments_work p) {
    __shared__ float transposed[ADD_TILE][ADD_TILE + 1];
    constexpr int across = HALF_COLUMNS / ADD_TILE;
    int tile = (int)blockIdx.x % ADD_TILES, half = (int)blockIdx.x / ADD_TILES % 2;
    int pair = (int)blockIdx.x / ADD_TILES / 2;
    if (pair >= p.pairs) {
        add_sums(p, ((int64_t)blockIdx.x - (int64_t)p.pairs * 2 * ADD_TILES) * ADD_THREADS +
                        threadIdx.x);
        return;
    }
    square_place at = find_square(p.squares, pair);
    int row0 = tile / across * ADD_TILE, column0 = tile % across * ADD_TILE;
    if (at.row == at.column && half == 0 && row0 >= HALF_COLUMNS) return; /* its warpgroup sums */
    int y = (int)threadIdx.x / 8, x = (int)threadIdx.x % 8 * 4;
    const float *from =
        p.parts + ((int64_t)pair * 2 + half) * PART + (row0 + y) * HALF_COLUMNS + column0 + x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 11
    for (int s = 0; s < p.shares; s++) {
        float4 v = *(const float4 *)(from + (int64_t)s * p.pairs * 2 * PART);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    int64_t row = at.row * SQUARE + row0,
            column = at.column * SQUARE + half * HALF_COLUMNS + column0;
    store_words(p.gram + (row + y) * p.width + column + x, join_halves(sum.x, sum.y),
                join_halves(sum.z, sum.w));
    /* Squares of 128 on the diagonal are whole as they are. */
    if (row / HALF_COLUMNS == column / HALF_COLUMNS) return;
    transposed[x][y] = sum.x, transposed[x + 1][y] = sum.y;
    transposed[x + 2][y] = sum.z, transposed[x + 3][y] = sum.w;
    __syncthreads();
    store_words(p.gram + (column + y) * p.width + row + x,
                join_halves(transposed[y][x], transposed[y][x + 1]),
                join_halves(transposed[y][x + 2], transposed[y][x + 3]));
}

/* Whether the sizes suit it, and the device has the kernel. */
static bool moments_fit(const moments_problem *p) {
    int64_t squares = p->width / SQUARE, tokens = p->batch * p->time;
    return weft_cuda_device()->wgmma && p->width % SQUARE == 0 && squares >= LEAST_SQUARES &&
           squares <= MOST_SQUARES && p->time % DEPTH == 0 && tokens >= LEAST_TOKENS &&
           tokens < INT32_MAX / 2;
}

/* Where things are in the workspace; the bytes of it. */
static int64_t place_run(const moments_problem *p, moments_work *r, char *workspace) {
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

static int64_t moments_tiles_workspace(const moments_problem *p) {
    moments_work r;
    return place_run(p, &r, NULL);
}

static weft_status moments_launch(cudaStream_t stream, const moments_problem *p, void *workspace) {
    moments_work r;
    memset((void *)&r, 0, sizeof r);
    place_run(p, &r, (char *)workspace);
    if (!make_matrix_map(&r.x, p->x, p->batch * p->time, p->width, p->width, DEPTH, PANEL))
        return weft_fail(WEFT_EIO, "cuda: the driver made no map of a tensor");
    int64_t tiles = (int64_t)r.pairs * 2 * ADD_TILES,
            sums = ceil_div(p->batch * p->width, ADD_THREADS);
    cudaFuncSetAttribute(multiply_shares, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY);
    multiply_shares<<<(unsigned)(2 * r.pairs * r.shares), GRAM_THREADS, MEMORY, stream>>>(r);
    add_shares<<<(unsigned)(tiles + sums), ADD_THREADS, 0, stream>>>(r);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: a Gram matrix by tiles did not start: %s",
                     cudaGetErrorString(error));
}

static cuda_gemm_matrix as_rows(const weft_exec *x, const weft_tensor *t) {
    return cuda_gemm_matrix{x ? weft_data(x, t) : NULL, weft_tensor_width(t), 0,
                            t->dtype == WEFT_BF16};
}

/* xᵀ x; `x` NULL: without addresses, for sizes. */
static cuda_gemm describe_gram(const weft_exec *x, const weft_node *n) {
    cuda_gemm p = {};
    p.batch = 1, p.m = p.n = weft_tensor_width(n->in[0]), p.k = weft_tensor_rows(n->in[0]);
    p.ta = true;
    p.alpha = 1;
    p.a = p.b = as_rows(x, n->in[0]);
    p.c = as_rows(x, n->out[WEFT_MOMENTS_GRAM]);
    return p;
}

static moments_problem describe_moments(const weft_exec *x, const weft_node *n) {
    const weft_tensor *in = n->in[0];
    moments_problem p = {in->shape[0], in->shape[1], in->shape[2], NULL, NULL, NULL};
    if (!x) return p;
    p.x = data_of<bf16>(x, in);
    p.gram = data_of<bf16>(x, n->out[WEFT_MOMENTS_GRAM]);
    p.sum = data_of<bf16>(x, n->out[WEFT_MOMENTS_SUM]);
    return p;
}

static bool fits_tiles(const weft_node *n, const moments_problem *p) {
    return n->in[0]->dtype == WEFT_BF16 && moments_fit(p);
}

static weft_status moments_run(weft_exec *x, const weft_node *n) {
    moments_problem tiles = describe_moments(x, n);
    if (fits_tiles(n, &tiles)) return moments_launch(stream_of(x), &tiles, weft_workspace(x, n));
    cuda_gemm p = describe_gram(x, n);
    WEFT_TRY(gemm_launch(stream_of(x), &p, weft_workspace(x, n)));
    launch_sums(x, n->in[0], n->out[WEFT_MOMENTS_SUM], 1);
    return launched(n);
}

static int64_t moments_workspace(const weft_node *n, int) {
    cuda_gemm p = describe_gram(NULL, n);
    moments_problem tiles = describe_moments(NULL, n);
    int64_t bytes = fits_tiles(n, &tiles) ? moments_tiles_workspace(&tiles) : 0;
    return max_i64(bytes, gemm_workspace(&p));
}

CUDA_KERNEL(moments, moments_run, moments_workspace)

/* 2 x d_gram + d_sum, a product per sequence. */
static cuda_gemm describe_back(const weft_exec *x, const weft_node *n) {
    static char something;
    const weft_tensor *in = n->in[WEFT_MOMENTS_BACK_X], *d_sum = n->in[WEFT_MOMENTS_BACK_SUM];
    int64_t time = in->shape[1], width = in->shape[2];
    cuda_gemm p = {};
    p.batch = in->shape[0], p.m = time, p.n = p.k = width;
    p.alpha = 2;
    p.a = as_rows(x, in);
    p.b = as_rows(x, n->in[WEFT_MOMENTS_BACK_GRAM]);
    p.c = as_rows(x, n->out[0]);
    p.bias = as_rows(x, d_sum);
    p.a.stride = p.c.stride = time * width;
    p.bias.stride = width;
    if (!x) p.bias.data = &something;
    return p;
}

static weft_status moments_back_run(weft_exec *x, const weft_node *n) {
    cuda_gemm p = describe_back(x, n);
    return gemm_launch(stream_of(x), &p, weft_workspace(x, n));
}

static int64_t moments_back_workspace(const weft_node *n, int) {
    cuda_gemm p = describe_back(NULL, n);
    return gemm_workspace(&p);
}

CUDA_KERNEL(moments_back, moments_back_run, moments_back_workspace)

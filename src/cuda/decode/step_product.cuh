/* Products of a step (step_kernel.cuh): weights on their way, the rows that they are multiplied with, and
 * what becomes of the sums. */
#ifndef WEFT_CUDA_DECODE_STEP_PRODUCT_CUH
#define WEFT_CUDA_DECODE_STEP_PRODUCT_CUH

#include "cuda/decode/step_attend.cuh"

__device__ static inline int step_first_tile(const step_phase &f) {
    int first = (int)blockIdx.x - f.shift;
    return first < 0 ? first + (int)gridDim.x : first;
}

/* Pieces of a tile: in each the warps have a chunk. */
__device__ __host__ static inline int step_slots(int chunks) {
    return (chunks + STEP_WARPS - 1) / STEP_WARPS;
}

struct step_memory {
    unsigned short *input; /* beside it the sums: the two are attention's ring */
    float *sums;
    unsigned long long *best; /* [ROWS] */
    unsigned long long *full; /* [2]: barriers of the two stages of inputs */
    unsigned turns;           /* bit i: which turn of stage i is waited for */
    int *pages;               /* [ROWS]: that of the row's position */
    const float *bias;        /* of the block's next columns */
    step_phase *phases;
    int phase;
};

struct step_stream {
    const unsigned short *from; /* the thread's share of the next piece */
    uint4 *ring;                /* the thread's own places, STEP_THREADS apart */
    int left, at;               /* pieces to come; the place of the oldest one */
};

__device__ static inline void step_fetch(step_stream &s, int place) {
    if (s.left > 0) step_copy_async(s.ring + place * STEP_THREADS, s.from);
    s.from += STEP_THREADS * 8;
    s.left--;
    step_commit();
}

/* A warp a row: the norm of the residual stream without gain and offset, in
 * bf16. */
template <int MT>
__device__ static void step_norm_rows(const step_problem &p, unsigned short *input) {
    constexpr int AT_ONCE = MT == 1 ? 1 : 2, N = STEP_WIDTH / 128;
    int lane = threadIdx.x % 32;
    float share = 1 / (float)p.width;
    for (int first = threadIdx.x / 32; first < p.rows; first += AT_ONCE * STEP_WARPS) {
        float4 v[AT_ONCE][N];
        float sum[AT_ONCE], squares[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int r = first + k * STEP_WARPS;
            const float4 *x = (const float4 *)(p.stream + (long long)r * p.width);
#pragma unroll
            for (int i = 0; i < N; i++) {
                v[k][i] = make_float4(0, 0, 0, 0);
                if (4 * (lane + 32 * i) < p.width && r < p.rows)
                    v[k][i] = __ldcg(x + lane + 32 * i);
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            sum[k] = squares[k] = 0;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float4 w = v[k][i];
                sum[k] += (w.x + w.y) + (w.z + w.w);
                squares[k] += (w.x * w.x + w.y * w.y) + (w.z * w.z + w.w * w.w);
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
                squares[k] += __shfl_xor_sync(0xffffffffu, squares[k], step);
            }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int r = first + k * STEP_WARPS;
            float mean = p.rms ? 0 : sum[k] * share;
            float rstd = rsqrtf(fmaxf(squares[k] * share - mean * mean, 0) + p.eps);
#pragma unroll
            for (int i = 0; i < N; i++) {
                int at = lane + 32 * i;
                if (4 * at >= p.width || r >= p.rows) continue;
                float4 w = v[k][i];
                uint2 words;
                words.x = step_pack((w.x - mean) * rstd, (w.y - mean) * rstd);
                words.y = step_pack((w.z - mean) * rstd, (w.w - mean) * rstd);
                *(uint2 *)(input + step_input_at<MT>(r, 4 * at)) = words;
            }
        }
    }
}

__device__ static inline const unsigned short *step_rows_from(const step_problem &p,
                                                              const step_phase &f) {
    return f.source == STEP_FROM_HEADS ? p.found : p.between;
}

/* Each warp takes 256 numbers of a row at a time. */
template <int MT>
__device__ static void step_copy_rows(const step_problem &p, const step_phase &f, int panel,
                                      unsigned short *input) {
    using shape = step_shape<MT>;
    const unsigned short *from = step_rows_from(p, f);
    int first = panel * shape::PANEL, columns = min(f.depth - first, (int)shape::PANEL);
    int across = (columns + 255) / 256, lane = threadIdx.x % 32, depth = f.depth;
#pragma unroll 4
    for (int item = threadIdx.x / 32; item < p.rows * across; item += STEP_WARPS) {
        int r = item / across, at = (item % across * 32 + lane) * 8;
        if (at < columns)
            *(uint4 *)(input + step_input_at<MT>(r, at)) =
                __ldcg((const uint4 *)(from + (long long)r * depth + step_swapped(r, first + at)));
    }
}

/* Stage `stage` of the inputs, to the half of the panel that is its turn: the first warp asks for it. */
template <int MT>
__device__ static inline void step_ask_stage(const step_problem &p, const step_phase &f, int stage,
                                             const step_memory &m) {
    constexpr int STAGE = step_shape<MT>::STAGE;
    if (threadIdx.x >= 32 || stage * STAGE >= f.depth) return;
    const unsigned short *from = step_rows_from(p, f) + stage * STAGE;
    unsigned bytes = (unsigned)min(f.depth - stage * STAGE, STAGE) * 2;
    if (threadIdx.x == 0) step_bulk_expect(m.full + stage % 2, bytes * (unsigned)p.rows);
    __syncwarp();
    step_bulk_fence();
    for (int r = threadIdx.x; r < p.rows; r += 32)
        step_bulk_copy(m.input + (stage % 2 * 16 * MT + r) * STAGE, from + (long long)r * f.depth,
                       bytes, m.full + stage % 2);
}

/* What attention found, where its runs are few and each block joins them for
 * itself. */
template <int MT>
__device__ static void step_join_rows(const step_problem &p, const step_phase &f, int panel,
                                      unsigned short *input) {
    using shape = step_shape<MT>;
    int first = panel * shape::PANEL, columns = f.depth - first;
    if (columns > shape::PANEL) columns = shape::PANEL;
    for (int e = threadIdx.x; e < p.rows * columns / 4; e += STEP_THREADS) {
        int r = 4 * e / columns, at = 4 * e % columns, from = first + at;
        *(uint2 *)(input + step_input_at<MT>(r, at)) =
            step_join_few(p, r, from / p.dv, from % p.dv, step_runs(p, p.position[r]));
    }
}

/* Column n of queries, keys and values beside each other. */
__device__ static inline void step_put_head(const step_problem &p, const step_phase &f,
                                            const int *pages, int r, int n, float v) {
    int queries = p.heads * p.dqk, keys = p.kv_heads * p.dqk;
    if (p.gaussian && n < queries + keys && n % p.dqk >= p.dqk / 2) v = step_softplus(v);
    if (n < queries) {
        p.query[(long long)r * queries + n] = step_narrow(v);
        return;
    }
    bool value = n >= queries + keys; /* of joint ones there are none */
    int at = n - queries - (value ? keys : 0), width = value ? p.dv : p.dqk, j = p.position[r];
    char *page = value ? f.values + pages[r] * p.value_bytes : f.keys + pages[r] * p.key_bytes;
    ((unsigned short *)page)[(at / width * 16 + j % 16) * width + at % width] = step_narrow(v);
}

__device__ static inline void step_put(const step_problem &p, const step_phase &f, const int *pages,
                                       int r, int n, float v) {
    if (f.target == STEP_TO_HEADS)
        step_put_head(p, f, pages, r, n, v);
    else if (f.target == STEP_TO_STREAM)
        p.stream[(long long)r * p.width + n] = v;
    else
        p.between[(long long)r * f.columns + step_swapped(r, n)] = step_narrow(step_gelu(v));
}

/* One piece of each of the tiles that are summed at once. */
template <int MT>
__device__ static inline void step_multiply_slot(const unsigned short *a, bool there, int tiles,
                                                 step_stream &s, float (&c)[STEP_TILES][MT][4]) {
    using shape = step_shape<MT>;
    int place[STEP_TILES];
    uint4 b[STEP_TILES];
    /* As many pieces as there are tiles have arrived at least. */
    step_wait<shape::DEPTH - STEP_TILES>();
#pragma unroll
    for (int g = 0; g < STEP_TILES; g++) {
        if (g >= tiles) continue;
        place[g] = s.at;
        b[g] = s.ring[s.at * STEP_THREADS];
        s.at = s.at + 1 == shape::DEPTH ? 0 : s.at + 1;
    }
    if (there)
#pragma unroll
        for (int t = 0; t < MT; t++) {
            uint4 v = *(const uint4 *)(a + 16 * t * shape::STAGE);
            uint4 w = *(const uint4 *)(a + (16 * t + 8) * shape::STAGE);
            step_words high = {{v.x, v.y, v.z, v.w}}, low = {{w.x, w.y, w.z, w.w}};
#pragma unroll
            for (int g = 0; g < STEP_TILES; g++) {
                if (g >= tiles) continue;
                step_multiply(c[g][t], high, low, 0, b[g].x, b[g].y);
                step_multiply(c[g][t], high, low, 1, b[g].z, b[g].w);
            }
        }
#pragma unroll
    for (int g = 0; g < STEP_TILES; g++)
        if (g < tiles) step_fetch(s, place[g]);
}

/* The warps' sums to shared memory, [warp, tile, row, column]. */
template <int MT>
__device__ static void step_spread_sums(const step_problem &p, const step_memory &m, int tiles,
                                        const float (&c)[STEP_TILES][MT][4]) {
    using shape = step_shape<MT>;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < shape::TILES; g++)
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = 16 * t + 8 * e + lane / 4;
                if (row >= p.rows || g >= tiles) continue;
                float2 v = make_float2(c[g][t][2 * e], c[g][t][2 * e + 1]);
                *(float2 *)(m.sums + ((warp * shape::TILES + g) * 16 * MT + row) * STEP_COLUMNS +
                            lane % 4 * 2) = v;
            }
}

/* Result e of the tiles that are summed at once: its tile, row and column. */
struct step_result {
    int g, r, n;
};

__device__ static inline step_result step_result_at(const step_problem &p, int tile, int e) {
    step_result at;
    at.g = e / STEP_COLUMNS >> p.row_bits;
    at.r = e / STEP_COLUMNS & ((1 << p.row_bits) - 1);
    at.n = (tile + at.g * (int)gridDim.x) * STEP_COLUMNS + e % STEP_COLUMNS;
    return at;
}

/* Whether inputs are as they lie in memory. */
__device__ static inline bool step_copies(const step_problem &p, const step_phase &f) {
    return f.source == STEP_FROM_HIDDEN || (f.source == STEP_FROM_HEADS && !p.joins_late);
}

template <int MT>
__device__ static void step_fill_input(const step_problem &p, const step_phase &f, int panel,
                                       unsigned short *input) {
    if (f.source == STEP_FROM_STREAM)
        step_norm_rows<MT>(p, input);
    else if (step_copies(p, f))
        step_copy_rows<MT>(p, f, panel, input);
    else
        step_join_rows<MT>(p, f, panel, input);
}

/* Up to MT results of a thread: what they are added to is on its way while the product is made. */
template <int MT>
__device__ static inline void step_ask_beside(const step_problem &p, const step_phase &f, int tile,
                                              int results, const float *bias, float (&beside)[MT]) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int e = (int)threadIdx.x + i * STEP_THREADS;
        step_result at = step_result_at(p, tile, e);
        if (e >= results || at.r >= p.rows || at.n >= f.columns) continue;
        beside[i] = bias[at.g * STEP_COLUMNS + e % STEP_COLUMNS];
        if (f.target == STEP_TO_STREAM)
            beside[i] += __ldcg(p.stream + (long long)at.r * p.width + at.n);
    }
}

template <int MT>
__device__ static inline void step_put_results(const step_problem &p, const step_phase &f,
                                               const step_memory &m, int tile, int results,
                                               const float (&beside)[MT]) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int e = (int)threadIdx.x + i * STEP_THREADS;
        step_result at = step_result_at(p, tile, e);
        if (e >= results || at.r >= p.rows || at.n >= f.columns) continue;
        const float *sums = m.sums + (at.g * 16 * MT + at.r) * STEP_COLUMNS + e % STEP_COLUMNS;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++)
            sum += sums[w * STEP_TILES * 16 * MT * STEP_COLUMNS];
        step_put(p, f, m.pages, at.r, at.n, beside[i] + sum);
    }
}

/* The warp's share of a tile's sums, panel by panel. */
template <int MT>
__device__ static inline void step_sum_panels(const step_problem &p, const step_phase &f,
                                              step_memory &m, step_stream &s, int tiles, bool fresh,
                                              float (&c)[STEP_TILES][MT][4]) {
    using shape = step_shape<MT>;
    int chunks = f.chunks, slots = step_slots(chunks), lane = threadIdx.x % 32;
    int panels = (slots + shape::SLOTS - 1) / shape::SLOTS, warp = threadIdx.x / 32;
    const unsigned short *a =
        m.input + step_input_at<MT>(lane / 4, warp * STEP_CHUNK + lane % 4 * 8);
    for (int panel = 0; panel < panels; panel++) {
        if (fresh || panels > 1) {
            if (panel > 0) __syncthreads();
            step_fill_input<MT>(p, f, panel, m.input);
            __syncthreads();
            step_mark(p, m.phase, 1);
        }
        int end = min(slots - panel * shape::SLOTS, (int)shape::SLOTS);
        int chunk = panel * shape::SLOTS * STEP_WARPS + warp;
#pragma unroll 1
        for (int slot = 0; slot < end; slot++)
            step_multiply_slot<MT>(
                a + slot * (MT == 1 ? STEP_WARPS * STEP_CHUNK : 16 * MT * shape::STAGE),
                chunk + slot * STEP_WARPS < chunks, tiles, s, c);
    }
}

/* The same where rows are many and come by themselves: while a stage is multiplied the next is on its
 * way. A stage is as wide as a slot. */
template <int MT>
__device__ static inline void step_sum_stages(const step_problem &p, const step_phase &f,
                                              step_memory &m, step_stream &s, int tiles, bool fresh,
                                              float (&c)[STEP_TILES][MT][4]) {
    using shape = step_shape<MT>;
    int chunks = f.chunks, slots = step_slots(chunks), lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    bool asks = fresh || slots > 2;
    const unsigned short *a =
        m.input + step_input_at<MT>(lane / 4, warp * STEP_CHUNK + lane % 4 * 8);
    if (asks) {
        step_ask_stage<MT>(p, f, 0, m);
        step_ask_stage<MT>(p, f, 1, m);
    }
#pragma unroll 1
    for (int slot = 0; slot < slots; slot++) {
        int half = slot % 2;
        if (asks) {
            step_bulk_wait(m.full + half, m.turns >> half & 1);
            m.turns ^= 1u << half;
        }
        if (slot == 0) step_mark(p, m.phase, 1);
        step_multiply_slot<MT>(a + half * 16 * MT * shape::STAGE, warp + slot * STEP_WARPS < chunks,
                               tiles, s, c);
        if (slot + 2 < slots) {
            __syncthreads();
            step_ask_stage<MT>(p, f, slot + 2, m);
        }
    }
}

template <int MT>
__device__ static void step_product(const step_problem &p, const step_phase &f, step_memory &m,
                                    step_stream &s) {
    static_assert(STEP_TILES * STEP_COLUMNS * 16 * MT <= MT * STEP_THREADS, "results of a thread");
    int all = f.tiles, grid = (int)gridDim.x, first = step_first_tile(f);
    for (int tile = first; tile < all; tile += STEP_TILES * grid) {
        int tiles = min((all - tile + grid - 1) / grid, (int)STEP_TILES);
        int results = tiles * STEP_COLUMNS << p.row_bits;
        float c[STEP_TILES][MT][4] = {}, beside[MT];
        step_ask_beside<MT>(p, f, tile, results, m.bias, beside);
        if (MT > 1 && step_has_bulk() && step_copies(p, f))
            step_sum_stages<MT>(p, f, m, s, tiles, tile == first, c);
        else
            step_sum_panels<MT>(p, f, m, s, tiles, tile == first, c);
        step_mark(p, m.phase, 2);
        step_spread_sums<MT>(p, m, tiles, c);
        __syncthreads();
        step_mark(p, m.phase, 3);
        step_put_results<MT>(p, f, m, tile, results, beside);
        step_mark(p, m.phase, 4);
        m.bias += tiles * STEP_COLUMNS;
        if (tile + STEP_TILES * grid < all) __syncthreads();
    }
}

#endif

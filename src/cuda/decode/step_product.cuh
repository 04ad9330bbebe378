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
                *(uint2 *)(input + r * step_shape<MT>::PITCH + 4 * at) = words;
            }
        }
    }
}

/* Each warp takes 256 numbers of a row at a time. */
template <int MT>
__device__ static void step_copy_rows(const step_problem &p, const step_phase &f, int panel,
                                      unsigned short *input) {
    using shape = step_shape<MT>;
    const unsigned short *from = f.source == STEP_FROM_HEADS ? p.found : p.between;
    int first = panel * shape::PANEL, columns = min(f.depth - first, (int)shape::PANEL);
    int across = (columns + 255) / 256, lane = threadIdx.x % 32, depth = f.depth;
#pragma unroll 4
    for (int item = threadIdx.x / 32; item < p.rows * across; item += STEP_WARPS) {
        int r = item / across, at = (item % across * 32 + lane) * 8;
        if (at < columns)
            *(uint4 *)(input + r * shape::PITCH + at) =
                __ldcg((const uint4 *)(from + (long long)r * depth + first + at));
    }
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
        *(uint2 *)(input + r * shape::PITCH + at) =
            step_join_few(p, r, from / p.dv, from % p.dv, step_runs(p, p.position[r]));
    }
}

/* Column n of queries, keys and values beside each other. */
__device__ static inline void step_put_head(const step_problem &p, const step_phase &f, int r,
                                            int n, float v) {
    int queries = p.heads * p.dqk, keys = p.kv_heads * p.dqk;
    if (p.gaussian && n < queries + keys && n % p.dqk >= p.dqk / 2) v = step_softplus(v);
    if (n < queries) {
        p.query[(long long)r * queries + n] = step_narrow(v);
        return;
    }
    bool value = n >= queries + keys; /* of joint ones there are none */
    int at = n - queries - (value ? keys : 0), width = value ? p.dv : p.dqk, j = p.position[r];
    char *page = value ? step_page(p, f.values, p.value_bytes, r, j)
                       : step_page(p, f.keys, p.key_bytes, r, j);
    ((unsigned short *)page)[(at / width * 16 + j % 16) * width + at % width] = step_narrow(v);
}

/* Larger logits first, then lower tokens, as one number. */
__device__ static inline unsigned long long step_rank(float v, int token) {
    unsigned bits = __float_as_uint(v);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | (0xffffffffu - (unsigned)token);
}

__device__ static inline int step_ranked(unsigned long long rank) {
    return (int)(0xffffffffu - (unsigned)rank);
}

/* What a sum is added to: the bias, and the residual stream's number. */
__device__ static inline float step_beside(const step_problem &p, const step_phase &f, int r,
                                           int n) {
    float v = f.bias ? __ldg(f.bias + n) : 0;
    if (f.target == STEP_TO_STREAM) v += __ldcg(p.stream + (long long)r * p.width + n);
    return v;
}

__device__ static inline void step_put(const step_problem &p, const step_phase &f, int r, int n,
                                       float v, unsigned long long *best) {
    if (f.target == STEP_TO_HEADS) {
        step_put_head(p, f, r, n, v);
    } else if (f.target == STEP_TO_STREAM) {
        p.stream[(long long)r * p.width + n] = v;
    } else if (f.target == STEP_TO_HIDDEN) {
        p.between[(long long)r * f.columns + n] = step_narrow(step_gelu(v));
    } else {
        p.logits[(long long)r * p.vocab + n] = v;
        atomicMax(best + r, step_rank(v, n));
    }
}

struct step_memory {
    unsigned short *input; /* beside it the sums: the two are attention's ring */
    float *sums;
    unsigned long long *best; /* [ROWS] */
};

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
            uint4 v = *(const uint4 *)(a + 16 * t * shape::PITCH);
            uint4 w = *(const uint4 *)(a + (16 * t + 8) * shape::PITCH);
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
__device__ static void step_spread_sums(const step_problem &p, const step_memory &m,
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
                if (row >= p.rows) continue;
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

template <int MT>
__device__ static void step_fill_input(const step_problem &p, const step_phase &f, int panel,
                                       unsigned short *input) {
    if (f.source == STEP_FROM_STREAM)
        step_norm_rows<MT>(p, input);
    else if (f.source == STEP_FROM_HEADS && p.joins_late)
        step_join_rows<MT>(p, f, panel, input);
    else
        step_copy_rows<MT>(p, f, panel, input);
}

template <int MT>
__device__ static void step_product(const step_problem &p, const step_phase &f,
                                    const step_memory &m, step_stream &s) {
    using shape = step_shape<MT>;
    int chunks = f.chunks, slots = step_slots(chunks), all = f.tiles, grid = (int)gridDim.x;
    int first = step_first_tile(f), columns = f.columns, target = f.target;
    int panels = (slots + shape::SLOTS - 1) / shape::SLOTS, warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    const unsigned short *a = m.input + lane / 4 * shape::PITCH + warp * STEP_CHUNK + lane % 4 * 8;
    if (target == STEP_TO_LOGITS && threadIdx.x < STEP_ROWS) m.best[threadIdx.x] = 0;
    for (int tile = first; tile < all; tile += STEP_TILES * grid) {
        int tiles = min((all - tile + grid - 1) / grid, (int)STEP_TILES);
        int results = tiles * STEP_COLUMNS << p.row_bits;
        float c[STEP_TILES][MT][4] = {}, beside = 0;
        /* What the thread's first result is added to is on its way meanwhile. */
        step_result at = step_result_at(p, tile, (int)threadIdx.x);
        if ((int)threadIdx.x < results && at.r < p.rows && at.n < columns)
            beside = step_beside(p, f, at.r, at.n);
        for (int panel = 0; panel < panels; panel++) {
            if (tile == first || panels > 1) {
                if (panel > 0) __syncthreads();
                step_fill_input<MT>(p, f, panel, m.input);
                __syncthreads();
            }
            int end = min(slots - panel * shape::SLOTS, (int)shape::SLOTS);
            int chunk = panel * shape::SLOTS * STEP_WARPS + warp;
#pragma unroll 1
            for (int slot = 0; slot < end; slot++)
                step_multiply_slot<MT>(a + slot * STEP_WARPS * STEP_CHUNK,
                                       chunk + slot * STEP_WARPS < chunks, tiles, s, c);
        }
        step_spread_sums<MT>(p, m, c);
        __syncthreads();
#pragma unroll 1
        for (int e = threadIdx.x; e < results; e += STEP_THREADS) {
            at = step_result_at(p, tile, e);
            if (at.r >= p.rows || at.n >= columns) continue;
            if (e >= STEP_THREADS) beside = step_beside(p, f, at.r, at.n);
            const float *sums = m.sums + (at.g * 16 * MT + at.r) * STEP_COLUMNS + e % STEP_COLUMNS;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < STEP_WARPS; w++)
                sum += sums[w * STEP_TILES * 16 * MT * STEP_COLUMNS];
            step_put(p, f, at.r, at.n, beside + sum, m.best);
        }
        __syncthreads();
    }
    if (target == STEP_TO_LOGITS && (int)threadIdx.x < p.rows && first < all)
        atomicMax(p.picked + p.turn * STEP_ROWS + threadIdx.x, m.best[threadIdx.x]);
}

#endif

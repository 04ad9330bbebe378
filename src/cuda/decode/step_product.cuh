/* Products of a step (step_kernel.cuh): weights on their way, the rows that they are multiplied with, and
 * what becomes of the sums. */
#pragma once

#include "cuda/decode/step_attend.cuh"

__device__ static inline int step_first_item(const step_phase &f) {
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
    float2 *lines;            /* of attention by spans, [warp, 16] */
    unsigned long long *best; /* [ROWS] */
    unsigned long long *full; /* [2]: barriers of the two stages of inputs */
    unsigned parities;        /* bit i: of the phase of stage i that is waited for */
    int *pages;               /* [ROWS]: that of the row's position */
    const float *bias;        /* of the block's next columns */
    step_phase *phases;       /* [2]: phase i is in place i % 2 */
    int phase;
    int thread; /* threadIdx.x, from phase to phase another number to the compiler, which keeps
                   nothing for all of them */
    int latest; /* which of the streams with flags is the newest */
    unsigned stream_flag, hidden_flag; /* of the newest numbers */
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

/* What a block multiplies at a time: up to STEP_TILES tiles, `stride` apart, over some of the depth. A
 * product whose columns are few has its depth split, so that all blocks have a share and each reads
 * only its part of the rows; the splits' sums are added behind it (STEP_ADD). How the depth is split
 * follows from the depth alone. */
struct step_item {
    int tile, tiles, stride;
    int chunk, chunks; /* the first, and how many */
    int split;
};

/* Item `i` of a phase; those of a block are step_item_step apart. */
__device__ __host__ static inline step_item step_item_at(const step_phase &f, int i, int grid) {
    step_item t;
    if (f.splits == 1) {
        static_assert(STEP_TILES == 3, "tiles i, i + grid and i + 2 grid, where there are such");
        t = {i, 1 + (i + grid < f.tiles) + (i + 2 * grid < f.tiles), grid, 0, f.chunks, 0};
        return t;
    }
    t.split = i % f.splits;
    t.tile = i / f.splits * f.together;
    t.tiles = f.tiles - t.tile < f.together ? f.tiles - t.tile : f.together;
    t.stride = 1;
    t.chunk = t.split * f.split;
    t.chunks = f.chunks - t.chunk < f.split ? f.chunks - t.chunk : f.split;
    return t;
}

__device__ __host__ static inline int step_items(const step_phase &f) {
    return f.splits == 1 ? f.tiles : (f.tiles + f.together - 1) / f.together * f.splits;
}

__device__ __host__ static inline int step_item_step(const step_phase &f, int grid) {
    return f.splits == 1 ? STEP_TILES * grid : grid;
}

__device__ static inline const unsigned short *step_rows_from(const step_problem &p,
                                                              const step_phase &f) {
    return f.source == STEP_FROM_NORM    ? p.normed
           : f.source == STEP_FROM_HEADS ? p.found
                                         : p.between;
}

/* `columns` columns from `first` on; each warp takes 256 numbers of a row at a time. */
template <int MT>
__device__ static void step_copy_rows(const step_problem &p, const step_phase &f, int first,
                                      int columns, unsigned short *input) {
    const unsigned short *from = step_rows_from(p, f);
    int across = (columns + 255) / 256, lane = threadIdx.x % 32;
#pragma unroll 4
    for (int item = threadIdx.x / 32; item < p.rows * across; item += STEP_WARPS) {
        int r = item / across, at = (item % across * 32 + lane) * 8;
        if (at < columns)
            *(uint4 *)(input + step_input_at<MT>(r, at)) =
                __ldcg((const uint4 *)(from + step_row_at(r, first + at)));
    }
}

/* Stage `stage` of the inputs from column `first` on, where a stage begins, to the half of the panel
 * that is its own: lanes of the first warp ask for some rows each. Each block begins with others, so
 * that not all ask for the same ones at a time. */
template <int MT>
__device__ static inline void step_ask_stage(const step_problem &p, const step_phase &f, int first,
                                             int columns, int stage, const step_memory &m) {
    enum { AT_ONCE = 8, ROW = STEP_STAGE * 2 /* bytes */ };
    static_assert(MT == 1 || (int)step_shape<MT>::STAGE == (int)STEP_STAGE, "as in memory");
    if (threadIdx.x >= 32 || stage * STEP_STAGE >= columns) return;
    const unsigned short *from =
        step_rows_from(p, f) + (first / STEP_STAGE + stage) * STEP_ROWS * STEP_STAGE;
    unsigned short *to = m.input + stage % 2 * 16 * MT * STEP_STAGE;
    int parts = (p.rows + AT_ONCE - 1) / AT_ONCE, lane = (int)threadIdx.x;
    if (lane == 0) step_bulk_expect(m.full + stage % 2, (unsigned)(ROW * p.rows));
    __syncwarp();
    step_bulk_fence();
    if (lane >= parts) return;
    int r = (lane + (int)blockIdx.x) % parts * AT_ONCE;
    step_bulk_copy(to + r * STEP_STAGE, from + r * STEP_STAGE,
                   (unsigned)(ROW * min((int)AT_ONCE, p.rows - r)), m.full + stage % 2);
}

__device__ static inline void step_await_stage(step_memory &m, int half) {
    step_bulk_wait(m.full + half, m.parities >> half & 1);
    m.parities ^= 1u << half;
}

/* What attention found, where its runs are few and each block joins them for
 * itself. */
template <int MT>
__device__ static void step_join_rows(const step_problem &p, int first, int columns,
                                      unsigned short *input) {
    for (int e = threadIdx.x; e < p.rows * columns / 4; e += STEP_THREADS) {
        int r = 4 * e / columns, at = 4 * e % columns, from = first + at;
        *(uint2 *)(input + step_input_at<MT>(r, at)) =
            step_join_few(p, r, from >> p.dv_bits, from & (p.dv - 1), step_runs(p, p.position[r]));
    }
}

/* Column n of queries or keys, one of a pair that is rotated, with its place in the head. */
__device__ static inline float step_rotate_head(const step_problem &p, int r, int &n, float v,
                                                float other) {
    int half = p.dqk / 2, at = n & (p.dqk - 1);
    float2 by = __ldcg(p.rotations + r * half + at / 2);
    n += at / 2 + at % 2 * half - at;
    return at % 2 ? v * by.x + other * by.y : v * by.x - other * by.y;
}

/* Column n of queries, keys and values beside each other. */
__device__ static inline void step_put_head(const step_problem &p, const step_phase &f,
                                            const int *pages, int r, int n, float v, float other) {
    int queries = p.heads * p.dqk, keys = p.kv_heads * p.dqk;
    if (p.gaussian && n < queries + keys && n & p.dqk / 2) v = step_softplus(v);
    if (p.rotated && n < queries + keys) v = step_rotate_head(p, r, n, v, other);
    if (n < queries) {
        p.query[(long long)r * queries + n] = step_narrow(v);
        return;
    }
    bool value = n >= queries + keys; /* of joint ones there are none */
    int at = n - queries - (value ? keys : 0), j = p.position[r];
    int bits = value ? p.dv_bits : p.dqk_bits, within = at & ((1 << bits) - 1);
    char *page = value ? f.values + pages[r] * p.value_bytes : f.keys + pages[r] * p.key_bytes;
    ((unsigned short *)page)[(((at >> bits) * 16 + j % 16) << bits) + within] = step_narrow(v);
}

/* Whether columns belong together in pairs. */
__device__ static inline bool step_pairs(const step_problem &p, const step_phase &f) {
    return f.target == STEP_TO_HEADS ? p.rotated : f.target == STEP_TO_HIDDEN && p.gated;
}

/* `other`: the other one of a pair. */
__device__ static inline void step_put(const step_problem &p, const step_phase &f, const int *pages,
                                       int split, int r, int n, float v, float other) {
    if (f.target == STEP_TO_HEADS) {
        step_put_head(p, f, pages, r, n, v, other);
    } else if (f.target == STEP_TO_SUMS) {
        p.sums[((long long)split * STEP_ROWS + r) * p.width + n] = v;
    } else if (!p.gated || n % 2 == 0) {
        if (p.gated) n /= 2;
        p.between[step_row_at(r, n)] = step_narrow(p.gated ? v * sigmoid(v) * other : step_gelu(v));
    }
}

/* Column n of the feed-forward's numbers with a flag: lanes beside each other have a pair. */
__device__ static inline void step_put_hidden(const step_problem &p, const step_memory &m, int r,
                                              int n, float sum) {
    float v = step_gelu(sum), next = __shfl_xor_sync(3u << (threadIdx.x & 30), v, 1);
    if (n % 2 == 0)
        step_put_flagged(p.hidden_flags + (r * p.hidden + n) / 2, step_pack(v, next),
                         p.flags + (unsigned)m.phase);
}

/* The next piece of each of up to N tiles, and where it was in the ring. */
template <int MT, int N>
__device__ static inline void step_take_pieces(int tiles, step_stream &s, int (&place)[N],
                                               uint4 (&b)[N]) {
    constexpr int DEPTH = step_shape<MT>::DEPTH;
    step_wait<DEPTH - N>(); /* as many pieces as there are tiles have arrived at least */
#pragma unroll
    for (int g = 0; g < N; g++) {
        if (g >= tiles) continue;
        place[g] = s.at;
        b[g] = s.ring[s.at * STEP_THREADS];
        s.at = s.at + 1 == DEPTH ? 0 : s.at + 1;
    }
}

/* One piece of each of the tiles that are summed at once. */
template <int MT>
__device__ static inline void step_multiply_slot(const unsigned short *a, bool there, int tiles,
                                                 step_stream &s,
                                                 float (&c)[step_shape<MT>::GROUPS][MT][4]) {
    using shape = step_shape<MT>;
    int place[STEP_TILES] = {};
    uint4 b[STEP_TILES] = {};
    step_take_pieces<MT>(tiles, s, place, b);
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
                                        const float (&c)[step_shape<MT>::GROUPS][MT][4]) {
    using shape = step_shape<MT>;
    int lane = m.thread % 32, warp = m.thread / 32;
#pragma unroll
    for (int g = 0; g < shape::GROUPS; g++)
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = 16 * t + 8 * e + lane / 4;
                if (row >= p.rows || g >= tiles) continue;
                float2 v = make_float2(c[g][t][2 * e], c[g][t][2 * e + 1]);
                *(float2 *)(m.sums + ((warp * shape::GROUPS + g) * 16 * MT + row) * STEP_COLUMNS +
                            lane % 4 * 2) = v;
            }
}

/* Result e of the tiles that are summed at once: its tile, row and column. */
struct step_result {
    int g, r, n;
};

__device__ static inline step_result step_result_at(const step_problem &p, const step_item &t,
                                                    int e) {
    step_result at;
    at.g = e / STEP_COLUMNS >> p.row_bits;
    at.r = e / STEP_COLUMNS & ((1 << p.row_bits) - 1);
    at.n = (t.tile + at.g * t.stride) * STEP_COLUMNS + e % STEP_COLUMNS;
    return at;
}

/* Whether inputs are as they lie in memory. */
__device__ static inline bool step_copies(const step_problem &p, const step_phase &f) {
    return f.source != STEP_FROM_HEADS || !p.joins_late;
}

template <int MT>
__device__ static inline void step_put_results(const step_problem &p, const step_phase &f,
                                               const step_memory &m, const step_item &t) {
    int results = t.tiles * STEP_COLUMNS << p.row_bits;
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int e = m.thread + i * STEP_THREADS;
        step_result at = step_result_at(p, t, e);
        if (e >= results || at.r >= p.rows || at.n >= f.columns) continue;
        const float *sums = m.sums + (at.g * 16 * MT + at.r) * STEP_COLUMNS + e % STEP_COLUMNS;
        float sum = 0, other = 0;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++)
            sum += sums[w * step_shape<MT>::GROUPS * 16 * MT * STEP_COLUMNS];
        if (p.n_biases) sum += m.bias[at.g * STEP_COLUMNS + e % STEP_COLUMNS];
        if (MT == 1 && p.flagged && f.target == STEP_TO_HIDDEN) {
            step_put_hidden(p, m, at.r, at.n, sum);
            continue;
        }
        if (step_pairs(p, f)) other = __shfl_xor_sync(3u << (m.thread & 30), sum, 1);
        step_put(p, f, m.pages, t.split, at.r, at.n, sum, other);
    }
}

/* The warp's share of an item's sums, panel by panel. */
template <int MT>
__device__ static inline void
step_sum_panels(const step_problem &p, const step_phase &f, const step_item &t, step_memory &m,
                step_stream &s, bool fresh, float (&c)[step_shape<MT>::GROUPS][MT][4]) {
    using shape = step_shape<MT>;
    int slots = step_slots(t.chunks), lane = m.thread % 32, warp = m.thread / 32;
    int panels = (slots + shape::SLOTS - 1) / shape::SLOTS;
    const unsigned short *a =
        m.input + step_input_at<MT>(lane / 4, warp * STEP_CHUNK + lane % 4 * 8);
    for (int panel = 0; panel < panels; panel++) {
        if (fresh || panels > 1) {
            int first = panel * shape::PANEL;
            int columns = min(t.chunks * STEP_CHUNK - first, (int)shape::PANEL);
            first += t.chunk * STEP_CHUNK;
            if (panel > 0) __syncthreads();
            if (step_copies(p, f))
                step_copy_rows<MT>(p, f, first, columns, m.input);
            else
                step_join_rows<MT>(p, first, columns, m.input);
            __syncthreads();
            step_mark(p, m.phase, 1);
        }
        int end = min(slots - panel * shape::SLOTS, (int)shape::SLOTS);
        int chunk = panel * shape::SLOTS * STEP_WARPS + warp;
#pragma unroll 1
        for (int slot = 0; slot < end; slot++)
            step_multiply_slot<MT>(
                a + slot * (MT == 1 ? STEP_WARPS * STEP_CHUNK : 16 * MT * shape::STAGE),
                chunk + slot * STEP_WARPS < t.chunks, t.tiles, s, c);
    }
}

/* The same where rows are many and come by themselves: while a stage is multiplied the next is on its
 * way. A stage is as wide as a slot. */
template <int MT>
__device__ static inline void
step_sum_stages(const step_problem &p, const step_phase &f, const step_item &t, step_memory &m,
                step_stream &s, bool fresh, float (&c)[step_shape<MT>::GROUPS][MT][4]) {
    using shape = step_shape<MT>;
    int slots = step_slots(t.chunks), lane = m.thread % 32, warp = m.thread / 32;
    int first = t.chunk * STEP_CHUNK, columns = t.chunks * STEP_CHUNK;
    bool asks = fresh || slots > 2;
    const unsigned short *a =
        m.input + step_input_at<MT>(lane / 4, warp * STEP_CHUNK + lane % 4 * 8);
    if (asks) {
        step_ask_stage<MT>(p, f, first, columns, 0, m);
        step_ask_stage<MT>(p, f, first, columns, 1, m);
    }
#pragma unroll 1
    for (int slot = 0; slot < slots; slot++) {
        int half = slot % 2;
        if (asks) step_await_stage(m, half);
        if (slot == 0) step_mark(p, m.phase, 1);
        step_multiply_slot<MT>(a + half * 16 * MT * shape::STAGE,
                               warp + slot * STEP_WARPS < t.chunks, t.tiles, s, c);
        if (slot + 2 < slots) {
            __syncthreads();
            step_ask_stage<MT>(p, f, first, columns, slot + 2, m);
        }
    }
}

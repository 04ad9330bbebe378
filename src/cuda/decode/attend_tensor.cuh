/* Leaves of keys on the tensor cores: bf16 queries over a cache of bf16 (cache_attention.cu).
 *
 * A warp has a leaf to itself, so that no warp waits for another: tiles of 32 keys and their values come
 * by bulk copies, a page each (cp.async before 9.0a), the next one while one is multiplied; softmax is
 * online, in registers. What no row of this run writes is asked for before the kernel ahead has ended.
 * Keys and values of this run may not be in the pages yet: they are copied from where the products left
 * them then, and the first block of a row writes the row's own.
 * Where rows and key heads are many blocks may be small, whose warps have one tile each: what the others ask for is
 * on its way while one multiplies. A small block may have several key heads of a row, each warps of its own: a block's
 * beginning and end take as long as many tiles, and it has more of these between them then.
 * Values that are the keys are copied once. Each leaf's result goes to memory by itself, so that it
 * changes nothing which warp has which.
 *
 * A tile of many heads takes a warp long. Their leaves are quartered: four warps of a block have a quarter of
 * a leaf each, and what they have summed is joined in shared memory, in order. A leaf takes a quarter of the
 * time then, and no more room in memory.
 *
 * The query heads that share a key head are the rows of a tile of 16, so that MLA's twelve or more heads
 * read their one latent once; of a key head with one query head 15 rows are empty, which costs nothing
 * where memory decides. In runs of more than 64 rows the next rows of a prompt fill them, which see the
 * same keys but for the last few: each has its own mask, and the bits that it has alone. More than 16
 * heads, or values wider than a warp has registers for, are units of their own over the same keys.
 *
 * Which of a step's numbers meet in an instruction is free as long as both factors agree: a lane
 * multiplies the eight that lie beside each other (few_rows.cuh). Column c of the n-th eight scores is key
 * 8 ⌊c/2⌋ + 2 n + c mod 2 of its tile, so that a lane's scores are those of eight keys beside each other,
 * and as weights are where the product with the values wants them. */
#pragma once

#include "cuda/decode/attend_copies.cuh"

/* c += a b for 16 heads and eight columns, over 16 numbers: a as the instruction has it. */
__device__ static inline void multiply_heads(float (&c)[4], uint4 a, unsigned b0, unsigned b1) {
    multiply_add(c, (const uint32_t(&)[4])a, b0, b1);
}

/* S = Q Kᵀ for 16 heads and 32 keys. EVEN: widths are multiples of 32, and all keys are there. */
template <bool EVEN>
__device__ static inline void score_tile(const attend_problem &a, const uint4 *queries,
                                         const bf16 *keys, float (&c)[4][4]) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    const uint4 *q = queries + lane;
    const bf16 *key = keys + (row / 2 * 8 + row % 2) * a.dqk + quarter * 8;
#pragma unroll 2
    for (int k = 0; k < a.dqk; k += 32, q += 64) {
        eight_halves b[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[n] = EVEN || k + quarter * 8 < a.dqk ? fetch_halves(key + 2 * n * a.dqk + k, true)
                                                   : eight_halves{};
#pragma unroll
        for (int step = 0; step < 2; step++) {
            uint4 high_low = q[32 * step];
#pragma unroll
            for (int n = 0; n < 4; n++)
                multiply_heads(c[n], high_low, b[n].word[2 * step], b[n].word[2 * step + 1]);
        }
    }
}

/* What a warp has of its unit: a lane those of two heads, row and row + 8 of the tile. */
template <int UNITS> struct unit_sums {
    float o[UNITS][4][4]; /* Σ p v of 32 columns: [eight of them][head and column] */
    float top[2], sum[2];
};

/* What few models have: relative positions, a soft cap. */
__device__ static inline float adjust_score(const attend_problem &a, float score, int distance) {
    if (a.rel) score = fmaf(a.rel[min(max(distance, 0), a.context - 1)], LOG2E, score);
    return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

/* From raw products to exponentials under the largest score so far; what was summed before follows it.
 * HALVES 1: only the first eight heads of a tile are there. TOGETHER: it has several rows. One that has keys of
 * the leaf has some in its first tile; one that has none gets NaN, which no other row sees, nor is it kept. */
template <int UNITS, int HALVES, bool PLAIN, bool TOGETHER>
__device__ static inline void weigh_tile(const attend_problem &a, const tile_walk &w,
                                         const row_view &v, const head_factors *factors,
                                         const float *numbers, int tile, float (&c)[4][4],
                                         unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, at = lane % 4 * 8;
    float shrink[2] = {1, 1};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        int h = tile * TENSOR_ROWS + lane / 4 + 8 * half;
        tile_row row = find_row<TOGETHER>(a, v, h);
        int end = TOGETHER ? min(w.high, row.own + 1) : w.high;
        head_factors f = factors[h];
        auto each = [&](auto change) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                c[e / 2][2 * half + e % 2] = change(at + e, c[e / 2][2 * half + e % 2]);
        };
        each([&](int, float score) { return score * f.scale; });
        if (a.keys.number)
            each([&](int e, float score) { return fmaf(numbers[e], f.beta, score); });
        if (a.pos == WEFT_POS_ALIBI)
            each(
                [&](int e, float score) { return score - f.slope * (float)(row.own - w.key - e); });
        if (!PLAIN)
            each([&](int e, float score) { return adjust_score(a, score, row.own - w.key - e); });
        if (a.scores && row.there) {
            float *to =
                a.scores + ((int64_t)row.r * a.heads + row.head) * a.context + w.key - v.seen;
            each([&](int e, float score) {
                if (w.key + e >= w.low && w.key + e < end) to[e] = score;
                return score;
            });
        }
        if (end - w.low < TENSOR_KEYS)
            each([&](int e, float score) {
                return w.key + e >= w.low && w.key + e < end ? score : -INFINITY;
            });
        float top = s.top[half];
        each([&](int, float score) { return top = fmaxf(top, score), score; });
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        shrink[half] = power_of_two(s.top[half] - top);
        s.top[half] = top;
        float sum = 0;
        each([&](int, float score) {
            float p = power_of_two(score - top);
            return sum += p, p;
        });
        s.sum[half] = fmaf(s.sum[half], shrink[half], sum);
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                s.o[u][t][e] *= shrink[e / 2];
}

/* O += P V for 16 heads, from column `from` on. */
template <int UNITS, int HALVES, bool EVEN>
__device__ static inline void sum_tile(const attend_problem &a, const tile_walk &w,
                                       const bf16 *values, int from, const float (&p)[4][4],
                                       unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    int pitch = a.joint ? a.dqk : a.dv;
    uint4 weights[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        weights[i] = make_uint4(join_halves(p[2 * i][0], p[2 * i][1]),
                                HALVES > 1 ? join_halves(p[2 * i][2], p[2 * i][3]) : 0,
                                join_halves(p[2 * i + 1][0], p[2 * i + 1][1]),
                                HALVES > 1 ? join_halves(p[2 * i + 1][2], p[2 * i + 1][3]) : 0);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int column = from + 32 * u + 8 * quarter;
        if (from + 32 * u >= a.dv) break;
        unsigned b[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row / 2 * 8 + 2 * i + row % 2, j = w.key + at;
            bool there = EVEN || (j >= w.low && j < w.high && column < a.dv);
            eight_halves v =
                there ? fetch_halves(values + at * pitch + column, true) : eight_halves{};
#pragma unroll
            for (int t = 0; t < 4; t++)
                b[t][i] = v.word[t];
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[t][i] = transpose_halves(b[t][i]);
#pragma unroll
            for (int step = 0; step < 2; step++)
                multiply_heads(s.o[u][t], weights[step], b[t][2 * step], b[t][2 * step + 1]);
        }
    }
}

/* A unit's result to the workspace. */
template <int UNITS, int HALVES, bool TOGETHER>
__device__ static inline void keep_leaf(const attend_problem &a, const row_view &v, int leaf,
                                        int tile, int from, unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float sum = s.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int h = tile * TENSOR_ROWS + lane / 4 + 8 * half;
        tile_row row = find_row<TOGETHER>(a, v, h);
        if (!row.there) continue;
        if (TOGETHER && (v.seen >> a.leaf_bits) + leaf > row.own >> a.leaf_bits) continue;
        float *to =
            a.partial + (((int64_t)row.r * a.heads + row.head) * a.blocks + leaf) * (a.dv + 2);
        if (quarter == 0 && from == 0) *(float2 *)(to + a.dv) = make_float2(s.top[half], sum);
        to += from + 8 * quarter;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (from + 32 * u + 8 * quarter < a.dv)
#pragma unroll
                for (int t = 0; t < 4; t++)
                    *(float2 *)(to + 32 * u + 2 * t) =
                        make_float2(s.o[u][t][2 * half], s.o[u][t][2 * half + 1]);
    }
}

/* Queries of the block's key heads, as the instruction has them; zeros behind them. */
template <bool TOGETHER>
__device__ static inline void load_queries(const attend_problem &a, const tensor_memory &m,
                                           row_view v) {
    const bf16 *q = (const bf16 *)a.q.data;
    int each = queries_step(a), steps = tensor_steps(a);
    uint4 *to = m.q - own_head(a) * each;
    auto load = [&](int h, int column) {
        tile_row row = find_row<TOGETHER>(a, v, h);
        const bf16 *from = q + row.r * a.q_columns + (int64_t)row.head * a.dqk + column;
        bool there = row.there && v.g < a.keys.heads && column < a.dqk;
        return there ? *(const uint2 *)from : make_uint2(0, 0);
    };
    for (int e = (int)threadIdx.x; e < a.own_heads * each; e += (int)blockDim.x) {
        int own = e / each, lane = e % 32, step = (e - own * each) / 32 % steps;
        int h = (e - own * each) / 32 / steps * TENSOR_ROWS + lane / 4;
        int column = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
        v.g = (int)blockIdx.x * a.own_heads + own;
        uint2 high = load(h, column), low = load(h + 8, column);
        to[e] = make_uint4(high.x, low.x, high.y, low.y);
    }
}

template <bool TOGETHER>
__device__ static inline void find_factors(const attend_problem &a, const tensor_memory &m,
                                           row_view v) {
    int heads = tensor_heads(a);
    head_factors *to = m.factors - own_head(a) * heads;
    for (int e = (int)threadIdx.x; e < a.own_heads * heads; e += (int)blockDim.x) {
        int h = e % heads;
        v.g = min((int)blockIdx.x * a.own_heads + e / heads, a.keys.heads - 1);
        to[e] = factors_of(a, find_row<TOGETHER>(a, v, TOGETHER ? h : min(h, a.group - 1)).head);
    }
}

/* Adds the i-th tile of a warp, `use`, of a tile of heads and of columns from `from` on, and asks for the next one. */
template <int UNITS, int HALVES, bool PLAIN, bool TOGETHER>
__device__ static inline void add_tile(const attend_problem &a, const tensor_memory &m,
                                       const row_view &v, int i, int tile, int from,
                                       const tile_walk &use, tile_walk &ask, unit_sums<UNITS> &s) {
    int slot = i & (a.stages - 1); /* 1 or 2 of them */
    const char *stage = m.stages + slot * stage_bytes(a);
    const bf16 *keys = (const bf16 *)stage;
    const uint4 *queries = m.q + tile * tensor_steps(a) * 32;
    const bf16 *values = a.joint ? keys : keys + TENSOR_KEYS * a.dqk;
    bool even = (a.dqk | a.dv) % 32 == 0 && use.high - use.low == TENSOR_KEYS;
    float c[4][4] = {};
    wait_tile(m, slot, i >> (a.stages - 1));
    if (use.high > v.fresh) wait_fresh(a, m, slot, use, v);
    if (even)
        score_tile<true>(a, queries, keys, c);
    else
        score_tile<false>(a, queries, keys, c);
    weigh_tile<UNITS, HALVES, PLAIN, TOGETHER>(a, use, v, m.factors,
                                               (const float *)(stage + pair_bytes(a)), tile, c, s);
    if (even)
        sum_tile<UNITS, HALVES, true>(a, use, values, from, c, s);
    else
        sum_tile<UNITS, HALVES, false>(a, use, values, from, c, s);
    __syncwarp();
    if (ask.there()) ask_for_tile(a, m, slot, ask, v);
}

template <int UNITS> __device__ static inline void clear_sums(unit_sums<UNITS> &s) {
    s = {};
    s.top[0] = s.top[1] = -INFINITY;
}

/* The leaves of a warp. */
template <int UNITS, int HALVES, bool PLAIN, bool TOGETHER>
__device__ static inline void go_through_leaves(const attend_problem &a, const tensor_memory &m,
                                                const row_view &v, tile_walk use, tile_walk ask) {
    int tiles = tensor_heads(a) / TENSOR_ROWS;
    unit_sums<UNITS> s;
    bool fresh = true;
#pragma unroll 1
    for (int i = 0; use.there(); i++) {
        int leaf = use.unit, tile = 0, from = 0;
        if (fresh) clear_sums(s);
        fresh = use.ends_leaf();
        if (a.units > 1) {
            int within = use.unit % a.units;
            leaf = use.unit / a.units;
            tile = within % tiles;
            from = within / tiles * TENSOR_COLUMNS;
        }
        add_tile<UNITS, HALVES, PLAIN, TOGETHER>(a, m, v, i, tile, from, use, ask, s);
        if (fresh) keep_leaf<UNITS, HALVES, TOGETHER>(a, v, leaf, tile, from, s);
        use.advance(a, v);
    }
}

/* A warp's quarter to shared memory. */
template <int UNITS, int HALVES>
__device__ static inline void leave_quarter(const attend_problem &a, const tensor_memory &m,
                                            const unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float sum = s.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int row = (int)threadIdx.x / 32 * TENSOR_ROWS + lane / 4 + 8 * half;
        float *to = m.sums + row * quarter_step(a);
        if (quarter == 0) *(float2 *)(to + a.dv) = make_float2(s.top[half], sum);
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (32 * u + 8 * quarter < a.dv)
#pragma unroll
                for (int t = 0; t < 4; t++)
                    *(float2 *)(to + 32 * u + 8 * quarter + 2 * t) =
                        make_float2(s.o[u][t][2 * half], s.o[u][t][2 * half + 1]);
    }
}

/* The result of a leaf and a tile of heads from its quarters, to the workspace: a head by a warp, two columns
 * by a lane. */
__device__ static inline void join_quarters(const attend_problem &a, const tensor_memory &m,
                                            const row_view &v, int leaf, int tile) {
    int step = quarter_step(a), apart = TENSOR_ROWS * step, lane = (int)threadIdx.x % 32;
    int heads = min((int)TENSOR_ROWS, a.group - tile * TENSOR_ROWS);
    for (int h = (int)threadIdx.x / 32; h < heads; h += (int)blockDim.x / 32) {
        const float *from = m.sums + h * step;
        int64_t head = (int64_t)v.r * a.heads + v.g * a.group + tile * TENSOR_ROWS + h;
        float *to = a.partial + (head * a.blocks + leaf) * (a.dv + 2);
        float top = -INFINITY, total = 0, factor[QUARTERS];
#pragma unroll
        for (int i = 0; i < QUARTERS; i++)
            top = fmaxf(top, from[i * apart + a.dv]);
#pragma unroll
        for (int i = 0; i < QUARTERS; i++) {
            factor[i] = power_of_two(from[i * apart + a.dv] - top);
            total = fmaf(factor[i], from[i * apart + a.dv + 1], total);
        }
        for (int d = 2 * lane; d < a.dv; d += 64) {
            float2 sum = make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < QUARTERS; i++) {
                float2 own = *(const float2 *)(from + i * apart + d);
                sum.x = fmaf(factor[i], own.x, sum.x);
                sum.y = fmaf(factor[i], own.y, sum.y);
            }
            *(float2 *)(to + d) = sum;
        }
        if (lane == 0) *(float2 *)(to + a.dv) = make_float2(top, total);
    }
}

/* The units of a block, whose warps have a quarter of each. */
template <int UNITS, int HALVES, bool PLAIN>
__device__ static inline void go_through_quarters(const attend_problem &a, const tensor_memory &m,
                                                  const row_view &v, int leaves, tile_walk use,
                                                  tile_walk ask) {
    unit_sums<UNITS> s;
    int i = 0;
#pragma unroll 1
    for (int unit = (int)blockIdx.z; unit < leaves * a.units; unit += v.splits) {
        int leaf = unit, tile = 0;
        if (a.units > 1) leaf = unit / a.units, tile = unit % a.units;
        clear_sums(s);
#pragma unroll 1
        for (; use.there() && use.unit == unit; i++, use.advance(a, v))
            add_tile<UNITS, HALVES, PLAIN, false>(a, m, v, i, tile, 0, use, ask, s);
        if (threadIdx.x < 32 * QUARTERS) leave_quarter<UNITS, HALVES>(a, m, s);
        __syncthreads();
        join_quarters(a, m, v, leaf, tile);
        __syncthreads();
    }
}

enum { SINGLE_ROWS, SHARED_ROWS, QUARTERED }; /* how leaves are gone through */

/* Warps from a.warps on only help with queries and joining. PLAIN: adjust_score would do nothing.
 * SHARED_ROWS: rows may share a tile; one that shares it with none goes the way that it has in shorter runs. */
template <int UNITS, int HALVES, bool PLAIN, int WAY>
static __global__ void __launch_bounds__(32 * TENSOR_WARPS, UNITS > 4 ? 1 : 2)
    attend_tiles(const __grid_constant__ attend_problem a) {
    extern __shared__ __align__(128) char tensor_shared[];
    trigger_dependents();
    if (a.documents) wait_for_primary();
    int warp = (int)threadIdx.x / 32, r = WAY == SHARED_ROWS ? find_block_row(a) : (int)blockIdx.y;
    int slot = a.places.slot[r], position = a.places.position[r], own = slot < 0 ? -1 : position;
    const int32_t *table = a.places.table + (int64_t)slot * a.places.pages;
    int first = (int)blockIdx.x * a.own_heads;
    row_view v = {r, first + own_head(a), own, 0, table, 1, a.splits, 0};
    if (slot >= 0) v.seen = first_seen(a, r, v.own);
    if (WAY == SHARED_ROWS) {
        v.rows = count_rows(a, r);
        v.own += v.rows - 1;
        if (v.rows == 1) v.splits = a.apart;
    }
    if (slot >= 0) v.fresh = find_fresh(a, r, slot, v.own);
    bool none = slot < 0 || v.rows == 0;
    int leaves = none ? 0 : (v.own >> a.leaf_bits) - (v.seen >> a.leaf_bits) + 1;
    int sharing = min(v.splits, leaves * a.units);
    bool joins = slot < 0 && blockIdx.z == 0;
    if ((int)blockIdx.z < sharing) {
        tensor_memory m = cut_tensor_memory(a, tensor_shared);
        tile_walk use = {(WAY == QUARTERED ? 0 : warp % a.head_warps * v.splits) + (int)blockIdx.z};
        bool has_leaves = warp < a.warps && v.g < a.keys.heads;
        if (has_leaves) use.enter(a, v);
        tile_walk ask = use;
        bool made = a.scale || a.beta; /* perhaps by the kernel ahead */
        if (!made) find_factors<WAY == SHARED_ROWS>(a, m, v);
        if (has_leaves)
            begin_tiles(a, m, ask, v);
        else
            wait_for_primary();
        if (made) find_factors<WAY == SHARED_ROWS>(a, m, v);
        load_queries<WAY == SHARED_ROWS>(a, m, v);
        __syncthreads();
        if (blockIdx.z == 0) write_row(a, v);
        if (WAY == QUARTERED)
            go_through_quarters<UNITS, HALVES, PLAIN>(a, m, v, leaves, use, ask);
        else if (WAY == SHARED_ROWS && v.rows > 1)
            go_through_leaves<UNITS, 2, PLAIN, true>(a, m, v, use, ask);
        else
            go_through_leaves<UNITS, HALVES, PLAIN, false>(a, m, v, use, ask);
        joins = a.joins && ends_last(a, r, first, sharing);
    } else {
        wait_for_primary();
    }
    if (a.joins && joins) join_group(a, r, first, v.rows);
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x > 0) return;
    if (a.key_write.done) *a.key_write.done = 0;
    if (a.value_write.done) *a.value_write.done = 0;
}

/* Columns of values that a warp sums, by 32. */
static inline int value_units(const attend_problem &a) {
    return a.dv <= 64 ? 2 : a.dv <= 128 ? 4 : 8;
}

/* Blocks that a multiprocessor has room for, by attend_tiles' registers and by their shared memory. */
static inline int64_t count_resident(const attend_problem &a) {
    bool wide = value_units(a) > 4, small = a.all_warps <= SMALL_WARPS;
    int64_t most = small ? (wide ? 2 : SMALL_BLOCKS) : wide ? 1 : 2;
    int64_t driver = 1 << 10, room = weft_cuda_device()->shared_memory + driver;
    return max_i64(1, min_i64(most, room / (tensor_bytes(a) + JOIN_BYTES + driver)));
}

static inline int probe(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* Finds how many blocks each of so many rows and key heads has: those that take the least time, by an estimate that
 * it returns, in tiles. Blocks that there is room for at the same time take as long as one; all multiprocessors
 * have two where there are leaves enough. */
static inline int64_t choose_splits(const attend_problem &a, int64_t rows, int *best) {
    int64_t units = (int64_t)a.blocks * a.units, least = INT64_MAX;
    int64_t pairs = rows * ceil_div(a.keys.heads, a.own_heads);
    int64_t room = count_resident(a) * multiprocessors(), tiles = a.leaf / TENSOR_KEYS;
    int64_t first = max_i64(1, min_i64(units, 2 * multiprocessors() / pairs));
    for (int64_t splits = first; splits <= units; splits++) {
        int64_t own = ceil_div(units, splits); /* of a block; and a warp's tiles */
        int64_t each =
            a.quarters ? ceil_div(own * tiles, a.warps) : ceil_div(own, a.head_warps) * tiles;
        int64_t cost = ceil_div(pairs * splits, room) * (each + probe("WEFT_A_ENDS", ENDS_COST));
        if (cost < least) least = cost, *best = (int)splits;
    }
    return least;
}

/* Rows of a tile, at most, blocks, and warps of each. Blocks are small where they are ready sooner, by a tenth or
 * more: a multiprocessor has more of them at a time, and some read while others begin and end. */
static inline void share_out_leaves(attend_problem *a) {
    int rows = a->places.rows, together = 0;
    bool alone = rows <= TENSOR_APART || a->group > TENSOR_ROWS / 2;
    a->together = alone ? 1 : TENSOR_ROWS / a->group;
    a->all_warps = TENSOR_WARPS;
    int64_t least = choose_splits(*a, rows, &a->splits) * 9 / 10;
    attend_problem large = *a;
    for (int heads = 1; rows <= SMALL_ROWS && !a->quarters && heads <= SMALL_WARPS; heads *= 2) {
        if (probe("WEFT_A_HEADS", heads) != heads) continue;
        attend_problem small = large;
        small.stages = 1;
        small.all_warps = SMALL_WARPS;
        small.own_heads = heads;
        small.head_warps = SMALL_WARPS / heads;
        for (; small.head_warps > 0; small.head_warps--) {
            small.warps = heads * small.head_warps;
            if (count_resident(small) >= SMALL_BLOCKS) break;
        }
        if (small.head_warps == 0) small.head_warps = 1;
        int64_t cost = choose_splits(small, rows, &small.splits);
        if (cost < least) least = cost, *a = small;
    }
    a->apart = a->splits;
    if (!alone) {
        choose_splits(*a, ceil_div(rows, a->together), &together);
        a->splits = max(a->splits, together);
    }
    int64_t each = ceil_div((int64_t)a->blocks * a->units, a->splits);
    if (a->quarters) return;
    a->head_warps = (int)ceil_div(each, ceil_div(each, a->head_warps));
    a->warps = a->own_heads * a->head_warps;
    a->all_warps = max(a->warps, (int)SMALL_WARPS);
}

template <int UNITS> static void (*choose_rows(const attend_problem &a))(const attend_problem) {
    bool plain = !a.rel && !(a.softcap > 0), few = a.group <= TENSOR_ROWS / 2;
    if (a.quarters)
        return plain ? attend_tiles<UNITS, 2, true, QUARTERED>
                     : attend_tiles<UNITS, 2, false, QUARTERED>;
    if (a.together > 1)
        return plain ? attend_tiles<UNITS, 1, true, SHARED_ROWS>
                     : attend_tiles<UNITS, 2, false, SHARED_ROWS>;
    return !plain ? attend_tiles<UNITS, 2, false, SINGLE_ROWS>
           : few  ? attend_tiles<UNITS, 1, true, SINGLE_ROWS>
                  : attend_tiles<UNITS, 2, true, SINGLE_ROWS>;
}

static inline bool fits_block(const attend_problem &a) {
    return tensor_bytes(a) + JOIN_BYTES <= weft_cuda_device()->shared_memory;
}

/* A block's warps and stages. Leaves are quartered where a block has room for the quarters' sums. */
static inline void choose_stages(attend_problem *a, bool quarters) {
    int64_t stages = TENSOR_ROOM / (TENSOR_STAGES * (int64_t)stage_bytes(*a));
    a->quarters = quarters;
    a->stages = quarters ? 1 : TENSOR_STAGES;
    a->own_heads = 1;
    a->head_warps = a->warps = quarters ? QUARTERS : (int)max_i64(1, min_i64(TENSOR_WARPS, stages));
    if (quarters && !fits_block(*a)) choose_stages(a, false);
}

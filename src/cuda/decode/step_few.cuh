/* Products of a step of up to 16 rows (step_kernel.cuh), where latency decides: what costs is not to
 * multiply but to pass numbers on.
 *
 * A block sums all of a product's depth, its splits beside each other, and adds them to the residual
 * stream itself; the norm is made by each block that needs it. So the phases that add and norm fall
 * away, with the same sums in the same order. Of one to four rows the residual stream and the
 * feed-forward's numbers travel with flags: a block that needs them looks at them until they are there,
 * and no barrier comes between. Barriers are left around attention, which lie between two uses of the
 * same place. */
#pragma once

#include "cuda/decode/step_product.cuh"

/* Of a warp's share of a row: its sum and its sum of squares. */
__device__ static inline float2 step_moments(float2 v) {
    return make_float2(step_sum(v.x + v.y), step_sum(fmaf(v.x, v.x, v.y * v.y)));
}

/* Two numbers of a row's norm without gain and offset, of the warps' moments. */
__device__ static inline unsigned step_normed(const step_problem &p, const float2 *moments,
                                              float2 v) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++)
        sum += moments[w].x, squares += moments[w].y;
    float mean = p.rms ? 0 : sum * p.share;
    float rstd = rsqrtf(fmaxf(fmaf(-mean, mean, squares * p.share), 0) + p.eps);
    return step_pack((v.x - mean) * rstd, (v.y - mean) * rstd);
}

__device__ static inline unsigned long long *step_stream_flags(const step_problem &p, int which,
                                                               int r) {
    return p.stream_flags + (which * STEP_FLAGGED + r) * p.width;
}

/* Two numbers of four rows of the residual stream. */
__device__ static inline void step_read_stream(const step_problem &p, const step_memory &m,
                                               int first, int i, float2 (&v)[STEP_FLAGGED]) {
    if (!p.flagged) {
#pragma unroll
        for (int k = 0; k < STEP_FLAGGED; k++)
            if (first + k < p.rows)
                v[k] = __ldcg((const float2 *)(p.stream + (long long)(first + k) * p.width + i));
        return;
    }
    step_pair seen[STEP_FLAGGED] = {};
#pragma unroll
    for (int k = 0; k < STEP_FLAGGED; k++)
        if (k < p.rows) seen[k] = step_look_flagged(step_stream_flags(p, m.latest, k) + i);
#pragma unroll
    for (int k = 0; k < STEP_FLAGGED; k++)
        if (k < p.rows) {
            step_await_flagged(seen[k], step_stream_flags(p, m.latest, k) + i, m.stream_flag);
            v[k] = make_float2(__uint_as_float((unsigned)seen[k].first),
                               __uint_as_float((unsigned)seen[k].second));
        }
}

/* The rows' norms as inputs. */
__device__ static void step_norm_rows(const step_problem &p, const step_memory &m) {
    int i = 2 * m.thread, warp = m.thread / 32;
    bool there = i < p.width;
    for (int first = 0; first < p.rows; first += STEP_FLAGGED) {
        float2 v[STEP_FLAGGED] = {};
        if (there) step_read_stream(p, m, first, i, v);
#pragma unroll
        for (int k = 0; k < STEP_FLAGGED; k++) {
            if (first + k >= p.rows) continue;
            float2 moments = step_moments(v[k]);
            if (m.thread % 32 == 0) m.lines[(first + k) * STEP_WARPS + warp] = moments;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP_FLAGGED; k++)
            if (first + k < p.rows && there)
                *(unsigned *)(m.input + step_input_at<1>(first + k, i)) =
                    step_normed(p, m.lines + (first + k) * STEP_WARPS, v[k]);
    }
}

/* The feed-forward's numbers as inputs, as they come. */
__device__ static void step_take_hidden(const step_problem &p, const step_memory &m) {
    enum { AT_ONCE = 4 };
    int all = p.rows * p.hidden / 4;
    for (int first = m.thread; first < all; first += AT_ONCE * STEP_THREADS) {
        step_pair seen[AT_ONCE] = {};
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * STEP_THREADS < all)
                seen[k] = step_look_flagged(p.hidden_flags + 2 * (first + k * STEP_THREADS));
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int e = first + k * STEP_THREADS;
            if (e >= all) continue;
            step_await_flagged(seen[k], p.hidden_flags + 2 * e, m.hidden_flag);
            *(uint2 *)(m.input + step_input_at<1>(4 * e / p.hidden, 4 * e % p.hidden)) =
                make_uint2((unsigned)seen[k].first, (unsigned)seen[k].second);
        }
    }
}

/* What attention found in one row, where heads have up to PARTS parts and a thread up to ROUNDS times
 * two columns: all of them are read at once, while a warp makes the factors of a head's parts. The sums
 * are those of step_join_few. */
template <int ROUNDS, int PARTS>
__device__ static void step_join_row(const step_problem &p, const step_memory &m, int columns,
                                     int runs) {
    int line = p.dv + STEP_LINE, lane = m.thread % 32;
    float2 v[ROUNDS][PARTS];
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        int at = 2 * (m.thread + k * STEP_THREADS), head = at >> p.dv_bits;
        const float *from = p.parts + (long long)head * p.runs * line + (at & (p.dv - 1));
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            v[k][j] = j < runs && at < columns ? __ldcg((const float2 *)(from + j * line))
                                               : make_float2(0, 0);
    }
    for (int h = m.thread / 32; h < p.heads; h += STEP_WARPS) {
        float2 w = make_float2(-INFINITY, 0);
        if (lane < runs)
            w = __ldcg((const float2 *)(p.parts + ((long long)h * p.runs + lane) * line + p.dv));
        float factor = step_power(w.x - step_max(w.x));
        if (lane < PARTS) m.lines[h * 16 + lane] = make_float2(w.y, factor);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        int at = 2 * (m.thread + k * STEP_THREADS);
        if (at >= columns) continue;
        const float2 *factor = m.lines + (at >> p.dv_bits) * 16;
        float all = 0, x = 0, y = 0;
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            if (j < runs) {
                float2 w = factor[j];
                all = fmaf(w.x, w.y, all);
                x = fmaf(v[k][j].x, w.y, x), y = fmaf(v[k][j].y, w.y, y);
            }
        float inverse = 1 / all;
        *(unsigned *)(m.input + step_input_at<1>(0, at)) = step_pack(x * inverse, y * inverse);
    }
}

__device__ static inline void step_join_few_rows(const step_problem &p, const step_memory &m,
                                                 int columns) {
    int runs = step_runs(p, p.position[0]);
    if (p.rows > 1 || p.heads > STEP_WARPS || runs > 16 || columns > 4 * STEP_THREADS)
        step_join_rows<1>(p, 0, columns, m.input);
    else if (columns <= 2 * STEP_THREADS)
        step_join_row<1, 16>(p, m, columns, runs);
    else if (runs <= 8)
        step_join_row<2, 8>(p, m, columns, runs);
    else
        step_join_rows<1>(p, 0, columns, m.input);
}

__device__ static void step_take_rows(const step_problem &p, const step_phase &f,
                                      const step_memory &m) {
    if (f.source == STEP_FROM_NORM)
        step_norm_rows(p, m);
    else if (f.source == STEP_FROM_HIDDEN && p.flagged)
        step_take_hidden(p, m);
    else if (step_copies(p, f))
        step_copy_rows<1>(p, f, 0, f.depth, m.input);
    else
        step_join_few_rows(p, m, f.depth);
    __syncthreads();
    step_mark(p, m.phase, 1);
}

/* Fetches up to `count` pieces in the place of those that were multiplied, without a branch. */
__device__ static inline void step_fetch_few(step_stream &s, int count) {
    constexpr int DEPTH = step_shape<1>::DEPTH;
#pragma unroll
    for (int k = 0; k < 2 * STEP_SPLITS; k++)
        step_copy_counted(s.ring + ((s.at + k) & (DEPTH - 1)) * STEP_THREADS,
                          s.from + k * STEP_THREADS * 8, k < count && k < s.left, k < count);
    s.from += count * STEP_THREADS * 8;
    s.left -= count;
    s.at = (s.at + count) & (DEPTH - 1);
}

/* The warp's share of up to four sums, two slots at a time: of tiles that share their inputs, or of a
 * tile's splits, which have inputs of their own (APART), `split` chunks apart. What is not there is
 * multiplied as zeros: a branch for each piece takes longer than all of its products, since nothing
 * is loaded ahead of it. */
template <bool APART>
__device__ static inline void step_sum_few(const step_problem &p, const step_memory &m, int groups,
                                           int chunks, int split, step_stream &s,
                                           float (&c)[STEP_SPLITS][1][4]) {
    constexpr int DEPTH = step_shape<1>::DEPTH, INPUTS = APART ? (int)STEP_SPLITS : 1;
    static_assert(DEPTH == 16 && 2 * STEP_SPLITS == 8 && STEP_TILES <= STEP_SPLITS, "pieces");
    int lane = m.thread % 32, warp = m.thread / 32;
    bool upper = lane / 4 < p.rows, lower = lane / 4 + 8 < p.rows;
    const unsigned short *a =
        m.input + step_input_at<1>(lane / 4, warp * STEP_CHUNK + lane % 4 * 8);
    int slots = step_slots(APART ? split : chunks);
#pragma unroll 1
    for (int slot = 0; slot < slots; slot += 2) {
        int pieces = min(2, slots - slot) * groups;
        uint4 b[2][STEP_SPLITS], v[2][INPUTS], w[2][INPUTS];
        step_wait<DEPTH - 8>();
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int g = 0; g < INPUTS; g++) {
                int chunk = (slot + u) * STEP_WARPS + warp;
                bool there = g < groups && slot + u < slots &&
                             chunk < (APART ? min(split, chunks - g * split) : chunks);
                const unsigned short *from =
                    a + ((APART ? g * split : 0) + (slot + u) * STEP_WARPS) * STEP_CHUNK;
                v[u][g] = w[u][g] = make_uint4(0, 0, 0, 0);
                if (there && upper) v[u][g] = *(const uint4 *)from;
                if (there && lower) w[u][g] = *(const uint4 *)(from + 8 * step_shape<1>::STAGE);
            }
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int g = 0; g < STEP_SPLITS; g++) {
                b[u][g] = make_uint4(0, 0, 0, 0);
                if (g < groups && slot + u < slots)
                    b[u][g] = s.ring[((s.at + u * groups + g) & (DEPTH - 1)) * STEP_THREADS];
            }
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int g = 0; g < STEP_SPLITS; g++) {
                    const uint4 &x = v[u][APART ? g : 0], &y = w[u][APART ? g : 0];
                    step_words high = {{x.x, x.y, x.z, x.w}}, low = {{y.x, y.y, y.z, y.w}};
                    step_multiply(c[g][0], high, low, half, half ? b[u][g].z : b[u][g].x,
                                  half ? b[u][g].w : b[u][g].y);
                }
        step_fetch_few(s, pieces);
    }
}

__device__ static inline float step_old(const step_problem &p, const step_memory &m, int r, int n) {
    if (!p.flagged) return __ldcg(p.stream + (long long)r * p.width + n);
    const unsigned long long *from = step_stream_flags(p, m.latest, r) + n;
    unsigned long long v = step_look_one(from);
    while ((unsigned)(v >> 32) != m.stream_flag)
        v = step_look_one(from);
    return __uint_as_float((unsigned)v);
}

/* A tile's splits to the residual stream: a warp has a row, lane 8 k + c split k of column c. */
__device__ static inline void step_add_splits(const step_problem &p, const step_phase &f,
                                              const step_memory &m, int tile, float old) {
    int lane = m.thread % 32, warp = m.thread / 32, column = lane % STEP_COLUMNS;
    int split = lane / STEP_COLUMNS, n = tile * STEP_COLUMNS + column;
    for (int r = warp; r < p.rows; r += STEP_WARPS) {
        const float *sums = m.sums + (split * 16 + r) * STEP_COLUMNS + column;
        float sum = 0;
        if (split < f.splits)
#pragma unroll
            for (int w = 0; w < STEP_WARPS; w++)
                sum += sums[w * STEP_SPLITS * 16 * STEP_COLUMNS];
        if (p.n_biases) sum += split == 0 ? m.bias[column] : 0.0f;
        float v = r == warp ? old : step_old(p, m, r, n);
#pragma unroll
        for (int k = 0; k < STEP_SPLITS; k++) {
            float one = __shfl_sync(0xffffffffu, sum, k * STEP_COLUMNS + column);
            if (k < f.splits) v += one;
        }
        if (lane >= STEP_COLUMNS) continue;
        if (p.flagged)
            step_put_flagged(step_stream_flags(p, 1 - m.latest, r) + n, __float_as_uint(v),
                             p.flags + (unsigned)m.phase);
        else
            p.stream[(long long)r * p.width + n] = v;
    }
}

/* A product that adds to the residual stream. */
__device__ static void step_product_adds(const step_problem &p, const step_phase &f, step_memory &m,
                                         step_stream &s) {
    int first = step_first_item(f), lane = m.thread % 32, warp = m.thread / 32;
    for (int tile = first; tile < f.tiles; tile += (int)gridDim.x) {
        float c[STEP_SPLITS][1][4] = {}, old = 0;
        if (lane < STEP_COLUMNS && warp < p.rows)
            old = step_old(p, m, warp, tile * STEP_COLUMNS + lane);
        if (tile == first) step_take_rows(p, f, m);
        step_sum_few<true>(p, m, f.splits, f.chunks, f.split, s, c);
        step_mark(p, m.phase, 2);
        step_spread_sums<1>(p, m, f.splits, c);
        __syncthreads();
        step_mark(p, m.phase, 3);
        step_add_splits(p, f, m, tile, old);
        step_mark(p, m.phase, 4);
        m.bias += STEP_COLUMNS;
        if (tile + (int)gridDim.x < f.tiles) __syncthreads();
    }
}

template <int MT>
__device__ static void step_product(const step_problem &p, const step_phase &f, step_memory &m,
                                    step_stream &s) {
    static_assert(STEP_TILES * STEP_COLUMNS * 16 * MT <= MT * STEP_THREADS, "results of a thread");
    int all = step_items(f), grid = (int)gridDim.x, first = step_first_item(f);
    int step = step_item_step(f, grid);
    for (int i = first; i < all; i += step) {
        step_item t = step_item_at(f, i, grid);
        bool fresh = i == first || f.splits > 1;
        float c[step_shape<MT>::GROUPS][MT][4] = {};
        if constexpr (MT == 1) {
            if (fresh) step_take_rows(p, f, m);
            step_sum_few<false>(p, m, t.tiles, f.chunks, f.chunks, s, c);
        } else if (step_has_bulk() && step_copies(p, f)) {
            step_sum_stages<MT>(p, f, t, m, s, fresh, c);
        } else {
            step_sum_panels<MT>(p, f, t, m, s, fresh, c);
        }
        step_mark(p, m.phase, 2);
        step_spread_sums<MT>(p, m, t.tiles, c);
        __syncthreads();
        step_mark(p, m.phase, 3);
        step_put_results<MT>(p, f, m, t);
        step_mark(p, m.phase, 4);
        m.bias += t.tiles * STEP_COLUMNS;
        if (i + step < all) __syncthreads();
    }
}

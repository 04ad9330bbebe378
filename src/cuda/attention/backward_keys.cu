/* FlashAttention's backward pass by keys, on the tensor cores: dK and dV, and W2's dn and the gradients
 * of the numbers a head.
 *
 * Scores are transposed: a warpgroup has 64 keys, and of each tile of queries makes Sᵀ = K Qᵀ and
 * dPᵀ = V dOᵀ, and from them, in registers, Pᵀ and dSᵀ = Pᵀ ∘ (dPᵀ − D). There they are as the next
 * products want them, dV += Pᵀ dO and dK += dSᵀ Q. Where those are too wide (SPLIT, shapes.cuh) two
 * warpgroups have the same keys, and exchange Pᵀ and dSᵀ in shared memory. */
#include "cuda/attention/tiles.cuh"

/* Queries of a tile whose scores a warpgroup makes. */
template <typename S> constexpr int queries_each = S::QUERIES / S::SPLIT;

/* A block's keys and query heads, and where it is among the queries. Blocks whose keys most queries
 * see come first. */
struct key_block {
    int b, kv, tile, part, j0;
    int first_head, heads;
    int first, per_head; /* first query of a head that is read, and tiles of them */
    int hides;           /* queries behind the first so many do not see all of the keys */
};

template <typename S>
__device__ static inline key_block place_keys(const attention_problem &p, int parts) {
    key_block t = {};
    int column = column_index(), columns = p.kv_heads * parts; /* of a sequence */
    t.tile = (int)blockIdx.y;
    t.b = (int)((unsigned)column / (unsigned)columns);
    column -= t.b * columns;
    t.kv = parts == 1 ? column : column / parts;
    t.part = column - t.kv * parts;
    if (t.b >= p.batch) return t;
    t.j0 = t.tile * S::KEYS;
    int from = first_head_of(p, t.kv), group = first_head_of(p, t.kv + 1) - from;
    t.first_head = from + group * t.part / parts;
    t.heads = from + group * (t.part + 1) / parts - t.first_head;
    t.first = p.causal ? t.j0 / S::QUERIES * S::QUERIES : 0;
    int end = queries_before(p, t.b, t.j0 + S::KEYS);
    t.per_head = t.first < end ? (end - t.first + S::QUERIES - 1) / S::QUERIES : 0;
    t.hides = hides_keys(p) ? queries_before(p, t.b, t.j0 + 1) : INT_MAX;
    return t;
}

/* What a thread has of a head where there are extras: numbers of its two keys, and sums. */
struct key_extras {
    float bias[2];          /* of the exponent */
    float number_of_key[2]; /* the bias without the position's */
    float centred[2];       /* n_j − n_0 */
    float column[4];        /* Σ_i ds_ij: of the first key and of the second, in halves */
    float dn[2];
    float number[4]; /* in four, so that no sum waits for the one before */
    float slope;     /* to the base 2 */
    float beta;
};

/* Where a warp has its part of the numbers of head h. */
__device__ static inline double *numbers_of_warp(const attention_problem &p,
                                                 const flash_workspace &w, const key_block &t,
                                                 int h, int tiles) {
    int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    return w.numbers + ((((int64_t)t.b * p.heads + h) * tiles + t.tile) * warps + warp) * NUMBERS;
}

/* Adds the head's columns to dn, and writes what the warp has of the numbers a head. */
__device__ static inline void end_head(const attention_problem &p, const flash_workspace &w,
                                       const key_block &t, int h, int tiles, key_extras &e) {
    float number = e.number[0] + e.number[1] + e.number[2] + e.number[3], by_n = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float column = e.column[2 * r] + e.column[2 * r + 1];
        by_n = fmaf(column, e.centred[r], by_n);
        column += __shfl_xor_sync(0xffffffffu, column, 1);
        column += __shfl_xor_sync(0xffffffffu, column, 2);
        e.dn[r] += e.beta * column;
    }
    if (!w.numbers) return;
    number = warp_sum(number);
    by_n = warp_sum(by_n);
    if (threadIdx.x % 32 != 0) return;
    double *to = numbers_of_warp(p, w, t, h, tiles);
    to[0] = (double)number * (w.shift ? 1.0 : (double)LN2);
    to[1] = (double)by_n;
}

__device__ static inline void write_numbers_of_keys(const attention_problem &p,
                                                    const attention_gradients &g,
                                                    const flash_workspace &w, const key_block &t,
                                                    int row, const key_extras &e) {
    float *dn = w.parts > 1 ? w.dn : g.dn;
    int64_t at = ((int64_t)(t.part * p.batch + t.b) * p.kv_heads + t.kv) * p.keys;
    if (!dn || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (t.j0 + row + 8 * r < p.keys) dn[at + t.j0 + row + 8 * r] = e.dn[r];
}

/* The thread's rows of a part of dK or dV, columns from column0 on of `width`. */
template <int N>
__device__ static inline void write_part(const attention_problem &p, const key_block &t, int row,
                                         int column0, int width, float *to,
                                         const float (&c)[N / 8][4], float factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int j = t.j0 + row + 8 * r, column = column0 + (int)threadIdx.x % 4 * 2;
        if (j >= p.keys) continue;
        int64_t place = ((int64_t)(t.part * p.batch + t.b) * p.keys + j) * p.kv_heads + t.kv;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            if (8 * n + column < width)
                *(float2 *)(to + place * width + 8 * n + column) =
                    make_float2(c[n][2 * r] * factor, c[n][2 * r + 1] * factor);
    }
}

/* Where a warpgroup's tile of pairs is. */
struct transposed_tile {
    const float *lse, *total, *shift; /* of the tile's queries */
    const float *ring;                /* biases of distances */
    int bias_at;                      /* of the thread's first pair */
    int distance;                     /* from the block's first key to the tile's first place */
    int row;                          /* the thread's first key in the block */
    bool wants_scale;
    int b, i0, j0; /* sequence, first query, the block's first key */
};

/* Pᵀ from Sᵀ, which becomes the exponents where EXTENT is KEYED. */
template <int QUERIES, int EXTENT, bool MASKED, int RING>
__device__ static inline void
make_p_transposed(float (&s)[QUERIES / 8][4], float (&weight)[QUERIES / 8][4],
                  const attention_problem &p, const transposed_tile &t, float scale,
                  const key_extras &e) {
    int column = threadIdx.x % 4 * 2;
    float factor = scale * LOG2E;
    distance_biases<RING> distances(t.ring, t.bias_at);
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        int place = t.distance + 8 * n + column;
        float2 lse = *(const float2 *)(t.lse + 8 * n + column);
        float further[4] = {};
        if constexpr (EXTENT == RELATIVE) distances.next(further);
        if (EXTENT == GENERAL) {
            lse.x += e.slope * (float)place;
            lse.y += e.slope * (float)(place + 1);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float less = i % 2 ? lse.y : lse.x;
            float x = EXTENT != BARE ? e.bias[i / 2] - less : -less;
            if (EXTENT == RELATIVE) x += further[i];
            x = fmaf(s[n][i], factor, x);
            if (EXTENT == CAPPED)
                x = softcapped(s[n][i] * factor, p.softcap * LOG2E) + (e.bias[i / 2] - less);
            if (MASKED && t.row + i / 2 * 8 > place + i % 2) x = -NOTHING;
            if (EXTENT == KEYED) s[n][i] = x;
            weight[n][i] = power_of_two(x);
        }
    }
}

/* Weights of keys that come before the first that a query sees, to 0. */
template <int QUERIES>
__device__ static inline void hide_transposed(float (&weight)[QUERIES / 8][4],
                                              const attention_problem &p,
                                              const transposed_tile &t) {
    const int32_t *document = p.first ? p.first + (int64_t)t.b * p.queries : NULL;
    int column = threadIdx.x % 4 * 2, reach = p.reach ? p.reach : INT_MAX / 2;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) { /* in the block, as t.row is */
            int i = 8 * n + column + r, first = t.distance + i + 1 - reach;
            if (document) first = max(first, document[min(t.i0 + i, p.queries - 1)] - t.j0);
            if (t.row < first) weight[n][r] = 0;
            if (t.row + 8 < first) weight[n][2 + r] = 0;
        }
}

/* dPᵀ to dSᵀ, in place, and its sums. dSᵀ has the scale in it where EXTENT is GENERAL or RELATIVE. */
template <int QUERIES, int EXTENT>
__device__ static inline void
make_ds_transposed(const float (&s)[QUERIES / 8][4], const float (&weight)[QUERIES / 8][4],
                   float (&dp)[QUERIES / 8][4], const attention_problem &p,
                   const transposed_tile &t, float scale, key_extras &e) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 total = *(const float2 *)(t.total + 8 * n + column);
        float2 less = make_float2(0, 0);
        if (EXTENT >= GENERAL)
            less = *(const float2 *)((t.wants_scale ? t.shift : t.lse) + 8 * n + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float ds = weight[n][i] * (dp[n][i] - (i % 2 ? total.y : total.x));
            if (EXTENT == CAPPED)
                ds *= soft_slope(weight[n][i], t.lse[8 * n + column + i % 2], p.softcap * LOG2E);
            float by = s[n][i];
            if (EXTENT >= GENERAL) {
                /* dlog_tau has no part of the position's. */
                if (!t.wants_scale) by = fmaf(by, scale * LOG2E, e.number_of_key[i / 2]);
                by -= i % 2 ? less.y : less.x;
            }
            if (EXTENT != BARE) {
                e.column[i] += ds;
                e.number[i] = fmaf(ds, by, e.number[i]);
            }
            dp[n][i] = EXTENT >= GENERAL ? ds * scale : ds;
        }
    }
}

/* What TMA copies for a block, a step ahead: every thread calls the stages, one asks. A stage has a
 * tile of queries, of dO, and of their numbers. */
template <typename S> struct key_loads {
    static constexpr int q_bytes = tile_bytes<S::QUERIES, S::DQK>,
                         do_bytes = tile_bytes<S::QUERIES, S::DV>;
    static constexpr int rows_bytes = S::QUERIES * (int)sizeof(float);

    row_source q, d_o, k, v;
    uint32_t base; /* of the tiles in shared memory */
    int heads, steps;
    int next_head, next_at, next_stage; /* that is copied next */

    __device__ inline void load_queries(const key_block &t, const flash_workspace &w, int more) {
        int i = t.first + next_at * S::QUERIES;
        int64_t numbers = ((int64_t)t.b * heads + next_head) * w.padded + i;
        uint32_t barrier = base + S::BARRIERS + (uint32_t)next_stage * 8;
        uint32_t rows = base + S::ROWS + (uint32_t)(next_stage * 3 * rows_bytes);
        expect_tx(barrier, more + q_bytes + do_bytes + (w.shift ? 3 : 2) * rows_bytes);
        tma_load<S::QUERIES, S::DQK, S::THREADS>(base + S::Q + (uint32_t)(next_stage * q_bytes), q,
                                                 t.b, i, next_head, barrier);
        tma_load<S::QUERIES, S::DV, S::THREADS>(base + S::D_O + (uint32_t)(next_stage * do_bytes),
                                                d_o, t.b, i, next_head, barrier);
        bulk_load<S::QUERIES>(rows, w.lse + numbers, barrier);
        bulk_load<S::QUERIES>(rows + rows_bytes, w.total + numbers, barrier);
        if (w.shift) bulk_load<S::QUERIES>(rows + 2 * rows_bytes, w.shift + numbers, barrier);
        next_stage = next_stage + 1 == S::STAGES ? 0 : next_stage + 1;
        if (++next_at < t.per_head) return;
        next_at = 0;
        next_head++;
    }

    /* The keys, the values and the first queries. */
    __device__ inline void begin(const key_block &t, const flash_workspace &w) {
        init_barriers(base + S::BARRIERS, S::STAGES);
        if (steps > 0) {
            load_queries(t, w, tile_bytes<S::KEYS, S::DQK> + tile_bytes<S::KEYS, S::DV>);
            tma_load<S::KEYS, S::DQK, S::THREADS>(base + S::K, k, t.b, t.j0, t.kv,
                                                  base + S::BARRIERS);
            tma_load<S::KEYS, S::DV, S::THREADS>(base + S::V, v, t.b, t.j0, t.kv,
                                                 base + S::BARRIERS);
        }
        commit_loads();
    }

    __device__ inline void wait_for(int step) {
        wait_barrier(base + S::BARRIERS + (uint32_t)(step % S::STAGES * 8), step / S::STAGES);
        sync_block();
    }

    /* During step `step`: the queries of the next. */
    __device__ inline void load_ahead(const key_block &t, const flash_workspace &w, int step) {
        if (step + 1 < steps) load_queries(t, w, 0);
        commit_loads();
    }
};

/* Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, of the tile's queries from i0 on: begin. */
template <typename S, int N>
__device__ static inline void start_scores(float (&s)[N / 8][4], float (&dp)[N / 8][4],
                                           uint32_t base, int first_key, int i0, int stage) {
    uint32_t q_tile = base + S::Q + (uint32_t)(stage * tile_bytes<S::QUERIES, S::DQK>);
    uint32_t do_tile = base + S::D_O + (uint32_t)(stage * tile_bytes<S::QUERIES, S::DV>);
    q_tile += (uint32_t)(i0 * tile_panel<S::DQK>::bytes);
    do_tile += (uint32_t)(i0 * tile_panel<S::DV>::bytes);
    multiply_tiles<N, S::DQK, S::KEYS, S::QUERIES>(s, base + S::K, first_key, q_tile);
    end_products();
    multiply_tiles<N, S::DV, S::KEYS, S::QUERIES>(dp, base + S::V, first_key, do_tile);
    end_products();
}

/* dV += Pᵀ dO or dK += dSᵀ Q, of tiles D wide from `tiles` on: begins. The weights are in registers;
 * where warpgroups share keys they are in a tile, and N columns from half · N on are added. */
template <typename S, int D, int N>
__device__ static inline void start_sum(float (&c)[N / 8][4],
                                        const uint32_t (&weights)[queries_each<S> / 16][4],
                                        uint32_t exchange, uint32_t tiles, int half, int stage) {
    uint32_t tile = tiles + (uint32_t)(stage * tile_bytes<S::QUERIES, D>);
    if constexpr (S::SPLIT == 1)
        add_weighted<S::QUERIES, D>(c, weights, tile);
    else
        add_tiles<S::QUERIES, N, D>(c, exchange, tile, half * N);
    end_products();
}

/* Three blocks' registers do not hold the exponents too. */
template <typename S, int EXTENT> constexpr int blocks_of() {
    return EXTENT == BARE || S::BLOCKS < 3 ? S::BLOCKS : 2;
}

/* dK, dV and what else the block's keys have, to memory. `seen`: some query saw one of the warpgroup's
 * keys; keys that nobody sees have gradients of 0, and may not have been copied. */
template <typename S, int EXTENT>
__device__ static inline void
write_gradients(const attention_problem &p, const attention_gradients &g, const flash_workspace &w,
                const row_maps &maps, const key_block &t, uint32_t base, int first_key, int half,
                int row, bool seen, float scale, const key_extras &e,
                float (&dk)[S::DQK / S::SPLIT / 8][4], float (&dv)[S::DV / S::SPLIT / 8][4]) {
    constexpr int DQK = S::DQK / S::SPLIT, DV = S::DV / S::SPLIT; /* the warpgroup's columns */
    float factor = EXTENT >= GENERAL ? 1.0f : scale;
    if (EXTENT != BARE && half == 0) write_numbers_of_keys(p, g, w, t, row, e);
    if (w.parts > 1) {
        write_part<DQK>(p, t, row, half * DQK, p.dqk, w.dk, dk, factor);
        write_part<DV>(p, t, row, half * DV, p.dv, w.dv, dv, 1.0f);
        return;
    }
    int j0 = t.j0 + first_key;
    if (j0 >= p.keys) return;
    if (EXTENT != BARE && g.finish.k && seen) {
        float twice[2] = {g.finish.n ? 2 * e.dn[0] : 0.0f, g.finish.n ? 2 * e.dn[1] : 0.0f};
        finish_gaussians<S::KEYS, S::DQK, DQK, true>(dk, factor, base + S::K, first_key, half * DQK,
                                                     p.dqk, twice);
        factor = 1;
    }
    if (g.dv.data)
        tma_store<S::KEYS, S::DV, DV>({&maps.dv, &g.dv, p.keys, p.dv}, base + S::V, first_key,
                                      half * DV, t.b, j0, t.kv, dv, 1.0f);
    if (g.dk.data)
        tma_store<S::KEYS, S::DQK, DQK>({&maps.dk, &g.dk, p.keys, p.dqk}, base + S::K, first_key,
                                        half * DQK, t.b, j0, t.kv, dk, factor);
    wait_stores();
}

/* Biases of the distances between the block's keys and a tile of queries, of which the first is
 * `distance` from the block's first key: read while the tile before is at work, stored behind it. */
template <typename S> struct transposed_distances {
    static constexpr int COUNT = S::KEYS + S::QUERIES;
    static_assert(2 * COUNT <= S::RING && COUNT <= S::THREADS, "two tiles, a number a thread");
    float *ring;
    float number;

    __device__ inline void read(const attention_problem &p, int distance) {
        if ((int)threadIdx.x < COUNT)
            number = relative_bias(p, distance - (S::KEYS - 1) + (int)threadIdx.x);
    }

    __device__ inline void store(int step) {
        if ((int)threadIdx.x < COUNT) ring[step % 2 * COUNT + threadIdx.x] = number;
    }

    /* Of the pair of the block's key `row` and the tile's query i. */
    __device__ static inline int place(int step, int row, int i) {
        return step % 2 * COUNT + S::KEYS - 1 + i - row;
    }
};

/* A tile of queries: loaded by TMA a step ahead, then K Qᵀ and V dOᵀ, Pᵀ, dV += Pᵀ dO, dSᵀ, and
 * dK += dSᵀ Q. Pᵀ is made while dPᵀ is multiplied, dSᵀ while dV is; where warpgroups share keys, both
 * sums come behind the exchange of Pᵀ and dSᵀ. */
template <typename S, int EXTENT>
static __global__ void __launch_bounds__(S::THREADS, blocks_of<S, EXTENT>())
    flash_backward_dkdv_kernel(const __grid_constant__ attention_problem p,
                               const __grid_constant__ attention_gradients g,
                               const __grid_constant__ flash_workspace w,
                               const __grid_constant__ row_maps maps) {
    constexpr int N = queries_each<S>, DQK = S::DQK / S::SPLIT, DV = S::DV / S::SPLIT;
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    key_block t = place_keys<S>(p, w.parts);
    if (t.b >= p.batch) return;
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int first_key = warpgroup / S::SPLIT * 64, half = warpgroup % S::SPLIT;
    int row = first_key + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    int steps = t.per_head * t.heads, tiles = (int)gridDim.y;
    row_source q = {&maps.q, &p.q, p.queries, p.dqk}, k = {&maps.k, &p.k, p.keys, p.dqk};
    row_source d_o = {&maps.d_o, &g.d_o, p.queries, p.dv}, v = {&maps.v, &p.v, p.keys, p.dv};
    key_loads<S> loads = {q, d_o, k, v, base, p.heads, steps, t.first_head, 0, 0};
    loads.begin(t, w);
    float dk[DQK / 8][4], dv[DV / 8][4], scale = p.scale_value;
    float s[N / 8][4], dp[N / 8][4], weight[N / 8][4];
    uint32_t weights[N / 16][4], ds[N / 16][4];
    key_extras e = {};
    transposed_distances<S> distances = {(float *)(aligned + S::DISTANCES), 0};
    clear_sums(dk);
    clear_sums(dv);
    int h = t.first_head, at = 0; /* head, and tile of it */
    auto enter_head = [&]() {
        head_numbers f = numbers_of_head(p, h);
        const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
        scale = f.scale;
        e.slope = f.slope * LOG2E;
        e.beta = f.beta;
#pragma unroll
        for (int i = 0; i < 4; i++)
            e.number[i] = e.column[i] = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int j = t.j0 + row + 8 * r;
            e.number_of_key[r] = n && j < p.keys ? f.beta * LOG2E * n[j] : 0.0f;
            e.centred[r] = n && j < p.keys ? n[j] - n[0] : 0.0f;
            e.bias[r] = -NOTHING;
            if (j < p.keys) e.bias[r] = fmaf(e.slope, (float)(row + 8 * r), e.number_of_key[r]);
        }
    };
    auto leave_step = [&]() {
        if (++at < t.per_head) return;
        if (EXTENT >= GENERAL) end_head(p, w, t, h, tiles, e);
        at = 0;
        h++;
    };
    auto distance_of = [&](int tile) { return t.first + tile * S::QUERIES - t.j0; };
    auto place_pairs = [&](int step, int stage) {
        const float *rows = (const float *)(aligned + S::ROWS) + stage * 3 * S::QUERIES + half * N;
        int bias_at = distances.place(step, row, half * N + (int)threadIdx.x % 4 * 2);
        return transposed_tile{rows,
                               rows + S::QUERIES,
                               rows + 2 * S::QUERIES,
                               distances.ring,
                               bias_at,
                               distance_of(at) + half * N,
                               row,
                               w.shift != NULL,
                               t.b,
                               t.first + at * S::QUERIES + half * N,
                               t.j0};
    };
    auto weigh = [&](int step, int stage) {
        transposed_tile pairs = place_pairs(step, stage);
        if (p.causal && pairs.distance < first_key + 63)
            make_p_transposed<N, EXTENT, true, S::RING>(s, weight, p, pairs, scale, e);
        else
            make_p_transposed<N, EXTENT, false, S::RING>(s, weight, p, pairs, scale, e);
        if (pairs.i0 + N > t.hides) hide_transposed<N>(weight, p, pairs);
    };
    auto slope = [&](int step, int stage) {
        make_ds_transposed<N, EXTENT>(s, weight, dp, p, place_pairs(step, stage), scale, e);
    };
    /* The first tile in which one of the warpgroup's keys is seen. */
    int from = p.causal ? max(0, first_key - (t.first - t.j0)) / S::QUERIES : 0;
    if (t.j0 + first_key >= p.keys || from >= t.per_head) from = steps;
    if (EXTENT != BARE) enter_head(); /* while the first tiles are copied */
    if (EXTENT == RELATIVE) {
        distances.read(p, distance_of(from));
        distances.store(from);
    }
    for (int step = 0; step < from; step++) {
        loads.wait_for(step);
        loads.load_ahead(t, w, step);
    }
    int stage = from % S::STAGES;
    at = from;
    for (int step = from; step < steps; step++) {
        loads.wait_for(step);
        if (EXTENT >= GENERAL && at == 0 && step > from) enter_head();
        begin_products();
        start_scores<S, N>(s, dp, base, first_key, half * N, stage);
        loads.load_ahead(t, w, step);
        if (EXTENT == RELATIVE) distances.read(p, distance_of(at + 1 < t.per_head ? at + 1 : 0));
        wait_products<1>();
        settle(s);
        weigh(step, stage);
        pack_fragments<N>(weight, weights);
        if constexpr (S::SPLIT == 1) {
            begin_products();
            start_sum<S, S::DV, DV>(dv, weights, 0, base + S::D_O, 0, stage);
            wait_products<1>();
        } else {
            store_weights<S::QUERIES, N>(base + S::P, half * N, weights);
            wait_products<0>();
        }
        settle(dp);
        slope(step, stage);
        pack_fragments<N>(dp, ds);
        if constexpr (S::SPLIT > 1) {
            store_weights<S::QUERIES, N>(base + S::DS, half * N, ds);
            publish_words();
            sync_block();
            begin_products();
            start_sum<S, S::DV, DV>(dv, weights, base + S::P, base + S::D_O, half, stage);
        } else {
            begin_products();
        }
        start_sum<S, S::DQK, DQK>(dk, ds, base + S::DS, base + S::Q, half, stage);
        wait_products<0>();
        settle(dv);
        settle(dk);
        if (EXTENT == RELATIVE) distances.store(step + 1);
        leave_step();
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    if (EXTENT == KEYED && from < steps) end_head(p, w, t, t.first_head, tiles, e);
    if (EXTENT != BARE && from >= steps && w.numbers && lane == 0)
        for (int i = 0; i < t.heads; i++) {
            double *to = numbers_of_warp(p, w, t, t.first_head + i, tiles);
            to[0] = to[1] = 0;
        }
    if constexpr (EXTENT != BARE &&
                  S::SPLIT > 1) { /* dn of the warpgroups that share keys, in order */
        static_assert(S::KEYS == 64 && S::SPLIT <= 3 * S::STAGES * S::QUERIES / 64, "room in ROWS");
        float *shares = (float *)(aligned + S::ROWS);
        sync_block();
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (threadIdx.x % 4 == 0) shares[warpgroup * 64 + row + 8 * r] = e.dn[r];
        sync_block();
#pragma unroll
        for (int r = 0; r < 2; r++)
            e.dn[r] = shares[row + 8 * r] + shares[64 + row + 8 * r];
    }
    write_gradients<S, EXTENT>(p, g, w, maps, t, base, first_key, half, row, from < steps, scale, e,
                               dk, dv);
}

void flash_backward_dkdv(const attention_problem &p, const attention_gradients &g,
                         const flash_workspace &w, cudaStream_t stream) {
    /* Blocks of one query head, and no sums but dn, dbeta and dlog_tau. */
    bool keyed = p.heads == p.kv_heads * w.parts && p.pos == WEFT_POS_NONE && !g.dscale;
    with_widths(p, [&](auto widths) {
        using W = decltype(widths);
        using S = typename W::BY_KEYS;
        int64_t columns = (int64_t)p.batch * p.kv_heads * w.parts;
        dim3 blocks = group_blocks(columns, ceil_div(p.keys, S::KEYS));
        with_extent<W>(p, [&](auto extent) {
            constexpr int EXTENT = decltype(extent)::value;
            auto kernel = flash_backward_dkdv_kernel<S, EXTENT>;
            if (EXTENT == KEYED && !keyed) kernel = flash_backward_dkdv_kernel<S, GENERAL>;
            launch_backward<S>(kernel, p, g, w, blocks, stream);
        });
    });
}

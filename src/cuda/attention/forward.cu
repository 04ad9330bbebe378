/* FlashAttention's forward pass on the tensor cores, with W2's scores too.
 *
 * A block has WARPGROUPS · 64 queries of one head and walks the keys in tiles, while TMA loads the next
 * tile. A warpgroup makes the scores of its 64 queries with the tile, S = Q Kᵀ, takes their softmax in
 * registers, where P already is as the second product wants it, and adds O += P V. The softmax is
 * online: a row keeps its largest score and its sum, and both and O are scaled down when the largest
 * grows. Exponents are to the base 2, log2(e) being part of the scale.
 *
 * Where a score has more than ⟨q, k⟩ times one positive constant (not BARE), it is scale · ⟨q, k⟩ plus
 * one number per key, beta · n_j + slope · (j − first place of the block). ALiBi's other half, slope
 * times the place in the block, is the same for a whole row: it joins the logsumexp alone. A RELATIVE
 * position adds one number per distance.
 *
 * tiles.cuh says in which order blocks come. */
#include "cuda/attention/tiles.cuh"

/* The rows of a thread: lane / 4 of its warp's sixteen, and eight further down. */
struct row_pair {
    float top[2], sum[2];
    int limit[2]; /* last key that is seen */
};

/* Scores to weights, in place. Returns by `rescale` what sums so far are worth now. */
template <int KEYS, int EXTENT, int RING>
__device__ static inline void online_softmax(float (&s)[KEYS / 8][4], row_pair &rows,
                                             const attention_problem &p, const query_block &t,
                                             const float *bias, const float *ring, int row, int j0,
                                             bool masked, bool hidden, float (&rescale)[2]) {
    float scale = t.scale;
    constexpr bool EXTRA = EXTENT != BARE;
    int column = threadIdx.x % 4 * 2;
    if (EXTRA)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float2 b = *(const float2 *)(bias + 8 * n + column);
            s[n][0] = fmaf(s[n][0], scale, b.x);
            s[n][1] = fmaf(s[n][1], scale, b.y);
            s[n][2] = fmaf(s[n][2], scale, b.x);
            s[n][3] = fmaf(s[n][3], scale, b.y);
        }
    if constexpr (EXTENT == RELATIVE) {
        distance_biases<RING> distances(ring, j0 + column - row);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float b[4];
            distances.next(b);
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] += b[i];
        }
    }
    if (EXTENT == CAPPED)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = softcapped(s[n][i], p.softcap * LOG2E);
    if (masked)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (j0 + 8 * n + column + i % 2 > rows.limit[i / 2]) s[n][i] = -INFINITY;
    if (hidden) hide_keys(s, p, t, row, column, j0, -INFINITY);
    float factor = EXTRA ? 1.0f : scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < KEYS / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(rows.top[r], top * factor);
        rescale[r] = power_of_two(rows.top[r] - top);
        rows.top[r] = top;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = power_of_two(EXTRA ? s[n][i] - top : fmaf(s[n][i], scale, -top));
                sum += s[n][i];
            }
        rows.sum[r] = rows.sum[r] * rescale[r] + sum;
    }
}

/* What TMA copies for a block, a step ahead: every thread calls the stages, one asks. */
template <typename S, int EXTENT> struct forward_loads {
    static constexpr int k_bytes = tile_bytes<S::KEYS, S::DQK>,
                         v_bytes = tile_bytes<S::KEYS, S::DV>;

    row_source q, k, v;
    uint32_t base; /* of the tiles in shared memory */
    key_biases<S::KEYS, S::QUERIES, EXTENT> biases;
    int steps;

    __device__ inline void load_keys(const query_block &t, int step, uint32_t barrier) {
        tma_load<S::KEYS, S::DQK, S::THREADS>(base + S::K + (uint32_t)((step & 1) * k_bytes), k,
                                              t.b, t.key0 + step * S::KEYS, t.kv, barrier);
    }

    __device__ inline void load_values(const query_block &t, int step, uint32_t barrier) {
        tma_load<S::KEYS, S::DV, S::THREADS>(base + S::V + (uint32_t)((step & 1) * v_bytes), v, t.b,
                                             t.key0 + step * S::KEYS, t.kv, barrier);
    }

    /* The queries and the first keys. */
    __device__ inline void begin(const query_block &t) {
        init_barriers(base + S::BARRIERS, 2);
        expect_tx(base + S::BARRIERS, tile_bytes<S::QUERIES, S::DQK> + k_bytes);
        tma_load<S::QUERIES, S::DQK, S::THREADS>(base + S::Q, q, t.b, t.i0, t.h,
                                                 base + S::BARRIERS);
        load_keys(t, 0, base + S::BARRIERS);
        commit_loads();
    }

    /* Before step `step`: its keys and the values of the one before are there. */
    __device__ inline void wait_for(int step) {
        wait_barrier(base + S::BARRIERS + (uint32_t)((step & 1) * 8), step / 2);
        sync_block();
    }

    /* During step `step`: its values, and the keys of the next. */
    __device__ inline void load_ahead(const query_block &t, int step) {
        uint32_t barrier = base + S::BARRIERS + (uint32_t)((step + 1 & 1) * 8);
        bool more = step + 1 < steps;
        if (step < steps) {
            expect_tx(barrier, v_bytes + (more ? k_bytes : 0));
            load_values(t, step, barrier);
        }
        if (more) {
            load_keys(t, step + 1, barrier);
            biases.advance(t, step + 1);
        }
        commit_loads();
    }
};

/* S = Q Kᵀ: begins. */
template <typename S, int STEPS>
__device__ static inline void start_qk(float (&s)[S::KEYS / 8][4],
                                       const uint32_t (&q_fragments)[STEPS][4], uint32_t base,
                                       int warpgroup, int step) {
    uint32_t k_tile = base + S::K + (step & 1) * tile_bytes<S::KEYS, S::DQK>;
    if constexpr (S::Q_IN_REGISTERS)
        multiply_fragments<S::KEYS, S::DQK, S::KEYS>(s, q_fragments, k_tile);
    else
        multiply_tiles<S::KEYS, S::DQK, S::QUERIES, S::KEYS>(s, base + S::Q, warpgroup * 64,
                                                             k_tile);
    end_products();
}

/* O += P V: begins. */
template <typename S>
__device__ static inline void start_pv(float (&o)[S::DV / 8][4],
                                       const uint32_t (&weights)[S::KEYS / 16][4], uint32_t base,
                                       int step) {
    add_weighted<S::KEYS, S::DV>(o, weights, base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>);
    end_products();
}

/* Mostly the largest score has not grown, and there is nothing to scale. */
template <int N>
__device__ static inline void rescale_output(float (&o)[N][4], const float (&rescale)[2]) {
    if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
        for (int m = 0; m < N; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[m][i] *= rescale[i / 2];
}

__device__ static inline row_pair begin_rows(const attention_problem &p, const query_block &t,
                                             int row) {
    row_pair rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* A row that sees nothing of a tile must not have an infinite difference of scores. */
        rows.top[r] = hides_keys(p) ? -NOTHING : -INFINITY;
        rows.sum[r] = 0;
        rows.limit[r] = p.causal ? min(t.place0 + row + 8 * r, p.keys - 1) : p.keys - 1;
    }
    return rows;
}

/* O / Σ, and the logsumexp. */
template <int N>
__device__ static inline void end_rows(const attention_problem &p, const query_block &t, int row,
                                       const row_pair &rows, float (&o)[N][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float factor = __fdividef(1.0f, sum);
#pragma unroll
        for (int m = 0; m < N; m++) {
            o[m][2 * r] *= factor;
            o[m][2 * r + 1] *= factor;
        }
        int i = t.i0 + row + 8 * r;
        if (i < p.queries && lane % 4 == 0)
            p.lse[((int64_t)t.b * p.heads + t.h) * p.queries + i] =
                (rows.top[r] + log2f(sum) - t.slope * (float)(row + 8 * r)) * LN2;
    }
}

template <typename S, int EXTENT>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_forward_kernel(const __grid_constant__ attention_problem p,
                         const __grid_constant__ row_maps maps) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS), *ring = (float *)(aligned + S::DISTANCES);
    query_block t = place_queries(p, S::QUERIES, S::KEYS);
    if (t.b >= p.batch) return;
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + lane / 4; /* in the block */
    int first_place = t.place0 + warpgroup * 64;
    int steps = steps_of<S>(p, t);
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    forward_loads<S, EXTENT> loads = {
        {&maps.q, &p.q, p.queries, p.dqk}, {&maps.k, &p.k, p.keys, p.dqk},
        {&maps.v, &p.v, p.keys, p.dv},     base,
        {bias, ring, n, &p, 0, 0},         steps};
    loads.begin(t);
    find_numbers(p, t);
    loads.biases.begin(t);
    float s[S::KEYS / 8][4], o[S::DV / 8][4], rescale[2];
    uint32_t q_fragments[S::Q_IN_REGISTERS ? S::DQK / 16 : 1][4], weights[S::KEYS / 16][4];
    clear_sums(o);
    row_pair rows = begin_rows(p, t, row);
    int whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1; /* seen by every row */
    int hidden =
        hides_keys(p) ? first_key_of(p, t.b, t.i0 + warpgroup * 64 + 63) : 0; /* from one */
    bool idle = t.i0 + warpgroup * 64 >= p.queries;
    int mine = idle ? 0 : p.causal ? min(steps, (first_place + 63 - t.key0) / S::KEYS + 1) : steps;
    auto softmax = [&](int step) {
        int j0 = t.key0 + step * S::KEYS;
        online_softmax<S::KEYS, EXTENT, S::RING>(s, rows, p, t, bias + (step & 1) * S::KEYS, ring,
                                                 row, j0, j0 + S::KEYS - 1 > whole, j0 < hidden,
                                                 rescale);
    };
    int step = 0;
    loads.wait_for(0);
    loads.load_ahead(t, 0);
    if (mine > 0) {
        if constexpr (S::Q_IN_REGISTERS)
            load_fragments<S::QUERIES, S::DQK>(q_fragments, base + S::Q, warpgroup * 64);
        begin_products();
        start_qk<S>(s, q_fragments, base, warpgroup, 0);
        wait_products<0>();
        settle(s);
        softmax(0);
        pack_fragments<S::KEYS>(s, weights);
        for (step = 1; step < mine; step++) {
            loads.wait_for(step);
            begin_products();
            start_qk<S>(s, q_fragments, base, warpgroup, step);
            start_pv<S>(o, weights, base, step - 1);
            loads.load_ahead(t, step);
            wait_products<1>();
            settle(s);
            softmax(step);
            wait_products<0>();
            settle(o);
            pack_fragments<S::KEYS>(s, weights);
            rescale_output(o, rescale);
        }
        loads.wait_for(mine);
        begin_products();
        start_pv<S>(o, weights, base, mine - 1);
        loads.load_ahead(t, mine);
        wait_products<0>();
        settle(o);
    }
    while (++step <= steps) {
        loads.wait_for(step);
        loads.load_ahead(t, step);
    }
    if (idle) return;
    end_rows(p, t, row, rows, o);
    tma_store<S::QUERIES, S::DV, S::DV>({&maps.o, &p.o, p.queries, p.dv}, base + S::Q,
                                        warpgroup * 64, 0, t.b, t.i0 + warpgroup * 64, t.h, o,
                                        1.0f);
    wait_stores();
}

/* The same for wide heads on Hopper: two warpgroups of 64 queries each, and a third of which one warp
 * copies tiles as soon as their places are free. So the warpgroups need not meet: one multiplies while
 * the other is at its softmax, by taking turns to start their products. A tile of keys is free when its
 * scores are made, one of values when it is added, the queries after their last scores; a warp says so
 * by arriving.
 *
 * There is one block on a multiprocessor. Of short sequences it takes one block of queries after another:
 * while it ends one, the tiles of the next are copied. Steps are counted through from the first to the
 * last. */
template <typename S> struct produced_barriers {
    uint32_t at; /* full: Q, two of K, two of V; empty: the same */

    __device__ inline uint32_t full_queries() const {
        return at;
    }
    __device__ inline uint32_t full(bool values, int step) const {
        return at + 8 + (uint32_t)(values * 16 + (step & 1) * 8);
    }
    __device__ inline uint32_t empty_queries() const {
        return at + 40;
    }
    __device__ inline uint32_t empty(bool values, int step) const {
        return full(values, step) + 40;
    }
    __device__ inline void begin() const {
        for (int i = 0; i < S::BARRIERS && threadIdx.x == 0; i++)
            init_barrier(at + 8 * (uint32_t)i, i < S::BARRIERS / 2 ? 1 : S::CONSUMERS / 32);
        if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncthreads();
    }
    __device__ inline void wait_full(bool values, int step) const {
        wait_phase(full(values, step), (uint32_t)step / 2);
    }
    __device__ inline void wait_empty(bool values, int step) const {
        wait_phase(empty(values, step), (uint32_t)step / 2 + 1);
    }
    __device__ inline void give_back(uint32_t barrier) const {
        if (threadIdx.x % 32 == 0) arrive(barrier);
    }
};

/* Blocks of queries in the order of query_blocks, for the blocks of the grid in turn. */
struct query_works {
    dim3 blocks;
    int next, count;

    /* False: there is none any more. */
    __device__ inline bool take(const attention_problem &p, int queries, int keys, query_block *t) {
        for (; next < count; next += (int)gridDim.x) {
            int tile = next / (int)blocks.x;
            int column = tile / (int)blocks.y * (int)blocks.x + next % (int)blocks.x;
            *t = place_queries_of(p, column, tile % (int)blocks.y, (int)blocks.y, queries, keys);
            if (t->b >= p.batch) continue;
            next += (int)gridDim.x;
            return true;
        }
        return false;
    }
};

/* The warp that copies. The biases of a tile come with its keys. */
template <typename S, int EXTENT>
__device__ static inline void produce_tiles(const attention_problem &p, const row_maps &maps,
                                            query_works works, uint32_t base, float *bias,
                                            const produced_barriers<S> &barriers) {
    constexpr int EACH = (S::KEYS + 31) / 32;
    bool asks = threadIdx.x == S::CONSUMERS;
    row_source q = {&maps.q, &p.q, p.queries, p.dqk}, k = {&maps.k, &p.k, p.keys, p.dqk},
               v = {&maps.v, &p.v, p.keys, p.dv};
    query_block t;
    for (int work = 0, first = 0; works.take(p, S::QUERIES, S::KEYS, &t); work++) {
        int steps = steps_of<S>(p, t);
        if (EXTENT != BARE) find_numbers(p, t);
        const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
        float numbers[EACH];
        auto read_numbers = [&](int step) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int j = t.key0 + step * S::KEYS + e * 32 + (int)threadIdx.x % 32;
                numbers[e] = n && j < p.keys ? n[j] : 0.0f;
            }
        };
        wait_phase(barriers.empty_queries(), (uint32_t)work + 1);
        if (asks) arrive_expect_tx(barriers.full_queries(), tile_bytes<S::QUERIES, S::DQK>);
        tma_load<S::QUERIES, S::DQK, 32, S::CONSUMERS>(base + S::Q, q, t.b, t.i0, t.h,
                                                       barriers.full_queries());
        if (EXTENT != BARE) read_numbers(0);
        for (int step = 0; step < steps; step++) {
            int at = first + step;
            barriers.wait_empty(false, at);
            if (EXTENT != BARE) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    int place = e * 32 + (int)threadIdx.x % 32, j = t.key0 + step * S::KEYS + place;
                    if (S::KEYS % 32 == 0 || place < S::KEYS)
                        bias[(at % S::BIASES) * S::KEYS + place] =
                            fmaf(t.slope, (float)(j - t.place0), t.beta * numbers[e]);
                }
                __syncwarp();
            }
            if (asks) arrive_expect_tx(barriers.full(false, at), tile_bytes<S::KEYS, S::DQK>);
            tma_load<S::KEYS, S::DQK, 32, S::CONSUMERS>(
                base + S::K + (uint32_t)((at & 1) * tile_bytes<S::KEYS, S::DQK>), k, t.b,
                t.key0 + step * S::KEYS, t.kv, barriers.full(false, at));
            if (EXTENT != BARE) read_numbers(step + 1);
            barriers.wait_empty(true, at);
            if (asks) arrive_expect_tx(barriers.full(true, at), tile_bytes<S::KEYS, S::DV>);
            tma_load<S::KEYS, S::DV, 32, S::CONSUMERS>(
                base + S::V + (uint32_t)((at & 1) * tile_bytes<S::KEYS, S::DV>), v, t.b,
                t.key0 + step * S::KEYS, t.kv, barriers.full(true, at));
        }
        first += steps;
    }
}

#ifndef USE_MMA_SYNC
/* Warpgroups start their products in turns: barrier 3 is the first one's, 4 the second's. */
__device__ static inline void wait_for_turn(int warpgroup) {
    asm volatile("bar.sync %0, 256;" ::"r"(3 + warpgroup) : "memory");
}

__device__ static inline void give_turn_to(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" ::"r"(3 + warpgroup) : "memory");
}
#endif

template <typename S, int EXTENT>
static __global__ void __launch_bounds__(S::THREADS, 1)
    produced_forward_kernel(const __grid_constant__ attention_problem p,
                            const __grid_constant__ row_maps maps, dim3 blocks) {
#ifndef USE_MMA_SYNC
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS);
    produced_barriers<S> barriers = {base + S::BARRIER};
    query_works works = {blocks, (int)blockIdx.x, (int)(blocks.x * blocks.y * blocks.z)};
    barriers.begin();
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    if (warpgroup == S::CONSUMERS / 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < S::CONSUMERS + 32)
            produce_tiles<S, EXTENT>(p, maps, works, base, bias, barriers);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int row = threadIdx.x / 32 * 16 + lane / 4; /* in the block */
    float s[S::KEYS / 8][4], o[S::DV / 8][4], rescale[2];
    uint32_t weights[S::KEYS / 16][4];
    query_block t;
    if (warpgroup == 1) give_turn_to(0);
    for (int work = 0, first = 0; works.take(p, S::QUERIES, S::KEYS, &t); work++) {
        find_numbers(p, t);
        int steps = steps_of<S>(p, t), first_place = t.place0 + warpgroup * 64;
        clear_sums(o);
        row_pair rows = begin_rows(p, t, row);
        int whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1; /* seen by every row */
        int hidden =
            hides_keys(p) ? first_key_of(p, t.b, t.i0 + warpgroup * 64 + 63) : 0; /* from one */
        bool idle = t.i0 + warpgroup * 64 >= p.queries;
        int mine = idle       ? 0
                   : p.causal ? min(steps, (first_place + 63 - t.key0) / S::KEYS + 1)
                              : steps;
        auto start_scores = [&](int step) {
            barriers.wait_full(false, first + step);
            wait_for_turn(warpgroup);
            begin_products();
            multiply_tiles<S::KEYS, S::DQK, S::QUERIES, S::KEYS>(
                s, base + S::Q, warpgroup * 64,
                base + S::K + (uint32_t)((first + step & 1) * tile_bytes<S::KEYS, S::DQK>));
            end_products();
        };
        auto start_values = [&](int step) {
            barriers.wait_full(true, first + step);
            add_weighted<S::KEYS, S::DV>(
                o, weights,
                base + S::V + (uint32_t)((first + step & 1) * tile_bytes<S::KEYS, S::DV>));
            end_products();
        };
        auto end_scores = [&](int step) {
            settle(s);
            barriers.give_back(barriers.empty(false, first + step));
            if (S::HAS_O && step + 1 == mine) barriers.give_back(barriers.empty_queries());
            int j0 = t.key0 + step * S::KEYS;
            online_softmax<S::KEYS, EXTENT, 1>(
                s, rows, p, t, bias + (first + step) % S::BIASES * S::KEYS, NULL, row, j0,
                j0 + S::KEYS - 1 > whole, j0 < hidden, rescale);
        };
        wait_phase(barriers.full_queries(), (uint32_t)work);
        if (mine > 0) {
            start_scores(0);
            give_turn_to(1 - warpgroup);
            wait_products<0>();
            end_scores(0);
            pack_fragments<S::KEYS>(s, weights);
            for (int step = 1; step < mine; step++) {
                start_scores(step);
                start_values(step - 1);
                give_turn_to(1 - warpgroup);
                wait_products<1>();
                end_scores(step);
                wait_products<0>();
                settle(o);
                barriers.give_back(barriers.empty(true, first + step - 1));
                pack_fragments<S::KEYS>(s, weights);
                rescale_output(o, rescale);
            }
            begin_products();
            start_values(mine - 1);
            wait_products<0>();
            settle(o);
            barriers.give_back(barriers.empty(true, first + mine - 1));
        }
        for (int step = mine; step < steps; step++) {
            barriers.wait_full(false, first + step);
            wait_for_turn(warpgroup);
            give_turn_to(1 - warpgroup);
            barriers.give_back(barriers.empty(false, first + step));
            barriers.wait_full(true, first + step);
            barriers.give_back(barriers.empty(true, first + step));
        }
        if (!idle) {
            end_rows(p, t, row, rows, o);
            wait_stores(); /* of the block of queries before */
            asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
            tma_store<S::QUERIES, S::DV, S::DV>({&maps.o, &p.o, p.queries, p.dv}, base + S::O,
                                                warpgroup * 64, 0, t.b, t.i0 + warpgroup * 64, t.h,
                                                o, 1.0f);
            if (!S::HAS_O) wait_stores();
        }
        if (!S::HAS_O || idle) barriers.give_back(barriers.empty_queries());
        first += steps;
    }
    wait_stores();
#endif
}

/* Launches a kernel of p, its maps and what else it takes. */
template <typename S, typename K, typename... MORE>
static void launch(K kernel, const attention_problem &p, dim3 blocks, cudaStream_t stream,
                   MORE... more) {
    row_maps maps = {};
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::MEMORY);
    bool made = make_row_maps(p, NULL, S::QUERIES, S::KEYS, &maps, S::DQK, S::DV);
    kernel<<<made ? blocks : dim3(0), S::THREADS, S::MEMORY, stream>>>(p, maps, more...);
}

bool attention_fits_flash(const attention_problem &p) {
    weft_attention_attr a = {};
    a.batch = p.batch, a.queries = p.queries, a.keys = p.keys;
    a.heads = p.heads, a.dqk = p.dqk, a.dv = p.dv;
    a.pos = p.pos, a.causal = p.causal, a.band = p.band, a.softcap = p.softcap;
    return p.dqk % 8 == 0 && p.dv % 8 == 0 &&
           weft_cuda_attention_is_fast(&a, p.is_bf16 ? WEFT_BF16 : WEFT_F32);
}

void flash_forward(const attention_problem &p, cudaStream_t stream) {
    with_widths(p, [&](auto widths) {
        using W = decltype(widths);
        with_extent<W>(p, [&](auto extent) {
            constexpr int EXTENT = decltype(extent)::value;
            if constexpr (W::DQK >= 128 && W::DV >= 96 && (EXTENT == BARE || EXTENT == KEYED))
                if (weft_cuda_device()->wgmma) {
                    using S = produced_shape<W::DQK, W::DV, produced_keys<W::DQK, W::DV>>;
                    dim3 blocks = query_blocks(p, S::QUERIES);
                    int64_t works = (int64_t)blocks.x * blocks.y * blocks.z;
                    /* Many tiles outweigh the beginning and the end, and are shared out better
                     * block by block. */
                    if (p.keys <= 2048) works = min_i64(works, multiprocessors());
                    return launch<S>(produced_forward_kernel<S, EXTENT>, p, dim3((unsigned)works),
                                     stream, blocks);
                }
            using S = typename W::FORWARD;
            launch<S>(flash_forward_kernel<S, EXTENT>, p, query_blocks(p, S::QUERIES), stream);
        });
    });
}

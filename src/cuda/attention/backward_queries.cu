/* FlashAttention's backward pass by queries, on the tensor cores: dQ. A warpgroup has 64 queries, and of
 * each tile of keys makes S = Q Kᵀ and dP = dO Vᵀ, dS from them in registers, and dQ += dS K. Before
 * that it finds D of its queries, and leaves it and lse to the kernel by keys. Where dQ is too wide
 * (SPLIT, shapes.cuh) two warpgroups have the same queries. */
#include "cuda/attention/tiles.cuh"

/* ⟨o_i, do_i⟩ of a thread's two rows, four threads a row: o from memory, read before anything
 * waits, do from its tile. */
template <typename S> struct row_products {
    uint4 o[2][S::DV / 32];

    __device__ inline void read(const attention_problem &p, const query_block &t, int row) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = min(t.i0 + row + 8 * r, p.queries - 1);
            const bf16 *from = (const bf16 *)p.o.data + row_at(p.o, t.b, i, t.h);
#pragma unroll
            for (int c = 0; c < S::DV / 32; c++)
                o[r][c] = 8 * (4 * c + (int)threadIdx.x % 4) < p.dv
                              ? ((const uint4 *)from)[4 * c + threadIdx.x % 4]
                              : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ inline float multiply(const uint8_t *tile, int row, int r) const {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < S::DV / 32; c++) {
            int piece = 4 * c + (int)threadIdx.x % 4;
            float x[VECTOR], y[VECTOR];
            widen_words(o[r][c], x);
            widen_words(*(const uint4 *)(tile + tile_place<S::QUERIES, S::DV>(row + 8 * r, piece)),
                        y);
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                sum = fmaf(x[e], y[e], sum);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        return sum;
    }
};

/* What TMA copies for a block, a step ahead: every thread calls the stages, one asks. */
template <typename S, int EXTENT> struct query_loads {
    static constexpr int k_bytes = tile_bytes<S::KEYS, S::DQK>,
                         v_bytes = tile_bytes<S::KEYS, S::DV>;

    row_source q, d_o, k, v;
    uint32_t base; /* of the tiles in shared memory */
    key_biases<S::KEYS, S::QUERIES, EXTENT> biases;
    int steps;

    __device__ inline void load_keys(const query_block &t, int step, int more) {
        uint32_t barrier = base + S::BARRIERS + (uint32_t)(step % S::STAGES * 8);
        expect_tx(barrier, more + k_bytes + v_bytes);
        tma_load<S::KEYS, S::DQK, S::THREADS>(base + S::K + (uint32_t)(step % S::STAGES * k_bytes),
                                              k, t.b, t.key0 + step * S::KEYS, t.kv, barrier);
        tma_load<S::KEYS, S::DV, S::THREADS>(base + S::V + (uint32_t)((step & 1) * v_bytes), v, t.b,
                                             t.key0 + step * S::KEYS, t.kv, barrier);
    }

    /* The queries, their dO and the first keys and values. */
    __device__ inline void begin(const query_block &t) {
        init_barriers(base + S::BARRIERS, S::STAGES);
        load_keys(t, 0, tile_bytes<S::QUERIES, S::DQK> + tile_bytes<S::QUERIES, S::DV>);
        tma_load<S::QUERIES, S::DQK, S::THREADS>(base + S::Q, q, t.b, t.i0, t.h,
                                                 base + S::BARRIERS);
        tma_load<S::QUERIES, S::DV, S::THREADS>(base + S::D_O, d_o, t.b, t.i0, t.h,
                                                base + S::BARRIERS);
        commit_loads();
    }

    __device__ inline void wait_for(int step) {
        wait_barrier(base + S::BARRIERS + (uint32_t)(step % S::STAGES * 8), step / S::STAGES);
        sync_block();
    }

    /* During step `step`: the keys and values of the next. */
    __device__ inline void load_ahead(const query_block &t, int step) {
        if (step + 1 < steps) {
            load_keys(t, step + 1, 0);
            biases.advance(t, step + 1);
        }
        commit_loads();
    }
};

/* Where a warpgroup is in its block. */
struct query_share {
    int row0; /* its queries' first in the block */
    int half; /* of a tile's keys and of dQ's columns */
};

/* S = Q Kᵀ and dP = dO Vᵀ: begin. */
template <typename S, int N, int Q_STEPS, int DO_STEPS>
__device__ static inline void
start_scores(float (&s)[N / 8][4], float (&dp)[N / 8][4], const uint32_t (&q_fragments)[Q_STEPS][4],
             const uint32_t (&do_fragments)[DO_STEPS][4], uint32_t base, const query_share &share,
             int step, int stage) {
    uint32_t k_tile = base + S::K + stage * tile_bytes<S::KEYS, S::DQK>;
    uint32_t v_tile = base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>;
    k_tile += (uint32_t)(share.half * N * tile_panel<S::DQK>::bytes);
    v_tile += (uint32_t)(share.half * N * tile_panel<S::DV>::bytes);
    if constexpr (S::Q_IN_REGISTERS)
        multiply_fragments<N, S::DQK, S::KEYS>(s, q_fragments, k_tile);
    else
        multiply_tiles<N, S::DQK, S::QUERIES, S::KEYS>(s, base + S::Q, share.row0, k_tile);
    end_products();
    if constexpr (S::DO_IN_REGISTERS)
        multiply_fragments<N, S::DV, S::KEYS>(dp, do_fragments, v_tile);
    else
        multiply_tiles<N, S::DV, S::QUERIES, S::KEYS>(dp, base + S::D_O, share.row0, v_tile);
    end_products();
}

/* dQ += dS K: begins. */
template <typename S>
__device__ static inline void start_dq(float (&dq)[S::DQK / 8][4],
                                       const uint32_t (&ds)[S::KEYS / 16][4], uint32_t base,
                                       int stage) {
    add_weighted<S::KEYS, S::DQK>(dq, ds, base + S::K + stage * tile_bytes<S::KEYS, S::DQK>);
    end_products();
}

/* S to P = exp(S − lse), in place. The thread's first row is `row` in the block. */
template <typename S, int N, int EXTENT, bool MASKED>
__device__ static inline void make_p(float (&s)[N / 8][4], const attention_problem &p,
                                     const query_block &t, const float *bias, const float *ring,
                                     const float (&lse)[2], int row, int half, int step) {
    constexpr bool EXTRA = EXTENT != BARE;
    int column = half * N + (int)threadIdx.x % 4 * 2, limit[2], j0 = t.key0 + step * S::KEYS;
#pragma unroll
    for (int r = 0; r < 2; r++) { /* the last key of the tile that is seen */
        int place = t.place0 + row + 8 * r;
        limit[r] = (p.causal ? min(place, p.keys - 1) : p.keys - 1) - j0 - column;
    }
    distance_biases<S::RING> distances(ring, j0 + column - row);
#pragma unroll
    for (int m = 0; m < N / 8; m++) {
        float2 b = EXTRA ? *(const float2 *)(bias + (step & 1) * S::KEYS + 8 * m + column)
                         : make_float2(0, 0);
        float further[4] = {};
        if constexpr (EXTENT == RELATIVE) distances.next(further);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = EXTRA ? (i % 2 ? b.y : b.x) - lse[i / 2] : -lse[i / 2];
            if (EXTENT == RELATIVE) x += further[i];
            x = fmaf(s[m][i], t.scale, x);
            if (EXTENT == CAPPED)
                x = softcapped(fmaf(s[m][i], t.scale, further[i]), p.softcap * LOG2E) - lse[i / 2];
            if (MASKED && 8 * m + i % 2 > limit[i / 2]) x = -NOTHING;
            s[m][i] = power_of_two(x);
        }
    }
}

/* dP to dS = P ∘ (dP − D), in place. */
template <int EXTENT, int N>
__device__ static inline void make_ds(const float (&s)[N][4], float (&dp)[N][4],
                                      const attention_problem &p, const float (&total)[2],
                                      const float (&lse)[2]) {
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dp[m][i] = s[m][i] * (dp[m][i] - total[i / 2]);
    if (EXTENT == CAPPED)
#pragma unroll
        for (int m = 0; m < N; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                dp[m][i] *= soft_slope(s[m][i], lse[i / 2], p.softcap * LOG2E);
}

/* D of a thread's two rows; D and lse to the workspace, for the kernel of dK and dV. */
template <typename S>
__device__ static inline void find_rows(const attention_problem &p, const flash_workspace &w,
                                        const query_block &t, const row_products<S> &products,
                                        const uint8_t *do_tile, int row, bool writes,
                                        float (&lse)[2], float (&total)[2]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = t.i0 + row + 8 * r;
        int64_t at = ((int64_t)t.b * p.heads + t.h) * w.padded + i;
        total[r] = products.multiply(do_tile, row, r);
        if (i >= p.queries) total[r] = 0;
        if (writes && lane % 4 == 0 && i < w.padded) {
            w.lse[at] = lse[r];
            w.total[at] = total[r];
        }
        lse[r] += t.slope * (float)(row + 8 * r);
    }
}

/* A tile of keys: loaded by TMA a step ahead, then Q Kᵀ and dO Vᵀ, P, dS, and dQ += dS K, which runs
 * with the next tile's first two products; where warpgroups share queries, behind the exchange of dS. */
template <typename S, int EXTENT>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_backward_dq_kernel(const __grid_constant__ attention_problem p,
                             const __grid_constant__ attention_gradients g,
                             const __grid_constant__ flash_workspace w,
                             const __grid_constant__ row_maps maps) {
    /* Keys of a tile whose scores a warpgroup makes, and columns of dQ that it adds up. */
    constexpr int N = S::KEYS / S::SPLIT, COLUMNS = S::DQK / S::SPLIT;
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS), *ring = (float *)(aligned + S::DISTANCES);
    query_block t = place_queries(p, S::QUERIES, S::KEYS);
    if (t.b >= p.batch) return;
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    query_share share = {warpgroup / S::SPLIT * 64, warpgroup % S::SPLIT};
    int row = share.row0 + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
    int first_place = t.place0 + share.row0;
    int steps = steps_of<S>(p, t);
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    query_loads<S, EXTENT> loads = {{&maps.q, &p.q, p.queries, p.dqk},
                                    {&maps.d_o, &g.d_o, p.queries, p.dv},
                                    {&maps.k, &p.k, p.keys, p.dqk},
                                    {&maps.v, &p.v, p.keys, p.dv},
                                    base,
                                    {bias, ring, n, &p, 0, 0},
                                    steps};
    loads.begin(t);
    row_products<S> products;
    products.read(p, t, row);
    float dq[COLUMNS / 8][4], lse[2], total[2];
    int whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1; /* seen by every row */
    clear_sums(dq);
#pragma unroll
    for (int r = 0; r < 2; r++) { /* of the thread's rows, to the base 2 */
        int i = t.i0 + row + 8 * r;
        int64_t head = (int64_t)t.b * p.heads + t.h;
        lse[r] = i < p.queries ? p.lse[head * p.queries + i] * LOG2E : NOTHING;
    }
    find_numbers(p, t);
    loads.biases.begin(t);
    float s[N / 8][4], dp[N / 8][4];
    uint32_t ds[N / 16][4];
    uint32_t q_fragments[S::Q_IN_REGISTERS ? S::DQK / 16 : 1][4],
        do_fragments[S::DO_IN_REGISTERS ? S::DV / 16 : 1][4];
    auto find = [&]() {
        find_rows<S>(p, w, t, products, aligned + S::D_O, row, share.half == 0, lse, total);
    };
    auto weigh = [&](int step) {
        int j0 = t.key0 + step * S::KEYS;
        if (j0 + S::KEYS - 1 > whole)
            make_p<S, N, EXTENT, true>(s, p, t, bias, ring, lse, row, share.half, step);
        else
            make_p<S, N, EXTENT, false>(s, p, t, bias, ring, lse, row, share.half, step);
        if (hides_keys(p) && j0 < first_key_of(p, t.b, t.i0 + share.row0 + 63))
            hide_keys(s, p, t, row, share.half * N + (int)threadIdx.x % 4 * 2, j0, 0.0f);
    };
    int mine = p.causal ? min(steps, (first_place + 63 - t.key0) / S::KEYS + 1) : steps;
    if (t.i0 + share.row0 >= p.queries) mine = 0;
    int step = 0;
    loads.wait_for(0);
    if (S::SPLIT == 1) loads.load_ahead(t, 0);
    constexpr bool FIRST =
        S::SPLIT > 1 || S::DQK >= 256; /* no registers for it beside the scores */
    if (FIRST || mine == 0) find();
    if constexpr (S::SPLIT > 1) {
        for (; step < mine; step++) {
            if (step > 0) loads.wait_for(step);
            begin_products();
            start_scores<S, N>(s, dp, q_fragments, do_fragments, base, share, step,
                               step % S::STAGES);
            loads.load_ahead(t, step);
            wait_products<1>();
            settle(s);
            weigh(step);
            wait_products<0>();
            settle(dp);
            make_ds<EXTENT>(s, dp, p, total, lse);
            pack_fragments<N>(dp, ds);
            store_weights<S::KEYS, N>(base + S::DS, share.half * N, ds);
            publish_words();
            sync_block();
            begin_products();
            add_tiles<S::KEYS, COLUMNS, S::DQK>(
                dq, base + S::DS, base + S::K + step % S::STAGES * tile_bytes<S::KEYS, S::DQK>,
                share.half * COLUMNS);
            end_products();
            wait_products<0>();
            settle(dq);
        }
        step--;
    } else if (mine > 0) {
        int stage = 0;
        if constexpr (S::Q_IN_REGISTERS)
            load_fragments<S::QUERIES, S::DQK>(q_fragments, base + S::Q, share.row0);
        if constexpr (S::DO_IN_REGISTERS)
            load_fragments<S::QUERIES, S::DV>(do_fragments, base + S::D_O, share.row0);
        begin_products();
        start_scores<S, N>(s, dp, q_fragments, do_fragments, base, share, 0, 0);
        if (!FIRST) find();
        wait_products<0>();
        settle(s);
        settle(dp);
        weigh(0);
        make_ds<EXTENT>(s, dp, p, total, lse);
        pack_fragments<N>(dp, ds);
        for (step = 1; step < mine; step++) {
            int before = stage;
            stage = stage + 1 == S::STAGES ? 0 : stage + 1;
            loads.wait_for(step);
            begin_products();
            start_scores<S, N>(s, dp, q_fragments, do_fragments, base, share, step, stage);
            start_dq<S>(dq, ds, base, before);
            loads.load_ahead(t, step);
            wait_products<2>();
            settle(s);
            weigh(step);
            wait_products<1>();
            settle(dp);
            make_ds<EXTENT>(s, dp, p, total, lse);
            wait_products<0>();
            settle(dq);
            pack_fragments<N>(dp, ds);
        }
        begin_products();
        start_dq<S>(dq, ds, base, stage);
        wait_products<0>();
        settle(dq);
        step = mine - 1;
    }
    while (++step < steps) {
        loads.wait_for(step);
        loads.load_ahead(t, step);
    }
    if (mine == 0) return;
    float factor = t.scale * LN2;
    int column0 = share.half * COLUMNS;
    if (EXTENT != BARE && g.finish.q) {
        finish_gaussians<S::QUERIES, S::DQK, COLUMNS, false>(dq, factor, base + S::Q, share.row0,
                                                             column0, p.dqk, {});
        factor = 1;
    }
    tma_store<S::QUERIES, S::DQK, COLUMNS>({&maps.dq, &g.dq, p.queries, p.dqk}, base + S::Q,
                                           share.row0, column0, t.b, t.i0 + share.row0, t.h, dq,
                                           factor);
    wait_stores();
}

void flash_backward_dq(const attention_problem &p, const attention_gradients &g,
                       const flash_workspace &w, cudaStream_t stream) {
    with_widths(p, [&](auto widths) {
        using W = decltype(widths);
        using S = typename W::BY_QUERIES;
        with_extent<W>(p, [&](auto extent) {
            auto kernel = flash_backward_dq_kernel<S, decltype(extent)::value>;
            launch_backward<S>(kernel, p, g, w, query_blocks(p, S::QUERIES), stream);
        });
    });
}

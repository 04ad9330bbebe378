/* dQ on the tensor cores: attention's backward pass by queries. A warpgroup has 64 queries, and of
 * each tile of keys makes S = Q Kᵀ and dP = dO Vᵀ, dS from them in registers, and dQ += dS K. Before
 * that it finds D of its queries, and leaves it and lse to the kernel by keys. */
#include "cuda/attention/backward.cuh"

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int KEYS_, bool HOLD_Q_, bool HOLD_DO_>
struct query_shape {
    static constexpr int DQK = DQK_, DV = DV_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int KEYS = KEYS_; /* in a tile */
    static constexpr int STAGES = 3;
    static constexpr bool HOLD_Q = HOLD_Q_, HOLD_DO = HOLD_DO_; /* in registers */
    static constexpr int QUERIES = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int Q = 0, D_O = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int K = D_O + tile_bytes<QUERIES, DV>;
    static constexpr int V = K + STAGES * tile_bytes<KEYS, DQK>;
    static constexpr int BIAS = V + 2 * tile_bytes<KEYS, DV>;
    static constexpr int BARRIERS = BIAS + 2 * KEYS * (int)sizeof(float);
    static constexpr int MEMORY = BARRIERS + STAGES * 8 + 1024;
};

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
                o[r][c] = ((const uint4 *)from)[4 * c + threadIdx.x % 4];
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
template <typename S, bool EXTRA> struct query_loads {
    static constexpr int k_bytes = tile_bytes<S::KEYS, S::DQK>,
                         v_bytes = tile_bytes<S::KEYS, S::DV>;

    row_source q, d_o, k, v;
    uint32_t base; /* of the tiles in shared memory */
    key_biases<S::KEYS, EXTRA> biases;
    int steps;

    __device__ inline void load_keys(const query_block &t, int step, int more) {
        uint32_t barrier = base + S::BARRIERS + (uint32_t)(step % S::STAGES * 8);
        expect_tx(barrier, more + k_bytes + v_bytes);
        tma_load<S::KEYS, S::DQK, S::THREADS>(base + S::K + (uint32_t)(step % S::STAGES * k_bytes),
                                              k, t.b, step * S::KEYS, t.kv, barrier);
        tma_load<S::KEYS, S::DV, S::THREADS>(base + S::V + (uint32_t)((step & 1) * v_bytes), v, t.b,
                                             step * S::KEYS, t.kv, barrier);
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
        wait_barrier<0>(base + S::BARRIERS + (uint32_t)(step % S::STAGES * 8), step / S::STAGES);
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

/* S = Q Kᵀ and dP = dO Vᵀ: begin. */
template <typename S, int Q_HELD, int DO_HELD>
__device__ static inline void start_scores(float (&s)[S::KEYS / 8][4], float (&dp)[S::KEYS / 8][4],
                                           const uint32_t (&q_held)[Q_HELD][4],
                                           const uint32_t (&do_held)[DO_HELD][4], uint32_t base,
                                           int warpgroup, int step, int stage) {
    uint32_t k_tile = base + S::K + stage * tile_bytes<S::KEYS, S::DQK>;
    uint32_t v_tile = base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>;
    if constexpr (S::HOLD_Q)
        multiply_held<S::KEYS, S::DQK, S::KEYS>(s, q_held, k_tile);
    else
        multiply_tiles<S::KEYS, S::DQK, S::QUERIES, S::KEYS>(s, base + S::Q, warpgroup * 64,
                                                             k_tile);
    end_products();
    if constexpr (S::HOLD_DO)
        multiply_held<S::KEYS, S::DV, S::KEYS>(dp, do_held, v_tile);
    else
        multiply_tiles<S::KEYS, S::DV, S::QUERIES, S::KEYS>(dp, base + S::D_O, warpgroup * 64,
                                                            v_tile);
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

/* S to P = exp(S − lse), in place. */
template <typename S, bool EXTRA, bool MASKED>
__device__ static inline void make_p(float (&s)[S::KEYS / 8][4], const attention_problem &p,
                                     const query_block &t, const float *bias, const float (&lse)[2],
                                     int step) {
    int column = (int)threadIdx.x % 4 * 2, limit[2];
#pragma unroll
    for (int r = 0; r < 2; r++) { /* the last key of the tile that is seen */
        int place = t.place0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
        limit[r] = (p.causal ? min(place, p.keys - 1) : p.keys - 1) - step * S::KEYS - column;
    }
#pragma unroll
    for (int m = 0; m < S::KEYS / 8; m++) {
        float2 b = EXTRA ? *(const float2 *)(bias + (step & 1) * S::KEYS + 8 * m + column)
                         : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = EXTRA ? (i % 2 ? b.y : b.x) - lse[i / 2] : -lse[i / 2];
            x = fmaf(s[m][i], t.scale, x);
            if (MASKED && 8 * m + i % 2 > limit[i / 2]) x = -NOTHING;
            s[m][i] = power_of_two(x);
        }
    }
}

/* dP to dS = P ∘ (dP − D), in place. */
template <int N>
__device__ static inline void make_ds(const float (&s)[N][4], float (&dp)[N][4],
                                      const float (&total)[2]) {
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dp[m][i] = s[m][i] * (dp[m][i] - total[i / 2]);
}

/* lse of a thread's two rows, to the base 2. */
__device__ static inline void read_lse(const attention_problem &p, const query_block &t, int row,
                                       float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = t.i0 + row + 8 * r;
        int64_t head = (int64_t)t.b * p.heads + t.h;
        lse[r] = i < p.queries ? p.lse[head * p.queries + i] * LOG2E : NOTHING;
    }
}

/* D of a thread's two rows; D and lse to the workspace, for the kernel of dK and dV. */
template <typename S>
__device__ static inline void find_rows(const attention_problem &p, const flash_workspace &w,
                                        const query_block &t, const row_products<S> &products,
                                        const uint8_t *do_tile, int row, float (&lse)[2],
                                        float (&total)[2]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = t.i0 + row + 8 * r;
        int64_t at = ((int64_t)t.b * p.heads + t.h) * w.padded + i;
        total[r] = products.multiply(do_tile, row, r);
        if (i >= p.queries) total[r] = 0;
        if (lane % 4 == 0 && i < w.padded) {
            w.lse[at] = lse[r];
            w.total[at] = total[r];
        }
        lse[r] += t.slope * (float)(row + 8 * r);
    }
}

/* A tile of keys: loaded by TMA a step ahead, then Q Kᵀ and dO Vᵀ, P, dS, and dQ += dS K, which runs
 * with the next tile's first two products. */
template <typename S, bool EXTRA>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_backward_dq_kernel(const __grid_constant__ attention_problem p,
                             const __grid_constant__ attention_gradients g,
                             const __grid_constant__ flash_workspace w,
                             const __grid_constant__ row_maps maps) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS);
    query_block t = place_queries(p, S::QUERIES);
    if (t.b >= p.batch) return;
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + lane / 4;
    int first_place = t.place0 + warpgroup * 64;
    int end = p.causal ? min(p.keys, t.place0 + min(S::QUERIES, p.queries - t.i0)) : p.keys;
    int steps = (end + S::KEYS - 1) / S::KEYS;
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    query_loads<S, EXTRA> loads = {{&maps.q, &p.q, p.queries},
                                   {&maps.d_o, &g.d_o, p.queries},
                                   {&maps.k, &p.k, p.keys},
                                   {&maps.v, &p.v, p.keys},
                                   base,
                                   {bias, n, p.keys, 0},
                                   steps};
    loads.begin(t);
    row_products<S> products;
    products.read(p, t, row);
    float dq[S::DQK / 8][4], lse[2], total[2];
    int whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1; /* seen by every row */
    clear_sums(dq);
    read_lse(p, t, row, lse);
    find_numbers(p, t);
    loads.biases.begin(t);
    float s[S::KEYS / 8][4], dp[S::KEYS / 8][4];
    uint32_t ds[S::KEYS / 16][4];
    uint32_t q_held[S::HOLD_Q ? S::DQK / 16 : 1][4], do_held[S::HOLD_DO ? S::DV / 16 : 1][4];
    auto weigh = [&](int step) {
        if ((step + 1) * S::KEYS - 1 > whole)
            make_p<S, EXTRA, true>(s, p, t, bias, lse, step);
        else
            make_p<S, EXTRA, false>(s, p, t, bias, lse, step);
    };
    int mine = p.causal ? min(steps, (first_place + 63) / S::KEYS + 1) : steps;
    if (t.i0 + warpgroup * 64 >= p.queries) mine = 0;
    int step = 0;
    loads.wait_for(0);
    loads.load_ahead(t, 0);
    if (mine == 0) find_rows<S>(p, w, t, products, aligned + S::D_O, row, lse, total);
    if (mine > 0) {
        int stage = 0;
        if constexpr (S::HOLD_Q) hold_rows<S::QUERIES, S::DQK>(q_held, base + S::Q, warpgroup * 64);
        if constexpr (S::HOLD_DO)
            hold_rows<S::QUERIES, S::DV>(do_held, base + S::D_O, warpgroup * 64);
        begin_products();
        start_scores<S>(s, dp, q_held, do_held, base, warpgroup, 0, 0);
        find_rows<S>(p, w, t, products, aligned + S::D_O, row, lse, total);
        wait_products<0>();
        settle(s);
        settle(dp);
        weigh(0);
        make_ds(s, dp, total);
        hold_weights<S::KEYS>(dp, ds);
        for (step = 1; step < mine; step++) {
            int before = stage;
            stage = stage + 1 == S::STAGES ? 0 : stage + 1;
            loads.wait_for(step);
            begin_products();
            start_scores<S>(s, dp, q_held, do_held, base, warpgroup, step, stage);
            start_dq<S>(dq, ds, base, before);
            loads.load_ahead(t, step);
            wait_products<2>();
            settle(s);
            weigh(step);
            wait_products<1>();
            settle(dp);
            make_ds(s, dp, total);
            wait_products<0>();
            settle(dq);
            hold_weights<S::KEYS>(dp, ds);
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
    if (EXTRA && g.finish.q) {
        finish_gaussians<S::QUERIES, S::DQK, false>(dq, factor, base + S::Q, warpgroup * 64, {});
        factor = 1;
    }
    tma_store<S::QUERIES, S::DQK>({&maps.dq, &g.dq, p.queries}, base + S::Q, warpgroup * 64, t.b,
                                  t.i0 + warpgroup * 64, t.h, dq, factor);
    wait_stores();
}

/* Calls f with the shape for the problem's widths. */
template <typename F> static void with_query_shape(const attention_problem &p, F f) {
    if (p.dqk == 32)
        f(query_shape<32, 32, 1, 4, 64, false, false>());
    else if (p.dqk == 64)
        f(query_shape<64, 64, 1, 3, 64, true, false>());
    else if (p.dqk == 96)
        f(query_shape<96, 96, 3, 1, 64, false, false>());
    else if (p.dv == 64)
        f(query_shape<128, 64, 1, 2, 64, true, true>());
    else
        f(query_shape<128, 128, 2, 1, 64, true, true>());
}

int flash_backward_dq_memory(const attention_problem &p) {
    int bytes = 0;
    with_query_shape(p, [&](auto shape) { bytes = decltype(shape)::MEMORY; });
    return bytes;
}

void flash_backward_dq(const attention_problem &p, const attention_gradients &g,
                       const flash_workspace &w, cudaStream_t stream) {
    with_query_shape(p, [&](auto shape) {
        using S = decltype(shape);
        with_flag(has_extras(p), [&](auto extra) {
            auto kernel = flash_backward_dq_kernel<S, decltype(extra)::value>;
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::MEMORY);
            row_maps maps = {};
            bool made = make_row_maps(p, &g, S::QUERIES, S::KEYS, &maps);
            dim3 blocks = made ? query_blocks(p, S::QUERIES) : dim3(0);
            kernel<<<blocks, S::THREADS, S::MEMORY, stream>>>(p, g, w, maps);
        });
    });
}

/* Attention's forward pass on the tensor cores.
 *
 * A block has WARPGROUPS · 64 queries of one head and walks the keys in tiles, while the next
 * tile is copied. A warpgroup makes the scores of its 64 queries with the tile, S = Q Kᵀ, turns
 * them into weights in registers, where they already are as the second product wants them, and
 * adds O += P V. As on the CPU a row keeps its largest score and its sum, and both and O are scaled
 * down when the largest grows. Exponents are to the base 2, log2(e) being part of the scale.
 *
 * Where a score has more than ⟨q, k⟩ times one positive constant (EXTRA), it is scale · ⟨q, k⟩ plus
 * a number a key, beta · n_j + slope · (j − first place of the block). ALiBi's other half, slope
 * times the place in the block, is the same for a whole row: it joins the logsumexp alone.
 *
 * tiles.cuh says in which order blocks come. */
#include "cuda/attention/tiles.cuh"

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int KEYS_, bool HELD_>
struct forward_shape {
    static constexpr int DQK = DQK_, DV = DV_;
    static constexpr int WARPGROUPS = WARPGROUPS_; /* of a block */
    static constexpr int BLOCKS = BLOCKS_;         /* on a multiprocessor */
    static constexpr int KEYS = KEYS_;             /* in a tile */
    static constexpr bool HELD = HELD_;            /* Q in registers */
    static constexpr int QUERIES = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int Q = 0, K = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int V = K + 2 * tile_bytes<KEYS, DQK>;
    static constexpr int BIAS = V + 2 * tile_bytes<KEYS, DV>;
    static constexpr int ARRIVALS = BIAS + 2 * KEYS * (int)sizeof(float);
    static constexpr int MEMORY = ARRIVALS + 2 * 8 + 1024;
};

/* The rows of a thread: lane / 4 of its warp's sixteen, and eight further down. */
struct row_pair {
    float top[2], sum[2];
    int limit[2]; /* last key that is seen */
};

/* Scores to weights, in place. Returns by `rescale` what sums so far are worth now. */
template <int KEYS, bool EXTRA>
__device__ static inline void soften(float (&s)[KEYS / 8][4], row_pair &rows, float scale,
                                     const float *bias, int j0, bool masked, float (&rescale)[2]) {
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
    if (masked)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (j0 + 8 * n + column + i % 2 > rows.limit[i / 2]) s[n][i] = -INFINITY;
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

template <typename S, bool EXTRA>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attend_tiles(const __grid_constant__ attention_problem p,
                 const __grid_constant__ row_maps maps) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS);
    query_block t = place_queries(p, S::QUERIES);
    if (t.b >= p.batch) return;
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + lane / 4; /* in the block */
    int first_place = t.place0 + warpgroup * 64;
    int end = p.causal ? min(p.keys, t.place0 + min(S::QUERIES, p.queries - t.i0)) : p.keys;
    int steps = (end + S::KEYS - 1) / S::KEYS;
    row_source q = {&maps.q, &p.q, p.queries};
    row_source k = {&maps.k, &p.k, p.keys}, v = {&maps.v, &p.v, p.keys};
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    constexpr int k_bytes = tile_bytes<S::KEYS, S::DQK>, v_bytes = tile_bytes<S::KEYS, S::DV>;
    auto copy_keys = [&](int step, uint32_t arrival) {
        copy_box<S::KEYS, S::DQK, S::THREADS>(base + S::K + (uint32_t)((step & 1) * k_bytes), k,
                                              t.b, step * S::KEYS, t.kv, arrival);
    };
    auto copy_values = [&](int step, uint32_t arrival) {
        copy_box<S::KEYS, S::DV, S::THREADS>(base + S::V + (uint32_t)((step & 1) * v_bytes), v, t.b,
                                             step * S::KEYS, t.kv, arrival);
    };
    /* A number a key is read a step before it is stored, so that nothing waits for it. */
    float number = 0;
    auto read_number = [&](int step) {
        int j = step * S::KEYS + (int)threadIdx.x;
        if (EXTRA && (int)threadIdx.x < S::KEYS) number = n && j < p.keys ? n[j] : 0.0f;
    };
    auto store_bias = [&](int step) {
        int j = step * S::KEYS + (int)threadIdx.x;
        if (EXTRA && (int)threadIdx.x < S::KEYS)
            bias[(step & 1) * S::KEYS + threadIdx.x] =
                fmaf(t.slope, (float)(j - t.place0), t.beta * number);
    };
    begin_arrivals(base + S::ARRIVALS, 2);
    expect_bytes(base + S::ARRIVALS, tile_bytes<S::QUERIES, S::DQK> + k_bytes);
    copy_box<S::QUERIES, S::DQK, S::THREADS>(base + S::Q, q, t.b, t.i0, t.h, base + S::ARRIVALS);
    copy_keys(0, base + S::ARRIVALS);
    end_box();
    find_numbers(p, t);
    read_number(0);
    store_bias(0);
    read_number(1);
    row_pair rows;
    float o[S::DV / 8][4];
    clear_sums(o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows.top[r] = -INFINITY;
        rows.sum[r] = 0;
        rows.limit[r] = p.causal ? min(t.place0 + row + 8 * r, p.keys - 1) : p.keys - 1;
    }
    int whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1; /* seen by every row */
    bool idle = t.i0 + warpgroup * 64 >= p.queries;
    int mine = idle ? 0 : p.causal ? min(steps, (first_place + 63) / S::KEYS + 1) : steps;
    uint32_t held[S::HELD ? S::DQK / 16 : 1][4], weights[S::KEYS / 16][4];
    /* Before step `step`: its keys and the values of the one before are there. */
    auto advance = [&](int step) {
        wait_arrival<0>(base + S::ARRIVALS + (uint32_t)((step & 1) * 8), step / 2);
        sync_block();
    };
    auto copy_ahead = [&](int step) {
        uint32_t arrival = base + S::ARRIVALS + (uint32_t)((step + 1 & 1) * 8);
        bool more = step + 1 < steps;
        if (step < steps) {
            expect_bytes(arrival, v_bytes + (more ? k_bytes : 0));
            copy_values(step, arrival);
        }
        if (more) {
            copy_keys(step + 1, arrival);
            store_bias(step + 1);
            read_number(step + 2);
        }
        end_box();
    };
    float s[S::KEYS / 8][4], rescale[2];
    auto start_scores = [&](int step) {
        uint32_t k_tile = base + S::K + (step & 1) * tile_bytes<S::KEYS, S::DQK>;
        if constexpr (S::HELD)
            multiply_held<S::KEYS, S::DQK, S::KEYS>(s, held, k_tile);
        else
            multiply_tiles<S::KEYS, S::DQK, S::QUERIES, S::KEYS>(s, base + S::Q, warpgroup * 64,
                                                                 k_tile);
        end_products();
    };
    auto start_output = [&](int step) {
        add_weighted<S::KEYS, S::DV>(o, weights,
                                     base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>);
        end_products();
    };
    auto soften_scores = [&](int step) {
        int j0 = step * S::KEYS;
        soften<S::KEYS, EXTRA>(s, rows, t.scale, bias + (step & 1) * S::KEYS, j0,
                               j0 + S::KEYS - 1 > whole, rescale);
    };
    int step = 0;
    advance(0);
    copy_ahead(0);
    if (mine > 0) {
        if constexpr (S::HELD) hold_rows<S::QUERIES, S::DQK>(held, base + S::Q, warpgroup * 64);
        begin_products();
        start_scores(0);
        wait_products<0>();
        settle(s);
        soften_scores(0);
        hold_weights<S::KEYS>(s, weights);
        for (step = 1; step < mine; step++) {
            advance(step);
            begin_products();
            start_scores(step);
            start_output(step - 1);
            copy_ahead(step);
            wait_products<1>();
            settle(s);
            soften_scores(step);
            wait_products<0>();
            settle(o);
            hold_weights<S::KEYS>(s, weights);
            /* Mostly the largest score has not grown, and there is nothing to scale. */
            if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
                for (int m = 0; m < S::DV / 8; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        o[m][i] *= rescale[i / 2];
        }
        advance(mine);
        begin_products();
        start_output(mine - 1);
        copy_ahead(mine);
        wait_products<0>();
        settle(o);
    }
    while (++step <= steps) {
        advance(step);
        copy_ahead(step);
    }
    if (idle) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float factor = __fdividef(1.0f, sum);
#pragma unroll
        for (int m = 0; m < S::DV / 8; m++) {
            o[m][2 * r] *= factor;
            o[m][2 * r + 1] *= factor;
        }
        int i = t.i0 + row + 8 * r;
        if (i < p.queries && lane % 4 == 0)
            p.lse[((int64_t)t.b * p.heads + t.h) * p.queries + i] =
                (rows.top[r] + log2f(sum) - t.slope * (float)(row + 8 * r)) * LN2;
    }
    row_source to = {&maps.o, &p.o, p.queries};
    write_rows<S::QUERIES, S::DV>(to, base + S::Q, warpgroup * 64, t.b, t.i0 + warpgroup * 64, t.h,
                                  o, 1.0f);
    end_writes();
}

template <typename S> static void launch(const attention_problem &p, cudaStream_t stream) {
    with_flag(has_extras(p), [&](auto extra) {
        auto kernel = attend_tiles<S, decltype(extra)::value>;
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::MEMORY);
        row_maps maps;
        bool made = make_row_maps(p, NULL, S::QUERIES, S::KEYS, &maps);
        dim3 blocks = made ? query_blocks(p, S::QUERIES) : dim3(0);
        kernel<<<blocks, S::THREADS, S::MEMORY, stream>>>(p, maps);
    });
}

/* What a launch can count. */
enum { MOST_HEADS = 1 << 30, MOST_ROWS = 65535 * 64 };

bool attention_fits_tiles(const attention_problem &p) {
    bool size = (p.dqk == p.dv && (p.dqk == 32 || p.dqk == 64 || p.dqk == 96 || p.dqk == 128)) ||
                (p.dqk == 128 && p.dv == 64);
    bool grid =
        (int64_t)p.batch * p.heads <= MOST_HEADS && p.queries <= MOST_ROWS && p.keys <= MOST_ROWS;
    bool position = p.pos == WEFT_POS_NONE || (p.pos == WEFT_POS_ALIBI && p.causal);
    return p.is_bf16 && size && position && !p.band && grid;
}

void attention_tiles(const attention_problem &p, cudaStream_t stream) {
    if (p.dqk == 32)
        launch<forward_shape<32, 32, 1, 4, 64, true>>(p, stream);
    else if (p.dqk == 64)
        launch<forward_shape<64, 64, 1, 4, 64, true>>(p, stream);
    else if (p.dqk == 96)
        launch<forward_shape<96, 96, 1, 3, 64, true>>(p, stream);
    else if (p.dv == 64)
        launch<forward_shape<128, 64, 1, 3, 64, true>>(p, stream);
    else
        launch<forward_shape<128, 128, 1, 2, 64, true>>(p, stream);
}

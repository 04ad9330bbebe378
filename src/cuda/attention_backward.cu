/* Attention's backward pass on the tensor cores, without atomics: one kernel by keys and one by
 * queries, each of which makes P = exp(S − lse) anew from the saved logsumexp.
 *
 * By keys, everything is turned: a warpgroup has 64 keys, and of each tile of queries makes
 * Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, and from them, in registers, Pᵀ and dSᵀ = Pᵀ ∘ (dPᵀ − D). There they
 * are as the next products want them, dV += Pᵀ dO and dK += dSᵀ Q. By queries, a warpgroup has 64
 * queries and makes S, dP and dQ += dS K. So P and dS never leave the registers, at the price of
 * seven products in place of five.
 *
 * A block by keys has one key head and some of its query heads, which it takes in order. Where one
 * key head has many query heads these are divided among `parts` blocks, as the shape alone says;
 * each part's sums are written apart and added up in order. So are the numbers a head.
 *
 * First of all a small kernel finds D_i = ⟨do_i, o_i⟩, and lays it and lse to the base 2 out in
 * rows that are filled up to a multiple of 128 with queries of no weight. */
#include "cuda/attention_tiles.cuh"

enum { ROW_PADDING = 128, NUMBERS = 2, BLOCKS_WANTED = 528, STAGES = 3 };

/* lse of a query that is not there: its weights are 0. Also the exponent of a hidden pair; finite,
 * so that times 0 it is 0. */
constexpr float NOTHING = 1e30f;

struct tiles_workspace {
    float *lse, *total;  /* [B, H, padded] to the base 2; D */
    float *shift;        /* [B, H, padded] ⟨q_i, k_0⟩, where dscale is wanted */
    double *numbers;     /* [B, H, key tiles, warps, NUMBERS]: of dscale or dlog_tau; of dbeta */
    float *dk, *dv, *dn; /* [parts, B, S, KV, dqk], [.., dv], [parts, B, KV, S], where several */
    int padded, parts;
};

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int QUERIES_, bool OVERLAP_>
struct key_shape {
    static constexpr int DQK = DQK_, DV = DV_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int QUERIES = QUERIES_; /* in a tile */
    /* A tile's sums run while the next one's weights are made: faster, if registers suffice. */
    static constexpr bool OVERLAP = OVERLAP_;
    static constexpr int KEYS = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int K = 0, V = K + tile_bytes<KEYS, DQK>, Q = V + tile_bytes<KEYS, DV>;
    static constexpr int D_O = Q + STAGES * tile_bytes<QUERIES, DQK>;
    static constexpr int ROWS = D_O + STAGES * tile_bytes<QUERIES, DV>; /* lse, total, shift */
    static constexpr int MEMORY = ROWS + STAGES * 3 * QUERIES * (int)sizeof(float) + 1024;
};

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int KEYS_> struct query_shape {
    static constexpr int DQK = DQK_, DV = DV_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int KEYS = KEYS_; /* in a tile */
    static constexpr int QUERIES = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int Q = 0, D_O = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int K = D_O + tile_bytes<QUERIES, DV>;
    static constexpr int V = K + STAGES * tile_bytes<KEYS, DQK>;
    static constexpr int BIAS = V + 2 * tile_bytes<KEYS, DV>;
    static constexpr int MEMORY = BIAS + 2 * KEYS * (int)sizeof(float) + 1024;
};

/* Eight threads a row, queries of a head one after another. */
static __global__ void prepare_rows(const __grid_constant__ attention_problem p,
                                    const __grid_constant__ attention_gradients g,
                                    const __grid_constant__ tiles_workspace w) {
    int64_t rows = (int64_t)p.batch * p.heads * w.padded;
    int part = threadIdx.x % 8;
    for (int64_t r = thread_index() / 8; r < rows; r += thread_count() / 8) {
        int i = (int)(r % w.padded), h = (int)(r / w.padded % p.heads);
        int b = (int)(r / w.padded / p.heads);
        bool inside = i < p.queries;
        float total = 0, shift = 0, x[VECTOR], y[VECTOR];
        for (int c = part * VECTOR; inside && c < p.dv; c += 8 * VECTOR) {
            load_vector((const bf16 *)g.d_o.data + row_at(g.d_o, b, i, h) + c, x);
            load_vector((const bf16 *)p.o.data + row_at(p.o, b, i, h) + c, y);
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                total = fmaf(x[e], y[e], total);
        }
        for (int c = part * VECTOR; w.shift && inside && c < p.dqk; c += 8 * VECTOR) {
            load_vector((const bf16 *)p.q.data + row_at(p.q, b, i, h) + c, x);
            load_vector((const bf16 *)p.k.data + row_at(p.k, b, 0, key_head_of(p, h)) + c, y);
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                shift = fmaf(x[e], y[e], shift);
        }
        for (int step = 1; step < 8; step *= 2) {
            total += __shfl_xor_sync(0xffffffffu, total, step);
            shift += __shfl_xor_sync(0xffffffffu, shift, step);
        }
        if (part != 0) continue;
        int64_t from = ((int64_t)b * p.heads + h) * p.queries + i;
        w.lse[r] = inside ? p.lse[from] * LOG2E : NOTHING;
        w.total[r] = total;
        if (w.shift) w.shift[r] = shift;
    }
}

/* A block's keys and query heads, and where it is among the queries. */
struct key_block {
    int b, kv, tile, part, j0, start;
    int first_head, heads;
    int first, per_head; /* first query of a head that is read, and tiles of them */
};

template <typename S>
__device__ static inline key_block place_keys(const attention_problem &p, int parts) {
    int tiles = (p.keys + S::KEYS - 1) / S::KEYS, id = blockIdx.x;
    key_block t;
    t.tile = id % tiles;
    t.part = id / tiles % parts;
    t.kv = id / tiles / parts % p.kv_heads;
    t.b = id / tiles / parts / p.kv_heads;
    t.j0 = t.tile * S::KEYS;
    t.start = start_of(p, t.b);
    int from = first_head_of(p, t.kv), group = first_head_of(p, t.kv + 1) - from;
    t.first_head = from + group * t.part / parts;
    t.heads = from + group * (t.part + 1) / parts - t.first_head;
    t.first = p.causal ? max(0, t.j0 - t.start) / S::QUERIES * S::QUERIES : 0;
    t.per_head = t.first < p.queries ? (p.queries - t.first + S::QUERIES - 1) / S::QUERIES : 0;
    return t;
}

/* What a thread has of a head where there are extras: numbers of its two keys, and sums. */
struct key_extras {
    float bias[2];   /* of the exponent */
    float column[2]; /* Σ_i ds_ij */
    float dn[2];
    float number;
    float slope; /* to the base 2 */
};

__device__ static inline double sum_warp(double v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ static inline void begin_head(const attention_problem &p, const key_block &t,
                                         const head_numbers &f, int row, key_extras &e) {
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    e.slope = f.slope * LOG2E;
    e.number = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int j = t.j0 + row + 8 * r;
        e.column[r] = 0;
        e.bias[r] = -NOTHING;
        if (j < p.keys)
            e.bias[r] = fmaf(e.slope, (float)(row + 8 * r), n ? f.beta * LOG2E * n[j] : 0.0f);
    }
}

/* Adds the head's columns to dn, and writes what the warp has of the numbers a head. */
__device__ static inline void end_head(const attention_problem &p, const tiles_workspace &w,
                                       const key_block &t, int h, int tiles, int row,
                                       key_extras &e) {
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    head_numbers f = numbers_of_head(p, h);
    bool counts = threadIdx.x % 4 == 0;
    double number = (double)e.number * (w.shift ? 1.0 : (double)LN2), by_n = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int j = t.j0 + row + 8 * r;
        float column = e.column[r];
        column += __shfl_xor_sync(0xffffffffu, column, 1);
        column += __shfl_xor_sync(0xffffffffu, column, 2);
        e.dn[r] += f.beta * column;
        if (!counts || j >= p.keys) continue;
        if (n) by_n += (double)column * ((double)n[j] - (double)n[0]);
    }
    number = sum_warp(number);
    by_n = sum_warp(by_n);
    if (!w.numbers || threadIdx.x % 32 != 0) return;
    int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    double *to =
        w.numbers + ((((int64_t)t.b * p.heads + h) * tiles + t.tile) * warps + warp) * NUMBERS;
    to[0] = number;
    to[1] = by_n;
}

/* Where a warpgroup's tile of pairs is. */
struct turned_tile {
    const float *lse, *total, *shift; /* of the tile's queries */
    int distance;                     /* from the block's first key to the tile's first place */
    int row;                          /* the thread's first key in the block */
    bool masked, wants_scale;
};

/* Sᵀ and dPᵀ to Pᵀ and dSᵀ, in place. */
template <int QUERIES, bool EXTRA>
__device__ static inline void soften_turned(float (&s)[QUERIES / 8][4], float (&dp)[QUERIES / 8][4],
                                            const turned_tile &t, float scale, key_extras &e) {
    int column = threadIdx.x % 4 * 2;
    float factor = scale * LOG2E;
    bool sloped = EXTRA && e.slope != 0.0f && !t.wants_scale;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        int place = t.distance + 8 * n + column;
        float2 lse = *(const float2 *)(t.lse + 8 * n + column);
        float2 total = *(const float2 *)(t.total + 8 * n + column);
        float2 shift = make_float2(0, 0), lead = make_float2(0, 0);
        if (EXTRA) {
            if (t.wants_scale) shift = *(const float2 *)(t.shift + 8 * n + column);
            lead.x = e.slope * (float)place;
            lead.y = e.slope * (float)(place + 1);
            lse.x += lead.x;
            lse.y += lead.y;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float less = i % 2 ? lse.y : lse.x;
            float x = fmaf(s[n][i], factor, EXTRA ? e.bias[i / 2] - less : -less);
            if (t.masked && t.row + i / 2 * 8 > place + i % 2) x = -NOTHING;
            float weight = power_of_two(x);
            float ds = weight * (dp[n][i] - (i % 2 ? total.y : total.x));
            if (EXTRA) {
                float by = t.wants_scale ? s[n][i] - (i % 2 ? shift.y : shift.x) : x;
                /* dlog_tau has no part of the position's. */
                if (sloped) by += (i % 2 ? lead.y : lead.x) - e.slope * (float)(t.row + i / 2 * 8);
                e.column[i / 2] += ds;
                e.number = fmaf(ds, by, e.number);
                ds *= scale;
            }
            s[n][i] = weight;
            dp[n][i] = ds;
        }
    }
}

template <typename S, bool EXTRA>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    find_key_gradients(const __grid_constant__ attention_problem p,
                       const __grid_constant__ attention_gradients g,
                       const __grid_constant__ tiles_workspace w) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    key_block t = place_keys<S>(p, w.parts);
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + lane / 4, first_key = warpgroup * 64;
    int steps = t.per_head * t.heads, tiles = (p.keys + S::KEYS - 1) / S::KEYS;
    auto copy_queries = [&](int step) {
        int h = t.first_head + step / t.per_head, stage = step % STAGES;
        int i0 = t.first + step % t.per_head * S::QUERIES;
        copy_tile<S::QUERIES, S::DQK, S::THREADS>(
            base + S::Q + stage * tile_bytes<S::QUERIES, S::DQK>,
            (const bf16 *)p.q.data + row_at(p.q, t.b, i0, h), p.q.row, p.queries - i0);
        copy_tile<S::QUERIES, S::DV, S::THREADS>(
            base + S::D_O + stage * tile_bytes<S::QUERIES, S::DV>,
            (const bf16 *)g.d_o.data + row_at(g.d_o, t.b, i0, h), g.d_o.row, p.queries - i0);
        int64_t at = ((int64_t)t.b * p.heads + h) * w.padded + i0;
        int kind = threadIdx.x / (S::QUERIES / 4), piece = threadIdx.x % (S::QUERIES / 4);
        const float *from = kind == 0 ? w.lse : kind == 1 ? w.total : kind == 2 ? w.shift : NULL;
        if (from)
            copy_piece(base + S::ROWS + (uint32_t)((stage * 3 + kind) * S::QUERIES + piece * 4) * 4,
                       from + at + piece * 4, true);
    };
    auto advance = [&](int step) {
        wait_copies();
        sync_block();
        if (step + 1 < steps) copy_queries(step + 1);
        end_copies();
    };
    copy_tile<S::KEYS, S::DQK, S::THREADS>(
        base + S::K, (const bf16 *)p.k.data + row_at(p.k, t.b, t.j0, t.kv), p.k.row, p.keys - t.j0);
    copy_tile<S::KEYS, S::DV, S::THREADS>(
        base + S::V, (const bf16 *)p.v.data + row_at(p.v, t.b, t.j0, t.kv), p.v.row, p.keys - t.j0);
    if (steps > 0) copy_queries(0);
    end_copies();
    float dk[S::DQK / 8][4], dv[S::DV / 8][4], scale = p.scale_value;
    float s[S::QUERIES / 8][4], dp[S::QUERIES / 8][4];
    uint32_t weights[S::QUERIES / 16][4], slopes[S::QUERIES / 16][4];
    key_extras e = {};
    clear_sums(dk);
    clear_sums(dv);
    auto start_scores = [&](int stage) {
        multiply_tiles<S::QUERIES, S::DQK, S::KEYS, S::QUERIES>(
            s, base + S::K, first_key, base + S::Q + stage * tile_bytes<S::QUERIES, S::DQK>);
        multiply_tiles<S::QUERIES, S::DV, S::KEYS, S::QUERIES>(
            dp, base + S::V, first_key, base + S::D_O + stage * tile_bytes<S::QUERIES, S::DV>);
        end_products();
    };
    auto start_sums = [&](int stage) {
        add_weighted<S::QUERIES, S::DV>(dv, weights,
                                        base + S::D_O + stage * tile_bytes<S::QUERIES, S::DV>);
        add_weighted<S::QUERIES, S::DQK>(dk, slopes,
                                         base + S::Q + stage * tile_bytes<S::QUERIES, S::DQK>);
        end_products();
    };
    int h = t.first_head, at = 0; /* head, and tile of it */
    auto enter_head = [&]() {
        if (!EXTRA) return;
        head_numbers f = numbers_of_head(p, h);
        scale = f.scale;
        begin_head(p, t, f, row, e);
    };
    auto soften_step = [&](int stage) {
        const float *rows = (const float *)(aligned + S::ROWS) + stage * 3 * S::QUERIES;
        int distance = t.start + t.first + at * S::QUERIES - t.j0;
        turned_tile pairs = {rows,
                             rows + S::QUERIES,
                             rows + 2 * S::QUERIES,
                             distance,
                             row,
                             p.causal && distance < first_key + 63,
                             w.shift != NULL};
        soften_turned<S::QUERIES, EXTRA>(s, dp, pairs, scale, e);
    };
    auto leave_step = [&]() {
        if (++at < t.per_head) return;
        if (EXTRA) end_head(p, w, t, h, tiles, row, e);
        at = 0;
        h++;
    };
    /* The first tile in which one of the warpgroup's keys is seen. */
    int from = p.causal ? max(0, first_key - (t.start + t.first - t.j0)) / S::QUERIES : 0;
    if (t.j0 + first_key >= p.keys || from >= t.per_head) from = steps;
    for (int step = 0; step < from; step++)
        advance(step);
    int stage = from % STAGES;
    at = from;
    if (from < steps && S::OVERLAP) {
        advance(from);
        enter_head();
        begin_products();
        start_scores(stage);
        wait_products<0>();
        settle(s);
        settle(dp);
        soften_step(stage);
        leave_step();
        hold_weights<S::QUERIES>(s, weights);
        hold_weights<S::QUERIES>(dp, slopes);
        for (int step = from + 1; step < steps; step++) {
            int before = stage;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            advance(step);
            if (at == 0) enter_head();
            begin_products();
            start_scores(stage);
            start_sums(before);
            wait_products<1>();
            settle(s);
            settle(dp);
            soften_step(stage);
            wait_products<0>();
            settle(dv);
            settle(dk);
            leave_step();
            hold_weights<S::QUERIES>(s, weights);
            hold_weights<S::QUERIES>(dp, slopes);
        }
        begin_products();
        start_sums(stage);
        wait_products<0>();
        settle(dv);
        settle(dk);
    }
    for (int step = from; step < steps && !S::OVERLAP; step++) {
        advance(step);
        if (at == 0 || step == from) enter_head();
        begin_products();
        start_scores(stage);
        wait_products<0>();
        settle(s);
        settle(dp);
        soften_step(stage);
        leave_step();
        hold_weights<S::QUERIES>(s, weights);
        hold_weights<S::QUERIES>(dp, slopes);
        begin_products();
        start_sums(stage);
        wait_products<0>();
        settle(dv);
        settle(dk);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    float factor = EXTRA ? 1.0f : scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int j = t.j0 + row + 8 * r, column = lane % 4 * 2;
        if (j >= p.keys) continue;
        int64_t place = ((int64_t)(t.part * p.batch + t.b) * p.keys + j) * p.kv_heads + t.kv;
#pragma unroll
        for (int n = 0; n < S::DQK / 8; n++) {
            float x = dk[n][2 * r] * factor, y = dk[n][2 * r + 1] * factor;
            if (w.parts > 1)
                *(float2 *)(w.dk + place * S::DQK + 8 * n + column) = make_float2(x, y);
            else if (g.dk.data)
                *(uint32_t *)((bf16 *)g.dk.data + row_at(g.dk, t.b, j, t.kv) + 8 * n + column) =
                    pack_pair(x, y);
        }
#pragma unroll
        for (int n = 0; n < S::DV / 8; n++) {
            float x = dv[n][2 * r], y = dv[n][2 * r + 1];
            if (w.parts > 1)
                *(float2 *)(w.dv + place * S::DV + 8 * n + column) = make_float2(x, y);
            else if (g.dv.data)
                *(uint32_t *)((bf16 *)g.dv.data + row_at(g.dv, t.b, j, t.kv) + 8 * n + column) =
                    pack_pair(x, y);
        }
        float *dn = w.parts > 1 ? w.dn : g.dn;
        int64_t at = ((int64_t)(t.part * p.batch + t.b) * p.kv_heads + t.kv) * p.keys + j;
        if (EXTRA && dn && column == 0) dn[at] = e.dn[r];
    }
}

template <typename S, bool EXTRA>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    find_query_gradients(const __grid_constant__ attention_problem p,
                         const __grid_constant__ attention_gradients g,
                         const __grid_constant__ tiles_workspace w) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    float *bias = (float *)(aligned + S::BIAS);
    query_block t = place_queries(p, S::QUERIES);
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + lane / 4;
    int first_place = t.place0 + warpgroup * 64;
    int end = p.causal ? min(p.keys, t.place0 + min(S::QUERIES, p.queries - t.i0)) : p.keys;
    int steps = (end + S::KEYS - 1) / S::KEYS;
    const bf16 *k = (const bf16 *)p.k.data + row_at(p.k, t.b, 0, t.kv);
    const bf16 *v = (const bf16 *)p.v.data + row_at(p.v, t.b, 0, t.kv);
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    auto copy_keys = [&](int step) {
        int j0 = step * S::KEYS;
        copy_tile<S::KEYS, S::DQK, S::THREADS>(base + S::K +
                                                   step % STAGES * tile_bytes<S::KEYS, S::DQK>,
                                               k + (int64_t)j0 * p.k.row, p.k.row, p.keys - j0);
        copy_tile<S::KEYS, S::DV, S::THREADS>(base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>,
                                              v + (int64_t)j0 * p.v.row, p.v.row, p.keys - j0);
    };
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
    copy_tile<S::QUERIES, S::DQK, S::THREADS>(base + S::Q,
                                              (const bf16 *)p.q.data + row_at(p.q, t.b, t.i0, t.h),
                                              p.q.row, p.queries - t.i0);
    copy_tile<S::QUERIES, S::DV, S::THREADS>(
        base + S::D_O, (const bf16 *)g.d_o.data + row_at(g.d_o, t.b, t.i0, t.h), g.d_o.row,
        p.queries - t.i0);
    copy_keys(0);
    end_copies();
    read_number(0);
    store_bias(0);
    read_number(1);
    float dq[S::DQK / 8][4], lse[2], total[2];
    int limit[2], whole = p.causal ? min(first_place, p.keys - 1) : p.keys - 1;
    clear_sums(dq);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = t.i0 + row + 8 * r;
        int64_t at = ((int64_t)t.b * p.heads + t.h) * w.padded + i;
        bool inside = i < p.queries;
        lse[r] = inside ? w.lse[at] + t.slope * (float)(row + 8 * r) : NOTHING;
        total[r] = inside ? w.total[at] : 0.0f;
        limit[r] = p.causal ? min(t.place0 + row + 8 * r, p.keys - 1) : p.keys - 1;
    }
    auto advance = [&](int step) {
        wait_copies();
        sync_block();
        if (step + 1 < steps) {
            copy_keys(step + 1);
            store_bias(step + 1);
            read_number(step + 2);
        }
        end_copies();
    };
    float s[S::KEYS / 8][4], dp[S::KEYS / 8][4];
    uint32_t slopes[S::KEYS / 16][4];
    auto start_scores = [&](int step, int stage) {
        multiply_tiles<S::KEYS, S::DQK, S::QUERIES, S::KEYS>(
            s, base + S::Q, warpgroup * 64, base + S::K + stage * tile_bytes<S::KEYS, S::DQK>);
        multiply_tiles<S::KEYS, S::DV, S::QUERIES, S::KEYS>(
            dp, base + S::D_O, warpgroup * 64,
            base + S::V + (step & 1) * tile_bytes<S::KEYS, S::DV>);
        end_products();
    };
    auto start_sums = [&](int stage) {
        add_weighted<S::KEYS, S::DQK>(dq, slopes,
                                      base + S::K + stage * tile_bytes<S::KEYS, S::DQK>);
        end_products();
    };
    /* S and dP to P and dS, in place: only dS is needed. */
    auto soften_step = [&](int step) {
        int j0 = step * S::KEYS, column = lane % 4 * 2;
        bool masked = j0 + S::KEYS - 1 > whole;
#pragma unroll
        for (int m = 0; m < S::KEYS / 8; m++) {
            float2 b = EXTRA ? *(const float2 *)(bias + (step & 1) * S::KEYS + 8 * m + column)
                             : make_float2(0, 0);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = EXTRA ? (i % 2 ? b.y : b.x) - lse[i / 2] : -lse[i / 2];
                x = fmaf(s[m][i], t.scale, x);
                if (masked && j0 + 8 * m + column + i % 2 > limit[i / 2]) x = -NOTHING;
                dp[m][i] = power_of_two(x) * (dp[m][i] - total[i / 2]);
            }
        }
    };
    int mine = p.causal ? min(steps, (first_place + 63) / S::KEYS + 1) : steps;
    if (t.i0 + warpgroup * 64 >= p.queries) mine = 0;
    int step = 0;
    advance(0);
    if (mine > 0) {
        int stage = 0;
        begin_products();
        start_scores(0, 0);
        wait_products<0>();
        settle(s);
        settle(dp);
        soften_step(0);
        hold_weights<S::KEYS>(dp, slopes);
        for (step = 1; step < mine; step++) {
            int before = stage;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            advance(step);
            begin_products();
            start_scores(step, stage);
            start_sums(before);
            wait_products<1>();
            settle(s);
            settle(dp);
            soften_step(step);
            wait_products<0>();
            settle(dq);
            hold_weights<S::KEYS>(dp, slopes);
        }
        begin_products();
        start_sums(stage);
        wait_products<0>();
        settle(dq);
        step = mine - 1;
    }
    while (++step < steps)
        advance(step);
    float factor = t.scale * LN2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = t.i0 + row + 8 * r;
        if (i >= p.queries) continue;
        bf16 *to = (bf16 *)g.dq.data + row_at(g.dq, t.b, i, t.h) + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < S::DQK / 8; m++)
            *(uint32_t *)(to + 8 * m) = pack_pair(dq[m][2 * r] * factor, dq[m][2 * r + 1] * factor);
    }
}

/* Sums of the parts, in order: `rows` rows of `width` to where `to` has them. */
static __global__ void add_rows(const float *parts, int count, int64_t rows, int width, int keys,
                                int kv_heads, head_rows to) {
    int64_t size = rows * width;
    for (int64_t e = thread_index() * 4; e < size; e += thread_count() * 4) {
        float4 sum = *(const float4 *)(parts + e);
        for (int c = 1; c < count; c++) {
            float4 more = *(const float4 *)(parts + c * size + e);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        int64_t row = e / width;
        int kv = (int)(row % kv_heads), j = (int)(row / kv_heads % keys);
        int b = (int)(row / kv_heads / keys);
        bf16 *at = (bf16 *)to.data + row_at(to, b, j, kv) + e % width;
        *(uint2 *)at = make_uint2(pack_pair(sum.x, sum.y), pack_pair(sum.z, sum.w));
    }
}

static __global__ void add_numbers_of_keys(const float *parts, int count, int64_t size, float *to) {
    for (int64_t e = thread_index(); e < size; e += thread_count()) {
        float sum = parts[e];
        for (int c = 1; c < count; c++)
            sum += parts[c * size + e];
        to[e] = sum;
    }
}

/* A warp a head: what the warps of its blocks wrote. */
static __global__ void add_numbers_of_heads(const __grid_constant__ attention_problem p,
                                            const __grid_constant__ attention_gradients g,
                                            const double *numbers, int64_t a_sequence) {
    int h = blockIdx.x;
    double sum[NUMBERS] = {};
    for (int64_t e = threadIdx.x; e < p.batch * a_sequence; e += 32) {
        int64_t at = (e / a_sequence * p.heads + h) * a_sequence + e % a_sequence;
        for (int n = 0; n < NUMBERS; n++)
            sum[n] += numbers[at * NUMBERS + n];
    }
    for (int n = 0; n < NUMBERS; n++)
        sum[n] = sum_warp(sum[n]);
    if (threadIdx.x != 0) return;
    if (g.dscale) g.dscale[h] = (float)sum[0];
    if (g.dlog_tau) g.dlog_tau[h] = (float)(sum[0] * (double)numbers_of_head(p, h).tau_factor);
    if (g.dbeta) g.dbeta[h] = (float)sum[1];
}

/* Calls f with the shapes for the problem's widths. */
template <typename F> static void with_shapes(const attention_problem &p, F f) {
    if (p.dqk == 32)
        f(key_shape<32, 32, 2, 1, 64, true>(), query_shape<32, 32, 3, 1, 64>());
    else if (p.dqk == 64)
        f(key_shape<64, 64, 2, 1, 64, true>(), query_shape<64, 64, 3, 1, 64>());
    else if (p.dqk == 96)
        f(key_shape<96, 96, 2, 1, 64, true>(), query_shape<96, 96, 3, 1, 64>());
    else if (p.dv == 64)
        f(key_shape<128, 64, 2, 1, 64, true>(), query_shape<128, 64, 2, 1, 64>());
    else
        f(key_shape<128, 128, 2, 1, 64, false>(), query_shape<128, 128, 2, 1, 64>());
}

/* Divides the workspace; without one (base NULL) only measures it. Returns its bytes. */
static int64_t lay_out_workspace(const attention_problem &p, int keys, int warps, char *base,
                                 tiles_workspace *w) {
    int64_t used = 0, tiles = ceil_div(p.keys, keys), heads = (int64_t)p.batch * p.heads;
    int64_t rows = (int64_t)p.batch * p.keys * p.kv_heads;
    auto take = [&](int64_t bytes) {
        char *at = base ? base + used : NULL;
        used += align_bytes(bytes);
        return (void *)at;
    };
    *w = {};
    w->padded = (int)(ceil_div(p.queries, ROW_PADDING) * ROW_PADDING);
    w->parts = (int)min_i64(ceil_div(p.heads, p.kv_heads),
                            ceil_div(BLOCKS_WANTED, p.batch * p.kv_heads * tiles));
    if (p.heads % p.kv_heads != 0) w->parts = 1;
    w->numbers = (double *)take(heads * tiles * warps * NUMBERS * (int64_t)sizeof(double));
    w->lse = (float *)take(heads * w->padded * (int64_t)sizeof(float));
    w->total = (float *)take(heads * w->padded * (int64_t)sizeof(float));
    w->shift = (float *)take(heads * w->padded * (int64_t)sizeof(float));
    if (w->parts == 1) return used;
    w->dk = (float *)take(w->parts * rows * p.dqk * (int64_t)sizeof(float));
    w->dv = (float *)take(w->parts * rows * p.dv * (int64_t)sizeof(float));
    w->dn = (float *)take(w->parts * rows * (int64_t)sizeof(float));
    return used;
}

int64_t attention_tiles_back_workspace(const attention_problem &p) {
    int64_t bytes = 0;
    with_shapes(p, [&](auto by_keys, auto) {
        using K = decltype(by_keys);
        tiles_workspace w;
        bytes = lay_out_workspace(p, K::KEYS, K::THREADS / 32, NULL, &w);
    });
    return bytes;
}

template <typename K, typename Q, bool EXTRA>
static void launch_back(const attention_problem &p, const attention_gradients &g,
                        const tiles_workspace &w, cudaStream_t stream) {
    int64_t tiles = ceil_div(p.keys, K::KEYS);
    auto by_keys = find_key_gradients<K, EXTRA>;
    auto by_queries = find_query_gradients<Q, EXTRA>;
    cudaFuncSetAttribute(by_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, K::MEMORY);
    cudaFuncSetAttribute(by_queries, cudaFuncAttributeMaxDynamicSharedMemorySize, Q::MEMORY);
    if (g.dk.data || g.dv.data || g.dn || g.dscale || g.dbeta || g.dlog_tau)
        by_keys<<<(unsigned)(p.batch * p.kv_heads * w.parts * tiles), K::THREADS, K::MEMORY,
                  stream>>>(p, g, w);
    if (g.dq.data)
        by_queries<<<(unsigned)(p.batch * p.heads * ceil_div(p.queries, Q::QUERIES)), Q::THREADS,
                     Q::MEMORY, stream>>>(p, g, w);
}

void attention_tiles_back(const attention_problem &p, const attention_gradients &g,
                          cudaStream_t stream) {
    with_shapes(p, [&](auto by_keys, auto by_queries) {
        using K = decltype(by_keys);
        using Q = decltype(by_queries);
        bool numbers = g.dscale || g.dbeta || g.dlog_tau;
        int64_t tiles = ceil_div(p.keys, K::KEYS), rows = (int64_t)p.batch * p.keys * p.kv_heads;
        int64_t queries = (int64_t)p.batch * p.heads;
        constexpr int warps = K::THREADS / 32;
        tiles_workspace w;
        lay_out_workspace(p, K::KEYS, warps, (char *)g.workspace, &w);
        if (!g.dscale) w.shift = NULL;
        if (!numbers) w.numbers = NULL;
        /* Warps whose keys no query sees write none. */
        if (numbers)
            cudaMemsetAsync(w.numbers, 0,
                            (size_t)(queries * tiles * warps * NUMBERS) * sizeof(double), stream);
        prepare_rows<<<grid_for(queries * w.padded * 8, 256), 256, 0, stream>>>(p, g, w);
        with_flag(has_extras(p),
                  [&](auto extra) { launch_back<K, Q, decltype(extra)::value>(p, g, w, stream); });
        if (w.parts > 1 && g.dk.data)
            add_rows<<<grid_for(rows * p.dqk / 4, 256), 256, 0, stream>>>(
                w.dk, w.parts, rows, p.dqk, p.keys, p.kv_heads, g.dk);
        if (w.parts > 1 && g.dv.data)
            add_rows<<<grid_for(rows * p.dv / 4, 256), 256, 0, stream>>>(w.dv, w.parts, rows, p.dv,
                                                                         p.keys, p.kv_heads, g.dv);
        if (w.parts > 1 && g.dn)
            add_numbers_of_keys<<<grid_for(rows, 256), 256, 0, stream>>>(w.dn, w.parts, rows, g.dn);
        if (numbers)
            add_numbers_of_heads<<<(unsigned)p.heads, 32, 0, stream>>>(p, g, w.numbers,
                                                                       tiles * warps);
    });
}

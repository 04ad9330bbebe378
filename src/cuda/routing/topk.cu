/* Top-k routing on the tensor cores: the k largest attention weights of each row, without the matrix of
 * weights, as FlashAttention does without it: tiles of Q and K by TMA through a ring of mbarriers, scores
 * by wgmma, and a running sorted list of the k largest in registers.
 *
 * A block has 128 queries of a sequence. It walks tiles of 128 keys and, for each, all heads: the
 * scores of a head are one small product, their exponentials are added up over heads in registers.
 * Each of its four warpgroups has 64 of the queries and half of a tile's keys. When the last head is
 * done the four threads of a row hold its weights, a quarter of the columns each, and offer them to
 * the sorted list of the row, which lies in their registers, a quarter in each. At the end the two
 * lists of a row, one in each of two warpgroups, are merged. So nothing of the size of R is ever
 * written: the floor is the scores' arithmetic, B·H·dqk·T² operations (causal), and as many
 * exponentials as there are scores.
 *
 * Compiled for heads of 32, 64, 96, 128, 192 and 256, of which the last two come in halves; those
 * between are filled up with zeros, by TMA. Lists have room for 8, 32 or 64. The first places of a
 * longer list than is wanted are taken by what is larger than every weight. With 64, tiles have 64
 * keys: the lists need the registers.
 *
 * Queries and keys come by TMA, some steps (a tile, a head) ahead: all blocks' are more
 * than the L2 cache has room for. Warpgroups do not meet: each waits for a step's arrival and tells
 * when it has read it, so that some take exponentials while others multiply. One thread starts the
 * copies of a later step when all have read an earlier one, not the last, so that it seldom waits.
 *
 * Few of a tile's weights are larger than the last of a list. Threads put those that are aside, in
 * shared memory, and say by a mask of 32 columns which; then the four take them up in the order of
 * columns, those of a warp's rows at the same time: a warp is as slow as its busiest row, not as all
 * of them together. */
#include "cuda/functions.cuh"
#include "cuda/routing/routing.cuh"
#include "cuda/tensor/tma.cuh"

enum {
    TILE = 128,
    HALF = TILE / 2, /* queries of a warpgroup */
    THREADS = 512,
    WARPS = THREADS / 32,
    PLACES = 8, /* of a row's weights that a thread may put aside: 32 columns in all */
    FEW = 16    /* kept of a row, for which first_floor is of use */
};

/* Keys of a warpgroup in a tile. */
template <int K> constexpr int KEYS = K > 32 ? 32 : 64;

/* A row's sorted list in the registers of its four threads, a quarter in each: every index into it
 * is a constant once loops are unrolled. */
template <int K> struct best_list {
    static constexpr int OWN = K / 4;
    float weight[OWN];
    int index[OWN];

    /* Room for the last k. */
    __device__ void clear(int k) {
        int above = K - k - (int)threadIdx.x % 4 * OWN;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            weight[i] = i < above ? INFINITY : -1;
            index[i] = INT32_MAX;
        }
    }

    /* The four threads offer the same, and a warp's do so together; −2 is none. It goes behind what is
     * as large: columns come in ascending order. Where it is above all that a thread has, that
     * thread gets the last of the thread before it. */
    __device__ void offer(float w, int j) {
        float before = __shfl_up_sync(0xffffffffu, weight[OWN - 1], 1, 4);
        int before_index = __shfl_up_sync(0xffffffffu, index[OWN - 1], 1, 4);
        bool pushed = threadIdx.x % 4 > 0 && w > before;
#pragma unroll
        for (int i = OWN - 1; i > 0; i--) {
            bool shift = w > weight[i - 1], here = w > weight[i];
            weight[i] = shift ? weight[i - 1] : here ? w : weight[i];
            index[i] = shift ? index[i - 1] : here ? j : index[i];
        }
        if (w > weight[0]) {
            weight[0] = pushed ? before : w;
            index[0] = pushed ? before_index : j;
        }
    }

    /* The smallest that is kept; −1 while there is room. */
    __device__ float last() const {
        return __shfl_sync(0xffffffffu, weight[OWN - 1], 3, 4);
    }
};

/* Shared memory, in bytes: places for the steps' queries and for keys; what threads put aside, in
 * the end, from the beginning on, the lists of every second row; arrivals of steps, then those that
 * say that a step has been read; the heads' numbers. */
template <int D, int K> struct topk_memory {
    static constexpr int PARTS = D > 128 ? 2 : 1, DEPTH = D / PARTS;
    static constexpr int STEPS = DEPTH <= 64 ? 4 : 3;
    static constexpr int LAG = STEPS - 2; /* steps that the first may be ahead of the last */
    static constexpr int KEY_TILE = 2 * KEYS<K>;
    static constexpr int QUERY_BYTES = tile_bytes<TILE, DEPTH>;
    static constexpr int KEY_BYTES = tile_bytes<KEY_TILE, DEPTH>;
    static constexpr int Q_AT = 0, K_AT = Q_AT + STEPS * QUERY_BYTES;
    static constexpr int ASIDE = K_AT + STEPS * KEY_BYTES;
    static constexpr int FULL = ASIDE + 2 * PLACES * THREADS * (int)sizeof(float);
    static constexpr int EMPTY = FULL + STEPS * 8;
    static constexpr int HEADS = EMPTY + STEPS * 8;
    static_assert(TILE * K * (int)sizeof(float2) <= FULL, "room for two lists of every second row");
};

/* A head's numbers, to the base 2, and its key head. */
typedef struct {
    float scale, beta, slope;
    int16_t key_head, changes; /* changes: it is not that of the head before */
} __attribute__((aligned(16))) head_scale;

/* Queries and keys as TMA sees them. */
typedef struct {
    row_map q[2], k[2]; /* the parts of a head */
} topk_maps;

/* Where a thread works. */
typedef struct {
    int b;                /* sequence */
    int first, row;       /* the warpgroup's and the thread's first query */
    int tile_row, column; /* the warpgroup's first row and key in tiles */
} query_place;

/* A step: a head of a tile, or a part of it. `slot` is where its queries are and `key_slot` its keys,
 * which only change with the tile, the key head or the part; slots are used in a ring, `phase` counts the rounds. */
typedef struct {
    int key, head, part; /* first key of the tile */
    int slot, phase, key_slot;
} topk_step;

#ifndef USE_MMA_SYNC
template <typename M>
__device__ static inline void next_step(topk_step &s, const head_scale *heads, int count) {
    if (++s.part == M::PARTS) {
        s.part = 0;
        s.head++;
    }
    if (s.head == count) {
        s.head = 0;
        s.key += M::KEY_TILE;
    }
    if (++s.slot == M::STEPS) {
        s.slot = 0;
        s.phase++;
    }
    if (M::PARTS > 1 || heads[s.head].changes)
        s.key_slot = s.key_slot + 1 < M::STEPS ? s.key_slot + 1 : 0;
}

/* Starts a step's copies; one thread calls it. A key slot is used again after STEPS changes, and so
 * after as many steps at least: its last one has been read if the query slot's has. */
template <typename M>
__device__ static inline void copy_step(const topk_maps &maps, uint32_t base,
                                        const head_scale *heads, int b, int first,
                                        const topk_step &s) {
    uint32_t arrival = base + M::FULL + (uint32_t)s.slot * 8;
    row_source q = {&maps.q[s.part], NULL, 0}, k = {&maps.k[s.part], NULL, 0};
    head_scale head = heads[s.head];
    bool changes = M::PARTS > 1 || head.changes;
    expect_tx(arrival, M::QUERY_BYTES + (changes ? M::KEY_BYTES : 0));
    tma_load<TILE, M::DEPTH, THREADS>(base + M::Q_AT + (uint32_t)s.slot * M::QUERY_BYTES, q, b,
                                      first, s.head, arrival);
    if (changes)
        tma_load<M::KEY_TILE, M::DEPTH, THREADS>(base + M::K_AT +
                                                     (uint32_t)s.key_slot * M::KEY_BYTES,
                                                 k, b, s.key, head.key_head, arrival);
}

/* The scores of a step, of the warpgroup's queries and keys; ADD: to those of the parts before. */
template <typename M, bool ADD, int N>
__device__ static inline void multiply_step(float (&score)[N][4], uint32_t base, const topk_step &s,
                                            int row, int column) {
    constexpr int D = M::DEPTH;
    uint32_t q = base + M::Q_AT + (uint32_t)s.slot * M::QUERY_BYTES;
    uint32_t k = base + M::K_AT + (uint32_t)s.key_slot * M::KEY_BYTES +
                 (uint32_t)column * tile_panel<D>::bytes;
    multiply_tiles<8 * N, D, TILE, M::KEY_TILE, ADD>(score, q, row, k);
}

/* The logsumexp of a thread's two rows. */
__device__ static inline void read_sums(const route_problem &p, const query_place &t, int h,
                                        float (&lse)[2]) {
    const float *from = p.lse + ((int64_t)t.b * p.heads + h) * p.queries + t.row;
#pragma unroll
    for (int r = 0; r < 2; r++)
        lse[r] = t.row + 8 * r < (int)p.queries ? from[8 * r] : 0;
}

/* total += exp(score − lse), for the warpgroup's columns, from column `key` on. ALL: with every
 * option, else a scaled product alone and a mean. `n`: the key head's numbers. */
template <bool ALL, int COLUMNS>
__device__ static inline void add_weights(const route_problem &p, const float (&score)[COLUMNS][4],
                                          const head_scale &head, const float (&shift)[2], int row,
                                          int key, const float *n, float (&total)[COLUMNS][4]) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float s = fmaf(score[c][i], head.scale, shift[i / 2]);
            if (ALL) {
                int j = key + c * 8 + column + i % 2, distance = max(0, row + i / 2 * 8 - j);
                if (p.n && j < p.keys) s = fmaf(head.beta, n[j], s);
                if (p.alibi) s = fmaf(-head.slope, (float)distance, s);
                if (p.rel && distance < p.distances) s = fmaf(p.rel[distance], LOG2E, s);
            }
            float w = power_of_two(s);
            total[c][i] = ALL && p.use_max ? fmaxf(total[c][i], w) : total[c][i] + w;
        }
}

/* Something below FEW weights of a row at least (8: below eight), for a first tile that would fill the
 * lists with much that does not stay: of each of the row's four threads, the quarter as many that
 * are largest of the four largest weights of a quarter. `last` is the thread's last column. */
template <int K, int COLUMNS>
__device__ static inline float first_floor(const float (&total)[COLUMNS][4], int r, int first,
                                           int last) {
    float top[4];
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        top[quarter] = -1;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            int c = quarter * (COLUMNS / 4) + i / 2;
            if (first + 8 * c + i % 2 <= last)
                top[quarter] = fmaxf(top[quarter], total[c][2 * r + i % 2]);
        }
    }
    float high = fmaxf(top[0], top[1]), low = fminf(top[0], top[1]);
    float other_high = fmaxf(top[2], top[3]), other_low = fminf(top[2], top[3]);
    float floor =
        K == 8 ? fmaxf(fminf(high, other_high), fmaxf(low, other_low)) : fminf(low, other_low);
    floor = fminf(floor, __shfl_xor_sync(0xffffffffu, floor, 1));
    floor = fminf(floor, __shfl_xor_sync(0xffffffffu, floor, 2));
    return floor > 0 ? __uint_as_float(__float_as_uint(floor) - 1) : -1;
}

/* Offers a tile's weights to the lists of the thread's two rows. */
template <int K, int COLUMNS>
__device__ static inline void offer_tile(const route_problem &p, const float (&total)[COLUMNS][4],
                                         int row, int key, int k, float *aside,
                                         best_list<K> (&lists)[2]) {
    int lane = (int)threadIdx.x % 4, first = key + lane * 2, last[2];
    float floor[2];
    aside += threadIdx.x;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        last[r] = p.causal ? min((int)p.keys - 1, row + 8 * r) : (int)p.keys - 1;
        if (key >= 2 * KEYS<K>)
            floor[r] = lists[r].last();
        else if (K == 8)
            floor[r] = first_floor<8>(total, r, first, last[r]);
        else if (COLUMNS == 8 && k <= FEW)
            floor[r] = first_floor<FEW>(total, r, first, last[r]);
        else
            floor[r] = -1;
    }
    bool edge = last[0] < key + 8 * COLUMNS - 1; /* somewhere in the warp: everywhere is looked */
    edge = __any_sync(0xffffffffu, edge);
#pragma unroll
    for (int from = 0; from < COLUMNS; from += PLACES / 2) {
        uint32_t open[2] = {0, 0}; /* a bit for each of 32 columns */
#pragma unroll
        for (int place = 0; place < PLACES; place++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float w = total[from + place / 2][2 * r + place % 2];
                bool seen = !edge || first + 8 * (from + place / 2) + place % 2 <= last[r];
                if (seen && w > floor[r]) {
                    aside[(r * PLACES + place) * THREADS] = w;
                    open[r] |= 1u << (place / 2 * 8 + place % 2);
                }
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            open[r] <<= 2 * lane;
            open[r] |= __shfl_xor_sync(0xffffffffu, open[r], 1);
            open[r] |= __shfl_xor_sync(0xffffffffu, open[r], 2);
        }
        __syncwarp(); /* the others' are there too */
        while (__any_sync(0xffffffffu, open[0] | open[1])) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int bit = __ffs((int)open[r]) - 1, place = bit / 8 * 2 + bit % 2;
                open[r] &= open[r] - 1;
                float w = bit < 0 ? -2 : aside[(r * PLACES + place) * THREADS + bit % 8 / 2 - lane];
                lists[r].offer(w, key + 8 * from + bit);
            }
        }
        __syncwarp();
    }
}

/* Stores the first k of two lists. */
__device__ static inline void store_row(const route_problem &p, const float2 *list,
                                        const float2 *other, int k, bool normalize, int32_t *index,
                                        float *weight) {
    float factor = p.use_max ? 1.0f : 1.0f / (float)p.heads;
    auto merge = [&](auto take) {
        const float2 *a = list, *b = other;
        for (int m = 0; m < k; m++) {
            bool second =
                b->x > a->x || (b->x == a->x && __float_as_int(b->y) < __float_as_int(a->y));
            const float2 *best = second ? b++ : a++;
            int j = __float_as_int(best->y);
            take(m, j == INT32_MAX ? -1 : j, j == INT32_MAX ? 0 : best->x * factor);
        }
    };
    float sum = 0;
    merge([&](int, int, float w) { sum += w; });
    float share = normalize && sum > 0 ? 1 / sum : 1;
    merge([&](int m, int j, float w) {
        index[m] = j;
        weight[m] = w * share;
    });
}

/* Merges what the two warpgroups have that share 64 queries, and stores it: first the upper rows of
 * the warps' sixteen, then the lower ones. `shared` is all memory before the barriers. */
template <int K>
__device__ static inline void store_rows(const route_problem &p, const best_list<K> (&lists)[2],
                                         const query_place &t, int k, bool normalize,
                                         float2 *shared, int32_t *index, float *weight) {
    constexpr int OWN = best_list<K>::OWN;
    int lane = (int)threadIdx.x % 4;
    float2 *both = shared + (t.tile_row / 2 + (int)threadIdx.x % 128 / 4) * 2 * K;
    float2 *own = both + (t.column > 0 ? K : 0) + lane * OWN;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        __syncthreads(); /* nothing else is there any more */
#pragma unroll
        for (int i = 0; i < OWN; i++)
            own[i] = make_float2(lists[r].weight[i], __int_as_float(lists[r].index[i]));
        __syncthreads();
        int64_t at = ((int64_t)t.b * p.queries + t.row + 8 * r) * k;
        if (t.column == 0 && lane == 0 && t.row + 8 * r < p.queries)
            store_row(p, both + K - k, both + 2 * K - k, k, normalize, index + at, weight + at);
    }
}

#endif

/* Empty where the code is not for 9.0a: weft_cuda_topk_is_fast takes no node there. */
template <int D, int K, bool ALL>
static __global__ void __launch_bounds__(THREADS, 1)
    route_tiles(const __grid_constant__ route_problem p, const __grid_constant__ topk_maps maps,
                int k, bool normalize, int32_t *index, float *weight) {
#ifndef USE_MMA_SYNC
    using M = topk_memory<D, K>;
    constexpr int COLUMNS = KEYS<K> / 8;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t base = shared_address(memory);
    float *aside = (float *)(memory + M::ASIDE);
    head_scale *heads = (head_scale *)(memory + M::HEADS);
    /* The last queries see the most keys: those of all sequences go first. */
    int first = (int)(gridDim.y - 1 - blockIdx.y) * TILE;
    int end = (int)(p.causal ? min_i64(p.keys, first + TILE) : p.keys);
    int warpgroup = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    query_place t = {(int)blockIdx.x, 0, 0, warpgroup % 2 * HALF, warpgroup / 2 * KEYS<K>};
    t.first = first + t.tile_row;
    t.row = t.first + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
    for (int h = (int)threadIdx.x; h < p.heads; h += THREADS) {
        route_head head = route_head_of(p, h);
        int key_head = h * p.kv_heads / p.heads;
        bool changes = h == 0 || (h - 1) * p.kv_heads / p.heads != key_head;
        heads[h] = head_scale{head.scale * LOG2E, head.beta * LOG2E, head.slope * LOG2E,
                              (int16_t)key_head, (int16_t)changes};
    }
    for (int i = 0; i < M::STEPS && threadIdx.x == 0; i++)
        init_barrier(base + M::EMPTY + 8 * i, WARPS);
    init_barriers(base + M::FULL, M::STEPS);
    topk_step now = {}, ahead = {};
    for (int i = 0; i < M::STEPS && threadIdx.x == 0 && ahead.key < end; i++) {
        copy_step<M>(maps, base, heads, t.b, first, ahead);
        next_step<M>(ahead, heads, p.heads);
    }
    __syncwarp();
    best_list<K> lists[2];
    lists[0].clear(k);
    lists[1].clear(k);
    float score[COLUMNS][4], total[COLUMNS][4] = {}, lse[2];
    read_sums(p, t, 0, lse);
    int late = -M::LAG; /* steps until the next is copied */
    while (now.key < end) {
        bool last = now.head + 1 == p.heads;
        head_scale head = heads[now.head];
        float shift[2] = {-lse[0] * LOG2E, -lse[1] * LOG2E};
        int key = now.key + t.column;
#pragma unroll
        for (int part = 0; part < M::PARTS; part++) {
            if (++late > 0 && threadIdx.x == 0 && ahead.key < end) {
                /* The step that had the slot before. */
                wait_barrier(base + M::EMPTY + (uint32_t)ahead.slot * 8, ahead.phase - 1);
                copy_step<M>(maps, base, heads, t.b, first, ahead);
                next_step<M>(ahead, heads, p.heads);
            }
            __syncwarp();
            wait_barrier(base + M::FULL + (uint32_t)now.slot * 8, now.phase);
            begin_products();
            if (part == 0)
                multiply_step<M, false>(score, base, now, t.tile_row, t.column);
            else
                multiply_step<M, true>(score, base, now, t.tile_row, t.column);
            end_products();
            if (part == 0) read_sums(p, t, last ? 0 : now.head + 1, lse);
            wait_products<0>();
            settle(score);
            __syncwarp(); /* the warp has read the step's slots */
            if (threadIdx.x % 32 == 0) arrive(base + M::EMPTY + (uint32_t)now.slot * 8);
            next_step<M>(now, heads, p.heads);
        }
        if (p.causal && key > t.first + HALF - 1) continue; /* no query sees any of the keys */
        const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + head.key_head) * p.keys : NULL;
        add_weights<ALL>(p, score, head, shift, t.row, key, n, total);
        if (!last) continue;
        offer_tile<K>(p, total, t.row, key, k, aside, lists);
        clear_sums(total);
    }
    store_rows<K>(p, lists, t, k, normalize, (float2 *)memory, index, weight);
#endif
}

template <int D, int K, bool ALL> static void launch_tiles(const weft_exec *x, const weft_node *n) {
    using M = topk_memory<D, K>;
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    route_problem p = weft_cuda_route_problem(x, n);
    topk_maps maps = {};
    auto make = [&](head_rows rows, int64_t positions, int heads, int part, int box_rows,
                    row_map *map) {
        int first = part * M::DEPTH;
        rows.data = (bf16 *)rows.data + first;
        return make_row_map(rows, (int)p.batch, (int)positions, heads,
                            (int)min_i64(M::DEPTH, p.dqk - first), M::DEPTH, box_rows, map);
    };
    bool made = true; /* false: the driver has no maps */
    for (int part = 0; part < M::PARTS; part++)
        made = made && make(p.q, p.queries, p.heads, part, TILE, &maps.q[part]) &&
               make(p.k, p.keys, p.kv_heads, part, M::KEY_TILE, &maps.k[part]);
    dim3 grid(made ? (unsigned)p.batch : 0, (unsigned)ceil_div(p.queries, TILE));
    int bytes = M::HEADS + p.heads * (int)sizeof(head_scale);
    cudaFuncSetAttribute(route_tiles<D, K, ALL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    route_tiles<D, K, ALL><<<grid, THREADS, (size_t)bytes, stream_of(x)>>>(
        p, maps, (int)a->k, a->normalize, data_of<int32_t>(x, n->out[0]),
        data_of<float>(x, n->out[1]));
}

weft_status weft_cuda_topk_tiles(weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    bool plain = a->score.pos == WEFT_POS_NONE && !n->in[WEFT_ATTN_N] && !a->use_max;
    with_constant<32, 64, 96, 128, 192, WEFT_CUDA_TOPK_WIDTH>(a->score.dqk, [&](auto width) {
        constexpr int D = decltype(width)::value;
        if (plain && a->k <= 8) return launch_tiles<D, 8, false>(x, n);
        with_constant<8, 32, WEFT_CUDA_TOPK_MAX>(
            a->k, [&](auto kept) { launch_tiles<D, decltype(kept)::value, true>(x, n); });
    });
    return launched(n);
}

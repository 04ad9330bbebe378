/* Top-k routing on tensor cores.
 *
 * A block has 128 queries of a sequence. It walks tiles of 128 keys and, for each, all heads: the
 * scores of a head are one small product, their exponentials are added up over heads in registers.
 * Each of its four warpgroups has 64 of the queries and 64 of a tile's keys. When the last head is
 * done a thread holds, for two rows, the weights of a quarter of its columns, and offers them to the
 * two sorted lists that it keeps. At the end the lists of a row, four in each of two warpgroups, are
 * merged. So nothing of the size of R is ever written: the floor is the scores' arithmetic,
 * B·H·dqk·T² operations (causal), and as many exponentials as there are scores.
 *
 * Queries and keys come by TMA, some steps (a tile, a head) ahead: all blocks' are more
 * than the L2 cache has room for. Warpgroups do not meet: each waits for a step's arrival and tells
 * when it has read it, so that some take exponentials while others multiply. One thread starts the
 * copies of a later step when all have read an earlier one, not the last, so that it seldom waits.
 *
 * Few of a tile's weights are larger than the last of a list, but in a warp some thread has one
 * nearly every time. So a thread first puts those that are aside, in shared memory, and then takes
 * them up one by one: the warp is as slow as its busiest thread, not as all of them together. A
 * weight that is not above the last of one of the row's four lists is behind all of that list, whose
 * columns come before it; the same holds where each of the four has a quarter of k before it. */
#include "cuda/functions.cuh"
#include "cuda/routing/routing.cuh"
#include "cuda/tensor/tma.cuh"

enum {
    TILE = 128,
    HALF = TILE / 2, /* queries, and keys of a tile, of a warpgroup */
    THREADS = 512,
    WARPS = THREADS / 32,
    COLUMNS = HALF / 8,
    PLACES = 8 /* of a row's weights that a thread may put aside */
};

/* A sorted list in registers: every index into it is a constant once loops are unrolled. */
template <int K> struct best_list {
    float weight[K];
    int index[K];

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < K; i++) {
            weight[i] = -1;
            index[i] = INT32_MAX;
        }
    }

    /* Behind what is as large: columns come in ascending order. */
    __device__ void offer(float w, int j) {
        if (!(w > weight[K - 1])) return;
#pragma unroll
        for (int i = K - 1; i > 0; i--) {
            bool shift = w > weight[i - 1], here = w > weight[i];
            weight[i] = shift ? weight[i - 1] : here ? w : weight[i];
            index[i] = shift ? index[i - 1] : here ? j : index[i];
        }
        if (w > weight[0]) {
            weight[0] = w;
            index[0] = j;
        }
    }

    __device__ void drop_first() {
#pragma unroll
        for (int i = 0; i + 1 < K; i++) {
            weight[i] = weight[i + 1];
            index[i] = index[i + 1];
        }
        weight[K - 1] = -1;
        index[K - 1] = INT32_MAX;
    }
};

/* Shared memory, in bytes: places for the steps' queries and for keys; what threads put aside, in
 * the end the lists of the warpgroups that have a tile's upper keys; arrivals of steps, then those
 * that say that a step has been read; the heads' numbers. */
template <int D> struct topk_memory {
    static constexpr int STEPS = D <= 64 ? 4 : 3;
    static constexpr int LAG = STEPS - 2; /* steps that the first may be ahead of the last */
    static constexpr int Q = 0, K = Q + STEPS * tile_bytes<TILE, D>;
    static constexpr int ASIDE = K + STEPS * tile_bytes<TILE, D>;
    static constexpr int FULL = ASIDE + 2 * PLACES * THREADS * (int)sizeof(float);
    static constexpr int EMPTY = FULL + STEPS * 8;
    static constexpr int HEADS = EMPTY + STEPS * 8;
};

/* A head's numbers, to the base 2, and its key head. */
typedef struct {
    float scale, beta, slope;
    int16_t key_head, changes; /* changes: it is not that of the head before */
} __attribute__((aligned(16))) head_scale;

/* Queries and keys as TMA sees them. */
typedef struct {
    row_map q, k;
} topk_maps;

/* Where a thread works. */
typedef struct {
    int b;                /* sequence */
    int first, row;       /* the warpgroup's and the thread's first query */
    int tile_row, column; /* the warpgroup's first row and key in tiles */
} query_place;

/* A step: a head of a tile. `slot` is where its queries are and `key_slot` its keys, which only
 * change with the tile or the key head; slots are used in turns. */
typedef struct {
    int key, head; /* first key of the tile */
    int slot, turn, key_slot;
} topk_step;

#ifndef USE_MMA_SYNC
template <int D>
__device__ static inline void next_step(topk_step &s, const head_scale *heads, int count) {
    constexpr int steps = topk_memory<D>::STEPS;
    s.head++;
    if (s.head == count) {
        s.head = 0;
        s.key += TILE;
    }
    s.slot++;
    if (s.slot == steps) {
        s.slot = 0;
        s.turn++;
    }
    if (heads[s.head].changes) s.key_slot = s.key_slot + 1 < steps ? s.key_slot + 1 : 0;
}

/* Starts a step's copies; one thread calls it. A key slot is used again after STEPS changes, and so
 * after as many steps at least: its last one has been read if the query slot's has. */
template <int D>
__device__ static inline void copy_step(const topk_maps &maps, uint32_t base,
                                        const head_scale *heads, int b, int first,
                                        const topk_step &s) {
    using M = topk_memory<D>;
    uint32_t arrival = base + M::FULL + (uint32_t)s.slot * 8;
    row_source q = {&maps.q, NULL, 0}, k = {&maps.k, NULL, 0};
    head_scale head = heads[s.head];
    expect_tx(arrival, tile_bytes<TILE, D> * (head.changes ? 2 : 1));
    tma_load<TILE, D, THREADS>(base + M::Q + (uint32_t)s.slot * tile_bytes<TILE, D>, q, b, first,
                               s.head, arrival);
    if (head.changes)
        tma_load<TILE, D, THREADS>(base + M::K + (uint32_t)s.key_slot * tile_bytes<TILE, D>, k, b,
                                   s.key, head.key_head, arrival);
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
template <bool ALL>
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

/* What K of the row's columns so far are not below. */
template <int K> __device__ static inline float row_floor(const best_list<K> &list) {
    float last = list.weight[K - 1], quarter = list.weight[K / 4 - 1];
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        last = fmaxf(last, __shfl_xor_sync(0xffffffffu, last, step));
        quarter = fminf(quarter, __shfl_xor_sync(0xffffffffu, quarter, step));
    }
    return fmaxf(last, quarter);
}

/* Something below K weights of a row at least, for a first tile that would fill the lists with much
 * that does not stay: of each of the row's four threads, the K / 4 largest of the four largest
 * weights of a quarter. `last` is the thread's last column. */
template <int K>
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
template <int K>
__device__ static inline void offer_tile(const route_problem &p, const float (&total)[COLUMNS][4],
                                         int row, int key, float *aside, best_list<K> (&lists)[2]) {
    int first = key + (int)threadIdx.x % 4 * 2, last[2];
    float floor[2];
    aside += threadIdx.x;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        last[r] = p.causal ? min((int)p.keys - 1, row + 8 * r) : (int)p.keys - 1;
        floor[r] = key < TILE ? first_floor<K>(total, r, first, last[r]) : row_floor(lists[r]);
    }
    bool edge = last[0] < key + HALF - 1; /* somewhere in the warp, and then everywhere is looked */
    edge = __any_sync(0xffffffffu, edge);
#pragma unroll
    for (int from = 0; from < COLUMNS; from += PLACES / 2) {
        uint32_t open[2] = {0, 0};
#pragma unroll
        for (int place = 0; place < PLACES; place++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float w = total[from + place / 2][2 * r + place % 2];
                bool seen = !edge || first + 8 * (from + place / 2) + place % 2 <= last[r];
                if (seen && w > floor[r]) {
                    aside[(r * PLACES + place) * THREADS] = w;
                    open[r] |= 1u << place;
                }
            }
        while (open[0] | open[1]) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (open[r] == 0) continue;
                int place = __ffs((int)open[r]) - 1;
                open[r] &= open[r] - 1;
                lists[r].offer(aside[(r * PLACES + place) * THREADS],
                               first + 8 * (from + place / 2) + place % 2);
            }
        }
    }
}

/* The four lists of a row become one, which all four threads have. */
template <int K> __device__ static inline void merge_lists(best_list<K> &list) {
    best_list<K> merged;
#pragma unroll
    for (int m = 0; m < K; m++) {
        float best = list.weight[0];
        int best_index = list.index[0];
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            float w = __shfl_xor_sync(0xffffffffu, best, step);
            int j = __shfl_xor_sync(0xffffffffu, best_index, step);
            if (w > best || (w == best && j < best_index)) {
                best = w;
                best_index = j;
            }
        }
        if (best_index == list.index[0] && best_index != INT32_MAX) list.drop_first();
        merged.weight[m] = best;
        merged.index[m] = best_index;
    }
    list = merged;
}

/* Stores the first k of a row's list and of the `other`, in shared memory. */
template <int K>
__device__ static inline void store_row(const route_problem &p, best_list<K> &list,
                                        const float2 *other, int64_t at, int k, bool normalize,
                                        int32_t *index, float *weight) {
    float part = p.use_max ? 1.0f : 1.0f / (float)p.heads, sum = 0, found[K];
#pragma unroll
    for (int m = 0; m < K; m++) {
        float best = list.weight[0], w = other->x;
        int best_index = list.index[0], j = __float_as_int(other->y);
        if (w > best || (w == best && j < best_index)) {
            best = w;
            best_index = j;
            other++;
        } else {
            list.drop_first();
        }
        found[m] = best_index == INT32_MAX ? 0 : best * part;
        if (m < k) {
            sum += found[m];
            index[at + m] = best_index == INT32_MAX ? -1 : best_index;
        }
    }
    float factor = normalize && sum > 0 ? 1 / sum : 1;
#pragma unroll
    for (int m = 0; m < K; m++)
        if (m < k) weight[at + m] = found[m] * factor;
}

/* Merges what the two warpgroups have that share 64 queries, and stores it. */
template <int K>
__device__ static inline void store_rows(const route_problem &p, best_list<K> (&lists)[2],
                                         const query_place &t, int k, bool normalize,
                                         float2 *shared, int32_t *index, float *weight) {
    merge_lists(lists[0]);
    merge_lists(lists[1]);
    __syncthreads(); /* nothing is aside any more */
    float2 *own = shared + (t.tile_row + t.row - t.first) * K;
    if (t.column > 0 && threadIdx.x % 4 == 0)
#pragma unroll
        for (int m = 0; m < K; m++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                own[8 * r * K + m] =
                    make_float2(lists[r].weight[m], __int_as_float(lists[r].index[m]));
    __syncthreads();
    if (t.column > 0 || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (t.row + 8 * r < p.queries)
            store_row<K>(p, lists[r], own + 8 * r * K, (t.b * p.queries + t.row + 8 * r) * k, k,
                         normalize, index, weight);
}

/* Says that a warp has read a step's slots. */
__device__ static inline void release_step(uint32_t read) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(read) : "memory");
}

#endif

/* Empty where the code is not for 9.0a: weft_cuda_topk_fits takes no node there. */
template <int D, int K, bool ALL>
static __global__ void __launch_bounds__(THREADS, 1)
    route_tiles(const __grid_constant__ route_problem p, const __grid_constant__ topk_maps maps,
                int k, bool normalize, int32_t *index, float *weight) {
#ifndef USE_MMA_SYNC
    using M = topk_memory<D>;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t base = shared_address(memory);
    float *aside = (float *)(memory + M::ASIDE);
    head_scale *heads = (head_scale *)(memory + M::HEADS);
    /* The last queries see the most keys: those of all sequences go first. */
    int first = (int)(gridDim.y - 1 - blockIdx.y) * TILE;
    int end = (int)(p.causal ? min_i64(p.keys, first + TILE) : p.keys);
    int warpgroup = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    query_place t = {(int)blockIdx.x, 0, 0, warpgroup % 2 * HALF, warpgroup / 2 * HALF};
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
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(base + M::EMPTY + 8 * i),
                     "r"((int)WARPS)
                     : "memory");
    init_barriers(base + M::FULL, M::STEPS);
    topk_step now = {}, ahead = {};
    for (int i = 0; i < M::STEPS && threadIdx.x == 0 && ahead.key < end; i++) {
        copy_step<D>(maps, base, heads, t.b, first, ahead);
        next_step<D>(ahead, heads, p.heads);
    }
    __syncwarp();
    best_list<K> lists[2];
    lists[0].clear();
    lists[1].clear();
    float score[COLUMNS][4], total[COLUMNS][4] = {}, lse[2];
    read_sums(p, t, 0, lse);
    int late = -M::LAG; /* steps until the next is copied */
    while (now.key < end) {
        if (++late > 0 && threadIdx.x == 0 && ahead.key < end) {
            /* The step that had the slot before. */
            wait_barrier<0>(base + M::EMPTY + (uint32_t)ahead.slot * 8, ahead.turn - 1);
            copy_step<D>(maps, base, heads, t.b, first, ahead);
            next_step<D>(ahead, heads, p.heads);
        }
        __syncwarp();
        bool last = now.head + 1 == p.heads;
        head_scale head = heads[now.head];
        float shift[2] = {-lse[0] * LOG2E, -lse[1] * LOG2E};
        wait_barrier<0>(base + M::FULL + (uint32_t)now.slot * 8, now.turn);
        begin_products();
        multiply_tiles<HALF, D, TILE, TILE>(
            score, base + M::Q + (uint32_t)now.slot * tile_bytes<TILE, D>, t.tile_row,
            base + M::K + (uint32_t)now.key_slot * tile_bytes<TILE, D> +
                (uint32_t)t.column * tile_panel<D>::bytes);
        end_products();
        read_sums(p, t, last ? 0 : now.head + 1, lse);
        wait_products<0>();
        settle(score);
        release_step(base + M::EMPTY + (uint32_t)now.slot * 8);
        int key = now.key + t.column;
        if (!p.causal || key <= t.first + HALF - 1) { /* else no query sees any of the keys */
            const float *n =
                p.n ? p.n + ((int64_t)t.b * p.kv_heads + head.key_head) * p.keys : NULL;
            add_weights<ALL>(p, score, head, shift, t.row, key, n, total);
            if (last) {
                offer_tile<K>(p, total, t.row, key, aside, lists);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    total[c][0] = total[c][1] = total[c][2] = total[c][3] = 0;
            }
        }
        next_step<D>(now, heads, p.heads);
    }
    store_rows<K>(p, lists, t, k, normalize, (float2 *)aside, index, weight);
#endif
}

template <int D> static int topk_bytes(int heads) {
    return topk_memory<D>::HEADS + heads * (int)sizeof(head_scale);
}

/* Their numbers fit at every width. */
enum { MOST_HEADS = 128 };

bool weft_cuda_topk_fits(const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    int64_t d = a->score.dqk;
    return weft_cuda_device()->wgmma && n->in[WEFT_ATTN_Q]->dtype == WEFT_BF16 &&
           (d == 32 || d == 64 || d == 96 || d == 128) && a->k <= WEFT_CUDA_TOPK_MAX &&
           !a->score.band && !n->in[WEFT_ATTN_START] && a->score.queries <= 65535 * TILE &&
           a->score.heads <= MOST_HEADS;
}

/* False: the driver has none of it. */
static bool make_maps(const route_problem &p, topk_maps *maps) {
    attention_problem a = {};
    row_maps all;
    a.batch = (int)p.batch;
    a.queries = (int)p.queries;
    a.keys = (int)p.keys;
    a.heads = p.heads;
    a.kv_heads = p.kv_heads;
    a.dqk = p.dqk;
    a.q = head_rows{(void *)p.q.data, p.q.batch, p.q.row, p.q.width};
    a.k = head_rows{(void *)p.k.data, p.k.batch, p.k.row, p.k.width};
    if (!make_row_maps(a, NULL, TILE, TILE, &all)) return false;
    *maps = topk_maps{all.q, all.k};
    return true;
}

template <int D, int K, bool ALL> static void launch_tiles(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    route_problem p = weft_cuda_route_problem(x, n);
    topk_maps maps;
    bool made = make_maps(p, &maps);
    dim3 grid(made ? (unsigned)p.batch : 0, (unsigned)ceil_div(p.queries, TILE));
    int bytes = topk_bytes<D>(p.heads);
    cudaFuncSetAttribute(route_tiles<D, K, ALL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    route_tiles<D, K, ALL><<<grid, THREADS, (size_t)bytes, stream_of(x)>>>(
        p, maps, (int)a->k, a->normalize, data_of<int32_t>(x, n->out[0]),
        data_of<float>(x, n->out[1]));
}

template <int D> static void launch_width(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    bool plain = a->score.pos == WEFT_POS_NONE && !n->in[WEFT_ATTN_N] && !a->use_max;
    if (a->k > 8)
        launch_tiles<D, WEFT_CUDA_TOPK_MAX, true>(x, n);
    else if (plain)
        launch_tiles<D, 8, false>(x, n);
    else
        launch_tiles<D, 8, true>(x, n);
}

weft_status weft_cuda_topk_tiles(weft_exec *x, const weft_node *n) {
    switch (ATTR(n, weft_route_attr)->score.dqk) {
    case 32:
        launch_width<32>(x, n);
        break;
    case 64:
        launch_width<64>(x, n);
        break;
    case 96:
        launch_width<96>(x, n);
        break;
    default:
        launch_width<128>(x, n);
    }
    return launched(n);
}

/* Top-k routing on tensor cores.
 *
 * A block has 128 queries of a sequence, 64 for each of its two warpgroups. It walks tiles of 128
 * keys and, for each, all heads: the scores of a head are one small product, their exponentials are
 * added up over heads in registers. A product has half of a tile's keys, so that the tensor cores
 * make one half's scores while the other's exponentials are taken. When the last head is done a
 * thread holds, for two rows, the weights of a quarter of the tile's columns, and offers them to the
 * two sorted lists that it keeps. At the end the four threads of a row merge their lists. So nothing
 * of the size of R is ever written: the floor is the scores' arithmetic, B·H·dqk·T² operations
 * (causal), and as many exponentials as there are scores.
 *
 * Queries and keys come by asynchronous copies, some steps (a tile, a head) ahead: all blocks' are
 * more than the L2 cache has room for. A warpgroup copies its own queries and waits for nobody else;
 * keys only change with the tile or the key head, and there the block meets.
 *
 * Few of a tile's weights are larger than the last of a list, but in a warp some thread has one
 * nearly every time. So a thread first puts those that are aside, in shared memory, and then takes
 * them up one by one: the warp is as slow as its busiest thread, not as all of them together. A
 * weight that is not above the last of one of the row's four lists is behind all of that list, whose
 * columns come before it. */
#include "cuda/routing.cuh"
#include "cuda/tensor_tile.cuh"

enum {
    TILE = 128,
    HALF = TILE / 2,
    THREADS = 256,
    COLUMNS = TILE / 8,
    PLACES = 8 /* of a row's weights that a thread may put aside */
};

static const float LOG2E = 1.4426950408889634f;

/* One instruction; 0 for what is below the smallest normal number. */
__device__ static inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

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

/* Shared memory, in bytes: places for the steps of each warpgroup's queries and of keys; one more for
 * the keys' numbers, the last of which are read while others come; what threads put aside; the
 * heads' numbers. */
template <int D> struct topk_memory {
    static constexpr int STEPS = D <= 64 ? 4 : 3;
    static constexpr int Q = 0, K = Q + 2 * STEPS * tile_bytes<HALF, D>;
    static constexpr int N = K + STEPS * tile_bytes<TILE, D>;
    static constexpr int ASIDE = N + (STEPS + 1) * TILE * (int)sizeof(float);
    static constexpr int HEADS = ASIDE + 2 * PLACES * THREADS * (int)sizeof(float);
};

/* A head's numbers, to the base 2, and its key head. */
typedef struct {
    float scale, beta, slope;
    int key_head;
} head_scale;

/* Where a thread works. */
typedef struct {
    int64_t b;             /* sequence */
    int first, row;        /* the warpgroup's and the thread's first query */
    int warpgroup, thread; /* the thread in it */
} query_place;

/* Starts copying rows first to first + ROWS of a head; those from `end` on are filled with 0. A
 * thread's pieces are whole rows of swizzle apart where the width allows, so that little is left to
 * compute. */
template <int ROWS, int D, int COPIERS>
__device__ static inline void copy_rows(uint32_t to, const route_rows &rows, int64_t b, int head,
                                        int first, int end, int thread) {
    constexpr int pieces = D / 8, step = COPIERS / pieces;
    const bf16 *from = (const bf16 *)rows.data + b * rows.batch + head * rows.width;
    if constexpr (COPIERS % pieces == 0 && step % 8 == 0) {
        int row = thread / pieces, piece = thread % pieces, left = end - first - row;
        from += (int64_t)(first + row) * rows.row + piece * 8;
        to += tile_place<ROWS, D>(row, piece);
#pragma unroll
        for (int i = 0; i < ROWS; i += step)
            copy_piece(to + (uint32_t)i * tile_panel<D>::bytes, from + i * rows.row, i < left);
    } else {
#pragma unroll
        for (int i = 0; i < ROWS * pieces; i += COPIERS) {
            int row = (i + thread) / pieces, piece = (i + thread) % pieces;
            copy_piece(to + tile_place<ROWS, D>(row, piece),
                       from + (int64_t)(first + row) * rows.row + piece * 8, first + row < end);
        }
    }
}

/* A step whose copies are started: a head of a tile. */
typedef struct {
    int key, head;  /* first key of the tile */
    int turn, slot; /* number of its keys since the first; place of its queries */
} copy_step;

/* Starts a step's copies, which are one group, and goes on to the next. */
template <int D>
__device__ static inline void copy_next(const route_problem &p, uint8_t *memory,
                                        const head_scale *heads, const query_place &t, int end,
                                        copy_step &step) {
    using M = topk_memory<D>;
    if (step.key < end) {
        uint32_t base = shared_address(memory);
        int head = step.head, key_head = heads[head].key_head, thread = (int)threadIdx.x;
        copy_rows<HALF, D, 128>(
            base + M::Q + (uint32_t)(t.warpgroup * M::STEPS + step.slot) * tile_bytes<HALF, D>, p.q,
            t.b, head, t.first, (int)p.queries, t.thread);
        if (head == 0 || heads[head - 1].key_head != key_head) {
            step.turn++;
            copy_rows<TILE, D, THREADS>(base + M::K +
                                            (uint32_t)(step.turn % M::STEPS) * tile_bytes<TILE, D>,
                                        p.k, t.b, key_head, step.key, (int)p.keys, thread);
            int j = step.key + thread;
            if (p.n && thread < TILE)
                ((float *)(memory + M::N))[step.turn % (M::STEPS + 1) * TILE + thread] =
                    j < p.keys ? p.n[(t.b * p.kv_heads + key_head) * p.keys + j] : 0;
        }
        step.slot = step.slot + 1 < M::STEPS ? step.slot + 1 : 0;
        step.head = head + 1 < p.heads ? head + 1 : 0;
        if (step.head == 0) step.key += TILE;
    }
    end_copies();
}

/* Waits until all but the last LEFT of this thread's groups are there; a barrier must follow. */
template <int LEFT> __device__ static inline void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#ifndef TENSOR_BY_WARPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* The logsumexp of a thread's two rows. */
__device__ static inline void read_sums(const route_problem &p, const query_place &t, int h,
                                        float (&lse)[2]) {
    const float *from = p.lse + (t.b * p.heads + h) * p.queries + t.row;
#pragma unroll
    for (int r = 0; r < 2; r++)
        lse[r] = t.row + 8 * r < (int)p.queries ? from[8 * r] : 0;
}

/* total += exp(score − lse), for half of a tile's columns, from column `key` on. ALL: with every
 * option, else a scaled product alone and a mean. */
template <bool ALL>
__device__ static inline void add_weights(const route_problem &p, const float (&score)[HALF / 8][4],
                                          const head_scale &head, const float (&shift)[2], int row,
                                          int key, const float *n, float (*total)[4]) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int c = 0; c < HALF / 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float s = fmaf(score[c][i], head.scale, shift[i / 2]);
            if (ALL) {
                int j = c * 8 + column + i % 2;
                int distance = max(0, row + i / 2 * 8 - (key + j));
                if (p.n) s = fmaf(head.beta, n[j], s);
                if (p.alibi) s = fmaf(-head.slope, (float)distance, s);
                if (p.rel && distance < p.distances) s = fmaf(p.rel[distance], LOG2E, s);
            }
            float w = power_of_two(s);
            total[c][i] = ALL && p.use_max ? fmaxf(total[c][i], w) : total[c][i] + w;
        }
}

/* The largest of what the row's four lists have last. */
template <int K> __device__ static inline float row_floor(const best_list<K> &list) {
    float floor = list.weight[K - 1];
    floor = fmaxf(floor, __shfl_xor_sync(0xffffffffu, floor, 1));
    return fmaxf(floor, __shfl_xor_sync(0xffffffffu, floor, 2));
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
        for (int i = 0; i < 8; i++) {
            int c = quarter * 4 + i / 2;
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
        floor[r] = key == 0 ? first_floor<K>(total, r, first, last[r]) : row_floor(lists[r]);
    }
    bool edge = last[0] < key + TILE - 1; /* somewhere in the warp, and then everywhere is looked */
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

/* The four lists of a row become one; all four threads see it. */
template <int K>
__device__ static inline void store_row(const route_problem &p, best_list<K> &list, int64_t b,
                                        int64_t row, int k, bool normalize, int32_t *index,
                                        float *weight) {
    float part = p.use_max ? 1.0f : 1.0f / (float)p.heads, sum = 0, found[K];
    int64_t at = (b * p.queries + row) * k;
    bool writes = threadIdx.x % 4 == 0 && row < p.queries;
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
        found[m] = best_index == INT32_MAX ? 0 : best * part;
        if (m < k) sum += found[m];
        if (writes && m < k) index[at + m] = best_index == INT32_MAX ? -1 : best_index;
    }
    float factor = normalize && sum > 0 ? 1 / sum : 1;
#pragma unroll
    for (int m = 0; m < K; m++)
        if (writes && m < k) weight[at + m] = found[m] * factor;
}

/* A barrier of one warpgroup. */
__device__ static inline void sync_warpgroup(int warpgroup) {
    asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}

template <int D, int K, bool ALL>
static __global__ void __launch_bounds__(THREADS, 1)
    route_tiles(const __grid_constant__ route_problem p, int k, bool normalize, int32_t *index,
                float *weight) {
    using M = topk_memory<D>;
    extern __shared__ __align__(1024) uint8_t memory[];
    float *numbers = (float *)(memory + M::N), *aside = (float *)(memory + M::ASIDE);
    head_scale *heads = (head_scale *)(memory + M::HEADS);
    /* The last queries see the most keys: those of all sequences go first. */
    int first = (int)(gridDim.y - 1 - blockIdx.y) * TILE;
    int end = (int)(p.causal ? min_i64(p.keys, first + TILE) : p.keys);
    int warpgroup = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    query_place t = {(int64_t)blockIdx.x, first + warpgroup * HALF, 0, warpgroup,
                     (int)threadIdx.x % 128};
    t.row = t.first + t.thread / 32 * 16 + threadIdx.x % 32 / 4;
    for (int h = (int)threadIdx.x; h < p.heads; h += THREADS) {
        route_head head = route_head_of(p, h);
        heads[h] = head_scale{head.scale * LOG2E, head.beta * LOG2E, head.slope * LOG2E,
                              h * p.kv_heads / p.heads};
    }
    best_list<K> lists[2];
    lists[0].clear();
    lists[1].clear();
    float lower[HALF / 8][4], upper[HALF / 8][4], total[COLUMNS][4] = {}, lse[2];
    int turn = 0, slot = 0; /* of the keys and queries in use */
    auto start_half = [&](float(&score)[HALF / 8][4], int half) {
        uint32_t base = shared_address(memory);
        uint32_t rows = base + M::Q + (uint32_t)(warpgroup * M::STEPS + slot) * tile_bytes<HALF, D>;
        uint32_t keys = base + M::K + (uint32_t)(turn % M::STEPS) * tile_bytes<TILE, D>;
        begin_products();
        multiply_tiles<HALF, D, HALF, TILE>(score, rows, 0,
                                            keys + half * HALF * tile_panel<D>::bytes);
        end_products();
    };
    __syncthreads();
    copy_step ahead = {0, 0, -1, 0};
    for (int i = 0; i + 1 < M::STEPS; i++)
        copy_next<D>(p, memory, heads, t, end, ahead);
    read_sums(p, t, 0, lse);
    wait_groups<M::STEPS - 2>();
    __syncthreads();
    copy_next<D>(p, memory, heads, t, end, ahead);
    start_half(lower, 0);
    for (int key = 0; key < end; key += TILE)
        for (int h = 0; h < p.heads; h++) {
            head_scale head = heads[h];
            const float *n = numbers + turn % (M::STEPS + 1) * TILE;
            float shift[2] = {-lse[0] * LOG2E, -lse[1] * LOG2E};
            int next = h + 1 < p.heads ? h + 1 : 0;
            read_sums(p, t, next, lse);
            wait_products<0>();
            settle(lower);
            start_half(upper, 1);
            add_weights<ALL>(p, lower, head, shift, t.row, key, n, total);
            wait_products<0>();
            settle(upper);
            if (next > 0 || key + TILE < end) {
                wait_groups<M::STEPS - 2>();
                if (next == 0 || heads[next].key_head != head.key_head) {
                    __syncthreads();
                    turn++;
                } else {
                    sync_warpgroup(warpgroup);
                }
                copy_next<D>(p, memory, heads, t, end, ahead);
                slot = slot + 1 < M::STEPS ? slot + 1 : 0;
            }
            start_half(lower, 0); /* once too often at the end, so that it is not a branch's */
            add_weights<ALL>(p, upper, head, shift, t.row, key + HALF, n + HALF, total + HALF / 8);
            if (next > 0) continue;
            offer_tile<K>(p, total, t.row, key, aside, lists);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                total[c][0] = total[c][1] = total[c][2] = total[c][3] = 0;
        }
    wait_groups<0>();
    wait_products<0>();
    settle(lower);
    store_row<K>(p, lists[0], t.b, t.row, k, normalize, index, weight);
    store_row<K>(p, lists[1], t.b, t.row + 8, k, normalize, index, weight);
}

template <int D> static int topk_bytes(int heads) {
    return topk_memory<D>::HEADS + heads * (int)sizeof(head_scale);
}

/* Their numbers fit at every width. */
enum { MOST_HEADS = 1024 };

bool weft_cuda_topk_fits(const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    int64_t d = a->score.dqk;
    return n->in[WEFT_ATTN_Q]->dtype == WEFT_BF16 && (d == 32 || d == 64 || d == 96 || d == 128) &&
           a->k <= WEFT_CUDA_TOPK_MAX && !a->score.band && !n->in[WEFT_ATTN_START] &&
           a->score.queries <= 65535 * TILE && a->score.heads <= MOST_HEADS;
}

template <int D, int K, bool ALL> static void launch_tiles(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    route_problem p = weft_cuda_route_problem(x, n);
    dim3 grid((unsigned)p.batch, (unsigned)ceil_div(p.queries, TILE));
    int bytes = topk_bytes<D>(p.heads);
    cudaFuncSetAttribute(route_tiles<D, K, ALL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    route_tiles<D, K, ALL><<<grid, THREADS, (size_t)bytes, stream_of(x)>>>(
        p, (int)a->k, a->normalize, data_of<int32_t>(x, n->out[0]), data_of<float>(x, n->out[1]));
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

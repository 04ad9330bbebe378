/* Top-k routing on tensor cores.
 *
 * A block has 128 queries of a sequence; it walks tiles of 128 keys and, for each, all heads: the
 * scores of a head are one small product, their exponentials are added up over heads in registers.
 * When the last head is done a thread holds, for two rows, the weights of a quarter of the tile's
 * columns, and offers them to the two sorted lists that it keeps. At the end the four threads of a
 * row merge their lists. So nothing of the size of R is ever written: the floor is the scores'
 * arithmetic, B·H·dqk·T² operations (causal), and reading q once for every 128 keys, from L2.
 *
 * Queries and keys come by asynchronous copies, one (tile, head) ahead; keys only where they
 * change, so that a key head shared by all query heads is read once a tile. */
#include "cuda/routing.cuh"

enum { TILE = 128, WARPS = 8, THREADS = 32 * WARPS, PAD = 8, COLUMNS = TILE / 8 };

static const float LOG2E = 1.4426950408889634f;

__device__ static inline unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory; zeros where `there` is false. */
__device__ static inline void copy_async(void *to, const void *from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes));
}

__device__ static inline void load_matrices(unsigned (&r)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

__device__ static inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                           unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

/* Shared memory: two places for a head's queries, for keys and for the keys' numbers. */
template <int D> struct tile_memory {
    bf16 q[2][TILE][D + PAD];
    bf16 k[2][TILE][D + PAD];
    float n[2][TILE];
};

template <int D>
__device__ static inline void load_rows(bf16 (*to)[D + PAD], const route_rows &rows, int64_t b,
                                        int head, int64_t first, int64_t end) {
    const bf16 *from = (const bf16 *)rows.data + b * rows.batch + head * rows.width;
    for (int i = (int)threadIdx.x; i < TILE * D / 8; i += THREADS) {
        int row = i / (D / 8), column = i % (D / 8) * 8;
        bool there = first + row < end;
        copy_async(&to[row][column], from + (there ? first + row : 0) * rows.row + column, there);
    }
}

__device__ static inline void load_numbers(float *to, const route_problem &p, int64_t b,
                                           int key_head, int64_t first) {
    const float *from = p.n + (b * p.kv_heads + key_head) * p.keys;
    for (int i = (int)threadIdx.x; i < TILE; i += THREADS)
        to[i] = first + i < p.keys ? from[first + i] : 0;
}

/* total[][] += exp(score − lse) of one head, for 16 rows of a warp and all columns of a tile. */
template <int D, bool EXTRA>
__device__ static inline void add_head(const route_problem &p, const tile_memory<D> &m, int q_slot,
                                       int k_slot, int h, int64_t b, int64_t query, int64_t key,
                                       float (&total)[COLUMNS][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float score[COLUMNS][4] = {};
    const bf16 *q_row = &m.q[q_slot][warp * 16 + lane % 16][lane / 16 * 8];
    const bf16 *k_row = &m.k[k_slot][lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8];
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned a[4];
        load_matrices(a, q_row + d);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2) {
            unsigned r[4];
            load_matrices(r, k_row + c * 8 * (D + PAD) + d);
            multiply_add(score[c], a, r[0], r[1]);
            multiply_add(score[c + 1], a, r[2], r[3]);
        }
    }
    route_head head = route_head_of(p, h);
    int64_t row = query + lane / 4;
    const float *lse = p.lse + (b * p.heads + h) * p.queries;
    float shift[2], scale = head.scale * LOG2E, beta = head.beta * LOG2E;
#pragma unroll
    for (int r = 0; r < 2; r++)
        shift[r] = row + 8 * r < p.queries ? -lse[row + 8 * r] * LOG2E : 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = c * 8 + lane % 4 * 2 + i % 2;
            float s = fmaf(score[c][i], scale, shift[i / 2]);
            if (p.n) s = fmaf(beta, m.n[k_slot][column], s);
            if (EXTRA) {
                int64_t distance = max_i64(0, row + i / 2 * 8 - (key + column));
                if (p.alibi) s = fmaf(-head.slope * LOG2E, (float)distance, s);
                if (p.rel && distance < p.distances) s = fmaf(p.rel[distance], LOG2E, s);
            }
            float w = exp2f(s);
            total[c][i] = p.use_max ? fmaxf(total[c][i], w) : total[c][i] + w;
        }
}

template <int K>
__device__ static inline void offer_tile(const route_problem &p, const float (&total)[COLUMNS][4],
                                         int64_t query, int64_t key, best_list<K> (&lists)[2]) {
    int lane = threadIdx.x % 32;
    int64_t row = query + lane / 4;
    bool edge = key + TILE > p.keys || (p.causal && key + TILE > query + 1);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t j = key + c * 8 + lane % 4 * 2 + i % 2;
            bool seen = !edge || (j < p.keys && (!p.causal || j <= row + i / 2 * 8));
            if (seen) lists[i / 2].offer(total[c][i], (int)j);
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

/* Starts the copies of one (tile, head); keys only where `keys` says so. */
template <int D>
__device__ static inline void start_step(const route_problem &p, tile_memory<D> &m, int64_t b,
                                         int64_t query, int64_t key, int h, int q_slot, int k_slot,
                                         bool keys) {
    load_rows<D>(m.q[q_slot], p.q, b, h, query, p.queries);
    if (keys) {
        int key_head = h * p.kv_heads / p.heads;
        load_rows<D>(m.k[k_slot], p.k, b, key_head, key, p.keys);
        if (p.n) load_numbers(m.n[k_slot], p, b, key_head, key);
    }
    asm volatile("cp.async.commit_group;\n");
}

template <int D, int K, bool EXTRA>
static __global__ void __launch_bounds__(THREADS, 1)
    route_tiles(route_problem p, int k, bool normalize, int32_t *index, float *weight) {
    extern __shared__ __align__(128) unsigned char memory[];
    tile_memory<D> &m = *(tile_memory<D> *)memory;
    /* The last queries see the most keys, so they go first. */
    int64_t b = blockIdx.y, first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;
    int64_t end = p.causal ? min_i64(p.keys, first + TILE) : p.keys;
    int64_t query = first + threadIdx.x / 32 * 16;
    best_list<K> lists[2];
    lists[0].clear();
    lists[1].clear();
    int q_slot = 0, k_slot = 0;
    start_step<D>(p, m, b, first, 0, 0, 0, 0, true);
    for (int64_t key = 0; key < end; key += TILE) {
        float total[COLUMNS][4] = {};
        for (int h = 0; h < p.heads; h++) {
            asm volatile("cp.async.wait_group 0;\n");
            __syncthreads();
            bool last = h + 1 == p.heads;
            int64_t next_key = last ? key + TILE : key;
            int next = last ? 0 : h + 1;
            bool new_keys = last || next * p.kv_heads / p.heads != h * p.kv_heads / p.heads;
            int next_slot = new_keys ? 1 - k_slot : k_slot;
            if (next_key < end)
                start_step<D>(p, m, b, first, next_key, next, 1 - q_slot, next_slot, new_keys);
            add_head<D, EXTRA>(p, m, q_slot, k_slot, h, b, query, key, total);
            q_slot = 1 - q_slot;
            k_slot = next_slot;
        }
        offer_tile<K>(p, total, query, key, lists);
    }
    int64_t row = query + threadIdx.x % 32 / 4;
    store_row<K>(p, lists[0], b, row, k, normalize, index, weight);
    store_row<K>(p, lists[1], b, row + 8, k, normalize, index, weight);
}

bool weft_cuda_topk_fits(const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    int64_t d = a->score.dqk;
    return n->in[WEFT_ATTN_Q]->dtype == WEFT_BF16 && (d == 32 || d == 64 || d == 96 || d == 128) &&
           a->k <= WEFT_CUDA_TOPK_MAX && !a->score.band && !n->in[WEFT_ATTN_START] &&
           a->score.batch <= 65535;
}

template <int D, int K, bool EXTRA>
static void launch_tiles(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    route_problem p = weft_cuda_route_problem(x, n);
    dim3 grid((unsigned)ceil_div(p.queries, TILE), (unsigned)p.batch);
    int bytes = (int)sizeof(tile_memory<D>);
    cudaFuncSetAttribute(route_tiles<D, K, EXTRA>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    route_tiles<D, K, EXTRA><<<grid, THREADS, (size_t)bytes, stream_of(x)>>>(
        p, (int)a->k, a->normalize, data_of<int32_t>(x, n->out[0]), data_of<float>(x, n->out[1]));
}

template <int D> static void launch_width(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    if (a->score.pos != WEFT_POS_NONE || a->k > 8)
        launch_tiles<D, WEFT_CUDA_TOPK_MAX, true>(x, n);
    else
        launch_tiles<D, 8, false>(x, n);
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

/* The gradient of a relative position on the tensor cores: Σ ds_ij over the pairs of each distance.
 *
 * A block has some distances of one head, and goes over the queries tile after tile, and over the keys
 * that are so far from them. Of each pair of tiles it makes dS as the kernel by queries does. A warp
 * writes its rows of dS to shared memory skewed, each a place further on than the one above, so that a
 * diagonal becomes a column, and adds the columns to sums of its own: always in the same order. */
#include "cuda/attention/tiles.cuh"

/* A block's tiles of pairs, in order: the queries from i0 on, with the keys from j0 on. */
struct distance_walk {
    int first, end; /* distances from `first` to before `end` */
    int queries, keys;
    int i0, j0;

    __device__ inline int first_key() const {
        return max(0, i0 - end + 1) / 64 * 64;
    }

    /* On from the end of a row of tiles to the next that has some. */
    __device__ inline void skip() {
        while (i0 < queries && j0 > min(keys - 1, i0 + 63 - first)) {
            i0 += 64;
            j0 = first_key();
        }
    }

    __device__ inline void begin() {
        i0 = max(0, first - 63) / 64 * 64;
        j0 = first_key();
        skip();
    }

    __device__ inline void advance() {
        j0 += 64;
        skip();
    }

    __device__ inline bool more() const {
        return i0 < queries;
    }
};

/* Starts copying a pair of tiles, and stores what the scores have beside ⟨q, k⟩. */
template <typename S>
__device__ static inline void load_pair(const attention_problem &p, const attention_gradients &g,
                                        const row_maps &maps, const query_block &t,
                                        const distance_walk &walk, bool new_queries,
                                        uint8_t *aligned, int tile) {
    uint32_t base = shared_address(aligned), barrier = base + S::BARRIERS;
    int key_bytes = tile_bytes<S::KEYS, S::DQK> + tile_bytes<S::KEYS, S::DV>;
    int query_bytes = tile_bytes<S::QUERIES, S::DQK> + tile_bytes<S::QUERIES, S::DV>;
    expect_tx(barrier, key_bytes + (new_queries ? query_bytes : 0));
    if (new_queries) {
        tma_load<S::QUERIES, S::DQK, S::THREADS>(base + S::Q, {&maps.q, &p.q, p.queries, p.dqk},
                                                 t.b, walk.i0, t.h, barrier);
        tma_load<S::QUERIES, S::DV, S::THREADS>(base + S::D_O, {&maps.d_o, &g.d_o, p.queries, p.dv},
                                                t.b, walk.i0, t.h, barrier);
    }
    tma_load<S::KEYS, S::DQK, S::THREADS>(base + S::K, {&maps.k, &p.k, p.keys, p.dqk}, t.b, walk.j0,
                                          t.kv, barrier);
    tma_load<S::KEYS, S::DV, S::THREADS>(base + S::V, {&maps.v, &p.v, p.keys, p.dv}, t.b, walk.j0,
                                         t.kv, barrier);
    commit_loads();
    int column = (int)threadIdx.x, j = walk.j0 + column, distance = walk.i0 - walk.j0;
    float *bias = (float *)(aligned + S::BIAS) + tile % 2 * S::KEYS;
    float *ring = (float *)(aligned + S::RINGS) + tile % 2 * S::THREADS;
    const float *n = p.n ? p.n + ((int64_t)t.b * p.kv_heads + t.kv) * p.keys : NULL;
    if (column < S::KEYS) bias[column] = n && j < p.keys ? t.beta * n[j] : 0.0f;
    ring[column] = relative_bias(p, distance + S::KEYS - 1 - column);
}

/* S and dP to dS, in dp. `limit`: the last key of the tile that the thread's first row sees; `first`: the
 * first that each of its two rows does. */
template <typename S>
__device__ static inline void make_slopes(const float (&s)[8][4], float (&dp)[8][4], float scale,
                                          const float *bias, const float *ring, int tile, int row,
                                          int limit, const int (&first)[2], int keys,
                                          const float (&lse)[2], const float (&total)[2]) {
    int column = threadIdx.x % 4 * 2;
    distance_biases<S::RING> distances(ring, tile % 2 * S::THREADS + S::KEYS - 1 + column - row);
#pragma unroll
    for (int m = 0; m < 8; m++) {
        float2 b = *(const float2 *)(bias + 8 * m + column);
        float further[4];
        distances.next(further);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = (i % 2 ? b.y : b.x) - lse[i / 2] + further[i];
            x = fmaf(s[m][i], scale, x);
            int j = 8 * m + column + i % 2;
            if (j > limit + i / 2 * 8 || j >= keys || j < first[i / 2]) x = -NOTHING;
            dp[m][i] = power_of_two(x) * (dp[m][i] - total[i / 2]);
        }
    }
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    sum_distances_kernel(const __grid_constant__ attention_problem p,
                         const __grid_constant__ attention_gradients g,
                         const __grid_constant__ flash_workspace w,
                         const __grid_constant__ row_maps maps) {
    extern __shared__ uint8_t memory[];
    uint8_t *aligned = align_tiles(memory);
    uint32_t base = shared_address(aligned);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    query_block t = {};
    int head = column_index(), first = (int)blockIdx.y * S::DISTANCES;
    if (head >= p.batch * p.heads) return;
    t.b = head / p.heads;
    t.h = head - t.b * p.heads;
    t.kv = key_head_of(p, t.h);
    float *skewed = (float *)(aligned + S::SKEWED) + warp * 16 * S::SKEW;
    float *sums = (float *)(aligned + S::SUMS) + warp * S::DISTANCES;
    for (int e = lane; e < 16 * S::SKEW; e += 32)
        skewed[e] = 0;
    for (int e = lane; e < S::DISTANCES; e += 32)
        sums[e] = 0;
    find_numbers(p, t);
    init_barriers(base + S::BARRIERS, 1);
    distance_walk walk = {first, first + S::DISTANCES, p.queries, p.keys, 0, 0};
    if (p.reach && first >= p.reach) walk.queries = 0; /* nothing is so far away */
    walk.begin();
    float s[8][4], dp[8][4], lse[2], total[2];
    if (walk.more()) load_pair<S>(p, g, maps, t, walk, true, aligned, 0);
    for (int tile = 0, at = -1; walk.more(); tile++) {
        if (walk.i0 != at) {
            at = walk.i0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                lse[r] = w.lse[(int64_t)head * w.padded + at + row + 8 * r];
                total[r] = w.total[(int64_t)head * w.padded + at + row + 8 * r];
            }
        }
        int distance = walk.i0 - walk.j0, keys = p.keys - walk.j0, hidden[2] = {};
        if (hides_keys(p))
#pragma unroll
            for (int r = 0; r < 2; r++)
                hidden[r] = first_key_of(p, t.b, walk.i0 + row + 8 * r) - walk.j0;
        wait_barrier(base + S::BARRIERS, tile);
        sync_block();
        begin_products();
        multiply_tiles<64, S::DQK, S::QUERIES, S::KEYS>(s, base + S::Q, 0, base + S::K);
        multiply_tiles<64, S::DV, S::QUERIES, S::KEYS>(dp, base + S::D_O, 0, base + S::V);
        end_products();
        wait_products<0>();
        settle(s);
        settle(dp);
        sync_block();
        walk.advance();
        if (walk.more()) load_pair<S>(p, g, maps, t, walk, walk.i0 != at, aligned, tile + 1);
        make_slopes<S>(s, dp, t.scale, (float *)(aligned + S::BIAS) + tile % 2 * S::KEYS,
                       (float *)(aligned + S::RINGS), tile, row, distance + row, hidden, keys, lse,
                       total);
        /* Of row r and column c at r − c + 63. */
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = lane / 4 + i / 2 * 8, c = 8 * m + lane % 4 * 2 + i % 2;
                skewed[r * S::SKEW + r - c + 63] = dp[m][i];
            }
        __syncwarp();
        for (int e = lane; e < 16 + 63; e += 32) {
            float sum = 0;
#pragma unroll
            for (int r = 0; r < 16; r++)
                sum += skewed[r * S::SKEW + e];
            int d = distance + warp * 16 - 63 + e - first;
            if (d >= 0 && d < S::DISTANCES) sums[d] += sum;
        }
        __syncwarp();
    }
    __syncthreads();
    float *to = w.rel + (int64_t)head * gridDim.y * S::DISTANCES + first;
    for (int d = threadIdx.x; d < S::DISTANCES; d += S::THREADS) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < S::WARPS; i++)
            sum += ((float *)(aligned + S::SUMS))[i * S::DISTANCES + d];
        to[d] = sum;
    }
}

/* Distances that a head's sums have room for. */
int flash_distances(const attention_problem &p) {
    enum { DISTANCES = distance_shape<32, 32>::DISTANCES };
    return (int)ceil_div(p.keys, DISTANCES) * DISTANCES;
}

void flash_backward_distances(const attention_problem &p, const attention_gradients &g,
                              const flash_workspace &w, cudaStream_t stream) {
    with_widths(p, [&](auto widths) {
        using S = typename decltype(widths)::BY_DISTANCES;
        dim3 blocks = group_blocks((int64_t)p.batch * p.heads, flash_distances(p) / S::DISTANCES);
        launch_backward<S>(sum_distances_kernel<S>, p, g, w, blocks, stream);
    });
    attention_add_distances(p, g, w.rel, flash_distances(p), stream);
}

/* dQ from the dS that the kernel by keys has written down: dQ_i = Σ_j ds_ij k_j, one product.
 *
 * It is bound by reading dS, so the tiles of a warpgroup's 64 queries are read two ahead, from
 * memory to registers: a tile lies there as its dSᵀ lay in registers, each warp takes its queries'
 * part, and eight by eight numbers at a time are turned between the lanes.
 *
 * Sequences are taken from the last to the first: the last written are still in the cache. */
#include "cuda/attention_backward.cuh"

template <int DQK_, int WARPGROUPS_, int BLOCKS_> struct kept_shape {
    static constexpr int DQK = DQK_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int KEYS = 64, STAGES = 3; /* of K */
    static constexpr int QUERIES = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int MEMORY = STAGES * tile_bytes<KEYS, DQK> + 1024;
};

__device__ static inline uint32_t turn_matrix(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* A warp's part of a tile: 16 queries with each 16 of the keys. */
struct kept_part {
    uint4 keys[4];
};

__device__ static inline kept_part read_part(const uint4 *from) {
    kept_part part;
#pragma unroll
    for (int k = 0; k < 4; k++)
        part.keys[k] = __ldcs(from + k * 32);
    return part;
}

__device__ static inline void turn_part(const kept_part &part, uint32_t (&slopes)[4][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        slopes[k][0] = turn_matrix(part.keys[k].x);
        slopes[k][1] = turn_matrix(part.keys[k].z);
        slopes[k][2] = turn_matrix(part.keys[k].y);
        slopes[k][3] = turn_matrix(part.keys[k].w);
    }
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    sum_query_gradients(const __grid_constant__ attention_problem p,
                        const __grid_constant__ attention_gradients g,
                        const __grid_constant__ tiles_workspace w) {
    extern __shared__ uint8_t memory[];
    uint32_t base = shared_address(align_tiles(memory));
    int blocks = (p.queries + S::QUERIES - 1) / S::QUERIES;
    int id = blockIdx.x, head = w.sequences * p.heads - 1 - id / blocks;
    int i0 = (blocks - 1 - id % blocks) * S::QUERIES, h = head % p.heads;
    int b = w.first + head / p.heads, kv = key_head_of(p, h);
    int warpgroup = warpgroup_index(), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int steps = (min(p.queries, i0 + S::QUERIES) + S::KEYS - 1) / S::KEYS;
    int tile = i0 / 64 + warpgroup, mine = tile * 64 < p.queries ? tile + 1 : 0;
    const bf16 *k = (const bf16 *)p.k.data + row_at(p.k, b, 0, kv);
    const uint4 *kept = kept_tile(p, w, b, h, tile, 0) + warp * 128 + lane;
    auto copy_keys = [&](int step) {
        int j0 = step * S::KEYS;
        if (step < steps)
            copy_tile<S::KEYS, S::DQK, S::THREADS>(
                base + (uint32_t)(step % S::STAGES * tile_bytes<S::KEYS, S::DQK>),
                k + (int64_t)j0 * p.k.row, p.k.row, p.keys - j0);
        end_copies();
    };
    copy_keys(0);
    copy_keys(1);
    kept_part next = {}, after = {};
    if (mine > 0) next = read_part(kept);
    if (mine > 1) after = read_part(kept + KEPT_TILE);
    float dq[S::DQK / 8][4];
    uint32_t slopes[4][4];
    clear_sums(dq);
    for (int step = 0; step < steps; step++) {
        wait_copies<1>();
        sync_block();
        if (step < mine) {
            turn_part(next, slopes);
            next = after;
            if (step + 2 < mine) after = read_part(kept + (step + 2) * KEPT_TILE);
            begin_products();
            add_weighted<S::KEYS, S::DQK>(
                dq, slopes, base + (uint32_t)(step % S::STAGES * tile_bytes<S::KEYS, S::DQK>));
            end_products();
        }
        copy_keys(step + 2);
        wait_products<0>();
        settle(dq);
    }
    float factor = w.extent == GENERAL ? 1.0f : numbers_of_head(p, h).scale;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile * 64 + warp * 16 + lane / 4 + 8 * r;
        if (i >= p.queries) continue;
        bf16 *to = (bf16 *)g.dq.data + row_at(g.dq, b, i, h) + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < S::DQK / 8; m++)
            *(uint32_t *)(to + 8 * m) = pack_pair(dq[m][2 * r] * factor, dq[m][2 * r + 1] * factor);
    }
}

template <typename S>
static void launch(const attention_problem &p, const attention_gradients &g,
                   const tiles_workspace &w, cudaStream_t stream) {
    int64_t blocks = (int64_t)w.sequences * p.heads * ceil_div(p.queries, S::QUERIES);
    auto kernel = sum_query_gradients<S>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::MEMORY);
    kernel<<<(unsigned)blocks, S::THREADS, S::MEMORY, stream>>>(p, g, w);
}

void attention_from_kept(const attention_problem &p, const attention_gradients &g,
                         const tiles_workspace &w, cudaStream_t stream) {
    if (p.dqk == 32)
        launch<kept_shape<32, 2, 2>>(p, g, w, stream);
    else if (p.dqk == 64)
        launch<kept_shape<64, 2, 2>>(p, g, w, stream);
    else
        launch<kept_shape<128, 3, 1>>(p, g, w, stream);
}

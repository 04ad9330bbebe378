/* Copies of tiles (tile.cuh) from rows in memory, by TMA, Hopper's tensor memory accelerator: one
 * thread asks for a box of rows, TMA finds the addresses, swizzles the pieces, fills what is outside
 * with 0 and counts the bytes that have arrived at an mbarrier in shared memory. Where the code is not
 * for 9.0a every thread copies its pieces by cp.async.
 *
 *     init_barriers(a, n)      once, by all threads: n barriers at a, 8 bytes each
 *     expect_tx(a, bytes)      before the copies that a barrier counts
 *     tma_load, bulk_load      all threads call them; only the first one asks, or thread ASKS
 *     commit_loads()           after them
 *     wait_barrier(a, phase)    all threads; phase counts how often the barrier was used before
 *
 * A buffer may be copied to again after a barrier of the block that follows the last product that
 * reads it.
 *
 *     tma_store(...)           a warpgroup: its 64 rows of a product to memory, as bf16
 *     wait_stores()            after the last of them
 *
 * go the other way, through a tile that nothing else needs any more. */
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/tensor/pipeline.cuh"

/* Rows as TMA sees them: [B, positions, heads, width], boxes of one panel's columns and
 * some positions of one head. */
typedef CUtensorMap row_map;

/* What is outside of a head's columns is 0, so a tile may be wider than they are. */
bool make_row_map(const head_rows &rows, int batch, int positions, int heads, int width,
                  int tile_width, int box_rows, row_map *map);

struct row_maps {
    row_map q, k, v, d_o;  /* read in boxes of so many queries or keys */
    row_map o, dq, dk, dv; /* written in boxes of 64 */
};

/* g is NULL in the forward pass. The tiles are dqk and dv wide; columns that the rows do not have
 * are 0 where they are read, and are not written. Without code for 9.0a there is nothing to make.
 * False: the driver has none of it. */
bool make_row_maps(const attention_problem &p, const attention_gradients *g, int query_rows,
                   int key_rows, row_maps *maps, int dqk, int dv);

/* What a tile is copied from or to: for TMA, and for threads. */
struct row_source {
    const row_map *map;
    const head_rows *rows;
    int positions, width;
};

#ifdef USE_MMA_SYNC

__device__ static inline void init_barriers(uint32_t, int) {
}

__device__ static inline void expect_tx(uint32_t, int) {
}

template <int ROWS, int D, int THREADS>
__device__ static inline void tma_load(uint32_t to, const row_source &from, int b, int i, int h,
                                       uint32_t) {
    copy_tile<ROWS, D, THREADS>(to, (const bf16 *)from.rows->data + row_at(*from.rows, b, i, h),
                                from.rows->row, from.positions - i, from.width);
}

template <int COUNT>
__device__ static inline void bulk_load(uint32_t to, const float *from, uint32_t) {
    if ((int)threadIdx.x < COUNT / 4)
        copy_piece(to + threadIdx.x * 16, from + threadIdx.x * 4, true);
}

__device__ static inline void commit_loads() {
    end_copies();
}

__device__ static inline void wait_barrier(uint32_t, int) {
    wait_copies();
}

template <int ROWS, int D, int N>
__device__ static inline void tma_store(const row_source &to, uint32_t, int, int column0, int b,
                                        int i, int h, const float (&c)[N / 8][4], float factor) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = i + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * r;
        if (at >= to.positions) continue;
        bf16 *row = (bf16 *)to.rows->data + row_at(*to.rows, b, at, h) + column0 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            if (column0 + 8 * n < to.width)
                *(uint32_t *)(row + 8 * n) =
                    pack_pair(c[n][2 * r] * factor, c[n][2 * r + 1] * factor);
    }
}

__device__ static inline void wait_stores() {
}

#else

__device__ static inline void init_barriers(uint32_t at, int count) {
    for (int i = 0; i < count && threadIdx.x == 0; i++)
        init_barrier(at + 8 * (uint32_t)i, 1);
    if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
}

__device__ static inline void expect_tx(uint32_t arrival, int bytes) {
    if (threadIdx.x == 0) arrive_expect_tx(arrival, bytes);
}

template <int ROWS, int D, int THREADS, int ASKS = 0>
__device__ static inline void tma_load(uint32_t to, const row_source &from, int b, int i, int h,
                                       uint32_t arrival) {
    using panel = tile_panel<D>;
    if (threadIdx.x != ASKS) return;
#pragma unroll
    for (int x = 0; x < D; x += panel::width)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::"
                     "bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                         to + (uint32_t)(x / panel::width * ROWS * panel::bytes)),
                     "l"(from.map), "r"(x), "r"(h), "r"(i), "r"(b), "r"(arrival)
                     : "memory");
}

template <int COUNT>
__device__ static inline void bulk_load(uint32_t to, const float *from, uint32_t arrival) {
    if (threadIdx.x == 0) bulk_copy(to, from, COUNT * 4, arrival);
}

__device__ static inline void commit_loads() {
}

__device__ static inline void wait_barrier(uint32_t arrival, int phase) {
    wait_phase(arrival, (uint32_t)phase);
}

/* Row i of head h and sequence b is the warpgroup's first; `tile` has ROWS rows of D columns, of which
 * its own are those from row0 on, and N columns from column0 on. */
template <int ROWS, int D, int N>
__device__ static inline void tma_store(const row_source &to, uint32_t tile, int row0, int column0,
                                        int b, int i, int h, const float (&c)[N / 8][4],
                                        float factor) {
    using panel = tile_panel<D>;
    int lane = threadIdx.x % 32, row = row0 + (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t at = tile + tile_place<ROWS, D>(row, column0 / 8 + 2 * k + lane / 16), w[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[e] = pack_pair(c[2 * k + e / 2][e % 2 * 2] * factor,
                             c[2 * k + e / 2][e % 2 * 2 + 1] * factor);
        store_matrices(at, w);
    }
    publish_words();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
    if (threadIdx.x % 128 != 0) return;
#pragma unroll
    for (int x = column0; x < column0 + N; x += panel::width)
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                     "[%0, {%1, %2, %3, %4}], [%5];" ::"l"(to.map),
                     "r"(x), "r"(h), "r"(i), "r"(b),
                     "r"(tile + (uint32_t)((x / panel::width * ROWS + row0) * panel::bytes))
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ static inline void wait_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#endif

/* Copies of tiles (tensor_tile.cuh) from rows in memory, by Hopper's bulk engine: one thread asks
 * for a box of rows, the engine finds the addresses, exchanges the pieces, fills what is outside
 * with 0 and counts the bytes that have arrived at a barrier in shared memory. Elsewhere every
 * thread copies its pieces by cp.async.
 *
 *     begin_arrivals(a, n)        once, by all threads: n arrivals at a, 8 bytes each
 *     expect_bytes(a, bytes)      before the copies that go with an arrival
 *     copy_box, copy_numbers      all threads call them; only the first one asks
 *     end_box()                   after them
 *     wait_arrival(a, turn)       all threads; turn counts how often the arrival was used before
 *
 * A buffer may be copied to again after a barrier that follows the last product that reads it. */
#ifndef WEFT_CUDA_TENSOR_COPY_CUH
#define WEFT_CUDA_TENSOR_COPY_CUH

#include "cuda/attention.cuh"
#include "cuda/tensor_tile.cuh"

#include <cuda.h>

/* Rows as the bulk engine sees them: [B, positions, heads, width], boxes of one panel's columns and
 * some positions of one head. */
struct row_map {
    CUtensorMap map;
};

struct row_maps {
    row_map q, k, v, d_o;
};

/* For boxes of so many queries or keys; d_o may be NULL. False: the driver has none of it. */
bool make_row_maps(const attention_problem &p, const head_rows *d_o, int query_rows, int key_rows,
                   row_maps *maps);

/* What a tile is copied from: for the engine, and for threads. */
struct row_source {
    const row_map *map;
    const head_rows *rows;
    int positions;
};

#ifdef TENSOR_BY_WARPS

__device__ static inline void begin_arrivals(uint32_t, int) {
}

__device__ static inline void expect_bytes(uint32_t, int) {
}

template <int ROWS, int D, int THREADS>
__device__ static inline void copy_box(uint32_t to, const row_source &from, int b, int i, int h,
                                       uint32_t) {
    copy_tile<ROWS, D, THREADS>(to, (const bf16 *)from.rows->data + row_at(*from.rows, b, i, h),
                                from.rows->row, from.positions - i);
}

template <int COUNT>
__device__ static inline void copy_numbers(uint32_t to, const float *from, uint32_t) {
    if ((int)threadIdx.x < COUNT / 4)
        copy_piece(to + threadIdx.x * 16, from + threadIdx.x * 4, true);
}

__device__ static inline void end_box() {
    end_copies();
}

template <int RUNNING> __device__ static inline void wait_arrival(uint32_t, int) {
    wait_copies<RUNNING>();
}

#else

__device__ static inline void begin_arrivals(uint32_t at, int count) {
    for (int i = 0; i < count && threadIdx.x == 0; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at + 8 * (uint32_t)i)
                     : "memory");
    if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
}

__device__ static inline void expect_bytes(uint32_t arrival, int bytes) {
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrival),
                     "r"(bytes)
                     : "memory");
}

template <int ROWS, int D, int THREADS>
__device__ static inline void copy_box(uint32_t to, const row_source &from, int b, int i, int h,
                                       uint32_t arrival) {
    using panel = tile_panel<D>;
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int x = 0; x < D; x += panel::width)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::"
                     "bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                         to + (uint32_t)(x / panel::width * ROWS * panel::bytes)),
                     "l"(from.map), "r"(x), "r"(h), "r"(i), "r"(b), "r"(arrival)
                     : "memory");
}

template <int COUNT>
__device__ static inline void copy_numbers(uint32_t to, const float *from, uint32_t arrival) {
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(COUNT * 4), "r"(arrival)
                     : "memory");
}

__device__ static inline void end_box() {
}

template <int RUNNING> __device__ static inline void wait_arrival(uint32_t arrival, int turn) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
                 "@!there bra again;\n"
                 "}\n" ::"r"(arrival),
                 "r"(turn & 1)
                 : "memory");
}

#endif

#endif

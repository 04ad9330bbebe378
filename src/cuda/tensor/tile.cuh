/* Tiles of bf16 rows in shared memory, and products of them on the tensor cores.
 *
 * A tile of ROWS rows and D columns is cut into panels of W columns (64, or 32 where D is no
 * multiple of 64, and of 192, so that its halves are whole panels too), one after another. A panel's
 * rows are 2W bytes, in pieces of 16 that are exchanged within eight rows (the 128- or 64-byte swizzle), so that neither reading rows nor
 * reading columns meets one bank twice. Tiles start at multiples of 1024 bytes.
 *
 * Products are made by a warpgroup of 128 threads and 64 rows:
 *
 *     multiply_tiles       C = A Bᵀ     A: 64 rows, B: N rows, both D columns wide; ADD: C += A Bᵀ
 *     multiply_fragments   the same with A in registers
 *     add_weighted         C += W B     W in registers, B: K rows, N columns wide
 *     add_tiles            the same with W a tile of 64 rows, and N of B's D columns from column0 on
 *
 * C has N / 8 times four numbers a thread: c[n][0], c[n][1] are of row 16·warp + lane / 4 and of
 * columns 8n + lane % 4 · 2 and the next, c[n][2], c[n][3] of the row 8 further down. As operand, W
 * has the same places, two bf16 in a word: pack_fragments makes one of the other, and store_weights
 * makes columns of a tile of it, for other warpgroups too: each thread calls publish_words then, and a
 * barrier follows.
 *
 * A product runs while the program goes on. begin_products comes before the first of some that are
 * started together, end_products after the last; wait_products<M> waits until at most M such groups
 * run. Until then their C and W must not be touched. */
#pragma once

#include "cuda/kernel.cuh"

/* Hopper's instruction is there only where the code is compiled for 9.0a; WEFT_MMA_SYNC leaves it
 * unused there too, for comparison. */
#if defined(WEFT_MMA_SYNC) || (defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL))
#define USE_MMA_SYNC
#endif

template <int D> struct tile_panel {
    static constexpr int width = D % 64 == 0 && D != 192 ? 64 : 32;
    static constexpr int bytes = 2 * width, pieces = width / 8;
};

template <int ROWS, int D> constexpr int tile_bytes = ROWS *D * 2;

/* Where 16 bytes of a tile are: row, and piece of eight columns. */
template <int ROWS, int D> __device__ static inline uint32_t tile_place(int row, int piece) {
    using panel = tile_panel<D>;
    int swap = panel::width == 64 ? row & 7 : (row >> 1) & 3;
    return (uint32_t)(piece / panel::pieces * (ROWS * panel::bytes) + row * panel::bytes +
                      ((piece % panel::pieces) ^ swap) * 16);
}

__device__ static inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void copy_piece(uint32_t to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
}

/* Starts copying ROWS rows; those from `rows` on and columns from `width` on are filled with 0, and not
 * read. Where the threads are whole rows, and eight of them or more, a thread has the same piece of each
 * of its rows. */
template <int ROWS, int D, int THREADS>
__device__ static inline void copy_tile(uint32_t to, const bf16 *from, int64_t stride, int rows,
                                        int width) {
    constexpr int pieces = D / 8, at_once = THREADS / pieces;
    if constexpr (THREADS % pieces == 0 && at_once % 8 == 0) {
        int row = (int)threadIdx.x / pieces, piece = (int)threadIdx.x % pieces;
        const bf16 *source = from + (row * stride + piece * 8);
        if (piece * 8 >= width) rows = 0;
        to += tile_place<ROWS, D>(row, piece);
#pragma unroll
        for (int r = 0; r < ROWS; r += at_once)
            if (ROWS % at_once == 0 || row + r < ROWS)
                copy_piece(to + (uint32_t)(r * tile_panel<D>::bytes), source + r * stride,
                           row + r < rows);
    } else {
#pragma unroll
        for (int e = 0; e < ROWS * pieces; e += THREADS) {
            int at = e + (int)threadIdx.x, row = at / pieces, piece = at % pieces;
            if (ROWS * pieces % THREADS != 0 && at >= ROWS * pieces) break;
            copy_piece(to + tile_place<ROWS, D>(row, piece), from + row * stride + piece * 8,
                       row < rows && piece * 8 < width);
        }
    }
}

__device__ static inline void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for this thread's copies and lets the tensor cores see them; a barrier must follow. */
__device__ static inline void wait_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#ifndef USE_MMA_SYNC
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ static inline uint32_t pack_pair(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

template <int K>
__device__ static inline void pack_fragments(const float (&c)[K / 8][4], uint32_t (&w)[K / 16][4]) {
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        w[k][0] = pack_pair(c[2 * k][0], c[2 * k][1]);
        w[k][1] = pack_pair(c[2 * k][2], c[2 * k][3]);
        w[k][2] = pack_pair(c[2 * k + 1][0], c[2 * k + 1][1]);
        w[k][3] = pack_pair(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

__device__ static inline void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

__device__ static inline void load_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* C [16, 8] += A [16, 16] B [16, 8] by a warp. */
__device__ static inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Eight numbers of bf16 as four words; zeros where there are none. */
struct eight_halves {
    unsigned word[4];
};

__device__ static inline eight_halves fetch_halves(const bf16 *p, bool there) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (there) v = *(const uint4 *)p;
    return eight_halves{{v.x, v.y, v.z, v.w}};
}

/* A lane has two neighbours of row lane/4 of 8 × 8 numbers, and gets two of column lane/4. */
__device__ static inline unsigned transpose_halves(unsigned word) {
    unsigned transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
    return transposed;
}

/* The warpgroup's 64 rows from row0 of a tile as an operand in registers. */
template <int ROWS, int D>
__device__ static inline void load_fragments(uint32_t (&w)[D / 16][4], uint32_t tile, int row0) {
    int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        load_matrices(w[k], tile + tile_place<ROWS, D>(row, 2 * k + lane / 16));
}

template <int N> __device__ static inline void clear_sums(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
}

#ifdef USE_MMA_SYNC
#include "cuda/tensor/mma_sync.cuh"
#else
#include "cuda/tensor/wgmma.cuh"
#endif

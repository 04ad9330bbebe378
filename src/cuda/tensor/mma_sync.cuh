/* The products of tile.cuh by mma.sync, an instruction of a warp that has its operands in
 * registers: what GPUs other than Hopper have, and on Hopper some seven tenths of wgmma's speed. It
 * is done when it returns, so there is nothing to wait for. */
#pragma once

__device__ static inline void begin_products() {
}

__device__ static inline void end_products() {
}

template <int RUNNING> __device__ static inline void wait_products() {
}

template <int N> __device__ static inline void settle(float (&)[N][4]) {
}

/* C += A Bᵀ for the 16 columns of step k. */
template <int N, int D, int B_ROWS>
__device__ static inline void add_step(float (&c)[N / 8][4], const uint32_t (&a)[4], uint32_t b,
                                       int k) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t r[4];
        load_matrices(
            r, b + tile_place<B_ROWS, D>(16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        multiply_add(c[2 * n], a, r[0], r[1]);
        multiply_add(c[2 * n + 1], a, r[2], r[3]);
    }
}

template <int N, int D, int A_ROWS, int B_ROWS, bool ADD = false>
__device__ static inline void multiply_tiles(float (&c)[N / 8][4], uint32_t a, int row0,
                                             uint32_t b) {
    int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 % 4 * 16 + lane % 16;
    if (!ADD) clear_sums(c);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t fragment[4];
        load_matrices(fragment, a + tile_place<A_ROWS, D>(row, 2 * k + lane / 16));
        add_step<N, D, B_ROWS>(c, fragment, b, k);
    }
}

template <int N, int D, int B_ROWS>
__device__ static inline void multiply_fragments(float (&c)[N / 8][4],
                                                 const uint32_t (&a)[D / 16][4], uint32_t b) {
    clear_sums(c);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        add_step<N, D, B_ROWS>(c, a[k], b, k);
}

template <int K, int N>
__device__ static inline void add_weighted(float (&c)[N / 8][4], const uint32_t (&w)[K / 16][4],
                                           uint32_t b) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t r[4];
            load_transposed(r, b + tile_place<K, N>(16 * k + lane % 16, 2 * n + lane / 16));
            multiply_add(c[2 * n], w[k], r[0], r[1]);
            multiply_add(c[2 * n + 1], w[k], r[2], r[3]);
        }
}

template <int K, int N, int D>
__device__ static inline void add_tiles(float (&c)[N / 8][4], uint32_t a, uint32_t b, int column0) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t fragment[4];
        load_matrices(fragment, a + tile_place<64, K>(row, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t r[4];
            int piece = column0 / 8 + 2 * n + lane / 16;
            load_transposed(r, b + tile_place<K, D>(16 * k + lane % 16, piece));
            multiply_add(c[2 * n], fragment, r[0], r[1]);
            multiply_add(c[2 * n + 1], fragment, r[2], r[3]);
        }
    }
}

__device__ static inline void publish_words() {
}

template <int D, int N>
__device__ static inline void store_weights(uint32_t tile, int column0,
                                            const uint32_t (&w)[N / 16][4]) {
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t at = tile + lane % 4 * 4 +
                          tile_place<64, D>(row + e % 2 * 8, column0 / 8 + 2 * k + e / 2);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(w[k][e]) : "memory");
        }
}

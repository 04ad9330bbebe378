/* The products of tile.cuh by wgmma: a warpgroup's instruction that reads B, and A too unless
 * it is in registers, from shared memory by itself, and runs on its own.
 *
 * A matrix in shared memory is told by a descriptor: where it starts, how it is swizzled, the
 * distance from eight rows to the next eight (`stride`) and, where it is read by columns, from one
 * panel to the next (`leading`); all in units of 16 bytes. */
#ifndef WEFT_CUDA_TENSOR_WGMMA_CUH
#define WEFT_CUDA_TENSOR_WGMMA_CUH

template <int ROWS, int D> __device__ static inline uint64_t describe_tile(uint32_t at) {
    using panel = tile_panel<D>;
    constexpr uint64_t leading = ROWS * panel::bytes / 16, stride = 8 * panel::bytes / 16;
    constexpr uint64_t swizzle = panel::width == 64 ? 1 : 2;
    return swizzle << 62 | stride << 32 | leading << 16 | at >> 4;
}

/* The same matrix some bytes further on. Only the lower half changes, and one addition is all that
 * stands between two products. */
__device__ static inline uint64_t move_on(uint64_t matrix, uint32_t bytes) {
    return (matrix & 0xffffffff00000000u) | (uint32_t)((uint32_t)matrix + bytes / 16);
}

/* Distance of the 16 columns of step k, and of its 16 rows. */
template <int ROWS, int D> __device__ constexpr uint32_t column_step(int k) {
    using panel = tile_panel<D>;
    return (uint32_t)(k * 16 / panel::width * (ROWS * panel::bytes) + k * 16 % panel::width * 2);
}

template <int D> __device__ constexpr uint32_t row_step(int k) {
    return (uint32_t)(k * 16 * tile_panel<D>::bytes);
}

__device__ static inline void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int RUNNING> __device__ static inline void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(RUNNING) : "memory");
}

/* After a wait: keeps the compiler from reading c before it. */
template <int N> __device__ static inline void settle(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

/* One step of 16: N columns of C. `add` false: C is set. */
template <int N> struct wgmma;

#define FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define WGMMA(N, C, A_B, HELD_B, ...)                                                              \
    template <> struct wgmma<N> {                                                                  \
        template <bool ADD>                                                                        \
        static __device__ inline void tiles(float (&c)[N / 8][4], uint64_t a, uint64_t b) {        \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" C "}, " A_B  \
                         ";"                                                                       \
                         : __VA_ARGS__                                                             \
                         : "l"(a), "l"(b), "n"(ADD ? 1 : 0), "n"(0));                              \
        }                                                                                          \
        template <bool ADD, bool BY_COLUMNS>                                                       \
        static __device__ inline void held(float (&c)[N / 8][4], const uint32_t (&a)[4],           \
                                           uint64_t b) {                                           \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" C            \
                         "}, " HELD_B ";"                                                          \
                         : __VA_ARGS__                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0),   \
                           "n"(BY_COLUMNS ? 1 : 0));                                               \
        }                                                                                          \
    };

WGMMA(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
      "%16, %17, %18, 1, 1, 0, %19", "{%16, %17, %18, %19}, %20, %21, 1, 1, %22", SIXTEEN(0))

WGMMA(64,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
      "%32, %33, %34, 1, 1, 0, %35", "{%32, %33, %34, %35}, %36, %37, 1, 1, %38", SIXTEEN(0),
      SIXTEEN(4))

WGMMA(96,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47",
      "%48, %49, %50, 1, 1, 0, %51", "{%48, %49, %50, %51}, %52, %53, 1, 1, %54", SIXTEEN(0),
      SIXTEEN(4), SIXTEEN(8))

WGMMA(128,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",
      "%64, %65, %66, 1, 1, 0, %67", "{%64, %65, %66, %67}, %68, %69, 1, 1, %70", SIXTEEN(0),
      SIXTEEN(4), SIXTEEN(8), SIXTEEN(12))

#undef WGMMA
#undef SIXTEEN
#undef FOUR

/* The first row of A is row0 of a tile of A_ROWS rows. */
template <int N, int D, int A_ROWS, int B_ROWS>
__device__ static inline void multiply_tiles(float (&c)[N / 8][4], uint32_t a, int row0,
                                             uint32_t b) {
    uint64_t left = describe_tile<A_ROWS, D>(a + (uint32_t)(row0 * tile_panel<D>::bytes));
    uint64_t right = describe_tile<B_ROWS, D>(b);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint64_t first = move_on(left, column_step<A_ROWS, D>(k));
        uint64_t second = move_on(right, column_step<B_ROWS, D>(k));
        if (k == 0)
            wgmma<N>::template tiles<false>(c, first, second);
        else
            wgmma<N>::template tiles<true>(c, first, second);
    }
}

template <int N, int D, int B_ROWS>
__device__ static inline void multiply_held(float (&c)[N / 8][4], const uint32_t (&a)[D / 16][4],
                                            uint32_t b) {
    uint64_t right = describe_tile<B_ROWS, D>(b);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint64_t second = move_on(right, column_step<B_ROWS, D>(k));
        if (k == 0)
            wgmma<N>::template held<false, false>(c, a[k], second);
        else
            wgmma<N>::template held<true, false>(c, a[k], second);
    }
}

template <int K, int N>
__device__ static inline void add_weighted(float (&c)[N / 8][4], const uint32_t (&w)[K / 16][4],
                                           uint32_t b) {
    uint64_t right = describe_tile<K, N>(b);
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma<N>::template held<true, true>(c, w[k], move_on(right, row_step<N>(k)));
}

#endif

/* The products of tile.cuh by wgmma: a warpgroup's instruction that reads B, and A too unless
 * it is in registers, from shared memory by itself, and runs on its own.
 *
 * A matrix in shared memory is told by a descriptor: where it starts, how it is swizzled, the
 * distance from eight rows to the next eight (`stride`) and, where it is read by columns, from one
 * panel to the next (`leading`); all in units of 16 bytes. */
#pragma once

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
/* C, and behind its registers the operands' numbers: R0 to R3, or with A in registers to R6. */
#define WGMMA(N, C, R0, R1, R2, R3, R4, R5, R6, ...)                                               \
    template <> struct wgmma<N> {                                                                  \
        template <bool ADD, bool BY_COLUMNS>                                                       \
        static __device__ inline void tiles(float (&c)[N / 8][4], uint64_t a, uint64_t b) {        \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" C "}, %" #R0 \
                         ", %" #R1 ", %" #R2 ", 1, 1, 0, %" #R3 ";"                                \
                         : __VA_ARGS__                                                             \
                         : "l"(a), "l"(b), "n"(ADD ? 1 : 0), "n"(BY_COLUMNS ? 1 : 0));             \
        }                                                                                          \
        template <bool ADD, bool BY_COLUMNS>                                                       \
        static __device__ inline void fragments(float (&c)[N / 8][4], const uint32_t (&a)[4],      \
                                                uint64_t b) {                                      \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" C            \
                         "}, {%" #R0 ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", %" #R5            \
                         ", 1, 1, %" #R6 ";"                                                       \
                         : __VA_ARGS__                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0),   \
                           "n"(BY_COLUMNS ? 1 : 0));                                               \
        }                                                                                          \
    };

/* Names of the registers of C: those up to 8, 16, 24, ... */
#define UP_TO_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define UP_TO_16 UP_TO_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define UP_TO_24 UP_TO_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define UP_TO_32 UP_TO_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define UP_TO_48                                                                                   \
    UP_TO_32                                                                                       \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define UP_TO_64                                                                                   \
    UP_TO_48                                                                                       \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define UP_TO_96                                                                                   \
    UP_TO_64                                                                                       \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define UP_TO_128                                                                                  \
    UP_TO_96                                                                                       \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
    "%127"

WGMMA(16, UP_TO_8, 8, 9, 10, 11, 12, 13, 14, FOUR(0), FOUR(1))
WGMMA(32, UP_TO_16, 16, 17, 18, 19, 20, 21, 22, SIXTEEN(0))
WGMMA(48, UP_TO_24, 24, 25, 26, 27, 28, 29, 30, SIXTEEN(0), FOUR(4), FOUR(5))
WGMMA(64, UP_TO_32, 32, 33, 34, 35, 36, 37, 38, SIXTEEN(0), SIXTEEN(4))
WGMMA(96, UP_TO_48, 48, 49, 50, 51, 52, 53, 54, SIXTEEN(0), SIXTEEN(4), SIXTEEN(8))
WGMMA(128, UP_TO_64, 64, 65, 66, 67, 68, 69, 70, SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12))
WGMMA(192, UP_TO_96, 96, 97, 98, 99, 100, 101, 102, SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12),
      SIXTEEN(16), SIXTEEN(20))
WGMMA(256, UP_TO_128, 128, 129, 130, 131, 132, 133, 134, SIXTEEN(0), SIXTEEN(4), SIXTEEN(8),
      SIXTEEN(12), SIXTEEN(16), SIXTEEN(20), SIXTEEN(24), SIXTEEN(28))

/* One step of a product of 64 × 128, b by rows or by columns; `add` 0: c is set. */
template <bool B_BY_COLUMNS>
__device__ static inline void add_product(float (&c)[16][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" UP_TO_64 "}, "
                 "%64, %65, add, 1, 1, 0, %67;\n"
                 "}\n"
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12)
                 : "l"(a), "l"(b), "r"(add), "n"(B_BY_COLUMNS ? 1 : 0));
}

#undef WGMMA
#undef SIXTEEN
#undef FOUR

/* The first row of A is row0 of a tile of A_ROWS rows. */
template <int N, int D, int A_ROWS, int B_ROWS, bool ADD = false>
__device__ static inline void multiply_tiles(float (&c)[N / 8][4], uint32_t a, int row0,
                                             uint32_t b) {
    uint64_t left = describe_tile<A_ROWS, D>(a + (uint32_t)(row0 * tile_panel<D>::bytes));
    uint64_t right = describe_tile<B_ROWS, D>(b);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint64_t first = move_on(left, column_step<A_ROWS, D>(k));
        uint64_t second = move_on(right, column_step<B_ROWS, D>(k));
        if (k == 0 && !ADD)
            wgmma<N>::template tiles<false, false>(c, first, second);
        else
            wgmma<N>::template tiles<true, false>(c, first, second);
    }
}

template <int N, int D, int B_ROWS>
__device__ static inline void multiply_fragments(float (&c)[N / 8][4],
                                                 const uint32_t (&a)[D / 16][4], uint32_t b) {
    uint64_t right = describe_tile<B_ROWS, D>(b);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint64_t second = move_on(right, column_step<B_ROWS, D>(k));
        if (k == 0)
            wgmma<N>::template fragments<false, false>(c, a[k], second);
        else
            wgmma<N>::template fragments<true, false>(c, a[k], second);
    }
}

template <int K, int N>
__device__ static inline void add_weighted(float (&c)[N / 8][4], const uint32_t (&w)[K / 16][4],
                                           uint32_t b) {
    uint64_t right = describe_tile<K, N>(b);
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma<N>::template fragments<true, true>(c, w[k], move_on(right, row_step<N>(k)));
}

template <int K, int N, int D>
__device__ static inline void add_tiles(float (&c)[N / 8][4], uint32_t a, uint32_t b, int column0) {
    using panel = tile_panel<D>;
    uint64_t left = describe_tile<64, K>(a);
    uint64_t right =
        describe_tile<K, D>(b + (uint32_t)(column0 / panel::width * (K * panel::bytes)));
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma<N>::template tiles<true, true>(c, move_on(left, column_step<64, K>(k)),
                                             move_on(right, row_step<D>(k)));
}

/* Before a barrier, by each thread that wrote to shared memory: the tensor cores see it behind that. */
__device__ static inline void publish_words() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The words of a step of 16 columns: row and piece as load_matrices wants them. */
__device__ static inline void store_matrices(uint32_t at, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

template <int D, int N>
__device__ static inline void store_weights(uint32_t tile, int column0,
                                            const uint32_t (&w)[N / 16][4]) {
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < N / 16; k++)
        store_matrices(tile + tile_place<64, D>(row, column0 / 8 + 2 * k + lane / 16), w[k]);
}

/* A pipeline of stages in shared memory between warps: the producer fills a stage by TMA, the consumers
 * multiply what is in it by wgmma and give it back. mbarriers, TMA loads of boxes, the products, and a
 * place in the ring of stages. For kernels on 9.0a alone.
 *
 * A barrier counts arrivals, and bytes where it is told how many to expect; its `phase` counts how
 * often it was complete before, and the parity of that is what is waited for. A producer
 * that waits for room which is free at the start waits for the phase before: wait_phase(at, phase + 1). */
#pragma once

#include "cuda/tensor/tile.cuh"

#include <cuda.h>

#ifndef USE_MMA_SYNC

__device__ static inline void init_barrier(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ static inline void wait_phase(uint32_t at, uint32_t phase) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
                 "@!there bra again;\n"
                 "}\n" ::"r"(at),
                 "r"(phase & 1)
                 : "memory");
}

__device__ static inline void arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ static inline void arrive_expect_tx(uint32_t at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

/* The box whose first element is column x of row y. */
__device__ static inline void tma_load_2d(uint32_t to, const CUtensorMap *from, int x, int y,
                                          uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

#define FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)

/* One step of 16 of a product of 64 × 128, each factor by rows or by columns; `add` 0: c is set. */
template <bool A_BY_COLUMNS, bool B_BY_COLUMNS>
__device__ static inline void add_product(float (&c)[16][4], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, add, 1, 1, %67, %68;\n"
                 "}\n"
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12)
                 : "l"(a), "l"(b), "r"(add), "n"(A_BY_COLUMNS ? 1 : 0), "n"(B_BY_COLUMNS ? 1 : 0));
}

#undef SIXTEEN
#undef FOUR

/* A stage of the ring, and how often it was used before. */
template <int STAGES> struct pipeline_state {
    uint32_t stage, phase;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, phase++;
    }
};

#endif

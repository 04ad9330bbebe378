/* A pipeline of stages in shared memory between warps: the producer fills a stage by TMA, the consumers
 * multiply what is in it by wgmma and give it back. mbarriers, TMA loads of boxes, and a place
 * in the ring of stages. For kernels on 9.0a alone.
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

__device__ static inline uint32_t block_in_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ static inline uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

__device__ static inline void bulk_copy(uint32_t to, const void *from, int bytes,
                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
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

/* A stage of the ring, and how often it was used before. */
template <int STAGES> struct pipeline_state {
    uint32_t stage, phase;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, phase++;
    }
};

#endif

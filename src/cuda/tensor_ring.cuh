/* A ring of stages in shared memory that the bulk engine fills and products empty: barriers, boxes and
 * a place in the ring. For kernels on 9.0a alone.
 *
 * A barrier counts arrivals, and bytes where it is told how many to expect; its `turn` counts how
 * often it was complete before. Whoever waits for room that was free at the start asks for the turn
 * before: wait_turn(at, turn + 1) with the parity alone. */
#ifndef WEFT_CUDA_TENSOR_RING_CUH
#define WEFT_CUDA_TENSOR_RING_CUH

#include "cuda/tensor_tile.cuh"

#include <cuda.h>

#ifndef TENSOR_BY_WARPS

__device__ static inline void make_barrier(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ static inline void wait_turn(uint32_t at, uint32_t turn) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
                 "@!there bra again;\n"
                 "}\n" ::"r"(at),
                 "r"(turn & 1)
                 : "memory");
}

__device__ static inline void arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ static inline void arrive_with_bytes(uint32_t at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

/* The box whose first element is column x of row y. */
__device__ static inline void ask_box(uint32_t to, const CUtensorMap *from, int x, int y,
                                      uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

/* A stage of the ring, and how often it was used before. */
template <int STAGES> struct ring_place {
    uint32_t stage, turn;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn++;
    }
};

#endif

#endif

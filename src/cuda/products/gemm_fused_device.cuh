/* What gemm_fused.cu is made of on the device beside the ring: pairs of blocks, and the elements'
 * arithmetic. */
#ifndef WEFT_CUDA_PRODUCTS_GEMM_FUSED_DEVICE_CUH
#define WEFT_CUDA_PRODUCTS_GEMM_FUSED_DEVICE_CUH

#include "cuda/tensor/pipeline.cuh"

#ifndef USE_MMA_SYNC

/* At the same barrier of another block of the cluster. Nothing was written that it would have to see,
 * so that the arrival needs no wider order than its own block's, which would cost a fence. */
__device__ static inline void arrive_at_block(uint32_t at, uint32_t block) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(at),
                 "r"(block)
                 : "memory");
}

/* So many threads, all that use the name; names from 1 on. */
__device__ static inline void sync_threads(int name, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(count) : "memory");
}

__device__ static inline uint32_t block_in_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all its blocks. */
__device__ static inline void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* A box to both blocks of a pair, and to the same barrier of each. */
__device__ static inline void tma_multicast_2d(uint32_t to, const CUtensorMap *from, int x, int y,
                                               uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

__device__ static inline uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

template <int REGISTERS> __device__ static inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ static inline void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif

#endif

/* What gemm_tiles.cu is made of on the device beside the ring: pairs of blocks, and the elements'
 * arithmetic. */
#ifndef WEFT_CUDA_GEMM_TILES_DEVICE_CUH
#define WEFT_CUDA_GEMM_TILES_DEVICE_CUH

#include "cuda/tensor_ring.cuh"

#ifndef TENSOR_BY_WARPS

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
__device__ static inline void ask_box_for_both(uint32_t to, const CUtensorMap *from, int x, int y,
                                               uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

__device__ static inline void store_matrices(uint32_t at, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
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

/* 2^x and 1/x by the hardware; what is too small for a normal number is 0. */
__device__ static inline float raise_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float invert(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 2√(2/π), and that times 0.044715: gelu is x·σ(x (A + B x²)). */
#define GELU_A 1.5957691216057308f
#define GELU_B 0.07135481627260025f
#define LOG2_E 1.4426950408889634f

__device__ static inline float sigmoid(float x) {
    return invert(1.0f + raise_two(-LOG2_E * x));
}

__device__ static inline float quick_gelu(float x) {
    return x * invert(1.0f + raise_two(x * (-LOG2_E * GELU_A - LOG2_E * GELU_B * (x * x))));
}

/* σ(1 − σ) as σ²e^-2u: 1 − σ itself would lose its digits where x is large. Beyond ±10 the slope is
 * 0 or 1 to the last bit; within it e^-2u stays finite. */
__device__ static inline float quick_gelu_slope(float at) {
    float x = fminf(10.0f, fmaxf(-10.0f, at)), x2 = x * x;
    float e = raise_two(x * (-LOG2_E * GELU_A - LOG2_E * GELU_B * x2)), s = invert(1.0f + e);
    return s + (s * e * s) * (x * (GELU_A + 3 * GELU_B * x2));
}

#endif

#endif

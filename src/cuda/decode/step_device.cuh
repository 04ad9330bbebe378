/* The instructions that a step's kernel (step_kernel.cuh) is written with. */
#ifndef WEFT_CUDA_DECODE_STEP_DEVICE_CUH
#define WEFT_CUDA_DECODE_STEP_DEVICE_CUH

#include "cuda/functions.cuh"
#include "cuda/kernel.cuh"

/* c [16, 8] += a [16, 16] b [16, 8]. */
__device__ static inline void step_mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                       unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A lane has two neighbours of row lane/4 of 8 × 8 numbers, and gets two of column lane/4. */
__device__ static inline unsigned step_turn(unsigned word) {
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}

/* 16 bytes from global to shared memory, or zeros; wait<N>: all but the last N groups have arrived. */
__device__ static inline void step_copy_or_zero(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

__device__ static inline void step_copy_async(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

__device__ static inline void step_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ static inline void step_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ static inline unsigned short step_narrow(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

/* Two numbers as a word, the first in the low half. */
__device__ static inline unsigned step_pack(float low, float high) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

__device__ static inline float step_power(float x) {
    return power_of_two(x);
}

__device__ static inline float step_softplus(float x) {
    return softplus(x);
}

__device__ static inline float step_gelu(float x) {
    return gelu_value(x);
}

__device__ static inline float step_sum(float v) {
    return warp_sum(v);
}

__device__ static inline float step_max(float v) {
    return warp_max(v);
}

/* The block's share of the barrier across the grid: what it wrote before is seen by every block
 * behind it. */
__device__ static inline void step_meet_blocks(unsigned *barrier, unsigned all) {
    unsigned now;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
    } while ((int)(now - all) < 0);
}

/* Comes to the barrier without waiting; how many had come before. */
__device__ static inline unsigned step_arrive(unsigned *barrier) {
    unsigned before;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(barrier)
                 : "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    return before;
}

__device__ static inline long long step_clock() {
    return clock64();
}

__device__ static inline void step_fence_host() {
    __threadfence_system();
}

#endif

/* The instructions that a step's kernel (step_kernel.cuh) is written with. */
#pragma once

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
__device__ static inline unsigned step_transpose(unsigned word) {
    unsigned transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
    return transposed;
}

/* 16 bytes of keys or values from global to shared memory, or zeros; wait<N>: all but the last N groups
 * have arrived. An instruction takes 64 bytes of each of eight tokens, and the next the others: memory is
 * to send 256 at once, which lie in the same page. */
__device__ static inline void step_copy_or_zero(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
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

/* The same with a group of its own: the copy if `there`, the group if `counts`. No branch. */
__device__ static inline void step_copy_counted(void *to, const void *from, bool there,
                                                bool counts) {
    asm volatile("{\n.reg .pred p, q;\n"
                 "setp.ne.s32 p, %2, 0;\n"
                 "setp.ne.s32 q, %3, 0;\n"
                 "@p cp.async.cg.shared.global [%0], [%1], 16;\n"
                 "@q cp.async.commit_group;\n}"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"((int)there),
                   "r"((int)counts)
                 : "memory");
}

__device__ static inline void step_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ static inline void step_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Copies of whole rows by the copy engine of a multiprocessor (TMA), which a barrier in shared memory
 * counts. Before 9.0 there is none. */
__device__ static inline bool step_has_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return true;
#else
    return false;
#endif
}

__device__ static inline void step_bulk_init(unsigned long long *full) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"((unsigned)__cvta_generic_to_shared(full))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* So many bytes will come; what was written before is seen by the copies. */
__device__ static inline void step_bulk_expect(unsigned long long *full, unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(full)),
                 "r"(bytes)
                 : "memory");
#endif
}

__device__ static inline void step_bulk_copy(void *to, const void *from, unsigned bytes,
                                             unsigned long long *full) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(full))
        : "memory");
#endif
}

__device__ static inline void step_bulk_fence() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

__device__ static inline void step_bulk_wait(unsigned long long *full, unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"((unsigned)__cvta_generic_to_shared(full)), "r"(parity)
                     : "memory");
    } while (!done);
#endif
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

/* Numbers with flags: 32 bits and a flag behind them are written and read at once, so that whoever sees
 * the flag has the number. Nobody waits for a barrier. */
struct step_pair {
    unsigned long long first, second;
};

__device__ static inline void step_put_flagged(unsigned long long *to, unsigned value,
                                               unsigned flag) {
    unsigned long long both = (unsigned long long)flag << 32 | value;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

__device__ static inline unsigned long long step_look_one(const unsigned long long *from) {
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
    return v;
}

__device__ static inline step_pair step_look_flagged(const unsigned long long *from) {
    step_pair v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.first), "=l"(v.second)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ static inline void step_await_flagged(step_pair &v, const unsigned long long *from,
                                                 unsigned flag) {
    while ((unsigned)(v.first >> 32) != flag || (unsigned)(v.second >> 32) != flag)
        v = step_look_flagged(from);
}

/* Nanoseconds. */
__device__ static inline long long step_clock() {
    long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ static inline void step_fence_host() {
    __threadfence_system();
}

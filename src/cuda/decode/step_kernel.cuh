/* A whole step of generation in one launch: every layer for up to 64 rows, one
 * block a multiprocessor.
 *
 * A step is a list of phases with a barrier across the grid between them: the
 * embedding; for each layer the product that makes queries, keys and values
 * (and writes the caches), attention over the pages, the joining of its parts,
 * and the three products around the residual stream; the head. What a phase
 * costs beside its bytes is the barrier and one way through the L2 cache, and
 * there are few phases.
 *
 * Weights do not depend on anything, so they never wait: each thread copies
 * what it will multiply into a ring of its own in shared memory, DEPTH pieces
 * ahead, across the borders of phases. For each block they lie in memory just
 * in the order of use (step.cu), so that a piece costs a handful of
 * instructions. A tile is eight columns; the block's warps share out its chunks
 * of 32 numbers, and their sums are added in one order.
 *
 * Attention gives each warp a run of keys of one row and key head. The query
 * heads that share it are the rows of a tile of 16. Keys and values go through
 * a ring as well, 16 keys (a page) at a time: each lane copies what it will
 * multiply itself, so that nobody waits for anybody. Runs are cut at absolute
 * positions, how long they are follows from the row's own position, and they
 * are joined in order. So a row has the same bits whatever other rows there
 * are. */
#ifndef WEFT_CUDA_DECODE_STEP_KERNEL_CUH
#define WEFT_CUDA_DECODE_STEP_KERNEL_CUH

#include "cuda/decode/step_attend.cuh"
#include "cuda/decode/step_product.cuh"

__device__ static inline float step_load(const void *from, bool is_bf16, long long at) {
    return is_bf16 ? step_widen(((const unsigned short *)from)[at]) : ((const float *)from)[at];
}

__device__ static void step_embed(const step_problem &p) {
    const unsigned long long *before = p.picked + (1 - p.turn) * STEP_ROWS;
    if (blockIdx.x == 0 && threadIdx.x < STEP_ROWS) p.picked[p.turn * STEP_ROWS + threadIdx.x] = 0;
    for (int e = (int)(blockIdx.x * STEP_THREADS + threadIdx.x); e < p.rows * p.width;
         e += (int)gridDim.x * STEP_THREADS) {
        int r = e / p.width, i = e % p.width;
        int token = p.token[r];
        if (token < 0) token = step_ranked(__ldcg(before + (-1 - token)));
        float v = step_load(p.table, p.table_is_bf16, (long long)token * p.width + i);
        if (p.place)
            v += step_load(p.place, p.place_is_bf16, (long long)p.position[r] * p.width + i);
        p.stream[e] = v;
    }
}

__device__ static inline void step_meet(const step_problem &p, unsigned &arrived) {
    __syncthreads();
    arrived += gridDim.x;
    if (threadIdx.x == 0) step_meet_blocks(p.barrier, arrived);
    __syncthreads();
}

__device__ static inline void step_note(const step_problem &p, int which) {
    if (!p.times || blockIdx.x > 0) return;
    __syncthreads();
    if (threadIdx.x == 0) p.times[which] = step_clock();
}

/* The last block to come tells the host. */
__device__ static void step_tell(const step_problem &p, unsigned arrived, int *last) {
    __syncthreads();
    if (threadIdx.x == 0) *last = step_arrive(p.barrier) + 1 == arrived + gridDim.x;
    __syncthreads();
    if (!*last) return;
    if ((int)threadIdx.x < p.rows)
        p.told[threadIdx.x] = step_ranked(__ldcg(p.picked + p.turn * STEP_ROWS + threadIdx.x));
    step_fence_host();
    __syncthreads();
    if (threadIdx.x == 0) *p.told_step = p.step;
}

template <int MT, int DQ, int DV>
__device__ static void step_run_phases(const step_problem &p, char *memory) {
    using shape = step_shape<MT>;
    step_memory m;
    m.input = (unsigned short *)(memory + shape::RING);
    m.sums = (float *)(memory + shape::RING + shape::INPUT);
    m.best = (unsigned long long *)(memory + shape::RING + shape::INPUT + shape::SUMS);
    step_phase *phases = (step_phase *)(memory + shape::BYTES);
    uint4 *keys = (uint4 *)m.input + threadIdx.x;
    step_stream s;
    int piece = __ldg(p.pieces + blockIdx.x);
    s.ring = (uint4 *)memory + threadIdx.x;
    s.from = p.weights + ((long long)piece * STEP_THREADS + threadIdx.x) * 8;
    s.left = __ldg(p.pieces + blockIdx.x + 1) - piece;
    s.at = 0;
#pragma unroll 1
    for (int i = 0; i < shape::DEPTH; i++)
        step_fetch(s, i);
    for (int i = threadIdx.x; i < p.n_phases * (int)(sizeof(step_phase) / 8); i += STEP_THREADS)
        ((unsigned long long *)phases)[i] = __ldg((const unsigned long long *)p.phases + i);
    __syncthreads();
    unsigned arrived = p.arrived;
    for (int i = 0; i < p.n_phases; i++) {
        const step_phase &f = phases[i];
        if (f.kind == STEP_JOIN && p.joins_late) continue;
        if (i > 0) step_meet(p, arrived);
        step_note(p, 2 * i);
        if (f.kind == STEP_EMBED)
            step_embed(p);
        else if (f.kind == STEP_PRODUCT)
            step_product<MT>(p, f, m, s);
        else if (f.kind == STEP_ATTEND)
            step_attend<MT, DQ, DV>(p, f, keys);
        else
            step_join(p);
        step_note(p, 2 * i + 1);
    }
    step_tell(p, arrived, (int *)m.sums);
}

#endif

/* Attention of a step where many query heads share a key head (step_kernel.cuh): a whole block has a
 * span of a row's keys, so that there are few parts to join.
 *
 * The span's leaves are dealt out to the warps in turn, each warp sums its own, and the warps' sums are
 * added in order. With many rows the first keys of the block's next span are on their way meanwhile:
 * the sums then have memory beside the ring. */
#pragma once

#include "cuda/decode/step_attend.cuh"

enum { STEP_SPAN_UNITS = 2 /* of a warp's ring */ };

template <int MT, int DQ, int DV> struct step_span {
    static constexpr int RING =
        STEP_SPAN_UNITS * step_units<MT, DQ, DV>::SIZE * STEP_THREADS * 16; /* bytes */
    static constexpr bool APART = MT > 1;                                   /* sums from the ring */
    static constexpr int ROOM = step_shape<MT>::INPUT + step_shape<MT>::SUMS - (APART ? RING : 0);
    /* Query heads that share a key head, at most: the sums are [warp, head, 32 DV]. */
    static constexpr int GROUP = ROOM / (STEP_WARPS * 32 * DV * 4);
};

/* A warp's sums to shared memory, and its largest score and sum of each head to `line`. Of eight numbers
 * beside each other the pairs are exchanged by the head, so that the lanes meet in no bank. */
template <int DQ, int DV>
__device__ static inline void
step_spread_found(const step_problem &p, const step_found<DQ, DV> &out, float *sums, float2 *line) {
    int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int h = row + 8 * e;
        if (h >= p.group) continue;
        float *to = sums + (warp * p.group + h) * 32 * DV;
#pragma unroll
        for (int d = 0; d < DV; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(float2 *)(to + 32 * d + 8 * quarter + 2 * (i ^ (row & 3))) =
                    make_float2(out.o[d][i][2 * e], out.o[d][i][2 * e + 1]);
        if (quarter == 0) line[warp * 16 + h] = make_float2(out.most[e], out.all[e]);
    }
}

/* The warps' sums as one part: a thread has four columns of a head. */
template <int DV>
__device__ static inline void step_add_found(const step_problem &p, const step_run &t,
                                             const float *sums, const float2 *line) {
    for (int e = threadIdx.x; e < p.group * 8 * DV; e += STEP_THREADS) {
        int h = e / (8 * DV), column = e % (8 * DV) * 4;
        int at = column ^ (h & 2) << 1; /* h & 1: its pairs are exchanged */
        float top = -INFINITY, all = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++)
            top = fmaxf(top, line[w * 16 + h].x);
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            float4 v = *(const float4 *)(sums + (w * p.group + h) * 32 * DV + at);
            float2 one = line[w * 16 + h];
            float factor = step_power(one.x - top);
            all = fmaf(one.y, factor, all);
            sum.x = fmaf(v.x, factor, sum.x), sum.y = fmaf(v.y, factor, sum.y);
            sum.z = fmaf(v.z, factor, sum.z), sum.w = fmaf(v.w, factor, sum.w);
        }
        float *to = p.parts + (((long long)t.r * p.heads + t.g * p.group + h) * p.runs + t.run) *
                                  (32 * DV + STEP_LINE);
        *(float4 *)(to + column) = h & 1 ? make_float4(sum.z, sum.w, sum.x, sum.y) : sum;
        if (column == 0) *(float2 *)(to + 32 * DV) = make_float2(top, all);
    }
}

/* The block's next item from `item` on that has keys. */
__device__ static inline int step_next_span(const step_problem &p, int item, int items,
                                            step_run &t) {
    while (item < items && !step_find_run(p, item, (int)threadIdx.x / 32, STEP_WARPS, t))
        item += (int)gridDim.x;
    return item;
}

template <int MT, int DQ, int DV, bool JOINT>
__device__ static void step_attend_spans(const step_problem &p, const step_phase &f, uint4 *ring,
                                         char *memory, float2 *line, int phase,
                                         const step_begun &begun) {
    using span = step_span<MT, DQ, DV>;
    constexpr int UNITS = STEP_SPAN_UNITS;
    float *sums = (float *)(memory + (span::APART ? span::RING : 0));
    int items = p.rows * p.kv_heads * p.live_runs;
    step_run t = begun.t, next = {};
    step_query<DQ> q = {};
    int item = begun.item;
    step_mark(p, phase, 1);
    if (item < items && !begun.fetched) step_fetch_first<MT, DQ, DV, UNITS, JOINT>(p, f, t, ring);
    if (item < items) step_ask_queries<DQ>(p, f, t, q, DQ != DV);
    while (item < items) {
        step_found<DQ, DV> out;
        step_sum_run<MT, DQ, DV, UNITS, JOINT>(p, f, t, ring, q, phase, out);
        step_mark(p, phase, 3);
        if (!span::APART) __syncthreads();
        step_spread_found<DQ, DV>(p, out, sums, line);
        item = step_next_span(p, item + (int)gridDim.x, items, next);
        if (span::APART && item < items)
            step_begin_run<MT, DQ, DV, UNITS, JOINT>(p, f, next, ring, q);
        __syncthreads();
        step_add_found<DV>(p, t, sums, line);
        __syncthreads();
        if (!span::APART && item < items)
            step_begin_run<MT, DQ, DV, UNITS, JOINT>(p, f, next, ring, q);
        t = next;
        step_mark(p, phase, 4);
    }
}

/* Ahead of the barrier before attention: the first item, and its first keys where none of them is of
 * this step. */
template <int MT, int DQ, int DV, bool JOINT>
__device__ static inline void step_begin_early(const step_problem &p, const step_phase &f,
                                               uint4 *ring, step_begun &begun) {
    int items = p.rows * p.kv_heads * p.live_runs;
    constexpr bool spans = step_has_spans(DQ, DV);
    if (spans)
        begun.item = step_next_span(p, (int)blockIdx.x, items, begun.t);
    else
        begun.item =
            step_next_run(p, (int)(threadIdx.x / 32 * gridDim.x + blockIdx.x), items, begun.t);
    begun.fetched = p.whole && begun.item < items && begun.t.end <= p.settled[begun.t.r];
    if (!begun.fetched) return;
    constexpr int UNITS = spans ? (int)STEP_SPAN_UNITS : step_units<MT, DQ, DV>::COUNT;
    step_fetch_first<MT, DQ, DV, UNITS, JOINT>(p, f, begun.t, ring);
}

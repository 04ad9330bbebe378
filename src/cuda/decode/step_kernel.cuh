/* A whole step of generation in one launch: every layer for up to 64 rows, one
 * block a multiprocessor.
 *
 * A step is a list of phases with a barrier across the grid between them: the
 * embedding; for each layer the product that makes queries, keys and values
 * (and writes the caches), attention over the pages, the joining of its parts,
 * the output projection and the feed-forward's two products; the head. The
 * products that add to the residual stream are split in depth, and a phase
 * behind each adds the splits and makes the norm. What a phase costs beside its
 * bytes is the barrier and one way through the L2 cache.
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
 * a ring as well, 16 keys (a page) at a time. Runs are cut at absolute
 * positions, how long they are follows from the row's own position, and they
 * are joined in order. So a row has the same bits whatever other rows there
 * are. */
#pragma once

#include "cuda/decode/step_head.cuh"
#include "cuda/decode/step_span.cuh"
#include "cuda/dependent_launch.cuh"

extern "C" {
#include "core/rope_law.h"
}

__device__ static inline float step_load(const void *from, bool is_bf16, long long at) {
    return is_bf16 ? step_widen(((const unsigned short *)from)[at]) : ((const float *)from)[at];
}

/* Cosines and sines of the rows' positions: the angle within one rotation in double, then float. */
__device__ static void step_make_rotations(const step_problem &p) {
    int half = p.dqk / 2;
    for (int e = (int)(blockIdx.x * STEP_THREADS + threadIdx.x); e < p.rows * half;
         e += (int)gridDim.x * STEP_THREADS) {
        double angle = (double)p.position[e / half] * __ldg(p.rates + e % half);
        float sine, cosine, within = (float)(angle - ROPE_TWO_PI * rint(angle / ROPE_TWO_PI));
        __sincosf(within, &sine, &cosine);
        p.rotations[e] = make_float2(cosine * p.amplitude, sine * p.amplitude);
    }
}

/* Two numbers of a row of the residual stream: a token's and its position's embeddings, or what it was
 * and the sums that are added to it, in order. */
__device__ static inline float2 step_stream_at(const step_problem &p, const step_phase &f, int r,
                                               int i) {
    if (f.kind == STEP_EMBED) {
        int token = p.token[r];
        /* A row that goes on from no token has one all the same; nobody wants what it makes. */
        if (token < 0)
            token =
                max(ranked_token(__ldcg(p.sampled + (1 - p.buffer) * STEP_ROWS + (-1 - token))), 0);
        long long from = (long long)token * p.width + i;
        float2 v = make_float2(step_load(p.table, p.table_is_bf16, from),
                               step_load(p.table, p.table_is_bf16, from + 1));
        if (!p.place) return v;
        from = (long long)p.position[r] * p.width + i;
        v.x += step_load(p.place, p.place_is_bf16, from);
        v.y += step_load(p.place, p.place_is_bf16, from + 1);
        return v;
    }
    float2 v = __ldcg((const float2 *)(p.stream + (long long)r * p.width + i));
    float2 w[STEP_SPLITS] = {};
#pragma unroll
    for (int k = 0; k < STEP_SPLITS; k++)
        if (k < f.splits)
            w[k] = __ldcg((const float2 *)(p.sums + ((long long)k * STEP_ROWS + r) * p.width + i));
#pragma unroll
    for (int k = 0; k < STEP_SPLITS; k++)
        if (k < f.splits) v.x += w[k].x, v.y += w[k].y;
    return v;
}

/* The residual stream, and its norm without gain and offset in bf16: a block a row, a thread two
 * numbers. */
template <int MT>
__device__ static void step_make_stream(const step_problem &p, const step_phase &f,
                                        const step_memory &m) {
    int i = 2 * m.thread, warp = m.thread / 32;
    bool there = i < p.width;
    if (f.kind == STEP_EMBED && p.rotated) step_make_rotations(p);
    if (f.kind == STEP_EMBED && blockIdx.x == 0 && m.thread < STEP_ROWS)
        p.sampled[p.buffer * STEP_ROWS + m.thread] = 0;
    for (int r = (int)blockIdx.x; r < p.rows; r += (int)gridDim.x) {
        float2 v = there ? step_stream_at(p, f, r, i) : make_float2(0, 0);
        if (there && p.flagged) {
            unsigned long long *to = step_stream_flags(p, 1 - m.latest, r) + i;
            step_put_flagged(to, __float_as_uint(v.x), p.flags + (unsigned)m.phase);
            step_put_flagged(to + 1, __float_as_uint(v.y), p.flags + (unsigned)m.phase);
        } else if (there) {
            *(float2 *)(p.stream + (long long)r * p.width + i) = v;
        }
        if (MT == 1) continue; /* each block makes the norm for itself */
        float2 moments = step_moments(v);
        if (m.thread % 32 == 0) m.lines[warp] = moments;
        __syncthreads();
        if (there) *(unsigned *)(p.normed + step_row_at(r, i)) = step_normed(p, m.lines, v);
        __syncthreads();
    }
}

__device__ static inline void step_meet(const step_problem &p, unsigned &arrived) {
    arrived += gridDim.x;
    if (threadIdx.x == 0) step_meet_blocks(p.barrier, arrived);
    __syncthreads();
}

__device__ static inline void step_note(const step_problem &p, int which) {
    if (!p.times || blockIdx.x > 0) return;
    __syncthreads();
    step_mark(p, which / STEP_MARKS, which % STEP_MARKS);
}

/* The last block to come tells the host. */
__device__ static void step_tell(const step_problem &p, unsigned arrived, int *last) {
    __syncthreads();
    if (threadIdx.x == 0) *last = step_arrive(p.barrier) + 1 == arrived + gridDim.x;
    __syncthreads();
    if (!*last) return;
    if ((int)threadIdx.x < p.rows)
        p.told[threadIdx.x] = ranked_token(__ldcg(p.sampled + p.buffer * STEP_ROWS + threadIdx.x));
    step_fence_host();
    __syncthreads();
    if (threadIdx.x == 0) *p.told_step = p.step;
}

enum { STEP_PHASE_WORDS = sizeof(step_phase) / 8 };

/* The thread's word of a phase. */
__device__ static inline unsigned long long step_ask_phase(const step_problem &p, int i) {
    if (threadIdx.x >= STEP_PHASE_WORDS || i >= p.n_phases) return 0;
    return __ldg((const unsigned long long *)(p.phases + i) + threadIdx.x);
}

/* What does not depend on the step before: the first weights, phases and biases. */
template <int MT>
__device__ static void step_make_ready(const step_problem &p, char *memory, step_memory &m,
                                       step_stream &s) {
    using shape = step_shape<MT>;
    int piece = __ldg(p.pieces + blockIdx.x);
    s.ring = (uint4 *)memory + threadIdx.x;
    s.from = p.weights + ((long long)piece * STEP_THREADS + threadIdx.x) * 8;
    s.left = __ldg(p.pieces + blockIdx.x + 1) - piece;
    s.at = 0;
#pragma unroll 1
    for (int i = 0; i < shape::DEPTH; i++)
        step_fetch(s, i);
    m.input = (unsigned short *)(memory + shape::RING);
    m.sums = (float *)(memory + shape::RING + shape::INPUT);
    m.lines = (float2 *)(m.sums + shape::SUMS / 4);
    m.best = (unsigned long long *)(m.lines + shape::LINES / 8);
    m.full = m.best + STEP_ROWS;
    m.parities = 0;
    m.latest = 0;
    m.stream_flag = m.hidden_flag = 0;
    m.pages = (int *)(m.full + 2);
    if (threadIdx.x < 2) step_bulk_init(m.full + threadIdx.x);
    m.phases = (step_phase *)(m.pages + STEP_ROWS);
    float *bias = (float *)(memory + shape::BYTES);
    m.bias = bias;
    if (threadIdx.x < STEP_PHASE_WORDS)
        ((unsigned long long *)m.phases)[threadIdx.x] = step_ask_phase(p, 0);
    for (int i = threadIdx.x; i < p.n_biases; i += STEP_THREADS)
        bias[i] = __ldg(p.biases + (long long)blockIdx.x * p.n_biases + i);
}

/* Whether what a phase reads comes with flags. */
__device__ __host__ static inline bool step_is_flagged(const step_problem &p, const step_phase &f) {
    return p.flagged && f.kind == STEP_PRODUCT && f.source != STEP_FROM_HEADS;
}

/* The phase behind phase i: the one that joins attention's parts and those that add splits may be left
 * out. */
__device__ __host__ static inline int step_behind(const step_problem &p, const step_phase &f,
                                                  int i) {
    bool joins = f.kind == STEP_ATTEND && p.joins_late;
    bool adds = f.kind == STEP_PRODUCT && f.target == STEP_TO_SUMS && p.whole;
    return i + (joins || adds ? 2 : 1);
}

/* Which numbers with flags are the newest behind a phase. */
__device__ static inline void step_advance_flags(const step_problem &p, const step_phase &f,
                                                 step_memory &m) {
    if (f.kind == STEP_EMBED || (f.kind == STEP_PRODUCT && f.target == STEP_TO_SUMS)) {
        m.latest = 1 - m.latest;
        m.stream_flag = p.flags + (unsigned)m.phase;
    } else if (f.kind == STEP_PRODUCT && f.target == STEP_TO_HIDDEN) {
        m.hidden_flag = p.flags + (unsigned)m.phase;
    }
}

template <int MT, int DQ, int DV, bool JOINT>
__device__ static void step_run_phases(const step_problem &p, char *memory) {
    step_memory m;
    step_stream s;
    trigger_dependents();
    step_make_ready<MT>(p, memory, m, s);
    wait_for_primary();
    uint4 *keys = (uint4 *)m.input + threadIdx.x;
    if ((int)threadIdx.x < p.rows)
        m.pages[threadIdx.x] = __ldcg(p.pages + (long long)p.slot[threadIdx.x] * p.table_pages +
                                      p.position[threadIdx.x] / 16 % p.table_pages);
    unsigned arrived = p.arrived;
    for (int i = 0, next; i < p.n_phases; i = next) {
        __syncthreads(); /* the phase is there, and nobody is in the one before */
        const step_phase &f = m.phases[i % 2];
        m.thread = (int)threadIdx.x;
        asm volatile("" : "+r"(m.thread));
        step_begun begun = {};
        next = step_behind(p, f, i);
        unsigned long long word = step_ask_phase(p, next);
        if (f.kind == STEP_ATTEND) step_begin_early<MT, DQ, DV, JOINT>(p, f, keys, begun);
        if (i > 0 && !step_is_flagged(p, f)) step_meet(p, arrived);
        m.phase = i;
        step_note(p, STEP_MARKS * i);
        if (f.kind == STEP_EMBED || f.kind == STEP_ADD)
            step_make_stream<MT>(p, f, m);
        else if (f.kind == STEP_PRODUCT && f.target == STEP_TO_LOGITS)
            step_head<MT>(p, f, m, s);
        else if (MT == 1 && f.kind == STEP_PRODUCT && f.target == STEP_TO_SUMS)
            step_product_adds(p, f, m, s);
        else if (f.kind == STEP_PRODUCT)
            step_product<MT>(p, f, m, s);
        else if (f.kind == STEP_ATTEND)
            if constexpr (step_has_spans(DQ, DV))
                step_attend_spans<MT, DQ, DV, JOINT>(p, f, keys, (char *)m.input, m.lines, i,
                                                     begun);
            else
                step_attend<MT, DQ, DV>(p, f, keys, i, begun);
        else
            step_join(p);
        step_note(p, STEP_MARKS * i + STEP_MARKS - 1);
        step_advance_flags(p, f, m);
        /* The next one's place: this one's, where one is left out. */
        if (next % 2 == i % 2) __syncthreads();
        if (threadIdx.x < STEP_PHASE_WORDS)
            ((unsigned long long *)(m.phases + next % 2))[threadIdx.x] = word;
    }
    step_tell(p, arrived, (int *)m.sums);
}

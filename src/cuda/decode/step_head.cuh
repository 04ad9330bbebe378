/* The head of a step (step_kernel.cuh): logits, and the likeliest token of each row.
 *
 * There are so many columns that each warp has tiles of its own and multiplies all of their depth: no
 * sums meet across warps, and no warp waits for another. Up to STEP_HEAD_TILES tiles are summed at
 * once, beside each other; groups of them are dealt out to all blocks first, then to their warps. */
#pragma once

#include "cuda/decode/draw.cuh"
#include "cuda/decode/step_few.cuh"

/* Tiles of a warp in the round whose first tile is `base`. */
__device__ __host__ static inline int step_head_tiles(int all, int base, int grid) {
    int each = (all - base + grid * STEP_WARPS - 1) / (grid * STEP_WARPS);
    return each < STEP_HEAD_TILES ? each : (int)STEP_HEAD_TILES;
}

/* The first tile of a warp of a block in that round. */
__device__ __host__ static inline int step_head_first(int base, int each, int grid, int block,
                                                      int warp) {
    return base + (warp * grid + block) * each;
}

/* One chunk of each of the warp's tiles. */
template <int MT>
__device__ static inline void step_head_chunk(const unsigned short *a, int each, step_stream &s,
                                              float (&c)[STEP_HEAD_TILES][MT][4]) {
    using shape = step_shape<MT>;
    int place[STEP_HEAD_TILES] = {};
    uint4 b[STEP_HEAD_TILES] = {};
    step_take_pieces<MT>(each, s, place, b);
#pragma unroll
    for (int t = 0; t < MT; t++) {
        uint4 v = *(const uint4 *)(a + 16 * t * shape::STAGE);
        uint4 w = *(const uint4 *)(a + (16 * t + 8) * shape::STAGE);
        step_words high = {{v.x, v.y, v.z, v.w}}, low = {{w.x, w.y, w.z, w.w}};
#pragma unroll
        for (int g = 0; g < STEP_HEAD_TILES; g++) {
            if (g >= each) continue;
            step_multiply(c[g][t], high, low, 0, b[g].x, b[g].y);
            step_multiply(c[g][t], high, low, 1, b[g].z, b[g].w);
            if (t == 0) step_fetch(s, place[g]);
        }
    }
}

/* Lanes lane / 4 have a row's columns: their logits to memory, and the best of them to the row's. */
template <int MT>
__device__ static inline void step_put_logits(const step_problem &p, const step_phase &f,
                                              const step_memory &m, int first, int each,
                                              const float2 (&bias)[STEP_HEAD_TILES],
                                              const float (&c)[STEP_HEAD_TILES][MT][4]) {
    int lane = m.thread % 32;
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = 16 * t + 8 * half + lane / 4;
            unsigned long long best = 0;
#pragma unroll
            for (int g = 0; g < STEP_HEAD_TILES; g++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int n = (first + g) * STEP_COLUMNS + lane % 4 * 2 + e;
                    if (g >= each || n >= f.columns || r >= p.rows) continue;
                    float v = (e ? bias[g].y : bias[g].x) + c[g][t][2 * half + e];
                    p.logits[(long long)r * p.vocab + n] = v;
                    unsigned long long rank = rank_logit(v, n);
                    best = rank > best ? rank : best;
                }
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
                unsigned long long other = __shfl_xor_sync(0xffffffffu, best, step);
                best = other > best ? other : best;
            }
            if (lane % 4 == 0 && best) atomicMax(m.best + r, best);
        }
}

__device__ static inline float step_head_bias(const step_phase &f, int n) {
    return f.bias && n < f.columns ? __ldg(f.bias + n) : 0;
}

template <int MT>
__device__ static void step_head(const step_problem &p, const step_phase &f, step_memory &m,
                                 step_stream &s) {
    int grid = (int)gridDim.x, block = (int)blockIdx.x, warp = m.thread / 32;
    int lane = m.thread % 32;
    if (m.thread < STEP_ROWS) m.best[m.thread] = 0;
    if (MT == 1) {
        step_norm_rows(p, m);
    } else if (MT > 1 && step_has_bulk()) {
        step_ask_stage<MT>(p, f, 0, f.depth, 0, m);
        step_ask_stage<MT>(p, f, 0, f.depth, 1, m);
        step_await_stage(m, 0);
        if (f.depth > step_shape<MT>::STAGE) step_await_stage(m, 1);
    } else {
        step_copy_rows<MT>(p, f, 0, f.depth, m.input);
    }
    __syncthreads();
    step_mark(p, m.phase, 1);
    for (int base = 0, each; base < f.tiles; base += each * grid * STEP_WARPS) {
        each = step_head_tiles(f.tiles, base, grid);
        if (step_head_first(base, each, grid, block, 0) >= f.tiles) break;
        int first = step_head_first(base, each, grid, block, warp);
        float c[STEP_HEAD_TILES][MT][4] = {};
        float2 bias[STEP_HEAD_TILES];
#pragma unroll
        for (int g = 0; g < STEP_HEAD_TILES; g++) {
            int n = (first + g) * STEP_COLUMNS + lane % 4 * 2;
            bias[g] = make_float2(step_head_bias(f, n), step_head_bias(f, n + 1));
        }
#pragma unroll 1
        for (int chunk = 0; chunk < f.chunks; chunk++)
            step_head_chunk<MT>(m.input +
                                    step_input_at<MT>(lane / 4, chunk * STEP_CHUNK + lane % 4 * 8),
                                each, s, c);
        step_mark(p, m.phase, 2);
        step_put_logits<MT>(p, f, m, first, each, bias, c);
        step_mark(p, m.phase, 3);
    }
    __syncthreads();
    if (m.thread < p.rows && m.best[m.thread])
        atomicMax(p.sampled + p.buffer * STEP_ROWS + m.thread, m.best[m.thread]);
    step_mark(p, m.phase, 4);
}

/* Attention of a step (step_kernel.cuh): runs of keys, a warp each, and their joining. */
#pragma once

#include "cuda/decode/step_problem.cuh"

/* Keys of a run: from the row's own position alone. */
__device__ __host__ static inline int step_run_keys(const step_problem &p, int position) {
    return position < p.short_positions ? p.run_keys[0] : p.run_keys[1];
}

/* A warp's share of a row's keys. */
struct step_run {
    int r, g, run;            /* row, key head; of the runs that are seen */
    int position, first, end; /* the keys that are seen of the run */
    int begin, step, leaves;  /* the first leaf's first key, from leaf to leaf, and how many */
    int page;                 /* of the leaves' pages, two each, the lane's */
};

__device__ static inline uint4 step_read(const unsigned short *from, bool there) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (there) v = __ldcg((const uint4 *)from);
    return v;
}

__device__ static inline float step_squares(uint4 v) {
    float a = step_low(v.x), b = step_high(v.x), c = step_low(v.y), d = step_high(v.y);
    float e = step_low(v.z), f = step_high(v.z), g = step_low(v.w), h = step_high(v.w);
    return ((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h));
}

/* The ring: units of 16 keys or values, of each lane those of tokens lane / 4
 * and + 8, numbers 32 d + 8 (lane % 4) to + 7. A leaf is two units of keys,
 * then two of values; where values are the keys (JOINT), the two of keys alone,
 * which stay until they are summed.
 *
 * Either each lane copies what it multiplies, 64 bytes of each of eight tokens at
 * a time, and waits for nobody. Or the lanes copy 512 bytes beside each other
 * (TOGETHER), and meet before they read them and before others come in their
 * place. Memory is read faster that way, by whole lines; where it is not what a
 * warp waits for, the meetings cost more. */
template <int MT, int DQ, int DV> struct step_units {
    static constexpr bool TOGETHER = MT > 1 && !step_has_spans(DQ, DV);
    static constexpr int SIZE = 2 * (DQ > DV ? DQ : DV); /* places of a unit */
    static constexpr int ROOM = step_shape<MT>::PLACES / SIZE;
    static constexpr int COUNT = MT > 1 || ROOM < 4 ? ROOM : 4;
};

template <bool JOINT> __device__ static inline int step_units_of(const step_run &t) {
    return (JOINT ? 2 : 4) * t.leaves;
}

/* Where in a place lane l finds its numbers: TOGETHER, those of odd d are exchanged, so that the lanes
 * that copy a token meet in no bank. */
template <bool TOGETHER> __device__ static inline int step_slot(int d, int lane) {
    return TOGETHER ? lane ^ (d & 1) << 2 : lane;
}

/* A unit from memory, where its 16 tokens of 32 W numbers lie together, 512 bytes beside each other at a
 * time. Of the tokens `first` to `end` - 1 are there. */
template <int W>
__device__ static inline void step_copy_together(const unsigned short *from, uint4 *to, int first,
                                                 int end) {
    constexpr int TOKENS = 8 / W; /* at a time */
    int lane = threadIdx.x % 32, token = lane / (4 * W), d = lane % (4 * W) / 4;
    from += lane * 8;
    to += d * STEP_THREADS + step_slot<true>(d, token * 4 + lane % 4) - lane;
#pragma unroll
    for (int k = 0; k < 2 * W; k++) {
        int at = k * TOKENS + token;
        step_copy_or_zero(to + k * TOKENS / 8 * W * STEP_THREADS + k * TOKENS % 8 * 4,
                          from + k * 256, at >= first && at < end);
    }
}

template <int DQ, int DV>
__device__ static inline void step_fetch_together(const step_problem &p, const step_phase &f,
                                                  const step_run &t, int unit, uint4 *to) {
    int half = unit / 4 * 2 + unit % 2; /* which 16 keys of the run */
    int page = __shfl_sync(0xffffffffu, t.page, half);
    __syncwarp();
    if (unit < step_units_of<false>(t)) {
        int key = t.begin + half / 2 * t.step + half % 2 * 16;
        if (unit % 4 >= 2)
            step_copy_together<DV>((const unsigned short *)(f.values + page * p.value_bytes) +
                                       t.g * 16 * 32 * DV,
                                   to, t.first - key, t.end - key);
        else
            step_copy_together<DQ>((const unsigned short *)(f.keys + page * p.key_bytes) +
                                       t.g * 16 * 32 * DQ,
                                   to, t.first - key, t.end - key);
    }
    step_commit();
}

template <int DQ, int DV, bool JOINT>
__device__ static inline void step_fetch_apart(const step_problem &p, const step_phase &f,
                                               const step_run &t, int unit, uint4 *to) {
    int lane = threadIdx.x % 32;
    int half = JOINT ? unit : unit / 4 * 2 + unit % 2; /* which 16 keys of the run */
    int page = __shfl_sync(0xffffffffu, t.page, half);
    if (unit < step_units_of<JOINT>(t)) {
        bool value = !JOINT && unit % 4 >= 2;
        int key = t.begin + half / 2 * t.step + half % 2 * 16 + lane / 4;
        const char *pages = value ? f.values + page * p.value_bytes : f.keys + page * p.key_bytes;
        int width = value ? 32 * DV : 32 * DQ;
        const unsigned short *from =
            (const unsigned short *)pages + (t.g * 16 + lane / 4) * width + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            bool there = key + 8 * n >= t.first && key + 8 * n < t.end;
#pragma unroll
            for (int d = 0; d < (DQ > DV ? DQ : DV); d++)
                if (d < (value ? DV : DQ))
                    step_copy_or_zero(to + (n * (value ? DV : DQ) + d) * STEP_THREADS,
                                      from + n * 8 * width + 32 * d, there);
        }
    }
    step_commit();
}

template <int MT, int DQ, int DV, bool JOINT>
__device__ static inline void step_fetch_unit(const step_problem &p, const step_phase &f,
                                              const step_run &t, int unit, uint4 *to) {
    if constexpr (step_units<MT, DQ, DV>::TOGETHER)
        step_fetch_together<DQ, DV>(p, f, t, unit, to);
    else
        step_fetch_apart<DQ, DV, JOINT>(p, f, t, unit, to);
}

/* The largest of a row's four lanes, and their sum. */
__device__ static inline float step_quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ static inline float step_quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* S = Q Kᵀ of 16 keys: c[n] has keys 8 n + 2 (lane % 4) + e % 2 of heads lane /
 * 4 + 8 (e / 2). */
template <int DQ, bool GAUSSIAN, bool TOGETHER>
__device__ static inline void step_score(const step_problem &p, const step_phase &f,
                                         const step_run &t, int first, const uint4 *keys,
                                         const step_words (&high)[DQ], const step_words (&low)[DQ],
                                         float (*c)[4], float *number) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float squares = 0;
#pragma unroll
        for (int d = 0; d < DQ; d++) {
            uint4 k = keys[(n * DQ + d) * STEP_THREADS + step_slot<TOGETHER>(d, lane) - lane];
            step_multiply(*(float(*)[4])c[n], high[d], low[d], 0, k.x, k.y);
            step_multiply(*(float(*)[4])c[n], high[d], low[d], 1, k.z, k.w);
            if (GAUSSIAN) squares += step_squares(k);
        }
        if (!GAUSSIAN) continue;
        number[n] = step_quad_sum(squares);
        int key = first + 8 * n + row;
        int behind = t.position - key;
        if (behind == 0 && quarter == 0)
            ((float *)(step_page(p, f.keys, p.key_bytes, t.r, key) +
                       p.numbers))[t.g * 16 + key % 16] = number[n];
    }
}

/* From products to exponentials under the largest of the row so far; `most` and
 * `all` move on, and what was summed before has to be multiplied by `keep`. */
template <bool GAUSSIAN>
__device__ static inline void step_weigh(const step_run &t, int leaf, const float (&scale)[2],
                                         const float (&beta)[2], const float (&number)[4],
                                         float (&c)[4][4], float (&most)[2], float (&all)[2],
                                         float (&keep)[2]) {
    int quarter = threadIdx.x % 4;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    bool whole = leaf >= t.first && leaf + STEP_LEAF <= t.end;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = leaf + 8 * n + 2 * quarter + e % 2;
            float v = c[n][e] * scale[e / 2];
            if (GAUSSIAN)
                v = fmaf(__shfl_sync(0xffffffffu, number[n], (2 * quarter + e % 2) * 4),
                         beta[e / 2], v);
            if (!whole && (key < t.first || key >= t.end)) v = -INFINITY;
            c[n][e] = v;
            top[e / 2] = fmaxf(top[e / 2], v);
        }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float now = fmaxf(most[e], step_quad_max(top[e]));
        keep[e] = step_power(most[e] - now);
        most[e] = now;
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            c[n][e] = step_power(c[n][e] - most[e / 2]);
            sum[e / 2] += c[n][e];
        }
#pragma unroll
    for (int e = 0; e < 2; e++)
        all[e] = fmaf(all[e], keep[e], step_quad_sum(sum[e]));
}

/* o += P V of 16 keys, P being words of c[0] and c[1]: o[d][i] has columns 32 d
 * + 8 (lane % 4) + 2 i + e % 2. */
template <int DV, bool TOGETHER>
__device__ static inline void step_sum_values(const uint4 *values, const float (*c)[4],
                                              float (&o)[DV][4][4]) {
    int lane = threadIdx.x % 32;
    unsigned a[4] = {step_pack(c[0][0], c[0][1]), step_pack(c[0][2], c[0][3]),
                     step_pack(c[1][0], c[1][1]), step_pack(c[1][2], c[1][3])};
#pragma unroll
    for (int d = 0; d < DV; d++) {
        int at = d * STEP_THREADS + step_slot<TOGETHER>(d, lane) - lane;
        uint4 v = values[at], w = values[DV * STEP_THREADS + at];
        step_mma(o[d][0], a[0], a[1], a[2], a[3], step_transpose(v.x), step_transpose(w.x));
        step_mma(o[d][1], a[0], a[1], a[2], a[3], step_transpose(v.y), step_transpose(w.y));
        step_mma(o[d][2], a[0], a[1], a[2], a[3], step_transpose(v.z), step_transpose(w.z));
        step_mma(o[d][3], a[0], a[1], a[2], a[3], step_transpose(v.w), step_transpose(w.w));
    }
}

template <int DQ>
__device__ static inline step_words step_read_query(const step_problem &p, const step_run &t, int h,
                                                    int d) {
    const unsigned short *q = p.query + ((long long)t.r * p.heads + t.g * p.group + h) * 32 * DQ;
    uint4 v = step_read(q + 32 * d + threadIdx.x % 4 * 8, h < p.group);
    return step_words{{v.x, v.y, v.z, v.w}};
}

template <int DV>
__device__ static void step_write_part(const step_problem &p, const step_run &t,
                                       const float (&o)[DV][4][4], const float (&most)[2],
                                       const float (&all)[2]) {
    int row = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int h = row + 8 * e;
        if (h >= p.group) continue;
        float *to = p.parts + (((long long)t.r * p.heads + t.g * p.group + h) * p.runs + t.run) *
                                  (32 * DV + STEP_LINE);
#pragma unroll
        for (int d = 0; d < DV; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(float2 *)(to + 32 * d + 8 * quarter + 2 * i) =
                    make_float2(o[d][i][2 * e], o[d][i][2 * e + 1]);
        if (quarter == 0) *(float2 *)(to + 32 * DV) = make_float2(most[e], all[e]);
    }
}

/* What a warp has of a run. */
template <int DQ, int DV> struct step_found { float o[DV][4][4], most[2], all[2]; };

template <int DQ> struct step_query {
    step_words high[DQ], low[DQ];
    float scale[2], beta[2];
};

/* The first item of a warp or block, which may have begun ahead of the barrier. */
struct step_begun {
    step_run t;
    int item;
    bool fetched;
};

/* The first units of a run on their way. */
template <int MT, int DQ, int DV, int UNITS, bool JOINT>
__device__ static inline void step_fetch_first(const step_problem &p, const step_phase &f,
                                               const step_run &t, uint4 *ring) {
    constexpr int SIZE = step_units<MT, DQ, DV>::SIZE;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        step_fetch_unit<MT, DQ, DV, JOINT>(p, f, t, u, ring + u * SIZE * STEP_THREADS);
}

/* The queries of a run. */
template <int DQ>
__device__ static inline void step_ask_queries(const step_problem &p, const step_phase &f,
                                               const step_run &t, step_query<DQ> &q,
                                               bool gaussian) {
    int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int d = 0; d < DQ; d++) {
        q.high[d] = step_read_query<DQ>(p, t, row, d);
        q.low[d] = step_read_query<DQ>(p, t, row + 8, d);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int h = row + 8 * e;
        q.scale[e] = h < p.group ? __ldg(f.scale + t.g * p.group + h) : 0;
        q.beta[e] = gaussian && h < p.group ? __ldg(f.beta + t.g * p.group + h) : 0;
    }
}

template <int MT, int DQ, int DV, int UNITS, bool JOINT>
__device__ static inline void step_begin_run(const step_problem &p, const step_phase &f,
                                             const step_run &t, uint4 *ring, step_query<DQ> &q) {
    step_fetch_first<MT, DQ, DV, UNITS, JOINT>(p, f, t, ring);
    step_ask_queries<DQ>(p, f, t, q, DQ != DV);
}

/* Sums a run that was begun. */
template <int MT, int DQ, int DV, int UNITS, bool JOINT>
__device__ static inline void step_sum_run(const step_problem &p, const step_phase &f,
                                           const step_run &t, uint4 *ring, const step_query<DQ> &q,
                                           int phase, step_found<DQ, DV> &out) {
    constexpr int SIZE = step_units<MT, DQ, DV>::SIZE;
    constexpr bool GAUSSIAN = DQ != DV; /* of means and deviations, as wide again as a value */
    constexpr bool TOGETHER = step_units<MT, DQ, DV>::TOGETHER;
    static_assert(!JOINT || (DQ == DV && UNITS == 2), "a leaf's keys are the ring");
    int place = 0;
    float c[4][4] = {}, number[4] = {};
#pragma unroll
    for (int e = 0; e < 2; e++)
        out.most[e] = -INFINITY, out.all[e] = 0;
#pragma unroll
    for (int d = 0; d < DV; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out.o[d][i][0] = out.o[d][i][1] = out.o[d][i][2] = out.o[d][i][3] = 0;
#pragma unroll 1
    for (int leaf = 0; leaf < t.leaves; leaf++) {
        int first = t.begin + leaf * t.step;
#pragma unroll
        for (int which = 0; which < 4; which++) {
            uint4 *unit = ring + place * SIZE * STEP_THREADS;
            if (!JOINT || which == 0)
                step_wait<UNITS - 1>();
            else if (which == 1)
                step_wait<UNITS - 2>(); /* nothing was asked for since */
            if (TOGETHER) __syncwarp();
            if (which == 0 && leaf == 0) step_mark(p, phase, 2);
            if (which == 0)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    c[n][0] = c[n][1] = c[n][2] = c[n][3] = number[n] = 0;
            if (which < 2)
                step_score<DQ, GAUSSIAN, TOGETHER>(p, f, t, first + 16 * which, unit, q.high, q.low,
                                                   c + 2 * which, number + 2 * which);
            if (which == 1) {
                float keep[2];
                step_weigh<GAUSSIAN>(t, first, q.scale, q.beta, number, c, out.most, out.all, keep);
#pragma unroll
                for (int d = 0; d < DV; d++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            out.o[d][i][e] *= keep[e / 2];
            }
            if (which >= 2) step_sum_values<DV, TOGETHER>(unit, c + 2 * (which - 2), out.o);
            if (!JOINT || which >= 2)
                step_fetch_unit<MT, DQ, DV, JOINT>(
                    p, f, t, JOINT ? 2 * leaf + which : 4 * leaf + which + UNITS, unit);
            place = place + 1 == UNITS ? 0 : place + 1;
        }
    }
}

/* Item `item` of a row, a key head and a run, if there are keys in it: leaves `first`, `first + every`
 * and so on of the run are the warp's. */
__device__ static inline bool step_find_run(const step_problem &p, int item, int leaf, int every,
                                            step_run &t) {
    int lane = threadIdx.x % 32;
    t.r = item / p.live_runs / p.kv_heads;
    t.g = item / p.live_runs % p.kv_heads;
    t.run = item % p.live_runs;
    t.position = p.position[t.r];
    int keys = step_run_keys(p, t.position), seen = max(0, t.position + 1 - p.context);
    int from = (t.run + seen / keys) * keys;
    t.first = max(from, seen);
    t.end = min(from + keys, t.position + 1);
    if (t.first >= t.end) return false;
    int skip = (t.first - from) / STEP_LEAF; /* leaves that are seen no more */
    leaf += (max(0, skip - leaf) + every - 1) / every * every;
    t.begin = from + leaf * STEP_LEAF;
    t.step = every * STEP_LEAF;
    t.leaves = t.begin < t.end ? (t.end - t.begin + t.step - 1) / t.step : 0;
    t.page = 0;
    int j = t.begin + lane / 2 * t.step + lane % 2 * 16;
    if (lane < 2 * t.leaves && j + 16 > t.first && j < t.end)
        t.page = __ldg(p.pages + (long long)p.slot[t.r] * p.table_pages + j / 16 % p.table_pages);
    return true;
}

/* Runs are dealt out to the warps of all blocks in turn, so that few of them
 * spread over all. */
__device__ static inline int step_next_run(const step_problem &p, int item, int items,
                                           step_run &t) {
    while (item < items && !step_find_run(p, item, 0, 1, t))
        item += (int)gridDim.x * STEP_WARPS;
    return item;
}

template <int MT, int DQ, int DV>
__device__ static void step_attend(const step_problem &p, const step_phase &f, uint4 *ring,
                                   int phase, const step_begun &begun) {
    constexpr int UNITS = step_units<MT, DQ, DV>::COUNT;
    int items = p.rows * p.kv_heads * p.live_runs, warps = (int)gridDim.x * STEP_WARPS;
    bool fetched = begun.fetched;
    step_run t = begun.t;
    for (int item = begun.item; item < items; item = step_next_run(p, item + warps, items, t)) {
        step_query<DQ> q = {};
        step_found<DQ, DV> out;
        step_mark(p, phase, 1);
        if (!fetched) step_fetch_first<MT, DQ, DV, UNITS, false>(p, f, t, ring);
        fetched = false;
        step_ask_queries<DQ>(p, f, t, q, DQ != DV);
        step_sum_run<MT, DQ, DV, UNITS, false>(p, f, t, ring, q, phase, out);
        step_mark(p, phase, 3);
        step_write_part<DV>(p, t, out.o, out.most, out.all);
        step_mark(p, phase, 4);
    }
}

/* Runs of a row. */
__device__ static inline int step_runs(const step_problem &p, int position) {
    int keys = step_run_keys(p, position), seen = max(0, position + 1 - p.context);
    return position / keys - seen / keys + 1;
}

/* Four columns of a head of a row from its runs, one after the other, as bf16.
 */
__device__ static inline uint2 step_join_few(const step_problem &p, int r, int head, int column,
                                             int runs) {
    int line = p.dv + STEP_LINE;
    const float *from = p.parts + ((long long)r * p.heads + head) * p.runs * line;
    float top = -INFINITY, all = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int j = 0; j < runs; j++)
        top = fmaxf(top, __ldcg(from + j * line + p.dv));
#pragma unroll 8
    for (int j = 0; j < runs; j++) {
        float4 v = __ldcg((const float4 *)(from + j * line + column));
        float2 w = __ldcg((const float2 *)(from + j * line + p.dv));
        float factor = step_power(w.x - top);
        all = fmaf(w.y, factor, all);
        sum.x = fmaf(v.x, factor, sum.x), sum.y = fmaf(v.y, factor, sum.y);
        sum.z = fmaf(v.z, factor, sum.z), sum.w = fmaf(v.w, factor, sum.w);
    }
    float inverse = 1 / all;
    uint2 words;
    words.x = step_pack(sum.x * inverse, sum.y * inverse);
    words.y = step_pack(sum.z * inverse, sum.w * inverse);
    return words;
}

/* Two columns of up to STEP_PARTS parts, which are read all at once. The sums are those of
 * step_join_few. */
enum { STEP_PARTS = 16 };

__device__ static inline unsigned step_join_pair(const step_problem &p, int r, int head, int column,
                                                 int runs) {
    int line = p.dv + STEP_LINE;
    const float *from = p.parts + ((long long)r * p.heads + head) * p.runs * line;
    float2 v[STEP_PARTS], w[STEP_PARTS];
#pragma unroll
    for (int j = 0; j < STEP_PARTS; j++) {
        v[j] = make_float2(0, 0), w[j] = make_float2(-INFINITY, 0);
        if (j >= runs) continue;
        w[j] = __ldcg((const float2 *)(from + j * line + p.dv));
        v[j] = __ldcg((const float2 *)(from + j * line + column));
    }
    float top = -INFINITY, all = 0, x = 0, y = 0;
#pragma unroll
    for (int j = 0; j < STEP_PARTS; j++)
        top = fmaxf(top, w[j].x);
#pragma unroll
    for (int j = 0; j < STEP_PARTS; j++) {
        if (j >= runs) continue;
        float factor = step_power(w[j].x - top);
        all = fmaf(w[j].y, factor, all);
        x = fmaf(v[j].x, factor, x), y = fmaf(v[j].y, factor, y);
    }
    float inverse = 1 / all;
    return step_pack(x * inverse, y * inverse);
}

/* The same of many runs: a warp has 16 columns, and its lanes share out the
 * runs. */
__device__ static void step_join_many(const step_problem &p, int r, int head, int piece, int runs) {
    enum { ACROSS = 4 };
    int lane = threadIdx.x % 32, column = (piece * ACROSS + lane % ACROSS) * 4;
    int line = p.dv + STEP_LINE;
    const float *from = p.parts + ((long long)r * p.heads + head) * p.runs * line;
    float top = -INFINITY, all = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int j = lane; j < runs; j += 32)
        top = fmaxf(top, __ldcg(from + (long long)j * line + p.dv));
    top = step_max(top);
#pragma unroll 8
    for (int j = lane / ACROSS; j < runs; j += 32 / ACROSS) {
        float4 v = __ldcg((const float4 *)(from + (long long)j * line + column));
        float2 w = __ldcg((const float2 *)(from + (long long)j * line + p.dv));
        float factor = step_power(w.x - top);
        all = fmaf(w.y, factor, all);
        sum.x = fmaf(v.x, factor, sum.x), sum.y = fmaf(v.y, factor, sum.y);
        sum.z = fmaf(v.z, factor, sum.z), sum.w = fmaf(v.w, factor, sum.w);
    }
#pragma unroll
    for (int step = ACROSS; step < 32; step *= 2) {
        all += __shfl_xor_sync(0xffffffffu, all, step);
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
        sum.z += __shfl_xor_sync(0xffffffffu, sum.z, step);
        sum.w += __shfl_xor_sync(0xffffffffu, sum.w, step);
    }
    if (lane >= ACROSS) return;
    float inverse = 1 / all;
    uint2 words;
    words.x = step_pack(sum.x * inverse, sum.y * inverse);
    words.y = step_pack(sum.z * inverse, sum.w * inverse);
    *(uint2 *)(p.found + step_row_at(r, head * p.dv + column)) = words;
}

__device__ static void step_join(const step_problem &p) {
    int pieces = p.dv / 16, warp = (int)(threadIdx.x / 32 * gridDim.x + blockIdx.x);
    for (int item = warp; item < p.rows * p.heads * pieces; item += (int)gridDim.x * STEP_WARPS) {
        int r = item / pieces / p.heads, runs = step_runs(p, p.position[r]);
        if (runs > STEP_FEW_RUNS)
            step_join_many(p, r, item / pieces % p.heads, item % pieces, runs);
    }
    int first = (int)(blockIdx.x * STEP_THREADS + threadIdx.x);
    for (int e = first; e < p.rows * p.heads * p.dv / 2; e += (int)gridDim.x * STEP_THREADS) {
        int head = 2 * e >> p.dv_bits, r = head / p.heads, runs = step_runs(p, p.position[r]);
        int column = 2 * e & (p.dv - 1), at = head % p.heads * p.dv + column;
        if (runs <= STEP_PARTS)
            *(unsigned *)(p.found + step_row_at(r, at)) =
                step_join_pair(p, r, head % p.heads, column, runs);
        else if (runs <= STEP_FEW_RUNS && column % 4 == 0)
            *(uint2 *)(p.found + step_row_at(r, at)) =
                step_join_few(p, r, head % p.heads, column, runs);
    }
}

/* What the kernels of attention over a cache share (cache_attention.cu): the problem, a block's place, and
 * the way from raw products to weights. */
#pragma once

#include "cuda/decode/cached.cuh"
#include "cuda/functions.cuh"

enum {
    BLOCK = WEFT_KEY_BLOCK,
    THREADS = 256,
    LANES = 8, /* that share a key */
    KEY_TILE = THREADS / LANES,
    HEADS = 4,                        /* query heads at a time */
    SPREAD = THREADS * VECTOR * HEADS /* floats that the values' sums are joined in */
};

struct attend_problem {
    row_places places;
    cached_pages keys, values;
    int heads, group, dqk, dv, context;
    int padded;        /* dqk, rounded up to whole vectors */
    int64_t q_columns; /* of a row of q */
    any_tensor q, o;
    float scale_value, band_alpha;
    float softcap;            /* to the base 2; 0: none */
    const int32_t *documents; /* [R]: a row's document begins there; NULL: with the sequence */
    const float *scale, *beta, *log_tau, *rel, *rotations; /* NULL: not there */
    const float *shares; /* [R, H]: of the heads in the weights; NULL: 1 */
    float *query_cache;  /* [slots, window, H, dqk] */
    weft_attention_pos pos;
    bool band, gaussian, squares;
    int window, rotated;
    weft_rope_law law;
    weft_weights weights;
    int blocks;     /* most of a row */
    float *partial; /* [R, H, blocks, dv + 2]: weighted values, largest score, sum */
    float *rows;    /* [R, H, 2]: largest, sum of a row, when its blocks are joined */
    float *scores;  /* [R, H, context] or NULL */
    float *weight;  /* [R, context] or NULL */
};

__device__ __host__ static inline bool copies_keys(const attend_problem &a) {
    return a.rotated > 0 || a.gaussian;
}

__device__ static inline int first_seen(const attend_problem &a, int r, int position) {
    int first = max(0, position + 1 - a.context);
    return a.documents ? max(first, a.documents[r]) : first;
}

/* Where a block works: row, key head, part of the row's keys, and the keys themselves; none where first
 * is not below end. */
struct block_place {
    int r, g, part, block, position, first, end;
};

__device__ static inline block_place place_block(const attend_problem &a) {
    block_place t = {(int)blockIdx.z, (int)blockIdx.y, (int)blockIdx.x, 0, 0, 0, 0};
    if (a.places.slot[t.r] < 0) return t;
    t.position = a.places.position[t.r];
    int seen = first_seen(a, t.r, t.position);
    t.block = seen / BLOCK + t.part;
    t.first = max(t.block * BLOCK, seen);
    t.end = min((t.block + 1) * BLOCK, t.position + 1);
    return t;
}

/* The first of the group's heads; others lie `blocks` parts behind each other. */
__device__ static inline float *partial_of(const attend_problem &a, const block_place &t) {
    int64_t head = (int64_t)t.r * a.heads + t.g * a.group;
    return a.partial + (head * a.blocks + t.part) * (a.dv + 2);
}

struct head_factors {
    float scale, beta, slope; /* to the base 2 */
};

__device__ static inline head_factors factors_of(const attend_problem &a, int head) {
    double scale = (double)a.scale_value, beta = 0;
    if (a.scale) scale = (double)a.scale[head];
    if (a.beta) beta = (double)a.beta[head];
    if (a.log_tau) {
        double tau = exp((double)a.log_tau[head]) + 1e-6;
        scale = 2 / tau;
        beta = -1 / tau;
    }
    head_factors f = {(float)(scale * (double)LOG2E), (float)(beta * (double)LOG2E), 0};
    if (a.pos == WEFT_POS_ALIBI) {
        int power = 1;
        while (power * 2 <= a.heads)
            power *= 2;
        f.slope = head < power ? exp2f(-8.0f * (float)(head + 1) / (float)power)
                               : exp2f(-4.0f * (float)(2 * (head - power) + 1) / (float)power);
        f.slope *= LOG2E;
    }
    return f;
}

/* From raw products [group, pitch] to exponentials under the largest score, and zeros behind them; that
 * score and their sum to the workspace. A warp a head. */
__device__ static inline void weigh_keys(const attend_problem &a, float *scores, int pitch,
                                         const float *n, const block_place &t, float *partial,
                                         int64_t step) {
    int lane = threadIdx.x % 32, i = t.position, first = t.first, count = t.end - t.first;
    bool number = a.keys.number || a.squares;
    for (int h = (int)threadIdx.x / 32; h < a.group; h += THREADS / 32) {
        int head = t.g * a.group + h;
        head_factors f = factors_of(a, head);
        float *s = scores + h * pitch, top = -INFINITY, sum = 0;
        for (int j = lane; j < count; j += 32) {
            float score = s[j] * f.scale;
            if (number) score = fmaf(n[j], f.beta, score);
            score -= f.slope * (float)(i - first - j);
            if (a.rel) score = fmaf(a.rel[i - first - j], LOG2E, score);
            if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
            s[j] = score;
            top = fmaxf(top, score);
        }
        top = warp_max(top);
        for (int j = lane; j < count; j += 32) {
            if (a.scores) {
                int64_t row = (int64_t)t.r * a.heads + head;
                a.scores[row * a.context + first - first_seen(a, t.r, i) + j] = s[j];
            }
            s[j] = exp2f(s[j] - top);
            sum += s[j];
        }
        for (int j = count + lane; j < BLOCK; j += 32)
            s[j] = 0;
        sum = warp_sum(sum);
        if (lane == 0) {
            partial[h * step + a.dv] = top;
            partial[h * step + a.dv + 1] = sum;
        }
    }
}

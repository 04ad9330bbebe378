/* What the routing kernels share: the attention whose weights are rebuilt, and the weight of a pair.
 *
 * A pair's weight is made by one function, with its roundings spelled out, wherever it is needed; so
 * the forward and the backward pass find the same weights bit for bit and keep the same columns. */
#pragma once

#include "cuda/attention/attention.cuh"

typedef struct {
    head_rows q, k;
    const float *n, *scale, *beta, *log_tau, *rel; /* NULL: not there */
    const float *lse;                              /* [B, H, T] */
    const int32_t *first;                          /* [B, T]: the first key seen; NULL: 0 */
    int64_t batch, queries, keys, distances;
    int heads, kv_heads, dqk;
    float scale_value, band_alpha;
    bool alibi, causal, band, use_max;
    bool vectors; /* heads of q and k are read VECTOR elements at a time */
    int64_t window, reach;
    float softcap;
} route_problem;

route_problem weft_cuda_route_problem(const weft_exec *x, const weft_node *n);

/* The message for an index that route_gather or its gradient cannot use. */
weft_status weft_cuda_explain_index(weft_exec *x, const weft_node *n, int64_t place);

/* The tensor cores' route_topk, for the nodes that weft_cuda_topk_is_fast names (cuda/choice.h). */
weft_status weft_cuda_topk_tiles(weft_exec *x, const weft_node *n);

typedef struct {
    float scale, beta, slope;
} route_head;

__device__ static inline route_head route_head_of(const route_problem &p, int h) {
    route_head out = {p.scale_value, 0, 0};
    if (p.log_tau) {
        float inverse = 1.0f / (expf(p.log_tau[h]) + 1e-6f);
        out.scale = 2 * inverse;
        out.beta = -inverse;
    }
    if (p.scale) out.scale = p.scale[h];
    if (p.beta) out.beta = p.beta[h];
    if (p.alibi) out.slope = alibi_slope(h, p.heads);
    return out;
}

/* Where query t stands among the keys: it sees those up to there. */
__device__ static inline int64_t route_place(const route_problem &p, int64_t t) {
    return p.causal ? t : p.keys + t;
}

/* The first key that query t sees. */
__device__ static inline int64_t route_first(const route_problem &p, int64_t b, int64_t t) {
    int64_t first = p.reach ? max_i64(0, route_place(p, t) + 1 - p.reach) : 0;
    return p.first ? max_i64(first, p.first[b * p.queries + t]) : first;
}

/* The same sum, term by term, whether it reads vectors or elements. */
template <typename T>
__device__ static inline float route_dot(const route_problem &p, int64_t b, int64_t query, int h,
                                         int64_t key, int key_head) {
    const T *q = (const T *)p.q.data + b * p.q.batch + query * p.q.row + h * p.q.head;
    const T *k = (const T *)p.k.data + b * p.k.batch + key * p.k.row + key_head * p.k.head;
    float sum = 0;
    if (p.vectors) {
        for (int d = 0; d < p.dqk; d += VECTOR) {
            float left[VECTOR], right[VECTOR];
            load_vector(q + d, left);
            load_vector(k + d, right);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sum = __fmaf_rn(left[i], right[i], sum);
        }
        return sum;
    }
    for (int d = 0; d < p.dqk; d++)
        sum = __fmaf_rn(to_float(q[d]), to_float(k[d]), sum);
    return sum;
}

/* R of query t and key j: the heads' weights, averaged, or the largest. */
template <typename T>
__device__ static inline float route_weight(const route_problem &p, int64_t b, int64_t t,
                                            int64_t j) {
    int64_t distance = route_place(p, t) - j;
    if (distance < 0 || j < route_first(p, b, t)) return 0;
    float total = 0;
    for (int h = 0; h < p.heads; h++) {
        int key_head = h * p.kv_heads / p.heads;
        route_head head = route_head_of(p, h);
        float score = __fmul_rn(route_dot<T>(p, b, t, h, j, key_head), head.scale);
        if (p.n) {
            float number = p.n[(b * p.kv_heads + key_head) * p.keys + j];
            score = __fmaf_rn(head.beta, number, score);
        }
        if (p.alibi) score = __fmaf_rn(-head.slope, (float)distance, score);
        if (p.rel) score = __fadd_rn(score, p.rel[distance]);
        if (p.band && distance <= p.window) {
            float back = __fmul_rn(route_dot<T>(p, b, j, h, t, key_head), head.scale);
            score = __fmaf_rn(p.band_alpha, back, score);
        }
        if (p.softcap > 0) score = __fmul_rn(p.softcap, tanhf(__fdiv_rn(score, p.softcap)));
        float weight = expf(__fadd_rn(score, -p.lse[(b * p.heads + h) * p.queries + t]));
        total = p.use_max ? fmaxf(total, weight) : __fadd_rn(total, weight);
    }
    return p.use_max || p.heads == 1 ? total : __fmul_rn(total, 1.0f / (float)p.heads);
}

/* One attention problem on the GPU, in plain numbers and pointers, and the kernels that solve it.
 *
 * plain.cu solves every problem; forward.cu and backward.cu those
 * that tensor cores can (attention_fits_flash), much faster. attention.cu makes the problem from a
 * node and chooses. ops/attention.h says what is computed. */
#pragma once

#include "cuda/kernel.cuh"

/* q, k, v, o or a gradient as rows for a sequence, a position and a head: a tensor of its own or
 * a part of a packed one. Strides in elements. */
struct head_rows {
    void *data; /* NULL: not wanted */
    int64_t batch, row, head;
};

struct attention_problem {
    int batch, queries, keys; /* B, T, S */
    int heads, kv_heads;      /* H, KV */
    int dqk, dv;
    int distances; /* numbers in rel */
    bool is_bf16, causal, band;
    weft_attention_pos pos;
    int window;
    int reach; /* keys that a query sees at most; 0: all before it */
    float scale_value, band_alpha;
    float softcap; /* 0: none */
    head_rows q, k, v, o;
    float *lse;                                    /* [B, H, T] */
    const float *n, *scale, *beta, *log_tau, *rel; /* NULL: not there */
    const int32_t *first; /* [B, T]: the first key that a query sees; NULL: 0 */
};

/* Whether queries, keys, and keys' squares are Gaussians' (ops/attention.h). */
struct gaussian_sides {
    bool q, k, n;
};

/* What the backward pass has beside it. Outputs are NULL where not wanted. */
struct attention_gradients {
    head_rows d_o, dq, dk, dv;
    float *dn, *dscale, *dbeta, *dlog_tau, *drel;
    void *workspace;
    gaussian_sides finish; /* gradients of Gaussians that the kernels are to finish */
};

/* The numbers of a head, in the exponent's base 2 where it says so. */
struct head_numbers {
    float scale, beta, slope;
    float tau_factor; /* d s / d log τ = tau_factor · (s − pos) */
};

/* weft_alibi_slope on the device. */
__device__ static inline float alibi_slope(int h, int heads) {
    int power = 1;
    while (power * 2 <= heads)
        power *= 2;
    return h < power ? exp2f(-8.0f * (float)(h + 1) / (float)power)
                     : exp2f(-4.0f * (float)(2 * (h - power) + 1) / (float)power);
}

__device__ static inline head_numbers numbers_of_head(const attention_problem &p, int h) {
    head_numbers f = {p.scale_value, 0.0f, 0.0f, 0.0f};
    if (p.scale) f.scale = p.scale[h];
    if (p.beta) f.beta = p.beta[h];
    if (p.log_tau) {
        double tau = exp((double)p.log_tau[h]), eps = 1e-6;
        f.scale = (float)(2 / (tau + eps));
        f.beta = (float)(-1 / (tau + eps));
        f.tau_factor = (float)(-tau / (tau + eps));
    }
    if (p.pos == WEFT_POS_ALIBI) f.slope = alibi_slope(h, p.heads);
    return f;
}

/* The key head of a query head, and the first query head of a key head. */
__host__ __device__ static inline int key_head_of(const attention_problem &p, int h) {
    if (p.heads == p.kv_heads) return h;
    return (int)((int64_t)h * p.kv_heads / p.heads);
}

__host__ __device__ static inline int first_head_of(const attention_problem &p, int kv) {
    if (p.heads == p.kv_heads) return kv;
    return (int)ceil_div((int64_t)kv * p.heads, p.kv_heads);
}

/* Whether some query may not see the first key. */
__host__ __device__ static inline bool hides_keys(const attention_problem &p) {
    return p.reach || p.first;
}

/* The first key that query i sees, or the last one where there are not as many; it does not fall from one
 * query to the next. */
__device__ static inline int first_key_of(const attention_problem &p, int b, int i) {
    i = min(i, p.queries - 1);
    int first = p.reach ? max(0, i + 1 - p.reach) : 0;
    return p.first ? max(first, p.first[(int64_t)b * p.queries + i]) : first;
}

/* How many queries, counted from the first, see one of the keys before `end` or none at all: those behind
 * them do not. */
__device__ static inline int queries_before(const attention_problem &p, int b, int end) {
    int low = 0, high = p.queries;
    if (!hides_keys(p)) return high;
    while (low < high) {
        int middle = (low + high) / 2;
        if (first_key_of(p, b, middle) < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

__device__ static inline int64_t row_at(const head_rows &r, int b, int position, int head) {
    return b * r.batch + position * r.row + head * r.head;
}

/* The problem of the scores `a` and of a node's inputs from WEFT_ATTN_Q on, but for o and lse. */
attention_problem attention_problem_of(const weft_exec *x, const weft_attention_attr *a,
                                       weft_tensor *const *in);

/* Every problem, on the ordinary units. */
int64_t attention_plain_back_workspace(const attention_problem &p, bool numbers, bool relative);
void attention_plain(const attention_problem &p, cudaStream_t stream);
void attention_plain_back(const attention_problem &p, const attention_gradients &g,
                          cudaStream_t stream);

/* drel from the sums of each head, [B, H, stride], in order. */
void attention_add_distances(const attention_problem &p, const attention_gradients &g,
                             const float *parts, int64_t stride, cudaStream_t stream);

/* bf16, widths that are multiples of 8 up to those of shapes.cuh, no band, a position only where
 * causal, and no more rows and heads than a launch can count. */
bool attention_fits_flash(const attention_problem &p);
int64_t flash_backward_workspace(const attention_problem &p);
/* What of Gaussians' gradients flash_backward can finish. */
gaussian_sides flash_backward_finishes(const attention_problem &p);
void flash_forward(const attention_problem &p, cudaStream_t stream);
void flash_backward(const attention_problem &p, const attention_gradients &g, cudaStream_t stream);

/* dx of the Gaussians that y [B, T, H, 2D] was made of, from dy, which may be dx itself; dn
 * [B, H, T]: of their squares; NULL: none. */
void gaussian_gradient(weft_exec *x, const weft_tensor *y, const weft_tensor *dy, float *dn,
                       const weft_tensor *dx);

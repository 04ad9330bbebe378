/* Gaussians on the GPU: some lanes per head, each a pack of means and the pack of deviations that
 * belongs to it.
 *
 * For the distance y lies over x in a model, and the gradient over dy. The means of a query are then
 * neither read nor written, and a key's are read only, for its number. Floor in halves of x, 4 of
 * which are a copy: a query 2, a key 3; backward 3 and 6. Heads are taken eight tokens at a time, so
 * that their numbers, which lie by token, fill whole sectors; and a thread fetches from two heads
 * before it computes (a key's gradient: from both halves of one), since 16 bytes of a thread are too
 * few on their way.
 *
 * Floor of the overlap: the bytes of x and y; backward those of x, dy and dx. */
#include "cuda/attention/attention.cuh"
#include "cuda/functions.cuh"
#include "cuda/pack.cuh"

#define SIGMA_FLOOR 1e-4f

enum {
    TOKENS = 8, /* of a head, side by side */
    AHEAD = 2,  /* heads of a thread, TOKENS tokens apart; or halves of one */
    BLOCKS = 5  /* to an SM */
};

/* `width` means and as many deviations a head. */
struct gaussians : head_shape {
    any_tensor x, y, dy, dx;
    float *numbers; /* [B, H, T]: one a head, or its gradient; NULL: none */
    bool means;     /* of the distance: they are looked at */
};

static gaussians gaussians_of(const weft_exec *x, const weft_tensor *of) {
    gaussians k = {head_shape_of(of)};
    k.width /= 2;
    k.x = any_of(x, of);
    return k;
}

/* The row of the first head of item `item` in the order above, `ahead` heads to an item; k.rows or
 * more behind the last. */
__device__ static inline int64_t find_head(const gaussians &k, int64_t item, int ahead) {
    int64_t tile = quotient(item, TOKENS * k.heads), rest = item - tile * TOKENS * k.heads;
    return (tile * TOKENS * ahead + rest % TOKENS) * k.heads + rest / TOKENS;
}

static int64_t head_items(const gaussians &k, int lanes, int ahead) {
    return ceil_div(k.rows, TOKENS * ahead * k.heads) * TOKENS * k.heads * lanes;
}

/* Σ of squares of a pack of means and of n deviations, these as they are stored. */
__device__ static inline float add_squares(bool is_bf16, int n, const float (&mean)[VECTOR],
                                           const float (&sigma)[VECTOR]) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < VECTOR; j += 2) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(sigma[j], sigma[j + 1]);
        float low = is_bf16 ? __low2float(pair) : sigma[j];
        float high = is_bf16 ? __high2float(pair) : sigma[j + 1];
        sum = fmaf(mean[j], mean[j], fmaf(mean[j + 1], mean[j + 1], sum));
        sum = j < n ? fmaf(low, low, sum) : sum;
        sum = j + 1 < n ? fmaf(high, high, sum) : sum;
    }
    return sum;
}

template <bool WHOLE>
static __global__ void __launch_bounds__(PACK_THREADS, WHOLE ? BLOCKS : 1)
    make_gaussians(gaussians k, int lanes) {
    if (WHOLE) k.x.is_bf16 = k.y.is_bf16 = true;
    int lane = (int)threadIdx.x & (lanes - 1);
    int64_t row = find_head(k, row_of_lane(lanes), AHEAD), next = TOKENS * k.heads;
    float sum[AHEAD] = {};
    for (int64_t column = lane * VECTOR; column < k.width; column += lanes * VECTOR) {
        int n = WHOLE ? VECTOR : pack_length(k.width, column);
        pack p[AHEAD] = {}, q[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t at = 2 * (row + i * next) * k.width + column;
            if (row + i * next >= k.rows) continue;
            if (k.means) p[i] = fetch_of<WHOLE>(k.x, at, n);
            q[i] = fetch_of<WHOLE>(k.x, at + k.width, n);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t at = 2 * (row + i * next) * k.width + column;
            if (row + i * next >= k.rows) continue;
            float mean[VECTOR], sigma[VECTOR];
            widen_pack(p[i], k.x.is_bf16, mean);
            widen_pack(q[i], k.x.is_bf16, sigma);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                sigma[j] = softplus(sigma[j]);
            if (k.y.data != k.x.data) store_of<WHOLE>(k.y, at, n, mean);
            store_of<WHOLE>(k.y, at + k.width, n, sigma);
            if (k.numbers) sum[i] += add_squares(k.y.is_bf16, n, mean, sigma);
        }
    }
    if (!k.numbers) return;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        sum[i] = lanes_sum(sum[i], lanes);
        if (lane == 0 && row + i * next < k.rows) k.numbers[number_at(k, row + i * next)] = sum[i];
    }
}

CUDA_RUN(gaussian) {
    gaussians k = gaussians_of(x, n->in[0]);
    int lanes = lanes_of_row(k.width);
    k.y = any_of(x, n->out[0]);
    k.numbers = n->n_out > 1 ? data_of<float>(x, n->out[1]) : NULL;
    k.means = k.numbers || k.y.data != k.x.data;
    bool whole = k.x.is_bf16 && k.width % VECTOR == 0;
    return run_items(x, n, head_items(k, lanes, AHEAD),
                     whole ? make_gaussians<true> : make_gaussians<false>, k, lanes);
}

static_assert(AHEAD == 2, "a head has two halves");

/* dx = dy + 2 dn y, of deviations times the slope. A thread takes both halves of a head, or, where
 * means are not looked at, the deviations of AHEAD.
 * dx may lie over dy or y: a thread reads before it writes. */
template <bool WHOLE>
static __global__ void __launch_bounds__(PACK_THREADS, WHOLE ? BLOCKS : 1)
    make_gaussians_back(gaussians k, int lanes) {
    if (WHOLE) k.y.is_bf16 = k.dy.is_bf16 = k.dx.is_bf16 = true;
    int lane = (int)threadIdx.x & (lanes - 1);
    int64_t first = find_head(k, row_of_lane(lanes), k.means ? 1 : AHEAD);
    int64_t next = k.means ? 0 : TOKENS * k.heads;
    float twice = k.numbers && first < k.rows ? 2 * k.numbers[number_at(k, first)] : 0.0f;
    for (int64_t column = lane * VECTOR; column < k.width; column += lanes * VECTOR) {
        int n = WHOLE ? VECTOR : pack_length(k.width, column);
        pack p[AHEAD] = {}, q[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t row = first + i * next, half = k.means ? i : 1;
            int64_t at = (2 * row + half) * k.width + column;
            if (row >= k.rows) continue;
            p[i] = fetch_of<WHOLE>(k.y, at, n);
            if (k.dy.data) q[i] = fetch_of<WHOLE>(k.dy, at, n);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t row = first + i * next, half = k.means ? i : 1;
            if (row >= k.rows) continue;
            float y[VECTOR], dy[VECTOR];
            widen_pack(p[i], k.y.is_bf16, y);
            widen_pack(q[i], k.dy.is_bf16, dy);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                dy[j] = fmaf(twice, y[j], dy[j]);
                if (half) dy[j] *= slope_at(y[j]);
            }
            store_of<WHOLE>(k.dx, (2 * row + half) * k.width + column, n, dy);
        }
    }
}

void gaussian_gradient(weft_exec *x, const weft_tensor *y, const weft_tensor *dy, float *dn,
                       const weft_tensor *dx) {
    gaussians k = gaussians_of(x, y);
    int lanes = lanes_of_row(k.width);
    k.y = k.x;
    k.dy = any_of(x, dy);
    k.numbers = dn;
    k.dx = any_of(x, dx);
    k.means = k.numbers || k.dx.data != k.dy.data;
    unsigned blocks = pack_grid(head_items(k, lanes, k.means ? 1 : AHEAD));
    auto kernel = are_whole(k.width, k.y, k.dx, k.dy) ? make_gaussians_back<true>
                                                      : make_gaussians_back<false>;
    kernel<<<blocks, PACK_THREADS, 0, stream_of(x)>>>(k, lanes);
}

CUDA_RUN(gaussian_back) {
    gaussian_gradient(x, n->in[0], n->in[1], data_of<float>(x, n->in[2]), n->out[0]);
    return launched(n);
}

static __global__ void scale_overlap(gaussians k, int lanes) {
    int lane = (int)threadIdx.x & (lanes - 1);
    int64_t row = row_of_lane(lanes);
    float sum = 0;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int n = pack_length(k.width, column);
        int64_t at = 2 * row * k.width + column;
        pack p = fetch_pack(k.x, at, n), q = fetch_pack(k.x, at + k.width, n);
        float mean[VECTOR], rho[VECTOR];
        widen_pack(p, k.x.is_bf16, mean);
        widen_pack(q, k.x.is_bf16, rho);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float sigma = softplus(rho[j]) + SIGMA_FLOOR;
            mean[j] *= rsqrtf(sigma);
            sum += j < n ? __logf(sigma) : 0.0f;
        }
        store_pack(k.y, row * k.width + column, n, mean);
    }
    sum = lanes_sum(sum, lanes);
    if (lane == 0 && row < k.rows) k.numbers[number_at(k, row)] = sum;
}

CUDA_RUN(overlap) {
    gaussians k = gaussians_of(x, n->in[0]);
    int lanes = lanes_of_row(k.width);
    k.y = any_of(x, n->out[0]);
    k.numbers = data_of<float>(x, n->out[1]);
    return run_items(x, n, k.rows * lanes, scale_overlap, k, lanes);
}

/* A thread a pack of means and its deviations. dx may lie over x: both are read first. */
static __global__ void scale_overlap_back(gaussians k) {
    auto [row, column, n] = place_pack(k.width);
    if (row >= k.rows) return;
    int64_t at = 2 * row * k.width + column;
    pack p = fetch_pack(k.x, at, n), q = fetch_pack(k.x, at + k.width, n), r = {};
    if (k.dy.data) r = fetch_pack(k.dy, row * k.width + column, n);
    float mean[VECTOR], rho[VECTOR], dy[VECTOR];
    float d_log = k.numbers ? k.numbers[number_at(k, row)] : 0.0f;
    widen_pack(p, k.x.is_bf16, mean);
    widen_pack(q, k.x.is_bf16, rho);
    widen_pack(r, k.dy.is_bf16, dy);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float plus = softplus(rho[j]), inverse = rsqrtf(plus + SIGMA_FLOOR);
        float d_sigma = (d_log - 0.5f * dy[j] * (mean[j] * inverse)) * (inverse * inverse);
        rho[j] = d_sigma * slope_at(plus);
        mean[j] = dy[j] * inverse;
    }
    store_pack(k.dx, at, n, mean);
    store_pack(k.dx, at + k.width, n, rho);
}

CUDA_RUN(overlap_back) {
    gaussians k = gaussians_of(x, n->in[0]);
    k.dy = any_of(x, n->in[1]);
    k.numbers = data_of<float>(x, n->in[2]);
    k.dx = any_of(x, n->out[0]);
    return run_items(x, n, count_packs(k.rows, k.width), scale_overlap_back, k);
}

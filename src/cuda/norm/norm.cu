/* LayerNorm and RMSNorm on the GPU. Floor, forward: the bytes of x (and r), y (and s); backward
 * (norm_back.cu): those of dy, s (and ds), dx. The statistics and the gradients of w and b are small
 * beside them.
 *
 * The variance is summed around the mean, since Σs² − (Σs)² loses everything where the mean is
 * large. Three kernels each way, by type and width alone:
 *
 *   warp    bf16, whole packs, at most LANE_PACKS of them a lane: a warp per row, which stays in
 *           registers; the row after it is under way meanwhile, and no warp waits for another.
 *   narrow  up to NARROW columns: a thread has a pack of columns, a block some rows at a time; the
 *           sums of all its rows go through one exchange between the warps.
 *   wide    a block per row, which is read again for each sum: from the first cache. */
#include "cuda/norm/norm.cuh"

enum {
    WARP_ROWS = 4, /* warps of a block */
    ROWS = 4       /* rows at a time */
};

__device__ static inline void store_statistics(const norm_args &a, int64_t place, float mean,
                                               float rstd) {
    a.rstd[place] = rstd;
    if (a.mean) a.mean[place] = mean;
}

/* s = x + r, which is stored. */
__device__ static inline void sum_residual(const norm_args &a, const pack &x, const pack &r,
                                           int64_t at, int n, float (&s)[VECTOR]) {
    widen_pack(x, a.x.is_bf16, s);
    if (!a.r.data) return;
    float other[VECTOR];
    widen_pack(r, a.r.is_bf16, other);
    add_vector(s, other);
    store_pack(a.s, at, n, s);
}

/* s of a row, stored where it is a sum, and Σs. */
template <int PACKS>
__device__ static inline float add_residual(const norm_args &a, int64_t start,
                                            const lane_row<PACKS> &x, const lane_row<PACKS> &r,
                                            float (&s)[PACKS][VECTOR]) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        widen_words(x.pack[k], s[k]);
        if (a.r.data) {
            float other[VECTOR];
            widen_words(r.pack[k], other);
            add_vector(s[k], other);
            store_row(a, a.s, start, k, s[k]);
        }
        sum = add_elements(sum, s[k]);
    }
    return sum;
}

/* Blocks of a multiprocessor: what a lane holds must fit its registers. */
static __host__ __device__ constexpr int row_blocks(int packs) {
    return packs < 2 ? 8 : packs < 4 ? 4 : 2;
}

template <int PACKS>
static __global__ void __launch_bounds__(WARP_ROWS * 32, row_blocks(PACKS))
    norm_warp_rows(norm_args a) {
    int64_t row = (int64_t)blockIdx.x * WARP_ROWS + threadIdx.x / 32;
    int64_t step = (int64_t)gridDim.x * WARP_ROWS;
    float w[PACKS][VECTOR], b[PACKS][VECTOR];
    lane_row<PACKS> x = {}, r = {};
    follow_primary();
    if (row >= a.rows) return;
    fetch_row(a, a.x, lane_start(a, place_of(a, row)), x);
    if (a.r.data) fetch_row(a, a.r, lane_start(a, place_of(a, row)), r);
    load_columns(a, a.w, w);
    load_columns(a, a.b, b);
    for (; row < a.rows; row += step) {
        int64_t place = place_of(a, row), start = lane_start(a, place);
        float s[PACKS][VECTOR], square = 0;
        float mean = add_residual(a, start, x, r, s);
        if (row + step < a.rows) {
            int64_t next = lane_start(a, place_of(a, row + step));
            fetch_row(a, a.x, next, x);
            if (a.r.data) fetch_row(a, a.r, next, r);
        }
        mean = a.centered ? warp_sum(mean) * a.share : 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (lane_has(a, k))
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    square += (s[k][j] - mean) * (s[k][j] - mean);
        float rstd = rsqrtf(warp_sum(square) * a.share + a.eps);
        if (threadIdx.x % 32 == 0) store_statistics(a, place, mean, rstd);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                s[k][j] = (s[k][j] - mean) * rstd * w[k][j] + b[k][j];
            store_row(a, a.y, start, k, s[k]);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) norm_rows(norm_args a) {
    __shared__ float shared[2][ROWS * THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * ROWS, column = threadIdx.x * VECTOR;
    int n = pack_length(a.width, column);
    pack x[ROWS], r[ROWS];
    float s[ROWS][VECTOR], mean[ROWS], square[ROWS], w[VECTOR], b[VECTOR] = {0};
    follow_primary();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool there = n > 0 && first + i < a.rows;
        int64_t at = place_of(a, first + i) * a.width + column;
        x[i] = there ? fetch_pack(a.x, at, n) : pack{};
        r[i] = there && a.r.data ? fetch_pack(a.r, at, n) : pack{};
    }
    load_pack(a.w, column, n, w);
    if (a.b.data) load_pack(a.b, column, n, b);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool there = n > 0 && first + i < a.rows;
        sum_residual(a, x[i], r[i], place_of(a, first + i) * a.width + column, there ? n : 0, s[i]);
        mean[i] = add_elements(0, s[i]);
    }
    if (a.centered) sum_over_block(mean, shared[0]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        mean[i] = a.centered ? mean[i] * a.share : 0.0f;
        square[i] = 0;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float d = j < n ? s[i][j] - mean[i] : 0.0f;
            square[i] += d * d;
        }
    }
    sum_over_block(square, shared[1]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (first + i >= a.rows) break;
        float rstd = rsqrtf(square[i] * a.share + a.eps), y[VECTOR];
        int64_t place = place_of(a, first + i);
        if (threadIdx.x == 0) store_statistics(a, place, mean[i], rstd);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            y[j] = (s[i][j] - mean[i]) * rstd * w[j] + b[j];
        if (n > 0) store_pack(a.y, place * a.width + column, n, y);
    }
}

/* A block a row. Where r is given s is written first and read from then on: y may lie over r. */
static __global__ void __launch_bounds__(THREADS) norm_wide_row(norm_args a) {
    __shared__ float shared[2][THREADS / 32];
    int64_t row = place_of(a, blockIdx.x), start = row * a.width;
    float mean[1] = {0}, square[1] = {0}, v[VECTOR], w[VECTOR], b[VECTOR] = {0};
    any_tensor from = a.r.data ? a.s : a.x;
    follow_primary();
    for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
        int n = pack_length(a.width, column);
        int64_t at = start + column;
        sum_residual(a, fetch_pack(a.x, at, n), a.r.data ? fetch_pack(a.r, at, n) : pack{}, at, n,
                     v);
        mean[0] = add_elements(mean[0], v);
    }
    sum_over_block(mean, shared[0]);
    mean[0] = a.centered ? mean[0] * a.share : 0.0f;
    for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
        int n = pack_length(a.width, column);
        load_pack(from, start + column, n, v);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            square[0] += j < n ? (v[j] - mean[0]) * (v[j] - mean[0]) : 0.0f;
    }
    sum_over_block(square, shared[1]);
    float rstd = rsqrtf(square[0] * a.share + a.eps);
    if (threadIdx.x == 0) store_statistics(a, row, mean[0], rstd);
    for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
        int n = pack_length(a.width, column);
        load_pack(from, start + column, n, v);
        load_pack(a.w, column, n, w);
        if (a.b.data) load_pack(a.b, column, n, b);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[j] = (v[j] - mean[0]) * rstd * w[j] + b[j];
        store_pack(a.y, start + column, n, v);
    }
}

CUDA_RUN(norm) {
    const weft_norm_attr *attr = ATTR(n, weft_norm_attr);
    norm_args a = {};
    a.width = weft_tensor_width(n->in[WEFT_NORM_X]);
    a.share = (float)(1.0 / (double)a.width);
    a.centered = attr->kind == WEFT_LAYERNORM;
    a.eps = (float)attr->eps;
    a.x = any_of(x, n->in[WEFT_NORM_X]);
    a.r = any_of(x, n->in[WEFT_NORM_R]);
    a.b = any_of(x, n->in[WEFT_NORM_B]);
    a.y = any_of(x, n->out[WEFT_NORM_Y]);
    a.s = any_of(x, n->out[WEFT_NORM_S]);
    a.mean = data_of<float>(x, n->out[WEFT_NORM_MEAN]);
    a.rstd = data_of<float>(x, n->out[WEFT_NORM_RSTD]);
    int packs = lane_packs(a.width, {n->in[WEFT_NORM_X], n->in[WEFT_NORM_R], n->out[WEFT_NORM_Y],
                                     n->out[WEFT_NORM_S]});
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        a.group = weft_norm_group_of(attr, n->in[WEFT_NORM_X], group);
        a.rows = a.group.rows;
        a.w = any_of(x, n->in[group ? WEFT_NORM_W_NEXT : WEFT_NORM_W]);
        if (a.rows == 0) continue;
        if (packs)
            with_constant<1, 2, 3, LANE_PACKS>(packs, [&](auto tag) {
                constexpr int value = decltype(tag)::value;
                int64_t blocks =
                    min_i64(row_blocks(value) * multiprocessors(), ceil_div(a.rows, WARP_ROWS));
                launch_following(follows(x), stream_of(x), dim3((unsigned)blocks), WARP_ROWS * 32,
                                 0, norm_warp_rows<value>, a);
            });
        else if (a.width <= NARROW)
            launch_following(follows(x), stream_of(x), dim3((unsigned)ceil_div(a.rows, ROWS)),
                             (unsigned)row_threads(a.width), 0, norm_rows, a);
        else
            launch_following(follows(x), stream_of(x), dim3((unsigned)a.rows), THREADS, 0,
                             norm_wide_row, a);
    }
    launch_rest(x, n, n->in[WEFT_NORM_X], n->in[WEFT_NORM_X], n->out[WEFT_NORM_Y]);
    return launched(n);
}

/* LayerNorm and RMSNorm on the GPU. Floor, forward: the bytes of x (and r), y (and s); backward:
 * those of dy, s (and ds), dx. The statistics and the gradients of w and b are small beside them.
 *
 * The variance is summed around the mean, since Σs² − (Σs)² loses everything where the mean is
 * large. Three kernels each way, by type and width alone:
 *
 *   warp    bf16, whole packs, at most LANE_PACKS of them a lane: a warp a row, which stays in
 *           registers; the row after it is under way meanwhile, and no warp waits for another.
 *   narrow  up to NARROW columns: a thread has a pack of columns, a block some rows at a time; the
 *           sums of all its rows go through one exchange between the warps.
 *   wide    a block a row, which is read again for each sum: from the first cache.
 *
 * Backward a thread keeps its columns' share of dw and db in registers over the rows it walks; the
 * blocks' shares are added in their order in double. Which rows a block has follows from the
 * shape. */
#include "cuda/pack.cuh"

#include <initializer_list>

extern "C" {
#include "ops/norm.h"
}

enum {
    LANE_PACKS = 4,            /* of a row that a lane holds */
    WARP_ROWS = 8,             /* warps of a block, forward */
    BACK_WARPS = 8,            /* and backward, which fill a multiprocessor's registers */
    WARP_BLOCKS = 132,         /* multiprocessors */
    THREADS = 256,             /* of a block, at most */
    NARROW = VECTOR * THREADS, /* columns that stay in registers */
    ROWS = 4,                  /* rows at a time, forward */
    BACK_ROWS = 2,             /* and backward */
    BLOCKS_MAX = 528,          /* ranges of rows, backward: four for each multiprocessor */
    JOIN = 32                  /* columns and slices of a block that joins the ranges */
};

struct norm_args {
    int64_t rows, width;
    bool centered;    /* LayerNorm */
    float eps, share; /* share: 1 / width */
    any_tensor x, r, w, b, y, s;
    float *mean, *rstd;
    /* back */
    any_tensor dy, ds, dx;
    int64_t range;  /* rows of a block */
    float *partial; /* [blocks, 2, width]: sums of dy·h, and of dy; NULL: not wanted */
};

/* Σ of each of K numbers over the block, in the same order always. `shared` has K·8 floats, and
 * may not be used again before the next barrier. */
template <int K> __device__ static inline void sum_over_block(float (&v)[K], float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int k = 0; k < K; k++)
        v[k] = warp_sum(v[k]);
    if (warps == 1) return;
    if (lane == 0)
#pragma unroll
        for (int k = 0; k < K; k++)
            shared[warp * K + k] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++)
        v[k] = 0;
    for (int w = 0; w < warps; w++)
#pragma unroll
        for (int k = 0; k < K; k++)
            v[k] += shared[w * K + k];
}

/* s = x + r, which is stored. */
__device__ static inline void sum_residual(const norm_args &a, const pack &x, const pack &r,
                                           int64_t at, int n, float (&s)[VECTOR]) {
    widen_pack(x, a.x.is_bf16, s);
    if (!a.r.data) return;
    float other[VECTOR];
    widen_pack(r, a.r.is_bf16, other);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        s[i] += other[i];
    store_pack(a.s, at, n, s);
}

/* A row of bf16 as it lies in memory: pack k of a lane is the row's pack 32·k + lane. Those behind
 * the row's end are never touched: they stay what they were. */
template <int PACKS> struct lane_row { uint4 pack[PACKS]; };

/* Where a lane's first pack is, in elements; the next are LANE_STEP behind each other. */
enum { LANE_STEP = 32 * VECTOR };

__device__ static inline int64_t lane_start(const norm_args &a, int64_t row) {
    return row * a.width + (int)threadIdx.x % 32 * VECTOR;
}

__device__ static inline bool lane_has(const norm_args &a, int k) {
    return k * LANE_STEP + (int)threadIdx.x % 32 * VECTOR < (int)a.width;
}

template <int PACKS>
__device__ static inline void fetch_row(const norm_args &a, any_tensor t, int64_t start,
                                        lane_row<PACKS> &to) {
    const bf16 *from = (const bf16 *)t.data + start;
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if (lane_has(a, k)) to.pack[k] = *(const uint4 *)(from + k * LANE_STEP);
}

__device__ static inline void store_row(const norm_args &a, any_tensor t, int64_t start, int k,
                                        const float (&v)[VECTOR]) {
    if (lane_has(a, k)) store_vector((bf16 *)(void *)t.data + start + k * LANE_STEP, v);
}

/* A lane's columns of w or b; zeros where there is none. */
template <int PACKS>
__device__ static inline void load_columns(const norm_args &a, any_tensor t,
                                           float (&v)[PACKS][VECTOR]) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t column = lane_start(a, 0) + k * LANE_STEP;
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[k][j] = 0;
        if (!t.data || !lane_has(a, k)) continue;
        if (t.is_bf16)
            load_vector((const bf16 *)t.data + column, v[k]);
        else
            load_vector((const float *)t.data + column, v[k]);
    }
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
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                s[k][j] += other[j];
            store_row(a, a.s, start, k, s[k]);
        }
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            sum += s[k][j];
    }
    return sum;
}

/* Σ(s − mean)² of a row. */
template <int PACKS>
__device__ static inline float sum_deviations(const norm_args &a, const float (&s)[PACKS][VECTOR],
                                              float mean) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if (lane_has(a, k))
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                sum += (s[k][j] - mean) * (s[k][j] - mean);
    return sum;
}

/* Blocks of a multiprocessor: what a lane holds must fit its registers. */
static __host__ __device__ constexpr int row_blocks(int packs) {
    return packs < 2 ? 4 : packs < 4 ? 2 : 1;
}

template <int PACKS>
static __global__ void __launch_bounds__(WARP_ROWS * 32, row_blocks(PACKS))
    norm_warp_rows(norm_args a) {
    int64_t row = (int64_t)blockIdx.x * WARP_ROWS + threadIdx.x / 32;
    int64_t step = (int64_t)gridDim.x * WARP_ROWS;
    float w[PACKS][VECTOR], b[PACKS][VECTOR];
    lane_row<PACKS> x = {}, r = {};
    if (row >= a.rows) return;
    fetch_row(a, a.x, lane_start(a, row), x);
    if (a.r.data) fetch_row(a, a.r, lane_start(a, row), r);
    load_columns(a, a.w, w);
    load_columns(a, a.b, b);
    for (; row < a.rows; row += step) {
        int64_t start = lane_start(a, row), next = start + step * a.width;
        float s[PACKS][VECTOR];
        float mean = add_residual(a, start, x, r, s);
        if (row + step < a.rows) {
            fetch_row(a, a.x, next, x);
            if (a.r.data) fetch_row(a, a.r, next, r);
        }
        mean = a.centered ? warp_sum(mean) * a.share : 0.0f;
        float rstd = rsqrtf(warp_sum(sum_deviations(a, s, mean)) * a.share + a.eps);
        if (threadIdx.x % 32 == 0) {
            a.rstd[row] = rstd;
            if (a.mean) a.mean[row] = mean;
        }
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
    float s[ROWS][VECTOR], mean[ROWS], square[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool there = n > 0 && first + i < a.rows;
        int64_t at = (first + i) * a.width + column;
        x[i] = there ? fetch_pack(a.x, at, n) : pack{};
        r[i] = there && a.r.data ? fetch_pack(a.r, at, n) : pack{};
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool there = n > 0 && first + i < a.rows;
        sum_residual(a, x[i], r[i], (first + i) * a.width + column, there ? n : 0, s[i]);
        mean[i] = 0;
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            mean[i] += s[i][j];
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
    float w[VECTOR], b[VECTOR] = {0};
    load_pack(a.w, column, n, w);
    if (a.b.data) load_pack(a.b, column, n, b);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (first + i >= a.rows) break;
        float rstd = rsqrtf(square[i] * a.share + a.eps), y[VECTOR];
        if (threadIdx.x == 0) {
            a.rstd[first + i] = rstd;
            if (a.mean) a.mean[first + i] = mean[i];
        }
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            y[j] = (s[i][j] - mean[i]) * rstd * w[j] + b[j];
        if (n > 0) store_pack(a.y, (first + i) * a.width + column, n, y);
    }
}

/* A block a row. Where r is given s is written first and read from then on: y may lie over r. */
static __global__ void __launch_bounds__(THREADS) norm_wide_row(norm_args a) {
    __shared__ float shared[2][THREADS / 32];
    int64_t row = blockIdx.x, start = row * a.width;
    float mean[1] = {0}, square[1] = {0}, v[VECTOR], w[VECTOR], b[VECTOR] = {0};
    any_tensor from = a.r.data ? a.s : a.x;
    for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
        int n = pack_length(a.width, column);
        int64_t at = start + column;
        sum_residual(a, fetch_pack(a.x, at, n), a.r.data ? fetch_pack(a.r, at, n) : pack{}, at, n,
                     v);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            mean[0] += v[j];
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
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (a.mean) a.mean[row] = mean[0];
    }
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

/* Packs a lane holds of a row, where all these tensors are bf16; 0: not a warp's. */
static int lane_packs(int64_t width, std::initializer_list<const weft_tensor *> tensors) {
    if (width % VECTOR != 0 || width > LANE_PACKS * 32 * VECTOR) return 0;
    for (const weft_tensor *t : tensors)
        if (t && t->dtype != WEFT_BF16) return 0;
    return (int)ceil_div(width, 32 * VECTOR);
}

/* Calls f with PACKS as a constant: f(packs<3>()). */
template <int N> struct packs { static constexpr int value = N; };

template <typename F> static void with_packs(int n, F f) {
    static_assert(LANE_PACKS == 4, "a case for each");
    if (n == 1)
        f(packs<1>());
    else if (n == 2)
        f(packs<2>());
    else if (n == 3)
        f(packs<3>());
    else
        f(packs<4>());
}

/* Threads for rows of that width: whole warps, a pack each. */
static int row_threads(int64_t width) {
    return (int)min_i64(THREADS, ceil_div(ceil_div(width, VECTOR), 32) * 32);
}

static weft_status norm_run(weft_exec *x, const weft_node *n) {
    const weft_norm_attr *attr = ATTR(n, weft_norm_attr);
    norm_args a = {};
    a.rows = weft_tensor_rows(n->in[WEFT_NORM_X]);
    a.width = weft_tensor_width(n->in[WEFT_NORM_X]);
    a.share = (float)(1.0 / (double)a.width);
    a.centered = attr->kind == WEFT_LAYERNORM;
    a.eps = (float)attr->eps;
    a.x = any_of(x, n->in[WEFT_NORM_X]);
    a.r = any_of(x, n->in[WEFT_NORM_R]);
    a.w = any_of(x, n->in[WEFT_NORM_W]);
    a.b = any_of(x, n->in[WEFT_NORM_B]);
    a.y = any_of(x, n->out[WEFT_NORM_Y]);
    a.s = any_of(x, n->out[WEFT_NORM_S]);
    a.mean = data_of<float>(x, n->out[WEFT_NORM_MEAN]);
    a.rstd = data_of<float>(x, n->out[WEFT_NORM_RSTD]);
    int packs = lane_packs(a.width, {n->in[WEFT_NORM_X], n->in[WEFT_NORM_R], n->out[WEFT_NORM_Y],
                                     n->out[WEFT_NORM_S]});
    if (packs)
        with_packs(packs, [&](auto tag) {
            constexpr int value = decltype(tag)::value;
            int64_t blocks = min_i64(row_blocks(value) * WARP_BLOCKS, ceil_div(a.rows, WARP_ROWS));
            norm_warp_rows<value><<<(unsigned)blocks, WARP_ROWS * 32, 0, stream_of(x)>>>(a);
        });
    else if (a.width <= NARROW)
        norm_rows<<<(unsigned)ceil_div(a.rows, ROWS), row_threads(a.width), 0, stream_of(x)>>>(a);
    else
        norm_wide_row<<<(unsigned)a.rows, THREADS, 0, stream_of(x)>>>(a);
    return launched(n);
}

CUDA_KERNEL(norm, norm_run)

/* A row's gradient is rstd·g − c1 − d·c2 with g = dy·w, d = s − mean, c1 = rstd·mean(g)
 * (LayerNorm), c2 = rstd³·mean(g·d). */
struct row_factors {
    float mean, rstd, c1, c2;
};

__device__ static inline void back_sums(const float (&dy)[VECTOR], const float (&s)[VECTOR],
                                        const float (&w)[VECTOR], float mean, float &g_sum,
                                        float &gd_sum) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float g = dy[j] * w[j]; /* 0 behind a row's end, where w is */
        g_sum += g;
        gd_sum += g * (s[j] - mean);
    }
}

__device__ static inline row_factors factors_of(const norm_args &a, float rstd, float mean,
                                                float g_sum, float gd_sum) {
    float share = rstd * a.share;
    return row_factors{mean, rstd, a.centered ? g_sum * share : 0.0f, gd_sum * share * rstd * rstd};
}

/* dx in place of `dx`, which comes in as ds, and the row's share of dw and db. */
__device__ static inline void back_row(const row_factors &f, const float (&dy)[VECTOR],
                                       const float (&s)[VECTOR], const float (&w)[VECTOR],
                                       float (&dx)[VECTOR], float (&dw)[VECTOR],
                                       float (&db)[VECTOR]) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float d = s[j] - f.mean, scaled = dy[j] * f.rstd;
        dw[j] += scaled * d;
        db[j] += dy[j];
        dx[j] += scaled * w[j] - f.c1 - d * f.c2;
    }
}

__device__ static inline void store_partial(const norm_args &a, int64_t column, int n,
                                            const float (&dw)[VECTOR], const float (&db)[VECTOR]) {
    any_tensor to = {a.partial, false};
    int64_t at = 2 * (int64_t)blockIdx.x * a.width + column;
    store_pack(to, at, n, dw);
    store_pack(to, at + a.width, n, db);
}

template <int PACKS> struct back_rows {
    lane_row<PACKS> dy, s, ds;
    float mean, rstd;
};

template <int PACKS>
__device__ static inline void fetch_back(const norm_args &a, int64_t row, back_rows<PACKS> &to) {
    int64_t start = lane_start(a, row);
    fetch_row(a, a.dy, start, to.dy);
    fetch_row(a, a.s, start, to.s);
    if (a.ds.data) fetch_row(a, a.ds, start, to.ds);
    to.rstd = a.rstd[row];
    if (a.mean) to.mean = a.mean[row];
}

/* The warps' shares of dw and db, added one after the other, to the block's place. */
template <int PACKS>
__device__ static inline void join_warps(const norm_args &a, const float (&dw)[PACKS][VECTOR],
                                         const float (&db)[PACKS][VECTOR]) {
    __shared__ float sums[2][PACKS * 32 * VECTOR];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int turn = 0; turn < BACK_WARPS; turn++) {
        if (turn == warp)
#pragma unroll
            for (int k = 0; k < PACKS; k++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++) {
                    int at =
                        (k * VECTOR + j) * 32 + lane; /* lanes beside each other: no conflicts */
                    sums[0][at] = (turn ? sums[0][at] : 0.0f) + dw[k][j];
                    sums[1][at] = (turn ? sums[1][at] : 0.0f) + db[k][j];
                }
        __syncthreads();
    }
    float *to = a.partial + 2 * (int64_t)blockIdx.x * a.width;
    for (int i = threadIdx.x; i < 2 * a.width; i += BACK_WARPS * 32) {
        int which = i >= a.width, column = i - which * (int)a.width;
        int k = column / (32 * VECTOR), in = column % (32 * VECTOR);
        to[i] = sums[which][(k * VECTOR + in % VECTOR) * 32 + in / VECTOR];
    }
}

template <int PACKS>
static __global__ void __launch_bounds__(BACK_WARPS * 32, 1) norm_warp_rows_back(norm_args a) {
    int64_t row = (int64_t)blockIdx.x * BACK_WARPS + threadIdx.x / 32;
    int64_t step = (int64_t)gridDim.x * BACK_WARPS;
    float w[PACKS][VECTOR], dw[PACKS][VECTOR] = {}, db[PACKS][VECTOR] = {};
    back_rows<PACKS> next = {};
    if (row < a.rows) fetch_back(a, row, next);
    load_columns(a, a.w, w);
    for (; row < a.rows; row += step) {
        back_rows<PACKS> now = next;
        if (row + step < a.rows) fetch_back(a, row + step, next);
        float g_sum = 0, gd_sum = 0, dy[VECTOR], s[VECTOR], dx[VECTOR];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            widen_words(now.dy.pack[k], dy);
            widen_words(now.s.pack[k], s);
            back_sums(dy, s, w[k], now.mean, g_sum, gd_sum);
        }
        row_factors f = factors_of(a, now.rstd, now.mean, warp_sum(g_sum), warp_sum(gd_sum));
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            widen_words(now.dy.pack[k], dy);
            widen_words(now.s.pack[k], s);
            widen_words(now.ds.pack[k], dx);
            back_row(f, dy, s, w[k], dx, dw[k], db[k]);
            if (a.dx.data) store_row(a, a.dx, lane_start(a, row), k, dx);
        }
    }
    if (a.partial) join_warps<PACKS>(a, dw, db);
}

static __global__ void __launch_bounds__(THREADS) norm_rows_back(norm_args a) {
    __shared__ float shared[2][2 * BACK_ROWS * THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * a.range, end = min_i64(first + a.range, a.rows);
    int64_t column = threadIdx.x * VECTOR;
    int n = pack_length(a.width, column), turn = 0;
    float w[VECTOR], dw[VECTOR] = {0}, db[VECTOR] = {0};
    load_pack(a.w, column, n, w);
    for (; first < end; first += BACK_ROWS, turn ^= 1) {
        pack p_dy[BACK_ROWS], p_s[BACK_ROWS], p_ds[BACK_ROWS];
        float sums[2 * BACK_ROWS], mean[BACK_ROWS];
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            bool there = n > 0 && first + i < end;
            int64_t at = (first + i) * a.width + column;
            p_dy[i] = there ? fetch_pack(a.dy, at, n) : pack{};
            p_s[i] = there ? fetch_pack(a.s, at, n) : pack{};
            p_ds[i] = there && a.ds.data ? fetch_pack(a.ds, at, n) : pack{};
            mean[i] = a.mean && first + i < end ? a.mean[first + i] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            float dy[VECTOR], s[VECTOR];
            widen_pack(p_dy[i], a.dy.is_bf16, dy);
            widen_pack(p_s[i], a.s.is_bf16, s);
            sums[2 * i] = sums[2 * i + 1] = 0;
            back_sums(dy, s, w, mean[i], sums[2 * i], sums[2 * i + 1]);
        }
        sum_over_block(sums, shared[turn]);
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            if (first + i >= end) break;
            row_factors f = factors_of(a, a.rstd[first + i], mean[i], sums[2 * i], sums[2 * i + 1]);
            float dy[VECTOR], s[VECTOR], dx[VECTOR];
            widen_pack(p_dy[i], a.dy.is_bf16, dy);
            widen_pack(p_s[i], a.s.is_bf16, s);
            widen_pack(p_ds[i], a.ds.is_bf16, dx);
            back_row(f, dy, s, w, dx, dw, db);
            if (a.dx.data && n > 0) store_pack(a.dx, (first + i) * a.width + column, n, dx);
        }
    }
    if (a.partial && n > 0) store_partial(a, column, n, dw, db);
}

/* The same by rows of any width: the shares of dw and db stand in memory, a thread's own. */
static __global__ void __launch_bounds__(THREADS) norm_wide_row_back(norm_args a) {
    __shared__ float shared[2][2 * THREADS / 32];
    int64_t begin = (int64_t)blockIdx.x * a.range, end = min_i64(begin + a.range, a.rows);
    any_tensor partial = {a.partial, false};
    for (int64_t row = begin; row < end; row++) {
        float sums[2] = {0, 0}, mean = a.mean ? a.mean[row] : 0.0f;
        float dy[VECTOR], s[VECTOR], w[VECTOR], dx[VECTOR] = {0}, dw[VECTOR], db[VECTOR];
        for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
            int n = pack_length(a.width, column);
            load_pack(a.dy, row * a.width + column, n, dy);
            load_pack(a.s, row * a.width + column, n, s);
            load_pack(a.w, column, n, w);
            back_sums(dy, s, w, mean, sums[0], sums[1]);
        }
        sum_over_block(sums, shared[row & 1]);
        row_factors f = factors_of(a, a.rstd[row], mean, sums[0], sums[1]);
        for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
            int n = pack_length(a.width, column);
            int64_t at = row * a.width + column;
            int64_t share = 2 * (int64_t)blockIdx.x * a.width + column;
            load_pack(a.dy, at, n, dy);
            load_pack(a.s, at, n, s);
            load_pack(a.w, column, n, w);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                dx[j] = dw[j] = db[j] = 0;
            if (a.ds.data) load_pack(a.ds, at, n, dx);
            if (a.partial && row > begin) {
                load_pack(partial, share, n, dw);
                load_pack(partial, share + a.width, n, db);
            }
            back_row(f, dy, s, w, dx, dw, db);
            if (a.dx.data) store_pack(a.dx, at, n, dx);
            if (a.partial) store_partial(a, column, n, dw, db);
        }
    }
}

/* out[column] = Σ over blocks of partial[block, which, column]: JOIN slices of the blocks beside
 * each other, then the slices in order. */
static __global__ void join_ranges(int64_t blocks, int64_t width, const float *partial,
                                   any_tensor dw, any_tensor db) {
    __shared__ double shared[JOIN][JOIN + 1];
    any_tensor out = blockIdx.y ? db : dw;
    int64_t column = (int64_t)blockIdx.x * JOIN + threadIdx.x;
    double sum = 0;
    if (out.data && column < width)
        for (int64_t block = threadIdx.y; block < blocks; block += JOIN)
            sum += partial[(2 * block + blockIdx.y) * width + column];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || !out.data || column >= width) return;
    for (int slice = 1; slice < JOIN; slice++)
        sum += shared[slice][threadIdx.x];
    store_any(out, column, (float)sum);
}

/* Rows of a block, whole groups of them: not of the warps' kernel. */
static int64_t back_range(int64_t rows) {
    return ceil_div(ceil_div(rows, BLOCKS_MAX), 2 * BACK_ROWS) * 2 * BACK_ROWS;
}

static int back_packs(const weft_node *n) {
    return lane_packs(weft_tensor_width(n->in[WEFT_NORM_BACK_S]),
                      {n->in[WEFT_NORM_BACK_DY], n->in[WEFT_NORM_BACK_S], n->in[WEFT_NORM_BACK_DS],
                       n->out[WEFT_NORM_BACK_DX]});
}

static int64_t back_blocks(const weft_node *n) {
    int64_t rows = weft_tensor_rows(n->in[WEFT_NORM_BACK_S]);
    int packs = back_packs(n);
    if (packs) return min_i64(WARP_BLOCKS, ceil_div(rows, BACK_WARPS));
    return ceil_div(rows, back_range(rows));
}

static int64_t norm_back_workspace(const weft_node *n, int threads) {
    (void)threads;
    if (!n->out[WEFT_NORM_BACK_DW] && !n->out[WEFT_NORM_BACK_DB]) return 0;
    int64_t width = weft_tensor_width(n->in[WEFT_NORM_BACK_S]);
    return 2 * back_blocks(n) * width * (int64_t)sizeof(float);
}

static weft_status norm_back_run(weft_exec *x, const weft_node *n) {
    norm_args a = {};
    a.rows = weft_tensor_rows(n->in[WEFT_NORM_BACK_S]);
    a.width = weft_tensor_width(n->in[WEFT_NORM_BACK_S]);
    a.share = (float)(1.0 / (double)a.width);
    a.centered = ATTR(n, weft_norm_attr)->kind == WEFT_LAYERNORM;
    a.s = any_of(x, n->in[WEFT_NORM_BACK_S]);
    a.w = any_of(x, n->in[WEFT_NORM_BACK_W]);
    a.mean = data_of<float>(x, n->in[WEFT_NORM_BACK_MEAN]);
    a.rstd = data_of<float>(x, n->in[WEFT_NORM_BACK_RSTD]);
    a.dy = any_of(x, n->in[WEFT_NORM_BACK_DY]);
    a.ds = any_of(x, n->in[WEFT_NORM_BACK_DS]);
    a.dx = any_of(x, n->out[WEFT_NORM_BACK_DX]);
    a.range = back_range(a.rows);
    bool sums = n->out[WEFT_NORM_BACK_DW] || n->out[WEFT_NORM_BACK_DB];
    a.partial = sums ? workspace_of<float>(x, n) : NULL;
    int64_t blocks = back_blocks(n);
    int packs = back_packs(n);
    if (packs)
        with_packs(packs, [&](auto tag) {
            constexpr int value = decltype(tag)::value;
            norm_warp_rows_back<value><<<(unsigned)blocks, BACK_WARPS * 32, 0, stream_of(x)>>>(a);
        });
    else if (a.width <= NARROW)
        norm_rows_back<<<(unsigned)blocks, row_threads(a.width), 0, stream_of(x)>>>(a);
    else
        norm_wide_row_back<<<(unsigned)blocks, THREADS, 0, stream_of(x)>>>(a);
    if (sums) {
        dim3 grid((unsigned)ceil_div(a.width, JOIN), 2);
        join_ranges<<<grid, dim3(JOIN, JOIN), 0, stream_of(x)>>>(
            blocks, a.width, a.partial, any_of(x, n->out[WEFT_NORM_BACK_DW]),
            any_of(x, n->out[WEFT_NORM_BACK_DB]));
    }
    return launched(n);
}

CUDA_KERNEL(norm_back, norm_back_run, norm_back_workspace)

/* LayerNorm and RMSNorm on the GPU. Floor, forward: the bytes of x (and r), y (and s); backward:
 * those of dy, s (and ds), dx. The statistics and the gradients of w and b are small beside them.
 *
 * A thread has a pack of columns, a block some rows at a time, which stay in registers from the
 * first reading to the writing; the sums of all its rows go through one exchange between the warps.
 * The variance is summed around the mean, since Σs² − (Σs)² loses everything where the mean is
 * large. Backward a block walks a range of rows, the range fixed by the shape, and a thread keeps
 * its columns' share of dw and db in registers; the blocks' shares are added in their order in
 * double. Rows of more than NARROW columns take kernels that read a row again for each sum: from
 * the first cache. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/norm.h"
}

enum {
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
    if (a.width <= NARROW)
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

__device__ static inline row_factors factors_of(const norm_args &a, int64_t row, float mean,
                                                float g_sum, float gd_sum) {
    float rstd = a.rstd[row], share = rstd * a.share;
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
            row_factors f = factors_of(a, first + i, mean[i], sums[2 * i], sums[2 * i + 1]);
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
        row_factors f = factors_of(a, row, mean, sums[0], sums[1]);
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

/* Rows of a block, whole groups of them. */
static int64_t back_range(int64_t rows) {
    return ceil_div(ceil_div(rows, BLOCKS_MAX), 2 * BACK_ROWS) * 2 * BACK_ROWS;
}

static int64_t norm_back_workspace(const weft_node *n, int threads) {
    (void)threads;
    const weft_tensor *s = n->in[WEFT_NORM_BACK_S];
    if (!n->out[WEFT_NORM_BACK_DW] && !n->out[WEFT_NORM_BACK_DB]) return 0;
    int64_t rows = weft_tensor_rows(s), blocks = ceil_div(rows, back_range(rows));
    return 2 * blocks * weft_tensor_width(s) * (int64_t)sizeof(float);
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
    int64_t blocks = ceil_div(a.rows, a.range);
    if (a.width <= NARROW)
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

/* Linear layers and matrix products on the GPU: a node's tensors as the matrices of gemm.cuh, and
 * the gradient of a bias, with gelu's gradient or alone.
 *
 * The bias gradient sums the rows of each column in two steps of a fixed order: bands of rows, then
 * the bands' sums. How many bands there are follows from the shape. Behind gelu the same pass makes
 * the rows: its floor is dy, x and dx once. */
#include "cuda/gemm.cuh"

extern "C" {
#include "ops/linear.h"
}

enum {
    WARPS = 8,
    ADD_WARPS = 32,
    COLUMNS = 256,
    SMS = 132,
    BLOCKS = 6,      /* at a time on an SM */
    GELU_BLOCKS = 4, /* with gelu: twice the loads a thread */
    BAND_LEAST = 64
};

/* A tensor as a batch of [rows, columns]; groups inside: the group is the second dimension. */
static gemm_matrix as_matrix(void *data, const weft_tensor *t, int64_t rows, int64_t columns,
                             int64_t groups, bool inside) {
    return gemm_matrix{data, inside ? groups * columns : columns, inside ? columns : rows * columns,
                       t->dtype == WEFT_BF16};
}

/* The node as a product; `x` NULL: with addresses that say no more than that there is something. */
static gemm_product describe_product(const weft_exec *x, const weft_node *n) {
    static char something;
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    const weft_tensor *a = n->in[0], *b = n->in[1], *y = n->out[0];
    const weft_tensor *bias = n->in[WEFT_MATMUL_BIAS], *addend = n->in[WEFT_MATMUL_ADDEND];
    weft_matmul_sizes s = weft_matmul_measure(attr, a, b);
    bool grouped = attr->form == WEFT_MATMUL_GROUPED;
    bool grouped_outer = attr->form == WEFT_MATMUL_GROUPED_OUTER;
    bool ta = attr->ta || grouped_outer || attr->form == WEFT_MATMUL_OUTER, tb = attr->tb;
    auto place = [&](const weft_tensor *t) { return x ? weft_data(x, t) : (void *)&something; };
    gemm_product p = {};
    p.batch = s.groups, p.m = s.m, p.n = s.n, p.k = s.k;
    p.ta = ta, p.tb = tb;
    p.alpha = (float)attr->alpha;
    p.gelu = attr->act == WEFT_ACT_GELU;
    p.gelu_back = attr->act == WEFT_ACT_GELU_BACK;
    p.a =
        as_matrix(place(a), a, ta ? s.k : s.m, ta ? s.m : s.k, s.groups, grouped || grouped_outer);
    p.b = as_matrix(place(b), b, tb ? s.n : s.k, tb ? s.k : s.n, s.groups, grouped_outer);
    p.c = as_matrix(place(y), y, s.m, s.n, s.groups, grouped);
    if (bias) p.bias = as_matrix(place(bias), bias, 1, s.n, 1, false);
    const weft_tensor *pre = p.gelu_back ? n->in[WEFT_MATMUL_AT] : n->out[1];
    p.addend = p.pre = p.c;
    p.addend.data = addend ? place(addend) : NULL;
    p.pre.data = pre ? place(pre) : NULL;
    return p;
}

static weft_status matmul_run(weft_exec *x, const weft_node *n) {
    gemm_product p = describe_product(x, n);
    return gemm_run(x, &p, weft_workspace(x, n));
}

static int64_t matmul_workspace(const weft_node *n, int) {
    gemm_product p = describe_product(NULL, n);
    return gemm_workspace(&p);
}

CUDA_KERNEL(matmul, matmul_run, matmul_workspace)

/* The rows whose columns are summed: dy itself, or, with x, dy times gelu's slope at x, kept in dx. */
template <typename T> struct summed_rows {
    const T *dy, *x;
    T *dx;
};

static bool is_behind_gelu(const weft_node *n) {
    return n->n_in == 2;
}

/* How the rows are cut: enough bands to fill the GPU once, none shorter than worth a block. */
static int64_t band_rows(const weft_node *n) {
    int64_t columns = weft_tensor_width(n->in[0]), rows = weft_tensor_rows(n->in[0]);
    int64_t blocks = SMS * (is_behind_gelu(n) ? GELU_BLOCKS : BLOCKS);
    int64_t bands = max_i64(1, blocks / ceil_div(columns, COLUMNS));
    return max_i64(BAND_LEAST, ceil_div(rows, bands));
}

/* The slope as activation.cu has it, with the hardware's exponential. */
__device__ static inline float fast_gelu_slope(float at) {
    const float A = 1.5957691216057308f, B = 0.07135481627260025f;
    float x = fminf(10.0f, fmaxf(-10.0f, at)), x2 = x * x;
    float e = __expf(-x * (A + B * x2)), s = __fdividef(1.0f, 1.0f + e);
    return s + x * (s * e * s) * (A + 3 * B * x2);
}

/* Eight numbers as they lie in memory. */
template <typename T> struct raw_vector {
    uint4 words[sizeof(T) / 2];
    __device__ void load(const T *p) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 2); i++)
            words[i] = ((const uint4 *)p)[i];
    }
};

__device__ static inline void widen_raw(const raw_vector<bf16> &raw, float (&v)[VECTOR]) {
    widen_words(raw.words[0], v);
}

__device__ static inline void widen_raw(const raw_vector<float> &raw, float (&v)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        v[4 * i] = __uint_as_float(raw.words[i].x);
        v[4 * i + 1] = __uint_as_float(raw.words[i].y);
        v[4 * i + 2] = __uint_as_float(raw.words[i].z);
        v[4 * i + 3] = __uint_as_float(raw.words[i].w);
    }
}

/* N rows of a lane's eight columns, `step` elements apart. */
template <typename T, bool GELU, int N> struct some_rows {
    raw_vector<T> dy[N], x[GELU ? N : 1];

    __device__ void load(const summed_rows<T> &from, int64_t at, int64_t step) {
#pragma unroll
        for (int r = 0; r < N; r++) {
            dy[r].load(from.dy + at + r * step);
            if (GELU) x[r].load(from.x + at + r * step);
        }
    }

    __device__ void add(const summed_rows<T> &from, int64_t at, int64_t step,
                        float (&sum)[VECTOR]) const {
#pragma unroll
        for (int r = 0; r < N; r++) {
            float v[VECTOR], slope[VECTOR];
            widen_raw(dy[r], v);
            if (GELU) widen_raw(x[r], slope);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                if (GELU) v[k] *= fast_gelu_slope(slope[k]);
                sum[k] += v[k];
            }
            if (GELU) store_vector(from.dx + at + r * step, v);
        }
    }
};

/* A warp's rows of a band, every eighth: some at a time, so that their loads overlap. With gelu, which
 * takes long, the next are on their way while those at hand are worked on. */
template <typename T, bool GELU>
__device__ static inline void sum_rows(const summed_rows<T> &from, int64_t at, int64_t end,
                                       int64_t step, float (&sum)[VECTOR]) {
    constexpr int N = (GELU ? 4 : 8) / (int)sizeof(T);
    some_rows<T, GELU, N> now, next;
    bool some = at + (N - 1) * step < end;
    if (some && GELU) now.load(from, at, step);
    while (some) {
        some = at + (2 * N - 1) * step < end;
        if (!GELU) now.load(from, at, step);
        if (some && GELU) next.load(from, at + N * step, step);
        now.add(from, at, step, sum);
        if (GELU) now = next;
        at += N * step;
    }
    for (; at < end; at += step) {
        some_rows<T, GELU, 1> last;
        last.load(from, at, step);
        last.add(from, at, step, sum);
    }
}

/* The sums of a band for 256 columns: the warps' sums are added in order. */
template <typename T, bool GELU>
static __global__ void __launch_bounds__(WARPS * 32, GELU ? GELU_BLOCKS : BLOCKS)
    sum_bands(int64_t rows, int64_t columns, int64_t band, summed_rows<T> from, float *sums) {
    __shared__ float parts[WARPS][COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + lane * VECTOR;
    int64_t first = blockIdx.y * band, end = min_i64(first + band, rows);
    float sum[VECTOR] = {};
    if (column < columns)
        sum_rows<T, GELU>(from, (first + warp) * columns + column, end * columns, WARPS * columns,
                          sum);
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        parts[warp][lane * VECTOR + k] = sum[k];
    __syncthreads();
    int64_t at = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (at >= columns) return;
    float total = 0;
    for (int w = 0; w < WARPS; w++)
        total += parts[w][threadIdx.x];
    sums[blockIdx.y * columns + at] = total;
}

/* The same where rows do not start at multiples of 16 bytes: a thread a column. */
template <typename T, bool GELU>
static __global__ void sum_bands_slowly(int64_t rows, int64_t columns, int64_t band,
                                        summed_rows<T> from, float *sums) {
    int64_t column = thread_index();
    if (column >= columns) return;
    int64_t first = blockIdx.y * band, end = min_i64(first + band, rows);
    float sum = 0;
    for (int64_t i = first * columns + column; i < end * columns; i += columns) {
        float v = to_float(from.dy[i]);
        if (GELU) {
            v *= fast_gelu_slope(to_float(from.x[i]));
            from.dx[i] = from_float<T>(v);
        }
        sum += v;
    }
    sums[blockIdx.y * columns + column] = sum;
}

/* The sum of the bands, 32 columns a block: a warp takes every ADD_WARPSth band, so that their loads
 * are under way together, and the warps' sums are added in order. */
static __global__ void add_bands(int64_t bands, int64_t columns, const float *sums, any_tensor db) {
    __shared__ float parts[ADD_WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
#pragma unroll 8
    for (int64_t i = warp; i < bands && column < columns; i += ADD_WARPS)
        sum += sums[i * columns + column];
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    float total = 0;
#pragma unroll
    for (int w = 0; w < ADD_WARPS; w++)
        total += parts[w][lane];
    store_any(db, column, total);
}

template <typename T, bool GELU>
static void launch_bands(const weft_exec *x, const weft_node *n, int64_t band, float *sums) {
    const weft_tensor *dy = n->in[0];
    int64_t rows = weft_tensor_rows(dy), columns = weft_tensor_width(dy);
    dim3 grid((unsigned)ceil_div(columns, COLUMNS), (unsigned)ceil_div(rows, band));
    summed_rows<T> from = {data_of<T>(x, dy), GELU ? data_of<T>(x, n->in[1]) : NULL,
                           GELU ? data_of<T>(x, n->out[0]) : NULL};
    if (columns % VECTOR == 0)
        sum_bands<T, GELU><<<grid, WARPS * 32, 0, stream_of(x)>>>(rows, columns, band, from, sums);
    else
        sum_bands_slowly<T, GELU>
            <<<grid, COLUMNS, 0, stream_of(x)>>>(rows, columns, band, from, sums);
}

template <bool GELU>
static weft_status run_bias(weft_exec *x, const weft_node *n, const weft_tensor *db) {
    int64_t band = band_rows(n), bands = ceil_div(weft_tensor_rows(n->in[0]), band);
    int64_t columns = weft_tensor_count(db);
    float *sums = workspace_of<float>(x, n);
    with_type(n->in[0], [&](auto tag) { launch_bands<decltype(tag), GELU>(x, n, band, sums); });
    add_bands<<<(unsigned)ceil_div(columns, 32), ADD_WARPS * 32, 0, stream_of(x)>>>(
        bands, columns, sums, any_of(x, db));
    return launched(n);
}

static weft_status bias_back_run(weft_exec *x, const weft_node *n) {
    return run_bias<false>(x, n, n->out[0]);
}

static weft_status gelu_bias_back_run(weft_exec *x, const weft_node *n) {
    return run_bias<true>(x, n, n->out[1]);
}

static int64_t bias_back_workspace(const weft_node *n, int) {
    int64_t bands = ceil_div(weft_tensor_rows(n->in[0]), band_rows(n));
    return bands * weft_tensor_width(n->in[0]) * (int64_t)sizeof(float);
}

CUDA_KERNEL(bias_back, bias_back_run, bias_back_workspace)
CUDA_KERNEL(gelu_bias_back, gelu_bias_back_run, bias_back_workspace)

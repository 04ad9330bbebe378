/* Linear layers and matrix products on the GPU: a node's tensors as the matrices of gemm.cuh, and
 * the gradient of a bias.
 *
 * The bias gradient sums the rows of each column in two steps of a fixed order: bands of rows, then
 * the bands' sums. How many bands there are follows from the shape. */
#include "cuda/gemm.cuh"

extern "C" {
#include "ops/linear.h"
}

enum { WARPS = 8, ADD_WARPS = 32, COLUMNS = 256, BLOCKS = 132 * 6, BAND_LEAST = 64 };

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

/* How the rows are cut: enough bands to fill the GPU, none shorter than worth a block. */
static int64_t band_rows(int64_t rows, int64_t columns) {
    int64_t bands = max_i64(1, BLOCKS / ceil_div(columns, COLUMNS));
    return max_i64(BAND_LEAST, ceil_div(rows, bands));
}

/* The sums of a band for 256 columns, eight a lane: a warp takes every eighth row, four at a time so
 * that loads overlap, and the warps' sums are added in order. */
template <typename T>
static __global__ void sum_bands(int64_t rows, int64_t columns, int64_t band, const T *dy,
                                 float *sums) {
    __shared__ float parts[WARPS][COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + lane * VECTOR;
    int64_t first = blockIdx.y * band, end = min_i64(first + band, rows);
    float sum[VECTOR] = {};
    if (column < columns) {
#pragma unroll 4
        for (int64_t i = first + warp; i < end; i += WARPS) {
            float v[VECTOR];
            load_vector(dy + i * columns + column, v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                sum[k] += v[k];
        }
    }
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
template <typename T>
static __global__ void sum_bands_slowly(int64_t rows, int64_t columns, int64_t band, const T *dy,
                                        float *sums) {
    int64_t column = thread_index();
    if (column >= columns) return;
    int64_t first = blockIdx.y * band, end = min_i64(first + band, rows);
    float sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += to_float(dy[i * columns + column]);
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

static weft_status bias_back_run(weft_exec *x, const weft_node *n) {
    const weft_tensor *dy = n->in[0];
    int64_t rows = weft_tensor_rows(dy), columns = weft_tensor_width(dy);
    int64_t band = band_rows(rows, columns), bands = ceil_div(rows, band);
    float *sums = workspace_of<float>(x, n);
    dim3 grid((unsigned)ceil_div(columns, COLUMNS), (unsigned)bands);
    with_type(dy, [&](auto tag) {
        using T = decltype(tag);
        if (columns % VECTOR == 0)
            sum_bands<<<grid, WARPS * 32, 0, stream_of(x)>>>(rows, columns, band, data_of<T>(x, dy),
                                                             sums);
        else
            sum_bands_slowly<<<grid, COLUMNS, 0, stream_of(x)>>>(rows, columns, band,
                                                                 data_of<T>(x, dy), sums);
    });
    add_bands<<<(unsigned)ceil_div(columns, 32), ADD_WARPS * 32, 0, stream_of(x)>>>(
        bands, columns, sums, any_of(x, n->out[0]));
    return launched(n);
}

static int64_t bias_back_workspace(const weft_node *n, int) {
    int64_t rows = weft_tensor_rows(n->in[0]), columns = weft_tensor_width(n->in[0]);
    return ceil_div(rows, band_rows(rows, columns)) * columns * (int64_t)sizeof(float);
}

CUDA_KERNEL(bias_back, bias_back_run, bias_back_workspace)

/* The gradient of a bias on the GPU, with gelu's gradient before it or alone.
 *
 * The rows of each column are summed in two steps of a fixed order: bands of rows, then the bands' sums.
 * How many bands there are follows from the shape and the GPU. Behind gelu the same pass makes the rows:
 * its floor is dy, x and dx once. */
#include "cuda/products/column_sums.cuh"

#include "cuda/functions.cuh"

enum {
    WARPS = 8,
    ADD_WARPS = 32,
    COLUMNS = 256,
    BLOCKS = 6,      /* at a time on a multiprocessor */
    GELU_BLOCKS = 4, /* with gelu: twice the loads a thread */
    BAND_LEAST = 64
};

/* The rows whose columns are summed: dy itself, or, with x, dy times gelu's slope at x, kept in dx. */
template <typename T> struct summed_rows {
    const T *dy, *x;
    T *dx;
};

/* How the rows are cut: enough bands to fill the GPU once, none shorter than worth a block. */
static int64_t band_rows(const column_pass *p) {
    int64_t blocks = multiprocessors() * (p->x ? GELU_BLOCKS : BLOCKS);
    int64_t bands = max_i64(1, blocks / ceil_div(p->columns, COLUMNS));
    return max_i64(BAND_LEAST, ceil_div(p->rows, bands));
}

int64_t column_pass_bytes(const column_pass *p) {
    return ceil_div(p->rows, band_rows(p)) * p->columns * (int64_t)sizeof(float);
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
                if (GELU) v[k] *= gelu_slope(slope[k]);
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

/* The same where rows do not start at multiples of 16 bytes: a thread per column. */
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
            v *= gelu_slope(to_float(from.x[i]));
            from.dx[i] = from_float<T>(v);
        }
        sum += v;
    }
    sums[blockIdx.y * columns + column] = sum;
}

/* The sum of the bands, 32 columns per block: a warp takes every ADD_WARPSth band, so that their loads
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
static void launch_bands(const weft_exec *x, const column_pass *p, int64_t band, float *sums) {
    dim3 grid((unsigned)ceil_div(p->columns, COLUMNS), (unsigned)ceil_div(p->rows, band));
    summed_rows<T> from = {data_of<T>(x, p->dy), data_of<T>(x, p->x), data_of<T>(x, p->dx)};
    if (p->columns % VECTOR == 0)
        sum_bands<T, GELU>
            <<<grid, WARPS * 32, 0, stream_of(x)>>>(p->rows, p->columns, band, from, sums);
    else
        sum_bands_slowly<T, GELU>
            <<<grid, COLUMNS, 0, stream_of(x)>>>(p->rows, p->columns, band, from, sums);
}

void add_column_bands(const weft_exec *x, const weft_tensor *db, int64_t bands, const float *sums) {
    int64_t columns = weft_tensor_count(db);
    add_bands<<<(unsigned)ceil_div(columns, 32), ADD_WARPS * 32, 0, stream_of(x)>>>(
        bands, columns, sums, any_of(x, db));
}

weft_status run_column_pass(weft_exec *x, const weft_node *n, const column_pass *p) {
    int64_t band = band_rows(p);
    float *sums = workspace_of<float>(x, n);
    with_type(p->dy, [&](auto tag) {
        if (p->x)
            launch_bands<decltype(tag), true>(x, p, band, sums);
        else
            launch_bands<decltype(tag), false>(x, p, band, sums);
    });
    if (p->db) add_column_bands(x, p->db, ceil_div(p->rows, band), sums);
    return launched(n);
}

column_pass describe_pass(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *dx,
                          const weft_tensor *db, int64_t columns) {
    return column_pass{dy, x, dx, db, weft_tensor_count(dy) / columns, columns};
}

static column_pass pass_of_bias(const weft_node *n) {
    return describe_pass(n->in[0], NULL, NULL, n->out[0], weft_tensor_width(n->in[0]));
}

static column_pass pass_of_gelu(const weft_node *n) {
    return describe_pass(n->in[0], n->in[1], n->out[0], n->out[1], weft_tensor_width(n->in[0]));
}

static weft_status bias_back_run(weft_exec *x, const weft_node *n) {
    column_pass p = pass_of_bias(n);
    return run_column_pass(x, n, &p);
}

static int64_t bias_back_workspace(const weft_node *n, int) {
    column_pass p = pass_of_bias(n);
    return column_pass_bytes(&p);
}

static weft_status gelu_bias_back_run(weft_exec *x, const weft_node *n) {
    column_pass p = pass_of_gelu(n);
    return run_column_pass(x, n, &p);
}

static int64_t gelu_bias_back_workspace(const weft_node *n, int) {
    column_pass p = pass_of_gelu(n);
    return column_pass_bytes(&p);
}

CUDA_KERNEL(bias_back, bias_back_run, bias_back_workspace)
CUDA_KERNEL(gelu_bias_back, gelu_bias_back_run, gelu_bias_back_workspace)

/* Means over time on the GPU. A block has some columns of a sequence and cuts its tokens into
 * segments, a row of threads each. Sums from segment to segment are in double, so that the mean
 * over a long sequence loses nothing to the sum's size.
 *
 * The running mean adds up each segment, then each thread knows what came before its own and walks
 * it a second time, from the caches. Floor: the bytes of x and y, once.
 *
 * Moments are a product of the library beside a sum over time; back the sums' gradient is the product's
 * bias, one for each sequence, which are a batch. */
#include "cuda/pack.cuh"
#include "cuda/products/gemm.cuh"

enum {
    COLUMNS = 32, /* of a block of the running mean */
    SEGMENTS = 32,
    PACKS = 8,  /* of columns, that a block of the mean has */
    SLICES = 32 /* and its rows of threads */
};

/* x, y: [B, T, N]. */
struct time_args {
    int64_t time, width;
    any_tensor x, y;
    const int32_t *first; /* [B, T]: of running means, where a token's begins; NULL: at 0 */
};

/* Forward: the mean of tokens up to t. Backward: the sum from t on of dy_t/(t + 1). y may be x: a
 * thread reads an element again just before it writes it.
 *
 * Within documents a segment leaves to the next what belongs to the document that goes on there: forward
 * that behind its last begin, backward that before its first. */
static __global__ void __launch_bounds__(COLUMNS *SEGMENTS) scan_means(time_args k, bool back) {
    __shared__ double sums[SEGMENTS][COLUMNS];
    __shared__ bool begins[SEGMENTS]; /* a document does, in the segment */
    const int32_t *begin = k.first ? k.first + (int64_t)blockIdx.x * k.time : NULL;
    int64_t column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x;
    int64_t length = ceil_div(k.time, SEGMENTS), first = min_i64(threadIdx.y * length, k.time);
    int64_t end = min_i64(first + length, k.time);
    int64_t base = (int64_t)blockIdx.x * k.time * k.width + column;
    double sum = 0;
    bool some = false;
    if (column < k.width)
        for (int64_t t = first; t < end; t++) {
            double v = load_any(k.x, base + t * k.width);
            int64_t from = begin ? begin[t] : 0;
            some |= from == t;
            if (begin && !back && from == t) sum = 0;
            if (begin && back && from >= first) break;
            sum += back ? v / (double)(t - from + 1) : v;
        }
    sums[threadIdx.y][threadIdx.x] = sum;
    if (threadIdx.x == 0) begins[threadIdx.y] = some;
    __syncthreads();
    if (column >= k.width) return;
    sum = 0;
    if (begin)
        for (int s = threadIdx.y + (back ? 1 : -1); s >= 0 && s < SEGMENTS; s += back ? 1 : -1) {
            sum += sums[s][threadIdx.x];
            if (begins[s]) break;
        }
    else
        for (int s = 0; s < SEGMENTS; s++)
            if (back ? s > threadIdx.y : s < threadIdx.y) sum += sums[s][threadIdx.x];
    for (int64_t i = first; i < end; i++) {
        int64_t t = back ? end - 1 - (i - first) : i, at = base + t * k.width;
        int64_t from = begin ? begin[t] : 0;
        double v = load_any(k.x, at), share = 1.0 / (double)(t - from + 1);
        if (begin && !back && from == t) sum = 0;
        sum += back ? v * share : v;
        store_any(k.y, at, (float)(back ? sum : sum * share));
        if (begin && back && from == t) sum = 0;
    }
}

static weft_status run_scan(weft_exec *x, const weft_node *n, bool back) {
    const weft_tensor *in = n->in[0];
    time_args k = {in->shape[1], in->shape[2], any_of(x, in), any_of(x, n->out[0]),
                   data_of<int32_t>(x, n->in[1])};
    dim3 grid((unsigned)in->shape[0], (unsigned)ceil_div(k.width, COLUMNS));
    scan_means<<<grid, dim3(COLUMNS, SEGMENTS), 0, stream_of(x)>>>(k, back);
    return launched(n);
}

CUDA_KERNEL_CALLS(running_mean, run_scan(x, n, false))
CUDA_KERNEL_CALLS(running_mean_back, run_scan(x, n, true))

/* y [B, 1, N]: a block has PACKS packs of columns of a sequence, a thread every SLICES-th token of a pack;
 * the slices are added in order. */
template <bool WHOLE>
static __global__ void __launch_bounds__(PACKS *SLICES) sum_over_time(time_args k, double terms) {
    __shared__ float shared[SLICES][PACKS * VECTOR];
    int64_t first = (int64_t)blockIdx.y * PACKS * VECTOR, column = first + threadIdx.x * VECTOR;
    int64_t base = (int64_t)blockIdx.x * k.time * k.width + column;
    int n = pack_length(k.width, column);
    float sum[VECTOR] = {0};
#pragma unroll 8
    for (int64_t t = threadIdx.y; n > 0 && t < k.time; t += SLICES) {
        float v[VECTOR];
        widen_of<WHOLE>(fetch_of<WHOLE>(k.x, base + t * k.width, n), k.x, v);
        add_vector(sum, v);
    }
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        shared[threadIdx.y][threadIdx.x * VECTOR + j] = sum[j];
    __syncthreads();
    int at = threadIdx.y * PACKS + threadIdx.x;
    if (at >= PACKS * VECTOR || first + at >= k.width) return;
    double total = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++)
        total += shared[s][at];
    store_any(k.y, (int64_t)blockIdx.x * k.width + first + at, (float)(total / terms));
}

/* `terms`: what the sums are divided by. */
static void launch_sums(const weft_exec *x, const weft_tensor *in, const weft_tensor *out,
                        int64_t terms) {
    time_args k = {in->shape[1], in->shape[2], any_of(x, in), any_of(x, out)};
    dim3 grid((unsigned)in->shape[0], (unsigned)ceil_div(k.width, PACKS * VECTOR));
    auto kernel = are_whole(k.width, k.x, k.x) ? sum_over_time<true> : sum_over_time<false>;
    kernel<<<grid, dim3(PACKS, SLICES), 0, stream_of(x)>>>(k, (double)terms);
}

CUDA_RUN(time_mean) {
    launch_sums(x, n->in[0], n->out[0], n->in[0]->shape[1]);
    return launched(n);
}

/* dx [B, T, N] from dy [B, 1, N]: a thread per pack of dx. */
template <bool WHOLE>
static __global__ void spread_over_time(time_args k, int64_t rows, float share) {
    auto [row, column, n] = place_pack(k.width);
    if (row >= rows) return;
    float v[VECTOR];
    int64_t from = quotient(row, k.time) * k.width + column;
    widen_of<WHOLE>(fetch_of<WHOLE>(k.x, from, n), k.x, v);
    scale_vector(v, share);
    store_of<WHOLE>(k.y, row * k.width + column, n, v);
}

CUDA_RUN(time_mean_back) {
    const weft_tensor *out = n->out[0];
    time_args k = {out->shape[1], out->shape[2], any_of(x, n->in[0]), any_of(x, out)};
    int64_t rows = out->shape[0] * out->shape[1];
    bool whole = are_whole(k.width, k.x, k.y);
    return run_items(x, n, count_packs(rows, k.width),
                     whole ? spread_over_time<true> : spread_over_time<false>, k, rows,
                     (float)(1.0 / (double)k.time));
}

static cuda_gemm_matrix as_rows(const weft_exec *x, const weft_tensor *t) {
    return cuda_gemm_matrix{x ? weft_data(x, t) : NULL, weft_tensor_width(t), 0,
                            t->dtype == WEFT_BF16};
}

/* xᵀ x; `x` NULL: without addresses, for sizes. */
static cuda_gemm describe_gram(const weft_exec *x, const weft_node *n) {
    cuda_gemm p = {};
    p.batch = 1, p.m = p.n = weft_tensor_width(n->in[0]), p.k = weft_tensor_rows(n->in[0]);
    p.ta = true;
    p.alpha = 1;
    p.a = p.b = as_rows(x, n->in[0]);
    p.c = as_rows(x, n->out[WEFT_MOMENTS_GRAM]);
    return p;
}

CUDA_RUN_WITH(moments, gemm_workspace(describe_gram(NULL, n))) {
    WEFT_TRY(gemm_launch(stream_of(x), describe_gram(x, n), weft_workspace(x, n)));
    launch_sums(x, n->in[0], n->out[WEFT_MOMENTS_SUM], 1);
    return launched(n);
}

/* 2 x d_gram + d_sum, a product per sequence. */
static cuda_gemm describe_back(const weft_exec *x, const weft_node *n) {
    static char something;
    const weft_tensor *in = n->in[WEFT_MOMENTS_BACK_X], *d_sum = n->in[WEFT_MOMENTS_BACK_SUM];
    int64_t time = in->shape[1], width = in->shape[2];
    cuda_gemm p = {};
    p.batch = in->shape[0], p.m = time, p.n = p.k = width;
    p.alpha = 2;
    p.a = as_rows(x, in);
    p.b = as_rows(x, n->in[WEFT_MOMENTS_BACK_GRAM]);
    p.c = as_rows(x, n->out[0]);
    p.bias = as_rows(x, d_sum);
    p.a.stride = p.c.stride = time * width;
    p.bias.stride = width;
    if (!x) p.bias.data = &something;
    return p;
}

CUDA_RUN_WITH(moments_back, gemm_workspace(describe_back(NULL, n))) {
    return gemm_launch(stream_of(x), describe_back(x, n), weft_workspace(x, n));
}

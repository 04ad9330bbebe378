/* Routing on the GPU, the plain kernels: attention's weights recomputed from Q, K and the logsumexp, the k
 * largest of each row, and the sums with all weights or those above a threshold.
 *
 * They take every size and option. The weights of 32 rows (32 columns in the
 * gradient) over the whole other side are a strip; as many strips as fit into a fixed workspace are
 * made at a time, then read, so memory grows with T and not with its square. topk.cu is
 * the kernel on the tensor cores, for the nodes that choice.h names. */
#include "cuda/routing/routing.cuh"

enum { LANES = 32, THREADS = 256, PRODUCT_COLUMNS = 128, STRIP_BYTES = 32 << 20 };

/* Neighbouring threads read rows that lie far apart, so a thread should take much of a row at once. */
static bool reads_vectors(const head_rows &rows) {
    return rows.head % VECTOR == 0 && (uintptr_t)rows.data % sizeof(uint4) == 0;
}

route_problem weft_cuda_route_problem(const weft_exec *x, const weft_node *n) {
    const weft_route_attr *attr = ATTR(n, weft_route_attr);
    attention_problem a = attention_problem_of(x, &attr->score, n->in);
    route_problem p = {};
    p.q = a.q, p.k = a.k, p.n = a.n, p.scale = a.scale, p.beta = a.beta, p.log_tau = a.log_tau;
    p.rel = a.rel, p.distances = a.distances, p.alibi = a.pos == WEFT_POS_ALIBI;
    p.lse = data_of<float>(x, n->in[WEFT_ROUTE_LSE]);
    p.batch = a.batch, p.queries = a.queries, p.keys = a.keys;
    p.heads = a.heads, p.kv_heads = a.kv_heads, p.dqk = a.dqk;
    p.scale_value = a.scale_value, p.softcap = a.softcap;
    p.band = a.band, p.band_alpha = a.band_alpha, p.window = attr->score.window;
    p.causal = a.causal, p.first = a.first, p.reach = attr->score.reach;
    p.use_max = attr->use_max;
    p.vectors = reads_vectors(p.q) && reads_vectors(p.k);
    return p;
}

/* The strips of a node: LANES rows of one sequence each (or columns, with keys on the lanes). */
typedef struct {
    bool keys;
    int64_t lanes, passing; /* of a sequence */
    int64_t tiles, total;   /* strips of a sequence, and of all */
    int64_t chunk;          /* strips at a time */
} strips;

static strips measure_strips(const weft_node *n, bool keys) {
    const weft_attention_attr *a = &ATTR(n, weft_route_attr)->score;
    strips s = {keys, keys ? a->keys : a->queries, keys ? a->queries : a->keys, 0, 0, 0};
    s.tiles = ceil_div(s.lanes, LANES);
    s.total = s.tiles * a->batch;
    int64_t fit = STRIP_BYTES / (LANES * s.passing * (int64_t)sizeof(float));
    s.chunk = max_i64(1, min_i64(s.total, fit));
    return s;
}

static int64_t strip_bytes(const strips &s) {
    return align_bytes(s.chunk * LANES * s.passing * (int64_t)sizeof(float));
}

/* Blocks of a strip. */
static unsigned strip_parts(const strips &s) {
    return (unsigned)min_i64(64, ceil_div(LANES * s.passing, THREADS));
}

/* strip[lane][i]: the weight of lane first + lane and passing i; 0 where a pair is not seen. */
template <typename T>
static __global__ void make_strips(route_problem p, strips s, int64_t first_tile, float *out) {
    int64_t tile = first_tile + blockIdx.x, b = tile / s.tiles, first = tile % s.tiles * LANES;
    float *strip = out + blockIdx.x * LANES * s.passing;
    int64_t count = min_i64(LANES, s.lanes - first) * s.passing;
    for (int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.y * blockDim.x) {
        int64_t lane = first + i / s.passing, other = i % s.passing;
        strip[i] = s.keys ? route_weight<T>(p, b, other, lane) : route_weight<T>(p, b, lane, other);
    }
}

/* Makes a node's strips, as many at a time as the workspace holds, and calls f(p, s, first, tiles,
 * strips) for those of tiles first .. first + tiles − 1. */
template <typename F>
static weft_status walk_strips(weft_exec *x, const weft_node *n, bool keys, F f) {
    route_problem p = weft_cuda_route_problem(x, n);
    strips s = measure_strips(n, keys);
    float *out = workspace_of<float>(x, n);
    for (int64_t first = 0; first < s.total; first += s.chunk) {
        unsigned tiles = (unsigned)min_i64(s.chunk, s.total - first);
        with_type(n->in[WEFT_ATTN_Q], [&](auto tag) {
            make_strips<decltype(tag)>
                <<<dim3(tiles, strip_parts(s)), THREADS, 0, stream_of(x)>>>(p, s, first, out);
        });
        f(p, s, first, tiles, out);
    }
    return launched(n);
}

/* route_topk: a warp per row. The next of the list is the largest weight after the last one taken, in
 * the order (weight descending, column ascending), so nothing needs to be marked as taken. */

__device__ static inline bool comes_before(float w, int j, float v, int i) {
    return w > v || (w == v && j < i);
}

static __global__ void select_rows(route_problem p, strips s, int64_t first_tile,
                                   const float *weights, int64_t k, bool normalize, int32_t *index,
                                   float *weight) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t tile = first_tile + blockIdx.x, b = tile / s.tiles, first = tile % s.tiles * LANES;
    for (int64_t t = first + warp; t < min_i64(first + LANES, s.lanes); t += blockDim.x / 32) {
        const float *row = weights + (blockIdx.x * LANES + t - first) * s.passing;
        int64_t seen = min_i64(route_place(p, t) + 1, s.passing);
        int64_t at = (b * s.lanes + t) * k, hidden = route_first(p, b, t);
        float last = INFINITY, sum = 0;
        int last_index = -1;
        for (int64_t m = 0; m < k; m++) {
            float best = -1;
            int best_index = INT32_MAX;
            for (int64_t j = hidden + lane; m < seen - hidden && j < seen; j += 32)
                if (comes_before(last, last_index, row[j], (int)j) &&
                    comes_before(row[j], (int)j, best, best_index)) {
                    best = row[j];
                    best_index = (int)j;
                }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                float other = __shfl_xor_sync(0xffffffffu, best, step);
                int other_index = __shfl_xor_sync(0xffffffffu, best_index, step);
                if (comes_before(other, other_index, best, best_index)) {
                    best = other;
                    best_index = other_index;
                }
            }
            bool found = best_index < seen; /* weights that are not numbers are not */
            if (lane == 0) {
                index[at + m] = found ? best_index : -1;
                weight[at + m] = found ? best : 0;
            }
            sum += found ? best : 0;
            last = best;
            last_index = best_index;
        }
        __syncwarp();
        if (normalize && sum > 0)
            for (int64_t m = lane; m < k; m += 32)
                weight[at + m] /= sum;
    }
}

CUDA_RUN_WITH(route_topk, weft_cuda_topk_is_fast(n) ? 0 : strip_bytes(measure_strips(n, false))) {
    if (weft_cuda_topk_is_fast(n)) return weft_cuda_topk_tiles(x, n);
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    return walk_strips(
        x, n, false, [&](auto &p, auto &s, int64_t first, unsigned tiles, float *out) {
            select_rows<<<tiles, THREADS, 0, stream_of(x)>>>(p, s, first, out, a->k, a->normalize,
                                                             data_of<int32_t>(x, n->out[0]),
                                                             data_of<float>(x, n->out[1]));
        });
}

/* route_dense: a block per row finds its floor and factor, and leaves the kept weights times the
 * factor in the strip, which the product then reads. */
static __global__ void weigh_rows(route_problem p, strips s, int64_t first_tile, bool rms,
                                  float threshold, bool normalize, float *weights, float *floors,
                                  float *factors) {
    int64_t tile = first_tile + blockIdx.x, b = tile / s.tiles;
    int64_t t = tile % s.tiles * LANES + blockIdx.y;
    if (t >= s.lanes) return;
    float *row = weights + (blockIdx.x * LANES + blockIdx.y) * s.passing;
    int64_t seen = min_i64(route_place(p, t) + 1, s.passing);
    float floor = 0, sum = 0;
    if (rms) {
        for (int64_t j = threadIdx.x; j < seen; j += blockDim.x)
            sum += row[j] * row[j];
        floor = threshold * sqrtf(block_sum(sum) / (float)(seen - route_first(p, b, t)));
    }
    sum = 0;
    for (int64_t j = threadIdx.x; j < seen; j += blockDim.x)
        sum += row[j] >= floor ? row[j] : 0;
    sum = block_sum(sum);
    float factor = normalize && sum > 0 ? 1 / sum : 1;
    for (int64_t j = threadIdx.x; j < seen; j += blockDim.x)
        row[j] = row[j] >= floor ? row[j] * factor : 0;
    if (threadIdx.x > 0) return;
    floors[b * s.lanes + t] = floor;
    factors[b * s.lanes + t] = factor;
}

/* The same for strips with keys on the lanes, from the rows' saved numbers. */
static __global__ void weigh_columns(strips s, int64_t first_tile, const float *floors,
                                     const float *factors, float *weights) {
    int64_t b = (first_tile + blockIdx.x) / s.tiles;
    float *strip = weights + blockIdx.x * LANES * s.passing;
    for (int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < LANES * s.passing;
         i += (int64_t)gridDim.y * blockDim.x) {
        int64_t t = b * s.passing + i % s.passing;
        strip[i] = strip[i] >= floors[t] ? strip[i] * factors[t] : 0;
    }
}

/* out[lane][f] = Σ_i strip[lane][i] in[i][f] over the i that some lane sees: a thread per column, all
 * LANES rows in its registers. Rows of `part` begin where four weights are one load. */
template <typename T>
static __global__ void multiply_strips(route_problem p, strips s, int64_t first_tile,
                                       const float *weights, const T *in, int64_t width, T *out) {
    __shared__ __align__(16) float part[LANES][LANES + 4];
    int64_t tile = first_tile + blockIdx.x, b = tile / s.tiles, first = tile % s.tiles * LANES;
    const float *strip = weights + blockIdx.x * LANES * s.passing;
    int64_t rows = min_i64(LANES, s.lanes - first);
    int64_t f = (int64_t)blockIdx.y * PRODUCT_COLUMNS + threadIdx.x;
    int64_t begin = s.keys ? max_i64(0, first - route_place(p, 0)) : 0;
    int64_t end = s.keys ? s.passing : min_i64(s.passing, route_place(p, first + rows - 1) + 1);
    float sum[LANES] = {};
    for (int64_t from = begin; from < end; from += LANES) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < LANES * LANES; i += PRODUCT_COLUMNS) {
            int64_t lane = i / LANES, other = from + i % LANES;
            part[i % LANES][lane] =
                lane < rows && other < end ? strip[lane * s.passing + other] : 0;
        }
        __syncthreads();
        for (int i = 0; i < LANES && from + i < end; i++) {
            float value = f < width ? to_float(in[(b * s.passing + from + i) * width + f]) : 0;
#pragma unroll
            for (int lane = 0; lane < LANES; lane++)
                sum[lane] += part[i][lane] * value;
        }
    }
#pragma unroll
    for (int lane = 0; lane < LANES; lane++)
        if (lane < rows && f < width)
            out[(b * s.lanes + first + lane) * width + f] = from_float<T>(sum[lane]);
}

static void launch_product(const weft_exec *x, const weft_node *n, const route_problem &p,
                           const strips &s, int64_t first, unsigned tiles, const float *weights) {
    const weft_tensor *in = n->in[WEFT_ROUTE_H];
    int64_t width = in->shape[2];
    dim3 grid(tiles, (unsigned)ceil_div(width, PRODUCT_COLUMNS));
    with_type(in, [&](auto tag) {
        using T = decltype(tag);
        multiply_strips<T><<<grid, PRODUCT_COLUMNS, 0, stream_of(x)>>>(
            p, s, first, weights, data_of<T>(x, in), width, data_of<T>(x, n->out[0]));
    });
}

CUDA_RUN_WITH(route_dense, strip_bytes(measure_strips(n, false))) {
    const weft_route_attr *a = ATTR(n, weft_route_attr);
    return walk_strips(
        x, n, false, [&](auto &p, auto &s, int64_t first, unsigned tiles, float *out) {
            weigh_rows<<<dim3(tiles, LANES), 128, 0, stream_of(x)>>>(
                p, s, first, a->mode == WEFT_ROUTE_RMS, (float)a->threshold, a->normalize, out,
                data_of<float>(x, n->out[1]), data_of<float>(x, n->out[2]));
            launch_product(x, n, p, s, first, tiles, out);
        });
}

CUDA_RUN_WITH(route_dense_back, strip_bytes(measure_strips(n, true))) {
    return walk_strips(x, n, true,
                       [&](auto &p, auto &s, int64_t first, unsigned tiles, float *out) {
                           weigh_columns<<<dim3(tiles, strip_parts(s)), THREADS, 0, stream_of(x)>>>(
                               s, first, data_of<float>(x, n->in[WEFT_ROUTE_FLOOR]),
                               data_of<float>(x, n->in[WEFT_ROUTE_FACTOR]), out);
                           launch_product(x, n, p, s, first, tiles, out);
                       });
}

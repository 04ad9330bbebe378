/* Sums along the kept columns on the GPU: c_t = Σ_m w_tm h[i_tm], and the gradient
 * dh_j = Σ w_tm dc_t over the entries (t, m) with i_tm = j.
 *
 * slab.cu has the common case; here is the way of longer sequences. Floor of the forward
 * pass: a row of c reads k rows of h, most of them from the L2 cache. In the gradient a block owns a
 * column: it looks through the sequence's entries, a few hundred at a time, puts those that name its
 * column into a list in ascending order and adds their rows. No two blocks write to one place and
 * every sum has a fixed order; looking through costs T·k comparisons a column, little beside the
 * rows that are added. */
#include "cuda/routing/routing.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, AT_ONCE = 4 /* rows on their way together */ };

typedef struct {
    int64_t rows, width, k, keys; /* of one sequence: T, F, k, S */
    const int32_t *index;
    const float *weight;
} gather;

static gather make_gather(const weft_exec *x, const weft_node *n, int64_t width, int64_t keys) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    return gather{index->shape[1],
                  width,
                  index->shape[2],
                  keys,
                  data_of<int32_t>(x, index),
                  data_of<float>(x, n->in[WEFT_GATHER_WEIGHT])};
}

static weft_status explain_index(weft_exec *x, const weft_node *n, int64_t place) {
    bool back = n->attr != NULL;
    int64_t keys = back ? n->out[0]->shape[1] : n->in[WEFT_GATHER_H]->shape[1];
    return weft_fail(WEFT_EINPUT, "%s: index holds %d, but it must be -1 to %lld", n->op->name,
                     (int)read_i32(x, n->in[WEFT_GATHER_INDEX], place), (long long)(keys - 1));
}

/* `count` values, 1 to VECTOR of them; `whole`: all, and aligned. */
template <typename T>
__device__ static inline void read_values(const T *at, int count, bool whole,
                                          float (&value)[VECTOR]) {
    if (whole)
        load_vector(at, value);
    else
        for (int i = 0; i < count; i++)
            value[i] = to_float(at[i]);
}

/* A block a row: each thread VECTOR columns at a time. */
template <typename T>
static __global__ void gather_rows(gather g, const T *h, T *c, weft_cuda_run *run, int node) {
    int64_t row = blockIdx.x, b = row / g.rows;
    const T *from = h + b * g.keys * g.width;
    bool whole = g.width % VECTOR == 0;
    for (int64_t f = (int64_t)threadIdx.x * VECTOR; f < g.width; f += blockDim.x * VECTOR) {
        float sum[VECTOR] = {};
        int count = (int)min_i64(VECTOR, g.width - f);
        for (int64_t m = 0; m < g.k; m++) {
            int32_t j = g.index[row * g.k + m];
            if (j < -1 || j >= g.keys) note_fault(run, node, row * g.k + m);
            if (j < 0 || j >= g.keys) continue;
            float w = g.weight[row * g.k + m], value[VECTOR] = {};
            read_values(from + j * g.width + f, count, whole, value);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sum[i] += w * value[i];
        }
        T *to = c + row * g.width + f;
        if (whole)
            store_vector(to, sum);
        else
            for (int i = 0; i < count; i++)
                to[i] = from_float<T>(sum[i]);
    }
}

static weft_status route_gather_run(weft_exec *x, const weft_node *n) {
    if (weft_cuda_slab_sums(x, n)) return launched(n);
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        const weft_tensor *h = weft_gather_input(n, i), *index = n->in[WEFT_GATHER_INDEX];
        gather g = make_gather(x, n, h->shape[2], h->shape[1]);
        int64_t threads = min_i64(THREADS, ceil_div(ceil_div(g.width, VECTOR), 32) * 32);
        with_type(h, [&](auto tag) {
            using T = decltype(tag);
            gather_rows<T>
                <<<(unsigned)(index->shape[0] * g.rows), (unsigned)threads, 0, stream_of(x)>>>(
                    g, data_of<T>(x, h), data_of<T>(x, n->out[i]), device_run(x), n->index);
        });
    }
    return launched(n);
}

static int64_t route_gather_workspace(const weft_node *n, int threads) {
    (void)threads;
    return weft_cuda_slab_sums_workspace(n);
}

CUDA_KERNEL(route_gather, route_gather_run, route_gather_workspace, explain_index)

/* Appends to list[0..] the entries from `first` on, THREADS of them, that name column j, in order;
 * returns how many. All threads call it. */
__device__ static int collect_entries(const gather &g, int64_t b, int64_t j, int64_t first,
                                      int32_t *list, int *counts) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t total = g.rows * g.k, e = first + threadIdx.x;
    bool hit = e < total && g.index[b * total + e] == j;
    unsigned hits = __ballot_sync(0xffffffffu, hit);
    if (lane == 0) counts[warp] = __popc(hits);
    __syncthreads();
    int before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? counts[w] : 0;
        all += counts[w];
    }
    if (hit) list[before + __popc(hits & ((1u << lane) - 1))] = (int32_t)e;
    __syncthreads();
    return all;
}

/* A block a column j and THREADS × VECTOR of the width. */
template <typename T>
static __global__ void scatter_columns(gather g, const T *dc, T *dh, weft_cuda_run *run, int node) {
    __shared__ int32_t list[THREADS];
    __shared__ int counts[WARPS];
    int64_t b = blockIdx.x / g.keys, j = blockIdx.x % g.keys, total = g.rows * g.k;
    int64_t f = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * VECTOR;
    int count = (int)max_i64(0, min_i64(VECTOR, g.width - f));
    bool whole = g.width % VECTOR == 0;
    float sum[VECTOR] = {};
    for (int64_t first = 0; first < total; first += THREADS) {
        int64_t e = b * total + first + threadIdx.x;
        if (j == 0 && blockIdx.y == 0 && first + threadIdx.x < total &&
            (g.index[e] < -1 || g.index[e] >= g.keys))
            note_fault(run, node, e);
        int found = collect_entries(g, b, j, first, list, counts);
        for (int i = 0; i < found && count > 0; i += AT_ONCE) {
            float w[AT_ONCE], value[AT_ONCE][VECTOR] = {};
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) {
                int entry = list[i + a < found ? i + a : i];
                w[a] = i + a < found ? g.weight[b * total + entry] : 0;
                read_values(dc + (b * g.rows + entry / g.k) * g.width + f, count, whole, value[a]);
            }
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    sum[v] = fmaf(w[a], value[a][v], sum[v]);
        }
        __syncthreads();
    }
    T *to = dh + (b * g.keys + j) * g.width + f;
    if (whole && count > 0)
        store_vector(to, sum);
    else
        for (int v = 0; v < count; v++)
            to[v] = from_float<T>(sum[v]);
}

static weft_status route_gather_back_run(weft_exec *x, const weft_node *n) {
    if (weft_cuda_slab_gradient(x, n)) return launched(n);
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        const weft_tensor *dc = weft_gather_input(n, i), *dh = n->out[i];
        gather g = make_gather(x, n, dh->shape[2], dh->shape[1]);
        dim3 grid((unsigned)(dh->shape[0] * g.keys), (unsigned)ceil_div(g.width, THREADS * VECTOR));
        with_type(dc, [&](auto tag) {
            using T = decltype(tag);
            scatter_columns<T><<<grid, THREADS, 0, stream_of(x)>>>(
                g, data_of<T>(x, dc), data_of<T>(x, dh), device_run(x), n->index);
        });
    }
    return launched(n);
}

static int64_t route_gather_back_workspace(const weft_node *n, int threads) {
    (void)threads;
    return weft_cuda_slab_gradient_workspace(n);
}

CUDA_KERNEL(route_gather_back, route_gather_back_run, route_gather_back_workspace, explain_index)

/* route_gather from slabs (routing_slab.cuh): the plan has the k entries of each row, a group makes a
 * row's sum.
 *
 * Two neighbouring groups read shared memory in the same instant, and get in each other's way where
 * both rows are even or both odd; so a row's entries come in an order that has the even ones first
 * in even rows, the odd ones in odd rows. */
#include "cuda/routing_slab.cuh"

enum { TOGETHER = 8 /* rows whose entries lie side by side in the plan */ };

/* plan[row / TOGETHER][pair][row % TOGETHER]: two entries each. */

static int64_t pairs_of(int64_t k) {
    return ceil_div(k, 2);
}

static int64_t sums_entries(int64_t rows, int64_t k) {
    return ceil_div(rows, TOGETHER) * TOGETHER * pairs_of(k) * 2;
}

/* Where in its row's order an entry comes: the suitable ones, the others, those that are not there. */
__device__ static inline int order_of(int row, int j, int rows) {
    return j < 0 || j >= rows ? 2 : (j + row) % 2;
}

/* A thread an entry of a sequence's plan, those behind the last row and behind k included. It finds
 * its place by looking at the whole row. */
static __global__ void plan_sums(slab_shape s, int k, int pairs, const int32_t *__restrict__ index,
                                 const float *__restrict__ weight, uint2 *__restrict__ plan,
                                 weft_cuda_run *run, int node) {
    int rows = (int)s.out_rows, padded = (rows + TOGETHER - 1) / TOGETHER * TOGETHER;
    int at = (int)thread_index(), row = at / (2 * pairs), m = at % (2 * pairs), place = m;
    if (row >= padded) return;
    uint2 entry = make_entry(s.in_rows, 0);
    if (row < rows && m < k) {
        int64_t first = ((int64_t)blockIdx.y * rows + row) * k;
        int keys = (int)s.in_rows, j = index[first + m], order = order_of(row, j, keys);
        place = 0;
#pragma unroll 8
        for (int i = 0; i < k; i++) {
            int other = order_of(row, index[first + i], keys);
            place += other < order || (other == order && i < m);
        }
        if (order < 2) entry = make_entry(j, weight[first + m]);
        if (j < -1 || j >= keys) note_fault(run, node, first + m);
    }
    plan += ((int64_t)blockIdx.y * padded + row / TOGETHER * TOGETHER) * pairs * 2;
    plan[(place / 2 * TOGETHER + row % TOGETHER) * 2 + place % 2] = entry;
}

/* PAIRS > 0: that many, known to the compiler; a row's entries are read while the row before it is
 * added up. */
template <typename T, bool ALIGNED, int PAIRS>
static __global__ void __launch_bounds__(THREADS)
    sum_slab(slab_shape s, int pairs, const uint4 *plan, slab_data<T> data) {
    extern __shared__ __align__(128) unsigned char slab[];
    constexpr int HELD = PAIRS > 0 ? PAIRS : 1;
    slab_place<T> p = find_place(s, data);
    int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES, rows = (int)s.out_rows;
    int padded = (rows + TOGETHER - 1) / TOGETHER * TOGETHER;
    plan += (int64_t)blockIdx.y * padded * pairs;
    uint4 held[HELD];
    if (PAIRS > 0 && group < rows)
#pragma unroll
        for (int i = 0; i < HELD; i++)
            held[i] = plan[(group / TOGETHER * pairs + i) * TOGETHER + group % TOGETHER];
    load_slab<ALIGNED>(slab, (int)s.in_rows, p);
    __syncthreads();
    const unsigned char *own = slab + lane * 16;
    for (int row = group; row < rows && p.count > 0; row += GROUPS) {
        float sum[PIECE<T>] = {};
        if (PAIRS > 0) {
            uint4 value[2 * HELD];
            float w[2 * HELD];
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                value[2 * i] = *(const uint4 *)(own + held[i].x);
                value[2 * i + 1] = *(const uint4 *)(own + held[i].z);
                w[2 * i] = __uint_as_float(held[i].y);
                w[2 * i + 1] = __uint_as_float(held[i].w);
            }
            int next = row + GROUPS;
            if (next < rows)
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    held[i] = plan[(next / TOGETHER * pairs + i) * TOGETHER + next % TOGETHER];
#pragma unroll
            for (int e = 0; e < 2 * HELD; e++)
                add_scaled(sum, w[e], value[e]);
        } else {
            for (int i = 0; i < pairs; i++) {
                uint4 e = plan[(row / TOGETHER * pairs + i) * TOGETHER + row % TOGETHER];
                add_scaled(sum, __uint_as_float(e.y), *(const uint4 *)(own + e.x));
                add_scaled(sum, __uint_as_float(e.w), *(const uint4 *)(own + e.z));
            }
        }
        store_columns<ALIGNED>(p.out + row * p.width, p.count, sum);
    }
}

static bool sums_fit(const weft_node *n) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    return slab_bytes(h->shape[1]) <= MOST_SHARED && index->shape[1] * index->shape[2] < 1 << 24 &&
           h->shape[0] <= 65535;
}

int64_t weft_cuda_slab_sums_workspace(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    if (!sums_fit(n)) return 0;
    return align_bytes(index->shape[0] * sums_entries(index->shape[1], index->shape[2]) *
                       (int64_t)sizeof(uint2));
}

template <typename T, bool ALIGNED, int PAIRS>
static void launch_sums(const weft_exec *x, const weft_node *n, const slab_shape &s, int pairs) {
    int bytes = (int)slab_bytes(s.in_rows);
    cudaFuncSetAttribute(sum_slab<T, ALIGNED, PAIRS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    sum_slab<T, ALIGNED, PAIRS><<<slab_grid(s), THREADS, (size_t)bytes, stream_of(x)>>>(
        s, pairs, workspace_of<uint4>(x, n), find_slabs<T>(x, n));
}

bool weft_cuda_slab_sums(weft_exec *x, const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    if (!sums_fit(n)) return false;
    slab_shape s = make_slabs(n);
    int64_t pairs = pairs_of(index->shape[2]);
    int64_t entries = sums_entries(s.out_rows, index->shape[2]);
    dim3 grid((unsigned)ceil_div(entries, 256), (unsigned)s.batch);
    plan_sums<<<grid, 256, 0, stream_of(x)>>>(s, (int)index->shape[2], (int)pairs,
                                              data_of<int32_t>(x, index),
                                              data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]),
                                              workspace_of<uint2>(x, n), device_run(x), n->index);
    with_type(n->in[WEFT_GATHER_H], [&](auto tag) {
        using T = decltype(tag);
        if (!is_aligned<T>(s))
            launch_sums<T, false, 0>(x, n, s, (int)pairs);
        else if (pairs == 4)
            launch_sums<T, true, 4>(x, n, s, 4);
        else
            launch_sums<T, true, 0>(x, n, s, (int)pairs);
    });
    return true;
}

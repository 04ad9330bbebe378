/* route_gather from slabs (slab.cuh): the schedule has the k entries of each row, a group makes a
 * row's sum.
 *
 * Two neighbouring groups read shared memory in the same instant, and get in each other's way where
 * both rows are even or both odd; so a row's entries come in an order that has the even ones first
 * in even rows, the odd ones in odd rows.
 *
 * The slab comes in chunks of rows, and sums begin when the rows are there that they need, as the
 * schedule says: of a causal route's first rows, the first chunk. */
#include "cuda/routing/slab.cuh"

enum {
    TOGETHER = 8, /* rows whose entries lie side by side in the schedule */
    CHUNKS = 4,   /* of a slab */
    SCHEDULE_THREADS = 64
};

/* A schedule: for all sequences schedule[row / TOGETHER][pair][row % TOGETHER], two entries each; then
 * for each 32 rows of each sequence how many rows of the slab they need. */

static int64_t pairs_of(int64_t k) {
    return ceil_div(k, 2);
}

/* Rows are filled up to what a warp of the schedule's kernel has. */
static int64_t padded_rows(int64_t rows) {
    return ceil_div(rows, 32) * 32;
}

static int64_t sums_bytes(int64_t batch, int64_t rows, int64_t k) {
    int64_t padded = padded_rows(rows);
    return batch *
           (padded * pairs_of(k) * (int64_t)sizeof(uint4) + padded / 32 * (int64_t)sizeof(int));
}

/* Where in its row's order an entry comes: the suitable ones, the others, those that are not there. */
__device__ static inline int order_of(int row, int j, int rows) {
    return j < 0 || j >= rows ? 2 : (j + row) % 2;
}

/* A thread a row, those behind the last included. */
static __global__ void __launch_bounds__(SCHEDULE_THREADS)
    schedule_sums(slab_shape s, int k, int pairs, const int32_t *__restrict__ index,
                  const float *__restrict__ weight, uint2 *__restrict__ schedule,
                  weft_cuda_run *run, int node) {
    int rows = (int)s.out_rows, keys = (int)s.in_rows, padded = (rows + 31) / 32 * 32;
    int row = (int)thread_index(), b = (int)blockIdx.y, need = 0, place[3] = {0, 0, 0};
    if (row >= padded) return;
    int64_t first = ((int64_t)b * rows + row) * k;
    int there = row < rows ? k : 0;
    int *needs = (int *)(schedule + (int64_t)gridDim.y * padded * pairs * 2);
    schedule += ((int64_t)b * padded + row / TOGETHER * TOGETHER) * pairs * 2 + row % TOGETHER * 2;
    for (int m = 0; m < there; m++) {
        int order = order_of(row, index[first + m], keys);
        place[1] += order == 0;
        place[2] += order < 2;
    }
    int end = place[2];
    for (int m = 0; m < there; m++) {
        int j = index[first + m], order = order_of(row, j, keys);
        if (j < -1 || j >= keys) note_fault(run, node, first + m);
        if (order == 2) continue;
        need = max(need, j + 1);
        int at = order == 0 ? place[0]++ : place[1]++;
        schedule[at / 2 * TOGETHER * 2 + at % 2] = make_entry(j, weight[first + m]);
    }
    for (int at = end; at < 2 * pairs; at++)
        schedule[at / 2 * TOGETHER * 2 + at % 2] = make_entry(keys, 0);
    need = __reduce_max_sync(0xffffffffu, need);
    if (threadIdx.x % 32 == 0) needs[(b * padded + row) / 32] = need;
}

template <int HELD>
__device__ static inline void read_pairs(const uint4 *schedule, int pairs, int row,
                                         uint4 (&held)[HELD]) {
#pragma unroll
    for (int i = 0; i < HELD; i++)
        held[i] = schedule[(row / TOGETHER * pairs + i) * TOGETHER + row % TOGETHER];
}

/* One row's sum; PAIRS > 0: of that many pairs, which `held` has, and those of row `next` are read
 * into it meanwhile. */
template <int PAIRS, int HELD, int N>
__device__ static inline void sum_row(const unsigned char *own, const uint4 *schedule, int pairs,
                                      int row, int next, int rows, uint4 (&held)[HELD],
                                      float (&sum)[N]) {
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
        if (next < rows) read_pairs(schedule, pairs, next, held);
#pragma unroll
        for (int e = 0; e < 2 * HELD; e++)
            add_scaled(sum, w[e], value[e]);
    } else {
        for (int i = 0; i < pairs; i++) {
            uint4 e = schedule[(row / TOGETHER * pairs + i) * TOGETHER + row % TOGETHER];
            add_scaled(sum, __uint_as_float(e.y), *(const uint4 *)(own + e.x));
            add_scaled(sum, __uint_as_float(e.w), *(const uint4 *)(own + e.z));
        }
    }
}

/* Waits for chunk `at` of the slab. */
__device__ static inline void wait_chunk(int at) {
    static_assert(CHUNKS == 4, "a number of groups for each");
    if (at == 0)
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (at == 1)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (at == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}

/* PAIRS > 0: that many, known to the compiler. */
template <typename T, bool ALIGNED, int PAIRS>
static __global__ void __launch_bounds__(THREADS)
    sum_slab(slab_shape s, int pairs, const uint4 *schedule, slab_data<T> data) {
    extern __shared__ __align__(128) unsigned char slab[];
    slab_place<T> p = find_place(s, data);
    int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES, rows = (int)s.out_rows;
    int padded = (rows + 31) / 32 * 32, in_rows = (int)s.in_rows;
    const int *needs = (const int *)(schedule + (int64_t)s.batch * padded * pairs);
    needs += (int64_t)blockIdx.y * padded / 32;
    schedule += (int64_t)blockIdx.y * padded * pairs;
    int chunk = (in_rows + CHUNKS * GROUPS - 1) / (CHUNKS * GROUPS) * GROUPS, have = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        load_rows<ALIGNED>(slab, min(in_rows, c * chunk), min(in_rows, (c + 1) * chunk), p);
    clear_row(slab, in_rows);
    /* What all groups need. */
    auto need_from = [&](int first) {
        int need = 0;
#pragma unroll
        for (int i = 0; i < GROUPS && first + i < padded; i += 32)
            need = max(need, needs[(first + i) / 32]);
        return need;
    };
    uint4 held[PAIRS > 0 ? PAIRS : 1];
    if (PAIRS > 0 && group < rows) read_pairs(schedule, pairs, group, held);
    int need = need_from(0);
    for (int first = 0; first < rows; first += GROUPS) {
        while (have == 0 || have * chunk < need)
            wait_chunk(have++);
        int row = first + group, next = first + GROUPS;
        if (next < rows) need = need_from(next);
        if (row >= rows || p.count == 0) continue;
        float sum[PIECE<T>] = {};
        sum_row<PAIRS>(slab + lane * 16, schedule, pairs, row, row + GROUPS, rows, held, sum);
        store_columns<ALIGNED>(p.out + row * p.width, p.count, sum);
    }
}

static bool sums_fit(const weft_node *n) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    return slab_bytes(h->shape[1]) <= weft_cuda_device()->shared_memory &&
           index->shape[1] * index->shape[2] < 1 << 24 && h->shape[0] <= 65535;
}

int64_t weft_cuda_slab_sums_workspace(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    if (!sums_fit(n)) return 0;
    return align_bytes(sums_bytes(index->shape[0], index->shape[1], index->shape[2]));
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
    dim3 grid((unsigned)ceil_div(s.out_rows, SCHEDULE_THREADS), (unsigned)s.batch);
    schedule_sums<<<grid, SCHEDULE_THREADS, 0, stream_of(x)>>>(
        s, (int)index->shape[2], (int)pairs, data_of<int32_t>(x, index),
        data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), workspace_of<uint2>(x, n), device_run(x),
        n->index);
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

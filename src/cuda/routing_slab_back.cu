/* route_gather's gradient from slabs (routing_slab.cuh): a column of dh is the sum of the rows of dc
 * that kept it.
 *
 * The plan has all entries of a sequence sorted by column, and within a column by row; a column
 * without any gets one that adds nothing. This stream is cut into equal parts, one for each group,
 * whatever the columns' lengths: a column that every row keeps is shared by many groups. A group
 * adds up and stores at the end of each column. What a part leaves unfinished at its end goes to
 * shared memory, and the group that meets the column's end adds these in order. */
#include "cuda/routing_slab.cuh"

enum {
    AT_ONCE = 4, /* entries of the stream that are on their way together */
    SORT_WARPS = 16,
    SORT_THREADS = 32 * SORT_WARPS,
    MOST_ENTRIES = 65535 /* of a sequence: counts are of 16 bits */
};

static const unsigned LAST = 0x80000000u; /* in an entry's place: the last of its column */

/* A sequence's plan: the parts' length, for each part its first column and the part
 * where that column begins, and the stream, entry e of part g at [e / 2][g][e % 2]. */
typedef struct {
    int length;
    int2 part[GROUPS]; /* column, part that has its first entry */
} part_list;

static const int64_t LIST_BYTES = (sizeof(part_list) + 255) / 256 * 256;

static int64_t longest_part(int64_t entries, int64_t columns) {
    return ceil_div(ceil_div(entries + columns, GROUPS), AT_ONCE) * AT_ONCE;
}

static int64_t plan_bytes(int64_t entries, int64_t columns) {
    return LIST_BYTES + longest_part(entries, columns) * GROUPS * (int64_t)sizeof(uint2);
}

__device__ static inline void place_entry(uint2 *stream, int length, int at, uint2 entry) {
    int part = at / length, e = at % length;
    stream[(e / 2 * GROUPS + part) * 2 + e % 2] = entry;
}

/* Sorts a sequence's entries by column. Each warp has a run of entries; count[warp][j] is how many
 * of them name column j, then how many of the warps before it do, then of all entries before the
 * one at hand. first[j] is where the column begins in the stream. */
typedef struct {
    int64_t entries, k;
    const int32_t *index;
    const float *weight;
    int64_t stride; /* bytes of a plan */
} sort_problem;

__device__ static inline unsigned same_column(int j) {
    return __match_any_sync(0xffffffffu, j);
}

/* Column of entry `e`, or -1: none, or behind the warp's run. */
__device__ static inline int column_at(const int32_t *index, int e, int end, int columns) {
    int j = e < end ? index[e] : -1;
    return j < columns ? j : -1;
}

__device__ static inline void count_columns(const int32_t *index, int from, int end, int columns,
                                            uint16_t *count) {
    int lane = (int)threadIdx.x % 32;
    for (int e = from; e < end; e += 32) {
        int j = column_at(index, e + lane, end, columns);
        unsigned same = same_column(j);
        if (j >= 0 && __ffs((int)same) - 1 == lane) count[j] = (uint16_t)(count[j] + __popc(same));
        __syncwarp();
    }
}

/* Exclusive sum over the block's threads; *all gets the sum. */
__device__ static inline int sum_before(int value, int *shared, int *all) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    int before = 0, total = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
        before += w < warp ? shared[w] : 0;
        total += shared[w];
    }
    *all = total;
    return before + sum - value;
}

/* The largest j with first[j] ≤ at. */
__device__ static inline int column_of(const int *first, int columns, int at) {
    int low = 0, high = columns - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (first[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

__device__ static inline void place_run(const sort_problem &p, const int32_t *index,
                                        const float *weight, int from, int end, int columns,
                                        uint16_t *count, const int *first, int length,
                                        uint2 *stream) {
    int lane = (int)threadIdx.x % 32;
    for (int e = from; e < end; e += 32) {
        int j = column_at(index, e + lane, end, columns);
        unsigned same = same_column(j);
        int at = 0;
        if (j >= 0) at = first[j] + count[j] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (j >= 0) {
            if (__ffs((int)same) - 1 == lane) count[j] = (uint16_t)(count[j] + __popc(same));
            uint2 entry = make_entry((e + lane) / (int)p.k, weight[e + lane]);
            if (at + 1 == first[j + 1]) entry.x |= LAST;
            place_entry(stream, length, at, entry);
        }
        __syncwarp();
    }
}

static __global__ void __launch_bounds__(SORT_THREADS)
    plan_gradient(slab_shape s, sort_problem p, unsigned char *plan, weft_cuda_run *run, int node) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int sums[SORT_WARPS];
    int columns = (int)s.out_rows, entries = (int)p.entries, warp = (int)threadIdx.x / 32;
    int *first = (int *)memory;
    uint16_t *count = (uint16_t *)(first + columns + 1);
    const int32_t *index = p.index + blockIdx.x * p.entries;
    const float *weight = p.weight + blockIdx.x * p.entries;
    part_list *parts = (part_list *)(plan + blockIdx.x * p.stride);
    uint2 *stream = (uint2 *)(plan + blockIdx.x * p.stride + LIST_BYTES);
    for (int i = (int)threadIdx.x; i < SORT_WARPS * columns; i += SORT_THREADS)
        count[i] = 0;
    for (int e = (int)threadIdx.x; e < entries; e += SORT_THREADS)
        if (index[e] < -1 || index[e] >= columns) note_fault(run, node, blockIdx.x * p.entries + e);
    __syncthreads();
    int step = (entries + 32 * SORT_WARPS - 1) / (32 * SORT_WARPS) * 32;
    int from = min(entries, warp * step), end = min(entries, from + step);
    count_columns(index, from, end, columns, count + warp * columns);
    __syncthreads();

    int each = (columns + SORT_THREADS - 1) / SORT_THREADS, total = 0;
    int begin = min(columns, (int)threadIdx.x * each), stop = min(columns, begin + each);
    for (int j = begin; j < stop; j++) {
        int before = 0;
        for (int w = 0; w < SORT_WARPS; w++) {
            int here = count[w * columns + j];
            count[w * columns + j] = (uint16_t)before;
            before += here;
        }
        first[j] = before; /* the column's length, until its place is known */
        total += max(1, before);
    }
    int all, place = sum_before(total, sums, &all);
    int length = ((all + GROUPS - 1) / GROUPS + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    uint2 none = make_entry(s.in_rows, 0);
    for (int j = begin; j < stop; j++) {
        int here = first[j];
        first[j] = place;
        if (here == 0) place_entry(stream, length, place, make_uint2(none.x | LAST, none.y));
        place += max(1, here);
    }
    if (threadIdx.x == 0) {
        first[columns] = all;
        parts->length = length;
    }
    for (int at = all + (int)threadIdx.x; at < length * GROUPS; at += SORT_THREADS)
        place_entry(stream, length, at, none);
    __syncthreads();
    place_run(p, index, weight, from, end, columns, count + warp * columns, first, length, stream);
    for (int g = (int)threadIdx.x; g < GROUPS; g += SORT_THREADS) {
        int j = column_of(first, columns, g * length);
        parts->part[g] = make_int2(j, first[j] / length);
    }
}

/* A thread's columns of a group's sum. */
template <typename T, bool ALIGNED> struct column_sum {
    float sum[PIECE<T>];
    float *head; /* in shared memory: the sum of the first column, where a part before began it */
    bool waits;  /* that column's end has not been met */
    T *to;

    __device__ void add(const uint2 &entry, const uint4 &value, int64_t width, int count) {
        add_scaled(sum, __uint_as_float(entry.y), value);
        if ((entry.x & LAST) == 0) return;
        if (waits) {
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++)
                head[i] = sum[i];
            waits = false;
        } else {
            store_columns<ALIGNED>(to, count, sum);
        }
#pragma unroll
        for (int i = 0; i < PIECE<T>; i++)
            sum[i] = 0;
        to += width;
    }
};

/* Adds up a part of the stream; `held` has its first entries. */
template <typename T, bool ALIGNED>
__device__ static inline void add_part(column_sum<T, ALIGNED> &c, const unsigned char *own,
                                       const uint4 *stream, uint4 (&held)[AT_ONCE / 2], int length,
                                       int64_t width, int count) {
    for (int e = 0; e < length; e += AT_ONCE) {
        uint4 value[AT_ONCE];
        uint2 entry[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            uint4 pair = held[i / 2];
            entry[i] = i % 2 ? make_uint2(pair.z, pair.w) : make_uint2(pair.x, pair.y);
            value[i] = *(const uint4 *)(own + (entry[i].x & ~LAST));
        }
        stream += AT_ONCE / 2 * GROUPS;
        if (e + AT_ONCE < length)
#pragma unroll
            for (int i = 0; i < AT_ONCE / 2; i++)
                held[i] = stream[i * GROUPS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            c.add(entry[i], value[i], width, count);
    }
}

/* Shared memory: the slab, later the parts' rests; the parts' heads. */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    spread_slab(slab_shape s, const unsigned char *plan, int64_t stride, int head_at, const T *in,
                T *out) {
    extern __shared__ __align__(128) unsigned char slab[];
    constexpr int N = PIECE<T>;
    int64_t b = blockIdx.y, first = (int64_t)blockIdx.x * LANES * N;
    int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    int64_t column = first + lane * N;
    int count = (int)max_i64(0, min_i64(N, s.width - column));
    const part_list *parts = (const part_list *)(plan + b * stride);
    const uint4 *stream = (const uint4 *)(plan + b * stride + LIST_BYTES) + group;
    int2 part = parts->part[group];
    float *rests = (float *)slab + lane * N, *heads = (float *)(slab + head_at) + lane * N;
    T *top = out + (b * s.out_rows + part.x) * s.width + column;
    column_sum<T, ALIGNED> c = {{}, heads + group * LANES * N, part.y != group, top};
    uint4 held[AT_ONCE / 2];
#pragma unroll
    for (int i = 0; i < AT_ONCE / 2; i++)
        held[i] = stream[i * GROUPS];
    load_slab<ALIGNED>(slab, s, in + b * s.in_rows * s.width, first);
    __syncthreads();
    /* Threads whose columns are not there have nothing to add or store. */
    add_part(c, slab + lane * 16, stream, held, count > 0 ? parts->length : 0, s.width, count);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
        rests[group * LANES * N + i] = c.sum[i];
    __syncthreads();
    if (part.y == group || c.waits) return;
    float sum[N] = {};
#pragma unroll 1
    for (int g = part.y; g < group; g++)
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += rests[g * LANES * N + i];
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] += c.head[i];
    store_columns<ALIGNED>(top, count, sum);
}

static int64_t sort_bytes(int64_t columns) {
    return (columns + 1) * (int64_t)sizeof(int) + SORT_WARPS * columns * (int64_t)sizeof(uint16_t);
}

/* A number for each part and column of a slab. */
static int64_t parts_bytes(const weft_tensor *dc) {
    return GROUPS * (PITCH / (int64_t)weft_dtype_size(dc->dtype)) * (int64_t)sizeof(float);
}

/* Where the heads begin. */
static int64_t heads_at(const weft_tensor *dc) {
    return max_i64(slab_bytes(dc->shape[1]), parts_bytes(dc));
}

static int64_t gradient_bytes(const weft_tensor *dc) {
    return heads_at(dc) + parts_bytes(dc);
}

static bool gradient_fits(const weft_node *n) {
    const weft_tensor *dc = n->in[0], *index = n->in[1], *dh = n->out[0];
    return gradient_bytes(dc) <= MOST_SHARED && sort_bytes(dh->shape[1]) <= MOST_SHARED - 1024 &&
           index->shape[1] * index->shape[2] <= MOST_ENTRIES && dh->shape[0] <= 65535;
}

int64_t weft_cuda_slab_gradient_workspace(const weft_node *n) {
    const weft_tensor *index = n->in[1], *dh = n->out[0];
    if (!gradient_fits(n)) return 0;
    return align_bytes(dh->shape[0] * plan_bytes(index->shape[1] * index->shape[2], dh->shape[1]));
}

template <typename T, bool ALIGNED>
static void launch_gradient(const weft_exec *x, const weft_node *n, const slab_shape &s,
                            int64_t stride) {
    int bytes = (int)gradient_bytes(n->in[0]);
    dim3 grid((unsigned)ceil_div(s.width, LANES * PIECE<T>), (unsigned)s.batch);
    cudaFuncSetAttribute(spread_slab<T, ALIGNED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    spread_slab<T, ALIGNED><<<grid, THREADS, (size_t)bytes, stream_of(x)>>>(
        s, workspace_of<unsigned char>(x, n), stride, (int)heads_at(n->in[0]),
        data_of<T>(x, n->in[0]), data_of<T>(x, n->out[0]));
}

bool weft_cuda_slab_gradient(weft_exec *x, const weft_node *n) {
    const weft_tensor *dc = n->in[0], *index = n->in[1], *dh = n->out[0];
    if (!gradient_fits(n)) return false;
    slab_shape s = {dc->shape[1], dh->shape[1], dh->shape[2], dh->shape[0]};
    sort_problem p = {index->shape[1] * index->shape[2], index->shape[2],
                      data_of<int32_t>(x, index), data_of<float>(x, n->in[2]), 0};
    p.stride = plan_bytes(p.entries, s.out_rows);
    unsigned char *plan = workspace_of<unsigned char>(x, n);
    int bytes = (int)sort_bytes(s.out_rows);
    cudaFuncSetAttribute(plan_gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    plan_gradient<<<(unsigned)s.batch, SORT_THREADS, (size_t)bytes, stream_of(x)>>>(
        s, p, plan, device_run(x), n->index);
    with_type(dc, [&](auto tag) {
        using T = decltype(tag);
        if (s.width % PIECE<T> == 0)
            launch_gradient<T, true>(x, n, s, p.stride);
        else
            launch_gradient<T, false>(x, n, s, p.stride);
    });
    return true;
}

/* route_gather's gradient from slabs (slab.cuh): a column of dh is the sum of the rows of dc
 * that kept it.
 *
 * The schedule has all entries of a sequence sorted by column, and within a column by row; columns are
 * filled up to a multiple of AT_ONCE, and those without any to AT_ONCE, with entries that add
 * nothing. This stream is cut into equal parts, one for each group, whatever the columns' lengths: a
 * column that every row keeps is shared by many groups. A group adds up and looks after AT_ONCE
 * entries whether the column ends, where it stores. What a part leaves unfinished at its end goes to
 * shared memory, and the group that meets the column's end adds these in order. */
#include "cuda/routing/slab.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

/* Clusters are 9.0's: other code has an empty kernel in the place of the sort, and gradient_fits takes
 * no node. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS
#define SORT_CLUSTER __cluster_dims__(SORT_BLOCKS, 1, 1)
#else
#define SORT_CLUSTER
#endif

enum {
    AT_ONCE = 4,     /* entries of the stream that are on their way together */
    AHEAD = 8,       /* and, times 32, of a list */
    SORT_BLOCKS = 4, /* of a sequence: a cluster */
    SORT_WARPS = 8,
    SORT_THREADS = 32 * SORT_WARPS,
    MOST_ENTRIES = 65535 /* of a sequence: counts are of 16 bits */
};

static const unsigned LAST = 0x80000000u; /* in an entry's place: the last of its column */

/* A sequence's schedule: the parts' length, for each part its first column and the part
 * where that column begins, and the stream, entry e of part g at [e / 2][g][e % 2]. */
typedef struct {
    int length;
    int2 part[GROUPS]; /* column, part that has its first entry */
} part_list;

static const int64_t LIST_BYTES = (sizeof(part_list) + 255) / 256 * 256;

static int64_t longest_part(int64_t entries, int64_t columns) {
    return ceil_div(ceil_div(entries + AT_ONCE * columns, GROUPS), AT_ONCE) * AT_ONCE;
}

static int64_t schedule_bytes(int64_t entries, int64_t columns) {
    return LIST_BYTES + longest_part(entries, columns) * GROUPS * (int64_t)sizeof(uint2);
}

typedef struct {
    int64_t entries, k; /* of a sequence */
    const int32_t *index;
    const float *weight;
    int64_t stride; /* bytes of a schedule */
} sort_problem;

/* The sort of a sequence's entries by column, by a cluster of blocks. Each warp has a run of entries;
 * count[warp][j] is how many of them name column j, then how many of the block's warps before it do,
 * then of its entries before the one at hand. own[j] is the block's sum, which the others read.
 * first[j] is where the column begins in the stream, from[j] where the block's own entries do. */
typedef struct {
    int columns, k;
    int begin, end; /* the warp's run */
    const int32_t *index;
    const float *weight;
    int *own, *first, *from;
    uint16_t *count; /* of all warps */
    uint2 *stream;
    part_list *parts;
} sort_state;

#ifdef HAS_CLUSTERS
/* Division by a number that many are divided by: a / b where a · b < 2³². */
__device__ static inline unsigned reciprocal_of(unsigned b) {
    return 0xffffffffu / b + 1; /* 0 for b = 1 */
}

__device__ static inline int divide(int a, unsigned reciprocal) {
    return reciprocal == 0 ? a : (int)__umulhi((unsigned)a, reciprocal);
}

/* What the next AHEAD times 32 entries name: loads that are on their way together. */
__device__ static inline void read_columns(const sort_state &s, int e, int (&j)[AHEAD]) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int at = e + 32 * i + (int)threadIdx.x % 32;
        j[i] = at < s.end ? s.index[at] : -1;
    }
}

/* Whether a column may be added to. */
__device__ static inline bool is_column(const sort_state &s, int j) {
    return j >= 0 && j < s.columns;
}

__device__ static inline bool is_first(unsigned lanes) {
    return __ffs((int)lanes) - 1 == (int)threadIdx.x % 32;
}

/* `before`: entries of the sequences before. */
__device__ static inline void count_run(const sort_state &s, int64_t before, weft_cuda_run *run,
                                        int node) {
    uint16_t *count = s.count + (int)threadIdx.x / 32 * s.columns;
    for (int e = s.begin; e < s.end; e += 32 * AHEAD) {
        int j[AHEAD];
        read_columns(s, e, j);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            unsigned same = __match_any_sync(0xffffffffu, j[i]);
            if (is_column(s, j[i]) && is_first(same))
                count[j[i]] = (uint16_t)(count[j[i]] + __popc(same));
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (j[i] < -1 || j[i] >= s.columns)
                note_fault(run, node, before + e + 32 * i + (int)threadIdx.x % 32);
    }
}

__device__ static inline void place_entry(uint2 *stream, int length, int part, int at,
                                          uint2 entry) {
    int e = at - part * length;
    stream[(e / 2 * GROUPS + part) * 2 + e % 2] = entry;
}

__device__ static inline void place_run(const sort_state &s, int length) {
    int lane = (int)threadIdx.x % 32;
    uint16_t *count = s.count + (int)threadIdx.x / 32 * s.columns;
    unsigned by_k = reciprocal_of((unsigned)s.k), by_length = reciprocal_of((unsigned)length);
    for (int e = s.begin; e < s.end; e += 32 * AHEAD) {
        int j[AHEAD];
        float weight[AHEAD];
        read_columns(s, e, j);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            weight[i] = e + 32 * i + lane < s.end ? s.weight[e + 32 * i + lane] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            unsigned same = __match_any_sync(0xffffffffu, j[i]);
            bool there = is_column(s, j[i]);
            int at = 0;
            if (there) at = s.from[j[i]] + count[j[i]] + __popc(same & ((1u << lane) - 1));
            __syncwarp();
            if (there) {
                if (is_first(same)) count[j[i]] = (uint16_t)(count[j[i]] + __popc(same));
                uint2 entry = make_entry(divide(e + 32 * i + lane, by_k), weight[i]);
                if (at + 1 == s.first[j[i] + 1]) entry.x |= LAST;
                place_entry(s.stream, length, divide(at, by_length), at, entry);
            }
            __syncwarp();
        }
    }
}

/* Turns the warps' counts of column j into those of the warps before; returns the sum. */
__device__ static inline int sum_warps(const sort_state &s, int j) {
    int here[SORT_WARPS], sum = 0;
#pragma unroll
    for (int w = 0; w < SORT_WARPS; w++)
        here[w] = s.count[w * s.columns + j];
#pragma unroll
    for (int w = 0; w < SORT_WARPS; w++) {
        s.count[w * s.columns + j] = (uint16_t)sum;
        sum += here[w];
    }
    return sum;
}

/* The entries of column j in all blocks; *before gets those of the blocks before this one. */
__device__ static inline int sum_blocks(const sort_state &s, int j, int *before) {
    cg::cluster_group cluster = cg::this_cluster();
    int sum = 0, here[SORT_BLOCKS];
#pragma unroll
    for (int b = 0; b < SORT_BLOCKS; b++)
        here[b] = *cluster.map_shared_rank(s.own + j, b);
#pragma unroll
    for (int b = 0; b < SORT_BLOCKS; b++) {
        if (b == (int)cluster.block_rank()) *before = sum;
        sum += here[b];
    }
    return sum;
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

__device__ static inline int fill_up(int entries) {
    return max(1, (entries + AT_ONCE - 1) / AT_ONCE) * AT_ONCE;
}

/* Places what fills column j up to `end`. */
__device__ static inline void fill_column(const sort_state &s, int length, int at, int end,
                                          uint2 none) {
    for (; at < end; at++) {
        uint2 entry = none;
        if (at + 1 == end) entry.x |= LAST;
        place_entry(s.stream, length, at / length, at, entry);
    }
}

/* Finds where columns begin, places the entries that add nothing, and says what the parts begin with;
 * returns their length. Blocks share what is placed. */
__device__ static inline int place_columns(const sort_state &s, uint2 none, int *shared) {
    int each = (s.columns + SORT_THREADS - 1) / SORT_THREADS, total = 0, all, before = 0;
    int begin = min(s.columns, (int)threadIdx.x * each), stop = min(s.columns, begin + each);
    int rank = (int)cg::this_cluster().block_rank();
    for (int j = begin; j < stop; j++) {
        s.first[j] = sum_blocks(s, j, &before); /* its length, until its place is known */
        s.from[j] = before;
        total += fill_up(s.first[j]);
    }
    int place = sum_before(total, shared, &all);
    int length = ((all + GROUPS - 1) / GROUPS + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    for (int j = begin; j < stop; j++) {
        int here = s.first[j], end = place + fill_up(here);
        s.first[j] = place;
        s.from[j] += place;
        if (j % SORT_BLOCKS == rank) {
            int part = place / length;
            fill_column(s, length, place + here, end, none);
            for (int g = (place + length - 1) / length; g * length < end; g++)
                s.parts->part[g] = make_int2(j, part);
        }
        place = end;
    }
    if (threadIdx.x == 0) {
        s.first[s.columns] = all;
        s.parts->length = length;
    }
    for (int at = all + rank * SORT_THREADS + (int)threadIdx.x; at < length * GROUPS;
         at += SORT_BLOCKS * SORT_THREADS) {
        int part = at / length;
        place_entry(s.stream, length, part, at, none);
        if (at == part * length) s.parts->part[part] = make_int2(s.columns - 1, part);
    }
    return length;
}

#endif

static __global__ void SORT_CLUSTER __launch_bounds__(SORT_THREADS)
    schedule_gradient(slab_shape shape, sort_problem p, unsigned char *schedule, weft_cuda_run *run,
                      int node) {
#ifdef HAS_CLUSTERS
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ int sums[SORT_WARPS];
    cg::cluster_group cluster = cg::this_cluster();
    int columns = (int)shape.out_rows, entries = (int)p.entries, sequence = (int)blockIdx.y;
    int warp = (int)cluster.block_rank() * SORT_WARPS + (int)threadIdx.x / 32;
    int each = (entries + 32 * SORT_BLOCKS * SORT_WARPS - 1) / (32 * SORT_BLOCKS * SORT_WARPS) * 32;
    int begin = min(entries, warp * each);
    int64_t before = sequence * p.entries;
    unsigned char *own = schedule + sequence * p.stride;
    int *numbers = (int *)memory;
    sort_state s = {columns,
                    (int)p.k,
                    begin,
                    min(entries, begin + each),
                    p.index + before,
                    p.weight + before,
                    numbers,
                    numbers + columns,
                    numbers + 2 * columns + 1,
                    (uint16_t *)(numbers + 3 * columns + 1),
                    (uint2 *)(own + LIST_BYTES),
                    (part_list *)own};
    for (int i = (int)threadIdx.x; i < SORT_WARPS * columns / 2; i += SORT_THREADS)
        ((int *)s.count)[i] = 0;
    __syncthreads();
    count_run(s, before, run, node);
    __syncthreads();
    for (int j = (int)threadIdx.x; j < columns; j += SORT_THREADS)
        s.own[j] = sum_warps(s, j);
    cluster.sync();
    int length = place_columns(s, make_entry(shape.in_rows, 0), sums);
    auto read = cluster.barrier_arrive(); /* the other blocks' sums */
    __syncthreads();
    place_run(s, length);
    cluster.barrier_wait(std::move(read));
#endif
}

/* A thread's columns of a group's sum. */
template <typename T, bool ALIGNED> struct column_sum {
    float sum[PIECE<T>];
    float *head; /* in shared memory: the sum of the first column, where a part before began it */
    bool waits;  /* that column's end has not been met */
    T *to;

    /* At a column's end. */
    __device__ void finish(int64_t width, int count) {
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
        float w[AT_ONCE];
        bool ends = (held[AT_ONCE / 2 - 1].z & LAST) != 0;
        held[AT_ONCE / 2 - 1].z &= ~LAST;
#pragma unroll
        for (int i = 0; i < AT_ONCE / 2; i++) {
            value[2 * i] = *(const uint4 *)(own + held[i].x);
            value[2 * i + 1] = *(const uint4 *)(own + held[i].z);
            w[2 * i] = __uint_as_float(held[i].y);
            w[2 * i + 1] = __uint_as_float(held[i].w);
        }
        stream += AT_ONCE / 2 * GROUPS;
        if (e + AT_ONCE < length)
#pragma unroll
            for (int i = 0; i < AT_ONCE / 2; i++)
                held[i] = stream[i * GROUPS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            add_scaled(c.sum, w[i], value[i]);
        if (ends) c.finish(width, count);
    }
}

/* Shared memory: the slab, later the parts' rests; the parts' heads. */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    spread_slab(slab_shape s, const unsigned char *schedule, int64_t stride, int head_at,
                slab_data<T> data) {
    extern __shared__ __align__(128) unsigned char slab[];
    constexpr int N = PIECE<T>;
    slab_place<T> p = find_place(s, data);
    int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    schedule += blockIdx.y * stride;
    const part_list *parts = (const part_list *)schedule;
    const uint4 *stream = (const uint4 *)(schedule + LIST_BYTES) + group;
    int2 part = parts->part[group];
    float *rests = (float *)slab + lane * N, *heads = (float *)(slab + head_at) + lane * N;
    T *top = p.out + part.x * p.width;
    column_sum<T, ALIGNED> c = {{}, heads + group * LANES * N, part.y != group, top};
    uint4 held[AT_ONCE / 2];
#pragma unroll
    for (int i = 0; i < AT_ONCE / 2; i++)
        held[i] = stream[i * GROUPS];
    load_rows<ALIGNED>(slab, 0, (int)s.in_rows, p);
    clear_row(slab, (int)s.in_rows);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    /* Threads whose columns are not there have nothing to add or store. */
    add_part(c, slab + lane * 16, stream, held, p.count > 0 ? parts->length : 0, p.width, p.count);
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
    store_columns<ALIGNED>(top, p.count, sum);
}

static int64_t sort_bytes(int64_t columns) {
    return (3 * columns + 1) * (int64_t)sizeof(int) +
           SORT_WARPS * columns * (int64_t)sizeof(uint16_t);
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
    const weft_tensor *dc = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    const weft_tensor *dh = n->out[0];
    int64_t room = weft_cuda_device()->shared_memory;
    return weft_cuda_device()->code >= 90 && gradient_bytes(dc) <= room &&
           sort_bytes(dh->shape[1]) <= room - 1024 &&
           index->shape[1] * index->shape[2] <= MOST_ENTRIES && dh->shape[0] <= 65535;
}

int64_t weft_cuda_slab_gradient_workspace(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX], *dh = n->out[0];
    if (!gradient_fits(n)) return 0;
    return align_bytes(dh->shape[0] *
                       schedule_bytes(index->shape[1] * index->shape[2], dh->shape[1]));
}

template <typename T, bool ALIGNED>
static void launch_gradient(const weft_exec *x, const weft_node *n, const slab_shape &s,
                            int64_t stride) {
    int bytes = (int)gradient_bytes(n->in[WEFT_GATHER_H]);
    cudaFuncSetAttribute(spread_slab<T, ALIGNED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    spread_slab<T, ALIGNED><<<slab_grid(s), THREADS, (size_t)bytes, stream_of(x)>>>(
        s, workspace_of<unsigned char>(x, n), stride, (int)heads_at(n->in[WEFT_GATHER_H]),
        find_slabs<T>(x, n));
}

bool weft_cuda_slab_gradient(weft_exec *x, const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    if (!gradient_fits(n)) return false;
    slab_shape s = make_slabs(n);
    sort_problem p = {index->shape[1] * index->shape[2], index->shape[2],
                      data_of<int32_t>(x, index), data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), 0};
    p.stride = schedule_bytes(p.entries, s.out_rows);
    unsigned char *schedule = workspace_of<unsigned char>(x, n);
    int bytes = (int)sort_bytes(s.out_rows);
    cudaFuncSetAttribute(schedule_gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    schedule_gradient<<<dim3(SORT_BLOCKS, (unsigned)s.batch), SORT_THREADS, (size_t)bytes,
                        stream_of(x)>>>(s, p, schedule, device_run(x), n->index);
    with_type(n->in[WEFT_GATHER_H], [&](auto tag) {
        using T = decltype(tag);
        if (is_aligned<T>(s))
            launch_gradient<T, true>(x, n, s, p.stride);
        else
            launch_gradient<T, false>(x, n, s, p.stride);
    });
    return true;
}

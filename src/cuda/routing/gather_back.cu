/* The gradient of the sums along kept columns, the transposed sparse matrix times a dense one:
 * dh_j = Σ w_tm dc_t over the entries (t, m) with i_tm = j, in panels (panel.cuh).
 *
 * The index says which columns a row keeps; here a column must know its rows. So the entries of a
 * sequence are sorted by column first, and within a column by place, once for all panels. Both passes
 * are counting sorts that keep the order of equals:
 *
 *     sort_chunks     a block has a chunk of the entries, and sorts them by bucket: so many columns
 *                     that lie side by side
 *     sort_buckets    a block has a bucket, whose entries are a run in each chunk, and sorts them by
 *                     column
 *
 * Which piece of memory a bucket's entries get is left to chance (an integer is added to by all), but
 * not what is in it, and so no sum depends on it.
 *
 * Then a group adds up a column. Columns of more than LONG entries (the first token of a sequence
 * may be in every row's) are shared out among the groups of a block, and their sums added in order.
 *
 * Floor: dc is read and dh written once, at the memory's rate; the entries are moved twice, and their
 * rows read through the caches. */
#include "cuda/routing/panel.cuh"

#include <numeric>

enum {
    LONG = 128,
    SORT_THREADS = 512,
    SORT_WARPS = SORT_THREADS / 32,
    AHEAD = 4,                   /* times 32: entries that a warp has on their way together */
    CHUNK = 1024,                /* entries of a chunk, */
    MOST_CHUNKS = SORT_THREADS,  /* unless they would be more than these */
    FEW_COLUMNS = 64,            /* of a bucket, */
    MOST_BUCKETS = 1024,         /* likewise */
    MOST_COLUMNS = MOST_BUCKETS, /* that a block counts at one time */
    COUNT_BYTES = SORT_WARPS * MOST_BUCKETS * (int)sizeof(int)
};

/* A list of entries for each column. */
typedef struct {
    int2 *span;   /* [B, S]: where a column's entries begin and end in its sequence's */
    uint2 *entry; /* [B, T·k]: row, weight */
    int *longs;   /* how many columns are long */
    int2 *which;  /* and which: sequence, column */
    /* While it is made: */
    uint4 *part; /* [B, T·k]: column, row, weight; the chunks, by bucket */
    int *begin;  /* [B, chunks, buckets + 1]: where a bucket begins in a chunk */
    int *used;   /* [B]: entries whose place is known */
    /* Its sizes. */
    int64_t batch, entries; /* of a sequence */
    int columns, k;
    int chunk, chunks;  /* entries of a chunk, and how many */
    int shift, buckets; /* columns of a bucket as a power of two, and how many */
} column_lists;

/* Divides the workspace; without one (NULL) only measures it. Returns its bytes. */
static int64_t lay_out_lists(const weft_node *n, char *workspace, column_lists *c) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    workspace_pieces w = {workspace, 0};
    *c = {};
    c->batch = index->shape[0];
    c->entries = index->shape[1] * index->shape[2];
    c->columns = (int)n->out[0]->shape[1];
    c->k = (int)index->shape[2];
    c->chunk = (int)(ceil_div(max_i64(CHUNK, ceil_div(c->entries, MOST_CHUNKS)), 32) * 32);
    c->chunks = (int)ceil_div(c->entries, c->chunk);
    while (FEW_COLUMNS > 1 << c->shift ||
           ceil_div(c->columns, (int64_t)1 << c->shift) > MOST_BUCKETS)
        c->shift++;
    c->buckets = (int)ceil_div(c->columns, (int64_t)1 << c->shift);
    w.take(&c->span, c->batch * c->columns);
    w.take(&c->entry, c->batch * c->entries);
    w.take(&c->longs, 1);
    w.take(&c->which, c->batch * (c->entries / LONG));
    w.take(&c->part, c->batch * c->entries);
    w.take(&c->begin, c->batch * c->chunks * (c->buckets + 1));
    w.take(&c->used, c->batch);
    return w.bytes;
}

/* A counting sort by a block. Each warp has a run of items, in order, and numbers of its own, one for
 * each key: first how many of its items have the key, then where the next of them goes. An item
 * is a column, a row or place, and a weight. `item_at` gives that at a place, `key_of` its key; −1:
 * it is left out. */

__device__ static inline bool is_first(unsigned lanes) {
    return __ffs((int)lanes) - 1 == (int)threadIdx.x % 32;
}

typedef struct {
    int64_t begin, end;
} run_of_items;

__device__ static inline run_of_items find_run(int64_t items) {
    int64_t each = (items + 32 * SORT_WARPS - 1) / (32 * SORT_WARPS) * 32;
    int64_t begin = min_i64(items, threadIdx.x / 32 * each);
    return run_of_items{begin, min_i64(items, begin + each)};
}

/* Calls take(item, key, same) for the items of a run in order, AHEAD times 32 being read together;
 * `same`: the lanes whose items have the same key. */
template <typename ITEM, typename KEY, typename TAKE>
__device__ static inline void walk_run(const run_of_items &run, ITEM item_at, KEY key_of,
                                       TAKE take) {
    for (int64_t from = run.begin; from < run.end; from += 32 * AHEAD) {
        uint4 item[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t at = from + 32 * i + threadIdx.x % 32;
            item[i] = at < run.end ? item_at(at) : make_uint4(UINT32_MAX, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int key = key_of(item[i]);
            take(item[i], key, __match_any_sync(0xffffffffu, key));
            __syncwarp();
        }
    }
}

template <typename ITEM, typename KEY>
__device__ static inline void count_run(const run_of_items &run, int *count, ITEM item_at,
                                        KEY key_of) {
    walk_run(run, item_at, key_of, [&](const uint4 &, int key, unsigned same) {
        if (key >= 0 && is_first(same)) count[key] += __popc(same);
    });
}

/* put(item, place) */
template <typename ITEM, typename KEY, typename PUT>
__device__ static inline void place_run(const run_of_items &run, int *count, ITEM item_at,
                                        KEY key_of, PUT put) {
    walk_run(run, item_at, key_of, [&](const uint4 &item, int key, unsigned same) {
        int at = key >= 0 ? count[key] + __popc(same & ((1u << threadIdx.x % 32) - 1)) : 0;
        __syncwarp();
        if (key >= 0 && is_first(same)) count[key] += __popc(same);
        if (key >= 0) put(item, at);
    });
}

/* Exclusive sum over the block's threads; *all gets the sum. `shared` has SORT_WARPS numbers. */
__device__ static inline int sum_before(int value, int *shared, int *all) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads(); /* what the last call left has been read */
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

/* Turns all warps' counts into places; each(key, begin, end) for every key. Returns the number of
 * items. */
template <typename EACH>
__device__ static inline int find_places(int *counts, int keys, int *shared, EACH each) {
    int few = (keys + SORT_THREADS - 1) / SORT_THREADS, total = 0, all;
    int begin = min(keys, (int)threadIdx.x * few), end = min(keys, begin + few);
    __syncthreads();
    for (int key = begin; key < end; key++)
        for (int w = 0; w < SORT_WARPS; w++)
            total += counts[w * keys + key];
    int place = sum_before(total, shared, &all);
    for (int key = begin; key < end; key++) {
        int first = place;
        for (int w = 0; w < SORT_WARPS; w++) {
            int here = counts[w * keys + key];
            counts[w * keys + key] = place;
            place += here;
        }
        each(key, first, place);
    }
    __syncthreads();
    return all;
}

__device__ static inline void clear_counts(int *counts, int keys) {
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SORT_WARPS * keys; i += SORT_THREADS)
        counts[i] = 0;
    __syncthreads();
}

static __global__ void __launch_bounds__(SORT_THREADS)
    sort_chunks(column_lists c, const int32_t *__restrict__ index, const float *__restrict__ weight,
                weft_cuda_run *run, int node) {
    extern __shared__ int counts[];
    __shared__ int sums[SORT_WARPS];
    int64_t b = blockIdx.x / c.chunks, chunk = blockIdx.x % c.chunks;
    int64_t first = chunk * c.chunk, before = b * c.entries + first;
    int *begin = c.begin + blockIdx.x * (int64_t)(c.buckets + 1);
    run_of_items own = find_run(min_i64(c.chunk, c.entries - first));
    auto item_at = [&](int64_t at) {
        int column = index[before + at];
        if (column < -1 || column >= c.columns) note_fault(run, node, before + at);
        return make_uint4((unsigned)column, (unsigned)(first + at),
                          __float_as_uint(weight[before + at]), 0);
    };
    auto key_of = [&](const uint4 &item) {
        return item.x < (unsigned)c.columns ? (int)(item.x >> c.shift) : -1;
    };
    int *count = counts + threadIdx.x / 32 * c.buckets;
    if (threadIdx.x == 0 && chunk == 0) c.used[b] = 0;
    if (threadIdx.x == 0 && blockIdx.x == 0) *c.longs = 0;
    clear_counts(counts, c.buckets);
    count_run(own, count, item_at, key_of);
    int all = find_places(counts, c.buckets, sums,
                          [&](int bucket, int from, int) { begin[bucket] = from; });
    if (threadIdx.x == 0) begin[c.buckets] = all;
    place_run(own, count, item_at, key_of, [&](const uint4 &item, int at) {
        c.part[before + at] = make_uint4(item.x, item.y / (unsigned)c.k, item.z, 0);
    });
}

static __global__ void __launch_bounds__(SORT_THREADS) sort_buckets(column_lists c) {
    extern __shared__ int counts[];
    __shared__ int sums[SORT_WARPS], until[MOST_CHUNKS], base;
    __shared__ int64_t from[MOST_CHUNKS]; /* less the items of the chunks before */
    int64_t b = blockIdx.x / c.buckets, sequence = b * c.entries;
    int bucket = (int)(blockIdx.x % c.buckets), chunk = (int)threadIdx.x, here = 0, begin = 0, all;
    if (chunk < c.chunks) {
        const int *place = c.begin + (b * c.chunks + chunk) * (c.buckets + 1) + bucket;
        begin = place[0];
        here = place[1] - begin;
    }
    int before = sum_before(here, sums, &all);
    until[chunk] = before + here;
    from[chunk] = sequence + (int64_t)chunk * c.chunk + begin - before;
    if (threadIdx.x == 0) base = atomicAdd(c.used + b, all);
    __syncthreads();
    run_of_items own = find_run(all);
    auto item_at = [&](int64_t at) {
        int low = 0, high = c.chunks - 1; /* the first chunk that ends behind it */
        while (low < high) {
            int middle = (low + high) / 2;
            if (until[middle] > at)
                high = middle;
            else
                low = middle + 1;
        }
        return c.part[from[low] + at];
    };
    int first = bucket << c.shift, end = min(c.columns, first + (1 << c.shift)), place = base;
    for (; first < end; first += MOST_COLUMNS) {
        int keys = min(MOST_COLUMNS, end - first), *count = counts + threadIdx.x / 32 * keys;
        auto key_of = [&](const uint4 &item) {
            return item.x - (unsigned)first < (unsigned)keys ? (int)(item.x - (unsigned)first) : -1;
        };
        clear_counts(counts, keys);
        count_run(own, count, item_at, key_of);
        int placed = find_places(counts, keys, sums, [&](int key, int from_here, int to) {
            c.span[b * c.columns + first + key] = make_int2(place + from_here, place + to);
            if (to - from_here > LONG)
                c.which[atomicAdd(c.longs, 1)] = make_int2((int)b, first + key);
        });
        place_run(own, count, item_at, key_of, [&](const uint4 &item, int at) {
            c.entry[sequence + place + at] = make_uint2(item.y, item.z);
        });
        place += placed;
    }
}

/* Adds the entries from `begin` to `end` of a sequence's, by a group. */
template <bool ALIGNED, typename T, int N>
__device__ static inline void add_span(const panel_place<T> &p, const uint2 *entry, int begin,
                                       int end, float (&sum)[N]) {
    for (int e = begin + (int)threadIdx.x % LANES; e - (int)threadIdx.x % LANES < end;
         e += AT_ONCE) {
        uint2 own = e < end ? entry[e] : make_uint2(UINT32_MAX, 0);
        add_entries<ALIGNED>(p, (int)own.x, __uint_as_float(own.y), sum);
    }
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    sum_columns(panel_shape s, unsigned stride, column_lists c, panel_data<T> data) {
    constexpr int N = PIECE<T>;
    __shared__ float sums[THREADS / 32][LANES * N];
    int panels = s.panels[0] + s.panels[1], lane = (int)threadIdx.x % 32;
    /* A long column's sum, by a block: the groups have runs of its entries, and their sums are
     * added warp by warp. */
    for (int64_t i = blockIdx.x, all = (int64_t)*c.longs * panels; i < all; i += gridDim.x) {
        int2 which = c.which[i / panels], span = c.span[(int64_t)which.x * c.columns + which.y];
        panel_place<T> p = find_place(s, data, which.x, (int)(i % panels));
        int each = (span.y - span.x + GROUPS - 1) / GROUPS;
        each = (each + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
        int64_t begin = span.x + (int64_t)threadIdx.x / LANES * each;
        float sum[N] = {};
        add_span<ALIGNED>(p, c.entry + which.x * c.entries, (int)min_i64(span.y, begin),
                          (int)min_i64(span.y, begin + each), sum);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < N; k++) {
#pragma unroll
            for (int step = LANES; step < 32; step *= 2)
                sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
            if (lane < LANES) sums[threadIdx.x / 32][lane * N + k] = sum[k];
        }
        __syncthreads();
        if (threadIdx.x < LANES) {
#pragma unroll
            for (int k = 0; k < N; k++)
                for (int w = 1; w < THREADS / 32; w++)
                    sum[k] += sums[w][lane * N + k];
            store_piece<ALIGNED>(p, which.y, sum);
        }
        __syncthreads();
    }
    for (tile_walk at(s); at.more(); at.next()) {
        panel_place<T> p = find_place(s, data, at.b, at.panel);
        int64_t tile = (unsigned)at.tile * stride % (unsigned)s.tiles;
        int64_t column = tile * GROUPS + threadIdx.x / LANES;
        int2 span = make_int2(0, INT32_MAX);
        if (column < s.out_rows) span = c.span[at.b * s.out_rows + column];
        if (span.y - span.x <= LONG) {
            float sum[PIECE<T>] = {};
            add_span<ALIGNED>(p, c.entry + at.b * c.entries, span.x, span.y, sum);
            store_piece<ALIGNED>(p, column, sum);
        }
        __syncwarp();
    }
}

static int64_t route_gather_back_workspace(const weft_node *n, int) {
    column_lists c;
    return lay_out_lists(n, NULL, &c);
}

CUDA_RUN(route_gather_back, route_gather_back_workspace, weft_cuda_explain_index) {
    const weft_tensor *dc = n->in[WEFT_GATHER_H];
    panel_shape s = make_panels(n);
    column_lists c;
    lay_out_lists(n, workspace_of<char>(x, n), &c);
    int columns = (int)min_i64(MOST_COLUMNS, (int64_t)1 << c.shift);
    /* How far a panel's tiles are apart that follow each other. The first columns of a sequence have
     * the most entries, and a run of tiles is to have some of these and some of the others. */
    int64_t stride = s.tiles * 3 / 8 | 1;
    while (std::gcd(stride, s.tiles) > 1)
        stride += 2;
    if (s.tiles >= 1 << 16) stride = 1; /* their product has 32 bits */
    size_t chunk_bytes = (size_t)SORT_WARPS * (size_t)c.buckets * sizeof(int);
    size_t bucket_bytes = (size_t)SORT_WARPS * (size_t)columns * sizeof(int);
    cudaFuncSetAttribute(sort_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize, COUNT_BYTES);
    cudaFuncSetAttribute(sort_buckets, cudaFuncAttributeMaxDynamicSharedMemorySize, COUNT_BYTES);
    sort_chunks<<<(unsigned)(c.batch * c.chunks), SORT_THREADS, chunk_bytes, stream_of(x)>>>(
        c, data_of<int32_t>(x, n->in[WEFT_GATHER_INDEX]),
        data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), device_run(x), n->index);
    sort_buckets<<<(unsigned)(c.batch * c.buckets), SORT_THREADS, bucket_bytes, stream_of(x)>>>(c);
    with_type(dc, [&](auto tag) {
        using T = decltype(tag);
        auto kernel = weft_cuda_gather_is_aligned(n) ? sum_columns<T, true> : sum_columns<T, false>;
        kernel<<<(unsigned)(s.processors * BLOCKS), THREADS, 0, stream_of(x)>>>(
            s, (unsigned)stride, c, find_panels<T>(x, n));
    });
    return launched(n);
}

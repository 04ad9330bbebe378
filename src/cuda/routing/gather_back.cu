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
 * Short sequences have their panels in shared memory (panel.cuh). One block sorts all their entries,
 * and their columns by how many those have, so that the eight of a unit have about as many; a column
 * of more than LONG_SHARED · k is a unit by itself.
 *
 * Floor: dc is read and dh written once, at the memory's rate; the entries are moved twice, and their
 * rows read through the caches. */
#include "cuda/routing/panel.cuh"

enum {
    LONG = 128,
    LONG_SHARED = 8, /* times k */
    SORT_THREADS = 512,
    SORT_WARPS = SORT_THREADS / 32,
    AHEAD = 4,                   /* times 32: entries that a warp has on their way together */
    CHUNK = 2048,                /* entries of a chunk, */
    MOST_CHUNKS = SORT_THREADS,  /* unless they would be more than these */
    FEW_COLUMNS = 128,           /* of a bucket, */
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

static column_lists measure_lists(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    column_lists c = {};
    c.batch = index->shape[0];
    c.entries = index->shape[1] * index->shape[2];
    c.columns = (int)n->out[0]->shape[1];
    c.k = (int)index->shape[2];
    c.chunk = (int)(ceil_div(max_i64(CHUNK, ceil_div(c.entries, MOST_CHUNKS)), 32) * 32);
    c.chunks = (int)ceil_div(c.entries, c.chunk);
    while (FEW_COLUMNS > 1 << c.shift || ceil_div(c.columns, (int64_t)1 << c.shift) > MOST_BUCKETS)
        c.shift++;
    c.buckets = (int)ceil_div(c.columns, (int64_t)1 << c.shift);
    return c;
}

/* Gives the lists their places in a workspace; returns its bytes. */
static int64_t place_lists(column_lists *c, char *workspace) {
    workspace_pieces w = {workspace, 0};
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

/* Lists for panels that shared memory holds. */
static entry_lists measure_columns(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    int64_t k = index->shape[2], entries = index->shape[1] * k, most = LONG_SHARED * k;
    entry_lists l = {};
    l.most = ceil_div(n->out[0]->shape[1], UNIT) + entries / (most + 1);
    /* Sorted by length, a unit's longest column is no longer than any of the unit before. */
    l.lines = ceil_div(entries + UNIT * most, 2 * UNIT) + (l.most + 1) * UNIT_LINES;
    return l;
}

/* Columns by their steps, of UNIT_STEP entries, the longest first: keys of the sort. */
static int64_t step_keys(int64_t k) {
    return ceil_div(LONG_SHARED * k, UNIT_STEP) + 2;
}

/* Shared memory of list_columns, in numbers: the counts of both sorts; where a column's entries begin
 * among the sequence's sorted ones and in the stream; the columns in order; where units begin. */
static int64_t list_numbers(const weft_node *n, const entry_lists *l) {
    int64_t columns = n->out[0]->shape[1], k = n->in[WEFT_GATHER_INDEX]->shape[2];
    return SORT_WARPS * (columns + step_keys(k)) + 3 * columns + 1 + l->most;
}

static bool fits_shared(const weft_node *n, const entry_lists *l) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    return weft_cuda_fits_shared(n, l) && index->shape[1] * index->shape[2] < 1 << 24 &&
           list_numbers(n, l) * (int64_t)sizeof(int) + 1024 <= weft_cuda_device()->shared_memory;
}

typedef struct {
    int entries, columns, k, in_rows, keys;
} list_shape;

/* Where entry `e` of a column goes: `where` is where its unit begins, in entries, and its group; of a
 * column by itself, whose groups have them in turn, −1 less that. */
__device__ static inline int find_slot(int where, int e) {
    int group = where >= 0 ? 0 : e % UNIT, place = where >= 0 ? e : e / UNIT;
    return (where >= 0 ? where : -1 - where) + place / 2 * 2 * UNIT + group * 2 + place % 2;
}

/* A block has a sequence. */
static __global__ void __launch_bounds__(SORT_THREADS)
    list_columns(entry_lists l, list_shape s, const int32_t *__restrict__ index,
                 const float *__restrict__ weight, weft_cuda_run *run, int node) {
    extern __shared__ int counts[];
    __shared__ int sums[SORT_WARPS], longs;
    int *lengths = counts + SORT_WARPS * s.columns, *first = lengths + SORT_WARPS * s.keys;
    int *where = first + s.columns + 1, *order = where + s.columns, *begin = order + s.columns;
    int64_t b = blockIdx.x, before = b * s.entries;
    sum_unit *unit = l.unit + b * l.most;
    uint2 *stream = (uint2 *)(l.stream + b * l.lines * UNIT);
    run_of_items own = find_run(s.entries), all_columns = find_run(s.columns);
    int warp = (int)threadIdx.x / 32, *count = counts + warp * s.columns;
    auto entry_at = [&](int64_t at) {
        int column = index[before + at];
        if (column < -1 || column >= s.columns) note_fault(run, node, before + at);
        return make_uint4((unsigned)column, (unsigned)at, __float_as_uint(weight[before + at]), 0);
    };
    auto column_of = [&](const uint4 &item) {
        return item.x < (unsigned)s.columns ? (int)item.x : -1;
    };
    clear_counts(counts, s.columns + s.keys);
    count_run(own, count, entry_at, column_of);
    int all = find_places(counts, s.columns, sums, [&](int j, int from, int) { first[j] = from; });
    if (threadIdx.x == 0) first[s.columns] = all;
    __syncthreads();
    /* The columns in order: those by themselves, then by steps, falling. */
    auto length_of = [&](int j) { return first[j + 1] - first[j]; };
    auto column_at = [&](int64_t at) { return make_uint4((unsigned)at, 0, 0, 0); };
    auto steps_of = [&](const uint4 &item) {
        if (item.x >= (unsigned)s.columns) return -1;
        int length = length_of((int)item.x);
        return length > LONG_SHARED * s.k ? 0 : s.keys - 1 - (length + UNIT_STEP - 1) / UNIT_STEP;
    };
    count_run(all_columns, lengths + warp * s.keys, column_at, steps_of);
    find_places(lengths, s.keys, sums, [&](int key, int, int to) {
        if (key == 0) longs = to;
    });
    place_run(all_columns, lengths + warp * s.keys, column_at, steps_of,
              [&](const uint4 &item, int at) { order[at] = (int)item.x; });
    __syncthreads();
    /* The units' lines. */
    int units = longs + (s.columns - longs + UNIT - 1) / UNIT, total = 0;
    int few = (units + SORT_THREADS - 1) / SORT_THREADS, from = min(units, (int)threadIdx.x * few);
    auto column_of_unit = [&](int u, int group) { /* its place in the order */
                                                  return u < longs
                                                             ? (group == 0 ? u : s.columns)
                                                             : longs + (u - longs) * UNIT + group;
    };
    auto lines_of = [&](int u) {
        int length = length_of(order[column_of_unit(u, 0)]);
        if (u < longs) length = (length + UNIT - 1) / UNIT;
        return (length + UNIT_STEP - 1) / UNIT_STEP * UNIT_LINES;
    };
    for (int u = from; u < min(units, from + few); u++)
        total += lines_of(u);
    int line = sum_before(total, sums, &all);
    for (int u = from; u < min(units, from + few); u++) {
        begin[u] = line;
        unit[u].line = line;
        unit[u].lines = lines_of(u);
        unit[u].whole = u < longs;
        unit[u].units = units;
        line += lines_of(u);
    }
    __syncthreads();
    /* Where columns go, and what their groups have in the place of entries. */
    uint2 none = make_entry(s.in_rows, 0);
    for (int i = (int)threadIdx.x; i < units * UNIT; i += SORT_THREADS) {
        int u = i / UNIT, group = i % UNIT, at = column_of_unit(u, group);
        bool there = at < s.columns;
        int j = there ? order[at] : 0, place = begin[u] * 2 * UNIT + (u < longs ? 0 : group * 2);
        if (u < longs) place = -1 - place;
        if (there) where[j] = place;
        unit[u].target[group] = (uint16_t)(there ? j : NOWHERE);
        if (u < longs && group > 0) continue;
        int slots = lines_of(u) * (u < longs ? 2 * UNIT : 2);
        for (int e = there ? length_of(j) : 0; e < slots; e++)
            stream[find_slot(place, e)] = none;
    }
    __syncthreads();
    place_run(own, count, entry_at, column_of, [&](const uint4 &item, int at) {
        int slot = find_slot(where[item.x], at - first[item.x]);
        stream[slot] = make_entry(item.y / (unsigned)s.k, __uint_as_float(item.z));
    });
    __syncthreads();
    for (int i = (int)threadIdx.x; i < all / UNIT_LINES * UNIT; i += SORT_THREADS) {
        uint4 *step = (uint4 *)stream + i / UNIT * UNIT_LINES * UNIT + i % UNIT;
        uint4 a = step[0], c = step[UNIT];
        uint2 entry[UNIT_STEP] = {{a.x, a.y}, {a.z, a.w}, {c.x, c.y}, {c.z, c.w}};
        order_step(entry, i % UNIT);
        step[0] = make_uint4(entry[0].x, entry[0].y, entry[1].x, entry[1].y);
        step[UNIT] = make_uint4(entry[2].x, entry[2].y, entry[3].x, entry[3].y);
    }
}

static void gather_back_shared(weft_exec *x, const weft_node *n, entry_lists l) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    int64_t k = index->shape[2];
    list_shape s = {(int)(index->shape[1] * k), (int)n->out[0]->shape[1], (int)k,
                    (int)index->shape[1], (int)step_keys(k)};
    size_t bytes = (size_t)list_numbers(n, &l) * sizeof(int);
    place_entries(&l, index->shape[0], workspace_of<char>(x, n));
    cudaFuncSetAttribute(list_columns, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    list_columns<<<(unsigned)index->shape[0], SORT_THREADS, bytes, stream_of(x)>>>(
        l, s, data_of<int32_t>(x, index), data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]),
        device_run(x), n->index);
    weft_cuda_sum_shared(x, n, &l);
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

/* A long column's sum, by a block: the groups have runs of its entries, and their sums are added
 * warp by warp. */
template <bool ALIGNED, typename T>
__device__ static inline void sum_long(const panel_place<T> &p, const uint2 *entry, int column,
                                       int2 span, float (*sums)[LANES * PIECE<T>]) {
    constexpr int N = PIECE<T>;
    int lane = (int)threadIdx.x % 32, each = (span.y - span.x + GROUPS - 1) / GROUPS;
    each = (each + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    int64_t begin = span.x + (int64_t)threadIdx.x / LANES * each;
    float sum[N] = {};
    add_span<ALIGNED>(p, entry, (int)min_i64(span.y, begin), (int)min_i64(span.y, begin + each),
                      sum);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        if (lane < LANES) sums[threadIdx.x / 32][lane * N + i] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int w = 1; w < THREADS / 32; w++)
                sum[i] += sums[w][lane * N + i];
        store_piece<ALIGNED>(p, column, sum);
    }
    __syncthreads();
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    sum_columns(panel_shape s, column_lists c, panel_data<T> data) {
    __shared__ float sums[THREADS / 32][LANES * PIECE<T>];
    int panels = s.panels[0] + s.panels[1];
    for (int64_t i = blockIdx.x, all = (int64_t)*c.longs * panels; i < all; i += gridDim.x) {
        int2 which = c.which[i / panels];
        sum_long<ALIGNED>(find_place(s, data, which.x, (int)(i % panels)),
                          c.entry + which.x * c.entries, which.y,
                          c.span[(int64_t)which.x * c.columns + which.y], sums);
    }
    for (tile_walk at(s); at.more(); at.next()) {
        panel_place<T> p = find_place(s, data, at.b, at.panel);
        int64_t column = (int64_t)at.tile * GROUPS + threadIdx.x / LANES;
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
    entry_lists l = measure_columns(n);
    if (fits_shared(n, &l)) return place_entries(&l, n->out[0]->shape[0], NULL);
    column_lists c = measure_lists(n);
    return place_lists(&c, NULL);
}

CUDA_RUN(route_gather_back, route_gather_back_workspace, weft_cuda_explain_index) {
    const weft_tensor *dc = n->in[WEFT_GATHER_H];
    entry_lists l = measure_columns(n);
    if (fits_shared(n, &l)) {
        gather_back_shared(x, n, l);
        return launched(n);
    }
    panel_shape s = make_panels(n);
    column_lists c = measure_lists(n);
    place_lists(&c, workspace_of<char>(x, n));
    int columns = (int)min_i64(MOST_COLUMNS, (int64_t)1 << c.shift);
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
        kernel<<<panel_grid(s), THREADS, 0, stream_of(x)>>>(s, c, find_panels<T>(x, n));
    });
    return launched(n);
}

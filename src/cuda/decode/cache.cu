/* Caches on the GPU: rows written into pages, rows gathered by weights, running means.
 *
 * Rows are independent, and a sum's order follows from the row's own position: its bits are those it
 * has alone. Floor of each: the bytes of the vectors that are written or read, once. */
#include "cuda/decode/cached.cuh"
#include "cuda/dependent_launch.cuh"

extern "C" {
#include "ops/linear.h"
}

enum { WARPS = 4, THREADS = 256, GATHER_KEYS = WEFT_KEY_BLOCK };

/* A warp stores one head of one row; with `number` the squares of what is stored. No byte holds NaN: the
 * scale does. */
template <int KIND>
__device__ static inline void write_vector(const cached_write &w, int at, char *page, int token,
                                           int lane) {
    const cached_pages &c = w.c;
    any_tensor x = w.x, extra = w.extra;
    int r = at / c.heads, h = at % c.heads;
    char *to = token_at(c, page, h, token);
    int64_t from = r * w.columns + w.offset + (int64_t)h * c.width;
    float scale = 1, inverse = 0, squares = 0;
    if (KIND == CACHED_I8) {
        float most = 0;
        bool numbers = true;
        for (int i = lane; i < c.width; i += 32) {
            float v = load_any(x, from + i);
            most = fmaxf(most, fabsf(v));
            numbers &= v == v;
        }
        most = warp_max(most);
        scale = __all_sync(0xffffffffu, numbers) ? most / 127 : NAN;
        inverse = most > 0 ? 127 / most : 0;
        if (lane == 0) *scale_at(c, page, h, token) = scale;
    }
    for (int i = lane; i < c.width; i += 32) {
        float v = load_any(x, from + i);
        if (KIND == CACHED_I8) {
            int stored = __float2int_rn(v * inverse);
            ((int8_t *)to)[i] = (int8_t)stored;
            v = (float)stored;
        } else if (KIND == CACHED_BF16) {
            bf16 stored = from_float<bf16>(v);
            ((bf16 *)to)[i] = stored;
            v = to_float(stored);
        } else {
            ((float *)to)[i] = v;
        }
        squares = fmaf(v, v, squares);
    }
    if (!c.number) return;
    squares = warp_sum(squares) * scale * scale;
    if (extra.data) squares += load_any(extra, (int64_t)r * c.heads + h);
    if (lane == 0) *number_at(c, page, h, token) = squares;
}

/* The heads of all rows, of one or two writes. Where they go to is known before what is written is there:
 * positions and tables are inputs of the run. */
template <int KIND>
static __global__ void write_vectors(const __grid_constant__ row_places p,
                                     const __grid_constant__ cached_write first,
                                     const __grid_constant__ cached_write second) {
    int at = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = threadIdx.x % 32;
    int firsts = p.rows * first.c.heads, seconds = second.done ? p.rows * second.c.heads : 0;
    const cached_write &w = at < firsts ? first : second;
    int own = at < firsts ? at : at - firsts, token = 0;
    char *page = NULL;
    if (at < firsts + seconds) {
        int r = own / w.c.heads, j = p.position[r];
        token = j % WEFT_PAGE_TOKENS;
        if (p.slot[r] >= 0) page = page_at(w.c, p, r, j);
    }
    follow_primary();
    if (thread_index() == 0) *first.done = 0;
    if (thread_index() == 0 && seconds) *second.done = 0;
    if (page) write_vector<KIND>(w, own, page, token, lane);
}

/* Whether the rows of two writes can be stored in either order, by one kernel. */
static bool can_join(const weft_exec *x, const weft_node *a, const weft_node *b) {
    return share_inputs(a, b, WEFT_CACHE_POSITION, WEFT_CACHE_TABLE) &&
           a->in[WEFT_CACHE_PAGES] != b->in[WEFT_CACHE_PAGES] && are_apart(x, a, b) &&
           ATTR(a, weft_cache_write_attr)->part.dtype == ATTR(b, weft_cache_write_attr)->part.dtype;
}

/* Up to LISTED of the largest weights are found by each block of a gathering for itself. */
enum { LISTED = 64 };

/* Whether a gathering lists the largest weights itself (gather_largest). */
static bool lists_largest(const weft_node *n) {
    const weft_cache_gather_attr *attr = ATTR(n, weft_cache_gather_attr);
    return attr->keep == WEFT_KEEP_TOPK &&
           min_i64(attr->k, n->in[WEFT_CACHE_X]->shape[1]) <= LISTED;
}

/* The gathering that does a write ahead of it, in a run that follows another: of vectors as they are stored, with
 * nothing but writes and gatherings between, none of which makes anything where the vectors are. NULL: there is
 * none. */
static const weft_node *find_gather(const weft_exec *x, const weft_node *write) {
    const weft_cache_part *part = &ATTR(write, weft_cache_write_attr)->part;
    const weft_node *found = NULL, *n;
    if (!follows(x) || part->heads != 1 || part->number || part->dtype == WEFT_I8 ||
        part->dtype != write->in[WEFT_CACHE_X]->dtype)
        return NULL;
    for (int64_t i = write->index + 1; (n = node_at(x, i)) != NULL; i++) {
        bool gathers = n->op->id == WEFT_OP_cache_gather;
        if (!gathers && n->op->id != WEFT_OP_cache_write) break;
        if (!spares(x, n, write)) return NULL;
        if (!gathers || n->in[WEFT_CACHE_PAGES] != write->in[WEFT_CACHE_PAGES]) continue;
        const weft_cache_part *own = &ATTR(n, weft_cache_gather_attr)->part;
        if (found || !lists_largest(n) || own->heads != 1 || own->width != part->width ||
            !share_inputs(n, write, WEFT_CACHE_POSITION, WEFT_CACHE_TABLE))
            return NULL;
        found = n;
    }
    return found;
}

/* The write that a gathering does; NULL: its vectors are all in pages. */
static const weft_node *find_write(const weft_exec *x, const weft_node *gather) {
    const weft_node *n;
    for (int64_t i = gather->index - 1; (n = node_at(x, i)) != NULL; i--) {
        bool writes = n->op->id == WEFT_OP_cache_write;
        if (!writes && n->op->id != WEFT_OP_cache_gather) return NULL;
        if (writes && n->in[WEFT_CACHE_PAGES] == gather->in[WEFT_CACHE_PAGES])
            return find_gather(x, n) == gather ? n : NULL;
    }
    return NULL;
}

const weft_node *gathering_behind(const weft_exec *x, const weft_node *last) {
    const weft_node *n;
    bool wrote = false;
    if (!follows(x)) return NULL;
    for (int64_t i = last->index + 1; (n = node_at(x, i)) != NULL; i++) {
        if (n->op->id == WEFT_OP_cache_gather) return wrote && lists_largest(n) ? n : NULL;
        if (n->op->id != WEFT_OP_cache_write || !find_gather(x, n)) return NULL;
        wrote = true;
    }
    return NULL;
}

/* Attention behind them does them where it can, and so does a gathering. Two writes behind each other, of keys and
 * of values, are one kernel in a run that follows another. */
CUDA_RUN(cache_write) {
    if (is_launched(x, n) || is_written_later(x, n) || find_gather(x, n)) return WEFT_OK;
    row_places p = places_of(x, n);
    cached_write first = describe_write(x, n), second = {};
    const weft_node *next = follows(x) ? next_alike(x, n) : NULL;
    if (next && can_join(x, n, next) && !is_written_later(x, next) && !find_gather(x, next)) {
        second = describe_write(x, next);
        launched_until(x, next);
    }
    int64_t heads = first.c.heads + (second.done ? second.c.heads : 0);
    with_kind(first.c.kind, [&](auto k) {
        launch_following(follows(x), stream_of(x), dim3((unsigned)ceil_div(p.rows * heads, WARPS)),
                         WARPS * 32, 0, write_vectors<decltype(k)::value>, p, first, second);
    });
    return launched(n);
}

/* A thread a column; rows of a sequence follow each other. */
static __global__ void mean_columns(row_places p, int64_t width, const int32_t *documents,
                                    any_tensor x, float *sums, any_tensor y) {
    int64_t i = thread_index();
    if (i >= width) return;
    for (int r = 0; r < p.rows; r++) {
        float mean = 0;
        if (p.slot[r] >= 0) {
            float *sum = sums + p.slot[r] * width + i;
            int place = p.position[r] - (documents ? documents[r] : 0);
            float all = (place == 0 ? 0.0f : *sum) + load_any(x, r * width + i);
            *sum = all;
            mean = all * (float)(1 / ((double)place + 1));
        }
        store_any(y, r * width + i, mean);
    }
}

CUDA_RUN(cache_mean) {
    row_places p = places_of(x, n);
    int64_t width = weft_tensor_count(n->in[WEFT_CACHE_X]) / p.rows;
    mean_columns<<<(unsigned)ceil_div(width, 128), 128, 0, stream_of(x)>>>(
        p, width, data_of<int32_t>(x, n->in[WEFT_CACHE_DOCUMENTS]), any_of(x, n->in[WEFT_CACHE_X]),
        data_of<float>(x, n->in[WEFT_CACHE_PAGES]), any_of(x, n->out[0]));
    return launched(n);
}

/* What a row keeps: the chosen few, or a threshold over all; and the factor of the kept ones. */
struct kept_row {
    float factor, floor;
    int count;
};

struct gather_work {
    kept_row *rows; /* [R] */
    int32_t *index; /* [R, k]: of the largest, descending */
    float *parts;   /* [R, blocks, width]: without k, the sums of blocks of keys */
    int k, blocks, context, width;
    const float *weights;     /* [R, context] */
    const int32_t *documents; /* [R] or NULL */
};

__device__ static inline int keys_seen(const row_places &p, int r, const gather_work &g) {
    return min(p.position[r] + 1 - (g.documents ? g.documents[r] : 0), g.context);
}

/* (weight, column) pairs, largest weight first, then lowest column. */
__device__ static inline bool comes_first(float w, int j, float v, int i) {
    return w > v || (w == v && j < i);
}

/* The best of the block's threads, to all of them. */
__device__ static void best_of_block(float &w, int &j) {
    __shared__ float weights[THREADS / 32];
    __shared__ int columns[THREADS / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        float v = __shfl_xor_sync(0xffffffffu, w, step);
        int i = __shfl_xor_sync(0xffffffffu, j, step);
        if (comes_first(v, i, w, j)) w = v, j = i;
    }
    if (threadIdx.x % 32 == 0) weights[threadIdx.x / 32] = w, columns[threadIdx.x / 32] = j;
    __syncthreads();
    w = weights[0], j = columns[0];
    for (int k = 1; k < THREADS / 32; k++)
        if (comes_first(weights[k], columns[k], w, j)) w = weights[k], j = columns[k];
    __syncthreads();
}

__device__ static double sum_of_block(double v) {
    __shared__ double sums[THREADS / 32];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int k = 0; k < THREADS / 32; k++)
        v += sums[k];
    __syncthreads();
    return v;
}

/* The k largest, one after the other: each is the best of those behind the one before. Where fewer than k
 * are numbers the row makes NaN, of its first key. */
__device__ static kept_row choose_largest(const gather_work &g, int r, int seen, bool normalize) {
    const float *w = g.weights + (int64_t)r * g.context;
    kept_row row = {1, 0, min(g.k, seen)};
    float last = INFINITY;
    int last_column = -1;
    double sum = 0;
    for (int m = 0; m < row.count; m++) {
        float best = -INFINITY;
        int column = INT32_MAX;
        for (int j = threadIdx.x; j < seen; j += THREADS)
            if (comes_first(last, last_column, w[j], j) && comes_first(w[j], j, best, column))
                best = w[j], column = j;
        best_of_block(best, column);
        if (column == INT32_MAX) best = NAN, column = 0;
        if (threadIdx.x == 0) g.index[(int64_t)r * g.k + m] = column;
        sum += (double)best;
        last = best;
        last_column = column;
    }
    if (normalize) row.factor = sum > 0 ? (float)(1 / sum) : 0;
    if (isnan(sum)) row.factor = NAN;
    return row;
}

__device__ static kept_row choose_above(const gather_work &g, int r, int seen, bool rms,
                                        double threshold, bool normalize) {
    const float *w = g.weights + (int64_t)r * g.context;
    kept_row row = {1, 0, 0};
    double squares = 0, sum = 0;
    if (rms) {
        for (int j = threadIdx.x; j < seen; j += THREADS)
            squares += (double)w[j] * (double)w[j];
        row.floor = (float)(threshold * sqrt(sum_of_block(squares) / (double)seen));
    }
    for (int j = threadIdx.x; j < seen; j += THREADS)
        if (w[j] >= row.floor) sum += (double)w[j];
    sum = sum_of_block(sum);
    if (normalize) row.factor = sum > 0 ? (float)(1 / sum) : 0;
    return row;
}

static __global__ void __launch_bounds__(THREADS)
    choose_rows(row_places p, gather_work g, weft_cache_keep keep, double threshold,
                bool normalize) {
    int r = blockIdx.x;
    kept_row row = {0, 0, 0};
    follow_primary();
    if (p.slot[r] >= 0) {
        int seen = keys_seen(p, r, g);
        row = keep == WEFT_KEEP_TOPK
                  ? choose_largest(g, r, seen, normalize)
                  : choose_above(g, r, seen, keep == WEFT_KEEP_RMS, threshold, normalize);
    }
    if (threadIdx.x == 0) g.rows[r] = row;
}

template <int KIND>
__device__ static inline float weighted_number(const row_places &p, const cached_pages &c, int r,
                                               int j, float weight, int column) {
    char *page = page_at(c, p, r, j);
    int token = j % WEFT_PAGE_TOKENS;
    if (KIND == CACHED_I8) weight *= *scale_at(c, page, 0, token);
    return weight * load_cached<KIND>(token_at(c, page, 0, token), column);
}

/* What is gathered with the weights of a launch. */
struct gathered_part {
    cached_pages pages;
    int width;
    unsigned blocks;
    any_tensor addend, y;
    float2 *moments;    /* NULL: not wanted */
    cached_write write; /* of the run's own vectors, into the pages; done NULL: they are there */
};

struct gathered_parts {
    gathered_part of[2];
};

/* The moments of y in each 64 columns, of which two warps have one each: as it was written, in bf16. */
__device__ static __noinline__ void leave_moments(const gathered_part &part, int r, int column,
                                                  float v) {
    __shared__ float halves[2][THREADS / 32];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int tile = column / WEFT_MOMENTS_COLUMNS, tiles = (part.width + 63) / WEFT_MOMENTS_COLUMNS;
    int columns = min((int)WEFT_MOMENTS_COLUMNS, part.width - tile * WEFT_MOMENTS_COLUMNS);
    bool there = column < part.width;
    v = there ? to_float(from_float<bf16>(v)) : 0.0f;
    float half = warp_sum(v);
    if (lane == 0) halves[0][warp] = half;
    __syncthreads();
    float mean = (halves[0][warp & ~1] + halves[0][warp | 1]) / (float)max(columns, 1);
    half = warp_sum(there ? (v - mean) * (v - mean) : 0.0f);
    if (lane == 0) halves[1][warp] = half;
    __syncthreads();
    if (threadIdx.x % WEFT_MOMENTS_COLUMNS == 0 && there)
        part.moments[(int64_t)r * tiles + tile] =
            make_float2(mean, halves[1][warp] + halves[1][warp + 1]);
}

__device__ static inline float load_addend(const gathered_part &part, int r, int column) {
    if (!part.addend.data || column >= part.width) return 0.0f;
    return load_any(part.addend, (int64_t)r * part.width + column);
}

/* Ends a row's sum: all threads of a block come here, a column each. */
__device__ static inline void leave_gathered(const gathered_part &part, int r, int column,
                                             float sum, float addend) {
    if (part.addend.data) sum += addend;
    if (column < part.width) store_any(part.y, (int64_t)r * part.width + column, sum);
    if (part.moments) leave_moments(part, r, column, sum);
}

/* A thread a column: of the chosen few, in their order. */
template <int KIND>
static __global__ void gather_chosen(row_places p, gather_work g, gathered_part part) {
    int r = blockIdx.y, column = (int)thread_index();
    follow_primary();
    float sum = 0;
    if (p.slot[r] >= 0 && column < g.width) {
        kept_row row = g.rows[r];
        int first = p.position[r] + 1 - keys_seen(p, r, g);
        const float *w = g.weights + (int64_t)r * g.context;
        for (int m = 0; m < row.count; m++) {
            int j = g.index[(int64_t)r * g.k + m];
            sum += weighted_number<KIND>(p, part.pages, r, first + j, w[j] * row.factor, column);
        }
    }
    leave_gathered(part, r, column, sum, load_addend(part, r, column));
}

/* The LISTED largest: every warp lists those of its share in order, and each of these finds its place among all. */
struct listed_key {
    float weight;
    int column;
};

__device__ static inline bool comes_first(listed_key a, listed_key b) {
    return comes_first(a.weight, a.column, b.weight, b.column);
}

/* Of a weight's bits a number without a sign, in the same order, both zeros being one; and back. */
__device__ static inline unsigned rank_of(float weight) {
    unsigned bits = __float_as_uint(weight + 0.0f);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

__device__ static inline float weight_of(unsigned rank) {
    return __uint_as_float(rank >> 31 ? rank & ~(1u << 31) : ~rank);
}

/* The first two of a lane's that come behind one. */
struct lane_keys {
    listed_key first, second;
};

__device__ static inline lane_keys keys_behind(const float *w, int seen, listed_key last) {
    lane_keys k = {{-INFINITY, INT32_MAX}, {-INFINITY, INT32_MAX}};
    for (int from = (int)threadIdx.x; from < seen; from += THREADS * VECTOR) {
        float weight[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            weight[i] = from + i * THREADS < seen ? __ldcg(w + from + i * THREADS) : NAN;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            listed_key one = {weight[i], from + i * THREADS};
            if (!comes_first(last, one)) continue;
            if (comes_first(one, k.first))
                k.second = k.first, k.first = one;
            else if (comes_first(one, k.second))
                k.second = one;
        }
    }
    return k;
}

/* The `count` largest of a row, in order, to `chosen`; where fewer are numbers, NaN of the first key. A lane looks
 * through its own again only when two of them were taken. */
__device__ static inline void list_largest(const float *w, int seen, int count,
                                           listed_key *chosen) {
    constexpr int WARPS_OF = THREADS / 32;
    __shared__ listed_key lists[WARPS_OF][LISTED];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    lane_keys own = keys_behind(w, seen, listed_key{INFINITY, -1});
    bool known = true; /* own.second is */
    for (int m = 0; m < count; m++) {
        unsigned rank = rank_of(own.first.weight), most = __reduce_max_sync(0xffffffffu, rank);
        unsigned column = rank == most ? (unsigned)own.first.column : UINT_MAX;
        listed_key best = {weight_of(most), (int)__reduce_min_sync(0xffffffffu, column)};
        if (lane == 0) lists[warp][m] = best;
        if (own.first.column != best.column || best.column == INT32_MAX) continue;
        if (known)
            own.first = own.second;
        else
            own = keys_behind(w, seen, own.first);
        known = !known;
    }
    if ((int)threadIdx.x < count) chosen[threadIdx.x] = listed_key{NAN, 0};
    __syncthreads();
    for (int e = (int)threadIdx.x; e < WARPS_OF * count; e += THREADS) {
        listed_key one = lists[e / count][e % count];
        int before = 0;
        for (int k = 0; k < WARPS_OF; k++)
            for (int m = 0; m < count; m++)
                before += comes_first(lists[k][m], one);
        if (one.column != INT32_MAX && before < count) chosen[before] = one;
    }
    __syncthreads();
}

/* Where the numbers of a chosen key are, and its share of the sum. */
struct chosen_key {
    const char *numbers;
    float share;
    bool fresh; /* the kernel ahead makes them */
};

/* From where on a row's keys are vectors of this run: rows of a sequence stand side by side. By whole warps. */
__device__ static inline int find_fresh(const row_places &p, int r) {
    int own = p.position[r], fresh = own;
    for (int first = r - 1; first >= 0; first -= 32) {
        int at = first - (int)threadIdx.x % 32;
        bool same = at >= 0 && p.slot[at] == p.slot[r] && p.position[at] == own - (r - at);
        unsigned rows = __ballot_sync(0xffffffffu, same);
        fresh -= __popc(rows & ~(rows + 1));
        if (rows != 0xffffffffu) break;
    }
    return fresh;
}

/* The numbers that the part's write has for row r. */
template <int KIND> __device__ static inline const char *fresh_at(const cached_write &w, int r) {
    return (const char *)w.x.data + (r * w.columns + w.offset) * (KIND == CACHED_BF16 ? 2 : 4);
}

/* Of the `count` chosen ones: a thread finds one, since each waits for the page table. */
template <int KIND>
__device__ static inline void find_chosen(const row_places &p, const gathered_part &part, int r,
                                          int first, const listed_key *listed, int count,
                                          bool normalize, chosen_key *chosen) {
    const cached_pages &c = part.pages;
    int m = (int)threadIdx.x, fresh = part.write.done ? find_fresh(p, r) : INT32_MAX;
    if (m < count) {
        int j = first + listed[m].column, token = j % WEFT_PAGE_TOKENS;
        chosen_key to = {NULL, 0, j >= fresh};
        float scale = 1.0f;
        if (to.fresh) {
            to.numbers = fresh_at<KIND>(part.write, r - (p.position[r] - j));
        } else {
            char *page = page_at(c, p, r, j);
            if (KIND == CACHED_I8) scale = *scale_at(c, page, 0, token);
            to.numbers = token_at(c, page, 0, token);
        }
        double all = 0;
        for (int i = 0; i < count; i++)
            all += (double)listed[i].weight;
        float factor = isnan(all) ? NAN : !normalize ? 1.0f : all > 0 ? (float)(1 / all) : 0.0f;
        to.share = listed[m].weight * factor * scale;
        chosen[m] = to;
    }
    __syncthreads();
}

/* A thread a column of one part or the other, of the chosen few in their order. `ahead`: the kernel ahead lets this
 * one come when those before it have ended, so that weights are there, and what pages had before the run. */
template <int KIND>
static __global__ void __launch_bounds__(THREADS)
    gather_largest(const __grid_constant__ row_places p, const __grid_constant__ gather_work g,
                   const __grid_constant__ gathered_parts parts, bool normalize, bool ahead) {
    __shared__ listed_key listed[LISTED];
    __shared__ chosen_key chosen[LISTED];
    int r = (int)blockIdx.y, count = 0;
    trigger_dependents();
    bool there = p.slot[r] >= 0;
    if (!ahead) wait_for_primary();
    bool second = blockIdx.x >= parts.of[0].blocks;
    const gathered_part &part = parts.of[second];
    int column = (int)(blockIdx.x - (second ? parts.of[0].blocks : 0)) * THREADS + (int)threadIdx.x;
    bool inside = column < part.width;
    float sum = 0, numbers[VECTOR] = {};
    if (there) {
        int seen = keys_seen(p, r, g), first = p.position[r] + 1 - seen;
        count = min(g.k, seen);
        list_largest(g.weights + (int64_t)r * g.context, seen, count, listed);
        find_chosen<KIND>(p, part, r, first, listed, count, normalize, chosen);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            if (e < count && inside && !chosen[e].fresh)
                numbers[e] = load_cached<KIND>(chosen[e].numbers, column);
    }
    if (ahead) wait_for_primary();
    float addend = load_addend(part, r, column);
    if (there && inside && part.write.done) { /* the row's own vector to its page */
        int j = p.position[r];
        char *to = token_at(part.pages, page_at(part.pages, p, r, j), 0, j % WEFT_PAGE_TOKENS);
        const char *from = fresh_at<KIND>(part.write, r);
        if (KIND == CACHED_BF16)
            ((bf16 *)to)[column] = ((const bf16 *)from)[column];
        else
            ((float *)to)[column] = ((const float *)from)[column];
    }
    for (int m = 0; m < count && inside; m += VECTOR) {
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            const chosen_key &one = chosen[min(m + e, count - 1)];
            if (m > 0 || one.fresh) numbers[e] = load_cached<KIND>(one.numbers, column);
        }
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            if (m + e < count) sum += chosen[m + e].share * numbers[e];
    }
    leave_gathered(part, r, column, sum, addend);
    if (thread_index() > 0 || r > 0) return;
    for (const gathered_part &one : parts.of)
        if (one.write.done) *one.write.done = 0;
}

/* A thread a column, and a block of keys: those between absolute positions. */
template <int KIND>
static __global__ void gather_block(row_places p, cached_pages c, gather_work g) {
    int r = blockIdx.z, part = blockIdx.y, column = (int)thread_index();
    if (column >= g.width || p.slot[r] < 0) return;
    int seen = keys_seen(p, r, g), first = p.position[r] + 1 - seen;
    int block = first / GATHER_KEYS + part, begin = max(block * GATHER_KEYS, first);
    int end = min((block + 1) * GATHER_KEYS, p.position[r] + 1);
    kept_row row = g.rows[r];
    const float *w = g.weights + (int64_t)r * g.context - first;
    float sum = 0;
    for (int j = begin; j < end; j++)
        if (w[j] >= row.floor) sum += weighted_number<KIND>(p, c, r, j, w[j] * row.factor, column);
    if (begin < end) g.parts[((int64_t)r * g.blocks + part) * g.width + column] = sum;
}

static __global__ void join_gathered(row_places p, gather_work g, gathered_part part) {
    int r = blockIdx.y, column = (int)thread_index();
    float sum = 0;
    if (p.slot[r] >= 0 && column < g.width) {
        int first = p.position[r] + 1 - keys_seen(p, r, g);
        int blocks = p.position[r] / GATHER_KEYS - first / GATHER_KEYS + 1;
        for (int b = 0; b < blocks; b++)
            sum += g.parts[((int64_t)r * g.blocks + b) * g.width + column];
    }
    leave_gathered(part, r, column, sum, load_addend(part, r, column));
}

/* Divides the workspace; `base` NULL: only measures it. Returns its bytes. */
static int64_t lay_out(const weft_node *n, char *base, gather_work *g) {
    const weft_cache_gather_attr *attr = ATTR(n, weft_cache_gather_attr);
    int64_t rows = n->in[WEFT_CACHE_X]->shape[0], context = n->in[WEFT_CACHE_X]->shape[1];
    *g = {};
    g->context = (int)context;
    g->width = (int)(attr->part.heads * attr->part.width);
    bool few = attr->keep == WEFT_KEEP_TOPK;
    g->k = few ? (int)min_i64(attr->k, context) : 0;
    g->blocks = few ? 0 : (int)(context / GATHER_KEYS + 2);
    workspace_pieces pieces = {base, 0};
    pieces.take(&g->rows, rows);
    pieces.take(&g->index, rows * g->k);
    pieces.take(&g->parts, rows * g->blocks * g->width);
    return pieces.bytes;
}

static int64_t cache_gather_workspace(const weft_node *n, int) {
    gather_work g;
    return lay_out(n, NULL, &g);
}

static gathered_part describe_gathered(const weft_exec *x, const weft_node *n) {
    const weft_cache_part *part = &ATTR(n, weft_cache_gather_attr)->part;
    const weft_node *write = find_write(x, n);
    int width = (int)(part->heads * part->width);
    return gathered_part{pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), part),
                         width,
                         (unsigned)ceil_div(width, THREADS),
                         any_of(x, n->in[WEFT_CACHE_ADDEND]),
                         any_of(x, n->out[0]),
                         data_of<float2>(x, n->out[1]),
                         write ? describe_write(x, write) : cached_write{}};
}

/* Whether the second gathers the same keys as the first. */
static bool gathers_alike(const weft_exec *x, const weft_node *a, const weft_node *b) {
    const weft_cache_gather_attr *p = ATTR(a, weft_cache_gather_attr),
                                 *q = ATTR(b, weft_cache_gather_attr);
    return share_inputs(a, b, WEFT_CACHE_POSITION, WEFT_CACHE_X) &&
           a->in[WEFT_CACHE_DOCUMENTS] == b->in[WEFT_CACHE_DOCUMENTS] &&
           p->part.dtype == q->part.dtype && p->keep == q->keep && p->k == q->k &&
           p->normalize == q->normalize && are_apart(x, a, b);
}

CUDA_RUN(cache_gather, cache_gather_workspace) {
    const weft_cache_gather_attr *attr = ATTR(n, weft_cache_gather_attr);
    if (is_launched(x, n)) return WEFT_OK;
    row_places p = places_of(x, n);
    gathered_part part = describe_gathered(x, n);
    gather_work g;
    lay_out(n, workspace_of<char>(x, n), &g);
    g.weights = data_of<float>(x, n->in[WEFT_CACHE_X]);
    g.documents = data_of<int32_t>(x, n->in[WEFT_CACHE_DOCUMENTS]);
    unsigned across = (unsigned)ceil_div(g.width, 128), rows = (unsigned)p.rows;
    if (g.k && g.k <= LISTED) {
        /* Two that are alike and follow each other are one kernel in a run that follows another. */
        gathered_parts parts = {{part, {}}};
        const weft_node *next = follows(x) ? next_alike(x, n) : NULL;
        if (next && gathers_alike(x, n, next)) {
            parts.of[1] = describe_gathered(x, next);
            launched_until(x, next);
        }
        unsigned blocks = parts.of[0].blocks + parts.of[1].blocks;
        bool ahead = follows(x) && n->index == state_of(x)->ahead;
        with_kind(part.pages.kind, [&](auto k) {
            launch_following(follows(x), stream_of(x), dim3(blocks, rows), THREADS, 0,
                             gather_largest<decltype(k)::value>, p, g, parts, attr->normalize,
                             ahead);
        });
        return launched(n);
    }
    launch_following(follows(x), stream_of(x), dim3(rows), THREADS, 0, choose_rows, p, g,
                     attr->keep, attr->threshold, attr->normalize);
    with_kind(part.pages.kind, [&](auto k) {
        constexpr int KIND = decltype(k)::value;
        if (g.k)
            launch_following(follows(x), stream_of(x), dim3(across, rows), 128, 0,
                             gather_chosen<KIND>, p, g, part);
        else
            gather_block<KIND><<<dim3(across, (unsigned)g.blocks, rows), 128, 0, stream_of(x)>>>(
                p, part.pages, g);
    });
    if (!g.k) join_gathered<<<dim3(across, rows), 128, 0, stream_of(x)>>>(p, g, part);
    return launched(n);
}

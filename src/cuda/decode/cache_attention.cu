/* Attention of one query for each row over the pages of its sequence: FlashDecoding's split of the
 * keys (split-K), with the splits at fixed positions.
 *
 * A block has one row, one key head with all the query heads that share it, and leaves of keys,
 * WEFT_KEY_BLOCK of them or fewer where they are wide, between multiples of that: their scores, the
 * largest of them, the sum of the exponentials and the weighted sum of the values. A row's leaves are
 * joined in their order, by the last of its blocks where they are few, else by a second kernel. Where
 * a leaf begins follows from the position alone, and within it every sum has one order, so a row's bits
 * do not depend on the batch.
 *
 * Eight lanes have a key, or more where values are wider: 16 bytes of bf16 each, straight from the page,
 * whose tokens of a head lie one behind the other. Keys that are stored as a latent (rotated, or made
 * into a Gaussian, when they are read) are first written out to shared memory, KEY_TILE at a time.
 *
 * Positions are read on the device, because a captured run is replayed for every token: the grid has
 * room for the longest context, and blocks behind a row's position end at once.
 *
 * Floor: the keys and values of the rows' contexts once. */
#include "cuda/decode/attend_tensor.cuh"
#include "cuda/pack.cuh"

/* Shared memory, in floats: q [group, padded]; scores [group, BLOCK]; n [BLOCK]; the row's own key;
 * cosines and sines of the block's first position; then keys as they are read, or the values' sums. */
struct attend_memory {
    float *q, *scores, *n, *own, *coarse, *tile;
};

static int64_t attend_bytes(const attend_problem &a) {
    int64_t tile = copies_keys(a) ? max_i64(SPREAD, KEY_TILE * a.padded) : SPREAD;
    int64_t floats = (int64_t)a.group * (a.padded + BLOCK) + BLOCK + 2 * a.padded + tile;
    return floats * (int64_t)sizeof(float);
}

__device__ static inline attend_memory cut_memory(const attend_problem &a, float *memory) {
    attend_memory m;
    m.q = memory;
    m.scores = m.q + a.group * a.padded;
    m.n = m.scores + a.group * BLOCK;
    m.own = m.n + BLOCK;
    m.coarse = m.own + a.padded;
    m.tile = m.coarse + a.padded;
    return m;
}

/* cos and sin of the block's first position, which a distance in the block is added to. */
__device__ static inline void find_coarse(const attend_problem &a, int block, float *coarse) {
    int half = a.rotated / 2;
    for (int i = threadIdx.x; i < half; i += THREADS) {
        double angle = (double)(block * BLOCK) * weft_rope_rate(&a.law, i, a.rotated), s, c;
        sincos(angle, &s, &c);
        coarse[i] = (float)(a.law.amplitude * c);
        coarse[half + i] = (float)(a.law.amplitude * s);
    }
}

/* Numbers i and i + half of a key, rotated to position j. */
__device__ static inline void rotate_pair(const attend_problem &a, const float *coarse, int j,
                                          int i, float &x, float &y) {
    int half = a.rotated / 2;
    const float *near = a.rotations + (int64_t)(j % BLOCK) * 2 * half;
    float c = coarse[i] * near[i] - coarse[half + i] * near[half + i];
    float s = coarse[half + i] * near[i] + coarse[i] * near[half + i];
    float rotated = x * c - y * s;
    y = y * c + x * s;
    x = rotated;
}

/* Element d of key j of key head g as scores see it; the two of a rotated pair are made by the thread
 * of the first. */
template <int KIND>
__device__ static inline void read_key(const attend_problem &a, int r, int g, int j,
                                       const float *coarse, float *to, int thread, int threads) {
    char *page = page_at(a.keys, a.places, r, j);
    int token = j % WEFT_PAGE_TOKENS, half = a.rotated / 2;
    const char *from = token_at(a.keys, page, g, token);
    float scale = KIND == CACHED_I8 ? *scale_at(a.keys, page, g, token) : 1.0f;
    for (int d = thread; d < a.padded; d += threads) {
        if (d >= half && d < 2 * half) continue;
        float x = d < a.dqk ? load_cached<KIND>(from, d) * scale : 0.0f;
        if (d < half) {
            float y = load_cached<KIND>(from, d + half) * scale;
            rotate_pair(a, coarse, j, d, x, y);
            if (a.gaussian && d + half >= a.dqk / 2) y = softplus(y);
            to[d + half] = y;
        }
        if (a.gaussian && d >= a.dqk / 2 && d < a.dqk) x = softplus(x);
        to[d] = x;
    }
}

/* The products of a key with all the group's queries, and its n: eight lanes a key, which all come here;
 * `inside`: it is one. */
template <int KIND, bool ALIGNED>
__device__ static inline void score_key(const attend_problem &a, const attend_memory &m,
                                        const char *key, bool inside, int at, float scale) {
    int lane = threadIdx.x % LANES;
    float squares = 0;
    for (int h0 = 0; h0 < a.group; h0 += HEADS) {
        float sum[HEADS] = {};
        for (int d = lane * VECTOR; d < a.padded; d += LANES * VECTOR) {
            float k[VECTOR] = {};
            if (inside) load_eight<KIND, ALIGNED>(key, d, a.dqk, k);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h0 + h >= a.group) break;
                float q[VECTOR];
                load_vector(m.q + (h0 + h) * a.padded + d, q);
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    sum[h] = fmaf(q[e], k[e], sum[h]);
            }
            if (h0 == 0 && a.squares)
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    squares = fmaf(k[e], k[e], squares);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float all = lanes_sum(sum[h], LANES) * scale;
            if (lane == 0 && inside && h0 + h < a.group) m.scores[(h0 + h) * BLOCK + at] = all;
        }
    }
    if (!a.squares) return;
    squares = lanes_sum(squares, LANES) * scale * scale;
    if (lane == 0 && inside) m.n[at] = squares;
}

/* Raw products of keys [first, end), and their n. */
template <int KIND, bool ALIGNED>
__device__ static inline void score_pages(const attend_problem &a, const attend_memory &m, int r,
                                          int g, int first, int end) {
    int own = (int)threadIdx.x / LANES;
    for (int j0 = first; j0 < end; j0 += KEY_TILE) {
        int j = min(j0 + own, end - 1), token = j % WEFT_PAGE_TOKENS;
        bool inside = j0 + own < end;
        char *page = page_at(a.keys, a.places, r, j);
        float scale = KIND == CACHED_I8 ? *scale_at(a.keys, page, g, token) : 1.0f;
        score_key<KIND, ALIGNED>(a, m, token_at(a.keys, page, g, token), inside, j - first, scale);
        if (a.keys.number && inside && threadIdx.x % LANES == 0)
            m.n[j - first] = *number_at(a.keys, page, g, token);
    }
}

/* The same where keys are made into something else when they are read. */
template <int KIND>
__device__ static inline void score_copied(const attend_problem &a, const attend_memory &m, int r,
                                           int g, int first, int end) {
    int own = (int)threadIdx.x / LANES;
    for (int j0 = first; j0 < end; j0 += KEY_TILE) {
        int j = min(j0 + own, end - 1);
        bool inside = j0 + own < end;
        float *copy = m.tile + own * a.padded;
        __syncthreads();
        if (inside) read_key<KIND>(a, r, g, j, m.coarse, copy, threadIdx.x % LANES, LANES);
        __syncthreads();
        score_key<CACHED_F32, false>(a, m, (const char *)copy, inside, j - first, 1.0f);
        if (a.keys.number && inside && threadIdx.x % LANES == 0) {
            char *page = page_at(a.keys, a.places, r, j);
            m.n[j - first] = *number_at(a.keys, page, g, j % WEFT_PAGE_TOKENS);
        }
    }
}

/* Number d of the query of position j ≤ the row's own: of this run, or one of the last before it. */
__device__ static inline float query_number(const attend_problem &a, int r, int j, int head,
                                            int d) {
    const row_places &p = a.places;
    int before = r - (p.position[r] - j);
    if (before >= 0 && p.slot[before] == p.slot[r] && p.position[before] == j)
        return load_any(a.q, before * a.q_columns + (int64_t)head * a.dqk + d);
    int64_t at = ((int64_t)p.slot[r] * a.window + j % a.window) * a.heads + head;
    return a.query_cache[at * a.dqk + d];
}

/* Adds the band's term to the raw products, α ⟨q_j, k_i⟩ for i − j ≤ window: a warp a pair. */
template <int KIND>
__device__ static inline void add_band(const attend_problem &a, const attend_memory &m, int r,
                                       int g, int first, int end) {
    int i = a.places.position[r], from = max(first, i - a.window), lane = threadIdx.x % 32;
    if (from >= end) return;
    __syncthreads();
    if (a.rotated) find_coarse(a, i / BLOCK, m.coarse);
    __syncthreads();
    read_key<KIND>(a, r, g, i, m.coarse, m.own, (int)threadIdx.x, THREADS);
    __syncthreads();
    int pairs = a.group * (end - from);
    for (int e = (int)threadIdx.x / 32; e < pairs; e += THREADS / 32) {
        int h = e / (end - from), j = from + e % (end - from);
        float sum = 0;
        for (int d = lane; d < a.dqk; d += 32)
            sum = fmaf(query_number(a, r, j, g * a.group + h, d), m.own[d], sum);
        sum = warp_sum(sum);
        if (lane == 0) m.scores[h * BLOCK + j - first] += a.band_alpha * sum;
    }
}

/* Σ_j p_j v_j of the block. A thread has eight columns of every so many-th key; the threads' sums are
 * added in order. */
template <int KIND, bool ALIGNED>
__device__ static inline void sum_values(const attend_problem &a, const attend_memory &m, int r,
                                         int g, int first, int end, float *partial, int64_t step) {
    int chunks = (a.dv + VECTOR - 1) / VECTOR, across = 1;
    while (across < chunks && across < THREADS)
        across *= 2;
    int apart = THREADS / across, own = (int)threadIdx.x / across;
    for (int h0 = 0; h0 < a.group; h0 += HEADS)
        for (int c0 = 0; c0 < chunks; c0 += across) {
            int chunk = c0 + (int)threadIdx.x % across;
            float sum[HEADS][VECTOR] = {};
            for (int j = first + own; j < end && chunk < chunks; j += apart) {
                char *page = page_at(a.values, a.places, r, j);
                int token = j % WEFT_PAGE_TOKENS;
                float v[VECTOR];
                load_eight<KIND, ALIGNED>(token_at(a.values, page, g, token), chunk * VECTOR, a.dv,
                                          v);
                float scale = KIND == CACHED_I8 ? *scale_at(a.values, page, g, token) : 1.0f;
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h0 + h >= a.group) break;
                    float weight = m.scores[(h0 + h) * BLOCK + j - first] * scale;
#pragma unroll
                    for (int e = 0; e < VECTOR; e++)
                        sum[h][e] = fmaf(weight, v[e], sum[h][e]);
                }
            }
            __syncthreads();
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int e = 0; e < VECTOR; e++)
                    m.tile[(h * VECTOR + e) * THREADS + threadIdx.x] = sum[h][e];
            __syncthreads();
            for (int e = threadIdx.x; e < HEADS * VECTOR * across; e += THREADS) {
                int at = e / across, column = (c0 + e % across) * VECTOR + at % VECTOR;
                int h = h0 + at / VECTOR;
                if (h >= a.group || column >= a.dv) continue;
                float all = 0;
                for (int k = 0; k < apart; k++)
                    all += m.tile[at * THREADS + k * across + e % across];
                partial[h * step + column] = all;
            }
        }
}

template <int KIND, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    attend_block(const __grid_constant__ attend_problem a) {
    extern __shared__ __align__(16) float memory[];
    follow_primary();
    block_place t = place_leaf(a, (int)blockIdx.z);
    bool joins = t.part == 0 && a.places.slot[t.r] < 0;
    int r = t.r, g = t.g, first = t.first, end = t.end;
    if (first < end) {
        attend_memory m = cut_memory(a, memory);
        int64_t q = r * a.q_columns + (int64_t)g * a.group * a.dqk;
        for (int e = threadIdx.x; e < a.group * a.padded; e += THREADS) {
            int h = e / a.padded, d = e % a.padded;
            m.q[e] = d < a.dqk ? load_any(a.q, q + (int64_t)h * a.dqk + d) : 0.0f;
        }
        if (a.rotated) find_coarse(a, t.block, m.coarse);
        __syncthreads();
        if (copies_keys(a))
            score_copied<KIND>(a, m, r, g, first, end);
        else
            score_pages<KIND, ALIGNED>(a, m, r, g, first, end);
        if (a.band && a.window > 0) add_band<KIND>(a, m, r, g, first, end);
        __syncthreads();
        /* Of the first of the group's heads; the others lie `step` behind each other. */
        int64_t step = (int64_t)a.blocks * (a.dv + 2), head = (int64_t)r * a.heads + g * a.group;
        float *partial = a.partial + (head * a.blocks + t.part) * (a.dv + 2);
        weigh_keys(a, m.scores, m.n, t, partial, step);
        __syncthreads();
        sum_values<KIND, ALIGNED>(a, m, r, g, first, end, partial, step);
        joins = a.joins && ends_last(a, r, g, leaves_of(a, r));
    }
    if (a.joins && joins) join_group(a, r, g, 1);
}

/* A block has up to JOINED_COLUMNS columns of a row's head. */
static __global__ void __launch_bounds__(32 * JOIN_WARPS)
    join_blocks(const __grid_constant__ attend_problem a) {
    follow_primary();
    join_head(a, (int)blockIdx.x, (int)blockIdx.y * JOINED_COLUMNS);
}

/* Of each of so many blocks: one for every JOINED_LEAVES leaves, as far as there is room for them at a time. */
static unsigned join_warps(const attend_problem &a, int64_t blocks) {
    int64_t room = JOIN_WARPS * multiprocessors() / blocks;
    int64_t most = min_i64(JOIN_WARPS, ceil_div(a.blocks, JOINED_LEAVES));
    return (unsigned)max_i64(JOINED_COLUMNS / 32, min_i64(room, most));
}

/* The weights of a row's keys, over all heads: one thread per key, which asks for some heads' scores at a time. */
static __global__ void join_weights(const __grid_constant__ attend_problem a) {
    enum { AT_ONCE = 16 };
    int r = blockIdx.y, j = (int)thread_index(), i = a.places.position[r];
    bool there = a.places.slot[r] >= 0;
    follow_primary();
    if (!there || j > i - first_seen(a, r, i)) return;
    float sum = 0;
    for (int h0 = 0; h0 < a.heads; h0 += AT_ONCE) {
        float score[AT_ONCE];
        float2 row[AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            int64_t at = (int64_t)r * a.heads + min(h0 + e, a.heads - 1);
            score[e] = a.scores[at * a.context + j];
            row[e] = *(const float2 *)(a.rows + 2 * at);
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            if (h0 + e >= a.heads) break;
            float p = exp2f(score[e] - row[e].x) / row[e].y;
            if (a.shares) p *= a.shares[(int64_t)r * a.heads + h0 + e];
            sum = a.weights == WEFT_WEIGHTS_MAX ? fmaxf(sum, p) : sum + p;
        }
    }
    a.weight[(int64_t)r * a.context + j] =
        a.weights == WEFT_WEIGHTS_MAX ? sum : sum / (float)a.heads;
}

/* Keeps the queries of this run for the next. */
static __global__ void keep_queries(const __grid_constant__ attend_problem a) {
    int r = blockIdx.y, e = (int)thread_index(), width = a.heads * a.dqk;
    const row_places &p = a.places;
    if (e >= width || p.slot[r] < 0) return;
    /* Of two rows that would take one place the later one has it. */
    int later = r + a.window;
    if (later < p.rows && p.slot[later] == p.slot[r] &&
        p.position[later] == p.position[r] + a.window)
        return;
    int64_t at = (int64_t)p.slot[r] * a.window + p.position[r] % a.window;
    a.query_cache[at * width + e] = load_any(a.q, r * a.q_columns + e);
}

static attend_problem make_problem(const weft_exec *x, const weft_node *n) {
    const weft_cache_attention_attr *attr = ATTR(n, weft_cache_attention_attr);
    attend_problem a = {};
    bool apart = n->in[WEFT_CACHE_VALUES] != NULL;
    a.keys = pages_of(x ? weft_data(x, n->in[WEFT_CACHE_PAGES]) : NULL, &attr->key);
    a.values =
        apart ? pages_of(x ? weft_data(x, n->in[WEFT_CACHE_VALUES]) : NULL, &attr->value) : a.keys;
    a.heads = (int)attr->heads;
    a.group = (int)(attr->heads / attr->key.heads);
    a.dqk = (int)attr->key.width;
    a.dv = (int)attr->value.width;
    a.padded = (int)ceil_div(a.dqk, VECTOR) * VECTOR;
    a.context = (int)attr->context;
    a.scale_value = (float)attr->scale_value;
    a.band_alpha = (float)attr->band_alpha;
    a.softcap = (float)attr->softcap * LOG2E;
    a.pos = attr->pos;
    a.band = attr->band;
    a.gaussian = attr->gaussian;
    a.squares = attr->squares;
    a.window = (int)attr->window;
    a.rotated = (int)attr->rotated;
    a.law = attr->law;
    a.weights = attr->weights;
    a.joint = !apart;
    a.q.is_bf16 = n->in[WEFT_CACHE_X]->dtype == WEFT_BF16;
    a.q_columns = weft_tensor_count(n->in[WEFT_CACHE_X]) / n->in[WEFT_CACHE_SLOT]->shape[0];
    /* Tiles of heads, and parts of the values' columns. */
    a.units = tensor_heads(a) / TENSOR_ROWS * (int)ceil_div(a.dv, TENSOR_COLUMNS);
    choose_stages(&a, a.dv <= TENSOR_COLUMNS && a.group > TENSOR_ROWS / 2);
    /* Follows from types, sizes and options alone. */
    a.tensor = a.q.is_bf16 && a.keys.kind == CACHED_BF16 && a.values.kind == CACHED_BF16 &&
               !copies_keys(a) && !a.squares && !a.band && a.dqk % VECTOR == 0 &&
               a.dv % VECTOR == 0 && a.q_columns % VECTOR == 0 && fits_block(a);
    /* By the heads and the context alone, which all runs of a decoder have in common. Of few heads
     * as short as a block can join them, for a leaf's keys follow one another; of many heads each
     * leaf leaves many sums, a fifth of what is read where leaves have 128 keys. */
    a.leaf_bits = has_few_heads(a) ? 5 : a.context < TENSOR_LONG ? 7 : 8;
    while (has_few_heads(a) && a.leaf_bits < 8 && a.context >> a.leaf_bits > FEW_LEAVES - 2)
        a.leaf_bits++;
    a.leaf = a.tensor ? 1 << a.leaf_bits : BLOCK;
    a.blocks = (int)(ceil_div(attr->context - 1, a.leaf) + 1);
    return a;
}

/* That share the workspace, at a time. */
enum { ATTENDED_ROWS = WEFT_RUN_ROWS };

/* Divides the workspace; `base` NULL: only measures it. Returns its bytes. */
static int64_t lay_out(const weft_node *n, char *base, attend_problem *a) {
    int64_t rows = min_i64(n->in[WEFT_CACHE_X]->shape[0], ATTENDED_ROWS);
    int64_t heads = rows * a->heads;
    workspace_pieces pieces = {base, 0};
    pieces.take(&a->partial, heads * a->blocks * (a->dv + 2));
    pieces.take(&a->rows, 2 * heads);
    if (a->weights) pieces.take(&a->scores, heads * a->context);
    return pieces.bytes;
}

static int64_t cache_attention_workspace(const weft_node *n, int) {
    attend_problem a = make_problem(NULL, n);
    return lay_out(n, NULL, &a);
}

/* `early`: behind the kernel of another node, and not behind rows of this one, whose workspace it takes. */
static void launch_kernel(const weft_exec *x, const attend_problem &a, bool early,
                          void (*kernel)(const attend_problem), int64_t bytes) {
    dim3 grid((unsigned)ceil_div(a.keys.heads, a.own_heads), (unsigned)a.places.rows,
              (unsigned)a.splits);
    /* Never less than a launch that a graph keeps asked for. */
    cudaFuncAttributes of = {};
    if (cudaFuncGetAttributes(&of, kernel) != cudaSuccess || of.maxDynamicSharedSizeBytes < bytes)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_following(early && follows(x), stream_of(x), grid, a.tensor ? 32 * a.all_warps : THREADS,
                     bytes, kernel, a);
}

/* Of a run whose keys and values attention may write. Of more, which a prompt has, every row would copy
 * those of all before it. */
enum { WRITTEN_ROWS = 64 };

static bool is_op(const weft_node *n, int op) {
    return n->op->id == op;
}

/* Whether attention writes nothing where a tensor is. */
static bool works_apart(const weft_exec *x, const weft_node *n, const weft_tensor *t) {
    attend_problem a = make_problem(NULL, n);
    const char *from = (const char *)weft_data(x, t), *work = workspace_of<char>(x, n);
    return !from || work >= from + weft_tensor_bytes(t) || from >= work + lay_out(n, NULL, &a);
}

/* Whether attention can do a write before it, to pages `c` of its own. */
static bool takes_write(const weft_exec *x, const weft_node *n, const weft_node *write,
                        const cached_pages &c) {
    cached_write w = describe_write(x, write);
    if (w.c.heads != c.heads || w.c.width != c.width || w.c.number != c.number ||
        w.c.kind != c.kind || !w.x.is_bf16 || w.columns % VECTOR != 0 || w.offset % VECTOR != 0 ||
        (uintptr_t)w.x.data % sizeof(uint4) != 0 ||
        !share_inputs(n, write, WEFT_CACHE_POSITION, WEFT_CACHE_TABLE))
        return false;
    /* What it is to write must still be there, and not be wanted, when those between are done. */
    for (int64_t i = write->index + 1; i < n->index; i++) {
        const weft_node *between = node_at(x, i);
        for (int k = 0; k < between->n_in; k++)
            if (overlap(x, between->in[k], write->in[WEFT_CACHE_PAGES])) return false;
        if (weft_workspace(x, between) || !spares(x, between, write)) return false;
    }
    return spares(x, n, write) && works_apart(x, n, write->in[WEFT_CACHE_X]) &&
           works_apart(x, n, write->in[WEFT_CACHE_EXTRA]);
}

/* The write of some pages behind the attention before n; NULL: there is none. */
static const weft_node *find_write(const weft_exec *x, const weft_node *n,
                                   const weft_tensor *pages) {
    for (int64_t i = n->index - 1; i >= 0; i--) {
        const weft_node *write = node_at(x, i);
        if (is_op(write, WEFT_OP_cache_attention)) return NULL;
        if (is_op(write, WEFT_OP_cache_write) && write->in[WEFT_CACHE_PAGES] == pages) return write;
    }
    return NULL;
}

/* The writes that attention does, of its keys and of its values: all of them, or none. */
struct attended_writes {
    const weft_node *keys, *values;
};

static attended_writes find_writes(const weft_exec *x, const weft_node *n) {
    const weft_tensor *keys = n->in[WEFT_CACHE_PAGES], *values = n->in[WEFT_CACHE_VALUES];
    attend_problem a = make_problem(NULL, n);
    if (!follows(x) || !a.tensor || n->in[WEFT_CACHE_SLOT]->shape[0] > WRITTEN_ROWS ||
        keys == values)
        return {};
    attended_writes w = {find_write(x, n, keys), values ? find_write(x, n, values) : NULL};
    bool taken = w.keys && takes_write(x, n, w.keys, a.keys) &&
                 (!values || (w.values && takes_write(x, n, w.values, a.values)));
    return taken ? w : attended_writes{};
}

bool is_written_later(const weft_exec *x, const weft_node *write) {
    const weft_node *n = node_at(x, write->index + 1);
    while (n && !is_op(n, WEFT_OP_cache_attention))
        n = node_at(x, n->index + 1);
    if (!follows(x) || !n) return false;
    attended_writes w = find_writes(x, n);
    return w.keys == write || w.values == write;
}

static any_tensor rows_behind(any_tensor t, int64_t values) {
    return any_tensor{(const char *)t.data + values * (t.is_bf16 ? 2 : 4), t.is_bf16};
}

/* ATTENDED_ROWS rows of a run, or what is left of it, from `first` on. */
static void attend_rows(const weft_exec *x, attend_problem a, int first) {
    a.places.rows = (int)min_i64(a.places.rows - first, ATTENDED_ROWS);
    a.places.position += first;
    a.places.slot += first;
    a.q = rows_behind(a.q, first * a.q_columns);
    a.o = rows_behind(a.o, (int64_t)first * a.heads * a.dv);
    if (a.documents) a.documents += first;
    if (a.shares) a.shares += first * a.heads;
    if (a.weight) a.weight += (int64_t)first * a.context;
    unsigned rows = (unsigned)a.places.rows;
    a.splits = a.blocks;
    if (a.tensor) share_out_leaves(&a);
    bool few_leaves = a.blocks <= (has_few_heads(a) ? FEW_LEAVES : FEW_OF_MANY);
    if (few_leaves && a.dv % 2 == 0 && rows * a.keys.heads <= DEVICE_COUNTERS)
        a.joins = state_of(x)->counters;
    if (a.tensor)
        with_constant<2, 4, 8>(value_units(a), [&](auto units) {
            auto kernel = choose_rows<decltype(units)::value>(a);
            launch_kernel(x, a, first == 0, kernel, tensor_bytes(a));
        });
    else
        with_kind(a.keys.kind, [&](auto k) {
            constexpr int KIND = decltype(k)::value;
            bool aligned = a.dqk % VECTOR == 0 && a.dv % VECTOR == 0;
            launch_kernel(x, a, first == 0,
                          aligned ? attend_block<KIND, true> : attend_block<KIND, false>,
                          attend_bytes(a));
        });
    dim3 heads(rows * (unsigned)a.heads, (unsigned)ceil_div(a.dv, JOINED_COLUMNS));
    if (!a.joins)
        launch_following(follows(x), stream_of(x), heads,
                         32 * join_warps(a, (int64_t)heads.x * heads.y), 0, join_blocks, a);
    if (a.weights)
        launch_following(follows(x), stream_of(x), dim3((unsigned)ceil_div(a.context, 256), rows),
                         256, 0, join_weights, a);
    if (a.band && a.window > 0)
        keep_queries<<<dim3((unsigned)ceil_div((int64_t)a.heads * a.dqk, 256), rows), 256, 0,
                       stream_of(x)>>>(a);
}

CUDA_RUN(cache_attention, cache_attention_workspace) {
    attend_problem a = make_problem(x, n);
    lay_out(n, workspace_of<char>(x, n), &a);
    a.places = places_of(x, n);
    a.q = any_of(x, n->in[WEFT_CACHE_X]);
    a.o = any_of(x, n->out[0]);
    a.scale = data_of<float>(x, n->in[WEFT_CACHE_SCALE]);
    a.beta = data_of<float>(x, n->in[WEFT_CACHE_BETA]);
    a.log_tau = data_of<float>(x, n->in[WEFT_CACHE_LOG_TAU]);
    a.rel = data_of<float>(x, n->in[WEFT_CACHE_REL]);
    a.rotations = data_of<float>(x, n->in[WEFT_CACHE_ROTATIONS]);
    a.query_cache = data_of<float>(x, n->in[WEFT_CACHE_QUERIES]);
    a.documents = data_of<int32_t>(x, n->in[WEFT_CACHE_FIRST]);
    a.shares = data_of<float>(x, n->in[WEFT_CACHE_SHARES]);
    if (a.weights) a.weight = data_of<float>(x, n->out[1]);
    if (a.keys.kind != a.values.kind)
        return WEFT_BAD_INPUT("cache_attention: keys and values of different types");
    if (attend_bytes(a) + JOIN_BYTES > weft_cuda_device()->shared_memory && !a.tensor)
        return WEFT_BAD_INPUT(
            "cache_attention: %d heads of %d numbers for one key head are more than a "
            "block of this GPU has room for; --device cpu can",
            a.group, a.dqk);
    attended_writes writes = find_writes(x, n);
    if (writes.keys) a.key_write = describe_write(x, writes.keys);
    if (writes.values) a.value_write = describe_write(x, writes.values);
    for (int first = 0; first < a.places.rows; first += ATTENDED_ROWS)
        attend_rows(x, a, first);
    return launched(n);
}

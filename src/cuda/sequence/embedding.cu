/* Embedding on the GPU: the lookup, and the table's gradient by a radix sort of the tokens.
 *
 * Floor, embed: the rows read and the bytes of y. The table's gradient: the bytes of dy and of the
 * whole table, which is written once, zeros and all; where it is added to one in place, of the rows
 * of tokens that occur.
 *
 * The gradient is the lookup transposed, as on the CPU: the tokens are sorted by their id, those of
 * one id staying in their order, and each row of the table is then one sum of its tokens'
 * gradients. The sort goes by digits of eight bits from the lowest on: a block counts the digits of
 * its tile of tokens, one block makes places of all counts (a prefix sum), and each token goes to its
 * place, its rank within the tile coming from its rank in its warp and the counts of the warps
 * before. Integer counts come out the same in any order, so all of it is exact. */
#include "cuda/pack.cuh"

enum {
    DIGITS = 256,
    TILE = 1024, /* tokens of a block of the sort, a thread each */
    WARPS = 8,   /* rows of the table a block sums */
    STRIP = 32 * VECTOR,
    LONG = 32 /* a row of more tokens than this is summed by the whole block */
};

struct lookup {
    int64_t count, length, width; /* tokens, tokens of a sequence, columns */
    int64_t rows, positions;
    const int32_t *ids, *start;
    any_tensor wte, wpe, y;
    weft_cuda_run *run;
    int node;
};

/* Faults: place i < count is a token, count + b a sequence's position. */
template <bool WHOLE> static __global__ void embed_tokens(lookup k) {
    wait_for_primary(); /* behind this the run's inputs are there, for all kernels that follow */
    trigger_dependents();
    auto [i, column, n] = place_pack(k.width);
    if (i >= k.count) return;
    int64_t b = quotient(i, k.length), position = i - b * k.length, id = k.ids[i];
    if (k.start) position += k.start[b];
    bool known = id >= 0 && id < k.rows;
    bool placed = !k.wpe.data || (position >= 0 && position < k.positions);
    if (column == 0 && !known) note_fault(k.run, k.node, i);
    if (column == 0 && !placed) note_fault(k.run, k.node, k.count + b);
    pack p = fetch_of<WHOLE>(k.wte, (known ? id : 0) * k.width + column, n), q = {};
    if (k.wpe.data) q = fetch_of<WHOLE>(k.wpe, (placed ? position : 0) * k.width + column, n);
    float v[VECTOR], w[VECTOR];
    widen_of<WHOLE>(p, k.wte, v);
    widen_of<WHOLE>(q, k.wpe, w);
    add_vector(v, w);
    store_of<WHOLE>(k.y, i * k.width + column, n, v);
}

static weft_status embed_explain(weft_exec *x, const weft_node *n, int64_t place) {
    const weft_tensor *ids = n->in[1];
    int64_t count = weft_tensor_count(ids), b = place - count;
    if (place < count)
        return WEFT_BAD_INPUT("embed: token %d at sequence %lld, position %lld is outside the "
                              "vocabulary of %lld",
                              read_i32(x, ids, place), (long long)(place / ids->shape[1]),
                              (long long)(place % ids->shape[1]), (long long)n->in[0]->shape[0]);
    long long first = n->in[3] ? read_i32(x, n->in[3], b) : 0;
    return WEFT_BAD_INPUT(
        "embed: sequence %lld has positions %lld to %lld, but the table has %lld of "
        "them",
        (long long)b, first, first + (long long)ids->shape[1] - 1, (long long)n->in[2]->shape[0]);
}

CUDA_RUN(embed, NULL, embed_explain) {
    const weft_tensor *wte = n->in[0], *ids = n->in[1], *wpe = n->in[2];
    lookup k = {};
    k.count = weft_tensor_count(ids);
    k.length = ids->shape[1];
    k.width = wte->shape[1];
    k.rows = wte->shape[0];
    k.positions = wpe ? wpe->shape[0] : 0;
    k.ids = data_of<int32_t>(x, ids);
    k.start = data_of<int32_t>(x, n->in[3]);
    k.wte = any_of(x, wte);
    k.wpe = any_of(x, wpe);
    k.y = any_of(x, n->out[0]);
    k.run = device_run(x);
    k.node = n->index;
    bool whole = are_whole(k.width, k.wte, k.wpe, k.y);
    return run_following(x, n, count_packs(k.count, k.width),
                         whole ? embed_tokens<true> : embed_tokens<false>, k);
}

/* Tokens in the order so far: in the first pass as they stand, ids outside the table last. */
struct token_order {
    const int32_t *ids, *keys, *tokens; /* keys NULL: the first pass */
    int64_t count, rows;
};

__device__ static inline int32_t key_at(const token_order &o, int64_t i) {
    if (o.keys) return o.keys[i];
    int32_t id = o.ids[i];
    return id >= 0 && id < o.rows ? id : (int32_t)o.rows;
}

/* counts[digit, tile]. */
static __global__ void count_digits(token_order o, int shift, int32_t *counts) {
    __shared__ int count[DIGITS];
    int64_t i = (int64_t)blockIdx.x * TILE + threadIdx.x;
    if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
    __syncthreads();
    if (i < o.count) atomicAdd(&count[key_at(o, i) >> shift & (DIGITS - 1)], 1);
    __syncthreads();
    if (threadIdx.x < DIGITS)
        counts[threadIdx.x * (int64_t)gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/* counts to the sums of those before: one block, whose threads have a run of counts each. */
static __global__ void __launch_bounds__(TILE) place_digits(int64_t total, int32_t *counts) {
    __shared__ int sums[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = 0;
    int64_t length = ceil_div(total, TILE), first = threadIdx.x * length;
    int64_t end = min_i64(first + length, total);
#pragma unroll 8
    for (int64_t i = first; i < end; i++)
        own += counts[i];
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int before = sum - own;
    for (int w = 0; w < warp; w++)
        before += sums[w];
    for (int64_t i = first; i < end; i++) {
        int count = counts[i];
        counts[i] = before;
        before += count;
    }
}

static __global__ void move_tokens(token_order o, int shift, const int32_t *places, int32_t *keys,
                                   int32_t *tokens) {
    __shared__ int before[TILE / 32][DIGITS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < TILE / 32 * DIGITS; i += TILE)
        before[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    int64_t i = (int64_t)blockIdx.x * TILE + threadIdx.x;
    bool there = i < o.count;
    int32_t key = there ? key_at(o, i) : 0;
    int digit = there ? key >> shift & (DIGITS - 1) : DIGITS;
    unsigned same = __match_any_sync(0xffffffffu, digit);
    int rank = __popc(same & ((1u << lane) - 1));
    if (there && rank == 0) before[warp][digit] = __popc(same);
    __syncthreads();
    if (threadIdx.x < DIGITS) {
        int sum = places[threadIdx.x * (int64_t)gridDim.x + blockIdx.x];
        for (int w = 0; w < TILE / 32; w++) {
            int own = before[w][threadIdx.x];
            before[w][threadIdx.x] = sum;
            sum += own;
        }
    }
    __syncthreads();
    if (!there) return;
    int place = before[warp][digit] + rank;
    keys[place] = key;
    tokens[place] = o.keys ? o.tokens[i] : (int32_t)i;
}

/* first[v] = how many keys are below v: a thread per row, by halving. */
static __global__ void find_rows(int64_t count, int64_t rows, const int32_t *keys, int32_t *first) {
    int64_t v = thread_index(), low = 0, high = count;
    if (v > rows) return;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (keys[middle] < v)
            low = middle + 1;
        else
            high = middle;
    }
    first[v] = (int32_t)low;
}

/* What a row's tokens are added to: zeros where nothing is there. */
template <bool WHOLE>
__device__ static inline void start_sum(any_tensor addend, int64_t at, int n,
                                        float (&sum)[VECTOR]) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        sum[j] = 0;
    if (addend.data) widen_of<WHOLE>(fetch_of<WHOLE>(addend, at, n), addend, sum);
}

/* Adds the tokens from, from + step, ... below `end`. */
template <bool WHOLE>
__device__ static inline void sum_tokens(any_tensor dy, const int32_t *tokens, int32_t from,
                                         int32_t end, int step, int64_t width, int64_t column,
                                         int n, float (&sum)[VECTOR]) {
#pragma unroll 4
    for (int32_t i = from; i < end; i += step) {
        float v[VECTOR];
        widen_of<WHOLE>(fetch_of<WHOLE>(dy, tokens[i] * width + column, n), dy, v);
        add_vector(sum, v);
    }
}

/* A warp a row and strip of columns; then the whole block for the long rows among its own, the
 * warps taking tokens in turn and their sums added in order. */
template <bool WHOLE>
static __global__ void sum_token_rows(any_tensor dy, const int32_t *first, const int32_t *tokens,
                                      int64_t rows, int64_t width, any_tensor addend,
                                      any_tensor dw) {
    __shared__ float shared[WARPS][STRIP];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t base = (int64_t)blockIdx.x * WARPS, row = base + warp;
    int64_t column = (int64_t)blockIdx.y * STRIP + lane * VECTOR;
    int n = pack_length(width, column);
    int32_t begin = row < rows ? first[row] : 0, end = row < rows ? first[row + 1] : 0;
    bool stays = begin == end && addend.data == dw.data; /* nothing comes to what is there */
    float sum[VECTOR];
    if (row < rows && n > 0 && end - begin <= LONG && !stays) {
        start_sum<WHOLE>(addend, row * width + column, n, sum);
        sum_tokens<WHOLE>(dy, tokens, begin, end, 1, width, column, n, sum);
        store_of<WHOLE>(dw, row * width + column, n, sum);
    }
    for (row = base; row < min_i64(base + WARPS, rows); row++) {
        begin = first[row], end = first[row + 1];
        if (end - begin <= LONG) continue;
        if (n == 0) end = begin;
        start_sum<WHOLE>(warp == 0 && n > 0 ? addend : any_tensor{}, row * width + column, n, sum);
        sum_tokens<WHOLE>(dy, tokens, begin + warp, end, WARPS, width, column, n, sum);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            shared[warp][j * 32 + lane] = sum[j];
        __syncthreads();
        if (warp == 0 && n > 0) {
            for (int w = 1; w < WARPS; w++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    sum[j] += shared[w][j * 32 + lane];
            store_of<WHOLE>(dw, row * width + column, n, sum);
        }
        __syncthreads();
    }
}

/* The workspace: tokens and their keys twice, the counts, the rows' first tokens. */
struct token_sort {
    int64_t tiles;
    int32_t *keys[2], *tokens[2], *counts, *first;
    int64_t bytes;
};

static token_sort place_sort(const weft_node *n, char *workspace) {
    int64_t count = weft_tensor_count(n->in[1]);
    workspace_pieces pieces = {workspace, 0};
    token_sort s = {ceil_div(count, TILE)};
    for (int i = 0; i < 2; i++) {
        pieces.take(&s.keys[i], count);
        pieces.take(&s.tokens[i], count);
    }
    pieces.take(&s.counts, DIGITS * s.tiles);
    pieces.take(&s.first, ATTR(n, weft_embed_back_attr)->rows + 1);
    s.bytes = pieces.bytes;
    return s;
}

CUDA_RUN_WITH(embed_back, place_sort(n, NULL).bytes) {
    token_sort s = place_sort(n, workspace_of<char>(x, n));
    token_order o = {data_of<int32_t>(x, n->in[1]), NULL, NULL, weft_tensor_count(n->in[1]),
                     ATTR(n, weft_embed_back_attr)->rows};
    unsigned tiles = (unsigned)s.tiles;
    for (int shift = 0, at = 0; shift == 0 || o.rows >> shift > 0; shift += 8, at ^= 1) {
        count_digits<<<tiles, TILE, 0, stream_of(x)>>>(o, shift, s.counts);
        place_digits<<<1, TILE, 0, stream_of(x)>>>(DIGITS * s.tiles, s.counts);
        move_tokens<<<tiles, TILE, 0, stream_of(x)>>>(o, shift, s.counts, s.keys[at], s.tokens[at]);
        o.keys = s.keys[at];
        o.tokens = s.tokens[at];
    }
    int64_t width = weft_tensor_width(n->in[0]);
    WEFT_TRY(run_items(x, n, o.rows + 1, find_rows, o.count, o.rows, o.keys, s.first));
    dim3 grid((unsigned)ceil_div(o.rows, WARPS), (unsigned)ceil_div(width, STRIP));
    any_tensor dy = any_of(x, n->in[0]), addend = any_of(x, n->in[WEFT_EMBED_BACK_ADDEND]),
               dw = any_of(x, n->out[0]);
    auto kernel = are_whole(width, dy, addend, dw) ? sum_token_rows<true> : sum_token_rows<false>;
    kernel<<<grid, WARPS * 32, 0, stream_of(x)>>>(dy, s.first, o.tokens, o.rows, width, addend, dw);
    return launched(n);
}

/* A thread a pack of the table's rows, over the sequences in order. Floor: dy's bytes, the table's. */
template <bool WHOLE> static __global__ void sum_positions(lookup k, any_tensor dy, int64_t batch) {
    auto [row, column, n] = place_pack(k.width);
    if (row >= k.rows) return;
    float sum[VECTOR] = {0};
#pragma unroll 4
    for (int64_t b = 0; b < batch; b++) {
        int64_t t = row - (k.start ? k.start[b] : 0);
        if (t < 0 || t >= k.length) continue;
        float v[VECTOR];
        widen_of<WHOLE>(fetch_of<WHOLE>(dy, (b * k.length + t) * k.width + column, n), dy, v);
        add_vector(sum, v);
    }
    store_of<WHOLE>(k.y, row * k.width + column, n, sum);
}

CUDA_RUN(position_back) {
    const weft_embed_back_attr *attr = ATTR(n, weft_embed_back_attr);
    const weft_tensor *dy = n->in[0];
    lookup k = {};
    k.length = dy->shape[1];
    k.width = dy->shape[2];
    k.rows = attr->rows;
    k.start = data_of<int32_t>(x, n->in[1]);
    k.y = any_of(x, n->out[0]);
    bool whole = are_whole(k.width, any_of(x, dy), k.y);
    return run_items(x, n, count_packs(k.rows, k.width),
                     whole ? sum_positions<true> : sum_positions<false>, k, any_of(x, dy),
                     dy->shape[0]);
}

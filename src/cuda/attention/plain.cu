/* Attention without the tensor cores: the FlashAttention tiling in float arithmetic throughout, for every
 * option and size. The reference for the tensor cores' kernels, and what runs where those do not apply
 * (choice.h).
 *
 * Everything is done in tiles of 32 queries by 32 keys by blocks of 256 threads: thread t has row
 * t / 8 of a tile and the columns t % 8 + 8c. Products run over 32 columns of their operands at a
 * time, so widths have no limit; what is wider than 128 columns in the result is given to several
 * blocks, which make the scores anew.
 *
 * Backward, a block never adds to what another writes: dQ has a block for each tile of queries, dK
 * and dV one for each tile of keys, which goes over the query heads of its key head in order, drel
 * one for each 32 distances of a head. Each makes its own P and dS from the saved logsumexp. Sums
 * over blocks (the numbers a head, drel) are written apart and added up in order. */
#include "cuda/attention/attention.cuh"

enum { TILE = 32, THREADS = 256, PER_ROW = THREADS / TILE, WIDE = 128 };
enum { SCORES = TILE / PER_ROW, OUTPUTS = WIDE / PER_ROW };
enum { NUMBERS = 3 }; /* dscale, dbeta, dlog_tau */

struct tile_memory {
    float a[TILE][TILE + 1], b[TILE][TILE + 1];  /* operands of a product */
    float p[TILE][TILE + 1], ds[TILE][TILE + 1]; /* [query][key] */
    float wide[TILE][WIDE + 1];
};

/* A head at work. */
struct head_task {
    int b, h, kv;
    head_numbers f;
};

__device__ static head_task make_task(const attention_problem &p, int b, int h) {
    return {b, h, key_head_of(p, h), numbers_of_head(p, h)};
}

/* 32 rows from `first`, `columns` columns from c0, rows outside [0, limit) and columns past the
 * width as 0. */
template <typename T, int COLUMNS>
__device__ static void load_rows(float (*to)[COLUMNS + 1], const head_rows &rows, int b, int head,
                                 int first, int limit, int c0, int width) {
    for (int e = threadIdx.x; e < TILE * COLUMNS; e += THREADS) {
        int r = e / COLUMNS, c = e % COLUMNS, position = first + r;
        bool inside = position >= 0 && position < limit && c0 + c < width;
        const T *data = (const T *)rows.data;
        to[r][c] = inside ? to_float(data[row_at(rows, b, position, head) + c0 + c]) : 0.0f;
    }
}

/* sum[c] += ⟨x of the thread's row, y of its columns⟩ over the whole width. */
template <typename T>
__device__ static void multiply_rows(float (&sum)[SCORES], tile_memory &m, const head_rows &x,
                                     int x_head, int x0, int x_limit, const head_rows &y,
                                     int y_head, int y0, int y_limit, int b, int width) {
    int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW;
    for (int c0 = 0; c0 < width; c0 += TILE) {
        __syncthreads();
        load_rows<T, TILE>(m.a, x, b, x_head, x0, x_limit, c0, width);
        load_rows<T, TILE>(m.b, y, b, y_head, y0, y_limit, c0, width);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < TILE; d++)
#pragma unroll
            for (int c = 0; c < SCORES; c++)
                sum[c] += m.a[row][d] * m.b[column + c * PER_ROW][d];
    }
}

/* sum[c] += factor · Σ_k x[row][k] wide[k][column], or x[k][row] where TRANSPOSED. */
template <bool TRANSPOSED>
__device__ static void add_product(float (&sum)[OUTPUTS], const float (*x)[TILE + 1],
                                   const float (*wide)[WIDE + 1], float factor) {
    int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW;
    float part[OUTPUTS] = {};
    for (int k = 0; k < TILE; k++) {
        float weight = TRANSPOSED ? x[k][row] : x[row][k];
#pragma unroll
        for (int c = 0; c < OUTPUTS; c++)
            part[c] += weight * wide[k][column + c * PER_ROW];
    }
#pragma unroll
    for (int c = 0; c < OUTPUTS; c++)
        sum[c] += factor * part[c];
}

template <typename T>
__device__ static void store_row(const float (&sum)[OUTPUTS], const head_rows &to, int b, int head,
                                 int position, int limit, int c0, int width, float factor) {
    int column = threadIdx.x % PER_ROW;
    if (position >= limit) return;
    T *at = (T *)to.data + row_at(to, b, position, head);
#pragma unroll
    for (int c = 0; c < OUTPUTS; c++)
        if (c0 + column + c * PER_ROW < width)
            at[c0 + column + c * PER_ROW] = from_float<T>(sum[c] * factor);
}

__device__ static bool sees(const attention_problem &p, const head_task &t, int i, int j) {
    return i >= 0 && i < p.queries && j >= 0 && j < p.keys && (!p.causal || j <= i) &&
           (!hides_keys(p) || j >= first_key_of(p, t.b, i));
}

__device__ static bool in_band(const attention_problem &p, int i, int j) {
    return p.band && i - j <= p.window && i >= j;
}

/* The position's part of s_ij. */
__device__ static float position_part(const attention_problem &p, const head_task &t, int i,
                                      int j) {
    int distance = i - j;
    if (p.pos == WEFT_POS_RELATIVE)
        return distance >= 0 && distance < p.distances ? p.rel[distance] : 0.0f;
    return p.pos == WEFT_POS_ALIBI ? -t.f.slope * fabsf((float)distance) : 0.0f;
}

/* ⟨q_i, k_j⟩ of the thread's pairs, α ⟨q_j, k_i⟩ added inside the band. */
template <typename T>
__device__ static void multiply_pairs(const attention_problem &p, const head_task &t,
                                      tile_memory &m, int i0, int j0, float (&raw)[SCORES]) {
    multiply_rows<T>(raw, m, p.q, t.h, i0, p.queries, p.k, t.kv, j0, p.keys, t.b, p.dqk);
    if (!p.band || i0 - (j0 + TILE - 1) > p.window) return;
    float swapped[SCORES] = {};
    multiply_rows<T>(swapped, m, p.k, t.kv, i0, p.keys, p.q, t.h, j0, p.queries, t.b, p.dqk);
    int i = i0 + threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW;
#pragma unroll
    for (int c = 0; c < SCORES; c++)
        if (in_band(p, i, j0 + column + c * PER_ROW)) raw[c] += p.band_alpha * swapped[c];
}

__device__ static float key_number(const attention_problem &p, const head_task &t, int j) {
    return p.n && j >= 0 && j < p.keys ? p.n[((int64_t)t.b * p.kv_heads + t.kv) * p.keys + j]
                                       : 0.0f;
}

/* A block's place among tiles, heads and sequences; later tiles first, since they see more. */
struct block_place {
    int b, head, tile;
};

__device__ static block_place place_block(int tiles, int heads) {
    int64_t id = blockIdx.x, rest = id / tiles;
    return {(int)(rest / heads), (int)(rest % heads), tiles - 1 - (int)(id % tiles)};
}

template <typename T> static __global__ void attend_plain(attention_problem p) {
    __shared__ tile_memory m;
    block_place place = place_block((int)ceil_div(p.queries, TILE), p.heads);
    head_task t = make_task(p, place.b, place.head);
    int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW;
    int i0 = place.tile * TILE, i = i0 + row, c0 = blockIdx.y * WIDE;
    int end = p.causal ? min(p.keys, i0 + TILE) : p.keys;
    float top = -INFINITY, total = 0, output[OUTPUTS] = {};
    for (int j0 = first_key_of(p, t.b, i0) / TILE * TILE; j0 < end; j0 += TILE) {
        float score[SCORES] = {}, largest = top, sum = 0;
        multiply_pairs<T>(p, t, m, i0, j0, score);
#pragma unroll
        for (int c = 0; c < SCORES; c++) {
            int j = j0 + column + c * PER_ROW;
            score[c] =
                score[c] * t.f.scale + t.f.beta * key_number(p, t, j) + position_part(p, t, i, j);
            if (p.softcap > 0) score[c] = p.softcap * tanhf(score[c] / p.softcap);
            if (!sees(p, t, i, j)) score[c] = -INFINITY;
            largest = fmaxf(largest, score[c]);
        }
        for (int step = 1; step < PER_ROW; step *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        float rescale = top == -INFINITY ? 0.0f : expf(top - largest);
#pragma unroll
        for (int c = 0; c < SCORES; c++) {
            float weight = score[c] == -INFINITY ? 0.0f : expf(score[c] - largest);
            m.p[row][column + c * PER_ROW] = weight;
            sum += weight;
        }
        for (int step = 1; step < PER_ROW; step *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        total = total * rescale + sum;
        top = largest;
#pragma unroll
        for (int c = 0; c < OUTPUTS; c++)
            output[c] *= rescale;
        load_rows<T, WIDE>(m.wide, p.v, t.b, t.kv, j0, p.keys, c0, p.dv);
        __syncthreads();
        add_product<false>(output, m.p, m.wide, 1.0f);
        __syncthreads();
    }
    store_row<T>(output, p.o, t.b, t.h, i, p.queries, c0, p.dv, 1.0f / total);
    if (i < p.queries && column == 0 && c0 == 0)
        p.lse[((int64_t)t.b * p.heads + t.h) * p.queries + i] = top + logf(total);
}

struct plain_workspace {
    float *total;    /* [B, H, T] ⟨do_i, o_i⟩ */
    float *shift;    /* [B, H, T] ⟨q_i, k_0⟩ */
    double *numbers; /* [B, H, query tiles, NUMBERS] */
    float *rel;      /* [B, H, distances of S rounded up] */
};

/* A warp a row. */
template <typename T>
static __global__ void sum_rows(attention_problem p, attention_gradients g, plain_workspace to) {
    int64_t rows = (int64_t)p.batch * p.heads * p.queries;
    int lane = threadIdx.x % 32;
    for (int64_t r = thread_index() / 32; r < rows; r += thread_count() / 32) {
        int i = (int)(r % p.queries), h = (int)(r / p.queries % p.heads);
        int b = (int)(r / p.queries / p.heads);
        const T *d_o = (const T *)g.d_o.data + row_at(g.d_o, b, i, h);
        const T *o = (const T *)p.o.data + row_at(p.o, b, i, h);
        const T *q = (const T *)p.q.data + row_at(p.q, b, i, h);
        const T *k = (const T *)p.k.data + row_at(p.k, b, 0, key_head_of(p, h));
        float total = 0, shift = 0;
        for (int c = lane; c < p.dv; c += 32)
            total += to_float(d_o[c]) * to_float(o[c]);
        for (int c = lane; g.dscale && p.softcap == 0 && c < p.dqk; c += 32)
            shift += to_float(q[c]) * to_float(k[c]);
        total = warp_sum(total);
        shift = warp_sum(shift);
        if (lane == 0) {
            to.total[r] = total;
            to.shift[r] = shift;
        }
    }
}

/* Makes P and dS of a pair of tiles in m.p and m.ds. Adds the thread's share of the numbers a head
 * where `numbers` is given. */
template <typename T>
__device__ static void make_pair(const attention_problem &p, const attention_gradients &g,
                                 const plain_workspace &w, const head_task &t, tile_memory &m,
                                 int i0, int j0, double *numbers) {
    int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW, i = i0 + row;
    float raw[SCORES] = {}, dp[SCORES] = {};
    multiply_pairs<T>(p, t, m, i0, j0, raw);
    multiply_rows<T>(dp, m, g.d_o, t.h, i0, p.queries, p.v, t.kv, j0, p.keys, t.b, p.dv);
    bool inside = i >= 0 && i < p.queries;
    int64_t at = ((int64_t)t.b * p.heads + t.h) * p.queries + i;
    float lse = inside ? p.lse[at] : 0.0f, total = inside ? w.total[at] : 0.0f;
    float shift = inside && numbers ? w.shift[at] : 0.0f;
    float first = numbers ? key_number(p, t, 0) : 0.0f;
#pragma unroll
    for (int c = 0; c < SCORES; c++) {
        int j = j0 + column + c * PER_ROW;
        float n = key_number(p, t, j), score = raw[c] * t.f.scale - lse + t.f.beta * n;
        float whole = score + position_part(p, t, i, j), slope = 1;
        if (p.softcap > 0) {
            float capped = tanhf((whole + lse) / p.softcap);
            whole = p.softcap * capped - lse;
            slope = 1 - capped * capped;
        }
        float weight = sees(p, t, i, j) ? expf(whole) : 0.0f;
        float ds = weight == 0.0f ? 0.0f : weight * (dp[c] - total) * slope;
        m.p[row][column + c * PER_ROW] = weight;
        m.ds[row][column + c * PER_ROW] = ds;
        if (numbers && ds != 0.0f) {
            numbers[0] += (double)(ds * (raw[c] - shift));
            numbers[1] += (double)(ds * (n - first));
            numbers[2] += (double)(ds * score);
        }
    }
    __syncthreads();
}

/* What is left of m.ds inside the band, times α. */
__device__ static void keep_band(const attention_problem &p, tile_memory &m, int i0, int j0) {
    int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW;
    for (int c = 0; c < SCORES; c++) {
        int k = column + c * PER_ROW;
        m.ds[row][k] *= in_band(p, i0 + row, j0 + k) ? p.band_alpha : 0.0f;
    }
    __syncthreads();
}

/* Sum over the block of a double per thread, to thread 0: always the same tree. */
__device__ static double sum_block(double v) {
    __shared__ double part[THREADS];
    __syncthreads();
    part[threadIdx.x] = v;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    return part[0];
}

template <typename T>
static __global__ void find_query_gradients(attention_problem p, attention_gradients g,
                                            plain_workspace w) {
    __shared__ tile_memory m;
    int tiles = (int)ceil_div(p.queries, TILE);
    block_place place = place_block(tiles, p.heads);
    head_task t = make_task(p, place.b, place.head);
    int i0 = place.tile * TILE, c0 = blockIdx.y * WIDE;
    int end = p.causal ? min(p.keys, i0 + TILE) : p.keys;
    bool count = w.numbers && c0 == 0;
    double numbers[NUMBERS] = {};
    float sum[OUTPUTS] = {};
    for (int j0 = first_key_of(p, t.b, i0) / TILE * TILE; j0 < end; j0 += TILE) {
        make_pair<T>(p, g, w, t, m, i0, j0, count ? numbers : NULL);
        load_rows<T, WIDE>(m.wide, p.k, t.b, t.kv, j0, p.keys, c0, p.dqk);
        __syncthreads();
        add_product<false>(sum, m.ds, m.wide, 1.0f);
    }
    /* The band: later queries read this tile's queries in the place of keys. */
    for (int later = i0; p.band && later < p.queries && later - i0 - TILE < p.window;
         later += TILE) {
        make_pair<T>(p, g, w, t, m, later, i0, NULL);
        keep_band(p, m, later, i0);
        load_rows<T, WIDE>(m.wide, p.k, t.b, t.kv, later, p.keys, c0, p.dqk);
        __syncthreads();
        add_product<true>(sum, m.ds, m.wide, 1.0f);
    }
    if (g.dq.data)
        store_row<T>(sum, g.dq, t.b, t.h, i0 + threadIdx.x / PER_ROW, p.queries, c0, p.dqk,
                     t.f.scale);
    if (!count) return;
    double *to = w.numbers + (((int64_t)t.b * p.heads + t.h) * tiles + place.tile) * NUMBERS;
    for (int n = 0; n < NUMBERS; n++) {
        double all = sum_block(numbers[n]);
        if (threadIdx.x == 0) to[n] = all;
    }
}

template <typename T>
static __global__ void find_key_gradients(attention_problem p, attention_gradients g,
                                          plain_workspace w) {
    __shared__ tile_memory m;
    int tiles = (int)ceil_div(p.keys, TILE);
    block_place place = place_block(tiles, p.kv_heads);
    int tile = tiles - 1 - place.tile, j0 = tile * TILE, c0 = blockIdx.y * WIDE;
    int row = threadIdx.x / PER_ROW;
    float dk[OUTPUTS] = {}, dv[OUTPUTS] = {}, dn = 0;
    int end = first_head_of(p, place.head + 1);
    for (int h = first_head_of(p, place.head); h < end; h++) {
        head_task t = make_task(p, place.b, h);
        int first = p.causal ? j0 / TILE * TILE : 0;
        int last = queries_before(p, place.b, j0 + TILE);
        for (int i0 = first; i0 < last; i0 += TILE) {
            make_pair<T>(p, g, w, t, m, i0, j0, NULL);
            load_rows<T, WIDE>(m.wide, g.d_o, t.b, h, i0, p.queries, c0, p.dv);
            __syncthreads();
            add_product<true>(dv, m.p, m.wide, 1.0f);
            __syncthreads();
            load_rows<T, WIDE>(m.wide, p.q, t.b, h, i0, p.queries, c0, p.dqk);
            __syncthreads();
            add_product<true>(dk, m.ds, m.wide, t.f.scale);
            float column = 0;
            for (int k = 0; k < TILE; k++)
                column += m.ds[k][row];
            dn += t.f.beta * column;
        }
        for (int before = j0; p.band && before >= 0 && j0 - before - TILE < p.window;
             before -= TILE) {
            make_pair<T>(p, g, w, t, m, j0, before, NULL);
            keep_band(p, m, j0, before);
            load_rows<T, WIDE>(m.wide, p.q, t.b, h, before, p.queries, c0, p.dqk);
            __syncthreads();
            add_product<false>(dk, m.ds, m.wide, t.f.scale);
        }
    }
    int j = j0 + row;
    if (g.dk.data) store_row<T>(dk, g.dk, place.b, place.head, j, p.keys, c0, p.dqk, 1.0f);
    if (g.dv.data) store_row<T>(dv, g.dv, place.b, place.head, j, p.keys, c0, p.dv, 1.0f);
    if (g.dn && c0 == 0 && threadIdx.x % PER_ROW == 0 && j < p.keys)
        g.dn[((int64_t)place.b * p.kv_heads + place.head) * p.keys + j] = dn;
}

/* Σ ds over the pairs of each of 32 distances, of one head: along a tile's diagonals. */
template <typename T>
static __global__ void sum_distances(attention_problem p, attention_gradients g,
                                     plain_workspace w) {
    __shared__ tile_memory m;
    __shared__ float parts[PER_ROW][TILE];
    int tiles = (int)ceil_div(p.keys, TILE);
    block_place place = place_block(tiles, p.heads);
    head_task t = make_task(p, place.b, place.head);
    int d0 = place.tile * TILE, distance = threadIdx.x % TILE, group = threadIdx.x / TILE;
    float sum = 0;
    for (int i0 = d0 / TILE * TILE; i0 < p.queries; i0 += TILE)
        for (int side = 0; side < 2; side++) {
            int j0 = i0 - d0 - side * TILE;
            if (j0 + TILE <= 0) continue;
            make_pair<T>(p, g, w, t, m, i0, j0, NULL);
            for (int r = group; r < TILE; r += PER_ROW) {
                int column = side * TILE + r - distance;
                if (column >= 0 && column < TILE) sum += m.ds[r][column];
            }
        }
    parts[group][distance] = sum;
    __syncthreads();
    if (group != 0) return;
    for (int k = 1; k < PER_ROW; k++)
        sum += parts[k][distance];
    w.rel[((int64_t)t.b * p.heads + t.h) * tiles * TILE + d0 + distance] = sum;
}

/* A block a head. */
static __global__ void add_numbers(attention_problem p, attention_gradients g,
                                   const double *numbers) {
    int64_t tiles = ceil_div(p.queries, TILE);
    int h = blockIdx.x;
    double sum[NUMBERS] = {};
    for (int64_t e = threadIdx.x; e < p.batch * tiles; e += THREADS) {
        const double *from = numbers + ((e / tiles * p.heads + h) * tiles + e % tiles) * NUMBERS;
        for (int n = 0; n < NUMBERS; n++)
            sum[n] += from[n];
    }
    float tau_factor = numbers_of_head(p, h).tau_factor;
    for (int n = 0; n < NUMBERS; n++) {
        double all = sum_block(sum[n]);
        if (threadIdx.x != 0) continue;
        if (n == 0 && g.dscale) g.dscale[h] = (float)all;
        if (n == 1 && g.dbeta) g.dbeta[h] = (float)all;
        if (n == 2 && g.dlog_tau) g.dlog_tau[h] = (float)(all * (double)tau_factor);
    }
}

static __global__ void add_distances(attention_problem p, attention_gradients g, const float *parts,
                                     int64_t stride) {
    for (int64_t d = thread_index(); d < p.distances; d += thread_count()) {
        double sum = 0;
        for (int64_t bh = 0; d < p.keys && bh < (int64_t)p.batch * p.heads; bh++)
            sum += (double)parts[bh * stride + d];
        g.drel[d] = (float)sum;
    }
}

void attention_add_distances(const attention_problem &p, const attention_gradients &g,
                             const float *parts, int64_t stride, cudaStream_t stream) {
    add_distances<<<grid_for(p.distances, 64), 64, 0, stream>>>(p, g, parts, stride);
}

/* Divides the workspace; without one (base NULL) only measures it. Returns its bytes. */
static int64_t lay_out_workspace(const attention_problem &p, bool numbers, bool relative,
                                 char *base, plain_workspace *w) {
    int64_t heads = (int64_t)p.batch * p.heads, rows = heads * p.queries;
    workspace_pieces pieces = {base, 0};
    *w = {};
    pieces.take(&w->total, rows);
    pieces.take(&w->shift, rows);
    if (numbers) pieces.take(&w->numbers, heads * ceil_div(p.queries, TILE) * NUMBERS);
    if (relative) pieces.take(&w->rel, heads * ceil_div(p.keys, TILE) * TILE);
    return pieces.bytes;
}

int64_t attention_plain_back_workspace(const attention_problem &p, bool numbers, bool relative) {
    plain_workspace w;
    return lay_out_workspace(p, numbers, relative, NULL, &w);
}

/* A block for each tile of each head, and for each WIDE columns. */
static dim3 grid_of(const attention_problem &p, int positions, int heads, int width) {
    return dim3((unsigned)((int64_t)p.batch * heads * ceil_div(positions, TILE)),
                (unsigned)ceil_div(width, WIDE));
}

void attention_plain(const attention_problem &p, cudaStream_t stream) {
    with_type(p.is_bf16 ? WEFT_BF16 : WEFT_F32, [&](auto tag) {
        using T = decltype(tag);
        attend_plain<T><<<grid_of(p, p.queries, p.heads, p.dv), THREADS, 0, stream>>>(p);
    });
}

void attention_plain_back(const attention_problem &p, const attention_gradients &g,
                          cudaStream_t stream) {
    bool numbers = g.dscale || g.dbeta || g.dlog_tau;
    plain_workspace w;
    lay_out_workspace(p, numbers, g.drel != NULL, (char *)g.workspace, &w);
    with_type(p.is_bf16 ? WEFT_BF16 : WEFT_F32, [&](auto tag) {
        using T = decltype(tag);
        int64_t rows = (int64_t)p.batch * p.heads * p.queries;
        sum_rows<T><<<grid_for(rows * 32, THREADS), THREADS, 0, stream>>>(p, g, w);
        if (g.dq.data || numbers)
            find_query_gradients<T>
                <<<grid_of(p, p.queries, p.heads, p.dqk), THREADS, 0, stream>>>(p, g, w);
        if (g.dk.data || g.dv.data || g.dn)
            find_key_gradients<T><<<grid_of(p, p.keys, p.kv_heads, p.dqk > p.dv ? p.dqk : p.dv),
                                    THREADS, 0, stream>>>(p, g, w);
        if (g.drel)
            sum_distances<T><<<grid_of(p, p.keys, p.heads, 1), THREADS, 0, stream>>>(p, g, w);
    });
    if (numbers) add_numbers<<<p.heads, THREADS, 0, stream>>>(p, g, w.numbers);
    if (g.drel) attention_add_distances(p, g, w.rel, ceil_div(p.keys, TILE) * TILE, stream);
}

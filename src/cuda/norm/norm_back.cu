/* The norms' gradients on the GPU: the three kernels of norm.cu, the other way.
 *
 * A thread keeps its columns' share of dw and db in registers over the rows it walks, and that of
 * Σ dx, the gradient of a bias before the norm, where it is asked for; the blocks' shares are added
 * in their order in double. Which rows a block has follows from the shape. */
#include "cuda/norm/norm.cuh"

enum {
    BACK_WARPS = 8,  /* of a block: they fill a multiprocessor's registers */
    BACK_ROWS = 2,   /* rows at a time */
    BACK_BLOCKS = 4, /* for each multiprocessor: ranges of rows */
    JOIN = 32,       /* columns and slices of a block that joins the ranges */
    NORM_SUMS = 3    /* dw, db, Σ dx */
};

/* A row's gradient is rstd·g − c1 − d·c2 with g = dy·w, d = s − mean, c1 = rstd·mean(g)
 * (LayerNorm), c2 = rstd³·mean(g·d). */
struct row_factors {
    float mean, rstd, c1, c2;
};

__device__ static inline void back_sums(const float (&dy)[VECTOR], const float (&s)[VECTOR],
                                        const float (&w)[VECTOR], float mean, float &g_sum,
                                        float &gd_sum) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float g = dy[j] * w[j]; /* 0 behind a row's end, where w is */
        g_sum += g;
        gd_sum += g * (s[j] - mean);
    }
}

__device__ static inline row_factors factors_of(const norm_args &a, float rstd, float mean,
                                                float g_sum, float gd_sum) {
    float share = rstd * a.share;
    return row_factors{mean, rstd, a.centered ? g_sum * share : 0.0f, gd_sum * share * rstd * rstd};
}

/* What a thread has of a pack of columns: see norm_args.partial. */
struct column_sums {
    float all[NORM_SUMS][VECTOR];
};

/* dx in place of `dx`, which comes in as ds, and the row's share of the sums. */
__device__ static inline void back_row(const row_factors &f, const float (&dy)[VECTOR],
                                       const float (&s)[VECTOR], const float (&w)[VECTOR],
                                       float (&dx)[VECTOR], column_sums &sums) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        float d = s[j] - f.mean, scaled = dy[j] * f.rstd;
        dx[j] += scaled * w[j] - f.c1 - d * f.c2;
        sums.all[0][j] += scaled * d;
        sums.all[1][j] += dy[j];
        sums.all[2][j] += dx[j];
    }
}

__device__ static inline int64_t partial_at(const norm_args &a, int which, int64_t column) {
    return (NORM_SUMS * (int64_t)blockIdx.x + which) * a.width + column;
}

__device__ static inline void store_partial(const norm_args &a, int64_t column, int n,
                                            const column_sums &sums) {
#pragma unroll
    for (int i = 0; i < NORM_SUMS; i++)
        store_pack(any_tensor{a.partial, false}, partial_at(a, i, column), n, sums.all[i]);
}

template <int PACKS> struct back_rows {
    lane_row<PACKS> dy, s, ds;
    float mean, rstd;
};

template <int PACKS>
__device__ static inline void fetch_back(const norm_args &a, int64_t row, back_rows<PACKS> &to) {
    int64_t place = place_of(a, row), start = lane_start(a, place);
    fetch_row(a, a.dy, start, to.dy);
    fetch_row(a, a.s, start, to.s);
    if (a.ds.data) fetch_row(a, a.ds, start, to.ds);
    to.rstd = a.rstd[place];
    if (a.mean) to.mean = a.mean[place];
}

/* The warps' shares of the first SUMS sums, added one after the other, to the block's place. */
template <int PACKS, int SUMS>
__device__ static inline void join_warps(const norm_args &a, const column_sums (&own)[PACKS]) {
    __shared__ float sums[SUMS][PACKS * 32 * VECTOR];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int round = 0; round < BACK_WARPS; round++) {
        if (round == warp)
#pragma unroll
            for (int i = 0; i < SUMS * PACKS * VECTOR; i++) {
                int which = i / (PACKS * VECTOR), in = i % (PACKS * VECTOR);
                int at = in * 32 + lane; /* lanes beside each other: no conflicts */
                sums[which][at] =
                    (round ? sums[which][at] : 0.0f) + own[in / VECTOR].all[which][in % VECTOR];
            }
        __syncthreads();
    }
    for (int which = 0; which < SUMS; which++)
        for (int column = threadIdx.x; column < (int)a.width; column += BACK_WARPS * 32) {
            int k = column / LANE_STEP, in = column % LANE_STEP;
            a.partial[partial_at(a, which, column)] =
                sums[which][(k * VECTOR + in % VECTOR) * 32 + in / VECTOR];
        }
}

template <int PACKS, int SUMS>
static __global__ void __launch_bounds__(BACK_WARPS * 32, 1) norm_warp_rows_back(norm_args a) {
    int64_t row = (int64_t)blockIdx.x * BACK_WARPS + threadIdx.x / 32;
    int64_t step = (int64_t)gridDim.x * BACK_WARPS;
    float w[PACKS][VECTOR];
    column_sums sums[PACKS] = {};
    back_rows<PACKS> next = {};
    if (row < a.rows) fetch_back(a, row, next);
    load_columns(a, a.w, w);
    for (; row < a.rows; row += step) {
        back_rows<PACKS> now = next;
        if (row + step < a.rows) fetch_back(a, row + step, next);
        float g_sum = 0, gd_sum = 0, dy[VECTOR], s[VECTOR], dx[VECTOR];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            widen_words(now.dy.pack[k], dy);
            widen_words(now.s.pack[k], s);
            back_sums(dy, s, w[k], now.mean, g_sum, gd_sum);
        }
        row_factors f = factors_of(a, now.rstd, now.mean, warp_sum(g_sum), warp_sum(gd_sum));
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            widen_words(now.dy.pack[k], dy);
            widen_words(now.s.pack[k], s);
            widen_words(now.ds.pack[k], dx);
            back_row(f, dy, s, w[k], dx, sums[k]);
            if (a.dx.data) store_row(a, a.dx, lane_start(a, place_of(a, row)), k, dx);
        }
    }
    if (a.partial) join_warps<PACKS, SUMS>(a, sums);
}

static __global__ void __launch_bounds__(THREADS) norm_rows_back(norm_args a) {
    __shared__ float shared[2][2 * BACK_ROWS * THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * a.range, end = min_i64(first + a.range, a.rows);
    int64_t column = threadIdx.x * VECTOR;
    int n = pack_length(a.width, column), buffer = 0;
    float w[VECTOR];
    column_sums own = {};
    load_pack(a.w, column, n, w);
    for (; first < end; first += BACK_ROWS, buffer ^= 1) {
        pack p_dy[BACK_ROWS], p_s[BACK_ROWS], p_ds[BACK_ROWS];
        float sums[2 * BACK_ROWS], mean[BACK_ROWS];
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            bool there = n > 0 && first + i < end;
            int64_t place = place_of(a, first + i), at = place * a.width + column;
            p_dy[i] = there ? fetch_pack(a.dy, at, n) : pack{};
            p_s[i] = there ? fetch_pack(a.s, at, n) : pack{};
            p_ds[i] = there && a.ds.data ? fetch_pack(a.ds, at, n) : pack{};
            mean[i] = a.mean && first + i < end ? a.mean[place] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            float dy[VECTOR], s[VECTOR];
            widen_pack(p_dy[i], a.dy.is_bf16, dy);
            widen_pack(p_s[i], a.s.is_bf16, s);
            sums[2 * i] = sums[2 * i + 1] = 0;
            back_sums(dy, s, w, mean[i], sums[2 * i], sums[2 * i + 1]);
        }
        sum_over_block(sums, shared[buffer]);
#pragma unroll
        for (int i = 0; i < BACK_ROWS; i++) {
            if (first + i >= end) break;
            int64_t place = place_of(a, first + i);
            row_factors f = factors_of(a, a.rstd[place], mean[i], sums[2 * i], sums[2 * i + 1]);
            float dy[VECTOR], s[VECTOR], dx[VECTOR];
            widen_pack(p_dy[i], a.dy.is_bf16, dy);
            widen_pack(p_s[i], a.s.is_bf16, s);
            widen_pack(p_ds[i], a.ds.is_bf16, dx);
            back_row(f, dy, s, w, dx, own);
            if (a.dx.data && n > 0) store_pack(a.dx, place * a.width + column, n, dx);
        }
    }
    if (a.partial && n > 0) store_partial(a, column, n, own);
}

/* The same by rows of any width: the shares of the sums stand in memory, a thread's own. */
static __global__ void __launch_bounds__(THREADS) norm_wide_row_back(norm_args a) {
    __shared__ float shared[2][2 * THREADS / 32];
    int64_t begin = (int64_t)blockIdx.x * a.range, end = min_i64(begin + a.range, a.rows);
    any_tensor partial = {a.partial, false};
    for (int64_t row = begin; row < end; row++) {
        int64_t start = place_of(a, row) * a.width;
        float sums[2] = {0, 0}, mean = a.mean ? a.mean[place_of(a, row)] : 0.0f;
        float dy[VECTOR], s[VECTOR], w[VECTOR];
        for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
            int n = pack_length(a.width, column);
            load_pack(a.dy, start + column, n, dy);
            load_pack(a.s, start + column, n, s);
            load_pack(a.w, column, n, w);
            back_sums(dy, s, w, mean, sums[0], sums[1]);
        }
        sum_over_block(sums, shared[row & 1]);
        row_factors f = factors_of(a, a.rstd[place_of(a, row)], mean, sums[0], sums[1]);
        for (int64_t column = threadIdx.x * VECTOR; column < a.width; column += NARROW) {
            int n = pack_length(a.width, column);
            int64_t at = start + column;
            column_sums own = {};
            load_pack(a.dy, at, n, dy);
            load_pack(a.s, at, n, s);
            load_pack(a.w, column, n, w);
            float dx[VECTOR] = {0};
            if (a.ds.data) load_pack(a.ds, at, n, dx);
            if (a.partial && row > begin)
#pragma unroll
                for (int i = 0; i < NORM_SUMS; i++)
                    load_pack(partial, partial_at(a, i, column), n, own.all[i]);
            back_row(f, dy, s, w, dx, own);
            if (a.dx.data) store_pack(a.dx, at, n, dx);
            if (a.partial) store_partial(a, column, n, own);
        }
    }
}

/* out[column] = Σ over blocks of partial[block, which, column]: JOIN slices of the blocks beside
 * each other, then the slices in order. */
static __global__ void join_ranges(int64_t blocks, int64_t width, const float *partial,
                                   tensor_list<NORM_SUMS> to) {
    __shared__ double shared[JOIN][JOIN + 1];
    any_tensor out = to.t[blockIdx.y];
    int64_t column = (int64_t)blockIdx.x * JOIN + threadIdx.x;
    double sum = 0;
    if (out.data && column < width)
        for (int64_t block = threadIdx.y; block < blocks; block += JOIN)
            sum += partial[(NORM_SUMS * block + blockIdx.y) * width + column];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || !out.data || column >= width) return;
    for (int slice = 1; slice < JOIN; slice++)
        sum += shared[slice][threadIdx.x];
    store_any(out, column, (float)sum);
}

/* Rows of a block, whole groups of them: not of the warps' kernel. */
static int64_t back_range(int64_t rows) {
    return ceil_div(ceil_div(rows, BACK_BLOCKS * multiprocessors()), 2 * BACK_ROWS) * 2 * BACK_ROWS;
}

static int back_packs(const weft_node *n) {
    return lane_packs(weft_tensor_width(n->in[WEFT_NORM_BACK_S]),
                      {n->in[WEFT_NORM_BACK_DY], n->in[WEFT_NORM_BACK_S], n->in[WEFT_NORM_BACK_DS],
                       n->out[WEFT_NORM_BACK_DX]});
}

static int64_t back_blocks(const weft_node *n, int64_t rows) {
    int packs = back_packs(n);
    if (rows == 0) return 0;
    if (packs) return min_i64(multiprocessors(), ceil_div(rows, BACK_WARPS));
    return ceil_div(rows, back_range(rows));
}

/* The sums of a group by their places in norm_args.partial. */
static const int sum_outputs[WEFT_NORM_GROUPS][NORM_SUMS] = {
    {WEFT_NORM_BACK_DW, WEFT_NORM_BACK_DB, WEFT_NORM_BACK_SUMS},
    {WEFT_NORM_BACK_DW_NEXT, WEFT_NORM_BACK_DB, WEFT_NORM_BACK_SUMS}};

/* How many of them there are up to the last that is wanted. */
static int count_sums(const weft_node *n, int group) {
    int count = NORM_SUMS;
    while (count > 0 && !n->out[sum_outputs[group][count - 1]])
        count--;
    return count;
}

static int64_t norm_back_workspace(const weft_node *n, int) {
    const weft_tensor *s = n->in[WEFT_NORM_BACK_S];
    int64_t blocks = 0;
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        int64_t rows = weft_norm_group_of(ATTR(n, weft_norm_attr), s, group).rows;
        if (count_sums(n, group)) blocks = max_i64(blocks, back_blocks(n, rows));
    }
    return NORM_SUMS * blocks * weft_tensor_width(s) * (int64_t)sizeof(float);
}

CUDA_RUN(norm_back, norm_back_workspace) {
    norm_args a = {};
    a.width = weft_tensor_width(n->in[WEFT_NORM_BACK_S]);
    a.share = (float)(1.0 / (double)a.width);
    a.centered = ATTR(n, weft_norm_attr)->kind == WEFT_LAYERNORM;
    a.s = any_of(x, n->in[WEFT_NORM_BACK_S]);
    a.mean = data_of<float>(x, n->in[WEFT_NORM_BACK_MEAN]);
    a.rstd = data_of<float>(x, n->in[WEFT_NORM_BACK_RSTD]);
    a.dy = any_of(x, n->in[WEFT_NORM_BACK_DY]);
    a.ds = any_of(x, n->in[WEFT_NORM_BACK_DS]);
    a.dx = any_of(x, n->out[WEFT_NORM_BACK_DX]);
    int packs = back_packs(n);
    for (int group = 0; group < WEFT_NORM_GROUPS; group++) {
        int sums = count_sums(n, group);
        a.group = weft_norm_group_of(ATTR(n, weft_norm_attr), n->in[WEFT_NORM_BACK_S], group);
        a.rows = a.group.rows;
        if (a.rows == 0) continue;
        a.w = any_of(x, n->in[group ? WEFT_NORM_BACK_W_NEXT : WEFT_NORM_BACK_W]);
        a.range = back_range(a.rows);
        a.partial = sums ? workspace_of<float>(x, n) : NULL;
        unsigned blocks = (unsigned)back_blocks(n, a.rows);
        if (packs)
            with_constant<1, 2, 3, LANE_PACKS>(packs, [&](auto tag) {
                constexpr int P = decltype(tag)::value;
                auto kernel = sums == NORM_SUMS ? norm_warp_rows_back<P, NORM_SUMS>
                                                : norm_warp_rows_back<P, 2>;
                kernel<<<blocks, BACK_WARPS * 32, 0, stream_of(x)>>>(a);
            });
        else if (a.width <= NARROW)
            norm_rows_back<<<blocks, row_threads(a.width), 0, stream_of(x)>>>(a);
        else
            norm_wide_row_back<<<blocks, THREADS, 0, stream_of(x)>>>(a);
        if (!sums) continue;
        tensor_list<NORM_SUMS> to;
        for (int i = 0; i < NORM_SUMS; i++)
            to.t[i] = any_of(x, n->out[sum_outputs[group][i]]);
        dim3 grid((unsigned)ceil_div(a.width, JOIN), (unsigned)sums);
        join_ranges<<<grid, dim3(JOIN, JOIN), 0, stream_of(x)>>>(blocks, a.width, a.partial, to);
    }
    launch_rest(x, n, n->in[WEFT_NORM_BACK_S], n->in[WEFT_NORM_BACK_DY], n->out[WEFT_NORM_BACK_DX]);
    return launched(n);
}

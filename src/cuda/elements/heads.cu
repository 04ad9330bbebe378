/* Heads on the GPU. Columns are put together, and their gradients summed, by a thread for a pack of a
 * head's columns, or for one where packs do not fit. Pool and spread go by rows of F wide and L narrow numbers,
 * a narrow one standing for the run of r = F/L wide ones at its place times r; a head has L/H
 * narrow numbers. The floor of each is the bytes of the wide and the narrow tensor, once. */
#include "cuda/pack.cuh"

#include <numeric>

/* head_columns and its gradient: between [B·T, Hx, Wx] and [B·T, H, W]. */
struct joining {
    int64_t positions;
    weft_head_columns_attr attr;
    any_tensor x, z, y;
    int64_t x_heads, x_width, z_heads, z_width;
};

/* As many columns as a thread takes: a pack where every part begins and ends at one, else 1. */
static int columns_together(const joining &k) {
    int64_t d = VECTOR;
    for (int i = 0; i < 2; i++) {
        const weft_columns &c = k.attr.part[i];
        for (int64_t n : {c.from, c.count, c.to, c.from_step, c.to_step})
            d = std::gcd(d, n);
    }
    for (int64_t n : {k.attr.width, k.x_width, k.z_width})
        d = std::gcd(d, n);
    return d == VECTOR ? VECTOR : 1;
}

/* A thread a run of `n` columns of the result. */
static __global__ void put_columns(joining k, int n) {
    int64_t runs = k.attr.width / n, row = quotient(thread_index(), runs);
    int64_t p = quotient(row, k.attr.heads), h = row - p * k.attr.heads;
    if (p >= k.positions) return;
    int64_t column = (thread_index() - row * runs) * n;
    float v[VECTOR] = {0};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const any_tensor &from = i ? k.z : k.x;
        if (!from.data) continue;
        int64_t heads = i ? k.z_heads : k.x_heads, width = i ? k.z_width : k.x_width;
        weft_columns_place at = weft_columns_of(&k.attr, i, heads, h);
        if (column < at.to || column >= at.to + k.attr.part[i].count) continue;
        load_pack(from, (p * heads + at.head) * width + at.from + column - at.to, n, v);
    }
    store_pack(k.y, row * k.attr.width + column, n, v);
}

/* A thread a run of `n` columns of what was read: Σ over the heads that had them, in their order. */
static __global__ void sum_columns(joining k, int n) {
    int64_t runs = k.x_width / n, row = quotient(thread_index(), runs);
    int64_t p = quotient(row, k.x_heads), head = row - p * k.x_heads;
    if (p >= k.positions) return;
    int64_t column = (thread_index() - row * runs) * n, sharing = quotient(k.attr.heads, k.x_heads);
    float sum[VECTOR] = {0};
    for (int64_t h = head * sharing; h < (head + 1) * sharing; h++) {
        weft_columns_place at = weft_columns_of(&k.attr, 0, k.x_heads, h);
        if (column < at.from || column >= at.from + k.attr.part[0].count) continue;
        float v[VECTOR];
        load_pack(k.y, (p * k.attr.heads + h) * k.attr.width + at.to + column - at.from, n, v);
        add_vector(sum, v);
    }
    store_pack(k.x, row * k.x_width + column, n, sum);
}

static joining columns_of(weft_exec *x, const weft_node *n, const weft_tensor *one,
                          const weft_tensor *two, const weft_tensor *many) {
    joining k = {};
    k.positions = many->shape[0] * many->shape[1];
    k.attr = *ATTR(n, weft_head_columns_attr);
    k.x = any_of(x, one);
    k.y = any_of(x, many);
    k.x_heads = one->shape[2];
    k.x_width = one->shape[3];
    if (!two) k.attr.part[1] = weft_columns{};
    if (!two) return k;
    k.z = any_of(x, two);
    k.z_heads = two->shape[2];
    k.z_width = two->shape[3];
    return k;
}

CUDA_RUN(head_columns) {
    joining k = columns_of(x, n, n->in[0], n->n_in > 1 ? n->in[1] : NULL, n->out[0]);
    int together = columns_together(k);
    int64_t items = k.positions * k.attr.heads * (k.attr.width / together);
    return run_items(x, n, items, put_columns, k, together);
}

CUDA_RUN(head_columns_back) {
    joining k = columns_of(x, n, n->out[0], NULL, n->in[0]);
    int together = columns_together(k);
    int64_t items = k.positions * k.x_heads * (k.x_width / together);
    return run_items(x, n, items, sum_columns, k, together);
}

struct grouped {
    int64_t rows, wide, narrow, run, group; /* F, L, r, narrow numbers of a head */
    any_tensor w, n;                        /* the wide and the narrow tensor */
    const float *scale;                     /* [H] */
    float factor;                           /* 1/r for a mean, else 1 */
};

static grouped grouped_of(weft_exec *x, const weft_node *n, const weft_tensor *wide,
                          const weft_tensor *narrow, const weft_tensor *scale) {
    int64_t heads = scale ? scale->shape[0] : ATTR(n, weft_head_attr)->width;
    grouped k = {};
    k.rows = weft_tensor_rows(wide);
    k.wide = weft_tensor_width(wide);
    k.narrow = weft_tensor_width(narrow);
    k.run = k.wide / k.narrow;
    k.group = k.narrow / heads;
    k.w = any_of(x, wide);
    k.n = any_of(x, narrow);
    k.scale = data_of<float>(x, scale);
    k.factor = ATTR(n, weft_head_attr)->mean ? (float)(1.0 / (double)k.run) : 1.0f;
    return k;
}

/* Σ of the run of narrow number `item` of all rows. */
template <bool WHOLE> __device__ static inline float sum_run(const grouped &k, int64_t item) {
    float sum = 0;
#pragma unroll 2
    for (int64_t m = 0; m < k.run; m += VECTOR) {
        float v[VECTOR];
        widen_of<WHOLE>(fetch_of<WHOLE>(k.w, item * k.run + m, pack_length(k.run, m)), k.w, v);
        sum = add_elements(sum, v);
    }
    return sum;
}

__device__ static inline int64_t head_of(const grouped &k, int64_t item) {
    return quotient(item - quotient(item, k.narrow) * k.narrow, k.group);
}

/* A thread a narrow number. With r = 1 the output may lie over the input. */
template <bool WHOLE> static __global__ void pool_runs(grouped k) {
    int64_t item = thread_index();
    if (item >= k.rows * k.narrow) return;
    store_any(k.n, item, k.factor * k.scale[head_of(k, item)] * sum_run<WHOLE>(k, item));
}

CUDA_RUN(head_pool) {
    grouped k = grouped_of(x, n, n->in[0], n->out[0], n->in[1]);
    return run_items(x, n, k.rows * k.narrow,
                     are_whole(k.run, k.w, k.w) ? pool_runs<true> : pool_runs<false>, k);
}

/* A thread a pack of the wide tensor, which is one line of rows · F numbers. WHOLE: a pack lies in
 * one run. */
template <bool WHOLE> static __global__ void spread_runs(grouped k) {
    int64_t at = thread_index() * VECTOR;
    int n = pack_length(k.rows * k.wide, at);
    if (n == 0) return;
    int64_t item = quotient(at, k.run), m = at - item * k.run;
    float v[VECTOR], value = 0;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        if (j == 0 || (!WHOLE && m == 0))
            value = j < n ? k.factor * k.scale[head_of(k, item)] * load_any(k.n, item) : 0.0f;
        v[j] = value;
        if (++m == k.run) {
            m = 0;
            item++;
        }
    }
    store_of<WHOLE>(k.w, at, n, v);
}

CUDA_RUN(head_spread) {
    grouped k = grouped_of(x, n, n->out[0], n->in[0], n->in[1]);
    return run_items(x, n, ceil_div(k.rows * k.wide, VECTOR),
                     are_whole(k.run, k.w, k.w) ? spread_runs<true> : spread_runs<false>, k);
}

enum { DOT_BLOCKS = 2 }; /* for each multiprocessor: ranges of rows of a head */

/* partial[range, head]: a block's rows and one head. */
static __global__ void dot_runs(grouped k, int64_t range, double *partial) {
    int64_t first = (int64_t)blockIdx.x * range, end = min_i64(first + range, k.rows);
    int64_t items = (end - first) * k.group;
    double total = 0;
    for (int64_t i = threadIdx.x; i < items; i += PACK_THREADS) {
        int64_t row = quotient(i, k.group);
        int64_t item = (first + row) * k.narrow + blockIdx.y * k.group + i - row * k.group;
        total += (double)(load_any(k.n, item) * sum_run<false>(k, item));
    }
    total = block_sum_double(total);
    if (threadIdx.x == 0) partial[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = total;
}

/* A thread a head, over the ranges in order. */
static __global__ void join_dots(int64_t ranges, int64_t heads, const double *partial, float factor,
                                 float *ds) {
    int64_t h = thread_index();
    if (h >= heads) return;
    double sum = 0;
#pragma unroll 8
    for (int64_t i = 0; i < ranges; i++)
        sum += partial[i * heads + h];
    ds[h] = (float)(factor * sum);
}

CUDA_RUN_WITH(head_scale_back, min_i64(DOT_BLOCKS *multiprocessors(), weft_tensor_rows(n->in[0])) *
                                   ATTR(n, weft_head_attr)->width * (int64_t)sizeof(double)) {
    int64_t heads = ATTR(n, weft_head_attr)->width;
    grouped k = grouped_of(x, n, n->in[0], n->in[1], NULL);
    int64_t range = ceil_div(k.rows, DOT_BLOCKS * multiprocessors()),
            ranges = ceil_div(k.rows, range);
    double *partial = workspace_of<double>(x, n);
    dim3 grid((unsigned)ranges, (unsigned)heads);
    dot_runs<<<grid, PACK_THREADS, 0, stream_of(x)>>>(k, range, partial);
    return run_items(x, n, heads, join_dots, ranges, heads, partial, k.factor,
                     data_of<float>(x, n->out[0]));
}

/* A thread for each number, in the order of the result. */
static __global__ void transpose_heads(int64_t count, int64_t rows, int64_t columns, any_tensor x,
                                       any_tensor y) {
    int64_t at = thread_index();
    if (at >= count) return;
    int64_t line = quotient(at, rows), i = at - line * rows;
    int64_t head = quotient(line, columns), j = line - head * columns;
    store_any(y, at, load_any(x, (head * rows + i) * columns + j));
}

CUDA_RUN(head_transpose) {
    const weft_tensor *from = n->in[0];
    int64_t count = weft_tensor_count(from);
    return run_items(x, n, count, transpose_heads, count, from->shape[1], from->shape[2],
                     any_of(x, from), any_of(x, n->out[0]));
}

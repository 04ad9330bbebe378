/* Rotary positions (RoPE) on the GPU. A first kernel makes the table of cosines and sines, the second rotates
 * x, a thread for a pack of pairs. Floor: the bytes of x and y; the table, one for all sequences unless they
 * start apart, stays in the caches. In generation there are few rows, and every thread makes its own angles
 * while the kernel ahead still runs; where it can, the product ahead rotates (products/streamed.cu). */
#include "cuda/pack.cuh"
#include "cuda/sequence/rope.cuh"

struct rotation : head_shape {
    int64_t rotated, half; /* heads rotated, pairs of a head */
    int64_t sequences;     /* that have a table of their own */
    const int32_t *start;
    bool inverse;
    weft_rope_law law;
    any_tensor x, y, table; /* table: [sequences, T, 2, half] */
};

/* Of pair i at a place of the table. */
__device__ static inline void find_angle(const rotation &k, int64_t place, int64_t i, float &cosine,
                                         float &sine) {
    int64_t b = quotient(place, k.time), position = place - b * k.time;
    if (k.start) position += k.start[b];
    find_angle(k.law, position, i, k.half, cosine, sine);
    if (k.inverse) sine = -sine;
}

static __global__ void make_angles(rotation k) {
    int64_t item = thread_index(), place = quotient(item, k.half), i = item - place * k.half;
    if (place >= k.sequences * k.time) return;
    float cosine, sine;
    find_angle(k, place, i, cosine, sine);
    store_any(k.table, 2 * place * k.half + i, cosine);
    store_any(k.table, (2 * place + 1) * k.half + i, sine);
}

/* A row's items: packs of pairs, then packs of what is copied. Both halves of a pair are read
 * before either is written: y may be x. Without a table angles are made here. */
template <bool WHOLE, bool TABLE>
static __global__ void rotate_rows(rotation k, int64_t pair_packs, int64_t items) {
    int64_t row = quotient(thread_index(), items), item = thread_index() - row * items;
    int64_t p = quotient(row, k.heads), h = row - p * k.heads, at = row * k.width;
    int64_t i = item * VECTOR, place = k.start ? p : p - quotient(p, k.time) * k.time;
    int n = pack_length(k.half, i);
    bool rotates = h < k.rotated;
    float a[VECTOR], b[VECTOR], c[VECTOR], s[VECTOR], y[VECTOR];
    if (!TABLE && row < k.rows && rotates)
        for (int j = 0; j < n; j++)
            find_angle(k, place, i + j, c[j], s[j]);
    follow_primary();
    if (row >= k.rows) return;
    if (item >= pair_packs) {
        int64_t column = 2 * k.half + (item - pair_packs) * VECTOR;
        int rest = pack_length(k.width, column);
        widen_of<WHOLE>(fetch_of<WHOLE>(k.x, at + column, rest), k.x, a);
        store_of<WHOLE>(k.y, at + column, rest, a);
        return;
    }
    pack first = fetch_of<WHOLE>(k.x, at + i, n), second = fetch_of<WHOLE>(k.x, at + k.half + i, n);
    if (TABLE && WHOLE) {
        load_vector((const float *)k.table.data + 2 * place * k.half + i, c);
        load_vector((const float *)k.table.data + (2 * place + 1) * k.half + i, s);
    } else if (TABLE) {
        load_pack(k.table, 2 * place * k.half + i, n, c);
        load_pack(k.table, (2 * place + 1) * k.half + i, n, s);
    }
    widen_of<WHOLE>(first, k.x, a);
    widen_of<WHOLE>(second, k.x, b);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        y[j] = rotates ? rotate_first(a[j], b[j], c[j], s[j]) : a[j];
    store_of<WHOLE>(k.y, at + i, n, y);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        y[j] = rotates ? rotate_second(a[j], b[j], c[j], s[j]) : b[j];
    store_of<WHOLE>(k.y, at + k.half + i, n, y);
}

static int64_t table_length(const weft_node *n) {
    const weft_tensor *x = n->in[0];
    return (n->in[1] ? x->shape[0] : 1) * x->shape[1] * ATTR(n, weft_rope_attr)->width;
}

CUDA_RUN_WITH(rope, table_length(n) * (int64_t)sizeof(float)) {
    const weft_rope_attr *attr = ATTR(n, weft_rope_attr);
    const weft_tensor *in = n->in[0];
    if (is_launched(x, n)) return WEFT_OK;
    rotation k = {head_shape_of(in)};
    k.rotated = attr->heads;
    k.half = attr->width / 2;
    k.sequences = n->in[1] ? in->shape[0] : 1;
    k.start = data_of<int32_t>(x, n->in[1]);
    k.inverse = attr->inverse;
    k.law = attr->law;
    k.x = any_of(x, in);
    k.y = any_of(x, n->out[0]);
    if (!follows(x)) k.table = any_tensor{workspace_of<float>(x, n), false};
    int64_t pair_packs = ceil_div(k.half, VECTOR);
    int64_t items = pair_packs + ceil_div(k.width - 2 * k.half, VECTOR);
    if (k.table.data) WEFT_TRY(run_items(x, n, table_length(n) / 2, make_angles, k));
    bool whole = are_whole(k.width, k.x, k.y) && k.half % VECTOR == 0;
    auto kernel = k.table.data ? whole ? rotate_rows<true, true> : rotate_rows<false, true>
                  : whole ? rotate_rows<true, false>
                               : rotate_rows<false, false>;
    return run_following(x, n, k.rows * items, kernel, k, pair_packs, items);
}

/* L2 normalization, vectors scaled to length 1, on the GPU: some lanes per row. A row is read once for its sums and, from
 * the cache, once more to be scaled. Floor: the bytes of x and y; backward, of dy, x and dx. */
#include "cuda/pack.cuh"

struct unit_rows : head_shape {
    int64_t scaled;      /* heads that are */
    any_tensor dy, x, y; /* dy: not there in the forward pass */
};

template <bool WHOLE> static __global__ void scale_to_unit(unit_rows k, int lanes) {
    int64_t row = row_of_lane(lanes);
    int lane = (int)(threadIdx.x % lanes);
    bool back = k.dy.data != NULL;
    float squares = 0, dot = 0, x[VECTOR], dy[VECTOR] = {};
    auto load = [&](int64_t at, int n) {
        widen_of<WHOLE>(fetch_of<WHOLE>(k.x, at, n), k.x, x);
        if (back) widen_of<WHOLE>(fetch_of<WHOLE>(k.dy, at, n), k.dy, dy);
    };
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        load(row * k.width + column, pack_length(k.width, column));
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            squares += x[i] * x[i];
            dot += dy[i] * x[i];
        }
    }
    squares = lanes_sum(squares, lanes);
    dot = lanes_sum(dot, lanes);
    if (row >= k.rows) return;
    float length = sqrtf(squares), r = 1, along = 0;
    if (row - quotient(row, k.heads) * k.heads < k.scaled) {
        bool least = !(length > (float)WEFT_UNIT_LEAST);
        r = 1 / (least ? (float)WEFT_UNIT_LEAST : length);
        if (!least) along = -r * r * (r * dot);
    }
    for (int64_t column = lane * VECTOR; column < k.width; column += lanes * VECTOR) {
        int64_t at = row * k.width + column;
        int n = pack_length(k.width, column);
        load(at, n);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            x[i] = back ? r * dy[i] + along * x[i] : r * x[i];
        store_of<WHOLE>(k.y, at, n, x);
    }
}

static weft_status run_units(weft_exec *x, const weft_node *n, const weft_tensor *dy,
                             const weft_tensor *from) {
    unit_rows k = {head_shape_of(from), ATTR(n, weft_unit_attr)->heads, any_of(x, dy),
                   any_of(x, from), any_of(x, n->out[0])};
    int lanes = lanes_of_row(k.width);
    bool whole = are_whole(k.width, k.x, k.y, k.dy);
    return run_items(x, n, k.rows * lanes, whole ? scale_to_unit<true> : scale_to_unit<false>, k,
                     lanes);
}

CUDA_KERNEL_CALLS(unit, run_units(x, n, NULL, n->in[0]))
CUDA_KERNEL_CALLS(unit_back, run_units(x, n, n->in[0], n->in[1]))

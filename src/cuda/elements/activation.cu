/* Activations on the GPU: a thread per pack, and for the gate's gradient some lanes per head. The floor of
 * each is the bytes of its inputs and outputs, once: functions.cuh keeps arithmetic below that. */
#include "cuda/functions.cuh"
#include "cuda/pack.cuh"
#include "cuda/products/gemm.cuh"

/* What the expressions of ops/list.h may use, beside + − · and /. */
#define vabs fabsf
#define vmax fmaxf
#define vmin fminf
#define vset(a) ((float)(a))
#define vexp expf
#define vtanh tanhf
#define vsigmoid sigmoid
#define vsoftplus softplus
#define vgelu gelu_value
#define vgelu_slope gelu_slope
#define vnormal(x) (0.5f * erfcf(-0.70710678f * (x)))
#define vdensity(x) (0.39894228f * expf(-0.5f * (x) * (x)))

#define UNARY(X, name, value, reads, gradient)                                                     \
    CUDA_ELEMENTS(name, 1, 1, {                                                                    \
        float x = in[0];                                                                           \
        out[0] = value;                                                                            \
    })                                                                                             \
    CUDA_ELEMENTS(name##_back, 2, 1, {                                                             \
        float dy = in[0], reads = in[1];                                                           \
        out[0] = gradient;                                                                         \
    })

WEFT_UNARY_OPS(UNARY, )

CUDA_ELEMENTS(silu_mul, 2, 1, out[0] = in[0] * in[1] * sigmoid(in[1]))
CUDA_ELEMENTS(silu_mul_back, 3, 2, {
    float dy = in[0], a = in[1], b = in[2], s = sigmoid(b);
    out[0] = dy * b * s;
    out[1] = dy * a * (s * (1 + b * (1 - s)));
})

CUDA_ELEMENTS(gelu_mul, 2, 1, out[0] = in[0] * gelu_value(in[1]))
CUDA_ELEMENTS(gelu_mul_back, 3, 2, {
    float dy = in[0], a = in[1], b = in[2];
    out[0] = dy * gelu_value(b);
    out[1] = dy * a * gelu_slope(b);
})

CUDA_ELEMENTS(sigmoid_mul, 2, 1, out[0] = in[0] * sigmoid(in[1]))
CUDA_ELEMENTS(sigmoid_mul_back, 3, 2, {
    float dy = in[0], a = in[1], s = sigmoid(in[2]);
    out[0] = dy * s;
    out[1] = dy * a * (s * (1 - s));
})

/* softplus and its gradient: columns before `start` are copied. With dy: y = dy·σ(x), and without a floor
 * x is what softplus made. */
struct softplus_args {
    int64_t rows, width, start;
    float floor;
    any_tensor x, dy, y;
};

static __global__ void softplus_packs(softplus_args k) {
    auto [row, column, n] = place_pack(k.width);
    if (row >= k.rows) return;
    int64_t at = row * k.width + column;
    float x[VECTOR], dy[VECTOR], y[VECTOR];
    bool back = k.dy.data != NULL;
    load_pack(k.x, at, n, x);
    if (back) load_pack(k.dy, at, n, dy);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (back)
            y[i] = column + i < k.start ? dy[i]
                                        : dy[i] * (k.floor == 0 ? slope_at(x[i]) : sigmoid(x[i]));
        else
            y[i] = column + i < k.start ? x[i] : softplus(x[i]) + k.floor;
    }
    store_pack(k.y, at, n, y);
}

static weft_status run_softplus(weft_exec *x, const weft_node *n, const weft_tensor *dy,
                                const weft_tensor *from) {
    const weft_softplus_attr *attr = ATTR(n, weft_softplus_attr);
    softplus_args k = {weft_tensor_rows(from), weft_tensor_width(from), attr->start,
                       (float)attr->floor,     any_of(x, from),         any_of(x, dy),
                       any_of(x, n->out[0])};
    if (k.start == 0) {
        k.width *= k.rows; /* one row: odd widths keep their alignment */
        k.rows = 1;
    }
    return run_items(x, n, count_packs(k.rows, k.width), softplus_packs, k);
}

CUDA_KERNEL_CALLS(softplus, run_softplus(x, n, NULL, n->in[0]))
CUDA_KERNEL_CALLS(softplus_back, run_softplus(x, n, n->in[0], n->in[1]))

/* The gate: rows are the B·T·H heads of D numbers. */
struct gating : head_shape {
    bool shared; /* one gate per sequence */
    float alpha;
    any_tensor dy, o, gate, out, d_gate;
    float *dots; /* back, shared: Σ_d dy·o of each row */
};

static gating gating_of(weft_exec *x, const weft_node *n, int first) {
    const weft_tensor *o = n->in[first], *gate = n->in[first + 1];
    gating k = {head_shape_of(o)};
    k.shared = gate->shape[1] != o->shape[1];
    k.alpha = (float)ATTR(n, weft_gate_mix_attr)->alpha;
    k.o = any_of(x, o);
    k.gate = any_of(x, gate);
    k.out = any_of(x, n->out[0]);
    return k;
}

__device__ static inline int64_t gate_at(const gating &k, int64_t row) {
    if (!k.shared) return row;
    int64_t p = quotient(row, k.heads);
    return quotient(p, k.time) * k.heads + row - p * k.heads;
}

template <bool WHOLE> static __global__ void mix_gate(gating k) {
    follow_primary();
    auto [row, column, n] = place_pack(k.width);
    if (row >= k.rows) return;
    int64_t at = row * k.width + column;
    pack p = fetch_of<WHOLE>(k.o, at, n);
    float factor = 1 - k.alpha + k.alpha * sigmoid(load_any(k.gate, gate_at(k, row)));
    float v[VECTOR];
    widen_of<WHOLE>(p, k.o, v);
    scale_vector(v, factor);
    store_of<WHOLE>(k.out, at, n, v);
}

CUDA_RUN(gate_mix) {
    if (gemm_has_gate(x, n)) return WEFT_OK;
    gating k = gating_of(x, n, 0);
    bool whole = are_whole(k.width, k.o, k.out);
    return run_following(x, n, count_packs(k.rows, k.width),
                         whole ? mix_gate<true> : mix_gate<false>, k);
}

/* `lanes` threads a row. d_o may lie over dy: a pack is read before it is written. */
template <bool WHOLE> static __global__ void mix_gate_back(gating k, int lanes) {
    int64_t row = row_of_lane(lanes);
    int lane = (int)(threadIdx.x % lanes);
    float s = row < k.rows ? sigmoid(load_any(k.gate, gate_at(k, row))) : 0.0f;
    float factor = 1 - k.alpha + k.alpha * s, dot = 0;
    for (int64_t column = lane * VECTOR; row < k.rows && column < k.width;
         column += lanes * VECTOR) {
        int64_t at = row * k.width + column;
        int n = pack_length(k.width, column);
        pack p = fetch_of<WHOLE>(k.dy, at, n), q = fetch_of<WHOLE>(k.o, at, n);
        float dy[VECTOR], o[VECTOR];
        widen_of<WHOLE>(p, k.dy, dy);
        widen_of<WHOLE>(q, k.o, o);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            dot += dy[i] * o[i];
            dy[i] *= factor;
        }
        if (k.out.data) store_of<WHOLE>(k.out, at, n, dy);
    }
    dot = lanes_sum(dot, lanes);
    if (lane != 0 || row >= k.rows) return;
    if (k.dots)
        k.dots[row] = dot;
    else if (k.d_gate.data)
        store_any(k.d_gate, row, k.alpha * s * (1 - s) * dot);
}

/* A block for each gate of a sequence: the sum over its T dots. */
static __global__ void join_gate_dots(gating k) {
    int64_t gate = blockIdx.x, b = gate / k.heads, h = gate % k.heads;
    double sum = 0;
    for (int64_t t = threadIdx.x; t < k.time; t += PACK_THREADS)
        sum += k.dots[(b * k.time + t) * k.heads + h];
    sum = block_sum_double(sum);
    float s = sigmoid(load_any(k.gate, gate));
    if (threadIdx.x == 0) store_any(k.d_gate, gate, k.alpha * s * (1 - s) * (float)sum);
}

static bool joins_dots(const weft_node *n) {
    return n->out[1] && n->in[2]->shape[1] != n->in[1]->shape[1];
}

CUDA_RUN_WITH(gate_mix_back,
              joins_dots(n) ? weft_tensor_rows(n->in[1]) * (int64_t)sizeof(float) : 0) {
    gating k = gating_of(x, n, 1);
    int lanes = lanes_of_row(k.width);
    k.dy = any_of(x, n->in[0]);
    k.d_gate = any_of(x, n->out[1]);
    k.dots = joins_dots(n) ? workspace_of<float>(x, n) : NULL;
    bool whole = are_whole(k.width, k.dy, k.o, k.out);
    WEFT_TRY(run_items(x, n, k.rows * lanes, whole ? mix_gate_back<true> : mix_gate_back<false>, k,
                       lanes));
    if (k.dots) join_gate_dots<<<(unsigned)(k.rows / k.time), PACK_THREADS, 0, stream_of(x)>>>(k);
    return launched(n);
}

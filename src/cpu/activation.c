/* Activations on the CPU. */
#include "ops/activation.h"

#include "cpu/gaussian_back.h"
#include "ops/list.h"

/* The kernel of an operation that does NAME_vector to each element: of so many inputs and outputs. */
#define ELEMENTWISE(name, inputs, outputs)                                                         \
    TILE_FN(name##_tile) {                                                                         \
        apply(name##_vector, inputs, in, outputs, out, len, NULL);                                 \
    }                                                                                              \
    TILEWISE(name, 0, inputs, outputs)

#define UNARY(X, name, value, reads, gradient)                                                     \
    VECTOR_FN(name##_vector) {                                                                     \
        vreal x = in[0];                                                                           \
        out[0] = value;                                                                            \
    }                                                                                              \
    ELEMENTWISE(name, 1, 1)                                                                        \
    VECTOR_FN(name##_back_vector) {                                                                \
        vreal dy = in[0], reads = in[1];                                                           \
        out[0] = gradient;                                                                         \
    }                                                                                              \
    ELEMENTWISE(name##_back, 2, 1)

WEFT_UNARY_OPS(UNARY, )

VECTOR_FN(silu_mul_vector) {
    out[0] = in[0] * in[1] * vsigmoid(in[1]);
}

ELEMENTWISE(silu_mul, 2, 1)

VECTOR_FN(silu_mul_back_vector) {
    vreal dy = in[0], a = in[1], b = in[2], s = vsigmoid(b);
    out[0] = dy * b * s;
    out[1] = dy * a * (s * (1 + b * (1 - s)));
}

ELEMENTWISE(silu_mul_back, 3, 2)

VECTOR_FN(gelu_mul_vector) {
    out[0] = in[0] * vgelu(in[1]);
}

ELEMENTWISE(gelu_mul, 2, 1)

VECTOR_FN(gelu_mul_back_vector) {
    vreal dy = in[0], a = in[1], b = in[2];
    out[0] = dy * vgelu(b);
    out[1] = dy * a * vgelu_slope(b);
}

ELEMENTWISE(gelu_mul_back, 3, 2)

VECTOR_FN(sigmoid_mul_vector) {
    out[0] = in[0] * vsigmoid(in[1]);
}

ELEMENTWISE(sigmoid_mul, 2, 1)

VECTOR_FN(sigmoid_mul_back_vector) {
    vreal dy = in[0], a = in[1], s = vsigmoid(in[2]);
    out[0] = dy * s;
    out[1] = dy * a * (s * (1 - s));
}

ELEMENTWISE(sigmoid_mul_back, 3, 2)

VECTOR_FN(softplus_vector) {
    out[0] = vsoftplus(in[0]) + arg[0];
}

/* The slope is read off y, or off x where y has a floor in it. */
VECTOR_FN(softplus_back_vector) {
    out[0] = in[0] * (arg[0] == 0 ? vslope(in[1]) : vsigmoid(in[1]));
}

/* f on the columns from attr's start on; the others are copied. `like` has their width. */
static ALWAYS_INLINE void apply_columns(const chunked *c, vector_fn f, int n_in,
                                        const weft_tensor *like, int64_t at, int64_t len,
                                        const real *const *in, real *out) {
    const weft_softplus_attr *attr = c->n->attr;
    int64_t width = attr->start ? weft_tensor_width(like) : at + len;
    real floor_value = (real)attr->floor;
    for (int64_t i = 0, part; i < len; i += part) {
        int64_t column = (at + i) % width;
        bool active = column >= attr->start;
        part = min_i64(len - i, (active ? width : attr->start) - column);
        const real *from[2] = {in[0] + i, n_in > 1 ? in[1] + i : NULL};
        real *to[] = {out + i};
        if (active)
            apply(f, n_in, from, 1, to, part, &floor_value);
        else
            memmove(to[0], from[0], (size_t)part * sizeof(real));
    }
}

TILE_FN(softplus_tile) {
    apply_columns(c, softplus_vector, 1, c->n->in[0], at, len, in, out[0]);
}

TILEWISE(softplus, 0, 1, 1)

TILE_FN(softplus_back_tile) {
    apply_columns(c, softplus_back_vector, 2, c->n->in[1], at, len, in, out[0]);
}

TILEWISE(softplus_back, 0, 2, 1)

/* The gate: a row is one of the B·T positions, of H heads of D. */
typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *o, *gate;
    int64_t time, heads, width, positions;
    bool shared; /* one gate per sequence */
    real alpha;
    real *dots; /* back: Σ_d dy · o of each position and head [B, T, H] */
} gating;

static gating gating_of(weft_exec *x, const weft_node *n, int first) {
    const weft_tensor *o = n->in[first], *gate = n->in[first + 1];
    return (gating){.x = x,
                    .n = n,
                    .o = o,
                    .gate = gate,
                    .time = o->shape[1],
                    .heads = o->shape[2],
                    .width = o->shape[3],
                    .positions = o->shape[0] * o->shape[1],
                    .shared = gate->shape[1] != o->shape[1],
                    .alpha = (real)ATTR(n, weft_gate_mix_attr)->alpha};
}

/* Where the gates of position p begin. */
static int64_t gate_row(const gating *k, int64_t p) {
    return (k->shared ? p / k->time : p) * k->heads;
}

/* σ of `count` gates of position p from head h on. */
static vreal gate_sigmoid(const gating *k, int64_t p, int64_t h, int64_t count) {
    real scratch[VBYTES / sizeof(real)];
    const real *gate = tile_in(k->x, k->gate, gate_row(k, p) + h, count, scratch);
    return vsigmoid(count < VLEN ? vload_part(gate, count) : vload(gate));
}

/* out = factor · in for the D elements from `at` on. */
static void scale_head(const gating *k, const weft_tensor *from, int64_t at, real factor) {
    apply_tensors(k->x, scale_vector, 1, &from, k->n->out[0], at, k->width, &factor);
}

static real dot_head(const gating *k, int64_t at) {
    real dy_scratch[TILE_SCRATCH], o_scratch[TILE_SCRATCH];
    real sum = 0;
    for (int64_t d = 0; d < k->width; d += TILE) {
        int64_t len = min_i64(TILE, k->width - d);
        sum += dot_reals(tile_in(k->x, k->n->in[0], at + d, len, dy_scratch),
                         tile_in(k->x, k->o, at + d, len, o_scratch), len);
    }
    return sum;
}

/* σ's share of each head's factor. */
static vreal gate_factor(const gating *k, int64_t p, int64_t h, int64_t count) {
    return 1 - k->alpha + k->alpha * gate_sigmoid(k, p, h, count);
}

static void gate_mix_row(const void *context, int64_t p) {
    const gating *k = context;
    for (int64_t h = 0; h < k->heads; h += VLEN) {
        int64_t count = min_i64(VLEN, k->heads - h);
        vreal factor = gate_factor(k, p, h, count);
        for (int64_t i = 0; i < count; i++)
            scale_head(k, k->o, (p * k->heads + h + i) * k->width, factor[i]);
    }
}

DEFINE_KERNEL(gate_mix) {
    gating k = gating_of(x, n, 0);
    return run_rows(x, k.positions, k.heads * k.width, gate_mix_row, &k);
}

/* The dots come first: d_o may lie over dy. */
static void gate_mix_back_row(const void *context, int64_t p) {
    const gating *k = context;
    for (int64_t h = 0; h < k->heads; h += VLEN) {
        int64_t count = min_i64(VLEN, k->heads - h);
        vreal factor = gate_factor(k, p, h, count);
        for (int64_t i = 0; i < count; i++) {
            int64_t row = p * k->heads + h + i;
            if (k->n->out[1]) k->dots[row] = dot_head(k, row * k->width);
            if (k->n->out[0]) scale_head(k, k->n->in[0], row * k->width, factor[i]);
        }
    }
}

/* d_gate of `count` heads, from the sums of their dots. */
static void write_d_gate(const gating *k, int64_t p, int64_t h, int64_t count, vreal sum) {
    real scratch[VBYTES / sizeof(real)];
    const weft_tensor *to = k->n->out[1];
    int64_t at = gate_row(k, p) + h;
    vreal s = gate_sigmoid(k, p, h, count);
    real *out = tile_out(k->x, to, at, scratch);
    vstore_part(out, k->alpha * s * (1 - s) * sum, count);
    tile_done(k->x, to, at, count, out);
}

/* A task is one row of d_gate: a sequence's, or a position's. */
WEFT_TASK(d_gate_row) {
    const gating *k = context;
    int64_t span = k->shared ? k->time : 1, first = task * span;
    for (int64_t h = 0; h < k->heads; h += VLEN) {
        int64_t count = min_i64(VLEN, k->heads - h);
        double lane[VBYTES / sizeof(real)] = {0};
        for (int64_t p = first; p < first + span; p++)
            for (int64_t i = 0; i < count; i++)
                lane[i] += (double)k->dots[p * k->heads + h + i];
        vreal sum = {0};
        for (int64_t i = 0; i < count; i++)
            sum[i] = (real)lane[i];
        write_d_gate(k, first, h, count, sum);
    }
}

WORKSPACE(gate_mix_back_workspace) {
    const weft_tensor *o = n->in[1];
    return n->out[1] ? real_bytes(o->shape[0] * o->shape[1] * o->shape[2]) : 0;
}

DEFINE_KERNEL(gate_mix_back, .workspace = gate_mix_back_workspace) {
    gating k = gating_of(x, n, 1);
    k.dots = weft_workspace(x, n);
    run_rows(x, k.positions, k.heads * k.width, gate_mix_back_row, &k);
    if (n->out[1])
        weft_pool_run(weft_exec_pool(x), k.gate->shape[0] * k.gate->shape[1], d_gate_row, &k);
    return WEFT_OK;
}

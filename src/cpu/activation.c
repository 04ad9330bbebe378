/* Activations on the CPU. */
#include "ops/activation.h"

#include "cpu/gaussian_back.h"

/* The kernel of an operation that does NAME_vector to each element: of so many inputs and outputs. */
#define ELEMENTWISE(name, inputs, outputs)                                                         \
    ELEMENTWISE_BY(name, name##_vector, 0, inputs, outputs, 0)

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

#define GATE(X, name, value, da, db)                                                               \
    VECTOR_FN(name##_vector) {                                                                     \
        vreal a = in[0], b = in[1];                                                                \
        out[0] = value;                                                                            \
    }                                                                                              \
    ELEMENTWISE(name, 2, 1)                                                                        \
    VECTOR_FN(name##_back_vector) {                                                                \
        vreal dy = in[0], a = in[1], b = in[2];                                                    \
        out[0] = da;                                                                               \
        out[1] = db;                                                                               \
    }                                                                                              \
    ELEMENTWISE(name##_back, 3, 2)

WEFT_GATE_OPS(GATE, )

VECTOR_FN(softplus_vector) {
    out[0] = vsoftplus(in[0]) + arg[0];
}

/* The slope is read off y, or off x where y has a floor in it. */
VECTOR_FN(softplus_back_vector) {
    out[0] = in[0] * (arg[0] == 0 ? vslope(in[1]) : vsigmoid(in[1]));
}

/* f on the columns from attr's start on; the others are copied. */
static ALWAYS_INLINE void apply_columns(const chunked *c, vector_fn f, int n_in, int64_t at,
                                        int64_t len, const real *const *in, real *out) {
    const weft_softplus_attr *attr = c->n->attr;
    int64_t width = attr->start ? weft_tensor_width(c->n->out[0]) : at + len;
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

TILEWISE(softplus, 0, 1, 1) {
    apply_columns(c, softplus_vector, 1, at, len, in, out[0]);
}

TILEWISE(softplus_back, 0, 2, 1) {
    apply_columns(c, softplus_back_vector, 2, at, len, in, out[0]);
}

/* The gate: a row is a position, x is o [B, T, H, D]. */
static const weft_tensor *gates_of(const head_run *k) {
    return k->n->in[k->n->n_in - 1];
}

/* Where the gates of position p begin: there may be one for each sequence. */
static int64_t gate_row(const head_run *k, int64_t p) {
    return (gates_of(k)->shape[1] != k->time ? p / k->time : p) * k->heads;
}

/* σ of `count` gates of position p from head h on. */
static vreal gate_sigmoid(const head_run *k, int64_t p, int64_t h, int64_t count) {
    real scratch[VBYTES / sizeof(real)];
    const real *gate = tile_in(k->x, gates_of(k), gate_row(k, p) + h, count, scratch);
    return vsigmoid(count < VLEN ? vload_part(gate, count) : vload(gate));
}

/* y = o times its gate's factor, and back d_o of dy. The dots come first: d_o may lie over dy. */
POSITIONWISE(gate_mix, n->in[0]) {
    const weft_tensor *from = k->n->in[0];
    real *dots =
        weft_workspace(k->x, k->n); /* back: Σ_d dy · o of each position and head [B, T, H] */
    real alpha = (real)ATTR(k->n, weft_gate_mix_attr)->alpha;
    for (int64_t h = 0; h < k->heads; h += VLEN) {
        int64_t count = min_i64(VLEN, k->heads - h);
        vreal factors = 1 - alpha + alpha * gate_sigmoid(k, p, h, count);
        for (int64_t i = 0; i < count; i++) {
            int64_t row = p * k->heads + h + i, at = row * k->width;
            real factor = factors[i];
            if (dots) dots[row] = (real)dot_tensors(k->x, from, k->from, at, k->width);
            if (k->n->out[0])
                apply_tensors(k->x, scale_vector, 1, &from, k->n->out[0], at, k->width, &factor);
        }
    }
}

/* A task is one row of d_gate: a sequence's, or a position's. */
WEFT_TASK(d_gate_row, const head_run *k) {
    const real *dots = weft_workspace(k->x, k->n);
    int64_t span = gates_of(k)->shape[1] != k->time ? k->time : 1, first = task * span;
    for (int64_t h = 0; h < k->heads; h += VLEN) {
        int64_t count = min_i64(VLEN, k->heads - h);
        double lane[VBYTES / sizeof(real)] = {0};
        for (int64_t p = first; p < first + span; p++)
            for (int64_t i = 0; i < count; i++)
                lane[i] += (double)dots[p * k->heads + h + i];
        vreal sum = {0};
        for (int64_t i = 0; i < count; i++)
            sum[i] = (real)lane[i];
        /* d_gate of `count` heads, from the sums of their dots. */
        real scratch[VBYTES / sizeof(real)];
        const weft_tensor *to = k->n->out[1];
        int64_t at = gate_row(k, first) + h;
        vreal s = gate_sigmoid(k, first, h, count);
        real *out = tile_out(k->x, to, at, scratch);
        vstore_part(out, (real)ATTR(k->n, weft_gate_mix_attr)->alpha * s * (1 - s) * sum, count);
        tile_done(k->x, to, at, count, out);
    }
}

DEFINE_KERNEL_IN(gate_mix_back, n->out[1] ? real_bytes(weft_tensor_rows(n->in[1])) : 0) {
    head_run k = head_run_of(x, n, n->in[1]);
    const weft_tensor *gates = gates_of(&k);
    run_positions(x, n, n->in[1], gate_mix_row);
    if (n->out[1]) run_tasks(x, gates->shape[0] * gates->shape[1], d_gate_row, &k);
    return WEFT_OK;
}

/* Dropout. Philox is run on LANES counters side by side, a loop that compilers turn into vector code; a
 * counter gives four words, for four elements in a row. */
enum { LANES = 64, DRAWN = 4 * LANES };

typedef struct {
    weft_exec *x;
    const weft_node *n;
    int64_t length, chunk, chunks; /* elements of a sequence, of a task; tasks of a sequence */
    uint32_t threshold, site;      /* keep where word >> 8 ≥ threshold */
    real scale;
} dropping;

/* Words of LANES consecutive counters from `first` on, word w of counter l at [4l + w]. It is
 * weft_philox written for many. */
static void draw_words(uint64_t key, uint32_t first, uint32_t sequence, uint32_t iteration,
                       uint32_t site, uint32_t *out) {
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int l = 0; l < LANES; l++) {
        c0[l] = first + (uint32_t)l;
        c1[l] = sequence;
        c2[l] = iteration;
        c3[l] = site;
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[l], b = (uint64_t)0xCD9E8D57u * c2[l];
            c0[l] = (uint32_t)(b >> 32) ^ c1[l] ^ k0;
            c2[l] = (uint32_t)(a >> 32) ^ c3[l] ^ k1;
            c1[l] = (uint32_t)b;
            c3[l] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int l = 0; l < LANES; l++) {
        out[4 * l] = c0[l];
        out[4 * l + 1] = c1[l];
        out[4 * l + 2] = c2[l];
        out[4 * l + 3] = c3[l];
    }
}

WEFT_TASK(drop_chunk, const dropping *k) {
    int64_t b = task / k->chunks, first = task % k->chunks * k->chunk;
    int64_t end = min_i64(first + k->chunk, k->length);
    const weft_run *run = weft_exec_current_run(k->x);
    for (int64_t at = first; at < end; at += TILE) { /* a multiple of DRAWN */
        real x_scratch[TILE_SCRATCH], y_scratch[TILE_SCRATCH];
        int64_t place = b * k->length + at, len = min_i64(TILE, end - at);
        const real *x = tile_in(k->x, k->n->in[0], place, len, x_scratch);
        real *y = tile_out(k->x, k->n->out[0], place, y_scratch);
        const uint32_t threshold = k->threshold;
        const real scale = k->scale;
        for (int64_t i = 0; i < len; i += DRAWN) {
            uint32_t word[DRAWN];
            real kept[DRAWN];
            draw_words(run->seed, (uint32_t)((at + i) / 4), run->sequence + (uint32_t)b,
                       run->iteration, k->site, word);
            int64_t count = min_i64(DRAWN, len - i);
            memcpy(kept, x + i, (size_t)count * sizeof(real));
            for (int64_t e = 0; e < count; e++)
                kept[e] = word[e] >> 8 >= threshold ? kept[e] * scale : 0;
            memcpy(y + i, kept, (size_t)count * sizeof(real));
        }
        tile_done(k->x, k->n->out[0], place, len, y);
    }
}

DEFINE_KERNEL(dropout) {
    const weft_dropout_attr *attr = n->attr;
    int64_t batch = n->in[0]->shape[0];
    dropping k = {.x = x, .n = n, .site = attr->site};
    k.length = weft_tensor_count(n->in[0]) / batch;
    k.threshold = (uint32_t)ceil(attr->p * 0x1p24);
    k.scale = (real)(1 / (1 - attr->p));
    k.chunk = chunk_length(k.length);
    k.chunks = ceil_div(k.length, k.chunk);
    return run_tasks(x, batch * k.chunks, drop_chunk, &k);
}

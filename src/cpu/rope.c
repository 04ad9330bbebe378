/* Rotary positions on the CPU. Sine and cosine are right to the last bit or two of double: those
 * of every 32nd position and of the distances 0 to 31 come from the C library, and a position's
 * are the product of two of them as complex numbers, cos(a + b) = cos a cos b − sin a sin b. That
 * is a few multiplications a pair, so no table as long as the sequence is needed. */
#include "ops/rope.h"

#include "cpu/chunks.h"

enum { SPAN = 32 };

typedef struct {
    weft_exec *x;
    const weft_node *n;
    int64_t batch, time, heads, width; /* of x: [B, T, H, D] */
    int64_t rotated, half, block;      /* heads rotated, pairs of a head, positions of a task */
    int64_t near, spans;               /* distances in use, spans of a sequence */
    const int32_t *start;
    bool inverse;
    double amplitude;
    double *frequency; /* [half] */
    double *fine;      /* [SPAN, 2, half]: cos and sin of the distances within a span */
    double *coarse;    /* [sequences that differ, spans, 2, half]: of a span's first position,
                          times the amplitude */
    real *scratch;     /* per thread: cos and sin of a position [2, half], a head of bf16 */
    int64_t per_thread;
} rotation;

/* Sequences that differ in their start. */
static int64_t count_sequences(const weft_node *n) {
    return n->in[1] ? n->in[0]->shape[0] : 1;
}

/* The workspace from `at` on; returns its bytes. */
static int64_t cut_workspace(const weft_node *n, int threads, char *at, rotation *k) {
    const int64_t *shape = n->in[0]->shape, half = ATTR(n, weft_rope_attr)->width / 2;
    int64_t row = 2 * half * (int64_t)sizeof(double), thread = real_bytes(2 * half + shape[3]);
    k->per_thread = thread / (int64_t)sizeof(real);
    return CUT_MEMORY(at, {&k->frequency, row / 2}, {&k->fine, SPAN * row},
                      {&k->coarse, count_sequences(n) * ceil_div(shape[1], SPAN) * row},
                      {&k->scratch, threads * thread});
}

WEFT_TASK(fill_table_row, const rotation *k) {
    double position = (double)task, *cosine = k->fine + task * 2 * k->half, size = 1;
    if (task >= k->near) {
        size = k->amplitude;
        int64_t row = task - k->near, sequence = row / k->spans;
        int64_t first = k->start ? k->start[sequence] : 0;
        position = (double)(first + row % k->spans * SPAN);
        cosine = k->coarse + row * 2 * k->half;
    }
    for (int64_t i = 0; i < k->half; i++) {
        cosine[i] = size * cos(position * k->frequency[i]);
        cosine[k->half + i] = size * sin(position * k->frequency[i]);
    }
}

/* Columns i .. i+n of both halves. Both are read before either is written: y may be x. */
static ALWAYS_INLINE void rotate_at(const real *x, real *y, int64_t half, const real *cosine,
                                    const real *sine, int64_t i, int64_t n) {
    vreal a = vload_n(x + i, n), b = vload_n(x + half + i, n);
    vreal c = vload_n(cosine + i, n), s = vload_n(sine + i, n);
    vstore_n(y + i, a * c - b * s, n);
    vstore_n(y + half + i, b * c + a * s, n);
}

static void rotate_head(const rotation *k, int64_t at, const real *cosine, const real *sine,
                        real *scratch) {
    const real *x = tile_in(k->x, k->n->in[0], at, k->width, scratch);
    real *y = tile_out(k->x, k->n->out[0], at, scratch);
    int64_t half = k->half, whole = half - half % VLEN;
    for (int64_t i = 0; i < whole; i += VLEN)
        rotate_at(x, y, half, cosine, sine, i, VLEN);
    if (whole < half) rotate_at(x, y, half, cosine, sine, whole, half - whole);
    if (x != y && k->width > 2 * half)
        memcpy(y + 2 * half, x + 2 * half, (size_t)(k->width - 2 * half) * sizeof(real));
    tile_done(k->x, k->n->out[0], at, k->width, y);
}

WEFT_TASK(rotate_block, const rotation *k) {
    real *cosine = k->scratch + thread * k->per_thread, *sine = cosine + k->half;
    const char *from = weft_data(k->x, k->n->in[0]);
    char *to = weft_data(k->x, k->n->out[0]);
    int64_t size = (int64_t)weft_dtype_size(k->n->in[0]->dtype) * k->width;
    int64_t end = min_i64((task + 1) * k->block, k->batch * k->time);
    for (int64_t p = task * k->block; p < end; p++) {
        /* cos and sin (−sin for the opposite angle) of the position. */
        int64_t half = k->half, t = p % k->time, b = k->start ? p / k->time : 0;
        int64_t row = b * k->spans + t / SPAN;
        const double *far = k->coarse + row * 2 * half, *near = k->fine + t % SPAN * 2 * half;
        double sign = k->inverse ? -1 : 1;
        for (int64_t i = 0; i < half; i++) {
            cosine[i] = (real)(far[i] * near[i] - far[half + i] * near[half + i]);
            sine[i] = (real)(sign * (far[half + i] * near[i] + far[i] * near[half + i]));
        }
        for (int64_t h = 0; h < k->rotated; h++)
            rotate_head(k, (p * k->heads + h) * k->width, cosine, sine, sine + k->half);
        int64_t rest = (p * k->heads + k->rotated) * size; /* heads that are not rotated */
        if (to != from) memcpy(to + rest, from + rest, (size_t)((k->heads - k->rotated) * size));
    }
}

DEFINE_KERNEL_IN(rope, cut_workspace(n, threads, NULL, &(rotation){0})) {
    const weft_rope_attr *o = n->attr;
    const weft_tensor *in = n->in[0];
    rotation k = {.x = x, .n = n, .rotated = o->heads, .half = o->width / 2, .inverse = o->inverse};
    k.batch = in->shape[0];
    k.time = in->shape[1];
    k.heads = in->shape[2];
    k.width = in->shape[3];
    k.start = weft_data(x, n->in[1]);
    k.amplitude = o->law.amplitude;
    cut_workspace(n, weft_pool_size(weft_exec_pool(x)), weft_workspace(x, n), &k);
    k.near = min_i64(k.time, SPAN);
    k.spans = ceil_div(k.time, SPAN);
    k.block = chunk_rows(k.batch * k.time, k.heads * k.width);
    for (int64_t i = 0; i < k.half; i++)
        k.frequency[i] = weft_rope_rate(&o->law, i, o->width);
    run_tasks(x, k.near + count_sequences(n) * k.spans, fill_table_row, &k);
    return run_tasks(x, ceil_div(k.batch * k.time, k.block), rotate_block, &k);
}

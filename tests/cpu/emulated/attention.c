/* Attention in bf16, forward and back, by matrix instructions that this machine may lack: a program of its
 * own, as products.c.
 *
 * More keys than a tile holds, odd widths, shared key heads, work that is divided, a number per key. The
 * workspace was poisoned before, what lies behind it is not written, the bits are equal for one and for three
 * threads, and results and gradients are those of the definition in double, within what bf16 allows. */
#include "core/exec.h"
#include "cpu/attention_bf16.h"
#include "cpu/matrix.h"
#include "serial_pool.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(WEFT_EMULATED_AVX512)
#include <immintrin.h>
emulated_tile emulated_tiles[EMULATED_TILES];
static const weft_matrix instructions[] = {WEFT_MATRIX_AVX512_BF16, WEFT_MATRIX_AMX};
#elif WEFT_ARM_TARGETS
static const weft_matrix instructions[] = {WEFT_MATRIX_BFMMLA};
#else
static const weft_matrix instructions[] = {WEFT_MATRIX_NONE};
#endif

extern const weft_kernel KERNEL(attention), KERNEL(attention_back);

static weft_matrix chosen;

weft_matrix weft_cpu_matrix(void) {
    return chosen;
}

enum { IN = WEFT_ATTN_BACK_INPUTS, OUT = WEFT_ATTN_BACK_OUTPUTS, GUARD = 4096, POISON = 0xff };

/* In place of the executor: tensors are known by their ids, those of the backward node. */
struct weft_exec {
    weft_pool pool;
    void *data[IN + OUT];
    void *workspace;
};

void *weft_data(const weft_exec *x, const weft_tensor *t) {
    return t ? x->data[t->id] : NULL;
}

void *weft_workspace(const weft_exec *x, const weft_node *n) {
    (void)n;
    return x->workspace;
}

weft_pool *weft_exec_pool(const weft_exec *x) {
    return (weft_pool *)(uintptr_t)&x->pool;
}

int64_t weft_tensor_count(const weft_tensor *t) {
    return t->shape[0];
}

double weft_alibi_slope(int64_t h, int64_t heads) {
    (void)h, (void)heads;
    return 0;
}

weft_status weft_fail(weft_status status, const char *format, ...) {
    (void)format;
    return status;
}

typedef struct {
    int64_t batch, tokens, heads, kv_heads, dqk, dv;
    bool w2, causal;
} shape;

typedef struct {
    weft_exec x;
    weft_tensor t[IN + OUT];
    weft_tensor *in[IN], *out[OUT], *forward_out[2];
    int64_t count[IN + OUT];
    double *want[IN + OUT]; /* of o and of the gradients */
    weft_attention_attr attr;
    weft_node forward, back;
} work;

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

static double value_at(const work *w, int id, int64_t i) {
    const void *data = w->x.data[id];
    return w->t[id].dtype == WEFT_BF16 ? (double)weft_bf16_to_float(((const uint16_t *)data)[i])
                                       : (double)((const float *)data)[i];
}

/* A tensor of random numbers, of `scale` around `shift`. */
static weft_tensor *add(work *w, int id, int64_t count, bool bf16, float scale, float shift) {
    uint32_t seed = (uint32_t)id + 1;
    w->t[id] = (weft_tensor){.id = id, .dtype = bf16 ? WEFT_BF16 : WEFT_F32, .ndim = 1};
    w->t[id].shape[0] = w->count[id] = count;
    w->x.data[id] = calloc((size_t)count, sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        float value = noise(&seed) * scale + shift;
        if (bf16)
            ((uint16_t *)w->x.data[id])[i] = weft_float_to_bf16(value);
        else
            ((float *)w->x.data[id])[i] = value;
    }
    return &w->t[id];
}

enum { Q = WEFT_ATTN_BACK_FIRST, K = Q + 1, V = Q + 2, N = Q + 3, LOG_TAU = Q + WEFT_ATTN_LOG_TAU };

static void open_work(work *w, const shape *s) {
    int64_t rows = s->batch * s->tokens, last = rows * s->kv_heads;
    *w = (work){.attr = {.batch = s->batch,
                         .queries = s->tokens,
                         .keys = s->tokens,
                         .heads = s->heads,
                         .kv_heads = s->kv_heads,
                         .dqk = s->dqk,
                         .dv = s->dv,
                         .scale_value = 1 / sqrt((double)s->dqk),
                         .causal = s->causal}};
    w->in[0] = add(w, 0, rows * s->heads * s->dv, true, 1, 0); /* the gradient of o, o, lse */
    w->in[1] = add(w, 1, rows * s->heads * s->dv, true, 1, 0);
    w->in[2] = add(w, 2, rows * s->heads, false, 1, 0);
    w->in[Q] = add(w, Q, rows * s->heads * s->dqk, true, 1, 0);
    w->in[K] = add(w, K, last * s->dqk, true, 1, 0);
    w->in[V] = add(w, V, last * s->dv, true, 1, 0);
    for (int i = Q; i <= V; i++)
        w->out[i - Q] = add(w, IN + i - Q, w->count[i], true, 1, 0);
    if (s->w2) {
        w->in[N] = add(w, N, last, false, 1, 0);
        for (int64_t i = 0; i < last; i++) { /* |k|², [batch, kv_heads, tokens] */
            int64_t t = i % s->tokens, g = i / s->tokens % s->kv_heads;
            int64_t at = (i / s->tokens / s->kv_heads * s->tokens + t) * s->kv_heads + g;
            double sum = 0;
            for (int64_t d = 0; d < s->dqk; d++)
                sum += pow(value_at(w, K, at * s->dqk + d), 2);
            ((float *)w->x.data[N])[i] = (float)sum;
        }
        float middle = 0.5f * logf(4.0f * (float)s->dqk);
        w->in[LOG_TAU] = add(w, LOG_TAU, s->heads, false, 0.125f, middle);
        w->out[N - Q] = add(w, IN + N - Q, last, false, 1, 0);
        w->out[LOG_TAU - Q] = add(w, IN + LOG_TAU - Q, s->heads, false, 1, 0);
    }
    w->forward_out[0] = w->in[1];
    w->forward_out[1] = w->in[2];
    w->forward = (weft_node){.attr = &w->attr, .n_in = WEFT_ATTN_INPUTS, .n_out = 2};
    w->forward.in = w->in + Q;
    w->forward.out = w->forward_out;
    w->back = (weft_node){.attr = &w->attr, .n_in = IN, .n_out = OUT, .in = w->in, .out = w->out};
    for (int i = 0; i < IN + OUT; i++)
        w->want[i] = calloc((size_t)w->count[i] + 1, sizeof(double));
}

static void close_work(work *w) {
    for (int i = 0; i < IN + OUT; i++)
        free(w->x.data[i]), free(w->want[i]);
}

/* A query of a head by the definition: o, and its part of every gradient. */
static void define_query(work *w, const shape *s, int64_t b, int64_t h, int64_t i) {
    int64_t g = h * s->kv_heads / s->heads, row = (b * s->tokens + i) * s->heads + h;
    int64_t seen = s->causal ? i + 1 : s->tokens;
    double tau = s->w2 ? exp(value_at(w, LOG_TAU, h)) : 0, eps = 1e-6;
    double scale = s->w2 ? 2 / (tau + eps) : w->attr.scale_value, beta = -1 / (tau + eps);
    double *score = calloc(2 * (size_t)seen, sizeof *score), *p = score + seen;
    double top = -INFINITY, total = 0, mean = 0;
    for (int64_t j = 0; j < seen; j++) {
        int64_t key = (b * s->tokens + j) * s->kv_heads + g;
        for (int64_t d = 0; d < s->dqk; d++)
            score[j] += scale * value_at(w, Q, row * s->dqk + d) * value_at(w, K, key * s->dqk + d);
        if (s->w2) score[j] += beta * value_at(w, N, (b * s->kv_heads + g) * s->tokens + j);
        top = fmax(top, score[j]);
    }
    for (int64_t j = 0; j < seen; j++)
        total += p[j] = exp(score[j] - top);
    w->want[2][(b * s->heads + h) * s->tokens + i] = top + log(total);
    for (int64_t j = 0; j < seen; j++) {
        int64_t key = (b * s->tokens + j) * s->kv_heads + g;
        p[j] /= total;
        for (int64_t d = 0; d < s->dv; d++) {
            double v = value_at(w, V, key * s->dv + d), o = value_at(w, 0, row * s->dv + d);
            w->want[1][row * s->dv + d] += p[j] * v;
            w->want[IN + V - Q][key * s->dv + d] += p[j] * o;
            mean += p[j] * v * o;
        }
    }
    for (int64_t j = 0; j < seen; j++) {
        int64_t key = (b * s->tokens + j) * s->kv_heads + g;
        double ds = -mean;
        for (int64_t d = 0; d < s->dv; d++)
            ds += value_at(w, V, key * s->dv + d) * value_at(w, 0, row * s->dv + d);
        ds *= p[j];
        for (int64_t d = 0; d < s->dqk; d++) {
            w->want[IN][row * s->dqk + d] += scale * ds * value_at(w, K, key * s->dqk + d);
            w->want[IN + K - Q][key * s->dqk + d] += scale * ds * value_at(w, Q, row * s->dqk + d);
        }
        if (!s->w2) continue;
        w->want[IN + N - Q][(b * s->kv_heads + g) * s->tokens + j] += beta * ds;
        w->want[IN + LOG_TAU - Q][h] -= tau / (tau + eps) * ds * score[j];
    }
    free(score);
}

/* Runs a kernel in a poisoned workspace; false: it failed, or wrote behind that. */
static bool run(work *w, const weft_kernel *kernel, const weft_node *n, int threads) {
    int64_t bytes = kernel->workspace(n, threads);
    size_t all = ((size_t)bytes + GUARD) / WEFT_ARENA_ALIGN * WEFT_ARENA_ALIGN + WEFT_ARENA_ALIGN;
    unsigned char *memory = aligned_alloc(WEFT_ARENA_ALIGN, all);
    memset(memory, POISON, all);
    w->x.workspace = memory;
    w->x.pool.size = threads;
    bool right = kernel->run(&w->x, n) == WEFT_OK;
    for (size_t i = (size_t)bytes; i < all; i++)
        right = right && memory[i] == POISON;
    free(memory);
    return right;
}

/* The root of the mean square error as a part of that of the values. */
static double error_of(const work *w, int id) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < w->count[id]; i++) {
        error += pow(value_at(w, id, i) - w->want[id][i], 2);
        size += pow(w->want[id][i], 2);
    }
    return sqrt(error / (size + 1e-12));
}

/* o, lse and the gradients, of which the last two are there with a number per key. Roundings of weights, of the
 * scores' gradients and of the result are 2^-9 each at most; log τ's gradient is a sum whose terms nearly
 * cancel. */
static const struct {
    int id;
    double bound;
} results[] = {{1, 0.004},
               {2, 1e-4},
               {IN, 0.005},
               {IN + K - Q, 0.005},
               {IN + V - Q, 0.005},
               {IN + N - Q, 0.005},
               {IN + LOG_TAU - Q, 0.1}};
enum { RESULTS = sizeof results / sizeof results[0] };

/* 1 where something was wrong, which is printed. */
static int check(const shape *s) {
    work w;
    void *first[RESULTS] = {0};
    bool right = true, same = true;
    int wrong = 0;
    open_work(&w, s);
    for (int64_t i = 0; i < s->batch * s->heads * s->tokens; i++)
        define_query(&w, s, i / s->tokens / s->heads, i / s->tokens % s->heads, i % s->tokens);
    right = KERNEL(attention_bf16_runs)(&w.forward) && KERNEL(attention_back_bf16_runs)(&w.back);
    for (int threads = 1; right && threads <= 3; threads += 2) {
        right = run(&w, &KERNEL(attention), &w.forward, threads) &&
                run(&w, &KERNEL(attention_back), &w.back, threads);
        for (int i = 0; i < RESULTS; i++) {
            int id = results[i].id;
            size_t bytes = (size_t)w.count[id] * (w.t[id].dtype == WEFT_BF16 ? 2 : 4);
            if (!first[i])
                first[i] = memcpy(malloc(bytes + 1), w.x.data[id] ? w.x.data[id] : "", bytes);
            same = same && (!bytes || memcmp(first[i], w.x.data[id], bytes) == 0);
        }
    }
    for (int i = 0; right && i < RESULTS; i++) {
        double error = error_of(&w, results[i].id);
        if (error <= results[i].bound) continue;
        printf(
            "%lld tokens, %lld heads to %lld, widths %lld and %lld, instructions %d: tensor %d is "
            "off by %g\n",
            (long long)s->tokens, (long long)s->heads, (long long)s->kv_heads, (long long)s->dqk,
            (long long)s->dv, (int)chosen, results[i].id, error);
        wrong = 1;
    }
    if (!right || !same)
        printf("%lld tokens, instructions %d: %s\n", (long long)s->tokens, (int)chosen,
               right ? "the bits depend on the threads"
                     : "it did not run, or wrote behind its workspace");
    for (int i = 0; i < RESULTS; i++)
        free(first[i]);
    close_work(&w);
    return wrong || !right || !same;
}

int main(void) {
    static const shape shapes[] = {
        {1, 1, 1, 1, 4, 4, false, true},      /* a single key */
        {2, 31, 2, 2, 8, 8, false, true},     /* less than a block */
        {1, 97, 3, 3, 20, 12, false, true},   /* one key more than a tile; widths that are padded */
        {1, 193, 2, 1, 33, 7, false, true},   /* odd widths, a shared key head */
        {1, 100, 2, 2, 16, 16, false, false}, /* every key is seen */
        {1, 520, 1, 1, 8, 8, false, true},    /* ranges of keys */
        {1, 130, 2, 1, 36, 16, true, true},   /* a number per key */
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++) {
        chosen = instructions[i];
        for (size_t s = 0; chosen && s < sizeof shapes / sizeof shapes[0]; s++)
            wrong += check(&shapes[s]);
    }
    return wrong > 0;
}

/* Norms forward by an instruction set that this machine may lack: a program of its own, as products.c.
 *
 * LayerNorm and RMSNorm of odd widths, f32 and bf16, with and without what is added before them. Results
 * and workspace were poisoned before, what lies behind them is not written, the bits are equal for one
 * and for three threads, and the numbers are those of the definition in double. */
#include "core/exec.h"
#include "cpu/kernel.h"
#include "ops/norm.h"
#include "serial_pool.h"

#include <stdio.h>
#include <stdlib.h>

extern const weft_kernel KERNEL(norm);

enum { TENSORS = WEFT_NORM_INPUTS + WEFT_NORM_OUTPUTS, GUARD = 64, POISON = 0x5a };

/* In place of the executor: tensors are known by their ids. */
struct weft_exec {
    weft_pool pool;
    void *data[TENSORS];
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
    return (weft_pool *)&x->pool;
}

size_t weft_dtype_size(weft_dtype dtype) {
    return dtype == WEFT_F64 ? 8 : dtype == WEFT_F32 ? 4 : 2;
}

int64_t weft_tensor_count(const weft_tensor *t) {
    return weft_tensor_rows(t) * weft_tensor_width(t);
}

int64_t weft_tensor_width(const weft_tensor *t) {
    return t->shape[t->ndim - 1];
}

int64_t weft_tensor_rows(const weft_tensor *t) {
    return t->ndim > 1 ? t->shape[0] : 1;
}

typedef struct {
    int64_t rows, width;
    bool bf16, r, b;
    weft_norm_kind kind;
} trial;

typedef struct {
    weft_exec x;
    weft_tensor t[TENSORS];
    weft_tensor *in[WEFT_NORM_INPUTS], *out[WEFT_NORM_OUTPUTS];
    weft_norm_attr attr;
    weft_node node;
} work;

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

static double value_at(const weft_exec *x, const weft_tensor *t, int64_t i) {
    const void *data = weft_data(x, t);
    return t->dtype == WEFT_BF16 ? (double)weft_bf16_to_float(((const uint16_t *)data)[i])
                                 : (double)((const float *)data)[i];
}

static int64_t bytes_of(const weft_tensor *t) {
    return weft_tensor_rows(t) * weft_tensor_width(t) * (t->dtype == WEFT_BF16 ? 2 : 4);
}

static weft_tensor *add(work *w, int id, int64_t rows, int64_t width, bool bf16) {
    weft_tensor *t = &w->t[id];
    *t = (weft_tensor){.id = id, .dtype = bf16 ? WEFT_BF16 : WEFT_F32, .ndim = rows ? 2 : 1};
    t->shape[0] = rows ? rows : width;
    t->shape[t->ndim - 1] = width;
    w->x.data[id] = aligned_alloc(GUARD, (size_t)(bytes_of(t) / GUARD + 2) * GUARD);
    memset(w->x.data[id], POISON, (size_t)(bytes_of(t) / GUARD + 2) * GUARD);
    uint32_t state = (uint32_t)id + 1;
    for (int64_t i = 0; id < WEFT_NORM_INPUTS && i < weft_tensor_rows(t) * width; i++) {
        float value = noise(&state) + (id == WEFT_NORM_X ? 0.5f : 0);
        if (bf16)
            ((uint16_t *)w->x.data[id])[i] = weft_float_to_bf16(value);
        else
            ((float *)w->x.data[id])[i] = value;
    }
    return t;
}

static void run(work *w, const trial *t, int threads) {
    *w = (work){.x.pool.size = threads, .attr = {.kind = t->kind, .eps = 1e-5}};
    w->in[WEFT_NORM_X] = add(w, WEFT_NORM_X, t->rows, t->width, t->bf16);
    w->in[WEFT_NORM_W] = add(w, WEFT_NORM_W, 0, t->width, false);
    if (t->b) w->in[WEFT_NORM_B] = add(w, WEFT_NORM_B, 0, t->width, false);
    if (t->r) w->in[WEFT_NORM_R] = add(w, WEFT_NORM_R, t->rows, t->width, t->bf16);
    for (int i = 0; i < WEFT_NORM_OUTPUTS; i++) {
        bool wide = i == WEFT_NORM_Y || i == WEFT_NORM_S;
        if (i == WEFT_NORM_S && !t->r) continue;
        if (i == WEFT_NORM_MEAN && t->kind != WEFT_LAYERNORM) continue;
        w->out[i] = add(w, WEFT_NORM_INPUTS + i, wide ? t->rows : 0, wide ? t->width : t->rows,
                        wide && t->bf16);
    }
    w->node = (weft_node){.n_in = WEFT_NORM_INPUTS, .n_out = WEFT_NORM_OUTPUTS, .in = w->in};
    w->node.out = w->out;
    w->node.attr = &w->attr;
    size_t space = (size_t)KERNEL(norm).workspace(&w->node, threads);
    w->x.workspace = aligned_alloc(GUARD, (space / GUARD + 2) * GUARD);
    memset(w->x.workspace, 0xff, (space / GUARD + 2) * GUARD); /* NaN */
    if (KERNEL(norm).run(&w->x, &w->node) != WEFT_OK) abort();
    for (size_t i = space; i < (space / GUARD + 2) * GUARD; i++)
        if (((unsigned char *)w->x.workspace)[i] != 0xff) exit(3);
}

static void drop(work *w) {
    for (int i = 0; i < TENSORS; i++)
        free(w->x.data[i]);
    free(w->x.workspace);
}

static bool near(double got, double want, bool bf16) {
    return fabs(got - want) <= (bf16 ? 5e-3 : 4e-6) * (1 + fabs(want));
}

/* By the definition, a row of x + r at a time. */
static bool is_right(const work *w, const trial *t) {
    bool good = true;
    for (int64_t row = 0; row < t->rows; row++) {
        double s[512], mean = 0, squares = 0;
        for (int64_t i = 0; i < t->width; i++) {
            int64_t at = row * t->width + i;
            s[i] = value_at(&w->x, w->in[WEFT_NORM_X], at);
            if (t->r) s[i] += value_at(&w->x, w->in[WEFT_NORM_R], at);
            if (t->r) good = good && near(value_at(&w->x, w->out[WEFT_NORM_S], at), s[i], t->bf16);
            mean += s[i] / (double)t->width;
        }
        if (t->kind != WEFT_LAYERNORM) mean = 0;
        for (int64_t i = 0; i < t->width; i++)
            squares += (s[i] - mean) * (s[i] - mean) / (double)t->width;
        double rstd = 1 / sqrt(squares + 1e-5);
        good = good && near(value_at(&w->x, w->out[WEFT_NORM_RSTD], row), rstd, false);
        for (int64_t i = 0; i < t->width; i++) {
            double y = (s[i] - mean) * rstd * value_at(&w->x, w->in[WEFT_NORM_W], i);
            if (t->b) y += value_at(&w->x, w->in[WEFT_NORM_B], i);
            int64_t at = row * t->width + i;
            good = good && near(value_at(&w->x, w->out[WEFT_NORM_Y], at), y, t->bf16);
        }
    }
    return good;
}

/* The outputs' bytes and the guards behind them. */
static bool are_equal(const work *a, const work *b) {
    bool good = true;
    for (int i = 0; i < WEFT_NORM_OUTPUTS; i++) {
        if (!a->out[i]) continue;
        const unsigned char *x = weft_data(&a->x, a->out[i]), *y = weft_data(&b->x, b->out[i]);
        int64_t bytes = bytes_of(a->out[i]);
        good = good && memcmp(x, y, (size_t)bytes) == 0;
        for (int k = 0; k < GUARD; k++)
            good = good && x[bytes + k] == POISON;
    }
    return good;
}

int main(void) {
    static const int64_t rows[] = {1, 2, 70}, widths[] = {3, 16, 37, 64, 201};
    int bad = 0;
    for (int kind = 0; kind < 2; kind++)
        for (int form = 0; form < 8; form++)
            for (int i = 0; i < 15; i++) {
                trial t = {rows[i % 3], widths[i / 3], form & 1,
                           form & 2,    form & 4,      kind ? WEFT_RMSNORM : WEFT_LAYERNORM};
                if (kind && t.b) continue;
                work one, three;
                run(&one, &t, 1);
                run(&three, &t, 3);
                bool good = is_right(&one, &t) && are_equal(&one, &three);
                if (!good)
                    printf("norm %d of %lld x %lld, form %d is wrong\n", kind, (long long)t.rows,
                           (long long)t.width, form);
                bad += !good;
                drop(&one);
                drop(&three);
            }
    return bad > 0;
}

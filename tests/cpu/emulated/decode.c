/* What generation runs on the CPU, by an instruction set that this machine may lack: products of few rows,
 * and attention over pages, each with every type. A program of its own, for an emulator or over emulated
 * intrinsics (test_emulated.c compiles and runs it).
 *
 * Products with weights of bytes have the bits of the same sums by plain loops, by any of the set's
 * instructions, and NaN where a row has one, wherever that is; others are sums in double, and a row has
 * the bits that it has alone. Attention is that of its definition in double, within what its type allows;
 * tokens that a row must not see are NaN, or bytes with a scale that is; and a row has the bits that it has
 * alone, beside rows of its sequence and of others. */
#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "ops/cache.h"
#include "ops/linear.h"
#include "serial_pool.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    weft_matrix matrix;
    bool dots, tiles; /* for bytes */
} way;

#if defined(WEFT_EMULATED_AVX512)
#include <immintrin.h>
emulated_tile emulated_tiles[EMULATED_TILES];
static const way ways[] = {{WEFT_MATRIX_NONE, false, false},
                           {WEFT_MATRIX_NONE, true, false},
                           {WEFT_MATRIX_AVX512_BF16, true, false},
                           {WEFT_MATRIX_AMX, true, false}};
#elif WEFT_ARM_TARGETS
#include <sys/auxv.h>
static const way ways[] = {{WEFT_MATRIX_NONE, false, false},
                           {WEFT_MATRIX_NONE, true, false},
                           {WEFT_MATRIX_BFMMLA, true, true}};
#else
static const way ways[] = {{WEFT_MATRIX_NONE, false, false}};
#endif

static way chosen;

/* Whether this processor, which may be the one that is emulated, has its instructions. */
static bool runs(const way *w) {
#if WEFT_ARM_TARGETS
    enum { DOT = 1 << 20, I8MM_AND_BF16 = 3 << 13 };
    bool dot = getauxval(AT_HWCAP) & DOT;
    bool all = (getauxval(AT_HWCAP2) & I8MM_AND_BF16) == I8MM_AND_BF16;
    return !w->dots || (w->tiles ? all : dot);
#else
    (void)w;
    return true;
#endif
}

weft_matrix weft_cpu_matrix(void) {
    return chosen.matrix;
}

bool weft_cpu_dots_i8(void) {
    return chosen.dots;
}

bool weft_cpu_tiles_i8(void) {
    return chosen.tiles;
}

/* Of the library, what these kernels reach. */
void KERNEL(gemm_finish)(const gemm_product *p, const real *sums, int64_t ld, bool add) {
    (void)add;
    for (int64_t i = 0; i < p->m; i++)
        memcpy(gemm_part(p->c, 0, i, 0).data, sums + i * ld, (size_t)p->n * sizeof *sums);
}

static uint32_t state;

static float noise(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1;
}

static void *room(size_t bytes) {
    void *memory =
        aligned_alloc(WEFT_ARENA_ALIGN, (bytes / WEFT_ARENA_ALIGN + 1) * WEFT_ARENA_ALIGN);
    if (!memory) abort();
    return memory;
}

/* y of row x and the weights of one column, by the definition of linear.h. */
static float plain_product(const float *x, int64_t k, const int8_t *w, float scale) {
    float sum = 0;
    for (int64_t b = 0; b < k; b += WEFT_I8_BLOCK) {
        int64_t n = min_i64(WEFT_I8_BLOCK, k - b), dot = 0;
        float most = 0;
        for (int64_t i = 0; i < n; i++)
            most = fmaxf(most, fabsf(x[b + i]));
        float inverse = most > 0 ? 127 / most : 0;
        for (int64_t i = 0; i < n; i++)
            dot += (int64_t)(x[b + i] * inverse + (x[b + i] < 0 ? -0.5f : 0.5f)) * w[b + i];
        sum = fmaf((float)dot, most / 127, sum);
    }
    return sum * scale;
}

/* 1 where a product is wrong, which is printed. */
static int check_product(int64_t m, int64_t n, int64_t k) {
    int64_t ld = weft_matmul_i8_columns(k), wrong = 0;
    float *x = room((size_t)(m * k) * sizeof *x), *y = room((size_t)(m * n) * sizeof *y);
    int8_t *w = room((size_t)(n * ld) + (size_t)n * sizeof(float));
    float *scales = (float *)(w + n * ld);
    memset(w, 0, (size_t)(n * ld));
    memset(y, 0xff, (size_t)(m * n) * sizeof *y);
    for (int64_t i = 0; i < m * k; i++)
        x[i] = i % 7 == 0 ? (i % 2 ? 1.0f : -1.0f) : noise();
    for (int64_t i = 0; i < n; i++) {
        scales[i] = 1 + noise() / 2;
        for (int64_t j = 0; j < k; j++)
            w[i * ld + j] = (int8_t)((i + j) % 5 == 0 ? (j % 2 ? 127 : -127) : 127 * noise());
    }
    gemm_product p = {.batch = 1, .m = m, .n = n, .k = k, .tb = true, .alpha = 1};
    p.a = (gemm_matrix){.data = x, .ld = k};
    p.b = (gemm_matrix){.data = w, .ld = ld, .i8 = true};
    p.c = (gemm_matrix){.data = y, .ld = n};
    void *workspace = room((size_t)KERNEL(i8_rows_workspace)(&p));
    KERNEL(i8_rows)(&(weft_pool){3}, &p, workspace);
    for (int64_t i = 0; i < m * n; i++)
        wrong += y[i] != plain_product(x + i / n * k, k, w + i % n * ld, scales[i % n]);
    x[(m - 1) * k + k * 5 / 7] = NAN;
    KERNEL(i8_rows)(&(weft_pool){3}, &p, workspace);
    for (int64_t i = 0; i < m * n; i++)
        wrong += !isnan(y[i]) != (i / n < m - 1);
    if (wrong)
        printf("bytes, %lld × %lld × %lld, instructions %d: %lld of %lld differ\n", (long long)m,
               (long long)n, (long long)k, (int)chosen.dots, (long long)wrong, (long long)(m * n));
    free(x), free(y), free(w), free(workspace);
    return wrong > 0;
}

/* 1 where a product with weights [n, k] (tb) or [k, n] is wrong, which is printed. */
static int check_few(int64_t m, int64_t n, int64_t k, bool tb, bool bf16, bool narrow_x) {
    float *x = room((size_t)(m * k) * sizeof *x), *y = room((size_t)(m * n) * sizeof *y);
    float *w = room((size_t)(n * k) * sizeof *w), *alone = room((size_t)n * sizeof *alone);
    uint16_t *half = room((size_t)(n * k) * sizeof *half);
    uint16_t *half_x = room((size_t)(m * k) * sizeof *half_x);
    for (int64_t i = 0; i < m * k; i++) {
        x[i] = noise();
        half_x[i] = weft_float_to_bf16(x[i]);
        if (narrow_x) x[i] = weft_bf16_to_float(half_x[i]);
    }
    for (int64_t i = 0; i < n * k; i++) {
        half[i] = weft_float_to_bf16(noise());
        w[i] = weft_bf16_to_float(half[i]);
    }
    gemm_product p = {.batch = 1, .m = m, .n = n, .k = k, .tb = tb, .alpha = 1};
    p.a = (gemm_matrix){.data = narrow_x ? (void *)half_x : x, .ld = k, .bf16 = narrow_x};
    p.b = (gemm_matrix){.data = bf16 ? (void *)half : w, .ld = tb ? k : n, .bf16 = bf16};
    p.c = (gemm_matrix){.data = y, .ld = n};
    /* BFMMLA keeps 16 bits of an f32 x, and needs room for them; else such an x is read as it lies. */
    int64_t bytes = KERNEL(few_rows_workspace)(&p);
    bool split = bytes > 0 && !narrow_x;
    void *workspace = room((size_t)bytes);
    KERNEL(few_rows)(&(weft_pool){3}, &p, workspace);
    p.m = 1;
    p.a.data = gemm_part(p.a, 0, m - 1, 0).data;
    p.c.data = alone;
    KERNEL(few_rows)(&(weft_pool){1}, &p, workspace);
    int wrong = memcmp(alone, y + (m - 1) * n, (size_t)n * sizeof *y) != 0;
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, size = 1;
        for (int64_t d = 0; d < k; d++) {
            double term = (double)x[i / n * k + d] * (double)w[tb ? i % n * k + d : d * n + i % n];
            sum += term;
            size += fabs(term);
        }
        wrong += !(fabs((double)y[i] - sum) <= (split ? 0x1p-16 : 1e-6) * size);
    }
    if (wrong)
        printf("%lld × %lld × %lld, tb %d, bf16 %d, x %d: %d differ\n", (long long)m, (long long)n,
               (long long)k, tb, bf16, narrow_x, wrong);
    free(x), free(y), free(w), free(alone), free(half), free(half_x), free(workspace);
    return wrong > 0;
}

/* Attention: tensors by their place in the node. */
enum {
    SEQUENCES = 5,
    ROWS = 12,
    MOST = 560,
    TABLE = MOST / WEFT_PAGE_TOKENS,
    PAGES = SEQUENCES * TABLE
};

struct weft_exec {
    weft_pool pool;
    const weft_tensor *tensors; /* of the node's inputs, then of its output */
    void *data[WEFT_CACHE_ATTENTION_INPUTS + 1];
    void *workspace;
};

void *weft_data(const weft_exec *x, const weft_tensor *t) {
    return t ? x->data[t - x->tensors] : NULL;
}

void *weft_workspace(const weft_exec *x, const weft_node *n) {
    (void)n;
    return x->workspace;
}

weft_pool *weft_exec_pool(const weft_exec *x) {
    return (weft_pool *)(uintptr_t)&x->pool;
}

size_t weft_dtype_size(weft_dtype dtype) {
    return dtype == WEFT_I8 ? 1 : dtype == WEFT_BF16 ? 2 : 4;
}

int64_t weft_tensor_count(const weft_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

int64_t weft_cache_page_bytes(const weft_cache_part *part) {
    int64_t token = part->heads * part->width * (int64_t)weft_dtype_size(part->dtype);
    return WEFT_PAGE_TOKENS * (token + (part->dtype == WEFT_I8 ? 4 * part->heads : 0));
}

double weft_alibi_slope(int64_t h, int64_t heads) {
    (void)h, (void)heads;
    return 0;
}

extern const weft_kernel KERNEL(cache_attention);

typedef struct {
    int64_t heads, key_heads, dqk, dv, context;
} form;

static const int32_t positions[ROWS] = {0, 3, 17, 254, 255, 256, 257, 258, 259, 553, 554, 555};
static const int32_t sequences[ROWS] = {0, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4};

static bool sees(const form *f, int64_t row, int64_t token) {
    return token <= positions[row] && token > positions[row] - f->context;
}

/* Whether some row does. */
static bool seen(const form *f, int64_t sequence, int64_t token) {
    bool any = false;
    for (int64_t row = 0; row < ROWS; row++)
        any |= sequences[row] == sequence && sees(f, row, token);
    return any;
}

/* A part's pages, and the same numbers as they are stored: [sequences, MOST, heads, width]. */
typedef struct {
    weft_cache_part part;
    char *pages;
    double *stored;
} cache;

static int32_t page_of(int64_t sequence, int64_t token) {
    return (int32_t)((sequence * TABLE + token / WEFT_PAGE_TOKENS) * 37 % PAGES);
}

static double store_number(weft_dtype dtype, char *page, int64_t at, bool is_seen, float scale) {
    float x = noise();
    if (dtype == WEFT_F32) {
        ((float *)page)[at] = is_seen ? x : NAN;
        return (double)x;
    }
    if (dtype == WEFT_BF16) {
        uint16_t bits = weft_float_to_bf16(x);
        ((uint16_t *)page)[at] = is_seen ? bits : 0x7fc0;
        return (double)weft_bf16_to_float(bits);
    }
    int8_t byte = (int8_t)lrintf(x * 127);
    ((int8_t *)page)[at] = is_seen ? byte : 127;
    return (double)scale * byte;
}

static cache new_cache(const form *f, int64_t width, weft_dtype dtype) {
    cache c = {.part = {f->key_heads, width, dtype, false}};
    int64_t page_bytes = weft_cache_page_bytes(&c.part), heads = f->key_heads;
    c.pages = room((size_t)(PAGES * page_bytes));
    c.stored = room((size_t)(SEQUENCES * MOST * heads * width) * sizeof *c.stored);
    for (int64_t i = 0; i < SEQUENCES * MOST * heads; i++) {
        int64_t h = i % heads, t = i / heads % MOST, sequence = i / heads / MOST;
        bool is_seen = seen(f, sequence, t);
        char *page = c.pages + page_of(sequence, t) * page_bytes;
        int64_t at = h * WEFT_PAGE_TOKENS + t % WEFT_PAGE_TOKENS;
        float scale = (1 + 0.01f * (float)(t % 7)) / 127;
        if (dtype == WEFT_I8)
            ((float *)(page + heads * WEFT_PAGE_TOKENS * width))[at] = is_seen ? scale : NAN;
        for (int64_t d = 0; d < width; d++)
            c.stored[i * width + d] = store_number(dtype, page, at * width + d, is_seen, scale);
    }
    return c;
}

static double scale_of(const form *f) {
    return 12.0 / (double)f->dqk;
}

/* The largest error of a row's head, by the definition. */
static double head_error(const form *f, const cache *k, const cache *v, const float *q, int64_t row,
                         int64_t head, const float *o) {
    int64_t g = head / (f->heads / f->key_heads), sequence = sequences[row];
    double sum[256] = {0}, total = 0, top = -INFINITY, score[MOST], worst = 0;
    for (int64_t t = 0; t < MOST; t++) {
        if (!sees(f, row, t)) continue;
        score[t] = 0;
        for (int64_t i = 0; i < f->dqk; i++)
            score[t] += scale_of(f) * (double)q[i] *
                        k->stored[((sequence * MOST + t) * f->key_heads + g) * f->dqk + i];
        top = fmax(top, score[t]);
    }
    for (int64_t t = 0; t < MOST; t++) {
        if (!sees(f, row, t)) continue;
        double weight = exp(score[t] - top);
        total += weight;
        for (int64_t i = 0; i < f->dv; i++)
            sum[i] += weight * v->stored[((sequence * MOST + t) * f->key_heads + g) * f->dv + i];
    }
    for (int64_t i = 0; i < f->dv; i++) {
        double error = fabs((double)o[i] - sum[i] / total);
        worst = fmax(worst, isnan(error) ? INFINITY : error);
    }
    return worst;
}

/* o [rows, heads, dv] of rows from `first` on by the kernels. */
static float *attend(const form *f, const cache *k, const cache *v, float *q, int64_t first,
                     int64_t rows, int threads) {
    enum { OUT = WEFT_CACHE_ATTENTION_INPUTS };
    weft_tensor tensors[OUT + 1] = {0};
    weft_exec x = {.pool = {threads}, .tensors = tensors};
    int32_t table[SEQUENCES * TABLE];
    for (int32_t i = 0; i < SEQUENCES * TABLE; i++)
        table[i] = page_of(i / TABLE, i % TABLE * WEFT_PAGE_TOKENS);
    float *o = room((size_t)(rows * f->heads * f->dv) * sizeof *o);
    weft_cache_attention_attr attr = {.key = k->part,
                                      .value = v->part,
                                      .heads = f->heads,
                                      .context = f->context,
                                      .scale_value = scale_of(f)};
    weft_node n = {.attr = &attr, .n_in = OUT, .n_out = 1};
    weft_tensor *in[OUT] = {0}, *out[1] = {tensors + OUT};
    static const int given[] = {WEFT_CACHE_POSITION, WEFT_CACHE_SLOT,  WEFT_CACHE_TABLE,
                                WEFT_CACHE_X,        WEFT_CACHE_PAGES, WEFT_CACHE_VALUES};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        in[given[i]] = tensors + given[i];
    n.in = in;
    n.out = out;
    x.data[WEFT_CACHE_POSITION] = (void *)(uintptr_t)(positions + first);
    x.data[WEFT_CACHE_SLOT] = (void *)(uintptr_t)(sequences + first);
    x.data[WEFT_CACHE_TABLE] = table;
    x.data[WEFT_CACHE_X] = q + first * f->heads * f->dqk;
    x.data[WEFT_CACHE_PAGES] = k->pages;
    x.data[WEFT_CACHE_VALUES] = v->pages;
    x.data[OUT] = o;
    tensors[WEFT_CACHE_SLOT] = (weft_tensor){.ndim = 1, .shape = {rows}};
    tensors[WEFT_CACHE_TABLE] = (weft_tensor){.ndim = 2, .shape = {SEQUENCES, TABLE}};
    tensors[WEFT_CACHE_X] = (weft_tensor){.ndim = 3, .shape = {rows, f->heads, f->dqk}};
    tensors[WEFT_CACHE_X].dtype = tensors[OUT].dtype = WEFT_F32;
    int64_t bytes = KERNEL(cache_attention).workspace(&n, threads);
    x.workspace = room((size_t)bytes);
    memset(x.workspace, 0xff, (size_t)bytes);
    KERNEL(cache_attention).run(&x, &n);
    free(x.workspace);
    return o;
}

static int check_attention(const form *f, weft_dtype dtype, double tolerance) {
    cache k = new_cache(f, f->dqk, dtype), v = new_cache(f, f->dv, dtype);
    float *q = room((size_t)(ROWS * f->heads * f->dqk) * sizeof *q);
    /* Some keys are like the query: there the weights differ by many powers of two. */
    for (int64_t i = 0; i < ROWS * f->heads * f->dqk; i++) {
        int64_t row = i / f->dqk / f->heads, g = i / f->dqk % f->heads / (f->heads / f->key_heads);
        int64_t t = positions[row] - positions[row] % 5;
        q[i] =
            (float)
                k.stored[((sequences[row] * MOST + t) * f->key_heads + g) * f->dqk + i % f->dqk] +
            0.25f * (1 + noise());
    }
    float *o = attend(f, &k, &v, q, 0, ROWS, 3);
    double worst = 0;
    bool same = true;
    for (int64_t i = 0; i < ROWS * f->heads; i++)
        worst = fmax(worst, head_error(f, &k, &v, q + i * f->dqk, i / f->heads, i % f->heads,
                                       o + i * f->dv));
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t width = f->heads * f->dv;
        float *alone = attend(f, &k, &v, q, r, 1, 1);
        same &= memcmp(o + r * width, alone, (size_t)width * sizeof *o) == 0;
        free(alone);
    }
    free(k.pages), free(k.stored), free(v.pages), free(v.stored), free(q), free(o);
    if (worst <= tolerance && same) return 0;
    printf("%lld heads to %lld, widths %lld and %lld, type %d, instructions %d and %d: off %g%s\n",
           (long long)f->heads, (long long)f->key_heads, (long long)f->dqk, (long long)f->dv,
           (int)dtype, (int)chosen.matrix, (int)chosen.dots, worst,
           same ? "" : ", a row has other bits alone");
    return 1;
}

int main(void) {
    static const int64_t sizes[][3] = {{1, 8, 64},   {1, 29, 130}, {2, 13, 64}, {3, 20, 200},
                                       {7, 37, 320}, {33, 9, 70},  {1, 300, 1}};
    static const form forms[] = {
        {2, 2, 64, 64, MOST},    {2, 2, 128, 32, 101}, {1, 1, 20, 12, MOST},
        {5, 1, 36, 20, 101},     {6, 2, 32, 32, 101},  {4, 1, 64, 64, 217},
        {12, 1, 128, 128, MOST}, {15, 1, 64, 96, 297}, {19, 1, 64, 32, 297}};
    static const struct {
        weft_dtype dtype;
        double tolerance; /* of the largest value, which is 1 */
    } types[] = {{WEFT_F32, 2e-6}, {WEFT_BF16, 2e-3}, {WEFT_I8, 3e-3}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        chosen = ways[i];
        if (!runs(&chosen)) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            wrong += check_product(sizes[s][0], sizes[s][1], sizes[s][2]);
            for (int how = 0; how < 8; how++)
                wrong += check_few(min_i64(sizes[s][0], GEMM_FEW_ROWS), sizes[s][1], sizes[s][2],
                                   how & 1, how & 2, how & 4);
        }
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
            for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++)
                wrong += check_attention(&forms[f], types[t].dtype, types[t].tolerance);
    }
    return wrong > 0;
}

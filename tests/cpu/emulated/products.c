/* Products by an instruction set that this machine may lack: a program of its own, for an emulator or
 * over emulated intrinsics (mk/emulated.mk compiles it, test_emulated.c runs it).
 *
 * Odd sizes, both layouts of each operand, f32 and bf16 and f32 that may be rounded, and what stands
 * beside a product: bias, addend, gelu, its slope, sums that go on. By every instruction for bf16 that
 * the set has. Results and workspace were poisoned before, what lies around them is not written, the bits
 * are equal for one and for three threads, and the numbers are those of sums in double. */
#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "serial_pool.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(WEFT_EMULATED_AVX512)
#include <immintrin.h>
emulated_tile emulated_tiles[EMULATED_TILES];
static const weft_matrix instructions[] = {WEFT_MATRIX_NONE, WEFT_MATRIX_AVX512_BF16,
                                           WEFT_MATRIX_AMX};
#elif WEFT_ARM_TARGETS
static const weft_matrix instructions[] = {WEFT_MATRIX_NONE, WEFT_MATRIX_BFMMLA};
#else
static const weft_matrix instructions[] = {WEFT_MATRIX_NONE};
#endif

static weft_matrix chosen;

weft_matrix weft_cpu_matrix(void) {
    return chosen;
}

/* What of the library these products do not reach. */
void KERNEL(few_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    (void)pool, (void)p, (void)workspace;
    abort();
}
int64_t KERNEL(few_rows_workspace)(const gemm_product *p) {
    (void)p;
    return 0;
}

enum { GAP = 3, GUARD = 64, GUARD_BYTE = 0x5a };

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

/* A matrix of numbers, with a gap behind each row. Without `rounds` they are numbers that bf16 has. */
static gemm_matrix make(int64_t rows, int64_t columns, bool bf16, bool rounds, uint32_t seed) {
    gemm_matrix x = {.ld = columns + GAP, .bf16 = bf16, .rounds = rounds};
    x.stride = rows * x.ld;
    x.data = malloc((size_t)(rows * x.ld) * sizeof(float));
    for (int64_t i = 0; x.data && i < rows * x.ld; i++) {
        float value = noise(&seed);
        if (bf16)
            ((uint16_t *)x.data)[i] = weft_float_to_bf16(value);
        else
            ((float *)x.data)[i] = rounds ? value : weft_bf16_to_float(weft_float_to_bf16(value));
    }
    return x;
}

static double at(gemm_matrix x, int64_t row, int64_t column) {
    int64_t i = row * x.ld + column;
    return x.bf16 ? (double)weft_bf16_to_float(((const uint16_t *)x.data)[i])
                  : (double)((const float *)x.data)[i];
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double root = sqrt(2 / acos(-1.0)), t = tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

/* What a product has beside it. */
typedef enum { ALONE, SUMS_GO_ON, FORWARD, BACKWARD, BESIDES } beside;

typedef enum { REALS, HALVES, ROUNDED, TYPES } operand_type;

typedef struct {
    int64_t m, n, k;
    bool ta, tb;
    operand_type type;
    beside beside;
    int threads; /* beside one; 0: 3 */
} trial;

static gemm_product make_product(const trial *t) {
    gemm_product p = {.batch = 1, .m = t->m, .n = t->n, .k = t->k, .ta = t->ta, .tb = t->tb};
    p.alpha = t->beside == ALONE ? 0.5f : 1;
    p.a = make(t->ta ? t->k : t->m, t->ta ? t->m : t->k, t->type == HALVES, t->type == ROUNDED, 1);
    p.b = make(t->tb ? t->n : t->k, t->tb ? t->k : t->n, t->type != REALS, false, 2);
    p.accumulate = t->beside == SUMS_GO_ON;
    if (t->beside < FORWARD) return p;
    bool bf16 = t->type == HALVES;
    p.addend = make(t->m, t->n, bf16, false, 5);
    p.pre = make(t->m, t->n, bf16, false, 6);
    p.gelu_back = t->beside == BACKWARD;
    p.gelu = t->beside == FORWARD;
    if (p.gelu) p.bias = make(1, t->n, bf16, false, 7);
    return p;
}

/* Whether the instructions for bf16 multiply it, a being rounded. */
static bool is_narrow(const trial *t) {
    return chosen != WEFT_MATRIX_NONE && t->type != REALS;
}

/* An operand as it is multiplied: `rows` times k numbers, the terms of a sum side by side. */
static double *widen(gemm_matrix x, int64_t rows, int64_t k, bool across, bool narrow) {
    double *to = malloc((size_t)(rows * k) * sizeof *to);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < k; d++) {
            double value = across ? at(x, d, i) : at(x, i, d);
            if (narrow) value = (double)weft_bf16_to_float(weft_float_to_bf16((float)value));
            to[i * k + d] = value;
        }
    return to;
}

/* Element (i, j) before gelu, and Σ |terms|. */
static double expect(const gemm_product *p, const double *a, const double *b, int64_t i, int64_t j,
                     double *size) {
    double sum = 0;
    *size = 1;
    for (int64_t d = 0; d < p->k; d++) {
        double term = a[i * p->k + d] * b[j * p->k + d];
        sum += term;
        *size += fabs(term);
    }
    return sum * (double)p->alpha + (p->bias.data ? at(p->bias, 0, j) : 0) +
           (p->addend.data ? at(p->addend, i, j) : 0);
}

/* An error as a part of its bound. */
static double measure(double got, double want, double size, bool bf16) {
    double error = fabs(got - want) / (2e-6 * size + (bf16 ? 0x1p-8 * fabs(want) : 0));
    return isnan(error) ? 2 : error;
}

static size_t matrix_bytes(const trial *t, gemm_matrix x) {
    return (size_t)(t->m * x.ld) * (x.bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Poisons the results, which sums that go on begin from. */
static void poison(const trial *t, gemm_matrix x) {
    for (int64_t i = 0; i < t->m && t->beside != SUMS_GO_ON; i++)
        memset(gemm_part(x, 0, i, 0).data, 0xff,
               (size_t)t->n * (x.bf16 ? sizeof(uint16_t) : sizeof(float)));
}

/* Runs it with so many threads; false: it wrote behind its workspace. A thread's share of too small a
 * workspace lies far behind it. */
static bool run(const gemm_product *p, int threads) {
    weft_pool pool = {threads};
    size_t bytes = (size_t)KERNEL(gemm_workspace)(p, threads), guard = 4 * bytes + GUARD;
    char *workspace = aligned_alloc(WEFT_ARENA_ALIGN,
                                    ((bytes + guard) / WEFT_ARENA_ALIGN + 1) * WEFT_ARENA_ALIGN);
    memset(workspace, 0xff, bytes);
    memset(workspace + bytes, GUARD_BYTE, guard);
    KERNEL(gemm)(&pool, p, workspace);
    bool inside = true;
    for (size_t i = 0; i < guard; i++)
        inside = inside && workspace[bytes + i] == GUARD_BYTE;
    free(workspace);
    return inside;
}

/* Whether what lies between the rows is as it was. */
static bool gaps_are_kept(const trial *t, gemm_matrix x, gemm_matrix before) {
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = t->n; j < x.ld; j++)
            if (at(x, i, j) != at(before, i, j)) return false;
    return true;
}

/* The largest error as a part of its bound, of c and of what gelu keeps. */
static double worst_error(const trial *t, const gemm_product *p, gemm_matrix before) {
    double worst = 0, size;
    double *a = widen(p->a, t->m, t->k, t->ta, is_narrow(t));
    double *b = widen(p->b, t->n, t->k, !t->tb, false);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            double want = expect(p, a, b, i, j, &size);
            if (t->beside == SUMS_GO_ON) want += at(before, i, j);
            if (p->gelu) {
                worst = fmax(worst, measure(at(p->pre, i, j), want, size, p->pre.bf16));
                want = gelu(want);
            }
            if (p->gelu_back) want *= gelu_slope(at(p->pre, i, j));
            worst = fmax(worst, measure(at(p->c, i, j), want, size, p->c.bf16));
        }
    free(a), free(b);
    return worst;
}

/* Whether the product taken tile by tile, from copied operands, has the same bits. */
static bool tiles_agree(const gemm_product *p) {
    weft_pool pool = {3};
    gemm_cut cut = KERNEL(gemm_tiles)(p);
    int64_t rows = KERNEL(gemm_copy_bytes)(p, false), columns = KERNEL(gemm_copy_bytes)(p, true);
    char *copies = aligned_alloc(WEFT_ARENA_ALIGN, (size_t)(rows + columns) + WEFT_ARENA_ALIGN);
    real *tile = malloc((size_t)(cut.tile_m * cut.tile_n) * sizeof *tile);
    bool agree = true;
    memset(copies, 0xff, (size_t)(rows + columns));
    KERNEL(gemm_copy)(&pool, p, false, copies);
    KERNEL(gemm_copy)(&pool, p, true, copies + rows);
    for (int64_t i = 0; i < cut.rows * cut.columns; i++) {
        gemm_place at = {.row = i / cut.columns * cut.tile_m,
                         .column = i % cut.columns * cut.tile_n};
        at.m = min_i64(cut.tile_m, p->m - at.row);
        at.n = min_i64(cut.tile_n, p->n - at.column);
        KERNEL(gemm_one_tile)(p, at, copies, copies + rows, tile, cut.tile_n);
        for (int64_t r = 0; r < at.m; r++)
            agree = agree &&
                    memcmp(tile + r * cut.tile_n, gemm_part(p->c, 0, at.row + r, at.column).data,
                           (size_t)at.n * sizeof *tile) == 0;
    }
    free(copies), free(tile);
    return agree;
}

/* What is wrong with a product, or NULL. */
static const char *check(const trial *t) {
    static char text[64];
    const char *wrong = NULL;
    gemm_product p = make_product(t);
    bool bf16 = t->type == HALVES && t->beside >= FORWARD;
    gemm_matrix before = make(t->m, t->n, bf16, false, 3), first = {0};
    int most = t->threads ? t->threads : 3;
    for (int threads = 1; threads <= most && !wrong; threads += most - 1) {
        p.c = make(t->m, t->n, bf16, false, 3);
        poison(t, p.c);
        if (p.gelu) poison(t, p.pre);
        if (!run(&p, threads)) wrong = "it wrote behind its workspace";
        if (!gaps_are_kept(t, p.c, before)) wrong = "it wrote between the rows";
        if (threads == 1) first = p.c;
    }
    if (!wrong && memcmp(first.data, p.c.data, matrix_bytes(t, p.c)) != 0)
        wrong = "the bits depend on the threads";
    if (!wrong && t->beside == ALONE && !tiles_agree(&p)) wrong = "its tiles have other bits";
    double worst = wrong ? 0 : worst_error(t, &p, before);
    if (worst > 1) {
        snprintf(text, sizeof text, "%.2f of the bound", worst);
        wrong = text;
    }
    if (first.data != p.c.data) free(first.data);
    free(p.a.data), free(p.b.data), free(p.c.data), free(before.data);
    free(p.addend.data), free(p.pre.data), free(p.bias.data);
    return wrong;
}

/* 1 where something was wrong, which is printed. */
static int report(const trial *t) {
    const char *wrong = check(t);
    if (!wrong) return 0;
    printf("%lld × %lld × %lld, ta %d, tb %d, operands %d, beside %d, instructions %d: %s\n",
           (long long)t->m, (long long)t->n, (long long)t->k, t->ta, t->tb, (int)t->type,
           (int)t->beside, (int)chosen, wrong);
    return 1;
}

/* Every layout and type of a size; what stands beside them takes turns, or `all` of it does. */
static int report_size(const int64_t size[3], int number, bool all) {
    int wrong = 0;
    for (int form = 0; form < 4 * TYPES; form++)
        for (int b = 0; b < BESIDES; b++) {
            trial t = {size[0], size[1], size[2], form & 1, form & 2, 0, (beside)b, 0};
            t.type = (operand_type)(form / 4);
            if (all || (number + form + form / 4) % BESIDES == b) wrong += report(&t);
        }
    return wrong;
}

int main(int argc, char **argv) {
    static const int64_t sizes[][3] = {{33, 1, 1},    {40, 24, 16},  {33, 35, 37}, {97, 65, 130},
                                       {64, 96, 520}, {200, 50, 70}, {66, 70, 64}, {34, 7, 2100}};
    /* more of b than is copied at a time: in several parts of the terms, or of the columns */
    static const trial large[] = {{33, 2050, 1030, false, true, REALS, ALONE, 0},
                                  {33, 2050, 1030, false, false, HALVES, FORWARD, 0}};
    /* and of the terms the last part takes more scratch than the first one, for each of many threads */
    static const trial rest = {33, 768, 4100, false, false, HALVES, SUMS_GO_ON, 24};
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    int wrong = 0;
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++) {
        chosen = instructions[i];
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            wrong += report_size(sizes[s], (int)(s + i), all);
        wrong += report(&large[chosen != WEFT_MATRIX_NONE]);
        if (chosen != WEFT_MATRIX_NONE) wrong += report(&rest);
    }
    return wrong > 0;
}

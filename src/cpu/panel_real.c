/* Panels of reals: one product for every type of operand, since bf16 is widened as it is copied. The
 * block of results fills the registers: 12 × 8 on NEON, 6 × 64 on AVX-512, 4 × 24 on AVX2, and 4 × 3
 * vectors elsewhere; of doubles half as many columns. */
#include "cpu/panel_form.h"
#include "cpu/vec.h"

#if defined(__aarch64__) && WEFT_REAL == 32
#define ASSEMBLY 1
#else
#define ASSEMBLY 0
#endif

enum {
#if defined(__AVX512F__)
    ROWS = 6, /* 24 registers of sums, 4 for b, the numbers of a one at a time: the fewest loads */
    WIDE = 4, /* vectors of a row */
    BAND = 192,  /* rows that a task holds */
    DEPTH = 128, /* a panel of b takes 32 of the 48 KiB of the first cache */
    STEPS = 2,   /* terms of a round of the loop */
    COPY = 20,
    READ = 8,
    SHARE_ROWS = 0,
#elif !ASSEMBLY
    ROWS = 4, /* 12 of 16 registers, and 3 for b */
    WIDE = 3,
    BAND = 96,
    DEPTH = 256,
    STEPS = 4,
    COPY = 12,
    READ = 4,
    SHARE_ROWS = 0,
#else
    ROWS = 12, /* 24 registers of sums, 5 for the operands */
    WIDE = 2,
    BAND = 96,
    DEPTH = 512,
    COPY = 12,
    READ = 4,
    SHARE_ROWS = 384, /* their terms of one block fill three quarters of the second cache */
#endif
    COLUMNS = WIDE * VBYTES / (int)sizeof(real), /* a panel of b fits the first cache */
    LINE = 16,                                   /* terms that are read at a time: a cache line */
    TERMS = 4 /* terms that are copied at a time where vectors lie side by side */
};

/* Four numbers from element i. */
static ALWAYS_INLINE quad load_four(const void *data, int64_t i, const bool bf16) {
    if (!bf16) return load_quad((const real *)data + i);
    quad v = {0};
    uint16_t half[4];
    memcpy(half, (const uint16_t *)data + i, sizeof half);
    for (int j = 0; j < 4; j++)
        v[j] = weft_bf16_to_float(half[j]);
    return v;
}

static ALWAYS_INLINE real load_one(const void *data, int64_t i, const bool bf16) {
    return bf16 ? weft_bf16_to_float(((const uint16_t *)data)[i]) : ((const real *)data)[i];
}

/* A panel of `count` ≤ width vectors that lie one after the other, k terms each. */
static ALWAYS_INLINE void pack_along(gemm_matrix x, int64_t count, int64_t k, real *to,
                                     const int64_t width, const bool bf16) {
    int64_t d = 0;
    if (count == width && width % 4 == 0)
        for (; d + LINE <= k; d += LINE)
            for (int64_t i = 0; i < width; i += 4)
                for (int64_t e = d; e < d + LINE; e += 4) {
                    int64_t at = i * x.ld + e;
                    transpose_quads(load_four(x.data, at, bf16), load_four(x.data, at + x.ld, bf16),
                                    load_four(x.data, at + 2 * x.ld, bf16),
                                    load_four(x.data, at + 3 * x.ld, bf16), to + e * width + i,
                                    width);
                }
    for (; d < k; d++)
        for (int64_t i = 0; i < width; i++)
            to[d * width + i] = i < count ? load_one(x.data, i * x.ld + d, bf16) : 0;
}

static ALWAYS_INLINE void pack(gemm_matrix x, bool across, int64_t count, int64_t k, real *to,
                               const int64_t width, const bool bf16) {
    if (across) {
        /* Panels of `count` vectors that lie side by side, term by term. Some terms at a time: a
         * panel is written by lines, and what is read for one panel is near what the next one
         * reads. */
        int64_t whole = count / width * width, padded = ceil_div(count, width) * width;
        const int64_t size = bf16 ? sizeof(uint16_t) : sizeof(real);
        for (int64_t first = 0; first < k; first += TERMS) {
            int64_t end = min_i64(first + TERMS, k);
            for (int64_t d = first; d < end; d++)
                for (int64_t s = 0; s < count; s += LINE)
                    __builtin_prefetch((const char *)x.data + ((d + TERMS) * x.ld + s) * size);
            for (int64_t s = 0; s < whole; s += width)
                for (int64_t d = first; d < end; d++)
                    for (int64_t i = 0; i < width; i += 4)
                        if (i + 4 <= width)
                            store_quad(to + s * k + d * width + i,
                                       load_four(x.data, d * x.ld + s + i, bf16));
                        else
                            for (int64_t j = i; j < width; j++)
                                to[s * k + d * width + j] =
                                    load_one(x.data, d * x.ld + s + j, bf16);
            for (int64_t d = first; d < end; d++)
                for (int64_t i = whole; i < padded; i++)
                    to[whole * k + d * width + i - whole] =
                        i < count ? load_one(x.data, d * x.ld + i, bf16) : 0;
        }
        return;
    }
    for (int64_t s = 0; s < count; s += width)
        pack_along(gemm_part(x, 0, s, 0), min_i64(width, count - s), k, to + s * k, width, bf16);
}

static void pack_rows(gemm_matrix x, bool across, int64_t count, int64_t k, void *to) {
    EITHER(x.bf16, pack, x, across, count, k, to, ROWS);
}

static void pack_columns(gemm_matrix x, bool across, int64_t count, int64_t k, void *to) {
    EITHER(x.bf16, pack, x, across, count, k, to, COLUMNS);
}

#if ASSEMBLY

/* In assembly: a compiler's loop runs at nine tenths of the multiply-adds' rate, this one at nineteen
 * twentieths. The operands of a term are read while the term before is multiplied, which takes all
 * registers: sums in v8 to v31, two for a row; a's numbers in v0 or v7, v1 and v2; b's in v3 and v4 or
 * v5 and v6, alternating. */
/* clang-format off */
#define ADD_ROW(low, high, b0, b1, a, lane)                                                        \
    "fmla v" #low ".4s, v" #b0 ".4s, v" #a ".s[" #lane "]\n"                                       \
    "fmla v" #high ".4s, v" #b1 ".4s, v" #a ".s[" #lane "]\n"
#define ADD_FOUR(b0, b1, a, r0, r1, r2, r3, r4, r5, r6, r7)                                        \
    ADD_ROW(r0, r1, b0, b1, a, 0) ADD_ROW(r2, r3, b0, b1, a, 1)                                    \
    ADD_ROW(r4, r5, b0, b1, a, 2) ADD_ROW(r6, r7, b0, b1, a, 3)

/* A term, whose last four rows' numbers are `at` bytes from this pair of terms on; and how the next term's
 * operands are read meanwhile. */
#define TERM(b0, b1, a, at, next_b, next_a)                                                        \
    "ldr q2, [%[a], #" #at "]\n" ADD_FOUR(b0, b1, a, 8, 9, 10, 11, 12, 13, 14, 15)                 \
    next_b ADD_FOUR(b0, b1, 1, 16, 17, 18, 19, 20, 21, 22, 23)                                     \
    next_a ADD_FOUR(b0, b1, 2, 24, 25, 26, 27, 28, 29, 30, 31)
#define EVEN_TERM TERM(3, 4, 0, 32, "ldp q5, q6, [%[b], #32]\n", "ldp q7, q1, [%[a], #48]\n")
#define ODD_TERM TERM(5, 6, 7, 80, "ldp q3, q4, [%[b], #64]\n", "ldp q0, q1, [%[a], #96]\n")
#define LAST_EVEN_TERM TERM(3, 4, 0, 32, "", "")
#define LAST_ODD_TERM TERM(5, 6, 7, 80, "", "")

#define SET_ROW(low, high)                                                                         \
    "fmul v" #low ".4s, v" #low ".4s, v0.4s\n"                                                     \
    "fmul v" #high ".4s, v" #high ".4s, v0.4s\n"                                                   \
    "stp q" #low ", q" #high ", [%[c]]\n"                                                          \
    "add %[c], %[c], %[stride]\n"
#define SUM_ROW(low, high)                                                                         \
    "ldp q1, q2, [%[c]]\n"                                                                         \
    "fmla v1.4s, v" #low ".4s, v0.4s\n"                                                            \
    "fmla v2.4s, v" #high ".4s, v0.4s\n"                                                           \
    "stp q1, q2, [%[c]]\n"                                                                         \
    "add %[c], %[c], %[stride]\n"

/* c [ROWS, COLUMNS] = alpha · a b, or += where `add`, for a panel of each and k ≥ 1 terms. */
static void multiply_panels(int64_t k, const void *a_panel, const void *b_panel, real alpha,
                            bool add, real *c, int64_t ldc) {
    const real *a = a_panel, *b = b_panel;
    int64_t pairs = (k - 1) / 2, odd = (k - 1) % 2, sums = add;
    for (int64_t i = 0; i < ROWS; i++)
        __builtin_prefetch(c + i * ldc, 1);
    __asm__ volatile(
        NEON_SUMS(NEON_ZERO)
        "ldp q3, q4, [%[b]]\n"
        "ldp q0, q1, [%[a]]\n"
        "cbz %[pairs], 2f\n"
        "1:\n" EVEN_TERM "subs %[pairs], %[pairs], #1\n" ODD_TERM
        "add %[a], %[a], #96\n"
        "add %[b], %[b], #64\n"
        "b.ne 1b\n"
        "2:\n"
        "cbz %[odd], 3f\n" EVEN_TERM LAST_ODD_TERM "b 4f\n"
        "3:\n" LAST_EVEN_TERM "4:\n"
        "ld1r {v0.4s}, [%[alpha]]\n"
        "cbnz %[sums], 5f\n" NEON_SUMS(SET_ROW) "b 6f\n"
        "5:\n" NEON_SUMS(SUM_ROW) "6:\n"
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [pairs] "+r"(pairs)
        : [odd] "r"(odd), [sums] "r"(sums), [alpha] "r"(&alpha),
          [stride] "r"(ldc * (int64_t)sizeof(real))
        : NEON_REGISTERS);
}
/* clang-format on */

#else

/* One term of all sums; a's numbers `step` apart. */
static ALWAYS_INLINE void add_term(const real *a, int64_t step, const real *b,
                                   vreal sum[ROWS][WIDE]) {
    vreal column[WIDE];
    UNROLLED(j, WIDE)
        column[j] = vload(b + j * VLEN);
    UNROLLED(i, ROWS) {
        vreal row = vset(a[i * step]);
        UNROLLED(j, WIDE)
            sum[i][j] = vfma(row, column[j], sum[i][j]);
    }
}

/* Asks for the next LINE terms of the rows of a where they lie as they are, for these terms of the rows
 * of the next block, and for a row of c that will be written. Some at a time: all of c's lines at once
 * would keep b's waiting. */
static ALWAYS_INLINE void fetch_ahead(const real *a, int64_t row_step, bool in_place, real *c,
                                      int64_t ldc, int64_t line) {
    if (in_place)
        UNROLLED(i, ROWS) {
            __builtin_prefetch(a + i * row_step + LINE);
            __builtin_prefetch(a + (ROWS + i) * row_step, 0, 2);
        }
    if (line >= ROWS) return;
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j += LINE)
        __builtin_prefetch(c + line * ldc + j, 1);
}

/* The numbers of a: `row_step` from row to row, `term_step` from term to term. */
static ALWAYS_INLINE void multiply_block(int64_t k, const real *a, const int64_t row_step,
                                         const int64_t term_step, const real *b, real alpha,
                                         bool add, real *c, int64_t ldc) {
    vreal sum[ROWS][WIDE];
    UNROLLED(i, ROWS)
        UNROLLED(j, WIDE)
            sum[i][j] = vset(0);
    for (int64_t line = 0; line < k / LINE; line++) {
        fetch_ahead(a, row_step, term_step == 1, c, ldc, line);
        for (int64_t u = 0; u < LINE; u += STEPS, a += STEPS * term_step, b += STEPS * COLUMNS)
            UNROLLED(v, STEPS)
                add_term(a + v * term_step, row_step, b + v * COLUMNS, sum);
    }
    for (int64_t rest = k % LINE; rest > 0; rest--, a += term_step, b += COLUMNS)
        add_term(a, row_step, b, sum);
    vreal factor = vset(alpha);
    UNROLLED(i, ROWS)
        UNROLLED(j, WIDE) {
            real *to = c + i * ldc + j * VLEN;
            vstore(to, add ? vload(to) + sum[i][j] * factor : sum[i][j] * factor);
        }
}

static void multiply_panels(int64_t k, const void *a, const void *b, real alpha, bool add, real *c,
                            int64_t ldc) {
    multiply_block(k, a, 1, ROWS, b, alpha, add, c, ldc);
}

static void multiply_rows(int64_t k, const real *a, int64_t lda, const void *b, real alpha,
                          bool add, real *c, int64_t ldc) {
    multiply_block(k, a, lda, 1, b, alpha, add, c, ldc);
}

#endif

const panel_form KERNEL(panel_real) = {
    .rows = ROWS,
    .columns = COLUMNS,
    .band = BAND / ROWS,
    .depth = DEPTH,
    .terms = 1,
    .size = sizeof(real),
    .copy = COPY,
    .read = READ,
    .share_rows = SHARE_ROWS,
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .multiply = multiply_panels,
#if !ASSEMBLY
    .multiply_rows = multiply_rows,
#endif
};

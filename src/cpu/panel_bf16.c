/* Panels of bf16 numbers, for the instructions that multiply them and sum in float: Arm's BFMMLA, and
 * of x86-64 AMX's tiles and AVX-512's dot products of pairs. The numbers are copied as they are; what
 * differs is how many terms of a row lie side by side (panel_form.h).
 *
 * The sums are floats in a fixed order. They are not the bits of a chain of fused multiply-adds: the
 * instructions add the products of a group of terms before they add to the sum, and some flush
 * denormal numbers to zero. */
#include "cpu/matrix.h"
#include "cpu/panel_form.h"
#include "cpu/transpose.h"
#include "cpu/vec.h"

#if WEFT_REAL == 32 && (WEFT_ARM_TARGETS || defined(__AVX512F__))

enum {
#if defined(__aarch64__)
    DEPTH = 1024, /* terms that are summed in registers */
#else
    DEPTH = 512,
#endif
    GROUP_MAX = 32, /* terms side by side */
    WIDTH_MAX = 32, /* rows or columns of a panel */
    PAIR_LINE = 32  /* numbers of a cache line */
};

typedef uint16_t half4 __attribute__((vector_size(8)));
typedef uint16_t half8 __attribute__((vector_size(16)));
typedef uint32_t pair4 __attribute__((vector_size(16)));
typedef uint64_t four2 __attribute__((vector_size(16)));

static ALWAYS_INLINE half4 load4(const uint16_t *from) {
    half4 v;
    memcpy(&v, from, sizeof v);
    return v;
}

static ALWAYS_INLINE half8 load8(const uint16_t *from) {
    half8 v;
    memcpy(&v, from, sizeof v);
    return v;
}

static ALWAYS_INLINE void store8(uint16_t *to, half8 v) {
    memcpy(to, &v, sizeof v);
}

/* a0 b0 a1 b1 a2 b2 a3 b3 */
static ALWAYS_INLINE half8 zip4(half4 a, half4 b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5, 2, 6, 3, 7);
}

static ALWAYS_INLINE pair4 low_pairs(half8 a, half8 b) {
    return __builtin_shufflevector((pair4)a, (pair4)b, 0, 4, 1, 5);
}

static ALWAYS_INLINE pair4 high_pairs(half8 a, half8 b) {
    return __builtin_shufflevector((pair4)a, (pair4)b, 2, 6, 3, 7);
}

/* Eight terms of eight vectors: vector i's go to to[i * step]. */
static ALWAYS_INLINE void transpose_eights(const uint16_t *from, int64_t ld, uint16_t *to,
                                           int64_t step) {
    half8 pairs[8];
    for (int r = 0; r < 8; r += 2) {
        half8 a = load8(from + r * ld), b = load8(from + (r + 1) * ld);
        pairs[r] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        pairs[r + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int half = 0; half < 2; half++) {
        pair4 low01 = low_pairs(pairs[half], pairs[2 + half]);
        pair4 low23 = high_pairs(pairs[half], pairs[2 + half]);
        pair4 high01 = low_pairs(pairs[4 + half], pairs[6 + half]);
        pair4 high23 = high_pairs(pairs[4 + half], pairs[6 + half]);
        uint16_t *out = to + 4 * half * step;
        store8(out, (half8)__builtin_shufflevector(low01, high01, 0, 1, 4, 5));
        store8(out + step, (half8)__builtin_shufflevector(low01, high01, 2, 3, 6, 7));
        store8(out + 2 * step, (half8)__builtin_shufflevector(low23, high23, 0, 1, 4, 5));
        store8(out + 3 * step, (half8)__builtin_shufflevector(low23, high23, 2, 3, 6, 7));
    }
}

/* A group of terms of `width` vectors side by side, all there. */
static ALWAYS_INLINE void transpose_group(const uint16_t *from, int64_t ld, uint16_t *to,
                                          const int64_t width, const int64_t group) {
    if (group == 2)
        for (int64_t i = 0; i < width; i += 4)
            store8(to + i * 2, zip4(load4(from + i), load4(from + i + ld)));
    else if (group == 4)
        for (int64_t i = 0; i < width; i += 4) {
            half8 low = zip4(load4(from + i), load4(from + i + ld));
            half8 high = zip4(load4(from + i + 2 * ld), load4(from + i + 3 * ld));
            store8(to + i * 4, (half8)low_pairs(low, high));
            store8(to + i * 4 + 8, (half8)high_pairs(low, high));
        }
    else
        for (int64_t i = 0; i < width; i += 8)
            for (int64_t g = 0; g < group; g += 8)
                transpose_eights(from + g * ld + i, ld, to + i * group + g, group);
}

/* Numbers of a matrix from element `at` on as bf16, zeros behind the first n. */
static ALWAYS_INLINE void take_numbers(gemm_matrix x, int64_t at, int64_t n, int64_t padded,
                                       uint16_t *to) {
    if (x.bf16)
        memcpy(to, (const uint16_t *)x.data + at, (size_t)n * sizeof *to);
    else
        round_bf16(to, (const real *)x.data + at, n);
    memset(to + n, 0, (size_t)(padded - n) * sizeof *to);
}

/* Vectors side by side. All panels of a few terms, then the next terms: what one panel reads lies near
 * what the next one does. Where some are missing or must be rounded, a copy is transposed. */
static ALWAYS_INLINE void pack_across(gemm_matrix x, int64_t count, int64_t k, uint16_t *to,
                                      const int64_t width, const int64_t group, int64_t padded) {
    for (int64_t d = 0; d < padded; d += group)
        for (int64_t i = 0; i < count; i += width) {
            uint16_t *panel = to + i * padded + d * width;
            if (x.bf16 && d + group <= k && i + width <= count) {
                transpose_group((const uint16_t *)x.data + d * x.ld + i, x.ld, panel, width, group);
                continue;
            }
            uint16_t copy[GROUP_MAX * WIDTH_MAX];
            for (int64_t g = 0; g < group; g++) {
                bool there = d + g < k;
                take_numbers(x, there ? (d + g) * x.ld + i : 0,
                             there ? min_i64(width, count - i) : 0, width, copy + g * width);
            }
            transpose_group(copy, width, panel, width, group);
        }
}

/* A panel of pairs, all there. Copied pair by pair, each would go to a cache line of its own. */
static ALWAYS_INLINE void pack_pairs_along(gemm_matrix x, int64_t k, uint16_t *to,
                                           const int64_t width) {
#if defined(__AVX512F__)
    if (width % 16 == 0 && k % PAIR_LINE == 0) { /* a cache line of each vector */
        for (int64_t d = 0; d < k; d += PAIR_LINE)
            for (int64_t i = 0; i < width; i += 16)
                for (int64_t e = d; e < d + PAIR_LINE; e += 8)
                    transpose_lanes((const char *)((const uint16_t *)x.data + i * x.ld + e),
                                    x.ld * (int64_t)sizeof *to, (char *)(to + e * width + 2 * i),
                                    2 * width * (int64_t)sizeof *to);
        return;
    }
#endif
    for (int64_t d = 0; d < k; d += 8)
        for (int64_t i = 0; i < width; i += 4) { /* four pairs of four vectors, as if reals */
            const uint16_t *from = (const uint16_t *)x.data + i * x.ld + d;
            transpose_quads(load_quad(from), load_quad(from + x.ld), load_quad(from + 2 * x.ld),
                            load_quad(from + 3 * x.ld), (real *)(void *)(to + d * width + 2 * i),
                            width);
        }
}

/* A panel of `count` ≤ width vectors that lie one behind the other: groups are copied whole, from a
 * copy of the vector where it must be rounded or filled up. */
static ALWAYS_INLINE void pack_along(gemm_matrix x, int64_t count, int64_t k, uint16_t *to,
                                     const int64_t width, const int64_t group, int64_t padded) {
    bool whole = x.bf16 && count == width && k == padded && k % 8 == 0;
    if (group == 2 && whole) {
        pack_pairs_along(x, k, to, width);
        return;
    }
    if (group == 4 && whole) {
        /* A panel of fours, all there: two vectors and two fours of each at a time. */
        for (int64_t d = 0; d < k; d += 8)
            for (int64_t i = 0; i < width; i += 2) {
                const uint16_t *from = (const uint16_t *)x.data + i * x.ld + d;
                four2 a = (four2)load8(from), b = (four2)load8(from + x.ld);
                uint16_t *fours = to + d * width + 4 * i;
                store8(fours, (half8)__builtin_shufflevector(a, b, 0, 2));
                store8(fours + 4 * width, (half8)__builtin_shufflevector(a, b, 1, 3));
            }
        return;
    }
    for (int64_t i = 0; i < width; i++) {
        uint16_t copy[DEPTH];
        const uint16_t *row = (const uint16_t *)x.data + i * x.ld;
        if (!x.bf16 || i >= count || k < padded) {
            take_numbers(x, i < count ? i * x.ld : 0, i < count ? k : 0, padded, copy);
            row = copy;
        }
        for (int64_t d = 0; d < padded; d += group)
            memcpy(to + d * width + i * group, row + d, (size_t)group * sizeof *to);
    }
}

/* Panels of `width` vectors with `group` terms side by side, for k padded to a multiple of `terms`. */
static ALWAYS_INLINE void pack(gemm_matrix x, bool across, int64_t count, int64_t k, void *to,
                               const int64_t width, const int64_t group, const int64_t terms) {
    int64_t padded = ceil_div(k, terms) * terms;
    if (across) {
        pack_across(x, count, k, to, width, group, padded);
        return;
    }
    for (int64_t s = 0; s < count; s += width)
        pack_along(gemm_part(x, 0, s, 0), min_i64(width, count - s), k, (uint16_t *)to + s * padded,
                   width, group, padded);
}

/* A form's own. */
#define DEFINE_PACK(name, width, group, terms)                                                     \
    static void name(gemm_matrix x, bool across, int64_t count, int64_t k, void *to) {             \
        pack(x, across, count, k, to, width, group, terms);                                        \
    }

#if defined(__aarch64__)

enum { ROWS = 8, COLUMNS = 12, GROUP = 4 };
DEFINE_PACK(pack_rows, ROWS, GROUP, GROUP)
DEFINE_PACK(pack_columns, COLUMNS, GROUP, GROUP)

/* Registers of 2 × 2 results: the instruction multiplies two rows of four terms by two columns. In
 * assembly, for the order: a compiler reads more ahead than there are registers, or too late. The sums of
 * row pair i and column pair j are in v(8 + 4j + i), rows in v0 to v3, columns in v4 to v7. */
/* clang-format off */
#define ADD_PAIR(sum, row, column) "bfmmla v" #sum ".4s, v" #row ".8h, v" #column ".8h\n"
#define ADD_COLUMNS(s0, s1, s2, s3, row)                                                           \
    ADD_PAIR(s0, row, 4) ADD_PAIR(s1, row, 5) ADD_PAIR(s2, row, 6) ADD_PAIR(s3, row, 7)
#define ADD_LAST(s0, s1, row) ADD_PAIR(s0, row, 4) ADD_PAIR(s1, row, 5)
#define ADD_GROUP(n)                                                                               \
    "ldp q4, q5, [%[b], #96*" #n "]\n"                                                             \
    "ldp q0, q1, [%[a], #64*" #n "]\n"                                                             \
    "ldp q6, q7, [%[b], #96*" #n "+32]\n" ADD_COLUMNS(8, 12, 16, 20, 0) ADD_COLUMNS(9, 13, 17, 21, 1) \
    "ldp q2, q3, [%[a], #64*" #n "+32]\n" ADD_COLUMNS(10, 14, 18, 22, 2) ADD_COLUMNS(11, 15, 19, 23, 3) \
    "ldp q4, q5, [%[b], #96*" #n "+64]\n"                                                          \
    ADD_LAST(24, 28, 0) ADD_LAST(25, 29, 1) ADD_LAST(26, 30, 2) ADD_LAST(27, 31, 3)

/* Four columns of two rows: their halves put together, scaled by v7, and set or added. */
#define JOIN_FOUR(s0, s1)                                                                          \
    "zip1 v0.2d, v" #s0 ".2d, v" #s1 ".2d\n"                                                       \
    "zip2 v1.2d, v" #s0 ".2d, v" #s1 ".2d\n"
#define SET_FOUR(s0, s1, at) JOIN_FOUR(s0, s1)                                                     \
    "fmul v0.4s, v0.4s, v7.4s\n"                                                                   \
    "fmul v1.4s, v1.4s, v7.4s\n"                                                                   \
    "str q0, [%[c], #" #at "]\n"                                                                   \
    "str q1, [%[next], #" #at "]\n"
#define SUM_FOUR(s0, s1, at) JOIN_FOUR(s0, s1)                                                     \
    "ldr q2, [%[c], #" #at "]\n"                                                                   \
    "ldr q3, [%[next], #" #at "]\n"                                                                \
    "fmla v2.4s, v0.4s, v7.4s\n"                                                                   \
    "fmla v3.4s, v1.4s, v7.4s\n"                                                                   \
    "str q2, [%[c], #" #at "]\n"                                                                   \
    "str q3, [%[next], #" #at "]\n"
#define NEXT_ROWS                                                                                  \
    "add %[c], %[c], %[stride], lsl #1\n"                                                          \
    "add %[next], %[next], %[stride], lsl #1\n"
#define EACH_ROW_PAIR(four)                                                                        \
    four(8, 12, 0) four(16, 20, 16) four(24, 28, 32) NEXT_ROWS                                     \
    four(9, 13, 0) four(17, 21, 16) four(25, 29, 32) NEXT_ROWS                                     \
    four(10, 14, 0) four(18, 22, 16) four(26, 30, 32) NEXT_ROWS                                    \
    four(11, 15, 0) four(19, 23, 16) four(27, 31, 32)

BF16_ARM static void multiply_bfmmla(int64_t k, const void *a, const void *b, real alpha, bool add,
                                     real *c, int64_t ldc) {
    int64_t rounds = k / (4 * GROUP), rest = k / GROUP % 4, sums = add;
    real *next = c + ldc;
    __asm__ volatile(
        NEON_SUMS(NEON_ZERO)
        "cbz %[rounds], 2f\n"
        "1:\n" ADD_GROUP(0) ADD_GROUP(1) ADD_GROUP(2)
        "subs %[rounds], %[rounds], #1\n" ADD_GROUP(3)
        "add %[a], %[a], #256\n"
        "add %[b], %[b], #384\n"
        "b.ne 1b\n"
        "2:\n"
        "cbz %[rest], 4f\n"
        "3:\n" ADD_GROUP(0) "subs %[rest], %[rest], #1\n"
        "add %[a], %[a], #64\n"
        "add %[b], %[b], #96\n"
        "b.ne 3b\n"
        "4:\n"
        "ld1r {v7.4s}, [%[alpha]]\n"
        "cbnz %[sums], 5f\n" EACH_ROW_PAIR(SET_FOUR) "b 6f\n"
        "5:\n" EACH_ROW_PAIR(SUM_FOUR) "6:\n"
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [next] "+r"(next), [rounds] "+r"(rounds),
          [rest] "+r"(rest)
        : [sums] "r"(sums), [alpha] "r"(&alpha), [stride] "r"(ldc * (int64_t)sizeof(real))
        : NEON_REGISTERS);
}
/* clang-format on */

static const panel_form bfmmla = {
    .rows = ROWS,
    .columns = COLUMNS,
    .band = 16,
    .chunk = 12 * COLUMNS,
    .depth = DEPTH,
    .terms = GROUP,
    .size = sizeof(uint16_t),
    .copy = 100,
    .read = 16,
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .multiply = multiply_bfmmla,
};

const panel_form *KERNEL(panel_bf16)(void) {
    return weft_cpu_matrix() == WEFT_MATRIX_BFMMLA ? &bfmmla : NULL;
}

#else /* AVX-512 */

#include "cpu/amx.h"

enum {
    ROWS = 12,
    COLUMNS = 32,
    PAIR = 2,
    TILE_TERMS = 32, /* terms that a tile of a holds */
    TILE_ROWS = 32,  /* of the block of results: two tiles by two */
    AHEAD = 2        /* steps of TILE_TERMS that panels are asked for ahead */
};
DEFINE_PACK(pack_rows, ROWS, PAIR, PAIR)
DEFINE_PACK(pack_columns, COLUMNS, PAIR, PAIR)
DEFINE_PACK(pack_tile_rows, TILE_ROWS, TILE_TERMS, TILE_TERMS)
DEFINE_PACK(pack_tile_columns, COLUMNS, PAIR, TILE_TERMS)

static ALWAYS_INLINE void store_sums(real *to, vreal sums, real alpha, bool add) {
    sums = sums * vset(alpha);
    vstore(to, add ? vload(to) + sums : sums);
}

/* As panel_real.c does it, a pair of terms in the place of a term. */
__attribute__((target("avx512bf16"))) static void multiply_pairs(int64_t k, const void *a_panel,
                                                                 const void *b_panel, real alpha,
                                                                 bool add, real *c, int64_t ldc) {
    const uint16_t *a = a_panel, *b = b_panel, *end = a + k * ROWS;
    __m512 sum[ROWS][2];
    UNROLLED(i, ROWS)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (; a < end; a += ROWS * PAIR, b += COLUMNS * PAIR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32);
        UNROLLED(i, ROWS) {
            int32_t pair;
            memcpy(&pair, a + PAIR * i, sizeof pair);
            __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, b1);
        }
    }
    UNROLLED(i, ROWS) {
        store_sums(c + i * ldc, (vreal)sum[i][0], alpha, add);
        store_sums(c + i * ldc + VLEN, (vreal)sum[i][1], alpha, add);
    }
}

static const panel_form pairs = {
    .rows = ROWS,
    .columns = COLUMNS,
    .band = 16,
    .chunk = 4 * COLUMNS,
    .depth = DEPTH,
    .terms = PAIR,
    .size = sizeof(uint16_t),
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .multiply = multiply_pairs,
};

#define AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))

/* Tiles 0 to 3 are results, 4 and 5 rows of a, 6 and 7 columns of b. Results from or to memory; `ld` numbers
 * from row to row. */
#define MOVE_RESULTS(move, c, ld)                                                                  \
    do {                                                                                           \
        const int bytes_ = (int)(ld)*4;                                                            \
        move(0, c, bytes_);                                                                        \
        move(1, (c) + TILE, bytes_);                                                               \
        move(2, (c) + TILE * (ld), bytes_);                                                        \
        move(3, (c) + TILE * (ld) + TILE, bytes_);                                                 \
    } while (0)

AMX_TARGET static ALWAYS_INLINE void zero_results(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* A quarter of what is read of both panels AHEAD steps later. Loads of tiles do not make the machine read
 * ahead by itself. */
static ALWAYS_INLINE void fetch_quarter(const char *a, const char *b, int quarter) {
    int64_t at = (AHEAD * TILE_ROWS + quarter * TILE_ROWS / 4) * TILE_STRIDE;
    UNROLLED(r, TILE_ROWS / 2)
        __builtin_prefetch((r < TILE_ROWS / 4 ? a : b) + at + r % (TILE_ROWS / 4) * TILE_STRIDE);
}

/* The loads before the products: the next step's then begin while this one's products run. */
AMX_TARGET static ALWAYS_INLINE void sum_tiles(int64_t k, const char *a, const char *b) {
    for (int64_t d = 0; d < k; d += TILE_TERMS) {
        _tile_loadd(6, b, 2 * TILE_STRIDE);
        _tile_loadd(7, b + TILE_STRIDE, 2 * TILE_STRIDE);
        _tile_loadd(4, a, TILE_STRIDE);
        _tile_loadd(5, a + TILE * TILE_STRIDE, TILE_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        fetch_quarter(a, b, 0);
        _tile_dpbf16ps(1, 4, 7);
        fetch_quarter(a, b, 1);
        _tile_dpbf16ps(2, 5, 6);
        fetch_quarter(a, b, 2);
        _tile_dpbf16ps(3, 5, 7);
        fetch_quarter(a, b, 3);
        a += TILE_ROWS * TILE_STRIDE;
        b += TILE * 2 * TILE_STRIDE;
    }
}

/* Sums go on from c itself where alpha is 1; else they are made apart and scaled. */
AMX_TARGET static void multiply_tiles(int64_t k, const void *a, const void *b, real alpha, bool add,
                                      real *c, int64_t ldc) {
    if (alpha == 1) {
        if (add)
            MOVE_RESULTS(_tile_loadd, c, ldc);
        else
            zero_results();
        sum_tiles(k, a, b);
        MOVE_RESULTS(_tile_stored, c, ldc);
        return;
    }
    real apart[TILE_ROWS * COLUMNS];
    zero_results();
    sum_tiles(k, a, b);
    MOVE_RESULTS(_tile_stored, apart, COLUMNS);
    for (int64_t i = 0; i < TILE_ROWS; i++)
        for (int64_t j = 0; j < COLUMNS; j += VLEN)
            store_sums(c + i * ldc + j, vload(apart + i * COLUMNS + j), alpha, add);
}

static const panel_form tiles = {
    .rows = TILE_ROWS,
    .columns = COLUMNS,
    .band = 8,
    .chunk = 4 * COLUMNS,
    .by_rows = true,
    .depth = DEPTH,
    .terms = TILE_TERMS,
    .size = sizeof(uint16_t),
    .pack_rows = pack_tile_rows,
    .pack_columns = pack_tile_columns,
    .multiply = multiply_tiles,
    .copy = 100,
    .read = 32,
    .begin = amx_begin,
    .end = amx_end,
};

const panel_form *KERNEL(panel_bf16)(void) {
    switch (weft_cpu_matrix()) {
    case WEFT_MATRIX_AMX:
        return &tiles;
    case WEFT_MATRIX_AVX512_BF16:
        return &pairs;
    default:
        return NULL;
    }
}

#endif

#else

const panel_form *KERNEL(panel_bf16)(void) {
    return NULL;
}

#endif

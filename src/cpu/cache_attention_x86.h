/* Attention over bf16 and i8 pages on x86-64 by the instructions that multiply narrow numbers; what
 * cache_attention_arm.h is on Arm, with the same sums where a query head has a key head of its own.
 *
 * bf16: AVX-512's dot products of pairs. Queries and weights are rounded to bf16, as keys and values are.
 * i8: sums of two products of 16 bits, exact in 32 (cache_attention_x86_pairs.h). Queries, and weights
 * times their values' scales, are rounded to 16 bits with one scale for each head; keys and values are
 * widened as they are read. Heads that share a key head go by AMX where the processor has it
 * (cache_attention_amx.h).
 *
 * Values of two keys are taken side by side, their columns interleaved: a vector of them has four columns
 * of every eight. So sums of 2 NARROW_STEP columns are two vectors, the first fours and the second ones. */
#pragma once

#include "cpu/bytes.h"
#include "cpu/cache_attention_task.h"
#include "cpu/transpose.h"

enum {
    NARROW_STEP = VBYTES / 4,
    I8_WIDEST = 512, /* so that a sum of 16 bits by 8 has room in 32 */
    I8_MOST = 127 * 256 + 127
};

typedef int16_t vshort __attribute__((vector_size(VBYTES)));

/* The instructions of this length by name. */
#if VBYTES == 64
#define WIDE(op) _mm512_##op
typedef __m512i wide;
typedef __m256i half_wide;
#else
#define WIDE(op) _mm256_##op
typedef __m256i wide;
typedef __m128i half_wide;
#endif

/* Numbers of a and b interleaved: of each eight of them the first four, and the second four. */
static ALWAYS_INLINE vshort zip_first(vshort a, vshort b) {
    return (vshort)WIDE(unpacklo_epi16)((wide)a, (wide)b);
}

static ALWAYS_INLINE vshort zip_second(vshort a, vshort b) {
    return (vshort)WIDE(unpackhi_epi16)((wide)a, (wide)b);
}

static ALWAYS_INLINE vshort widen_bytes(const int8_t *from) {
    half_wide bytes;
    memcpy(&bytes, from, sizeof bytes);
    return (vshort)WIDE(cvtepi8_epi16)(bytes);
}

typedef int32_t vsums __attribute__((vector_size(VBYTES)));
/* The same at any address. */
typedef int32_t vsums_any __attribute__((vector_size(VBYTES), aligned(4), may_alias));

static ALWAYS_INLINE vsums load_sums(const int32_t *from) {
    return *(const vsums_any *)from;
}

static ALWAYS_INLINE void keep_sums(int32_t *to, vsums sum) {
    *(vsums_any *)to = sum;
}

static ALWAYS_INLINE vsums madd_pairs(vsums sum, vshort a, vshort b) {
    return sum + (vsums)WIDE(madd_epi16)((wide)a, (wide)b);
}

#if BYTES_VNNI
/* The same by one instruction. */
VNNI_TARGET static ALWAYS_INLINE vsums vnni_pairs(vsums sum, vshort a, vshort b) {
    return (vsums)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#endif

/* Two numbers of 16 bits in every lane. */
static ALWAYS_INLINE vshort two_times(const void *two) {
    int32_t bits;
    memcpy(&bits, two, sizeof bits);
    return (vshort)(bits - (vsums){0});
}

static ALWAYS_INLINE int_four sum_four(const vsums *s) {
    wide four[4] = {(wide)s[0], (wide)s[1], (wide)s[2], (wide)s[3]};
#if VBYTES == 64
    return vnni_four(four);
#else
    return madd_four(four);
#endif
}

/* n numbers, a multiple of 2 NARROW_STEP, times `factor` in 16 bits. */
static inline void i8_round(const real *from, int64_t n, real factor, int16_t *to) {
    for (int64_t i = 0; i < n; i += 2 * NARROW_STEP) {
        vreal a = vload(from + i) * factor, b = vload(from + i + NARROW_STEP) * factor;
#if VBYTES == 64
        __m256i low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)a));
        __m256i high = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)b));
        memcpy(to + i, &low, sizeof low);
        memcpy(to + i + NARROW_STEP, &high, sizeof high);
#else
        __m256i both =
            _mm256_packs_epi32(_mm256_cvtps_epi32((__m256)a), _mm256_cvtps_epi32((__m256)b));
        both = _mm256_permute4x64_epi64(both, 0xd8); /* packed lane by lane */
        memcpy(to + i, &both, sizeof both);
#endif
    }
}

static inline real i8_largest(const real *from, int64_t n) {
    vreal most = vset(0);
    for (int64_t i = 0; i < n; i += VLEN)
        most = vmax(most, vabs(vload(from + i)));
    return vmax_lane(most);
}

/* The same with a scale of their own, which is returned. */
static real i8_round_words(const real *from, int64_t n, int16_t *to) {
    real most = i8_largest(from, n);
    i8_round(from, n, most > 0 ? (real)I8_MOST / most : 0, to);
    return most / (real)I8_MOST;
}

/* In 8 bits. */
static inline real i8_round_bytes(const real *from, int64_t n, int8_t *to) {
    real most = i8_largest(from, n), factor = most > 0 ? 127 / most : 0;
    for (int64_t i = 0; i < n; i++) {
        real x = from[i] * factor;
        to[i] = (int8_t)(int32_t)(x < 0 ? x - (real)0.5 : x + (real)0.5);
    }
    return most / 127;
}

/* Columns 0, 2, 1, 3 of every four, which is how the keys' are paired. */
static void swap_middles(int16_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t four;
        memcpy(&four, x + i, sizeof four);
        four =
            (four & 0xffff00000000ffffu) | (four >> 16 & 0xffff0000u) | (four & 0xffff0000u) << 16;
        memcpy(x + i, &four, sizeof four);
    }
}

static void i8_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    int16_t *to = (int16_t *)rounded_queries_of(b, g);
    for (int64_t h = 0; h < b->lines; h++, to += a->dqk) {
        b->s->q_scales[line_of(b, g) + h] =
            i8_round_words(queries_of(b, g) + h * a->dqk, a->dqk, to);
        if (b->lines > 1) swap_middles(to, a->dqk);
    }
}

/* A head's weights of n keys in 16 bits, times their values' scales. Returns their scale. */
static real i8_round_weights(real *p, const real *scales, int64_t n, int16_t *to) {
    for (int64_t i = 0; i < n; i += VLEN)
        vstore(p + i, vload(p + i) * vload(scales + i));
    return i8_round_words(p, n, to);
}

static void i8_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    for (int64_t h = 0; h < b->lines; h++)
        b->s->p_scales[line_of(b, g) + h] =
            i8_round_weights(scores_of(b, g) + h * BLOCK + from, b->s->scales + from, n,
                             (int16_t *)weights_of(b, g) + h * BLOCK + from);
}

static void i8_finish(const block_task *b, int64_t g, int64_t h, real *to) {
    const attend_run *a = b->a;
    const int32_t *sums = (const int32_t *)sums_of(b, g) + 2 * h * a->dv;
    real scale = b->s->p_scales[line_of(b, g) + h];
    /* The fours of two vectors in their columns' order. */
    for (int64_t i = 0; i < a->dv; i += 2 * NARROW_STEP)
        for (int c = 0; c < 2 * NARROW_STEP; c++)
            to[i + c] = (real)sums[i + c / 8 * 4 + c % 4 + (c % 8 / 4) * NARROW_STEP] * scale;
}

enum {
    PAGE_STEP = 4 * WEFT_PAGE_TOKENS,  /* bytes of a step of scores, */
    PAGE_VECTORS = PAGE_STEP / VBYTES, /* as vectors; a step of values has two */
    PAIRS_HEADS = 6,                   /* of two vectors, or twice as many of one: twelve sums */
    SCORE_HEADS = 12                   /* whose scores of a page wait for their scales */
};

/* Sixteen columns of a page's keys as [4][16 keys][4]; fours of bytes are moved as if they were reals. */
static ALWAYS_INLINE void transpose_columns(const char *k, int64_t width, char *to) {
#if VBYTES == 64
    transpose_lanes(k, width, to, PAGE_STEP);
#else
    for (int64_t i = 0; i < WEFT_PAGE_TOKENS; i += 4, k += 4 * width)
        transpose_quads(load_quad(k), load_quad(k + width), load_quad(k + 2 * width),
                        load_quad(k + 3 * width), (real *)(void *)to + i,
                        PAGE_STEP / (int64_t)sizeof(real));
#endif
}

/* A page's keys as [width / 2][16 keys][2]. Of four bytes of a key the first and the third are a pair, and
 * the second and the fourth: shifts widen them where they stand. */
static void pack_keys(const char *k, int64_t width, char *to) {
    for (int64_t i = 0; i < width; i += 16) {
        char transposed[4 * PAGE_STEP] __attribute__((aligned(64)));
        transpose_columns(k + i, width, transposed);
        for (int at = 0; at < 4 * PAGE_STEP; at += PAGE_STEP, to += 2 * PAGE_STEP)
            for (int v = 0; v < PAGE_STEP; v += VBYTES) {
                vshort four, even, odd;
                memcpy(&four, transposed + at + v, VBYTES);
                even = four << 8 >> 8;
                odd = four >> 8;
                memcpy(to + v, &even, VBYTES);
                memcpy(to + PAGE_STEP + v, &odd, VBYTES);
            }
    }
}

/* A page's values as [width / (2 NARROW_STEP)][its eight of `steps`][2 NARROW_STEP][2], columns in fours
 * as zip_first and zip_second leave them. */
static void pack_pairs(const int8_t *v, int64_t width, int64_t steps, char *to) {
    for (int64_t j = 0; j < WEFT_PAGE_TOKENS; j += 2, to += 2 * VBYTES)
        for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
            vshort one = widen_bytes(v + j * width + i);
            vshort two = widen_bytes(v + (j + 1) * width + i);
            vshort pairs[2] = {zip_first(one, two), zip_second(one, two)};
            memcpy(to + 4 * i * steps, pairs, sizeof pairs);
        }
}

/* sums [heads][n] += Σ x [heads][2 steps] · packed [steps][n][2]. */
typedef struct {
    const int16_t *x; /* [heads][2 steps], rows `ld` apart */
    int64_t ld, heads;
    const char *packed; /* [steps][vectors][VBYTES] */
    int64_t steps;
    int vectors;
    int32_t *sums; /* [heads][vectors][VBYTES / 4], rows `step` apart */
    int64_t step;
} pairs_product;

#define BYTES_SOURCE "cpu/cache_attention_x86_pairs.h"
#include "cpu/bytes_each.h"

#if VBYTES == 64

#define BF16_TARGET __attribute__((target("avx512bf16")))

static ALWAYS_INLINE vshort bf16_load(const uint16_t *from) {
    vshort v;
    memcpy(&v, from, sizeof v);
    return v;
}

BF16_TARGET static ALWAYS_INLINE vreal bf16_dot(vreal sum, vshort a, vshort b) {
    return (vreal)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

/* n numbers, a multiple of sixteen. */
BF16_TARGET static void bf16_round_row(const real *from, int64_t n, uint16_t *to) {
    for (int64_t i = 0; i < n; i += 16) {
        __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
        memcpy(to + i, &rounded, sizeof rounded);
    }
}

/* The sums of four vectors. */
static ALWAYS_INLINE void bf16_four(const vreal *s, real *to) {
    __m256 half[4];
    for (int i = 0; i < 4; i++)
        half[i] = VEIGHT(_mm256_add_ps, s[i]);
    __m256 four =
        _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
}

/* Sixteen sums and the next sixteen: to fours of every eight, and back. */
static ALWAYS_INLINE void to_fours(const real *from, vreal *fours) {
    vreal a = vload(from), b = vload(from + VLEN);
    fours[0] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    fours[1] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

static ALWAYS_INLINE void from_fours(const vreal *fours, real *to) {
    vreal a = fours[0], b = fours[1];
    vstore(to,
           __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
    vstore(to + VLEN, __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15,
                                              28, 29, 30, 31));
}

/* sums [lines][dv], rows 2 dv apart: pages that follow each other. */
BF16_TARGET static ALWAYS_INLINE void bf16_add_lines(const block_task *b, const page_run *runs,
                                                     int n, int64_t g, int64_t line,
                                                     const int lines) {
    int64_t width = b->a->dv;
    const uint16_t *weights = (const uint16_t *)weights_of(b, g) + line * BLOCK;
    real *sums = (real *)sums_of(b, g) + 2 * line * width;
    for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
        vreal sum[4][2];
        for (int h = 0; h < lines; h++)
            to_fours(sums + 2 * h * width + i, sum[h]);
        for (const page_run *run = runs; run < runs + n; run++) {
            const uint16_t *v = (const uint16_t *)head_at(&b->a->values, run->page, g) + i;
            const uint16_t *p = weights + run->at;
            for (int64_t j = run->token, end = run->end; j < end; j += 2) {
                bool pair = j + 1 < end;
                vshort one = bf16_load(v + j * width);
                vshort next = pair ? bf16_load(v + (j + 1) * width) : (vshort){0};
                vshort first = zip_first(one, next), second = zip_second(one, next);
                for (int h = 0; h < lines; h++) {
                    const uint16_t *at = p + h * BLOCK + j;
                    int32_t two = at[0] | (pair ? (int32_t)((uint32_t)at[1] << 16) : 0);
                    vshort weight = (vshort)(two - (vsums){0});
                    sum[h][0] = bf16_dot(sum[h][0], first, weight);
                    sum[h][1] = bf16_dot(sum[h][1], second, weight);
                }
            }
        }
        for (int h = 0; h < lines; h++)
            from_fours(sum[h], sums + 2 * h * width + i);
    }
}

enum { BF16_COLUMNS = 2 * NARROW_STEP };

#include "cpu/cache_attention_amx.h"
#include "cpu/cache_attention_bf16.h"

#endif

static const attend_way *narrow_way(const weft_cache_part *part, int64_t group, bool several) {
    (void)group; /* by AVX2 */
    if (part->width % (2 * NARROW_STEP) != 0) return NULL;
#if VBYTES == 64
    bool amx = weft_cpu_matrix() == WEFT_MATRIX_AMX, bf16 = part->dtype == WEFT_BF16;
    bool fits = part->width <= WEFT_KEY_BLOCK && (bf16 || part->width % 64 == 0);
    if (bf16 && group == 1 && (amx || weft_cpu_matrix() == WEFT_MATRIX_AVX512_BF16))
        return &bf16_alone;
    if (amx && group > 1 && fits && (bf16 || part->dtype == WEFT_I8)) return &amx_tiles;
#endif
    if (part->dtype != WEFT_I8 || part->width > I8_WIDEST) return NULL;
#if BYTES_VNNI
    if (weft_cpu_dots_i8()) return several ? &vnni_shared : &vnni_alone;
#endif
    return several ? &madd_shared : &madd_alone;
}

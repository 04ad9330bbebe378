/* Attention over bf16 and i8 pages on x86-64, of a query head with a key head of its own, by the
 * instructions that multiply narrow numbers; what cache_attention_bf16.h and cache_attention_i8.h are on
 * Arm, with the same sums.
 *
 * bf16: AVX-512's dot products of pairs. Queries and weights are rounded to bf16, as keys and values are.
 * i8: VPMADDWD, which multiplies numbers of 16 bits and adds them two by two in 32, exactly. Queries,
 * and weights times their values' scales, are rounded to 16 bits with one scale each; keys and values
 * are widened as they are read.
 *
 * Values of two keys are taken side by side, their columns interleaved: a vector of them has four columns
 * of every eight. So sums of 2 NARROW_STEP columns are two vectors, the first fours and the second ones. */
#ifndef WEFT_CPU_CACHE_ATTENTION_X86_H
#define WEFT_CPU_CACHE_ATTENTION_X86_H

#include "cpu/bytes.h"
#include "cpu/cached.h"

#if BYTES_X86

enum {
    NARROW_EDGE = 64, /* keys are rounded in multiples of this */
    NARROW_STEP = VBYTES / 4,
    I8_WIDEST = 512, /* so that a sum of 16 bits by 8 has room in 32 */
    I8_MOST = 127 * 256 + 127
};

typedef int16_t vshort __attribute__((vector_size(VBYTES)));

/* Numbers of a and b interleaved: of each eight of them the first four, and the second four. */
static ALWAYS_INLINE vshort zip_first(vshort a, vshort b) {
#if VBYTES == 64
    return __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43,
                                   16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
#else
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
#endif
}

static ALWAYS_INLINE vshort zip_second(vshort a, vshort b) {
#if VBYTES == 64
    return __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47,
                                   20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
#else
    return __builtin_shufflevector(a, b, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15,
                                   31);
#endif
}

/* The fours of two vectors in their columns' order, n numbers in all. */
static ALWAYS_INLINE void unzip_fours(const real *from, real *to) {
    for (int i = 0; i < 2 * NARROW_STEP; i += 8) {
        memcpy(to + i, from + i / 2, 4 * sizeof *to);
        memcpy(to + i + 4, from + NARROW_STEP + i / 2, 4 * sizeof *to);
    }
}

static ALWAYS_INLINE vshort widen_bytes(const int8_t *from) {
#if VBYTES == 64
    return (vshort)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)from));
#else
    return (vshort)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
#endif
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
#if VBYTES == 64
    return sum + (vsums)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (vsums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
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
#if VBYTES == 64
    __m512i four[4] = {(__m512i)s[0], (__m512i)s[1], (__m512i)s[2], (__m512i)s[3]};
    return fold_four(four);
#else
    __m256i four[4] = {(__m256i)s[0], (__m256i)s[1], (__m256i)s[2], (__m256i)s[3]};
    return madd_four(four);
#endif
}

static inline bool i8_attends(const weft_cache_part *part, bool alone) {
    if (part->dtype != WEFT_I8) return false;
    return alone ? part->width % (2 * NARROW_STEP) == 0 && part->width <= I8_WIDEST
                 : weft_cpu_matrix() == WEFT_MATRIX_AMX && part->width % 64 == 0 &&
                       part->width <= WEFT_KEY_BLOCK;
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

/* A query in 16 bits. Returns its scale. */
static real i8_round_query(const real *from, int64_t n, int8_t *to) {
    real most = i8_largest(from, n);
    i8_round(from, n, most > 0 ? (real)I8_MOST / most : 0, (int16_t *)to);
    return most / (real)I8_MOST;
}

/* The same in 8 bits. */
static inline real i8_round_bytes(const real *from, int64_t n, int8_t *to) {
    real most = i8_largest(from, n), factor = most > 0 ? 127 / most : 0;
    for (int64_t i = 0; i < n; i++) {
        real x = from[i] * factor;
        to[i] = (int8_t)(int32_t)(x < 0 ? x - (real)0.5 : x + (real)0.5);
    }
    return most / 127;
}

#define BYTES_SOURCE "cpu/cache_attention_x86_alone.h"
#include "cpu/bytes_each.h"

/* s: the products of one query with keys [token, end) of a page; s, k and the keys' scales begin with
 * the page. */
static void i8_score_alone(const int8_t *q, real q_scale, const int8_t *k, const float *scales,
                           int64_t width, int64_t token, int64_t end, real *s) {
#if BYTES_VNNI
    if (weft_cpu_dots_i8()) {
        vnni_score_alone(q, q_scale, k, scales, width, token, end, s);
        return;
    }
#endif
    madd_score_alone(q, q_scale, k, scales, width, token, end, s);
}

/* sums [width] += Σ p_j v_j over keys [token, end) of a page; p and v begin with the page. Of the keys
 * beside them the weights are 0. */
static void i8_add_alone(const int8_t *p, const int8_t *v, int64_t width, int64_t token,
                         int64_t end, int32_t *sums) {
#if BYTES_VNNI
    if (weft_cpu_dots_i8()) {
        vnni_add_alone(p, v, width, token, end, sums);
        return;
    }
#endif
    madd_add_alone(p, v, width, token, end, sums);
}

/* Weights of n keys in 16 bits. Multiplies them by their values' scales on the way. Returns their
 * scale. */
static real i8_round_weights(real *p, const real *scales, int64_t n, int8_t *to) {
    for (int64_t i = 0; i < n; i += VLEN)
        vstore(p + i, vload(p + i) * vload(scales + i));
    return i8_round_query(p, n, to);
}

/* The sums of one head as numbers. */
static void i8_finish_alone(const int32_t *sums, int64_t width, real scale, real *to) {
    for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
        real part[2 * NARROW_STEP];
        for (int c = 0; c < 2 * NARROW_STEP; c++)
            part[c] = (real)sums[i + c] * scale;
        unzip_fours(part, to + i);
    }
}

#if VBYTES == 64

#define BF16_TARGET __attribute__((target("avx512bf16")))

static inline bool bf16_attends(const weft_cache_part *part, bool alone) {
    weft_matrix way = weft_cpu_matrix();
    return part->dtype == WEFT_BF16 && part->width % (2 * NARROW_STEP) == 0 &&
           (alone ? way == WEFT_MATRIX_AVX512_BF16 || way == WEFT_MATRIX_AMX
                  : way == WEFT_MATRIX_AMX && part->width <= WEFT_KEY_BLOCK);
}

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
static ALWAYS_INLINE __m128 bf16_four(const vreal *s) {
    __m256 half[4];
    for (int i = 0; i < 4; i++)
        half[i] = VEIGHT(_mm256_add_ps, s[i]);
    __m256 four =
        _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

/* s: the products of one query with keys [token, end) of a page; s and k begin with the page. */
BF16_TARGET static void bf16_score_alone(const uint16_t *q, const uint16_t *k, int64_t width,
                                         int64_t token, int64_t end, real *s) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        const uint16_t *key = k + j * width;
        vreal sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
            vshort v = bf16_load(q + i);
            for (int m = 0; m < 4; m++)
                sum[m] = bf16_dot(sum[m], v, bf16_load(key + m * width + i));
        }
        _mm_storeu_ps(s + j, bf16_four(sum));
    }
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

/* sums [width] += Σ p_j v_j over keys [token, end) of a page; p and v begin with the page. */
BF16_TARGET static void bf16_add_alone(const uint16_t *p, const uint16_t *v, int64_t width,
                                       int64_t token, int64_t end, real *sums) {
    for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
        vreal sum[2];
        to_fours(sums + i, sum);
        for (int64_t j = token; j < end; j += 2) {
            bool pair = j + 1 < end;
            int32_t two = p[j] | (pair ? (int32_t)((uint32_t)p[j + 1] << 16) : 0);
            vshort weight = (vshort)(two - (vsums){0}), a = bf16_load(v + j * width + i);
            vshort b = pair ? bf16_load(v + (j + 1) * width + i) : (vshort){0};
            sum[0] = bf16_dot(sum[0], zip_first(a, b), weight);
            sum[1] = bf16_dot(sum[1], zip_second(a, b), weight);
        }
        from_fours(sum, sums + i);
    }
}

#else

/* AVX2 has no instruction for it. */
static inline bool bf16_attends(const weft_cache_part *part, bool alone) {
    (void)part, (void)alone;
    return false;
}

static inline void bf16_round_row(const real *from, int64_t n, uint16_t *to) {
    (void)from, (void)n, (void)to;
}

static inline void bf16_score_alone(const uint16_t *q, const uint16_t *k, int64_t width,
                                    int64_t token, int64_t end, real *s) {
    (void)q, (void)k, (void)width, (void)token, (void)end, (void)s;
}

static inline void bf16_add_alone(const uint16_t *p, const uint16_t *v, int64_t width,
                                  int64_t token, int64_t end, real *sums) {
    (void)p, (void)v, (void)width, (void)token, (void)end, (void)sums;
}

#endif
#endif

#endif

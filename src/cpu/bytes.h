/* Sums of products of bytes, exact in 32 bits, by the instruction that the processor has for them:
 *
 *   sdot_   Arm's SDOT, sums of four products;
 *   madd_   AVX2: VPMADDUBSW multiplies bytes without a sign by bytes with one, so the sign of one goes
 *           to the other first. Two products of at most 128 x 127 have room in 16 bits;
 *   vnni_   AVX-512's VPDPBUSD, sums of four such products in 32 bits. 128 is added to the bytes of one
 *           side, w, and what that adds to a sum is taken away where the sum starts.
 *
 * Each is a vector of partial sums: `start` with the 64 bytes of x, `add` the products of x and w, and
 * `four` makes four such vectors four numbers. Code that is the same for all of them is a header that is
 * included once for each, as BYTES(name), each function compiled for BYTES_TARGET. */
#pragma once

#include "cpu/matrix.h"
#include "cpu/vec.h"

#define BYTES_ARM (WEFT_ARM_TARGETS && WEFT_REAL == 32)
#if defined(__AVX2__) && WEFT_REAL == 32
#define BYTES_X86 1
#else
#define BYTES_X86 0
#endif
#if defined(__AVX512F__) && WEFT_REAL == 32
#define BYTES_VNNI 1
#else
#define BYTES_VNNI 0
#endif

enum { BYTES_TOGETHER = 64 };

#if BYTES_ARM

#define SDOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

typedef int32x4_t sdot_sums;
typedef int32x4_t int_four;
typedef float32x4_t real_four;

static ALWAYS_INLINE sdot_sums sdot_start(UNUSED const int8_t *x) {
    return vdupq_n_s32(0);
}

SDOT_TARGET static ALWAYS_INLINE sdot_sums sdot_add(sdot_sums sum, const int8_t *x,
                                                    const int8_t *w) {
    for (int i = 0; i < BYTES_TOGETHER; i += 16)
        sum = vdotq_s32(sum, vld1q_s8(x + i), vld1q_s8(w + i));
    return sum;
}

static ALWAYS_INLINE int_four sdot_four(const sdot_sums *s) {
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
}

/* total + dots * scale, rounded once. */
static ALWAYS_INLINE real_four scale_four(real_four total, int_four dots, float scale) {
    return vfmaq_n_f32(total, vcvtq_f32_s32(dots), scale);
}

#elif BYTES_X86

typedef __m256i madd_sums;
typedef __m128i int_four;
typedef __m128 real_four;

static ALWAYS_INLINE madd_sums madd_start(UNUSED const int8_t *x) {
    return _mm256_setzero_si256();
}

static ALWAYS_INLINE madd_sums madd_add(madd_sums sum, const int8_t *x, const int8_t *w) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < BYTES_TOGETHER; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(x + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(w + i));
        __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(a, b));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, ones));
    }
    return sum;
}

static ALWAYS_INLINE int_four madd_four(const madd_sums *s) {
    __m256i ab = _mm256_hadd_epi32(s[0], s[1]), cd = _mm256_hadd_epi32(s[2], s[3]);
    __m256i four = _mm256_hadd_epi32(ab, cd);
    return _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
}

static ALWAYS_INLINE real_four scale_four(real_four total, int_four dots, float scale) {
    return _mm_fmadd_ps(_mm_cvtepi32_ps(dots), _mm_set1_ps(scale), total);
}

#if BYTES_VNNI

#define VNNI_TARGET __attribute__((target("avx512vnni")))

typedef __m512i vnni_sums;

static ALWAYS_INLINE int_four vnni_four(const vnni_sums *s) {
    __m256i half[4];
    for (int i = 0; i < 4; i++)
        half[i] =
            _mm256_add_epi32(_mm512_castsi512_si256(s[i]), _mm512_extracti64x4_epi64(s[i], 1));
    return madd_four(half);
}

VNNI_TARGET static ALWAYS_INLINE vnni_sums vnni_start(const int8_t *x) {
    __m512i sum =
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), _mm512_loadu_si512(x));
    return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

VNNI_TARGET static ALWAYS_INLINE vnni_sums vnni_add(vnni_sums sum, const int8_t *x,
                                                    const int8_t *w) {
    __m512i b = _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(-128));
    return _mm512_dpbusd_epi32(sum, b, _mm512_loadu_si512(x));
}

#endif
#endif

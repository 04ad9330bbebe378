/* Squares of 32-bit numbers transposed, by AVX-512: four numbers each of up to sixteen vectors at once.
 *
 * A register takes four numbers of every fourth vector, one lane of 128 bits for each, so that four
 * registers hold all of them. Transposed lane by lane, each then holds one number of every vector, in
 * their order. */
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>
#include <stdint.h>

/* Four numbers of vectors 0, 4, 8 and, with four lanes, 12; `stride` bytes from one vector to the next. */
static inline __attribute__((always_inline)) __m512i
transpose_take(const char *from, int64_t stride, const int lanes) {
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0,
                                    _mm_loadu_si128((const __m128i *)(from + 4 * stride)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00,
                                    _mm_loadu_si128((const __m128i *)(from + 8 * stride)));
    if (lanes == 4)
        v = _mm512_mask_broadcast_i32x4(v, 0xf000,
                                        _mm_loadu_si128((const __m128i *)(from + 12 * stride)));
    return v;
}

static inline __attribute__((always_inline)) void transpose_put(char *to, __m512i v,
                                                                const int lanes) {
    _mm512_mask_storeu_epi32(to, (__mmask16)(lanes == 4 ? 0xffff : 0x0fff), v);
}

/* The first four numbers of 4 · lanes vectors: those of term t go to `to` + t · step bytes. */
static inline __attribute__((always_inline)) void
transpose_lanes(const char *from, int64_t stride, char *to, int64_t step, const int lanes) {
    __m512i r0 = transpose_take(from, stride, lanes),
            r1 = transpose_take(from + stride, stride, lanes);
    __m512i r2 = transpose_take(from + 2 * stride, stride, lanes);
    __m512i r3 = transpose_take(from + 3 * stride, stride, lanes);
    __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpackhi_epi32(r0, r1);
    __m512i c = _mm512_unpacklo_epi32(r2, r3), d = _mm512_unpackhi_epi32(r2, r3);
    transpose_put(to, _mm512_unpacklo_epi64(a, c), lanes);
    transpose_put(to + step, _mm512_unpackhi_epi64(a, c), lanes);
    transpose_put(to + 2 * step, _mm512_unpacklo_epi64(b, d), lanes);
    transpose_put(to + 3 * step, _mm512_unpackhi_epi64(b, d), lanes);
}

/* The same for six vectors. */
static inline __attribute__((always_inline)) __m256 transpose_two(const char *from,
                                                                  int64_t stride) {
    __m256 v = _mm256_castps128_ps256(_mm_loadu_ps((const float *)from));
    return _mm256_insertf128_ps(v, _mm_loadu_ps((const float *)(from + 4 * stride)), 1);
}

static inline __attribute__((always_inline)) void transpose_six(const char *from, int64_t stride,
                                                                char *to, int64_t step) {
    __m256 r0 = transpose_two(from, stride), r1 = transpose_two(from + stride, stride);
    __m256 r2 = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(from + 2 * stride)));
    __m256 r3 = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(from + 3 * stride)));
    __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
    __m256 c = _mm256_unpacklo_ps(r2, r3), d = _mm256_unpackhi_ps(r2, r3);
    const __mmask8 six = 0x3f;
    _mm256_mask_storeu_ps(to, six, _mm256_shuffle_ps(a, c, 0x44));
    _mm256_mask_storeu_ps(to + step, six, _mm256_shuffle_ps(a, c, 0xee));
    _mm256_mask_storeu_ps(to + 2 * step, six, _mm256_shuffle_ps(b, d, 0x44));
    _mm256_mask_storeu_ps(to + 3 * step, six, _mm256_shuffle_ps(b, d, 0xee));
}

#endif

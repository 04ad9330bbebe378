/* Squares of 32-bit numbers transposed, by AVX-512: four numbers each of sixteen vectors at once.
 *
 * A register takes four numbers of every fourth vector, one lane of 128 bits for each, so that four
 * registers hold all of them. Transposed lane by lane, each then holds one number of every vector, in
 * their order. */
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>
#include <stdint.h>

/* Four numbers of vectors 0, 4, 8 and 12; `stride` bytes from one vector to the next. */
static inline __attribute__((always_inline)) __m512i transpose_take(const char *from,
                                                                    int64_t stride) {
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0,
                                    _mm_loadu_si128((const __m128i *)(from + 4 * stride)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00,
                                    _mm_loadu_si128((const __m128i *)(from + 8 * stride)));
    return _mm512_mask_broadcast_i32x4(v, 0xf000,
                                       _mm_loadu_si128((const __m128i *)(from + 12 * stride)));
}

/* The first four numbers of sixteen vectors: those of term t go to `to` + t · step bytes. */
static inline __attribute__((always_inline)) void transpose_lanes(const char *from, int64_t stride,
                                                                  char *to, int64_t step) {
    __m512i r0 = transpose_take(from, stride), r1 = transpose_take(from + stride, stride);
    __m512i r2 = transpose_take(from + 2 * stride, stride);
    __m512i r3 = transpose_take(from + 3 * stride, stride);
    __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpackhi_epi32(r0, r1);
    __m512i c = _mm512_unpacklo_epi32(r2, r3), d = _mm512_unpackhi_epi32(r2, r3);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, c));
    _mm512_storeu_si512(to + step, _mm512_unpackhi_epi64(a, c));
    _mm512_storeu_si512(to + 2 * step, _mm512_unpacklo_epi64(b, d));
    _mm512_storeu_si512(to + 3 * step, _mm512_unpackhi_epi64(b, d));
}

#endif

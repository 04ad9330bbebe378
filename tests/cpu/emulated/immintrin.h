/* Intel's intrinsics for a machine that lacks them: SIMDe's, and here what its packaged versions leave
 * out, bf16 dot products and AMX. It stands in the place of the compiler's header of this name, so that
 * the AVX-512 kernels compile unchanged; products.c then runs them.
 *
 * AMX after the description in Intel's manual: a tile has the rows and bytes per row that the last
 * configuration gave it. What a processor answers with an exception ends the program here. */
#ifndef WEFT_EMULATED_IMMINTRIN_H
#define WEFT_EMULATED_IMMINTRIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some versions of SIMDe have some of these, as macros. */
#undef __m256bh
#undef __m512bh
#undef __mmask8
#undef __mmask16
#undef _mm_fmadd_ps
#undef _mm256_add_ps
#undef _mm256_max_ps
#undef _mm256_mask_storeu_ps
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtps_epi32
#undef _mm512_dpbf16_ps
#undef _mm512_dpwssd_epi32
#undef _mm512_extractf32x8_ps
#undef _mm512_madd_epi16
#undef _mm512_mask_storeu_epi32

#define __m256bh __m256i
#define __m512bh __m512i
#define __mmask8 uint8_t
#define __mmask16 uint16_t

/* As functions: the kernels pass them two arguments by one macro. */
static inline __m256 _mm256_add_ps(__m256 a, __m256 b) {
    return simde_mm256_add_ps(a, b);
}

static inline __m256 _mm256_max_ps(__m256 a, __m256 b) {
    return simde_mm256_max_ps(a, b);
}

/* Rounded once: SIMDe's rounds the product too, unless the compiler makes one instruction of both. */
static inline __m128 _mm_fmadd_ps(__m128 a, __m128 b, __m128 c) {
    float left[4], right[4], sums[4];
    memcpy(left, &a, sizeof left);
    memcpy(right, &b, sizeof right);
    memcpy(sums, &c, sizeof sums);
    for (int i = 0; i < 4; i++)
        sums[i] = fmaf(left[i], right[i], sums[i]);
    __m128 v;
    memcpy(&v, sums, sizeof v);
    return v;
}

/* The 32-bit numbers of v whose bit is set. */
static inline void emulated_store(void *to, uint32_t mask, const void *v, int count) {
    for (int i = 0; i < count; i++)
        if (mask >> i & 1) memcpy((char *)to + 4 * i, (const char *)v + 4 * i, 4);
}

static inline void _mm256_mask_storeu_ps(void *to, __mmask8 mask, __m256 v) {
    emulated_store(to, mask, &v, 8);
}

static inline void _mm512_mask_storeu_epi32(void *to, __mmask16 mask, __m512i v) {
    emulated_store(to, mask, &v, 16);
}

static inline __m512i _mm512_cvtepu16_epi32(__m256i v) {
    uint16_t from[16];
    uint32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i];
    __m512i wide;
    memcpy(&wide, to, sizeof wide);
    return wide;
}

static inline __m512i _mm512_cvtepi8_epi32(__m128i v) {
    int8_t from[16];
    int32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i];
    __m512i wide;
    memcpy(&wide, to, sizeof wide);
    return wide;
}

static inline __m512 _mm512_cvtepi32_ps(__m512i v) {
    int32_t from[16];
    float to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (float)from[i];
    __m512 numbers;
    memcpy(&numbers, to, sizeof numbers);
    return numbers;
}

/* To the nearest, of two equally near ones the even. */
static inline __m512i _mm512_cvtps_epi32(__m512 v) {
    float from[16];
    int32_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[i] >= -0x1p31f && from[i] < 0x1p31f ? (int32_t)lrintf(from[i]) : INT32_MIN;
    __m512i whole;
    memcpy(&whole, to, sizeof whole);
    return whole;
}

static inline __m256i _mm512_cvtepi32_epi16(__m512i v) {
    uint32_t from[16];
    uint16_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (uint16_t)from[i];
    __m256i narrow;
    memcpy(&narrow, to, sizeof narrow);
    return narrow;
}

static inline __m256 _mm512_extractf32x8_ps(__m512 v, int half) {
    __m256 part;
    memcpy(&part, (const char *)&v + 32 * half, sizeof part);
    return part;
}

/* Sixteen sums of two products of 16 bits. */
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    int16_t left[32], right[32];
    int32_t sums[16];
    memcpy(left, &a, sizeof left);
    memcpy(right, &b, sizeof right);
    for (int i = 0; i < 16; i++)
        sums[i] = left[2 * i] * right[2 * i] + left[2 * i + 1] * right[2 * i + 1];
    __m512i v;
    memcpy(&v, sums, sizeof v);
    return v;
}

/* The same, added to sixteen sums. */
static inline __m512i _mm512_dpwssd_epi32(__m512i sums, __m512i a, __m512i b) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}

/* Sixteen sums, each plus two products of bf16 numbers: of b's pairs and a's, or of a's one pair
 * (`step` 0). Denormal numbers are 0 on both sides. */
static inline uint32_t emulated_flush(uint32_t bits) {
    return bits & 0x7f800000u ? bits : 0;
}

static inline float emulated_float(uint32_t bits) {
    float x;
    bits = emulated_flush(bits);
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void emulated_pairs(void *sums, const void *a, int step, const void *b) {
    uint32_t left[16], right[16], out[16];
    float c[16];
    memcpy(c, sums, sizeof c);
    memcpy(right, b, sizeof right);
    for (int i = 0; i < 16; i++)
        memcpy(&left[i], (const char *)a + 4 * i * step, sizeof left[i]);
    for (int i = 0; i < 16; i++)
        c[i] += emulated_float(left[i] << 16) * emulated_float(right[i] << 16);
    memcpy(out, c, sizeof out);
    for (int i = 0; i < 16; i++)
        c[i] = emulated_float(out[i]) +
               emulated_float(left[i] & 0xffff0000u) * emulated_float(right[i] & 0xffff0000u);
    memcpy(out, c, sizeof out);
    for (int i = 0; i < 16; i++)
        out[i] = emulated_flush(out[i]);
    memcpy(sums, out, sizeof out);
}

static inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
    emulated_pairs(&sums, &a, 1, &b);
    return sums;
}

/* Sixteen numbers in bf16. */
static inline __m256bh _mm512_cvtneps_pbh(__m512 v) {
    uint32_t from[16];
    uint16_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++) {
        uint32_t bits = emulated_flush(from[i]);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        to[i] = (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    __m256bh narrow;
    memcpy(&narrow, to, sizeof narrow);
    return narrow;
}

/* The tiles, of the one thread there is: products.c has them. */
enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_ROW_BYTES = 64 };

typedef struct {
    char data[EMULATED_ROWS][EMULATED_ROW_BYTES];
    int rows, row_bytes; /* 0: not configured */
} emulated_tile;

extern emulated_tile emulated_tiles[EMULATED_TILES];

static inline void emulated_must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

static inline void _tile_release(void) {
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void _tile_loadconfig(const void *config) {
    const uint8_t *bytes = config;
    _tile_release();
    emulated_must(bytes[0] == 1 && bytes[1] == 0, "palette 1 from row 0 is all there is");
    for (int i = 2; i < 16; i++)
        emulated_must(bytes[i] == 0, "reserved bytes are 0");
    for (int i = 0; i < EMULATED_TILES; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
        emulated_tiles[i].rows = bytes[48 + i];
        emulated_tiles[i].row_bytes = row_bytes;
        emulated_must(bytes[48 + i] <= EMULATED_ROWS && row_bytes <= EMULATED_ROW_BYTES,
                      "a tile has 16 rows of 64 bytes at most");
    }
}

static inline emulated_tile *emulated_get(int tile) {
    emulated_must(emulated_tiles[tile].rows > 0 && emulated_tiles[tile].row_bytes > 0,
                  "the tile is not configured");
    return &emulated_tiles[tile];
}

static inline void _tile_zero(int tile) {
    memset(emulated_get(tile)->data, 0, sizeof emulated_tiles[tile].data);
}

static inline void _tile_loadd(int tile, const void *from, int64_t stride) {
    _tile_zero(tile);
    for (int i = 0; i < emulated_tiles[tile].rows; i++)
        memcpy(emulated_tiles[tile].data[i], (const char *)from + i * stride,
               (size_t)emulated_tiles[tile].row_bytes);
}

static inline void _tile_stored(int tile, void *to, int64_t stride) {
    const emulated_tile *t = emulated_get(tile);
    for (int i = 0; i < t->rows; i++)
        memcpy((char *)to + i * stride, t->data[i], (size_t)t->row_bytes);
}

static inline void emulated_fit(int sums, int left, int right) {
    const emulated_tile *c = emulated_get(sums), *a = emulated_get(left), *b = emulated_get(right);
    emulated_must(sums != left && sums != right && left != right, "three tiles are multiplied");
    emulated_must(c->rows == a->rows && c->row_bytes == b->row_bytes && a->row_bytes == 4 * b->rows,
                  "the tiles' shapes do not fit");
}

/* What a tile adds is summed from zero: the first numbers of the pairs, and the second. */
static inline void _tile_dpbf16ps(int sums, int left, int right) {
    emulated_fit(sums, left, right);
    emulated_tile *c = emulated_tiles + sums, *a = emulated_tiles + left;
    for (int i = 0; i < c->rows; i++) {
        float chain[2][16] = {0}, whole[16];
        for (int k = 0; k < emulated_tiles[right].rows; k++) {
            uint32_t pair;
            memcpy(&pair, a->data[i] + 4 * k, sizeof pair);
            const uint32_t one[2] = {pair & 0xffff, pair & 0xffff0000u};
            for (int half = 0; half < 2; half++)
                emulated_pairs(chain[half], &one[half], 0, emulated_tiles[right].data[k]);
        }
        memcpy(whole, c->data[i], sizeof whole);
        for (int n = 0; n < 16; n++)
            whole[n] += chain[0][n] + chain[1][n];
        memcpy(c->data[i], whole, sizeof whole);
    }
}

/* Bytes with a sign on both sides, by fours. */
static inline void _tile_dpbssd(int sums, int left, int right) {
    emulated_fit(sums, left, right);
    emulated_tile *c = emulated_tiles + sums, *a = emulated_tiles + left;
    const emulated_tile *b = emulated_tiles + right;
    for (int i = 0; i < c->rows; i++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            int32_t sum;
            memcpy(&sum, c->data[i] + 4 * n, sizeof sum);
            for (int k = 0; k < 4 * b->rows; k++)
                sum += (signed char)a->data[i][k] * (signed char)b->data[k / 4][4 * n + k % 4];
            memcpy(c->data[i] + 4 * n, &sum, sizeof sum);
        }
}

#endif

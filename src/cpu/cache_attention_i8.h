/* Attention over i8 pages by the instructions that multiply bytes, where the processor has them:
 * nothing is widened, and sums of products are exact in 32 bits.
 *
 * A query head with a key head of its own goes by SDOT, which sums products of fours. Its query is
 * rounded to 16 bits with one scale, as two bytes: 256 high + low. Query heads that share a key head
 * go by SMMLA, two rows by two keys (or columns) at a time; they are rounded to 8 bits, two heads to
 * a tile. Weights times their values' scales are rounded to 16 bits in both cases, with one scale
 * for each head and block of keys: a byte would lose the many small weights beside a large one.
 *
 * Keys are taken by fours or eights that begin at multiples of that. Those outside of the row's have
 * scores that are never read, and weights of zero. */
#ifndef WEFT_CPU_CACHE_ATTENTION_I8_H
#define WEFT_CPU_CACHE_ATTENTION_I8_H

#include "cpu/bytes.h"
#include "cpu/cached.h"

#if BYTES_ARM

#define I8_DOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define I8_TARGET __attribute__((target("arch=armv8.2-a+i8mm")))

enum {
    NARROW_EDGE = 8, /* keys are rounded in multiples of this */
    I8_COLUMNS = 32, /* widths must be multiples of this */
    I8_WIDEST = 512, /* so that a sum of 16 bits by 8 has room in 32 */
    I8_MOST = 127 * 256 + 127
};

static inline bool i8_attends(const weft_cache_part *part, bool alone) {
    return part->dtype == WEFT_I8 && part->width % I8_COLUMNS == 0 && part->width <= I8_WIDEST &&
           (alone ? weft_cpu_dots_i8() : weft_cpu_tiles_i8());
}

/* The largest of n numbers, a multiple of four, by size. */
static inline real i8_largest(const real *from, int64_t n) {
    float32x4_t most = vdupq_n_f32(0);
    for (int64_t i = 0; i < n; i += 4)
        most = vmaxq_f32(most, vabsq_f32(vld1q_f32(from + i)));
    return vmaxvq_f32(most);
}

/* Eight numbers times `factor` in 16 bits. */
static ALWAYS_INLINE int16x8_t i8_round(const real *from, real factor) {
    int32x4_t a = vcvtaq_s32_f32(vmulq_n_f32(vld1q_f32(from), factor));
    int32x4_t b = vcvtaq_s32_f32(vmulq_n_f32(vld1q_f32(from + 4), factor));
    return vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
}

/* 16 bits as 256 high + low. */
static ALWAYS_INLINE int8x8_t i8_high(int16x8_t x) {
    return vrshrn_n_s16(x, 8);
}

static ALWAYS_INLINE int8x8_t i8_low(int16x8_t x) {
    return vmovn_s16(x);
}

/* A query in 16 bits: to [2][n], high bytes and low ones. Returns its scale. */
static real i8_round_query(const real *from, int64_t n, int8_t *to) {
    real most = i8_largest(from, n), factor = most > 0 ? (real)I8_MOST / most : 0;
    for (int64_t i = 0; i < n; i += 8) {
        int16x8_t x = i8_round(from + i, factor);
        vst1_s8(to + i, i8_high(x));
        vst1_s8(to + n + i, i8_low(x));
    }
    return most / (real)I8_MOST;
}

/* Queries in 8 bits as tiles: [rows / 2][n / 8][2][8], and their scales. A row that is missing is made
 * of zeros. */
static void i8_round_queries(const real *from, int64_t rows, int64_t n, int8_t *to, real *scales) {
    for (int64_t r = 0; r < rows; r++) {
        real most = i8_largest(from + r * n, n), factor = most > 0 ? 127 / most : 0;
        int8_t *at = to + r / 2 * 2 * n + r % 2 * 8;
        for (int64_t i = 0; i < n; i += 8)
            vst1_s8(at + 2 * i, vmovn_s16(i8_round(from + r * n + i, factor)));
        scales[r] = most / 127;
    }
    for (int64_t i = 0; rows % 2 == 1 && i < n; i += 8)
        vst1_s8(to + rows / 2 * 2 * n + 2 * i + 8, vdup_n_s8(0));
}

/* s: the products of one query with keys [token, end) of a page; s, k and the keys' scales begin with
 * the page. */
I8_DOT_TARGET static void i8_score_alone(const int8_t *q, real q_scale, const int8_t *k,
                                         const float *scales, int64_t width, int64_t token,
                                         int64_t end, real *s) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        const int8_t *key = k + j * width;
        int32x4_t high[4] = {{0}, {0}, {0}, {0}}, low[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < width; i += I8_COLUMNS)
            for (int64_t c = i; c < i + I8_COLUMNS; c += 16) {
                int8x16_t a = vld1q_s8(q + c), b = vld1q_s8(q + width + c);
                for (int m = 0; m < 4; m++) {
                    int8x16_t v = vld1q_s8(key + m * width + c);
                    high[m] = vdotq_s32(high[m], a, v);
                    low[m] = vdotq_s32(low[m], b, v);
                }
            }
        int32x4_t a = vpaddq_s32(vpaddq_s32(high[0], high[1]), vpaddq_s32(high[2], high[3]));
        int32x4_t b = vpaddq_s32(vpaddq_s32(low[0], low[1]), vpaddq_s32(low[2], low[3]));
        float32x4_t sum = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(a, 8), b));
        vst1q_f32(s + j, vmulq_f32(sum, vmulq_n_f32(vld1q_f32(scales + j), q_scale)));
    }
}

/* The same for `tiles` tiles of queries and four keys; rows of s are `ld` apart. */
I8_TARGET static ALWAYS_INLINE void i8_score_four(const int8_t *q, const real *q_scales,
                                                  const int8_t *k, const float *scales,
                                                  int64_t width, real *s, int64_t ld,
                                                  const int tiles) {
    int32x4_t sum[6][2];
    for (int t = 0; t < tiles; t++)
        sum[t][0] = sum[t][1] = vdupq_n_s32(0);
    for (int64_t i = 0; i < width; i += 16) {
        int8x16_t key[2][2];
        for (int m = 0; m < 2; m++) {
            int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(k + 2 * m * width + i));
            int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(k + (2 * m + 1) * width + i));
            key[m][0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
            key[m][1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
        }
        for (int t = 0; t < tiles; t++)
            for (int half = 0; half < 2; half++) {
                int8x16_t v = vld1q_s8(q + 2 * (t * width + i) + 16 * half);
                for (int m = 0; m < 2; m++)
                    sum[t][m] = vmmlaq_s32(sum[t][m], v, key[m][half]);
            }
    }
    float32x4_t scale = vld1q_f32(scales);
    for (int t = 0; t < tiles; t++) {
        int64x2_t a = vreinterpretq_s64_s32(sum[t][0]), b = vreinterpretq_s64_s32(sum[t][1]);
        float32x4_t first = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip1q_s64(a, b)));
        float32x4_t second = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip2q_s64(a, b)));
        vst1q_f32(s + 2 * t * ld, vmulq_f32(first, vmulq_n_f32(scale, q_scales[2 * t])));
        vst1q_f32(s + (2 * t + 1) * ld, vmulq_f32(second, vmulq_n_f32(scale, q_scales[2 * t + 1])));
    }
}

I8_TARGET static void i8_score_tiles(const int8_t *q, const real *q_scales, int64_t tiles,
                                     const int8_t *k, const float *scales, int64_t width,
                                     int64_t token, int64_t end, real *s, int64_t ld) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        const int8_t *key = k + j * width;
        int64_t t = 0;
        for (; t + 6 <= tiles; t += 6)
            i8_score_four(q + 2 * t * width, q_scales + 2 * t, key, scales + j, width,
                          s + 2 * t * ld + j, ld, 6);
        for (; t + 2 <= tiles; t += 2)
            i8_score_four(q + 2 * t * width, q_scales + 2 * t, key, scales + j, width,
                          s + 2 * t * ld + j, ld, 2);
        if (t < tiles)
            i8_score_four(q + 2 * t * width, q_scales + 2 * t, key, scales + j, width,
                          s + 2 * t * ld + j, ld, 1);
    }
}

/* Weights of n keys, a multiple of eight, in 16 bits: to [n / 8][2][8], eight high bytes and eight low
 * ones. Multiplies them by their values' scales on the way. Returns their scale. */
static real i8_round_weights(real *p, const real *scales, int64_t n, int8_t *to) {
    float32x4_t top = vdupq_n_f32(0);
    for (int64_t i = 0; i < n; i += 4) {
        float32x4_t w = vmulq_f32(vld1q_f32(p + i), vld1q_f32(scales + i));
        vst1q_f32(p + i, w);
        top = vmaxq_f32(top, w);
    }
    real most = vmaxvq_f32(top), factor = most > 0 ? (real)I8_MOST / most : 0;
    for (int64_t i = 0; i < n; i += 8) {
        int16x8_t x = i8_round(p + i, factor);
        vst1q_s8(to + 2 * i, vcombine_s8(i8_high(x), i8_low(x)));
    }
    return most / (real)I8_MOST;
}

/* Sixteen columns of four keys: four columns' four numbers side by side in each vector. */
static ALWAYS_INLINE void i8_transpose_four(const int8_t *v, int64_t width, int8x16_t *to) {
    int8x16_t a = vld1q_s8(v), b = vld1q_s8(v + width);
    int8x16_t c = vld1q_s8(v + 2 * width), d = vld1q_s8(v + 3 * width);
    int8x16_t ac = vzip1q_s8(a, c), bd = vzip1q_s8(b, d);
    to[0] = vzip1q_s8(ac, bd);
    to[1] = vzip2q_s8(ac, bd);
    ac = vzip2q_s8(a, c), bd = vzip2q_s8(b, d);
    to[2] = vzip1q_s8(ac, bd);
    to[3] = vzip2q_s8(ac, bd);
}

static ALWAYS_INLINE int8x16_t i8_four_times(const int8_t *four) {
    int32_t bytes;
    memcpy(&bytes, four, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

/* sums [width / 16][2][16] (of high bytes, of low ones) += Σ p_j v_j over keys [token, end) of a page;
 * p and v begin with the page. */
I8_DOT_TARGET static void i8_add_alone(const int8_t *p, const int8_t *v, int64_t width,
                                       int64_t token, int64_t end, int32_t *sums) {
    for (int64_t i = 0; i < width; i += 16, sums += 32) {
        int32x4_t high[4], low[4];
        for (int c = 0; c < 4; c++) {
            high[c] = vld1q_s32(sums + 4 * c);
            low[c] = vld1q_s32(sums + 16 + 4 * c);
        }
        for (int64_t j = token & ~3; j < end; j += 4) {
            const int8_t *at = p + 2 * (j & ~7) + (j & 4);
            int8x16_t transposed[4], a = i8_four_times(at), b = i8_four_times(at + 8);
            i8_transpose_four(v + j * width + i, width, transposed);
            for (int c = 0; c < 4; c++) {
                high[c] = vdotq_s32(high[c], transposed[c], a);
                low[c] = vdotq_s32(low[c], transposed[c], b);
            }
        }
        for (int c = 0; c < 4; c++) {
            vst1q_s32(sums + 4 * c, high[c]);
            vst1q_s32(sums + 16 + 4 * c, low[c]);
        }
    }
}

/* Eight columns of eight keys: two columns' eight numbers side by side in each vector. */
static ALWAYS_INLINE void i8_transpose_eight(const int8_t *v, int64_t width, int8x16_t *to) {
    int8x16_t two[4], four[4];
    for (int m = 0; m < 4; m++) {
        int8x16_t a = vcombine_s8(vld1_s8(v + m * width), vdup_n_s8(0));
        int8x16_t b = vcombine_s8(vld1_s8(v + (m + 4) * width), vdup_n_s8(0));
        two[m] = vzip1q_s8(a, b);
    }
    for (int m = 0; m < 2; m++) {
        four[2 * m] = vzip1q_s8(two[m], two[m + 2]);
        four[2 * m + 1] = vzip2q_s8(two[m], two[m + 2]);
    }
    for (int m = 0; m < 2; m++) {
        to[2 * m] = vzip1q_s8(four[m], four[m + 2]);
        to[2 * m + 1] = vzip2q_s8(four[m], four[m + 2]);
    }
}

/* Values of `eights` · 8 keys as tiles see them: to [width / 8][ld][4][16], of which `eights` of the ld
 * are written. */
static void i8_transpose_keys(const int8_t *v, int64_t width, int64_t eights, int64_t ld,
                              int8_t *to) {
    for (int64_t e = 0; e < eights; e++)
        for (int64_t i = 0; i < width; i += 8) {
            int8x16_t transposed[4];
            i8_transpose_eight(v + 8 * e * width + i, width, transposed);
            for (int c = 0; c < 4; c++)
                vst1q_s8(to + 64 * (i / 8 * ld + e) + 16 * c, transposed[c]);
        }
}

/* sums [heads][width / 2][2][2]: eight columns of `heads` heads += the weighted values, `transposed`. A
 * head has 2 · WEFT_KEY_BLOCK bytes of weights. */
I8_TARGET static ALWAYS_INLINE void i8_add_eight(const int8_t *p, const int8_t *transposed,
                                                 int64_t eights, int64_t width, int64_t column,
                                                 int32_t *sums, const int heads) {
    int32x4_t sum[6][4];
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < 4; c++)
            sum[h][c] = vld1q_s32(sums + 2 * (h * width + column) + 4 * c);
    for (int64_t e = 0; e < eights; e++, transposed += 64, p += 16) {
        int8x16_t v[4];
        for (int c = 0; c < 4; c++)
            v[c] = vld1q_s8(transposed + 16 * c);
        for (int h = 0; h < heads; h++) {
            int8x16_t weight = vld1q_s8(p + 2 * h * WEFT_KEY_BLOCK);
            for (int c = 0; c < 4; c++)
                sum[h][c] = vmmlaq_s32(sum[h][c], weight, v[c]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < 4; c++)
            vst1q_s32(sums + 2 * (h * width + column) + 4 * c, sum[h][c]);
}

I8_TARGET static void i8_add_tiles(const int8_t *p, int64_t heads, const int8_t *transposed,
                                   int64_t eights, int64_t width, int32_t *sums) {
    for (int64_t column = 0; column < width; column += 8, transposed += 64 * eights) {
        int64_t h = 0;
        for (; h + 6 <= heads; h += 6)
            i8_add_eight(p + 2 * h * WEFT_KEY_BLOCK, transposed, eights, width, column,
                         sums + 2 * h * width, 6);
        for (; h + 2 <= heads; h += 2)
            i8_add_eight(p + 2 * h * WEFT_KEY_BLOCK, transposed, eights, width, column,
                         sums + 2 * h * width, 2);
        if (h < heads)
            i8_add_eight(p + 2 * h * WEFT_KEY_BLOCK, transposed, eights, width, column,
                         sums + 2 * h * width, 1);
    }
}

/* The sums of one head as numbers. */
static void i8_finish_alone(const int32_t *sums, int64_t width, real scale, real *to) {
    for (int64_t i = 0; i < width; i += 4) {
        const int32_t *high = sums + i / 16 * 32 + i % 16;
        int32x4_t sum = vaddq_s32(vshlq_n_s32(vld1q_s32(high), 8), vld1q_s32(high + 16));
        vst1q_f32(to + i, vmulq_n_f32(vcvtq_f32_s32(sum), scale));
    }
}

static void i8_finish_tile(const int32_t *sums, int64_t width, real scale, real *to) {
    for (int64_t i = 0; i < width; i += 4) {
        int64x2_t a = vreinterpretq_s64_s32(vld1q_s32(sums + 2 * i));
        int64x2_t b = vreinterpretq_s64_s32(vld1q_s32(sums + 2 * i + 4));
        int32x4_t high = vreinterpretq_s32_s64(vzip1q_s64(a, b));
        int32x4_t low = vreinterpretq_s32_s64(vzip2q_s64(a, b));
        int32x4_t sum = vaddq_s32(vshlq_n_s32(high, 8), low);
        vst1q_f32(to + i, vmulq_n_f32(vcvtq_f32_s32(sum), scale));
    }
}

#endif

#endif

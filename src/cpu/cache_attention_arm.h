/* Attention over bf16 and i8 pages on Arm by the instructions that multiply such numbers, where the
 * processor has them: nothing is widened.
 *
 * A query head with a key head of its own goes by dot products: BFDOT sums products of pairs, SDOT those
 * of fours. Query heads that share a key head go by tiles, BFMMLA and SMMLA: two lines (a tile's rows) by
 * two keys or columns at a time. Without SMMLA bytes go by SDOT, four lines by four keys, and their values two
 * lines at a time. Several rows whose heads share nothing go by SMMLA too, for sums of bytes are exact: a
 * tile's rows are then the two bytes of one line.
 *
 * bf16: queries and weights are rounded to bf16, as keys and values are. A score has four chains over its
 * columns, a value's column one chain over pairs of keys.
 *
 * i8: sums of products are exact in 32 bits. A query with a key head of its own is rounded to 16 bits with one
 * scale, as two bytes: 256 high + low; queries that share one to 8 bits. Weights times their values' scales are rounded to 16
 * bits in both cases, with one scale for each head and block of keys: a byte would lose the many small
 * weights beside a large one.
 *
 * Keys are taken by fours or eights that begin at multiples of that. Scores of keys outside of the row's
 * are written too, and never read; their weights are zeros, and bf16 values of such keys are not touched:
 * they might not be numbers. */
#pragma once

#include "cpu/bytes.h"
#include "cpu/cache_attention_task.h"

#define BF16_TARGET BF16_ARM

enum {
    COLUMNS = 32,    /* widths must be multiples of this */
    I8_WIDEST = 512, /* so that a sum of 16 bits by 8 has room in 32 */
    I8_MOST = 127 * 256 + 127
};

BF16_TARGET static ALWAYS_INLINE bfloat16x8_t bf16_load(const uint16_t *from) {
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

BF16_TARGET static ALWAYS_INLINE uint16x4_t bf16_round(const real *from) {
    return vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(from)));
}

/* n numbers, a multiple of four. */
BF16_TARGET static void bf16_round_row(const real *from, int64_t n, uint16_t *to) {
    for (int64_t i = 0; i < n; i += 4)
        vst1_u16(to + i, bf16_round(from + i));
}

BF16_TARGET static ALWAYS_INLINE vreal bf16_dot(vreal sum, bfloat16x8_t a, bfloat16x8_t b) {
    return (vreal)vbfdotq_f32((float32x4_t)sum, a, b);
}

/* The sums of four vectors. */
static ALWAYS_INLINE void bf16_four(const vreal *s, real *to) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32((float32x4_t)s[0], (float32x4_t)s[1]),
                             vpaddq_f32((float32x4_t)s[2], (float32x4_t)s[3])));
}

/* Two keys' columns side by side; where there is no second key, zeros. */
BF16_TARGET static ALWAYS_INLINE void bf16_zip(const uint16_t *first, const uint16_t *second,
                                               bfloat16x8_t *to, const int columns) {
    for (int v = 0; v < columns / 8; v++) {
        uint16x8_t a = vld1q_u16(first + 8 * v);
        uint16x8_t b = second ? vld1q_u16(second + 8 * v) : vdupq_n_u16(0);
        to[2 * v] = vreinterpretq_bf16_u16(vzip1q_u16(a, b));
        to[2 * v + 1] = vreinterpretq_bf16_u16(vzip2q_u16(a, b));
    }
}

/* sums [lines][width], rows 2 width apart: some columns of pages that follow each other. */
BF16_TARGET static ALWAYS_INLINE void bf16_add_lines(const block_task *b, const page_run *runs,
                                                     int n, int64_t g, int64_t line,
                                                     const int lines) {
    const int columns = lines == 4 ? COLUMNS / 2 : COLUMNS;
    int64_t width = b->a->dv;
    const uint16_t *weights = (const uint16_t *)weights_of(b, g) + line * BLOCK;
    for (int64_t i = 0; i < width; i += columns) {
        real *sums = (real *)sums_of(b, g) + 2 * line * width + i;
        float32x4_t sum[4][COLUMNS / 4];
        for (int h = 0; h < lines; h++)
            for (int c = 0; c < columns / 4; c++)
                sum[h][c] = vld1q_f32(sums + 2 * h * width + 4 * c);
        for (const page_run *run = runs; run < runs + n; run++) {
            const uint16_t *v = (const uint16_t *)head_at(&b->a->values, run->page, g) + i;
            const uint16_t *p = weights + run->at;
            bfloat16x8_t pairs[COLUMNS / 4];
            int64_t j = run->token;
            for (; j + 8 <= run->end; j += 8) {
                bfloat16x8_t weight[4];
                for (int h = 0; h < lines; h++)
                    weight[h] = bf16_load(p + h * BLOCK + j);
#define PAIR(m)                                                                                    \
    bf16_zip(v + (j + 2 * (m)) * width, v + (j + 2 * (m) + 1) * width, pairs, columns);            \
    for (int h = 0; h < lines; h++)                                                                \
        for (int c = 0; c < columns / 4; c++)                                                      \
    sum[h][c] = vbfdotq_laneq_f32(sum[h][c], pairs[c], weight[h], m)
                PAIR(0);
                PAIR(1);
                PAIR(2);
                PAIR(3);
#undef PAIR
            }
            for (; j < run->end; j += 2) {
                bool both = j + 1 < run->end;
                bf16_zip(v + j * width, both ? v + (j + 1) * width : NULL, pairs, columns);
                for (int h = 0; h < lines; h++) {
                    uint32_t two = p[h * BLOCK + j];
                    if (both) memcpy(&two, p + h * BLOCK + j, sizeof two);
                    bfloat16x8_t weight = vreinterpretq_bf16_u32(vdupq_n_u32(two));
                    for (int c = 0; c < columns / 4; c++)
                        sum[h][c] = vbfdotq_f32(sum[h][c], pairs[c], weight);
                }
            }
        }
        for (int h = 0; h < lines; h++)
            for (int c = 0; c < columns / 4; c++)
                vst1q_f32(sums + 2 * h * width + 4 * c, sum[h][c]);
    }
}

enum { BF16_COLUMNS = 8 };

#include "cpu/cache_attention_bf16.h"

/* Two rows of n numbers, a multiple of four, as tiles: [n / 4][2][4]. */
BF16_TARGET static void bf16_round_two(const real *from, int64_t ld, int64_t n, uint16_t *to) {
    for (int64_t i = 0; i < n; i += 4)
        vst1q_u16(to + 2 * i, vcombine_u16(bf16_round(from + i), bf16_round(from + ld + i)));
}

static void bf16_tile_queries(const block_task *b, int64_t g) {
    int64_t n = b->a->dqk;
    for (int64_t h = 0; h < b->lines; h += 2)
        bf16_round_two(queries_of(b, g) + h * n, n, n,
                       (uint16_t *)rounded_queries_of(b, g) + h * n);
}

static void bf16_tile_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    for (int64_t h = 0; h < b->lines; h += 2)
        bf16_round_two(scores_of(b, g) + from + h * BLOCK, BLOCK, n,
                       (uint16_t *)weights_of(b, g) + h * BLOCK + 2 * from);
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

/* Queries in 16 bits (words), as high bytes and low ones: [lines][2][n], or as tiles, [lines][n / 8][2][8]; or
 * in 8 bits: [lines][n], or as tiles, [lines / 2][n / 8][2][8]. */
static ALWAYS_INLINE void i8_round_queries(const block_task *b, int64_t g, const bool words,
                                           const bool tiles) {
    int64_t n = b->a->dqk, step = tiles ? 2 : 1, low = tiles ? 8 : n;
    const real *from = queries_of(b, g), largest = words ? (real)I8_MOST : 127;
    for (int64_t h = 0; h < b->lines; h++, from += n) {
        int64_t at = words ? 2 * h * n : tiles ? h / 2 * 2 * n + h % 2 * 8 : h * n;
        int8_t *to = (int8_t *)rounded_queries_of(b, g) + at;
        real most = i8_largest(from, n), factor = most > 0 ? largest / most : 0;
        for (int64_t i = 0; i < n; i += 8) {
            int16x8_t x = i8_round(from + i, factor);
            vst1_s8(to + step * i, words ? i8_high(x) : i8_low(x));
            if (words) vst1_s8(to + step * i + low, i8_low(x));
        }
        b->s->q_scales[line_of(b, g) + h] = most / largest;
    }
}

#define QUERIES(name, words, tiles)                                                                \
    static void name(const block_task *b, int64_t g) {                                             \
        i8_round_queries(b, g, words, tiles);                                                      \
    }
QUERIES(i8_queries, true, false)
QUERIES(i8_pair_queries, true, true)
QUERIES(i8_row_queries, false, false)
QUERIES(i8_tile_queries, false, true)
#undef QUERIES

/* Weights in 16 bits, times their values' scales: [n / 8][2][8], eight high bytes and eight low ones. */
static void i8_weights(const block_task *b, int64_t g, int64_t first, int64_t n) {
    for (int64_t h = 0; h < b->lines; h++) {
        real *p = scores_of(b, g) + h * BLOCK + first;
        const real *scales = b->s->scales + first;
        int8_t *to = (int8_t *)weights_of(b, g) + 2 * (h * BLOCK + first);
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
        b->s->p_scales[line_of(b, g) + h] = most / (real)I8_MOST;
    }
}

/* `rows` rows of bytes and four keys: a line each, or two rows the halves of one. */
SDOT_TARGET static ALWAYS_INLINE void i8_dot_four(const int8_t *q, const int8_t *key, int64_t width,
                                                  int32x4_t *to, const int rows) {
    int32x4_t sum[4][4] = {0};
    for (int64_t c = 0; c < width; c += 16)
        UNROLLED(m, 4) {
            int8x16_t v = vld1q_s8(key + m * width + c);
            UNROLLED(r, rows)
                sum[r][m] = vdotq_s32(sum[r][m], vld1q_s8(q + r * width + c), v);
        }
    for (int r = 0; r < rows; r++)
        to[r] = sdot_four(sum[r]);
}

/* Sums of a query's high bytes and of its low ones as one. */
static ALWAYS_INLINE int32x4_t i8_join(int32x4_t high, int32x4_t low) {
    return vaddq_s32(vshlq_n_s32(high, 8), low);
}

/* Four scores. */
static ALWAYS_INLINE void i8_store(real *to, int32x4_t sums, const float *scales, real q_scale) {
    vst1q_f32(to, vmulq_f32(vcvtq_f32_s32(sums), vmulq_n_f32(vld1q_f32(scales), q_scale)));
}

/* The scores of `lines` lines and four keys; words: of queries in 16 bits. */
SDOT_TARGET static ALWAYS_INLINE void i8_score_four(const int8_t *q, const real *q_scales,
                                                    const int8_t *k, const float *scales,
                                                    int64_t width, real *s, const bool words,
                                                    const int lines) {
    int32x4_t sum[4];
    i8_dot_four(q, k, width, sum, words ? 2 * lines : lines);
    for (int h = 0; h < lines; h++)
        i8_store(s + h * BLOCK, words ? i8_join(sum[2 * h], sum[2 * h + 1]) : sum[h], scales,
                 q_scales[h]);
}

SDOT_TARGET static ALWAYS_INLINE void i8_score_page(const block_task *b, const page_run *run,
                                                    int64_t g, const bool words) {
    const int64_t width = b->a->dqk, row = words ? 2 * width : width;
    const int8_t *q = (const int8_t *)rounded_queries_of(b, g);
    const int8_t *k = (const int8_t *)head_at(&b->a->keys, run->page, g);
    const float *scales = scale_at(&b->a->keys, run->page, g, 0);
    const real *q_scales = b->s->q_scales + line_of(b, g);
    real *s = scores_of(b, g) + run->at;
    for (int64_t j = run->token & ~3, end = run->end; j < end; j += 4)
        EACH_TILES(h, n, b->lines, words ? 2 : 4,
                   i8_score_four(q + h * row, q_scales + h, k + j * width, scales + j, width,
                                 s + h * BLOCK + j, words, n));
}

SDOT_TARGET static void i8_score(const block_task *b, const page_run *run, int64_t g) {
    i8_score_page(b, run, g, true);
}

SDOT_TARGET static void i8_shared_score(const block_task *b, const page_run *run, int64_t g) {
    i8_score_page(b, run, g, false);
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

/* Eight columns of eight keys: two columns' eight numbers side by side in each vector. */
static ALWAYS_INLINE void i8_transpose_eight(const int8_t *v, int64_t width, int8_t *to) {
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
        vst1q_s8(to + 32 * m, vzip1q_s8(four[m], four[m + 2]));
        vst1q_s8(to + 32 * m + 16, vzip2q_s8(four[m], four[m + 2]));
    }
}

/* Eight columns of four keys of bf16: two columns' four numbers side by side in each vector. */
static ALWAYS_INLINE void bf16_transpose_four(const uint16_t *const *key, int64_t column,
                                              char *to) {
    uint16x8_t a = vld1q_u16(key[0] + column), b = vld1q_u16(key[1] + column);
    uint16x8_t c = vld1q_u16(key[2] + column), d = vld1q_u16(key[3] + column);
    uint16x8_t ac = vzip1q_u16(a, c), bd = vzip1q_u16(b, d);
    vst1q_u16((uint16_t *)to, vzip1q_u16(ac, bd));
    vst1q_u16((uint16_t *)to + 8, vzip2q_u16(ac, bd));
    ac = vzip2q_u16(a, c), bd = vzip2q_u16(b, d);
    vst1q_u16((uint16_t *)to + 16, vzip1q_u16(ac, bd));
    vst1q_u16((uint16_t *)to + 24, vzip2q_u16(ac, bd));
}

typedef enum { BY_BFMMLA, BY_SMMLA, BY_SDOT } laid_for;

/* Values of pages that follow each other, to [dv / 16][units][2][64 bytes]. A unit is four keys of bf16 or
 * eight of bytes by sixteen columns; its halves are eight columns each, for SDOT four keys. Returns how many
 * units there are; the first begins at units_from. */
static ALWAYS_INLINE int64_t units_from(const page_run *runs, const laid_for how) {
    return runs->at + (runs->token & (how == BY_BFMMLA ? ~3 : ~7));
}

static ALWAYS_INLINE int64_t lay_values(const block_task *b, const page_run *runs, int n, int64_t g,
                                        const laid_for how) {
    const int64_t keys = how == BY_BFMMLA ? 4 : 8, step = how == BY_SDOT ? 128 : 64;
    const int64_t width = b->a->dv;
    const page_run *last = runs + n - 1;
    int64_t units = ceil_div(last->at + last->end - units_from(runs, how), keys);
    char *to = b->s->packed;
    uint16_t *zeros = (uint16_t *)to + PAGES_TOGETHER * WEFT_PAGE_TOKENS * width;
    if (how == BY_BFMMLA) memset(zeros, 0, (size_t)width * sizeof *zeros);
    for (const page_run *run = runs; run <= last; run++) {
        const int8_t *bytes = (const int8_t *)head_at(&b->a->values, run->page, g);
        for (int64_t j = run->token & -keys; j < run->end; j += keys, to += step) {
            const int8_t *v = bytes + j * width;
            const uint16_t *key[4]; /* which might not be numbers where they are not seen */
            for (int m = 0; m < 4; m++)
                key[m] = j + m >= run->token && j + m < run->end
                             ? (const uint16_t *)bytes + (j + m) * width
                             : zeros;
            for (int64_t i = 0; i < width; i += 16)
                UNROLLED(half, 2) {
                    char *at = to + 8 * i * units + half * (how == BY_SDOT ? 64 : 64 * units);
                    if (how == BY_BFMMLA)
                        bf16_transpose_four(key, i + 8 * half, at);
                    else if (how == BY_SMMLA)
                        i8_transpose_eight(v + i + 8 * half, width, (int8_t *)at);
                    else
                        i8_transpose_four(v + 4 * half * width + i, width, (int8x16_t *)(void *)at);
                }
        }
    }
    return units;
}

/* sums [heads][width / 16][2][16], of high bytes, of low ones: sixteen columns of one head, from the
 * values as they lie, or of some from transposed ones. A head has 2 · BLOCK bytes of weights. */
SDOT_TARGET static ALWAYS_INLINE void i8_add_sixteen(const int8_t *p, const int8_t *v,
                                                     int64_t eights, int64_t width, int32_t *sums,
                                                     const int heads, const bool alone) {
    int32x4_t high[2][4], low[2][4];
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < 4; c++) {
            high[h][c] = vld1q_s32(sums + 2 * h * width + 4 * c);
            low[h][c] = vld1q_s32(sums + 2 * h * width + 16 + 4 * c);
        }
    for (int64_t e = 0; e < eights; e++, p += 16)
        UNROLLED(half, 2) {
            int8x16_t four[4];
            if (alone) i8_transpose_four(v + (8 * e + 4 * half) * width, width, four);
            for (int c = 0; !alone && c < 4; c++)
                four[c] = vld1q_s8(v + 128 * e + 64 * half + 16 * c);
            UNROLLED(h, heads) {
                int8x16_t w = vld1q_s8(p + 2 * h * BLOCK);
                UNROLLED(c, 4) {
                    high[h][c] = half ? vdotq_laneq_s32(high[h][c], four[c], w, 1)
                                      : vdotq_laneq_s32(high[h][c], four[c], w, 0);
                    low[h][c] = half ? vdotq_laneq_s32(low[h][c], four[c], w, 3)
                                     : vdotq_laneq_s32(low[h][c], four[c], w, 2);
                }
            }
        }
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < 4; c++) {
            vst1q_s32(sums + 2 * h * width + 4 * c, high[h][c]);
            vst1q_s32(sums + 2 * h * width + 16 + 4 * c, low[h][c]);
        }
}

/* Of one line, and a page. */
SDOT_TARGET static void i8_add(const block_task *b, const page_run *run, int n, int64_t g) {
    (void)n;
    int64_t width = b->a->dv, first = run->token & ~7, eights = ceil_div(run->end - first, 8);
    const int8_t *v = (const int8_t *)head_at(&b->a->values, run->page, g) + first * width;
    const int8_t *p = (const int8_t *)weights_of(b, g) + 2 * (run->at + first);
    for (int64_t i = 0; i < width; i += 16)
        i8_add_sixteen(p, v + i, eights, width, (int32_t *)sums_of(b, g) + 2 * i, 1, true);
}

SDOT_TARGET static void i8_shared_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    int64_t width = b->a->dv, eights = lay_values(b, runs, n, g, BY_SDOT);
    const int8_t *p = (const int8_t *)weights_of(b, g) + 2 * units_from(runs, BY_SDOT);
    for (int64_t i = 0; i < width; i += 16) {
        const int8_t *v = (const int8_t *)b->s->packed + 8 * i * eights;
        int32_t *sums = (int32_t *)sums_of(b, g) + 2 * i;
        EACH_TILES(h, count, b->lines, 2,
                   i8_add_sixteen(p + 2 * h * BLOCK, v, eights, width, sums + 2 * h * width, count,
                                  false));
    }
}

static void i8_finish(const block_task *b, int64_t g, int64_t h, real *to) {
    int64_t width = b->a->dv;
    const int32_t *sums = (const int32_t *)sums_of(b, g) + 2 * h * width;
    real scale = b->s->p_scales[line_of(b, g) + h];
    for (int64_t i = 0; i < width; i += 4) {
        const int32_t *high = sums + i / 16 * 32 + i % 16;
        int32x4_t sum = i8_join(vld1q_s32(high), vld1q_s32(high + 16));
        vst1q_f32(to + i, vmulq_n_f32(vcvtq_f32_s32(sum), scale));
    }
}

/* One line; lines that share a key head; and several that do not. */
static const attend_way i8_alone = {i8_queries, i8_score, i8_weights, i8_add, .finish = i8_finish};
static const attend_way i8_shared = {i8_row_queries, i8_shared_score, i8_weights, i8_shared_add,
                                     .finish = i8_finish};
static const attend_way i8_rows = {i8_queries, i8_score, i8_weights, i8_shared_add,
                                   .finish = i8_finish};

static void bf16_tile_finish(const block_task *b, int64_t g, int64_t h, real *to) {
    int64_t width = b->a->dv;
    const real *sums = (const real *)sums_of(b, g) + h / 2 * 4 * width + h % 2 * 2;
    for (int64_t i = 0; i < width; i += 2)
        memcpy(to + i, sums + 2 * i, 2 * sizeof *sums);
}

static void i8_tile_finish(const block_task *b, int64_t g, int64_t h, real *to) {
    int64_t width = b->a->dv;
    const int32_t *sums = (const int32_t *)sums_of(b, g) + 2 * h * width;
    real scale = b->s->p_scales[line_of(b, g) + h];
    for (int64_t i = 0; i < width; i += 4, sums += 8) {
        int64x2_t x = vreinterpretq_s64_s32(vld1q_s32(sums));
        int64x2_t y = vreinterpretq_s64_s32(vld1q_s32(sums + 4));
        int32x4_t high = vreinterpretq_s32_s64(vzip1q_s64(x, y));
        int32x4_t low = vreinterpretq_s32_s64(vzip2q_s64(x, y));
        vst1q_f32(to + i, vmulq_n_f32(vcvtq_f32_s32(i8_join(high, low)), scale));
    }
}

#define TILE(name) bf16_tile_##name
#define TILE_BF16 1
#define TILE_TARGET BF16_TARGET
#define TILE_WEIGHTS bf16_tile_weights
#include "cpu/cache_attention_arm_tiles.h"

#define TILE(name) i8_tile_##name
#define TILE_BF16 0
#define TILE_TARGET __attribute__((target("arch=armv8.2-a+i8mm")))
#define TILE_WEIGHTS i8_weights
#include "cpu/cache_attention_arm_tiles.h"

/* Queries in 16 bits by tiles: a tile's two rows are the high bytes and the low ones of one line. */
static const attend_way i8_pairs = {i8_pair_queries, i8_tile_word_score, i8_weights, i8_tile_add,
                                    .finish = i8_tile_finish};

static const attend_way *narrow_way(const weft_cache_part *part, int64_t group, bool several) {
    if (part->width % COLUMNS != 0) return NULL;
    if (part->dtype == WEFT_BF16 && weft_cpu_matrix() == WEFT_MATRIX_BFMMLA)
        return group == 1 ? &bf16_alone : &bf16_tile_way;
    if (part->dtype != WEFT_I8 || part->width > I8_WIDEST) return NULL;
    if (several && weft_cpu_tiles_i8()) return group == 1 ? &i8_pairs : &i8_tile_way;
    if (!weft_cpu_dots_i8()) return NULL;
    return group > 1 ? &i8_shared : several ? &i8_rows : &i8_alone;
}

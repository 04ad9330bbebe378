/* Attention over bf16 pages by BFDOT, the instruction that sums products of bf16 pairs, where the
 * processor has it: nothing is widened. Queries and weights are rounded to bf16, as keys and values
 * are. A score has four chains over its columns; a value's column one chain over pairs of keys. */
#ifndef WEFT_CPU_CACHE_ATTENTION_BF16_H
#define WEFT_CPU_CACHE_ATTENTION_BF16_H

#include "cpu/cached.h"
#include "cpu/matrix.h"

#if WEFT_ARM_TARGETS && WEFT_REAL == 32

#define BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

enum { BF16_COLUMNS = 32 /* widths must be multiples of this */ };

static inline bool bf16_attends(const weft_cache_part *key, const weft_cache_part *value) {
    return key->dtype == WEFT_BF16 && value->dtype == WEFT_BF16 && key->width % BF16_COLUMNS == 0 &&
           value->width % BF16_COLUMNS == 0 && weft_cpu_matrix() == WEFT_MATRIX_BFMMLA;
}

BF16_TARGET static ALWAYS_INLINE bfloat16x8_t bf16_load(const uint16_t *from) {
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

/* Products of `queries` queries (ld width) with `keys` keys, 1 or 4; s has rows of `ld`. */
BF16_TARGET static ALWAYS_INLINE void bf16_dots(const uint16_t *q, const uint16_t *k, int64_t width,
                                                real *s, int64_t ld, const int queries,
                                                const int keys) {
    float32x4_t sum[4][4];
    for (int h = 0; h < queries; h++)
        for (int j = 0; j < keys; j++)
            sum[h][j] = vdupq_n_f32(0);
    for (int64_t i = 0; i < width; i += 8) {
        bfloat16x8_t key[4];
        for (int j = 0; j < keys; j++)
            key[j] = bf16_load(k + j * width + i);
        for (int h = 0; h < queries; h++) {
            bfloat16x8_t v = bf16_load(q + h * width + i);
            for (int j = 0; j < keys; j++)
                sum[h][j] = vbfdotq_f32(sum[h][j], v, key[j]);
        }
    }
    for (int h = 0; h < queries; h++) {
        if (keys == 4)
            vst1q_f32(s + h * ld, vpaddq_f32(vpaddq_f32(sum[h][0], sum[h][1]),
                                             vpaddq_f32(sum[h][2], sum[h][3])));
        else
            s[h * ld] = vaddvq_f32(sum[h][0]);
    }
}

/* s [queries, ld] for `count` keys one after the other. */
BF16_TARGET static ALWAYS_INLINE void bf16_score_rows(const uint16_t *q, const uint16_t *k,
                                                      int64_t width, int64_t count, real *s,
                                                      int64_t ld, const int queries) {
    int64_t j = 0;
    for (; j + 4 <= count; j += 4)
        bf16_dots(q, k + j * width, width, s + j, ld, queries, 4);
    for (; j < count; j++)
        bf16_dots(q, k + j * width, width, s + j, ld, queries, 1);
}

BF16_TARGET static void bf16_score(const uint16_t *q, int64_t group, const uint16_t *k,
                                   int64_t width, int64_t count, real *s, int64_t ld) {
    int64_t h = 0;
    for (; h + 4 <= group; h += 4)
        bf16_score_rows(q + h * width, k, width, count, s + h * ld, ld, 4);
    for (; h + 2 <= group; h += 2)
        bf16_score_rows(q + h * width, k, width, count, s + h * ld, ld, 2);
    if (h < group) bf16_score_rows(q + h * width, k, width, count, s + h * ld, ld, 1);
}

/* Two keys' columns side by side: [column 0 of both, column 1 of both, ...], four columns a vector. */
BF16_TARGET static ALWAYS_INLINE void bf16_pairs(const uint16_t *first, const uint16_t *second,
                                                 bfloat16x8_t *to, const int vectors) {
    for (int v = 0; v < vectors / 2; v++) {
        uint16x8_t a = vld1q_u16(first + 8 * v), b = vld1q_u16(second + 8 * v);
        to[2 * v] = vreinterpretq_bf16_u16(vzip1q_u16(a, b));
        to[2 * v + 1] = vreinterpretq_bf16_u16(vzip2q_u16(a, b));
    }
}

/* The pages' values of a block: where each page's tokens lie, and how many they are. */
typedef struct {
    const uint16_t *at[WEFT_KEY_BLOCK / WEFT_PAGE_TOKENS + 1];
    int count[WEFT_KEY_BLOCK / WEFT_PAGE_TOKENS + 1];
    int n;
} bf16_runs;

/* to [queries, step]: `vectors` · 4 columns from `column` on of Σ_j p_j v_j. */
BF16_TARGET static ALWAYS_INLINE void bf16_add_values(const bf16_runs *runs, const uint16_t *p,
                                                      int64_t ld, int64_t width, int64_t column,
                                                      real *to, int64_t step, const int queries,
                                                      const int vectors) {
    static const uint16_t zeros[4 * 8];
    float32x4_t sum[4][8];
    for (int h = 0; h < queries; h++)
        for (int v = 0; v < vectors; v++)
            sum[h][v] = vdupq_n_f32(0);
    for (int r = 0; r < runs->n; r++) {
        const uint16_t *from = runs->at[r] + column;
        for (int t = 0; t < runs->count[r]; t += 2, from += 2 * width) {
            bool alone = t + 1 == runs->count[r];
            bfloat16x8_t pair[8];
            bf16_pairs(from, alone ? zeros : from + width, pair, vectors);
            for (int h = 0; h < queries; h++) {
                uint32_t two = p[h * ld + t];
                if (!alone) memcpy(&two, p + h * ld + t, sizeof two);
                bfloat16x8_t weight = vreinterpretq_bf16_u32(vdupq_n_u32(two));
                for (int v = 0; v < vectors; v++)
                    sum[h][v] = vbfdotq_f32(sum[h][v], pair[v], weight);
            }
        }
        p += runs->count[r];
    }
    for (int h = 0; h < queries; h++)
        for (int v = 0; v < vectors; v++)
            vst1q_f32(to + h * step + column + 4 * v, sum[h][v]);
}

BF16_TARGET static void bf16_values(const bf16_runs *runs, const uint16_t *p, int64_t ld,
                                    int64_t group, int64_t width, real *to, int64_t step) {
    int64_t h = 0;
    for (; h + 4 <= group; h += 4)
        for (int64_t column = 0; column < width; column += 16)
            bf16_add_values(runs, p + h * ld, ld, width, column, to + h * step, step, 4, 4);
    for (; h < group; h++)
        for (int64_t column = 0; column < width; column += 32)
            bf16_add_values(runs, p + h * ld, ld, width, column, to + h * step, step, 1, 8);
}

#define HAVE_BF16_ATTENTION 1
#else

static inline bool bf16_attends(const weft_cache_part *key, const weft_cache_part *value) {
    (void)key;
    (void)value;
    return false;
}

#define HAVE_BF16_ATTENTION 0
#endif

#endif

/* Attention over bf16 pages by the instructions that multiply bf16, where the processor has them:
 * nothing is widened. Queries and weights are rounded to bf16, as keys and values are.
 *
 * A query head with a key head of its own goes by BFDOT, which sums products of pairs: a score has
 * four chains over its columns, a value's column one chain over pairs of keys. Query heads that
 * share a key head go by BFMMLA, two heads by two keys (or columns) at a time: tiles of two rows.
 *
 * Keys are taken by fours that begin at multiples of four. Scores of keys outside of the row's are
 * written too, and never read; values of such keys are not touched: they might not be numbers. */
#ifndef WEFT_CPU_CACHE_ATTENTION_BF16_H
#define WEFT_CPU_CACHE_ATTENTION_BF16_H

#include "cpu/bytes.h"
#include "cpu/cached.h"

#if BYTES_ARM

#define BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

enum { BF16_COLUMNS = 32 /* widths must be multiples of this */ };

static inline bool bf16_attends(const weft_cache_part *part, bool alone) {
    (void)alone;
    return part->dtype == WEFT_BF16 && part->width % BF16_COLUMNS == 0 &&
           weft_cpu_matrix() == WEFT_MATRIX_BFMMLA;
}

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

/* Rows of n numbers, a multiple of four, as tiles: [rows / 2][n / 4][2][4]. A row that is missing is
 * made of zeros. */
BF16_TARGET static void bf16_round_tiles(const real *from, int64_t ld, int64_t rows, int64_t n,
                                         uint16_t *to) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t i = 0; i < n; i += 4, to += 8) {
            uint16x4_t second = vdup_n_u16(0);
            if (r + 1 < rows) second = bf16_round(from + (r + 1) * ld + i);
            vst1q_u16(to, vcombine_u16(bf16_round(from + r * ld + i), second));
        }
}

/* s: the products of one query with keys [token, end) of a page; s and k begin with the page. */
BF16_TARGET static void bf16_score_alone(const uint16_t *q, const uint16_t *k, int64_t width,
                                         int64_t token, int64_t end, real *s) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        const uint16_t *key = k + j * width;
        float32x4_t sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < width; i += BF16_COLUMNS)
            for (int64_t c = i; c < i + BF16_COLUMNS; c += 8) {
                bfloat16x8_t v = bf16_load(q + c);
                for (int m = 0; m < 4; m++)
                    sum[m] = vbfdotq_f32(sum[m], v, bf16_load(key + m * width + c));
            }
        vst1q_f32(s + j, vpaddq_f32(vpaddq_f32(sum[0], sum[1]), vpaddq_f32(sum[2], sum[3])));
    }
}

/* The same for `tiles` tiles of queries and four keys; rows of s are `ld` apart. */
BF16_TARGET static ALWAYS_INLINE void bf16_score_four(const uint16_t *q, const uint16_t *k,
                                                      int64_t width, real *s, int64_t ld,
                                                      const int tiles) {
    float32x4_t sum[6][2];
    for (int t = 0; t < tiles; t++)
        sum[t][0] = sum[t][1] = vdupq_n_f32(0);
    for (int64_t i = 0; i < width; i += 8) {
        bfloat16x8_t key[2][2];
        for (int m = 0; m < 2; m++) {
            uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(k + 2 * m * width + i));
            uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(k + (2 * m + 1) * width + i));
            key[m][0] = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
            key[m][1] = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
        }
        for (int t = 0; t < tiles; t++)
            for (int half = 0; half < 2; half++) {
                bfloat16x8_t v = bf16_load(q + 2 * (t * width + i) + 8 * half);
                for (int m = 0; m < 2; m++)
                    sum[t][m] = vbfmmlaq_f32(sum[t][m], v, key[m][half]);
            }
    }
    for (int t = 0; t < tiles; t++) {
        float64x2_t a = vreinterpretq_f64_f32(sum[t][0]), b = vreinterpretq_f64_f32(sum[t][1]);
        vst1q_f32(s + 2 * t * ld, vreinterpretq_f32_f64(vzip1q_f64(a, b)));
        vst1q_f32(s + (2 * t + 1) * ld, vreinterpretq_f32_f64(vzip2q_f64(a, b)));
    }
}

BF16_TARGET static void bf16_score_tiles(const uint16_t *q, int64_t tiles, const uint16_t *k,
                                         int64_t width, int64_t token, int64_t end, real *s,
                                         int64_t ld) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        int64_t t = 0;
        for (; t + 6 <= tiles; t += 6)
            bf16_score_four(q + 2 * t * width, k + j * width, width, s + 2 * t * ld + j, ld, 6);
        for (; t + 2 <= tiles; t += 2)
            bf16_score_four(q + 2 * t * width, k + j * width, width, s + 2 * t * ld + j, ld, 2);
        if (t < tiles)
            bf16_score_four(q + 2 * t * width, k + j * width, width, s + 2 * t * ld + j, ld, 1);
    }
}

/* sums [32 columns] += the weighted values of two keys. */
BF16_TARGET static ALWAYS_INLINE void bf16_add_pair(float32x4_t *sum, const uint16_t *first,
                                                    const uint16_t *second, uint32_t two) {
    bfloat16x8_t weight = vreinterpretq_bf16_u32(vdupq_n_u32(two));
    for (int v = 0; v < BF16_COLUMNS / 8; v++) {
        uint16x8_t a = vld1q_u16(first + 8 * v), b = vld1q_u16(second + 8 * v);
        sum[2 * v] = vbfdotq_f32(sum[2 * v], vreinterpretq_bf16_u16(vzip1q_u16(a, b)), weight);
        sum[2 * v + 1] =
            vbfdotq_f32(sum[2 * v + 1], vreinterpretq_bf16_u16(vzip2q_u16(a, b)), weight);
    }
}

/* sums [width] += Σ p_j v_j over keys [token, end) of a page; p and v begin with the page. */
BF16_TARGET static void bf16_add_alone(const uint16_t *p, const uint16_t *v, int64_t width,
                                       int64_t token, int64_t end, real *sums) {
    static const uint16_t zeros[BF16_COLUMNS];
    for (int64_t i = 0; i < width; i += BF16_COLUMNS) {
        float32x4_t sum[BF16_COLUMNS / 4];
        for (int c = 0; c < BF16_COLUMNS / 4; c++)
            sum[c] = vld1q_f32(sums + i + 4 * c);
        int64_t j = token;
        for (; j + 2 <= end; j += 2) {
            uint32_t two;
            memcpy(&two, p + j, sizeof two);
            bf16_add_pair(sum, v + j * width + i, v + (j + 1) * width + i, two);
        }
        if (j < end) bf16_add_pair(sum, v + j * width + i, zeros, p[j]);
        for (int c = 0; c < BF16_COLUMNS / 4; c++)
            vst1q_f32(sums + i + 4 * c, sum[c]);
    }
}

/* Fours of keys that lie one after the other. */
typedef struct {
    const uint16_t *v, *p; /* the first four's values; tile 0's weights of them */
    int64_t fours;
} bf16_run;

/* Eight columns of four keys: two columns' four numbers side by side in each vector. */
BF16_TARGET static ALWAYS_INLINE void bf16_transpose(const uint16_t *v, int64_t width,
                                                     bfloat16x8_t *to) {
    uint16x8_t a = vld1q_u16(v), b = vld1q_u16(v + width);
    uint16x8_t c = vld1q_u16(v + 2 * width), d = vld1q_u16(v + 3 * width);
    uint16x8_t ac = vzip1q_u16(a, c), bd = vzip1q_u16(b, d);
    to[0] = vreinterpretq_bf16_u16(vzip1q_u16(ac, bd));
    to[1] = vreinterpretq_bf16_u16(vzip2q_u16(ac, bd));
    ac = vzip2q_u16(a, c), bd = vzip2q_u16(b, d);
    to[2] = vreinterpretq_bf16_u16(vzip1q_u16(ac, bd));
    to[3] = vreinterpretq_bf16_u16(vzip2q_u16(ac, bd));
}

/* sums [tiles][width / 2][2][2]: eight columns of `tiles` tiles += the weighted values. A tile has
 * weights of BLOCK keys. */
BF16_TARGET static ALWAYS_INLINE void bf16_add_eight(const bf16_run *runs, int n, int64_t width,
                                                     int64_t tile, int64_t column, real *sums,
                                                     const int tiles) {
    float32x4_t sum[6][4];
    for (int t = 0; t < tiles; t++)
        for (int c = 0; c < 4; c++)
            sum[t][c] = vld1q_f32(sums + 2 * ((tile + t) * width + column) + 4 * c);
    for (int r = 0; r < n; r++) {
        const uint16_t *v = runs[r].v + column, *p = runs[r].p + 2 * tile * WEFT_KEY_BLOCK;
        for (int64_t four = 0; four < runs[r].fours; four++, v += 4 * width, p += 8) {
            bfloat16x8_t transposed[4];
            bf16_transpose(v, width, transposed);
            for (int t = 0; t < tiles; t++) {
                bfloat16x8_t weight = bf16_load(p + 2 * t * WEFT_KEY_BLOCK);
                for (int c = 0; c < 4; c++)
                    sum[t][c] = vbfmmlaq_f32(sum[t][c], weight, transposed[c]);
            }
        }
    }
    for (int t = 0; t < tiles; t++)
        for (int c = 0; c < 4; c++)
            vst1q_f32(sums + 2 * ((tile + t) * width + column) + 4 * c, sum[t][c]);
}

BF16_TARGET static void bf16_add_runs(const bf16_run *runs, int n, int64_t width, int64_t tiles,
                                      real *sums) {
    for (int64_t column = 0; column < width; column += 8) {
        int64_t t = 0;
        for (; t + 6 <= tiles; t += 6)
            bf16_add_eight(runs, n, width, t, column, sums, 6);
        for (; t + 2 <= tiles; t += 2)
            bf16_add_eight(runs, n, width, t, column, sums, 2);
        if (t < tiles) bf16_add_eight(runs, n, width, t, column, sums, 1);
    }
}

/* Keys [token, end) of a page that are no whole four, the one at `four`: they are copied to `room`
 * [4, width], with zeros for those that are missing. */
static bf16_run bf16_edge(const uint16_t *p, const uint16_t *v, int64_t width, int64_t four,
                          int64_t token, int64_t end, uint16_t *room) {
    memset(room, 0, (size_t)(4 * width) * sizeof *room);
    for (int64_t j = max_i64(four, token); j < min_i64(four + 4, end); j++)
        memcpy(room + (j - four) * width, v + j * width, (size_t)width * sizeof *room);
    return (bf16_run){room, p + 2 * four, 1};
}

/* Sums of tiles to rows. */
BF16_TARGET static void bf16_untile(const real *sums, int64_t rows, int64_t width, real *to,
                                    int64_t step) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += 2)
            memcpy(to + r * step + i, sums + (r / 2 * width + i) * 2 + r % 2 * 2, 2 * sizeof *to);
}

#endif

#endif

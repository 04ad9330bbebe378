/* The steps of a block for query heads that share a key head, over i8 pages on x86-64 without AMX, by
 * sums of two products of 16 bits: VNNI's VPDPWSSD, or VPMADDWD and an addition.
 *
 * Both products are one: sums [heads][n] += Σ x [heads][2 steps] · packed [steps][n][2]. For scores x are
 * the queries, n a page's keys, and a step is two columns; for values x are the weights, n columns, and
 * a step is two keys. What is packed is read for all heads.
 *
 * Queries, and weights times their values' scales, are rounded to 16 bits with one scale for each head,
 * as for a head that has keys of its own; sums are exact. Pages are taken whole: of keys that are not
 * seen the scores are never read, and the weights are zeros. */
#ifndef WEFT_CPU_CACHE_ATTENTION_PAIRS_H
#define WEFT_CPU_CACHE_ATTENTION_PAIRS_H

#include "cpu/cache_attention_task.h"
#include "cpu/cache_attention_x86.h"
#include "cpu/transpose.h"

#if BYTES_X86

enum {
    PAGE_STEP = 4 * WEFT_PAGE_TOKENS,  /* bytes of a step of scores, */
    PAGE_VECTORS = PAGE_STEP / VBYTES, /* as vectors; a step of values has two */
    PAIRS_HEADS = 6,                   /* of two vectors, or twice as many of one: twelve sums */
    SCORE_HEADS = 12                   /* whose scores of a page wait for their scales */
};

static inline bool pairs_attend(const weft_cache_part *part, int64_t group) {
    return part->dtype == WEFT_I8 && group > 1 && part->width % (2 * NARROW_STEP) == 0 &&
           part->width <= I8_WIDEST;
}

#define BYTES_SOURCE "cpu/cache_attention_pairs_sum.h"
#include "cpu/bytes_each.h"

static void pairs_sum(const pairs_product *p) {
#if BYTES_VNNI
    if (weft_cpu_dots_i8()) {
        vnni_sum(p);
        return;
    }
#endif
    madd_sum(p);
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

static void pairs_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    int16_t *to = (int16_t *)rounded_queries_of(b, g);
    for (int64_t h = 0; h < a->group; h++, to += a->dqk) {
        b->s.q_scales[g * a->rows + h] =
            i8_round_query(queries_of(b, g) + h * a->dqk, a->dqk, (int8_t *)to);
        swap_middles(to, a->dqk);
    }
}

#if VBYTES == 64

/* Sixteen columns of a page's keys as [4][16 keys][4]. */
static ALWAYS_INLINE void transpose_columns(const char *k, int64_t width, char *to) {
    transpose_lanes(k, width, to, PAGE_STEP, 4);
}

#else

/* Sixteen columns of a key and of the one four behind it. */
static ALWAYS_INLINE __m256i two_keys(const char *k, int64_t width) {
    __m128i one = _mm_loadu_si128((const __m128i *)(const void *)k);
    __m128i two = _mm_loadu_si128((const __m128i *)(const void *)(k + 4 * width));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(one), two, 1);
}

static ALWAYS_INLINE void transpose_columns(const char *k, int64_t width, char *to) {
    for (int half = 0; half < PAGE_VECTORS; half++, k += 8 * width, to += VBYTES) {
        __m256i r0 = two_keys(k, width), r1 = two_keys(k + width, width);
        __m256i r2 = two_keys(k + 2 * width, width), r3 = two_keys(k + 3 * width, width);
        __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
        __m256i c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
        __m256i four[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                           _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
        for (int i = 0; i < 4; i++)
            memcpy(to + i * PAGE_STEP, &four[i], VBYTES);
    }
}

#endif

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

static void pairs_score(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const float *scales = scale_at(&a->keys, run->page, g, 0);
    char packed[2 * WEFT_PAGE_TOKENS * I8_WIDEST] __attribute__((aligned(64)));
    pack_keys(head_at(&a->keys, run->page, g), a->dqk, packed);
    for (int64_t first = 0; first < a->group; first += SCORE_HEADS) {
        int32_t sums[SCORE_HEADS * WEFT_PAGE_TOKENS] = {0};
        pairs_product p = {.x = (const int16_t *)rounded_queries_of(b, g) + first * a->dqk,
                           .ld = a->dqk,
                           .heads = min_i64(SCORE_HEADS, a->group - first),
                           .packed = packed,
                           .steps = a->dqk / 2,
                           .vectors = PAGE_VECTORS,
                           .sums = sums,
                           .step = WEFT_PAGE_TOKENS};
        pairs_sum(&p);
        for (int64_t h = 0; h < p.heads; h++) {
            real *to = scores_of(b, g) + (first + h) * BLOCK + run->at;
            real scale = b->s.q_scales[g * a->rows + first + h];
            for (int64_t j = 0; j < WEFT_PAGE_TOKENS; j += VLEN) {
                vsums sum = load_sums(sums + h * WEFT_PAGE_TOKENS + j);
                vstore(to + j, __builtin_convertvector(sum, vreal) * (vload(scales + j) * scale));
            }
        }
    }
}

/* The weights of n keys from `from` on. */
static void pairs_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    const attend_run *a = b->a;
    for (int64_t h = 0; h < a->group; h++)
        b->s.p_scales[g * a->rows + h] =
            i8_round_weights(scores_of(b, g) + h * BLOCK + from, b->s.scales + from, n,
                             (int8_t *)weights_of(b, g) + 2 * (h * BLOCK + from));
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

/* Of pages that follow each other, so do the weights. */
static void pairs_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    const int64_t page_steps = WEFT_PAGE_TOKENS / 2, steps = n * page_steps;
    char *packed = b->s.room;
    for (int r = 0; r < n; r++)
        pack_pairs((const int8_t *)head_at(&a->values, runs[r].page, g), a->dv, steps,
                   packed + r * page_steps * 2 * VBYTES);
    for (int64_t i = 0; i < a->dv; i += 2 * NARROW_STEP) {
        pairs_product p = {.x = (const int16_t *)weights_of(b, g) + runs[0].at,
                           .ld = BLOCK,
                           .heads = a->group,
                           .packed = packed + 4 * i * steps,
                           .steps = steps,
                           .vectors = 2,
                           .sums = (int32_t *)sums_of(b, g) + i,
                           .step = a->dv};
        pairs_sum(&p);
    }
}

static void pairs_finish(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    for (int64_t h = 0; h < a->group; h++)
        i8_finish_alone((const int32_t *)sums_of(b, g) + h * a->dv, a->dv,
                        b->s.p_scales[g * a->rows + h], out_of(b, g) + h * out_step(a));
}

#else

static inline bool pairs_attend(const weft_cache_part *part, int64_t group) {
    (void)part, (void)group;
    return false;
}

#endif

#endif

/* The steps of a block for query heads that share a key head. On Arm by the instructions that multiply
 * tiles, BFMMLA and SMMLA: two heads are a tile's rows. On x86-64 by AMX, and i8 without it by pairs. */
#ifndef WEFT_CPU_CACHE_ATTENTION_TILES_H
#define WEFT_CPU_CACHE_ATTENTION_TILES_H

#include "cpu/cache_attention_amx.h"
#include "cpu/cache_attention_bf16.h"
#include "cpu/cache_attention_i8.h"
#include "cpu/cache_attention_pairs.h"
#include "cpu/cache_attention_task.h"

#if BYTES_ARM

static inline void tiles_begin(void) {
}

static inline void tiles_end(void) {
}

static void tiles_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const real *q = queries_of(b, g);
    char *to = rounded_queries_of(b, g);
    if (a->key_way == BY_BF16)
        bf16_round_tiles(q, a->dqk, a->group, a->dqk, (uint16_t *)to);
    else if (a->key_way == BY_I8)
        i8_round_queries(q, a->group, a->dqk, (int8_t *)to, b->s.q_scales + g * a->rows);
}

static void tiles_score(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const char *k = head_at(&a->keys, run->page, g), *q = rounded_queries_of(b, g);
    real *s = scores_of(b, g) + run->at;
    if (a->key_way == BY_BF16)
        bf16_score_tiles((const uint16_t *)q, a->rows / 2, (const uint16_t *)k, a->dqk, run->token,
                         run->end, s, BLOCK);
    else
        i8_score_tiles((const int8_t *)q, b->s.q_scales + g * a->rows, a->rows / 2,
                       (const int8_t *)k, scale_at(&a->keys, run->page, g, 0), a->dqk, run->token,
                       run->end, s, BLOCK);
}

/* The weights of n keys from `from` on. */
static void tiles_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    const attend_run *a = b->a;
    real *p = scores_of(b, g) + from;
    char *to = weights_of(b, g);
    for (int64_t h = 0; a->value_way == BY_BF16 && h < a->group; h += 2)
        bf16_round_tiles(p + h * BLOCK, BLOCK, min_i64(2, a->group - h), n,
                         (uint16_t *)to + h * BLOCK + 2 * from);
    for (int64_t h = 0; a->value_way == BY_I8 && h < a->group; h++)
        b->s.p_scales[g * a->rows + h] = i8_round_weights(p + h * BLOCK, b->s.scales + from, n,
                                                          (int8_t *)to + 2 * (h * BLOCK + from));
}

static void add_bf16_tiles(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    real *sums = (real *)sums_of(b, g);
    bf16_run whole[PAGES_TOGETHER];
    for (int r = 0; r < n; r++) {
        const page_run *run = runs + r;
        const uint16_t *v = (const uint16_t *)head_at(&a->values, run->page, g);
        const uint16_t *p = (const uint16_t *)weights_of(b, g) + 2 * run->at;
        int64_t from = (run->token + 3) & ~3, end = run->end & ~3;
        whole[r] = (bf16_run){v + from * a->dv, p + 2 * from, max_i64(end - from, 0) / 4};
        for (int64_t four = run->token & ~3; four < run->end; four += 4) {
            if (four >= from && four < end) continue;
            bf16_run edge = bf16_edge(p, v, a->dv, four, run->token, run->end, b->s.room);
            bf16_add_runs(&edge, 1, a->dv, a->rows / 2, sums);
        }
    }
    bf16_add_runs(whole, n, a->dv, a->rows / 2, sums);
}

/* Of pages that follow each other, so do the weights. */
static void add_i8_tiles(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    int64_t first = runs[0].at + (runs[0].token & ~7);
    int64_t eights = ceil_div(runs[n - 1].at + runs[n - 1].end - first, 8), done = 0;
    for (int r = 0; r < n; r++) {
        int64_t token = runs[r].token & ~7, count = ceil_div(runs[r].end - token, 8);
        const int8_t *v = (const int8_t *)head_at(&a->values, runs[r].page, g) + token * a->dv;
        i8_transpose_keys(v, a->dv, count, eights, (int8_t *)b->s.room + 64 * done);
        done += count;
    }
    i8_add_tiles((const int8_t *)weights_of(b, g) + 2 * first, a->group, b->s.room, eights, a->dv,
                 (int32_t *)sums_of(b, g));
}

static void tiles_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    (b->a->value_way == BY_BF16 ? add_bf16_tiles : add_i8_tiles)(b, runs, n, g);
}

static void tiles_finish(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    if (a->value_way == BY_BF16)
        bf16_untile((const real *)sums_of(b, g), a->group, a->dv, out_of(b, g), out_step(a));
    for (int64_t h = 0; a->value_way == BY_I8 && h < a->group; h++)
        i8_finish_tile((const int32_t *)sums_of(b, g) + 2 * h * a->dv, a->dv,
                       b->s.p_scales[g * a->rows + h], out_of(b, g) + h * out_step(a));
}

#elif BYTES_X86

static void tiles_begin(void) {
    amx_begin();
}

static void tiles_end(void) {
    amx_end();
}

static void tiles_queries(const block_task *b, int64_t g) {
    (b->a->key_way == BY_PAIRS ? pairs_queries : amx_queries)(b, g);
}

static void tiles_score(const block_task *b, const page_run *run, int64_t g) {
    (b->a->key_way == BY_PAIRS ? pairs_score : amx_score)(b, run, g);
}

static void tiles_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    (b->a->value_way == BY_PAIRS ? pairs_weights : amx_weights)(b, g, from, n);
}

static void tiles_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    (b->a->value_way == BY_PAIRS ? pairs_add : amx_add)(b, runs, n, g);
}

static void tiles_finish(const block_task *b, int64_t g) {
    (b->a->value_way == BY_PAIRS ? pairs_finish : amx_finish)(b, g);
}

#endif

#endif

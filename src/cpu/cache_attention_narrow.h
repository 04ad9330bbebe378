/* Keys and values of a narrow type by the instructions made for it: which way a part goes, and the
 * steps of a block by that way. Each step says whether it did anything; what it left goes by plain
 * vector code. */
#ifndef WEFT_CPU_CACHE_ATTENTION_NARROW_H
#define WEFT_CPU_CACHE_ATTENTION_NARROW_H

#include "cpu/cache_attention_bf16.h"
#include "cpu/cache_attention_i8.h"
#include "cpu/cache_attention_task.h"

#if WEFT_ARM_TARGETS && WEFT_REAL == 32

static attend_way narrow_way(const weft_cache_part *part, int64_t group) {
    return bf16_attends(part) ? BY_BF16 : i8_attends(part, group == 1) ? BY_I8 : BY_PLAIN;
}

/* Rounds the queries as the keys' way wants them. */
static void narrow_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const real *q = queries_of(b, g);
    char *to = rounded_queries_of(b, g);
    real *scales = b->s.q_scales + g * a->rows;
    if (a->key_way == BY_BF16 && a->group == 1)
        bf16_round_row(q, a->dqk, (uint16_t *)to);
    else if (a->key_way == BY_BF16)
        bf16_round_tiles(q, a->dqk, a->group, a->dqk, (uint16_t *)to);
    else if (a->key_way == BY_I8 && a->group == 1)
        *scales = i8_round_query(q, a->dqk, (int8_t *)to);
    else if (a->key_way == BY_I8)
        i8_round_queries(q, a->group, a->dqk, (int8_t *)to, scales);
}

static void score_bf16(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const uint16_t *k = (const uint16_t *)head_at(&a->keys, run->page, g);
    const uint16_t *q = (const uint16_t *)rounded_queries_of(b, g);
    real *s = scores_of(b, g) + run->at;
    if (a->group == 1)
        bf16_score_alone(q, k, a->dqk, run->token, run->end, s);
    else
        bf16_score_tiles(q, a->rows / 2, k, a->dqk, run->token, run->end, s, BLOCK);
}

static void score_i8(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const int8_t *k = (const int8_t *)head_at(&a->keys, run->page, g);
    const int8_t *q = (const int8_t *)rounded_queries_of(b, g);
    const float *scales = scale_at(&a->keys, run->page, g, 0);
    const real *q_scales = b->s.q_scales + g * a->rows;
    real *s = scores_of(b, g) + run->at;
    if (a->group == 1)
        i8_score_alone(q, *q_scales, k, scales, a->dqk, run->token, run->end, s);
    else
        i8_score_tiles(q, q_scales, a->rows / 2, k, scales, a->dqk, run->token, run->end, s, BLOCK);
}

static bool narrow_score(const block_task *b, const page_run *run, int64_t g) {
    if (b->a->key_way == BY_BF16) score_bf16(b, run, g);
    if (b->a->key_way == BY_I8) score_i8(b, run, g);
    return b->a->key_way != BY_PLAIN;
}

/* Zeros beside [lead, end), up to multiples of eight. */
static inline void clear_edges(real *x, int64_t lead, int64_t end) {
    for (int64_t j = lead & ~7; j < lead; j++)
        x[j] = 0;
    for (int64_t j = end; j % 8 != 0; j++)
        x[j] = 0;
}

static void read_scales(const block_task *b, int64_t g) {
    for (int64_t j = b->first; j < b->end;) {
        page_run run = run_at(b, &b->a->values, j);
        int64_t count = run.end - run.token;
        memcpy(b->s.scales + run.at + run.token, scale_at(&b->a->values, run.page, g, run.token),
               (size_t)count * sizeof(real));
        j += count;
    }
    clear_edges(b->s.scales, b->first - b->base, b->end - b->base);
}

/* Rounds the weights, which stand in place of the scores, as the values' way wants them. */
static void narrow_weights(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    if (a->value_way == BY_PLAIN) return;
    int64_t lead = b->first - b->base, end = b->end - b->base;
    int64_t from = lead & ~7, n = ((end + 7) & ~7) - from;
    real *p = scores_of(b, g);
    char *to = weights_of(b, g);
    for (int64_t h = 0; h < a->group; h++)
        clear_edges(p + h * BLOCK, lead, end);
    if (a->value_way == BY_I8) read_scales(b, g);
    for (int64_t h = 0; a->value_way == BY_I8 && h < a->group; h++)
        b->s.p_scales[g * a->rows + h] = i8_round_weights(p + h * BLOCK + from, b->s.scales + from,
                                                          n, (int8_t *)to + 2 * (h * BLOCK + from));
    if (a->value_way == BY_BF16 && a->group == 1)
        bf16_round_row(p + from, n, (uint16_t *)to + from);
    else if (a->value_way == BY_BF16)
        for (int64_t h = 0; h < a->group; h += 2)
            bf16_round_tiles(p + h * BLOCK + from, BLOCK, min_i64(2, a->group - h), n,
                             (uint16_t *)to + h * BLOCK + 2 * from);
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
        i8_turn_keys(v, a->dv, count, eights, (int8_t *)b->s.room + 64 * done);
        done += count;
    }
    i8_add_tiles((const int8_t *)weights_of(b, g) + 2 * first, a->group, b->s.room, eights, a->dv,
                 (int32_t *)sums_of(b, g));
}

static void add_alone(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const char *v = head_at(&a->values, run->page, g), *p = weights_of(b, g) + 2 * run->at;
    if (a->value_way == BY_BF16)
        bf16_add_alone((const uint16_t *)p, (const uint16_t *)v, a->dv, run->token, run->end,
                       out_of(b, g));
    else
        i8_add_alone((const int8_t *)p, (const int8_t *)v, a->dv, run->token, run->end,
                     (int32_t *)sums_of(b, g));
}

static bool narrow_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    if (a->value_way == BY_PLAIN) return false;
    for (int r = 0; a->group == 1 && r < n; r++)
        add_alone(b, runs + r, g);
    if (a->group > 1 && a->value_way == BY_BF16) add_bf16_tiles(b, runs, n, g);
    if (a->group > 1 && a->value_way == BY_I8) add_i8_tiles(b, runs, n, g);
    return true;
}

/* Sums that are not yet rows, to rows. */
static void narrow_finish(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    if (a->value_way == BY_BF16 && a->group > 1)
        bf16_untile((const real *)sums_of(b, g), a->group, a->dv, out_of(b, g), out_step(a));
    for (int64_t h = 0; a->value_way == BY_I8 && h < a->group; h++) {
        const int32_t *sums = (const int32_t *)sums_of(b, g) + 2 * h * a->dv;
        real scale = b->s.p_scales[g * a->rows + h], *to = out_of(b, g) + h * out_step(a);
        if (a->group == 1)
            i8_finish_alone(sums, a->dv, scale, to);
        else
            i8_finish_tile(sums, a->dv, scale, to);
    }
}

#else

static inline attend_way narrow_way(const weft_cache_part *part, int64_t group) {
    (void)part, (void)group;
    return BY_PLAIN;
}

static inline void narrow_queries(const block_task *b, int64_t g) {
    (void)b, (void)g;
}

static inline bool narrow_score(const block_task *b, const page_run *run, int64_t g) {
    (void)b, (void)run, (void)g;
    return false;
}

static inline void narrow_weights(const block_task *b, int64_t g) {
    (void)b, (void)g;
}

static inline bool narrow_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    (void)b, (void)runs, (void)n, (void)g;
    return false;
}

static inline void narrow_finish(const block_task *b, int64_t g) {
    (void)b, (void)g;
}

#endif

#endif

/* Keys and values of a narrow type by the instructions made for it: which way a part goes, and the
 * steps of a block by that way. Each step says whether it did anything; what it left goes by plain
 * vector code. */
#ifndef WEFT_CPU_CACHE_ATTENTION_NARROW_H
#define WEFT_CPU_CACHE_ATTENTION_NARROW_H

#include "cpu/cache_attention_bf16.h"
#include "cpu/cache_attention_i8.h"
#include "cpu/cache_attention_task.h"
#include "cpu/cache_attention_tiles.h"
#include "cpu/cache_attention_x86.h"

#if BYTES_ARM || BYTES_X86

static attend_way narrow_way(const weft_cache_part *part, int64_t group) {
    return bf16_attends(part, group == 1) ? BY_BF16
           : i8_attends(part, group == 1) ? BY_I8
           : pairs_attend(part, group)    ? BY_PAIRS
                                          : BY_PLAIN;
}

static inline bool is_tiled(attend_way way) {
    return way == BY_BF16 || way == BY_I8;
}

static inline bool takes_tiles(const attend_run *a) {
    return a->group > 1 && (is_tiled(a->key_way) || is_tiled(a->value_way));
}

/* Before and after the other steps of a block. */
static void narrow_begin(const block_task *b) {
    if (takes_tiles(b->a)) tiles_begin();
}

static void narrow_end(const block_task *b) {
    if (takes_tiles(b->a)) tiles_end();
}

/* Rounds the queries as the keys' way wants them. */
static void narrow_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const real *q = queries_of(b, g);
    char *to = rounded_queries_of(b, g);
    if (a->group > 1)
        tiles_queries(b, g);
    else if (a->key_way == BY_BF16)
        bf16_round_row(q, a->dqk, (uint16_t *)to);
    else if (a->key_way == BY_I8)
        b->s.q_scales[g * a->rows] = i8_round_query(q, a->dqk, (int8_t *)to);
}

static void score_alone(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const char *k = head_at(&a->keys, run->page, g), *q = rounded_queries_of(b, g);
    real *s = scores_of(b, g) + run->at;
    if (a->key_way == BY_BF16)
        bf16_score_alone((const uint16_t *)q, (const uint16_t *)k, a->dqk, run->token, run->end, s);
    else
        i8_score_alone((const int8_t *)q, b->s.q_scales[g * a->rows], (const int8_t *)k,
                       scale_at(&a->keys, run->page, g, 0), a->dqk, run->token, run->end, s);
}

static bool narrow_score(const block_task *b, const page_run *run, int64_t g) {
    if (b->a->key_way == BY_PLAIN) return false;
    (b->a->group == 1 ? score_alone : tiles_score)(b, run, g);
    return true;
}

/* Zeros beside [lead, end), up to multiples of NARROW_EDGE. */
static inline void clear_edges(real *x, int64_t lead, int64_t end) {
    for (int64_t j = lead & -NARROW_EDGE; j < lead; j++)
        x[j] = 0;
    for (int64_t j = end; j % NARROW_EDGE != 0; j++)
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
    int64_t lead = b->first - b->base, end = b->end - b->base, from = lead & -NARROW_EDGE;
    int64_t n = ceil_div(end - from, NARROW_EDGE) * NARROW_EDGE;
    real *p = scores_of(b, g);
    char *to = weights_of(b, g);
    for (int64_t h = 0; h < a->group; h++)
        clear_edges(p + h * BLOCK, lead, end);
    if (a->values.kind == CACHED_I8) read_scales(b, g);
    if (a->group > 1)
        tiles_weights(b, g, from, n);
    else if (a->value_way == BY_BF16)
        bf16_round_row(p + from, n, (uint16_t *)to + from);
    else
        b->s.p_scales[g * a->rows] =
            i8_round_weights(p + from, b->s.scales + from, n, (int8_t *)to + 2 * from);
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
    if (a->group > 1) tiles_add(b, runs, n, g);
    return true;
}

/* Sums that are not yet rows, to rows. */
static void narrow_finish(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    if (a->group > 1)
        tiles_finish(b, g);
    else if (a->value_way == BY_I8)
        i8_finish_alone((const int32_t *)sums_of(b, g), a->dv, b->s.p_scales[g * a->rows],
                        out_of(b, g));
}

#else

static inline attend_way narrow_way(const weft_cache_part *part, int64_t group) {
    (void)part, (void)group;
    return BY_PLAIN;
}

static inline void narrow_begin(const block_task *b) {
    (void)b;
}

static inline void narrow_end(const block_task *b) {
    (void)b;
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

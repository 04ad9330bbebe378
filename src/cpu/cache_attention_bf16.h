/* bf16_alone: bf16 pages where a query head has a key head of its own, by dot products of pairs. A part of
 * cache_attention_arm.h and cache_attention_x86.h, which have the instructions: BF16_COLUMNS numbers of a
 * vector, bf16_load, bf16_dot, bf16_four, bf16_round_row and bf16_add_lines. */
#pragma once

static void bf16_queries(const block_task *b, int64_t g) {
    bf16_round_row(queries_of(b, g), b->lines * b->a->dqk, (uint16_t *)rounded_queries_of(b, g));
}

static void bf16_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    bf16_round_row(scores_of(b, g) + from, n, (uint16_t *)weights_of(b, g) + from);
}

/* The scores of `lines` lines and four keys. */
BF16_TARGET static ALWAYS_INLINE void bf16_score_four(const uint16_t *q, const uint16_t *key,
                                                      int64_t width, real *s, const int lines) {
    vreal sum[4][4] = {0};
    for (int64_t i = 0; i < width; i += BF16_COLUMNS)
        for (int h = 0; h < lines; h++)
            for (int m = 0; m < 4; m++)
                sum[h][m] = bf16_dot(sum[h][m], bf16_load(q + h * width + i),
                                     bf16_load(key + m * width + i));
    for (int h = 0; h < lines; h++)
        bf16_four(sum[h], s + h * BLOCK);
}

BF16_TARGET static void bf16_score(const block_task *b, const page_run *run, int64_t g) {
    int64_t width = b->a->dqk;
    const uint16_t *q = (const uint16_t *)rounded_queries_of(b, g);
    const uint16_t *k = (const uint16_t *)head_at(&b->a->keys, run->page, g);
    real *s = scores_of(b, g) + run->at;
    for (int64_t j = run->token & ~3, end = run->end; j < end; j += 4)
        EACH_TILES(h, n, b->lines, 4,
                   bf16_score_four(q + h * width, k + j * width, width, s + h * BLOCK + j, n));
}

BF16_TARGET static void bf16_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    EACH_TILES(h, count, b->lines, 4, bf16_add_lines(b, runs, n, g, h, count));
}

static const attend_way bf16_alone = {
    .queries = bf16_queries, .score = bf16_score, .weights = bf16_weights, .add = bf16_add};

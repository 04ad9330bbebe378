/* What a run of attention over pages works on, the scratch of a thread, and what is attended at once: rows
 * of one sequence whose positions follow each other, one block of keys, some key heads. Scores and weights of a block stand
 * where their keys stand in it, from `first - base` on.
 *
 * A line is the query of one head of a row. The lines of a key head are its query heads of the first row, of
 * the second and so on; where lines are multiplied by tiles, a row has as many as fill them, of which those that
 * are no heads have queries of zeros, and nobody reads their results. No sum crosses lines. */
#pragma once

#include "cpu/cached.h"

enum {
    BLOCK = WEFT_KEY_BLOCK,
    LINES = 32,         /* of a key head at once, unless one row has more */
    PAGES_TOGETHER = 4, /* whose values are summed before the next, for lines that share them */
#if defined(__AVX2__)
    NARROW_EDGE = 64, /* weights are rounded in multiples of this */
#else
    NARROW_EDGE = 8,
#endif
#if defined(__AVX512F__)
    TILE_LINES = 16
#else
    TILE_LINES = 2
#endif
};

typedef struct block_task block_task;

/* Tokens [token, end) of a page, whose first one stands at `at` in the block. */
typedef struct {
    char *page;
    int64_t token, end, at;
} page_run;

/* The steps of a block for key head g, by some instructions; NULL: there is nothing to do. Keys go the
 * first two, values the others. */
typedef struct {
    void (*queries)(const block_task *b, int64_t g);                    /* rounds them */
    void (*score)(const block_task *b, const page_run *run, int64_t g); /* a page's raw products */
    /* Rounds the weights of n keys from `from` on, which stand in place of the scores; those beside the
     * row's are zeros. Of a task of one row. */
    void (*weights)(const block_task *b, int64_t g, int64_t from, int64_t n);
    void (*add)(const block_task *b, const page_run *runs, int n, int64_t g); /* weighted values */
    /* The sums of head h of a task of one row; NULL: they are reals. */
    void (*finish)(const block_task *b, int64_t g, int64_t h, real *to);
    void (*begin)(void), (*end)(void); /* before and after a block */
    bool tiles;                        /* lines go by tiles of TILE_LINES, */
    int64_t unit; /* and the sum of so many keys, of more than a page, is one step */
} attend_way;

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_cache_attention_attr *attr;
    row_places places;
    cached_pages keys, values;
    const attend_way *key_way[2], *value_way[2]; /* of one line, and of more */
    int64_t heads, group, key_heads, dqk, dv;
    int64_t lines;     /* of a row and key head */
    int64_t together;  /* rows that are attended at once, at most */
    int64_t room;      /* lines of a thread's scratch, of all key heads */
    int64_t q_columns; /* of a row of q */
    const real *q;     /* the tensor's own, or `widened` */
    real *widened;
    const real *rel, *rotations;
    real *query_cache;
    double *scale, *beta;     /* [H], with log2 e in them */
    int64_t blocks;           /* most of a row */
    int64_t parts;            /* tasks that share a block's key heads */
    const int32_t *documents; /* [R]: a row's document begins there; NULL: with the sequence */
    int64_t runs;             /* of rows that are in a task: */
    int64_t *run;             /* [runs + 1]: the first row of each, */
    int64_t *first;           /* [runs + 1]: and its first block */
    real *partial;            /* [R, H, blocks, dv + 2]: weighted values, largest score, sum */
    real *scores;             /* [R, H, context] or NULL */
    real *largest, *norm;     /* [R, H]: of a row, when its blocks are joined */
    char *scratch;
    int64_t thread_bytes;
} attend_run;

/* Scratch of a thread; [lines]: of each key head at a time, one after the other. */
typedef struct {
    real *scores;   /* [lines, BLOCK] */
    real *n;        /* [key heads, BLOCK] */
    real *scales;   /* [BLOCK]: of a head's i8 values */
    real *copy;     /* [BLOCK, dqk]: keys as they are read */
    real *own;      /* [dqk]: the row's own key */
    real *coarse;   /* [2, dqk / 2]: cosines and sines of the block's first position */
    real *q;        /* [lines, dqk]: queries */
    real *q_scales; /* [lines]: of i8 queries, */
    real *p_scales; /* [lines]: of i8 weights */
    char *queries;  /* [lines, dqk] of two bytes: rounded queries, */
    char *weights;  /* [lines, BLOCK] of two bytes: rounded weights, as their way lays them out */
    void *packed;   /* [PAGES_TOGETHER + 2, WEFT_PAGE_TOKENS, dv] of two bytes */
    real *sums;     /* [lines, 2 dv]: sums of values, as their way lays them out */
} block_scratch;

/* Of a task, what is attended at once: rows [row, row + rows), keys [first, end) of the block that begins at `base`, and key heads
 * [from, to). */
struct block_task {
    const attend_run *a;
    const attend_way *key_way, *value_way;
    int64_t row, rows;
    int64_t line, lines, all; /* the rows' lines, of all that the scratch has of a key head */
    int64_t base, first, end, from, to;
    const block_scratch *s;
};

static inline bool copies_keys(const weft_cache_attention_attr *attr) {
    return attr->rotated > 0 || attr->gaussian;
}

/* A thread's scratch. */
static inline int64_t cut_scratch(const weft_cache_attention_attr *attr, int64_t lines, char *at,
                                  block_scratch *s) {
    int64_t dqk = attr->key.width, dv = attr->value.width;
    return CUT_MEMORY(at, {&s->scores, real_bytes(lines * BLOCK)},
                      {&s->n, real_bytes(attr->key.heads * BLOCK)}, {&s->scales, real_bytes(BLOCK)},
                      {&s->copy, copies_keys(attr) ? real_bytes(BLOCK * dqk) : 0},
                      {&s->own, real_bytes(dqk + 1)}, {&s->coarse, real_bytes(dqk + 1)},
                      {&s->q, real_bytes(lines * dqk)}, {&s->q_scales, real_bytes(lines)},
                      {&s->p_scales, real_bytes(lines)},
                      {&s->queries, real_bytes(ceil_div(lines * dqk, 2))},
                      {&s->weights, real_bytes(lines * BLOCK / 2)},
                      {&s->packed, real_bytes((PAGES_TOGETHER + 2) * WEFT_PAGE_TOKENS * dv / 2)},
                      {&s->sums, real_bytes(2 * lines * dv)});
}

static inline int64_t first_seen(const attend_run *a, int64_t r) {
    int64_t first = max_i64(0, a->places.position[r] + 1 - a->attr->context);
    return a->documents ? max_i64(first, a->documents[r]) : first;
}

/* Keys [j, end) as far as they are in one page. */
static inline page_run run_at(const block_task *b, const cached_pages *c, int64_t j, int64_t end) {
    int64_t token = j % WEFT_PAGE_TOKENS;
    return (page_run){.page = page_at(c, &b->a->places, b->row, j),
                      .token = token,
                      .end = min_i64(WEFT_PAGE_TOKENS, token + end - j),
                      .at = j - token - b->base};
}

/* The task's row r, and the keys that it sees. */
static inline block_task row_of(const block_task *b, int64_t r) {
    block_task one = *b;
    one.row += r;
    one.rows = 1;
    one.line += r * b->a->lines;
    one.lines = b->a->lines;
    one.first = max_i64(b->base, first_seen(b->a, one.row));
    one.end = min_i64(b->base + BLOCK, b->a->places.position[one.row] + 1);
    return one;
}

/* The first of the task's lines of key head g. */
static inline int64_t line_of(const block_task *b, int64_t g) {
    return (g - b->from) * b->all + b->line;
}

/* What the scratch has of them, `each` of a line. */
#define OF_LINES(name, type, field, each)                                                          \
    static inline type *name(const block_task *b, int64_t g) {                                     \
        return b->s->field + line_of(b, g) * (each);                                               \
    }
OF_LINES(queries_of, real, q, b->a->dqk)
OF_LINES(scores_of, real, scores, BLOCK)
OF_LINES(weights_of, char, weights, 2 * BLOCK)
OF_LINES(rounded_queries_of, char, queries, 2 * b->a->dqk)

static inline void *sums_of(const block_task *b, int64_t g) {
    return b->s->sums + 2 * line_of(b, g) * b->a->dv;
}

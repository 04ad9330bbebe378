/* What a run of attention over pages works on, the scratch of a thread, and a task: one row, one block
 * of keys, some key heads. Scores and weights of a block stand where their keys stand in it, from
 * `first - base` on. */
#pragma once

#include "cpu/cached.h"

enum {
    BLOCK = WEFT_KEY_BLOCK,
    PAGES_TOGETHER = 4, /* whose values are summed before the next, for heads that share them */
#if defined(__AVX2__)
    NARROW_EDGE = 64, /* weights are rounded in multiples of this */
#else
    NARROW_EDGE = 8,
#endif
#if defined(__AVX512F__)
    TILE_HEADS = 16 /* heads of a tile */
#else
    TILE_HEADS = 2
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
     * row's are zeros. */
    void (*weights)(const block_task *b, int64_t g, int64_t from, int64_t n);
    void (*add)(const block_task *b, const page_run *runs, int n, int64_t g); /* weighted values */
    void (*finish)(const block_task *b, int64_t g); /* sums that are not yet rows, to rows */
    void (*begin)(void), (*end)(void);              /* before and after a block */
} attend_way;

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_cache_attention_attr *attr;
    row_places places;
    cached_pages keys, values;
    const attend_way *key_way, *value_way;
    int64_t heads, group, key_heads, dqk, dv;
    int64_t rows;      /* of a group's scores: its heads, and as many as fill a tile */
    int64_t q_columns; /* of a row of q */
    const real *q;     /* real: the tensor's own, or widened */
    const real *rel, *rotations;
    real *query_cache;
    const double *scale, *beta; /* [H], with log2 e in them */
    int64_t blocks;             /* most of a row */
    int64_t parts;              /* tasks that share a block's key heads */
    const int32_t *documents;   /* [R]: a row's document begins there; NULL: with the sequence */
    int64_t *first;             /* [R + 1]: a row's first block */
    real *partial;              /* [R, H, blocks, dv + 2]: weighted values, largest score, sum */
    real *scores;               /* [R, H, context] or NULL */
    real *largest, *norm;       /* [R, H]: of a row, when its blocks are joined */
    char *scratch;
    int64_t thread_bytes;
} attend_run;

/* Scratch of a thread; g: the key heads. */
typedef struct {
    real *scores;   /* [g, rows, BLOCK] */
    real *n;        /* [g, BLOCK] */
    real *scales;   /* [BLOCK]: of a head's i8 values */
    real *copy;     /* [BLOCK, dqk]: keys as they are read */
    real *own;      /* [dqk]: the row's own key */
    real *coarse;   /* [2, dqk / 2]: cosines and sines of the block's first position */
    real *q_scales; /* [g, rows]: of i8 queries, */
    real *p_scales; /* [g, rows]: of i8 weights */
    char *queries;  /* [g, rows, dqk] of two bytes: rounded queries, */
    char *weights;  /* [g, rows, BLOCK] of two bytes: rounded weights, as their way lays them out */
    void *room;     /* [PAGES_TOGETHER + 2, WEFT_PAGE_TOKENS, dv] of two bytes */
    char *sums;     /* [g, rows, dv] of eight bytes: sums of values that are not yet rows */
} block_scratch;

/* A task: keys [first, end) of the block that begins at `base`, and key heads [from, to). */
struct block_task {
    const attend_run *a;
    int64_t row, position, base, first, end, from, to;
    real *out; /* [H, blocks, dv + 2] at this block */
    block_scratch s;
};

static inline bool copies_keys(const weft_cache_attention_attr *attr) {
    return attr->rotated > 0 || attr->gaussian;
}

static inline int64_t group_rows(const weft_cache_attention_attr *attr) {
    int64_t group = attr->heads / attr->key.heads;
    return group == 1 ? 1 : ceil_div(group, TILE_HEADS) * TILE_HEADS;
}

/* Cuts a thread's scratch, from `at` on; returns its bytes. */
static inline int64_t cut_scratch(const weft_cache_attention_attr *attr, char *at,
                                  block_scratch *s) {
    int64_t g = attr->key.heads, rows = group_rows(attr), dqk = attr->key.width;
    int64_t dv = attr->value.width, used = 0;
    const struct {
        void *to;
        int64_t reals;
    } pieces[] = {{&s->scores, g * rows * BLOCK},
                  {&s->n, g * BLOCK},
                  {&s->scales, BLOCK},
                  {&s->copy, copies_keys(attr) ? BLOCK * dqk : 0},
                  {&s->own, dqk + 1},
                  {&s->coarse, dqk + 1},
                  {&s->q_scales, g * rows},
                  {&s->p_scales, g * rows},
                  {&s->queries, ceil_div(g * rows * dqk, 2)},
                  {&s->weights, g * rows * BLOCK / 2},
                  {&s->room, (PAGES_TOGETHER + 2) * WEFT_PAGE_TOKENS * dv / 2},
                  {&s->sums, 2 * g * rows * dv}};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        void *piece = at ? at + used : NULL;
        memcpy(pieces[i].to, &piece, sizeof piece);
        used += real_bytes(pieces[i].reals);
    }
    return used;
}

static inline int64_t first_seen(const attend_run *a, int64_t r) {
    int64_t first = max_i64(0, a->places.position[r] + 1 - a->attr->context);
    return a->documents ? max_i64(first, a->documents[r]) : first;
}

static inline page_run run_at(const block_task *b, const cached_pages *c, int64_t j) {
    int64_t token = j % WEFT_PAGE_TOKENS;
    return (page_run){.page = page_at(c, &b->a->places, b->row, j),
                      .token = token,
                      .end = min_i64(WEFT_PAGE_TOKENS, token + b->end - j),
                      .at = j - token - b->base};
}

static inline const real *queries_of(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    return a->q + b->row * a->q_columns + g * a->group * a->dqk;
}

static inline real *scores_of(const block_task *b, int64_t g) {
    return b->s.scores + g * b->a->rows * BLOCK;
}

static inline char *weights_of(const block_task *b, int64_t g) {
    return b->s.weights + 2 * g * b->a->rows * BLOCK;
}

static inline char *rounded_queries_of(const block_task *b, int64_t g) {
    return b->s.queries + 2 * g * b->a->rows * b->a->dqk;
}

static inline char *sums_of(const block_task *b, int64_t g) {
    return b->s.sums + 8 * g * b->a->rows * b->a->dv;
}

/* Where the weighted values of a head go; the next head's are out_step behind. */
static inline int64_t out_step(const attend_run *a) {
    return a->blocks * (a->dv + 2);
}

static inline real *out_of(const block_task *b, int64_t g) {
    return b->out + g * b->a->group * out_step(b->a);
}

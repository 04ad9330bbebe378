/* Caches of generation: what a token leaves behind for the tokens after it.
 *
 * A graph of generation runs R rows, each one token of some sequence at its own position; rows of
 * one sequence stand side by side in the order of their positions. What later tokens will read is
 * written into pages of a pool, WEFT_PAGE_TOKENS tokens each; a table says which page holds which
 * tokens of which sequence. Rows write first and read afterwards, so a row sees those before it in
 * the same run. A run of more than WEFT_RUN_ROWS rows (core/decoding.h) has those of one sequence alone.
 *
 * No sum crosses rows, and sums over keys are cut at absolute positions (blocks of WEFT_KEY_BLOCK):
 * a row's bits depend on its sequence alone, not on the batch, the pages' places or the threads. */
#pragma once

#include "core/rope_law.h"
#include "ops/attention.h"

enum {
    WEFT_PAGE_TOKENS = 16,
    WEFT_KEY_BLOCK = 256 /* keys whose weights are summed in one chain */
};

/* One part of what a layer keeps of a token: `heads` vectors of `width` numbers. A page has the
 * numbers as [heads, WEFT_PAGE_TOKENS, width]; then for i8 one f32 scale for each head and token,
 * [heads, WEFT_PAGE_TOKENS]; then, with `number`, one number for each of them, f32 (f64 beside f64):
 * the n of a score, made from the vector as it is stored. */
typedef struct {
    int64_t heads, width;
    weft_dtype dtype; /* f32, f64, bf16, i8 */
    bool number;
} weft_cache_part;

/* Bytes that a token takes; a page is WEFT_PAGE_TOKENS times that. */
int64_t weft_cache_token_bytes(const weft_cache_part *part);
int64_t weft_cache_page_bytes(const weft_cache_part *part);

/* Where the rows of a run stand. */
typedef struct {
    weft_tensor *position; /* [R] i32, from 0 */
    weft_tensor *slot;     /* [R] i32: the sequence; -1: an empty row, which is neither read nor
                              written, and makes zeros */
    weft_tensor *table; /* [slots, pages] i32: tokens of positions 16 j to 16 j + 15 of a sequence
                              lie in page table[slot, j mod pages] */
    weft_tensor *first; /* [R] i32: the first token of the row's document, before which it sees
                              nothing; NULL: 0 */
} weft_rows;

/* Writes x, R × heads × width numbers, into pages of `cache` [pages, page bytes] i8, a state. Where x
 * has more columns than that, the part's begin at `offset`. With part->number n = ‖x‖² of a head, of
 * what is stored, plus `extra` [R, heads, 1] where that is not NULL. */
void weft_cache_write(weft_graph *g, const weft_cache_part *part, weft_tensor *x, int64_t offset,
                      weft_tensor *extra, weft_tensor *cache, const weft_rows *rows);

typedef enum { WEFT_WEIGHTS_NONE, WEFT_WEIGHTS_MEAN, WEFT_WEIGHTS_MAX } weft_weights;

/* Attention of one query for each row over its sequence's pages, by the score of attention.h. Of
 * `score` k and n are the cache's, start is the row's position, and causal is a matter of course. */
typedef struct {
    const weft_score *score; /* q: [R, 1, H, dqk], or a wider tensor of which they are the first
                                columns */
    int64_t heads;
    weft_cache_part key, value;
    weft_tensor *keys;   /* pages */
    weft_tensor *values; /* pages; NULL: the keys' own, before what is done when they are read */
    int64_t context;     /* keys that a row sees at most, itself included: the last ones */
    /* What is done to keys when they are read. */
    weft_tensor *rotations; /* [WEFT_KEY_BLOCK, 2, rotated/2]: cosines and sines of the positions of
                               the first block, for the first `rotated` columns; NULL: none are */
    int64_t rotated;
    weft_rope_law law;        /* by which they are rotated */
    bool gaussian;            /* the second half is ρ: σ = softplus(ρ) */
    bool squares;             /* n = ‖k̂‖², made when read */
    weft_tensor *query_cache; /* [slots, window, H, dqk], a state: the last queries, for the band */
    weft_weights weights;     /* also give the weights, one row for all heads */
    /* [R, H] of the statistics' type, with weights: each head's are multiplied by it before they are
     * joined; NULL: 1. */
    weft_tensor *shares;
} weft_cache_query;

typedef struct {
    weft_tensor *o;       /* [R, 1, H, dv] */
    weft_tensor *weights; /* [R, context] of the statistics' type, from the first key seen on */
} weft_cache_attended;

weft_cache_attended weft_cache_attention(weft_graph *g, const weft_cache_query *query,
                                         const weft_rows *rows);

/* Which weights a row keeps: see routing.h. */
typedef enum { WEFT_KEEP_TOPK, WEFT_KEEP_RMS, WEFT_KEEP_ALL } weft_cache_keep;

/* c [R, 1, width] = Σ_j R_j x_j over what is cached, with the weights of weft_cache_attention. generate/fold.h
 * gives it an addend, whose type c then has, and may ask for the moments of c's rows (ops/linear.h). */
weft_tensor *weft_cache_gather(weft_graph *g, const weft_cache_part *part, weft_tensor *cache,
                               weft_tensor *weights, weft_cache_keep keep, int64_t k,
                               double threshold, bool normalize, const weft_rows *rows);

/* y [R, 1, N]: the mean of a sequence's rows x so far. `sum` [slots, N] of the statistics' type is a
 * state: what was summed before; position 0 begins anew. */
weft_tensor *weft_cache_mean(weft_graph *g, weft_tensor *x, weft_tensor *sum,
                             const weft_rows *rows);

/* For kernels: inputs and attributes of the nodes. */
enum {
    WEFT_CACHE_POSITION, /* every node of the family begins with the rows */
    WEFT_CACHE_SLOT,
    WEFT_CACHE_TABLE,
    WEFT_CACHE_X,     /* write: x; attention: q; gather: weights; mean: x */
    WEFT_CACHE_PAGES, /* mean: its sums */
    WEFT_CACHE_EXTRA,
    WEFT_CACHE_SHORT_INPUTS = WEFT_CACHE_EXTRA,
    WEFT_CACHE_DOCUMENTS = WEFT_CACHE_EXTRA, /* gather and mean: the rows' first, or NULL */
    WEFT_CACHE_ADDEND,                       /* gather: like its result, or NULL */

    WEFT_CACHE_VALUES = WEFT_CACHE_EXTRA,
    WEFT_CACHE_SCALE,
    WEFT_CACHE_BETA,
    WEFT_CACHE_LOG_TAU,
    WEFT_CACHE_REL,
    WEFT_CACHE_ROTATIONS,
    WEFT_CACHE_QUERIES,
    WEFT_CACHE_FIRST,
    WEFT_CACHE_SHARES,
    WEFT_CACHE_ATTENTION_INPUTS
};

typedef struct {
    weft_cache_part part;
    int64_t offset;
} weft_cache_write_attr;

typedef struct {
    weft_cache_part key, value;
    int64_t heads, context;
    double scale_value;
    weft_attention_pos pos;
    bool band, gaussian, squares;
    int64_t window, rotated;
    weft_rope_law law;
    double band_alpha, softcap;
    weft_weights weights;
} weft_cache_attention_attr;

typedef struct {
    weft_cache_part part;
    weft_cache_keep keep;
    int64_t k;
    double threshold;
    bool normalize, moments;
} weft_cache_gather_attr;

/* What the loss and its gradient share: the three products of the logits' matrix, and the weights
 * of its rows. The matrix is l [rows, V] = x wᵀ, or the part of it that is in hand: some of the
 * rows, or a chunk of the vocabulary. */
#pragma once

#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "cpu/vec.h"
#include "ops/loss.h"

/* The part in hand. */
typedef struct {
    int64_t row, rows;   /* of x and the targets */
    int64_t word, words; /* of w */
} entropy_part;

static inline weft_status check_targets(const int32_t *targets, int64_t rows, int64_t vocabulary,
                                        int64_t *count) {
    *count = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (targets[i] < -1 || targets[i] >= vocabulary)
            return WEFT_BAD_INPUT(
                "cross_entropy: target %d at row %lld is outside the vocabulary of "
                "%lld, and only -1 means none",
                targets[i], (long long)i, (long long)vocabulary);
        *count += targets[i] >= 0;
    }
    return WEFT_OK;
}

/* l [rows, words] = x wᵀ, taken tile by tile. */
static inline gemm_product product_logits(const weft_exec *x, const weft_node *n, entropy_part at) {
    gemm_product p = {.batch = 1, .m = at.rows, .n = at.words, .tb = true, .alpha = 1};
    p.k = n->in[WEFT_CE_W]->shape[1];
    p.a = gemm_rows(x, n->in[WEFT_CE_X], at.row);
    p.b = gemm_rows(x, n->in[WEFT_CE_W], at.word);
    return p;
}

/* dx [rows, E] = l w, or with `dw` that, [words, E] = lᵀ x, `l` being the gradient of the logits by then; or +=
 * where `add`. */
static inline gemm_product product_back(const weft_exec *x, const weft_node *n, entropy_part at,
                                        bool dw, gemm_matrix l, gemm_matrix to, bool add) {
    gemm_product p = {.batch = 1, .ta = dw, .alpha = 1, .accumulate = add, .a = l, .c = to};
    p.m = dw ? at.words : at.rows;
    p.k = dw ? at.rows : at.words;
    p.n = n->in[WEFT_CE_W]->shape[1];
    p.b = gemm_rows(x, n->in[dw ? WEFT_CE_X : WEFT_CE_W], dw ? at.row : at.word);
    p.a.rounds = !l.bf16 && p.b.bf16;
    return p;
}

/* Whether the gradient of the logits is kept as bf16: both of its products round it to that, and by
 * instructions that take bf16 alone. */
static inline bool keeps_bf16(const weft_node *n) {
    return WEFT_REAL == 32 && weft_cpu_matrix() != WEFT_MATRIX_NONE &&
           n->in[WEFT_CE_X]->dtype == WEFT_BF16 && n->in[WEFT_CE_W]->dtype == WEFT_BF16;
}

/* The tile of a task; the rows of a column of tiles one after the other, which read the same words. */
typedef struct {
    gemm_place place;
    int64_t piece; /* which column of tiles */
} entropy_tile;

static inline entropy_tile tile_of(const gemm_product *p, const gemm_cut *cut, int64_t task) {
    entropy_tile t = {.piece = task / cut->rows};
    t.place.row = task % cut->rows * cut->tile_m;
    t.place.column = t.piece * cut->tile_n;
    t.place.m = min_i64(cut->tile_m, p->m - t.place.row);
    t.place.n = min_i64(cut->tile_n, p->n - t.place.column);
    return t;
}

/* The gradients of the two losses, of which a row's part of the gradient is made: dl = p · weight − [v = target] · penalty. */
typedef struct {
    real d_ce; /* over what the sum is divided by */
    real d_z;  /* times 2 z / N */
} entropy_upstream;

static inline entropy_upstream scale_upstream(const weft_node *n, double count, real d_ce,
                                              real d_z) {
    const weft_cross_entropy_attr *attr = n->attr;
    double rows = (double)weft_tensor_rows(n->in[WEFT_CE_X]);
    real share = count > 0 ? d_ce / (real)count : 0;
    return (entropy_upstream){share, (real)(2 * attr->z / rows) * d_z};
}

/* What the sum is divided by: the count that was given, or the targets' own number. */
static inline double divisor_of(const weft_exec *x, const weft_tensor *count, int64_t own) {
    return count ? (double)*(const real *)weft_data(x, count) : (double)own;
}

/* c · tanh(l / c) of n logits, in their place. */
static inline void cap_logits(real *l, int64_t n, real c) {
    for (int64_t i = 0; i < n; i += VLEN) {
        int64_t count = min_i64(VLEN, n - i);
        vstore_n(l + i, c * vtanh(vload_n(l + i, count) * (1 / c)), count);
    }
}

/* The slope at a capped logit; 1 where there is no cap. */
static inline real cap_slope(real l, real c) {
    return c > 0 ? 1 - l / c * (l / c) : 1;
}

static inline vreal vcap_slope(vreal l, real c) {
    vreal t = l * (1 / c);
    return 1 - t * t;
}

static inline real row_penalty(entropy_upstream s, int32_t target) {
    return target >= 0 ? s.d_ce : 0;
}

static inline real row_weight(entropy_upstream s, int32_t target, real lse) {
    return row_penalty(s, target) + s.d_z * lse;
}

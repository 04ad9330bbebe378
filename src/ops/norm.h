/* LayerNorm and RMSNorm, with the residual add that comes before them. */
#pragma once

#include "core/graph.h"

typedef enum {
    WEFT_LAYERNORM, /* y = (s − mean)·rstd·w + b, rstd = 1/√(var + 1e-5) */
    WEFT_RMSNORM    /* y = s·rstd·w, rstd = 1/√(mean s² + 1e-6) */
} weft_norm_kind;

typedef struct {
    weft_tensor *y; /* norm(s) */
    weft_tensor *s; /* x + r: the residual stream; x itself where r is NULL */
} weft_normed;

/* x: [.., E]; r the same shape and type, or NULL; w: [E]; b: [E], LayerNorm only, or NULL. eps: in place of
 * 1e-5 or 1e-6, where it is above 0. */
weft_normed weft_norm(weft_graph *g, weft_tensor *x, weft_tensor *r, weft_tensor *w, weft_tensor *b,
                      weft_norm_kind kind, double eps);

/* RMSNorm of some of the heads in x [.., H, D]: of the first `heads` by the gain w [D], of the `next`
 * behind them by w_next [D]; the others are copied. w_next is NULL where `next` is 0. */
weft_tensor *weft_norm_heads(weft_graph *g, weft_tensor *x, weft_tensor *w, int64_t heads,
                             weft_tensor *w_next, int64_t next);

/* Of both nodes, for the kernels. Inputs and outputs are in the order of the enums; what is not
 * wanted is NULL. */
typedef struct {
    weft_norm_kind kind;
    double eps;
    bool dx, dw, db, dw_next; /* norm_back: which gradients are wanted */
    int64_t heads, next;      /* weft_norm_heads; heads 0: all rows have one gain */
} weft_norm_attr;

/* The rows of gain `group` (0: w, 1: w_next): `count` of every `period`, from `first` on. Those behind
 * the second group are copied. */
enum { WEFT_NORM_GROUPS = 2 };
typedef struct {
    int64_t rows, period, first, count; /* rows: in all */
} weft_norm_group;
static inline weft_norm_group weft_norm_group_of(const weft_norm_attr *attr, const weft_tensor *x,
                                                 int group) {
    int64_t rows = weft_tensor_rows(x);
    weft_norm_group own = {group ? 0 : rows, 1, 0, 1};
    if (!attr->heads) return own;
    own.period = x->shape[x->ndim - 2];
    own.first = group ? attr->heads : 0;
    own.count = group ? attr->next : attr->heads;
    own.rows = rows / own.period * own.count;
    return own;
}

enum { WEFT_NORM_X, WEFT_NORM_W, WEFT_NORM_B, WEFT_NORM_R, WEFT_NORM_W_NEXT, WEFT_NORM_INPUTS };
/* MEAN (LayerNorm) and RSTD are a row's numbers, of the statistics' type. */
enum { WEFT_NORM_Y, WEFT_NORM_RSTD, WEFT_NORM_MEAN, WEFT_NORM_S, WEFT_NORM_OUTPUTS };
/* DS is the gradient of s from elsewhere, added to dx. */
enum {
    WEFT_NORM_BACK_DY,
    WEFT_NORM_BACK_S,
    WEFT_NORM_BACK_W,
    WEFT_NORM_BACK_RSTD,
    WEFT_NORM_BACK_MEAN,
    WEFT_NORM_BACK_DS,
    WEFT_NORM_BACK_W_NEXT,
    WEFT_NORM_BACK_INPUTS
};
/* SUMS, Σ over rows of dx, is the gradient of a bias that x or r ends on: it is made where fuse.h
 * found that bias_back. */
enum {
    WEFT_NORM_BACK_DX,
    WEFT_NORM_BACK_DW,
    WEFT_NORM_BACK_DB,
    WEFT_NORM_BACK_SUMS,
    WEFT_NORM_BACK_DW_NEXT,
    WEFT_NORM_BACK_OUTPUTS
};

/* Vectors scaled to length 1. */

/* x: [B, T, H, D]. Each of the first `heads` heads becomes x / ‖x‖, its length being taken as at
 * least WEFT_UNIT_LEAST; the others are copied. */
#define WEFT_UNIT_LEAST 1e-8
weft_tensor *weft_unit(weft_graph *g, weft_tensor *x, int64_t heads);

/* Attributes of unit and unit_back, for the kernels. unit_back makes dx from dy and x. */
typedef struct {
    int64_t heads;
} weft_unit_attr;

/* Matrix products: linear layers, plain, batched and grouped products. One node does them all,
 * `matmul`; its gradients are matmul nodes again. */
#pragma once

#include "core/graph.h"

/* gelu: the tanh form. */
typedef enum {
    WEFT_ACT_NONE,
    WEFT_ACT_GELU,
    WEFT_ACT_GELU_BACK, /* times gelu's slope at `at`: only fuse.h makes it */
    WEFT_ACT_DEVIATIONS /* softplus of the second half of each `group` columns: only generate/fold.h makes it */
} weft_act;

/* y [..., N] = act(x wᵀ + bias): x [..., K], w [N, K], bias [N] or NULL. At most WEFT_FEW_ROWS of x
 * (what generation runs): a row's result does not depend, in any bit, on how many rows there are. */
enum { WEFT_FEW_ROWS = 32 };
weft_tensor *weft_linear(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *bias,
                         weft_act act);

/* y [M, N] = op(a) op(b): a [M, K], or [K, M] with ta; b [K, N], or [N, K] with tb. */
weft_tensor *weft_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, bool ta, bool tb);

/* y [M, N] = a b, where a row's result does not depend, on a CPU, on how many rows there are: what
 * weft_linear promises for few rows, for any number of them. Slower than the above for many. */
weft_tensor *weft_matmul_alone(weft_graph *g, weft_tensor *a, weft_tensor *b);

/* weft_matmul for each of G pairs: a [G, M, K], b [G, K, N] → y [G, M, N]. */
weft_tensor *weft_batched_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, bool ta, bool tb);

/* y = aᵀ a: [E, E] from a [M, E], or one for each of G of [G, M, E]. A symmetric matrix, and what
 * reads it must be a function of symmetric matrices: then its gradient is symmetric too, and a's is
 * one product, 2 a dy. (A dot with another symmetric matrix is such a reader.) */
weft_tensor *weft_gram(weft_graph *g, weft_tensor *a);
/* That gradient, for operations that make a Gram matrix beside other things. */
weft_tensor *weft_gram_back(weft_graph *g, weft_tensor *a, weft_tensor *dy);

/* A weight a group: y[..., g, :] = x[..., g, :] w[g]; x [..., G, K], w [G, K, N], or [G, N, K] with
 * tb → y [..., G, N]. */
weft_tensor *weft_grouped_linear(weft_graph *g, weft_tensor *x, weft_tensor *w, bool tb);

/* In graphs that are not differentiated, b of a product y = x bᵀ may be i8: N rows of K numbers, each
 * padded with zeros to weft_matmul_i8_columns(K), then N scales, f32. x is rounded to 8 bits too, with
 * one scale for each WEFT_I8_BLOCK of a row; sums are exact within a block. */
enum { WEFT_I8_BLOCK = 64 };
static inline int64_t weft_matmul_i8_columns(int64_t k) {
    return (k + WEFT_I8_BLOCK - 1) / WEFT_I8_BLOCK * WEFT_I8_BLOCK;
}

/* How the inputs a and b of a matmul node are read as matrices. */
typedef enum {
    WEFT_MATMUL_ROWS,         /* a [..., K] · b [K, N] → [..., N] */
    WEFT_MATMUL_OUTER,        /* a [..., M]ᵀ · b [..., N] → [M, N]: sums over all rows */
    WEFT_MATMUL_PLAIN,        /* a [M, K] · b [K, N] → [M, N], or each with a leading G */
    WEFT_MATMUL_GROUPED,      /* a [..., G, K] · b [G, K, N] → [..., G, N] */
    WEFT_MATMUL_GROUPED_OUTER /* a [..., G, M]ᵀ · b [..., G, N] → [G, M, N] */
} weft_matmul_form;

/* The inputs of a matmul node, y = act(Σ_i alpha_i · a_i b_i + bias + addend); all but a and b may be
 * NULL. The addend and `at`, the values that gelu's slope is taken at, have y's type and as many
 * elements. Further pairs a_i, b_i, of products by rows, follow. Building a node gives it none of
 * these, and alpha 1: fuse.h makes them of the nodes around it.
 *
 * With `moments`, those of a's rows x, y = act(rstd (x bᵀ − mean · sums) + bias + addend): the norm of x
 * without gain and offset is behind the product. `sums` [N] f32 are those of b's rows; NULL: RMSNorm, whose
 * mean is 0. A row's moments are [WEFT_MOMENTS_COLUMNS at a time, 2] f32: the mean of so many columns, and
 * the sum of squares around it. generate/fold.h makes it of a norm and a product, for backends that can. */
enum { WEFT_MOMENTS_COLUMNS = 64 };
enum {
    WEFT_MATMUL_A,
    WEFT_MATMUL_B,
    WEFT_MATMUL_BIAS, /* rows only */
    WEFT_MATMUL_ADDEND,
    WEFT_MATMUL_AT,
    WEFT_MATMUL_MOMENTS,
    WEFT_MATMUL_SUMS,
    WEFT_MATMUL_INPUTS,
    WEFT_MATMUL_PAIRS = 6 /* most products that a node sums */
};

/* Outputs: y, and a second one. With gelu: the values before it, where a gradient will read them.
 * With gelu's slope: db [N] = Σ over rows of y, where `sums` asks for it. With `moments`: those of y. */
typedef struct {
    weft_matmul_form form;
    bool ta, tb;    /* ta: plain only; tb: not of the outer forms */
    bool symmetric; /* weft_gram: the gradient that reaches it is symmetric */
    bool alone;     /* weft_matmul_alone */
    weft_act act;
    int64_t group; /* columns, of WEFT_ACT_DEVIATIONS */
    double alpha;
    weft_dtype dtype; /* of the result */
    int more;         /* pairs behind the first */
    struct {
        bool tb;
        double alpha;
    } pair[WEFT_MATMUL_PAIRS - 1]; /* theirs */
    bool sums;
    bool moments;
    double eps; /* of the norm that WEFT_MATMUL_MOMENTS says of */
} weft_matmul_attr;

/* Pair i of a matmul node, as the product that it would be alone: without what comes after. */
typedef struct {
    weft_matmul_attr attr;
    weft_tensor *a, *b;
} weft_matmul_pair;

weft_matmul_pair weft_matmul_pair_of(const weft_node *n, int i);

/* Whether it is a product by rows, [M, K] · [K, N], and may be summed with others. */
bool weft_matmul_is_by_rows(const weft_matmul_attr *attr, const weft_tensor *a);

/* The sizes of a matmul node: G products [M, K] · [K, N]. */
typedef struct {
    int64_t groups, m, n, k;
} weft_matmul_sizes;

weft_matmul_sizes weft_matmul_measure(const weft_matmul_attr *attr, const weft_tensor *a,
                                      const weft_tensor *b);

/* db [N] = Σ over rows of dy [..., N]: the gradient of what was added to every row. */
weft_tensor *weft_bias_back(weft_graph *g, weft_tensor *dy, weft_dtype dtype);

/* gelu_bias_back: dx = dy times gelu's slope at x, and db = Σ over rows of dx, in one pass. Inputs dy, x;
 * outputs dx, db. fuse.h makes it of gelu_back and bias_back. */

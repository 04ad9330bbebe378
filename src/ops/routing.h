/* Routing: an attention's weights, used a second time to carry something else than its values.
 *
 *     P_h = exp(s − lse)      the attention's weights, rebuilt from what made its scores
 *     R   = mean over heads of P_h (or their maximum), row t over the visible columns j ≤ t
 *     c_t = Σ_j R_tj h_j      over the columns that a rule keeps
 *
 * R is a constant: no gradient flows into q, k and the like. It is made tile by tile from q, k and
 * the saved logsumexp, never as a T × S matrix. Two ways:
 *
 *     weft_route_topk, then weft_route_gather    each row's k largest weights, O(T·k) memory
 *     weft_route_dense                           all weights, or those above a share of the row's
 *                                                root mean square
 */
#pragma once

#include "ops/attention.h"

typedef struct {
    weft_tensor *index;  /* [B, T, k] i32: the columns kept, by weight descending, bit-equal ones by
                            index; −1 where fewer than k are visible */
    weft_tensor *weight; /* [B, T, k] of the statistics' type; 0 where the index is −1 */
} weft_routes;

/* The k largest weights of each row. `lse` [B, H, T] is that of the attention with this score;
 * normalize divides a row by its kept sum; use_max takes the maximum over
 * heads in place of the mean. */
weft_routes weft_route_topk(weft_graph *g, const weft_score *score, weft_tensor *lse, int64_t k,
                            bool normalize, bool use_max);

/* c [B, T, F]: c_t = Σ_m weight[t, m] · h[index[t, m]], h [B, S, F]. The gradient goes to h. */
weft_tensor *weft_route_gather(weft_graph *g, weft_tensor *h, weft_tensor *index,
                               weft_tensor *weight);

/* The same of two tensors [B, S, F] and [B, S, G] in one node: what the routes need is prepared
 * once. */
typedef struct {
    weft_tensor *first, *second;
} weft_route_pair;

weft_route_pair weft_route_gather_pair(weft_graph *g, weft_tensor *first, weft_tensor *second,
                                       weft_tensor *index, weft_tensor *weight);

typedef enum {
    WEFT_ROUTE_ALL, /* keep every visible column */
    WEFT_ROUTE_RMS /* keep R_tj ≥ threshold · sqrt(mean over j ≤ t of R_tj²); above 1 a row may
                       keep nothing, and its c is 0 */
} weft_route_mode;

/* c [B, T, F]: c_t = Σ_j R_tj h_j over the kept columns, h [B, S, F]. The gradient goes to h.
 * `threshold` is read with WEFT_ROUTE_RMS only. */
weft_tensor *weft_route_dense(weft_graph *g, const weft_score *score, weft_tensor *lse,
                              weft_tensor *h, weft_route_mode mode, double threshold,
                              bool normalize, bool use_max);

/* The attributes of the nodes that rebuild weights. Their inputs: the attention's (v is NULL), then
 * as below. route_topk makes index, weight; route_dense makes c, the rows' smallest kept weight
 * and the factor of the kept weights, both [B, T] of the statistics' type; route_dense_back dh. */
typedef struct {
    weft_attention_attr score; /* first: what attention's kernels know of a node holds here too */
    bool use_max, normalize;
    int64_t k;     /* route_topk */
    int64_t width; /* F; route_dense */
    weft_route_mode mode;
    double threshold;
} weft_route_attr;

enum {
    WEFT_ROUTE_LSE = WEFT_ATTN_INPUTS,
    WEFT_ROUTE_TOPK_INPUTS,
    WEFT_ROUTE_H = WEFT_ROUTE_TOPK_INPUTS, /* route_dense_back: dc in its place */
    WEFT_ROUTE_DENSE_INPUTS,
    WEFT_ROUTE_FLOOR = WEFT_ROUTE_DENSE_INPUTS,
    WEFT_ROUTE_FACTOR,
    WEFT_ROUTE_DENSE_BACK_INPUTS
};

/* route_gather makes c of h, index, weight, and where there is a second h, its c too;
 * route_gather_back makes dh of dc, index, weight in the same way, [B, S, F]: S, not to be seen from its
 * inputs, is its attribute. */
enum {
    WEFT_GATHER_H,
    WEFT_GATHER_INDEX,
    WEFT_GATHER_WEIGHT,
    WEFT_GATHER_SECOND, /* may be NULL */
    WEFT_GATHER_INPUTS
};

/* Tensor `which`, 0 or 1, of those that are gathered; NULL: there is none. */
static inline weft_tensor *weft_gather_input(const weft_node *n, int which) {
    return n->in[which == 0 ? WEFT_GATHER_H : WEFT_GATHER_SECOND];
}

/* The one attention that every variant is brought to:
 *
 *     s_ij = scale_h ⟨q_i, k_j⟩ + beta_h n_j + pos_h(i, j)
 *            + [band and i − j ≤ window] · band_alpha · scale_h ⟨q_j, k_i⟩          j ≤ i
 *     s_ij ← softcap · tanh(s_ij / softcap)                                       where there is one
 *     p_i· = softmax_j(s_ij)          o_i = Σ_j p_ij v_j
 *
 * A query may be kept from the first keys: by `reach` it sees only the last ones, by `first` none before
 * its document. Where the queries of a tile see none of its keys, the tile is left out.
 *
 * Tiled: only o and the rows' logsumexp are kept, never a T × S matrix. */
#pragma once

#include "core/graph.h"

typedef enum { WEFT_POS_NONE, WEFT_POS_ALIBI, WEFT_POS_RELATIVE } weft_attention_pos;

/* What makes the scores; routing (routing.h) rebuilds the same weights from it. Tensors that are
 * not wanted are NULL. */
typedef struct {
    weft_tensor *q; /* [B, T, H, dqk] */
    weft_tensor *k; /* [B, S, KV, dqk]; query head h reads key head ⌊h·KV/H⌋ */
    /* In place of both and of v: qkv [B, T, (H + 2·KV)·D], H query heads, then KV key heads, then KV
     * value heads, each D wide; nothing is copied apart. */
    weft_tensor *packed;
    int64_t heads, kv_heads; /* H and KV of packed */
    weft_tensor *n;          /* [B, KV, S], of the statistics' type: a number per key */
    weft_tensor *scale;      /* [H] statistics' type; NULL: the constant below for every head */
    weft_tensor *beta;       /* [H] statistics' type; needs n */
    weft_tensor *log_tau; /* [H] statistics' type; needs n: scale_h = 2/(τ+ε), beta_h = −1/(τ+ε),
                             τ = exp(log_tau), ε = 1e-6; excludes scale and beta */
    weft_tensor *rel;     /* [R] statistics' type, pos = relative: adds rel[i − j] */
    weft_tensor *first; /* [B, T] i32: the first key that a query sees, at most its own place and no
                             less than that of the query before; NULL: 0 */
    double scale_value; /* where scale and log_tau are NULL */
    weft_attention_pos pos;
    bool causal; /* else every key is seen: no relative, band, reach or first then; causal: S = T */
    bool band;   /* the reciprocal term */
    int64_t window;
    double band_alpha;
    int64_t reach;  /* keys that a query sees at most, itself included; 0: all before it */
    double softcap; /* 0: none; no n then, since a number per row does not drop out behind it */
} weft_score;

/* ALiBi's slope of head h (from 0) of `heads`: it adds −slope · |i − j|. */
double weft_alibi_slope(int64_t h, int64_t heads);

typedef struct {
    weft_tensor *o;   /* [B, T, H, dv] */
    weft_tensor *lse; /* [B, H, T], of the statistics' type */
} weft_attended;

/* v: [B, S, KV, dv]; NULL where packed. */
weft_attended weft_attention(weft_graph *g, const weft_score *score, weft_tensor *v);

/* The node's attributes: what is constant in a weft_score. Inputs of the node, in this order
 * (NULL where not wanted): q (or qkv), k, v, n, scale, beta, log_tau, rel, first. */
typedef struct {
    int64_t batch, queries, keys; /* B, T, S */
    int64_t heads, kv_heads;      /* H, KV */
    int64_t dqk, dv;
    double scale_value;
    weft_attention_pos pos;
    bool causal, packed, band;
    int64_t window;
    double band_alpha;
    int64_t reach;
    double softcap;
    /* Of attention_back: q or k is the y of a gaussian (gaussian.h), and what is made is the gradient
     * of its x; with gaussian_n the gradient of n, that of k's own squares, goes into it and is made
     * for nobody else. Fusing sets them. */
    bool gaussian_q, gaussian_k, gaussian_n;
} weft_attention_attr;

enum {
    WEFT_ATTN_Q,
    WEFT_ATTN_K,
    WEFT_ATTN_V,
    WEFT_ATTN_N,
    WEFT_ATTN_SCALE,
    WEFT_ATTN_BETA,
    WEFT_ATTN_LOG_TAU,
    WEFT_ATTN_REL,
    WEFT_ATTN_FIRST,
    WEFT_ATTN_INPUTS
};

/* For routing, which makes the same weights again: a score's attributes; its inputs but for v; what is
 * wrong with q and k, its heads, its options and what comes beside; the pairs of a query and a key that is
 * seen, of one head and sequence; and the operations of all scores. */
weft_attention_attr weft_score_attr(const weft_score *score);
void weft_score_inputs(const weft_score *score, weft_tensor *in[WEFT_ATTN_INPUTS]);
weft_status weft_score_check(weft_graph *g, const weft_node *n, const weft_attention_attr *a);
int64_t weft_score_pairs(const weft_attention_attr *a);
int64_t weft_score_flops(const weft_attention_attr *a);

/* attention_back has the same attributes. Its inputs: the gradient of o, o, lse, then those of the
 * forward node. Its outputs: the gradients of q (or qkv) to rel in the order above, NULL where none
 * is needed. */
enum {
    WEFT_ATTN_BACK_FIRST = 3,
    WEFT_ATTN_BACK_INPUTS = WEFT_ATTN_BACK_FIRST + WEFT_ATTN_INPUTS,
    WEFT_ATTN_BACK_OUTPUTS = WEFT_ATTN_REL + 1
};

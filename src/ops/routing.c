/* Routing: shape rules and gradients.
 *
 * R is a constant, so only h has a gradient:
 *
 * route_gather   c_t = Σ_m w_tm h_{i_tm}         dh_j = Σ_{(t, m): i_tm = j} w_tm dc_t
 * route_dense    c_t = f_t Σ_j [R_tj ≥ θ_t] R_tj h_j
 *                                                dh_j = Σ_t f_t [R_tj ≥ θ_t] R_tj dc_t
 *
 * with θ_t (0 where all are kept) and f_t (1, or 1 over the kept sum) saved as the rows' statistics,
 * so that the gradient rebuilds R once and keeps the same columns. */
#include "ops/routing.h"

#include "ops/define.h"

static const char *const score_input_name[WEFT_ATTN_INPUTS] = {
    "q", "k", "v", "n", "scale", "beta", "log_tau", "rel", "start",
};

/* An optional input of the statistics' type with this shape. */
static weft_status check_stat(weft_graph *g, const weft_node *n, int input, int ndim,
                              const int64_t *shape) {
    const weft_tensor *t = n->in[input];
    if (!t) return WEFT_OK;
    const char *name = input == WEFT_ROUTE_LSE ? "lse" : score_input_name[input];
    if (t->dtype != weft_stat_dtype(n->in[WEFT_ATTN_Q]))
        return weft_graph_fail(g, "%s: %s is %s, but beside q %s it must be %s", n->op->name, name,
                               weft_tensor_describe(t), weft_tensor_describe(n->in[WEFT_ATTN_Q]),
                               weft_dtype_name(weft_stat_dtype(n->in[WEFT_ATTN_Q])));
    return weft_check_shape(g, n, name, t, ndim, shape);
}

static weft_status check_heads(weft_graph *g, const weft_node *n, const weft_attention_attr *a) {
    if (a->heads >= 1 && a->kv_heads >= 1 && a->kv_heads <= a->heads) return WEFT_OK;
    return weft_graph_fail(g,
                           "%s: %lld query heads and %lld key heads, but there must be 1 or more "
                           "key heads and no more than query heads",
                           n->op->name, (long long)a->heads, (long long)a->kv_heads);
}

static weft_status check_queries_and_keys(weft_graph *g, const weft_node *n,
                                          const weft_attention_attr *a) {
    const weft_tensor *q = n->in[WEFT_ATTN_Q], *k = n->in[WEFT_ATTN_K];
    WEFT_TRY(weft_check_float(g, n, a->packed ? "qkv" : "q", q));
    if (a->packed) {
        WEFT_TRY(weft_check_ndim(g, n, "qkv", q, 3));
        WEFT_TRY(check_heads(g, n, a));
        if (q->shape[2] == (a->heads + 2 * a->kv_heads) * a->dqk) return WEFT_OK;
        return weft_graph_fail(g,
                               "%s: qkv is %s, but it must be [B, T, (%lld + 2 * %lld) * D] for "
                               "%lld query and %lld key heads",
                               n->op->name, weft_tensor_describe(q), (long long)a->heads,
                               (long long)a->kv_heads, (long long)a->heads, (long long)a->kv_heads);
    }
    WEFT_TRY(weft_check_ndim(g, n, "q", q, 4));
    WEFT_TRY(weft_check_ndim(g, n, "k", k, 4));
    WEFT_TRY(check_heads(g, n, a));
    if (k->dtype != q->dtype || k->shape[0] != q->shape[0] || k->shape[3] != q->shape[3])
        return weft_graph_fail(g, "%s: q is %s, but k is %s; batch, width and type must agree",
                               n->op->name, weft_tensor_describe(q), weft_tensor_describe(k));
    return WEFT_OK;
}

static weft_status check_options(weft_graph *g, const weft_node *n, const weft_attention_attr *a) {
    weft_tensor *const *in = n->in;
    const char *name = n->op->name;
    if (!a->causal && (a->pos != WEFT_POS_NONE || a->band || in[WEFT_ATTN_START]))
        return weft_graph_fail(g, "%s: positions, band and start need a causal attention", name);
    if (in[WEFT_ATTN_LOG_TAU] && (in[WEFT_ATTN_SCALE] || in[WEFT_ATTN_BETA]))
        return weft_graph_fail(g, "%s: log_tau excludes scale and beta", name);
    bool has_beta = in[WEFT_ATTN_BETA] || in[WEFT_ATTN_LOG_TAU];
    if (has_beta != (in[WEFT_ATTN_N] != NULL))
        return weft_graph_fail(g, "%s: n goes with beta or log_tau, and they with n", name);
    if ((a->pos == WEFT_POS_RELATIVE) != (in[WEFT_ATTN_REL] != NULL))
        return weft_graph_fail(g, "%s: rel goes with relative positions, and they with rel", name);
    if (!in[WEFT_ATTN_START] && a->keys != a->queries)
        return weft_graph_fail(g,
                               "%s: q is %s, but k is %s; without start there must be as many "
                               "keys as queries",
                               name, weft_tensor_describe(in[WEFT_ATTN_Q]),
                               weft_tensor_describe(in[WEFT_ATTN_K]));
    if (a->keys < a->queries)
        return weft_graph_fail(g, "%s: %lld keys are fewer than %lld queries", name,
                               (long long)a->keys, (long long)a->queries);
    if (a->band && (in[WEFT_ATTN_START] || a->window < 0))
        return weft_graph_fail(g, "%s: the band needs a window of 0 or more and no start", name);
    return WEFT_OK;
}

/* What route_topk and route_dense share: everything that makes R. */
static weft_status check_score(weft_graph *g, const weft_node *n) {
    const weft_attention_attr *a = &((const weft_route_attr *)n->attr)->score;
    weft_tensor *const *in = n->in;
    if (!in[WEFT_ROUTE_LSE]) return weft_graph_fail(g, "%s: lse is missing", n->op->name);
    WEFT_TRY(check_queries_and_keys(g, n, a));
    WEFT_TRY(check_options(g, n, a));
    const int64_t a_head[] = {a->heads}, a_key[] = {a->batch, a->kv_heads, a->keys};
    WEFT_TRY(check_stat(g, n, WEFT_ATTN_N, 3, a_key));
    WEFT_TRY(check_stat(g, n, WEFT_ATTN_SCALE, 1, a_head));
    WEFT_TRY(check_stat(g, n, WEFT_ATTN_BETA, 1, a_head));
    WEFT_TRY(check_stat(g, n, WEFT_ATTN_LOG_TAU, 1, a_head));
    WEFT_TRY(check_stat(g, n, WEFT_ROUTE_LSE, 3, (int64_t[]){a->batch, a->heads, a->queries}));
    if (in[WEFT_ATTN_START]) {
        WEFT_TRY(weft_check_int(g, n, "start", in[WEFT_ATTN_START]));
        WEFT_TRY(weft_check_shape(g, n, "start", in[WEFT_ATTN_START], 1, (int64_t[]){a->batch}));
    }
    const weft_tensor *rel = in[WEFT_ATTN_REL];
    if (!rel) return WEFT_OK;
    WEFT_TRY(weft_check_ndim(g, n, "rel", rel, 1));
    if (rel->shape[0] < a->keys)
        return weft_graph_fail(g, "%s: rel is %s, but there are %lld keys, so as many distances",
                               n->op->name, weft_tensor_describe(rel), (long long)a->keys);
    return check_stat(g, n, WEFT_ATTN_REL, 1, rel->shape);
}

/* Pairs (t, j) of one head and sequence that are seen, the queries being the last of the keys. */
static int64_t visible_pairs(const weft_attention_attr *a) {
    if (!a->causal) return a->queries * a->keys;
    return a->queries * a->keys - a->queries * (a->queries - 1) / 2;
}

static int64_t score_flops(const weft_node *n) {
    const weft_attention_attr *a = &((const weft_route_attr *)n->attr)->score;
    int64_t pairs = visible_pairs(a);
    if (a->band && a->window < a->queries) {
        int64_t w = a->window + 1;
        pairs += w * a->queries - w * (w - 1) / 2;
    } else if (a->band) {
        pairs *= 2;
    }
    return 2 * a->batch * a->heads * a->dqk * pairs;
}

static weft_route_attr make_attr(const weft_score *s, const weft_tensor *qkv, int64_t heads,
                                 int64_t kv_heads) {
    weft_route_attr attr = {0};
    weft_attention_attr *a = &attr.score;
    a->scale_value = s->scale_value;
    a->pos = s->pos;
    a->causal = s->causal;
    a->band = s->band;
    a->window = s->window;
    a->band_alpha = s->band_alpha;
    a->packed = qkv != NULL;
    if (qkv) {
        int64_t parts = heads + 2 * kv_heads;
        a->batch = qkv->shape[0];
        a->queries = a->keys = qkv->shape[1];
        a->heads = heads;
        a->kv_heads = kv_heads;
        a->dqk = parts > 0 ? qkv->shape[2] / parts : 0;
    } else if (s->q && s->k) {
        a->batch = s->q->shape[0];
        a->queries = s->q->shape[1];
        a->keys = s->k->shape[1];
        a->heads = s->q->shape[2];
        a->kv_heads = s->k->shape[2];
        a->dqk = s->q->shape[3];
    }
    return attr;
}

static void list_score_inputs(weft_tensor **in, const weft_score *s, weft_tensor *qkv,
                              weft_tensor *lse) {
    in[WEFT_ATTN_Q] = qkv ? qkv : s->q;
    in[WEFT_ATTN_K] = qkv ? NULL : s->k;
    in[WEFT_ATTN_V] = NULL;
    in[WEFT_ATTN_N] = s->n;
    in[WEFT_ATTN_SCALE] = s->scale;
    in[WEFT_ATTN_BETA] = s->beta;
    in[WEFT_ATTN_LOG_TAU] = s->log_tau;
    in[WEFT_ATTN_REL] = s->rel;
    in[WEFT_ATTN_START] = s->start;
    in[WEFT_ROUTE_LSE] = lse;
}

/* route_topk */

static weft_status route_topk_infer(weft_graph *g, weft_node *n) {
    const weft_route_attr *a = n->attr;
    WEFT_TRY(check_score(g, n));
    if (a->k < 1)
        return weft_graph_fail(g, "%s: k is %lld, but it must be at least 1", n->op->name,
                               (long long)a->k);
    int64_t shape[] = {a->score.batch, a->score.queries, a->k};
    weft_node_output(g, n, 0, WEFT_I32, 3, shape);
    weft_node_output(g, n, 1, weft_stat_dtype(n->in[WEFT_ATTN_Q]), 3, shape);
    return weft_graph_status(g);
}

DEFINE_OP(route_topk, .infer = route_topk_infer, .flops = score_flops);

static weft_routes append_topk(weft_graph *g, const weft_score *score, weft_tensor *qkv,
                               weft_route_attr attr, weft_tensor *lse) {
    weft_tensor *in[WEFT_ROUTE_TOPK_INPUTS];
    list_score_inputs(in, score, qkv, lse);
    weft_node *n = weft_graph_append(g, &weft_op_route_topk, in, WEFT_ROUTE_TOPK_INPUTS,
                                     attr.score.packed ? 1 : 2, 2, &attr, sizeof attr);
    return n ? (weft_routes){n->out[0], n->out[1]} : (weft_routes){NULL, NULL};
}

weft_routes weft_route_topk(weft_graph *g, const weft_score *score, weft_tensor *lse, int64_t k,
                            bool normalize, bool use_max) {
    weft_route_attr attr = make_attr(score, NULL, 0, 0);
    attr.k = k;
    attr.normalize = normalize;
    attr.use_max = use_max;
    return append_topk(g, score, NULL, attr, lse);
}

weft_routes weft_route_topk_packed(weft_graph *g, const weft_score *score, weft_tensor *qkv,
                                   int64_t heads, int64_t kv_heads, weft_tensor *lse, int64_t k,
                                   bool normalize, bool use_max) {
    weft_score none = *score;
    none.q = none.k = NULL;
    weft_route_attr attr = make_attr(&none, qkv, heads, kv_heads);
    attr.k = k;
    attr.normalize = normalize;
    attr.use_max = use_max;
    return append_topk(g, &none, qkv, attr, lse);
}

/* route_gather */

/* What a tensor that is gathered must be beside index and weight. */
static weft_status check_gathered(weft_graph *g, const weft_node *n, const char *name,
                                  const weft_tensor *h) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX], *weight = n->in[WEFT_GATHER_WEIGHT];
    WEFT_TRY(weft_check_float_of(g, n, name, h, 3));
    if (weight->dtype != weft_stat_dtype(h))
        return weft_graph_fail(g, "%s: weight is %s, but beside %s %s it must be %s", n->op->name,
                               weft_tensor_describe(weight), name, weft_tensor_describe(h),
                               weft_dtype_name(weft_stat_dtype(h)));
    if (index->shape[0] != h->shape[0])
        return weft_graph_fail(g, "%s: %s is %s, but index is %s; the batch must agree",
                               n->op->name, name, weft_tensor_describe(h),
                               weft_tensor_describe(index));
    if (h->shape[1] >= INT32_MAX)
        return weft_graph_fail(g, "%s: %s is %s; a sequence may have %d positions at most",
                               n->op->name, name, weft_tensor_describe(h), INT32_MAX - 1);
    return WEFT_OK;
}

static weft_status route_gather_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *second = n->in[WEFT_GATHER_SECOND];
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    WEFT_TRY(weft_check_int(g, n, "index", index));
    WEFT_TRY(weft_check_ndim(g, n, "index", index, 3));
    WEFT_TRY(weft_check_same(g, n, "index", index, "weight", n->in[WEFT_GATHER_WEIGHT]));
    WEFT_TRY(check_gathered(g, n, "h", h));
    if (second) {
        WEFT_TRY(check_gathered(g, n, "second", second));
        if (second->dtype != h->dtype || second->shape[1] != h->shape[1])
            return weft_graph_fail(g, "%s: h is %s, but second is %s; all but the width must agree",
                                   n->op->name, weft_tensor_describe(h),
                                   weft_tensor_describe(second));
    }
    if (index->shape[1] * index->shape[2] > INT32_MAX)
        return weft_graph_fail(g, "%s: index is %s; a sequence may have %d entries at most",
                               n->op->name, weft_tensor_describe(index), INT32_MAX);
    for (int i = 0; i < (second ? 2 : 1); i++)
        weft_node_output(
            g, n, i, h->dtype, 3,
            (int64_t[]){h->shape[0], index->shape[1], weft_gather_input(n, i)->shape[2]});
    return weft_graph_status(g);
}

/* The tensors whose gradient is wanted are gathered back in one node. */
static weft_status route_gather_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                     weft_tensor **d_in) {
    weft_route_gather_attr attr = {n->in[WEFT_GATHER_H]->shape[1]};
    weft_tensor *in[WEFT_GATHER_INPUTS] = {[WEFT_GATHER_INDEX] = n->in[WEFT_GATHER_INDEX],
                                           [WEFT_GATHER_WEIGHT] = n->in[WEFT_GATHER_WEIGHT]};
    weft_tensor **to[2];
    int wanted = 0;
    for (int i = 0; i < 2; i++) {
        const weft_tensor *h = weft_gather_input(n, i);
        if (!h || !h->needs_grad || !d_out[i]) continue;
        in[wanted == 0 ? WEFT_GATHER_H : WEFT_GATHER_SECOND] = d_out[i];
        to[wanted++] = &d_in[i == 0 ? WEFT_GATHER_H : WEFT_GATHER_SECOND];
    }
    if (wanted == 0) return WEFT_OK;
    weft_node *back = weft_graph_append(g, &weft_op_route_gather_back, in, WEFT_GATHER_INPUTS,
                                        WEFT_GATHER_SECOND, wanted, &attr, sizeof attr);
    if (!back) return weft_graph_status(g);
    for (int i = 0; i < wanted; i++)
        *to[i] = back->out[i];
    return WEFT_OK;
}

/* Both ways: an entry of the index is one multiply-add a column of c. */
static int64_t route_gather_flops(const weft_node *n) {
    int64_t width = n->out[0]->shape[2];
    if (n->in[WEFT_GATHER_SECOND]) width += n->out[1]->shape[2];
    return 2 * weft_tensor_count(n->in[WEFT_GATHER_INDEX]) * width;
}

DEFINE_OP(route_gather, .infer = route_gather_infer, .grad = route_gather_grad,
          .flops = route_gather_flops);

static weft_status route_gather_back_infer(weft_graph *g, weft_node *n) {
    const weft_route_gather_attr *a = n->attr;
    for (int i = 0; i < 2; i++) {
        const weft_tensor *dc = weft_gather_input(n, i);
        if (dc)
            weft_node_output(g, n, i, dc->dtype, 3,
                             (int64_t[]){dc->shape[0], a->keys, dc->shape[2]});
    }
    return weft_graph_status(g);
}

DEFINE_OP(route_gather_back, .infer = route_gather_back_infer, .flops = route_gather_flops);

weft_tensor *weft_route_gather(weft_graph *g, weft_tensor *h, weft_tensor *index,
                               weft_tensor *weight) {
    weft_tensor *in[] = {h, index, weight, NULL};
    weft_node *n = weft_graph_append(g, &weft_op_route_gather, in, WEFT_GATHER_INPUTS,
                                     WEFT_GATHER_SECOND, 1, NULL, 0);
    return n ? n->out[0] : NULL;
}

weft_route_pair weft_route_gather_pair(weft_graph *g, weft_tensor *first, weft_tensor *second,
                                       weft_tensor *index, weft_tensor *weight) {
    weft_tensor *in[] = {first, index, weight, second};
    weft_node *n = weft_graph_append(g, &weft_op_route_gather, in, WEFT_GATHER_INPUTS,
                                     WEFT_GATHER_INPUTS, 2, NULL, 0);
    return n ? (weft_route_pair){n->out[0], n->out[1]} : (weft_route_pair){NULL, NULL};
}

/* route_dense */

static weft_status route_dense_infer(weft_graph *g, weft_node *n) {
    const weft_route_attr *a = n->attr;
    const weft_tensor *h = n->in[WEFT_ROUTE_H];
    WEFT_TRY(check_score(g, n));
    if (!h) return weft_graph_fail(g, "%s: h is missing", n->op->name);
    WEFT_TRY(weft_check_float_of(g, n, "h", h, 3));
    WEFT_TRY(
        weft_check_shape(g, n, "h", h, 3, (int64_t[]){a->score.batch, a->score.keys, a->width}));
    if (a->mode == WEFT_ROUTE_RMS && !(a->threshold >= 0))
        return weft_graph_fail(g, "%s: the threshold is %g, but it must not be negative",
                               n->op->name, a->threshold);
    int64_t rows[] = {a->score.batch, a->score.queries, a->width};
    weft_dtype stat = weft_stat_dtype(n->in[WEFT_ATTN_Q]);
    weft_node_output(g, n, 0, h->dtype, 3, rows);
    weft_node_output(g, n, 1, stat, 2, rows);
    weft_node_output(g, n, 2, stat, 2, rows);
    return weft_graph_status(g);
}

static weft_status route_dense_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                    weft_tensor **d_in) {
    if (!d_out[0] || !n->in[WEFT_ROUTE_H]->needs_grad) return WEFT_OK;
    if (n->in[WEFT_ATTN_START])
        return weft_graph_fail(g, "%s: there is no gradient where start is given", n->op->name);
    weft_tensor *in[WEFT_ROUTE_DENSE_BACK_INPUTS];
    for (int i = 0; i < WEFT_ROUTE_H; i++)
        in[i] = n->in[i];
    in[WEFT_ROUTE_H] = d_out[0];
    in[WEFT_ROUTE_FLOOR] = n->out[1];
    in[WEFT_ROUTE_FACTOR] = n->out[2];
    weft_node *back =
        weft_graph_append(g, &weft_op_route_dense_back, in, WEFT_ROUTE_DENSE_BACK_INPUTS, 1, 1,
                          n->attr, sizeof(weft_route_attr));
    if (!back) return weft_graph_status(g);
    d_in[WEFT_ROUTE_H] = back->out[0];
    return WEFT_OK;
}

static int64_t route_dense_flops(const weft_node *n) {
    const weft_route_attr *a = n->attr;
    return score_flops(n) + 2 * a->score.batch * a->width * visible_pairs(&a->score);
}

DEFINE_OP(route_dense, .infer = route_dense_infer, .grad = route_dense_grad,
          .flops = route_dense_flops);

static weft_status route_dense_back_infer(weft_graph *g, weft_node *n) {
    const weft_route_attr *a = n->attr;
    weft_node_output(g, n, 0, n->in[WEFT_ROUTE_H]->dtype, 3,
                     (int64_t[]){a->score.batch, a->score.keys, a->width});
    return weft_graph_status(g);
}

DEFINE_OP(route_dense_back, .infer = route_dense_back_infer, .flops = route_dense_flops);

static weft_tensor *append_dense(weft_graph *g, const weft_score *score, weft_tensor *qkv,
                                 weft_route_attr attr, weft_tensor *lse, weft_tensor *h) {
    weft_tensor *in[WEFT_ROUTE_DENSE_INPUTS];
    list_score_inputs(in, score, qkv, lse);
    in[WEFT_ROUTE_H] = h;
    attr.width = h ? h->shape[2] : 0;
    weft_node *n = weft_graph_append(g, &weft_op_route_dense, in, WEFT_ROUTE_DENSE_INPUTS,
                                     attr.score.packed ? 1 : 2, 3, &attr, sizeof attr);
    return n ? n->out[0] : NULL;
}

weft_tensor *weft_route_dense(weft_graph *g, const weft_score *score, weft_tensor *lse,
                              weft_tensor *h, weft_route_mode mode, double threshold,
                              bool normalize, bool use_max) {
    weft_route_attr attr = make_attr(score, NULL, 0, 0);
    attr.mode = mode;
    attr.threshold = threshold;
    attr.normalize = normalize;
    attr.use_max = use_max;
    return append_dense(g, score, NULL, attr, lse, h);
}

weft_tensor *weft_route_dense_packed(weft_graph *g, const weft_score *score, weft_tensor *qkv,
                                     int64_t heads, int64_t kv_heads, weft_tensor *lse,
                                     weft_tensor *h, weft_route_mode mode, double threshold,
                                     bool normalize, bool use_max) {
    weft_score none = *score;
    none.q = none.k = NULL;
    weft_route_attr attr = make_attr(&none, qkv, heads, kv_heads);
    attr.mode = mode;
    attr.threshold = threshold;
    attr.normalize = normalize;
    attr.use_max = use_max;
    return append_dense(g, &none, qkv, attr, lse, h);
}

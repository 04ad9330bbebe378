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

/* What route_topk and route_dense share: everything that makes R. */
static weft_status check_score(weft_graph *g, const weft_node *n) {
    const weft_attention_attr *a = &((const weft_route_attr *)n->attr)->score;
    const weft_tensor *q = n->in[WEFT_ATTN_Q], *lse = n->in[WEFT_ROUTE_LSE];
    if (!lse) return REFUSE("lse is missing");
    WEFT_TRY(weft_score_check(g, n, a));
    if (!a->causal && a->pos != WEFT_POS_NONE) return REFUSE("positions need a causal attention");
    if (a->keys != a->queries)
        return REFUSE("q is %s, but k is %s; there must be as many keys as queries",
                      weft_tensor_describe(q), weft_tensor_describe(n->in[WEFT_ATTN_K]));
    WEFT_TRY(weft_check_stat(g, n, "lse", lse, q));
    return weft_check_dims(g, n, "lse", lse, a->batch, a->heads, a->queries);
}

DEFINE_FLOPS(score, weft_score_flops(&((const weft_route_attr *)n->attr)->score))

OPERATION(route_topk, weft_route_attr, q, .flops = score_flops) {
    WEFT_TRY(check_score(g, n));
    if (attr->k < 1) return REFUSE("k is %lld, but it must be at least 1", (long long)attr->k);
    int64_t shape[] = {attr->score.batch, attr->score.queries, attr->k};
    weft_node_output(g, n, 0, WEFT_I32, 3, shape);
    return weft_output(g, n, 1, weft_stat_dtype(q), 3, shape);
}

weft_routes weft_route_topk(weft_graph *g, const weft_score *score, weft_tensor *lse, int64_t k,
                            bool normalize, bool use_max) {
    weft_route_attr attr = {
        .score = weft_score_attr(score), .k = k, .normalize = normalize, .use_max = use_max};
    weft_tensor *in[WEFT_ROUTE_TOPK_INPUTS];
    weft_score_inputs(score, in);
    in[WEFT_ROUTE_LSE] = lse;
    weft_node *n = weft_graph_append(g, &weft_op_route_topk, in, WEFT_ROUTE_TOPK_INPUTS,
                                     attr.score.packed ? 1 : 2, 2, &attr, sizeof attr);
    return n ? (weft_routes){n->out[0], n->out[1]} : (weft_routes){NULL, NULL};
}

/* What a tensor that is gathered must be beside index and weight. */
static weft_status check_gathered(weft_graph *g, const weft_node *n, const char *name,
                                  const weft_tensor *h) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    WEFT_TRY(weft_check_float_of(g, n, name, h, 3));
    WEFT_TRY(weft_check_stat(g, n, "weight", n->in[WEFT_GATHER_WEIGHT], h));
    if (index->shape[0] != h->shape[0])
        return REFUSE("%s is %s, but index is %s; the batch must agree", name,
                      weft_tensor_describe(h), weft_tensor_describe(index));
    if (h->shape[1] >= INT32_MAX)
        return REFUSE("%s is %s; a sequence may have %d positions at most", name,
                      weft_tensor_describe(h), INT32_MAX - 1);
    return WEFT_OK;
}

/* Both ways: an entry of the index is one multiply-add a column of c. */
static int64_t route_gather_flops(const weft_node *n) {
    int64_t width = n->out[0]->shape[2];
    if (n->in[WEFT_GATHER_SECOND]) width += n->out[1]->shape[2];
    return 2 * weft_tensor_count(n->in[WEFT_GATHER_INDEX]) * width;
}

OPERATION_WITH_GRAD(route_gather, void, h, .flops = route_gather_flops) {
    const weft_tensor *second = n->in[WEFT_GATHER_SECOND];
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    WEFT_TRY(weft_check_int(g, n, "index", index));
    WEFT_TRY(weft_check_ndim(g, n, "index", index, 3));
    WEFT_TRY(weft_check_same(g, n, "index", index, "weight", n->in[WEFT_GATHER_WEIGHT]));
    WEFT_TRY(check_gathered(g, n, "h", h));
    if (second) {
        WEFT_TRY(check_gathered(g, n, "second", second));
        if (second->dtype != h->dtype || second->shape[1] != h->shape[1])
            return REFUSE("h is %s, but second is %s; all but the width must agree",
                          weft_tensor_describe(h), weft_tensor_describe(second));
    }
    if (index->shape[1] * index->shape[2] > INT32_MAX)
        return REFUSE("index is %s; a sequence may have %d entries at most",
                      weft_tensor_describe(index), INT32_MAX);
    for (int i = 0; i < (second ? 2 : 1); i++)
        weft_node_output(
            g, n, i, h->dtype,
            WEFT_DIMS(h->shape[0], index->shape[1], weft_gather_input(n, i)->shape[2]));
    return weft_graph_status(g);
}

/* The tensors whose gradient is wanted are gathered back in one node. */
GRAD(route_gather) {
    weft_tensor *in[WEFT_GATHER_INPUTS] = {[WEFT_GATHER_INDEX] = n->in[WEFT_GATHER_INDEX],
                                           [WEFT_GATHER_WEIGHT] = n->in[WEFT_GATHER_WEIGHT]};
    weft_tensor **to[2];
    const int64_t *keys = &n->in[WEFT_GATHER_H]->shape[1];
    int wanted = 0;
    for (int i = 0; i < 2; i++) {
        const weft_tensor *h = weft_gather_input(n, i);
        if (!h || !h->needs_grad || !d_out[i]) continue;
        in[wanted == 0 ? WEFT_GATHER_H : WEFT_GATHER_SECOND] = d_out[i];
        to[wanted++] = &d_in[i == 0 ? WEFT_GATHER_H : WEFT_GATHER_SECOND];
    }
    if (wanted == 0) return WEFT_OK;
    weft_node *back = weft_graph_append(g, &weft_op_route_gather_back, in, WEFT_GATHER_INPUTS,
                                        WEFT_GATHER_SECOND, wanted, keys, sizeof *keys);
    for (int i = 0; back && i < wanted; i++)
        *to[i] = back->out[i];
    return weft_graph_status(g);
}

OPERATION(route_gather_back, int64_t, first, .flops = route_gather_flops) {
    for (int i = 0; i < 2; i++) {
        const weft_tensor *dc = weft_gather_input(n, i);
        if (dc) weft_node_output(g, n, i, dc->dtype, WEFT_DIMS(dc->shape[0], *attr, dc->shape[2]));
    }
    return weft_graph_status(g);
}

weft_tensor *weft_route_gather(weft_graph *g, weft_tensor *h, weft_tensor *index,
                               weft_tensor *weight) {
    return weft_append_some(g, &weft_op_route_gather, NULL, 0, WEFT_GATHER_SECOND, h, index, weight,
                            NULL);
}

weft_route_pair weft_route_gather_pair(weft_graph *g, weft_tensor *first, weft_tensor *second,
                                       weft_tensor *index, weft_tensor *weight) {
    weft_tensor *in[] = {first, index, weight, second};
    weft_node *n = weft_graph_append(g, &weft_op_route_gather, in, WEFT_GATHER_INPUTS,
                                     WEFT_GATHER_INPUTS, 2, NULL, 0);
    return n ? (weft_route_pair){n->out[0], n->out[1]} : (weft_route_pair){NULL, NULL};
}

static int64_t route_dense_flops(const weft_node *n) {
    const weft_route_attr *a = n->attr;
    return score_flops(n) + 2 * a->score.batch * a->width * weft_score_pairs(&a->score);
}

OPERATION_WITH_GRAD(route_dense, weft_route_attr, q, .flops = route_dense_flops) {
    const weft_tensor *h = n->in[WEFT_ROUTE_H];
    WEFT_TRY(check_score(g, n));
    if (!h) return REFUSE("h is missing");
    WEFT_TRY(weft_check_float_of(g, n, "h", h, 3));
    WEFT_TRY(weft_check_dims(g, n, "h", h, attr->score.batch, attr->score.keys, attr->width));
    if (attr->mode == WEFT_ROUTE_RMS && !(attr->threshold >= 0))
        return REFUSE("the threshold is %g, but it must not be negative", attr->threshold);
    int64_t rows[] = {attr->score.batch, attr->score.queries, attr->width};
    weft_dtype stat = weft_stat_dtype(q);
    weft_node_output(g, n, 0, h->dtype, 3, rows);
    weft_node_output(g, n, 1, stat, 2, rows);
    return weft_output(g, n, 2, stat, 2, rows);
}

GRAD(route_dense) {
    if (!d_out[0] || !n->in[WEFT_ROUTE_H]->needs_grad) return WEFT_OK;
    weft_tensor *in[WEFT_ROUTE_DENSE_BACK_INPUTS];
    for (int i = 0; i < WEFT_ROUTE_H; i++)
        in[i] = n->in[i];
    in[WEFT_ROUTE_H] = d_out[0];
    in[WEFT_ROUTE_FLOOR] = n->out[1];
    in[WEFT_ROUTE_FACTOR] = n->out[2];
    d_in[WEFT_ROUTE_H] =
        weft_append_list(g, &weft_op_route_dense_back, n->attr, sizeof(weft_route_attr), 1,
                         WEFT_ROUTE_DENSE_BACK_INPUTS, in);
    return weft_graph_status(g);
}

OPERATION(route_dense_back, weft_route_attr, q, .flops = route_dense_flops) {
    return weft_output_of(g, n, 0, n->in[WEFT_ROUTE_H]->dtype, attr->score.batch, attr->score.keys,
                          attr->width);
}

weft_tensor *weft_route_dense(weft_graph *g, const weft_score *score, weft_tensor *lse,
                              weft_tensor *h, weft_route_mode mode, double threshold,
                              bool normalize, bool use_max) {
    weft_route_attr attr = {.score = weft_score_attr(score),
                            .mode = mode,
                            .threshold = threshold,
                            .normalize = normalize,
                            .use_max = use_max,
                            .width = h ? h->shape[2] : 0};
    weft_tensor *in[WEFT_ROUTE_DENSE_INPUTS];
    weft_score_inputs(score, in);
    in[WEFT_ROUTE_LSE] = lse;
    in[WEFT_ROUTE_H] = h;
    weft_node *n = weft_graph_append(g, &weft_op_route_dense, in, WEFT_ROUTE_DENSE_INPUTS,
                                     attr.score.packed ? 1 : 2, 3, &attr, sizeof attr);
    return n ? n->out[0] : NULL;
}

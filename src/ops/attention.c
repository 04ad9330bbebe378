/* Attention: shape rule and gradient.
 *
 * With s_ij as in the header, p_ij = exp(s_ij − lse_i) and, for the output's gradient do_i,
 *
 *     dv_j  = Σ_i p_ij do_i
 *     ds_ij = p_ij (⟨do_i, v_j⟩ − D_i)            D_i = ⟨do_i, o_i⟩
 *     dq_i  = scale Σ_j ds_ij k_j                 dk_j = scale Σ_i ds_ij q_i
 *     dn_j  = β Σ_i ds_ij                         drel_d = Σ_{i−j=d} ds_ij
 *
 * and for the reciprocal band also dq_j += α scale Σ_i ds_ij k_i, dk_i += α scale Σ_j ds_ij q_j over
 * the band's pairs. All heads of a group and, for the numbers a head, all rows add up.
 *
 * Σ_j ds_ij = 0 in every row, so a number that is the same for a whole row may be taken off what
 * ds_ij is multiplied with. The numbers a head use that, since in float the sum is not quite 0 and
 * a large common part of the scores would turn the rest into noise:
 *
 *     dscale   = Σ ds_ij (⟨q_i, k_j⟩ − ⟨q_i, k_0⟩)      (with the band's α ⟨q_j, k_i⟩)
 *     dbeta    = Σ ds_ij (n_j − n_0)
 *     dlog_tau = −τ/(τ+ε) Σ ds_ij (s_ij − pos_ij − lse_i)
 *
 * Behind a soft-cap c, with t_ij = tanh(s_ij / c), all of this is by ds_ij (1 − t_ij²) in place of ds_ij.
 * Its rows do not sum to 0, so that dscale has no shift.
 */
#include "ops/attention.h"

#include "ops/define.h"

double weft_alibi_slope(int64_t h, int64_t heads) {
    int64_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    if (h < power) return __builtin_exp2(-8.0 * (double)(h + 1) / (double)power);
    return __builtin_exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power);
}

/* The number of (query, key) pairs that are seen in one head of one sequence. */
int64_t weft_score_pairs(const weft_attention_attr *a) {
    int64_t all = a->queries * a->keys;
    if (!a->causal) return all;
    all -= a->queries * (a->queries - 1) / 2;
    /* What the last queries do not reach. */
    int64_t beyond = a->reach ? a->keys - a->reach : 0, rows = beyond;
    if (beyond <= 0) return all;
    if (rows > a->queries) rows = a->queries;
    return all - (beyond * (beyond + 1) - (beyond - rows) * (beyond - rows + 1)) / 2;
}

/* The pairs of the reciprocal band: i − j ≤ window. */
static int64_t count_band_pairs(const weft_attention_attr *a) {
    if (!a->band) return 0;
    int64_t wide = a->window + 1 < a->queries ? a->window + 1 : a->queries;
    return wide * (wide + 1) / 2 + (a->queries - wide) * wide;
}

int64_t weft_score_flops(const weft_attention_attr *a) {
    return 2 * a->batch * a->heads * a->dqk * (weft_score_pairs(a) + count_band_pairs(a));
}

/* q and k, or qkv. */
static weft_status check_queries_and_keys(weft_graph *g, const weft_node *n,
                                          const weft_attention_attr *a) {
    const weft_tensor *q = n->in[WEFT_ATTN_Q], *k = n->in[WEFT_ATTN_K];
    WEFT_TRY(weft_check_float(g, n, a->packed ? "qkv" : "q", q));
    if (a->packed) {
        if (q->ndim == 3 && q->shape[2] == (a->heads + 2 * a->kv_heads) * a->dqk) return WEFT_OK;
        return REFUSE("qkv is %s, but it must be [B, T, (%lld + 2 * %lld) * D] for "
                      "%lld query and %lld key heads",
                      weft_tensor_describe(q), (long long)a->heads, (long long)a->kv_heads,
                      (long long)a->heads, (long long)a->kv_heads);
    }
    WEFT_TRY(weft_check_ndim(g, n, "q", q, 4));
    if (k->dtype != q->dtype)
        return REFUSE("q is %s, but k is %s; they must have one type", weft_tensor_describe(q),
                      weft_tensor_describe(k));
    return weft_check_dims(g, n, "k", k, a->batch, a->keys, a->kv_heads, a->dqk);
}

weft_status weft_score_check(weft_graph *g, const weft_node *n, const weft_attention_attr *a) {
    WEFT_TRY(check_queries_and_keys(g, n, a));
    if (a->heads < 1 || a->kv_heads < 1 || a->kv_heads > a->heads)
        return REFUSE("%lld query heads and %lld key heads, but there must be 1 or more key heads "
                      "and no more than query heads",
                      (long long)a->heads, (long long)a->kv_heads);
    weft_tensor *const *in = n->in;
    if ((in[WEFT_ATTN_BETA] != NULL || in[WEFT_ATTN_LOG_TAU] != NULL) != (in[WEFT_ATTN_N] != NULL))
        return REFUSE("n and one of beta and log_tau go together");
    if (in[WEFT_ATTN_LOG_TAU] && (in[WEFT_ATTN_SCALE] || in[WEFT_ATTN_BETA]))
        return REFUSE("log_tau makes scale and beta, so neither can be given");
    if ((a->pos == WEFT_POS_RELATIVE) != (in[WEFT_ATTN_REL] != NULL))
        return REFUSE("rel and the relative position go together");
    if (!a->causal && (a->band || in[WEFT_ATTN_REL]))
        return REFUSE("rel and the band need causal attention");
    if (a->band && a->window < 0) return REFUSE("the band needs a window of 0 or more");
    if (a->causal && a->queries != a->keys)
        return REFUSE("%lld queries and %lld keys; causal attention needs as many",
                      (long long)a->queries, (long long)a->keys);
    if (!a->causal && (a->reach || in[WEFT_ATTN_FIRST]))
        return REFUSE("reach and first need causal attention");
    if (a->reach < 0 || !(a->softcap >= 0))
        return REFUSE("a reach of %lld and a soft-cap of %g; neither may be negative",
                      (long long)a->reach, a->softcap);
    if (a->softcap > 0 && in[WEFT_ATTN_N])
        return REFUSE("a soft-cap and n, of which a number per query is left out");
    /* What comes beside q, k, v: numbers a key, a head, a distance; all of the statistics' type. */
    static const char *const names[] = {[WEFT_ATTN_N] = "n",
                                        [WEFT_ATTN_SCALE] = "scale",
                                        [WEFT_ATTN_BETA] = "beta",
                                        [WEFT_ATTN_LOG_TAU] = "log_tau",
                                        [WEFT_ATTN_REL] = "rel"};
    for (int i = WEFT_ATTN_N; i <= WEFT_ATTN_REL; i++)
        if (in[i]) WEFT_TRY(weft_check_stat(g, n, names[i], in[i], in[WEFT_ATTN_Q]));
    if (in[WEFT_ATTN_N])
        WEFT_TRY(weft_check_dims(g, n, "n", in[WEFT_ATTN_N], a->batch, a->kv_heads, a->keys));
    for (int i = WEFT_ATTN_SCALE; i <= WEFT_ATTN_LOG_TAU; i++)
        if (in[i]) WEFT_TRY(weft_check_shape(g, n, names[i], in[i], 1, (int64_t[]){a->heads}));
    weft_tensor *rel = in[WEFT_ATTN_REL];
    if (rel) WEFT_TRY(weft_check_ndim(g, n, "rel", rel, 1));
    if (rel && rel->shape[0] < a->keys)
        return REFUSE("rel is %s, but %lld keys have as many distances", weft_tensor_describe(rel),
                      (long long)a->keys);
    return weft_check_places(g, n, "first", in[WEFT_ATTN_FIRST], WEFT_DIMS(a->batch, a->queries));
}

static int64_t attention_flops(const weft_node *n) {
    const weft_attention_attr *a = n->attr;
    return weft_score_flops(a) + 2 * a->batch * a->heads * weft_score_pairs(a) * a->dv;
}

OPERATION_WITH_GRAD(attention, weft_attention_attr, q, .flops = attention_flops) {
    const weft_tensor *v = n->in[WEFT_ATTN_V];
    WEFT_TRY(weft_score_check(g, n, attr));
    if (v) {
        if (v->dtype != q->dtype)
            return REFUSE("q is %s, but v is %s; they must have one type", weft_tensor_describe(q),
                          weft_tensor_describe(v));
        WEFT_TRY(weft_check_dims(g, n, "v", v, attr->batch, attr->keys, attr->kv_heads, attr->dv));
    }
    weft_node_output(g, n, 0, q->dtype,
                     WEFT_DIMS(attr->batch, attr->queries, attr->heads, attr->dv));
    weft_node_output(g, n, 1, weft_stat_dtype(q),
                     WEFT_DIMS(attr->batch, attr->heads, attr->queries));
    return weft_graph_status(g);
}

GRAD(attention) {
    if (d_out[1]) return REFUSE("lse has no gradient");
    weft_tensor *in[WEFT_ATTN_BACK_INPUTS] = {d_out[0], n->out[0], n->out[1]};
    for (int i = 0; i < WEFT_ATTN_INPUTS; i++)
        in[WEFT_ATTN_BACK_FIRST + i] = n->in[i];
    return weft_append_back_list(g, &weft_op_attention_back, n->attr, sizeof(weft_attention_attr),
                                 d_in, WEFT_ATTN_BACK_OUTPUTS, 4, WEFT_ATTN_BACK_INPUTS, in);
}

static int64_t attention_back_flops(const weft_node *n) {
    const weft_attention_attr *a = n->attr;
    return 2 * a->batch * a->heads *
           (weft_score_pairs(a) * (3 * a->dqk + 2 * a->dv) + 3 * count_band_pairs(a) * a->dqk);
}

OPERATION(attention_back, void, d_o, .flops = attention_back_flops) {
    weft_tensor *const *forward = n->in + WEFT_ATTN_BACK_FIRST;
    WEFT_TRY(weft_check_same(g, n, "d_o", d_o, "o", n->in[1]));
    for (int i = 0; i < WEFT_ATTN_BACK_OUTPUTS; i++)
        if (forward[i] && forward[i]->needs_grad)
            weft_node_output_like(g, n, i, forward[i]->dtype, forward[i]);
    return weft_graph_status(g);
}

weft_attention_attr weft_score_attr(const weft_score *score) {
    weft_attention_attr a = {.pos = score->pos, .causal = score->causal, .band = score->band};
    a.scale_value = score->scale_value;
    a.window = score->window;
    a.band_alpha = score->band_alpha;
    a.reach = score->reach;
    a.softcap = score->softcap;
    a.packed = score->packed != NULL;
    const weft_tensor *qkv = score->packed, *q = score->q, *k = score->k;
    if (qkv) {
        int64_t parts = score->heads + 2 * score->kv_heads;
        a.batch = qkv->shape[0];
        a.queries = a.keys = qkv->shape[1];
        a.heads = score->heads;
        a.kv_heads = score->kv_heads;
        a.dqk = a.dv = parts > 0 ? qkv->shape[2] / parts : 0;
    } else if (q && k) {
        a.batch = q->shape[0];
        a.queries = q->shape[1];
        a.heads = q->shape[2];
        a.dqk = q->shape[3];
        a.keys = k->shape[1];
        a.kv_heads = k->shape[2];
    }
    return a;
}

void weft_score_inputs(const weft_score *score, weft_tensor *in[WEFT_ATTN_INPUTS]) {
    in[WEFT_ATTN_Q] = score->packed ? score->packed : score->q;
    in[WEFT_ATTN_K] = score->packed ? NULL : score->k;
    in[WEFT_ATTN_V] = NULL;
    in[WEFT_ATTN_N] = score->n;
    in[WEFT_ATTN_SCALE] = score->scale;
    in[WEFT_ATTN_BETA] = score->beta;
    in[WEFT_ATTN_LOG_TAU] = score->log_tau;
    in[WEFT_ATTN_REL] = score->rel;
    in[WEFT_ATTN_FIRST] = score->first;
}

weft_attended weft_attention(weft_graph *g, const weft_score *score, weft_tensor *v) {
    if (score->packed && (score->q || score->k))
        weft_graph_fail(g, "attention: q and k beside a packed qkv, which holds them");
    weft_attention_attr attr = weft_score_attr(score);
    if (!score->packed && v) attr.dv = v->shape[3];
    weft_tensor *in[WEFT_ATTN_INPUTS];
    weft_score_inputs(score, in);
    if (!score->packed) in[WEFT_ATTN_V] = v;
    weft_node *n = weft_graph_append(g, &weft_op_attention, in, WEFT_ATTN_INPUTS,
                                     attr.packed ? 1 : 3, 2, &attr, sizeof attr);
    return n ? (weft_attended){n->out[0], n->out[1]} : (weft_attended){NULL, NULL};
}

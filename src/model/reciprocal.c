/* The three ways back from feed-forward to attention, in the order they act on the hidden
 * activations h: latent, cross-token, gate. None of them on, this is the output projection.
 *
 * Cross-token adds α W_c c, c_t = Σ_j R_tj h_j. No nonlinearity stands between it and the maps M
 * that read the new h (the output projection and the gate), so M(h + α W_c c) = M h + α (M W_c) c:
 * M W_c is formed once and the new h never is. The shape decides which form is built.
 *
 * Of low rank, W_c = up · down, and down is applied before the gathering: r numbers a token travel
 * in place of F. */
#include "model/builder.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/routing.h"
#include "ops/time.h"

static weft_tensor *weight(builder *b, const char *name, int64_t out, int64_t in) {
    return matrix(b, name, init_normal(0.02), out, in);
}

/* What the maps behind h read: h + alpha · w c, w NULL where cross-token is off. */
typedef struct {
    weft_tensor *h; /* [B, T, F] */
    weft_tensor *w; /* [F, R] */
    weft_tensor *c; /* [B, T, R] */
} hidden_sum;

weft_tensor *build_receive(builder *b, weft_tensor *latent) {
    if (!b->received) return latent;
    return weft_add_scaled(b->g, latent, b->received, b->c->recip_alpha);
}

/* Sends u to the next layer and returns h + α e. */
static weft_tensor *exchange_latent(builder *b, weft_tensor *h) {
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim, between = c->mlp_latent_dim;
    int64_t tokens = b->batch * b->time;
    weft_tensor *to_mlp = NULL, *u;
    if (c->tying_mode == WEFT_TYING_UNTIED) {
        weft_tensor *down = weight(b, "ffn.mlp_down.weight", between, b->ffn);
        to_mlp = weight(b, "ffn.attn_to_mlp.weight", b->ffn, latent);
        weft_tensor *to_attn = weight(b, "ffn.mlp_to_attn.weight", latent, between);
        u = weft_linear(b->g, h, down, NULL, WEFT_ACT_NONE);
        u = weft_linear(b->g, u, to_attn, NULL, WEFT_ACT_NONE);
    } else if (c->tying_mode == WEFT_TYING_TRANSPOSE) {
        to_mlp = weight(b, "ffn.couple.weight", b->ffn, latent);
        u = weft_matmul(b->g, weft_view(b->g, h, tokens, b->ffn), to_mlp, false, false);
    } else {
        u = weft_head_pool(b->g, h, b->couple_b, latent);
    }
    if (makes_hidden_again(b)) weft_graph_recompute_end(b->g);
    b->received = weft_view(b->g, u, b->batch, b->time, latent);
    weft_tensor *e = to_mlp ? weft_linear(b->g, b->latent, to_mlp, NULL, WEFT_ACT_NONE)
                            : weft_head_spread(b->g, b->latent, b->couple_a, b->ffn);
    return weft_add_scaled(b->g, h, e, c->recip_alpha);
}

/* Σ_j R_tj x_j with R from inputs. */
static weft_tensor *gather_given(builder *b, weft_tensor *x) {
    char index[48], weight_name[48];
    snprintf(index, sizeof index, "h.%d.routes.index", b->layer);
    snprintf(weight_name, sizeof weight_name, "h.%d.routes.weight", b->layer);
    return weft_route_gather(
        b->g, x,
        weft_new_tensor(b->g, WEFT_ROLE_INPUT, index, WEFT_I32, b->batch, b->time, b->time),
        weft_new_tensor(b->g, WEFT_ROLE_INPUT, weight_name, b->stat, b->batch, b->time, b->time));
}

/* Σ_j R_tj x_j with the attention's weights of this layer. */
static weft_tensor *gather(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    if (b->given_routes) return gather_given(b, x);
    int64_t kv = weft_config_kv_heads(c);
    bool use_max = !c->sparse_head_average;
    if (c->sparse_mode == WEFT_SPARSE_TOPK) {
        weft_routes r =
            b->packed ? weft_route_topk_packed(b->g, &b->score, b->packed, b->heads, kv, b->lse,
                                               c->sparse_k, c->sparse_normalize, use_max)
                      : weft_route_topk(b->g, &b->score, b->lse, c->sparse_k, c->sparse_normalize,
                                        use_max);
        return weft_route_gather(b->g, x, r.index, r.weight);
    }
    weft_route_mode mode = c->sparse_mode == WEFT_SPARSE_RMS ? WEFT_ROUTE_RMS : WEFT_ROUTE_ALL;
    if (b->packed)
        return weft_route_dense_packed(b->g, &b->score, b->packed, b->heads, kv, b->lse, x, mode,
                                       c->sparse_rms_threshold, c->sparse_normalize, use_max);
    return weft_route_dense(b->g, &b->score, b->lse, x, mode, c->sparse_rms_threshold,
                            c->sparse_normalize, use_max);
}

/* Products of the two forms: W_c on every token, against M W_c formed once and then used. */
static bool cheap_form_pays(const builder *b, int64_t rank) {
    if (b->form != WEFT_FORM_BY_SHAPE) return b->form == WEFT_FORM_CHEAP;
    double tokens = (double)(b->batch * b->time), f = (double)b->ffn, r = (double)rank;
    double maps = (double)(b->width + (b->c->attn_gate ? b->c->gate_dim : 0));
    return maps * f * r + tokens * maps * r < tokens * f * r;
}

static hidden_sum cross_tokens(builder *b, weft_tensor *h) {
    int64_t rank = b->c->cross_rank;
    weft_tensor *w, *x = h;
    if (rank) {
        weft_tensor *down = weight(b, "ffn.cross_down.weight", rank, b->ffn);
        w = weight(b, "ffn.cross_up.weight", b->ffn, rank);
        x = weft_linear(b->g, h, down, NULL, WEFT_ACT_NONE);
    } else {
        rank = b->ffn;
        w = weight(b, "ffn.cross_proj.weight", b->ffn, b->ffn);
    }
    hidden_sum sum = {h, w, gather(b, x)};
    if (cheap_form_pays(b, rank)) return sum;
    weft_tensor *added = weft_linear(b->g, sum.c, w, NULL, WEFT_ACT_NONE);
    return (hidden_sum){.h = weft_add_scaled(b->g, h, added, b->c->cross_alpha)};
}

/* M (h + α W c) + bias for a map M [out, F]. */
static weft_tensor *apply_map(builder *b, const hidden_sum *sum, weft_tensor *map,
                              weft_tensor *bias) {
    weft_tensor *y = weft_linear(b->g, sum->h, map, bias, WEFT_ACT_NONE);
    if (!sum->w) return y;
    weft_tensor *joined = weft_matmul(b->g, map, sum->w, false, false);
    weft_tensor *added = weft_linear(b->g, sum->c, joined, NULL, WEFT_ACT_NONE);
    return weft_add_scaled(b->g, y, added, b->c->cross_alpha);
}

/* The next layer's gates, before the sigmoid. */
static weft_tensor *make_gate(builder *b, const hidden_sum *sum) {
    const weft_config *c = b->c;
    weft_tensor *w1 = weight(b, "ffn.gate_proj.weight", c->gate_dim, b->ffn);
    weft_tensor *w2 = weight(b, "ffn.gate_heads.weight", b->heads, c->gate_dim);
    weft_tensor *context = apply_map(b, sum, w1, NULL);
    if (c->gate_pool == WEFT_GATE_CUMMEAN) context = weft_running_mean(b->g, context);
    if (c->gate_pool == WEFT_GATE_SEQUENCE) context = weft_time_mean(b->g, context);
    return weft_linear(b->g, context, w2, NULL, WEFT_ACT_NONE);
}

weft_tensor *build_reciprocal(builder *b, weft_tensor *hidden, weft_tensor *w_out,
                              weft_tensor *bias) {
    const weft_config *c = b->c;
    hidden_sum sum = {.h = hidden};
    if (c->latent_recip) sum.h = exchange_latent(b, hidden);
    if (c->cross_token) sum = cross_tokens(b, sum.h);
    b->gate = c->attn_gate ? make_gate(b, &sum) : NULL;
    return apply_map(b, &sum, w_out, bias);
}

/* The three ways back from feed-forward to attention, in the order they act on the hidden
 * activations h: latent, cross-token, gate. None of them on, this is the output projection.
 *
 * The maps M that read the new h (the output projection and the gate) meet no nonlinearity on the
 * way, and gathering tokens commutes with a map of their columns. So, e = W_a c^K, R the routes:
 *
 *     h' = h + α_l W_a c^K                      M h' = M h + α_l (M W_a) c^K
 *     h'' = h' + α_c W_c R h'                   M h'' = M h' + α_c R ((M W_c) h')
 *
 * M W_a and M W_c are formed once, h' and h'' never are, and what travels between tokens is as wide
 * as M's result in place of F. The shape decides which form is built.
 *
 * Of low rank, W_c = up · down, and down is applied before the gathering: r numbers a token travel.
 * The dense modes rebuild the weights with each gathering, so they gather once, h' itself. */
#include "model/builder.h"

static weft_tensor *weight(builder *b, const char *name, int64_t out, int64_t in) {
    return matrix(b, name, init_normal(0.02), out, in);
}

/* The weight α of a mechanism in a layer: the config's, or one that is learned from it. */
typedef struct {
    double value;
    weft_tensor *learned; /* [1]; NULL: value */
} mixing;

/* What the maps behind h read: h + α_l to_mlp · c^K, and α_c cross times the gathered of that. */
typedef struct {
    weft_tensor *h; /* [B, T, F] */
    mixing latent_weight, cross_weight;
    weft_tensor *latent;   /* c^K as this layer's feed-forward reads it */
    weft_tensor *to_mlp;   /* [F, L]; NULL: latent is off, or its share is in h */
    weft_tensor *cross;    /* [F, R]; NULL: cross-token is off, or its share is in h */
    weft_tensor *before;   /* [R, F]: cross is cross · before; NULL: as it is */
    weft_tensor *gathered; /* [B, T, R], what cross reads; NULL: gathered behind the maps */
    bool waits;            /* it is this token's alone as yet */
} hidden_sum;

static mixing make_weight(builder *b, const char *name, double value) {
    mixing w = {.value = value};
    if (b->c->alpha_learned) w.learned = builder_vector(b, name, init_constant(value), 1);
    return w;
}

weft_tensor *scale_learned(builder *b, weft_tensor *x, weft_tensor *factor) {
    return x ? weft_head_spread(b->g, x, factor, weft_tensor_width(x)) : NULL;
}

/* α x, and y + α x. */
static weft_tensor *weigh(builder *b, weft_tensor *x, mixing w) {
    return w.learned ? scale_learned(b, x, w.learned) : weft_scale(b->g, x, w.value);
}

static weft_tensor *add_weighed(builder *b, weft_tensor *y, weft_tensor *x, mixing w) {
    return w.learned ? weft_add(b->g, y, scale_learned(b, x, w.learned))
                     : weft_add_scaled(b->g, y, x, w.value);
}

/* c^K as the feed-forward reads it: with LATENT_DETACH a view through which no gradient flows. */
static weft_tensor *export_latent(builder *b) {
    weft_tensor *x = b->latent;
    if (!x || !b->c->latent_detach) return x;
    if (b->build->given_routes) {
        char name[32];
        snprintf(name, sizeof name, "h.%d.latent", b->layer);
        return weft_graph_tensor(b->g, WEFT_ROLE_INPUT, name, x->dtype, x->ndim, x->shape);
    }
    weft_tensor *flat = weft_view(b->g, x, weft_tensor_count(x));
    weft_tensor *same = weft_reshape(b->g, flat, x->ndim, x->shape);
    if (same) same->needs_grad = false;
    return same;
}

int64_t gate_columns(const weft_config *c, bool joined) {
    return joined && c->n_head < c->gate_dim ? c->n_head : c->gate_dim;
}

/* Rows of the maps that read h. */
static int64_t map_rows(const builder *b) {
    return b->width + (b->c->attn_gate ? gate_columns(b->c, b->attend->joined) : 0);
}

/* Products of the two forms for a share W c, W [F, rank]: W on every token, against M W formed once
 * and then used, M of `maps` rows. */
static bool cheap_form_pays(const builder *b, int64_t maps, int64_t rank) {
    if (b->build->form != WEFT_FORM_BY_SHAPE) return b->build->form == WEFT_FORM_CHEAP;
    double tokens = (double)(b->batch * b->time), f = (double)b->ffn, m = (double)maps;
    return (m * f + tokens * m) * (double)rank < tokens * f * (double)rank;
}

void begin_reciprocal(builder *b) {
    b->part = "reciprocal";
    if (!b->c->latent_recip || b->c->tying_mode != WEFT_TYING_SCALAR) return;
    b->couple_a = builder_vector(b, "couple.attn_to_mlp", init_constant(1), b->heads);
    b->couple_b = builder_vector(b, "couple.mlp_to_attn", init_constant(1), b->heads);
}

/* Whether h + α e is formed; if not, the maps that read it take e's share from c^K. */
static bool forms_latent_sum(const builder *b) {
    const weft_config *c = b->c;
    if (c->tying_mode == WEFT_TYING_SCALAR) return true;
    int64_t maps = map_rows(b);
    if (c->cross_token) {
        if (c->cross_rank)
            maps += c->cross_rank;
        else if (gathers_once(b) || !cheap_form_pays(b, maps, b->ffn))
            return true;
        else
            maps *= 2;
    }
    return !cheap_form_pays(b, maps, c->ra_mla_latent_dim);
}

bool makes_hidden_again(const builder *b) {
    return b->c->latent_recip && !b->build->recompute && forms_latent_sum(b);
}

/* M h', or its like for whatever map reads h': map [out, F]. */
static weft_tensor *read_hidden(builder *b, const hidden_sum *sum, weft_tensor *map,
                                weft_tensor *bias) {
    weft_tensor *y = weft_linear(b->g, sum->h, map, bias, WEFT_ACT_NONE);
    if (!sum->to_mlp) return y;
    weft_tensor *joined = weft_matmul(b->g, map, sum->to_mlp, false, false);
    weft_tensor *added = weft_linear(b->g, sum->latent, joined, NULL, WEFT_ACT_NONE);
    return add_weighed(b, y, added, sum->latent_weight);
}

/* What the layer's tying makes: the maps between h and the latent. */
typedef struct {
    weft_tensor *down, *to_mlp, *to_attn; /* NULL: not there */
} latent_maps;

/* α_l u, to the next layer. */
static void send_latent(builder *b, weft_tensor *h, const latent_maps *m, mixing w) {
    int64_t latent = b->c->ra_mla_latent_dim, tokens = b->batch * b->time;
    weft_tensor *u;
    if (m->down) {
        u = weft_linear(b->g, h, m->down, NULL, WEFT_ACT_NONE);
        u = weft_linear(b->g, u, m->to_attn, NULL, WEFT_ACT_NONE);
    } else if (m->to_mlp) {
        u = weft_matmul(b->g, weft_view(b->g, h, tokens, b->ffn), m->to_mlp, false, false);
    } else {
        u = weft_head_pool(b->g, h, b->couple_b, latent);
    }
    u = weigh(b, u, w);
    if (makes_hidden_again(b)) weft_graph_recompute_end(b->g);
    b->received = weft_view(b->g, u, b->batch, b->time, latent);
}

/* Sends α_l u to the next layer, and adds e. In generation u comes second: then h' does not lie over h, and a
 * backend can make both at once. */
static void exchange_latent(builder *b, hidden_sum *sum) {
    weft_tensor *h = sum->h;
    sum->latent_weight = make_weight(b, "ffn.recip_alpha", b->c->recip_alpha);
    sum->latent = export_latent(b);
    const weft_config *c = b->c;
    int64_t latent = c->ra_mla_latent_dim, between = c->mlp_latent_dim;
    latent_maps m = {0};
    if (c->tying_mode == WEFT_TYING_UNTIED) {
        m.down = weight(b, "ffn.mlp_down.weight", between, b->ffn);
        m.to_mlp = weight(b, "ffn.attn_to_mlp.weight", b->ffn, latent);
        m.to_attn = weight(b, "ffn.mlp_to_attn.weight", latent, between);
    } else if (c->tying_mode == WEFT_TYING_TRANSPOSE) {
        m.to_mlp = weight(b, "ffn.couple.weight", b->ffn, latent);
    }
    if (!b->attend->joined) send_latent(b, h, &m, sum->latent_weight);
    if (forms_latent_sum(b)) {
        weft_tensor *e = m.to_mlp ? weft_linear(b->g, sum->latent, m.to_mlp, NULL, WEFT_ACT_NONE)
                                  : weft_head_spread(b->g, sum->latent, b->couple_a, b->ffn);
        sum->h = add_weighed(b, h, e, sum->latent_weight);
    } else {
        sum->to_mlp = m.to_mlp;
    }
    if (b->attend->joined) send_latent(b, h, &m, sum->latent_weight);
}

/* In the model's own type, as products on tensor cores take it: a cache's sums are wider. */
static void gather_hidden(builder *b, hidden_sum *sum) {
    if (b->attend->route) b->attend->route(b);
    b->attend->gather(b, &sum->gathered, NULL);
    if (sum->gathered && sum->gathered->dtype != b->dtype)
        sum->gathered = weft_cast(b->g, sum->gathered, b->dtype);
}

/* Adds what comes from the tokens before. */
static void cross_tokens(builder *b, hidden_sum *sum) {
    const weft_config *c = b->c;
    int64_t hidden = b->ffn, rank = c->cross_rank ? c->cross_rank : hidden;
    bool joined = b->attend->joined;
    bool cheap = joined ? map_rows(b) < hidden : cheap_form_pays(b, map_rows(b), rank);
    /* Whether tokens are gathered behind the maps M that read h, as M W_c h'. Where products of weights are
     * formed once, what travels between tokens decides, since it is what a cache holds. */
    bool behind = joined ? rank >= map_rows(b) : cheap && !c->cross_rank && !gathers_once(b);
    weft_tensor *down = NULL;
    if (c->cross_rank) {
        down = weight(b, "ffn.cross_down.weight", rank, b->ffn);
        sum->cross = weight(b, "ffn.cross_up.weight", b->ffn, rank);
    } else {
        sum->cross = weight(b, "ffn.cross_proj.weight", b->ffn, b->ffn);
    }
    sum->cross_weight = make_weight(b, "ffn.cross_alpha", c->cross_alpha);
    if (behind) {
        sum->before = down;
        if (b->attend->route) b->attend->route(b);
        return;
    }
    sum->gathered = down ? read_hidden(b, sum, down, NULL) : sum->h;
    sum->waits = joined && cheap && b->dtype == WEFT_BF16;
    if (!sum->waits) gather_hidden(b, sum);
    if (cheap) return;
    weft_tensor *added = weft_linear(b->g, sum->gathered, sum->cross, NULL, WEFT_ACT_NONE);
    sum->h = add_weighed(b, sum->h, added, sum->cross_weight);
    sum->cross = sum->gathered = NULL;
}

/* α_c (M W_c) h' for a map M [out, F], or its like of what was gathered: α_c is put on M W_c, the
 * smallest; where that is formed beforehand a learned one is put on the result, and M may be behind · map. */
static weft_tensor *read_crossed(builder *b, const hidden_sum *sum, weft_tensor *behind,
                                 weft_tensor *map) {
    weft_tensor *joined, *learned = sum->cross_weight.learned;
    if (b->attend->joined) {
        weft_tensor *maps[] = {behind, map, sum->cross, sum->before};
        joined = b->attend->joined(b, maps, 4, learned ? 1 : sum->cross_weight.value);
    } else {
        joined = weigh(b, weft_matmul(b->g, map, sum->cross, false, false), sum->cross_weight);
    }
    weft_tensor *y = sum->gathered ? weft_linear(b->g, sum->gathered, joined, NULL, WEFT_ACT_NONE)
                                   : read_hidden(b, sum, joined, NULL);
    return learned && b->attend->joined ? scale_learned(b, y, learned) : y;
}

/* Of the gate's map, where there is one, and of the output's. */
static void read_both_crossed(builder *b, const hidden_sum *sum, weft_tensor *heads,
                              weft_tensor *gate, weft_tensor *out, weft_tensor **to_gate,
                              weft_tensor **to_out) {
    if (gate) *to_gate = read_crossed(b, sum, heads, gate);
    *to_out = read_crossed(b, sum, NULL, out);
}

/* M h'' + bias; `added` is what came from other tokens, `made` M h' + bias where that is there already.
 * Else it comes last: its product adds the rest (ops/fuse.h). */
static weft_tensor *apply_map(builder *b, const hidden_sum *sum, weft_tensor *map,
                              weft_tensor *bias, weft_tensor *added, weft_tensor *made) {
    weft_tensor *y = made ? made : read_hidden(b, sum, map, bias);
    return added ? weft_add(b->g, y, added) : y;
}

weft_tensor *build_reciprocal(builder *b, weft_tensor *hidden, weft_tensor *w_out,
                              weft_tensor *bias) {
    const weft_config *c = b->c;
    hidden_sum sum = {.h = hidden};
    b->part = "reciprocal";
    if (c->latent_recip) exchange_latent(b, &sum);
    if (c->cross_token) cross_tokens(b, &sum);
    weft_tensor *w_gate = NULL, *w_heads = NULL, *open = NULL, *to_gate = NULL, *to_out = NULL;
    weft_tensor *gate = NULL, *out = NULL, *open_now = NULL;
    /* Nobody reads the last layer's gates; in training their tensors are there all the same. */
    bool last = b->layer + 1 == c->n_layer;
    if (c->attn_gate && !(last && b->attend->finish)) {
        w_gate = weight(b, "ffn.gate_proj.weight", c->gate_dim, b->ffn);
        w_heads = weight(b, "ffn.gate_heads.weight", b->heads, c->gate_dim);
        if (c->gate_open != 0)
            open = builder_vector(b, "ffn.gate_heads.bias", init_constant(c->gate_open), b->heads);
    }
    /* Means over tokens leave a map as it is, so both of the gate's maps are one where that is smaller. */
    weft_tensor *both = b->attend->joined && gate_columns(c, true) < c->gate_dim ? w_heads : NULL;
    weft_tensor *own_gate = w_gate;
    if (both) {
        w_gate = b->attend->joined(b, (weft_tensor *[]){both, w_gate}, 2, 1);
        w_heads = NULL;
        open_now = open;
    }
    if (sum.cross && !sum.waits)
        read_both_crossed(b, &sum, both, own_gate, w_out, &to_gate, &to_out);
    /* In generation with bf16 a cache's sums have another type, and no product adds to them: then all products that
     * read h' stand beside each other, and a backend can make them at once. */
    if (sum.cross && b->attend->joined && b->dtype == WEFT_BF16) {
        if (w_gate) gate = read_hidden(b, &sum, w_gate, open_now);
        out = read_hidden(b, &sum, w_out, bias);
    }
    if (sum.waits) {
        gather_hidden(b, &sum);
        read_both_crossed(b, &sum, both, own_gate, w_out, &to_gate, &to_out);
    } else if (sum.cross && !sum.gathered) {
        /* What the two maps made is gathered in place; the last layer's gates apart, for nobody reads them. */
        bool together = to_gate && !last;
        if (to_gate && last) b->attend->gather(b, &to_gate, NULL);
        b->attend->gather(b, &to_out, together ? &to_gate : NULL);
    }
    if (w_gate) gate = apply_map(b, &sum, w_gate, open_now, to_gate, gate);
    /* The next layer's gates, before the sigmoid; w_heads NULL: the context has them already. */
    if (w_gate && c->gate_pool == WEFT_GATE_CUMMEAN) gate = b->attend->running_mean(b, gate);
    if (w_gate && c->gate_pool == WEFT_GATE_SEQUENCE) gate = weft_time_mean(b->g, gate);
    b->gate = w_heads ? weft_linear(b->g, gate, w_heads, open, WEFT_ACT_NONE) : gate;
    return apply_map(b, &sum, w_out, bias, to_out, out);
}

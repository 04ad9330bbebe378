/* Attention over whole sequences, and all else by which rows depend on other tokens there: row t of
 * a sequence is its token t, and what it sees are rows of the same tensors. */
#include "model/builder.h"

static weft_tensor *attend(builder *b, const builder_keys *keys) {
    weft_score *score = &b->score;
    if (!keys->packed && !keys->k) return NULL; /* the graph has failed */
    score->packed = keys->packed;
    score->heads = b->heads;
    score->kv_heads = keys->kv_heads;
    score->k = keys->k;
    if (keys->common) score->k = join_heads(b, keys->common, keys->k, keys->scored);
    if (keys->rotated) score->k = rotate_heads(b, keys->k, keys->rotated, keys->k->shape[2]);
    if (keys->gaussian) {
        weft_gaussian key = weft_gaussian_key(b->g, score->k);
        score->k = key.y;
        score->n = key.n;
    }
    weft_attended a = weft_attention(b->g, score, keys->v);
    b->lse = a.lse;
    return a.o;
}

bool gathers_once(const builder *b) {
    return b->c->sparse_mode != WEFT_SPARSE_TOPK && !b->build->given_routes;
}

/* The logsumexp of each row from which routing makes weights, exp(s − lse): attention's own, or, for
 * weights times the share w that the gate leaves of a head, lse − log w. From w = 1 − α + α σ(g) follows
 * log w = softplus(log(1 − α) − g) − softplus(−g). */
static weft_tensor *routing_lse(builder *b) {
    double alpha = b->c->gate_alpha;
    if (!b->c->route_after_gate || !b->gate) return b->lse;
    weft_tensor *g = weft_scale(b->g, weft_cast(b->g, b->gate, b->stat), -1);
    weft_tensor *taken = weft_softplus(b->g, g, 0, 0);
    if (alpha < 1) {
        weft_tensor *shift = weft_fill(b->g, b->stat, 1, &b->heads, log(1 - alpha));
        weft_tensor *left = weft_softplus(b->g, weft_add(b->g, g, shift), 0, 0);
        taken = weft_add_scaled(b->g, taken, left, -1);
    }
    return weft_add(b->g, b->lse, weft_head_transpose(b->g, taken));
}

/* Σ_j R_tj x_j with all the weights of this layer's attention, or those above a threshold. */
static weft_tensor *gather_densely(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    weft_route_mode mode = c->sparse_mode == WEFT_SPARSE_RMS ? WEFT_ROUTE_RMS : WEFT_ROUTE_ALL;
    return weft_route_dense(b->g, &b->score, routing_lse(b), x, mode, c->sparse_rms_threshold,
                            c->sparse_normalize, !c->sparse_head_average);
}

/* The routes of this layer: those given, or the largest of its attention's weights. */
static void route(builder *b) {
    const weft_config *c = b->c;
    if (gathers_once(b) || b->routes.index) return;
    if (!b->build->given_routes) {
        b->routes = weft_route_topk(b->g, &b->score, routing_lse(b), c->sparse_k,
                                    c->sparse_normalize, !c->sparse_head_average);
        return;
    }
    char index[48], weight_name[48];
    snprintf(index, sizeof index, "h.%d.routes.index", b->layer);
    snprintf(weight_name, sizeof weight_name, "h.%d.routes.weight", b->layer);
    b->routes = (weft_routes){
        weft_new_tensor(b->g, WEFT_ROLE_INPUT, index, WEFT_I32, b->batch, b->time, b->time),
        weft_new_tensor(b->g, WEFT_ROLE_INPUT, weight_name, b->stat, b->batch, b->time, b->time)};
}

static void gather(builder *b, weft_tensor **x, weft_tensor **second) {
    weft_routes r = b->routes;
    if (gathers_once(b)) {
        *x = gather_densely(b, *x);
        if (second) *second = gather_densely(b, *second);
    } else if (second) {
        weft_route_pair pair = weft_route_gather_pair(b->g, *x, *second, r.index, r.weight);
        *x = pair.first;
        *second = pair.second;
    } else {
        *x = weft_route_gather(b->g, *x, r.index, r.weight);
    }
}

static weft_tensor *running_mean(builder *b, weft_tensor *x) {
    return weft_running_mean(b->g, x, b->documents.first);
}

static weft_documents find_documents(builder *b, weft_tensor *tokens, int32_t end) {
    return weft_find_documents(b->g, tokens, end);
}

const weft_attend weft_attend_whole = {
    .documents = find_documents,
    .attention = attend,
    .route = route,
    .gather = gather,
    .running_mean = running_mean,
};

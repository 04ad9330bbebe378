/* Parameters, their starts, and the steps that many kinds have in common. */
#include "model/builder.h"

#include "base/text.h"

static const double NORMAL_STD = 0.02;

weft_init init_normal(double std) {
    return (weft_init){.start = WEFT_START_NORMAL, .a = std, .orthogonal = true};
}

weft_init init_residual(const builder *b) {
    return init_normal(NORMAL_STD / sqrt(2.0 * (double)b->c->n_layer));
}

weft_init init_constant(double value) {
    return (weft_init){.start = WEFT_START_CONSTANT, .a = value};
}

weft_init init_uniform(int64_t in, int64_t out) {
    return (weft_init){.start = WEFT_START_UNIFORM, .a = sqrt(6.0 / (double)(in + out))};
}

static weft_tensor *add_parameter(builder *b, const char *name, weft_dtype dtype, weft_init init,
                                  int ndim, const int64_t *shape) {
    char full[128];
    if (b->layer >= 0)
        snprintf(full, sizeof full, "h.%d.%s", b->layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    weft_tensor *t = weft_graph_tensor(b->g, WEFT_ROLE_PARAM, full, dtype, ndim, shape);
    if (!t) return NULL;
    weft_model_graph *m = b->out;
    if (!weft_grow_list(&m->parameters, &m->cap_parameters, m->n_parameters + 1,
                        sizeof *m->parameters))
        return weft_graph_no_memory(b->g, "model: no memory for its parameters");
    m->parameters[m->n_parameters++] = (weft_parameter){t, init, b->part};
    return t;
}

weft_tensor *builder_matrix(builder *b, const char *name, weft_init init, int ndim,
                            const int64_t *shape) {
    /* The variance of what a map sums over its inputs stays the same at every width. */
    if (b->c->mup && init.start == WEFT_START_NORMAL && weft_is_hidden(b->part))
        init.a /= sqrt(weft_config_mup(b->c));
    return add_parameter(b, name, b->dtype, init, ndim, shape);
}

weft_tensor *builder_vector(builder *b, const char *name, weft_init init, int64_t size) {
    return add_parameter(b, name, b->stat, init, 1, &size);
}

double flops_of(const weft_graph *g, int64_t first, const weft_tensor *read) {
    double flops = 0;
    for (int64_t i = first; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        bool reads = !read;
        for (int k = 0; k < n->n_in; k++)
            reads = reads || n->in[k] == read;
        if (n->op->flops && reads) flops += (double)n->op->flops(n);
    }
    return flops;
}

weft_tensor *add_optional(builder *b, weft_tensor *x, weft_tensor *y) {
    if (!x) return y;
    return y ? weft_add(b->g, x, y) : x;
}

weft_tensor *as_heads(builder *b, weft_tensor *x, int64_t heads, int64_t width) {
    return weft_view(b->g, x, b->batch, b->time, heads, width);
}

weft_tensor *attention_map(builder *b, weft_tensor *x, const char *name, int64_t rows) {
    char full[64];
    if (!x) return NULL;
    snprintf(full, sizeof full, "attn.%s.weight", name);
    weft_tensor *w = matrix(b, full, init_normal(NORMAL_STD), rows, weft_tensor_width(x));
    snprintf(full, sizeof full, "attn.%s.bias", name);
    return weft_linear(b->g, x, w, attention_bias(b, full, rows), WEFT_ACT_NONE);
}

weft_tensor *map_to_heads(builder *b, weft_tensor *x, const char *name, int64_t heads,
                          int64_t width) {
    return as_heads(b, attention_map(b, x, name, heads * width), heads, width);
}

weft_tensor *join_heads(builder *b, weft_tensor *common, weft_tensor *x, int64_t count) {
    if (!common || !x) return x;
    int64_t first = common->shape[3];
    weft_head_columns_attr attr = {.heads = x->shape[2],
                                   .width = first + count,
                                   .part = {{.count = first}, {.count = count, .to = first}}};
    return weft_head_columns(b->g, attr, common, x);
}

weft_tensor *norm_heads(builder *b, weft_tensor *x, int64_t queries, int64_t keys) {
    if (!b->c->qk_norm || !x) return x;
    weft_tensor *q = NULL, *k = NULL;
    int64_t heads = x->shape[2], width = x->shape[3];
    bool whole = b->c->qk_norm_whole;
    if (whole) { /* as many keys as queries: each is one wide head */
        x = as_heads(b, x, heads / queries, queries * width);
        queries = keys = 1;
    }
    weft_init start = init_constant(1);
    if (queries) q = builder_vector(b, "attn.q_norm.weight", start, weft_tensor_width(x));
    if (keys) k = builder_vector(b, "attn.k_norm.weight", start, weft_tensor_width(x));
    x = queries ? weft_norm_heads(b->g, x, q, queries, k, keys)
                : weft_norm_heads(b->g, x, k, keys, NULL, 0);
    return whole ? as_heads(b, x, heads, width) : x;
}

weft_tensor *norm_means(builder *b, weft_tensor *x, int64_t means, bool queries) {
    if (!b->c->qk_norm || !x) return x;
    int64_t heads = x->shape[2], width = x->shape[3];
    if (width == 2 * means) {
        x = weft_view(b->g, x, b->batch, b->time * heads, 2, means);
        return as_heads(b, norm_heads(b, x, queries, !queries), heads, width);
    }
    weft_columns first = {.count = means};
    weft_columns rest = {.from = means, .count = width - means, .to = means};
    weft_head_columns_attr take = {.heads = heads, .width = means, .part = {first}};
    weft_head_columns_attr join = {.heads = heads, .width = width, .part = {first, rest}};
    weft_tensor *mean = weft_head_columns(b->g, take, x, NULL);
    mean = norm_heads(b, mean, queries ? heads : 0, queries ? 0 : heads);
    return weft_head_columns(b->g, join, mean, x);
}

weft_tensor *apply_rope(builder *b, weft_tensor *x, int64_t width, int64_t heads) {
    int64_t every = b->c->nope_every;
    if (!b->position->rotate || (every && (b->layer + 1) % every == 0)) return x;
    return b->position->rotate(b, x, rotated_width(b->c, width), heads);
}

weft_tensor *apply_softcap(builder *b, weft_tensor *x, double cap) {
    if (cap <= 0) return x;
    return weft_scale(b->g, weft_tanh(b->g, weft_scale(b->g, x, 1 / cap)), cap);
}

void builder_score_position(builder *b) {
    if (b->positioned) return;
    b->positioned = true;
    b->score.pos = b->position->score;
    if (b->score.pos == WEFT_POS_RELATIVE)
        b->score.rel = builder_vector(b, "attn.rel_bias", init_constant(0), b->c->context);
}

/* `heads` heads of a tensor that has q, k and v, from column `first` on. */
static weft_tensor *take_packed(builder *b, weft_tensor *packed, int64_t first, int64_t heads) {
    int64_t all = packed ? weft_tensor_width(packed) : 0, width = heads * b->head_dim;
    weft_head_columns_attr attr = {
        .heads = 1, .width = width, .part = {{.from = first, .count = width}}};
    weft_tensor *taken = weft_head_columns(b->g, attr, as_heads(b, packed, 1, all), NULL);
    return as_heads(b, taken, heads, b->head_dim);
}

weft_tensor *builder_attend(builder *b, const builder_keys *keys) {
    builder_score_position(b);
    if (b->shares && !keys->k) {
        builder_keys *kept = &b->kept; /* what the layer before left, apart */
        b->score.n = b->kept_n;
        if (kept->packed && !b->attend->in_pages) {
            int64_t width = kept->kv_heads * b->head_dim;
            kept->k = take_packed(b, kept->packed, b->inner, kept->kv_heads);
            kept->v = take_packed(b, kept->packed, b->inner + width, kept->kv_heads);
            kept->packed = NULL;
        }
        keys = kept;
    } else if (!b->shares) {
        b->kept = *keys;
        b->kept_n = b->score.n;
    }
    return b->attend->attention(b, keys);
}

weft_status check_distances(const weft_config *c, const char *where) {
    const weft_mix mixes[] = {
        {!c->causal, "{POSITION} counts distances back, so it needs CONFIG_CAUSAL=y"}};
    return WEFT_REFUSE(c, where, mixes);
}

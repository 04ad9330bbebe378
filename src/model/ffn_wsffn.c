/* WsFFN's losses. A latent z = W_z h₁ of n heads gets a penalty on its size and a contrastive loss
 * on its means over time; it changes nothing else, and in evaluation it is not made at all. With
 * WSFFN_Z_LOGITS the last layer's also goes to the output layer, for a cross-entropy of its own.
 *
 * z need not exist either: h₁ = W_1 x, so with Q = W_z W_1 and S = Σ x xᵀ the penalty is
 * λ/N · ⟨Qᵀ Q, S⟩, at E² a token in place of F², and the means over time are Q · mean x. The shape
 * decides which form is built. A layer then makes no more than S and Σ_t x, which need its x;
 * everything else is small, and is made of all layers at once behind the last: a product of a batch
 * in place of a short one a layer. */
#include "model/builder.h"
#include "model/contrast.h"

static const double VIEW_DROPOUT = 0.1;

/* What a layer leaves for the losses of all layers. */
struct wsffn_layer {
    weft_tensor *w1, *w_z;
    weft_tensor *gram; /* S [E, E] */
    weft_tensor *sum;  /* of x over time, [B, E], or [2 B, E] of halves */
};

static weft_tensor *make_z_projection(builder *b) {
    int64_t heads = b->c->wsffn_n_head, z = b->ffn / heads;
    b->part = "z-heads";
    weft_init init = {.start = WEFT_START_BLOCKS, .a = 1 / sqrt((double)z), .n = heads};
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE)
        return matrix(b, "ffn.z_proj.weight", init, b->ffn, b->ffn);
    init.start = WEFT_START_UNIFORM;
    return matrix(b, "ffn.z_proj.weight", init, heads, z, z);
}

/* W_z h for rows h [M, F]. */
static weft_tensor *project(builder *b, weft_tensor *h, weft_tensor *w_z) {
    if (!h) return NULL; /* the graph has failed */
    int64_t heads = b->c->wsffn_n_head, rows = weft_tensor_rows(h);
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE) return weft_linear(b->g, h, w_z, NULL, WEFT_ACT_NONE);
    weft_tensor *grouped = weft_view(b->g, h, rows, heads, b->ffn / heads);
    return weft_grouped_linear(b->g, grouped, w_z, true);
}

/* One of the four tensors, of every layer, as one: [N, ...]. */
static weft_tensor *stack_layers(builder *b, size_t which) {
    int64_t n = b->c->n_layer;
    weft_tensor **parts = weft_graph_alloc(b->g, (size_t)n * sizeof *parts);
    if (!parts) return NULL;
    for (int64_t i = 0; i < n; i++)
        parts[i] = *(weft_tensor **)((char *)&b->wsffn[i] + which);
    return weft_stack(b->g, parts, n);
}
#define stack_of(b, name) stack_layers((b), offsetof(struct wsffn_layer, name))

/* Products of the two forms, forward and backward about alike: z for every token, against Q, S and
 * Q S. */
static bool cheap_form_pays(const builder *b) {
    if (b->build->form != WEFT_FORM_BY_SHAPE) return b->build->form == WEFT_FORM_CHEAP;
    double tokens = (double)(b->batch * b->time), f = (double)b->ffn, e = (double)b->width;
    double z = b->c->wsffn_z_proj == WEFT_Z_DENSE ? f : f / (double)b->c->wsffn_n_head;
    return f * z * e + tokens * e * e + f * e * e < tokens * f * z;
}

/* λ_z over the number of latents. */
static double penalty_factor(const builder *b) {
    return b->c->wsffn_lambda_z / (double)(b->batch * b->time * b->c->wsffn_n_head);
}

/* In how many parts of a sequence means are taken; one token is both halves. */
static int64_t count_spans(const builder *b) {
    return b->c->wsffn_positive == WEFT_POSITIVE_HALF && b->time > 1 ? 2 : 1;
}

/* Whether anchor and positive are made of one mean. */
static bool repeats_means(const builder *b) {
    return b->c->wsffn_positive != WEFT_POSITIVE_SELF && count_spans(b) == 1;
}

/* x [B, T, *] with those parts as sequences. */
static weft_tensor *view_spans(builder *b, weft_tensor *x) {
    int64_t spans = count_spans(b);
    if (b->time % spans)
        return weft_graph_refuse(b->g,
                                 "wsffn: %lld tokens have no halves; take an even number, or "
                                 "CONFIG_WSFFN_POSITIVE=\"self\"",
                                 (long long)b->time);
    return x ? weft_view(b->g, x, b->batch * spans, b->time / spans, weft_tensor_width(x)) : NULL;
}

/* Contexts [..., B, F] as the rows that the contrastive loss compares; of two views or halves the anchor's
 * heads, then the positive's. */
static weft_tensor *view_contexts(builder *b, weft_tensor *context, int64_t layers) {
    int64_t heads = b->c->wsffn_n_head, views = b->c->wsffn_positive == WEFT_POSITIVE_SELF ? 1 : 2;
    return weft_view(b->g, context, layers, b->batch * views * heads, b->ffn / heads);
}

/* Contexts of all layers, [layers, B · n_head, z], that are compared elsewhere. */
static void hand_contexts(builder *b, weft_tensor *rows) {
    weft_model_graph *m = b->out;
    m->contexts = rows;
    if (b->build->contrast == WEFT_CONTRAST_MEANS)
        weft_keep(rows);
    else if (rows)
        m->d_contexts = weft_graph_tensor(b->g, WEFT_ROLE_INPUT, "d_contexts", rows->dtype,
                                          rows->ndim, rows->shape);
}

/* This layer's contexts from means of h₁ over time, [B, F] or [2 B, F]: the loss, or what it is made of
 * elsewhere. */
static void contrast_means(builder *b, weft_tensor *mean, weft_tensor *w_z) {
    weft_tensor *context = project(b, mean, w_z);
    if (repeats_means(b)) { /* each [B, F] twice, and each time with a dropout of its own */
        bool drops = b->c->wsffn_positive == WEFT_POSITIVE_DROPOUT;
        char site[48];
        snprintf(site, sizeof site, "h.%d.ffn.z.drop", b->layer);
        context = weft_head_repeat(b->g, weft_view(b->g, context, b->batch, 1, 1, b->ffn), 2);
        context = weft_dropout(b->g, context, drops ? VIEW_DROPOUT : 0, site);
    }
    weft_tensor *rows = view_contexts(b, context, 1);
    if (b->build->contrast == WEFT_CONTRAST_HERE) {
        weft_tensor *loss = weft_contrast_loss(b->g, b->c, rows);
        b->aux_contrastive = add_optional(b, b->aux_contrastive, loss);
        return;
    }
    size_t room = (size_t)b->c->n_layer * sizeof(weft_tensor *);
    if (!b->contexts) b->contexts = weft_graph_alloc(b->g, room);
    if (b->contexts) b->contexts[b->layer] = rows;
}

/* What the losses of all layers are made of; two views of a mean are this layer's own. */
static void add_cheap_losses(builder *b, weft_tensor *x, weft_tensor *w1, weft_tensor *w_z) {
    if (!b->wsffn) b->wsffn = weft_graph_alloc(b->g, (size_t)b->c->n_layer * sizeof *b->wsffn);
    if (!b->wsffn) return;
    weft_moments_of moments = weft_moments(b->g, view_spans(b, x));
    weft_tensor *sum = weft_view(b->g, moments.sum, b->batch * count_spans(b), b->width);
    b->wsffn[b->layer] =
        (struct wsffn_layer){.w1 = w1, .w_z = w_z, .gram = moments.gram, .sum = sum};
    if (!repeats_means(b)) return;
    weft_tensor *mean = weft_scale(b->g, sum, 1 / (double)b->time);
    contrast_means(b, weft_linear(b->g, mean, w1, NULL, WEFT_ACT_NONE), w_z);
}

static void add_losses(builder *b, weft_tensor *x, weft_tensor *h1, weft_tensor *w1) {
    weft_tensor *w_z = make_z_projection(b), *w_logits = NULL, *z = NULL;
    bool last = b->layer + 1 == b->c->n_layer;
    if (b->c->wsffn_z_logits > 0 && last)
        w_logits = matrix(b, "ffn.z_logits.weight", init_normal(0.02), b->width, b->ffn);
    if (!b->build->train || !b->c->wsffn_aux_loss) return;
    int64_t first = weft_graph_node_count(b->g);
    bool cheap = cheap_form_pays(b);
    if (!cheap || w_logits) z = project(b, weft_view(b->g, h1, b->batch * b->time, b->ffn), w_z);
    if (w_logits) {
        weft_tensor *rows = weft_view(b->g, z, b->batch, b->time, b->ffn);
        b->z_read = weft_linear(b->g, rows, w_logits, NULL, WEFT_ACT_NONE);
    }
    if (cheap)
        add_cheap_losses(b, x, w1, w_z);
    else {
        /* By z itself, [B T, ...]. */
        weft_tensor *penalty = weft_sum_squares(b->g, z, penalty_factor(b));
        weft_tensor *mean = weft_time_mean(b->g, view_spans(b, h1));
        mean = weft_view(b->g, mean, b->batch * count_spans(b), b->ffn);
        b->aux_z = add_optional(b, b->aux_z, penalty);
        contrast_means(b, mean, w_z);
    }
    if (!cheap) b->out->z_flops += flops_of(b->g, first, NULL);
}

static void add_sums(builder *b) {
    int64_t layers = b->c->n_layer;
    if (b->contexts)
        hand_contexts(b, view_contexts(b, weft_stack(b->g, b->contexts, layers), layers));
    if (!b->wsffn) return;
    /* Q = W_z W_1 of every layer: [N, F, E]. */
    int64_t heads = b->c->wsffn_n_head, z = b->ffn / heads;
    weft_tensor *w1 = stack_of(b, w1), *w_z = stack_of(b, w_z);
    bool dense = b->c->wsffn_z_proj == WEFT_Z_DENSE;
    if (!dense) w1 = weft_view(b->g, w1, layers * heads, z, b->width);
    if (!dense) w_z = weft_view(b->g, w_z, layers * heads, z, z);
    weft_tensor *q = weft_batched_matmul(b->g, w_z, w1, false, false);
    if (!dense) q = weft_view(b->g, q, layers, b->ffn, b->width);
    weft_tensor *s = stack_of(b, gram), *sum = stack_of(b, sum);
    weft_tensor *penalty = weft_dot(b->g, weft_gram(b->g, q), s);
    b->aux_z = weft_scale(b->g, penalty, penalty_factor(b));
    if (repeats_means(b)) return;
    weft_tensor *context = weft_batched_matmul(b->g, sum, q, false, true);
    context = weft_scale(b->g, context, (double)count_spans(b) / (double)b->time);
    context = view_contexts(b, context, layers);
    if (b->build->contrast == WEFT_CONTRAST_HERE)
        b->aux_contrastive = weft_contrast_loss(b->g, b->c, context);
    else
        hand_contexts(b, context);
}

static weft_tensor *build_wsffn(builder *b, weft_tensor *x) {
    const char *part = b->part;
    gated_maps maps = build_gated_maps(b, x);
    add_losses(b, x, maps.h1, maps.w1);
    b->part = part;
    return build_gated_hidden(b, maps);
}

static weft_status check(const weft_config *c, const char *where) {
    const weft_mix mixes[] = {
        {c->wsffn_positive == WEFT_POSITIVE_HALF && c->context % 2,
         "{WSFFN_POSITIVE} needs sequences with halves, but {CONTEXT} is odd; take an even number"},
        {c->wsffn_z_logits > 0 && !c->wsffn_aux_loss,
         "{WSFFN_Z_LOGITS} is one of z's losses, which {WSFFN_AUX_LOSS} turns off; set one of them "
         "back"},
        {weft_config_ffn_dim(c) % c->wsffn_n_head,
         "the feed-forward's width {ffn_dim} (CONFIG_N_FFN, or 4 x CONFIG_N_EMBD) does not divide "
         "by {WSFFN_N_HEAD}"},
    };
    return WEFT_REFUSE(c, where, mixes);
}

static int64_t width_unit(const weft_config *c) {
    return c->wsffn_n_head;
}

static bool contrasts(const weft_config *c) {
    return c->wsffn_aux_loss && c->wsffn_lambda_c > 0;
}

const weft_ffn_kind weft_ffn_wsffn = {
    .build = build_wsffn,
    .finish = add_sums,
    .check = check,
    .unit = width_unit,
    .contrasts = contrasts,
    .out = "ffn.w2",
};
